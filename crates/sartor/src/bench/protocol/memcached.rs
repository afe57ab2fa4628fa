//! Memcached's text protocol: get and set.

use super::{Answer, Key, Parsed, line, number, parse_number};

/// What follows a value: its line end, and the end of the answer.
const AFTER_VALUE: usize = "\r\nEND\r\n".len();

pub(super) fn get(out: &mut Vec<u8>, key: Key) {
    out.extend_from_slice(b"get ");
    key.write(out);
    out.extend_from_slice(b"\r\n");
}

pub(super) fn set(out: &mut Vec<u8>, key: Key, value: &[u8]) {
    out.extend_from_slice(b"set ");
    key.write(out);
    out.extend_from_slice(b" 0 0 ");
    number(out, value.len() as u64);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

pub(super) fn parse(bytes: &[u8]) -> Parsed<'_> {
    let Some((text, used)) = line(bytes) else { return Parsed::Incomplete };
    match text {
        b"STORED" => return Parsed::Answer(Answer::Done, used),
        b"END" => return Parsed::Answer(Answer::Missing, used),
        _ => {}
    }
    if text.starts_with(b"VALUE ") {
        let length = text.split(|byte| *byte == b' ').nth(3).and_then(parse_number);
        return match length {
            Some(length) if length >= 0 => Parsed::Answer(Answer::Done, used + length as usize + AFTER_VALUE),
            _ => Parsed::Broken,
        };
    }
    let errors: [&[u8]; 4] = [b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR", b"NOT_STORED"];
    match errors.iter().any(|error| text.starts_with(error)) {
        true => Parsed::Answer(Answer::Refused(text), used),
        false => Parsed::Broken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_text() {
        let mut out = Vec::new();
        let key = Key { record: 7, bytes: 6 };
        get(&mut out, key);
        set(&mut out, key, b"abc");
        assert_eq!(out, b"get key:07\r\nset key:07 0 0 3\r\nabc\r\n");
    }

    #[test]
    fn answers_are_found() {
        let whole = b"VALUE key:07 0 3\r\nabc\r\nEND\r\n";
        assert_eq!(parse(whole), Parsed::Answer(Answer::Done, whole.len()));
        assert_eq!(parse(&whole[..20]), Parsed::Answer(Answer::Done, whole.len()));
        assert_eq!(parse(b"END\r\n"), Parsed::Answer(Answer::Missing, 5));
        assert_eq!(parse(b"STORED\r\n"), Parsed::Answer(Answer::Done, 8));
        let refused = b"SERVER_ERROR out of memory\r\n";
        assert_eq!(parse(refused), Parsed::Answer(Answer::Refused(&refused[..26]), 28));
        assert_eq!(parse(b"VALUE key:07 0 x\r\n"), Parsed::Broken);
        assert_eq!(parse(b"+PONG\r\n"), Parsed::Broken);
        assert_eq!(parse(b"VALUE key"), Parsed::Incomplete);
    }
}

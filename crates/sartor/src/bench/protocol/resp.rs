//! Redis: RESP2, of which a load needs little.

use super::{Answer, Key, Parsed, line, number, parse_number};

pub(super) fn get(out: &mut Vec<u8>, key: Key) {
    out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n");
    bulk_key(out, key);
}

pub(super) fn set(out: &mut Vec<u8>, key: Key, value: &[u8]) {
    out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n");
    bulk_key(out, key);
    out.push(b'$');
    number(out, value.len() as u64);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

pub(super) fn wait(out: &mut Vec<u8>, replicas: u32) {
    let mut digits = Vec::new();
    number(&mut digits, replicas.into());
    out.extend_from_slice(b"*3\r\n$4\r\nWAIT\r\n$");
    number(out, digits.len() as u64);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(&digits);
    out.extend_from_slice(b"\r\n$1\r\n0\r\n");
}

pub(super) fn select(out: &mut Vec<u8>, table: &str) {
    out.extend_from_slice(b"*2\r\n$6\r\nSELECT\r\n$");
    number(out, table.len() as u64);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(table.as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn bulk_key(out: &mut Vec<u8>, key: Key) {
    out.push(b'$');
    number(out, key.bytes.into());
    out.extend_from_slice(b"\r\n");
    key.write(out);
    out.extend_from_slice(b"\r\n");
}

pub(super) fn parse(bytes: &[u8]) -> Parsed<'_> {
    let Some((text, used)) = line(bytes) else { return Parsed::Incomplete };
    let Some((kind, text)) = text.split_first() else { return Parsed::Broken };
    match (kind, parse_number(text)) {
        (b'+', _) => Parsed::Answer(Answer::Done, used),
        (b'-', _) => Parsed::Answer(Answer::Refused(text), used),
        (b':', Some(number)) => Parsed::Answer(Answer::Number(number), used),
        (b'$', Some(length)) if length >= 0 => Parsed::Answer(Answer::Done, used + length as usize + 2),
        (b'$', Some(_)) | (b'_', _) => Parsed::Answer(Answer::Missing, used),
        _ => Parsed::Broken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_resp() {
        let mut out = Vec::new();
        let key = Key { record: 7, bytes: 6 };
        get(&mut out, key);
        set(&mut out, key, b"abc");
        wait(&mut out, 12);
        let wanted = b"*2\r\n$3\r\nGET\r\n$6\r\nkey:07\r\n*3\r\n$3\r\nSET\r\n$6\r\nkey:07\r\n$3\r\nabc\r\n*3\r\n$4\r\nWAIT\r\n$2\r\n12\r\n$1\r\n0\r\n";
        assert_eq!(out, wanted);
    }

    #[test]
    fn answers_are_found() {
        assert_eq!(parse(b"+OK\r\n+"), Parsed::Answer(Answer::Done, 5));
        assert_eq!(parse(b"$3\r\na"), Parsed::Answer(Answer::Done, 9));
        assert_eq!(parse(b"$-1\r\n"), Parsed::Answer(Answer::Missing, 5));
        assert_eq!(parse(b":2\r\n"), Parsed::Answer(Answer::Number(2), 4));
        assert_eq!(parse(b"-OOM no room\r\n"), Parsed::Answer(Answer::Refused(b"OOM no room"), 14));
        assert_eq!(parse(b"$3\r"), Parsed::Incomplete);
        assert_eq!(parse(b"HTTP/1.1 400\r\n"), Parsed::Broken);
        assert_eq!(parse(b"\r\n"), Parsed::Broken);
    }
}

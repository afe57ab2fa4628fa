//! The wire format of Redis: requests as arrays of strings, answers by their first byte.

use super::dialect::explain;
use super::wire::{Trouble, Wire};

/// Elements of an array that is longer are none of ours.
const ARRAY_MAX: u64 = 1 << 20;

/// What an answer begins with.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// `OK` and the like.
    Simple,
    /// A refusal.
    Error(String),
    /// A number.
    Integer(i64),
    /// A string of so many bytes follows.
    Bulk(usize),
    /// So many answers follow.
    Array(usize),
    /// There is none.
    Nil,
}

/// Appends a request.
pub(super) fn request(out: &mut Vec<u8>, words: &[&[u8]]) {
    number(out, b'*', words.len());
    for word in words {
        number(out, b'$', word.len());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

fn number(out: &mut Vec<u8>, kind: u8, number: usize) {
    let (mut digits, mut rest, mut start) = ([0; 20], number, 20);
    while start == 20 || rest > 0 {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    out.push(kind);
    out.extend_from_slice(&digits[start..]);
    out.extend_from_slice(b"\r\n");
}

/// The beginning of the next answer.
pub(super) fn head(wire: &mut Wire) -> Result<Head, Trouble> {
    parse(wire.line()?)
}

fn parse(line: &[u8]) -> Result<Head, Trouble> {
    let foreign = || {
        let shown = line[..line.len().min(60)].escape_ascii();
        Trouble::wrong(format!("it answers '{shown}', which is not the protocol of Redis"))
    };
    let (kind, rest) = line.split_first().ok_or_else(foreign)?;
    let text = || std::str::from_utf8(rest).map_err(|_| foreign());
    let integer = || text()?.parse::<i64>().map_err(|_| foreign());
    Ok(match kind {
        b'+' => Head::Simple,
        b'-' => Head::Error(String::from_utf8_lossy(rest).into_owned()),
        b':' => Head::Integer(integer()?),
        b'$' | b'*' if rest == b"-1" => Head::Nil,
        b'$' => Head::Bulk(usize::try_from(integer()?).map_err(|_| foreign())?),
        b'*' => {
            let count = u64::try_from(integer()?).ok().filter(|&count| count <= ARRAY_MAX);
            Head::Array(count.ok_or_else(foreign)? as usize)
        }
        _ => return Err(foreign()),
    })
}

/// The next answer, which must be a string.
pub(super) fn text(wire: &mut Wire) -> Result<Vec<u8>, Trouble> {
    match head(wire)? {
        Head::Bulk(len) => wire.bulk(len).map(<[u8]>::to_vec),
        other => Err(unexpected(&other)),
    }
}

/// The next answer, which must be an array of strings.
pub(super) fn texts(wire: &mut Wire) -> Result<Vec<Vec<u8>>, Trouble> {
    match head(wire)? {
        Head::Array(count) => (0..count).map(|_| text(wire)).collect(),
        other => Err(unexpected(&other)),
    }
}

/// The next answer, which must be a word such as `OK`.
pub(super) fn word(wire: &mut Wire) -> Result<String, Trouble> {
    let line = wire.line()?;
    match line.strip_prefix(b"+") {
        Some(word) => Ok(String::from_utf8_lossy(word).into_owned()),
        None => Err(unexpected(&parse(line)?)),
    }
}

/// The next answer, which must be a number of things.
pub(super) fn count(wire: &mut Wire) -> Result<u64, Trouble> {
    match head(wire)? {
        Head::Integer(count) => Ok(count.unsigned_abs()),
        other => Err(unexpected(&other)),
    }
}

/// The next answer, whatever it is but a refusal.
pub(super) fn anything(wire: &mut Wire) -> Result<(), Trouble> {
    match head(wire)? {
        error @ Head::Error(_) => Err(unexpected(&error)),
        Head::Array(count) => (0..count).try_for_each(|_| text(wire).map(drop)),
        Head::Bulk(len) => wire.bulk(len).map(drop),
        Head::Simple | Head::Integer(_) | Head::Nil => Ok(()),
    }
}

/// For an answer that is none to what was asked.
pub(super) fn unexpected(head: &Head) -> Trouble {
    match head {
        Head::Error(text) => Trouble::wrong(explain(text)),
        other => Trouble::wrong(format!("it answered with {other:?} where something else was due")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_arrays_of_strings() {
        let mut out = Vec::new();
        request(&mut out, &[b"SET", b"", b"a\r\nbcdefghij"]);
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$0\r\n\r\n$12\r\na\r\nbcdefghij\r\n");
    }

    #[test]
    fn heads_are_told_by_their_first_byte() {
        for (line, head) in [
            ("+OK", Head::Simple),
            ("-OOM no", Head::Error("OOM no".into())),
            (":-3", Head::Integer(-3)),
            ("$-1", Head::Nil),
            ("*-1", Head::Nil),
            ("$0", Head::Bulk(0)),
            ("*2", Head::Array(2)),
        ] {
            assert_eq!(parse(line.as_bytes()).unwrap(), head);
        }
        for line in ["", "HTTP/1.1 400", ":", ":x", "$", "$-2", "*99999999", "$18446744073709551616", "%1"] {
            assert!(parse(line.as_bytes()).unwrap_err().text.contains("not the protocol"), "{line}");
        }
    }
}

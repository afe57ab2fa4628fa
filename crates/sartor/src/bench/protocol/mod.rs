//! What goes over a connection: requests as bytes, answers out of bytes. One file a protocol.

mod memcached;
mod resp;

use clap::ValueEnum;
use sartor_core::workload::Action;

/// What the target speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    /// Redis
    Resp,
    /// Memcached's text protocol
    Memcached,
}

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// A value, or that it was done.
    Done,
    /// No such record.
    Missing,
    /// A number.
    Number(i64),
    /// It was refused; the text says why.
    Refused(&'a [u8]),
}

/// What lies at the front of the bytes that came.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// Nothing whole.
    Incomplete,
    /// An answer of so many bytes, of which more may come than are here: those can be skipped.
    Answer(Answer<'a>, usize),
    /// Not this protocol.
    Broken,
}

impl Protocol {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Resp => "resp",
            Protocol::Memcached => "memcached",
        }
    }

    /// Whether a request for that exists.
    pub fn can(self, action: Action) -> bool {
        action != Action::Scan
    }

    /// Appends a read.
    pub fn get(self, out: &mut Vec<u8>, key: Key) {
        match self {
            Protocol::Resp => resp::get(out, key),
            Protocol::Memcached => memcached::get(out, key),
        }
    }

    /// Appends a write.
    pub fn set(self, out: &mut Vec<u8>, key: Key, value: &[u8]) {
        match self {
            Protocol::Resp => resp::set(out, key, value),
            Protocol::Memcached => memcached::set(out, key, value),
        }
    }

    /// Appends the wait for replicas, if there is one.
    pub fn wait(self, out: &mut Vec<u8>, replicas: u32) {
        if self == Protocol::Resp {
            resp::wait(out, replicas);
        }
    }

    /// Appends the choice of a table, if there are several.
    pub fn select(self, out: &mut Vec<u8>, table: &str) {
        if self == Protocol::Resp {
            resp::select(out, table);
        }
    }

    /// The first answer in these bytes.
    pub fn parse(self, bytes: &[u8]) -> Parsed<'_> {
        match self {
            Protocol::Resp => resp::parse(bytes),
            Protocol::Memcached => memcached::parse(bytes),
        }
    }
}

/// What keys begin with.
pub const KEY_PREFIX: &[u8] = b"key:";

/// The key of a record: the prefix and its number, with zeros up to the length.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Which record.
    pub record: u64,
    /// The length.
    pub bytes: u32,
}

impl Key {
    /// Appends it. What does not fit is cut; who sets the length takes care that all fits.
    pub fn write(self, out: &mut Vec<u8>) {
        let digits = (self.bytes as usize).saturating_sub(KEY_PREFIX.len());
        out.extend_from_slice(KEY_PREFIX);
        let end = out.len() + digits;
        out.resize(end, b'0');
        let mut rest = self.record;
        for digit in out[end - digits..].iter_mut().rev() {
            if rest == 0 {
                break;
            }
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
    }
}

/// Appends a number in decimal.
fn number(out: &mut Vec<u8>, value: u64) {
    let mut digits = [0; 20];
    let (mut at, mut rest) = (digits.len(), value);
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// The first line without its end, and its length with it.
fn line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    Some((bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]), end + 1))
}

/// A decimal number and nothing else.
fn parse_number(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    let mut value = 0i64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value * 10 + i64::from(digit - b'0');
    }
    Some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_their_length() {
        let mut out = Vec::new();
        Key { record: 1203, bytes: 16 }.write(&mut out);
        assert_eq!(out, b"key:000000001203");
        out.clear();
        Key { record: 0, bytes: 5 }.write(&mut out);
        assert_eq!(out, b"key:0");
    }

    #[test]
    fn numbers_are_decimal() {
        let mut out = Vec::new();
        for value in [0, 9, 10, u64::MAX] {
            number(&mut out, value);
            out.push(b' ');
        }
        assert_eq!(out, b"0 9 10 18446744073709551615 ");
        assert_eq!(parse_number(b"-12"), Some(-12));
        for wrong in [&b""[..], b"-", b"1x", b"99999999999999999999"] {
            assert_eq!(parse_number(wrong), None);
        }
    }
}

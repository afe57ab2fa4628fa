//! The alphabet of all formats: varints (LEB128), length-prefixed bytes, and a reader that
//! shares the buffer it reads from.

use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;

/// Bytes that do not say what they should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

/// A type that travels.
pub trait Wire: Sized {
    /// Appends its bytes.
    fn encode(&self, out: &mut Vec<u8>);
    /// Reads it back.
    fn decode(from: &mut Reader) -> Result<Self, Malformed>;

    /// Its bytes alone.
    fn to_bytes(&self) -> Bytes {
        let mut out = Vec::new();
        self.encode(&mut out);
        out.into()
    }

    /// Reads it from bytes that hold nothing else.
    fn from_bytes(bytes: Bytes) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let value = Self::decode(&mut reader)?;
        if reader.is_empty() { Ok(value) } else { Err(Malformed("bytes left over")) }
    }
}

/// Appends a LEB128 number.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes a LEB128 number off the front; none if it is cut short or too large.
#[inline]
pub fn get_varint(from: &mut &[u8]) -> Option<u64> {
    // Most are short.
    match *from {
        [byte, rest @ ..] if *byte < 0x80 => {
            *from = rest;
            Some(u64::from(*byte))
        }
        // By value, so that what callers read from stays in registers.
        _ => {
            let (value, rest) = get_long_varint(from)?;
            *from = rest;
            Some(value)
        }
    }
}

fn get_long_varint(from: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (i, &byte) in from.iter().enumerate().take(10) {
        if i == 9 && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            return Some((value, &from[i + 1..]));
        }
    }
    None
}

/// Takes a length and so many bytes off the front; none if they are cut short.
#[inline]
pub fn get_bytes<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(get_varint(from)?).ok()?;
    let (bytes, rest) = from.split_at_checked(len)?;
    *from = rest;
    Some(bytes)
}

/// Appends a length and the bytes.
#[inline]
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Takes things off the front of a shared buffer. Slices it hands out share that buffer.
#[derive(Clone, Debug)]
pub struct Reader {
    bytes: Bytes,
}

impl Reader {
    /// Reads `bytes` from the start.
    pub fn new(bytes: Bytes) -> Reader {
        Reader { bytes }
    }

    /// Whether all is read.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// One byte.
    pub fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    /// A varint.
    pub fn varint(&mut self) -> Result<u64, Malformed> {
        let mut rest = &self.bytes[..];
        let value = get_varint(&mut rest).ok_or(Malformed("bad number"))?;
        let used = self.bytes.len() - rest.len();
        let _ = self.bytes.split_to(used);
        Ok(value)
    }

    /// A varint that fits a smaller type.
    pub fn number<T: TryFrom<u64>>(&mut self) -> Result<T, Malformed> {
        T::try_from(self.varint()?).map_err(|_| Malformed("number too large"))
    }

    /// Length-prefixed bytes.
    pub fn bytes(&mut self) -> Result<Bytes, Malformed> {
        let len = self.number()?;
        self.take(len)
    }

    /// So many bytes.
    pub fn exactly(&mut self, len: usize) -> Result<Bytes, Malformed> {
        self.take(len)
    }

    /// A length-prefixed text.
    pub fn text(&mut self) -> Result<String, Malformed> {
        let bytes = self.bytes()?;
        String::from_utf8(bytes.to_vec()).map_err(|_| Malformed("text is not UTF-8"))
    }

    /// A list: its length, then its elements. No room is made for what is only announced.
    pub fn list<T>(
        &mut self,
        mut element: impl FnMut(&mut Reader) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let len: usize = self.number()?;
        if len > self.bytes.len() {
            return Err(Malformed("list longer than its bytes"));
        }
        let mut list = Vec::with_capacity(len.min(1024));
        for _ in 0..len {
            list.push(element(self)?);
        }
        Ok(list)
    }

    /// An optional thing behind a presence byte.
    pub fn option<T>(
        &mut self,
        some: impl FnOnce(&mut Reader) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        match self.byte()? {
            0 => Ok(None),
            1 => some(self).map(Some),
            _ => Err(Malformed("bad presence byte")),
        }
    }

    /// What is not read yet.
    pub fn left(&self) -> &Bytes {
        &self.bytes
    }

    /// The rest.
    pub fn rest(&mut self) -> Bytes {
        core::mem::take(&mut self.bytes)
    }

    fn take(&mut self, len: usize) -> Result<Bytes, Malformed> {
        if len > self.bytes.len() {
            return Err(Malformed("cut short"));
        }
        Ok(self.bytes.split_to(len))
    }
}

/// Appends a list's length and its elements.
pub fn put_list<T>(out: &mut Vec<u8>, list: &[T], mut element: impl FnMut(&mut Vec<u8>, &T)) {
    put_varint(out, list.len() as u64);
    for item in list {
        element(out, item);
    }
}

/// Appends a presence byte and the thing.
pub fn put_option<T>(out: &mut Vec<u8>, option: Option<&T>, some: impl FnOnce(&mut Vec<u8>, &T)) {
    match option {
        None => out.push(0),
        Some(value) => {
            out.push(1);
            some(out, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_come_back() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(get_varint(&mut &out[..]), Some(value));
            assert_eq!(get_varint(&mut &out[..out.len() - 1]), None);
        }
    }

    #[test]
    fn lies_about_lengths_cost_nothing() {
        let mut out = Vec::new();
        put_varint(&mut out, u64::MAX);
        assert!(Reader::new(out.clone().into()).bytes().is_err());
        assert!(Reader::new(out.into()).list(Reader::byte).is_err());
    }
}

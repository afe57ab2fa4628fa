//! What a durable engine writes in the same commit as its pairs: which commit it is, how many pairs there are, the mark.

use xxhash_rust::xxh3::xxh3_64;

/// Of the last commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    /// Commits are counted from 1; 0 is the empty store as it was made.
    pub(crate) number: u64,
    /// The number of pairs.
    pub(crate) len: u64,
    /// What the caller said of it.
    pub(crate) mark: Option<Vec<u8>>,
}

impl Header {
    /// That of the next commit.
    pub(crate) fn next(&self, len: u64, mark: &[u8]) -> Header {
        Header { number: self.number + 1, len, mark: Some(mark.to_vec()) }
    }

    /// As bytes, with a checksum.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; 8];
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(&self.len.to_le_bytes());
        bytes.push(u8::from(self.mark.is_some()));
        bytes.extend_from_slice(self.mark.as_deref().unwrap_or_default());
        let sum = xxh3_64(&bytes[8..]);
        bytes[..8].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// None if the bytes are not what [`Header::encode`] made.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Header> {
        let (sum, rest) = bytes.split_first_chunk::<8>()?;
        if u64::from_le_bytes(*sum) != xxh3_64(rest) {
            return None;
        }
        let (number, rest) = rest.split_first_chunk::<8>()?;
        let (len, rest) = rest.split_first_chunk::<8>()?;
        let (has_mark, mark) = rest.split_first()?;
        let mark = (*has_mark == 1).then(|| mark.to_vec());
        Some(Header { number: u64::from_le_bytes(*number), len: u64::from_le_bytes(*len), mark })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_back_and_any_changed_bit_is_seen() {
        for mark in [None, Some(vec![]), Some(b"mark\0".to_vec())] {
            let header = Header { number: 7, len: 1 << 40, mark };
            let bytes = header.encode();
            assert_eq!(Header::decode(&bytes), Some(header));
            for bit in 0..bytes.len() * 8 {
                let mut changed = bytes.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Header::decode(&changed), None);
            }
            assert_eq!(Header::decode(&bytes[..bytes.len() - 1]), None);
        }
        assert_eq!(Header::decode(b""), None);
    }
}

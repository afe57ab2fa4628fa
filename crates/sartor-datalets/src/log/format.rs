//! What lies in a file: a header, then records without a gap.
//!
//! ```text
//!  header   magic 7 | version 1 | number 4 | length and sum of the file before 4 + 4 | checksum 4
//!  record   checksum 4 | kind 1 | key length 4 | value length 4 | key | value
//! ```
//!
//! Numbers are little-endian. A record's checksum also covers where it lies: what the disk puts in a wrong place, and a
//! value that looks like a record, are not taken for one. The sum of a file is a checksum over those of its records.

use crc32fast::Hasher;

const MAGIC: [u8; 7] = *b"sartorL";
const VERSION: u8 = 1;
/// What a file begins with.
pub const HEADER_BYTES: u32 = 24;
/// What a record takes beside its key and value.
pub const RECORD_HEAD: usize = 13;
/// The largest record; with the largest file it keeps offsets below 2^32.
pub const RECORD_BYTES_MAX: usize = 1 << 30;
/// The largest mark of a commit.
pub const MARK_BYTES_MAX: usize = 1 << 16;
const COMMIT_VALUE_BYTES: usize = 8;

/// What a record tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The key has this value.
    Put = 1,
    /// The key is gone.
    Delete = 2,
    /// All keys are gone.
    Clear = 3,
    /// All records up to here count. The key is the mark, the value a [`Commit`].
    Commit = 4,
}

impl Kind {
    /// The kind of a byte.
    pub fn from_byte(byte: u8) -> Option<Kind> {
        [Kind::Put, Kind::Delete, Kind::Clear, Kind::Commit].into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// What a commit tells beside its mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// No file before this one is needed.
    pub first: u32,
    /// So much of the commit's own file was on disk before it was written. What is bad below is damaged; above, it may just
    /// not have come to the disk.
    pub synced: u32,
}

impl Commit {
    /// As the value of its record.
    pub fn encode(self) -> [u8; COMMIT_VALUE_BYTES] {
        let mut bytes = [0; COMMIT_VALUE_BYTES];
        bytes[..4].copy_from_slice(&self.first.to_le_bytes());
        bytes[4..].copy_from_slice(&self.synced.to_le_bytes());
        bytes
    }

    /// From the value of its record.
    pub fn decode(value: &[u8]) -> Option<Commit> {
        let whole = value.len() == COMMIT_VALUE_BYTES;
        whole.then(|| Commit { first: number(value, 0), synced: number(value, 4) })
    }
}

/// A record as it lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// What it tells.
    pub kind: Kind,
    /// The key, or the mark.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// Its checksum.
    pub checksum: u32,
}

impl Record<'_> {
    /// All of its bytes.
    pub fn size(&self) -> usize {
        RECORD_HEAD + self.key.len() + self.value.len()
    }
}

/// The little-endian number at `at`, which must lie within the bytes.
pub fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn checksum(file: u32, offset: u32, rest: &[&[u8]]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(&file.to_le_bytes());
    hasher.update(&offset.to_le_bytes());
    rest.iter().for_each(|bytes| hasher.update(bytes));
    hasher.finalize()
}

/// The sum of a file after one more record.
pub fn sum_with(sum: u32, checksum: u32) -> u32 {
    let mut hasher = Hasher::new_with_initial(sum);
    hasher.update(&checksum.to_le_bytes());
    hasher.finalize()
}

/// Appends a record that will lie at `offset` of a file; its checksum.
pub fn encode(into: &mut Vec<u8>, file: u32, offset: u32, kind: Kind, key: &[u8], value: &[u8]) -> u32 {
    let mut lengths = [kind as u8; 9];
    lengths[1..5].copy_from_slice(&(key.len() as u32).to_le_bytes());
    lengths[5..].copy_from_slice(&(value.len() as u32).to_le_bytes());
    let checksum = checksum(file, offset, &[&lengths, key, value]);
    into.extend_from_slice(&checksum.to_le_bytes());
    for part in [&lengths, key, value] {
        into.extend_from_slice(part);
    }
    checksum
}

/// How long the record is that begins with these [`RECORD_HEAD`] bytes, if they can be a record's.
pub fn size_of_record(head: &[u8]) -> Option<usize> {
    Kind::from_byte(head[4])?;
    let size = RECORD_HEAD as u64 + u64::from(number(head, 5)) + u64::from(number(head, 9));
    (size <= RECORD_BYTES_MAX as u64).then_some(size as usize)
}

/// Whether a commit may begin with these bytes: cheaper than to decode it.
pub fn may_be_commit(head: &[u8]) -> bool {
    head[4] == Kind::Commit as u8
        && number(head, 9) as usize == COMMIT_VALUE_BYTES
        && number(head, 5) as usize <= MARK_BYTES_MAX
}

/// The record that `bytes` are, if they are one that was written there.
pub fn decode(bytes: &[u8], file: u32, offset: u32) -> Option<Record<'_>> {
    let head = bytes.get(..RECORD_HEAD)?;
    if size_of_record(head)? != bytes.len() || number(head, 0) != checksum(file, offset, &[&bytes[4..]]) {
        return None;
    }
    let (key, value) = bytes[RECORD_HEAD..].split_at(number(head, 5) as usize);
    Some(Record { kind: Kind::from_byte(head[4])?, key, value, checksum: number(head, 0) })
}

/// What a file tells of the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its length.
    pub len_before: u32,
    /// Its sum.
    pub sum_before: u32,
}

/// What a file's header comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderFound {
    /// It is whole.
    Whole(Header),
    /// It was written by a Sartor with another format, of this version.
    Unknown(u8),
    /// It is not what was written.
    Bad,
}

impl Header {
    /// As the first bytes of a file.
    pub fn encode(self, file: u32) -> [u8; HEADER_BYTES as usize] {
        let mut bytes = [0; HEADER_BYTES as usize];
        bytes[..7].copy_from_slice(&MAGIC);
        bytes[7] = VERSION;
        bytes[8..12].copy_from_slice(&file.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.len_before.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.sum_before.to_le_bytes());
        let checksum = crc32fast::hash(&bytes[..20]);
        bytes[20..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// From the first [`HEADER_BYTES`] of a file.
    pub fn decode(bytes: &[u8], file: u32) -> HeaderFound {
        let checked = crc32fast::hash(&bytes[..20]) == number(bytes, 20);
        match bytes[7] {
            _ if bytes[..7] != MAGIC => HeaderFound::Bad,
            VERSION if checked && number(bytes, 8) == file => {
                HeaderFound::Whole(Header { len_before: number(bytes, 12), sum_before: number(bytes, 16) })
            }
            // Where its checksum lies is known of no other version, but a flipped bit would make this one's wrong.
            version if version > VERSION && checked => HeaderFound::Unknown(version),
            _ => HeaderFound::Bad,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_where_it_was_written_and_nowhere_else() {
        let mut bytes = Vec::new();
        let checksum = encode(&mut bytes, 7, 100, Kind::Put, b"key", b"value");
        let record = Record { kind: Kind::Put, key: b"key", value: b"value", checksum };
        assert_eq!(decode(&bytes, 7, 100), Some(record));
        assert_eq!(record.size(), bytes.len());
        assert_eq!((decode(&bytes, 7, 101), decode(&bytes, 8, 100)), (None, None));
        assert_eq!(decode(&bytes[..bytes.len() - 1], 7, 100), None);
        for place in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[place / 8] ^= 1 << (place % 8);
            assert_eq!(decode(&flipped, 7, 100), None, "bit {place}");
        }
    }

    #[test]
    fn a_header_names_its_file_and_its_version() {
        let header = Header { len_before: 5, sum_before: 6 };
        let mut bytes = header.encode(3);
        assert_eq!(Header::decode(&bytes, 3), HeaderFound::Whole(header));
        assert_eq!(Header::decode(&bytes, 4), HeaderFound::Bad);
        bytes[7] = 2;
        assert_eq!(Header::decode(&bytes, 3), HeaderFound::Bad);
        let checksum = crc32fast::hash(&bytes[..20]);
        bytes[20..].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(Header::decode(&bytes, 3), HeaderFound::Unknown(2));
    }
}

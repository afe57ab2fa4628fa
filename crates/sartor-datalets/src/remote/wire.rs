//! The messages of `templates/datalet.proto`, and frames.
//!
//! What a store answers is read bit by bit and no further than it was asked for, so that a frame of many tiny messages
//! takes no more memory than the frame.

use bytes::{Buf, Bytes};
use prost::{Message, Oneof};

/// The version of the protocol that is spoken here.
pub const VERSION: u32 = 1;
/// The largest message of either side.
pub const FRAME_BYTES_MAX: usize = 64 << 20;

/// Operations for the store.
#[derive(Clone, PartialEq, Message)]
pub struct Batch {
    #[prost(message, repeated, tag = "1")]
    pub operations: Vec<Operation>,
    #[prost(uint64, tag = "2")]
    pub bytes_max: u64,
}

/// One of them.
#[derive(Clone, PartialEq, Message)]
pub struct Operation {
    #[prost(oneof = "Ask", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10")]
    pub ask: Option<Ask>,
}

/// What is asked.
#[derive(Clone, PartialEq, Oneof)]
pub enum Ask {
    #[prost(message, tag = "1")]
    Hello(Hello),
    #[prost(bytes = "bytes", tag = "2")]
    Get(Bytes),
    #[prost(message, tag = "3")]
    Put(Pair),
    #[prost(bytes = "bytes", tag = "4")]
    Delete(Bytes),
    #[prost(message, tag = "5")]
    Walk(Walk),
    #[prost(message, tag = "6")]
    Scan(Scan),
    #[prost(message, tag = "7")]
    Len(Nothing),
    #[prost(message, tag = "8")]
    Clear(Nothing),
    #[prost(message, tag = "9")]
    Commit(Commit),
    #[prost(message, tag = "10")]
    Mark(Nothing),
}

impl Ask {
    /// Whether it changes the store.
    pub fn changes(&self) -> bool {
        matches!(self, Ask::Put(_) | Ask::Delete(_) | Ask::Clear(_) | Ask::Commit(_))
    }
}

/// One result. Pairs stay as they came until they are read by [`page`].
#[derive(Clone, PartialEq, Message)]
pub struct Answer {
    #[prost(oneof = "Said", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub said: Option<Said>,
}

/// What came of an operation.
#[derive(Clone, PartialEq, Oneof)]
pub enum Said {
    #[prost(string, tag = "1")]
    Error(String),
    #[prost(message, tag = "2")]
    Done(Nothing),
    #[prost(bytes = "bytes", tag = "3")]
    Value(Bytes),
    #[prost(message, tag = "4")]
    Nothing(Nothing),
    #[prost(bytes = "bytes", tag = "5")]
    Pairs(Bytes),
    #[prost(uint64, tag = "6")]
    Count(u64),
    #[prost(message, boxed, tag = "7")]
    Capabilities(Box<Capabilities>),
}

impl Said {
    /// Whether this can be the result of that.
    pub fn fits(&self, ask: &Ask) -> bool {
        match ask {
            Ask::Hello(_) => matches!(self, Said::Capabilities(_)),
            Ask::Get(_) | Ask::Mark(_) => matches!(self, Said::Value(_) | Said::Nothing(_)),
            Ask::Put(_) | Ask::Delete(_) | Ask::Clear(_) | Ask::Commit(_) => matches!(self, Said::Done(_)),
            Ask::Walk(_) | Ask::Scan(_) => matches!(self, Said::Pairs(_)),
            Ask::Len(_) => matches!(self, Said::Count(_)),
        }
    }

    /// How many bytes of values it has; those of pairs with a little more.
    fn bytes(&self) -> usize {
        match self {
            Said::Value(value) | Said::Pairs(value) => value.len(),
            _ => 0,
        }
    }
}

/// The first of a connection.
#[derive(Clone, PartialEq, Message)]
pub struct Hello {
    #[prost(uint32, tag = "1")]
    pub version: u32,
    #[prost(uint64, tag = "2")]
    pub owner: u64,
}

/// What the store is.
#[derive(Clone, PartialEq, Message)]
pub struct Capabilities {
    /// The version that is spoken.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// For people.
    #[prost(string, tag = "2")]
    pub name: String,
    /// It scans, and walks, in key order.
    #[prost(bool, tag = "3")]
    pub ordered: bool,
    /// Its data outlive the process.
    #[prost(bool, tag = "4")]
    pub durable: bool,
    /// The longest key; 0: as long as fits.
    #[prost(uint64, tag = "5")]
    pub key_bytes_max: u64,
    /// The longest value; 0: as long as fits.
    #[prost(uint64, tag = "6")]
    pub value_bytes_max: u64,
}

/// A key and its value.
#[derive(Clone, PartialEq, Message)]
pub struct Pair {
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// A page of all pairs.
#[derive(Clone, PartialEq, Message)]
pub struct Walk {
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub after: Option<Bytes>,
    #[prost(uint64, tag = "2")]
    pub pairs_max: u64,
    #[prost(uint64, tag = "3")]
    pub bytes_max: u64,
}

/// A page of pairs in key order.
#[derive(Clone, PartialEq, Message)]
pub struct Scan {
    #[prost(bytes = "bytes", tag = "1")]
    pub start: Bytes,
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub end: Option<Bytes>,
    #[prost(uint64, tag = "3")]
    pub pairs_max: u64,
    #[prost(uint64, tag = "4")]
    pub bytes_max: u64,
}

/// The end of a group.
#[derive(Clone, PartialEq, Message)]
pub struct Commit {
    #[prost(bytes = "bytes", tag = "1")]
    pub mark: Bytes,
    #[prost(bool, tag = "2")]
    pub durably: bool,
}

/// No more to say.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Nothing {}

/// What is read of results beside the answers: other fields are passed over.
#[derive(Clone, PartialEq, Message)]
struct Generation {
    #[prost(uint64, tag = "1")]
    generation: u64,
}

/// What is read of a page beside the pairs.
#[derive(Clone, PartialEq, Message)]
struct Next {
    #[prost(bytes = "bytes", optional, tag = "2")]
    next: Option<Bytes>,
}

/// A batch as a frame.
pub fn frame(batch: &Batch) -> Result<Vec<u8>, String> {
    let len = batch.encoded_len();
    if len > FRAME_BYTES_MAX {
        return Err(format!("{len} bytes are more than fit into a frame ({FRAME_BYTES_MAX})"));
    }
    let mut frame = Vec::with_capacity(4 + len);
    frame.extend_from_slice(&(len as u32).to_le_bytes());
    batch.encode_raw(&mut frame);
    Ok(frame)
}

/// The results of that batch, and the store's generation. They are as many as the operations, or fewer: up to the one that
/// failed, or until the bytes that the batch allows.
pub fn results(message: Bytes, batch: &Batch) -> Result<(u64, Vec<Said>), String> {
    let generation = Generation::decode(message.clone()).map_err(|error| error.to_string())?.generation;
    let (mut all, mut bytes) = (Vec::with_capacity(batch.operations.len()), 0);
    each(message, 2, |answer| {
        let Some(Operation { ask: Some(ask) }) = batch.operations.get(all.len()) else {
            return Err("it answered more than was asked".into());
        };
        if matches!(all.last(), Some(Said::Error(_))) {
            return Err("it went on after an error".into());
        }
        let said = Answer::decode(answer).map_err(|error| error.to_string())?.said;
        let said = said.ok_or("a result is empty")?;
        if !matches!(said, Said::Error(_)) && !said.fits(ask) {
            return Err(format!("the result of operation {} is of another kind", all.len()));
        }
        bytes += said.bytes();
        all.push(said);
        Ok(())
    })?;
    let (got, asked) = (all.len(), batch.operations.len());
    let may_be_short = matches!(all.last(), Some(Said::Error(_)))
        || (batch.bytes_max > 0 && bytes as u64 >= batch.bytes_max && got > 0);
    if got < asked && !may_be_short {
        return Err(format!("it answered {got} of {asked} operations"));
    }
    Ok((generation, all))
}

/// Hands on the pairs of a page, of which there may be so many; where to go on.
pub fn page(
    pairs: Bytes,
    pairs_max: usize,
    mut take: impl FnMut(Pair) -> Result<(), String>,
) -> Result<Option<Bytes>, String> {
    let next = Next::decode(pairs.clone()).map_err(|error| error.to_string())?.next;
    let mut count = 0;
    each(pairs, 1, |pair| {
        count += 1;
        if count > pairs_max {
            return Err(format!("a page has more than {pairs_max} pairs"));
        }
        take(Pair::decode(pair).map_err(|error| error.to_string())?)
    })?;
    Ok(next)
}

/// Hands on the messages under a field of this number, one after the other.
fn each(
    mut from: Bytes,
    field: usize,
    mut take: impl FnMut(Bytes) -> Result<(), String>,
) -> Result<(), String> {
    const CUT: &str = "a message is cut short";
    while from.has_remaining() {
        // A field begins with its number and its form, as one number of the same kind as lengths.
        let key = prost::decode_length_delimiter(&mut from).map_err(|error| error.to_string())?;
        let len = match key & 7 {
            0 => prost::decode_length_delimiter(&mut from).map(|_| 0),
            1 => Ok(8),
            2 => prost::decode_length_delimiter(&mut from),
            5 => Ok(4),
            form => return Err(format!("a field has the unknown form {form}")),
        };
        let len = len.map_err(|error| error.to_string())?;
        if len > from.len() {
            return Err(CUT.into());
        }
        let content = from.split_to(len);
        if key == field << 3 | 2 {
            take(content)?;
        }
    }
    Ok(())
}

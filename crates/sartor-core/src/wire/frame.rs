//! What stands in front of every message between nodes.
//!
//! ```text
//! version: u8 │ kind: u8 │ from node: u16 │ from worker: u8 │ incarnation: u64 │ shard: u16 │ epoch: u64 │ payload
//! ```
//!
//! Numbers are little-endian. The transport adds a length in front of each frame.

use crate::ids::{Epoch, Incarnation, NodeId, ShardId, WorkerId};
use crate::wire::codec::Malformed;
use alloc::vec::Vec;
use bytes::{Buf, Bytes};

/// The format's version; a frame of a newer one is refused.
pub const VERSION: u8 = 4;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 23;

/// What a frame is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// From one replica of a shard to another.
    Controlet,
    /// Requests for the shard's head.
    Forward,
    /// What became of forwarded requests.
    Answers,
    /// Node to coordinator: I am alive.
    Heartbeat,
    /// Coordinator to node: the map, and who is alive.
    Welcome,
    /// From a removed member to those of the new view: I serve no more.
    Left,
    /// Node to node: your map is old, here is a newer one.
    Map,
    /// Node to node: do you hear me?
    Ping,
    /// The answer.
    Pong,
    /// Reads for a replica that can do what the head's store cannot.
    Aside,
}

const KINDS: [Kind; 10] = [
    Kind::Controlet,
    Kind::Forward,
    Kind::Answers,
    Kind::Heartbeat,
    Kind::Welcome,
    Kind::Left,
    Kind::Map,
    Kind::Ping,
    Kind::Pong,
    Kind::Aside,
];

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is about.
    pub kind: Kind,
    /// Who sent it.
    pub from: WorkerId,
    /// In which life.
    pub incarnation: Incarnation,
    /// The shard, where it is about one.
    pub shard: ShardId,
    /// The shard's epoch.
    pub epoch: Epoch,
}

impl Header {
    /// A frame of this header and what `payload` writes.
    pub fn frame(&self, payload: impl FnOnce(&mut Vec<u8>)) -> Bytes {
        let mut out = Vec::with_capacity(HEADER_BYTES + 64);
        out.extend_from_slice(&[VERSION, self.kind as u8]);
        out.extend_from_slice(&self.from.node.0.to_le_bytes());
        out.push(self.from.worker);
        out.extend_from_slice(&self.incarnation.0.to_le_bytes());
        out.extend_from_slice(&self.shard.0.to_le_bytes());
        out.extend_from_slice(&self.epoch.0.to_le_bytes());
        payload(&mut out);
        out.into()
    }

    /// Splits a frame.
    pub fn parse(mut frame: Bytes) -> Result<(Header, Bytes), Malformed> {
        if frame.len() < HEADER_BYTES {
            return Err(Malformed("frame cut short"));
        }
        if frame.get_u8() != VERSION {
            return Err(Malformed("frame of another version"));
        }
        let kind = *KINDS.get(usize::from(frame.get_u8())).ok_or(Malformed("unknown kind of frame"))?;
        let from = WorkerId { node: NodeId(frame.get_u16_le()), worker: frame.get_u8() };
        let incarnation = Incarnation(frame.get_u64_le());
        let shard = ShardId(frame.get_u16_le());
        let epoch = Epoch(frame.get_u64_le());
        Ok((Header { kind, from, incarnation, shard, epoch }, frame))
    }
}

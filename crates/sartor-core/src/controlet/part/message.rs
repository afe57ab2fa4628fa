//! What the replicas of a shard say to each other.

use super::answers::Answers;
use super::lease::{LeaseMessage, Told};
use super::once::Names;
use crate::ids::{Epoch, Position};
use crate::keeper::Deletes;
use crate::record::{Meta, Record};
use crate::wire::codec::{Malformed, Reader, Wire, put_bytes, put_list, put_option, put_varint};
use alloc::vec::Vec;
use bytes::Bytes;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// Entries, gapless and in order.
    Entries(Entries),
    /// How far the sender is.
    Ack(Ack),
    /// You are too far behind, the entries you lack are gone.
    Cut,
    /// Stamps and promises.
    Lease(LeaseMessage),
    /// A part of a fill.
    Page(Page),
}

/// Entries on their way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entries {
    /// The fill that they belong to; 0 between members.
    pub fill: Epoch,
    /// What, as far as the sender knows, all members have.
    pub stable: Position,
    /// The last entry that the log outside has, where there is one.
    pub logged: u64,
    /// They, encoded one after the other.
    pub entries: Bytes,
}

/// How far a replica is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ack {
    /// Everything up to here is in its store.
    pub applied: Position,
    /// Everything up to here is, as far as it knows, in every member's store.
    pub stable: Position,
    /// The fill that it is in, and how many pages of it are in its store.
    pub fill: (Epoch, u64),
    /// Its node has no memory for more.
    pub full: bool,
}

/// A page of the source's records, read when the source had applied all up to `at` and nothing more. It is
/// applied between the entries before and those after, so that no later write or delete is undone by it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Page {
    /// The fill that it belongs to.
    pub fill: Epoch,
    /// Its number, from 1.
    pub number: u64,
    /// Where it belongs in the stream.
    pub at: Position,
    /// The records.
    pub records: Vec<Record>,
    /// Of all entries up to there.
    pub digest: u64,
    /// With the first page: the answers to writes until now.
    pub answers: Option<Answers>,
    /// Some of what clients named.
    pub names: Names,
    /// With the first page: what is remembered of deletes.
    pub deletes: Option<Deletes>,
    /// With the first page: the records are those that have changed since this place, at which the receiver stands.
    pub since: Option<Position>,
}

impl Wire for Message {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Message::Entries(entries) => {
                out.push(0);
                entries.fill.encode(out);
                entries.stable.encode(out);
                put_varint(out, entries.logged);
                out.extend_from_slice(&entries.entries);
            }
            Message::Ack(ack) => {
                out.push(1);
                ack.applied.encode(out);
                ack.stable.encode(out);
                ack.fill.0.encode(out);
                put_varint(out, ack.fill.1);
                out.push(u8::from(ack.full));
            }
            Message::Cut => out.push(2),
            Message::Lease(lease) => {
                out.push(3);
                put_varint(out, lease.stamp);
                put_option(out, lease.echo.as_ref(), |out, echo| put_varint(out, *echo));
                put_option(out, lease.level.as_ref(), |out, level| level.encode(out));
                lease.told.stable.encode(out);
                put_varint(out, lease.told.logged);
                let flags = [lease.told.full, lease.told.whole, lease.bound];
                out.push(flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag)));
                put_option(out, lease.told.newest.as_ref(), |out, newest| newest.encode(out));
                put_option(out, lease.told.digest.as_ref(), |out, (at, sum)| {
                    at.encode(out);
                    out.extend_from_slice(&sum.to_le_bytes());
                });
            }
            Message::Page(page) => {
                out.push(4);
                page.encode(out);
            }
        }
    }

    fn decode(from: &mut Reader) -> Result<Message, Malformed> {
        Ok(match from.byte()? {
            0 => Message::Entries(Entries {
                fill: Epoch::decode(from)?,
                stable: Position::decode(from)?,
                logged: from.varint()?,
                entries: from.rest(),
            }),
            1 => Message::Ack(Ack {
                applied: Position::decode(from)?,
                stable: Position::decode(from)?,
                fill: (Epoch::decode(from)?, from.varint()?),
                full: from.byte()? != 0,
            }),
            2 => Message::Cut,
            3 => {
                let (stamp, echo) = (from.varint()?, from.option(Reader::varint)?);
                let (level, stable) = (from.option(Position::decode)?, Position::decode(from)?);
                let logged = from.varint()?;
                let flags = from.byte()?;
                let (full, whole, bound) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
                let newest = from.option(Position::decode)?;
                let digest = from.option(|from| Ok((Position::decode(from)?, fixed(from)?)))?;
                let told = Told { stable, full, whole, newest, logged, digest };
                Message::Lease(LeaseMessage { stamp, echo, bound, level, told })
            }
            4 => Message::Page(Page::decode(from)?),
            _ => return Err(Malformed("unknown message")),
        })
    }
}

impl Wire for Page {
    fn encode(&self, out: &mut Vec<u8>) {
        self.fill.encode(out);
        put_varint(out, self.number);
        self.at.encode(out);
        out.extend_from_slice(&self.digest.to_le_bytes());
        put_list(out, &self.records, |out, record| {
            put_bytes(out, &record.key);
            put_bytes(out, &record.value);
            record.meta.version.encode(out);
            put_option(out, record.meta.deadline_ms.as_ref(), |out, ms| put_varint(out, *ms));
        });
        put_option(out, self.answers.as_ref(), |out, answers| answers.encode(out));
        self.names.encode(out);
        put_option(out, self.deletes.as_ref(), |out, deletes| deletes.encode(out));
        put_option(out, self.since.as_ref(), |out, since| since.encode(out));
    }

    fn decode(from: &mut Reader) -> Result<Page, Malformed> {
        let record = |from: &mut Reader| {
            let (key, value) = (from.bytes()?, from.bytes()?);
            let version = Position::decode(from)?;
            Ok(Record { key, value, meta: Meta { version, deadline_ms: from.option(Reader::varint)? } })
        };
        Ok(Page {
            fill: Epoch::decode(from)?,
            number: from.varint()?,
            at: Position::decode(from)?,
            digest: fixed(from)?,
            records: from.list(record)?,
            answers: from.option(Answers::decode)?,
            names: Names::decode(from)?,
            deletes: from.option(Deletes::decode)?,
            since: from.option(Position::decode)?,
        })
    }
}

/// Eight bytes.
fn fixed(from: &mut Reader) -> Result<u64, Malformed> {
    let bytes = from.exactly(8)?;
    Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn messages_come_back() {
        let at = Position { epoch: Epoch(3), sequence: 70_000 };
        let meta = Meta { version: at, deadline_ms: Some(5) };
        let record = Record { key: Bytes::from_static(b"k"), value: Bytes::from_static(b""), meta };
        let (records, answers, names) = (vec![record], Some(Answers::default()), Names::default());
        let deletes = Some(Deletes::default());
        let since = Some(at);
        let page =
            Page { fill: Epoch(2), number: 1, at, digest: 77, records, answers, names, deletes, since };
        let told = Told {
            stable: at,
            full: true,
            whole: true,
            newest: Some(at),
            logged: 70_000,
            digest: Some((at, u64::MAX)),
        };
        let messages = [
            Message::Entries(Entries {
                fill: Epoch(0),
                stable: at,
                logged: 9,
                entries: Bytes::from_static(b"x"),
            }),
            Message::Ack(Ack { applied: at, stable: at, fill: (Epoch(2), 7), full: true }),
            Message::Cut,
            Message::Lease(LeaseMessage { stamp: 9, echo: Some(8), bound: false, level: Some(at), told }),
            Message::Page(page),
        ];
        for message in messages {
            assert_eq!(Message::from_bytes(message.to_bytes()), Ok(message));
        }
    }
}

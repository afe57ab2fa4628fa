//! Entries, positions, and the conversation between an origin and a shard's head as bytes.

use crate::forward::{Answer, Answers, Forwarded, Forwards};
use crate::ids::{Epoch, Position};
use crate::keeper::{Entry, Write, Writes};
use crate::operation::{Consistency, Op, Outcome};
use crate::wire::codec::{Malformed, Reader, Wire, put_bytes, put_list, put_option, put_varint};
use alloc::vec::Vec;

impl Wire for Position {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.epoch.0);
        put_varint(out, self.sequence);
    }

    fn decode(from: &mut Reader) -> Result<Position, Malformed> {
        Ok(Position { epoch: Epoch(from.varint()?), sequence: from.varint()? })
    }
}

impl Wire for Entry {
    fn encode(&self, out: &mut Vec<u8>) {
        self.position.encode(out);
        put_list(out, self.writes.as_slice(), |out, write| write.encode(out));
    }

    fn decode(from: &mut Reader) -> Result<Entry, Malformed> {
        let position = Position::decode(from)?;
        let mut writes = from.list(Write::decode)?;
        let writes = match writes.len() {
            1 => writes.pop().map_or(Writes::Many(Vec::new()), Writes::One),
            _ => Writes::Many(writes),
        };
        Ok(Entry { position, writes })
    }
}

impl Wire for Write {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Write::Put { key, value, deadline_ms } => {
                out.push(0);
                put_bytes(out, key);
                put_bytes(out, value);
                put_option(out, deadline_ms.as_ref(), |out, ms| put_varint(out, *ms));
            }
            Write::Delete { key } => {
                out.push(1);
                put_bytes(out, key);
            }
            Write::Clear => out.push(2),
            Write::Survey => out.push(3),
        }
    }

    fn decode(from: &mut Reader) -> Result<Write, Malformed> {
        Ok(match from.byte()? {
            0 => Write::Put {
                key: from.bytes()?,
                value: from.bytes()?,
                deadline_ms: from.option(Reader::varint)?,
            },
            1 => Write::Delete { key: from.bytes()? },
            2 => Write::Clear,
            3 => Write::Survey,
            _ => return Err(Malformed("unknown write")),
        })
    }
}

impl Wire for Forwards {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.base);
        put_varint(out, self.first);
        put_varint(out, self.last);
        put_list(out, &self.requests, |out, request| {
            put_varint(out, request.sequence);
            request.op.encode(out);
            request.floor.encode(out);
            request.consistency.encode(out);
            put_varint(out, request.left_us);
        });
    }

    fn decode(from: &mut Reader) -> Result<Forwards, Malformed> {
        let (base, first, last) = (from.varint()?, from.varint()?, from.varint()?);
        let requests = from.list(|from| {
            Ok(Forwarded {
                sequence: from.varint()?,
                op: Op::decode(from)?,
                floor: Position::decode(from)?,
                consistency: Consistency::decode(from)?,
                left_us: from.varint()?,
            })
        })?;
        // What the numbers promise, so that nobody has to ask again.
        let in_range = |request: &Forwarded| (first..=last).contains(&request.sequence);
        let ascends = requests.windows(2).all(|pair: &[Forwarded]| pair[0].sequence < pair[1].sequence);
        if base > first || first > last || last == u64::MAX || !ascends || !requests.iter().all(in_range) {
            return Err(Malformed("numbers out of range"));
        }
        Ok(Forwards { base, first, last, requests })
    }
}

impl Wire for Answers {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.incarnation.0);
        put_list(out, &self.answers, |out, answer| {
            put_varint(out, answer.sequence);
            answer.outcome.encode(out);
            answer.position.encode(out);
        });
    }

    fn decode(from: &mut Reader) -> Result<Answers, Malformed> {
        let incarnation = crate::ids::Incarnation(from.varint()?);
        let answers = from.list(|from| {
            Ok(Answer {
                sequence: from.varint()?,
                outcome: Outcome::decode(from)?,
                position: Position::decode(from)?,
            })
        })?;
        Ok(Answers { incarnation, answers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use bytes::Bytes;

    #[test]
    fn entries_come_back() {
        let key = Bytes::from_static(b"k");
        let put = Write::Put { key: key.clone(), value: Bytes::from_static(b""), deadline_ms: Some(5) };
        let position = Position { epoch: Epoch(2), sequence: 1 << 40 };
        let many = Writes::Many(vec![put, Write::Delete { key }]);
        for writes in [Writes::One(Write::Clear), Writes::One(Write::Survey), many] {
            let entry = Entry { position, writes };
            assert_eq!(Entry::from_bytes(entry.to_bytes()), Ok(entry));
        }
    }
}

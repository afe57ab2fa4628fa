//! Positions, and the conversation between an origin and a shard's head as bytes.

use crate::forward::{Answer, Answers, Forwarded, Forwards};
use crate::ids::{Epoch, Position};
use crate::operation::{Consistency, Op, Outcome};
use crate::wire::codec::{Malformed, Reader, Wire, put_list, put_varint};
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

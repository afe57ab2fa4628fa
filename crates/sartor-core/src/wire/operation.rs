//! Operations and answers as bytes.

use crate::datalet::Cursor;
use crate::ids::Position;
use crate::operation::{
    Action, Batch, Consistency, ExpireIf, Expiry, Failure, FailureKind, Once, Op, Outcome, Presence, Scan,
    Set, TimeUnit, Version,
};
use crate::range::{Range, Ranged};
use crate::run::{Answers, Run};
use crate::wire::codec::{Malformed, Reader, Wire, put_bytes, put_list, put_option, put_varint};
use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::vec::Vec;
use bytes::Bytes;

/// The byte that a range begins with.
const RANGE: u8 = 10;
const EXPIRE_IFS: [ExpireIf; 5] =
    [ExpireIf::Always, ExpireIf::None, ExpireIf::Some, ExpireIf::Later, ExpireIf::Earlier];
const TIME_UNITS: [TimeUnit; 4] =
    [TimeUnit::Seconds, TimeUnit::Millis, TimeUnit::UnixSeconds, TimeUnit::UnixMillis];
const PRESENCES: [Option<Presence>; 3] = [None, Some(Presence::Present), Some(Presence::Absent)];
const FAILURE_KINDS: [FailureKind; 7] = [
    FailureKind::Retry,
    FailureKind::Uncertain,
    FailureKind::Invalid,
    FailureKind::Unsupported,
    FailureKind::Data,
    FailureKind::Full,
    FailureKind::Moved,
];

/// Writes one of a short list as its place in it.
fn put_choice<T: PartialEq>(out: &mut Vec<u8>, list: &[T], choice: &T) {
    out.push(list.iter().position(|item| item == choice).unwrap_or_default() as u8);
}

fn get_choice<T: Copy>(from: &mut Reader, list: &[T]) -> Result<T, Malformed> {
    list.get(usize::from(from.byte()?)).copied().ok_or(Malformed("unknown choice"))
}

fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_varint(out, ((value << 1) ^ (value >> 63)) as u64);
}

fn get_signed(from: &mut Reader) -> Result<i64, Malformed> {
    let value = from.varint()?;
    Ok((value >> 1) as i64 ^ -((value & 1) as i64))
}

impl Wire for Op {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Op::Key(key, action) => {
                out.push(0);
                put_bytes(out, key);
                action.encode(out);
            }
            Op::Batch(batch) => {
                out.push(1);
                put_list(out, &batch.watched, |out, (key, version)| {
                    put_bytes(out, key);
                    version.encode(out);
                });
                put_list(out, &batch.steps, |out, step| step.encode(out));
            }
            Op::Len => out.push(2),
            Op::Clear => out.push(3),
            Op::Scan(scan) => {
                out.push(4);
                scan.cursor.encode(out);
                put_varint(out, u64::from(scan.count));
            }
            Op::Wait { copies, timeout_ms } => {
                out.push(5);
                put_varint(out, u64::from(*copies));
                put_varint(out, *timeout_ms);
            }
            Op::Survey => out.push(6),
            Op::Range(range) => encode_range(range, out),
            Op::Once(once) => {
                out.push(7);
                put_bytes(out, &once.id);
                put_varint(out, once.fingerprint);
                once.op.encode(out);
            }
            Op::Run(run) => {
                out.push(8);
                run.encode(out);
            }
            Op::Expire(keys) => {
                out.push(9);
                put_list(out, keys, |out, key| put_bytes(out, key));
            }
        }
    }

    fn decode(from: &mut Reader) -> Result<Op, Malformed> {
        match from.byte()? {
            7 => {
                let (id, fingerprint) = (from.bytes()?, from.varint()?);
                let tag = from.byte()?;
                Ok(Op::Once(Box::new(Once { id, fingerprint, op: decode_unnamed(from, tag)? })))
            }
            8 => Ok(Op::Run(Run::decode(from)?)),
            9 => Ok(Op::Expire(from.list(Reader::bytes)?)),
            tag => decode_unnamed(from, tag),
        }
    }
}

/// One level of each only, a batch in a [`Once`]: what can hold itself would nest without end.
fn decode_unnamed(from: &mut Reader, tag: u8) -> Result<Op, Malformed> {
    match tag {
        1 => {
            let watched = from.list(|from| Ok((from.bytes()?, Version::decode(from)?)))?;
            let steps = from.list(|from| match from.byte()? {
                1 => Err(Malformed("batch in a batch")),
                tag => decode_flat(from, tag),
            })?;
            Ok(Op::Batch(Batch { watched, steps }))
        }
        tag => decode_flat(from, tag),
    }
}

fn decode_flat(from: &mut Reader, tag: u8) -> Result<Op, Malformed> {
    Ok(match tag {
        0 => Op::Key(from.bytes()?, Action::decode(from)?),
        2 => Op::Len,
        3 => Op::Clear,
        4 => Op::Scan(Scan { cursor: Cursor::decode(from)?, count: from.number()? }),
        5 => Op::Wait { copies: from.number()?, timeout_ms: from.varint()? },
        6 => Op::Survey,
        RANGE => Op::Range(Box::new(decode_range(from)?)),
        _ => return Err(Malformed("unknown operation")),
    })
}

fn encode_range(range: &Range, out: &mut Vec<u8>) {
    out.push(RANGE);
    put_bytes(out, &range.start);
    put_option(out, range.end.as_ref(), |out, end| put_bytes(out, end));
    put_varint(out, u64::from(range.limit));
    put_varint(out, u64::from(range.bytes_max));
    out.push(u8::from(range.values) | u8::from(range.reverse) << 1);
    put_option(out, range.judged.as_ref(), |out, judged| put_deadlines(out, judged));
}

fn put_deadlines(out: &mut Vec<u8>, records: &[(Bytes, u64)]) {
    put_list(out, records, |out, (key, at)| {
        put_bytes(out, key);
        put_varint(out, *at);
    });
}

fn get_deadlines(from: &mut Reader) -> Result<Vec<(Bytes, u64)>, Malformed> {
    from.list(|from| Ok((from.bytes()?, from.varint()?)))
}

fn decode_range(from: &mut Reader) -> Result<Range, Malformed> {
    let (start, end) = (from.bytes()?, from.option(Reader::bytes)?);
    let (limit, bytes_max) = (from.number()?, from.number()?);
    match from.byte()? {
        flags @ 0..4 => {
            let (values, reverse) = (flags & 1 != 0, flags & 2 != 0);
            let judged = from.option(get_deadlines)?;
            Ok(Range { start, end, limit, bytes_max, values, reverse, judged })
        }
        _ => Err(Malformed("unknown way through a range")),
    }
}

impl Wire for Action {
    fn encode(&self, out: &mut Vec<u8>) {
        let tag = |out: &mut Vec<u8>, tag: u8| out.push(tag);
        match self {
            Action::Get => tag(out, 0),
            Action::GetRange(start, end) => {
                tag(out, 1);
                put_signed(out, *start);
                put_signed(out, *end);
            }
            Action::GetExpire(expiry) => {
                tag(out, 2);
                expiry.encode(out);
            }
            Action::GetDelete => tag(out, 3),
            Action::Exists => tag(out, 4),
            Action::Length => tag(out, 5),
            Action::TimeToLive(unit) => {
                tag(out, 6);
                put_choice(out, &TIME_UNITS, unit);
            }
            Action::Version => tag(out, 7),
            Action::Set(set) => {
                tag(out, 8);
                put_bytes(out, &set.value);
                set.expiry.encode(out);
                put_choice(out, &PRESENCES, &set.only_if);
                out.push(u8::from(set.get));
            }
            Action::Delete => tag(out, 9),
            Action::Add(by) => {
                tag(out, 10);
                put_signed(out, *by);
            }
            Action::Append(value) => {
                tag(out, 11);
                put_bytes(out, value);
            }
            Action::SetRange(at, value) => {
                tag(out, 12);
                put_varint(out, *at);
                put_bytes(out, value);
            }
            Action::Expire(expiry, only_if) => {
                tag(out, 13);
                expiry.encode(out);
                put_choice(out, &EXPIRE_IFS, only_if);
            }
            Action::Persist => tag(out, 14),
        }
    }

    fn decode(from: &mut Reader) -> Result<Action, Malformed> {
        Ok(match from.byte()? {
            0 => Action::Get,
            1 => Action::GetRange(get_signed(from)?, get_signed(from)?),
            2 => Action::GetExpire(Expiry::decode(from)?),
            3 => Action::GetDelete,
            4 => Action::Exists,
            5 => Action::Length,
            6 => Action::TimeToLive(get_choice(from, &TIME_UNITS)?),
            7 => Action::Version,
            8 => Action::Set(Set {
                value: from.bytes()?,
                expiry: Expiry::decode(from)?,
                only_if: get_choice(from, &PRESENCES)?,
                get: from.byte()? != 0,
            }),
            9 => Action::Delete,
            10 => Action::Add(get_signed(from)?),
            11 => Action::Append(from.bytes()?),
            12 => Action::SetRange(from.varint()?, from.bytes()?),
            13 => Action::Expire(Expiry::decode(from)?, get_choice(from, &EXPIRE_IFS)?),
            14 => Action::Persist,
            _ => return Err(Malformed("unknown action")),
        })
    }
}

impl Wire for Expiry {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Expiry::Never => out.push(0),
            Expiry::Keep => out.push(1),
            Expiry::After(ms) => {
                out.push(2);
                put_varint(out, *ms);
            }
            Expiry::At(ms) => {
                out.push(3);
                put_varint(out, *ms);
            }
        }
    }

    fn decode(from: &mut Reader) -> Result<Expiry, Malformed> {
        Ok(match from.byte()? {
            0 => Expiry::Never,
            1 => Expiry::Keep,
            2 => Expiry::After(from.varint()?),
            3 => Expiry::At(from.varint()?),
            _ => return Err(Malformed("unknown expiry")),
        })
    }
}

impl Wire for Version {
    fn encode(&self, out: &mut Vec<u8>) {
        let (tag, position) = match self {
            Version::Written(at) => (0, at),
            Version::AbsentAt(at) => (1, at),
        };
        out.push(tag);
        position.encode(out);
    }

    fn decode(from: &mut Reader) -> Result<Version, Malformed> {
        Ok(match from.byte()? {
            0 => Version::Written(Position::decode(from)?),
            1 => Version::AbsentAt(Position::decode(from)?),
            _ => return Err(Malformed("unknown version")),
        })
    }
}

impl Wire for Cursor {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Cursor::Start => out.push(0),
            Cursor::Number(number) => {
                out.push(1);
                put_varint(out, *number);
            }
            Cursor::Key(key) => {
                out.push(2);
                put_bytes(out, key);
            }
            Cursor::End => out.push(3),
        }
    }

    fn decode(from: &mut Reader) -> Result<Cursor, Malformed> {
        Ok(match from.byte()? {
            0 => Cursor::Start,
            1 => Cursor::Number(from.varint()?),
            2 => Cursor::Key(from.bytes()?),
            3 => Cursor::End,
            _ => return Err(Malformed("unknown cursor")),
        })
    }
}

impl Wire for Consistency {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Consistency::Mode => out.push(0),
            Consistency::Eventual => out.push(1),
            Consistency::Causal => out.push(2),
            Consistency::Bounded(us) => {
                out.push(3);
                put_varint(out, *us);
            }
            Consistency::Strong => out.push(4),
        }
    }

    fn decode(from: &mut Reader) -> Result<Consistency, Malformed> {
        Ok(match from.byte()? {
            0 => Consistency::Mode,
            1 => Consistency::Eventual,
            2 => Consistency::Causal,
            3 => Consistency::Bounded(from.varint()?),
            4 => Consistency::Strong,
            _ => return Err(Malformed("unknown consistency")),
        })
    }
}

impl Wire for Outcome {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Outcome::Done => out.push(0),
            Outcome::Value(value) => {
                out.push(1);
                put_bytes(out, value);
            }
            Outcome::Nil => out.push(2),
            Outcome::Integer(number) => {
                out.push(3);
                put_signed(out, *number);
            }
            Outcome::Many(outcomes) => {
                out.push(4);
                put_list(out, outcomes, |out, outcome| outcome.encode(out));
            }
            Outcome::Aborted => out.push(5),
            Outcome::Version(version) => {
                out.push(6);
                version.encode(out);
            }
            Outcome::Page(keys, cursor) => {
                out.push(7);
                put_list(out, keys, |out, key| put_bytes(out, key));
                cursor.encode(out);
            }
            Outcome::Ranged(ranged) => {
                out.push(10);
                put_list(out, &ranged.pairs, |out, (key, value)| {
                    put_bytes(out, key);
                    put_option(out, value.as_ref(), |out, value| put_bytes(out, value));
                });
                put_option(out, ranged.next.as_ref(), |out, next| put_bytes(out, next));
            }
            Outcome::Dead(records) => {
                out.push(11);
                put_deadlines(out, records);
            }
            Outcome::Failed(failure) => {
                out.push(8);
                put_choice(out, &FAILURE_KINDS, &failure.kind);
                put_bytes(out, failure.text.as_bytes());
            }
            Outcome::Run(answers) => {
                out.push(9);
                put_bytes(out, answers.packed());
            }
        }
    }

    fn decode(from: &mut Reader) -> Result<Outcome, Malformed> {
        match from.byte()? {
            4 => Ok(Outcome::Many(from.list(|from| {
                let tag = from.byte()?;
                decode_outcome(from, tag)
            })?)),
            9 => Ok(Outcome::Run(Answers::new(from.bytes()?))),
            tag => decode_outcome(from, tag),
        }
    }
}

fn decode_outcome(from: &mut Reader, tag: u8) -> Result<Outcome, Malformed> {
    Ok(match tag {
        0 => Outcome::Done,
        1 => Outcome::Value(from.bytes()?),
        2 => Outcome::Nil,
        3 => Outcome::Integer(get_signed(from)?),
        5 => Outcome::Aborted,
        6 => Outcome::Version(Version::decode(from)?),
        7 => Outcome::Page(from.list(Reader::bytes)?, Cursor::decode(from)?),
        8 => Outcome::Failed(Failure {
            kind: get_choice(from, &FAILURE_KINDS)?,
            text: Cow::Owned(from.text()?),
        }),
        10 => {
            let pairs = from.list(|from| Ok((from.bytes()?, from.option(Reader::bytes)?)))?;
            Outcome::Ranged(Box::new(Ranged { pairs, next: from.option(Reader::bytes)? }))
        }
        11 => Outcome::Dead(get_deadlines(from)?),
        _ => return Err(Malformed("unknown outcome")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Epoch;
    use alloc::vec;

    fn actions() -> Vec<Action> {
        let value = Bytes::from_static(b"v\0\r\n");
        let set =
            Set { value: value.clone(), expiry: Expiry::At(9), only_if: Some(Presence::Absent), get: true };
        vec![
            Action::Get,
            Action::GetRange(-5, i64::MAX),
            Action::GetExpire(Expiry::Keep),
            Action::GetDelete,
            Action::Exists,
            Action::Length,
            Action::TimeToLive(TimeUnit::UnixMillis),
            Action::Version,
            Action::Set(set),
            Action::Delete,
            Action::Add(i64::MIN),
            Action::Append(value.clone()),
            Action::SetRange(u64::MAX, value),
            Action::Expire(Expiry::After(1), ExpireIf::Earlier),
            Action::Persist,
        ]
    }

    #[test]
    fn operations_come_back() {
        let key = Bytes::from_static(b"key");
        let mut ops: Vec<Op> = actions().into_iter().map(|action| Op::Key(key.clone(), action)).collect();
        let at = Position { epoch: Epoch(3), sequence: 77 };
        let watched = vec![(key.clone(), Version::Written(at)), (key.clone(), Version::AbsentAt(at))];
        ops.push(Op::Batch(Batch { watched, steps: ops.clone() }));
        ops.extend([Op::Len, Op::Clear, Op::Survey, Op::Wait { copies: 2, timeout_ms: 500 }]);
        for cursor in [Cursor::Start, Cursor::Number(5), Cursor::Key(key), Cursor::End] {
            ops.push(Op::Scan(Scan { cursor, count: 10 }));
            let (start, end) = (Bytes::from_static(b"a"), Some(Bytes::from_static(b"b")));
            let range =
                Range { start, end, limit: 7, bytes_max: 9, values: true, reverse: false, judged: None };
            let judged = Some(vec![(Bytes::from_static(b"k"), 99)]);
            let back = Range { reverse: true, values: false, judged, ..range.clone() };
            ops.extend([range, back].map(|range| Op::Range(Box::new(range))));
        }
        let once = |op: &Op| Once { id: Bytes::from_static(b"id"), fingerprint: u64::MAX, op: op.clone() };
        ops.extend(ops.iter().map(|op| Op::Once(Box::new(once(op)))).collect::<Vec<_>>());
        for op in ops {
            assert_eq!(Op::from_bytes(op.to_bytes()), Ok(op.clone()), "{op:?}");
            let bytes = op.to_bytes();
            assert!(Op::from_bytes(bytes.slice(..bytes.len() - 1)).is_err(), "{op:?}");
        }
    }

    #[test]
    fn outcomes_come_back() {
        let at = Position { epoch: Epoch(3), sequence: 77 };
        let mut outcomes = vec![
            Outcome::Done,
            Outcome::Value(Bytes::new()),
            Outcome::Nil,
            Outcome::Integer(-1),
            Outcome::Aborted,
            Outcome::Version(Version::AbsentAt(at)),
            Outcome::Page(vec![Bytes::from_static(b"k")], Cursor::End),
            Outcome::Dead(vec![(Bytes::from_static(b"k"), u64::MAX)]),
            Outcome::Ranged(Box::new(Ranged {
                pairs: vec![(Bytes::from_static(b"k"), Some(Bytes::new())), (Bytes::from_static(b"l"), None)],
                next: Some(Bytes::from_static(b"m")),
            })),
            Failure::outcome(FailureKind::Uncertain, "who knows"),
        ];
        outcomes.push(Outcome::Many(outcomes.clone()));
        for outcome in outcomes {
            assert_eq!(Outcome::from_bytes(outcome.to_bytes()), Ok(outcome.clone()), "{outcome:?}");
        }
    }

    #[test]
    fn nests_do_not_nest() {
        let deep: Vec<u8> = [1, 0, 1].into_iter().cycle().take(3000).collect();
        assert!(Op::from_bytes(deep.into()).is_err());
        let named: Vec<u8> = [7, 0, 1].into_iter().cycle().take(3000).collect();
        assert!(Op::from_bytes(named.into()).is_err());
        assert!(Outcome::from_bytes(vec![4, 1, 4, 1, 4, 1, 0].into()).is_err());
    }
}

//! `SARTOR.RANGE`: records in key order, over all shards.

use super::connection::Connection;
use super::plan::{Env, Join, Plan, WholeAsk};
use crate::resp::parse::Args;
use crate::resp::reply::{Reply, Version as Resp};
use bytes::Bytes;
use sartor_core::ids::ShardId;
use sartor_core::operation::{Op, Outcome, parse_integer};
use sartor_core::range::{Range, merge};

const SYNTAX: &str = "ERR syntax: SARTOR.RANGE start end [LIMIT n] [REV] [WITHVALUES]; an empty start is the first key, an empty end is behind the last one";
const LIMIT: i64 = 1000;
const LIMIT_MAX: i64 = 100_000;
/// About so many bytes in one answer; whoever wants more asks on.
const BYTES_MAX: u32 = 4 << 20;
const BYTES_OF_SHARD_MIN: u32 = 64 << 10;

/// What a page of a range is made for.
#[derive(Clone, Copy, Debug)]
pub struct RangeJoin {
    limit: usize,
    values: bool,
    reverse: bool,
}

/// `SARTOR.RANGE start end [LIMIT n] [REV] [WITHVALUES]`: where the range goes on or nil, and the keys or pairs of a page.
/// It goes on at a new start; with `REV`, which turns the order of the same records, at a new end.
pub fn range(_: &mut Connection, args: &Args, env: &mut Env<'_>) -> Result<Plan, String> {
    let (start, end) = (args.bytes(1), args.bytes(2));
    let (mut limit, mut values, mut reverse, mut place) = (LIMIT, false, false, 3);
    while place < args.len() {
        match args.get(place).to_ascii_lowercase().as_slice() {
            b"withvalues" => values = true,
            b"rev" => reverse = true,
            b"limit" if place + 1 < args.len() => {
                place += 1;
                limit = parse_integer(args.get(place)).ok_or(SYNTAX)?;
            }
            _ => return Err(SYNTAX.into()),
        }
        place += 1;
    }
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(format!(
            "ERR LIMIT must be from 1 to {LIMIT_MAX}; ask on with the key that an answer names"
        ));
    }
    let end = Some(end).filter(|end| !end.is_empty());
    if end.as_ref().is_some_and(|end| *end < start) {
        return Err("ERR the range ends before it begins: start must not be behind end".into());
    }
    let range =
        Range { start, end, limit: limit as u32, bytes_max: BYTES_MAX, values, reverse, judged: None };
    let join = Join::Range(RangeJoin { limit: limit as usize, values, reverse });
    WholeAsk::Range(env.table, range).plan(join, env)
}

/// What each shard is asked: what of the range it may have.
pub fn parts(table: u16, range: &Range, env: &Env<'_>) -> Vec<(ShardId, Op)> {
    let parts = env.routes.parts_between(table, &range.start, range.end.as_ref());
    let bytes_max = (range.bytes_max / parts.len().max(1) as u32).max(BYTES_OF_SHARD_MIN);
    let part =
        |(shard, start, end)| (shard, Op::Range(Box::new(Range { start, end, bytes_max, ..range.clone() })));
    parts.into_iter().map(part).collect()
}

/// Writes what all shards found as one page.
pub fn write(join: RangeJoin, outcomes: &[Outcome], resp: Resp, out: &mut Vec<u8>) {
    let parts = outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Ranged(ranged) => Some((**ranged).clone()),
        _ => None,
    });
    let page = merge(parts, join.limit, join.reverse);
    out.array(2);
    match &page.next {
        Some(next) => out.bulk(next),
        None => out.null(resp),
    }
    out.array(page.pairs.len() * if join.values { 2 } else { 1 });
    for (key, value) in &page.pairs {
        out.bulk(key);
        if join.values {
            out.bulk(value.as_ref().map_or(&[], Bytes::as_ref));
        }
    }
}

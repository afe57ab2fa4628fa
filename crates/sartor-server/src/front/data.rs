//! Commands on data: from words to operations.

use super::connection::Connection;
use super::plan::{Act, Env, Join, Plan, ScanJoin, Shape, WaitJoin, WholeAsk};
use crate::resp::parse::Args;
use crate::settings::Name;
use bytes::Bytes;
use sartor_core::ids::ShardId;
use sartor_core::operation::{Action, ExpireIf, Expiry, Op, Presence, Scan, Set, TimeUnit, parse_integer};
use sartor_core::time::{Micros, millis};

type Planned = Result<Plan, String>;

/// Keys that one connection may watch.
const WATCHED_MAX: usize = 10_000;
const SYNTAX: &str = "ERR syntax error";
const NOT_A_NUMBER: &str = "ERR value is not an integer or out of range";

/// A key within the limit.
fn key_at(args: &Args, index: usize, env: &Env<'_>) -> Result<Bytes, String> {
    let key = args.bytes(index);
    let max = env.settings.size(Name::KeyBytesMax);
    if key.len() > max {
        return Err(format!("ERR a key of {} bytes is larger than key-bytes-max ({max})", key.len()));
    }
    Ok(key)
}

fn number_at(args: &Args, index: usize) -> Result<i64, String> {
    parse_integer(args.get(index)).ok_or_else(|| NOT_A_NUMBER.into())
}

fn one(args: &Args, env: &Env<'_>, action: Action) -> Planned {
    Ok(Plan::Key(key_at(args, 1, env)?, action, Shape::Plain))
}

/// One action on each of the keys from the first argument on.
fn each(args: &Args, env: &Env<'_>, action: &Action) -> Result<Vec<(ShardId, Op)>, String> {
    (1..args.len())
        .map(|index| {
            let key = key_at(args, index, env)?;
            Ok((env.shard_of(&key)?, Op::Key(key, action.clone())))
        })
        .collect()
}

macro_rules! simple {
    ($($(#[$doc:meta])* $name:ident($args:ident) => $action:expr;)*) => {
        $($(#[$doc])*
        pub fn $name(_: &mut Connection, $args: &Args, env: &mut Env<'_>) -> Planned {
            one($args, env, $action)
        })*
    };
}

simple! {
    /// `GET key`
    get(args) => Action::Get;
    /// `GETDEL key`
    getdel(args) => Action::GetDelete;
    /// `STRLEN key`
    strlen(args) => Action::Length;
    /// `INCR key`
    incr(args) => Action::Add(1);
    /// `DECR key`
    decr(args) => Action::Add(-1);
    /// `PERSIST key`
    persist(args) => Action::Persist;
    /// `TTL key`
    ttl(args) => Action::TimeToLive(TimeUnit::Seconds);
    /// `PTTL key`
    pttl(args) => Action::TimeToLive(TimeUnit::Millis);
    /// `EXPIRETIME key`
    expiretime(args) => Action::TimeToLive(TimeUnit::UnixSeconds);
    /// `PEXPIRETIME key`
    pexpiretime(args) => Action::TimeToLive(TimeUnit::UnixMillis);
    /// `APPEND key value`
    append(args) => Action::Append(args.bytes(2));
    /// `INCRBY key number`
    incrby(args) => Action::Add(number_at(args, 2)?);
    /// `GETRANGE key start end`
    getrange(args) => Action::GetRange(number_at(args, 2)?, number_at(args, 3)?);
    /// `EXPIRE key seconds [NX|XX|GT|LT]`
    expire(args) => expire_action(args, 1000, true)?;
    /// `PEXPIRE key ms [NX|XX|GT|LT]`
    pexpire(args) => expire_action(args, 1, true)?;
    /// `EXPIREAT key unix-seconds [NX|XX|GT|LT]`
    expireat(args) => expire_action(args, 1000, false)?;
    /// `PEXPIREAT key unix-ms [NX|XX|GT|LT]`
    pexpireat(args) => expire_action(args, 1, false)?;
}

/// `DECRBY key number`
pub fn decrby(_: &mut Connection, args: &Args, env: &mut Env<'_>) -> Planned {
    let by = number_at(args, 2)?.checked_neg().ok_or("ERR decrement would overflow")?;
    one(args, env, Action::Add(by))
}

/// `TYPE key`
pub fn kind(_: &mut Connection, args: &Args, env: &mut Env<'_>) -> Planned {
    Ok(Plan::Key(key_at(args, 1, env)?, Action::Exists, Shape::Type))
}

/// `SETRANGE key offset value`
pub fn setrange(_: &mut Connection, args: &Args, env: &mut Env<'_>) -> Planned {
    let at = u64::try_from(number_at(args, 2)?).map_err(|_| "ERR offset is out of range")?;
    one(args, env, Action::SetRange(at, args.bytes(3)))
}

/// `SETNX key value`
pub fn setnx(_: &mut Connection, args: &Args, env: &mut Env<'_>) -> Planned {
    let set = Set { value: args.bytes(2), only_if: Some(Presence::Absent), ..Set::default() };
    Ok(Plan::Key(key_at(args, 1, env)?, Action::Set(set), Shape::Bit))
}

/// `GETSET key value`
pub fn getset(_: &mut Connection, args: &Args, env: &mut Env<'_>) -> Planned {
    one(args, env, Action::Set(Set { value: args.bytes(2), get: true, ..Set::default() }))
}

/// `SETEX key seconds value`
pub fn setex(_: &mut Connection, args: &Args, env: &mut Env<'_>) -> Planned {
    let expiry = life("setex", number_at(args, 2)?, 1000)?;
    one(args, env, Action::Set(Set { value: args.bytes(3), expiry, ..Set::default() }))
}

/// `PSETEX key ms value`
pub fn psetex(_: &mut Connection, args: &Args, env: &mut Env<'_>) -> Planned {
    let expiry = life("psetex", number_at(args, 2)?, 1)?;
    one(args, env, Action::Set(Set { value: args.bytes(3), expiry, ..Set::default() }))
}

/// `SET key value [NX|XX] [GET] [EX s|PX ms|EXAT s|PXAT ms|KEEPTTL]`
pub fn set(_: &mut Connection, args: &Args, env: &mut Env<'_>) -> Planned {
    let mut set = Set { value: args.bytes(2), ..Set::default() };
    let mut at = 3;
    while at < args.len() {
        let word = args.get(at);
        if word.eq_ignore_ascii_case(b"get") {
            set.get = true;
        } else if word.eq_ignore_ascii_case(b"nx") && set.only_if != Some(Presence::Present) {
            set.only_if = Some(Presence::Absent);
        } else if word.eq_ignore_ascii_case(b"xx") && set.only_if != Some(Presence::Absent) {
            set.only_if = Some(Presence::Present);
        } else {
            if set.expiry != Expiry::Never {
                return Err(SYNTAX.into());
            }
            (set.expiry, at) = expiry_option("set", args, at, b"keepttl", Expiry::Keep)?;
        }
        at += 1;
    }
    one(args, env, Action::Set(set))
}

/// `GETEX key [EX s|PX ms|EXAT s|PXAT ms|PERSIST]`
pub fn getex(_: &mut Connection, args: &Args, env: &mut Env<'_>) -> Planned {
    let mut expiry = Expiry::Keep;
    if args.len() > 2 {
        let last;
        (expiry, last) = expiry_option("getex", args, 2, b"persist", Expiry::Never)?;
        if last + 1 != args.len() {
            return Err(SYNTAX.into());
        }
    }
    one(args, env, Action::GetExpire(expiry))
}

/// An expiry option at this place, or the bare word that stands for `bare`; and its last word's place.
fn expiry_option(
    command: &str,
    args: &Args,
    at: usize,
    bare_word: &[u8],
    bare: Expiry,
) -> Result<(Expiry, usize), String> {
    let word = args.get(at);
    if word.eq_ignore_ascii_case(bare_word) {
        return Ok((bare, at));
    }
    let (unit, relative) = match word.to_ascii_lowercase().as_slice() {
        b"ex" => (1000, true),
        b"px" => (1, true),
        b"exat" => (1000, false),
        b"pxat" => (1, false),
        _ => return Err(SYNTAX.into()),
    };
    if at + 1 >= args.len() {
        return Err(SYNTAX.into());
    }
    let time = life(command, number_at(args, at + 1)?, unit)?;
    let expiry = match time {
        Expiry::After(ms) if !relative => Expiry::At(ms),
        other => other,
    };
    Ok((expiry, at + 1))
}

/// A positive life in units of so many ms.
fn life(command: &str, number: i64, unit: i64) -> Result<Expiry, String> {
    let ms = number.checked_mul(unit).filter(|ms| *ms > 0 && *ms < i64::MAX / 2);
    ms.map(|ms| Expiry::After(ms as u64))
        .ok_or_else(|| format!("ERR invalid expire time in '{command}' command"))
}

fn expire_action(args: &Args, unit: i64, relative: bool) -> Result<Action, String> {
    let number = number_at(args, 2)?;
    let name = String::from_utf8_lossy(args.get(0)).to_lowercase();
    let ms = number.checked_mul(unit).filter(|ms| ms.unsigned_abs() < i64::MAX as u64 / 2);
    let ms = ms.ok_or_else(|| format!("ERR invalid expire time in '{name}' command"))?;
    let expiry = match (relative, u64::try_from(ms)) {
        (true, Ok(ms)) => Expiry::After(ms),
        (false, Ok(ms)) => Expiry::At(ms),
        // In the past: gone at once.
        (_, Err(_)) => Expiry::At(0),
    };
    let mut only_if = ExpireIf::Always;
    for index in 3..args.len() {
        let word = args.get(index).to_ascii_lowercase();
        let next = match word.as_slice() {
            b"nx" => ExpireIf::None,
            b"xx" => ExpireIf::Some,
            b"gt" => ExpireIf::Later,
            b"lt" => ExpireIf::Earlier,
            _ => return Err(format!("ERR Unsupported option {}", args.get(index).escape_ascii())),
        };
        only_if = match (only_if, next) {
            (ExpireIf::Always, next) => next,
            // XX says nothing that GT and LT do not need anyway, but for keys without a deadline and LT.
            (ExpireIf::Some, ExpireIf::Later) | (ExpireIf::Later, ExpireIf::Some) => ExpireIf::Later,
            (same, next) if same == next => same,
            (ExpireIf::Later, ExpireIf::Earlier) | (ExpireIf::Earlier, ExpireIf::Later) => {
                return Err("ERR GT and LT options at the same time are not compatible".into());
            }
            _ => return Err("ERR NX and XX, GT or LT options at the same time are not compatible".into()),
        };
    }
    Ok(Action::Expire(expiry, only_if))
}

/// `DEL key [key ...], UNLINK key [key ...]`
pub fn del(_: &mut Connection, args: &Args, env: &mut Env<'_>) -> Planned {
    if args.len() == 2 {
        return one(args, env, Action::Delete);
    }
    Ok(Plan::Parts(each(args, env, &Action::Delete)?, Join::Sum))
}

/// `EXISTS key [key ...], TOUCH key [key ...]`
pub fn exists(_: &mut Connection, args: &Args, env: &mut Env<'_>) -> Planned {
    Ok(Plan::Parts(each(args, env, &Action::Exists)?, Join::Sum))
}

/// `MGET key [key ...]`
pub fn mget(_: &mut Connection, args: &Args, env: &mut Env<'_>) -> Planned {
    Ok(Plan::Parts(each(args, env, &Action::Get)?, Join::Array))
}

/// `MSET key value [key value ...]`
pub fn mset(_: &mut Connection, args: &Args, env: &mut Env<'_>) -> Planned {
    if args.len().is_multiple_of(2) {
        return Err("ERR wrong number of arguments for 'mset' command".into());
    }
    let mut parts = Vec::with_capacity(args.len() / 2);
    for index in (1..args.len()).step_by(2) {
        let key = key_at(args, index, env)?;
        let set = Set { value: args.bytes(index + 1), ..Set::default() };
        parts.push((env.shard_of(&key)?, Op::Key(key, Action::Set(set))));
    }
    Ok(Plan::Parts(parts, Join::AllDone))
}

/// `WATCH key [key ...]`
pub fn watch(connection: &mut Connection, args: &Args, env: &mut Env<'_>) -> Planned {
    if connection.in_transaction() {
        return Ok(Plan::Connection(Act::Refuse("ERR WATCH inside MULTI is not allowed")));
    }
    let parts = each(args, env, &Action::Version)?;
    if connection.watches() + parts.len() > WATCHED_MAX {
        return Err(format!("ERR a connection can watch {WATCHED_MAX} keys; EXEC or UNWATCH first"));
    }
    let keys = parts.iter().zip(1..).map(|((shard, _), index)| (*shard, args.bytes(index))).collect();
    Ok(Plan::Parts(parts, Join::Watch(keys)))
}

/// `DBSIZE`
pub fn dbsize(_: &mut Connection, _: &Args, env: &mut Env<'_>) -> Planned {
    WholeAsk::Table(env.table, Op::Len).plan(Join::Sum, env)
}

/// `FLUSHDB [ASYNC|SYNC]`
pub fn flushdb(_: &mut Connection, args: &Args, env: &mut Env<'_>) -> Planned {
    flush(args, WholeAsk::Table(env.table, Op::Clear), env)
}

/// `FLUSHALL [ASYNC|SYNC]`
pub fn flushall(_: &mut Connection, args: &Args, env: &mut Env<'_>) -> Planned {
    flush(args, WholeAsk::AllTables(Op::Clear), env)
}

fn flush(args: &Args, ask: WholeAsk, env: &Env<'_>) -> Planned {
    let word = args.get(1).to_ascii_lowercase();
    if args.len() > 2 || !matches!(word.as_slice(), b"" | b"async" | b"sync") {
        return Err(SYNTAX.into());
    }
    ask.plan(Join::AllDone, env)
}

/// `WAIT numreplicas timeout-ms`
pub fn wait(_: &mut Connection, args: &Args, env: &mut Env<'_>) -> Planned {
    let copies = number_at(args, 1)?.clamp(0, i64::from(u16::MAX)) as u16;
    let timeout_ms = u64::try_from(number_at(args, 2)?).map_err(|_| "ERR timeout is negative")?;
    let until_us = match timeout_ms {
        0 => Micros::MAX,
        ms => env.now.steady_us.saturating_add(millis(ms)),
    };
    let patience_ms = if timeout_ms == 0 { u64::MAX } else { timeout_ms };
    let parts = env.everywhere(&Op::Wait { copies, timeout_ms: patience_ms })?;
    let join = WaitJoin { parts: parts.clone(), copies: i64::from(copies), until_us };
    Ok(Plan::Parts(parts, Join::Wait(join)))
}

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]`
pub fn scan(_: &mut Connection, args: &Args, env: &mut Env<'_>) -> Planned {
    let number = std::str::from_utf8(args.get(1)).ok().and_then(|text| text.parse::<u64>().ok());
    let number = number.ok_or("ERR invalid cursor")?;
    env.shard_of(b"")?;
    let shards = env.map.iter().flat_map(|map| map.takers_of(env.table)).map(|shard| shard.id);
    let Some((shard, cursor)) = env.cursors.from_number(number, shards) else {
        return Err(format!(
            "ERR invalid cursor {number}: this node does not know it; start again with SCAN 0"
        ));
    };
    let (mut count, mut pattern, mut nothing) = (10, None, false);
    for at in (2..args.len()).step_by(2) {
        if at + 1 >= args.len() {
            return Err(SYNTAX.into());
        }
        match args.get(at).to_ascii_lowercase().as_slice() {
            b"match" => pattern = Some(args.bytes(at + 1)),
            b"count" => count = number_at(args, at + 1)?,
            b"type" => nothing = !args.get(at + 1).eq_ignore_ascii_case(b"string"),
            _ => return Err(SYNTAX.into()),
        }
    }
    if count < 1 {
        return Err(SYNTAX.into());
    }
    let scan = Scan { cursor, count: count.min(100_000) as u32 };
    Ok(Plan::Parts(vec![(shard, Op::Scan(scan))], Join::Scan(ScanJoin { shard, pattern, nothing })))
}

//! Commands by which a connection, or one read, asks for more or less than its table's mode promises.

use super::connection::Connection;
use super::plan::{Act, Env, Plan};
use crate::modes::modes;
use crate::resp::parse::Args;
use crate::resp::reply::Reply;
use sartor_core::controlet::{Promise, mode};
use sartor_core::operation::Consistency;
use sartor_core::time::millis;

const LEVELS: &str = "mode, strong, bounded <ms>, causal or eventual";
/// A read that may be older than an hour may as well be eventual.
const BOUND_MS_MAX: u64 = 3_600_000;

/// `SARTOR.CONSISTENCY [level]`
pub fn consistency(connection: &mut Connection, args: &Args, env: &mut Env<'_>) -> Result<Plan, String> {
    if args.len() == 1 {
        let mut reply = Vec::new();
        reply.bulk(words(connection.consistency).as_bytes());
        return Ok(Plan::Local(reply));
    }
    Ok(Plan::Connection(Act::Consistency(level(args, 1, env)?)))
}

/// `SARTOR.GET key [CONSISTENCY level]`
pub fn get(_: &mut Connection, args: &Args, env: &mut Env<'_>) -> Result<Plan, String> {
    let level = match args.len() {
        2 => Consistency::Mode,
        _ if args.get(2).eq_ignore_ascii_case(b"consistency") && args.len() > 3 => level(args, 3, env)?,
        _ => return Err(format!("ERR syntax: SARTOR.GET key [CONSISTENCY level]; level is {LEVELS}")),
    };
    Ok(Plan::Read(args.bytes(1), level))
}

/// The level that the words from this one on name.
fn level(args: &Args, word: usize, env: &Env<'_>) -> Result<Consistency, String> {
    let name = args.get(word).to_ascii_lowercase();
    let level = match (name.as_slice(), args.len() - word) {
        (b"mode", 1) => Consistency::Mode,
        (b"eventual", 1) => Consistency::Eventual,
        (b"causal", 1) => Consistency::Causal,
        (b"strong", 1) => Consistency::Strong,
        (b"bounded", 2) => {
            let ms = std::str::from_utf8(args.get(word + 1)).ok().and_then(|text| text.parse().ok());
            let ms = ms.filter(|ms| *ms <= BOUND_MS_MAX);
            Consistency::Bounded(millis(ms.ok_or("ERR value is not an integer or out of range")?))
        }
        _ => return Err(format!("ERR a level of consistency is {LEVELS}")),
    };
    let table = env.map.and_then(|map| map.table(env.table));
    let weak = table
        .filter(|table| mode(modes(), &table.mode).is_some_and(|mode| mode.promise != Promise::Linearizable));
    match weak.filter(|_| level == Consistency::Strong) {
        Some(table) => Err(format!(
            "ERR table {} is in {}, which cannot answer strongly; ask for less, or see: sartor switch",
            table.name, table.mode
        )),
        None => Ok(level),
    }
}

/// What a level is called.
pub fn words(level: Consistency) -> String {
    match level {
        Consistency::Mode => "mode".into(),
        Consistency::Eventual => "eventual".into(),
        Consistency::Causal => "causal".into(),
        Consistency::Strong => "strong".into(),
        Consistency::Bounded(us) => format!("bounded {}", us / 1000),
    }
}

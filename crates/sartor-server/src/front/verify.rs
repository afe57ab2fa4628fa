//! Commands that show whether the copies of a shard are equal, and one that makes them unequal.

use super::connection::Connection;
use super::gather::error_text;
use super::plan::{Ask, Env, Join, Plan};
use crate::resp::parse::Args;
use crate::resp::reply::Reply;
use crate::settings::Name;
use crate::survey::Started;
use bytes::Bytes;
use sartor_core::ids::{Epoch, Position, ShardId};
use sartor_core::operation::{Op, Outcome, Version};

/// `SARTOR.VERIFY START [shard ...]`, `SARTOR.VERIFY RESULT shard epoch sequence`
pub fn verify(_: &mut Connection, args: &Args, env: &mut Env<'_>) -> Result<Plan, String> {
    match (args.get(1).to_ascii_lowercase().as_slice(), args.len()) {
        (b"start", words) => {
            let mut parts = env.in_all_tables(&Op::Survey)?;
            if words > 2 {
                let wanted: Vec<ShardId> =
                    (2..words).map(|word| shard(args, word, env)).collect::<Result<_, _>>()?;
                parts.retain(|(shard, _)| wanted.contains(shard));
            }
            let shards = parts.iter().map(|(shard, _)| *shard).collect();
            Ok(Plan::Parts(parts, Join::Surveys(shards)))
        }
        (b"result", 5) => {
            let at = Position { epoch: Epoch(number(args, 3)?), sequence: number(args, 4)? };
            Ok(Plan::Worker(Ask::Surveyed(shard(args, 2, env)?, at)))
        }
        _ => {
            Err("ERR syntax: SARTOR.VERIFY START [shard ...] or SARTOR.VERIFY RESULT shard epoch sequence"
                .into())
        }
    }
}

/// `SARTOR.DEBUG CORRUPT key`
pub fn debug(_: &mut Connection, args: &Args, env: &mut Env<'_>) -> Result<Plan, String> {
    if env.settings.get(Name::DebugCommands) == 0 {
        return Err("ERR SARTOR.DEBUG damages data and is off; for a test, start the node with debug-commands = 1 under [settings] in its file".into());
    }
    if !args.get(1).eq_ignore_ascii_case(b"corrupt") || args.len() != 3 {
        return Err("ERR syntax: SARTOR.DEBUG CORRUPT key".into());
    }
    let key = Bytes::copy_from_slice(args.get(2));
    Ok(Plan::Worker(Ask::Corrupt(env.shard_of(&key)?, key)))
}

fn number(args: &Args, word: usize) -> Result<u64, String> {
    let text = std::str::from_utf8(args.get(word)).ok();
    let number = text.and_then(|text| text.parse().ok());
    number.ok_or_else(|| "ERR value is not an integer or out of range".into())
}

fn shard(args: &Args, word: usize, env: &Env<'_>) -> Result<ShardId, String> {
    let number = number(args, word)?;
    let id = u16::try_from(number).ok().map(ShardId);
    let known = |id: &ShardId| {
        env.map
            .and_then(|map| map.shard(*id))
            .is_some_and(|shard| shard.part_of.is_none() && !shard.is_vacant())
    };
    id.filter(known).ok_or_else(|| format!("ERR there is no shard {number}"))
}

/// Writes where each shard is surveyed, or why not.
pub fn write_started(shards: &[ShardId], outcomes: &[Outcome], out: &mut Vec<u8>) {
    let started = shards.iter().zip(outcomes).map(|(shard, outcome)| {
        let started = Started { shard: shard.0, ..Started::default() };
        match outcome {
            Outcome::Version(Version::Written(at)) => {
                Started { epoch: at.epoch.0, sequence: at.sequence, ..started }
            }
            Outcome::Failed(failure) => Started { error: Some(error_text(failure)), ..started },
            other => Started { error: Some(format!("ERR internal: {other:?}")), ..started },
        }
    });
    match serde_json::to_string(&started.collect::<Vec<_>>()) {
        Ok(json) => out.bulk(json.as_bytes()),
        Err(error) => out.error(&format!("ERR internal: {error}")),
    }
}

//! Commands by which tables come, go and are chosen.

use super::connection::Connection;
use super::plan::{Act, Ask, ChangeAsk, Env, Plan};
use super::switch::{TIMEOUT_MS, known};
use crate::modes::modes;
use crate::outside::missing;
use crate::resp::parse::Args;
use crate::resp::reply::Reply;
use bytes::Bytes;
use sartor_core::controlet::mode;
use sartor_core::coordinator::split::{can_divide, refuses};
use sartor_core::coordinator::switch::TableShape;
use sartor_core::coordinator::tables::{BOUND_BYTES_MAX, NewTable, Parts, lacks_room};
use sartor_core::coordinator::wish::Change;
use sartor_core::routing::map::{ClusterMap, Partition, Shard, Table};
use sartor_core::time::{Micros, millis};
use sartor_datalets::{Wanted, shown};

const SYNTAX: &str = "ERR syntax: SARTOR.TABLE CREATE name [DATALET kinds] [MODE mode] [PARTITION hash|range] [SHARDS n] [COPIES n] [SPLIT-AT key ...] [TIMEOUT ms], LIST, SHOW name, SPLIT name key [TIMEOUT ms], or DELETE name [TIMEOUT ms]";
const NAME_BYTES_MAX: usize = 64;
const SHARDS_OF_TABLE_MAX: usize = 1024;

type Planned = Result<Plan, String>;

/// `SARTOR.TABLE CREATE|LIST|SHOW|SPLIT|DELETE`
pub fn table(_: &mut Connection, args: &Args, env: &mut Env<'_>) -> Planned {
    let map = env.map.ok_or("LOADING this node has no cluster map yet; is the coordinator up?")?;
    let name = String::from_utf8_lossy(args.get(2));
    match (args.get(1).to_ascii_lowercase().as_slice(), args.len()) {
        (b"create", 3..) => create(&name, args, map, env),
        (b"delete", 3 | 5) => delete(&name, args, map, env),
        (b"split", 4 | 6) => split(&name, args, map, env),
        (b"list", 2) => Ok(list(map)),
        (b"show", 3) => Ok(show(map, table_named(map, &name)?)),
        _ => Err(SYNTAX.into()),
    }
}

/// `SELECT name-or-number`
pub fn select(connection: &mut Connection, args: &Args, env: &mut Env<'_>) -> Planned {
    let map = env.map.ok_or("LOADING this node has no cluster map yet; is the coordinator up?")?;
    let word = String::from_utf8_lossy(args.get(1));
    let table = match word.parse().ok() {
        Some::<u16>(number) => map.table(number).ok_or_else(|| {
            // What Redis says, which clients look for, and what there is.
            format!("ERR DB index is out of range; {}", none_named(map, &word))
        })?,
        None => table_named(map, &word)?,
    };
    let table = table.id;
    Ok(match (connection.in_transaction(), table == connection.table) {
        (false, _) => Plan::Connection(Act::Table(table)),
        (true, true) => Plan::Local(b"+OK\r\n".to_vec()),
        (true, false) => {
            Plan::Connection(Act::Refuse("ERR SELECT of another table inside of MULTI is not allowed"))
        }
    })
}

/// The table of that name; else which there are.
pub fn table_named<'a>(map: &'a ClusterMap, name: &str) -> Result<&'a Table, String> {
    map.table_named(name).ok_or_else(|| format!("ERR {}", none_named(map, name)))
}

fn none_named(map: &ClusterMap, name: &str) -> String {
    let names: Vec<String> =
        map.tables.iter().map(|table| format!("{} ({})", table.name, table.id)).collect();
    format!("there is no table {name}; there is: {}", names.join(", "))
}

/// What is wanted, as far as it was said.
#[derive(Default)]
struct Said {
    mode: Option<String>,
    datalet: Option<String>,
    copies: Option<u8>,
    partition: Option<String>,
    shards: Option<u16>,
    split_at: Vec<Bytes>,
    timeout_ms: Option<u64>,
}

impl Said {
    fn parse(args: &Args, from: usize) -> Result<Said, String> {
        let mut said = Said::default();
        if !(args.len() - from).is_multiple_of(2) {
            return Err(SYNTAX.into());
        }
        for option in (from..args.len()).step_by(2) {
            let value = String::from_utf8_lossy(args.get(option + 1)).into_owned();
            match args.get(option).to_ascii_lowercase().as_slice() {
                b"mode" => said.mode = Some(value.to_lowercase()),
                b"datalet" => said.datalet = Some(value),
                b"partition" => said.partition = Some(value.to_lowercase()),
                b"copies" => said.copies = Some(value.parse().map_err(|_| SYNTAX)?),
                b"shards" => said.shards = Some(value.parse().map_err(|_| SYNTAX)?),
                b"split-at" => said.split_at.push(args.bytes(option + 1)),
                b"timeout" => said.timeout_ms = Some(value.parse().map_err(|_| SYNTAX)?),
                _ => return Err(SYNTAX.into()),
            }
        }
        Ok(said)
    }

    /// How the table is divided; as the first one where nothing was said.
    fn parts(&self, map: &ClusterMap) -> Result<Parts, String> {
        let partition = match &self.partition {
            Some(name) => {
                let names = [Partition::Hash, Partition::Range].map(Partition::name);
                known("partition", name.clone(), names.into_iter())?
            }
            None if self.split_at.is_empty() => Partition::Hash.name().into(),
            None => Partition::Range.name().into(),
        };
        let wrong = |text: &str| Err(format!("ERR {text}"));
        if partition == Partition::Hash.name() {
            if !self.split_at.is_empty() {
                return wrong("SPLIT-AT is for tables in ranges: PARTITION range");
            }
            let remote = self.datalet.as_ref().is_some_and(|kinds| kinds.contains("://"));
            let usual = if remote { 1 } else { map.shards_of(0).count().min(SHARDS_OF_TABLE_MAX) as u16 };
            return match self.shards.unwrap_or(usual) {
                shards if (1..=SHARDS_OF_TABLE_MAX).contains(&usize::from(shards)) => Ok(Parts::Hash(shards)),
                _ => Err(format!("ERR SHARDS must be from 1 to {SHARDS_OF_TABLE_MAX}")),
            };
        }
        let bounds = self.split_at.clone();
        let parts = bounds.len() + 1;
        if self.shards.is_some_and(|shards| usize::from(shards) != parts) {
            return wrong(
                "a table in ranges has one shard more than it has SPLIT-AT keys; leave SHARDS out, or name as many keys as that takes",
            );
        }
        if bounds.iter().any(|bound| bound.len() > BOUND_BYTES_MAX) {
            return Err(format!("ERR a SPLIT-AT key may have {BOUND_BYTES_MAX} bytes"));
        }
        if bounds.first().is_some_and(Bytes::is_empty) || !bounds.is_sorted_by(|one, other| one < other) {
            return wrong("SPLIT-AT keys must come in their order, none twice and none empty");
        }
        if parts > SHARDS_OF_TABLE_MAX {
            return Err(format!("ERR a table may have {SHARDS_OF_TABLE_MAX} shards"));
        }
        Ok(Parts::Range(bounds))
    }

    /// Mode, datalet and copies; as the first table's where nothing was said.
    fn shape(&self, map: &ClusterMap) -> Result<TableShape, String> {
        let first = map.tables.first().map(TableShape::of).unwrap_or_default();
        let usual = if first.datalet.contains("://") { "hash".into() } else { first.datalet };
        let datalet = self.datalet.clone().unwrap_or(usual);
        let mode = self.mode.clone().unwrap_or(first.mode);
        let (copies, nodes) = (self.copies.unwrap_or(first.copies), map.nodes.len());
        if !(1..=nodes).contains(&usize::from(copies)) {
            return Err(format!(
                "ERR {copies} copies need as many nodes; there are {nodes}, and one copy at least"
            ));
        }
        Ok(TableShape { mode, datalet, copies })
    }
}

fn until(env: &Env<'_>, timeout_ms: Option<u64>) -> Micros {
    env.now.steady_us.saturating_add(millis(timeout_ms.unwrap_or(TIMEOUT_MS).min(TIMEOUT_MS)))
}

fn create(name: &str, args: &Args, map: &ClusterMap, env: &Env<'_>) -> Planned {
    check_name(name)?;
    let said = Said::parse(args, 3)?;
    let (shape, parts) = (said.shape(map)?, said.parts(map)?);
    check_mode(&shape.mode, env)?;
    let (nodes, shards) = (map.nodes.len() as u16, parts.count() as u16);
    let ranges = parts.partition() == Partition::Range;
    let wanted = Wanted { datalet: &shape.datalet, nodes, copies: shape.copies, shards, ranges };
    wanted.check_here().map_err(|error| format!("ERR {error}"))?;
    if wanted.needs_folder() && env.config.dir.is_none() {
        return Err(format!(
            "ERR {} works in a folder; give the nodes one: dir = \"...\" in their files, or sartor up --dir",
            kinds_shown(&shape.datalet)
        ));
    }
    let new = NewTable { name: name.to_owned(), shape, parts };
    if map.table_named(name).is_some() {
        // Who waits for it, and asks again, is told when it is there.
        return match new.is_in(map) {
            true if said.timeout_ms.is_some() => change(Change::Create(new), until(env, said.timeout_ms)),
            _ => Err(format!("ERR there is a table {name} already; see: SARTOR.TABLE SHOW {name}")),
        };
    }
    if let Some((other, kind)) = map.table_at(&new.shape.datalet) {
        return Err(format!("ERR {} belongs to the table {}", shown(kind), other.name));
    }
    if let Some(text) = lacks_room(map, &new) {
        return Err(format!("ERR {text}"));
    }
    change(Change::Create(new), until(env, said.timeout_ms))
}

fn change(change: Change, until_us: Micros) -> Planned {
    Ok(Plan::Worker(Ask::Change(ChangeAsk { change, fills: false, until_us })))
}

fn check_name(name: &str) -> Result<(), String> {
    let is_first = |c: char| c.is_ascii_lowercase() || c == '_';
    let is_next = |c: char| is_first(c) || c.is_ascii_digit() || c == '-';
    let fits = name.len() <= NAME_BYTES_MAX && name.starts_with(is_first) && name.chars().all(is_next);
    match fits {
        true => Ok(()),
        false => Err(format!(
            "ERR a table's name begins with a small letter and has small letters, digits, - and _, {NAME_BYTES_MAX} at most"
        )),
    }
}

fn check_mode(name: &str, env: &Env<'_>) -> Result<(), String> {
    let lacks = |mode| missing(mode, env.config.log.is_some(), env.config.locks.is_some());
    let shown = modes().iter().filter(|mode| lacks(mode).is_none() || mode.name == name);
    let name = known("mode", name.to_owned(), shown.map(|mode| mode.name))?;
    match mode(modes(), &name).and_then(lacks) {
        Some(text) => Err(format!("ERR {text}; start the nodes with it")),
        None => Ok(()),
    }
}

fn delete(name: &str, args: &Args, map: &ClusterMap, env: &Env<'_>) -> Planned {
    let table = table_named(map, name)?;
    if table.id == 0 {
        return Err(format!("ERR the table {name} is always there; FLUSHDB empties it"));
    }
    let said = Said::parse(args, 3)?;
    if said.timeout_ms.is_none() && args.len() > 3 {
        return Err(SYNTAX.into());
    }
    change(Change::Delete(table.id), until(env, said.timeout_ms))
}

fn split(name: &str, args: &Args, map: &ClusterMap, env: &Env<'_>) -> Planned {
    let (table, at) = (table_named(map, name)?, args.bytes(3));
    let said = Said::parse(args, 4)?;
    if said.timeout_ms.is_none() && args.len() > 4 {
        return Err(SYNTAX.into());
    }
    if let Some(why) = refuses(map, table.id, &at) {
        return Err(format!("ERR {why}"));
    }
    if !mode(modes(), &table.mode).is_some_and(can_divide) {
        return Err(format!(
            "ERR a table in the mode {} cannot be divided; give it another one first, see: sartor switch",
            table.mode
        ));
    }
    change(Change::Split(table.id, at), until(env, said.timeout_ms))
}

fn list(map: &ClusterMap) -> Plan {
    let mut reply = Vec::new();
    reply.array(map.tables.len());
    map.tables.iter().for_each(|table| reply.bulk(table.name.as_bytes()));
    Plan::Local(reply)
}

/// Kinds without passwords.
fn kinds_shown(kinds: &str) -> String {
    kinds.split(',').map(shown).collect::<Vec<_>>().join(",")
}

/// Names and values in turn; of each shard its number, what it has, and the node that orders its writes.
fn show(map: &ClusterMap, table: &Table) -> Plan {
    let kinds = kinds_shown(&table.datalet);
    let mut out = Vec::new();
    out.array(14);
    for (name, value) in [
        ("name", &*table.name),
        ("mode", &table.mode),
        ("datalet", &kinds),
        ("partition", table.partition.name()),
    ] {
        out.bulk(name.as_bytes());
        out.bulk(value.as_bytes());
    }
    for (name, value) in [("number", i64::from(table.id)), ("copies", i64::from(table.copies))] {
        out.bulk(name.as_bytes());
        out.integer(value);
    }
    out.bulk(b"shards");
    let mut shards: Vec<&Shard> = map.takers_of(table.id).collect();
    shards.sort_by(|one, other| one.lower.cmp(&other.lower));
    out.array(shards.len());
    for shard in shards {
        out.array(3);
        out.integer(i64::from(shard.id.0));
        match table.partition {
            Partition::Hash => {
                let slots: Vec<String> =
                    shard.slots.iter().map(|(first, last)| format!("{first}-{last}")).collect();
                out.bulk(slots.join(",").as_bytes());
            }
            Partition::Range => out.bulk(&shard.lower),
        }
        out.integer(shard.members.first().map_or(-1, |head| i64::from(head.node.0)));
    }
    Plan::Local(out)
}

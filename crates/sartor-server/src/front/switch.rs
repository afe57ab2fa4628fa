//! The command that gives a table another mode, datalet or number of copies.

use super::connection::Connection;
use super::plan::{Ask, ChangeAsk, Env, Plan};
use super::table::table_named;
use crate::modes::modes;
use crate::outside::missing;
use crate::resp::parse::Args;
use sartor_core::controlet::rules::Answers;
use sartor_core::controlet::{Mode, mode};
use sartor_core::coordinator::switch::TableShape;
use sartor_core::coordinator::wish::Change;
use sartor_core::routing::map::{ClusterMap, Partition, Table};
use sartor_core::time::millis;
use sartor_datalets::Wanted;

/// How long one command waits at most: who wants to wait longer sends it again, which costs nothing.
pub const TIMEOUT_MS: u64 = 10_000;

const SYNTAX: &str = "ERR syntax: SARTOR.SWITCH [mode] [COPIES n] [DATALET kind] [TABLE name] [TIMEOUT ms], one of the first three at least";

/// What is wished, as far as it was said.
#[derive(Default)]
struct Said {
    mode: Option<String>,
    copies: Option<u8>,
    datalet: Option<String>,
    table: Option<String>,
    timeout_ms: Option<u64>,
}

/// `SARTOR.SWITCH [mode] [COPIES n] [DATALET kind] [TABLE name] [TIMEOUT ms]`
pub fn switch(_: &mut Connection, args: &Args, env: &mut Env<'_>) -> Result<Plan, String> {
    let lacks = |mode: &Mode| missing(mode, env.config.log.is_some(), env.config.locks.is_some());
    let said = parse(args, &|mode| lacks(mode).is_none())?;
    let map = env.map.ok_or("LOADING this node has no cluster map yet; is the coordinator up?")?;
    let table = table_named(map, said.table.as_deref().unwrap_or("default"))?;
    let timeout_ms = said.timeout_ms.unwrap_or(TIMEOUT_MS).min(TIMEOUT_MS);
    let until_us = env.now.steady_us.saturating_add(millis(timeout_ms));
    let fills = said.copies.is_some() || said.datalet.is_some();
    let shape = shape(map, table, said)?;
    if let Some(text) = mode(modes(), &shape.mode).and_then(lacks) {
        return Err(format!("ERR {text}; start the nodes with it"));
    }
    let change = Change::Reshape(table.id, shape);
    Ok(Plan::Worker(Ask::Change(ChangeAsk { change, fills, until_us })))
}

fn parse(args: &Args, is_possible: &dyn Fn(&Mode) -> bool) -> Result<Said, String> {
    let text = |place| String::from_utf8_lossy(args.get(place)).into_owned();
    let is_option = |word: &str| matches!(word, "copies" | "datalet" | "table" | "timeout");
    let mut said = Said::default();
    let mut place = 1;
    if !is_option(&text(1).to_lowercase()) {
        let name = text(1).to_lowercase();
        // What lacks something is refused with what that is.
        let shown = modes().iter().filter(|mode| is_possible(mode) || mode.name == name);
        said.mode = Some(known("mode", name.clone(), shown.map(|mode| mode.name))?);
        place = 2;
    }
    if !(args.len() - place).is_multiple_of(2) {
        return Err(SYNTAX.into());
    }
    for option in (place..args.len()).step_by(2) {
        let value = text(option + 1);
        match text(option).to_lowercase().as_str() {
            "copies" => said.copies = Some(value.parse().map_err(|_| SYNTAX)?),
            "datalet" => {
                said.datalet = Some(value);
            }
            "table" => said.table = Some(value),
            "timeout" => said.timeout_ms = Some(value.parse().map_err(|_| SYNTAX)?),
            _ => return Err(SYNTAX.into()),
        }
    }
    if said.mode.is_none() && said.copies.is_none() && said.datalet.is_none() {
        return Err(SYNTAX.into());
    }
    Ok(said)
}

/// A name that must be one of these.
pub fn known<'a>(what: &str, name: String, names: impl Iterator<Item = &'a str>) -> Result<String, String> {
    let names: Vec<&str> = names.collect();
    if names.contains(&name.as_str()) {
        return Ok(name);
    }
    Err(format!("ERR there is no {what} {name}; there is: {}", names.join(", ")))
}

/// The table as it is to be.
fn shape(map: &ClusterMap, table: &Table, said: Said) -> Result<TableShape, String> {
    let now = TableShape::of(table);
    let shape = TableShape {
        mode: said.mode.unwrap_or(now.mode),
        datalet: said.datalet.unwrap_or(now.datalet),
        copies: said.copies.unwrap_or(now.copies),
    };
    let (copies, nodes) = (usize::from(shape.copies), map.nodes.len());
    if !(1..=nodes).contains(&copies) {
        return Err(format!(
            "ERR {copies} copies need as many nodes; there are {nodes}, and one copy at least"
        ));
    }
    let (old, new) = (mode(modes(), &table.mode), mode(modes(), &shape.mode));
    if old.zip(new).is_some_and(|(old, new)| !old.is_like(new)) {
        return Err(format!(
            "ERR {} and {} have different controlets, so that no table can go from one to the other; begin another cluster in {}",
            table.mode, shape.mode, shape.mode
        ));
    }
    let alone = new.is_some_and(|mode| mode.rules.answers == Answers::Here);
    if alone && table.datalet != shape.datalet {
        let mode = &shape.mode;
        return Err(format!(
            "ERR in {mode} the first copy alone may have what it acknowledged, and would be lost with it; change the datalet in another mode, as aa+ec"
        ));
    }
    let (datalet, shards) = (&shape.datalet, map.shards_of(table.id).count() as u16);
    let ranges = table.partition == Partition::Range;
    let wanted = Wanted { datalet, nodes: nodes as u16, copies: shape.copies, shards, ranges };
    let checked = if table.datalet == shape.datalet { wanted.check() } else { wanted.check_here() };
    checked.map_err(|error| format!("ERR {error}"))?;
    if table.datalet != shape.datalet && nodes == 1 {
        return Err(
            "ERR the only copy cannot be filled beside itself; another datalet needs another node".into()
        );
    }
    Ok(shape)
}

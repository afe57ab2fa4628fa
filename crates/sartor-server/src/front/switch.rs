//! The command that gives a table another mode.

use super::connection::Connection;
use super::plan::{Ask, Env, Plan, SwitchAsk};
use crate::resp::parse::Args;
use sartor_core::controlet::{MODES, mode};
use sartor_core::time::millis;

/// How long one command waits at most: who wants to wait longer sends it again, which costs nothing.
const TIMEOUT_MS: u64 = 10_000;

const SYNTAX: &str = "ERR syntax: SARTOR.SWITCH mode [TABLE name] [TIMEOUT ms]";

/// `SARTOR.SWITCH mode [TABLE name] [TIMEOUT ms]`
pub fn switch(_: &mut Connection, args: &Args, env: &mut Env<'_>) -> Result<Plan, String> {
    let name = String::from_utf8_lossy(args.get(1)).to_lowercase();
    let Some(mode) = mode(MODES, &name) else {
        let names: Vec<&str> = MODES.iter().map(|mode| mode.name).collect();
        return Err(format!("ERR there is no mode {name}; there is: {}", names.join(", ")));
    };
    let (mut table, mut timeout_ms) = (String::from("default"), TIMEOUT_MS);
    if args.len().is_multiple_of(2) {
        for option in (2..args.len()).step_by(2) {
            let value = String::from_utf8_lossy(args.get(option + 1)).into_owned();
            match args.get(option).to_ascii_lowercase().as_slice() {
                b"table" => table = value,
                b"timeout" => timeout_ms = value.parse().map_err(|_| SYNTAX)?,
                _ => return Err(SYNTAX.into()),
            }
        }
    } else {
        return Err(SYNTAX.into());
    }
    let map = env.map.ok_or("LOADING this node has no cluster map yet; is the coordinator up?")?;
    let Some(table) = map.tables.iter().find(|known| known.name == table) else {
        let names: Vec<&str> = map.tables.iter().map(|table| table.name.as_str()).collect();
        return Err(format!("ERR there is no table {table}; there is: {}", names.join(", ")));
    };
    let until_us = env.now.steady_us.saturating_add(millis(timeout_ms.min(TIMEOUT_MS)));
    Ok(Plan::Worker(Ask::Switch(SwitchAsk { table: table.id, mode: mode.name, until_us })))
}

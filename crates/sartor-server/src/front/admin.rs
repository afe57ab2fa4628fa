//! Commands about connections, settings and the server itself.

use super::command::{COMMANDS, Command, find};
use super::connection::{Connection, Replies};
use super::glob;
use super::plan::{Act, Ask, Env, Join, KillBy, Plan};
use crate::resp::parse::Args;
use crate::resp::reply::{Reply, Version as Resp};
use crate::settings::Name;
use crate::stats;
use sartor_core::ids::ShardId;
use sartor_core::operation::{Consistency, Op, parse_integer};
use std::collections::BTreeMap;

type Planned = Result<Plan, String>;

/// The version of Redis whose commands these are; tools choose by it.
const REDIS_VERSION: &str = "7.2.0";
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn local(write: impl FnOnce(&mut Vec<u8>)) -> Planned {
    let mut reply = Vec::new();
    write(&mut reply);
    Ok(Plan::Local(reply))
}

fn ok() -> Planned {
    local(|out| out.simple("OK"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

macro_rules! acts {
    ($($(#[$doc:meta])* $name:ident => $plan:expr;)*) => {
        $($(#[$doc])*
        pub fn $name(_: &mut Connection, _: &Args, _: &mut Env<'_>) -> Planned {
            Ok($plan)
        })*
    };
}

acts! {
    /// `MULTI`
    multi => Plan::Connection(Act::Multi);
    /// `EXEC`
    exec => Plan::Connection(Act::Exec);
    /// `DISCARD`
    discard => Plan::Connection(Act::Discard);
    /// `UNWATCH`
    unwatch => Plan::Connection(Act::Unwatch);
    /// `QUIT`
    quit => Plan::Connection(Act::Quit);
    /// `RESET`
    reset => Plan::Connection(Act::Reset);
    /// `SARTOR.STATUS`
    status => Plan::Worker(Ask::Status);
}

/// `PING [message]`
pub fn ping(_: &mut Connection, args: &Args, _: &mut Env<'_>) -> Planned {
    match args.len() {
        1 => Ok(Plan::Local(b"+PONG\r\n".to_vec())),
        2 => local(|out| out.bulk(args.get(1))),
        _ => Err("ERR wrong number of arguments for 'ping' command".into()),
    }
}

/// `ECHO message`
pub fn echo(_: &mut Connection, args: &Args, _: &mut Env<'_>) -> Planned {
    local(|out| out.bulk(args.get(1)))
}

/// `TIME`
pub fn time(_: &mut Connection, _: &Args, env: &mut Env<'_>) -> Planned {
    let ms = env.now.unix_ms;
    local(|out| {
        out.array(2);
        out.bulk((ms / 1000).to_string().as_bytes());
        out.bulk((ms % 1000 * 1000).to_string().as_bytes());
    })
}

/// `LOLWUT`
pub fn lolwut(connection: &mut Connection, _: &Args, _: &mut Env<'_>) -> Planned {
    let _ = connection;
    local(|out| out.bulk(format!("Sartor ver. {VERSION}\n").as_bytes()))
}

/// `READONLY`
pub fn readonly(_: &mut Connection, _: &Args, _: &mut Env<'_>) -> Planned {
    Ok(Plan::Connection(Act::Consistency(Consistency::Eventual)))
}

/// `READWRITE`
pub fn readwrite(_: &mut Connection, _: &Args, _: &mut Env<'_>) -> Planned {
    Ok(Plan::Connection(Act::Consistency(Consistency::Mode)))
}

/// `AUTH [user] password`
pub fn auth(_: &mut Connection, args: &Args, _: &mut Env<'_>) -> Planned {
    if args.len() > 3 {
        return Err("ERR syntax error".into());
    }
    Err("ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?".into())
}

/// `CLUSTER subcommand`
pub fn cluster(_: &mut Connection, _: &Args, _: &mut Env<'_>) -> Planned {
    // The exact words: redis-cli compares them.
    Err("ERR This instance has cluster support disabled".into())
}

/// `MODULE LIST`
pub fn module(_: &mut Connection, args: &Args, _: &mut Env<'_>) -> Planned {
    if args.get(1).eq_ignore_ascii_case(b"list") {
        local(|out| out.array(0))
    } else {
        Err(subcommand("MODULE", args))
    }
}

/// `HELLO [version [AUTH user password] [SETNAME name]]`
pub fn hello(connection: &mut Connection, args: &Args, env: &mut Env<'_>) -> Planned {
    let version = match args.len() {
        1 => connection.resp,
        _ => match parse_integer(args.get(1)) {
            Some(2) => Resp::Two,
            Some(3) => Resp::Three,
            Some(_) => return Err("NOPROTO unsupported protocol version".into()),
            None => return Err("ERR Protocol version is not an integer or out of range".into()),
        },
    };
    let mut at = 2;
    while at < args.len() {
        let word = args.get(at);
        if word.eq_ignore_ascii_case(b"auth") && at + 2 < args.len() {
            return auth(connection, &Args::from_words(&[b"AUTH", args.get(at + 1), args.get(at + 2)]), env);
        } else if word.eq_ignore_ascii_case(b"setname") && at + 1 < args.len() {
            connection.name = client_name(args.get(at + 1))?;
            at += 2;
        } else {
            return Err(format!("ERR Syntax error in HELLO option '{}'", word.escape_ascii()));
        }
    }
    connection.resp = version;
    let id = connection.id as i64;
    local(|out| {
        out.map(7, version);
        let mut pair = |key: &str, value: &str| {
            out.bulk(key.as_bytes());
            out.bulk(value.as_bytes());
        };
        pair("server", "redis");
        pair("version", REDIS_VERSION);
        out.bulk(b"proto");
        out.integer(if version == Resp::Three { 3 } else { 2 });
        out.bulk(b"id");
        out.integer(id);
        let mut pair = |key: &str, value: &str| {
            out.bulk(key.as_bytes());
            out.bulk(value.as_bytes());
        };
        pair("mode", "standalone");
        pair("role", "master");
        out.bulk(b"modules");
        out.array(0);
    })
}

fn client_name(name: &[u8]) -> Result<String, String> {
    if name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        return Ok(text(name));
    }
    Err("ERR Client names cannot contain spaces, newlines or special characters.".into())
}

fn subcommand(command: &str, args: &Args) -> String {
    format!("ERR unknown subcommand '{}'. Try {command} HELP.", args.get(1).escape_ascii())
}

/// `CLIENT subcommand`
pub fn client(connection: &mut Connection, args: &Args, _: &mut Env<'_>) -> Planned {
    let word = args.get(1).to_ascii_lowercase();
    match (word.as_slice(), args.len()) {
        (b"id", 2) => local(|out| out.integer(connection.id as i64)),
        (b"getname", 2) if connection.name.is_empty() => local(|out| out.null(connection.resp)),
        (b"getname", 2) => local(|out| out.bulk(connection.name.as_bytes())),
        (b"setname", 3) => {
            connection.name = client_name(args.get(2))?;
            ok()
        }
        (b"setinfo", 4) => {
            let value = client_name(args.get(3))?;
            match args.get(2).to_ascii_lowercase().as_slice() {
                b"lib-name" => connection.library.0 = value,
                b"lib-ver" => connection.library.1 = value,
                _ => return Err(format!("ERR Unrecognized option '{}'", args.get(2).escape_ascii())),
            }
            ok()
        }
        (b"info", 2) => local(|out| out.bulk(client_line(connection).as_bytes())),
        (b"list", _) => Ok(Plan::Worker(Ask::ClientList)),
        (b"kill", 3) => Ok(Plan::Worker(Ask::ClientKill(KillBy::Addr(text(args.get(2))), false))),
        (b"kill", 4) if args.get(2).eq_ignore_ascii_case(b"id") => {
            let id = parse_integer(args.get(3)).and_then(|id| u64::try_from(id).ok());
            let id = id.ok_or("ERR client-id should be greater than 0")?;
            Ok(Plan::Worker(Ask::ClientKill(KillBy::Id(id), true)))
        }
        (b"kill", 4) if args.get(2).eq_ignore_ascii_case(b"addr") => {
            Ok(Plan::Worker(Ask::ClientKill(KillBy::Addr(text(args.get(3))), true)))
        }
        (b"no-evict" | b"no-touch", 3) => ok(),
        (b"reply", 3) => client_reply(connection, args),
        _ => Err(subcommand("CLIENT", args)),
    }
}

fn client_reply(connection: &mut Connection, args: &Args) -> Planned {
    match args.get(2).to_ascii_lowercase().as_slice() {
        b"on" => {
            connection.replies = Replies::On;
            ok()
        }
        b"off" => {
            connection.replies = Replies::Off;
            ok()
        }
        b"skip" if connection.replies == Replies::Off => ok(),
        b"skip" => {
            connection.replies = Replies::SkipThisAndNext;
            ok()
        }
        _ => Err("ERR syntax error".into()),
    }
}

/// A connection's line in CLIENT LIST.
pub fn client_line(connection: &Connection) -> String {
    format!(
        "id={} addr={} name={} db={} multi={} resp={} cmd={} lib-name={} lib-ver={} omem={}\n",
        connection.id,
        connection.addr,
        connection.name,
        connection.table,
        if connection.in_transaction() { 1 } else { -1 },
        if connection.resp == Resp::Three { 3 } else { 2 },
        if connection.last_command.is_empty() { "NULL" } else { connection.last_command },
        connection.library.0,
        connection.library.1,
        connection.out.len(),
    )
}

/// `COMMAND [COUNT|LIST|INFO|DOCS|GETKEYS]`
pub fn command(connection: &mut Connection, args: &Args, _: &mut Env<'_>) -> Planned {
    let resp = connection.resp;
    if args.len() == 1 {
        return local(|out| {
            out.array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| describe(command, resp, out));
        });
    }
    let named: Vec<Option<&Command>> = (2..args.len()).map(|index| find(args.get(index))).collect();
    match args.get(1).to_ascii_lowercase().as_slice() {
        b"count" => local(|out| out.integer(COMMANDS.len() as i64)),
        b"list" => local(|out| {
            out.array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| out.bulk(command.name.as_bytes()));
        }),
        b"info" => local(|out| {
            let all: Vec<Option<&Command>> = COMMANDS.iter().map(Some).collect();
            let wanted = if named.is_empty() { all } else { named };
            out.array(wanted.len());
            wanted.into_iter().for_each(|command| match command {
                Some(command) => describe(command, resp, out),
                None => out.null(resp),
            });
        }),
        b"docs" => local(|out| {
            let wanted: Vec<&Command> = if args.len() == 2 {
                COMMANDS.iter().collect()
            } else {
                named.into_iter().flatten().collect()
            };
            out.map(wanted.len(), resp);
            for command in wanted {
                out.bulk(command.name.as_bytes());
                out.map(2, resp);
                out.bulk(b"summary");
                out.bulk(command.about.as_bytes());
                out.bulk(b"group");
                out.bulk(b"generic");
            }
        }),
        b"getkeys" => get_keys(args),
        _ => Err(subcommand("COMMAND", args)),
    }
}

fn get_keys(args: &Args) -> Planned {
    // The command that SARTOR.ONCE names is behind the id.
    let start = if args.get(2).eq_ignore_ascii_case(b"sartor.once") { 4 } else { 2 };
    let command = find(args.get(start)).ok_or("ERR Invalid command specified")?;
    if !command.takes(args.len() - start) {
        return Err("ERR Invalid number of arguments specified for command".into());
    }
    let keys: Vec<usize> = command.key_places(args.len() - start).collect();
    if keys.is_empty() {
        return Err("ERR The command has no key arguments".into());
    }
    local(|out| {
        out.array(keys.len());
        keys.iter().for_each(|place| out.bulk(args.get(place + start)));
    })
}

fn describe(command: &Command, resp: Resp, out: &mut Vec<u8>) {
    out.array(10);
    out.bulk(command.name.as_bytes());
    out.integer(i64::from(command.arity));
    out.set(command.flags.len(), resp);
    command.flags.iter().for_each(|flag| out.simple(flag));
    let (first, last, step) = command.keys;
    [first, last, step].iter().for_each(|number| out.integer(i64::from(*number)));
    // ACL categories, tips, key specifications, subcommands: none yet.
    out.set(0, resp);
    (0..3).for_each(|_| out.array(0));
}

/// What tools ask for although it is no setting of ours.
const FIXED: &[(&str, &str)] = &[
    ("save", ""),
    ("appendonly", "no"),
    ("databases", "1"),
    ("timeout", "0"),
    ("io-threads", "1"),
    ("replica-read-only", "yes"),
];

/// `CONFIG GET pattern [pattern ...], CONFIG SET name value [name value ...]`
pub fn config(connection: &mut Connection, args: &Args, env: &mut Env<'_>) -> Planned {
    let resp = connection.resp;
    match args.get(1).to_ascii_lowercase().as_slice() {
        b"get" if args.len() > 2 => {
            let patterns: Vec<Vec<u8>> =
                (2..args.len()).map(|index| args.get(index).to_ascii_lowercase()).collect();
            let ours = env.settings.all().map(|(name, value)| (name, value.to_string()));
            let fixed = FIXED.iter().map(|(name, value)| (*name, (*value).to_string()));
            let wanted = |name: &str| patterns.iter().any(|pattern| glob::matches(pattern, name.as_bytes()));
            let found: Vec<_> = ours.chain(fixed).filter(|(name, _)| wanted(name)).collect();
            local(|out| {
                out.map(found.len(), resp);
                for (name, value) in found {
                    out.bulk(name.as_bytes());
                    out.bulk(value.as_bytes());
                }
            })
        }
        b"set" if args.len() > 2 && args.len().is_multiple_of(2) => {
            for index in (2..args.len()).step_by(2) {
                let name = text(args.get(index)).to_lowercase();
                let value = text(args.get(index + 1)).parse::<u64>();
                let value = value.map_err(|_| format!("ERR the value of {name} must be a number"))?;
                env.settings.change(&name, value).map_err(|error| format!("ERR {error}"))?;
            }
            ok()
        }
        b"resetstat" => ok(),
        _ => Err(subcommand("CONFIG", args)),
    }
}

/// `INFO [section ...]`
pub fn info(_: &mut Connection, args: &Args, env: &mut Env<'_>) -> Planned {
    let sections = (1..args.len()).map(|index| text(args.get(index)).to_lowercase()).collect();
    let parts = env.in_all_tables(&Op::Len).unwrap_or_default();
    let table =
        |(shard, _): &(ShardId, Op)| env.map.and_then(|map| map.shard(*shard)).map(|shard| shard.table);
    let tables = parts.iter().filter_map(table).collect();
    Ok(Plan::Parts(parts, Join::Info(sections, tables)))
}

/// Writes INFO, once the numbers of keys are known, of a table in each.
pub fn info_text(
    sections: &[String],
    counts: impl Iterator<Item = (u16, i64)>,
    env: &Env<'_>,
    out: &mut Vec<u8>,
) {
    let all = sections.is_empty()
        || sections.iter().any(|s| matches!(s.as_str(), "all" | "everything" | "default"));
    let mut info = String::new();
    let fixed = info_sections(env).into_iter().map(|(name, lines)| {
        (name, lines.into_iter().map(|(key, value)| format!("{key}:{value}\r\n")).collect())
    });
    for (name, lines) in fixed.chain([("Keyspace", keyspace(counts))]) {
        if all || sections.iter().any(|section| section.eq_ignore_ascii_case(name)) {
            info += &format!("# {name}\r\n");
            info += &lines;
            info += "\r\n";
        }
    }
    out.bulk(info.as_bytes());
}

/// A line for each table that is not empty.
fn keyspace(counts: impl Iterator<Item = (u16, i64)>) -> String {
    let mut keys: BTreeMap<u16, i64> = BTreeMap::new();
    counts.for_each(|(table, count)| *keys.entry(table).or_default() += count);
    let filled = keys.iter().filter(|(_, keys)| **keys > 0);
    filled.map(|(table, keys)| format!("db{table}:keys={keys},expires=0,avg_ttl=0\r\n")).collect()
}

type Lines = Vec<(&'static str, String)>;

fn info_sections(env: &Env<'_>) -> Vec<(&'static str, Lines)> {
    let stats = env.stats;
    let (user, system, resident) = stats::usage();
    let uptime = stats.started.elapsed().as_secs();
    let count = |counter| stats::get(counter).to_string();
    let fixed = |pairs: &[(&'static str, &str)]| -> Lines {
        pairs.iter().map(|(name, value)| (*name, (*value).to_string())).collect()
    };
    let mut server = fixed(&[
        ("redis_version", REDIS_VERSION),
        ("sartor_version", VERSION),
        ("redis_mode", "standalone"),
        ("os", std::env::consts::OS),
        ("arch_bits", "64"),
    ]);
    server.extend([
        ("process_id", std::process::id().to_string()),
        ("run_id", format!("{:040x}", env.map.map_or(0, |map| map.cluster))),
        ("tcp_port", env.config.listen.rsplit(':').next().unwrap_or_default().to_string()),
        ("uptime_in_seconds", uptime.to_string()),
        ("uptime_in_days", (uptime / 86_400).to_string()),
        ("sartor_node", env.config.node.to_string()),
        ("sartor_map_epoch", env.map.map_or(0, |map| map.epoch.0).to_string()),
    ]);
    let clients = vec![("connected_clients", count(&stats.clients)), ("blocked_clients", "0".into())];
    let mut memory = vec![("used_memory", resident.to_string()), ("used_memory_rss", resident.to_string())];
    memory.push(("sartor_records_memory", count(&stats.stored)));
    memory.push(("maxmemory", env.settings.get(Name::MemoryMax).to_string()));
    memory.extend(fixed(&[("maxmemory_policy", "noeviction")]));
    let persistence = fixed(&[("loading", if env.map.is_some() { "0" } else { "1" })]);
    let statistics = vec![
        ("total_connections_received", count(&stats.connections)),
        ("total_commands_processed", count(&stats.commands)),
        ("total_net_input_bytes", count(&stats.bytes_in)),
        ("total_net_output_bytes", count(&stats.bytes_out)),
        ("rejected_connections", count(&stats.rejected)),
        ("keyspace_hits", count(&stats.hits)),
        ("keyspace_misses", count(&stats.misses)),
        ("sartor_turns", count(&stats.turns)),
    ];
    let replication = fixed(&[("role", "master"), ("connected_slaves", "0")]);
    let cpu = vec![("used_cpu_sys", format!("{system:.6}")), ("used_cpu_user", format!("{user:.6}"))];
    vec![
        ("Server", server),
        ("Clients", clients),
        ("Memory", memory),
        ("Persistence", persistence),
        ("Stats", statistics),
        ("Replication", replication),
        ("CPU", cpu),
        ("Cluster", fixed(&[("cluster_enabled", "0")])),
    ]
}

//! The one table of commands: what they are called, how many arguments they have, where their keys
//! are, and what they do.

use super::connection::Connection;
use super::plan::{Env, Plan};
use super::{admin, consistency, data, once, range, switch, table, verify};
use crate::resp::parse::Args;
use std::sync::LazyLock;

/// Plans a command, or says what is wrong with it, with the prefix that clients know.
pub type Handler = fn(&mut Connection, &Args, &mut Env<'_>) -> Result<Plan, String>;

/// A command.
pub struct Command {
    /// Its name in lower case.
    pub name: &'static str,
    /// How many words it has, the name included; negative: at least so many.
    pub arity: i32,
    /// Redis's flags.
    pub flags: &'static [&'static str],
    /// The first key's place, the last one's (from the end if negative), and the step.
    pub keys: (i32, i32, i32),
    /// What it does, in a line.
    pub about: &'static str,
    /// How.
    pub handler: Handler,
}

const fn command(
    name: &'static str,
    arity: i32,
    flags: &'static [&'static str],
    keys: (i32, i32, i32),
    about: &'static str,
    handler: Handler,
) -> Command {
    Command { name, arity, flags, keys, about, handler }
}

const READ: &[&str] = &["readonly", "fast"];
const WALK: &[&str] = &["readonly"];
const WRITE: &[&str] = &["write", "denyoom", "fast"];
/// A command with its name and keys further on.
const NAMED: &[&str] = &["write", "denyoom", "noscript", "movablekeys"];
const REMOVE: &[&str] = &["write", "fast"];
const LOCAL: &[&str] = &["loading", "stale", "fast"];
const TRANSACTION: &[&str] = &["noscript", "loading", "stale", "fast"];
const ADMIN: &[&str] = &["admin", "noscript", "loading", "stale"];
/// Changes the connection or the settings at once, so it has no place in a transaction.
const CHANGES: &[&str] = &["connection", "noscript", "loading", "stale"];
const NO_KEYS: (i32, i32, i32) = (0, 0, 0);
const ONE_KEY: (i32, i32, i32) = (1, 1, 1);
const ALL_KEYS: (i32, i32, i32) = (1, -1, 1);

/// All commands.
pub static COMMANDS: &[Command] = &[
    command("append", 3, WRITE, ONE_KEY, "Appends to a value", data::append),
    command("auth", -2, CHANGES, NO_KEYS, "Authenticates the connection", admin::auth),
    command("client", -2, CHANGES, NO_KEYS, "Tells of and changes connections", admin::client),
    command("cluster", -2, LOCAL, NO_KEYS, "Is for the cluster door", admin::cluster),
    command("command", -1, LOCAL, NO_KEYS, "Tells of commands", admin::command),
    command("config", -2, CHANGES, NO_KEYS, "Reads and changes settings", admin::config),
    command("dbsize", 1, WALK, NO_KEYS, "Counts the keys", data::dbsize),
    command("decr", 2, WRITE, ONE_KEY, "Subtracts 1", data::decr),
    command("decrby", 3, WRITE, ONE_KEY, "Subtracts a number", data::decrby),
    command("del", -2, REMOVE, ALL_KEYS, "Removes keys", data::del),
    command("discard", 1, TRANSACTION, NO_KEYS, "Drops a transaction", admin::discard),
    command("echo", 2, LOCAL, NO_KEYS, "Answers its argument", admin::echo),
    command("exec", 1, TRANSACTION, NO_KEYS, "Runs a transaction", admin::exec),
    command("exists", -2, READ, ALL_KEYS, "Counts which of the keys are there", data::exists),
    command("expire", -3, REMOVE, ONE_KEY, "Lets a key expire after seconds", data::expire),
    command("expireat", -3, REMOVE, ONE_KEY, "Lets a key expire at a Unix time", data::expireat),
    command("expiretime", 2, READ, ONE_KEY, "Tells when a key expires, in seconds", data::expiretime),
    command("flushall", -1, REMOVE, NO_KEYS, "Removes all keys of all tables", data::flushall),
    command("flushdb", -1, REMOVE, NO_KEYS, "Removes all keys of the table", data::flushdb),
    command("get", 2, READ, ONE_KEY, "Reads a value", data::get),
    command("getdel", 2, REMOVE, ONE_KEY, "Reads a value and removes it", data::getdel),
    command("getex", -2, REMOVE, ONE_KEY, "Reads a value and changes its expiry", data::getex),
    command("getrange", 4, READ, ONE_KEY, "Reads part of a value", data::getrange),
    command("getset", 3, WRITE, ONE_KEY, "Sets a value and answers the old one", data::getset),
    command("hello", -1, CHANGES, NO_KEYS, "Opens a connection and chooses the protocol", admin::hello),
    command("incr", 2, WRITE, ONE_KEY, "Adds 1", data::incr),
    command("incrby", 3, WRITE, ONE_KEY, "Adds a number", data::incrby),
    command("info", -1, LOCAL, NO_KEYS, "Tells of the server", admin::info),
    command("lolwut", -1, LOCAL, NO_KEYS, "Tells the version", admin::lolwut),
    command("mget", -2, READ, ALL_KEYS, "Reads values", data::mget),
    command("module", -2, ADMIN, NO_KEYS, "Lists modules: none", admin::module),
    command("mset", -3, WRITE, (1, -1, 2), "Sets values", data::mset),
    command("multi", 1, TRANSACTION, NO_KEYS, "Begins a transaction", admin::multi),
    command("persist", 2, REMOVE, ONE_KEY, "Lets a key live for ever", data::persist),
    command("pexpire", -3, REMOVE, ONE_KEY, "Lets a key expire after milliseconds", data::pexpire),
    command("pexpireat", -3, REMOVE, ONE_KEY, "Lets a key expire at a Unix time in ms", data::pexpireat),
    command("pexpiretime", 2, READ, ONE_KEY, "Tells when a key expires, in ms", data::pexpiretime),
    command("ping", -1, LOCAL, NO_KEYS, "Answers PONG or its argument", admin::ping),
    command("psetex", 4, WRITE, ONE_KEY, "Sets a value that expires after ms", data::psetex),
    command("pttl", 2, READ, ONE_KEY, "Tells what is left of a key's life, in ms", data::pttl),
    command("quit", -1, LOCAL, NO_KEYS, "Closes the connection", admin::quit),
    command("readonly", 1, CHANGES, NO_KEYS, "Lets this connection read at any replica", admin::readonly),
    command("readwrite", 1, CHANGES, NO_KEYS, "Takes READONLY back", admin::readwrite),
    command("reset", 1, LOCAL, NO_KEYS, "Makes the connection as new", admin::reset),
    command(
        "sartor.consistency",
        -1,
        CHANGES,
        NO_KEYS,
        "Tells or chooses how fresh reads must be",
        consistency::consistency,
    ),
    command("sartor.debug", -2, ADMIN, NO_KEYS, "Damages this node's copy of a key", verify::debug),
    command("sartor.get", -2, READ, ONE_KEY, "Reads a value as fresh as asked for", consistency::get),
    command("sartor.once", -3, NAMED, NO_KEYS, "Runs a command once, however often it is sent", once::once),
    command("sartor.range", -3, WALK, NO_KEYS, "Reads records in key order", range::range),
    command("sartor.status", 1, LOCAL, NO_KEYS, "Tells of the cluster, as JSON", admin::status),
    command("sartor.switch", -2, ADMIN, NO_KEYS, "Gives a table another mode", switch::switch),
    command("sartor.table", -2, ADMIN, NO_KEYS, "Makes, lists, shows or deletes tables", table::table),
    command("sartor.verify", -2, ADMIN, NO_KEYS, "Compares the copies of shards, as JSON", verify::verify),
    command("scan", -2, WALK, NO_KEYS, "Walks over the keys", data::scan),
    command("select", 2, LOCAL, NO_KEYS, "Chooses the table, by name or number", table::select),
    command("set", -3, WRITE, ONE_KEY, "Sets a value", data::set),
    command("setex", 4, WRITE, ONE_KEY, "Sets a value that expires after seconds", data::setex),
    command("setnx", 3, WRITE, ONE_KEY, "Sets a value if the key is not there", data::setnx),
    command("setrange", 4, WRITE, ONE_KEY, "Writes into a value", data::setrange),
    command("strlen", 2, READ, ONE_KEY, "Tells the length of a value", data::strlen),
    command("time", 1, LOCAL, NO_KEYS, "Tells the server's time", admin::time),
    command("touch", -2, READ, ALL_KEYS, "Counts which of the keys are there", data::exists),
    command("ttl", 2, READ, ONE_KEY, "Tells what is left of a key's life, in seconds", data::ttl),
    command("type", 2, READ, ONE_KEY, "Tells a value's type", data::kind),
    command("unlink", -2, REMOVE, ALL_KEYS, "Removes keys", data::del),
    command("unwatch", 1, TRANSACTION, NO_KEYS, "Forgets what WATCH remembered", admin::unwatch),
    command("wait", 3, LOCAL, NO_KEYS, "Waits until replicas have this connection's writes", data::wait),
    command("watch", -2, TRANSACTION, ALL_KEYS, "Lets EXEC abort if the keys change", data::watch),
];

/// Names of no more than this length are looked up by length and first letter.
const NAME_MAX: usize = 31;

static INDEX: LazyLock<Vec<Vec<&'static Command>>> = LazyLock::new(|| {
    let mut index = vec![Vec::new(); (NAME_MAX + 1) * 32];
    for command in COMMANDS {
        index[bucket(command.name.as_bytes())].push(command);
    }
    index
});

fn bucket(name: &[u8]) -> usize {
    name.len() * 32 + usize::from(name[0] & 31)
}

/// A command by name, in any case.
pub fn find(name: &[u8]) -> Option<&'static Command> {
    if name.is_empty() || name.len() > NAME_MAX {
        return None;
    }
    INDEX[bucket(name)].iter().find(|command| name.eq_ignore_ascii_case(command.name.as_bytes())).copied()
}

impl Command {
    /// Whether so many words are right.
    pub fn takes(&self, words: usize) -> bool {
        let words = words as i32;
        if self.arity < 0 { words >= -self.arity } else { words == self.arity }
    }

    /// Whether its effect, if it has one, is on data.
    pub fn is_on_data(&self) -> bool {
        self.flags.iter().any(|flag| matches!(*flag, "readonly" | "write"))
    }

    /// The places of its keys among so many words.
    pub fn key_places(&self, words: usize) -> impl Iterator<Item = usize> {
        let (first, last, step) = self.keys;
        let last = if last < 0 { words as i32 + last } else { last };
        let places = if first == 0 { 0..0 } else { first..last + 1 };
        places.step_by(step.max(1) as usize).map(|place| place as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_every_name_is_found() {
        assert!(COMMANDS.windows(2).all(|pair| pair[0].name < pair[1].name));
        for command in COMMANDS {
            assert!(std::ptr::eq(find(command.name.to_uppercase().as_bytes()).unwrap(), command));
        }
        for unknown in ["", "x", "gets", "flushalll"] {
            assert!(find(unknown.as_bytes()).is_none());
        }
    }

    #[test]
    fn keys_are_where_the_table_says() {
        let places = |name: &str, words| find(name.as_bytes()).unwrap().key_places(words).collect::<Vec<_>>();
        assert_eq!(places("mset", 5), [1, 3]);
        assert_eq!(places("del", 4), [1, 2, 3]);
        assert_eq!(places("set", 5), [1]);
        assert!(places("ping", 2).is_empty());
    }
}

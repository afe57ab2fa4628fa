//! `SARTOR.ONCE`: a command under an id, so that it takes effect once, however often and wherever it is sent.

use super::command::find;
use super::connection::Connection;
use super::plan::{Env, Join, OnceId, Plan};
use crate::resp::parse::Args;
use bytes::Bytes;
use sartor_core::controlet::part::once::fingerprint;
use sartor_core::operation::{Once, Op};

/// The longest id: a UUID has 36 bytes as text.
const ID_BYTES_MAX: usize = 64;

impl OnceId {
    /// An operation of the command, under its id. Of each shard there is one.
    pub fn name(&self, op: Op) -> Op {
        let OnceId { id, fingerprint } = self;
        Op::Once(Box::new(Once { id: id.clone(), fingerprint: *fingerprint, op }))
    }
}

/// `SARTOR.ONCE id command [argument ...]`
pub fn once(connection: &mut Connection, args: &Args, env: &mut Env<'_>) -> Result<Plan, String> {
    if connection.in_transaction() {
        return Err("ERR SARTOR.ONCE is not allowed inside of MULTI".into());
    }
    let id = args.bytes(1);
    if id.is_empty() || id.len() > ID_BYTES_MAX {
        return Err(format!("ERR the id of SARTOR.ONCE must have 1 to {ID_BYTES_MAX} bytes"));
    }
    let inner = args.from(2);
    let name = || inner.get(0).escape_ascii().to_string().to_uppercase();
    let Some(command) = find(inner.get(0)) else {
        return Err(format!("ERR SARTOR.ONCE does not know the command '{}'", name()));
    };
    let refused = || Err(format!("ERR SARTOR.ONCE is for commands on keys; it cannot run {}", name()));
    // Before it is planned: planning alone may change the connection.
    if !command.is_on_data() || command.name == "sartor.once" {
        return refused();
    }
    if !command.takes(inner.len()) {
        return Err(format!("ERR wrong number of arguments for '{}' command", command.name));
    }
    let (parts, join) = match (command.handler)(connection, &inner, env)? {
        Plan::Key(key, action, shape) => {
            (vec![(env.shard_of(&key)?, Op::Key(key, action))], Join::One(shape))
        }
        Plan::Parts(parts, join @ (Join::One(_) | Join::Sum | Join::Array | Join::AllDone)) => (parts, join),
        Plan::Parts(parts, Join::Whole(whole)) if matches!(whole.join, Join::Sum | Join::AllDone) => {
            (parts, whole.join)
        }
        _ => return refused(),
    };
    let fingerprint = fingerprint(parts.iter().map(|(_, op)| op));
    // A copy, so that it does not hold the client's whole read buffer.
    let id = Bytes::copy_from_slice(&id);
    Ok(Plan::Once(OnceId { id, fingerprint }, parts, join))
}

//! Services outside of the cluster that some modes want: a log, and locks. They work on threads of their own; what they answer
//! comes to the workers as mail.

use crate::config::NodeConfig;
use crate::locks::Locks;
use crate::log::Logs;
use crate::worker::{Mail, Mailbox};
use sartor_core::controlet::Mode;
use sartor_core::controlet::part::log::{LogCall, LogEvent};
use sartor_core::controlet::rules::Answers;
use sartor_core::ids::ShardId;
use sartor_core::node::locking::{LockCall, LockEvent};

/// Those of a node.
pub struct Outside {
    logs: Option<Logs>,
    locks: Option<Locks>,
    mailboxes: Vec<Mailbox>,
}

impl Outside {
    /// Opens what the configuration names; whether it can be reached shows later.
    pub fn open(config: &NodeConfig, mailboxes: &[Mailbox]) -> Result<Outside, String> {
        let trouble = |text: String| eprintln!("sartor: {text}");
        let logs = |url: &String| {
            let mail = mailboxes.to_vec();
            let deliver = move |shard, number, event| post_log(&mail, shard, number, event);
            Logs::open(url, config.cluster, deliver, trouble)
        };
        let locks = |url: &String| {
            let mail = mailboxes.to_vec();
            let deliver = move |event| post_lock(&mail, event);
            Locks::open(url, config.cluster, config.node, deliver, trouble)
        };
        Ok(Outside {
            logs: config.log.as_ref().map(logs).transpose()?,
            locks: config.locks.as_ref().map(locks).transpose()?,
            mailboxes: mailboxes.to_vec(),
        })
    }

    /// Asks the log of a shard. Without one, what cannot be is answered.
    pub fn ask_log(&self, shard: ShardId, number: u64, call: LogCall) {
        match &self.logs {
            Some(logs) => logs.ask(shard, number, call),
            None if matches!(call, LogCall::Trim { .. }) => {}
            None => post_log(&self.mailboxes, shard, number, LogEvent::Failed),
        }
    }

    /// Asks the locks.
    pub fn ask_locks(&self, call: LockCall) {
        match (&self.locks, call) {
            (Some(locks), call) => locks.ask(call),
            (None, LockCall::Acquire { id, .. }) => post_lock(&self.mailboxes, LockEvent::Failed { id }),
            (None, LockCall::Release { .. }) => {}
        }
    }
}

fn post_log(mail: &[Mailbox], shard: ShardId, number: u64, event: LogEvent) {
    mail[usize::from(shard.0) % mail.len()].post(Mail::Log(shard, number, event));
}

fn post_lock(mail: &[Mailbox], event: LockEvent) {
    let (LockEvent::Held { id } | LockEvent::Failed { id }) = event;
    // The first byte is the worker that asked.
    if let Some(mailbox) = mail.get((id >> 56) as usize) {
        mailbox.post(Mail::Lock(event));
    }
}

/// What a mode lacks where the nodes have no log, or no locks.
pub fn missing(mode: &Mode, log: bool, locks: bool) -> Option<String> {
    let name = mode.name;
    if mode.rules.answers == Answers::AtLog && !log {
        return Some(format!("mode {name} needs a log that all nodes know: --log nats://HOST:PORT"));
    }
    (mode.locks && !locks).then(|| {
        format!("mode {name} needs locks that all nodes know: --locks etcd://HOST:PORT,... or redis://HOST:PORT,...")
    })
}

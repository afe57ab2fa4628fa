//! Runs that are being packed: commands on single keys that one connection sent together, one run a shard.
//!
//! A worker reads a connection's requests one after the other; those that can are packed here, and become one request
//! a shard as soon as another kind of command comes, or nothing more is there to be read.

use crate::resp::hot::Hot;
use sartor_core::ids::ShardId;
use sartor_core::operation::Action;
use sartor_core::run::{Packer, Run, may_run};

/// What a step may take that is packed by copying; larger ones travel by themselves.
pub const STEP_BYTES_MAX: usize = 1024;

/// The open runs of the connection that is being served.
#[derive(Debug, Default)]
pub struct Runs {
    /// In the order in which they were opened; those from `used` on are spare.
    open: Vec<Open>,
    used: usize,
}

#[derive(Debug)]
struct Open {
    shard: ShardId,
    tag: u32,
    writes: bool,
    /// All are decided on this node, so that reads and writes may mix: else reads could be answered nearer.
    mixes: bool,
    packer: Packer,
}

/// A command that may be a step.
#[derive(Clone, Copy, Debug)]
pub enum Command<'a> {
    /// One of the two hot ones.
    Hot(Hot<'a>),
    /// Another action on a key.
    Key(&'a [u8], &'a Action),
}

impl<'a> Command<'a> {
    /// Its key.
    pub fn key(&self) -> &'a [u8] {
        match self {
            Command::Hot(Hot::Get(key) | Hot::Set(key, _)) | Command::Key(key, _) => key,
        }
    }

    fn is_write(&self) -> bool {
        match self {
            Command::Hot(hot) => matches!(hot, Hot::Set(..)),
            Command::Key(_, action) => action.is_write(),
        }
    }

    /// About how many bytes it takes.
    pub fn size(&self) -> usize {
        16 + match self {
            Command::Hot(Hot::Get(key)) => key.len(),
            Command::Hot(Hot::Set(key, value)) => key.len() + value.len(),
            Command::Key(key, Action::Set(set)) => key.len() + set.value.len(),
            Command::Key(key, _) => key.len(),
        }
    }

    /// Whether it may be a step at all.
    pub fn fits(&self) -> bool {
        self.size() <= STEP_BYTES_MAX && self.may_run()
    }

    fn may_run(&self) -> bool {
        match self {
            Command::Hot(_) => true,
            Command::Key(_, action) => may_run(action),
        }
    }

    /// Adds it to a run.
    pub fn pack(&self, packer: &mut Packer) {
        match self {
            Command::Hot(Hot::Get(key)) => packer.get(key),
            Command::Hot(Hot::Set(key, value)) => packer.set(key, value),
            Command::Key(key, action) => packer.push(key, action),
        }
    }
}

impl Runs {
    /// Adds a command to the shard's open run: that run's number. None where there is no run that it may join.
    pub fn join(&mut self, shard: ShardId, command: Command<'_>) -> Option<u32> {
        let open = self.open[..self.used].iter_mut().find(|open| open.shard == shard)?;
        let same = open.mixes || open.writes == command.is_write();
        if !same || !open.packer.has_room(command.size()) {
            return None;
        }
        command.pack(&mut open.packer);
        Some(open.tag)
    }

    /// Whether a shard has an open run.
    pub fn has(&self, shard: ShardId) -> bool {
        self.open[..self.used].iter().any(|open| open.shard == shard)
    }

    /// Opens a run with its first command.
    pub fn open(&mut self, shard: ShardId, tag: u32, mixes: bool, command: Command<'_>) {
        if self.used == self.open.len() {
            self.open.push(Open { shard, tag, writes: false, mixes, packer: Packer::default() });
        }
        let open = &mut self.open[self.used];
        (open.shard, open.tag) = (shard, tag);
        (open.writes, open.mixes) = (command.is_write(), mixes);
        command.pack(&mut open.packer);
        self.used += 1;
    }

    /// Closes all runs: number, shard and commands of each.
    pub fn close(&mut self) -> impl Iterator<Item = (u32, ShardId, Run)> {
        let used = std::mem::take(&mut self.used);
        self.open[..used].iter_mut().map(|open| (open.tag, open.shard, open.packer.take()))
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }
}

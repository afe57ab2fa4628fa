//! The pool: single commands of many connections in one run a shard.
//!
//! A connection that sends one command and waits gains nothing from a run of its own. So a worker pools such commands in a
//! session of its own, one run a shard and turn, where this node orders the shard's writes: there all of them are
//! decided one after the other anyway. While a connection has commands in the pool, its next ones go there too, or wait:
//! what goes another way could overtake them. Where a mode locks keys outside nothing is pooled, or all would wait for one key.

use super::runs::Command;
use sartor_core::ids::{Position, ShardId};
use sartor_core::operation::SessionId;
use sartor_core::run::{Packer, Run};
use std::collections::VecDeque;

/// The session of all commands that are pooled. No connection has this place.
pub const POOL: SessionId = SessionId { index: 0, generation: 0 };

/// Who waits for a step's answer: a connection's command by its number there.
pub type Owner = (SessionId, u32);

/// The runs of a worker's pool.
#[derive(Debug, Default)]
pub struct Pool {
    open: Vec<Open>,
    /// Those that are on their way, in the order of their numbers.
    flying: VecDeque<Flying>,
    next_tag: u32,
    /// Lists that can be used again.
    spare: Vec<Vec<Owner>>,
}

#[derive(Debug)]
struct Open {
    shard: ShardId,
    packer: Packer,
    owners: Vec<Owner>,
    floor: Position,
}

/// A run that was closed.
#[derive(Debug)]
struct Flying {
    tag: u32,
    /// Those who wait; none once they have the answer.
    owners: Vec<Owner>,
    answered: bool,
}

/// A run to be sent.
#[derive(Debug)]
pub struct Pooled {
    /// Its number.
    pub tag: u32,
    /// Where.
    pub shard: ShardId,
    /// What.
    pub run: Run,
    /// What its connections have seen of that shard.
    pub floor: Position,
}

impl Pool {
    /// Adds a command to the shard's run; false if that has no room.
    pub fn join(&mut self, shard: ShardId, command: Command<'_>, owner: Owner, floor: Position) -> bool {
        let place = match self.open.iter().position(|open| open.shard == shard) {
            Some(place) => place,
            None => {
                let owners = self.spare.pop().unwrap_or_default();
                self.open.push(Open { shard, packer: Packer::default(), owners, floor });
                self.open.len() - 1
            }
        };
        let open = &mut self.open[place];
        if !open.packer.has_room(command.size()) {
            return false;
        }
        command.pack(&mut open.packer);
        open.owners.push(owner);
        open.floor = open.floor.max(floor);
        true
    }

    /// Whether nothing waits to be sent.
    pub fn is_empty(&self) -> bool {
        self.open.iter().all(|open| open.packer.is_empty())
    }

    /// Takes the next run that waits to be sent.
    pub fn close(&mut self) -> Option<Pooled> {
        let open = self.open.iter_mut().find(|open| !open.packer.is_empty())?;
        let (tag, owners) =
            (self.next_tag, std::mem::replace(&mut open.owners, self.spare.pop().unwrap_or_default()));
        self.next_tag = tag.wrapping_add(1);
        self.flying.push_back(Flying { tag, owners, answered: false });
        let floor = std::mem::take(&mut open.floor);
        Some(Pooled { tag, shard: open.shard, run: open.packer.take(), floor })
    }

    /// A run was answered: who waits for its steps, in order. The list comes back by [`Pool::give_back`].
    pub fn land(&mut self, tag: u32) -> Vec<Owner> {
        let first = self.flying.front().map_or(tag, |flying| flying.tag);
        let place = tag.wrapping_sub(first) as usize;
        let Some(flying) = self.flying.get_mut(place) else { return Vec::new() };
        flying.answered = true;
        let owners = std::mem::take(&mut flying.owners);
        while self.flying.front().is_some_and(|flying| flying.answered) {
            self.flying.pop_front();
        }
        owners
    }

    /// Memory that can be used again.
    pub fn give_back(&mut self, mut owners: Vec<Owner>) {
        owners.clear();
        self.spare.push(owners);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::hot::Hot;

    fn owner(index: u32) -> Owner {
        (SessionId { index, generation: 1 }, 7)
    }

    #[test]
    fn who_waits_is_found_whatever_is_answered_first() {
        let mut pool = Pool::default();
        let get = Command::Hot(Hot::Get(b"k"));
        for (index, shard) in [(1, 0), (2, 1), (3, 0)] {
            assert!(pool.join(ShardId(shard), get, owner(index), Position::ZERO));
        }
        let (first, second) = (pool.close().unwrap(), pool.close().unwrap());
        assert!(pool.close().is_none() && pool.is_empty());
        assert_eq!((first.shard, first.run.len()), (ShardId(0), 2));
        assert!(pool.join(ShardId(0), get, owner(4), Position::ZERO));
        let third = pool.close().unwrap();
        assert_eq!(pool.land(second.tag), [owner(2)]);
        assert_eq!(pool.land(second.tag), [], "only once");
        assert_eq!(pool.land(first.tag), [owner(1), owner(3)]);
        assert_eq!(pool.land(third.tag), [owner(4)]);
        assert!(pool.flying.is_empty());
    }

    #[test]
    fn a_full_run_takes_no_more() {
        let mut pool = Pool::default();
        let value = [0; 900];
        let set = Command::Hot(Hot::Set(b"k", &value));
        let joined = (0..100).filter(|_| pool.join(ShardId(0), set, owner(1), Position::ZERO)).count();
        assert!(joined < 20, "{joined}");
        assert_eq!(pool.close().unwrap().run.len() as usize, joined);
        assert!(pool.join(ShardId(0), set, owner(1), Position::ZERO));
    }
}

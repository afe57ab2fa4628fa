//! The log outside: the first member keeps it, the others hear how far it is.

use super::Replica;
use crate::controlet::Effects;
use crate::controlet::part::log::{Log, LogEvent};
use crate::controlet::part::stream::Item;
use crate::controlet::rules::{Answers, Topology};
use crate::ids::Position;
use crate::keeper::Task;
use crate::mutants::{Fault, planted};
use crate::time::Now;
use crate::wire::codec::Reader;
use alloc::vec::Vec;
use bytes::Bytes;

impl Replica {
    /// A view begins. A new first member must read what an older one wrote, also where no log follows.
    pub(super) fn enter_log(&mut self) {
        let logs = self.view.rules.answers == Answers::AtLog;
        if !self.view.is_head() {
            self.owes_log |= logs;
            self.log = None;
        } else if !logs && !self.owes_log {
            self.log = None;
        } else if let Some(log) = &mut self.log {
            log.on_view();
        } else {
            self.log = Some(Log::new(self.view.epoch, self.stream.first() - 1));
        }
    }

    /// Whether what this one has is not all that a member had.
    pub(super) fn must_read_log(&self) -> bool {
        self.log.is_some() && self.owes_log && !planted(Fault::LogUnread)
    }

    /// Up to where the log has what is here.
    pub(super) fn in_log(&self) -> Position {
        let logged = self.known_logged();
        if logged >= self.applied.sequence {
            return self.applied;
        }
        Position { epoch: self.epoch_of(logged), sequence: logged }
    }

    /// The same as the others may know it. While a member may lack what came before the log, nothing is acknowledged by it: that
    /// one could be the last to live.
    pub(super) fn known_logged(&self) -> u64 {
        if self.view.is_head() && self.settling { self.stable.sequence } else { self.logged }
    }

    pub(super) fn learn_logged(&mut self, logged: u64) {
        self.logged = self.logged.max(logged);
    }

    /// What became of a call.
    pub fn on_log(&mut self, now: Now, event: (u64, LogEvent), out: &mut Effects) {
        let Some(mut log) = self.log.take() else { return };
        let (epoch, settings) = (self.view.epoch, self.settings);
        let mut take = |item| self.take_logged(now, item, &mut out.tasks);
        log.on_event(now, epoch, event, &settings, &mut take);
        if log.is_open() {
            self.learn_logged(log.logged());
            if self.owes_log {
                self.owes_log = false;
                self.leases.set_level(now, self.submitted);
            }
        }
        self.log = Some(log);
        self.dirty = true;
        self.trim();
    }

    /// An item that the log has; which entry it is, if it is here now.
    fn take_logged(&mut self, now: Now, encoded: Bytes, tasks: &mut Vec<Task>) -> Option<u64> {
        let item = Item::decode(&mut Reader::new(encoded.clone()), self.view.shard).ok()?;
        let position = item.position();
        if position.epoch < self.view.born || position.epoch > self.view.epoch {
            // Of what was before the shard began anew.
            return None;
        }
        if position.sequence > self.submitted.sequence && position.epoch < self.submitted.epoch {
            // Of another history, that ended.
            return None;
        }
        if position.sequence == self.submitted.sequence + 1 && self.owes_log {
            self.note_epoch(position);
            self.submitted = position;
            self.stream.push_encoded(position.sequence, encoded);
            tasks.push(self.take_item(now, item));
            if self.topology() != Topology::Chain {
                self.notify_followers(now, position.sequence);
            }
        }
        (position.sequence <= self.submitted.sequence).then_some(position.sequence)
    }

    /// Writes what is new, or reads on.
    pub(super) fn tend_log(&mut self, now: Now, out: &mut Effects) {
        let logs = self.view.rules.answers == Answers::AtLog;
        if !logs && self.is_level() {
            // All that it had is here, and nothing comes to it any more.
            (self.owes_log, self.log) = (false, None);
        }
        if let Some(log) = &mut self.log {
            let places = (if logs { self.submitted.sequence } else { 0 }, self.stable.sequence);
            log.on_wake(now, self.view.epoch, &self.stream, places, &self.settings, &mut out.log);
            self.logged = self.logged.max(log.logged());
        }
    }
}

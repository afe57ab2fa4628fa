//! A replica that gets the stream from this one: what was sent to it, what it has, when to send again.

use super::message::{Entries, Message};
use super::stream::Stream;
use crate::controlet::Settings;
use crate::ids::{Epoch, NodeId, Position};
use crate::mutants::{Fault, planted};
use crate::time::{Micros, Now};
use alloc::vec::Vec;

/// Who gets the stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Follower {
    /// Its node.
    pub node: NodeId,
    /// The last entry sent.
    pub sent: u64,
    /// The last entry it has.
    pub acked: u64,
    /// What it was taken to have at first: entries before that are not kept.
    pub start: u64,
    /// The entries that it lacks are gone: it must be filled anew.
    pub cut: bool,
    /// When the entries on their way were sent, or some of them last acknowledged.
    progress_at: Micros,
    /// When it last acknowledged something new, or began to be behind.
    acked_at: Micros,
}

impl Follower {
    /// Has everything up to `acked`; what comes next is sent to it.
    pub fn new(now: Now, node: NodeId, acked: u64) -> Follower {
        let at = now.steady_us;
        Follower { node, sent: acked, acked, start: acked, cut: false, progress_at: at, acked_at: at }
    }

    /// There are entries for it from now on, up to `last`.
    pub fn on_ordered(&mut self, now: Now, last: u64) {
        if self.sent == self.acked {
            self.progress_at = now.steady_us;
        }
        if self.acked + 1 == last {
            self.acked_at = now.steady_us;
        }
    }

    /// It has everything up to here. True if that is news.
    pub fn on_ack(&mut self, now: Now, sequence: u64) -> bool {
        if sequence <= self.acked {
            return false;
        }
        self.acked = sequence;
        self.sent = self.sent.max(sequence);
        self.progress_at = now.steady_us;
        self.acked_at = now.steady_us;
        true
    }

    /// What was sent may be lost: it is sent again.
    pub fn rewind(&mut self, now: Now) {
        self.sent = self.acked;
        self.progress_at = now.steady_us;
    }

    /// Whether nothing was acknowledged for so long that it should be sent again.
    pub fn is_overdue(&self, now: Now, settings: &Settings) -> bool {
        now.steady_us >= self.overdue_at(settings) && !planted(Fault::NoResend)
    }

    /// When that will be.
    pub fn overdue_at(&self, settings: &Settings) -> Micros {
        self.progress_at + settings.resend_us
    }

    /// Whether it is behind `last` and has not got on for too long.
    pub fn is_silent(&self, now: Now, last: u64, settings: &Settings) -> bool {
        self.acked < last && now.steady_us >= self.acked_at + settings.cut_after_us
    }

    /// When it will have been silent for too long.
    pub fn silent_at(&self, settings: &Settings) -> Micros {
        self.acked_at + settings.cut_after_us
    }

    /// Sends what is new, or again what is overdue, up to entry `to`.
    pub fn send(
        &mut self,
        now: Now,
        stream: &Stream,
        (fill, stable, to): (Epoch, Position, u64),
        settings: &Settings,
        sends: &mut Vec<(NodeId, Message)>,
    ) {
        if self.sent > self.acked && self.is_overdue(now, settings) {
            self.rewind(now);
        }
        while stream.bytes_between(self.acked, self.sent) < settings.window_bytes_max {
            let Some((last, batch)) = stream.batch(self.sent + 1, to, settings.batch_bytes_max) else {
                return;
            };
            self.sent = last;
            sends.push((self.node, Message::Entries(Entries { fill, stable, entries: batch.into() })));
        }
    }

    /// When it wants to be looked at again.
    pub fn wake_at(&self, settings: &Settings) -> Option<Micros> {
        (self.sent > self.acked && !self.cut).then(|| self.overdue_at(settings))
    }
}

//! A replica that gets the stream from this one: what was sent to it, what it has, when to send again.

use super::message::{Entries, Message};
use super::stream::Stream;
use crate::controlet::Settings;
use crate::ids::{Epoch, NodeId, Position};
use crate::mutants::{Fault, planted};
use crate::time::{Micros, Now, millis};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use bytes::Bytes;

/// Who gets the stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Follower {
    /// Its node.
    pub node: NodeId,
    /// The last entry sent.
    pub sent: u64,
    /// The last entry it has.
    pub acked: u64,
    /// What it was told that all have, and the log outside.
    told: (u64, u64),
    /// What it was taken to have at first: entries before that are not kept.
    pub start: u64,
    /// The entries that it lacks are gone: it must be filled anew.
    pub cut: bool,
    /// When the entries on their way were sent, or some of them last acknowledged.
    progress_at: Micros,
    /// How often they were sent again since.
    again: u32,
    /// When it last acknowledged something new, or began to be behind.
    acked_at: Micros,
    /// What it lacks: when entries up to which one were ordered, a few at a time.
    lacks: VecDeque<(Micros, u64)>,
    /// How fast it has been lately.
    pace: Pace,
    /// The shortest time in which it ever acknowledged something, as far as it was watched.
    usual_us: Micros,
}

/// How fast a follower was since a while.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pace {
    since: Micros,
    bytes: usize,
    /// For how long it lacked something that it has acknowledged since.
    behind_us: Micros,
    /// When it last acknowledged something.
    acked_at: Micros,
    /// The shortest time from an entry to its acknowledgement.
    quickest_us: Micros,
    /// How often it acknowledged something new.
    acks: u32,
}

impl Pace {
    fn new(now: Now) -> Pace {
        Pace { since: now.steady_us, bytes: 0, behind_us: 0, acked_at: 0, quickest_us: Micros::MAX, acks: 0 }
    }

    /// For how long it has lacked, or lacked until now, what was ordered at this time; what was counted before is not
    /// counted again.
    fn behind(&self, now: Now, since: Micros) -> Micros {
        now.steady_us.saturating_sub(since.max(self.acked_at).max(self.since))
    }
}

/// Entries ordered within so long are one item of what a follower lacks.
const LACKS_EVERY_US: Micros = millis(5);
/// Fewer late acknowledgements than this do not make a follower slow.
const ACKS_MIN: u32 = 3;
/// No more items than this: what comes later counts as ordered with the last.
const LACKS_MAX: usize = 1024;

/// How long to wait for an acknowledgement of what was sent again so often already: longer each time, as on a narrow link
/// each copy only joins the queue of those before it.
pub fn resend_after(settings: &Settings, again: u32) -> Micros {
    settings.resend_us << again.min(3)
}

/// How long a replica whose word nobody waits for keeps an acknowledgement to itself.
pub fn tells_after(settings: &Settings) -> Micros {
    settings.resend_us / 8
}

impl Follower {
    /// Has everything up to `acked`; what comes next is sent to it.
    pub fn new(now: Now, node: NodeId, acked: u64) -> Follower {
        let at = now.steady_us;
        Follower {
            node,
            sent: acked,
            acked,
            told: (0, 0),
            start: acked,
            cut: false,
            progress_at: at,
            again: 0,
            acked_at: at,
            lacks: VecDeque::new(),
            pace: Pace::new(now),
            usual_us: Micros::MAX,
        }
    }

    /// There are entries for it from now on, up to `last`.
    pub fn on_ordered(&mut self, now: Now, last: u64) {
        if self.sent == self.acked {
            self.progress_at = now.steady_us;
        }
        if self.acked + 1 == last {
            self.acked_at = now.steady_us;
        }
        let full = self.lacks.len() >= LACKS_MAX;
        match self.lacks.back_mut().filter(|(at, _)| full || now.steady_us < *at + LACKS_EVERY_US) {
            Some((_, up_to)) => *up_to = last,
            None => self.lacks.push_back((now.steady_us, last)),
        }
    }

    /// For how long it has lacked what it lacks for longest; 0 if it has everything.
    pub fn lag(&self, now: Now) -> Micros {
        self.lacks.front().map_or(0, |(at, _)| now.steady_us.saturating_sub(*at))
    }

    /// Whether it holds up the others. Asked now and then.
    pub fn is_slow(&mut self, now: Now, settings: &Settings) -> bool {
        let watched_us = now.steady_us.saturating_sub(self.pace.since);
        if self.cut || watched_us < settings.cut_after_us {
            return false;
        }
        let pace = core::mem::replace(&mut self.pace, Pace::new(now));
        // A link that is far is slow from the beginning, one that is narrow when there is something to carry.
        // The middle of a chain tells how far it is only now and then: a slow tail must not be held against it.
        let slow_us = self.usual_us.saturating_mul(4).max(3 * tells_after(settings));
        // Who stood still once is behind for a while, and not for most of the time.
        let behind_us = pace.behind_us + self.lacks.front().map_or(0, |(at, _)| pace.behind(now, *at));
        // A message that got lost twice is no slow link either.
        let mostly_behind = behind_us >= watched_us / 2 && pace.acks >= ACKS_MIN;
        let late = self.lag(now) >= settings.cut_after_us || (mostly_behind && pace.quickest_us > slow_us);
        self.usual_us = self.usual_us.min(pace.quickest_us);
        late && (pace.bytes as u64) < settings.pace_bytes_per_s_min * watched_us / 1_000_000
    }

    /// It has everything up to here. True if that is news.
    pub fn on_ack(&mut self, now: Now, sequence: u64, stream: &Stream) -> bool {
        if sequence <= self.acked {
            return false;
        }
        self.pace.acks += 1;
        self.pace.bytes += stream.bytes_between(self.acked, sequence);
        if let Some((at, _)) = self.lacks.front() {
            self.pace.behind_us += self.pace.behind(now, *at);
            self.pace.acked_at = now.steady_us;
        }
        while let Some((at, _)) = self.lacks.front().copied().filter(|(_, up_to)| *up_to <= sequence) {
            self.lacks.pop_front();
            self.pace.quickest_us = self.pace.quickest_us.min(now.steady_us.saturating_sub(at));
        }
        self.acked = sequence;
        self.sent = self.sent.max(sequence);
        self.progress_at = now.steady_us;
        self.again = 0;
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
        self.progress_at + resend_after(settings, self.again)
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
        (fill, (stable, logged), to): (Epoch, (Position, u64), u64),
        settings: &Settings,
        sends: &mut Vec<(NodeId, Message)>,
    ) {
        if self.sent > self.acked && self.is_overdue(now, settings) {
            self.rewind(now);
            self.again += 1;
        }
        while stream.bytes_between(self.acked, self.sent) < settings.window_bytes_max {
            let Some((last, batch)) = stream.batch(self.sent + 1, to, settings.batch_bytes_max) else {
                return;
            };
            (self.sent, self.told) = (last, (stable.sequence, logged));
            sends
                .push((self.node, Message::Entries(Entries { fill, stable, logged, entries: batch.into() })));
        }
    }

    /// Tells what all have, or the log outside, if that is news and went with no entries: somebody may wait for it there.
    pub fn tell(&mut self, (stable, logged): (Position, u64), sends: &mut Vec<(NodeId, Message)>) {
        let (told_stable, told_logged) = self.told;
        if (stable.sequence > told_stable || logged > told_logged) && !self.cut {
            self.told = (stable.sequence, logged);
            let nothing = Entries { fill: Epoch(0), stable, logged, entries: Bytes::new() };
            sends.push((self.node, Message::Entries(nothing)));
        }
    }

    /// When it wants to be looked at again.
    pub fn wake_at(&self, settings: &Settings) -> Option<Micros> {
        (self.sent > self.acked && !self.cut).then(|| self.overdue_at(settings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controlet::part::stream::Ordered;
    use crate::entry::{Entry, Writes};

    /// After two seconds in which all was well, entries are ordered at these times (ms), and acknowledged when `acked`
    /// says, if ever: whether the follower is slow after two seconds more.
    fn is_slow(ordered: &[u64], acked: fn(u64) -> Option<u64>) -> bool {
        let at = |ms: u64| Now { steady_us: millis(10_000 + ms), unix_ms: ms };
        let mut follower = Follower::new(at(0), NodeId(1), 0);
        let mut stream = Stream::starting_at(1);
        follower.pace.quickest_us = 300;
        assert!(!follower.is_slow(at(2000), &Settings::default()));
        let mut events = Vec::new();
        for (place, ms) in ordered.iter().enumerate() {
            let sequence = place as u64 + 1;
            events.push((2000 + ms, true, sequence));
            events.extend(acked(*ms).map(|ms| (2000 + ms, false, sequence)));
        }
        events.sort_unstable();
        for (ms, is_new, sequence) in events.into_iter().filter(|(ms, ..)| *ms <= 4000) {
            if is_new {
                let entry =
                    Entry { position: Position { epoch: Epoch(1), sequence }, writes: Writes::default() };
                stream.push(&Ordered { entry, answered: None });
                follower.on_ordered(at(ms), sequence);
            } else {
                follower.on_ack(at(ms), sequence, &stream);
            }
        }
        follower.is_slow(at(4000), &Settings::default())
    }

    #[test]
    fn who_stood_still_once_is_not_slow() {
        let burst = [0, 10, 20, 30, 40, 50, 60];
        assert!(!is_slow(&burst, |_| Some(400)), "all in one acknowledgement");
        assert!(!is_slow(&burst, |ms| Some(400 + ms / 10)), "one after the other");
        let steady: Vec<u64> = (0..20).map(|n| n * 100).collect();
        assert!(!is_slow(&steady, |ms| Some(ms + 30)), "the middle of a chain");
        assert!(!is_slow(&[0, 700, 1400], |ms| Some(ms + 200)), "now and then");
        assert!(!is_slow(&[300, 1400], |ms| Some(ms + 600)), "lost, and lost again");
    }

    #[test]
    fn who_is_always_late_is_slow() {
        let steady: Vec<u64> = (0..20).map(|n| n * 100).collect();
        assert!(is_slow(&steady, |ms| Some(ms + 250)));
        assert!(is_slow(&[0, 100], |_| None), "no acknowledgement at all");
        // Everybody waits for an answer before asking again, and the link is narrow.
        let lockstep: Vec<u64> = (0..18).map(|n| n * 110).collect();
        assert!(is_slow(&lockstep, |ms| Some(ms + 100)), "one after the other");
    }
}

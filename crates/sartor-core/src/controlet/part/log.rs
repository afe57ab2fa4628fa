//! A log outside of the cluster (NATS JetStream) that has every operation before it is acknowledged.
//!
//! ```text
//!  first member ── Append, if the last message is the one I know ──▶ log
//!               ◀── Appended, or Refused: there is another one ─────
//! ```
//!
//! The first member writes what it orders, one message after the other. Who becomes first reads the log to its end, takes
//! what it lacks, and seals it with a message of its own epoch: what an older one wants to append after that is refused, as it
//! does not know of that message. When it is not known whether a message got there, the log is read again.
//!
//! A message: the writer's epoch, how many bytes at its front belong to an item begun before, and items of the stream,
//! each with its length. A seal has none.

use super::stream::Stream;
use crate::controlet::Settings;
use crate::ids::Epoch;
use crate::mutants::{Fault, planted};
use crate::time::{Micros, Now};
use crate::wire::codec::{Malformed, Reader, Wire, get_bytes, put_bytes, put_varint};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use bytes::Bytes;

/// What is asked of the log of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LogCall {
    /// The messages after this offset (0: from the beginning), in order. Answered by `Read` once or several times; the last has
    /// `end`; or by `Failed`, also after some parts.
    Read {
        /// The last message that is known.
        after: u64,
    },
    /// One more message, if the last one in the log has the offset `after` (0: there was none ever). Answered by `Appended`,
    /// `Refused` or `Failed`.
    Append {
        /// The last message that is known.
        after: u64,
        /// The message.
        payload: Bytes,
    },
    /// Nobody needs the messages up to this offset any more. Not answered; some of them may stay.
    Trim {
        /// The last one.
        up_to: u64,
    },
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LogEvent {
    /// Messages with their offsets, which may have gaps where messages were trimmed.
    Read {
        /// They.
        messages: Vec<(u64, Bytes)>,
        /// There are no more, and the last one ever appended has this offset (also when it is trimmed). If it is below the
        /// offset after which was asked, the log has lost messages.
        end: Option<u64>,
    },
    /// It is in the log.
    Appended {
        /// Its offset.
        offset: u64,
    },
    /// It is not: the last message is another one.
    Refused,
    /// No answer in time, or an error: it may be in the log or not, or get there later.
    Failed,
}

/// Of a message that ends in the middle of an item.
const UNFINISHED: u64 = u64::MAX;
/// So many messages are trimmed at once.
const TRIM_MIN: usize = 64;

/// The log, seen by the first member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Log {
    stage: Stage,
    /// The last message that was read or written.
    offset: u64,
    /// The call under way, and the number of the next one.
    call: Option<u64>,
    next: u64,
    retry_at: Option<Micros>,
    /// The entries up to here are in the log, or at all members.
    logged: u64,
    /// What is being written and not asked for yet, up to which entry; how much of that is the rest of an item.
    rest: Bytes,
    rest_last: u64,
    begun: bool,
    /// An item whose end was not read yet.
    part: Vec<u8>,
    /// The newest epoch that wrote.
    sealed: Epoch,
    /// What was not trimmed yet: messages, and the last entry that each tells of.
    kept: VecDeque<(u64, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// To its end.
    Reading,
    /// The end is known; nobody else is to write after it.
    Sealing,
    /// Ours.
    Open,
    /// A newer one has sealed it.
    Over,
}

impl Log {
    /// To be read. Entries up to `known` are at all members; calls are numbered from the epoch on, so that none has
    /// the number of another replica's.
    pub fn new(epoch: Epoch, known: u64) -> Log {
        Log {
            stage: Stage::Reading,
            offset: 0,
            call: None,
            next: epoch.0 << 32,
            retry_at: None,
            logged: known,
            rest: Bytes::new(),
            rest_last: known,
            begun: false,
            part: Vec::new(),
            sealed: Epoch(0),
            kept: VecDeque::new(),
        }
    }

    /// Another view, with the same first member.
    pub fn on_view(&mut self) {
        if self.stage == Stage::Over {
            self.stage = Stage::Reading;
        }
    }

    /// Whether it was read to the end, and sealed.
    pub fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// Whether somebody else has sealed it, of a newer epoch: a new first member, or another cluster of the same name.
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// The entries up to here are in the log, or at all members.
    pub fn logged(&self) -> u64 {
        let asked = planted(Fault::LoggedEarly) && self.call.is_some();
        if asked { self.rest_last } else { self.logged }
    }

    /// What became of a call; `take` takes an item that was read, and says which entry it was.
    pub fn on_event(
        &mut self,
        now: Now,
        epoch: Epoch,
        (number, event): (u64, LogEvent),
        settings: &Settings,
        take: &mut dyn FnMut(Bytes) -> Option<u64>,
    ) {
        if self.call != Some(number) {
            return;
        }
        match event {
            LogEvent::Read { messages, end } => {
                for (offset, payload) in messages {
                    if offset > self.offset {
                        self.offset = offset;
                        // What cannot be read is none of ours.
                        let _ = self.read(offset, payload, take);
                    }
                }
                if let Some(end) = end {
                    self.call = None;
                    if end < self.offset {
                        // Another log is in its place: it is read, and what not all members have is written again.
                        (self.logged, self.sealed, self.offset) = (0, Epoch(0), 0);
                        self.stage = Stage::Reading;
                        self.kept.clear();
                        self.part.clear();
                        return;
                    }
                    self.offset = end;
                    self.stage = match self.sealed {
                        sealed if sealed > epoch => Stage::Over,
                        sealed if sealed == epoch => Stage::Open,
                        _ => Stage::Sealing,
                    };
                }
                return;
            }
            LogEvent::Appended { offset } => self.on_appended(epoch, offset),
            LogEvent::Refused | LogEvent::Failed => {
                // What was read stays, also half an item: its rest may come after it.
                (self.stage, self.rest, self.begun) = (Stage::Reading, Bytes::new(), false);
                let pause_us = if event == LogEvent::Failed { settings.resend_us } else { 0 };
                self.retry_at = Some(now.steady_us + pause_us);
            }
        }
        self.call = None;
    }

    fn on_appended(&mut self, epoch: Epoch, offset: u64) {
        self.offset = offset;
        // What comes after a message of ours begins anew.
        self.part.clear();
        if self.stage == Stage::Sealing {
            (self.stage, self.sealed) = (Stage::Open, epoch);
            self.reach(self.logged);
            return self.kept.push_back((offset, 0));
        }
        self.kept.push_back((offset, self.rest_last));
        self.begun = !self.rest.is_empty();
        if !self.begun {
            self.logged = self.logged.max(self.rest_last);
        }
    }

    fn read(
        &mut self,
        offset: u64,
        payload: Bytes,
        take: &mut dyn FnMut(Bytes) -> Option<u64>,
    ) -> Result<(), Malformed> {
        let mut reader = Reader::new(payload);
        let (epoch, rest) = (Epoch::decode(&mut reader)?, reader.number()?);
        if epoch < self.sealed {
            // It was sealed before that.
            return Ok(());
        }
        self.sealed = epoch;
        let begun = reader.exactly(rest)?;
        if rest == 0 {
            self.part.clear();
        } else if !self.part.is_empty() {
            self.part.extend_from_slice(&begun);
        }
        self.part.extend_from_slice(&reader.rest());
        let last = self.take_items(take);
        self.logged = self.logged.max(last);
        if last > 0 {
            self.reach(last);
        }
        let tells_of = if self.part.is_empty() { self.logged } else { UNFINISHED };
        self.kept.push_back((offset, tells_of));
        Ok(())
    }

    /// The item that the newest messages are parts of was this one, or never got its end.
    fn reach(&mut self, last: u64) {
        let unfinished = self.kept.iter_mut().rev().take_while(|(_, last)| *last == UNFINISHED);
        unfinished.for_each(|(_, of)| *of = last);
    }

    /// Takes the whole items of what was read; the last entry of them.
    fn take_items(&mut self, take: &mut dyn FnMut(Bytes) -> Option<u64>) -> u64 {
        let all = Bytes::from(core::mem::take(&mut self.part));
        let (mut left, mut last) = (&all[..], 0);
        let mut rest = left;
        while let Some(item) = get_bytes(&mut rest) {
            last = take(all.slice_ref(item)).unwrap_or(last);
            left = rest;
        }
        self.part = left.to_vec();
        last
    }

    /// What to ask for now, if anything: what the stream holds up to `last` is to be written, what all members have up to
    /// `stable` is of no use any more.
    pub fn on_wake(
        &mut self,
        now: Now,
        epoch: Epoch,
        stream: &Stream,
        (last, stable): (u64, u64),
        settings: &Settings,
        calls: &mut Vec<(u64, LogCall)>,
    ) {
        let bytes_max = settings.log_bytes_max;
        self.trim(stable, calls);
        if self.call.is_some() || self.retry_at.is_some_and(|at| at > now.steady_us) {
            return;
        }
        self.retry_at = None;
        let after = self.offset;
        let call = match self.stage {
            Stage::Over => return,
            Stage::Reading => LogCall::Read { after },
            Stage::Sealing => LogCall::Append { after, payload: message(epoch, 0, &[]) },
            Stage::Open => {
                if self.rest.is_empty() {
                    self.gather(stream, last, bytes_max);
                }
                if self.rest.is_empty() {
                    return;
                }
                let bytes = self.rest.split_to(self.rest.len().min(bytes_max));
                let rest = if self.begun { bytes.len() } else { 0 };
                LogCall::Append { after, payload: message(epoch, rest, &bytes) }
            }
        };
        self.call = Some(self.next);
        calls.push((self.next, call));
        self.next += 1;
    }

    /// The next items to write: about as much as a message holds, and no item begins in a second one.
    fn gather(&mut self, stream: &Stream, last: u64, bytes_max: usize) {
        // What is not held any more is at all members.
        self.logged = self.logged.max(stream.first() - 1);
        self.rest_last = self.logged;
        let mut rest = Vec::new();
        while rest.len() < bytes_max && self.rest_last < last {
            let Some(item) = stream.get(self.rest_last + 1) else { break };
            put_bytes(&mut rest, item);
            self.rest_last += 1;
        }
        self.rest = rest.into();
    }

    fn trim(&mut self, stable: u64, calls: &mut Vec<(u64, LogCall)>) {
        let count = self.kept.iter().take_while(|(_, last)| *last <= stable).count();
        if count >= TRIM_MIN
            && let Some((up_to, _)) = self.kept.drain(..count).next_back()
        {
            calls.push((self.next, LogCall::Trim { up_to }));
            self.next += 1;
        }
    }

    /// When it wants to be called.
    pub fn wake_at(&self) -> Option<Micros> {
        self.retry_at
    }
}

fn message(epoch: Epoch, rest: usize, bytes: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(bytes.len() + 16);
    epoch.encode(&mut out);
    put_varint(&mut out, rest as u64);
    out.extend_from_slice(bytes);
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::millis;

    const MAX: usize = 256 << 10;
    const NOW: Now = Now { steady_us: 0, unix_ms: 0 };

    /// What holds the messages, and answers at once.
    #[derive(Default)]
    struct Held(Vec<Bytes>);

    impl Held {
        fn answer(&mut self, call: &LogCall) -> LogEvent {
            match call {
                LogCall::Read { after } => {
                    let messages = (1..).zip(self.0.iter().cloned()).skip(*after as usize).collect();
                    LogEvent::Read { messages, end: Some(self.0.len() as u64) }
                }
                LogCall::Append { after, payload } if *after == self.0.len() as u64 => {
                    self.0.push(payload.clone());
                    LogEvent::Appended { offset: self.0.len() as u64 }
                }
                LogCall::Append { .. } => LogEvent::Refused,
                LogCall::Trim { .. } => unreachable!("nothing is trimmed"),
            }
        }
    }

    /// Items that tell their number in their first byte.
    fn stream(items: &[usize]) -> Stream {
        let mut stream = Stream::starting_at(1);
        for (number, len) in (1..).zip(items) {
            let mut item = alloc::vec![0; *len];
            item[0] = number;
            stream.push_encoded(u64::from(number), item.into());
        }
        stream
    }

    /// One call, and its answer unless it gets lost; what was read.
    fn turn(log: &mut Log, epoch: u64, stream: &Stream, held: Option<&mut Held>) -> Vec<(u64, usize)> {
        let (mut calls, mut taken) = (Vec::new(), Vec::new());
        let late = Now { steady_us: millis(60_000), ..NOW };
        let settings = Settings::default();
        log.on_wake(late, Epoch(epoch), stream, (stream.next() - 1, 0), &settings, &mut calls);
        let mut take = |item: Bytes| {
            taken.push((u64::from(item[0]), item.len()));
            Some(u64::from(item[0]))
        };
        if let Some((number, call)) = calls.pop() {
            let event = held.map_or(LogEvent::Failed, |held| held.answer(&call));
            log.on_event(NOW, Epoch(epoch), (number, event), &settings, &mut take);
        }
        taken
    }

    fn open(epoch: u64, stream: &Stream, held: &mut Held) -> (Log, Vec<(u64, usize)>) {
        let mut log = Log::new(Epoch(epoch), stream.first() - 1);
        let taken = turn(&mut log, epoch, stream, Some(held));
        turn(&mut log, epoch, stream, Some(held));
        assert!(log.is_open());
        (log, taken)
    }

    #[test]
    fn what_is_written_is_read_whole() {
        let (mut held, items) = (Held::default(), [10, 2 * MAX, 30, MAX, 1]);
        let stream = stream(&items);
        let (mut log, _) = open(3, &stream, &mut held);
        for _ in 0..10 {
            turn(&mut log, 3, &stream, Some(&mut held));
        }
        assert_eq!(log.logged(), 5);
        assert!(held.0.iter().all(|message| message.len() < MAX + 64));
        let (next, taken) = open(4, &Stream::starting_at(6), &mut held);
        assert_eq!(taken, (1..).zip(items).collect::<Vec<_>>());
        assert_eq!(next.logged(), 5);
    }

    #[test]
    fn half_an_item_is_not_forgotten() {
        let (mut held, items) = (Held::default(), [10, 2 * MAX, 30]);
        let stream = stream(&items);
        let (mut old, _) = open(3, &stream, &mut held);
        turn(&mut old, 3, &stream, Some(&mut held));
        // The next one has read the front of the second item when the old one writes its end, and refuses the seal.
        let nothing = Stream::starting_at(4);
        let mut new = Log::new(Epoch(4), 0);
        let mut taken = turn(&mut new, 4, &nothing, Some(&mut held));
        for _ in 0..5 {
            turn(&mut old, 3, &stream, Some(&mut held));
        }
        assert_eq!(old.logged(), 3);
        for lost in [false, true, false, false] {
            taken.extend(turn(&mut new, 4, &nothing, Some(&mut held).filter(|_| !lost)));
        }
        assert_eq!((taken, new.is_open()), ((1..).zip(items).collect::<Vec<_>>(), true));
    }

    #[test]
    fn another_log_in_its_place_is_read() {
        let (mut held, stream) = (Held::default(), stream(&[10, 20]));
        let (mut old, _) = open(3, &stream, &mut held);
        for _ in 0..3 {
            turn(&mut old, 3, &stream, Some(&mut held));
        }
        assert_eq!((old.logged(), held.0.len()), (2, 2));
        held.0.clear();
        let (mut new, _) = open(4, &stream, &mut held);
        let (before, more) = (held.0.len(), self::stream(&[10, 20, 30]));
        for _ in 0..6 {
            turn(&mut old, 3, &more, Some(&mut held));
        }
        assert_eq!((held.0.len(), old.is_open()), (before, false), "a newer one has sealed it");
        turn(&mut new, 4, &stream, Some(&mut held));
        assert_eq!(new.logged(), 2);
    }

    #[test]
    fn what_may_be_there_is_looked_for() {
        let (mut held, stream) = (Held::default(), stream(&[10, 20]));
        let (mut log, _) = open(3, &stream, &mut held);
        // It got there, and its answer got lost.
        let mut calls = Vec::new();
        log.on_wake(NOW, Epoch(3), &stream, (1, 0), &Settings::default(), &mut calls);
        let (number, call) = calls.remove(0);
        held.answer(&call);
        log.on_event(NOW, Epoch(3), (number, LogEvent::Failed), &Settings::default(), &mut |_| None);
        assert_eq!((log.logged(), log.is_open()), (0, false));
        assert_eq!(turn(&mut log, 3, &stream, Some(&mut held)), [(1, 10)]);
        turn(&mut log, 3, &stream, Some(&mut held));
        turn(&mut log, 3, &stream, Some(&mut held));
        assert_eq!((log.logged(), log.is_open(), held.0.len()), (2, true, 3), "seal, 1, 2");
    }

    #[test]
    fn an_older_one_writes_nothing_after_the_seal() {
        let (mut held, stream) = (Held::default(), stream(&[10, 20]));
        let (mut old, _) = open(3, &stream, &mut held);
        let (mut new, _) = open(4, &stream, &mut held);
        turn(&mut old, 3, &stream, Some(&mut held));
        assert_eq!(held.0.len(), 2, "refused");
        turn(&mut old, 3, &stream, Some(&mut held));
        turn(&mut old, 3, &stream, Some(&mut held));
        assert_eq!((held.0.len(), old.is_open(), old.logged()), (2, false, 0));
        turn(&mut new, 4, &stream, Some(&mut held));
        assert_eq!(new.logged(), 2);
        // It is the first member again.
        old.on_view();
        assert_eq!(turn(&mut old, 5, &stream, Some(&mut held)), [(1, 10), (2, 20)]);
        turn(&mut old, 5, &stream, Some(&mut held));
        assert!(old.is_open());
    }
}

//! How a new replica is filled while the shard serves.
//!
//! ```text
//!  source: … entry 7, page 1 (read at 7), entry 8, entry 9, page 2 (read at 9), entry 10 …  ──▶ joiner
//! ```
//!
//! The joiner cannot do operations while it lacks records, so it gets what came of them. It is cleared, then gets
//! one stream: the entries, and between them pages of a walk, each where the source's store stood when it was read. A page is never older than the entries before it, and the entries
//! behind it come after it; so writes, deletes and pages cannot undo each other, and no deleted key needs to
//! be remembered. (TPDS 4.2, "recovery mode"; Machi's chain repair shows what goes wrong without the order.)
//!
//! A joiner that comes back with what it had on disk, up to a place that is in the source's history, is not cleared: it drops
//! what is in slots in which something was deleted since, and gets what is in those, and what was written since.

use super::answers::Answers;
use super::follower::{Follower, resend_after};
use super::message::{Ack, Message, Page};
use super::once::{Left, Names};
use super::stream::{Ordered, Stream};
use crate::controlet::{FillStatus, Settings};
use crate::datalet::Cursor;
use crate::ids::{Epoch, NodeId, Position};
use crate::keeper::{Task, Walked};
use crate::mutants::{Fault, planted};
use crate::routing::map::Joining;
use crate::time::{Micros, Now, millis};
use alloc::vec::Vec;
use bytes::Bytes;

/// Behind by fewer bytes of entries than this, a filled replica may become a member.
const NEAR_BYTES: usize = 64 << 10;

/// A page may take so much longer than entries before its receiver is given up: it is large, and links are slow.
const PAGES_PATIENCE: u64 = 5;
/// The same of the first page for who has a copy on disk, while it answers.
const OPENING_PATIENCE: u64 = 300;

/// The side that has the records.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// Who is filled.
    pub joining: Joining,
    /// How far it is with the entries.
    pub follower: Follower,
    /// The entries that it lacks.
    stream: Stream,
    /// It has what there was at this place: it gets what has changed since.
    since: Option<Position>,
    cursor: Cursor,
    /// What clients named and the joiner was not told of.
    left: Left,
    /// The store was asked for a page.
    walking: bool,
    pages: u64,
    /// The page on its way.
    page: Option<Outgoing>,
    done: u64,
    total: u64,
    /// Clients come first: it rests after each page.
    rest_until: Micros,
    /// When the joiner was last heard.
    heard: Micros,
}

/// It rests for so many times what a page took, so that a fill takes a small part of the processors.
const REST_TIMES: u64 = 5;
/// A page that took longer took the time of others.
const REST_MAX_US: Micros = millis(20);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Outgoing {
    /// Who does not take it for too long is given up.
    since: Micros,
    at: Position,
    records: u64,
    message: Message,
    /// When it was last sent; it has a time of its own, as entries go on being ordered meanwhile.
    sent_at: Option<Micros>,
    /// How often it was sent again.
    again: u32,
}

impl Source {
    /// Begins; entries after `applied` are for the joiner. It has what there was at `since`, if anything.
    pub fn new(now: Now, joining: Joining, applied: Position, since: Option<Position>) -> Source {
        Source {
            joining,
            follower: Follower::new(now, joining.member.node, applied.sequence),
            stream: Stream::starting_at(applied.sequence + 1),
            since,
            cursor: Cursor::Start,
            left: Left::All,
            walking: false,
            pages: 0,
            page: None,
            done: 0,
            total: 0,
            rest_until: 0,
            heard: now.steady_us,
        }
    }

    /// The store has an entry.
    pub fn on_ordered(&mut self, now: Now, ordered: &Ordered) {
        if !self.follower.cut {
            self.stream.push(ordered);
            self.follower.on_ordered(now, ordered.entry.position.sequence);
        }
    }

    /// The same, as it came.
    pub fn on_applied(&mut self, now: Now, sequence: u64, encoded: Bytes) {
        if !self.follower.cut {
            self.stream.push_encoded(sequence, encoded);
            self.follower.on_ordered(now, sequence);
        }
    }

    /// The store has read a page.
    pub fn on_walked(
        &mut self,
        now: Now,
        walked: Walked,
        (answers, names, digest): (&Answers, &Names, u64),
        settings: &Settings,
    ) {
        self.walking = false;
        self.cursor = walked.next;
        self.pages += 1;
        self.total = walked.total;
        let answers = (self.pages == 1 && !planted(Fault::FillWithoutAnswers)).then(|| answers.clone());
        // Those of later entries come with their entries.
        let (names, left) = names.part(&self.left, settings.page_bytes_max);
        self.left = left;
        let names = if planted(Fault::NamesNotFilled) { Names::default() } else { names };
        let Walked { records: page, at, deletes, since, .. } = walked;
        self.since = since;
        let (fill, number, records) = (self.joining.since, self.pages, page.len() as u64);
        let since = since.filter(|_| number == 1);
        let message =
            Message::Page(Page { fill, number, at, digest, records: page, answers, names, deletes, since });
        self.page = Some(Outgoing { since: now.steady_us, at, records, message, sent_at: None, again: 0 });
        if self.pages == 1 {
            self.follower = Follower::new(now, self.follower.node, at.sequence);
            self.stream.trim(at.sequence);
        }
    }

    /// The joiner tells how far it is.
    pub fn on_ack(&mut self, now: Now, ack: &Ack) {
        if ack.fill.0 != self.joining.since {
            return;
        }
        self.heard = now.steady_us;
        if ack.fill.1 > 0 {
            self.follower.on_ack(now, ack.applied.sequence, &self.stream);
            self.stream.trim(self.follower.acked);
        }
        if ack.fill.1 == self.pages
            && let Some(page) = self.page.take()
        {
            self.done += page.records;
            self.follower.rewind(now);
            self.rest_until =
                now.steady_us + REST_TIMES * (now.steady_us.saturating_sub(page.since)).min(REST_MAX_US);
        }
    }

    /// Bytes of entries that are kept for the joiner.
    pub fn bytes(&self) -> usize {
        self.stream.bytes()
    }

    fn is_walked(&self) -> bool {
        self.cursor == Cursor::End && self.left == Left::None
    }

    /// Asks the store for the next page, and sends what can be sent; `members` is the stream among them.
    pub fn on_wake(
        &mut self,
        now: Now,
        members: &Stream,
        (stable, applied): (Position, Position),
        settings: &Settings,
        tasks: &mut Vec<Task>,
        sends: &mut Vec<(NodeId, Message)>,
    ) {
        if self.wants_page() && now.steady_us >= self.rest_until {
            self.walking = true;
            let (fill, cursor) = (self.joining.since, self.cursor.clone());
            tasks.push(Task::Walk(fill, cursor, settings.page_bytes_max, self.since));
        }
        // Who has a copy already opens it first, and looks for what was deleted.
        let opens = self.pages == 1 && self.since.is_some();
        let patience = if opens { OPENING_PATIENCE } else { PAGES_PATIENCE };
        let old = |page: &Outgoing| {
            let silent_since = page.since.max(self.heard);
            now.steady_us >= page.since + patience * settings.cut_after_us
                || now.steady_us >= silent_since + PAGES_PATIENCE * settings.cut_after_us
        };
        self.follower.cut |= self.page.as_ref().is_some_and(old);
        if self.resend_at(settings).is_some_and(|at| now.steady_us >= at) {
            self.follower.rewind(now);
            if let Some(page) = &mut self.page {
                (page.sent_at, page.again) = (None, page.again + 1);
            }
        }
        if self.pages == 0 {
            return;
        }
        let to = self.page.as_ref().map_or(applied.sequence, |page| page.at.sequence);
        let stream = if planted(Fault::FillByOperations) { members } else { &self.stream };
        self.follower.send(now, stream, (self.joining.since, (stable, 0), to), settings, sends);
        if let Some(page) = &mut self.page
            && page.sent_at.is_none()
            && self.follower.sent >= page.at.sequence
        {
            page.sent_at = Some(now.steady_us);
            sends.push((self.joining.member.node, page.message.clone()));
        }
    }

    /// When it wants to be called.
    pub fn wake_at(&self, settings: &Settings) -> Option<Micros> {
        let rest = self.wants_page().then_some(self.rest_until);
        self.resend_at(settings).or_else(|| self.follower.wake_at(settings)).into_iter().chain(rest).min()
    }

    /// Whether the store is to be asked for the next page.
    fn wants_page(&self) -> bool {
        self.page.is_none() && !self.walking && !self.is_walked()
    }

    /// When a page that is on its way is to be sent again.
    fn resend_at(&self, settings: &Settings) -> Option<Micros> {
        let page = self.page.as_ref()?;
        Some(page.sent_at? + resend_after(settings, page.again)).filter(|_| !planted(Fault::NoResend))
    }

    /// How far it is. Nobody is ready before the source's view has served: until then, a member of an older
    /// view may still serve, and only those that promised it something know.
    pub fn status(&self, applied: Position, proven: bool) -> FillStatus {
        let walked = self.is_walked() && !self.walking && self.page.is_none() && self.pages > 0;
        let near = self.stream.bytes_between(self.follower.acked, applied.sequence) < NEAR_BYTES;
        FillStatus {
            since: self.joining.since,
            done: self.done,
            total: self.total.max(self.done),
            ready: planted(Fault::JoinEarly) || (walked && near && proven && !self.follower.cut),
        }
    }
}

/// The side that is filled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sink {
    /// Which fill.
    pub since: Epoch,
    /// Pages that the store was asked to take, and that it has.
    pub asked: u64,
    /// See `asked`.
    pub taken: u64,
    /// Where the stream began for it.
    pub start: Position,
}

impl Sink {
    /// Whether this page is the next one, where the stream stands at `submitted`.
    pub fn accepts(&self, page: &Page, submitted: Position) -> bool {
        let fits = page.number == 1 || page.at == submitted;
        let is_next = page.number == self.asked + 1 || planted(Fault::PageAgain);
        page.fill == self.since && is_next && (fits || planted(Fault::PageAgain))
    }
}

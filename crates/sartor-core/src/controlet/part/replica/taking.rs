//! What comes from elsewhere: the stream, and pages of a fill.

use super::Replica;
use crate::controlet::Effects;
use crate::controlet::part::freshness::Freshness;
use crate::controlet::part::marks::Marks;
use crate::controlet::part::message::{Entries, Page};
use crate::controlet::part::once::Names;
use crate::controlet::part::stream::{Item, Ordered, Stream};
use crate::controlet::rules::Topology;
use crate::entry::{Entry, Write, Writes};
use crate::ids::{Epoch, NodeId, Position};
use crate::keeper::{Start, Task};
use crate::mutants::{Fault, planted};
use crate::time::Now;
use crate::wire::codec::Reader;
use alloc::boxed::Box;

impl Replica {
    /// Entries from elsewhere, or operations; the new ones are for the store.
    pub fn on_entries(&mut self, now: Now, from: NodeId, message: Entries, out: &mut Effects) {
        let fill = self.sink.as_ref().map_or(Epoch(0), |sink| sink.since);
        let begun = self.sink.as_ref().is_none_or(|sink| sink.asked > 0);
        if !message.entries.is_empty() {
            // Also for what we have already: the acknowledgement may have been lost.
            self.ack_after_news(now);
        }
        if !self.is_upstream(from) || message.fill != fill || !begun || self.is_lost() {
            return;
        }
        let before = self.submitted;
        let mut reader = Reader::new(message.entries);
        while !reader.is_empty() {
            let start = reader.left().clone();
            let Ok(item) = Item::decode(&mut reader, self.view.shard) else { break };
            let position = item.position();
            let gap = position.sequence > self.submitted.sequence + 1 && !planted(Fault::AcceptGaps);
            if gap || position.epoch > self.view.epoch {
                break; // A gap: who sends sends again what is not acknowledged.
            }
            if position.sequence <= self.submitted.sequence && !planted(Fault::ApplyTwice) {
                continue;
            }
            self.note_epoch(position);
            self.submitted = position;
            self.stream.push_encoded(position.sequence, start.slice(..start.len() - reader.left().len()));
            out.tasks.push(self.take_item(now, item));
        }
        if self.topology() == Topology::Tree && self.submitted > before {
            self.notify_followers(now, self.submitted.sequence);
        }
        self.learn_stable(now, message.stable);
        self.learn_logged(message.logged);
    }

    pub(super) fn take_item(&mut self, now: Now, item: Item) -> Task {
        let notes = self.view.rules.is_strong() && !planted(Fault::MarksForgotten);
        match item {
            Item::Entry(Ordered { entry, answered }) => {
                self.remember(answered, entry.position);
                if notes {
                    self.marks.note(entry.position.sequence, &entry.writes);
                }
                self.surveying.note(now, &entry);
                self.digest.take(&entry);
                Task::Apply(if self.sink.is_some() { without_deletes(entry) } else { entry })
            }
            Item::Operation(replay) => {
                if notes {
                    self.marks.note_op(replay.position.sequence, &replay.request.op);
                }
                Task::Replay(replay)
            }
        }
    }

    pub(super) fn is_upstream(&self, from: NodeId) -> bool {
        let members = &self.view.members;
        let (topology, count) = (self.topology(), members.len());
        let upstream = match self.view.place() {
            // A new primary learns from those who know more than it, until it is level with them.
            Some(0) if !self.is_level() => members.iter().find(|m| m.node == from),
            Some(place) => topology.upstream(place, count).and_then(|before| members.get(before)),
            None => members.get(topology.teller(count)),
        };
        upstream.is_some_and(|member| member.node == from)
    }

    /// The store has an entry that was ordered elsewhere.
    pub fn on_applied(&mut self, now: Now, position: Position) {
        if let Some(source) = &mut self.source {
            match self.stream.get(position.sequence) {
                Some(encoded) => source.on_applied(now, position.sequence, encoded.clone()),
                None => source.follower.cut = true,
            }
        }
        self.digest.on_applied(position);
        self.reach(now, position);
    }

    /// The store has all up to here.
    pub(super) fn reach(&mut self, now: Now, position: Position) {
        self.applied = position;
        self.dirty = true;
        self.freshness.on_applied(position.sequence);
        self.digest.compare(position);
        if self.topology() == Topology::Chain {
            self.notify_followers(now, position.sequence);
        }
        if (self.is_end() && self.knows_all()) || planted(Fault::MiddleCommits) {
            self.stable = position;
            self.trim();
        }
        self.ack_after_news(now);
    }

    /// A page of a fill.
    pub fn on_page(&mut self, page: Page, out: &mut Effects) {
        self.ack_soon(0);
        let Some(sink) = self.sink.as_mut().filter(|sink| sink.accepts(&page, self.submitted)) else {
            return;
        };
        sink.asked += 1;
        let start = (page.number == 1).then_some(page.at);
        let deletes = page.deletes.unwrap_or_default();
        if let Some(start) = start {
            self.submitted = start;
            sink.start = start;
            self.stream = Stream::starting_at(start.sequence + 1);
            // The history begins anew here, perhaps another one.
            self.marks = Marks::new(self.settings.mark_buckets);
            self.freshness = Freshness::default();
            self.digest.restart(page.digest);
            self.answers = page.answers.unwrap_or_default();
            self.names = Names::default();
            self.epochs = alloc::vec![(start.epoch, 0)];
            self.logged = 0;
            (self.gone, self.given_up) = (false, false);
        }
        self.names.merge(page.names);
        let since = page.since;
        let start = start.map(|at| Box::new(Start { at, deletes, since }));
        out.tasks.push(Task::Fill(page.fill, start, page.records));
    }

    /// The store has taken a page.
    pub fn on_filled(&mut self, fill: Epoch) {
        if let Some(sink) = self.sink.as_mut().filter(|sink| sink.since == fill) {
            sink.taken += 1;
            if sink.taken == 1 {
                (self.applied, self.stable) = (sink.start, sink.start);
            }
            self.ack_soon(0);
        }
    }
}

/// A planted fault: who is being filled hears of no deletes.
fn without_deletes(mut entry: Entry) -> Entry {
    if planted(Fault::LoseDeletesOfFill) {
        let stays = |write: &Write<'_>| !matches!(write, Write::Delete { .. });
        entry.writes = Writes::of(entry.writes.iter().filter(stays));
    }
    entry
}

//! What nodes do, computed once for each state of a node and each cause, and what follows from it.

use super::{About, Cause, Chain, PROBE, Probe, Standing, Turn};
use crate::intern::{Alone, Id};
use crate::local::{Frame, SHARD, at};
use bytes::Bytes;
use sartor_core::controlet::part::message::Message;
use sartor_core::controlet::part::stream::Item;
use sartor_core::ids::{Epoch, Position, ShardId};
use sartor_core::node::Event;
use sartor_core::operation::{Action, Consistency, From, Op, Request, SessionId};
use sartor_core::wire::codec::Reader;
use sartor_core::wire::frame::{Header, Kind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

fn op(client: u32, tag: u32) -> Op {
    let letter = if client == 0 { &b"a"[..] } else { b"b" };
    match (client, tag) {
        (PROBE, 0) => Op::Key(Bytes::from_static(b"another"), Action::Get),
        (PROBE, _) | (_, 1) => Op::Key(Bytes::from_static(b"key"), Action::Get),
        _ => Op::Key(Bytes::from_static(b"key"), Action::Append(Bytes::from_static(letter))),
    }
}

impl Chain {
    pub(super) fn standing(&self, node: Id) -> Standing {
        self.standings.get(node, || {
            let local = self.locals.get(node).copy();
            let store = local.store.as_ref().map(|store| (store.position, self.stores.put(store.clone())));
            Standing { map_epoch: local.map_epoch().0, epoch: local.epoch().0, store }
        })
    }

    pub(super) fn about(&self, frame: Id) -> About {
        self.about.get(frame, || {
            let frame = self.frames.get(frame);
            let header = frame.header();
            let message = frame.message();
            let is_ack = matches!(message, Some(Message::Ack(_)));
            let is_news = is_ack || header.kind == Kind::Answers;
            let entries = match message.clone() {
                Some(Message::Entries(entries)) if entries.fill == Epoch(0) => last_of(entries.entries),
                _ => None,
            };
            let is_quick = !matches!(message, Some(Message::Entries(_)));
            About { to: frame.to, epoch: header.epoch.0, is_news, is_ack, entries, is_quick }
        })
    }

    /// What a node does on this event, at this clock; its turn ends by the other clock, or not at all.
    pub(super) fn turn(&self, node: Id, cause: Cause, clock: u8, end: Option<u8>) -> Arc<Turn> {
        let key = (node, cause, clock, end.map_or(0, |end| end + 1));
        self.turns.get(key, || Arc::new(self.compute(node, cause, clock, end)))
    }

    pub(super) fn compute(&self, node: Id, cause: Cause, clock: u8, end: Option<u8>) -> Turn {
        let mut local = self.locals.get(node).copy();
        let event = match cause {
            Cause::Frame(frame) => Event::Frame(self.frames.get(frame).bytes.clone()),
            Cause::Map(coordinator, number) => {
                let maps = &self.coordinators.get(coordinator).maps;
                Event::Map(Arc::new(maps[usize::from(number)].clone()))
            }
            Cause::Ask(client, tag) => Event::Request(Request {
                from: From::Session { session: SessionId { index: client, generation: 0 }, tag },
                shard: SHARD,
                op: op(client, tag),
                floor: Position::ZERO,
                consistency: Consistency::Mode,
                deadline_us: 1 << 50,
            }),
            Cause::Wake => Event::Wake,
        };
        let turn = catch_unwind(AssertUnwindSafe(|| local.turn(at(clock), event, end.map(at))));
        let Ok(given) = turn else { return Turn { node, broken: true, ..Turn::default() } };
        let ids = |frames: Vec<Frame>| frames.into_iter().map(|frame| self.frames.put(frame)).collect();
        let (frames, leases) = (ids(given.frames), ids(given.leases));
        Turn { node: self.locals.put(Alone::new(local)), frames, leases, told: given.told, broken: false }
    }

    /// Whether a frame can have no effect at its receiver any more.
    pub(super) fn is_moot(&self, node: Id, frame: Id, clock: u8) -> bool {
        self.moot.get((node, frame, clock), || {
            let about = self.about(frame);
            if about.epoch < self.standing(node).epoch {
                // Compared with a frame of the same epoch that says nothing: at both the sender is told the map.
                let real = self.frames.get(frame);
                let empty = Header { kind: Kind::Heartbeat, ..real.header() }.frame(|_| {});
                let empty = self.frames.put(Frame { bytes: empty, ..Frame::clone(&real) });
                let nothing = self.turn(node, Cause::Frame(empty), clock, Some(clock));
                return self.turn(node, Cause::Frame(frame), clock, Some(clock)) == nothing;
            }
            let standing = self.standing(node);
            let has = |last| standing.store.is_some_and(|(position, _)| last <= position.sequence);
            if about.epoch > standing.epoch || !(about.is_news || about.entries.is_some_and(has)) {
                return false;
            }
            let with = self.turn(node, Cause::Frame(frame), clock, Some(clock));
            let without = self.turn(node, Cause::Wake, clock, Some(clock));
            let repeated = with.frames.iter().filter(|frame| !without.frames.contains(frame));
            with.node == without.node
                && with.told == without.told
                && without.frames.iter().all(|frame| with.frames.contains(frame))
                && repeated.clone().all(|frame| self.about(*frame).is_ack)
        })
    }

    pub(super) fn probe(&self, node: Id, clock: u8) -> Probe {
        self.probes.get((node, clock), || {
            let ask = |tag: u32| {
                let turn = self.turn(node, Cause::Ask(PROBE, tag), clock, Some(clock));
                let told = turn.told.iter().find(|told| told.session == PROBE && told.tag == tag);
                told.and_then(|told| told.answer)
            };
            Probe { serves: ask(0).map(|_| self.standing(node).epoch), value: ask(1) }
        })
    }
}

fn last_of(entries: Bytes) -> Option<u64> {
    let (mut reader, mut last) = (Reader::new(entries), None);
    while let Ok(item) = Item::decode(&mut reader, ShardId(0)) {
        last = Some(item.position().sequence);
    }
    last
}

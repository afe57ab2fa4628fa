//! Frames of other workers, and the one place where epochs are checked.

use super::letters::Content;
use super::{Actions, HELD_BYTES_MAX, Node, TELL_EVERY_US};
use crate::controlet::Input;
use crate::coordinator::COORDINATOR;
use crate::forward::{Answers, Forwards};
use crate::ids::{Epoch, NodeId, ShardId, WorkerId};
use crate::mutants::{Fault, planted};
use crate::routing::map::{ClusterMap, Member};
use crate::time::Now;
use crate::wire::codec::Wire;
use crate::wire::frame::{Header, Kind};
use alloc::sync::Arc;
use bytes::Bytes;

impl Node {
    pub(super) fn on_frame(&mut self, now: Now, frame: Bytes, out: &mut Actions) {
        let Ok((header, payload)) = Header::parse(frame.clone()) else { return };
        if header.kind == Kind::Welcome && header.from == COORDINATOR {
            if let Some(map) = self.agent.as_mut().and_then(|agent| agent.on_welcome(now, payload)) {
                self.adopt(now, Arc::new(map), out);
            }
            return;
        }
        if header.kind == Kind::Map {
            if let Ok(map) = ClusterMap::from_bytes(payload) {
                self.adopt(now, Arc::new(map), out);
            }
            return;
        }
        if let (Kind::Ping | Kind::Pong, Some(agent)) = (header.kind, &mut self.agent) {
            match header.kind {
                Kind::Ping => agent.on_ping(header.from, &mut out.sends),
                _ => agent.on_pong(now, header.from.node),
            }
            return;
        }
        if !self.is_timely(now, &header, || frame, out) {
            return;
        }
        match header.kind {
            Kind::Controlet => {
                let from = Member { node: header.from.node, incarnation: header.incarnation };
                if self.seat(header.shard).is_some_and(|seat| seat.knows(from)) {
                    self.step_seat(now, header.shard, Input::Peer(from.node, payload), out);
                }
            }
            Kind::Left => {
                let member = Member { node: header.from.node, incarnation: header.incarnation };
                self.step_seat(now, header.shard, Input::Left(member), out);
            }
            Kind::Forward => {
                if let Ok(forwards) = Forwards::from_bytes(payload) {
                    self.on_forwards(now, header, forwards, out);
                }
            }
            Kind::Aside => {
                if let Ok(forwards) = Forwards::from_bytes(payload) {
                    self.on_aside(now, header, forwards, out);
                }
            }
            Kind::Answers => {
                if let Ok(answers) = Answers::from_bytes(payload) {
                    self.on_answers(now, header.shard, answers, out);
                }
            }
            Kind::Heartbeat | Kind::Welcome | Kind::Map | Kind::Ping | Kind::Pong => {}
        }
    }

    /// Whether something comes from the shard's epoch. What comes from a newer one is kept until the map comes; who speaks
    /// from an older one gets the map.
    pub(super) fn is_timely(
        &mut self,
        now: Now,
        header: &Header,
        frame: impl FnOnce() -> Bytes,
        out: &mut Actions,
    ) -> bool {
        let epoch = self.map.as_ref().and_then(|map| map.shard(header.shard)).map_or(Epoch(0), |s| s.epoch);
        let skips =
            (planted(Fault::SkipEpochCheck) || planted(Fault::SealIgnored)) && header.kind == Kind::Controlet;
        if header.epoch > epoch {
            self.hold(frame());
        } else if header.epoch < epoch && !skips {
            self.tell(now, header.from.node, out);
        }
        header.epoch == epoch || (header.epoch < epoch && skips)
    }

    /// Keeps a frame of an epoch that our map does not know yet; the oldest go when there are too many.
    pub(super) fn hold(&mut self, frame: Bytes) {
        self.held_bytes += frame.len();
        self.held.push_back(frame);
        while self.held_bytes > HELD_BYTES_MAX {
            self.held_bytes -= self.held.pop_front().map_or(0, |frame| frame.len());
        }
    }

    /// A node speaks from an older epoch: it may be cut off from the coordinator, so it gets the map from here.
    pub(super) fn tell(&mut self, now: Now, node: NodeId, out: &mut Actions) {
        let Some(map) = self.map.clone() else { return };
        let told = self.told.entry(node).or_insert(0);
        if now.steady_us >= *told {
            *told = now.steady_us + TELL_EVERY_US;
            let header = self.header(Kind::Map, ShardId(0), map.epoch);
            out.sends.push((WorkerId { node, worker: 0 }, header.frame(|frame| map.encode(frame))));
        }
    }

    pub(super) fn on_forwards(&mut self, now: Now, header: Header, forwards: Forwards, out: &mut Actions) {
        let (shard, settings) = (header.shard, self.settings.forward);
        let Some(Some(seat)) = self.seats.get_mut(usize::from(shard.0)) else { return };
        if !seat.is_head() {
            return;
        }
        for request in seat.accept(now, (header.from, header.incarnation), forwards, settings) {
            self.step_seat(now, shard, Input::Request(request), out);
        }
    }

    pub(super) fn on_answers(&mut self, now: Now, shard: ShardId, answers: Answers, out: &mut Actions) {
        if answers.incarnation == self.incarnation {
            for answer in answers.answers {
                self.settle(now, shard, answer.sequence, answer.outcome, answer.position, out);
            }
        }
    }

    pub(super) fn send_answers(&mut self, now: Now, shard: ShardId, out: &mut Actions) {
        let Some(Some(seat)) = self.seats.get_mut(usize::from(shard.0)) else { return };
        for (origin, answers) in seat.take_answers() {
            self.post(now, origin, (Kind::Answers, shard), Content::Answers(answers), out);
        }
    }
}

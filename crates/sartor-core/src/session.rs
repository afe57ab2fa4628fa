//! What a client's connection may see next: its own writes, and never the past again.
//!
//! A connection has a lane to each shard. Its requests there either go *near*, to the replica on
//! this worker, or *away*, to the shard's head, in one stream that keeps their order. A lane changes
//! its way only while nothing is on it, so that no request overtakes another of the same connection;
//! until then the next ones are parked behind.

use crate::ids::{Position, ShardId};
use crate::operation::{Op, Request, SessionId};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Where a request goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// To the replica on this worker.
    #[default]
    Near,
    /// To the shard's head on another worker.
    Away,
}

/// All connections of a worker.
#[derive(Default)]
pub struct Sessions {
    sessions: Vec<Session>,
}

#[derive(Default)]
struct Session {
    generation: u32,
    lanes: Vec<Lane>,
}

/// One connection's dealings with one shard.
#[derive(Default)]
pub struct Lane {
    /// The newest place in the shard's history that an answer told of.
    seen: Position,
    way: Way,
    outstanding: u32,
    parked: VecDeque<Request>,
}

impl Sessions {
    /// The lane of a connection; a new user of an old place starts with fresh ones.
    pub fn lane(&mut self, session: SessionId, shard: ShardId) -> &mut Lane {
        let (index, shard) = (session.index as usize, usize::from(shard.0));
        if index >= self.sessions.len() {
            self.sessions.resize_with(index + 1, Session::default);
        }
        let entry = &mut self.sessions[index];
        if entry.generation != session.generation {
            *entry = Session { generation: session.generation, lanes: Vec::new() };
        }
        if shard >= entry.lanes.len() {
            entry.lanes.resize_with(shard + 1, Lane::default);
        }
        &mut entry.lanes[shard]
    }

    /// Whether the connection is still the one in this place.
    pub fn is_open(&self, session: SessionId) -> bool {
        self.sessions.get(session.index as usize).is_some_and(|entry| entry.generation == session.generation)
    }

    /// The connection is gone; what is on its way will find nobody.
    pub fn close(&mut self, session: SessionId) {
        if self.is_open(session) {
            let entry = &mut self.sessions[session.index as usize];
            *entry = Session { generation: session.generation.wrapping_add(1), lanes: Vec::new() };
        }
    }
}

impl Lane {
    /// Lets a request through, on the way returned, or parks it. `near` says whether the replica on
    /// this worker takes it; it is asked with the request's floor filled in.
    pub fn admit(
        &mut self,
        mut request: Request,
        near: impl FnOnce(&Request) -> bool,
    ) -> Option<(Way, Request)> {
        // WAIT asks about writes, so it needs their answers first.
        let must_be_free = matches!(request.op, Op::Wait { .. });
        let keeps_away = self.outstanding > 0 && self.way == Way::Away;
        request.floor = self.seen;
        let way = if !keeps_away && near(&request) { Way::Near } else { Way::Away };
        let turns = self.outstanding > 0 && (way != self.way || must_be_free);
        if turns || !self.parked.is_empty() {
            self.parked.push_back(request);
            return None;
        }
        self.way = way;
        self.outstanding += 1;
        Some((way, request))
    }

    /// An answer came that told of this place. True if parked requests can be admitted now.
    pub fn settle(&mut self, position: Position) -> bool {
        self.outstanding -= 1;
        self.seen = self.seen.max(position);
        self.outstanding == 0 && !self.parked.is_empty()
    }

    /// The parked requests in order, to be admitted again.
    pub fn take_parked(&mut self) -> VecDeque<Request> {
        core::mem::take(&mut self.parked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Epoch;
    use crate::operation::{Action, Consistency, From, Set};
    use bytes::Bytes;

    const SESSION: SessionId = SessionId { index: 3, generation: 1 };

    fn request(tag: u32, action: Action) -> Request {
        Request {
            from: From::Session { session: SESSION, tag },
            shard: ShardId(0),
            op: Op::Key(Bytes::from_static(b"k"), action),
            floor: Position::ZERO,
            consistency: Consistency::Mode,
            deadline_us: 0,
        }
    }

    fn at(sequence: u64) -> Position {
        Position { epoch: Epoch(1), sequence }
    }

    #[test]
    fn a_lane_turns_only_when_it_is_free() {
        let mut lane = Lane::default();
        let reads_near = |request: &Request| !request.op.is_write();
        let way = |admitted: Option<(Way, Request)>| admitted.map(|(way, _)| way);
        assert_eq!(way(lane.admit(request(0, Action::Get), reads_near)), Some(Way::Near));
        assert_eq!(way(lane.admit(request(1, Action::Set(Set::default())), reads_near)), None);
        assert_eq!(way(lane.admit(request(2, Action::Get), reads_near)), None, "no overtaking");
        assert!(lane.settle(at(5)));
        let parked = lane.take_parked();
        let ways: Vec<_> = parked.into_iter().map(|r| way(lane.admit(r, reads_near))).collect();
        assert_eq!(ways, [Some(Way::Away), Some(Way::Away)], "the read follows the write");
        assert!(!lane.settle(at(6)));
        assert!(!lane.settle(at(6)));
        let (way, read) = lane.admit(request(3, Action::Get), reads_near).unwrap();
        assert_eq!((way, read.floor), (Way::Near, at(6)));
    }

    #[test]
    fn a_new_user_of_a_place_starts_afresh() {
        let mut sessions = Sessions::default();
        let near = |_: &Request| true;
        sessions.lane(SESSION, ShardId(0)).admit(request(0, Action::Get), near);
        sessions.lane(SESSION, ShardId(0)).settle(at(9));
        sessions.close(SESSION);
        assert!(!sessions.is_open(SESSION));
        let next = SessionId { generation: 2, ..SESSION };
        let (_, read) = sessions.lane(next, ShardId(0)).admit(request(0, Action::Get), near).unwrap();
        assert_eq!(read.floor, Position::ZERO);
    }
}

//! What a client's connection may see next: its own writes, and never the past again.
//!
//! A connection has a lane to each shard. Its requests there either go *near*, to the replica on
//! this worker, or *away*, to the shard's head, in one stream that keeps their order. A lane changes
//! its way only while nothing is on it, so that no request overtakes another of the same connection;
//! until then the next ones are parked behind. Only a near read that turns out to be the head's
//! turns the lane at once, and takes the near reads behind it along. What goes *aside*, to a replica that can do what the
//! head's store cannot, goes alone: nothing else of the connection is on its way to that shard then.
//!
//! Where a shard is divided, what is on its way there may come back as the other part's. So a connection's lane to the part opens
//! when all that it had on its way to the whole is answered or came back, in the order in which it was sent; and until then
//! nothing more goes to the whole.

use crate::ids::{Position, ShardId};
use crate::mutants::{Fault, planted};
use crate::operation::{From, Op, Request, SessionId};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Where a request goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Way {
    /// To the replica on this worker.
    #[default]
    Near,
    /// To the shard's head on another worker.
    Away,
    /// To a replica that can do what the head's store cannot.
    Aside,
}

/// All connections of a worker.
#[derive(Clone, Default, Hash)]
pub struct Sessions {
    sessions: Vec<Session>,
}

#[derive(Clone, Default, Hash)]
struct Session {
    generation: u32,
    lanes: Vec<Lane>,
}

/// What a division means for connections.
#[derive(Debug, Default)]
pub struct Divided {
    /// Those that wait for what they have on its way.
    pub waiting: Vec<SessionId>,
    /// What was not sent yet, and is about both parts.
    pub refused: Vec<Request>,
}

/// One connection's dealings with one shard.
#[derive(Clone, Default, Hash)]
pub struct Lane {
    /// The newest place in the shard's history that an answer told of.
    seen: Position,
    /// Requests on their way near, and away; both only while the lane turns.
    near: u32,
    away: u32,
    aside: u32,
    parked: VecDeque<Request>,
    division: Option<Box<Division>>,
}

/// What a lane waits for where shards are divided.
#[derive(Clone, Default, Hash)]
struct Division {
    /// Parts whose lanes wait until nothing is on this one.
    parts: Vec<ShardId>,
    /// Something is on the lane to the whole yet.
    behind: bool,
    /// What came back from there: it goes first.
    early: Vec<Request>,
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

    /// A shard was divided: what was not sent yet and is for the part goes to its lanes, and where something is on its way, both
    /// lanes wait for that.
    pub fn divide(
        &mut self,
        whole: ShardId,
        part: ShardId,
        is_for_part: impl Fn(&Request) -> bool,
    ) -> Divided {
        let (from, to) = (usize::from(whole.0), usize::from(part.0));
        let mut divided = Divided::default();
        for (index, entry) in (0..).zip(&mut self.sessions) {
            let Some(lane) = entry.lanes.get_mut(from).filter(|lane| !lane.is_free()) else { continue };
            let waits = lane.is_busy() && !planted(Fault::MovedOvertakes);
            if waits {
                lane.division.get_or_insert_default().parts.push(part);
            }
            let parked = core::mem::take(&mut lane.parked);
            let (refused, parked): (VecDeque<Request>, _) = parked.into_iter().partition(|r| r.op.clears());
            divided.refused.extend(refused);
            let parked: VecDeque<Request> = parked;
            let (moved, stays) = parked.into_iter().partition(&is_for_part);
            lane.parked = stays;
            if to >= entry.lanes.len() {
                entry.lanes.resize_with(to + 1, Lane::default);
            }
            let lane = &mut entry.lanes[to];
            let moved: VecDeque<Request> = moved;
            lane.parked.extend(moved.into_iter().map(|request| Request { shard: part, ..request }));
            if waits {
                lane.division.get_or_insert_default().behind = true;
                divided.waiting.push(SessionId { index, generation: entry.generation });
            }
        }
        divided
    }

    /// Connections that have something parked on their lane to a shard that nothing holds up.
    pub fn stranded(&self, shard: ShardId) -> Vec<SessionId> {
        let place = usize::from(shard.0);
        let stranded = |entry: &Session| {
            let lane = entry.lanes.get(place);
            lane.is_some_and(|lane| !lane.is_busy() && !lane.parked.is_empty())
        };
        let found = self.sessions.iter().zip(0..).filter(|(entry, _)| stranded(entry));
        found.map(|(entry, index)| SessionId { index, generation: entry.generation }).collect()
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
    /// Whether something is on its way, or to come from another lane.
    fn is_busy(&self) -> bool {
        let behind = self.division.as_ref().is_some_and(|division| division.behind);
        self.near > 0 || self.away > 0 || self.aside > 0 || behind
    }

    fn is_free(&self) -> bool {
        !self.is_busy() && self.parked.is_empty()
    }

    /// A request of another lane is this one's: kept, where that one is waited for.
    pub fn take_early(&mut self, request: Request) -> Option<Request> {
        match self.division.as_mut().filter(|division| division.behind) {
            Some(division) => {
                division.early.push(request);
                None
            }
            None => Some(request),
        }
    }

    /// Takes out what waits for another lane for too long; none where nothing waits for one.
    pub fn take_late(&mut self, now_us: u64) -> Option<Vec<Request>> {
        let division = self.division.as_mut().filter(|division| division.behind)?;
        let is_late = |request: &Request| request.deadline_us <= now_us;
        let (mut late, early) = core::mem::take(&mut division.early).into_iter().partition(is_late);
        division.early = early;
        let (parked, on_time): (VecDeque<Request>, _) =
            core::mem::take(&mut self.parked).into_iter().partition(is_late);
        self.parked = on_time;
        Vec::extend(&mut late, parked);
        Some(late)
    }

    /// Parts that were divided off while what is on this lane was on its way.
    pub fn parts(&self) -> &[ShardId] {
        self.division.as_ref().map_or(&[], |division| &division.parts)
    }

    /// Nothing is on this lane any more: the lanes that waited for it.
    pub fn end_division(&mut self) -> Vec<ShardId> {
        if self.is_busy() {
            return Vec::new();
        }
        self.division.take().map_or_else(Vec::new, |division| division.parts)
    }

    /// What this lane waited for is over: what came back goes first, in the order in which it was sent.
    pub fn come_forward(&mut self) {
        let Some(division) = &mut self.division else { return };
        division.behind = false;
        self.parked.extend(core::mem::take(&mut division.early));
        self.parked.make_contiguous().sort_by_key(|request| match request.from {
            From::Session { tag, .. } => tag,
            _ => 0,
        });
    }

    /// Lets a request through, on the way returned, or parks it. `wanted` says which way it would go; near if the replica on
    /// this worker takes it. It is asked with the request's floor filled in.
    pub fn admit(
        &mut self,
        mut request: Request,
        wanted: impl FnOnce(&Request) -> Way,
    ) -> Option<(Way, Request)> {
        // WAIT asks about writes, so it needs their answers first.
        let must_be_free = matches!(request.op, Op::Wait { .. });
        request.floor = self.seen.max(request.floor);
        let way = match wanted(&request) {
            Way::Near if self.away > 0 => Way::Away,
            way => way,
        };
        let waits = match way {
            Way::Near => must_be_free && self.near > 0,
            Way::Away => (self.near > 0 && !planted(Fault::Overtake)) || (must_be_free && self.away > 0),
            Way::Aside => (self.near > 0 || self.away > 0) && !planted(Fault::AsideOvertakes),
        };
        if waits || self.aside > 0 || !self.parked.is_empty() || self.division.is_some() {
            self.parked.push_back(request);
            return None;
        }
        *self.count(way) += 1;
        Some((way, request))
    }

    fn count(&mut self, way: Way) -> &mut u32 {
        match way {
            Way::Near => &mut self.near,
            Way::Away => &mut self.away,
            Way::Aside => &mut self.aside,
        }
    }

    /// An answer came that way and told of this place. True if parked requests may go on.
    pub fn settle(&mut self, way: Way, position: Position) -> bool {
        *self.count(way) -= 1;
        self.seen = self.seen.max(position);
        self.may_go_on()
    }

    fn may_go_on(&self) -> bool {
        match self.division {
            None => self.near == 0 && self.aside == 0 && !self.parked.is_empty(),
            Some(_) => !self.is_busy(),
        }
    }

    /// The newest place that an answer told of.
    pub fn seen(&self) -> Position {
        self.seen
    }

    /// The connection has seen this place in another way.
    pub fn note(&mut self, position: Position) {
        self.seen = self.seen.max(position);
    }

    /// A request goes another way instead of being answered. True if parked requests may go on.
    pub fn turn(&mut self, from: Way, to: Way) -> bool {
        *self.count(from) -= 1;
        *self.count(to) += 1;
        self.may_go_on()
    }

    /// Whether a near read's answer from this place comes too late: an earlier one went away, and will
    /// tell, or has told, of a newer place.
    pub fn must_turn(&self, position: Position) -> bool {
        (self.away > 0 || position < self.seen) && !planted(Fault::ForgetFloor)
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
    use crate::operation::{Action, Consistency, Set};
    use alloc::vec;
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
        let reads_near = |request: &Request| if request.op.is_write() { Way::Away } else { Way::Near };
        let way = |admitted: Option<(Way, Request)>| admitted.map(|(way, _)| way);
        assert_eq!(way(lane.admit(request(0, Action::Get), reads_near)), Some(Way::Near));
        assert_eq!(way(lane.admit(request(1, Action::Set(Set::default())), reads_near)), None);
        assert_eq!(way(lane.admit(request(2, Action::Get), reads_near)), None, "no overtaking");
        assert!(lane.settle(Way::Near, at(5)));
        let parked = lane.take_parked();
        let ways: Vec<_> = parked.into_iter().map(|r| way(lane.admit(r, reads_near))).collect();
        assert_eq!(ways, [Some(Way::Away), Some(Way::Away)], "the read follows the write");
        assert!(!lane.settle(Way::Away, at(6)));
        assert!(!lane.settle(Way::Away, at(6)));
        let (way, read) = lane.admit(request(3, Action::Get), reads_near).unwrap();
        assert_eq!((way, read.floor), (Way::Near, at(6)));
    }

    #[test]
    fn a_read_that_turns_takes_the_others_along() {
        let mut lane = Lane::default();
        let all_near = |_: &Request| Way::Near;
        lane.admit(request(0, Action::Get), all_near);
        lane.admit(request(1, Action::Get), all_near);
        assert!(!lane.turn(Way::Near, Way::Away), "nothing is parked");
        assert!(lane.must_turn(at(9)));
        assert!(lane.admit(request(2, Action::Get), all_near).is_none(), "not before the second read");
        assert!(lane.turn(Way::Near, Way::Away));
        let parked = lane.take_parked();
        let ways: Vec<_> =
            parked.into_iter().filter_map(|r| lane.admit(r, all_near)).map(|(way, _)| way).collect();
        assert_eq!(ways, [Way::Away]);
        assert!(!lane.settle(Way::Away, at(1)));
    }

    #[test]
    fn what_goes_aside_goes_alone() {
        let mut lane = Lane::default();
        let wanted = |request: &Request| match &request.op {
            Op::Len => Way::Aside,
            op if op.is_write() => Way::Away,
            _ => Way::Near,
        };
        let aside = |tag| Request { op: Op::Len, ..request(tag, Action::Get) };
        let write = |tag| request(tag, Action::Set(Set::default()));
        let ways = |lane: &mut Lane, requests: Vec<Request>| {
            let admitted = requests.into_iter().filter_map(|request| lane.admit(request, wanted));
            admitted.map(|(way, _)| way).collect::<Vec<_>>()
        };
        assert_eq!(ways(&mut lane, vec![write(0), aside(1), write(2)]), [Way::Away]);
        assert!(lane.settle(Way::Away, at(1)));
        let parked = lane.take_parked().into();
        assert_eq!(ways(&mut lane, parked), [Way::Aside], "the write waits for it");
        assert_eq!(ways(&mut lane, vec![request(3, Action::Get), aside(4)]), []);
        assert!(lane.settle(Way::Aside, at(2)));
        let parked = lane.take_parked().into();
        assert_eq!(ways(&mut lane, parked), [Way::Away, Way::Away], "the last one waits");
        assert!(lane.settle(Way::Away, at(3)));
        assert!(lane.settle(Way::Away, at(4)));
        let parked = lane.take_parked().into();
        assert_eq!(ways(&mut lane, parked), [Way::Aside]);
    }

    #[test]
    fn what_comes_back_from_a_divided_shard_goes_first_and_in_its_order() {
        let (mut sessions, away) = (Sessions::default(), |_: &Request| Way::Away);
        let (whole, part) = (ShardId(0), ShardId(5));
        for tag in [0, 1] {
            assert!(sessions.lane(SESSION, whole).admit(request(tag, Action::Get), away).is_some());
        }
        assert_eq!(sessions.divide(whole, part, |_| true).waiting, [SESSION]);
        // Later ones wait, for either shard.
        for shard in [part, whole] {
            let later = Request { shard, ..request(9, Action::Get) };
            assert!(sessions.lane(SESSION, shard).admit(later, away).is_none());
        }
        // They come back the other way round.
        for (tag, is_last) in [(1, false), (0, true)] {
            assert_eq!(sessions.lane(SESSION, whole).settle(Way::Away, Position::ZERO), is_last);
            assert!(sessions.lane(SESSION, part).take_early(request(tag, Action::Get)).is_none());
        }
        assert_eq!(sessions.lane(SESSION, whole).end_division(), [part]);
        sessions.lane(SESSION, part).come_forward();
        let tags = |requests: VecDeque<Request>| {
            let tag = |request: Request| match request.from {
                From::Session { tag, .. } => tag,
                _ => u32::MAX,
            };
            requests.into_iter().map(tag).collect::<Vec<_>>()
        };
        assert!(sessions.lane(SESSION, part).end_division().is_empty());
        assert_eq!(tags(sessions.lane(SESSION, part).take_parked()), [0, 1, 9]);
        assert_eq!(tags(sessions.lane(SESSION, whole).take_parked()), [9]);
        assert!(sessions.lane(SESSION, part).admit(request(10, Action::Get), away).is_some());
    }

    #[test]
    fn a_new_user_of_a_place_starts_afresh() {
        let mut sessions = Sessions::default();
        let near = |_: &Request| Way::Near;
        sessions.lane(SESSION, ShardId(0)).admit(request(0, Action::Get), near);
        sessions.lane(SESSION, ShardId(0)).settle(Way::Near, at(9));
        sessions.close(SESSION);
        assert!(!sessions.is_open(SESSION));
        let next = SessionId { generation: 2, ..SESSION };
        let (_, read) = sessions.lane(next, ShardId(0)).admit(request(0, Action::Get), near).unwrap();
        assert_eq!(read.floor, Position::ZERO);
    }
}

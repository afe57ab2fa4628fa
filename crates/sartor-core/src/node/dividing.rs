//! Shards that are divided: replicas here that make their upper part, and requests that find themselves on the other side.
//! (`coordinator/split.rs` says how a division goes.)

use super::requests::given_up;
use super::{Actions, Node, Opened, Reply};
use crate::controlet::Status;
use crate::coordinator::ReplicaReport;
use crate::division::{Division, Steps};
use crate::ids::{Position, ShardId};
use crate::keeper::{Done, Task};
use crate::mutants::{Fault, planted};
use crate::operation::{Failure, FailureKind, From, Op, Outcome, Request};
use crate::routing::map::{ClusterMap, Shard};
use crate::seat::Seat;
use crate::session::Way;
use crate::time::{Micros, Now, millis};
use alloc::vec::Vec;
use bytes::Bytes;

/// So long after its store failed a part is made again.
const RETRY_US: Micros = millis(1000);
/// Clients come first: it rests for so long after each page that is copied, and each lot of records that is removed.
const REST_US: Micros = millis(4);

/// Shards that take requests which others took by an older map: of which one each, and it.
fn new_parts<'a>(old: &ClusterMap, map: &'a ClusterMap) -> Vec<(ShardId, &'a Shard)> {
    let divided = |shard: &&Shard| {
        let known = old.table(shard.table).map(|table| table.divided);
        known.is_some() && known != map.table(shard.table).map(|table| table.divided)
    };
    let is_new = |shard: &&Shard| shard.is_apart() && !old.shard(shard.id).is_some_and(Shard::is_apart);
    let whole = |shard: &Shard| {
        let below = old.takers_of(shard.table).filter(|other| other.lower <= shard.lower);
        below.max_by(|one, other| one.lower.cmp(&other.lower)).map(|whole| whole.id)
    };
    let parts = map.shards.iter().filter(divided).filter(is_new);
    parts.filter_map(|shard| Some((whole(shard)?, shard))).collect()
}

/// What to tell of a request that is about several parts of what was one shard when it was sent.
fn divided_meanwhile() -> Outcome {
    let text = "it is about several shards now, as the table was divided; nothing was done, try again";
    Failure::outcome(FailureKind::Retry, text)
}

impl Node {
    /// Divisions begin, get further or end, as the newer map says.
    pub(super) fn follow_divisions(&mut self, now: Now, old: Option<&ClusterMap>, out: &mut Actions) {
        let Some(map) = self.map.clone() else { return };
        self.ends = map.ends();
        let open = |shard: &&Shard| shard.part_of.is_some() && !shard.is_apart();
        self.parts = map.shards.iter().filter(open).map(|shard| (shard.id, map.taker_of(shard.id))).collect();
        for part in old.into_iter().flat_map(|old| new_parts(old, &map)) {
            self.divide_lanes(part.0, part.1, out);
        }
        let makes = |seat: &Seat| seat.division.is_some();
        let divides = map.shards.iter().any(|shard| shard.part_of.is_some());
        // Most maps have nothing to do with it, and some have many shards.
        if divides || self.seats.iter().flatten().any(makes) {
            for place in 0..self.seats.len() {
                self.follow_division(now, &map, ShardId(place as u16), out);
            }
        }
        if map
            .tables
            .iter()
            .any(|table| Some(table.divided) != old.and_then(|old| old.table(table.id)).map(|t| t.divided))
        {
            for shard in &map.shards {
                self.leave_rest(&map, shard, 0, out);
            }
        }
    }

    /// What connections have on their way to a shard may be for the part.
    fn divide_lanes(&mut self, whole: ShardId, part: &Shard, out: &mut Actions) {
        let end = self.ends.get(usize::from(part.id.0)).and_then(Option::as_ref);
        let divided = self.sessions.divide(whole, part.id, |request| {
            let (mut some, mut all) = (false, true);
            let has = |key: &[u8]| key >= &part.lower[..] && end.is_none_or(|end| key < end);
            request.op.each_key(&mut |key| (some, all) = (true, all && has(key)));
            some && all
        });
        self.behind.extend(divided.waiting.into_iter().map(|session| (session, part.id)));
        divided.refused.iter().for_each(|request| self.refuse_parked(request, divided_meanwhile(), out));
        let stranded = self.sessions.stranded(part.id).into_iter();
        self.freed.extend(stranded.map(|session| (session, part.id)));
    }

    pub(super) fn follow_division(&mut self, now: Now, map: &ClusterMap, whole: ShardId, out: &mut Actions) {
        let Some(Some(seat)) = self.seats.get_mut(usize::from(whole.0)) else { return };
        let part = map.part_of(whole).filter(|_| seat.is_member());
        let known = seat.division.as_ref().map(|division| division.part);
        if known.is_some() && known != part.map(|part| part.id) {
            self.end_division(now, whole, out);
        }
        let Some(part) = part else { return };
        let closed = part.part_of.filter(|part| part.closed).map(|_| part.born);
        let Some(Some(seat)) = self.seats.get_mut(usize::from(whole.0)) else { return };
        let keeps = closed.map(|since| (part.lower.clone(), since));
        if let Some((start, since)) = keeps.clone().filter(|_| seat.kept != keeps) {
            seat.kept = keeps;
            seat.owe(1);
            out.tasks.push((whole, Task::Keep(start, since)));
        }
        if let Some(division) = &mut seat.division {
            closed.into_iter().for_each(|epoch| division.close(epoch));
        } else if !self.parting.contains_key(&part.id) {
            let page_bytes_max = self.settings.controlet.page_bytes_max;
            let mut steps = Steps::default();
            let division = Division::begin(part.id, part.lower.clone(), closed, page_bytes_max, &mut steps);
            seat.division = Some(division);
            let (born, start) = (part.born, part.beginning());
            out.opened.push(Opened { shard: part.id, born, start, kept: false, whole: false });
            self.take_steps(whole, steps, out);
        }
    }

    fn take_steps(&mut self, whole: ShardId, steps: Steps, out: &mut Actions) {
        let Some(Some(seat)) = self.seats.get_mut(usize::from(whole.0)) else { return };
        let Some(division) = &seat.division else { return };
        out.tasks.extend(steps.part.into_iter().map(|task| (division.part, task)));
        seat.owe(steps.whole.len());
        out.tasks.extend(steps.whole.into_iter().map(|task| (whole, task)));
    }

    /// The store of a whole has done something: whether that is all that it was asked for.
    pub(super) fn on_whole_stored(
        &mut self,
        now: Now,
        whole: ShardId,
        done: Done,
        out: &mut Actions,
    ) -> Option<Done> {
        let Some(Some(seat)) = self.seats.get_mut(usize::from(whole.0)) else { return Some(done) };
        let mut steps = Steps::default();
        match done {
            Done::Followed => {
                seat.owe_less();
                self.clear_seat(now, whole, out);
                None
            }
            Done::Left(more) => {
                seat.owe_less();
                if more {
                    seat.leaves = true;
                    self.rests.push((now.steady_us + REST_US, whole));
                }
                self.clear_seat(now, whole, out);
                None
            }
            Done::Parted(walked) => {
                seat.owe_less();
                if seat.stale_pages > 0 {
                    seat.stale_pages -= 1;
                } else if let Some(division) = &mut seat.division {
                    division.on_page(walked, &mut steps);
                }
                self.take_steps(whole, steps, out);
                self.clear_seat(now, whole, out);
                None
            }
            done => {
                if let Some(division) = &mut seat.division {
                    division.on_whole(&done, &mut steps);
                    self.take_steps(whole, steps, out);
                }
                Some(done)
            }
        }
    }

    /// The store of a part has done something, before there is a replica.
    pub(super) fn on_part_stored(&mut self, now: Now, part: ShardId, done: &Done, out: &mut Actions) {
        if let Some(owed) = self.parting.get_mut(&part) {
            *owed = owed.saturating_sub(1);
            if *owed == 0 {
                self.drop_part(now, part, out);
            }
            return;
        }
        let Some(whole) = self.whole_of(part) else { return };
        let mut steps = Steps::default();
        if let Some(Some(Seat { division: Some(division), .. })) = self.seats.get_mut(usize::from(whole.0)) {
            division.on_part(done, &mut steps);
            if division.is_broken() {
                self.retry_at = Some(now.steady_us + RETRY_US);
            } else if division.rests() {
                self.rests.push((now.steady_us + REST_US, whole));
            }
        }
        self.take_steps(whole, steps, out);
    }

    /// Copying and removing go on, a step at a time.
    pub(super) fn go_on_dividing(&mut self, now: Now, out: &mut Actions) {
        let due = self.rests.extract_if(.., |(at, _)| *at <= now.steady_us);
        for (_, whole) in due.collect::<Vec<_>>() {
            let Some(Some(seat)) = self.seats.get_mut(usize::from(whole.0)) else { continue };
            let mut steps = Steps::default();
            if let Some(division) = &mut seat.division {
                division.go_on(&mut steps);
            }
            if let Some(end) = seat.left.clone().filter(|_| core::mem::take(&mut seat.leaves)) {
                self.leave(whole, &end, 0, out);
            }
            self.take_steps(whole, steps, out);
        }
    }

    /// What waits for a lane to the whole for too long is given up: it was not sent.
    pub(super) fn refuse_the_behind(&mut self, now: Now, out: &mut Actions) {
        for (session, part) in core::mem::take(&mut self.behind) {
            if !self.sessions.is_open(session) {
                continue;
            }
            let Some(late) = self.sessions.lane(session, part).take_late(now.steady_us) else { continue };
            late.iter().for_each(|request| self.refuse_parked(request, given_up(request, false), out));
            self.behind.push((session, part));
        }
    }

    /// Parts whose stores failed are made again.
    pub(super) fn retry_divisions(&mut self, now: Now, out: &mut Actions) {
        if self.retry_at.take_if(|at| *at <= now.steady_us).is_none() {
            return;
        }
        let broken = |seat: &&Seat| seat.division.as_ref().is_some_and(Division::is_broken);
        let wholes: Vec<ShardId> =
            self.seats.iter().flatten().filter(broken).map(|seat| seat.view.shard).collect();
        for whole in wholes {
            self.end_division(now, whole, out);
        }
    }

    fn whole_of(&self, part: ShardId) -> Option<ShardId> {
        let makes = |seat: &&Seat| seat.division.as_ref().is_some_and(|division| division.part == part);
        self.seats.iter().flatten().find(makes).map(|seat| seat.view.shard)
    }

    /// What a replica here has made of a part is of no use.
    pub(super) fn end_division(&mut self, now: Now, whole: ShardId, out: &mut Actions) {
        let Some(Some(seat)) = self.seats.get_mut(usize::from(whole.0)) else { return };
        let Some(division) = seat.division.take() else { return };
        seat.stale_pages += usize::from(division.has_asked());
        self.parting.insert(division.part, division.owed());
        if division.owed() == 0 {
            self.drop_part(now, division.part, out);
        }
    }

    fn drop_part(&mut self, now: Now, part: ShardId, out: &mut Actions) {
        self.parting.remove(&part);
        out.dropped.push(part);
        let Some(map) = self.map.clone() else { return };
        let Some(shard) = map.shard(part) else { return };
        match shard.part_of {
            Some(part_of) => self.follow_division(now, &map, part_of.whole, out),
            None => self.open_seat(now, &map, shard, out),
        }
    }

    /// Parts that are shards of their own now begin before anything happens to the wholes.
    pub(super) fn open_parts(&mut self, now: Now, map: &ClusterMap, out: &mut Actions) {
        let parts = self.seats.iter().flatten().filter_map(|seat| Some(seat.division.as_ref()?.part));
        for part in parts.collect::<Vec<_>>() {
            if let Some(shard) = map.shard(part).filter(|shard| shard.members.contains(&self.member())) {
                self.open_part(now, map, shard, out);
            }
        }
    }

    /// The replica that a sealed part becomes, if there is one; none too where what there is must go first.
    pub(super) fn open_part(&mut self, now: Now, map: &ClusterMap, shard: &Shard, out: &mut Actions) -> bool {
        if shard.part_of.is_some() {
            return true;
        }
        let Some(whole) = self.whole_of(shard.id) else { return self.parting.contains_key(&shard.id) };
        let is_mine = shard.members.contains(&self.member());
        let Some(Some(seat)) = self.seats.get_mut(usize::from(whole.0)) else { return false };
        let sealed =
            seat.division.as_ref().filter(|division| division.owed() == 0).and_then(Division::sealed);
        let names = seat.names().inherited(shard.beginning());
        let (Some(count), true) = (sealed, is_mine) else {
            self.end_division(now, whole, out);
            // What is not waited for has begun already.
            return self.parting.contains_key(&shard.id) || self.seat(shard.id).is_some();
        };
        seat.division = None;
        // It is the first one of this node: only who is sealed is a member.
        self.place_seat(now, map, shard, true, out);
        if let Some(Some(seat)) = self.seats.get_mut(usize::from(shard.id.0))
            && !planted(Fault::NamesNotMoved)
        {
            seat.inherit(names);
        }
        if let Some(whole) = map.shard(whole) {
            self.leave_rest(map, whole, count, out);
        }
        true
    }

    /// What a replica here holds of others' keys is not seen any more, and goes.
    pub(super) fn leave_rest(&mut self, map: &ClusterMap, shard: &Shard, count: u64, out: &mut Actions) {
        let Some(Some(seat)) = self.seats.get_mut(usize::from(shard.id.0)) else { return };
        let end = map.needless_from(shard).cloned();
        if end.is_some() && seat.left != end {
            seat.left = end.clone();
            end.iter().for_each(|end| self.leave(shard.id, end, count, out));
        }
    }

    fn leave(&mut self, whole: ShardId, end: &Bytes, count: u64, out: &mut Actions) {
        if let Some(Some(seat)) = self.seats.get_mut(usize::from(whole.0)) {
            seat.owe(1);
            out.tasks.push((whole, Task::Leave(end.clone(), count)));
        }
    }

    /// How parts stand that are made here, as reports of replicas that are not there yet: in the epoch of the whole; proven
    /// where they are sealed.
    pub(super) fn report_part(seat: &Seat) -> Option<ReplicaReport> {
        let division = seat.division.as_ref()?;
        let (fill, proven) = (Some(division.status()), division.sealed().is_some());
        let status = Status { fill, proven, ..Status::default() };
        Some(ReplicaReport { shard: division.part, epoch: seat.view.epoch, status })
    }

    /// A request for a shard of which a map says that another one has those keys.
    pub(super) fn taker(&self, request: &Request) -> ShardId {
        let part = self.parts.iter().find(|(part, _)| *part == request.shard);
        part.map_or(request.shard, |(_, whole)| *whole)
    }

    /// Whether a shard has all keys of a request, as far as that is known here.
    pub(super) fn has_keys(&self, request: &Request) -> bool {
        let end = self.ends.get(usize::from(request.shard.0)).and_then(Option::as_ref);
        end.is_none_or(|end| request.op.lies_before(end))
    }

    /// A request goes to the shard that has its keys. It was not done.
    pub(super) fn on_moved(&mut self, now: Now, mut request: Request, way: Option<Way>, out: &mut Actions) {
        let From::Session { session, tag } = request.from else { return };
        let (whole, home) = (request.shard, self.home_of(&request));
        if !self.locking.is_idle() {
            self.locking.on_answer(session, tag, whole, &mut out.locks);
        }
        if !self.sessions.is_open(session) {
            return;
        }
        if let Some(way) = way
            && self.sessions.lane(session, whole).settle(way, Position::ZERO)
        {
            self.freed.push((session, whole));
        }
        let is_late = request.deadline_us <= now.steady_us;
        let Some(home) = home.filter(|home| *home != whole && !is_late) else {
            let outcome = if is_late { given_up(&request, false) } else { divided_meanwhile() };
            let position = Position::ZERO;
            return out.replies.push(Reply { session, tag, shard: whole, outcome, position });
        };
        (request.shard, request.floor) = (home, Position::ZERO);
        if let Some(request) = self.sessions.lane(session, home).take_early(request) {
            self.on_request(now, request, out);
        }
    }

    /// Everything was removed at a shard that had been divided since this was asked: the part it goes on to, if it is one; an error
    /// where it was divided several times.
    pub(super) fn rest_to_clear(
        &mut self,
        request: &Request,
        position: Position,
    ) -> Option<Result<ShardId, ()>> {
        let From::Session { session, .. } = request.from else { return None };
        if !request.op.clears() || !self.sessions.is_open(session) {
            return None;
        }
        let map = self.map.clone()?;
        let lane = self.sessions.lane(session, request.shard);
        // What was done before it was closed is true of the part too.
        let lacks = |part: &&ShardId| map.shard(**part).is_some_and(|part| position.epoch >= part.born);
        let mut parts = lane.parts().iter().filter(lacks);
        let first = *parts.next()?;
        let is_simple = !matches!(request.op, Op::Batch(_)) && parts.next().is_none();
        Some(if is_simple { Ok(first) } else { Err(()) })
    }

    /// It goes on to a part, in its place among those of its connection.
    pub(super) fn clear_rest(
        &mut self,
        now: Now,
        (mut request, way): (Request, Way),
        (part, position): (Result<ShardId, ()>, Position),
        out: &mut Actions,
    ) {
        let From::Session { session, .. } = request.from else { return };
        let Ok(part) = part else {
            let text = "some of it was done, and the table was divided meanwhile; send it again";
            let outcome = Failure::outcome(FailureKind::Uncertain, text);
            return self.reply(now, (request.from, way), request.shard, outcome, position, out);
        };
        if self.sessions.lane(session, request.shard).settle(way, position) {
            self.freed.push((session, request.shard));
        }
        (request.shard, request.floor) = (part, Position::ZERO);
        if let Some(request) = self.sessions.lane(session, part).take_early(request) {
            self.on_request(now, request, out);
        }
    }

    /// The shard that has all keys of a request, if there is one.
    fn home_of(&self, request: &Request) -> Option<ShardId> {
        let map = self.map.as_ref()?;
        let table = map.shard(request.shard)?.table;
        let mut homes = Vec::new();
        request.op.each_key(&mut |key| {
            let has = |shard: &&Shard| shard.is_apart() && shard.lower[..] <= *key;
            let home = map.shards_of(table).filter(has).max_by(|one, other| one.lower.cmp(&other.lower));
            homes.push(home.map(|shard| shard.id));
        });
        homes.dedup();
        if let [home] = homes[..] { home } else { None }
    }

    /// Whether a request came back because its keys are another shard's.
    pub(super) fn is_moved(request: &Request, outcome: &Outcome) -> bool {
        let moved = matches!(outcome, Outcome::Failed(f) if f.kind == FailureKind::Moved);
        moved && !matches!(request.op, Op::Expire(_))
    }
}

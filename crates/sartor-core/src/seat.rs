//! A replica's place on a worker: its controlet, and the requests that other workers sent it.

use crate::controlet::part::once::Names;
use crate::controlet::rules::Rules;
use crate::controlet::{AnyControlet, Input, Mode, Outbox, Status, View};
use crate::coordinator::ReplicaReport;
use crate::division::Division;
use crate::forward::{Answer, Answers, ForwardSettings, Forwarded, Forwards, Inbound};
use crate::ids::{Epoch, Incarnation, WorkerId};
use crate::node::NodeSettings;
use crate::operation::{From, Request};
use crate::record::Bounds;
use crate::routing::map::{ClusterMap, Member, Shard};
use crate::time::{Micros, Now};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use bytes::Bytes;

/// A replica on this worker.
#[derive(Clone, Hash)]
pub struct Seat {
    /// Its members, as its controlet knows them.
    pub view: View,
    controlet: Box<dyn AnyControlet>,
    /// Requests of other workers.
    pub inbound: BTreeMap<WorkerId, Inbound>,
    /// Reads of other workers that come to it because the head's store cannot do them: those that it cannot take yet, and
    /// those that it does.
    asides: BTreeMap<(WorkerId, Incarnation, u64), Option<Request>>,
    /// Tasks that its store has not ended.
    owed: usize,
    /// It has ended, and goes when its store owes nothing more.
    ended: bool,
    /// The part of it that becomes another shard's replica.
    pub division: Option<Division>,
    /// Pages that were asked for a part that came to nothing.
    pub stale_pages: usize,
    /// From this key on, nothing that its store holds is its own; whether there is something yet, and it is to go on removing.
    pub left: Option<Bytes>,
    /// See `left`.
    pub leaves: bool,
    /// From this key on, entries from this epoch on touch nothing that its store holds.
    pub kept: Option<(Bytes, Epoch)>,
}

/// Reads that come to a replica because the head's store cannot do them, at once.
const ASIDES_MAX: usize = 1024;

/// A shard as seen from a node.
pub fn view_of(
    map: &ClusterMap,
    shard: &Shard,
    rules: Rules,
    durable: bool,
    bounds: Bounds,
    me: Member,
) -> View {
    let joining = shard.joining;
    let mut members = shard.members.clone();
    // Another life of this node is not this replica.
    if members.iter().any(|member| member.node == me.node && *member != me) {
        members.retain(|member| member.node != me.node);
    }
    let joining = joining.filter(|joining| joining.member.node != me.node || joining.member == me);
    let (shard_id, epoch, born) = (shard.id, shard.epoch, shard.born);
    let start = if members.contains(&me) { shard.start } else { shard.beginning() };
    let end = map.upper_of(shard).cloned();
    let divides = map.part_of(shard.id).is_some_and(Shard::is_apart);
    let first = map.table_of(shard).is_some_and(|table| table.created == shard.epoch);
    let me = me.node;
    View {
        shard: shard_id,
        epoch,
        me,
        members,
        joining,
        born,
        start,
        durable,
        rules,
        bounds,
        end,
        divides,
        first,
    }
}

impl Seat {
    /// A replica with a store as the view says.
    pub fn new(now: Now, mode: &Mode, view: View, settings: &NodeSettings) -> Seat {
        let controlet = (mode.build)(now, view.clone(), settings.controlet);
        let (inbound, asides, owed, ended) = (BTreeMap::new(), BTreeMap::new(), 0, false);
        let (division, stale_pages, left, leaves, kept) = (None, 0, None, false, None);
        Seat { view, controlet, inbound, asides, owed, ended, division, stale_pages, left, leaves, kept }
    }

    /// Whether the replica answers the request itself.
    pub fn takes(&self, request: &Request) -> bool {
        !self.ended && self.controlet.takes(request)
    }

    /// Whether this replica orders writes.
    pub fn is_head(&self) -> bool {
        !self.ended && self.view.is_head()
    }

    /// Whether it can go.
    pub fn is_over(&self) -> bool {
        self.ended && self.owed == 0
    }

    /// Whether messages of this replica are heard.
    pub fn knows(&self, from: Member) -> bool {
        !self.ended
            && (self.view.members.contains(&from)
                || self.view.joining.is_some_and(|joining| joining.member == from))
    }

    /// Something happened to the controlet.
    pub fn step(&mut self, now: Now, input: Input<Bytes>, out: &mut Outbox<Bytes>) {
        if matches!(input, Input::Stored(_)) {
            assert!(self.owed > 0, "a store ends only what it was asked for");
            self.owed -= 1;
        }
        self.controlet.step(now, input, out);
        self.owed += out.effects.tasks.len();
        if let Some(division) = &mut self.division {
            out.effects.tasks.iter().for_each(|task| division.on_task(task));
        }
    }

    /// Its store was asked for something that its controlet knows nothing of, so many times.
    pub fn owe(&mut self, tasks: usize) {
        self.owed += tasks;
    }

    /// One of them has ended.
    pub fn owe_less(&mut self) {
        self.owed -= 1;
    }

    /// Whether this replica is a member, and not on its way out.
    pub fn is_member(&self) -> bool {
        !self.ended && self.view.is_member()
    }

    /// What it remembers of operations that their clients named.
    pub fn names(&self) -> Names {
        self.controlet.names()
    }

    /// Its shard begins with what another one remembered.
    pub fn inherit(&mut self, names: Names) {
        self.controlet.inherit(names);
    }

    /// Whether a new view can be had by this replica, or only by one that begins anew: a member that is no
    /// longer one has fallen behind, and what was before the shard began anew is gone.
    pub fn goes_on(&self, view: &View) -> bool {
        !self.ended
            && view.born == self.view.born
            && view.includes_me()
            && (view.is_member() || !self.view.is_member())
            && !self.is_broken_for(view)
    }

    /// Whether this replica was to be filled, its store failed, and it is to be filled once more: that takes another store.
    fn is_broken_for(&self, view: &View) -> bool {
        let again = !view.is_member() && self.view.joining != view.joining;
        again && self.controlet.status().lost
    }

    /// The members have changed. Where this replica cannot go on, it ends.
    pub fn on_view(&mut self, now: Now, mut view: View, out: &mut Outbox<Bytes>) {
        if !self.goes_on(&view) {
            view.members.retain(|member| member.node != view.me);
            view.joining = None;
            self.ended = true;
        }
        // Who is head still has what was sent to it; a new one is sent everything again.
        if !(self.view.is_head() && view.is_head()) {
            self.inbound.clear();
        }
        self.asides.clear();
        self.view = view.clone();
        self.step(now, Input::View(view), out);
    }

    /// Requests of another worker: those to be done now, in order.
    pub fn accept(
        &mut self,
        now: Now,
        (worker, incarnation): (WorkerId, Incarnation),
        forwards: Forwards,
        settings: ForwardSettings,
    ) -> Vec<Request> {
        let (shard, base) = (self.view.shard, forwards.base);
        let inbound = self.inbound.entry(worker).or_insert_with(|| Inbound::new(settings));
        let request = |forwarded: Forwarded| Request {
            from: From::Worker { worker, incarnation, sequence: forwarded.sequence, base },
            shard,
            op: forwarded.op,
            floor: forwarded.floor,
            consistency: forwarded.consistency,
            deadline_us: now.steady_us.saturating_add(forwarded.left_us),
        };
        inbound.accept(incarnation, forwards).into_iter().map(request).collect()
    }

    /// Reads of another worker that the head's store cannot do; one that is here already is not taken again.
    pub fn accept_aside(&mut self, requests: impl Iterator<Item = Request>) {
        for request in requests {
            let From::Worker { worker, incarnation, sequence, .. } = request.from else { continue };
            // Who asks for more asks again.
            if self.asides.len() < ASIDES_MAX {
                self.asides.entry((worker, incarnation, sequence)).or_insert(Some(request));
            }
        }
    }

    /// Those of them that it can take now.
    pub fn take_asides(&mut self, now: Now) -> Vec<Request> {
        if self.asides.is_empty() || self.ended {
            return Vec::new();
        }
        let mut taken = Vec::new();
        let controlet = &self.controlet;
        self.asides.retain(|_, waiting| {
            if waiting.as_ref().is_some_and(|request| request.deadline_us <= now.steady_us) {
                return false;
            }
            taken.extend(waiting.take_if(|request| controlet.takes(request)));
            true
        });
        taken
    }

    /// One of them has its answer.
    pub fn end_aside(&mut self, worker: WorkerId, incarnation: Incarnation, sequence: u64) {
        self.asides.remove(&(worker, incarnation, sequence));
    }

    /// A request of another worker has its answer. Who does not order has nothing to keep for who asks again.
    pub fn answer(
        &mut self,
        worker: WorkerId,
        incarnation: Incarnation,
        answer: Answer,
        settings: ForwardSettings,
    ) {
        self.end_aside(worker, incarnation, answer.sequence);
        if !self.is_head() {
            let inbound = self.inbound.entry(worker).or_insert_with(|| Inbound::new(settings));
            inbound.pass(incarnation, answer);
        } else if let Some(inbound) = self.inbound.get_mut(&worker) {
            inbound.answer(incarnation, answer.sequence, answer.outcome, answer.position);
        }
    }

    /// Answers for those who asked.
    pub fn take_answers(&mut self) -> Vec<(WorkerId, Answers)> {
        let mut taken = Vec::new();
        for (origin, inbound) in &mut self.inbound {
            while let Some(answers) = inbound.take_ready() {
                taken.push((*origin, answers));
            }
        }
        taken
    }

    /// When it wants [`Input::Wake`], or its answers sent.
    pub fn wake_at(&self) -> Option<Micros> {
        if self.inbound.values().any(Inbound::is_ready) { Some(0) } else { self.due_at() }
    }

    /// When it wants [`Input::Wake`].
    pub fn due_at(&self) -> Option<Micros> {
        if self.ended { None } else { self.controlet.wake_at() }
    }

    /// How it stands.
    pub fn status(&self) -> Status {
        self.controlet.status()
    }

    /// How it stands, for the coordinator. One that has ended says nothing: it has the view already in which another one
    /// takes its place.
    pub fn report(&self) -> Option<ReplicaReport> {
        let (shard, epoch) = (self.view.shard, self.view.epoch);
        (!self.ended).then(|| ReplicaReport { shard, epoch, status: self.status() })
    }
}

//! Leases that the members of a view give each other, so that the data path needs no coordinator.
//!
//! ```text
//!  a ── stamp: a's clock ──────────────▶ b
//!    ◀── echo of a's stamp ──────────── b    b promises: no other view before this long after the echo
//!  a serves until its stamp + lease          b's promise lasts longer than that, whatever their clocks' rates
//! ```
//!
//! A member serves while every other member of its view has promised. A member that moves to another view
//! stops promising in the old one at once, but gives no promise in the new one, and so lets nobody serve there,
//! until its promises to members that were removed have lapsed, or those have said that they left. Every
//! view has a member in common with the one before, so that at no time two views serve.
//! (TPDS 4.2 leaves this to the coordinator.)
//!
//! Messages also carry what each member had when the view began: nobody serves before it has all that any
//! member had.

use crate::ids::{NodeId, Position};
use crate::mutants::{Fault, planted};
use crate::routing::map::Member;
use crate::time::{Micros, Now};
use alloc::vec::Vec;

/// One member to another, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseMessage {
    /// The sender's clock.
    pub stamp: Micros,
    /// The receiver's last stamp: a promise, unless the sender is bound.
    pub echo: Option<Micros>,
    /// The sender is bound by promises to removed members, and promises nothing yet.
    pub bound: bool,
    /// What the sender had when the view began; none while that is not known.
    pub level: Option<Position>,
    /// What else.
    pub told: Told,
}

/// What else a member tells with its promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Told {
    /// What, as far as the sender knows, all members have.
    pub stable: Position,
    /// The sender's node has no memory for more.
    pub full: bool,
    /// The sender has all that any member had when the view began.
    pub whole: bool,
    /// The newest entry, if the sender orders and may serve.
    pub newest: Option<Position>,
    /// The last entry that the log outside has, as far as the sender knows.
    pub logged: u64,
    /// Of all entries up to there, if the sender orders and may serve.
    pub digest: Option<(Position, u64)>,
}

/// Times of leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseSettings {
    /// How long a promise is good for, on the clock of who got it. Less than the time after which
    /// the coordinator takes a silent node for dead, so that a failover seldom has to wait for promises.
    pub lease_us: Micros,
    /// How often promises are renewed.
    pub renew_us: Micros,
    /// How much longer a member may answer reads that need not see the newest state. Where a mode follows in which all must,
    /// it waits for that.
    pub lax_us: Micros,
}

/// The leases of one replica in its view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Leases {
    settings: LeaseSettings,
    peers: Vec<Peer>,
    /// Promises to members of older views that are none of this one.
    bound: Vec<Bound>,
    /// Whether reads must see the newest state.
    strict: bool,
    level: Option<Position>,
    next_at: Micros,
    /// From when on it is telling that nothing comes back.
    listens_from: Micros,
    /// When it was last called.
    attended: Micros,
}

/// A promise to a member of an older view, on our clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Bound {
    member: Member,
    /// It may serve until then.
    until: Micros,
    /// It may answer reads of a mode that was not strict until then.
    reads_until: Micros,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Peer {
    member: Member,
    /// Its last stamp, and when that came.
    stamp: Option<(Micros, Micros)>,
    /// Whether its last stamp was echoed in this view, so that it has something to begin with.
    answered: bool,
    /// Its promise to us, on our clock; and the last one, of this view or one before.
    until: Option<Micros>,
    heard_until: Micros,
    /// Our promise to it, on our clock; and until when it may answer reads of a mode that was not strict.
    promised: Micros,
    reads_until: Micros,
    level: Option<Position>,
    /// It has all that any member had when the view began.
    whole: bool,
    /// Our last stamp that came back from it, as a promise or not.
    echoed: Option<Micros>,
    /// Nothing of ours comes back from it.
    deaf: bool,
}

impl Bound {
    /// When it is of no interest any more.
    fn ends(&self) -> Micros {
        self.until.max(self.reads_until)
    }

    /// Until when it binds a view whose reads must see the newest state, or need not.
    fn binds_until(&self, strict: bool) -> Micros {
        if strict { self.ends() } else { self.until }
    }
}

impl Leases {
    /// Nobody has promised anything.
    pub fn new(settings: LeaseSettings) -> Leases {
        let (level, next_at) = (None, Micros::MAX);
        Leases {
            settings,
            peers: Vec::new(),
            bound: Vec::new(),
            strict: true,
            level,
            next_at,
            listens_from: 0,
            attended: 0,
        }
    }

    /// Another view, of these other members, begins with all up to `level` here, if that is known.
    pub fn on_view(
        &mut self,
        now: Now,
        others: impl Iterator<Item = Member>,
        level: Option<Position>,
        strict: bool,
    ) {
        let before = core::mem::take(&mut self.peers);
        self.strict = strict;
        self.bound.extend(before.iter().map(|peer| {
            let &Peer { member, promised: until, reads_until, .. } = peer;
            Bound { member, until, reads_until }
        }));
        self.bound.retain(|bound| bound.ends() > now.steady_us && !planted(Fault::ForgetPromises));
        for member in others {
            // What it was promised in older views binds us once it is removed.
            let promises = || self.bound.iter().filter(|bound| bound.member == member);
            let promised = promises().map(|bound| bound.until).max().unwrap_or(0);
            let reads_until = promises().map(|bound| bound.reads_until).max().unwrap_or(0);
            let known = before.iter().find(|peer| peer.member == member);
            self.peers.push(Peer {
                member,
                stamp: None,
                answered: false,
                until: None,
                heard_until: known.map_or(0, |peer| peer.heard_until),
                promised,
                reads_until,
                level: None,
                whole: false,
                echoed: None,
                deaf: false,
            });
        }
        let peers = &self.peers;
        self.bound.retain(|bound| peers.iter().all(|peer| peer.member != bound.member));
        self.level = level;
        self.next_at = now.steady_us;
        // The others may know the view later, and be bound by older promises first.
        self.listens_from = now.steady_us + 3 * self.settings.lease_us;
        self.attended = now.steady_us;
    }

    /// This replica does not know what a former life of it promised: nobody serves before all of that has lapsed.
    pub fn bind_unknown(&mut self, now: Now) {
        let until = now.steady_us + self.settings.lease_us * 5 / 4;
        let nobody = Member { node: NodeId(u16::MAX), ..Member::default() };
        if !planted(Fault::ForgetPromises) {
            self.bound.push(Bound { member: nobody, until, reads_until: until });
        }
    }

    /// A removed member serves no more.
    pub fn on_left(&mut self, now: Now, member: Member) {
        let bound = self.bound.len();
        self.bound.retain(|bound| bound.member != member);
        if self.bound.len() < bound {
            self.next_at = now.steady_us;
        }
    }

    /// A message of a member.
    pub fn on_message(&mut self, now: Now, from: NodeId, message: LeaseMessage) {
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.member.node == from) else { return };
        if peer.stamp.is_none_or(|(stamp, _)| stamp < message.stamp) {
            peer.stamp = Some((message.stamp, now.steady_us));
        }
        peer.level = message.level.or(peer.level);
        peer.whole |= message.told.whole;
        // What is echoed was ours once: a stamp from the future would be a promise without end.
        if let Some(echo) = message.echo.filter(|echo| *echo <= now.steady_us) {
            peer.echoed = peer.echoed.max(Some(echo));
            let from = if planted(Fault::LeaseFromArrival) { now.steady_us } else { echo };
            let until = from + self.settings.lease_us;
            if !message.bound {
                peer.until = peer.until.max(Some(until));
                peer.heard_until = peer.heard_until.max(until);
            }
        }
        // The first ones are answered at once, and so is who has no promise of ours yet.
        let at_once = !peer.answered || message.echo.is_none() || message.bound;
        if at_once && !self.is_bound(now) {
            self.next_at = self.next_at.min(now.steady_us);
        }
    }

    /// Whether it is time to tell the other members.
    pub fn is_due(&self, now: Now) -> bool {
        now.steady_us >= self.next_at
    }

    /// Messages for all members, if it is time.
    pub fn on_wake(&mut self, now: Now, told: Told) -> Vec<(NodeId, LeaseMessage)> {
        if !self.is_due(now) {
            return Vec::new();
        }
        self.bound.retain(|bound| bound.ends() > now.steady_us);
        let blocked = self.is_bound(now);
        self.listen(now);
        self.next_at = now.steady_us + self.settings.renew_us;
        if let Some(until) = self.bound.iter().map(|bound| bound.binds_until(self.strict)).max() {
            // Of one that binds no longer, only memory is left.
            self.next_at = self.next_at.min(if until > now.steady_us { until } else { Micros::MAX });
        }
        // Counted from when the stamp came, a quarter longer than who gave it may use our promise: so that its clock may run
        // slower than true by 10 %, and ours faster. Repeating the promise does not prolong it: who is silent is
        // soon not waited for.
        let lease_us = self.settings.lease_us;
        let lasts_us =
            if planted(Fault::LeaseOutlivesPromise) { lease_us / 4 } else { lease_us + lease_us / 4 };
        let (level, strict) = (self.level, self.strict);
        let lax_us = self.settings.lax_us + self.settings.lax_us / 4;
        let message = |peer: &mut Peer| {
            let echo = peer.stamp;
            if let Some((_, came)) = echo.filter(|_| !blocked) {
                peer.promised = peer.promised.max(came + lasts_us);
                if !strict {
                    peer.reads_until = peer.reads_until.max(came + lasts_us + lax_us);
                }
                peer.answered = true;
            }
            let echo = echo.map(|(stamp, _)| stamp);
            let stamp = now.steady_us;
            (peer.member.node, LeaseMessage { stamp, echo, bound: blocked, level, told })
        };
        self.peers.iter_mut().map(message).collect()
    }

    /// Who sends no promise back for too long is out of reach, at least one way.
    fn listen(&mut self, now: Now) {
        let LeaseSettings { lease_us, renew_us, .. } = self.settings;
        if now.steady_us > self.attended + 2 * renew_us {
            // This process itself stood still, and could not hear anybody.
            self.listens_from = self.listens_from.max(now.steady_us + lease_us);
        }
        self.attended = now.steady_us;
        let listens_from = self.listens_from;
        for peer in &mut self.peers {
            let lapsed = peer.echoed.map_or(0, |echoed| echoed + lease_us + lease_us * 3 / 7);
            peer.deaf = now.steady_us > listens_from.max(lapsed);
        }
    }

    /// Members that do not hear us, or that we do not hear.
    pub fn deaf(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.peers
            .iter()
            .filter(|peer| peer.deaf && !planted(Fault::IgnoreDeafness))
            .map(|peer| peer.member.node)
    }

    /// When it wants to be called.
    pub fn wake_at(&self) -> Option<Micros> {
        (!self.peers.is_empty() || !self.bound.is_empty()).then_some(self.next_at)
    }

    fn is_bound(&self, now: Now) -> bool {
        self.bound.iter().any(|bound| bound.binds_until(self.strict) > now.steady_us)
    }

    /// Whether all members have promised, and we are not bound by older promises.
    pub fn holds(&self, now: Now) -> bool {
        !self.is_bound(now)
            && (self.peers.iter().all(|peer| peer.until.is_some_and(|until| until > now.steady_us))
                || planted(Fault::ServeWithoutLease))
    }

    /// Whether all members have promised something not too long ago: then no mode has begun in which reads must see more than
    /// what is here.
    pub fn may_read(&self, now: Now) -> bool {
        let heard = |peer: &Peer| peer.heard_until.saturating_add(self.settings.lax_us) > now.steady_us;
        self.peers.iter().all(heard) || planted(Fault::LaxWithoutEnd)
    }

    /// Whether a replica that has all up to `position` has what every member had when the view began.
    pub fn is_level(&self, position: Position) -> bool {
        let reached = |level: Position| level.sequence <= position.sequence;
        self.peers.iter().all(|peer| peer.level.is_some_and(reached)) || planted(Fault::IgnoreLevel)
    }

    /// Whether a member has told that it has what any had when the view began.
    pub fn is_whole(&self, node: NodeId) -> bool {
        self.peers.iter().any(|peer| peer.member.node == node && peer.whole)
    }

    /// There is something to tell that somebody waits for.
    pub fn hurry(&mut self, now: Now) {
        self.next_at = self.next_at.min(now.steady_us);
    }

    /// Whether all other members have told that they have what any had when the view began.
    pub fn all_whole(&self) -> bool {
        self.peers.iter().all(|peer| peer.whole)
    }

    /// What a member had when the view began, as far as it was heard.
    pub fn level_of(&self, node: NodeId) -> Option<Position> {
        self.peers.iter().find(|peer| peer.member.node == node)?.level
    }

    /// What we had when the view began, if that is known.
    pub fn level(&self) -> Option<Position> {
        self.level
    }

    /// Now it is known.
    pub fn set_level(&mut self, now: Now, level: Position) {
        self.level = Some(level);
        self.hurry(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Incarnation;
    use crate::time::millis;

    const SETTINGS: LeaseSettings =
        LeaseSettings { lease_us: millis(400), renew_us: millis(80), lax_us: millis(2000) };

    fn member(node: u16) -> Member {
        Member { node: NodeId(node), incarnation: Incarnation(1) }
    }

    fn at(ms: u64) -> Now {
        Now { steady_us: millis(ms), unix_ms: 0 }
    }

    fn leases(now: u64, others: &[u16]) -> Leases {
        let mut leases = Leases::new(SETTINGS);
        leases.on_view(at(now), others.iter().map(|node| member(*node)), Some(Position::ZERO), true);
        leases
    }

    /// Messages of `from`, which is node `me`, to the other, by the clock of each.
    fn pass((sent, came): (u64, u64), me: u16, from: &mut Leases, to: &mut Leases) {
        for (_, message) in from.on_wake(at(sent), Told::default()) {
            to.on_message(at(came), NodeId(me), message);
        }
    }

    #[test]
    fn a_member_serves_while_the_others_promise() {
        let (mut a, mut b) = (leases(0, &[1]), leases(1000, &[0]));
        assert!(!a.holds(at(0)));
        pass((0, 1000), 0, &mut a, &mut b);
        pass((1000, 0), 1, &mut b, &mut a);
        assert!(
            a.holds(at(1)) && a.is_level(Position::ZERO) && !b.holds(at(1001)),
            "b's stamp is not echoed yet"
        );
        pass((80, 1080), 0, &mut a, &mut b);
        assert!(b.holds(at(1081)));
        assert!(a.holds(at(399)) && !a.holds(at(400)));
    }

    #[test]
    fn a_stamp_that_was_never_given_promises_nothing() {
        let mut a = leases(0, &[1]);
        let forged = LeaseMessage {
            stamp: 0,
            echo: Some(u64::MAX),
            bound: false,
            level: Some(Position::ZERO),
            told: Told::default(),
        };
        a.on_message(at(0), NodeId(1), forged);
        assert!(!a.holds(at(0)));
    }

    #[test]
    fn a_new_view_waits_for_the_promises_of_the_old_one() {
        let (mut a, mut b) = (leases(0, &[1, 2]), leases(0, &[0, 2]));
        // a promises something to c, whose stamp came at 100.
        let ask = LeaseMessage {
            stamp: 0,
            echo: None,
            bound: false,
            level: Some(Position::ZERO),
            told: Told::default(),
        };
        a.on_message(at(100), NodeId(2), ask);
        a.on_wake(at(120), Told::default());
        a.on_wake(at(200), Told::default());
        a.on_view(at(200), [member(1)].into_iter(), Some(Position::ZERO), true);
        b.on_view(at(200), [member(0)].into_iter(), Some(Position::ZERO), true);
        for now in [200, 300, 500, 599] {
            pass((now, now), 0, &mut a, &mut b);
            pass((now, now), 1, &mut b, &mut a);
            assert!(!a.holds(at(now)) && !b.holds(at(now)), "c may still serve");
        }
        let mut confirmed = a.clone();
        confirmed.on_left(at(599), member(2));
        assert!(confirmed.holds(at(599)));
        assert_eq!(a.wake_at(), Some(millis(600)), "100 ms + a lease and a quarter");
        pass((600, 600), 0, &mut a, &mut b);
        pass((600, 600), 1, &mut b, &mut a);
        assert!(a.holds(at(600)) && b.holds(at(600)));
    }
}

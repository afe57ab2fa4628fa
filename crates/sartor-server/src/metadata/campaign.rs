//! The thread that talks to etcd: campaigns for the lead, keeps it, and writes maps under it.
//!
//! ```text
//!  campaign ── nobody leads: lease, then leader's key if there is none ──▶ reign ── renew, write, check
//!     ▲                                                                     │
//!     └── revoke ◀── not renewed in time, or what was read is not ours ◀────┘
//! ```

use super::etcd::{Order, RETRY_US};
use super::gateway::{Answer, Gateway, changed_in, created_in, get, put};
use super::{Notice, Term};
use crate::clock;
use mio::Waker;
use sartor_core::ids::Epoch;
use sartor_core::routing::map::ClusterMap;
use sartor_core::time::{Micros, millis};
use sartor_core::wire::codec::Wire;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

/// How long a coordinator leads without renewing: the least that etcd grants with its usual settings. A dead leader is
/// replaced that much later, and nothing but repairs waits for that.
const LEASE_S: u64 = 2;
/// How often who does not lead looks, should the watch have missed something.
const LOOK_EVERY_US: Micros = millis(1000);
/// How often people are told of the same trouble.
const COMPLAIN_EVERY_US: Micros = millis(5000);

/// Tells the loop.
pub(super) struct Teller {
    pub(super) news: Sender<Notice>,
    pub(super) waker: Arc<Waker>,
}

impl Teller {
    fn tell(&self, notice: Notice) {
        if self.news.send(notice).is_ok() {
            let _ = self.waker.wake();
        }
    }
}

/// The thread that talks to etcd, one call at a time.
pub(super) struct Session {
    pub(super) gateway: Gateway,
    pub(super) leader_key: String,
    pub(super) map_key: String,
    /// Our value of the leader's key.
    pub(super) me: Vec<u8>,
    pub(super) orders: Receiver<Order>,
    pub(super) teller: Teller,
    /// Until when, by our clock, the lease holds at least.
    pub(super) certain_until: Arc<AtomicU64>,
    /// When people were last told that something is wrong.
    pub(super) complained: Option<Micros>,
}

/// A time of leading.
struct Reign {
    term: Term,
    lease: i64,
    renew_at: Micros,
    /// The revision of the map, as last read or written; 0 for none.
    map_revision: i64,
    saving: Option<(Epoch, Vec<u8>)>,
    /// When to try to save again.
    save_at: Micros,
}

/// The loop is gone, and with it the reason for this thread.
struct Gone;

fn steady() -> Micros {
    clock::now().steady_us
}

/// Our clock and etcd's may run 10 % apart.
fn trusted(from: Micros, ttl_us: Micros) -> Micros {
    from + ttl_us * 4 / 5
}

impl Session {
    pub(super) fn run(mut self) {
        let mut follows = None;
        loop {
            let reign = self.campaign(&mut follows);
            let waited = match reign {
                Ok(Some(mut reign)) => {
                    follows = None;
                    let end = self.reign(&mut reign);
                    self.certain_until.store(0, Ordering::Release);
                    let Ok(why) = end else { return };
                    self.teller.tell(Notice::Deposed(reign.term, why));
                    // What is left of the lease is of use to nobody; if etcd is away it ends by itself.
                    let _ = self.gateway.revoke(reign.lease);
                    Ok(())
                }
                Ok(None) => self.wait(LOOK_EVERY_US),
                Err(error) => {
                    self.complain(error);
                    if follows.take().is_some() {
                        self.teller.tell(Notice::Follows(None));
                    }
                    self.wait(LOOK_EVERY_US / 2)
                }
            };
            if waited.is_err() {
                return;
            }
        }
    }

    /// Waits for the doorbell, but no longer than this.
    fn wait(&self, patience_us: Micros) -> Result<(), Gone> {
        let deadline = steady() + patience_us;
        loop {
            let left = deadline.saturating_sub(steady());
            match self.orders.recv_timeout(Duration::from_micros(left)) {
                // Orders of a term that is over.
                Ok(Order::Save(..) | Order::Resign(_)) => {}
                Ok(Order::Look) | Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => return Err(Gone),
            }
        }
    }

    fn look(&mut self) -> Result<Answer, String> {
        let keys = [get(&self.leader_key), get(&self.map_key)];
        self.gateway.txn(&[], &keys, &[])
    }

    /// Tries to lead; none if somebody else does.
    fn campaign(&mut self, follows: &mut Option<Vec<u8>>) -> Result<Option<Reign>, String> {
        let seen = self.look()?;
        self.relieved();
        let leader = seen.entries.get(&self.leader_key).map(|entry| entry.value.clone());
        if leader.is_some() {
            if *follows != leader {
                let known = leader.as_deref().and_then(|value| serde_json::from_slice(value).ok());
                self.teller.tell(Notice::Follows(known));
                *follows = leader;
            }
            return Ok(None);
        }
        let asked = steady();
        let (lease, ttl_us) = self.gateway.grant(LEASE_S)?;
        let won = self.claim(lease);
        let Ok(Some(answer)) = won else {
            let _ = self.gateway.revoke(lease);
            return won.map(|_| None);
        };
        let term = answer.entries.get(&self.leader_key).map_or(answer.revision, |entry| entry.created);
        let map = answer.entries.get(&self.map_key);
        let map_revision = map.map_or(0, |entry| entry.changed);
        let read = map.map(|entry| ClusterMap::from_bytes(entry.value.clone().into())).transpose();
        let map = match read {
            Ok(map) => map,
            Err(error) => {
                let _ = self.gateway.revoke(lease);
                let key = &self.map_key;
                return Err(format!("{key} in etcd is damaged ({}); restore it from a copy", error.0));
            }
        };
        self.certain_until.store(trusted(asked, ttl_us), Ordering::Release);
        self.teller.tell(Notice::Leads(term, map));
        Ok(Some(Reign { term, lease, renew_at: asked + ttl_us / 5, map_revision, saving: None, save_at: 0 }))
    }

    /// Writes the leader's key if there is none: what was read then, or none if there is one.
    fn claim(&mut self, lease: i64) -> Result<Option<Answer>, String> {
        let key = self.leader_key.clone();
        let then = [put(&key, &self.me, lease), get(&key), get(&self.map_key)];
        match self.gateway.txn(&[created_in(&key, 0)], &then, &[]) {
            Ok(answer) => Ok(answer.succeeded.then_some(answer)),
            // Nobody knows whether it took effect: what is there tells.
            Err(_) => {
                let answer = self.look()?;
                let ours = answer.entries.get(&key).is_some_and(|entry| entry.lease == lease);
                Ok(ours.then_some(answer))
            }
        }
    }

    /// Leads, until something ends it: what.
    fn reign(&mut self, reign: &mut Reign) -> Result<String, Gone> {
        loop {
            let now = steady();
            if now >= self.certain_until.load(Ordering::Acquire) {
                return Ok("its lease could not be renewed in time".into());
            }
            if now >= reign.renew_at
                && let Some(why) = self.renew(reign)
            {
                return Ok(why);
            }
            if reign.saving.is_some()
                && steady() >= reign.save_at
                && let Some(why) = self.try_save(reign)
            {
                return Ok(why);
            }
            let save_at = if reign.saving.is_some() { reign.save_at } else { Micros::MAX };
            let left = reign.renew_at.min(save_at).saturating_sub(steady());
            match self.orders.recv_timeout(Duration::from_micros(left)) {
                Ok(Order::Save(term, epoch, bytes)) if term == reign.term => {
                    (reign.saving, reign.save_at) = (Some((epoch, bytes)), 0);
                }
                Ok(Order::Resign(term)) if term == reign.term => return Ok("it stood still".into()),
                Ok(Order::Look) => {
                    if let Some(why) = self.check(reign) {
                        return Ok(why);
                    }
                }
                // Orders of an earlier term.
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(Gone),
            }
        }
    }

    /// Renews the lease; why it is over, if it is.
    fn renew(&mut self, reign: &mut Reign) -> Option<String> {
        let asked = steady();
        match self.gateway.renew(reign.lease) {
            Ok(0) => Some("its lease ran out".into()),
            Ok(ttl_us) => {
                self.certain_until.store(trusted(asked, ttl_us), Ordering::Release);
                reign.renew_at = asked + ttl_us / 5;
                self.relieved();
                None
            }
            Err(error) => {
                reign.renew_at = steady() + RETRY_US;
                self.complain(error);
                None
            }
        }
    }

    /// Writes the map that waits. Asked again after a failure, it also finds out what became of the first attempt.
    fn try_save(&mut self, reign: &mut Reign) -> Option<String> {
        let (epoch, bytes) = reign.saving.take()?;
        let conditions =
            [created_in(&self.leader_key, reign.term), changed_in(&self.map_key, reign.map_revision)];
        let otherwise = [get(&self.leader_key), get(&self.map_key)];
        let answer = match self.gateway.txn(&conditions, &[put(&self.map_key, &bytes, 0)], &otherwise) {
            Ok(answer) => answer,
            Err(error) => {
                self.complain(format!("{error}. Nothing is repaired until the cluster map is written"));
                (reign.saving, reign.save_at) = (Some((epoch, bytes)), steady() + RETRY_US);
                return None;
            }
        };
        if answer.succeeded {
            reign.map_revision = answer.revision;
        } else {
            let leads = self.is_leader(&answer, reign);
            match answer.entries.get(&self.map_key).filter(|map| leads && map.value == bytes) {
                // An attempt without an answer had taken effect.
                Some(map) => reign.map_revision = map.changed,
                None => return Some(self.changed(&answer, reign)),
            }
        }
        self.relieved();
        self.teller.tell(Notice::Saved(reign.term, epoch));
        None
    }

    /// The doorbell rang: why the term is over, if it is.
    fn check(&mut self, reign: &Reign) -> Option<String> {
        // While a write is on its way, it finds out by itself.
        let answer = self.look().ok().filter(|_| reign.saving.is_none())?;
        let revision = answer.entries.get(&self.map_key).map_or(0, |map| map.changed);
        let same = self.is_leader(&answer, reign) && revision == reign.map_revision;
        (!same).then(|| self.changed(&answer, reign))
    }

    fn is_leader(&self, answer: &Answer, reign: &Reign) -> bool {
        answer.entries.get(&self.leader_key).is_some_and(|leader| leader.created == reign.term)
    }

    fn changed(&self, answer: &Answer, reign: &Reign) -> String {
        match self.is_leader(answer, reign) {
            true => format!("somebody else changed {} in etcd; it is read again", self.map_key),
            false => "another one may lead".into(),
        }
    }

    /// Says what is wrong, now and then.
    fn complain(&mut self, text: String) {
        let now = steady();
        if self.complained.is_none_or(|at| now >= at + COMPLAIN_EVERY_US) {
            self.complained = Some(now);
            self.teller.tell(Notice::Trouble(text));
        }
    }

    fn relieved(&mut self) {
        if self.complained.take().is_some() {
            self.teller.tell(Notice::Trouble("etcd answers again".into()));
        }
    }
}

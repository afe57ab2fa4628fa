//! Locks in etcd: its own lock service, with a fair queue, under one lease of this process.
//!
//! ```text
//!  /sartor/CLUSTER/locks/NAME/LEASE   NAME in base64, LEASE in hex; the oldest key of a name holds the lock
//! ```
//!
//! The lease ends when this process does not renew it, and all its keys with it. A lease that was lost is replaced;
//! what was held under it is not given back any more.
//!
//! A call that ended without an answer may be carried out later, and meet the key that this node has anew by then. So
//! nothing new is locked under the lease of such a call: another one is taken, and the old one is left to end. The key
//! that such a call may have left behind would get the lock one day: it is deleted.

use super::{Refused, Service, Tell, Token, Trouble, locked, spawn};
use crate::metadata::gateway::{Failure, Gateway};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the locks of a process that died stay taken.
const LEASE_S: u64 = 10;
/// How often the lease is renewed.
const RENEW_EVERY: Duration = Duration::from_secs(3);
/// No new attempt to give something back after so long; it is tried again later.
const RELEASE_WITHIN: Duration = Duration::from_secs(1);
/// Attempts of a call whose connection broke: those that were kept die with the etcd at their end.
const ATTEMPTS: u32 = 3;
/// Between attempts to get or to renew a lease.
const RETRY_EVERY: Duration = Duration::from_millis(300);

/// Locks in etcd.
pub(super) struct Etcd {
    prefix: String,
    /// Remembers which endpoint answers; calls use copies.
    gateway: Mutex<Gateway>,
    tenure: Arc<Tenure>,
}

/// The lease of this process.
struct Tenure {
    lease: Mutex<Lease>,
    changed: Condvar,
    trouble: Trouble,
}

#[derive(Default)]
struct Lease {
    /// 0 for none.
    number: i64,
    /// It could not be granted, or not be renewed for so long that it may be over.
    away: bool,
    /// Somebody heard that it is over.
    doubted: bool,
    /// Earlier ones that nothing new is locked under, and until when they last at most.
    retired: Vec<(i64, Instant)>,
    /// Nobody needs it any more.
    ends: bool,
}

impl Etcd {
    /// Starts to get a lease, for so many calls at a time.
    pub(super) fn open(
        endpoints: Vec<String>,
        cluster: u64,
        calls: usize,
        tell: Tell,
    ) -> Result<Etcd, String> {
        let gateway = Gateway::for_setting(endpoints, "locks", calls);
        let trouble = Trouble::new(tell, "etcd answers again; locks can be taken".into());
        let tenure = Arc::new(Tenure { lease: Mutex::default(), changed: Condvar::new(), trouble });
        let (keeper, keeps) = (gateway.clone(), tenure.clone());
        spawn("locks-lease", move || keeps.keep(keeper))?;
        Ok(Etcd { prefix: format!("/sartor/{cluster}/locks/"), gateway: Mutex::new(gateway), tenure })
    }

    /// Calls etcd for what is locked under this lease; each endpoint once more if it could not be reached, or, if
    /// `again`, did not answer.
    fn call(
        &self,
        lease: i64,
        again: bool,
        until: Instant,
        mut call: impl FnMut(&mut Gateway) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut gateway = locked(&self.gateway).clone();
        let mut attempts = gateway.endpoints();
        loop {
            let Err(failure) = call(&mut gateway) else {
                self.tenure.trouble.relieve();
                return Ok(());
            };
            // The next call begins where this one stopped.
            *locked(&self.gateway) = gateway.clone();
            if failure.sent && !is_lease_lost(&failure) {
                self.tenure.retire(lease);
            }
            let ends = attempts == 0 || Instant::now() >= until || (failure.sent && !again);
            if ends || is_lease_lost(&failure) {
                return Err(failure);
            }
            attempts -= 1;
        }
    }

    /// Waits in etcd's queue, under the lease that is there.
    fn try_acquire(&self, name: &[u8], until: Instant) -> Result<Token, Missed> {
        let Some(lease) = self.tenure.wait(until) else {
            return Err(Missed { away: Instant::now() < until, residue: None, again: false });
        };
        let token = Token { number: u128::from(lease.unsigned_abs()), until: None };
        let place = name_of(&self.prefix, name);
        let left = || until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let done = self.call(lease, false, until, |gateway| gateway.lock(&place, lease, left()));
        let Err(failure) = done else { return Ok(token) };
        let is_late = Instant::now() >= until;
        if is_lease_lost(&failure) {
            // With the lease its keys are gone, also one of this call.
            self.tenure.doubt(lease);
            return Err(Missed { away: false, residue: None, again: !is_late });
        }
        if !is_late && !failure.sent {
            self.tenure.trouble.complain(|| failure.text);
        }
        Err(Missed {
            away: !is_late,
            residue: failure.sent.then_some(token),
            again: failure.sent && !is_late,
        })
    }
}

/// Why an attempt failed.
struct Missed {
    away: bool,
    residue: Option<Token>,
    /// Another attempt may do.
    again: bool,
}

fn name_of(prefix: &str, name: &[u8]) -> String {
    // Without slashes, as etcd takes whatever begins with `name/` for keys of this lock.
    format!("{prefix}{}", URL_SAFE_NO_PAD.encode(name))
}

fn is_lease_lost(failure: &Failure) -> bool {
    failure.text.contains("lease not found")
}

impl Service for Etcd {
    fn acquire(&self, name: &[u8], until: Instant) -> Result<Token, Refused> {
        let mut attempts = ATTEMPTS;
        loop {
            let missed = match self.try_acquire(name, until) {
                Ok(token) => return Ok(token),
                Err(missed) => missed,
            };
            attempts -= 1;
            // Before another attempt, what this one may have left must go: it would come before it.
            let again = missed.again && attempts > 0;
            if !again || !missed.residue.is_none_or(|token| self.release(name, token)) {
                return Err(Refused { away: missed.away, residue: missed.residue });
            }
        }
    }

    fn release(&self, name: &[u8], token: Token) -> bool {
        let Ok(lease) = i64::try_from(token.number) else { return true };
        if !self.tenure.lasts(lease) {
            return true;
        }
        let key = format!("{}/{lease:x}", name_of(&self.prefix, name));
        let until = Instant::now() + RELEASE_WITHIN;
        let done = self.call(lease, true, until, |gateway| gateway.unlock(&key));
        if let Err(failure) = &done {
            self.tenure.trouble.complain(|| failure.text.clone());
        }
        done.is_ok()
    }

    fn is_held(&self, token: &Token) -> bool {
        u128::from(locked(&self.tenure.lease).number.unsigned_abs()) == token.number
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        locked(&self.tenure.lease).ends = true;
        self.tenure.changed.notify_all();
    }
}

impl Tenure {
    /// The lease, or the one that is on its way; none if etcd is away.
    fn wait(&self, until: Instant) -> Option<i64> {
        let mut lease = locked(&self.lease);
        loop {
            if lease.away {
                return None;
            }
            if lease.number != 0 && !lease.doubted {
                return Some(lease.number);
            }
            let left = until.checked_duration_since(Instant::now())?;
            lease = self.changed.wait_timeout(lease, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether something may be locked under this lease.
    fn lasts(&self, number: i64) -> bool {
        let lease = locked(&self.lease);
        lease.number == number || lease.retired.iter().any(|retired| retired.0 == number)
    }

    /// This lease seems to be over.
    fn doubt(&self, number: i64) {
        let mut lease = locked(&self.lease);
        if lease.number == number {
            lease.doubted = true;
            self.changed.notify_all();
        }
    }

    /// Nothing new is to be locked under this lease.
    fn retire(&self, number: i64) {
        let mut lease = locked(&self.lease);
        if lease.number == number {
            lease.number = 0;
            // It is not renewed any more.
            lease.retired.push((number, Instant::now() + Duration::from_secs(LEASE_S)));
            self.changed.notify_all();
        }
    }

    /// The thread that keeps the lease.
    fn keep(&self, mut gateway: Gateway) {
        let mut certain_until = Instant::now();
        loop {
            let asked = Instant::now();
            let number = locked(&self.lease).number;
            let answer = match number {
                0 => gateway.grant(LEASE_S),
                _ => gateway.renew(number).map(|ttl_us| (if ttl_us == 0 { 0 } else { number }, ttl_us)),
            };
            let ended = match answer {
                Ok((granted, ttl_us)) => {
                    certain_until = asked + Duration::from_micros(ttl_us);
                    self.trouble.relieve();
                    // If it is over, the next one at once.
                    let pause = if granted == 0 { Duration::ZERO } else { RENEW_EVERY };
                    self.rest(number, granted, false, pause)
                }
                Err(error) => {
                    self.trouble.complain(|| error);
                    let away = number == 0 || Instant::now() >= certain_until;
                    self.rest(number, number, away, RETRY_EVERY)
                }
            };
            if ended {
                break;
            }
        }
        let lease = std::mem::take(&mut *locked(&self.lease));
        for number in lease.retired.iter().map(|retired| retired.0).chain([lease.number]) {
            if number != 0 {
                // If etcd is away it ends by itself.
                let _ = gateway.revoke(number);
            }
        }
    }

    /// Says what became of the lease, and waits until there is something to do with it; whether it is to end.
    fn rest(&self, before: i64, number: i64, away: bool, pause: Duration) -> bool {
        let mut lease = locked(&self.lease);
        // It may have been retired meanwhile.
        if lease.number == before {
            lease.number = number;
        }
        (lease.away, lease.doubted) = (away, false);
        self.changed.notify_all();
        let until = Instant::now() + pause;
        while !lease.ends && !lease.doubted && lease.number == number {
            let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
            else {
                break;
            };
            lease = self.changed.wait_timeout(lease, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let now = Instant::now();
        lease.retired.retain(|retired| now < retired.1);
        lease.ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_slashes() {
        assert_eq!(name_of("/sartor/1/locks/", b"\xff\xff\xff"), "/sartor/1/locks/____");
        assert_eq!(name_of("/p/", b"a"), "/p/YQ");
    }

    #[test]
    fn without_etcd_nothing_is_waited_for() {
        let (lines, told) = std::sync::mpsc::channel();
        // Nobody listens on a port that was given back just now.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let tell: Tell = Arc::new(move |line| lines.send(line).unwrap());
        let etcd = Etcd::open(vec![format!("127.0.0.1:{port}")], 1, 1, tell).unwrap();
        let refused = etcd.acquire(b"a", Instant::now() + Duration::from_secs(60)).unwrap_err();
        assert_eq!(refused, Refused { away: true, residue: None });
        assert!(told.recv().unwrap().contains("start it, or correct locks"));
        assert!(etcd.acquire(b"a", Instant::now() + Duration::from_secs(60)).is_err());
        assert!(told.try_recv().is_err());
    }
}

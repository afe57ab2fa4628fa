//! Locks of a service outside of the cluster: a node takes the lock of a key before it handles a client's request for
//! it, and gives it back after the answer.
//!
//! ```text
//!  worker ── ask: Acquire, Release ──▶ Table ── take, give ──▶ threads ──▶ Service: etcd, or Redlock
//!         ◀── deliver: Held, Failed ──   └ one call for a name at a time
//! ```
//!
//! Nothing that must be true rests on these locks: one may run out while its holder stands still. Every replica
//! checks the place of each operation by itself.
//!
//! To the service a lock is exclusive: readers of one name on different nodes exclude one another. On one node readers
//! share it, and it is passed on in the order of asking, a bounded number of times, before other nodes get their turn.

mod etcd;
mod redlock;
mod table;

use crate::metadata::addresses;
use sartor_core::node::locking::{LockCall, LockEvent};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use table::{Job, Table};

/// Threads that only give back: they are free while all others wait in the service.
const GIVING_THREADS: usize = 4;
/// How often people are told that something is wrong.
const COMPLAIN_EVERY: Duration = Duration::from_secs(5);

/// How locks are taken and kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long somebody waits for all of its names.
    pub wait: Duration,
    /// How long a name is kept after its last use; within the turn.
    pub hold: Duration,
    /// How long a name is passed on before other nodes get their turn.
    pub turn: Duration,
    /// How often a name is passed on before other nodes get their turn.
    pub passes: u32,
    /// Calls to the service at a time.
    pub threads: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        let ms = Duration::from_millis;
        Settings { wait: ms(3000), hold: Duration::ZERO, turn: ms(50), passes: 16, threads: 16 }
    }
}

/// What tells one holding of a lock from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Token {
    number: u128,
    /// When it runs out by itself, if that is known.
    until: Option<Instant>,
}

/// Why a lock was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refused {
    /// The service cannot be reached: waiting is of no use.
    away: bool,
    /// What must be given back still, as nobody knows whether it was taken.
    residue: Option<Token>,
}

/// A service that has locks. Its calls may block; it tells people by itself when it cannot be reached.
trait Service: Send + Sync {
    /// Waits for a lock, but no longer than this.
    fn acquire(&self, name: &[u8], until: Instant) -> Result<Token, Refused>;

    /// Gives it back; false if that must be tried again.
    fn release(&self, name: &[u8], token: Token) -> bool;

    /// Whether it is held still, as far as known without asking.
    fn is_held(&self, token: &Token) -> bool;
}

/// Tells people.
type Tell = Arc<dyn Fn(String) + Send + Sync>;

/// Locks of this node. They are given back when this is dropped.
pub struct Locks {
    shared: Arc<Shared>,
}

struct Shared {
    table: Mutex<Table>,
    stops: AtomicBool,
    /// There is something to take or to give.
    work: Condvar,
    /// There is something to give.
    gives: Condvar,
    /// The next alarm is another one.
    alarms: Condvar,
    deliver: Box<dyn Fn(LockEvent) + Send + Sync>,
    wait: Duration,
}

/// What a URL says.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Etcd(Vec<String>),
    Redis(Vec<String>),
}

/// Whether locks can be at this place; nobody is asked.
pub fn check(url: &str) -> Result<(), String> {
    parse(url).map(drop)
}

fn parse(url: &str) -> Result<Place, String> {
    let wrong =
        || format!("locks '{url}' is not possible; it must be etcd://HOST:PORT,... or redis://HOST:PORT,...");
    if let Some(list) = url.strip_prefix("etcd://") {
        return addresses(list).map(Place::Etcd).ok_or_else(wrong);
    }
    let list = url.strip_prefix("redis://").ok_or_else(wrong)?;
    let servers = addresses(list).ok_or_else(wrong)?;
    if servers.len() % 2 == 0 {
        let count = servers.len();
        return Err(format!(
            "locks '{url}' names {count} Redis servers; a majority needs an odd number, such as 3"
        ));
    }
    let twice = servers.iter().enumerate().find(|(index, addr)| servers[..*index].contains(addr));
    match twice {
        Some((_, addr)) => Err(format!("locks '{url}' names {addr} twice; a server has one vote")),
        None => Ok(Place::Redis(servers)),
    }
}

impl Locks {
    /// Locks of this cluster at `etcd://host:port,...` or, Redlock, `redis://host:port,...`. Returns at once,
    /// connected or not; connects again for ever. `deliver` and `trouble` are called by threads of the locks.
    pub fn open(
        url: &str,
        cluster: u64,
        node: u16,
        deliver: impl Fn(LockEvent) + Send + Sync + 'static,
        trouble: impl Fn(String) + Send + Sync + 'static,
    ) -> Result<Locks, String> {
        Locks::open_with(Settings::default(), url, cluster, node, deliver, trouble)
    }

    /// The same with other settings.
    pub fn open_with(
        settings: Settings,
        url: &str,
        cluster: u64,
        node: u16,
        deliver: impl Fn(LockEvent) + Send + Sync + 'static,
        trouble: impl Fn(String) + Send + Sync + 'static,
    ) -> Result<Locks, String> {
        let tell: Tell = Arc::new(trouble);
        let calls = settings.threads + GIVING_THREADS;
        let service: Arc<dyn Service> = match parse(url)? {
            Place::Etcd(endpoints) => Arc::new(etcd::Etcd::open(endpoints, cluster, calls, tell)?),
            Place::Redis(servers) => Arc::new(redlock::Redlock::new(servers, cluster, node, calls, &tell)?),
        };
        Locks::with(service, settings, Box::new(deliver))
    }

    fn with(
        service: Arc<dyn Service>,
        settings: Settings,
        deliver: Box<dyn Fn(LockEvent) + Send + Sync>,
    ) -> Result<Locks, String> {
        let judge = service.clone();
        let shared = Arc::new(Shared {
            table: Mutex::new(Table::new(settings, move |token| judge.is_held(token))),
            stops: AtomicBool::new(false),
            work: Condvar::new(),
            gives: Condvar::new(),
            alarms: Condvar::new(),
            deliver,
            wait: settings.wait,
        });
        // From here on an error ends the threads that run already.
        let locks = Locks { shared: shared.clone() };
        let clock = shared.clone();
        spawn("locks-clock", move || clock.watch_clock())?;
        for number in 0..settings.threads.max(1) + GIVING_THREADS {
            let (shared, service) = (shared.clone(), service.clone());
            spawn("locks", move || shared.work(&*service, number >= GIVING_THREADS))?;
        }
        Ok(locks)
    }

    /// Does not block; answers come through `deliver`, maybe before this returns.
    pub fn ask(&self, call: LockCall) {
        let now = Instant::now();
        self.shared.change(|table| match call {
            LockCall::Acquire { id, names, write } => table.acquire(now, id, names, write),
            LockCall::Release { id } => table.release(now, id),
        });
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        self.shared.table().close();
        self.shared.stops.store(true, Ordering::Release);
        // Who has looked at `stops` before waits by now, or will look again.
        drop(self.shared.table());
        self.shared.work.notify_all();
        self.shared.gives.notify_all();
        self.shared.alarms.notify_all();
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(run);
    thread.map(drop).map_err(|error| format!("cannot start a thread for locks: {error}"))
}

/// What a mutex guards; a thread that died with it has left it whole.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        locked(&self.table)
    }

    fn has_stopped(&self) -> bool {
        self.stops.load(Ordering::Acquire)
    }

    /// Changes the table, and sees to it that what follows is done.
    fn change(&self, change: impl FnOnce(&mut Table)) {
        let mut table = self.table();
        let (takes, gives) = table.jobs();
        let alarm = table.next_alarm();
        change(&mut table);
        let (takes_now, gives_now) = table.jobs();
        let sooner = table.next_alarm().is_some_and(|next| alarm.is_none_or(|alarm| next < alarm));
        let events = table.events();
        // Not under the mutex: who gets an event may ask for the next thing.
        drop(table);
        for _ in gives..gives_now {
            self.gives.notify_one();
        }
        for _ in takes + gives..takes_now + gives_now {
            self.work.notify_one();
        }
        if sooner {
            self.alarms.notify_one();
        }
        for event in events {
            (self.deliver)(event);
        }
    }

    /// A thread that makes calls; only such that give back, if not `takes`.
    fn work(&self, service: &dyn Service, takes: bool) {
        while let Some(job) = self.next_job(takes) {
            match job {
                Job::Take(name) => {
                    let answer = service.acquire(&name, Instant::now() + self.wait);
                    self.change(|table| table.taken(Instant::now(), &name, answer));
                }
                Job::Give(name, token) => {
                    let done = service.release(&name, token);
                    self.change(|table| table.given(Instant::now(), &name, token, done));
                }
            }
        }
    }

    /// Waits for a call to make; none when it is time to end.
    fn next_job(&self, takes: bool) -> Option<Job> {
        let doorbell = if takes { &self.work } else { &self.gives };
        let mut table = self.table();
        loop {
            if let Some(job) = table.next_job(takes) {
                return Some(job);
            }
            if self.has_stopped() {
                return None;
            }
            table = doorbell.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn watch_clock(&self) {
        while !self.has_stopped() {
            self.change(|table| table.tick(Instant::now()));
            let table = self.table();
            let left = table.next_alarm().map(|at| at.saturating_duration_since(Instant::now()));
            if self.has_stopped() {
                return;
            }
            match left {
                Some(left) => drop(self.alarms.wait_timeout(table, left)),
                None => drop(self.alarms.wait(table)),
            }
        }
    }
}

/// Something that can be away: people are told once when it goes, and once when it is back.
struct Trouble {
    tell: Tell,
    /// The line for when it is back.
    back: String,
    is_told: AtomicBool,
    told_at: Mutex<Option<Instant>>,
}

impl Trouble {
    fn new(tell: Tell, back: String) -> Trouble {
        Trouble { tell, back, is_told: AtomicBool::new(false), told_at: Mutex::new(None) }
    }

    /// It is away. What comes and goes is told of now and then.
    fn complain(&self, text: impl FnOnce() -> String) {
        if self.is_told.load(Ordering::Relaxed) {
            return;
        }
        let mut told_at = locked(&self.told_at);
        let now = Instant::now();
        let rests = told_at.is_some_and(|at| now < at + COMPLAIN_EVERY);
        if !rests && !self.is_told.swap(true, Ordering::Relaxed) {
            *told_at = Some(now);
            (self.tell)(text());
        }
    }

    /// It answers.
    fn relieve(&self) {
        if self.is_told.load(Ordering::Relaxed) && self.is_told.swap(false, Ordering::Relaxed) {
            (self.tell)(self.back.clone());
        }
    }
}

#[cfg(test)]
mod tests;

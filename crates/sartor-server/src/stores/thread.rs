//! A store that may block: on a thread of its own, beside the loop. It takes all tasks that wait as one group, does them,
//! commits once, and only then tells what came of them.

use super::disks::remove;
use crate::config::Fsync;
use crate::worker::{Mail, Mailbox};
use bytes::Bytes;
use sartor_core::datalet::DataletError;
use sartor_core::ids::{Position, ShardId};
use sartor_core::keeper::{Done, Keeper, Task};
use sartor_core::record::Bounds;
use sartor_core::survey::Report;
use sartor_core::time::Now;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Tasks that look at so many keys do not wait for more.
const KEYS_MAX: usize = 128;
/// Tasks of one group at most.
const GROUP_MAX: usize = 1024;
/// A store on disk that failed, and whose copy nobody took out meanwhile, is the last of its shard: the process ends
/// after so long, so that its next life sees what is there.
const LAST_AFTER: Duration = Duration::from_secs(5);

/// What a thread is told.
enum Job {
    Tasks(Vec<(Now, Task)>),
    Full(bool),
    Bounds(Bounds),
    Whole,
    Corrupt(Bytes),
    /// It is not wanted any more, and its folder neither.
    Remove,
}

/// What is seen of a store from outside, as of its last group.
#[derive(Clone, Default)]
pub struct Seen {
    /// Its memory, in bytes.
    pub bytes: u64,
    /// How far it is.
    pub position: Position,
    /// Its last survey.
    pub surveyed: Option<Report>,
}

/// A store's thread, as the worker knows it.
pub struct Threaded {
    jobs: Sender<Job>,
    seen: Arc<Mutex<Seen>>,
    /// Tasks that go with the next group.
    waiting: Vec<(Now, Task)>,
    /// At how many keys they look.
    keys: usize,
}

/// How a store is opened, by its thread.
pub type Open = Box<dyn FnOnce() -> Result<Keeper, String> + Send>;

impl Threaded {
    /// A thread that opens a store and works for it until it is dropped. Its folder stays, unless it is removed first.
    pub fn start(
        shard: ShardId,
        kind: String,
        open: Open,
        (dir, is_durable): (Option<PathBuf>, bool),
        fsync: Fsync,
        mailbox: Mailbox,
    ) -> Result<Threaded, String> {
        let (jobs, receiver) = channel();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let store = Store { shard, kind, jobs: receiver, seen: seen.clone(), fsync, mailbox, is_durable };
        let spawned = std::thread::Builder::new()
            .name(format!("store-{}", shard.0))
            .spawn(move || store.run(open, dir));
        spawned.map_err(|error| format!("cannot start a thread for shard {}: {error}", shard.0))?;
        Ok(Threaded { jobs, seen, waiting: Vec::new(), keys: 0 })
    }

    /// What is said after tasks comes after them.
    fn tell(&mut self, job: Job) {
        self.flush();
        self.send(job);
    }

    fn send(&self, job: Job) {
        // Who is gone has said why.
        let _ = self.jobs.send(job);
    }

    /// Adds a task to those that wait. Many go at once, so that the thread need not idle for more.
    pub fn add(&mut self, now: Now, task: Task) {
        self.keys += task.keys();
        self.waiting.push((now, task));
        if self.keys >= KEYS_MAX {
            self.flush();
        }
    }

    /// Whether tasks wait.
    pub fn holds(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends the tasks that wait.
    pub fn flush(&mut self) {
        if !self.waiting.is_empty() {
            let tasks = std::mem::take(&mut self.waiting);
            self.keys = 0;
            self.send(Job::Tasks(tasks));
        }
    }

    /// There is no memory for more, or there is.
    pub fn set_full(&mut self, full: bool) {
        self.tell(Job::Full(full));
    }

    /// Which records are taken from now on.
    pub fn set_bounds(&mut self, bounds: Bounds) {
        self.tell(Job::Bounds(bounds));
    }

    /// All records of a fill are there.
    pub fn become_whole(&mut self) {
        self.tell(Job::Whole);
    }

    /// Damages a record.
    pub fn corrupt(&mut self, key: Bytes) {
        self.tell(Job::Corrupt(key));
    }

    /// Ends it, and removes its folder.
    pub fn remove(self) {
        // What waits for it is of no use any more.
        self.send(Job::Remove);
    }

    /// What is seen of it.
    pub fn seen(&self) -> Seen {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

struct Store {
    shard: ShardId,
    /// Its kind, as it may be shown.
    kind: String,
    jobs: Receiver<Job>,
    seen: Arc<Mutex<Seen>>,
    fsync: Fsync,
    mailbox: Mailbox,
    is_durable: bool,
}

impl Store {
    fn run(self, open: Open, dir: Option<PathBuf>) {
        let mut keeper = match open() {
            Ok(keeper) => Some(keeper),
            Err(error) => {
                self.complain(&error);
                None
            }
        };
        let mut failed = keeper.is_none().then(Instant::now);
        let mut synced = Instant::now();
        let mut removed = false;
        while let Some(group) = self.wait(&mut keeper, failed.is_some(), synced, &mut removed) {
            if !group.is_empty() {
                self.work(&mut keeper, group);
            }
            if self.is_due(keeper.as_ref(), synced) {
                synced = Instant::now();
                // Where it fails, the next group is told so.
                keeper.iter_mut().for_each(|keeper| keeper.commit_or_break(true));
            }
            if failed.is_none() && keeper.as_ref().is_some_and(Keeper::is_broken) {
                failed = Some(Instant::now());
            }
            if self.is_durable && failed.is_some_and(|at| at.elapsed() > LAST_AFTER) {
                self.complain("no other copy took its place; this process ends, so that its next life sees what is there");
                std::process::exit(1);
            }
        }
        drop(keeper);
        dir.iter().filter(|_| removed).for_each(|dir| remove(dir));
    }

    fn complain(&self, what: &str) {
        let Store { shard, kind, .. } = self;
        eprintln!("sartor: the store of shard {}, {kind}: {what}", shard.0);
    }

    fn is_due(&self, keeper: Option<&Keeper>, synced: Instant) -> bool {
        let owes = keeper.is_some_and(Keeper::owes_disk);
        owes && self.fsync.every().is_some_and(|every| synced.elapsed() >= every)
    }

    /// Tasks to be done, none where something else is due; nothing at all when it is over.
    fn wait(
        &self,
        keeper: &mut Option<Keeper>,
        failed: bool,
        synced: Instant,
        removed: &mut bool,
    ) -> Option<Vec<(Now, Task)>> {
        let mut group = Vec::new();
        let owes = keeper.as_ref().is_some_and(Keeper::owes_disk);
        let until_sync =
            self.fsync.every().filter(|_| owes).map(|every| every.saturating_sub(synced.elapsed()));
        let patience = until_sync.or(failed.then_some(Duration::from_millis(500)));
        let first = match patience {
            Some(patience) => match self.jobs.recv_timeout(patience) {
                Err(RecvTimeoutError::Timeout) => return Some(group),
                Err(RecvTimeoutError::Disconnected) => return None,
                Ok(job) => job,
            },
            None => self.jobs.recv().ok()?,
        };
        let mut next = Some(first);
        while let Some(job) = next {
            match job {
                Job::Remove => {
                    *removed = true;
                    return None;
                }
                Job::Tasks(tasks) => group.extend(tasks),
                // What concerns the tasks before comes after them.
                other if !group.is_empty() => {
                    self.work(keeper, std::mem::take(&mut group));
                    self.tend(keeper.as_mut(), other);
                }
                other => self.tend(keeper.as_mut(), other),
            }
            next = if group.len() < GROUP_MAX { self.jobs.try_recv().ok() } else { None };
        }
        Some(group)
    }

    fn tend(&self, keeper: Option<&mut Keeper>, job: Job) {
        let Some(keeper) = keeper else { return };
        let done: Result<(), DataletError> = match job {
            Job::Full(full) => {
                keeper.set_full(full);
                Ok(())
            }
            Job::Bounds(bounds) => {
                keeper.set_bounds(bounds);
                Ok(())
            }
            Job::Whole => {
                keeper.become_whole();
                Ok(())
            }
            Job::Corrupt(key) => keeper.corrupt(&key).map(|_| ()),
            Job::Tasks(_) | Job::Remove => Ok(()),
        };
        done.unwrap_or_else(|error| self.complain(&error.to_string()));
    }

    fn work(&self, keeper: &mut Option<Keeper>, group: Vec<(Now, Task)>) {
        let durably = self.fsync == Fsync::Always;
        let done = match keeper {
            Some(keeper) => {
                let was_broken = keeper.is_broken();
                let done = keeper.run_group(group, durably);
                if let Some(error) = keeper.broken().filter(|_| !was_broken) {
                    self.complain(&error.to_string());
                }
                let seen =
                    Seen { bytes: keeper.bytes(), position: keeper.position(), surveyed: keeper.surveyed() };
                *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = seen;
                done
            }
            None => group.into_iter().map(|(_, task)| Done::missing(task)).collect(),
        };
        self.mailbox.post(Mail::Stored(self.shard, done));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::MailboxEnd;
    use sartor_core::keeper::KeeperLimits;
    use sartor_datalets::{Options, engine};

    fn thread() -> (Threaded, MailboxEnd) {
        let (mailbox, end) = Mailbox::new().unwrap();
        let open = || {
            let store = (engine("hash").unwrap().open)(&Options::default()).unwrap();
            Ok(Keeper::enveloped(store, KeeperLimits::default()))
        };
        let kind = "hash".to_owned();
        let thread = Threaded::start(ShardId(0), kind, Box::new(open), (None, false), Fsync::Never, mailbox);
        (thread.unwrap(), end)
    }

    fn add(thread: &mut Threaded, count: usize) {
        (0..count).for_each(|_| thread.add(Now { steady_us: 0, unix_ms: 0 }, Task::Check));
    }

    #[test]
    fn tasks_wait_for_more_but_not_when_there_are_many_nor_past_what_is_said_after_them() {
        let (mut thread, end) = thread();
        add(&mut thread, KEYS_MAX - 1);
        assert!(thread.holds());
        add(&mut thread, 1);
        assert!(!thread.holds(), "these are enough");
        add(&mut thread, 1);
        thread.become_whole();
        assert!(!thread.holds(), "what is said after tasks comes after them");
        thread.flush();
        let mut done = 0;
        while done < KEYS_MAX + 1 {
            done += end.take_stored();
        }
        assert_eq!(done, KEYS_MAX + 1);
    }
}

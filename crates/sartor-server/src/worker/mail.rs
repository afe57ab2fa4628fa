//! Mail between the workers of a node. Who is awake looks for it by himself; only a sleeper is woken, which costs a
//! system call.

use crate::link::Handover;
use bytes::Bytes;
use mio::{Poll, Token, Waker};
use sartor_core::controlet::part::log::LogEvent;
use sartor_core::coordinator::ReplicaReport;
use sartor_core::coordinator::wish::Change;
use sartor_core::ids::ShardId;
use sartor_core::keeper::Done;
use sartor_core::node::letters::Letter;
use sartor_core::node::locking::LockEvent;
use sartor_core::routing::map::ClusterMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// What workers of a node send each other, once a turn.
pub enum Mail {
    /// What one worker's node says to another's.
    Letters(Vec<Letter>),
    /// A frame for your node.
    Frame(Bytes),
    /// A newer map.
    Map(Arc<ClusterMap>),
    /// How the replicas of that worker stand.
    Reports(u8, Vec<ReplicaReport>),
    /// A link that is for you.
    Link(Handover),
    /// A user wants this changed.
    Wish(Change),
    /// What a log outside answers, for a shard that is yours.
    Log(ShardId, u64, LogEvent),
    /// What the locks outside answer.
    Lock(LockEvent),
    /// What came of tasks of a store that has a thread.
    Stored(ShardId, Vec<Done>),
    /// Damage the record of this key in your copy.
    Corrupt(ShardId, Bytes),
}

/// Where a worker gets its mail.
#[derive(Clone)]
pub struct Mailbox {
    sender: Sender<Mail>,
    bell: Arc<Bell>,
}

/// The receiving end.
pub struct Inbox {
    receiver: Receiver<Mail>,
    bell: Arc<Bell>,
}

struct Bell {
    waker: Waker,
    /// Letters that were not taken yet, or are about to be posted.
    waiting: AtomicUsize,
    /// The worker sleeps, or is about to: it must be woken.
    asleep: AtomicBool,
}

/// A mailbox, and the worker's end of it. The waker's events have this token.
pub fn mailbox(poll: &Poll, token: Token) -> io::Result<(Mailbox, Inbox)> {
    let waker = Waker::new(poll.registry(), token)?;
    let bell = Arc::new(Bell { waker, waiting: AtomicUsize::new(0), asleep: AtomicBool::new(false) });
    let (sender, receiver) = channel();
    Ok((Mailbox { sender, bell: bell.clone() }, Inbox { receiver, bell }))
}

impl Mailbox {
    /// Sends something.
    pub fn post(&self, mail: Mail) {
        // Counted first: either the worker sees that before it sleeps, or we see that it sleeps.
        self.bell.waiting.fetch_add(1, Ordering::SeqCst);
        if self.sender.send(mail).is_ok() && self.bell.asleep.swap(false, Ordering::SeqCst) {
            let _ = self.bell.waker.wake();
        }
    }
}

impl Inbox {
    /// Whether something is there, or about to be.
    pub fn has_mail(&self) -> bool {
        self.bell.waiting.load(Ordering::SeqCst) > 0
    }

    /// The worker is about to sleep; whether it may.
    pub fn may_sleep(&self) -> bool {
        self.bell.asleep.store(true, Ordering::SeqCst);
        !self.has_mail()
    }

    /// The worker is awake.
    pub fn is_awake(&self) {
        self.bell.asleep.store(false, Ordering::SeqCst);
    }

    /// The next letter.
    pub fn take(&self) -> Option<Mail> {
        let mail = self.receiver.try_recv().ok()?;
        self.bell.waiting.fetch_sub(1, Ordering::SeqCst);
        Some(mail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mio::Events;
    use std::time::Duration;

    #[test]
    fn no_letter_is_slept_over() {
        const LETTERS: u8 = 200;
        let mut poll = Poll::new().unwrap();
        let (mailbox, inbox) = mailbox(&poll, Token(1)).unwrap();
        let posters: Vec<_> = (0..3)
            .map(|_| {
                let mailbox = mailbox.clone();
                std::thread::spawn(move || {
                    for number in 0..LETTERS {
                        mailbox.post(Mail::Reports(number, Vec::new()));
                        if number % 7 == 0 {
                            std::thread::sleep(Duration::from_micros(300));
                        }
                    }
                })
            })
            .collect();
        let (mut events, mut taken) = (Events::with_capacity(8), 0);
        while taken < 3 * u32::from(LETTERS) {
            if inbox.may_sleep() {
                // Without an end: a letter that woke nobody would hang here.
                poll.poll(&mut events, None).unwrap();
            }
            inbox.is_awake();
            taken += std::iter::from_fn(|| inbox.take()).count() as u32;
        }
        posters.into_iter().for_each(|poster| poster.join().unwrap());
        assert!(!inbox.has_mail());
    }
}

use super::*;
use bytes::Bytes;
use std::collections::HashSet;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, channel};

/// A service of this process, for several nodes.
#[derive(Default)]
struct Fake {
    taken: Mutex<HashSet<Vec<u8>>>,
    freed: Condvar,
}

impl Service for Fake {
    fn acquire(&self, name: &[u8], until: Instant) -> Result<Token, Refused> {
        let mut taken = locked(&self.taken);
        while !taken.insert(name.to_vec()) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Refused { away: false, residue: None });
            }
            taken = self.freed.wait_timeout(taken, left).unwrap().0;
        }
        Ok(Token { number: 0, until: None })
    }

    fn release(&self, name: &[u8], _: Token) -> bool {
        assert!(locked(&self.taken).remove(name));
        self.freed.notify_all();
        true
    }

    fn is_held(&self, _: &Token) -> bool {
        true
    }
}

fn node(service: &Arc<Fake>, settings: Settings) -> (Locks, Receiver<LockEvent>) {
    let (events, heard) = channel();
    let deliver = Box::new(move |event| {
        let _ = events.send(event);
    });
    (Locks::with(service.clone(), settings, deliver).unwrap(), heard)
}

#[test]
fn what_a_url_may_be() {
    assert_eq!(parse("etcd://a:1,b:2"), Ok(Place::Etcd(vec!["a:1".into(), "b:2".into()])));
    assert_eq!(parse("redis://a:1"), Ok(Place::Redis(vec!["a:1".into()])));
    assert_eq!(check("redis://a:1,a:2,b:1"), Ok(()));
    for wrong in
        ["", "file", "etcd://", "etcd://a", "redis://a:x", "redis://a:1,", "redis://u:p@a:1", "zk://a:1"]
    {
        assert!(check(wrong).unwrap_err().contains("redis://HOST:PORT"), "{wrong}");
    }
    assert!(check("redis://a:1,b:1").unwrap_err().contains("odd number"));
    assert!(check("redis://a:1,b:1,a:1").unwrap_err().contains("names a:1 twice"));
    assert!(Locks::open("x", 1, 1, |_| {}, |_| {}).is_err());
}

#[test]
fn two_nodes_exclude_one_another() {
    let service = Arc::new(Fake::default());
    let counters: Arc<Vec<AtomicU64>> = Arc::new((0..3).map(|_| AtomicU64::new(0)).collect());
    let nodes: Vec<_> =
        (0..2).map(|_| node(&service, Settings { threads: 2, ..Settings::default() })).collect();
    let threads: Vec<_> = nodes
        .into_iter()
        .map(|(locks, heard)| {
            let counters = counters.clone();
            std::thread::spawn(move || {
                let names = |id: u64| {
                    vec![Bytes::from(vec![(id % 3) as u8]), Bytes::from(vec![((id + 1) % 3) as u8])]
                };
                let acquire = |id| locks.ask(LockCall::Acquire { id, names: names(id), write: true });
                (0..300).for_each(acquire);
                for _ in 0..300 {
                    let LockEvent::Held { id } = heard.recv().unwrap() else { panic!() };
                    for index in [id % 3, (id + 1) % 3] {
                        // Not one step: whoever is not alone loses some.
                        let seen = counters[index as usize].load(Ordering::Relaxed);
                        std::thread::yield_now();
                        counters[index as usize].store(seen + 1, Ordering::Relaxed);
                    }
                    locks.ask(LockCall::Release { id });
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(counters.iter().map(|counter| counter.load(Ordering::Relaxed)).sum::<u64>(), 1200);
}

#[test]
fn who_is_late_is_told_and_dropping_gives_back() {
    let service = Arc::new(Fake::default());
    let wait = Duration::from_millis(50);
    let (one, one_heard) = node(&service, Settings { wait, ..Settings::default() });
    let (two, two_heard) = node(&service, Settings { wait, ..Settings::default() });
    let acquire = |id| LockCall::Acquire { id, names: vec![Bytes::from_static(b"k")], write: true };
    one.ask(acquire(1));
    assert_eq!(one_heard.recv().unwrap(), LockEvent::Held { id: 1 });
    two.ask(acquire(2));
    assert_eq!(two_heard.recv().unwrap(), LockEvent::Failed { id: 2 });
    drop(one);
    two.ask(acquire(3));
    assert_eq!(two_heard.recv().unwrap(), LockEvent::Held { id: 3 });
}

#[test]
fn trouble_is_told_once() {
    let (lines, told) = channel();
    let trouble = Trouble::new(Arc::new(move |line| lines.send(line).unwrap()), "back".into());
    trouble.relieve();
    for _ in 0..3 {
        trouble.complain(|| "away".into());
    }
    trouble.relieve();
    trouble.relieve();
    // So soon after the first it is not worth a line.
    trouble.complain(|| "away".into());
    assert_eq!(told.try_iter().collect::<Vec<_>>(), ["away", "back"]);
}

use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A table, and a service that answers when a test says so.
struct World {
    table: Table,
    now: Instant,
    tokens: u128,
}

fn world(settings: Settings) -> World {
    World { table: Table::new(settings, |_| true), now: Instant::now(), tokens: 0 }
}

fn names(list: &[&'static str]) -> Vec<Bytes> {
    list.iter().map(|name| Bytes::from_static(name.as_bytes())).collect()
}

impl World {
    fn read(&mut self, id: u64) {
        self.table.acquire(self.now, id, names(&["k"]), false);
    }

    fn write(&mut self, id: u64) {
        self.table.acquire(self.now, id, names(&["k"]), true);
    }

    fn release(&mut self, id: u64) {
        self.table.release(self.now, id);
    }

    fn pass(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
        self.table.tick(self.now);
    }

    fn token(&mut self) -> Token {
        self.tokens += 1;
        Token { number: self.tokens, until: None }
    }

    /// The service grants and takes back all that it is asked; the calls.
    fn serve(&mut self) -> Vec<String> {
        let mut calls = Vec::new();
        while let Some(job) = self.table.next_job(true) {
            match job {
                Job::Take(name) => {
                    calls.push(format!("+{}", String::from_utf8_lossy(&name)));
                    let token = self.token();
                    self.table.taken(self.now, &name, Ok(token));
                }
                Job::Give(name, token) => {
                    calls.push(format!("-{}", String::from_utf8_lossy(&name)));
                    self.table.given(self.now, &name, token, true);
                }
            }
        }
        calls
    }

    fn held(&mut self) -> Vec<u64> {
        let held = self.table.events().into_iter().map(|event| match event {
            LockEvent::Held { id } => id,
            LockEvent::Failed { id } => id + 1000,
        });
        held.collect()
    }

    fn is_empty(&self) -> bool {
        let table = &self.table;
        table.names.is_empty() && table.orders.is_empty() && table.alarms.is_empty() && table.jobs() == (0, 0)
    }
}

#[test]
fn first_come_first_served_with_readers_together() {
    let mut world = world(Settings::default());
    for id in [1, 2] {
        world.write(id);
    }
    for id in [3, 4] {
        world.read(id);
    }
    world.write(5);
    world.read(6);
    assert_eq!(world.serve(), ["+k"]);
    assert_eq!(world.held(), [1]);
    world.release(1);
    assert_eq!(world.held(), [2]);
    world.release(2);
    let mut readers = world.held();
    readers.sort_unstable();
    assert_eq!(readers, [3, 4]);
    // It comes after a writer that waits.
    world.read(7);
    world.release(3);
    assert_eq!(world.held(), [0; 0]);
    world.release(4);
    assert_eq!(world.held(), [5]);
    world.release(5);
    assert_eq!(world.held().len(), 2);
    world.release(6);
    assert_eq!(world.serve(), [""; 0]);
    world.release(7);
    assert_eq!(world.serve(), ["-k"]);
    assert!(world.is_empty());
}

#[test]
fn a_reader_joins_readers_until_the_turn_is_over() {
    let mut world = world(Settings { passes: 2, ..Settings::default() });
    world.read(1);
    world.serve();
    for id in 2..5 {
        world.read(id);
    }
    assert_eq!(world.held(), [1, 2, 3]);
    for id in 1..4 {
        world.release(id);
    }
    assert_eq!(world.serve(), ["-k", "+k"]);
    assert_eq!(world.held(), [4]);
}

#[test]
fn passing_on_is_bounded() {
    let mut world = world(Settings::default());
    for id in 0..40 {
        world.write(id);
    }
    let mut calls = Vec::new();
    for id in 0..40 {
        calls.extend(world.serve());
        assert_eq!(world.held(), [id]);
        world.release(id);
    }
    calls.extend(world.serve());
    // The first of a turn and 16 more.
    assert_eq!(calls, ["+k", "-k", "+k", "-k", "+k", "-k"]);
    for id in 0..3 {
        world.write(id);
    }
    world.serve();
    world.pass(20);
    world.release(0);
    assert_eq!(world.serve(), [""; 0]);
    world.pass(31);
    world.release(1);
    assert_eq!(world.serve(), ["-k", "+k"]);
    assert_eq!(world.held(), [0, 1, 2]);
}

#[test]
fn what_the_service_lost_is_not_passed_on() {
    let mut world = world(Settings::default());
    let flag = Arc::new(AtomicBool::new(true));
    let judge = flag.clone();
    world.table = Table::new(Settings::default(), move |_| judge.load(Ordering::Relaxed));
    world.write(1);
    world.write(2);
    world.serve();
    flag.store(false, Ordering::Relaxed);
    world.release(1);
    assert_eq!(world.serve(), ["-k", "+k"]);
    assert_eq!(world.held(), [1, 2]);
}

#[test]
fn several_names_are_taken_in_order() {
    let mut world = world(Settings::default());
    world.table.acquire(world.now, 1, names(&["c", "a", "b", "a"]), true);
    world.table.acquire(world.now, 2, names(&["b", "a"]), true);
    assert_eq!(world.serve(), ["+a", "+b", "+c"]);
    assert_eq!(world.held(), [1]);
    world.release(1);
    assert_eq!(world.held(), [2]);
    world.serve();
    world.release(2);
    world.serve();
    assert!(world.is_empty());
    world.table.acquire(world.now, 3, Vec::new(), true);
    assert_eq!(world.held(), [3]);
    world.release(3);
    assert!(world.is_empty());
}

#[test]
fn who_waits_too_long_gives_all_back() {
    let mut world = world(Settings { turn: Duration::from_secs(60), ..Settings::default() });
    world.table.acquire(world.now, 1, names(&["b"]), true);
    world.serve();
    world.table.acquire(world.now, 2, names(&["a", "b"]), true);
    world.table.acquire(world.now, 3, names(&["a"]), true);
    world.table.acquire(world.now, 4, names(&["b"]), false);
    world.serve();
    assert_eq!(world.held(), [1]);
    world.pass(2999);
    assert_eq!(world.held(), [0; 0]);
    world.table.acquire(world.now, 5, names(&["b"]), true);
    world.pass(1);
    let mut told = world.held();
    told.sort_unstable();
    // 3 gets what 2 gave back, in the same moment in which its time was over, or is told so.
    assert!(told.starts_with(&[3, 1002]) || told.starts_with(&[1002, 1003]), "{told:?}");
    assert!(told.contains(&1004));
    world.release(3);
    world.release(1);
    assert_eq!(world.held(), [5]);
    world.release(5);
    world.serve();
    assert!(world.is_empty());
}

#[test]
fn releasing_while_waiting() {
    let mut world = world(Settings::default());
    world.read(1);
    world.serve();
    world.write(2);
    world.read(3);
    assert_eq!(world.held(), [1]);
    // The writer goes; the reader behind it joins.
    world.release(2);
    assert_eq!(world.held(), [3]);
    world.release(1);
    world.release(3);
    world.serve();
    assert!(world.is_empty());
    // Nobody wants it any more: before the service is asked, and while it is.
    world.write(4);
    world.release(4);
    assert_eq!(world.serve(), [""; 0]);
    world.write(5);
    let Some(Job::Take(name)) = world.table.next_job(true) else { panic!() };
    world.release(5);
    let token = world.token();
    world.table.taken(world.now, &name, Ok(token));
    assert_eq!(world.serve(), ["-k"]);
    assert_eq!(world.held(), [0; 0]);
    assert!(world.is_empty());
    // An id that waits or holds is not asked for twice.
    world.write(6);
    world.write(6);
    assert_eq!(world.held(), [1006]);
}

#[test]
fn a_service_that_is_away_fails_all_who_wait() {
    let mut world = world(Settings::default());
    for id in 1..4 {
        world.write(id);
    }
    let Some(Job::Take(name)) = world.table.next_job(true) else { panic!() };
    world.table.taken(world.now, &name, Err(Refused { away: true, residue: None }));
    assert_eq!(world.held(), [1001, 1002, 1003]);
    assert!(world.is_empty());
    // Too late for one is not for who came after it; what may be left is given back before.
    world.write(1);
    let Some(Job::Take(name)) = world.table.next_job(true) else { panic!() };
    let residue = Some(world.token());
    world.table.taken(world.now, &name, Err(Refused { away: false, residue }));
    assert_eq!(world.serve(), ["-k", "+k"]);
    assert_eq!(world.held(), [1]);
}

#[test]
fn what_cannot_be_given_back_is_tried_again() {
    let mut world = world(Settings::default());
    world.write(1);
    world.serve();
    world.release(1);
    let Some(Job::Give(name, token)) = world.table.next_job(false) else { panic!() };
    world.table.given(world.now, &name, token, false);
    assert_eq!(world.table.next_job(true), None);
    world.pass(500);
    assert_eq!(world.table.next_job(true), Some(Job::Give(name.clone(), token)));
    world.table.given(world.now, &name, token, false);
    // Taken again, it is not lost; and if that fails, what is left is remembered.
    world.write(2);
    assert_eq!(world.table.next_job(true), Some(Job::Take(name.clone())));
    world.table.taken(world.now, &name, Err(Refused { away: true, residue: None }));
    assert_eq!(world.serve(), ["-k"]);
    assert_eq!(world.held(), [1, 1002]);
    world.pass(500);
    assert!(world.is_empty());
}

#[test]
fn a_name_is_kept_for_a_while() {
    let hold = Duration::from_millis(5);
    let mut world = world(Settings { hold, ..Settings::default() });
    world.write(1);
    assert_eq!(world.serve(), ["+k"]);
    for id in 2..10 {
        world.release(id - 1);
        world.pass(4);
        world.write(id);
        assert_eq!(world.serve(), [""; 0]);
    }
    assert!(world.table.alarms.len() <= 1);
    world.release(9);
    world.pass(5);
    assert_eq!(world.serve(), ["-k"]);
    assert!(world.is_empty());
}

#[test]
fn closing_gives_back() {
    let mut world = world(Settings::default());
    world.write(1);
    world.serve();
    world.write(2);
    world.table.close();
    assert_eq!(world.serve(), ["-k"]);
    world.held();
    world.write(3);
    assert_eq!(world.held(), [1003]);
    assert!(world.is_empty());
}

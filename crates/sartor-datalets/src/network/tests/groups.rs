//! That groups take few round trips, and what they see.

use super::fake::{Fake, Flavour};
use super::{get, open, said};
use sartor_core::datalet::{Datalet, DataletError};
use sartor_core::ids::{Epoch, Position, ShardId};
use sartor_core::keeper::{Done, Keeper, KeeperLimits, Task};
use sartor_core::operation::{Consistency, From, Op, Outcome, Request, SessionId};
use sartor_core::run::Packer;
use sartor_core::time::Now;

fn redis() -> (Fake, Box<dyn Datalet>) {
    let fake = Fake::new(Flavour::Redis);
    let store = open(&format!("redis://{}", fake.address)).unwrap();
    (fake, store)
}

fn trips(fake: &Fake) -> usize {
    fake.with(|state| std::mem::take(&mut state.trips))
}

#[test]
fn a_group_of_reads_is_one_round_trip_and_so_is_one_of_writes() {
    let (fake, mut store) = redis();
    trips(&fake);
    for i in 0..100 {
        store.expect(i.to_string().as_bytes());
        store.put(i.to_string().as_bytes(), b"value").unwrap();
    }
    assert_eq!(fake.with(|state| state.pairs.len()), 0, "they are kept back");
    store.commit(b"", false).unwrap();
    assert_eq!((trips(&fake), fake.with(|state| state.pairs.len())), (1, 100));

    (0..110).for_each(|i| store.expect(i.to_string().as_bytes()));
    for i in 0..110 {
        let there = (i < 100).then(|| "value".to_owned());
        assert_eq!(get(store.as_mut(), &i.to_string()), Ok(there));
    }
    store.commit(b"", false).unwrap();
    assert_eq!(trips(&fake), 1);

    // A group that asks nothing asks whether the store is there.
    store.commit(b"", false).unwrap();
    assert_eq!(trips(&fake), 1);
}

#[test]
fn one_task_that_looks_at_many_keys_is_one_round_trip() {
    let (fake, store) = redis();
    let mut keeper = Keeper::beside(store, open("hash").unwrap(), KeeperLimits::default());
    for (write, value) in [(true, None), (false, Some("value"))] {
        let mut packer = Packer::default();
        for i in 0..50 {
            let key = i.to_string();
            if write { packer.set(key.as_bytes(), b"value") } else { packer.get(key.as_bytes()) }
        }
        trips(&fake);
        let now = Now { steady_us: 0, unix_ms: 1000 };
        let task = Task::Evaluate(request(Op::Run(packer.take())), Epoch(1));
        let done = keeper.run_group(vec![(now, task)], false);
        let [Done::Evaluated(_, Outcome::Run(answers), _)] = &done[..] else { panic!("{done:?}") };
        let found = answers.iter().filter(|answer| answer.to_outcome() != Outcome::Done);
        assert_eq!((answers.iter().count(), found.count()), (50, value.map_or(0, |_| 50)));
        assert_eq!(trips(&fake), 1, "{value:?}");
    }
}

fn request(op: Op) -> Request {
    Request {
        from: From::Session { session: SessionId { index: 0, generation: 0 }, tag: 0 },
        shard: ShardId(0),
        op,
        floor: Position::ZERO,
        consistency: Consistency::Mode,
        deadline_us: 0,
    }
}

#[test]
fn a_group_sees_its_own_writes_and_the_next_one_what_others_did() {
    let (fake, mut store) = redis();
    store.put(b"a", b"1").unwrap();
    store.put(b"b", b"1").unwrap();
    store.commit(b"", false).unwrap();
    fake.with(|state| state.asked.clear());
    ["a", "b", "c"].iter().for_each(|key| store.expect(key.as_bytes()));
    store.delete(b"a").unwrap();
    assert_eq!(get(store.as_mut(), "a"), Ok(None), "without asking");
    assert_eq!(fake.with(|state| state.asked.len()), 0);
    assert_eq!(get(store.as_mut(), "b"), Ok(Some("1".into())));
    // What was put back goes first, and nothing is asked twice.
    assert_eq!(fake.with(|state| state.asked.join(" ")), "DBSIZE DEL GET GET DBSIZE");
    store.put(b"b", b"2").unwrap();
    store.put(b"c", b"2").unwrap();
    assert_eq!(get(store.as_mut(), "b"), Ok(Some("2".into())));
    store.commit(b"", false).unwrap();
    fake.with(|state| state.pairs.insert(b"b".to_vec(), b"other".to_vec()));
    assert_eq!(get(store.as_mut(), "b"), Ok(Some("other".into())));
}

#[test]
fn many_writes_are_sent_before_the_end_of_the_group() {
    let (fake, mut store) = redis();
    let value = vec![b'v'; 10_000];
    (0..100).for_each(|i: u32| store.put(&i.to_le_bytes(), &value).unwrap());
    let sent = fake.with(|state| state.pairs.len());
    assert!((70..100).contains(&sent), "{sent} of 100 were sent");
    // So are many keys to read.
    let long = |i: u32| format!("{i:01000}");
    (0..200).for_each(|i| store.expect(long(i).as_bytes()));
    fake.with(|state| state.asked.clear());
    assert_eq!(get(store.as_mut(), &long(0)), Ok(None));
    let asked = fake.with(|state| state.asked.iter().filter(|command| *command == "GET").count());
    assert_eq!(asked, 200);
    assert_eq!(fake.with(|state| state.pairs.len()), 100);
}

#[test]
fn what_a_memcached_cannot_keep_is_refused_and_does_no_harm() {
    let fake = Fake::scripted(&[
        ("stats\r\n", "STAT pid 1\r\nSTAT uptime 5\r\nSTAT time 100\r\nEND\r\n"),
        ("mn\r\n", "MN\r\n"),
        ("ms a 1 q\r\n1\r\nms ICA= 0 q b\r\n\r\nmd a q\r\nmn\r\n", "NF\r\nMN\r\n"),
        ("mg a v q O18446744073709551615\r\nmn\r\n", "VA 3 O18446744073709551615\r\nxyz\r\nMN\r\n"),
    ]);
    let mut store = open(&format!("memcached://{}", fake.address)).unwrap();
    for (key, value) in [(vec![], 1), (vec![b'k'; 251], 1), (vec![0; 187], 1), (vec![b'k'], 1 << 20)] {
        let refused = store.put(&key, &vec![0; value]);
        assert!(matches!(refused, Err(DataletError::Unsupported(_))), "{}", said(refused));
    }
    assert_eq!(get(store.as_mut(), ""), Ok(None));
    store.delete(b"").unwrap();
    store.put(b"a", b"1").unwrap();
    store.put(b"  ", b"").unwrap();
    store.delete(b"a").unwrap();
    store.commit(b"", false).unwrap();
    assert_eq!(get(store.as_mut(), "a"), Ok(Some("xyz".into())));
}

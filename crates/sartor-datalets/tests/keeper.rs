//! The keeper over every engine, records in an envelope and beside the value: answers, expiry,
//! versions, and replicas that end equal.

use bytes::Bytes;
use sartor_core::datalet::{Cursor, Datalet, Page};
use sartor_core::entry::{Entry, Write};
use sartor_core::ids::{Epoch, Position, ShardId};
use sartor_core::keeper::{Deletes, Done, Keeper, KeeperLimits, Mark, Start, Task, mark_of};
use sartor_core::operation::{
    Action, Batch, Consistency, ExpireIf, Expiry, From, Op, Outcome, Presence, Request, SessionId, Set,
    TimeUnit, Version,
};
use sartor_core::random::Random;
use sartor_core::range::{Range, Ranged};
use sartor_core::routing::slot::slot_of;
use sartor_core::run::{self, Packer};
use sartor_core::survey::{Found, Report};
use sartor_core::time::Now;
use sartor_datalets::{ENGINES, Options, engine};
use std::cell::OnceCell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The folders of a test's stores, which go with its thread.
struct Folders(PathBuf);

impl Drop for Folders {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Options with a fresh folder.
fn options() -> Options {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let test = || {
        let name = format!("sartor-keeper-{}-{number}", std::process::id());
        Folders(std::env::temp_dir().join(name))
    };
    thread_local!(static FOLDERS: OnceCell<Folders> = const { OnceCell::new() });
    let dir = FOLDERS.with(|folders| folders.get_or_init(test).0.join(number.to_string()));
    Options { seed: 3, ..Options::default() }.in_dir(dir)
}

fn keepers() -> Vec<(String, Keeper)> {
    let limits = KeeperLimits::default();
    let mut all = Vec::new();
    for engine in ENGINES.iter().filter(|engine| !engine.remote) {
        let open = || (engine.open)(&options()).expect("an engine that opens");
        all.push((format!("{} enveloped", engine.name), Keeper::enveloped(open(), limits)));
        all.push((format!("{} beside", engine.name), Keeper::beside(open(), open(), limits)));
    }
    all
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

fn key(op: Action) -> Op {
    Op::Key(Bytes::from_static(b"k"), op)
}

fn set(value: &'static str, expiry: Expiry) -> Action {
    Action::Set(Set { value: Bytes::from_static(value.as_bytes()), expiry, ..Set::default() })
}

fn at(unix_ms: u64) -> Now {
    Now { steady_us: 0, unix_ms }
}

fn evaluate(keeper: &mut Keeper, now: Now, op: Op) -> (Outcome, Option<Entry>) {
    match keeper.run(now, Task::Evaluate(request(op), Epoch(1))) {
        Done::Evaluated(_, outcome, entry) => (outcome, entry),
        other => panic!("{other:?}"),
    }
}

fn ask(keeper: &mut Keeper, now: Now, op: Op) -> Outcome {
    evaluate(keeper, now, op).0
}

fn read(keeper: &mut Keeper, now: Now, op: Op) -> Option<Outcome> {
    match keeper.run(now, Task::Read(request(op))) {
        Done::Read(_, outcome) => outcome,
        other => panic!("{other:?}"),
    }
}

fn value(text: &'static str) -> Outcome {
    Outcome::Value(Bytes::from_static(text.as_bytes()))
}

#[test]
fn records_expire_by_the_clock_of_who_orders() {
    for (name, mut keeper) in keepers() {
        ask(&mut keeper, at(1000), key(set("v", Expiry::After(100))));
        assert_eq!(ask(&mut keeper, at(1099), key(Action::Get)), value("v"), "{name}");
        assert_eq!(
            ask(&mut keeper, at(1099), key(Action::TimeToLive(TimeUnit::Millis))),
            Outcome::Integer(1)
        );
        assert_eq!(read(&mut keeper, at(1100), key(Action::Get)), None, "{name}: not for a reader to judge");
        let (outcome, entry) = evaluate(&mut keeper, at(1100), key(Action::Get));
        assert_eq!(outcome, Outcome::Nil, "{name}");
        assert!(entry.is_some(), "{name}: that it is gone is replicated");
        assert_eq!(ask(&mut keeper, at(500), key(Action::Get)), Outcome::Nil, "{name}: gone for good");
    }
}

#[test]
fn a_range_judges_the_dead_where_it_is_ordered_and_tells_of_them_elsewhere() {
    let k = Bytes::from_static(b"k");
    let range = |judged: Option<Vec<(Bytes, u64)>>| {
        let (start, end, values) = (Bytes::new(), None, false);
        let range = Range { start, end, limit: 10, bytes_max: 1000, values, reverse: true, judged };
        Op::Range(Box::new(range))
    };
    let ranged = |keys: &[&Bytes]| {
        let pairs = keys.iter().map(|key| ((*key).clone(), None)).collect();
        Outcome::Ranged(Box::new(Ranged { pairs, next: None }))
    };
    for (name, mut keeper) in keepers() {
        ask(&mut keeper, at(1000), key(set("v", Expiry::After(100))));
        let found = read(&mut keeper, at(1099), range(None));
        if matches!(found, Some(Outcome::Failed(_))) {
            assert!(name.starts_with("hash"), "{name}");
            continue;
        }
        assert_eq!(found, Some(ranged(&[&k])), "{name}");
        assert_eq!(read(&mut keeper, at(1100), range(None)), None, "{name}: not for a reader to judge");
        let dead = vec![(k.clone(), 1100)];
        assert_eq!(read(&mut keeper, at(1100), range(Some(vec![]))), Some(Outcome::Dead(dead.clone())));
        assert_eq!(
            read(&mut keeper, at(1100), range(Some(dead))),
            Some(ranged(&[&k])),
            "{name}: it is alive"
        );
        let another = vec![(k.clone(), 1099)];
        assert!(matches!(read(&mut keeper, at(1100), range(Some(another))), Some(Outcome::Dead(_))));
        // Who orders has it go, so that no other copy shows it later by a slower clock.
        let (outcome, entry) = evaluate(&mut keeper, at(1100), range(Some(vec![(k.clone(), 1100)])));
        assert_eq!(outcome, ranged(&[]), "{name}");
        let entry = entry.expect("what is dead is removed with its place");
        assert!(entry.writes.iter().eq([Write::Delete { key: b"k" }]), "{name}");
        assert_eq!(evaluate(&mut keeper, at(1100), range(None)), (ranged(&[]), None));
    }
}

#[test]
fn the_sweep_removes_what_is_due_and_no_more() {
    for (name, mut keeper) in keepers() {
        for i in 0..10u64 {
            let key = Bytes::from(i.to_string());
            ask(&mut keeper, at(0), Op::Key(key, set("v", Expiry::At(100 + i))));
        }
        ask(&mut keeper, at(0), Op::Key(Bytes::from_static(b"9"), Action::Persist));
        ask(&mut keeper, at(0), Op::Key(Bytes::from_static(b"8"), set("new", Expiry::Never)));
        let Done::Expired(Some(entry), true) = keeper.run(at(200), Task::Expire(Epoch(1), 5)) else {
            panic!()
        };
        assert_eq!(entry.writes.len(), 5, "{name}");
        let Done::Expired(Some(_), false) = keeper.run(at(200), Task::Expire(Epoch(1), 5)) else { panic!() };
        assert_eq!(ask(&mut keeper, at(200), Op::Len), Outcome::Integer(2), "{name}");
        assert!(matches!(keeper.run(at(200), Task::Expire(Epoch(1), 5)), Done::Expired(None, false)));
    }
}

fn version(keeper: &mut Keeper) -> Version {
    match ask(keeper, at(0), key(Action::Version)) {
        Outcome::Version(version) => version,
        other => panic!("{other:?}"),
    }
}

fn exec(keeper: &mut Keeper, version: Version) -> Outcome {
    let watched = vec![(Bytes::from_static(b"k"), version)];
    ask(keeper, at(0), Op::Batch(Batch { watched, steps: vec![Op::Len] }))
}

#[test]
fn a_watched_key_must_be_shown_unchanged() {
    let done = Outcome::Many(vec![Outcome::Integer(1)]);
    for (name, mut keeper) in keepers() {
        let absent = version(&mut keeper);
        assert_eq!(exec(&mut keeper, absent), Outcome::Many(vec![Outcome::Integer(0)]), "{name}");
        ask(&mut keeper, at(0), key(set("1", Expiry::Never)));
        assert_eq!(exec(&mut keeper, absent), Outcome::Aborted, "{name}: it came");
        let present = version(&mut keeper);
        assert_eq!(exec(&mut keeper, present), done, "{name}");
        ask(&mut keeper, at(0), Op::Key(Bytes::from_static(b"other"), set("1", Expiry::Never)));
        ask(&mut keeper, at(0), Op::Key(Bytes::from_static(b"other"), Action::Delete));
        assert_eq!(exec(&mut keeper, present), done, "{name}: others do not matter");
        ask(&mut keeper, at(0), key(set("1", Expiry::Never)));
        assert_eq!(exec(&mut keeper, present), Outcome::Aborted, "{name}: the same value again is a change");
        ask(&mut keeper, at(0), key(Action::Delete));
        assert_eq!(exec(&mut keeper, absent), Outcome::Aborted, "{name}: it came and went");
        let absent = version(&mut keeper);
        ask(&mut keeper, at(0), Op::Clear);
        assert_eq!(exec(&mut keeper, absent), Outcome::Aborted, "{name}: cleared, perhaps with it");
    }
}

#[test]
fn a_batch_sees_itself_and_is_one_entry() {
    for (name, mut keeper) in keepers() {
        let steps = vec![key(set("1", Expiry::Never)), key(Action::Add(4)), key(Action::Get), Op::Len];
        let (outcome, entry) = evaluate(&mut keeper, at(0), Op::Batch(Batch { watched: vec![], steps }));
        let wanted = vec![Outcome::Done, Outcome::Integer(5), value("5"), Outcome::Integer(1)];
        assert_eq!(outcome, Outcome::Many(wanted), "{name}");
        assert_eq!(entry.unwrap().writes.len(), 2, "{name}");
        assert_eq!(keeper.position().sequence, 1, "{name}");
    }
}

#[test]
fn beside_keeps_values_raw_and_takes_what_was_there() {
    struct Shared(std::sync::Arc<std::sync::Mutex<Box<dyn Datalet>>>);
    type Failed = sartor_core::datalet::DataletError;
    impl Datalet for Shared {
        fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<(), Failed> {
            self.0.lock().unwrap().get(key, found)
        }
        fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Failed> {
            self.0.lock().unwrap().put(key, value)
        }
        fn delete(&mut self, key: &[u8]) -> Result<(), Failed> {
            self.0.lock().unwrap().delete(key)
        }
        fn walk(&mut self, cursor: &mut Cursor, page: &mut Page) -> Result<(), Failed> {
            self.0.lock().unwrap().walk(cursor, page)
        }
    }
    let open = || (engine("tree").unwrap().open)(&Options::default()).unwrap();
    let raw = std::sync::Arc::new(std::sync::Mutex::new(open()));
    raw.lock().unwrap().put(b"k", b"before").unwrap();
    let mut keeper = Keeper::beside(Box::new(Shared(raw.clone())), open(), KeeperLimits::default());
    assert_eq!(ask(&mut keeper, at(0), key(Action::Get)), value("before"));
    ask(&mut keeper, at(0), key(Action::Append(Bytes::from_static(b" and after"))));
    let mut seen = Vec::new();
    raw.lock().unwrap().get(b"k", &mut |value| seen = value.to_vec()).unwrap();
    assert_eq!(seen, b"before and after");
}

fn random_op(random: &mut Random) -> Op {
    let key = Bytes::from(random.below(40).to_string());
    let value = Bytes::from(random.below(1000).to_string());
    let expiry = [Expiry::Never, Expiry::Keep, Expiry::After(random.below(50))][random.below(3) as usize];
    let presence = [None, Some(Presence::Present), Some(Presence::Absent)][random.below(3) as usize];
    let action = match random.below(12) {
        0..4 => Action::Set(Set { value, expiry, only_if: presence, get: random.percent(50) }),
        4 => Action::Delete,
        5 => Action::Add(random.below(100) as i64),
        6 => Action::Append(value),
        7 => Action::Expire(Expiry::After(random.below(50)), ExpireIf::Always),
        8 => Action::Persist,
        9 => Action::GetDelete,
        10 if random.percent(5) => return Op::Clear,
        _ => Action::Get,
    };
    Op::Key(key, action)
}

#[test]
fn whoever_applies_the_entries_ends_equal_in_every_engine_and_layout() {
    for (name, mut primary) in keepers() {
        let mut replicas = keepers();
        let mut random = Random::new(11);
        for step in 0..4000 {
            let task = match random.below(10) {
                0 => Task::Expire(Epoch(1), 3),
                _ => Task::Evaluate(request(random_op(&mut random)), Epoch(1)),
            };
            let (Done::Evaluated(_, _, entry) | Done::Expired(entry, _)) = primary.run(at(step), task) else {
                panic!()
            };
            for (_, replica) in &mut replicas {
                if let Some(entry) = &entry {
                    // Their clocks are far off, and must not matter.
                    replica.run(at(step * 7 + 1_000_000), Task::Apply(entry.clone()));
                }
            }
        }
        let digest = primary.digest().unwrap();
        for (replica_name, replica) in &mut replicas {
            assert_eq!(replica.digest().unwrap(), digest, "{name} -> {replica_name}");
            assert_eq!(replica.position(), primary.position());
        }
        assert!(ask(&mut primary, at(4000), Op::Len) != Outcome::Integer(0));
    }
}

fn survey_to_its_end(keeper: &mut Keeper, records: usize) -> Report {
    while keeper.run(at(0), Task::Survey(records, 1 << 20)) == Done::Surveyed(true) {}
    keeper.surveyed().expect("a survey")
}

#[test]
fn a_survey_tells_of_its_place_whatever_is_written_meanwhile() {
    for (name, mut keeper) in keepers() {
        // It hears all that the other does, but surveys at once.
        let (_, mut model) = keepers().remove(0);
        let mut random = Random::new(17);
        let mut done = 0;
        for round in 0..60 {
            for step in 0..random.below(300) {
                follow(&mut keeper, &mut model, at(round * 1000 + step), random_op(&mut random));
            }
            follow(&mut keeper, &mut model, at(round * 1000), Op::Survey);
            let wanted = survey_to_its_end(&mut model, 1000);
            assert!(matches!(wanted.found, Found::Done(_)), "{name}: {wanted:?}");
            let mut cleared = false;
            let records = random.between(1, 9) as usize;
            while keeper.run(at(0), Task::Survey(records, 1 << 20)) == Done::Surveyed(true) {
                for step in 0..random.below(12) {
                    let op = random_op(&mut random);
                    cleared |= op == Op::Clear;
                    follow(&mut keeper, &mut model, at(round * 1000 + 500 + step), op);
                }
                let expired = keeper.run(at(round * 1000 + 520), Task::Expire(Epoch(1), 2));
                let Done::Expired(entry, _) = expired else { panic!("{expired:?}") };
                entry.into_iter().for_each(|entry| drop(model.run(at(0), Task::Apply(entry))));
            }
            let report = keeper.surveyed().unwrap();
            match report.found {
                Found::Failed(_) => assert!(cleared, "{name}: {report:?}"),
                _ => assert_eq!(report, wanted, "{name}, round {round}"),
            }
            done += usize::from(!cleared);
        }
        assert!(done > 30, "{name}: {done} surveys came to their end");
    }
}

fn follow(keeper: &mut Keeper, model: &mut Keeper, now: Now, op: Op) {
    if let Some(entry) = evaluate(keeper, now, op).1 {
        model.run(now, Task::Apply(entry));
    }
}

#[test]
fn a_survey_finds_a_record_that_is_not_what_was_written() {
    for (name, mut keeper) in keepers() {
        for i in 0..100 {
            let action = Action::Set(Set { value: Bytes::from(vec![b'v'; i % 3]), ..Set::default() });
            ask(&mut keeper, at(0), Op::Key(Bytes::from(format!("key{i}")), action));
        }
        ask(&mut keeper, at(0), Op::Survey);
        let Found::Done(before) = survey_to_its_end(&mut keeper, 7).found else { panic!() };
        assert_eq!(before.iter().map(|(_, sum)| sum.records).sum::<u64>(), 100);
        for key in ["key0", "key1"] {
            assert_eq!(keeper.corrupt(key.as_bytes()), Ok(true));
        }
        assert_eq!(keeper.corrupt(b"none"), Ok(false));
        ask(&mut keeper, at(0), Op::Survey);
        let Found::Done(after) = survey_to_its_end(&mut keeper, 7).found else { panic!() };
        let differs = before.iter().zip(after.iter()).filter(|(before, after)| before != after);
        let slots: Vec<u16> = differs.map(|(before, _)| before.0).collect();
        let mut wanted = ["key0", "key1"].map(|key| slot_of(key.as_bytes()));
        wanted.sort();
        assert_eq!(slots, wanted, "{name}");
    }
}

#[test]
fn a_survey_ends_where_everything_is_removed_or_comes_by_a_fill() {
    let (_, mut keeper) = keepers().remove(0);
    for i in 0..100 {
        ask(&mut keeper, at(0), Op::Key(Bytes::from(format!("key{i}")), set("v", Expiry::Never)));
    }
    ask(&mut keeper, at(0), Op::Survey);
    assert_eq!(keeper.run(at(0), Task::Survey(10, 1 << 20)), Done::Surveyed(true));
    let running = keeper.surveyed().unwrap().found;
    assert_eq!(running, Found::Running { done: 10, total: 100 });
    ask(&mut keeper, at(0), Op::Clear);
    assert_eq!(keeper.run(at(0), Task::Survey(10, 1 << 20)), Done::Surveyed(false));
    assert!(matches!(keeper.surveyed().unwrap().found, Found::Failed(_)));
    let at_place = Position { epoch: Epoch(2), sequence: 7 };
    let start = Box::new(Start { at: at_place, deletes: Deletes::since(at_place), since: None });
    keeper.run(at(0), Task::Fill(Epoch(2), Some(start), Vec::new()));
    assert_eq!(keeper.surveyed(), None);
    assert_eq!(keeper.run(at(0), Task::Survey(10, 1 << 20)), Done::Surveyed(false));
}

#[test]
fn a_few_words_cannot_ask_for_the_same_large_value_without_bound() {
    let limits = KeeperLimits { batch_bytes_max: 100, ..KeeperLimits::default() };
    let store = (engine("hash").unwrap().open)(&Options { seed: 3, ..Options::default() }).unwrap();
    let mut keeper = Keeper::enveloped(store, limits);
    ask(
        &mut keeper,
        at(1),
        key(set("a value of about sixty bytes, of which two are more than 100", Expiry::Never)),
    );
    let mut packer = Packer::default();
    (0..4).for_each(|_| packer.get(b"k"));
    packer.set(b"l", b"w");
    let run = packer.take();
    let refused = |outcome: Outcome| {
        let Outcome::Run(answers) = outcome else { panic!("{outcome:?}") };
        let failed = |answer: run::Answer<'_>| matches!(answer, run::Answer::Other(Outcome::Failed(_)));
        answers.iter().map(failed).collect::<Vec<bool>>()
    };
    // Commands of a pipeline are each other's neighbours by chance.
    assert_eq!(refused(ask(&mut keeper, at(2), Op::Run(run.clone()))), [false; 5]);
    let bounded = ask(&mut keeper, at(2), Op::Run(run.bounded()));
    assert_eq!(refused(bounded), [false, false, true, true, false]);
}

#[test]
fn a_durable_store_goes_on_where_its_last_commit_was() {
    for engine in ENGINES.iter().filter(|engine| engine.durable) {
        let options = options();
        let begin = Position { epoch: Epoch(1), sequence: 0 };
        let mark = Mark { cluster: 5, born: Epoch(1), position: begin, whole: true, ..Mark::default() };
        let store = (engine.open)(&options).unwrap();
        let mut keeper = Keeper::enveloped(store, KeeperLimits::default()).lasting(mark, false).unwrap();
        let put = |key: &'static str, expiry| {
            let op = Op::Key(Bytes::from_static(key.as_bytes()), set("v", expiry));
            (at(1000), Task::Evaluate(request(op), Epoch(1)))
        };
        let done = keeper.run_group(vec![put("a", Expiry::After(50)), put("b", Expiry::Never)], true);
        assert!(done.iter().all(|done| matches!(done, Done::Evaluated(_, _, Some(_)))), "{}", engine.name);
        let digest = keeper.digest().unwrap();
        // What is in no group is in no commit.
        let (now, task) = put("c", Expiry::Never);
        keeper.run(now, task);
        drop(keeper);
        let mut store = (engine.open)(&options).unwrap();
        let found = mark_of(store.as_mut()).unwrap().unwrap();
        assert_eq!((found.cluster, found.position.sequence, found.whole), (5, 2, true), "{}", engine.name);
        let mut keeper = Keeper::enveloped(store, KeeperLimits::default()).lasting(found, true).unwrap();
        assert_eq!((keeper.position().sequence, keeper.digest().unwrap()), (2, digest), "{}", engine.name);
        let Done::Expired(Some(entry), _) = keeper.run(at(1050), Task::Expire(Epoch(2), 5)) else { panic!() };
        assert_eq!(entry.writes.len(), 1, "{}: deadlines are known again", engine.name);
        // Half a fill is none.
        let start = Some(Box::new(Start { at: begin, deletes: Deletes::since(begin), since: None }));
        keeper.run_group(vec![(at(0), Task::Fill(Epoch(3), start, Vec::new()))], true);
        drop(keeper);
        let mut store = (engine.open)(&options).unwrap();
        assert!(!mark_of(store.as_mut()).unwrap().unwrap().whole, "{}", engine.name);
    }
}

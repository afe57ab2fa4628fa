//! The suite that every datalet must pass, ours and others'.
//!
//! Each check opens a store of its own and says in a sentence what went wrong. What an engine does not declare is not asked
//! of it; that it says so is.

use crate::{Engine, Options};
use sartor_core::datalet::{Cursor, Datalet, DataletError, Page};
use sartor_core::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What became of one check.
pub struct Verdict {
    /// What was checked.
    pub check: &'static str,
    /// What went wrong, if anything.
    pub result: Result<(), String>,
}

type Check = fn(&mut dyn Datalet, &Engine) -> Result<(), String>;

const CHECKS: &[(&str, Check)] = &[
    ("puts, gets and deletes", basics),
    ("keys and values of any bytes, the shortest and the longest", any_bytes),
    ("values up to the largest", huge_values),
    ("the same as a model under random operations", differential),
    ("the same in groups that announce their keys and end with a commit", grouped),
    ("clear leaves nothing", clear_is_complete),
    ("scans in key order, or says that it cannot", scans),
    ("scans backwards too, or says that it cannot", scans_back),
];

/// What one that can be walked must do beside.
const WALK_CHECKS: &[(&str, Check)] = &[
    ("a walk sees every pair once, in bounded pages", walk_is_complete),
    ("a walk sees untouched pairs while others are written", walk_during_writes),
    ("a walk that tells what it has passed sees the rest, once", walk_tells_what_it_passed),
];

/// And one that cannot.
const NO_WALK_CHECKS: &[(&str, Check)] = &[("it says that it cannot be walked", no_walk)];

type Reopened = fn(&mut Box<dyn Datalet>, Reopen<'_>) -> Result<(), String>;
type Reopen<'a> = &'a mut dyn FnMut(&mut Box<dyn Datalet>) -> Result<(), String>;

/// What a durable one must do beside; the second argument closes the store and opens it again.
const DURABLE_CHECKS: &[(&str, Reopened)] = &[
    ("what was committed is there when it is opened again, and its mark", committed_stays),
    ("what was not committed is not there when it is opened again", uncommitted_goes),
    ("commits, clears and reopening, the same as a model", reopened_differential),
];

/// Stores of one check are here, each in a folder of its own.
struct Workshop {
    dir: PathBuf,
    stores: usize,
}

impl Workshop {
    fn new() -> Result<Workshop, String> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("sartor-check-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
        Ok(Workshop { dir, stores: 0 })
    }

    fn options(&mut self, base: &Options) -> Options {
        self.stores += 1;
        base.clone().in_dir(self.dir.join(self.stores.to_string()))
    }
}

impl Drop for Workshop {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Runs every check that is meant for an engine like this against stores of it, each cleared first. One over the network is
/// cleared at the end too.
pub fn check(engine: &Engine, base: &Options) -> Vec<Verdict> {
    let walks = if engine.walks { WALK_CHECKS } else { NO_WALK_CHECKS };
    let mut verdicts: Vec<Verdict> = CHECKS
        .iter()
        .chain(walks)
        .map(|&(check, function)| Verdict { check, result: run(engine, base, function) })
        .collect();
    if engine.durable {
        let durable = DURABLE_CHECKS.iter();
        verdicts.extend(
            durable
                .map(|&(check, function)| Verdict { check, result: run_reopening(engine, base, function) }),
        );
    }
    verdicts
}

fn run(engine: &Engine, base: &Options, check: Check) -> Result<(), String> {
    let mut workshop = Workshop::new()?;
    let mut store = (engine.open)(&workshop.options(base)).map_err(said)?;
    store.clear().map_err(said)?;
    check(store.as_mut(), engine)?;
    if engine.remote { store.clear().map_err(said) } else { Ok(()) }
}

fn run_reopening(engine: &Engine, base: &Options, check: Reopened) -> Result<(), String> {
    let mut workshop = Workshop::new()?;
    let options = workshop.options(base);
    let mut store = (engine.open)(&options).map_err(said)?;
    check(&mut store, &mut |store| {
        // The old one is gone before the new one opens its files.
        *store = Box::new(crate::tree::Tree::default());
        *store = (engine.open)(&options).map_err(said)?;
        Ok(())
    })
}

fn said(error: DataletError) -> String {
    error.to_string()
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

fn get(store: &mut dyn Datalet, key: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let mut value = None;
    let mut calls = 0;
    let mut found = |bytes: &[u8]| {
        value = Some(bytes.to_vec());
        calls += 1;
    };
    store.get(key, &mut found).map_err(said)?;
    ensure(calls <= 1, || format!("get called back {calls} times"))?;
    Ok(value)
}

fn expect(store: &mut dyn Datalet, key: &[u8], value: Option<&[u8]>) -> Result<(), String> {
    let got = get(store, key)?;
    ensure(got.as_deref() == value, || {
        let show = |value: Option<&[u8]>| {
            value.map_or("nothing".into(), |v| {
                format!("{} bytes '{}'", v.len(), v[..v.len().min(40)].escape_ascii())
            })
        };
        format!("key '{}' holds {}, not {}", key.escape_ascii(), show(got.as_deref()), show(value))
    })
}

/// All pairs by walking; an error if a pair comes twice.
fn walk_all(store: &mut dyn Datalet, page_pairs: usize) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, String> {
    let (mut cursor, mut all) = (Cursor::Start, BTreeMap::new());
    for _ in 0..1_000_000 {
        let mut page = Page::new(page_pairs, 1 << 20);
        store.walk(&mut cursor, &mut page).map_err(said)?;
        let pairs = page.pairs().len();
        ensure(pairs <= page_pairs + 16, || format!("a page of {page_pairs} pairs got {pairs}"))?;
        for (key, value) in page.into_pairs() {
            let twice = all.insert(key.to_vec(), value.to_vec()).is_some();
            ensure(!twice, || format!("the walk gave key '{}' twice", key.escape_ascii()))?;
        }
        if cursor == Cursor::End {
            return Ok(all);
        }
    }
    Err("the walk does not end".into())
}

/// That there are so many pairs, of one that can tell.
fn expect_len(store: &mut dyn Datalet, engine: &Engine, len: usize) -> Result<(), String> {
    if !engine.walks {
        return Ok(());
    }
    let told = store.len().map_err(said)?;
    ensure(told == len as u64, || format!("{len} pairs are counted as {told}"))
}

fn basics(store: &mut dyn Datalet, engine: &Engine) -> Result<(), String> {
    expect(store, b"a", None)?;
    store.delete(b"a").map_err(said)?;
    store.put(b"a", b"1").map_err(said)?;
    expect(store, b"a", Some(b"1"))?;
    for value in [&b"2"[..], b"longer", b"s"] {
        store.put(b"a", value).map_err(said)?;
        expect(store, b"a", Some(value))?;
    }
    store.put(b"b", b"3").map_err(said)?;
    store.delete(b"a").map_err(said)?;
    expect(store, b"a", None)?;
    expect(store, b"b", Some(b"3"))?;
    store.put(b"a", b"again").map_err(said)?;
    expect(store, b"a", Some(b"again"))?;
    expect_len(store, engine, 2)
}

fn any_bytes(store: &mut dyn Datalet, engine: &Engine) -> Result<(), String> {
    let all: Vec<u8> = (0..=255).collect();
    let longest = vec![0xfe; engine.key_bytes_max];
    let shortest = vec![b'\n'; engine.key_bytes_min];
    let keys =
        [&b""[..], b"\0", b"\0\0", b"a\r\nb", b"a b", b"\xff\xfe", &all[..150], &all, &shortest, &longest];
    let mut keys = keys.to_vec();
    keys.sort_unstable();
    keys.dedup();
    keys.retain(|key| (engine.key_bytes_min..=engine.key_bytes_max).contains(&key.len()));
    for key in &keys {
        for value in [&b""[..], b"\0", b"\r\n", &all] {
            store.put(key, value).map_err(said)?;
            expect(store, key, Some(value))?;
        }
    }
    for key in &keys {
        expect(store, key, Some(&all))?;
        store.delete(key).map_err(said)?;
        expect(store, key, None)?;
    }
    Ok(())
}

fn huge_values(store: &mut dyn Datalet, engine: &Engine) -> Result<(), String> {
    for len in [1 << 10, (1 << 16) + 1, 1 << 20, engine.value_bytes_max] {
        let value: Vec<u8> = (0..len.min(engine.value_bytes_max)).map(|i| (i % 251) as u8).collect();
        store.put(b"huge", &value).map_err(said)?;
        expect(store, b"huge", Some(&value))?;
    }
    Ok(())
}

/// What a store should hold, and how often it did not: one that evicts may lack a pair, but have no other value.
struct Model<'a> {
    engine: &'a Engine,
    pairs: BTreeMap<Vec<u8>, Vec<u8>>,
    asked: u64,
    evicted: u64,
}

impl Model<'_> {
    fn of(engine: &Engine) -> Model<'_> {
        Model { engine, pairs: BTreeMap::new(), asked: 0, evicted: 0 }
    }

    /// Does one of three things to a random key of the store.
    fn step(&mut self, store: &mut dyn Datalet, random: &mut Random, step: u64) -> Result<(), String> {
        let key = Self::key(random);
        match random.below(10) {
            0..5 => {
                let value = vec![(step % 256) as u8; random.below(60) as usize];
                store.put(&key, &value).map_err(said)?;
                self.pairs.insert(key, value);
                Ok(())
            }
            5..8 => self.expect(store, &key),
            _ => {
                store.delete(&key).map_err(said)?;
                self.pairs.remove(&key);
                Ok(())
            }
        }
    }

    fn key(random: &mut Random) -> Vec<u8> {
        random.below(3000).to_string().into_bytes()
    }

    fn expect(&mut self, store: &mut dyn Datalet, key: &[u8]) -> Result<(), String> {
        let value = self.pairs.get(key).map(Vec::as_slice);
        self.asked += u64::from(value.is_some());
        if self.engine.evicting && value.is_some() && get(store, key)?.is_none() {
            self.evicted += 1;
            return Ok(());
        }
        expect(store, key, value)
    }

    fn end(self, store: &mut dyn Datalet) -> Result<(), String> {
        let (asked, evicted) = (self.asked, self.evicted);
        ensure(evicted <= asked / 2, || format!("of {asked} pairs {evicted} had vanished"))?;
        if self.engine.walks {
            ensure(walk_all(store, 100)? == self.pairs, || "the walk differs from the model".into())?;
        }
        expect_len(store, self.engine, self.pairs.len())
    }
}

fn differential(store: &mut dyn Datalet, engine: &Engine) -> Result<(), String> {
    let (mut random, mut model) = (Random::new(42), Model::of(engine));
    for step in 0..20_000 {
        model.step(store, &mut random, step)?;
    }
    model.end(store)
}

/// As a store is used: some keys are announced, others are not; what a group wrote is read in it.
fn grouped(store: &mut dyn Datalet, engine: &Engine) -> Result<(), String> {
    let (mut random, mut model) = (Random::new(44), Model::of(engine));
    for group in 0..200u64 {
        let steps = random.below(200);
        let mut ahead = random.clone();
        for _ in 0..steps {
            // The keys of the steps, and some that nothing comes of.
            store.expect(&Model::key(&mut ahead));
            if ahead.below(10) < 5 {
                ahead.below(60);
            }
        }
        for step in 0..steps {
            model.step(store, &mut random, group + step)?;
        }
        store.commit(&group.to_le_bytes(), false).map_err(said)?;
    }
    model.end(store)
}

fn no_walk(store: &mut dyn Datalet, _: &Engine) -> Result<(), String> {
    let answer = store.walk(&mut Cursor::Start, &mut Page::new(1, 1));
    ensure(matches!(answer, Err(DataletError::Unsupported(_))), || {
        "it walks, but is declared as one that does not".into()
    })
}

fn walk_is_complete(store: &mut dyn Datalet, _: &Engine) -> Result<(), String> {
    ensure(walk_all(store, 10)?.is_empty(), || "an empty store walks over something".into())?;
    let model: BTreeMap<_, _> =
        (0..5000).map(|i| (format!("key{i}").into_bytes(), format!("{i}").into_bytes())).collect();
    for (key, value) in &model {
        store.put(key, value).map_err(said)?;
    }
    for page_pairs in [1, 10, 10_000] {
        ensure(walk_all(store, page_pairs)? == model, || {
            format!("pages of {page_pairs} miss or invent pairs")
        })?;
    }
    Ok(())
}

fn walk_during_writes(store: &mut dyn Datalet, _: &Engine) -> Result<(), String> {
    let mut random = Random::new(5);
    for i in 0..3000 {
        store.put(format!("keep{i}").as_bytes(), b"v").map_err(said)?;
    }
    let (mut cursor, mut seen) = (Cursor::Start, BTreeSet::new());
    while cursor != Cursor::End {
        let mut page = Page::new(20, 1 << 20);
        store.walk(&mut cursor, &mut page).map_err(said)?;
        seen.extend(page.into_pairs().into_iter().map(|(key, _)| key.to_vec()));
        for _ in 0..30 {
            let key = format!("{}", random.below(4000));
            if seen.len() < 6000 && random.percent(60) {
                store.put(key.as_bytes(), b"other").map_err(said)?;
            } else {
                store.delete(key.as_bytes()).map_err(said)?;
            }
        }
    }
    let missed = (0..3000).find(|i| !seen.contains(format!("keep{i}").as_bytes()));
    ensure(missed.is_none(), || format!("the walk missed keep{}", missed.unwrap_or(0)))
}

/// Of who can tell: each pair that is there during the whole walk comes once, and a pair that is put or deleted comes
/// afterwards just where its place was not passed.
fn walk_tells_what_it_passed(store: &mut dyn Datalet, _: &Engine) -> Result<(), String> {
    if store.has_passed(&Cursor::Start, b"key").is_none() {
        return Ok(());
    }
    let mut random = Random::new(6);
    let mut wanted: BTreeMap<Vec<u8>, bool> =
        (0..3000).map(|i| (format!("keep{i}").into_bytes(), true)).collect();
    for key in wanted.keys() {
        store.put(key, b"v").map_err(said)?;
    }
    let mut cursor = Cursor::Start;
    for turn in 0.. {
        let mut page = Page::new(random.between(1, 100) as usize, 1 << 20);
        store.walk(&mut cursor, &mut page).map_err(said)?;
        for (key, _) in page.pairs() {
            let show = || format!("the walk gave key '{}', which it had passed or shown", key.escape_ascii());
            ensure(wanted.insert(key.to_vec(), false) == Some(true), show)?;
            let passed = store.has_passed(&cursor, key) == Some(true);
            ensure(passed, || format!("key '{}' was seen but not passed", key.escape_ascii()))?;
        }
        if cursor == Cursor::End {
            break;
        }
        for i in 0..random.below(60) {
            let key = format!("new {turn} {i}").into_bytes();
            store.put(&key, b"v").map_err(said)?;
            wanted.insert(key.clone(), store.has_passed(&cursor, &key) == Some(false));
            let gone = format!("keep{}", random.below(3000)).into_bytes();
            if store.has_passed(&cursor, &gone) == Some(false) {
                store.delete(&gone).map_err(said)?;
                wanted.insert(gone, false);
            }
        }
    }
    let missed = wanted.iter().find(|(_, wanted)| **wanted).map(|(key, _)| key.escape_ascii().to_string());
    ensure(missed.is_none(), || format!("the walk missed key '{}'", missed.unwrap_or_default()))
}

fn clear_is_complete(store: &mut dyn Datalet, engine: &Engine) -> Result<(), String> {
    for i in 0..3000 {
        store.put(format!("{i}").as_bytes(), b"v").map_err(said)?;
    }
    store.clear().map_err(said)?;
    expect_len(store, engine, 0)?;
    ensure(!engine.walks || walk_all(store, 10)?.is_empty(), || "pairs are left".into())?;
    for i in 0..3000 {
        expect(store, format!("{i}").as_bytes(), None)?;
    }
    store.put(b"7", b"new").map_err(said)?;
    expect(store, b"7", Some(b"new"))
}

fn scans(store: &mut dyn Datalet, engine: &Engine) -> Result<(), String> {
    for i in (0..1000).rev() {
        store.put(format!("{i:04}").as_bytes(), b"v").map_err(said)?;
    }
    let mut page = Page::new(50, 1 << 20);
    let answer = store.scan(b"0100", Some(b"0200"), &mut page);
    if !engine.ordered {
        return ensure(matches!(answer, Err(DataletError::Unsupported(_))), || {
            "it scans, but is not declared as ordered".into()
        });
    }
    answer.map_err(said)?;
    let keys: Vec<_> =
        page.pairs().iter().map(|(key, _)| String::from_utf8_lossy(key).into_owned()).collect();
    let wanted: Vec<_> = (100..150).map(|i| format!("{i:04}")).collect();
    ensure(keys == wanted, || format!("a scan from 0100 gave {keys:?}"))?;
    for (start, end, count) in [("0990", None, 10), ("0200", Some("0100"), 0), ("0005", Some("0006"), 1)] {
        let mut page = Page::new(50, 1 << 20);
        store.scan(start.as_bytes(), end.map(str::as_bytes), &mut page).map_err(said)?;
        ensure(page.pairs().len() == count, || {
            format!("{start}..{end:?} gave {} pairs", page.pairs().len())
        })?;
    }
    Ok(())
}

fn scans_back(store: &mut dyn Datalet, engine: &Engine) -> Result<(), String> {
    for i in 0..1000 {
        store.put(format!("{i:04}").as_bytes(), b"v").map_err(said)?;
        if i == 700 {
            // What comes after is not committed, what was before is, and some of that is removed.
            store.commit(b"", false).map_err(said)?;
            store.delete(b"0500").map_err(said)?;
        }
    }
    let mut page = Page::new(50, 1 << 20);
    let answer = store.scan_back(b"0100", Some(b"0720"), &mut page);
    if !engine.descending {
        return ensure(matches!(answer, Err(DataletError::Unsupported(_))), || {
            "it scans backwards, but is not declared as descending".into()
        });
    }
    answer.map_err(said)?;
    expect_keys(&page, (670..720).rev())?;
    let ranges = [
        ("", None, 999..1000, 1),
        ("0990", None, 990..1000, 50),
        ("0200", Some("0100"), 0..0, 50),
        ("0005", Some("0006"), 5..6, 50),
        ("0005", Some("00051"), 5..6, 50),
        ("", Some("0003"), 0..3, 50),
        ("0501", Some("0509"), 501..509, 50),
    ];
    for (start, end, wanted, pairs_max) in ranges {
        let mut page = Page::new(pairs_max, 1 << 20);
        store.scan_back(start.as_bytes(), end.map(str::as_bytes), &mut page).map_err(said)?;
        expect_keys(&page, wanted.rev())?;
    }
    let mut page = Page::new(50, 1 << 20);
    store.scan_back(b"0499", Some(b"0502"), &mut page).map_err(said)?;
    expect_keys(&page, [501, 499].into_iter())
}

/// Whether a page has the keys of these numbers, in that order.
fn expect_keys(page: &Page, wanted: impl Iterator<Item = u32>) -> Result<(), String> {
    let keys: Vec<_> =
        page.pairs().iter().map(|(key, _)| String::from_utf8_lossy(key).into_owned()).collect();
    let wanted: Vec<_> = wanted.map(|i| format!("{i:04}")).collect();
    ensure(keys == wanted, || format!("a scan backwards gave {keys:?} where {wanted:?} was due"))
}

fn committed_stays(store: &mut Box<dyn Datalet>, reopen: Reopen<'_>) -> Result<(), String> {
    ensure(store.mark().map_err(said)?.is_none(), || "a new store has a mark".into())?;
    for round in 0..3u8 {
        for i in 0..1000 {
            let value = vec![round; i % 300];
            store.put(format!("{i}").as_bytes(), &value).map_err(said)?;
        }
        store.delete(format!("{round}").as_bytes()).map_err(said)?;
        store.commit(&[round, 0, 255], round % 2 == 0).map_err(said)?;
        store.commit(&[round, 1, 255], true).map_err(said)?;
        reopen(store)?;
        let mark = store.mark().map_err(said)?;
        ensure(mark.as_deref() == Some(&[round, 1, 255]), || {
            format!("the mark is {mark:?} after round {round}")
        })?;
        expect(store.as_mut(), format!("{round}").as_bytes(), None)?;
        expect(store.as_mut(), b"999", Some(&[round; 99]))?;
        let len = store.len().map_err(said)?;
        ensure(len == 999, || format!("999 pairs are counted as {len} after round {round}"))?;
    }
    Ok(())
}

fn uncommitted_goes(store: &mut Box<dyn Datalet>, reopen: Reopen<'_>) -> Result<(), String> {
    store.put(b"a", b"1").map_err(said)?;
    reopen(store)?;
    expect(store.as_mut(), b"a", None)?;
    store.put(b"a", b"1").map_err(said)?;
    store.put(b"b", b"1").map_err(said)?;
    store.commit(b"m", true).map_err(said)?;
    store.put(b"a", b"2").map_err(said)?;
    store.delete(b"b").map_err(said)?;
    store.put(b"c", b"2").map_err(said)?;
    expect(store.as_mut(), b"a", Some(b"2"))?;
    expect(store.as_mut(), b"b", None)?;
    reopen(store)?;
    expect(store.as_mut(), b"a", Some(b"1"))?;
    expect(store.as_mut(), b"b", Some(b"1"))?;
    expect(store.as_mut(), b"c", None)?;
    store.clear().map_err(said)?;
    reopen(store)?;
    expect(store.as_mut(), b"a", Some(b"1"))?;
    let mark = store.mark().map_err(said)?;
    ensure(mark.as_deref() == Some(b"m"), || format!("the mark is {mark:?}"))
}

fn reopened_differential(store: &mut Box<dyn Datalet>, reopen: Reopen<'_>) -> Result<(), String> {
    let mut random = Random::new(43);
    let (mut model, mut kept, mut mark) = (BTreeMap::new(), BTreeMap::new(), None);
    for step in 0..6000u32 {
        let key = random.below(400).to_string().into_bytes();
        match random.below(100) {
            0..55 => {
                let value = vec![(step % 256) as u8; random.below(2000) as usize];
                store.put(&key, &value).map_err(said)?;
                model.insert(key, value);
            }
            55..75 => {
                store.delete(&key).map_err(said)?;
                model.remove(&key);
            }
            75..97 => expect(store.as_mut(), &key, model.get(&key).map(Vec::as_slice))?,
            97 => {
                store.commit(&step.to_le_bytes(), true).map_err(said)?;
                (kept, mark) = (model.clone(), Some(step.to_le_bytes().to_vec()));
            }
            98 if random.percent(20) => {
                store.clear().map_err(said)?;
                model.clear();
            }
            99 if random.percent(50) => {
                reopen(store)?;
                let got = store.mark().map_err(said)?;
                ensure(got == mark, || format!("the mark is {got:?}, not {mark:?}, at step {step}"))?;
                ensure(walk_all(store.as_mut(), 100)? == kept, || {
                    format!("opened again at step {step} it is not as of its last commit")
                })?;
                model = kept.clone();
            }
            _ => {
                let all = walk_all(store.as_mut(), 50)?;
                ensure(all == model, || format!("the walk differs from the model at step {step}"))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ENGINES;

    #[test]
    fn every_engine_conforms() {
        for engine in ENGINES.iter().filter(|engine| !engine.remote) {
            for verdict in check(engine, &Options::default()) {
                assert_eq!(verdict.result, Ok(()), "{}: {}", engine.name, verdict.check);
            }
        }
    }

    /// Errors like those of real stores: DEL that does nothing, a walk that ends too early.
    struct Faulty(Box<dyn Datalet>, &'static str);

    impl Datalet for Faulty {
        fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<(), DataletError> {
            self.0.get(key, found)
        }
        fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), DataletError> {
            let cut = if self.1 == "put" {
                value.split(|&byte| byte == 0).next().unwrap_or_default()
            } else {
                value
            };
            self.0.put(key, cut)
        }
        fn delete(&mut self, key: &[u8]) -> Result<(), DataletError> {
            if self.1 == "delete" { Ok(()) } else { self.0.delete(key) }
        }
        fn walk(&mut self, cursor: &mut Cursor, page: &mut Page) -> Result<(), DataletError> {
            self.0.walk(cursor, page)?;
            if self.1 == "walk" && page.is_full() {
                *cursor = Cursor::End;
            }
            Ok(())
        }
        fn clear(&mut self) -> Result<(), DataletError> {
            if self.1 == "clear" { Ok(()) } else { self.0.clear() }
        }
    }

    fn faulty(fault: &'static str) -> Engine {
        fn open(fault: &'static str) -> Box<dyn Datalet> {
            Box::new(Faulty(Box::new(crate::tree::Tree::default()), fault))
        }
        Engine {
            name: fault,
            open: match fault {
                "put" => |_| Ok(open("put")),
                "delete" => |_| Ok(open("delete")),
                "walk" => |_| Ok(open("walk")),
                "clear" => |_| Ok(open("clear")),
                _ => |_| Ok(open("")),
            },
            ..Engine::BUILT_IN
        }
    }

    #[test]
    fn the_suite_finds_faults_and_accepts_the_least_that_is_owed() {
        let failures = |fault| {
            check(&faulty(fault), &Options::default())
                .iter()
                .filter(|verdict| verdict.result.is_err())
                .count()
        };
        assert_eq!(failures(""), 0);
        for fault in ["put", "delete", "walk", "clear"] {
            assert!(failures(fault) > 0, "{fault} went unnoticed");
        }
    }
}

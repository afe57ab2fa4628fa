//! The suite that every datalet must pass, ours and others'.
//!
//! Each check opens a store of its own and says in a sentence what went wrong.

use crate::{Engine, Options};
use sartor_core::datalet::{Cursor, Datalet, DataletError, Page};
use sartor_core::random::Random;
use std::collections::{BTreeMap, BTreeSet};

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
    ("keys and values of any bytes, empty ones too", any_bytes),
    ("values up to 16 MiB", huge_values),
    ("the same as a model under random operations", differential),
    ("a walk sees every pair once, in bounded pages", walk_is_complete),
    ("a walk sees untouched pairs while others are written", walk_during_writes),
    ("a walk that tells what it has passed sees the rest, once", walk_tells_what_it_passed),
    ("clear leaves nothing", clear_is_complete),
    ("scans in key order, or says that it cannot", scans),
];

/// Runs every check against fresh stores of an engine.
pub fn check(engine: &Engine) -> Vec<Verdict> {
    let run = |check: Check| -> Result<(), String> {
        let mut store = (engine.open)(&Options { seed: 1 }).map_err(|error| error.to_string())?;
        check(store.as_mut(), engine)
    };
    CHECKS.iter().map(|&(check, function)| Verdict { check, result: run(function) }).collect()
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

fn basics(store: &mut dyn Datalet, _: &Engine) -> Result<(), String> {
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
    let len = store.len().map_err(said)?;
    ensure(len == 2, || format!("2 pairs are counted as {len}"))
}

fn any_bytes(store: &mut dyn Datalet, _: &Engine) -> Result<(), String> {
    let all: Vec<u8> = (0..=255).collect();
    let keys: [&[u8]; 7] = [b"", b"\0", b"\0\0", b"a\r\nb", b"\xff\xfe", &all, &[b'k'; 65_536]];
    for key in keys {
        for value in [&b""[..], b"\0", b"\r\n", &all] {
            store.put(key, value).map_err(said)?;
            expect(store, key, Some(value))?;
        }
    }
    for key in keys {
        expect(store, key, Some(&all))?;
        store.delete(key).map_err(said)?;
        expect(store, key, None)?;
    }
    Ok(())
}

fn huge_values(store: &mut dyn Datalet, _: &Engine) -> Result<(), String> {
    for len in [1 << 10, (1 << 16) + 1, 1 << 20, 16 << 20] {
        let value: Vec<u8> = (0..len).map(|i: u32| (i % 251) as u8).collect();
        store.put(b"huge", &value).map_err(said)?;
        expect(store, b"huge", Some(&value))?;
    }
    Ok(())
}

fn differential(store: &mut dyn Datalet, _: &Engine) -> Result<(), String> {
    let (mut random, mut model) = (Random::new(42), BTreeMap::new());
    for step in 0..20_000u64 {
        let key = random.below(3000).to_string().into_bytes();
        match random.below(10) {
            0..5 => {
                let value = vec![(step % 256) as u8; random.below(60) as usize];
                store.put(&key, &value).map_err(said)?;
                model.insert(key, value);
            }
            5..8 => expect(store, &key, model.get(&key).map(Vec::as_slice))?,
            _ => {
                store.delete(&key).map_err(said)?;
                model.remove(&key);
            }
        }
    }
    ensure(walk_all(store, 100)? == model, || "the walk differs from the model".into())?;
    let len = store.len().map_err(said)?;
    ensure(len == model.len() as u64, || format!("{} pairs are counted as {len}", model.len()))
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

fn clear_is_complete(store: &mut dyn Datalet, _: &Engine) -> Result<(), String> {
    for i in 0..3000 {
        store.put(format!("{i}").as_bytes(), b"v").map_err(said)?;
    }
    store.clear().map_err(said)?;
    let len = store.len().map_err(said)?;
    ensure(len == 0 && walk_all(store, 10)?.is_empty(), || format!("{len} pairs are left"))?;
    expect(store, b"7", None)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ENGINES;
    use sartor_core::record::Layout;

    #[test]
    fn every_engine_conforms() {
        for engine in ENGINES {
            for verdict in check(engine) {
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
            about: "",
            ordered: false,
            durable: false,
            blocking: false,
            layout: Layout::Envelope,
            open: match fault {
                "put" => |_| Ok(open("put")),
                "delete" => |_| Ok(open("delete")),
                "walk" => |_| Ok(open("walk")),
                "clear" => |_| Ok(open("clear")),
                _ => |_| Ok(open("")),
            },
        }
    }

    #[test]
    fn the_suite_finds_faults_and_accepts_the_least_that_is_owed() {
        let failures = |fault| check(&faulty(fault)).iter().filter(|verdict| verdict.result.is_err()).count();
        assert_eq!(failures(""), 0);
        for fault in ["put", "delete", "walk", "clear"] {
            assert!(failures(fault) > 0, "{fault} went unnoticed");
        }
    }
}

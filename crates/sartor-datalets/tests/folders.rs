//! What the engines with a library underneath do about folders that are not theirs, and files that are not what they wrote.

#![allow(clippy::unwrap_used)]

use sartor_core::datalet::{Cursor, Datalet, DataletError, Page};
use sartor_core::random::Random;
use sartor_datalets::{Engine, Options, engine};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

fn engines() -> impl Iterator<Item = &'static Engine> {
    ["lsm", "btree", "sqlite"].into_iter().filter_map(engine)
}

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("sartor-folders-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

type Opened = Result<Box<dyn Datalet>, DataletError>;

fn open(engine: &Engine, dir: &Path) -> Opened {
    (engine.open)(&Options::default().in_dir(dir))
}

/// What is said of a store that does not open.
fn refusal(opened: Opened) -> String {
    match opened {
        Ok(_) => panic!("it opened"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_folder_of_something_else_is_refused_and_left_as_it_is() {
    for engine in engines() {
        let scratch = Scratch::new();
        fs::write(scratch.0.join("letter.txt"), "dear").unwrap();
        let said = refusal(open(engine, &scratch.0));
        assert!(said.contains("letter.txt") && said.contains("give an empty folder"), "{said}");
        let names: Vec<_> =
            fs::read_dir(&scratch.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["letter.txt"]);
        assert!(refusal(open(engine, Path::new(""))).contains("none was given"));
        let said = refusal(open(engine, &scratch.0.join("letter.txt")));
        assert!(said.contains("cannot make the folder"), "{said}");
    }
}

#[test]
fn only_one_has_a_store_open_and_only_its_own_engine() {
    for engine in engines() {
        let scratch = Scratch::new();
        let dir = scratch.0.join("deep/down");
        let first = open(engine, &dir).unwrap();
        let said = refusal(open(engine, &dir));
        assert!(said.contains("it is open already"), "{said}");
        drop(first);
        for other in engines().filter(|other| other.name != engine.name) {
            let said = refusal(open(other, &dir));
            assert!(said.contains(&format!("the engine '{}'", engine.name)), "{said}");
        }
        assert!(open(engine, &dir).is_ok());
        let label = fs::read_to_string(dir.join("sartor-store")).unwrap();
        fs::write(dir.join("sartor-store"), label.replace(" 1\n", " 2\n")).unwrap();
        assert!(refusal(open(engine, &dir)).contains("its format is 2"));
    }
}

#[test]
fn a_store_that_was_not_made_to_its_end_is_made_anew() {
    for engine in engines() {
        let scratch = Scratch::new();
        open(engine, &scratch.0.join("whole")).unwrap();
        let label = fs::read_to_string(scratch.0.join("whole/sartor-store")).unwrap();
        let begun = label.split_inclusive('\n').next().unwrap();
        // The process died at any byte of the label, or when there was more.
        for len in 0..=begun.len() {
            let dir = scratch.0.join(len.to_string());
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("sartor-store"), &begun[..len]).unwrap();
            if len == begun.len() {
                for name in ["pairs.redb", "pairs.sqlite", "current.new"] {
                    fs::write(dir.join(name), "half").unwrap();
                }
                fs::create_dir_all(dir.join("tree-1/keyspaces")).unwrap();
            }
            let mut store = open(engine, &dir).unwrap();
            assert_eq!(store.len(), Ok(0));
            store.put(b"k", b"v").unwrap();
            store.commit(b"m", true).unwrap();
        }
        // But not where something was committed.
        let dir = scratch.0.join(begun.len().to_string());
        for cut in [begun, ""] {
            fs::write(dir.join("sartor-store"), cut).unwrap();
            assert!(refusal(open(engine, &dir)).contains("not what was written"));
        }
        fs::write(dir.join("sartor-store"), label).unwrap();
        assert_eq!(open(engine, &dir).unwrap().mark(), Ok(Some(b"m".to_vec())));
    }
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn all(store: &mut dyn Datalet) -> Result<Model, DataletError> {
    let (mut cursor, mut pairs) = (Cursor::Start, Model::new());
    while cursor != Cursor::End {
        let mut page = Page::new(100, 8 << 20);
        store.walk(&mut cursor, &mut page)?;
        pairs.extend(page.into_pairs().into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())));
    }
    Ok(pairs)
}

/// Keys around the lengths that the engines' layouts know, alone and several that begin alike.
#[test]
fn long_keys_are_as_good_as_others() {
    for engine in engines() {
        let scratch = Scratch::new();
        let mut store = open(engine, &scratch.0).unwrap();
        let (mut random, mut model) = (Random::new(5), Model::new());
        for step in 0..400u32 {
            let mut key = vec![b'k'; random.between(65_531, 65_536) as usize];
            key[0] = b'k' - random.below(2) as u8;
            let len = key.len();
            key[len - 1] = b'k' - random.below(3) as u8;
            if random.percent(60) {
                let value = step.to_le_bytes().to_vec();
                store.put(&key, &value).unwrap();
                model.insert(key, value);
            } else {
                store.delete(&key).unwrap();
                model.remove(&key);
            }
            if random.percent(10) {
                assert!(all(store.as_mut()).unwrap() == model, "{} at step {step}", engine.name);
                store.commit(b"", random.percent(50)).unwrap();
            }
            if random.percent(3) {
                store.commit(b"", true).unwrap();
                drop(store);
                store = open(engine, &scratch.0).unwrap();
            }
            assert_eq!(store.len(), Ok(model.len() as u64), "{} at step {step}", engine.name);
        }
        assert!(all(store.as_mut()).unwrap() == model, "{}", engine.name);
        // Scans from and to each of them.
        let keys: Vec<_> = model.keys().cloned().collect();
        for (at, start) in keys.iter().enumerate() {
            let mut page = Page::new(1000, 64 << 20);
            store.scan(start, keys.get(at + 3).map(Vec::as_slice), &mut page).unwrap();
            let got: Vec<_> = page.pairs().iter().map(|(key, _)| key.to_vec()).collect();
            assert_eq!(got, keys[at..keys.len().min(at + 3)]);
            let mut page = Page::new(1000, 64 << 20);
            store.scan_back(start, keys.get(at + 3).map(Vec::as_slice), &mut page).unwrap();
            let back: Vec<_> = page.pairs().iter().map(|(key, _)| key.to_vec()).collect();
            assert!(back.iter().rev().eq(&got));
        }
    }
}

/// What a store holds, and two of its folders: as it was closed, and as a killed process would have left it.
struct Written {
    model: Model,
    closed: PathBuf,
    killed: PathBuf,
}

fn written(engine: &Engine, scratch: &Scratch) -> Written {
    let (closed, killed) = (scratch.0.join("closed"), scratch.0.join("killed"));
    let (mut random, mut model) = (Random::new(9), Model::new());
    let mut store = open(engine, &closed).unwrap();
    // Few enough that no thread of the library moves them while they are copied.
    for commit in 0..10 {
        for _ in 0..100 {
            let key = random.below(2000).to_string().into_bytes();
            // Not to be compressed.
            let value: Vec<u8> = (0..random.below(10_000)).map(|_| random.below(256) as u8).collect();
            store.put(&key, &value).unwrap();
            model.insert(key, value);
        }
        store.commit(b"mark", commit == 9 || random.percent(30)).unwrap();
    }
    copy(&closed, &killed);
    // Enough that they leave the journal.
    for _ in 0..if engine.name == "lsm" { 40 } else { 0 } {
        model.iter().take(100).for_each(|(key, value)| store.put(key, value).unwrap());
        store.commit(b"mark", true).unwrap();
    }
    Written { model, closed, killed }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (from, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(&from, &to).unwrap();
        }
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { all.extend(files(&path)) } else { all.push(path) }
    }
    all.sort();
    all
}

/// What was said of the damage, if anything; a panic, or a state that was never there, is what must not be.
fn said(engine: &Engine, dir: &Path, model: &Model, what: &str) -> Option<String> {
    let read = || {
        let mut store = open(engine, dir)?;
        let pairs = all(store.as_mut())?;
        for (key, value) in model {
            let mut found = None;
            store.get(key, &mut |bytes| found = Some(bytes.to_vec()))?;
            assert_eq!(found.as_ref(), Some(value), "{}: {what}", engine.name);
        }
        Ok((pairs, store.mark()?))
    };
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok((pairs, mark))) => {
            assert!(pairs == *model, "{}: {what}: {} pairs of {}", engine.name, pairs.len(), model.len());
            assert_eq!(mark.as_deref(), Some(&b"mark"[..]), "{}: {what}", engine.name);
            None
        }
        Ok(Err(DataletError::Failed(why))) => Some(why),
        Ok(Err(error)) => panic!("{}: {what}: {error}", engine.name),
        Err(_) => panic!("{}: {what}: it panicked", engine.name),
    }
}

#[test]
fn a_flipped_bit_is_said_or_does_not_matter() {
    for engine in engines() {
        let scratch = Scratch::new();
        let Written { model, closed, killed } = written(engine, &scratch);
        let (mut random, mut count) = (Random::new(13), 0);
        let trials = std::env::var("FLIPS").map_or(30, |flips| flips.parse().unwrap());
        for trial in 0..trials {
            let dir = scratch.0.join("damaged");
            copy(if trial % 2 == 0 { &closed } else { &killed }, &dir);
            let files = files(&dir);
            let path = &files[trial / 2 % files.len()];
            let file = fs::File::options().read(true).write(true).open(path).unwrap();
            let len = file.metadata().unwrap().len();
            let byte_at = |place| {
                let mut byte = [0];
                file.read_exact_at(&mut byte, place).map_or(0, |()| byte[0])
            };
            // Where something was written: files may end with much room.
            let place = (0..1000).map(|_| random.below(len.max(1))).find(|place| byte_at(*place) != 0);
            if let Some(place) = place {
                file.write_all_at(&[byte_at(place) ^ 1 << random.below(8)], place).unwrap();
                let what = format!("byte {place} of {}", path.strip_prefix(&dir).unwrap().display());
                count += usize::from(said(engine, &dir, &model, &what).is_some());
            }
            fs::remove_dir_all(&dir).unwrap();
        }
        println!("{}: {count} of {trials} flipped bits were said, the others did not matter", engine.name);
        assert!(count > trials / 4, "{}: {count} of {trials} were said", engine.name);
    }
}

/// How much of a file was written.
fn written_len(path: &Path) -> u64 {
    fs::read(path).unwrap().iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1)
}

#[test]
fn a_file_that_is_gone_or_cut_is_said_or_does_not_matter() {
    for engine in engines() {
        let scratch = Scratch::new();
        let Written { model, closed, killed } = written(engine, &scratch);
        let mut all_said = Vec::new();
        for (whole, percent) in
            [(&closed, None), (&closed, Some(50)), (&killed, None), (&killed, Some(50)), (&killed, Some(99))]
        {
            for file in files(whole) {
                let dir = scratch.0.join("damaged");
                copy(whole, &dir);
                let path = dir.join(file.strip_prefix(whole).unwrap());
                match percent {
                    None => fs::remove_file(&path).unwrap(),
                    Some(percent) => {
                        let file = fs::File::options().write(true).open(&path).unwrap();
                        file.set_len(written_len(&path) * percent / 100).unwrap();
                    }
                }
                let what = format!("{} cut to {percent:?}", path.strip_prefix(&dir).unwrap().display());
                all_said.extend(said(engine, &dir, &model, &what));
                fs::remove_dir_all(&dir).unwrap();
            }
        }
        // The journal's own checks take the end of what is there for the end of what was.
        let lost = all_said.iter().filter(|why| why.contains("was on disk")).count();
        println!("{}: {} were said, {lost} by the number of commits", engine.name, all_said.len());
        assert!(lost > 0 || engine.name == "btree", "{}: {all_said:?}", engine.name);
    }
}

//! Durable engines under kill -9: another process writes groups and tells which are on disk, is killed at any moment, and
//! what it leaves must be exactly what some commit left, none older than what was told.
//!
//! What a group does follows from its number, so the state after any commit can be had without asking the store.

#![allow(clippy::unwrap_used)]

use sartor_core::datalet::{Cursor, Datalet, Page};
use sartor_core::random::Random;
use sartor_datalets::{ENGINES, Engine, Options, engine};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

const KILLS: u32 = 20;
/// Tells the test `writes_until_it_is_killed` what to do: the engine and the folder.
const ROLE: &str = "SARTOR_CRASH_WRITER";

/// What a group does; none clears, or deletes.
enum Step {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    Clear,
}

fn group(number: u64) -> Vec<Step> {
    let mut random = Random::new(number);
    let mut steps = Vec::new();
    if number.is_multiple_of(97) {
        steps.push(Step::Clear);
    }
    for _ in 0..random.below(60) {
        let mut key = random.below(3000).to_string().into_bytes();
        // Some are as long as can be.
        if random.below(200) == 0 {
            key.resize(65_530 + key.len(), b'k');
        }
        let len = if random.below(100) == 0 { 200_000 } else { 4000 };
        match random.below(4) {
            0 => steps.push(Step::Delete(key)),
            _ => steps.push(Step::Put(key, vec![number as u8; random.below(len) as usize])),
        }
    }
    steps
}

fn is_durable(number: u64) -> bool {
    Random::new(!number).percent(30)
}

fn open(engine: &Engine, dir: &Path) -> Box<dyn Datalet> {
    (engine.open)(&Options::default().in_dir(dir)).expect("a store that opens")
}

fn last_group(store: &mut dyn Datalet) -> u64 {
    let mark = store.mark().expect("a mark");
    mark.map_or(0, |mark| u64::from_le_bytes(mark.try_into().expect("a mark of 8 bytes")))
}

#[test]
fn writes_until_it_is_killed() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (name, dir) = role.split_once(' ').unwrap();
    println!("\nbegins");
    let mut store = open(engine(name).unwrap(), Path::new(dir));
    println!("\nopened");
    for number in last_group(store.as_mut()) + 1.. {
        for step in group(number) {
            match step {
                Step::Put(key, value) => store.put(&key, &value).unwrap(),
                Step::Delete(key) => store.delete(&key).unwrap(),
                Step::Clear => store.clear().unwrap(),
            }
        }
        store.commit(&number.to_le_bytes(), is_durable(number)).unwrap();
        if is_durable(number) {
            println!("\ndurable {number}");
        }
        std::io::stdout().flush().unwrap();
    }
}

/// Lines of the writer that begin with a word that is ours.
fn told(lines: impl Iterator<Item = std::io::Result<String>>) -> impl Iterator<Item = String> {
    let ours = |line: &String| ["begins", "opened", "durable "].iter().any(|word| line.starts_with(word));
    lines.map_while(Result::ok).filter(ours)
}

fn spawn(name: &str, dir: &Path) -> (Child, BufReader<ChildStdout>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "writes_until_it_is_killed", "--nocapture"]);
    command.env(ROLE, format!("{name} {}", dir.display())).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = command.spawn().unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    (child, stdout)
}

/// Lets a writer run, kills it, and gives the last group that it told to be on disk.
fn run_and_kill(name: &str, dir: &Path, random: &mut Random) -> u64 {
    let (mut child, mut stdout) = spawn(name, dir);
    // One in four may die while it opens.
    let word = if random.percent(25) { "begins" } else { "opened" };
    let seen = told(stdout.by_ref().lines()).find(|line| line == word);
    assert!(seen.is_some(), "{name}: the writer failed");
    let reader = std::thread::spawn(move || {
        let last = told(stdout.lines()).filter_map(|line| line.strip_prefix("durable ")?.parse().ok()).last();
        last.unwrap_or(0)
    });
    let wait = random.below(if word == "begins" { 20 } else { 250 });
    std::thread::sleep(Duration::from_millis(wait));
    assert!(child.try_wait().unwrap().is_none(), "{name}: the writer failed");
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap()
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn apply(model: &mut Model, number: u64) {
    for step in group(number) {
        match step {
            Step::Put(key, value) => drop(model.insert(key, value)),
            Step::Delete(key) => drop(model.remove(&key)),
            Step::Clear => model.clear(),
        }
    }
}

fn all(store: &mut dyn Datalet) -> Model {
    let (mut cursor, mut pairs) = (Cursor::Start, Model::new());
    while cursor != Cursor::End {
        let mut page = Page::new(1000, 8 << 20);
        store.walk(&mut cursor, &mut page).unwrap();
        pairs.extend(page.into_pairs().into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())));
    }
    pairs
}

struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn survives(engine: &Engine, seed: u64) {
    let scratch = std::env::temp_dir().join(format!("sartor-crash-{}-{}", engine.name, std::process::id()));
    let scratch = Scratch(scratch);
    let dir = scratch.0.join("store");
    std::fs::create_dir_all(&scratch.0).unwrap();
    let mut random = Random::new(seed);
    let (mut model, mut at, mut on_disk, mut further) = (Model::new(), 0, 0, 0);
    for kill in 1..=KILLS {
        on_disk = on_disk.max(run_and_kill(engine.name, &dir, &mut random));
        // Sometimes the next writer finds what this one left, and may be killed before it is done with it.
        if kill < KILLS && random.percent(25) {
            continue;
        }
        let mut store = open(engine, &dir);
        let last = last_group(store.as_mut());
        assert!(
            last >= on_disk,
            "{}: kill {kill}: group {on_disk} was on disk, {last} is the last",
            engine.name
        );
        // What was never told may be gone, what was seen here may not: it was read from the files.
        assert!(last >= at, "{}: kill {kill}: group {at} was seen, {last} is the last", engine.name);
        (at + 1..=last).for_each(|number| apply(&mut model, number));
        at = last;
        assert!(all(store.as_mut()) == model, "{}: kill {kill}: not what group {last} left", engine.name);
        assert_eq!(store.len().unwrap(), model.len() as u64, "{}: kill {kill}", engine.name);
        further += u32::from(last > on_disk);
    }
    println!(
        "{}: {KILLS} kills, {at} groups, {} pairs, {further} times further than told",
        engine.name,
        model.len()
    );
    assert!(at > u64::from(KILLS), "{}: only {at} groups were written", engine.name);
}

#[test]
fn what_a_killed_process_leaves_is_what_a_commit_left() {
    for engine in ENGINES.iter().filter(|engine| engine.durable) {
        survives(engine, 11);
    }
}

//! Random operations on a disk that crashes at any of its own: what is there afterwards must be exactly what some commit
//! left, the last one that was asked to be durable or a later one, and go with its mark.

use super::lossy::Lossy;
use super::{SMALL, get, pairs};
use crate::log::faults::{Fault, Plant};
use crate::log::{Log, open};
use sartor_core::datalet::{Datalet, DataletError};
use sartor_core::random::Random;
use std::collections::BTreeMap;

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// What a run came to.
#[derive(Default)]
struct Tally {
    crashes: u64,
    /// While it was opened again.
    crashes_at_opening: u64,
    /// Files that were deleted.
    files_gone: u32,
    /// Crashes after which a commit was there that was not asked to be durable.
    later_commits: u64,
    clears: u64,
}

struct Run {
    random: Random,
    disk: Lossy,
    plant: Plant,
    model: Pairs,
    /// Marks and contents of commits: the last that is known to be durable, then those after it.
    commits: Vec<(Option<Vec<u8>>, Pairs)>,
    tally: Tally,
    step: u64,
}

impl Run {
    fn new(seed: u64, fault: Option<Fault>) -> Run {
        Run {
            random: Random::new(seed),
            disk: Lossy::default(),
            plant: Plant::new(fault),
            model: Pairs::new(),
            commits: vec![(None, Pairs::new())],
            tally: Tally::default(),
            step: 0,
        }
    }

    fn act(&mut self, log: &mut Log<Lossy>) -> Result<(), String> {
        let random = &mut self.random;
        self.step += 1;
        let key = random.below(60).to_string().into_bytes();
        let said = |error: DataletError| error.to_string();
        match random.below(200) {
            0..110 => {
                // Often of one size, so that records lie where others lay before.
                let len = [20, 20, random.below(100), random.below(1500)][random.below(4) as usize];
                let value = vec![self.step as u8; len as usize];
                log.put(&key, &value).map_err(said)?;
                self.model.insert(key, value);
            }
            110..140 => {
                log.delete(&key).map_err(said)?;
                self.model.remove(&key);
            }
            140..165 => {
                let found = get(log, &key).map_err(said)?;
                ensure(found.as_ref() == self.model.get(&key), "a get is wrong")?;
            }
            165 if random.percent(30) => {
                log.clear().map_err(said)?;
                self.tally.clears += 1;
                self.model.clear();
            }
            166 => ensure(pairs(log).map_err(said)? == self.model, "a walk is wrong")?,
            _ => {
                let durably = random.percent(40);
                let mark = self.step.to_le_bytes().to_vec();
                // It may be there even if the call fails.
                self.commits.push((Some(mark.clone()), self.model.clone()));
                log.commit(&mark, durably).map_err(said)?;
                if durably {
                    self.commits.drain(..self.commits.len() - 1);
                }
                let live: usize = self.model.iter().map(|(key, value)| key.len() + value.len() + 13).sum();
                let used = self.disk.used();
                ensure(used < live * 6 + 40_000, &format!("{used} bytes on disk for {live}"))?;
            }
        }
        Ok(())
    }

    /// Opens the log after a crash; none if it crashed again meanwhile.
    fn reopen(&mut self) -> Result<Option<Log<Lossy>>, String> {
        if self.random.percent(70) {
            self.disk.restart_machine(&mut self.random);
        } else {
            self.disk.restart_process();
        }
        if self.random.percent(30) {
            self.disk.light(Some(self.random.below(30)));
        }
        let opened = open::open(self.disk.clone(), SMALL, self.plant);
        if self.disk.crashed() {
            self.tally.crashes_at_opening += 1;
            return Ok(None);
        }
        self.disk.light(None);
        let mut log = opened.map_err(|error| format!("it does not open: {error}"))?;
        let mark = log.mark().map_err(|error| error.to_string())?;
        let Some(found) = self.commits.iter().position(|commit| commit.0 == mark) else {
            return Err(format!(
                "it opened as of {mark:?}, which is not the last durable commit or a later one"
            ));
        };
        let found_pairs = pairs(&mut log).map_err(|error| error.to_string())?;
        ensure(found_pairs == self.commits[found].1, "what is there is not what the commit left")?;
        let len = log.len().map_err(|error| error.to_string())?;
        ensure(len == found_pairs.len() as u64, "pairs are counted wrongly")?;
        self.tally.later_commits += u64::from(found > 0);
        // What was found must stay.
        self.commits = vec![self.commits.swap_remove(found)];
        self.model = found_pairs;
        Ok(Some(log))
    }

    fn go(&mut self, crashes: u64) -> Result<(), String> {
        let mut log = open::open(self.disk.clone(), SMALL, self.plant).map_err(|error| error.to_string())?;
        while self.tally.crashes < crashes {
            self.disk.light(Some(self.random.below(150)));
            // A process that ends between two operations is a crash, too.
            let steps = self.random.between(1, 600);
            for _ in 0..steps {
                let acted = self.act(&mut log);
                if self.disk.crashed() {
                    break;
                }
                acted?;
            }
            let oldest = log.files.segments().front().map_or(0, |oldest| oldest.number);
            self.tally.files_gone = self.tally.files_gone.max(oldest.saturating_sub(1));
            drop(log);
            self.tally.crashes += 1;
            log = loop {
                if let Some(log) = self.reopen()? {
                    break log;
                }
                self.tally.crashes += 1;
            };
        }
        Ok(())
    }
}

fn ensure(holds: bool, otherwise: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise.into()) }
}

#[test]
fn after_a_crash_at_any_operation_it_is_as_some_commit_left_it() {
    let mut all = Tally::default();
    for seed in 0..60 {
        let mut run = Run::new(seed, None);
        if let Err(error) = run.go(100) {
            panic!("seed {seed}, crash {}, step {}: {error}", run.tally.crashes, run.step);
        }
        let Tally { crashes, crashes_at_opening, files_gone, later_commits, clears } = run.tally;
        all.crashes += crashes;
        all.crashes_at_opening += crashes_at_opening;
        all.files_gone += files_gone;
        all.later_commits += later_commits;
        all.clears += clears;
    }
    println!(
        "{} crashes, {} while opening, {} with a later commit than was promised; {} files deleted, {} clears",
        all.crashes, all.crashes_at_opening, all.later_commits, all.files_gone, all.clears
    );
    assert!(all.crashes >= 6000 && all.crashes_at_opening > 300 && all.later_commits > 300);
    assert!(all.files_gone > 1000 && all.clears > 300);
}

#[test]
fn it_finds_every_error_that_is_planted() {
    let faults = [
        Fault::SkipSync,
        Fault::SyncEarly,
        Fault::SkipDirSync,
        Fault::SwitchUnsynced,
        Fault::CommitEarly,
        Fault::DeleteEarly,
        Fault::KeepTail,
        Fault::TakeTail,
        Fault::OpenUnsynced,
        Fault::BelieveHints,
        Fault::MergeDead,
    ];
    for fault in faults {
        let found = (0..60).find_map(|seed| {
            let mut run = Run::new(seed, Some(fault));
            run.go(100).err().map(|error| (seed, run.tally.crashes, error))
        });
        println!("{fault:?}: {found:?}");
        assert!(found.is_some(), "{fault:?} went unnoticed");
    }
}

//! What a bad disk, or somebody with an editor, does to files: it is told, or does not matter, and never served.

use super::lossy::Lossy;
use super::{get, opened, pairs};
use crate::log::disk::{Disk, Folder};
use crate::log::files::{hint_name, log_name};
use sartor_core::datalet::{Datalet, DataletError};
use sartor_core::random::Random;
use std::collections::BTreeMap;

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// A log of several files, closed after a durable commit; what is in it after each commit.
fn written() -> (Lossy, Vec<Pairs>) {
    let (disk, mut random) = (Lossy::default(), Random::new(4));
    let mut log = opened(&disk).unwrap();
    let (mut model, mut commits) = (Pairs::new(), vec![Pairs::new()]);
    for step in 0..100u32 {
        for _ in 0..3 {
            let (key, value) = (random.below(300).to_string().into_bytes(), vec![step as u8; 60]);
            log.put(&key, &value).unwrap();
            model.insert(key, value);
        }
        let gone = random.below(300).to_string().into_bytes();
        log.delete(&gone).unwrap();
        model.remove(&gone);
        commits.push(model.clone());
        log.commit(&(step + 1).to_le_bytes(), true).unwrap();
    }
    assert!(log.files.segments().len() > 4);
    (disk, commits)
}

fn said(error: &DataletError, name: &str) -> bool {
    let text = error.to_string();
    let parts = [name, "damaged at byte", "check the disk", "filled from its peers"];
    matches!(error, DataletError::Failed(_)) && parts.into_iter().all(|part| text.contains(part))
}

fn names(disk: &Lossy, end: &str) -> Vec<String> {
    disk.list().unwrap().into_iter().filter(|name| name.ends_with(end)).collect()
}

#[test]
fn no_flipped_bit_gives_a_wrong_answer() {
    let (disk, commits) = written();
    let (mut random, mut at_opening, mut at_reading, mut cut_off) = (Random::new(5), 0, 0, 0);
    let all = names(&disk, ".log");
    for name in &all {
        for place in 0..disk.contents(name).len() {
            let damaged = disk.copy();
            let mut bytes = damaged.contents(name);
            bytes[place] ^= 1 << random.below(8);
            damaged.put_contents(name, bytes);
            let mut log = match opened(&damaged) {
                Ok(log) => log,
                Err(error) => {
                    assert!(said(&error, name), "{name}, byte {place}: {error}");
                    at_opening += 1;
                    continue;
                }
            };
            let commit = u32::from_le_bytes(log.mark().unwrap().unwrap().try_into().unwrap()) as usize;
            if commit + 1 < commits.len() {
                // The last group of all looks as if it had not come to the disk.
                assert!(commit + 2 == commits.len() && Some(name) == all.last());
                assert_eq!(pairs(&mut log).unwrap(), commits[commit]);
                cut_off += 1;
                continue;
            }
            match pairs(&mut log) {
                Ok(pairs) => assert_eq!(pairs, commits[commit], "{name}, byte {place}"),
                Err(error) => {
                    assert!(said(&error, name), "{name}, byte {place}: {error}");
                    assert_eq!(log.put(b"k", b"v"), Err(error.clone()), "it says the same from then on");
                    assert_eq!((get(&mut log, b"none"), log.len()), (Err(error.clone()), Err(error)));
                    at_reading += 1;
                }
            }
        }
    }
    println!("{at_opening} told at opening, {at_reading} at reading, {cut_off} cut off");
    assert!(at_opening > 1000 && at_reading > 1000 && cut_off > 100);
}

#[test]
fn hints_save_time_and_nothing_else() {
    let (disk, commits) = written();
    let hints = names(&disk, ".hint");
    assert!(hints.len() > 3);
    let mut random = Random::new(6);
    for name in &hints {
        let before = disk.contents(name);
        for place in 0..before.len() + 3 {
            let damaged = disk.copy();
            let mut bytes = before.clone();
            match place.checked_sub(before.len()) {
                None => bytes[place] ^= 1 << random.below(8),
                Some(0) => bytes.clear(),
                Some(1) => bytes.truncate(before.len() / 2),
                // That of another file.
                Some(_) => bytes = disk.contents(hints.iter().find(|other| *other != name).unwrap()),
            }
            damaged.put_contents(name, bytes);
            let mut log = opened(&damaged).unwrap();
            assert_eq!(&pairs(&mut log).unwrap(), commits.last().unwrap(), "{name}, byte {place}");
            assert_eq!(damaged.contents(name), before, "it is written again");
        }
    }
    // Without hints a closed file is read at once, with them when it is asked for a value.
    let first = names(&disk, ".log").remove(0);
    let mut bytes = disk.contents(&first);
    // In the middle of a value.
    bytes[24 + 13 + 2 + 30] ^= 1;
    disk.put_contents(&first, bytes);
    assert!(opened(&disk).is_ok());
    for name in hints {
        disk.delete(&name).unwrap();
    }
    assert!(said(&opened(&disk).err().unwrap(), &first));
}

#[test]
fn a_missing_shorter_or_foreign_file_is_noticed() {
    let (disk, commits) = written();
    let (all, first) = (names(&disk, ".log"), all_numbers(&disk)[0]);
    for (index, name) in all.iter().enumerate() {
        let is_newest = index + 1 == all.len();
        let without = disk.copy();
        without.delete(name).unwrap();
        // Without the newest, earlier commits may need files that are gone by now. If not, the replica is behind its peers.
        let is_told = |disk: &Lossy| match opened(disk) {
            Ok(_) => is_newest,
            Err(error) => said(&error, name) || is_newest && said(&error, &log_name(first - 1)),
        };
        assert!(is_told(&without), "{name}");
        let shorter = disk.copy();
        let mut bytes = shorter.contents(name);
        bytes.truncate(bytes.len() - 30);
        shorter.put_contents(name, bytes);
        assert_eq!(opened(&shorter).is_ok(), is_newest, "{name}");
        let foreign = disk.copy();
        foreign.put_contents(name, disk.contents(&all[(index + 1) % all.len()]));
        assert!(is_told(&foreign), "{name}");
    }
    assert_eq!(&pairs(&mut opened(&disk).unwrap()).unwrap(), commits.last().unwrap());
}

#[test]
fn files_of_others_do_not_matter() {
    let (disk, commits) = written();
    let number = 1 + all_numbers(&disk).last().unwrap();
    for name in ["notes.txt", "7.log", "lost+found", "00000000999.log", &hint_name(number + 7)] {
        disk.create(name).unwrap();
    }
    // A file that was begun when the power failed.
    disk.create(&log_name(number)).unwrap();
    let mut log = opened(&disk).unwrap();
    assert_eq!(&pairs(&mut log).unwrap(), commits.last().unwrap());
    let names = disk.list().unwrap();
    assert!(!names.contains(&hint_name(number + 7)) && !names.contains(&log_name(number)));
    assert!(names.contains(&"notes.txt".into()));
}

fn all_numbers(disk: &Lossy) -> Vec<u32> {
    names(disk, ".log").iter().map(|name| name[..10].parse().unwrap()).collect()
}

#[test]
fn a_newer_format_is_named_and_left_alone() {
    let (disk, _) = written();
    let newest = names(&disk, ".log").pop().unwrap();
    let mut bytes = disk.contents(&newest);
    bytes[7] = 9;
    let checksum = crc32fast::hash(&bytes[..20]);
    bytes[20..24].copy_from_slice(&checksum.to_le_bytes());
    disk.put_contents(&newest, bytes.clone());
    let error = opened(&disk).err().unwrap().to_string();
    assert!(error.contains(&newest) && error.contains("has format 9"), "{error}");
    assert_eq!(disk.contents(&newest), bytes);
}

#[test]
fn a_folder_is_made_and_belongs_to_one() {
    let name = format!("sartor-log-{}", std::process::id());
    let root = std::env::temp_dir().join(name);
    let dir = root.join("of/a store");
    let mut log = crate::log::open(&dir).unwrap();
    log.put(b"k", b"v").unwrap();
    log.commit(b"m", true).unwrap();
    let error = crate::log::open(&dir).err().unwrap().to_string();
    assert!(error.contains("a store is in use") && error.contains("another folder"), "{error}");
    drop(log);
    assert_eq!(crate::log::open(&dir).unwrap().mark(), Ok(Some(b"m".to_vec())));
    std::fs::remove_dir_all(&root).unwrap();
    let nowhere = Folder::open(std::path::Path::new("")).err().unwrap().to_string();
    assert!(nowhere.contains("needs a folder"), "{nowhere}");
    std::fs::write(&root, "a file").unwrap();
    let error = crate::log::open(&root).err().unwrap().to_string();
    assert!(error.contains("cannot open the folder"), "{error}");
    std::fs::remove_file(&root).unwrap();
}

//! Room: what a full disk does, that dead space is won back, that no call does much, and what a key takes in memory.

use super::lossy::Lossy;
use super::{SMALL, get, opened, pairs};
use crate::log::faults::Plant;
use crate::log::{Sizes, open};
use sartor_core::datalet::{Datalet, DataletError};
use sartor_core::random::Random;
use std::collections::BTreeMap;

#[test]
fn a_full_disk_is_said_until_there_is_room_and_costs_no_commit() {
    let mut random = Random::new(8);
    for room in 0..400 {
        let disk = Lossy::default();
        let mut log = opened(&disk).unwrap();
        let (mut model, mut kept, mut mark) = (BTreeMap::new(), BTreeMap::new(), None);
        let mut error = None;
        disk.limit(Some(room * 40));
        for step in 0u64.. {
            let (key, value) = (random.below(100).to_string().into_bytes(), vec![step as u8; 50]);
            let mut result = log.put(&key, &value);
            model.insert(key, value);
            if result.is_ok() && step % 5 == 0 {
                result = log.commit(&step.to_le_bytes(), step % 2 == 0);
                if result.is_ok() {
                    (kept, mark) = (model.clone(), Some(step.to_le_bytes().to_vec()));
                }
            }
            if let Err(first) = result {
                error = Some(first);
                break;
            }
        }
        let error = error.unwrap();
        let text = error.to_string();
        assert!(text.contains("cannot write disk/0000") && text.contains("make room"), "{text}");
        assert_eq!(log.put(b"k", b"v"), Err(error.clone()));
        assert_eq!((get(&mut log, b"1"), log.mark()), (Err(error.clone()), Err(error.clone())));
        assert_eq!((log.commit(b"", true), log.clear()), (Err(error.clone()), Err(error)));
        drop(log);
        // It opens while the disk is still full, too.
        let mut log = opened(&disk).unwrap();
        assert_eq!((log.mark(), pairs(&mut log)), (Ok(mark), Ok(kept.clone())), "room for {room}");
        disk.limit(None);
        log.put(b"k", b"v").unwrap();
        log.commit(b"m", true).unwrap();
        kept.insert(b"k".to_vec(), b"v".to_vec());
        assert_eq!(pairs(&mut opened(&disk).unwrap()), Ok(kept));
    }
}

/// What the same keys with ever new values take on disk, at most.
fn most_used(disk: &Lossy, durably: bool) -> usize {
    let mut log = opened(disk).unwrap();
    let (mut random, mut most) = (Random::new(9), 0);
    for step in 0..20_000u64 {
        // Some are never written again.
        let key = if step < 100 { 1000 + step } else { random.below(100) };
        log.put(key.to_string().as_bytes(), &[step as u8; 100]).unwrap();
        if random.percent(5) {
            log.delete(random.below(100).to_string().as_bytes()).unwrap();
        }
        if step % 4 == 0 {
            log.commit(&step.to_le_bytes(), durably).unwrap();
        }
        most = most.max(disk.used());
    }
    most
}

#[test]
fn dead_space_is_won_back_whatever_is_asked_of_commits() {
    for durably in [true, false] {
        let most = most_used(&Lossy::default(), durably);
        println!("{most} bytes at most for about 23,000 that are alive");
        assert!(most < 75_000, "{most}");
    }
}

#[test]
fn a_clear_gives_all_room_back_after_its_commit_and_none_before() {
    let disk = Lossy::default();
    let mut log = opened(&disk).unwrap();
    for i in 0..200u32 {
        log.put(&i.to_le_bytes(), &[7; 100]).unwrap();
    }
    log.commit(b"full", true).unwrap();
    let full = disk.used();
    log.clear().unwrap();
    log.put(b"k", b"v").unwrap();
    assert!(disk.used() >= full);
    drop(log);
    let mut log = opened(&disk).unwrap();
    assert_eq!((log.mark(), log.len()), (Ok(Some(b"full".to_vec())), Ok(200)));
    log.clear().unwrap();
    // A few files at each commit; the first is on disk at once, though nobody asked for it.
    for i in 0..2u32 {
        log.commit(&i.to_le_bytes(), false).unwrap();
    }
    assert!(disk.used() < SMALL.file as usize * 2, "{} of {full}", disk.used());
    log.put(b"k", b"v").unwrap();
    log.commit(b"m", true).unwrap();
    assert_eq!(pairs(&mut opened(&disk).unwrap()).unwrap().len(), 1);
}

#[test]
fn no_commit_reads_or_writes_much() {
    let sizes = Sizes { file: 1 << 20, buffer: 64 << 10, merged_min: 8 << 10, merged_max: 64 << 10, ..SMALL };
    let disk = Lossy::default();
    let mut log = open::open(disk.clone(), sizes, Plant::default()).unwrap();
    let (mut random, mut most) = (Random::new(10), 0);
    for step in 0..60_000u64 {
        log.put(random.below(3000).to_string().as_bytes(), &[step as u8; 200]).unwrap();
        if step % 8 == 0 {
            let before = disk.moved();
            log.commit(&step.to_le_bytes(), false).unwrap();
            most = most.max(disk.moved() - before);
        }
    }
    let merged = log.files.segments()[0].number;
    println!("{most} bytes read and written by one commit at most; {merged} files were merged");
    assert!(most < 400 << 10 && merged > 8);
}

#[test]
fn few_and_large_files_where_there_is_much() {
    let disk = Lossy::default();
    let mut log = opened(&disk).unwrap();
    for i in 0..20_000u32 {
        log.put(&i.to_le_bytes(), &[1; 60]).unwrap();
        if i % 100 == 0 {
            log.commit(&i.to_le_bytes(), false).unwrap();
        }
    }
    // Of 2 KB each there would be 750.
    let files = log.files.segments().len();
    assert!(files < 140, "{files}");
}

#[test]
fn what_is_too_large_is_refused_in_a_line() {
    let mut log = opened(&Lossy::default()).unwrap();
    let Err(DataletError::Failed(text)) = log.commit(&vec![0; 70_000], true) else { panic!() };
    assert!(text.contains("at most 65536 bytes for a mark"), "{text}");
}

use super::*;
use sartor_core::random::Random;
use std::collections::BTreeMap;

/// What must hold of the whole table at any time.
fn check_structure(table: &Hash) {
    assert_eq!(table.directory.len(), 1 << table.depth);
    for (index, &segment_index) in table.directory.iter().enumerate() {
        let segment = &table.segments[segment_index as usize];
        assert!(!table.vacant.contains(&segment_index));
        let spare = table.depth - segment.depth;
        // Each segment once, with all of its pairs.
        if index.is_multiple_of(1 << spare) {
            assert!(table.directory[index..index + (1 << spare)].iter().all(|&other| other == segment_index));
            segment.check(|key| hash_of(&table.hasher, key));
            for (key, _) in segment.pairs() {
                assert_eq!(table.index_of(hash_of(&table.hasher, key)) >> spare, index >> spare);
            }
        }
    }
    let blocks: u64 = table.segments.iter().map(Segment::bytes).sum();
    assert_eq!(table.bytes, blocks, "what is counted is what there is");
    let len: usize = table.segments.iter().map(Segment::len).sum();
    assert_eq!(table.len, len as u64);
}

fn all(table: &mut Hash) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let (mut cursor, mut pairs) = (Cursor::Start, BTreeMap::new());
    while cursor != Cursor::End {
        let mut page = Page::new(1000, 1 << 24);
        table.walk(&mut cursor, &mut page).unwrap();
        pairs.extend(page.into_pairs().into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())));
    }
    pairs
}

/// A length of what users store: small numbers mostly, both sides of each limit too.
fn length(random: &mut Random) -> usize {
    match random.below(20) {
        0..12 => random.below(40) as usize,
        12..16 => random.below(320) as usize,
        16..19 => random.between(250, 330) as usize,
        _ => random.below(5000) as usize,
    }
}

#[test]
fn the_same_as_a_model_while_it_grows_changes_and_shrinks() {
    for seed in 0..4 {
        let (mut random, mut table, mut model) = (Random::new(seed), Hash::new(seed), BTreeMap::new());
        // Puts of a hundred, phase by phase.
        for (phase, puts) in [90, 50, 20, 70, 5, 0].into_iter().enumerate() {
            for step in 0..15_000u64 {
                let number = random.below(10_000);
                // Some keys are too long for a block.
                let key = format!("{number:0width$}", width = [4, 30, 250, 320][(number % 67 / 22) as usize]);
                let key = key.into_bytes();
                if random.percent(puts) {
                    let value = vec![step as u8; length(&mut random)];
                    table.put(&key, &value).unwrap();
                    model.insert(key, value);
                } else if random.percent(50) {
                    table.delete(&key).unwrap();
                    model.remove(&key);
                } else {
                    let mut found = None;
                    table.get(&key, &mut |value| found = Some(value.to_vec())).unwrap();
                    assert_eq!(found.as_ref(), model.get(&key), "seed {seed}, phase {phase}, step {step}");
                    table.expect(&key);
                }
            }
            check_structure(&table);
            assert!(all(&mut table) == model, "seed {seed}, phase {phase}");
        }
        for key in model.keys() {
            table.delete(key).unwrap();
        }
        check_structure(&table);
        assert_eq!((table.len, table.bytes), (0, 0), "an empty table takes nothing");
        assert_eq!(table.segments.len() - table.vacant.len(), 1, "all segments were joined again");
    }
}

#[test]
fn the_directory_leads_every_hash_to_its_segment() {
    let mut table = Hash::new(1);
    for i in 0..50_000u32 {
        table.put(&i.to_be_bytes(), b"").unwrap();
    }
    assert!(table.segments.len() > 32, "{} segments", table.segments.len());
    check_structure(&table);
}

#[test]
fn a_walk_survives_growth_and_means_the_same_in_every_replica() {
    let (mut one, mut other) = (Hash::new(7), Hash::new(7));
    let keys: Vec<[u8; 4]> = (0..5000u32).map(u32::to_be_bytes).collect();
    for key in &keys {
        one.put(key, b"").unwrap();
    }
    for key in keys.iter().rev() {
        other.put(key, b"").unwrap();
    }
    let (mut cursor, mut seen, mut turn) = (Cursor::Start, Vec::new(), 0u32);
    while cursor != Cursor::End {
        let mut page = Page::new(7, 1 << 20);
        let table = if turn.is_multiple_of(2) { &mut one } else { &mut other };
        table.walk(&mut cursor, &mut page).unwrap();
        seen.extend(page.into_pairs().into_iter().map(|(key, _)| key));
        for i in 0..20 {
            table.put(format!("new {turn} {i}").as_bytes(), b"").unwrap();
        }
        turn += 1;
    }
    seen.sort();
    assert!(keys.iter().all(|key| seen.binary_search_by(|s| s[..].cmp(key)).is_ok()));
}

/// Pairs of 16 and 38 bytes: a key, and a value of 32 in its envelope.
fn filled(pairs: u64) -> Hash {
    let mut table = Hash::new(3);
    for i in 0..pairs {
        table.put(&key(i), &[7; 38]).unwrap();
    }
    table
}

fn key(i: u64) -> [u8; 16] {
    let mut key = [b'k'; 16];
    key[8..].copy_from_slice(&i.to_be_bytes());
    key
}

#[test]
fn a_small_pair_takes_little_more_than_its_bytes_at_every_size() {
    let mut table = Hash::new(3);
    let (mut least, mut most) = (f64::MAX, 0f64);
    for i in 0..400_000 {
        table.put(&key(i), &[7; 38]).unwrap();
        if i >= 50_000 && i % 1000 == 0 {
            let bytes = table.bytes() as f64 / table.len as f64;
            (least, most) = (least.min(bytes), most.max(bytes));
        }
    }
    println!("{least:.1} to {most:.1} bytes a pair of 54");
    assert!(least > 54.0 && most < 74.0, "{least} to {most}");
}

#[test]
fn no_space_is_lost_whatever_is_overwritten_and_deleted() {
    let (mut random, mut table) = (Random::new(9), filled(20_000));
    let mut live = 20_000 * 54u64;
    let mut lengths = vec![Some(38u64); 20_000];
    for turn in 0..30 {
        for _ in 0..10_000 {
            let i = random.below(20_000);
            let old = lengths[i as usize].take();
            live -= old.map_or(0, |len| 16 + len);
            if random.percent(70) {
                // Longer and longer, then short again.
                let len = random.between(1, 10 + turn % 10 * 20);
                table.put(&key(i), &vec![1; len as usize]).unwrap();
                lengths[i as usize] = Some(len);
                live += 16 + len;
            } else {
                table.delete(&key(i)).unwrap();
            }
        }
        check_structure(&table);
        // Sizes go up to the next unit, lines have room to spare, those of nearly empty segments most.
        let lines = table.segments.len() as u64 * 64;
        let most = live + table.len * 10 + lines * (64 + 264) + 100_000;
        assert!(table.bytes() < most, "{} bytes for {live} in turn {turn}", table.bytes());
    }
}

#[test]
fn large_pairs_are_counted_until_they_are_gone() {
    let mut table = Hash::new(5);
    let empty = table.bytes();
    for i in 0..500 {
        table.put(&key(i), &[7; 10_000]).unwrap();
    }
    let full = table.bytes();
    assert!((5_000_000..5_500_000).contains(&full), "{full}");
    for i in 0..500 {
        table.put(&key(i), &vec![7; i as usize]).unwrap();
    }
    assert!((100_000..400_000).contains(&table.bytes()), "{}", table.bytes());
    for i in 0..500 {
        table.delete(&key(i)).unwrap();
    }
    assert!(table.bytes() < empty + 200_000, "{} after {empty}", table.bytes());
}

#[test]
fn no_write_makes_the_table_much_larger() {
    let mut table = Hash::new(3);
    let mut most = 0;
    for i in 0..200_000 {
        let before = table.bytes;
        table.put(&key(i), &[7; 38]).unwrap();
        most = most.max(table.bytes.saturating_sub(before));
    }
    // A split adds lines, and a chunk's spare room for each.
    assert!((4096..64 * (64 + 136)).contains(&most), "a write took {most} bytes");
}

#[test]
fn keys_that_collide_on_purpose_are_refused_before_the_directory_is_huge() {
    // Without a seed to find, such keys are sought by trying.
    let mut table = Hash::new(11);
    let hasher = table.hasher.clone();
    let mut colliding = (0u64..).filter(|i| hash_of(&hasher, &key(*i)) >> 50 == 0);
    let mut refused = None;
    for _ in 0..1500 {
        let key = key(colliding.next().unwrap());
        if let Err(error) = table.put(&key, b"") {
            refused = Some(error.to_string());
            break;
        }
    }
    assert!(refused.unwrap().contains("too many keys"));
    assert!(table.directory.len() <= 1 << 16);
}

//! What an engine takes for a small pair: `cargo bench -p sartor-datalets -- ENGINE [PAIRS]` prints ns per operation, and
//! bytes per pair as the engine counts them.
//!
//! Keys of 16 B, values of 38 B (32 and an envelope), chosen at random, in batches of 16 that are announced first, as a
//! worker does it. Pin it to a core, and compare only what ran at the same time: `cargo bench -p sartor-datalets -- hash tree`
//! runs both engines in turn, batch by batch. Durable ones commit each batch of writes, which need not be on disk.

use sartor_core::datalet::{Datalet, Page};
use sartor_core::random::Random;
use sartor_datalets::{ENGINES, Options, engine};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const BATCH: u64 = 16;
const OPERATIONS: u64 = 400_000;
/// Engines take turns after so many batches: long enough for its code to be near.
const TURN: u64 = 64;

struct Subject {
    name: String,
    store: Box<dyn Datalet>,
    spent: Duration,
}

fn key(i: u64) -> [u8; 16] {
    let mut key = *b"key:0000\0\0\0\0\0\0\0\0";
    key[8..].copy_from_slice(&i.to_be_bytes());
    key
}

type Operation = fn(&mut dyn Datalet, &[u8]);

/// Times batches of keys that `choose` names, engine by engine in turn; prints ns per operation.
fn measure(
    subjects: &mut [Subject],
    what: &str,
    count: u64,
    mut choose: impl FnMut(u64) -> u64,
    run: Operation,
) {
    for subject in subjects.iter_mut() {
        subject.spent = Duration::ZERO;
    }
    let mut done = 0;
    while done < count {
        let keys: Vec<_> = (done..done + BATCH * TURN).map(|i| key(choose(i))).collect();
        for subject in subjects.iter_mut() {
            let begin = Instant::now();
            for batch in keys.chunks(BATCH as usize) {
                batch.iter().for_each(|key| subject.store.expect(key));
                batch.iter().for_each(|key| run(subject.store.as_mut(), key));
                if !what.starts_with("get") {
                    assert!(subject.store.commit(b"mark", false).is_ok());
                }
            }
            subject.spent += begin.elapsed();
        }
        done += BATCH * TURN;
    }
    print!("{what:12}");
    for subject in subjects.iter() {
        print!("{:12.1}", subject.spent.as_nanos() as f64 / done as f64);
    }
    println!();
}

fn get(store: &mut dyn Datalet, key: &[u8]) {
    let mut copy = [0u8; 64];
    let found = store.get(key, &mut |value| copy[..value.len()].copy_from_slice(value));
    assert!(found.is_ok() && std::hint::black_box(&copy)[63] == 0);
}

fn put(store: &mut dyn Datalet, key: &[u8]) {
    assert!(store.put(key, &[7; 38]).is_ok());
}

fn put_longer(store: &mut dyn Datalet, key: &[u8]) {
    let len = 38 + usize::from(key[15] % 16);
    assert!(store.put(key, &[7; 54][..len]).is_ok());
}

fn delete(store: &mut dyn Datalet, key: &[u8]) {
    assert!(store.delete(key).is_ok());
}

/// Prints ns per pair of a scan over all, page by page, of those that keep an order.
fn measure_scans(subjects: &mut [Subject]) {
    print!("{:12}", "scan");
    for subject in subjects.iter_mut() {
        let (begin, mut start, mut pairs) = (Instant::now(), Vec::new(), 0);
        loop {
            let mut page = Page::new(1000, 4 << 20);
            if subject.store.scan(&start, None, &mut page).is_err() || page.pairs().is_empty() {
                break;
            }
            pairs += page.pairs().len();
            start = page.pairs().last().map(|(key, _)| [key, &[0][..]].concat()).unwrap_or_default();
        }
        match pairs {
            0 => print!("{:>12}", "-"),
            _ => print!("{:12.1}", begin.elapsed().as_nanos() as f64 / pairs as f64),
        }
    }
    println!();
}

/// Where durable engines keep what they write; goes with this.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn main() {
    let mut pairs = 100_000;
    let scratch = Scratch(std::env::temp_dir().join(format!("sartor-engines-{}", std::process::id())));
    let mut subjects = Vec::new();
    for word in std::env::args().skip(1) {
        if let Ok(number) = word.parse() {
            pairs = number;
        } else if let Some(engine) = engine(&word) {
            let options = Options { seed: 1, ..Options::default() };
            match (engine.open)(&options.in_dir(scratch.0.join(subjects.len().to_string()))) {
                Ok(store) => subjects.push(Subject { name: word, store, spent: Duration::ZERO }),
                Err(error) => return eprintln!("{word}: {error}"),
            }
        } else if !word.starts_with("--") {
            let names: Vec<_> = ENGINES.iter().map(|engine| engine.name).collect();
            return eprintln!("there is no engine '{word}'; say {}, and how many pairs", names.join(" or "));
        }
    }
    print!("{:12}", "ns");
    subjects.iter().for_each(|subject| print!("{:>12}", subject.name));
    println!();
    let mut random = Random::new(1);
    measure(&mut subjects, "put new", pairs, |i| i, put);
    measure(&mut subjects, "get", OPERATIONS, |_| random.below(pairs), get);
    measure(&mut subjects, "get nothing", OPERATIONS, |_| pairs * 2 + random.below(pairs), get);
    measure(&mut subjects, "put again", OPERATIONS, |_| random.below(pairs), put);
    measure_scans(&mut subjects);
    print!("{:12}", "bytes/pair");
    subjects.iter().for_each(|subject| print!("{:12.1}", subject.store.bytes() as f64 / pairs as f64));
    println!();
    measure(&mut subjects, "put longer", OPERATIONS, |_| random.below(pairs), put_longer);
    let mut place = 0;
    let odd = move |_| {
        place = (place + 7_368_787) % pairs;
        place
    };
    measure(&mut subjects, "delete", OPERATIONS.min(pairs / 2), odd, delete);
    measure(&mut subjects, "put or not", OPERATIONS, |_| random.below(pairs), put);
    measure(&mut subjects, "delete all", pairs, |i| i, delete);
}

//! Whole runs against servers made up for it.

use super::args::BenchArgs;
use super::plan::Plan;
use super::run::{Outcome, all, load};
use clap::Parser;
use sartor_core::workload::Action;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::{sleep, spawn};
use std::time::Duration;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: BenchArgs,
}

/// A server that answers the requests in a piece of bytes as `answer` says; at which address.
fn server(answer: impl Fn(&str, &mut TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let answer = Arc::new(answer);
    spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, answer) = (stream.unwrap(), answer.clone());
            spawn(move || {
                let mut bytes = vec![0; 1 << 16];
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    answer(std::str::from_utf8(&bytes[..count]).unwrap(), &mut stream);
                }
            });
        }
    });
    address
}

/// OK for every request.
fn all_ok(text: &str, stream: &mut TcpStream) {
    let _ = stream.write_all("+OK\r\n".repeat(text.matches('*').count()).as_bytes());
}

fn plan(address: &str, line: &str) -> Plan {
    let line = format!("bench --target {address} --warmup 0 {line}");
    Plan::new(&Line::try_parse_from(line.split_whitespace()).unwrap().args).unwrap()
}

fn run(plan: &Plan) -> Vec<Outcome> {
    all(plan, &Arc::new(AtomicBool::new(false))).unwrap()
}

#[test]
fn a_closed_loop_asks_as_often_as_it_should() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    let address = server(move |text, stream| {
        counter.fetch_add(text.matches('*').count(), SeqCst);
        all_ok(text, stream);
    });
    for (line, reads) in [
        ("--requests 1000 -c 7 --depth 3 --threads 2 --mix get=1", 1000),
        ("--requests 999 -c 5 --depth 64 --mix get=1,set=1", 500),
    ] {
        asked.store(0, SeqCst);
        let outcome = run(&plan(&address, line)).remove(0);
        let wanted: u64 = if reads == 1000 { 1000 } else { 999 };
        assert_eq!((outcome.record.answered, asked.load(SeqCst) as u64), (wanted, wanted));
        assert_eq!(outcome.record.all().len(), wanted);
        let met = outcome.record.of(Action::Read).unwrap().len();
        assert!(met.abs_diff(reads) < 100, "{met}");
        let over_time: u64 = outcome.record.points.iter().map(|point| point.answered).sum();
        assert_eq!(over_time, wanted);
    }
}

#[test]
fn a_load_writes_each_key_once() {
    let keys = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = keys.clone();
    let address = server(move |text, stream| {
        let found = text.split("\r\n").filter(|word| word.starts_with("key:")).map(str::to_owned);
        seen.lock().unwrap().extend(found);
        all_ok(text, stream);
    });
    // So few connections and such a depth that each piece of bytes is whole.
    let plan = plan(&address, "--keys 500 -c 4 --threads 2");
    load(&plan, &Arc::new(AtomicBool::new(false))).unwrap();
    let mut keys = keys.lock().unwrap().clone();
    keys.sort();
    let wanted: Vec<String> = (0..500).map(|record| format!("key:{record:012}")).collect();
    assert_eq!(keys, wanted);
}

#[test]
fn an_open_loop_counts_the_time_a_request_could_not_be_sent() {
    // The server stands still for 400 ms, once; only one request is on its way meanwhile.
    let stalled = AtomicBool::new(false);
    let address = server(move |text, stream| {
        if !stalled.swap(true, SeqCst) {
            sleep(Duration::from_millis(400));
        }
        all_ok(text, stream);
    });
    let outcome = run(&plan(&address, "--rate 1000 --requests 1000 -c 1")).remove(0);
    let latencies = outcome.record.all();
    assert_eq!(latencies.len(), 1000);
    // Those due in the first 300 ms waited 100 ms at least.
    let slow = latencies.count_between(100_000_000, u64::MAX);
    assert!(slow >= 295, "{slow} of them were slow");
    // A loop that waits for answers would have met one.
    assert!(latencies.value_at_quantile(0.8) > 100_000_000);
}

#[test]
fn what_is_never_answered_is_not_left_out() {
    let address = server(|_, _| {});
    let outcome = run(&plan(&address, "--rate 1000 --seconds 0.5 -c 2")).remove(0);
    assert_eq!(outcome.record.answered, 0);
    assert!((499..=500).contains(&outcome.record.unanswered), "{}", outcome.record.unanswered);
    assert!(outcome.record.all().value_at_quantile(0.5) >= 240_000_000);
}

#[test]
fn a_read_comes_before_its_write() {
    let address = server(|text, stream| {
        for request in text.split('*').skip(1) {
            let answer = if request.contains("GET") { "$2\r\nab\r\n" } else { "+OK\r\n" };
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    for line in ["--requests 500 -c 3 --depth 4 --mix rmw=1", "--requests 500 -c 3 --mix rmw=1 --rate 5000"] {
        let record = run(&plan(&address, line)).remove(0).record;
        let count = |action| record.of(action).map_or(0, hdrhistogram::Histogram::len);
        let counts = (count(Action::Read), count(Action::Update), count(Action::ReadModifyWrite));
        assert_eq!(counts, (500, 500, 500));
        assert_eq!(record.answered, 1000);
    }
}

#[test]
fn waits_are_no_requests() {
    let waits = Arc::new(AtomicUsize::new(0));
    let counter = waits.clone();
    let address = server(move |text, stream| {
        for request in text.split('*').skip(1) {
            let wait = request.contains("WAIT\r\n$1\r\n2\r\n$1\r\n0\r\n");
            counter.fetch_add(usize::from(wait), SeqCst);
            stream.write_all(if wait { b":2\r\n" } else { b"+OK\r\n" }).unwrap();
        }
    });
    for (wait, wanted) in [("each", 640), ("batch", 20)] {
        waits.store(0, SeqCst);
        let line = format!("--requests 640 -c 2 --depth 32 --mix set=1 --wait {wait}");
        let record = run(&plan(&address, &line)).remove(0).record;
        assert_eq!((record.answered, record.all().len()), (640, 640));
        assert_eq!(waits.load(SeqCst), wanted, "{wait}");
    }
    // Fewer replicas than asked for: not done.
    let line = "--requests 10 -c 1 --mix set=1 --wait each --wait-replicas 3";
    let address = server(|text, stream| {
        for request in text.split('*').skip(1) {
            stream.write_all(if request.contains("WAIT") { b":2\r\n" } else { b"+OK\r\n" }).unwrap();
        }
    });
    let record = run(&plan(&address, line)).remove(0).record;
    assert_eq!((record.answered, record.errors["WAIT-too-few-replicas"]), (0, 10));
}

#[test]
fn errors_are_counted_by_kind_and_dead_connections_made_again() {
    let asked = AtomicUsize::new(0);
    let address = server(move |text, stream| {
        for _ in text.matches('*') {
            match asked.fetch_add(1, SeqCst) {
                number if number % 100 == 99 => drop(stream.shutdown(std::net::Shutdown::Both)),
                number if number % 10 == 0 => drop(stream.write_all(b"-LOADING wait\r\n")),
                number if number % 10 == 1 => drop(stream.write_all(b"$-1\r\n")),
                _ => drop(stream.write_all(b"+OK\r\n")),
            }
        }
    });
    let record = run(&plan(&address, "--requests 1000 -c 1 --mix get=1")).remove(0).record;
    assert_eq!((record.errors["LOADING"], record.errors["connection-lost"]), (100, 10));
    assert_eq!((record.answered, record.missing), (890, 100));
    // The last one was lost at the end, when nobody needed another connection.
    assert_eq!(record.reconnects, 9);
}

#[test]
fn large_values_come_in_pieces() {
    let value = format!("${}\r\n{}\r\n", 3 << 20, "v".repeat(3 << 20));
    let address = server(move |text, stream| {
        for _ in text.matches('*') {
            let _ = stream.write_all(value.as_bytes());
        }
    });
    let record = run(&plan(&address, "--requests 40 -c 2 --depth 4 --mix get=1")).remove(0).record;
    assert_eq!((record.answered, record.errors.len()), (40, 0));
}

#[test]
fn memcached_is_asked_in_its_words() {
    let address = server(|text, stream| {
        for request in text.split_inclusive("\r\n") {
            if let Some(key) = request.strip_prefix("get ") {
                write!(stream, "VALUE {} 0 3\r\nabc\r\nEND\r\n", key.trim_end()).unwrap();
            } else if !request.starts_with("set ") {
                stream.write_all(b"STORED\r\n").unwrap();
            }
        }
    });
    let line = "--protocol memcached --requests 500 -c 3 --depth 8 --mix get=1,set=1";
    let record = run(&plan(&address, line)).remove(0).record;
    assert_eq!((record.answered, record.errors.len(), record.missing), (500, 0, 0));
}

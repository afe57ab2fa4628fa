//! The client against a store that behaves, and against ones that do not.

mod golden;
mod server;

use super::*;
use crate::conformance;
use server::{Change, Fault, Server};

/// For stores that answer, on a machine that is busy.
const LONG: Duration = Duration::from_secs(60);
/// For stores that do not.
const SHORT: Duration = Duration::from_secs(1);

fn options(address: &str) -> Options {
    Options { address: address.into(), ..Options::default() }
}

fn remote(server: &Server) -> Remote {
    Remote::open(&server.address, LONG).unwrap()
}

fn get(remote: &mut Remote, key: &[u8]) -> Result<Option<Vec<u8>>, DataletError> {
    let mut value = None;
    remote.get(key, &mut |found| value = Some(found.to_vec()))?;
    Ok(value)
}

#[test]
fn a_store_that_speaks_the_protocol_conforms() {
    for ordered in [false, true] {
        let server = Server::start();
        server.store().capabilities.ordered = ordered;
        let engine = declared(&options(&server.address)).unwrap();
        assert_eq!((engine.ordered, engine.durable), (ordered, false));
        for verdict in conformance::check(&engine, &options(&server.address)) {
            assert_eq!(verdict.result, Ok(()), "ordered {ordered}: {}", verdict.check);
        }
    }
}

#[test]
fn it_is_reached_by_a_unix_socket_too() {
    let server = Server::start();
    let path = std::env::temp_dir().join(format!("sartor-remote-{}.sock", std::process::id()));
    server.unix(&path);
    let mut store = open(&options(path.to_str().unwrap())).unwrap();
    std::fs::remove_file(path).unwrap();
    store.put(b"k", b"v").unwrap();
    store.commit(b"", false).unwrap();
    assert_eq!(server.store().pairs[&b"k"[..]], b"v");
}

#[test]
fn a_group_is_two_batches() {
    let server = Server::start();
    let mut remote = remote(&server);
    for i in 0..100u8 {
        remote.put(&[i], &[i]).unwrap();
    }
    remote.commit(b"", false).unwrap();
    assert_eq!(server.store().batches, [1, 100], "a hello, and all puts");
    (0..200u8).for_each(|i| remote.expect(&[i]));
    for i in 0..200u8 {
        assert_eq!(get(&mut remote, &[i]).unwrap(), (i < 100).then(|| vec![i]));
        remote.put(&[i], b"new").unwrap();
        assert_eq!(get(&mut remote, &[i]).unwrap(), Some(b"new".to_vec()));
    }
    remote.commit(b"mark", true).unwrap();
    assert_eq!(server.store().batches[2..], [200, 200]);
    assert_eq!(server.store().commits, [], "it is not durable");
    remote.commit(b"", false).unwrap();
    assert_eq!(server.store().batches.len(), 4, "nothing was to be done");
}

#[test]
fn commits_and_marks_of_a_durable_one_are_passed_on() {
    let server = Server::start();
    server.store().capabilities.durable = true;
    let mut remote = remote(&server);
    assert_eq!(remote.mark().unwrap(), None);
    remote.put(b"k", b"v").unwrap();
    remote.commit(b"first", true).unwrap();
    remote.commit(b"", false).unwrap();
    assert_eq!(server.store().commits, [(b"first".to_vec(), true), (vec![], false)]);
    assert_eq!(remote.mark().unwrap(), Some(vec![]));
    assert_eq!(server.store().batches, [1, 1, 2, 1, 1]);
}

#[test]
fn values_too_large_for_one_answer_come_one_after_the_other() {
    let server = Server::start();
    let mut remote = remote(&server);
    let value = vec![7; 3 << 20];
    for i in 0..10u8 {
        remote.put(&[i], &value).unwrap();
    }
    (0..10u8).for_each(|i| remote.expect(&[i]));
    for i in 0..10u8 {
        assert!(get(&mut remote, &[i]).unwrap().as_ref() == Some(&value));
    }
}

#[test]
fn a_store_that_restarts_empty_is_noticed_by_who_asks() {
    let server = Server::start();
    let mut remote = remote(&server);
    remote.put(b"k", b"v").unwrap();
    assert_eq!(get(&mut remote, b"k").unwrap(), Some(b"v".to_vec()));
    let before = remote.generation();
    // A connection that only broke is made again, and nothing is different.
    server.fail(Fault::Close);
    assert_eq!(get(&mut remote, b"k").unwrap(), Some(b"v".to_vec()));
    assert_eq!(remote.generation(), before);
    server.fail(Fault::Die);
    assert_eq!(get(&mut remote, b"k").unwrap(), None);
    assert_ne!(remote.generation(), before);
}

#[test]
fn another_owner_is_noticed() {
    let server = Server::start();
    let (mut first, mut second) = (remote(&server), remote(&server));
    second.put(b"k", b"other").unwrap();
    second.commit(b"", false).unwrap();
    let before = first.generation();
    assert_eq!(get(&mut first, b"k").unwrap(), Some(b"other".to_vec()));
    assert_ne!(first.generation(), before);
}

#[test]
fn writes_whose_answer_is_lost_are_unknown_and_nothing_is_asked_any_more() {
    for fault in [Fault::Close, Fault::Die, Fault::CloseWithin, Fault::Send(vec![0; 4])] {
        let server = Server::start();
        let mut remote = remote(&server);
        remote.put(b"k", b"v").unwrap();
        server.fail(fault.clone());
        let error = remote.commit(b"", false).unwrap_err();
        assert!(error.to_string().contains("may be done or not"), "{fault:?}: {error}");
        let batches = server.store().batches.len();
        assert_eq!(get(&mut remote, b"k"), Err(error.clone()));
        assert_eq!(remote.clear(), Err(error));
        assert_eq!(server.store().batches.len(), batches);
    }
}

#[test]
fn an_error_of_the_store_is_told_in_one_line_and_ends_the_batch() {
    let server = Server::start();
    let mut remote = remote(&server);
    remote.put(b"a", b"v").unwrap();
    server.store().full = true;
    let error = remote.commit(b"", false).unwrap_err().to_string();
    assert!(error.contains("it says: the disk\\nis full"), "{error}");
}

#[test]
fn limits_are_kept() {
    let server = Server::start();
    server.store().capabilities.key_bytes_max = 3;
    server.store().capabilities.value_bytes_max = 5;
    let mut remote = remote(&server);
    remote.put(b"abc", b"12345").unwrap();
    assert!(remote.put(b"abcd", b"").unwrap_err().to_string().contains("keys of up to 3 bytes"));
    assert!(remote.put(b"", b"123456").unwrap_err().to_string().contains("values of up to 5 bytes"));
}

/// What a store may answer to a get, and what is then said.
fn bad_answers() -> Vec<(Fault, &'static str)> {
    vec![
        (Fault::Send(b"\xff\xff\xff\xffxx".to_vec()), "announced 4294967295 bytes"),
        (Fault::Send(b"\x01\x00\x00\x04".to_vec()), "announced 67108865 bytes"),
        (Fault::Send(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()), "announced 1347703880 bytes"),
        (Fault::Send(b"\x05\x00\x00\x00\xff\xff\xff\xff\xff".to_vec()), "cannot be read"),
        (Fault::Send(b"\x02\x00\x00\x00\x12\x7f".to_vec()), "cannot be read"),
        (Fault::Send(b"\x01\x00\x00\x00\x0f".to_vec()), "cannot be read"),
        (Fault::Send(vec![0; 4]), "answered 0 of 1"),
        (Fault::Send([&[2, 0, 0, 0, 8, 1][..], &[0]].concat()), "more than one frame"),
        (Fault::Change(|results| results.results.clear()), "answered 0 of 1"),
        (Fault::Change(|results| results.results.push(results.results[0].clone())), "more than was asked"),
        (Fault::Change(|results| results.results[0].said = None), "a result is empty"),
        (Fault::Change(|results| results.results[0].said = Some(Said::Count(1))), "of another kind"),
        (Fault::Change(|results| results.generation = 0), "no generation"),
        (Fault::Silence, "did not answer within"),
        (Fault::Drip, "did not answer within"),
        (Fault::CloseWithin, "closed the connection"),
    ]
}

#[test]
fn no_answer_makes_it_hang_or_panic() {
    for (fault, text) in bad_answers() {
        let server = Server::start();
        let never = matches!(fault, Fault::Silence | Fault::Drip);
        let mut remote = Remote::open(&server.address, if never { SHORT } else { LONG }).unwrap();
        // A write, so that it is not tried again.
        remote.put(b"k", b"v").unwrap();
        server.fail(fault.clone());
        let error = remote.commit(b"", false).unwrap_err().to_string();
        assert!(error.contains(text), "{fault:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn a_read_is_tried_again_but_not_for_ever() {
    let server = Server::start();
    let mut remote = remote(&server);
    server.fail(Fault::Send(b"\xff\xff\xff\xff".to_vec()));
    assert_eq!(get(&mut remote, b"k").unwrap(), None);
    // One that speaks something else altogether.
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for socket in other.incoming() {
            let _ = std::io::Write::write_all(&mut socket.unwrap(), b"220 mail.example ESMTP\r\n");
        }
    });
    assert!(Remote::open(&address, LONG).is_err());
}

#[test]
fn a_walk_that_does_not_move_ends() {
    let changes: [(Change, &str); 3] = [
        (|results| pairs(results, &[], Some(b"x")), "an empty page"),
        (|results| pairs(results, &[b"b", b"a"], None), "out of order"),
        (|results| pairs(results, &[b"a"], Some(b"b")), "goes on elsewhere"),
    ];
    for (change, text) in changes {
        let server = Server::start();
        server.store().capabilities.ordered = true;
        let mut remote = remote(&server);
        server.fail(Fault::Change(change));
        let error = remote.walk(&mut Cursor::Start, &mut Page::new(5, 100)).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    let server = Server::start();
    let mut remote = remote(&server);
    server.fail(Fault::Change(|results| pairs(results, &[&b"a"[..]; 6], None)));
    let error = remote.walk(&mut Cursor::Start, &mut Page::new(5, 100)).unwrap_err().to_string();
    assert!(error.contains("more than 5 pairs"), "{error}");
}

fn pairs(results: &mut server::Results, keys: &[&'static [u8]], next: Option<&'static [u8]>) {
    let pair = |key: &&'static [u8]| Pair { key: Bytes::from_static(key), value: Bytes::new() };
    let pairs = server::Pairs { pairs: keys.iter().map(pair).collect(), next: next.map(Bytes::from_static) };
    results.results[0].said = Some(Said::Pairs(prost::Message::encode_to_vec(&pairs).into()));
}

#[test]
fn an_address_that_leads_nowhere_is_one_clear_line() {
    for (address, text) in [
        ("", "needs an address"),
        ("somewhere", "needs an address"),
        ("127.0.0.1:1", "127.0.0.1:1: cannot connect"),
        ("/nosuch/socket", "/nosuch/socket: cannot connect"),
    ] {
        let error = open(&options(address)).err().unwrap().to_string();
        assert!(error.contains(text) && error.lines().count() == 1, "{error}");
    }
    let server = Server::start();
    server.store().capabilities.version = 2;
    let error = open(&options(&server.address)).err().unwrap().to_string();
    assert!(error.contains("speaks version 2"), "{error}");
}

//! Servers that are silent, refuse, break off, restart, or are written to by others.

use super::fake::{Fake, Fault, Flavour};
use super::{get, open, said};
use sartor_core::datalet::Datalet;

fn redis() -> (Fake, Box<dyn Datalet>) {
    let fake = Fake::new(Flavour::Redis);
    let mut store = open(&format!("redis://{}?timeout_ms=300", fake.address)).unwrap();
    store.put(b"a", b"1").unwrap();
    store.put(b"b", b"1").unwrap();
    store.commit(b"", false).unwrap();
    (fake, store)
}

#[test]
fn one_that_is_silent_is_waited_for_no_longer_than_its_timeout() {
    let (fake, mut store) = redis();
    fake.fail("GET", 1, Fault::Silence);
    let text = said(get(store.as_mut(), "a"));
    assert!(text.contains(&format!("redis://{}: no answer within 300 ms", fake.address)), "{text}");
    fake.fail("INFO", 1, Fault::Silence);
    let text = said(open(&format!("redis://{}?timeout_ms=300", fake.address)).map(drop));
    assert!(text.contains("no answer within 300 ms"), "{text}");
}

#[test]
fn a_refusal_is_told_with_what_to_do_and_ends_the_store() {
    for (refusal, advice) in [
        ("-OOM command not allowed\r\n", "no memory left"),
        ("-READONLY You can't write\r\n", "name the server that takes writes"),
        ("-LOADING Redis is loading\r\n", "try again when it has"),
        ("-MISCONF Redis is configured\r\n", "cannot save to its disk"),
        ("-ERR whatever\r\n", "'ERR whatever'"),
        (":7\r\n", "something else was due"),
        ("HTTP/1.1 400 Bad Request\r\n", "not the protocol of Redis"),
    ] {
        let (fake, mut store) = redis();
        fake.fail("SET", 2, Fault::Say(refusal));
        store.put(b"c", b"1").unwrap();
        store.put(b"d", b"1").unwrap();
        let text = said(store.commit(b"", false));
        assert!(text.contains(advice) && text.contains("which of the last 2 writes"), "{text}");
        assert_eq!(said(get(store.as_mut(), "a")), text, "it says the same from now on");
        assert_eq!(said(store.put(b"e", b"1")), text);
        assert_eq!(said(store.len()), text);
    }
    let (fake, mut store) = redis();
    fake.fail("GET", 2, Fault::Say("-WRONGTYPE Operation against a key\r\n"));
    store.expect(b"b\r");
    let text = said(get(store.as_mut(), "a"));
    assert!(text.contains("key 'b\\r': ") && text.contains("only strings can be kept"), "{text}");
}

#[test]
fn after_a_connection_that_broke_amid_writes_nobody_knows_about_them() {
    let (fake, mut store) = redis();
    fake.fail("SET", 5, Fault::Close);
    (0..10).for_each(|i: u32| store.put(&i.to_le_bytes(), b"").unwrap());
    let text = said(store.commit(b"", false));
    assert!(text.contains("which of the last 10 writes took effect is not known"), "{text}");
    assert_eq!(said(get(store.as_mut(), "a")), text);
    assert_eq!(fake.with(|state| state.connections), 1, "nothing was sent again");
}

#[test]
fn reads_are_asked_again_where_the_connection_ended() {
    let (fake, mut store) = redis();
    fake.fail("GET", 2, Fault::Close);
    store.expect(b"b");
    assert_eq!(get(store.as_mut(), "a"), Ok(Some("1".into())));
    assert_eq!(get(store.as_mut(), "b"), Ok(Some("1".into())));
    store.commit(b"", false).unwrap();
    assert_eq!((store.generation(), fake.with(|state| state.connections)), (0, 2));
}

#[test]
fn one_that_restarted_is_another_generation() {
    let (fake, mut store) = redis();
    fake.fail("GET", 1, Fault::Close);
    fake.with(|state| (state.run_id, state.pairs) = (2, Default::default()));
    assert_eq!(get(store.as_mut(), "a"), Ok(None));
    assert_eq!(store.generation(), 1);

    // Also where nothing but a group's end finds out.
    fake.fail("DBSIZE", 1, Fault::Close);
    fake.with(|state| state.run_id = 3);
    store.commit(b"", false).unwrap();
    let text = said(store.commit(b"", false));
    assert!(text.contains("it restarted, or somebody else writes to it"), "{text}");
    assert_eq!(store.generation(), 2);
}

#[test]
fn what_others_do_to_it_is_noticed() {
    type Act = fn(&mut dyn Datalet);
    let acts: [Act; 4] = [
        |store| drop(get(store, "a")),
        |store| drop(store.len()),
        |store| {
            (0..10).for_each(|i: u32| store.put(&i.to_le_bytes(), b"").unwrap());
            assert!(said(store.commit(b"", false)).contains("somebody else"));
        },
        |store| assert!(said(store.commit(b"", false)).contains("somebody else")),
    ];
    for act in acts {
        let (fake, mut store) = redis();
        fake.with(|state| state.pairs.insert(b"theirs".to_vec(), vec![]));
        act(store.as_mut());
        assert_eq!(store.generation(), 1);

        let (fake, mut store) = redis();
        fake.with(|state| state.pairs.clear());
        act(store.as_mut());
        assert_eq!(store.generation(), 1);

        // Ours is ours.
        let (_fake, mut store) = redis();
        (0..10).for_each(|i: u32| store.put(&(i % 4).to_le_bytes(), b"").unwrap());
        store.delete(b"a").unwrap();
        store.delete(b"none").unwrap();
        store.commit(b"", false).unwrap();
        store.clear().unwrap();
        assert_eq!((store.len().unwrap(), get(store.as_mut(), "b"), store.generation()), (0, Ok(None), 0));
    }
}

#[test]
fn a_memcached_that_fails_says_so() {
    const HELLO: (&str, &str) = ("stats\r\n", "STAT pid 1\r\nSTAT time 100\r\nEND\r\n");
    let fake = Fake::scripted(&[HELLO, ("mn\r\n", "ERROR\r\n")]);
    let text = said(open(&format!("memcached://{}", fake.address)).map(drop));
    assert!(text.contains("it must be version 1.6 or newer"), "{text}");
    let fake = Fake::scripted(&[
        HELLO,
        ("mn\r\n", "MN\r\n"),
        ("ms a 1 q\r\n1\r\nmn\r\n", "SERVER_ERROR out of memory storing object\r\nMN\r\n"),
    ]);
    let mut store = open(&format!("memcached://{}?timeout_ms=300", fake.address)).unwrap();
    store.put(b"a", b"1").unwrap();
    let text = said(store.commit(b"", false));
    assert!(text.contains("give it more memory") && text.contains("which of the last 1 writes"), "{text}");
    let fake = Fake::scripted(&[HELLO, ("mn\r\n", "MN\r\n")]);
    let mut store = open(&format!("memcached://{}?timeout_ms=300", fake.address)).unwrap();
    let text = said(get(store.as_mut(), "a"));
    assert!(text.contains("no answer within 300 ms"), "{text}");
}

#[test]
fn one_to_keep_nothing_in_is_refused() {
    for (info, why) in [
        ("role:slave\r\n", "it is a replica"),
        ("loading:1\r\n", "still loading"),
        ("cluster_enabled:1\r\n", "part of a Redis Cluster"),
        ("maxmemory:100\r\nmaxmemory_policy:allkeys-lru\r\n", "maxmemory-policy to noeviction"),
    ] {
        let fake = Fake::new(Flavour::Redis);
        let answer: &'static str = format!("${}\r\n{info}\r\n", info.len()).leak();
        fake.fail("INFO", 1, Fault::Say(answer));
        let text = said(open(&format!("redis://{}", fake.address)).map(drop));
        assert!(text.contains(why), "{text}");
    }
    let fake = Fake::new(Flavour::Redis);
    fake.fail("INFO", 1, Fault::Say("-NOAUTH Authentication required.\r\n"));
    let text = said(open(&format!("redis://{}", fake.address)).map(drop));
    assert!(text.contains("redis://:password@host"), "{text}");
}

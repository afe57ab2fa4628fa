use super::*;
use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

type Keys = Arc<Mutex<HashMap<String, String>>>;

/// A Redis that knows the two commands; what it holds.
fn fake(listener: TcpListener) -> Keys {
    let keys = Keys::default();
    let all = keys.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let keys = all.clone();
            std::thread::spawn(move || serve(stream.unwrap(), &keys));
        }
    });
    keys
}

fn serve(mut stream: TcpStream, keys: &Keys) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    loop {
        let count: usize = lines.next()?.ok()?.strip_prefix('*')?.parse().ok()?;
        let words: Vec<String> = (0..count)
            .map(|_| {
                lines.next().unwrap().unwrap();
                lines.next().unwrap().unwrap()
            })
            .collect();
        let mut keys = keys.lock().unwrap();
        let answer = match words[0].as_str() {
            "SET" if keys.contains_key(&words[1]) => "$-1\r\n",
            "SET" => {
                assert_eq!(words[3..], ["NX", "PX", "10000"]);
                keys.insert(words[1].clone(), words[2].clone());
                "+OK\r\n"
            }
            "EVAL" if keys.get(&words[3]) == Some(&words[4]) => {
                keys.remove(&words[3]);
                ":1\r\n"
            }
            "EVAL" => ":0\r\n",
            _ => "-ERR unknown\r\n",
        };
        stream.write_all(answer.as_bytes()).ok()?;
    }
}

fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    (listener, addr)
}

/// Three servers, of which so many listen.
fn servers(up: usize) -> (Vec<Keys>, Redlock, std::sync::mpsc::Receiver<String>) {
    let listeners: Vec<_> = (0..3).map(|_| listen()).collect();
    let addrs = listeners.iter().map(|(_, addr)| addr.clone()).collect();
    let keys = listeners.into_iter().take(up).map(|(listener, _)| fake(listener)).collect();
    let (lines, told) = std::sync::mpsc::channel();
    let tell: Tell = Arc::new(move |line| lines.send(line).unwrap());
    (keys, Redlock::new(addrs, 7, 3, 4, &tell).unwrap(), told)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(300)
}

#[test]
fn a_lock_is_taken_once_and_given_back() {
    let (keys, redlock, _told) = servers(3);
    let token = redlock.acquire(b"a", soon()).unwrap();
    assert!(redlock.is_held(&token));
    for keys in &keys {
        assert!(keys.lock().unwrap()["sartor:7:lock:a"].starts_with("3-"));
    }
    assert_eq!(redlock.acquire(b"a", soon()), Err(Refused { away: false, residue: None }));
    redlock.acquire(b"b", soon()).unwrap();
    // With another token nothing happens.
    redlock.release(b"a", Token { number: token.number + 1, until: None });
    assert!(keys.iter().all(|keys| keys.lock().unwrap().len() == 2));
    redlock.release(b"a", token);
    assert!(keys.iter().all(|keys| keys.lock().unwrap().len() == 1));
    redlock.acquire(b"a", soon()).unwrap();
}

#[test]
fn one_of_three_down_works() {
    let (_keys, redlock, told) = servers(2);
    let token = redlock.acquire(b"a", soon()).unwrap();
    assert!(redlock.release(b"a", token));
    redlock.acquire(b"a", soon()).unwrap();
    let lines: Vec<String> = told.try_iter().collect();
    assert!(matches!(lines.as_slice(), [line] if line.contains("start it, or correct locks")), "{lines:?}");
}

#[test]
fn two_of_three_down_fails_and_leaves_nothing() {
    let (keys, redlock, told) = servers(1);
    assert_eq!(redlock.acquire(b"a", soon()), Err(Refused { away: true, residue: None }));
    assert!(keys[0].lock().unwrap().is_empty());
    assert!(told.try_iter().any(|line| line.starts_with("1 of 3 Redis servers answer, locks need 2")));
    assert!(redlock.acquire(b"a", soon()).is_err());
    assert_eq!(told.try_iter().count(), 0);
}

#[test]
fn less_than_a_majority_is_given_back() {
    let (keys, redlock, _told) = servers(3);
    for keys in &keys[..2] {
        keys.lock().unwrap().insert("sartor:7:lock:a".into(), "9-other".into());
    }
    assert!(!redlock.acquire(b"a", soon()).unwrap_err().away);
    assert!(keys[2].lock().unwrap().is_empty());
    keys[0].lock().unwrap().clear();
    redlock.acquire(b"a", soon()).unwrap();
}

#[test]
fn a_silent_server_costs_its_time_once() {
    let (silent, addr) = listen();
    let (other, other_addr) = listen();
    let (third, third_addr) = listen();
    let _keys = (fake(other), fake(third));
    let tell: Tell = Arc::new(|_| {});
    let redlock = Redlock::new(vec![addr, other_addr, third_addr], 1, 1, 1, &tell).unwrap();
    let began = Instant::now();
    redlock.acquire(b"a", soon()).unwrap();
    assert!(began.elapsed() >= CALL_WITHIN);
    // The second call comes while it is left alone.
    let began = Instant::now();
    redlock.acquire(b"b", soon()).unwrap();
    assert!(began.elapsed() < CALL_WITHIN);
    drop(silent);
}

#[test]
fn what_servers_say() {
    let said = |answer: &'static [u8]| {
        let (listener, addr) = listen();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 512]);
            stream.write_all(answer).unwrap();
        });
        let tell: Tell = Arc::new(|_| {});
        Redlock::new(vec![addr], 1, 1, 1, &tell).unwrap().ask_all(&command(&[b"SET"]), Kind::Take).remove(0)
    };
    assert_eq!(said(b"+OK\r\n"), Said::Yes);
    assert_eq!(said(b"$-1\r\n"), Said::No);
    assert_eq!(said(b"-NOAUTH x\r\n"), Said::Nothing("it says: NOAUTH x".into()));
    assert_eq!(said(b"+OK"), Said::Nothing("it closed the connection".into()));
    assert_eq!(said(&[b'x'; 600]), Said::Nothing("its answer is too long".into()));
    assert_eq!(command(&[b"a", b""]), b"*2\r\n$1\r\na\r\n$0\r\n\r\n");
}

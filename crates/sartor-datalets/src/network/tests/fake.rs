//! A server that speaks as Redis does, with a map behind it, and faults at will.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Bound;
use std::sync::{Arc, Mutex};

/// As whom it speaks.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Flavour {
    Redis,
    /// It answers `OK` to commands that it has no answer for in this protocol.
    OldSsdb,
    /// It answers them with arrays.
    NewSsdb,
}

/// What happens instead of an answer.
#[derive(Clone, Copy)]
pub(super) enum Fault {
    Close,
    Silence,
    Say(&'static str),
}

/// What it holds and does.
#[derive(Default)]
pub(super) struct State {
    pub(super) pairs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) run_id: u64,
    /// At the so manieth of these commands from now on, this.
    pub(super) fault: Option<(&'static str, usize, Fault)>,
    /// Commands that were asked.
    pub(super) asked: Vec<String>,
    /// How often it had answered all that had come.
    pub(super) trips: usize,
    pub(super) connections: usize,
}

/// A server and its address.
pub(super) struct Fake {
    pub(super) state: Arc<Mutex<State>>,
    pub(super) address: String,
}

impl Fake {
    pub(super) fn new(flavour: Flavour) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(Mutex::new(State { run_id: 1, ..State::default() }));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                shared.lock().unwrap().connections += 1;
                std::thread::spawn(move || serve(flavour, &stream, &shared));
            }
        });
        Fake { state, address }
    }

    /// Answers just these requests with these bytes, and then is silent.
    pub(super) fn scripted(script: &'static [(&'static str, &'static str)]) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for (request, answer) in script {
                let mut come = vec![0; request.len()];
                stream.read_exact(&mut come).unwrap();
                assert_eq!(String::from_utf8_lossy(&come), *request);
                stream.write_all(answer.as_bytes()).unwrap();
            }
            std::thread::park();
        });
        Fake { state: Arc::default(), address }
    }

    /// Changes something.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().unwrap())
    }

    pub(super) fn fail(&self, command: &'static str, count: usize, fault: Fault) {
        self.with(|state| state.fault = Some((command, count, fault)));
    }
}

fn serve(flavour: Flavour, stream: &TcpStream, state: &Mutex<State>) {
    let (mut from, mut out) = (BufReader::with_capacity(1 << 20, stream), Vec::new());
    while let Some(words) = request(&mut from) {
        let mut locked = state.lock().unwrap();
        let command = String::from_utf8_lossy(&words[0]).into_owned();
        locked.asked.push(command.clone());
        if let Some((wanted, left, fault)) = &mut locked.fault
            && *wanted == command
        {
            *left -= 1;
            if *left == 0 {
                let fault = *fault;
                locked.fault = None;
                drop(locked);
                match fault {
                    Fault::Close => return,
                    Fault::Silence => std::thread::park(),
                    Fault::Say(text) => out.extend_from_slice(text.as_bytes()),
                }
                let _ = (&*stream).write_all(&out);
                out.clear();
                continue;
            }
        }
        answer(flavour, &mut locked, &words, &mut out);
        if from.buffer().is_empty() {
            locked.trips += 1;
            let _ = (&*stream).write_all(&out);
            out.clear();
        }
    }
}

fn request(from: &mut BufReader<&TcpStream>) -> Option<Vec<Vec<u8>>> {
    let number = |from: &mut BufReader<&TcpStream>| {
        let mut line = String::new();
        from.read_line(&mut line).ok()?;
        line.get(1..)?.trim_end().parse::<usize>().ok()
    };
    let count = number(from)?;
    let word = |from: &mut BufReader<&TcpStream>| {
        let mut word = vec![0; number(from)? + 2];
        from.read_exact(&mut word).ok()?;
        word.truncate(word.len() - 2);
        Some(word)
    };
    (0..count).map(|_| word(from)).collect()
}

fn bulk(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    match bytes {
        Some(bytes) => {
            write!(out, "${}\r\n", bytes.len()).unwrap();
            out.extend_from_slice(bytes);
            out.extend_from_slice(b"\r\n");
        }
        None => out.extend_from_slice(b"$-1\r\n"),
    }
}

fn answer(flavour: Flavour, state: &mut State, words: &[Vec<u8>], out: &mut Vec<u8>) {
    let ssdb = flavour != Flavour::Redis;
    let pairs = &mut state.pairs;
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    match (words[0], &words[1..]) {
        (b"GET", [key]) => bulk(out, pairs.get(*key).map(Vec::as_slice)),
        (b"SET", [key, _]) if ssdb && key.len() > 255 => out.extend_from_slice(b"-ERR \r\n"),
        (b"SET", [key, value]) => {
            if !(ssdb && key.is_empty()) {
                pairs.insert(key.to_vec(), value.to_vec());
            }
            out.extend_from_slice(b"+OK\r\n");
        }
        (b"DEL", keys) => {
            let there = keys.iter().filter(|key| pairs.remove(**key).is_some()).count();
            write!(out, ":{}\r\n", if ssdb { keys.len() } else { there }).unwrap();
        }
        (b"KEYS", [after, end, limit]) if ssdb => {
            let limit = std::str::from_utf8(limit).unwrap().parse().unwrap();
            let end = if end.is_empty() { Bound::Unbounded } else { Bound::Included(*end) };
            let range = pairs.range::<[u8], _>((Bound::Excluded(*after), end));
            let keys: Vec<&Vec<u8>> = range.map(|(key, _)| key).take(limit).collect();
            write!(out, "*{}\r\n", keys.len()).unwrap();
            keys.into_iter().for_each(|key| bulk(out, Some(key)));
        }
        (b"DBSIZE", []) if !ssdb => write!(out, ":{}\r\n", pairs.len()).unwrap(),
        (b"INFO", []) if !ssdb => {
            let info = format!("# Server\r\nrun_id:{}\r\nrole:master\r\nmaxmemory:0\r\n", state.run_id);
            bulk(out, Some(info.as_bytes()));
        }
        (b"FLUSHDB", [b"ASYNC"]) if !ssdb => {
            pairs.clear();
            out.extend_from_slice(b"+OK\r\n");
        }
        _ if flavour == Flavour::OldSsdb => out.extend_from_slice(b"+OK\r\n"),
        _ if flavour == Flavour::NewSsdb => out.extend_from_slice(b"*1\r\n$1\r\n1\r\n"),
        _ => out.extend_from_slice(b"-ERR unknown command\r\n"),
    }
}

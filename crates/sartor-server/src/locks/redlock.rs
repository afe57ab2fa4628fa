//! Redlock: a lock is a key with a random value and an end, at most of several independent Redis servers.
//!
//! ```text
//!  take   SET sartor:CLUSTER:lock:NAME TOKEN NX PX 10000 at all;  held if most say OK while time is left
//!  give   delete where the value is TOKEN, at all
//! ```
//!
//! All are asked at once by the calling thread: first the command is sent to each, then the answers are read, no
//! longer than 100 ms for all. A server that does not answer has no vote.

use super::{Refused, Service, Tell, Token, Trouble, locked};
use crate::resp::reply::Reply;
use sartor_core::random::Random;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long the locks of a process that died stay taken.
const TTL: Duration = Duration::from_secs(10);
/// How long the servers have to answer.
const CALL_WITHIN: Duration = Duration::from_millis(100);
/// A server that does not answer is left alone so long; then one call at a time tries it.
const REST: Duration = Duration::from_millis(200);
/// Between attempts, at most: at first, and when many have failed. At least 1 ms.
const PAUSE_MS: (u64, u64) = (20, 100);
/// Times in a row without most of the servers, before the others count as away.
const LONELY_MAX: u32 = 2;
/// An answer beyond that is none to what is asked here.
const ANSWER_BYTES_MAX: usize = 512;
/// Deletes the key only if it is ours still.
const GIVE: &[u8] =
    b"if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";

/// Locks at several Redis servers.
pub(super) struct Redlock {
    servers: Vec<Server>,
    prefix: String,
    node: u16,
    random: Mutex<Random>,
    /// Most of them do not answer.
    trouble: Trouble,
}

struct Server {
    addr: String,
    idle: Mutex<Vec<TcpStream>>,
    /// Connections worth keeping.
    idle_max: usize,
    /// It did not answer: not to be asked before.
    rests_until: Mutex<Option<Instant>>,
    trouble: Trouble,
}

/// A server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    Yes,
    No,
    /// Nothing of use, for this reason.
    Nothing(String),
}

/// What a command is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Take,
    Give,
}

/// A command that is sent.
struct Sent {
    stream: TcpStream,
    /// The connection is an older one, so it may have died since.
    reused: bool,
}

impl Redlock {
    /// Locks at these servers, for so many calls at a time.
    pub(super) fn new(
        servers: Vec<String>,
        cluster: u64,
        node: u16,
        calls: usize,
        tell: &Tell,
    ) -> Result<Redlock, String> {
        let mut seed = [0; 8];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| format!("no randomness for locks: {error}"))?;
        let server = |addr: String| Server {
            trouble: Trouble::new(tell.clone(), format!("Redis at {addr} answers again")),
            addr,
            idle: Mutex::default(),
            idle_max: calls,
            rests_until: Mutex::default(),
        };
        Ok(Redlock {
            servers: servers.into_iter().map(server).collect(),
            prefix: format!("sartor:{cluster}:lock:"),
            node,
            // Tokens need not be secret, only never the same.
            random: Mutex::new(Random::new(u64::from_le_bytes(seed))),
            trouble: Trouble::new(tell.clone(), "most Redis servers answer again; locks can be taken".into()),
        })
    }

    /// Asks all servers at once. Who did not answer is left alone for a while, if most others do.
    fn ask_all(&self, command: &[u8], kind: Kind) -> Vec<Said> {
        let deadline = Instant::now() + CALL_WITHIN;
        let rests: Vec<bool> = self.servers.iter().map(Server::rests).collect();
        let is_majority = rests.iter().filter(|rests| !**rests).count() >= self.majority();
        let send = |(server, rests): (&Server, &bool)| match (*rests && is_majority, kind) {
            (false, _) => Some(server.send(command, deadline)),
            (true, Kind::Take) => None,
            (true, Kind::Give) => {
                server.post(command);
                None
            }
        };
        // All before the first answer is read.
        let sent: Vec<_> = self.servers.iter().zip(&rests).map(send).collect();
        let heard = self.servers.iter().zip(sent).map(|(server, sent)| {
            let Some(sent) = sent else { return Said::Nothing("it did not answer just now".into()) };
            server.judge(sent.and_then(|sent| server.hear(sent, command, deadline)))
        });
        heard.collect()
    }

    fn token(&self) -> u128 {
        let mut random = locked(&self.random);
        u128::from(random.bits()) << 64 | u128::from(random.bits())
    }

    /// Names the node, for people who look.
    fn value(&self, number: u128) -> Vec<u8> {
        format!("{}-{number:032x}", self.node).into_bytes()
    }

    fn key(&self, name: &[u8]) -> Vec<u8> {
        [self.prefix.as_bytes(), name].concat()
    }

    fn give(&self, key: &[u8], value: &[u8]) {
        // Where it does not arrive, the key ends by itself.
        self.ask_all(&command(&[b"EVAL", GIVE, b"1", key, value]), Kind::Give);
    }

    /// One attempt: the token, or how many servers answered.
    fn try_acquire(&self, key: &[u8]) -> Result<Token, usize> {
        let number = self.token();
        let value = self.value(number);
        let ttl_ms = TTL.as_millis().to_string();
        let asked = Instant::now();
        let set = command(&[b"SET", key, &value, b"NX", b"PX", ttl_ms.as_bytes()]);
        let said = self.ask_all(&set, Kind::Take);
        let yes = said.iter().filter(|said| **said == Said::Yes).count();
        // Their clocks may run 1 % faster than ours, and end a key 1 ms early.
        let until = asked + TTL - TTL / 100 - Duration::from_millis(2);
        if yes >= self.majority() && Instant::now() < until {
            return Ok(Token { number, until: Some(until) });
        }
        let no = said.iter().filter(|said| **said == Said::No).count();
        // If all said no there is nothing of ours; a silent one may have heard.
        if no < said.len() {
            self.give(key, &value);
        }
        Err(yes + no)
    }

    fn majority(&self) -> usize {
        self.servers.len() / 2 + 1
    }

    fn complain(&self, answering: usize) {
        let (all, majority) = (self.servers.len(), self.majority());
        self.trouble.complain(|| {
            format!("{answering} of {all} Redis servers answer, locks need {majority}; start the others")
        });
    }
}

impl Service for Redlock {
    fn acquire(&self, name: &[u8], until: Instant) -> Result<Token, Refused> {
        let key = self.key(name);
        let (mut lonely, mut bound) = (0, PAUSE_MS.0);
        loop {
            match self.try_acquire(&key) {
                Ok(token) => {
                    self.trouble.relieve();
                    return Ok(token);
                }
                Err(answering) if answering < self.majority() => {
                    lonely += 1;
                    if lonely == LONELY_MAX {
                        self.complain(answering);
                        return Err(Refused { away: true, residue: None });
                    }
                }
                Err(_) => lonely = 0,
            }
            // Who fails at the same time as others must not try again at the same time as they.
            let pause = Duration::from_millis(locked(&self.random).between(1, bound));
            bound = (bound + bound / 4).min(PAUSE_MS.1);
            if Instant::now() + pause >= until {
                return Err(Refused { away: false, residue: None });
            }
            std::thread::sleep(pause);
        }
    }

    fn release(&self, name: &[u8], token: Token) -> bool {
        self.give(&self.key(name), &self.value(token.number));
        true
    }

    fn is_held(&self, token: &Token) -> bool {
        token.until.is_some_and(|until| Instant::now() < until)
    }
}

fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    out.array(words.len());
    for word in words {
        out.bulk(word);
    }
    out
}

fn left(deadline: Instant) -> Result<Duration, String> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(silent()) } else { Ok(left) }
}

fn silent() -> String {
    format!("no answer within {} ms", CALL_WITHIN.as_millis())
}

fn text(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => silent(),
        _ => error.to_string(),
    }
}

impl Server {
    /// Whether it is to be left alone. Who finds that it is not any more tries it, alone.
    fn rests(&self) -> bool {
        let mut rests_until = locked(&self.rests_until);
        let now = Instant::now();
        match *rests_until {
            None => false,
            Some(until) if now < until => true,
            Some(_) => {
                *rests_until = Some(now + REST);
                false
            }
        }
    }

    /// Notes whether it answers.
    fn judge(&self, answer: Result<Said, String>) -> Said {
        *locked(&self.rests_until) = answer.is_err().then(|| Instant::now() + REST);
        match answer {
            Ok(said) => {
                self.trouble.relieve();
                said
            }
            Err(error) => {
                let addr = &self.addr;
                self.trouble.complain(|| {
                    format!("cannot use Redis at {addr} for locks: {error}; start it, or correct locks")
                });
                Said::Nothing(error)
            }
        }
    }

    /// Sends a command without waiting for its answer: a server that only stood still finds it later.
    fn post(&self, command: &[u8]) {
        if let Some(mut stream) = locked(&self.idle).pop() {
            let _ = stream.write_all(command);
        }
    }

    /// Sends a command over a connection that waits for one, or a new one.
    fn send(&self, command: &[u8], deadline: Instant) -> Result<Sent, String> {
        let idle = locked(&self.idle).pop();
        if let Some(mut stream) = idle
            && stream.write_all(command).is_ok()
        {
            return Ok(Sent { stream, reused: true });
        }
        self.send_anew(command, deadline)
    }

    fn send_anew(&self, command: &[u8], deadline: Instant) -> Result<Sent, String> {
        let mut stream = self.connect(deadline)?;
        stream.write_all(command).map_err(|error| text(&error))?;
        Ok(Sent { stream, reused: false })
    }

    fn connect(&self, deadline: Instant) -> Result<TcpStream, String> {
        let addrs = self.addr.to_socket_addrs().map_err(|error| text(&error))?;
        let mut failed = "its name has no address".to_string();
        for addr in addrs {
            let opened = TcpStream::connect_timeout(&addr, left(deadline)?).and_then(|stream| {
                stream.set_nodelay(true)?;
                stream.set_write_timeout(Some(CALL_WITHIN))?;
                Ok(stream)
            });
            match opened {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = text(&error),
            }
        }
        Err(failed)
    }

    /// The answer to what was sent.
    fn hear(&self, mut sent: Sent, command: &[u8], deadline: Instant) -> Result<Said, String> {
        let mut line = read_line(&mut sent.stream, deadline);
        // The server was started again since the last command: so were the others of its connections.
        if sent.reused && matches!(line, Err(None)) {
            locked(&self.idle).clear();
            sent = self.send_anew(command, deadline)?;
            line = read_line(&mut sent.stream, deadline);
        }
        let line = line.map_err(|error| error.unwrap_or_else(|| "it closed the connection".into()))?;
        let said = match line.as_slice() {
            b"+OK" | b":1" => Ok(Said::Yes),
            b"$-1" | b"_" | b":0" => Ok(Said::No),
            [b'-', error @ ..] => Err(format!("it says: {}", String::from_utf8_lossy(error))),
            _ => return Err("what it says is not Redis'".into()),
        };
        let mut idle = locked(&self.idle);
        if idle.len() < self.idle_max {
            idle.push(sent.stream);
        }
        said
    }
}

/// One line, without its end: all answers asked for here are one. `None` as error: the other end hung up.
fn read_line(stream: &mut TcpStream, deadline: Instant) -> Result<Vec<u8>, Option<String>> {
    let mut line = Vec::new();
    let mut buffer = [0; ANSWER_BYTES_MAX];
    loop {
        // What is there already is read even if the time is over: another server may have used it up.
        let patience = left(deadline).unwrap_or(Duration::from_millis(1));
        stream.set_read_timeout(Some(patience)).map_err(|error| Some(text(&error)))?;
        match stream.read(&mut buffer) {
            Ok(0) => return Err(None),
            Ok(len) => line.extend_from_slice(&buffer[..len]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Err(None),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Some(text(&error))),
        }
        if line.ends_with(b"\r\n") {
            line.truncate(line.len() - 2);
            return Ok(line);
        }
        if line.len() >= ANSWER_BYTES_MAX {
            return Err(Some("its answer is too long".into()));
        }
    }
}

#[cfg(test)]
mod tests;

//! The log in NATS JetStream: a stream for each shard, whose sequences are the offsets.
//!
//! ```text
//!  call ── stream known on this connection? ── no: create it ──▶ append ─▶ acknowledged: Appended, Refused
//!                                        └─ yes ──────────────▶ read ──▶ barrier, state, then messages: Read...
//!                                                               trim ──▶ state, then purge
//!  no answer for 2 s, an error, or the connection is lost: Failed
//! ```

use super::api::{Answer, EXPECTED_LAST, NO_MESSAGE, NO_STREAM, NOBODY, Refusal, State, Stream};
use super::connection::{self, Link, News};
use super::place::Place;
use super::protocol::{Message, publish, publish_with};
use super::reading::Reading;
use super::{LogCall, LogEvent};
use bytes::Bytes;
use sartor_core::ids::ShardId;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// A call without an answer for so long has failed.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// How often it is looked for such calls.
const TICK: Duration = Duration::from_millis(50);
/// How often NATS is asked for a sign of life.
const PING_EVERY: Duration = Duration::from_secs(2);
/// How often people are told of the same trouble.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);
/// No more kinds of trouble than that are told in that time.
const COMPLAINTS_MAX: usize = 32;
/// What is written at a time, about.
const WRITE_BYTES: usize = 256 << 10;
/// Calls beyond that, with their messages, fail instead of waiting to be written.
const QUEUE_BYTES_MAX: usize = 256 << 20;
/// No log ends there; the highest number that NATS reads.
const NEVER_LAST: u64 = i64::MAX as u64;
/// What a call takes besides its message.
const CALL_BYTES: usize = 512;

/// A log for each shard, shared with whoever opens the same place with the same cluster.
///
/// Every `Read` and `Append` is answered once in the end. Dropping it ends its connection; calls under way fail.
#[derive(Debug)]
pub struct Logs {
    inputs: Sender<Input>,
    queued: Arc<AtomicUsize>,
}

impl Logs {
    /// Whether `url` is one that `open` takes; what is wrong with it.
    pub fn check(url: &str) -> Result<(), String> {
        Place::parse(url).map(drop)
    }

    /// Begins to connect, for ever, and returns at once. `cluster` is a part of the names of streams. `deliver` gets
    /// the answers and `trouble` lines for people, both on a thread that must not wait for anything.
    pub fn open(
        url: &str,
        cluster: u64,
        deliver: impl Fn(ShardId, u64, LogEvent) + Send + Sync + 'static,
        trouble: impl Fn(String) + Send + Sync + 'static,
    ) -> Result<Logs, String> {
        let place = Place::parse(url)?;
        let (inputs, receiver) = channel();
        let worker = Worker {
            cluster,
            replicas: place.replicas,
            deliver: Box::new(deliver),
            trouble: Box::new(trouble),
            told: Vec::new(),
            was_lost: false,
            link: None,
            ready: HashSet::new(),
            calls: BTreeMap::new(),
            requests: HashMap::new(),
            numbers: 0,
            out: Vec::new(),
        };
        let inbox = format!("_INBOX.sartor{:016x}", RandomState::new().hash_one(std::process::id()));
        let failed = |error| format!("cannot start a thread: {error}; allow more of them");
        let news = inputs.clone();
        let read = move || connection::run(&place, &inbox, &news);
        Builder::new().name("log-in".into()).spawn(read).map_err(failed)?;
        Builder::new().name("log-out".into()).spawn(move || worker.run(&receiver)).map_err(failed)?;
        Ok(Logs { inputs, queued: Arc::default() })
    }

    /// Asks something of the log of a shard; never waits. `number` comes back with the answer. While there is no
    /// connection a call waits for one, but not for long.
    pub fn ask(&self, shard: ShardId, number: u64, call: LogCall) {
        let bytes = CALL_BYTES + if let LogCall::Append { payload, .. } = &call { payload.len() } else { 0 };
        let before = self.queued.fetch_add(bytes, Ordering::Relaxed);
        let weight = Weight { queued: self.queued.clone(), bytes };
        let fits = before.saturating_add(bytes) <= QUEUE_BYTES_MAX;
        let asked = if fits { Ok((call, weight)) } else { Err(matches!(call, LogCall::Trim { .. })) };
        let _ = self.inputs.send(Input::Ask(shard, number, asked));
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        let _ = self.inputs.send(Input::Stop);
    }
}

/// What a call takes of the queue, until its message is written or it ends.
#[derive(Debug)]
struct Weight {
    queued: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for Weight {
    fn drop(&mut self) {
        self.queued.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// What the thread that writes hears.
enum Input {
    /// A call; or, if there are too many, whether it is one that is not answered.
    Ask(ShardId, u64, Result<(LogCall, Weight), bool>),
    News(News),
    Stop,
}

impl From<News> for Input {
    fn from(news: News) -> Input {
        Input::News(news)
    }
}

/// A call that is not answered yet.
struct Call {
    shard: ShardId,
    number: u64,
    deadline: Instant,
    work: Work,
}

enum Work {
    /// The message is gone once it is written.
    Append {
        after: u64,
        payload: Option<(Bytes, Weight)>,
    },
    Read(Box<Reading>),
    Trim {
        up_to: u64,
    },
}

/// What NATS was asked for a call.
#[derive(Clone, Copy)]
enum Step {
    Create,
    Append,
    /// What is refused only after all that came before it.
    Barrier,
    State,
    Get(u64),
    Purge,
}

/// Who must not go on.
struct Stopped;

/// The thread that writes, and knows what is not answered yet.
struct Worker {
    cluster: u64,
    replicas: u8,
    deliver: Box<dyn Fn(ShardId, u64, LogEvent) + Send>,
    trouble: Box<dyn Fn(String) + Send>,
    /// Of which trouble people were told lately.
    told: Vec<(String, Instant)>,
    was_lost: bool,
    link: Option<Link>,
    /// The shards whose streams exist, as far as known on this connection.
    ready: HashSet<ShardId>,
    calls: BTreeMap<u64, Call>,
    /// What NATS was asked, and for which call.
    requests: HashMap<u64, (u64, Step)>,
    /// Numbers calls and requests.
    numbers: u64,
    /// What is to be written.
    out: Vec<u8>,
}

impl Worker {
    fn run(mut self, inputs: &Receiver<Input>) {
        let (mut tick_at, mut ping_at) = (Instant::now(), Instant::now());
        while let Ok(()) = self.hear(inputs, if self.calls.is_empty() { ping_at } else { tick_at }) {
            let now = Instant::now();
            if now >= tick_at {
                tick_at = now + TICK;
                self.expire(now);
            }
            if now >= ping_at {
                ping_at = now + PING_EVERY;
                self.out.extend_from_slice(b"PING\r\n");
            }
            self.flush();
        }
        self.lose();
    }

    /// Waits for something to do until then, and does what there is up to a good deal to write.
    fn hear(&mut self, inputs: &Receiver<Input>, until: Instant) -> Result<(), Stopped> {
        let patience = until.saturating_duration_since(Instant::now());
        let mut next = match inputs.recv_timeout(patience) {
            Ok(input) => Some(input),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Err(Stopped),
        };
        while let Some(input) = next {
            match input {
                Input::Ask(shard, number, Ok((call, weight))) => self.begin(shard, number, call, weight),
                Input::Ask(_, _, Err(true)) => {}
                Input::Ask(shard, number, Err(false)) => {
                    self.complain("more is asked of NATS than it takes; it is too slow or away".into());
                    (self.deliver)(shard, number, LogEvent::Failed);
                }
                Input::News(news) => self.learn(news),
                Input::Stop => return Err(Stopped),
            }
            next = if self.out.len() < WRITE_BYTES { inputs.try_recv().ok() } else { None };
        }
        Ok(())
    }

    fn learn(&mut self, news: News) {
        match news {
            News::Connected(link) => {
                if std::mem::take(&mut self.was_lost) {
                    self.complain(format!("NATS at {} answers", link.host));
                }
                self.link = Some(link);
                let waiting: Vec<u64> = self.calls.keys().copied().collect();
                waiting.into_iter().for_each(|id| self.start(id));
            }
            News::Ping => self.out.extend_from_slice(b"PONG\r\n"),
            News::Message(message) => self.answered(&message),
            News::Lost(why) => {
                self.was_lost = true;
                self.complain(why);
                if self.link.is_some() {
                    self.lose();
                }
            }
        }
    }

    fn begin(&mut self, shard: ShardId, number: u64, call: LogCall, weight: Weight) {
        let work = match call {
            LogCall::Append { after, payload } => Work::Append { after, payload: Some((payload, weight)) },
            LogCall::Read { after } => Work::Read(Box::new(Reading::new(after))),
            LogCall::Trim { up_to } => Work::Trim { up_to },
        };
        self.numbers += 1;
        let id = self.numbers;
        let deadline = Instant::now() + CALL_TIMEOUT;
        self.calls.insert(id, Call { shard, number, deadline, work });
        self.start(id);
    }

    /// Begins with a call, if there is a connection.
    fn start(&mut self, id: u64) {
        let Some(shard) = self.calls.get(&id).filter(|_| self.link.is_some()).map(|call| call.shard) else {
            return;
        };
        if self.ready.contains(&shard) {
            return self.proceed(id);
        }
        let stream = Stream::new(self.cluster, shard);
        self.request(id, Step::Create, "CREATE", &stream.name, &stream.config(self.replicas));
    }

    /// Goes on with a call whose stream exists.
    fn proceed(&mut self, id: u64) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        let stream = Stream::new(self.cluster, call.shard);
        match &mut call.work {
            // Of several servers a new leader may tell of a state that is behind what the one before it promised.
            Work::Read(_) if self.replicas > 1 => self.publish(id, Step::Barrier, &stream, NEVER_LAST, &[]),
            Work::Read(_) | Work::Trim { .. } => self.request(id, Step::State, "INFO", &stream.name, ""),
            Work::Append { after, payload } => {
                let after = *after;
                let Some((payload, _weight)) = payload.take() else { return };
                self.publish(id, Step::Append, &stream, after, &payload);
            }
        }
    }

    /// Publishes a message that gets into the log if the last one is that one.
    fn publish(&mut self, id: u64, step: Step, stream: &Stream, after: u64, payload: &[u8]) {
        let Some(link) = &self.link else { return };
        let header = format!("{EXPECTED_LAST}: {after}");
        // The line before the headers and what ends them.
        let max = link.max_payload.saturating_sub(header.len() + 16);
        if payload.len() > max {
            let size = payload.len();
            let line = format!("NATS takes no message of {size} bytes, at most {max}; raise its max_payload");
            self.complain(line);
            return self.end(id, LogEvent::Failed);
        }
        self.numbers += 1;
        let reply = format!("{}.{}", link.inbox, self.numbers);
        self.requests.insert(self.numbers, (id, step));
        publish_with(&mut self.out, &stream.subject, &reply, &header, payload);
    }

    /// Asks JetStream something about a stream.
    fn request(&mut self, id: u64, step: Step, verb: &str, stream: &str, body: &str) {
        let Some(link) = &self.link else { return };
        self.numbers += 1;
        let reply = format!("{}.{}", link.inbox, self.numbers);
        self.requests.insert(self.numbers, (id, step));
        publish(&mut self.out, &format!("$JS.API.STREAM.{verb}.{stream}"), &reply, body.as_bytes());
    }

    fn answered(&mut self, message: &Message) {
        let number = message.subject.rsplit_once('.').and_then(|(_, number)| number.parse().ok());
        // One that is not known is late.
        let Some((id, step)) = number.and_then(|number: u64| self.requests.remove(&number)) else { return };
        match (step, Answer::parse(message)) {
            (Step::Create, Ok(_)) => {
                self.ready.extend(self.calls.get(&id).map(|call| call.shard));
                self.proceed(id);
            }
            (Step::Append, Ok(answer)) if answer.seq > 0 => {
                self.end(id, LogEvent::Appended { offset: answer.seq });
            }
            (Step::Append, Err(refusal)) if refusal.is_wrong_last() => self.end(id, LogEvent::Refused),
            (Step::Barrier, Err(refusal)) if refusal.is_wrong_last() => self.passed(id, refusal.last()),
            (Step::State, Ok(Answer { state: Some(state), .. })) => self.informed(id, &state),
            (Step::Get(sequence), Ok(answer)) => match answer.stored(sequence) {
                Some(payload) => self.arrived(id, sequence, payload),
                None => self.refused(id, &Refusal { code: 0, text: "a message is damaged".into() }),
            },
            (Step::Get(sequence), Err(refusal)) if refusal.code == NO_MESSAGE => self.missed(id, sequence),
            (Step::Purge, Ok(_)) => drop(self.calls.remove(&id)),
            (_, Ok(_)) => self.refused(id, &Refusal { code: 0, text: "the answer is another one's".into() }),
            (_, Err(refusal)) => self.refused(id, &refusal),
        }
    }

    fn refused(&mut self, id: u64, refusal: &Refusal) {
        let Some(call) = self.calls.get(&id) else { return };
        if [NOBODY, NO_STREAM].contains(&refusal.code) {
            self.ready.remove(&call.shard);
        }
        let name = Stream::new(self.cluster, call.shard).name;
        self.complain(format!("NATS and its stream {name}: {}{}", refusal.text, refusal.hint()));
        self.end(id, LogEvent::Failed);
    }

    /// All that was in the log when the call was asked is there; the last of it had this offset, if known.
    fn passed(&mut self, id: u64, last: Option<u64>) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        if let (Work::Read(reading), Some(last)) = (&mut call.work, last) {
            reading.reaches(last);
        }
        let stream = Stream::new(self.cluster, call.shard);
        self.request(id, Step::State, "INFO", &stream.name, "");
    }

    fn informed(&mut self, id: u64, state: &State) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        call.deadline = Instant::now() + CALL_TIMEOUT;
        let stream = Stream::new(self.cluster, call.shard);
        match &mut call.work {
            Work::Read(reading) => match reading.informed(state) {
                Ok(()) => self.read_on(id),
                Err(text) => self.refused(id, &Refusal { code: 0, text }),
            },
            Work::Trim { up_to } => {
                // The last message stays, so that the sequence goes on from there whatever becomes of the server. To
                // purge beyond it would raise the sequence; and NATS takes 1 for all.
                let keep = (*up_to).min(state.last_seq.saturating_sub(1)) + 1;
                if keep <= state.first_seq.max(1) {
                    return drop(self.calls.remove(&id));
                }
                let body = format!("{{\"seq\":{keep}}}");
                self.request(id, Step::Purge, "PURGE", &stream.name, &body);
            }
            Work::Append { .. } => {}
        }
    }

    fn arrived(&mut self, id: u64, sequence: u64, payload: Bytes) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        let Work::Read(reading) = &mut call.work else { return };
        call.deadline = Instant::now() + CALL_TIMEOUT;
        reading.arrived(sequence, payload);
        self.read_on(id);
    }

    /// Hands on what came, and asks for more.
    fn read_on(&mut self, id: u64) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        let Work::Read(reading) = &mut call.work else { return };
        match reading.part() {
            Some((event, true)) => return self.end(id, event),
            Some((event, false)) => (self.deliver)(call.shard, call.number, event),
            None => {}
        }
        let wanted: Vec<u64> = std::iter::from_fn(|| reading.next()).collect();
        let stream = Stream::new(self.cluster, call.shard);
        for sequence in wanted {
            let body = format!("{{\"seq\":{sequence}}}");
            self.request(id, Step::Get(sequence), "MSG.GET", &stream.name, &body);
        }
    }

    /// A message is not there: trimmed meanwhile, or lost.
    fn missed(&mut self, id: u64, sequence: u64) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        let Work::Read(reading) = &mut call.work else { return };
        reading.missed(sequence);
        let stream = Stream::new(self.cluster, call.shard);
        self.requests.retain(|_, request| request.0 != id);
        self.request(id, Step::State, "INFO", &stream.name, "");
    }

    /// The call is over, with this answer if it is one that is answered.
    fn end(&mut self, id: u64, event: LogEvent) {
        if let Some(call) = self.calls.remove(&id)
            && !matches!(call.work, Work::Trim { .. })
        {
            (self.deliver)(call.shard, call.number, event);
        }
    }

    /// Ends calls that were not answered in time.
    fn expire(&mut self, now: Instant) {
        let late = self.calls.iter().filter(|(_, call)| now >= call.deadline);
        let late: Vec<u64> = late.map(|(id, _)| *id).collect();
        if let Some(link) = self.link.as_ref().filter(|_| !late.is_empty()) {
            let line = format!("NATS at {} does not answer within {} s", link.host, CALL_TIMEOUT.as_secs());
            self.complain(line);
        }
        late.into_iter().for_each(|id| self.end(id, LogEvent::Failed));
        // What was asked for calls that are over is of no use to anybody.
        self.requests.retain(|_, request| self.calls.contains_key(&request.0));
    }

    /// Ends all calls, with the connection.
    fn lose(&mut self) {
        self.link = None;
        self.out.clear();
        self.ready.clear();
        self.requests.clear();
        let all: Vec<u64> = self.calls.keys().copied().collect();
        all.into_iter().for_each(|id| self.end(id, LogEvent::Failed));
    }

    fn flush(&mut self) {
        let written = self.link.as_ref().map(|link| link.write(&self.out));
        self.out.clear();
        self.out.shrink_to(2 * WRITE_BYTES);
        // The thread that reads tells of it too, but maybe later than the calls that come now.
        if let Some(Err(_)) = written {
            self.lose();
        }
    }

    /// Tells people, but not the same again and again.
    fn complain(&mut self, line: String) {
        let now = Instant::now();
        self.told.retain(|(_, at)| now < *at + COMPLAIN_EVERY);
        if self.told.len() < COMPLAINTS_MAX && self.told.iter().all(|(told, _)| *told != line) {
            self.told.push((line.clone(), now));
            (self.trouble)(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};

    const SHARD: ShardId = ShardId(7);
    const PATIENCE: Duration = Duration::from_secs(5);

    fn open(url: &str) -> (Logs, Receiver<(u64, LogEvent)>, Receiver<String>) {
        let ((events, heard), (lines, told)) = (channel(), channel());
        let deliver = move |shard, number, event| {
            assert_eq!(shard, SHARD);
            let _ = events.send((number, event));
        };
        let logs = Logs::open(url, 3, deliver, move |line| drop(lines.send(line))).unwrap();
        (logs, heard, told)
    }

    fn append(logs: &Logs, number: u64, after: u64) {
        logs.ask(SHARD, number, LogCall::Append { after, payload: Bytes::from_static(b"hello") });
    }

    /// The other end of a connection, which plays NATS.
    struct Server(BufReader<TcpStream>);

    impl Server {
        fn listen() -> (TcpListener, String) {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("nats://{}", listener.local_addr().unwrap());
            (listener, url)
        }

        fn accept(listener: &TcpListener) -> Server {
            let (stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut server = Server(BufReader::new(stream));
            server.say("INFO {\"version\":\"2.9.10\",\"headers\":true,\"max_payload\":1000}\r\nPING\r\n");
            for verb in ["CONNECT {", "SUB _INBOX.", "PING"] {
                assert!(server.line().starts_with(verb));
            }
            server.say("PONG\r\n");
            server
        }

        fn say(&mut self, text: &str) {
            self.0.get_mut().write_all(text.as_bytes()).unwrap();
        }

        fn line(&mut self) -> String {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            line
        }

        /// What is asked next: its subject, where to answer, and what it holds.
        fn asked(&mut self) -> (String, String, String) {
            loop {
                let line = self.line();
                let words: Vec<&str> = line.split_ascii_whitespace().collect();
                if ["PUB", "HPUB"].contains(&words[0]) {
                    let mut payload = vec![0; words[words.len() - 1].parse::<usize>().unwrap() + 2];
                    self.0.read_exact(&mut payload).unwrap();
                    let payload = String::from_utf8(payload).unwrap().trim_end().to_owned();
                    return (words[1].to_owned(), words[2].to_owned(), payload);
                }
            }
        }

        fn answer(&mut self, reply: &str, text: &str) {
            self.say(&format!("MSG {reply} 1 {}\r\n{text}\r\n", text.len()));
        }

        fn create(&mut self) {
            let (subject, reply, config) = self.asked();
            assert_eq!(subject, "$JS.API.STREAM.CREATE.sartor-3-7");
            assert!(config.contains(r#""subjects":["sartor.3.7"]"#), "{config}");
            self.answer(&reply, r#"{"config":{}}"#);
        }
    }

    #[test]
    fn appended_refused_and_too_large() {
        let (listener, url) = Server::listen();
        let (logs, heard, told) = open(&url);
        append(&logs, 1, 4);
        let mut server = Server::accept(&listener);
        server.create();
        let (subject, reply, text) = server.asked();
        assert_eq!(
            (&*subject, &*text),
            ("sartor.3.7", "NATS/1.0\r\nNats-Expected-Last-Sequence: 4\r\n\r\nhello")
        );
        server.answer(&reply, r#"{"stream":"sartor-3-7","seq":5}"#);
        assert_eq!(heard.recv_timeout(PATIENCE), Ok((1, LogEvent::Appended { offset: 5 })));
        append(&logs, 2, 0);
        let reply = server.asked().1;
        server.answer(&reply, r#"{"error":{"code":400,"err_code":10071,"description":"wrong"},"seq":0}"#);
        assert_eq!(heard.recv_timeout(PATIENCE), Ok((2, LogEvent::Refused)));
        logs.ask(SHARD, 3, LogCall::Append { after: 5, payload: vec![0; 1000].into() });
        assert_eq!(heard.recv_timeout(PATIENCE), Ok((3, LogEvent::Failed)));
        assert!(told.recv_timeout(PATIENCE).unwrap().contains("max_payload"));
        append(&logs, 4, 5);
        let reply = server.asked().1;
        server.say(&format!("HMSG {reply} 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"));
        assert_eq!(heard.recv_timeout(PATIENCE), Ok((4, LogEvent::Failed)));
        assert!(told.recv_timeout(PATIENCE).unwrap().contains("sartor-3-7: nobody answers"));
        // The stream may be gone.
        append(&logs, 5, 5);
        server.create();
    }

    #[test]
    fn a_lost_connection_fails_what_is_under_way_and_is_replaced() {
        let (listener, url) = Server::listen();
        let (logs, heard, told) = open(&url);
        append(&logs, 1, 0);
        let mut server = Server::accept(&listener);
        server.create();
        server.asked();
        server.say("-ERR 'Stale Connection'\r\n");
        assert_eq!(heard.recv_timeout(PATIENCE), Ok((1, LogEvent::Failed)));
        assert!(told.recv_timeout(PATIENCE).unwrap().contains("Stale Connection"));
        // Asked while there is none, it waits for the next one.
        append(&logs, 2, 0);
        let mut server = Server::accept(&listener);
        server.create();
        let reply = server.asked().1;
        // Answers to what is not known are nobody's.
        server.answer("_INBOX.x.999", "{}");
        server.answer(&reply, r#"{"stream":"sartor-3-7","seq":1}"#);
        assert_eq!(heard.recv_timeout(PATIENCE), Ok((2, LogEvent::Appended { offset: 1 })));
        append(&logs, 3, 1);
        server.asked();
        drop(logs);
        assert_eq!(heard.recv_timeout(PATIENCE), Ok((3, LogEvent::Failed)));
    }

    #[test]
    fn what_is_trimmed_while_it_is_read_is_skipped() {
        let (listener, url) = Server::listen();
        let (logs, heard, _told) = open(&url);
        logs.ask(SHARD, 1, LogCall::Read { after: 1 });
        let mut server = Server::accept(&listener);
        server.create();
        let state =
            |first| format!(r#"{{"state":{{"messages":3,"bytes":9,"first_seq":{first},"last_seq":3}}}}"#);
        let (subject, reply, _) = server.asked();
        assert_eq!(subject, "$JS.API.STREAM.INFO.sartor-3-7");
        server.answer(&reply, &state(1));
        let (second, third) = (server.asked(), server.asked());
        assert_eq!((&*second.0, &*second.2), ("$JS.API.STREAM.MSG.GET.sartor-3-7", r#"{"seq":2}"#));
        server
            .answer(&second.1, r#"{"error":{"code":404,"err_code":10037,"description":"no message found"}}"#);
        let reply = server.asked().1;
        // Late: it is asked again.
        server.answer(&third.1, r#"{"message":{"seq":3,"data":"eA=="}}"#);
        server.answer(&reply, &state(3));
        let reply = server.asked().1;
        server.answer(&reply, r#"{"message":{"seq":3,"data":"eHk="}}"#);
        let messages = vec![(3, Bytes::from_static(b"xy"))];
        assert_eq!(heard.recv_timeout(PATIENCE), Ok((1, LogEvent::Read { messages, end: Some(3) })));
    }

    #[test]
    fn with_replicas_a_reading_begins_behind_a_barrier() {
        let (listener, url) = Server::listen();
        let (logs, heard, _told) = open(&format!("{url}?replicas=3"));
        logs.ask(SHARD, 1, LogCall::Read { after: 0 });
        let mut server = Server::accept(&listener);
        server.create();
        let (subject, reply, text) = server.asked();
        assert_eq!(subject, "sartor.3.7");
        assert!(text.contains("Nats-Expected-Last-Sequence: 9223372036854775807"), "{text}");
        let wrong =
            r#"{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 2"},"seq":0}"#;
        server.answer(&reply, wrong);
        let reply = server.asked().1;
        // A state from before that.
        server.answer(&reply, r#"{"state":{"messages":1,"bytes":9,"first_seq":1,"last_seq":1}}"#);
        assert_eq!(heard.recv_timeout(PATIENCE), Ok((1, LogEvent::Failed)));
    }

    #[test]
    fn all_but_the_last_message_can_be_trimmed() {
        let (listener, url) = Server::listen();
        let (logs, _heard, _told) = open(&url);
        logs.ask(SHARD, 1, LogCall::Trim { up_to: 9 });
        let mut server = Server::accept(&listener);
        server.create();
        let state = r#"{"state":{"messages":4,"bytes":9,"first_seq":2,"last_seq":5}}"#;
        let reply = server.asked().1;
        server.answer(&reply, state);
        let (subject, reply, body) = server.asked();
        assert_eq!((&*subject, &*body), ("$JS.API.STREAM.PURGE.sartor-3-7", r#"{"seq":5}"#));
        server.answer(&reply, r#"{"success":true,"purged":3}"#);
        for up_to in [0, 1] {
            logs.ask(SHARD, 2, LogCall::Trim { up_to });
            let (subject, reply, _) = server.asked();
            assert!(subject.contains("INFO"));
            server.answer(&reply, state);
        }
        append(&logs, 3, 5);
        assert_eq!(server.asked().0, "sartor.3.7");
    }

    #[test]
    fn without_nats_calls_fail_in_time_and_people_are_told_once() {
        // Nobody says anything there.
        let (_listener, url) = Server::listen();
        let (logs, heard, told) = open(&url);
        let since = Instant::now();
        append(&logs, 1, 0);
        logs.ask(SHARD, 2, LogCall::Read { after: 0 });
        logs.ask(SHARD, 3, LogCall::Trim { up_to: 1 });
        for number in [1, 2] {
            assert_eq!(heard.recv_timeout(PATIENCE), Ok((number, LogEvent::Failed)));
        }
        assert!(since.elapsed() >= CALL_TIMEOUT);
        assert!(heard.try_recv().is_err());
        assert!(told.recv_timeout(PATIENCE).unwrap().contains("it is silent; start it"));
        assert!(told.try_recv().is_err());
    }

    #[test]
    fn too_much_at_a_time_fails() {
        let (_listener, url) = Server::listen();
        let (logs, heard, _told) = open(&url);
        let large = Bytes::from(vec![0; QUEUE_BYTES_MAX / 2]);
        for number in 1..=3 {
            logs.ask(SHARD, number, LogCall::Append { after: 0, payload: large.clone() });
        }
        let failed: Vec<u64> = heard.iter().take(3).map(|(number, _)| number).collect();
        assert_eq!(failed, [2, 3, 1]);
        drop(logs);
    }
}

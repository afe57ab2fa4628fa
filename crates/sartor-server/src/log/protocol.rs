//! NATS' text protocol: lines, some of them followed by a payload.

use super::place::Login;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result};

/// A longer line is none of NATS': its longest ones list the servers of a cluster.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// NATS can be told to take payloads of so much.
const PAYLOAD_BYTES_MAX: usize = 64 << 20;
/// What an answer may hold besides a message.
const ANSWER_BYTES_EXTRA: usize = 64 << 10;

/// What a server says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Info {
    pub(super) version: String,
    pub(super) headers: bool,
    pub(super) max_payload: usize,
    pub(super) tls_required: bool,
}

impl Info {
    /// Whether this server does what we rely on: older ones take an expected last sequence of 0 for none.
    pub(super) fn check(&self) -> std::result::Result<(), String> {
        let mut numbers = self.version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if version < (2, 9) || !self.headers {
            return Err(format!("it is version '{}'; 2.9 or newer is needed", self.version));
        }
        if self.tls_required {
            return Err("it wants TLS, which is not spoken here; let it listen without".into());
        }
        Ok(())
    }
}

/// What a server sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Info(Info),
    Ping,
    Pong,
    Ok,
    Error(String),
    Message(Message),
}

/// A message to one of our subjects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) subject: String,
    /// What its headers begin with, like 503 for "nobody listens"; mostly none.
    pub(super) status: Option<u16>,
    pub(super) payload: Bytes,
}

/// Cuts what a server sends into frames.
pub(super) struct Frames<R> {
    input: BufReader<R>,
    payload_bytes_max: usize,
}

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("it does not speak NATS' protocol ({what})"))
}

impl<R: Read> Frames<R> {
    pub(super) fn new(input: R) -> Frames<R> {
        Frames { input: BufReader::with_capacity(64 << 10, input), payload_bytes_max: ANSWER_BYTES_EXTRA }
    }

    /// Lets in answers about messages of that size, which they hold in base64.
    pub(super) fn expect(&mut self, payload_bytes: usize) {
        self.payload_bytes_max = payload_bytes.min(PAYLOAD_BYTES_MAX) * 3 / 2 + ANSWER_BYTES_EXTRA;
    }

    /// The next frame; waits for it.
    pub(super) fn next(&mut self) -> Result<Frame> {
        let line = self.line()?;
        let line = line.trim();
        let (verb, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
        match verb.to_ascii_uppercase().as_str() {
            "MSG" => self.message(rest, false).map(Frame::Message),
            "HMSG" => self.message(rest, true).map(Frame::Message),
            "PING" => Ok(Frame::Ping),
            "PONG" => Ok(Frame::Pong),
            "+OK" => Ok(Frame::Ok),
            "-ERR" => Ok(Frame::Error(rest.trim().trim_matches('\'').to_owned())),
            "INFO" => serde_json::from_str(rest).map(Frame::Info).map_err(|_| wrong("INFO")),
            _ => Err(wrong("an unknown verb")),
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = Vec::new();
        self.input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        match line.last() {
            Some(b'\n') => String::from_utf8(line).map_err(|_| wrong("a line that is no text")),
            Some(_) if line.len() as u64 >= LINE_BYTES_MAX => Err(wrong("a line without end")),
            _ => Err(Error::new(ErrorKind::UnexpectedEof, "it closed the connection")),
        }
    }

    /// After `SUBJECT SID [REPLY] [HEADER BYTES] BYTES`.
    fn message(&mut self, line: &str, has_headers: bool) -> Result<Message> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let count = |index: usize| words.get(index).and_then(|word| word.parse::<usize>().ok());
        let sizes = if has_headers { 2 } else { 1 };
        let Some(first_size) = words.len().checked_sub(sizes).filter(|before| [2, 3].contains(before)) else {
            return Err(wrong("the line of a message"));
        };
        let total = count(words.len() - 1).filter(|total| *total <= self.payload_bytes_max);
        let total = total.ok_or_else(|| wrong("the size of a message"))?;
        let headers =
            if has_headers { count(first_size).filter(|headers| *headers <= total) } else { Some(0) };
        let headers = headers.ok_or_else(|| wrong("the size of headers"))?;
        let mut bytes = vec![0; total + 2];
        self.input.read_exact(&mut bytes)?;
        if !bytes.ends_with(b"\r\n") {
            return Err(wrong("a message without its end"));
        }
        bytes.truncate(total);
        let bytes = Bytes::from(bytes);
        let status = status_of(&bytes[..headers]);
        Ok(Message { subject: words[0].to_owned(), status, payload: bytes.slice(headers..) })
    }
}

/// The number in `NATS/1.0 503 Reason`, which headers may begin with.
fn status_of(headers: &[u8]) -> Option<u16> {
    let line = headers.split(|byte| *byte == b'\r').next()?;
    let mut words = str::from_utf8(line).ok()?.split_ascii_whitespace();
    words.next().filter(|word| word.eq_ignore_ascii_case("NATS/1.0"))?;
    words.next()?.parse().ok()
}

/// The first lines of a client: who it is, and that it hears what is sent below `inbox`. Answered by PONG.
pub(super) fn greeting(login: &Login, inbox: &str) -> String {
    let mut options = json!({
        "verbose": false, "pedantic": false, "headers": true, "no_responders": true, "protocol": 1,
        "lang": "rust", "version": env!("CARGO_PKG_VERSION"), "name": "sartor",
    });
    match login {
        Login::Anonymous => {}
        Login::Token(token) => options["auth_token"] = json!(token),
        Login::User(user, password) => {
            options["user"] = json!(user);
            options["pass"] = json!(password);
        }
    }
    format!("CONNECT {options}\r\nSUB {inbox}.* 1\r\nPING\r\n")
}

/// Publishes a request.
pub(super) fn publish(out: &mut Vec<u8>, subject: &str, reply: &str, payload: &[u8]) {
    out.extend_from_slice(format!("PUB {subject} {reply} {}\r\n", payload.len()).as_bytes());
    out.extend_from_slice(payload);
    out.extend_from_slice(b"\r\n");
}

/// Publishes a message with one header.
pub(super) fn publish_with(out: &mut Vec<u8>, subject: &str, reply: &str, header: &str, payload: &[u8]) {
    let headers = format!("NATS/1.0\r\n{header}\r\n\r\n");
    let total = headers.len() + payload.len();
    out.extend_from_slice(
        format!("HPUB {subject} {reply} {} {total}\r\n{headers}", headers.len()).as_bytes(),
    );
    out.extend_from_slice(payload);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(text: &[u8]) -> Frames<&[u8]> {
        Frames::new(text)
    }

    #[test]
    fn frames_of_a_server() {
        let mut frames = frames(
            b"INFO {\"version\":\"2.9.10\",\"headers\":true,\"max_payload\":7,\"x\":[]} \r\nping\r\nPONG\r\n+OK\r\n\
              MSG a.1 1 3\r\nx\r\n\r\nMSG a 1 reply 0\r\n\r\nhmsg a 1 16 16\r\nnats/1.0 503\r\n\r\n\r\n\
              HMSG a 1 r 20 22\r\nNATS/1.0\r\nNonce: 1\r\nhi\r\n-ERR 'Unknown Protocol Operation'\r\n",
        );
        let info = Info { version: "2.9.10".into(), headers: true, max_payload: 7, tls_required: false };
        assert_eq!(info.check(), Ok(()));
        let message = |subject: &str, status, payload: &'static [u8]| {
            Frame::Message(Message { subject: subject.into(), status, payload: Bytes::from_static(payload) })
        };
        for expected in [
            Frame::Info(info),
            Frame::Ping,
            Frame::Pong,
            Frame::Ok,
            message("a.1", None, b"x\r\n"),
            message("a", None, b""),
            message("a", Some(503), b""),
            message("a", None, b"hi"),
            Frame::Error("Unknown Protocol Operation".into()),
        ] {
            assert_eq!(frames.next().unwrap(), expected);
        }
        assert_eq!(frames.next().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_is_not_nats_is_refused() {
        let endless = vec![b'x'; 100 << 10];
        for wrong in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b"MSG a 1\r\n",
            b"MSG a 1 2 3 4\r\n",
            b"MSG a 1 -1\r\n",
            b"MSG a 1 70000\r\n",
            b"MSG a 1 2\r\nabcd",
            b"HMSG a 1 9 2\r\nab\r\n",
            b"INFO {\r\n",
            b"PI\xff\r\n",
            &endless,
        ] {
            assert_eq!(frames(wrong).next().unwrap_err().kind(), ErrorKind::InvalidData);
        }
    }

    #[test]
    fn servers_that_are_too_old_or_want_tls() {
        let info = |version: &str| Info { version: version.into(), headers: true, ..Info::default() };
        assert!(info("2.8.4").check().unwrap_err().contains("2.9"));
        assert!(info("").check().is_err());
        assert_eq!(info("2.12.0-beta.1").check(), Ok(()));
        assert!(Info { tls_required: true, ..info("2.10.1") }.check().unwrap_err().contains("TLS"));
    }

    #[test]
    fn what_is_published() {
        let mut out = Vec::new();
        publish(&mut out, "a", "r.1", b"{}");
        publish_with(&mut out, "a", "r.2", "K: 1", b"hi");
        let expected = "PUB a r.1 2\r\n{}\r\nHPUB a r.2 18 20\r\nNATS/1.0\r\nK: 1\r\n\r\nhi\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        let login = Login::User("me".into(), "\"".into());
        assert!(greeting(&login, "in").contains(r#""pass":"\"""#));
    }
}

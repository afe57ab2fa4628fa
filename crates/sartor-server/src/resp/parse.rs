//! Reads requests out of a connection's buffer, where they lie.
//!
//! It goes on where it stopped when more bytes have come, so a request that trickles in costs no more
//! than one that comes at once. What is too large is skipped as it arrives and never held: memory
//! follows the bytes that came, not the lengths that were announced.

use crate::settings::{Name, Settings};
use bytes::{Buf, Bytes, BytesMut};

/// A length line: a sign, 20 digits, CR LF.
const LENGTH_LINE_MAX: usize = 32;
/// Redis refuses to read larger strings; so the framing cannot be trusted.
const BULK_MAX: u64 = 512 << 20;
const INLINE_MAX: usize = 64 << 10;

/// A request: its bytes, and where its arguments lie in them.
#[derive(Clone, Debug, Default)]
pub struct Args {
    whole: Bytes,
    places: Vec<(u32, u32)>,
}

impl Args {
    /// How many there are, the command's name included.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// An argument; none is the same as an empty one.
    pub fn get(&self, index: usize) -> &[u8] {
        self.places.get(index).map_or(&[], |&(start, end)| &self.whole[start as usize..end as usize])
    }

    /// An argument as a slice that shares the read buffer.
    pub fn bytes(&self, index: usize) -> Bytes {
        self.places
            .get(index)
            .map_or(Bytes::new(), |&(start, end)| self.whole.slice(start as usize..end as usize))
    }

    /// The arguments from this one on.
    #[must_use]
    pub fn from(&self, index: usize) -> Args {
        let places = self.places.get(index..).unwrap_or_default().to_vec();
        Args { whole: self.whole.clone(), places }
    }

    /// From arguments in order.
    pub fn from_words(words: &[&[u8]]) -> Args {
        let mut whole = Vec::new();
        let mut places = Vec::new();
        for word in words {
            places.push((whole.len() as u32, (whole.len() + word.len()) as u32));
            whole.extend_from_slice(word);
        }
        Args { whole: whole.into(), places }
    }
}

/// What was found.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A request, now in the `Args`.
    Request,
    /// A request that came as a plain line, now in the `Args`.
    Inline,
    /// Nothing complete.
    Incomplete,
    /// A request that was skipped, and why.
    TooLarge(String),
    /// The framing is lost: answer this, then close.
    Broken(String),
}

/// The state between reads.
#[derive(Debug, Default)]
pub struct Parser {
    /// Where to go on in the buffer.
    at: usize,
    /// Arguments still to come; none before the first line is read.
    missing: Option<u64>,
    /// Bytes announced so far.
    announced: u64,
    places: Vec<(u32, u32)>,
    /// Why the rest of this request is skipped.
    too_large: Option<String>,
    skip: u64,
}

enum Line {
    Number(i64),
    Incomplete,
    Broken,
}

impl Parser {
    /// Whether a request has begun and is not complete.
    pub fn is_inside(&self, buffer: &BytesMut) -> bool {
        !buffer.is_empty() || self.missing.is_some() || self.skip > 0
    }

    /// Whether the next request's first byte is the next one in the buffer.
    pub fn is_idle(&self) -> bool {
        self.missing.is_none() && self.at == 0
    }

    /// Takes the next request off the front of the buffer.
    pub fn next(&mut self, buffer: &mut BytesMut, settings: &Settings, into: &mut Args) -> Parsed {
        if self.missing.is_none() {
            match buffer.first() {
                None => return Parsed::Incomplete,
                Some(b'*') => match self.begin(buffer, settings) {
                    Ok(true) => {}
                    Ok(false) => return Parsed::Incomplete,
                    Err(text) => return Parsed::Broken(text),
                },
                Some(_) => return inline(buffer, into),
            }
        }
        while self.missing != Some(0) {
            match self.argument(buffer, settings) {
                Ok(true) => self.missing = self.missing.map(|missing| missing - 1),
                Ok(false) => return Parsed::Incomplete,
                Err(text) => return Parsed::Broken(text),
            }
        }
        self.finish(buffer, into)
    }

    fn begin(&mut self, buffer: &mut BytesMut, settings: &Settings) -> Result<bool, String> {
        match self.line(buffer) {
            Line::Incomplete => Ok(false),
            Line::Number(count) if count <= settings.get(Name::RequestArgsMax) as i64 => {
                self.missing = Some(count.max(0) as u64);
                Ok(true)
            }
            Line::Number(_) | Line::Broken => Err("Protocol error: invalid multibulk length".into()),
        }
    }

    /// Reads one argument; false if it is not all there.
    fn argument(&mut self, buffer: &mut BytesMut, settings: &Settings) -> Result<bool, String> {
        if self.skip == 0 {
            match buffer.get(self.at) {
                None => return Ok(false),
                Some(b'$') => {}
                Some(other) => {
                    return Err(format!("Protocol error: expected '$', got '{}'", other.escape_ascii()));
                }
            }
            let start = self.at;
            let len = match self.line(buffer) {
                Line::Incomplete => return Ok(false),
                Line::Number(len) if (0..=BULK_MAX as i64).contains(&len) => len as u64,
                Line::Number(_) | Line::Broken => return Err("Protocol error: invalid bulk length".into()),
            };
            self.judge(len, settings);
            if self.too_large.is_none() {
                return self.take(buffer, start, len as usize);
            }
            buffer.advance(self.at);
            self.at = 0;
            self.skip = len + 2;
        }
        let now = self.skip.min(buffer.len() as u64);
        buffer.advance(now as usize);
        self.skip -= now;
        Ok(self.skip == 0)
    }

    /// Decides whether an argument of this length still fits.
    fn judge(&mut self, len: u64, settings: &Settings) {
        self.announced += len;
        let (value_max, request_max) =
            (settings.get(Name::ValueBytesMax), settings.get(Name::RequestBytesMax));
        if self.too_large.is_some() {
        } else if len > value_max {
            self.too_large =
                Some(format!("a value of {len} bytes is larger than value-bytes-max ({value_max})"));
        } else if self.announced > request_max {
            self.too_large = Some(format!("the request is larger than request-bytes-max ({request_max})"));
        }
    }

    fn take(&mut self, buffer: &BytesMut, start: usize, len: usize) -> Result<bool, String> {
        let end = self.at + len;
        if buffer.len() < end + 2 {
            self.announced -= len as u64;
            self.at = start;
            return Ok(false);
        }
        if &buffer[end..end + 2] != b"\r\n" {
            return Err("Protocol error: a string does not end where it said".into());
        }
        self.places.push((self.at as u32, end as u32));
        self.at = end + 2;
        Ok(true)
    }

    fn finish(&mut self, buffer: &mut BytesMut, into: &mut Args) -> Parsed {
        let whole = buffer.split_to(self.at).freeze();
        let too_large = self.too_large.take();
        std::mem::swap(&mut into.places, &mut self.places);
        into.whole = whole;
        let places = std::mem::take(&mut self.places);
        *self = Parser { places, ..Parser::default() };
        self.places.clear();
        match too_large {
            Some(text) => Parsed::TooLarge(text),
            None => Parsed::Request,
        }
    }

    /// Reads the number of a line whose first byte says what it counts, and moves behind it.
    fn line(&mut self, buffer: &[u8]) -> Line {
        let rest = &buffer[self.at + 1..];
        let Some(end) = rest.iter().take(LENGTH_LINE_MAX).position(|&byte| byte == b'\r') else {
            return if rest.len() < LENGTH_LINE_MAX { Line::Incomplete } else { Line::Broken };
        };
        match rest.get(end + 1) {
            None => return Line::Incomplete,
            Some(b'\n') => {}
            Some(_) => return Line::Broken,
        }
        match number(&rest[..end]) {
            Some(value) => {
                self.at += 1 + end + 2;
                Line::Number(value)
            }
            None => Line::Broken,
        }
    }
}

fn number(digits: &[u8]) -> Option<i64> {
    // Lengths of one digit are the most frequent by far.
    match digits {
        [digit @ b'0'..=b'9'] => Some(i64::from(digit - b'0')),
        _ => sartor_core::operation::parse_integer(digits),
    }
}

/// A plain line: words between spaces. No quotes: who needs them can send RESP.
fn inline(buffer: &mut BytesMut, into: &mut Args) -> Parsed {
    let Some(end) = buffer.iter().take(INLINE_MAX).position(|&byte| byte == b'\n') else {
        if buffer.len() < INLINE_MAX {
            return Parsed::Incomplete;
        }
        return Parsed::Broken("Protocol error: too big inline request".into());
    };
    let line = buffer.split_to(end + 1).freeze();
    let words: Vec<&[u8]> = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).collect();
    *into = Args::from_words(&words);
    Parsed::Inline
}

#[cfg(test)]
mod tests {
    use super::*;
    use sartor_core::random::Random;

    fn settings() -> Settings {
        let settings = Settings::default();
        settings.set("value-bytes-max", 100).unwrap();
        settings
    }

    /// Feeds bytes in pieces; every request found, as text.
    fn feed(bytes: &[u8], piece: usize) -> Vec<String> {
        let (mut parser, mut buffer, mut args, mut found) =
            (Parser::default(), BytesMut::new(), Args::default(), Vec::new());
        for piece in bytes.chunks(piece) {
            buffer.extend_from_slice(piece);
            loop {
                match parser.next(&mut buffer, &settings(), &mut args) {
                    Parsed::Incomplete => break,
                    Parsed::Request | Parsed::Inline => {
                        let words = (0..args.len()).map(|i| args.get(i).escape_ascii().to_string());
                        found.push(words.collect::<Vec<_>>().join(" "));
                    }
                    Parsed::TooLarge(_) => found.push("too large".into()),
                    Parsed::Broken(text) => {
                        found.push(text);
                        return found;
                    }
                }
            }
            assert!(buffer.len() < 400, "held {} bytes", buffer.len());
        }
        assert!(!parser.is_inside(&buffer));
        found
    }

    #[test]
    fn requests_are_found_however_they_are_cut() {
        let big = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5000\r\n{}\r\n", "x".repeat(5000));
        let text = format!(
            "*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$0\r\n\r\n*0\r\n*-1\r\n{big}PING  you\r\n*2\r\n$2\r\n\r\n\r\n$1\r\nx\r\n"
        );
        let wanted = ["PING", "GET ", "", "", "too large", "PING you", "\\r\\n x"];
        for piece in [1, 2, 3, 7, 100, 10_000] {
            assert_eq!(feed(text.as_bytes(), piece.min(300)), wanted, "in pieces of {piece}");
        }
    }

    #[test]
    fn broken_framing_is_named() {
        for (bytes, text) in [
            ("*x\r\n", "invalid multibulk length"),
            ("*99999999999\r\n", "invalid multibulk length"),
            ("*1\r\n+OK\r\n", "expected '$', got '+'"),
            ("*1\r\n$-1\r\n", "invalid bulk length"),
            ("*1\r\n$1073741824\r\n", "invalid bulk length"),
            ("*1\r\n$1\r\nabc", "does not end"),
            ("*1111111111111111111111111111111111111", "invalid multibulk length"),
        ] {
            let found = feed(bytes.as_bytes(), 1000);
            assert!(found.last().is_some_and(|last| last.contains(text)), "{bytes:?}: {found:?}");
        }
    }

    #[test]
    fn any_bytes_are_survived() {
        let alphabet = b"*$1234567890\r\n\r\n\r\nPING -+:";
        let mut random = Random::new(3);
        for _ in 0..20_000 {
            let len = random.below(60) as usize;
            let bytes: Vec<u8> =
                (0..len).map(|_| alphabet[random.below(alphabet.len() as u64) as usize]).collect();
            let (mut parser, mut args) = (Parser::default(), Args::default());
            let mut buffer = BytesMut::from(&bytes[..]);
            for _ in 0..100 {
                if matches!(
                    parser.next(&mut buffer, &settings(), &mut args),
                    Parsed::Incomplete | Parsed::Broken(_)
                ) {
                    break;
                }
            }
        }
    }
}

//! `memcached`: a connection that speaks its meta commands.
//!
//! ```text
//!  mg KEY v q O7 ──▶           VA 5 O7, value      nothing where there is none
//!  ms KEY 5 q, value ──▶       nothing             all are quiet but for errors,
//!  md KEY q ──▶                nothing, or NF
//!  mn ──▶                      MN                  which ends what was asked
//! ```
//!
//! It may evict what it likes, tells no keys, and takes short keys and values only. A key that is not printable is sent
//! in base64, and lies in it as it is. What is evicted or flushed by somebody else is a miss and nothing more; a process that
//! restarted has closed the connection, and tells another start over the next one.

use super::address::Address;
use super::base64;
use super::pipelined::Protocol;
use super::wire::{Link, Trouble};
use sartor_core::datalet::{Cursor, DataletError, Page};
use std::io::Write;

/// The longest key of any bytes: 248 in base64.
pub const KEY_BYTES_MAX: usize = 186;
/// The largest value: with its key and header it must fit into 1 MiB.
pub const VALUE_BYTES_MAX: usize = (1 << 20) - 512;
/// The longest word of a request that is a key.
const WORD_BYTES_MAX: usize = 250;
/// What the buffer of requests keeps.
const KEPT_BYTES: usize = 1 << 20;

/// A connection to a memcached.
pub(super) struct Memcached {
    link: Link,
    out: Vec<u8>,
    writes: usize,
    /// Its process, and when that started.
    process: (u64, u64),
    generation: u64,
}

impl Memcached {
    /// Connects.
    pub(super) fn open(address: Address) -> Result<Memcached, DataletError> {
        let link = Link::open(address)?;
        let mut memcached = Memcached { link, out: Vec::new(), writes: 0, process: (0, 0), generation: 0 };
        memcached.greet().map_err(|trouble| memcached.failed(trouble))?;
        memcached.generation = 0;
        Ok(memcached)
    }

    fn ask(&mut self, request: &[u8], answer: &str) -> Result<(), Trouble> {
        self.link.wire.send(request)?;
        let line = self.link.wire.line()?;
        if line == answer.as_bytes() { Ok(()) } else { Err(refused(line)) }
    }

    /// Some of the numbers that it tells.
    fn stats<const N: usize>(&mut self, names: [&str; N]) -> Result<[u64; N], Trouble> {
        self.link.wire.send(b"stats\r\n")?;
        let mut numbers = [0; N];
        loop {
            let line = self.link.wire.line()?;
            if line == b"END" {
                return Ok(numbers);
            }
            let text = String::from_utf8_lossy(line);
            let mut words = text.split(' ');
            let (Some("STAT"), Some(name)) = (words.next(), words.next()) else { return Err(refused(line)) };
            if let Some(place) = names.iter().position(|wanted| *wanted == name) {
                numbers[place] = words.next().and_then(|number| number.parse().ok()).unwrap_or(0);
            }
        }
    }

    /// Appends `COMMAND KEY REST`, with what says that the key is in base64 if it is.
    fn append(&mut self, command: &str, key: &[u8], rest: core::fmt::Arguments<'_>) {
        self.out.extend_from_slice(command.as_bytes());
        let printable = is_printable(key);
        if printable {
            self.out.extend_from_slice(key);
        } else {
            base64::encode(key, &mut self.out);
        }
        // A vector takes all that is written to it.
        let _ = write!(self.out, "{rest}{}\r\n", if printable { "" } else { " b" });
    }
}

impl Protocol for Memcached {
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    fn greet(&mut self) -> Result<(), Trouble> {
        let [pid, time, uptime] = self.stats(["pid", "time", "uptime"])?;
        let process = (pid, time.saturating_sub(uptime));
        self.generation += u64::from(process != self.process);
        self.process = process;
        // Versions before 1.6 have no meta commands.
        self.ask(b"mn\r\n", "MN")
    }

    fn can_keep(&self, key: &[u8]) -> bool {
        let word = if is_printable(key) { key.len() } else { base64::encoded_len(key.len()) };
        (1..=WORD_BYTES_MAX).contains(&word)
    }

    fn value_bytes_max(&self) -> usize {
        VALUE_BYTES_MAX
    }

    fn get(&mut self, key: &[u8], place: usize) {
        self.append("mg ", key, format_args!(" v q O{place}"));
    }

    fn put(&mut self, key: &[u8], value: &[u8], _: Option<u64>) {
        self.writes += 1;
        self.append("ms ", key, format_args!(" {} q", value.len()));
        self.out.extend_from_slice(value);
        self.out.extend_from_slice(b"\r\n");
    }

    fn delete(&mut self, key: &[u8]) {
        self.writes += 1;
        self.append("md ", key, format_args!(" q"));
    }

    fn pending(&self) -> usize {
        self.out.len()
    }

    fn writes(&self) -> usize {
        self.writes
    }

    fn end(&mut self) {
        self.out.extend_from_slice(b"mn\r\n");
    }

    fn send(&mut self, found: &mut dyn FnMut(usize, &[u8])) -> Result<(), Trouble> {
        self.link.wire.send(&self.out)?;
        loop {
            let line = self.link.wire.line()?;
            match line.get(..2) {
                Some(b"MN") => return Ok(()),
                Some(b"VA") => {
                    let (len, place) = value_of(line).ok_or_else(|| refused(line))?;
                    found(place, self.link.wire.bulk(len)?);
                }
                // Some versions tell that there was nothing to delete.
                Some(b"NF") => {}
                _ => return Err(refused(line)),
            }
        }
    }

    fn forget(&mut self) {
        self.out.clear();
        self.out.shrink_to(KEPT_BYTES);
        self.writes = 0;
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    fn walk(&mut self, _: &mut Cursor, _: &mut Page) -> Result<(), DataletError> {
        Err(DataletError::Unsupported("memcached does not tell its keys; use a datalet that can be walked"))
    }

    fn has_passed(&self, _: &Cursor, _: &[u8]) -> Option<bool> {
        None
    }

    fn scan(&mut self, _: &[u8], _: Option<&[u8]>, _: &mut Page) -> Result<(), DataletError> {
        Err(DataletError::Unsupported("memcached keeps no key order; use an ordered datalet, such as tree"))
    }

    /// Those that were cleared count until their memory is needed.
    fn len(&mut self) -> Result<u64, DataletError> {
        let counted = self.ready().and_then(|()| self.stats(["curr_items"]));
        counted.map(|[count]| count).map_err(|trouble| self.failed(trouble))
    }

    fn remove_all(&mut self) -> Result<(), Trouble> {
        self.ask(b"flush_all\r\n", "OK")
    }
}

fn is_printable(key: &[u8]) -> bool {
    !key.is_empty() && key.iter().all(u8::is_ascii_graphic)
}

/// How long a value is, and whose it is.
fn value_of(line: &[u8]) -> Option<(usize, usize)> {
    let mut words = std::str::from_utf8(line).ok()?.split(' ').skip(1);
    let len = words.next()?.parse().ok()?;
    let place = words.find_map(|word| word.strip_prefix('O'))?.parse().ok()?;
    Some((len, place))
}

/// For an answer that is none to what was asked.
fn refused(line: &[u8]) -> Trouble {
    let line = String::from_utf8_lossy(&line[..line.len().min(200)]);
    let advice = match &*line {
        "ERROR" => "; it must be version 1.6 or newer, and speak its text protocol",
        text if text.starts_with("SERVER_ERROR out of memory") => "; give it more memory (-m)",
        text if text.starts_with("SERVER_ERROR object too large") => {
            "; its largest item (-I) is less than 1m"
        }
        _ => "",
    };
    Trouble::wrong(format!("it answered '{line}'{advice}"))
}

//! `redis` and `ssdb`: a connection to a store that speaks as Redis does.
//!
//! Values are kept raw, so that others can read them. What others write is noticed:
//!
//! - Each pipeline ends with `DBSIZE`, and begins with it if it writes; a number that our own writes do not explain means
//!   that somebody else wrote, that keys were evicted or that the database was emptied (`census.rs`).
//! - A process that restarted has closed the connection, and tells another `run_id` over the next one.
//!
//! Where a connection ends while nothing but reads is on its way, they are asked again over another one. After
//! writes it is not known which of them took effect: the store has failed.

use super::address::Address;
use super::census::Census;
use super::dialect::Dialect;
use super::own::Server;
use super::pipelined::Protocol;
use super::resp::{self, Head, request};
use super::wire::{Link, Trouble, Wire};
use sartor_core::datalet::{Cursor, DataletError, Page};
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

/// A key whose time has come is removed by its owner. Redis does it so much later, should there be no owner any more: it
/// must not do so by itself before, as then the copies would differ.
pub(super) const SPARE_MS: u64 = 60_000;
/// What the buffer of requests keeps.
const KEPT_BYTES: usize = 1 << 20;

/// A connection to such a store.
pub(super) struct Redis {
    pub(super) dialect: &'static Dialect,
    link: Link,
    /// Requests, and what their answers belong to.
    out: Vec<u8>,
    asked: Vec<Asked>,
    writes: usize,
    census: Census,
    /// Who it is; empty for one that does not tell.
    run_id: String,
    generation: u64,
    /// Mean bytes of the pairs that were walked over last.
    pub(super) pair_bytes: usize,
    /// The process, if it is to end with this.
    server: Option<Server>,
}

enum Asked {
    Get { place: usize, key: Range<usize> },
    Put,
    Delete,
    Count,
}

impl Redis {
    /// Connects, and looks whether it is one to keep data in.
    pub(super) fn open(dialect: &'static Dialect, address: Address) -> Result<Redis, DataletError> {
        let link = Link::open(address)?;
        let mut redis = Redis {
            dialect,
            link,
            out: Vec::new(),
            asked: Vec::new(),
            writes: 0,
            census: Census::default(),
            run_id: String::new(),
            generation: 0,
            pair_bytes: 64,
            server: None,
        };
        redis.greet().map_err(|trouble| redis.failed(trouble))?;
        redis.generation = 0;
        Ok(redis)
    }

    /// This process ends when the connection does.
    pub(super) fn end_with(&mut self, server: Server) {
        self.server = Some(server);
    }

    /// Asks something aside from what was appended.
    pub(super) fn ask<T>(
        &mut self,
        words: &[&[u8]],
        read: fn(&mut Wire) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        self.ask_all(&[words], read).map(|mut answers| answers.remove(0))
    }

    /// Asks several things at once.
    pub(super) fn ask_all<T>(
        &mut self,
        requests: &[&[&[u8]]],
        read: fn(&mut Wire) -> Result<T, Trouble>,
    ) -> Result<Vec<T>, Trouble> {
        let mut out = Vec::new();
        requests.iter().for_each(|words| request(&mut out, words));
        self.link.wire.send(&out)?;
        requests.iter().map(|_| read(&mut self.link.wire)).collect()
    }

    /// Asks something that can be asked again.
    pub(super) fn ask_again<T>(
        &mut self,
        words: &[&[u8]],
        read: fn(&mut Wire) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        self.ready()?;
        match self.ask(words, read) {
            Err(trouble) if trouble.gone => {
                self.reconnect()?;
                self.ask(words, read)
            }
            done => done,
        }
    }

    /// The number of keys by the last count.
    pub(super) fn count(&self) -> u64 {
        self.census.count()
    }

    /// From now on no key vanishes by itself.
    pub(super) fn recount(&mut self) -> Result<(), Trouble> {
        let count = self.ask(&[b"DBSIZE"], resp::count)?;
        self.census = Census::of(count, 0);
        Ok(())
    }

    /// Everything was removed.
    pub(super) fn emptied(&mut self) {
        self.census = Census::default();
    }

    fn append(&mut self, words: &[&[u8]], asked: Asked) {
        request(&mut self.out, words);
        self.asked.push(asked);
    }

    fn append_write(&mut self, words: &[&[u8]], asked: Asked) {
        if self.writes == 0 && self.dialect.tells {
            self.append(&[b"DBSIZE"], Asked::Count);
        }
        self.writes += 1;
        self.append(words, asked);
    }
}

impl Protocol for Redis {
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    fn greet(&mut self) -> Result<(), Trouble> {
        let Address { user, password, database, .. } = self.link.address.clone();
        match (user.is_empty(), password.is_empty()) {
            (_, true) => {}
            (true, _) => self.ask(&[b"AUTH", password.as_bytes()], resp::anything)?,
            (false, _) => self.ask(&[b"AUTH", user.as_bytes(), password.as_bytes()], resp::anything)?,
        }
        if database != 0 {
            self.ask(&[b"SELECT", database.to_string().as_bytes()], resp::anything)?;
        }
        if !self.dialect.tells {
            // One that wants a password says so.
            return self.ask(&[b"GET", b"-"], resp::anything);
        }
        let info = self.ask(&[b"INFO"], resp::text)?;
        let info = String::from_utf8_lossy(&info);
        refuse(&info)?;
        let run_id = field(&info, "run_id");
        if run_id.is_empty() || run_id != self.run_id {
            self.generation += 1;
            self.run_id = run_id.to_owned();
            let count = self.ask(&[b"DBSIZE"], resp::count)?;
            self.census = Census::of(count, keys_with_deadline(&info, database));
        }
        Ok(())
    }

    fn can_keep(&self, key: &[u8]) -> bool {
        (self.dialect.key_bytes_min..=self.dialect.key_bytes_max).contains(&key.len())
    }

    fn value_bytes_max(&self) -> usize {
        512 << 20
    }

    fn get(&mut self, key: &[u8], place: usize) {
        request(&mut self.out, &[b"GET", key]);
        let end = self.out.len() - 2;
        self.asked.push(Asked::Get { place, key: end - key.len()..end });
    }

    fn put(&mut self, key: &[u8], value: &[u8], deadline_ms: Option<u64>) {
        match deadline_ms.filter(|_| self.dialect.expires) {
            None => self.append_write(&[b"SET", key, value], Asked::Put),
            Some(at) => {
                let rest = (at.saturating_sub(unix_ms()) + SPARE_MS).to_string();
                self.append_write(&[b"SET", key, value, b"PX", rest.as_bytes()], Asked::Put);
            }
        }
    }

    fn adopt_deadlines(&mut self, found: &mut dyn FnMut(&[u8], u64)) -> Result<(), DataletError> {
        if self.census.vanishing() == 0 {
            return Ok(());
        }
        self.take_over_deadlines(found).map_err(|trouble| self.failed(trouble))
    }

    fn delete(&mut self, key: &[u8]) {
        self.append_write(&[b"DEL", key], Asked::Delete);
    }

    fn pending(&self) -> usize {
        self.out.len()
    }

    fn writes(&self) -> usize {
        self.writes
    }

    fn end(&mut self) {
        if self.dialect.tells {
            self.append(&[b"DBSIZE"], Asked::Count);
        }
    }

    fn send(&mut self, found: &mut dyn FnMut(usize, &[u8])) -> Result<(), Trouble> {
        self.link.wire.send(&self.out)?;
        for asked in &self.asked {
            match (asked, resp::head(&mut self.link.wire)?) {
                (Asked::Get { place, .. }, Head::Bulk(len)) => found(*place, self.link.wire.bulk(len)?),
                (Asked::Get { .. }, Head::Nil) => {}
                (Asked::Put, Head::Simple) => self.census.put(),
                (Asked::Delete, Head::Integer(count)) => self.census.deleted(count.unsigned_abs()),
                (Asked::Count, Head::Integer(count)) => {
                    self.generation += u64::from(!self.census.counted(count.unsigned_abs()));
                }
                (Asked::Get { key, .. }, error @ Head::Error(_)) => {
                    let key = self.out[key.clone()].escape_ascii();
                    return Err(Trouble::wrong(format!("key '{key}': {}", resp::unexpected(&error).text)));
                }
                (_, other) => return Err(resp::unexpected(&other)),
            }
        }
        Ok(())
    }

    fn forget(&mut self) {
        self.out.clear();
        self.out.shrink_to(KEPT_BYTES);
        self.asked.clear();
        self.writes = 0;
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    fn walk(&mut self, cursor: &mut Cursor, page: &mut Page) -> Result<(), DataletError> {
        self.walk_on(cursor, page)
    }

    fn has_passed(&self, cursor: &Cursor, key: &[u8]) -> Option<bool> {
        self.dialect.ordered.then(|| match cursor {
            Cursor::Key(last) => key <= &last[..],
            Cursor::Start | Cursor::Number(_) => false,
            Cursor::End => true,
        })
    }

    fn scan(&mut self, start: &[u8], end: Option<&[u8]>, page: &mut Page) -> Result<(), DataletError> {
        self.scan_range(start, end, page)
    }

    fn len(&mut self) -> Result<u64, DataletError> {
        self.count_all()
    }

    fn remove_all(&mut self) -> Result<(), Trouble> {
        self.delete_all()
    }
}

/// Says why this is none to keep data in.
fn refuse(info: &str) -> Result<(), Trouble> {
    let why = if field(info, "loading") == "1" {
        "it is still loading its data; try again when it has"
    } else if field(info, "role") == "slave" {
        "it is a replica of another Redis; name the one that takes writes"
    } else if field(info, "cluster_enabled") == "1" {
        "it is part of a Redis Cluster; name one that is not"
    } else if field(info, "maxmemory_policy").starts_with("allkeys") && field(info, "maxmemory") != "0" {
        "it evicts keys where memory is short; set its maxmemory-policy to noeviction"
    } else {
        return Ok(());
    };
    Err(Trouble::wrong(why))
}

/// The wall clock.
pub(super) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn field<'a>(info: &'a str, name: &str) -> &'a str {
    let mut lines = info.lines().filter_map(|line| line.trim_end().split_once(':'));
    lines.find(|(found, _)| *found == name).map_or("", |(_, value)| value)
}

fn keys_with_deadline(info: &str, database: u32) -> u64 {
    let keys = field(info, &format!("db{database}"));
    let expires = keys.split(',').find_map(|part| part.strip_prefix("expires="));
    expires.and_then(|number| number.parse().ok()).unwrap_or(0)
}

//! Walks, scans, counts and clears of what speaks as Redis does, and the look at what is in it.
//!
//! A walk asks for some keys, then for their values with `GET`, which refuses what is no string, as `MGET` does not. The cursor of
//! Redis means nothing elsewhere, so it is kept as bytes: the number that `SCAN` gave. While Redis makes its table
//! smaller, a `SCAN` can give a key once more on a later page.

use super::pipelined::Protocol;
use super::redis::{Redis, SPARE_MS, unix_ms};
use super::resp::{self, Head};
use super::wire::{Trouble, Wire};
use bytes::Bytes;
use sartor_core::datalet::{Cursor, DataletError, Page};
use std::collections::HashSet;

/// Pairs are fetched in steps of about so many bytes.
const STEP_BYTES: usize = 256 << 10;
/// And of so many keys at most.
const STEP_KEYS_MAX: usize = 512;
/// Keys that are no strings of which the names are told.
const NAMED_MAX: usize = 5;

/// What is done with some keys of all.
type Act<'a> = &'a mut dyn FnMut(&mut Redis, &[Vec<u8>]) -> Result<(), Trouble>;

impl Redis {
    /// See [`Protocol::walk`].
    pub(super) fn walk_on(&mut self, cursor: &mut Cursor, page: &mut Page) -> Result<(), DataletError> {
        let mut seen = HashSet::new();
        while *cursor != Cursor::End && !page.is_full() {
            let wanted = self.step(page);
            let mut keys = self.next_keys(cursor, wanted).map_err(|trouble| self.failed(trouble))?;
            keys.retain(|key| seen.insert(key.clone()));
            self.push_pairs(&keys, page)?;
        }
        Ok(())
    }

    /// How many keys to ask for.
    fn step(&self, page: &Page) -> usize {
        (STEP_BYTES / self.pair_bytes).min(STEP_KEYS_MAX).min(page.wanted()).max(1)
    }

    /// About `wanted` keys from the cursor on, which moves behind them.
    fn next_keys(&mut self, cursor: &mut Cursor, wanted: usize) -> Result<Vec<Vec<u8>>, Trouble> {
        let from = match &*cursor {
            Cursor::Key(from) => from.clone(),
            Cursor::Start | Cursor::Number(_) => Bytes::new(),
            Cursor::End => return Ok(Vec::new()),
        };
        if self.dialect.ordered {
            let keys = self.keys_after(&from, b"", wanted)?;
            let last = keys.last().filter(|_| keys.len() >= wanted);
            *cursor = last.map_or(Cursor::End, |last| Cursor::Key(Bytes::copy_from_slice(last)));
            return Ok(keys);
        }
        let (next, keys) = self.scan_from(&from, wanted)?;
        *cursor = if next == b"0" { Cursor::End } else { Cursor::Key(next.into()) };
        Ok(keys)
    }

    fn scan_from(&mut self, from: &[u8], wanted: usize) -> Result<(Vec<u8>, Vec<Vec<u8>>), Trouble> {
        let (from, wanted) = (if from.is_empty() { b"0" } else { from }, wanted.to_string());
        self.ask_again(&[b"SCAN", from, b"COUNT", wanted.as_bytes()], |wire| match resp::head(wire)? {
            Head::Array(2) => Ok((resp::text(wire)?, resp::texts(wire)?)),
            other => Err(resp::unexpected(&other)),
        })
    }

    /// Keys behind `after`, up to `end` included, in order.
    fn keys_after(&mut self, after: &[u8], end: &[u8], wanted: usize) -> Result<Vec<Vec<u8>>, Trouble> {
        let wanted = wanted.to_string();
        self.ask_again(&[b"KEYS", after, end, wanted.as_bytes()], resp::texts)
    }

    /// Pushes those of the keys that are there.
    fn push_pairs(&mut self, keys: &[Vec<u8>], page: &mut Page) -> Result<(), DataletError> {
        keys.iter().enumerate().for_each(|(place, key)| self.get(key, place));
        let mut bytes = 0;
        self.exchange(&mut |place, value| {
            bytes += keys[place].len() + value.len();
            page.push(&keys[place], value);
        })?;
        if !keys.is_empty() {
            self.pair_bytes = (bytes / keys.len()).max(16);
        }
        Ok(())
    }

    /// See [`Protocol::scan`].
    pub(super) fn scan_range(
        &mut self,
        start: &[u8],
        end: Option<&[u8]>,
        page: &mut Page,
    ) -> Result<(), DataletError> {
        if !self.dialect.ordered {
            let text = "Redis keeps no key order; use an ordered datalet, such as tree";
            return Err(DataletError::Unsupported(text));
        }
        if end.is_some_and(|end| end <= start) {
            return Ok(());
        }
        // Its ranges begin behind their start, and have their end in them.
        let mut after = start.to_vec();
        if self.can_keep(start) {
            self.push_pairs(&[start.to_vec()], page)?;
        }
        let mut more = true;
        while more && !page.is_full() {
            let wanted = self.step(page);
            let keys = self.keys_after(&after, end.unwrap_or_default(), wanted);
            let mut keys = keys.map_err(|trouble| self.failed(trouble))?;
            more = keys.len() >= wanted;
            if let Some(last) = keys.last() {
                after.clone_from(last);
            }
            keys.retain(|key| Some(&key[..]) != end);
            self.push_pairs(&keys, page)?;
        }
        Ok(())
    }

    /// See [`Protocol::len`].
    pub(super) fn count_all(&mut self) -> Result<u64, DataletError> {
        if self.dialect.tells {
            self.exchange(&mut |_, _| {})?;
            return Ok(self.count());
        }
        let mut count = 0;
        let counted = self.each_step(&mut |_, keys| {
            count += keys.len() as u64;
            Ok(())
        });
        counted.map(|()| count).map_err(|trouble| self.failed(trouble))
    }

    /// Removes what is ours to remove: the pairs of this database.
    pub(super) fn delete_all(&mut self) -> Result<(), Trouble> {
        if self.dialect.tells {
            // Freed by another thread than the one that serves.
            self.ask(&[b"FLUSHDB", b"ASYNC"], resp::anything)?;
            self.emptied();
            return Ok(());
        }
        self.each_step(&mut |redis, keys| {
            let words = std::iter::once(&b"DEL"[..]).chain(keys.iter().map(|key| &key[..]));
            redis.ask(&words.collect::<Vec<_>>(), resp::anything)
        })
    }

    fn each_step(&mut self, act: Act<'_>) -> Result<(), Trouble> {
        let mut cursor = Cursor::Start;
        while cursor != Cursor::End {
            let keys = self.next_keys(&mut cursor, STEP_KEYS_MAX)?;
            if !keys.is_empty() {
                act(self, &keys)?;
            }
        }
        Ok(())
    }

    /// Tells the deadlines of all keys that have one, and moves them behind those of the keys' owner.
    pub(super) fn take_over_deadlines(&mut self, found: &mut dyn FnMut(&[u8], u64)) -> Result<(), Trouble> {
        self.each_step(&mut |redis, keys| {
            let requests: Vec<[&[u8]; 2]> = keys.iter().map(|key| [&b"PTTL"[..], key]).collect();
            let requests: Vec<&[&[u8]]> = requests.iter().map(|words| &words[..]).collect();
            let now = unix_ms();
            // Keys without one, and those that are no more, answer with a negative number.
            let left = redis.ask_all(&requests, |wire: &mut Wire| match resp::head(wire)? {
                Head::Integer(left) => Ok(u64::try_from(left).ok()),
                other => Err(resp::unexpected(&other)),
            })?;
            let dying = keys.iter().zip(left).filter_map(|(key, left)| Some((key, left?)));
            let dying: Vec<(&Vec<u8>, u64, String)> =
                dying.map(|(key, left)| (key, left, (left + SPARE_MS).to_string())).collect();
            let words = dying.iter().map(|(key, _, later)| [&b"PEXPIRE"[..], key, later.as_bytes()]);
            let requests: Vec<[&[u8]; 3]> = words.collect();
            let requests: Vec<&[&[u8]]> = requests.iter().map(|words| &words[..]).collect();
            redis.ask_all(&requests, resp::anything)?;
            dying.iter().for_each(|(key, left, _)| found(key, now + left));
            Ok(())
        })?;
        self.recount()
    }

    /// Refuses a database with keys that are not strings, and names some of them.
    pub(super) fn inspect(&mut self) -> Result<(), DataletError> {
        if self.count() == 0 {
            return Ok(());
        }
        let (mut strangers, mut named) = (0, Vec::new());
        let looked = self.each_step(&mut |redis, keys| {
            let requests: Vec<[&[u8]; 2]> = keys.iter().map(|key| [&b"TYPE"[..], key]).collect();
            let requests: Vec<&[&[u8]]> = requests.iter().map(|words| &words[..]).collect();
            let kinds = redis.ask_all(&requests, |wire: &mut Wire| resp::word(wire))?;
            for (key, kind) in keys.iter().zip(kinds) {
                // One that was there a moment ago may have expired.
                if kind != "string" && kind != "none" {
                    strangers += 1;
                    if named.len() < NAMED_MAX {
                        named.push(format!("'{}' ({kind})", key.escape_ascii()));
                    }
                }
            }
            Ok(())
        });
        looked.map_err(|trouble| self.failed(trouble))?;
        if strangers == 0 {
            return Ok(());
        }
        let (named, more) = (named.join(", "), if strangers > NAMED_MAX { ", …" } else { "" });
        let keys = if strangers == 1 { "1 key is no string" } else { "keys are no strings" };
        let count = if strangers == 1 { String::new() } else { format!("{strangers} ") };
        Err(DataletError::Failed(format!(
            "{}: {count}{keys}: {named}{more}; only strings can be kept: remove them, or choose another database, as in \
             redis://HOST:PORT/1",
            self.link().address
        )))
    }
}

//! `remote`: a store of the user's own, in any language, over the protocol of `templates/datalet.proto`.
//!
//! ```text
//!  Remote ── get, put, … ──▶ Group (what this group knows, what waits)
//!                              │ writes and gets
//!                              ▼
//!                            Line (hello, connects again) ──▶ Stream (frames) ──▶ the store
//!                              └─ wire (messages)
//! ```

mod group;
mod line;
mod stream;
#[cfg(test)]
mod tests;
mod wire;

use crate::{Engine, Options};
use bytes::Bytes;
use group::{Group, Values, Write};
use line::{Line, RESULT_BYTES_MAX};
use sartor_core::datalet::{Cursor, Datalet, DataletError, Page};
use sartor_core::record::Layout;
use std::time::Duration;
use wire::{Ask, Commit, Nothing, Pair, Said, Scan, Walk};

/// How long a store may take for a batch.
const PATIENCE: Duration = Duration::from_secs(30);

/// A store in another process.
pub struct Remote {
    line: Line,
    group: Group,
}

/// Opens the store at an address: `host:port`, or the path of a Unix socket.
pub fn open(options: &Options) -> Result<Box<dyn Datalet>, DataletError> {
    Ok(Box::new(Remote::open(&options.address, PATIENCE)?))
}

/// The engine as the store at this address says that it is: what the conformance suite wants.
pub fn declared(options: &Options) -> Result<Engine, DataletError> {
    let remote = Remote::open(&options.address, PATIENCE)?;
    let said = remote.line.capabilities();
    Ok(Engine { ordered: said.ordered, durable: said.durable, ..ENGINE })
}

/// Its line in the table of engines: what is said here must hold for every store of this kind.
pub const ENGINE: Engine = Engine {
    name: "remote",
    about: "a store of your own in another process: remote://HOST:PORT or remote:///PATH/OF/SOCKET",
    ordered: false,
    durable: false,
    blocking: true,
    layout: Layout::Envelope,
    open,
    remote: true,
    check: check_address,
    declared: |options| declared(options).map(Some),
    ..Engine::BUILT_IN
};

fn check_address(address: &str) -> Result<(), String> {
    if address.starts_with('/') || address.contains(':') {
        return Ok(());
    }
    Err("the datalet remote needs an address: remote://HOST:PORT or remote:///PATH/OF/SOCKET".into())
}

impl Remote {
    fn open(address: &str, patience: Duration) -> Result<Remote, DataletError> {
        check_address(address).map_err(DataletError::Failed)?;
        Ok(Remote { line: Line::open(address, patience)?, group: Group::default() })
    }

    /// Does what waits, and then this.
    fn ask(&mut self, ask: Ask) -> Result<Said, DataletError> {
        let mut said = self.line.exchange(self.group.take_writes(), vec![ask])?;
        said.pop().ok_or_else(|| self.line.failed("it left out the last result"))
    }

    /// A page of a walk or scan; where to go on. `last` is the key behind which an ordered store must go on.
    fn fill(
        &mut self,
        ask: Ask,
        last: Option<&[u8]>,
        page: &mut Page,
    ) -> Result<Option<Bytes>, DataletError> {
        let (pairs_max, before) = (page.wanted().max(1), page.pairs().len());
        let said = self.ask(ask)?;
        let Said::Pairs(pairs) = said else { return Err(self.line.failed("it gave no page")) };
        let ordered = self.line.capabilities().ordered;
        let mut last = last.map(Bytes::copy_from_slice);
        let next = wire::page(pairs, pairs_max, |Pair { key, value }| {
            if ordered && last.as_ref().is_some_and(|last| *last >= key) {
                return Err("it says that it is ordered, and gave pairs out of order".into());
            }
            page.push(&key, &value);
            if ordered {
                last = Some(key);
            }
            Ok(())
        });
        let next = next.map_err(|why| self.line.failed(&why))?;
        if next.is_some() && page.pairs().len() == before {
            return Err(self.line.failed("it gave an empty page that is not the last"));
        }
        if ordered && next.is_some() && next != last {
            return Err(self.line.failed("it is ordered, but goes on elsewhere than behind its last key"));
        }
        Ok(next)
    }

    fn check(&self, what: &str, len: usize, max: u64) -> Result<(), DataletError> {
        if max == 0 || len as u64 <= max {
            return Ok(());
        }
        let text = format!("it takes {what} of up to {max} bytes, with what Sartor adds; this one has {len}");
        Err(self.line.failed(&text))
    }
}

/// Sends writes and gets.
fn send(line: &mut Line, writes: Vec<Write>, gets: &[Bytes]) -> Result<Values, DataletError> {
    let said = line.exchange(writes, gets.iter().cloned().map(Ask::Get).collect())?;
    let value = |said| if let Said::Value(value) = said { Some(value) } else { None };
    let values: Values = said.into_iter().map(value).collect();
    if values.is_empty() && !gets.is_empty() {
        return Err(line.failed("it left out all values"));
    }
    Ok(values)
}

impl Datalet for Remote {
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<(), DataletError> {
        self.group.get(key, found, |writes, gets| send(&mut self.line, writes, gets))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), DataletError> {
        let said = self.line.capabilities();
        self.check("keys", key.len(), said.key_bytes_max)?;
        self.check("values", value.len(), said.value_bytes_max)?;
        self.group.put(key, value, |writes| send(&mut self.line, writes, &[]).map(drop))
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), DataletError> {
        self.group.delete(key, |writes| send(&mut self.line, writes, &[]).map(drop))
    }

    fn walk(&mut self, cursor: &mut Cursor, page: &mut Page) -> Result<(), DataletError> {
        while *cursor != Cursor::End && !page.is_full() {
            let after = if let Cursor::Key(key) = &*cursor { Some(key.clone()) } else { None };
            let (pairs_max, bytes_max) = room(page);
            let walk = Walk { after: after.clone(), pairs_max, bytes_max };
            let next = self.fill(Ask::Walk(walk), after.as_deref(), page)?;
            *cursor = next.map_or(Cursor::End, Cursor::Key);
        }
        Ok(())
    }

    fn has_passed(&self, cursor: &Cursor, key: &[u8]) -> Option<bool> {
        match cursor {
            _ if !self.line.capabilities().ordered => None,
            Cursor::Key(last) => Some(key <= &last[..]),
            Cursor::Start | Cursor::Number(_) => Some(false),
            Cursor::End => Some(true),
        }
    }

    fn expect(&mut self, key: &[u8]) {
        self.group.expect(key);
    }

    fn clear(&mut self) -> Result<(), DataletError> {
        self.group.forget();
        self.ask(Ask::Clear(Nothing {})).map(drop)
    }

    fn len(&mut self) -> Result<u64, DataletError> {
        match self.ask(Ask::Len(Nothing {}))? {
            Said::Count(count) => Ok(count),
            _ => Err(self.line.failed("it gave no count")),
        }
    }

    fn generation(&self) -> u64 {
        self.line.generation()
    }

    fn commit(&mut self, mark: &[u8], durably: bool) -> Result<(), DataletError> {
        self.group.forget();
        let commit = Ask::Commit(Commit { mark: Bytes::copy_from_slice(mark), durably });
        let asks = if self.line.capabilities().durable { vec![commit] } else { vec![] };
        self.line.exchange(self.group.take_writes(), asks).map(drop)
    }

    fn mark(&mut self) -> Result<Option<Vec<u8>>, DataletError> {
        if !self.line.capabilities().durable {
            return Ok(None);
        }
        let said = self.ask(Ask::Mark(Nothing {}))?;
        Ok(if let Said::Value(mark) = said { Some(mark.to_vec()) } else { None })
    }

    fn scan(&mut self, start: &[u8], end: Option<&[u8]>, page: &mut Page) -> Result<(), DataletError> {
        if !self.line.capabilities().ordered {
            return Err(DataletError::Unsupported(
                "this store says that it keeps no key order; use an ordered one, such as tree",
            ));
        }
        let (mut start, end) = (Bytes::copy_from_slice(start), end.map(Bytes::copy_from_slice));
        while !page.is_full() && end.as_ref().is_none_or(|end| start < *end) {
            let (pairs_max, bytes_max) = room(page);
            let scan = Scan { start, end: end.clone(), pairs_max, bytes_max };
            let Some(last) = self.fill(Ask::Scan(scan), None, page)? else { break };
            // The least key behind the last one.
            start = [&last[..], &[0]].concat().into();
        }
        Ok(())
    }
}

/// How much a page may still take, in pairs and in bytes, and one answer.
fn room(page: &Page) -> (u64, u64) {
    (page.wanted() as u64, (page.bytes_wanted() as u64).min(RESULT_BYTES_MAX))
}

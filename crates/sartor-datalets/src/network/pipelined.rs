//! The datalet over any store that can be sent several requests at once.
//!
//! Reads of a group are sent together at the first one that is not known yet, behind the writes that were kept back;
//! what is left at the group's end is sent by its commit. What was put is known to later reads of the group at once.

use super::group::Group;
use super::wire::{Link, Trouble};
use sartor_core::datalet::{Cursor, Datalet, DataletError, Page};

/// Writes kept back beyond so many bytes are sent. Their acknowledgements are short enough to wait in the sockets meanwhile.
const WRITES_BYTES_MAX: usize = 256 << 10;
/// Requests to read that are sent before their answers are read: they must fit into the sockets' buffers where a store
/// does not listen while it answers, or both would wait for each other.
const READS_BYTES_MAX: usize = 64 << 10;
/// The place of the key that is asked for, among those that will be.
const OWN: usize = usize::MAX;

/// How a store is spoken to. Requests are appended, and sent by `exchange`.
pub(super) trait Protocol: Send {
    /// The connection.
    fn link(&mut self) -> &mut Link;
    /// Says the first words over a new connection, and notes whether it leads to another process than before.
    fn greet(&mut self) -> Result<(), Trouble>;
    /// Whether it can keep such a key.
    fn can_keep(&self, key: &[u8]) -> bool;
    /// The largest value that it can keep.
    fn value_bytes_max(&self) -> usize;
    /// Appends a request to read; `place` comes back with the value.
    fn get(&mut self, key: &[u8], place: usize);
    /// Appends a write; with a deadline it may go by itself some time after that.
    fn put(&mut self, key: &[u8], value: &[u8], deadline_ms: Option<u64>);
    /// See [`Datalet::adopt_deadlines`]; nothing is pending.
    fn adopt_deadlines(&mut self, _found: &mut dyn FnMut(&[u8], u64)) -> Result<(), DataletError> {
        Ok(())
    }
    /// Appends a delete.
    fn delete(&mut self, key: &[u8]);
    /// Appends what ends a pipeline.
    fn end(&mut self);
    /// How many bytes were appended since they were sent last.
    fn pending(&self) -> usize;
    /// How many of the requests are writes.
    fn writes(&self) -> usize;
    /// Sends what was appended, and reads all answers; of values that are not there nothing is told.
    fn send(&mut self, found: &mut dyn FnMut(usize, &[u8])) -> Result<(), Trouble>;
    /// Drops what was appended.
    fn forget(&mut self);
    /// See [`Datalet::generation`].
    fn generation(&self) -> u64;
    /// See [`Datalet::walk`]; nothing is pending.
    fn walk(&mut self, cursor: &mut Cursor, page: &mut Page) -> Result<(), DataletError>;
    /// See [`Datalet::has_passed`].
    fn has_passed(&self, cursor: &Cursor, key: &[u8]) -> Option<bool>;
    /// See [`Datalet::scan`]; nothing is pending.
    fn scan(&mut self, start: &[u8], end: Option<&[u8]>, page: &mut Page) -> Result<(), DataletError>;
    /// See [`Datalet::len`]; nothing is pending.
    fn len(&mut self) -> Result<u64, DataletError>;
    /// See [`Datalet::clear`]; nothing is pending.
    fn remove_all(&mut self) -> Result<(), Trouble>;

    /// Connects anew.
    fn reconnect(&mut self) -> Result<(), Trouble> {
        self.link().renew()?;
        self.greet()
    }

    /// Sees to it that the connection is one.
    fn ready(&mut self) -> Result<(), Trouble> {
        if self.link().is_ready() { Ok(()) } else { self.reconnect() }
    }

    /// What went wrong, as the owner hears of it.
    fn failed(&mut self, trouble: Trouble) -> DataletError {
        trouble.at(&self.link().address)
    }

    /// Sends what was appended, and reads all answers. With nothing appended it looks whether the store is still there.
    /// Where the connection ends while nothing but reads is on its way, they are asked again over another one.
    fn exchange(&mut self, found: &mut dyn FnMut(usize, &[u8])) -> Result<(), DataletError> {
        self.end();
        let mut done = self.ready().and_then(|()| self.send(found));
        if matches!(&done, Err(trouble) if trouble.gone) && self.writes() == 0 {
            done = self.reconnect().and_then(|()| self.send(found));
        }
        let writes = self.writes();
        self.forget();
        done.map_err(|mut trouble| {
            if writes > 0 {
                trouble.text += &format!("; which of the last {writes} writes took effect is not known");
            }
            self.failed(trouble)
        })
    }
}

/// A store over the network.
pub(super) struct Pipelined<P> {
    protocol: P,
    group: Group,
    /// The store was heard in this group.
    heard: bool,
    /// The value that is asked for, if it is there.
    value: Vec<u8>,
    failed: Option<DataletError>,
}

impl<P: Protocol> Pipelined<P> {
    /// Over an open connection.
    pub(super) fn new(protocol: P, seed: u64) -> Pipelined<P> {
        Pipelined { protocol, group: Group::new(seed), heard: false, value: Vec::new(), failed: None }
    }

    /// Does something with the store, unless it failed before.
    fn with<T>(&mut self, act: impl FnOnce(&mut Self) -> Result<T, DataletError>) -> Result<T, DataletError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let done = act(self);
        if let Err(error @ DataletError::Failed(_)) = &done {
            self.failed = Some(error.clone());
        }
        done
    }

    /// Sends the writes that were kept back.
    fn flush(&mut self) -> Result<(), DataletError> {
        if self.protocol.pending() == 0 {
            return Ok(());
        }
        self.heard = true;
        self.protocol.exchange(&mut |_, _| {})
    }

    /// Fetches a key, and with it all that will be asked for. Whether it is there; `value` has it then.
    fn fetch(&mut self, key: &[u8]) -> Result<bool, DataletError> {
        let Pipelined { protocol, group, value, .. } = self;
        let mut there = false;
        let mut found = |group: &mut Group, place, bytes: &[u8]| {
            if place == OWN {
                there = true;
                value.clear();
                value.extend_from_slice(bytes);
            } else {
                group.found(place, bytes);
            }
        };
        let wanted = group.take_wanted();
        let mut full = protocol.pending() + READS_BYTES_MAX;
        protocol.get(key, OWN);
        for place in wanted {
            if group.key(place) != key {
                protocol.get(group.key(place), place);
            }
            if protocol.pending() >= full {
                protocol.exchange(&mut |place, bytes| found(group, place, bytes))?;
                full = READS_BYTES_MAX;
            }
        }
        if protocol.pending() > 0 {
            protocol.exchange(&mut |place, bytes| found(group, place, bytes))?;
        }
        self.heard = true;
        self.group.learn(key, there.then_some(&self.value));
        Ok(there)
    }

    /// Sets the value of a key that the store can keep.
    fn put(&mut self, key: &[u8], value: &[u8], deadline_ms: Option<u64>) -> Result<(), DataletError> {
        if !self.protocol.can_keep(key) {
            return Err(DataletError::Unsupported("this store does not take keys of that length"));
        }
        if value.len() > self.protocol.value_bytes_max() {
            return Err(DataletError::Unsupported("this store does not take values as long as that"));
        }
        self.with(|store| {
            store.protocol.put(key, value, deadline_ms);
            store.wrote(key, Some(value))
        })
    }

    fn wrote(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), DataletError> {
        self.group.learn(key, value);
        if self.protocol.pending() >= WRITES_BYTES_MAX { self.flush() } else { Ok(()) }
    }
}

impl<P: Protocol> Datalet for Pipelined<P> {
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<(), DataletError> {
        if let Some(known) = self.group.known(key) {
            known.into_iter().for_each(found);
            return Ok(());
        }
        // What it cannot keep is not there.
        if self.protocol.can_keep(key) && self.with(|store| store.fetch(key))? {
            found(&self.value);
            self.value.shrink_to(1 << 20);
        }
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), DataletError> {
        Pipelined::put(self, key, value, None)
    }

    fn put_until(&mut self, key: &[u8], value: &[u8], deadline_ms: u64) -> Result<(), DataletError> {
        Pipelined::put(self, key, value, Some(deadline_ms))
    }

    fn adopt_deadlines(&mut self, found: &mut dyn FnMut(&[u8], u64)) -> Result<(), DataletError> {
        self.with(|store| {
            store.flush()?;
            store.protocol.adopt_deadlines(found)
        })
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), DataletError> {
        if !self.protocol.can_keep(key) {
            return Ok(());
        }
        self.with(|store| {
            store.protocol.delete(key);
            store.wrote(key, None)
        })
    }

    fn walk(&mut self, cursor: &mut Cursor, page: &mut Page) -> Result<(), DataletError> {
        self.with(|store| {
            store.flush()?;
            store.protocol.walk(cursor, page)
        })
    }

    fn has_passed(&self, cursor: &Cursor, key: &[u8]) -> Option<bool> {
        self.protocol.has_passed(cursor, key)
    }

    fn expect(&mut self, key: &[u8]) {
        if self.protocol.can_keep(key) {
            self.group.expect(key);
        }
    }

    fn clear(&mut self) -> Result<(), DataletError> {
        self.group.clear();
        self.with(|store| {
            let protocol = &mut store.protocol;
            protocol.forget();
            protocol.ready().and_then(|()| protocol.remove_all()).map_err(|trouble| protocol.failed(trouble))
        })
    }

    fn len(&mut self) -> Result<u64, DataletError> {
        self.with(|store| {
            store.flush()?;
            store.protocol.len()
        })
    }

    fn generation(&self) -> u64 {
        self.protocol.generation()
    }

    /// The end of a group. One that asked the store nothing asks it now whether it is still what it was: nobody may
    /// hear an answer from memory that it has lost.
    fn commit(&mut self, _mark: &[u8], _durably: bool) -> Result<(), DataletError> {
        self.group.clear();
        let generation = self.protocol.generation();
        self.with(|store| {
            if store.protocol.pending() > 0 || !store.heard {
                store.protocol.exchange(&mut |_, _| {})?;
            }
            store.heard = false;
            // Who looks at the generation after each task does not look again behind the last one.
            if store.protocol.generation() != generation {
                return Err(DataletError::Failed(LOST.into()));
            }
            Ok(())
        })
    }

    fn scan(&mut self, start: &[u8], end: Option<&[u8]>, page: &mut Page) -> Result<(), DataletError> {
        self.with(|store| {
            store.flush()?;
            store.protocol.scan(start, end, page)
        })
    }
}

const LOST: &str = "it restarted, or somebody else writes to it";

//! A line to a store: connected when it is needed, and again when the connection is lost.
//!
//! Who asks only is not disturbed by a lost connection: it is made again and asked again, a few times. A batch that changes
//! something is sent once. If its answer does not come, nobody knows what was done of it, and from then on every call
//! fails: the replica steps back, and is opened anew and filled.

use super::group::Write;
use super::stream::Stream;
use super::wire::{self, Ask, Batch, Capabilities, Hello, Operation, Pair, Said, VERSION};
use sartor_core::datalet::DataletError;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// Before these tries to connect it waits so long.
const PAUSES_MS: [u64; 4] = [0, 20, 100, 300];
/// How often a batch that only asks is sent.
const TRIES_MAX: u32 = 3;
/// Keys and values in the results of one batch: then the store may stop.
pub const RESULT_BYTES_MAX: u64 = 4 << 20;

/// A line to a store.
pub struct Line {
    address: String,
    patience: Duration,
    owner: u64,
    stream: Option<Stream>,
    generation: u64,
    capabilities: Capabilities,
    /// Why nobody knows any more what is in the store.
    lost: Option<DataletError>,
}

impl Line {
    /// Connects, and hears what the store is.
    pub fn open(address: &str, patience: Duration) -> Result<Line, DataletError> {
        let mut line = Line {
            address: address.to_owned(),
            patience,
            // The seeds of the standard library's maps are random.
            owner: RandomState::new().build_hasher().finish(),
            stream: None,
            generation: 0,
            capabilities: Capabilities::default(),
            lost: None,
        };
        line.connect().map_err(|why| line.failed(&why))?;
        Ok(line)
    }

    /// What the store is.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The store's life.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// An error about this store, in a line.
    pub fn failed(&self, why: &str) -> DataletError {
        DataletError::Failed(format!("the store at {}: {why}", self.address))
    }

    /// Does the writes, then asks; the results of the asks, of which the store may leave out some at the end if they are
    /// more than one.
    pub fn exchange(&mut self, writes: Vec<Write>, asks: Vec<Ask>) -> Result<Vec<Said>, DataletError> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        let written = writes.len();
        let writes = writes.into_iter().map(|write| match write {
            Write::Put(key, value) => Ask::Put(Pair { key, value }),
            Write::Delete(key) => Ask::Delete(key),
        });
        let operations: Vec<_> = writes.chain(asks).map(|ask| Operation { ask: Some(ask) }).collect();
        if operations.is_empty() {
            return Ok(Vec::new());
        }
        let changes = operations.iter().any(|operation| operation.ask.as_ref().is_some_and(Ask::changes));
        let batch = Batch { operations, bytes_max: RESULT_BYTES_MAX };
        let done = self.run(&batch, if changes { 1 } else { TRIES_MAX });
        match done {
            Ok(said) => Ok(said.into_iter().skip(written).collect()),
            Err(why) if changes => {
                let why = format!("{why}; what was being written there may be done or not");
                let lost = self.failed(&why);
                self.lost = Some(lost.clone());
                Err(lost)
            }
            Err(why) => Err(self.failed(&why)),
        }
    }

    /// The results of a batch, none of which is an error, and at least one of what is asked.
    fn run(&mut self, batch: &Batch, tries: u32) -> Result<Vec<Said>, String> {
        let mut tried = 0;
        let said = loop {
            tried += 1;
            self.connect()?;
            match self.round(batch) {
                Ok(said) => break said,
                Err(why) => {
                    self.stream = None;
                    if tried >= tries {
                        return Err(why);
                    }
                }
            }
        };
        if let Some(Said::Error(text)) = said.last() {
            return Err(format!("it says: {}", one_line(text)));
        }
        Ok(said)
    }

    fn round(&mut self, batch: &Batch) -> Result<Vec<Said>, String> {
        let frame = wire::frame(batch)?;
        let stream = self.stream.as_mut().ok_or("there is no connection")?;
        let message = stream.exchange(&frame)?;
        let (generation, said) = wire::results(message, batch)
            .map_err(|why| format!("its answer cannot be read: {why}; does it speak datalet.proto?"))?;
        if generation == 0 {
            return Err("its results tell no generation; see datalet.proto".into());
        }
        self.generation = generation;
        Ok(said)
    }

    /// Sees to it that there is a connection.
    fn connect(&mut self) -> Result<(), String> {
        if self.stream.is_some() {
            return Ok(());
        }
        let mut why = String::new();
        for pause in PAUSES_MS {
            std::thread::sleep(Duration::from_millis(pause));
            match Stream::open(&self.address, self.patience) {
                Ok(stream) => {
                    self.stream = Some(stream);
                    return self.hello().inspect_err(|_| self.stream = None);
                }
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    fn hello(&mut self) -> Result<(), String> {
        let hello = Ask::Hello(Hello { version: VERSION, owner: self.owner });
        let operations = vec![Operation { ask: Some(hello) }];
        let said = self.round(&Batch { operations, bytes_max: 0 })?;
        match said.into_iter().next() {
            Some(Said::Capabilities(capabilities)) if capabilities.version == VERSION => {
                self.capabilities = *capabilities;
                Ok(())
            }
            Some(Said::Capabilities(other)) => {
                Err(format!("it speaks version {} of datalet.proto, not {VERSION}", other.version))
            }
            Some(Said::Error(text)) => Err(format!("it says: {}", one_line(&text))),
            _ => Err("it does not answer a hello".into()),
        }
    }
}

/// A text from outside as part of a line.
fn one_line(text: &str) -> String {
    text.chars().take(300).flat_map(char::escape_debug).collect()
}

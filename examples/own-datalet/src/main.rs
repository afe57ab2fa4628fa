//! Sartor around a store of one's own:
//!
//! ```text
//! cargo run -- up --datalet mine
//! ```
//!
//! This program has all the verbs of `sartor`, and one datalet more. On several machines, run it on every node.

use sartor::{Cursor, Datalet, DataletError, Engine, Page};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::process::ExitCode;

/// The store: here a map of the standard library.
#[derive(Default)]
struct Mine {
    pairs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Datalet for Mine {
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<(), DataletError> {
        if let Some(value) = self.pairs.get(key) {
            found(value);
        }
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), DataletError> {
        self.pairs.insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), DataletError> {
        self.pairs.remove(key);
        Ok(())
    }

    fn walk(&mut self, cursor: &mut Cursor, page: &mut Page) -> Result<(), DataletError> {
        let from = match &*cursor {
            Cursor::Key(last) => Bound::Excluded(last.to_vec()),
            Cursor::Start | Cursor::Number(_) => Bound::Unbounded,
            Cursor::End => return Ok(()),
        };
        for (key, value) in self.pairs.range((from, Bound::Unbounded)) {
            page.push(key, value);
            if page.is_full() {
                *cursor = Cursor::Key(key.clone().into());
                return Ok(());
            }
        }
        *cursor = Cursor::End;
        Ok(())
    }
}

/// What `--datalet mine` means.
fn mine() -> Engine {
    Engine {
        name: "mine",
        about: "a map of the standard library",
        open: |_| Ok(Box::new(Mine::default())),
        ..Engine::BUILT_IN
    }
}

fn main() -> ExitCode {
    sartor::with([mine()]).run()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_conforms() {
        for verdict in sartor::conformance::check(&mine(), &sartor::Options::default()) {
            assert_eq!(verdict.result, Ok(()), "{}", verdict.check);
        }
    }
}

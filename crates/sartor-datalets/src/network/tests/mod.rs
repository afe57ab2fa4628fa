//! The stores over the network against servers made up for it, which can be made to fail, and against real ones where
//! they are installed.

mod fake;
mod faults;
mod groups;
mod real;
mod ssdb;

use crate::{Options, find};
use sartor_core::datalet::{Datalet, DataletError};

/// Opens a store by its kind as users write it.
fn open(kind: &str) -> Result<Box<dyn Datalet>, DataletError> {
    let (engine, address) = find(kind).unwrap();
    (engine.open)(&Options { address, seed: 5, ..Options::default() })
}

fn get(store: &mut dyn Datalet, key: &str) -> Result<Option<String>, DataletError> {
    let mut value = None;
    store.get(key.as_bytes(), &mut |bytes| value = Some(String::from_utf8_lossy(bytes).into_owned()))?;
    Ok(value)
}

/// What a failure says.
fn said<T>(result: Result<T, DataletError>) -> String {
    match result {
        Ok(_) => "nothing went wrong".into(),
        Err(error) => error.to_string(),
    }
}

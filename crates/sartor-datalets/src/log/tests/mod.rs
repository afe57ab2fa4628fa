//! The log on a disk that can fail in any way, and on a real one.

mod crash;
mod damage;
mod lossy;
mod room;

use super::disk::Disk;
use super::faults::Plant;
use super::{Log, Sizes, open};
use lossy::Lossy;
use sartor_core::datalet::{Cursor, Datalet, DataletError, Page};
use std::collections::BTreeMap;

/// So small that files change, buffers are written and merges go on all the time.
const SMALL: Sizes =
    Sizes { file: 2048, buffer: 700, live_percent_min: 50, merged_min: 300, merged_max: 2000 };

fn opened(disk: &Lossy) -> Result<Log<Lossy>, DataletError> {
    open::open(disk.clone(), SMALL, Plant::default())
}

fn get<D: Disk>(log: &mut Log<D>, key: &[u8]) -> Result<Option<Vec<u8>>, DataletError> {
    let mut found = None;
    log.get(key, &mut |value| found = Some(value.to_vec()))?;
    Ok(found)
}

fn pairs<D: Disk>(log: &mut Log<D>) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, DataletError> {
    let mut page = Page::new(usize::MAX, usize::MAX);
    log.walk(&mut Cursor::Start, &mut page)?;
    Ok(page.into_pairs().into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect())
}

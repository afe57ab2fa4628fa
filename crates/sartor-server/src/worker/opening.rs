//! Where the stores of replicas come from.

use super::Worker;
use crate::settings::Name;
use crate::stores::disks::{Disks, Left};
use crate::stores::thread::{Open, Threaded};
use sartor_core::datalet::DataletError;
use sartor_core::keeper::{Keeper, KeeperLimits, Mark};
use sartor_core::node::{Node, Opened};
use sartor_core::record::{Bounds, Layout};
use sartor_core::routing::map::{ClusterMap, Shard, kind_of};
use sartor_datalets::{Engine, Options, engine, find, shown};
use std::path::PathBuf;

impl Worker {
    /// A replica begins: its store is opened. One that cannot be is said, and missed by all tasks.
    pub(super) fn open_store(&mut self, opened: &Opened) {
        if let Err(error) = self.try_open(opened) {
            eprintln!("sartor: shard {} cannot open its store: {error}", opened.shard.0);
        }
    }

    fn try_open(&mut self, opened: &Opened) -> Result<(), String> {
        let Some(map) = &self.map else { return Ok(()) };
        let shard = opened.shard;
        let table = map.shard(shard).and_then(|shard| map.table_of(shard));
        let datalet = table.map(|table| table.datalet.clone()).unwrap_or_default();
        let kind = kind_of(&datalet, self.me.node).to_owned();
        let (engine, address) = find(&kind)?;
        let value_bytes_max = self.shared.settings.size(Name::ValueBytesMax);
        let bounds = map.shard(shard).map(|shard| bounds_of(&self.node, map, shard, value_bytes_max));
        let limits = KeeperLimits { bounds: bounds.unwrap_or_default(), ..KeeperLimits::default() };
        let options = Options { seed: map.seed, address, ..Options::default() };
        let left = self.shared.disks.take(shard);
        if opened.kept || engine.blocking {
            let mark = Mark {
                cluster: map.cluster,
                shard,
                born: opened.born,
                position: opened.start,
                whole: opened.whole,
                datalet,
                ..Mark::default()
            };
            let disks = &self.shared.disks;
            let opening = match opened.kept {
                true => going_on(left, limits, mark),
                false => beginning(left, disks, engine, options, limits, mark),
            };
            // One that cannot be had fails on its thread, like any other.
            let (open, dir): (Open, _) = opening.unwrap_or_else(|why| (Box::new(|| Err(why)), None));
            let is_durable = opened.kept || engine.durable;
            let mailbox = self.mailboxes[usize::from(self.me.worker)].clone();
            let (kind, place) = (shown(&kind), (dir, is_durable));
            let mut thread = Threaded::start(shard, kind, open, place, disks.fsync, mailbox)?;
            thread.set_full(self.full);
            self.stores.insert_thread(shard, thread);
            return Ok(());
        }
        left.discard_aside();
        let mut keeper = fresh(engine, &options, limits).map_err(|error| error.to_string())?;
        keeper.set_full(self.full);
        self.stores.insert(shard, keeper.starting_in(opened.born));
        Ok(())
    }
}

/// Which records a shard takes, by its datalets and by the setting.
pub(super) fn bounds_of(node: &Node, map: &ClusterMap, shard: &Shard, value_bytes_max: usize) -> Bounds {
    node.bounds(map, shard).and(Bounds { value_bytes_max, ..Bounds::default() })
}

/// An empty store, or one over the network with what is in it.
fn fresh(engine: &Engine, options: &Options, limits: KeeperLimits) -> Result<Keeper, DataletError> {
    let store = (engine.open)(options)?;
    Ok(match engine.layout {
        Layout::Envelope => Keeper::enveloped(store, limits),
        Layout::Beside => {
            let metas = self::engine("hash").map(|engine| (engine.open)(options));
            let metas = metas.ok_or(DataletError::Unsupported("there is no engine for metas"))??;
            Keeper::beside(store, metas, limits).adopting()?
        }
    })
}

/// How a store is opened by its thread, and the folder that it is alone in: what is left of it is what it goes on with.
fn going_on(mut left: Left, limits: KeeperLimits, mark: Mark) -> Result<(Open, Option<PathBuf>), String> {
    let found = left.kept.take();
    left.discard_aside();
    // Another one than the map says is left where it is.
    let found = found.filter(|found| (found.mark.born, found.mark.position) == (mark.born, mark.position));
    let found = found.ok_or_else(|| format!("what this node had at {} is not on its disk", mark.position))?;
    let (store, mark) = (found.store, Mark { datalet: found.mark.datalet, ..mark });
    let open = move || Keeper::enveloped(store, limits).lasting(mark, true).map_err(|e| e.to_string());
    Ok((Box::new(open), Some(found.dir)))
}

/// The same of one that begins: what is left of another one is of no use any more.
fn beginning(
    left: Left,
    disks: &Disks,
    engine: &'static Engine,
    options: Options,
    limits: KeeperLimits,
    mark: Mark,
) -> Result<(Open, Option<PathBuf>), String> {
    let dir = disks.place(mark.shard, engine)?;
    let options = dir.iter().fold(options, Options::in_dir);
    let open = move || {
        left.discard();
        let keeper = fresh(engine, &options, limits);
        let keeper = keeper.and_then(|keeper| match engine.durable {
            true => keeper.lasting(mark, false),
            false => Ok(keeper.starting_in(mark.born)),
        });
        keeper.map_err(|error| error.to_string())
    };
    Ok((Box::new(open), dir))
}

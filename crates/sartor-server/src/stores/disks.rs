//! A node's folder: the durable stores of its replicas, each in a folder of its own, and what a former life left there.
//!
//! ```text
//!  DIR/stores/SHARD-LIFE-NUMBER-ENGINE          a store
//!  DIR/stores/damaged-SHARD-LIFE-NUMBER-ENGINE  one that could not be read, and that the shard went on without
//!  DIR/running/SHARD-LIFE-NUMBER-ENGINE         where a store works whose data do not outlive it
//! ```
//!
//! A folder is never used for two replicas, so that an old one can be removed while a new one begins. One that cannot be
//! read stays as it is for as long as the shard may need it.

use crate::config::Fsync;
use sartor_core::datalet::{Datalet, DataletError};
use sartor_core::ids::{Incarnation, NodeId, ShardId};
use sartor_core::keeper::{Mark, mark_of};
use sartor_core::routing::map::ClusterMap;
use sartor_datalets::{Engine, Options, engine};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Says a line, in one piece: all nodes of a machine say such lines at once.
macro_rules! tell {
    ($($part:tt)*) => {{
        // Where nobody can be told, nothing else can be done.
        let _ = std::io::stderr().write_all((format!($($part)*) + "\n").as_bytes());
    }};
}

/// A store that a former life of the node left.
pub struct Kept {
    /// What it remembers.
    pub mark: Mark,
    /// It, opened.
    pub store: Box<dyn Datalet>,
    /// Its folder.
    pub dir: PathBuf,
}

impl Kept {
    /// Closes it, and removes it.
    pub fn discard(self) {
        drop(self.store);
        remove(&self.dir);
    }
}

/// All that is left of one shard.
#[derive(Default)]
pub struct Left {
    /// The newest store that can be read.
    pub kept: Option<Kept>,
    /// Those that cannot.
    unreadable: Vec<PathBuf>,
    /// Those that can, but are older than one that cannot: they lack what was written since.
    outdone: Vec<PathBuf>,
}

impl Left {
    /// The shard goes on without it. What may be of use to a person stays.
    pub fn discard(self) {
        self.kept.into_iter().for_each(Kept::discard);
        self.outdone.iter().for_each(|path| remove(path));
        self.unreadable.iter().for_each(|path| set_aside(path));
    }

    /// The same on a thread, as it may take long. What is not done when the process ends is found by its next life.
    pub fn discard_aside(self) {
        if self.kept.is_some() || !self.unreadable.is_empty() {
            let _ = std::thread::Builder::new().name("discard".into()).spawn(move || self.discard());
        }
    }
}

/// The stores on disk of one node.
#[derive(Default)]
pub struct Disks {
    dir: Option<PathBuf>,
    /// When what is acknowledged is on disk.
    pub fsync: Fsync,
    left: Mutex<BTreeMap<ShardId, Left>>,
    life: u64,
    number: AtomicU64,
}

impl Disks {
    /// Opens what is in a node's folder; without one, durable datalets cannot be had.
    pub fn open(
        dir: Option<&Path>,
        cluster: u64,
        life: Incarnation,
        fsync: Fsync,
        seed: u64,
    ) -> Result<Disks, String> {
        let dir = dir.map(|dir| dir.join("stores"));
        let mut left = BTreeMap::new();
        if let Some(dir) = &dir {
            let failed = |error: std::io::Error| format!("cannot use the folder {}: {error}", dir.display());
            std::fs::create_dir_all(dir).map_err(failed)?;
            // Nobody works there any more.
            let _ = std::fs::remove_dir_all(dir.with_file_name(RUNNING));
            let entries = std::fs::read_dir(dir).map_err(failed)?;
            let paths =
                entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, _>>().map_err(failed)?;
            let (gone, paths): (Vec<PathBuf>, Vec<PathBuf>) =
                Vec::into_iter(paths).partition(|path: &PathBuf| {
                    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(GONE))
                });
            gone.iter().for_each(|path| remove(path));
            left = look(paths, cluster, seed)?;
        }
        for Kept { mark, dir, .. } in left.values().filter_map(|left| left.kept.as_ref()) {
            tell!("sartor: shard {} is in {}, up to {}", mark.shard.0, dir.display(), mark.position);
        }
        Ok(Disks { dir, fsync, left: Mutex::new(left), life: life.0, number: AtomicU64::new(0) })
    }

    /// The number of a life of the node that is later than all that left something in its folder, whatever the clock says.
    pub fn next_life(dir: Option<&Path>, now_ms: u64) -> Incarnation {
        let entries = dir.and_then(|dir| std::fs::read_dir(dir.join("stores")).ok()).into_iter().flatten();
        let life = |entry: std::io::Result<std::fs::DirEntry>| Some(Name::of(&entry.ok()?.path())?.made.0);
        Incarnation(entries.filter_map(life).max().map_or(1, |life| life + 1).max(now_ms))
    }

    fn left(&self) -> MutexGuard<'_, BTreeMap<ShardId, Left>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was found.
    pub fn marks(&self) -> Vec<Mark> {
        self.left().values().filter_map(|left| Some(left.kept.as_ref()?.mark.clone())).collect()
    }

    /// Shards of which there is something that cannot be read.
    pub fn unreadable(&self) -> Vec<ShardId> {
        let left = self.left();
        left.iter().filter(|(_, left)| !left.unreadable.is_empty()).map(|(shard, _)| *shard).collect()
    }

    /// Takes out what was found of a shard.
    pub fn take(&self, shard: ShardId) -> Left {
        self.left().remove(&shard).unwrap_or_default()
    }

    /// Lets go of shards that go on without this node. While one lacks a copy, what is here may become that.
    pub fn follow(&self, map: &ClusterMap, me: NodeId) {
        let is_over = |shard: ShardId, left: &Left| match &left.kept {
            Some(kept) => map.has_done_with(&kept.mark, me),
            // What cannot be read says nothing of its age.
            None => map.has_done_with(&Mark { shard, ..Mark::default() }, me),
        };
        self.left()
            .extract_if(.., |shard, left| is_over(*shard, left))
            .for_each(|(_, left)| left.discard_aside());
    }

    /// A folder for a new store, if its engine needs one.
    pub fn place(&self, shard: ShardId, engine: &Engine) -> Result<Option<PathBuf>, String> {
        let Engine { name, durable, works_in_folder, .. } = engine;
        if !durable && !works_in_folder {
            return Ok(None);
        }
        let dir = self.dir.as_ref().ok_or_else(|| {
            let why = if *durable { "keeps its records on disk" } else { "starts a server" };
            format!("the datalet {name} {why}; give this node a folder: dir = \"...\" in its file")
        })?;
        let dir = if *durable { dir.clone() } else { dir.with_file_name(RUNNING) };
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        Ok(Some(dir.join(format!("{}-{}-{number}-{name}", shard.0, self.life))))
    }
}

/// The folder of those that do not outlive the process.
const RUNNING: &str = "running";
/// What folders are called that are being removed.
const GONE: &str = "gone-";

/// What a folder's name says.
#[derive(Debug, PartialEq, Eq)]
struct Name {
    shard: ShardId,
    /// The life that made it, and the number there: later ones are larger.
    made: (u64, u64),
    engine: String,
}

impl Name {
    fn of(path: &Path) -> Option<Name> {
        let name = path.file_name()?.to_str()?;
        let mut parts = name.splitn(4, '-');
        let shard = ShardId(parts.next()?.parse().ok()?);
        let made = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Name { shard, made, engine: parts.next()?.into() })
    }
}

/// What is in folders: of each shard the newest, and what cannot be read. What is of no use any more is removed.
fn look(paths: Vec<PathBuf>, cluster: u64, seed: u64) -> Result<BTreeMap<ShardId, Left>, String> {
    let mut left: BTreeMap<ShardId, Left> = BTreeMap::new();
    let mut named: Vec<(Name, PathBuf)> =
        paths.into_iter().filter_map(|path| Some((Name::of(&path)?, path))).collect();
    named.sort_by_key(|(name, _)| name.made);
    for (name, path) in named {
        match look_at(&name, &path, seed) {
            Ok((Some(mark), _)) if mark.cluster != cluster => {
                return Err(format!(
                    "{} holds records of another cluster; choose another folder, or remove it",
                    path.display()
                ));
            }
            Ok((Some(mark), store)) if mark.whole => {
                let of_shard = left.entry(mark.shard).or_default();
                let found = Kept { mark, store, dir: path };
                let is_newer =
                    of_shard.kept.as_ref().is_none_or(|kept| standing(&kept.mark) <= standing(&found.mark));
                let older = if is_newer { of_shard.kept.replace(found) } else { Some(found) };
                older.into_iter().for_each(Kept::discard);
            }
            Ok((_, store)) => {
                drop(store);
                remove(&path);
            }
            Err(error) => {
                let shard = name.shard;
                tell!(
                    "sartor: shard {} cannot be read: {error}. {} stays where it is; this copy is filled from others, and if there are none, the shard stays down",
                    shard.0,
                    path.display()
                );
                let of_shard = left.entry(shard).or_default();
                of_shard.unreadable.push(path);
                of_shard.outdone.extend(of_shard.kept.take().map(|kept| kept.dir));
            }
        }
    }
    Ok(left)
}

fn look_at(name: &Name, path: &Path, seed: u64) -> Result<(Option<Mark>, Box<dyn Datalet>), DataletError> {
    let unknown = || DataletError::Failed(format!("this program has no engine '{}'", name.engine));
    let engine = engine(&name.engine).ok_or_else(unknown)?;
    let mut store = (engine.open)(&Options { seed, ..Options::default() }.in_dir(path))?;
    Ok((mark_of(store.as_mut())?, store))
}

/// Who stands further has more.
fn standing(mark: &Mark) -> impl Ord + use<> {
    (mark.born, mark.position)
}

/// The shard goes on without a store that could not be read: a person may look into it.
fn set_aside(path: &Path) {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let aside = path.with_file_name(format!("damaged-{name}"));
    match std::fs::rename(path, &aside) {
        Ok(()) => tell!(
            "sartor: what could not be read is in {} now; remove it when nobody wants to look into it",
            aside.display()
        ),
        Err(error) => tell!("sartor: cannot set {} aside: {error}", path.display()),
    }
}

/// Removes a store's folder. It gets another name first, so that what is left of it when the process dies is not taken for a
/// store.
pub fn remove(dir: &Path) {
    let name = dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let gone = dir.with_file_name(format!("{GONE}{name}"));
    let dir = if std::fs::rename(dir, &gone).is_ok() { &gone } else { dir };
    if let Err(error) = std::fs::remove_dir_all(dir)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tell!("sartor: cannot remove {}: {error}", dir.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_what_is_a_store() {
        let of = |name: &str| Name::of(Path::new(name));
        let name = Name { shard: ShardId(3), made: (17, 2), engine: "my-engine".into() };
        assert_eq!(of("a/stores/3-17-2-my-engine"), Some(name));
        for other in ["damaged-3-17-2-log", "3-17-log", "lost+found", "3-x-2-log"] {
            assert_eq!(of(other), None);
        }
    }

    #[test]
    fn what_cannot_be_read_is_left_and_told_until_the_shard_goes_on_without_it() {
        let dir = std::env::temp_dir().join(format!("sartor-disks-{}", std::process::id()));
        let stores = dir.join("stores");
        let unknown = stores.join("3-17-2-unheard");
        std::fs::create_dir_all(&unknown).unwrap();
        std::fs::write(unknown.join("records"), "all of them").unwrap();
        let open = || Disks::open(Some(&dir), 1, Incarnation(20), Fsync::Always, 0).unwrap();
        for _life in 0..2 {
            assert_eq!(open().unreadable(), [ShardId(3)], "as long as nobody decides");
        }
        let disks = open();
        disks.take(ShardId(3)).discard();
        assert_eq!((disks.unreadable(), open().unreadable()), (vec![], vec![]));
        let aside = stores.join("damaged-3-17-2-unheard/records");
        assert_eq!(std::fs::read_to_string(aside).unwrap(), "all of them");
        std::fs::remove_dir_all(dir).unwrap();
    }
}

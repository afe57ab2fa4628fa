//! The map as a file of the only coordinator there is. It leads as long as it lives.

use super::{MetadataStore, Notice, Term};
use crate::config::replace;
use sartor_core::routing::map::ClusterMap;
use sartor_core::time::Now;
use sartor_core::wire::codec::Wire;
use std::path::{Path, PathBuf};

/// The name of the file.
pub const MAP_FILE: &str = "cluster.map";
/// Its one term.
const TERM: Term = 1;

/// A folder with a map in it.
pub struct FileStore {
    dir: PathBuf,
    news: Vec<Notice>,
}

impl FileStore {
    /// Reads the map, if there is one.
    pub fn open(dir: &Path) -> Result<FileStore, String> {
        if dir.as_os_str().is_empty() {
            return Err("the configuration names no dir to keep the cluster map in".into());
        }
        let map = load_map(dir)?;
        Ok(FileStore { dir: dir.to_owned(), news: vec![Notice::Leads(TERM, map)] })
    }

    fn write(&self, map: &ClusterMap) -> std::io::Result<()> {
        std::fs::create_dir_all(&self.dir)?;
        replace(&self.dir.join(MAP_FILE), &map.to_bytes())
    }
}

impl MetadataStore for FileStore {
    fn news(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.news)
    }

    fn save(&mut self, term: Term, map: &ClusterMap) -> std::io::Result<()> {
        self.write(map).map_err(|error| cannot_write(&self.dir, &error))?;
        self.news.push(Notice::Saved(term, map.epoch));
        Ok(())
    }

    fn is_certain(&self, _now: Now) -> bool {
        true
    }

    fn resign(&mut self, _term: Term) {}

    fn place(&self) -> String {
        self.dir.join(MAP_FILE).display().to_string()
    }
}

/// The map that was on disk, if any.
pub fn load_map(dir: &Path) -> Result<Option<ClusterMap>, String> {
    let path = dir.join(MAP_FILE);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
    };
    let map = ClusterMap::from_bytes(bytes.into());
    map.map(Some)
        .map_err(|error| format!("{} is damaged ({}); restore it from a copy", path.display(), error.0))
}

fn cannot_write(dir: &Path, error: &std::io::Error) -> std::io::Error {
    let text = format!(
        "cannot write the cluster map to {}: {error}; nothing is repaired until that works",
        dir.display()
    );
    std::io::Error::new(error.kind(), text)
}

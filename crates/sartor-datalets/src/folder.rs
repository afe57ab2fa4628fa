//! The folder of a durable store: whose it is, that only one has it open, and that no commit is missing.
//!
//! ```text
//!  sartor-store   "sartor btree 1", and "complete" once the store was made; locked while it is open
//!  commits        how many commits are known to be on disk
//!  (the rest)     the engine's
//! ```
//!
//! Why it counts commits: each of the libraries below ends its recovery at the first damaged place of its journal and takes
//! what follows for a torn tail. A flipped bit in the middle would so silently undo commits that were long on disk. The file
//! `commits` is written after each of those, without waiting for the disk: it never names a commit that is not there, so a
//! store that has fewer has lost some. A process that is killed does not lose it; after a loss of power it may be old, and
//! notices less.

use sartor_core::datalet::DataletError;
use std::fmt::Display;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

const LABEL: &str = "sartor-store";
const COMMITS: &str = "commits";
const COMPLETE: &str = "complete";
/// Of the engines' own layouts; raised when one can no longer read what it wrote before.
const FORMAT: u32 = 1;

/// A store's folder, held for it alone.
pub(crate) struct Folder {
    dir: PathBuf,
    engine: &'static str,
    label: File,
    commits: Option<File>,
}

impl Folder {
    /// Takes a folder for a store of this engine; makes it if it is not there.
    pub(crate) fn open(dir: &Path, engine: &'static str) -> Result<Folder, DataletError> {
        let failed = |what: &str, error: &dyn Display| failed(engine, dir, what, error);
        if dir.as_os_str().is_empty() {
            return Err(DataletError::Failed(format!("{engine} keeps its data in a folder; none was given")));
        }
        fs::create_dir_all(dir).map_err(|error| failed("cannot make the folder", &error))?;
        let names = names(dir).map_err(|error| failed("cannot read the folder", &error))?;
        let others = names.iter().find(|name| *name != LABEL);
        if let (Some(other), false) = (others, names.iter().any(|name| name == LABEL)) {
            let about = format!(
                "it holds '{other}', and is no store; give an empty folder, or one that is not there"
            );
            return Err(failed("cannot take the folder", &about));
        }
        let mut options = OpenOptions::new();
        let label = options.read(true).append(true).create(true).open(dir.join(LABEL));
        let label = label.map_err(|error| failed("cannot open its label", &error))?;
        label.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => failed("it is open already", &"each store needs a folder of its own"),
            TryLockError::Error(error) => failed("cannot lock its label", &error),
        })?;
        let mut folder = Folder { dir: dir.into(), engine, label, commits: None };
        folder.read_label(others.is_some())?;
        Ok(folder)
    }

    /// Sees from the label whether the store is there; begins to make it if it is not.
    fn read_label(&mut self, others: bool) -> Result<(), DataletError> {
        let mut text = String::new();
        self.label.read_to_string(&mut text).map_err(|error| self.failed("cannot read its label", error))?;
        let mut lines = text.lines();
        let first = self.first_line();
        match (lines.next().unwrap_or_default(), lines.next()) {
            (line, Some(COMPLETE)) if line == first => return self.open_commits(),
            // Whoever began to make it did not come to the end, so nothing was ever committed.
            (line, None) if line == first => {}
            (line, None) if !others && first.starts_with(line) => {}
            (line, _) => return Err(self.failed("cannot open it", self.why_not(line))),
        }
        // It is written when all else is there; 16 bytes of it tell that something was committed.
        let committed = fs::metadata(self.dir.join(COMMITS)).is_ok_and(|file| file.len() >= 16);
        if committed && self.open_commits().and_then(|()| self.check(0)).is_err() {
            return Err(self.damaged(format!("{LABEL} is not what was written")));
        }
        self.commits = None;
        self.begin().map_err(|error| self.failed("cannot make it", error))
    }

    /// What is wrong with a label that begins with this line.
    fn why_not(&self, line: &str) -> String {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["sartor", engine, _] if engine != self.engine => {
                format!("it is a store of the engine '{engine}'; choose that one, or another folder")
            }
            ["sartor", _, format] if format.parse().is_ok_and(|format: u32| format != FORMAT) => {
                format!("its format is {format}; this version reads {FORMAT}")
            }
            _ => format!("{LABEL} is not what was written; if it is damaged, remove the folder"),
        }
    }

    fn first_line(&self) -> String {
        format!("sartor {} {FORMAT}", self.engine)
    }

    /// Removes what was begun before, and says whose the folder is from now on.
    fn begin(&self) -> io::Result<()> {
        for name in names(&self.dir)?.iter().filter(|name| *name != LABEL) {
            let path = self.dir.join(name);
            if path.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
        }
        self.label.set_len(0)?;
        writeln!(&self.label, "{}", self.first_line())?;
        self.label.sync_all()?;
        self.sync()?;
        // The folders that lead to it may be new as well. One that may not be read was not made here.
        for above in fs::canonicalize(&self.dir)?.ancestors().skip(1) {
            match File::open(above) {
                Ok(above) => above.sync_all()?,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether the store is still to be made.
    pub(crate) fn is_new(&self) -> bool {
        self.commits.is_none()
    }

    /// The store was made, and is on disk.
    pub(crate) fn complete(&mut self) -> Result<(), DataletError> {
        let complete = || -> io::Result<()> {
            let commits = File::create(self.dir.join(COMMITS))?;
            commits.write_all_at(&checked(0), 0)?;
            commits.sync_all()?;
            self.sync()?;
            writeln!(&self.label, "{COMPLETE}")?;
            self.label.sync_all()
        };
        complete().map_err(|error| self.failed("cannot make it", error))?;
        self.open_commits()
    }

    fn open_commits(&mut self) -> Result<(), DataletError> {
        let file = OpenOptions::new().read(true).write(true).open(self.dir.join(COMMITS));
        self.commits = Some(file.map_err(|error| self.failed("cannot open its file 'commits'", error))?);
        Ok(())
    }

    /// Looks whether a store whose last commit has this number has all that is known to be on disk.
    pub(crate) fn check(&self, number: u64) -> Result<(), DataletError> {
        let mut bytes = [0; 16];
        let read = self.commits.as_ref().map_or(Ok(()), |file| file.read_exact_at(&mut bytes, 0));
        read.map_err(|error| self.damaged(format!("its file 'commits' cannot be read: {error}")))?;
        let known = u64::from_le_bytes(bytes[..8].try_into().unwrap_or_default());
        if bytes != checked(known) {
            return Err(self.damaged("its file 'commits' is not what was written"));
        }
        if number < known {
            return Err(self.damaged(format!("it ends with commit {number}, but {known} was on disk")));
        }
        Ok(())
    }

    /// The commit of this number is on disk, and all before it.
    pub(crate) fn note(&self, number: u64) -> Result<(), DataletError> {
        let Some(file) = &self.commits else { return Ok(()) };
        file.write_all_at(&checked(number), 0).map_err(|error| self.failed("cannot write 'commits'", error))
    }

    /// Where a file of the store is.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Puts a file in the place of another at one stroke, on disk when this returns.
    pub(crate) fn replace(&self, name: &str, text: &str) -> io::Result<()> {
        let new = self.path(&format!("{name}.new"));
        let mut file = File::create(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(new, self.path(name))?;
        self.sync()
    }

    /// What files are in it is on disk when this returns.
    pub(crate) fn sync(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }

    /// An error with the place of the store.
    pub(crate) fn failed(&self, what: &str, error: impl Display) -> DataletError {
        failed(self.engine, &self.dir, what, &error)
    }

    /// What to say where a library cannot open what should be there, for whatever reason.
    pub(crate) fn unreadable(&self, error: impl Display) -> DataletError {
        let error =
            format!("{error}; if it is damaged, remove the folder to have it filled again from its peers");
        self.failed("cannot open it", error)
    }

    /// What to say of a store that is not what was written.
    pub(crate) fn damaged(&self, how: impl Display) -> DataletError {
        let how = format!("{how}; remove the folder to have it filled again from its peers");
        self.failed("it is damaged", how)
    }
}

fn failed(engine: &str, dir: &Path, what: &str, error: &dyn Display) -> DataletError {
    DataletError::Failed(format!("{engine} store in {}: {what}: {error}", dir.display()))
}

/// What is in a folder.
pub(crate) fn names(dir: &Path) -> io::Result<Vec<String>> {
    fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// A number with its checksum.
fn checked(number: u64) -> [u8; 16] {
    let number = number.to_le_bytes();
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&number);
    bytes[8..].copy_from_slice(&xxh3_64(&number).to_le_bytes());
    bytes
}

//! The few operations on files that the log is made of, and the real disk. Tests have another one, which loses what
//! was not synced.

use sartor_core::datalet::DataletError;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A folder of files.
pub trait Disk: Send {
    /// An open file.
    type File: Send;

    /// The names of all files.
    fn list(&self) -> io::Result<Vec<String>>;
    /// A new empty file, also where there was one.
    fn create(&self, name: &str) -> io::Result<Self::File>;
    /// A file that is there, and its length.
    fn open(&self, name: &str) -> io::Result<(Self::File, u64)>;
    /// Reads as many bytes as asked for.
    fn read_at(&self, file: &Self::File, bytes: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all bytes.
    fn write_at(&self, file: &Self::File, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Cuts a file off.
    fn truncate(&self, file: &Self::File, len: u64) -> io::Result<()>;
    /// All that was written to the file is on disk when this returns.
    fn sync(&self, file: &Self::File) -> io::Result<()>;
    /// Removes a file.
    fn delete(&self, name: &str) -> io::Result<()>;
    /// Which files there are is on disk when this returns.
    fn sync_dir(&self) -> io::Result<()>;
    /// The file's name for a message.
    fn path(&self, name: &str) -> PathBuf;
}

/// A folder of the machine, which nobody else has opened.
pub struct Folder {
    path: PathBuf,
    /// To sync which files there are.
    dir: File,
    /// Held until this is dropped.
    _lock: File,
}

const LOCK: &str = "lock";

impl Folder {
    /// Opens a folder, and makes it if it is not there.
    pub fn open(path: &Path) -> Result<Folder, DataletError> {
        if path.as_os_str().is_empty() {
            return Err(DataletError::Failed("a log needs a folder; name one with --dir".into()));
        }
        let refused = |error: io::Error| refused("open the folder", path, &error);
        let missing: Vec<&Path> = path.ancestors().take_while(|path| !path.exists()).collect();
        std::fs::create_dir_all(path).map_err(refused)?;
        for parent in missing.iter().filter_map(|path| path.parent()) {
            // They must not be gone after a power failure.
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            File::open(parent).and_then(|parent| parent.sync_all()).map_err(refused)?;
        }
        let dir = File::open(path).map_err(refused)?;
        let mut options = OpenOptions::new();
        let lock = options.write(true).create(true).truncate(false).open(path.join(LOCK)).map_err(refused)?;
        match lock.try_lock() {
            Ok(()) => Ok(Folder { path: path.into(), dir, _lock: lock }),
            Err(TryLockError::WouldBlock) => {
                let text = "is in use; another process has it open, stop that first or name another folder";
                Err(DataletError::Failed(format!("{} {text}", path.display())))
            }
            Err(TryLockError::Error(error)) => Err(refused(error)),
        }
    }
}

impl Disk for Folder {
    type File = File;

    fn list(&self) -> io::Result<Vec<String>> {
        let entries = std::fs::read_dir(&self.path)?;
        let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect()
    }

    fn create(&self, name: &str) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(self.path.join(name))
    }

    fn open(&self, name: &str) -> io::Result<(File, u64)> {
        let file = OpenOptions::new().read(true).write(true).open(self.path.join(name))?;
        let len = file.metadata()?.len();
        Ok((file, len))
    }

    fn read_at(&self, file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        file.read_exact_at(bytes, offset)
    }

    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }

    fn truncate(&self, file: &File, len: u64) -> io::Result<()> {
        file.set_len(len)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.dir.sync_all()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

/// The system refused an operation.
pub fn refused(what: &str, path: &Path, error: &io::Error) -> DataletError {
    let advice = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room",
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => "give the right to write there",
        _ => "check the disk",
    };
    let after = "and start again; it then opens as of its last commit";
    DataletError::Failed(format!("cannot {what} {}: {error}; {advice} {after}", path.display()))
}

/// A file is not as it was written.
pub fn damaged(path: &Path, offset: u32, what: &str) -> DataletError {
    let advice =
        "check the disk, move its folder away and start again; the replica is then filled from its peers";
    DataletError::Failed(format!("{} is damaged at byte {offset}: {what}; {advice}", path.display()))
}

//! `redis` without an address: a redis-server for one copy alone, started with it and ended with it.
//!
//! ```text
//!  DIR/redis.sock    the only way in, for the user that the node runs as: there is no port
//!  DIR/redis.log     what the server has to say
//! ```
//!
//! It keeps nothing on disk: a copy that begins is filled from the others, as one in memory is, and a redis-server that dies
//! takes its copy along. The next life of the copy starts another one. That none outlives the node, even where that is
//! killed, is the [`Launcher`]'s business.

use sartor_core::datalet::DataletError;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Programs that will do, in the order in which they are looked for.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];
/// One that does not listen after so long will not.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(3);
/// The path of a socket has a limit in the kernel; a longer one is reached by its folder.
const SOCKET_PATH_MAX: usize = 107;

/// Makes the command that becomes this program, and ends when the process that calls does.
pub type Launcher = fn(&Path) -> io::Result<Command>;

static LAUNCHER: OnceLock<Launcher> = OnceLock::new();

/// From now on servers are started in this way. Without it they end with their stores, but outlive a process that is killed.
pub fn launch_by(launcher: Launcher) {
    // The first one counts: a process has one way.
    let _ = LAUNCHER.set(launcher);
}

/// Says what is missing for such a store.
pub fn check_installed() -> Result<(), String> {
    program().map(drop).ok_or_else(|| {
        "redis-server is not installed here: apt-get install redis-server; or name a Redis that runs, as in redis://127.0.0.1:6379".into()
    })
}

fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let is_program = |file: &PathBuf| {
        file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    let places = |name: &'static str| std::env::split_paths(&path).map(move |dir| dir.join(name));
    PROGRAMS.iter().find_map(|name| places(name).find(is_program))
}

/// A redis-server that ends with its owner.
pub(super) struct Server {
    child: Child,
}

impl Server {
    /// Starts one in a folder, and waits until it listens.
    pub(super) fn start(dir: &Path) -> Result<Server, DataletError> {
        let failed = |error: io::Error| {
            DataletError::Failed(format!("cannot start a redis-server in {}: {error}", dir.display()))
        };
        check_installed().map_err(DataletError::Failed)?;
        let program = program().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        let launch = LAUNCHER.get().copied().unwrap_or(|program| Ok(Command::new(program)));
        let child = launch(&program)
            .and_then(|mut command| {
                command.current_dir(dir).args(OPTIONS);
                command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
            })
            .map_err(failed)?;
        let mut server = Server { child };
        server.wait_until_it_listens(dir)?;
        Ok(server)
    }

    fn wait_until_it_listens(&mut self, dir: &Path) -> Result<(), DataletError> {
        let began = Instant::now();
        let why = loop {
            if connect(&socket(dir)).is_ok() {
                return Ok(());
            }
            match self.child.try_wait() {
                Ok(None) if began.elapsed() < PATIENCE => std::thread::sleep(LOOK_EVERY),
                Ok(None) => break format!("does not listen after {} s", PATIENCE.as_secs()),
                Ok(Some(status)) => break format!("ended ({status})"),
                Err(error) => break error.to_string(),
            }
        };
        let said = std::fs::read_to_string(dir.join("redis.log")).unwrap_or_default();
        let said = said.lines().next_back().map(|line| format!(": {line}")).unwrap_or_default();
        Err(DataletError::Failed(format!("the redis-server in {} {why}{said}", dir.display())))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing of it is to be kept.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Paths are relative to the folder, as a socket's may not be long.
const OPTIONS: [&str; 20] = [
    "--port",
    "0",
    "--unixsocket",
    "redis.sock",
    "--unixsocketperm",
    "700",
    "--databases",
    "1",
    "--save",
    "",
    "--appendonly",
    "no",
    "--maxmemory-policy",
    "noeviction",
    "--logfile",
    "redis.log",
    "--loglevel",
    "warning",
    "--daemonize",
    "no",
];

/// Where the server in a folder listens.
pub(super) fn socket(dir: &Path) -> PathBuf {
    dir.join("redis.sock")
}

/// Connects to a socket in the file system, however long its path is.
pub(super) fn connect(path: &Path) -> io::Result<UnixStream> {
    match (path.parent(), path.file_name()) {
        (Some(dir), Some(name)) if path.as_os_str().len() > SOCKET_PATH_MAX => {
            use std::os::fd::AsRawFd;
            let dir = std::fs::File::open(dir)?;
            UnixStream::connect(Path::new(&format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name))
        }
        _ => UnixStream::connect(path),
    }
}

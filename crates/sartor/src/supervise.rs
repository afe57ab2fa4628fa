//! Child processes that are started again when they die, and that never outlive their parent.

use crate::Failed;
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, getppid, kill_process, set_child_subreaper,
    set_parent_process_death_signal, wait,
};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The verb of [`run_leashed`].
pub const LEASH: &str = "leash";
/// Tells a child who its parent is.
const PARENT: &str = "SARTOR_PARENT";
/// Between a death and the next start, where deaths follow each other.
const PAUSE: Duration = Duration::from_millis(250);
const TERM_PATIENCE: Duration = Duration::from_millis(700);

/// In a child of `sartor up`: asks the kernel to kill this process when the parent dies, even by
/// SIGKILL, even while this process is stopped.
pub fn die_with_parent() -> Result<(), Failed> {
    let Some(parent) = std::env::var(PARENT).ok().and_then(|pid| pid.parse::<i32>().ok()) else {
        return Ok(());
    };
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| Failed::other(format!("cannot bind my life to my parent's: {error}")))?;
    // It may have died before.
    if getppid().map(Pid::as_raw_nonzero).map(i32::from) != Some(parent) {
        return Err(Failed::other("my parent is gone"));
    }
    Ok(())
}

/// A command that becomes this program and, like the children of `sartor up`, dies with this process.
pub fn leashed(program: &Path) -> std::io::Result<Command> {
    // Also where the file was replaced meanwhile.
    let mut command = Command::new("/proc/self/exe");
    command.arg(LEASH).arg(program).env(PARENT, i32::from(getpid().as_raw_nonzero()).to_string());
    // Ctrl-C is for whoever ends it.
    command.process_group(0);
    Ok(command)
}

/// What such a command does.
pub fn run_leashed(words: &[OsString]) -> Result<(), Failed> {
    die_with_parent()?;
    let (program, words) = words.split_first().ok_or_else(|| Failed::input("a program is missing"))?;
    let error = Command::new(program).args(words).env_remove(PARENT).exec();
    Err(Failed::other(format!("cannot start {}: {error}", program.display())))
}

/// A child process.
pub struct Supervised {
    /// What it is, for people.
    pub name: String,
    verb: &'static str,
    config: PathBuf,
    place: Place,
    child: Option<Child>,
    started: Instant,
}

/// Where a child runs.
#[derive(Clone, Default)]
pub struct Place {
    /// The network namespace, if not the parent's.
    pub netns: Option<String>,
    /// The file that takes what it says, if not the parent's terminal.
    pub log: Option<PathBuf>,
}

impl Supervised {
    /// Starts `sartor VERB --config FILE`.
    pub fn start(name: String, verb: &'static str, config: PathBuf) -> Result<Supervised, Failed> {
        Supervised::start_at(Place::default(), name, verb, config)
    }

    /// The same at a place of its own.
    pub fn start_at(
        place: Place,
        name: String,
        verb: &'static str,
        config: PathBuf,
    ) -> Result<Supervised, Failed> {
        let started = Instant::now();
        let mut supervised = Supervised { name, verb, config, place, child: None, started };
        supervised.spawn()?;
        Ok(supervised)
    }

    fn spawn(&mut self) -> Result<(), Failed> {
        let failed = |error| Failed::other(format!("cannot start {}: {error}", self.name));
        let exe = std::env::current_exe().map_err(failed)?;
        let mut command = match &self.place.netns {
            None => Command::new(exe),
            Some(netns) => {
                // It becomes the program without a fork, so the child is still ours.
                let mut command = Command::new("ip");
                command.args(["netns", "exec", netns]).arg(exe);
                command
            }
        };
        if let Some(log) = &self.place.log {
            let file = File::options().create(true).append(true).open(log).map_err(failed)?;
            command.stdout(file.try_clone().map_err(failed)?).stderr(file);
        }
        let child = command
            .arg(self.verb)
            .arg("--config")
            .arg(&self.config)
            .env(PARENT, i32::from(getpid().as_raw_nonzero()).to_string())
            .stdin(Stdio::null())
            // Ctrl-C is for the parent, which then ends its children in order.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        self.child = Some(child);
        self.started = Instant::now();
        Ok(())
    }

    /// Notices a death; starts it again if `restart`.
    pub fn tend(&mut self, restart: bool) -> Result<(), Failed> {
        if let Some(child) = &mut self.child {
            match child.try_wait() {
                Ok(Some(status)) => {
                    let then = if restart { "; starting it again" } else { "" };
                    eprintln!("sartor: {} ended ({status}){then}", self.name);
                    self.child = None;
                }
                _ => return Ok(()),
            }
        }
        if restart && self.started.elapsed() >= PAUSE {
            return self.spawn();
        }
        Ok(())
    }

    /// Starts it again if it does not run.
    pub fn revive(&mut self) -> Result<(), Failed> {
        if self.child.is_some() { Ok(()) } else { self.spawn() }
    }

    /// Ends it at once, as `kill -9` does.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Why it ended, if it did so by itself.
    pub fn ended(&mut self) -> Option<String> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        self.child = None;
        Some(status.to_string())
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = self.child.as_ref().and_then(|child| Pid::from_raw(child.id() as i32)) {
            let _ = kill_process(pid, signal);
        }
    }
}

/// From now on, what children leave running or unburied when they die is this process's child.
pub fn adopt_orphans() {
    // Where it cannot, init does.
    let _ = set_child_subreaper(Some(getpid()));
}

/// Waits for what ended children have left; it dies with them, but nobody waited for it.
pub fn bury_orphans() {
    let deadline = Instant::now() + TERM_PATIENCE;
    while Instant::now() < deadline {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
            Err(_) => return,
        }
    }
}

/// Ends all children: politely, then not.
pub fn end(children: &mut [Supervised]) {
    for child in children.iter() {
        child.signal(Signal::TERM);
        // A stopped process would sleep through it.
        child.signal(Signal::CONT);
    }
    let deadline = Instant::now() + TERM_PATIENCE;
    for supervised in children.iter_mut() {
        let Some(mut child) = supervised.child.take() else { continue };
        while Instant::now() < deadline && matches!(child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

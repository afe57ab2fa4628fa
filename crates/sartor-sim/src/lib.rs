//! The core in a seeded world with faults, and what checks it.
//!
//! ```text
//!  seed ─▶ plan (cluster, faults, clients) ─▶ World: time, net, nodes, coordinator ─▶ checks
//! ```
//!
//! The nodes and the coordinator are the very state machines that the server runs. The same seed
//! gives the same run, to the last byte; a failure names it.

pub mod check;
pub mod client;
pub mod disk;
pub mod flaky;
pub mod history;
pub mod linear;
pub mod met;
pub mod net;
pub mod once;
pub mod plan;
pub mod world;

use sartor_core::controlet::{MODES, Mode, mode};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What to simulate.
#[derive(Clone, Copy)]
pub struct Config {
    /// The modes that nodes know.
    pub modes: &'static [Mode],
    /// The mode of the table.
    pub mode: &'static str,
    /// Whether to print faults and cluster maps as they come.
    pub trace: bool,
    /// Simulated time with faults and load; the network heals after it.
    pub run_ms: u64,
    /// Whether users switch the table to other modes meanwhile.
    pub switches: bool,
    /// Whether the table is one in ranges, of any mode, and users divide it meanwhile.
    pub splits: bool,
    /// Whether the stores of some seeds are on disk, and outlive their nodes.
    pub disks: bool,
}

impl Default for Config {
    fn default() -> Self {
        let (switches, splits, disks) = (false, false, false);
        Config { modes: MODES, mode: "ms+sc", trace: false, run_ms: 20_000, switches, splits, disks }
    }
}

impl Config {
    /// Of one of these modes, or of `switch`: any, and users change it; or of `split`: any, and users divide the table.
    pub fn of(modes: &'static [Mode], name: &str) -> Option<Config> {
        let (switches, splits) = (name == "switch", name == "split");
        let mode = if switches || splits { modes.first() } else { mode(modes, name) };
        mode.map(|mode| Config { modes, mode: mode.name, switches, splits, disks: true, ..Config::default() })
    }
}

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Operations that clients asked for.
    pub operations: u64,
    /// Of which were answered with success.
    pub succeeded: u64,
    /// Faults that met the cluster.
    pub faults: u64,
    /// Switches to another mode.
    pub switches: u64,
    /// Simulated milliseconds.
    pub simulated_ms: u64,
    /// Which faults met whom in which phase.
    pub met: met::Met,
    /// A number that two runs share only if all happened equally.
    pub trace: u64,
}

impl Summary {
    /// Adds what another run did.
    pub fn add(&mut self, other: &Summary) {
        self.operations += other.operations;
        self.succeeded += other.succeeded;
        self.faults += other.faults;
        self.switches += other.switches;
        self.simulated_ms += other.simulated_ms;
        self.met.add(&other.met);
    }
}

/// Runs one seed: what it did, or what it broke.
pub fn run(seed: u64, config: &Config) -> Result<Summary, String> {
    let world = || {
        let mut world = world::World::new(seed, config);
        world.run()?;
        check::check(&mut world)?;
        Ok(world.summary())
    };
    catch_unwind(AssertUnwindSafe(world)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("of another kind")))
    })
}

//! Hosts of our own: a network namespace for each process, joined by a bridge.
//!
//! ```text
//!  ┌ node 0 ───┐  ┌ node 1 ───┐  ┌ coordinator ┐
//!  │ 10.77.0.10│  │ 10.77.0.11│  │ 10.77.0.2   │
//!  └───┬───────┘  └───┬───────┘  └──────┬──────┘
//!   ───┴──────────────┴──── bridge ─────┴────────   sartor chaos, its clients: 10.77.0.1
//! ```
//!
//! `sartor chaos` first moves into a network and mount namespace of its own, where it makes all this. So nothing of it is seen outside, and
//! nothing of it stays when the last process has ended, however it ended. A cut is a false hardware address for the other host:
//! packets leave and arrive nowhere, as if the net had lost them. That needs nothing but `ip`.

use super::net::COORD;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Says that this process already has namespaces of its own.
const INSIDE: &str = "SARTOR_CHAOS_INSIDE";
const NOBODY: &str = "02:00:00:00:00:fe";

/// The hosts of one cluster.
pub struct Hosts {
    places: Vec<u16>,
    cuts: Vec<(u16, u16)>,
    slow: Vec<u16>,
}

impl Hosts {
    /// Where nodes listen for clients.
    pub const CLIENTS: u16 = 7379;
    /// Where they listen for each other.
    pub const PEERS: u16 = 7679;
    /// Where the coordinator listens.
    pub const RPC: u16 = 7580;
    /// Its pages.
    pub const HTTP: u16 = 7579;

    /// Starts this program again in namespaces of its own; returns only inside of them, or if that cannot be.
    pub fn enter() -> Result<(), String> {
        if std::env::var_os(INSIDE).is_some() {
            return Ok(());
        }
        let exe = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--propagation", "private"]).arg(exe);
        command.args(std::env::args_os().skip(1)).env(INSIDE, "1");
        Err(format!("cannot make network namespaces: {}", command.exec()))
    }

    /// Makes the hosts.
    pub fn open(nodes: u16) -> Result<Hosts, String> {
        let places: Vec<u16> = (0..nodes).chain([COORD]).collect();
        let hosts = Hosts { places, cuts: Vec::new(), slow: Vec::new() };
        std::fs::create_dir_all("/run/netns").map_err(|error| format!("cannot make /run/netns: {error}"))?;
        run("mount", "-t tmpfs sartor-chaos /run/netns")?;
        ip("link set lo up")?;
        ip("link add name hub type bridge")?;
        ip("addr add 10.77.0.1/24 dev hub")?;
        ip("link set hub up")?;
        for &place in &hosts.places {
            let (name, addr) = (Hosts::name(place), Hosts::host(place));
            ip(&format!("netns add {name}"))?;
            ip(&format!("link add name {} type veth peer name eth0 netns {name}", port(place)))?;
            ip(&format!("link set {} master hub up", port(place)))?;
            ip(&format!("-n {name} addr add {addr}/24 dev eth0"))?;
            ip(&format!("-n {name} link set eth0 up"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        Ok(hosts)
    }

    /// The namespace of a process.
    pub fn name(place: u16) -> String {
        if place == COORD { "coordinator".into() } else { format!("node-{place}") }
    }

    fn host(place: u16) -> String {
        if place == COORD { "10.77.0.2".into() } else { format!("10.77.0.{}", 10 + place) }
    }

    /// An address of a process.
    pub fn addr(place: u16, port: u16) -> String {
        format!("{}:{port}", Hosts::host(place))
    }

    /// Packets from one do not reach the other.
    pub fn cut(&mut self, from: u16, to: u16) -> Result<(), String> {
        let (name, addr) = (Hosts::name(from), Hosts::host(to));
        self.cuts.push((from, to));
        ip(&format!("-n {name} neigh replace {addr} lladdr {NOBODY} dev eth0 nud permanent"))
    }

    /// What comes to a host comes slowly.
    pub fn slow(&mut self, to: u16, bytes_per_s: u64) -> Result<(), String> {
        self.slow.push(to);
        let bits = bytes_per_s * 8;
        run("tc", &format!("qdisc add dev {} root tbf rate {bits}bit burst 3000 limit 30000", port(to)))
    }

    /// All packets arrive, and soon.
    pub fn heal(&mut self) -> Result<(), String> {
        for (from, to) in self.cuts.drain(..) {
            // The next packet asks for the true address.
            let _ = ip(&format!("-n {} neigh del {} dev eth0", Hosts::name(from), Hosts::host(to)));
        }
        for to in self.slow.drain(..) {
            run("tc", &format!("qdisc del dev {} root", port(to)))?;
        }
        Ok(())
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for &place in &self.places {
            let _ = ip(&format!("link del {}", port(place)));
            let _ = ip(&format!("netns del {}", Hosts::name(place)));
        }
        let _ = ip("link del hub");
        let _ = run("umount", "/run/netns");
    }
}

fn port(place: u16) -> String {
    if place == COORD { "to-coord".into() } else { format!("to-{place}") }
}

fn ip(words: &str) -> Result<(), String> {
    run("ip", words)
}

fn run(program: &str, words: &str) -> Result<(), String> {
    let done = Command::new(program).args(words.split(' ')).output();
    let done = done.map_err(|error| format!("cannot run {program}: {error}"))?;
    if done.status.success() {
        return Ok(());
    }
    Err(format!("{program} {words}: {}", String::from_utf8_lossy(&done.stderr).trim()))
}

//! What a measurement was made on: without that its numbers mean nothing.

use super::super::plan::Plan;
use super::super::target::Target;
use crate::resp;
use std::collections::BTreeMap;
use std::fs::read_to_string;

/// Names and what was found.
pub struct Environment(pub BTreeMap<&'static str, String>);

impl Environment {
    /// Of this machine and the first target.
    pub fn find(plan: &Plan) -> Environment {
        let mut found = BTreeMap::new();
        let words: Vec<String> = std::env::args().collect();
        found.insert("command", words.join(" "));
        found.insert("sartor", env!("CARGO_PKG_VERSION").to_owned());
        let kernel = read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        found.insert("kernel", kernel.trim().to_owned());
        found.insert("cores", std::thread::available_parallelism().map_or(0, usize::from).to_string());
        found.insert("processor", processor());
        let load = read_to_string("/proc/loadavg").unwrap_or_default();
        found.insert("load before", load.split(' ').take(3).collect::<Vec<_>>().join(" "));
        if let Some(server) = server(plan) {
            found.insert("server", server);
        }
        Environment(found)
    }
}

fn processor() -> String {
    let text = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("model name"));
    line.and_then(|line| line.split_once(": ")).map_or_else(|| "unknown".into(), |(_, name)| name.to_owned())
}

/// What a Redis, or who speaks its language, says it is.
fn server(plan: &Plan) -> Option<String> {
    let (Target::Tcp(addr), "resp") = (plan.targets.first()?, plan.protocol.name()) else { return None };
    let info = resp::ask(&addr.to_string(), &["INFO", "server"]).ok()?;
    let field = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::to_owned)
    };
    match field("sartor_version") {
        Some(version) => Some(format!("Sartor {version}")),
        None => field("redis_version").map(|version| format!("Redis {version}")),
    }
}

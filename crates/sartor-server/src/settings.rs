//! Limits and times that users may change, some of them while the node runs (CONFIG SET).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The name of a setting; its place in [`SETTINGS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Name {
    /// Largest key.
    KeyBytesMax,
    /// Largest value.
    ValueBytesMax,
    /// Largest request.
    RequestBytesMax,
    /// Most arguments of a request.
    RequestArgsMax,
    /// Most connections of a worker.
    ClientsMax,
    /// Requests of a connection that may be in flight.
    PipelineMax,
    /// Unread answers of a connection.
    OutputBytesMax,
    /// Input and output buffers of all connections of a worker.
    ClientBytesMax,
    /// A request's time.
    RequestTimeoutMs,
    /// Time for a request that was begun to be complete, and for answers to be read.
    StallTimeoutMs,
    /// Time a connection may be idle.
    IdleTimeoutMs,
    /// Whether EXEC may cross shards.
    ExecAcrossShards,
    /// Whether commands may come without RESP framing.
    InlineCommands,
    /// Bytes of records, before writes are refused.
    MemoryMax,
    /// How long a request waits while its shard is failing over.
    FailoverWaitMs,
    /// How long SARTOR.ONCE remembers.
    OnceMs,
    /// Bytes of what it remembers, a shard.
    OnceBytesMax,
    /// Whether SARTOR.DEBUG may do damage.
    DebugCommands,
    /// How long to ask for news before sleeping.
    BusyPollUs,
    /// How many records a shard in a range may have.
    SplitRecords,
}

/// What there is to know of a setting.
pub struct Setting {
    /// What users call it.
    pub name: &'static str,
    /// What it is, with its unit.
    pub about: &'static str,
    /// Its value unless told otherwise.
    pub default: u64,
    /// The smallest allowed value.
    pub min: u64,
    /// The largest.
    pub max: u64,
    /// Whether it can be changed while the node runs.
    pub live: bool,
}

const fn setting(name: &'static str, default: u64, min: u64, max: u64, about: &'static str) -> Setting {
    Setting { name, about, default, min, max, live: true }
}

const MIB: u64 = 1 << 20;

/// All settings, in the order of [`Name`].
pub const SETTINGS: &[Setting] = &[
    setting("key-bytes-max", 64 << 10, 1, 64 << 10, "largest key, bytes"),
    setting("value-bytes-max", 16 * MIB, 1, 64 * MIB, "largest value, bytes"),
    setting("request-bytes-max", 128 * MIB, 1 << 10, 1 << 30, "largest request, bytes"),
    setting("request-args-max", MIB, 16, 16 * MIB, "most arguments of a request"),
    setting("clients-max", 20_000, 1, 1_000_000, "most connections of a worker"),
    setting(
        "pipeline-max",
        1024,
        1,
        65_536,
        "requests of a connection in flight; the rest waits in the socket",
    ),
    setting(
        "output-bytes-max",
        256 * MIB,
        1 << 16,
        1 << 32,
        "unread answers of a connection, bytes; it is closed beyond",
    ),
    setting("client-bytes-max", 1024 * MIB, MIB, 1 << 40, "buffers of all connections of a worker, bytes"),
    setting("request-timeout-ms", 5000, 10, 600_000, "how long a request may wait for its shard, ms"),
    setting(
        "stall-timeout-ms",
        30_000,
        100,
        3_600_000,
        "how long half a request, or answers that are not read, may last, ms",
    ),
    setting("idle-timeout-ms", 0, 0, 1 << 40, "how long a connection may be idle, ms; 0 is for ever"),
    setting(
        "exec-across-shards",
        1,
        0,
        1,
        "1: EXEC over several shards is atomic shard by shard; 0: CROSSSLOT",
    ),
    setting(
        "inline-commands",
        0,
        0,
        1,
        "1: all commands may come as plain lines; 0: PING, ECHO and QUIT only",
    ),
    setting("maxmemory", 0, 0, 1 << 50, "records of the node, bytes; writes beyond get OOM; 0 is no limit"),
    Setting {
        live: false,
        ..setting(
            "failover-wait-ms",
            2000,
            0,
            600_000,
            "how long a request waits for a shard without a head, ms",
        )
    },
    Setting {
        live: false,
        ..setting("once-ms", 600_000, 1, 86_400_000, "how long SARTOR.ONCE remembers an id, ms")
    },
    Setting {
        live: false,
        ..setting(
            "once-max-bytes",
            16 * MIB,
            1 << 10,
            4096 * MIB,
            "what SARTOR.ONCE remembers of a shard, bytes; new ids get OOM beyond",
        )
    },
    Setting {
        live: false,
        ..setting("debug-commands", 0, 0, 1, "1: SARTOR.DEBUG may damage a copy, to show that it is noticed")
    },
    setting(
        "busy-poll-us",
        0,
        0,
        1_000_000,
        "how long a worker without work asks for news again and again before it sleeps, us: CPU for latency",
    ),
    setting(
        "split-records",
        0,
        0,
        1 << 40,
        "a shard of a table in ranges that has more records, and whose writes this node orders, is divided; 0 is never",
    ),
];

/// The values, shared by all workers of a node.
#[derive(Clone)]
pub struct Settings {
    values: Arc<Vec<AtomicU64>>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            values: Arc::new(SETTINGS.iter().map(|setting| AtomicU64::new(setting.default)).collect()),
        }
    }
}

impl Settings {
    /// The value of a setting.
    pub fn get(&self, name: Name) -> u64 {
        self.values[name as usize].load(Ordering::Relaxed)
    }

    /// The value as a size.
    pub fn size(&self, name: Name) -> usize {
        usize::try_from(self.get(name)).unwrap_or(usize::MAX)
    }

    /// All names and values.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        SETTINGS
            .iter()
            .zip(self.values.iter())
            .map(|(setting, value)| (setting.name, value.load(Ordering::Relaxed)))
    }

    /// Sets one by name while the node runs, or says why not.
    pub fn change(&self, name: &str, value: u64) -> Result<(), String> {
        if SETTINGS.iter().any(|setting| setting.name == name && !setting.live) {
            return Err(format!("{name} is read at the start; set it in the node's file"));
        }
        self.set(name, value)
    }

    /// Sets one by name, or says why not.
    pub fn set(&self, name: &str, value: u64) -> Result<(), String> {
        let Some(index) = SETTINGS.iter().position(|setting| setting.name == name) else {
            return Err(format!("unknown setting '{name}'; CONFIG GET * lists them"));
        };
        let setting = &SETTINGS[index];
        if !(setting.min..=setting.max).contains(&value) {
            return Err(format!("{name} must be from {} to {}: {}", setting.min, setting.max, setting.about));
        }
        self.values[index].store(value, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_table_agree() {
        assert_eq!(SETTINGS.len(), Name::SplitRecords as usize + 1);
        assert_eq!(SETTINGS[Name::SplitRecords as usize].name, "split-records");
        assert_eq!(SETTINGS[Name::BusyPollUs as usize].name, "busy-poll-us");
        assert_eq!(SETTINGS[Name::DebugCommands as usize].name, "debug-commands");
        assert_eq!(SETTINGS[Name::FailoverWaitMs as usize].name, "failover-wait-ms");
        assert_eq!(SETTINGS[Name::InlineCommands as usize].name, "inline-commands");
        assert_eq!(SETTINGS[Name::ClientsMax as usize].name, "clients-max");
        let settings = Settings::default();
        assert!(settings.set("pipeline-max", 0).is_err());
        assert!(settings.set("pipeline", 1).is_err());
        settings.set("pipeline-max", 7).unwrap();
        assert_eq!(settings.get(Name::PipelineMax), 7);
    }
}

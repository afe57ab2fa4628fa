//! What to run, checked: from the command line and YCSB's properties.

use super::args::BenchArgs;
use super::cpu::Processes;
use super::pace::Arrivals;
use super::properties::Properties;
use super::protocol::{KEY_PREFIX, Key, Protocol};
use super::target::Target;
use clap::ValueEnum;
use sartor_core::workload::keys::{DISTRIBUTIONS, Distribution};
use sartor_core::workload::sizes::Sizes;
use sartor_core::workload::{ACTIONS, Action, Mix, WORKLOADS, Workload, workload};

/// Connections, threads and depths beyond these are mistakes.
const CONNECTIONS_MAX: usize = 50_000;
const THREADS_MAX: usize = 256;
const DEPTH_MAX: usize = 10_000;
/// Bytes that may be on their way to the target at once.
const FLIGHT_MAX: u64 = 4 << 30;
/// Longer keys than Redis takes.
const KEY_MAX: u32 = 64 << 10;
const VALUE_MAX: u32 = 64 << 20;
/// A depth for filling, if values are so small that this much is sent at once.
const LOAD_DEPTH: usize = 64;
const LOAD_BYTES: usize = 1 << 20;

/// How long to run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// For a time.
    Seconds(f64),
    /// Until so many are answered.
    Requests(u64),
}

/// When to ask whether replicas have what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Waits {
    /// Never
    None,
    /// After each write
    Each,
    /// Once for the writes that are sent together
    Batch,
}

impl Waits {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Waits::None => "none",
            Waits::Each => "each",
            Waits::Batch => "batch",
        }
    }
}

/// A load.
#[derive(Clone, Debug)]
pub struct Plan {
    pub targets: Vec<Target>,
    pub protocol: Protocol,
    /// What every connection chooses first.
    pub table: Option<String>,
    pub workload: Workload,
    /// Records that are there.
    pub records: u64,
    pub connections: usize,
    pub depth: usize,
    pub threads: usize,
    /// Requests a second of an open loop; one run for each. None: a closed loop.
    pub rates: Vec<f64>,
    pub arrivals: Arrivals,
    pub warmup: f64,
    pub amount: Amount,
    pub repeats: u32,
    pub waits: Waits,
    pub wait_replicas: u32,
    pub cpu: Vec<Processes>,
    pub seed: u64,
}

impl Plan {
    /// From what the user says: options before properties before the workload's own numbers.
    pub fn new(args: &BenchArgs) -> Result<Plan, String> {
        let properties = Properties::read(args.property_file.as_deref(), &args.property)?;
        let mut plan = Plan {
            targets: args.target.iter().map(|text| Target::parse(text)).collect::<Result<_, _>>()?,
            protocol: args.protocol,
            table: args.table.clone(),
            workload: base(args)?,
            records: 100_000,
            connections: 50,
            depth: args.depth,
            threads: args.threads,
            rates: Vec::new(),
            arrivals: args.arrivals,
            warmup: args.warmup,
            amount: Amount::Seconds(10.0),
            repeats: args.repeats,
            waits: args.wait,
            wait_replicas: args.wait_replicas,
            cpu: args.cpu.iter().map(|text| Processes::parse(text)).collect::<Result<_, _>>()?,
            seed: args.seed,
        };
        properties.apply(&mut plan)?;
        plan.options(args)?;
        plan.check()?;
        Ok(plan)
    }

    fn options(&mut self, args: &BenchArgs) -> Result<(), String> {
        if let Some(mix) = &args.mix {
            self.workload.mix = parse_mix(mix)?;
        }
        if let Some(name) = &args.distribution {
            self.workload.distribution = distribution(name)?;
        }
        if let Some(theta) = args.theta {
            match &mut self.workload.distribution {
                Distribution::Zipfian(old) | Distribution::Latest(old) => *old = theta,
                other => return Err(format!("--theta is for zipfian and latest, not for {}", other.name())),
            }
        }
        if let Some(text) = &args.key_bytes {
            self.workload.key_bytes = parse_sizes(text, Sizes::EtcKeys)?;
        }
        if let Some(text) = &args.value_bytes {
            self.workload.value_bytes = parse_sizes(text, Sizes::EtcValues)?;
        }
        self.records = args.keys.unwrap_or(self.records);
        self.connections = args.connections.unwrap_or(self.connections);
        if !args.rate.is_empty() {
            self.rates.clone_from(&args.rate);
        }
        match (args.seconds, args.requests) {
            (Some(seconds), _) => self.amount = Amount::Seconds(seconds),
            (None, Some(requests)) => self.amount = Amount::Requests(requests),
            (None, None) => {}
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let within = |name: &str, value: u64, max: u64| match value {
            0 => Err(format!("{name} must not be 0")),
            value if value > max => Err(format!("{name} is {value}; it can be up to {max}")),
            _ => Ok(()),
        };
        within("--connections", self.connections as u64, CONNECTIONS_MAX as u64)?;
        within("--depth", self.depth as u64, DEPTH_MAX as u64)?;
        within("--threads", self.threads as u64, THREADS_MAX as u64)?;
        within("--keys", self.records, u64::MAX >> 16)?;
        within("--repeats", self.repeats.into(), 1000)?;
        within("--key-bytes", self.workload.key_bytes.max().into(), KEY_MAX.into())?;
        if self.threads > self.connections {
            return Err(format!("--threads {} needs as many --connections at least", self.threads));
        }
        if self.workload.value_bytes.max() > VALUE_MAX {
            return Err(format!("values can have up to {VALUE_MAX} bytes"));
        }
        let flight = (self.connections * self.depth) as u64 * u64::from(largest(self.workload.value_bytes));
        if flight > FLIGHT_MAX {
            return Err(format!(
                "{flight} bytes would be on their way at once; use fewer --connections, less --depth or shorter values"
            ));
        }
        if self.rates.iter().any(|rate| !(*rate >= 1.0 && *rate <= 1e9)) {
            return Err("--rate is in requests a second, from 1 to 1e9".into());
        }
        let seconds = if let Amount::Seconds(seconds) = self.amount { seconds } else { 1.0 };
        if !(seconds > 0.0 && seconds <= 1e7 && self.warmup >= 0.0 && self.warmup <= 1e7) {
            return Err("--seconds must be more than 0, --warmup not less".into());
        }
        if self.waits != Waits::None && self.protocol != Protocol::Resp {
            return Err("--wait is a command of RESP".into());
        }
        if self.table.is_some() && self.protocol != Protocol::Resp {
            return Err("--table is chosen by a command of RESP".into());
        }
        self.check_keys()?;
        self.check_mix()
    }

    /// Whether all keys differ.
    fn check_keys(&self) -> Result<(), String> {
        let needed = self.shortest_key() as usize;
        let shortest = match self.workload.key_bytes {
            Sizes::Fixed(size) | Sizes::Uniform(size, _) => size as usize,
            Sizes::EtcKeys | Sizes::EtcValues => return Ok(()),
        };
        if shortest < needed {
            return Err(format!(
                "keys of {shortest} bytes are too short for {} records: use --key-bytes {needed} or more",
                self.records
            ));
        }
        Ok(())
    }

    /// So long a key has room for the number of any record, and for some that are inserted.
    fn shortest_key(&self) -> u32 {
        KEY_PREFIX.len() as u32 + self.records.ilog10() + 2
    }

    /// The key of a record.
    pub fn key(&self, record: u64) -> Key {
        Key { record, bytes: self.workload.key_bytes.of(record).max(self.shortest_key()) }
    }

    fn check_mix(&self) -> Result<(), String> {
        let mix = &self.workload.mix;
        if mix.iter().any(|share| !(*share >= 0.0 && share.is_finite())) || mix.iter().sum::<f64>() <= 0.0 {
            return Err("the shares of a mix are 0 or more, and not all 0".into());
        }
        for (action, share) in ACTIONS.into_iter().zip(mix) {
            if *share > 0.0 && !self.protocol.can(action) {
                return Err(format!(
                    "the target cannot scan ranges of keys: {} has no command for it on plain keys; use another workload or --mix",
                    self.protocol.name()
                ));
            }
        }
        Ok(())
    }

    /// The load that writes every record once.
    pub fn load(&self) -> Plan {
        let bytes = largest(self.workload.value_bytes).max(1) as usize;
        let depth = (LOAD_BYTES / bytes).clamp(1, LOAD_DEPTH);
        let workload = Workload {
            mix: share_of(Action::Update),
            distribution: Distribution::Sequential,
            ..self.workload.clone()
        };
        Plan {
            workload,
            depth,
            rates: Vec::new(),
            warmup: 0.0,
            amount: Amount::Requests(self.records),
            repeats: 1,
            waits: Waits::None,
            ..self.clone()
        }
    }

    /// Whether requests are sent at times of their own.
    pub fn is_open(&self) -> bool {
        !self.rates.is_empty()
    }
}

/// What most values do not exceed.
fn largest(sizes: Sizes) -> u32 {
    match sizes {
        Sizes::EtcKeys | Sizes::EtcValues => 4096,
        other => other.max(),
    }
}

/// The workload that options and properties change.
fn base(args: &BenchArgs) -> Result<Workload, String> {
    if let Some(name) = &args.workload {
        let known = || WORKLOADS.iter().map(|workload| workload.name).collect::<Vec<_>>().join(", ");
        return workload(name)
            .cloned()
            .ok_or_else(|| format!("no workload is called '{name}'; there is: {}", known()));
    }
    Ok(Workload {
        name: "mix",
        about: "as the options say",
        source: "the command line",
        mix: [0.95, 0.05, 0.0, 0.0, 0.0],
        distribution: Distribution::Uniform,
        key_bytes: Sizes::Fixed(16),
        value_bytes: Sizes::Fixed(32),
    })
}

fn share_of(action: Action) -> Mix {
    ACTIONS.map(|other| if other == action { 1.0 } else { 0.0 })
}

/// A distribution by name.
pub fn distribution(name: &str) -> Result<Distribution, String> {
    Distribution::named(name)
        .ok_or_else(|| format!("no distribution is called '{name}'; there is: {}", DISTRIBUTIONS.join(", ")))
}

/// `get=95,set=5`.
fn parse_mix(text: &str) -> Result<Mix, String> {
    let wrong = |part: &str| {
        format!("'{part}' is no share of a mix; write get=95,set=5 (get, set, insert, scan, rmw)")
    };
    let mut mix = [0.0; 5];
    for part in text.split(',') {
        let (name, share) = part.split_once('=').ok_or_else(|| wrong(part))?;
        let place = match name {
            "get" | "read" => 0,
            "set" | "put" | "update" => 1,
            "insert" => 2,
            "scan" => 3,
            "rmw" => 4,
            _ => return Err(wrong(part)),
        };
        mix[place] += share.parse::<f64>().map_err(|_| wrong(part))?;
    }
    Ok(mix)
}

/// `32`, `10-500`, or `etc`.
fn parse_sizes(text: &str, etc: Sizes) -> Result<Sizes, String> {
    let wrong = || format!("'{text}' is no length; write 32, 10-500 or etc");
    if text == "etc" {
        return Ok(etc);
    }
    match text.split_once('-') {
        None => text.parse().map(Sizes::Fixed).map_err(|_| wrong()),
        Some((low, high)) => match (low.parse(), high.parse()) {
            (Ok(low), Ok(high)) if low <= high => Ok(Sizes::Uniform(low, high)),
            _ => Err(wrong()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: BenchArgs,
    }

    fn plan(line: &str) -> Result<Plan, String> {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        Plan::new(&Line::try_parse_from(words).map_err(|error| error.to_string())?.args)
    }

    #[test]
    fn options_come_before_properties_and_these_before_the_workload() {
        let plan = plan("-w a -p recordcount=500 -p readproportion=0.9 -p target=100 --keys 700").unwrap();
        assert_eq!((plan.records, plan.workload.mix), (700, [0.9, 0.5, 0.0, 0.0, 0.0]));
        assert_eq!(plan.rates, [100.0]);
        assert_eq!(plan.workload.distribution, Distribution::Zipfian(0.99));
        let plan = super::tests::plan("--mix get=9,set=1 --distribution latest --theta 0.5").unwrap();
        assert_eq!(plan.workload.mix, [9.0, 1.0, 0.0, 0.0, 0.0]);
        assert_eq!(plan.workload.distribution, Distribution::Latest(0.5));
    }

    #[test]
    fn lengths_are_numbers_ranges_or_etc() {
        assert_eq!(parse_sizes("32", Sizes::EtcValues), Ok(Sizes::Fixed(32)));
        assert_eq!(parse_sizes("1-9", Sizes::EtcValues), Ok(Sizes::Uniform(1, 9)));
        assert_eq!(parse_sizes("etc", Sizes::EtcValues), Ok(Sizes::EtcValues));
        assert!(parse_sizes("9-1", Sizes::EtcValues).is_err());
    }

    #[test]
    fn what_cannot_be_is_said_in_a_line() {
        for (line, wanted) in [
            ("-w e", "cannot scan"),
            ("-w z", "there is: a, b"),
            ("--mix get", "get=95,set=5"),
            ("--mix get=0", "not all 0"),
            ("--mix get=-1,set=3", "0 or more"),
            ("--keys 100000 --key-bytes 8", "--key-bytes 11"),
            ("--threads 51", "--connections"),
            ("--rate 0", "--rate"),
            ("--theta 0.5", "zipfian"),
            ("--depth 0", "--depth"),
            ("--connections 10000 --depth 128 --value-bytes 1048576", "at once"),
            ("--protocol memcached --wait each", "RESP"),
            ("--protocol memcached --table t", "RESP"),
            ("-p nothing=1", "nothing"),
            ("--seconds 0", "--seconds"),
        ] {
            let error = plan(line).unwrap_err();
            assert!(error.contains(wanted) && !error.trim().contains('\n'), "{line}: {error}");
        }
    }

    #[test]
    fn keys_have_room_for_their_number_also_where_lengths_are_drawn() {
        let plan = plan("-w etc --keys 1000000000").unwrap();
        let short = (0..100_000).filter(|record| plan.workload.key_bytes.of(*record) < 14);
        let short: Vec<u64> = short.collect();
        assert!(!short.is_empty());
        assert!(short.into_iter().all(|record| plan.key(record).bytes == 15));
    }

    #[test]
    fn a_load_writes_every_record_once() {
        let load = plan("-w b --keys 1000 --value-bytes 100000 --rate 5 --wait each").unwrap().load();
        assert_eq!(load.amount, Amount::Requests(1000));
        assert_eq!((load.depth, load.is_open(), load.waits), (10, false, Waits::None));
        assert_eq!(load.workload.mix, [0.0, 1.0, 0.0, 0.0, 0.0]);
    }
}

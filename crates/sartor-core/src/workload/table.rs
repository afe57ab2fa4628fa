//! The workloads by name.

use super::keys::{Distribution, THETA};
use super::sizes::Sizes;
use super::{Mix, Workload};

/// YCSB's record: 10 fields of 100 bytes.
const YCSB_VALUE: Sizes = Sizes::Fixed(1000);
/// "user" and up to 20 digits; ours has so many.
const YCSB_KEY: Sizes = Sizes::Fixed(23);
const YCSB: &str = "Cooper et al., SoCC 2010, table 2, and the workload files of YCSB 0.17";
/// Pairs of the BespoKV papers.
const HPC_KEY: Sizes = Sizes::Fixed(16);
const HPC_VALUE: Sizes = Sizes::Fixed(32);

const fn ycsb(name: &'static str, about: &'static str, mix: Mix, distribution: Distribution) -> Workload {
    Workload { name, about, source: YCSB, mix, distribution, key_bytes: YCSB_KEY, value_bytes: YCSB_VALUE }
}

const fn hpc(
    name: &'static str,
    about: &'static str,
    source: &'static str,
    mix: Mix,
    distribution: Distribution,
) -> Workload {
    Workload { name, about, source, mix, distribution, key_bytes: HPC_KEY, value_bytes: HPC_VALUE }
}

/// Shares of: read, update, insert, scan, read-modify-write.
pub const WORKLOADS: &[Workload] = &[
    ycsb("a", "session store: half updates", [0.5, 0.5, 0.0, 0.0, 0.0], Distribution::Zipfian(THETA)),
    ycsb("b", "photo tags: few updates", [0.95, 0.05, 0.0, 0.0, 0.0], Distribution::Zipfian(THETA)),
    ycsb("c", "user profiles: only reads", [1.0, 0.0, 0.0, 0.0, 0.0], Distribution::Zipfian(THETA)),
    ycsb(
        "d",
        "status updates: the latest are read",
        [0.95, 0.0, 0.05, 0.0, 0.0],
        Distribution::Latest(THETA),
    ),
    ycsb("e", "threads: short scans", [0.0, 0.0, 0.05, 0.95, 0.0], Distribution::Zipfian(THETA)),
    ycsb("f", "user records: read, then written", [0.5, 0.0, 0.0, 0.0, 0.5], Distribution::Zipfian(THETA)),
    hpc(
        "job-launch",
        "messages of an MPI job launch",
        "BespoKV, TPDS 2020, section 9.2: Get:Put 50:50",
        [0.5, 0.5, 0.0, 0.0, 0.0],
        Distribution::Uniform,
    ),
    hpc(
        "io-forwarding",
        "metadata of a file system that forwards I/O",
        "BespoKV, TPDS 2020, section 9.2: Get:Put 62:38",
        [0.62, 0.38, 0.0, 0.0, 0.0],
        Distribution::Uniform,
    ),
    hpc(
        "monitoring",
        "statistics of servers, read while fresh",
        "BespoKV, SC'18, section VI-A: \"dominated by Put\"; the 95:5 is ours",
        [0.05, 0.0, 0.95, 0.0, 0.0],
        Distribution::Latest(THETA),
    ),
    Workload {
        name: "etc",
        about: "Facebook's general cache pool",
        source: "Atikoglu et al., SIGMETRICS 2012: GET:SET 30:1, sizes of section 5, half of the keys in 1 % of the requests (4.2.1)",
        mix: [30.0, 1.0, 0.0, 0.0, 0.0],
        // With a million keys the rarer half gets 0.9 % of the requests.
        distribution: Distribution::Zipfian(1.2),
        key_bytes: Sizes::EtcKeys,
        value_bytes: Sizes::EtcValues,
    },
];

/// The workload of that name.
pub fn workload(name: &str) -> Option<&'static Workload> {
    WORKLOADS.iter().find(|workload| workload.name == name)
}

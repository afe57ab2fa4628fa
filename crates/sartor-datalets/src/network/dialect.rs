//! What differs between stores that speak as Redis does.

/// How one of them is spoken to.
pub(super) struct Dialect {
    /// `INFO` tells who it is, and `DBSIZE` the number of its keys.
    pub(super) tells: bool,
    /// It removes keys at a deadline.
    pub(super) expires: bool,
    /// It is walked in key order, by `KEYS after last count`; otherwise by `SCAN`, in none.
    pub(super) ordered: bool,
    /// The shortest key that it keeps.
    pub(super) key_bytes_min: usize,
    /// The longest one.
    pub(super) key_bytes_max: usize,
}

/// Redis, and those that are like it.
pub(super) static REDIS: Dialect =
    Dialect { tells: true, expires: true, ordered: false, key_bytes_min: 0, key_bytes_max: 512 << 20 };

/// SSDB: its `INFO` says nothing of the process, and its `DBSIZE` is an estimate of bytes. It acknowledges an empty key, and
/// does not keep it. Its own `SCAN` is answered with nothing but `OK` by older versions, its `KEYS` by all.
pub(super) static SSDB: Dialect = Dialect {
    tells: false,
    expires: false,
    ordered: true,
    key_bytes_min: 1,
    key_bytes_max: super::SSDB_KEY_BYTES_MAX,
};

/// What to do about a refusal, by its first word.
const ADVICE: &[(&str, &str)] = &[
    ("OOM", "it has no memory left; give it more (maxmemory)"),
    ("READONLY", "it is a replica; name the server that takes writes"),
    ("LOADING", "it is still loading its data; try again when it has"),
    ("NOAUTH", "it wants a password, as in redis://:password@host"),
    ("WRONGPASS", "user or password are wrong"),
    ("NOPERM", "that user lacks a right"),
    ("WRONGTYPE", "somebody else put it there; only strings can be kept"),
    ("MISCONF", "it cannot save to its disk; see its log"),
    ("MOVED", "it is part of a Redis Cluster; name one that is not"),
    ("CLUSTERDOWN", "it is part of a Redis Cluster; name one that is not"),
    ("BUSY", "a script keeps it busy"),
];

/// A refusal, and what to do about it.
pub(super) fn explain(refusal: &str) -> String {
    let word = refusal.split(' ').next().unwrap_or_default();
    match ADVICE.iter().find(|(begin, _)| *begin == word) {
        Some((_, advice)) => format!("it answered '{refusal}': {advice}"),
        None => format!("it answered '{refusal}'"),
    }
}

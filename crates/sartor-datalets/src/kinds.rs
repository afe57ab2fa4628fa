//! Kinds of datalets as users write them: `hash`, `redis://127.0.0.1:6379`, or several of them, which the nodes have in turn.

use crate::{Engine, engine, engines};
use sartor_core::coordinator::tables::Parts;
use sartor_core::record::{Bounds, Layout, Meta};
use sartor_core::routing::map::Partition;
use std::sync::OnceLock;

/// The engine of a kind as users write it, and its address.
pub fn find(kind: &str) -> Result<(&'static Engine, String), String> {
    let (name, address) = match kind.split_once("://") {
        Some((name, address)) => (name, Some(address)),
        None => (kind, None),
    };
    let Some(engine) = engine(name) else {
        return Err(format!("unknown datalet '{name}'; there is: {}", kinds()));
    };
    match (engine.remote, address) {
        (false, None) => Ok((engine, String::new())),
        (false, Some(_)) => Err(format!("{name} is part of Sartor and has no address: write {name}")),
        (true, None) if engine.own.is_some() => Ok((engine.own.unwrap_or(engine), String::new())),
        (true, None) => Err(format!("{name} needs an address, as in {name}://127.0.0.1")),
        (true, Some(address)) => (engine.check)(address).map(|()| (engine, address.to_owned())),
    }
}

/// A kind as it may be shown: without a password.
pub fn shown(kind: &str) -> String {
    match (kind.split_once("://"), kind.rsplit_once('@')) {
        (Some((name, _)), Some((_, host))) => format!("{name}://…@{host}"),
        _ => kind.to_owned(),
    }
}

/// The names of durable engines, as of when this is first asked.
pub fn durable() -> &'static [&'static str] {
    static NAMES: OnceLock<Vec<&'static str>> = OnceLock::new();
    NAMES.get_or_init(|| engines().filter(|engine| engine.durable).map(|engine| engine.name).collect())
}

/// Whether all stores of this kind can scan in key order.
pub fn is_ordered(kind: &str) -> bool {
    find(kind).is_ok_and(|(engine, _)| engine.ordered)
}

/// Which records all stores of these kinds take.
pub fn bounds(kinds: &str) -> Bounds {
    let of = |(engine, _): (&Engine, String)| {
        let (built_in, envelope) = (Engine::BUILT_IN, engine.layout == Layout::Envelope);
        let meta = if envelope { Meta::BYTES_MAX } else { 0 };
        // Others were tried so far, and may take more.
        let less = |bound: usize, usual: usize| if bound < usual { bound } else { usize::MAX };
        Bounds {
            key_bytes_min: engine.key_bytes_min,
            key_bytes_max: less(engine.key_bytes_max, built_in.key_bytes_max),
            value_bytes_max: less(engine.value_bytes_max, built_in.value_bytes_max).saturating_sub(meta),
        }
    };
    let all = kinds.split(',').filter_map(|kind| find(kind).ok()).map(of);
    all.fold(Bounds::default(), Bounds::and)
}

/// All kinds as users write them, in a line.
pub fn kinds() -> String {
    let address = |engine: &Engine| match (engine.remote, engine.own) {
        (false, _) => "",
        (true, None) => "://HOST",
        (true, Some(_)) => "[://HOST]",
    };
    let kinds = engines().map(|engine| [engine.name, address(engine)].concat());
    kinds.collect::<Vec<_>>().join(", ")
}

/// A table that somebody wants.
pub struct Wanted<'a> {
    /// Its datalet kinds.
    pub datalet: &'a str,
    /// Nodes that there are.
    pub nodes: u16,
    /// Copies of each shard.
    pub copies: u8,
    /// Its shards.
    pub shards: u16,
    /// Whether each has a range of the keys in their order.
    pub ranges: bool,
}

impl Wanted<'_> {
    /// Whether some of its stores are somewhere already.
    pub fn is_remote(&self) -> bool {
        self.datalet.split(',').any(|kind| find(kind).is_ok_and(|(engine, _)| engine.remote))
    }

    /// Whether some of its stores need a folder.
    pub fn needs_folder(&self) -> bool {
        let needs = |engine: &Engine| engine.durable || engine.works_in_folder;
        self.datalet.split(',').any(|kind| find(kind).is_ok_and(|(engine, _)| needs(engine)))
    }

    /// Says that none of its datalets keeps keys in order, and what would do.
    fn check_ordered(&self) -> Result<(), String> {
        let has_order = |kind: &&str| find(kind).is_ok_and(|(engine, _)| engine.ordered);
        let kinds: Vec<&str> = self.datalet.split(',').collect();
        let without =
            (0..usize::from(self.nodes)).filter(|node| !has_order(&kinds[node % kinds.len()])).count();
        // Wherever the copies of a shard are, one of them must be ordered.
        if without < usize::from(self.copies) {
            return Ok(());
        }
        if kinds.iter().any(has_order) {
            return Err(format!(
                "{without} nodes have a datalet that keeps no order, so that all {} copies of a range may be at such nodes; more copies would do, or ordered datalets only",
                self.copies
            ));
        }
        let ordered: Vec<&str> =
            engines().filter(|engine| engine.ordered).map(|engine| engine.name).collect();
        Err(format!(
            "{} does not keep keys in order, as ranges want it; these do: {}",
            self.datalet,
            ordered.join(", ")
        ))
    }

    /// The same, and whether this machine has what they need.
    pub fn check_here(&self) -> Result<(), String> {
        self.check()?;
        let mut kinds = self.datalet.split(',').map(find);
        kinds.try_for_each(|kind| kind.and_then(|(engine, address)| (engine.check)(&address)))
    }

    /// Says what its datalets cannot do that it needs, and what would do.
    pub fn check(&self) -> Result<(), String> {
        let kinds: Vec<&str> = self.datalet.split(',').collect();
        for (place, kind) in kinds.iter().enumerate() {
            let (engine, address) = find(kind)?;
            if !engine.walks && self.copies > 1 {
                return Err(format!(
                    "{} cannot be walked, so no copy can be filled from it: use --copies 1, or another datalet",
                    engine.name
                ));
            }
            let again = |other: &&str| find(other).is_ok_and(|(_, other)| other == address);
            if engine.remote && kinds[..place].iter().any(again) {
                return Err(format!("{kind} is named twice; each node needs a store of its own"));
            }
        }
        if self.ranges {
            self.check_ordered()?;
        }
        if self.is_remote() && kinds.len() < usize::from(self.nodes) {
            return Err(format!(
                "{} addresses are too few for {} nodes: name one for each, or use --nodes {} --standbys 0 and as many --copies at most",
                kinds.len(),
                self.nodes,
                kinds.len()
            ));
        }
        if self.is_remote() && self.shards > 1 {
            return Err("a running store holds one shard as a whole: use --shards 1".into());
        }
        Ok(())
    }
}

/// Whether datalets of these kinds can be such a table, as far as they are known here.
pub fn can(kinds: &str, nodes: u16, copies: u8, parts: &Parts) -> bool {
    let (shards, ranges) = (parts.count() as u16, parts.partition() == Partition::Range);
    let wanted = Wanted { datalet: kinds, nodes, copies, shards, ranges };
    let known = |kind: &str| engine(kind.split_once("://").map_or(kind, |(name, _)| name)).is_some();
    !kinds.split(',').all(known) || wanted.check().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sartor_core::ids::NodeId;
    use sartor_core::routing::map::kind_of;

    #[test]
    fn what_cannot_be_is_known_and_what_is_not_known_may_be() {
        let bounds = |count: u8| Parts::Range((1..=count).map(|key| vec![key].into()).collect());
        assert!(can("tree", 4, 3, &bounds(2)) && can("hash,tree", 4, 3, &bounds(0)));
        assert!(!can("hash,tree", 4, 2, &bounds(0)), "both copies may be at the two nodes without order");
        assert!(!can("hash", 4, 3, &bounds(0)) && can("hash", 4, 3, &Parts::Hash(9)));
        assert!(!can("memcached://127.0.0.1:1,memcached://127.0.0.1:2", 2, 2, &Parts::Hash(1)));
        assert!(can("hash,somebodys", 4, 3, &bounds(2)), "whoever has it knows");
    }

    fn check(datalet: &str, nodes: u16, copies: u8, shards: u16) -> Result<(), String> {
        Wanted { datalet, nodes, copies, shards, ranges: false }.check()
    }

    #[test]
    fn kinds_take_turns() {
        let of = |node| kind_of("hash,tree,log", NodeId(node));
        assert_eq!((of(0), of(1), of(2), of(3)), ("hash", "tree", "log", "hash"));
        assert_eq!(kind_of("hash", NodeId(7)), "hash");
        assert_eq!(
            (shown("redis://u:secret@h:1/2"), shown("tree")),
            ("redis://…@h:1/2".into(), "tree".into())
        );
    }

    #[test]
    fn the_smallest_bounds_of_all_kinds_count() {
        assert_eq!(
            bounds("hash,redis://127.0.0.1"),
            Bounds { value_bytes_max: bounds("hash").value_bytes_max, ..Bounds::default() }
        );
        let least = bounds("memcached://127.0.0.1,ssdb://127.0.0.1,hash");
        assert_eq!((least.key_bytes_min, least.key_bytes_max), (1, 186));
        assert!(least.refuse(b"k", 1 << 20).is_some() && least.refuse(b"k", 1 << 19).is_none());
        assert!(least.refuse(b"", 1).is_some() && least.refuse(&[b'k'; 187], 1).is_some());
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_would_do() {
        assert_eq!(check("hash,tree", 4, 3, 3), Ok(()));
        assert_eq!(check("redis://127.0.0.1:1,redis://127.0.0.1:2", 2, 2, 1), Ok(()));
        for (datalet, nodes, copies, shards, why) in [
            ("nothing", 1, 1, 1, "there is: hash"),
            ("redis://127.0.0.1:1", 2, 2, 1, "too few"),
            ("redis://127.0.0.1:1,redis://127.0.0.1:1", 2, 2, 1, "twice"),
            ("redis://127.0.0.1:1", 1, 1, 3, "--shards 1"),
            ("memcached://127.0.0.1:1,memcached://127.0.0.1:2", 2, 2, 1, "--copies 1"),
        ] {
            let error = check(datalet, nodes, copies, shards).unwrap_err();
            assert!(error.contains(why), "{datalet}: {error}");
        }
    }
}

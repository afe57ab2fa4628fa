//! The cluster map as bytes: on the wire and in the coordinator's file.

use crate::ids::{Epoch, Incarnation, NodeId, Position, ShardId};
use crate::routing::map::{ClusterMap, Joining, Member, NodeEntry, PartOf, Partition, Shard, Table};
use crate::routing::slot::SLOTS;
use crate::wire::codec::{Malformed, Reader, Wire, put_bytes, put_list, put_option, put_varint};
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;

/// Version 1 knew no joining replicas, version 2 no switches, version 3 no other datalets, version 4 no durable ones,
/// version 5 no ranges and no tables that come and go, version 6 no shards that are divided.
const VERSION: u8 = 7;

impl Wire for ClusterMap {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        put_varint(out, self.cluster);
        put_varint(out, self.epoch.0);
        put_varint(out, self.seed);
        out.push(self.workers);
        put_list(out, &self.nodes, |out, node| {
            put_varint(out, u64::from(node.id.0));
            put_bytes(out, node.client_addr.as_bytes());
            put_bytes(out, node.peer_addr.as_bytes());
        });
        put_list(out, &self.tables, |out, table| {
            put_varint(out, u64::from(table.id));
            put_bytes(out, table.name.as_bytes());
            put_bytes(out, table.mode.as_bytes());
            put_bytes(out, table.datalet.as_bytes());
            out.push(table.copies);
            table.switched.encode(out);
            put_bytes(out, table.datalet_before.as_bytes());
            out.push(u8::from(table.partition == Partition::Range));
            table.created.encode(out);
            table.divided.encode(out);
        });
        put_list(out, &self.shards, |out, shard| {
            put_varint(out, u64::from(shard.id.0));
            put_varint(out, u64::from(shard.table));
            put_varint(out, shard.epoch.0);
            put_list(out, &shard.slots, |out, (first, last)| {
                put_varint(out, u64::from(*first));
                put_varint(out, u64::from(*last));
            });
            put_list(out, &shard.members, |out, member| member.encode(out));
            shard.born.encode(out);
            put_option(out, shard.joining.as_ref(), |out, joining| {
                joining.member.encode(out);
                put_varint(out, joining.since.0);
                joining.held.encode(out);
            });
            put_list(out, &shard.outdated, |out, member| member.encode(out));
            shard.start.encode(out);
            put_bytes(out, &shard.lower);
            put_option(out, shard.part_of.as_ref(), |out, part| {
                put_varint(out, u64::from(part.whole.0));
                out.push(u8::from(part.closed));
            });
            out.push(u8::from(shard.inherited));
        });
    }

    fn decode(from: &mut Reader) -> Result<ClusterMap, Malformed> {
        let version = from.byte()?;
        if !(1..=VERSION).contains(&version) {
            return Err(Malformed("cluster map of another version"));
        }
        let map = ClusterMap {
            cluster: from.varint()?,
            epoch: Epoch(from.varint()?),
            seed: from.varint()?,
            workers: from.byte()?,
            nodes: from.list(|from| {
                Ok(NodeEntry {
                    id: NodeId(from.number()?),
                    client_addr: from.text()?,
                    peer_addr: from.text()?,
                })
            })?,
            tables: from.list(|from| table(from, version))?,
            shards: from.list(|from| shard(from, version))?,
        };
        if is_consistent(&map) { Ok(map) } else { Err(Malformed("cluster map that contradicts itself")) }
    }
}

fn table(from: &mut Reader, version: u8) -> Result<Table, Malformed> {
    let mut table = Table {
        id: from.number()?,
        name: from.text()?,
        mode: from.text()?,
        datalet: from.text()?,
        copies: from.byte()?,
        created: Epoch(1),
        switched: if version < 3 { Epoch(1) } else { Epoch::decode(from)? },
        datalet_before: if version < 4 { String::new() } else { from.text()? },
        partition: Partition::Hash,
        divided: Epoch(0),
    };
    if version >= 6 {
        table.partition = if from.byte()? == 0 { Partition::Hash } else { Partition::Range };
        table.created = Epoch::decode(from)?;
    }
    if version >= 7 {
        table.divided = Epoch::decode(from)?;
    }
    Ok(table)
}

fn shard(from: &mut Reader, version: u8) -> Result<Shard, Malformed> {
    let joining = |from: &mut Reader| {
        let (member, since) = (Member::decode(from)?, Epoch(from.varint()?));
        let held = if version < 6 { Position::ZERO } else { Position::decode(from)? };
        Ok(Joining { member, since, held })
    };
    let mut shard = Shard {
        id: ShardId(from.number()?),
        table: from.number()?,
        epoch: Epoch(from.varint()?),
        slots: from.list(|from| Ok((from.number()?, from.number()?)))?,
        members: from.list(Member::decode)?,
        born: if version == 1 { Epoch(1) } else { Epoch::decode(from)? },
        joining: if version == 1 { None } else { from.option(joining)? },
        outdated: if version < 4 { Vec::new() } else { from.list(Member::decode)? },
        start: Position::ZERO,
        lower: Bytes::new(),
        part_of: None,
        inherited: false,
    };
    shard.start = if version < 5 { shard.beginning() } else { Position::decode(from)? };
    if version >= 6 {
        shard.lower = from.bytes()?;
    }
    if version >= 7 {
        shard.part_of =
            from.option(|from| Ok(PartOf { whole: ShardId(from.number()?), closed: from.byte()? != 0 }))?;
        shard.inherited = from.byte()? != 0;
    }
    Ok(shard)
}

impl Wire for Member {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.node.0));
        put_varint(out, self.incarnation.0);
    }

    fn decode(from: &mut Reader) -> Result<Member, Malformed> {
        Ok(Member { node: NodeId(from.number()?), incarnation: Incarnation(from.varint()?) })
    }
}

/// Whether indexes are places and everything named is there: nobody who uses a map checks again.
fn is_consistent(map: &ClusterMap) -> bool {
    let shard_is = |(place, shard): (usize, &Shard)| {
        usize::from(shard.id.0) == place
            && (shard.is_vacant() || map.table_of(shard).is_some())
            && shard.part_of.is_none_or(|part| {
                let whole = map.shard(part.whole);
                whole.is_some_and(|whole| whole.table == shard.table && !whole.members.is_empty())
                    && shard.members.is_empty()
            })
            && shard.members.iter().all(|member| usize::from(member.node.0) < map.nodes.len())
            && shard.joining.is_none_or(|joining| usize::from(joining.member.node.0) < map.nodes.len())
            && shard.slots.iter().all(|(first, last)| first <= last && *last < SLOTS)
    };
    map.nodes.iter().enumerate().all(|(place, node)| usize::from(node.id.0) == place)
        && map.tables.first().is_none_or(|first| first.id == 0)
        && map.tables.is_sorted_by(|one, other| one.id < other.id)
        && map.shards.iter().enumerate().all(shard_is)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn a_map_comes_back_and_nonsense_does_not() {
        let member = Member { node: NodeId(0), incarnation: Incarnation(7) };
        let shard = Shard { slots: vec![(0, SLOTS - 1)], members: vec![member], ..Shard::default() };
        let table = |id| Table {
            id,
            mode: "ms+ec".into(),
            copies: 1,
            partition: Partition::Range,
            ..Table::default()
        };
        let good = ClusterMap {
            cluster: 5,
            epoch: Epoch(3),
            nodes: vec![NodeEntry { client_addr: "a:1".into(), ..NodeEntry::default() }],
            tables: [0, 5].map(table).into(),
            shards: vec![
                shard.clone(),
                Shard { id: ShardId(1), table: 3, members: vec![], ..shard.clone() },
                Shard { id: ShardId(2), table: 5, lower: Bytes::from_static(b"m"), ..shard },
                Shard {
                    id: ShardId(3),
                    table: 5,
                    lower: Bytes::from_static(b"t"),
                    part_of: Some(PartOf { whole: ShardId(2), closed: true }),
                    ..Shard::default()
                },
            ],
            ..ClusterMap::default()
        };
        assert_eq!(ClusterMap::from_bytes(good.to_bytes()), Ok(good.clone()));
        let spoil: [fn(&mut ClusterMap); 10] = [
            |map| map.shards[0].id = ShardId(7),
            |map| map.shards[0].slots = vec![(0, SLOTS)],
            |map| map.shards[0].slots = vec![(5, 4)],
            |map| map.shards[0].table = 1,
            |map| map.shards[2].members.clear(),
            |map| map.shards[3].part_of = Some(PartOf { whole: ShardId(1), closed: true }),
            |map| map.shards[3].members = map.shards[0].members.clone(),
            |map| map.nodes.clear(),
            |map| map.tables.reverse(),
            |map| drop(map.tables.pop()),
        ];
        for spoil in spoil {
            let mut bad = good.clone();
            spoil(&mut bad);
            assert!(ClusterMap::from_bytes(bad.to_bytes()).is_err());
        }
    }
}

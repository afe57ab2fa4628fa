//! The cluster map as bytes: on the wire and in the coordinator's file.

use crate::ids::{Epoch, Incarnation, NodeId, ShardId};
use crate::routing::map::{ClusterMap, Joining, Member, NodeEntry, Shard, Table};
use crate::routing::slot::SLOTS;
use crate::wire::codec::{Malformed, Reader, Wire, put_bytes, put_list, put_option, put_varint};
use alloc::string::String;
use alloc::vec::Vec;

/// Version 1 knew no joining replicas, version 2 no switches, version 3 no other datalets.
const VERSION: u8 = 4;

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
            });
            put_list(out, &shard.outdated, |out, member| member.encode(out));
        });
    }

    fn decode(from: &mut Reader) -> Result<ClusterMap, Malformed> {
        let version = from.byte()?;
        if !(1..=VERSION).contains(&version) {
            return Err(Malformed("cluster map of another version"));
        }
        let joining =
            |from: &mut Reader| Ok(Joining { member: Member::decode(from)?, since: Epoch(from.varint()?) });
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
            tables: from.list(|from| {
                Ok(Table {
                    id: from.number()?,
                    name: from.text()?,
                    mode: from.text()?,
                    datalet: from.text()?,
                    copies: from.byte()?,
                    switched: if version < 3 { Epoch(1) } else { Epoch::decode(from)? },
                    datalet_before: if version < 4 { String::new() } else { from.text()? },
                })
            })?,
            shards: from.list(|from| {
                Ok(Shard {
                    id: ShardId(from.number()?),
                    table: from.number()?,
                    epoch: Epoch(from.varint()?),
                    slots: from.list(|from| Ok((from.number()?, from.number()?)))?,
                    members: from.list(Member::decode)?,
                    born: if version == 1 { Epoch(1) } else { Epoch::decode(from)? },
                    joining: if version == 1 { None } else { from.option(joining)? },
                    outdated: if version < 4 { Vec::new() } else { from.list(Member::decode)? },
                })
            })?,
        };
        if is_consistent(&map) { Ok(map) } else { Err(Malformed("cluster map that contradicts itself")) }
    }
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
            && usize::from(shard.table) < map.tables.len()
            && !shard.members.is_empty()
            && shard.members.iter().all(|member| usize::from(member.node.0) < map.nodes.len())
            && shard.joining.is_none_or(|joining| usize::from(joining.member.node.0) < map.nodes.len())
            && shard.slots.iter().all(|(first, last)| first <= last && *last < SLOTS)
    };
    map.nodes.iter().enumerate().all(|(place, node)| usize::from(node.id.0) == place)
        && map.tables.iter().enumerate().all(|(place, table)| usize::from(table.id) == place)
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
        let good = ClusterMap {
            cluster: 5,
            epoch: Epoch(3),
            nodes: vec![NodeEntry { client_addr: "a:1".into(), ..NodeEntry::default() }],
            tables: vec![Table { mode: "ms+ec".into(), copies: 1, ..Table::default() }],
            shards: vec![shard],
            ..ClusterMap::default()
        };
        assert_eq!(ClusterMap::from_bytes(good.to_bytes()), Ok(good.clone()));
        let spoil: [fn(&mut ClusterMap); 6] = [
            |map| map.shards[0].id = ShardId(7),
            |map| map.shards[0].slots = vec![(0, SLOTS)],
            |map| map.shards[0].slots = vec![(5, 4)],
            |map| map.shards[0].table = 1,
            |map| map.shards[0].members.clear(),
            |map| map.nodes.clear(),
        ];
        for spoil in spoil {
            let mut bad = good.clone();
            spoil(&mut bad);
            assert!(ClusterMap::from_bytes(bad.to_bytes()).is_err());
        }
    }
}

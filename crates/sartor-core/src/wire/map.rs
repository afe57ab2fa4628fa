//! The cluster map as bytes: on the wire and in the coordinator's file.

use crate::ids::{Epoch, Incarnation, NodeId, ShardId};
use crate::routing::map::{ClusterMap, Member, NodeEntry, Shard, Table};
use crate::wire::codec::{Malformed, Reader, Wire, put_bytes, put_list, put_varint};
use alloc::vec::Vec;

const VERSION: u8 = 1;

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
        });
        put_list(out, &self.shards, |out, shard| {
            put_varint(out, u64::from(shard.id.0));
            put_varint(out, u64::from(shard.table));
            put_varint(out, shard.epoch.0);
            put_list(out, &shard.slots, |out, (first, last)| {
                put_varint(out, u64::from(*first));
                put_varint(out, u64::from(*last));
            });
            put_list(out, &shard.members, |out, member| {
                put_varint(out, u64::from(member.node.0));
                put_varint(out, member.incarnation.0);
            });
        });
    }

    fn decode(from: &mut Reader) -> Result<ClusterMap, Malformed> {
        if from.byte()? != VERSION {
            return Err(Malformed("cluster map of another version"));
        }
        Ok(ClusterMap {
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
                })
            })?,
            shards: from.list(|from| {
                Ok(Shard {
                    id: ShardId(from.number()?),
                    table: from.number()?,
                    epoch: Epoch(from.varint()?),
                    slots: from.list(|from| Ok((from.number()?, from.number()?)))?,
                    members: from.list(|from| {
                        Ok(Member { node: NodeId(from.number()?), incarnation: Incarnation(from.varint()?) })
                    })?,
                })
            })?,
        })
    }
}

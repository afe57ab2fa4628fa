//! What nodes and coordinator say to each other, as bytes.

use crate::controlet::{FillStatus, Status};
use crate::coordinator::wish::Wish;
use crate::coordinator::{Care, Heartbeat, Lag, NodeReport, NodeState, Repair, ReplicaReport, Welcome};
use crate::ids::{Epoch, Incarnation, NodeId, Position, ShardId};
use crate::keeper::Mark;
use crate::routing::map::ClusterMap;
use crate::wire::codec::{Malformed, Reader, Wire, put_bytes, put_list, put_option, put_varint};
use alloc::vec::Vec;

impl Wire for Heartbeat {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.node.0));
        put_varint(out, self.incarnation.0);
        put_varint(out, u64::from(self.pid));
        put_varint(out, self.map_epoch.0);
        put_bytes(out, self.client_addr.as_bytes());
        put_bytes(out, self.peer_addr.as_bytes());
        put_list(out, &self.replicas, |out, report| report.encode(out));
        put_list(out, &self.reached, |out, node| put_varint(out, u64::from(node.0)));
        put_option(out, self.wish.as_ref(), |out, wish| wish.encode(out));
        put_list(out, &self.held, |out, mark| mark.encode(out));
        put_list(out, &self.unreadable, |out, shard| put_varint(out, u64::from(shard.0)));
    }

    fn decode(from: &mut Reader) -> Result<Heartbeat, Malformed> {
        Ok(Heartbeat {
            node: NodeId(from.number()?),
            incarnation: Incarnation(from.varint()?),
            pid: from.number()?,
            map_epoch: Epoch(from.varint()?),
            client_addr: from.text()?,
            peer_addr: from.text()?,
            replicas: from.list(ReplicaReport::decode)?,
            // Heartbeats of the version before end here.
            reached: if from.is_empty() { Vec::new() } else { from.list(|from| Ok(NodeId(from.number()?)))? },
            wish: if from.is_empty() { None } else { from.option(Wish::decode)? },
            held: if from.is_empty() { Vec::new() } else { from.list(Mark::decode)? },
            unreadable: if from.is_empty() {
                Vec::new()
            } else {
                from.list(|from| Ok(ShardId(from.number()?)))?
            },
        })
    }
}

impl Wire for ReplicaReport {
    fn encode(&self, out: &mut Vec<u8>) {
        let Status {
            position,
            lost,
            gone,
            durable,
            differs,
            proven,
            cut,
            fill,
            fill_failed,
            deaf,
            lags,
            sealed: _,
        } = &self.status;
        put_varint(out, u64::from(self.shard.0));
        self.epoch.encode(out);
        position.encode(out);
        let (far, late) = (!deaf.is_empty(), !lags.is_empty());
        let flags = [*lost, *proven, *fill_failed, far, late, *gone, *differs, *durable];
        out.push(flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag)));
        put_list(out, cut, |out, node| put_varint(out, u64::from(node.0)));
        put_option(out, fill.as_ref(), |out, fill| {
            fill.since.encode(out);
            put_varint(out, fill.done);
            put_varint(out, fill.total);
            out.push(u8::from(fill.ready));
        });
        if !deaf.is_empty() {
            put_list(out, deaf, |out, node| put_varint(out, u64::from(node.0)));
        }
        if !lags.is_empty() {
            put_list(out, lags, |out, (node, lag)| {
                put_varint(out, u64::from(node.0));
                put_varint(out, *lag);
            });
        }
    }

    fn decode(from: &mut Reader) -> Result<ReplicaReport, Malformed> {
        let (shard, epoch) = (ShardId(from.number()?), Epoch::decode(from)?);
        let (position, flags) = (Position::decode(from)?, from.byte()?);
        let cut = from.list(|from| Ok(NodeId(from.number()?)))?;
        let fill = from.option(|from| {
            let (since, done, total) = (Epoch::decode(from)?, from.varint()?, from.varint()?);
            Ok(FillStatus { since, done, total, ready: from.byte()? != 0 })
        })?;
        let flag = |bit: u8| flags & bit != 0;
        let deaf = if flag(8) { from.list(|from| Ok(NodeId(from.number()?)))? } else { Vec::new() };
        let lag = |from: &mut Reader| Ok((NodeId(from.number()?), from.varint()?));
        let lags = if flag(16) { from.list(lag)? } else { Vec::new() };
        let (lost, proven, fill_failed, gone) = (flag(1), flag(2), flag(4), flag(32));
        let (differs, durable) = (flag(64), flag(128));
        let sealed = false;
        let status = Status {
            position,
            lost,
            gone,
            durable,
            differs,
            sealed,
            proven,
            fill_failed,
            cut,
            fill,
            deaf,
            lags,
        };
        Ok(ReplicaReport { shard, epoch, status })
    }
}

const STATES: [NodeState; 4] = [NodeState::Up, NodeState::Down, NodeState::Joining, NodeState::Standby];

impl Wire for Welcome {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.pid));
        put_bytes(out, self.addr.as_bytes());
        put_list(out, &self.nodes, |out, node| {
            put_varint(out, u64::from(node.node.0));
            put_varint(out, u64::from(node.pid));
            put_varint(out, node.incarnation.0);
            out.push(STATES.iter().position(|state| *state == node.state).unwrap_or_default() as u8);
        });
        put_list(out, &self.care.repairs, |out, repair| {
            put_varint(out, u64::from(repair.shard.0));
            put_varint(out, u64::from(repair.node.0));
            put_varint(out, repair.done);
            put_varint(out, repair.total);
        });
        put_option(out, self.map.as_ref(), |out, map| map.encode(out));
        put_list(out, &self.care.estranged, |out, (a, b)| {
            put_varint(out, u64::from(a.0));
            put_varint(out, u64::from(b.0));
        });
        put_list(out, &self.care.lags, |out, lag| {
            put_varint(out, u64::from(lag.shard.0));
            put_varint(out, u64::from(lag.node.0));
            put_varint(out, lag.us);
        });
        put_list(out, &self.care.unproven, |out, shard| put_varint(out, u64::from(shard.0)));
        self.care.epoch.encode(out);
        put_list(out, &self.care.stuck, |out, (shard, node)| {
            put_varint(out, u64::from(shard.0));
            put_varint(out, u64::from(node.0));
        });
        self.care.known.encode(out);
    }

    fn decode(from: &mut Reader) -> Result<Welcome, Malformed> {
        let (pid, addr) = (from.number()?, from.text()?);
        let nodes = from.list(|from| {
            Ok(NodeReport {
                node: NodeId(from.number()?),
                pid: from.number()?,
                incarnation: Incarnation(from.varint()?),
                state: *STATES.get(usize::from(from.byte()?)).ok_or(Malformed("unknown node state"))?,
            })
        })?;
        let repairs = from.list(|from| {
            let (shard, node) = (ShardId(from.number()?), NodeId(from.number()?));
            Ok(Repair { shard, node, done: from.varint()?, total: from.varint()? })
        })?;
        let map = from.option(ClusterMap::decode)?;
        if from.is_empty() {
            // The version before ends here.
            let care = Care { repairs, ..Care::default() };
            return Ok(Welcome { pid, addr, nodes, map, care });
        }
        let estranged = from.list(|from| Ok((NodeId(from.number()?), NodeId(from.number()?))))?;
        let lag = |from: &mut Reader| {
            Ok(Lag { shard: ShardId(from.number()?), node: NodeId(from.number()?), us: from.varint()? })
        };
        let lags = from.list(lag)?;
        let mut care = Care { repairs, estranged, lags, ..Care::default() };
        if !from.is_empty() {
            care.unproven = from.list(|from| Ok(ShardId(from.number()?)))?;
            care.epoch = Epoch::decode(from)?;
        }
        if !from.is_empty() {
            care.stuck = from.list(|from| Ok((ShardId(from.number()?), NodeId(from.number()?))))?;
        }
        if !from.is_empty() {
            care.known = Epoch::decode(from)?;
        }
        Ok(Welcome { pid, addr, nodes, map, care })
    }
}

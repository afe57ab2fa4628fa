//! What nodes and coordinator say to each other, as bytes.

use crate::coordinator::{Heartbeat, NodeReport, NodeState, Welcome};
use crate::ids::{Epoch, Incarnation, NodeId};
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
    }

    fn decode(from: &mut Reader) -> Result<Heartbeat, Malformed> {
        Ok(Heartbeat {
            node: NodeId(from.number()?),
            incarnation: Incarnation(from.varint()?),
            pid: from.number()?,
            map_epoch: Epoch(from.varint()?),
            client_addr: from.text()?,
            peer_addr: from.text()?,
        })
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
        put_option(out, self.map.as_ref(), |out, map| map.encode(out));
    }

    fn decode(from: &mut Reader) -> Result<Welcome, Malformed> {
        Ok(Welcome {
            pid: from.number()?,
            addr: from.text()?,
            nodes: from.list(|from| {
                Ok(NodeReport {
                    node: NodeId(from.number()?),
                    pid: from.number()?,
                    incarnation: Incarnation(from.varint()?),
                    state: *STATES.get(usize::from(from.byte()?)).ok_or(Malformed("unknown node state"))?,
                })
            })?,
            map: from.option(ClusterMap::decode)?,
        })
    }
}

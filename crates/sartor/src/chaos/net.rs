//! What is between the processes, and how it is broken: by proxies on loopback, or on hosts made of network namespaces.

use super::hosts::Hosts;
use super::proxy::Proxies;
use crate::Failed;
use crate::local::{self, HTTP, RPC};
use sartor_core::coordinator::COORDINATOR;
use sartor_server::config::{CoordinatorConfig, NodeConfig};
use std::net::TcpListener;

/// The coordinator, where others are nodes.
pub const COORD: u16 = COORDINATOR.node.0;
/// What is left of a slow link.
pub const SLOW_BYTES_PER_S: u64 = 10_000;
/// Where proxies listen, as an offset to the first port.
const PROXY: u16 = 400;
const PROXY_OF_COORDINATOR: u16 = 499;

/// The net of one cluster.
pub enum Net {
    /// All on loopback; what goes from process to process passes a proxy.
    Loopback { port: u16, proxies: Proxies },
    /// A network namespace each.
    Hosts(Hosts),
}

impl Net {
    /// Makes it, and says to the coordinator's file where things are.
    pub fn open(config: &mut CoordinatorConfig, hosts: bool) -> Result<Net, Failed> {
        if hosts {
            config.listen = Hosts::addr(COORD, Hosts::RPC);
            config.http = Hosts::addr(COORD, Hosts::HTTP);
            config.unprotected = true;
            return Ok(Net::Hosts(Hosts::open(config.nodes).map_err(Failed::other)?));
        }
        let port = free_port(config.nodes)?;
        config.listen = local::addr(port, RPC);
        config.http = local::addr(port, HTTP);
        let proxies = Proxies::default();
        let failed = |error: std::io::Error| Failed::other(format!("cannot start a proxy: {error}"));
        for node in 0..config.nodes {
            let to = local::addr(port, local::PEER + node);
            proxies.listen(&local::addr(port, PROXY + node), node, to).map_err(failed)?;
        }
        let at = local::addr(port, PROXY_OF_COORDINATOR);
        proxies.listen(&at, COORD, config.listen.clone()).map_err(failed)?;
        Ok(Net::Loopback { port, proxies })
    }

    /// The file of a node.
    pub fn node(&self, config: &CoordinatorConfig, node: u16) -> NodeConfig {
        match self {
            Net::Loopback { port, .. } => NodeConfig {
                peer_announce: Some(local::addr(*port, PROXY + node)),
                coordinator: vec![local::addr(*port, PROXY_OF_COORDINATOR)],
                ..local::node(config, *port, node)
            },
            Net::Hosts(_) => NodeConfig {
                listen: Hosts::addr(node, Hosts::CLIENTS),
                peer_listen: Hosts::addr(node, Hosts::PEERS),
                ..local::node(config, 0, node)
            },
        }
    }

    /// The network namespace of a process.
    pub fn netns(&self, place: u16) -> Option<String> {
        matches!(self, Net::Hosts(_)).then(|| Hosts::name(place))
    }

    /// From now on nothing gets from one to the other.
    pub fn cut(&mut self, from: u16, to: u16) -> Result<(), Failed> {
        match self {
            Net::Loopback { proxies, .. } => proxies.hold(from, to),
            Net::Hosts(hosts) => hosts.cut(from, to).map_err(Failed::other)?,
        }
        Ok(())
    }

    /// What these send to one gets there slowly.
    pub fn slow(&mut self, from: &[u16], to: u16) -> Result<(), Failed> {
        match self {
            Net::Loopback { proxies, .. } => {
                from.iter().for_each(|from| proxies.slow(*from, to, SLOW_BYTES_PER_S));
            }
            Net::Hosts(hosts) => hosts.slow(to, SLOW_BYTES_PER_S).map_err(Failed::other)?,
        }
        Ok(())
    }

    /// All is whole again.
    pub fn heal(&mut self) -> Result<(), Failed> {
        match self {
            Net::Loopback { proxies, .. } => proxies.heal(),
            Net::Hosts(hosts) => hosts.heal().map_err(Failed::other)?,
        }
        Ok(())
    }
}

/// A first port such that all that follow from it are free.
fn free_port(nodes: u16) -> Result<u16, Failed> {
    let first = 20_000 + (std::process::id() % 50) as u16 * 100;
    let offsets = || {
        let of_node = |node| [node, local::PEER + node, PROXY + node];
        (0..nodes).flat_map(of_node).chain([HTTP, RPC, PROXY_OF_COORDINATOR])
    };
    let is_free = |port: &u16| offsets().all(|offset| TcpListener::bind(local::addr(*port, offset)).is_ok());
    (first..32_000)
        .step_by(500)
        .find(is_free)
        .ok_or_else(|| Failed::other("no free ports from 20000 to 32000"))
}

//! A node's side of the coordinator: heartbeats out, maps and news of other nodes in.

use super::wish::Wish;
use super::{COORDINATOR, Care, Heartbeat, NodeReport, NodeState, ReplicaReport, Welcome};
use crate::controlet::Status;
use crate::ids::{Epoch, NodeId, ShardId, WorkerId};
use crate::keeper::Mark;
use crate::routing::map::{ClusterMap, Member, Shard};
use crate::time::{Micros, Now, millis};
use crate::wire::codec::Wire;
use crate::wire::frame::{Header, Kind};
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;

/// How often the agent looks for news of replicas at most.
const LOOK_EVERY_US: Micros = millis(10);

/// For how long a wish is told.
const WISH_US: Micros = millis(1000);

/// Times of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AgentSettings {
    /// How often it tells that the node lives.
    pub heartbeat_every_us: Micros,
}

impl Default for AgentSettings {
    fn default() -> Self {
        AgentSettings { heartbeat_every_us: millis(100) }
    }
}

/// The node's first worker has one.
#[derive(Clone, Hash)]
pub struct Agent {
    settings: AgentSettings,
    me: Heartbeat,
    next_us: Micros,
    heard_us: Option<Micros>,
    pid: u32,
    addr: String,
    reports: Vec<NodeReport>,
    care: Care,
    /// Nodes to be tried, and when each last answered.
    tried: Vec<(NodeId, Option<Micros>)>,
    /// When to look whether there are news that cannot wait.
    look_us: Micros,
    /// Until when a user waits for what he wished.
    wish_until: Micros,
}

impl Agent {
    /// Speaks for the node that `me` describes.
    pub fn new(me: Heartbeat, settings: AgentSettings) -> Agent {
        let (addr, reports, care) = (String::new(), Vec::new(), Care::default());
        let tried = Vec::new();
        Agent {
            settings,
            me,
            next_us: 0,
            heard_us: None,
            pid: 0,
            addr,
            reports,
            care,
            tried,
            look_us: 0,
            wish_until: 0,
        }
    }

    /// When it wants to be called.
    pub fn wake_at(&self) -> Micros {
        self.next_us
    }

    /// When the coordinator was last heard, if ever.
    pub fn heard_us(&self) -> Option<Micros> {
        self.heard_us
    }

    /// The coordinator's address and process, as it told; empty and 0 before.
    pub fn coordinator(&self) -> (&str, u32) {
        (&self.addr, self.pid)
    }

    /// How the nodes stood when the coordinator was last heard.
    pub fn reports(&self) -> &[NodeReport] {
        &self.reports
    }

    /// What was not as it should be then.
    pub fn care(&self) -> &Care {
        &self.care
    }

    /// Whether the coordinator takes this life of a node for over.
    pub fn is_gone(&self, member: Member) -> bool {
        let report = self.reports.iter().find(|report| report.node == member.node);
        report.is_some_and(|r| r.state == NodeState::Down || r.incarnation > member.incarnation)
    }

    /// There is a newer map: the coordinator should hear soon how the replicas stand in it.
    pub fn on_map(&mut self, map: &ClusterMap) {
        self.next_us = 0;
        self.me.wish.take_if(|wish| wish.is_over(map));
        // What is used again, or has been, is not left over any more.
        let me = Member { node: self.me.node, incarnation: self.me.incarnation };
        let is_mine = |shard: &Shard| {
            shard.members.contains(&me) || shard.joining.is_some_and(|joining| joining.member == me)
        };
        let is_used = |mark: &Mark| map.shard(mark.shard).is_some_and(is_mine);
        self.me.held.retain(|mark| !is_used(mark) && !map.has_done_with(mark, me.node));
    }

    /// A user waits for news: they are asked for now.
    pub fn hurry(&mut self) {
        self.next_us = 0;
    }

    /// A user wants something changed; it is forgotten unless it is said again in time.
    pub fn wish(&mut self, now: Now, wish: Wish) {
        self.hurry();
        self.me.wish = Some(wish);
        self.wish_until = now.steady_us + WISH_US;
    }

    /// Sends a heartbeat if it is time, or if there are news that cannot wait.
    pub fn on_wake(
        &mut self,
        now: Now,
        map_epoch: Epoch,
        replicas: impl FnOnce() -> Vec<ReplicaReport>,
        sends: &mut Vec<(WorkerId, Bytes)>,
    ) {
        if now.steady_us < self.next_us.min(self.look_us) {
            return;
        }
        self.look_us = now.steady_us + LOOK_EVERY_US;
        let replicas = replicas();
        let news = |report: &ReplicaReport| {
            let Status { lost, gone, differs, proven, ref cut, ref deaf, fill, fill_failed, .. } =
                report.status;
            let fill = fill.map(|fill| fill.ready);
            (
                report.shard,
                report.epoch,
                (lost, gone, differs),
                proven,
                cut.clone(),
                fill,
                fill_failed,
                deaf.clone(),
            )
        };
        if now.steady_us < self.next_us && replicas.iter().map(news).eq(self.me.replicas.iter().map(news)) {
            return;
        }
        self.next_us = now.steady_us + self.settings.heartbeat_every_us;
        self.me.map_epoch = map_epoch;
        self.me.wish.take_if(|_| now.steady_us >= self.wish_until);
        self.me.replicas = replicas;
        let every_us = self.settings.heartbeat_every_us;
        let answers =
            |(_, at): &&(NodeId, Option<Micros>)| at.is_some_and(|at| now.steady_us < at + 2 * every_us);
        self.me.reached = self.tried.iter().filter(answers).map(|(node, _)| *node).collect();
        sends.push((COORDINATOR, self.header(Kind::Heartbeat).frame(|frame| self.me.encode(frame))));
        let ping = self.header(Kind::Ping).frame(|_| {});
        sends.extend(self.tried.iter().map(|(node, _)| (WorkerId { node: *node, worker: 0 }, ping.clone())));
    }

    fn header(&self, kind: Kind) -> Header {
        let from = WorkerId { node: self.me.node, worker: 0 };
        Header { kind, from, incarnation: self.me.incarnation, shard: ShardId(0), epoch: Epoch(0) }
    }

    /// Another node wants to know whether it is heard.
    pub fn on_ping(&self, from: WorkerId, sends: &mut Vec<(WorkerId, Bytes)>) {
        sends.push((from, self.header(Kind::Pong).frame(|_| {})));
    }

    /// A node that was tried has answered.
    pub fn on_pong(&mut self, now: Now, from: NodeId) {
        if let Some((_, at)) = self.tried.iter_mut().find(|(node, _)| *node == from) {
            *at = Some(now.steady_us);
        }
    }

    /// The coordinator answered: the map, if it is a newer one.
    pub fn on_welcome(&mut self, now: Now, payload: Bytes) -> Option<ClusterMap> {
        let welcome = Welcome::from_bytes(payload).ok()?;
        self.heard_us = Some(now.steady_us);
        self.pid = welcome.pid;
        self.addr = welcome.addr;
        self.reports = welcome.nodes;
        let before = core::mem::take(&mut self.tried);
        let known = |node: NodeId| before.iter().find(|(tried, _)| *tried == node).and_then(|(_, at)| *at);
        self.care = welcome.care;
        let mine = self.care.estranged.iter().filter(|(low, _)| *low == self.me.node);
        self.tried = mine.map(|(_, high)| (*high, known(*high))).collect();
        welcome.map
    }
}

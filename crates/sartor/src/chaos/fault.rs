//! What is done to a cluster.

use super::cluster::{Cluster, name_of};
use super::net::COORD;
use crate::Failed;
use sartor_core::random::Random;
use sartor_server::status::Status;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// `kill -9` of a node; it is started again up to 1.5 s later.
    Kill,
    /// A node stands still for 4 s.
    Pause,
    /// `kill -9` of the coordinator; it is started again 2 s later.
    KillCoordinator,
    /// The coordinator stands still for 4 s.
    PauseCoordinator,
    /// A second node is killed while the first one's place is being filled.
    KillTwo,
    /// A node is killed and, at once, the coordinator.
    KillBoth,
    /// Nothing gets to or from a node, but clients do.
    Cut,
    /// Nothing gets to it.
    CutIn,
    /// Nothing gets from it.
    CutOut,
    /// Nothing gets from one of two nodes to the other, either way.
    CutLink,
    /// One way only.
    CutLinkOneWay,
    /// Nothing gets from a node to the coordinator, either way.
    CutCoordinator,
    /// What other nodes send to a node arrives at 10 KB/s.
    Slow,
    /// A node reads nothing from other nodes, but it hears the coordinator.
    Deaf,
}

/// All kinds, with their names and how long each lasts, in ms.
pub const KINDS: &[(Kind, &str, u64)] = &[
    (Kind::Kill, "kill", 0),
    (Kind::Pause, "pause", 4000),
    (Kind::KillCoordinator, "kill-coordinator", 2000),
    (Kind::PauseCoordinator, "pause-coordinator", 4000),
    (Kind::KillTwo, "kill-two", 0),
    (Kind::KillBoth, "kill-both", 1000),
    (Kind::Cut, "cut", 3000),
    (Kind::CutIn, "cut-in", 3000),
    (Kind::CutOut, "cut-out", 3000),
    (Kind::CutLink, "cut-link", 3000),
    (Kind::CutLinkOneWay, "cut-link-one-way", 3000),
    (Kind::CutCoordinator, "cut-coordinator", 3000),
    (Kind::Slow, "slow", 5000),
    (Kind::Deaf, "deaf", 3000),
];

impl Kind {
    /// Its name.
    pub fn name(self) -> &'static str {
        KINDS.iter().find(|(kind, ..)| *kind == self).map_or("", |(_, name, _)| name)
    }

    fn lasts_ms(self) -> u64 {
        KINDS.iter().find(|(kind, ..)| *kind == self).map_or(0, |(.., ms)| *ms)
    }

    /// The kinds of a list of names; of none, all.
    pub fn parse(list: Option<&str>) -> Result<Vec<Kind>, Failed> {
        let Some(list) = list else { return Ok(KINDS.iter().map(|(kind, ..)| *kind).collect()) };
        let find = |name: &str| {
            let names = || KINDS.iter().map(|(_, name, _)| *name).collect::<Vec<_>>().join(", ");
            let kind = KINDS.iter().find(|(_, known, _)| *known == name).map(|(kind, ..)| *kind);
            kind.ok_or_else(|| Failed::input(format!("unknown fault '{name}'; there is: {}", names())))
        };
        list.split(',').map(|name| find(name.trim())).collect()
    }
}

/// A fault that is to come, or is there.
pub struct Fault {
    /// Its kind.
    pub kind: Kind,
    /// Whom it meets.
    pub victim: u16,
    /// The other end of a link, or the second to die.
    pub other: Option<u16>,
    /// How long it lasts, in ms.
    pub lasts_ms: u64,
    /// Between the first and the second step, in ms.
    step_ms: u64,
}

impl Fault {
    /// One of this kind for whom plays the role at `place` of some shard.
    pub fn aim(kind: Kind, place: usize, status: &Status, random: &mut Random) -> Fault {
        let shard = &status.shards[random.below(status.shards.len().max(1) as u64) as usize];
        let members: Vec<u16> = shard.replicas.iter().map(|replica| replica.node).collect();
        let place = place % members.len().max(1);
        let on_coordinator = matches!(kind, Kind::KillCoordinator | Kind::PauseCoordinator);
        let standby = status.nodes.iter().find(|node| node.state == "standby").map(|node| node.id);
        let victim = match standby.filter(|_| random.percent(8)) {
            _ if on_coordinator => COORD,
            Some(standby) => standby,
            None => members[place],
        };
        let neighbour = members[(place + 1) % members.len()];
        let other = match kind {
            Kind::CutLink | Kind::CutLinkOneWay | Kind::KillTwo if neighbour != victim => Some(neighbour),
            _ => None,
        };
        let lasts_ms = match kind {
            Kind::Kill | Kind::KillTwo => random.between(0, 1500),
            _ => kind.lasts_ms(),
        };
        Fault { kind, victim, other, lasts_ms, step_ms: random.between(100, 900) }
    }

    /// What it is and whom it meets, in words.
    pub fn words(&self, status: &Status) -> String {
        let mut words = format!("{} {}", self.kind.name(), name_of(self.victim));
        if let Some(other) = self.other {
            words += &format!(" and {}", name_of(other));
        }
        let roles = roles(self.victim, status);
        if roles.is_empty() { words } else { format!("{words} ({})", roles.join(", ")) }
    }

    /// Lets it come; `sleep` waits a number of ms and says if all is to end.
    pub fn begin(
        &self,
        cluster: &mut Cluster,
        sleep: &mut dyn FnMut(&mut Cluster, u64) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        let (victim, nodes) = (self.victim, cluster.config.nodes);
        let others: Vec<u16> = (0..nodes).filter(|node| *node != victim).collect();
        let all: Vec<u16> = others.iter().copied().chain([COORD]).collect();
        match self.kind {
            Kind::Kill | Kind::KillCoordinator => cluster.kill(victim),
            Kind::Pause | Kind::PauseCoordinator => cluster.stop(victim),
            Kind::KillTwo => {
                cluster.kill(victim);
                sleep(cluster, self.step_ms)?;
                self.other.iter().for_each(|other| cluster.kill(*other));
            }
            Kind::KillBoth => {
                cluster.kill(victim);
                sleep(cluster, self.step_ms)?;
                cluster.kill(COORD);
            }
            Kind::Cut => cut(cluster, &all, victim, true, true)?,
            Kind::CutIn => cut(cluster, &all, victim, true, false)?,
            Kind::CutOut => cut(cluster, &all, victim, false, true)?,
            Kind::Deaf => cut(cluster, &others, victim, true, false)?,
            Kind::CutLink => cut(cluster, self.other.as_slice(), victim, true, true)?,
            Kind::CutLinkOneWay => cut(cluster, self.other.as_slice(), victim, true, false)?,
            Kind::CutCoordinator => cut(cluster, &[COORD], victim, true, true)?,
            Kind::Slow => cluster.net.slow(&others, victim)?,
        }
        sleep(cluster, self.lasts_ms)
    }

    /// Takes back all that can be taken back.
    pub fn end(&self, cluster: &mut Cluster) -> Result<(), Failed> {
        cluster.net.heal()?;
        for place in [self.victim, COORD].into_iter().chain(self.other) {
            cluster.wake(place);
            cluster.revive(place)?;
        }
        Ok(())
    }

    /// The shards that it concerns: those with a copy at the victims, or all.
    pub fn shards(&self, status: &Status) -> Vec<usize> {
        let met = |node: u16| node == self.victim || Some(node) == self.other;
        let shards = status.shards.iter().enumerate();
        let own: Vec<usize> = shards
            .filter(|(_, shard)| shard.replicas.iter().any(|replica| met(replica.node)))
            .map(|(index, _)| index)
            .collect();
        if own.is_empty() { (0..status.shards.len()).collect() } else { own }
    }
}

fn cut(cluster: &mut Cluster, others: &[u16], victim: u16, into: bool, out_of: bool) -> Result<(), Failed> {
    for &other in others {
        if into {
            cluster.net.cut(other, victim)?;
        }
        if out_of {
            cluster.net.cut(victim, other)?;
        }
    }
    Ok(())
}

/// What a node does: "head of 0", or that it stands by.
fn roles(place: u16, status: &Status) -> Vec<String> {
    let mut roles = Vec::new();
    for shard in &status.shards {
        for replica in shard.replicas.iter().filter(|replica| replica.node == place) {
            roles.push(format!("{} of {}", replica.role, shard.id));
        }
    }
    if roles.is_empty() && place != COORD {
        roles.push("standby".into());
    }
    roles
}

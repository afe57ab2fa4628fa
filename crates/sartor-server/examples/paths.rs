//! The way of a request through a node's code, without sockets and clocks: `paths NAME TURNS` takes so many turns.
//!
//! Run under valgrind with two numbers of turns, the difference tells what a request costs in instructions and
//! allocations, the same on every machine: `bench/guard` does that and compares with what was recorded.

use bytes::{Buf, Bytes, BytesMut};
use sartor_core::controlet::{ms_ec, ms_sc};
use sartor_core::ids::{Epoch, Incarnation, NodeId, Position, ShardId, WorkerId};
use sartor_core::keeper::{Keeper, KeeperLimits};
use sartor_core::node::{Actions, Event, Node, NodeSettings, Opened};
use sartor_core::operation::{Consistency, From, Op, Request, SessionId};
use sartor_core::routing::map::{ClusterMap, Member, NodeEntry, Shard, Table};
use sartor_core::routing::route::Routes;
use sartor_core::routing::slot::SLOTS;
use sartor_core::stores::Stores;
use sartor_core::time::{Micros, Now, millis};
use sartor_datalets::{Options, engine};
use sartor_server::config::{Fsync, NodeConfig};
use sartor_server::front::connection::{Connection, Joined};
use sartor_server::front::plan::{Cursors, Env};
use sartor_server::front::pool::{POOL, Pool, Pooled};
use sartor_server::front::runs::Runs;
use sartor_server::resp::parse::{Args, Parsed, Parser};
use sartor_server::settings::Settings;
use sartor_server::stats::Stats;
use std::process::ExitCode;
use std::sync::Arc;

/// A way of requests. The keys of its commands end in the number of the turn.
struct Path {
    name: &'static str,
    mode: &'static str,
    copies: u16,
    shards: u16,
    /// Of each node.
    workers: u8,
    /// The node where the clients are, at its first worker.
    at: usize,
    /// How many connections send in a turn, and what each of them sends.
    connections: usize,
    commands: fn(u64) -> Vec<Vec<u8>>,
}

const ONE: Path = Path {
    name: "",
    mode: ms_sc::MODE.name,
    copies: 1,
    shards: 1,
    workers: 1,
    at: 0,
    connections: 1,
    commands: gets,
};
/// Half of all requests are the other worker's.
const WORKERS: Path = Path { shards: 4, workers: 2, connections: 8, ..ONE };
const CHAIN: Path = Path { copies: 3, commands: sets, ..ONE };

const PATHS: &[Path] = &[
    Path { name: "get-pipelined", ..ONE },
    Path { name: "set-pipelined", commands: sets, ..ONE },
    Path { name: "get-single", connections: 32, commands: |turn| many(1, turn, get), ..ONE },
    Path { name: "set-single", connections: 32, commands: |turn| many(1, turn, set), ..ONE },
    Path {
        name: "incr-pipelined",
        commands: |turn| many(32, turn, |key| words(&[b"INCR", &number(key)])),
        ..ONE
    },
    Path {
        name: "append",
        commands: |turn| many(32, turn, |key| words(&[b"SETRANGE", key, b"0", b"w"])),
        ..ONE
    },
    Path { name: "mget-of-10", commands: |turn| vec![ten(b"MGET", turn, false)], ..ONE },
    Path { name: "mset-of-10", commands: |turn| vec![ten(b"MSET", turn, true)], ..ONE },
    Path { name: "get-64-kib", commands: |_| vec![words(&[b"GET", b"large"])], ..ONE },
    Path { name: "4-shards-get-pipelined", shards: 4, connections: 8, ..ONE },
    Path {
        name: "4-shards-get-single",
        shards: 4,
        connections: 32,
        commands: |turn| many(1, turn, get),
        ..ONE
    },
    Path { name: "2-workers-get-pipelined", ..WORKERS },
    Path { name: "2-workers-set-pipelined", commands: sets, ..WORKERS },
    Path { name: "2-workers-get-single", connections: 32, commands: |turn| many(1, turn, get), ..WORKERS },
    Path { name: "chain-of-3-set-pipelined", ..CHAIN },
    Path { name: "chain-of-3-set-at-the-tail", at: 2, ..CHAIN },
    Path { name: "chain-of-3-get-at-the-tail", at: 2, commands: gets, ..CHAIN },
    Path { name: "star-of-3-set-pipelined", mode: ms_ec::MODE.name, ..CHAIN },
];

fn get(key: &[u8]) -> Vec<u8> {
    words(&[b"GET", key])
}

fn set(key: &[u8]) -> Vec<u8> {
    words(&[b"SET", key, &[b'v'; 32]])
}

fn gets(turn: u64) -> Vec<Vec<u8>> {
    many(32, turn, get)
}

fn sets(turn: u64) -> Vec<Vec<u8>> {
    many(32, turn, set)
}

const KEYS: u64 = 1000;

fn words(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}

fn key(number: u64) -> Vec<u8> {
    format!("key:{:012}", number % KEYS).into_bytes()
}

/// Another key, that holds a number.
fn number(key: &[u8]) -> Vec<u8> {
    [b"n", &key[1..]].concat()
}

fn many(count: u64, turn: u64, command: impl Fn(&[u8]) -> Vec<u8>) -> Vec<Vec<u8>> {
    (0..count).map(|place| command(&key(turn * 7 + place * 31))).collect()
}

fn ten(name: &[u8], turn: u64, values: bool) -> Vec<u8> {
    let keys: Vec<Vec<u8>> = (0..10).map(|place| key(turn * 7 + place * 31)).collect();
    let value = [b'v'; 32];
    let mut all = vec![name];
    for key in &keys {
        all.push(key);
        all.extend(values.then_some(&value[..]));
    }
    words(&all)
}

/// A node with its stores and clients, its frames delivered by hand.
struct Host {
    node: Node,
    stores: Stores,
    actions: Actions,
    connections: Vec<Connection>,
    parser: Parser,
    args: Args,
    runs: Runs,
    pool: Pool,
    requests: Vec<Request>,
}

/// All nodes, and what they share here.
struct World {
    /// One worker after the other, one node after the other.
    hosts: Vec<Host>,
    workers: usize,
    map: Arc<ClusterMap>,
    routes: Routes,
    settings: Settings,
    stats: Stats,
    cursors: Cursors,
    config: NodeConfig,
    now: Now,
}

fn map(&Path { mode, copies, shards, workers, .. }: &Path) -> ClusterMap {
    let member = |node: u16| Member { node: NodeId(node), incarnation: Incarnation(1) };
    let share = SLOTS / shards;
    let shard = |id: u16| Shard {
        id: ShardId(id),
        epoch: Epoch(1),
        members: (0..copies).map(member).collect(),
        born: Epoch(1),
        start: Position { epoch: Epoch(1), sequence: 0 },
        slots: vec![(id * share, (id + 1) * share - 1)],
        ..Shard::default()
    };
    let table = Table { mode: mode.into(), copies: copies as u8, datalet: "hash".into(), ..Table::default() };
    let node = |id: u16| NodeEntry { id: NodeId(id), ..NodeEntry::default() };
    let nodes = (0..copies).map(node).collect();
    ClusterMap {
        epoch: Epoch(1),
        workers,
        nodes,
        tables: vec![table],
        shards: (0..shards).map(shard).collect(),
        ..ClusterMap::default()
    }
}

fn config(node: u16) -> NodeConfig {
    let (cluster, workers, detect_ms, settings) = (1, 1, 500, Default::default());
    let (listen, peer_listen, coordinator) = (String::new(), String::new(), Vec::new());
    let (unix, announce, peer_announce, log, locks, unprotected) = (None, None, None, None, None, false);
    NodeConfig {
        dir: None,
        fsync: Fsync::Never,
        cluster,
        node,
        workers,
        listen,
        unix,
        peer_listen,
        announce,
        peer_announce,
        coordinator,
        unprotected,
        detect_ms,
        log,
        locks,
        settings,
    }
}

impl World {
    fn new(path: &Path) -> World {
        let host = |(id, worker): (u16, u8)| {
            let me = WorkerId { node: NodeId(id), worker };
            let session = |index: usize| SessionId { index: index as u32 + 1, generation: 1 };
            Host {
                node: Node::new(me, Incarnation(1), NodeSettings::default(), None),
                stores: Stores::default(),
                actions: Actions::default(),
                connections: (0..path.connections)
                    .map(|i| Connection::new(session(i), i as u64, String::new()))
                    .collect(),
                parser: Parser::default(),
                args: Args::default(),
                runs: Runs::default(),
                pool: Pool::default(),
                requests: Vec::new(),
            }
        };
        let map = map(path);
        let routes = Routes::of(&map);
        let ids = (0..path.copies).flat_map(|id| (0..path.workers).map(move |worker| (id, worker)));
        let mut world = World {
            hosts: ids.map(host).collect(),
            workers: usize::from(path.workers),
            map: Arc::new(map),
            routes,
            settings: Settings::default(),
            stats: Stats::default(),
            cursors: Cursors::default(),
            config: config(path.at as u16),
            now: Now { steady_us: millis(1000), unix_ms: 1 },
        };
        for host in 0..world.hosts.len() {
            world.step(host, Event::Map(world.map.clone()));
        }
        // Until the members have each other's promises.
        for _ in 0..1000 {
            world.settle();
        }
        world
    }

    fn step(&mut self, host: usize, event: Event) {
        let Host { node, actions, .. } = &mut self.hosts[host];
        node.step(self.now, event, actions);
        self.run_stores(host);
    }

    fn run_stores(&mut self, host: usize) {
        let Host { node, actions, stores, .. } = &mut self.hosts[host];
        for Opened { shard, born, .. } in actions.opened.drain(..) {
            let store = (engine("hash").expect("an engine").open)(&Options { seed: 9, ..Options::default() })
                .expect("a store");
            stores.insert(shard, Keeper::enveloped(store, KeeperLimits::default()).starting_in(born));
        }
        while !actions.tasks.is_empty() {
            let mut tasks = std::mem::take(&mut actions.tasks);
            stores.expect(&tasks);
            for (shard, task) in tasks.drain(..) {
                let done = stores.run(self.now, shard, task);
                node.step(self.now, Event::Stored(shard, done), actions);
            }
            if actions.tasks.is_empty() {
                actions.tasks = tasks;
            }
        }
    }

    /// Ends a turn at every node: what it sends arrives in the next one.
    fn settle(&mut self) {
        self.now.steady_us += 1000;
        let (mut frames, mut letters) = (Vec::<(WorkerId, Bytes)>::new(), Vec::new());
        for host in 0..self.hosts.len() {
            if self.hosts[host].node.wake_at().is_some_and(|at| at <= self.now.steady_us) {
                self.step(host, Event::Wake);
            }
            frames.append(&mut self.hosts[host].actions.sends);
            let node = host / self.workers * self.workers;
            let near = self.hosts[host].actions.letters.drain(..);
            letters.extend(near.map(|(worker, letter)| (node + usize::from(worker), letter)));
            self.answer(host);
        }
        for (to, frame) in frames {
            let host = usize::from(to.node.0) * self.workers + usize::from(to.worker);
            self.step(host, Event::Frame(frame));
        }
        for (host, letter) in letters {
            self.step(host, Event::Letter(letter));
        }
    }

    fn answer(&mut self, host: usize) {
        let Host { node, actions, connections, pool, requests, .. } = &mut self.hosts[host];
        let World { map, routes, settings, stats, cursors, config, now, .. } = self;
        let mut env = Env {
            now: *now,
            map: Some(map),
            routes,
            table: 0,
            pools: true,
            settings,
            stats,
            cursors,
            config,
        };
        for reply in actions.replies.drain(..) {
            if reply.session != POOL {
                let connection = &mut connections[reply.session.index as usize - 1];
                connection.on_reply(reply.tag, reply.outcome, &mut env, requests);
                continue;
            }
            let owners = pool.land(reply.tag);
            let mut at = 0;
            for (session, tag) in &owners {
                let answer = match &reply.outcome {
                    sartor_core::operation::Outcome::Run(answers) => answers.take(&mut at),
                    _ => None,
                };
                node.note_seen(*session, reply.shard, reply.position);
                connections[session.index as usize - 1].on_pooled(*tag, answer.as_ref(), &reply.outcome);
            }
            pool.give_back(owners);
        }
        connections.iter_mut().for_each(|connection| connection.out.clear());
    }

    /// A connection sends this.
    fn send(&mut self, host: usize, connection: usize, buffer: &mut BytesMut) {
        let Host { node, connections, parser, args, runs, pool, requests, .. } = &mut self.hosts[host];
        let World { map, routes, settings, stats, cursors, config, now, .. } = self;
        let mut env = Env {
            now: *now,
            map: Some(map),
            routes,
            table: 0,
            pools: true,
            settings,
            stats,
            cursors,
            config,
        };
        let connection = &mut connections[connection];
        loop {
            if let Joined::Bytes(len) =
                connection.join_pool(buffer, &env, pool, |session, shard| node.seen(session, shard))
            {
                buffer.advance(len);
                continue;
            }
            let (bytes, commands) = connection.join_hot(buffer, 1000, &env, runs, requests);
            buffer.advance(bytes);
            if commands > 0 {
                continue;
            }
            match parser.next(buffer, env.settings, args) {
                Parsed::Request => drop(connection.run(args, &mut env, runs, requests)),
                _ => break,
            }
        }
        connection.close_runs(&env, runs, requests);
        self.step_requests(host);
    }

    fn close_pool(&mut self, host: usize) {
        while let Some(Pooled { tag, shard, run, floor }) = self.hosts[host].pool.close() {
            let from = From::Session { session: POOL, tag };
            let deadline_us: Micros = self.now.steady_us + millis(5000);
            let (op, consistency) = (Op::Run(run), Consistency::Mode);
            self.hosts[host].requests.push(Request { from, shard, op, floor, consistency, deadline_us });
        }
        self.step_requests(host);
    }

    fn step_requests(&mut self, host: usize) {
        let mut requests = std::mem::take(&mut self.hosts[host].requests);
        for request in requests.drain(..) {
            self.step(host, Event::Request(request));
        }
        self.hosts[host].requests = requests;
    }

    /// All connections send their commands, and get their answers.
    fn turn(&mut self, at: usize, commands: &[Vec<u8>], buffer: &mut BytesMut) {
        for connection in 0..self.hosts[at].connections.len() {
            buffer.clear();
            commands.iter().for_each(|command| buffer.extend_from_slice(command));
            self.send(at, connection, buffer);
        }
        self.close_pool(at);
        for _ in 0..1000 {
            self.settle();
            if self.hosts[at].connections.iter().all(|connection| connection.in_flight() == 0) {
                return;
            }
        }
        panic!("no answer within a second: is there a view that serves?");
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let found = args.get(1).and_then(|name| PATHS.iter().find(|path| path.name == name));
    let turns = args.get(2).and_then(|turns| turns.parse::<u64>().ok());
    let (Some(path), Some(turns)) = (found, turns) else {
        for Path { name, connections, commands, .. } in PATHS {
            println!("{name} {}", commands(0).len() * connections);
        }
        return ExitCode::from(2);
    };
    let (mut world, at) = (World::new(path), path.at * usize::from(path.workers));
    let buffer = &mut BytesMut::new();
    for number in 0..KEYS {
        world.turn(at, &[words(&[b"SET", &key(number), &[b'v'; 32]])], buffer);
    }
    world.turn(at, &[words(&[b"SET", b"large", &[b'v'; 64 << 10]])], buffer);
    // Made before, so that making them costs every number of turns the same.
    let sent: Vec<Vec<Vec<u8>>> = (0..16).map(path.commands).collect();
    for turn in 0..turns {
        world.turn(at, &sent[turn as usize % sent.len()], buffer);
    }
    ExitCode::SUCCESS
}

//! Controlets: the replication logic of one shard on one node, as state machines.
//!
//! ```text
//!   View, Request, Peer, Left, Stored, Wake ──▶ step ──▶ Task, Send, Reply, Forward
//! ```
//!
//! To write one: a file here, an entry in [`MODES`]; or, in a program of one's own, a [`Mode`] that is added to them. Nothing outside that table asks which
//! mode it has. Those that are here are rules over one controlet, [`replicated`]; another one may be something else
//! altogether.

pub mod aa_ec;
pub mod aa_ec_log;
pub mod aa_ms;
pub mod aa_sc;
pub mod aa_sc_locks;
pub mod ms_ec;
pub mod ms_sc;
pub mod part;
pub mod replicated;
pub mod rules;

use crate::ids::{Epoch, NodeId, Position, ShardId};
use crate::keeper::{Done, Task};
use crate::mutants::{Fault, planted};
use crate::operation::{From, Op, Outcome, Request};
use crate::record::Bounds;
use crate::routing::map::{Joining, Member};
use crate::time::{Micros, Now, millis};
use crate::wire::codec::Wire;
use alloc::boxed::Box;
use alloc::vec::Vec;
use bytes::Bytes;
use core::hash::{Hash, Hasher};
use core::ptr::fn_addr_eq;
use part::lease::LeaseSettings;
use part::log::{LogCall, LogEvent};
use part::once::Names;
use rules::Rules;

/// The replication logic of one shard on one node.
///
/// Its store finishes tasks in the order asked for. Messages can be lost, repeated, delayed and
/// reordered; messages of another epoch never arrive, nor of who is no member and does not join.
/// `step` never fails and never waits. A [`Input::Wake`] comes with a clock that was read after
/// everything before it: what may leave only under a lease leaves then. All of its state is `Clone`, `Eq` and
/// `Hash`, so that a model checker can explore it.
pub trait Controlet: Send {
    /// What it says to the same shard's controlets on other nodes.
    type Message: Wire + Send;

    /// Whether this replica can answer the request now. What it does not take goes to the head,
    /// which takes everything.
    fn takes(&self, request: &Request) -> bool;

    /// Something happened.
    fn step(&mut self, now: Now, input: Input<Self::Message>, out: &mut Outbox<Self::Message>);

    /// When it wants [`Input::Wake`]; a time that has passed means at the end of this turn, which is
    /// how messages of one turn travel together.
    fn wake_at(&self) -> Option<Micros>;

    /// How it stands.
    fn status(&self) -> Status;

    /// What it remembers of operations that their clients named, for another shard that begins with what is here.
    fn names(&self) -> Names {
        Names::default()
    }

    /// Its shard begins with what another one remembered.
    fn inherit(&mut self, _names: Names) {}
}

/// What happens to a controlet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input<M> {
    /// A request it takes, of a client here or forwarded.
    Request(Request),
    /// A message of the shard's replica on that node.
    Peer(NodeId, M),
    /// A task has ended.
    Stored(Done),
    /// A removed member has come to this view, or a later one: it serves no more.
    Left(Member),
    /// The members have changed, or who joins. Where this replica is neither, it ends: it gives
    /// the requests of clients here back as forwards, and gets only what its store still owes.
    View(View),
    /// This node has no memory for more, or has some again.
    Full(bool),
    /// What became of a call of the log outside, by its number.
    Log(u64, LogEvent),
    /// The time it asked for has come.
    Wake,
}

/// What a controlet wants done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Outbox<M> {
    /// Messages to the shard's replicas.
    pub sends: Vec<(NodeId, M)>,
    /// The rest.
    pub effects: Effects,
}

/// What a controlet wants done on its own node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Effects {
    /// For its store, in this order.
    pub tasks: Vec<Task>,
    /// Answers, with the place in the history that they were true at.
    pub replies: Vec<(From, Outcome, Position)>,
    /// Answers to reads by a replica that is not the head. They are held back where an earlier read
    /// of the same connection turned out to be the head's, which knows a newer state.
    pub reads: Vec<(Request, Outcome, Position)>,
    /// The same where another replica tells who asked: kept here for when he asks again.
    pub kept: Vec<(From, Outcome, Position)>,
    /// Requests of clients here that turned out to be the head's to answer.
    pub forwards: Vec<Request>,
    /// What is asked of the log outside, with a number to answer to.
    pub log: Vec<(u64, LogCall)>,
}

impl<M> Default for Outbox<M> {
    fn default() -> Self {
        Outbox { sends: Vec::new(), effects: Effects::default() }
    }
}

/// A shard's members as of one epoch, seen from one of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// The shard.
    pub shard: ShardId,
    /// The epoch in which these are its members.
    pub epoch: Epoch,
    /// The node that looks.
    pub me: NodeId,
    /// All members in order.
    pub members: Vec<Member>,
    /// Who is being filled, or has joined by this view.
    pub joining: Option<Joining>,
    /// When the shard last began, empty: what was before is gone.
    pub born: Epoch,
    /// Where a replica stands that begins in this view.
    pub start: Position,
    /// Whether what its store had may still be on disk when it fails.
    pub durable: bool,
    /// The rules of its mode.
    pub rules: Rules,
    /// Which records all stores of the table take.
    pub bounds: Bounds,
    /// The first key that another shard has, in a table in ranges.
    pub end: Option<Bytes>,
    /// The shard is being divided: who orders marks the place from which on nothing is for the other part.
    pub divides: bool,
    /// There was no replica of it before this view, so nobody has promised anything.
    pub first: bool,
}

impl View {
    /// Whether a request is for this shard, as far as it names keys.
    pub fn has(&self, op: &Op) -> bool {
        self.end.as_ref().is_none_or(|end| op.lies_before(end)) || planted(Fault::TakeMoved)
    }

    /// This replica's place among the members, if it is one.
    pub fn place(&self) -> Option<usize> {
        self.members.iter().position(|member| member.node == self.me)
    }

    /// Whether this replica is a member.
    pub fn is_member(&self) -> bool {
        self.place().is_some()
    }

    /// Whether this replica orders writes.
    pub fn is_head(&self) -> bool {
        self.place() == Some(0)
    }

    /// Whether this replica is one, or is being filled to be one.
    pub fn includes_me(&self) -> bool {
        self.is_member() || self.joining.is_some_and(|joining| joining.member.node == self.me)
    }
}

/// How a replica stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Status {
    /// All entries up to here are in its store.
    pub position: Position,
    /// Whether it must be filled anew: it was given up as too slow, or its data is gone.
    pub lost: bool,
    /// Whether what was done to it is not what was done to the first member.
    pub differs: bool,
    /// Whether the log outside is sealed by a newer first member, or by another cluster. For its own node only.
    pub sealed: bool,
    /// Whether its data is gone: its store failed, or came back empty.
    pub gone: bool,
    /// What its store had may still be on disk, for a later life to see.
    pub durable: bool,
    /// Whether it has seen all members serve in this view.
    pub proven: bool,
    /// Members that it has given up: they must be filled anew.
    pub cut: Vec<NodeId>,
    /// Whom it fills.
    pub fill: Option<FillStatus>,
    /// Whom it fills is too slow for the stream, and must be filled from the start.
    pub fill_failed: bool,
    /// Members that it cannot reach, or that cannot reach it.
    pub deaf: Vec<NodeId>,
    /// For how long those it sends entries to have lacked what they lack for longest; only who lacks something.
    pub lags: Vec<(NodeId, Micros)>,
}

/// How far a fill is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FillStatus {
    /// Which fill.
    pub since: Epoch,
    /// Records the new replica has.
    pub done: u64,
    /// Records that there are.
    pub total: u64,
    /// Whether it has all, and is so near that it can become a member.
    pub ready: bool,
}

/// Times and bounds of controlets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// Entries are sent again when nothing was acknowledged for so long.
    pub resend_us: Micros,
    /// How often records past their deadline are looked for.
    pub expire_every_us: Micros,
    /// How many of them are removed as one entry.
    pub expire_batch_max: usize,
    /// Bytes of entries in one message.
    pub batch_bytes_max: usize,
    /// Bytes of a message of the log outside, about; what holds it has a limit (NATS: 1 MiB if not set otherwise).
    pub log_bytes_max: usize,
    /// Bytes of entries on their way to one replica.
    pub window_bytes_max: usize,
    /// Bytes of entries kept until all replicas have them. Beyond that requests wait, and a replica
    /// that acknowledges nothing for `cut_after_us` is cut off.
    pub stream_bytes_max: usize,
    /// See `stream_bytes_max`.
    pub cut_after_us: Micros,
    /// Who is late all the time, or by more than `cut_after_us`, and takes fewer bytes a second than this is cut off,
    /// however little there is to be kept for it: the others wait for it.
    pub pace_bytes_per_s_min: u64,
    /// Requests that wait for replicas (WAIT).
    pub waiters_max: usize,
    /// How long such a request waits before it is answered as it stands, to be asked again.
    pub waiter_us: Micros,
    /// Leases among the members.
    pub lease: LeaseSettings,
    /// How long a request that nobody may serve waits, before it is refused.
    pub patience_us: Micros,
    /// Buckets of keys whose writes in flight are told apart: a power of two.
    pub mark_buckets: usize,
    /// Bytes of a page that fills a new replica.
    pub page_bytes_max: usize,
    /// How often a replica that surveys what it holds looks at some more of it, and at how many records.
    pub survey_every_us: Micros,
    /// See `survey_every_us`.
    pub survey_records_max: usize,
    /// The largest value that an operation makes whose place is given here.
    pub value_bytes_max: usize,
    /// The largest answer that is kept for who asks again.
    pub answer_bytes_max: usize,
    /// Bytes of all answers kept.
    pub answers_bytes_max: usize,
    /// For how long an operation under an id is remembered, in ms.
    pub once_ms: u64,
    /// About how much memory that may take; beyond, new ids are refused.
    pub once_bytes_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            resend_us: millis(200),
            expire_every_us: millis(100),
            expire_batch_max: 256,
            batch_bytes_max: 256 << 10,
            log_bytes_max: 256 << 10,
            window_bytes_max: 4 << 20,
            stream_bytes_max: 64 << 20,
            cut_after_us: millis(2000),
            pace_bytes_per_s_min: 128 << 10,
            waiters_max: 10_000,
            waiter_us: millis(100),
            lease: LeaseSettings { lease_us: millis(350), renew_us: millis(80), lax_us: millis(2000) },
            patience_us: millis(2000),
            mark_buckets: 4096,
            page_bytes_max: 256 << 10,
            survey_every_us: millis(4),
            survey_records_max: 256,
            value_bytes_max: 16 << 20,
            answer_bytes_max: 1 << 20,
            answers_bytes_max: 16 << 20,
            once_ms: 600_000,
            once_bytes_max: 16 << 20,
        }
    }
}

/// A way to replicate.
#[derive(Clone, Copy)]
pub struct Mode {
    /// What users call it.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// What it promises, which chooses the simulator's checker.
    pub promise: Promise,
    /// The name of a member's role, by its place and the number of members.
    pub role: fn(usize, usize) -> &'static str,
    /// Whether the shard serves all requests, by which members are alive.
    pub serves: fn(&[bool]) -> bool,
    /// How many more nodes may die, one after another, by which members are alive.
    pub tolerates: fn(&[bool]) -> usize,
    /// Who becomes the first member when that one is gone.
    pub succession: Succession,
    /// For [`replicated`]; another controlet may have its own.
    pub rules: Rules,
    /// Whether a client's request gets the locks of its keys from a service outside first.
    pub locks: bool,
    /// Makes a replica's controlet.
    pub build: fn(Now, View, Settings) -> Box<dyn AnyControlet>,
}

impl Mode {
    /// Whether a table can go from one to the other while it serves: one controlet goes on with other rules.
    pub fn is_like(&self, other: &Mode) -> bool {
        fn_addr_eq(self.build, other.build)
    }
}

/// A mode is known by its name.
impl Hash for Mode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

/// Who becomes the first member when that one is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Succession {
    /// The next in order, which has all that those behind it have.
    Next,
    /// Who has the most.
    MostAdvanced,
}

/// What a mode promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Each shard behaves as if there were one copy: linearizable. What was acknowledged is kept while one
    /// member of each view lives.
    Linearizable,
    /// All replicas end equal; a connection sees its own writes and never goes back in time.
    Convergent,
}

/// All modes, in the order users should consider them.
pub const MODES: &[Mode] =
    &[ms_sc::MODE, ms_ec::MODE, aa_sc::MODE, aa_ec::MODE, aa_ms::MODE, aa_sc_locks::MODE, aa_ec_log::MODE];

/// A mode by name.
pub fn mode<'a>(modes: &'a [Mode], name: &str) -> Option<&'a Mode> {
    modes.iter().find(|mode| mode.name == name)
}

/// A [`Controlet`] whose messages are frames' payloads, so that a node can hold any.
pub trait AnyControlet: Send + Copied {
    /// See [`Controlet::takes`].
    fn takes(&self, request: &Request) -> bool;
    /// See [`Controlet::step`]. A message that cannot be read is as good as lost.
    fn step(&mut self, now: Now, input: Input<Bytes>, out: &mut Outbox<Bytes>);
    /// See [`Controlet::wake_at`].
    fn wake_at(&self) -> Option<Micros>;
    /// See [`Controlet::status`].
    fn status(&self) -> Status;
    /// See [`Controlet::names`].
    fn names(&self) -> Names {
        Names::default()
    }
    /// See [`Controlet::inherit`].
    fn inherit(&mut self, _names: Names) {}
}

/// What is copied and hashed behind a `dyn`: any [`AnyControlet`] that is `Clone` and `Hash`.
pub trait Copied {
    /// Its copy.
    fn copied(&self) -> Box<dyn AnyControlet>;
    /// See [`Hash`].
    fn hashed(&self, state: &mut dyn Hasher);
}

impl<C: AnyControlet + Clone + Hash + 'static> Copied for C {
    fn copied(&self) -> Box<dyn AnyControlet> {
        Box::new(self.clone())
    }

    fn hashed(&self, mut state: &mut dyn Hasher) {
        self.hash(&mut state);
    }
}

impl Clone for Box<dyn AnyControlet> {
    fn clone(&self) -> Self {
        (**self).copied()
    }
}

impl Hash for dyn AnyControlet {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hashed(state);
    }
}

/// Wraps a controlet so that a node can hold it.
pub fn erase<C>(controlet: C) -> Box<dyn AnyControlet>
where
    C: Controlet<Message: Clone + Hash> + Clone + Hash + 'static,
{
    Box::new(Erased { controlet, outbox: Outbox::default() })
}

#[derive(Clone, Hash)]
struct Erased<C: Controlet> {
    controlet: C,
    outbox: Outbox<C::Message>,
}

impl<C> AnyControlet for Erased<C>
where
    C: Controlet<Message: Clone + Hash> + Clone + Hash + 'static,
{
    fn takes(&self, request: &Request) -> bool {
        self.controlet.takes(request)
    }

    fn step(&mut self, now: Now, input: Input<Bytes>, out: &mut Outbox<Bytes>) {
        let input = match input {
            Input::Request(request) => Input::Request(request),
            Input::Stored(done) => Input::Stored(done),
            Input::Wake => Input::Wake,
            Input::Left(member) => Input::Left(member),
            Input::View(view) => Input::View(view),
            Input::Full(full) => Input::Full(full),
            Input::Log(number, event) => Input::Log(number, event),
            Input::Peer(from, bytes) => match C::Message::from_bytes(bytes) {
                Ok(message) => Input::Peer(from, message),
                Err(_) => return,
            },
        };
        core::mem::swap(&mut out.effects, &mut self.outbox.effects);
        self.controlet.step(now, input, &mut self.outbox);
        core::mem::swap(&mut out.effects, &mut self.outbox.effects);
        out.sends.extend(self.outbox.sends.drain(..).map(|(to, message)| (to, message.to_bytes())));
    }

    fn wake_at(&self) -> Option<Micros> {
        self.controlet.wake_at()
    }

    fn status(&self) -> Status {
        self.controlet.status()
    }

    fn names(&self) -> Names {
        self.controlet.names()
    }

    fn inherit(&mut self, names: Names) {
        self.controlet.inherit(names);
    }
}

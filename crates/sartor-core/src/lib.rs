//! What decides in Sartor, and touches nothing.
//!
//! ```text
//!            Event ──▶ Node::step(now, event, actions) ──▶ Action
//!                        │
//!                        ├─ routing      key ─▶ slot ─▶ shard ─▶ replicas
//!                        ├─ session      what a connection has seen, per shard
//!                        ├─ forward      requests to the shard's head, in order, once
//!                        └─ controlet    ms+ec, … : one state machine a replica
//!                             │ Task ▲ Done
//!                             ▼      │
//!                           Keeper: records, expiry, versions ──▶ Datalet
//! ```
//!
//! The crate is `no_std`: the compiler refuses a clock, a socket, a thread, a file
//! or random state. Time, seeds and bytes come in as arguments, so the same code runs
//! in the server and, by the thousand seeds, in the simulator.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod controlet;
pub mod coordinator;
pub mod datalet;
mod deadlines;
pub mod division;
pub mod entry;
pub mod forward;
pub mod ids;
pub mod keeper;
pub mod mutants;
pub mod node;
pub mod operation;
pub mod random;
pub mod range;
pub mod record;
pub mod routing;
pub mod run;
pub mod seat;
pub mod session;
mod shelf;
pub mod stores;
pub mod survey;
pub mod time;
pub mod wire;
pub mod workload;

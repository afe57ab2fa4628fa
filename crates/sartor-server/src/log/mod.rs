//! A log outside of the cluster that several nodes share: one stream of messages per shard, in NATS JetStream.
//!
//! ```text
//!  workers ── ask (shard, number, LogCall) ──▶ Logs ── a thread that writes ──▶ NATS
//!          ◀── deliver (shard, number, LogEvent) ──── a thread that reads ◀──
//! ```
//!
//! A message gets into the log only after the message that its writer saw as the last one, so that of several
//! writers one wins and the others learn of it. A call never makes a worker wait for a network.

mod api;
mod connection;
mod nats;
mod place;
mod protocol;
mod reading;

use sartor_core::controlet::part::log::{LogCall, LogEvent};

pub use nats::Logs;

//! The front door: one logical Redis. Any node takes any key.
//!
//! ```text
//!  bytes ─▶ resp::parse ─▶ COMMANDS ─▶ Plan ─┬─ local ─────────────▶ reply
//!                                            └─ parts ─▶ Requests ─▶ gather ─▶ reply, in order
//! ```
//!
//! A command becomes a [`plan::Plan`]: an answer at once, or operations on shards and how to join
//! what they answer. One table, [`command::COMMANDS`], holds all commands; everything that must know
//! commands reads it.

pub mod admin;
pub mod command;
pub mod connection;
pub mod consistency;
pub mod data;
pub mod gather;
pub mod glob;
pub mod once;
pub mod plan;
pub mod pool;
pub mod range;
pub mod runs;
pub mod switch;
pub mod table;
pub mod verify;

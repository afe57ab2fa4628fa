//! What touches the world: sockets, clocks, files, processes. It decides nothing.
//!
//! ```text
//!  RESP clients ─▶ front ─▶ ┐                         ┌─▶ peers (frames over TCP)
//!                           ├─ worker: one event loop ─┤
//!  peers ─▶ link ─────────▶ ┘   around one core Node  └─▶ stores
//! ```

pub mod client;
pub mod clock;
pub mod config;
pub mod coordinator;
pub mod front;
pub mod link;
pub mod locks;
pub mod log;
pub mod metadata;
pub mod modes;
pub mod node;
pub mod outside;
pub mod resp;
pub mod settings;
pub mod socket;
pub mod stats;
pub mod status;
mod stores;
pub mod survey;
pub mod worker;

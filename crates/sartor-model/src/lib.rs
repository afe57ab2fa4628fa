//! The shipped core in a world so small that all of it can be explored.
//!
//! ```text
//!   World ── every Step that can happen ──▶ Worlds ──▶ …      each node: the shipped Node over the shipped Keeper
//!     └─ always: linearizable, one view serves, one history   coordinator: the shipped rules of repair
//! ```
//!
//! What is explored, and what is left out, is in docs/reliability.md.

pub mod coordinator;
pub mod history;
pub mod intern;
pub mod local;
pub mod model;
pub mod world;

/// No more maps than this.
pub const MAPS_MAX: usize = 8;

/// Faults of the world around the core, each of which breaks a promise that the core relies on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Planted {
    /// None.
    #[default]
    Nothing,
    /// A node's clock stands still, as one that does not count suspended time.
    ClockStops,
    /// Who has joined counts at once, before it has all promises and all entries.
    CountsAtOnce,
    /// The others are told that a removed member has left, though it has not heard of it.
    SaysItLeft,
}

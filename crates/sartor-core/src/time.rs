//! Time as an argument: the core never asks a clock.

/// Microseconds on the steady clock.
pub type Micros = u64;

/// One reading of the clocks, taken by the world around the core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Now {
    /// Microseconds on a clock that never goes back and counts suspended time
    /// (`CLOCK_BOOTTIME`): timers, deadlines and leases.
    pub steady_us: Micros,
    /// Milliseconds since 1970 on the wall clock, which may jump: expiry only.
    pub unix_ms: u64,
}

/// Milliseconds as microseconds.
pub const fn millis(ms: u64) -> Micros {
    ms.saturating_mul(1000)
}

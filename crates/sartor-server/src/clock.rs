//! The clocks of the machine.

use rustix::time::{ClockId, clock_gettime};
use sartor_core::time::Now;

/// Reads the clocks: steady time counts suspended time too.
pub fn now() -> Now {
    let steady = clock_gettime(ClockId::Boottime);
    let wall = clock_gettime(ClockId::Realtime);
    Now {
        steady_us: steady.tv_sec as u64 * 1_000_000 + steady.tv_nsec as u64 / 1000,
        unix_ms: wall.tv_sec as u64 * 1000 + wall.tv_nsec as u64 / 1_000_000,
    }
}

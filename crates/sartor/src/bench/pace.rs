//! When requests are due in an open loop, and a timer that is exact enough for it.

use clap::ValueEnum;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use rustix::time::{timerfd_create, timerfd_settime};
use sartor_core::random::Random;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// How requests of an open loop are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Arrivals {
    /// At equal distances
    Constant,
    /// At random, independently of each other
    Poisson,
}

/// The times at which requests should be sent, whatever the server does.
pub struct Schedule {
    arrivals: Arrivals,
    gap_ns: f64,
    due_ns: f64,
    random: Random,
}

impl Schedule {
    /// So many requests a second from `begin_ns` on; of several threads, number `part` of `parts` has its share.
    pub fn new(arrivals: Arrivals, rate: f64, begin_ns: u64, part: u64, parts: u64, seed: u64) -> Schedule {
        let gap_ns = 1e9 * parts as f64 / rate;
        let offset = gap_ns * part as f64 / parts as f64;
        let random = Random::new(seed ^ part.wrapping_mul(0x9e37_79b9));
        Schedule { arrivals, gap_ns, due_ns: begin_ns as f64 + offset, random }
    }

    /// When the next request is due.
    pub fn due(&self) -> u64 {
        self.due_ns as u64
    }

    /// Takes it.
    pub fn take(&mut self) -> u64 {
        let due = self.due();
        self.due_ns += match self.arrivals {
            Arrivals::Constant => self.gap_ns,
            Arrivals::Poisson => -(1.0 - self.random.unit()).ln() * self.gap_ns,
        };
        due
    }
}

/// A timer that wakes a poll, to the microsecond; epoll's own timeout counts milliseconds.
pub struct Timer(OwnedFd);

impl Timer {
    /// One that is told of under this token.
    pub fn new(registry: &Registry, token: Token) -> io::Result<Timer> {
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        registry.register(&mut SourceFd(&fd.as_raw_fd()), token, Interest::READABLE)?;
        Ok(Timer(fd))
    }

    /// Wakes in so many ns.
    pub fn set(&self, ns: u64) -> io::Result<()> {
        let ns = ns.max(1);
        let value = Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as _ };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_the_rate() {
        let mut dues = Vec::new();
        for part in 0..4 {
            let mut schedule = Schedule::new(Arrivals::Constant, 1000.0, 500, part, 4, 1);
            dues.extend((0..25).map(|_| schedule.take()));
        }
        dues.sort_unstable();
        assert!(dues.windows(2).all(|pair| pair[1] - pair[0] == 1_000_000), "{dues:?}");
        assert_eq!(dues[0], 500);
    }

    #[test]
    fn random_arrivals_keep_the_rate() {
        let mut schedule = Schedule::new(Arrivals::Poisson, 1000.0, 0, 0, 1, 1);
        let dues: Vec<u64> = (0..100_000).map(|_| schedule.take()).collect();
        let mean = dues[dues.len() - 1] as f64 / dues.len() as f64;
        assert!((mean / 1e6 - 1.0).abs() < 0.02, "{mean}");
        // The gaps' standard deviation is their mean.
        let gaps: Vec<f64> = dues.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let square = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((square.sqrt() / mean - 1.0).abs() < 0.03);
    }
}

//! Many seeds, on all cores.

use indicatif::{ProgressBar, ProgressStyle};
use sartor_sim::{Config, Summary};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// What to run.
pub struct Seeds {
    /// What is simulated.
    pub config: Config,
    /// The first seed.
    pub first: u64,
    /// How many.
    pub count: u64,
    /// Stop at the first one that fails.
    pub until_found: bool,
}

impl Seeds {
    /// What they did together, and those that failed, in order.
    pub fn run(&self, progress: bool) -> (Summary, Vec<(u64, String)>) {
        let next = AtomicU64::new(self.first);
        let end = AtomicU64::new(self.first + self.count);
        let total = Mutex::new(Summary::default());
        let failures = Mutex::new(Vec::new());
        let style = ProgressStyle::with_template("{bar:40} {pos}/{len} seeds, {elapsed} of {duration}");
        let bar = if progress { ProgressBar::new(self.count) } else { ProgressBar::hidden() };
        let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        // A panic is a finding: it is reported with its seed, not printed where it happens.
        std::panic::set_hook(Box::new(|_| {}));
        let work = || {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= end.load(Ordering::Relaxed) {
                    return;
                }
                match (sartor_sim::run(seed, &self.config), total.lock(), failures.lock()) {
                    (Ok(summary), Ok(mut total), _) => total.add(&summary),
                    (Err(error), _, Ok(mut failures)) => {
                        failures.push((seed, error));
                        if self.until_found {
                            end.store(seed, Ordering::Relaxed);
                        }
                    }
                    _ => return,
                }
                bar.inc(1);
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
        let _ = std::panic::take_hook();
        bar.finish_and_clear();
        let mut failures = failures.into_inner().unwrap_or_default();
        failures.sort();
        (total.into_inner().unwrap_or_default(), failures)
    }
}

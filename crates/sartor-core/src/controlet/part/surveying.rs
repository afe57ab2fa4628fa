//! A survey of what a replica holds goes on bit by bit between other work, by the clock, so that the shard serves
//! meanwhile. See `survey.rs` for what it does.

use crate::controlet::Settings;
use crate::entry::Entry;
use crate::keeper::Task;
use crate::time::{Micros, Now, millis};

/// When the store is asked to go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Surveying {
    /// Not before this time; none if nothing is to be done.
    at: Option<Micros>,
    /// It was asked, and has not answered.
    asked: bool,
    /// How late it was asked: who is late has other work.
    late: Micros,
}

/// Whoever is late takes so many times as long a pause, but none longer than this.
const LATE_FACTOR: u64 = 4;
const PAUSE_MAX_US: Micros = millis(100);

impl Surveying {
    /// The store gets this entry, or has it.
    pub fn note(&mut self, now: Now, entry: &Entry) {
        if entry.writes.is_survey() {
            self.at = Some(now.steady_us);
        }
    }

    /// Whether the store should be asked.
    pub fn is_due(&self, now: Now) -> bool {
        self.wake_at().is_some_and(|at| at <= now.steady_us)
    }

    /// What it is asked.
    pub fn task(&mut self, now: Now, settings: &Settings) -> Task {
        let late = now.steady_us.saturating_sub(self.at.unwrap_or(now.steady_us));
        *self = Surveying { at: None, asked: true, late };
        Task::Survey(settings.survey_records_max, settings.page_bytes_max)
    }

    /// The store has gone on. Where another survey came after it was asked, that one is due anyway.
    pub fn on_surveyed(&mut self, now: Now, more: bool, settings: &Settings) {
        self.asked = false;
        if more && self.at.is_none() {
            let busy = (self.late * LATE_FACTOR).min(PAUSE_MAX_US);
            self.at = Some(now.steady_us + settings.survey_every_us + busy);
        }
    }

    /// When it wants to be called.
    pub fn wake_at(&self) -> Option<Micros> {
        self.at.filter(|_| !self.asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Write, Writes};
    use crate::ids::Position;

    fn at(ms: u64) -> Now {
        Now { steady_us: millis(ms), unix_ms: 0 }
    }

    #[test]
    fn who_is_busy_surveys_less_and_no_survey_is_forgotten() {
        let settings = Settings { survey_every_us: millis(4), ..Settings::default() };
        let entry = Entry { position: Position::ZERO, writes: Writes::of([Write::Survey]) };
        let mut surveying = Surveying::default();
        assert!(!surveying.is_due(at(0)));
        surveying.note(at(0), &entry);
        assert!(surveying.is_due(at(0)));
        surveying.task(at(0), &settings);
        assert_eq!(surveying.wake_at(), None);
        surveying.on_surveyed(at(0), true, &settings);
        assert_eq!(surveying.wake_at(), Some(millis(4)));
        surveying.task(at(6), &settings);
        surveying.on_surveyed(at(6), true, &settings);
        assert_eq!(surveying.wake_at(), Some(millis(6 + 4 + 8)));
        surveying.task(at(2000), &settings);
        surveying.note(at(2001), &entry);
        surveying.on_surveyed(at(2002), false, &settings);
        assert_eq!(surveying.wake_at(), Some(millis(2001)), "the next one came while it was asked");
        surveying.task(at(9000), &settings);
        surveying.on_surveyed(at(9000), true, &settings);
        assert_eq!(surveying.wake_at(), Some(millis(9000 + 4 + 100)));
    }
}

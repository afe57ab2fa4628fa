//! A survey of what a replica holds goes on bit by bit between other work, by the clock, so that the shard serves
//! meanwhile. See `survey.rs` for what it does.

use crate::controlet::Settings;
use crate::keeper::{Entry, Task, Write, Writes};
use crate::time::{Micros, Now};

/// When the store is asked to go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Surveying {
    /// Not before this time; none if nothing is to be done.
    at: Option<Micros>,
    /// It was asked, and has not answered.
    asked: bool,
}

impl Surveying {
    /// The store gets this entry, or has it.
    pub fn note(&mut self, now: Now, entry: &Entry) {
        if let Writes::One(Write::Survey) = &entry.writes {
            self.at = Some(now.steady_us);
        }
    }

    /// Whether the store should be asked.
    pub fn is_due(&self, now: Now) -> bool {
        self.wake_at().is_some_and(|at| at <= now.steady_us)
    }

    /// What it is asked.
    pub fn task(&mut self, settings: &Settings) -> Task {
        *self = Surveying { at: None, asked: true };
        Task::Survey(settings.survey_records_max, settings.page_bytes_max)
    }

    /// The store has gone on. Where another survey came after it was asked, that one is due anyway.
    pub fn on_surveyed(&mut self, now: Now, more: bool, settings: &Settings) {
        self.asked = false;
        if more && self.at.is_none() {
            self.at = Some(now.steady_us + settings.survey_every_us);
        }
    }

    /// When it wants to be called.
    pub fn wake_at(&self) -> Option<Micros> {
        self.at.filter(|_| !self.asked)
    }
}

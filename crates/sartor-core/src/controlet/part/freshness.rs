//! How fresh is what a replica has, by the clock here.
//!
//! ```text
//!  here ── stamp: our clock ──▶ who orders ── echo of it, and the newest entry ──▶ here
//! ```
//!
//! Who orders tells with its promises (`lease.rs`) how far it is, while it may serve. It told so after it had our stamp; so once all up to
//! there is here, everything is here that had been acknowledged when we made that stamp. No two clocks are compared.

use crate::time::Micros;
use alloc::collections::VecDeque;

/// So many places are waited for; newer ones come soon again.
const HEARD_MAX: usize = 8;

/// What is known of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Freshness {
    /// By our clock at that time, who orders had this.
    heard: VecDeque<(Micros, u64)>,
    /// All that was acknowledged until then is here.
    as_of: Option<Micros>,
}

impl Freshness {
    /// Another view: others may order.
    pub fn on_view(&mut self) {
        self.heard.clear();
    }

    /// Who orders had this at that time.
    pub fn on_told(&mut self, at: Micros, newest: u64) {
        if self.heard.len() < HEARD_MAX {
            self.heard.push_back((at, newest));
        }
    }

    /// Everything up to here is here.
    pub fn on_applied(&mut self, applied: u64) {
        while let Some((at, _)) = self.heard.front().copied().filter(|(_, newest)| *newest <= applied) {
            self.heard.pop_front();
            self.as_of = self.as_of.max(Some(at));
        }
    }

    /// The time up to which all that had been acknowledged is here, if any.
    pub fn as_of(&self) -> Option<Micros> {
        self.as_of
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_counts_once_it_is_here() {
        let mut freshness = Freshness::default();
        freshness.on_told(10, 5);
        freshness.on_told(20, 7);
        freshness.on_applied(4);
        assert_eq!(freshness.as_of(), None);
        freshness.on_applied(6);
        assert_eq!(freshness.as_of(), Some(10));
        freshness.on_view();
        freshness.on_applied(9);
        assert_eq!(freshness.as_of(), Some(10), "what another one said then is not known to be true now");
    }
}

//! The network between nodes: it delays and reorders always, and loses, repeats and cuts as told.

use crate::plan::FaultKind;
use sartor_core::random::Random;
use sartor_core::time::{Micros, millis};

/// How late a message may come at most.
const LATE_US: Micros = millis(8000);

/// The state of the network.
#[derive(Clone, Debug, Default)]
pub struct Net {
    faults: Vec<FaultKind>,
    /// Nothing goes wrong any more, but for a link that is dead for ever.
    pub healed: bool,
    /// That link.
    pub lasting: Option<FaultKind>,
}

impl Net {
    /// A fault begins.
    pub fn begin(&mut self, fault: FaultKind) {
        self.faults.push(fault);
    }

    /// A fault ends.
    pub fn end(&mut self, fault: FaultKind) {
        if let Some(index) = self.faults.iter().position(|active| *active == fault) {
            self.faults.remove(index);
        }
    }

    /// How long after it was sent each copy of a message arrives; none if it is lost.
    pub fn copies(&self, random: &mut Random, from: u16, to: u16) -> Vec<Micros> {
        if self.lasting.is_some_and(|fault| fault.cuts(from, to)) {
            return Vec::new();
        }
        if self.healed {
            return vec![random.between(50, 1000)];
        }
        let (mut loss, mut duplication, mut delay, mut late) = (1, 1, 0, 0);
        for fault in &self.faults {
            match *fault {
                FaultKind::Loss(percent) => loss = loss.max(percent),
                FaultKind::Duplication(percent) => duplication = duplication.max(percent),
                FaultKind::Delay(by) => delay = delay.max(by),
                FaultKind::Late(percent) => late = late.max(percent),
                cut if cut.cuts(from, to) => loss = 100,
                _ => {}
            }
        }
        if random.percent(loss) {
            return Vec::new();
        }
        let longer = if random.percent(late) { LATE_US } else { delay };
        let mut copies = vec![random.between(50, 2000) + random.below(longer + 1)];
        if random.percent(duplication) {
            // Now and then the second one comes when much has changed.
            let longer = if random.percent(20) { LATE_US } else { longer };
            copies.push(random.between(50, 2000) + random.below(longer + 1));
        }
        copies
    }
}

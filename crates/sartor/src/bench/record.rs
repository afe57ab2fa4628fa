//! What is counted while a load runs: latencies, errors, and both over time. One a thread, added up at the end.

use hdrhistogram::Histogram;
use sartor_core::workload::{ACTIONS, Action};
use std::collections::BTreeMap;

/// Shorter times are all the same.
const LATENCY_MIN_NS: u64 = 64;
/// Longer ones count as this: an hour.
const LATENCY_MAX_NS: u64 = 3_600_000_000_000;
/// Kinds of errors that are told apart.
const ERRORS_MAX: usize = 32;
/// Points over time; what comes after the last one counts for it.
pub const POINTS_MAX: usize = 600;

/// A histogram of latencies in ns, with so many digits.
fn histogram<T: hdrhistogram::Counter>(digits: u8) -> Histogram<T> {
    Histogram::new_with_bounds(LATENCY_MIN_NS, LATENCY_MAX_NS, digits).expect("the bounds are right")
}

/// Requests that were answered between two times.
pub struct Point {
    /// How many.
    pub answered: u64,
    /// How many were refused or lost.
    pub errors: u64,
    /// How long they took, in ns.
    pub latencies: Histogram<u32>,
}

/// What a thread counted.
pub struct Record {
    /// How long requests took by action, in ns.
    latencies: Vec<Option<Histogram<u64>>>,
    /// Reads that found nothing.
    pub missing: u64,
    /// Refused and lost requests by kind.
    pub errors: BTreeMap<String, u64>,
    /// Connections made anew.
    pub reconnects: u64,
    /// Requests that had no answer at the end; they are among the latencies with the time they had waited.
    pub unanswered: u64,
    /// Answers to requests, those of a read-modify-write counted one by one.
    pub answered: u64,
    /// When the last answer came, in ns of the run's clock.
    pub last_ns: u64,
    begin_ns: u64,
    point_ns: u64,
    /// Over time.
    pub points: Vec<Point>,
}

impl Record {
    /// Counts what comes after `begin_ns`, in points of `point_ns`.
    pub fn new(begin_ns: u64, point_ns: u64) -> Record {
        Record {
            latencies: ACTIONS.iter().map(|_| None).collect(),
            missing: 0,
            errors: BTreeMap::new(),
            reconnects: 0,
            unanswered: 0,
            answered: 0,
            last_ns: begin_ns,
            begin_ns,
            point_ns: point_ns.max(1),
            points: Vec::new(),
        }
    }

    /// An answer that came now to a request that should have been sent at `due`.
    pub fn answer(&mut self, action: Action, due: u64, now: u64) {
        if now < self.begin_ns {
            return;
        }
        let latency = now.saturating_sub(due);
        self.latency(action, latency);
        // The whole of a read-modify-write is no request of its own.
        if action != Action::ReadModifyWrite {
            self.answered += 1;
            self.last_ns = now;
            let point = self.point(now);
            point.answered += 1;
            point.latencies.saturating_record(latency);
        }
    }

    /// A request that was refused, or whose connection died.
    pub fn error(&mut self, kind: &[u8], now: u64) {
        if now < self.begin_ns {
            return;
        }
        self.last_ns = now;
        self.point(now).errors += 1;
        let word = kind.split(|byte| *byte == b' ').next().unwrap_or_default();
        let word = String::from_utf8_lossy(&word[..word.len().min(40)]);
        match self.errors.get_mut(word.as_ref()) {
            Some(count) => *count += 1,
            None => {
                let word = if self.errors.len() < ERRORS_MAX { word.as_ref() } else { "other" };
                *self.errors.entry(word.to_owned()).or_default() += 1;
            }
        }
    }

    /// A request that has waited until the end.
    pub fn unanswered(&mut self, action: Action, due: u64, end: u64) {
        self.unanswered += 1;
        self.latency(action, end.saturating_sub(due));
    }

    fn latency(&mut self, action: Action, latency: u64) {
        let place = action as usize;
        self.latencies[place].get_or_insert_with(|| histogram(3)).saturating_record(latency);
    }

    fn point(&mut self, now: u64) -> &mut Point {
        let place = ((now - self.begin_ns) / self.point_ns) as usize;
        let place = place.min(POINTS_MAX - 1);
        while self.points.len() <= place {
            self.points.push(Point { answered: 0, errors: 0, latencies: histogram(2) });
        }
        &mut self.points[place]
    }

    /// Latencies of an action.
    pub fn of(&self, action: Action) -> Option<&Histogram<u64>> {
        self.latencies[action as usize].as_ref()
    }

    /// Latencies of all requests.
    pub fn all(&self) -> Histogram<u64> {
        let mut all = histogram(3);
        for action in ACTIONS.into_iter().filter(|action| *action != Action::ReadModifyWrite) {
            if let Some(latencies) = self.of(action) {
                all.add(latencies).expect("all have the same bounds");
            }
        }
        all
    }

    /// Adds what another thread counted.
    pub fn add(&mut self, other: &Record) {
        for (mine, its) in self.latencies.iter_mut().zip(&other.latencies) {
            if let Some(its) = its {
                mine.get_or_insert_with(|| histogram(3)).add(its).expect("all have the same bounds");
            }
        }
        self.missing += other.missing;
        self.reconnects += other.reconnects;
        self.unanswered += other.unanswered;
        self.answered += other.answered;
        self.last_ns = self.last_ns.max(other.last_ns);
        for (kind, count) in &other.errors {
            *self.errors.entry(kind.clone()).or_default() += count;
        }
        for (place, its) in other.points.iter().enumerate() {
            if self.points.len() <= place {
                self.points.push(Point { answered: 0, errors: 0, latencies: histogram(2) });
            }
            let mine = &mut self.points[place];
            mine.answered += its.answered;
            mine.errors += its.errors;
            mine.latencies.add(&its.latencies).expect("all have the same bounds");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_before_the_begin_does_not_count() {
        let mut record = Record::new(1000, 100);
        record.answer(Action::Read, 0, 999);
        record.error(b"OOM", 999);
        assert_eq!((record.answered, record.errors.len()), (0, 0));
        // A request that was due before it does, with all the time it took.
        record.answer(Action::Read, 500, 1250);
        assert_eq!(record.answered, 1);
        assert_eq!(record.of(Action::Read).unwrap().max(), 750 | 63);
        assert_eq!(record.points.iter().map(|point| point.answered).collect::<Vec<_>>(), [0, 0, 1]);
    }

    #[test]
    fn threads_add_up() {
        let (mut one, mut other) = (Record::new(0, 10), Record::new(0, 10));
        one.answer(Action::Read, 0, 5);
        other.answer(Action::Update, 0, 25);
        other.answer(Action::ReadModifyWrite, 0, 25);
        other.error(b"LOADING wait", 25);
        other.unanswered(Action::Read, 0, 90);
        one.add(&other);
        assert_eq!((one.answered, one.unanswered, one.last_ns), (2, 1, 25));
        assert_eq!(one.all().len(), 3);
        assert_eq!(one.of(Action::ReadModifyWrite).unwrap().len(), 1);
        assert_eq!(one.errors, BTreeMap::from([("LOADING".to_owned(), 1)]));
        assert_eq!(one.points.len(), 3);
    }

    #[test]
    fn kinds_and_points_have_limits() {
        let mut record = Record::new(0, 1);
        for kind in 0..100 {
            record.error(format!("E{kind} x").as_bytes(), 1 << 40);
        }
        assert_eq!(record.errors.len(), ERRORS_MAX + 1);
        assert_eq!(record.errors.values().sum::<u64>(), 100);
        assert_eq!(record.points.len(), POINTS_MAX);
    }
}

//! One reading of a log: which messages to ask for, and in which parts to hand them on.

use super::LogEvent;
use super::api::State;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::mem::take;

/// A part is handed on when it has so much.
const PART_BYTES: u64 = 4 << 20;
const PART_MESSAGES: usize = 16_384;
/// How many messages are asked for at a time, if they are small.
const WINDOW: u64 = 64;
/// How much of large ones is asked for at a time, about.
const WINDOW_BYTES: u64 = 8 << 20;

/// Where a reading stands. It begins with asking for the state of the stream.
#[derive(Debug)]
pub(super) struct Reading {
    /// The next message of the part.
    cursor: u64,
    /// The last message there is to read.
    last: u64,
    /// The next message to ask for.
    unasked: u64,
    /// Messages that came before those in front of them.
    early: BTreeMap<u64, Bytes>,
    part: Vec<(u64, Bytes)>,
    part_bytes: u64,
    /// The largest message seen, or what they have on average.
    largest: u64,
    /// A message that is not there although it should be; 0 for none.
    missing: u64,
}

impl Reading {
    pub(super) fn new(after: u64) -> Reading {
        Reading {
            cursor: after.saturating_add(1),
            last: 0,
            unasked: 0,
            early: BTreeMap::new(),
            part: Vec::new(),
            part_bytes: 0,
            largest: 0,
            missing: 0,
        }
    }

    /// The log has a message with this number, or had it.
    pub(super) fn reaches(&mut self, sequence: u64) {
        self.last = self.last.max(sequence);
    }

    /// The stream stands here. Called at first, and again after each message that was missing: it must have been
    /// trimmed, or else the log is damaged, or answered by who does not know all of it.
    pub(super) fn informed(&mut self, state: &State) -> Result<(), String> {
        if state.last_seq < self.last {
            return Err(format!("it ended at {} before and now at {}", self.last, state.last_seq));
        }
        if self.missing > 0 && self.missing >= state.first_seq {
            return Err(format!("its message {} is missing", self.missing));
        }
        self.last = state.last_seq;
        self.cursor = self.cursor.max(state.first_seq);
        self.unasked = self.cursor;
        self.early.clear();
        self.largest = self.largest.max(state.bytes / state.messages.max(1));
        Ok(())
    }

    /// The next message to ask for now, if any.
    pub(super) fn next(&mut self) -> Option<u64> {
        let window = (WINDOW_BYTES / self.largest.max(1)).clamp(1, WINDOW);
        let next = self.unasked;
        let wanted = next <= self.last && next - self.cursor < window;
        self.unasked += u64::from(wanted);
        wanted.then_some(next)
    }

    /// A message came.
    pub(super) fn arrived(&mut self, sequence: u64, payload: Bytes) {
        self.largest = self.largest.max(payload.len() as u64);
        self.early.insert(sequence, payload);
        while let Some(payload) = self.early.remove(&self.cursor) {
            self.part_bytes += payload.len() as u64;
            self.part.push((self.cursor, payload));
            self.cursor += 1;
        }
    }

    /// There is no such message. What is on its way does not matter any more; the state must be asked for again.
    pub(super) fn missed(&mut self, sequence: u64) {
        self.missing = self.missing.max(sequence);
    }

    /// What can be handed on, if it is enough; whether it is the end.
    pub(super) fn part(&mut self) -> Option<(LogEvent, bool)> {
        let over = self.cursor > self.last;
        if !over && self.part_bytes < PART_BYTES && self.part.len() < PART_MESSAGES {
            return None;
        }
        self.part_bytes = 0;
        let end = over.then_some(self.last);
        Some((LogEvent::Read { messages: take(&mut self.part), end }, over))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(first_seq: u64, last_seq: u64, bytes: u64) -> State {
        State { messages: (last_seq + 1 - first_seq).min(last_seq), bytes, first_seq, last_seq }
    }

    fn asked(reading: &mut Reading) -> Vec<u64> {
        std::iter::from_fn(|| reading.next()).collect()
    }

    fn read(offsets: &[u64], end: Option<u64>) -> Option<(LogEvent, bool)> {
        let messages = offsets.iter().map(|offset| (*offset, Bytes::from_static(b"x"))).collect();
        Some((LogEvent::Read { messages, end }, end.is_some()))
    }

    #[test]
    fn messages_come_in_any_order_and_leave_in_theirs() {
        let mut reading = Reading::new(1);
        reading.informed(&state(1, 4, 100)).unwrap();
        assert_eq!(asked(&mut reading), [2, 3, 4]);
        for offset in [3, 4] {
            reading.arrived(offset, Bytes::from_static(b"x"));
            assert_eq!(reading.part(), None);
        }
        reading.arrived(2, Bytes::from_static(b"x"));
        assert_eq!(reading.part(), read(&[2, 3, 4], Some(4)));
    }

    #[test]
    fn nothing_to_read_is_the_end() {
        for (after, at, end) in
            [(0, state(0, 0, 0), 0), (0, state(8, 7, 0), 7), (7, state(3, 7, 9), 7), (9, state(1, 7, 9), 7)]
        {
            let mut reading = Reading::new(after);
            reading.informed(&at).unwrap();
            assert_eq!(asked(&mut reading), [0_u64; 0]);
            assert_eq!(reading.part(), read(&[], Some(end)));
        }
        assert_eq!(Reading::new(u64::MAX).cursor, u64::MAX);
    }

    #[test]
    fn large_messages_are_asked_for_few_at_a_time() {
        let mut reading = Reading::new(0);
        reading.informed(&state(1, 100, 100 << 20)).unwrap();
        assert_eq!(asked(&mut reading).len(), 8);
        for offset in 1..=4 {
            assert_eq!(reading.part(), None);
            reading.arrived(offset, Bytes::from(vec![0; 1 << 20]));
        }
        assert_eq!(asked(&mut reading), [9, 10, 11, 12]);
        let Some((LogEvent::Read { messages, end: None }, false)) = reading.part() else { panic!() };
        assert_eq!(messages.len(), 4);
        let mut small = Reading::new(0);
        small.informed(&state(1, 1000, 1000)).unwrap();
        assert_eq!(asked(&mut small).len(), 64);
    }

    #[test]
    fn only_what_was_trimmed_may_be_missing() {
        let mut reading = Reading::new(0);
        reading.informed(&state(1, 5, 100)).unwrap();
        asked(&mut reading);
        reading.arrived(1, Bytes::from_static(b"x"));
        reading.missed(3);
        reading.informed(&state(4, 5, 40)).unwrap();
        assert_eq!(asked(&mut reading), [4, 5]);
        reading.arrived(4, Bytes::from_static(b"x"));
        reading.missed(5);
        assert!(reading.informed(&state(4, 5, 40)).unwrap_err().contains("message 5 is missing"));
        assert!(reading.informed(&state(4, 4, 40)).unwrap_err().contains("ended at 5"));
    }
}

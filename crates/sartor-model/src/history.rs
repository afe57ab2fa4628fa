//! What two clients saw, and whether one copy of the register could have shown it.
//!
//! Each client appends its letter and reads, one after the other. An append answers with the length, so every answer
//! tells how many appends came before it, and a value tells which, how often and in which order.

/// Clients.
pub const CLIENTS: usize = 2;
/// What each asks: an append, then a read.
pub const ASKS: u8 = 2;

/// One client's side of the history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client {
    /// How many of its requests were answered.
    pub done: u8,
    /// Whether it waits for the next one.
    pub waits: bool,
    /// For each request, how many of the other client's were answered when it began.
    pub saw: [u8; ASKS as usize],
    /// The answers: a length, and the number of a value.
    pub answers: [u8; ASKS as usize],
}

/// A value as a number, one that no history can explain where it is not made of the clients' letters.
pub fn number_of(value: &[u8]) -> u8 {
    let known: [&[u8]; 5] = [b"", b"a", b"b", b"ab", b"ba"];
    known.iter().position(|known| *known == value).map_or(u8::MAX, |number| number as u8)
}

/// A value with a letter appended; what is not possible stays so.
fn append(value: u8, client: usize) -> u8 {
    match (value, client) {
        (0, 0) => 1,
        (0, _) => 2,
        (1, 1) => 3,
        (2, 0) => 4,
        _ => u8::MAX,
    }
}

fn length(value: u8) -> u8 {
    match value {
        0 => 0,
        1 | 2 => 1,
        3 | 4 => 2,
        _ => u8::MAX,
    }
}

/// Whether some order of the requests explains all answers, keeps to real time, and ends where a read now
/// gives `seen` (if that is asked).
pub fn is_linear(clients: &[Client; CLIENTS], seen: Option<u8>) -> bool {
    explains(clients, [0; CLIENTS], 0, seen)
}

fn explains(clients: &[Client; CLIENTS], at: [u8; CLIENTS], value: u8, seen: Option<u8>) -> bool {
    let all = (0..CLIENTS).all(|client| at[client] >= clients[client].done);
    if all && seen.is_none_or(|seen| seen == value) {
        return true;
    }
    (0..CLIENTS).any(|client| {
        let (me, place) = (&clients[client], at[client]);
        let begun = place < me.done + u8::from(me.waits);
        if !begun || at[1 - client] < me.saw[usize::from(place)] {
            return false;
        }
        let answered = place < me.done;
        let next = if place == 0 { append(value, client) } else { value };
        let answer = if place == 0 { length(next) } else { next };
        let mut then = at;
        then[client] += 1;
        let fits = !answered || answer == me.answers[usize::from(place)];
        fits && explains(clients, then, next, seen)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(done: u8, waits: bool, saw: [u8; 2], answers: [u8; 2]) -> Client {
        Client { done, waits, saw, answers }
    }

    #[test]
    fn answers_in_an_order_that_real_time_allows_are_explained() {
        let (a, b) = (client(2, false, [0, 0], [1, 3]), client(2, false, [1, 1], [2, 3]));
        assert!(is_linear(&[a, b], Some(3)));
        assert!(!is_linear(&[a, b], Some(1)), "a read goes back in time");
        let late = client(2, false, [0, 0], [2, 4]);
        assert!(!is_linear(&[late, b], None), "both came second");
    }

    #[test]
    fn what_is_not_answered_may_have_happened_or_not() {
        let (a, b) = (client(0, true, [0, 0], [0, 0]), client(1, false, [0, 0], [1, 0]));
        assert!(is_linear(&[a, b], Some(2)) && is_linear(&[a, b], Some(4)));
        assert!(!is_linear(&[a, b], Some(3)), "the second one was answered as the first");
        assert!(!is_linear(&[a, b], Some(1)), "what was answered is lost");
        assert!(!is_linear(&[a, b], Some(number_of(b"bb"))), "done twice");
    }

    #[test]
    fn a_read_that_began_after_an_answer_knows_of_it() {
        let (a, b) = (client(1, false, [0, 0], [1, 0]), client(2, false, [0, 1], [1, 2]));
        assert!(!is_linear(&[a, b], None));
    }
}

//! The checker of histories: known good and known broken ones, and random ones beside a search through all orders.

use sartor_core::random::Random;
use sartor_sim::history::{Answer, Ask, Call, Held, Outcome, explain, lost, went_back};

const NEVER: u64 = u64::MAX;

fn call(ask: Ask, outcome: Outcome, start_us: u64, end_us: u64) -> Call {
    Call { client: 0, ask, outcome, start_us, end_us }
}

fn set(value: u64, start: u64, end: u64) -> Call {
    let outcome = if end == NEVER { Outcome::Unknown } else { Outcome::Answered(Answer::Done) };
    call(Ask::Set(value), outcome, start, end)
}

fn get(value: Held, start: u64, end: u64) -> Call {
    call(Ask::Get, Outcome::Answered(Answer::Value(value)), start, end)
}

fn add(value: u64, start: u64, end: u64) -> Call {
    call(Ask::Increment, Outcome::Answered(Answer::Value(Some(value))), start, end)
}

fn why(calls: &[Call]) -> String {
    explain(calls).err().map_or_else(String::new, |violation| violation.why)
}

#[test]
fn what_overlaps_may_come_in_any_order() {
    explain(&[set(1, 0, 10), get(Some(1), 2, 5), get(None, 1, 4)]).unwrap();
    explain(&[set(1, 0, 10), set(2, 0, 10), get(Some(1), 11, 12)]).unwrap();
    explain(&[set(1, 0, 10), get(None, 10, 12)]).unwrap();
    explain(&[add(2, 0, 9), add(1, 3, 7), get(Some(2), 10, 11)]).unwrap();
}

#[test]
fn a_stale_read() {
    assert!(why(&[set(1, 0, 1), set(2, 2, 3), get(Some(1), 4, 5)]).contains("no order"));
    assert_eq!(explain(&[set(1, 0, 10), get(Some(1), 1, 2), get(None, 3, 4)]).unwrap_err().call, 2);
}

#[test]
fn a_lost_write() {
    let calls = [set(1, 0, 1), set(2, 2, 3), get(Some(1), 4, 5)];
    assert_eq!(lost(&calls, Some(1)), [1]);
    assert_eq!(lost(&calls, None), [1]);
    assert!(lost(&calls, Some(2)).is_empty());
    assert_eq!(lost(&[add(1, 0, 1), add(2, 2, 3), add(3, 4, 5)], Some(2)), [2]);
    let again = [add(1, 0, 1), add(2, 2, 3), add(2, 20, 21), add(3, 22, 23)];
    assert_eq!(lost(&again, Some(3)), [1], "not the last one, but the one that was forgotten");
    let gone = call(Ask::Delete, Outcome::Answered(Answer::Bit(true)), 4, 5);
    assert_eq!(lost(&[set(1, 0, 1), gone], Some(1)), [1]);
    assert!(lost(&[set(1, 0, 1), gone], None).is_empty());
}

#[test]
fn what_nobody_answered_excuses_a_loss() {
    assert!(lost(&[set(1, 0, NEVER), set(2, 2, 3)], Some(1)).is_empty());
    assert!(lost(&[set(2, 2, 3), call(Ask::Delete, Outcome::Unknown, 0, NEVER)], None).is_empty());
}

#[test]
fn an_unknown_write_takes_effect_once_and_late_or_never() {
    explain(&[set(1, 0, NEVER), set(2, 2, 3), get(Some(2), 4, 5), get(Some(1), 6, 7)]).unwrap();
    explain(&[set(1, 0, NEVER), set(2, 2, 3), get(Some(2), 4, 5)]).unwrap();
    let twice = [set(1, 0, NEVER), get(Some(1), 1, 2), set(2, 3, 4), get(Some(2), 5, 6), get(Some(1), 7, 8)];
    assert!(explain(&twice).is_err(), "an old value came back");
}

#[test]
fn a_phantom() {
    assert!(why(&[set(1, 0, 1), get(Some(9), 2, 3)]).contains("nobody ever wrote"));
    assert!(why(&[get(Some(1), 0, 1), set(1, 2, 3)]).contains("before"));
}

#[test]
fn a_refused_write_that_is_read() {
    let refused = call(Ask::Set(1), Outcome::Refused, 0, 1);
    assert!(why(&[refused, get(Some(1), 2, 3)]).contains("refused"));
    explain(&[refused, get(None, 2, 3)]).unwrap();
}

#[test]
fn a_write_done_twice() {
    assert!(explain(&[add(1, 0, 1), add(3, 2, 3)]).is_err());
    assert!(explain(&[add(1, 0, 5), add(1, 0, 5)]).is_err());
    explain(&[add(1, 0, 1), call(Ask::Increment, Outcome::Unknown, 1, NEVER), add(3, 2, 3)]).unwrap();
}

#[test]
fn many_unknown_writes_are_decided_soon() {
    let mut calls: Vec<Call> = (1..60).map(|value| set(value, value, NEVER)).collect();
    for round in 0..400 {
        calls.push(set(1000 + round, 100 + round * 10, 105 + round * 10));
        calls.push(get(Some(1000 + round), 106 + round * 10, 109 + round * 10));
    }
    explain(&calls).unwrap();
    calls.push(get(Some(1000), 9000, 9001));
    assert!(explain(&calls).is_err());
}

#[test]
fn a_client_that_goes_back() {
    let never = |_, _| false;
    let calls = [get(Some(1), 0, 1), get(Some(2), 2, 3), get(Some(1), 4, 5)];
    assert_eq!(went_back(&calls, never).unwrap_err().call, 2);
    went_back(&calls, |from_us, to_us| from_us <= 3 && to_us >= 3).unwrap();
    let mut other = calls;
    other[2].client = 1;
    went_back(&other, never).unwrap();
    went_back(&[get(Some(1), 0, 1), get(Some(1), 2, 3), get(Some(2), 4, 5)], never).unwrap();
}

/// Tries all orders that agree with real time.
fn brute(calls: &[Call], held: Held, done: u32) -> bool {
    let must = |index: usize| matches!(calls[index].outcome, Outcome::Answered(_)) && done & 1 << index == 0;
    if !(0..calls.len()).any(must) {
        return true;
    }
    (0..calls.len()).filter(|index| done & 1 << index == 0).any(|index| {
        let one = &calls[index];
        if one.outcome == Outcome::Refused
            || (0..calls.len()).any(|o| must(o) && calls[o].end_us < one.start_us)
        {
            return false;
        }
        let (answer, next) = one.ask.apply(held);
        let fits = one.outcome == Outcome::Unknown || one.outcome == Outcome::Answered(answer);
        fits && brute(calls, next, done | 1 << index)
    })
}

/// Calls that take effect at moments of their time, of which some answers are then spoilt.
fn random_calls(random: &mut Random) -> Vec<Call> {
    let counts = random.percent(25);
    let (mut moments, mut calls) = (Vec::new(), Vec::new());
    for index in 0..random.between(2, 7) {
        let start_us = random.below(30);
        let end_us = start_us + random.between(1, 12);
        moments.push((random.between(start_us, end_us), index as usize));
        let value = index + 1;
        let ask = match random.below(8) {
            0..3 => Ask::Get,
            _ if counts => Ask::Increment,
            3 => Ask::Set(value),
            4 => Ask::SetAbsent(value),
            5 => Ask::Swap(value),
            6 => Ask::Delete,
            _ => Ask::Take,
        };
        calls.push(call(ask, Outcome::Unknown, start_us, end_us));
    }
    moments.sort_unstable();
    let mut held = None;
    for (_, index) in moments {
        let (answer, next) = calls[index].ask.apply(held);
        let fate = random.below(100);
        if fate < 10 {
            calls[index].outcome = if random.percent(50) { Outcome::Refused } else { Outcome::Unknown };
            continue;
        }
        held = next;
        let value = Answer::Value(Some(random.between(1, 7)).filter(|value| *value < 7));
        calls[index].outcome = match (fate, answer) {
            (10..25, _) => Outcome::Unknown,
            (25..35, Answer::Value(_)) => Outcome::Answered(value),
            (25..35, Answer::Bit(bit)) => Outcome::Answered(Answer::Bit(!bit)),
            _ => Outcome::Answered(answer),
        };
    }
    calls
}

#[test]
fn it_says_what_a_search_through_all_orders_says() {
    let (mut good, mut bad) = (0, 0);
    for seed in 0..20_000 {
        let calls = random_calls(&mut Random::new(seed));
        let expected = brute(&calls, None, 0);
        assert_eq!(explain(&calls).is_ok(), expected, "seed {seed}: {calls:#?}");
        *(if expected { &mut good } else { &mut bad }) += 1;
    }
    assert!(good > 2000 && bad > 2000, "{good} good, {bad} bad");
}

#[test]
fn a_loss_is_never_named_wrongly() {
    for seed in 0..20_000 {
        let calls = random_calls(&mut Random::new(seed));
        let mut values: Vec<Held> = calls.iter().map(|call| call.ask.value()).collect();
        values.push(None);
        for last in values {
            let mut read = calls.clone();
            read.push(get(last, 1000, 1001));
            assert!(
                explain(&read).is_err() || lost(&calls, last).is_empty(),
                "seed {seed}: {last:?} {calls:#?}"
            );
        }
    }
}

//! Operations that their clients named, asked for again: by others, at the next head, while the first is on its way.

mod group;

use bytes::Bytes;
use group::{CHAIN, Group, STAR, get, key, set, value};
use sartor_core::controlet::part::once::fingerprint;
use sartor_core::controlet::{Input, Settings};
use sartor_core::keeper::Task;
use sartor_core::operation::{Action, Batch, Failure, FailureKind, Once, Op, Outcome, Presence, Set};

fn once(id: &'static str, op: Op) -> Op {
    let (id, fingerprint) = (Bytes::from_static(id.as_bytes()), fingerprint([&op].into_iter()));
    Op::Once(Box::new(Once { id, fingerprint, op }))
}

fn add(id: &'static str) -> Op {
    once(id, key("n", Action::Add(1)))
}

fn kind(outcome: &Outcome) -> Option<FailureKind> {
    if let Outcome::Failed(Failure { kind, .. }) = outcome { Some(*kind) } else { None }
}

#[test]
fn who_asks_again_after_a_failover_is_told_the_first_answer() {
    for mode in [&CHAIN, &STAR] {
        let mut group = Group::new(mode, &[0, 1, 2], Settings::default());
        group.ask(0, 1, add("a"));
        group.ask(0, 2, key("n", Action::Add(1)));
        group.ask(0, 3, add("a"));
        group.settle();
        let ones = [(0, 1, Outcome::Integer(1)), (0, 2, Outcome::Integer(2)), (0, 3, Outcome::Integer(1))];
        let mut answers = group.take();
        answers.sort_by_key(|answer| answer.1);
        assert_eq!(answers, ones);
        group.replicas.remove(&0);
        group.view(2, &[1, 2], None);
        // Another connection, so another number: only the name tells that it is the same.
        group.ask(1, 17, add("a"));
        group.ask(1, 18, add("b"));
        group.pass(500);
        assert_eq!(group.take(), [(1, 17, Outcome::Integer(1)), (1, 18, Outcome::Integer(3))]);
        assert_eq!(group.value(2, "n"), Some("3".into()));
    }
}

#[test]
fn an_answer_to_who_asks_again_waits_for_the_entry_too() {
    let mut group = Group::new(&CHAIN, &[0, 1, 2], Settings::default());
    group.cut = vec![2];
    group.ask(0, 1, add("a"));
    group.settle();
    group.ask(0, 2, add("a"));
    group.settle();
    assert_eq!(group.take(), [], "the tail does not have it");
    // The next head has it, and knows that not all have.
    group.replicas.remove(&0);
    group.view(2, &[1, 2], None);
    group.ask(1, 3, add("a"));
    group.pass(450);
    assert_eq!(group.take(), []);
    group.cut.clear();
    group.pass(500);
    assert_eq!(group.take(), [(1, 3, Outcome::Integer(1))]);
    assert_eq!(group.value(2, "n"), Some("1".into()));
}

#[test]
fn who_asks_while_the_first_is_being_decided_waits_for_it() {
    for mode in [&CHAIN, &STAR] {
        let mut group = Group::new(mode, &[0, 1], Settings::default());
        group.slow = true;
        group.ask(0, 1, add("a"));
        group.ask(0, 2, add("a"));
        group.ask(0, 3, once("a", set("n", "x")));
        let tasks: Vec<&Task> = group.owed.iter().map(|(_, task)| task).collect();
        assert!(matches!(tasks[..], [Task::Evaluate(..)]), "{tasks:?}");
        group.run_stores();
        group.slow = false;
        group.settle();
        let answers = group.take();
        let told = |tag| &answers.iter().find(|answer| answer.1 == tag).unwrap().2;
        assert_eq!((told(1), told(2)), (&Outcome::Integer(1), &Outcome::Integer(1)));
        assert_eq!(kind(told(3)), Some(FailureKind::Invalid), "another command");
        assert_eq!(group.value(0, "n"), Some("1".into()));
    }
}

#[test]
fn what_changed_nothing_is_remembered_too() {
    for mode in [&CHAIN, &STAR] {
        let mut group = Group::new(mode, &[0, 1], Settings::default());
        group.ask(0, 1, set("k", "v"));
        let if_absent = || {
            let set =
                Set { value: Bytes::from_static(b"w"), only_if: Some(Presence::Absent), ..Set::default() };
            once("nx", key("k", Action::Set(set)))
        };
        let both = || {
            let steps = vec![get("k"), get("n")];
            once("both", Op::Batch(Batch { steps, ..Batch::default() }))
        };
        group.ask(0, 2, if_absent());
        group.ask(0, 3, once("get", get("k")));
        group.ask(0, 4, once("wrong", key("k", Action::Add(1))));
        group.ask(0, 5, both());
        group.ask(0, 6, key("k", Action::Delete));
        group.settle();
        let first = group.take();
        group.replicas.remove(&0);
        group.view(2, &[1], None);
        group.ask(1, 12, if_absent());
        group.ask(1, 13, once("get", get("k")));
        group.ask(1, 14, once("wrong", key("k", Action::Add(1))));
        group.ask(1, 15, both());
        group.pass(500);
        let again = group.take();
        assert_eq!(again[0], (1, 12, Outcome::Nil));
        assert_eq!(again[1], (1, 13, value("v")));
        assert_eq!(kind(&again[2].2), Some(FailureKind::Invalid));
        for (tag, outcome) in again.iter().map(|(_, tag, outcome)| (tag - 10, outcome)) {
            assert_eq!(first.iter().find(|answer| answer.1 == tag).map(|answer| &answer.2), Some(outcome));
        }
        assert_eq!(group.value(1, "k"), None, "nothing was done again");
    }
}

#[test]
fn another_command_under_an_id_is_refused() {
    let mut group = Group::new(&CHAIN, &[0, 1], Settings::default());
    group.ask(0, 1, add("a"));
    group.ask(0, 2, once("a", key("n", Action::Add(2))));
    group.settle();
    let answers = group.take();
    assert_eq!(
        answers.iter().map(|answer| kind(&answer.2)).collect::<Vec<_>>(),
        [None, Some(FailureKind::Invalid)]
    );
    assert_eq!(group.value(1, "n"), Some("1".into()));
}

#[test]
fn where_there_is_no_room_new_ids_are_refused_and_old_ones_kept() {
    let settings = Settings { once_bytes_max: 600, once_ms: 60_000, ..Settings::default() };
    let mut group = Group::new(&CHAIN, &[0, 1], settings);
    for (tag, id) in [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "a")] {
        group.ask(0, tag, add(id));
    }
    group.settle();
    let mut answers = group.take();
    answers.sort_by_key(|answer| answer.1);
    let kinds: Vec<_> = answers.iter().map(|answer| kind(&answer.2)).collect();
    assert_eq!(kinds, [None, None, None, Some(FailureKind::Full), None]);
    assert_eq!(answers[4].2, Outcome::Integer(1));
    assert_eq!(group.value(1, "n"), Some("3".into()), "a refusal has no effect");
    group.pass(60_000);
    group.ask(0, 6, add("d"));
    group.settle();
    assert_eq!(group.take(), [(0, 6, Outcome::Integer(4))], "room comes back with time");
}

#[test]
fn an_answer_that_is_too_large_is_known_to_have_been() {
    let settings = Settings { answer_bytes_max: 10, ..Settings::default() };
    let mut group = Group::new(&CHAIN, &[0, 1], settings);
    group.ask(0, 1, set("k", "more than ten bytes"));
    group.ask(0, 2, once("a", key("k", Action::GetDelete)));
    group.ask(0, 3, set("k", "new"));
    group.ask(0, 4, once("a", key("k", Action::GetDelete)));
    group.settle();
    let answers = group.take();
    let told = |tag| &answers.iter().find(|answer| answer.1 == tag).unwrap().2;
    assert_eq!(told(2), &value("more than ten bytes"));
    assert_eq!(kind(told(4)), Some(FailureKind::Uncertain));
    assert_eq!(group.value(1, "k"), Some("new".into()));
}

#[test]
fn an_id_is_forgotten_when_its_time_is_over() {
    for mode in [&CHAIN, &STAR] {
        let settings = Settings { once_ms: 5000, ..Settings::default() };
        let mut group = Group::new(mode, &[0, 1, 2], settings);
        group.ask(0, 1, add("a"));
        group.pass(4900);
        group.ask(0, 2, add("a"));
        group.pass(200);
        group.ask(0, 3, add("a"));
        group.settle();
        let numbers: Vec<Outcome> = group.take().into_iter().map(|answer| answer.2).collect();
        assert_eq!(numbers, [1, 1, 2].map(Outcome::Integer));
    }
}

#[test]
fn a_newcomer_is_filled_with_what_is_remembered() {
    for (mode, source) in [(&CHAIN, 1), (&STAR, 0)] {
        // One a page, and no records: what clients named makes pages of its own.
        let settings = Settings { page_bytes_max: 1, ..Settings::default() };
        let mut group = Group::new(mode, &[0, 1], settings);
        let ids = ["a", "b", "c", "d", "e"];
        for (tag, id) in (1..).zip(ids) {
            group.ask(0, tag, add(id));
        }
        group.settle();
        group.view(1, &[0, 1], Some((2, 2)));
        group.open(2, group::view(1, 2, &[0, 1], Some((2, 2))));
        group.pass(500);
        assert!(group.replicas[&source].controlet.status().fill.is_some_and(|fill| fill.ready));
        group.view(3, &[0, 1, 2], Some((2, 2)));
        group.pass(500);
        group.take();
        for dead in [0, 1] {
            group.replicas.remove(&dead);
        }
        group.view(4, &[2], None);
        for (tag, id) in (11..).zip(ids) {
            group.ask(2, tag, add(id));
        }
        group.pass(500);
        let numbers: Vec<Outcome> = group.take().into_iter().map(|answer| answer.2).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5].map(Outcome::Integer));
        assert_eq!(group.value(2, "n"), Some("5".into()));
    }
}

#[test]
fn a_head_that_is_no_longer_one_lets_those_who_wait_go() {
    let mut group = Group::new(&CHAIN, &[0, 1], Settings::default());
    group.slow = true;
    group.ask(0, 1, add("a"));
    group.ask(0, 2, add("a"));
    group.step(0, Input::View(group::view(2, 0, &[1], None)));
    group.run_stores();
    group.settle();
    assert_eq!(group.take(), [], "their origins ask the next head");
    group.replicas.remove(&0);
    group.slow = false;
    group.view(2, &[1], None);
    group.step(1, Input::Left(group::member(0)));
    group.ask(1, 1, add("a"));
    group.ask(1, 2, add("a"));
    group.pass(500);
    let numbers: Vec<Outcome> = group.take().into_iter().map(|answer| answer.2).collect();
    assert_eq!(numbers, [1, 1].map(Outcome::Integer));
    assert_eq!(group.value(1, "n"), Some("1".into()));
}

//! Conversations of replicas that all take writes, and of those that go from one mode to another.
// Helpers of tests may panic as tests do; the lint exempts only the latter.
#![allow(clippy::unwrap_used)]

mod group;

use group::{CHAIN, Group, LOG, STAR, STRONG, get, key, member, set, value, view};
use sartor_core::controlet::part::message::Message;
use sartor_core::controlet::{Input, Mode, Settings};
use sartor_core::ids::{Incarnation, NodeId, Position, ShardId, WorkerId};
use sartor_core::keeper::Task;
use sartor_core::operation::{
    Action, Consistency, Expiry, FailureKind, From, Outcome, Request, SessionId, Set,
};
use sartor_core::time::millis;

fn has_entries(message: &Message) -> bool {
    matches!(message, Message::Entries(entries) if !entries.entries.is_empty())
}

/// Nodes 0 and 1, and 2 that is filled; it lacks nothing when it joins.
fn filled(mode: &'static Mode, before: impl FnOnce(&mut Group)) -> Group {
    let mut group = Group::new(mode, &[0, 1], Settings::default());
    before(&mut group);
    group.open(2, view(1, 2, &[0, 1], Some((2, 2))));
    group.view(1, &[0, 1], Some((2, 2)));
    group.pass(100);
    assert!(group.replicas[&0].controlet.status().fill.unwrap().ready);
    group
}

fn proven(group: &Group, node: u16) -> bool {
    group.replicas[&node].controlet.status().proven
}

#[test]
fn who_was_asked_answers_once_all_have_it() {
    let mut group = Group::new(&STRONG, &[0, 1, 2], Settings::default());
    group.lost = |_, to, message| to == 2 && has_entries(message);
    group.ask_of(1, 0, 5, set("k", "v"));
    group.settle();
    assert_eq!((group.take(), group.value(1, "k").is_some()), (vec![], true));
    group.lost = |_, _, _| false;
    group.pass(300);
    assert_eq!(group.take(), [(1, 5, Outcome::Done)], "not the first member");
}

#[test]
fn who_was_asked_answers_once_two_have_it() {
    let mut group = Group::new(&LOG, &[0, 1, 2], Settings::default());
    group.lost = |_, to, message| to != 1 && has_entries(message);
    group.ask_of(1, 0, 5, set("k", "v"));
    group.settle();
    assert_eq!(group.take(), [(1, 5, Outcome::Done)]);
    group.lost = |_, _, message| has_entries(message);
    group.ask_of(0, 0, 6, set("k", "w"));
    group.settle();
    assert_eq!(group.take(), [], "the first member alone has it");
}

#[test]
fn a_newcomer_does_not_tell_what_an_old_member_lacks() {
    let mut group = filled(&STRONG, |group| {
        group.lost = |from, to, message| (from, to) == (0, 1) && has_entries(message);
        group.ask(0, 1, set("k", "v"));
        group.settle();
    });
    group.view(2, &[0, 1, 2], Some((2, 2)));
    group.pass(50);
    group.ask(2, 3, get("k"));
    group.settle();
    assert_eq!((group.take(), group.value(1, "k")), (vec![], None));
    assert!(!proven(&group, 2));
    group.lost = |_, _, _| false;
    group.pass(500);
    assert_eq!(group.take(), [(0, 1, Outcome::Done), (2, 3, value("v"))]);
    assert!(proven(&group, 2));
}

#[test]
fn a_newcomer_that_becomes_first_does_not_acknowledge_what_it_alone_has() {
    let mut group = filled(&STRONG, |group| {
        group.lost = |from, to, message| (from, to) == (0, 1) && has_entries(message);
        group.ask(0, 1, set("k", "v"));
        group.settle();
    });
    group.view(2, &[0, 1, 2], Some((2, 2)));
    group.settle();
    group.replicas.remove(&0);
    group.view(3, &[2, 1], None);
    for node in [1, 2] {
        group.step(node, Input::Left(member(0)));
    }
    group.ask(2, 1, set("k", "v"));
    group.settle();
    assert_eq!((group.take(), group.value(1, "k")), (vec![], None));
}

#[test]
fn a_newcomer_is_not_the_second_of_two() {
    let mut group = filled(&LOG, |_| {});
    // Node 1 stands still after its first promise to node 0: nothing reaches node 2 from it, nor it any entry.
    group.lost =
        |from, to, message| (from, to) == (1, 2) || (to == 1 && matches!(message, Message::Entries(_)));
    group.view(2, &[0, 1, 2], Some((2, 2)));
    group.settle();
    group.ask(0, 1, set("k", "v"));
    group.settle();
    assert_eq!((group.take(), group.value(2, "k").is_some()), (vec![], true));
}

#[test]
fn a_newcomer_that_was_asked_does_not_answer_as_the_second_of_two() {
    let mut group = filled(&LOG, |_| {});
    // Node 1 gets no entry, so that node 2, which would not be its heir, is the only other one to have it.
    group.lost = |_, to, message| to == 1 && matches!(message, Message::Entries(_));
    group.view(2, &[0, 1, 2], Some((2, 2)));
    group.settle();
    group.ask_of(2, 0, 1, set("k", "v"));
    group.settle();
    assert_eq!((group.take(), group.value(2, "k").is_some()), (vec![], true));
    group.lost = |_, _, _| false;
    group.pass(500);
    assert_eq!(group.take(), [(2, 1, Outcome::Done)]);
}

#[test]
fn in_the_next_view_nobody_tells_what_the_new_first_member_lacks() {
    let mut group = Group::new(&LOG, &[0, 1, 2], Settings::default());
    group.lost = |_, to, message| to == 1 && has_entries(message);
    group.slow = true;
    group.ask_of(2, 0, 1, set("k", "v"));
    group.settle();
    group.replicas.remove(&0);
    group.owed.retain(|(node, _)| *node != 0);
    group.view(2, &[1, 2], None);
    for node in [1, 2] {
        group.step(node, Input::Left(member(0)));
    }
    group.slow = false;
    group.run_stores();
    group.settle();
    assert_eq!((group.take(), group.value(1, "k")), (vec![], None));
    group.lost = |_, _, _| false;
    group.pass(500);
    assert_eq!((group.take(), group.value(1, "k").is_some()), (vec![(2, 1, Outcome::Done)], true));
}

#[test]
fn a_strong_mode_does_not_believe_what_was_stable_without_one_that_was_given_up() {
    for (weak, strong) in [(&LOG, &STRONG), (&STAR, &CHAIN)] {
        let mut group = Group::new(weak, &[0, 1, 2], Settings::default());
        group.lost = |_, to, message| to == 2 && matches!(message, Message::Entries(_) | Message::Cut);
        group.ask(0, 1, set("k", "v"));
        group.pass(4500);
        group.take();
        group.mode = strong;
        group.view(2, &[0, 1, 2], None);
        group.pass(50);
        group.ask(0, 2, get("k"));
        group.settle();
        assert_eq!((group.take(), group.value(2, "k")), (vec![], None), "{}", strong.name);
    }
}

#[test]
fn a_strong_read_that_waits_is_refused_by_a_mode_that_cannot() {
    let mut group = Group::new(&STRONG, &[0, 1, 2], Settings::default());
    group.lost = |_, to, message| to == 2 && matches!(message, Message::Entries(_));
    group.ask(0, 1, set("k", "v"));
    group.settle();
    let from = From::Session { session: SessionId { index: 0, generation: 0 }, tag: 7 };
    let (shard, floor, consistency) = (ShardId(0), Position::ZERO, Consistency::Strong);
    let request =
        Request { from, shard, op: get("k"), floor, consistency, deadline_us: group.now + millis(5000) };
    group.step(1, Input::Request(request));
    group.settle();
    assert_eq!(group.take(), []);
    group.mode = &STAR;
    group.view(2, &[0, 1, 2], None);
    group.settle();
    let answers = group.take();
    let refused =
        |outcome: &Outcome| matches!(outcome, Outcome::Failed(f) if f.kind == FailureKind::Unsupported);
    assert!(
        answers.iter().any(|(node, tag, outcome)| (*node, *tag) == (1, 7) && refused(outcome)),
        "{answers:?}"
    );
}

#[test]
fn a_write_of_a_strong_connection_that_waits_is_never_refused() {
    let mut group = Group::new(&STRONG, &[0, 1, 2], Settings::default());
    group.lost = |_, to, message| to == 2 && matches!(message, Message::Entries(_));
    let worker = WorkerId { node: NodeId(9), worker: 0 };
    let from = From::Worker { worker, incarnation: Incarnation(1), sequence: 7, base: 1 };
    let (shard, floor, consistency) = (ShardId(0), Position::ZERO, Consistency::Strong);
    let deadline_us = group.now + millis(5000);
    let request = Request { from, shard, op: set("k", "v"), floor, consistency, deadline_us };
    group.step(0, Input::Request(request));
    group.settle();
    assert_eq!(group.take(), []);
    group.mode = &STAR;
    group.view(2, &[0, 1, 2], None);
    group.pass(50);
    assert_eq!(group.take(), [(0, 7, Outcome::Done)], "it took effect");
}

#[test]
fn a_joiner_that_was_full_and_went_is_forgotten() {
    for mode in [&LOG, &STRONG, &STAR] {
        let mut group = filled(mode, |_| {});
        group.step(2, Input::Full(true));
        group.pass(50);
        group.ask(0, 1, set("k", "v"));
        group.pass(50);
        let answers = group.take();
        assert!(
            matches!(&answers[..], [(0, 1, Outcome::Failed(f))] if f.kind == FailureKind::Full),
            "{answers:?}"
        );
        group.replicas.remove(&2);
        group.view(1, &[0, 1], None);
        group.ask(0, 2, set("k", "v"));
        group.pass(50);
        assert_eq!(group.take(), [(0, 2, Outcome::Done)], "{}", mode.name);
    }
}

#[test]
fn a_look_that_outlives_two_switches_gives_no_place_that_others_take() {
    let mut group = Group::new(&LOG, &[0, 1], Settings::default());
    let short = Set { value: "v".into(), expiry: Expiry::After(50), ..Set::default() };
    group.ask(0, 1, key("k", Action::Set(short)));
    group.pass(20);
    group.now += millis(40);
    group.settle();
    group.take();
    group.slow = true;
    group.ask(0, 2, get("k"));
    let mut owed: Vec<(u16, Task)> = std::mem::take(&mut group.owed);
    group.slow = false;
    group.mode = &STAR;
    group.view(2, &[0, 1], None);
    group.pass(20);
    group.slow = true;
    group.ask(0, 3, set("a", "b"));
    owed.extend(std::mem::take(&mut group.owed));
    group.slow = false;
    group.mode = &LOG;
    group.view(3, &[0, 1], None);
    group.settle();
    for (node, task) in owed {
        let now = group.at();
        let done = group.replicas.get_mut(&node).unwrap().keeper.run(now, task);
        group.step(node, Input::Stored(done));
    }
    group.pass(300);
    let answers = group.take();
    assert!(
        answers.contains(&(0, 2, Outcome::Nil)) && answers.contains(&(0, 3, Outcome::Done)),
        "{answers:?}"
    );
    assert_eq!(group.value(1, "a"), group.value(0, "a"));
}

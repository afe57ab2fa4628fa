//! Conversations of the replicas of a shard, message by message.
// Helpers of tests may panic as tests do; the lint exempts only the latter.
#![allow(clippy::unwrap_used)]

mod group;

use bytes::Bytes;
use group::{CHAIN, Group, STAR, get, key, member, set, value, view};
use sartor_core::controlet::part::message::Message;
use sartor_core::controlet::{Input, Mode, Settings};
use sartor_core::ids::NodeId;
use sartor_core::operation::{Action, Op, Outcome, Presence, Set, Version};
use sartor_core::survey::Found;
use sartor_core::time::millis;

#[test]
fn a_chain_answers_when_the_tail_has_it() {
    let mut group = Group::new(&CHAIN, &[0, 1, 2], Settings::default());
    group.cut = vec![2];
    group.ask(0, 1, set("k", "v"));
    group.settle();
    assert_eq!(group.take(), [], "the tail does not have it");
    assert_eq!(group.value(1, "k"), Some("v".into()), "the middle does");
    group.cut.clear();
    group.pass(200);
    assert_eq!(group.take(), [(0, 1, Outcome::Done)], "it was sent again");
}

#[test]
fn a_read_waits_for_writes_in_flight_to_its_key_only() {
    let mut group = Group::new(&CHAIN, &[0, 1, 2], Settings::default());
    group.ask(0, 1, set("other", "x"));
    group.settle();
    group.cut = vec![2];
    group.ask(0, 2, set("k", "v"));
    group.settle();
    group.take();
    group.ask(1, 3, get("k"));
    group.ask(1, 4, get("other"));
    group.ask(2, 5, get("k"));
    group.settle();
    assert_eq!(
        group.take(),
        [(1, 4, value("x")), (2, 5, Outcome::Nil)],
        "the tail's state is the committed one"
    );
    group.cut.clear();
    group.pass(200);
    assert_eq!(group.take(), [(0, 2, Outcome::Done), (1, 3, value("v"))]);
}

#[test]
fn what_writes_nothing_waits_for_what_it_read() {
    let mut group = Group::new(&CHAIN, &[0, 1], Settings::default());
    group.cut = vec![1];
    group.ask(0, 1, set("k", "v"));
    let if_absent = Set { only_if: Some(Presence::Absent), ..Set::default() };
    group.ask(0, 2, key("k", Action::Set(if_absent)));
    group.settle();
    assert_eq!(group.take(), [], "nobody may know of a write that may vanish");
    group.cut.clear();
    group.pass(200);
    assert_eq!(group.take(), [(0, 1, Outcome::Done), (0, 2, Outcome::Nil)]);
}

#[test]
fn who_is_cut_off_serves_nothing_and_says_so() {
    for mode in [&CHAIN, &STAR] {
        let mut group = Group::new(mode, &[0, 1, 2], Settings::default());
        group.ask(0, 1, set("k", "v"));
        group.settle();
        assert_eq!(group.take().len(), 1);
        group.cut = vec![0];
        group.pass(410);
        group.ask(0, 2, set("k", "w"));
        group.ask(0, 3, get("k"));
        group.settle();
        assert_eq!(group.take(), [], "no promise is left");
        assert_eq!(group.value(0, "k"), Some("v".into()), "and nothing is done that others do not know of");
        group.pass(2100);
        let refused = group.take();
        assert_eq!(refused.len(), 2);
        assert!(refused.iter().all(|(_, _, outcome)| matches!(outcome, Outcome::Failed(_))), "{refused:?}");
    }
}

#[test]
fn a_middle_or_a_tail_that_dies_leaves_nothing_undone() {
    for dead in [1, 2] {
        let mut group = Group::new(&CHAIN, &[0, 1, 2], Settings::default());
        group.cut = vec![dead];
        group.ask(0, 1, set("k", "v"));
        group.settle();
        assert_eq!(group.take(), []);
        group.replicas.remove(&dead);
        let others: Vec<u16> = [0, 1, 2].into_iter().filter(|node| *node != dead).collect();
        group.view(2, &others, None);
        group.settle();
        assert_eq!(group.take(), [], "the dead one may still serve under our promises");
        group.pass(460);
        assert_eq!(group.take(), [(0, 1, Outcome::Done)]);
    }
}

#[test]
fn a_write_that_is_sent_again_to_the_next_head_is_done_once() {
    for mode in [&CHAIN, &STAR] {
        let mut group = Group::new(mode, &[0, 1, 2], Settings::default());
        group.ask(0, 1, key("n", Action::Add(1)));
        group.settle();
        assert_eq!(group.take(), [(0, 1, Outcome::Integer(1))]);
        group.replicas.remove(&0);
        group.view(2, &[1, 2], None);
        group.ask(1, 1, key("n", Action::Add(1)));
        group.ask(1, 2, key("n", Action::Add(1)));
        group.pass(500);
        assert_eq!(group.take(), [(1, 1, Outcome::Integer(1)), (1, 2, Outcome::Integer(2))]);
    }
}

#[test]
fn removed_members_that_confirm_are_not_waited_for() {
    let mut group = Group::new(&CHAIN, &[0, 1, 2], Settings::default());
    group.cut = vec![0];
    group.view(2, &[1, 2], None);
    group.ask(1, 1, set("k", "v"));
    group.settle();
    assert_eq!(group.take(), []);
    for node in [1, 2] {
        group.step(node, Input::Left(member(0)));
    }
    group.settle();
    assert_eq!(group.take(), [(1, 1, Outcome::Done)]);
}

#[test]
fn a_newcomer_is_filled_while_writes_and_deletes_go_on() {
    for mode in [&CHAIN, &STAR] {
        let settings = Settings { page_bytes_max: 1, ..Settings::default() };
        let mut group = Group::new(mode, &[0, 1], settings);
        let names = ["a", "b", "c", "d", "e", "f"];
        for (tag, name) in names.into_iter().enumerate() {
            group.ask(0, tag as u64 + 1, set(name, "old"));
        }
        group.settle();
        group.view(1, &[0, 1], Some((2, 2)));
        group.open(2, view(1, 2, &[0, 1], Some((2, 2))));
        // The first pages are there, the last ones not.
        for _ in 0..6 {
            for node in [0, 1, 2] {
                group.wake(node);
            }
            for _ in 0..group.wire.len() {
                let (from, to, message) = group.wire.pop_front().unwrap();
                group.step(to, Input::Peer(NodeId(from), message));
            }
        }
        for (tag, name) in names.into_iter().enumerate() {
            let op = if tag % 2 == 0 { key(name, Action::Delete) } else { set(name, "new") };
            group.ask(0, tag as u64 + 11, op);
        }
        group.pass(500);
        let status = group.replicas[&usize_of(mode)].controlet.status();
        assert!(status.fill.is_some_and(|fill| fill.ready), "{status:?}");
        group.view(3, &[0, 1, 2], Some((2, 2)));
        group.pass(500);
        for (index, name) in names.into_iter().enumerate() {
            let expected = (index % 2 == 1).then_some(Bytes::from_static(b"new"));
            assert_eq!(group.value(2, name), expected, "{name}");
        }
        assert!(group.replicas[&2].controlet.status().proven);
    }
}

#[test]
fn a_page_that_got_lost_comes_again_although_writes_go_on() {
    for mode in [&CHAIN, &STAR] {
        let mut group = Group::new(mode, &[0, 1], Settings::default());
        group.ask(0, 1, set("k", "old"));
        group.settle();
        group.view(1, &[0, 1], Some((2, 2)));
        // The newcomer does not know the view yet.
        for tag in 0..100 {
            if tag == 5 {
                group.open(2, view(1, 2, &[0, 1], Some((2, 2))));
            }
            group.ask(0, tag + 2, set("k", "new"));
            group.pass(10);
        }
        let status = group.replicas[&usize_of(mode)].controlet.status();
        assert!(status.fill.is_some_and(|fill| fill.ready), "{}: {status:?}", mode.name);
    }
}

/// Who fills newcomers: the tail, or the primary.
fn usize_of(mode: &Mode) -> u16 {
    if mode.name == CHAIN.name { 1 } else { 0 }
}

#[test]
fn a_primary_that_knows_less_than_another_learns_first() {
    let mut group = Group::new(&STAR, &[0, 1, 2], Settings::default());
    group.cut = vec![1];
    group.ask(0, 1, set("k", "v"));
    group.settle();
    assert_eq!((group.value(1, "k"), group.value(2, "k")), (None, Some("v".into())));
    group.replicas.remove(&0);
    group.cut.clear();
    group.view(2, &[1, 2], None);
    group.ask(1, 2, get("k"));
    group.pass(500);
    assert_eq!(group.take().last(), Some(&(1, 2, value("v"))));
}

#[test]
fn a_crowded_stream_holds_requests_back_and_the_silent_are_given_up() {
    for mode in [&CHAIN, &STAR] {
        let settings = Settings { stream_bytes_max: 100, ..Settings::default() };
        let mut group = Group::new(mode, &[0, 1], settings);
        group.ask(
            0,
            1,
            set("k", "a value that fills the stream, and what is left of it, and more than all of it, alone"),
        );
        group.ask(
            0,
            2,
            set("l", "a value that fills the stream, and what is left of it, and more than all of it, alone"),
        );
        group.ask(0, 3, set("m", "held"));
        group.cut = vec![1];
        group.pass(300);
        assert_eq!(group.value(0, "m"), None, "memory has ended");
        group.pass(1800);
        assert_eq!(group.replicas[&0].controlet.status().cut, [NodeId(1)]);
    }
}

#[test]
fn a_read_of_what_never_gets_everywhere_is_refused_in_time() {
    let mut group = Group::new(&CHAIN, &[0, 1], Settings::default());
    // The tail lives and promises, but gets no entry any more.
    group.lost = |_, to, message| to == 1 && matches!(message, Message::Entries(_));
    group.ask(0, 1, set("k", "v"));
    group.ask(0, 2, get("k"));
    group.pass(4900);
    assert_eq!(group.take(), [], "perhaps it gets there yet");
    group.pass(1200);
    let refused = group.take();
    assert!(matches!(&refused[..], [(0, 2, Outcome::Failed(_))]), "{refused:?}");
}

#[test]
fn what_waits_for_room_is_refused_in_time() {
    let settings = Settings { stream_bytes_max: 20, ..Settings::default() };
    let mut group = Group::new(&CHAIN, &[0, 1], settings);
    group.lost = |_, to, message| to == 1 && matches!(message, Message::Entries(_));
    group.ask(0, 1, set("k", "a value that fills the stream"));
    group.ask(0, 2, get("m"));
    group.ask(0, 3, set("m", "v"));
    group.pass(4900);
    assert_eq!(group.take(), [], "perhaps there is room yet");
    group.pass(1200);
    let refused = group.take();
    assert!(matches!(&refused[..], [(0, 2, Outcome::Failed(_)), (0, 3, Outcome::Failed(_))]), "{refused:?}");
    group.lost = |_, _, _| false;
    group.pass(1000);
    assert_eq!(group.value(0, "m"), None, "what was refused is not done later");
}

#[test]
fn messages_that_nobody_would_send_do_no_harm() {
    let mut group = Group::new(&CHAIN, &[0, 1, 2], Settings::default());
    group.ask(0, 1, set("k", "v"));
    group.wake(0);
    let entries: Vec<(u16, u16, Bytes)> = group.wire.iter().cloned().collect();
    group.settle();
    group.take();
    for (_, _, message) in entries {
        for (from, to) in [(1, 0), (2, 0), (0, 2), (2, 1)] {
            group.step(to, Input::Peer(NodeId(from), message.clone()));
            group.step(to, Input::Peer(NodeId(from), message.slice(..message.len() - 1)));
        }
    }
    group.ask(0, 2, get("k"));
    group.pass(100);
    assert_eq!(group.take(), [(0, 2, value("v"))]);
}

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// Settings under which a survey looks at two records at a time.
fn slowly() -> Settings {
    Settings { survey_records_max: 2, ..Settings::default() }
}

#[test]
fn replicas_that_are_not_equally_far_survey_the_same_place() {
    for mode in [&CHAIN, &STAR] {
        let mut group = Group::new(mode, &[0, 1, 2], slowly());
        let mut tag = 0;
        let mut write = |group: &mut Group, name, text| {
            tag += 1;
            group.ask(0, tag, set(name, text));
        };
        NAMES.iter().for_each(|name| write(&mut group, name, "before"));
        group.settle();
        // One replica is cut off, and hears of the survey when the others have done it.
        group.cut = vec![2];
        group.ask(0, 100, Op::Survey);
        write(&mut group, "h", "while it goes on");
        group.settle();
        assert!(matches!(group.surveyed(0).unwrap().found, Found::Running { done: 3, total: 8 }));
        write(&mut group, "a", "after its place was passed");
        write(&mut group, "new", "x");
        group.pass(300);
        assert_eq!(group.surveyed(2), None);
        let report = group.surveyed(0).unwrap();
        assert!(matches!(&report.found, Found::Done(sums) if sums.len() == 8), "{report:?}");
        group.cut.clear();
        group.pass(600);
        for node in [1, 2] {
            assert_eq!(group.surveyed(node).as_ref(), Some(&report), "{} {node}", mode.name);
        }
        let answered = group.take().into_iter().find(|(_, tag, _)| *tag == 100);
        assert_eq!(answered, Some((0, 100, Outcome::Version(Version::Written(report.at)))));
    }
}

#[test]
fn who_is_being_filled_has_no_survey_until_it_has_all() {
    for mode in [&CHAIN, &STAR] {
        let settings = Settings { page_bytes_max: 8, ..slowly() };
        let mut group = Group::new(mode, &[0, 1], settings);
        NAMES.iter().zip(1..).for_each(|(name, tag)| group.ask(0, tag, set(name, "v")));
        group.settle();
        group.open(2, view(2, 2, &[0, 1], Some((2, 2))));
        group.cut = vec![2];
        group.view(2, &[0, 1], Some((2, 2)));
        group.pass(460);
        group.ask(0, 100, Op::Survey);
        group.pass(100);
        // The entry comes to it between two pages; then nothing does for a while.
        group.cut.clear();
        while group.surveyed(2).is_none() {
            group.now += millis(10);
            group.settle_until(|group| group.surveyed(2).is_some());
        }
        group.cut = vec![2];
        group.pass(500);
        let report = group.surveyed(0).unwrap();
        assert!(matches!(report.found, Found::Done(_)), "{report:?}");
        let there = group.surveyed(2).unwrap();
        assert!(
            there.at == report.at && matches!(there.found, Found::Running { done: 0, total: 1..8 }),
            "{there:?}"
        );
        group.cut.clear();
        group.pass(1000);
        assert_eq!(group.surveyed(2), None, "records came since");
        group.view(3, &[0, 1, 2], None);
        group.pass(1000);
        assert_eq!(group.surveyed(2), None, "{}", mode.name);
        group.ask(0, 101, Op::Survey);
        group.pass(500);
        let (first, last) = (group.surveyed(0), group.surveyed(2));
        assert!(first.is_some() && first == last && first != Some(report), "{first:?} {last:?}");
    }
}

#[test]
fn a_survey_that_comes_while_another_goes_on_takes_its_place() {
    let mut group = Group::new(&CHAIN, &[0, 1], slowly());
    NAMES.iter().zip(1..).for_each(|(name, tag)| group.ask(0, tag, set(name, "v")));
    group.ask(0, 100, Op::Survey);
    group.settle();
    group.ask(0, 101, set("a", "w"));
    group.ask(0, 102, Op::Survey);
    group.pass(500);
    let report = group.surveyed(0).unwrap();
    assert!(matches!(report.found, Found::Done(_)));
    assert_eq!(report.at.sequence, 11);
    assert_eq!(group.surveyed(1), Some(report));
}

/// What was sent, with something else in it.
fn damaged(message: &Bytes) -> Bytes {
    let place = message.windows(5).position(|bytes| bytes == b"right");
    let Some(place) = place else { return message.clone() };
    [&message[..place], &b"wrong"[..], &message[place + 5..]].concat().into()
}

#[test]
fn a_copy_that_got_something_else_is_given_up() {
    for mode in [&CHAIN, &STAR] {
        for damages in [false, true] {
            let mut group = Group::new(mode, &[0, 1, 2], Settings::default());
            group.ask(0, 1, set("k", "right"));
            group.wake(0);
            // On its way to the last one.
            for _ in 0..4 {
                for _ in 0..group.wire.len() {
                    let (from, to, message) = group.wire.pop_front().unwrap();
                    let message = if damages && to == 2 { damaged(&message) } else { message };
                    group.step(to, Input::Peer(NodeId(from), message));
                }
                for node in [0, 1, 2] {
                    group.wake(node);
                }
            }
            group.pass(200);
            assert_eq!(group.value(2, "k"), Some(if damages { "wrong" } else { "right" }.into()));
            for node in [0, 1, 2] {
                let status = group.replicas[&node].controlet.status();
                assert_eq!(status.differs, damages && node == 2);
            }
        }
    }
}

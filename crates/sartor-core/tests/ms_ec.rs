//! Conversations of `ms+ec` replicas, message by message.

use bytes::Bytes;
use sartor_core::controlet::ms_ec::{Message, MsEc};
use sartor_core::controlet::{Controlet, Input, Outbox, Settings, View};
use sartor_core::ids::{Epoch, Incarnation, NodeId, Position, ShardId};
use sartor_core::keeper::{Done, Entry, Task, Write, Writes};
use sartor_core::operation::{Action, Consistency, From, Op, Outcome, Request, SessionId, Set};
use sartor_core::routing::map::Member;
use sartor_core::time::{Micros, Now, millis};

const PRIMARY: NodeId = NodeId(0);

fn replica(me: u16, settings: Settings) -> MsEc {
    let member = |node| Member { node: NodeId(node), incarnation: Incarnation(1) };
    let members = (0..3).map(member).collect();
    MsEc::new(View { shard: ShardId(0), epoch: Epoch(1), me: NodeId(me), members }, settings)
}

fn at(ms: u64) -> Now {
    Now { steady_us: millis(ms), unix_ms: ms }
}

fn request(op: Op, floor: u64) -> Request {
    Request {
        from: From::Session { session: SessionId { index: 0, generation: 0 }, tag: 0 },
        shard: ShardId(0),
        op,
        floor: position(floor),
        consistency: Consistency::Mode,
        deadline_us: Micros::MAX,
    }
}

fn key(action: Action) -> Op {
    Op::Key(Bytes::from_static(b"k"), action)
}

fn position(sequence: u64) -> Position {
    Position { epoch: Epoch(1), sequence }
}

fn entry(sequence: u64, value_bytes: usize) -> Entry {
    let (key, value) = (Bytes::from_static(b"k"), Bytes::from(vec![7; value_bytes]));
    Entry { position: position(sequence), writes: Writes::One(Write::Put { key, value, deadline_ms: None }) }
}

fn step(replica: &mut MsEc, ms: u64, input: Input<Message>) -> Outbox<Message> {
    let mut out = Outbox::default();
    replica.step(at(ms), input, &mut out);
    out
}

/// The primary's store has ordered one more entry.
fn ordered(primary: &mut MsEc, ms: u64, sequence: u64, value_bytes: usize) -> Outbox<Message> {
    let set = request(key(Action::Set(Set::default())), 0);
    let done = Done::Evaluated(set, Outcome::Done, Some(entry(sequence, value_bytes)));
    step(primary, ms, Input::Stored(done))
}

/// What a wake sends to one node: entries only.
fn entries_to(out: &Outbox<Message>, node: u16) -> Vec<Bytes> {
    let to_node = out.sends.iter().filter(|(to, _)| *to == NodeId(node));
    to_node
        .filter_map(|(_, m)| if let Message::Entries(bytes) = m { Some(bytes.clone()) } else { None })
        .collect()
}

#[test]
fn the_primary_answers_at_once_and_sends_one_batch_a_turn() {
    let mut primary = replica(0, Settings::default());
    let out = step(&mut primary, 0, Input::Request(request(key(Action::Set(Set::default())), 0)));
    assert!(matches!(&out.effects.tasks[..], [Task::Evaluate(_, Epoch(1))]));
    for sequence in 1..=3 {
        let out = ordered(&mut primary, 0, sequence, 10);
        assert_eq!(out.effects.replies[0].2, position(sequence));
        assert!(out.sends.is_empty(), "not before the turn ends");
    }
    assert_eq!(primary.wake_at(), Some(0));
    let out = step(&mut primary, 0, Input::Wake);
    assert_eq!((entries_to(&out, 1).len(), entries_to(&out, 2).len()), (1, 1));
    let mut secondary = replica(1, Settings::default());
    let got = step(&mut secondary, 1, Input::Peer(PRIMARY, Message::Entries(entries_to(&out, 1)[0].clone())));
    assert_eq!(got.effects.tasks.len(), 3);
    step(&mut secondary, 1, Input::Stored(Done::Applied(position(3))));
    let ack = step(&mut secondary, 1, Input::Wake);
    assert_eq!(ack.sends, [(PRIMARY, Message::Ack(position(3)))]);
}

#[test]
fn what_is_lost_is_sent_again_and_gaps_and_repeats_do_no_harm() {
    let mut primary = replica(0, Settings::default());
    let mut secondary = replica(1, Settings::default());
    ordered(&mut primary, 0, 1, 10);
    let first = entries_to(&step(&mut primary, 0, Input::Wake), 1).remove(0);
    ordered(&mut primary, 1, 2, 10);
    let second = entries_to(&step(&mut primary, 1, Input::Wake), 1).remove(0);
    let gap = step(&mut secondary, 2, Input::Peer(PRIMARY, Message::Entries(second)));
    assert!(gap.effects.tasks.is_empty(), "2 must wait for 1");
    assert!(entries_to(&step(&mut primary, 150, Input::Wake), 1).is_empty());
    let again = entries_to(&step(&mut primary, 250, Input::Wake), 1).remove(0);
    let both = step(&mut secondary, 251, Input::Peer(PRIMARY, Message::Entries(again)));
    assert_eq!(both.effects.tasks.len(), 2);
    let repeat = step(&mut secondary, 252, Input::Peer(PRIMARY, Message::Entries(first)));
    assert!(repeat.effects.tasks.is_empty());
    assert_eq!(secondary.wake_at(), Some(0), "a repeat is acknowledged again");
}

#[test]
fn a_secondary_reads_what_the_connection_may_see() {
    let mut secondary = replica(1, Settings::default());
    assert!(secondary.takes(&request(key(Action::Get), 0)));
    assert!(!secondary.takes(&request(key(Action::Get), 1)), "the connection has seen more");
    assert!(!secondary.takes(&request(key(Action::Delete), 0)));
    assert!(!secondary.takes(&request(Op::Wait { copies: 1, timeout_ms: 0 }, 0)));
    let eventual = Request { consistency: Consistency::Eventual, ..request(key(Action::Get), 1) };
    assert!(secondary.takes(&eventual));
    let unknown = step(&mut secondary, 0, Input::Stored(Done::Read(request(key(Action::Get), 0), None)));
    assert_eq!(unknown.effects.forwards.len(), 1, "past its deadline: the primary judges");
}

#[test]
fn a_full_stream_holds_requests_back_and_the_silent_are_cut_off() {
    let settings = Settings { stream_bytes_max: 1000, ..Settings::default() };
    let mut primary = replica(0, settings);
    for sequence in 1..=5 {
        ordered(&mut primary, 0, sequence, 300);
        step(&mut primary, 0, Input::Peer(NodeId(1), Message::Ack(position(sequence))));
    }
    assert!(!entries_to(&step(&mut primary, 0, Input::Wake), 2).is_empty(), "it gets its chance first");
    let held = step(&mut primary, 1, Input::Request(request(key(Action::Get), 0)));
    assert!(held.effects.tasks.is_empty(), "memory has ended");
    let cut = |out: &Outbox<Message>| out.sends.contains(&(NodeId(2), Message::Cut));
    assert!(!cut(&step(&mut primary, 1999, Input::Wake)));
    let end = step(&mut primary, 2000, Input::Wake);
    assert!(cut(&end), "node 2 acknowledged nothing for two seconds");
    assert!(matches!(&end.effects.tasks[..], [.., Task::Evaluate(..)]), "what was held goes on");
    let mut secondary = replica(2, settings);
    step(&mut secondary, 0, Input::Peer(PRIMARY, Message::Cut));
    assert!(secondary.status().lost && !secondary.takes(&request(key(Action::Get), 0)));
}

#[test]
fn frames_that_no_replica_would_send_do_no_harm() {
    let mut primary = replica(0, Settings::default());
    ordered(&mut primary, 0, 1, 10);
    let frame = entries_to(&step(&mut primary, 0, Input::Wake), 1).remove(0);
    let forged = step(&mut primary, 0, Input::Peer(PRIMARY, Message::Entries(frame)));
    assert!(forged.effects.tasks.is_empty(), "the primary follows nobody");
    let far = Position { epoch: Epoch(1), sequence: u64::MAX };
    step(&mut primary, 0, Input::Peer(NodeId(1), Message::Ack(far)));
    let again = step(&mut primary, 300, Input::Wake);
    assert_eq!(entries_to(&again, 1).len(), 1, "what it cannot have is not acknowledged");
}

#[test]
fn wait_answers_when_copies_have_it_or_time_is_up() {
    let mut primary = replica(0, Settings::default());
    ordered(&mut primary, 0, 1, 10);
    let wait = |copies| Input::Request(request(Op::Wait { copies, timeout_ms: 100 }, 1));
    let count = |out: &Outbox<Message>| out.effects.replies.first().map(|(_, outcome, _)| outcome.clone());
    assert_eq!(count(&step(&mut primary, 0, wait(0))), Some(Outcome::Integer(0)));
    assert_eq!(count(&step(&mut primary, 0, wait(1))), None);
    step(&mut primary, 1, Input::Peer(NodeId(1), Message::Ack(position(1))));
    assert_eq!(count(&step(&mut primary, 1, Input::Wake)), Some(Outcome::Integer(1)));
    assert_eq!(count(&step(&mut primary, 2, wait(2))), None);
    assert_eq!(count(&step(&mut primary, 50, Input::Wake)), None);
    assert_eq!(count(&step(&mut primary, 102, Input::Wake)), Some(Outcome::Integer(1)));
}

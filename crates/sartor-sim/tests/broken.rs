//! Protocols broken on purpose: a checker that cannot fail is none.

use bytes::Bytes;
use sartor_core::controlet::{AnyControlet, Input, Mode, Outbox, Settings, Status, View, ms_ec, ms_sc};
use sartor_core::ids::Position;
use sartor_core::keeper::{Done, Task, Write, Writes};
use sartor_core::operation::{Action, Failure, FailureKind, From, Op, Outcome, Request, Set};
use sartor_core::time::{Micros, Now};
use sartor_sim::{Config, run};

/// Found within so many seeds, or the checks have a hole.
const SEEDS: u64 = 200;

#[derive(Clone, Copy, PartialEq, Hash)]
enum Fault {
    None,
    /// A secondary answers connections that have seen more than it has, and claims to have it.
    ForgetsWhatWasSeen,
    /// A secondary judges by its own clock whether a record is past its deadline.
    JudgesExpiry,
    /// A secondary now and then deletes where it should put.
    SkipsPuts,
    /// A request now and then takes effect twice.
    EvaluatesTwice,
    /// A write that took effect is now and then reported as refused.
    RefusesAfterTheEffect,
    /// Entries that got lost are never sent again.
    NeverResends,
    /// A read of nothing now and then gives something.
    AnswersOutOfThinAir,
    /// A plain SET is now and then answered and forgotten.
    LosesSets,
    /// Secondaries forget when records expire.
    LosesDeadlines,
    /// The head of a chain answers before the tail has it.
    AnswersAtTheHead,
    /// A replica of a chain shows writes that not all have.
    ReadsWhatIsNotCommitted,
    /// Promises are judged by the time at which the last message came.
    ServesWithoutLease,
    /// A head knows nothing of what was answered before.
    ForgetsAnswers,
    /// A name that a client gave is forgotten at once.
    ForgetsNames,
    /// Deletes do not reach a replica that is being filled.
    LosesDeletesOfAFill,
}

#[derive(Clone, Hash)]
struct Broken {
    inner: Box<dyn AnyControlet>,
    fault: Fault,
    count: u64,
    /// When something was last heard.
    heard: Now,
    /// A number that no other node's replica has.
    life: u64,
    filling: bool,
}

impl Broken {
    /// True now and then.
    fn strikes(&mut self, every: u64) -> bool {
        self.count += 1;
        self.count.is_multiple_of(every)
    }

    fn spoil_tasks(&mut self, tasks: &mut Vec<Task>) {
        if self.fault == Fault::EvaluatesTwice && tasks.len() == 1 && self.strikes(40) {
            tasks.extend(tasks.clone());
        }
        for task in tasks {
            self.filling |= matches!(task, Task::Fill(..));
            if let Task::Apply(entry) = task
                && let Writes::One(Write::Delete { key }) = &mut entry.writes
                && self.fault == Fault::LosesDeletesOfAFill
                && self.filling
            {
                *key = Bytes::from_static(b"nobody's");
            }
            if let Task::Apply(entry) = task
                && let Writes::One(Write::Put { deadline_ms, .. }) = &mut entry.writes
                && self.fault == Fault::LosesDeadlines
            {
                *deadline_ms = None;
            }
            if let Task::Apply(entry) = task
                && let Writes::One(Write::Put { key, .. }) = &entry.writes
                && self.fault == Fault::SkipsPuts
                && self.strikes(40)
            {
                entry.writes = Writes::One(Write::Delete { key: key.clone() });
            }
        }
    }

    fn spoil_replies(&mut self, out: &mut Outbox<Bytes>) {
        for (request, _, position) in &mut out.effects.reads {
            if self.fault == Fault::ForgetsWhatWasSeen {
                *position = request.floor.max(*position);
            }
        }
        for (from, outcome, position) in &mut out.effects.replies {
            if let (Fault::ForgetsAnswers, From::Worker { incarnation, .. }) = (self.fault, from) {
                incarnation.0 &= u64::from(u32::MAX);
            }
            if self.fault == Fault::RefusesAfterTheEffect && *outcome == Outcome::Done && self.strikes(20) {
                *outcome = Failure::outcome(FailureKind::Retry, "try again");
                *position = Position::ZERO;
            }
            if self.fault == Fault::AnswersOutOfThinAir && *outcome == Outcome::Nil && self.strikes(20) {
                *outcome = Outcome::Value(Bytes::from_static(b"1"));
            }
        }
    }
}

impl AnyControlet for Broken {
    fn takes(&self, request: &Request) -> bool {
        let floor = if self.fault == Fault::ForgetsWhatWasSeen { Position::ZERO } else { request.floor };
        self.inner.takes(&Request { floor, ..request.clone() })
    }

    fn step(&mut self, now: Now, input: Input<Bytes>, out: &mut Outbox<Bytes>) {
        let input = match input {
            Input::Request(request)
                if self.fault == Fault::LosesSets && is_plain_set(&request) && self.strikes(5) =>
            {
                out.effects.replies.push((request.from, Outcome::Done, request.floor));
                return;
            }
            Input::Stored(Done::Read(request, None)) if self.fault == Fault::JudgesExpiry => {
                Input::Stored(Done::Read(request, Some(Outcome::Nil)))
            }
            Input::Stored(Done::Evaluated(request, outcome, Some(entry)))
                if self.fault == Fault::AnswersAtTheHead =>
            {
                out.effects.replies.push((request.from, outcome.clone(), entry.position));
                Input::Stored(Done::Evaluated(request, outcome, Some(entry)))
            }
            Input::Stored(Done::Read(request, Some(outcome)))
                if self.fault == Fault::ReadsWhatIsNotCommitted =>
            {
                out.effects.reads.push((request, outcome, self.inner.status().position));
                return;
            }
            Input::Request(mut request) if self.fault == Fault::ForgetsAnswers => {
                if let From::Worker { incarnation, .. } = &mut request.from {
                    incarnation.0 |= self.life << 32;
                    // Taken back where the answer leaves.
                }
                Input::Request(request)
            }
            other => other,
        };
        self.filling &= !matches!(input, Input::View(_));
        if matches!(input, Input::Peer(..)) {
            self.heard = now;
        }
        let now =
            if self.fault == Fault::ServesWithoutLease && matches!(input, Input::Wake | Input::Request(_)) {
                self.heard
            } else {
                now
            };
        self.inner.step(now, input, out);
        self.spoil_tasks(&mut out.effects.tasks);
        self.spoil_replies(out);
    }

    fn wake_at(&self) -> Option<Micros> {
        self.inner.wake_at()
    }

    fn status(&self) -> Status {
        self.inner.status()
    }
}

fn broken(mode: &Mode, fault: Fault, now: Now, view: View, settings: Settings) -> Box<dyn AnyControlet> {
    let resend_us = if fault == Fault::NeverResends { Micros::MAX / 2 } else { settings.resend_us };
    let life = u64::from(view.me.0) + 1;
    let once_ms = if fault == Fault::ForgetsNames { 0 } else { settings.once_ms };
    let inner = (mode.build)(now, view, Settings { resend_us, once_ms, ..settings });
    Box::new(Broken { inner, fault, count: 0, heard: now, life, filling: false })
}

macro_rules! mode {
    ($fault:ident) => {
        Mode {
            name: stringify!($fault),
            build: |now, view, settings| broken(&ms_ec::MODE, Fault::$fault, now, view, settings),
            ..ms_ec::MODE
        }
    };
    (chain $fault:ident) => {
        Mode {
            name: stringify!($fault),
            build: |now, view, settings| broken(&ms_sc::MODE, Fault::$fault, now, view, settings),
            ..ms_sc::MODE
        }
    };
}

static BROKEN: [Mode; 16] = [
    mode!(None),
    mode!(ForgetsWhatWasSeen),
    mode!(JudgesExpiry),
    mode!(SkipsPuts),
    mode!(EvaluatesTwice),
    mode!(RefusesAfterTheEffect),
    mode!(NeverResends),
    mode!(AnswersOutOfThinAir),
    mode!(LosesSets),
    mode!(LosesDeadlines),
    mode!(chain AnswersAtTheHead),
    mode!(chain ReadsWhatIsNotCommitted),
    mode!(chain ServesWithoutLease),
    mode!(chain ForgetsAnswers),
    mode!(chain ForgetsNames),
    mode!(chain LosesDeletesOfAFill),
];

fn is_plain_set(request: &Request) -> bool {
    matches!(&request.op, Op::Key(_, Action::Set(Set { only_if: None, get: false, .. })))
}

#[test]
fn every_fault_is_found() {
    for mode in &BROKEN {
        let config = Config { modes: &BROKEN, mode: mode.name, ..Config::default() };
        let found = (0..SEEDS).find(|&seed| run(seed, &config).is_err());
        assert_eq!(found.is_none(), mode.name == "None", "{}: found with seed {found:?}", mode.name);
        println!("{}: {found:?}", mode.name);
    }
}

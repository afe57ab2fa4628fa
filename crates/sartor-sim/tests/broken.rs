//! Protocols broken from outside: a checker that cannot fail is none. Faults inside the protocols are planted by
//! the cargo feature `mutants`, see docs/reliability.md.

use bytes::Bytes;
use sartor_core::controlet::{AnyControlet, Input, Mode, Outbox, Settings, Status, View, ms_ec};
use sartor_core::entry::{Write, Writes};
use sartor_core::ids::Position;
use sartor_core::keeper::Task;
use sartor_core::operation::{Action, Failure, FailureKind, Op, Outcome, Request, Set};
use sartor_core::time::{Micros, Now};
use sartor_sim::{Config, run};

/// Found within so many seeds, or the checks have a hole.
const SEEDS: u64 = 200;

#[derive(Clone, Copy, PartialEq, Hash)]
enum Fault {
    None,
    /// A secondary now and then deletes where it should put.
    SkipsPuts,
    /// A request now and then takes effect twice.
    EvaluatesTwice,
    /// A write that took effect is now and then reported as refused.
    RefusesAfterTheEffect,
    /// A read of nothing now and then gives something.
    AnswersOutOfThinAir,
    /// A plain SET is now and then answered and forgotten.
    LosesSets,
}

#[derive(Clone, Hash)]
struct Broken {
    inner: Box<dyn AnyControlet>,
    fault: Fault,
    count: u64,
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
            let Task::Apply(entry) = task else { continue };
            let first = entry.writes.iter().next();
            if let Some(Write::Put { key, .. }) = first
                && self.fault == Fault::SkipsPuts
                && self.strikes(40)
            {
                let writes = Writes::of([Write::Delete { key }]);
                entry.writes = writes;
            }
        }
    }

    fn spoil_replies(&mut self, out: &mut Outbox<Bytes>) {
        for (_, outcome, position) in &mut out.effects.replies {
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
        self.inner.takes(request)
    }

    fn step(&mut self, now: Now, input: Input<Bytes>, out: &mut Outbox<Bytes>) {
        if let Input::Request(request) = &input
            && self.fault == Fault::LosesSets
            && is_plain_set(request)
            && self.strikes(5)
        {
            out.effects.replies.push((request.from, Outcome::Done, request.floor));
            return;
        }
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

fn broken(fault: Fault, now: Now, view: View, settings: Settings) -> Box<dyn AnyControlet> {
    Box::new(Broken { inner: (ms_ec::MODE.build)(now, view, settings), fault, count: 0 })
}

macro_rules! mode {
    ($fault:ident) => {
        Mode {
            name: stringify!($fault),
            build: |now, view, settings| broken(Fault::$fault, now, view, settings),
            ..ms_ec::MODE
        }
    };
}

static BROKEN: [Mode; 6] = [
    mode!(None),
    mode!(SkipsPuts),
    mode!(EvaluatesTwice),
    mode!(RefusesAfterTheEffect),
    mode!(AnswersOutOfThinAir),
    mode!(LosesSets),
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

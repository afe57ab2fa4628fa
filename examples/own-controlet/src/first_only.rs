//! `first-only`: the first replica of each shard does all the work; the others are there for when it dies.
//!
//! ```text
//!  reads and writes ──▶ head ──▶ middle ──▶ tail
//! ```
//!
//! For copies on machines that have something else to do, or on slow disks: they apply what was written, and answer nobody.
//! A controlet of its own, around that of `ms+sc`: what a controlet is asked, and what it wants, all passes through here. One
//! that shares nothing with the built-in ones implements `Controlet` in the same way, and `erase` makes it fit.

use bytes::Bytes;
use sartor::Mode;
use sartor::sartor_core::controlet::{AnyControlet, Input, Outbox, Settings, Status, View, ms_sc};
use sartor::sartor_core::operation::{Consistency, Request};
use sartor::sartor_core::time::{Micros, Now};

/// The entry of the registry. Another controlet is behind it than behind the built-in modes, so no table goes from one of
/// those to this one.
pub const MODE: Mode = Mode {
    name: "first-only",
    about: "chain replication in which the first replica answers everything; the others are spares",
    role: |place, _| if place == 0 { "head" } else { "spare" },
    build,
    ..ms_sc::MODE
};

/// A replica.
#[derive(Clone, Hash)]
struct FirstOnly {
    inner: Box<dyn AnyControlet>,
    is_head: bool,
}

fn build(now: Now, view: View, settings: Settings) -> Box<dyn AnyControlet> {
    let is_head = view.is_head();
    Box::new(FirstOnly { inner: (ms_sc::MODE.build)(now, view, settings), is_head })
}

impl AnyControlet for FirstOnly {
    /// What is not taken here goes to the head. Who asks for any copy, however old, means the nearest one.
    fn takes(&self, request: &Request) -> bool {
        (self.is_head || request.consistency == Consistency::Eventual) && self.inner.takes(request)
    }

    fn step(&mut self, now: Now, input: Input<Bytes>, out: &mut Outbox<Bytes>) {
        if let Input::View(view) = &input {
            self.is_head = view.is_head();
        }
        self.inner.step(now, input, out);
    }

    fn wake_at(&self) -> Option<Micros> {
        self.inner.wake_at()
    }

    fn status(&self) -> Status {
        self.inner.status()
    }
}

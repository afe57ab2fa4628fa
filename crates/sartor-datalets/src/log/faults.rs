//! Errors that tests plant, each one that such a store could have: a crash test that finds none is none.

/// An error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A durable commit returns before it is on disk.
    SkipSync,
    /// What is written last is not synced.
    SyncEarly,
    /// A new file may be gone after a power failure.
    SkipDirSync,
    /// A commit in the next file counts although the file before is not on disk.
    SwitchUnsynced,
    /// A commit is written before all of its group is.
    CommitEarly,
    /// Old files are deleted while the last commit on disk needs them.
    DeleteEarly,
    /// What follows the last commit is written over, not cut off.
    KeepTail,
    /// What follows the last commit counts.
    TakeTail,
    /// What is found at opening counts as on disk.
    OpenUnsynced,
    /// Hints are believed without a look at whose they are.
    BelieveHints,
    /// A merge takes what was written over for alive.
    MergeDead,
}

/// Which error is planted, if any; none outside of tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plant {
    #[cfg(test)]
    fault: Option<Fault>,
}

impl Plant {
    /// Plants an error.
    #[cfg(test)]
    pub fn new(fault: Option<Fault>) -> Plant {
        Plant { fault }
    }

    /// Whether this one is.
    #[cfg(test)]
    pub fn is(self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Whether this one is.
    #[cfg(not(test))]
    pub fn is(self, _: Fault) -> bool {
        false
    }
}

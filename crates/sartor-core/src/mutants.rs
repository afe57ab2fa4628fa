//! Protocol faults that can be planted on purpose, each one that real systems shipped: a checker that cannot fail is
//! none. They exist only with the cargo feature `mutants`; without it [`planted`] is `false` at compile time.
//!
//! ```text
//!  cargo run --release --features mutants -- sim --mutants
//! ```

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// Which.
    pub fault: Fault,
    /// What it is called.
    pub name: &'static str,
    /// What goes wrong.
    pub about: &'static str,
    /// The mode that shows it, or `switch` where modes change.
    pub mode: &'static str,
}

macro_rules! mutants {
    ($($mode:literal $fault:ident $name:literal $about:literal,)*) => {
        /// What can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Fault {
            $(#[doc = $about] $fault,)*
        }

        /// All of them.
        pub const MUTANTS: &[Mutant] =
            &[$(Mutant { fault: Fault::$fault, name: $name, about: $about, mode: $mode },)*];
    };
}

mutants! {
    "ms+sc" SkipEpochCheck "skip-epoch-check" "a message of an older view is heard",
    "ms+sc" ReuseEpoch "reuse-epoch" "other members, but the same epoch",
    "ms+sc" AnswerAtHead "answer-at-head" "the head answers before the tail has it",
    "ms+sc" ReadUncommitted "read-uncommitted" "a replica shows writes that not all have",
    "ms+sc" MiddleCommits "middle-commits" "a replica in the middle takes what it has for what all have",
    "ms+sc" MarksForgotten "marks-forgotten" "a replica does not remember which keys have writes in flight",
    "ms+sc" ClearUnmarked "clear-unmarked" "FLUSHALL in flight is no write in flight",
    "ms+sc" ServeWithoutLease "serve-without-lease" "a member serves without the promises of the others",
    "ms+sc" LeaseAtArrival "lease-at-arrival" "the lease is checked when a request comes, not when its answer leaves",
    "ms+sc" LeaseOutlivesPromise "lease-outlives-promise" "a promise lasts shorter than who got it believes",
    "ms+sc" LeaseFromArrival "lease-from-arrival" "a lease counts from when the promise came, not from when it was asked for",
    "ms+sc" ForgetPromises "forget-promises" "a new view does not wait for its promises to removed members",
    "ms+sc" LeaveWithoutStopping "leave-without-stopping" "a removed member says that it has left, and serves on",
    "ms+sc" IgnoreLevel "ignore-level" "a new view serves before its members have what any of them had",
    "ms+sc" ForgetAnswers "forget-answers" "a write that is sent again is done again",
    "ms+sc" FillWithoutAnswers "fill-without-answers" "who was filled does not know what was answered before",
    "ms+sc" NamesNotFilled "names-not-filled" "who was filled does not know which ids of SARTOR.ONCE were used",
    "ms+sc" NamesNotHeld "names-not-held" "two requests under one id are decided at once",
    "ms+sc" HeldNotChecked "held-not-checked" "a request that had to wait is done without a look at whether it was done meanwhile",
    "ms+ec" AsideOvertakes "aside-overtakes" "a range that another replica answers does not wait for what its connection sent before",
    "ms+sc" AsideUnjudged "aside-unjudged" "a replica that does not order leaves out of a range what is dead by its own clock",
    "ms+sc" TakeTwice "take-twice" "a request that is forwarded again is taken again",
    "ms+sc" RefuseSent "refuse-sent" "a write that may have been done is reported as refused",
    "ms+sc" TrustSuccessor "trust-successor" "the kept list is not sent to a new successor",
    "ms+sc" TrimEarly "trim-early" "entries are forgotten before all have them",
    "ms+sc" NoResend "no-resend" "what got lost is never sent again",
    "ms+sc" AcceptGaps "accept-gaps" "an entry is taken although one before it is missing",
    "ms+sc" ApplyTwice "apply-twice" "an entry that comes again is applied again",
    "ms+sc" TornBatch "torn-batch" "the last write of an atomic batch does not reach the replicas",
    "ms+sc" WrongHeir "wrong-heir" "the tail succeeds the head",
    "ms+sc" JoinEarly "join-early" "a replica joins before it was filled",
    "ms+sc" NewcomerCounts "newcomer-counts" "a newcomer counts before it has all that the others had",
    "ms+sc" NewcomerIsHeir "newcomer-is-heir" "a newcomer may inherit before it counts",
    "ms+sc" LoseDeletesOfFill "lose-deletes-of-fill" "deletes do not reach a replica that is being filled",
    "ms+sc" PageAgain "page-again" "a page of a fill that comes again is taken again",
    "ms+sc" SendBeforePersist "send-before-persist" "a map is sent before it is on disk",
    "ms+sc" RestartWhileAlive "restart-while-alive" "a shard begins anew although somebody has its data",
    "ms+ec" ResumeLeast "resume-least" "after all died, the copy on disk that stood least far begins again",
    "ms+sc" TrustKept "trust-kept" "a copy that comes back is completed although what it has last was lost elsewhere",
    "ms+sc" KeepDeleted "keep-deleted" "a copy that comes back keeps what was deleted meanwhile",
    "ms+ec" ForgetDisks "forget-disks" "who died is removed although all may have died, and its disk has the most",
    "ms+sc" ResendAfterResume "resend-after-resume" "what a head may have done is sent again to one that cannot know it",
    "ms+sc" AnswerBeforeCommit "answer-before-commit" "a store says that it has what is not on disk yet",
    "ms+sc" LostStoreStays "lost-store-stays" "a replica whose store lost its data stays a member",
    "ms+sc" SlowIsGone "slow-is-gone" "a copy that was too slow counts as one whose data is gone",
    "ms+sc" IgnoreGeneration "ignore-generation" "a store that came back empty is not noticed",
    "ms+sc" CutSilently "cut-silently" "a follower that is too slow is skipped and not told",
    "ms+sc" IgnoreDeafness "ignore-deafness" "members that do not reach each other stay together",
    "ms+sc" ForgetEstranged "forget-estranged" "who was removed because of a dead link is taken back at once",
    "ms+sc" WatchIgnored "watch-ignored" "EXEC does not look at the watched keys",
    "ms+ec" JudgeExpiryHere "judge-expiry-here" "a secondary judges by its own clock whether a record has expired",
    "ms+ec" LoseDeadlines "lose-deadlines" "replicas do not know when records expire",
    "ms+ec" ForgetFloor "forget-floor" "a connection's reads go back in time",
    "ms+ec" NeverStale "never-stale" "a read of bounded staleness does not look how old its copy is",
    "ms+ec" Overtake "overtake" "a request overtakes an earlier one of its connection",
    "ms+ec" NoRescue "no-rescue" "a new primary does not learn what others have and it lacks",
    "aa+sc" SentIsHad "sent-is-had" "what was sent to a replica counts as what it has",
    "aa+sc" DeadStays "dead-stays" "a read tells that a record is past its deadline before it is gone everywhere",
    "aa+sc" CutDoesNotCount "cut-does-not-count" "who was given up as slow and still answers reads is not waited for",
    "aa+ec" SealIgnored "seal-ignored" "places given by an older sequencer count after its epoch was sealed",
    "aa+ec" AppendAgain "append-again" "an append that is sent again gets another place",
    "aa+ec" OwnClock "own-clock" "a replica does operations by its own wall clock",
    "aa+ec" DeletesNotFilled "deletes-not-filled" "who was filled does not know where keys were deleted",
    "aa+ec" FillByOperations "fill-by-operations" "a replica that lacks records does operations",
    "aa+ec" AnswerAtOne "answer-at-one" "a write is acknowledged before a second node has it",
    "aa+ec-log" LogUnread "log-unread" "a new sequencer does not read what the log outside has",
    "aa+ec-log" LoggedEarly "logged-early" "what was sent to the log outside counts as in it",
    "split" SealEarly "seal-early" "a part begins before the whole has all that it ordered for it",
    "split" FollowNothing "follow-nothing" "what is written while a part is copied does not reach it",
    "split" TakeMoved "take-moved" "a shard takes requests for what is another one's now",
    "split" MovedOvertakes "moved-overtakes" "a request overtakes an earlier one of its connection that finds its shard divided",
    "split" NamesNotMoved "names-not-moved" "a part does not know which ids of SARTOR.ONCE were used in the whole",
    "switch" DrainNothing "drain-nothing" "operations get places while the store still gives places to others",
    "switch" SwitchInPlace "switch-in-place" "another mode without another view",
    "switch" AnswersNotSwitched "answers-not-switched" "an answer made in a mode that does not wait leaves in one that does, without waiting",
    "switch" LaxWithoutEnd "lax-without-end" "who is cut off goes on reading by the rules of a mode that is over",
    "switch" MarksNotSwitched "marks-not-switched" "a mode that waits for all does not know what was on its way before it",
}

#[cfg(feature = "mutants")]
mod chosen {
    use core::sync::atomic::{AtomicUsize, Ordering};

    /// The place of the planted one, from 1; 0 for none.
    static CHOSEN: AtomicUsize = AtomicUsize::new(0);

    /// Plants a fault in everything that runs in this process, or takes it out.
    pub fn plant(fault: Option<super::Fault>) {
        CHOSEN.store(fault.map_or(0, |fault| fault as usize + 1), Ordering::Relaxed);
    }

    /// Whether this fault is planted.
    pub fn planted(fault: super::Fault) -> bool {
        CHOSEN.load(Ordering::Relaxed) == fault as usize + 1
    }
}
#[cfg(feature = "mutants")]
pub use chosen::{plant, planted};

/// Whether this fault is planted.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn planted(_: Fault) -> bool {
    false
}

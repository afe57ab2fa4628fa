//! Seeds that once failed, each with what was wrong: they must not fail again.
//!
//! A seed means another run whenever the protocol sends one message more; so each stands beside a test that shows the
//! same thing message by message (named here), or was found again with the fault put back.

use sartor_core::controlet::{MODES, Mode, ms_ec, ms_sc};
use sartor_sim::{Config, run};

const FOUND: &[(&str, u64, &str)] = &[
    ("ms+sc", 34, "what the view before had at all members was not kept for who joined since"),
    ("ms+sc", 53, "the same"),
    ("ms+sc", 17, "a follower that another message told of was never sent anything more"),
    (
        "ms+sc",
        209,
        "a newcomer counted although it lacked entries (repair.rs, a_standby_is_filled_joins_and_is_proven)",
    ),
    ("ms+sc", 894, "the same"),
    ("ms+sc", 4031, "a page of an earlier fill that the store took late counted for the next one"),
    ("ms+sc", 5_007_863, "who was filled again after all data was lost took old writes for writes in flight"),
    ("ms+sc", 958, "a request that the only copy held, its store empty, was not looked at again"),
    ("ms+ec", 8, "a request that was held did not look again whether it had been done elsewhere"),
    ("ms+ec", 100_284, "the same"),
    ("ms+ec", 101_775, "the same"),
    ("aa+ec", 149, "who ordered alone took the only other one for a newcomer when it was an heir already"),
    ("aa+ec", 61, "a read that found a dead record while nobody might serve was put behind later writes"),
    ("switch", 7069, "who was cut off went on reading by the rules of a mode that was over"),
    ("switch", 5534, "an answer made in a mode that does not wait left in one that does, without waiting"),
];

/// Between which those that switch did so when they were found.
const FIRST_TWO: &[Mode] = &[ms_sc::MODE, ms_ec::MODE];

/// But for these.
const AMONG_ALL: &[u64] = &[1_795_328_422, 31_002_072];

/// Those that need 60 s.
const FOUND_LATE: &[(&str, u64, &str)] = &[
    ("ms+sc", 302_614, "a replica that had ended told that its data was gone in a view of the one after it"),
    ("ms+sc", 300_754, "the same"),
    ("ms+ec", 300_559, "the same"),
    ("ms+sc", 3_010_531, "a read waited for an entry that a member which was given up never got"),
    (
        "ms+sc",
        3_014_318,
        "who stood still once, while hardly anybody asked for anything, was given up as slow",
    ),
    ("ms+sc", 3_049_088, "the same"),
    ("ms+sc", 4_020_116, "who was sent a message that got lost twice was given up as slow"),
    ("ms+sc", 4_033_518, "the same"),
    (
        "ms+ec",
        8_009_033,
        "a bounded read was answered from before what an earlier read of its pipeline told of",
    ),
    ("ms+ec", 8_018_139, "the same of a causal read"),
    ("ms+ec", 8_044_011, "the same"),
    ("ms+ec", 8_014_779, "the same of a bounded read that had to go elsewhere, before the earlier one did"),
    ("ms+sc", 6_000_800, "of two copies that had both been too slow neither served again"),
    (
        "switch",
        1_795_328_422,
        "an answer was dated at a place that was lost with the primary that ordered it",
    ),
    ("switch", 31_002_072, "a strong mode after a log outside did not know what was on its way to all"),
    ("aa+sc-locks", 42_250, "who was first in line for locks waited for them past his deadline"),
];

#[test]
fn what_was_found_stays_mended() {
    let late = Config { run_ms: 60_000, ..Config::default() };
    let found = FOUND.iter().map(|found| (found, Config::default()));
    for ((mode, seed, what), config) in found.chain(FOUND_LATE.iter().map(|found| (found, late))) {
        let (run_ms, seconds) = (config.run_ms, config.run_ms / 1000);
        let config = Config { run_ms, disks: false, ..Config::of(MODES, mode).unwrap() };
        let few = config.switches && !AMONG_ALL.contains(seed);
        let config = if few { Config { modes: FIRST_TWO, ..config } } else { config };
        if let Err(error) = run(*seed, &config) {
            panic!("sartor sim --mode {mode} --seed {seed} --seconds {seconds}: {error} ({what})");
        }
    }
}

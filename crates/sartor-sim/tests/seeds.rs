//! Seeds of every mode, and that the checks notice broken protocols.

const SEEDS: u64 = 100;

use sartor_sim::{Config, run};

#[test]
fn one_seed_is_one_run() {
    let config = Config::default();
    for seed in 0..5 {
        assert_eq!(run(seed, &config), run(seed, &config));
    }
    assert_ne!(run(1, &config).map(|s| s.trace), run(2, &config).map(|s| s.trace));
}

#[test]
fn seeds_pass_and_are_what_they_promise() {
    for mode in sartor_core::controlet::MODES.iter().map(|mode| mode.name).chain(["switch"]) {
        let config = Config::of(sartor_core::controlet::MODES, mode).unwrap();
        for seed in 0..SEEDS {
            let summary = run(seed, &config)
                .unwrap_or_else(|error| panic!("sartor sim --mode {mode} --seed {seed}: {error}"));
            assert!(summary.faults >= 3 && summary.operations >= 500, "seed {seed}: {summary:?}");
            assert!(summary.simulated_ms >= 20_000);
            assert!(summary.succeeded * 2 >= summary.operations || seed > 0, "{summary:?}");
        }
    }
}

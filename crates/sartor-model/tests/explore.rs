//! A small world holds what it promises, and a broken one is found out: a checker that cannot fail is none.

use sartor_model::Planted;
use sartor_model::model::Chain;
use sartor_model::world::{Budget, Config};
use stateright::{Checker, HasDiscoveries, Model};

/// What was violated, and what was seen.
fn explore(config: Config) -> (Vec<&'static str>, Vec<&'static str>) {
    let checker = Chain::new(config).checker().finish_when(HasDiscoveries::Any).threads(2).spawn_bfs().join();
    let violations = checker.discoveries().into_keys().collect();
    (violations, checker.model().sights().into_keys().collect())
}

fn budget(crashes: u8, suspicions: u8, duplicates: u8, pauses: u8, steps: u8) -> Budget {
    Budget { crashes, suspicions, duplicates, pauses, late: 0, steps }
}

/// One client's write and read matter here.
fn small(budget: Budget, planted: Planted) -> Config {
    let (writes, reads) = ([vec![0], vec![]], [vec![2], vec![]]);
    Config { budget, planted, writes, reads, ..Config::default() }
}

#[test]
fn a_small_world_keeps_its_promises() {
    let (violations, seen) = explore(small(budget(1, 0, 1, 0, 1), Planted::Nothing));
    assert_eq!(violations, [""; 0]);
    for what in ["a newcomer that counts", "a write answered in a later view than it was ordered in"] {
        assert!(seen.contains(&what), "{what} was never seen: {seen:?}");
    }
}

#[test]
fn a_clock_that_stops_is_found_out() {
    assert!(!explore(small(budget(0, 1, 0, 0, 1), Planted::ClockStops)).0.is_empty());
}

#[test]
fn a_member_that_is_said_to_have_left_and_has_not_is_found_out() {
    assert!(!explore(small(budget(0, 1, 0, 0, 0), Planted::SaysItLeft)).0.is_empty());
}

#[test]
fn a_newcomer_that_counts_too_early_is_found_out() {
    let config = Config { members: 2, ..small(budget(2, 0, 0, 0, 2), Planted::CountsAtOnce) };
    assert!(!explore(config).0.is_empty());
}

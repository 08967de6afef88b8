//! Each rule is needed: without it the simulator sees a violation, within the seeds that CI runs anyway.

use millrace_core::ownership::Rule;
use millrace_simulator::{Mutant, catch};

const SEEDS: u64 = 2_000;

/// Caught, but by so few seeds (about one in a thousand) that 2,000 are not sure to hold one. Not asserted yet; see
/// `docs/ownership.md`.
const RARE: [Mutant; 4] = [
    Mutant::Without(Rule::FencedSpeaksOfTheFenced),
    Mutant::Without(Rule::FencedPositionIsFromTheStart),
    Mutant::Without(Rule::TombstonesByTheLevelOwner),
    Mutant::Without(Rule::FormerLivesAreReleasedAfterACommit),
];

#[test]
fn every_mutant_that_is_not_rare_is_caught() {
    for mutant in Mutant::ALL.into_iter().filter(|mutant| !RARE.contains(mutant)) {
        assert!(catch(mutant, 0, SEEDS).is_some(), "{mutant:?} was not caught by {SEEDS} seeds");
    }
}

//! Autoscaling in a closed loop: whatever comes in and whatever happens, it comes to rest, in its bounds, with enough
//! workers and not many more; and each of its rules is needed.

use std::path::Path;

use millrace_simulator::seeds;

mod cases;
mod mutant;
mod plant;
mod world;

use mutant::Mutant;
use world::run;

/// CI's share; `MILLRACE_SEEDS` asks for more.
const SEEDS: u64 = 100;
const MUTANT_SEEDS: u64 = 200;

#[test]
fn whatever_comes_in_it_comes_to_rest_with_enough_workers() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    seeds::check("autoscale", dir, SEEDS, |seed, record| run(seed, None, record));
}

#[expect(clippy::disallowed_macros, reason = "a test says by what each was caught")]
#[test]
fn every_mutant_is_caught() {
    let caught = Mutant::ALL.map(|mutant| {
        let found = seeds::first(0, MUTANT_SEEDS, |seed| {
            run(seed, Some(mutant), false).violation.filter(|violation| mutant.is_caught_by(violation))
        });
        println!("{mutant:?}: {found:?}");
        (mutant, found)
    });
    let missed: Vec<Mutant> = caught.iter().filter(|(_, found)| found.is_none()).map(|(mutant, _)| *mutant).collect();
    assert_eq!(missed, [], "not caught by {MUTANT_SEEDS} seeds");
}

//! The operator's rules hold for every seed, and each of them is needed.

use std::path::Path;

use millrace_reconcile_simulator::{Mutant, catch, run};
use millrace_simulator::seeds;

/// CI's share; `MILLRACE_SEEDS` asks for more.
const SEEDS: u64 = 60;
const MUTANT_SEEDS: u64 = 200;

#[test]
fn whatever_happens_the_cluster_comes_to_what_was_asked_for() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    seeds::check("reconcile", dir, SEEDS, |seed, record| run(seed, None, record));
}

#[test]
fn every_mutant_is_caught() {
    let caught = Mutant::ALL.map(|mutant| {
        let found = catch(mutant, 0, MUTANT_SEEDS);
        println!("{mutant:?}: {found:?}");
        (mutant, found)
    });
    let missed: Vec<Mutant> = caught.iter().filter(|(_, found)| found.is_none()).map(|(mutant, _)| *mutant).collect();
    assert_eq!(missed, [], "not caught by {MUTANT_SEEDS} seeds");
}

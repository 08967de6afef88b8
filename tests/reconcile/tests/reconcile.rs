//! The operator's rules hold for every seed, and each of them is needed.

use std::path::Path;
use std::{env, fs};

use millrace_reconcile_simulator::{Mutant, catch, run, run_seeds};

/// CI's share; `MILLRACE_SEEDS` asks for more.
const SEEDS: u64 = 60;
const MUTANT_SEEDS: u64 = 100;

fn setting(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn whatever_happens_the_cluster_comes_to_what_was_asked_for() {
    if let Some(seed) = setting("MILLRACE_SEED") {
        let run = run(seed, None, true);
        println!("{}", run.lines.join("\n"));
        assert_eq!(run.violation, None, "seed {seed}");
        return;
    }
    if let Some((seed, violation)) = run_seeds(0, setting("MILLRACE_SEEDS").unwrap_or(SEEDS)) {
        let trace = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("reconcile-{seed}.txt"));
        fs::write(&trace, run(seed, None, true).lines.join("\n")).expect("write the trace");
        let again = "cargo test --release --workspace --test reconcile -- --nocapture";
        panic!("seed {seed}: {violation:?}\ntrace: {}\nto run it again: MILLRACE_SEED={seed} {again}", trace.display());
    }
}

#[test]
fn every_mutant_is_caught() {
    let caught = Mutant::ALL.map(|mutant| (mutant, catch(mutant, 0, MUTANT_SEEDS)));
    caught.iter().for_each(|(mutant, found)| println!("{mutant:?}: {found:?}"));
    let missed: Vec<Mutant> = caught.iter().filter(|(_, found)| found.is_none()).map(|(mutant, _)| *mutant).collect();
    assert_eq!(missed, [], "not caught by {MUTANT_SEEDS} seeds");
}

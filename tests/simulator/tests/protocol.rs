//! The protocol holds for every seed.

use millrace_simulator::run_seeds;

/// CI's share; `--seeds` of the long run is the environment variable `MILLRACE_SEEDS`.
const SEEDS: u64 = 2_000;

#[test]
fn the_answer_does_not_depend_on_what_happens_to_the_processes() {
    let seeds = std::env::var("MILLRACE_SEEDS").map_or(SEEDS, |text| text.parse().expect("a number of seeds"));
    if let Some((seed, violation)) = run_seeds(0, seeds) {
        panic!("seed {seed}: {violation}");
    }
}

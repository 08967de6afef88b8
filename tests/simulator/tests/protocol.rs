//! The protocol holds for every seed.

use std::path::Path;

use millrace_simulator::{run, seeds};

/// CI's share; `MILLRACE_SEEDS` asks for more.
const SEEDS: u64 = 2_000;

#[test]
fn the_answer_does_not_depend_on_what_happens_to_the_processes() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    seeds::check("protocol", dir, SEEDS, |seed, record| run(seed, None, record));
}

//! The protocol holds for every seed.

use std::path::Path;
use std::{env, fs};

use millrace_simulator::{run, run_seeds};

/// CI's share; `MILLRACE_SEEDS` asks for more.
const SEEDS: u64 = 2_000;

fn setting(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn the_answer_does_not_depend_on_what_happens_to_the_processes() {
    if let Some(seed) = setting("MILLRACE_SEED") {
        let run = run(seed, None, true);
        println!("{}", run.lines.join("\n"));
        assert_eq!(run.violation, None, "seed {seed}");
        return;
    }
    if let Some((seed, violation)) = run_seeds(0, setting("MILLRACE_SEEDS").unwrap_or(SEEDS)) {
        let trace = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("seed-{seed}.txt"));
        fs::write(&trace, run(seed, None, true).lines.join("\n")).expect("write the trace");
        let again = "cargo test --release --workspace --test protocol -- --nocapture";
        panic!("seed {seed}: {violation}\ntrace: {}\nto run it again: MILLRACE_SEED={seed} {again}", trace.display());
    }
}

//! Prints what happened in one seed: `cargo run --release -p millrace-simulator --example trace -- SEED [MUTANT]`.

use millrace_simulator::{Mutant, run};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seed = arguments.next().and_then(|seed| seed.parse().ok()).expect("the first argument is a seed");
    let mutant = arguments.next().map(|name| {
        let known = |mutant: &Mutant| format!("{mutant:?}") == name;
        Mutant::ALL.into_iter().find(known).unwrap_or_else(|| panic!("no such mutant; there are {:?}", Mutant::ALL))
    });
    for line in run(seed, mutant, true).lines {
        println!("{line}");
    }
}

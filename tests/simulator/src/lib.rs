//! A deterministic simulator of the epoch and ownership protocols.
//!
//! It runs the real decisions (`millrace_core::ownership`, `millrace_core::epoch`) in processes that crash, stall and
//! live twice, on a model of Kafka whose commit markers are late, whose answers get lost and whose control topic is
//! compacted. Two stages with a repartition topic between them, several tasks per lane, state in every task.
//!
//! One seed is one run, and the same seed is the same run, step for step: the trace's hash tells. Every seed draws its
//! own likelihood for each fault (swarm testing), because a world in which everything goes wrong all the time never gets
//! far enough for the rare orders of events.
//!
//! The oracle: the final output that a `read_committed` reader sees equals the answer of a naive model, each row exactly
//! once, and so does the state. Besides, each commit is audited against the invariants when it happens.
//!
//! A [`Mutant`] takes one rule away; a test asserts that each is caught. `docs/ownership.md` has the table.

mod broker;
mod control_topic;
mod driver;
mod model;
mod mutant;
mod oracle;
pub mod rng;
pub mod trace;
mod weather;
mod world;

use std::sync::atomic::{AtomicU64, Ordering};

pub use mutant::Mutant;
pub use oracle::Violation;
pub use world::{Run, run};

/// Runs the seeds `from..to` on all cores, each one twice; the first violation by seed, if there is one.
///
/// # Panics
/// When two runs of one seed differ: then the simulator or a core is not deterministic.
pub fn run_seeds(from: u64, to: u64) -> Option<(u64, Violation)> {
    first(from, to, |seed| {
        let (one, two) = (run(seed, None, false), run(seed, None, false));
        assert_eq!(one.hash, two.hash, "seed {seed} runs differently the second time");
        one.violation
    })
}

/// The first of the seeds `from..to` that catches the mutant. One that only wedges it does not count: a mutant must be
/// seen doing harm.
pub fn catch(mutant: Mutant, from: u64, to: u64) -> Option<(u64, Violation)> {
    first(from, to, |seed| run(seed, Some(mutant), false).violation.filter(|v| !matches!(v, Violation::Stuck { .. })))
}

/// The first result of the seeds `from..to`, by seed, on all cores.
pub fn first<T: Send>(from: u64, to: u64, run: impl Fn(u64) -> Option<T> + Sync) -> Option<(u64, T)> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let found_at = AtomicU64::new(u64::MAX);
    let search = &|thread: u64| {
        let seeds = (from..to).skip(thread as usize).step_by(threads as usize);
        let (seed, found) = seeds
            .take_while(|seed| *seed < found_at.load(Ordering::Relaxed))
            .find_map(|seed| run(seed).map(|found| (seed, found)))?;
        found_at.fetch_min(seed, Ordering::Relaxed);
        Some((seed, found))
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || search(thread))).collect();
        let found = running.into_iter().filter_map(|handle| handle.join().expect("a run of a seed panicked"));
        found.min_by_key(|(seed, _)| *seed)
    })
}

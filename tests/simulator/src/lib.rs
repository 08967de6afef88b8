//! A deterministic simulator of the epoch and ownership protocols.
//!
//! It runs the real decisions (`millrace_core::ownership`, `millrace_core::epoch`) in processes that crash, stall and
//! live twice, on a model of Kafka whose commit markers are late, whose answers get lost and whose control topic is
//! compacted. Two stages with a repartition topic between them, several tasks per lane, state in every task, on disks that
//! outlive processes. An operator moves the tasks, and restorers read the states of those that are about to move.
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
mod operator;
mod oracle;
pub mod rng;
mod savepoint;
pub mod seeds;
mod storage;
pub mod trace;
mod volume;
mod weather;
mod world;

pub use mutant::Mutant;
pub use oracle::Violation;
pub use world::run;

/// The first of the seeds `from..to` that catches the mutant. One that only wedges it does not count: a mutant must be
/// seen doing harm.
pub fn catch(mutant: Mutant, from: u64, to: u64) -> Option<(u64, Violation)> {
    let harm = |violation: &Violation| !matches!(violation, Violation::Stuck { .. });
    seeds::first(from, to, |seed| run(seed, Some(mutant), false).violation.filter(harm))
}

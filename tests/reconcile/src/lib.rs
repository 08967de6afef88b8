//! A deterministic simulator of the operator's reconcile.
//!
//! It runs the real decisions (`millrace_operator_core::decide`) against a model of Kubernetes and of the control log in
//! Kafka. Operators see caches that are behind, each kind of object by as much as it likes; their writes get lost, or land
//! although they seem lost, or land late; two of them may be at work, and each may crash between any two writes. Pods are
//! killed, workers cannot be reached, ConfigMaps get lost, a Pipeline is made again under its name, and the whole cluster
//! goes back to a backup while Kafka does not.
//!
//! One seed is one run, and the same seed is the same run, step for step: the trace's hash tells.
//!
//! The oracle has two halves. Each write of an operator, each start of a worker and each task that one takes is judged when
//! it happens (`oracle`). And once all faults have stopped, the world must come to what was asked for, say so in
//! the status, and **come to rest**: nothing is written while nothing changes (`ending`).
//!
//! A [`Mutant`] takes one rule away; a test asserts that each is caught.

mod api;
mod ending;
mod mutant;
mod operator;
mod oracle;
mod platform;
mod weather;
mod wish;
mod worker;
mod world;

pub use mutant::Mutant;
pub use oracle::Violation;
pub use world::run;

/// The first of the seeds `from..to` in which the mutant does its harm.
pub fn catch(mutant: Mutant, from: u64, to: u64) -> Option<(u64, Violation)> {
    millrace_simulator::seeds::first(from, to, |seed| {
        run(seed, Some(mutant), false).violation.filter(|violation| mutant.is_caught_by(violation))
    })
}

//! SLOs: what a slice of time counts as, and the books that are kept of them.
//!
//! Workers measure and keep an hour of slices ([`millrace_core::slices`]); the operator asks for them, and decides what
//! each counts as, since it outlives a worker that is dead: that makes bad slices, not missing ones. [`verdict`] is the
//! table of `docs/slos.md`, [`books`] asks it once for each slice, in order, and [`ring`] remembers the answers.
//!
//! A slice has its verdict once every worker that can has told of it. So the order and the delay in which workers are
//! heard change nothing, and neither does who asks: an operator that takes over asks for what the former one has not
//! written down.

use std::sync::Arc;

use millrace_core::ids::{Partition, TaskId};
use millrace_core::slices::{SLICE_MS, SLICES_KEPT};
use millrace_crds::pipeline::{DesiredState, FreshnessSince, Slo};
use serde::{Deserialize, Serialize};

use crate::decide::spec_of;
use crate::facts::Facts;
use crate::render::BOOKS;
use tally::{Output, Tally};

pub mod books;
pub mod ring;
pub mod tally;

/// A worker that does not answer and that Kubernetes does not hold for ready is given so many slices more: what is known
/// of a pod may be older than that.
const PATIENCE: i64 = 3;

/// The slice that a moment is in.
pub fn index(now_ms: i64) -> i64 {
    now_ms.div_euclid(SLICE_MS)
}

/// What a pipeline was to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Intent {
    Run,
    /// It is asked to run, with no workers. That is demand which nobody serves: who wants a rest suspends.
    NoWorkers,
    Suspended,
    /// It drains, or has.
    Drained,
}

impl Intent {
    /// Whether its slices count.
    pub fn counts(self) -> bool {
        matches!(self, Self::Run | Self::NoWorkers)
    }
}

/// What shall be in a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    pub intent: Intent,
    /// In their order. `None`: it is not known yet which ones there are.
    pub tasks: Option<Arc<[TaskId]>>,
}

/// What is known of a worker that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Of its pod.
    pub uid: String,
    /// Kubernetes holds it for ready.
    pub ready: bool,
    /// Number of its process, and the first slice of that.
    pub process: Option<u64>,
    pub started: i64,
    /// It has told of every slice of its process below this one.
    pub next: i64,
    /// The slice in which it began not to answer.
    pub silent: Option<i64>,
    /// The last slice in which it did not answer while most others did not either.
    pub cut_off: Option<i64>,
    /// Its release knows of no slices.
    pub mute: bool,
}

/// Whether a worker's word on a slice is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Word {
    /// It was told, or will never be.
    Said,
    /// It is lost, and it is us who did not hear it.
    Missed,
    Awaited,
}

impl Worker {
    fn word(&self, index: i64, now: i64) -> Word {
        let kept = now - index <= SLICES_KEPT as i64;
        match self.silent {
            _ if self.next > index || self.started > index => Word::Said,
            _ if self.mute => Word::Missed,
            None if kept => Word::Awaited,
            // Somebody else reaches it: it is us.
            Some(_) if kept && self.ready => Word::Awaited,
            Some(silent) if kept && now - silent.max(index) <= PATIENCE => Word::Awaited,
            _ if !kept && self.cut_off.is_some_and(|last| last >= index) => Word::Missed,
            _ => Word::Said,
        }
    }
}

/// Everything that the verdict on a slice depends on.
#[derive(Clone, Copy, Debug)]
pub struct SliceView<'a> {
    pub index: i64,
    /// The slice in which it is judged.
    pub now: i64,
    pub expected: &'a Expected,
    /// What was heard of it.
    pub tally: &'a Tally,
    /// Those that are there.
    pub workers: &'a [Worker],
    /// The lag was known in an earlier slice, since it was asked to run.
    pub known: bool,
    /// The slice in which it was asked to run.
    pub asked: i64,
}

/// What a slice counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Good,
    Bad(Harm),
    /// For SLOs that count records.
    Records {
        all: u64,
        bad: u64,
    },
    NotCounted(Rest),
    /// Most workers could not be reached, and what they knew is lost: nobody can tell.
    Unobserved,
    /// A worker that is there may still tell.
    Pending,
}

/// Why a slice is bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// Something was above the threshold.
    Late,
    /// Nothing came out while lag was above the threshold.
    Stuck,
    /// Lag was not known.
    LagUnknown,
    /// A task that should run reports nothing.
    SilentTask,
    NoWorkers,
}

/// Why a slice does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    Suspended,
    Drained,
    /// Lag is not known yet.
    Starting,
}

/// What a slice counts as for an SLO: the table of `docs/slos.md`.
pub fn verdict(slo: &Slo, view: &SliceView<'_>) -> Verdict {
    match view.expected.intent {
        Intent::Suspended => return Verdict::NotCounted(Rest::Suspended),
        Intent::Drained => return Verdict::NotCounted(Rest::Drained),
        Intent::Run | Intent::NoWorkers => {}
    }
    // Whatever the others have to tell, it does not get better.
    if slo.lag.as_ref().is_some_and(|lag| view.tally.lag_above(lag.threshold.ms())) {
        return Verdict::Bad(Harm::Late);
    }
    let words = view.workers.iter().map(|worker| worker.word(view.index, view.now));
    match words.max() {
        Some(Word::Awaited) => return Verdict::Pending,
        Some(Word::Missed) => return Verdict::Unobserved,
        Some(Word::Said) | None => {}
    }
    if slo.counts_records() {
        let bad = if slo.completeness.is_some() { view.tally.unbalanced } else { view.tally.dead_lettered };
        return Verdict::Records { all: view.tally.rows.max(bad), bad };
    }
    let harm = if view.expected.intent == Intent::NoWorkers {
        Some(Harm::NoWorkers)
    } else if view.tally.is_silent(view.expected) {
        Some(Harm::SilentTask)
    } else {
        harm(slo, view.tally)
    };
    let starts = !view.known && (view.index - view.asked) * SLICE_MS < slo.startup_grace.ms();
    match harm {
        None => Verdict::Good,
        Some(Harm::NoWorkers | Harm::SilentTask | Harm::LagUnknown) if starts => Verdict::NotCounted(Rest::Starting),
        Some(harm) => Verdict::Bad(harm),
    }
}

/// What is wrong with a slice of which every task has told.
fn harm(slo: &Slo, tally: &Tally) -> Option<Harm> {
    let unknown = tally.lag_unknown.then_some(Harm::LagUnknown);
    if let Some(freshness) = &slo.freshness {
        let threshold = freshness.threshold.ms();
        let output = tally.output(freshness.since, threshold).filter(|output| output.count >= slo.min_events.into());
        return match output {
            Some(output) => output.is_late().then_some(Harm::Late),
            None if tally.lag_above(threshold) => Some(Harm::Stuck),
            None => unknown,
        };
    }
    if let Some(lag) = &slo.watermark_lag {
        // Time does not go on in a topic that is quiet.
        let late = tally.watermark.as_ref().is_some_and(|worst| worst.ms > lag.threshold.ms()) && !tally.is_quiet();
        return if late { Some(Harm::Late) } else { unknown };
    }
    unknown
}

/// What of an SLO makes two of one name the same one: with another, its books begin anew.
fn identity(slo: &Slo) -> String {
    let threshold = slo.lag.as_ref().or(slo.watermark_lag.as_ref()).map(|lag| lag.threshold);
    let threshold = threshold.or_else(|| Some(slo.freshness.as_ref()?.threshold)).unwrap_or_default();
    let since = slo.freshness.as_ref().map_or("", |freshness| match freshness.since {
        FreshnessSince::RecordTimestamp => "RecordTimestamp",
        FreshnessSince::EventTime => "EventTime",
    });
    format!("{} {threshold} {since} {}", slo.kind(), slo.window)
}

/// What the freshness SLOs need of each slice.
fn outputs<'a>(slos: impl Iterator<Item = &'a Slo>) -> Vec<Output> {
    let of = |slo: &Slo| {
        let freshness = slo.freshness.as_ref()?;
        Some(Output { since: freshness.since, threshold_ms: freshness.threshold.ms(), ..Output::default() })
    };
    slos.filter_map(of).collect()
}

/// What a Pipeline asks for, as far as SLOs care.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    pub slos: Vec<Slo>,
    pub expected: Expected,
}

/// Reads it from the spec, or from the one that runs while that has mistakes. `None` where there is neither.
pub fn wanted(facts: &Facts<'_>) -> Option<Wanted> {
    let applied = || spec_of(&facts.applied.as_ref()?.value.spec, facts);
    let spec = facts.parsed.as_ref().ok().map(|pipeline| pipeline.spec.clone()).or_else(applied)?;
    let intent = match spec.desired_state {
        DesiredState::Suspended => Intent::Suspended,
        DesiredState::Drained => Intent::Drained,
        DesiredState::Running if spec.replicas == 0 => Intent::NoWorkers,
        DesiredState::Running => Intent::Run,
    };
    let tasks = facts.assignment().map(|assignment| {
        let task = |stage: &String, partition: Partition| TaskId { stage: stage.clone(), partition };
        let mut tasks: Vec<TaskId> = assignment.tasks.iter().map(|t| task(&t.stage, t.partition)).collect();
        tasks.sort();
        tasks.into()
    });
    Some(Wanted { slos: spec.slos, expected: Expected { intent, tasks } })
}

/// The books that were written down.
pub fn saved<'a>(facts: &Facts<'a>) -> Option<&'a str> {
    facts.child("ConfigMap", &facts.names.slos())?["data"][BOOKS].as_str()
}

#[cfg(test)]
mod tests;

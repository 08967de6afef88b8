//! What workers say at one time, where all of them say it and nothing is on its way.

use std::collections::BTreeMap;

use millrace_core::report::{SourceLag, TaskState, WorkerReport};

use super::{Advice, Reason};
use crate::facts::{Pod, Read};

/// A lane of a worker.
pub type Slot = (u32, u32);

/// What was seen at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub at_ms: i64,
    /// That the spec asks for.
    pub replicas: u32,
    /// Every source partition, by source and number; or why they are not known.
    pub parts: Result<Vec<Part>, Gap>,
}

/// A source partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub source: String,
    pub partition: i32,
    /// Of the task that reads it.
    pub stage: String,
    pub slot: Slot,
    pub lag_ms: i64,
    pub lag_records: i64,
    /// The next offset to read.
    pub position: i64,
}

/// Why a sample says nothing of the load, with what is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gap {
    NotReady(String),
    Rescaling(String),
    Unknown(String),
}

impl Gap {
    pub(super) fn advice(&self) -> Advice {
        match self {
            Self::NotReady(what) => Advice::hold(Reason::NotReady, what),
            Self::Rescaling(what) => Advice::hold(Reason::Rescaling, what),
            Self::Unknown(what) => Advice::hold(Reason::LagUnknown, what),
        }
    }
}

impl Part {
    pub(super) fn task(&self) -> (&str, i32) {
        (&self.stage, self.partition)
    }

    fn goes_on_from(&self, before: &Self) -> bool {
        let id = |part: &Self| (part.partition, part.slot);
        // A position goes back where a topic was made anew or a savepoint restored.
        id(self) == id(before) && self.source == before.source && self.position >= before.position
    }
}

impl Sample {
    /// Whether rates may be taken between the two.
    pub(super) fn goes_on_from(&self, before: &Self) -> bool {
        let (Ok(now), Ok(then)) = (&self.parts, &before.parts) else { return false };
        let same = now.len() == then.len() && now.iter().zip(then).all(|(now, then)| now.goes_on_from(then));
        same && self.replicas == before.replicas
    }
}

/// What workers have said just now.
pub fn sample(read: &Read, reports: &BTreeMap<u32, WorkerReport>, at_ms: i64) -> Sample {
    let replicas = read.parsed.as_ref().map_or(0, |pipeline| pipeline.spec.replicas);
    Sample { at_ms, replicas, parts: parts(read, reports, replicas) }
}

fn parts(read: &Read, reports: &BTreeMap<u32, WorkerReport>, replicas: u32) -> Result<Vec<Part>, Gap> {
    let ready = read.pods.iter().filter(|pod| pod.is_fit()).count();
    if ready as u32 != replicas || !read.pods.iter().all(Pod::is_fit) {
        return Err(Gap::NotReady(format!("{ready} of {replicas} workers are ready")));
    }
    let assignment = read.placed.as_ref().and_then(|placed| placed.value.assignment.as_ref());
    let Some(assignment) = assignment.filter(|assignment| !assignment.tasks.is_empty()) else {
        return Err(Gap::NotReady("no task was assigned yet".to_owned()));
    };
    if !assignment.warm.is_empty() {
        return Err(Gap::Rescaling(format!("{} tasks are on their way", assignment.warm.len())));
    }
    for task in &assignment.tasks {
        let (stage, partition, worker) = (&task.stage, task.partition, task.worker);
        let Some(report) = reports.get(&worker) else {
            return Err(Gap::Unknown(format!("worker {worker} does not answer, so that its lag is not known")));
        };
        let mut own = report.tasks.iter().filter(|own| own.partition == partition && own.stage == *stage);
        let runs = own.any(|own| own.state == TaskState::Running);
        if !runs || report.generation != assignment.generation {
            return Err(Gap::Rescaling(format!("task {stage}/{partition} does not run yet")));
        }
    }
    let lane = |worker: u32, lag: &SourceLag| {
        let of = assignment
            .tasks
            .iter()
            .find(|task| task.worker == worker && task.partition == lag.partition && task.stage == lag.stage);
        of.map_or(0, |task| task.lane)
    };
    let lags = reports.iter().flat_map(|(worker, report)| report.sources.iter().map(move |lag| (*worker, lag)));
    let part = |(worker, lag): (u32, &SourceLag)| {
        let (Some(lag_ms), Some(lag_records), Some(position)) = (lag.lag_ms, lag.lag_records, lag.position) else {
            return Err(Gap::Unknown(format!(
                "the lag of partition {} of source {} is not known",
                lag.partition, lag.name
            )));
        };
        let (source, stage, partition) = (lag.name.clone(), lag.stage.clone(), lag.partition.0);
        Ok(Part { source, partition, stage, slot: (worker, lane(worker, lag)), lag_ms, lag_records, position })
    };
    let mut parts: Vec<Part> = lags.map(part).collect::<Result<_, _>>()?;
    if parts.is_empty() {
        return Err(Gap::Unknown("no worker says how far its sources are behind".to_owned()));
    }
    parts.sort_by(|a, b| (&a.source, a.partition).cmp(&(&b.source, b.partition)));
    Ok(parts)
}

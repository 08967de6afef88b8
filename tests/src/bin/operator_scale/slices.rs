//! What played workers saw, by slices of 10 s. It is made when it is asked for, and is the same whenever that is: results
//! took from 0.1 to 1 s, lag is in step with what the reports say, and now and then a record is a dead letter.

use std::collections::BTreeMap;

use millrace_core::assignment::Placement;
use millrace_core::plan::{InputFrom, OutputTo, Plan, Stage};
use millrace_core::slices::{InputSlice, SLICE_MS, SLICES_KEPT, SLICES_TOLD, SliceReport, SlicesReport};
use millrace_core::slices::{Sketch, TaskSlice};

use crate::workers::lag_ms;

/// Drawn once by a real process.
const PROCESS: u64 = 1;
/// How long results took, one for each millisecond: what a commit every second makes of it.
const AGES_MS: std::ops::Range<i64> = 100..1_000;
/// A task has a dead letter in one of so many slices.
const DEAD_LETTER_EVERY: i64 = 100;

pub struct Slices {
    /// The one in which the workers began.
    begun: i64,
    /// Of each stage, what any task of it tells.
    stages: BTreeMap<String, TaskSlice>,
}

impl Slices {
    pub fn of(plan: &Plan, now_ms: i64) -> Self {
        let ages = Sketch::of(AGES_MS.map(|ms| (ms, 1)));
        let task = |stage: &Stage| {
            let source = |from: &InputFrom| match from {
                InputFrom::Source(source) => Some(InputSlice { source: source.clone(), ..InputSlice::default() }),
                InputFrom::Exchange(_) => None,
            };
            let inputs: Vec<InputSlice> = stage.inputs.iter().filter_map(|input| source(&input.from)).collect();
            let writes = stage.outputs.iter().any(|output| matches!(output.to, OutputTo::Sink(_)));
            let freshness = writes.then(|| ages.clone());
            TaskSlice {
                stage: stage.name.clone(),
                rows: ages.count() * inputs.len() as u64,
                inputs,
                event_freshness: freshness.clone(),
                freshness,
                ..TaskSlice::default()
            }
        };
        let stages = plan.stages.iter().map(|stage| (stage.name.clone(), task(stage))).collect();
        Self { begun: now_ms.div_euclid(SLICE_MS), stages }
    }

    /// What a task saw in a slice.
    pub fn task(&self, slice: i64, pipeline: usize, task: &Placement) -> Option<TaskSlice> {
        let lag_ms = lag_ms(slice * SLICE_MS, pipeline, task.partition);
        let mut told = self.stages.get(&task.stage)?.clone();
        told.partition = task.partition;
        told.watermark_lag_ms = Some(lag_ms);
        told.dead_lettered = u64::from((slice + pipeline as i64) % DEAD_LETTER_EVERY == 0);
        for input in &mut told.inputs {
            (input.lag_ms, input.lag_records) = (Some(lag_ms), Some(lag_ms / 10));
        }
        Some(told)
    }

    /// The slices that have ended, from one on, as a worker tells them that was there all the time.
    pub fn report(&self, worker: u32, from: i64, now_ms: i64, tasks: impl Fn(i64) -> Vec<TaskSlice>) -> SlicesReport {
        let open = now_ms.div_euclid(SLICE_MS);
        let from = from.max(self.begun).max(open - SLICES_KEPT as i64);
        let told = (from..open).take(SLICES_TOLD).map(|index| SliceReport { index, tasks: tasks(index) });
        SlicesReport { worker, process: PROCESS, started_index: self.begun, slices: told.collect() }
    }
}

//! What was heard of one slice, from whichever worker: sums and maxima, so that their order does not matter.

use millrace_core::ids::{Partition, TaskId};
use millrace_core::slices::{Sketch, SliceReport, TaskSlice};
use millrace_crds::pipeline::FreshnessSince;

use super::Expected;

/// About 250 bytes where the pipeline has few tasks. There is one for each slice that waits for its verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// A bit for each task that shall run, by its place among them.
    told: Vec<u64>,
    /// Of a source's partition.
    pub lag: Option<Worst>,
    pub lag_unknown: bool,
    /// Of a task.
    pub watermark: Option<Worst>,
    pub outputs: Vec<Output>,
    pub rows: u64,
    pub dead_lettered: u64,
    pub unbalanced: u64,
}

/// The one that is furthest behind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Worst {
    pub ms: i64,
    /// Name of the source; of the stage where it is about a task.
    pub source: String,
    pub partition: Partition,
}

/// Results that came out, and how many of them were later than a freshness SLO wants them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Output {
    pub since: FreshnessSince,
    pub threshold_ms: i64,
    pub count: u64,
    pub late: u64,
}

impl Output {
    /// Whether the 99th percentile is above the threshold: that is so when more than a hundredth is.
    pub fn is_late(&self) -> bool {
        self.late * 100 > self.count
    }

    fn add(&mut self, sketch: &Sketch) {
        for (bucket, count) in &sketch.buckets {
            let alone = Sketch { buckets: [(*bucket, *count)].into() };
            self.count += count;
            self.late += count * u64::from(alone.quantile(1.0).is_some_and(|ms| ms > self.threshold_ms));
        }
    }
}

impl Tally {
    /// Of a slice of which nothing was heard; `outputs` says which freshness is asked for.
    pub fn new(outputs: Vec<Output>) -> Self {
        Self { outputs, ..Self::default() }
    }

    /// Adds what a worker says. It must be told once.
    pub fn add(&mut self, slice: &SliceReport, expected: &Expected) {
        for task in &slice.tasks {
            self.add_task(task, expected.tasks.as_deref().unwrap_or_default());
        }
    }

    fn add_task(&mut self, task: &TaskSlice, expected: &[TaskId]) {
        let id = (task.stage.as_str(), task.partition);
        if let Ok(place) = expected.binary_search_by(|known| (known.stage.as_str(), known.partition).cmp(&id)) {
            self.told.resize(self.told.len().max(place / 64 + 1), 0);
            self.told[place / 64] |= 1 << (place % 64);
        }
        let worst = |ms: Option<i64>, source: &str| {
            Some(Worst { ms: ms?, source: source.to_owned(), partition: task.partition })
        };
        for input in &task.inputs {
            self.lag_unknown |= input.unknown || input.lag_ms.is_none();
            self.lag = self.lag.take().max(worst(input.lag_ms, &input.source));
        }
        self.watermark = self.watermark.take().max(worst(task.watermark_lag_ms, &task.stage));
        for output in &mut self.outputs {
            let sketch = match output.since {
                FreshnessSince::RecordTimestamp => &task.freshness,
                FreshnessSince::EventTime => &task.event_freshness,
            };
            sketch.iter().for_each(|sketch| output.add(sketch));
        }
        self.rows += task.rows;
        self.dead_lettered += task.dead_lettered;
        self.unbalanced += task.unbalanced;
    }

    /// The first task that should run and of which nothing was heard.
    pub fn silent<'a>(&self, expected: &'a Expected) -> Option<&'a TaskId> {
        let tasks = expected.tasks.as_deref().unwrap_or_default();
        let told = |place: usize| self.told.get(place / 64).is_some_and(|bits| bits & 1 << (place % 64) != 0);
        tasks.iter().enumerate().find(|(place, _)| !told(*place)).map(|(_, task)| task)
    }

    /// Whether there is such a task, or it is not known which tasks there are.
    pub fn is_silent(&self, expected: &Expected) -> bool {
        expected.tasks.as_ref().is_none_or(|tasks| tasks.is_empty()) || self.silent(expected).is_some()
    }

    pub fn lag_above(&self, threshold_ms: i64) -> bool {
        self.lag.as_ref().is_some_and(|worst| worst.ms > threshold_ms)
    }

    /// Nothing was there to be read.
    pub fn is_quiet(&self) -> bool {
        self.rows == 0 && !self.lag_unknown && !self.lag_above(0)
    }

    pub fn output(&self, since: FreshnessSince, threshold_ms: i64) -> Option<&Output> {
        self.outputs.iter().find(|output| (output.since, output.threshold_ms) == (since, threshold_ms))
    }
}

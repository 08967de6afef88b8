//! What a worker saw, by slices of 10 s: lag, freshness, rows. The operator judges them against objectives.
//!
//! A slice is open until its time is over; one that has ended is never changed. What the worker's clock places before the
//! open slice counts in the open one. The largest sample of a slice counts, since a mean would hide a burst; what is not
//! known is absent, never 0; and a negative difference, which is two clocks that differ, is 0.
//!
//! Invariant: a task is in a slice only where something was seen of it. A slice that the process slept through is there,
//! and says nothing of any task.
//!
//! Memory: [`SLICES_KEPT`] slices, and in each for every task two sketches of 6 KB at most, and about 200 bytes for each
//! source: 4.4 MB for a task whose rows are of every age in every slice. Rows that take between 0.1 s and 1 s have 60
//! buckets: 0.9 MB.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::ids::{Partition, TaskId};
use crate::lag::{self, KNOWN_MS, Seen};
use crate::totals::{DropReason, Totals};

pub use sketch::{RELATIVE_ERROR, Sketch, Stamps};

mod sketch;

pub const SLICE_MS: i64 = 10_000;
/// Slices that a worker tells of at once, so that the answer is bounded: five minutes of them.
pub const SLICES_TOLD: usize = 30;
/// Slices that a worker keeps: an hour of them.
pub const SLICES_KEPT: usize = 360;

/// Slices that have ended, from the index that was asked for on, oldest first and without a gap; no more than
/// [`SLICES_TOLD`]. Whoever was told of the last one asks again from there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlicesReport {
    pub worker: u32,
    /// Drawn when the process starts: with another one, what the former had not told is lost.
    pub process: u64,
    /// Of the slice in which it started.
    pub started_index: i64,
    pub slices: Vec<SliceReport>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SliceReport {
    /// Wall-clock milliseconds by [`SLICE_MS`], rounded down.
    pub index: i64,
    pub tasks: Vec<TaskSlice>,
}

/// A task that ran here, if only for a part of the slice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskSlice {
    pub stage: String,
    pub partition: Partition,
    /// Its sources, not what comes from other stages.
    pub inputs: Vec<InputSlice>,
    /// From the timestamp of the record to the commit of the row that it became, for rows that went to a sink. Absent:
    /// none did, or their records have no timestamp.
    pub freshness: Option<Sketch>,
    /// From the event time; behind a join that of the stream's row. Absent also where the stream has no event time.
    pub event_freshness: Option<Sketch>,
    /// How far the watermark of the task's stream is behind the clock, where it was furthest; 0 while the stream is idle,
    /// since that holds nobody back. Absent: there is none, because nothing came yet or the stream has no event time.
    pub watermark_lag_ms: Option<i64>,
    /// Records of its sources, in what was committed. One counts where it enters the pipeline, and not again.
    pub rows: u64,
    /// Of those and of what became of them.
    pub dead_lettered: u64,
    /// Rows that no step's balance accounts for.
    pub unbalanced: u64,
}

/// | `lag_ms` | `unknown` | |
/// | --- | --- | --- |
/// | there | false | known |
/// | absent | false | not yet known, since the task began to run here |
/// | either | true | it was known, and then for longer than a moment it was not |
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InputSlice {
    pub source: String,
    /// Age of the oldest record that is not read, the largest of the samples.
    pub lag_ms: Option<i64>,
    /// The largest too, not necessarily of the same sample.
    pub lag_records: Option<i64>,
    pub unknown: bool,
}

/// What a task had done when it last committed, since the pipeline's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    rows: u64,
    dead_lettered: u64,
    unbalanced: u64,
}

impl Counts {
    /// Of the records of its sources, and the totals of all its steps.
    pub fn of<'a>(rows: u64, steps: impl Iterator<Item = &'a Totals>) -> Self {
        steps.fold(Self { rows, ..Self::default() }, |sum, totals| Self {
            dead_lettered: sum.dead_lettered + totals.dropped.get(&DropReason::DeadLettered).copied().unwrap_or(0),
            unbalanced: sum.unbalanced + totals.unbalanced(),
            ..sum
        })
    }
}

/// What is kept of a task from slice to slice.
#[derive(Debug, Default)]
struct Known {
    counts: Option<Counts>,
    /// For each source, up to when its lag is known.
    lag_as_of_ms: BTreeMap<String, i64>,
}

/// Takes samples and gives slices. All times are wall-clock milliseconds.
#[derive(Debug)]
pub struct Recorder {
    process: u64,
    started_index: i64,
    /// Of the open slice.
    index: i64,
    open: BTreeMap<TaskId, TaskSlice>,
    ended: VecDeque<SliceReport>,
    known: BTreeMap<TaskId, Known>,
}

impl Recorder {
    pub fn new(process: u64, now_ms: i64) -> Self {
        let index = now_ms.div_euclid(SLICE_MS);
        let (open, known) = (BTreeMap::new(), BTreeMap::new());
        Self { process, started_index: index, index, open, ended: VecDeque::new(), known }
    }

    /// A task runs. `watermark_lag_ms` is how far its watermark is behind, if it has one.
    pub fn runs(&mut self, id: &TaskId, watermark_lag_ms: Option<i64>, now_ms: i64) {
        let task = self.task(id, now_ms);
        task.watermark_lag_ms = task.watermark_lag_ms.max(watermark_lag_ms.map(|ms| ms.max(0)));
    }

    /// How far the reading of a source is. Between a record's arrival and its fetch its age is not known for a moment;
    /// once it is, it says how long that took, so a moment is no loss.
    pub fn lag(&mut self, id: &TaskId, source: &str, seen: Seen, now_ms: i64) {
        let lag = lag::lag(seen, now_ms);
        let as_of_ms = &mut self.known.entry(id.clone()).or_default().lag_as_of_ms;
        let lost = match lag {
            Some(_) => {
                as_of_ms.insert(source.to_owned(), seen.end_as_of_ms);
                false
            }
            None => as_of_ms.get(source).is_some_and(|as_of_ms| now_ms.saturating_sub(*as_of_ms) > KNOWN_MS),
        };
        let inputs = &mut self.task(id, now_ms).inputs;
        let at = inputs.iter().position(|input| input.source == source).unwrap_or_else(|| {
            inputs.push(InputSlice { source: source.to_owned(), ..InputSlice::default() });
            inputs.len() - 1
        });
        let input = &mut inputs[at];
        input.lag_ms = input.lag_ms.max(lag.map(|lag| lag.age_ms));
        input.lag_records = input.lag_records.max(lag.map(|lag| lag.records));
        input.unknown |= lost;
    }

    /// What a task's committed totals come to. The first ones since it began to run are what it had done elsewhere.
    pub fn counts(&mut self, id: &TaskId, counts: Counts, now_ms: i64) {
        let before = self.known.entry(id.clone()).or_default().counts.replace(counts).unwrap_or(counts);
        let task = self.task(id, now_ms);
        task.rows += counts.rows.saturating_sub(before.rows);
        task.dead_lettered += counts.dead_lettered.saturating_sub(before.dead_lettered);
        task.unbalanced += counts.unbalanced.saturating_sub(before.unbalanced);
    }

    /// How long the rows took that a commit has just made visible: by record timestamp, and by event time.
    pub fn fresh(&mut self, id: &TaskId, freshness: &Sketch, event_freshness: &Sketch, now_ms: i64) {
        let task = self.task(id, now_ms);
        for (of, sketch) in [(&mut task.freshness, freshness), (&mut task.event_freshness, event_freshness)] {
            if !sketch.buckets.is_empty() {
                of.get_or_insert_default().merge(sketch);
            }
        }
    }

    /// A task has left. What was seen of it stays.
    pub fn forget(&mut self, id: &TaskId) {
        self.known.remove(id);
    }

    /// The slices that have ended, from the index `from` on: the oldest ones, no more than [`SLICES_TOLD`].
    pub fn report(&mut self, worker: u32, from: i64, now_ms: i64) -> SlicesReport {
        self.advance(now_ms);
        let slices = self.ended.iter().filter(|slice| slice.index >= from).take(SLICES_TOLD).cloned().collect();
        SlicesReport { worker, process: self.process, started_index: self.started_index, slices }
    }

    /// A task in the slice that is open now.
    fn task(&mut self, id: &TaskId, now_ms: i64) -> &mut TaskSlice {
        self.advance(now_ms);
        let TaskId { stage, partition } = id;
        let begun = || TaskSlice { stage: stage.clone(), partition: *partition, ..TaskSlice::default() };
        self.open.entry(id.clone()).or_insert_with(begun)
    }

    fn advance(&mut self, now_ms: i64) {
        let index = now_ms.div_euclid(SLICE_MS);
        while self.index < index {
            let tasks = std::mem::take(&mut self.open).into_values().collect();
            self.ended.push_back(SliceReport { index: self.index, tasks });
            // After a long sleep, or a step of the clock, only what is kept is made.
            self.index = (self.index + 1).max(index - SLICES_KEPT as i64);
        }
        let kept_from = self.index - SLICES_KEPT as i64;
        while self.ended.pop_front_if(|slice| slice.index < kept_from).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Offset;

    /// The beginning of a slice.
    const NOW: i64 = 1_700_000_000_000;
    const INDEX: i64 = NOW / SLICE_MS;

    fn task(partition: i32) -> TaskId {
        TaskId { stage: "joined".to_owned(), partition: Partition(partition) }
    }

    fn recorder() -> Recorder {
        Recorder::new(7, NOW)
    }

    /// One record waits, for so long; `None`: how long is not known.
    fn behind(now_ms: i64, age_ms: Option<i64>) -> Seen {
        let head_timestamp_ms = age_ms.map(|age| now_ms - age);
        Seen { next: Offset(0), end: Offset(1), end_as_of_ms: now_ms, head_timestamp_ms }
    }

    fn level(now_ms: i64) -> Seen {
        Seen { next: Offset(1), end: Offset(1), end_as_of_ms: now_ms, head_timestamp_ms: None }
    }

    fn input(lag: Option<(i64, i64)>, unknown: bool) -> InputSlice {
        let (lag_ms, lag_records) = lag.unzip();
        InputSlice { source: "orders".to_owned(), lag_ms, lag_records, unknown }
    }

    fn slices(recorder: &mut Recorder, now_ms: i64) -> Vec<SliceReport> {
        recorder.report(0, 0, now_ms).slices
    }

    fn totals(rows_in: u64, dead: u64, waiting: u64, rows_out: u64) -> Totals {
        let mut totals = Totals { rows_in, rows_out, waiting, ..Totals::default() };
        totals.drop_rows(DropReason::DeadLettered, dead);
        totals
    }

    #[test]
    fn the_largest_sample_of_a_slice_counts() {
        let mut recorder = recorder();
        for (at, age) in [(0, Some(200)), (50, Some(9_000)), (100, None), (9_999, Some(30))] {
            recorder.lag(&task(0), "orders", behind(NOW + at, age), NOW + at);
        }
        recorder.lag(&task(0), "orders", level(NOW + SLICE_MS), NOW + SLICE_MS);
        for (at, lag) in [(1, None), (2, Some(-5)), (3, Some(40)), (4, Some(3)), (5, None)] {
            recorder.runs(&task(0), lag, NOW + SLICE_MS + at);
        }
        let told = slices(&mut recorder, NOW + 2 * SLICE_MS);
        assert_eq!(told[0].tasks[0].inputs, [input(Some((9_000, 1)), false)]);
        assert_eq!(told[1].tasks[0].inputs, [input(Some((0, 0)), false)]);
        assert_eq!((told[0].tasks[0].watermark_lag_ms, told[1].tasks[0].watermark_lag_ms), (None, Some(40)));
    }

    #[test]
    fn what_is_not_known_is_absent_and_is_a_loss_only_where_it_was_known() {
        let mut recorder = recorder();
        let mut sample = |at: i64, seen: Seen| recorder.lag(&task(0), "orders", seen, NOW + at);
        sample(0, behind(NOW, None));
        sample(9_000, behind(NOW + 9_000, None));
        sample(12_000, level(NOW + 12_000));
        // The first record after a long silence: it is there, and not fetched for a moment.
        sample(21_000, behind(NOW + 21_000, None));
        sample(21_030, behind(NOW + 21_030, Some(35)));
        // The ends cannot be looked up any more.
        sample(31_000, level(NOW + 21_500));
        sample(31_501, level(NOW + 21_500));
        sample(41_000, level(NOW + 41_000));
        let told = slices(&mut recorder, NOW + 50_000);
        let told: Vec<&InputSlice> = told.iter().map(|slice| &slice.tasks[0].inputs[0]).collect();
        let lost = input(Some((0, 0)), true);
        let (not_yet, level) = (input(None, false), input(Some((0, 0)), false));
        assert_eq!(told, [&not_yet, &level, &input(Some((35, 1)), false), &lost, &level]);
    }

    #[test]
    fn a_task_that_comes_back_has_a_lag_that_is_not_yet_known() {
        let mut recorder = recorder();
        recorder.lag(&task(0), "orders", level(NOW), NOW);
        recorder.forget(&task(0));
        recorder.lag(&task(0), "orders", behind(NOW + 25_000, None), NOW + 25_000);
        let told = slices(&mut recorder, NOW + 30_000);
        assert_eq!(told[2].tasks[0].inputs, [input(None, false)]);
    }

    #[test]
    fn a_slice_that_ended_is_never_changed() {
        let mut recorder = recorder();
        recorder.lag(&task(0), "orders", level(NOW), NOW);
        let before = slices(&mut recorder, NOW + SLICE_MS);
        recorder.lag(&task(0), "orders", behind(NOW + 9_999, Some(500)), NOW + 9_999);
        recorder.fresh(&task(0), &Sketch::of([(5, 1)].into_iter()), &Sketch::default(), NOW + 9_999);
        assert_eq!(slices(&mut recorder, NOW + 9_999), before);
        let after = slices(&mut recorder, NOW + 2 * SLICE_MS);
        assert_eq!(after[0], before[0]);
        assert_eq!(after[1].tasks[0].inputs, [input(Some((500, 1)), false)]);
        assert!(after[1].tasks[0].freshness.is_some(), "it counts in the slice that was open");
    }

    #[test]
    fn a_task_that_runs_for_a_part_of_a_slice_is_in_it_and_no_other_one() {
        let mut recorder = recorder();
        recorder.runs(&task(0), None, NOW + 4_000);
        recorder.runs(&task(1), None, NOW + 5_000);
        recorder.forget(&task(0));
        recorder.runs(&task(1), None, NOW + 15_000);
        let told = slices(&mut recorder, NOW + 20_000);
        let partitions = |slice: &SliceReport| slice.tasks.iter().map(|task| task.partition.0).collect::<Vec<_>>();
        assert_eq!(told.iter().map(partitions).collect::<Vec<_>>(), [vec![0, 1], vec![1]]);
        assert!(told[0].tasks[0].inputs.is_empty() && told[0].tasks[0].freshness.is_none());
    }

    #[test]
    fn slices_that_the_process_slept_through_say_nothing_of_any_task() {
        let mut recorder = recorder();
        recorder.runs(&task(0), None, NOW);
        recorder.runs(&task(0), None, NOW + 40_000);
        let told = recorder.report(3, INDEX + 1, NOW + 50_000);
        assert_eq!((told.worker, told.process, told.started_index), (3, 7, INDEX));
        let seen: Vec<_> = told.slices.iter().map(|slice| (slice.index - INDEX, slice.tasks.len())).collect();
        assert_eq!(seen, [(1, 0), (2, 0), (3, 0), (4, 1)]);
    }

    #[test]
    fn an_hour_is_kept_whatever_the_clock_does() {
        let mut recorder = recorder();
        for slice in 0..1_000 {
            recorder.runs(&task(0), None, NOW + slice * SLICE_MS);
        }
        let told = slices(&mut recorder, NOW + 1_000 * SLICE_MS);
        assert_eq!((told.len(), told[0].index), (SLICES_TOLD, INDEX + 640));
        assert!(told.iter().all(|slice| slice.tasks.len() == 1));
        let last = recorder.report(3, INDEX + 980, NOW + 1_000 * SLICE_MS).slices;
        assert_eq!((last.len(), last[0].index), (20, INDEX + 980));
        for now_ms in [NOW * 2, i64::MAX] {
            let told = slices(&mut recorder, now_ms);
            assert_eq!((told.len(), told[0].index), (SLICES_TOLD, now_ms.div_euclid(SLICE_MS) - SLICES_KEPT as i64));
            assert!(told.is_sorted_by_key(|slice| slice.index) && told.iter().all(|slice| slice.tasks.is_empty()));
        }
    }

    #[test]
    fn rows_are_what_was_committed_since_and_not_what_was_done_elsewhere() {
        let mut recorder = recorder();
        let mut commit = |source: &Totals, step: &Totals, at: i64| {
            recorder.counts(&task(0), Counts::of(source.rows_in, [source, step].into_iter()), NOW + at);
        };
        commit(&totals(1_000, 9, 0, 991), &totals(991, 0, 1, 990), 0);
        commit(&totals(1_010, 10, 0, 1_000), &totals(1_000, 2, 1, 997), 100);
        commit(&totals(1_015, 10, 0, 1_005), &totals(1_005, 2, 1, 1_000), 10_000);
        recorder.forget(&task(0));
        recorder.counts(&task(0), Counts::of(9_000, [totals(9_000, 1, 0, 8_999)].iter()), NOW + 20_000);
        let told = slices(&mut recorder, NOW + 30_000);
        let tasks = told.iter().map(|slice| &slice.tasks[0]);
        let told: Vec<_> = tasks.map(|task| (task.rows, task.dead_lettered, task.unbalanced)).collect();
        assert_eq!(told, [(10, 3, 0), (5, 0, 2), (0, 0, 0)]);
    }

    #[test]
    fn rows_that_leave_in_several_epochs_of_a_slice_are_counted_together() {
        let (a, b) = (Sketch::of([(100, 3)].into_iter()), Sketch::of([(4_000, 1)].into_iter()));
        let mut recorder = recorder();
        recorder.fresh(&task(0), &a, &Sketch::default(), NOW);
        recorder.fresh(&task(0), &b, &a, NOW + 100);
        let told = slices(&mut recorder, NOW + SLICE_MS);
        let mut both = a.clone();
        both.merge(&b);
        assert_eq!((told[0].tasks[0].freshness.as_ref(), both.count()), (Some(&both), 4));
        assert_eq!(told[0].tasks[0].event_freshness.as_ref(), Some(&a));
    }

    #[test]
    fn what_is_written_reads_back_and_so_does_another_release() {
        let mut recorder = recorder();
        recorder.lag(&task(0), "orders", behind(NOW, Some(3)), NOW);
        recorder.fresh(&task(0), &Sketch::of([(100, 3)].into_iter()), &Sketch::default(), NOW);
        let told = recorder.report(1, 0, NOW + SLICE_MS);
        let text = serde_json::to_string(&told).expect("it is plain data");
        assert_eq!(serde_json::from_str::<SlicesReport>(&text).expect("it was written by us"), told);
        let newer = r#"{"process": 5, "slices": [{"index": 3, "mood": 1, "tasks": [{"stage": "a", "x": {}}]}]}"#;
        let newer: SlicesReport = serde_json::from_str(newer).expect("fields may be new or missing");
        assert_eq!((newer.process, newer.slices[0].tasks[0].stage.as_str()), (5, "a"));
    }
}

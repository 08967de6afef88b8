//! What the runtime and the operator tell each other, as JSON.
//!
//! Either may be one release older than the other, so readers here skip fields that they do not know and take the default
//! for those that are missing. An [`Assignment`](crate::assignment::Assignment) is stricter: an order that a worker does
//! not know it must not half obey.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fingerprint::fnv1a;
use crate::ids::{Epoch, Generation, Partition, TaskId, Timeline};
use crate::totals::Totals;

/// Of [`WorkerReport`].
pub const REPORT_VERSION: u32 = 1;
/// A container's termination message holds 4096 bytes.
pub const TERMINATION_BYTES_MAX: usize = 4_000;

/// A fingerprint as texts hold it: JSON numbers lose its low bits.
pub fn hex(fingerprint: u64) -> String {
    format!("{fingerprint:016x}")
}

/// A plan that somebody ran, by the control log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanSeen {
    pub plan: u64,
    pub fingerprint: String,
    /// Of the claims under it; 0: it was not said.
    pub timeline: Timeline,
}

/// How a worker is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkerReport {
    pub version: u32,
    pub worker: u32,
    /// Of the assignment that it follows.
    pub generation: Generation,
    /// That the control log has: an assignment below it is not run.
    pub highest_generation: Generation,
    /// The number of its plan.
    pub plan: u64,
    pub plan_fingerprint: String,
    /// In the control log, by whomever.
    pub newest_plan: Option<PlanSeen>,
    /// How many tasks each stage has, by the topics as they are now.
    pub stages: BTreeMap<String, i32>,
    /// Its own.
    pub tasks: Vec<TaskReport>,
    pub sources: Vec<SourceLag>,
    pub errors: Vec<ErrorReport>,
    /// What stopped a task, or keeps the worker from following.
    pub messages: Vec<String>,
    /// Every task of its share runs.
    pub ready: bool,
    /// Everything that was there when the drain began has come out and is committed.
    pub drained: bool,
    /// Tasks whose state it keeps level for their next owner: itself.
    pub warm: Vec<WarmReport>,
    /// It was told to end, and works on until others have its tasks.
    pub leaving: bool,
    /// What it has done for the savepoint of its assignment; there as soon as it follows one that has a savepoint.
    pub savepoint: Option<CutReport>,
    /// The newest snapshot of each of its tasks that it has written or found.
    pub snapshots: Vec<SnapshotReport>,
    /// What guards have done with rows of backfills since the pipeline's start, by sink: its tasks together.
    pub repairs: BTreeMap<String, Totals>,
    /// Of a worker that runs a backfill.
    pub backfill: Option<BackfillReport>,
}

/// How far a backfill is. So it answers its operator while it runs, and so `millrace run --backfill --report` ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackfillReport {
    /// Partitions of streams in which there is something.
    pub parts: Vec<PartReport>,
    /// How many records of streams it may read in a second now; `None`: as many as it can.
    pub records_per_second: Option<u64>,
    /// All that is in the range was computed, and is committed.
    pub computed: bool,
    /// And the pipeline has taken all of it.
    pub taken: bool,
    /// The watermark of its streams.
    pub event_time_ms: Option<i64>,
    /// How many offsets it went on in a second, over the last while.
    pub offsets_per_second: Option<u64>,
    /// Records of streams that were read.
    pub records: u64,
    /// Rows that it has written for the sinks.
    pub rows: u64,
    /// By step; `source <name>` for the reading of a source.
    pub totals: BTreeMap<String, Totals>,
    /// There are more totals, which did not fit: whether their steps have lost rows is not known.
    pub cut: bool,
    /// Why it cannot be done.
    pub errors: Vec<String>,
}

/// A part of a partition, and where a backfill stands in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PartReport {
    pub source: String,
    pub partition: Partition,
    pub from: i64,
    /// Behind the last one.
    pub to: i64,
    /// The next one to be read.
    pub next: i64,
}

/// Of a [`Cut`](crate::assignment::Cut).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CutReport {
    pub id: String,
    pub tasks: Vec<CutTask>,
    /// Why a snapshot could not be written yet; it is tried again.
    pub messages: Vec<String>,
}

/// A task that was cut: its checkpoint is on the worker's disk. Once a task was reported by a worker, its absence from a
/// later report says that the cut is lost, and the savepoint must be made anew under another id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CutTask {
    pub stage: String,
    pub partition: Partition,
    pub epoch: Epoch,
    /// It is in storage, whole, and verified.
    pub stored: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotReport {
    pub stage: String,
    pub partition: Partition,
    pub epoch: Epoch,
    /// When it was taken, wall-clock milliseconds.
    pub taken_ms: i64,
    /// Of the state, whole.
    pub bytes: u64,
}

/// Names a cut by what it is made of, so that whoever asked for one cut is not given another one of the same id.
pub fn cut_digest(epochs: &BTreeMap<TaskId, Epoch>) -> String {
    let parts: String = epochs.iter().map(|(task, epoch)| format!("{task}@{epoch}\n")).collect();
    hex(fnv1a(parts.as_bytes()))
}

/// What `millrace savepoint write`, `delete` and `verify` answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SavepointReport {
    /// Of its own document: where `spec.from.location` finds it again.
    pub location: String,
    pub bytes: u64,
    /// Of the cut, wall-clock milliseconds.
    pub taken_ms: i64,
    pub plan: u64,
    /// Of the plan's state.
    pub state_fingerprint: String,
    /// Records between two stages that it holds.
    pub in_flight: u64,
    /// Sources whose log no longer holds the cut; empty: it can be restored.
    pub lost: Vec<String>,
    /// [`cut_digest`] of the manifests that it is made of; empty: it was not said.
    pub cut: String,
    /// Where to a source's log holds the cut, as far as its retention says, wall-clock milliseconds.
    pub replayable_until_ms: Option<i64>,
    pub errors: Vec<String>,
}

/// What `millrace restore` answers; with errors nothing was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RestoreReport {
    pub errors: Vec<String>,
    /// What will be written to the sinks a second time: what was committed behind the cut.
    pub already_written: Vec<String>,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskReport {
    pub stage: String,
    pub partition: Partition,
    pub state: TaskState,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WarmReport {
    pub stage: String,
    pub partition: Partition,
    /// Its state has been read to where its changelog ended a moment ago.
    pub level: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TaskState {
    /// It has claimed the task, and waits for its last owner.
    Waiting,
    /// It may run, and its state is brought level.
    Restoring,
    Running,
}

/// How far a partition of a source is behind; what is not known is absent, never a number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SourceLag {
    pub name: String,
    pub partition: Partition,
    /// Of the task that reads it.
    pub stage: String,
    /// The next offset to read, as of when the lag was told.
    pub position: Option<i64>,
    pub lag_records: Option<i64>,
    pub lag_ms: Option<i64>,
}

/// Records that could not be used, since this process began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ErrorReport {
    pub code: String,
    pub topic: String,
    pub partition: Partition,
    /// Of the last one.
    pub offset: i64,
    pub count: u64,
}

/// What was found before anything runs. Errors keep a pipeline from starting, warnings do not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PreflightReport {
    pub errors: Vec<String>,
    pub warnings: Vec<String>,
    /// The id of the Kafka cluster that was reached.
    pub kafka: Option<String>,
    /// Another pipeline has the prefix.
    pub conflict: Option<String>,
    pub stages: BTreeMap<String, i32>,
    pub highest_generation: Generation,
    pub newest_plan: Option<PlanSeen>,
}

/// What a clean-up did, and what it left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CleanupReport {
    pub deleted: Vec<String>,
    pub errors: Vec<String>,
    pub left: Vec<String>,
}

/// What `millrace compile` is given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CompileRequest {
    /// The whole document.
    pub pipeline: Value,
    /// The plan that runs.
    pub previous: Option<Value>,
}

/// What `millrace compile` answers. With mistakes there is no plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Compiled {
    pub plan: Option<Value>,
    pub fingerprint: String,
    pub state_fingerprint: String,
    pub warnings: Vec<String>,
    pub mistakes: Vec<Mistake>,
    pub fit: StateFit,
}

/// A mistake in a spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Mistake {
    /// Like `spec.steps[1].temporalJoin.keys[0].left`.
    pub path: String,
    /// What stands there, shortened.
    pub value: Option<String>,
    pub message: String,
    /// What to do about it.
    pub hint: String,
}

/// Whether the state of the plan that runs serves the new one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateFit {
    #[default]
    NoPrevious,
    Kept,
    /// Once nothing waits: the pipeline drains before.
    KeptIfEmpty {
        reasons: Vec<String>,
    },
    Lost {
        reasons: Vec<String>,
    },
}

impl PreflightReport {
    /// As JSON of at most `bytes`: whole findings are left out, warnings first, and counted.
    pub fn json(&self, bytes: usize) -> String {
        cut(self, bytes, |report| [&mut report.warnings, &mut report.errors]).unwrap_or_else(|| {
            // Only names of stages can be so long, and without them nothing can be assigned.
            let error = format!(
                "the names of its {} stages do not fit into a report: shorten those of steps",
                self.stages.len()
            );
            text(&Self { errors: vec![error], ..Self::default() })
        })
    }
}

impl CleanupReport {
    /// As JSON of at most `bytes`; what was deleted is left out first.
    pub fn json(&self, bytes: usize) -> String {
        // Without its lists it is a few words.
        cut(self, bytes, |report| [&mut report.deleted, &mut report.left, &mut report.errors]).unwrap_or_default()
    }
}

impl SavepointReport {
    /// As JSON of at most `bytes`; what it names most of is left out first.
    pub fn json(&self, bytes: usize) -> String {
        cut(self, bytes, |report| [&mut report.lost, &mut report.errors]).unwrap_or_default()
    }
}

impl RestoreReport {
    /// As JSON of at most `bytes`; what it names most of is left out first.
    pub fn json(&self, bytes: usize) -> String {
        cut(self, bytes, |report| [&mut report.already_written, &mut report.errors]).unwrap_or_default()
    }
}

impl BackfillReport {
    /// As JSON of at most `bytes`: where it stood is left out first, since a report that is cut is one of its end.
    pub fn json(&self, bytes: usize) -> String {
        let whole = text(self);
        if whole.len() <= bytes {
            return whole;
        }
        // A step that has passed on all that it took has nothing to tell.
        let tells = |totals: &Totals| !totals.balanced() || totals.dropped_sum() + totals.joined_late > 0;
        let mut short = Self { parts: Vec::new(), ..self.clone() };
        short.totals.retain(|_, totals| tells(totals));
        let cut = |report: &Self| cut(report, bytes, |report| [&mut report.errors]);
        // Without its totals it is a few words.
        let shortest = || cut(&Self { totals: BTreeMap::new(), cut: true, ..short.clone() });
        cut(&short).or_else(shortest).unwrap_or_default()
    }
}

/// The report as text of at most `bytes`, cut from the end of the first list that holds anything.
fn cut<T: Clone + Serialize, const N: usize>(
    report: &T,
    bytes: usize,
    lists: fn(&mut T) -> [&mut Vec<String>; N],
) -> Option<String> {
    let mut lengths = lists(&mut report.clone()).map(|list| list.len());
    loop {
        let mut shown = report.clone();
        for (list, length) in lists(&mut shown).into_iter().zip(lengths) {
            let left_out = list.len() - length;
            if left_out > 0 {
                list.truncate(length);
                list.push(format!("and {left_out} more"));
            }
        }
        let text = text(&shown);
        if text.len() <= bytes {
            return Some(text);
        }
        *lengths.iter_mut().find(|length| **length > 0)? -= 1;
    }
}

fn text(report: &impl Serialize) -> String {
    serde_json::to_string(report).expect("texts and numbers can be written")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(errors: usize, warnings: usize) -> PreflightReport {
        let texts = |word: &str, n: usize| (0..n).map(|i| format!("{word} {i}: \"{}\"", "é".repeat(100))).collect();
        PreflightReport {
            errors: texts("error", errors),
            warnings: texts("warning", warnings),
            stages: BTreeMap::from([("joined".to_owned(), 4)]),
            highest_generation: Generation(7),
            ..PreflightReport::default()
        }
    }

    fn read(text: &str) -> PreflightReport {
        serde_json::from_str(text).expect("it was written by us")
    }

    #[test]
    fn a_report_that_fits_is_whole() {
        let whole = report(3, 2);
        assert_eq!(read(&whole.json(TERMINATION_BYTES_MAX)), whole);
    }

    #[test]
    fn a_report_that_does_not_fit_loses_whole_findings_warnings_first_and_counts_them() {
        for (errors, warnings) in [(5, 40), (40, 5), (100, 0)] {
            let whole = report(errors, warnings);
            let text = whole.json(TERMINATION_BYTES_MAX);
            assert!(text.len() <= TERMINATION_BYTES_MAX, "{}", text.len());
            let shown = read(&text);
            for (shown, whole) in [(&shown.errors, &whole.errors), (&shown.warnings, &whole.warnings)] {
                let kept = shown.iter().filter(|text| !text.starts_with("and ")).count();
                assert_eq!(shown[..kept], whole[..kept]);
                let rest = (kept < whole.len()).then(|| format!("and {} more", whole.len() - kept));
                assert_eq!(shown.get(kept), rest.as_ref());
            }
            assert_eq!((&shown.stages, shown.highest_generation), (&whole.stages, whole.highest_generation));
            assert!(errors > 5 || shown.errors == whole.errors, "{shown:#?}");
        }
    }

    #[test]
    fn stages_that_do_not_fit_are_an_error() {
        let stages = (0..90).map(|i| (format!("{i}{}", "s".repeat(60)), 1)).collect();
        let shown = read(&PreflightReport { stages, ..report(1, 1) }.json(TERMINATION_BYTES_MAX));
        assert!(shown.errors[0].contains("90 stages"), "{shown:#?}");
    }

    #[test]
    fn a_clean_up_tells_first_what_it_could_not_do() {
        let topics = |n| (0..n).map(|i| format!("shop.orders-t1-stage{i}-changelog")).collect();
        let whole = CleanupReport { deleted: topics(200), errors: topics(3), left: topics(2) };
        let text = whole.json(TERMINATION_BYTES_MAX);
        let shown: CleanupReport = serde_json::from_str(&text).expect("it was written by us");
        assert_eq!((shown.errors, shown.left), (whole.errors, whole.left));
        assert!(text.len() <= TERMINATION_BYTES_MAX && shown.deleted.last().is_some_and(|text| text.ends_with("more")));
    }

    #[test]
    fn a_backfill_tells_what_came_of_it_rather_than_where_it_stood() {
        let part = |partition| PartReport {
            source: "orders".to_owned(),
            partition: Partition(partition),
            from: 10_000_000,
            to: 20_000_000,
            next: 20_000_000,
        };
        let lossy = || {
            let mut totals = Totals { rows_in: 1, ..Totals::default() };
            totals.drop_rows(crate::totals::DropReason::DeadLettered, 1);
            totals
        };
        let steps = |steps: i32| (0..steps).map(|step| (format!("source orders{step}"), lossy())).collect();
        let whole = |parts: i32, totals: i32| BackfillReport {
            parts: (0..parts).map(part).collect(),
            taken: true,
            rows: 7,
            totals: steps(totals),
            ..BackfillReport::default()
        };
        let read = |report: &BackfillReport| -> BackfillReport {
            let text = report.json(TERMINATION_BYTES_MAX);
            assert!(text.len() <= TERMINATION_BYTES_MAX, "{}", text.len());
            serde_json::from_str(&text).expect("it was written by us")
        };
        assert_eq!(read(&whole(3, 3)), whole(3, 3));
        assert_eq!(read(&whole(100, 3)), whole(0, 3));
        assert_eq!(read(&whole(100, 200)), BackfillReport { cut: true, ..whole(0, 0) });
        // Those that have nothing to tell go first.
        let mut many = whole(0, 3);
        many.totals.extend((0..200).map(|step| (format!("step{step}"), Totals::default())));
        assert_eq!(read(&many), whole(0, 3));
    }

    #[test]
    fn a_report_of_another_release_is_read() {
        let older: WorkerReport =
            serde_json::from_str(r#"{"version": 1, "worker": 3}"#).expect("fields may be missing");
        assert_eq!(older, WorkerReport { version: 1, worker: 3, ..WorkerReport::default() });
        let newer =
            r#"{"version": 9, "generation": 5, "mood": "good", "sources": [{"name": "a", "lagMs": 3, "x": []}]}"#;
        let newer: WorkerReport = serde_json::from_str(newer).expect("fields may be new");
        assert_eq!(
            (newer.generation, newer.sources[0].lag_ms, newer.sources[0].lag_records),
            (Generation(5), Some(3), None)
        );
    }

    #[test]
    fn what_is_written_reads_back() {
        let seen = PlanSeen { plan: 2, fingerprint: hex(10), timeline: Timeline(1) };
        assert_eq!(seen.fingerprint, "000000000000000a");
        let whole = WorkerReport {
            version: REPORT_VERSION,
            newest_plan: Some(seen),
            tasks: vec![TaskReport { stage: "joined".to_owned(), partition: Partition(1), state: TaskState::Running }],
            warm: vec![WarmReport { stage: "joined".to_owned(), partition: Partition(2), level: true }],
            leaving: true,
            errors: vec![ErrorReport { code: "decode".to_owned(), count: 2, ..ErrorReport::default() }],
            ..WorkerReport::default()
        };
        assert_eq!(serde_json::from_str::<WorkerReport>(&text(&whole)).expect("it was written by us"), whole);
        let fit = StateFit::Lost { reasons: vec!["its key changed".to_owned()] };
        let compiled = Compiled { fit, ..Compiled::default() };
        assert_eq!(serde_json::from_str::<Compiled>(&text(&compiled)).expect("it was written by us"), compiled);
    }
}

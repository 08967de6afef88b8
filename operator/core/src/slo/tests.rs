//! The table of `docs/slos.md`, one row for each situation.

use millrace_core::slices::{InputSlice, Sketch, SliceReport, TaskSlice};
use serde_json::{Value, json};

use super::*;

mod books;
mod model;

pub fn slo(indicator: Value) -> Slo {
    let mut slo = json!({"name": "a", "objective": "99.9"});
    for (field, value) in indicator.as_object().expect("an object") {
        slo[field] = value.clone();
    }
    serde_json::from_value(slo).expect("an SLO")
}

pub fn freshness() -> Slo {
    slo(json!({"freshness": {"threshold": "15s"}}))
}

pub fn lag() -> Slo {
    slo(json!({"lag": {"threshold": "15s"}}))
}

pub fn tasks(count: i32) -> Arc<[TaskId]> {
    (0..count).map(|partition| TaskId { stage: "s".to_owned(), partition: Partition(partition) }).collect()
}

/// A task that has read all there is.
pub fn task(partition: i32) -> TaskSlice {
    let input = InputSlice { source: "orders".to_owned(), lag_ms: Some(0), lag_records: Some(0), unknown: false };
    TaskSlice {
        stage: "s".to_owned(),
        partition: Partition(partition),
        inputs: vec![input],
        watermark_lag_ms: Some(1_000),
        ..TaskSlice::default()
    }
}

/// The same, where the lag was so long, or was not known.
pub fn behind(partition: i32, lag_ms: Option<i64>) -> TaskSlice {
    let mut task = task(partition);
    task.inputs[0].lag_ms = lag_ms;
    task
}

/// Results that were so fresh.
pub fn sketch(ms: impl IntoIterator<Item = i64>) -> Sketch {
    Sketch::of(ms.into_iter().map(|ms| (ms, 1)))
}

pub fn worker(uid: &str) -> Worker {
    Worker {
        uid: uid.to_owned(),
        ready: true,
        process: Some(1),
        started: 0,
        next: 1_000,
        silent: None,
        cut_off: None,
        mute: false,
    }
}

/// A slice of a pipeline with two tasks, which a worker told of and which was asked to run long ago.
struct Case {
    index: i64,
    now: i64,
    intent: Intent,
    tasks: Option<Arc<[TaskId]>>,
    told: Vec<TaskSlice>,
    workers: Vec<Worker>,
    known: bool,
    asked: i64,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            index: 900,
            now: 901,
            intent: Intent::Run,
            tasks: Some(tasks(2)),
            told: vec![task(0), task(1)],
            workers: vec![worker("a")],
            known: true,
            asked: 0,
        }
    }
}

impl Case {
    fn verdict(&self, slo: &Slo) -> Verdict {
        let expected = Expected { intent: self.intent, tasks: self.tasks.clone() };
        let mut tally = Tally::new(outputs([slo].into_iter()));
        tally.add(&SliceReport { index: self.index, tasks: self.told.clone() }, &expected);
        let Self { index, now, known, asked, .. } = *self;
        let view = SliceView { index, now, expected: &expected, tally: &tally, workers: &self.workers, known, asked };
        verdict(slo, &view)
    }
}

const SILENT: Verdict = Verdict::Bad(Harm::SilentTask);
const UNKNOWN: Verdict = Verdict::Bad(Harm::LagUnknown);
const LATE: Verdict = Verdict::Bad(Harm::Late);
const STARTING: Verdict = Verdict::NotCounted(Rest::Starting);

/// A worker that has not told of slice 900 and does not answer since then.
fn silent(ready: bool) -> Worker {
    Worker { ready, next: 900, silent: Some(900), ..worker("a") }
}

/// Situation, slice, and what it counts as for freshness and for lag.
type Row = (&'static str, Case, Verdict, Verdict);

fn told(told: Vec<TaskSlice>) -> Case {
    Case { told, ..Case::default() }
}

/// What was to run, and what was told of it.
fn of_tasks() -> Vec<Row> {
    let case = Case::default;
    let (quiet, unknown) = (vec![task(0), task(1)], vec![task(0), behind(1, None)]);
    vec![
        ("a quiet topic, processed", told(quiet.clone()), Verdict::Good, Verdict::Good),
        ("a task reports nothing", told(vec![task(0)]), SILENT, SILENT),
        ("no worker is there", Case { told: vec![], workers: vec![], ..case() }, SILENT, SILENT),
        ("it is not known which tasks there are", Case { tasks: None, ..case() }, SILENT, SILENT),
        ("lag is unknown after it was known", told(unknown.clone()), UNKNOWN, UNKNOWN),
        ("lag is not known yet", Case { known: false, asked: 880, ..told(unknown.clone()) }, STARTING, STARTING),
        ("nor after the grace", Case { known: false, asked: 870, ..told(unknown.clone()) }, UNKNOWN, UNKNOWN),
        ("no task was there yet", Case { known: false, asked: 880, tasks: None, ..case() }, STARTING, STARTING),
        ("nor after the grace", Case { known: false, asked: 870, tasks: None, ..case() }, SILENT, SILENT),
        ("lag above the threshold", told(vec![task(0), behind(1, Some(15_001))]), Verdict::Bad(Harm::Stuck), LATE),
        ("lag at the threshold", told(vec![task(0), behind(1, Some(15_000))]), Verdict::Good, Verdict::Good),
        (
            "lag above it before it was known",
            Case { known: false, asked: 899, ..told(vec![task(0), behind(1, Some(15_001))]) },
            Verdict::Bad(Harm::Stuck),
            LATE,
        ),
        (
            "no workers are asked for",
            Case { intent: Intent::NoWorkers, workers: vec![], told: vec![], ..case() },
            Verdict::Bad(Harm::NoWorkers),
            Verdict::Bad(Harm::NoWorkers),
        ),
        (
            "suspended",
            Case { intent: Intent::Suspended, told: vec![], ..case() },
            Verdict::NotCounted(Rest::Suspended),
            Verdict::NotCounted(Rest::Suspended),
        ),
        (
            "drained",
            Case { intent: Intent::Drained, told: vec![], ..case() },
            Verdict::NotCounted(Rest::Drained),
            Verdict::NotCounted(Rest::Drained),
        ),
    ]
}

/// Who has told.
fn of_workers() -> Vec<Row> {
    let waits = |worker: Worker| Case { workers: vec![worker], now: 904, ..told(Vec::new()) };
    vec![
        ("a worker that answers has not told yet", waits(Worker { silent: None, ..silent(true) }), PENDING, PENDING),
        ("a worker cannot be reached, Kubernetes can", waits(silent(true)), PENDING, PENDING),
        ("for a whole hour", Case { now: 1_261, ..waits(silent(true)) }, SILENT, SILENT),
        ("a worker is dead", waits(silent(false)), SILENT, SILENT),
        ("that may not be known yet", Case { now: 903, ..waits(silent(false)) }, PENDING, PENDING),
        ("it is another process now", waits(Worker { started: 901, ..silent(true) }), SILENT, SILENT),
        (
            "most workers could not be reached, for an hour",
            Case { now: 1_261, ..waits(Worker { cut_off: Some(1_250), ..silent(true) }) },
            Verdict::Unobserved,
            Verdict::Unobserved,
        ),
        (
            "they may still tell",
            Case { now: 1_250, ..waits(Worker { cut_off: Some(1_250), ..silent(true) }) },
            PENDING,
            PENDING,
        ),
        (
            "a release that knows of no slices",
            waits(Worker { mute: true, ..silent(true) }),
            Verdict::Unobserved,
            Verdict::Unobserved,
        ),
        (
            "lag above the threshold, and a worker may still tell",
            Case { workers: vec![worker("a"), silent(true)], ..told(vec![behind(0, Some(60_000))]) },
            PENDING,
            LATE,
        ),
    ]
}

#[test]
fn every_situation_counts_as_the_table_says() {
    for (situation, case, of_freshness, of_lag) in of_tasks().into_iter().chain(of_workers()) {
        assert_eq!(case.verdict(&freshness()), of_freshness, "freshness: {situation}");
        assert_eq!(case.verdict(&lag()), of_lag, "lag: {situation}");
    }
}

const PENDING: Verdict = Verdict::Pending;

#[test]
fn freshness_is_that_of_all_results_together() {
    let fresh = |count: i64, late: i64| sketch((0..count).map(|i| if i < late { 60_000 } else { 100 }));
    let told = |parts: [Option<Sketch>; 2], lag_ms| {
        let [first, second] = parts;
        let tasks = [(0, first), (1, second)].map(|(i, freshness)| TaskSlice { freshness, ..behind(i, lag_ms) });
        Case { told: tasks.into(), ..Case::default() }
    };
    let few = Slo { min_events: 10, ..freshness() };
    let behind = Some(60_000);
    let table = [
        ("a hundredth is late", told([Some(fresh(100, 2)), Some(fresh(100, 0))], Some(0)), freshness(), Verdict::Good),
        ("more than a hundredth", told([Some(fresh(100, 2)), Some(fresh(99, 0))], Some(0)), freshness(), LATE),
        ("one of one", told([Some(fresh(1, 1)), None], Some(0)), freshness(), LATE),
        ("too few to count", told([Some(fresh(9, 9)), None], Some(0)), few.clone(), Verdict::Good),
        ("too few, and others wait", told([Some(fresh(9, 9)), None], behind), few, Verdict::Bad(Harm::Stuck)),
        (
            "lag is no matter while results are fresh",
            told([Some(fresh(100, 0)), None], behind),
            freshness(),
            Verdict::Good,
        ),
        ("nor is it that it is unknown", told([Some(fresh(100, 0)), None], None), freshness(), Verdict::Good),
    ];
    for (situation, case, slo, expected) in table {
        assert_eq!(case.verdict(&slo), expected, "{situation}");
    }
    let event_time = slo(json!({"freshness": {"threshold": "15s", "since": "EventTime"}}));
    let mut case = told([Some(fresh(100, 100)), None], Some(0));
    assert_eq!(case.verdict(&event_time), Verdict::Good);
    case.told[1].event_freshness = Some(fresh(1, 1));
    assert_eq!(case.verdict(&event_time), LATE);
}

#[test]
fn a_watermark_that_stands_still_in_a_quiet_topic_is_good() {
    let slo = slo(json!({"watermarkLag": {"threshold": "15s"}}));
    let told = |rows, lag_ms, watermark_lag_ms| {
        let late = TaskSlice { rows, watermark_lag_ms, ..behind(1, lag_ms) };
        Case { told: vec![task(0), late], ..Case::default() }.verdict(&slo)
    };
    let table = [
        (told(5, Some(0), Some(1_000)), Verdict::Good),
        (told(0, Some(0), Some(60_000)), Verdict::Good),
        (told(5, Some(0), Some(60_000)), LATE),
        (told(0, Some(1), Some(60_000)), LATE),
        (told(0, None, Some(60_000)), LATE),
        (told(0, None, Some(1_000)), UNKNOWN),
        (told(0, Some(0), None), Verdict::Good),
    ];
    for (row, (found, expected)) in table.into_iter().enumerate() {
        assert_eq!(found, expected, "row {row}");
    }
}

#[test]
fn records_are_counted_as_such_whatever_the_time() {
    let complete = slo(json!({"completeness": {}}));
    let correct = slo(json!({"correctness": {}}));
    let rows = |partition, rows| TaskSlice { rows, dead_lettered: 2, unbalanced: 1, ..behind(partition, None) };
    let case = Case { told: vec![rows(0, 1_000), rows(1, 10)], ..Case::default() };
    assert_eq!(case.verdict(&complete), Verdict::Records { all: 1_010, bad: 2 });
    assert_eq!(case.verdict(&correct), Verdict::Records { all: 1_010, bad: 4 });
    let silent = Case { told: vec![rows(0, 0)], ..Case::default() };
    // A row of an earlier slice may be dead-lettered in this one.
    assert_eq!(silent.verdict(&correct), Verdict::Records { all: 2, bad: 2 });
}

#[test]
fn a_worker_that_was_heard_decides_nothing_for_the_others() {
    let case = Case { told: vec![task(0), task(1)], workers: vec![worker("a"), silent(true)], ..Case::default() };
    assert_eq!(case.verdict(&lag()), PENDING);
    let away = Case { workers: vec![worker("a"), silent(false)], now: 904, ..case };
    assert_eq!(away.verdict(&lag()), Verdict::Good, "its tasks were reported by others");
}

#[test]
fn an_edit_of_the_objective_keeps_the_books_and_of_what_is_watched_does_not() {
    let known = identity(&freshness());
    assert_eq!(identity(&Slo { objective: "99".to_owned(), min_events: 9, ..freshness() }), known);
    let others = [
        slo(json!({"freshness": {"threshold": "16s"}})),
        slo(json!({"freshness": {"threshold": "15s", "since": "EventTime"}})),
        slo(json!({"freshness": {"threshold": "15s"}, "window": "7d"})),
        lag(),
        slo(json!({"watermarkLag": {"threshold": "15s"}})),
    ];
    for other in others {
        assert_ne!(identity(&other), known);
    }
}

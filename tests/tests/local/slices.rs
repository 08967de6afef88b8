//! What a run tells of itself by slices of time.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use millrace_core::ids::Timeline;
use millrace_core::slices::{RELATIVE_ERROR, SLICE_MS, Sketch, TaskSlice};
use millrace_kafka_harness::wait;
use millrace_runtime::clock;
use millrace_runtime::engine::{Engine, EngineConfig};
use millrace_runtime::log::file::{FileLog, FileLogConfig};
use millrace_runtime::metrics::Metrics;
use millrace_runtime::state::StateBudget;
use millrace_tests::spec::Spec;
use millrace_tests::story::DEADLINE;
use millrace_tests::{Rec, Topics, plan, read_topic, scratch, write_topics};
use serde_json::json;

/// Orders and customers both cross a repartition topic; customers are what a snapshot of Debezium's has read.
fn pipeline() -> String {
    let join = Spec { join: "tableJoin:", order_key: "", table_key: "Json", table: "", ..Spec::default() };
    let json = "format: {type: Json}\n      columns:\n        - {name: customer";
    Spec { dead_letter: true, ..join }.yaml().replacen(json, &json.replace("{type: Json", "{type: DebeziumJson"), 1)
}

fn engine(dir: &Path, metrics: &Arc<Metrics>) -> Engine<FileLog> {
    let files = FileLogConfig {
        topics: dir.join("topics"),
        out: Some(dir.join("out")),
        state: dir.join("state"),
        follow: true,
        missing_is_empty: false,
    };
    let config = EngineConfig {
        state_dir: dir.join("state"),
        commit_interval_ms: 0,
        batch_records: 1,
        records_per_second: None,
        waiting_rows_max: 1 << 20,
        budget: StateBudget::new(1 << 20, 1 << 20),
        isolate: false,
        storage: None,
        timeline: Timeline(1),
        epoch_timeout_ms: None,
    };
    let log = FileLog::open(files).expect("the files can be read");
    Engine::start(Arc::new(plan(&pipeline())), log, config, Arc::clone(metrics)).expect("it starts")
}

/// Who asks a process what it saw.
struct Asker {
    metrics: Arc<Metrics>,
    now_ms: i64,
}

impl Asker {
    fn new() -> Self {
        Self { metrics: Arc::new(Metrics::new().unwrap()), now_ms: clock::now_ms() }
    }

    /// All that was seen of tasks: each asking ends the open slice.
    fn told(&mut self) -> Vec<TaskSlice> {
        self.now_ms += SLICE_MS;
        let report = self.metrics.slices_from(4, 0, self.now_ms);
        assert_eq!(report.worker, 4);
        report.slices.into_iter().flat_map(|slice| slice.tasks).collect()
    }

    /// Steps until what is told is as it shall be.
    fn until(&mut self, engine: &mut Engine<FileLog>, holds: impl Fn(&[TaskSlice]) -> bool) -> Vec<TaskSlice> {
        let mut last = Vec::new();
        let step = || {
            engine.step()?;
            last = self.told();
            Ok(holds(&last))
        };
        wait::until("the run to tell it", DEADLINE, step).unwrap();
        last
    }
}

/// Rows, dead letters and rows without account.
fn counts(told: &[TaskSlice]) -> (u64, u64, u64) {
    let sum = |of: fn(&TaskSlice) -> u64| told.iter().map(of).sum();
    (sum(|task| task.rows), sum(|task| task.dead_lettered), sum(|task| task.unbalanced))
}

fn merged(told: &[TaskSlice], of: fn(&TaskSlice) -> Option<&Sketch>) -> Sketch {
    let mut all = Sketch::default();
    told.iter().filter_map(of).for_each(|sketch| all.merge(sketch));
    all
}

/// Whose lag was known at some time.
fn known(told: &[TaskSlice]) -> BTreeSet<&str> {
    let inputs = told.iter().flat_map(|task| &task.inputs);
    inputs.filter(|input| input.lag_ms.is_some()).map(|input| input.source.as_str()).collect()
}

/// Three orders and one that cannot be read; a customer of a day ago.
fn topics(began: i64) -> Topics {
    let order = |id: i64, happened: i64, written: i64| {
        Rec::new(id, &json!({"id": id, "customer": 7, "time": began - happened})).at(began - written)
    };
    // The clock of the last one's producer is ahead.
    let good = [order(1, 120_000, 3_000), order(2, 119_000, 3_000), order(3, 119_500, -3_600_000)];
    let orders = good.into_iter().chain([Rec::new(4, &json!({"id": "x"})).at(began)]).collect();
    let after = json!({"customer": 7, "name": "Ada", "since": 0});
    let snapshot = json!({"before": null, "after": after, "op": "r", "source": {"snapshot": "true"}, "ts_ms": 1});
    let customers = vec![Rec::new(json!({"customer": 7}), &snapshot).at(began - 86_400_000)];
    Topics::from([("orders".to_owned(), orders), ("customers".to_owned(), customers)])
}

/// Runs everything through: what was told of it, and how long it took, in milliseconds.
fn run_through(dir: &Path, asker: &mut Asker) -> (Vec<TaskSlice>, i64) {
    let began = clock::now_ms();
    write_topics(&dir.join("topics"), &topics(began)).unwrap();
    let mut run = engine(dir, &asker.metrics);
    let written = |topic: &str| read_topic(&dir.join("out"), topic).map(|records| records.len());
    let step = || {
        run.step()?;
        Ok((written("out")?, written("dead")?) == (3, 1))
    };
    wait::until("the rows", DEADLINE, step).unwrap();
    let all = ["customers", "orders"];
    let told = asker.until(&mut run, |told| {
        known(told).into_iter().eq(all) && told.iter().any(|task| task.watermark_lag_ms.is_some())
    });
    (told, clock::now_ms() - began)
}

#[test]
fn a_run_tells_how_long_its_rows_took_from_the_records_of_the_stream() {
    let (dir, mut asker) = (scratch().unwrap(), Asker::new());
    let (told, took_ms) = run_through(dir.path(), &mut asker);
    let within = |sketch: &Sketch, q: f64, ms: i64| {
        let (found, ms) = (sketch.quantile(q).expect("rows came out") as f64, ms as f64);
        ms * (1.0 - RELATIVE_ERROR) <= found && found <= (ms + took_ms as f64) * (1.0 + RELATIVE_ERROR)
    };
    let freshness = merged(&told, |task| task.freshness.as_ref());
    assert_eq!((freshness.count(), freshness.quantile(0.3)), (3, Some(0)), "{freshness:?}");
    assert!(within(&freshness, 0.6, 3_000) && within(&freshness, 1.0, 3_000), "{freshness:?}");
    let event_freshness = merged(&told, |task| task.event_freshness.as_ref());
    assert!(event_freshness.count() == 3 && within(&event_freshness, 1.0, 120_000), "{event_freshness:?}");
    let watermark_lag = told.iter().filter_map(|task| task.watermark_lag_ms).max();
    assert!(watermark_lag.is_some_and(|ms| (119_000..=120_000 + took_ms).contains(&ms)), "{watermark_lag:?}");

    let text = String::from_utf8(asker.metrics.render().unwrap()).unwrap();
    let stage = &told.iter().find(|task| task.freshness.is_some()).expect("rows came out").stage;
    let bucket = format!("millrace_freshness_seconds_bucket{{stage=\"{stage}\",le=\"2.5\"}} 1");
    let count = format!("millrace_freshness_seconds_count{{stage=\"{stage}\"}} 3");
    assert!([bucket, count].iter().all(|line| text.lines().any(|found| found == line)), "{text}");
}

#[test]
fn every_record_is_counted_once_where_it_enters_and_not_again_by_another_process() {
    let (dir, mut asker) = (scratch().unwrap(), Asker::new());
    let (told, _) = run_through(dir.path(), &mut asker);
    assert_eq!(counts(&told), (5, 1, 0));
    let sinks: Vec<&TaskSlice> = told.iter().filter(|task| task.freshness.is_some()).collect();
    assert!(!sinks.is_empty() && sinks.iter().all(|task| task.inputs.is_empty()), "they are behind a repartition");
    assert!(told.iter().flat_map(|task| &task.inputs).all(|input| !input.unknown), "{told:?}");

    let mut asker = Asker::new();
    let mut run = engine(dir.path(), &asker.metrics);
    let told = asker.until(&mut run, |told| known(told).len() == 2);
    assert_eq!((counts(&told), merged(&told, |task| task.freshness.as_ref()).count()), ((0, 0, 0), 0));
}

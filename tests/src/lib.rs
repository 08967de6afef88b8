//! What the tests that cross crates share: a pipeline over topics in memory, run on files, with faults.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use millrace_core::ids::Timeline;
use millrace_core::plan::Plan;
use millrace_crds::check;
use millrace_runtime::engine::{Engine, EngineConfig, Exit};
use millrace_runtime::log::Log;
use millrace_runtime::log::file::{FileLog, FileLogConfig};
use millrace_runtime::metrics::Metrics;
use millrace_runtime::state::StateBudget;
use serde_json::Value;

pub mod certificates;
pub mod control;
pub mod external_metric;
pub mod faulty;
pub mod kafka;
pub mod kubernetes;
pub mod ledger;
pub mod process;
pub mod prometheus;
pub mod proxy;
pub mod repairs;
pub mod s3;
pub mod savepoint;
pub mod shop;
pub mod spec;
pub mod story;

use faulty::{Faults, FaultyLog};

/// Compiles a pipeline; a mistake in it is a mistake of the test.
pub fn plan(yaml: &str) -> Plan {
    let document: Value = serde_saphyr::from_str(yaml).expect("the test's pipeline is YAML");
    let pipeline = check::parse(&document).unwrap_or_else(|mistakes| panic!("{mistakes:#?}"));
    millrace_plan::compile(&pipeline).unwrap_or_else(|mistakes| panic!("{mistakes:#?}")).plan
}

/// A record of a topic, as the tests write and compare it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rec {
    pub partition: i32,
    pub timestamp: Option<i64>,
    pub key: Option<String>,
    /// JSON text; `None` is a tombstone.
    pub value: Option<String>,
}

impl Rec {
    pub fn new(key: impl ToString, value: &Value) -> Self {
        Self { partition: 0, timestamp: None, key: Some(key.to_string()), value: Some(value.to_string()) }
    }

    pub fn tombstone(key: impl ToString) -> Self {
        Self { partition: 0, timestamp: None, key: Some(key.to_string()), value: None }
    }

    pub fn at(self, timestamp: i64) -> Self {
        Self { timestamp: Some(timestamp), ..self }
    }

    pub fn on(self, partition: i32) -> Self {
        Self { partition, ..self }
    }

    fn line(&self) -> String {
        let mut line = format!("{{\"partition\":{}", self.partition);
        if let Some(timestamp) = self.timestamp {
            write!(line, ",\"timestamp\":{timestamp}").expect("memory");
        }
        if let Some(key) = &self.key {
            write!(line, ",\"key\":{}", Value::from(key.as_str())).expect("memory");
        }
        line + ",\"value\":" + self.value.as_deref().unwrap_or("null") + "}\n"
    }
}

pub type Topics = BTreeMap<String, Vec<Rec>>;

/// Writes topics as files.
pub fn write_topics(dir: &Path, topics: &Topics) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir)?;
    for (topic, records) in topics {
        let text: String = records.iter().map(Rec::line).collect();
        std::fs::write(dir.join(format!("{topic}.jsonl")), text)?;
    }
    Ok(())
}

/// Reads a topic back; values as JSON.
pub fn read_topic(dir: &Path, topic: &str) -> anyhow::Result<Vec<Value>> {
    let path = dir.join(format!("{topic}.jsonl"));
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e).with_context(|| format!("read {}", path.display())),
    };
    text.lines().map(|line| serde_json::from_str(line).with_context(|| format!("read {line}"))).collect()
}

/// How often a run is broken off, and how it is cut into batches.
#[derive(Clone, Debug)]
pub struct Ride {
    /// One life of the process for each: how many calls to the log it survives.
    pub lives: Vec<u32>,
    pub batch_records: usize,
    pub waiting_rows_max: usize,
}

impl Ride {
    pub fn smooth() -> Self {
        Self { lives: Vec::new(), batch_records: 4096, waiting_rows_max: 1 << 20 }
    }
}

/// A temporary folder, in memory where that is possible: RocksDB syncs its files when it opens, and a test opens many.
pub fn scratch() -> std::io::Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }
}

/// What a run left behind.
pub struct Outcome {
    /// What the names of the pipeline's own topics begin with.
    pub prefix: String,
    pub topics: BTreeMap<String, Vec<Value>>,
    pub totals: NamedTotals,
}

/// Runs a pipeline over topics to their end, through every fault of `ride`.
pub fn ride(plan: &Plan, topics: &Topics, ride: &Ride) -> anyhow::Result<Outcome> {
    let dir = scratch()?;
    write_topics(&dir.path().join("topics"), topics)?;
    let mut lives = ride.lives.iter().copied();
    loop {
        let faults = Faults { calls_left: lives.next() };
        if let Some(totals) = life(plan, (dir.path(), None), ride, faults)? {
            return outcome(plan, dir.path(), totals);
        }
    }
}

/// What a run has left in its folder so far.
pub fn outcome(plan: &Plan, dir: &Path, totals: NamedTotals) -> anyhow::Result<Outcome> {
    let outputs = plan.sinks.iter().map(|s| &s.topic).chain(&plan.dead_letter);
    let read = outputs.map(|t| Ok((t.clone(), read_topic(&dir.join("out"), t)?)));
    Ok(Outcome { prefix: plan.prefix.clone(), topics: read.collect::<anyhow::Result<_>>()?, totals })
}

/// Names and totals of the steps of all tasks.
pub type NamedTotals = Vec<(String, millrace_core::totals::Totals)>;

/// One life of the process: to the end, or to its fault (then `None`). A backfill has a name, and a state of its own in the
/// same folder.
pub fn life(
    plan: &Plan,
    (dir, backfill): (&Path, Option<&str>),
    ride: &Ride,
    faults: Faults,
) -> anyhow::Result<Option<NamedTotals>> {
    let files = FileLogConfig {
        topics: dir.join("topics"),
        out: Some(dir.join("out")),
        state: dir.join("state"),
        follow: false,
        missing_is_empty: true,
    };
    let log = FaultyLog::new(FileLog::open(files)?, faults);
    let config = EngineConfig {
        state_dir: dir.join("state").join(backfill.unwrap_or_default()),
        // Every turn may end an epoch: as many ends as can be.
        commit_interval_ms: 0,
        batch_records: ride.batch_records,
        records_per_second: None,
        waiting_rows_max: ride.waiting_rows_max,
        budget: StateBudget::new(1 << 20, 1 << 20),
        isolate: false,
        storage: None,
        timeline: Timeline(1),
        epoch_timeout_ms: None,
    };
    run_to_end(plan, log, config, (faults, backfill.is_some()))
}

/// Runs a lane to the end of its inputs, or of a backfill, or to its log's fault (then `None`).
fn run_to_end<L: Log>(
    plan: &Plan,
    log: L,
    config: EngineConfig,
    (faults, backfill): (Faults, bool),
) -> anyhow::Result<Option<NamedTotals>> {
    let mortal = faults.calls_left.is_some();
    let metrics = Arc::new(Metrics::new()?);
    let ended = Engine::start(Arc::new(plan.clone()), log, config, metrics).and_then(|mut engine| {
        if backfill {
            engine.drain();
        }
        engine.run(&AtomicBool::new(false)).map(|exit| (engine, exit))
    });
    match ended {
        Ok((engine, exit)) => {
            assert_eq!(exit, Exit::Finished);
            let totals = engine.running().flat_map(|task| {
                let id = task.id.to_string();
                task.totals().map(move |(step, totals)| (format!("{id} {step}"), totals.clone())).collect::<Vec<_>>()
            });
            Ok(Some(totals.collect()))
        }
        Err(error) => {
            let error = anyhow::Error::from(error);
            if mortal && format!("{error:#}").contains(faulty::TEXT) { Ok(None) } else { Err(error) }
        }
    }
}

/// The values of a topic's records, sorted: where order is not part of the promise.
pub fn sorted_values(records: &[Value]) -> Vec<String> {
    let mut values: Vec<String> = records.iter().map(|r| r["value"].to_string()).collect();
    values.sort();
    values
}

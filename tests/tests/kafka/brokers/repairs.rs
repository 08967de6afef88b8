//! A repair beside a pipeline that goes on, on a real Kafka: both are killed with SIGKILL while rows of the same keys come
//! from both. The oracle is every record of the sink's topic, not only the last of each key.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use millrace_core::report::{BackfillReport, CleanupReport, WorkerReport};
use millrace_core::totals::DropReason;
use millrace_tests::control::{Managed, assignment};
use millrace_tests::kafka::shared as kafka;
use millrace_tests::repairs::{self, Changes, PARTITIONS};
use millrace_tests::scratch;
use millrace_tests::story::{DEADLINE, Worker, millrace, millrace_on};
use rdkafka::consumer::Consumer;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Records of the range, which the pipeline has not seen.
const MISSED: u64 = 60_000;
/// Records that come while it is computed, in batches.
const BATCH: u64 = 200;
const BATCHES: u64 = 40;
const KILLS: u64 = 3;
/// Records of the range of a backfill that is looked after.
const TOLD: u64 = 20_000;
/// More than what was read takes to be committed and shown.
const STANDS_STILL: Duration = Duration::from_secs(3);

/// As files. With `keyed`, the stream says that its records lie by their key.
fn pipeline(name: &str, keyed: bool) -> String {
    let mut document = repairs::pipeline("test", name, &kafka().bootstrap_servers(), &json!({}));
    if keyed {
        document["spec"]["sources"][0]["key"] = json!({"columns": ["id"]});
    }
    document.to_string()
}

/// It lasts as long as what comes meanwhile; `more` is merged into its spec.
fn backfill(name: &str, more: &Value) -> String {
    let mut document = repairs::backfill("test", "again", name, more);
    let limit = document["spec"].get("rateLimit").cloned().unwrap_or_else(|| json!({"recordsPerSecond": 15_000}));
    document["spec"]["rateLimit"] = limit;
    document.to_string()
}

/// What of the rows came out, and what did not since it was older or the same, by the worker's metrics.
fn repaired(worker: &Worker) -> anyhow::Result<u64> {
    let (_, text) = millrace_tests::story::http(&worker.metrics, "/metrics")?;
    let of = |line: &str| line.starts_with("millrace_rows_in_total{") && line.contains("step=\"out.upsert repairs\"");
    let counts = text.lines().filter(|line| of(line)).filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    Ok(counts.sum::<f64>() as u64)
}

fn repair(name: &str, keyed: bool, seed: u64) -> anyhow::Result<()> {
    let (mut changes, dir) = (Changes::new(kafka(), name, seed)?, scratch()?);
    let file = |name: &str| dir.path().join(name);
    std::fs::write(file("pipeline.yaml"), pipeline(name, keyed))?;
    std::fs::write(file("backfill.yaml"), backfill(name, &json!({})))?;
    changes.write_missed(MISSED)?;
    let start = |state: &str| -> anyhow::Result<Worker> {
        let mut worker = Worker::start(&file("pipeline.yaml"), &file(state), &["--lanes", "2"])?;
        worker.wait_ready()?;
        Ok(worker)
    };
    let mut live = start("live")?;
    let again = file("backfill.yaml");
    let again = again.to_str().context("a path is text")?;
    let begin = || Worker::start(&file("pipeline.yaml"), &file("again"), &["--backfill", again]);
    let mut repairing = begin()?;
    let mut kills = 0;
    for batch in 0..BATCHES {
        changes.write_now(BATCH)?;
        if batch % (BATCHES / KILLS) == BATCHES / KILLS - 1 {
            repairing.kill()?;
            repairing = begin()?;
            live.kill()?;
            live = start(&format!("live{batch}"))?;
            kills += 1;
        }
    }
    ensure!(kills == KILLS, "{kills} kills");
    ensure!(repairing.wait()?.success(), "the backfill failed: {}", repairing.log());
    // It has waited until all that it computed was taken.
    let taken = repaired(&live)?;
    ensure!(taken == MISSED, "{taken} of {MISSED} were taken: {}", live.log());
    live.stop()?;
    changes.check(kafka())?;
    // Another range under the same name would leave out what lies before the end of this one.
    let another = json!({"range": {"from": "2019-01-01T00:00:00Z", "to": "2020-01-01T00:00:00Z"}});
    std::fs::write(file("backfill.yaml"), backfill(name, &another))?;
    let refused = millrace_tests::story::millrace_on(&["run", "--backfill", again], &file("pipeline.yaml"));
    let refused = refused.err().context("another range is refused")?;
    ensure!(refused.contains("was begun with another range"), "{refused}");
    Ok(())
}

#[test]
fn a_repair_and_what_comes_meanwhile_leave_the_newest_row_of_each_key_last() {
    repair("repaired", true, 17).unwrap();
}

#[test]
fn so_does_one_whose_rows_move_to_where_their_keys_meet() {
    repair("repaired-moved", false, 18).unwrap();
}

fn backfill_of(report: &WorkerReport) -> &BackfillReport {
    report.backfill.as_ref().expect("it runs a backfill")
}

/// Records of the range that were read and committed.
fn read(report: &WorkerReport) -> i64 {
    backfill_of(report).parts.iter().map(|part| part.next - part.from).sum()
}

/// Waits until it reads nothing more.
fn paused(backfill: &Managed) -> WorkerReport {
    let last = Cell::new((-1, Instant::now()));
    backfill.wait("to stand still", |report| {
        if !report.ready || read(report) != last.get().0 {
            last.set((read(report), Instant::now()));
        }
        last.get().1.elapsed() >= STANDS_STILL
    })
}

/// A pipeline with a worker, a backfill of it that makes way, and somebody who looks after both.
struct Told {
    dir: tempfile::TempDir,
    live: Managed,
    changes: Changes,
}

const CHANGES: &str = "told-changes";
/// What begins everything that the backfill makes in Kafka.
const OWN: &str = "test.told-backfill.again";

impl Told {
    fn start() -> anyhow::Result<Self> {
        let (mut changes, dir) = (Changes::new(kafka(), "told", 19)?, scratch()?);
        changes.write_missed(TOLD)?;
        let (yaml, file) = (pipeline("told", true), |name| dir.path().join(name));
        std::fs::write(file("pipeline.yaml"), &yaml)?;
        std::fs::write(file("backfill.yaml"), backfill("told", &json!({"yieldToLive": {"slo": "fresh"}})))?;
        let plan = millrace_tests::plan(&yaml);
        let stages: Vec<&str> = plan.stages.iter().map(|stage| stage.name.as_str()).collect();
        std::fs::write(file("assignment.json"), serde_json::to_vec(&assignment(1, &stages, PARTITIONS))?)?;
        let assignment = file("assignment.json").display().to_string();
        let live = Managed::start_in(dir.path(), &file("pipeline.yaml"), "live", &["--assignment", &assignment])?;
        live.wait("to run", |report| report.ready);
        changes.write_now(BATCH)?;
        Ok(Self { dir, live, changes })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.file(name).display().to_string()
    }

    fn begin(&self) -> anyhow::Result<Managed> {
        let arguments = ["--backfill", &self.text("backfill.yaml"), "--report", &self.text("report.json")];
        Managed::start_in(self.dir.path(), &self.file("pipeline.yaml"), "again", &arguments)
    }

    /// To its end by itself.
    fn end(&self, mut backfill: Managed) -> anyhow::Result<BackfillReport> {
        let status = backfill.worker.wait()?;
        ensure!(status.success(), "{status}: {}", backfill.worker.log());
        self.report("report.json")
    }

    fn report<T: DeserializeOwned>(&self, name: &str) -> anyhow::Result<T> {
        Ok(serde_json::from_slice(&std::fs::read(self.file(name))?)?)
    }

    /// It makes way, is told how fast to read, and told to pause: how it stands then.
    fn paused_in_the_middle(&mut self) -> anyhow::Result<WorkerReport> {
        let again = self.begin()?;
        let first = paused(&again);
        let all: i64 = backfill_of(&first).parts.iter().map(|part| part.to - part.from).sum();
        ensure!((read(&first), all, backfill_of(&first).rows) == (0, TOLD as i64, 0), "{first:#?}");
        ensure!(backfill_of(&first).records_per_second == Some(0), "{first:#?}");
        ensure!((again.rate("{}"), self.live.rate(r#"{"recordsPerSecond": 5}"#)) == (400, 404));
        ensure!(again.rate(r#"{"recordsPerSecond": 2000}"#) == 200);
        again.wait("to read", |report| read(report) > 0 && backfill_of(report).records_per_second == Some(2000));
        self.changes.write_now(BATCH)?;
        ensure!(again.rate(r#"{"recordsPerSecond": 0}"#) == 200);
        let stopped = paused(&again);
        ensure!((1..TOLD as i64).contains(&read(&stopped)), "{stopped:#?}");
        ensure!(backfill_of(&stopped).rows == read(&stopped) as u64, "{stopped:#?}");
        // What it has read is deleted before it dies.
        for part in &backfill_of(&stopped).parts {
            kafka().delete_records(CHANGES, part.partition.0, part.next)?;
        }
        again.worker.kill()?;
        Ok(stopped)
    }

    /// Each row is accounted for, here and where it was taken.
    fn check(&self, done: &BackfillReport) -> anyhow::Result<()> {
        ensure!((done.computed, done.taken, done.rows, done.errors.len()) == (true, true, TOLD, 0), "{done:#?}");
        ensure!(done.totals["source changes"].rows_in == TOLD && done.parts.iter().all(|part| part.next == part.to));
        let taken = self.live.wait("to have taken all", |report| report.repairs["out"].rows_in == TOLD);
        let repairs = &taken.repairs["out"];
        let dropped = |reason| repairs.dropped.get(&reason).copied().unwrap_or(0);
        let guarded = dropped(DropReason::Outdated) + dropped(DropReason::SameVersion);
        ensure!(repairs.rows_out + guarded == TOLD && repairs.rows_out > 0 && guarded > 0, "{repairs:#?}");
        ensure!(repaired(&self.live.worker)? == TOLD);
        self.changes.check(kafka())
    }

    fn clean(&self) -> anyhow::Result<CleanupReport> {
        let command = ["cleanup", "--backfill", &self.text("backfill.yaml"), "--report", &self.text("cleanup.json")];
        millrace_on(&command, &self.file("pipeline.yaml")).map_err(|error| anyhow!(error))?;
        self.report("cleanup.json")
    }

    /// Nothing of it stays, and what the pipeline has does.
    fn check_clean(&self) -> anyhow::Result<()> {
        let before = topics_of("test.told-")?.len() - topics_of(OWN)?.len();
        let cleaned = self.clean()?;
        ensure!(cleaned.errors.is_empty() && cleaned.left.is_empty(), "{cleaned:#?}");
        ensure!(cleaned.deleted.iter().all(|name| name.starts_with(OWN)) && cleaned.deleted.len() >= 3, "{cleaned:#?}");
        ensure!((topics_of(OWN)?, topics_of("test.told-")?.len()) == (Vec::new(), before));
        ensure!(self.clean()? == CleanupReport::default());
        Ok(())
    }
}

/// Topics that are there, by how their names begin.
fn topics_of(prefix: &str) -> anyhow::Result<Vec<String>> {
    let metadata = kafka().reader(CHANGES)?.fetch_metadata(None, DEADLINE)?;
    let names = metadata.topics().iter().map(|topic| topic.name().to_owned());
    Ok(names.filter(|name| name.starts_with(prefix)).collect())
}

fn told() -> anyhow::Result<()> {
    let mut told = Told::start()?;
    let stopped = told.paused_in_the_middle()?;
    let again = told.begin()?;
    let back = paused(&again);
    ensure!(backfill_of(&back).parts == backfill_of(&stopped).parts, "{back:#?} after {stopped:#?}");
    ensure!(again.rate(r#"{"recordsPerSecond": 2000}"#) == 200);
    again.wait("to go on", |report| read(report) > read(&stopped));
    again.worker.kill()?;
    let again = told.begin()?;
    ensure!(again.rate(r#"{"recordsPerSecond": null}"#) == 200);
    let done = told.end(again)?;
    told.check(&done)?;
    // The same is done already, though nothing of its range is there any more.
    for partition in 0..PARTITIONS {
        kafka().delete_records(CHANGES, partition, kafka().end(CHANGES, partition)?)?;
    }
    ensure!(told.end(told.begin()?)? == BackfillReport { records_per_second: Some(0), ..done });
    told.check_clean()?;
    // Begun anew it would leave out what was deleted.
    told.changes.write_now(BATCH)?;
    let arguments = ["run", "--backfill", &told.text("backfill.yaml"), "--report", &told.text("report.json"), "-f"];
    let output = Command::new(millrace()?).args(arguments).arg(told.file("pipeline.yaml")).output()?;
    ensure!(output.status.code() == Some(2), "{output:?}");
    let BackfillReport { errors, taken: false, .. } = told.report("report.json")? else { bail!("it was refused") };
    ensure!(errors[0].starts_with("spec.range.from") && errors[0].contains("of topic 'told-changes' begins at offset"));
    ensure!(topics_of(OWN)?.is_empty());
    told.live.end();
    Ok(())
}

#[test]
fn an_operator_tells_a_backfill_how_fast_to_read_and_sees_what_came_of_each_row() {
    told().unwrap();
}

#[test]
fn a_backfill_that_cannot_be_done_is_said_at_once() {
    let (kafka, dir) = (kafka(), scratch().unwrap());
    kafka.create_topic("undone-changes", 1, &[]).unwrap();
    kafka.create_topic("undone-out", 1, &[]).unwrap();
    let file = |name: &str| dir.path().join(name);
    std::fs::write(file("pipeline.yaml"), pipeline("undone", false)).unwrap();
    let with = |more: Value| {
        std::fs::write(file("backfill.yaml"), backfill("undone", &more)).unwrap();
        let backfill = file("backfill.yaml");
        let command = ["run", "--log-level", "warn", "--backfill", backfill.to_str().unwrap()];
        millrace_tests::story::millrace_on(&command, Path::new(&file("pipeline.yaml"))).unwrap_err()
    };
    let said = |range: Value| with(json!({"range": range}));
    let paused = with(json!({"rateLimit": {"recordsPerSecond": 0}}));
    assert!(paused.contains("spec.rateLimit.recordsPerSecond: reads nothing"), "{paused}");
    let suspended = with(json!({"suspend": true}));
    assert!(suspended.contains("spec.suspend: is for an operator"), "{suspended}");
    let future = said(json!({"from": "2020-01-01T00:00:00Z", "to": "2920-01-01T00:00:00Z"}));
    assert!(future.contains("spec.range.to: lies in the future"), "{future}");
    let part = |source: &str, partition: i32| json!({"source": source, "partition": partition, "from": 0, "to": 1});
    let offsets = said(json!({"offsets": [part("orders", 0), part("changes", 7)]}));
    assert!(offsets.contains("spec.range.offsets[0].source: is no stream of the backfill"), "{offsets}");
    assert!(offsets.contains("spec.range.offsets[1].partition: is not a partition"), "{offsets}");
    let behind = said(json!({"offsets": [part("changes", 0)]}));
    assert!(behind.contains("spec.range.offsets[0].to: lies behind the end"), "{behind}");
    let not_run = with(json!({}));
    assert!(not_run.contains("run the pipeline with this release first"), "{not_run}");
}

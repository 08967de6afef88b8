//! A repair beside a pipeline that goes on, on a real Kafka: both are killed with SIGKILL while rows of the same keys come
//! from both. The oracle is every record of the sink's topic, not only the last of each key.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, ensure};
use millrace_core::plan::Partitioner;
use millrace_kafka_harness::{Kafka, Message};
use millrace_tests::kafka::shared as kafka;
use millrace_tests::scratch;
use millrace_tests::story::{Numbers, Worker};
use serde_json::{Value, json};

const PARTITIONS: i32 = 4;
/// Keys that most rows are of.
const KEYS: u64 = 40;
/// Records of the range, which the pipeline has not seen.
const MISSED: u64 = 60_000;
/// Records that come while it is computed, in batches.
const BATCH: u64 = 200;
const BATCHES: u64 = 40;
/// The range is in the year 2020.
const THEN_MS: i64 = 1_577_836_800_000;
const KILLS: u64 = 3;

/// Versions come in any order. Of a few keys there are most rows, as Zipf has it.
fn record(numbers: &mut Numbers, n: u64, at_ms: i64) -> Message {
    let most = 1 + numbers.below(KEYS);
    let (id, version) = (numbers.below(most), numbers.below(1_000_000));
    let partition = Partitioner::Murmur2.partition(id.to_string().as_bytes(), PARTITIONS).0;
    Message::new(id.to_string(), json!({"number": n, "id": id, "version": version}).to_string()).on(partition).at(at_ms)
}

fn pipeline(name: &str, bootstrap_servers: &str, key: &str) -> String {
    format!(
        r#"
apiVersion: millrace.dev/v1alpha1
kind: Pipeline
metadata: {{name: {name}, namespace: test}}
spec:
  kafka: {{bootstrapServers: "{bootstrap_servers}", internal: {{replicationFactor: 1}}}}
  sources:
    - name: changes
      kafka: {{topic: {name}-changes, startFrom: {{policy: Latest}}}}
      {key}
      format: {{type: Json}}
      columns: [{{name: number, type: BIGINT}}, {{name: id, type: BIGINT}}, {{name: version, type: BIGINT}}]
  steps: []
  sinks:
    - name: out
      from: changes
      kafka: {{topic: {name}-out}}
      key: {{columns: [id]}}
      format: {{type: Json}}
      write: {{mode: Upsert, version: {{policy: Column, column: version}}}}
"#
    )
}

fn backfill(name: &str) -> String {
    format!(
        r#"
apiVersion: millrace.dev/v1alpha1
kind: Backfill
metadata: {{name: again, namespace: test}}
spec:
  pipelineRef: {{name: {name}}}
  mode: Repair
  range: {{from: "2020-01-01T00:00:00Z", to: "2021-01-01T00:00:00Z"}}
  # It lasts as long as what comes meanwhile.
  rateLimit: {{recordsPerSecond: 15000}}
"#
    )
}

/// Everything that is written is newer than everything before it of its key; the last is the greatest that there was.
fn check(kafka: &Kafka, topic: &str, greatest: &BTreeMap<u64, u64>) -> anyhow::Result<()> {
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    for record in kafka.read_committed(topic)? {
        let row: Value = serde_json::from_slice(record.value.as_deref().unwrap_or_default())?;
        let number = |field: &str| row[field].as_u64().with_context(|| format!("{field} of {row}"));
        let (id, version) = (number("id")?, number("version")?);
        let before = last.insert(id, version);
        ensure!(before.is_none_or(|before| before < version), "of {id} came {version} after {before:?}");
    }
    ensure!(last == *greatest, "{last:?} came last, and {greatest:?} is the greatest");
    Ok(())
}

/// What of the rows came out, and what did not since it was older or the same, by the worker's metrics.
fn repaired(worker: &Worker) -> anyhow::Result<u64> {
    let (_, text) = millrace_tests::story::http(&worker.metrics, "/metrics")?;
    let of = |line: &str| line.starts_with("millrace_rows_in_total{") && line.contains("step=\"out.upsert repairs\"");
    let counts = text.lines().filter(|line| of(line)).filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    Ok(counts.sum::<f64>() as u64)
}

fn repair(name: &str, key: &str, seed: u64) -> anyhow::Result<()> {
    let (kafka, dir, mut numbers) = (kafka(), scratch()?, Numbers(seed));
    let (changes, out) = (format!("{name}-changes"), format!("{name}-out"));
    let retention = millrace_tests::story::RETENTION_MS.to_string();
    kafka.create_topic(&changes, PARTITIONS, &[("retention.ms", &retention)])?;
    kafka.create_topic(&out, PARTITIONS, &[("retention.ms", &retention)])?;
    let file = |name: &str| dir.path().join(name);
    std::fs::write(file("pipeline.yaml"), pipeline(name, &kafka.bootstrap_servers(), key))?;
    std::fs::write(file("backfill.yaml"), backfill(name))?;
    let writer = kafka.writer()?;
    let mut greatest: BTreeMap<u64, u64> = BTreeMap::new();
    let mut write = |numbers: &mut Numbers, range: std::ops::Range<u64>, at_ms: i64| -> anyhow::Result<()> {
        let records: Vec<Message> = range.map(|n| record(numbers, n, at_ms)).collect();
        for record in &records {
            let row: Value = serde_json::from_slice(record.value.as_deref().unwrap_or_default())?;
            let (id, version) = (row["id"].as_u64().unwrap_or_default(), row["version"].as_u64().unwrap_or_default());
            let most = greatest.entry(id).or_default();
            *most = version.max(*most);
        }
        writer.produce(&changes, records)
    };
    write(&mut numbers, 0..MISSED, THEN_MS)?;
    let start = |state: &str| -> anyhow::Result<Worker> {
        let mut worker = Worker::start(&file("pipeline.yaml"), &file(state), &["--lanes", "2"])?;
        worker.wait_ready()?;
        Ok(worker)
    };
    let mut live = start("live")?;
    let again = file("backfill.yaml");
    let again = again.to_str().context("a path is text")?;
    let begin = || Worker::start(&file("pipeline.yaml"), &file("again"), &["--backfill", again]);
    let mut backfill = begin()?;
    let mut kills = 0;
    for batch in 0..BATCHES {
        write(&mut numbers, MISSED + batch * BATCH..MISSED + (batch + 1) * BATCH, millrace_tests::shop::now_ms()?)?;
        if batch % (BATCHES / KILLS) == BATCHES / KILLS - 1 {
            backfill.kill()?;
            backfill = begin()?;
            live.kill()?;
            live = start(&format!("live{batch}"))?;
            kills += 1;
        }
    }
    ensure!(kills == KILLS, "{kills} kills");
    ensure!(backfill.wait()?.success(), "the backfill failed: {}", backfill.log());
    // It has waited until all that it computed was taken.
    let taken = repaired(&live)?;
    ensure!(taken == MISSED, "{taken} of {MISSED} were taken: {}", live.log());
    live.stop()?;
    check(kafka, &out, &greatest)?;
    // Another range under the same name would leave out what lies before the end of this one.
    let text =
        std::fs::read_to_string(file("backfill.yaml"))?.replace("2020-01-01", "2019-01-01").replace("2021", "2020");
    std::fs::write(file("backfill.yaml"), text)?;
    let refused = millrace_tests::story::millrace_on(&["run", "--backfill", again], &file("pipeline.yaml"));
    let refused = refused.err().context("another range is refused")?;
    ensure!(refused.contains("was begun with another range"), "{refused}");
    Ok(())
}

#[test]
fn a_repair_and_what_comes_meanwhile_leave_the_newest_row_of_each_key_last() {
    repair("repaired", "key: {columns: [id]}", 17).unwrap();
}

#[test]
fn so_does_one_whose_rows_move_to_where_their_keys_meet() {
    repair("repaired-moved", "", 18).unwrap();
}

#[test]
fn a_backfill_that_cannot_be_done_is_said_at_once() {
    let (kafka, dir) = (kafka(), scratch().unwrap());
    kafka.create_topic("undone-changes", 1, &[]).unwrap();
    kafka.create_topic("undone-out", 1, &[]).unwrap();
    let file = |name: &str| dir.path().join(name);
    std::fs::write(file("pipeline.yaml"), pipeline("undone", &kafka.bootstrap_servers(), "")).unwrap();
    let said = |range: &str| {
        let text = backfill("undone").replace("{from: \"2020-01-01T00:00:00Z\", to: \"2021-01-01T00:00:00Z\"}", range);
        std::fs::write(file("backfill.yaml"), text).unwrap();
        let backfill = file("backfill.yaml");
        let command = ["run", "--log-level", "warn", "--backfill", backfill.to_str().unwrap()];
        millrace_tests::story::millrace_on(&command, Path::new(&file("pipeline.yaml"))).unwrap_err()
    };
    let future = said("{from: \"2020-01-01T00:00:00Z\", to: \"2920-01-01T00:00:00Z\"}");
    assert!(future.contains("spec.range.to: lies in the future"), "{future}");
    let offsets = said(
        "{offsets: [{source: orders, partition: 0, from: 0, to: 1}, {source: changes, partition: 7, from: 0, to: 1}]}",
    );
    assert!(offsets.contains("spec.range.offsets[0].source: is no stream of the backfill"), "{offsets}");
    assert!(offsets.contains("spec.range.offsets[1].partition: is not a partition"), "{offsets}");
    let behind = said("{offsets: [{source: changes, partition: 0, from: 0, to: 1}]}");
    assert!(behind.contains("spec.range.offsets[0].to: lies behind the end"), "{behind}");
    let not_run = said("{from: \"2020-01-01T00:00:00Z\", to: \"2021-01-01T00:00:00Z\"}");
    assert!(not_run.contains("run the pipeline with this release first"), "{not_run}");
}

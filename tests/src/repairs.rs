//! Rows of a few keys, of which most are of a few of those, with versions in any order: what a repair and what comes meanwhile
//! are made of. The oracle is every record of the sink's topic, not only the last of each key.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_core::plan::Partitioner;
use millrace_kafka_harness::{Kafka, Message, Writer, wait};
use serde_json::{Value, json};

use crate::kubernetes::{World, world};
use crate::shop::now_ms;
use crate::story::{Numbers, RETENTION_MS};

pub const PARTITIONS: i32 = 4;
/// Keys that most rows are of.
const KEYS: u64 = 40;
/// The range is in the year 2020.
pub const THEN_MS: i64 = 1_577_836_800_000;
/// For what a Backfill on a cluster comes to.
const DEADLINE: Duration = Duration::from_secs(180);
/// Rows that come at once meanwhile.
const BATCH: u64 = 100;
/// Of a Backfill.
pub const RANGE: [&str; 2] = ["2020-01-01T00:00:00Z", "2021-01-01T00:00:00Z"];

/// The stream `<name>-changes`, and what has to come of it in `<name>-out`.
pub struct Changes {
    name: String,
    numbers: Numbers,
    writer: Writer,
    written: u64,
    greatest: BTreeMap<u64, u64>,
}

impl Changes {
    /// Makes both topics.
    pub fn new(kafka: &Kafka, name: &str, seed: u64) -> anyhow::Result<Self> {
        let retention = RETENTION_MS.to_string();
        for topic in ["changes", "out"] {
            kafka.create_topic(&format!("{name}-{topic}"), PARTITIONS, &[("retention.ms", &retention)])?;
        }
        let (name, writer) = (name.to_owned(), kafka.writer()?);
        Ok(Self { name, numbers: Numbers(seed), writer, written: 0, greatest: BTreeMap::new() })
    }

    /// Writes so many rows with the time of the range, which the pipeline has not seen when it begins behind them.
    pub fn write_missed(&mut self, rows: u64) -> anyhow::Result<()> {
        self.write(rows, THEN_MS)
    }

    pub fn write_now(&mut self, rows: u64) -> anyhow::Result<()> {
        self.write(rows, now_ms()?)
    }

    fn write(&mut self, rows: u64, at_ms: i64) -> anyhow::Result<()> {
        let records: Vec<Message> = (0..rows).map(|_| self.record(at_ms)).collect();
        self.writer.produce(&format!("{}-changes", self.name), records)
    }

    /// Of a few keys there are most rows, as Zipf has it.
    fn record(&mut self, at_ms: i64) -> Message {
        let most = 1 + self.numbers.below(KEYS);
        let (id, version, number) = (self.numbers.below(most), self.numbers.below(1_000_000), self.written);
        self.written += 1;
        let greatest = self.greatest.entry(id).or_default();
        *greatest = version.max(*greatest);
        let partition = Partitioner::Murmur2.partition(id.to_string().as_bytes(), PARTITIONS).0;
        let row = json!({"number": number, "id": id, "version": version});
        Message::new(id.to_string(), row.to_string()).on(partition).at(at_ms)
    }

    /// Everything that was written is newer than everything before it of its key; the last is the greatest that there was.
    pub fn check(&self, kafka: &Kafka) -> anyhow::Result<()> {
        let mut last: BTreeMap<u64, u64> = BTreeMap::new();
        for record in kafka.read_committed(&format!("{}-out", self.name))? {
            let row: Value = serde_json::from_slice(record.value.as_deref().unwrap_or_default())?;
            let number = |field: &str| row[field].as_u64().with_context(|| format!("{field} of {row}"));
            let (id, version) = (number("id")?, number("version")?);
            let before = last.insert(id, version);
            ensure!(before.is_none_or(|before| before < version), "of {id} came {version} after {before:?}");
        }
        let greatest = &self.greatest;
        ensure!(last == *greatest, "{last:?} came last, and {greatest:?} is the greatest");
        Ok(())
    }
}

/// A pipeline that keeps the newest row of each key; `more` is merged into its spec.
pub fn pipeline(namespace: &str, name: &str, bootstrap_servers: &str, more: &Value) -> Value {
    let format = json!({"type": "Json"});
    let columns = ["number", "id", "version"].map(|name| json!({"name": name, "type": "BIGINT"}));
    let mut spec = json!({
        "kafka": {"bootstrapServers": bootstrap_servers, "internal": {"prefix": format!("test.{name}"), "replicationFactor": 1}},
        "sources": [{
            "name": "changes",
            "kafka": {"topic": format!("{name}-changes"), "startFrom": {"policy": "Latest"}},
            "format": format,
            "columns": columns,
        }],
        "steps": [],
        "sinks": [{
            "name": "out",
            "from": "changes",
            "kafka": {"topic": format!("{name}-out")},
            "key": {"columns": ["id"]},
            "format": format,
            "write": {"mode": "Upsert", "version": {"policy": "Column", "column": "version"}},
        }],
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    let metadata = json!({"name": name, "namespace": namespace});
    json!({"apiVersion": "millrace.dev/v1alpha1", "kind": "Pipeline", "metadata": metadata, "spec": spec})
}

/// A Backfill of what was missed; `more` is merged into its spec.
pub fn backfill(namespace: &str, name: &str, pipeline: &str, more: &Value) -> Value {
    let [from, to] = RANGE;
    let mut spec = json!({"pipelineRef": {"name": pipeline}, "mode": "Repair", "range": {"from": from, "to": to}});
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    let metadata = json!({"name": name, "namespace": namespace});
    json!({"apiVersion": "millrace.dev/v1alpha1", "kind": "Backfill", "metadata": metadata, "spec": spec})
}

/// A pipeline on a cluster that keeps the newest row of each key, and a Backfill of it, `again`.
pub struct Repaired {
    pub world: &'static World,
    pub changes: Changes,
    pub name: String,
    pub namespace: String,
    /// Fields of the Pipeline's spec.
    pub spec: Value,
    backfill: Value,
}

impl Repaired {
    pub fn new(name: &str, missed: u64, spec: Value) -> anyhow::Result<Self> {
        let world = world();
        let (name, namespace) = (name.to_owned(), format!("story-{name}"));
        let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
        let metadata = json!({"name": namespace, "labels": labels});
        world.cluster.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}).to_string())?;
        let mut changes = Changes::new(&world.kafka, &name, 41)?;
        changes.write_missed(missed)?;
        let it = Self { world, changes, name, namespace, spec, backfill: json!({}) };
        it.apply_pipeline()?;
        it.kubectl(&["wait", "--for=condition=Ready", &format!("pipeline/{}", it.name), "--timeout=120s"])?;
        Ok(it)
    }

    pub fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let said = self.world.cluster.kubectl(&[&["--namespace", &self.namespace], arguments].concat());
        said.with_context(|| self.world.cluster.diagnostics())
    }

    pub fn apply_pipeline(&self) -> anyhow::Result<()> {
        let document = pipeline(&self.namespace, &self.name, &self.world.kafka.bootstrap_servers(), &self.spec);
        self.world.cluster.apply(&document.to_string()).map(drop)
    }

    /// The Backfill, with a field of its spec changed.
    pub fn ask(&mut self, field: &str, value: Value) -> anyhow::Result<()> {
        self.backfill[field] = value;
        let document = backfill(&self.namespace, "again", &self.name, &self.backfill);
        self.world.cluster.apply(&document.to_string()).map(drop)
    }

    pub fn status(&self) -> anyhow::Result<Value> {
        let object: Value = serde_json::from_str(&self.kubectl(&["get", "backfill", "again", "-o", "json"])?)?;
        Ok(object["status"].clone())
    }

    pub fn records(&self) -> anyhow::Result<i64> {
        Ok(self.status()?["counts"]["records"].as_i64().unwrap_or_default())
    }

    /// Rows keep coming meanwhile.
    pub fn until(&mut self, what: &str, condition: impl Fn(&Self) -> anyhow::Result<bool>) -> anyhow::Result<()> {
        let mut seen = Value::Null;
        let waited = wait::until(what, DEADLINE, || {
            self.changes.write_now(BATCH)?;
            seen = self.status()?;
            condition(self)
        });
        waited.with_context(|| format!("{seen:#}\n{}", self.world.cluster.diagnostics()))
    }

    pub fn wait_phase(&mut self, phase: &str) -> anyhow::Result<()> {
        self.until(&format!("the backfill to be {phase}"), |it| Ok(it.status()?["phase"] == phase))
    }

    /// Waits until more of the range was read.
    pub fn goes_on(&mut self) -> anyhow::Result<()> {
        let before = self.records()?;
        self.until("the backfill to go on", |it| Ok(it.records()? > before))
    }

    /// The pods that compute.
    pub fn pods(&self) -> anyhow::Result<Vec<String>> {
        let selector = format!("millrace.dev/pipeline={},app.kubernetes.io/component=backfill", self.name);
        let names = self.kubectl(&["get", "pods", "-l", &selector, "-o", "name"])?;
        Ok(names.lines().map(|name| name.trim_start_matches("pod/").to_owned()).collect())
    }
}

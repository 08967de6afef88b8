//! The same runs on a real broker: a pipeline over topics that are written first, through any number of deaths.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;
use millrace_core::ids::{Offset, Partition, Timeline};
use millrace_core::plan::Plan;
use millrace_kafka_harness::{Kafka, Message, Record};
use millrace_runtime::engine::EngineConfig;
use millrace_runtime::log::file::{FileLog, FileLogConfig};
use millrace_runtime::log::kafka::connection::{Connection, FETCHED_BYTES};
use millrace_runtime::log::kafka::{InternalTopics, KafkaLog, KafkaLogConfig, TRIM_EVERY_MS};
use millrace_runtime::log::{Assignment, Header, Log, Outbox};
use millrace_runtime::state::StateBudget;
use serde_json::{Value, json};

use crate::faulty::{Faults, FaultyLog};
use crate::{Outcome, Rec, Ride, Topics, run_to_end, scratch};

/// Partitions of the topics that a pipeline writes to.
const OUTPUT_PARTITIONS: i32 = 2;
/// Every so many lives the process comes back without its local state, as a pod on another machine does.
const LIVES_PER_DISK: usize = 3;

/// One broker for all tests of a process. The harness ends it with the process.
pub fn shared() -> &'static Kafka {
    static KAFKA: OnceLock<Kafka> = OnceLock::new();
    KAFKA.get_or_init(|| Kafka::single().expect("a broker starts"))
}

/// What each life of a lane is told.
pub fn log_config(kafka: &Kafka, plan: &Plan) -> KafkaLogConfig {
    let outputs = plan.sinks.iter().map(|s| s.topic.clone()).chain(plan.dead_letter.clone());
    KafkaLogConfig {
        connection: Connection::plain(kafka.bootstrap_servers()),
        transactional_id: format!("{}-t1-w0-l0", plan.prefix),
        group: format!("{}-t1", plan.prefix),
        transaction_timeout_ms: 10_000,
        outputs: outputs.collect(),
        internal: InternalTopics { create: true, replication_factor: kafka.brokers() as u16 },
        until_end: true,
        fetched_bytes: FETCHED_BYTES,
        trim_every_ms: TRIM_EVERY_MS,
    }
}

/// Many runs share a cluster: the topics of each get names of their own.
fn own_names() -> impl Fn(&str) -> String {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    move |topic: &str| format!("run{run}-{topic}")
}

/// Runs a case of an example: its input goes to topics, and what comes out is compared with what it expects, by the
/// rules of `millrace test`. Returns the differences.
pub fn run_case(kafka: &Kafka, plan: &Plan, case: &Path) -> anyhow::Result<Vec<String>> {
    let (name, dir) = (own_names(), scratch()?);
    let file_log = |topics: PathBuf, state: &str| {
        let (out, state) = (Some(dir.path().join("out")), dir.path().join(state));
        FileLog::open(FileLogConfig { topics, out, state, follow: false, missing_is_empty: true })
    };
    // The embedded log reads and writes the files, so that both logs see the same records.
    let mut input = file_log(case.join("input"), "input")?;
    for source in &plan.sources {
        let partitions = input.topic(&source.topic)?.map_or(1, |info| info.partitions);
        kafka.create_topic(&name(&source.topic), partitions, &[])?;
        for partition in (0..partitions).map(Partition) {
            let messages = read_all(&mut input, &source.topic, partition)?;
            kafka.produce(&name(&source.topic), messages)?;
        }
    }
    let outputs: Vec<String> = plan.sinks.iter().map(|s| s.topic.clone()).chain(plan.dead_letter.clone()).collect();
    for topic in &outputs {
        // The embedded log writes to one partition.
        kafka.create_topic(&name(topic), 1, &[])?;
    }
    live(kafka, &renamed(plan, &name, name("own")), &Ride::smooth())?;
    let mut output = file_log(dir.path().to_owned(), "output")?;
    let mut outbox = Outbox::default();
    for topic in &outputs {
        output.open_output(topic)?;
        let index = outbox.topic_index(topic);
        for record in kafka.read_committed(&name(topic))? {
            // The headers of dead letters name topics.
            let own = |value: Vec<u8>| {
                plan.sources
                    .iter()
                    .find(|s| name(&s.topic).as_bytes() == value)
                    .map_or(value.clone(), |s| s.topic.clone().into_bytes())
            };
            let headers = record.headers.into_iter().map(|(name, value)| Header { name, value: own(value) }).collect();
            let (key, value) = (record.key.as_deref(), record.value.as_deref());
            outbox.push(index, Partition(record.partition), record.timestamp_ms, key, value, headers);
        }
    }
    output.send(&mut outbox)?;
    output.commit()?;
    millrace_runtime::cli::differences(plan, case, &dir.path().join("out"))
}

/// All records of one partition of a file's topic.
fn read_all(log: &mut FileLog, topic: &str, partition: Partition) -> anyhow::Result<Vec<Message>> {
    let (next, group) = (Offset(0), String::new());
    let input = log.assign(Assignment { topic: topic.to_owned(), partition, next, rank: 0, group })?;
    let mut messages = Vec::new();
    while let Some(fetch) = log.poll(&|id| (id == input).then_some(Offset(i64::MAX)), usize::MAX)? {
        messages.extend(fetch.records.iter().map(|record| Message {
            partition: Some(partition.0),
            timestamp_ms: record.timestamp_ms,
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.map(<[u8]>::to_vec),
            headers: record.headers.iter().map(|h| (h.name.clone(), h.value.clone())).collect(),
        }));
    }
    log.unassign(input)?;
    Ok(messages)
}

/// Runs a pipeline over topics to their end, through every fault of `ride`. The outcome has the topics' names of the
/// plan.
pub fn ride_on_kafka(kafka: &Kafka, plan: &Plan, topics: &Topics, ride: &Ride) -> anyhow::Result<Outcome> {
    let name = own_names();
    let own = renamed(plan, &name, name("own"));
    for (topic, records) in topics {
        let partitions = records.iter().map(|r| r.partition + 1).max().unwrap_or(1);
        let table = plan.sources.iter().any(|s| s.topic == *topic && s.table.is_some());
        // Only closed segments are compacted, so a test loses no record by it.
        let policy = [("cleanup.policy", if table { "compact" } else { "delete" })];
        kafka.create_topic(&name(topic), partitions, &policy)?;
        kafka.produce(&name(topic), records.iter().map(message))?;
    }
    let outputs: Vec<String> = plan.sinks.iter().map(|s| s.topic.clone()).chain(plan.dead_letter.clone()).collect();
    for topic in &outputs {
        kafka.create_topic(&name(topic), OUTPUT_PARTITIONS, &[])?;
    }
    let totals = live(kafka, &own, ride)?;
    let read = outputs.into_iter().map(|topic| {
        let records = kafka.read_committed(&name(&topic))?;
        Ok((topic, records.iter().map(line).collect::<anyhow::Result<_>>()?))
    });
    Ok(Outcome { prefix: own.prefix, topics: read.collect::<anyhow::Result<BTreeMap<String, Vec<Value>>>>()?, totals })
}

type NamedTotals = Vec<(String, millrace_core::totals::Totals)>;

/// All lives of the process. Each begins with the same transactional id, which ends what the one before left open.
fn live(kafka: &Kafka, plan: &Plan, ride: &Ride) -> anyhow::Result<NamedTotals> {
    let mut dir = scratch()?;
    let mut lives = ride.lives.iter().copied();
    for life in 1.. {
        let faults = Faults { calls_left: lives.next() };
        let log = FaultyLog::new(KafkaLog::open(log_config(kafka, plan))?, faults);
        let config = EngineConfig {
            state_dir: dir.path().to_owned(),
            commit_interval_ms: 20,
            batch_records: ride.batch_records,
            records_per_second: None,
            waiting_rows_max: ride.waiting_rows_max,
            budget: StateBudget::new(1 << 20, 1 << 20),
            isolate: false,
            storage: None,
            timeline: Timeline(1),
            epoch_timeout_ms: None,
        };
        if let Some(totals) = run_to_end(plan, log, config, (faults, false))? {
            return Ok(totals);
        }
        if life % LIVES_PER_DISK == 0 {
            dir = scratch()?;
        }
    }
    unreachable!("the lives of a ride end, and the last one is not mortal")
}

fn renamed(plan: &Plan, name: &dyn Fn(&str) -> String, prefix: String) -> Plan {
    let mut plan = Plan { prefix, ..plan.clone() };
    plan.sources.iter_mut().for_each(|s| s.topic = name(&s.topic));
    plan.sinks.iter_mut().for_each(|s| s.topic = name(&s.topic));
    plan.dead_letter = plan.dead_letter.as_deref().map(name);
    plan.exchanges.iter_mut().for_each(|e| e.partitions_like = e.partitions_like.as_deref().map(name));
    plan
}

fn message(record: &Rec) -> Message {
    Message {
        partition: Some(record.partition),
        timestamp_ms: record.timestamp,
        key: record.key.as_ref().map(|k| k.clone().into_bytes()),
        value: record.value.as_ref().map(|v| v.clone().into_bytes()),
        headers: Vec::new(),
    }
}

/// A record as the embedded log writes it, where its bytes are text and JSON.
fn line(record: &Record) -> anyhow::Result<Value> {
    let mut line = json!({"partition": record.partition, "timestamp": record.timestamp_ms});
    if let Some(key) = &record.key {
        line["key"] = Value::from(std::str::from_utf8(key).context("read a key")?);
    }
    line["value"] = match &record.value {
        Some(value) => serde_json::from_slice(value).context("read a value")?,
        None => Value::Null,
    };
    Ok(line)
}

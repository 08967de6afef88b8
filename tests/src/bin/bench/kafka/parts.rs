//! What the job does with Kafka, each part alone, by the adapter that the engine uses.

use std::time::{Duration, Instant};

use anyhow::ensure;
use millrace_core::ids::{Offset, Partition};
use millrace_kafka_harness::DEADLINE;
use millrace_runtime::engine::BATCH_RECORDS;
use millrace_runtime::log::kafka::connection::FETCHED_BYTES;
use millrace_runtime::log::kafka::{InternalTopics, KafkaLog, KafkaLogConfig, TRANSACTION_TIMEOUT_MS, TRIM_EVERY_MS};
use millrace_runtime::log::{Assignment, Log, Outbox};
use millrace_tests::process::{measured, rate};

use super::job::Throughput;
use super::{Bench, COMMIT_MS, ORDERS, PARTITIONS};
use crate::data::{self, BEGIN_MS};

const COMMITS: usize = 300;
/// What the joined customer adds to an order.
const MORE: &str = r#""name":"Customer 12345","tier":"silver","country":"DE"}"#;

pub fn run(bench: &Bench, job: &Throughput) -> anyhow::Result<()> {
    consume(bench)?;
    bench.create("parts-enriched", &[])?;
    bench.create("parts-changelog", &[])?;
    produce(bench)?;
    commit(bench, job)
}

fn open(bench: &Bench, id: &str) -> anyhow::Result<KafkaLog> {
    Ok(KafkaLog::open(KafkaLogConfig {
        connection: bench.connection(),
        transactional_id: id.to_owned(),
        group: id.to_owned(),
        transaction_timeout_ms: TRANSACTION_TIMEOUT_MS,
        outputs: vec!["parts-enriched".to_owned()],
        internal: InternalTopics { create: true, replication_factor: 1 },
        until_end: false,
        fetched_bytes: FETCHED_BYTES,
        trim_every_ms: TRIM_EVERY_MS,
    })?)
}

/// Reads from Kafka until so many records are there.
fn consume(bench: &Bench) -> anyhow::Result<()> {
    let mut log = open(bench, "parts-consume")?;
    for partition in 0..PARTITIONS {
        log.assign(assignment(partition))?;
    }
    let ((), seconds) = measured(|| {
        let (begin, mut read) = (Instant::now(), 0);
        while read < ORDERS {
            ensure!(begin.elapsed() < DEADLINE, "{read} of {ORDERS} records were read");
            let fetch = log.poll(&|_| Some(Offset(i64::MAX)), BATCH_RECORDS)?;
            match fetch {
                Some(fetch) => read += std::hint::black_box(fetch.records).len(),
                None => log.wait(COMMIT_MS),
            }
        }
        Ok(())
    })?;
    println!("  consume                              {}", rate(ORDERS, seconds));
    Ok(())
}

fn assignment(partition: i32) -> Assignment {
    Assignment {
        topic: "history-orders".to_owned(),
        partition: Partition(partition),
        next: Offset(0),
        rank: 0,
        group: "parts".to_owned(),
    }
}

/// Writes rows as long as those of the job, a batch to each partition in turn, with a commit each 100 ms.
fn produce(bench: &Bench) -> anyhow::Result<()> {
    let mut log = open(bench, "parts-produce")?;
    log.initialise()?;
    let rows: Vec<(String, String)> = (0..BATCH_RECORDS).map(row).collect();
    let mut outbox = Outbox::default();
    let topic = outbox.topic_index("parts-enriched");
    let ((), seconds) = measured(|| {
        let mut begin = Instant::now();
        for batch in 0..ORDERS / BATCH_RECORDS {
            let partition = Partition(batch as i32 % PARTITIONS);
            for (key, value) in &rows {
                outbox.push(topic, partition, Some(BEGIN_MS), Some(key.as_bytes()), Some(value.as_bytes()), Vec::new());
            }
            log.send(&mut outbox)?;
            if begin.elapsed() >= Duration::from_millis(COMMIT_MS) {
                log.commit()?;
                begin = Instant::now();
            }
        }
        Ok(log.commit()?)
    })?;
    println!("  produce, commits in it               {}", rate(ORDERS / BATCH_RECORDS * BATCH_RECORDS, seconds));
    Ok(())
}

fn row(i: usize) -> (String, String) {
    let mut value = String::new();
    data::order(i, BEGIN_MS, &mut value);
    value.pop();
    (data::customer_id(data::customer_of(i)), format!("{value},{MORE}"))
}

/// Commits with one record in each partition of output and changelog, one after the other.
fn commit(bench: &Bench, job: &Throughput) -> anyhow::Result<()> {
    let mut log = open(bench, "parts-commit")?;
    log.initialise()?;
    let mut outbox = Outbox::default();
    let topics = ["parts-enriched", "parts-changelog"].map(|topic| outbox.topic_index(topic));
    let (begin, broker) = (Instant::now(), bench.broker.seconds()?);
    let ((), seconds) = measured(|| {
        for _ in 0..COMMITS {
            for (topic, partition) in topics.iter().flat_map(|t| (0..PARTITIONS).map(move |p| (t, p))) {
                outbox.push(*topic, Partition(partition), Some(BEGIN_MS), Some(b"key"), Some(b"value"), Vec::new());
            }
            log.send(&mut outbox)?;
            log.commit()?;
        }
        Ok(())
    })?;
    let each = |seconds: f64| seconds * 1e3 / COMMITS as f64;
    let (ours, broker, wall) =
        (each(seconds), each(bench.broker.seconds()? - broker), each(begin.elapsed().as_secs_f64()));
    let rows = job.records_per_second * COMMIT_MS as f64 / 1e3;
    println!(
        "  commit, {:>2} partitions                {ours:>10.2} ms CPU ours, {broker:.2} ms the broker's, {wall:.1} ms of wall time",
        2 * PARTITIONS
    );
    println!("    over the {rows:.0} records of one       {:>10.0} ns a record", ours * 1e6 / rows);
    Ok(())
}

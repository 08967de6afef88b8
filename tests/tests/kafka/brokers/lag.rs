//! What a worker says of its lag, against a real broker. The rules themselves are in `core::lag`.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use millrace_core::assignment::{Assignment, Placement};
use millrace_core::ids::{Generation, Partition};
use millrace_kafka_harness::{Kafka, Signal, wait};
use millrace_runtime::log::kafka::{KafkaLog, KafkaLogConfig};
use millrace_runtime::log::{Log, Outbox};
use millrace_tests::kafka::log_config;
use millrace_tests::kafka::shared as kafka;
use millrace_tests::plan;
use millrace_tests::story::{DEADLINE, Shape, Story, Worker, http};
use serde_json::json;

/// The values of a metric of a source, by partition.
fn values(worker: &Worker, metric: &str, source: &str) -> BTreeMap<i32, f64> {
    let (_, text) = http(&worker.metrics, "/metrics").unwrap();
    let prefix = format!("millrace_source_{metric}{{");
    let ours = |line: &&str| line.starts_with(&prefix) && line.contains(&format!("source=\"{source}\""));
    let value = |line: &str| {
        let partition = line.split("partition=\"").nth(1)?.split('"').next()?.parse().ok()?;
        Some((partition, line.rsplit(' ').next()?.parse().ok()?))
    };
    text.lines().filter(ours).filter_map(value).collect()
}

fn wait_values(worker: &Worker, metric: &str, expected: &[(i32, f64)]) {
    let expected: BTreeMap<i32, f64> = expected.iter().copied().collect();
    let mut seen = BTreeMap::new();
    wait::until(metric, DEADLINE, || {
        seen = values(worker, metric, "orders");
        Ok(seen == expected)
    })
    .unwrap_or_else(|_| panic!("{metric}: {seen:?}, expected {expected:?}\n{}", worker.log()));
}

/// Somebody who writes orders in transactions.
fn writer(story: &Story) -> KafkaLog {
    let plan = plan(&story.yaml(&kafka().bootstrap_servers()));
    let config = log_config(kafka(), &plan);
    let transactional_id = format!("{}-somebody", story.name);
    let outputs = vec![story.topic("orders")];
    let mut log = KafkaLog::open(KafkaLogConfig { transactional_id, outputs, ..config }).unwrap();
    log.initialise().unwrap();
    log
}

fn send(log: &mut KafkaLog, story: &Story, count: i64) {
    let mut outbox = Outbox::default();
    let topic = outbox.topic_index(&story.topic("orders"));
    for id in 0..count {
        // One customer, so one partition.
        let value = json!({"id": id, "customer": 1, "time": 1_000 + id}).to_string();
        outbox.push(topic, Partition(0), Some(1_000 + id), Some(b"1"), Some(value.as_bytes()), Vec::new());
    }
    log.send(&mut outbox).unwrap();
}

#[test]
fn cases_1_14_and_15_markers_are_no_lag_and_an_open_transaction_is_said_apart() {
    let story = Story::new(kafka(), "markers", Shape::Aligned, 1).unwrap();
    let mut somebody = writer(&story);
    send(&mut somebody, &story, 200);
    somebody.commit().unwrap();
    let mut worker = story.worker("state", &[]).unwrap();
    worker.wait_ready().unwrap();
    story.wait_rows(200).unwrap();
    // Behind the last record there is the marker of its transaction.
    wait_values(&worker, "lag_known", &[(0, 1.0)]);
    wait_values(&worker, "lag_records", &[(0, 0.0)]);
    wait_values(&worker, "lag_seconds", &[(0, 0.0)]);
    wait_values(&worker, "blocked_records", &[(0, 0.0)]);
    send(&mut somebody, &story, 1_463);
    wait_values(&worker, "blocked_records", &[(0, 1_463.0)]);
    wait_values(&worker, "lag_records", &[(0, 0.0)]);
    wait_values(&worker, "lag_seconds", &[(0, 0.0)]);
    wait::until("the time to grow", DEADLINE, || Ok(values(&worker, "blocked_seconds", "orders")[&0] > 0.5)).unwrap();
    somebody.abort().unwrap();
    // Aborted records never count.
    wait_values(&worker, "blocked_records", &[(0, 0.0)]);
    wait_values(&worker, "blocked_seconds", &[(0, 0.0)]);
    wait_values(&worker, "lag_records", &[(0, 0.0)]);
    assert_eq!(story.rows().unwrap().len(), 200);
    worker.stop().unwrap();
}

#[test]
fn case_17_a_broker_that_does_not_answer_makes_the_lag_unknown_until_it_does() {
    static OWN: OnceLock<Kafka> = OnceLock::new();
    let kafka = OWN.get_or_init(|| Kafka::single().expect("a broker starts"));
    let story = Story::new(kafka, "silent", Shape::Aligned, 1).unwrap();
    let mut worker = story.worker("state", &[]).unwrap();
    worker.wait_ready().unwrap();
    wait_values(&worker, "lag_known", &[(0, 1.0)]);
    kafka.signal(1, Signal::Stop).unwrap();
    wait_values(&worker, "lag_known", &[(0, 0.0)]);
    wait_values(&worker, "lag_records", &[]);
    wait_values(&worker, "lag_seconds", &[]);
    kafka.signal(1, Signal::Continue).unwrap();
    wait_values(&worker, "lag_known", &[(0, 1.0)]);
    wait_values(&worker, "lag_records", &[(0, 0.0)]);
}

#[test]
fn cases_10_and_17_a_task_that_moves_takes_its_series_along() {
    let mut story = Story::new(kafka(), "moving", Shape::Aligned, 2).unwrap();
    let file = story.dir().join("assignment.json");
    let assign = |generation: u64, workers: [u32; 2]| {
        let place = |(partition, worker): (i32, u32)| Placement {
            stage: "joined".to_owned(),
            partition: Partition(partition),
            worker,
            lane: 0,
        };
        let tasks = (0..).zip(workers).map(place).collect();
        let generation = Generation(generation);
        let assignment = Assignment { generation, plan: 1, tasks, ..Assignment::default() };
        let next = file.with_extension("next");
        std::fs::write(&next, serde_json::to_vec(&assignment).unwrap()).unwrap();
        std::fs::rename(next, &file).unwrap();
    };
    assign(1, [0, 0]);
    let path = file.display().to_string();
    story.generate(5);
    let mut first = story.worker("first", &["--worker", "0", "--assignment", &path]).unwrap();
    // A task that there is not is a mistake, and moves nothing.
    let strange =
        r#"{"generation": 9, "plan": 1, "tasks": [{"stage": "joined", "partition": 7, "worker": 0, "lane": 0}]}"#;
    first.wait_ready().unwrap();
    std::fs::write(&file, strange).unwrap();
    wait::until("the mistake", DEADLINE, || Ok(first.log().contains("the pipeline has no task joined/7"))).unwrap();
    assign(1, [0, 0]);
    let mut second = story.worker("second", &["--worker", "1", "--assignment", &path]).unwrap();
    first.wait_ready().unwrap();
    wait_values_of(&first, &[0, 1]);
    story.wait_written(200).unwrap();
    assign(2, [0, 1]);
    wait_values_of(&first, &[0]);
    wait_values_of(&second, &[1]);
    second.wait_ready().unwrap();
    story.wait_written(200).unwrap();
    story.stop_generating().unwrap();
    story.check().unwrap();
    assert!(!second.log().contains("fencing a lane"), "{}", second.log());
    first.stop().unwrap();
    second.stop().unwrap();
}

fn wait_values_of(worker: &Worker, partitions: &[i32]) {
    wait::until("the partitions", DEADLINE, || {
        Ok(values(worker, "lag_known", "orders").into_keys().eq(partitions.iter().copied()))
    })
    .unwrap();
}

//! The harness itself: what tests of the product rely on.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use millrace_kafka_harness::{DEADLINE, Kafka, Message, Record, Signal, wait};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

const RECORDS: usize = 10_000;

fn messages() -> impl Iterator<Item = Message> {
    (0..RECORDS).map(|i| Message::new(format!("k{i}"), format!("v{i}")).on((i % 4) as i32).at(1_000 + i as i64))
}

fn check(records: &[Record]) {
    let written: Vec<Message> = (0..4).flat_map(|p| messages().filter(move |m| m.partition == Some(p))).collect();
    let read = records.iter().map(|r| Message {
        partition: Some(r.partition),
        timestamp_ms: r.timestamp_ms,
        key: r.key.clone(),
        value: r.value.clone(),
        headers: Vec::new(),
    });
    assert!(read.eq(written), "{} records were read", records.len());
}

#[test]
fn what_was_acknowledged_is_there_after_a_kill_and_a_restart() {
    let kafka = Kafka::single().unwrap();
    kafka.create_topic("orders", 4, &[]).unwrap();
    kafka.produce("orders", messages()).unwrap();
    check(&kafka.read_committed("orders").unwrap());
    kafka.kill(1).unwrap();
    kafka.restart(1).unwrap();
    check(&kafka.read_committed("orders").unwrap());
    kafka.signal(1, Signal::Stop).unwrap();
    kafka.signal(1, Signal::Continue).unwrap();
    kafka.stop(1).unwrap();
    kafka.restart(1).unwrap();
    check(&kafka.read_committed("orders").unwrap());
    kafka.delete_topic("orders").unwrap();
    assert!(kafka.read_committed("orders").is_err());
    kafka.delete_group("nobody").unwrap();
}

#[test]
fn a_committed_read_leaves_out_markers_and_what_was_aborted_or_is_open() {
    let kafka = Kafka::single().unwrap();
    kafka.create_topic("out", 1, &[]).unwrap();
    let mut config = kafka.config();
    let producer: BaseProducer = config.set("transactional.id", "t").create().unwrap();
    producer.init_transactions(DEADLINE).unwrap();
    for (value, end) in [("committed", Some(true)), ("aborted", Some(false)), ("also", Some(true)), ("open", None)] {
        producer.begin_transaction().unwrap();
        producer.send(BaseRecord::<str, str>::to("out").payload(value)).map_err(|(e, _)| e).unwrap();
        producer.flush(DEADLINE).unwrap();
        match end {
            Some(true) => producer.commit_transaction(DEADLINE).unwrap(),
            Some(false) => producer.abort_transaction(DEADLINE).unwrap(),
            None => {}
        }
    }
    let values = |records: Vec<Record>| -> Vec<(i64, String)> {
        records.into_iter().map(|r| (r.offset, String::from_utf8(r.value.unwrap()).unwrap())).collect()
    };
    let committed = values(kafka.read_committed("out").unwrap());
    assert_eq!(committed, [(0, "committed".to_owned()), (4, "also".to_owned())]);
    let all = values(kafka.read_uncommitted("out").unwrap());
    let all: Vec<(i64, &str)> = all.iter().map(|(o, v)| (*o, v.as_str())).collect();
    assert_eq!(all, [(0, "committed"), (2, "aborted"), (4, "also"), (6, "open")]);
}

#[test]
fn three_brokers_lose_nothing_when_one_is_killed() {
    let kafka = Kafka::three().unwrap();
    kafka.create_topic("orders", 4, &[]).unwrap();
    kafka.wait_in_sync("orders").unwrap();
    let leader = kafka.leader("orders", 0).unwrap();
    kafka.kill(leader).unwrap();
    kafka.wait_until_led("orders").unwrap();
    kafka.produce("orders", messages()).unwrap();
    check(&kafka.read_committed("orders").unwrap());
    kafka.restart(leader).unwrap();
    kafka.wait_in_sync("orders").unwrap();
    check(&kafka.read_committed("orders").unwrap());
}

#[test]
fn instances_do_not_see_each_other() {
    let (a, b) = (Kafka::single().unwrap(), Kafka::single().unwrap());
    a.create_topic("only-here", 1, &[]).unwrap();
    assert!(b.read_committed("only-here").is_err());
    assert_ne!(a.cluster_id(), b.cluster_id());
    let (dir, pid) = (a.dir().to_owned(), a.pid(1).unwrap());
    drop(a);
    assert!(!dir.exists());
    assert!(!process_exists(pid));
}

fn process_exists(pid: u32) -> bool {
    PathBuf::from(format!("/proc/{pid}")).exists()
}

#[test]
fn nothing_outlives_a_process_that_was_killed() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace-kafka"));
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut value = |name: &str| {
        let line = lines.next().expect("a line").unwrap();
        line.strip_prefix(name).and_then(|l| l.strip_prefix('=')).expect("name and value").to_owned()
    };
    value("bootstrap.servers");
    let dir = PathBuf::from(value("dir"));
    let pid: u32 = value("pid").parse().unwrap();
    assert!(process_exists(pid) && dir.exists());
    process.kill().unwrap();
    process.wait().unwrap();
    wait::until("the guard's work", DEADLINE, || Ok(!process_exists(pid) && !dir.exists())).unwrap();
}

//! The job from Kafka to Kafka, exactly once: its throughput, the floor below it, the parts that are Kafka's, and the
//! latency at a steady rate. One broker as an operator would run it, on the same machine, by loopback.

use millrace_core::plan::Partitioner;
use millrace_kafka_harness::{Kafka, Options, Tuning};
use millrace_runtime::log::kafka::connection::Connection;
use millrace_tests::process::Process;

use crate::data::{self, BEGIN_MS, CUSTOMERS};
use feed::Feed;

mod feed;
mod floor;
mod job;
mod latency;
mod parts;

const PARTITIONS: i32 = 8;
/// Enough for eight seconds and more behind the warm-up.
const ORDERS: usize = 6_000_000;
const COMMIT_MS: u64 = 100;

/// The broker and who measures it.
pub struct Bench {
    kafka: Kafka,
    broker: Process,
}

impl Bench {
    fn connection(&self) -> Connection {
        Connection::plain(self.kafka.bootstrap_servers())
    }

    fn create(&self, topic: &str, more: &[(&str, &str)]) -> anyhow::Result<()> {
        self.kafka.create_topic(topic, PARTITIONS, more)
    }
}

pub fn run() -> anyhow::Result<()> {
    let kafka = Kafka::start(&Options { heap_mb: 512, tuning: Tuning::Speed, ..Options::default() })?;
    let broker = Process::of(kafka.pid(1).ok_or_else(|| anyhow::anyhow!("the broker has ended"))?);
    let bench = Bench { kafka, broker };
    fill(&bench)?;
    println!("\nKafka to Kafka, exactly once, a commit each {COMMIT_MS} ms, {PARTITIONS} partitions, {ORDERS} orders");
    // The floor comes first, so that the broker's code is compiled when the job begins.
    println!("\nthe floor: read and write the same orders in transactions, and nothing else");
    let floor = floor::run(&bench)?;
    println!("\nthe whole job");
    let job = job::run(&bench)?;
    println!("  it takes {:.2} times the CPU of the floor", floor / job.records_per_cpu_second);
    println!("\nparts of it alone");
    parts::run(&bench, &job)?;
    println!("\nlatency, from a record's timestamp to a read_committed reader");
    latency::run(&bench)
}

/// Writes the customers and the orders of the past.
fn fill(bench: &Bench) -> anyhow::Result<()> {
    bench.create("customers", &[("cleanup.policy", "compact")])?;
    let mut feed = Feed::new(&bench.kafka, 10)?;
    for c in 0..CUSTOMERS {
        feed.send("customers", &data::customer_id(c), BEGIN_MS - 1, data::customer(c).as_bytes())?;
    }
    feed.flush()?;
    bench.create("history-orders", &[])?;
    let mut text = String::new();
    for i in 0..ORDERS {
        let time_ms = BEGIN_MS + i as i64;
        data::order(i, time_ms, &mut text);
        feed.send("history-orders", &data::customer_id(data::customer_of(i)), time_ms, text.as_bytes())?;
    }
    feed.flush()
}

fn partition(key: &str) -> i32 {
    Partitioner::Murmur2.partition(key.as_bytes(), PARTITIONS).0
}

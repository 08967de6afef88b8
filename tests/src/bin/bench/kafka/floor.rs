//! What reading and writing the same records costs with the same client library and settings, and nothing in between:
//! the loop that somebody would write by hand, with the library's Rust wrapper.

use std::time::{Duration, Instant};

use anyhow::Context;
use millrace_kafka_harness::{DEADLINE, wait};
use millrace_runtime::log::kafka::connection::FETCHED_BYTES;
use millrace_tests::process::{measured, rate};
use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use super::feed::assign;
use super::{Bench, COMMIT_MS, ORDERS};

const BATCH_BYTES: usize = 1_000_000;
/// So often delivery reports are taken.
const REPORTS_EVERY: usize = 1024;

/// Returns records per CPU second.
pub fn run(bench: &Bench) -> anyhow::Result<f64> {
    bench.create("floor-copy", &[])?;
    let connection = bench.connection();
    let consumer: BaseConsumer = connection.consumer("floor", FETCHED_BYTES).create().context("make a consumer")?;
    assign(&consumer, "history-orders")?;
    let producer: BaseProducer =
        connection.producer("floor", 60_000, BATCH_BYTES).create().context("make a producer")?;
    producer.init_transactions(DEADLINE).context("take the transactional id")?;
    let broker = bench.broker.seconds()?;
    let ((), seconds) = measured(|| copy(&consumer, &producer))?;
    let broker = bench.broker.seconds()? - broker;
    println!("  our process                          {}", rate(ORDERS, seconds));
    println!("  the broker                           {}", rate(ORDERS, broker));
    Ok(ORDERS as f64 / seconds)
}

fn copy(consumer: &BaseConsumer, producer: &BaseProducer) -> anyhow::Result<()> {
    let mut copied = 0;
    while copied < ORDERS {
        producer.begin_transaction().context("begin a transaction")?;
        let begin = Instant::now();
        while copied < ORDERS && begin.elapsed() < Duration::from_millis(COMMIT_MS) {
            let message = match consumer.poll(Duration::from_millis(10)) {
                None | Some(Err(KafkaError::PartitionEOF(_))) => continue,
                Some(message) => message.context("read a record")?,
            };
            let record = BaseRecord::to("floor-copy")
                .key(message.key().unwrap_or_default())
                .payload(message.payload().unwrap_or_default())
                .timestamp(message.timestamp().to_millis().unwrap_or(0))
                .partition(message.partition());
            producer.send(record).map_err(|(error, _)| error).context("write a record")?;
            copied += 1;
            if copied % REPORTS_EVERY == 0 {
                producer.poll(Duration::ZERO);
            }
        }
        // What lingers is sent by this; its own wait is in steps of 100 ms.
        producer.flush(Duration::ZERO).ok();
        wait::until("the records to be delivered", DEADLINE, || {
            producer.poll(Duration::ZERO);
            Ok(producer.in_flight_count() == 0)
        })?;
        let group = consumer.group_metadata().context("the consumer has a group")?;
        producer.send_offsets_to_transaction(&consumer.position()?, &group, DEADLINE).context("add the offsets")?;
        producer.commit_transaction(DEADLINE).context("commit")?;
    }
    Ok(())
}

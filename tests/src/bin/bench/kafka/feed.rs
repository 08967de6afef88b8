//! A producer of the world outside, and a reader of what came of it.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_kafka_harness::{DEADLINE, Kafka, wait};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::BorrowedMessage;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{Offset, TopicPartitionList};

use super::{PARTITIONS, partition};

pub struct Feed(ThreadedProducer<DefaultProducerContext>);

impl Feed {
    pub fn new(kafka: &Kafka, linger_ms: u32) -> anyhow::Result<Self> {
        let mut config = kafka.config();
        config
            .set("enable.idempotence", "true")
            .set("linger.ms", linger_ms.to_string())
            .set("batch.size", "131072")
            .set("compression.type", "lz4");
        Ok(Self(config.create().context("make a producer")?))
    }

    pub fn send(&mut self, topic: &str, key: &str, timestamp_ms: i64, value: &[u8]) -> anyhow::Result<()> {
        let record = BaseRecord::to(topic).key(key).payload(value).timestamp(timestamp_ms).partition(partition(key));
        let mut left = Some(record);
        wait::until("room for a record", DEADLINE, || {
            let Some(record) = left.take() else { return Ok(true) };
            match self.0.send(record) {
                Ok(()) => Ok(true),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                    left = Some(back);
                    Ok(false)
                }
                Err((error, _)) => Err(error).context("produce a record"),
            }
        })
    }

    pub fn flush(&self) -> anyhow::Result<()> {
        self.0.flush(DEADLINE).context("deliver the records")
    }
}

/// All partitions of a topic, from their beginning.
pub fn assign(consumer: &BaseConsumer, topic: &str) -> anyhow::Result<()> {
    let mut list = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        list.add_partition_offset(topic, partition, Offset::Beginning)?;
    }
    consumer.assign(&list).with_context(|| format!("assign the partitions of {topic}"))
}

/// Gives every record of a topic to `visit`, until all of its partitions have ended.
pub fn read_all(
    kafka: &Kafka,
    topic: &str,
    mut visit: impl FnMut(&BorrowedMessage<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let consumer = kafka.reader(topic)?;
    let mut ended = BTreeSet::new();
    while ended.len() < PARTITIONS as usize {
        let next = consumer.poll(Duration::from_secs(10));
        ensure!(next.is_some(), "read {topic}: nothing came for 10 s");
        match next.transpose() {
            Ok(message) => message.iter().try_for_each(&mut visit)?,
            Err(KafkaError::PartitionEOF(partition)) => drop(ended.insert(partition)),
            Err(error) => return Err(error).with_context(|| format!("read {topic}")),
        }
    }
    Ok(())
}

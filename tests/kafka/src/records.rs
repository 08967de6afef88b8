//! Writing and reading records, outside of what is tested.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, DeliveryResult, Header, Headers, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{ClientContext, Offset, TopicPartitionList};

use crate::{DEADLINE, Kafka, random, wait};

/// A record to write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// `None`: by the key's hash, as librdkafka's default does it (not Java's).
    pub partition: Option<i32>,
    pub timestamp_ms: Option<i64>,
    pub key: Option<Vec<u8>>,
    /// `None`: a tombstone.
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Vec<u8>)>,
}

impl Message {
    pub fn new(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        Self { key: Some(key.into()), value: Some(value.into()), ..Self::default() }
    }

    pub fn on(self, partition: i32) -> Self {
        Self { partition: Some(partition), ..self }
    }

    pub fn at(self, timestamp_ms: i64) -> Self {
        Self { timestamp_ms: Some(timestamp_ms), ..self }
    }
}

/// A record as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub partition: i32,
    pub offset: i64,
    pub timestamp_ms: Option<i64>,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Vec<u8>)>,
}

impl From<&BorrowedMessage<'_>> for Record {
    fn from(message: &BorrowedMessage<'_>) -> Self {
        let header = |h: Header<'_, &[u8]>| (h.key.to_owned(), h.value.unwrap_or(&[]).to_vec());
        Self {
            partition: message.partition(),
            offset: message.offset(),
            timestamp_ms: message.timestamp().to_millis(),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            headers: message.headers().into_iter().flat_map(|hs| hs.iter().map(header)).collect(),
        }
    }
}

/// Keeps the first delivery that failed.
#[derive(Default)]
struct FirstFailure(Mutex<Option<KafkaError>>);

impl ClientContext for FirstFailure {
    fn log(&self, _level: RDKafkaLogLevel, _facility: &str, _text: &str) {}
}

impl ProducerContext for FirstFailure {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if let Err((error, _)) = result
            && let Ok(mut first) = self.0.lock()
        {
            first.get_or_insert(error.clone());
        }
    }
}

/// Writes records, as often as is wanted.
pub struct Writer(ThreadedProducer<FirstFailure>);

impl Writer {
    /// Writes records in order and returns once all replicas in sync have them.
    pub fn produce(&self, topic: &str, messages: impl IntoIterator<Item = Message>) -> anyhow::Result<()> {
        self.enqueue(topic, messages)?;
        self.delivered()
    }

    /// Takes records to write, in order, and waits for nobody: while brokers are away, what is new goes on being made.
    pub fn enqueue(&self, topic: &str, messages: impl IntoIterator<Item = Message>) -> anyhow::Result<()> {
        messages.into_iter().try_for_each(|message| send(&self.0, topic, &message))
    }

    /// Returns once all replicas in sync have what was taken.
    pub fn delivered(&self) -> anyhow::Result<()> {
        // `flush` itself has a floor of 100 ms.
        wait::until("records to be delivered", DEADLINE, || Ok(self.0.in_flight_count() == 0))?;
        let first = self.0.context().0.lock().ok().and_then(|mut first| first.take());
        first.map_or(Ok(()), |error| Err(error).context("deliver a record"))
    }
}

impl Kafka {
    pub fn writer(&self) -> anyhow::Result<Writer> {
        let mut config = self.config();
        config.set("enable.idempotence", "true").set("linger.ms", "1").set("compression.type", "lz4");
        Ok(Writer(config.create_with_context(FirstFailure::default()).context("make a producer")?))
    }

    /// Writes records in order and returns once all replicas in sync have them.
    pub fn produce(&self, topic: &str, messages: impl IntoIterator<Item = Message>) -> anyhow::Result<()> {
        self.writer()?.produce(topic, messages)
    }

    /// All records of a topic that a `read_committed` reader sees now, by partition and offset. Transaction markers and
    /// aborted records are not among them; an open transaction hides what lies behind its first record.
    pub fn read_committed(&self, topic: &str) -> anyhow::Result<Vec<Record>> {
        self.read(topic, "read_committed")
    }

    /// The same with the records of open and aborted transactions.
    pub fn read_uncommitted(&self, topic: &str) -> anyhow::Result<Vec<Record>> {
        self.read(topic, "read_uncommitted")
    }

    /// A `read_committed` consumer of all partitions of a topic from their beginning, which says where each one ends.
    pub fn reader(&self, topic: &str) -> anyhow::Result<BaseConsumer> {
        self.consumer(topic, "read_committed")
    }

    fn consumer(&self, topic: &str, isolation: &str) -> anyhow::Result<BaseConsumer> {
        let mut config = self.config();
        config
            .set("group.id", format!("read-{}", random::kafka_uuid()))
            .set("enable.auto.commit", "false")
            .set("auto.offset.reset", "error")
            .set("isolation.level", isolation)
            // It comes where a fetch has found the end that the isolation level allows.
            .set("enable.partition.eof", "true");
        let consumer: BaseConsumer = config.create().context("make a consumer")?;
        let metadata = consumer.fetch_metadata(Some(topic), DEADLINE).context("fetch metadata")?;
        let mut assignment = TopicPartitionList::new();
        for partition in metadata.topics().iter().flat_map(|t| t.partitions()) {
            assignment.add_partition_offset(topic, partition.id(), Offset::Beginning)?;
        }
        ensure!(assignment.count() > 0, "topic {topic} does not exist");
        consumer.assign(&assignment).context("assign partitions")?;
        Ok(consumer)
    }

    fn read(&self, topic: &str, isolation: &str) -> anyhow::Result<Vec<Record>> {
        let consumer = self.consumer(topic, isolation)?;
        let mut left: Vec<i32> = consumer.assignment()?.elements().iter().map(|p| p.partition()).collect();
        let mut records = Vec::new();
        let start = Instant::now();
        while !left.is_empty() {
            ensure!(start.elapsed() < DEADLINE, "read {topic}: partitions {left:?} did not come to their end");
            match consumer.poll(Duration::from_secs(1)) {
                None => {}
                Some(Ok(message)) => records.push(Record::from(&message)),
                Some(Err(KafkaError::PartitionEOF(partition))) => left.retain(|p| *p != partition),
                Some(Err(error)) if passing(&error) => {}
                Some(Err(error)) => return Err(error).with_context(|| format!("read {topic}")),
            }
        }
        records.sort_by_key(|r| (r.partition, r.offset));
        Ok(records)
    }
}

/// Errors that the client gets over by itself.
fn passing(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(RDKafkaErrorCode::BrokerTransportFailure | RDKafkaErrorCode::AllBrokersDown | RDKafkaErrorCode::Resolve)
    )
}

fn send(producer: &ThreadedProducer<FirstFailure>, topic: &str, message: &Message) -> anyhow::Result<()> {
    let mut record: BaseRecord<'_, [u8], [u8]> = BaseRecord::to(topic);
    record.partition = message.partition;
    record.timestamp = message.timestamp_ms;
    record.key = message.key.as_deref();
    record.payload = message.value.as_deref();
    if !message.headers.is_empty() {
        let add = |headers: OwnedHeaders, (key, value): &(String, Vec<u8>)| {
            headers.insert(Header { key, value: Some(value) })
        };
        record.headers = Some(message.headers.iter().fold(OwnedHeaders::new(), add));
    }
    loop {
        match producer.send(record) {
            Ok(()) => return Ok(()),
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                record = back;
                // Waits for the queue to drain some, by waiting for all of it.
                producer.flush(DEADLINE).context("flush")?;
            }
            Err((error, _)) => return Err(error).context("produce a record"),
        }
    }
}

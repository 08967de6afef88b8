//! The control topic: one partition, compacted, written outside of the lanes' transactions, so that an open transaction
//! never hides a word of it.
//!
//! An append is acknowledged by all replicas in sync, or its outcome is unknown, which ends the process: the record may
//! still come, and a second one would claim twice.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use millrace_core::control::Change;
use millrace_core::ids::Offset;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, ProducerContext, PurgeConfig};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{ClientContext, Message, Offset as KafkaOffset, TopicPartitionList};

use super::connection::{Connection, FETCHED_BYTES};
use super::native::{Client, Kind};
use super::topics::{self, Admin, Logged};
use super::{InternalTopics, fault, lookup, passing};
use crate::clock;
use crate::log::{InternalKind, LogError};

/// An append without an answer for so long has an unknown outcome.
const APPEND_MS: u64 = 120_000;
/// A read of what is known to be there is given up after so long.
const READ_MS: u64 = 120_000;
const POLL_MS: u64 = 100;
/// The wrapper's producer polls for as long as it may, report or not: each append takes at least so long.
const REPORT_MS: u64 = 2;
const PARTITION: i32 = 0;

type Delivered = Result<i64, RDKafkaErrorCode>;

/// Hands delivery reports to whoever waits for them, and log lines to our log.
struct Deliveries(SyncSender<Delivered>);

impl ClientContext for Deliveries {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        Logged.log(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        Logged.error(error, reason);
    }
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let delivered = match result {
            Ok(message) => Ok(message.offset()),
            Err((error, _)) => Err(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail)),
        };
        if self.0.try_send(delivered).is_err() {
            tracing::debug!("the control topic was closed before a report came");
        }
    }
}

pub struct ControlTopic {
    name: String,
    producer: BaseProducer<Deliveries>,
    delivered: Receiver<Delivered>,
    consumer: BaseConsumer<Logged>,
    next: i64,
}

impl ControlTopic {
    /// Connects, and makes the topic if it is not there and we are to.
    pub fn open(connection: &Connection, name: &str, internal: &InternalTopics) -> Result<Self, LogError> {
        let probe = Client::new(Kind::Consumer, &connection.consumer(name, FETCHED_BYTES))
            .map_err(|text| fault("make a consumer", &text, false))?;
        match lookup::describe(&probe, name)? {
            Some(info) if info.partitions == 1 => {}
            Some(info) => {
                return Err(LogError::User(format!(
                    "control topic '{name}' has {} partitions and must have one: it is somebody else's; choose another spec.kafka.internal.prefix",
                    info.partitions
                )));
            }
            None if internal.create => {
                Admin::connect(&connection.client())?.create(name, InternalKind::Control, 1, internal)?;
                topics::wait_until(&probe, name, 1)?;
            }
            None => return Err(topics::required(name, InternalKind::Control, 1)),
        }
        Self::connect(connection, name, KafkaOffset::Beginning, 0)
    }

    /// Goes on with new clients. No append is under way, since each is waited for.
    pub fn reconnect(&mut self, connection: &Connection) -> Result<(), LogError> {
        *self = Self::connect(connection, &self.name, KafkaOffset::Offset(self.next), self.next)?;
        Ok(())
    }

    fn connect(connection: &Connection, name: &str, from: KafkaOffset, next: i64) -> Result<Self, LogError> {
        let broken = topics::client_error;
        let mut config = connection.consumer(name, FETCHED_BYTES);
        // Whoever reads it knows up to where.
        config.set("enable.partition.eof", "false");
        // One append is under way at a time.
        let (sender, delivered) = sync_channel(1);
        let appender = connection.appender(APPEND_MS);
        let producer = appender.create_with_context(Deliveries(sender)).map_err(broken)?;
        let consumer: BaseConsumer<Logged> = config.create_with_context(Logged).map_err(broken)?;
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(name, PARTITION, from).map_err(broken)?;
        consumer.assign(&list).map_err(broken)?;
        Ok(Self { name: name.to_owned(), producer, delivered, consumer, next })
    }

    fn fault(&self, what: &str, text: &str, retry: bool) -> LogError {
        fault(&format!("{what} control topic '{}'", self.name), text, retry)
    }

    /// Appends and waits until that is known.
    pub fn append(&mut self, change: &Change) -> Result<Offset, LogError> {
        let key = change.key().to_string();
        let value = match change {
            Change::Put(record) => Some(record.value()),
            Change::Forget(_) => None,
        };
        let mut record = BaseRecord::to(&self.name).partition(PARTITION).key(&key);
        if let Some(value) = &value {
            record = record.payload(value);
        }
        self.producer.send(record).map_err(|(error, _)| self.fault("append to", &error.to_string(), false))?;
        let start = clock::steady_ms();
        loop {
            self.producer.poll(Duration::from_millis(REPORT_MS));
            match self.delivered.try_recv() {
                Ok(Ok(offset)) => return Ok(Offset(offset)),
                Ok(Err(code)) => return Err(self.fault("append to", &code.to_string(), false)),
                Err(_) if clock::steady_ms() - start > 2 * APPEND_MS => {
                    return Err(self.fault("append to", "whether it was written is not known", false));
                }
                Err(_) => {}
            }
        }
    }

    /// What has come since the last read, without waiting.
    pub fn read(&mut self) -> Result<Vec<(Offset, Change)>, LogError> {
        self.read_for(Duration::ZERO)
    }

    /// Reads up to and with a position, which must be there.
    pub fn read_to(&mut self, to: Offset) -> Result<Vec<(Offset, Change)>, LogError> {
        let start = clock::steady_ms();
        let mut entries = Vec::new();
        while self.next <= to.0 {
            entries.extend(self.read_for(Duration::from_millis(POLL_MS))?);
            if clock::steady_ms() - start > READ_MS {
                return Err(self.fault("read", "nothing came for too long", true));
            }
        }
        Ok(entries)
    }

    /// Reads up to where the topic ends now.
    pub fn read_all(&mut self) -> Result<Vec<(Offset, Change)>, LogError> {
        let start = clock::steady_ms();
        let end = loop {
            match self.consumer.fetch_watermarks(&self.name, PARTITION, Duration::from_millis(READ_MS)) {
                Ok((_, end)) => break end,
                Err(error) => {
                    let again = error.rdkafka_error_code().is_some_and(passing);
                    if !again || clock::steady_ms() - start > READ_MS {
                        return Err(self.fault("look up the end of", &error.to_string(), again));
                    }
                    clock::pause_ms(POLL_MS);
                }
            }
        };
        self.read_to(Offset(end - 1))
    }

    /// The position behind what was read.
    pub fn next(&self) -> Offset {
        Offset(self.next)
    }

    fn read_for(&mut self, mut wait: Duration) -> Result<Vec<(Offset, Change)>, LogError> {
        let mut entries = Vec::new();
        while let Some(polled) = self.consumer.poll(wait) {
            wait = Duration::ZERO;
            let message = match polled {
                Ok(message) => message,
                Err(error) if error.rdkafka_error_code().is_some_and(passing) => continue,
                Err(error) => return Err(self.fault("read", &error.to_string(), false)),
            };
            let key = message.key().and_then(|key| str::from_utf8(key).ok()).unwrap_or_default();
            let change = Change::parse(key, message.payload());
            let change = change.map_err(|error| LogError::User(format!("control topic '{}': {error}", self.name)))?;
            self.next = message.offset() + 1;
            entries.push((Offset(message.offset()), change));
        }
        Ok(entries)
    }
}

impl Drop for ControlTopic {
    fn drop(&mut self) {
        // Every append was waited for. What is left is of nobody's, and a broker that is gone is not waited for.
        self.producer.purge(PurgeConfig::default().queue().inflight());
    }
}

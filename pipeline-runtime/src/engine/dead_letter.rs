//! Dead letters: records and rows that could not be used, with where they came from and why.
//!
//! A record that cannot be read keeps its key, value and headers byte for byte. A row that a step sends here is written
//! as JSON, as it was at that step. Headers say the rest; see the `HEADER_` constants. Nothing here can fail: a record
//! without key, value or headers is a dead letter like any other.

use millrace_core::ids::{Offset, Partition};
use millrace_core::plan::Partitioner;

use crate::log::{Header, Outbox, Record, TopicIndex};

/// What the names of our headers begin with.
const HEADER_PREFIX: &str = "millrace-";
pub const HEADER_CODE: &str = "millrace-error-code";
pub const HEADER_TEXT: &str = "millrace-error-text";
/// The topic that the record was read from.
pub const HEADER_SOURCE: &str = "millrace-source";
pub const HEADER_PARTITION: &str = "millrace-partition";
pub const HEADER_OFFSET: &str = "millrace-offset";
pub const HEADER_TIMESTAMP: &str = "millrace-timestamp";
/// Milliseconds; only for a row that a step gave up, and whose stream has event time.
pub const HEADER_EVENT_TIME: &str = "millrace-event-time";
/// How often the record became a dead letter: it counts on when a dead letter is sent back to its topic.
pub const HEADER_ATTEMPTS: &str = "millrace-attempts";
/// The step that gave the row up; absent for a record that could not be read.
pub const HEADER_STEP: &str = "millrace-step";

/// Only where the record was cut to fit: how large it was, headers included.
pub const HEADER_WHOLE_BYTES: &str = "millrace-whole-bytes";

/// What a header takes besides its name and value, at most.
const HEADER_OVERHEAD: usize = 10;
/// An error text longer than this is cut.
const TEXT_BYTES_MAX: usize = 1024;

/// Where a dead letter came from.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    pub topic: &'a str,
    pub partition: Partition,
    pub offset: Offset,
    pub timestamp_ms: Option<i64>,
}

/// A row that a step gave up.
#[derive(Clone, Copy, Debug)]
pub struct GivenUp<'a> {
    pub step: &'a str,
    pub row: &'a [u8],
    pub event_time_ms: Option<i64>,
}

/// The dead-letter topic of a pipeline that has one.
#[derive(Clone, Copy, Debug)]
pub struct DeadLetters {
    topic: TopicIndex,
    partitions: i32,
    /// The largest record that the topic takes.
    record_bytes_max: usize,
}

impl DeadLetters {
    pub fn new(topic: TopicIndex, partitions: i32, record_bytes_max: Option<usize>) -> Self {
        Self { topic, partitions, record_bytes_max: record_bytes_max.unwrap_or(usize::MAX) }
    }

    /// A record that could not be read.
    pub fn record(self, outbox: &mut Outbox, origin: Origin<'_>, record: &Record<'_>, code: &str, text: &str) {
        // A dead letter that was sent back to its topic brings our headers along: they are replaced, and counted on from.
        let ours = |h: &&Header| h.name.starts_with(HEADER_PREFIX);
        let before = record.headers.iter().find(|h| h.name == HEADER_ATTEMPTS);
        let before = before.and_then(|h| std::str::from_utf8(&h.value).ok()?.parse::<u32>().ok()).unwrap_or(0);
        let mut headers: Vec<Header> = record.headers.iter().filter(|h| !ours(h)).cloned().collect();
        headers.extend(reason(origin, before.saturating_add(1), code, text));
        let partition = self.partition(record.key, origin);
        self.push(outbox, (partition, record.timestamp_ms), record.key, record.value, headers);
    }

    /// A row that a step gave up, as JSON: with the columns that the pipeline uses from there on.
    pub fn row(self, outbox: &mut Outbox, origin: Origin<'_>, given_up: GivenUp<'_>, code: &str, text: &str) {
        let GivenUp { step, row, event_time_ms } = given_up;
        let mut headers: Vec<Header> = reason(origin, 1, code, text).into();
        headers.push(header(HEADER_STEP, step.to_owned()));
        headers.extend(event_time_ms.map(|time| header(HEADER_EVENT_TIME, time.to_string())));
        self.push(outbox, (self.partition(None, origin), origin.timestamp_ms), None, Some(row), headers);
    }

    /// Cuts what the topic would refuse: the record's own headers and its key go, the value keeps its first bytes. Our
    /// headers say where the whole record is.
    fn push(
        self,
        outbox: &mut Outbox,
        (partition, timestamp_ms): (Partition, Option<i64>),
        mut key: Option<&[u8]>,
        mut value: Option<&[u8]>,
        mut headers: Vec<Header>,
    ) {
        let bytes = |part: Option<&[u8]>| part.map_or(0, <[u8]>::len);
        let header_bytes = |h: &Header| h.name.len() + h.value.len() + HEADER_OVERHEAD;
        let whole = bytes(key) + bytes(value) + headers.iter().map(header_bytes).sum::<usize>();
        if whole > self.record_bytes_max {
            headers.retain(|h| h.name.starts_with(HEADER_PREFIX));
            headers.push(header(HEADER_WHOLE_BYTES, whole.to_string()));
            let left = self.record_bytes_max.saturating_sub(headers.iter().map(header_bytes).sum());
            key = key.filter(|key| key.len() <= left / 2);
            value = value.map(|value| &value[..value.len().min(left - bytes(key))]);
        }
        outbox.push(self.topic, partition, timestamp_ms, key, value, headers);
    }

    /// Records of one key stay together; those without follow their source's partitions.
    fn partition(self, key: Option<&[u8]>, origin: Origin<'_>) -> Partition {
        match key {
            Some(key) => Partitioner::Murmur2.partition(key, self.partitions),
            None => Partition(origin.partition.0 % self.partitions),
        }
    }
}

fn header(name: &str, value: String) -> Header {
    Header { name: name.to_owned(), value: value.into_bytes() }
}

fn reason(origin: Origin<'_>, attempts: u32, code: &str, text: &str) -> [Header; 7] {
    let end = (0..=TEXT_BYTES_MAX.min(text.len())).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
    [
        header(HEADER_CODE, code.to_owned()),
        header(HEADER_TEXT, text[..end].to_owned()),
        header(HEADER_SOURCE, origin.topic.to_owned()),
        header(HEADER_PARTITION, origin.partition.to_string()),
        header(HEADER_OFFSET, origin.offset.to_string()),
        header(HEADER_TIMESTAMP, origin.timestamp_ms.map(|t| t.to_string()).unwrap_or_default()),
        header(HEADER_ATTEMPTS, attempts.to_string()),
    ]
}

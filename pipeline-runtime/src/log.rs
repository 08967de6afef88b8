//! What the engine needs of a log: Kafka, or files on a laptop. One per lane.
//!
//! A log reads partitions from given positions, takes an epoch's records, and makes all of them visible at once or none
//! of them. It keeps no opinion about progress: where to read from is what the epoch markers say (invariant I3).

use std::ops::Range;
use std::path::PathBuf;

use millrace_core::ids::{Offset, Partition};
use millrace_core::plan::StartFrom;

pub mod file;
pub mod kafka;

/// Index into the lane's assignments, in the order in which they were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InputId(pub usize);

/// The rank of an input that is read only where no other one has something.
pub const RANK_LAST: u32 = u32::MAX;

/// A partition that the lane reads.
#[derive(Clone, Debug)]
pub struct Assignment {
    pub topic: String,
    pub partition: Partition,
    /// The next record to read.
    pub next: Offset,
    /// Among heads of equal timestamps the lowest rank is read first.
    pub rank: u32,
    /// The consumer group that its positions are copied to, for people and tools to look at. Nobody reads them back.
    pub group: String,
}

/// A record as it was read.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    pub offset: Offset,
    /// Milliseconds since the epoch, where the record has a timestamp.
    pub timestamp_ms: Option<i64>,
    pub key: Option<&'a [u8]>,
    /// `None`: a tombstone.
    pub value: Option<&'a [u8]>,
    pub headers: &'a [Header],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub name: String,
    pub value: Vec<u8>,
}

/// Records of one input, in order, without a gap that a reader could see.
pub struct Fetch<'a> {
    pub input: InputId,
    pub records: Vec<Record<'a>>,
    /// The next record to read after these.
    pub next: Offset,
}

/// Where an input ends now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// One above the last record that can be read.
    pub offset: Offset,
    /// Wall-clock milliseconds from before the end was looked up.
    pub as_of_ms: i64,
    /// No record will ever follow.
    pub ended: bool,
    /// Timestamp of the record at the read position, if there is one.
    pub head_timestamp_ms: Option<i64>,
    /// What somebody's open transaction hides behind the end.
    pub hidden: Hidden,
}

/// Records that are there and that an open transaction keeps from every `read_committed` reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hidden {
    pub records: i64,
    /// For how long the same transaction has done so.
    pub for_ms: u64,
}

/// What a log knows of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicInfo {
    /// Changes when a topic is deleted and made again, where the log has such ids.
    pub id: Option<String>,
    pub partitions: i32,
}

/// Records on their way out: one byte arena, so that a record costs no allocation.
#[derive(Default)]
pub struct Outbox {
    topics: Vec<String>,
    bytes: Vec<u8>,
    records: Vec<Outgoing>,
}

/// Index into [`Outbox::topic`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicIndex(usize);

struct Outgoing {
    topic: TopicIndex,
    partition: Partition,
    timestamp_ms: Option<i64>,
    key: Option<Range<usize>>,
    value: Option<Range<usize>>,
    headers: Vec<Header>,
}

/// A record in the outbox.
pub struct OutRecord<'a> {
    pub topic: TopicIndex,
    pub partition: Partition,
    pub timestamp_ms: Option<i64>,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    pub headers: &'a [Header],
}

impl Outbox {
    /// Names a topic once; the index is good for the life of the outbox.
    pub fn topic_index(&mut self, name: &str) -> TopicIndex {
        let known = self.topics.iter().position(|t| t == name);
        TopicIndex(known.unwrap_or_else(|| {
            self.topics.push(name.to_owned());
            self.topics.len() - 1
        }))
    }

    pub fn topic(&self, index: TopicIndex) -> &str {
        &self.topics[index.0]
    }

    pub fn push(
        &mut self,
        topic: TopicIndex,
        partition: Partition,
        timestamp_ms: Option<i64>,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: Vec<Header>,
    ) {
        let key = key.map(|k| self.append(k));
        let value = value.map(|v| self.append(v));
        self.records.push(Outgoing { topic, partition, timestamp_ms, key, value, headers });
    }

    fn append(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub fn records(&self) -> impl Iterator<Item = OutRecord<'_>> {
        self.records.iter().map(|r| OutRecord {
            topic: r.topic,
            partition: r.partition,
            timestamp_ms: r.timestamp_ms,
            key: r.key.clone().map(|range| &self.bytes[range]),
            value: r.value.clone().map(|range| &self.bytes[range]),
            headers: &r.headers,
        })
    }

    /// Forgets the records and keeps the topics and the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.records.clear();
    }
}

/// How long our own compacted topics keep deletes: 30 days.
pub const TOMBSTONES_MS: i64 = 30 * 86_400_000;

/// What an internal topic is for, which decides how long its records are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InternalKind {
    /// State changes and markers: the last record of each key stays.
    Changelog,
    /// The same: everything stays until it is trimmed behind a snapshot.
    TrimmedChangelog,
    /// Rows between stages: everything stays until it is trimmed.
    Repartition,
    /// Who runs a task: the last record of each key stays.
    Control,
}

/// What can go wrong with a log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// What the user gave cannot be used as it is.
    #[error("{0}")]
    User(String),
    #[error("{what} {path}")]
    Io { what: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{path} is damaged at byte {at}: {text}")]
    Damaged { path: PathBuf, at: u64, text: String },
    /// The cluster, or the way to it. With `retry` it passes by itself.
    #[error("{what}: {text}")]
    Kafka { what: String, text: String, retry: bool },
    #[error(
        "the record at offset {offset} of partition {partition} of topic '{topic}' is gone, and nothing after it can stand in for it: raise the topic's retention, and restart the pipeline under a new name"
    )]
    OffsetGone { topic: String, partition: Partition, offset: Offset },
    #[error(
        "a transaction that has ended is still open at offset {offset} of partition {partition} of topic '{topic}': the brokers have lost its marker, as they do for a partition that is without a leader when they write it; find it with kafka-transactions.sh find-hanging, and end it there"
    )]
    HangingTransaction { topic: String, partition: Partition, offset: Offset },
    #[error(
        "a record of {bytes} bytes for partition {partition} of topic '{topic}', which takes {bytes_max} at most (max.message.bytes)"
    )]
    RecordTooLarge { topic: String, partition: Partition, bytes: usize, bytes_max: usize },
}

impl LogError {
    /// True for what passes by itself: brokers that restart, leaders that move, answers that are late.
    pub fn passes(&self) -> bool {
        matches!(self, Self::Kafka { retry: true, .. })
    }
}

/// How a commit failed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// Nothing of the epoch is visible or ever will be. The log is ready for another one.
    #[error("the epoch was aborted")]
    Aborted(#[source] LogError),
    /// Somebody else took the log's identity, or the epoch took longer than the brokers allow. Whether the epoch is
    /// visible is as unknown as below: an earlier attempt of the same commit may have succeeded.
    #[error("the epoch was fenced, and whether it is visible only its marker tells")]
    Fenced(#[source] LogError),
    /// Whether the epoch is visible is not known. After [`Log::initialise`] its marker tells.
    #[error("whether the epoch is visible only its marker tells")]
    Unknown(#[source] LogError),
}

impl From<LogError> for CommitError {
    fn from(error: LogError) -> Self {
        Self::Unknown(error)
    }
}

/// Below which offset an input may be read now; `None`: not at all.
pub type Wanted<'a> = &'a dyn Fn(InputId) -> Option<Offset>;

/// A log, as a lane uses it. [`Log::initialise`] comes before everything that writes.
pub trait Log {
    /// `None`: there is no such topic.
    fn topic(&mut self, name: &str) -> Result<Option<TopicInfo>, LogError>;

    /// Which of all logs this is, where there are several. Asked for each task that starts.
    fn cluster_id(&self) -> Option<String> {
        None
    }

    /// For a topic that is compacted and loses nothing else: how long it keeps the deletes of keys, in milliseconds.
    fn compacted(&mut self, _topic: &str) -> Result<Option<i64>, LogError> {
        Ok(None)
    }

    /// Makes sure that an internal topic exists with `partitions` partitions.
    fn create_internal(&mut self, name: &str, kind: InternalKind, partitions: i32) -> Result<(), LogError>;

    /// The first record to read of a partition that was never read before.
    fn start(&mut self, topic: &str, partition: Partition, from: &StartFrom) -> Result<Offset, LogError>;

    /// Where a partition ends now.
    fn end_of(&mut self, topic: &str, partition: Partition) -> Result<Offset, LogError>;

    /// Behind the last record that this lane has committed to a partition of an internal topic.
    fn committed_end(&mut self, topic: &str, partition: Partition) -> Result<Offset, LogError> {
        self.end_of(topic, partition)
    }

    /// How a user makes a topic that is missing.
    fn creating_command(&self, topic: &str) -> String;

    /// Opens a topic for results; `None`: there is no such topic, and topics of the user are never created.
    fn open_output(&mut self, topic: &str) -> Result<Option<TopicInfo>, LogError>;

    /// The largest record that an output takes, key and value together. `None`: there is no limit.
    fn record_bytes_max(&self, _topic: &str) -> Option<usize> {
        None
    }

    fn assign(&mut self, assignment: Assignment) -> Result<InputId, LogError>;

    /// Stops to read an input. Its id may be given to another one.
    fn unassign(&mut self, input: InputId) -> Result<(), LogError>;

    /// The next records of one of the inputs, at most `max`. `None`: there is nothing now.
    fn poll(&mut self, wanted: Wanted<'_>, max: usize) -> Result<Option<Fetch<'_>>, LogError>;

    /// Where an input ends now.
    fn end(&mut self, input: InputId) -> Result<End, LogError>;

    /// Takes the records of the open epoch over and empties the outbox.
    fn send(&mut self, outbox: &mut Outbox) -> Result<(), LogError>;

    /// Makes the open epoch visible, whole. Returns once that is known.
    fn commit(&mut self) -> Result<(), CommitError>;

    /// Drops the open epoch.
    fn abort(&mut self) -> Result<(), LogError>;

    /// Takes the log's identity, at first and after a commit that was fenced or whose outcome is unknown: nobody else
    /// can commit under it any more, and every epoch that was is whole and can be read.
    fn initialise(&mut self) -> Result<(), LogError> {
        self.abort()
    }

    /// The first record that a changelog partition still holds, and its end, once nothing is open in it.
    fn changelog_range(&mut self, topic: &str, partition: Partition) -> Result<Range<Offset>, LogError>;

    /// What a partition holds now, for whoever reads committed records. More may be on its way.
    fn range(&mut self, topic: &str, partition: Partition) -> Result<Range<Offset>, LogError> {
        self.changelog_range(topic, partition)
    }

    /// Reads a part of a changelog partition.
    fn read_changelog(
        &mut self,
        topic: &str,
        partition: Partition,
        range: Range<Offset>,
        visit: &mut dyn FnMut(Record<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()>;

    /// The records of an internal topic below `before` are not needed any more.
    fn trim(&mut self, topic: &str, partition: Partition, before: Offset) -> Result<(), LogError>;

    /// Waits until there may be something new, or until `timeout_ms` has passed.
    fn wait(&mut self, timeout_ms: u64);

    /// True when every input ends for good: a run over it comes to an end.
    fn bounded(&self) -> bool;
}

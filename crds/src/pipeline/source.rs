//! What is read: topics with their key, format, columns and event time; streams and tables.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::step::{Emit, Late, Missing};
use super::text::{ColumnText, NameText, TopicText};
use crate::duration::{Duration, DurationOrNever};
use crate::timestamp::Timestamp;

/// A topic that is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// Name by which steps and SQL refer to it: at most 40 of a-z, 0-9, '-' and '_', beginning with a letter.
    #[schemars(with = "NameText")]
    pub name: String,

    /// The topic, and where reading begins.
    pub kafka: KafkaSource,

    /// What the record keys hold and how they chose their partition. Default: unknown; then steps that need rows by key
    /// repartition the topic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeySpec>,

    /// How the record values are written.
    pub format: FormatSpec,

    /// The columns of a row, by name.
    #[schemars(length(min = 1, max = 500), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub columns: Vec<Column>,

    /// Where a row's event time comes from. Default: none; then no step can use the source's event time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_time: Option<EventTime>,

    /// Makes the source a table: rows by primary key that joins look up. Default: none, the source is a stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<TableSpec>,

    /// What happens to a record that cannot be read. Default: DeadLetter where spec.deadLetter is set, else Stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_error: Option<OnError>,
}

/// The topic of a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KafkaSource {
    /// Name of the topic.
    #[schemars(with = "TopicText")]
    pub topic: String,

    /// Where reading begins. Applies once, when the pipeline starts for the first time. Default: Earliest.
    #[serde(default)]
    pub start_from: StartFrom,
}

/// Where reading begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StartFrom {
    /// Earliest, Latest, Timestamp (with `timestamp`) or Offsets (with `offsets`). Default: Earliest.
    #[serde(default)]
    pub policy: StartPolicy,

    /// With policy Timestamp: the first record of each partition whose record timestamp is not before it. RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Timestamp>,

    /// With policy Offsets: the first offset to read, for every partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 10000), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["partition"]))]
    pub offsets: Option<Vec<PartitionOffset>>,
}

/// Where reading begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StartPolicy {
    /// At the oldest record that the topic still has.
    #[default]
    Earliest,
    /// Behind the newest record at the first start.
    Latest,
    /// At a time.
    Timestamp,
    /// At the given offsets.
    Offsets,
}

/// A position in a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PartitionOffset {
    /// Partition of the topic, from 0.
    #[schemars(range(min = 0, max = 2147483647))]
    pub partition: i32,
    /// First offset to read.
    #[schemars(range(min = 0))]
    pub offset: i64,
}

/// What record keys hold, and how they choose their partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeySpec {
    /// Columns of the row that the key holds, in order.
    #[schemars(with = "Vec<ColumnText>", length(min = 1, max = 16), extend("x-kubernetes-list-type" = "set"))]
    pub columns: Vec<String>,

    /// How the key is written. Default: String.
    #[serde(default)]
    pub format: KeyFormat,

    /// How a key chooses its partition. Default: Murmur2.
    #[serde(default)]
    pub partitioner: Partitioner,
}

/// How a record key is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyFormat {
    /// String or Json. Default: String.
    #[serde(default, rename = "type")]
    pub kind: KeyFormatType,
}

/// How a record key is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum KeyFormatType {
    /// The text of the single key column.
    #[default]
    String,
    /// A JSON object of the key columns, or the bare JSON value of a single one.
    Json,
}

/// How a key chooses its partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Partitioner {
    /// The default of Kafka's Java client for records with a key.
    #[default]
    Murmur2,
    /// The default of librdkafka and the clients that are built on it.
    Crc32,
}

/// How record values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FormatSpec {
    /// Json or DebeziumJson.
    #[serde(rename = "type")]
    pub kind: FormatType,
}

/// How record values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FormatType {
    /// One JSON object a record.
    Json,
    /// Change events of Debezium as JSON, with or without their schema.
    DebeziumJson,
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Column {
    /// Name of the field in the record's value.
    #[schemars(with = "ColumnText")]
    pub name: String,

    /// BOOLEAN, INT, BIGINT, DOUBLE, DECIMAL(p,s), STRING, BYTES, DATE, TIMESTAMP(3|6|9), ARRAY<type> or
    /// ROW<name type, ...>.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 4096))]
    pub data_type: String,

    /// Whether the field may be null or missing. Default: true.
    #[serde(default = "default_nullable")]
    pub nullable: bool,
}

const fn default_nullable() -> bool {
    true
}

/// Where a row's event time comes from, and how far behind the newest one rows may come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventTime {
    /// A column of type TIMESTAMP(3) or TIMESTAMP(6). Default: none, the record's own timestamp is the event time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ColumnText>")]
    pub column: Option<String>,

    /// How far a row may be behind the newest one of its partition before it is late. Default: 0s.
    #[serde(default)]
    pub max_out_of_orderness: Duration,

    /// After how long without a record a partition no longer holds the watermark back; `Never`: it always does.
    /// Default: 30s.
    #[serde(default = "default_idle_timeout")]
    pub idle_timeout: DurationOrNever,

    /// What happens to a row whose event time is far in the future. Default: Clamp beyond 1h.
    #[serde(default)]
    pub future: FutureSpec,
}

const fn default_idle_timeout() -> DurationOrNever {
    DurationOrNever::For(Duration::from_secs(30))
}

impl Default for EventTime {
    fn default() -> Self {
        Self {
            column: None,
            max_out_of_orderness: Duration::ZERO,
            idle_timeout: default_idle_timeout(),
            future: FutureSpec::default(),
        }
    }
}

/// The guard against event times far in the future, which would make all other rows late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FutureSpec {
    /// How far an event time may be ahead of its record's timestamp. Default: 1h.
    #[serde(default = "default_max_skew")]
    pub max_skew: Duration,

    /// What happens to a row beyond it. Default: Clamp.
    #[serde(default)]
    pub policy: FuturePolicy,
}

const fn default_max_skew() -> Duration {
    Duration::from_secs(3_600)
}

impl Default for FutureSpec {
    fn default() -> Self {
        Self { max_skew: default_max_skew(), policy: FuturePolicy::default() }
    }
}

/// What happens to a row whose event time is too far in the future.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FuturePolicy {
    /// The row passes with its own time, and moves the watermark no further than the allowed skew.
    #[default]
    Clamp,
    /// The row counts like any other.
    Accept,
    /// The row goes to the dead-letter topic.
    DeadLetter,
}

/// What makes a source a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TableSpec {
    /// Columns that identify a row. A join's keys are exactly these.
    #[schemars(with = "Vec<ColumnText>", length(min = 1, max = 16), extend("x-kubernetes-list-type" = "set"))]
    pub primary_key: Vec<String>,

    /// Keep old versions of rows, which a temporalJoin needs. Default: none, only the latest row of each key is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versions: Option<Versions>,

    /// Delete rows that were not written for so long, by processing time. spec.state.ttl does not apply to tables.
    /// Default: Never.
    #[serde(default = "never")]
    pub ttl: DurationOrNever,

    /// What joins against this table do where they do not say it themselves, and what joins in SQL do, which has no
    /// words for it. Default: the joins' own defaults.
    #[serde(default)]
    pub defaults: JoinDefaults,
}

pub(super) const fn never() -> DurationOrNever {
    DurationOrNever::Never
}

/// Which versions of a row are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Versions {
    /// How long a version is kept after a newer one replaced it. The latest version is always kept. Default: 7d.
    #[serde(default = "default_retention")]
    pub retention: Duration,
}

const fn default_retention() -> Duration {
    Duration::from_days(7)
}

impl Default for Versions {
    fn default() -> Self {
        Self { retention: default_retention() }
    }
}

/// Defaults of the joins against a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JoinDefaults {
    /// When a temporalJoin emits a row. Default: policy Watermark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emit: Option<Emit>,

    /// What a temporalJoin does with a late row. Default: JoinNow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<Late>,

    /// What a join does with a row that has no partner. Default: Unmatched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<Missing>,
}

/// What happens to a record that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnError {
    /// It goes to the dead-letter topic, which spec.deadLetter must name.
    DeadLetter,
    /// Its task stops there, and the status says at which offset.
    Stop,
    /// It is counted and left out.
    Skip,
}

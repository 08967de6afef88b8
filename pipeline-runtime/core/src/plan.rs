//! The compiled pipeline as data: what a worker runs, what `explain` prints, what is stored when a plan is applied.
//!
//! A plan is stages; a stage is inputs, operators in topological order, and outputs. Expressions stay SQL text over the
//! named columns of their input, so that a stored plan does not depend on a library's encoding; the plan crate binds
//! them. Between stages rows cross an *exchange* (an internal repartition topic).

use serde::{Deserialize, Serialize};

use crate::schema::Column;

/// Raised when a stored plan can no longer be read by an older release.
pub const PLAN_FORMAT: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub format: u32,
    /// Everything we own in Kafka and in storage starts with it.
    pub prefix: String,
    /// Tasks have snapshots in storage, and their changelogs are trimmed behind them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub snapshots: bool,
    pub sources: Vec<Source>,
    pub stages: Vec<Stage>,
    pub exchanges: Vec<Exchange>,
    pub sinks: Vec<Sink>,
    /// The dead-letter topic.
    pub dead_letter: Option<String>,
    /// Identity of the state layout: equal fingerprints can share state. See [`Plan::state`].
    pub state_fingerprint: u64,
    /// One entry for each operator that keeps state.
    pub state: Vec<StateLayout>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Source {
    pub name: String,
    pub topic: String,
    pub start_from: StartFrom,
    /// In a backfill's plan, where its part of each partition ends: (partition, offset). Empty: nowhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub until: Vec<(i32, i64)>,
    /// `None`: nothing is known about how the topic is partitioned.
    pub key: Option<Key>,
    pub format: Format,
    /// The columns that something uses (for a table: all), in the order of the spec.
    pub columns: Vec<Column>,
    pub event_time: Option<EventTime>,
    pub table: Option<Table>,
    pub on_error: OnError,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum StartFrom {
    Earliest,
    Latest,
    /// Milliseconds since the epoch.
    Timestamp(i64),
    /// (partition, offset)
    Offsets(Vec<(i32, i64)>),
}

/// How a record's key is written, and by what rule it chose its partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    pub columns: Vec<String>,
    pub format: KeyFormat,
    pub partitioner: Partitioner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyFormat {
    /// The text of the single key column.
    String,
    /// A JSON object of the key columns, or one bare JSON value for a single column.
    Json,
    /// Our own encoding, used by exchanges: the memcomparable bytes that state keys use.
    Internal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Partitioner {
    /// The Java client's default for keyed records.
    Murmur2,
    /// librdkafka's `consistent` family.
    Crc32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    Json,
    DebeziumJson,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventTime {
    /// A TIMESTAMP(3) or TIMESTAMP(6) column of the source. `None`: the record's timestamp.
    pub column: Option<String>,
    pub max_out_of_orderness_ms: i64,
    /// `None`: never idle.
    pub idle_timeout_ms: Option<i64>,
    pub future: FuturePolicy,
    /// How far ahead of its record's timestamp an event time may be before `future` applies.
    pub max_future_skew_ms: i64,
}

/// What happens to a row whose event time is too far in the future.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FuturePolicy {
    /// It counts like any other.
    Accept,
    /// The row passes; it moves the watermark no further than the allowed skew.
    Clamp,
    DeadLetter,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    pub primary_key: Vec<String>,
    /// `Some` keeps versions for temporal joins.
    pub versions_retention_ms: Option<i64>,
    /// Deletes rows that were not written for so long, by processing time. `None`: never.
    pub ttl_ms: Option<i64>,
}

/// What happens to a record that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnError {
    DeadLetter,
    Stop,
    Skip,
}

/// The part of a plan between two repartition points; all its inputs are co-partitioned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// After its first stateful step, else its first step, else its source.
    pub name: String,
    pub inputs: Vec<Input>,
    /// In topological order.
    pub operators: Vec<Operator>,
    pub outputs: Vec<Output>,
}

/// What a task reads: the same partition number of each input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Input {
    pub from: InputFrom,
    /// True when operators use it as a table, false when it is a stream.
    pub table: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InputFrom {
    Source(String),
    Exchange(String),
}

/// Where an operator's rows come from, inside of its stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Port {
    /// Index into [`Stage::inputs`].
    Input(usize),
    /// Index into [`Stage::operators`].
    Operator(usize),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operator {
    /// Its identity: what state and metrics belong to.
    pub name: String,
    pub input: Port,
    pub kind: OperatorKind,
    /// The columns of its output.
    pub columns: Vec<Column>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum OperatorKind {
    Project(Project),
    TableJoin(TableJoin),
    TemporalJoin(TemporalJoin),
    Guard(Guard),
}

/// `WHERE filter SELECT columns`, over the columns of its input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Project {
    pub filter: Option<String>,
    pub columns: Vec<Projection>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Projection {
    pub name: String,
    /// SQL text over the input's columns; a bare column is its quoted name.
    pub sql: String,
}

/// The part that the joins share. A join's output is the left columns followed by those table columns in `right`;
/// a `Project` behind it does the rest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Join {
    /// Index into [`Stage::inputs`]: the table's input.
    pub table: usize,
    /// Name of the table's source.
    pub table_name: String,
    pub kind: JoinKind,
    /// (column of the stream, column of the table), in the order of the table's primary key.
    pub keys: Vec<(String, String)>,
    /// Table columns that the output carries, with their names in the output.
    pub right: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JoinKind {
    Inner,
    Left,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableJoin {
    pub join: Join,
    pub missing: Missing,
}

/// What happens to a stream row without a partner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Missing {
    /// Left: nulls. Inner: dropped as `unmatched`.
    Unmatched,
    DeadLetter,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TemporalJoin {
    pub join: Join,
    pub emit: Emit,
    pub late: Late,
    pub missing: Missing,
    pub retention_ms: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Emit {
    /// When the watermark of stream and table has passed the row.
    Watermark,
    /// When the stream's own watermark has passed the row by this much; the table's is not waited for.
    GraceMs(i64),
    Immediate,
}

/// What happens to a row whose event time was below the watermark of its source partition when it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Late {
    /// Joined at once, as of its own time, and counted.
    JoinNow,
    /// Joined at once, as of its own time, and not counted.
    Accept,
    /// Treated as if there were no partner.
    Unmatched,
    Drop,
    DeadLetter,
}

/// Lets a row pass to its Upsert sink only if it is newer than every row of its key that passed before. All rows of a key
/// meet in one task of its stage; its output has the columns of its input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Guard {
    /// Columns of its input: the sink's key.
    pub key: Vec<String>,
    pub version: Version,
    /// Index into [`Stage::inputs`]: the exchange by which a backfill's rows come. `None`: in the plan of an older release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repairs: Option<usize>,
}

/// Which of two rows of one key is the newer one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Version {
    /// The one whose stream record lies later. All rows of a key come from one partition of the stream.
    SourcePosition,
    /// The one with the greater value in this column, of type INT, BIGINT, DECIMAL, DATE or TIMESTAMP.
    Column(String),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Output {
    pub from: Port,
    pub to: OutputTo,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OutputTo {
    Sink(String),
    Exchange(String),
}

/// Rows on their way from one stage to another through an internal topic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// The topic is `<prefix>-t<timeline>-<name>-repartition`.
    pub name: String,
    /// The stage that reads it.
    pub stage: String,
    /// The source whose rows cross it: what a dead letter behind it refers to.
    pub source: String,
    pub key: Key,
    /// Partition count: that of this topic, or, if `None`, the largest among the stage's origins.
    pub partitions_like: Option<String>,
    /// Why the rows must move, for people.
    pub reason: String,
    pub columns: Vec<Column>,
    /// True when the rows are a table's changes.
    pub table: bool,
    /// In a backfill's plan, the topic of the pipeline that it repairs. `None`: it is our own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sink {
    pub name: String,
    pub topic: String,
    /// `None`: records without key, spread over the partitions by the producer.
    pub key: Option<Key>,
    pub format: Format,
    pub columns: Vec<Column>,
}

/// What an operator keeps. Two plans can share state where layouts with the same `operator` are compatible.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateLayout {
    /// Identity: the operator's name, or `table <source>` for a table's rows. A guard's is `<sink>.upsert`.
    pub operator: String,
    pub kind: StateKind,
    pub stage: String,
    pub key: Vec<Column>,
    pub value: Vec<Column>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateKind {
    /// One row per key.
    Latest,
    /// All versions of each key within the retention, and the newest before it.
    Versioned,
    /// Stream rows that wait for the watermark.
    Waiting,
}

impl Plan {
    pub fn source(&self, name: &str) -> Option<&Source> {
        self.sources.iter().find(|s| s.name == name)
    }

    pub fn exchange(&self, name: &str) -> Option<&Exchange> {
        self.exchanges.iter().find(|e| e.name == name)
    }

    /// True for the plan of a backfill, which ends.
    pub fn backfills(&self) -> bool {
        self.repaired().next().is_some()
    }

    /// Exchanges that bring what a backfill computes to another pipeline, with its topics.
    pub fn repaired(&self) -> impl Iterator<Item = (&Exchange, &str)> {
        self.exchanges.iter().filter_map(|exchange| Some((exchange, exchange.topic.as_deref()?)))
    }

    /// The stage that writes an exchange. `None`: the plan of a backfill does.
    pub fn writer(&self, exchange: &str) -> Option<&Stage> {
        let writes = |to: &OutputTo| matches!(to, OutputTo::Exchange(name) if name == exchange);
        self.stages.iter().find(|stage| stage.outputs.iter().any(|output| writes(&output.to)))
    }

    pub fn sink(&self, name: &str) -> Option<&Sink> {
        self.sinks.iter().find(|s| s.name == name)
    }

    pub fn stage(&self, name: &str) -> Option<&Stage> {
        self.stages.iter().find(|s| s.name == name)
    }
}

//! Where results go.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::source::{FormatSpec, KeySpec};
use super::text::{ColumnText, NameText, TopicText};

/// A topic that is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Sink {
    /// Name by which SQL and metrics refer to it: at most 40 of a-z, 0-9, '-' and '_', beginning with a letter.
    #[schemars(with = "NameText")]
    pub name: String,

    /// Name of the source or step whose rows it takes. Required with `steps`; with `sql` it is left out, because
    /// `INSERT INTO` says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<NameText>")]
    pub from: Option<String>,

    /// The topic.
    pub kafka: KafkaSink,

    /// What the record keys hold and how they choose their partition. Required for mode Upsert. Default: none; records
    /// have no key and are spread over the partitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeySpec>,

    /// How the record values are written.
    pub format: FormatSpec,

    /// Append rows, or replace earlier ones of the same key. Default: mode Append.
    #[serde(default)]
    pub write: WriteSpec,
}

/// The topic of a sink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KafkaSink {
    /// Name of the topic. It must exist.
    #[schemars(with = "TopicText")]
    pub topic: String,
}

/// How rows are written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WriteSpec {
    /// Append, or Upsert (with `version`). Only Upsert can be repaired by a Backfill. Default: Append.
    #[serde(default)]
    pub mode: WriteMode,

    /// With mode Upsert: which of two rows of one key is the newer one. Default: policy SourcePosition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<WriteVersion>,
}

/// How rows are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WriteMode {
    /// Every row is a new fact.
    #[default]
    Append,
    /// A row replaces the earlier one of its key, unless it is older.
    Upsert,
}

/// Which of two rows of one key is the newer one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WriteVersion {
    /// SourcePosition, or Column (with `column`).
    pub policy: VersionPolicy,

    /// With policy Column: the column that grows, of type INT, BIGINT, DECIMAL, DATE or TIMESTAMP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ColumnText>")]
    pub column: Option<String>,
}

/// Which of two rows of one key is the newer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VersionPolicy {
    /// The one whose stream record lies later in its partition. The sink's key must hold the columns of the stream's key.
    SourcePosition,
    /// The one with the greater value of a column.
    Column,
}

/// Where records go that cannot be processed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetter {
    /// The topic. Records keep their key, value and headers; further headers say where they came from and why.
    pub kafka: KafkaSink,
}

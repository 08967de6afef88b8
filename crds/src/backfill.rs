//! `Backfill` v1alpha1: history, computed again beside the pipeline that goes on.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::pipeline::{Metadata, NameRef};
use crate::timestamp::Timestamp;

/// `kind` of a [`Backfill`].
pub const KIND: &str = "Backfill";

/// A backfill as an object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Backfill {
    pub api_version: String,
    pub kind: String,
    pub metadata: Metadata,
    pub spec: BackfillSpec,
}

/// What is computed again, and for whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackfillSpec {
    /// The Pipeline whose results are repaired.
    pub pipeline_ref: NameRef,
    /// Repair: the rows of a range are computed again and go to the Pipeline's Upsert sinks, where the newest version of a key
    /// wins.
    pub mode: BackfillMode,
    /// Which records of the Pipeline's streams.
    pub range: BackfillRange,
    /// The sinks that are repaired. Default: all of the Pipeline.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sinks: Vec<String>,
    /// How fast it may read. Default: as fast as it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
}

/// How fast a backfill may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RateLimit {
    /// Records of streams in a second, all tasks together.
    #[schemars(range(min = 1))]
    pub records_per_second: u32,
}

/// What becomes of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BackfillMode {
    /// They go to the sinks of the Pipeline that runs.
    Repair,
    /// A new Pipeline is built of them.
    Rebuild,
}

/// Records by their timestamps, or by their offsets. Exactly one of `from` and `offsets` is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackfillRange {
    /// Records from this time on. With `to`. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Timestamp>,
    /// Up to the first record of this time, which is not one of them. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Timestamp>,
    /// Partitions of streams; those that are not named are left out. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10000))]
    pub offsets: Vec<OffsetRange>,
}

/// A part of a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OffsetRange {
    /// The stream.
    pub source: String,
    /// Its partition.
    #[schemars(range(min = 0))]
    pub partition: i32,
    /// The first record.
    #[schemars(range(min = 0))]
    pub from: i64,
    /// Behind the last record.
    #[schemars(range(min = 0))]
    pub to: i64,
}

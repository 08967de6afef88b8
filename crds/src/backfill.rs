//! `Backfill` v1alpha1: history, computed again beside the pipeline that goes on.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::pipeline::text::NameText;
use crate::pipeline::{Condition, Metadata, NameRef};
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
    #[schemars(with = "Vec<NameText>", length(max = 64), extend("x-kubernetes-list-type" = "set"))]
    pub sinks: Vec<String>,
    /// How fast it may read; may change while it runs. Default: as fast as it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
    /// Stops its pods, and goes on later from where it was; may change while it runs. Default: false.
    #[serde(default)]
    pub suspend: bool,
    /// Makes way for the Pipeline while one of its SLOs burns; may change while it runs. Default: it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub yield_to_live: Option<YieldToLive>,
    /// The same is done once. Raised when it has ended, it is done again. Default: 1.
    #[serde(default = "first_attempt")]
    #[schemars(range(min = 1))]
    pub attempt: u32,
}

const fn first_attempt() -> u32 {
    1
}

impl BackfillSpec {
    /// What may not change while it runs, and tells it from others.
    pub fn pinned(&self) -> Self {
        Self { rate_limit: None, suspend: false, yield_to_live: None, attempt: first_attempt(), ..self.clone() }
    }
}

/// For whom a backfill makes way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct YieldToLive {
    /// An SLO of the Pipeline. After a bad slice of time nothing is read for a minute, and then ever more.
    #[schemars(with = "NameText")]
    pub slo: String,
}

/// How fast a backfill may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RateLimit {
    /// Records of streams in a second, all tasks together. With 0 it pauses.
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
    #[schemars(length(max = 1000), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["source", "partition"]))]
    pub offsets: Vec<OffsetRange>,
}

/// A part of a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OffsetRange {
    /// The stream.
    #[schemars(with = "NameText")]
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

/// What is true of the backfill.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackfillStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// How far it is, for display; read `conditions` in programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<BackfillPhase>,

    /// One sentence about what it does, waits for, or what is wrong, or nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// Ready (it has ended, and nothing is lost), Yielding (it makes way for the Pipeline) and Stalled (a person must act).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// The attempt that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<i64>,

    /// When it was begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,

    /// When it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,

    /// The plan of the Pipeline that it began with; later ones do not change it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<BackfillPlan>,

    /// What it computes again, as pinned at its start: partitions in which there is something, the first 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub ranges: Vec<OffsetRange>,

    /// The part of the range that was read: 42%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,

    /// How long the rest takes at the pace of the last while: 3m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eta: Option<String>,

    /// How far it is in event time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_time: Option<Timestamp>,

    /// How many records it may read in a second now; absent: as many as it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub records_per_second: Option<i64>,

    /// What became of the records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<BackfillCounts>,

    /// When the numbers above were true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_of: Option<Timestamp>,

    /// What did not arrive, and why; empty: all counts balance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
}

/// The plan that a backfill began with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackfillPlan {
    /// Its number.
    pub number: i64,
    /// Its fingerprint.
    pub fingerprint: String,
}

/// What became of the records of a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BackfillCounts {
    /// Records of streams that were read.
    pub records: i64,
    /// Rows that came of them for the sinks.
    pub computed: i64,
    /// Rows that were written: nothing newer of their keys was there.
    pub applied: i64,
    /// Rows that were not written, since a row of their key was there that is newer, or has the same version.
    pub guarded: i64,
    /// Records and rows that went to the dead letters.
    pub dead_lettered: i64,
    /// Rows that came late, and were joined all the same.
    pub late: i64,
}

/// How far a backfill is, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BackfillPhase {
    /// It waits for its turn, or for its pipeline.
    Pending,
    /// Its pod reads the range.
    Running,
    /// It is suspended, or has no rate, or makes way.
    Paused,
    /// All is computed, and the pipeline takes it.
    Applying,
    /// It has ended, and all counts balance.
    Succeeded,
    /// It has ended, and not everything has arrived.
    CompletedWithLoss,
    /// The same was done before under this name.
    AlreadyDone,
    /// It cannot be done; a person must act.
    Failed,
}

impl BackfillPhase {
    /// Whether nothing more will be done for this attempt.
    pub const fn has_ended(self) -> bool {
        match self {
            Self::Pending | Self::Running | Self::Paused | Self::Applying => false,
            Self::Succeeded | Self::CompletedWithLoss | Self::AlreadyDone | Self::Failed => true,
        }
    }
}

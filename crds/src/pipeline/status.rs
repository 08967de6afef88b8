//! What the operator answers. It tells the truth for one generation of the spec; nothing here is read back as an order.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::autoscaling::AutoscalingStatus;
use super::later::NameRef;
use crate::timestamp::Timestamp;

/// What is true of the pipeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PipelineStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Where the pipeline is, for display; read `conditions` in programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,

    /// One sentence about what is wrong, or nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// The next step that a person can take, or nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_step: Option<String>,

    /// Ready, Available, Reconciling, Stalled, SpecValid, SourcesReachable, SinksReachable, StateHealthy, SLOMet,
    /// SLODataMissing and BackfillActive.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// Worker pods that exist; read by `kubectl scale` and autoscalers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,

    /// Worker pods that should exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_replicas: Option<i32>,

    /// Worker pods that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,

    /// Label selector of the worker pods; read by autoscalers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,

    /// The pinned version of the runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_version: Option<String>,

    /// The version that the chart offers, where it is another one. Take it with `spec.worker.version`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_version: Option<String>,

    /// Number of the applied plan; grows with each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_number: Option<i64>,

    /// Fingerprint of the applied plan's state layout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_fingerprint: Option<String>,

    /// Tasks on their way to other workers; absent when none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rescale: Option<RescaleStatus>,

    /// What the operator makes of the lag; absent where autoscaling is disabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<AutoscalingStatus>,

    /// What the sources have left to read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub sources: Vec<SourceStatus>,

    /// The largest lag of all sources, for display: 0.3s. Absent while it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag: Option<String>,

    /// The 99th percentile of freshness, for display: 6s. Absent while it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freshness_p99: Option<String>,

    /// The smallest error budget left among the SLOs, for display: 98%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_budget: Option<String>,

    /// How each SLO stands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub slos: Vec<SloStatus>,

    /// The newest snapshot that every task has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_snapshot: Option<LastSnapshot>,

    /// The number of the history that it writes: a restore begins the next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<i64>,

    /// The savepoint that this pipeline was started from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored_from: Option<RestoredFrom>,

    /// The Backfill that keeps this pipeline suspended after a promotion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<NameRef>,

    /// What the pipeline uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,

    /// The last five errors, without row values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub errors: Vec<ErrorSample>,
}

/// Where a pipeline is, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Nothing runs yet.
    Pending,
    /// The first pods start or restore their state.
    Starting,
    /// It runs.
    Running,
    /// Tasks move between workers.
    Rescaling,
    /// A new plan or version rolls out.
    Updating,
    /// It processes what is there, then stops.
    Draining,
    /// It was stopped and keeps everything.
    Suspended,
    /// It runs, and a part of it does not.
    Degraded,
    /// It does not run, and a person must act.
    Failed,
    /// The object is being deleted.
    Deleting,
}

/// One thing that is true, false or unknown of the pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Name of the condition.
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown.
    pub status: ConditionStatus,
    /// The generation of the spec that the condition speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When `status` last changed.
    pub last_transition_time: Timestamp,
    /// One word for programs.
    pub reason: String,
    /// One sentence for people.
    pub message: String,
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

/// Tasks are on their way to other workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RescaleStatus {
    /// Workers that had tasks before.
    pub from: i32,
    /// Workers that shall have tasks.
    pub to: i32,
    /// Tasks that have moved.
    pub moved: i32,
    /// Tasks that are still to move. Each runs where it is.
    pub remaining: i32,
    /// What is done now.
    pub step: RescaleStep,
    /// Which workers it waits for, and what they have to do.
    pub waits_for: String,
}

/// What is done for tasks that are to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RescaleStep {
    /// Next owners read the state of some tasks.
    WarmUp,
    /// No next owner is ready.
    Wait,
}

/// What a source has left to read. Absent figures are unknown, never zero.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SourceStatus {
    /// Name of the source.
    pub name: String,
    /// Records that are not processed yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_records: Option<i64>,
    /// Age of the oldest record that is not processed, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_ms: Option<i64>,
    /// The partition that is furthest behind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst_partition: Option<PartitionLag>,
}

/// How far behind one partition is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PartitionLag {
    /// Partition of the topic.
    pub partition: i32,
    /// Age of its oldest record that is not processed, in milliseconds.
    pub lag_ms: i64,
}

/// How an SLO stands. Figures are texts for people; programs read the operator's metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SloStatus {
    /// Name of the SLO.
    pub name: String,
    /// Percent that was good in the window: 99.95%. Absent while nothing was counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sli: Option<String>,
    /// How many times faster than the objective allows the last hour spent the budget: 14.4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burn_rate: Option<String>,
    /// The part of the error budget that is left: 98%; below 0% it is overspent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_left: Option<String>,
    /// The part of the window that was observed and counted: 12%.
    pub observed: String,
    /// Some of the budget is left.
    pub met: bool,
}

/// The newest snapshot that every task has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastSnapshot {
    /// When the oldest of its parts was made.
    pub time: Timestamp,
    /// Bytes of its files.
    pub size_bytes: i64,
}

/// The savepoint that a pipeline was started from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestoredFrom {
    /// The Savepoint.
    pub savepoint_ref: NameRef,
    /// Where it lies.
    pub location: String,
    /// The attempt that consumed it.
    pub attempt: i64,
    /// When it was restored.
    pub time: Timestamp,
}

/// What a pipeline uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cost {
    /// Bytes of local state over all tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_bytes: Option<i64>,
    /// Bytes a second that go into changelogs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changelog_bytes_per_second: Option<i64>,
    /// Bytes of all retained snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_bytes: Option<i64>,
}

/// An error and where it first occurred; never with values of the row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ErrorSample {
    /// What went wrong, from the documented list of codes.
    pub code: String,
    /// Topic of the record.
    pub topic: String,
    /// Partition of the record.
    pub partition: i32,
    /// Offset of the record.
    pub offset: i64,
    /// How often it has occurred.
    pub count: i64,
}

//! Operations on a whole pipeline: SLOs, autoscaling, stop, restore, deletion. This version knows their shapes and
//! refuses what it does not serve ([`crate::unserved`]).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::{NameText, OBJECTIVE_PATTERN, ObjectNameText};
use crate::duration::Duration;

/// A service level objective: exactly one indicator and the share of good time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Slo {
    /// Name of the SLO in rules, alerts and status.
    #[schemars(with = "NameText")]
    pub name: String,
    /// From a record's time to its result in the sink. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freshness: Option<FreshnessSlo>,
    /// Age of the oldest record that is not processed. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag: Option<LagSlo>,
    /// Percent of the time that must be good, as text: "99.9".
    #[schemars(length(min = 1, max = 8), regex(pattern = OBJECTIVE_PATTERN))]
    pub objective: String,
    /// The time over which the objective counts. Default: 30d.
    #[serde(default = "default_window")]
    pub window: Duration,
}

const fn default_window() -> Duration {
    Duration::from_days(30)
}

/// From a record's time to its result in the sink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FreshnessSlo {
    /// Longest time that is good.
    pub threshold: Duration,
    /// Which time of a record counts. Default: RecordTimestamp.
    #[serde(default)]
    pub since: FreshnessSince,
}

/// Which time of a record counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FreshnessSince {
    /// The record's own timestamp.
    #[default]
    RecordTimestamp,
    /// The row's event time.
    EventTime,
}

/// Age of the oldest record that is not processed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LagSlo {
    /// Longest lag that is good.
    pub threshold: Duration,
}

/// Whether the operator chooses `replicas` by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Autoscaling {
    /// Disabled, Observe (only say what would be done) or Act. Default: Disabled.
    #[serde(default)]
    pub mode: AutoscalingMode,
    /// Fewest replicas. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub min_replicas: Option<u32>,
    /// Most replicas. Default: none; required with Observe and Act.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_replicas: Option<u32>,
    /// Lag to stay below. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_lag: Option<Duration>,
    /// Time in which a lag must be worked off. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catch_up_time: Option<Duration>,
    /// How long to wait between two decisions. Default: 5m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stabilisation: Option<Duration>,
}

/// Whether the operator chooses `replicas` by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AutoscalingMode {
    /// It does not.
    #[default]
    Disabled,
    /// It only says what it would do. Not available in this version.
    Observe,
    /// It does. Not available in this version.
    Act,
}

/// Whether the pipeline runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DesiredState {
    /// It runs.
    #[default]
    Running,
    /// It stops now and keeps everything.
    Suspended,
    /// It processes what is there, then stops.
    Drained,
}

/// A start from a savepoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Restore {
    /// The Savepoint.
    pub savepoint_ref: NameRef,
    /// What happens when the savepoint holds state that no step takes. Default: Refuse.
    #[serde(default)]
    pub unmapped_state: UnmappedState,
    /// What happens when results behind the savepoint were already written. Default: Refuse.
    #[serde(default)]
    pub already_written: AlreadyWritten,
    /// Raise it to restore from the same savepoint again. Default: 1.
    #[serde(default = "default_attempt")]
    #[schemars(range(min = 1, max = 1000000))]
    pub attempt: u32,
}

const fn default_attempt() -> u32 {
    1
}

/// What happens to state that no step takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UnmappedState {
    /// The restore is refused with a list of it.
    #[default]
    Refuse,
    /// It is left out.
    Drop,
}

/// What happens when results behind the savepoint were already written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AlreadyWritten {
    /// The restore is refused and says what would be written again.
    #[default]
    Refuse,
    /// They are written again.
    Append,
}

/// Where the first state comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HydrateFrom {
    /// The Backfill in mode Rebuild.
    pub backfill_ref: NameRef,
}

/// An object of the pipeline's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NameRef {
    /// Name of the object.
    #[schemars(with = "ObjectNameText")]
    pub name: String,
}

/// What happens to internal topics and snapshots when the object is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DeletionPolicy {
    /// They stay.
    #[default]
    Retain,
    /// A last savepoint is taken, then they go. Not available in this version.
    Savepoint,
    /// They go.
    Delete,
}

//! `Savepoint` v1alpha1: a consistent copy of all that a pipeline knows, to be started from.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::pipeline::{Condition, Metadata, NameRef};
use crate::timestamp::Timestamp;

/// `kind` of a [`Savepoint`].
pub const KIND: &str = "Savepoint";
/// The address of a savepoint in storage.
pub const LOCATION_PATTERN: &str = "^[a-z][-+.a-z0-9]*://.+$";

/// A savepoint as an object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Savepoint {
    pub api_version: String,
    pub kind: String,
    pub metadata: Metadata,
    pub spec: SavepointSpec,
}

/// What is saved, or where something lies that was saved before. Exactly one of `pipelineRef` and `from` is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SavepointSpec {
    /// The Pipeline that is saved, while it runs. Exactly one of `pipelineRef` and `from` is set. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipeline_ref: Option<NameRef>,
    /// A savepoint that lies in storage already. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<SavepointSource>,
    /// What happens to the files when the object is deleted. Default: Retain.
    #[serde(default)]
    pub deletion_policy: SavepointDeletion,
}

/// A savepoint that lies in storage already.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SavepointSource {
    /// Where its `savepoint.json` is, as the status of the first one says it.
    #[schemars(length(min = 1, max = 2048), regex(pattern = LOCATION_PATTERN))]
    pub location: String,
}

/// What happens to the files of a savepoint when the object is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SavepointDeletion {
    /// They stay.
    #[default]
    Retain,
    /// They go.
    Delete,
}

/// What is true of the savepoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SavepointStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// How far it is, for display; read `conditions` in programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<SavepointPhase>,

    /// One sentence about what it waits for or what is wrong, or nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// Ready (it is whole), Restorable (the sources still hold what came after it) and Stalled (a person must act).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// Where it is: what `spec.from.location` of another Savepoint takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,

    /// Its size, for display: 1.5Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,

    /// Bytes of its files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<i64>,

    /// Records on their way between two stages that it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub records_in_flight: Option<i64>,

    /// When the cut was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_at: Option<Timestamp>,

    /// The plan that ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<SavepointPlan>,

    /// The timeline that it was cut from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<i64>,

    /// Name of its folder in storage: another attempt has another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,

    /// How often it was begun: one in which a worker was lost is begun anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<i64>,

    /// Attempts that were lost, whose files are still to be deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub abandoned: Vec<String>,

    /// Until when the sources hold what came after it, as far as their retention says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replayable_until: Option<Timestamp>,
}

/// The plan that ran when a savepoint was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SavepointPlan {
    /// Its number.
    pub number: i64,
    /// Fingerprint of its state layout.
    pub fingerprint: String,
}

/// How far a savepoint is, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SavepointPhase {
    /// It waits for its turn, or for its pipeline.
    Pending,
    /// The stages are cut, the last one first.
    Cutting,
    /// What was cut is uploaded.
    Storing,
    /// What is in flight is copied, and its document is written.
    Writing,
    /// It is whole.
    Completed,
    /// It lies in storage, and nobody has looked at it yet.
    Imported,
    /// A person must act.
    Failed,
    /// The object is being deleted.
    Deleting,
}

//! Operations on a whole pipeline: stop, restore, deletion. This version knows their shapes and
//! refuses what it does not serve ([`crate::unserved`]).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::ObjectNameText;

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
    /// It is left out. Not available in this version.
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

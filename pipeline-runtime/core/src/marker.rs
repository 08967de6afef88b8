//! The epoch marker: the last changelog record of an epoch, and the only truth about progress (invariant I3).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::event_time::{InputClock, SourceClock};
use crate::ids::{Epoch, Generation, Offset};
use crate::totals::Totals;

/// Raised when an older release can no longer read a marker.
pub const MARKER_FORMAT: u32 = 1;

/// Where a task stands behind an epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Marker {
    pub format: u32,
    pub epoch: Epoch,
    pub generation: Generation,
    /// The id of the Kafka cluster that the positions are of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    pub state_fingerprint: u64,
    /// When it was written, wall-clock milliseconds: a state that is older than the deletes which a compacted changelog
    /// still holds cannot be brought level.
    #[serde(default)]
    pub written_ms: i64,
    /// In the order of the stage's inputs.
    pub inputs: Vec<InputMark>,
    /// By operator name; `source <name>` for the reading of a source.
    pub totals: BTreeMap<String, Totals>,
}

impl Marker {
    /// Where the task stands in a topic that it reads.
    pub fn input(&self, topic: &str) -> Option<&InputMark> {
        self.inputs.iter().find(|mark| mark.topic == topic)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InputMark {
    pub topic: String,
    /// The topic's id where the log has one; a re-created topic has another.
    pub topic_id: Option<String>,
    /// The topic's partition count when the task first saw it.
    pub partitions: i32,
    /// The next record to read.
    pub next: Offset,
    /// The topic is the changelog of the table that is kept of it: compacted by the table's key, and read again to rebuild
    /// the table.
    #[serde(default)]
    pub own_changelog: bool,
    /// Records below it were counted, and given up where they had to be; to read them again counts nothing.
    #[serde(default)]
    pub counted: Offset,
    /// For tables: the end that was captured at the pipeline's start; the table is level once `next` has reached it.
    pub level_at: Option<Offset>,
    /// For sources that are read directly.
    pub source_clock: SourceClock,
    pub clock: InputClock,
}

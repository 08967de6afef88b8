//! What is known of Savepoints, and what is said of them.

use millrace_core::ids::Timeline;
use millrace_core::report::SavepointReport;
use millrace_crds::check;
use millrace_crds::pipeline::{Condition, ConditionStatus};
use millrace_crds::savepoint::{SavepointDeletion, SavepointPhase, SavepointPlan, SavepointSpec, SavepointStatus};
use millrace_crds::timestamp::Timestamp;
use serde_json::Value;

use crate::facts::{text, texts};
use crate::names::FINALIZER;
use crate::status::Made;

/// A Savepoint that was observed.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    pub generation: i64,
    pub created: Option<Timestamp>,
    pub deleted_at: Option<Timestamp>,
    pub finalizers: Vec<String>,
    pub spec: SavepointSpec,
    pub status: SavepointStatus,
}

/// Those that can be read, the oldest first: the API server lets no other pass.
pub fn savepoints(objects: &[Value]) -> Vec<Saved> {
    let mut all: Vec<Saved> = objects.iter().filter_map(Saved::of).collect();
    all.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
    all
}

impl Saved {
    fn of(object: &Value) -> Option<Self> {
        let metadata = &object["metadata"];
        let time = |field: &str| metadata[field].as_str().and_then(Timestamp::parse);
        Some(Self {
            name: text(&metadata["name"]),
            uid: text(&metadata["uid"]),
            resource_version: text(&metadata["resourceVersion"]),
            generation: metadata["generation"].as_i64().unwrap_or_default(),
            created: time("creationTimestamp"),
            deleted_at: time("deletionTimestamp"),
            finalizers: texts(&metadata["finalizers"]),
            spec: check::parse_savepoint(object).ok()?.spec,
            status: serde_json::from_value(object["status"].clone()).unwrap_or_default(),
        })
    }

    /// Whether it is to be made from a Pipeline.
    pub fn is_of(&self, pipeline: &str) -> bool {
        self.spec.pipeline_ref.as_ref().is_some_and(|of| of.name == pipeline)
    }

    /// Whether a cut is one of its attempts.
    pub fn owns(&self, id: &str) -> bool {
        id.strip_prefix(self.uid.as_str()).is_some_and(|rest| rest.starts_with('-'))
    }

    pub fn is_completed(&self) -> bool {
        self.status.phase == Some(SavepointPhase::Completed)
    }

    /// Whether nothing more will be done to make it.
    pub fn has_ended(&self) -> bool {
        self.is_completed() || self.status.phase == Some(SavepointPhase::Failed) || self.deleted_at.is_some()
    }

    pub fn held(&self) -> bool {
        self.finalizers.iter().any(|name| name == FINALIZER)
    }

    /// Whether its files go with it.
    pub fn must_hold(&self) -> bool {
        self.spec.deletion_policy == SavepointDeletion::Delete
    }
}

/// What is true of a Savepoint that is not whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    pub phase: SavepointPhase,
    /// One word.
    pub reason: &'static str,
    pub message: String,
    /// A person must act.
    pub stalled: bool,
    /// The attempt that is under way.
    pub id: Option<String>,
}

impl Standing {
    /// It waits, which is nobody's fault.
    pub fn waits(reason: &'static str, message: impl Into<String>) -> Self {
        Self { phase: SavepointPhase::Pending, reason, message: message.into(), stalled: false, id: None }
    }

    /// It waits until a person acts.
    pub fn stalled(reason: &'static str, message: impl Into<String>) -> Self {
        Self { stalled: true, ..Self::waits(reason, message) }
    }

    /// The status of the Savepoint.
    pub fn status(self, of: &Saved, now: Timestamp) -> SavepointStatus {
        let Self { phase, reason, message, stalled, id } = self;
        let before = &of.status;
        let another = id.is_some() && id != before.id;
        let lost = [before.id.clone().filter(|_| another), id.clone().filter(|_| phase == SavepointPhase::Failed)];
        let mut abandoned = before.abandoned.clone();
        for lost in lost.into_iter().flatten() {
            if !abandoned.contains(&lost) {
                abandoned.push(lost);
            }
        }
        let ready = match phase {
            SavepointPhase::Imported => Made::unknown("Ready", reason, message.clone()),
            _ => Made::new("Ready", false, reason, message.clone()),
        };
        let stall = if stalled { (reason, message.clone()) } else { ("None", String::new()) };
        let restorable = Made::unknown("Restorable", reason, "it is not known to be whole");
        let made = [ready, restorable, Made::new("Stalled", stalled, stall.0, stall.1)];
        SavepointStatus {
            observed_generation: Some(of.generation),
            phase: Some(phase),
            message: Some(message),
            conditions: stamped(made, of, now),
            attempt: if another { Some(before.attempt.unwrap_or_default() + 1) } else { before.attempt },
            id: if another { id } else { before.id.clone() },
            abandoned,
            ..SavepointStatus::default()
        }
    }
}

/// The status of one that is whole, by what a Job said of it.
pub fn completed(of: &Saved, report: &SavepointReport, timeline: Option<Timeline>, now: Timestamp) -> SavepointStatus {
    let restorable = match report.lost.as_slice() {
        [] => Made::new("Restorable", true, "Replayable", "the sources hold what came after it"),
        lost => Made::new("Restorable", false, "SourcesLost", lost.join("\n")),
    };
    let ready = Made::new("Ready", true, "Completed", "every task lies in storage, and was checked");
    SavepointStatus {
        observed_generation: Some(of.generation),
        phase: Some(SavepointPhase::Completed),
        conditions: stamped([ready, restorable, Made::new("Stalled", false, "None", "")], of, now),
        location: Some(report.location.clone()),
        size: Some(size(report.bytes)),
        size_bytes: Some(report.bytes as i64),
        records_in_flight: Some(report.in_flight as i64),
        taken_at: Some(Timestamp::from_ms(report.taken_ms)),
        plan: Some(SavepointPlan { number: report.plan as i64, fingerprint: report.state_fingerprint.clone() }),
        timeline: timeline.map(|timeline| i64::from(timeline.0)),
        replayable_until: report.replayable_until_ms.map(Timestamp::from_ms),
        id: of.status.id.clone(),
        attempt: of.status.attempt,
        abandoned: of.status.abandoned.clone(),
        message: None,
    }
}

/// The status of one that is whole as time goes by: what its sources hold is not known for ever.
pub fn aged(of: &Saved, now: Timestamp) -> SavepointStatus {
    let mut status = SavepointStatus { observed_generation: Some(of.generation), ..of.status.clone() };
    let expired = status.replayable_until.is_some_and(|until| until < now);
    let restorable = status.conditions.iter_mut().find(|condition| condition.kind == "Restorable");
    if let Some(condition) = restorable.filter(|condition| expired && condition.status == ConditionStatus::True) {
        let message = "the retention of a source has passed since; a restore looks whether it still holds the cut";
        *condition = Made::unknown("Restorable", "RetentionPassed", message).stamped(&[], of.generation, now);
    }
    status.conditions.iter_mut().for_each(|condition| condition.observed_generation = Some(of.generation));
    status
}

fn stamped(made: [Made; 3], of: &Saved, now: Timestamp) -> Vec<Condition> {
    made.into_iter().map(|made| made.stamped(&of.status.conditions, of.generation, now)).collect()
}

/// As a person reads it.
fn size(bytes: u64) -> String {
    let (unit, shift) = match bytes {
        ..0x400 => return bytes.to_string(),
        0x400..0x10_0000 => ("Ki", 10),
        0x10_0000..0x4000_0000 => ("Mi", 20),
        _ => ("Gi", 30),
    };
    let tenths = bytes.saturating_mul(10) >> shift;
    format!("{}.{}{unit}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_with_one_digit_behind_the_point() {
        let shown = [0, 1_023, 1_024, 1_536, 5 << 20, (3 << 30) + (1 << 29)].map(size);
        assert_eq!(shown, ["0", "1023", "1.0Ki", "1.5Ki", "5.0Mi", "3.5Gi"]);
    }
}

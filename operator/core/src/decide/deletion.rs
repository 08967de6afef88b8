//! The end of a Pipeline. Only one whose policy says that something outside of the cluster goes too is held back for it,
//! and none longer than the deadline.

use millrace_core::report::CleanupReport;
use millrace_crds::pipeline::DeletionPolicy;
use millrace_crds::timestamp::Timestamp;

use super::{RESYNC_MS, Round};
use crate::decision::{Action, Decision, Event};
use crate::facts::Facts;
use crate::names::{CLEANUP, FINALIZER};
use crate::render::{Errand, Run};
use crate::settings::Settings;
use crate::status;

/// Whether a Pipeline with this policy must not go before the operator has done its part.
pub(super) fn holds(policy: DeletionPolicy) -> bool {
    policy == DeletionPolicy::Delete
}

/// How a deletion goes on.
enum Step {
    Wait(&'static str),
    /// Nothing is left to do; the note says what stays, if anything does.
    Done(Event),
}

pub(super) fn decide(facts: &Facts<'_>, settings: &Settings, now: Timestamp) -> Decision {
    if !facts.held() {
        return Decision::default();
    }
    let mut round = Round::new(facts, settings, now);
    match round.delete_all() {
        Step::Wait(what) => {
            let left_ms = deadline_ms(facts, settings).saturating_sub(now.ms()).max(0) as u64;
            let status = status::deleting(facts, what, now);
            let again_ms = [Some(left_ms + 1), round.again_ms].into_iter().flatten().min().unwrap_or(RESYNC_MS);
            Decision { actions: round.actions, status, events: round.events, again_ms: Some(again_ms) }
        }
        Step::Done(event) => {
            let finalizers = facts.finalizers.iter().filter(|name| *name != FINALIZER).cloned().collect();
            let over = facts.resource_version.clone();
            let release = Action::SetFinalizers { savepoint: None, finalizers, over };
            Decision { actions: vec![release], status: None, events: vec![event], again_ms: None }
        }
    }
}

fn deadline_ms(facts: &Facts<'_>, settings: &Settings) -> i64 {
    facts.deleted_at.map_or(0, Timestamp::ms) + settings.deletion_deadline.ms()
}

impl Round<'_> {
    /// Takes the pods away, then what the pipeline owns in Kafka.
    fn delete_all(&mut self) -> Step {
        let prefix = self.facts.parsed.as_ref().map(|pipeline| pipeline.prefix()).unwrap_or_default();
        let stored = self.facts.parsed.as_ref().is_ok_and(|pipeline| pipeline.spec.state.storage.is_some());
        let stays = |why: &str| {
            let snapshots = if stored { ", and its snapshots in spec.state.storage" } else { "" };
            let mut note = format!(
                "{why}: internal topics and groups that start with '{prefix}-'{snapshots} stay; `millrace cleanup` removes them"
            );
            // What the last try could not do, by name.
            let tried = self.facts.job(CLEANUP, CLEANUP).and_then(|job| job.report::<CleanupReport>()?.ok());
            let left = tried.map(|report| [report.errors, report.left].concat()).unwrap_or_default();
            if !left.is_empty() {
                note += &format!(". The last try: {}", left.join("; "));
            }
            Step::Done(Event::warning("LeftBehind", note))
        };
        if self.facts.observed.namespace_ends {
            return stays("the namespace is being deleted");
        }
        if self.now.ms() >= deadline_ms(self.facts, self.settings) {
            return stays("the deletion's deadline has passed");
        }
        let Some(applied) = self.facts.applied.as_ref().map(|kept| kept.value.clone()) else {
            return match self.facts.job(CLEANUP, CLEANUP) {
                // Nothing of it ever ran.
                None if self.facts.stateful_set.is_none() && self.facts.status.plan_number.is_none() => {
                    Step::Done(Event::normal("Deleted", "nothing was applied yet, and nothing is left"))
                }
                _ => stays("what was applied is not known"),
            };
        };
        if let Some(set) = self.facts.child("StatefulSet", &self.facts.names.stateful_set()) {
            if !set["metadata"]["deletionTimestamp"].is_string() {
                self.delete(set);
            }
            self.see_off(0);
            return Step::Wait("the workers stop");
        }
        if !self.facts.pods.is_empty() {
            self.see_off(0);
            return Step::Wait("the workers stop");
        }
        let Some(spec) = super::validate::spec_of(&applied.spec, self.facts) else {
            return stays("what was applied cannot be read");
        };
        if !self.ends_backfills() {
            return Step::Wait("backfills end, and what they have in Kafka is deleted");
        }
        let (connection, object) = self.source.connection(&applied.spec, &super::validate::annotations(self.facts));
        self.put(object);
        self.clean_up(&applied.run(&spec, &connection))
    }

    fn clean_up(&mut self, run: &Run<'_>) -> Step {
        let errand = Errand::cleanup();
        let Some(job) = self.send(&errand, run) else { return Step::Wait("internal topics are deleted") };
        if let Some(Ok(report)) = job.report::<CleanupReport>()
            && report.errors.is_empty()
            && report.left.is_empty()
        {
            let note = format!("deleted with {} internal topics and groups", report.deleted.len());
            return Step::Done(Event::normal("Deleted", note));
        }
        self.retry(job, &errand, run);
        Step::Wait("internal topics are deleted")
    }
}

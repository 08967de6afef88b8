//! A start from a savepoint: another plan, on a timeline that nobody has written before.
//!
//! The timeline is written down before anything is asked of it. Preflight and check run beside what runs, and change nothing
//! of it; once its pods are gone a Job fills the timeline, and only then the plan is applied. What was applied says which
//! savepoint it began with, so that none is restored twice.

use millrace_core::ids::Timeline;
use millrace_core::report::{PreflightReport, RestoreReport, SavepointReport};
use millrace_crds::pipeline::{AlreadyWritten, PipelineSpec, RestoredFrom};
use serde_json::json;

use super::Round;
use super::savepoints::say;
use crate::facts::{Applied, Facts, Reserved, Restored};
use crate::names::{CHECK, RESTORE, digest};
use crate::render::{Errand, Run};
use crate::savepoint::{Saved, Standing, completed};

/// So many restores are known not to be done again.
const REMEMBERED_MAX: usize = 50;

/// What `spec.restore` asks for by now.
pub(super) enum Wish<'a> {
    /// Nothing, or it was done.
    Nothing,
    Missing(String),
    /// It is not whole yet.
    Unmade(&'a Saved),
    /// It was imported, and nobody has looked at it.
    Unverified(&'a Saved, String),
    Restore(Wanted),
}

/// What is to be restored.
pub(super) struct Wanted {
    savepoint: String,
    location: String,
    attempt: u32,
    append: bool,
    /// Of the state that is in it.
    fingerprint: Option<String>,
}

impl Wanted {
    /// The restores that are done with this one.
    pub(super) fn restored(&self, round: &Round<'_>) -> Vec<Restored> {
        let Self { savepoint, location, attempt, .. } = self;
        let own =
            Restored { savepoint: savepoint.clone(), location: location.clone(), attempt: *attempt, at: round.now };
        let mut all = done(round.facts);
        all.push(own);
        all.split_off(all.len().saturating_sub(REMEMBERED_MAX))
    }

    /// State that the plan goes on with although it looks otherwise.
    pub(super) fn accepts(&self, state_fingerprint: &str) -> Vec<String> {
        self.fingerprint.iter().filter(|own| *own != state_fingerprint).cloned().collect()
    }
}

/// The restores that were done. Where what was applied is lost, the status remembers the last one.
pub(super) fn done(facts: &Facts<'_>) -> Vec<Restored> {
    let read = |from: RestoredFrom| Restored {
        savepoint: from.savepoint_ref.name,
        location: from.location,
        attempt: u32::try_from(from.attempt).unwrap_or_default(),
        at: from.time,
    };
    match &facts.applied {
        Some(applied) => applied.value.restored.clone(),
        None => facts.status.restored_from.clone().map(read).into_iter().collect(),
    }
}

pub(super) fn wish<'a>(facts: &'a Facts<'_>, spec: &PipelineSpec) -> Wish<'a> {
    let Some(restore) = &spec.restore else { return Wish::Nothing };
    let name = &restore.savepoint_ref.name;
    let saved = facts.savepoints.iter().find(|savepoint| savepoint.name == *name);
    let imported = saved.and_then(|saved| Some(saved.spec.from.as_ref()?.location.clone()));
    let location = saved.and_then(|saved| saved.status.location.clone()).or(imported);
    let is_done = done(facts).iter().any(|done| {
        let same_place = location.as_ref().is_none_or(|location| *location == done.location);
        same_place && done.savepoint == *name && done.attempt == restore.attempt
    });
    match (saved, location) {
        _ if is_done => Wish::Nothing,
        (None, _) => Wish::Missing(name.clone()),
        (Some(saved), Some(location)) if saved.is_completed() => Wish::Restore(Wanted {
            savepoint: name.clone(),
            location,
            attempt: restore.attempt,
            append: restore.already_written == AlreadyWritten::Append,
            fingerprint: saved.status.plan.as_ref().map(|plan| plan.fingerprint.clone()),
        }),
        (Some(saved), Some(location)) if saved.spec.from.is_some() => Wish::Unverified(saved, location),
        (Some(saved), _) => Wish::Unmade(saved),
    }
}

/// The highest timeline that anybody has run.
pub(super) fn known_timeline(facts: &Facts<'_>) -> Timeline {
    let remembered = match &facts.applied {
        Some(applied) => applied.value.timeline,
        None => Timeline(facts.status.timeline.and_then(|timeline| u32::try_from(timeline).ok()).unwrap_or(1)),
    };
    let preflights = facts.jobs.iter().filter_map(|job| job.report::<PreflightReport>()?.ok()?.newest_plan);
    let workers = facts.observed.reports.values().filter_map(|report| report.newest_plan.clone());
    preflights.chain(workers).map(|newest| newest.timeline).chain([remembered]).max().unwrap_or(Timeline(1))
}

impl<'a> Round<'a> {
    /// The timeline of a restore, once it is written down.
    pub(super) fn timeline(
        &mut self,
        wanted: &Wanted,
        applied: Option<&Applied>,
        plan: &str,
        connection: &str,
    ) -> Option<(Timeline, String)> {
        let Wanted { location, attempt, append, .. } = wanted;
        let subject = digest(&json!([location, attempt, append, plan, connection]));
        let known = known_timeline(self.facts);
        let given = self.facts.reserved.as_ref();
        if let Some(given) = given.filter(|given| given.subject == subject && given.timeline > known) {
            self.asked.extend([CHECK, RESTORE].map(|component| (component, subject.clone())));
            return Some((given.timeline, subject));
        }
        let highest = given.map_or(known, |given| given.timeline.max(known));
        let reserved = Reserved { timeline: Timeline(highest.0 + 1), subject };
        self.put(self.source.applied(applied, Some(&reserved)));
        self.outlook.progress("Restoring", format!("timeline {} is given to the restore", reserved.timeline));
        None
    }

    /// A restore that nobody asks for any more loses its timeline: its Job may still run somewhere when it is asked for again.
    pub(super) fn abandon(&mut self) {
        let facts = self.facts;
        let Some(given) = facts.reserved.as_ref().filter(|given| !given.subject.is_empty()) else { return };
        let applied = facts.applied.as_ref().map(|kept| &kept.value);
        let is_done = applied.is_some_and(|applied| applied.timeline >= given.timeline);
        let is_asked = self.asked.iter().any(|(component, subject)| *component == RESTORE && *subject == given.subject);
        if !is_done && !is_asked {
            let freed = Reserved { subject: String::new(), ..given.clone() };
            self.put(self.source.applied(applied, Some(&freed)));
        }
    }

    /// Whether it is known by now what is to be restored, if anything is.
    pub(super) fn knows_savepoint(&mut self, wish: &Wish<'_>, run: &Run<'_>) -> bool {
        match wish {
            Wish::Nothing | Wish::Restore(_) => return true,
            Wish::Missing(name) => {
                let message = format!("spec.restore: there is no Savepoint {name} in the namespace");
                self.outlook.stall("SavepointMissing", message, "create it, or leave spec.restore out");
            }
            Wish::Unmade(saved) if saved.has_ended() => {
                let message = format!("spec.restore: Savepoint {} was not made", saved.name);
                self.outlook.stall("SavepointFailed", message, "restore from another one, or leave spec.restore out");
            }
            Wish::Unmade(saved) => {
                let message = format!("waits until Savepoint {} is made, which spec.restore names", saved.name);
                self.outlook.progress("Restoring", message);
            }
            Wish::Unverified(saved, location) => self.verify(saved, location, run),
        }
        false
    }

    /// Looks at a savepoint that was imported, and says in its status what is there.
    fn verify(&mut self, saved: &Saved, location: &str, run: &Run<'_>) {
        let errand = Errand::verify(location);
        let job = self.send(&errand, run);
        let report = job.and_then(|job| job.report::<SavepointReport>());
        let errors = match report {
            None => {
                return self.outlook.progress("Restoring", format!("Savepoint {} is looked at", saved.name));
            }
            Some(Ok(report)) if report.errors.is_empty() => {
                self.outlook.progress("Restoring", format!("Savepoint {} was looked at", saved.name));
                let report = SavepointReport { location: location.to_owned(), ..report };
                let (action, event) = say(saved, completed(saved, &report, None, self.now));
                self.actions.extend(action);
                return self.events.extend(event);
            }
            Some(Ok(report)) => report.errors.join("\n"),
            Some(Err(said)) => said,
        };
        let standing = Standing::stalled("Unreadable", errors.clone());
        let (action, event) = say(saved, standing.status(saved, self.now));
        self.actions.extend(action);
        self.events.extend(event);
        let message = format!("spec.restore: Savepoint {} cannot be restored: {errors}", saved.name);
        self.outlook.stall("SavepointUnreadable", message, "correct what is named; it is looked at again by itself");
        if let Some(job) = job {
            self.retry(job, &errand, run);
        }
    }

    /// Whether a restore can be done, or was done: what its Job says.
    pub(super) fn restores(&mut self, wanted: &Wanted, check: bool, subject: &str, run: &Run<'_>) -> bool {
        let errand = Errand::restore(&wanted.location, wanted.append, check, subject.to_owned());
        let doing =
            if check { "it is checked whether the savepoint can be restored" } else { "the savepoint is restored" };
        let Some(job) = self.send(&errand, run) else {
            self.outlook.progress("Restoring", doing);
            return false;
        };
        let (reason, next) = match check {
            true => {
                ("RestoreRefused", "correct what is named, or leave spec.restore out; what runs is not touched before")
            }
            false => ("RestoreFailed", "correct what is named, or leave spec.restore out to go on as before"),
        };
        let errors = match job.report::<RestoreReport>() {
            Some(Ok(report)) if report.errors.is_empty() => return true,
            Some(Ok(report)) => report.errors.into_iter().chain(report.already_written).collect::<Vec<_>>().join("\n"),
            Some(Err(said)) => said,
            None => {
                match &job.trouble {
                    Some(trouble) => {
                        self.outlook.stall(reason, trouble.clone(), "look at the Job's pod and its events")
                    }
                    None => self.outlook.progress("Restoring", doing),
                }
                return false;
            }
        };
        self.outlook.stall(reason, format!("spec.restore: {errors}"), next);
        self.retry(job, &errand, run);
        false
    }
}

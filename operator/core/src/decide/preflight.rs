//! Jobs, each tried again ever more seldom while it fails; and the check before anything runs, which is one of them.

use millrace_core::report::PreflightReport;

use super::Round;
use crate::facts::Job;
use crate::names::{CLEANUP, RESTORE, digest};
use crate::render::{Errand, Run};

const BACKOFF_MS: u64 = 5_000;
const BACKOFF_MAX_MS: u64 = 300_000;

/// How long to wait before a Job is tried again that was tried `attempt` times before.
pub fn backoff_ms(attempt: u32) -> u64 {
    BACKOFF_MS.saturating_mul(1 << attempt.min(16)).min(BACKOFF_MAX_MS)
}

/// What a preflight is about: a plan, and how its cluster is reached.
pub fn subject(run: &Run<'_>) -> String {
    digest(&serde_json::json!([run.history(), run.connection, run.version]))
}

impl<'a> Round<'a> {
    /// The Job of an errand, which is made where there is none.
    pub(super) fn send(&mut self, errand: &Errand, run: &Run<'_>) -> Option<&'a Job> {
        self.asked.push((errand.component, errand.subject.clone()));
        let job = self.facts.job(errand.component, &errand.subject);
        if job.is_none() {
            self.put(self.source.job(errand, 0, run));
        }
        job
    }

    /// What the preflight of a plan found, once it has passed.
    pub(super) fn preflight(&mut self, run: &Run<'_>) -> Option<PreflightReport> {
        let errand = Errand::preflight(subject(run));
        let Some(job) = self.send(&errand, run) else {
            self.outlook.progress("Preflight", "the cluster is checked");
            return None;
        };
        let said = job.report::<PreflightReport>().and_then(Result::ok);
        let report = said.filter(|_| job.end.as_ref().is_some_and(|end| end.succeeded));
        if let Some(report) = &report
            && report.errors.is_empty()
            && report.conflict.is_none()
        {
            self.kafka.clone_from(&report.kafka);
            return Some(report.clone());
        }
        match (&job.end, report) {
            (None, _) => match &job.trouble {
                Some(trouble) => {
                    self.outlook.stall("PreflightCannotStart", trouble.clone(), "look at the Job's pod and its events");
                }
                None => self.outlook.progress("Preflight", "the cluster is checked"),
            },
            (Some(_), Some(PreflightReport { conflict: Some(conflict), .. })) => {
                let next =
                    "choose another kafka.internal.prefix, or take it over with the annotation millrace.dev/adopt";
                self.outlook.stall("IdentityConflict", conflict, next);
            }
            (Some(_), Some(report)) => {
                self.outlook.findings = report.errors.clone();
                let next = "correct what is named; the check is repeated by itself";
                self.outlook.stall("PreflightFailed", report.errors.join("\n"), next);
            }
            (Some(end), None) => {
                let message = format!("the preflight has failed: {}", end.message);
                self.outlook.stall(
                    "PreflightFailed",
                    message,
                    "look at the Job's pod; the check is repeated by itself",
                );
            }
        }
        self.retry(job, &errand, run);
        None
    }

    /// Tries a Job again once its time has come.
    pub(super) fn retry(&mut self, job: &Job, errand: &Errand, run: &Run<'_>) {
        if let Some(attempt) = self.next_try(job) {
            self.put(self.source.job(errand, attempt, run));
        }
    }

    /// The number of the next try of a Job that has ended, once its time has come.
    pub(super) fn next_try(&mut self, job: &Job) -> Option<u32> {
        let end = job.end.as_ref()?;
        let due_ms = end.at.ms() + backoff_ms(job.attempt) as i64;
        if due_ms > self.now.ms() {
            self.again_in((due_ms - self.now.ms()) as u64);
            return None;
        }
        Some(job.attempt + 1)
    }

    /// Removes Jobs that have said what they had to say. What was asked in this round is still needed: its last attempt; and
    /// so is a restore for as long as it has its timeline.
    pub(super) fn sweep_jobs(&mut self) {
        let facts = self.facts;
        let needed: Vec<&Job> =
            self.asked.iter().filter_map(|(component, subject)| facts.job(component, subject)).collect();
        let applied = facts.applied.as_ref().map(|kept| kept.value.timeline);
        let given = facts.reserved.as_ref().filter(|given| applied < Some(given.timeline));
        let restores = |job: &Job| job.component == RESTORE && given.is_some_and(|given| given.subject == job.subject);
        for job in facts.jobs.iter().filter(|job| !job.ending && job.component != CLEANUP && !restores(job)) {
            if !needed.contains(&job)
                && let Some(object) = facts.child("Job", &job.name)
            {
                self.delete(object);
            }
        }
    }
}

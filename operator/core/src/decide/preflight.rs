//! The check before anything runs: a short Job, tried again ever more seldom while it finds something.

use millrace_core::report::PreflightReport;

use super::Round;
use crate::facts::Job;
use crate::names::{CLEANUP, PREFLIGHT, digest};
use crate::render::Run;

const BACKOFF_MS: u64 = 5_000;
const BACKOFF_MAX_MS: u64 = 300_000;

/// How long to wait before a Job is tried again that was tried `attempt` times before.
pub fn backoff_ms(attempt: u32) -> u64 {
    BACKOFF_MS.saturating_mul(1 << attempt.min(16)).min(BACKOFF_MAX_MS)
}

/// What a preflight is about: a plan, and how its cluster is reached.
pub fn subject(run: &Run<'_>) -> String {
    digest(&serde_json::json!([run.fingerprint, run.connection, run.version]))
}

impl Round<'_> {
    /// What the preflight of a plan found, once it has passed.
    pub(super) fn preflight(&mut self, run: &Run<'_>) -> Option<PreflightReport> {
        let subject = subject(run);
        self.asked.push(subject.clone());
        let Some(job) = self.facts.preflight(&subject) else {
            self.outlook.progress("Preflight", "the cluster is checked");
            self.put(self.source.job(PREFLIGHT, PREFLIGHT, &subject, 0, run));
            return None;
        };
        let report = job.preflight_report().filter(|_| job.end.as_ref().is_some_and(|end| end.succeeded));
        if let Some(report) = &report
            && report.errors.is_empty()
            && report.conflict.is_none()
        {
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
        let again = |round: &Self, attempt| round.source.job(PREFLIGHT, PREFLIGHT, &subject, attempt, run);
        self.retry(job, again);
        None
    }

    /// Tries a Job again once its time has come.
    pub(super) fn retry(&mut self, job: &Job, again: impl Fn(&Self, u32) -> serde_json::Value) {
        let Some(end) = &job.end else { return };
        let due_ms = end.at.ms() + backoff_ms(job.attempt) as i64;
        if due_ms > self.now.ms() {
            return self.again_in((due_ms - self.now.ms()) as u64);
        }
        let next = again(self, job.attempt + 1);
        self.put(next);
    }

    /// Removes Jobs that have said what they had to say. What was asked in this round is still needed: its last attempt.
    pub(super) fn sweep_jobs(&mut self) {
        let facts = self.facts;
        let needed: Vec<&Job> = self.asked.iter().filter_map(|subject| facts.preflight(subject)).collect();
        for job in facts.jobs.iter().filter(|job| !job.ending && job.component != CLEANUP) {
            if !needed.contains(&job)
                && let Some(object) = facts.child("Job", &job.name)
            {
                self.delete(object);
            }
        }
    }
}

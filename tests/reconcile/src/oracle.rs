//! What must never be seen: [`Audit`] looks at every write of an operator when it lands.

use std::collections::BTreeSet;

use millrace_core::ids::Generation;
use millrace_crds::timestamp::Timestamp;
use millrace_operator_core::names::{ATTEMPT, COMPONENT_LABEL, PREFLIGHT, SUBJECT, UID_LABEL};
use millrace_operator_core::observed::Compilation;
use serde_json::Value;

use crate::api::{Api, label, text};
use crate::wish::{Fit, NAME, compile, fit, number, plan_of};
use crate::worker::{Kafka, Process};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Two live workers have a task by two assignments of one generation.
    TwoOwners { task: String, generation: Generation },
    /// A worker takes a task under a plan that is not the applied one.
    WrongPlan { worker: u32 },
    /// A worker starts while one of another plan runs.
    PlansMixed { worker: u32 },
    /// A plan was applied without a preflight that passed.
    NotChecked,
    /// A spec was applied that has a mistake.
    InvalidApplied,
    /// A plan was applied that cannot take up the state that is there.
    StateLost,
    /// A plan was applied while rows waited that it cannot take up.
    NotDrained,
    /// An assignment was written over one that is not older.
    GenerationWentBack,
    /// An object of a former Pipeline was written over.
    Foreign { object: String },
    /// A Job was tried again too soon.
    NoBackoff,
    /// A healthy worker lost its pod while it had tasks, though nobody was in a hurry.
    TakenAway { worker: u32 },
    /// Pods were touched by an edit that must not touch them.
    Disturbed,
    /// A pipeline whose policy is Retain lost what it has in Kafka.
    NotRetained,
    /// A pipeline went, and what it has in Kafka stays without a word.
    LeftSilently,
    /// Something is written although nothing changes.
    NotQuiet { what: String },
    /// It does not come to what was asked for although all faults have stopped.
    Stuck { at: String },
}

/// Follows what operators write.
#[derive(Default)]
pub struct Audit {
    /// Fingerprint of the plan that was applied last; unknown after a restore.
    pub applied: Option<String>,
    passed: BTreeSet<String>,
    /// What operators have written.
    pub writes: u64,
    pub last_write: String,
    /// One operator is at work. A second one may try again what the first has begun anew, which costs nothing but a Job.
    pub alone: bool,
}

impl Audit {
    /// Before a write of an operator lands.
    pub fn look(&mut self, api: &Api, kafka: &Kafka, processes: &[Process], object: &Value) -> Result<(), Violation> {
        let (kind, name) = (object["kind"].as_str().unwrap_or_default(), text(object, "name"));
        let before = api.get(kind, name).map(|there| &**there);
        if let Some(before) = before
            && kind != "Pod"
            && label(before, UID_LABEL) != label(object, UID_LABEL)
        {
            return Err(Violation::Foreign { object: format!("{kind} {name}") });
        }
        match kind {
            "Job" => self.job(api, object),
            "ConfigMap" if name == format!("{NAME}-applied") => self.plan(kafka, processes, object, before),
            "ConfigMap" if name == format!("{NAME}-assignment") => assignment(object, before),
            _ => Ok(()),
        }
    }

    /// Preflights that have passed are remembered when they have.
    pub fn preflight_passed(&mut self, fingerprint: &str) {
        self.passed.insert(fingerprint.to_owned());
    }

    /// After a restore nobody knows what was applied last.
    pub fn forget(&mut self) {
        self.applied = None;
    }

    fn plan(
        &mut self,
        kafka: &Kafka,
        processes: &[Process],
        object: &Value,
        before: Option<&Value>,
    ) -> Result<(), Violation> {
        let applied = data(object, "applied.json");
        let fingerprint = applied["fingerprint"].as_str().unwrap_or_default().to_owned();
        let valid = matches!(compile(&applied["spec"], None), Compilation::Done(compiled) if compiled.plan.is_some());
        if !valid || crate::wish::fingerprint(plan_of(&applied["spec"])) != fingerprint {
            return Err(Violation::InvalidApplied);
        }
        // Who had the former one in hand is judged by it; where it was lost, nobody can.
        let former = before.and_then(|before| number(data(before, "applied.json")["fingerprint"].as_str()?));
        let next = number(&fingerprint);
        if former == next && former.is_some() {
            self.applied = Some(fingerprint);
            return Ok(());
        }
        if !self.passed.contains(&fingerprint) {
            return Err(Violation::NotChecked);
        }
        if let Some(worker) = processes.iter().find(|process| process.fingerprint != fingerprint) {
            return Err(Violation::WrongPlan { worker: worker.ordinal });
        }
        match former.zip(next).map(|(former, next)| fit(former, next)) {
            Some(Fit::Lost) => return Err(Violation::StateLost),
            Some(Fit::Empty) if !kafka.waiting.is_empty() => return Err(Violation::NotDrained),
            _ => {}
        }
        self.applied = Some(fingerprint);
        Ok(())
    }

    /// Five seconds after the first attempt, twice as long after each further one, and never more than five minutes.
    fn job(&self, api: &Api, job: &Value) -> Result<(), Violation> {
        let about = |job: &Value| job["metadata"]["annotations"][SUBJECT].clone();
        let attempt = |job: &Value| {
            let attempt = job["metadata"]["annotations"][ATTEMPT].as_str();
            attempt.and_then(|attempt| attempt.parse::<u32>().ok()).unwrap_or_default()
        };
        let Some(former) = attempt(job).checked_sub(1) else { return Ok(()) };
        let before = api.of_kind("Job").find(|other| about(other) == about(job) && attempt(other) == former);
        let ended = before.and_then(|before| before["status"]["conditions"][0]["lastTransitionTime"].as_str());
        let ended = ended.and_then(Timestamp::parse).map_or(0, Timestamp::ms);
        let wait_ms = (5_000i64 << former.min(10)).min(300_000);
        if api.now_ms >= ended + wait_ms || !self.alone { Ok(()) } else { Err(Violation::NoBackoff) }
    }
}

pub fn data(map: &Value, key: &str) -> Value {
    map["data"][key].as_str().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

fn assignment(object: &Value, before: Option<&Value>) -> Result<(), Violation> {
    let Some(before) = before else { return Ok(()) };
    let (new, old) = (data(object, "assignment.json"), data(before, "assignment.json"));
    let newer = new["generation"].as_u64() > old["generation"].as_u64();
    if newer || new == old { Ok(()) } else { Err(Violation::GenerationWentBack) }
}

/// The plan of a preflight's Job, by what it mounts.
pub fn checked_plan(pod: &Value) -> Option<String> {
    let passed = pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"].as_str()?;
    let report: Value = serde_json::from_str(passed).ok()?;
    if label(pod, COMPONENT_LABEL) != PREFLIGHT || report["errors"][0].is_string() {
        return None;
    }
    let volume = pod["spec"]["volumes"].as_array()?.iter().find(|volume| volume["name"] == "plan")?;
    Some(volume["configMap"]["name"].as_str()?.rsplit('-').next()?.to_owned())
}

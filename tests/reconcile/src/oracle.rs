//! What must never be seen: [`Audit`] looks at every write of an operator when it lands.

use std::collections::{BTreeMap, BTreeSet};

use millrace_core::assignment::Assignment;
use millrace_core::ids::{Generation, Timeline};
use millrace_crds::timestamp::Timestamp;
use millrace_operator_core::decision::Action;
use millrace_operator_core::facts::Facts;
use millrace_operator_core::names::{ATTEMPT, COMPONENT_LABEL, PREFLIGHT, SUBJECT, UID_LABEL, history};
use millrace_operator_core::observed::{Compilation, Observed};
use serde_json::Value;

use crate::api::{Api, label, text};
use crate::wish::{Fit, NAME, compile, fit, number, plan_of};
use crate::worker::{Kafka, Process, task};

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
    /// Workers were told to go on while others drain.
    DrainTakenBack,
    /// An object of a former Pipeline was written over.
    Foreign { object: String },
    /// A Job was tried again too soon.
    NoBackoff,
    /// A healthy worker lost its pod while it had tasks, though nobody was in a hurry.
    TakenAway { worker: u32 },
    /// A task that a healthy worker ran was given to one that had not read its state, though nobody was in a hurry.
    ColdMove { task: String },
    /// A task was given to a worker that leaves, by an operator that knew it.
    GivenToALeaver { task: String },
    /// A worker that was told to end did so with tasks, though another one could have taken them, and nobody was in a
    /// hurry.
    LeftWithTasks { worker: u32 },
    /// Pods were touched by an edit that must not touch them.
    Disturbed,
    /// A savepoint is said to be whole, and a task in it has read what was written behind its writer's cut.
    Torn,
    /// A worker takes a task on a timeline that nothing was restored to.
    NotRestored { worker: u32 },
    /// A plan is applied on a timeline that something else was restored to, or nothing.
    RestoredElse,
    /// A savepoint was restored again that had been.
    RestoredTwice,
    /// Two restores were given one timeline.
    TimelineShared { timeline: Timeline },
    /// A plan was applied on an older timeline.
    HistoryWentBack,
    /// The same was computed more often than it was asked for.
    BackfilledTwice { what: String },
    /// A backfill is said to have written rows of another one.
    CountedTwice,
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
    /// The plan that was applied last, and its timeline; unknown after the cluster went back to a backup.
    pub applied: Option<String>,
    passed: BTreeSet<String>,
    /// Savepoint, location and attempt.
    restored: BTreeSet<[String; 3]>,
    /// The restore that each timeline was given to.
    given: BTreeMap<Timeline, String>,
    /// How often each Backfill may be computed: as often as it was asked for, and as it was deleted before its end.
    pub backfills: BTreeMap<String, (u32, u32)>,
    /// The cluster has lost what it knew of them.
    pub forgot_backfills: bool,
    /// What operators have written.
    pub writes: u64,
    pub last_write: String,
    /// One operator is at work. A second one may try again what the first has begun anew, which costs nothing but a Job.
    pub alone: bool,
    /// Nothing but the number of replicas was changed, and nobody is in a hurry.
    pub gentle: bool,
}

impl Audit {
    /// Nothing is computed more often than it was asked for.
    pub fn computed(&self, kafka: &Kafka) -> Result<(), Violation> {
        let most = |what: &String| self.backfills.get(what).map_or(0, |(attempt, stopped)| attempt + stopped);
        let mut computed = kafka.computed.iter().filter(|_| !self.forgot_backfills);
        let twice = computed.find(|(what, times)| **times > most(what));
        twice.map_or(Ok(()), |(what, _)| Err(Violation::BackfilledTwice { what: what.clone() }))
    }

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
            "ConfigMap" if name == format!("{NAME}-assignment") => {
                assignment(object, before)?;
                if self.gentle { moves(processes, object, before) } else { Ok(()) }
            }
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
        self.restored.clear();
        self.given.clear();
        self.forgot_backfills = true;
    }

    fn plan(
        &mut self,
        kafka: &Kafka,
        processes: &[Process],
        object: &Value,
        before: Option<&Value>,
    ) -> Result<(), Violation> {
        let applied = data(object, "applied.json");
        self.given(kafka, &data(object, "reserved.json"))?;
        let held = before.map(|before| data(before, "applied.json")).filter(|held| !held.is_null());
        if applied.is_null() && held.is_none() {
            return Ok(());
        }
        let fingerprint = applied["fingerprint"].as_str().unwrap_or_default().to_owned();
        let valid = matches!(compile(&applied["spec"], None), Compilation::Done(compiled) if compiled.plan.is_some());
        if !valid || crate::wish::fingerprint(plan_of(&applied["spec"])) != fingerprint {
            return Err(Violation::InvalidApplied);
        }
        // Who had the former one in hand is judged by it; where it was lost, nobody can.
        let former = held.as_ref().and_then(|held| number(held["fingerprint"].as_str()?));
        let next = number(&fingerprint);
        let own = timeline(&applied);
        let restores = own > held.as_ref().map_or(Timeline(1), timeline) && !kafka.used.contains(&own);
        if held.as_ref().is_some_and(|held| own < timeline(held)) {
            return Err(Violation::HistoryWentBack);
        }
        if restores {
            self.restored(kafka, &applied)?;
        }
        let history = history(&fingerprint, own);
        if former == next && former.is_some() && !restores {
            self.applied = Some(history);
            return Ok(());
        }
        if !self.passed.contains(&fingerprint) {
            return Err(Violation::NotChecked);
        }
        if let Some(worker) = processes.iter().find(|process| process.history() != history) {
            return Err(Violation::WrongPlan { worker: worker.ordinal });
        }
        // What is there already counts for nothing on another timeline.
        match former.zip(next).filter(|_| !restores).map(|(former, next)| fit(former, next)) {
            Some(Fit::Lost) => return Err(Violation::StateLost),
            Some(Fit::Empty) if !kafka.waiting.is_empty() => return Err(Violation::NotDrained),
            _ => {}
        }
        self.applied = Some(history);
        Ok(())
    }

    /// No timeline is given to two restores.
    fn given(&mut self, kafka: &Kafka, reserved: &Value) -> Result<(), Violation> {
        let Some(subject) = reserved["subject"].as_str().filter(|subject| !subject.is_empty()) else { return Ok(()) };
        let timeline = timeline(reserved);
        let former = self.given.insert(timeline, subject.to_owned());
        let shared = former.is_some_and(|former| former != subject);
        if shared && !kafka.forgot { Err(Violation::TimelineShared { timeline }) } else { Ok(()) }
    }

    /// What was asked for lies on the timeline, and it was not restored before.
    fn restored(&mut self, kafka: &Kafka, applied: &Value) -> Result<(), Violation> {
        let Some(last) = applied["restored"].as_array().and_then(|all| all.last()) else {
            return Err(Violation::RestoredElse);
        };
        let key = ["savepoint", "location", "attempt"].map(|field| last[field].to_string());
        let there = kafka.restored.get(&timeline(applied));
        if there.is_none_or(|(location, _)| last["location"] != location.as_str()) {
            return Err(Violation::RestoredElse);
        }
        let again = !self.restored.insert(key);
        if again && !kafka.forgot { Err(Violation::RestoredTwice) } else { Ok(()) }
    }

    /// Five seconds after the first attempt, twice as long after each further one, and never more than five minutes.
    ///
    /// Jobs of a Pipeline that has gone make no such series: as long as an operator has not heard of its end, the garbage
    /// collector removes each of them and the operator makes it anew, so that what it has seen to end long ago and what is
    /// there under that name are not the same Job. Their names keep more than one of an attempt from running at a time.
    fn job(&self, api: &Api, job: &Value) -> Result<(), Violation> {
        if api.get("Pipeline", NAME).is_none_or(|there| text(there, "uid") != label(job, UID_LABEL)) {
            return Ok(());
        }
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

fn timeline(applied: &Value) -> Timeline {
    Timeline(applied["timeline"].as_u64().unwrap_or(1) as u32)
}

/// A task that moves, or is about to, goes to a worker that stays for all that is known.
pub fn moves_to_who_stays(seen: &Observed, action: &Action) -> Result<(), Violation> {
    let Action::Put { object, .. } = action else { return Ok(()) };
    let facts = Facts::of(seen);
    let is_assignment = object["kind"] == "ConfigMap" && text(object, "name") == format!("{NAME}-assignment");
    // Where no pods are, nobody moves.
    let runs = facts.stateful_set.as_ref().is_some_and(|set| set.value.replicas > 0);
    let read = || serde_json::from_value::<Assignment>(data(object, "assignment.json")).ok();
    let Some((new, old)) = read().zip(facts.assignment()).filter(|_| is_assignment && runs) else { return Ok(()) };
    let moved = new.tasks.iter().filter(|to| {
        let from = old.tasks.iter().find(|from| task(from) == task(to));
        from.is_some_and(|from| from.worker != to.worker)
    });
    let warmed = new.warm.iter().filter(|to| !old.warm.contains(to));
    let given = moved.chain(warmed).find(|to| facts.leaves(to.worker));
    given.map_or(Ok(()), |to| Err(Violation::GivenToALeaver { task: task(to).to_string() }))
}

pub fn data(map: &Value, key: &str) -> Value {
    map["data"][key].as_str().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

fn assignment(object: &Value, before: Option<&Value>) -> Result<(), Violation> {
    let Some(before) = before else { return Ok(()) };
    let (new, old) = (data(object, "assignment.json"), data(before, "assignment.json"));
    let newer = new["generation"].as_u64() > old["generation"].as_u64();
    if !newer && new != old {
        return Err(Violation::GenerationWentBack);
    }
    let (placed, former) = (data(object, "placed.json"), data(before, "placed.json"));
    let drains = old["drain"] == true && former["drained"] != true && placed["fingerprint"] == former["fingerprint"];
    if drains && new["drain"] != true { Err(Violation::DrainTakenBack) } else { Ok(()) }
}

/// No task moves from a worker that runs it to one that is not level.
fn moves(processes: &[Process], object: &Value, before: Option<&Value>) -> Result<(), Violation> {
    let read = |map: &Value| serde_json::from_value::<Assignment>(data(map, "assignment.json")).ok();
    let Some((new, old)) = read(object).zip(before.and_then(read)) else { return Ok(()) };
    for (to, from) in new.tasks.iter().flat_map(|to| old.tasks.iter().map(move |from| (to, from))) {
        let id = task(to);
        let of = |worker| processes.iter().find(|process| process.ordinal == worker);
        let runs = of(from.worker).is_some_and(|p| p.reachable && p.is_ready() && p.tasks.contains_key(&id));
        let level = of(to.worker).is_some_and(|process| process.warm.get(&id) == Some(&true));
        if id == task(from) && to.worker != from.worker && runs && !level {
            return Err(Violation::ColdMove { task: id.to_string() });
        }
    }
    Ok(())
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

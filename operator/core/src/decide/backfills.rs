//! Backfills of a Pipeline: one after another, the oldest first.
//!
//! One is begun by one write, into the ConfigMap [`Names::backfills`](crate::names::Names::backfills), which keeps what it
//! began with: the plan, and what guards had done until then with rows of others. All else follows from that ConfigMap. So
//! the same is done once, whatever becomes of its object; and what it has written is known when the object is deleted.
//!
//! What an earlier one of its name has left in Kafka is deleted before its pod is made: its counts begin with nothing. Its pod
//! computes and ends by itself. It has succeeded when every row that it computed was taken by a guard, and none
//! was lost on the way.

use millrace_core::report::{BackfillReport, CleanupReport, TaskState};
use millrace_crds::backfill::{self, BackfillPhase, BackfillStatus};
use millrace_crds::pipeline::{PipelineSpec, WriteMode};
use millrace_crds::timestamp::Timestamp;
use serde_json::Value;

use super::{Round, SOON_MS};
use crate::backfill::{
    Asked, Begun, End, Standing, asked, burns, counts, ended, forget_old, gained, lost, repairs, running, taken,
    waiting,
};
use crate::decision::{About, Action, Event};
use crate::facts::{Applied, Job};
use crate::names::{BACKFILL, COMPONENT_LABEL, CONTROL_PORT};
use crate::render::{Errand, Run};

/// So long after its pod has ended it is waited for workers that tell what they have taken, and so long after its begin for
/// an object that is not seen.
const SETTLE_MS: i64 = 60_000;
/// While numbers move.
const LOOK_MS: u64 = 10_000;
/// A pod that has not ended so long after it had to is on a node that is lost.
const LOST_MS: i64 = 300_000;
/// So often is it tried to delete what one had in Kafka.
const TRIES_MAX: u32 = 3;

impl Round<'_> {
    /// What is to be done for the Backfills, and what is true of each.
    pub(super) fn backfills(&mut self) {
        let facts = self.facts;
        if facts.backfills.is_empty() && facts.begun.is_none() {
            return;
        }
        let mut memory = facts.begun.as_ref().map(|kept| kept.value.clone()).unwrap_or_default();
        let mut said: Vec<(&str, BackfillStatus)> = Vec::new();
        let before = std::mem::take(&mut self.actions);
        if let Some(begun) = memory.iter_mut().find(|begun| begun.end.is_none()) {
            match facts.backfills.iter().find(|asked| asked.digest == begun.digest) {
                Some(asked) => said.push((&asked.uid, self.go_on(asked, begun))),
                // A cache may not have its object yet. Its Job, which nobody asks for, goes at once.
                None if self.now.ms() < begun.at.ms() + SETTLE_MS => self.again_in(LOOK_MS),
                None => self.stop(begun),
            }
        } else if !self.tidies(&mut memory) {
            let over = |asked: &Asked| memory.iter().any(|begun| begun.ends(asked)) || asked.has_ended();
            let open: Vec<&Asked> = facts.backfills.iter().filter(|asked| !over(asked)).collect();
            for asked in open {
                let (standing, begun) = match self.begin(asked) {
                    Ok(begun) => (Standing::waits("Begins", "it begins"), Some(begun)),
                    Err(standing) => (standing, None),
                };
                said.push((&asked.uid, waiting(asked, &standing, self.now)));
                // One that waits for a person is in nobody's way.
                if begun.is_some() || !standing.stalled {
                    memory.extend(begun);
                    break;
                }
            }
        }
        forget_old(&mut memory);
        let decided = std::mem::replace(&mut self.actions, before);
        let is_job = |action: &Action| matches!(action, Action::Put { object, .. } if object["kind"] == "Job");
        if facts.begun.as_ref().map(|kept| &kept.value) != Some(&memory) {
            self.put(self.source.backfills(&memory));
        } else if decided.iter().any(is_job) {
            // Over the version that was judged: one that somebody has ended meanwhile is not begun again.
            self.put_anyway(self.source.backfills(&memory));
        }
        self.actions.extend(decided);
        for asked in &facts.backfills {
            let status = said.iter().find(|(uid, _)| *uid == asked.uid).map(|(_, status)| status.clone());
            let status = status.unwrap_or_else(|| self.stands(asked, &memory));
            let (action, event) = say(asked, status);
            self.actions.extend(action);
            self.events.extend(event);
        }
    }

    /// What is true of one for which nothing is done now.
    fn stands(&self, asked: &Asked, memory: &[Begun]) -> BackfillStatus {
        let over = memory.iter().rev().find(|begun| begun.ends(asked));
        match over.and_then(|begun| Some((begun, begun.end.as_ref()?))) {
            Some((begun, end)) => ended(asked, begun, end, self.now),
            // The memory of it has gone with a former Pipeline of this name, or with time.
            None if asked.has_ended() => {
                BackfillStatus { observed_generation: Some(asked.generation), ..asked.status.clone() }
            }
            None => {
                let applied = self.facts.applied.as_ref().map(|kept| &kept.value);
                let spec = applied.and_then(|applied| super::validate::spec_of(&applied.spec, self.facts));
                let queued = || Standing::waits("Queued", "waits until an earlier one of the pipeline has ended");
                let standing = spec.and_then(|spec| mistake(asked, &spec)).unwrap_or_else(queued);
                waiting(asked, &standing, self.now)
            }
        }
    }

    /// What one begins with, or why it does not yet.
    fn begin(&mut self, asked: &Asked) -> Result<Begun, Standing> {
        let facts = self.facts;
        let busy = || Standing::waits("PipelineBusy", "waits until every task of the pipeline runs");
        let applied = facts.applied.as_ref().map(|kept| &kept.value).ok_or_else(busy)?;
        let spec = super::validate::spec_of(&applied.spec, facts).ok_or_else(busy)?;
        if let Some(mistake) = mistake(asked, &spec) {
            return Err(mistake);
        }
        let sinks = sinks(asked, &spec);
        if asked.spec.suspend {
            return Err(Standing::waits("Suspended", "suspended, and not begun yet"));
        }
        if super::replicas(&spec) == 0 {
            return Err(Standing::waits(
                "PipelineSuspended",
                "waits until the pipeline runs, which takes what is computed",
            ));
        }
        // What they said before the last one had ended does not have all of its rows.
        let begun = facts.begun.iter().flat_map(|kept| &kept.value);
        let last_ms = begun.filter_map(|begun| Some(begun.end.as_ref()?.at.ms())).max().unwrap_or_default();
        if !self.all_run() || facts.observed.reported_ms.is_none_or(|asked_ms| asked_ms < last_ms) {
            return Err(busy());
        }
        Ok(Begun {
            name: asked.name.clone(),
            uid: asked.uid.clone(),
            digest: asked.digest.clone(),
            attempt: asked.spec.attempt,
            at: Timestamp::from_ms(self.now.ms().div_euclid(1_000) * 1_000),
            plan: applied.plan,
            fingerprint: applied.fingerprint.clone(),
            version: applied.version.clone(),
            timeline: applied.timeline,
            sinks,
            document: asked.document(&facts.names.namespace),
            before: repairs(facts.observed.reports.values()),
            end: None,
            clean: false,
            tidy: false,
        })
    }

    /// Whether every task of the pipeline says that it runs: then counts of all of them are there.
    fn all_run(&self) -> bool {
        let Some(placed) = self.facts.placed.as_ref().map(|kept| &kept.value) else { return false };
        let reports = self.facts.observed.reports.values();
        let run = reports.flat_map(|report| &report.tasks).filter(|task| task.state == TaskState::Running).count();
        let all: i32 = placed.stages.values().sum();
        all > 0 && usize::try_from(all) == Ok(run)
    }

    /// Has one compute, and says how far it is.
    fn go_on(&mut self, asked: &Asked, begun: &mut Begun) -> BackfillStatus {
        let facts = self.facts;
        self.again_in(LOOK_MS);
        begun.document = asked.document(&facts.names.namespace);
        let run = facts.applied.as_ref().map(|kept| kept.value.clone());
        let run = run.and_then(|applied| Some((super::validate::spec_of(&applied.spec, facts)?, applied)));
        let found = match &run {
            None => Found::Stands(Standing::waits("PipelineBusy", "waits for the pipeline")),
            Some((spec, applied)) => self.find(asked, begun, (spec, applied)),
        };
        let gained = gained(begun, &repairs(facts.observed.reports.values()));
        let (standing, report) = match found {
            Found::Ended(end) => {
                begun.end = Some(end.clone());
                begun.before.clear();
                return ended(asked, begun, &end, self.now);
            }
            Found::Computed(job, report) => match self.settle(begun, &job, &report) {
                Ok(end) => {
                    begun.end = Some(end.clone());
                    begun.before.clear();
                    return ended(asked, begun, &end, self.now);
                }
                Err(standing) => (standing, Some(*report)),
            },
            Found::Silent => {
                return BackfillStatus { observed_generation: Some(asked.generation), ..asked.status.clone() };
            }
            Found::Stands(standing) => (standing, facts.observed.backfill.clone()),
        };
        running(asked, begun, &standing, (report.as_ref(), &gained), self.now)
    }

    /// What is found of one that was begun.
    fn find(&mut self, asked: &Asked, begun: &mut Begun, (spec, applied): (&PipelineSpec, &Applied)) -> Found {
        let now = self.now;
        let failed = |message: String| {
            let message = format!("{message}; then raise spec.attempt to do it again");
            Found::Ended(End { at: now, phase: BackfillPhase::Failed, message, counts: None, lost: Vec::new() })
        };
        if applied.timeline != begun.timeline {
            return failed(format!(
                "the pipeline was restored meanwhile and goes on as timeline {}, which knows nothing of this: wait until it runs",
                applied.timeline
            ));
        }
        if let Some(gone) = begun.sinks.iter().find(|sink| !upserts(spec, sink)) {
            return failed(format!("sink '{gone}' is gone, or appends now: correct the Pipeline or the Backfill"));
        }
        let (connection, object) = self.source.connection(&applied.spec, &super::validate::annotations(self.facts));
        if asked.spec.suspend {
            // Its Job, which nobody has asked for, is swept.
            return Found::Stands(Standing::new(
                BackfillPhase::Paused,
                "Suspended",
                "suspended; it goes on from where it was",
            ));
        }
        if !begun.clean {
            let starts = |why: String| Found::Stands(Standing::new(BackfillPhase::Pending, "Begins", why));
            match self.tidied(begun) {
                Tidied::Yes => begun.clean = true,
                Tidied::NotYet => return starts("what an earlier one of its name has in Kafka is deleted".to_owned()),
                Tidied::Not { left, .. } => {
                    return starts(format!(
                        "what an earlier one of its name has in Kafka could not be deleted: {left}"
                    ));
                }
            }
            // Its pod comes when this is written down.
            return starts("it begins".to_owned());
        }
        self.put(object);
        self.put(self.source.backfill_document(begun));
        self.asked.push((BACKFILL, begun.subject()));
        let Begun { version, fingerprint, timeline, .. } = &*begun;
        let run = Run { spec, version, fingerprint, connection: &connection, timeline: *timeline };
        let Some(job) = self.facts.job(BACKFILL, &begun.subject()).cloned() else {
            self.put(self.source.backfill(begun, 0, &run));
            return Found::Stands(Standing::new(BackfillPhase::Running, "Starts", "its pod is made"));
        };
        let report = job.report::<BackfillReport>();
        let object = self.facts.child("Job", &job.name).filter(|_| job.end.is_none());
        if let Some(object) = object.filter(|object| !mounts(object, &self.facts.names.connection(&connection))) {
            self.delete(object);
            let message = "its pod is made again, since the Pipeline reaches its Kafka in another way";
            return Found::Stands(Standing::new(BackfillPhase::Running, "Starts", message));
        }
        if job.refused {
            let why = trouble(&job).unwrap_or_else(|| "see its log".to_owned());
            return failed(format!("it cannot be done: {why}. Correct what is named"));
        }
        match (&job.end, report) {
            (None, _) => self.pace(asked, begun, (spec, &job)),
            (Some(_), Some(Ok(report))) if report.taken => Found::Computed(job, Box::new(report)),
            // What it had to say was lost, or it was begun again too often: one that comes after it knows the same.
            (Some(_), _) => {
                if let Some(attempt) = self.next_try(&job) {
                    self.put(self.source.backfill(begun, attempt, &run));
                }
                let why = trouble(&job).unwrap_or_else(|| "its pod has gone".to_owned());
                Found::Stands(Standing::new(
                    BackfillPhase::Running,
                    "BegunAgain",
                    format!("its pod is made again: {why}"),
                ))
            }
        }
    }

    /// Tells the pod how fast it may read, and says what it does.
    fn pace(&mut self, asked: &Asked, begun: &Begun, (spec, job): (&PipelineSpec, &Job)) -> Found {
        let slos = self.facts.observed.slos.as_ref();
        let slo = asked.spec.yield_to_live.as_ref().map(|way| way.slo.as_str());
        let quiet_ms = slo.zip(slos).and_then(|(slo, said)| said.quiet_ms.get(slo)).copied();
        let Some(report) = &self.facts.observed.backfill else {
            // It may only be slow to answer.
            let known = asked.status.started_at == Some(begun.at);
            let open = asked.status.phase.is_some_and(|phase| !phase.has_ended() && phase != BackfillPhase::Pending);
            if job.runs && known && open {
                return Found::Silent;
            }
            let why = trouble(job).filter(|_| !job.runs).unwrap_or_else(|| "its pod starts".to_owned());
            return Found::Stands(Standing::new(BackfillPhase::Running, "Starts", why));
        };
        if report.computed {
            let message = "all is computed, and the pipeline takes it";
            return Found::Stands(Standing::new(BackfillPhase::Applying, "Applying", message));
        }
        // Its slices are bad some time after.
        let facts = self.facts;
        let silent = facts.workers().any(|(_, report)| report.is_none()) && slo.is_some();
        let allowed = if silent { Some(0) } else { asked.allowed(quiet_ms) };
        if let Some(address) = job.address.as_ref().filter(|_| report.records_per_second != allowed) {
            let address = format!("{address}:{CONTROL_PORT}");
            self.actions.push(Action::Pace { address, records_per_second: allowed });
        }
        let yields =
            |message: String| Standing { yields: true, ..Standing::new(BackfillPhase::Paused, "Yielding", message) };
        if let Some(mistake) = mistake(asked, spec) {
            return Found::Stands(Standing { phase: BackfillPhase::Paused, ..mistake });
        }
        if silent {
            let message = "a worker of the pipeline does not answer: nothing is read until it does";
            return Found::Stands(yields(message.to_owned()));
        }
        Found::Stands(match (slo.filter(|_| burns(quiet_ms)), allowed) {
            (Some(slo), _) => yields(format!(
                "SLO {slo} of the pipeline has had a bad slice, or is watched since a moment ago only: nothing is read until it \
                 was good for a minute"
            )),
            (None, Some(0)) => Standing::new(BackfillPhase::Paused, "NoRate", "spec.rateLimit is 0"),
            (None, _) => Standing::new(BackfillPhase::Running, "Computes", ""),
        })
    }

    /// How one has ended whose pod has, once every worker has told what it has taken.
    fn settle(&mut self, begun: &Begun, job: &Job, report: &BackfillReport) -> Result<End, Standing> {
        let gained = gained(begun, &repairs(self.facts.observed.reports.values()));
        // Of a worker that cannot be asked nothing is known, however long that lasts, and what it said before counts for nothing.
        let overdue_ms = job.end.as_ref().map_or(0, |end| end.at.ms()) + SETTLE_MS;
        let overdue = self.facts.observed.reported_ms.is_some_and(|asked_ms| asked_ms >= overdue_ms);
        let settled = self.all_run() && (taken(&gained) >= report.rows || overdue);
        if !settled {
            let message = match self.facts.pods.is_empty() {
                true => "all is computed and taken, and its counts are known when the pipeline runs again: resume it",
                false => "all is computed and taken, and workers are asked for their counts",
            };
            return Err(Standing::new(BackfillPhase::Applying, "Counting", message));
        }
        let (counts, lost) = (counts(report, &gained), lost(report, &gained));
        let (phase, message) = match lost.as_slice() {
            [] => (BackfillPhase::Succeeded, format!("{} rows were written", counts.applied)),
            lost => {
                (BackfillPhase::CompletedWithLoss, format!("{} rows were written; {}", counts.applied, lost.join("; ")))
            }
        };
        Ok(End { at: self.now, phase, message, counts: Some(counts), lost })
    }

    /// Ends one whose object is gone.
    fn stop(&mut self, begun: &mut Begun) {
        let gained = gained(begun, &repairs(self.facts.observed.reports.values()));
        let written: u64 = gained.values().map(|totals| totals.rows_out).sum();
        let message = format!(
            "Backfill {} was deleted before its end: {written} rows of it were written to {}, and stay",
            begun.name,
            begun.sinks.join(", ")
        );
        self.events.push(Event::normal("BackfillStopped", message.clone()));
        let counts = Some(backfill::BackfillCounts {
            applied: i64::try_from(written).unwrap_or(i64::MAX),
            ..backfill::BackfillCounts::default()
        });
        begun.end = Some(End { at: self.now, phase: BackfillPhase::Failed, message, counts, lost: Vec::new() });
        begun.before.clear();
    }

    /// Ends the one that runs, and deletes what any has in Kafka, for a Pipeline that goes with all that it owns.
    pub(super) fn ends_backfills(&mut self) -> bool {
        let facts = self.facts;
        let Some(kept) = &facts.begun else { return true };
        let mut memory = kept.value.clone();
        let jobs = facts.jobs.iter().filter(|job| job.component == BACKFILL && !job.ending);
        for object in jobs.filter_map(|job| facts.child("Job", &job.name)) {
            self.delete(object);
        }
        memory.iter_mut().filter(|begun| begun.end.is_none()).for_each(|begun| self.stop(begun));
        let left = self.tidies(&mut memory);
        if memory != kept.value {
            self.put(self.source.backfills(&memory));
        }
        !left
    }

    /// Whether something of one that has ended is still to be deleted in Kafka.
    fn tidies(&mut self, memory: &mut [Begun]) -> bool {
        let Some(begun) = memory.iter_mut().find(|begun| begun.end.is_some() && !begun.tidy) else { return false };
        match self.tidied(begun) {
            Tidied::Yes => begun.tidy = true,
            Tidied::NotYet => {}
            Tidied::Not { left, tries } if tries >= TRIES_MAX => {
                let note = format!("what Backfill {} had in Kafka was not deleted: {left}", begun.name);
                self.events.push(Event::warning("LeftBehind", note));
                begun.tidy = true;
            }
            Tidied::Not { .. } => {}
        }
        true
    }

    /// Deletes what one has in Kafka, and tries again while that fails.
    fn tidied(&mut self, begun: &Begun) -> Tidied {
        let facts = self.facts;
        if facts.children().any(|object| computes(object, self.now)) {
            self.again_in(SOON_MS);
            return Tidied::NotYet;
        }
        let Some(applied) = facts.applied.as_ref().map(|kept| kept.value.clone()) else { return Tidied::NotYet };
        let Some(spec) = super::validate::spec_of(&applied.spec, facts) else { return Tidied::NotYet };
        let (connection, object) = self.source.connection(&applied.spec, &super::validate::annotations(facts));
        self.put(object);
        self.put(self.source.backfill_document(begun));
        let Begun { version, fingerprint, timeline, .. } = begun;
        let run = Run { spec: &spec, version, fingerprint, connection: &connection, timeline: *timeline };
        let (errand, mount) = (Errand::tidy(begun), self.source.backfill_mount(begun));
        self.asked.push((errand.component, errand.subject.clone()));
        let Some(job) = facts.job(errand.component, &errand.subject) else {
            self.put(self.source.job_with(&errand, 0, &run, &mount));
            return Tidied::NotYet;
        };
        let left = match job.report::<CleanupReport>() {
            None => return Tidied::NotYet,
            Some(Ok(report)) if report.errors.is_empty() => return Tidied::Yes,
            Some(Ok(report)) => report.errors.join("; "),
            Some(Err(said)) => said,
        };
        let tries = job.attempt + 1;
        if begun.end.is_none() || tries < TRIES_MAX {
            let next = self.next_try(job).map(|attempt| self.source.job_with(&errand, attempt, &run, &mount));
            next.into_iter().for_each(|job| self.put(job));
        }
        Tidied::Not { left, tries }
    }
}

/// Whether it is a pod of a backfill that may still write. One that was to end long ago is on a node that is lost.
fn computes(object: &Value, now: Timestamp) -> bool {
    let own = object["kind"] == "Pod" && object["metadata"]["labels"][COMPONENT_LABEL] == BACKFILL;
    let over = object["status"]["containerStatuses"][0]["state"]["terminated"].is_object();
    let told = object["metadata"]["deletionTimestamp"].as_str().and_then(Timestamp::parse);
    own && !over && told.is_none_or(|told| now.ms() < told.ms() + LOST_MS)
}

/// Whether what one had in Kafka is deleted.
enum Tidied {
    Yes,
    NotYet,
    Not { left: String, tries: u32 },
}

/// What was found of a backfill.
enum Found {
    Stands(Standing),
    /// Its pod runs, and did not answer just now.
    Silent,
    /// Its pod has ended, and says how.
    Computed(Job, Box<BackfillReport>),
    Ended(End),
}

/// What keeps one from being begun that a person has to correct.
fn mistake(asked: &Asked, spec: &PipelineSpec) -> Option<Standing> {
    if let Some(way) = &asked.spec.yield_to_live
        && !spec.slos.iter().any(|slo| slo.name == way.slo)
    {
        let message = format!("spec.yieldToLive.slo: the Pipeline has no SLO '{}'; name one of its own", way.slo);
        return Some(Standing::stalled("NoSuchSlo", message));
    }
    let sinks = sinks(asked, spec);
    let other = sinks.iter().find(|sink| !upserts(spec, sink))?;
    let message = format!(
        "spec.sinks: '{other}' is no sink of the Pipeline with write: {{mode: Upsert}}, so that its rows would be there \
         twice; name those that are"
    );
    Some(Standing::stalled("SinkAppends", message))
}

/// The sinks that are repaired.
fn sinks(asked: &Asked, spec: &PipelineSpec) -> Vec<String> {
    match asked.spec.sinks.as_slice() {
        [] => spec.sinks.iter().map(|sink| sink.name.clone()).collect(),
        named => named.to_vec(),
    }
}

/// What its pod says of itself when it has failed, else what Kubernetes says of it.
fn trouble(job: &Job) -> Option<String> {
    let said = job.trouble.as_ref()?;
    let report = serde_json::from_str::<BackfillReport>(said).ok().filter(|report| !report.errors.is_empty());
    Some(report.map_or_else(|| said.clone(), |report| report.errors.join("; ")))
}

/// Whether the pods of a Job read a ConfigMap.
fn mounts(job: &Value, map: &str) -> bool {
    let volumes = job["spec"]["template"]["spec"]["volumes"].as_array();
    volumes.into_iter().flatten().any(|volume| volume["configMap"]["name"] == map)
}

fn upserts(spec: &PipelineSpec, sink: &str) -> bool {
    let named = spec.sinks.iter().find(|other| other.name == sink);
    named.is_some_and(|sink| sink.write.mode == WriteMode::Upsert)
}

/// A status to be written, unless it is there.
fn say(asked: &Asked, status: BackfillStatus) -> (Option<Action>, Option<Event>) {
    let before = &asked.status;
    if *before == status {
        return (None, None);
    }
    let message = status.message.clone().unwrap_or_default();
    let event = match status.phase {
        phase if phase == before.phase && status.attempt == before.attempt => None,
        Some(BackfillPhase::Succeeded) => Some(Event::normal("Succeeded", message)),
        Some(BackfillPhase::AlreadyDone) => Some(Event::normal("AlreadyDone", message)),
        Some(BackfillPhase::CompletedWithLoss) => Some(Event::warning("CompletedWithLoss", message)),
        Some(BackfillPhase::Failed) => Some(Event::warning("Failed", message)),
        Some(BackfillPhase::Paused) => Some(Event::normal("Paused", message)),
        Some(BackfillPhase::Running) if before.phase == Some(BackfillPhase::Paused) => {
            Some(Event::normal("GoesOn", "it reads again"))
        }
        Some(BackfillPhase::Running) if before.started_at != status.started_at => {
            Some(Event::normal("Begun", "its range is computed"))
        }
        _ => None,
    };
    let about = About { kind: backfill::KIND, name: asked.name.clone(), uid: asked.uid.clone() };
    let (name, uid, over) = (asked.name.clone(), asked.uid.clone(), asked.resource_version.clone());
    let action = Action::BackfillStatus { name, uid, status: Box::new(status), over };
    (Some(action), event.map(|event| Event { about: Some(about), ..event }))
}

/// Of Backfills whose Pipeline is not there.
pub(super) fn alone(objects: &[Value], now: Timestamp) -> Vec<Action> {
    let missing = |asked: &Asked| {
        let name = &asked.spec.pipeline_ref.name;
        let standing = Standing::stalled("PipelineMissing", format!("there is no Pipeline {name} in the namespace"));
        say(asked, waiting(asked, &standing, now)).0
    };
    asked(objects).iter().filter(|asked| !asked.has_ended()).filter_map(missing).collect()
}

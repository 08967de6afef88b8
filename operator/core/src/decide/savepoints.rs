//! Savepoints of a Pipeline: one after another, the oldest first.
//!
//! What is cut stands in the assignment, and so do the epochs; how often it was begun stands in the Savepoint's status. A
//! cut that is lost is begun anew under another id, which has in it the generation that it began with, and when: no id is
//! ever given twice, whatever was lost or restored meanwhile. The generation alone would be, where the Savepoint and what
//! lies in storage outlive a Pipeline that is deleted with its control topic. While a cut is under way no task moves and no
//! pod is replaced, but whatever is broken is healed, and costs the attempt.

use millrace_core::assignment::{Cut, Placement};
use millrace_core::report::{SavepointReport, cut_digest};
use millrace_crds::pipeline::{DesiredState, PipelineSpec};
use millrace_crds::savepoint::{SavepointPhase, SavepointStatus};
use millrace_crds::timestamp::Timestamp;
use serde_json::Value;

use super::{RESYNC_MS, Round, SOON_MS};
use crate::cut::{self, Epochs, Going, Readers};
use crate::decision::{About, Action, Decision, Event};
use crate::facts::{Applied, Placed, Pod};
use crate::names::FINALIZER;
use crate::render::{Errand, Run};
use crate::savepoint::{Saved, Standing, aged, completed, savepoints};

/// A savepoint that was lost so often is given up: something is wrong that a person has to find.
const ATTEMPTS_MAX: i64 = 5;
/// So often is a cut tried to be written down before it counts as lost.
const TRIES_MAX: u32 = 4;
/// Tasks that a message names.
const TASKS_MAX: usize = 5;

/// What was found out about the Savepoint in hand.
pub(super) enum Said {
    Stands(Standing),
    Completed(Box<SavepointReport>),
}

/// A cut to be told, with the epochs of what was cut. A new one has no id yet.
pub(super) type Telling = (Option<Cut>, Vec<(millrace_core::ids::TaskId, millrace_core::ids::Epoch)>);

impl<'a> Round<'a> {
    /// The Savepoint that is made now: the one that has a cut already, else the oldest.
    pub(super) fn in_hand(&self) -> Option<&'a Saved> {
        let facts = self.facts;
        let mut open = facts.savepoints.iter().filter(|s| s.is_of(&facts.names.pipeline) && !s.has_ended());
        open.clone().find(|savepoint| self.is_cut(savepoint)).or_else(|| open.next())
    }

    fn is_cut(&self, savepoint: &Saved) -> bool {
        self.facts.assignment().and_then(|last| last.savepoint.as_ref()).is_some_and(|cut| savepoint.owns(&cut.id))
    }

    /// The Savepoint whose cut a new plan has to wait for. It waits for none that workers cannot end: the plan may be what
    /// mends them.
    pub(super) fn must_wait_for(&self, spec: &PipelineSpec) -> Option<&'a Saved> {
        let wanted = super::replicas(spec) as usize;
        let healthy = (1..=self.facts.pods.len()).contains(&wanted) && self.facts.pods.iter().all(Pod::is_fit);
        self.in_hand().filter(|savepoint| healthy && self.is_cut(savepoint))
    }

    /// The Savepoint that can be made while this is wanted, and who reads whom.
    pub(super) fn savable(&mut self, applied: &Applied, spec: &PipelineSpec) -> Option<(&'a Saved, Readers)> {
        let savepoint = self.in_hand().filter(|_| spec.state.storage.is_some())?;
        let facts = self.facts;
        if let Some(pod) = facts.pods.iter().find(|pod| facts.leaves(pod.ordinal)) {
            let message = format!("worker {} ends, and its tasks move first", pod.ordinal);
            self.said(savepoint, Standing::waits("WorkerLeaves", message));
            return None;
        }
        let readers = self.plan_of(applied).as_ref().and_then(cut::readers);
        if readers.is_none() {
            self.said(savepoint, Standing::waits("PlanUnknown", "the plan that runs is not stored"));
        }
        Some((savepoint, readers?))
    }

    /// The next step of the cut, where these are the next assignment's tasks.
    pub(super) fn cut(
        &mut self,
        placed: Option<&Placed>,
        tasks: &[Placement],
        saved: Option<(&'a Saved, Readers)>,
        run: &Run<'_>,
    ) -> Telling {
        let Some((savepoint, readers)) = saved else { return (None, Vec::new()) };
        let anew = || (Some(Cut { id: String::new(), stages: cut::last_stages(&readers) }), Vec::new());
        let last = placed.and_then(|placed| Some((placed, placed.assignment.as_ref()?)));
        let under_way = last.and_then(|(placed, last)| Some((placed, last, last.savepoint.as_ref()?)));
        let Some((placed, last, told)) = under_way.filter(|(.., told)| savepoint.owns(&told.id)) else {
            self.said(
                savepoint,
                Standing { phase: SavepointPhase::Cutting, ..Standing::waits("Cutting", "it begins") },
            );
            self.again_in(SOON_MS);
            return anew();
        };
        self.again_in(SOON_MS);
        let epochs: Epochs = placed.cut.iter().cloned().collect();
        let advanced = cut::advance(last, tasks, told, &epochs, &readers, |worker| self.facts.report(worker));
        let lost = match advanced.and_then(|going| self.write_down(savepoint, &going, run).map(|()| going)) {
            Ok(Going { cut, epochs, .. }) => return (Some(cut), epochs.into_iter().collect()),
            Err(lost) => lost,
        };
        let status = &savepoint.status;
        let attempt = status.attempt.unwrap_or_default() + i64::from(status.id.as_ref() != Some(&told.id));
        let id = Some(told.id.clone());
        if attempt < ATTEMPTS_MAX {
            let message = format!("attempt {attempt} was lost, and it begins anew: {lost}");
            let standing = Standing::waits("BegunAnew", message);
            self.said(savepoint, Standing { phase: SavepointPhase::Cutting, id, ..standing });
            return anew();
        }
        let message = format!("{attempt} attempts were lost, the last one since {lost}; make another Savepoint");
        let standing = Standing::stalled("AttemptsExhausted", message);
        self.said(savepoint, Standing { phase: SavepointPhase::Failed, id, ..standing });
        (Some(told.clone()), placed.cut.clone())
    }

    /// Has a savepoint written down once every task is stored; an error says why the cut is worth nothing.
    fn write_down(&mut self, savepoint: &Saved, going: &Going, run: &Run<'_>) -> Result<(), String> {
        let errand = Errand::save(&going.cut.id);
        let id = Some(going.cut.id.clone());
        let begun = self.facts.job(errand.component, &errand.subject).is_some();
        if !going.is_stored() && !begun {
            let (phase, reason, word) = match going.whole {
                true => (SavepointPhase::Storing, "Storing", "store"),
                false => (SavepointPhase::Cutting, "Cutting", "cut"),
            };
            let message = format!("waits for workers to {word} {}", listed(going));
            self.said(savepoint, Standing { phase, id, ..Standing::waits(reason, self.troubles(message)) });
            return Ok(());
        }
        let writing = |message: String| Standing {
            phase: SavepointPhase::Writing,
            id: id.clone(),
            ..Standing::waits("Writing", message)
        };
        let job = self.send(&errand, run);
        let report = job.and_then(|job| job.report::<SavepointReport>());
        let errors = match (job, report) {
            (_, Some(Ok(report))) if report.errors.is_empty() => {
                // What was written down must be what was cut, and not what a task left that was cut once more.
                if !report.cut.is_empty() && report.cut != cut_digest(&going.epochs) {
                    return Err("what lies in storage is not what was cut".to_owned());
                }
                self.said = Some((savepoint.uid.clone(), Said::Completed(Box::new(report))));
                return Ok(());
            }
            (Some(job), None) => {
                let message = job.trouble.clone().unwrap_or_else(|| "what is in flight is copied".to_owned());
                self.said(savepoint, writing(message));
                return Ok(());
            }
            (None, _) => {
                self.said(savepoint, writing("what is in flight is copied".to_owned()));
                return Ok(());
            }
            (_, Some(Ok(report))) => report.errors.join("\n"),
            (_, Some(Err(said))) => said,
        };
        if let Some(job) = job {
            if job.attempt + 1 >= TRIES_MAX {
                return Err(format!("it could not be written down: {errors}"));
            }
            self.retry(job, &errand, run);
        }
        self.said(savepoint, writing(errors));
        Ok(())
    }

    /// What workers say of snapshots that they cannot write.
    fn troubles(&self, message: String) -> String {
        let said = self.facts.observed.reports.values().filter_map(|report| report.savepoint.as_ref());
        match said.flat_map(|said| &said.messages).next() {
            Some(trouble) => format!("{message}: {trouble}"),
            None => message,
        }
    }

    fn said(&mut self, savepoint: &Saved, standing: Standing) {
        self.said = Some((savepoint.uid.clone(), Said::Stands(standing)));
    }

    /// What is true of each Savepoint of this Pipeline.
    pub(super) fn savepoints(&mut self) {
        let facts = self.facts;
        for savepoint in facts.savepoints.iter().filter(|s| s.is_of(&facts.names.pipeline)) {
            if savepoint.deleted_at.is_some() {
                self.discard(savepoint);
                continue;
            }
            self.actions.extend(hold(savepoint));
            let status = match self.said.take_if(|(uid, _)| *uid == savepoint.uid) {
                Some((_, Said::Completed(report))) => {
                    let timeline = facts.applied.as_ref().map(|kept| kept.value.timeline);
                    completed(savepoint, &report, timeline, self.now)
                }
                Some((_, Said::Stands(standing))) => standing.status(savepoint, self.now),
                None if savepoint.is_completed() => aged(savepoint, self.now),
                None if savepoint.has_ended() => savepoint.status.clone(),
                None => self.waits(savepoint).status(savepoint, self.now),
            };
            let status = self.clear_up(status);
            let (actions, events) = say(savepoint, status);
            self.actions.extend(actions);
            self.events.extend(events);
        }
    }

    /// Why nothing is done for a Savepoint.
    fn waits(&self, savepoint: &Saved) -> Standing {
        let Ok(pipeline) = &self.facts.parsed else {
            return Standing::waits("PipelineInvalid", "the spec of the pipeline is wrong");
        };
        let spec = &pipeline.spec;
        let ahead = self.in_hand().filter(|ahead| ahead.uid != savepoint.uid);
        match (spec.desired_state, ahead) {
            _ if spec.state.storage.is_none() => Standing::stalled(
                "NoStorage",
                "the pipeline has no spec.state.storage, where a savepoint could be kept",
            ),
            (DesiredState::Suspended, _) => {
                Standing::stalled("PipelineSuspended", "only a pipeline that runs can be saved; this one is suspended")
            }
            (DesiredState::Drained, _) => {
                Standing::stalled("PipelineDrained", "only a pipeline that runs can be saved; this one is drained")
            }
            _ if spec.replicas == 0 => Standing::stalled(
                "PipelineSuspended",
                "only a pipeline that runs can be saved; this one has no replicas",
            ),
            (_, Some(ahead)) => Standing::waits("Queued", format!("waits until Savepoint {} is made", ahead.name)),
            (_, None) => Standing::waits("PipelineBusy", "waits until the pipeline runs its plan"),
        }
    }

    /// A Savepoint that goes, with its files if it says so.
    fn discard(&mut self, savepoint: &Saved) {
        if !savepoint.held() {
            return;
        }
        let deadline_ms = savepoint.deleted_at.map_or(0, Timestamp::ms) + self.settings.deletion_deadline.ms();
        let Some(id) = savepoint.status.id.clone().filter(|_| savepoint.must_hold()) else {
            return self.actions.push(release(savepoint));
        };
        if self.now.ms() >= deadline_ms {
            let (action, event) = left_behind(savepoint, "the deletion's deadline has passed");
            self.actions.push(action);
            return self.events.push(event);
        }
        self.again_in((deadline_ms - self.now.ms()) as u64 + 1);
        if [id].iter().chain(&savepoint.status.abandoned).all(|id| self.is_discarded(id)) {
            self.actions.push(release(savepoint));
            self.events.push(about(savepoint, Event::normal("Deleted", "its files were deleted")));
        }
    }

    /// Deletes the files of attempts that were lost, one after another.
    fn clear_up(&mut self, mut status: SavepointStatus) -> SavepointStatus {
        if status.abandoned.first().is_some_and(|id| self.is_discarded(id)) {
            status.abandoned.remove(0);
        }
        status
    }

    /// Whether the files of an attempt are deleted, for which a Job is sent.
    fn is_discarded(&mut self, id: &str) -> bool {
        let Some(applied) = self.facts.applied.as_ref().map(|kept| kept.value.clone()) else { return false };
        let Some(spec) = super::validate::spec_of(&applied.spec, self.facts) else { return false };
        let (connection, object) = self.source.connection(&applied.spec, &super::validate::annotations(self.facts));
        self.put(object);
        let (errand, run) = (Errand::discard(id), applied.run(&spec, &connection));
        let Some(job) = self.send(&errand, &run) else { return false };
        match job.report::<SavepointReport>() {
            Some(Ok(report)) if report.errors.is_empty() => return true,
            Some(_) => self.retry(job, &errand, &run),
            None => {}
        }
        false
    }
}

/// Keeps a Savepoint until its files are gone, if they shall go with it.
fn hold(savepoint: &Saved) -> Option<Action> {
    if savepoint.must_hold() == savepoint.held() {
        return None;
    }
    if savepoint.held() {
        return Some(release(savepoint));
    }
    let finalizers = savepoint.finalizers.iter().cloned().chain([FINALIZER.to_owned()]).collect();
    Some(finalizers_of(savepoint, finalizers))
}

fn release(savepoint: &Saved) -> Action {
    finalizers_of(savepoint, savepoint.finalizers.iter().filter(|name| *name != FINALIZER).cloned().collect())
}

fn finalizers_of(savepoint: &Saved, finalizers: Vec<String>) -> Action {
    let over = savepoint.resource_version.clone();
    Action::SetFinalizers { savepoint: Some(savepoint.name.clone()), finalizers, over }
}

fn about(savepoint: &Saved, event: Event) -> Event {
    let (kind, name, uid) = (millrace_crds::savepoint::KIND, savepoint.name.clone(), savepoint.uid.clone());
    Event { about: Some(About { kind, name, uid }), ..event }
}

/// Lets a Savepoint go, and says what stays.
fn left_behind(savepoint: &Saved, why: &str) -> (Action, Event) {
    let what = savepoint.status.location.as_ref().or(savepoint.status.id.as_ref());
    let note = format!("{why}: its files stay in storage, at {}", what.map_or("an unknown place", String::as_str));
    (release(savepoint), about(savepoint, Event::warning("LeftBehind", note)))
}

/// A status to be written, unless it is there.
pub(super) fn say(savepoint: &Saved, status: SavepointStatus) -> (Option<Action>, Option<Event>) {
    let before = &savepoint.status;
    if *before == status {
        return (None, None);
    }
    let message = status.message.clone().unwrap_or_default();
    let event = match status.phase {
        phase if phase == before.phase && status.attempt == before.attempt => None,
        Some(SavepointPhase::Completed) => {
            let place = status.location.clone().unwrap_or_default();
            Some(Event::normal("Completed", format!("it lies at {place}")))
        }
        Some(SavepointPhase::Failed) => Some(Event::warning("Failed", message)),
        _ if status.attempt > Some(1) && status.attempt != before.attempt => Some(Event::warning("BegunAnew", message)),
        _ => None,
    };
    let (name, uid, over) = (savepoint.name.clone(), savepoint.uid.clone(), savepoint.resource_version.clone());
    let action = Action::SavepointStatus { name, uid, status: Box::new(status), over };
    // The finalizers are written over the same version: they go first, and this at the next look.
    let busy = savepoint.must_hold() != savepoint.held();
    (Some(action).filter(|_| !busy), event.filter(|_| !busy).map(|event| about(savepoint, event)))
}

/// Decides about Savepoints whose Pipeline is not there, and about those that were imported and that no Pipeline has looked at.
pub(super) fn alone(objects: &[Value], now: Timestamp) -> Decision {
    let mut decision = Decision { again_ms: Some(RESYNC_MS), ..Decision::default() };
    for savepoint in &savepoints(objects) {
        if savepoint.deleted_at.is_some() {
            if savepoint.held() {
                let (action, event) = match savepoint.must_hold() && savepoint.status.id.is_some() {
                    true => {
                        left_behind(savepoint, "its Pipeline is gone, and with it what says how storage is reached")
                    }
                    false => {
                        (release(savepoint), about(savepoint, Event::normal("Deleted", "there are no files of it")))
                    }
                };
                decision.actions.push(action);
                decision.events.push(event);
            }
            continue;
        }
        decision.actions.extend(hold(savepoint));
        let status = match &savepoint.spec.pipeline_ref {
            _ if savepoint.is_completed() => aged(savepoint, now),
            _ if savepoint.has_ended() => continue,
            Some(of) => {
                let message = format!("there is no Pipeline {} in the namespace", of.name);
                Standing::stalled("PipelineMissing", message).status(savepoint, now)
            }
            // A Pipeline that restores from it says more.
            None if !savepoint.status.conditions.is_empty() => continue,
            None => {
                let message = "a Pipeline that restores from it looks at it";
                let standing = Standing::waits("NotVerified", message);
                Standing { phase: SavepointPhase::Imported, ..standing }.status(savepoint, now)
            }
        };
        let (action, event) = say(savepoint, status);
        decision.actions.extend(action);
        decision.events.extend(event);
    }
    decision
}

fn listed(going: &Going) -> String {
    let named: Vec<String> = going.waits_for.iter().take(TASKS_MAX).map(ToString::to_string).collect();
    match going.waits_for.len().saturating_sub(TASKS_MAX) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

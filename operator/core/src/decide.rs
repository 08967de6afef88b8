//! The five steps of a reconcile, of which the shell does the first and the fourth:
//!
//! 1. *dereference*: [`Facts`] from what was observed;
//! 2. *validate*: what this spec is worth ([`validate::Verdict`]);
//! 3. *desired*: which plan shall run and on which pods, as writes;
//! 4. *apply*: the shell carries the writes out;
//! 5. *status*: what is true meanwhile.
//!
//! A plan becomes the applied one by **one write**, of the ConfigMap [`Names::applied`](crate::names::Names::applied),
//! after its preflight has passed and no pod of the former plan is left. All else follows from that ConfigMap, so that a
//! spec that is wrong, or whose state does not fit, changes nothing of what runs, and what runs is healed.
//!
//! Caches may be old. What must not happen on old knowledge is written **over the version of the object that was judged**,
//! so that the API server refuses it: the StatefulSet gets another plan only over a version that has no pods.
//!
//! The Pipeline is another object than that ConfigMap, so a write of it may land after its spec was undone. The plan is then
//! applied all the same, and left again as any other is for another one.

use millrace_crds::pipeline::{DesiredState, PipelineSpec};
use millrace_crds::timestamp::Timestamp;
use serde_json::Value;

use crate::decision::{Action, Decision, Event};
use crate::facts::{Applied, Facts};
use crate::names::{FINALIZER, RENDERED};
use crate::observed::Observed;
use crate::render::{Run, Source};
use crate::settings::Settings;
use crate::status::{self, Outlook, Spoken};
use validate::{Valid, Verdict};

mod deletion;
mod maintain;
mod preflight;
mod validate;

pub use preflight::backoff_ms;
pub use validate::{annotations, spec_of};

/// How often a pipeline is looked at although nothing has changed.
pub const RESYNC_MS: u64 = 300_000;
/// While something is on its way that no watch tells of.
const SOON_MS: u64 = 2_000;

/// Decides what to do about one Pipeline.
pub fn decide(observed: &Observed, settings: &Settings, now: Timestamp) -> Decision {
    let facts = Facts::of(observed);
    if facts.deleted_at.is_some() {
        return deletion::decide(&facts, settings, now);
    }
    if observed.namespace_ends {
        return Decision::default();
    }
    let verdict = validate::verdict(&facts, settings);
    let mut round = Round::new(&facts, settings, now);
    round.outlook.available_version = available_version(&facts, settings);
    round.hold();
    if facts.has_former() {
        round.outlook.progress("FormerPipeline", "what a former pipeline of this name has left is on its way out");
        round.again_in(SOON_MS);
    } else {
        round.desired(&verdict);
    }
    let Round { actions, mut events, outlook, again_ms, .. } = round;
    let Some(spoken) = spoken(&verdict, &facts) else {
        return Decision { actions, status: None, events, again_ms: again_ms.or(Some(RESYNC_MS)) };
    };
    let status = status::status(&facts, &spoken, &outlook, now);
    events.extend(status::transitions(&facts.status, &status));
    let (status, later_ms) = status::worth_writing(&facts, status, now);
    let again_ms = [again_ms, later_ms].into_iter().flatten().min().unwrap_or(RESYNC_MS);
    Decision { actions, status, events, again_ms: Some(again_ms) }
}

/// What is said of the spec. While it is compiled, what was found of the same generation before stays true, so that an
/// operator that has just started changes no status. `None`: so does the whole status.
fn spoken(verdict: &Verdict<'_>, facts: &Facts<'_>) -> Option<Spoken> {
    if !matches!(verdict, Verdict::Pending) {
        return Some(verdict.spoken());
    }
    let applied = facts.applied.as_ref().is_some_and(|applied| applied.value.generation == facts.generation);
    match facts.status.observed_generation {
        _ if applied => Some(Spoken::Valid),
        Some(generation) if generation == facts.generation => None,
        _ => Some(Spoken::Pending),
    }
}

/// The chart's version where another one runs, unless the spec says itself which one shall.
fn available_version(facts: &Facts<'_>, settings: &Settings) -> Option<String> {
    let applied = &facts.applied.as_ref()?.value;
    let chosen = facts.parsed.as_ref().is_ok_and(|pipeline| pipeline.spec.worker.version.is_some());
    (!chosen && applied.version != settings.version).then(|| settings.version.clone())
}

/// One decision in the making.
struct Round<'a> {
    facts: &'a Facts<'a>,
    source: Source<'a>,
    settings: &'a Settings,
    now: Timestamp,
    actions: Vec<Action>,
    events: Vec<Event>,
    outlook: Outlook,
    again_ms: Option<u64>,
    /// What preflights were asked for.
    asked: Vec<String>,
}

impl<'a> Round<'a> {
    fn new(facts: &'a Facts<'a>, settings: &'a Settings, now: Timestamp) -> Self {
        let source = Source { names: &facts.names, settings };
        let (actions, events, outlook, asked) = (Vec::new(), Vec::new(), Outlook::default(), Vec::new());
        Self { facts, source, settings, now, actions, events, outlook, again_ms: None, asked }
    }

    /// A Pipeline that leaves something outside of the cluster which shall go with it is kept until that is gone. One
    /// with the policy Retain has nothing to wait for: it goes at once, whether an operator is there or not.
    fn hold(&mut self) {
        let Ok(pipeline) = &self.facts.parsed else { return };
        let wanted = deletion::holds(pipeline.spec.deletion_policy);
        if wanted == self.facts.held() {
            return;
        }
        let mut finalizers = self.facts.finalizers.clone();
        match wanted {
            true => finalizers.push(FINALIZER.to_owned()),
            false => finalizers.retain(|name| name != FINALIZER),
        }
        self.actions.push(Action::SetFinalizers { finalizers, over: self.facts.resource_version.clone() });
    }

    fn desired(&mut self, verdict: &Verdict<'_>) {
        let applied = self.facts.applied.as_ref().map(|kept| &kept.value);
        let running = applied.and_then(|applied| Some((applied, validate::spec_of(&applied.spec, self.facts)?)));
        match (verdict, running) {
            (Verdict::Valid(valid), None) => self.first(valid),
            (Verdict::Valid(valid), Some((applied, spec))) => self.next(valid, applied, &spec),
            (_, Some((applied, spec))) => self.maintain(applied, &spec),
            // Nothing runs, and what shall run is not known.
            (_, None) => {}
        }
        if !matches!(verdict, Verdict::Pending) {
            self.sweep_jobs();
        }
    }

    /// Nothing was applied yet, or it was lost.
    fn first(&mut self, valid: &Valid<'_>) {
        self.outlook.desired_replicas = replicas(&valid.pipeline.spec);
        let (connection, run_objects) = self.pods_need(&valid.spec, Some(valid.plan));
        let run = valid.run(self.version(None, &valid.pipeline.spec), &connection);
        let account = self.source.service_account(&valid.pipeline.spec);
        run_objects.into_iter().chain([account]).for_each(|object| self.put(object));
        if self.missing_secrets(&valid.pipeline.spec) || self.certify() {
            return;
        }
        let Some(report) = self.preflight(&run) else { return };
        if self.facts.runs_other(run.fingerprint) && !self.stop_pods(&run) {
            return self.outlook.progress("NewPlan", "the pods of the former plan stop");
        }
        let newest = report.newest_plan.as_ref();
        let plan = match newest {
            Some(newest) if newest.fingerprint == valid.compiled.fingerprint => newest.plan,
            newest => newest.map_or(0, |newest| newest.plan) + 1,
        };
        let placed = self.facts.placed.as_ref().filter(|placed| placed.value.fingerprint == run.fingerprint);
        let accepts = placed.and_then(|placed| Some(placed.value.assignment.as_ref()?.accepts.clone()));
        self.apply_plan(valid, plan, accepts.unwrap_or_default());
    }

    /// Something runs, and the spec is valid: the same plan, or another.
    fn next(&mut self, valid: &Valid<'_>, applied: &Applied, spec: &PipelineSpec) {
        let same_plan = applied.fingerprint == valid.compiled.fingerprint;
        let (connection, objects) = self.pods_need(&valid.spec, Some(valid.plan));
        let (runs, _) = self.source.connection(&applied.spec, &validate::annotations(self.facts));
        if same_plan && connection == runs {
            self.remember(valid, applied);
            return self.maintain(applied, &valid.pipeline.spec);
        }
        objects.into_iter().for_each(|object| self.put(object));
        let run = valid.run(self.version(Some(applied), &valid.pipeline.spec), &connection);
        // What does not touch the plan is heeded although the plan has to wait.
        let PipelineSpec { replicas, desired_state, .. } = valid.pipeline.spec;
        let spec = &PipelineSpec { replicas, desired_state, ..spec.clone() };
        let missing = self.missing_secrets(&valid.pipeline.spec);
        let Some(report) = (!missing).then(|| self.preflight(&run)).flatten() else {
            return self.maintain(applied, spec);
        };
        if same_plan {
            self.remember(valid, applied);
            return self.maintain(applied, spec);
        }
        if valid.must_drain() && !self.drained() {
            return self.drain_first(applied, spec);
        }
        self.outlook.desired_replicas = self::replicas(spec);
        let former = Run { spec, version: &applied.version, fingerprint: &applied.fingerprint, connection: &runs };
        if !self.stop_pods(&former) {
            return self.outlook.progress("NewPlan", "the pods of the former plan stop");
        }
        // Over the version that has no pods: were it an old one, the plan would not be applied either.
        self.put(self.source.stateful_set(&run, 0));
        let mut accepts = applied.accepts.clone();
        if applied.state_fingerprint != valid.compiled.state_fingerprint {
            accepts.push(applied.state_fingerprint.clone());
        }
        // After a restore from a backup the control log may know of newer ones.
        let newest = report.newest_plan.map_or(0, |newest| newest.plan);
        self.apply_plan(valid, applied.plan.max(newest) + 1, accepts);
    }

    /// The rows that wait in the former plan leave before the new one is applied.
    fn drain_first(&mut self, applied: &Applied, spec: &PipelineSpec) {
        let there = self.facts.stateful_set.as_ref().map_or(0, |set| set.value.replicas);
        if replicas(spec) == 0 && (spec.desired_state != DesiredState::Drained || there == 0) {
            let message = "rows may wait in the former plan, and no worker is wanted that would let them out";
            self.outlook.stall("MustDrain", message, "let the pipeline run, or undo the edit of its plan");
            return self.maintain(applied, spec);
        }
        self.outlook.progress("Draining", "rows that wait leave before the new plan starts");
        self.run_applied(applied, spec, DesiredState::Drained);
    }

    /// The point of no return of a new plan.
    fn apply_plan(&mut self, valid: &Valid<'_>, plan: u64, accepts: Vec<String>) {
        let before = self.facts.applied.as_ref();
        let applied = Applied {
            generation: self.facts.generation,
            spec: valid.spec.clone(),
            plan,
            fingerprint: valid.compiled.fingerprint.clone(),
            state_fingerprint: valid.compiled.state_fingerprint.clone(),
            accepts,
            version: self.version(before.map(|kept| &kept.value), &valid.pipeline.spec).to_owned(),
        };
        self.put(self.source.applied(&applied));
        self.events.push(Event::normal("PlanApplied", format!("plan {plan} ({}) was applied", applied.fingerprint)));
        self.outlook.progress("NewPlan", "a plan was applied");
    }

    /// The spec changed, and its plan did not.
    fn remember(&mut self, valid: &Valid<'_>, applied: &Applied) {
        let version = self.version(Some(applied), &valid.pipeline.spec).to_owned();
        let next = Applied { generation: self.facts.generation, spec: valid.spec.clone(), version, ..applied.clone() };
        if next != *applied {
            self.outlook.progress("Applying", "the edit is taken over");
            self.put(self.source.applied(&next));
        }
    }

    /// The runtime's version: the spec's, else the one that was pinned at the first start, else the chart's.
    fn version<'b>(&self, applied: Option<&'b Applied>, spec: &'b PipelineSpec) -> &'b str
    where
        'a: 'b,
    {
        let pinned = applied.map(|applied| applied.version.as_str());
        spec.worker.version.as_deref().or(pinned).unwrap_or(&self.settings.version)
    }

    /// What pods mount: the digest of the connection, and objects to write.
    fn pods_need(&self, spec: &Value, plan: Option<(&str, &Value)>) -> (String, Vec<Value>) {
        let (connection, object) = self.source.connection(spec, &validate::annotations(self.facts));
        let plan = plan.map(|(fingerprint, plan)| self.source.plan(fingerprint, plan));
        (connection, plan.into_iter().chain([object]).collect())
    }

    /// A write, unless the object is there as it was rendered.
    fn put(&mut self, object: Value) {
        let (kind, name) = (object["kind"].as_str().unwrap_or_default(), object["metadata"]["name"].as_str());
        let seen = self.facts.child(kind, name.unwrap_or_default());
        let rendered = |object: &Value| object["metadata"]["annotations"][RENDERED].clone();
        if seen.is_some_and(|seen| rendered(seen) == rendered(&object) && !drifted(&object, seen)) {
            return;
        }
        let over = seen.map(|seen| seen["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned());
        let action = Action::Put { object, over };
        // Twice over the same version, the second would be refused.
        if !self.actions.contains(&action) {
            self.actions.push(action);
        }
    }

    fn delete(&mut self, object: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        self.actions.push(Action::Delete {
            api_version: text(&object["apiVersion"]),
            kind: text(&object["kind"]),
            name: text(&object["metadata"]["name"]),
            uid: text(&object["metadata"]["uid"]),
        });
    }

    fn again_in(&mut self, ms: u64) {
        self.again_ms = Some(self.again_ms.map_or(ms, |before| before.min(ms)));
    }

    fn missing_secrets(&mut self, spec: &PipelineSpec) -> bool {
        let missing: Vec<String> = crate::render::secrets(&spec.kafka)
            .into_iter()
            .filter(|name| matches!(self.facts.observed.secrets.get(name), Some(None)))
            .collect();
        if missing.is_empty() {
            return false;
        }
        let message = format!("there is no Secret {} in the namespace", missing.join(", "));
        self.outlook.stall("SecretMissing", message, "create it; the pipeline goes on by itself");
        self.outlook.unreachable = true;
        true
    }
}

/// Whether somebody changed what we own. Quantities are left out: the server writes them in its own way.
fn drifted(ours: &Value, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Value::Object(ours), _) => ours
            .iter()
            .filter(|(field, _)| !["resources", "sizeLimit"].contains(&field.as_str()))
            .any(|(field, ours)| {
                let empty =
                    ours.is_null() || ours.as_object().is_some_and(|o| o.is_empty()) || ours == &Value::Array(vec![]);
                !empty && theirs.get(field).is_none_or(|theirs| drifted(ours, theirs))
            }),
        (Value::Array(ours), Value::Array(theirs)) => {
            ours.len() != theirs.len() || ours.iter().zip(theirs).any(|(ours, theirs)| drifted(ours, theirs))
        }
        (ours, theirs) => ours != theirs,
    }
}

/// How many pods a spec asks for.
fn replicas(spec: &PipelineSpec) -> u32 {
    match spec.desired_state {
        DesiredState::Suspended | DesiredState::Drained => 0,
        DesiredState::Running => spec.replicas,
    }
}

impl<'a> Valid<'a> {
    fn run(&'a self, version: &'a str, connection: &'a str) -> Run<'a> {
        Run { spec: &self.pipeline.spec, version, fingerprint: &self.compiled.fingerprint, connection }
    }
}

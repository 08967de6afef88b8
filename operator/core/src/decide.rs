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
//! So too with the first plan, or the one after the ConfigMap got lost: an empty ConfigMap is there before, and the
//! StatefulSet is written before, even as it is. And pods start only over the version of the StatefulSet that the ConfigMap
//! names, so that one who has not heard of a new plan does not start the former one.
//!
//! The Pipeline is another object than that ConfigMap, so a write of it may land after its spec was undone. The plan is then
//! applied all the same, and left again as any other is for another one.

use millrace_core::ids::Timeline;
use millrace_crds::pipeline::{DesiredState, PipelineSpec};
use millrace_crds::timestamp::Timestamp;
use serde_json::Value;

use crate::decision::{Action, Decision, Event};
use crate::facts::{Applied, Facts, Restored, text};
use crate::names::{FINALIZER, RENDERED, SUBJECT};
use crate::observed::Observed;
use crate::render::{PROMETHEUS_RULE, Run, Source};
use crate::settings::{RulesNamespace, Settings};
use crate::status::{self, Outlook, Spoken};
use restore::Wish;
use savepoints::Said;
use validate::{Valid, Verdict};

mod autoscale;
mod backfills;
mod deletion;
mod leaving;
mod maintain;
mod moves;
mod preflight;
mod restore;
mod savepoints;
mod validate;

pub use preflight::backoff_ms;
pub use validate::{annotations, spec_of};

/// How often a pipeline is looked at although nothing has changed.
pub const RESYNC_MS: u64 = 300_000;
/// While something is on its way that no watch tells of.
const SOON_MS: u64 = 2_000;

/// Decides what to do about one Pipeline.
pub fn decide(observed: &Observed, settings: &Settings, now: Timestamp) -> Decision {
    decide_on(&Facts::of(observed), settings, now)
}

/// The same, where the facts are at hand.
pub fn decide_on(facts: &Facts<'_>, settings: &Settings, now: Timestamp) -> Decision {
    if facts.deleted_at.is_some() {
        return deletion::decide(facts, settings, now);
    }
    if facts.observed.namespace_ends {
        return Decision::default();
    }
    let verdict = validate::verdict(facts, settings);
    let mut round = Round::new(facts, settings, now);
    round.outlook.available_version = available_version(facts, settings);
    round.hold();
    if facts.has_former() {
        round.outlook.progress("FormerPipeline", "what a former pipeline of this name has left is on its way out");
        round.again_in(SOON_MS);
    } else {
        round.desired(&verdict);
        round.savepoints();
        round.backfills();
        round.keep_books();
        round.keep_rules();
        if !matches!(verdict, Verdict::Pending) {
            round.abandon();
            round.sweep_jobs();
        }
    }
    round.autoscale();
    let Round { actions, mut events, outlook, again_ms, .. } = round;
    let Some(spoken) = spoken(&verdict, facts) else {
        return Decision { actions, status: None, events, again_ms: again_ms.or(Some(RESYNC_MS)) };
    };
    let status = status::status(facts, &spoken, &outlook, now);
    events.extend(status::transitions(&facts.status, &status));
    let (status, later_ms) = status::worth_writing(facts, status, now);
    let again_ms = [again_ms, later_ms].into_iter().flatten().min().unwrap_or(RESYNC_MS);
    Decision { actions, status, events, again_ms: Some(again_ms) }
}

/// Decides where there is no such Pipeline: about its Savepoints, those too that were imported and that no Pipeline has
/// looked at, about its Backfills, and about rules in the operator's namespace, which nobody else removes.
pub fn decide_alone(savepoints: &[Value], backfills: &[Value], rules: &[Value], now: Timestamp) -> Decision {
    let mut decision = savepoints::alone(savepoints, now);
    decision.actions.extend(backfills::alone(backfills, now));
    decision.actions.extend(rules.iter().map(deletion_of));
    decision
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
    /// Component and subject of the Jobs that were asked for.
    asked: Vec<(&'static str, String)>,
    /// What was found out about a Savepoint, by its uid.
    said: Option<(String, Said)>,
    /// The id of the Kafka cluster that the preflight has reached.
    kafka: Option<String>,
}

impl<'a> Round<'a> {
    fn new(facts: &'a Facts<'a>, settings: &'a Settings, now: Timestamp) -> Self {
        let source = Source { names: &facts.names, settings };
        Self {
            facts,
            source,
            settings,
            now,
            actions: Vec::new(),
            events: Vec::new(),
            outlook: Outlook::default(),
            again_ms: None,
            asked: Vec::new(),
            said: None,
            kafka: None,
        }
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
        let over = self.facts.resource_version.clone();
        self.actions.push(Action::SetFinalizers { savepoint: None, finalizers, over });
    }

    /// Writes the books of the SLOs down when it is time, and removes them with the last SLO.
    fn keep_books(&mut self) {
        if let Some(text) = self.facts.observed.slos.as_ref().and_then(|said| said.books.as_ref()) {
            return self.put(self.source.books(text));
        }
        let none = self.facts.parsed.as_ref().is_ok_and(|pipeline| pipeline.spec.slos.is_empty());
        if let Some(left) = self.facts.child("ConfigMap", &self.facts.names.slos()).filter(|_| none) {
            self.delete(left);
        }
    }

    /// Prometheus watches what the spec says, also while the pipeline does not run. Rules are large, so that caches do not
    /// keep them, and they are not made anew at each look: what they were made from is written at them.
    ///
    /// What is somewhere else than the chart says now, or of a kind that it does not want, goes.
    fn keep_rules(&mut self) {
        let Ok(pipeline) = &self.facts.parsed else { return };
        let (rules, slos) = (&self.settings.rules, &pipeline.spec.slos);
        let name = self.facts.names.rules(rules.namespace);
        let kinds = [("ConfigMap", rules.enabled), (PROMETHEUS_RULE.1, rules.prometheus_rules())];
        let is_wanted = |(place, object): &(RulesNamespace, &Value)| {
            let of_kind = kinds.iter().any(|(kind, wanted)| *wanted && object["kind"] == *kind);
            of_kind && *place == rules.namespace && object["metadata"]["name"] == name.as_str()
        };
        let (kept, left): (Vec<_>, Vec<_>) = self.facts.rules().partition(is_wanted);
        let there = |kind: &str| kept.iter().map(|(_, object)| *object).find(|object| object["kind"] == kind);
        let subject = self.source.rules_subject(slos);
        let is_new = |object: &Value| object["metadata"]["annotations"][SUBJECT] == subject.as_str();
        let lacks = kinds.map(|(kind, wanted)| wanted && !there(kind).is_some_and(is_new));
        if lacks.contains(&true) {
            let made = self.source.rules(slos, &subject).into_iter().zip(kinds).zip(lacks);
            made.filter(|(_, lacks)| *lacks).for_each(|((object, (kind, _)), _)| self.put_over(object, there(kind)));
        }
        left.into_iter().for_each(|(_, object)| self.delete(object));
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
    }

    /// Nothing was applied yet, or it was lost.
    fn first(&mut self, valid: &Valid<'_>) {
        self.outlook.desired_replicas = replicas(&valid.pipeline.spec);
        let wish = restore::wish(self.facts, &valid.pipeline.spec);
        let (connection, run_objects) = self.pods_need(&valid.spec, Some(valid.plan));
        let account = self.source.service_account(&valid.pipeline.spec);
        run_objects.into_iter().chain([account]).for_each(|object| self.put(object));
        // A plan is applied over it, never by creating it: that could have been decided before it was there and got lost.
        let nothing = self.source.applied(None, self.facts.reserved.as_ref());
        let may_apply = self.seen(&nothing).is_some();
        let given = match &wish {
            Wish::Restore(wanted) => match self.timeline(wanted, None, valid.plan.0, &connection) {
                None => return,
                given => given,
            },
            _ if !may_apply => {
                self.put(nothing);
                None
            }
            _ => None,
        };
        let timeline = given.as_ref().map_or_else(|| restore::known_timeline(self.facts), |(timeline, _)| *timeline);
        let run = valid.run(self.version(None, &valid.pipeline.spec), &connection, timeline);
        if self.missing_secrets(&valid.pipeline.spec) || self.certify() || !self.knows_savepoint(&wish, &run) {
            return;
        }
        let (report, checked) = (self.preflight(&run), self.checked(&wish, &given, &run));
        let Some(report) = report.filter(|_| checked) else { return };
        if !may_apply {
            return self.outlook.progress("NewPlan", "a plan is about to be applied");
        }
        let newest = report.newest_plan.as_ref();
        if let (Wish::Restore(wanted), Some((timeline, subject))) = (&wish, &given) {
            if !self.stop_pods(&run) {
                return self.outlook.progress("NewPlan", "the pods of the former plan stop");
            }
            if !self.restores(wanted, false, subject, &run) {
                return;
            }
            self.put_anyway(self.source.stateful_set(&run, 0));
            let accepts = wanted.accepts(&valid.compiled.state_fingerprint);
            let history = (*timeline, wanted.restored(self));
            return self.apply_plan(valid, newest.map_or(0, |newest| newest.plan) + 1, accepts, history);
        }
        // What was lost may have been on a later one.
        let timeline = newest.map_or(timeline, |newest| newest.timeline.max(timeline));
        let run = Run { timeline, ..run };
        if !self.is_clear(&run) {
            return self.outlook.progress("NewPlan", "the pods of the former plan stop");
        }
        // Over the version that was judged, as with any plan; one that is not seen may be there, with pods of another plan.
        let set = self.facts.stateful_set.as_ref().map(|set| &set.value);
        let there = set.filter(|set| set.plan == run.history()).map_or(0, |set| set.replicas);
        self.put_anyway(self.source.stateful_set(&run, there));
        let plan = match newest {
            Some(newest) if newest.fingerprint == valid.compiled.fingerprint => newest.plan,
            newest => newest.map_or(0, |newest| newest.plan) + 1,
        };
        let placed = self.facts.placed.as_ref().filter(|placed| placed.value.fingerprint == run.history());
        let accepts = placed.and_then(|placed| Some(placed.value.assignment.as_ref()?.accepts.clone()));
        self.apply_plan(valid, plan, accepts.unwrap_or_default(), (timeline, restore::done(self.facts)));
    }

    /// Something runs, and the spec is valid: the same plan, or another.
    fn next(&mut self, valid: &Valid<'_>, applied: &Applied, spec: &PipelineSpec) {
        let wish = restore::wish(self.facts, &valid.pipeline.spec);
        let same_plan = applied.fingerprint == valid.compiled.fingerprint && matches!(wish, Wish::Nothing);
        let (connection, objects) = self.pods_need(&valid.spec, Some(valid.plan));
        let (runs, _) = self.source.connection(&applied.spec, &validate::annotations(self.facts));
        if same_plan && connection == runs {
            self.remember(valid, applied);
            return self.maintain(applied, &valid.pipeline.spec);
        }
        objects.into_iter().for_each(|object| self.put(object));
        // What does not touch the plan is heeded although the plan has to wait.
        let PipelineSpec { replicas, desired_state, .. } = valid.pipeline.spec;
        let spec = &PipelineSpec { replicas, desired_state, ..spec.clone() };
        let given = match &wish {
            Wish::Restore(wanted) => match self.timeline(wanted, Some(applied), valid.plan.0, &connection) {
                None => return self.maintain(applied, spec),
                given => given,
            },
            _ => None,
        };
        let timeline = given.as_ref().map_or(applied.timeline, |(timeline, _)| *timeline);
        let run = valid.run(self.version(Some(applied), &valid.pipeline.spec), &connection, timeline);
        if self.missing_secrets(&valid.pipeline.spec) || !self.knows_savepoint(&wish, &run) {
            return self.maintain(applied, spec);
        }
        let (report, checked) = (self.preflight(&run), self.checked(&wish, &given, &run));
        let Some(report) = report.filter(|_| checked) else { return self.maintain(applied, spec) };
        if given.is_none() && self.is_elsewhere(applied) {
            return self.maintain(applied, spec);
        }
        if same_plan {
            self.remember(valid, applied);
            return self.maintain(applied, spec);
        }
        if let Some(savepoint) = self.must_wait_for(spec) {
            self.outlook.progress("Saving", format!("the edit waits until Savepoint {} is made", savepoint.name));
            return self.maintain(applied, spec);
        }
        if given.is_none() && valid.must_drain() && !self.drained() {
            return self.drain_first(applied, spec);
        }
        self.outlook.desired_replicas = self::replicas(spec);
        if !self.stop_pods(&applied.run(spec, &runs)) {
            return self.outlook.progress("NewPlan", "the pods of the former plan stop");
        }
        // After a restore from a backup the control log may know of newer ones.
        let plan = applied.plan.max(report.newest_plan.map_or(0, |newest| newest.plan)) + 1;
        let own = &valid.compiled.state_fingerprint;
        let (accepts, history) = match (&wish, &given) {
            (Wish::Restore(wanted), Some((timeline, subject))) => {
                if !self.restores(wanted, false, subject, &run) {
                    return;
                }
                (wanted.accepts(own), (*timeline, wanted.restored(self)))
            }
            _ => {
                let former = Some(&applied.state_fingerprint).filter(|former| *former != own);
                let accepts = applied.accepts.iter().chain(former).cloned().collect();
                (accepts, (applied.timeline, applied.restored.clone()))
            }
        };
        // Over the version that has no pods, even where it has this template already: were it an old one, the plan would not be
        // applied either.
        self.put_anyway(self.source.stateful_set(&run, 0));
        self.apply_plan(valid, plan, accepts, history);
    }

    /// Whether the Kafka that this edit leads to is another one than what runs is on: its positions mean nothing there.
    fn is_elsewhere(&mut self, applied: &Applied) -> bool {
        let Some((own, other)) = applied.kafka.as_ref().zip(self.kafka.as_ref()).filter(|(own, other)| own != other)
        else {
            return false;
        };
        let message = format!(
            "spec.kafka.bootstrapServers: they belong to Kafka cluster {other}, and the pipeline runs on {own}, whose offsets mean \
             nothing there"
        );
        self.outlook.stall("AnotherKafka", message, "undo the edit, or apply the pipeline under another name");
        true
    }

    /// Whether a restore that is wanted can be done.
    fn checked(&mut self, wish: &Wish<'_>, given: &Option<(Timeline, String)>, run: &Run<'_>) -> bool {
        match (wish, given) {
            (Wish::Restore(wanted), Some((_, subject))) => self.restores(wanted, true, subject, run),
            _ => true,
        }
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
    fn apply_plan(&mut self, valid: &Valid<'_>, plan: u64, accepts: Vec<String>, history: (Timeline, Vec<Restored>)) {
        let (timeline, restored) = history;
        let before = self.facts.applied.as_ref();
        let applied = Applied {
            generation: self.facts.generation,
            spec: valid.spec.clone(),
            plan,
            fingerprint: valid.compiled.fingerprint.clone(),
            state_fingerprint: valid.compiled.state_fingerprint.clone(),
            accepts,
            version: self.version(before.map(|kept| &kept.value), &valid.pipeline.spec).to_owned(),
            timeline,
            restored,
            kafka: self.kafka.clone().or_else(|| before.and_then(|kept| kept.value.kafka.clone())),
            start: None,
        };
        if let Some(restored) = applied.restored.last().filter(|restored| restored.at == self.now) {
            let note = format!("Savepoint {} was restored on timeline {timeline}", restored.savepoint);
            self.events.push(Event::normal("Restored", note));
        }
        self.put_applied(&applied);
        self.events.push(Event::normal("PlanApplied", format!("plan {plan} ({}) was applied", applied.fingerprint)));
        self.outlook.progress("NewPlan", "a plan was applied");
    }

    /// The spec changed, and its plan did not.
    fn remember(&mut self, valid: &Valid<'_>, applied: &Applied) {
        let version = self.version(Some(applied), &valid.pipeline.spec).to_owned();
        let kafka = applied.kafka.clone().or_else(|| self.kafka.clone());
        let generation = self.facts.generation;
        let next = Applied { generation, spec: valid.spec.clone(), version, kafka, ..applied.clone() };
        if next != *applied {
            self.outlook.progress("Applying", "the edit is taken over");
            self.put_applied(&next);
        }
    }

    /// The timeline that a restore was given stays written down.
    fn put_applied(&mut self, applied: &Applied) {
        self.put(self.source.applied(Some(applied), self.facts.reserved.as_ref()));
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

    /// What is seen of an object that is about to be written.
    fn seen(&self, object: &Value) -> Option<&'a Value> {
        let (kind, name) = (object["kind"].as_str().unwrap_or_default(), object["metadata"]["name"].as_str());
        self.facts.child(kind, name.unwrap_or_default())
    }

    /// A write, unless the object is there as it was rendered.
    fn put(&mut self, object: Value) {
        let rendered = |object: &Value| object["metadata"]["annotations"][RENDERED].clone();
        let is_there = |seen| rendered(seen) == rendered(&object) && !drifted(&object, seen);
        let seen = self.seen(&object);
        if !seen.is_some_and(is_there) {
            self.put_over(object, seen);
        }
    }

    /// A write even of what is there already: then nothing is changed, and the API server says if it is there no more.
    fn put_anyway(&mut self, object: Value) {
        let seen = self.seen(&object);
        self.put_over(object, seen);
    }

    /// A write over what was seen.
    fn put_over(&mut self, object: Value, seen: Option<&Value>) {
        let over = seen.map(|seen| seen["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned());
        let id = |object: &Value| (object["kind"].clone(), object["metadata"]["name"].clone());
        // Twice over the same version, the second would be refused.
        let twice = self.actions.iter().any(|action| match action {
            Action::Put { object: before, .. } => id(before) == id(&object),
            _ => false,
        });
        if !twice {
            self.actions.push(Action::Put { object, over });
        }
    }

    fn delete(&mut self, object: &Value) {
        self.actions.push(deletion_of(object));
    }

    fn again_in(&mut self, ms: u64) {
        self.again_ms = Some(self.again_ms.map_or(ms, |before| before.min(ms)));
    }

    fn missing_secrets(&mut self, spec: &PipelineSpec) -> bool {
        let missing: Vec<String> = crate::render::secrets(&spec.kafka, spec.state.storage.as_ref())
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

fn deletion_of(object: &Value) -> Action {
    Action::Delete {
        api_version: text(&object["apiVersion"]),
        kind: text(&object["kind"]),
        namespace: text(&object["metadata"]["namespace"]),
        name: text(&object["metadata"]["name"]),
        uid: text(&object["metadata"]["uid"]),
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
    fn run(&'a self, version: &'a str, connection: &'a str, timeline: Timeline) -> Run<'a> {
        Run { spec: &self.pipeline.spec, version, fingerprint: &self.compiled.fingerprint, connection, timeline }
    }
}

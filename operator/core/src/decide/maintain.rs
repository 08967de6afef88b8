//! What keeps the applied plan running as its spec asks for: pods, their assignment, and a pod that is replaced when its
//! template is another.
//!
//! A scale-down waits as long as a worker that is ready, and has tasks for all that is known, cannot be reached: taken
//! away, it would give nothing back. A pod that is replaced gives its tasks to others before, if one of them is ready;
//! where it is the only one, another one stands in for it meanwhile. One that does not answer is replaced as it is,
//! since that may be what mends it.
//!
//! A drain that has begun goes to its end, whatever is wished meanwhile: a worker that still drains would join rows of
//! one that has gone on already.

use std::collections::BTreeMap;

use millrace_core::assignment::{Assignment, Live};
use millrace_core::ids::Generation;
use millrace_core::report::{TaskState, WorkerReport};
use millrace_crds::pipeline::{Delivery, DesiredState, LogLevel, PipelineSpec};
use serde_json::{Value, json};

use super::{Round, SOON_MS};
use crate::assign::{Room, Step};
use crate::decision::{Action, Certify, Event};
use crate::facts::{Applied, Placed, Pod};
use crate::names::{CONTROL_PORT, RENEW_AFTER, SHOWN, TEMPLATE_LABEL, digest};
use crate::render::{Run, lanes, log_level};

/// Pods that are of an older template, and the one of them that goes next.
struct Roll<'a> {
    stale: Vec<&'a Pod>,
    next: Option<&'a Pod>,
    /// Workers below it may have tasks: those that are wanted, and one more while the only one is replaced.
    span: u32,
}

impl<'a> Round<'a> {
    /// Keeps the applied plan running as `spec` says, which may be an older one than the Pipeline's.
    pub(super) fn maintain(&mut self, applied: &Applied, spec: &PipelineSpec) {
        self.run_applied(applied, spec, spec.desired_state);
    }

    pub(super) fn run_applied(&mut self, applied: &Applied, spec: &PipelineSpec, desired_state: DesiredState) {
        let plan = self.plan_of(applied);
        let plan = plan.as_ref().map(|plan| (applied.fingerprint.as_str(), plan));
        let (connection, objects) = self.pods_need(&applied.spec, plan);
        let run = applied.run(spec, &connection);
        objects.into_iter().for_each(|object| self.put(object));
        self.put(self.source.service_account(spec));
        self.put(self.source.service());
        self.put(self.source.disruption_budget());
        self.put(self.source.network_policy());
        let wanted = self.wanted(spec, desired_state);
        self.outlook.desired_replicas = wanted;
        // To stop, nothing is needed.
        if wanted > 0 && (self.missing_secrets(spec) || self.certify() || self.renumbered(applied)) {
            return;
        }
        if !self.is_clear(&run) {
            return self.outlook.progress("NewPlan", "the pods of the former plan stop");
        }
        let roll = self.roll(&self.source.stateful_set(&run, wanted), wanted, desired_state);
        let Some(placed) = self.placed(applied, spec, desired_state, wanted, &run, &roll) else { return };
        let replicas = self.replicas(&placed, roll.span);
        if replicas > 0 && !self.may_start(applied) {
            return self.outlook.progress("Starting", "the pods are about to start");
        }
        self.put(self.source.stateful_set(&run, replicas));
        self.replace(&roll, &placed, replicas);
        self.tell(&placed);
        let stay = placed.assignment.as_ref().is_some_and(|assignment| assignment.drain);
        self.see_off(if stay { 0 } else { roll.span });
        self.say_who_is_missed(&placed);
        self.sweep(&run);
    }

    /// The stored plan, as it is: it is never compiled again.
    pub(super) fn plan_of(&self, applied: &Applied) -> Option<Value> {
        let stored = self.facts.child("ConfigMap", &self.facts.names.plan(&applied.fingerprint));
        let stored = stored.and_then(|map| serde_json::from_str(map["data"]["plan.json"].as_str()?).ok());
        // Lost, and made anew of the spec, or of the one that was applied.
        let made = || match &self.facts.observed.compilation {
            crate::observed::Compilation::Done(compiled) if compiled.fingerprint == applied.fingerprint => {
                compiled.plan.clone()
            }
            _ => None,
        };
        stored.or_else(made).or_else(|| self.facts.observed.recovered.clone())
    }

    /// How many pods there shall be in the end.
    fn wanted(&mut self, spec: &PipelineSpec, desired_state: DesiredState) -> u32 {
        let there = self.facts.stateful_set.as_ref().map_or(0, |set| set.value.replicas);
        match desired_state {
            DesiredState::Running => spec.replicas,
            DesiredState::Suspended => 0,
            DesiredState::Drained if self.drained() => 0,
            DesiredState::Drained => {
                // For a new plan pods are started to drain; who only wants an end has it where no pods are.
                let wanted = there.max(super::replicas(spec));
                self.outlook.draining = wanted > 0;
                wanted
            }
        }
    }

    /// Whether all that was there when the drain began has come out, as it was written down.
    pub(super) fn drained(&self) -> bool {
        self.facts.placed.as_ref().is_some_and(|placed| placed.value.drained)
    }

    /// Whether every worker that has tasks says so.
    fn all_drained(&self, placed: &Placed) -> bool {
        let Some(assignment) = placed.assignment.as_ref().filter(|assignment| assignment.drain) else { return false };
        let follows = |report: &WorkerReport| report.generation == assignment.generation && report.drained;
        assignment.tasks.iter().all(|task| self.facts.report(task.worker).is_some_and(follows))
    }

    /// Whether pods of this plan may be there: none of another one is left.
    pub(super) fn is_clear(&mut self, run: &Run<'_>) -> bool {
        let set = self.facts.stateful_set.as_ref().map(|set| &set.value);
        let starts = set.is_some_and(|set| set.plan != run.history() || set.replicas == 0 && !set.stopped);
        !starts && !self.facts.runs_other(&run.history()) || self.stop_pods(run)
    }

    /// Whether pods may start: over this version of the StatefulSet, once the ConfigMap of what was applied names it. What is
    /// seen of that ConfigMap may be old, and then writing the name into it is refused. A next plan that is on its way is
    /// refused in its turn, since its ConfigMap has another version now; and one that comes later has written the
    /// StatefulSet before, so that this start is refused.
    fn may_start(&mut self, applied: &Applied) -> bool {
        let stopped = self.facts.stateful_set.as_ref().filter(|set| set.value.replicas == 0);
        let Some(start) = stopped.map(|set| set.resource_version.clone()) else { return true };
        if applied.start.as_ref() == Some(&start) {
            return true;
        }
        self.put_applied(&Applied { start: Some(start), ..applied.clone() });
        false
    }

    /// The control log knows of a newer plan than we: it was lost here, as with a cluster restored from a backup. What
    /// runs goes on above it; whether its state fits is what each task's marker says.
    fn renumbered(&mut self, applied: &Applied) -> bool {
        let newest = self.facts.observed.reports.values().filter_map(|report| report.newest_plan.as_ref());
        let Some(newest) = newest.max_by_key(|newest| newest.plan) else { return false };
        let same = newest.fingerprint == applied.fingerprint;
        let plan = match newest.plan {
            plan if plan > applied.plan && same => plan,
            plan if plan > applied.plan || plan == applied.plan && !same => plan + 1,
            _ => return false,
        };
        let timeline = applied.timeline.max(newest.timeline);
        self.put_applied(&Applied { plan, timeline, ..applied.clone() });
        let note = format!(
            "the control log has plan {}, which is newer than what is known here; it is plan {plan} now, on timeline {timeline}",
            newest.plan
        );
        self.events.push(Event::warning("PlanRenumbered", note));
        true
    }

    /// The assignment as it shall be. `None` while it is not known which tasks there are.
    fn placed(
        &mut self,
        applied: &Applied,
        spec: &PipelineSpec,
        desired_state: DesiredState,
        wanted: u32,
        run: &Run<'_>,
        roll: &Roll<'_>,
    ) -> Option<Placed> {
        let before = self.facts.placed.as_ref().map(|kept| kept.value.clone());
        let of_plan = before.clone().filter(|placed| placed.fingerprint == applied.history());
        let (stages, checked) = self.stages(applied, of_plan.as_ref(), wanted, run)?;
        let drains = of_plan.as_ref().is_some_and(Placed::drains);
        if drains && desired_state == DesiredState::Running && wanted > 0 {
            self.outlook.progress("Draining", "the drain that has begun goes to its end first");
        }
        let drain = drains || desired_state == DesiredState::Drained && wanted > 0;
        let saved = if drain || wanted == 0 { None } else { self.savable(applied, spec) };
        let held = drain || wanted == 0 || saved.is_some();
        let workers = self.room(roll.span, roll.next.filter(|_| !held).map(|pod| pod.ordinal));
        let room = Room { workers: &workers, lanes: lanes(spec, self.settings) };
        let step = self.step(&stages, room, of_plan.as_ref(), held);
        let known = before.as_ref().and_then(|placed| Some(placed.assignment.as_ref()?.generation)).unwrap_or_default();
        // A worker may follow one under which nobody has claimed a task, so that the control log does not know of it.
        let seen = self.facts.observed.reports.values().map(|report| report.highest_generation.max(report.generation));
        let highest = seen.chain([checked]).max().unwrap_or_default();
        let (accepts, live) = (applied.accepts.clone(), live(spec));
        let (workers, moved) = match &of_plan {
            Some(placed) if !step.left.is_empty() => (placed.workers, placed.moved + step.moved),
            _ => (super::moves::workers(&step.tasks), 0),
        };
        let Step { tasks, warm, .. } = step;
        let uid = saved.as_ref().map(|(savepoint, _)| savepoint.uid.clone());
        let (savepoint, cut) = self.cut(of_plan.as_ref(), &tasks, saved, run);
        let next = Assignment { generation: known, plan: applied.plan, tasks, drain, accepts, live, warm, savepoint };
        let same = self.facts.assignment() == Some(&next);
        if let Some(placed) = of_plan {
            // While it is stopped, what it would run can wait.
            if (wanted == 0 || same) && highest <= known {
                let drained = placed.drained || drains && self.all_drained(&placed);
                let (workers, moved) = if same { (workers, moved) } else { (placed.workers, placed.moved) };
                let cut = if same { cut } else { placed.cut };
                let placed = Placed { workers, moved, drained, cut, ..placed };
                self.put(self.source.assignment(&placed));
                return Some(placed);
            }
            if self.nobody_answers() {
                return Some(placed);
            }
        }
        let generation = Generation(known.max(highest).0 + 1);
        let mut next = Assignment { generation, ..next };
        if let (Some(cut), Some(uid)) = (next.savepoint.as_mut().filter(|cut| cut.id.is_empty()), uid) {
            cut.id = format!("{uid}-{generation}-{}", self.now.ms());
        }
        let (fingerprint, assignment) = (applied.history(), Some(next));
        let placed = Placed { fingerprint, stages, workers, moved, drained: false, cut, assignment };
        self.put(self.source.assignment(&placed));
        self.outlook.progress("Assigning", format!("assignment {generation} was made"));
        Some(placed)
    }

    /// How many tasks each stage has, and the highest generation that a preflight has found.
    fn stages(
        &mut self,
        applied: &Applied,
        placed: Option<&Placed>,
        wanted: u32,
        run: &Run<'_>,
    ) -> Option<(BTreeMap<String, i32>, Generation)> {
        let (mut stages, checked) = match placed {
            Some(placed) => (placed.stages.clone(), Generation(0)),
            None if wanted == 0 => {
                self.stop_pods(run);
                return None;
            }
            None => {
                let report = self.preflight(run)?;
                (report.stages, report.highest_generation)
            }
        };
        // Topics only grow, and not every worker has seen it yet.
        let reports = self.facts.observed.reports.values();
        for (stage, tasks) in reports.filter(|r| r.plan_fingerprint == applied.fingerprint).flat_map(|r| &r.stages) {
            stages.entry(stage.clone()).and_modify(|known| *known = *tasks.max(known)).or_insert(*tasks);
        }
        Some((stages, checked))
    }

    /// Whether pods are there and none of their workers says what the control log has. In a cluster that was restored from a
    /// backup a generation made without that could be one that was given before.
    fn nobody_answers(&mut self) -> bool {
        let silent = !self.facts.pods.is_empty() && self.facts.workers().all(|(_, report)| report.is_none());
        if silent {
            self.outlook.progress("Assigning", "no worker answers yet");
            self.again_in(SOON_MS);
        }
        silent
    }

    /// Pods that shall be there now. One that has tasks still is not taken away while it can give them back.
    fn replicas(&mut self, placed: &Placed, wanted: u32) -> u32 {
        let there = self.facts.stateful_set.as_ref().map_or(0, |set| set.value.replicas);
        if wanted >= there || wanted == 0 {
            return wanted;
        }
        let Some(assignment) = &placed.assignment else { return wanted };
        let holds = |pod: &&Pod| {
            let assigned = assignment.tasks.iter().any(|task| task.worker == pod.ordinal);
            // One that takes or gives tasks may not be ready just now.
            let runs = |report: &WorkerReport| report.tasks.iter().any(|task| task.state != TaskState::Restoring);
            let alive = pod.ready || self.facts.report(pod.ordinal).is_some_and(runs);
            !pod.ending && (assigned || alive && !self.is_free(pod.ordinal, assignment))
        };
        let surplus = self.facts.pods.iter().filter(|pod| pod.ordinal >= wanted);
        let last = surplus.filter(holds).map(|pod| pod.ordinal + 1).max();
        if last.is_some() {
            self.outlook.progress("Rescaling", "workers give their tasks back before they go");
            self.again_in(SOON_MS);
        }
        last.unwrap_or(wanted)
    }

    /// Pods of an older template than that of `set` are replaced one after another.
    fn roll(&mut self, set: &Value, wanted: u32, desired_state: DesiredState) -> Roll<'a> {
        let facts = self.facts;
        let template = set["spec"]["template"]["metadata"]["labels"][TEMPLATE_LABEL].as_str().unwrap_or_default();
        let newest = facts.stateful_set.as_ref().is_some_and(|set| set.value.template == template);
        let is_stale = |pod: &&Pod| newest && !pod.template.is_empty() && pod.template != template;
        let stale: Vec<&'a Pod> = facts.pods.iter().filter(is_stale).collect();
        if !stale.is_empty() {
            self.outlook.progress("Rolling", format!("{} pods are of an older template", stale.len()));
        }
        let answers = |pod: &&&Pod| facts.report(pod.ordinal).is_some();
        let next = stale.last().filter(answers).copied();
        let drains =
            desired_state == DesiredState::Drained || facts.placed.as_ref().is_some_and(|placed| placed.value.drains());
        let alone = wanted == 1 && next.is_some() && stale.iter().any(|pod| pod.ordinal < wanted) && !drains;
        Roll { stale, next, span: wanted + u32::from(alone) }
    }

    /// Replaces the next pod when all others are ready and it has given its tasks to them.
    fn replace(&mut self, roll: &Roll<'_>, placed: &Placed, replicas: u32) {
        let facts = self.facts;
        let others_ready = facts.pods.len() as u32 >= replicas && facts.pods.iter().all(Pod::is_fit);
        let gives = |pod: &Pod| {
            let assignment =
                placed.assignment.as_ref().filter(|assignment| !assignment.drain && roll.next == Some(pod));
            let to_others = !self.room(roll.span, Some(pod.ordinal)).contains(&pod.ordinal);
            assignment.is_some_and(|assignment| to_others && !self.is_free(pod.ordinal, assignment))
        };
        // One that does not run gives nothing up, unless it is only about to take a task, or has given one.
        let runs = |pod: &Pod| {
            let waits = |own: &WorkerReport| own.tasks.iter().any(|task| task.state == TaskState::Waiting);
            facts.report(pod.ordinal).is_some_and(|own| own.ready || waits(own))
        };
        let broken = roll.stale.iter().find(|pod| !pod.ready && !pod.ending && !runs(pod));
        let is_cut = placed.assignment.as_ref().is_some_and(|assignment| assignment.savepoint.is_some());
        let next = broken.or_else(|| roll.stale.last().filter(|pod| others_ready && !is_cut && !gives(pod)));
        if let Some(object) = next.and_then(|pod| facts.child("Pod", &pod.name)) {
            self.delete(object);
        }
    }

    /// Gives the assignment to workers that have an older one, and makes the kubelet show what changed.
    fn tell(&mut self, placed: &Placed) {
        let facts = self.facts;
        let Some(assignment) = placed.assignment.as_ref() else { return };
        let shown = digest(&json!([assignment.generation, facts.observed.secrets, self.certificates()]));
        let written = facts.assignment() == Some(assignment);
        for pod in facts.pods.iter().filter(|pod| written && pod.plan == placed.fingerprint) {
            let behind = facts.report(pod.ordinal).is_some_and(|report| report.generation < assignment.generation);
            if let (true, Some(address)) = (behind, &pod.address) {
                let address = format!("{address}:{CONTROL_PORT}");
                self.actions.push(Action::Push { worker: pod.ordinal, address, assignment: assignment.clone() });
                self.again_in(SOON_MS);
            }
            if pod.shown != shown && !pod.ending {
                let object = json!({
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": pod.name, "namespace": facts.names.namespace, "annotations": {SHOWN: shown}},
                });
                self.actions.push(Action::Put { object, over: Some(pod.resource_version.clone()) });
            }
        }
    }

    /// Makes the certificates of the control API; true while there are none.
    pub(super) fn certify(&mut self) -> bool {
        let (ca, leaves) = (self.facts.names.control_ca(), self.facts.names.control());
        let due = |name: &str| {
            let Some(secret) = self.facts.child("Secret", name) else { return true };
            let after = secret["metadata"]["annotations"][RENEW_AFTER].as_str();
            after.and_then(millrace_crds::timestamp::Timestamp::parse).is_none_or(|after| after <= self.now)
        };
        let what = match (due(&ca), due(&leaves)) {
            (true, _) => Certify::Authority,
            (false, true) => Certify::Leaves,
            (false, false) => return false,
        };
        self.actions.push(Action::Certify(what));
        [&ca, &leaves].into_iter().any(|name| self.facts.child("Secret", name).is_none())
    }

    /// Which certificates the workers have.
    fn certificates(&self) -> &Value {
        let secret = self.facts.child("Secret", &self.facts.names.control());
        secret.map_or(&Value::Null, |secret| &secret["metadata"]["resourceVersion"])
    }

    /// Takes all pods away; true once none is left. A StatefulSet that is not seen may be there all the same, so one
    /// without pods is made, which fails then.
    pub(super) fn stop_pods(&mut self, run: &Run<'_>) -> bool {
        let stopped = self.facts.stateful_set.as_ref().is_some_and(|set| set.value.stopped);
        if !stopped {
            self.put(self.source.stateful_set(run, 0));
        }
        self.see_off(0);
        stopped && self.facts.pods.is_empty()
    }

    /// Removes what no pod needs any more.
    fn sweep(&mut self, run: &Run<'_>) {
        let names = &self.facts.names;
        let mut needed = vec![names.plan(run.fingerprint), names.connection(run.connection)];
        // Backfills keep to the plan that they began with, and pods of Jobs may start again too.
        let begun = self.facts.begun.iter().flat_map(|kept| &kept.value).filter(|begun| !begun.tidy);
        needed.extend(begun.flat_map(|begun| [names.plan(&begun.fingerprint), names.backfill(&begun.subject())]));
        let jobs = self.facts.children().filter(|object| object["kind"] == "Job");
        let volumes = jobs.flat_map(|job| job["spec"]["template"]["spec"]["volumes"].as_array().into_iter().flatten());
        needed.extend(volumes.filter_map(|volume| volume["configMap"]["name"].as_str().map(str::to_owned)));
        let stale = |object: &&Value| {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let versioned = [names.plan(""), names.connection(""), names.backfill("")]
                .iter()
                .any(|start| name.starts_with(start.as_str()));
            object["kind"] == "ConfigMap" && versioned && !needed.iter().any(|needed| needed == name)
        };
        // A pod of the former template may start again and mount them.
        if self.outlook.is_settled() && self.facts.pods.iter().all(|pod| pod.ready) {
            let stale: Vec<&Value> = self.facts.children().filter(stale).collect();
            stale.into_iter().for_each(|object| self.delete(object));
        }
    }
}

/// What workers take up while they run, where it is not the default, with which they start.
fn live(spec: &PipelineSpec) -> Live {
    let (interval, level) = (spec.delivery.commit_interval, spec.worker.log_level);
    let changed = interval != Delivery::default().commit_interval;
    Live {
        commit_interval_ms: changed.then(|| interval.ms().unsigned_abs()),
        log_level: (level != LogLevel::default()).then(|| log_level(level)),
    }
}

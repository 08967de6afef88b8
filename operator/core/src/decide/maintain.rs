//! What keeps the applied plan running as its spec asks for: pods, their assignment, and a pod that is replaced when its
//! template is another.
//!
//! A scale-down waits as long as a worker that is ready, and has tasks for all that is known, cannot be reached: taken away,
//! it would give nothing back.

use millrace_core::assignment::Assignment;
use millrace_core::ids::Generation;
use millrace_core::report::WorkerReport;
use millrace_crds::pipeline::{DesiredState, PipelineSpec};
use serde_json::{Value, json};

use super::{Round, SOON_MS};
use crate::assign::{Room, place};
use crate::decision::{Action, Certify, Event};
use crate::facts::{Applied, Placed, Pod};
use crate::names::{CONTROL_PORT, RENEW_AFTER, SHOWN, TEMPLATE_LABEL, digest};
use crate::render::{Run, lanes};

impl Round<'_> {
    /// Keeps the applied plan running as `spec` says, which may be an older one than the Pipeline's.
    pub(super) fn maintain(&mut self, applied: &Applied, spec: &PipelineSpec) {
        self.run_applied(applied, spec, spec.desired_state);
    }

    pub(super) fn run_applied(&mut self, applied: &Applied, spec: &PipelineSpec, desired_state: DesiredState) {
        let plan = self.plan_of(applied);
        let plan = plan.as_ref().map(|plan| (applied.fingerprint.as_str(), plan));
        let (connection, objects) = self.pods_need(&applied.spec, plan);
        let run = Run { spec, version: &applied.version, fingerprint: &applied.fingerprint, connection: &connection };
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
        let placed = match self.placed(applied, spec, desired_state, wanted, &run) {
            Some(placed) => placed,
            None => return,
        };
        let replicas = self.replicas(&placed, wanted);
        let set = self.source.stateful_set(&run, replicas);
        let template = set["spec"]["template"]["metadata"]["labels"][TEMPLATE_LABEL].clone();
        self.put(set);
        self.roll(template.as_str().unwrap_or_default(), replicas);
        self.tell(&placed);
        self.sweep(&run);
    }

    /// The stored plan, as it is: it is never compiled again.
    fn plan_of(&self, applied: &Applied) -> Option<Value> {
        let stored = self.facts.child("ConfigMap", &self.facts.names.plan(&applied.fingerprint));
        let stored = stored.and_then(|map| serde_json::from_str(map["data"]["plan.json"].as_str()?).ok());
        // Lost, and the spec still gives the same one.
        stored.or_else(|| match &self.facts.observed.compilation {
            crate::observed::Compilation::Done(compiled) if compiled.fingerprint == applied.fingerprint => {
                compiled.plan.clone()
            }
            _ => None,
        })
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
        (0..placed.workers).all(|worker| self.facts.report(worker).is_some_and(follows))
    }

    /// Whether pods of this plan may be there: none of another one is left.
    fn is_clear(&mut self, run: &Run<'_>) -> bool {
        let set = self.facts.stateful_set.as_ref().map(|set| &set.value);
        let starts = set.is_some_and(|set| set.plan != run.fingerprint || set.replicas == 0 && !set.stopped);
        !starts && !self.facts.runs_other(run.fingerprint) || self.stop_pods(run)
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
        self.put(self.source.applied(&Applied { plan, ..applied.clone() }));
        let note = format!(
            "the control log has plan {}, which is newer than what is known here; it is plan {plan} now",
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
    ) -> Option<Placed> {
        let before = self.facts.placed.as_ref().map(|kept| kept.value.clone());
        let of_plan = before.clone().filter(|placed| placed.fingerprint == applied.fingerprint);
        let reports = self.facts.observed.reports.values();
        let (mut stages, checked) = match &of_plan {
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
        for (stage, tasks) in reports.filter(|r| r.plan_fingerprint == applied.fingerprint).flat_map(|r| &r.stages) {
            stages.entry(stage.clone()).and_modify(|known| *known = *tasks.max(known)).or_insert(*tasks);
        }
        let workers = self.workers(of_plan.as_ref(), wanted);
        let last = self.facts.assignment();
        let tasks = place(last, &stages, Room { workers: workers.max(1), lanes: lanes(spec, self.settings) });
        let drain = desired_state == DesiredState::Drained && wanted > 0;
        let known = before.as_ref().and_then(|placed| Some(placed.assignment.as_ref()?.generation)).unwrap_or_default();
        let seen = self.facts.observed.reports.values().map(|report| report.highest_generation);
        let highest = seen.chain([checked]).max().unwrap_or_default();
        let next = Assignment { generation: known, plan: applied.plan, tasks, drain, accepts: applied.accepts.clone() };
        // While it is stopped, what it would run can wait.
        let fits = of_plan.is_some() && (wanted == 0 || last == Some(&next)) && highest <= known;
        if let Some(placed) = of_plan {
            if fits && drain && !placed.drained && self.all_drained(&placed) {
                let placed = Placed { drained: true, ..placed };
                self.put(self.source.assignment(&placed));
                return Some(placed);
            }
            if fits || self.nobody_answers() {
                return Some(placed);
            }
        }
        let generation = Generation(known.max(highest).0 + 1);
        let assignment = Some(Assignment { generation, ..next });
        let placed = Placed { fingerprint: applied.fingerprint.clone(), stages, workers, drained: false, assignment };
        self.put(self.source.assignment(&placed));
        self.outlook.progress("Assigning", format!("assignment {generation} was made"));
        Some(placed)
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

    /// How many workers get tasks: those that shall go lose them first, those that came get some when they are ready.
    fn workers(&self, placed: Option<&Placed>, wanted: u32) -> u32 {
        let there = self.facts.stateful_set.as_ref().map_or(0, |set| set.value.replicas);
        let Some(placed) = placed.filter(|_| there > 0) else { return wanted };
        if wanted <= placed.workers {
            return wanted.max(1);
        }
        let ready = |ordinal: u32| self.facts.pods.iter().any(|pod| pod.ordinal == ordinal && pod.ready && !pod.ending);
        if (placed.workers..wanted).all(ready) { wanted } else { placed.workers }
    }

    /// Pods that shall be there now. One that has tasks still is not taken away while it can give them back.
    fn replicas(&mut self, placed: &Placed, wanted: u32) -> u32 {
        let there = self.facts.stateful_set.as_ref().map_or(0, |set| set.value.replicas);
        if wanted >= there || wanted == 0 {
            return wanted;
        }
        let Some(assignment) = &placed.assignment else { return wanted };
        let holds = |pod: &Pod| {
            let gone = |report: &WorkerReport| report.generation >= assignment.generation && report.tasks.is_empty();
            pod.ready && !self.facts.report(pod.ordinal).is_some_and(gone)
        };
        let last =
            self.facts.pods.iter().filter(|pod| pod.ordinal >= wanted && holds(pod)).map(|pod| pod.ordinal + 1).max();
        if last.is_some() {
            self.outlook.progress("Rescaling", "workers give their tasks back before they go");
            self.again_in(SOON_MS);
        }
        last.unwrap_or(wanted)
    }

    /// Replaces pods of an older template, one after another: the next only when all others are ready.
    fn roll(&mut self, template: &str, replicas: u32) {
        let facts = self.facts;
        let set = facts.stateful_set.as_ref().map(|set| &set.value);
        if set.is_none_or(|set| set.template != template) {
            return;
        }
        let stale: Vec<&Pod> =
            facts.pods.iter().filter(|pod| !pod.template.is_empty() && pod.template != template).collect();
        if stale.is_empty() {
            return;
        }
        self.outlook.progress("Rolling", format!("{} pods are of an older template", stale.len()));
        let others_ready = facts.pods.len() as u32 >= replicas && facts.pods.iter().all(|pod| pod.ready && !pod.ending);
        // One that does not run gives nothing up.
        let broken = stale.iter().find(|pod| !pod.ready && !pod.ending);
        let next = broken.or_else(|| stale.last().filter(|_| others_ready));
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
        for pod in facts.pods.iter().filter(|pod| !pod.ending && written && pod.plan == placed.fingerprint) {
            let behind = facts.report(pod.ordinal).is_some_and(|report| report.generation < assignment.generation);
            if let (true, Some(address)) = (behind, &pod.address) {
                let address = format!("{address}:{CONTROL_PORT}");
                self.actions.push(Action::Push { worker: pod.ordinal, address, assignment: assignment.clone() });
                self.again_in(SOON_MS);
            }
            if pod.shown != shown {
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
        stopped && self.facts.pods.is_empty()
    }

    /// Removes what no pod needs any more.
    fn sweep(&mut self, run: &Run<'_>) {
        let names = &self.facts.names;
        let needed = [names.plan(run.fingerprint), names.connection(run.connection)];
        let stale = |object: &&Value| {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let versioned = [names.plan(""), names.connection("")].iter().any(|start| name.starts_with(start.as_str()));
            object["kind"] == "ConfigMap" && versioned && !needed.iter().any(|needed| needed == name)
        };
        // A pod of the former template may start again and mount them.
        if self.outlook.is_settled() && self.facts.pods.iter().all(|pod| pod.ready) {
            let stale: Vec<&Value> = self.facts.children().filter(stale).collect();
            stale.into_iter().for_each(|object| self.delete(object));
        }
    }
}

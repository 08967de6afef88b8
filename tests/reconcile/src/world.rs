//! The cluster, Kafka, the user, and everything that can happen to them.

use millrace_core::report::BackfillReport;
use millrace_crds::backfill::BackfillPhase;
use millrace_operator_core::decision::Action;
use millrace_operator_core::names::{BACKFILL, COMPONENT_LABEL, CONTROL_PORT, Names, RENEW_AFTER, UID_LABEL};
use millrace_simulator::rng::Rng;
use millrace_simulator::trace::{Run, Trace};
use serde_json::{Value, json};

use crate::api::{Api, Refusal, Snapshot, label, text};
use crate::ending::Ending;
use crate::mutant::Mutant;
use crate::operator::{KINDS, Operator};
use crate::oracle::{Audit, Violation, checked_plan, moves_to_who_stays};
use crate::platform::{self, Nodes};
use crate::weather::{Happening as H, Weather};
use crate::wish::{NAME, SECRET, Wish, backfill, savepoint};
use crate::worker::{self, Kafka, ROWS, is_consistent};

/// Steps with faults.
const CHAOS: usize = 1_000;
/// Most of what is drawn cannot happen just now; this often something else is drawn.
const TRIES: usize = 10;

pub struct World {
    pub api: Api,
    pub kafka: Kafka,
    pub nodes: Nodes,
    pub operators: Vec<Operator>,
    pub wish: Wish,
    pub rng: Rng,
    pub trace: Trace,
    pub audit: Audit,
    pub mutant: Option<Mutant>,
    pub weather: Weather,
    pub calm: bool,
    /// The user wants the Pipeline to be there.
    pub wanted: bool,
    /// Reasons of all events.
    pub events: Vec<String>,
    backup: Option<Snapshot>,
    late: Vec<Action>,
    /// Uid of a pod that was told to end, and must go.
    pub leaver: Option<String>,
}

/// Runs one seed; `record` keeps the lines of the trace.
pub fn run(seed: u64, mutant: Option<Mutant>, record: bool) -> Run<Violation> {
    let mut world = World::new(Rng::new(seed), Trace::new(record), mutant);
    let violation = world.live().err();
    world.trace.finish(violation)
}

impl World {
    fn new(mut rng: Rng, trace: Trace, mutant: Option<Mutant>) -> Self {
        let mut api = Api::new(1_767_225_600_000);
        let weather = Weather::of(&mut rng);
        let kafka = Kafka { partitions: 2 + rng.below(3) as i32, answers: true, ..Kafka::default() };
        secret(&mut api);
        let operators = (0..1 + rng.below(2)).map(|_| Operator::start(&api)).collect();
        let mut world = Self {
            api,
            kafka,
            nodes: Nodes::default(),
            operators,
            wish: Wish::new(),
            rng,
            trace,
            audit: Audit::default(),
            mutant,
            weather,
            calm: false,
            wanted: true,
            events: Vec::new(),
            backup: None,
            late: Vec::new(),
            leaver: None,
        };
        world.patience(60_000);
        world.audit.alone = world.operators.len() == 1;
        world.wish.replicas = 2;
        world.submit();
        world
    }

    fn live(&mut self) -> Result<(), Violation> {
        for _ in 0..CHAOS {
            self.happen()?;
        }
        self.calm();
        let ending = Ending::draw(&mut self.rng);
        self.end(self.mutant.and_then(Mutant::ending).unwrap_or(ending))
    }

    /// How long a pod has to end.
    fn patience(&mut self, ms: u32) {
        (self.api.grace_ms, self.nodes.leave_within_ms) = (i64::from(ms), u64::from(ms / 2));
    }

    fn calm(&mut self) {
        self.trace.line(format_args!("calm"));
        self.calm = true;
        // Time passes in few and large steps here, and no worker shall have to hurry.
        self.patience(3_600_000);
        self.nodes.lost.clear();
        self.weather = Weather::calm();
        self.kafka.answers = true;
        self.late.clear();
        self.operators.truncate(1);
        self.nodes.processes.iter_mut().for_each(|process| process.reachable = true);
        secret(&mut self.api);
    }

    /// The user applies the wish, as a new object or as an edit.
    pub fn submit(&mut self) {
        self.trace.line(format_args!("{:?}", self.wish));
        let spec = self.wish.spec();
        match self.api.get("Pipeline", NAME) {
            Some(_) => self.api.change("Pipeline", NAME, |pipeline| pipeline["spec"] = spec),
            None => {
                let made = self.api.create(json!({
                    "apiVersion": millrace_crds::pipeline::API_VERSION,
                    "kind": "Pipeline",
                    "metadata": {"name": NAME, "namespace": "n"},
                    "spec": spec,
                }));
                self.trace.line(format_args!("created: {made:?}"));
            }
        }
    }

    pub fn happen(&mut self) -> Result<(), Violation> {
        self.trace.next_step();
        for _ in 0..TRIES {
            let happening = self.weather.draw(&mut self.rng);
            if self.one(happening)? {
                return Ok(());
            }
        }
        Ok(())
    }

    fn one(&mut self, happening: H) -> Result<bool, Violation> {
        let Self { api, kafka, nodes, rng, .. } = self;
        let happened = match happening {
            H::Operator => return self.operate(),
            H::Watch => self.watch(),
            H::Ask => self.ask(),
            H::StatefulSet => {
                self.watch_over_scale_down()?;
                platform::stateful_set(&mut self.api, &mut self.rng)
            }
            H::Jobs => platform::jobs(api, rng),
            H::Kubelet => return self.kubelet(),
            H::Garbage => platform::garbage(api, rng) || platform::namespace(api, rng),
            H::Worker if nodes.processes.is_empty() => false,
            H::Worker => {
                let at = rng.below(nodes.processes.len());
                if nodes.processes[at].end(api.now_ms).is_some() {
                    return self.worker_ends(at);
                }
                return worker::step(&mut nodes.processes, at, kafka, self.audit.applied.as_deref(), rng);
            }
            H::Time => {
                let most_ms = if self.calm { 4_000 } else { [500, 4_000, 60_000][rng.below(3)] };
                api.now_ms += 1 + rng.below(most_ms) as i64;
                if self.calm {
                    // The operator asks all the time, whenever it hears of the answers.
                    (0..nodes.processes.len()).for_each(|at| self.asked(at));
                }
                return Ok(true);
            }
            H::LateWrite => return self.late_write(),
            fault => self.fault(fault),
        };
        if happened {
            self.trace.line(format_args!("{happening:?}"));
        }
        Ok(happened)
    }

    /// A worker that was told to end has.
    fn worker_ends(&mut self, at: usize) -> Result<bool, Violation> {
        let gone = self.nodes.processes.swap_remove(at);
        self.trace.line(format_args!("worker {} ends with {} tasks", gone.ordinal, gone.tasks.len()));
        let could_take = |other: &worker::Process| other.reachable && other.leaves.is_none() && other.is_ready();
        let in_vain = gone.tasks.is_empty() || !self.nodes.processes.iter().any(could_take);
        if in_vain || !self.audit.gentle {
            return Ok(true);
        }
        Err(Violation::LeftWithTasks { worker: gone.ordinal })
    }

    /// A worker notes that it was asked. Those of a Pipeline that is gone are not.
    fn asked(&mut self, at: usize) {
        let process = &mut self.nodes.processes[at];
        let pod = self.api.get("Pod", &format!("{NAME}-{}", process.ordinal));
        let own = pod.zip(self.api.get("Pipeline", NAME));
        if process.reachable && own.is_some_and(|(pod, pipeline)| label(pod, UID_LABEL) == text(pipeline, "uid")) {
            process.asked_ms = self.api.now_ms;
        }
    }

    fn kubelet(&mut self) -> Result<bool, Violation> {
        let did = self.nodes.kubelet(&mut self.api, &mut self.kafka, &mut self.rng)?;
        self.audit.computed(&self.kafka)?;
        let passed: Vec<String> = self.api.of_kind("Pod").filter_map(|pod| checked_plan(pod)).collect();
        passed.iter().for_each(|fingerprint| self.audit.preflight_passed(fingerprint));
        if did {
            self.trace.line(format_args!("kubelet: {} run", self.nodes.processes.len()));
        }
        Ok(did)
    }

    /// A healthy worker gives its tasks back before its pod goes.
    fn watch_over_scale_down(&self) -> Result<(), Violation> {
        let replicas = self.api.get("StatefulSet", NAME).and_then(|set| set["spec"]["replicas"].as_u64());
        let Some(replicas) = replicas.filter(|_| self.audit.gentle) else { return Ok(()) };
        let surplus = |ordinal: u32| u64::from(ordinal) >= replicas;
        let robbed = self.nodes.processes.iter().find(|p| surplus(p.ordinal) && !p.tasks.is_empty());
        robbed.map_or(Ok(()), |process| Err(Violation::TakenAway { worker: process.ordinal }))
    }

    fn fault(&mut self, fault: H) -> bool {
        let Self { api, kafka, nodes, rng, .. } = self;
        match fault {
            H::Edit => return self.edit(),
            H::SavepointMade => {
                let (name, policy) = (savepoint(rng), ["Retain", "Delete"][rng.below(2)]);
                return make_savepoint(api, &name, policy).is_ok();
            }
            H::SavepointDeleted => return api.delete("Savepoint", &savepoint(rng), None).is_ok(),
            H::BackfillMade | H::BackfillEdited | H::BackfillDeleted => return self.backfill(fault),
            H::OperatorCrashes => {
                let at = rng.below(self.operators.len());
                self.operators[at] = Operator::start(api);
            }
            H::Kill => return nodes.kill(api, rng),
            H::PodDeleted => {
                let names: Vec<String> = api.of_kind("Pod").map(|pod| text(pod, "name").to_owned()).collect();
                let Some(name) = (!names.is_empty()).then(|| &names[rng.below(names.len())]) else { return false };
                return api.delete("Pod", name, None).is_ok();
            }
            H::Unreachable => {
                let Some(at) = (!nodes.processes.is_empty()).then(|| rng.below(nodes.processes.len())) else {
                    return false;
                };
                nodes.processes[at].reachable ^= true;
            }
            H::NodeLost => {
                let Some(at) = (!nodes.processes.is_empty()).then(|| rng.below(nodes.processes.len())) else {
                    return false;
                };
                nodes.lose(at);
            }
            H::NodesBack => {
                if nodes.lost.is_empty() {
                    return false;
                }
                nodes.lost.clear();
            }
            H::ConfigMapLost => {
                let names: Vec<String> = api.of_kind("ConfigMap").map(|map| text(map, "name").to_owned()).collect();
                let Some(name) = (!names.is_empty()).then(|| &names[rng.below(names.len())]) else { return false };
                self.trace.line(format_args!("lost: {name}"));
                kafka.forgot |= *name == format!("{NAME}-applied");
                self.audit.forgot_backfills |= *name == format!("{NAME}-backfills");
                return api.delete("ConfigMap", name, None).is_ok();
            }
            H::Recreated => {
                self.wanted = false;
                self.audit.forgot_backfills = true;
                return api.delete("Pipeline", NAME, None).is_ok();
            }
            H::Backup => self.backup = Some(api.snapshot()),
            H::Restored => return self.restore(),
            H::SecretGone => match api.get("Secret", SECRET) {
                Some(_) => return api.delete("Secret", SECRET, None).is_ok(),
                None => secret(api),
            },
            H::BrokersGone => kafka.answers ^= true,
            H::PartitionAdded => kafka.partitions += i32::from(kafka.partitions < 6),
            _ => return false,
        }
        true
    }

    /// The user does something with a Backfill.
    fn backfill(&mut self, what: H) -> bool {
        let name = backfill(&mut self.rng);
        match what {
            H::BackfillMade => self.make_backfill(&name),
            H::BackfillEdited => self.edit_backfill(&name),
            _ => self.delete_backfill(&name),
        }
    }

    /// The user wants a part of history to be computed again.
    pub fn make_backfill(&mut self, name: &str) -> bool {
        let to = format!("2026-01-0{}T00:00:00Z", 2 + self.rng.below(2));
        let object = json!({
            "apiVersion": millrace_crds::pipeline::API_VERSION,
            "kind": millrace_crds::backfill::KIND,
            "metadata": {"name": name, "namespace": "n"},
            "spec": {
                "pipelineRef": {"name": NAME},
                "mode": "Repair",
                "range": {"from": "2026-01-01T00:00:00Z", "to": to},
                "attempt": 1,
            },
        });
        let asked = self.audit.backfills.entry(platform::backfill_key(&object)).or_default();
        let made = self.api.create(object).is_ok();
        asked.0 = asked.0.max(u32::from(made));
        made
    }

    /// It is suspended, goes on, gets another rate, or is asked for once more when it has ended.
    fn edit_backfill(&mut self, name: &str) -> bool {
        let Some(there) = self.api.get("Backfill", name).cloned() else { return false };
        let (suspend, attempt) = (there["spec"]["suspend"] == true, there["spec"]["attempt"].as_u64().unwrap_or(1));
        let done = there["status"]["phase"] == "Succeeded" && there["status"]["attempt"] == attempt;
        let (what, rate) = (self.rng.below(3), self.rng.below(3));
        if what == 0 {
            if done {
                self.ask_again(name);
            }
            return done;
        }
        self.api.change("Backfill", name, |backfill| match what {
            1 => backfill["spec"]["suspend"] = json!(!suspend),
            _ => backfill["spec"]["rateLimit"] = json!({"recordsPerSecond": rate}),
        });
        true
    }

    /// The same is to be computed once more, now that it is done.
    pub fn ask_again(&mut self, name: &str) {
        let Some(there) = self.api.get("Backfill", name).cloned() else { return };
        let attempt = there["spec"]["attempt"].as_u64().unwrap_or(1) + 1;
        let asked = self.audit.backfills.entry(platform::backfill_key(&there)).or_default();
        asked.0 = asked.0.max(attempt as u32);
        self.api.change("Backfill", name, |backfill| backfill["spec"]["attempt"] = json!(attempt));
    }

    fn delete_backfill(&mut self, name: &str) -> bool {
        let Some(there) = self.api.get("Backfill", name).cloned() else { return false };
        let phase = there["status"]["phase"].as_str().unwrap_or_default();
        let ended =
            ["Succeeded", "AlreadyDone"].contains(&phase) && there["status"]["attempt"] == there["spec"]["attempt"];
        let asked = self.audit.backfills.entry(platform::backfill_key(&there)).or_default();
        asked.1 += u32::from(!ended);
        self.api.delete("Backfill", name, None).is_ok()
    }

    fn edit(&mut self) -> bool {
        if !self.wanted && self.api.get("Pipeline", NAME).is_none() {
            self.wanted = true;
            self.submit();
            return true;
        }
        self.wish.edit(&mut self.rng);
        if self.api.get("Pipeline", NAME).is_some_and(|there| !there["metadata"]["deletionTimestamp"].is_string()) {
            self.submit();
        }
        true
    }

    /// The cluster's memory goes back; Kafka's does not, and what nobody knows of any more is ended.
    fn restore(&mut self) -> bool {
        let Some(backup) = self.backup.take() else { return false };
        self.api.restore(&backup);
        self.audit.forget();
        self.kafka.forgot = true;
        self.operators.iter_mut().for_each(|operator| *operator = Operator::start(&self.api));
        self.late.clear();
        let api = &self.api;
        self.nodes.processes.retain(|process| {
            let pod = api.get("Pod", &format!("{NAME}-{}", process.ordinal));
            pod.is_some_and(|pod| text(pod, "uid") == process.pod_uid)
        });
        self.wanted = self.api.get("Pipeline", NAME).is_some();
        true
    }

    fn watch(&mut self) -> bool {
        let (at, kind) = (self.rng.below(self.operators.len()), KINDS[self.rng.below(KINDS.len())]);
        let operator = &mut self.operators[at];
        let behind = operator.behind(&self.api, kind);
        behind > 0 && operator.read(&self.api, kind, 1 + self.rng.below(behind))
    }

    fn ask(&mut self) -> bool {
        let at = self.rng.below(self.operators.len());
        let worker = self.rng.below(4) as u32;
        let answers = |process: &worker::Process| process.ordinal == worker && process.reachable;
        let found = self.nodes.processes.iter().position(answers);
        found.into_iter().for_each(|at| self.asked(at));
        let process = found.map(|at| &self.nodes.processes[at]);
        // One that leaves is slow to answer now and then.
        let heard = process.filter(|process| process.leaves.is_none() || self.rng.per_mille(800));
        let report = heard.map(|process| process.report(&self.kafka, self.api.now_ms));
        let computes = self.api.of_kind("Pod").any(|pod| {
            let running = pod["status"]["podIP"].is_string() && pod["status"]["containerStatuses"].is_null();
            running && label(pod, COMPONENT_LABEL) == BACKFILL
        });
        let records_per_second = self.kafka.rate;
        let backfill = computes.then(|| BackfillReport { records_per_second, ..BackfillReport::default() });
        let operator = &mut self.operators[at];
        operator.dirty |= operator.seen.backfill != backfill;
        operator.seen.backfill = backfill;
        operator.asked.insert(worker, self.api.now_ms);
        let before = match report {
            Some(report) => operator.seen.reports.insert(worker, report),
            None => operator.seen.reports.remove(&worker),
        };
        let oldest_ms = operator.seen.reports.keys().filter_map(|worker| operator.asked.get(worker)).min();
        operator.seen.reported_ms = oldest_ms.copied();
        let news = before.as_ref() != operator.seen.reports.get(&worker);
        operator.dirty |= news;
        news
    }

    fn operate(&mut self) -> Result<bool, Violation> {
        let at = self.rng.below(self.operators.len());
        if let Some(action) = self.operators[at].queue.pop_front() {
            self.write(at, action)?;
            return Ok(true);
        }
        if let Some((status, version)) = self.operators[at].status.take() {
            self.write_status(at, json!(status), &version);
            return Ok(true);
        }
        let operator = &mut self.operators[at];
        if !operator.dirty && operator.wake_ms > self.api.now_ms {
            return Ok(false);
        }
        let compiles = self.calm || self.rng.per_mille(900);
        let decided = operator.decide(&self.api, compiles, self.mutant);
        operator.dirty |= !compiles;
        self.events.extend(operator.events.drain(..).map(|event| event.reason));
        self.trace.line(format_args!("operator {at} decides {} writes", operator.queue.len()));
        operator.queue.iter().try_for_each(|action| moves_to_who_stays(&operator.seen, action))?;
        Ok(decided)
    }

    /// Carries a write out, or loses it, or loses the answer, or lets it land later. After an error nothing of the
    /// decision is done any more.
    fn write(&mut self, at: usize, action: Action) -> Result<(), Violation> {
        let fate = if self.calm { 1_000 } else { self.rng.below(1_000) };
        self.audit.writes += 1;
        self.audit.last_write = name_of(&action);
        let done = match fate {
            0..15 => None,
            15..30 => {
                self.late.push(action.clone());
                None
            }
            30..45 => {
                self.land(&action)?.ok();
                None
            }
            _ => Some(self.land(&action)?),
        };
        self.trace.line(format_args!("operator {at} writes {}: {done:?}", name_of(&action)));
        if !matches!(done, Some(Ok(()))) {
            self.operators[at].give_up(self.api.now_ms);
        }
        Ok(())
    }

    fn late_write(&mut self) -> Result<bool, Violation> {
        let Some(action) = self.late.pop() else { return Ok(false) };
        let landed = self.land(&action)?;
        self.trace.line(format_args!("late: {} {landed:?}", name_of(&action)));
        Ok(true)
    }

    fn land(&mut self, action: &Action) -> Result<Result<(), Refusal>, Violation> {
        match action {
            Action::Push { worker, assignment, .. } => {
                let process = self.nodes.processes.iter_mut().find(|p| p.ordinal == *worker && p.reachable);
                let Some(process) = process else { return Ok(Err(Refusal::Missing)) };
                process.pushed = Some(assignment.clone());
                Ok(Ok(()))
            }
            Action::Pace { records_per_second, .. } => {
                self.kafka.rate = *records_per_second;
                Ok(Ok(()))
            }
            Action::BackfillStatus { status, .. } => {
                let applied = status.counts.map_or(0, |counts| counts.applied);
                match status.phase {
                    Some(BackfillPhase::Succeeded) if applied != ROWS as i64 && !self.audit.forgot_backfills => {
                        Err(Violation::CountedTwice)
                    }
                    _ => Ok(self.api.carry_out(NAME, action)),
                }
            }
            Action::LetGo { address, .. } => {
                let at = |p: &&mut worker::Process| {
                    p.reachable && *address == format!("{}:{CONTROL_PORT}", platform::address(&p.pod_uid))
                };
                let process = self.nodes.processes.iter_mut().find(at);
                Ok(process.map(|process| process.let_go = true).ok_or(Refusal::Missing))
            }
            Action::Delete { uid, .. } if self.audit.gentle => {
                let has_tasks = |p: &&worker::Process| p.pod_uid == *uid && p.reachable && !p.tasks.is_empty();
                match self.nodes.processes.iter().find(has_tasks) {
                    Some(process) => Err(Violation::TakenAway { worker: process.ordinal }),
                    None => Ok(self.api.carry_out(NAME, action)),
                }
            }
            Action::Certify(_) => Ok(self.certify()),
            Action::Put { object, .. } if self.mutant == Some(Mutant::PutWithoutOver) => {
                self.audit.look(&self.api, &self.kafka, &self.nodes.processes, object)?;
                Ok(self.api.force(object))
            }
            Action::Put { object, over } if self.api.admits(object, over.as_deref()).is_ok() => {
                self.audit.look(&self.api, &self.kafka, &self.nodes.processes, object)?;
                Ok(self.api.carry_out(NAME, action))
            }
            Action::SavepointStatus { status, .. } => {
                let written = self.api.carry_out(NAME, action);
                let location = status.location.as_ref().filter(|_| written.is_ok());
                let parts = location.and_then(|location| self.kafka.storage.written.get(location));
                if parts.is_some_and(|(_, parts)| !is_consistent(parts)) {
                    return Err(Violation::Torn);
                }
                Ok(written)
            }
            _ => Ok(self.api.carry_out(NAME, action)),
        }
    }

    fn certify(&mut self) -> Result<(), Refusal> {
        let pipeline = self.api.get("Pipeline", NAME).ok_or(Refusal::Missing)?;
        let uid = text(pipeline, "uid").to_owned();
        let names = Names { namespace: "n".to_owned(), pipeline: NAME.to_owned(), uid: uid.clone() };
        for name in [names.control_ca(), names.control()] {
            if self.api.get("Secret", &name).is_none() {
                let owner = json!([{"kind": "Pipeline", "name": NAME, "uid": uid}]);
                let mut secret = json!({"apiVersion": "v1", "kind": "Secret"});
                secret["metadata"] = json!({"name": name, "labels": names.labels("control"), "ownerReferences": owner});
                secret["metadata"]["annotations"][RENEW_AFTER] = json!("2100-01-01T00:00:00Z");
                self.api.create(secret)?;
            }
        }
        Ok(())
    }

    fn write_status(&mut self, at: usize, status: Value, version: &str) {
        let fate = if self.calm { 1_000 } else { self.rng.below(1_000) };
        self.audit.writes += 1;
        self.audit.last_write = "status".to_owned();
        let current = self.api.get("Pipeline", NAME).is_some_and(|there| text(there, "resourceVersion") == version);
        if fate >= 30 && current {
            self.api.change("Pipeline", NAME, |pipeline| pipeline["status"] = status);
        }
        let operator = &mut self.operators[at];
        operator.seen.live_written_ms = Some(self.api.now_ms);
        if !current || fate < 60 {
            operator.give_up(self.api.now_ms);
        }
        self.trace.line(format_args!("operator {at} writes status: {current} {fate}"));
    }

    /// Worker pods by the API server.
    pub fn pods(&self) -> usize {
        self.api.of_kind("Pod").filter(|pod| label(pod, COMPONENT_LABEL) == "worker").count()
    }
}

/// The user wants the Pipeline to be saved.
pub fn make_savepoint(api: &mut Api, name: &str, policy: &str) -> Result<(), Refusal> {
    api.create(json!({
        "apiVersion": millrace_crds::pipeline::API_VERSION,
        "kind": millrace_crds::savepoint::KIND,
        "metadata": {"name": name, "namespace": "n"},
        "spec": {"pipelineRef": {"name": NAME}, "deletionPolicy": policy},
    }))
}

fn secret(api: &mut Api) {
    let made = api.create(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}}));
    debug_assert!(made.is_ok() || api.get("Secret", SECRET).is_some() || api.namespace_ends);
}

fn name_of(action: &Action) -> String {
    match action {
        Action::Put { object, over } => {
            format!(
                "{} {}{}",
                object["kind"].as_str().unwrap_or_default(),
                text(object, "name"),
                if over.is_some() { "" } else { " (new)" }
            )
        }
        Action::Delete { kind, name, .. } => format!("delete {kind} {name}"),
        Action::Push { worker, assignment, .. } => format!("push {} to {worker}", assignment.generation),
        Action::SavepointStatus { name, status, .. } => {
            format!("status of Savepoint {name}: {:?}, {:?}", status.phase, status.message)
        }
        Action::LetGo { worker, .. } => format!("let {worker} go"),
        other => format!("{other:?}"),
    }
}

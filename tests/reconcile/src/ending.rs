//! How a run ends: all faults stop, the user makes a last wish, and the world must come to it, and to rest.

use std::collections::BTreeSet;
use std::rc::Rc;

use millrace_core::ids::Timeline;
use millrace_operator_core::names::{COMPONENT_LABEL, RULES, TEMPLATE_LABEL, history};
use millrace_operator_core::settings::RulesNamespace;
use millrace_simulator::rng::Rng;
use serde_json::{Value, json};

use crate::api::{label, text};
use crate::operator::Operator;
use crate::oracle::{Violation, data};
use crate::wish::{Fit, NAME, READS, WRITES, fit, number};
use crate::worker::Process;
use crate::world::{World, make_savepoint};

/// Steps in which the world must come to what was asked for.
const STEPS_MAX: usize = 5_000;
/// So long nothing may be written then: three times the operator looks although nothing has changed.
const QUIET_MS: i64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Plain,
    /// Then the spec gets a mistake.
    Broken,
    /// Then there shall be fewer pods, then more, and half-way as many as before.
    Rescaled,
    /// Then one pod after another is told to end, by somebody else.
    Evicted,
    /// Then the node of a worker is lost: its pod is told to end, and does not.
    NodeLost,
    /// Then the only worker is replaced.
    RolledAlone,
    /// Then it is saved while workers are killed, and goes back to what was saved, twice.
    Restored,
    /// Then the same part of history is asked for again and again, while workers and the operator are killed.
    Backfilled,
    Deleted,
    /// Deleted with all that it owns, while the brokers do not answer.
    DeletedWithoutBrokers,
    NamespaceEnds,
}

impl Ending {
    pub fn draw(rng: &mut Rng) -> Self {
        let all = [
            Self::Plain,
            Self::Plain,
            Self::Broken,
            Self::Rescaled,
            Self::Evicted,
            Self::NodeLost,
            Self::RolledAlone,
            Self::Restored,
            Self::Restored,
            Self::Backfilled,
            Self::Deleted,
            Self::DeletedWithoutBrokers,
            Self::NamespaceEnds,
        ];
        all[rng.below(all.len())]
    }
}

impl World {
    pub fn end(&mut self, ending: Ending) -> Result<(), Violation> {
        self.trace.line(format_args!("{ending:?}"));
        // What was on its way out goes first.
        if self.api.get("Pipeline", NAME).is_some_and(|there| there["metadata"]["deletionTimestamp"].is_string()) {
            self.until(Self::gone)?;
        }
        self.wish.mend();
        self.wish.restore = None;
        match ending {
            Ending::Rescaled => (self.wish.replicas, self.wish.state) = (3, "Running"),
            Ending::Evicted | Ending::NodeLost => {
                (self.wish.replicas, self.wish.state) = (1 + self.rng.below(3) as u32, "Running");
            }
            Ending::RolledAlone => (self.wish.replicas, self.wish.state) = (1, "Running"),
            Ending::Broken | Ending::Restored | Ending::Backfilled => {
                (self.wish.replicas, self.wish.state) = (2, "Running")
            }
            Ending::DeletedWithoutBrokers => self.wish.deletion = "Delete",
            _ => {}
        }
        if let Some(lost) = self.lost_plan() {
            self.restore_plan(lost)?;
        }
        self.restore_savepoint();
        let backfills: Vec<String> = self.api.of_kind("Backfill").map(|one| text(one, "name").to_owned()).collect();
        for name in backfills {
            self.api.change("Backfill", &name, |backfill| backfill["spec"]["suspend"] = json!(false));
        }
        self.make_backfill("last");
        let made = make_savepoint(&mut self.api, "last", "Delete");
        self.trace.line(format_args!("a last savepoint: {made:?}"));
        self.submit();
        self.until(Self::settled)?;
        self.rest()?;
        match ending {
            Ending::Plain => Ok(()),
            Ending::Broken => self.break_spec(),
            Ending::Rescaled => self.rescale(),
            Ending::Evicted => self.evict(),
            Ending::NodeLost => self.lose_a_node(),
            Ending::RolledAlone => self.roll_alone(),
            Ending::Restored => self.go_back(),
            Ending::Backfilled => self.backfill_again(),
            Ending::Deleted | Ending::DeletedWithoutBrokers | Ending::NamespaceEnds => self.delete(ending),
        }
    }

    /// The applied plan, if it is not stored any more.
    fn lost_plan(&self) -> Option<u32> {
        let map = self.api.get("ConfigMap", &format!("{NAME}-applied"))?;
        let fingerprint = data(map, "applied.json")["fingerprint"].as_str()?.to_owned();
        let stored = self.api.get("ConfigMap", &format!("{NAME}-plan-{fingerprint}")).is_some();
        number(&fingerprint).filter(|_| !stored)
    }

    /// A plan that was lost comes back with its spec, and with nothing else: the user undoes the edit.
    fn restore_plan(&mut self, lost: u32) -> Result<(), Violation> {
        let plan = std::mem::replace(&mut self.wish.plan, lost);
        self.submit();
        self.until(Self::settled)?;
        self.wish.plan = plan;
        Ok(())
    }

    /// The user goes back to some savepoint, if there is one, half of the time.
    fn restore_savepoint(&mut self) {
        let whole = self.api.of_kind("Savepoint").filter_map(|savepoint| {
            let (plan, _) = self.kafka.storage.written.get(savepoint["status"]["location"].as_str()?)?;
            let stays = !savepoint["metadata"]["deletionTimestamp"].is_string();
            stays.then(|| (text(savepoint, "name").to_owned(), *plan))
        });
        if let Some((name, plan)) = whole.last().filter(|_| self.rng.per_mille(500)) {
            self.wish.plan = plan;
            self.wish.restore = Some((name, 9));
        }
    }

    fn backfill_again(&mut self) -> Result<(), Violation> {
        for _ in 0..3 {
            // As GitOps makes it: once more, and the next attempt of it.
            self.api.delete("Backfill", "last", None).ok();
            self.some_steps(20)?;
            self.make_backfill("last");
            self.until(Self::settled)?;
            self.ask_again("last");
            self.some_steps(60)?;
            self.nodes.kill(&mut self.api, &mut self.rng);
            self.operators[0] = Operator::start(&self.api);
            self.until(Self::settled)?;
        }
        self.rest()
    }

    fn go_back(&mut self) -> Result<(), Violation> {
        let made = make_savepoint(&mut self.api, "killed", "Retain");
        self.trace.line(format_args!("one under fire: {made:?}"));
        for _ in 0..10 {
            self.some_steps(60)?;
            self.nodes.kill(&mut self.api, &mut self.rng);
        }
        self.until(Self::settled)?;
        let last = self.api.get("Savepoint", "last").and_then(|last| last["status"]["location"].as_str());
        let Some((plan, _)) = last.and_then(|last| self.kafka.storage.written.get(last)) else { return Ok(()) };
        let plan = *plan;
        for attempt in 1..=2 {
            self.wish.restore = Some(("last".to_owned(), attempt));
            // In the middle the other one of its pair is asked for.
            for plan in [plan, plan ^ 1] {
                self.wish.plan = plan;
                self.submit();
                self.some_steps(600)?;
            }
            self.until(Self::settled)?;
        }
        self.rest()
    }

    fn some_steps(&mut self, most: usize) -> Result<(), Violation> {
        (0..self.rng.below(most)).try_for_each(|_| self.happen())
    }

    fn break_spec(&mut self) -> Result<(), Violation> {
        let lives = |world: &Self| world.nodes.processes.iter().map(|process| process.id).collect::<BTreeSet<u64>>();
        let before = lives(self);
        self.wish.misshapen = self.rng.per_mille(500);
        self.wish.plan = if self.wish.misshapen { self.wish.plan } else { u32::MAX };
        self.submit();
        self.until(Self::settled)?;
        self.rest()?;
        if lives(self) == before { Ok(()) } else { Err(Violation::Disturbed) }
    }

    fn rescale(&mut self) -> Result<(), Violation> {
        // One whose state does not fit runs as it did, so that its replicas don't change.
        self.audit.gentle = true;
        for (replicas, whole) in [(1, true), (3, false), (2, true)] {
            self.wish.replicas = replicas;
            self.submit();
            if !whole {
                let steps = self.rng.below(500);
                (0..steps).try_for_each(|_| self.happen())?;
                continue;
            }
            self.until(Self::settled)?;
            self.rest()?;
        }
        Ok(())
    }

    fn evict(&mut self) -> Result<(), Violation> {
        self.audit.gentle = true;
        for _ in 0..2 {
            let Some(at) = self.some_worker() else { return Ok(()) };
            let process = &self.nodes.processes[at];
            self.leaver = Some(process.pod_uid.clone());
            self.api.delete("Pod", &format!("{NAME}-{}", process.ordinal), None).ok();
            self.until(Self::settled)?;
            self.rest()?;
        }
        Ok(())
    }

    fn lose_a_node(&mut self) -> Result<(), Violation> {
        let Some(at) = self.some_worker() else { return Ok(()) };
        let name = format!("{NAME}-{}", self.nodes.processes[at].ordinal);
        self.leaver = Some(self.nodes.lose(at));
        self.api.delete("Pod", &name, None).ok();
        if self.nodes.processes.len() > 1 {
            self.until(Self::taken_over)?;
        }
        // Somebody sees to it that the node is gone for good.
        self.api.forget("Pod", &name);
        self.nodes.lost.clear();
        self.until(Self::settled)?;
        self.rest()
    }

    fn roll_alone(&mut self) -> Result<(), Violation> {
        self.audit.gentle = true;
        self.wish.servers ^= 1;
        self.submit();
        self.until(Self::settled)?;
        self.rest()
    }

    fn some_worker(&mut self) -> Option<usize> {
        let count = self.nodes.processes.len();
        (count > 0).then(|| self.rng.below(count))
    }

    /// Every task is run by a worker that can be reached.
    fn taken_over(&self) -> Result<(), String> {
        let reached = self.nodes.processes.iter().filter(|process| process.reachable);
        let tasks: usize = reached.map(|process| process.tasks.len()).sum();
        let all = [READS, WRITES].len() * self.kafka.partitions as usize;
        if tasks == all { Ok(()) } else { Err(format!("{tasks} tasks were taken over")) }
    }

    fn delete(&mut self, ending: Ending) -> Result<(), Violation> {
        let (used, deletes) = (self.kafka.is_used(), self.wish.deletion == "Delete");
        self.events.clear();
        self.kafka.answers = ending != Ending::DeletedWithoutBrokers;
        self.api.namespace_ends = ending == Ending::NamespaceEnds;
        self.api.delete("Pipeline", NAME, None).ok();
        self.until(Self::gone)?;
        let said = self.events.iter().any(|reason| reason == "LeftBehind");
        match (deletes, used, self.kafka.is_used()) {
            (true, true, true) if !said => Err(Violation::LeftSilently),
            (false, true, false) => Err(Violation::NotRetained),
            _ => Ok(()),
        }
    }

    fn until(&mut self, reached: fn(&Self) -> Result<(), String>) -> Result<(), Violation> {
        let mut missing = Ok(());
        for step in 0..STEPS_MAX {
            self.happen()?;
            if step % 50 == 0 {
                missing = reached(self);
                if missing.is_ok() {
                    return Ok(());
                }
            }
        }
        missing.map_err(|at| Violation::Stuck { at })
    }

    /// Nothing is written any more, although time passes and numbers wiggle.
    fn rest(&mut self) -> Result<(), Violation> {
        let (mut writes, mut since_ms) = (self.audit.writes, self.api.now_ms);
        let end_ms = since_ms + 5 * QUIET_MS;
        while self.api.now_ms < since_ms + QUIET_MS {
            (0..10).try_for_each(|_| self.happen())?;
            self.api.now_ms += 20_000;
            // What was left to do when it had settled is done.
            if self.audit.writes != writes {
                (writes, since_ms) = (self.audit.writes, self.api.now_ms);
            }
            if self.api.now_ms > end_ms {
                return Err(Violation::NotQuiet { what: self.audit.last_write.clone() });
            }
        }
        self.trace.line(format_args!("rests"));
        self.settled().map_err(|at| Violation::Stuck { at })
    }

    fn gone(&self) -> Result<(), String> {
        let own = self.api.all().find(|object| !object["metadata"]["labels"].is_null());
        match (self.api.get("Pipeline", NAME), own) {
            (Some(there), _) => Err(format!("still there: {}", there["status"])),
            (None, Some(own)) => Err(format!("{} {} is left", own["kind"], own["metadata"]["name"])),
            (None, None) if self.nodes.processes.is_empty() => Ok(()),
            (None, None) => Err("workers run".to_owned()),
        }
    }

    /// What must be true in the end, without a look at how the operator comes to it.
    fn settled(&self) -> Result<(), String> {
        let pipeline = self.api.get("Pipeline", NAME).ok_or("there is no Pipeline")?;
        let status = &pipeline["status"];
        let leaver = self.leaver.as_deref();
        if let Some(pod) = self.api.of_kind("Pod").find(|pod| Some(text(pod, "uid")) == leaver) {
            return Err(format!("{} was told to end and is there", text(pod, "name")));
        }
        if status["observedGeneration"] != pipeline["metadata"]["generation"] {
            return Err("the status is of another generation".to_owned());
        }
        let map = self.api.get("ConfigMap", &format!("{NAME}-applied")).ok_or("nothing was applied")?;
        let applied = data(map, "applied.json");
        let plan = applied["fingerprint"].as_str().and_then(number).ok_or("no plan was applied")?;
        let stored = self.api.get("ConfigMap", &format!("{NAME}-plan-{}", crate::wish::fingerprint(plan))).is_some();
        let another = plan != self.wish.plan;
        let fits = if another && self.wish.is_valid() { fit(plan, self.wish.plan) } else { Fit::Kept };
        let misfit = fits == Fit::Lost || fits == Fit::Empty && !stored;
        let held = fits == Fit::Empty && !misfit && self.wish.pods() == 0;
        if another && self.wish.is_valid() && !misfit && !held {
            let said = &status["message"];
            return Err(format!("plan {plan} is applied, and not {}: {said}", self.wish.plan));
        }
        if !another && self.wish.is_valid() && applied["spec"] != pipeline["spec"] {
            return Err("another spec is applied".to_owned());
        }
        if let Some((name, attempt)) = &self.wish.restore
            && !applied["restored"]
                .as_array()
                .into_iter()
                .flatten()
                .any(|r| r["savepoint"] == name.as_str() && r["attempt"] == *attempt)
        {
            return Err(format!("{name} is not restored: {}", status["message"]));
        }
        let follows = self.wish.is_valid() && !misfit;
        let pods = if follows { self.wish.pods() } else { pods_of(&applied["spec"]) };
        let timeline = Timeline(applied["timeline"].as_u64().unwrap_or(1) as u32);
        self.running(pods, &history(applied["fingerprint"].as_str().unwrap_or_default(), timeline))?;
        self.saved(pods)?;
        self.computed(pods)?;
        let expected: &[(&str, &str)] = match () {
            () if !self.wish.is_valid() => &[("Ready", "False"), ("SpecValid", "False"), ("Stalled", "True")],
            () if misfit => {
                &[("Ready", "False"), ("SpecValid", "True"), ("Stalled", "True"), ("StateHealthy", "False")]
            }
            () if held => &[("Ready", "False"), ("SpecValid", "True"), ("Stalled", "True")],
            () if pods == 0 => {
                &[("Ready", "False"), ("SpecValid", "True"), ("Stalled", "False"), ("Reconciling", "False")]
            }
            () => &[("Ready", "True"), ("SpecValid", "True"), ("Stalled", "False"), ("Reconciling", "False")],
        };
        conditions(status, expected)?;
        conditions(status, &[("Available", if pods > 0 { "True" } else { "False" })])?;
        if status["readyReplicas"] != pods || status["replicas"] != pods || status["desiredReplicas"] != pods {
            return Err(format!("the status tells of other pods: {status}"));
        }
        if !status["rescale"].is_null() {
            return Err(format!("tasks are to move: {}", status["rescale"]));
        }
        // Of a spec that cannot be read nobody knows which SLOs it has.
        if self.wish.misshapen { Ok(()) } else { self.ruled() }
    }

    /// Rules are where the operator was told to keep them, and nowhere else.
    fn ruled(&self) -> Result<(), String> {
        let about = |map: &&Rc<Value>| label(map, COMPONENT_LABEL) == RULES;
        let names: Vec<&str> = self.api.of_kind("ConfigMap").filter(about).map(|map| text(map, "name")).collect();
        let expected = match self.operators[0].settings.rules.namespace {
            RulesNamespace::Pipeline => format!("{NAME}-rules"),
            RulesNamespace::Operator => format!("n.{NAME}-rules"),
        };
        if names == [&expected] { Ok(()) } else { Err(format!("rules are {names:?}, and not {expected}")) }
    }

    /// Every Backfill is done, or says why not.
    fn computed(&self, pods: u32) -> Result<(), String> {
        for backfill in self.api.of_kind("Backfill").filter(|_| pods > 0) {
            let phase = backfill["status"]["phase"].as_str().unwrap_or_default();
            if !["Succeeded", "AlreadyDone", "Failed"].contains(&phase) {
                return Err(format!("Backfill {} is not done: {}", text(backfill, "name"), backfill["status"]));
            }
        }
        Ok(())
    }

    /// Every Savepoint is whole, or says why not.
    fn saved(&self, pods: u32) -> Result<(), String> {
        for savepoint in self.api.of_kind("Savepoint") {
            let (name, status) = (text(savepoint, "name"), &savepoint["status"]);
            match status["phase"].as_str() {
                _ if savepoint["metadata"]["deletionTimestamp"].is_string() => {
                    return Err(format!("Savepoint {name} does not go"));
                }
                Some("Completed") => conditions(status, &[("Ready", "True"), ("Stalled", "False")])?,
                Some("Failed") => conditions(status, &[("Ready", "False"), ("Stalled", "True")])?,
                _ if pods > 0 => {
                    let all = self.api.of_kind("Savepoint").map(|one| one["status"]["message"].to_string());
                    return Err(format!("Savepoint {name} is not made: {:?}", all.collect::<Vec<_>>()));
                }
                _ => conditions(status, &[("Ready", "False")])?,
            }
        }
        let map = self.api.get("ConfigMap", &format!("{NAME}-assignment"));
        let told = map.is_some_and(|map| !data(map, "assignment.json")["savepoint"].is_null());
        if told && pods > 0 { Err("workers are told of a savepoint that nobody wants".to_owned()) } else { Ok(()) }
    }

    /// So many workers run the plan, each task once.
    fn running(&self, pods: u32, history: &str) -> Result<(), String> {
        let processes = &self.nodes.processes;
        if self.pods() != pods as usize || processes.len() != pods as usize {
            return Err(format!("{} pods and {} workers, not {pods}", self.pods(), processes.len()));
        }
        if processes.iter().any(|process| process.history() != history || !process.is_ready()) {
            return Err("a worker does not run".to_owned());
        }
        for stage in [READS, WRITES] {
            let of_stage = |p: &Process| p.tasks.keys().filter(|task| task.stage == stage).count();
            let tasks: Vec<usize> = processes.iter().map(of_stage).collect();
            if pods > 0 && tasks.iter().sum::<usize>() != self.kafka.partitions as usize {
                return Err(format!("{tasks:?} of {} tasks run", self.kafka.partitions));
            }
            if tasks.iter().max() > tasks.iter().min().map(|least| least + 1).as_ref() {
                return Err(format!("tasks lie unevenly: {tasks:?}"));
            }
        }
        if processes.iter().any(|process| !process.warm.is_empty()) {
            return Err("a worker reads a state that it does not need".to_owned());
        }
        let set = self.api.get("StatefulSet", NAME);
        let template = set.map(|set| set["spec"]["template"]["metadata"]["labels"][TEMPLATE_LABEL].clone());
        let stale = self.api.of_kind("Pod").any(|pod| {
            label(pod, millrace_operator_core::names::COMPONENT_LABEL) == "worker"
                && Some(&pod["metadata"]["labels"][TEMPLATE_LABEL]) != template.as_ref()
        });
        if stale { Err("a pod is of an older template".to_owned()) } else { Ok(()) }
    }
}

fn pods_of(spec: &Value) -> u32 {
    if spec["desiredState"] == "Running" { spec["replicas"].as_u64().unwrap_or(1) as u32 } else { 0 }
}

fn conditions(status: &Value, expected: &[(&str, &str)]) -> Result<(), String> {
    for (kind, value) in expected {
        let found = status["conditions"].as_array().into_iter().flatten().find(|c| c["type"] == *kind);
        if found.is_none_or(|found| found["status"] != *value) {
            return Err(format!("{kind} is not {value}: {found:?}"));
        }
    }
    Ok(())
}

//! How a run ends: all faults stop, the user makes a last wish, and the world must come to it, and to rest.

use std::collections::BTreeSet;

use millrace_operator_core::names::TEMPLATE_LABEL;
use millrace_simulator::rng::Rng;
use serde_json::Value;

use crate::api::label;
use crate::oracle::{Violation, data};
use crate::wish::{Fit, NAME, fit, number};
use crate::world::World;

/// Steps in which the world must come to what was asked for.
const STEPS_MAX: usize = 5_000;
/// So long nothing may be written then: three times the operator looks although nothing has changed.
const QUIET_MS: i64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Plain,
    /// Then the spec gets a mistake.
    Broken,
    /// Then there shall be fewer pods.
    Smaller,
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
            Self::Smaller,
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
        match ending {
            Ending::Smaller => (self.wish.replicas, self.wish.state) = (3, "Running"),
            Ending::Broken => (self.wish.replicas, self.wish.state) = (2, "Running"),
            Ending::DeletedWithoutBrokers => self.wish.deletion = "Delete",
            _ => {}
        }
        if let Some(lost) = self.lost_plan() {
            self.restore_plan(lost)?;
        }
        self.submit();
        self.until(Self::settled)?;
        self.rest()?;
        match ending {
            Ending::Plain => Ok(()),
            Ending::Broken => self.break_spec(),
            Ending::Smaller => self.scale_down(),
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

    fn scale_down(&mut self) -> Result<(), Violation> {
        // One whose state does not fit runs as it did, so that its replicas don't change.
        self.gentle = true;
        self.wish.replicas = 1;
        self.submit();
        self.until(Self::settled)?;
        self.rest()
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
            return Err(format!("plan {plan} is applied, and not {}", self.wish.plan));
        }
        if !another && self.wish.is_valid() && applied["spec"] != pipeline["spec"] {
            return Err("another spec is applied".to_owned());
        }
        let follows = self.wish.is_valid() && !misfit;
        let pods = if follows { self.wish.pods() } else { pods_of(&applied["spec"]) };
        self.running(pods, applied["fingerprint"].as_str().unwrap_or_default())?;
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
        Ok(())
    }

    /// So many workers run the plan, each task once.
    fn running(&self, pods: u32, fingerprint: &str) -> Result<(), String> {
        let processes = &self.nodes.processes;
        if self.pods() != pods as usize || processes.len() != pods as usize {
            return Err(format!("{} pods and {} workers, not {pods}", self.pods(), processes.len()));
        }
        if processes.iter().any(|process| process.fingerprint != fingerprint || !process.is_ready()) {
            return Err("a worker does not run".to_owned());
        }
        let tasks: usize = processes.iter().map(|process| process.tasks.len()).sum();
        if pods > 0 && tasks != self.kafka.partitions as usize {
            return Err(format!("{tasks} of {} tasks run", self.kafka.partitions));
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

//! How tasks come to lie where they shall while they run.
//!
//! Where that is, is found anew each time ([`place`]): after a second edit, or when a pod has gone, what served the former
//! goal is dropped. A task that a worker runs is warmed first: it stays where it is while its next owner reads its state,
//! and moves when that one says that it is level. What never gets level never moves, and `status.rescale` says why. A task
//! that nobody runs moves at once.
//!
//! While a pipeline drains, tasks stay with workers that run them: each new assignment would begin the drain anew.

use std::collections::{BTreeMap, BTreeSet};

use millrace_core::assignment::{Assignment, Placement};
use millrace_core::ids::Generation;
use millrace_core::report::TaskState;
use millrace_crds::pipeline::{RescaleStatus, RescaleStep};

use super::{Round, SOON_MS};
use crate::assign::{Room, Step, Turn, approach, place};
use crate::facts::{Placed, Pod};

impl Round<'_> {
    /// Workers that shall have tasks in the end, of those that are there: the ones that run some, and the ones that can
    /// take some, below `span`. One that goes gives its own to the others, unless no other could take them. It goes if
    /// it was told to end, or if it is the one that is `replaced`: that one can wait, and so it takes what another one has
    /// that was told to end, if nobody else can. Each would wait for the other.
    pub(super) fn room(&self, span: u32, replaced: Option<u32>) -> Vec<u32> {
        let there = self.facts.stateful_set.as_ref().map_or(0, |set| set.value.replicas);
        let is_fit = |worker: &u32| self.is_fit(*worker);
        let has_tasks = |worker: &u32| {
            self.facts.assignment().is_some_and(|last| last.tasks.iter().any(|task| task.worker == *worker))
        };
        let all: Vec<u32> = (0..span.max(1)).collect();
        let known: Vec<u32> = all.iter().copied().filter(|w| there == 0 || is_fit(w) || has_tasks(w)).collect();
        let not_told: Vec<u32> = known.iter().copied().filter(|worker| !self.facts.leaves(*worker)).collect();
        let stay: Vec<u32> = not_told.iter().copied().filter(|worker| replaced != Some(*worker)).collect();
        // One that takes tasks may not be ready just now.
        let takes = |worker: &u32| is_fit(worker) || has_tasks(worker) && self.facts.report(*worker).is_some();
        let rest = if known.is_empty() { all } else { known };
        [stay, not_told].into_iter().find(|workers| workers.iter().any(takes)).unwrap_or(rest)
    }

    /// The next step to where tasks shall lie, and what is said of it; `held`: what runs stays where it is.
    pub(super) fn step(
        &mut self,
        stages: &BTreeMap<String, i32>,
        room: Room<'_>,
        before: Option<&Placed>,
        held: bool,
    ) -> Step {
        let last = self.facts.assignment();
        let goal = place(last, stages, room);
        let generation = last.map(|last| last.generation).unwrap_or_default();
        let to = workers(&goal);
        let step = approach(last, goal, |from, to| self.turn(from, to, generation, held));
        if step.left.is_empty() || held {
            return step;
        }
        let (from, moved) = before.map_or((to, 0), |placed| (placed.workers, placed.moved));
        let (moved, remaining) = (moved + step.moved, step.left.len());
        let waits_for = self.waits_for(&step);
        let message = format!("{moved} of {} tasks have moved; waits for {waits_for}", moved as usize + remaining);
        self.outlook.progress("Rescaling", message);
        self.outlook.rescale = Some(RescaleStatus {
            from: from as i32,
            to: to as i32,
            moved: moved as i32,
            remaining: remaining as i32,
            step: if step.warm.is_empty() { RescaleStep::Wait } else { RescaleStep::WarmUp },
            waits_for,
        });
        self.again_in(SOON_MS);
        step
    }

    fn turn(&self, from: &Placement, to: &Placement, generation: Generation, held: bool) -> Turn {
        let nobody = self.facts.stateful_set.as_ref().is_none_or(|set| set.value.replicas == 0);
        if nobody {
            return Turn::Go;
        }
        // The present owner, if it is to come back, is the nearer one.
        if !self.is_fit(to.worker) {
            return Turn::Stay;
        }
        if !self.has(from, generation) {
            return Turn::Go;
        }
        let report = self.facts.report(to.worker).filter(|report| report.generation == generation);
        let mut warm = report.into_iter().flat_map(|report| &report.warm);
        match warm.any(|warm| warm.level && warm.partition == to.partition && warm.stage == to.stage) {
            _ if held => Turn::Stay,
            true => Turn::Go,
            false => Turn::Warm,
        }
    }

    /// Whether a worker may get tasks that another one runs.
    fn is_fit(&self, worker: u32) -> bool {
        self.facts.pod(worker).is_some_and(Pod::is_fit) && !self.facts.leaves(worker)
    }

    /// Whether a worker runs a task, or does for all that is known.
    fn has(&self, task: &Placement, generation: Generation) -> bool {
        let Some(pod) = self.facts.pod(task.worker) else { return false };
        // It may not answer just now. One that was told to end is not ready, and others may read the state of its tasks
        // all the same, whether it works on or its node is lost.
        let Some(report) = self.facts.report(task.worker) else { return pod.ready || pod.ending };
        let leaves = self.facts.leaves(task.worker);
        let own = report.tasks.iter().find(|own| own.partition == task.partition && own.stage == task.stage);
        match own.map(|own| own.state) {
            Some(TaskState::Running) => true,
            // It waits for the former owner.
            Some(TaskState::Waiting) => !leaves,
            // Or has not heard of it yet.
            Some(TaskState::Restoring) | None => !leaves && report.generation < generation,
        }
    }

    /// What has to happen before more can move, worker by worker.
    fn waits_for(&self, step: &Step) -> String {
        let mut of_worker: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for to in &step.left {
            let tasks = of_worker.entry(to.worker).or_default();
            if step.warm.contains(to) {
                tasks.push(format!("{}/{}", to.stage, to.partition));
            }
        }
        let what = |(worker, tasks): (u32, Vec<String>)| match tasks.as_slice() {
            [] => format!("worker {worker} to be ready"),
            tasks => format!("worker {worker} to read the state of {}", tasks.join(", ")),
        };
        of_worker.into_iter().map(what).collect::<Vec<_>>().join("; ")
    }

    /// Whether a worker has given back whatever it had, by its own word.
    pub(super) fn is_free(&self, worker: u32, assignment: &Assignment) -> bool {
        let report = self.facts.report(worker);
        let gone = report.is_some_and(|report| report.generation >= assignment.generation && report.tasks.is_empty());
        gone && assignment.tasks.iter().all(|task| task.worker != worker)
    }
}

/// How many workers have tasks.
pub(super) fn workers(tasks: &[Placement]) -> u32 {
    let workers: BTreeSet<u32> = tasks.iter().map(|task| task.worker).collect();
    workers.len() as u32
}

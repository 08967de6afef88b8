//! The operator, as far as it moves tasks. It knows what stands in the spec and in the assignment, and what workers say,
//! so that whoever comes after it goes on from there.

use millrace_core::assignment::{Assignment, Cut, Placement};
use millrace_core::control::LaneId;
use millrace_core::ids::{Generation, TaskId};
use millrace_core::report::TaskState;

use crate::model::{self, TASKS};

/// What is known of the workers.
pub trait Workers {
    /// Its process lives, as far as the platform knows.
    fn is_there(&self, worker: u32) -> bool;
    /// The assignment that it has taken up, and how it has the task.
    fn has(&self, worker: u32, task: usize) -> Option<(Generation, Option<TaskState>)>;
    /// It says, of this assignment, that it could run the task at once.
    fn is_level(&self, worker: u32, task: usize, generation: Generation) -> bool;
}

#[derive(Default)]
pub struct Operator {
    /// Where the tasks shall lie, by the spec.
    pub goal: Vec<LaneId>,
    /// Every assignment that ever stood in the cluster. The last one does now.
    pub assignments: Vec<Assignment>,
    /// Decided over the assignment of this generation, and not written yet.
    pub draft: Option<(Generation, Assignment)>,
}

fn placement(index: usize, lane: LaneId) -> Placement {
    let TaskId { stage, partition } = model::task(index);
    Placement { stage, partition, worker: lane.worker, lane: lane.lane }
}

pub fn placed(assignment: &Assignment, task: usize) -> Option<&Placement> {
    assignment.tasks.iter().find(|placed| model::index(&placed.task()) == task)
}

impl Operator {
    pub fn generation(&self) -> Generation {
        self.assignments.last().map(|last| last.generation).unwrap_or_default()
    }

    /// Where a task lies, as it stands in the cluster.
    pub fn lies(&self, task: usize) -> Option<&Placement> {
        self.assignments.last().and_then(|last| placed(last, task))
    }

    /// Somebody with little patience: all tasks go to their goal at once.
    pub fn force(&mut self) {
        let tasks = (0..TASKS).map(|task| placement(task, self.goal[task])).collect();
        let generation = Generation(self.generation().0 + 1);
        let savepoint = self.assignments.last().and_then(|last| last.savepoint.clone());
        self.assignments.push(Assignment { generation, plan: 1, tasks, savepoint, ..Assignment::default() });
    }

    /// Says which stages are to be cut.
    pub fn tell(&mut self, savepoint: Option<Cut>) {
        if let Some(last) = self.assignments.last() {
            let generation = Generation(last.generation.0 + 1);
            self.assignments.push(Assignment { generation, savepoint, ..last.clone() });
        }
    }

    /// Decides the next step. Nothing is written yet, and what was to be written before is forgotten.
    pub fn look(&mut self, workers: &impl Workers, cold: bool) {
        let Some(last) = self.assignments.last() else { return };
        let (over, mut next) = (last.generation, last.clone());
        next.warm.clear();
        for (task, goal) in self.goal.iter().enumerate() {
            let Some(placed) = next.tasks.iter_mut().find(|placed| model::index(&placed.task()) == task) else {
                continue;
            };
            match turn(workers, task, placed.worker, goal.worker, over) {
                Turn::Warm if !cold => next.warm.push(placement(task, *goal)),
                Turn::Stay => {}
                Turn::Go | Turn::Warm => *placed = placement(task, *goal),
            }
        }
        let changed = (&next.tasks, &next.warm) != (&last.tasks, &last.warm);
        next.generation = Generation(over.0 + 1);
        self.draft = changed.then_some((over, next));
    }

    /// Writes what was decided, unless something else stands there by now.
    pub fn write(&mut self) -> bool {
        let draft = self.draft.take().filter(|(over, _)| *over == self.generation());
        let written = draft.is_some();
        self.assignments.extend(draft.map(|(_, assignment)| assignment));
        written
    }
}

enum Turn {
    Go,
    /// Its next owner reads its state first.
    Warm,
    Stay,
}

fn turn(workers: &impl Workers, task: usize, from: u32, to: u32, over: Generation) -> Turn {
    let runs = match workers.has(from, task) {
        None => false,
        Some((_, Some(TaskState::Running | TaskState::Waiting))) => true,
        // It has not heard of it yet.
        Some((heard, Some(TaskState::Restoring) | None)) => heard < over,
    };
    match () {
        // Nothing is restored.
        () if from == to => Turn::Go,
        () if !workers.is_there(to) => Turn::Stay,
        () if !runs || workers.is_level(to, task, over) => Turn::Go,
        () => Turn::Warm,
    }
}

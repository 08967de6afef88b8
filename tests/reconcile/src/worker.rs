//! Workers, and the control log that they write and that outlives everything in the cluster.

use std::collections::{BTreeMap, BTreeSet};

use millrace_core::assignment::Assignment;
use millrace_core::ids::{Generation, Partition, TaskId};
use millrace_core::report::{PlanSeen, SourceLag, TaskReport, TaskState, WorkerReport};
use millrace_simulator::rng::Rng;

use crate::oracle::Violation;

/// Who has a task, by the control log.
#[derive(Clone, PartialEq, Eq)]
pub struct Claim {
    pub generation: Generation,
    pub process: u64,
}

/// The control topic, and what else is in Kafka.
#[derive(Default)]
pub struct Kafka {
    pub claims: BTreeMap<TaskId, Claim>,
    pub highest: Generation,
    pub newest_plan: Option<PlanSeen>,
    /// Tasks in whose state rows wait.
    pub waiting: BTreeSet<TaskId>,
    pub partitions: i32,
    /// Brokers answer.
    pub answers: bool,
}

impl Kafka {
    pub fn stages(&self) -> BTreeMap<String, i32> {
        BTreeMap::from([("s".to_owned(), self.partitions)])
    }

    /// Whether there is anything that a clean-up has to delete.
    pub fn is_used(&self) -> bool {
        self.newest_plan.is_some()
    }

    /// Why an assignment must not be followed.
    fn refuses(&self, assignment: &Assignment, process: &Process) -> bool {
        let Assignment { generation, plan, .. } = assignment;
        let newer = self.newest_plan.as_ref().is_some_and(|newest| {
            newest.plan > *plan || newest.plan == *plan && newest.fingerprint != process.fingerprint
        });
        *generation < self.highest || newer || process.plan.is_some_and(|own| own != *plan)
    }
}

/// A container of a worker pod.
pub struct Process {
    pub id: u64,
    pub pod_uid: String,
    pub ordinal: u32,
    /// Of the plan in its volume.
    pub fingerprint: String,
    /// The plan's number, once it runs.
    plan: Option<u64>,
    /// What the kubelet shows it.
    pub file: Option<Assignment>,
    pub pushed: Option<Assignment>,
    follows: Option<Assignment>,
    pub tasks: BTreeMap<TaskId, Generation>,
    pub reachable: bool,
    drained: bool,
}

impl Process {
    pub fn new(id: u64, pod_uid: &str, ordinal: u32, fingerprint: String, file: Option<Assignment>) -> Self {
        Self {
            id,
            pod_uid: pod_uid.to_owned(),
            ordinal,
            fingerprint,
            plan: None,
            file,
            pushed: None,
            follows: None,
            tasks: BTreeMap::new(),
            reachable: true,
            drained: false,
        }
    }

    fn share(&self) -> impl Iterator<Item = TaskId> {
        let tasks = self.follows.iter().flat_map(|follows| &follows.tasks).filter(|p| p.worker == self.ordinal);
        tasks.map(|p| TaskId { stage: p.stage.clone(), partition: p.partition })
    }

    pub fn is_ready(&self) -> bool {
        self.follows.is_some() && self.share().all(|task| self.tasks.contains_key(&task))
    }

    pub fn report(&self, kafka: &Kafka, now_ms: i64) -> WorkerReport {
        let follows = self.follows.as_ref();
        let known: BTreeSet<TaskId> = self.share().chain(self.tasks.keys().cloned()).collect();
        let state = |task: &TaskId| match self.tasks.contains_key(task) {
            true => TaskState::Running,
            false => TaskState::Waiting,
        };
        let tasks = known.iter().map(|task| TaskReport {
            stage: task.stage.clone(),
            partition: task.partition,
            state: state(task),
        });
        // It moves from minute to minute, below what is shown.
        let lag_ms = Some(310 + now_ms / 60_000 % 80);
        let source = SourceLag { name: "a".to_owned(), partition: Partition(0), lag_records: Some(1), lag_ms };
        WorkerReport {
            version: 1,
            worker: self.ordinal,
            generation: follows.map_or(Generation(0), |follows| follows.generation),
            highest_generation: kafka.highest,
            plan: self.plan.unwrap_or_default(),
            plan_fingerprint: self.fingerprint.clone(),
            newest_plan: kafka.newest_plan.clone(),
            stages: kafka.stages(),
            tasks: tasks.collect(),
            sources: vec![source],
            errors: Vec::new(),
            messages: Vec::new(),
            ready: self.is_ready(),
            drained: self.drained,
        }
    }
}

/// The workers do something: the one at `at` takes a small step. `applied`: the fingerprint of the plan that was applied last.
pub fn step(
    processes: &mut [Process],
    at: usize,
    kafka: &mut Kafka,
    applied: Option<&str>,
    rng: &mut Rng,
) -> Result<bool, Violation> {
    follow(&mut processes[at], kafka);
    let id = processes[at].id;
    // Whoever has a newer claim has fenced this one.
    processes[at].tasks.retain(|task, _| kafka.claims.get(task).is_some_and(|claim| claim.process == id));
    let share: BTreeSet<TaskId> = processes[at].share().collect();
    let given_back = processes[at].tasks.keys().find(|task| !share.contains(*task)).cloned();
    if let Some(task) = given_back {
        processes[at].tasks.remove(&task);
        return Ok(true);
    }
    let wanted = share.iter().find(|task| !processes[at].tasks.contains_key(*task)).cloned();
    if let Some(task) = wanted {
        return claim(processes, at, task, kafka, applied, rng);
    }
    work(&mut processes[at], kafka, rng);
    Ok(false)
}

/// Follows the newest assignment that it may.
fn follow(process: &mut Process, kafka: &Kafka) {
    let candidates = [&process.file, &process.pushed].into_iter().flatten();
    let newest = candidates.max_by_key(|assignment| assignment.generation);
    let held = process.follows.as_ref().map(|follows| follows.generation);
    if let Some(newest) = newest.filter(|newest| Some(newest.generation) > held && !kafka.refuses(newest, process)) {
        process.plan = Some(newest.plan);
        process.drained = false;
        process.follows = Some(newest.clone());
    }
}

fn claim(
    processes: &mut [Process],
    at: usize,
    task: TaskId,
    kafka: &mut Kafka,
    applied: Option<&str>,
    rng: &mut Rng,
) -> Result<bool, Violation> {
    let Some(follows) = processes[at].follows.clone() else { return Ok(false) };
    let runs = |process: &Process| process.id != processes[at].id && process.tasks.contains_key(&task);
    let owner = processes.iter().find(|process| runs(process));
    // It waits a while for the last owner to give it back.
    if owner.is_some() && rng.per_mille(900) {
        return Ok(false);
    }
    if follows.generation < kafka.highest {
        return Ok(false);
    }
    let me = &processes[at];
    if owner.is_some_and(|owner| owner.tasks[&task] == follows.generation) {
        return Err(Violation::TwoOwners { task: task.to_string(), generation: follows.generation });
    }
    if applied.is_some_and(|applied| applied != me.fingerprint) {
        return Err(Violation::WrongPlan { worker: me.ordinal });
    }
    kafka.highest = follows.generation;
    kafka.newest_plan = Some(PlanSeen { plan: follows.plan, fingerprint: me.fingerprint.clone() });
    kafka.claims.insert(task.clone(), Claim { generation: follows.generation, process: me.id });
    for process in processes.iter_mut() {
        process.tasks.remove(&task);
    }
    processes[at].tasks.insert(task, follows.generation);
    Ok(true)
}

/// Rows come and go.
fn work(process: &mut Process, kafka: &mut Kafka, rng: &mut Rng) {
    let Some(follows) = &process.follows else { return };
    match follows.drain {
        false if rng.per_mille(300) => kafka.waiting.extend(process.tasks.keys().cloned()),
        true if rng.per_mille(300) => {
            kafka.waiting.retain(|task| !process.tasks.contains_key(task));
            process.drained = true;
        }
        _ => {}
    }
}

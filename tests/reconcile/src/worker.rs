//! Workers, and the control log that they write and that outlives everything in the cluster.

use std::collections::{BTreeMap, BTreeSet};

use millrace_core::assignment::{Assignment, Placement};
use millrace_core::ids::{Epoch, Generation, Partition, TaskId, Timeline};
use millrace_core::leave::{End, Leave, Seen};
use millrace_core::report::{CutReport, CutTask, PlanSeen, SourceLag, TaskReport, TaskState, WarmReport, WorkerReport};
use millrace_core::totals::Totals;
use millrace_operator_core::names::history;
use millrace_simulator::rng::Rng;

use crate::oracle::Violation;
use crate::wish::{READS, WRITES};

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
    /// Brokers answer, and so does the storage.
    pub answers: bool,
    /// How far each task is, in each timeline.
    pub progress: BTreeMap<(Timeline, TaskId), Progress>,
    /// Timelines that a restore has filled, with the savepoint, and the subject of the Job.
    pub restored: BTreeMap<Timeline, (String, String)>,
    /// Timelines that tasks were claimed on.
    pub used: BTreeSet<Timeline>,
    /// The cluster has lost what it knew of timelines.
    pub forgot: bool,
    pub storage: Storage,
    /// What guards have done with rows of backfills.
    pub repairs: Totals,
    /// What is in Kafka of backfills, by their name: whether all is computed.
    pub backfills: BTreeMap<String, bool>,
    /// How often each was computed from its beginning.
    pub computed: BTreeMap<String, u32>,
    /// The rate that the pod of one was told last.
    pub rate: Option<u64>,
}

/// Rows of a backfill.
pub const ROWS: u64 = 10;

/// What a task has done by an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub epoch: Epoch,
    /// The epochs of its writers up to which it has read.
    pub read: BTreeMap<TaskId, Epoch>,
}

/// A cut of all tasks.
pub type Parts = BTreeMap<TaskId, Progress>;

/// The object storage.
#[derive(Default)]
pub struct Storage {
    /// By the id of a savepoint.
    pub parts: BTreeMap<String, Parts>,
    /// Savepoints that were written down, by their location, with the number of the plan.
    pub written: BTreeMap<String, (u32, Parts)>,
}

/// Whether no task has read what its writer wrote behind its own cut.
pub fn is_consistent(parts: &Parts) -> bool {
    let reads = parts.values().flat_map(|part| &part.read);
    reads.into_iter().all(|(writer, epoch)| parts.get(writer).is_some_and(|part| *epoch <= part.epoch))
}

impl Kafka {
    pub fn stages(&self) -> BTreeMap<String, i32> {
        [READS, WRITES].map(|stage| (stage.to_owned(), self.partitions)).into()
    }

    pub fn tasks(&self) -> impl Iterator<Item = TaskId> {
        let of_stage = |stage: &'static str| {
            (0..self.partitions).map(move |p| TaskId { stage: stage.to_owned(), partition: Partition(p) })
        };
        [READS, WRITES].into_iter().flat_map(of_stage)
    }

    /// A task commits an epoch, for which it has read all that its writers have written.
    fn commit(&mut self, timeline: Timeline, task: &TaskId) -> Progress {
        let mut next = self.progress.get(&(timeline, task.clone())).cloned().unwrap_or_default();
        next.epoch = Epoch(next.epoch.0 + 1);
        if task.stage == WRITES {
            for writer in self.tasks().filter(|writer| writer.stage == READS) {
                let written = self.progress.get(&(timeline, writer.clone())).map(|progress| progress.epoch);
                next.read.insert(writer, written.unwrap_or_default());
            }
        }
        self.progress.insert((timeline, task.clone()), next.clone());
        next
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

pub fn task(placed: &Placement) -> TaskId {
    TaskId { stage: placed.stage.clone(), partition: placed.partition }
}

/// A container of a worker pod.
pub struct Process {
    pub id: u64,
    pub pod_uid: String,
    pub ordinal: u32,
    /// Of the plan in its volume.
    pub fingerprint: String,
    pub timeline: Timeline,
    /// The plan's number, once it runs.
    plan: Option<u64>,
    /// What the kubelet shows it.
    pub file: Option<Assignment>,
    pub pushed: Option<Assignment>,
    follows: Option<Assignment>,
    pub tasks: BTreeMap<TaskId, Generation>,
    /// Whose state it reads for later, and whether it is level.
    pub warm: BTreeMap<TaskId, bool>,
    pub reachable: bool,
    drained: bool,
    /// What it has cut for the savepoint with this id, and whether that lies in storage.
    cut: (String, BTreeMap<TaskId, (Progress, bool)>),
    pub leaves: Option<Leave>,
    /// Nobody will take its tasks.
    pub let_go: bool,
    /// When the operator asked last.
    pub asked_ms: i64,
}

impl Process {
    pub fn new(
        id: u64,
        pod_uid: &str,
        ordinal: u32,
        (fingerprint, timeline): (String, Timeline),
        file: Option<Assignment>,
    ) -> Self {
        Self {
            id,
            pod_uid: pod_uid.to_owned(),
            ordinal,
            fingerprint,
            timeline,
            cut: Default::default(),
            plan: None,
            file,
            pushed: None,
            follows: None,
            tasks: BTreeMap::new(),
            warm: BTreeMap::new(),
            reachable: true,
            drained: false,
            leaves: None,
            let_go: false,
            asked_ms: 0,
        }
    }

    pub fn history(&self) -> String {
        history(&self.fingerprint, self.timeline)
    }

    fn share(&self) -> impl Iterator<Item = TaskId> {
        self.own(self.follows.iter().flat_map(|follows| &follows.tasks))
    }

    fn own<'a>(&self, placed: impl Iterator<Item = &'a Placement>) -> impl Iterator<Item = TaskId> {
        let ordinal = self.ordinal;
        placed.filter(move |p| p.worker == ordinal).map(task)
    }

    /// Whether it had not heard of it before.
    pub fn tell_to_end(&mut self, now_ms: i64, within_ms: u64) -> bool {
        let news = self.leaves.is_none();
        self.leaves.get_or_insert(Leave { since_ms: now_ms.unsigned_abs(), within_ms });
        news
    }

    /// Why it ends now, if it does.
    pub fn end(&self, now_ms: i64) -> Option<End> {
        let has_tasks = !self.tasks.is_empty() || self.share().next().is_some();
        let (now_ms, asked_ms) = (now_ms.unsigned_abs(), self.asked_ms.unsigned_abs());
        self.leaves?.end(Seen { now_ms, asked_ms, has_tasks, let_go: self.let_go, told_again: false })
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
        let warm = self.warm.iter().map(|(task, level)| WarmReport {
            stage: task.stage.clone(),
            partition: task.partition,
            level: *level,
        });
        // It moves from minute to minute, below what is shown.
        let lag_ms = Some(310 + now_ms / 60_000 % 80);
        let (name, lag_records) = ("a".to_owned(), Some(1));
        let source = SourceLag { name, partition: Partition(0), lag_records, lag_ms, ..SourceLag::default() };
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
            ready: self.is_ready() && self.leaves.is_none(),
            leaving: self.leaves.is_some(),
            drained: self.drained,
            warm: warm.collect(),
            repairs: self.repairs(kafka),
            savepoint: follows.and_then(|follows| follows.savepoint.as_ref()).map(|cut| self.cut_report(&cut.id)),
            ..WorkerReport::default()
        }
    }
}

impl Process {
    /// The owner of one task tells of all of them.
    fn repairs(&self, kafka: &Kafka) -> BTreeMap<String, Totals> {
        let first = TaskId { stage: WRITES.to_owned(), partition: Partition(0) };
        let tells = self.tasks.contains_key(&first);
        tells.then(|| ("o".to_owned(), kafka.repairs.clone())).into_iter().collect()
    }

    fn cut_report(&self, id: &str) -> CutReport {
        let own = self.cut.1.iter().filter(|_| self.cut.0 == id);
        let tasks = own.map(|(task, (part, stored))| CutTask {
            stage: task.stage.clone(),
            partition: task.partition,
            epoch: part.epoch,
            stored: *stored,
        });
        CutReport { id: id.to_owned(), tasks: tasks.collect(), messages: Vec::new() }
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
    let warmed = warm_up(&mut processes[at], kafka, rng);
    let id = processes[at].id;
    // Whoever has a newer claim has fenced this one.
    processes[at].tasks.retain(|task, _| kafka.claims.get(task).is_some_and(|claim| claim.process == id));
    let Process { tasks, cut, .. } = &mut processes[at];
    cut.1.retain(|task, _| tasks.contains_key(task));
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
    Ok(warmed)
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

/// Reads the state of tasks that it shall run later, unless it runs them already; whether one has become level.
fn warm_up(process: &mut Process, kafka: &Kafka, rng: &mut Rng) -> bool {
    let asked: BTreeSet<TaskId> = process.own(process.follows.iter().flat_map(|follows| &follows.warm)).collect();
    let Process { warm, tasks, .. } = process;
    warm.retain(|task, _| asked.contains(task) && !tasks.contains_key(task));
    for task in asked {
        if !tasks.contains_key(&task) {
            warm.entry(task).or_default();
        }
    }
    let behind = warm.values_mut().find(|level| !**level).filter(|_| kafka.answers && rng.per_mille(300));
    behind.map(|level| *level = true).is_some()
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
    if applied.is_some_and(|applied| applied != me.history()) {
        return Err(Violation::WrongPlan { worker: me.ordinal });
    }
    if me.timeline > Timeline(1) && !kafka.restored.contains_key(&me.timeline) {
        return Err(Violation::NotRestored { worker: me.ordinal });
    }
    kafka.highest = follows.generation;
    let (plan, fingerprint, timeline) = (follows.plan, me.fingerprint.clone(), me.timeline);
    kafka.newest_plan = Some(PlanSeen { plan, fingerprint, timeline });
    kafka.used.insert(me.timeline);
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
    for task in process.tasks.keys().filter(|_| rng.per_mille(300)).cloned().collect::<Vec<_>>() {
        let part = kafka.commit(process.timeline, &task);
        let Some(told) = &follows.savepoint else { continue };
        if process.cut.0 != told.id {
            process.cut = (told.id.clone(), BTreeMap::new());
        }
        if told.stages.contains(&task.stage) {
            process.cut.1.entry(task).or_insert((part, false));
        }
    }
    let Process { cut: (id, parts), .. } = process;
    let open = parts.iter_mut().find(|(_, (_, stored))| !stored).filter(|_| kafka.answers && rng.per_mille(100));
    if let Some((task, (part, stored))) = open {
        // What is there is never written over; whoever puts the savepoint together says which epoch that is of.
        kafka.storage.parts.entry(id.clone()).or_default().entry(task.clone()).or_insert(part.clone());
        *stored = true;
    }
    drain(process, kafka, rng);
}

fn drain(process: &mut Process, kafka: &mut Kafka, rng: &mut Rng) {
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

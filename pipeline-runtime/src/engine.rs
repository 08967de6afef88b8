//! A lane: reads, runs its tasks, commits epochs. The same loop over Kafka and over files.
//!
//! An epoch takes what the lane has read since the last one. It ends at the commit interval, or when it has grown to
//! [`EPOCH_BYTES_MAX`]; then output, state changes, blocks and markers become visible together, and only after that is
//! known the state is written to RocksDB (invariant I1). A quiet lane commits nothing, but for what the readers of an
//! exchange must hear about time.
//!
//! Whatever goes wrong is a [`Trouble`], and [`Engine::settle`] says what follows from each: the epoch is dropped and
//! read again, a row meets the error policy, a task stops, every task has to be restored, or the process ends.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use millrace_core::epoch::{ApplyPermit, CommitOutcome, Delivery, LaneEpoch, Limit, Next, OutOfOrder, TIMERS};
use millrace_core::ids::{Epoch, Generation, Offset, TaskId, Timeline};
use millrace_core::pace::Pace;
use millrace_core::plan::{Exchange, InputFrom, Plan, Stage};

use crate::clock;
use crate::log::{Assignment, CommitError, End, InputId, InternalKind, Log, LogError, Outbox, RANK_LAST};
use crate::metrics::Metrics;
use crate::state::{StateBudget, TaskState};
use crate::storage::Storage;
use build::{Begin, BuildError, Builder, compacted};
use drain::Drain;
use restore::{Go, Known, Reach, Reading, Restored};
use task::{Now, Task, TaskError};
use topology::{Names, Topology, grows};
use trouble::{Trouble, fault, of};

pub mod build;
pub mod changes;
pub mod dead_letter;
mod drain;
pub mod exchange;
pub mod flow;
mod landing;
pub mod restore;
pub mod sink;
pub mod source;
pub mod task;
pub mod topology;
mod trouble;

/// Records that are taken at once: enough that work is done in batches, few enough that an epoch ends in time.
pub const BATCH_RECORDS: usize = 4096;
/// An epoch with so much to write ends early.
const EPOCH_BYTES_MAX: usize = 32 << 20;
/// How often the ends of inputs are looked up while there is something to do.
const TICK_MS: u64 = 50;
/// Every task's memtables are written out after this time.
const FLUSH_MS: u64 = 600_000;
const MICROS_PER_MS: u64 = 1_000;
/// A part of an epoch that is searched for a bad row, and of which nothing has come for so long, holds no row.
const EMPTY_PART_MS: u64 = 1_000;

#[derive(Clone, Debug)]
pub struct EngineConfig {
    pub state_dir: PathBuf,
    pub commit_interval_ms: u64,
    /// Records that are taken at once.
    pub batch_records: usize,
    /// Rows that wait in memory, of all tasks; the rest waits in the state only.
    pub waiting_rows_max: usize,
    /// Records of streams that the lane reads in a second at first, at most; `None`: as many as it can.
    pub records_per_second: Option<u64>,
    /// Shared by all lanes of a worker.
    pub budget: StateBudget,
    /// The fault of one task stops that task only, not the lane.
    pub isolate: bool,
    /// Where snapshots are; `None`: there are none.
    pub storage: Option<Storage>,
    pub timeline: Timeline,
    /// How long a transaction may be open before the brokers end it; `None`: for ever.
    pub epoch_timeout_ms: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Build(Box<BuildError>),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Commit(#[from] CommitError),
    #[error("task {task}")]
    Task { task: TaskId, source: Box<TaskError> },
    /// An error of ours.
    #[error(transparent)]
    Order(#[from] OutOfOrder),
}

impl From<BuildError> for EngineError {
    fn from(error: BuildError) -> Self {
        Self::Build(Box::new(error))
    }
}

impl EngineError {
    /// True for what passes by itself.
    pub fn passes(&self) -> bool {
        match self {
            Self::Log(error) => error.passes(),
            Self::Build(error) => error.passes(),
            Self::Commit(_) | Self::Task { .. } | Self::Order(_) => false,
        }
    }

    /// What passes by itself, as the log said it; or what does not.
    fn passing(self) -> Result<LogError, Self> {
        match self {
            Self::Log(error) if error.passes() => Ok(error),
            Self::Build(error) => match *error {
                BuildError::Log(error) if error.passes() => Ok(error),
                other => Err(other.into()),
            },
            other => Err(other),
        }
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Every input has ended and everything is through.
    Finished,
    Stopped,
}

/// What a step of the lane came to.
#[derive(Debug)]
pub enum Step {
    Busy,
    Committed,
    /// There is nothing to do for so many milliseconds, unless something comes.
    Idle(u64),
    /// Every input has ended and everything is through.
    Finished,
    /// The log's identity is lost. No task runs any more; their states are kept for [`Engine::restore`].
    Lost(CommitError),
}

struct Route {
    slot: usize,
    input: usize,
}

pub struct Engine<L> {
    log: L,
    config: EngineConfig,
    builder: Builder,
    epoch: LaneEpoch,
    /// The tasks that run. A free slot is taken by the next one.
    tasks: Vec<Option<Task>>,
    /// By input of the log.
    routes: Vec<Option<Route>>,
    /// Restored, and not running yet.
    restored: BTreeMap<TaskId, Task>,
    /// Of tasks that do not run: that ran when the log's identity was lost, or that somebody has begun to restore.
    states: BTreeMap<TaskId, TaskState>,
    /// Records of changelogs that were read here for tasks that do not run yet.
    tails: BTreeMap<TaskId, u64>,
    /// Tasks that shall read no more and leave with their next commit.
    finishing: BTreeSet<TaskId>,
    /// Tasks that were stopped by their own fault, with their last committed epoch.
    stopped: BTreeMap<TaskId, Epoch>,
    faults: Vec<(TaskId, EngineError)>,
    /// Tasks whose committed epoch could not be written to their state.
    failed: Vec<(TaskId, Epoch)>,
    /// Why records were refused last.
    refusal: String,
    outbox: Outbox,
    drain: Option<Drain>,
    pace: Option<Pace>,
    /// A savepoint is being made, and what lies between stages may belong to it.
    hold_trims: bool,
    /// Since when something of the open epoch is with the log.
    open_since_ms: Option<u64>,
    /// When its commit was asked for.
    asked_ms: Option<u64>,
    sent_bytes: usize,
    metrics: Arc<Metrics>,
    last_busy_ms: u64,
    last_commit_ms: u64,
    last_tick_ms: u64,
    last_flush_ms: u64,
}

/// One of our own topics.
pub struct InternalTopic {
    pub name: String,
    pub kind: InternalKind,
    pub partitions: i32,
    /// It gets more partitions when the source of its stage does.
    pub grows: bool,
}

/// The topics that the plan's stages and exchanges need.
pub fn internal_topics(plan: &Plan, topology: &Topology, names: &Names) -> Vec<InternalTopic> {
    let changelog = |stage: &Stage| InternalTopic {
        name: names.changelog(&stage.name),
        kind: if plan.snapshots { InternalKind::TrimmedChangelog } else { InternalKind::Changelog },
        partitions: topology.tasks[&stage.name],
        grows: grows(plan, stage),
    };
    let repartition = |exchange: &Exchange| InternalTopic {
        name: names.repartition(&exchange.name),
        kind: InternalKind::Repartition,
        partitions: topology.exchanges[&exchange.name],
        grows: false,
    };
    let exchanges = plan.exchanges.iter().filter(|exchange| exchange.topic.is_none());
    plan.stages.iter().map(changelog).chain(exchanges.map(repartition)).collect()
}

impl<L: Log> Engine<L> {
    /// Opens the topics that are written to, and makes our own. No task runs yet.
    pub fn open(
        plan: Arc<Plan>,
        topology: Topology,
        mut log: L,
        config: EngineConfig,
        metrics: Arc<Metrics>,
    ) -> Result<Self, EngineError> {
        let compacted = compacted(&plan, &mut log)?;
        let builder = Builder::new(plan, topology, &config, compacted);
        let Builder { plan, topology, names, .. } = &builder;
        for topic in plan.sinks.iter().map(|s| &s.topic).chain(&plan.dead_letter) {
            log.open_output(topic)?;
        }
        for topic in internal_topics(plan, topology, names) {
            log.create_internal(&topic.name, topic.kind, topic.partitions)?;
        }
        let now = now();
        Ok(Self {
            pace: config.records_per_second.map(Pace::new),
            log,
            builder,
            config,
            epoch: LaneEpoch::default(),
            tasks: Vec::new(),
            routes: Vec::new(),
            restored: BTreeMap::new(),
            states: BTreeMap::new(),
            tails: BTreeMap::new(),
            finishing: BTreeSet::new(),
            stopped: BTreeMap::new(),
            faults: Vec::new(),
            failed: Vec::new(),
            refusal: String::new(),
            outbox: Outbox::default(),
            drain: None,
            hold_trims: false,
            open_since_ms: None,
            asked_ms: None,
            sent_bytes: 0,
            metrics,
            last_busy_ms: now.steady_ms,
            last_commit_ms: now.steady_ms,
            last_tick_ms: 0,
            last_flush_ms: now.steady_ms,
        })
    }

    /// Opens the engine and runs every task of the plan in it, with nobody to share them with.
    pub fn start(
        plan: Arc<Plan>,
        mut log: L,
        config: EngineConfig,
        metrics: Arc<Metrics>,
    ) -> Result<Self, EngineError> {
        let names = Names::new(&plan.prefix, config.timeline);
        let topology = Topology::resolve(&plan, &names, &|_| None, &mut log)?;
        let mut engine = Self::open(plan, topology, log, config, metrics)?;
        engine.log.initialise()?;
        // In the order of the plan: it decides which of two equal heads is read first.
        let stages = engine.builder.plan.stages.iter().map(|s| s.name.clone()).collect::<Vec<_>>();
        let tasks: Vec<TaskId> = engine.builder.topology.all_tasks().collect();
        for id in stages.iter().flat_map(|stage| tasks.iter().filter(move |id| id.stage == *stage)) {
            engine.restore(id, None)?;
            engine.run_task(id, Generation(1))?;
        }
        Ok(engine)
    }

    pub fn plan(&self) -> &Plan {
        &self.builder.plan
    }

    pub fn log(&mut self) -> &mut L {
        &mut self.log
    }

    /// Topics have grown: for tasks that are built from now on.
    pub fn set_topology(&mut self, topology: Topology) -> Result<(), EngineError> {
        if topology == self.builder.topology {
            return Ok(());
        }
        for topic in internal_topics(&self.builder.plan, &topology, &self.builder.names) {
            self.log.create_internal(&topic.name, topic.kind, topic.partitions)?;
        }
        self.builder.topology = topology;
        Ok(())
    }

    /// State fingerprints (hex) of earlier plans whose state is taken up, for tasks that are built from now on.
    pub fn set_accepts(&mut self, accepts: Vec<String>) {
        self.builder.accepts = accepts;
    }

    /// Whether rows between stages stay after they were read.
    pub fn hold_trims(&mut self, hold: bool) {
        self.hold_trims = hold;
    }

    /// The task commits an epoch soon, whether something happens or not.
    pub fn touch(&mut self, id: &TaskId) {
        if let Some(task) = self.tasks.iter_mut().flatten().find(|task| task.id == *id) {
            task.dirty = true;
        }
    }

    /// From the next epoch on.
    pub fn set_commit_interval(&mut self, ms: u64) {
        self.config.commit_interval_ms = ms;
    }

    /// At once. `None`: as many records of streams as it can; with 0 it pauses.
    pub fn set_records_per_second(&mut self, rate: Option<u64>) {
        match (rate, &mut self.pace) {
            (Some(rate), Some(pace)) => pace.set(rate),
            (rate, pace) => *pace = rate.map(Pace::new),
        }
    }

    pub fn names(&self) -> &Names {
        &self.builder.names
    }

    pub fn runs(&self, id: &TaskId) -> bool {
        self.running().any(|task| task.id == *id)
    }

    /// True for a task that does not run and whose state is open.
    pub fn holds(&self, id: &TaskId) -> bool {
        self.states.contains_key(id) || self.restored.contains_key(id)
    }

    /// Takes a state that somebody else has opened, for [`Self::restore`].
    pub fn hold(&mut self, id: TaskId, state: TaskState) {
        self.states.insert(id, state);
    }

    /// Brings a task's state level with its changelog and makes the task ready to run. Returns the epoch of the last
    /// marker; below `known.needed` the task is not ready, and this is to be called again.
    pub fn restore(&mut self, id: &TaskId, known: Option<Known<'_>>) -> Result<Epoch, EngineError> {
        let open = self.states.remove(id).or_else(|| self.restored.remove(id).map(|task| task.state));
        let reading = Reading { known, now_ms: clock::now_ms(), go: &|| Go::On, pace: &|| {} };
        let Restored { state, marker, last, reach, records, .. } =
            self.builder.restore(id, open, reading, &mut self.log)?;
        *self.tails.entry(id.clone()).or_default() += records;
        if reach == Reach::Level {
            let grown = known.and_then(|k| k.created).is_some_and(|created| id.partition.0 >= created.begun);
            let begin = Begin { state, marker, grown };
            let task = self.builder.task(id, begin, clock::steady_ms(), &mut self.log, &mut self.outbox)?;
            self.restored.insert(id.clone(), task);
        } else {
            self.states.insert(id.clone(), state);
        }
        Ok(last)
    }

    /// Runs a restored task.
    pub fn run_task(&mut self, id: &TaskId, generation: Generation) -> Result<(), EngineError> {
        let Some(mut task) = self.restored.remove(id) else { return Ok(()) };
        task.generation = generation;
        let epoch = task.epoch;
        let slot = self.tasks.iter().position(Option::is_none).unwrap_or_else(|| {
            self.tasks.push(None);
            self.tasks.len() - 1
        });
        self.place(slot, task)?;
        self.stopped.remove(id);
        let resolution = self.epoch.run(id.clone(), epoch);
        let tail_records = self.tails.remove(id).unwrap_or_default();
        tracing::info!(task = %id, %epoch, %generation, tail_records, ?resolution, "task runs");
        Ok(())
    }

    /// Assigns what a task reads and tells its operators where time stands. A task that could not be assigned is kept
    /// for another try.
    fn place(&mut self, slot: usize, mut task: Task) -> Result<(), EngineError> {
        if let Err(error) = self.assign(slot, &task) {
            // Another task may get the slot, and must not get what this one reads.
            self.take_out(slot)?;
            self.restored.insert(task.id.clone(), task);
            return Err(error.into());
        }
        let resumed = task.resume(now(), &mut self.outbox);
        resumed.map_err(|error| of(&task.id, error))?;
        task.heed_ends(self.log.bounded() || self.drain.is_some());
        self.metrics.totals(&task);
        self.metrics.running(&task.id, true);
        self.lag_unknown(&task);
        self.tasks[slot] = Some(task);
        // What it waits for is looked up at once.
        self.last_tick_ms = 0;
        Ok(())
    }

    fn assign(&mut self, slot: usize, task: &Task) -> Result<(), LogError> {
        let plan = Arc::clone(&self.builder.plan);
        let stage = plan.stage(&task.id.stage).expect("tasks are built from stages");
        for (index, input) in task.inputs.iter().enumerate() {
            let source = match &stage.inputs[index].from {
                InputFrom::Source(name) => plan.sources.iter().position(|s| s.name == *name),
                InputFrom::Exchange(_) => None,
            };
            // Tables first, then the order of the spec.
            let rank = source.map_or(0, |i| i as u32) + if input.table { 0 } else { 1 << 16 };
            let until = source.and_then(|i| plan.sources[i].until.iter().find(|(p, _)| *p == task.id.partition.0));
            let next = match until {
                // All of a backfill's part was read, and what lies behind it may be gone.
                Some((_, to)) if input.next.0 >= *to => self.log.end_of(&input.topic, task.id.partition)?,
                _ => input.next,
            };
            let InputId(id) = self.log.assign(Assignment {
                topic: input.topic.clone(),
                partition: task.id.partition,
                next,
                rank: if input.repairs() { RANK_LAST } else { rank },
                group: self.builder.names.group(&stage.name),
            })?;
            if self.routes.len() <= id {
                self.routes.resize_with(id + 1, || None);
            }
            self.routes[id] = Some(Route { slot, input: index });
        }
        Ok(())
    }

    fn lag_unknown(&self, task: &Task) {
        for input in task.inputs.iter().filter(|i| matches!(i.reader, task::Reader::Source(_))) {
            self.metrics.lag(&task.id, input, None, 0);
        }
    }

    /// The task reads no more, and leaves once what it has in the open epoch is committed.
    pub fn finish(&mut self, id: &TaskId) {
        self.finishing.insert(id.clone());
    }

    /// Tasks that have left, with their last committed epochs.
    pub fn take_finished(&mut self) -> Result<Vec<(TaskId, Epoch)>, EngineError> {
        let steady_ms = clock::steady_ms();
        let mut left = Vec::new();
        for id in self.finishing.clone() {
            let slot = self.tasks.iter().position(|t| t.as_ref().is_some_and(|t| t.id == id));
            let last = match slot {
                Some(slot) if self.tasks[slot].as_ref().is_some_and(|t| t.due(steady_ms)) => None,
                Some(slot) => match self.epoch.leave(&id) {
                    Some(last) => {
                        let task = self.take_out(slot)?;
                        task.iter().try_for_each(flush)?;
                        self.metrics.forget(&id);
                        Some(last)
                    }
                    None => None,
                },
                None => self.stopped.remove(&id),
            };
            if let Some(last) = last {
                self.finishing.remove(&id);
                left.push((id, last));
            }
        }
        Ok(left)
    }

    /// Closes what is kept of a task that does not run.
    pub fn forget(&mut self, id: &TaskId) {
        self.restored.remove(id);
        self.states.remove(id);
        self.tails.remove(id);
        self.stopped.remove(id);
        self.metrics.forget(id);
    }

    /// True for a task that was stopped by a fault of its own, and that has not left.
    pub fn stopped(&self, id: &TaskId) -> bool {
        self.stopped.contains_key(id)
    }

    /// Tasks that were stopped by a fault of their own.
    pub fn take_faults(&mut self) -> Vec<(TaskId, EngineError)> {
        std::mem::take(&mut self.faults)
    }

    /// Tasks whose last committed epoch could not be written to their state: they have to be restored.
    pub fn take_failed(&mut self) -> Vec<(TaskId, Epoch)> {
        std::mem::take(&mut self.failed)
    }

    fn take_out(&mut self, slot: usize) -> Result<Option<Task>, LogError> {
        for (id, route) in self.routes.iter_mut().enumerate() {
            if route.take_if(|r| r.slot == slot).is_some() {
                self.log.unassign(InputId(id))?;
            }
        }
        Ok(self.tasks[slot].take())
    }

    /// Runs until `stop` is set or everything has ended.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<Exit, EngineError> {
        if let Err(trouble) = self.tick() {
            self.settle(trouble)?;
        }
        while !stop.load(Ordering::Relaxed) {
            match self.step()? {
                Step::Busy | Step::Committed => {}
                Step::Idle(ms) => self.log.wait(ms),
                Step::Finished => {
                    self.flush_state()?;
                    return Ok(Exit::Finished);
                }
                Step::Lost(error) => return Err(error.into()),
            }
        }
        let now = now();
        if self.due(now)
            && let Err(trouble) = self.commit(now)
            && let Step::Lost(error) = self.settle(trouble)?
        {
            return Err(error.into());
        }
        self.flush_state()?;
        Ok(Exit::Stopped)
    }

    /// Reads and processes what there is, and ends the epoch when it is time to.
    pub fn step(&mut self) -> Result<Step, EngineError> {
        self.try_step().or_else(|trouble| self.settle(trouble))
    }

    fn try_step(&mut self) -> Result<Step, Trouble> {
        let busy = self.turn()?;
        let now = now();
        let due_ms = self.config.commit_interval_ms;
        let left_ms = due_ms.saturating_sub(now.steady_ms.saturating_sub(self.last_commit_ms));
        // With nothing to read a bounded run does not wait for the interval: other stages wait for the epoch. Nor does
        // a task that leaves.
        let hurry = !busy && self.log.bounded() || !self.finishing.is_empty();
        if (left_ms == 0 || hurry || self.epoch_bytes() >= EPOCH_BYTES_MAX) && self.due(now) && self.commit(now)? {
            return Ok(Step::Committed);
        }
        if busy {
            self.last_busy_ms = now.steady_ms;
            return Ok(Step::Busy);
        }
        // What may not be read yet may hold the row that is searched for.
        let held = self.pace.as_ref().is_some_and(|pace| pace.allows(now.steady_ms * MICROS_PER_MS) == 0);
        if held {
            self.last_busy_ms = now.steady_ms;
        }
        if self.epoch.bisecting() && now.steady_ms.saturating_sub(self.last_busy_ms) >= EMPTY_PART_MS {
            self.epoch.skip_part();
            self.last_busy_ms = now.steady_ms;
        }
        if self.finished() {
            return Ok(Step::Finished);
        }
        // A quiet lane has nothing to be in time for.
        Ok(Step::Idle(if left_ms == 0 { due_ms } else { left_ms }))
    }

    fn begin_epoch(&mut self) {
        self.open_since_ms = None;
        self.asked_ms = None;
        self.sent_bytes = 0;
    }

    /// Takes one fetch, if there is one, and looks after the inputs' ends. True when there was something to read.
    fn turn(&mut self) -> Result<bool, Trouble> {
        let (tasks, routes, epoch) = (&self.tasks, &self.routes, &self.epoch);
        let (finishing, drain) = (&self.finishing, &self.drain);
        let now_us = clock::steady_ms() * MICROS_PER_MS;
        let allowed = self.pace.as_ref().map_or(u64::MAX, |pace| pace.allows(now_us));
        let wanted = |id: InputId| {
            let route = routes.get(id.0)?.as_ref()?;
            let task = tasks[route.slot].as_ref()?;
            if !task.wants(route.input) || finishing.contains(&task.id) {
                return None;
            }
            if allowed == 0 && task.inputs[route.input].is_stream() {
                return None;
            }
            // What follows the end was written by somebody who goes on already: it waits until we do.
            if drain.is_some() && task.ended(route.input) {
                return None;
            }
            let end = drain.as_ref().and_then(|drain| drain.end(task, route.input));
            let below = task.below(route.input).min(end.unwrap_or(Offset(i64::MAX)));
            match epoch.limit(&task.id, route.input) {
                Limit::Free => Some(below),
                Limit::Below(offset) => Some(offset.min(below)),
                Limit::Nothing => None,
            }
        };
        let bounded = self.log.bounded();
        let max = self.config.batch_records.min(usize::try_from(allowed.max(1)).unwrap_or(usize::MAX));
        let fetch = self.log.poll(&wanted, max)?;
        let busy = fetch.is_some();
        let now = now();
        let rested = now.steady_ms.saturating_sub(self.last_tick_ms) >= TICK_MS;
        let mut look = rested || (!busy && bounded);
        if let Some(fetch) = fetch
            && let Some(Some(route)) = self.routes.get(fetch.input.0)
            && let Some(task) = &mut self.tasks[route.slot]
        {
            if let Some(pace) = self.pace.as_mut().filter(|_| task.inputs[route.input].is_stream()) {
                pace.took(fetch.records.len() as u64, now_us);
            }
            let was_level = task.level();
            let first = fetch.records.first().map(|r| r.offset);
            let condemned = first.is_some_and(|at| self.epoch.condemned(&task.id, route.input, at));
            let taken = if condemned && fetch.records.len() == 1 {
                task.refuse(route.input, &fetch, &self.refusal, &mut self.outbox)
            } else {
                task.process(route.input, &fetch, now, &mut self.outbox)
            };
            taken.map_err(|error| fault(&task.id, error))?;
            if let Some(first) = first {
                self.epoch.read(&task.id, route.input, first, fetch.next)?;
            }
            // Streams are let in now. They shall know whether their tables have ended: rows that wait for a table would
            // be overtaken by late ones, so the order of the results would depend on when the end is looked up.
            look |= !was_level && task.level();
        }
        if look {
            self.tick()?;
        }
        self.send()?;
        Ok(busy)
    }

    fn send(&mut self) -> Result<(), Trouble> {
        if self.outbox.is_empty() {
            return Ok(());
        }
        self.open_since_ms.get_or_insert_with(clock::steady_ms);
        self.sent_bytes += self.outbox.bytes();
        self.log.send(&mut self.outbox).map_err(|error| match error {
            error if !self.config.isolate => Trouble::Fatal(error.into()),
            LogError::RecordTooLarge { .. } => Trouble::Refused(error),
            error => Trouble::Dropped(error),
        })
    }

    /// Looks up where the sources end. The wall time of `now` is taken after that, so that it is never before.
    fn tick(&mut self) -> Result<(), Trouble> {
        let mut ends: Vec<Vec<(usize, End)>> = self.tasks.iter().map(|_| Vec::new()).collect();
        for (id, route) in self.routes.iter().enumerate() {
            let Some(route) = route else { continue };
            let Some(task) = &self.tasks[route.slot] else { continue };
            let input = &task.inputs[route.input];
            let end = match &input.reader {
                task::Reader::Source(_) => {
                    let end = self.log.end(InputId(id))?;
                    self.metrics.lag(&task.id, input, Some(end), clock::now_ms());
                    end
                }
                // Nobody says in them that nothing follows.
                _ if input.repairs() => End { ended: self.log.bounded(), ..self.log.end(InputId(id))? },
                task::Reader::Exchange(_) => continue,
            };
            let bound = |drain: &mut Drain| drain.bound(&input.topic, task.id.partition, end);
            ends[route.slot].push((route.input, self.drain.as_mut().map_or(end, bound)));
        }
        let now = now();
        for (task, ends) in self.tasks.iter_mut().zip(&ends) {
            let Some(task) = task else { continue };
            // While a bad row is searched for, only what is in the part that is tried may happen.
            if self.epoch.limit(&task.id, TIMERS) != Limit::Nothing {
                let ticked = task.tick(ends, now, &mut self.outbox);
                ticked.map_err(|error| fault(&task.id, error))?;
            }
        }
        self.running().for_each(|task| self.metrics.runs(task, now.wall_ms));
        self.last_tick_ms = now.steady_ms;
        Ok(())
    }

    /// What the open epoch holds in memory, about: what was sent, and the state changes that will be.
    fn epoch_bytes(&self) -> usize {
        self.sent_bytes + self.running().map(|t| t.state.overlay_bytes()).sum::<usize>()
    }

    fn due(&self, now: Now) -> bool {
        self.open_since_ms.is_some() || self.running().any(|t| t.due(now.steady_ms))
    }

    /// Closes the epoch: the tasks that have something to commit, with their epochs' numbers.
    fn close(&mut self, steady_ms: u64) -> Result<Vec<(TaskId, Epoch)>, OutOfOrder> {
        for task in self.tasks.iter().flatten().filter(|t| t.due(steady_ms)) {
            if self.epoch.limit(&task.id, TIMERS) != Limit::Nothing {
                self.epoch.fired(&task.id)?;
            }
        }
        self.epoch.close()
    }

    /// Ends the epoch. False when there was nothing to commit.
    fn commit(&mut self, now: Now) -> Result<bool, Trouble> {
        if self.log.bounded() {
            // A block that says level says ended too, for the same reason as in `turn`.
            self.tick()?;
            self.send()?;
        }
        let closed = self.close(now.steady_ms)?;
        if closed.is_empty() {
            return Ok(false);
        }
        for (id, epoch) in closed {
            if let Some(task) = self.tasks.iter_mut().flatten().find(|task| task.id == id) {
                let prepared = task.prepare(epoch, now, &mut self.outbox);
                prepared.map_err(|error| fault(&id, error))?;
            }
        }
        self.send()?;
        self.asked_ms = Some(clock::steady_ms());
        match self.log.commit() {
            Ok(()) => {}
            Err(CommitError::Aborted(error)) if error.passes() => return Err(Trouble::Dropped(error)),
            Err(CommitError::Aborted(error)) => return Err(Trouble::Refused(error)),
            Err(error) => {
                self.epoch.delivered(Delivery::Complete)?;
                return Err(Trouble::Lost(error));
            }
        }
        // An epoch of which it is not known now whether it is visible says nothing of when it became so.
        let visible_ms = clock::now_ms();
        let committed = self.running().filter(|task| task.prepared.is_some());
        committed.for_each(|task| self.metrics.fresh(task, visible_ms));
        self.epoch.delivered(Delivery::Complete)?;
        if let Next::Apply(permits) = self.epoch.commit_returned(CommitOutcome::Committed)? {
            self.apply(permits)?;
        }
        self.begin_epoch();
        self.last_commit_ms = now.steady_ms;
        self.running().for_each(|task| self.metrics.totals(task));
        self.flush_some(now)?;
        Ok(true)
    }

    /// Writes committed epochs to the tasks' states.
    fn apply(&mut self, permits: Vec<ApplyPermit>) -> Result<(), Trouble> {
        for permit in permits {
            let slot = self.tasks.iter().position(|t| t.as_ref().is_some_and(|t| t.id == *permit.task()));
            let Some((slot, task)) = slot.and_then(|slot| Some((slot, self.tasks[slot].as_mut()?))) else { continue };
            let next = self.log.committed_end(&task.changelog, task.id.partition)?;
            match task.apply(next) {
                Ok(()) => self.epoch.applied(permit),
                Err(error) if self.config.isolate => {
                    tracing::error!(task = %task.id, error = chain(&error), "a committed epoch could not be written to the local state, which is restored");
                    let epoch = permit.epoch();
                    let id = self.epoch.apply_failed(permit);
                    self.take_out(slot)?;
                    self.failed.push((id, epoch));
                    continue;
                }
                Err(error) => return Err(fault(&task.id, error)),
            }
            if self.hold_trims {
                continue;
            }
            let partition = task.id.partition;
            for input in task.inputs.iter().filter(|i| matches!(i.reader, task::Reader::Exchange(_))) {
                self.log.trim(&input.topic, partition, input.next)?;
            }
        }
        Ok(())
    }

    /// Writes out all memtables from time to time, and the largest when they fill the worker's budget: the library would
    /// only look at the one that is being written to.
    fn flush_some(&mut self, now: Now) -> Result<(), EngineError> {
        if now.steady_ms.saturating_sub(self.last_flush_ms) >= FLUSH_MS {
            self.last_flush_ms = now.steady_ms;
            return self.flush_state();
        }
        let budget = &self.builder.budget;
        if budget.write_buffer_bytes_used() >= budget.write_buffer_bytes() / 4 * 3
            && let Some(task) = self.running().max_by_key(|task| task.state.memtable_bytes())
        {
            task.state.start_flush().map_err(|error| of(&task.id, TaskError::State(error)))?;
        }
        Ok(())
    }

    fn flush_state(&self) -> Result<(), EngineError> {
        self.running().try_for_each(flush)
    }

    fn finished(&self) -> bool {
        self.log.bounded() && self.open_since_ms.is_none() && self.running().all(Task::finished)
    }

    /// The tasks that run.
    pub fn running(&self) -> impl Iterator<Item = &Task> {
        self.tasks.iter().flatten()
    }
}

fn flush(task: &Task) -> Result<(), EngineError> {
    task.state.flush().map_err(|error| of(&task.id, TaskError::State(error)))
}

/// An error with everything that it came from, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn now() -> Now {
    Now { wall_ms: clock::now_ms(), steady_ms: clock::steady_ms() }
}

//! A lane: reads, runs its tasks, commits epochs. The same loop over Kafka and over files.
//!
//! An epoch takes what the lane has read since the last one. It ends at the commit interval, or when it has grown to
//! [`EPOCH_BYTES_MAX`]; then output, state changes, blocks and markers become visible together, and only after that is
//! known the state is written to RocksDB (invariant I1). A quiet lane commits nothing, but for what the readers of an
//! exchange must hear about time.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use millrace_core::ids::{Generation, Partition, TaskId, Timeline};
use millrace_core::plan::{InputFrom, Plan};

use crate::clock;
use crate::log::{Assignment, CommitError, End, InputId, InternalKind, Log, LogError, Outbox};
use crate::metrics::Metrics;
use crate::state::StateBudget;
use build::{BuildError, Builder};
use task::{Now, Task, TaskError};
use topology::{Names, Topology};

pub mod build;
pub mod changes;
pub mod dead_letter;
pub mod exchange;
pub mod flow;
pub mod sink;
pub mod source;
pub mod task;
pub mod topology;

/// Records that are taken at once: enough that work is done in batches, few enough that an epoch ends in time.
pub const BATCH_RECORDS: usize = 4096;
/// Rows that wait in memory: at 200 bytes a row about 200 MB.
pub const WAITING_ROWS_MAX: usize = 1 << 20;
/// An epoch with so much to write ends early.
const EPOCH_BYTES_MAX: usize = 32 << 20;
/// How often the ends of inputs are looked up while there is something to do.
const TICK_MS: u64 = 50;
/// Every task's memtables are written out after this time.
const FLUSH_MS: u64 = 600_000;

#[derive(Clone, Debug)]
pub struct EngineConfig {
    pub state_dir: PathBuf,
    pub commit_interval_ms: u64,
    /// Records that are taken at once.
    pub batch_records: usize,
    /// Rows of one step that wait in memory; the rest waits in the state only.
    pub waiting_rows_max: usize,
    pub cache_bytes: usize,
    pub write_buffer_bytes: usize,
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
}

impl From<BuildError> for EngineError {
    fn from(error: BuildError) -> Self {
        Self::Build(Box::new(error))
    }
}

/// Says which task it was.
fn of(task: &TaskId) -> impl Fn(TaskError) -> EngineError + '_ {
    |error| EngineError::Task { task: task.clone(), source: Box::new(error) }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Every input has ended and everything is through.
    Finished,
    Stopped,
}

struct Route {
    task: usize,
    input: usize,
}

pub struct Engine<L> {
    log: L,
    config: EngineConfig,
    tasks: Vec<Task>,
    /// By input of the log.
    routes: Vec<Route>,
    outbox: Outbox,
    /// Something was sent in the open epoch.
    open: bool,
    sent_bytes: usize,
    metrics: Arc<Metrics>,
    last_commit_ms: u64,
    last_tick_ms: u64,
    last_flush_ms: u64,
}

impl<L: Log> Engine<L> {
    /// Checks the topics, restores every task and assigns what it reads.
    pub fn start(plan: &Plan, mut log: L, config: EngineConfig, metrics: Arc<Metrics>) -> Result<Self, EngineError> {
        let topology = Topology::resolve(plan, &mut log)?;
        let names = Names::new(&plan.prefix, Timeline(1));
        for stage in &plan.stages {
            log.create_internal(&names.changelog(&stage.name), InternalKind::Changelog, topology.tasks[&stage.name])?;
        }
        for (exchange, partitions) in &topology.exchanges {
            log.create_internal(&names.repartition(exchange), InternalKind::Repartition, *partitions)?;
        }
        let now = now();
        let budget = StateBudget::new(config.cache_bytes, config.write_buffer_bytes);
        let builder = Builder {
            plan,
            topology: &topology,
            names: &names,
            budget: &budget,
            state_dir: &config.state_dir.join("tasks"),
            waiting_rows_max: config.waiting_rows_max,
            now_ms: now.wall_ms,
            steady_ms: now.steady_ms,
        };
        let mut engine = Self {
            log,
            config: config.clone(),
            tasks: Vec::new(),
            routes: Vec::new(),
            outbox: Outbox::default(),
            open: false,
            sent_bytes: 0,
            metrics,
            last_commit_ms: now.steady_ms,
            last_tick_ms: 0,
            last_flush_ms: now.steady_ms,
        };
        for stage in &plan.stages {
            for partition in 0..topology.tasks[&stage.name] {
                let partition = Partition(partition);
                let mut task = builder.task(stage, partition, &mut engine.log, &mut engine.outbox)?;
                engine.assign(plan, &names, &mut task)?;
                let resumed = task.resume(now, &mut engine.outbox);
                resumed.map_err(of(&task.id))?;
                engine.tasks.push(task);
            }
        }
        engine.publish();
        Ok(engine)
    }

    fn assign(&mut self, plan: &Plan, names: &Names, task: &mut Task) -> Result<(), EngineError> {
        let stage = plan.stage(&task.id.stage).expect("tasks are built from stages");
        for (index, input) in task.inputs.iter().enumerate() {
            let source = match &stage.inputs[index].from {
                InputFrom::Source(name) => plan.sources.iter().position(|s| s.name == *name),
                InputFrom::Exchange(_) => None,
            };
            // Tables first, then the order of the spec.
            let rank = source.map_or(0, |i| i as u32) + if input.table { 0 } else { 1 << 16 };
            let id = self.log.assign(Assignment {
                topic: input.topic.clone(),
                partition: task.id.partition,
                next: input.next,
                rank,
                group: names.group(&stage.name),
            })?;
            debug_assert_eq!(id.0, self.routes.len());
            self.routes.push(Route { task: self.tasks.len(), input: index });
        }
        Ok(())
    }

    /// Runs until `stop` is set or everything has ended.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<Exit, EngineError> {
        self.tick()?;
        while !stop.load(Ordering::Relaxed) {
            let busy = self.turn()?;
            let now = now();
            let due_ms = self.config.commit_interval_ms;
            let left_ms = due_ms.saturating_sub(now.steady_ms.saturating_sub(self.last_commit_ms));
            // With nothing to read a bounded run does not wait for the interval: other stages wait for the epoch.
            let hurry = !busy && self.log.bounded();
            if (left_ms == 0 || hurry || self.epoch_bytes() >= EPOCH_BYTES_MAX) && self.due(now) {
                self.commit(now)?;
            } else if !busy {
                if self.finished() {
                    self.flush_state()?;
                    return Ok(Exit::Finished);
                }
                // A quiet lane has nothing to be in time for.
                self.log.wait(if left_ms == 0 { due_ms } else { left_ms });
            }
        }
        let now = now();
        if self.due(now) {
            self.commit(now)?;
        }
        self.flush_state()?;
        Ok(Exit::Stopped)
    }

    /// Takes one fetch, if there is one, and looks after the inputs' ends. True when there was something to read.
    fn turn(&mut self) -> Result<bool, EngineError> {
        let (tasks, routes) = (&mut self.tasks, &self.routes);
        let wanted = |id: InputId| {
            let route = &routes[id.0];
            tasks[route.task].wants(route.input)
        };
        let bounded = self.log.bounded();
        let fetch = self.log.poll(&wanted, self.config.batch_records)?;
        let busy = fetch.is_some();
        let now = now();
        let rested = now.steady_ms.saturating_sub(self.last_tick_ms) >= TICK_MS;
        let mut look = rested || (!busy && bounded);
        if let Some(fetch) = fetch {
            let route = &routes[fetch.input.0];
            let task = &mut tasks[route.task];
            let was_level = task.level();
            let processed = task.process(route.input, &fetch, now, &mut self.outbox);
            processed.map_err(of(&task.id))?;
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

    fn send(&mut self) -> Result<(), EngineError> {
        if !self.outbox.is_empty() {
            self.open = true;
            self.sent_bytes += self.outbox.bytes();
            self.log.send(&mut self.outbox)?;
        }
        Ok(())
    }

    /// Looks up where the sources end. The wall time of `now` is taken after that, so that it is never before.
    fn tick(&mut self) -> Result<(), EngineError> {
        let mut ends: Vec<Vec<(usize, End)>> = self.tasks.iter().map(|_| Vec::new()).collect();
        for (id, route) in self.routes.iter().enumerate() {
            let input = &self.tasks[route.task].inputs[route.input];
            if matches!(input.reader, task::Reader::Source(_)) {
                let end = self.log.end(InputId(id))?;
                self.metrics.lag(&self.tasks[route.task].id, input, end, clock::now_ms());
                ends[route.task].push((route.input, end));
            }
        }
        let now = now();
        for (task, ends) in self.tasks.iter_mut().zip(&ends) {
            let ticked = task.tick(ends, now, &mut self.outbox);
            ticked.map_err(of(&task.id))?;
        }
        self.last_tick_ms = now.steady_ms;
        Ok(())
    }

    /// What the open epoch holds in memory, about: what was sent, and the state changes that will be.
    fn epoch_bytes(&self) -> usize {
        self.sent_bytes + self.tasks.iter().map(|t| t.state.overlay_bytes()).sum::<usize>()
    }

    fn due(&self, now: Now) -> bool {
        self.open || self.tasks.iter().any(|t| t.due(now.steady_ms))
    }

    /// Ends the epoch.
    fn commit(&mut self, now: Now) -> Result<(), EngineError> {
        if self.log.bounded() {
            // A block that says level says ended too, for the same reason as in `turn`.
            self.tick()?;
            self.send()?;
        }
        for task in self.tasks.iter_mut().filter(|t| t.due(now.steady_ms)) {
            let prepared = task.prepare(Generation(1), now, &mut self.outbox);
            prepared.map_err(of(&task.id))?;
        }
        self.log.send(&mut self.outbox)?;
        self.log.commit()?;
        for task in self.tasks.iter_mut().filter(|t| t.prepared.is_some()) {
            let next = self.log.committed_end(&task.changelog, task.id.partition)?;
            task.apply(next).map_err(of(&task.id))?;
            for input in task.inputs.iter().filter(|i| matches!(i.reader, task::Reader::Exchange(_))) {
                self.log.trim(&input.topic, task.id.partition, input.next)?;
            }
        }
        self.open = false;
        self.sent_bytes = 0;
        self.last_commit_ms = now.steady_ms;
        self.publish();
        self.flush_some(now)
    }

    /// Writes out all memtables from time to time, and the largest when they fill the worker's budget: the library would
    /// only look at the one that is being written to.
    fn flush_some(&mut self, now: Now) -> Result<(), EngineError> {
        if now.steady_ms.saturating_sub(self.last_flush_ms) >= FLUSH_MS {
            self.last_flush_ms = now.steady_ms;
            return self.flush_state();
        }
        let bytes = |task: &Task| task.state.memtable_bytes();
        let full = self.config.write_buffer_bytes as u64 / 4 * 3;
        if self.tasks.iter().map(bytes).sum::<u64>() >= full
            && let Some(task) = self.tasks.iter().max_by_key(|task| bytes(task))
        {
            task.state.start_flush().map_err(|error| of(&task.id)(TaskError::State(error)))?;
        }
        Ok(())
    }

    fn flush_state(&self) -> Result<(), EngineError> {
        self.tasks.iter().try_for_each(flush)
    }

    fn finished(&self) -> bool {
        self.log.bounded() && !self.open && self.tasks.iter().all(Task::finished)
    }

    fn publish(&self) {
        for task in &self.tasks {
            self.metrics.totals(task);
        }
    }

    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }
}

fn flush(task: &Task) -> Result<(), EngineError> {
    task.state.flush().map_err(|error| of(&task.id)(TaskError::State(error)))
}

fn now() -> Now {
    Now { wall_ms: clock::now_ms(), steady_ms: clock::steady_ms() }
}

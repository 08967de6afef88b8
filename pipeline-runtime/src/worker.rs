//! A worker: one process, its lanes on threads of their own, and the share of the pipeline's tasks that they run.
//!
//! At the start, before anything is taken from anybody: all that [`preflight`] looks at, whose pipeline the prefix is,
//! and which generation and plan this is. Then each lane goes its own way. Beside them are the [`restorer`]s, which bring
//! states level, and a thread that makes [`snapshots`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, bail, ensure};
use millrace_core::assignment::Assignment;
use millrace_core::control::{Change, Created, Incarnation, LaneId, Owner, Pinned, PlanStamp, Record};
use millrace_core::ids::{Generation, Offset, TaskId, Timeline};
use millrace_core::leave::{Leave, Seen};
use millrace_core::ownership::{ControlLog, Identity, Rules};
use millrace_core::pace::Rate;
use millrace_core::plan::{Plan, Sink};
use millrace_core::report::{BackfillReport, REPORT_VERSION, WarmReport, WorkerReport, hex};
use millrace_core::totals::Totals;

use crate::clock;
use crate::control::{self, ControlConfig, Desk};
use crate::engine::build::{Builder, compacted, tasks_folder};
use crate::engine::task::repairs_step;
use crate::engine::topology::{Names, Topology};
use crate::engine::{Engine, EngineConfig, InternalTopic, internal_topics};
use crate::log::kafka::connection::{Connection, FETCHED_BYTES};
use crate::log::kafka::control::ControlTopic;
use crate::log::kafka::{InternalTopics, KafkaLog, KafkaLogConfig, TRANSACTION_TIMEOUT_MS, TRIM_EVERY_MS};
use crate::log::{Log, LogError};
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::storage::Storage;
use backfill::Progress;
use lane::{Lane, LaneState, Share, Shown, Told, transactional_id};
use preflight::Depth;
use restorer::Restorers;
use rotation::{Found, Reread, Rotation};
pub use snapshots::SnapshotRules;
use snapshots::Snapshots;
use watch::Watch;

mod backfill;
pub mod cleanup;
pub mod lane;
pub mod preflight;
mod restorer;
pub mod rotation;
pub mod savepoint;
mod snapshots;
mod watch;

/// How long a stop may take: what is not released by then is fenced by whoever takes it.
const STOP_MS: u64 = 20_000;
/// How long the threads beside the lanes are waited for after that: longer than a restorer's slice.
const THREADS_MS: u64 = 5_000;
const LOOK_MS: u64 = 50;
/// What a lane was told and has not taken up yet. One that has so much is stuck, and its worker waits.
const TOLD_MAX: usize = 16;
/// How often the assignment's file is read.
const ASSIGNMENT_MS: u64 = 1_000;
/// How long the next lane waits for the one before to run with new clients.
const RECONNECT_MS: u64 = 20_000;
/// How often the topics are looked at.
const WATCH_MS: u64 = 10_000;
/// Folder for checkpoints, on the disk of the states.
const CHECKPOINTS: &str = "checkpoints";
/// Of the state that this release writes.
const STATE_FORMAT: u32 = 1;

/// A pipeline and the cluster that it runs on.
pub struct Job {
    pub plan: Arc<Plan>,
    pub owner: Owner,
    /// The prefix shall be ours, whoever had it.
    pub adopt: bool,
    pub connection: Connection,
    pub internal: InternalTopics,
    /// Which history this is: a restore begins a new one.
    pub timeline: Timeline,
    /// Where snapshots are; `None`: there are none.
    pub storage: Option<Storage>,
}

pub struct WorkerConfig {
    pub job: Job,
    /// Reads the secrets of the connection again.
    pub reread: Reread,
    pub worker: u32,
    pub lanes: u32,
    /// `None`: this worker runs every task.
    pub assignment: Option<PathBuf>,
    /// Where the operator asks and tells.
    pub control: Option<ControlConfig>,
    /// How long it works on after it was told to end, so that its tasks can go to others first.
    pub leave_within_ms: u64,
    /// Of a backfill, what all lanes may read of streams in a second at first; `None`: as much as they can.
    pub records_per_second: Option<u64>,
    /// Of a backfill: what it computes. It stays so in the control log before anything is claimed.
    pub pinned: Option<Pinned>,
    pub engine: EngineConfig,
    pub memory: Memory,
    pub snapshots: SnapshotRules,
    pub set_log_level: SetLogLevel,
}

/// Takes another level, as `--log-level` does; `None`: the one that the process was started with.
pub type SetLogLevel = Arc<dyn Fn(Option<&str>) + Send + Sync>;

/// What was found at the start.
struct Start {
    /// `None`: somebody else assigns.
    assignment: Option<Assignment>,
    plan: PlanStamp,
    watch: Watch,
    /// For the restorers.
    builder: Builder,
}

struct Running {
    lane: LaneId,
    thread: JoinHandle<anyhow::Result<()>>,
    told: SyncSender<Told>,
    shown: Shown,
    /// The number of the connection that it was given last, and when, if not at its start.
    connection: u64,
    reconnected_ms: Option<u64>,
    /// That it was told last.
    records_per_second: Option<u64>,
}

impl Running {
    fn state(&self) -> LaneState {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Runs a worker until it was told to end and has, or it cannot go on, or its backfill is done: how far that came.
/// `told_to_end` is taken back when it was heard, so that it can be said again. `ready` says whether every task of its share
/// runs.
pub fn run(
    config: &WorkerConfig,
    metrics: &Arc<Metrics>,
    ready: &AtomicBool,
    told_to_end: &AtomicBool,
) -> anyhow::Result<Option<BackfillReport>> {
    let stop = &Arc::new(AtomicBool::new(false));
    let Start { assignment, plan, watch, builder } = start(config)?;
    forget_timelines(config)?;
    let desk = Arc::new(Desk::new(Arc::clone(metrics)));
    // Nothing is written by them.
    let id = LaneId { timeline: config.job.timeline, worker: config.worker, lane: 0 };
    let readers =
        KafkaLogConfig { outputs: Vec::new(), ..log_config(config, &config.job.connection, id, &watch.topology) };
    let (restorers, mut threads) = Restorers::start(builder.clone(), readers, metrics)?;
    let mut snapshots = None;
    if let Some(storage) = config.job.storage.clone() {
        let dir = config.engine.state_dir.join(CHECKPOINTS);
        let (started, thread) = Snapshots::start(storage, config.snapshots, dir, metrics)?;
        threads.push(thread);
        snapshots = Some(started);
    }
    let mut worker = Worker {
        config,
        metrics,
        stop,
        told_to_end,
        leaving: None,
        plan,
        connection: config.job.connection.clone(),
        connections: 0,
        following: Assignment::default(),
        mistake: String::new(),
        watch,
        builder,
        restorers,
        snapshots,
        threads,
        lanes: Vec::new(),
        backfill: config.job.plan.backfills().then(|| Progress::new(config.records_per_second)),
        outcome: Ok(()),
        desk: Arc::clone(&desk),
    };
    worker.publish(ready);
    let ended = worker.serve(assignment, ready);
    stop.store(true, Ordering::Relaxed);
    worker.end_threads();
    worker.outcome.and(ended).map(|()| worker.backfill.map(|backfill| backfill.report))
}

/// The lanes, and what they were told.
struct Worker<'a> {
    config: &'a WorkerConfig,
    metrics: &'a Arc<Metrics>,
    stop: &'a Arc<AtomicBool>,
    told_to_end: &'a AtomicBool,
    leaving: Option<Leave>,
    /// Its number is that of the assignments that this worker follows.
    plan: PlanStamp,
    connection: Connection,
    /// How many there were before this one.
    connections: u64,
    /// Of generation 0 while there is none.
    following: Assignment,
    /// What keeps a newer assignment from being followed.
    mistake: String,
    watch: Watch,
    builder: Builder,
    restorers: Arc<Restorers>,
    snapshots: Option<Arc<Snapshots>>,
    /// Beside the lanes: the restorers', and that of the snapshots.
    threads: Vec<JoinHandle<()>>,
    lanes: Vec<Running>,
    backfill: Option<Progress>,
    /// What ended the worker, if it was not told to stop.
    outcome: anyhow::Result<()>,
    desk: Arc<Desk>,
}

impl Worker<'_> {
    /// Answers whoever asks, watches the secrets, and runs the lanes until all have ended.
    fn serve(&mut self, own: Option<Assignment>, ready: &AtomicBool) -> anyhow::Result<()> {
        let Self { config, stop, .. } = *self;
        let _server = config.control.as_ref().map(|control| control::serve(control, &self.desk)).transpose()?;
        let rotation = Rotation::watch(config.job.connection.clone(), Arc::clone(&config.reread), stop)?;
        let tended = self.tend(own, &rotation, ready);
        stop.store(true, Ordering::Relaxed);
        rotation.join();
        tended
    }

    /// One that waits for brokers is not waited for: it writes nothing but a state that is read on from where it is.
    fn end_threads(&mut self) {
        self.restorers.end();
        self.snapshots.iter().for_each(|snapshots| snapshots.end());
        let start = clock::steady_ms();
        while self.threads.iter().any(|thread| !thread.is_finished()) && clock::steady_ms() - start < THREADS_MS {
            clock::pause_ms(LOOK_MS);
        }
        for thread in self.threads.drain(..).filter(JoinHandle::is_finished) {
            if thread.join().is_err() {
                tracing::error!("a thread beside the lanes has panicked");
            }
        }
    }

    /// Starts the lanes, and looks after them until all have ended.
    fn tend(&mut self, own: Option<Assignment>, rotation: &Rotation, ready: &AtomicBool) -> anyhow::Result<()> {
        let managed = self.config.assignment.is_some();
        match own {
            Some(assignment) => self.take_up(assignment)?,
            None => self.follow_assignment()?,
        }
        if self.lanes.is_empty() && !managed {
            bail!("the pipeline has no task: none of its sources has a partition");
        }
        let (mut stopping_since, mut last_read_ms, mut last_watch_ms) = (None, 0, clock::steady_ms());
        // Without a task a worker that somebody else assigns to stands by.
        while !self.lanes.is_empty() || managed && !self.stop.load(Ordering::Relaxed) {
            clock::pause_ms(LOOK_MS);
            let now = clock::steady_ms();
            self.join_ended();
            self.leave(now);
            self.pace();
            self.finish(now);
            self.publish(ready);
            if self.stop.load(Ordering::Relaxed) {
                if now - *stopping_since.get_or_insert(now) > STOP_MS {
                    bail!(
                        "{} lanes did not stop within {STOP_MS} ms; what they have not committed is done again by whoever runs their tasks next",
                        self.lanes.len()
                    );
                }
                continue;
            }
            if self.threads.iter().any(JoinHandle::is_finished) {
                self.fail(anyhow::anyhow!("a thread beside the lanes has panicked"));
            }
            let mut hurry = false;
            if let Some(Found { connection: next, hurry: at_once }) = rotation.found() {
                hurry = at_once;
                self.restorers.reconnect(&next);
                if let Err(error) = self.watch.reconnect(&next) {
                    self.fail(error.into());
                }
                self.connection = next;
                self.connections += 1;
            }
            self.reconnect(now, hurry);
            if self.desk.news() || now - last_read_ms >= ASSIGNMENT_MS {
                last_read_ms = now;
                self.follow_assignment()?;
            }
            if now - last_watch_ms >= WATCH_MS {
                last_watch_ms = now;
                self.follow_topics()?;
            }
        }
        Ok(())
    }

    /// Once it was told to end, it stops when working on is of no more use.
    fn leave(&mut self, now: u64) {
        let told = self.told_to_end.swap(false, Ordering::Relaxed);
        if self.stop.load(Ordering::Relaxed) || self.leaving.is_none() && !told {
            return;
        }
        let told_again = told && self.leaving.is_some();
        let leave = *self.leaving.get_or_insert(Leave { since_ms: now, within_ms: self.config.leave_within_ms });
        let (asked_ms, let_go) = (self.desk.asked_ms(), self.desk.let_go());
        let seen = Seen { now_ms: now, asked_ms, has_tasks: self.has_tasks(), let_go, told_again };
        match leave.end(seen) {
            Some(why) => {
                tracing::info!(?why, "the worker ends");
                self.stop.store(true, Ordering::Relaxed);
            }
            None if told => tracing::info!("told to end: works on until others have its tasks"),
            None => {}
        }
    }

    /// Whether it runs tasks, or is to, or may not have given all of them back yet.
    fn has_tasks(&self) -> bool {
        let has_some = |lane: &Running| {
            let LaneState { generation, tasks, .. } = lane.state();
            generation < self.following.generation || !tasks.is_empty()
        };
        !self.following.on(self.config.worker).is_empty() || self.lanes.iter().any(has_some)
    }

    /// Gives the newest connection to one lane after another: the next one when the tasks of the one before run again. In a
    /// hurry all get it at once.
    fn reconnect(&mut self, now: u64, hurry: bool) {
        let newest = self.connections;
        let under_way = |lane: &Running| {
            let LaneState { ready, connection, .. } = lane.state();
            let recent = lane.reconnected_ms.is_some_and(|at| now - at < RECONNECT_MS);
            recent && !(ready && connection == newest)
        };
        if !hurry && self.lanes.iter().any(under_way) {
            return;
        }
        let at_once = if hurry { self.lanes.len() } else { 1 };
        for next in self.lanes.iter_mut().filter(|lane| lane.connection < newest).take(at_once) {
            (next.connection, next.reconnected_ms) = (newest, Some(now));
            // A lane that has ended says why when it is joined.
            drop(next.told.send(Told::Connection(self.connection.clone(), newest)));
        }
    }

    /// Tells whoever asks how this worker is.
    fn publish(&mut self, ready: &AtomicBool) {
        let lanes: Vec<LaneState> = self.lanes.iter().map(Running::state).collect();
        let follows = self.following.generation > Generation(0);
        let messages = lanes.iter().flat_map(|lane| lane.messages.iter()).chain(Some(&self.mistake));
        let messages: Vec<String> = messages.filter(|text| !text.is_empty()).cloned().collect();
        let leaving = self.leaving.is_some();
        let runs = follows && !leaving && lanes.iter().all(|lane| lane.ready);
        ready.store(runs, Ordering::Relaxed);
        let follow = lanes.iter().all(|lane| lane.generation == self.following.generation);
        let drained = self.drained(&lanes);
        let committed = self.metrics.committed();
        let repairs = repairs(&self.config.job.plan, &committed);
        // Tasks that leave take what is known of them along.
        if let Some(backfill) = self.backfill.as_mut().filter(|_| !self.stop.load(Ordering::Relaxed)) {
            backfill.show(&self.config.job.plan, self.metrics, committed);
        }
        let (savepoint, snapshots) = self.snapshots.as_ref().map(|snapshots| snapshots.report()).unwrap_or_default();
        self.desk.show(WorkerReport {
            version: REPORT_VERSION,
            worker: self.config.worker,
            generation: self.following.generation,
            highest_generation: self.watch.known.highest_generation(),
            plan: self.plan.plan,
            plan_fingerprint: hex(self.plan.fingerprint),
            newest_plan: preflight::seen(&self.watch.known),
            stages: self.watch.topology.tasks.clone(),
            drained,
            tasks: lanes.into_iter().flat_map(|lane| lane.tasks).collect(),
            warm: self.following.warm_on(self.config.worker).into_iter().map(|id| self.warm(id)).collect(),
            sources: self.metrics.lags(),
            errors: self.metrics.errors(),
            leaving,
            ready: runs && follow && messages.is_empty(),
            messages,
            savepoint,
            snapshots,
            repairs,
            backfill: self.backfill.as_ref().map(|backfill| backfill.report.clone()),
        });
    }

    fn drained(&self, lanes: &[LaneState]) -> bool {
        self.following.drain && lanes.iter().all(|lane| lane.drained == Some(self.following.generation))
    }

    /// A backfill ends by itself, once all was computed and the pipeline has taken it.
    fn finish(&mut self, now: u64) {
        let lanes: Vec<LaneState> = self.lanes.iter().map(Running::state).collect();
        let drained = self.drained(&lanes);
        let Some(backfill) = self.backfill.as_mut().filter(|_| !self.stop.load(Ordering::Relaxed)) else { return };
        if backfill.report.taken {
            // Whoever asks could see it.
            self.stop.store(true, Ordering::Relaxed);
            return;
        }
        if drained {
            backfill.computed(&self.config.job.plan, &self.watch);
        }
        if let Err(error) = backfill.look(&mut self.watch, now) {
            self.fail(error);
        }
    }

    /// Hands the newest rate on. A lane that has not taken up what it was told before hears of it later.
    fn pace(&mut self) {
        let Some(backfill) = &mut self.backfill else { return };
        if let Some(Rate { records_per_second }) = self.desk.rate() {
            tracing::info!(records_per_second, "reads at another rate");
            backfill.records_per_second = records_per_second;
        }
        let rate = backfill.of_each(self.config.lanes);
        for lane in self.lanes.iter_mut().filter(|lane| lane.records_per_second != rate) {
            if lane.told.try_send(Told::Rate(rate)).is_ok() {
                lane.records_per_second = rate;
            }
        }
    }

    fn warm(&self, task: TaskId) -> WarmReport {
        WarmReport { level: self.restorers.level(&task), stage: task.stage, partition: task.partition }
    }

    fn join_ended(&mut self) {
        for index in (0..self.lanes.len()).rev() {
            if !self.lanes[index].thread.is_finished() {
                continue;
            }
            let Running { lane, thread, .. } = self.lanes.swap_remove(index);
            let ended = thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("lane {lane} panicked")));
            if let Err(error) = ended {
                // What the topics say is nearer to the cause than what a reader met.
                let error = self.watch.look(&self.config.job.plan, self.metrics).err().unwrap_or(error);
                // The others give their tasks back: half a worker looks like a whole one to whoever watches it.
                self.fail(error.context(format!("lane {lane}")));
            }
        }
    }

    fn fail(&mut self, error: anyhow::Error) {
        tracing::error!(error = format!("{error:#}"), "the worker stops");
        self.stop.store(true, Ordering::Relaxed);
        if self.outcome.is_ok() {
            self.outcome = Err(error);
        }
    }

    /// Follows the newest assignment that there is, in the file or by word of the operator, if it may be followed.
    fn follow_assignment(&mut self) -> anyhow::Result<()> {
        let Some(path) = &self.config.assignment else { return Ok(()) };
        if let Err(error) = self.watch.read() {
            self.fail(error.into());
            return Ok(());
        }
        let stages = &self.watch.topology.tasks;
        let found = match (read_assignment(path, stages), self.desk.pushed()) {
            (Ok(written), Some(pushed)) if pushed.generation > written.generation => Ok(pushed),
            (Err(_), Some(pushed)) if pushed.generation >= self.following.generation => Ok(pushed),
            (written, _) => written,
        };
        let refused = found.map_err(|error| format!("{error:#}")).and_then(|found| {
            let newer = found.generation > self.following.generation;
            let refused =
                newer.then(|| refusal(&found, self.plan, &self.watch.known, !self.lanes.is_empty())).flatten();
            refused.map_or(Ok(newer.then_some(found)), Err)
        });
        match refused {
            Ok(found) => {
                self.mistake.clear();
                found.map_or(Ok(()), |found| self.take_up(found))
            }
            // Said once. What runs goes on: whoever wrote it may correct it.
            Err(mistake) => {
                if mistake != self.mistake {
                    tracing::error!(mistake, "the assignment cannot be used, and the last one stays");
                    self.mistake = mistake;
                }
                Ok(())
            }
        }
    }

    fn take_up(&mut self, assignment: Assignment) -> anyhow::Result<()> {
        let Assignment { generation, plan, drain, .. } = assignment;
        tracing::info!(%generation, plan, drain, tasks = assignment.tasks.len(), "follows an assignment");
        self.plan.plan = plan;
        if assignment.live.log_level != self.following.live.log_level {
            (self.config.set_log_level)(assignment.live.log_level.as_deref());
        }
        self.following = assignment;
        self.share()
    }

    fn follow_topics(&mut self) -> anyhow::Result<()> {
        match self.watch.look(&self.config.job.plan, self.metrics) {
            Ok(false) => return Ok(()),
            Ok(true) if self.config.assignment.is_none() => {
                let Assignment { generation, plan, .. } = self.following;
                self.following = spread(self.config, &self.watch.topology, Generation(generation.0 + 1), plan);
            }
            // Whoever assigns does so again.
            Ok(true) => {}
            Err(error) => {
                self.fail(error);
                return Ok(());
            }
        }
        self.share()
    }

    /// Tells every lane its tasks; a lane that has none yet is started. What is warm is followed.
    fn share(&mut self) -> anyhow::Result<()> {
        self.builder.topology = self.watch.topology.clone();
        self.builder.accepts.clone_from(&self.following.accepts);
        let (own, warm) = (self.following.on(self.config.worker), self.following.warm_on(self.config.worker));
        let made = |task: TaskId| {
            let created = self.watch.known.created(&self.builder.names.changelog(&task.stage));
            (task, created.cloned())
        };
        let warm = warm.into_iter().map(made).collect();
        self.restorers.follow(&warm, &own, self.builder.clone());
        self.snapshots.iter().for_each(|snapshots| snapshots.cut(self.following.savepoint.as_ref()));
        for id in self.following.lanes(self.config.job.timeline, self.config.worker) {
            if self.lanes.iter().all(|l| l.lane != id) {
                let running = self.spawn(id)?;
                self.lanes.push(running);
            }
        }
        let live = &self.following.live;
        self.tell(|lane| {
            Told::Share(Share {
                generation: self.following.generation,
                tasks: self.following.of(lane),
                topology: self.watch.topology.clone(),
                drain: self.following.drain,
                accepts: self.following.accepts.clone(),
                commit_interval_ms: live.commit_interval_ms.unwrap_or(self.config.engine.commit_interval_ms),
                cut: self.following.savepoint.is_some(),
            })
        });
        Ok(())
    }

    fn tell(&self, what: impl Fn(LaneId) -> Told) {
        for running in &self.lanes {
            // A lane that has ended says why when it is joined.
            drop(running.told.send(what(running.lane)));
        }
    }

    #[expect(clippy::disallowed_methods, reason = "the thread is joined by `join_ended`")]
    fn spawn(&self, id: LaneId) -> anyhow::Result<Running> {
        let Self { config, connection, connections: number, .. } = self;
        let number = *number;
        let (sender, told) = sync_channel(TOLD_MAX);
        let (log_config, connection) = (log_config(config, connection, id, &self.watch.topology), connection.clone());
        let (compiled, internal, managed) =
            (Arc::clone(&config.job.plan), config.job.internal, config.assignment.is_some());
        let rate = self.backfill.as_ref().and_then(|backfill| backfill.of_each(config.lanes));
        let engine = EngineConfig { records_per_second: rate, ..config.engine.clone() };
        let (metrics, topology) = (Arc::clone(self.metrics), self.watch.topology.clone());
        let (shown, stop, plan) = (Shown::default(), Arc::clone(self.stop), self.plan);
        let (shows, beside) = (Arc::clone(&shown), (Arc::clone(&self.restorers), self.snapshots.clone()));
        let work = move || -> anyhow::Result<()> {
            let names = Names::new(&compiled.prefix, id.timeline);
            let control = ControlTopic::open(&connection, &names.control(), &internal)?;
            let engine = Engine::open(Arc::clone(&compiled), topology, KafkaLog::open(log_config)?, engine, metrics)?;
            let incarnation = Incarnation(getrandom::u64().context("draw a random number")?);
            let prefix = compiled.prefix.clone();
            let identity = lane::Identity { prefix, lane: id, incarnation, plan, managed, connection: number };
            Ok(Lane::new(identity, engine, beside, control, (told, shows)).run(&stop)?)
        };
        let thread =
            std::thread::Builder::new().name(format!("lane-{}", id.lane)).spawn(work).context("start a lane")?;
        Ok(Running {
            lane: id,
            thread,
            told: sender,
            shown,
            connection: number,
            reconnected_ms: None,
            records_per_second: rate,
        })
    }
}

/// Everything that can be wrong is found here, before a task runs.
fn start(config: &WorkerConfig) -> anyhow::Result<Start> {
    let Job { plan, connection, .. } = &config.job;
    let report = preflight::check(&config.job, Depth::Start)?;
    report.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    report.pass()?;
    let names = Names::new(&plan.prefix, config.job.timeline);
    let (mut control, mut known) = take_prefix(&config.job)?;
    if let Some(pinned) = &config.pinned {
        pin(pinned, &mut control, &mut known)?;
    }
    let id = LaneId { timeline: config.job.timeline, worker: config.worker, lane: 0 };
    // It reads nothing.
    let mut log = KafkaLog::open(log_config(config, connection, id, &Topology::default()))?;
    let topology = watch::resolve(plan, &names, &known, &mut log)?;
    let mut made = false;
    for topic in internal_topics(plan, &topology, &names) {
        let InternalTopic { name, kind, partitions, .. } = topic;
        let created = match known.created(&name) {
            Some(known) if known.partitions >= partitions => {
                log.create_internal(&name, kind, partitions)?;
                continue;
            }
            // Its source grew while nobody ran.
            Some(known) => {
                log.grow_internal(&name, partitions)?;
                Created { partitions, ..known.clone() }
            }
            None => {
                log.create_internal(&name, kind, partitions)?;
                let info = log.topic(&name)?.with_context(|| format!("internal topic '{name}' is gone"))?;
                Created { topic_id: info.id.unwrap_or_default(), partitions, begun: partitions }
            }
        };
        let position = control.append(&Change::Put(Record::Created { topic: name, created }))?;
        take(&mut known, control.read_to(position)?);
        made = true;
    }
    if made {
        // What we may do with a topic shows only when it is there.
        preflight::check(&config.job, Depth::Start)?.pass()?;
    }
    let fingerprint = plan_fingerprint(plan)?;
    let newest = known.newest_plan();
    let (assignment, number) = match &config.assignment {
        // Without a way to say what is wrong with it, it must be right.
        Some(path) if config.control.is_none() => read_assignment(path, &topology.tasks).map(|_| (None, 0))?,
        Some(_) => (None, 0),
        None => {
            let number = match newest {
                Some(newest) if newest.fingerprint == fingerprint => newest.plan,
                Some(_) if plan.backfills() => bail!(
                    "a backfill of this name was begun with another plan, by another release: go on with that one, or give this one another name"
                ),
                Some(newest) => newest.plan + 1,
                None => 1,
            };
            let generation = Generation(known.highest_generation().0 + 1);
            (Some(spread(config, &topology, generation, number)), number)
        }
    };
    tracing::info!(worker = config.worker, "worker starts");
    let builder = Builder::new(Arc::clone(plan), topology.clone(), &config.engine, compacted(plan, &mut log)?);
    let plan = PlanStamp { plan: number, fingerprint, state_format: STATE_FORMAT };
    Ok(Start { assignment, plan, watch: Watch::new(names, log, control, known, topology), builder })
}

/// Removes what is on the disk of timelines that a restore has ended.
fn forget_timelines(config: &WorkerConfig) -> anyhow::Result<()> {
    let (dir, own) = (&config.engine.state_dir, tasks_folder(config.job.timeline));
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(|| format!("list {}", dir.display()))?,
    };
    for entry in entries {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name().to_string_lossy().into_owned()))?;
        if name.starts_with(&tasks_folder(Timeline(1))) && name != own {
            tracing::info!(path = %path.display(), "removes the states of another timeline");
            std::fs::remove_dir_all(&path).with_context(|| format!("remove {}", path.display()))?;
        }
    }
    Ok(())
}

/// Reads the control log, and says in it that the prefix is ours, if nobody else has it.
fn take_prefix(job: &Job) -> anyhow::Result<(ControlTopic, ControlLog)> {
    let Job { plan, owner, adopt, connection, internal, timeline, .. } = job;
    let mut control = ControlTopic::open(connection, &Names::new(&plan.prefix, *timeline).control(), internal)?;
    let mut known = ControlLog::new(Rules::ALL);
    read_all(&mut control, &mut known)?;
    loop {
        match known.identity(owner, *adopt) {
            Identity::Ours => return Ok((control, known)),
            Identity::Append(record) => {
                let position = control.append(&Change::Put(record))?;
                take(&mut known, control.read_to(position)?);
            }
            Identity::Conflict(owner) => bail!(preflight::conflict(&plan.prefix, &owner)),
        }
    }
}

/// Says in the control log what a backfill computes, if nobody has said it before.
fn pin(own: &Pinned, control: &mut ControlTopic, known: &mut ControlLog) -> anyhow::Result<()> {
    if known.pinned().is_none() {
        let by = Incarnation(getrandom::u64().context("draw a random number")?);
        let position = control.append(&Change::Put(Record::Pinned { by, pinned: own.clone() }))?;
        take(known, control.read_to(position)?);
    }
    ensure!(
        known.pinned() == Some(own),
        "another process has begun a backfill of this name at the same time; begin again to go on with what that one computes"
    );
    Ok(())
}

/// Of the committed totals, what guards did with rows of backfills, by sink.
fn repairs(plan: &Plan, committed: &BTreeMap<String, Totals>) -> BTreeMap<String, Totals> {
    let of = |sink: &Sink| {
        let totals = committed.get(&repairs_step(&millrace_plan::upsert::operator(&sink.name)))?;
        Some((sink.name.clone(), totals.clone()))
    };
    plan.sinks.iter().filter_map(of).collect()
}

fn spread(config: &WorkerConfig, topology: &Topology, generation: Generation, plan: u64) -> Assignment {
    let spread = Assignment::spread(generation, plan, topology.all_tasks(), &[config.worker], config.lanes);
    // A backfill is at its end when all that is in its range has come out.
    Assignment { drain: config.job.plan.backfills(), ..spread }
}

fn read_all(control: &mut ControlTopic, known: &mut ControlLog) -> Result<(), LogError> {
    take(known, control.read_all()?);
    Ok(())
}

fn take(known: &mut ControlLog, entries: Vec<(Offset, Change)>) {
    for (position, change) in entries {
        known.apply(position, change);
    }
}

/// Identity of a plan: of all that it says.
pub fn plan_fingerprint(plan: &Plan) -> anyhow::Result<u64> {
    let text = serde_json::to_vec(plan).context("write the plan")?;
    Ok(millrace_core::fingerprint::fnv1a(&text))
}

/// An assignment of tasks that there are.
fn read_assignment(path: &Path, stages: &BTreeMap<String, i32>) -> anyhow::Result<Assignment> {
    let text = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
    let found: Assignment = serde_json::from_slice(&text).with_context(|| format!("read {}", path.display()))?;
    let mistakes = found.mistakes(stages);
    if !mistakes.is_empty() {
        bail!("{}: {}", path.display(), mistakes.join("; "));
    }
    Ok(found)
}

/// Why an assignment must not be followed, given what the control log knows. The operator goes on above it.
fn refusal(found: &Assignment, own: PlanStamp, known: &ControlLog, runs: bool) -> Option<String> {
    let Assignment { generation, plan, .. } = found;
    let highest = known.highest_generation();
    if *generation < highest {
        return Some(format!("the assignment has generation {generation}, and generation {highest} was run already"));
    }
    if runs && *plan != own.plan {
        return Some(format!("the assignment is of plan {plan}, and this worker runs plan {}", own.plan));
    }
    let newest = known.newest_plan()?;
    let other = newest.plan == *plan && newest.fingerprint != own.fingerprint;
    if newest.plan > *plan || other {
        let (ran, has) = (hex(newest.fingerprint), hex(own.fingerprint));
        let which = format!("plan {} ({ran}) was run already", newest.plan);
        return Some(format!("the assignment is of plan {plan}, this worker has ({has}), and {which}"));
    }
    None
}

/// Of a lane that may come to run any of the tasks.
fn log_config(config: &WorkerConfig, connection: &Connection, lane: LaneId, topology: &Topology) -> KafkaLogConfig {
    let Job { plan, internal, .. } = &config.job;
    let outputs = plan.sinks.iter().map(|s| s.topic.clone()).chain(plan.dead_letter.clone());
    let outputs = outputs.chain(plan.repaired().map(|(_, topic)| topic.to_owned()));
    let transactional_id = transactional_id(&plan.prefix, lane);
    KafkaLogConfig {
        connection: connection.clone(),
        group: transactional_id.clone(),
        transactional_id,
        transaction_timeout_ms: TRANSACTION_TIMEOUT_MS,
        outputs: outputs.collect(),
        internal: *internal,
        until_end: false,
        fetched_bytes: config.memory.fetched_bytes(topology.inputs(plan)).min(FETCHED_BYTES),
        trim_every_ms: TRIM_EVERY_MS,
    }
}

#[cfg(test)]
mod tests {
    use millrace_core::control::ClaimId;
    use millrace_core::ids::Partition;

    use super::*;

    const OWN: PlanStamp = PlanStamp { plan: 3, fingerprint: 7, state_format: STATE_FORMAT };

    /// The log after a claim, and what is said of an assignment.
    fn refused(claimed: (u64, PlanStamp), assigned: (u64, u64), runs: bool) -> Option<String> {
        let (mut known, task) =
            (ControlLog::new(Rules::ALL), TaskId { stage: "joined".to_owned(), partition: Partition(0) });
        let lane = LaneId { timeline: Timeline(1), worker: 0, lane: 0 };
        let id = ClaimId { task, generation: Generation(claimed.0), lane, incarnation: Incarnation(1) };
        known.apply(Offset(0), Change::Put(Record::Claim { id, plan: claimed.1 }));
        let (generation, plan) = (Generation(assigned.0), assigned.1);
        let found = Assignment { generation, plan, ..Assignment::default() };
        refusal(&found, OWN, &known, runs)
    }

    #[test]
    fn an_assignment_below_what_was_run_is_not_followed() {
        assert!(refused((5, OWN), (4, 3), false).is_some_and(|why| why.contains("generation 5 was run")));
        assert_eq!(refused((5, OWN), (5, 3), false), None, "a worker that comes back");
        assert_eq!(refused((5, OWN), (6, 3), true), None);
    }

    #[test]
    fn an_assignment_of_another_plan_is_not_followed() {
        let newer = PlanStamp { plan: 4, fingerprint: 9, ..OWN };
        assert!(refused((5, newer), (6, 3), false).is_some_and(|why| why.contains("plan 4")), "an older plan");
        let other = PlanStamp { fingerprint: 9, ..OWN };
        assert!(refused((5, other), (6, 3), false).is_some(), "a number that another plan has");
        assert_eq!(refused((5, other), (6, 4), false), None, "this worker begins a newer plan");
        assert!(refused((5, OWN), (6, 4), true).is_some_and(|why| why.contains("runs plan 3")));
    }
}

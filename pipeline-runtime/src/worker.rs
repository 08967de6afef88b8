//! A worker: one process, its lanes on threads of their own, and the share of the pipeline's tasks that they run.
//!
//! At the start, before anything is taken from anybody: all that [`preflight`] looks at, whose pipeline the prefix is,
//! and which generation and plan this is. Then each lane goes its own way.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, bail};
use millrace_core::assignment::Assignment;
use millrace_core::control::{Change, Created, Incarnation, LaneId, Owner, PlanStamp, Record};
use millrace_core::ids::{Generation, Offset, Timeline};
use millrace_core::ownership::{ControlLog, Identity, Rules};
use millrace_core::plan::Plan;
use millrace_core::report::{REPORT_VERSION, WorkerReport, hex};

use crate::clock;
use crate::control::{self, ControlConfig, Desk};
use crate::engine::topology::{Names, Topology};
use crate::engine::{Engine, EngineConfig, InternalTopic, internal_topics};
use crate::log::kafka::connection::Connection;
use crate::log::kafka::control::ControlTopic;
use crate::log::kafka::{InternalTopics, KafkaLog, KafkaLogConfig, TRANSACTION_TIMEOUT_MS, TRIM_EVERY_MS};
use crate::log::{Log, LogError};
use crate::metrics::Metrics;
use lane::{Lane, LaneState, Share, Shown, Told, transactional_id};
use preflight::Depth;
use rotation::{Reread, Rotation};
use watch::Watch;

pub mod cleanup;
pub mod lane;
pub mod preflight;
pub mod rotation;
mod watch;

/// How long a stop may take: what is not released by then is fenced by whoever takes it.
const STOP_MS: u64 = 20_000;
const LOOK_MS: u64 = 50;
/// What a lane was told and has not taken up yet. One that has so much is stuck, and its worker waits.
const TOLD_MAX: usize = 16;
/// How often the assignment's file is read.
const ASSIGNMENT_MS: u64 = 1_000;
/// How often the topics are looked at.
const WATCH_MS: u64 = 10_000;
/// Of the state that this release writes.
const STATE_FORMAT: u32 = 1;
/// There is one until something can be restored.
const TIMELINE: Timeline = Timeline(1);

/// A pipeline and the cluster that it runs on.
pub struct Job {
    pub plan: Arc<Plan>,
    pub owner: Owner,
    /// The prefix shall be ours, whoever had it.
    pub adopt: bool,
    pub connection: Connection,
    pub internal: InternalTopics,
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
    pub engine: EngineConfig,
}

/// What was found at the start.
struct Start {
    /// `None`: somebody else assigns.
    assignment: Option<Assignment>,
    plan: PlanStamp,
    watch: Watch,
}

struct Running {
    lane: LaneId,
    thread: JoinHandle<anyhow::Result<()>>,
    told: SyncSender<Told>,
    shown: Shown,
}

impl Running {
    fn state(&self) -> LaneState {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Runs a worker until `stop` is set or it cannot go on. `ready` says whether every task of its share runs.
pub fn run(
    config: &WorkerConfig,
    metrics: &Arc<Metrics>,
    ready: &AtomicBool,
    stop: &Arc<AtomicBool>,
) -> anyhow::Result<()> {
    let Start { assignment, plan, watch } = start(config)?;
    let desk = Arc::new(Desk::default());
    let mut worker = Worker {
        config,
        metrics,
        stop,
        plan,
        connection: config.job.connection.clone(),
        following: Assignment {
            generation: Generation(0),
            plan: 0,
            tasks: Vec::new(),
            drain: false,
            accepts: Vec::new(),
        },
        mistake: String::new(),
        watch,
        lanes: Vec::new(),
        outcome: Ok(()),
        desk: Arc::clone(&desk),
    };
    worker.publish(ready);
    let _server = config.control.as_ref().map(|control| control::serve(control, &desk)).transpose()?;
    let rotation = Rotation::watch(config.job.connection.clone(), Arc::clone(&config.reread), stop)?;
    let tended = worker.tend(assignment, &rotation, ready);
    stop.store(true, Ordering::Relaxed);
    rotation.join();
    worker.outcome.and(tended)
}

/// The lanes, and what they were told.
struct Worker<'a> {
    config: &'a WorkerConfig,
    metrics: &'a Arc<Metrics>,
    stop: &'a Arc<AtomicBool>,
    /// Its number is that of the assignments that this worker follows.
    plan: PlanStamp,
    connection: Connection,
    /// Of generation 0 while there is none.
    following: Assignment,
    /// What keeps a newer assignment from being followed.
    mistake: String,
    watch: Watch,
    lanes: Vec<Running>,
    /// What ended the worker, if it was not told to stop.
    outcome: anyhow::Result<()>,
    desk: Arc<Desk>,
}

impl Worker<'_> {
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
            if let Some(next) = rotation.found() {
                self.tell(|_| Told::Connection(next.clone()));
                if let Err(error) = self.watch.reconnect(&next) {
                    self.fail(error.into());
                }
                self.connection = next;
            }
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

    /// Tells whoever asks how this worker is.
    fn publish(&self, ready: &AtomicBool) {
        let lanes: Vec<LaneState> = self.lanes.iter().map(Running::state).collect();
        let follows = self.following.generation > Generation(0);
        let messages = lanes.iter().flat_map(|lane| lane.messages.iter()).chain(Some(&self.mistake));
        let messages: Vec<String> = messages.filter(|text| !text.is_empty()).cloned().collect();
        let runs = follows && lanes.iter().all(|lane| lane.ready);
        ready.store(runs, Ordering::Relaxed);
        let follow = lanes.iter().all(|lane| lane.generation == self.following.generation);
        let done = |lane: &LaneState| lane.drained == Some(self.following.generation);
        self.desk.show(WorkerReport {
            version: REPORT_VERSION,
            worker: self.config.worker,
            generation: self.following.generation,
            highest_generation: self.watch.known.highest_generation(),
            plan: self.plan.plan,
            plan_fingerprint: hex(self.plan.fingerprint),
            newest_plan: self.watch.known.newest_plan().map(preflight::seen),
            stages: self.watch.topology.tasks.clone(),
            drained: self.following.drain && lanes.iter().all(done),
            tasks: lanes.into_iter().flat_map(|lane| lane.tasks).collect(),
            sources: self.metrics.lags(),
            errors: self.metrics.errors(),
            ready: runs && follow && messages.is_empty(),
            messages,
        });
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

    /// Tells every lane its tasks; a lane that has none yet is started.
    fn share(&mut self) -> anyhow::Result<()> {
        for id in self.following.lanes(TIMELINE, self.config.worker) {
            if self.lanes.iter().all(|l| l.lane != id) {
                let running = self.spawn(id)?;
                self.lanes.push(running);
            }
        }
        self.tell(|lane| {
            Told::Share(Share {
                generation: self.following.generation,
                tasks: self.following.of(lane),
                topology: self.watch.topology.clone(),
                drain: self.following.drain,
                accepts: self.following.accepts.clone(),
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
        let Self { config, connection, .. } = self;
        let (sender, told) = sync_channel(TOLD_MAX);
        let (log_config, connection) = (log_config(config, connection, id), connection.clone());
        let (compiled, internal, managed) =
            (Arc::clone(&config.job.plan), config.job.internal, config.assignment.is_some());
        let (engine, metrics, topology) =
            (config.engine.clone(), Arc::clone(self.metrics), self.watch.topology.clone());
        let (shown, stop, plan) = (Shown::default(), Arc::clone(self.stop), self.plan);
        let shows = Arc::clone(&shown);
        let work = move || -> anyhow::Result<()> {
            let names = Names::new(&compiled.prefix, TIMELINE);
            let control = ControlTopic::open(&connection, &names.control(), &internal)?;
            let engine = Engine::open(Arc::clone(&compiled), topology, KafkaLog::open(log_config)?, engine, metrics)?;
            let incarnation = Incarnation(getrandom::u64().context("draw a random number")?);
            let identity = lane::Identity { prefix: compiled.prefix.clone(), lane: id, incarnation, plan, managed };
            Ok(Lane::new(identity, engine, control, told, shows).run(&stop)?)
        };
        let thread =
            std::thread::Builder::new().name(format!("lane-{}", id.lane)).spawn(work).context("start a lane")?;
        Ok(Running { lane: id, thread, told: sender, shown })
    }
}

/// Everything that can be wrong is found here, before a task runs.
fn start(config: &WorkerConfig) -> anyhow::Result<Start> {
    let Job { plan, owner, adopt, connection, internal } = &config.job;
    let report = preflight::check(&config.job, Depth::Start)?;
    report.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    report.pass()?;
    let names = Names::new(&plan.prefix, TIMELINE);
    let mut control = ControlTopic::open(connection, &names.control(), internal)?;
    let mut known = ControlLog::new(Rules::ALL);
    read_all(&mut control, &mut known)?;
    loop {
        match known.identity(owner, *adopt) {
            Identity::Ours => break,
            Identity::Append(record) => {
                let position = control.append(&Change::Put(record))?;
                take(&mut known, control.read_to(position)?);
            }
            Identity::Conflict(owner) => bail!(preflight::conflict(&plan.prefix, &owner)),
        }
    }
    let id = LaneId { timeline: TIMELINE, worker: config.worker, lane: 0 };
    let mut log = KafkaLog::open(log_config(config, connection, id))?;
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
                Some(newest) => newest.plan + 1,
                None => 1,
            };
            let generation = Generation(known.highest_generation().0 + 1);
            (Some(spread(config, &topology, generation, number)), number)
        }
    };
    tracing::info!(worker = config.worker, "worker starts");
    let plan = PlanStamp { plan: number, fingerprint, state_format: STATE_FORMAT };
    Ok(Start { assignment, plan, watch: Watch::new(names, log, control, known, topology) })
}

fn spread(config: &WorkerConfig, topology: &Topology, generation: Generation, plan: u64) -> Assignment {
    Assignment::spread(generation, plan, topology.all_tasks(), &[config.worker], config.lanes)
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

fn log_config(config: &WorkerConfig, connection: &Connection, lane: LaneId) -> KafkaLogConfig {
    let Job { plan, internal, .. } = &config.job;
    let outputs = plan.sinks.iter().map(|s| s.topic.clone()).chain(plan.dead_letter.clone());
    let transactional_id = transactional_id(&plan.prefix, lane);
    KafkaLogConfig {
        connection: connection.clone(),
        group: transactional_id.clone(),
        transactional_id,
        transaction_timeout_ms: TRANSACTION_TIMEOUT_MS,
        outputs: outputs.collect(),
        internal: *internal,
        until_end: false,
        trim_every_ms: TRIM_EVERY_MS,
    }
}

#[cfg(test)]
mod tests {
    use millrace_core::control::ClaimId;
    use millrace_core::ids::{Partition, TaskId};

    use super::*;

    const OWN: PlanStamp = PlanStamp { plan: 3, fingerprint: 7, state_format: STATE_FORMAT };

    /// The log after a claim, and what is said of an assignment.
    fn refused(claimed: (u64, PlanStamp), assigned: (u64, u64), runs: bool) -> Option<String> {
        let (mut known, task) =
            (ControlLog::new(Rules::ALL), TaskId { stage: "joined".to_owned(), partition: Partition(0) });
        let lane = LaneId { timeline: TIMELINE, worker: 0, lane: 0 };
        let id = ClaimId { task, generation: Generation(claimed.0), lane, incarnation: Incarnation(1) };
        known.apply(Offset(0), Change::Put(Record::Claim { id, plan: claimed.1 }));
        let (generation, plan) = (Generation(assigned.0), assigned.1);
        let found = Assignment { generation, plan, tasks: Vec::new(), drain: false, accepts: Vec::new() };
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

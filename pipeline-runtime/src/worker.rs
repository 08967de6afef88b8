//! A worker: one process, its lanes on threads of their own, and the share of the pipeline's tasks that they run.
//!
//! At the start, before anything is taken from anybody: whose pipeline the prefix is, that every topic is there and is
//! the one that we know, and which generation and plan this is. Then each lane goes its own way.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use anyhow::{Context, bail};
use millrace_core::assignment::Assignment;
use millrace_core::control::{Change, Created, Incarnation, LaneId, Owner, PlanStamp, Record};
use millrace_core::ids::{Generation, Offset, Partition, Timeline};
use millrace_core::ownership::{ControlLog, Identity, Rules};
use millrace_core::plan::Plan;

use crate::clock;
use crate::engine::topology::{Names, Topology};
use crate::engine::{Engine, EngineConfig, InternalTopic, internal_topics};
use crate::log::kafka::connection::Connection;
use crate::log::kafka::control::ControlTopic;
use crate::log::kafka::{InternalTopics, KafkaLog, KafkaLogConfig, TRANSACTION_TIMEOUT_MS, TRIM_EVERY_MS};
use crate::log::{Log, LogError};
use crate::metrics::Metrics;
use lane::{Lane, Share, transactional_id};

pub mod lane;

/// How long a stop may take: what is not released by then is fenced by whoever takes it.
const STOP_MS: u64 = 20_000;
const LOOK_MS: u64 = 50;
/// Assignments that a lane has not taken up yet. One that has so many is stuck, and its worker waits.
const SHARES_MAX: usize = 16;
/// How often the assignment's file is read.
const ASSIGNMENT_MS: u64 = 1_000;
/// How often the topics are looked at.
const WATCH_MS: u64 = 10_000;
/// Of the state that this release writes.
const STATE_FORMAT: u32 = 1;
/// There is one until something can be restored.
const TIMELINE: Timeline = Timeline(1);

pub struct WorkerConfig {
    pub plan: Arc<Plan>,
    pub owner: Owner,
    /// The prefix shall be ours, whoever had it.
    pub adopt: bool,
    pub connection: Connection,
    pub internal: InternalTopics,
    pub worker: u32,
    pub lanes: u32,
    /// `None`: this worker runs every task.
    pub assignment: Option<PathBuf>,
    pub engine: EngineConfig,
}

/// What was found at the start.
struct Start {
    assignment: Assignment,
    plan: PlanStamp,
    watch: Watch,
}

/// Looks from time to time whether the topics are still what they were.
struct Watch {
    names: Names,
    log: KafkaLog,
    control: ControlTopic,
    known: ControlLog,
    topology: Topology,
    cluster: Option<String>,
}

struct Running {
    lane: LaneId,
    thread: JoinHandle<anyhow::Result<()>>,
    shares: SyncSender<Share>,
    ready: Arc<AtomicBool>,
}

/// Runs a worker until `stop` is set or it cannot go on. `ready` says whether every task of its share runs.
pub fn run(
    config: &WorkerConfig,
    metrics: &Arc<Metrics>,
    ready: &AtomicBool,
    stop: &Arc<AtomicBool>,
) -> anyhow::Result<()> {
    let Start { mut assignment, plan, mut watch } = start(config)?;
    let mut lanes = Vec::new();
    for id in assignment.lanes(TIMELINE, config.worker) {
        lanes.push(spawn(config, id, (plan, &watch.topology), metrics, stop)?);
    }
    if lanes.is_empty() && config.assignment.is_none() {
        bail!("the pipeline has no task: none of its sources has a partition");
    }
    share(&lanes, &assignment, &watch.topology);
    let (mut stopping_since, mut last_look_ms) = (None, clock::steady_ms());
    let mut last_watch_ms = last_look_ms;
    let mut outcome = Ok(());
    // Without a task a worker that somebody else assigns to stands by.
    while !lanes.is_empty() || config.assignment.is_some() && !stop.load(Ordering::Relaxed) {
        clock::pause_ms(LOOK_MS);
        let now = clock::steady_ms();
        for index in (0..lanes.len()).rev() {
            if lanes[index].thread.is_finished() {
                let Running { lane, thread, .. } = lanes.swap_remove(index);
                let ended = thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("lane {lane} panicked")));
                if let Err(error) = ended {
                    // What the topics say is nearer to the cause than what a reader met.
                    let error = watch.look(config, metrics).err().unwrap_or(error);
                    tracing::error!(%lane, error = format!("{error:#}"), "lane ended");
                    // The others give their tasks back: half a worker looks like a whole one to whoever watches it.
                    stop.store(true, Ordering::Relaxed);
                    outcome = outcome.and(Err(error));
                }
            }
        }
        ready.store(lanes.iter().all(|l| l.ready.load(Ordering::Relaxed)), Ordering::Relaxed);
        let stopping = stop.load(Ordering::Relaxed);
        let mut changed = false;
        if let Some(path) = config.assignment.as_ref().filter(|_| !stopping && now - last_look_ms >= ASSIGNMENT_MS) {
            last_look_ms = now;
            let found = read_assignment(path)?;
            changed = found.generation > assignment.generation;
            if changed {
                assignment = found;
            }
        }
        if !stopping && now - last_watch_ms >= WATCH_MS {
            last_watch_ms = now;
            match watch.look(config, metrics) {
                Ok(false) => {}
                Ok(true) => {
                    changed = true;
                    if config.assignment.is_none() {
                        let generation = Generation(assignment.generation.0 + 1);
                        assignment = watch.spread(config, generation, plan.plan);
                    }
                }
                Err(error) => {
                    tracing::error!(error = format!("{error:#}"), "the worker stops");
                    stop.store(true, Ordering::Relaxed);
                    outcome = Err(error);
                }
            }
        }
        if changed {
            for id in assignment.lanes(TIMELINE, config.worker) {
                if lanes.iter().all(|l| l.lane != id) {
                    lanes.push(spawn(config, id, (plan, &watch.topology), metrics, stop)?);
                }
            }
            share(&lanes, &assignment, &watch.topology);
        }
        if stop.load(Ordering::Relaxed) && now - *stopping_since.get_or_insert(now) > STOP_MS {
            return outcome.and(Err(anyhow::anyhow!(
                "{} lanes did not stop within {STOP_MS} ms; what they have not committed is done again by whoever runs their tasks next",
                lanes.len()
            )));
        }
    }
    outcome
}

fn share(lanes: &[Running], assignment: &Assignment, topology: &Topology) {
    for running in lanes {
        let (tasks, topology) = (assignment.of(running.lane), topology.clone());
        let share = Share { generation: assignment.generation, tasks, topology };
        // A lane that has ended says why when it is joined.
        drop(running.shares.send(share));
    }
}

/// Everything that can be wrong is found here, before a task runs.
fn start(config: &WorkerConfig) -> anyhow::Result<Start> {
    let WorkerConfig { plan, connection, internal, .. } = config;
    let names = Names::new(&plan.prefix, TIMELINE);
    let mut control = ControlTopic::open(connection, &names.control(), internal)?;
    let mut known = ControlLog::new(Rules::ALL);
    read_all(&mut control, &mut known)?;
    loop {
        match known.identity(&config.owner, config.adopt) {
            Identity::Ours => break,
            Identity::Append(record) => {
                let position = control.append(&Change::Put(record))?;
                take(&mut known, control.read_to(position)?);
            }
            Identity::Conflict(owner) => bail!(
                "IdentityConflict: the prefix '{}' belongs to pipeline {}/{}{}; choose another spec.kafka.internal.prefix, or, to take it over, set the annotation millrace.dev/adopt: {}",
                plan.prefix,
                owner.namespace,
                owner.name,
                if owner.cluster.is_empty() { String::new() } else { format!(" of cluster {}", owner.cluster) },
                plan.prefix
            ),
        }
    }
    let id = LaneId { timeline: TIMELINE, worker: config.worker, lane: 0 };
    let mut log = KafkaLog::open(log_config(config, id))?;
    let topology = resolve(plan, &names, &known, &mut log)?;
    for topic in internal_topics(plan, &topology, &names) {
        // A topic that grew while nobody ran.
        if known.created(&topic.name).is_some_and(|made| made.partitions < topic.partitions) {
            log.grow_internal(&topic.name, topic.partitions)?;
        }
        log.create_internal(&topic.name, topic.kind, topic.partitions)?;
        if let Some(record) = created(&topic, known.created(&topic.name), &mut log)? {
            let position = control.append(&Change::Put(record))?;
            take(&mut known, control.read_to(position)?);
        }
    }
    let fingerprint = plan_fingerprint(plan)?;
    let newest = known.newest_plan();
    if let Some(newest) = newest.filter(|newest| newest.state_format > STATE_FORMAT) {
        bail!("a newer release runs this pipeline (state format {}): update this one", newest.state_format);
    }
    let (assignment, number) = match &config.assignment {
        Some(path) => {
            let assignment = read_assignment(path)?;
            let number = assignment.plan;
            (assignment, number)
        }
        None => {
            let number = match newest {
                Some(newest) if newest.fingerprint == fingerprint => newest.plan,
                Some(newest) => newest.plan + 1,
                None => 1,
            };
            let generation = Generation(known.highest_generation().0 + 1);
            (spread(config, &topology, generation, number), number)
        }
    };
    tracing::info!(generation = %assignment.generation, plan = number, tasks = assignment.tasks.len(), "worker starts");
    let cluster = log.cluster_id();
    let plan = PlanStamp { plan: number, fingerprint, state_format: STATE_FORMAT };
    Ok(Start { assignment, plan, watch: Watch { names, log, control, known, topology, cluster } })
}

fn spread(config: &WorkerConfig, topology: &Topology, generation: Generation, plan: u64) -> Assignment {
    Assignment::spread(generation, plan, topology.all_tasks(), &[config.worker], config.lanes)
}

fn resolve(plan: &Plan, names: &Names, known: &ControlLog, log: &mut KafkaLog) -> Result<Topology, LogError> {
    Topology::resolve(plan, names, &|topic| known.created(topic).map(|created| created.partitions), log)
}

impl Watch {
    fn spread(&self, config: &WorkerConfig, generation: Generation, plan: u64) -> Assignment {
        spread(config, &self.topology, generation, plan)
    }

    /// True when topics have grown. A topic that is gone or is another one is an error; brokers that do not answer are
    /// looked for again the next time.
    fn look(&mut self, config: &WorkerConfig, metrics: &Metrics) -> anyhow::Result<bool> {
        match self.try_look(config, metrics) {
            Err(error) if error.downcast_ref::<LogError>().is_some_and(LogError::passes) => {
                tracing::warn!(error = format!("{error:#}"), "the topics cannot be looked at");
                Ok(false)
            }
            looked => looked,
        }
    }

    fn try_look(&mut self, config: &WorkerConfig, metrics: &Metrics) -> anyhow::Result<bool> {
        take(&mut self.known, self.control.read()?);
        let cluster = self.log.cluster_id();
        if cluster.is_some() && cluster != self.cluster {
            bail!("the brokers belong to another cluster than before ({cluster:?}, before {:?})", self.cluster);
        }
        let found = resolve(&config.plan, &self.names, &self.known, &mut self.log)?;
        for (topic, (id, _)) in &self.topology.topics {
            if found.topics.get(topic).is_none_or(|(found, _)| found != id) {
                bail!(
                    "topic '{topic}' was deleted and made again: its positions mean nothing any more; restart the pipeline under a new name"
                );
            }
        }
        for (name, unread) in &found.unread {
            let Some(source) = config.plan.source(name) else { continue };
            for partition in unread.clone() {
                let range = self.log.range(&source.topic, Partition(partition))?;
                metrics.unread(name, partition, range.end.0 - range.start.0);
            }
        }
        if found == self.topology {
            return Ok(false);
        }
        for (name, unread) in found.unread.iter().filter(|(name, _)| !self.topology.unread.contains_key(*name)) {
            tracing::warn!(
                source = name,
                "{} partitions were added, and a stage with state does not read them: keys have moved; restart the pipeline under a new name to take them up",
                unread.len()
            );
        }
        for topic in internal_topics(&config.plan, &found, &self.names) {
            let Some(made) = self.known.created(&topic.name).filter(|made| made.partitions < topic.partitions) else {
                continue;
            };
            let created = Created { partitions: topic.partitions, ..made.clone() };
            self.log.grow_internal(&topic.name, topic.partitions)?;
            let record = Record::Created { topic: topic.name.clone(), created };
            let position = self.control.append(&Change::Put(record))?;
            take(&mut self.known, self.control.read_to(position)?);
        }
        tracing::info!("topics have grown");
        self.topology = found;
        Ok(true)
    }
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

/// The record that says that we made a topic; `None` if it is there. A topic that is not known to be ours and holds
/// something is somebody's, or our control log is gone.
fn created(topic: &InternalTopic, known: Option<&Created>, log: &mut KafkaLog) -> anyhow::Result<Option<Record>> {
    let name = &topic.name;
    let info = log.topic(name)?.with_context(|| format!("internal topic '{name}' is gone"))?;
    let topic_id = info.id.unwrap_or_default();
    match known {
        Some(known) if known.topic_id == topic_id && known.partitions == topic.partitions => Ok(None),
        Some(known) if known.topic_id == topic_id => {
            let created = Created { partitions: topic.partitions, ..known.clone() };
            Ok(Some(Record::Created { topic: name.clone(), created }))
        }
        Some(known) => bail!(
            "internal topic '{name}' was deleted and made again (topic id {topic_id}, we made {}): what it held is lost; restart the pipeline under a new name, or restore it from a savepoint",
            known.topic_id
        ),
        None => {
            for partition in 0..topic.partitions {
                let range = log.changelog_range(name, Partition(partition))?;
                if range.end > Offset(0) {
                    bail!(
                        "internal topic '{name}' holds records, but the control log does not know that we made it: another pipeline has the same prefix, or the control topic was deleted; choose another spec.kafka.internal.prefix"
                    );
                }
            }
            let created = Created { topic_id, partitions: topic.partitions, begun: topic.partitions };
            Ok(Some(Record::Created { topic: name.clone(), created }))
        }
    }
}

fn plan_fingerprint(plan: &Plan) -> anyhow::Result<u64> {
    let text = serde_json::to_vec(plan).context("write the plan")?;
    Ok(millrace_plan::state::fnv1a(&text))
}

fn read_assignment(path: &Path) -> anyhow::Result<Assignment> {
    let text = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("read {}", path.display()))
}

fn log_config(config: &WorkerConfig, lane: LaneId) -> KafkaLogConfig {
    let WorkerConfig { plan, connection, internal, .. } = config;
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

#[expect(clippy::disallowed_methods, reason = "the thread is joined by `run`")]
fn spawn(
    config: &WorkerConfig,
    id: LaneId,
    (plan, topology): (PlanStamp, &Topology),
    metrics: &Arc<Metrics>,
    stop: &Arc<AtomicBool>,
) -> anyhow::Result<Running> {
    let (sender, shares) = sync_channel(SHARES_MAX);
    let (log_config, connection, internal) = (log_config(config, id), config.connection.clone(), config.internal);
    let (compiled, engine, metrics) = (Arc::clone(&config.plan), config.engine.clone(), Arc::clone(metrics));
    let (managed, topology) = (config.assignment.is_some(), topology.clone());
    let (ready, told) = (Arc::new(AtomicBool::new(false)), Arc::clone(stop));
    let shown = Arc::clone(&ready);
    let work = move || -> anyhow::Result<()> {
        let names = Names::new(&compiled.prefix, TIMELINE);
        let control = ControlTopic::open(&connection, &names.control(), &internal)?;
        let engine = Engine::open(Arc::clone(&compiled), topology, KafkaLog::open(log_config)?, engine, metrics)?;
        let incarnation = Incarnation(getrandom::u64().context("draw a random number")?);
        let identity = lane::Identity { prefix: compiled.prefix.clone(), lane: id, incarnation, plan, managed };
        Ok(Lane::new(identity, engine, control, shares, shown).run(&told)?)
    };
    let thread = std::thread::Builder::new().name(format!("lane-{}", id.lane)).spawn(work).context("start a lane")?;
    Ok(Running { lane: id, thread, shares: sender, ready })
}

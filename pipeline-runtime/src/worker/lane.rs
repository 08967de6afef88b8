//! A lane under the ownership protocol: what [`ownership::Lane`] decides, done against Kafka.
//!
//! The core says what to do, in order; the engine runs the tasks that the core let run. Events go in, actions come out,
//! and nothing here decides anything but when to try again. A state that has far to go to its changelog's end is brought
//! there by [`Restorers`], while the lane's other tasks go on; the lane reads what is left.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};

use millrace_core::control::{Change, Incarnation, LaneId, PlanStamp};
use millrace_core::ids::{Epoch, Generation, Offset, TaskId};
use millrace_core::ownership::{self, Action, Event, ExitReason, Rules, StopReason};
use millrace_core::report::{TaskReport, TaskState};

use super::restorer::{Restorers, Taken};
use super::snapshots::{Found, Look, Running, Snapshots};
use crate::clock;
use crate::engine::restore::Known;
use crate::engine::topology::Topology;
use crate::engine::{Engine, EngineError, Step, chain};
use crate::log::kafka::connection::Connection;
use crate::log::kafka::control::ControlTopic;
use crate::log::kafka::{Fence, KafkaLog};
use crate::log::{Log, LogError};
use crate::snapshot::Origin;

/// How long a task waits for its last owner's release before it is taken without one.
const HAND_OVER_MS: u64 = 5_000;
/// How long a lane waits for another one to fence a third.
const FENCE_MS: u64 = 10_000;
/// How often the control log is looked at while nothing waits for it.
const FOLLOW_MS: u64 = 50;
/// And while a task does: for its release, or for somebody who fences.
const FOLLOW_CLOSELY_MS: u64 = 5;
/// How often records that nobody needs any more are removed from the control log.
const COMPACT_MS: u64 = 60_000;
/// Pause before something is tried again that failed in passing.
const RETRY_MS: u64 = 200;
/// Pause before a changelog is read again whose marker is on its way.
const MARKER_MS: u64 = 10;
/// How often a lane asks for a state that is being brought level.
const LEVEL_MS: u64 = 10;

/// An assignment as a lane sees it.
#[derive(Clone, Debug)]
pub struct Share {
    pub generation: Generation,
    pub tasks: Vec<TaskId>,
    /// As the worker has last seen it.
    pub topology: Topology,
    pub drain: bool,
    /// See [`millrace_core::assignment::Assignment`].
    pub accepts: Vec<String>,
    pub commit_interval_ms: u64,
    /// A savepoint is being made.
    pub cut: bool,
}

/// What a lane is told while it runs.
#[derive(Debug)]
pub enum Told {
    Share(Share),
    /// The cluster is to be reached in another way from now on. With the number of the connection.
    Connection(Connection, u64),
    /// How many records of streams it may read in a second from now on; `None`: as many as it can.
    Rate(Option<u64>),
}

/// What a lane tells its worker.
#[derive(Clone, Debug, Default)]
pub struct LaneState {
    /// Of the last assignment that it has taken up.
    pub generation: Generation,
    /// Every task that was assigned runs.
    pub ready: bool,
    pub tasks: Vec<TaskReport>,
    /// What stopped tasks.
    pub messages: Vec<String>,
    /// The generation whose drain is done.
    pub drained: Option<Generation>,
    /// The number of the connection that it has taken up.
    pub connection: u64,
}

pub type Shown = Arc<Mutex<LaneState>>;

#[derive(Debug, thiserror::Error)]
pub enum LaneError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(
        "another process runs as lane {0} of this pipeline and is newer: two processes must not have the same worker number; this one ends"
    )]
    NewerIncarnation(LaneId),
    /// What stopped each task.
    #[error("no task is left in lane {lane}: {}", .reasons.join("; "))]
    NoTaskLeft { lane: LaneId, reasons: Vec<String> },
}

/// Who a lane is.
pub struct Identity {
    pub prefix: String,
    pub lane: LaneId,
    pub incarnation: Incarnation,
    pub plan: PlanStamp,
    /// Without tasks it stays, since an operator may give it some.
    pub managed: bool,
    /// The number of the connection that it has now.
    pub connection: u64,
}

pub struct Lane {
    identity: Identity,
    core: ownership::Lane,
    engine: Engine<KafkaLog>,
    restorers: Arc<Restorers>,
    snapshots: Option<Arc<Snapshots>>,
    /// What the snapshots' thread was told of.
    looked: Running,
    control: ControlTopic,
    queue: VecDeque<Action>,
    /// What is to be done at a time, steady milliseconds.
    later: Vec<(u64, Then)>,
    fence: Option<Fence>,
    told: Receiver<Told>,
    shown: Shown,
    assigned: bool,
    /// Of the last assignment.
    generation: Generation,
    /// Of the last assignment that drains.
    draining: Option<Generation>,
    drained: Option<Generation>,
    /// Why tasks were stopped.
    reasons: BTreeMap<TaskId, String>,
    last_follow_ms: u64,
}

enum Then {
    Do(Action),
    Tell(Event),
    /// Asks for a state again.
    Take(TaskId, Epoch),
}

impl Lane {
    pub fn new(
        identity: Identity,
        engine: Engine<KafkaLog>,
        (restorers, snapshots): (Arc<Restorers>, Option<Arc<Snapshots>>),
        control: ControlTopic,
        (told, shown): (Receiver<Told>, Shown),
    ) -> Self {
        let core = ownership::Lane::new(identity.lane, identity.incarnation, identity.plan, Rules::ALL);
        Self {
            identity,
            core,
            engine,
            restorers,
            snapshots,
            looked: Running::default(),
            control,
            queue: VecDeque::new(),
            later: Vec::new(),
            fence: None,
            told,
            shown,
            assigned: false,
            generation: Generation(0),
            draining: None,
            drained: None,
            reasons: BTreeMap::new(),
            last_follow_ms: 0,
        }
    }

    /// Runs until it is told to stop and has released everything, or cannot go on.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<(), LaneError> {
        let mut leaving = false;
        self.then(COMPACT_MS, Then::Tell(Event::Compact));
        self.tell(Event::Started);
        loop {
            if stop.load(Ordering::Relaxed) && !leaving {
                leaving = true;
                self.tell(Event::Leave);
            }
            self.hear()?;
            while let Some(action) = self.queue.pop_front() {
                if let Action::Exit(reason) = action {
                    return self.exit(reason);
                }
                self.act(action)?;
            }
            if self.assigned && self.core.is_empty() && !leaving && !self.identity.managed {
                let reasons = self.messages();
                return Err(LaneError::NoTaskLeft { lane: self.identity.lane, reasons });
            }
            self.step()?;
        }
    }

    fn exit(&self, reason: ExitReason) -> Result<(), LaneError> {
        match reason {
            ExitReason::Left => Ok(()),
            ExitReason::NewerIncarnation => Err(LaneError::NewerIncarnation(self.identity.lane)),
        }
    }

    fn step(&mut self) -> Result<(), LaneError> {
        match self.engine.step()? {
            Step::Busy => {}
            Step::Committed => self.tell(Event::Committed),
            Step::Idle(ms) => {
                let now = clock::steady_ms();
                let next = self.later.iter().map(|(at, _)| at.saturating_sub(now)).min().unwrap_or(ms);
                let follow_ms = self.follow_ms();
                self.engine.log().wait(ms.min(next).clamp(1, follow_ms));
            }
            Step::Finished => self.engine.log().wait(FOLLOW_MS),
            Step::Lost(error) => {
                tracing::warn!(lane = %self.identity.lane, error = chain(&error), "the producer is lost; its id is taken anew");
                self.lost();
            }
        }
        for (task, last) in self.engine.take_finished()? {
            self.tell(Event::Finished { task, last });
        }
        for (task, committed) in self.engine.take_failed() {
            self.queue.retain(|action| *action != Action::Finish(task.clone()));
            self.tell(Event::Failed { task, committed });
        }
        for (task, error) in self.engine.take_faults() {
            let why = chain(&error);
            self.reasons.insert(task, why);
        }
        Ok(())
    }

    fn follow_ms(&self) -> u64 {
        if self.core.settled() { FOLLOW_MS } else { FOLLOW_CLOSELY_MS }
    }

    fn messages(&self) -> Vec<String> {
        self.reasons.iter().map(|(task, why)| format!("{task}: {why}")).collect()
    }

    fn show(&mut self) {
        let settled = self.assigned && self.core.settled();
        // For the core a task runs once it is told to; until the engine has it, nothing of it can have come out.
        let run = || self.core.states().all(|(id, _)| self.engine.runs(id));
        if self.draining.is_some() && settled && self.reasons.is_empty() && self.engine.drained() && run() {
            // Kept, though its writers say from time to time that nothing follows.
            self.drained = self.draining;
        }
        let runs = |(id, _): &(&TaskId, TaskState)| !self.reasons.contains_key(*id);
        let task =
            |(id, state): (&TaskId, TaskState)| TaskReport { stage: id.stage.clone(), partition: id.partition, state };
        let tasks = self.core.states().filter(runs).map(task).collect();
        let (generation, messages, drained) = (self.generation, self.messages(), self.drained);
        let connection = self.identity.connection;
        let state = LaneState { generation, ready: settled, tasks, messages, drained, connection };
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    fn share(&mut self, share: Share) -> Result<(), LaneError> {
        let Share { generation, tasks, topology, drain, accepts, commit_interval_ms, cut } = share;
        self.engine.set_topology(topology)?;
        self.engine.set_accepts(accepts);
        self.engine.set_commit_interval(commit_interval_ms);
        self.engine.hold_trims(cut);
        // A newer drain has newer ends, also where nothing was seen of what lay between the two.
        let again = self.draining.is_some_and(|before| before < generation);
        if (again || !drain) && self.engine.go_on()? {
            self.lost();
        }
        if drain {
            self.engine.drain();
        }
        self.assigned = true;
        if self.generation < generation {
            self.generation = generation;
            self.drained = None;
            let Self { reasons, engine, .. } = self;
            reasons.retain(|task, _| engine.stopped(task));
        }
        self.draining = drain.then_some(generation);
        self.tell(Event::Assigned { generation, tasks });
        Ok(())
    }

    /// Whatever the engine still had to answer is void, and the core asks again.
    fn lost(&mut self) {
        let void = |action: &Action| matches!(action, Action::ReadTail { .. } | Action::Run(_) | Action::Finish(_));
        self.queue.retain(|action| !void(action));
        self.later.retain(|(_, then)| match then {
            Then::Do(action) => !void(action),
            Then::Take(..) => false,
            Then::Tell(_) => true,
        });
        self.tell(Event::Lost);
    }

    /// Takes new clients under the same transactional id, and goes on as after a loss.
    fn reconnect(&mut self, connection: &Connection, number: u64) -> Result<(), LaneError> {
        self.engine.suspend()?;
        self.engine.log().reconnect(connection)?;
        self.control.reconnect(connection)?;
        tracing::info!(lane = %self.identity.lane, "new clients");
        self.identity.connection = number;
        self.lost();
        Ok(())
    }

    fn tell(&mut self, event: Event) {
        let actions = self.core.on(event);
        if let Some(exit @ Action::Exit(_)) = actions.last() {
            self.queue.clear();
            self.queue.push_back(exit.clone());
            return;
        }
        self.queue.extend(actions);
    }

    fn then(&mut self, ms: u64, then: Then) {
        self.later.push((clock::steady_ms() + ms, then));
    }

    /// Takes in what has happened outside.
    fn hear(&mut self) -> Result<(), LaneError> {
        while let Ok(told) = self.told.try_recv() {
            match told {
                Told::Share(share) => self.share(share)?,
                Told::Connection(connection, number) => self.reconnect(&connection, number)?,
                Told::Rate(rate) => self.engine.set_records_per_second(rate),
            }
        }
        let now = clock::steady_ms();
        let (due, later) = std::mem::take(&mut self.later).into_iter().partition(|(at, _)| *at <= now);
        self.later = later;
        for (_, then) in Vec::from_iter::<Vec<(u64, Then)>>(due) {
            match then {
                Then::Do(action) => self.queue.push_back(action),
                Then::Tell(Event::Compact) => {
                    self.then(COMPACT_MS, Then::Tell(Event::Compact));
                    self.tell(Event::Compact);
                }
                Then::Tell(event) => self.tell(event),
                Then::Take(task, needed) => self.read_tail(task, needed)?,
            }
        }
        if let Some(fence) = &self.fence {
            match fence.outcome() {
                None => {}
                Some(Ok(())) => {
                    let lane = fence.lane;
                    self.fence = None;
                    self.tell(Event::Fenced(lane));
                }
                Some(Err(error)) => {
                    let lane = fence.lane;
                    self.fence = None;
                    tracing::warn!(%lane, error = chain(&error), "fencing has failed and is tried again");
                    self.then(RETRY_MS, Then::Do(Action::Fence(lane)));
                }
            }
        }
        if now.saturating_sub(self.last_follow_ms) >= self.follow_ms() {
            self.last_follow_ms = now;
            self.show();
            self.look_after_snapshots()?;
            let entries = self.control.read()?;
            self.read(entries);
        }
        Ok(())
    }

    fn look_after_snapshots(&mut self) -> Result<(), LaneError> {
        let Some(snapshots) = &self.snapshots else { return Ok(()) };
        for left in self.looked.now(self.engine.running().map(|task| task.id.clone()).collect()) {
            snapshots.forget(&left);
        }
        let (mut touch, mut trims) = (Vec::new(), Vec::new());
        for task in self.engine.running() {
            let look = Look { task: &task.id, bytes: task.changelog_bytes, epoch: task.committed() };
            match snapshots.look(&look) {
                Found::Nothing => {}
                Found::Touch => touch.push(task.id.clone()),
                Found::Trim(before) => trims.push((task.changelog.clone(), task.id.partition, before)),
                Found::Wanted => {
                    let changelog = self.core.log().created(&task.changelog);
                    let changelog = changelog.map(|created| created.topic_id.clone()).unwrap_or_default();
                    let origin = Origin { task: task.id.clone(), timeline: self.identity.lane.timeline, changelog };
                    snapshots.offer(&look, origin, task.state.checkpoints());
                }
            }
        }
        touch.iter().for_each(|id| self.engine.touch(id));
        for (changelog, partition, before) in trims {
            self.engine.log().trim(&changelog, partition, before)?;
        }
        Ok(())
    }

    fn read(&mut self, entries: Vec<(Offset, Change)>) {
        if !entries.is_empty() {
            self.tell(Event::Read { entries, next: self.control.next() });
        }
    }

    fn act(&mut self, action: Action) -> Result<(), LaneError> {
        tracing::debug!(lane = %self.identity.lane, ?action);
        match action {
            Action::Initialise => match self.engine.log().initialise() {
                Ok(()) => self.tell(Event::Initialised),
                Err(error) if error.passes() => {
                    tracing::warn!(error = chain(&error), "the transactional id is not taken yet");
                    self.then(RETRY_MS, Then::Do(Action::Initialise));
                }
                Err(error) => return Err(error.into()),
            },
            Action::Append(change) => {
                let position = self.control.append(&change)?;
                self.tell(Event::Appended { change, position });
            }
            Action::ReadControlTo(position) => {
                let entries = self.control.read_to(position)?;
                // Even with nothing new it is told how far the log was read.
                self.tell(Event::Read { entries, next: self.control.next() });
            }
            Action::AwaitRelease(task) => self.then(HAND_OVER_MS, Then::Tell(Event::HandOverOverdue(task))),
            Action::AwaitFence(lane) => self.then(FENCE_MS, Then::Tell(Event::FenceOverdue(lane))),
            Action::Fence(lane) => {
                tracing::warn!(%lane, "fencing a lane that has not released its tasks");
                let id = transactional_id(&self.identity.prefix, lane);
                self.fence = Some(self.engine.log().fence(lane, &id)?);
            }
            Action::ReadTail { task, needed } => self.read_tail(task, needed)?,
            Action::Run(claim) => match self.engine.run_task(&claim.task, claim.generation) {
                Ok(()) => {}
                Err(error) if error.passes() => {
                    tracing::warn!(task = %claim.task, error = chain(&error), "the task does not run yet");
                    self.then(RETRY_MS, Then::Do(Action::Run(claim)));
                }
                Err(error) => return Err(error.into()),
            },
            Action::Finish(task) => self.engine.finish(&task),
            Action::Close(task) => self.close(&task),
            Action::Stop { task, reason } => self.stop(&task, &reason),
            // The loop takes it.
            Action::Exit(_) => {}
        }
        Ok(())
    }

    fn read_tail(&mut self, task: TaskId, needed: Epoch) -> Result<(), LaneError> {
        let changelog = self.engine.names().changelog(&task.stage);
        let created = self.core.log().created(&changelog);
        if !self.engine.holds(&task) {
            match self.restorers.take(&task, created, needed) {
                Taken::State(state) => self.engine.hold(task.clone(), *state),
                Taken::NotYet => {
                    self.then(LEVEL_MS, Then::Take(task, needed));
                    return Ok(());
                }
                Taken::Refused(why) => {
                    self.refuse(task, why);
                    return Ok(());
                }
            }
        }
        match self.engine.restore(&task, Some(Known { created, needed: Some(needed) })) {
            Ok(last) if last < needed => {
                tracing::debug!(%task, %last, %needed, "a marker is on its way");
                self.then(MARKER_MS, Then::Do(Action::ReadTail { task, needed }));
            }
            Ok(last) => self.tell(Event::TailRead { task, last }),
            Err(error) if error.passes() => {
                tracing::warn!(%task, error = chain(&error), "the task's state is not restored yet");
                self.then(RETRY_MS, Then::Do(Action::ReadTail { task, needed }));
            }
            Err(error) => self.refuse(task, chain(&error)),
        }
        Ok(())
    }

    fn refuse(&mut self, task: TaskId, why: String) {
        tracing::error!(%task, error = why, "the task's state cannot be restored");
        self.reasons.insert(task.clone(), why);
        self.tell(Event::TailRefused(task));
    }

    /// Another lane of this process may open the same files.
    fn close(&mut self, task: &TaskId) {
        let void = |action: &Action| matches!(action, Action::ReadTail { task: id, .. } if id == task);
        self.queue.retain(|action| !void(action));
        self.later.retain(|(_, then)| match then {
            Then::Do(action) => !void(action),
            Then::Take(id, _) => id != task,
            Then::Tell(_) => true,
        });
        self.engine.forget(task);
        self.restorers.withdraw(task);
    }

    fn stop(&mut self, task: &TaskId, reason: &StopReason) {
        let why = match reason {
            StopReason::NewerClaim(claim) => {
                format!("lane {} has claimed it in generation {}", claim.lane, claim.generation)
            }
            StopReason::NewerPlan(plan) => format!("it runs under the newer plan {}", plan.plan),
            StopReason::ClaimGone => "its claim was removed".to_owned(),
            // It was said when it was found.
            StopReason::Changelog => String::new(),
        };
        self.close(task);
        if !why.is_empty() {
            tracing::warn!(%task, why, "task is given up");
            self.reasons.insert(task.clone(), why);
        }
    }
}

/// The id under which a lane's producer writes.
pub fn transactional_id(prefix: &str, lane: LaneId) -> String {
    format!("{prefix}-{lane}")
}

//! One lane of one process: it does what the cores say, against the model of Kafka, a small step at a time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;

use millrace_core::control::{Change, Created, Incarnation, LaneId, PlanStamp};
use millrace_core::epoch::{
    ApplyPermit, ChangelogFacts, ChangelogStart, CommitOutcome, Delivery, LaneEpoch, Limit, Loss, Next, Phase,
    changelog_start,
};
use millrace_core::ids::{Epoch, Offset, TaskId};
use millrace_core::ownership::{Action, Event, ExitReason, Lane, StopReason};

use crate::broker::{Body, Broker, Marker, Refusal, Topic, Tp};
use crate::control_topic::{ControlTopic, Writer};
use crate::model::{self, Row, SOURCES, State, TASKS};
use crate::mutant::Mutant;
use crate::oracle::Violation;
use crate::rng::Rng;
use crate::trace::Trace;

pub const CHANGELOG: &str = "changelog";

/// Everything around the processes.
pub struct Env {
    pub broker: Broker,
    pub control: ControlTopic,
    pub rng: Rng,
    pub trace: Trace,
    pub mutant: Option<Mutant>,
    /// In a thousand: an answer to a commit that does not come, or a write to the disk that fails.
    pub unknown: u32,
    pub disk_full: u32,
    /// In a thousand: an epoch that is given up at its end, though no row of it is to blame.
    pub mishap: u32,
    /// Lanes abort by themselves; see [`Env::readable`].
    pub aborts: bool,
    /// In a thousand: an epoch is closed although there is more to read.
    pub close: u32,
    /// In a thousand: a lane that could read a row does.
    pub work: u32,
    /// In a thousand: the answer to a fence does not come yet.
    pub slow_fence: u32,
    /// In a thousand: a lane's first initialisation does not come to be yet.
    pub slow_birth: u32,
    /// EndTxn requests whose client has given up; they may still arrive.
    pub late: Vec<(LaneId, u32, u64)>,
}

impl Env {
    /// Whether a tail can be read to its end, which is where nothing is open: while the markers of an abort are on their
    /// way, nobody sees the epochs that later owners have committed behind it. Where nobody aborts, the last stable offset
    /// is the end, so that there the epoch that a release names is all there is to rely on.
    fn readable(&self, tp: Tp) -> bool {
        !self.aborts || self.mutant == Some(Mutant::TailEndsAtStableOffset) || !self.broker.is_open(tp)
    }
}

/// A task's RocksDB.
#[derive(Clone, Default)]
pub struct Local {
    pub state: State,
    pub epoch: u64,
    next: usize,
    /// How far the changelog was read.
    read: usize,
}

/// A task that runs.
struct Running {
    epoch: u64,
    generation: u64,
    from: usize,
    next: usize,
    overlay: State,
}

struct Commit {
    txn: u64,
    arrived: Option<Result<(), Refusal>>,
}

pub struct SimLane {
    pub core: Lane,
    writer: Writer,
    epoch: LaneEpoch,
    pub disk: Vec<Local>,
    actions: VecDeque<Action>,
    /// Appends on their way to the control topic, with their sequence numbers, and the answers on their way back.
    pub outbox: VecDeque<(u64, Change)>,
    pub acks: VecDeque<(Change, Offset)>,
    appends: u64,
    pub producer: Option<u32>,
    /// Has initialised its id at least once.
    born: bool,
    running: BTreeMap<usize, Running>,
    finishing: BTreeSet<usize>,
    permits: VecDeque<(ApplyPermit, State, usize)>,
    commit: Option<Commit>,
    rejected: bool,
    /// The lane that is being fenced is; the answer is on its way.
    fenced: bool,
    /// Only in the mutant that commits the marker apart.
    stash: Vec<(Tp, Body)>,
    pub timers: Vec<Event>,
    pub refused: BTreeSet<usize>,
    pub exited: Option<ExitReason>,
}

fn input(task: usize) -> Tp {
    if task < SOURCES { Tp(Topic::Source, task) } else { Tp(Topic::Between, task - SOURCES) }
}

impl SimLane {
    pub fn new(id: LaneId, life: u64, writer: Writer, disk: Vec<Local>, mutant: Option<Mutant>) -> Self {
        let plan = PlanStamp { plan: 1, fingerprint: 1, state_format: 1 };
        let mut core = Lane::new(id, Incarnation(life), plan, Mutant::rules(mutant));
        let actions = core.on(Event::Started).into();
        Self {
            core,
            writer,
            epoch: LaneEpoch::default(),
            disk,
            actions,
            outbox: VecDeque::new(),
            acks: VecDeque::new(),
            appends: 0,
            producer: None,
            born: false,
            running: BTreeMap::new(),
            finishing: BTreeSet::new(),
            permits: VecDeque::new(),
            commit: None,
            rejected: false,
            fenced: false,
            stash: Vec::new(),
            timers: Vec::new(),
            refused: BTreeSet::new(),
            exited: None,
        }
    }

    pub fn tell(&mut self, event: Event) {
        let actions = self.core.on(event);
        // Whatever is still to be done before it is not done any more.
        if let Some(Action::Exit(reason)) = actions.last() {
            self.exited = Some(*reason);
        }
        self.actions.extend(actions);
    }

    /// Nothing to do, nothing in flight.
    pub fn idle(&self) -> bool {
        self.actions.is_empty() && self.outbox.is_empty() && self.acks.is_empty() && self.permits.is_empty()
    }

    /// Tombstones are on their way.
    pub fn compacts(&self) -> bool {
        let forgets = |change: &Change| matches!(change, Change::Forget(_));
        self.outbox.iter().any(|(_, change)| forgets(change))
            || self.actions.iter().any(|action| matches!(action, Action::Append(change) if forgets(change)))
    }

    pub fn runs(&self) -> impl Iterator<Item = usize> {
        self.running.keys().copied()
    }

    /// What a crash leaves behind on its way: an EndTxn request that may still arrive.
    pub fn crash(&mut self, env: &mut Env) {
        if let (Some(Commit { txn, arrived: None }), Some(epoch)) = (self.commit.take(), self.producer) {
            env.late.push((self.core.id(), epoch, txn));
        }
    }

    /// One small step; `follows` in a thousand are for the control log although nothing waits for it.
    pub fn step(&mut self, env: &mut Env, follows: u32) {
        if self.exited.is_some() {
            return;
        }
        if let Some((change, position)) = self.acks.pop_front() {
            env.trace.line(format_args!("{} knows of {position}", self.core.id()));
            self.tell(Event::Appended { change, position });
        } else if self.commit.is_some() {
            self.wait_for_commit(env);
        } else if env.rng.per_mille(follows) {
            self.read_control(env);
        } else if let Some(action) = self.actions.front().cloned() {
            if env.rng.per_mille(300) && !self.running.is_empty() {
                self.work(env);
            } else {
                self.act(action, env);
            }
        } else {
            self.work(env);
        }
    }

    fn read_control(&mut self, env: &mut Env) {
        let next = self.core.log().next();
        let ahead = (env.control.end().0 - next.0) as usize;
        if ahead > 0 {
            let to = Offset(next.0 + 1 + env.rng.below(ahead) as i64);
            env.trace.line(format_args!("{} reads to {to}", self.core.id()));
            self.tell(Event::Read { entries: env.control.read(next, to), next: to });
        }
    }

    fn act(&mut self, action: Action, env: &mut Env) {
        let id = self.core.id();
        let done = match action.clone() {
            Action::Initialise if !self.born && env.rng.per_mille(env.slow_birth) => false,
            Action::Initialise => env.broker.initialise(id).map(|epoch| self.producer = Some(epoch)).is_ok(),
            Action::Fence(lane) => self.fence(lane, env),
            Action::ReadControlTo(to) => {
                self.read_control(env);
                self.core.log().next() > to
            }
            Action::ReadTail { task, .. } => env.readable(Tp(Topic::Changelog, model::index(&task))),
            _ => true,
        };
        if !done {
            return;
        }
        self.actions.pop_front();
        env.trace.line(format_args!("{id}/{:x} {action:?}", self.writer.0));
        match action {
            Action::Initialise => {
                self.born = true;
                self.tell(Event::Initialised);
            }
            Action::Fence(lane) => self.tell(Event::Fenced(lane)),
            Action::Append(change) => {
                self.appends += 1;
                self.outbox.push_back((self.appends, change));
            }
            Action::ReadControlTo(_) => {}
            Action::AwaitRelease(task) => self.timers.push(Event::HandOverOverdue(task)),
            Action::AwaitFence(lane) => self.timers.push(Event::FenceOverdue(lane)),
            Action::ReadTail { task, needed } => self.read_tail(task, needed, env),
            Action::Run(claim) => self.run(&claim.task, claim.generation.0, env),
            Action::Finish(task) => drop(self.finishing.insert(model::index(&task))),
            Action::Stop { task, reason: StopReason::Changelog } => drop(self.refused.insert(model::index(&task))),
            Action::Stop { .. } => {}
            Action::Exit(_) => {}
        }
    }

    /// A fence works from some moment on; that its client knows takes longer.
    fn fence(&mut self, lane: LaneId, env: &mut Env) -> bool {
        if self.fenced {
            self.fenced = env.rng.per_mille(env.slow_fence);
            return !self.fenced;
        }
        self.fenced = env.broker.initialise(lane).is_ok();
        false
    }

    /// Brings the local state level with the visible changelog.
    fn read_tail(&mut self, task: TaskId, needed: Epoch, env: &mut Env) {
        let index = model::index(&task);
        let tp = Tp(Topic::Changelog, index);
        let last =
            env.broker.visible(tp).iter().rev().find_map(|b| if let Body::Marker(m) = b { Some(*m) } else { None });
        let local = &mut self.disk[index];
        let log_start = env.broker.log_start(tp);
        let facts = ChangelogFacts {
            topic: CHANGELOG,
            topic_id: &env.broker.changelog_id.to_string(),
            partitions: TASKS as i32,
            log_start: Offset(log_start as i64),
            last_marker: last.map(|marker| Epoch(marker.epoch)),
            local: (local.epoch > 0 && local.read >= log_start).then_some(Epoch(local.epoch)),
            stateful: true,
            needed,
        };
        let created: Option<&Created> = self.core.log().created(CHANGELOG);
        match changelog_start(created, &facts) {
            Ok(ChangelogStart::AfterWithoutLocal(_)) => {
                env.broker.audit.report(Violation::LocalState { task: index, epoch: local.epoch });
                *local = Local::default();
            }
            Ok(_) => {}
            Err(_) if env.mutant == Some(Mutant::NoMarkerIsNew) => *local = Local::default(),
            Err(error) => {
                env.trace.line(format_args!("{}: {error}", self.core.id()));
                return self.tell(Event::TailRefused(task));
            }
        }
        let mut open = State::new();
        while let Some((at, body)) = env.broker.fetch(tp, local.read) {
            local.read = at + 1;
            match body {
                Body::State(key, value) => drop(open.insert(key, value)),
                // What the local state has already is not put back to an older value.
                Body::Marker(marker) if marker.epoch <= local.epoch => open.clear(),
                Body::Marker(marker) => {
                    local.state.append(&mut open);
                    (local.epoch, local.next) = (marker.epoch, marker.next);
                }
                Body::Row(..) | Body::Control => {}
            }
        }
        let last = last.map_or(Epoch(0), |marker| Epoch(marker.epoch));
        self.tell(Event::TailRead { task, last });
    }

    fn run(&mut self, task: &TaskId, generation: u64, env: &mut Env) {
        let index = model::index(task);
        let local = &self.disk[index];
        let from = match env.mutant {
            Some(Mutant::TrustsGroupOffsets) => env.broker.group_offset(index),
            _ => local.next,
        };
        let resolution = self.epoch.run(task.clone(), Epoch(local.epoch));
        env.trace.line(format_args!("{} runs {task} after epoch {}: {resolution:?}", self.core.id(), local.epoch));
        let running = Running { epoch: local.epoch, generation, from, next: from, overlay: State::new() };
        self.running.insert(index, running);
    }

    fn work(&mut self, env: &mut Env) {
        if self.producer.is_none() && env.mutant == Some(Mutant::GoesOnAfterTimeOut) && !self.running.is_empty() {
            self.producer = env.broker.initialise(self.core.id()).ok();
        }
        let phase = self.epoch.phase();
        let mishap = if phase == Phase::Draining { env.mishap } else { env.mishap / 20 };
        match phase {
            // The brokers restart, or a task fails by its own fault: nobody's row is to blame.
            Phase::Open | Phase::Draining if self.producer.is_some() && env.rng.per_mille(mishap) => {
                self.give_up_epoch(env)
            }
            Phase::Open => {
                let leaving =
                    self.finishing.iter().copied().find_map(|t| Some((t, self.epoch.leave(&model::task(t))?)));
                if let Some((index, last)) = leaving {
                    self.finishing.remove(&index);
                    self.running.remove(&index);
                    self.tell(Event::Finished { task: model::task(index), last });
                } else if self.producer.is_some() && !self.running.is_empty() && env.rng.per_mille(env.work) {
                    let early = env.rng.per_mille(env.close);
                    let worked = !early && self.process(env);
                    let ended = !worked && self.close(env);
                    if !early && !worked && !ended {
                        self.epoch.skip_part();
                    }
                }
            }
            Phase::Draining => {
                let delivery = if mem::take(&mut self.rejected) { Delivery::Rejected } else { Delivery::Complete };
                let next = self.epoch.delivered(delivery).expect("the phase was looked at");
                self.follow(next, env);
            }
            Phase::Committing => {}
            Phase::Applying => self.apply(env),
        }
    }

    fn give_up_epoch(&mut self, env: &mut Env) {
        let running: Vec<usize> = self.running.keys().copied().collect();
        if self.running.values().all(|run| run.next == run.from) {
            return;
        }
        let failing = match self.epoch.phase() {
            Phase::Open => running.get(env.rng.below(running.len() + 1)).copied(),
            _ => None,
        };
        if !self.abort(env) {
            return;
        }
        let Some(index) = failing else {
            return self.epoch.rewound().expect("the phase was looked at");
        };
        let (task, committed) = (model::task(index), Epoch(self.running[&index].epoch));
        env.trace.line(format_args!("{} {task} fails", self.core.id()));
        self.epoch.abandon(&task).expect("the phase was looked at");
        self.failed(task, committed);
    }

    /// Takes one row of some task into the open epoch; false when there is none.
    fn process(&mut self, env: &mut Env) -> bool {
        let (id, producer) = (self.core.id(), self.producer.unwrap_or_default());
        let tasks: Vec<usize> = self.running.keys().copied().filter(|t| !self.finishing.contains(t)).collect();
        let first = if tasks.is_empty() { 0 } else { env.rng.below(tasks.len()) };
        for index in tasks[first..].iter().chain(&tasks[..first]).copied() {
            let Some(running) = self.running.get_mut(&index) else { continue };
            let Some((at, Body::Row(row, _))) = env.broker.fetch(input(index), running.next) else { continue };
            let (task, offset) = (model::task(index), Offset(at as i64));
            match self.epoch.limit(&task, 0) {
                Limit::Nothing => continue,
                Limit::Below(to) if offset >= to => continue,
                Limit::Below(_) | Limit::Free => {}
            }
            match env.broker.begin(id, producer) {
                Err(Refusal::Busy) => return true,
                Err(refusal) => {
                    self.refused(refusal, env);
                    return true;
                }
                Ok(_) => {}
            }
            self.epoch.read(&task, 0, offset, Offset(at as i64 + 1)).expect("the phase was looked at");
            running.next = at + 1;
            let by = Some((index, running.epoch + 1));
            let (to, out) = if self.epoch.condemned(&task, 0, offset) {
                (Tp(Topic::Dead, 0), row)
            } else {
                let before = running.overlay.get(&row.key).or(self.disk[index].state.get(&row.key));
                let value = model::fold(before.copied().unwrap_or_default(), row.value);
                running.overlay.insert(row.key, value);
                let topic = if index < SOURCES { Topic::Between } else { Topic::Out };
                (Tp(topic, model::between(row.key)), Row { value, ..row })
            };
            if row.poison && to.0 != Topic::Dead {
                self.rejected = true;
            } else {
                env.broker.produce(id, producer, to, Body::Row(out, by)).expect("the transaction has just begun");
            }
            env.trace.line(format_args!("{id} {task} row {} at {at} -> {to:?}", row.uid));
            return true;
        }
        false
    }

    /// False when there was nothing to close.
    fn close(&mut self, env: &mut Env) -> bool {
        let (id, producer) = (self.core.id(), self.producer.unwrap_or_default());
        let epochs = self.epoch.close().expect("the phase was looked at");
        let mut records = Vec::new();
        for (task, epoch) in &epochs {
            let index = model::index(task);
            let Some(run) = self.running.get(&index) else { continue };
            let marker =
                Marker { task: index, epoch: epoch.0, generation: run.generation, from: run.from, next: run.next };
            let tp = Tp(Topic::Changelog, index);
            records.extend(run.overlay.iter().map(|(key, value)| (tp, Body::State(*key, *value))));
            records.push((tp, Body::Marker(marker)));
            if env.mutant == Some(Mutant::AppliesBeforeCommit) {
                self.disk[index].state.extend(&run.overlay);
                (self.disk[index].epoch, self.disk[index].next) = (epoch.0, run.next);
            }
            if let Err(refusal) = env.broker.send_offset(id, producer, index, run.next) {
                self.refused(refusal, env);
                return true;
            }
        }
        if env.mutant == Some(Mutant::MarkerInOwnTransaction) {
            self.stash = mem::take(&mut records);
        }
        for (tp, body) in records {
            if let Err(refusal) = env.broker.produce(id, producer, tp, body) {
                self.refused(refusal, env);
                return true;
            }
        }
        if !epochs.is_empty() {
            env.trace.line(format_args!("{id} closes {epochs:?}"));
        }
        !epochs.is_empty()
    }

    fn follow(&mut self, next: Next, env: &mut Env) {
        match next {
            Next::Commit => match env.broker.begin(self.core.id(), self.producer.unwrap_or_default()) {
                Ok(txn) => self.commit = Some(Commit { txn, arrived: None }),
                Err(refusal) => self.refused(refusal, env),
            },
            Next::Apply(permits) => {
                self.tell(Event::Committed);
                for permit in permits {
                    let index = model::index(permit.task());
                    let Some(run) = self.running.get_mut(&index) else { continue };
                    (run.epoch, run.from) = (permit.epoch().0, run.next);
                    self.permits.push_back((permit, mem::take(&mut run.overlay), run.next));
                }
            }
            Next::Abort => drop(self.abort(env)),
            Next::AbortAndStop(task) => {
                env.broker.audit.report(Violation::GoodRowGivenUp { task: model::index(&task) });
            }
            Next::Recover => self.recover(),
        }
    }

    /// Aborts the transaction and goes back to where it began; false when the producer is lost.
    fn abort(&mut self, env: &mut Env) -> bool {
        let (id, producer) = (self.core.id(), self.producer.unwrap_or_default());
        let aborted = env.broker.begin(id, producer).and_then(|txn| env.broker.end(id, producer, txn, false));
        env.trace.line(format_args!("{id} aborts: {aborted:?}"));
        match aborted {
            Err(refusal) if env.mutant != Some(Mutant::UnknownIsAborted) => self.refused(refusal, env),
            _ => self.rewind(),
        }
        self.producer.is_some()
    }

    fn rewind(&mut self) {
        self.rejected = false;
        self.stash.clear();
        for run in self.running.values_mut() {
            run.overlay.clear();
            run.next = run.from;
        }
    }

    fn wait_for_commit(&mut self, env: &mut Env) {
        let (id, producer) = (self.core.id(), self.producer.unwrap_or_default());
        let Some(mut commit) = self.commit.take() else { return };
        let gives_up = env.rng.per_mille(env.unknown);
        let outcome = match commit.arrived {
            None if gives_up => {
                env.late.push((id, producer, commit.txn));
                CommitOutcome::Unknown
            }
            None => {
                commit.arrived = Some(env.broker.end(id, producer, commit.txn, true));
                env.trace.line(format_args!("{id} commit arrives: {:?}", commit.arrived));
                self.commit = Some(commit);
                return;
            }
            Some(_) if gives_up => CommitOutcome::Unknown,
            Some(Ok(())) => CommitOutcome::Committed,
            Some(Err(Refusal::TimedOut)) => return self.lost(Loss::TimedOut, env),
            Some(Err(_)) => CommitOutcome::Fenced,
        };
        env.trace.line(format_args!("{id} commit: {outcome:?}"));
        if outcome == CommitOutcome::Committed && !self.stash.is_empty() {
            return self.commit_stash(commit, env);
        }
        let believed = match (outcome, env.mutant) {
            (CommitOutcome::Unknown, Some(Mutant::UnknownIsCommitted)) => CommitOutcome::Committed,
            (CommitOutcome::Unknown, Some(Mutant::UnknownIsAborted)) => CommitOutcome::Rejected,
            _ => outcome,
        };
        let next = self.epoch.commit_returned(believed).expect("a commit is open");
        self.follow(next, env);
    }

    /// The mutant's second transaction.
    fn commit_stash(&mut self, commit: Commit, env: &mut Env) {
        let (id, producer) = (self.core.id(), self.producer.unwrap_or_default());
        match env.broker.begin(id, producer) {
            Err(Refusal::Busy) => self.commit = Some(commit),
            Err(refusal) => self.refused(refusal, env),
            Ok(txn) => {
                for (tp, body) in mem::take(&mut self.stash) {
                    env.broker.produce(id, producer, tp, body).expect("the transaction has just begun");
                }
                self.commit = Some(Commit { txn, arrived: None });
            }
        }
    }

    fn apply(&mut self, env: &mut Env) {
        let Some((permit, overlay, next)) = self.permits.pop_front() else { return };
        let (index, epoch) = (model::index(permit.task()), permit.epoch());
        if env.rng.per_mille(env.disk_full) {
            env.trace.line(format_args!("{} cannot apply epoch {epoch} of {}", self.core.id(), permit.task()));
            let task = self.epoch.apply_failed(permit);
            return self.failed(task, epoch);
        }
        let local = &mut self.disk[index];
        local.state.extend(overlay);
        (local.epoch, local.next) = (epoch.0, next);
        self.epoch.applied(permit);
        if local.epoch > env.broker.audit.last(index).epoch {
            env.broker.audit.report(Violation::LocalState { task: index, epoch: epoch.0 });
        }
    }

    /// A task is out, and restored from its tail.
    fn failed(&mut self, task: TaskId, committed: Epoch) {
        self.running.remove(&model::index(&task));
        self.finishing.remove(&model::index(&task));
        self.actions.retain(|action| *action != Action::Finish(task.clone()));
        self.tell(Event::Failed { task, committed });
    }

    fn refused(&mut self, refusal: Refusal, env: &mut Env) {
        let loss = if refusal == Refusal::TimedOut { Loss::TimedOut } else { Loss::Fenced };
        self.lost(loss, env);
    }

    fn lost(&mut self, loss: Loss, env: &mut Env) {
        env.trace.line(format_args!("{} lost: {loss:?}", self.core.id()));
        let goes_on = env.mutant == Some(Mutant::GoesOnAfterTimeOut) && loss == Loss::TimedOut;
        if goes_on && self.epoch.rewound().is_ok() {
            self.producer = None;
            return self.rewind();
        }
        let next = self.epoch.lost(loss);
        self.follow(next, env);
    }

    fn recover(&mut self) {
        self.producer = None;
        self.commit = None;
        self.rejected = false;
        self.stash.clear();
        self.running.clear();
        self.finishing.clear();
        self.permits.clear();
        self.actions.retain(|a| !matches!(a, Action::ReadTail { .. } | Action::Run(_) | Action::Finish(_)));
        self.tell(Event::Lost);
    }
}

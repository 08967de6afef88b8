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
use crate::savepoint::{Savepoints, Told};
use crate::storage::Storage;
use crate::trace::Trace;
use crate::volume::{Local, Volume};

pub const CHANGELOG: &str = "changelog";

/// Everything around the processes.
pub struct Env {
    pub broker: Broker,
    pub control: ControlTopic,
    /// The disk of each process.
    pub volumes: Vec<Volume>,
    pub storage: Storage,
    pub savepoints: Savepoints,
    /// Changelogs that cannot be continued.
    pub damaged: [bool; TASKS],
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

/// A task that runs.
struct Running {
    epoch: u64,
    generation: u64,
    from: usize,
    next: usize,
    overlay: State,
    /// The marker of the epoch that is being committed, and the offset behind it.
    closing: Option<(Marker, usize)>,
    /// The savepoint for which it is a cut.
    cut: Option<u64>,
}

/// What is to be written to a local state.
struct Committed {
    permit: ApplyPermit,
    overlay: State,
    marker: Marker,
    read: usize,
    cut: Option<u64>,
}

struct Commit {
    txn: u64,
    arrived: Option<Result<(), Refusal>>,
}

pub struct SimLane {
    pub core: Lane,
    process: usize,
    writer: Writer,
    epoch: LaneEpoch,
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
    /// The savepoint that is being made.
    told: Option<Told>,
    /// Tasks that were cut for it.
    cut: BTreeSet<usize>,
    /// Tasks that are being restored, up to the marker of an epoch.
    tails: BTreeMap<usize, Epoch>,
    permits: VecDeque<Committed>,
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
    pub fn new(id: LaneId, life: u64, process: usize, mutant: Option<Mutant>) -> Self {
        let plan = PlanStamp { plan: 1, fingerprint: 1, state_format: 1 };
        let mut core = Lane::new(id, Incarnation(life), plan, Mutant::rules(mutant));
        let actions = core.on(Event::Started).into();
        Self {
            core,
            process,
            writer: (process + 1, id.lane as usize),
            epoch: LaneEpoch::default(),
            actions,
            outbox: VecDeque::new(),
            acks: VecDeque::new(),
            appends: 0,
            producer: None,
            born: false,
            running: BTreeMap::new(),
            finishing: BTreeSet::new(),
            told: None,
            cut: BTreeSet::new(),
            tails: BTreeMap::new(),
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

    /// The tasks of these stages are to be cut by now, each once.
    pub fn told(&mut self, told: Option<Told>, env: &mut Env) {
        if told.as_ref().map(|told| told.id) != self.told.as_ref().map(|told| told.id) {
            self.cut.clear();
        }
        self.told = told;
        if env.mutant == Some(Mutant::CutsWhatIsThere) {
            for task in self.to_cut() {
                self.is_cut(task, env);
            }
        }
    }

    fn to_cut(&self) -> Vec<usize> {
        let told = self.told.iter().flat_map(|told| told.tasks.difference(&self.cut));
        told.copied().filter(|task| self.running.contains_key(task) && !self.finishing.contains(task)).collect()
    }

    fn is_cut(&mut self, index: usize, env: &mut Env) {
        if let Some(told) = &self.told {
            self.cut.insert(index);
            let local = env.volumes[self.process].dbs[index].local.clone();
            env.cut(told.id, index, &local);
        }
    }

    /// Records that a task has read between the stages, and that are behind it for good.
    pub fn trim_between(&self, env: &mut Env, heedless: bool) {
        for index in self.running.keys().filter(|index| **index >= SOURCES && (self.told.is_none() || heedless)) {
            let to = env.volumes[self.process].dbs[*index].local.marker.next;
            env.broker.trim(Tp(Topic::Between, *index - SOURCES), to);
        }
    }

    /// Nothing to do, nothing in flight.
    pub fn idle(&self) -> bool {
        let done = self.actions.is_empty() && self.tails.is_empty() && self.permits.is_empty();
        done && self.outbox.is_empty() && self.acks.is_empty()
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
        } else if !self.tails.is_empty() && env.rng.per_mille(300) {
            self.restore(env);
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
            Action::ReadTail { task, needed } => drop(self.tails.insert(model::index(&task), needed)),
            Action::Run(claim) => self.run(&claim.task, claim.generation.0, env),
            Action::Finish(task) => drop(self.finishing.insert(model::index(&task))),
            Action::Close(task) => self.close_state(model::index(&task), env),
            Action::Stop { task, reason } => {
                self.close_state(model::index(&task), env);
                if reason == StopReason::Changelog {
                    self.refused.insert(model::index(&task));
                }
            }
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

    fn close_state(&mut self, index: usize, env: &mut Env) {
        if self.tails.remove(&index).is_some() && env.mutant == Some(Mutant::AnswersAfterClosing) {
            let last = env.volumes[self.process].dbs[index].local.epoch();
            self.timers.push(Event::TailRead { task: model::task(index), last });
        }
        env.close(self.process, index, self.core.id().lane);
    }

    /// Goes on with one of the states that are to be brought level: it comes from the restorers, and the rest of the tail
    /// is read here.
    fn restore(&mut self, env: &mut Env) {
        let one = env.rng.below(self.tails.len());
        let Some((index, needed)) = self.tails.iter().nth(one).map(|(index, needed)| (*index, *needed)) else { return };
        let tp = Tp(Topic::Changelog, index);
        if !env.readable(tp) || !env.take(self.process, index, self.core.id().lane) {
            return;
        }
        if env.volumes[self.process].dbs[index].local.read <= env.broker.end_of(tp) {
            env.choose(self.process, index);
        }
        // What cannot be seen yet is not found to be missing.
        if env.broker.is_open(tp) && env.volumes[self.process].dbs[index].local.read > env.broker.stable_end(tp) {
            return;
        }
        self.tails.remove(&index);
        let local = &env.volumes[self.process].dbs[index].local;
        if env.mutant == Some(Mutant::RunsWarmCopyAsItIs) && local.epoch() >= needed {
            return self.tell(Event::TailRead { task: model::task(index), last: local.epoch() });
        }
        self.read_tail(model::task(index), needed, env);
    }

    /// Brings the local state level with the visible changelog.
    fn read_tail(&mut self, task: TaskId, needed: Epoch, env: &mut Env) {
        let index = model::index(&task);
        let tp = Tp(Topic::Changelog, index);
        let last = env.broker.last_marker(index).map(|marker| Epoch(marker.epoch));
        let local = &env.volumes[self.process].dbs[index].local;
        let log_start = env.broker.log_start(tp);
        let facts = ChangelogFacts {
            topic: CHANGELOG,
            topic_id: &env.broker.changelog_id.to_string(),
            partitions: TASKS as i32,
            log_start: Offset(log_start as i64),
            last_marker: last,
            local: (local.epoch() > Epoch(0)).then(|| local.epoch()),
            stateful: true,
            needed,
            restored: false,
            begun: None,
        };
        let mut level = true;
        let created: Option<&Created> = self.core.log().created(CHANGELOG);
        match changelog_start(created, &facts) {
            Ok(ChangelogStart::AfterWithoutLocal(_)) => env.discard(self.process, index),
            Ok(ChangelogStart::NotLevel) => level = false,
            Ok(_) => {}
            Err(_) if env.mutant == Some(Mutant::NoMarkerIsNew) => {
                env.volumes[self.process].dbs[index].local = Local::default();
            }
            Err(error) => {
                env.trace.line(format_args!("{}: {error}", self.core.id()));
                if !env.damaged[index] {
                    env.broker.audit.report(Violation::Refused { task: index, why: error.to_string() });
                }
                return self.tell(Event::TailRefused(task));
            }
        }
        let local = &mut env.volumes[self.process].dbs[index].local;
        local.replay(&env.broker, index, usize::MAX);
        let last = if level { local.epoch() } else { last.unwrap_or_default() };
        self.tell(Event::TailRead { task, last });
    }

    fn run(&mut self, task: &TaskId, generation: u64, env: &mut Env) {
        let index = model::index(task);
        let local = &env.volumes[self.process].dbs[index].local;
        env.broker.audit.check(index, local);
        let from = match env.mutant {
            Some(Mutant::TrustsGroupOffsets) => env.broker.group_offset(index),
            _ => local.marker.next,
        };
        let epoch = local.marker.epoch;
        let resolution = self.epoch.run(task.clone(), Epoch(epoch));
        env.trace.line(format_args!("{} runs {task} after epoch {epoch}: {resolution:?}", self.core.id()));
        let running = Running { epoch, generation, from, next: from, overlay: State::new(), closing: None, cut: None };
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
                    self.wake(env);
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

    /// A task that is to be cut has an epoch, though it may have read nothing.
    fn wake(&mut self, env: &mut Env) {
        for index in self.to_cut() {
            if !self.epoch.bisecting() && env.broker.begin(self.core.id(), self.producer.unwrap_or_default()).is_ok() {
                self.epoch.fired(&model::task(index)).expect("the phase was looked at");
            }
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
                let local = &env.volumes[self.process].dbs[index].local;
                let before = running.overlay.get(&row.key).or(local.state.get(&row.key));
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
        let to_cut = self.to_cut();
        for (task, epoch) in &epochs {
            let index = model::index(task);
            let Some(run) = self.running.get_mut(&index) else { continue };
            run.cut = self.told.as_ref().map(|told| told.id).filter(|_| to_cut.contains(&index));
            let marker =
                Marker { task: index, epoch: epoch.0, generation: run.generation, from: run.from, next: run.next };
            let tp = Tp(Topic::Changelog, index);
            records.extend(run.overlay.iter().map(|(key, value)| (tp, Body::State(*key, *value))));
            records.push((tp, Body::Marker(marker)));
            if env.mutant == Some(Mutant::AppliesBeforeCommit) {
                let read = env.broker.end_of(tp);
                env.volumes[self.process].dbs[index].local.extend(&run.overlay, marker, read);
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
            if let Err(refusal) = self.send(tp, body, env) {
                self.refused(refusal, env);
                return true;
            }
        }
        if !epochs.is_empty() {
            env.trace.line(format_args!("{id} closes {epochs:?}"));
        }
        !epochs.is_empty()
    }

    /// Sends a record of a changelog.
    fn send(&mut self, tp: Tp, body: Body, env: &mut Env) -> Result<(), Refusal> {
        let at = env.broker.produce(self.core.id(), self.producer.unwrap_or_default(), tp, body)?;
        if let Body::Marker(marker) = body
            && let Some(run) = self.running.get_mut(&marker.task)
        {
            run.closing = Some((marker, at + 1));
        }
        Ok(())
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
                    let Some((marker, read)) = run.closing.take() else { continue };
                    (run.epoch, run.from) = (permit.epoch().0, run.next);
                    let overlay = mem::take(&mut run.overlay);
                    self.permits.push_back(Committed { permit, overlay, marker, read, cut: run.cut.take() });
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
                    self.send(tp, body, env).expect("the transaction has just begun");
                }
                self.commit = Some(Commit { txn, arrived: None });
            }
        }
    }

    fn apply(&mut self, env: &mut Env) {
        let Some(Committed { permit, overlay, marker, read, cut }) = self.permits.pop_front() else { return };
        let (index, epoch) = (model::index(permit.task()), permit.epoch());
        if env.rng.per_mille(env.disk_full) {
            env.trace.line(format_args!("{} cannot apply epoch {epoch} of {}", self.core.id(), permit.task()));
            let db = &mut env.volumes[self.process].dbs[index];
            db.local = db.flushed.clone();
            let task = self.epoch.apply_failed(permit);
            return self.failed(task, epoch);
        }
        let local = &mut env.volumes[self.process].dbs[index].local;
        local.extend(&overlay, marker, read);
        env.broker.audit.check(index, local);
        self.epoch.applied(permit);
        if cut.is_some_and(|id| self.told.as_ref().is_some_and(|told| told.id == id)) {
            self.is_cut(index, env);
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
        self.tails.clear();
        self.actions.retain(|a| !matches!(a, Action::ReadTail { .. } | Action::Run(_) | Action::Finish(_)));
        self.tell(Event::Lost);
    }
}

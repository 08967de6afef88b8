//! The life of one lane, as far as ownership goes: events in, actions out.
//!
//! ```text
//! lane   Initialising -> Resuming (`resumed` is appended) -> Reading (the log up to it) -> Sound
//!             ^------------------------- Event::Lost, from any of them ----------------------'
//!
//! task   Idle (waits for a release) -> Claiming -> Claimed (reads, fences) -> Tail -> Running
//!             Running -> Finishing -> Releasing -> gone          (a newer assignment is without it)
//!             Tail -> Releasing                                  (the same: nothing is in flight, nothing to wait for)
//!             Tail, Running, Finishing -> Suspended (Event::Lost) -> Tail | Idle | Releasing | stopped
//! ```
//!
//! A task takes a step only while the lane is Sound: nothing but appending happens between an initialisation and the
//! reading of the log that follows it.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use super::{ControlLog, Rule, Rules, Start, StopReason};
use crate::control::{Change, ClaimId, Incarnation, Key, LaneId, PlanStamp, Record};
use crate::ids::{Epoch, Generation, Offset, TaskId};
use crate::report::TaskState;

/// What the engine reports. Actions of one kind complete in the order in which they were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The process has started; the control log is about to be read from its beginning.
    Started,
    /// [`Action::Initialise`] succeeded.
    Initialised,
    /// An append was acknowledged. One of unknown outcome, with the idempotent producer's retries used up, ends the
    /// process: the record may still come, and a second one would claim twice.
    Appended { change: Change, position: Offset },
    /// Entries of the control log; `next` is the reader's position behind them.
    Read { entries: Vec<(Offset, Change)>, next: Offset },
    /// An assignment; one that is not newer than the last is ignored.
    Assigned { generation: Generation, tasks: Vec<TaskId> },
    /// No release came within `handOverTimeout`.
    HandOverOverdue(TaskId),
    /// The lane that should fence this one has not done it in time.
    FenceOverdue(LaneId),
    /// [`Action::Fence`] succeeded.
    Fenced(LaneId),
    /// [`Action::ReadTail`] came to the end of the changelog, where nothing is open: the epoch of the last marker. An
    /// abort whose markers are late hides what was committed behind it, so the last stable offset is not that end.
    TailRead { task: TaskId, last: Epoch },
    /// The changelog cannot be continued (I6); the engine reports the error itself.
    TailRefused(TaskId),
    /// The local state of a running task could not be written: it is restored from the tail. `committed` is its last
    /// committed epoch, whose marker may not be visible yet. A Finish of the task that is still to be done is void.
    Failed { task: TaskId, committed: Epoch },
    /// [`Action::Finish`] is done: nothing of the task is in flight, and `last` is its last committed epoch.
    Finished { task: TaskId, last: Epoch },
    /// The lane's producer was fenced, or an outcome is unknown. The engine has dropped every open overlay; whatever it
    /// still had to answer to ReadTail, Run and Finish is void.
    Lost,
    /// A transaction of this lane was committed.
    Committed,
    /// Time to remove what the control log no longer needs.
    Compact,
    /// SIGTERM: finish and release everything, then exit.
    Leave,
}

/// What the engine shall do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Initialise the lane's own transactional id, until it succeeds.
    Initialise,
    Append(Change),
    /// Read the control log up to and with this position. By position: a fetched end may lag.
    ReadControlTo(Offset),
    /// Start the timer of `handOverTimeout` for the task.
    AwaitRelease(TaskId),
    /// Another lane fences this one: start a timer.
    AwaitFence(LaneId),
    /// Initialise a producer with this lane's transactional id and close it.
    Fence(LaneId),
    /// Bring the task's local state level with its changelog; report the last marker. Asked for again while a marker
    /// that must be there (`needed`) is not yet.
    ReadTail {
        task: TaskId,
        needed: Epoch,
    },
    Run(ClaimId),
    /// Commit what is open of the task, then take it out of the next epoch.
    Finish(TaskId),
    /// The task is not here any more: close its state, which another lane of the process may open, and stop restoring it.
    /// What was still to be answered to ReadTail is void: a late answer would speak of an earlier owner's tail.
    Close(TaskId),
    Stop {
        task: TaskId,
        reason: StopReason,
    },
    /// End the whole process, at once: what was asked for before is void, and nothing follows.
    Exit(ExitReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitReason {
    /// The same lane lives in a newer process.
    NewerIncarnation,
    /// All tasks were released.
    Left,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnId {
    Down,
    Initialising,
    Resuming,
    Reading(Offset),
    Sound,
    Exited,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Idle { waiting: bool, forced: bool },
    Claiming,
    Claimed(Offset),
    Tail { needed: Epoch },
    Running,
    Finishing,
    Releasing,
    Suspended,
}

const IDLE: Phase = Phase::Idle { waiting: false, forced: false };

#[derive(Clone, Debug)]
struct Task {
    /// Of the claim, once there is one.
    generation: Generation,
    /// The last assignment has it.
    wanted: bool,
    phase: Phase,
    /// The last marker that was read.
    level: Epoch,
}

impl Task {
    fn new(generation: Generation, wanted: bool, phase: Phase) -> Self {
        Self { generation, wanted, phase, level: Epoch(0) }
    }
}

/// One lane in one process.
#[derive(Clone, Debug)]
pub struct Lane {
    id: LaneId,
    incarnation: Incarnation,
    plan: PlanStamp,
    rules: Rules,
    log: ControlLog,
    own: OwnId,
    /// Our id was initialised at least once.
    born: bool,
    /// We have committed since our first record was in the log.
    proven: bool,
    /// `resumed` records whose position is not known yet: after two losses in a row only the last one counts.
    resumes: u32,
    /// Our first record.
    first: Option<Offset>,
    generation: Generation,
    leaving: bool,
    tasks: BTreeMap<TaskId, Task>,
    /// The lane that is being fenced, and what had been read when that began. One at a time.
    fencing: Option<(LaneId, Offset)>,
    fenced: BTreeMap<LaneId, Offset>,
    /// Lanes that somebody else fences, for our claim at this position; true: we have waited long enough.
    awaited: BTreeMap<(LaneId, Offset), bool>,
    actions: Vec<Action>,
}

impl Lane {
    pub fn new(id: LaneId, incarnation: Incarnation, plan: PlanStamp, rules: Rules) -> Self {
        Self {
            id,
            incarnation,
            plan,
            rules,
            log: ControlLog::new(rules),
            own: OwnId::Down,
            born: false,
            proven: false,
            resumes: 0,
            first: None,
            generation: Generation(0),
            leaving: false,
            tasks: BTreeMap::new(),
            fencing: None,
            fenced: BTreeMap::new(),
            awaited: BTreeMap::new(),
            actions: Vec::new(),
        }
    }

    pub fn id(&self) -> LaneId {
        self.id
    }

    /// The control log as far as this lane has read it.
    pub fn log(&self) -> &ControlLog {
        &self.log
    }

    /// The tasks that run here now.
    pub fn running(&self) -> impl Iterator<Item = &TaskId> {
        self.tasks.iter().filter(|(_, task)| task.phase == Phase::Running).map(|(id, _)| id)
    }

    /// How each task is that is here and stays.
    pub fn states(&self) -> impl Iterator<Item = (&TaskId, TaskState)> {
        self.tasks.iter().filter_map(|(id, task)| {
            let state = match task.phase {
                Phase::Idle { .. } | Phase::Claiming | Phase::Claimed(_) => TaskState::Waiting,
                Phase::Tail { .. } | Phase::Suspended => TaskState::Restoring,
                Phase::Running => TaskState::Running,
                Phase::Finishing | Phase::Releasing => return None,
            };
            Some((id, state))
        })
    }

    /// True when no task is here, nor on its way here or away.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// True when every task that is here runs.
    pub fn settled(&self) -> bool {
        self.own == OwnId::Sound && self.tasks.values().all(|task| task.phase == Phase::Running)
    }

    pub fn on(&mut self, event: Event) -> Vec<Action> {
        if self.own != OwnId::Exited {
            self.take(event);
            self.advance();
        }
        mem::take(&mut self.actions)
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Started if self.rules.keep(Rule::InitialiseBeforeClaiming) => self.initialise(),
            Event::Started => self.own = OwnId::Sound,
            Event::Initialised => self.initialised(),
            Event::Appended { change: Change::Put(record), position } => self.appended(record, position),
            Event::Appended { change: Change::Forget(_), .. } => {}
            Event::Read { entries, next } => self.read(entries, next),
            Event::Assigned { generation, tasks } if generation > self.generation && !self.leaving => {
                self.generation = generation;
                self.want(tasks);
            }
            Event::Assigned { .. } => {}
            Event::HandOverOverdue(task) => {
                if let Some(Phase::Idle { forced, .. }) = self.phase(&task) {
                    *forced = true;
                }
            }
            Event::FenceOverdue(lane) => {
                let same = self.awaited.iter_mut().filter(|((awaited, _), _)| *awaited == lane);
                same.for_each(|(_, overdue)| *overdue = true);
            }
            Event::Fenced(lane) => self.fence_done(lane),
            Event::TailRead { task, last } => self.tail_read(task, last),
            Event::TailRefused(task) => {
                if matches!(self.phase(&task), Some(Phase::Tail { .. })) {
                    self.stop(task, StopReason::Changelog);
                }
            }
            Event::Failed { task, committed } => {
                if matches!(self.phase(&task), Some(Phase::Running | Phase::Finishing)) {
                    self.restore(&task, committed);
                }
            }
            Event::Finished { task, last } => self.finished(task, last),
            Event::Lost => self.lost(),
            Event::Committed if !self.proven => {
                self.proven = true;
                self.bury_former_lives();
            }
            Event::Committed => {}
            Event::Compact => {
                self.bury_former_lives();
                self.compact();
            }
            Event::Leave => {
                self.leaving = true;
                self.want(Vec::new());
            }
        }
    }

    fn phase(&mut self, task: &TaskId) -> Option<&mut Phase> {
        self.tasks.get_mut(task).map(|task| &mut task.phase)
    }

    fn claim(&self, task: &TaskId) -> ClaimId {
        let generation = self.tasks.get(task).map_or(self.generation, |task| task.generation);
        ClaimId { task: task.clone(), generation, lane: self.id, incarnation: self.incarnation }
    }

    fn initialise(&mut self) {
        self.own = OwnId::Initialising;
        self.actions.push(Action::Initialise);
    }

    fn initialised(&mut self) {
        let again = mem::replace(&mut self.born, true);
        let reads = if again { Rule::ReadAfterInitialising } else { Rule::InitialiseBeforeClaiming };
        if !self.rules.keep(reads) {
            self.own = OwnId::Sound;
            return;
        }
        self.own = OwnId::Resuming;
        self.resumes += 1;
        self.append(Record::Resumed { lane: self.id, incarnation: self.incarnation });
    }

    fn lost(&mut self) {
        if matches!(self.own, OwnId::Down | OwnId::Initialising) {
            return;
        }
        for task in self.tasks.values_mut() {
            if matches!(task.phase, Phase::Tail { .. } | Phase::Running | Phase::Finishing) {
                task.phase = Phase::Suspended;
            }
        }
        self.initialise();
    }

    fn want(&mut self, tasks: Vec<TaskId>) {
        let wanted: BTreeSet<TaskId> = tasks.into_iter().collect();
        for (id, task) in &mut self.tasks {
            task.wanted = wanted.contains(id);
            if !task.wanted && task.phase == Phase::Running {
                task.phase = Phase::Finishing;
                self.actions.push(Action::Finish(id.clone()));
            }
        }
        let restored = |(id, task): (&TaskId, &Task)| match task.phase {
            Phase::Tail { needed } if !task.wanted => Some((id.clone(), needed)),
            _ => None,
        };
        let withdrawn: Vec<(TaskId, Epoch)> = self.tasks.iter().filter_map(restored).collect();
        for (id, needed) in withdrawn {
            self.restore(&id, needed);
        }
        for id in wanted {
            self.tasks.entry(id).or_insert(Task::new(self.generation, true, IDLE));
        }
    }

    fn appended(&mut self, record: Record, position: Offset) {
        match record {
            Record::Resumed { .. } => {
                self.first.get_or_insert(position);
                self.resumes -= 1;
                if self.own == OwnId::Resuming && self.resumes == 0 {
                    self.own = OwnId::Reading(position);
                    self.actions.push(Action::ReadControlTo(position));
                }
            }
            Record::Claim { id, .. } => {
                self.first.get_or_insert(position);
                self.set(&id.task, Phase::Claimed(position));
                self.actions.push(Action::ReadControlTo(position));
            }
            Record::Release { id, .. } if id == self.claim(&id.task) => {
                if self.tasks.get(&id.task).is_some_and(|task| task.wanted) {
                    self.set(&id.task, IDLE);
                } else {
                    self.tasks.remove(&id.task);
                }
            }
            Record::Fenced { lane, read_to } if self.fencing.is_some_and(|(fencing, _)| fencing == lane) => {
                self.fencing = None;
                self.fenced.insert(lane, read_to);
            }
            _ => {}
        }
    }

    fn read(&mut self, entries: Vec<(Offset, Change)>, next: Offset) {
        for (position, change) in entries {
            self.log.apply(position, change);
        }
        self.log.advance_to(next);
        let newer = |first| self.log.newer_incarnation(self.id, self.incarnation, first);
        if self.first.is_some_and(newer) {
            self.exit(ExitReason::NewerIncarnation);
        } else if matches!(self.own, OwnId::Reading(to) if self.log.next() > to) {
            self.own = OwnId::Sound;
            if !self.rules.keep(Rule::FormerLivesAreReleasedAfterACommit) {
                self.bury_former_lives();
            }
        }
    }

    fn exit(&mut self, reason: ExitReason) {
        self.own = OwnId::Exited;
        self.actions.push(Action::Exit(reason));
    }

    /// Lets every task go as far as it can.
    fn advance(&mut self) {
        let ids: Vec<TaskId> = self.tasks.keys().cloned().collect();
        for id in ids {
            if self.own != OwnId::Sound {
                return;
            }
            match self.tasks.get(&id).map(|task| task.phase.clone()) {
                Some(Phase::Idle { waiting, forced }) => self.consider(&id, waiting, forced),
                Some(Phase::Claimed(at)) if self.log.next() > at => self.start(&id, at),
                Some(Phase::Suspended) => self.take_up(id),
                _ => {}
            }
        }
        if self.leaving && self.tasks.is_empty() && self.own == OwnId::Sound {
            self.exit(ExitReason::Left);
        }
    }

    /// An unclaimed task: claim it, once its owner has released it or the waiting is over.
    fn consider(&mut self, id: &TaskId, waiting: bool, forced: bool) {
        let newer = self.log.owner(id).filter(|owner| owner.generation > self.generation);
        let newer = newer.filter(|_| self.rules.keep(Rule::NewerGenerationStops)).cloned();
        let wanted = self.tasks.get(id).is_some_and(|task| task.wanted);
        if !wanted {
            self.tasks.remove(id);
        } else if let Some(newer) = newer {
            self.stop(id.clone(), StopReason::NewerClaim(newer));
        } else if forced || self.log.holders(id, self.id).is_empty() {
            self.tasks.insert(id.clone(), Task::new(self.generation, wanted, Phase::Claiming));
            self.append(Record::Claim { id: self.claim(id), plan: self.plan });
        } else if !waiting {
            self.set(id, Phase::Idle { waiting: true, forced });
            self.actions.push(Action::AwaitRelease(id.clone()));
        }
    }

    fn set(&mut self, id: &TaskId, phase: Phase) {
        if let Some(task) = self.tasks.get_mut(id) {
            task.phase = phase;
        }
    }

    /// A claimed task whose claim has been read: stop, fence, or go on to its tail.
    fn start(&mut self, id: &TaskId, at: Offset) {
        let claim = self.claim(id);
        let wanted = self.tasks.get(id).is_some_and(|task| task.wanted);
        match self.log.may_start(&claim, &self.fenced) {
            Start::Stop(reason) => {
                let again = matches!(&reason, StopReason::NewerClaim(newer) if self.may_reclaim(newer));
                if !(wanted && again) {
                    self.tasks.entry(id.clone()).and_modify(|task| task.wanted = false);
                    self.actions.push(Action::Stop { task: id.clone(), reason });
                }
                // The claim never ran, and says so: nobody needs to fence a lane because of it.
                self.release(id, Epoch(0));
            }
            _ if !wanted => self.release(id, Epoch(0)),
            // Only in the mutant that initialises between reading and running, and then goes on without another look.
            _ if !self.born => self.initialise(),
            Start::Fence(lanes) => self.fence(lanes, at),
            Start::ReadTail { needed } => {
                self.awaited.retain(|(_, claim), _| *claim != at);
                if !self.rules.keep(Rule::FencedSpeaksOfTheFenced) {
                    // The mutant in which whoever starts confirms that it may.
                    self.append(Record::Fenced { lane: self.id, read_to: at });
                }
                self.restore(id, needed);
            }
        }
    }

    /// The assignment that we know is newer than whoever took the task from us, or it was a former life of this lane.
    fn may_reclaim(&self, newer: &ClaimId) -> bool {
        self.generation > newer.generation || self.generation == newer.generation && newer.lane == self.id
    }

    fn append(&mut self, record: Record) {
        self.actions.push(Action::Append(Change::Put(record)));
    }

    fn fence(&mut self, lanes: BTreeSet<LaneId>, at: Offset) {
        for lane in lanes {
            let other = self.log.fencer_of(lane).is_some_and(|fencer| fencer != self.id);
            match self.awaited.get(&(lane, at)) {
                None if other => {
                    self.awaited.insert((lane, at), false);
                    self.actions.push(Action::AwaitFence(lane));
                }
                Some(false) if other => {}
                _ if self.fencing.is_none() => {
                    self.fencing = Some((lane, Offset(self.log.next().0 - 1)));
                    self.actions.push(Action::Fence(lane));
                }
                _ => {}
            }
        }
    }

    fn fence_done(&mut self, lane: LaneId) {
        let Some((_, from_start)) = self.fencing.filter(|(fencing, _)| *fencing == lane) else { return };
        if !self.rules.keep(Rule::FencedSpeaksOfTheFenced) {
            self.fencing = None;
            self.fenced.insert(lane, from_start);
            return;
        }
        let keep = self.rules.keep(Rule::FencedPositionIsFromTheStart);
        let read_to = if keep { from_start } else { Offset(self.log.next().0 - 1) };
        self.append(Record::Fenced { lane, read_to });
    }

    /// A task that does not run, and whose last epoch is `needed` for all that is known here, is brought level.
    ///
    /// One that is not wanted any more is released at once, since a long restore would hold up its next owner. The release
    /// names what was known: an epoch of ours whose marker is late, or what another release has named. Whatever else was
    /// committed is visible: it was by a lane that was fenced before we came so far.
    fn restore(&mut self, id: &TaskId, needed: Epoch) {
        let Some(task) = self.tasks.get(id) else { return };
        if task.wanted {
            self.set(id, Phase::Tail { needed });
            self.actions.push(Action::ReadTail { task: id.clone(), needed });
        } else {
            let named = self.rules.keep(Rule::WithdrawnReleaseNamesWhatIsKnown);
            self.release(id, if named { needed.max(task.level) } else { Epoch(0) });
        }
    }

    fn tail_read(&mut self, id: TaskId, last: Epoch) {
        let Some(Phase::Tail { needed }) = self.phase(&id).cloned() else { return };
        if last < needed && self.rules.keep(Rule::TakerWaitsForNamedMarker) {
            self.actions.push(Action::ReadTail { task: id, needed });
        } else {
            self.set(&id, Phase::Running);
            self.tasks.entry(id.clone()).and_modify(|task| task.level = last);
            self.actions.push(Action::Run(self.claim(&id)));
        }
    }

    /// After an initialisation: has somebody taken the task meanwhile?
    fn take_up(&mut self, id: TaskId) {
        let claim = self.claim(&id);
        let wanted = self.tasks.get(&id).is_some_and(|task| task.wanted);
        match self.log.superseded(&claim).cloned() {
            Some(newer) if wanted && self.may_reclaim(&newer) => {
                self.actions.push(Action::Close(id.clone()));
                self.consider(&id, false, false);
            }
            Some(newer) => self.stop(id, StopReason::NewerClaim(newer)),
            None => self.restore(&id, self.log.needed_epoch(&claim)),
        }
    }

    fn finished(&mut self, id: TaskId, last: Epoch) {
        if self.phase(&id) != Some(&mut Phase::Finishing) {
            return;
        }
        if self.tasks.get(&id).is_some_and(|task| task.wanted) {
            self.restore(&id, last);
        } else {
            self.release(&id, last);
        }
    }

    fn release(&mut self, id: &TaskId, last: Epoch) {
        let last_epoch = if self.rules.keep(Rule::ReleaseNamesLastEpoch) { last } else { Epoch(0) };
        self.set(id, Phase::Releasing);
        self.actions.push(Action::Close(id.clone()));
        self.append(Record::Release { id: self.claim(id), last_epoch });
    }

    fn stop(&mut self, task: TaskId, reason: StopReason) {
        self.tasks.remove(&task);
        self.actions.push(Action::Stop { task, reason });
    }

    /// Releases the claims of the lane's former lives, or else each hand-over after a restart would fence a living lane.
    ///
    /// Only after a commit: our initialisation fenced the former life, but it may have initialised again before our
    /// first record was there to be found, and go on. Once we have committed, it has not; and when it does, it finds us.
    fn bury_former_lives(&mut self) {
        if self.proven || !self.rules.keep(Rule::FormerLivesAreReleasedAfterACommit) {
            for id in self.log.former_lives(self.id, self.incarnation) {
                self.append(Record::Release { id, last_epoch: Epoch(0) });
            }
        }
    }

    fn compact(&mut self) {
        let any = !self.rules.keep(Rule::TombstonesByTheLevelOwner);
        let level = |(id, task): &(&TaskId, &Task)| match task.phase {
            Phase::Running | Phase::Claimed(_) | Phase::Tail { .. } if any => true,
            // A release may have come after the tail was read, from another life of this lane that had fenced us.
            Phase::Running => task.level >= self.log.needed_epoch(&self.claim(id)),
            _ => false,
        };
        let owned: Vec<TaskId> = self.tasks.iter().filter(level).map(|(id, _)| id.clone()).collect();
        let claims = owned.iter().flat_map(|id| self.log.tombstones(&self.claim(id)));
        let keys: Vec<Key> = claims.chain(self.log.spent_fences().into_iter().filter(|_| !owned.is_empty())).collect();
        self.actions.extend(keys.into_iter().map(|key| Action::Append(Change::Forget(key))));
    }
}

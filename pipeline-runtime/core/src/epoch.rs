//! What a lane does between two commits: the order of things, and what follows when one fails.
//!
//! ```text
//! Open --close--> Draining --delivered--> Committing --committed--> Applying --all applied--> Open
//!   ^                |                        |
//!   |<---- Abort ----+------------------------+      the overlays are dropped, the inputs rewound
//!   |<--- Recover ---+------------------------'      fenced, or an unknown outcome: nothing is guessed (I4)
//! ```
//!
//! - **I1** Local state is written after the commit is known: only then there is an [`ApplyPermit`].
//! - **I2** An epoch's output, state change and marker are in one transaction: [`LaneEpoch::close`] names the tasks whose
//!   overlay and marker belong to it.
//! - **I3**, **I4** A task's epoch is what its last marker says ([`LaneEpoch::run`]), after every loss again. The overlay
//!   of an epoch whose outcome was unknown is never applied: if it was committed, the tail brings it.
//! - **I6** [`changelog_start`] decides whether a task is new.
//!
//! Two aborts without a commit in between mean that something in the epoch cannot be committed. Then it is bisected,
//! down to the row, and the error policy meets that row alone ([`Limit`], [`LaneEpoch::condemned`]). An epoch that was
//! dropped though no row is to blame does not count ([`LaneEpoch::rewound`], [`LaneEpoch::abandon`]).

mod bisection;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

pub use bisection::{Limit, Span};

use self::bisection::{Bisection, Verdict};
use crate::control::Created;
use crate::ids::{Epoch, Offset, TaskId};

/// Aborts at one position before the epoch is bisected: one may have been the broker's mood.
const ABORTS_MAX: u32 = 2;

/// The input whose one row, at offset 0, stands for all that a task's timers did in an epoch.
pub const TIMERS: usize = usize::MAX;

/// The right to write one task's overlay of one committed epoch to its local state, in one write batch.
#[derive(Debug, PartialEq, Eq)]
pub struct ApplyPermit {
    task: TaskId,
    epoch: Epoch,
}

impl ApplyPermit {
    pub fn task(&self) -> &TaskId {
        &self.task
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }
}

/// What the delivery reports of an epoch's records said, once all are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    Complete,
    /// A record was refused, or the client says that the transaction must be aborted.
    Rejected,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    Committed,
    /// The client says that the transaction must be aborted; it was not committed.
    Rejected,
    Fenced,
    /// No answer, or one that doesn't tell.
    Unknown,
}

/// Why the producer is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    Fenced,
    Unknown,
    /// Fenced by the coordinator, because the transaction had been open for too long: the batch counts as aborted.
    TimedOut,
}

/// What the engine does next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Add the offsets and commit.
    Commit,
    /// Write these overlays, then report each with [`LaneEpoch::applied`] or [`LaneEpoch::apply_failed`].
    Apply(Vec<ApplyPermit>),
    /// Abort the transaction, drop all overlays and read on from the last committed positions.
    Abort,
    /// As Abort, and even the error policy's record for the condemned row was refused: this task stops.
    AbortAndStop(TaskId),
    /// Drop all overlays and report `ownership::Event::Lost`.
    Recover,
}

/// What had become of the epoch in flight, as the task's last marker tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Nothing was in flight.
    Settled,
    /// The marker is there: read on behind the epoch.
    Committed,
    /// It is not, and never will be, since our id was initialised again: read the same rows once more.
    NotCommitted,
    /// Another owner has gone further meanwhile.
    Overtaken,
}

/// A call that does not fit the phase: a fault of the engine.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lane's epoch is {0:?}: {1} does not fit")]
pub struct OutOfOrder(Phase, &'static str);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Open,
    Draining,
    Committing,
    Applying,
}

#[derive(Debug)]
struct Progress {
    committed: Epoch,
    /// What the open epoch has read, per input. A task is dirty when it has read anything, though all of it was dropped.
    read: BTreeMap<usize, (Offset, Offset)>,
}

impl Progress {
    fn after(committed: Epoch) -> Self {
        Self { committed, read: BTreeMap::new() }
    }

    fn dirty(&self) -> bool {
        !self.read.is_empty()
    }
}

/// The epoch of one lane.
#[derive(Debug)]
pub struct LaneEpoch {
    phase: Phase,
    tasks: BTreeMap<TaskId, Progress>,
    applying: BTreeSet<TaskId>,
    /// Epochs whose commit was asked for and not answered.
    in_flight: BTreeMap<TaskId, Epoch>,
    /// Since the last commit.
    aborts: u32,
    bisection: Bisection,
}

impl Default for LaneEpoch {
    fn default() -> Self {
        Self {
            phase: Phase::Open,
            tasks: BTreeMap::new(),
            applying: BTreeSet::new(),
            in_flight: BTreeMap::new(),
            aborts: 0,
            bisection: Bisection::default(),
        }
    }
}

impl LaneEpoch {
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The task runs here from now on; `last` is the epoch of its last marker.
    pub fn run(&mut self, task: TaskId, last: Epoch) -> Resolution {
        let resolution = match self.in_flight.remove(&task) {
            None => Resolution::Settled,
            Some(epoch) if last == epoch => Resolution::Committed,
            Some(epoch) if last < epoch => Resolution::NotCommitted,
            Some(_) => Resolution::Overtaken,
        };
        self.tasks.insert(task, Progress::after(last));
        resolution
    }

    /// The task leaves the lane: its last committed epoch, which the release names; none while it still has something
    /// in flight. The epochs of the other tasks go on without it.
    pub fn leave(&mut self, task: &TaskId) -> Option<Epoch> {
        let busy = self.applying.contains(task) || self.tasks.get(task)?.dirty();
        if busy { None } else { self.tasks.remove(task).map(|progress| progress.committed) }
    }

    /// The task has read `from..to` of an input in the open epoch.
    pub fn read(&mut self, task: &TaskId, input: usize, from: Offset, to: Offset) -> Result<(), OutOfOrder> {
        self.expect(Phase::Open, "reading")?;
        if let Some(progress) = self.tasks.get_mut(task) {
            progress.read.entry(input).and_modify(|range| range.1 = to).or_insert((from, to));
        }
        Ok(())
    }

    /// The task has changed. If it has read nothing, it was its timers that did it.
    pub fn fired(&mut self, task: &TaskId) -> Result<(), OutOfOrder> {
        if self.tasks.get(task).is_some_and(Progress::dirty) {
            return Ok(());
        }
        self.read(task, TIMERS, Offset(0), Offset(1))
    }

    /// Closes the epoch: the dirty tasks with the epoch that their markers get. The engine sends overlay and marker of
    /// each in the open transaction and waits for all delivery reports. Empty: nothing happened, nothing is sent.
    pub fn close(&mut self) -> Result<Vec<(TaskId, Epoch)>, OutOfOrder> {
        self.expect(Phase::Open, "close")?;
        let dirty = self.tasks.iter().filter(|(_, progress)| progress.dirty());
        let epochs: Vec<_> = dirty.map(|(id, progress)| (id.clone(), Epoch(progress.committed.0 + 1))).collect();
        if !epochs.is_empty() {
            self.phase = Phase::Draining;
        }
        Ok(epochs)
    }

    /// While an epoch is bisected: nothing is open, and nothing can be read below the limits. Offsets of control records
    /// make such parts, and tasks that are not here any more.
    pub fn skip_part(&mut self) {
        if self.phase == Phase::Open && self.tasks.values().all(|progress| !progress.dirty()) {
            self.bisection.passed();
        }
    }

    pub fn delivered(&mut self, delivery: Delivery) -> Result<Next, OutOfOrder> {
        self.expect(Phase::Draining, "delivery")?;
        if delivery == Delivery::Rejected {
            return Ok(self.abort());
        }
        self.phase = Phase::Committing;
        Ok(Next::Commit)
    }

    pub fn commit_returned(&mut self, outcome: CommitOutcome) -> Result<Next, OutOfOrder> {
        self.expect(Phase::Committing, "a commit's outcome")?;
        match outcome {
            CommitOutcome::Committed => Ok(Next::Apply(self.committed())),
            CommitOutcome::Rejected => Ok(self.abort()),
            CommitOutcome::Fenced => Ok(self.lost(Loss::Fenced)),
            CommitOutcome::Unknown => Ok(self.lost(Loss::Unknown)),
        }
    }

    fn committed(&mut self) -> Vec<ApplyPermit> {
        self.aborts = 0;
        self.bisection.passed();
        let dirty = self.tasks.iter_mut().filter(|(_, progress)| progress.dirty());
        let permits: Vec<_> = dirty
            .map(|(task, progress)| {
                let epoch = Epoch(progress.committed.0 + 1);
                *progress = Progress::after(epoch);
                ApplyPermit { task: task.clone(), epoch }
            })
            .collect();
        self.applying = permits.iter().map(|permit| permit.task.clone()).collect();
        self.phase = Phase::Applying;
        permits
    }

    /// The overlay is in the local state.
    pub fn applied(&mut self, permit: ApplyPermit) {
        self.applying.remove(&permit.task);
        if self.phase == Phase::Applying && self.applying.is_empty() {
            self.phase = Phase::Open;
        }
    }

    /// The local state could not be written: the task is out until [`Self::run`] is called for it, after its state was
    /// restored from the tail. The epoch stays committed.
    pub fn apply_failed(&mut self, permit: ApplyPermit) -> TaskId {
        let task = permit.task.clone();
        self.tasks.remove(&task);
        self.applied(permit);
        task
    }

    /// The producer is lost, whatever the lane was doing. Every task is out until its last marker was read again. Local
    /// writes that were permitted before may still be finished or be left to the tail; the permits stay true.
    pub fn lost(&mut self, loss: Loss) -> Next {
        if self.phase == Phase::Committing {
            let dirty = self.tasks.iter().filter(|(_, progress)| progress.dirty());
            self.in_flight.extend(dirty.map(|(task, progress)| (task.clone(), Epoch(progress.committed.0 + 1))));
        }
        // An epoch that was rewound before was judged then.
        if loss == Loss::TimedOut && self.tasks.values().any(Progress::dirty) {
            self.judge();
        }
        self.tasks.clear();
        self.applying.clear();
        self.phase = Phase::Open;
        Next::Recover
    }

    fn abort(&mut self) -> Next {
        let verdict = self.judge();
        self.rewind();
        match verdict {
            Verdict::Again => Next::Abort,
            Verdict::Hopeless(task) => {
                self.tasks.remove(&task);
                Next::AbortAndStop(task)
            }
        }
    }

    /// The open epoch was aborted for a reason that passes by itself, such as brokers that restart: the inputs are
    /// rewound, and it is not counted as an abort. Once the commit was asked for, only its outcome tells.
    pub fn rewound(&mut self) -> Result<(), OutOfOrder> {
        if self.phase != Phase::Draining {
            self.expect(Phase::Open, "rewinding")?;
        }
        self.rewind();
        Ok(())
    }

    /// The task failed by its own fault, or was taken out, while the epoch was open: it leaves the lane. What the epoch
    /// held of the other tasks is dropped with it, since they share a transaction. No row is to blame, so it is not
    /// counted as an abort.
    pub fn abandon(&mut self, task: &TaskId) -> Result<(), OutOfOrder> {
        self.rewound()?;
        self.tasks.remove(task);
        Ok(())
    }

    fn rewind(&mut self) {
        self.tasks.values_mut().for_each(|progress| progress.read.clear());
        self.phase = Phase::Open;
    }

    fn judge(&mut self) -> Verdict {
        self.aborts += 1;
        if self.aborts < ABORTS_MAX && !self.bisection.active() {
            return Verdict::Again;
        }
        let span = |task: &TaskId, input, (from, to)| Span { task: task.clone(), input, from, to };
        let spans = self.tasks.iter().flat_map(|(task, p)| p.read.iter().map(move |(i, r)| span(task, *i, *r)));
        self.bisection.failed(spans.collect())
    }

    /// True while the search for a row that cannot be committed goes on: epochs are small, and [`Self::limit`] cuts them.
    pub fn bisecting(&self) -> bool {
        self.bisection.active()
    }

    /// How far the task may read the input in this epoch.
    pub fn limit(&self, task: &TaskId, input: usize) -> Limit {
        self.bisection.limit(task, input)
    }

    /// True for the row that has to be treated by the error policy instead of being processed.
    pub fn condemned(&self, task: &TaskId, input: usize, offset: Offset) -> bool {
        self.bisection.condemned(task, input, offset)
    }

    fn expect(&self, phase: Phase, call: &'static str) -> Result<(), OutOfOrder> {
        if self.phase == phase { Ok(()) } else { Err(OutOfOrder(self.phase, call)) }
    }
}

/// What is found when a task's changelog partition is opened.
#[derive(Clone, Debug)]
pub struct ChangelogFacts<'a> {
    pub topic: &'a str,
    pub topic_id: &'a str,
    pub partitions: i32,
    pub log_start: Offset,
    pub last_marker: Option<Epoch>,
    /// The epoch of the local state or of a snapshot, if one reaches the start of the log.
    pub local: Option<Epoch>,
    pub stateful: bool,
    /// The timeline began with a restore, and this task with it: it is never new.
    pub restored: bool,
    /// The epoch of the snapshot that it began with, if that is what was found.
    pub begun: Option<Epoch>,
    /// As `ownership::Action::ReadTail` names it.
    pub needed: Epoch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangelogStart {
    /// Nothing was ever committed: the sources begin at `startFrom`.
    New,
    /// Go on behind this epoch.
    After(Epoch),
    /// A marker that was committed cannot be seen yet: read on. Nothing may be concluded, least of all that the local
    /// state is newer than the log.
    NotLevel,
    /// As After, but the local state is newer than the log, after an unclean election: discard and report it.
    AfterWithoutLocal(Epoch),
}

/// The changelog cannot be continued. A fault of the cluster or of whoever administers it; a retry does not help.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangelogError {
    #[error("open changelog {topic}: it holds epochs, but the control log does not know that we made it")]
    NotRecorded { topic: String },
    #[error("open changelog {topic}: it was deleted and made again (topic id {found}, we made {created})")]
    Recreated { topic: String, created: String, found: String },
    #[error("open changelog {topic}: it has {found} partitions, we made it with {created}")]
    Repartitioned { topic: String, created: i32, found: i32 },
    #[error("open changelog {topic}: it was truncated to {log_start}, and no snapshot or local state reaches that far")]
    Truncated { topic: String, log_start: Offset },
    #[error("open changelog {topic}: it holds no marker, but the local state is of epoch {local}")]
    Emptied { topic: String, local: Epoch },
    #[error("changelog {topic}: its timeline began with a restore, and the snapshot of this task is not in storage")]
    NoSnapshot { topic: String },
}

/// Whether a task is new (I6). A missing marker alone proves nothing: the topic may be another one, or cut off.
pub fn changelog_start(
    created: Option<&Created>,
    found: &ChangelogFacts<'_>,
) -> Result<ChangelogStart, ChangelogError> {
    let topic = found.topic.to_owned();
    match created {
        None if found.last_marker.is_some() || found.log_start > Offset(0) => {
            return Err(ChangelogError::NotRecorded { topic });
        }
        Some(made) if made.topic_id != found.topic_id => {
            let (created, found) = (made.topic_id.clone(), found.topic_id.to_owned());
            return Err(ChangelogError::Recreated { topic, created, found });
        }
        Some(made) if made.partitions != found.partitions => {
            return Err(ChangelogError::Repartitioned { topic, created: made.partitions, found: found.partitions });
        }
        _ => {}
    }
    let marker = found.last_marker.or(found.begun);
    // A trimmed log without a marker, but a state that reaches it: nothing was committed behind that.
    let level = marker.or(found.local.filter(|_| found.log_start > Offset(0)));
    match (marker, found.local) {
        (marker, None) if found.log_start > Offset(0) && (found.stateful || marker.is_none()) => {
            Err(ChangelogError::Truncated { topic, log_start: found.log_start })
        }
        _ if level.unwrap_or_default() < found.needed => Ok(ChangelogStart::NotLevel),
        (Some(marker), Some(local)) if local > marker => Ok(ChangelogStart::AfterWithoutLocal(marker)),
        (Some(marker), _) => Ok(ChangelogStart::After(marker)),
        (None, Some(local)) if found.log_start > Offset(0) => Ok(ChangelogStart::After(local)),
        (None, Some(local)) => Err(ChangelogError::Emptied { topic, local }),
        (None, None) if found.restored => Err(ChangelogError::NoSnapshot { topic }),
        (None, None) => Ok(ChangelogStart::New),
    }
}

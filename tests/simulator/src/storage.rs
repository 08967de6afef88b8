//! Snapshots of tasks in object storage, and the changelogs that are trimmed behind them.
//!
//! The owner of a task makes a checkpoint of what is committed, and uploads it beside its work; then it removes what is too
//! much, and trims the changelog up to the marker of the oldest one that is kept. A restore takes the state on the disk if
//! the changelog still reaches back to it, else the newest snapshot that is whole and of this history, else the changelog
//! alone. Brokers that have lost what they had acknowledged leave states and snapshots that are newer than the changelog,
//! or of a history that did not come to be: where their marker should lie, something else does.

use crate::broker::{Broker, Topic, Tp};
use crate::driver::Env;
use crate::model::TASKS;
use crate::mutant::Mutant;
use crate::oracle::Violation;
use crate::volume::Local;

/// Snapshots of a task that are kept. One of them can be damaged without harm.
const KEEP: usize = 2;

struct Snapshot {
    local: Local,
    damaged: bool,
}

/// A checkpoint on its way.
struct Upload {
    process: usize,
    task: usize,
    local: Local,
}

#[derive(Default)]
pub struct Storage {
    /// By epoch.
    snapshots: [Vec<Snapshot>; TASKS],
    uploads: Vec<Upload>,
    /// Snapshots that were made since a changelog has lost what it had.
    since_loss: usize,
}

/// The changelog still holds what follows the state, and the state is a part of its history.
pub fn reaches(broker: &Broker, task: usize, local: &Local, mutant: Option<Mutant>) -> bool {
    let tp = Tp(Topic::Changelog, task);
    let begins = local.read >= broker.log_start(tp) || mutant == Some(Mutant::ReplaysWhatIsLeft);
    begins && local.read <= broker.end_of(tp) && (broker.tells(task, local) || mutant == Some(Mutant::TrustsPositions))
}

impl Storage {
    /// The state with which a restore begins when there is none on the disk.
    pub fn base(&self, broker: &Broker, task: usize, mutant: Option<Mutant>) -> Local {
        let whole = |snapshot: &&Snapshot| !snapshot.damaged || mutant == Some(Mutant::TakesDamagedSnapshots);
        let fits = |snapshot: &&Snapshot| {
            mutant == Some(Mutant::TakesTheNewestSnapshot) || reaches(broker, task, &snapshot.local, mutant)
        };
        let found = self.snapshots[task].iter().rev().filter(whole).find(fits);
        let mut local = found.map(|snapshot| snapshot.local.clone()).unwrap_or_default();
        if found.is_some_and(|snapshot| snapshot.damaged) {
            local.state.pop_first();
        }
        local
    }

    /// A process has crashed.
    pub fn forget(&mut self, process: usize) {
        self.uploads.retain(|upload| upload.process != process);
    }

    /// Of two disasters at once nothing is left; what was damaged is there again.
    pub fn mend(&mut self) {
        self.snapshots.iter_mut().flatten().for_each(|snapshot| snapshot.damaged = false);
        self.since_loss = 0;
    }
}

impl Env {
    /// What is committed of a task that runs is held fast.
    pub fn checkpoint(&mut self, process: usize, task: usize) {
        let local = self.volumes[process].dbs[task].local.clone();
        let newest = self.storage.snapshots[task].last().map(|newest| newest.local.epoch());
        if local.marker.epoch > 0 && newest != Some(local.epoch()) {
            self.flush(process, task);
            self.storage.uploads.retain(|upload| (upload.process, upload.task) != (process, task));
            self.storage.uploads.push(Upload { process, task, local });
        }
    }

    /// One of the checkpoints has been uploaded, whoever owns the task by now.
    pub fn upload(&mut self) {
        if self.storage.uploads.is_empty() {
            return;
        }
        let one = self.rng.below(self.storage.uploads.len());
        let Upload { process, task, local } = self.storage.uploads.swap_remove(one);
        self.trace.line(format_args!("snapshot of task {task} in epoch {} by process {process:x}", local.epoch()));
        let snapshots = &mut self.storage.snapshots[task];
        let at = snapshots.partition_point(|other| other.local.epoch() < local.epoch());
        snapshots.insert(at, Snapshot { local, damaged: false });
        self.storage.since_loss += usize::from(self.broker.audit.lost == Some(task));
        self.trim(task);
    }

    fn trim(&mut self, task: usize) {
        let (broker, mutant) = (&self.broker, self.mutant);
        let counts = |snapshot: &&Snapshot| {
            mutant == Some(Mutant::CountsOtherHistories) || reaches(broker, task, &snapshot.local, mutant)
        };
        let counted = self.storage.snapshots[task].iter().rev().filter(counts);
        let kept: Vec<&Local> = counted.take(KEEP).map(|snapshot| &snapshot.local).collect();
        let enough = kept.len() == KEEP || mutant == Some(Mutant::TrimsBehindTheFirst);
        let Some(oldest) = kept.last().filter(|_| enough) else { return };
        let to = match mutant {
            Some(Mutant::TrimsBehindTheNewest) => kept[0].read - 1,
            Some(Mutant::TrimsToTheEnd) => broker.end_of(Tp(Topic::Changelog, task)),
            _ => oldest.read - 1,
        };
        let epoch = oldest.epoch();
        self.storage.snapshots[task].retain(|snapshot| snapshot.local.epoch() >= epoch);
        self.broker.trim(Tp(Topic::Changelog, task), to);
        self.trace.line(format_args!("the changelog of task {task} is trimmed to {to}"));
        let reach = |snapshot: &&Snapshot| reaches(&self.broker, task, &snapshot.local, None);
        if self.storage.snapshots[task].iter().filter(reach).count() < KEEP {
            self.broker.audit.report(Violation::Unprotected { task });
        }
    }

    /// Something happens to one snapshot of a task. It is to be survived, but not that the others were lost before.
    pub fn damage(&mut self, task: usize) {
        let spare = self.broker.audit.lost != Some(task) || self.storage.since_loss >= KEEP;
        let snapshots = &mut self.storage.snapshots[task];
        if spare && !snapshots.is_empty() && snapshots.iter().all(|snapshot| !snapshot.damaged) {
            let one = self.rng.below(snapshots.len());
            snapshots[one].damaged = true;
            self.trace.line(format_args!("snapshot {one} of task {task} is damaged"));
        }
    }
}

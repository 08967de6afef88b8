//! A thread that copies states to storage beside the lanes: when a task's changelog has grown, and for savepoints.
//!
//! ```text
//! a lane looks in --due, or to be cut--> offered --> in hand: checkpoint, upload, manifest, tidy --> newest, trim
//! ```
//!
//! - A checkpoint is made here, of what the lane has applied; the lane goes on meanwhile.
//! - A snapshot that fails is made anew later. A cut keeps its checkpoint until it is stored: another one would be another
//!   epoch.
//! - What a task's last owner may delete is decided by who runs it now: a lane that has left a task offers nothing more.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use millrace_core::assignment::Cut;
use millrace_core::ids::{Epoch, Offset, TaskId};
use millrace_core::report::{CutReport, CutTask, SnapshotReport};

use crate::clock;
use crate::engine::chain;
use crate::metrics::Metrics;
use crate::snapshot::{self, Folder, Manifest, Origin, SAVEPOINTS, Shelf, SnapshotError};
use crate::state::{Checkpoint, Checkpoints};
use crate::storage::{Storage, Store};

/// Pause before storage is tried again.
const RETRY_MS: u64 = 5_000;
/// What a record of a changelog takes, about, where its bytes were not counted: they were written before this process.
const RECORD_BYTES: u64 = 200;

/// When snapshots are made, and how many are kept.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotRules {
    pub after_bytes: u64,
    pub keep: usize,
}

/// What a lane says of a task that it runs.
pub struct Look<'a> {
    pub task: &'a TaskId,
    /// Written to its changelog since it began to run here.
    pub bytes: u64,
    /// Its last committed epoch.
    pub epoch: Epoch,
}

/// What comes of a look.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    Nothing,
    /// Offer a checkpoint.
    Wanted,
    /// A savepoint needs an epoch that is begun from now on: commit one, if need be an empty one.
    Touch,
    /// The changelog is not needed below this offset.
    Trim(Offset),
}

pub struct Snapshots {
    storage: Storage,
    rules: SnapshotRules,
    /// For checkpoints: on the disk of the states.
    dir: PathBuf,
    made: AtomicU64,
    table: Mutex<Table>,
    news: Condvar,
    ended: AtomicBool,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct Table {
    tasks: BTreeMap<TaskId, Entry>,
    cut: Option<Cut>,
    /// Why something is not stored yet, by task.
    messages: BTreeMap<TaskId, String>,
}

#[derive(Default)]
struct Entry {
    /// `None`: it was not looked for in storage yet.
    newest: Option<Newest>,
    /// `bytes` of the look at which the newest one was offered.
    since_bytes: u64,
    work: Option<Work>,
    in_hand: bool,
    /// Not before, steady milliseconds.
    due_ms: u64,
    trim: Option<Offset>,
    /// The epoch at which the task was told to be cut: the cut is a later one, which only its owner can commit.
    told: Option<Epoch>,
    cut: Option<CutTask>,
    shelf: Shelf,
}

/// The newest snapshot, and about how many bytes of the changelog lie behind it that nobody has counted here.
#[derive(Default)]
struct Newest {
    report: Option<SnapshotReport>,
    uncounted: u64,
}

enum Work {
    Snapshot(Origin, Checkpoints),
    Cut(String, Origin, Cutting),
}

/// How far a cut is.
enum Cutting {
    Offered(Checkpoints),
    Taken(Checkpoint, Box<Manifest>),
}

enum Done {
    /// The newest one is young enough.
    Found(Newest),
    Snapshot {
        written: snapshot::Written,
        oldest: Option<Offset>,
    },
    Cut(snapshot::Written),
    Failed(SnapshotError, Option<Work>),
}

impl Snapshots {
    pub fn start(
        storage: Storage,
        rules: SnapshotRules,
        dir: PathBuf,
        metrics: &Arc<Metrics>,
    ) -> anyhow::Result<(Arc<Self>, JoinHandle<()>)> {
        // What a process that was killed has left.
        match std::fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("remove old checkpoints in {}", dir.display()));
            }
            _ => {}
        }
        std::fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        let snapshots = Arc::new(Self {
            storage,
            rules,
            dir,
            made: AtomicU64::new(0),
            table: Mutex::default(),
            news: Condvar::new(),
            ended: AtomicBool::new(false),
            metrics: Arc::clone(metrics),
        });
        let own = Arc::clone(&snapshots);
        #[expect(clippy::disallowed_methods, reason = "joined by the worker, which ends it first")]
        let thread = std::thread::Builder::new().name("snapshots".to_owned()).spawn(move || own.work());
        Ok((snapshots, thread.context("start the snapshots' thread")?))
    }

    /// The thread ends after what it is at.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        drop(self.lock());
        self.news.notify_all();
    }

    /// The savepoint that is being made. Another one begins anew.
    pub fn cut(&self, cut: Option<&Cut>) {
        let mut table = self.lock();
        if table.cut.as_ref().map(|cut| &cut.id) != cut.map(|cut| &cut.id) {
            for entry in table.tasks.values_mut() {
                (entry.cut, entry.told) = (None, None);
                entry.work.take_if(|work| matches!(work, Work::Cut(..)));
            }
        }
        table.cut = cut.cloned();
    }

    /// Takes in how a task stands.
    pub fn look(&self, look: &Look<'_>) -> Found {
        let mut table = self.lock();
        let Table { tasks, cut, .. } = &mut *table;
        let entry = tasks.entry(look.task.clone()).or_default();
        if let Some(to) = entry.trim.take() {
            return Found::Trim(to);
        }
        // The task has begun to run again, and counts anew.
        entry.since_bytes = entry.since_bytes.min(look.bytes);
        if entry.in_hand || entry.work.is_some() || clock::steady_ms() < entry.due_ms {
            return Found::Nothing;
        }
        if cut.as_ref().is_some_and(|cut| cut.stages.contains(&look.task.stage)) && entry.cut.is_none() {
            let told = *entry.told.get_or_insert(look.epoch);
            return if look.epoch > told { Found::Wanted } else { Found::Touch };
        }
        let grown = look.bytes - entry.since_bytes + entry.newest.as_ref().map_or(0, |newest| newest.uncounted);
        let due = entry.newest.is_none() || grown >= self.rules.after_bytes;
        if due && look.epoch > Epoch(0) { Found::Wanted } else { Found::Nothing }
    }

    /// A state that was wanted.
    pub fn offer(&self, look: &Look<'_>, origin: Origin, checkpoints: Checkpoints) {
        let mut table = self.lock();
        let cut = table.cut.clone().filter(|cut| cut.stages.contains(&look.task.stage));
        let Some(entry) = table.tasks.get_mut(look.task) else { return };
        entry.work = Some(match cut.filter(|_| entry.cut.is_none()) {
            Some(cut) => Work::Cut(cut.id, origin, Cutting::Offered(checkpoints)),
            None => Work::Snapshot(origin, checkpoints),
        });
        entry.since_bytes = look.bytes;
        entry.due_ms = clock::steady_ms();
        self.news.notify_one();
    }

    /// Of these tasks the worker runs none any more.
    pub fn forget(&self, id: &TaskId) {
        let mut table = self.lock();
        table.tasks.remove(id);
        table.messages.remove(id);
        self.metrics.snapshot(id, None);
    }

    pub fn report(&self) -> (Option<CutReport>, Vec<SnapshotReport>) {
        let table = self.lock();
        let tasks = || table.tasks.values();
        let cut = table.cut.as_ref().map(|cut| CutReport {
            id: cut.id.clone(),
            tasks: tasks().filter_map(|entry| entry.cut.clone()).collect(),
            messages: table.messages.iter().map(|(task, why)| format!("{task}: {why}")).collect(),
        });
        (cut, tasks().filter_map(|entry| entry.newest.as_ref()?.report.clone()).collect())
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some((id, work, mut shelf)) = self.next() {
            let done = self.do_it(&id, work, &mut shelf);
            self.settle(&id, shelf, done);
        }
    }

    /// Waits for something to do; cuts come first. `None`: the end.
    fn next(&self) -> Option<(TaskId, Work, Shelf)> {
        let mut table = self.lock();
        loop {
            if self.ended.load(Ordering::Relaxed) {
                return None;
            }
            let now = clock::steady_ms();
            let offered = table.tasks.iter_mut().filter(|(_, entry)| entry.work.is_some());
            let first = offered.min_by_key(|(_, entry)| {
                (entry.due_ms > now, !matches!(entry.work, Some(Work::Cut(..))), entry.due_ms)
            });
            let wait_ms = match first {
                Some((id, entry)) if entry.due_ms <= now => {
                    let Some(work) = entry.work.take() else { continue };
                    entry.in_hand = true;
                    return Some((id.clone(), work, std::mem::take(&mut entry.shelf)));
                }
                Some((_, entry)) => entry.due_ms - now,
                None => u64::from(u32::MAX),
            };
            let waited = self.news.wait_timeout(table, Duration::from_millis(wait_ms));
            table = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn do_it(&self, id: &TaskId, work: Work, shelf: &mut Shelf) -> Done {
        match work {
            Work::Snapshot(origin, checkpoints) => {
                let done = self.snapshot(id, &origin, checkpoints, shelf);
                done.unwrap_or_else(|error| Done::Failed(error, None))
            }
            Work::Cut(savepoint, origin, Cutting::Offered(checkpoints)) => {
                match self.checkpoint(&origin, checkpoints, shelf) {
                    Ok((checkpoint, manifest)) => self.store(id, savepoint, origin, (checkpoint, manifest), shelf),
                    Err(error) => Done::Failed(error, None),
                }
            }
            Work::Cut(savepoint, origin, Cutting::Taken(checkpoint, manifest)) => {
                self.store(id, savepoint, origin, (checkpoint, *manifest), shelf)
            }
        }
    }

    fn checkpoint(
        &self,
        origin: &Origin,
        checkpoints: Checkpoints,
        shelf: &mut Shelf,
    ) -> Result<(Checkpoint, Manifest), SnapshotError> {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let checkpoint = checkpoints.make(self.dir.join(number.to_string()))?;
        // Its owner may close the state from now on.
        drop(checkpoints);
        let manifest = shelf.describe(&checkpoint, origin, clock::now_ms())?;
        Ok((checkpoint, manifest))
    }

    fn snapshot(
        &self,
        id: &TaskId,
        origin: &Origin,
        checkpoints: Checkpoints,
        shelf: &mut Shelf,
    ) -> Result<Done, SnapshotError> {
        let store = self.storage.connect()?;
        if self.lock().tasks.get(id).is_some_and(|entry| entry.newest.is_none()) {
            let newest = newest(&store, id, origin, checkpoints.next()?)?;
            if newest.uncounted < self.rules.after_bytes {
                return Ok(Done::Found(newest));
            }
        }
        let (checkpoint, manifest) = self.checkpoint(origin, checkpoints, shelf)?;
        let epoch = manifest.marker.epoch;
        let written = shelf.write(&store, manifest, checkpoint.dir(), None)?;
        // Somebody else may run it by now, and deletes for himself.
        let ours = self.lock().tasks.contains_key(id);
        let oldest = if ours { shelf.tidy(&store, origin, epoch, self.rules.keep, clock::now_ms())? } else { None };
        // Its own marker stays: it shows that the changelog is that of this state.
        Ok(Done::Snapshot { written, oldest: oldest.map(|next| Offset(next.0 - 1)).filter(|before| before.0 > 0) })
    }

    fn store(
        &self,
        id: &TaskId,
        savepoint: String,
        origin: Origin,
        (checkpoint, manifest): (Checkpoint, Manifest),
        shelf: &mut Shelf,
    ) -> Done {
        let (stage, partition, epoch) = (id.stage.clone(), id.partition, manifest.marker.epoch);
        {
            let mut table = self.lock();
            let current = table.cut.as_ref().is_some_and(|cut| cut.id == savepoint);
            if let Some(entry) = table.tasks.get_mut(id).filter(|entry| current && entry.cut.is_none()) {
                entry.cut = Some(CutTask { stage, partition, epoch, stored: false });
            }
        }
        let key = format!("{SAVEPOINTS}/{savepoint}/{}/{}.json", id.stage, id.partition);
        let stored = self.storage.connect().map_err(SnapshotError::from);
        let stored = stored.and_then(|store| shelf.write(&store, manifest.clone(), checkpoint.dir(), Some(&key)));
        match stored {
            Ok(written) => Done::Cut(written),
            Err(error) => {
                let taken = Cutting::Taken(checkpoint, Box::new(manifest));
                Done::Failed(error, Some(Work::Cut(savepoint, origin, taken)))
            }
        }
    }

    fn settle(&self, id: &TaskId, shelf: Shelf, done: Done) {
        let mut table = self.lock();
        let Table { tasks, messages, cut } = &mut *table;
        let Some(entry) = tasks.get_mut(id) else { return };
        entry.in_hand = false;
        entry.shelf = shelf;
        match done {
            Done::Found(newest) => {
                messages.remove(id);
                if let Some(report) = &newest.report {
                    self.metrics.snapshot(id, Some((report, 0)));
                }
                entry.newest = Some(newest);
            }
            Done::Snapshot { written, oldest } => {
                messages.remove(id);
                tracing::info!(
                    task = %id, epoch = %written.manifest.marker.epoch, bytes = written.manifest.bytes(),
                    uploaded = written.uploaded_bytes, "a snapshot is in storage"
                );
                let report = reported(&written.manifest);
                self.metrics.snapshot(id, Some((&report, written.uploaded_bytes)));
                entry.newest = Some(Newest { report: Some(report), uncounted: 0 });
                entry.trim = oldest;
            }
            Done::Cut(written) => {
                messages.remove(id);
                let epoch = written.manifest.marker.epoch;
                tracing::info!(task = %id, %epoch, uploaded = written.uploaded_bytes, "its part of a savepoint is in storage");
                self.metrics.uploaded(written.uploaded_bytes);
                if let Some(task) = entry.cut.as_mut().filter(|task| task.epoch == epoch) {
                    task.stored = true;
                }
            }
            Done::Failed(error, again) => {
                let why = chain(&error);
                tracing::warn!(task = %id, error = why, "a snapshot is not in storage, and is tried again");
                self.metrics.snapshot_failed();
                messages.insert(id.clone(), why);
                entry.due_ms = clock::steady_ms() + RETRY_MS;
                let wanted = |work: &Work| matches!(work, Work::Cut(savepoint, ..) if cut.as_ref().is_some_and(|cut| cut.id == *savepoint));
                entry.work = again.filter(wanted);
            }
        }
    }
}

/// Of a task that began to run here: its last owner may have made one a moment ago.
fn newest(store: &Store, id: &TaskId, origin: &Origin, next: Offset) -> Result<Newest, SnapshotError> {
    let folder = Folder::new(origin.timeline, id);
    let mut found = None;
    if let Some(name) = snapshot::manifests(store, &folder)?.first() {
        found = snapshot::read_manifest(store, &folder, name, id)?.ok();
    }
    let records = next.0 - found.as_ref().map_or(0, |manifest| manifest.next.0);
    let uncounted = u64::try_from(records).unwrap_or(0) * RECORD_BYTES;
    Ok(Newest { report: found.as_ref().map(reported), uncounted })
}

fn reported(manifest: &Manifest) -> SnapshotReport {
    let TaskId { stage, partition } = manifest.task.clone();
    let (epoch, taken_ms, bytes) = (manifest.marker.epoch, manifest.taken_ms, manifest.bytes());
    SnapshotReport { stage, partition, epoch, taken_ms, bytes }
}

/// The tasks that a lane runs, and used to run a look ago.
#[derive(Debug, Default)]
pub struct Running(BTreeSet<TaskId>);

impl Running {
    /// Takes in which tasks run now; returns those that do not any more.
    pub fn now(&mut self, tasks: BTreeSet<TaskId>) -> Vec<TaskId> {
        let left = self.0.difference(&tasks).cloned().collect();
        self.0 = tasks;
        left
    }
}

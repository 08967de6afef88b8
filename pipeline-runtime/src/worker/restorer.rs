//! Threads that bring states level beside the lanes: of tasks that are about to move here, while somebody else runs them,
//! and of tasks that a lane has claimed, so that its others go on meanwhile.
//!
//! ```text
//! on disk -- a restorer opens it --> in hand (a slice of the changelog is read) <--> kept --> taken by a lane
//!    ^                                                                                 |
//!    '------------------------- closed: nobody wants it any more ----------------------'
//! ```
//!
//! - What is read here is a head start and decides nothing: a lane takes the state after its claim, and reads the rest
//!   of the tail itself.
//! - Only what is committed is read, so that a state is never ahead of its changelog (I1).
//! - A lane opens no state itself: what it runs it has taken from here. So each state is opened by one at a time; where
//!   one lane has not closed it yet when another lane asks, RocksDB's lock makes an error of it, which passes.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use millrace_core::control::Created;
use millrace_core::ids::{Epoch, TaskId};

use crate::clock;
use crate::engine::build::{BuildError, Builder};
use crate::engine::chain;
use crate::engine::restore::{Go, Known, Reach, Reading, Restored};
use crate::log::LogError;
use crate::log::kafka::connection::Connection;
use crate::log::kafka::{KafkaLog, KafkaLogConfig};
use crate::metrics::Metrics;
use crate::state::TaskState;

/// Each has a client of its own. Two, so that a long restore does not hold up all others.
const RESTORERS: usize = 2;
/// With nothing to do for so long a client is closed.
const REST_MS: u64 = 60_000;
/// After so long a long restore lets others come first.
const SLICE_MS: u64 = 2_000;
/// Whoever nobody waits for works so long and then rests so often as long, so that the lanes of this worker, and of others on
/// its node, have the cores: both threads together take half of one at most.
const WORK_MS: u64 = 25;
const RESTS: u64 = 3;
/// A state with more than this part of the worker's write buffers in memory is written out.
const MEMORY_SHARE: u64 = 16;
/// How often the changelog of a task that is level is looked at: what came meanwhile is the tail that a lane reads.
const FOLLOW_MS: u64 = 200;
/// A state that was read to its changelog's end no longer ago is level.
const LEVEL_MS: u64 = 5_000;
/// Pause before a changelog is read again whose marker is on its way.
const MARKER_MS: u64 = 10;
/// Pause after an error that passes.
const RETRY_MS: u64 = 200;
/// Pause after one that does not, where nobody waits.
const MISTAKE_MS: u64 = 10_000;

/// What a lane gets.
pub enum Taken {
    /// Level as of a moment ago.
    State(Box<TaskState>),
    /// It is being brought level.
    NotYet,
    /// It cannot be restored, and why.
    Refused(String),
}

/// The states that are with the restorers, shared by them and the lanes.
pub struct Restorers {
    table: Mutex<Table>,
    news: Condvar,
    ended: AtomicBool,
    metrics: Arc<Metrics>,
}

struct Table {
    builder: Arc<Builder>,
    /// Of the clients, and which ones.
    config: KafkaLogConfig,
    clients: u64,
    tasks: BTreeMap<TaskId, Entry>,
}

#[derive(Default)]
struct Entry {
    /// It is about to move here.
    warm: bool,
    /// A lane has claimed it and waits: the marker of this epoch must be there.
    claimed: Option<Epoch>,
    created: Option<Created>,
    place: Place,
    /// When it is read on, steady milliseconds.
    due_ms: u64,
    /// As of when it is level, if the last reading came to the end.
    level_ms: Option<u64>,
    /// Read since it was level last.
    records: u64,
    refused: Option<String>,
    /// The error that was logged last.
    error: String,
}

#[derive(Default)]
enum Place {
    #[default]
    OnDisk,
    InHand,
    Kept(Box<TaskState>),
}

/// A slice of a restore.
struct Work {
    id: TaskId,
    state: Option<Box<TaskState>>,
    created: Option<Created>,
    needed: Option<Epoch>,
    builder: Arc<Builder>,
}

enum Next {
    Work(Box<Work>),
    /// There was nothing to keep a client for.
    Rest,
    End,
}

impl Entry {
    fn due_now() -> Self {
        Self { due_ms: clock::steady_ms(), ..Self::default() }
    }

    fn wanted(&self) -> bool {
        self.warm || self.claimed.is_some()
    }

    fn in_hand(&self) -> bool {
        matches!(self.place, Place::InHand)
    }

    /// A claimed task is written by nobody, so that it stays level.
    fn level(&self, now: u64) -> bool {
        self.level_ms.is_some_and(|at| self.claimed.is_some() || now.saturating_sub(at) <= LEVEL_MS)
    }

    fn state(&mut self) -> Option<Box<TaskState>> {
        if self.in_hand() {
            return None;
        }
        match std::mem::take(&mut self.place) {
            Place::Kept(state) => Some(state),
            Place::OnDisk | Place::InHand => None,
        }
    }
}

impl Restorers {
    /// Starts the threads. `config` is for their clients.
    pub fn start(
        builder: Builder,
        config: KafkaLogConfig,
        metrics: &Arc<Metrics>,
    ) -> anyhow::Result<(Arc<Self>, Vec<JoinHandle<()>>)> {
        let table = Table { builder: Arc::new(builder), config, clients: 0, tasks: BTreeMap::new() };
        let restorers = Arc::new(Self {
            table: Mutex::new(table),
            news: Condvar::new(),
            ended: AtomicBool::new(false),
            metrics: Arc::clone(metrics),
        });
        let spawn = |number: usize| {
            let own = Arc::clone(&restorers);
            #[expect(clippy::disallowed_methods, reason = "joined by the worker, which ends it first")]
            std::thread::Builder::new().name(format!("restorer-{number}")).spawn(move || own.work())
        };
        let threads = (0..RESTORERS).map(spawn).collect::<Result<_, _>>().context("start a restorer")?;
        Ok((restorers, threads))
    }

    /// The threads end after the slice that they are at.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        drop(self.lock());
        self.news.notify_all();
    }

    /// Takes new clients.
    pub fn reconnect(&self, connection: &Connection) {
        let mut table = self.lock();
        table.config.connection = connection.clone();
        table.clients += 1;
    }

    /// Keeps the states of these tasks level. Of the worker's own tasks those stay that are, until a lane takes them.
    pub fn follow(&self, warm: &BTreeMap<TaskId, Option<Created>>, own: &BTreeSet<TaskId>, builder: Builder) {
        let mut table = self.lock();
        table.builder = Arc::new(builder);
        for (id, created) in warm {
            let entry = table.tasks.entry(id.clone()).or_insert_with(Entry::due_now);
            if !entry.warm {
                tracing::info!(task = %id, "warm: its changelog is followed");
            }
            entry.warm = true;
            entry.created.clone_from(created);
        }
        for (id, entry) in &mut table.tasks {
            entry.warm &= warm.contains_key(id) || own.contains(id);
        }
        self.forget(table);
        self.news.notify_all();
    }

    /// True for a task that is followed, and level.
    pub fn level(&self, id: &TaskId) -> bool {
        self.lock().tasks.get(id).is_some_and(|entry| entry.level(clock::steady_ms()))
    }

    /// The state of a task that a lane has claimed, once it is level: as `created` says of its changelog, where the marker
    /// of the epoch `needed` must be.
    pub fn take(&self, id: &TaskId, created: Option<&Created>, needed: Epoch) -> Taken {
        let mut table = self.lock();
        let entry = table.tasks.entry(id.clone()).or_insert_with(Entry::due_now);
        if let Some(why) = entry.refused.take() {
            table.tasks.remove(id);
            return Taken::Refused(why);
        }
        if entry.level(clock::steady_ms())
            && let Some(state) = entry.state()
        {
            table.tasks.remove(id);
            self.metrics.warm(id, None);
            return Taken::State(state);
        }
        if entry.claimed.is_none() {
            tracing::info!(task = %id, "its state is brought level, and its lane waits for it");
            // Level was said of a changelog that somebody wrote to: it is looked at again.
            entry.level_ms = None;
            entry.due_ms = clock::steady_ms();
            self.news.notify_all();
        }
        entry.claimed = Some(needed);
        entry.created = created.cloned();
        Taken::NotYet
    }

    /// A lane does not wait for a task any more.
    pub fn withdraw(&self, id: &TaskId) {
        let mut table = self.lock();
        if let Some(entry) = table.tasks.get_mut(id) {
            entry.claimed = None;
            entry.due_ms = clock::steady_ms();
        }
        self.forget(table);
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes what nobody wants any more. What is in hand is closed when it comes back.
    fn forget(&self, mut table: MutexGuard<'_, Table>) {
        let unwanted = table.tasks.extract_if(.., |_, entry| !entry.wanted() && !entry.in_hand());
        let unwanted: Vec<(TaskId, Entry)> = unwanted.collect();
        // A flush takes its time.
        drop(table);
        for (id, mut entry) in unwanted {
            tracing::info!(task = %id, "its changelog is not followed any more");
            self.metrics.warm(&id, None);
            if let Some(Err(error)) = entry.state().map(|state| state.flush()) {
                tracing::warn!(task = %id, error = chain(&error), "what was read of the changelog will be read again");
            }
        }
    }

    fn work(&self) {
        let mut client = None;
        // The lanes take their ids meanwhile. Where it fails, whoever needs it tries again.
        if let Err(error) = self.connected(&mut client) {
            tracing::debug!(%error, "a restorer is not connected yet");
        }
        loop {
            match self.next(client.is_some()) {
                Next::Work(work) => {
                    let (id, began_ms) = (work.id.clone(), clock::steady_ms());
                    let restored = self.read(&mut client, *work, began_ms);
                    self.give_back(&id, began_ms, restored);
                }
                Next::Rest => client = None,
                Next::End => return,
            }
        }
    }

    /// A client of the newest connection, by its number.
    fn connected<'a>(&self, client: &'a mut Option<(u64, KafkaLog)>) -> Result<&'a mut KafkaLog, LogError> {
        let (config, number) = {
            let table = self.lock();
            (table.config.clone(), table.clients)
        };
        if client.as_ref().is_none_or(|(has, _)| *has != number) {
            *client = None;
        }
        let (_, log) = match client {
            Some(client) => client,
            None => client.insert((number, KafkaLog::open(config)?)),
        };
        Ok(log)
    }

    /// Waits until something is to be read. Whoever a lane waits for comes first.
    fn next(&self, connected: bool) -> Next {
        let rest_ms = clock::steady_ms() + REST_MS;
        let mut table = self.lock();
        loop {
            if self.ended.load(Ordering::Relaxed) {
                return Next::End;
            }
            let (now, idle) = (clock::steady_ms(), connected && table.tasks.is_empty());
            if idle && now >= rest_ms {
                return Next::Rest;
            }
            let Table { builder, tasks, .. } = &mut *table;
            let free = tasks.iter_mut().filter(|(_, entry)| !entry.in_hand());
            let first = free.min_by_key(|(_, entry)| {
                let later = entry.due_ms > now;
                (later, !later && entry.claimed.is_none(), entry.due_ms)
            });
            let wait_ms = match first {
                Some((id, entry)) if entry.due_ms <= now => {
                    let (id, state) = (id.clone(), entry.state());
                    entry.place = Place::InHand;
                    let (created, needed) = (entry.created.clone(), entry.claimed);
                    let builder = Arc::clone(builder);
                    return Next::Work(Box::new(Work { id, state, created, needed, builder }));
                }
                None if idle => Some(rest_ms - now),
                first => first.map(|(_, entry)| entry.due_ms - now),
            };
            table = match wait_ms {
                None => self.news.wait(table).unwrap_or_else(PoisonError::into_inner),
                Some(ms) => {
                    let waited = self.news.wait_timeout(table, Duration::from_millis(ms));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn read(&self, client: &mut Option<(u64, KafkaLog)>, work: Work, began_ms: u64) -> Result<Restored, BuildError> {
        let Work { id, state, created, needed, builder } = work;
        let log = self.connected(client)?;
        log.expect_internal(&builder.names.changelog(&id.stage), builder.topology.tasks[&id.stage]);
        let go = || match self.ended.load(Ordering::Relaxed) {
            true => Go::End,
            false if clock::steady_ms() - began_ms >= SLICE_MS => Go::Later,
            false => Go::On,
        };
        let rested_ms = Cell::new(began_ms);
        let pace = || self.pace(&id, &rested_ms);
        let known = Some(Known { created: created.as_ref(), needed });
        let reading = Reading { known, now_ms: clock::now_ms(), go: &go, pace: &pace };
        let restored = builder.restore(&id, state.map(|state| *state), reading, log)?;
        // The memory is for the lanes, which cannot write out what is not theirs.
        if restored.state.memtable_bytes() > builder.budget.write_buffer_bytes() as u64 / MEMORY_SHARE {
            restored.state.start_flush().map_err(|source| BuildError::State { task: id, source })?;
        }
        Ok(restored)
    }

    /// Rests where it is time to, until a lane waits for the task.
    fn pace(&self, id: &TaskId, rested_ms: &Cell<u64>) {
        let began_ms = clock::steady_ms();
        let worked_ms = began_ms - rested_ms.get();
        if worked_ms < WORK_MS {
            return;
        }
        let mut table = self.lock();
        loop {
            let claimed = table.tasks.get(id).is_some_and(|entry| entry.claimed.is_some());
            let left_ms = (worked_ms * RESTS).saturating_sub(clock::steady_ms() - began_ms);
            if claimed || left_ms == 0 || self.ended.load(Ordering::Relaxed) {
                break;
            }
            let waited = self.news.wait_timeout(table, Duration::from_millis(left_ms));
            table = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        rested_ms.set(clock::steady_ms());
    }

    fn give_back(&self, id: &TaskId, began_ms: u64, restored: Result<Restored, BuildError>) {
        let mut table = self.lock();
        let Some(entry) = table.tasks.get_mut(id) else { return };
        let (now, was_level) = (clock::steady_ms(), entry.level_ms.take().is_some());
        entry.place = Place::OnDisk;
        match restored {
            Ok(Restored { state, last, reach, records, fetched_bytes, .. }) => {
                self.metrics.fetched(fetched_bytes);
                entry.place = Place::Kept(Box::new(state));
                entry.records += records;
                entry.error.clear();
                entry.due_ms = match reach {
                    Reach::Level => {
                        let records = std::mem::take(&mut entry.records);
                        if !was_level {
                            tracing::info!(task = %id, epoch = %last, records, "level: its state is where its changelog ends");
                        }
                        entry.level_ms = Some(began_ms);
                        now + FOLLOW_MS
                    }
                    Reach::Short => now + MARKER_MS,
                    Reach::Paused => now,
                };
            }
            Err(error) if !error.passes() && entry.claimed.is_some() => entry.refused = Some(chain(&error)),
            Err(error) => {
                entry.due_ms = now + if error.passes() { RETRY_MS } else { MISTAKE_MS };
                let error = chain(&error);
                if error != entry.error {
                    tracing::warn!(task = %id, error, "the task's state is not level yet");
                    entry.error = error;
                }
            }
        }
        if entry.refused.is_some() {
            // Until the lane has heard it.
            entry.due_ms = u64::MAX;
        }
        if entry.warm {
            self.metrics.warm(id, Some(entry.level(now)));
        }
        // It may be due again before this thread comes to it.
        self.news.notify_all();
        self.forget(table);
    }
}

//! The state of one task: latest rows, versions and waiting rows of its operators, in one RocksDB.
//!
//! ```text
//!   put, delete ---> overlay (the running epoch) --- commit known ---> RocksDB, one batch with the epoch marker
//!        \             ^                                                  ^
//!         \            | reads look here first, then there                |
//!          row cache --+--------------------------------------------------+
//! ```
//!
//! Invariants:
//!
//! - **RocksDB is never ahead of the changelog** (I1 of the architecture). Nothing but [`TaskState::apply`] writes to
//!   it, and that is called when the commit of the changelog records is known. So local state is never wiped after a
//!   crash: it is some epochs behind at most, and its marker says how many.
//! - An epoch is there whole or not at all: its changes and its marker are one write batch of one column family.
//! - The overlay goes away in two ways, both named: `apply` wrote it, `discard` gave it up. After a failed `apply` the
//!   state is *poisoned*: it answers nothing until it is opened again and brought level from the changelog.
//! - What the task reads does not depend on what happened to it: not on epochs, restarts, restores, flushes or cache
//!   sizes (`tests::model` compares with a plain map).
//! - Damage is an error, never another answer: RocksDB checks every block that it reads, and what fails is
//!   [`StateError::Corrupt`].
//!
//! `docs/state.md` has the formats and the reasons.

mod budget;
mod cache;
mod database;
mod decoder;
mod keys;
mod latest;
mod overlay;
mod registry;
#[cfg(test)]
mod tests;
mod ttl;
mod value;
mod versions;
mod waiting;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_core::ids::Offset;
use millrace_core::plan::{StateKind, StateLayout};
use rocksdb::WriteBatch;

pub use budget::StateBudget;
pub use decoder::TableDecoder;
pub use value::StoredRow;

use self::cache::{Place, RowCache};
use self::database::Database;
use self::keys::{META, Slot, row_key};
use self::overlay::Overlay;
use self::registry::{MARKER_KEY, Registry};
use self::ttl::TtlTable;
use crate::row::RowCodecError;

/// Format of keys and values. Stands before the marker; a state of another format is refused.
const STATE_FORMAT: u8 = 1;

#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The local state is damaged. Not to be retried: [`TaskState::destroy`] it and build it again from the changelog.
    #[error("local state is damaged: {0}")]
    Corrupt(String),
    /// Somebody has it open, in this process or another. To be tried again: whoever leaves a task closes its state.
    #[error("local state is in use: {0}")]
    InUse(String),
    /// The disk is full or fails. Whether to retry is for whoever looks after the machine to say; nothing is lost.
    #[error("{doing}: {error}")]
    Io { doing: &'static str, error: String },
    /// An earlier `apply` failed. The task is to be stopped and its state opened again.
    #[error("state cannot be used since an epoch could not be written; open it again")]
    Poisoned,
    /// The plan does not go with the state. The user's: another name for the step, or a restore.
    #[error("state of '{operator}' does not fit the plan: {why}")]
    Incompatible { operator: String, why: String },
    /// A record of the state or of its changelog is of no known form. A newer release wrote it, or an error of ours.
    #[error("state record is not understood: {0}")]
    Record(String),
    /// A newer release wrote the state.
    #[error("state has format {found}, this release knows {STATE_FORMAT}")]
    Format { found: u8 },
    /// An error of ours: the bytes are as they were written, and do not fit the layout they name.
    #[error("read a row of layout {layout}")]
    Row { layout: u16, source: RowCodecError },
}

/// The state of one task. Tables are the position of their layout in the slice that it was opened with.
///
/// Not shared: one lane runs the task. It can move to another thread.
#[derive(Debug)]
pub struct TaskState {
    db: Arc<Database>,
    overlay: Overlay,
    cache: RowCache,
    registry: Registry,
    tables: Vec<TableState>,
    ttl: Arc<TtlTable>,
    poisoned: bool,
    /// When the changelog was last read on, wall-clock milliseconds.
    followed_ms: i64,
    /// The state key in hand: `slot | key`.
    key: Vec<u8>,
    /// The value in hand.
    value: Vec<u8>,
    /// A row that was read and is not in the cache: too large, or not the newest version.
    uncached: Uncached,
}

#[derive(Debug)]
struct TableState {
    slot: Slot,
    layout: u16,
    ttl_ms: Option<i64>,
    /// The latest time that the TTL was looked at with.
    now_ms: i64,
}

#[derive(Debug, Default)]
struct Uncached {
    present: bool,
    valid_from: i64,
    value: Vec<u8>,
}

impl Uncached {
    fn set(&mut self, valid_from: i64, value: Option<&[u8]>) {
        self.valid_from = valid_from;
        self.present = value.is_some();
        self.value.clear();
        self.value.extend_from_slice(value.unwrap_or_default());
    }
}

/// Makes checkpoints of an open state.
#[derive(Clone, Debug)]
pub struct Checkpoints(Arc<Database>);

impl Checkpoints {
    /// A copy of the last applied epoch in `dir`, which must not be there. Its files are shared with the state.
    pub fn make(&self, dir: PathBuf) -> Result<Checkpoint, StateError> {
        let checkpoint = Checkpoint(dir);
        self.0.checkpoint(&checkpoint.0)?;
        Ok(checkpoint)
    }

    /// The changelog offset behind the last applied epoch.
    pub fn next(&self) -> Result<Offset, StateError> {
        Ok(Offset(read_marker(&self.0)?.map_or(0, |(_, next)| next)))
    }
}

/// A copy of a state at the end of an epoch. Its folder goes with it.
#[derive(Debug)]
pub struct Checkpoint(PathBuf);

impl Checkpoint {
    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// Its marker and the next changelog offset.
    pub fn marker(&self) -> Result<(Vec<u8>, i64), StateError> {
        let value = database::get_closed(&self.0, &MARKER_KEY)?;
        let value = value.ok_or_else(|| StateError::Corrupt("a checkpoint without an epoch marker".into()))?;
        parse_marker(&value)
    }

    /// All of its files.
    pub fn files(&self) -> Result<Vec<PathBuf>, StateError> {
        let listed = std::fs::read_dir(&self.0).and_then(|entries| entries.map(|e| Ok(e?.path())).collect());
        listed.map_err(|error| StateError::Io { doing: "list a checkpoint", error: error.to_string() })
    }
}

impl Drop for Checkpoint {
    fn drop(&mut self) {
        if let Err(error) = database::destroy(&self.0) {
            tracing::warn!(%error, dir = %self.0.display(), "a checkpoint is left behind");
        }
    }
}

/// Sizes and counts for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateMetrics {
    /// Keys in RocksDB, estimated: deleted and overwritten ones count until they are compacted.
    pub keys_estimate: u64,
    pub file_bytes: u64,
    pub memtable_bytes: u64,
    pub overlay_bytes: u64,
    pub row_cache_bytes: u64,
    /// Since the state was opened.
    pub row_cache_hits: u64,
    pub row_cache_misses: u64,
}

impl TaskState {
    /// Opens or creates the state in `dir`. `ttl_ms` has one entry for each layout and counts for latest rows only.
    pub fn open(
        dir: &Path,
        budget: &StateBudget,
        layouts: &[StateLayout],
        ttl_ms: &[Option<i64>],
    ) -> Result<Self, StateError> {
        assert_eq!(layouts.len(), ttl_ms.len(), "each layout has its TTL, or None");
        let ttl = Arc::new(TtlTable::new());
        let db = Arc::new(Database::open(dir, budget, Arc::clone(&ttl))?);
        read_marker(&db)?;
        let registry = Registry::new(layouts, &read_records(&db)?)?;
        let table = |(assigned, ttl_ms): (&registry::Assigned, &Option<i64>)| TableState {
            slot: assigned.slot,
            layout: assigned.layout,
            ttl_ms: ttl_ms.filter(|_| assigned.slot.kind() == StateKind::Latest),
            now_ms: i64::MIN,
        };
        let tables = registry.assigned().iter().zip(ttl_ms).map(table).collect();
        let mut state = Self {
            db,
            overlay: Overlay::default(),
            cache: RowCache::new(budget.row_share()),
            registry,
            tables,
            ttl,
            poisoned: false,
            followed_ms: i64::MIN,
            key: Vec::new(),
            value: Vec::new(),
            uncached: Uncached::default(),
        };
        state.follow_registry();
        Ok(state)
    }

    /// Removes the state from the disk, damaged or not. It must not be open.
    pub fn destroy(dir: &Path) -> Result<(), StateError> {
        database::destroy(dir)
    }

    /// What the last applied epoch said: its marker and the next changelog offset. `None` in a new state.
    pub fn marker(&self) -> Result<Option<(Vec<u8>, i64)>, StateError> {
        read_marker(&self.db)
    }

    /// Puts another marker in the place of the last one: a restore begins a new history.
    pub fn set_marker(&mut self, marker: &[u8], changelog_next: i64) -> Result<(), StateError> {
        debug_assert!(!self.dirty(), "between two epochs");
        self.apply(marker, changelog_next)
    }

    /// To make checkpoints with, on another thread. The state is closed once all of these are gone too.
    pub fn checkpoints(&self) -> Checkpoints {
        Checkpoints(Arc::clone(&self.db))
    }

    /// The changelog was read on at this time, whether something was in it or not.
    pub fn followed(&mut self, now_ms: i64) {
        self.followed_ms = now_ms;
    }

    /// The last such time since the state was opened; the least number if there is none.
    pub fn followed_ms(&self) -> i64 {
        self.followed_ms
    }

    /// Changes the TTL of a table of latest rows. What has expired by it is gone at once.
    pub fn set_ttl(&mut self, table: usize, ttl_ms: Option<i64>) {
        let table = &mut self.tables[table];
        table.ttl_ms = ttl_ms.filter(|_| table.slot.kind() == StateKind::Latest);
        self.ttl.set_ttl(table.slot, table.ttl_ms);
    }

    /// True when the running epoch has changed something.
    pub fn dirty(&self) -> bool {
        !self.overlay.is_empty()
    }

    /// Memory that the running epoch's changes take, about.
    pub fn overlay_bytes(&self) -> usize {
        self.overlay.bytes()
    }

    /// The running epoch's changes for the changelog: the last write of each state key, in the order of the keys;
    /// `None` deletes.
    pub fn changes(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.overlay.changes()
    }

    /// True for a key of [`Self::changes`] that is a row of this table.
    pub fn is_of(&self, table: usize, key: &[u8]) -> bool {
        key.starts_with(&self.tables[table].slot.bytes())
    }

    /// The commit is known: writes the epoch's changes and its marker to RocksDB, as one. If that fails the changes stay
    /// where they are and the state is poisoned.
    pub fn apply(&mut self, marker: &[u8], changelog_next: i64) -> Result<(), StateError> {
        self.usable()?;
        let mut batch = WriteBatch::with_capacity_bytes(self.overlay.bytes() + marker.len());
        for (key, value) in self.overlay.changes() {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        batch.put(MARKER_KEY, [&[STATE_FORMAT], &changelog_next.to_le_bytes()[..], marker].concat());
        if let Err(error) = self.db.write(batch) {
            self.poisoned = true;
            return Err(error);
        }
        self.overlay.clear();
        self.registry.commit();
        Ok(())
    }

    /// The epoch was aborted: its changes go, and with them what the cache knows of them.
    pub fn discard(&mut self) {
        if !self.cache.is_empty() {
            for (key, _) in self.overlay.changes() {
                self.cache.remove(row_key(key));
            }
        }
        self.overlay.clear();
        self.registry.roll_back();
        self.follow_registry();
    }

    /// A restore: takes in one record of the changelog, as it was in [`Self::changes`]. `apply` ends the epoch.
    ///
    /// Only before the task's own first write; decoders are made afterwards.
    pub fn replay(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), StateError> {
        self.usable()?;
        if key.starts_with(&META) {
            self.registry.replay(key, value)?;
            self.follow_registry();
        } else {
            let slot = Slot::of(key);
            slot.ok_or_else(|| StateError::Record(format!("'{}' is no state key", key.escape_ascii())))?;
        }
        self.cache.remove(row_key(key));
        self.overlay.put(key, value);
        Ok(())
    }

    /// Deletes all rows of a table, of whatever kind, through the overlay: the changelog gets a tombstone for each.
    pub fn clear_table(&mut self, table: usize) -> Result<(), StateError> {
        self.usable()?;
        let prefix = self.tables[table].slot.bytes();
        let mut rows = self.db.scan(&prefix, &prefix);
        while let Some((key, _)) = rows.current()? {
            self.overlay.put(key, None);
            rows.advance();
        }
        drop(rows);
        let new = self.overlay.changes().filter(|(key, value)| key.starts_with(&prefix) && value.is_some());
        let new: Vec<Vec<u8>> = new.map(|(key, _)| key.to_vec()).collect();
        new.iter().for_each(|key| self.overlay.put(key, None));
        self.cache.clear();
        Ok(())
    }

    /// Writes the memtables to files and waits for it: at a stop, before a snapshot.
    pub fn flush(&self) -> Result<(), StateError> {
        self.db.flush(true)
    }

    /// Begins to write the memtables to files, in the background: when memory is short.
    pub fn start_flush(&self) -> Result<(), StateError> {
        self.db.flush(false)
    }

    /// Bytes that are in memory only, and would be replayed from the changelog after a crash.
    pub fn memtable_bytes(&self) -> u64 {
        self.db.memtable_bytes()
    }

    pub fn metrics(&self) -> StateMetrics {
        StateMetrics {
            keys_estimate: self.db.keys_estimate(),
            file_bytes: self.db.file_bytes(),
            memtable_bytes: self.db.memtable_bytes(),
            overlay_bytes: self.overlay.bytes() as u64,
            row_cache_bytes: self.cache.bytes() as u64,
            row_cache_hits: self.cache.hits(),
            row_cache_misses: self.cache.misses(),
        }
    }

    /// True after a failed [`Self::apply`].
    pub fn poisoned(&self) -> bool {
        self.poisoned
    }

    fn usable(&self) -> Result<(), StateError> {
        if self.poisoned { Err(StateError::Poisoned) } else { Ok(()) }
    }

    /// Slots and layouts may have changed.
    fn follow_registry(&mut self) {
        self.ttl.reset();
        for (table, assigned) in self.tables.iter_mut().zip(self.registry.assigned()) {
            table.slot = assigned.slot;
            table.layout = assigned.layout;
            if table.slot.kind() == StateKind::Latest {
                self.ttl.set_ttl(table.slot, table.ttl_ms);
            }
        }
    }

    /// Before each write of the task's own: the epoch's first one brings the records of new slots and layouts along.
    fn begin_write(&mut self) {
        if self.registry.has_unwritten() {
            for (key, value) in self.registry.take_unwritten() {
                self.overlay.put(&key, Some(&value));
            }
        }
    }

    /// Puts `slot | key` in hand.
    fn take_key(&mut self, table: usize, key: &[u8]) {
        self.key.clear();
        self.key.extend_from_slice(&self.tables[table].slot.bytes());
        self.key.extend_from_slice(key);
    }

    /// What a read found: in the cache, or beside it.
    fn found(&self, place: Option<Place>) -> (i64, Option<&[u8]>) {
        match place {
            Some(place) => {
                let cached = self.cache.at(place);
                (cached.valid_from, cached.value)
            }
            None => (self.uncached.valid_from, self.uncached.present.then_some(&self.uncached.value[..])),
        }
    }
}

/// Puts the newest row of a key into the cache, or beside it if it is too large.
fn remember(
    cache: &mut RowCache,
    uncached: &mut Uncached,
    key: &[u8],
    valid_from: i64,
    value: Option<&[u8]>,
) -> Option<Place> {
    let place = cache.insert(key, valid_from, value);
    if place.is_none() {
        uncached.set(valid_from, value);
    }
    place
}

type Record = (Vec<u8>, Vec<u8>);

fn read_marker(db: &Database) -> Result<Option<(Vec<u8>, i64)>, StateError> {
    db.get(&MARKER_KEY)?.map(|value| parse_marker(&value)).transpose()
}

fn parse_marker(value: &[u8]) -> Result<(Vec<u8>, i64), StateError> {
    let short = || StateError::Corrupt("the epoch marker is cut short".into());
    let (&format, rest) = value.split_first().ok_or_else(short)?;
    if format != STATE_FORMAT {
        return Err(StateError::Format { found: format });
    }
    let (next, marker) = rest.split_first_chunk().ok_or_else(short)?;
    Ok((marker.to_vec(), i64::from_le_bytes(*next)))
}

/// The meta records, without the marker.
fn read_records(db: &Database) -> Result<Vec<Record>, StateError> {
    let mut records = Vec::new();
    let mut rows = db.scan(&META, &META);
    while let Some((key, value)) = rows.current()? {
        if key != MARKER_KEY {
            records.push((key.to_vec(), value.to_vec()));
        }
        rows.advance();
    }
    Ok(records)
}

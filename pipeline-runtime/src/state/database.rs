//! The RocksDB of one task: its options, its errors, and reads that see the overlay on top.
//!
//! There is no WAL: the changelog is the WAL. What is not flushed is lost in a crash, together with the marker that was
//! written with it, so what is found after one is always a whole epoch.

use std::fmt;
use std::iter::Peekable;
use std::path::Path;
use std::sync::Arc;

use rocksdb::compaction_filter::Decision;
use rocksdb::{
    BlockBasedOptions, DB, DBCompressionType, DBPinnableSlice, DBRawIterator, DataBlockIndexType, ErrorKind,
    FlushOptions, LogLevel, Options, ReadOptions, SliceTransform, WriteBatch, WriteOptions, properties,
};

use super::StateError;
use super::budget::StateBudget;
use super::keys::{SLOT_BYTES, Slot, VERSION_BYTES, row_key};
use super::overlay::{OrderedRange, Overlay};
use super::ttl::TtlTable;

/// A block holds the rows around the one that was asked for; larger ones save index memory, smaller ones reads.
const BLOCK_BYTES: usize = 16 << 10;
/// One key in a hundred that is not there costs a block read.
const BLOOM_BITS_PER_KEY: f64 = 10.0;
/// Also with a tiny budget a memtable must hold an epoch.
const MEMTABLE_BYTES_MIN: usize = 1 << 20;
/// A memtable's bloom filter, made with its first row: at 10 bits a key enough for 100,000 keys.
const MEMTABLE_BLOOM_BYTES: usize = 128 << 10;
/// One memtable is written to; behind it others may wait for their flush without stopping the lane.
const MEMTABLES_MAX: i32 = 4;
/// A memtable allocates by this much: many small tasks must not cost a megabyte each.
const ARENA_BLOCK_BYTES: usize = 64 << 10;
/// File descriptors of one task. 32 files of 64 MiB stay open, beyond 2 GiB some are opened again.
const OPEN_FILES_MAX: i32 = 32;
/// Compactions and flushes at once, over all tasks of the process: the lanes need the CPUs.
const BACKGROUND_JOBS_MAX: i32 = 2;
/// RocksDB's own log, of which nothing but errors are wanted.
const LOG_BYTES_MAX: usize = 1 << 20;
const LOG_FILES_MAX: usize = 2;

pub(super) struct Database {
    db: DB,
    point_reads: ReadOptions,
    unlogged: WriteOptions,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("path", &self.db.path()).finish_non_exhaustive()
    }
}

impl Database {
    pub(super) fn open(dir: &Path, budget: &StateBudget, ttl: Arc<TtlTable>) -> Result<Self, StateError> {
        std::fs::create_dir_all(dir).map_err(|error| StateError::Io {
            doing: "create the directory of a task's state",
            error: error.to_string(),
        })?;
        let db = DB::open(&options(budget, ttl), dir).map_err(|error| read_error("open the state", error))?;
        let mut unlogged = WriteOptions::default();
        unlogged.disable_wal(true);
        Ok(Self { db, point_reads: ReadOptions::default(), unlogged })
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<DBPinnableSlice<'_>>, StateError> {
        self.db.get_pinned_opt(key, &self.point_reads).map_err(|error| read_error("read a row", error))
    }

    /// The keys that begin with `prefix`, from `from` on, in order. Without the overlay.
    pub(super) fn scan<'a>(&'a self, prefix: &'a [u8], from: &[u8]) -> Stored<'a> {
        let mut options = ReadOptions::default();
        // A scan within one row's versions can skip the files whose bloom filter does not know the row.
        let one_row = Slot::of(prefix).is_some() && prefix.len() > SLOT_BYTES;
        options.set_total_order_seek(!one_row);
        options.set_prefix_same_as_start(one_row);
        let mut rows = self.db.raw_iterator_opt(options);
        rows.seek(from);
        Stored { rows, prefix }
    }

    /// As [`Self::scan`], with the overlay on top. Not for latest rows, whose overlay has no order.
    pub(super) fn scan_with<'a>(&'a self, overlay: &'a Overlay, prefix: &'a [u8], from: &[u8]) -> Merged<'a> {
        let stored = self.scan(prefix, from);
        Merged { stored, changed: overlay.range_from(from).peekable(), prefix, last: None }
    }

    /// Writes a batch as one. What a failed write has left behind is unknown. After a flush that failed in the background
    /// RocksDB refuses every write with that flush's error (tried on a full disk), so memtables do not pile up behind it.
    pub(super) fn write(&self, batch: WriteBatch) -> Result<(), StateError> {
        self.db.write_opt(batch, &self.unlogged).map_err(|error| write_error("write an epoch", error))
    }

    pub(super) fn flush(&self, wait: bool) -> Result<(), StateError> {
        let mut options = FlushOptions::default();
        options.set_wait(wait);
        self.db.flush_opt(&options).map_err(|error| write_error("flush the state", error))
    }

    /// Rewrites every file, which drops what is expired. RocksDB does it by itself, bit by bit.
    #[cfg(test)]
    pub(super) fn compact(&self) {
        self.db.compact_range::<&[u8], &[u8]>(None, None);
    }

    /// What a crash would leave: everything that is flushed.
    #[cfg(test)]
    pub(super) fn copy_flushed(&self, dir: &Path) {
        let checkpoint = rocksdb::checkpoint::Checkpoint::new(&self.db).expect("database is open");
        checkpoint.create_checkpoint_with_log_size(dir, u64::MAX).expect("disk has room");
    }

    /// A copy in `dir`, of which the files are shared: what is in memory is written out first.
    pub(super) fn checkpoint(&self, dir: &Path) -> Result<(), StateError> {
        let made = rocksdb::checkpoint::Checkpoint::new(&self.db).and_then(|made| made.create_checkpoint(dir));
        made.map_err(|error| write_error("make a checkpoint", error))
    }

    pub(super) fn memtable_bytes(&self) -> u64 {
        self.property(properties::CUR_SIZE_ALL_MEM_TABLES)
    }

    pub(super) fn keys_estimate(&self) -> u64 {
        self.property(properties::ESTIMATE_NUM_KEYS)
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.property(properties::LIVE_SST_FILES_SIZE)
    }

    /// All of these are built in and are numbers, so there is always an answer.
    fn property(&self, name: &properties::PropName) -> u64 {
        self.db.property_int_value(name).ok().flatten().unwrap_or(0)
    }
}

/// A value of a database that nobody has open.
pub(super) fn get_closed(dir: &Path, key: &[u8]) -> Result<Option<Vec<u8>>, StateError> {
    let opened = DB::open_for_read_only(&Options::default(), dir, false);
    opened.and_then(|db| db.get(key)).map_err(|error| read_error("read a checkpoint", error))
}

/// Removes a task's state from the disk. There need not be one, and it may be damaged.
pub(super) fn destroy(dir: &Path) -> Result<(), StateError> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(StateError::Io { doing: "remove a task's state", error: error.to_string() })
        }
        _ => Ok(()),
    }
}

fn options(budget: &StateBudget, ttl: Arc<TtlTable>) -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_max_open_files(OPEN_FILES_MAX);
    options.set_max_background_jobs(BACKGROUND_JOBS_MAX);
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_bottommost_compression_type(DBCompressionType::Lz4);
    // The engine says when to flush. A memtable of its own size limit would be flushed behind its back.
    let memtable_bytes = budget.write_buffer_bytes().max(MEMTABLE_BYTES_MIN);
    options.set_write_buffer_size(memtable_bytes);
    options.set_max_write_buffer_number(MEMTABLES_MAX);
    options.set_write_buffer_manager(budget.write_buffers());
    options.set_arena_block_size(ARENA_BLOCK_BYTES);
    options.set_memtable_prefix_bloom_ratio(MEMTABLE_BLOOM_BYTES as f64 / memtable_bytes as f64);
    options.set_memtable_whole_key_filtering(true);
    options.set_prefix_extractor(SliceTransform::create("millrace.row", row_key, Some(is_version)));
    options.set_block_based_table_factory(&table_options(budget));
    options.set_compaction_filter("millrace.ttl", move |_, key, value| match ttl.expired(key, value) {
        true => Decision::Remove,
        false => Decision::Keep,
    });
    options.set_stats_dump_period_sec(0);
    options.set_stats_persist_period_sec(0);
    options.set_log_level(LogLevel::Error);
    options.set_max_log_file_size(LOG_BYTES_MAX);
    options.set_keep_log_file_num(LOG_FILES_MAX);
    options
}

fn table_options(budget: &StateBudget) -> BlockBasedOptions {
    let mut options = BlockBasedOptions::default();
    options.set_block_cache(budget.blocks());
    options.set_block_size(BLOCK_BYTES);
    options.set_bloom_filter(BLOOM_BITS_PER_KEY, false);
    // Indexes and filters in the cache, so that the budget bounds them too.
    options.set_cache_index_and_filter_blocks(true);
    options.set_pin_l0_filter_and_index_blocks_in_cache(true);
    options.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
    options
}

/// The domain of the prefix extractor: only versions have a prefix that is worth a bloom filter of its own.
fn is_version(state_key: &[u8]) -> bool {
    state_key.len() >= SLOT_BYTES + VERSION_BYTES && row_key(state_key).len() < state_key.len()
}

/// A file that is not there or not whole is damage, which the changelog can repair.
fn read_error(doing: &'static str, error: rocksdb::Error) -> StateError {
    let text = error.to_string();
    let io = |words: &str| error.kind() == ErrorKind::IOError && text.contains(words);
    // The lock of this process, and that of the system.
    let locked = io("lock hold by current process") || io("While lock file");
    let lost_file = io("No such file or directory");
    match error.kind() {
        ErrorKind::Corruption => StateError::Corrupt(text),
        _ if locked => StateError::InUse(text),
        _ if lost_file => StateError::Corrupt(text),
        _ => StateError::Io { doing, error: text },
    }
}

fn write_error(doing: &'static str, error: rocksdb::Error) -> StateError {
    match error.kind() {
        ErrorKind::Corruption => StateError::Corrupt(error.to_string()),
        _ => StateError::Io { doing, error: error.to_string() },
    }
}

/// A key and its value.
pub(super) type Item<'a> = (&'a [u8], &'a [u8]);

/// Keys and values of RocksDB in order, within a prefix.
pub(super) struct Stored<'a> {
    rows: DBRawIterator<'a>,
    prefix: &'a [u8],
}

impl Stored<'_> {
    /// `None` at the end of the prefix.
    pub(super) fn current(&self) -> Result<Option<Item<'_>>, StateError> {
        match self.rows.item() {
            Some((key, value)) if key.starts_with(self.prefix) => Ok(Some((key, value))),
            Some(_) => Ok(None),
            None => match self.rows.status() {
                Ok(()) => Ok(None),
                Err(error) => Err(read_error("scan rows", error)),
            },
        }
    }

    /// Only after [`Self::current`] gave a row.
    pub(super) fn advance(&mut self) {
        self.rows.next();
    }
}

/// What the task sees within a prefix: RocksDB with the running epoch's changes on top.
pub(super) struct Merged<'a> {
    stored: Stored<'a>,
    changed: Peekable<OrderedRange<'a>>,
    prefix: &'a [u8],
    last: Option<Side>,
}

#[derive(Clone, Copy)]
enum Side {
    Stored,
    Changed,
    /// Both have the key; the change counts.
    Both,
}

impl Merged<'_> {
    /// The next row in the order of keys.
    pub(super) fn next(&mut self) -> Result<Option<Item<'_>>, StateError> {
        loop {
            self.step();
            let changed = self.changed.peek().filter(|(key, _)| key.starts_with(self.prefix));
            let side = match (self.stored.current()?, changed) {
                (None, None) => return Ok(None),
                (Some(_), None) => Side::Stored,
                (None, Some(_)) => Side::Changed,
                (Some((stored, _)), Some((changed, _))) => match stored.cmp(changed) {
                    std::cmp::Ordering::Less => Side::Stored,
                    std::cmp::Ordering::Equal => Side::Both,
                    std::cmp::Ordering::Greater => Side::Changed,
                },
            };
            let deleted = changed.is_some_and(|(_, value)| value.is_none());
            self.last = Some(side);
            if matches!(side, Side::Stored) || !deleted {
                break;
            }
        }
        match (self.last, self.changed.peek()) {
            (Some(Side::Changed | Side::Both), Some((key, Some(value)))) => Ok(Some((&key[..], &value[..]))),
            _ => self.stored.current(),
        }
    }

    /// Goes behind the row that was given last.
    fn step(&mut self) {
        if matches!(self.last, Some(Side::Stored | Side::Both)) {
            self.stored.advance();
        }
        if matches!(self.last, Some(Side::Changed | Side::Both)) {
            self.changed.next();
        }
        self.last = None;
    }
}

//! Memory that all tasks of a worker share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rocksdb::{Cache, WriteBufferManager};

/// The row caches get half of the cache: a row that is found there costs a hundredth of one in a cached block, but a
/// block holds the neighbours too.
const ROW_CACHE_SHARE: usize = 2;
/// RocksDB aborts the process if it is to make an empty cache.
const BLOCK_CACHE_BYTES_MIN: usize = 64 << 10;

/// Block cache, row caches and write buffers of a worker. Clones share the same memory.
#[derive(Clone)]
pub struct StateBudget {
    shared: Arc<Shared>,
}

struct Shared {
    blocks: Cache,
    write_buffers: WriteBufferManager,
    write_buffer_bytes: usize,
    row_cache_bytes: usize,
    tasks: AtomicUsize,
}

impl StateBudget {
    /// `cache_bytes` for blocks and rows, `write_buffer_bytes` for memtables. The engine flushes before the latter is
    /// used up; RocksDB itself would flush whatever task writes next, however little that holds.
    pub fn new(cache_bytes: usize, write_buffer_bytes: usize) -> Self {
        let row_cache_bytes = cache_bytes / ROW_CACHE_SHARE;
        let block_cache_bytes = (cache_bytes - row_cache_bytes).max(BLOCK_CACHE_BYTES_MIN);
        let shared = Shared {
            blocks: Cache::new_hyper_clock_cache(block_cache_bytes, 0),
            write_buffers: WriteBufferManager::new_write_buffer_manager(write_buffer_bytes, false),
            write_buffer_bytes,
            row_cache_bytes,
            tasks: AtomicUsize::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Bytes in the memtables of all tasks.
    pub fn write_buffer_bytes_used(&self) -> usize {
        self.shared.write_buffers.get_usage()
    }

    /// Bytes that all memtables together may have.
    pub fn write_buffer_bytes(&self) -> usize {
        self.shared.write_buffer_bytes
    }

    /// Bytes in the shared block cache.
    pub fn block_cache_bytes_used(&self) -> usize {
        self.shared.blocks.get_usage()
    }

    pub(super) fn blocks(&self) -> &Cache {
        &self.shared.blocks
    }

    pub(super) fn write_buffers(&self) -> &WriteBufferManager {
        &self.shared.write_buffers
    }

    pub(super) fn row_share(&self) -> RowShare {
        self.shared.tasks.fetch_add(1, Ordering::Relaxed);
        RowShare { shared: Arc::clone(&self.shared) }
    }
}

impl fmt::Debug for StateBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateBudget")
            .field("row_cache_bytes", &self.shared.row_cache_bytes)
            .field("write_buffer_bytes", &self.shared.write_buffer_bytes)
            .field("tasks", &self.shared.tasks)
            .finish_non_exhaustive()
    }
}

/// One task's part of the row cache: an equal part for each open task, so it shrinks and grows as tasks come and go.
pub(super) struct RowShare {
    shared: Arc<Shared>,
}

impl RowShare {
    pub(super) fn bytes(&self) -> usize {
        self.shared.row_cache_bytes / self.shared.tasks.load(Ordering::Relaxed).max(1)
    }
}

impl Drop for RowShare {
    fn drop(&mut self) {
        self.shared.tasks.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for RowShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RowShare({})", self.bytes())
    }
}

//! Stream rows that wait for the watermark, in the order of their time.
//!
//! A queue in RocksDB has a known trap: its head is a heap of tombstones that every scan walks over. So a scan begins
//! where the reader says that the first row may be.

use millrace_core::plan::StateKind;

use super::keys::{SLOT_BYTES, waiting_position, write_waiting_key};
use super::value::{StoredRow, StoredValue, write_value};
use super::{StateError, TaskState};

/// Before all waiting rows.
pub(super) const FIRST_POSITION: (i64, u64) = (i64::MIN, 0);

impl TaskState {
    /// Adds a row that waits. `sequence` tells rows of one time apart, and orders them.
    pub fn put_waiting(&mut self, table: usize, time: i64, sequence: u64, row: &[u8]) {
        debug_assert_eq!(self.tables[table].slot.kind(), StateKind::Waiting);
        self.begin_write();
        let table = &self.tables[table];
        // Waiting rows have no TTL: each is owed an answer.
        write_value(table.layout, 0, row, &mut self.value);
        write_waiting_key(table.slot, time, sequence, &mut self.key);
        self.overlay.put(&self.key, Some(&self.value));
    }

    /// Removes a row that waited. There need not be one.
    pub fn remove_waiting(&mut self, table: usize, time: i64, sequence: u64) {
        debug_assert_eq!(self.tables[table].slot.kind(), StateKind::Waiting);
        self.begin_write();
        write_waiting_key(self.tables[table].slot, time, sequence, &mut self.key);
        self.overlay.put(&self.key, None);
    }

    /// Shows the rows from `from` on, at most `limit` of them, in the order of (time, sequence). Gives where to go on, if
    /// there is more.
    pub fn scan_waiting(
        &self,
        table: usize,
        from: (i64, u64),
        limit: usize,
        mut visit: impl FnMut(i64, u64, StoredRow<'_>),
    ) -> Result<Option<(i64, u64)>, StateError> {
        self.usable()?;
        debug_assert_eq!(self.tables[table].slot.kind(), StateKind::Waiting);
        let slot = self.tables[table].slot;
        let mut start = Vec::with_capacity(SLOT_BYTES + 16);
        write_waiting_key(slot, from.0, from.1, &mut start);
        let prefix = slot.bytes();
        let mut rows = self.db.scan_with(&self.overlay, &prefix, &start);
        let mut count = 0;
        while let Some((key, value)) = rows.next()? {
            let position = waiting_position(key);
            let (time, sequence) = position.ok_or_else(|| StateError::Corrupt("key of a waiting row".into()))?;
            if count == limit {
                return Ok(Some((time, sequence)));
            }
            visit(time, sequence, StoredValue::read(value)?.row);
            count += 1;
        }
        Ok(None)
    }

    /// How many rows wait, and the highest sequence among them.
    pub fn count_waiting(&self, table: usize) -> Result<(u64, Option<u64>), StateError> {
        let (mut rows, mut highest) = (0, None);
        self.scan_waiting(table, FIRST_POSITION, usize::MAX, |_, sequence, _| {
            rows += 1;
            highest = highest.max(Some(sequence));
        })?;
        Ok((rows, highest))
    }
}

//! Stream rows that wait for the watermark, in the order of their time.
//!
//! A queue in RocksDB has a known trap: its head is a heap of tombstones that every scan walks over. So the state
//! remembers up to where it has taken everything.

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
        let table = &mut self.tables[table];
        table.waiting_from = table.waiting_from.min((time, sequence));
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

    /// Shows the rows with a time at or before `up_to`, at most `limit` of them, in the order of (time, sequence).
    /// Gives how many there were.
    pub fn scan_waiting(
        &self,
        table: usize,
        up_to: i64,
        limit: usize,
        mut visit: impl FnMut(i64, u64, StoredRow<'_>),
    ) -> Result<usize, StateError> {
        self.usable()?;
        debug_assert_eq!(self.tables[table].slot.kind(), StateKind::Waiting);
        let (time, sequence) = self.tables[table].waiting_from;
        let mut from = Vec::with_capacity(SLOT_BYTES + 16);
        write_waiting_key(self.tables[table].slot, time, sequence, &mut from);
        let prefix = self.tables[table].slot.bytes();
        let mut rows = self.db.scan_with(&self.overlay, &prefix, &from);
        let mut count = 0;
        while count < limit {
            let Some((key, value)) = rows.next()? else { break };
            let position = waiting_position(key);
            let (time, sequence) = position.ok_or_else(|| StateError::Corrupt("key of a waiting row".into()))?;
            if time > up_to {
                break;
            }
            visit(time, sequence, StoredValue::read(value)?.row);
            count += 1;
        }
        Ok(count)
    }

    /// As [`Self::scan_waiting`], and removes the rows.
    pub fn take_waiting(
        &mut self,
        table: usize,
        up_to: i64,
        limit: usize,
        mut visit: impl FnMut(i64, u64, StoredRow<'_>),
    ) -> Result<usize, StateError> {
        let mut taken: Vec<(i64, u64)> = Vec::new();
        let count = self.scan_waiting(table, up_to, limit, |time, sequence, row| {
            taken.push((time, sequence));
            visit(time, sequence, row);
        })?;
        for (time, sequence) in &taken {
            self.remove_waiting(table, *time, *sequence);
        }
        // A row that comes later with an earlier position moves this back.
        let all_taken = if count < limit { Some((up_to, u64::MAX)) } else { None };
        if let Some(position) = all_taken.or(taken.last().copied()) {
            self.tables[table].waiting_from = position;
        }
        Ok(count)
    }

    /// Shows the rows from `from` on, at most `limit` of them, in the order of (time, sequence). Gives where to go on, if
    /// there is more.
    pub fn read_waiting(
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
        self.read_waiting(table, FIRST_POSITION, usize::MAX, |_, sequence, _| {
            rows += 1;
            highest = highest.max(Some(sequence));
        })?;
        Ok((rows, highest))
    }
}

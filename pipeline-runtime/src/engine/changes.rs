//! Changes of a table, and how they get into the state.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::Schema;
use millrace_core::schema::Column;

use crate::format::Op;
use crate::row::{KeyEncoder, RowEncoder, RowTypeError};
use crate::rows::RowMeta;
use crate::state::{StateError, TaskState};

/// Table changes in the order in which they were read. A delete has only its primary key.
pub struct Changes {
    pub batch: RecordBatch,
    pub ops: Vec<Op>,
    /// The event time of a change is when it is valid from.
    pub metas: Vec<RowMeta>,
    /// (row, column) of values that the change does not carry: what the table holds stays. Sorted by row.
    pub unavailable: Vec<(usize, usize)>,
}

impl Changes {
    pub fn empty() -> Self {
        let batch = RecordBatch::new_empty(Arc::new(Schema::empty()));
        Self { batch, ops: Vec::new(), metas: Vec::new(), unavailable: Vec::new() }
    }

    /// The entries of one row in `unavailable`.
    pub fn unavailable_of(&self, row: usize) -> &[(usize, usize)] {
        let start = self.unavailable.partition_point(|(r, _)| *r < row);
        let rest = &self.unavailable[start..];
        &rest[..rest.partition_point(|(r, _)| *r == row)]
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error("use state")]
    State(#[from] StateError),
    #[error("encode a row")]
    Row(#[from] RowTypeError),
}

/// Writes a table's changes to the state of its task.
pub struct TableWriter {
    /// Index of the state layout in the task.
    pub layout: usize,
    pub versioned: bool,
    columns: Vec<Column>,
    key_columns: Vec<usize>,
    keys: KeyEncoder,
    encoder: RowEncoder,
}

impl TableWriter {
    pub fn new(
        layout: usize,
        versioned: bool,
        columns: &[Column],
        primary_key: &[String],
    ) -> Result<Self, RowTypeError> {
        let position = |name: &String| {
            columns.iter().position(|c| c.name == *name).expect("the plan checked that the key's columns exist")
        };
        let key_columns: Vec<usize> = primary_key.iter().map(position).collect();
        let types: Vec<_> = key_columns.iter().map(|i| columns[*i].data_type.clone()).collect();
        Ok(Self {
            layout,
            versioned,
            columns: columns.to_vec(),
            key_columns,
            keys: KeyEncoder::new(&types)?,
            encoder: RowEncoder::new(columns),
        })
    }

    /// Empties the table. Versions end at `time` and are still found as of before.
    pub fn truncate(&self, state: &mut TaskState, time: i64, horizon: i64) -> Result<(), ApplyError> {
        if self.versioned {
            state.end_versions(self.layout, time, horizon)?;
        } else {
            state.clear_table(self.layout)?;
        }
        Ok(())
    }

    /// Versions that ended before `horizon` may go.
    pub fn apply(&self, changes: &Changes, state: &mut TaskState, horizon: i64, now_ms: i64) -> Result<(), ApplyError> {
        let key_columns: Vec<ArrayRef> = self.key_columns.iter().map(|i| changes.batch.column(*i).clone()).collect();
        let keys = self.keys.bind(&key_columns)?;
        let rows = self.encoder.bind(changes.batch.columns())?;
        let (mut key, mut row_bytes) = (Vec::new(), Vec::new());
        for (row, op) in changes.ops.iter().enumerate() {
            key.clear();
            if !keys.encode(row, &mut key) {
                // The decoder refuses a null primary key; there is nothing to change.
                continue;
            }
            row_bytes.clear();
            let partial = !changes.unavailable_of(row).is_empty();
            match op {
                Op::Delete => {}
                Op::Upsert if partial => self.merge(changes, row, (&key, &mut row_bytes), state, now_ms)?,
                Op::Upsert => rows.encode(row, &mut row_bytes),
            }
            let value = (*op == Op::Upsert).then_some(row_bytes.as_slice());
            match (self.versioned, value) {
                (true, value) => {
                    state.put_version(self.layout, &key, changes.metas[row].event_time, value, horizon)?;
                }
                (false, Some(value)) => state.put(self.layout, &key, value, now_ms),
                (false, None) => state.delete(self.layout, &key),
            }
        }
        Ok(())
    }

    /// Encodes the row with the columns that the change leaves out taken from what the table holds; null where it
    /// holds nothing.
    fn merge(
        &self,
        changes: &Changes,
        row: usize,
        (key, out): (&[u8], &mut Vec<u8>),
        state: &mut TaskState,
        now_ms: i64,
    ) -> Result<(), ApplyError> {
        let mut decoder = state.decoder(self.layout, &self.columns)?;
        let stored = if self.versioned {
            state.as_of(self.layout, key, changes.metas[row].event_time)?
        } else {
            state.get(self.layout, key, now_ms)?
        };
        match stored {
            Some(stored) => decoder.push(stored)?,
            None => decoder.push_null(),
        }
        let held = decoder.finish();
        let kept = |column: usize| changes.unavailable.contains(&(row, column));
        let merged: Vec<ArrayRef> = (0..self.columns.len())
            .map(|c| if kept(c) { held[c].clone() } else { changes.batch.column(c).slice(row, 1) })
            .collect();
        self.encoder.bind(&merged)?.encode(0, out);
        Ok(())
    }
}

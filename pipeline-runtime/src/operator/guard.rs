//! The guard of an Upsert sink: of each key, only rows pass that are newer than all that passed before.
//!
//! What is kept of a key is the version of the row that passed last, for ever: an older row may come at any time. All rows
//! of a key meet in this task, and its state is committed with the rows that it let pass; so what the sink's topic holds of
//! a key is in the order of its versions, whatever happens to the job. A row that the topic refuses behind the guard counts
//! as passed: one that is older does not come after it either.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int32Array, Int64Array};
use millrace_core::plan;
use millrace_core::plan::{StateLayout, Version};
use millrace_core::schema::Column;
use millrace_core::totals::{DropReason, Totals};

use super::{Context, GiveUp, OperatorError, Outcome, arrow, state};
use crate::format::JsonEncoder;
use crate::row::{KeyEncoder, RowEncoder, RowTypeError};
use crate::rows::{RowMeta, Rows};
use crate::state::StateError;

/// The partition of a position, before its offset.
const PARTITION_BYTES: usize = 4;

pub struct Guard {
    name: String,
    /// Index of its state layout in the task.
    layout: usize,
    key_columns: Vec<usize>,
    keys: KeyEncoder,
    /// The column of the version; `None`: it is the position of the stream record.
    column: Option<usize>,
    versions: RowEncoder,
    encoder: JsonEncoder,
}

impl Guard {
    /// `columns` are those of the input.
    pub fn new(
        name: &str,
        spec: &plan::Guard,
        (layout, kept): (usize, &StateLayout),
        columns: &[Column],
    ) -> Result<Self, RowTypeError> {
        let position = |name: &String| {
            columns.iter().position(|c| c.name == *name).expect("the plan names columns of the guard's input")
        };
        let key_columns: Vec<usize> = spec.key.iter().map(position).collect();
        let types: Vec<_> = key_columns.iter().map(|i| columns[*i].data_type.clone()).collect();
        Ok(Self {
            name: name.to_owned(),
            layout,
            key_columns,
            keys: KeyEncoder::new(&types)?,
            column: match &spec.version {
                Version::SourcePosition => None,
                Version::Column(name) => Some(position(name)),
            },
            versions: RowEncoder::new(&kept.value),
            encoder: JsonEncoder::new(columns),
        })
    }

    pub fn run(&self, rows: Rows, totals: &mut Totals, cx: &mut Context<'_>) -> Outcome {
        totals.rows_in += rows.len() as u64;
        let key_columns: Vec<ArrayRef> = self.key_columns.iter().map(|i| Arc::clone(rows.batch.column(*i))).collect();
        let keys = self.keys.bind(&key_columns)?;
        let columns = self.version_arrays(&rows);
        let versions = self.versions.bind(&columns)?;
        let (mut key, mut version) = (Vec::new(), Vec::new());
        let mut passed = Vec::with_capacity(rows.len());
        for (row, meta) in rows.metas.iter().enumerate() {
            key.clear();
            version.clear();
            if !keys.encode(row, &mut key) {
                self.give_up((&rows, row), totals, cx, ("NullKey", "a column of the sink's key is null"))?;
                continue;
            }
            if columns[0].is_null(row) {
                self.give_up((&rows, row), totals, cx, ("NullVersion", "the version's column is null"))?;
                continue;
            }
            versions.encode(row, &mut version);
            let kept = cx.state.get(self.layout, &key, cx.now_ms).map_err(state(&self.name))?;
            match kept.map(|kept| self.compare(&version, kept.row)).transpose()? {
                None | Some(Some(Ordering::Greater)) => {
                    cx.state.put(self.layout, &key, &version, cx.now_ms);
                    passed.push(row as u32);
                }
                Some(Some(Ordering::Less)) => totals.drop_rows(DropReason::Outdated, 1),
                Some(Some(Ordering::Equal)) => totals.drop_rows(DropReason::SameVersion, 1),
                Some(None) => return Err(self.two_partitions(meta, cx)),
            }
        }
        let out = if passed.len() == rows.len() { rows } else { rows.take(passed).map_err(arrow(&self.name))? };
        totals.rows_out += out.len() as u64;
        Ok(out)
    }

    /// The columns of the state layout's value.
    fn version_arrays(&self, rows: &Rows) -> Vec<ArrayRef> {
        match self.column {
            Some(column) => vec![Arc::clone(rows.batch.column(column))],
            None => {
                let partitions = rows.metas.iter().map(|m| m.partition.0);
                let offsets = rows.metas.iter().map(|m| m.offset.0);
                vec![
                    Arc::new(Int32Array::from_iter_values(partitions)),
                    Arc::new(Int64Array::from_iter_values(offsets)),
                ]
            }
        }
    }

    /// Compares two versions as they are kept. `None`: they are positions in two partitions.
    fn compare(&self, version: &[u8], kept: &[u8]) -> Result<Option<Ordering>, OperatorError> {
        let (partition, number) = self.read(version)?;
        let (kept_partition, kept_number) = self.read(kept)?;
        Ok((partition == kept_partition).then(|| number.cmp(&kept_number)))
    }

    /// The partition, if it has one, and the number of a version: a row of numbers, none of them null ([`crate::row`]).
    fn read<'v>(&self, version: &'v [u8]) -> Result<(&'v [u8], i128), OperatorError> {
        let partition_bytes = if self.column.is_none() { PARTITION_BYTES } else { 0 };
        let parts = version.strip_prefix(&[0]).and_then(|rest| rest.split_at_checked(partition_bytes));
        let parts = parts.and_then(|(partition, rest)| Some((partition, number(rest)?)));
        parts.ok_or_else(|| state(&self.name)(StateError::Corrupt("a version is no row of numbers".to_owned())))
    }

    fn give_up(
        &self,
        (rows, row): (&Rows, usize),
        totals: &mut Totals,
        cx: &mut Context<'_>,
        (code, text): (&'static str, &str),
    ) -> Result<(), OperatorError> {
        let give_up = GiveUp { step: &self.name, encoder: &self.encoder };
        give_up.row(cx, totals, (&rows.batch, row), &rows.metas[row], (DropReason::DeadLettered, code, text))
    }

    /// The topic is not partitioned by the key that its source declares.
    fn two_partitions(&self, meta: &RowMeta, cx: &Context<'_>) -> OperatorError {
        OperatorError::Row {
            step: self.name.clone(),
            code: "KeyInTwoPartitions",
            topic: cx.source_topic.to_owned(),
            partition: meta.partition,
            offset: meta.offset.0,
            text: "the last row of this key came from another partition, and positions in two partitions cannot be \
                   compared; write version: {policy: Column, column: ...}"
                .to_owned(),
        }
    }
}

/// A number of 4, 8 or 16 bytes, little-endian, signed.
fn number(bytes: &[u8]) -> Option<i128> {
    match bytes.len() {
        4 => bytes.try_into().ok().map(i32::from_le_bytes).map(i128::from),
        8 => bytes.try_into().ok().map(i64::from_le_bytes).map(i128::from),
        16 => bytes.try_into().ok().map(i128::from_le_bytes),
        _ => None,
    }
}

//! What the joins share: the key of a stream row, and the table's columns beside the stream's.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use millrace_core::plan::{Join, JoinKind, Missing};
use millrace_core::schema::Column;
use millrace_core::totals::{DropReason, Totals};
use millrace_plan::arrow_schema::arrow_schema;

use super::{Context, GiveUp, OperatorError, arrow, state};
use crate::format::JsonEncoder;
use crate::row::{KeyEncoder, RowTypeError};
use crate::rows::Rows;
use crate::state::{StateError, StoredRow, TableDecoder};

/// A table as a join reads it.
pub struct JoinTable {
    /// Index of its state layout in the task.
    pub layout: usize,
    /// True when the state holds versions.
    pub versioned: bool,
}

/// A join, bound to the columns of its stream.
pub struct BoundJoin {
    pub name: String,
    pub table: JoinTable,
    /// The stage input of the table.
    pub table_input: usize,
    kind: JoinKind,
    missing: Missing,
    table_name: String,
    left_keys: Vec<usize>,
    keys: KeyEncoder,
    /// The table's columns that the output carries, by their names in the table.
    right: Vec<Column>,
    schema: SchemaRef,
    encoder: JsonEncoder,
}

impl BoundJoin {
    /// `right` are the table's columns that the output carries, in its order.
    pub fn new(
        name: &str,
        (spec, missing): (&Join, Missing),
        table: JoinTable,
        (left, right, output): (&[Column], Vec<Column>, &[Column]),
    ) -> Result<Self, RowTypeError> {
        let position = |name: &String| {
            left.iter().position(|c| c.name == *name).expect("the plan names columns of the join's input")
        };
        let left_keys: Vec<usize> = spec.keys.iter().map(|(l, _)| position(l)).collect();
        let types: Vec<_> = left_keys.iter().map(|i| left[*i].data_type.clone()).collect();
        Ok(Self {
            name: name.to_owned(),
            table,
            table_input: spec.table,
            kind: spec.kind,
            missing,
            table_name: spec.table_name.clone(),
            left_keys,
            keys: KeyEncoder::new(&types)?,
            right,
            schema: arrow_schema(output),
            encoder: JsonEncoder::new(left),
        })
    }

    pub fn give_up(&self) -> GiveUp<'_> {
        GiveUp { step: &self.name, encoder: &self.encoder }
    }

    /// Starts the lookups of a batch.
    pub fn lookups(&self, cx: &Context<'_>, rows: &Rows) -> Result<Lookups, OperatorError> {
        Ok(Lookups {
            decoder: cx.state.decoder(self.table.layout, &self.right).map_err(state(&self.name))?,
            kept: Vec::with_capacity(rows.len()),
            key: Vec::new(),
        })
    }

    pub fn key_columns(&self, batch: &RecordBatch) -> Vec<ArrayRef> {
        self.left_keys.iter().map(|i| Arc::clone(batch.column(*i))).collect()
    }

    pub fn keys(&self) -> &KeyEncoder {
        &self.keys
    }

    /// A row without a partner: kept with nulls, dropped, or a dead letter.
    pub fn unmatched(
        &self,
        lookups: &mut Lookups,
        (rows, row): (&Rows, usize),
        totals: &mut Totals,
        cx: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        match (self.missing, self.kind) {
            (Missing::DeadLetter, _) => {
                let text = format!("no row of table '{}' has this key", self.table_name);
                let why = (DropReason::DeadLettered, "Unmatched", text.as_str());
                self.give_up().row(cx, totals, (&rows.batch, row), &rows.metas[row], why)
            }
            (Missing::Unmatched, JoinKind::Left) => {
                lookups.decoder.push_null();
                lookups.kept.push(row as u32);
                Ok(())
            }
            (Missing::Unmatched, JoinKind::Inner) => {
                totals.drop_rows(DropReason::Unmatched, 1);
                Ok(())
            }
        }
    }

    /// Puts the table's columns beside the rows that were kept.
    pub fn finish(&self, lookups: Lookups, rows: &Rows) -> Result<Rows, OperatorError> {
        let Lookups { mut decoder, kept, .. } = lookups;
        let left = if kept.len() == rows.len() { rows.clone() } else { rows.take(kept).map_err(arrow(&self.name))? };
        let mut columns = left.batch.columns().to_vec();
        columns.extend(decoder.finish());
        let options = RecordBatchOptions::new().with_row_count(Some(left.len()));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options);
        Ok(left.with_batch(batch.map_err(arrow(&self.name))?))
    }
}

/// The lookups of one batch: the table's rows, and which stream rows they stand beside.
pub struct Lookups {
    pub decoder: TableDecoder,
    pub kept: Vec<u32>,
    /// Scratch for one key.
    pub key: Vec<u8>,
}

impl Lookups {
    pub fn matched(&mut self, row: usize, stored: StoredRow<'_>) -> Result<(), StateError> {
        self.decoder.push(stored)?;
        self.kept.push(row as u32);
        Ok(())
    }
}

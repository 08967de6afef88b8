//! `WHERE … SELECT …`, on whole batches.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use millrace_core::plan;
use millrace_core::schema::Column;
use millrace_core::totals::{DropReason, Totals};
use millrace_plan::arrow_schema::arrow_schema;
use millrace_plan::{BoundExpr, SqlError, bind};

use super::{Context, GiveUp, OperatorError, Outcome, arrow};
use crate::format::JsonEncoder;
use crate::rows::Rows;

pub struct Project {
    name: String,
    filter: Option<BoundExpr>,
    columns: Vec<BoundExpr>,
    schema: SchemaRef,
    /// For rows that an expression fails on.
    encoder: JsonEncoder,
}

impl Project {
    pub fn new(name: &str, spec: &plan::Project, input: &[Column], output: &[Column]) -> Result<Self, SqlError> {
        let filter = spec.filter.as_ref().map(|sql| bind(sql, input)).transpose()?;
        let columns = spec.columns.iter().map(|c| bind(&c.sql, input)).collect::<Result<_, _>>()?;
        Ok(Self {
            name: name.to_owned(),
            filter,
            columns,
            schema: arrow_schema(output),
            encoder: JsonEncoder::new(input),
        })
    }

    pub fn run(&self, rows: Rows, totals: &mut Totals, cx: &mut Context<'_>) -> Outcome {
        totals.rows_in += rows.len() as u64;
        let out = match self.evaluate(&rows, totals) {
            Ok(out) => out,
            // Some row is at fault. Go row by row, so that only that row pays.
            Err(_) => self.row_by_row(&rows, totals, cx)?,
        };
        totals.rows_out += out.len() as u64;
        Ok(out)
    }

    /// The rows that pass, or the first error of an expression. Counts only when it succeeds.
    fn evaluate(&self, rows: &Rows, totals: &mut Totals) -> Result<Rows, String> {
        let mut kept = rows.clone();
        if let Some(filter) = &self.filter
            && !rows.is_empty()
        {
            let mask = filter.evaluate(&rows.batch).map_err(|e| e.to_string())?;
            let mask: &BooleanArray = mask.as_boolean();
            if mask.null_count() > 0 || mask.true_count() < mask.len() {
                kept = rows.filter(mask).map_err(|e| e.to_string())?;
            }
        }
        let columns = self.columns.iter().map(|c| c.evaluate(&kept.batch)).collect::<Result<Vec<ArrayRef>, _>>();
        let columns = columns.map_err(|e| e.to_string())?;
        let options = RecordBatchOptions::new().with_row_count(Some(kept.len()));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options);
        let batch = batch.map_err(|e| e.to_string())?;
        totals.drop_rows(DropReason::Filtered, (rows.len() - kept.len()) as u64);
        Ok(kept.with_batch(batch))
    }

    fn row_by_row(&self, rows: &Rows, totals: &mut Totals, cx: &mut Context<'_>) -> Result<Rows, OperatorError> {
        let give_up = GiveUp { step: &self.name, encoder: &self.encoder };
        let mut good = Vec::new();
        for i in 0..rows.len() {
            let row = rows.take(vec![i as u32]).map_err(arrow(&self.name))?;
            // The count of a dry run is thrown away: the good rows are counted when they run together.
            match self.evaluate(&row, &mut Totals::default()) {
                Ok(_) => good.push(i as u32),
                Err(text) => {
                    let why = (DropReason::DeadLettered, "ExpressionFailed", text.as_str());
                    give_up.row(cx, totals, (&rows.batch, i), &rows.metas[i], why)?;
                }
            }
        }
        let good = rows.take(good).map_err(arrow(&self.name))?;
        self.evaluate(&good, totals).map_err(|text| OperatorError::Arrow {
            step: self.name.clone(),
            source: arrow::error::ArrowError::ComputeError(text),
        })
    }
}

//! Stored rows to Arrow columns, whatever layouts they were written with.

use arrow::array::ArrayRef;
use millrace_core::schema::Column;

use super::value::StoredRow;
use super::{StateError, TaskState};
use crate::row::{RowBuilders, RowMapping};

/// Reads the rows of one table. Rows of several layouts can follow each other: each layout has its mapping, the columns
/// under construction are shared, so the order is kept.
#[derive(Debug)]
pub struct TableDecoder {
    /// By layout id.
    mappings: Vec<Option<RowMapping>>,
    builders: RowBuilders,
}

impl TaskState {
    /// A decoder for `wanted` columns of `table`. Made after a restore: it knows the layouts that are there now.
    pub fn decoder(&self, table: usize, wanted: &[Column]) -> Result<TableDecoder, StateError> {
        let mut mappings = Vec::new();
        for (id, columns) in self.registry.layouts(table) {
            let mapping = RowMapping::new(columns, wanted).map_err(|error| StateError::Incompatible {
                operator: self.registry.operator(table).to_owned(),
                why: error.to_string(),
            })?;
            mappings.resize_with(usize::from(id), || None);
            mappings.push(Some(mapping));
        }
        Ok(TableDecoder { mappings, builders: RowBuilders::new(wanted) })
    }
}

impl TableDecoder {
    /// Adds a row. After an error the decoder is as it was before.
    pub fn push(&mut self, stored: StoredRow<'_>) -> Result<(), StateError> {
        let layout = stored.layout;
        match self.mappings.get(usize::from(layout)) {
            Some(Some(mapping)) => {
                self.builders.push(mapping, stored.row).map_err(|source| StateError::Row { layout, source })
            }
            _ => Err(StateError::Corrupt(format!("a row has the layout {layout}, which is not in the state"))),
        }
    }

    /// Adds a row in which all wanted columns are null.
    pub fn push_null(&mut self) {
        self.builders.push_null();
    }

    /// Rows since the last [`Self::finish`].
    pub fn rows(&self) -> usize {
        self.builders.rows()
    }

    /// The wanted columns; the decoder is empty again.
    pub fn finish(&mut self) -> Vec<ArrayRef> {
        self.builders.finish()
    }
}

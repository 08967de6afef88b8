//! `tableJoin`: each stream row with the latest row of its key. The task holds the stream back until its tables are
//! level, so a row never meets a table that is still being read for the first time.

use millrace_core::totals::Totals;

use super::join::BoundJoin;
use super::{Context, Outcome, state};
use crate::rows::Rows;

pub struct TableJoin {
    pub join: BoundJoin,
}

impl TableJoin {
    pub fn run(&self, rows: Rows, totals: &mut Totals, cx: &mut Context<'_>) -> Outcome {
        let join = &self.join;
        totals.rows_in += rows.len() as u64;
        let mut lookups = join.lookups(cx, &rows)?;
        let columns = join.key_columns(&rows.batch);
        let keys = join.keys().bind(&columns)?;
        let mut key = std::mem::take(&mut lookups.key);
        for row in 0..rows.len() {
            key.clear();
            // A null key has no partner: SQL's null equals nothing.
            let stored = if keys.encode(row, &mut key) {
                if join.table.versioned {
                    cx.state.as_of(join.table.layout, &key, i64::MAX)
                } else {
                    cx.state.get(join.table.layout, &key, cx.now_ms)
                }
                .map_err(state(&join.name))?
            } else {
                None
            };
            match stored {
                Some(stored) => lookups.matched(row, stored).map_err(state(&join.name))?,
                None => join.unmatched(&mut lookups, (&rows, row), totals, cx)?,
            }
        }
        let out = join.finish(lookups, &rows)?;
        totals.rows_out += out.len() as u64;
        Ok(out)
    }
}

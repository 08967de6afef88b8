//! One row per key: what a `tableJoin` looks up.

use millrace_core::plan::StateKind;

use super::cache::Place;
use super::value::{StoredRow, StoredValue, write_value};
use super::{StateError, TaskState, remember};

impl TaskState {
    /// The row of a key. One that is older than the table's TTL is not there any more.
    pub fn get(&mut self, table: usize, key: &[u8], now_ms: i64) -> Result<Option<StoredRow<'_>>, StateError> {
        self.usable()?;
        debug_assert_eq!(self.tables[table].slot.kind(), StateKind::Latest);
        self.see_time(table, now_ms);
        self.take_key(table, key);
        let place = match self.cache.find(&self.key) {
            Some(place) => Some(place),
            None => self.load_latest()?,
        };
        let ttl_ms = self.tables[table].ttl_ms;
        match self.found(place).1 {
            Some(value) => {
                let value = StoredValue::read(value)?;
                Ok((!value.expired(ttl_ms, now_ms)).then_some(value.row))
            }
            None => Ok(None),
        }
    }

    /// Sets the row of a key, written with the columns of the table's layout.
    pub fn put(&mut self, table: usize, key: &[u8], row: &[u8], now_ms: i64) {
        debug_assert_eq!(self.tables[table].slot.kind(), StateKind::Latest);
        self.see_time(table, now_ms);
        self.begin_write();
        self.take_key(table, key);
        write_value(self.tables[table].layout, now_ms, row, &mut self.value);
        self.overlay.put(&self.key, Some(&self.value));
        self.cache.update(&self.key, i64::MIN, Some(&self.value));
    }

    /// Removes the row of a key. There need not be one.
    pub fn delete(&mut self, table: usize, key: &[u8]) {
        debug_assert_eq!(self.tables[table].slot.kind(), StateKind::Latest);
        self.begin_write();
        self.take_key(table, key);
        self.overlay.put(&self.key, None);
        self.cache.update(&self.key, i64::MIN, None);
    }

    fn load_latest(&mut self) -> Result<Option<Place>, StateError> {
        let Self { overlay, db, cache, uncached, key, .. } = self;
        if let Some(value) = overlay.get(key) {
            return Ok(remember(cache, uncached, key, i64::MIN, value));
        }
        let value = db.get(key)?;
        Ok(remember(cache, uncached, key, i64::MIN, value.as_deref()))
    }

    /// Compactions expire rows by the latest time that the task itself has used.
    fn see_time(&mut self, table: usize, now_ms: i64) {
        let table = &mut self.tables[table];
        if table.ttl_ms.is_some() && now_ms > table.now_ms {
            table.now_ms = now_ms;
            self.ttl.set_now(table.slot, now_ms);
        }
    }
}

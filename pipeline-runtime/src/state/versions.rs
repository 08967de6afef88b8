//! All versions of a row, newest first: what a `temporalJoin` looks up as of a row's own time.
//!
//! A version is valid from its time until the next one's. "Deleted" is a version too, and is kept like one: without it a
//! version that arrives late, from before the deletion, would bring the row back. Two versions of one time: the one that
//! was written last.

use millrace_core::plan::StateKind;

use super::cache::Place;
use super::keys::{SLOT_BYTES, row_key, valid_from, version_suffix};
use super::value::{DELETED, StoredRow, StoredValue, write_value};
use super::{StateError, TaskState, remember};

impl TaskState {
    /// Writes a version; `None`: deleted from then on. Versions before the newest one at or before `horizon` are removed
    /// now, this one included if it is that old; so each key keeps the version that was valid at the horizon, whatever
    /// its age.
    pub fn put_version(
        &mut self,
        table: usize,
        key: &[u8],
        from: i64,
        row: Option<&[u8]>,
        horizon: i64,
    ) -> Result<(), StateError> {
        self.usable()?;
        debug_assert_eq!(self.tables[table].slot.kind(), StateKind::Versioned);
        self.begin_write();
        self.take_key(table, key);
        let layout = if row.is_some() { self.tables[table].layout } else { DELETED };
        // Versions have a retention and no TTL, so nobody asks for their write time.
        write_value(layout, 0, row.unwrap_or_default(), &mut self.value);
        self.cache.update(&self.key, from, row.map(|_| &self.value[..]));
        let row_length = self.key.len();
        self.key.extend_from_slice(&version_suffix(from));
        self.overlay.put(&self.key, Some(&self.value));
        self.key.truncate(row_length);
        self.remove_versions_before(horizon)
    }

    /// The newest version with a valid-from at or before `time`, unless it says "deleted".
    pub fn as_of(&mut self, table: usize, key: &[u8], time: i64) -> Result<Option<StoredRow<'_>>, StateError> {
        self.usable()?;
        debug_assert_eq!(self.tables[table].slot.kind(), StateKind::Versioned);
        self.take_key(table, key);
        let mut place = match self.cache.find(&self.key) {
            Some(place) => Some(place),
            None => self.load_newest()?,
        };
        if time < self.found(place).0 {
            self.load_version(time)?;
            place = None;
        }
        match self.found(place).1 {
            Some(value) => Ok(StoredValue::read(value)?.live()),
            None => Ok(None),
        }
    }

    /// A truncated table: every row is deleted from `from` on. Rows of before are still found as of their time.
    pub fn end_versions(&mut self, table: usize, from: i64, horizon: i64) -> Result<(), StateError> {
        self.usable()?;
        let prefix = self.tables[table].slot.bytes();
        let mut keys: Vec<Vec<u8>> = Vec::new();
        let mut versions = self.db.scan_with(&self.overlay, &prefix, &prefix);
        while let Some((key, _)) = versions.next()? {
            let key = &row_key(key)[SLOT_BYTES..];
            if keys.last().is_none_or(|last| last != key) {
                keys.push(key.to_vec());
            }
        }
        drop(versions);
        keys.iter().try_for_each(|key| self.put_version(table, key, from, None, horizon))
    }

    /// The newest version of the key in hand goes into the cache; that there is none does too.
    fn load_newest(&mut self) -> Result<Option<Place>, StateError> {
        let Self { overlay, db, cache, uncached, key, .. } = self;
        let mut versions = db.scan_with(overlay, key, &seek_key(key, i64::MAX));
        match versions.next()? {
            Some((version, value)) => {
                let live = StoredValue::read(value)?.live().map(|_| value);
                Ok(remember(cache, uncached, key, valid_from(version).unwrap_or(i64::MIN), live))
            }
            None => Ok(remember(cache, uncached, key, i64::MIN, None)),
        }
    }

    /// The version of the key in hand as of a time before the newest one's.
    fn load_version(&mut self, time: i64) -> Result<(), StateError> {
        let Self { overlay, db, uncached, key, .. } = self;
        let mut versions = db.scan_with(overlay, key, &seek_key(key, time));
        uncached.set(time, versions.next()?.map(|(_, value)| value));
        Ok(())
    }

    fn remove_versions_before(&mut self, horizon: i64) -> Result<(), StateError> {
        let mut old: Vec<Vec<u8>> = Vec::new();
        let mut versions = self.db.scan_with(&self.overlay, &self.key, &seek_key(&self.key, horizon));
        if versions.next()?.is_some() {
            while let Some((version, _)) = versions.next()? {
                old.push(version.to_vec());
            }
        }
        drop(versions);
        old.iter().for_each(|version| self.overlay.put(version, None));
        Ok(())
    }
}

/// Where the versions at or before `time` begin.
fn seek_key(row_key: &[u8], time: i64) -> Vec<u8> {
    [row_key, &version_suffix(time)].concat()
}

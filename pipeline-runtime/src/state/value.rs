//! State values: layout id (u16), write time (i64, milliseconds), both little-endian; then the row's bytes.
//!
//! The layout says which columns the row was written with, so a row outlives an added column. The write time is kept
//! whether there is a TTL or not: giving an operator one later needs no migration. Layout 0 is a version that says
//! "deleted from here on".

use super::StateError;

/// The layout id of a version without a row.
pub(super) const DELETED: u16 = 0;

/// A row as it is stored, and the id of the columns it was written with: see [`super::TaskState::decoder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredRow<'a> {
    pub layout: u16,
    pub row: &'a [u8],
}

/// A value taken apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoredValue<'a> {
    pub(super) row: StoredRow<'a>,
    pub(super) written_ms: i64,
}

impl<'a> StoredValue<'a> {
    pub(super) fn read(value: &'a [u8]) -> Result<Self, StateError> {
        let parts = value.split_first_chunk::<2>().and_then(|(layout, rest)| {
            let (written, row) = rest.split_first_chunk::<8>()?;
            Some((layout, written, row))
        });
        match parts {
            Some((layout, written, row)) => Ok(Self {
                row: StoredRow { layout: u16::from_le_bytes(*layout), row },
                written_ms: i64::from_le_bytes(*written),
            }),
            None => Err(StateError::Corrupt(format!("a value has {} bytes, fewer than its header", value.len()))),
        }
    }

    /// `None` for a version that says "deleted".
    pub(super) fn live(self) -> Option<StoredRow<'a>> {
        (self.row.layout != DELETED).then_some(self.row)
    }

    pub(super) fn expired(&self, ttl_ms: Option<i64>, now_ms: i64) -> bool {
        ttl_ms.is_some_and(|ttl| expired(self.written_ms, ttl, now_ms))
    }
}

pub(super) fn expired(written_ms: i64, ttl_ms: i64, now_ms: i64) -> bool {
    now_ms.saturating_sub(written_ms) > ttl_ms
}

pub(super) fn write_value(layout: u16, written_ms: i64, row: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&layout.to_le_bytes());
    out.extend_from_slice(&written_ms.to_le_bytes());
    out.extend_from_slice(row);
}

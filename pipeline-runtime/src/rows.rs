//! Stream rows on their way through a stage: an Arrow batch, and beside it what travels with every row but is not a
//! column.

use std::sync::Arc;

use arrow::array::{BooleanArray, RecordBatch, UInt32Array};
use arrow::compute::{filter_record_batch, take_record_batch};
use arrow::error::ArrowError;
use millrace_core::ids::{Offset, Partition};

/// What travels with a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowMeta {
    /// Microseconds since the epoch; `i64::MIN` in a stream without event time.
    pub event_time: i64,
    /// The record's timestamp in milliseconds; the results that the row triggers carry it.
    pub timestamp_ms: Option<i64>,
    /// The watermark of the stream, at this point of the plan, behind this row.
    pub watermark: i64,
    /// The watermark of its source partition behind it. What depends on this does not depend on other partitions.
    pub source_watermark: i64,
    /// Where the row was read: partition and offset of its source.
    pub partition: Partition,
    pub offset: Offset,
    /// Its event time was below the watermark of its source partition when it arrived.
    pub late: bool,
    /// A backfill recomputed it. Not written: who reads it knows.
    pub repaired: bool,
}

/// A batch of stream rows and the watermark behind them. May be empty: then only the watermark moves.
#[derive(Clone, Debug)]
pub struct Rows {
    pub batch: RecordBatch,
    pub metas: Arc<[RowMeta]>,
    /// The watermark behind the batch; at least that of its last row.
    pub watermark: i64,
}

impl Rows {
    pub fn len(&self) -> usize {
        self.metas.len()
    }

    pub fn is_empty(&self) -> bool {
        self.metas.is_empty()
    }

    /// The rows for which `keep` is true; null is false.
    pub fn filter(&self, keep: &BooleanArray) -> Result<Self, ArrowError> {
        let batch = filter_record_batch(&self.batch, keep)?;
        let kept = keep.iter().zip(self.metas.iter()).filter(|(keep, _)| *keep == Some(true));
        let metas = kept.map(|(_, meta)| *meta).collect();
        Ok(Self { batch, metas, watermark: self.watermark })
    }

    /// The rows at `indices`, in that order.
    pub fn take(&self, indices: Vec<u32>) -> Result<Self, ArrowError> {
        let metas = indices.iter().map(|i| self.metas[*i as usize]).collect();
        let batch = take_record_batch(&self.batch, &UInt32Array::from(indices))?;
        Ok(Self { batch, metas, watermark: self.watermark })
    }

    /// The same rows with other columns.
    pub fn with_batch(&self, batch: RecordBatch) -> Self {
        Self { batch, metas: Arc::clone(&self.metas), watermark: self.watermark }
    }
}

/// Length of what [`write_meta`] writes.
pub const META_BYTES: usize = 45;

/// `event time | timestamp | watermark | source watermark | offset`, 8 bytes each, `partition` 4, `late` 1; little-endian.
pub fn write_meta(out: &mut Vec<u8>, meta: &RowMeta) {
    let timestamp = meta.timestamp_ms.unwrap_or(i64::MIN);
    for number in [meta.event_time, timestamp, meta.watermark, meta.source_watermark, meta.offset.0] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&meta.partition.0.to_le_bytes());
    out.push(u8::from(meta.late));
}

/// The meta at the start of `bytes`, and the rest.
pub fn read_meta(bytes: &[u8]) -> Option<(RowMeta, &[u8])> {
    let (meta, rest) = bytes.split_at_checked(META_BYTES)?;
    let number = |i: usize| meta[i * 8..i * 8 + 8].try_into().map(i64::from_le_bytes).ok();
    let timestamp = number(1)?;
    let meta = RowMeta {
        event_time: number(0)?,
        timestamp_ms: (timestamp != i64::MIN).then_some(timestamp),
        watermark: number(2)?,
        source_watermark: number(3)?,
        offset: Offset(number(4)?),
        partition: Partition(meta[40..44].try_into().map(i32::from_le_bytes).ok()?),
        late: meta[44] != 0,
        repaired: false,
    };
    Some((meta, rest))
}

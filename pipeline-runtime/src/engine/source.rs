//! A source's records into rows: decode, give each row its event time, give up what cannot be used.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, PrimitiveArray};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, SchemaRef, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType};
use millrace_core::event_time::{SourceClock, WATERMARK_MIN};
use millrace_core::ids::{Offset, Partition};
use millrace_core::plan::{FuturePolicy, OnError, Source};
use millrace_core::totals::{DropReason, Totals};
use millrace_plan::arrow_schema::arrow_schema;

use super::changes::Changes;
use super::dead_letter::{DeadLetters, Origin};
use crate::format::{Op, Pushed, RecordDecoder};
use crate::log::{Fetch, Outbox, Record};
use crate::rows::{RowMeta, Rows};

const MICROS_PER_MS: i64 = 1000;

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error(
        "source '{source_name}': {code} at topic {topic} partition {partition} offset {offset}: {text}; name a deadLetter topic or set onError: Skip to go on without such records"
    )]
    Record { source_name: String, code: String, topic: String, partition: Partition, offset: Offset, text: String },
    #[error(
        "source '{source_name}': topic {topic} partition {partition} offset {offset} truncates the table, and a topic of several partitions says so in one of them only; restart the pipeline under a new name to read the table anew"
    )]
    Truncate { source_name: String, topic: String, partition: Partition, offset: Offset },
    #[error("put rows together")]
    Arrow(#[from] arrow::error::ArrowError),
}

/// Reads one partition of one source.
pub struct SourceReader {
    spec: Arc<Source>,
    partition: Partition,
    /// Of the topic.
    partitions: i32,
    decoder: RecordDecoder,
    event_time_column: Option<usize>,
    /// Rows need an event time: streams that declare one, and tables with versions.
    needs_event_time: bool,
    /// For each decoded row the index of its record in the fetch.
    record_of_row: Vec<u32>,
}

/// What a fetch of a table became.
pub enum TableRead {
    Changes(Changes),
    /// What the fetch held before, from when on the table is empty, and what it held behind.
    Truncated(Changes, i64, Changes),
}

/// Where records that cannot be used go.
pub struct Failures<'a> {
    pub outbox: &'a mut Outbox,
    pub dead_letters: Option<DeadLetters>,
    pub totals: &'a mut Totals,
}

impl SourceReader {
    pub fn new(spec: Arc<Source>, partition: Partition, partitions: i32, versioned: bool) -> Self {
        let column = spec.event_time.as_ref().and_then(|e| e.column.as_ref());
        let event_time_column = column.and_then(|name| spec.columns.iter().position(|c| c.name == *name));
        let needs_event_time = spec.event_time.is_some() && (spec.table.is_none() || versioned);
        let decoder = RecordDecoder::new(&spec);
        Self { spec, partition, partitions, decoder, event_time_column, needs_event_time, record_of_row: Vec::new() }
    }

    pub fn schema(&self) -> SchemaRef {
        arrow_schema(&self.spec.columns)
    }

    /// Rows of a stream.
    pub fn rows(
        &mut self,
        fetch: &Fetch<'_>,
        clock: &mut SourceClock,
        failures: &mut Failures<'_>,
    ) -> Result<Rows, SourceError> {
        for record in &fetch.records {
            match self.push(fetch, record, failures)? {
                Some(Pushed::Rows(_)) => failures.totals.rows_out += 1,
                Some(Pushed::Tombstone | Pushed::Truncate | Pushed::Ignored(_)) => {
                    failures.totals.drop_rows(DropReason::Tombstone, 1);
                }
                None => {}
            }
        }
        let changes = self.finish(fetch, clock, failures)?;
        let Changes { batch, metas, .. } = changes;
        Ok(Rows { batch, metas: metas.into(), watermark: clock.watermark() })
    }

    /// Changes of a table.
    pub fn changes(
        &mut self,
        fetch: &Fetch<'_>,
        clock: &mut SourceClock,
        failures: &mut Failures<'_>,
    ) -> Result<TableRead, SourceError> {
        let mut before = None;
        for record in &fetch.records {
            match self.push(fetch, record, failures)? {
                Some(Pushed::Rows(_)) => failures.totals.rows_out += 1,
                Some(Pushed::Tombstone | Pushed::Ignored(_)) => failures.totals.drop_rows(DropReason::Tombstone, 1),
                Some(Pushed::Truncate) if self.partitions == 1 => {
                    failures.totals.rows_out += 1;
                    let changes = self.finish(fetch, clock, failures)?;
                    let time = record.timestamp_ms.map_or(clock.watermark(), |t| t.saturating_mul(MICROS_PER_MS));
                    before = Some((changes, time));
                }
                Some(Pushed::Truncate) => {
                    return Err(SourceError::Truncate {
                        source_name: self.spec.name.clone(),
                        topic: self.spec.topic.clone(),
                        partition: self.partition,
                        offset: record.offset,
                    });
                }
                None => {}
            }
        }
        let behind = self.finish(fetch, clock, failures)?;
        Ok(match before {
            Some((before, time)) => TableRead::Truncated(before, time, behind),
            None => TableRead::Changes(behind),
        })
    }

    /// Decodes a record; `None` when it could not be and was dealt with.
    fn push(
        &mut self,
        fetch: &Fetch<'_>,
        record: &Record<'_>,
        failures: &mut Failures<'_>,
    ) -> Result<Option<Pushed>, SourceError> {
        failures.totals.rows_in += 1;
        match self.decoder.push(record.key, record.value) {
            Ok(pushed) => {
                if let Pushed::Rows(rows) = pushed {
                    let index = (record.offset.0 - fetch.records[0].offset.0) as usize;
                    let index = if fetch.records.get(index).is_some_and(|r| r.offset == record.offset) {
                        index
                    } else {
                        fetch.records.partition_point(|r| r.offset < record.offset)
                    };
                    self.record_of_row.extend(std::iter::repeat_n(index as u32, rows));
                }
                Ok(Some(pushed))
            }
            Err(error) => {
                self.give_up(record, error.code.name(), &error.text, failures)?;
                Ok(None)
            }
        }
    }

    fn give_up(
        &self,
        record: &Record<'_>,
        code: &str,
        text: &str,
        failures: &mut Failures<'_>,
    ) -> Result<(), SourceError> {
        let topic = self.spec.topic.as_str();
        let origin =
            Origin { topic, partition: self.partition, offset: record.offset, timestamp_ms: record.timestamp_ms };
        match (self.spec.on_error, failures.dead_letters) {
            (OnError::DeadLetter, Some(dead_letters)) => {
                dead_letters.record(failures.outbox, origin, record, code, text);
                failures.totals.drop_rows(DropReason::DeadLettered, 1);
                Ok(())
            }
            (OnError::Skip, _) => {
                tracing::debug!(topic, partition = %self.partition, offset = %record.offset, code, text, "skipped");
                failures.totals.drop_rows(DropReason::Skipped, 1);
                Ok(())
            }
            (OnError::Stop | OnError::DeadLetter, _) => Err(SourceError::Record {
                source_name: self.spec.name.clone(),
                code: code.to_owned(),
                topic: topic.to_owned(),
                partition: self.partition,
                offset: record.offset,
                text: text.to_owned(),
            }),
        }
    }

    /// The rows decoded so far, with their metas; without those that have no usable event time.
    fn finish(
        &mut self,
        fetch: &Fetch<'_>,
        clock: &mut SourceClock,
        failures: &mut Failures<'_>,
    ) -> Result<Changes, SourceError> {
        let decoded = self.decoder.finish();
        let record_of_row = std::mem::take(&mut self.record_of_row);
        let times = self.event_time_column.map(|c| EventTimes::new(decoded.batch.column(c)));
        let mut changes = Changes {
            batch: decoded.batch,
            ops: decoded.ops,
            metas: Vec::with_capacity(record_of_row.len()),
            unavailable: decoded.unavailable,
        };
        let mut bad = Vec::new();
        for (row, record) in record_of_row.iter().enumerate() {
            let record = &fetch.records[*record as usize];
            let time = match (&times, changes.ops[row]) {
                (Some(times), Op::Upsert) => times.at(row),
                // A delete has no new value of the column: it holds from its record's timestamp on.
                _ => record.timestamp_ms.map(|t| t.saturating_mul(MICROS_PER_MS)),
            };
            match self.meta(record, time, changes.ops[row], clock) {
                Ok(meta) => changes.metas.push(meta),
                Err((code, text)) => {
                    self.give_up(record, code, text, failures)?;
                    failures.totals.rows_out -= 1;
                    bad.push(row);
                }
            }
        }
        self.record_of_row = record_of_row;
        self.record_of_row.clear();
        if bad.is_empty() { Ok(changes) } else { Ok(without(changes, &bad)?) }
    }

    fn meta(
        &self,
        record: &Record<'_>,
        time: Option<i64>,
        op: Op,
        clock: &mut SourceClock,
    ) -> Result<RowMeta, (&'static str, &'static str)> {
        let mut meta = RowMeta {
            event_time: i64::MIN,
            timestamp_ms: record.timestamp_ms,
            watermark: WATERMARK_MIN,
            source_watermark: WATERMARK_MIN,
            partition: self.partition,
            offset: record.offset,
            late: false,
        };
        let Some(spec) = self.spec.event_time.as_ref().filter(|_| self.needs_event_time) else { return Ok(meta) };
        if op == Op::Delete {
            // Without a timestamp the deletion holds from the newest event time on that the partition has shown.
            let newest = clock.watermark().saturating_add(spec.max_out_of_orderness_ms.saturating_mul(MICROS_PER_MS));
            meta.event_time = time.unwrap_or(newest);
            meta.watermark = clock.watermark();
            return Ok(meta);
        }
        let time = time.ok_or(("NullEventTime", "the event-time column is null"))?;
        let seen = clock.observe(spec, time, record.timestamp_ms);
        if seen.future && spec.future == FuturePolicy::DeadLetter {
            return Err(("FutureEventTime", "the event time is too far ahead of the record's timestamp"));
        }
        meta.event_time = time;
        meta.watermark = seen.watermark;
        meta.source_watermark = seen.watermark;
        meta.late = seen.late;
        Ok(meta)
    }
}

/// The event-time column in microseconds.
enum EventTimes {
    Millis(PrimitiveArray<TimestampMillisecondType>),
    Micros(PrimitiveArray<TimestampMicrosecondType>),
}

impl EventTimes {
    fn new(array: &ArrayRef) -> Self {
        match array.data_type() {
            DataType::Timestamp(TimeUnit::Millisecond, _) => Self::Millis(array.as_primitive().clone()),
            _ => Self::Micros(array.as_primitive().clone()),
        }
    }

    fn at(&self, row: usize) -> Option<i64> {
        match self {
            Self::Millis(array) => array.is_valid(row).then(|| array.value(row).saturating_mul(MICROS_PER_MS)),
            Self::Micros(array) => array.is_valid(row).then(|| array.value(row)),
        }
    }
}

/// The changes without the rows `bad`, which have no meta.
fn without(changes: Changes, bad: &[usize]) -> Result<Changes, SourceError> {
    let keep: Vec<bool> = (0..changes.ops.len()).map(|row| bad.binary_search(&row).is_err()).collect();
    let batch = filter_record_batch(&changes.batch, &BooleanArray::from(keep.clone()))?;
    let ops = changes.ops.iter().zip(&keep).filter(|(_, keep)| **keep).map(|(op, _)| *op).collect();
    let unavailable = changes.unavailable.iter().filter(|(row, _)| keep[*row]);
    let unavailable = unavailable.map(|(row, c)| (row - bad.partition_point(|b| b < row), *c)).collect();
    Ok(Changes { batch, ops, metas: changes.metas, unavailable })
}

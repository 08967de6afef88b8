//! A source's records into rows: decode, give each row its event time, give up what cannot be used.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, PrimitiveArray};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, SchemaRef, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType};
use millrace_core::event_time::{SourceClock, WATERMARK_MIN};
use millrace_core::ids::{Offset, Partition};
use millrace_core::plan::{FuturePolicy, OnError, Partitioner, Source};
use millrace_core::totals::{DropReason, Totals};
use millrace_plan::arrow_schema::arrow_schema;

use super::changes::Changes;
use super::dead_letter::{DeadLetters, Origin};
use crate::format::{KeyTextEncoder, Op, Pushed, RecordDecoder};
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
    #[error(
        "source '{source_name}': the record at topic {topic} partition {found} offset {offset} belongs to partition {expected} by its key ({columns}) and the partitioner {partitioner:?}, so joins and upserts would miss it; correct `key.partitioner`, or leave out `key` to have the source repartitioned"
    )]
    Partition {
        source_name: String,
        topic: String,
        found: Partition,
        offset: Offset,
        expected: Partition,
        columns: String,
        partitioner: Partitioner,
    },
    #[error("put rows together")]
    Arrow(#[from] arrow::error::ArrowError),
}

/// Which partition of its topic a reader reads.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub partition: Partition,
    /// Of the topic.
    pub partitions: i32,
    /// Joins or guards trust that the declared key decides about the partition.
    pub aligned: bool,
}

/// Reads one partition of one source.
pub struct SourceReader {
    spec: Arc<Source>,
    place: Place,
    /// Of rows that joins or guards trust to be in the right partition.
    key: Option<(KeyTextEncoder, Partitioner)>,
    decoder: RecordDecoder,
    event_time_column: Option<usize>,
    /// Rows need an event time: streams that declare one, and tables with versions.
    needs_event_time: bool,
    /// For each decoded row the index of its record in the fetch.
    record_of_row: Vec<usize>,
    failed: Vec<Failed>,
}

/// A record of the fetch that cannot be used.
struct Failed {
    record: usize,
    code: &'static str,
    text: String,
}

/// A part of what happened to a table.
pub enum TablePart {
    Changes(Changes),
    /// The table is empty from this event time on.
    Truncate(i64),
}

/// Where records that cannot be used go.
pub struct Failures<'a> {
    /// The records were given up before, and are read again.
    pub again: bool,
    pub outbox: &'a mut Outbox,
    pub dead_letters: Option<DeadLetters>,
    pub totals: &'a mut Totals,
    /// The last of them, and its code.
    pub last: &'a mut Option<(Offset, &'static str)>,
}

impl<'a> Failures<'a> {
    /// Of records that are read for the first time.
    pub fn new(
        outbox: &'a mut Outbox,
        dead_letters: Option<DeadLetters>,
        totals: &'a mut Totals,
        last: &'a mut Option<(Offset, &'static str)>,
    ) -> Self {
        Self { again: false, outbox, dead_letters, totals, last }
    }
}

impl SourceReader {
    pub fn new(spec: Arc<Source>, place: Place, versioned: bool) -> Self {
        let column = spec.event_time.as_ref().and_then(|e| e.column.as_ref());
        let event_time_column = column.and_then(|name| spec.columns.iter().position(|c| c.name == *name));
        let needs_event_time = spec.event_time.is_some() && (spec.table.is_none() || versioned);
        let decoder = RecordDecoder::new(&spec);
        let key = spec
            .key
            .as_ref()
            .filter(|_| place.aligned && place.partitions > 1)
            .and_then(|key| Some((KeyTextEncoder::new(&spec.columns, &key.columns, key.format)?, key.partitioner)));
        Self {
            spec,
            place,
            key,
            decoder,
            event_time_column,
            needs_event_time,
            record_of_row: Vec::new(),
            failed: Vec::new(),
        }
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
        for (index, record) in fetch.records.iter().enumerate() {
            match self.push(index, record, failures.totals) {
                Some(Pushed::Rows(_)) => failures.totals.rows_out += 1,
                Some(Pushed::Tombstone | Pushed::Truncate | Pushed::Ignored(_)) => {
                    failures.totals.drop_rows(DropReason::Tombstone, 1);
                }
                None => {}
            }
        }
        let Changes { batch, metas, .. } = self.finish(fetch, clock, failures.totals)?;
        self.settle(fetch, failures)?;
        Ok(Rows { batch, metas: metas.into(), watermark: clock.watermark() })
    }

    /// What happened to a table, in order.
    pub fn changes(
        &mut self,
        fetch: &Fetch<'_>,
        clock: &mut SourceClock,
        failures: &mut Failures<'_>,
    ) -> Result<Vec<TablePart>, SourceError> {
        let mut parts = Vec::new();
        for (index, record) in fetch.records.iter().enumerate() {
            match self.push(index, record, failures.totals) {
                Some(Pushed::Rows(_)) => failures.totals.rows_out += 1,
                Some(Pushed::Tombstone | Pushed::Ignored(_)) => failures.totals.drop_rows(DropReason::Tombstone, 1),
                Some(Pushed::Truncate) if self.place.partitions == 1 => {
                    failures.totals.rows_out += 1;
                    parts.push(TablePart::Changes(self.finish(fetch, clock, failures.totals)?));
                    let time = record.timestamp_ms.map_or(clock.watermark(), |t| t.saturating_mul(MICROS_PER_MS));
                    parts.push(TablePart::Truncate(time));
                }
                Some(Pushed::Truncate) => {
                    return Err(SourceError::Truncate {
                        source_name: self.spec.name.clone(),
                        topic: self.spec.topic.clone(),
                        partition: self.place.partition,
                        offset: record.offset,
                    });
                }
                None => {}
            }
        }
        parts.push(TablePart::Changes(self.finish(fetch, clock, failures.totals)?));
        self.settle(fetch, failures)?;
        Ok(parts)
    }

    /// Decodes a record; `None` when it could not be.
    fn push(&mut self, index: usize, record: &Record<'_>, totals: &mut Totals) -> Option<Pushed> {
        totals.rows_in += 1;
        match self.decoder.push(record.key, record.value) {
            Ok(pushed) => {
                if let Pushed::Rows(rows) = pushed {
                    self.record_of_row.extend(std::iter::repeat_n(index, rows));
                }
                Some(pushed)
            }
            Err(error) => {
                self.failed.push(Failed { record: index, code: error.code.name(), text: error.text });
                None
            }
        }
    }

    /// Deals with the records that failed, in their order: it must not depend on where a fetch ends.
    fn settle(&mut self, fetch: &Fetch<'_>, failures: &mut Failures<'_>) -> Result<(), SourceError> {
        let mut failed = std::mem::take(&mut self.failed);
        failed.sort_by_key(|f| f.record);
        failed.iter().try_for_each(|f| self.give_up(&fetch.records[f.record], f, failures))
    }

    fn give_up(
        &self,
        record: &Record<'_>,
        Failed { code, text, .. }: &Failed,
        failures: &mut Failures<'_>,
    ) -> Result<(), SourceError> {
        let topic = self.spec.topic.as_str();
        let origin =
            Origin { topic, partition: self.place.partition, offset: record.offset, timestamp_ms: record.timestamp_ms };
        match (self.spec.on_error, failures.dead_letters) {
            _ if failures.again => Ok(()),
            (OnError::DeadLetter, Some(dead_letters)) => {
                dead_letters.record(failures.outbox, origin, record, code, text);
                *failures.last = Some((record.offset, *code));
                failures.totals.drop_rows(DropReason::DeadLettered, 1);
                Ok(())
            }
            (OnError::Skip, _) => {
                tracing::debug!(topic, partition = %self.place.partition, offset = %record.offset, code, text, "skipped");
                failures.totals.drop_rows(DropReason::Skipped, 1);
                *failures.last = Some((record.offset, *code));
                Ok(())
            }
            (OnError::Stop | OnError::DeadLetter, _) => Err(SourceError::Record {
                source_name: self.spec.name.clone(),
                code: (*code).to_owned(),
                topic: topic.to_owned(),
                partition: self.place.partition,
                offset: record.offset,
                text: text.clone(),
            }),
        }
    }

    /// The rows decoded so far, with their metas. A record of which a row has no usable event time fails with all of its
    /// rows.
    fn finish(
        &mut self,
        fetch: &Fetch<'_>,
        clock: &mut SourceClock,
        totals: &mut Totals,
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
        for rows in record_of_row.chunk_by(|a, b| a == b) {
            let (index, first) = (rows[0], changes.metas.len() + bad.len());
            let record = &fetch.records[index];
            let meta = |row: usize| {
                let time = match (&times, changes.ops[row]) {
                    (Some(times), Op::Upsert) => times.at(row),
                    // A delete has no new value of the column: it holds from its record's timestamp on.
                    _ => record.timestamp_ms.map(|t| t.saturating_mul(MICROS_PER_MS)),
                };
                self.meta(record, time, changes.ops[row], clock, totals)
            };
            let metas: Result<Vec<RowMeta>, _> = (first..first + rows.len()).map(meta).collect();
            match metas {
                Ok(metas) => changes.metas.extend(metas),
                Err((code, text)) => {
                    self.failed.push(Failed { record: index, code, text: text.to_owned() });
                    totals.rows_out -= 1;
                    bad.extend(first..first + rows.len());
                }
            }
        }
        let changes = if bad.is_empty() { changes } else { without(changes, &bad)? };
        self.check_partitions(&changes)?;
        Ok(changes)
    }

    /// Co-partitioning is proven, never assumed: a row in another partition than its key says would miss its table.
    fn check_partitions(&self, changes: &Changes) -> Result<(), SourceError> {
        let Some((key, partitioner)) = &self.key else { return Ok(()) };
        let keys = key.bind(&changes.batch);
        let mut bytes = Vec::new();
        for (row, meta) in changes.metas.iter().enumerate() {
            bytes.clear();
            // A key of nulls joins with nothing, wherever it is.
            if !keys.encode(row, &mut bytes) {
                continue;
            }
            let expected = partitioner.partition(&bytes, self.place.partitions);
            if expected != self.place.partition {
                return Err(SourceError::Partition {
                    source_name: self.spec.name.clone(),
                    topic: self.spec.topic.clone(),
                    found: self.place.partition,
                    offset: meta.offset,
                    expected,
                    columns: self.spec.key.as_ref().map(|key| key.columns.join(", ")).unwrap_or_default(),
                    partitioner: *partitioner,
                });
            }
        }
        Ok(())
    }

    /// Gives up a record that can be read and whose effects cannot be committed.
    pub fn refuse(&self, record: &Record<'_>, why: &str, failures: &mut Failures<'_>) -> Result<(), SourceError> {
        failures.totals.rows_in += 1;
        let failed = Failed { record: 0, code: "CommitRefused", text: why.to_owned() };
        self.give_up(record, &failed, failures)
    }

    fn meta(
        &self,
        record: &Record<'_>,
        time: Option<i64>,
        op: Op,
        clock: &mut SourceClock,
        totals: &mut Totals,
    ) -> Result<RowMeta, (&'static str, &'static str)> {
        let mut meta = RowMeta {
            event_time: i64::MIN,
            timestamp_ms: record.timestamp_ms,
            watermark: WATERMARK_MIN,
            source_watermark: WATERMARK_MIN,
            partition: self.place.partition,
            offset: record.offset,
            late: false,
            repaired: false,
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
        totals.future += u64::from(seen.future);
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

//! Rows between two stages: blocks of rows in an internal topic.
//!
//! A record's value is one block: a head that says which upstream task wrote it and how far that task is, then rows.
//! The head holds for what the partition's reader has then seen: all rows below the watermark are in this block or in
//! one before it. A task writes its blocks when an epoch ends, so that a partition gets few and large ones; a block that
//! must go earlier carries no progress.
//!
//! A header of the record says in which epoch its task wrote it: a savepoint holds what lies between two stages up to the
//! writers' cuts.
//!
//! Layout, little-endian: `format u8 | flags u8 | upstream u32 | watermark i64 | complete as of i64 | rows u32`, then
//! for each row `meta 45 | operation u8 | [count u16, columns u16 …] | length u32 | row`.

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;
use millrace_core::event_time::{InputClock, Upstream};
use millrace_core::ids::{Epoch, Partition};
use millrace_core::plan::{Exchange, KeyFormat, Partitioner};
use millrace_core::schema::Column;
use millrace_plan::arrow_schema::arrow_schema;

use super::changes::Changes;
use crate::format::{KeyTextEncoder, Op};
use crate::log::{Fetch, Header, Outbox, Record, TopicIndex};
use crate::row::{KeyEncoder, RowCodecError, RowDecoder, RowEncoder, RowTypeError};
use crate::rows::{META_BYTES, RowMeta, Rows, read_meta, write_meta};

const FORMAT: u8 = 1;
const HEAD_BYTES: usize = 26;
const IDLE: u8 = 1;
const ENDED: u8 = 2;
const LEVEL: u8 = 4;
/// The block says nothing about progress.
const ROWS_ONLY: u8 = 8;

/// Name of the header with the writer's epoch, a little-endian u64.
const EPOCH_HEADER: &str = "epoch";

const UPSERT: u8 = 0;
const DELETE: u8 = 1;
/// An upsert in which some columns keep what the table holds.
const PARTIAL: u8 = 2;

/// A block that has grown to this is sent before its epoch ends.
const BLOCK_BYTES: usize = 256 << 10;
/// Progress alone is sent to a partition that was silent for so long.
const SILENT_MS: u64 = 1000;
/// That nothing follows is said again after so long: a reader that was restarted has forgotten it, and one that began its
/// drain later has not heeded it.
const ENDED_AGAIN_MS: u64 = 2_000;

enum ExchangeKey {
    Internal { columns: Vec<usize>, encoder: KeyEncoder },
    Text(KeyTextEncoder),
}

struct Buffer {
    bytes: Vec<u8>,
    rows: u32,
    sent: Option<(Upstream, u64)>,
}

/// The writing side, one per task and exchange.
pub struct ExchangeWriter {
    topic: TopicIndex,
    upstream: u32,
    own: Partition,
    key: ExchangeKey,
    partitioner: Partitioner,
    encoder: RowEncoder,
    buffers: Vec<Buffer>,
    /// That is open.
    epoch: Epoch,
}

impl ExchangeWriter {
    /// `partitions` is the topic's count, `own` the partition of the task that writes.
    pub fn new(spec: &Exchange, topic: TopicIndex, partitions: i32, own: Partition) -> Result<Self, RowTypeError> {
        let key = match spec.key.format {
            KeyFormat::Internal => {
                let position = |name: &String| spec.columns.iter().position(|c| c.name == *name);
                let columns: Vec<usize> = spec.key.columns.iter().filter_map(position).collect();
                let types: Vec<_> = columns.iter().map(|i| spec.columns[*i].data_type.clone()).collect();
                ExchangeKey::Internal { columns, encoder: KeyEncoder::new(&types)? }
            }
            KeyFormat::String | KeyFormat::Json => {
                let encoder = KeyTextEncoder::new(&spec.columns, &spec.key.columns, spec.key.format);
                ExchangeKey::Text(encoder.expect("the plan checked the exchange's key"))
            }
        };
        let buffer = || Buffer { bytes: Vec::new(), rows: 0, sent: None };
        Ok(Self {
            topic,
            upstream: own.0 as u32,
            own,
            key,
            partitioner: spec.key.partitioner,
            encoder: RowEncoder::new(&spec.columns),
            buffers: (0..partitions).map(|_| buffer()).collect(),
            epoch: Epoch(0),
        })
    }

    /// What is written from now on belongs to this epoch.
    pub fn begin(&mut self, epoch: Epoch) {
        self.epoch = epoch;
    }

    pub fn rows(&mut self, rows: &Rows, outbox: &mut Outbox) -> Result<(), RowTypeError> {
        self.write(&rows.batch, &rows.metas, outbox, |_, out| out.push(UPSERT))
    }

    pub fn changes(&mut self, changes: &Changes, outbox: &mut Outbox) -> Result<(), RowTypeError> {
        self.write(&changes.batch, &changes.metas, outbox, |row, out| {
            let partial = changes.unavailable_of(row);
            match changes.ops[row] {
                Op::Delete => out.push(DELETE),
                Op::Upsert if partial.is_empty() => out.push(UPSERT),
                Op::Upsert => {
                    out.push(PARTIAL);
                    out.extend_from_slice(&(partial.len() as u16).to_le_bytes());
                    partial.iter().for_each(|(_, c)| out.extend_from_slice(&(*c as u16).to_le_bytes()));
                }
            }
        })
    }

    fn write(
        &mut self,
        batch: &RecordBatch,
        metas: &[RowMeta],
        outbox: &mut Outbox,
        operation: impl Fn(usize, &mut Vec<u8>),
    ) -> Result<(), RowTypeError> {
        let partitions = self.partitions_of(batch)?;
        let bound = self.encoder.bind(batch.columns())?;
        for (row, meta) in metas.iter().enumerate() {
            let partition = partitions[row];
            let buffer = &mut self.buffers[partition.0 as usize];
            if buffer.bytes.is_empty() {
                buffer.bytes.resize(HEAD_BYTES, 0);
            }
            write_meta(&mut buffer.bytes, meta);
            operation(row, &mut buffer.bytes);
            let length_at = buffer.bytes.len();
            buffer.bytes.extend_from_slice(&[0; 4]);
            bound.encode(row, &mut buffer.bytes);
            let length = (buffer.bytes.len() - length_at - 4) as u32;
            buffer.bytes[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
            buffer.rows += 1;
            if buffer.bytes.len() >= BLOCK_BYTES {
                let head = (self.upstream, self.epoch, None);
                send(buffer, head, (self.topic, partition), outbox);
            }
        }
        Ok(())
    }

    /// A row without a key goes to the partition of its own number: no join finds a partner for it anywhere.
    fn partitions_of(&self, batch: &RecordBatch) -> Result<Vec<Partition>, RowTypeError> {
        let count = self.buffers.len() as i32;
        let keyless = Partition(self.own.0 % count);
        let mut key = Vec::new();
        match &self.key {
            ExchangeKey::Internal { columns, encoder } => {
                let columns: Vec<ArrayRef> = columns.iter().map(|i| batch.column(*i).clone()).collect();
                let keys = encoder.bind(&columns)?;
                let partition = |row| {
                    key.clear();
                    if keys.encode(row, &mut key) { self.partitioner.partition(&key, count) } else { keyless }
                };
                Ok((0..batch.num_rows()).map(partition).collect())
            }
            ExchangeKey::Text(encoder) => {
                let keys = encoder.bind(batch);
                let partition = |row| {
                    key.clear();
                    if keys.encode(row, &mut key) { self.partitioner.partition(&key, count) } else { keyless }
                };
                Ok((0..batch.num_rows()).map(partition).collect())
            }
        }
    }

    /// True when there is something to send: rows, or progress that somebody waits for.
    pub fn due(&self, progress: Upstream, now_ms: u64) -> bool {
        self.buffers.iter().any(|b| b.rows > 0 || progress_due(b, progress, now_ms))
    }

    /// Sends what is there and how far the task is; called when an epoch ends.
    pub fn flush(&mut self, progress: Upstream, now_ms: u64, outbox: &mut Outbox) {
        for (partition, buffer) in self.buffers.iter_mut().enumerate() {
            if buffer.rows > 0 || progress_due(buffer, progress, now_ms) {
                buffer.sent = Some((progress, now_ms));
                let to = (self.topic, Partition(partition as i32));
                send(buffer, (self.upstream, self.epoch, Some(progress)), to, outbox);
            }
        }
    }
}

fn progress_due(buffer: &Buffer, progress: Upstream, now_ms: u64) -> bool {
    let Some((sent, at)) = buffer.sent else { return true };
    let turned = (sent.idle, sent.ended, sent.level) != (progress.idle, progress.ended, progress.level);
    let silent_ms = now_ms.saturating_sub(at);
    turned || (sent != progress && silent_ms >= SILENT_MS) || (progress.ended && silent_ms >= ENDED_AGAIN_MS)
}

fn send(
    buffer: &mut Buffer,
    (upstream, epoch, progress): (u32, Epoch, Option<Upstream>),
    (topic, partition): (TopicIndex, Partition),
    outbox: &mut Outbox,
) {
    buffer.bytes.resize(buffer.bytes.len().max(HEAD_BYTES), 0);
    let said = progress.unwrap_or_default();
    let flag = |set: bool, flag: u8| if set { flag } else { 0 };
    let flags =
        flag(said.idle, IDLE) | flag(said.ended, ENDED) | flag(said.level, LEVEL) | flag(progress.is_none(), ROWS_ONLY);
    buffer.bytes[0] = FORMAT;
    buffer.bytes[1] = flags;
    buffer.bytes[2..6].copy_from_slice(&upstream.to_le_bytes());
    buffer.bytes[6..14].copy_from_slice(&said.watermark.to_le_bytes());
    buffer.bytes[14..22].copy_from_slice(&said.complete_as_of_ms.to_le_bytes());
    buffer.bytes[22..26].copy_from_slice(&buffer.rows.to_le_bytes());
    let header = Header { name: EPOCH_HEADER.to_owned(), value: epoch.0.to_le_bytes().to_vec() };
    outbox.push(topic, partition, None, None, Some(&buffer.bytes), vec![header]);
    buffer.bytes.clear();
    buffer.rows = 0;
}

/// Which upstream task wrote a record, and in which epoch. `None`: a release that did not say so.
pub fn written_by(record: &Record<'_>) -> Option<(Partition, Epoch)> {
    let header = record.headers.iter().find(|header| header.name == EPOCH_HEADER)?;
    let epoch = u64::from_le_bytes(header.value.as_slice().try_into().ok()?);
    let upstream = record.value?.get(2..6)?.try_into().ok()?;
    Some((Partition(i32::try_from(u32::from_le_bytes(upstream)).ok()?), Epoch(epoch)))
}

#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    #[error("a block of format {0} cannot be read by this release")]
    Format(u8),
    #[error("a block ends too early")]
    Truncated,
    #[error("a block names upstream task {0} and there are {1}")]
    Upstream(u32, usize),
    #[error("read a row of a block")]
    Row(#[from] RowCodecError),
    #[error("read rows of these columns")]
    Columns(#[from] RowTypeError),
    #[error("put the rows of a block together")]
    Arrow(#[from] arrow::error::ArrowError),
}

/// The reading side.
pub struct ExchangeReader {
    columns: Vec<Column>,
    /// Where inputs go on after an end, as after a drain, a block that says so may be read long after it was true: then
    /// it says only for when it was written.
    pub heeds_ends: bool,
    /// Backfills write it, one after the other and each with tasks of its own: what they say of progress is theirs.
    pub repairs: bool,
}

impl ExchangeReader {
    pub fn new(columns: &[Column], repairs: bool) -> Self {
        Self { columns: columns.to_vec(), heeds_ends: false, repairs }
    }

    pub fn schema(&self) -> SchemaRef {
        arrow_schema(&self.columns)
    }

    /// The rows of the fetched blocks. `clock` hears of each row and of each block's progress, in order; a row's
    /// watermark becomes that of the input.
    pub fn read(&self, fetch: &Fetch<'_>, clock: &mut InputClock) -> Result<Changes, ExchangeError> {
        let mut decoder = RowDecoder::new(&self.columns, &self.columns)?;
        let mut out = Changes { unavailable: Vec::new(), ops: Vec::new(), metas: Vec::new(), ..Changes::empty() };
        for record in &fetch.records {
            let mut rest = record.value.ok_or(ExchangeError::Truncated)?;
            let head: [u8; HEAD_BYTES] = take(&mut rest)?;
            if head[0] != FORMAT {
                return Err(ExchangeError::Format(head[0]));
            }
            let upstream = u32::from_le_bytes(head[2..6].try_into().expect("four bytes"));
            let upstream = if self.repairs { 0 } else { upstream };
            if upstream as usize >= clock.upstreams() {
                return Err(ExchangeError::Upstream(upstream, clock.upstreams()));
            }
            for _ in 0..u32::from_le_bytes(head[22..26].try_into().expect("four bytes")) {
                read_row(&mut rest, upstream as usize, clock, &mut decoder, &mut out)?;
            }
            if head[1] & ROWS_ONLY == 0 && !self.repairs {
                let said = Upstream {
                    watermark: i64::from_le_bytes(head[6..14].try_into().expect("eight bytes")),
                    complete_as_of_ms: i64::from_le_bytes(head[14..22].try_into().expect("eight bytes")),
                    idle: head[1] & IDLE != 0,
                    ended: head[1] & ENDED != 0 && self.heeds_ends,
                    level: head[1] & LEVEL != 0,
                };
                clock.report(upstream as usize, said);
            }
        }
        out.batch = RecordBatch::try_new(arrow_schema(&self.columns), decoder.finish())?;
        if self.repairs {
            out.metas.iter_mut().for_each(|meta| meta.repaired = true);
        }
        Ok(out)
    }
}

fn read_row(
    rest: &mut &[u8],
    upstream: usize,
    clock: &mut InputClock,
    decoder: &mut RowDecoder,
    out: &mut Changes,
) -> Result<(), ExchangeError> {
    let meta: [u8; META_BYTES] = take(rest)?;
    let (mut meta, _) = read_meta(&meta).ok_or(ExchangeError::Truncated)?;
    let [operation] = take(rest)?;
    let row = out.metas.len();
    if operation == PARTIAL {
        for _ in 0..u16::from_le_bytes(take(rest)?) {
            out.unavailable.push((row, usize::from(u16::from_le_bytes(take(rest)?))));
        }
    }
    let length = u32::from_le_bytes(take(rest)?) as usize;
    let (bytes, behind) = rest.split_at_checked(length).ok_or(ExchangeError::Truncated)?;
    *rest = behind;
    decoder.push(bytes)?;
    meta.watermark = clock.advance(upstream, meta.watermark);
    out.metas.push(meta);
    out.ops.push(if operation == DELETE { Op::Delete } else { Op::Upsert });
    Ok(())
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], ExchangeError> {
    let (bytes, behind) = rest.split_first_chunk::<N>().ok_or(ExchangeError::Truncated)?;
    *rest = behind;
    Ok(*bytes)
}

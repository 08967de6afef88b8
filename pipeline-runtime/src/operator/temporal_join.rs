//! `temporalJoin`: each stream row with the version of its key that was valid at the row's event time.
//!
//! A row is *late* when its event time was below the watermark of its source partition on arrival; the policy `late`
//! decides about it at once. Every other row waits, ordered by (event time, arrival), until the `emit` policy lets it
//! go; the order of the output is that order, so it does not depend on where batches or epochs end. Rows are let go
//! row by row of the input, not batch by batch, for the same reason.
//!
//! Rows that still wait when an epoch ends are state: they are written with it and removed when they leave. Beyond a
//! bound the ones with the highest event times are in the state only, and are read back when their time comes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::interleave_record_batch;
use arrow::datatypes::SchemaRef;
use millrace_core::event_time::{InputClock, WATERMARK_MAX, WATERMARK_MIN};
use millrace_core::plan::{Emit, Late};
use millrace_core::schema::Column;
use millrace_core::totals::{DropReason, Totals};
use millrace_plan::arrow_schema::arrow_schema;

use super::join::BoundJoin;
use super::{Context, OperatorError, Outcome, arrow, state};
use crate::row::RowEncoder;
use crate::rows::{RowMeta, Rows, read_meta, write_meta};
use crate::state::{StateError, StoredRow};

/// Rows that are read back from the state at once.
const READ_BACK_ROWS: usize = 16 << 10;

const MICROS_PER_MS: i64 = 1000;

/// Orders the rows that wait: event time, then arrival.
type Place = (i64, u64);

struct Held {
    batch: u32,
    row: u32,
    /// Wall-clock time at which the row was read: a table that is complete as of then holds it back no longer.
    polled_ms: i64,
    /// It is in the state.
    stored: bool,
}

struct HeldBatch {
    batch: RecordBatch,
    metas: Arc<[RowMeta]>,
    live: u32,
}

#[derive(Clone, Copy)]
struct Pick {
    batch: u32,
    row: u32,
}

pub struct TemporalJoin {
    join: BoundJoin,
    emit: Emit,
    late: Late,
    retention_us: i64,
    /// Index of the state layout of the rows that wait; `None` when no row ever waits.
    layout: Option<usize>,
    columns: Vec<Column>,
    schema: SchemaRef,
    encoder: RowEncoder,
    waiting: BTreeMap<Place, Held>,
    batches: HashMap<u32, HeldBatch>,
    next_batch: u32,
    next_sequence: u64,
    /// Rows that wait and are not in the state yet, and perhaps some that have left.
    unstored: Vec<Place>,
    /// The first place from which on rows may be in the state only.
    spilled_from: Option<Place>,
    /// How many rows are in the state only.
    spilled: u64,
    waiting_rows_max: usize,
    /// The stream's watermark, as far as it was heard of.
    in_watermark: i64,
    /// The same without the end of the input, which is taken back when a file grows: what is kept goes by this.
    kept_watermark: i64,
    /// What the rows that left have said about time.
    out_watermark: i64,
}

impl TemporalJoin {
    pub fn new(
        join: BoundJoin,
        (emit, late, retention_ms): (Emit, Late, i64),
        (layout, waiting_rows_max): (Option<usize>, usize),
        left: &[Column],
    ) -> Self {
        Self {
            join,
            emit,
            late,
            retention_us: retention_ms.saturating_mul(MICROS_PER_MS),
            layout,
            columns: left.to_vec(),
            schema: arrow_schema(left),
            encoder: RowEncoder::new(left),
            waiting: BTreeMap::new(),
            batches: HashMap::new(),
            next_batch: 0,
            next_sequence: 0,
            unstored: Vec::new(),
            spilled_from: None,
            spilled: 0,
            waiting_rows_max,
            in_watermark: WATERMARK_MIN,
            kept_watermark: WATERMARK_MIN,
            out_watermark: WATERMARK_MIN,
        }
    }

    pub fn table_input(&self) -> usize {
        self.join.table_input
    }

    /// Table versions that ended before this are not asked for any more: what waits, and what may still come in time,
    /// lies above the stream's watermark, and late rows get the retention.
    pub fn horizon(&self) -> i64 {
        let spilled = self.spilled_from.map_or(WATERMARK_MAX, |(time, _)| time);
        let first = self.waiting.first_key_value().map_or(WATERMARK_MAX, |((time, _), _)| *time);
        match self.kept_watermark.min(first).min(spilled) {
            WATERMARK_MIN => i64::MIN,
            time => time.saturating_sub(self.retention_us),
        }
    }

    pub fn run(&mut self, rows: Rows, totals: &mut Totals, cx: &mut Context<'_>) -> Outcome {
        totals.rows_in += rows.len() as u64;
        let id = self.hold(&rows);
        let mut picks = Vec::with_capacity(rows.len());
        for (row, meta) in rows.metas.iter().enumerate() {
            let pick = Pick { batch: id, row: row as u32 };
            if meta.late {
                match self.late {
                    Late::JoinNow | Late::Accept | Late::Unmatched => picks.push(pick),
                    Late::Drop => {
                        self.let_go(id);
                        totals.drop_rows(DropReason::Late, 1);
                    }
                    Late::DeadLetter => {
                        self.let_go(id);
                        let why = (DropReason::DeadLettered, "Late", "the row came below the watermark");
                        self.join.give_up().row(cx, totals, (&rows.batch, row), meta, why)?;
                    }
                }
            } else if self.emit == Emit::Immediate {
                picks.push(pick);
            } else {
                let place = (meta.event_time, self.next_sequence);
                self.next_sequence += 1;
                self.waiting.insert(place, Held { batch: id, row: row as u32, polled_ms: cx.now_ms, stored: false });
                self.unstored.push(place);
            }
            self.release(meta.watermark, &mut picks, cx)?;
        }
        self.in_watermark = rows.watermark;
        if rows.watermark < WATERMARK_MAX {
            self.kept_watermark = self.kept_watermark.max(rows.watermark);
        }
        self.let_go_of(picks, totals, cx)
    }

    /// Lets the rows go whose time has come, when the table's progress or the stream's idleness has moved.
    pub fn advance(&mut self, totals: &mut Totals, cx: &mut Context<'_>) -> Outcome {
        self.let_go_of(Vec::new(), totals, cx)
    }

    fn let_go_of(&mut self, mut picks: Vec<Pick>, totals: &mut Totals, cx: &mut Context<'_>) -> Outcome {
        let watermark = self.in_watermark;
        self.release(watermark, &mut picks, cx)?;
        let gathered = self.gather(&picks, watermark)?;
        let mut out = self.lookup(&gathered, totals, cx)?;
        if self.emit != Emit::Immediate {
            let first = self.waiting.first_key_value().map_or(WATERMARK_MAX, |((time, _), _)| *time);
            out.watermark = self.out_watermark.max(watermark.min(first));
        }
        totals.rows_out += out.len() as u64;
        if self.late != Late::Accept {
            totals.joined_late += out.metas.iter().filter(|m| m.late).count() as u64;
        }
        totals.waiting = self.waiting.len() as u64 + self.spilled;
        Ok(out)
    }

    /// Keeps a batch for as long as one of its rows is needed.
    fn hold(&mut self, rows: &Rows) -> u32 {
        let id = self.next_batch;
        if !rows.is_empty() {
            self.next_batch = self.next_batch.wrapping_add(1);
            let held = HeldBatch { batch: rows.batch.clone(), metas: Arc::clone(&rows.metas), live: rows.len() as u32 };
            self.batches.insert(id, held);
        }
        id
    }

    fn let_go(&mut self, batch: u32) {
        let held = self.batches.get_mut(&batch).expect("a batch is held while one of its rows is");
        held.live -= 1;
        if held.live == 0 {
            self.batches.remove(&batch);
        }
    }

    /// Moves the rows whose time has come to `picks`, in order. The first row that must wait stops those behind it.
    fn release(&mut self, watermark: i64, picks: &mut Vec<Pick>, cx: &mut Context<'_>) -> Result<(), OperatorError> {
        loop {
            let first = self.waiting.first_key_value().map(|(place, _)| *place);
            if let Some(from) = self.spilled_from
                && first.is_none_or(|first| first >= from)
            {
                self.read_back(from, cx)?;
                continue;
            }
            let Some(entry) = self.waiting.first_entry() else { return Ok(()) };
            let (time, sequence) = *entry.key();
            let table = cx.tables[self.join.table_input];
            if !ready(self.emit, time, entry.get().polled_ms, (watermark, cx.stream_idle), table) {
                return Ok(());
            }
            let held = entry.remove();
            if held.stored {
                let layout = self.layout.expect("rows that wait have a state layout");
                cx.state.remove_waiting(layout, time, sequence);
            }
            picks.push(Pick { batch: held.batch, row: held.row });
        }
    }

    /// The picked rows as one batch, in the order of the picks.
    fn gather(&mut self, picks: &[Pick], watermark: i64) -> Result<Rows, OperatorError> {
        if picks.is_empty() {
            let batch = RecordBatch::new_empty(Arc::clone(&self.schema));
            return Ok(Rows { batch, metas: Arc::new([]), watermark });
        }
        let mut ids: Vec<u32> = picks.iter().map(|p| p.batch).collect();
        ids.sort_unstable();
        ids.dedup();
        let held: Vec<&HeldBatch> = ids.iter().map(|id| &self.batches[id]).collect();
        let at = |pick: &Pick| (ids.binary_search(&pick.batch).expect("it is listed"), pick.row as usize);
        let in_order = held.len() == 1
            && picks.len() == held[0].metas.len()
            && picks.iter().enumerate().all(|(i, pick)| pick.row as usize == i);
        let rows = if in_order {
            Rows { batch: held[0].batch.clone(), metas: Arc::clone(&held[0].metas), watermark }
        } else {
            let indices: Vec<(usize, usize)> = picks.iter().map(at).collect();
            let batches: Vec<&RecordBatch> = held.iter().map(|h| &h.batch).collect();
            let batch = interleave_record_batch(&batches, &indices).map_err(arrow(&self.join.name))?;
            Rows { batch, metas: indices.iter().map(|(b, r)| held[*b].metas[*r]).collect(), watermark }
        };
        picks.iter().for_each(|pick| self.let_go(pick.batch));
        Ok(rows)
    }

    /// Joins rows that may leave, each as of its own time.
    fn lookup(&mut self, rows: &Rows, totals: &mut Totals, cx: &mut Context<'_>) -> Outcome {
        let join = &self.join;
        let mut lookups = join.lookups(cx, rows)?;
        let columns = join.key_columns(&rows.batch);
        let keys = join.keys().bind(&columns)?;
        let mut key = std::mem::take(&mut lookups.key);
        for (row, meta) in rows.metas.iter().enumerate() {
            if meta.late && self.late == Late::Unmatched {
                join.unmatched(&mut lookups, (rows, row), totals, cx)?;
                continue;
            }
            // By the row's own partition, so that the answer does not depend on how far the others are. What is kept goes
            // by the minimum over all of them, so it is there.
            if meta.late && meta.event_time < meta.source_watermark.saturating_sub(self.retention_us) {
                self.expired(rows, row, totals, cx)?;
                continue;
            }
            key.clear();
            let stored = if keys.encode(row, &mut key) {
                cx.state.as_of(join.table.layout, &key, meta.event_time).map_err(state(&join.name))?
            } else {
                None
            };
            match stored {
                Some(stored) => lookups.matched(row, stored).map_err(state(&join.name))?,
                None => join.unmatched(&mut lookups, (rows, row), totals, cx)?,
            }
        }
        let mut out = join.finish(lookups, rows)?;
        if self.emit != Emit::Immediate {
            let metas = out.metas.iter().map(|meta| {
                if !meta.late {
                    self.out_watermark = self.out_watermark.max(meta.event_time);
                }
                RowMeta { watermark: self.out_watermark, ..*meta }
            });
            out.metas = metas.collect();
        }
        Ok(out)
    }

    /// The version that the row asks for may have been removed: that is not the same as having no partner.
    fn expired(&self, rows: &Rows, row: usize, totals: &mut Totals, cx: &mut Context<'_>) -> Result<(), OperatorError> {
        let reason = DropReason::VersionExpired;
        if cx.dead_letters.is_none() {
            totals.drop_rows(reason, 1);
            return Ok(());
        }
        let why = (reason, "VersionExpired", "the row is older than the versions that the table retains");
        self.join.give_up().row(cx, totals, (&rows.batch, row), &rows.metas[row], why)
    }

    /// Writes the rows that still wait to the state; called when an epoch ends.
    pub fn persist(&mut self, cx: &mut Context<'_>) -> Result<(), OperatorError> {
        let Some(layout) = self.layout else { return Ok(()) };
        let mut bytes = Vec::new();
        // Rows of one batch lie together, so the batch is bound once per run of them.
        let mut unstored = std::mem::take(&mut self.unstored);
        unstored.retain(|place| self.waiting.contains_key(place));
        let mut at = 0;
        while at < unstored.len() {
            let id = self.waiting[&unstored[at]].batch;
            let held = &self.batches[&id];
            let bound = self.encoder.bind(held.batch.columns())?;
            while at < unstored.len() && self.waiting[&unstored[at]].batch == id {
                let place = unstored[at];
                let entry = self.waiting.get_mut(&place).expect("it was checked above");
                bytes.clear();
                write_meta(&mut bytes, &held.metas[entry.row as usize]);
                bound.encode(entry.row as usize, &mut bytes);
                cx.state.put_waiting(layout, place.0, place.1, &bytes);
                entry.stored = true;
                at += 1;
            }
        }
        self.spill();
        Ok(())
    }

    /// Forgets the rows with the highest event times where more wait than memory should hold: they are in the state.
    fn spill(&mut self) {
        while self.waiting.len() > self.waiting_rows_max {
            let (place, held) = self.waiting.pop_last().expect("it is not empty");
            self.let_go(held.batch);
            self.spilled += 1;
            self.spilled_from = Some(self.spilled_from.map_or(place, |from| from.min(place)));
        }
    }

    /// Takes up the rows that waited when the task stopped.
    pub fn restore(&mut self, cx: &mut Context<'_>) -> Result<(), OperatorError> {
        let Some(layout) = self.layout else { return Ok(()) };
        let (rows, last_sequence) = cx.state.count_waiting(layout).map_err(state(&self.join.name))?;
        self.next_sequence = last_sequence.map_or(0, |s| s + 1);
        self.spilled = rows;
        self.spilled_from = (rows > 0).then_some((i64::MIN, 0));
        Ok(())
    }

    fn read_back(&mut self, from: Place, cx: &mut Context<'_>) -> Result<(), OperatorError> {
        let layout = self.layout.expect("rows that wait have a state layout");
        let step = &self.join.name;
        let mut decoder = cx.state.decoder(layout, &self.columns).map_err(state(step))?;
        let mut metas = Vec::new();
        let mut places = Vec::new();
        let mut fault = None;
        let waiting = &self.waiting;
        let next = cx.state.scan_waiting(layout, from, READ_BACK_ROWS, |time, sequence, stored| {
            if waiting.contains_key(&(time, sequence)) {
                return;
            }
            let result = match read_meta(stored.row) {
                Some((meta, row)) => {
                    metas.push(meta);
                    decoder.push(StoredRow { row, ..stored })
                }
                None => Err(StateError::Corrupt("a row that waits is too short".to_owned())),
            };
            places.push((time, sequence));
            fault = fault.take().or(result.err());
        });
        let next = next.map_err(state(step))?;
        if let Some(fault) = fault {
            return Err(state(step)(fault));
        }
        self.spilled -= places.len() as u64;
        self.spilled_from = next;
        if places.is_empty() {
            return Ok(());
        }
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), decoder.finish()).map_err(arrow(step))?;
        let id = self.hold(&Rows { batch, metas: metas.into(), watermark: WATERMARK_MIN });
        for (row, place) in places.into_iter().enumerate() {
            let held = Held { batch: id, row: row as u32, polled_ms: cx.now_ms, stored: true };
            self.waiting.insert(place, held);
        }
        Ok(())
    }
}

/// May a row leave? `stream` is the stream's watermark, and whether the stream is idle.
fn ready(emit: Emit, time: i64, polled_ms: i64, stream: (i64, bool), table: &InputClock) -> bool {
    let (watermark, idle) = stream;
    match emit {
        Emit::Immediate => true,
        Emit::GraceMs(grace) => idle || watermark > time.saturating_add(grace.saturating_mul(MICROS_PER_MS)),
        Emit::Watermark => (idle || watermark > time) && table.complete(time, polled_ms),
    }
}

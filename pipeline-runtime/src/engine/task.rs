//! One task: a stage for one partition, with its inputs, operators, outputs and state.
//!
//! A task reads what its lane fetched for it, and prepares what an epoch must commit: waiting rows, blocks for other
//! stages, the changes of its state, its marker. After the commit is known it applies the same to its RocksDB.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use millrace_core::event_time::{InputClock, SourceClock, Upstream, WATERMARK_MAX, WATERMARK_MIN};
use millrace_core::ids::{Epoch, Generation, Offset, Partition, TaskId};
use millrace_core::marker::{InputMark, MARKER_FORMAT, Marker};
use millrace_core::plan::{OnError, Port};
use millrace_core::totals::Totals;

use super::changes::{ApplyError, Changes, TableWriter};
use super::dead_letter::DeadLetters;
use super::exchange::{ExchangeError, ExchangeReader};
use super::flow::{Flow, Writer};
use super::sink::SinkWriter;
use super::source::{Failures, SourceError, SourceReader, TablePart};
use crate::log::{End, Fetch, Outbox, TopicIndex};
use crate::operator::{Context, OperatorError};
use crate::rows::Rows;
use crate::state::{StateError, TaskState};

/// First byte of a changelog record's key.
pub const CHANGELOG_STATE: u8 = b's';
pub const CHANGELOG_MARKER: u8 = b'm';

const MICROS_PER_MS: i64 = 1000;

#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Operator(#[from] OperatorError),
    #[error("read topic {topic}")]
    Exchange { topic: String, source: ExchangeError },
    #[error("change the state of table '{table}'")]
    Apply { table: String, source: ApplyError },
    #[error(
        "table '{0}' was truncated and its rows are repartitioned, which cannot carry a truncate yet; declare the table's key with format String, or restart the pipeline under a new name"
    )]
    TruncateMoves(String),
    #[error("use state")]
    State(#[from] StateError),
    #[error(
        "what follows from offset {offset} of partition {partition} of topic {topic} cannot be committed, and its rows cannot be told apart: {why}"
    )]
    Refused { topic: String, partition: Partition, offset: Offset, why: String },
}

pub enum Reader {
    Source(Box<SourceReader>),
    Exchange(ExchangeReader),
}

/// What a task reads, and how far it is.
pub struct TaskInput {
    /// The source, or the exchange.
    pub name: String,
    pub topic: String,
    pub topic_id: Option<String>,
    pub partitions: i32,
    pub reader: Reader,
    pub next: Offset,
    /// For tables that are read directly: the end captured at the pipeline's start.
    pub level_at: Option<Offset>,
    pub source_clock: SourceClock,
    pub clock: InputClock,
    /// The rows are a table's changes.
    pub table: bool,
    /// The operators of this stage look the table up.
    pub writer: Option<TableWriter>,
    /// The topic is the table's changelog: no other one holds its rows.
    pub own_changelog: bool,
    /// Records below it were counted before, and are read again to rebuild the table.
    pub counted: Offset,
    pub idle_timeout_ms: Option<i64>,
    /// Steady milliseconds of the last record, or of the start.
    pub last_record_ms: u64,
    /// Of the reading of a source.
    pub totals: Totals,
    /// The last record that could not be used, and why.
    pub failed: Option<(Offset, &'static str)>,
}

impl TaskInput {
    pub fn level(&self) -> bool {
        match self.level_at {
            Some(at) => self.next >= at,
            None => self.clock.level(),
        }
    }

    /// True for rows of backfills.
    pub fn repairs(&self) -> bool {
        matches!(&self.reader, Reader::Exchange(reader) if reader.repairs)
    }

    /// True for records of a stream's own topic.
    pub fn is_stream(&self) -> bool {
        !self.table && matches!(self.reader, Reader::Source(_))
    }

    /// How the input stands, as an exchange behind it tells it.
    fn upstream(&self) -> Upstream {
        Upstream {
            watermark: self.source_clock.watermark().max(if self.clock.ended() {
                i64::MIN
            } else {
                self.clock.watermark()
            }),
            idle: self.clock.idle(),
            ended: self.clock.ended(),
            level: !self.table || self.level(),
            complete_as_of_ms: self.clock.complete_as_of_ms(),
        }
    }
}

/// The times of one turn of the lane.
#[derive(Clone, Copy)]
pub struct Now {
    pub wall_ms: i64,
    pub steady_ms: u64,
}

pub struct Task {
    pub id: TaskId,
    /// Of the claim under which it runs.
    pub generation: Generation,
    /// Its partitions came after the pipeline's start.
    pub grown: bool,
    /// The cluster that the positions are of, where the log has several.
    pub cluster: Option<String>,
    pub inputs: Vec<TaskInput>,
    pub flow: Flow,
    pub state: TaskState,
    pub changelog: String,
    pub changelog_index: TopicIndex,
    pub dead_letters: Option<DeadLetters>,
    /// The topic that the stage's stream comes from, for dead letters.
    pub source_topic: String,
    /// What the stream's source does with a record that cannot be used.
    pub on_error: OnError,
    pub epoch: Epoch,
    pub state_fingerprint: u64,
    /// Something happened since the last commit.
    pub dirty: bool,
    /// The stream has had nothing for its idle timeout.
    pub stream_idle: bool,
    /// The marker of the open epoch, while its commit is not known.
    pub prepared: Option<Vec<u8>>,
    /// Written to the changelog since the task began to run.
    pub changelog_bytes: u64,
}

impl Task {
    /// True when an input may be read now: streams wait until the tables are level.
    pub fn wants(&self, input: usize) -> bool {
        self.inputs[input].table || self.level()
    }

    /// True when all tables have been read to the end that was captured at the pipeline's start.
    pub fn level(&self) -> bool {
        self.inputs.iter().all(|i| !i.table || i.level())
    }

    /// Below which offset an input may be read at once: what is read again is not mixed with what is new.
    pub fn below(&self, input: usize) -> Offset {
        let input = &self.inputs[input];
        if input.next < input.counted { input.counted } else { Offset(i64::MAX) }
    }

    /// Takes records of one input.
    pub fn process(&mut self, input: usize, fetch: &Fetch<'_>, now: Now, outbox: &mut Outbox) -> Result<(), TaskError> {
        if fetch.records.is_empty() {
            // Only markers of transactions, or gaps: they move the position and are nothing to commit.
            self.inputs[input].next = fetch.next;
            return Ok(());
        }
        self.dirty = true;
        let own = &mut self.inputs[input];
        own.last_record_ms = now.steady_ms;
        own.next = fetch.next;
        if own.table {
            self.table_records(input, fetch, now, outbox)
        } else {
            self.stream_idle &= own.repairs();
            self.stream_records(input, fetch, now, outbox)
        }
    }

    /// Takes one record that was found to keep every epoch with it from being committed: it meets the error policy.
    pub fn refuse(&mut self, input: usize, fetch: &Fetch<'_>, why: &str, outbox: &mut Outbox) -> Result<(), TaskError> {
        self.dirty = true;
        let partition = self.id.partition;
        let own = &mut self.inputs[input];
        let Some(record) = fetch.records.first() else { return Ok(()) };
        let Reader::Source(reader) = &own.reader else {
            let topic = own.topic.clone();
            return Err(TaskError::Refused { topic, partition, offset: record.offset, why: why.to_owned() });
        };
        own.next = fetch.next;
        let mut failures = Failures::new(outbox, self.dead_letters, &mut own.totals, &mut own.failed);
        Ok(reader.refuse(record, why, &mut failures)?)
    }

    fn stream_records(
        &mut self,
        input: usize,
        fetch: &Fetch<'_>,
        now: Now,
        outbox: &mut Outbox,
    ) -> Result<(), TaskError> {
        let own = &mut self.inputs[input];
        let rows = match &mut own.reader {
            Reader::Source(reader) => {
                let mut failures = Failures::new(outbox, self.dead_letters, &mut own.totals, &mut own.failed);
                let mut rows = reader.rows(fetch, &mut own.source_clock, &mut failures)?;
                rows.watermark = own.clock.advance(0, rows.watermark);
                rows
            }
            Reader::Exchange(reader) => {
                let changes = exchanged(reader, fetch, &mut own.clock, &own.topic)?;
                Rows { batch: changes.batch, metas: changes.metas.into(), watermark: own.clock.watermark() }
            }
        };
        let (flow, mut cx) = self.context(now, outbox);
        Ok(flow.rows(Port::Input(input), rows, &mut cx)?)
    }

    fn table_records(
        &mut self,
        input: usize,
        fetch: &Fetch<'_>,
        now: Now,
        outbox: &mut Outbox,
    ) -> Result<(), TaskError> {
        let horizon = self.flow.horizon(input);
        let own = &mut self.inputs[input];
        let parts = match &mut own.reader {
            Reader::Source(reader) => {
                let mut uncounted = Totals::default();
                let again = fetch.next <= own.counted;
                let totals = if again { &mut uncounted } else { &mut own.totals };
                let failures = Failures::new(outbox, self.dead_letters, totals, &mut own.failed);
                let mut failures = Failures { again, ..failures };
                let parts = reader.changes(fetch, &mut own.source_clock, &mut failures)?;
                own.clock.advance(0, own.source_clock.watermark());
                parts
            }
            Reader::Exchange(reader) => vec![TablePart::Changes(exchanged(reader, fetch, &mut own.clock, &own.topic)?)],
        };
        let fault = |source| TaskError::Apply { table: own.name.clone(), source };
        for part in parts {
            match (part, &own.writer) {
                (TablePart::Changes(changes), writer) => {
                    if let Some(writer) = writer {
                        writer.apply(&changes, &mut self.state, horizon, now.wall_ms).map_err(fault)?;
                    }
                    self.flow.changes(Port::Input(input), &changes, own.source_clock.watermark(), outbox)?;
                }
                (TablePart::Truncate(time), Some(writer)) => {
                    writer.truncate(&mut self.state, time, horizon).map_err(fault)?;
                }
                (TablePart::Truncate(_), None) => return Err(TaskError::TruncateMoves(own.name.clone())),
            }
        }
        let (flow, mut cx) = self.context(now, outbox);
        Ok(flow.advance(&mut cx)?)
    }

    /// Takes up how far the inputs are, by the log and by the clock. `ends` are those of the inputs that are read
    /// directly, looked up at or before `now`.
    pub fn tick(&mut self, ends: &[(usize, End)], now: Now, outbox: &mut Outbox) -> Result<(), TaskError> {
        let (mut ended, sent) = (Vec::new(), outbox.len());
        for (input, end) in ends {
            let own = &mut self.inputs[*input];
            let at_end = own.next >= end.offset;
            let silent_ms = now.steady_ms.saturating_sub(own.last_record_ms) as i64;
            let timed_out = own.idle_timeout_ms.is_some_and(|timeout| silent_ms >= timeout);
            let was_ended = own.clock.ended();
            own.clock.report(
                0,
                Upstream {
                    watermark: own.source_clock.watermark(),
                    // A table that is read to its end holds nobody back; a stream only after its timeout.
                    idle: at_end && (own.table || timed_out),
                    ended: at_end && end.ended,
                    level: own.table && own.level(),
                    complete_as_of_ms: if at_end { end.as_of_ms } else { i64::MIN },
                },
            );
            if own.clock.ended() && !was_ended && !own.table {
                ended.push(*input);
            }
        }
        let streams = || self.inputs.iter().filter(|i| !i.table && !i.repairs());
        self.stream_idle = streams().count() > 0 && streams().all(|i| i.clock.idle());
        for input in ended {
            self.announce(input, now, outbox)?;
        }
        let (flow, mut cx) = self.context(now, outbox);
        flow.advance(&mut cx)?;
        self.dirty |= outbox.len() > sent;
        Ok(())
    }

    /// Tells the operators the watermark of an input, without rows.
    fn announce(&mut self, input: usize, now: Now, outbox: &mut Outbox) -> Result<(), TaskError> {
        let own = &self.inputs[input];
        let schema = match &own.reader {
            Reader::Source(reader) => reader.schema(),
            Reader::Exchange(reader) => reader.schema(),
        };
        let rows = Rows {
            batch: RecordBatch::new_empty(schema),
            metas: std::sync::Arc::new([]),
            watermark: own.clock.watermark(),
        };
        let (flow, mut cx) = self.context(now, outbox);
        Ok(flow.rows(Port::Input(input), rows, &mut cx)?)
    }

    /// After the state was restored: rows that waited go on waiting, and the operators hear where time stands.
    pub fn resume(&mut self, now: Now, outbox: &mut Outbox) -> Result<(), TaskError> {
        self.begin_epoch();
        let sent = outbox.len();
        let (flow, mut cx) = self.context(now, outbox);
        flow.restore(&mut cx)?;
        for input in 0..self.inputs.len() {
            if !self.inputs[input].table {
                self.announce(input, now, outbox)?;
            }
        }
        self.dirty |= outbox.len() > sent;
        Ok(())
    }

    fn context<'a>(&'a mut self, now: Now, outbox: &'a mut Outbox) -> (&'a mut Flow, Context<'a>) {
        let cx = Context {
            tables: self.inputs.iter().map(|i| &i.clock).collect(),
            state: &mut self.state,
            outbox,
            dead_letters: self.dead_letters,
            source_topic: &self.source_topic,
            on_error: self.on_error,
            stream_idle: self.stream_idle,
            now_ms: now.wall_ms,
        };
        (&mut self.flow, cx)
    }

    /// How the input behind a port stands.
    fn origin(inputs: &[TaskInput], flow: &[Port], mut port: Port) -> Upstream {
        loop {
            match port {
                Port::Input(input) => return inputs[input].upstream(),
                Port::Operator(operator) => port = flow[operator],
            }
        }
    }

    /// Whether rows between stages end where their writers say so.
    pub fn heed_ends(&mut self, heed: bool) {
        for input in &mut self.inputs {
            if let Reader::Exchange(reader) = &mut input.reader {
                reader.heeds_ends = heed;
            }
        }
    }

    /// True for rows between stages that have ended.
    pub fn ended(&self, input: usize) -> bool {
        let input = &self.inputs[input];
        matches!(input.reader, Reader::Exchange(_)) && input.clock.ended()
    }

    /// True when no row is left inside of an operator.
    pub fn empty(&self) -> bool {
        self.flow.waiting() == 0
    }

    fn ports(&self) -> Vec<Port> {
        self.flow.operators.iter().map(|o| o.input).collect()
    }

    /// True when a commit would do something.
    pub fn due(&self, steady_ms: u64) -> bool {
        let ports = self.ports();
        self.dirty || self.state.dirty() || self.flow.due(&|port| Self::origin(&self.inputs, &ports, port), steady_ms)
    }

    /// Puts everything that the epoch commits for this task into the outbox; its marker last.
    pub fn prepare(&mut self, epoch: Epoch, now: Now, outbox: &mut Outbox) -> Result<(), TaskError> {
        let ports = self.ports();
        self.flow.flush(&|port| Self::origin(&self.inputs, &ports, port), now.steady_ms, outbox);
        let (flow, mut cx) = self.context(now, outbox);
        flow.persist(&mut cx)?;
        let (mut key, before) = (vec![CHANGELOG_STATE], outbox.bytes());
        let elsewhere: Vec<usize> =
            self.inputs.iter().filter(|i| i.own_changelog).filter_map(|i| Some(i.writer.as_ref()?.layout)).collect();
        for (state_key, value) in self.state.changes() {
            if elsewhere.iter().any(|table| self.state.is_of(*table, state_key)) {
                continue;
            }
            key.truncate(1);
            key.extend_from_slice(state_key);
            outbox.push(self.changelog_index, self.id.partition, Some(now.wall_ms), Some(&key), value, Vec::new());
        }
        self.epoch = epoch;
        let marker = serde_json::to_vec(&self.marker(now)).expect("a marker is plain data");
        let key = Some(&[CHANGELOG_MARKER][..]);
        outbox.push(self.changelog_index, self.id.partition, Some(now.wall_ms), key, Some(&marker), Vec::new());
        self.prepared = Some(marker);
        self.changelog_bytes += (outbox.bytes() - before) as u64;
        Ok(())
    }

    /// The epoch is committed; `changelog_next` lies behind its marker.
    pub fn apply(&mut self, changelog_next: Offset) -> Result<(), TaskError> {
        if let Some(marker) = &self.prepared {
            self.state.apply(marker, changelog_next.0)?;
            self.prepared = None;
            self.dirty = false;
            self.begin_epoch();
        }
        Ok(())
    }

    fn begin_epoch(&mut self) {
        let next = Epoch(self.committed().0 + 1);
        for output in &mut self.flow.outputs {
            match &mut output.writer {
                Writer::Exchange(exchange) => exchange.begin(next),
                Writer::Sink(sink) => sink.begin(),
            }
        }
    }

    /// Its last committed epoch.
    pub fn committed(&self) -> Epoch {
        Epoch(self.epoch.0 - u64::from(self.prepared.is_some()))
    }

    /// Names and totals: of what the task does for its stream, and of what it does for backfills.
    pub fn totals(&self) -> impl Iterator<Item = (String, &Totals)> {
        let guards = self.flow.operators.iter();
        let repairs = guards.filter_map(|o| Some((repairs_step(&o.name), &o.repairs.as_ref()?.totals)));
        self.stream_totals().chain(repairs)
    }

    /// Of its stream: the readings of sources, the operators, the sinks.
    pub fn stream_totals(&self) -> impl Iterator<Item = (String, &Totals)> {
        let sources = self.inputs.iter().filter(|i| matches!(i.reader, Reader::Source(_)));
        let sources = sources.map(|i| (source_step(&i.name), &i.totals));
        let operators = self.flow.operators.iter().map(|o| (o.name.clone(), &o.totals));
        let sinks = self.sinks().map(|sink| (sink.step(), &sink.totals));
        sources.chain(operators).chain(sinks)
    }

    pub fn sinks(&self) -> impl Iterator<Item = &SinkWriter> {
        self.flow.outputs.iter().filter_map(|output| match &output.writer {
            Writer::Sink(sink) => Some(sink),
            Writer::Exchange(_) => None,
        })
    }

    /// How far the watermark of the task's stream is behind the clock; 0 where it holds nobody back. `None`: there is
    /// none. Those of tables do not count: they stand still where nothing changes.
    pub fn watermark_lag_ms(&self, now_ms: i64) -> Option<i64> {
        let lag = |input: &TaskInput| match input.clock.watermark() {
            WATERMARK_MIN | WATERMARK_MAX => None,
            _ if input.clock.idle() => Some(0),
            watermark => Some(now_ms.saturating_sub(watermark.div_euclid(MICROS_PER_MS))),
        };
        self.inputs.iter().filter(|input| !input.table && !input.repairs()).filter_map(lag).max()
    }

    /// Goes on counting from a marker's totals.
    pub fn take_totals(&mut self, mut totals: BTreeMap<String, Totals>) {
        for input in self.inputs.iter_mut().filter(|i| matches!(i.reader, Reader::Source(_))) {
            input.totals = totals.remove(&source_step(&input.name)).unwrap_or_default();
        }
        for operator in &mut self.flow.operators {
            operator.totals = totals.remove(&operator.name).unwrap_or_default();
            if let Some(repairs) = &mut operator.repairs {
                repairs.totals = totals.remove(&repairs_step(&operator.name)).unwrap_or_default();
            }
        }
        for output in &mut self.flow.outputs {
            if let Writer::Sink(sink) = &mut output.writer {
                sink.totals = totals.remove(&sink.step()).unwrap_or_default();
            }
        }
    }

    fn marker(&self, now: Now) -> Marker {
        let inputs = self.inputs.iter().map(|i| InputMark {
            topic: i.topic.clone(),
            topic_id: i.topic_id.clone(),
            partitions: i.partitions,
            next: i.next,
            own_changelog: i.own_changelog,
            counted: i.counted.max(i.next),
            level_at: i.level_at,
            source_clock: i.source_clock,
            clock: i.clock.clone(),
        });
        let totals: BTreeMap<String, Totals> = self.totals().map(|(name, totals)| (name, totals.clone())).collect();
        Marker {
            format: MARKER_FORMAT,
            epoch: self.epoch,
            generation: self.generation,
            cluster: self.cluster.clone(),
            state_fingerprint: self.state_fingerprint,
            written_ms: now.wall_ms,
            inputs: inputs.collect(),
            totals,
        }
    }

    /// True when nothing will ever happen again, as far as is known now.
    pub fn finished(&self) -> bool {
        self.inputs.iter().all(|i| i.clock.ended()) && !self.dirty && !self.state.dirty()
    }
}

/// The reading of a source.
pub fn source_step(name: &str) -> String {
    format!("source {name}")
}

/// What a guard did with rows of backfills.
pub fn repairs_step(guard: &str) -> String {
    format!("{guard} repairs")
}

fn exchanged(
    reader: &ExchangeReader,
    fetch: &Fetch<'_>,
    clock: &mut InputClock,
    topic: &str,
) -> Result<Changes, TaskError> {
    reader.read(fetch, clock).map_err(|source| TaskError::Exchange { topic: topic.to_owned(), source })
}

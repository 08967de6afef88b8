//! What a worker tells Prometheus. Counters are the totals that the epoch markers hold: they go on where they stood
//! after a restart, and show committed work only. What it tells the operator of the last hour, by slices of time, is
//! recorded here too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use millrace_core::event_time::{WATERMARK_MAX, WATERMARK_MIN};
use millrace_core::ids::{Offset, Partition, TaskId};
use millrace_core::lag::{self, Lag, Seen};
use millrace_core::report::{ErrorReport, SnapshotReport, SourceLag};
use millrace_core::slices::{Counts, Recorder, Sketch, SlicesReport};
use millrace_core::totals::{DropReason, Totals};
use prometheus::core::Collector;
use prometheus::{
    Encoder, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder,
};

use crate::clock;
use crate::engine::task::{Reader, Task, TaskInput};
use crate::log::End;

const MILLIS_PER_SECOND: f64 = 1e3;
const MICROS_PER_SECOND: f64 = 1e6;
/// From one commit interval to what nobody calls fresh.
const FRESHNESS_SECONDS: [f64; 12] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0];
/// Numbers that JSON's readers hold exactly have 53 bits.
const EXACT_SHIFT: u32 = 64 - 53;

/// What was last told of lags, by source and partition.
type LagsTold = BTreeMap<[String; 2], Told>;

struct Told {
    /// Steady milliseconds.
    at_ms: u64,
    stage: String,
    next: Offset,
    lag: Option<Lag>,
}

pub struct Metrics {
    registry: Registry,
    rows_in: IntCounterVec,
    rows_out: IntCounterVec,
    dropped: IntCounterVec,
    joined_late: IntCounterVec,
    future: IntCounterVec,
    epochs: IntCounterVec,
    waiting: IntGaugeVec,
    sources: Sources,
    task_running: IntGaugeVec,
    task_warm: IntGaugeVec,
    watermark: GaugeVec,
    freshness: HistogramVec,
    snapshots: Snapshots,
    slices: Mutex<Recorder>,
    published: Mutex<BTreeMap<TaskId, Published>>,
    told: Mutex<LagsTold>,
    /// By topic and partition.
    errors: Mutex<BTreeMap<(String, Partition), ErrorReport>>,
}

/// What goes to storage, and comes from there.
struct Snapshots {
    taken_seconds: GaugeVec,
    state_bytes: IntGaugeVec,
    uploaded_bytes: IntCounter,
    fetched_bytes: IntCounter,
    failures: IntCounter,
}

impl Snapshots {
    fn new(registry: &Registry) -> prometheus::Result<Self> {
        let task = &["stage", "partition"];
        Ok(Self {
            taken_seconds: float_gauge(
                registry,
                "millrace_snapshot_taken_timestamp_seconds",
                "When the newest snapshot of a task that runs here was taken, seconds since the epoch",
                task,
            )?,
            state_bytes: gauge(registry, "millrace_snapshot_state_bytes", "Size of the state in it", task)?,
            uploaded_bytes: plain_counter(
                registry,
                "millrace_snapshot_uploaded_bytes_total",
                "Files of states that were sent to storage, since the process began",
            )?,
            fetched_bytes: plain_counter(
                registry,
                "millrace_snapshot_fetched_bytes_total",
                "Files of states that were fetched from storage, since the process began",
            )?,
            failures: plain_counter(
                registry,
                "millrace_snapshot_failures_total",
                "Snapshots that could not be written, since the process began",
            )?,
        })
    }
}

/// How far the reading of source partitions is.
struct Sources {
    lag_records: IntGaugeVec,
    lag_seconds: GaugeVec,
    lag_known: IntGaugeVec,
    hidden_records: IntGaugeVec,
    hidden_seconds: GaugeVec,
    unread_records: IntGaugeVec,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Counter {
    Epochs,
    In,
    Out,
    Late,
    Future,
    Dropped,
}

/// How far a source's partition was read and committed by a task.
struct Reached {
    source: String,
    next: Offset,
    /// Microseconds; `None`: there is none, or the input is at its end.
    watermark: Option<i64>,
}

/// What was published of a task.
#[derive(Default)]
struct Published {
    /// By step.
    totals: BTreeMap<String, Totals>,
    /// Of the sources that it reads.
    reached: Vec<Reached>,
    /// Counters can only be raised: their values, by labels.
    counters: BTreeMap<(Counter, Vec<String>), u64>,
    /// The steps and inputs that gauges tell of.
    gauges: BTreeSet<String>,
}

impl Reached {
    fn of(input: &TaskInput) -> Self {
        let watermark = Some(input.clock.watermark()).filter(|at| ![WATERMARK_MIN, WATERMARK_MAX].contains(at));
        Self { source: input.name.clone(), next: input.next, watermark }
    }
}

impl Sources {
    fn new(registry: &Registry) -> prometheus::Result<Self> {
        let source = &["source", "partition"];
        Ok(Self {
            lag_records: gauge(registry, "millrace_source_lag_records", "Records that are there and not read", source)?,
            lag_seconds: float_gauge(
                registry,
                "millrace_source_lag_seconds",
                "Age of the oldest record that is not read, by its timestamp; 0 when all are",
                source,
            )?,
            lag_known: gauge(registry, "millrace_source_lag_known", "1 when the lag is known, else 0", source)?,
            hidden_records: gauge(
                registry,
                "millrace_source_blocked_records",
                "Records that somebody's open transaction keeps from being read; they are no lag",
                source,
            )?,
            hidden_seconds: float_gauge(
                registry,
                "millrace_source_blocked_seconds",
                "For how long the same open transaction has done so",
                source,
            )?,
            unread_records: gauge(
                registry,
                "millrace_source_unread_records",
                "Records in partitions that came after the pipeline's start, and that its stages with state do not read",
                source,
            )?,
        })
    }

    fn forget(&self, labels: &[&str]) {
        gone(self.lag_records.remove_label_values(labels));
        gone(self.lag_seconds.remove_label_values(labels));
        gone(self.lag_known.remove_label_values(labels));
        gone(self.hidden_records.remove_label_values(labels));
        gone(self.hidden_seconds.remove_label_values(labels));
    }
}

impl Metrics {
    pub fn new() -> anyhow::Result<Self> {
        let registry = Registry::new();
        let process = getrandom::u64().context("draw a random number")? >> EXACT_SHIFT;
        let step = &["stage", "partition", "step"];
        Ok(Self {
            rows_in: counter(
                &registry,
                "millrace_rows_in_total",
                "Rows that a step (or the reading of a source) took",
                step,
            )?,
            rows_out: counter(&registry, "millrace_rows_out_total", "Rows that it passed on", step)?,
            dropped: counter(
                &registry,
                "millrace_rows_dropped_total",
                "Rows that it did not pass on, by reason",
                &["stage", "partition", "step", "reason"],
            )?,
            joined_late: counter(
                &registry,
                "millrace_rows_joined_late_total",
                "Of the rows passed on: those that came below the watermark",
                step,
            )?,
            future: counter(
                &registry,
                "millrace_rows_future_total",
                "Rows with an event time further ahead than allowed",
                step,
            )?,
            epochs: counter(&registry, "millrace_epochs_total", "Committed epochs", &["stage", "partition"])?,
            waiting: gauge(&registry, "millrace_rows_waiting", "Rows that wait inside of a step", step)?,
            sources: Sources::new(&registry)?,
            task_running: gauge(
                &registry,
                "millrace_task_running",
                "1 for a task that runs here, 0 for one that was stopped by a fault of its own",
                &["stage", "partition"],
            )?,
            task_warm: gauge(
                &registry,
                "millrace_task_warm",
                "1 for a task that is kept level here while somebody else runs it, 0 for one that is not level yet",
                &["stage", "partition"],
            )?,
            watermark: float_gauge(
                &registry,
                "millrace_watermark_seconds",
                "Watermark of a stage's input, seconds since the epoch",
                &["stage", "partition", "input"],
            )?,
            freshness: histogram(
                &registry,
                "millrace_freshness_seconds",
                "From a record's timestamp to the commit of the row in a sink that it became, since the process began",
                &FRESHNESS_SECONDS,
                &["stage"],
            )?,
            snapshots: Snapshots::new(&registry)?,
            slices: Mutex::new(Recorder::new(process, clock::now_ms())),
            registry,
            published: Mutex::new(BTreeMap::new()),
            told: Mutex::new(BTreeMap::new()),
            errors: Mutex::new(BTreeMap::new()),
        })
    }

    /// Publishes what lies in a partition that nobody reads.
    pub fn unread(&self, source: &str, partition: i32, records: i64) {
        self.sources.unread_records.with_label_values(&[source, &partition.to_string()]).set(records);
    }

    /// Publishes whether a task runs here.
    pub fn running(&self, task: &TaskId, runs: bool) {
        self.task_running.with_label_values(&[&task.stage, &task.partition.to_string()]).set(i64::from(runs));
    }

    /// Publishes whether the state of a task that runs elsewhere is level here; `None`: it is not followed any more.
    pub fn warm(&self, task: &TaskId, level: Option<bool>) {
        let labels = [task.stage.as_str(), &task.partition.to_string()];
        match level {
            Some(level) => self.task_warm.with_label_values(&labels).set(i64::from(level)),
            None => gone(self.task_warm.remove_label_values(&labels)),
        }
    }

    /// Publishes a snapshot that was written, with what was sent for it; `None`: the task does not run here any more.
    pub fn snapshot(&self, task: &TaskId, written: Option<(&SnapshotReport, u64)>) {
        let labels = [task.stage.as_str(), &task.partition.to_string()];
        let Snapshots { taken_seconds, state_bytes, .. } = &self.snapshots;
        if let Some((report, uploaded)) = written {
            taken_seconds.with_label_values(&labels).set(report.taken_ms as f64 / MILLIS_PER_SECOND);
            state_bytes.with_label_values(&labels).set(i64::try_from(report.bytes).unwrap_or(i64::MAX));
            self.uploaded(uploaded);
        } else {
            gone(taken_seconds.remove_label_values(&labels));
            gone(state_bytes.remove_label_values(&labels));
        }
    }

    pub fn uploaded(&self, bytes: u64) {
        self.snapshots.uploaded_bytes.inc_by(bytes);
    }

    pub fn fetched(&self, bytes: u64) {
        self.snapshots.fetched_bytes.inc_by(bytes);
    }

    pub fn snapshot_failed(&self) {
        self.snapshots.failures.inc();
    }

    /// Publishes how long the rows took that a task's epoch has just made visible.
    pub fn fresh(&self, task: &Task, now_ms: i64) {
        if task.sinks().next().is_none() {
            return;
        }
        let ages = || task.sinks().flat_map(|sink| sink.timestamps.ages(now_ms));
        let event_ages = task.sinks().flat_map(|sink| sink.event_times.ages(now_ms));
        let (freshness, event_freshness) = (Sketch::of(ages()), Sketch::of(event_ages));
        self.slices().fresh(&task.id, &freshness, &event_freshness, now_ms);
        let histogram = self.freshness.with_label_values(&[&task.id.stage]).local();
        for (ms, rows) in ages() {
            (0..rows).for_each(|_| histogram.observe(ms as f64 / MILLIS_PER_SECOND));
        }
        histogram.flush();
    }

    /// Records that a task runs here, and how far its watermark is behind.
    pub fn runs(&self, task: &Task, now_ms: i64) {
        self.slices().runs(&task.id, task.watermark_lag_ms(now_ms), now_ms);
    }

    /// What was recorded, by slices that have ended.
    pub fn slices_from(&self, worker: u32, index: i64, now_ms: i64) -> SlicesReport {
        self.slices().report(worker, index, now_ms)
    }

    fn slices(&self) -> MutexGuard<'_, Recorder> {
        self.slices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the committed totals of a task.
    pub fn totals(&self, task: &Task) {
        self.note_errors(task);
        let rows = task.inputs.iter().map(|input| input.totals.rows_in).sum();
        let counts = Counts::of(rows, task.stream_totals().map(|(_, totals)| totals));
        self.slices().counts(&task.id, counts, clock::now_ms());
        let partition = task.id.partition.to_string();
        let mut published = self.published();
        let Published { totals, reached, counters, gauges } = published.entry(task.id.clone()).or_default();
        *totals = task.totals().map(|(step, totals)| (step, totals.clone())).collect();
        let sources = task.inputs.iter().filter(|input| matches!(input.reader, Reader::Source(_)));
        *reached = sources.map(Reached::of).collect();
        let mut raise = |counter: Counter, labels: &[&str], value: u64| {
            let series = (counter, labels.iter().map(|label| (*label).to_owned()).collect());
            let before = counters.entry(series).or_default();
            self.counter(counter).with_label_values(labels).inc_by(value.saturating_sub(*before));
            *before = value;
        };
        let stage = task.id.stage.as_str();
        raise(Counter::Epochs, &[stage, &partition], task.epoch.0);
        for (step, totals) in task.totals() {
            let labels = [stage, &partition, &step];
            raise(Counter::In, &labels, totals.rows_in);
            raise(Counter::Out, &labels, totals.rows_out);
            raise(Counter::Late, &labels, totals.joined_late);
            raise(Counter::Future, &labels, totals.future);
            for reason in DropReason::ALL {
                let rows = totals.dropped.get(&reason).copied().unwrap_or(0);
                raise(Counter::Dropped, &[stage, &partition, &step, reason.name()], rows);
            }
            self.waiting.with_label_values(&labels).set(totals.waiting as i64);
            gauges.insert(step);
        }
        gauges.extend(task.inputs.iter().map(|input| input.name.clone()));
        for input in &task.inputs {
            let labels = [stage, &partition, &input.name];
            match input.clock.watermark() {
                WATERMARK_MIN | WATERMARK_MAX => {}
                watermark => self.watermark.with_label_values(&labels).set(watermark as f64 / MICROS_PER_SECOND),
            }
        }
    }

    /// Committed totals of the tasks that run here, by step.
    pub fn committed(&self) -> BTreeMap<String, Totals> {
        let mut sums: BTreeMap<String, Totals> = BTreeMap::new();
        for (step, totals) in self.published().values().flat_map(|task| &task.totals) {
            sums.entry(step.clone()).or_default().add(totals);
        }
        sums
    }

    /// Up to where partitions of a source were read and committed by all who read them, and the least watermark of those
    /// that are not at their end, microseconds.
    pub fn reached(&self, source: &str) -> (BTreeMap<Partition, Offset>, Option<i64>) {
        let (mut nexts, mut least) = (BTreeMap::new(), None);
        for (task, published) in self.published().iter() {
            for Reached { next, watermark, .. } in published.reached.iter().filter(|reached| reached.source == source) {
                let known = nexts.entry(task.partition).or_insert(*next);
                *known = (*known).min(*next);
                least = least.into_iter().chain(*watermark).min();
            }
        }
        (nexts, least)
    }

    fn published(&self) -> MutexGuard<'_, BTreeMap<TaskId, Published>> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A task has left: what is known of it belongs to somebody else now.
    pub fn forget(&self, task: &TaskId) {
        self.slices().forget(task);
        let mut published = self.published();
        let Some(Published { counters, gauges, .. }) = published.remove(task) else { return };
        for (name, labels) in counters.into_keys() {
            let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
            gone(self.counter(name).remove_label_values(&labels));
        }
        let (stage, partition) = (task.stage.as_str(), &task.partition.to_string());
        gone(self.task_running.remove_label_values(&[stage, partition]));
        for name in &gauges {
            gone(self.waiting.remove_label_values(&[stage, partition, name]));
            gone(self.watermark.remove_label_values(&[stage, partition, name]));
            self.told().remove(&[name.clone(), partition.clone()]);
            self.sources.forget(&[name.as_str(), partition]);
        }
    }

    fn counter(&self, counter: Counter) -> &IntCounterVec {
        match counter {
            Counter::Epochs => &self.epochs,
            Counter::In => &self.rows_in,
            Counter::Out => &self.rows_out,
            Counter::Late => &self.joined_late,
            Counter::Future => &self.future,
            Counter::Dropped => &self.dropped,
        }
    }

    /// Publishes how far a source partition is behind; `None`: its end was not looked up yet.
    pub fn lag(&self, task: &TaskId, input: &TaskInput, end: Option<End>, now_ms: i64) {
        let labels = [input.name.as_str(), &task.partition.to_string()];
        let seen = end.map(|End { offset, as_of_ms, head_timestamp_ms, .. }| Seen {
            next: input.next,
            end: offset,
            end_as_of_ms: as_of_ms,
            head_timestamp_ms,
        });
        let lag = seen.and_then(|seen| {
            self.slices().lag(task, &input.name, seen, now_ms);
            lag::lag(seen, now_ms)
        });
        let told = Told { at_ms: clock::steady_ms(), stage: task.stage.clone(), next: input.next, lag };
        self.told().insert(labels.map(str::to_owned), told);
        self.sources.lag_known.with_label_values(&labels).set(i64::from(lag.is_some()));
        match lag {
            Some(Lag { records, age_ms }) => {
                self.sources.lag_records.with_label_values(&labels).set(records);
                self.sources.lag_seconds.with_label_values(&labels).set(age_ms as f64 / MILLIS_PER_SECOND);
            }
            // Unknown is absent, not a number.
            None => {
                gone(self.sources.lag_records.remove_label_values(&labels));
                gone(self.sources.lag_seconds.remove_label_values(&labels));
            }
        }
        let hidden = end.map(|end| end.hidden).unwrap_or_default();
        self.sources.hidden_records.with_label_values(&labels).set(hidden.records);
        self.sources.hidden_seconds.with_label_values(&labels).set(hidden.for_ms as f64 / MILLIS_PER_SECOND);
    }

    /// How far each source partition that is read here is behind.
    pub fn lags(&self) -> Vec<SourceLag> {
        let now = clock::steady_ms();
        let lag = |([name, partition], told): (&[String; 2], &Told)| {
            let lag = told.lag.filter(|_| now.saturating_sub(told.at_ms) <= lag::KNOWN_MS as u64);
            SourceLag {
                name: name.clone(),
                partition: Partition(partition.parse().unwrap_or_default()),
                stage: told.stage.clone(),
                position: lag.map(|_| told.next.0),
                lag_records: lag.map(|lag| lag.records),
                lag_ms: lag.map(|lag| lag.age_ms),
            }
        };
        self.told().iter().map(lag).collect()
    }

    /// Records that could not be used.
    pub fn errors(&self) -> Vec<ErrorReport> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    fn note_errors(&self, task: &Task) {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        for input in &task.inputs {
            let Some((offset, code)) = input.failed else { continue };
            let dropped = |reason| input.totals.dropped.get(&reason).copied().unwrap_or(0);
            let partition = task.id.partition;
            let count = dropped(DropReason::Skipped) + dropped(DropReason::DeadLettered);
            let (topic, code) = (input.topic.clone(), code.to_owned());
            let error = ErrorReport { code, topic: topic.clone(), partition, offset: offset.0, count };
            errors.insert((topic, partition), error);
        }
    }

    fn told(&self) -> MutexGuard<'_, LagsTold> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The text form, for a scrape. What a lane has not told for long is not known: it waits for brokers that do not
    /// answer, and a number would stand for ever.
    pub fn render(&self) -> prometheus::Result<Vec<u8>> {
        let now = clock::steady_ms();
        for (labels, _) in self.told().iter().filter(|(_, told)| now.saturating_sub(told.at_ms) > lag::KNOWN_MS as u64)
        {
            let labels = [labels[0].as_str(), labels[1].as_str()];
            self.sources.lag_known.with_label_values(&labels).set(0);
            gone(self.sources.lag_records.remove_label_values(&labels));
            gone(self.sources.lag_seconds.remove_label_values(&labels));
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}

/// A series that is to go may never have been there.
fn gone(_: prometheus::Result<()>) {}

fn register<C: Collector + Clone + 'static>(registry: &Registry, collector: C) -> prometheus::Result<C> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

fn counter(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntCounterVec> {
    register(registry, IntCounterVec::new(Opts::new(name, help), labels)?)
}

fn plain_counter(registry: &Registry, name: &str, help: &str) -> prometheus::Result<IntCounter> {
    let counter = IntCounter::new(name, help)?;
    registry.register(Box::new(counter.clone()))?;
    Ok(counter)
}

fn gauge(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
    register(registry, IntGaugeVec::new(Opts::new(name, help), labels)?)
}

fn float_gauge(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<GaugeVec> {
    register(registry, GaugeVec::new(Opts::new(name, help), labels)?)
}

fn histogram(
    registry: &Registry,
    name: &str,
    help: &str,
    buckets: &[f64],
    labels: &[&str],
) -> prometheus::Result<HistogramVec> {
    register(registry, HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels)?)
}

//! What a worker tells Prometheus. Counters are the totals that the epoch markers hold: they go on where they stood
//! after a restart, and show committed work only.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use millrace_core::event_time::{WATERMARK_MAX, WATERMARK_MIN};
use millrace_core::ids::TaskId;
use millrace_core::totals::DropReason;
use prometheus::core::Collector;
use prometheus::{Encoder, GaugeVec, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder};

use crate::engine::task::{Task, TaskInput};
use crate::log::End;

const MILLIS_PER_SECOND: f64 = 1e3;
const MICROS_PER_SECOND: f64 = 1e6;

pub struct Metrics {
    registry: Registry,
    rows_in: IntCounterVec,
    rows_out: IntCounterVec,
    dropped: IntCounterVec,
    joined_late: IntCounterVec,
    future: IntCounterVec,
    epochs: IntCounterVec,
    waiting: IntGaugeVec,
    lag_records: IntGaugeVec,
    lag_seconds: GaugeVec,
    lag_known: IntGaugeVec,
    watermark: GaugeVec,
    /// Counters can only be raised: what was published, by series.
    published: Mutex<BTreeMap<Vec<String>, u64>>,
}

impl Metrics {
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let step = &["stage", "partition", "step"];
        let source = &["source", "partition"];
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
            lag_records: gauge(
                &registry,
                "millrace_source_lag_records",
                "Records that are there and not read",
                source,
            )?,
            lag_seconds: float_gauge(
                &registry,
                "millrace_source_lag_seconds",
                "Age of the oldest record that is not read, by its timestamp; 0 when all are",
                source,
            )?,
            lag_known: gauge(&registry, "millrace_source_lag_known", "1 when the lag is known, else 0", source)?,
            watermark: float_gauge(
                &registry,
                "millrace_watermark_seconds",
                "Watermark of a stage's input, seconds since the epoch",
                &["stage", "partition", "input"],
            )?,
            registry,
            published: Mutex::new(BTreeMap::new()),
        })
    }

    /// Publishes the committed totals of a task.
    pub fn totals(&self, task: &Task) {
        let partition = task.id.partition.to_string();
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        let mut raise = |counter: &IntCounterVec, name: &str, labels: &[&str], value: u64| {
            let series = std::iter::once(name).chain(labels.iter().copied()).map(str::to_owned).collect();
            let before = published.entry(series).or_default();
            counter.with_label_values(labels).inc_by(value.saturating_sub(*before));
            *before = value;
        };
        let stage = task.id.stage.as_str();
        raise(&self.epochs, "epochs", &[stage, &partition], task.epoch.0);
        for (step, totals) in task.totals() {
            let labels = [stage, &partition, &step];
            raise(&self.rows_in, "in", &labels, totals.rows_in);
            raise(&self.rows_out, "out", &labels, totals.rows_out);
            raise(&self.joined_late, "late", &labels, totals.joined_late);
            raise(&self.future, "future", &labels, totals.future);
            for reason in DropReason::ALL {
                let rows = totals.dropped.get(&reason).copied().unwrap_or(0);
                raise(&self.dropped, "dropped", &[stage, &partition, &step, reason.name()], rows);
            }
            self.waiting.with_label_values(&labels).set(totals.waiting as i64);
        }
        for input in &task.inputs {
            let labels = [stage, &partition, &input.name];
            match input.clock.watermark() {
                WATERMARK_MIN | WATERMARK_MAX => {}
                watermark => self.watermark.with_label_values(&labels).set(watermark as f64 / MICROS_PER_SECOND),
            }
        }
    }

    /// A task has left: what is known of it belongs to somebody else now.
    pub fn forget(&self, task: &Task) {
        let partition = task.id.partition.to_string();
        let stage = task.id.stage.as_str();
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        let mut forget = |counter: &IntCounterVec, name: &str, labels: &[&str]| {
            let series: Vec<String> = std::iter::once(name).chain(labels.iter().copied()).map(str::to_owned).collect();
            if published.remove(&series).is_some() {
                gone(counter.remove_label_values(labels));
            }
        };
        forget(&self.epochs, "epochs", &[stage, &partition]);
        for (step, _) in task.totals() {
            let labels = [stage, &partition, &step];
            forget(&self.rows_in, "in", &labels);
            forget(&self.rows_out, "out", &labels);
            forget(&self.joined_late, "late", &labels);
            forget(&self.future, "future", &labels);
            for reason in DropReason::ALL {
                forget(&self.dropped, "dropped", &[stage, &partition, &step, reason.name()]);
            }
            gone(self.waiting.remove_label_values(&labels));
        }
        for input in &task.inputs {
            gone(self.watermark.remove_label_values(&[stage, &partition, &input.name]));
            let labels = [input.name.as_str(), &partition];
            gone(self.lag_records.remove_label_values(&labels));
            gone(self.lag_seconds.remove_label_values(&labels));
            gone(self.lag_known.remove_label_values(&labels));
        }
    }

    /// Publishes how far a source partition is behind.
    pub fn lag(&self, task: &TaskId, input: &TaskInput, end: End, now_ms: i64) {
        let labels = [input.name.as_str(), &task.partition.to_string()];
        let records = (end.offset.0 - input.next.0).max(0);
        self.lag_records.with_label_values(&labels).set(records);
        let age_ms = end.head_timestamp_ms.map(|t| (now_ms - t).max(0));
        match (records, age_ms) {
            (0, _) => self.lag_seconds.with_label_values(&labels).set(0.0),
            (_, Some(age)) => self.lag_seconds.with_label_values(&labels).set(age as f64 / MILLIS_PER_SECOND),
            // The record has no timestamp: unknown is absent, not a number.
            (_, None) => {
                gone(self.lag_seconds.remove_label_values(&labels));
            }
        }
        self.lag_known.with_label_values(&labels).set(i64::from(records == 0 || age_ms.is_some()));
    }

    /// The text form, for a scrape.
    pub fn render(&self) -> prometheus::Result<Vec<u8>> {
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

fn gauge(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
    register(registry, IntGaugeVec::new(Opts::new(name, help), labels)?)
}

fn float_gauge(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<GaugeVec> {
    register(registry, GaugeVec::new(Opts::new(name, help), labels)?)
}

//! What the operator says about itself, and about SLOs.

use std::sync::Arc;

use prometheus::{
    Encoder, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
};

use crate::backfills::{self, Backfills};
use crate::slos::{Series, Slos};

const SECONDS: [f64; 12] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Of a look, as errors are counted: each from 0, so that the first one is seen as one.
const STEPS: [&str; 4] = ["dereference", "apply", "savepoints", "status"];

/// All metrics of the operator; names begin with `millrace_operator_`. Those about Pipelines are not about the operator.
pub struct Metrics {
    registry: Registry,
    about_pipelines: Registry,
    /// By outcome: ok, error.
    pub reconcile_seconds: HistogramVec,
    /// From what asked for a look to its begin, by lane.
    pub queue_seconds: HistogramVec,
    /// By step.
    pub errors: IntCounterVec,
    /// Events written, by reason.
    pub transitions: IntCounterVec,
    /// By kind of action.
    pub writes: IntCounterVec,
    pub compilations: IntCounter,
    pub watch_errors: IntCounter,
    pub pipelines: IntGauge,
    /// Of them, those that were looked at without an error: all of them, once the process has started.
    pub looked_at: IntGauge,
    pub queued: IntGauge,
    pub leader: IntGauge,
    pub unobserved_slices: IntCounter,
}

impl Metrics {
    pub fn new(slos: &Arc<Slos>, backfills: &Arc<Backfills>) -> Result<Self, prometheus::Error> {
        let about_pipelines = Registry::new();
        about_pipelines.register(Box::new(backfills::Series::new(Arc::clone(backfills))?))?;
        about_pipelines.register(Box::new(Series::new(Arc::clone(slos))?))?;
        let registry = Registry::new_custom(Some("millrace_operator".to_owned()), None)?;
        let histogram = |name: &str, help: &str, label: &str| {
            let made = HistogramVec::new(HistogramOpts::new(name, help).buckets(SECONDS.to_vec()), &[label])?;
            registry.register(Box::new(made.clone()))?;
            Ok::<_, prometheus::Error>(made)
        };
        let counters = |name: &str, help: &str, label: &str| {
            let made = IntCounterVec::new(Opts::new(name, help), &[label])?;
            registry.register(Box::new(made.clone()))?;
            Ok::<_, prometheus::Error>(made)
        };
        let counter = |name: &str, help: &str| {
            let made = IntCounter::new(name, help)?;
            registry.register(Box::new(made.clone()))?;
            Ok::<_, prometheus::Error>(made)
        };
        let gauge = |name: &str, help: &str| {
            let made = IntGauge::new(name, help)?;
            registry.register(Box::new(made.clone()))?;
            Ok::<_, prometheus::Error>(made)
        };
        let errors = counters("errors_total", "Looks that failed, by step.", "step")?;
        STEPS.iter().for_each(|step| drop(errors.with_label_values(&[step])));
        Ok(Self {
            errors,
            reconcile_seconds: histogram("reconcile_seconds", "How long a look at a pipeline took.", "outcome")?,
            queue_seconds: histogram("queue_seconds", "How long a pipeline waited for its look.", "lane")?,
            transitions: counters("transitions_total", "Changes of state, by reason.", "reason")?,
            writes: counters("writes_total", "Writes to the API server, by action.", "action")?,
            compilations: counter("compilations_total", "Specs that were compiled.")?,
            watch_errors: counter("watch_errors_total", "Watches that broke and began anew.")?,
            pipelines: gauge("pipelines", "Pipelines that are known.")?,
            looked_at: gauge("pipelines_looked_at", "Pipelines that this process has looked at.")?,
            queued: gauge("queued", "Pipelines that wait for a look.")?,
            leader: gauge("leader", "1 while this process is the one that acts.")?,
            unobserved_slices: counter(
                "unobserved_slices_total",
                "Slices of SLOs that were not observed in time, since most workers did not answer.",
            )?,
            about_pipelines,
            registry,
        })
    }

    /// In Prometheus' text format.
    pub fn render(&self) -> Result<String, prometheus::Error> {
        let mut text = Vec::new();
        for registry in [&self.registry, &self.about_pipelines] {
            TextEncoder::new().encode(&registry.gather(), &mut text)?;
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

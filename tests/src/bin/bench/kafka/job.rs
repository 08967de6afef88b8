//! The whole job, in a process of its own as a user runs it, over orders that are all there at its start.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_tests::process::{Process, rate};
use millrace_tests::scratch;
use millrace_tests::story::{Worker, http};
use rdkafka::Message;

use super::feed::read_all;
use super::{Bench, ORDERS};
use crate::data::{self, CUSTOMERS};

/// The part of the orders behind which the clock starts: the row cache is hot then, and the broker warm.
const WARM: f64 = 0.3;
const LOOK_EVERY: Duration = Duration::from_millis(100);
const DEADLINE: Duration = Duration::from_secs(600);

pub struct Throughput {
    pub records_per_cpu_second: f64,
    pub records_per_second: f64,
}

/// A look at the running job.
struct Sample {
    at: Instant,
    rows: usize,
    ours: f64,
    broker: f64,
}

pub fn run(bench: &Bench) -> anyhow::Result<Throughput> {
    bench.create("history-enriched", &[])?;
    let dir = scratch()?;
    let worker = start(bench, dir.path(), "history")?;
    let ours = Process::of(worker.pid());
    let (begin, mut warm) = (Instant::now(), None);
    let end = loop {
        ensure!(begin.elapsed() < DEADLINE, "the job is not through: {}", worker.log());
        let sample = Sample {
            at: Instant::now(),
            rows: rows_out(&worker)?,
            ours: ours.seconds()?,
            broker: bench.broker.seconds()?,
        };
        if sample.rows >= ORDERS {
            break sample;
        }
        if sample.rows as f64 >= WARM * ORDERS as f64 {
            warm.get_or_insert(sample);
        }
        thread::park_timeout(LOOK_EVERY);
    };
    let warm = warm.context("the job was through before it was looked at")?;
    let rows = end.rows - warm.rows;
    let (seconds, cpu, broker) = ((end.at - warm.at).as_secs_f64(), end.ours - warm.ours, end.broker - warm.broker);
    let per_second = rows as f64 / seconds;
    println!("  our process                          {}", rate(rows, cpu));
    println!("  the broker                           {}", rate(rows, broker));
    println!(
        "  CPU seconds per million records      {:>10.2} ours, {:.2} the broker's",
        per_million(cpu, rows),
        per_million(broker, rows)
    );
    println!(
        "  wall time, steady over {seconds:>4.1} s         {per_second:>10.0} records/s, {:.2} cores ours",
        cpu / seconds
    );
    worker.stop()?;
    check(bench)?;
    Ok(Throughput { records_per_cpu_second: rows as f64 / cpu, records_per_second: per_second })
}

fn per_million(seconds: f64, rows: usize) -> f64 {
    seconds * 1e6 / rows as f64
}

/// Starts the pipeline `name` on the bench's broker.
pub fn start(bench: &Bench, dir: &Path, name: &str) -> anyhow::Result<Worker> {
    let file = dir.join("pipeline.yaml");
    std::fs::write(&file, data::pipeline(&bench.kafka.bootstrap_servers(), name)).context("write the pipeline")?;
    let mut worker = Worker::start(&file, &dir.join("state"), &[])?;
    worker.wait_ready()?;
    Ok(worker)
}

/// Committed rows of the sink.
fn rows_out(worker: &Worker) -> anyhow::Result<usize> {
    let (_, text) = http(&worker.metrics, "/metrics")?;
    let sink = |line: &&str| line.starts_with("millrace_rows_out_total{") && line.contains("\"sink out\"");
    let value = |line: &str| line.rsplit(' ').next().and_then(|v| v.parse::<f64>().ok()).context("read a counter");
    Ok(text.lines().filter(sink).map(value).sum::<anyhow::Result<f64>>()? as usize)
}

/// Every order is there once, with its customer.
fn check(bench: &Bench) -> anyhow::Result<()> {
    let (mut seen, mut joined) = (vec![false; ORDERS], 0);
    read_all(&bench.kafka, "history-enriched", |message| {
        let row: Enriched<'_> = serde_json::from_slice(message.payload().unwrap_or_default()).context("read a row")?;
        ensure!(!std::mem::replace(&mut seen[row.order_id], true), "order {} is there twice", row.order_id);
        let customer = data::customer_of(row.order_id);
        let expected = (customer < CUSTOMERS).then(|| format!("Customer {customer}"));
        ensure!(row.name == expected.as_deref(), "order {} has {:?}, not {expected:?}", row.order_id, row.name);
        joined += usize::from(expected.is_some());
        Ok(())
    })?;
    let rows = seen.iter().filter(|s| **s).count();
    ensure!(rows == ORDERS, "{rows} of {ORDERS} orders came out");
    println!("  checked: each of the {ORDERS} orders once, {joined} of them with their customer");
    Ok(())
}

#[derive(serde::Deserialize)]
struct Enriched<'a> {
    order_id: usize,
    name: Option<&'a str>,
}

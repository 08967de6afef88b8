//! How long a record takes at a steady rate: from its timestamp, which is when it was due to be sent, until a
//! `read_committed` reader has the row that came of it. And what that rate costs.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use millrace_tests::process::Process;
use millrace_tests::scratch;
use rdkafka::Message;
use rdkafka::error::KafkaError;

use super::feed::Feed;
use super::{Bench, job};
use crate::data;

const RATE: usize = 20_000;
const SECONDS: usize = 35;
/// Left out: caches fill, and the broker's code is compiled.
const WARM_SECONDS: usize = 10;
/// For what the broker does for the generator alone.
const ALONE_SECONDS: usize = 20;
const FEED_LINGER_MS: u32 = 5;
const TICK: Duration = Duration::from_millis(2);
/// How long after the last order the last row may come.
const PATIENCE: Duration = Duration::from_secs(30);

pub fn run(bench: &Bench) -> anyhow::Result<()> {
    bench.create("alone-orders", &[])?;
    let alone = feed(bench, "alone-orders", now_ms()?, ALONE_SECONDS, std::slice::from_ref(&bench.broker))?;
    bench.create("live-orders", &[])?;
    bench.create("live-enriched", &[])?;
    let dir = scratch()?;
    let worker = job::start(bench, dir.path(), "live")?;
    let processes = [Process::of(worker.pid()), bench.broker.clone()];
    let begin_ms = now_ms()?;
    let (mut sorted, used) = thread::scope(|scope| {
        let read = scope.spawn(|| latencies(bench, begin_ms + WARM_SECONDS as i64 * 1000));
        let used = feed(bench, "live-orders", begin_ms, SECONDS, &processes)?;
        let read = read.join().map_err(|_| anyhow::anyhow!("the reader panicked"))?;
        anyhow::Ok((read?, used))
    })?;
    sorted.sort_unstable();
    let at = |part: f64| sorted[((sorted.len() - 1) as f64 * part) as usize];
    let rows = sorted.len();
    println!("  {RATE} records/s for {SECONDS} s, the first {WARM_SECONDS} left out, {rows} rows");
    println!(
        "  p50 {} ms, p90 {} ms, p99 {} ms, p99.9 {} ms, max {} ms",
        at(0.5),
        at(0.9),
        at(0.99),
        at(0.999),
        at(1.0)
    );
    let ([ours, broker], alone) = ([&used[0], &used[1]], &alone[0]);
    println!(
        "  cores: {:.2} ours, {:.2} the broker's, of which {:.2} with the generator alone",
        ours.cores, broker.cores, alone.cores
    );
    println!(
        "  seconds that threads waited for a core, each second: {:.2} ours, {:.2} the broker's",
        ours.waiting, broker.waiting
    );
    worker.stop()
}

/// What a process had of the machine, each second.
struct Used {
    cores: f64,
    /// Over all of its threads.
    waiting: f64,
}

/// Sends orders at the rate. Returns what each process has used behind the warm-up.
fn feed(bench: &Bench, topic: &str, begin_ms: i64, seconds: usize, processes: &[Process]) -> anyhow::Result<Vec<Used>> {
    let mut feed = Feed::new(&bench.kafka, FEED_LINGER_MS)?;
    let used = || -> anyhow::Result<Vec<(f64, f64)>> {
        processes.iter().map(|p| Ok((p.seconds()?, p.waited_seconds()?))).collect()
    };
    let (begin, mut text, mut warm) = (Instant::now(), String::new(), None);
    let (mut sent, all) = (0, RATE * seconds);
    while sent < all {
        let due = (begin.elapsed().as_secs_f64() * RATE as f64) as usize;
        while sent < due.min(all) {
            let due_ms = begin_ms + (sent * 1000 / RATE) as i64;
            data::order(sent, due_ms, &mut text);
            feed.send(topic, &data::customer_id(data::customer_of(sent)), due_ms, text.as_bytes())?;
            sent += 1;
        }
        if warm.is_none() && sent >= RATE * WARM_SECONDS {
            warm = Some((Instant::now(), used()?));
        }
        thread::park_timeout(TICK);
    }
    let (at, before) = warm.context("the warm-up ends")?;
    let (after, passed) = (used()?, at.elapsed().as_secs_f64());
    feed.flush()?;
    let each = |(after, before): (&(f64, f64), (f64, f64))| Used {
        cores: (after.0 - before.0) / passed,
        waiting: (after.1 - before.1) / passed,
    };
    Ok(after.iter().zip(before).map(each).collect())
}

/// Milliseconds that each row took, of the orders that were due at `from_ms` or later.
fn latencies(bench: &Bench, from_ms: i64) -> anyhow::Result<Vec<i64>> {
    let consumer = bench.kafka.reader("live-enriched")?;
    let (mut rows, mut last, mut latencies) = (0, Instant::now(), Vec::with_capacity(RATE * SECONDS));
    while rows < RATE * SECONDS {
        ensure!(last.elapsed() < PATIENCE, "{rows} of {} rows came out", RATE * SECONDS);
        let message = match consumer.poll(Duration::from_millis(100)) {
            None | Some(Err(KafkaError::PartitionEOF(_))) => continue,
            Some(message) => message.context("read a row")?,
        };
        (rows, last) = (rows + 1, Instant::now());
        let due_ms = message.timestamp().to_millis().context("a row has its order's timestamp")?;
        if due_ms >= from_ms {
            latencies.push(now_ms()? - due_ms);
        }
    }
    Ok(latencies)
}

fn now_ms() -> anyhow::Result<i64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as i64)
}

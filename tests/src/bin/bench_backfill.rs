//! `make bench-backfill`: what a backfill costs the pipeline beside it, on a real Kubernetes with a real Kafka. Live rows come
//! at a pace that takes about 30 % of the machine, and rounds with and without a backfill take turns: each one with is
//! compared with the one before it. One without a limit comes behind, with its small share of the cores, and at last one with a
//! large share: it must be seen, else the measurement is blind.
//!
//! The time of a row is from its being written to a `read_committed` reader having it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use millrace_kafka_harness::{Message, Writer, wait};
use millrace_tests::kubernetes::{World, world};
use millrace_tests::process::idle;
use millrace_tests::repairs::{Changes, PARTITIONS, THEN_MS, backfill, pipeline};
use millrace_tests::story::{DEADLINE, Numbers};
use rdkafka::consumer::BaseConsumer;
use rdkafka::error::KafkaError;
use rdkafka::message::Message as _;
use serde_json::{Value, json};

const NAME: &str = "repaired";
const NAMESPACE: &str = "bench-backfill";
/// Records of the range, and keys that they are of. Without a limit they last for longer than a round.
const HISTORY: u64 = 6_000_000;
const KEYS: u64 = 200_000;
/// Written at once.
const BATCH: u64 = 20_000;
/// How fast a backfill may read that is to be in nobody's way.
const LIMIT: u64 = 10_000;
/// Pairs of rounds, with that limit and with none.
const PAIRS: usize = 10;
const PAIRS_WITHOUT_LIMIT: usize = 3;
/// A backfill's share of the cores that is above those of the workers, as a request.
const LARGE: &str = "1000m";
const ROUND: Duration = Duration::from_secs(10);
/// What the last round has left behind is over by then, and the next one has begun.
const SETTLES: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(2);
const TICK: Duration = Duration::from_millis(10);
/// What of the machine the live rows may take, and the paces that are tried: rows in a tick.
const BUSY: f64 = 0.3;
const PACES: [u64; 7] = [2, 5, 10, 20, 40, 60, 80];

fn main() -> anyhow::Result<()> {
    let world = world();
    bench(world).with_context(|| world.cluster.diagnostics())
}

fn bench(world: &World) -> anyhow::Result<()> {
    kubectl(world, &["create", "namespace", NAMESPACE])?;
    // Only their topics are used: the rows are others.
    drop(Changes::new(&world.kafka, NAME, 1)?);
    history(&world.kafka.writer()?)?;
    let slos = json!([{"name": "fresh", "freshness": {"threshold": "1s"}, "objective": "99", "window": "7d"}]);
    let worker = json!({"resources": {"requests": {"cpu": "400m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}}});
    let spec = json!({"replicas": 2, "slos": slos, "worker": worker});
    world.cluster.apply(&pipeline(NAMESPACE, NAME, &world.kafka.bootstrap_servers(), &spec).to_string())?;
    kubectl(world, &["wait", "--for=condition=Ready", &format!("pipeline/{NAME}"), "--timeout=120s"])?;
    let (stop, pace) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let live = scope.spawn(|| live(&world.kafka.writer()?, &pace, &stop));
        let measured = measure(world, &pace);
        stop.store(true, Ordering::Relaxed);
        live.join().map_err(|_| anyhow::anyhow!("the thread that writes panicked"))??;
        measured
    })
}

fn measure(world: &World, pace: &AtomicU64) -> anyhow::Result<()> {
    wait::until("the machine to be at rest", DEADLINE, || Ok(busy()? < BUSY / 2.0 + 0.1))?;
    let rest = busy()?;
    for rows in PACES {
        let before = pace.swap(rows, Ordering::Relaxed);
        if busy()? > rest + BUSY {
            pace.store(before.max(PACES[0]), Ordering::Relaxed);
            break;
        }
    }
    let rows = pace.load(Ordering::Relaxed) * 1_000 / TICK.as_millis() as u64;
    println!(
        "{rows} live rows a second: {:.0} % of the machine beside {:.0} % at rest",
        (busy()? - rest) * 100.0,
        rest * 100.0
    );
    let mut output = Output { reader: world.kafka.reader(&format!("{NAME}-out"))?, ended: BTreeMap::new() };
    let more = json!({"rateLimit": {"recordsPerSecond": 0}, "yieldToLive": {"slo": "fresh"}});
    world.cluster.apply(&backfill(NAMESPACE, "again", NAME, &more).to_string())?;
    wait::until("the backfill's pod", DEADLINE, || Ok(records(world).is_ok()))?;
    weights()?;
    println!("\nwith a limit of {LIMIT} records a second");
    rounds(&mut output, PAIRS, || limited(world, 0), || limited(world, LIMIT).map(|()| SETTLES), || records(world))?;
    let slo = kubectl(world, &["get", "pipeline", NAME, "-o", "jsonpath={.status.slos[0]}"])?;
    println!("the pipeline's SLO by then: {slo}");
    set(world, &json!({"yieldToLive": null, "rateLimit": null}))?;
    ended(world)?;
    println!("\nwithout a limit, each time from the beginning");
    let mut attempt = 1;
    let mut again = || {
        attempt += 1;
        begin(world, attempt)
    };
    rounds(&mut output, PAIRS_WITHOUT_LIMIT, || ended(world), &mut again, || records(world))?;
    world.install(&["--reset-then-reuse-values", &format!("--set=backfill.resources.requests.cpu={LARGE}")])?;
    println!("\nthe same with a share of the cores that is larger than that of the workers ({LARGE})");
    rounds(&mut output, PAIRS_WITHOUT_LIMIT, || ended(world), &mut again, || records(world))?;
    weights()
}

fn limited(world: &World, limit: u64) -> anyhow::Result<()> {
    set(world, &json!({"rateLimit": {"recordsPerSecond": limit}}))
}

/// Waits until the backfill has ended.
fn ended(world: &World) -> anyhow::Result<()> {
    wait::until("the backfill to end", DEADLINE, || Ok(phase(world)? == "Succeeded"))
}

/// Begins once more, and returns when it reads: then nothing has to settle.
fn begin(world: &World, attempt: u32) -> anyhow::Result<Duration> {
    set(world, &json!({"attempt": attempt}))?;
    wait::until("the backfill to read", DEADLINE, || Ok(records(world).is_ok_and(|records| records > 0)))?;
    Ok(Duration::ZERO)
}

fn phase(world: &World) -> anyhow::Result<String> {
    kubectl(world, &["get", "backfill", "again", "-o", "jsonpath={.status.phase}"])
}

/// Pairs of rounds without and with a backfill, and what came of them. What begins it says how long that takes to settle.
fn rounds(
    output: &mut Output,
    pairs: usize,
    without: impl Fn() -> anyhow::Result<()>,
    mut with: impl FnMut() -> anyhow::Result<Duration>,
    records: impl Fn() -> anyhow::Result<u64>,
) -> anyhow::Result<()> {
    let mut ratios = Vec::new();
    println!("  p99 without     p99 with    ratio    read meanwhile");
    for _ in 0..pairs {
        without()?;
        let calm = output.p99(SETTLES)?;
        let settles = with()?;
        let (before, begin) = (records()?, Instant::now());
        let beside = output.p99(settles)?;
        // It may have come to its end.
        let read = records().map_or("to its end".to_owned(), |after| {
            format!("{:.0} /s", after.saturating_sub(before) as f64 / begin.elapsed().as_secs_f64())
        });
        let ratio = beside.as_secs_f64() / calm.as_secs_f64();
        ratios.push(ratio);
        println!("  {:>8} ms  {:>8} ms  {ratio:>7.2}  {read:>14}", calm.as_millis(), beside.as_millis());
    }
    ratios.sort_by(f64::total_cmp);
    println!("  median of {} ratios: {:.2}", ratios.len(), ratios[ratios.len() / 2]);
    Ok(())
}

/// What was missed: in each partition, of its keys, with versions below those of live rows.
fn history(writer: &Writer) -> anyhow::Result<()> {
    let (topic, mut numbers) = (format!("{NAME}-changes"), Numbers(9));
    for batch in 0..HISTORY / BATCH {
        let record = |n: u64| {
            let number = batch * BATCH + n;
            let (id, version) = (1_000_000 + numbers.below(KEYS), numbers.below(1_000_000));
            let row = json!({"number": number, "id": id, "version": version}).to_string();
            Message::new(id.to_string(), row).on((id % PARTITIONS as u64) as i32).at(THEN_MS)
        };
        writer.produce(&topic, (0..BATCH).map(record).collect::<Vec<_>>())?;
    }
    Ok(())
}

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// Rows as they are made: the version says when.
fn live(writer: &Writer, pace: &AtomicU64, stop: &AtomicBool) -> anyhow::Result<()> {
    let (topic, begin) = (format!("{NAME}-changes"), Instant::now());
    let mut number = 0;
    for tick in 1.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let now = now_us();
        let rows = (0..pace.load(Ordering::Relaxed)).map(|n| {
            number += 1;
            let id = number % 1_000;
            let row = json!({"number": number, "id": id, "version": now + n}).to_string();
            Message::new(id.to_string(), row).on((id % PARTITIONS as u64) as i32).at((now / 1_000) as i64)
        });
        writer.enqueue(&topic, rows.collect::<Vec<_>>())?;
        thread::park_timeout((begin + TICK * tick).saturating_duration_since(Instant::now()));
    }
    writer.delivered()
}

/// The rows of the sink, read as they come.
struct Output {
    reader: BaseConsumer,
    ended: BTreeMap<i32, bool>,
}

impl Output {
    /// Of the live rows that were made in a round.
    fn p99(&mut self, settles: Duration) -> anyhow::Result<Duration> {
        let (begin, from_us) = (Instant::now(), now_us() + settles.as_micros() as u64);
        let mut times = Vec::new();
        while begin.elapsed() < settles + ROUND {
            let record = match self.reader.poll(LOOK) {
                None => continue,
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    self.ended.insert(partition, true);
                    continue;
                }
                Some(record) => record.context("read a row")?,
            };
            let row: Value = serde_json::from_slice(record.payload().unwrap_or_default()).context("read a row")?;
            let made_us = row["version"].as_u64().unwrap_or_default();
            if made_us >= from_us {
                times.push(now_us().saturating_sub(made_us));
            }
        }
        ensure!(times.len() > 100, "{} rows came out in a round", times.len());
        times.sort_unstable();
        Ok(Duration::from_micros(times[times.len() * 99 / 100]))
    }
}

fn kubectl(world: &World, arguments: &[&str]) -> anyhow::Result<String> {
    world.cluster.kubectl(&[&["--namespace", NAMESPACE], arguments].concat())
}

fn set(world: &World, spec: &Value) -> anyhow::Result<()> {
    let patch = json!({"spec": spec}).to_string();
    kubectl(world, &["patch", "backfill", "again", "--type=merge", "-p", &patch]).map(drop)
}

/// Records that the backfill has read, by its pod.
fn records(world: &World) -> anyhow::Result<u64> {
    let selector = format!("millrace.dev/pipeline={NAME},app.kubernetes.io/component=backfill");
    let path = "jsonpath={.items[0].metadata.name}";
    let pod = kubectl(world, &["get", "pods", "-l", &selector, "--field-selector=status.phase=Running", "-o", path])?;
    let text =
        kubectl(world, &["get", "--raw", &format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}:9464/proxy/metrics")])?;
    let of = |line: &&str| line.starts_with("millrace_rows_in_total{") && line.contains("step=\"source changes\"");
    let counts = text.lines().filter(of).filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    Ok(counts.sum::<f64>() as u64)
}

/// What share of the cores each process of ours is given where all want them, as the kernel has it.
fn weights() -> anyhow::Result<()> {
    let mut found = BTreeMap::new();
    for process in std::fs::read_dir("/proc").context("list processes")?.flatten().map(|entry| entry.path()) {
        let read =
            |file: &str| std::fs::read(process.join(file)).map(|text| String::from_utf8_lossy(&text).into_owned());
        let (Ok(command), Ok(groups)) = (read("cmdline"), read("cgroup")) else { continue };
        let who = match (command.starts_with("millrace\0run"), command.contains("--backfill")) {
            (true, true) => "the backfill",
            (true, false) => "a worker",
            (false, _) => continue,
        };
        let weight = groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let files = match controllers.is_empty() {
                true => [format!("/sys/fs/cgroup{path}/cpu.weight"), String::new()],
                false if controllers.split(',').any(|controller| controller == "cpu") => [
                    format!("/sys/fs/cgroup/cpu{path}/cpu.shares"),
                    format!("/sys/fs/cgroup/{controllers}{path}/cpu.shares"),
                ],
                false => return None,
            };
            files.iter().find_map(|file| std::fs::read_to_string(file).ok())
        });
        found.insert(who, weight.unwrap_or_default().trim().to_owned());
    }
    println!("CPU weights in the control groups: {found:?}");
    ensure!(found.len() == 2, "a worker and the backfill run");
    Ok(())
}

/// What of the machine is busy, over some seconds.
fn busy() -> anyhow::Result<f64> {
    thread::park_timeout(Duration::from_secs(2));
    Ok(1.0 - idle(Duration::from_secs(5))?)
}

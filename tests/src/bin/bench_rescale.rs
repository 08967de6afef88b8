//! `make bench-rescale`: what a rescale costs those who read the output, on a real Kubernetes with a real Kafka and an
//! object store; beside it a restart of the whole pipeline, which is what others do. And what a lost and a kept disk cost.
//! Figures, no judgement; every row is compared with a naive model.
//!
//! A pause is the longest time between two rows of one partition of the source, as a `read_committed` reader sees them.
//! Each task has one partition; which tasks moved is read from the assignments.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_core::assignment::Assignment;
use millrace_kafka_harness::{Message, wait};
use millrace_tests::kubernetes::Deployed;
use millrace_tests::process::idle;
use millrace_tests::story::{DEADLINE, Numbers, Shape, Story};
use rdkafka::consumer::BaseConsumer;
use rdkafka::error::KafkaError;
use rdkafka::message::Message as _;
use serde_json::{Value, json};

const PARTITIONS: i32 = 8;
/// Customers without orders: they make the state large.
const STRANGERS: u64 = 9_000_000;
/// Characters of a name, which no compression makes shorter than half.
const NAME: usize = 300;
/// Written at once.
const BATCH: usize = 10_000;
/// A worker's memory: a quarter of it is the cache, another the write buffers. Less than the state of each of two workers.
const MEMORY: &str = "1Gi";
/// Of the strangers, one in so many gets another name, to see what a snapshot sends then.
const CHANGED: u64 = 100;
const REPETITIONS: usize = 2;
/// Nothing is done for so long before each rescale, to see how the output is then.
const CALM: Duration = Duration::from_secs(8);
const LOOK: Duration = Duration::from_millis(1);
/// What of the machine has to be idle while nothing moves.
const IDLE: f64 = 0.3;
/// The paces that are tried, the slowest first.
const PACES_MS: [u64; 10] = [50, 35, 25, 18, 13, 9, 6, 4, 2, 1];
const METRICS_PORT: u16 = 9464;

fn main() -> anyhow::Result<()> {
    let mut it = Deployed::new("rescaled", Shape::Aligned, PARTITIONS)?;
    let told = bench(&mut it);
    told.with_context(|| it.world.cluster.diagnostics())?;
    it.check()?;
    println!("\nchecked: all {} rows are there once and right", it.story.written());
    it.delete()
}

fn bench(it: &mut Deployed) -> anyhow::Result<()> {
    strangers(&it.story, 1, 1)?;
    let snapshots = it.snapshots("64Mi")?;
    let worker = json!({"resources": {"requests": {"cpu": "50m", "memory": MEMORY}, "limits": {"memory": MEMORY}}});
    it.start(&[("/replicas", json!(2)), ("/worker", worker), snapshots])?;
    it.story.generate(71);
    it.goes_on()?;
    let state = stored(it)?;
    println!("{PARTITIONS} tasks with {:.2} GiB of state, workers of {MEMORY}", state as f64 / f64::from(1 << 30));
    pace(it)?;
    let mut output = Output::new(&it.story)?;
    let mut pauses = Pauses::default();
    for _ in 0..REPETITIONS {
        for replicas in [4, 2] {
            let passed = output.through(it, || it.scale(replicas).and_then(|()| it.wait_scaled(replicas as usize)))?;
            pauses.add(&format!("to {replicas} workers"), &passed);
        }
    }
    pauses.print();
    let fetched = fetched(it)?;
    println!("\nread from the object store by the workers that there are now: {} MiB", fetched >> 20);
    for (what, lost) in [("its disk lost: the pod is deleted", true), ("its disk kept: the process is killed", false)] {
        restored(it, &mut output, what, lost)?;
    }
    let restart = output.through(it, || restart(it))?;
    println!("\na restart of all workers at once: a pause of {:.2} s, at most", longest(&restart.during).as_secs_f64());
    uploaded(it, state)
}

/// What snapshots send of a state of which one in [`CHANGED`] has changed.
fn uploaded(it: &mut Deployed, state: u64) -> anyhow::Result<()> {
    it.story.stop_generating()?;
    it.apply(&[("/state/snapshots", json!({"after": "1Mi"}))])?;
    it.wait_ready()?;
    // Pods are replaced, and each task writes the first one that is due by then.
    let mut before = None;
    it.until("snapshots to be at rest", || {
        thread::park_timeout(CALM);
        let last = std::mem::replace(&mut before, sent(it).ok());
        Ok(before.is_some() && last == before)
    })?;
    let before = before.context("it was seen")?;
    strangers(&it.story, CHANGED, 2)?;
    let mut after = before.clone();
    it.until("each task to write a snapshot", || {
        after = sent(it)?;
        Ok(after.taken.iter().all(|(task, taken)| before.taken.get(task) != Some(taken)))
    })?;
    let sent = after.bytes - before.bytes;
    println!(
        "\none in {CHANGED} of {} MiB has changed ({} MiB): snapshots send {} MiB",
        state >> 20,
        (state / CHANGED) >> 20,
        sent >> 20
    );
    Ok(())
}

/// What the workers have sent for snapshots, and when the newest one of each task was taken.
#[derive(Clone, PartialEq)]
struct Sent {
    bytes: u64,
    taken: BTreeMap<String, String>,
}

fn sent(it: &Deployed) -> anyhow::Result<Sent> {
    let text = metrics(it)?;
    let taken = text.lines().filter_map(|line| {
        let (task, taken) = line.strip_prefix("millrace_snapshot_taken_timestamp_seconds{")?.rsplit_once(' ')?;
        Some((task.to_owned(), taken.to_owned()))
    });
    Ok(Sent { taken: taken.collect(), bytes: sum(it, "millrace_snapshot_uploaded_bytes_total")? })
}

/// Writes a version of each `step`-th of the customers that nobody orders as.
fn strangers(story: &Story, step: u64, version: u64) -> anyhow::Result<()> {
    let (writer, mut numbers, topic) = (story.kafka().writer()?, Numbers(4 + version), story.topic("customers"));
    let mut changes = (0..STRANGERS)
        .step_by(step as usize)
        .map(|id| {
            let key = (1_000_000_000 + id).to_string();
            let name: String =
                std::iter::repeat_with(|| format!("{:04x}", numbers.below(1 << 16))).take(NAME / 4).collect();
            let value = format!("{{\"customer\": {key}, \"name\": \"{name}\", \"since\": {version}}}");
            let partition = story.by_key(key.as_bytes());
            Message::new(key, value).on(partition).at(1)
        })
        .peekable();
    while changes.peek().is_some() {
        writer.produce(&topic, changes.by_ref().take(BATCH))?;
    }
    Ok(())
}

/// Waits until every task has a snapshot of its whole state; returns their bytes.
fn stored(it: &Deployed) -> anyhow::Result<u64> {
    let enough = STRANGERS * NAME as u64 / 2;
    let mut bytes = 0;
    wait::until("snapshots of all tasks", DEADLINE, || {
        bytes = sum(it, "millrace_snapshot_state_bytes")?;
        Ok(bytes > enough)
    })
    .with_context(|| format!("{bytes} bytes are in snapshots"))?;
    Ok(bytes)
}

/// Makes the load as large as leaves a part of the machine idle.
fn pace(it: &mut Deployed) -> anyhow::Result<()> {
    let mut chosen = Duration::from_millis(PACES_MS[0]);
    // What was loaded is still compacted, and sent to the store.
    wait::until("the load to be over", DEADLINE, || Ok(idle_at(it, chosen)? > IDLE))?;
    for pace in PACES_MS.map(Duration::from_millis) {
        let idle = idle_at(it, pace)?;
        if idle < IDLE {
            break;
        }
        chosen = pace;
    }
    let idle = idle_at(it, chosen)?;
    let (begin, written) = (Instant::now(), it.story.written());
    thread::park_timeout(CALM);
    let rate = (it.story.written() - written) as f64 / begin.elapsed().as_secs_f64();
    println!("{rate:.0} orders a second, with {:.0} % of the machine idle", idle * 100.0);
    Ok(())
}

fn idle_at(it: &mut Deployed, pace: Duration) -> anyhow::Result<f64> {
    it.story.stop_generating()?;
    it.story.pace = pace;
    it.story.generate(71);
    // What it changes is over by then.
    thread::park_timeout(Duration::from_secs(3));
    idle(Duration::from_secs(5))
}

/// The longest time without a row, by partition.
type Gaps = BTreeMap<i32, Duration>;

fn longest(gaps: &Gaps) -> Duration {
    gaps.values().max().copied().unwrap_or_default()
}

/// The output, read as it comes.
struct Output {
    reader: BaseConsumer,
    last: BTreeMap<i32, Instant>,
}

struct Passed {
    before: Gaps,
    during: Gaps,
    moved: Vec<i32>,
    took: Duration,
}

impl Output {
    /// From the newest row on.
    fn new(story: &Story) -> anyhow::Result<Self> {
        let mut output = Self { reader: story.kafka().reader(&story.topic("out"))?, last: BTreeMap::new() };
        let (begin, written) = (Instant::now(), story.written());
        let mut rows = 0;
        while rows < written {
            ensure!(begin.elapsed() < DEADLINE, "{rows} of {written} rows came out");
            rows += usize::from(output.look(story, &mut Gaps::new())?);
        }
        Ok(output)
    }

    /// Takes a row, if there is one.
    fn look(&mut self, story: &Story, gaps: &mut Gaps) -> anyhow::Result<bool> {
        let record = match self.reader.poll(LOOK) {
            None | Some(Err(KafkaError::PartitionEOF(_))) => return Ok(false),
            Some(record) => record.context("read a row")?,
        };
        let row: Value = serde_json::from_slice(record.payload().unwrap_or_default()).context("read a row")?;
        let (partition, now) = (story.partition_of(&row)?, Instant::now());
        if let Some(last) = self.last.insert(partition, now) {
            let gap = gaps.entry(partition).or_default();
            *gap = (*gap).max(now - last);
        }
        Ok(true)
    }

    fn calm(&mut self, story: &Story) -> anyhow::Result<Gaps> {
        let (begin, mut gaps) = (Instant::now(), Gaps::new());
        while begin.elapsed() < CALM {
            self.look(story, &mut gaps)?;
        }
        Ok(gaps)
    }

    /// Looks on while something is done, and until its last rows have come.
    fn through(&mut self, it: &Deployed, act: impl FnOnce() -> anyhow::Result<()> + Send) -> anyhow::Result<Passed> {
        let story = &it.story;
        let (placed, before) = (placed(it)?, self.calm(story)?);
        let mut during = Gaps::new();
        let took = thread::scope(|scope| {
            let begin = Instant::now();
            let acting = scope.spawn(act);
            while !acting.is_finished() {
                ensure!(begin.elapsed() < DEADLINE, "what is measured does not end");
                self.look(story, &mut during)?;
            }
            acting.join().map_err(|_| anyhow::anyhow!("the thread that acts panicked"))??;
            Ok(begin.elapsed())
        })?;
        let after = self.calm(story)?;
        for (partition, gap) in after {
            let most = during.entry(partition).or_default();
            *most = (*most).max(gap);
        }
        let now = self::placed(it)?;
        let moved = now.iter().filter(|(partition, at)| placed.get(partition) != Some(at)).map(|(p, _)| *p).collect();
        Ok(Passed { before, during, moved, took })
    }
}

/// Which worker each partition's task is placed on.
fn placed(it: &Deployed) -> anyhow::Result<BTreeMap<i32, u32>> {
    let map = format!("configmap/{}-assignment", it.story.name);
    let text = it.kubectl(&["get", &map, "-o", "jsonpath={.data.assignment\\.json}"])?;
    let assignment: Assignment = serde_json::from_str(&text).context("read the assignment")?;
    Ok(assignment.tasks.iter().map(|place| (place.partition.0, place.worker)).collect())
}

/// Pauses, by what they are of.
#[derive(Default)]
struct Pauses(Vec<(String, Vec<Duration>)>);

impl Pauses {
    fn add(&mut self, what: &str, passed: &Passed) {
        let Passed { before, during, moved, took } = passed;
        for (partition, gap) in during {
            let kind = if moved.contains(partition) { "a task that moves" } else { "a task that stays" };
            self.note(format!("{what}: {kind}"), *gap);
            if !moved.contains(partition) {
                let calm = before.get(partition).copied().unwrap_or_default();
                self.note(
                    format!("{what}: a task that stays, above its longest pause before"),
                    gap.saturating_sub(calm),
                );
            }
        }
        before.values().for_each(|gap| self.note("nothing is done".to_owned(), *gap));
        self.note(format!("{what}: until all is done"), *took);
    }

    fn note(&mut self, what: String, gap: Duration) {
        match self.0.iter_mut().find(|(known, _)| *known == what) {
            Some((_, gaps)) => gaps.push(gap),
            None => self.0.push((what, vec![gap])),
        }
    }

    fn print(mut self) {
        println!("\n{:<64} {:>6} {:>8} {:>8} {:>8}", "pauses, and times", "of", "p50", "p99", "max");
        self.0.sort();
        for (what, mut gaps) in self.0 {
            gaps.sort();
            let at = |share: f64| gaps[((gaps.len() - 1) as f64 * share).ceil() as usize].as_secs_f64();
            println!("  {what:<62} {:>6} {:>6.2} s {:>6.2} s {:>6.2} s", gaps.len(), at(0.5), at(0.99), at(1.0));
        }
    }
}

/// The metrics of all workers.
fn metrics(it: &Deployed) -> anyhow::Result<String> {
    let texts = it.pods()?.iter().map(|pod| metrics_of(it, pod)).collect::<Result<Vec<_>, _>>()?;
    Ok(texts.join("\n"))
}

fn metrics_of(it: &Deployed, pod: &str) -> anyhow::Result<String> {
    let path = format!("/api/v1/namespaces/{}/pods/{pod}:{METRICS_PORT}/proxy/metrics", it.namespace);
    it.world.cluster.kubectl(&["get", "--raw", &path])
}

/// The sum of a metric over all workers.
fn sum(it: &Deployed, name: &str) -> anyhow::Result<u64> {
    let text = metrics(it)?;
    let values = text.lines().filter(|line| line.starts_with(name)).filter_map(|line| line.rsplit(' ').next());
    Ok(values.filter_map(|value| value.parse::<f64>().ok()).sum::<f64>() as u64)
}

fn fetched(it: &Deployed) -> anyhow::Result<u64> {
    sum(it, "millrace_snapshot_fetched_bytes_total")
}

/// A worker comes back, with or without its disk.
fn restored(it: &Deployed, output: &mut Output, what: &str, lost: bool) -> anyhow::Result<()> {
    let pod = format!("{}-1", it.story.name);
    let passed = output.through(it, || {
        if lost {
            it.kubectl(&["delete", "pod", &pod, "--grace-period=0", "--force"])?;
            it.kubectl(&["wait", "--for=create", &format!("pod/{pod}"), "--timeout=120s"])?;
        } else {
            let restarts = it.lives()?;
            it.kill_worker(1)?;
            it.until("the worker to be started again", || Ok(it.lives()? != restarts))?;
        }
        it.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{pod}"), "--timeout=240s"]).map(drop)
    })?;
    let text = metrics_of(it, &pod)?;
    let bytes =
        text.lines().find_map(|line| line.strip_prefix("millrace_snapshot_fetched_bytes_total ")?.parse::<f64>().ok());
    let pause = longest(&passed.during).as_secs_f64();
    println!(
        "\na worker comes back, {what}: a pause of {pause:.2} s, {} MiB fetched",
        bytes.unwrap_or_default() as u64 >> 20
    );
    Ok(())
}

/// Every pod is deleted at once, and all come back.
fn restart(it: &Deployed) -> anyhow::Result<()> {
    let pods = it.pods()?;
    let names: Vec<&str> = pods.iter().map(String::as_str).collect();
    it.kubectl(&[&["delete", "pod"][..], &names].concat())?;
    it.wait_pods(pods.len())?;
    it.wait_ready()
}

//! `make bench-cluster`: how long a user waits on a real Kubernetes with a real Kafka: from `kubectl apply` to the
//! first row, and from the loss of a worker until its backlog is gone. And whether rows come while no operator leads.
//! Figures, no judgement: what was measured goes into docs/measurements.md. Every row is compared with a naive model.
//!
//! A row is there when a `read_committed` reader has it. All times are from the start of the command, whose own part is
//! in them.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use millrace_crds::timestamp::Timestamp;
use millrace_kafka_harness::wait;
use millrace_tests::kubernetes::{Deployed, SYSTEM, deployed};
use millrace_tests::story::{DEADLINE, Shape, Story};
use rdkafka::consumer::BaseConsumer;
use rdkafka::error::KafkaError;
use serde_json::Value;

const REPETITIONS: usize = 10;
/// Orders that lie in the topics when a pipeline is applied.
const BEFORE: usize = 1_000;
/// For so long nothing is done, to see how the output is then.
const CALM: Duration = Duration::from_secs(5);
/// The error of what is measured by looking.
const LOOK: Duration = Duration::from_millis(5);
/// A look at the lease takes a process.
const LOOK_AT_LEASE: Duration = Duration::from_secs(1);
const TIMEOUT: &str = "--timeout=120s";

fn main() -> anyhow::Result<()> {
    println!("a join behind two repartitions, 4 partitions, one worker; {REPETITIONS} repetitions");
    applied()?;
    let mut it = loaded("lost", 100)?;
    it.start(&[])?;
    let (begin, written) = (Instant::now(), it.story.written());
    lost(&it).and_then(|()| unattended(&it)).with_context(|| it.world.cluster.diagnostics())?;
    let rate = (it.story.written() - written) as f64 / begin.elapsed().as_secs_f64();
    it.check()?;
    println!("\nchecked: all {} rows are there once and right; {rate:.0} a second were written", it.story.written());
    it.delete()
}

/// A pipeline that is not applied yet, and orders that come without an end.
fn loaded(name: &str, seed: u64) -> anyhow::Result<Deployed> {
    let mut it = deployed(name, Shape::Repartitioned);
    it.story.generate(seed);
    it.story.wait_written(BEFORE)?;
    Ok(it)
}

/// Times by what they are of, in the order in which they are told.
#[derive(Default)]
struct Figures(Vec<(&'static str, Vec<Duration>)>);

impl Figures {
    fn add(&mut self, what: &'static str, took: Duration) {
        match self.0.iter_mut().find(|(known, _)| *known == what) {
            Some((_, times)) => times.push(took),
            None => self.0.push((what, vec![took])),
        }
    }

    fn print(self, title: &str) {
        println!("\n{title:<70} median      max");
        for (what, mut times) in self.0 {
            times.sort();
            let last = times.len() - 1;
            let median = (times[last / 2] + times[last.div_ceil(2)]).as_secs_f64() / 2.0;
            println!("  {what:<66} {median:>6.2} s {:>6.2} s", times[last].as_secs_f64());
        }
    }
}

/// From `kubectl apply` to the first row, each time of a new pipeline in a new namespace.
fn applied() -> anyhow::Result<()> {
    let mut figures = Figures::default();
    for number in 0..REPETITIONS {
        let mut it = loaded(&format!("applied{number}"), 1 + number as u64)?;
        let reader = it.world.kafka.reader(&it.story.topic("out"))?;
        let (begin, begin_ms) = (Instant::now(), now_ms()?);
        it.apply(&[])?;
        let mut output = Output::new(&it.story, reader);
        while output.rows == 0 {
            ensure!(begin.elapsed() < DEADLINE, "no row came out\n{}", it.world.cluster.diagnostics());
            output.look()?;
        }
        let first = begin.elapsed();
        it.wait_ready()?;
        for (what, at_ms) in writes(&it)? {
            let passed_ms = u64::try_from(at_ms - begin_ms).with_context(|| format!("{what} before the command"))?;
            figures.add(what, Duration::from_millis(passed_ms));
        }
        figures.add("the first row is there", first);
        it.check()?;
        it.delete()?;
        // The next one has the machine for itself.
        it.wait_pods(0)?;
    }
    figures.print("from kubectl apply until");
    Ok(())
}

fn now_ms() -> anyhow::Result<i64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as i64)
}

/// When the API server took what a first row takes, by its audit log: objects know whole seconds only.
fn writes(it: &Deployed) -> anyhow::Result<[(&'static str, i64); 5]> {
    let log = std::fs::read_to_string(it.world.cluster.audit_log()).context("read the audit log")?;
    let mut writes = Vec::new();
    // The last line may be under way.
    for line in log.split_inclusive('\n').filter(|line| line.ends_with('\n') && line.contains(&it.namespace)) {
        let event: Value = serde_json::from_str(line).context("read a line of the audit log")?;
        let (object, code) = (&event["objectRef"], event["responseStatus"]["code"].as_i64());
        if object["namespace"] == it.namespace.as_str() && code.is_some_and(|code| code < 300) {
            let at = event["stageTimestamp"].as_str().and_then(Timestamp::parse).context("an event has its time")?;
            let path = ["resource", "name", "subresource"].map(|part| object[part].as_str().unwrap_or_default());
            writes.push((path.join("/"), at.ms()));
        }
    }
    let found = |path: &str, write: Option<&(String, i64)>| {
        write.map(|(_, at_ms)| *at_ms).with_context(|| format!("nobody has written {path}"))
    };
    let first = |path: String| found(&path, writes.iter().find(|(written, _)| written.starts_with(&path)));
    let last = |path: String| found(&path, writes.iter().rfind(|(written, _)| *written == path));
    let name = &it.story.name;
    Ok([
        ("the API server has the Pipeline", first(format!("pipelines/{name}/"))?),
        ("it is compiled, and the Job of its preflight is made", first(format!("jobs/{name}-preflight-"))?),
        ("the preflight has passed, and the plan is applied", first(format!("configmaps/{name}-applied/"))?),
        ("the worker's pod is made", first(format!("pods/{name}-0/"))?),
        // Kubelet writes when something has changed, and the pipeline is Ready.
        ("the pod is ready", last(format!("pods/{name}-0/status"))?),
    ])
}

/// The output of a pipeline, read as it comes.
struct Output<'a> {
    story: &'a Story,
    reader: BaseConsumer,
    rows: usize,
    /// When the last one came.
    last: Instant,
}

/// What is seen at a look, or the most of it at many.
#[derive(Clone, Copy, Default)]
struct Seen {
    /// Rows of orders that were written which have not come out.
    under_way: usize,
    /// How long no row came.
    silence: Duration,
}

impl Seen {
    fn most(self, other: Self) -> Self {
        Self { under_way: self.under_way.max(other.under_way), silence: self.silence.max(other.silence) }
    }
}

/// How something that was done to a pipeline went by.
struct Passed<T> {
    /// While nothing was done.
    before: Seen,
    /// From then on.
    since: Seen,
    /// Until no more was under way than at most before, and did not become more again while it was looked on.
    caught_up: Duration,
    done: T,
}

impl<'a> Output<'a> {
    fn new(story: &'a Story, reader: BaseConsumer) -> Self {
        Self { story, reader, rows: 0, last: Instant::now() }
    }

    fn look(&mut self) -> anyhow::Result<Seen> {
        let came = match self.reader.poll(LOOK) {
            None | Some(Err(KafkaError::PartitionEOF(_))) => false,
            Some(row) => row.map(|_| true).context("read a row")?,
        };
        let silence = self.last.elapsed();
        if came {
            (self.rows, self.last) = (self.rows + 1, Instant::now());
        }
        Ok(Seen { under_way: self.story.written().saturating_sub(self.rows), silence })
    }

    /// The most that is seen while nothing happens, once all that was written until now has come out.
    fn calm(&mut self) -> anyhow::Result<Seen> {
        let (begin, written) = (Instant::now(), self.story.written());
        while self.rows < written {
            ensure!(begin.elapsed() < DEADLINE, "{} of {written} rows came out", self.rows);
            self.look()?;
        }
        let (begin, mut most) = (Instant::now(), Seen::default());
        while begin.elapsed() < CALM {
            most = most.most(self.look()?);
        }
        Ok(most)
    }

    /// Looks on while something is done, which returns when that has passed.
    fn through<T: Send>(&mut self, act: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<Passed<T>> {
        let before = self.calm()?;
        thread::scope(|scope| {
            let begin = Instant::now();
            let (acting, mut since, mut behind) = (scope.spawn(act), Seen::default(), begin);
            while !acting.is_finished() || behind.elapsed() < CALM {
                ensure!(begin.elapsed() < DEADLINE, "{} rows are under way", self.story.written() - self.rows);
                let seen = self.look()?;
                since = since.most(seen);
                if seen.under_way > before.under_way {
                    behind = Instant::now();
                }
            }
            let done = acting.join().map_err(|_| anyhow::anyhow!("the thread that acts panicked"))??;
            Ok(Passed { before, since, caught_up: behind - begin, done })
        })
    }
}

/// Kills the worker's process and deletes its pod, in turn: kubelet starts a container again at once only the first
/// time, so each pod is killed once.
fn lost(it: &Deployed) -> anyhow::Result<()> {
    let mut output = Output::new(&it.story, it.world.kafka.reader(&it.story.topic("out"))?);
    let (mut figures, mut calm) = (Figures::default(), Seen::default());
    for _ in 0..REPETITIONS {
        let killed = output.through(|| kill(it))?;
        figures.add("SIGKILL of the worker's process: no row for", killed.since.silence);
        figures.add("SIGKILL of the worker's process: caught up after", killed.caught_up);
        let deleted = output.through(|| delete(it))?;
        figures.add("its pod deleted by force: no row for", deleted.since.silence);
        figures.add("its pod deleted by force: caught up after", deleted.caught_up);
        calm = calm.most(killed.before).most(deleted.before);
    }
    figures.print("a worker is lost");
    let (under_way, silence) = (calm.under_way, calm.silence.as_secs_f64());
    println!("  while nothing happened: {under_way} rows under way and {silence:.2} s without one, at most");
    Ok(())
}

fn kill(it: &Deployed) -> anyhow::Result<()> {
    it.kill_worker(0)?;
    let pod = format!("pod/{}-0", it.story.name);
    it.kubectl(&["wait", "--for=jsonpath={.status.containerStatuses[0].restartCount}=1", &pod, TIMEOUT])?;
    it.kubectl(&["wait", "--for=condition=Ready", &pod, TIMEOUT]).map(drop)
}

fn delete(it: &Deployed) -> anyhow::Result<()> {
    let pod = format!("pod/{}-0", it.story.name);
    it.kubectl(&["delete", &pod, "--grace-period=0", "--force"])?;
    it.kubectl(&["wait", "--for=create", &pod, TIMEOUT])?;
    it.kubectl(&["wait", "--for=condition=Ready", &pod, TIMEOUT]).map(drop)
}

/// Kills the operator. Its lease has to expire before the next one leads.
fn unattended(it: &Deployed) -> anyhow::Result<()> {
    let mut output = Output::new(&it.story, it.world.kafka.reader(&it.story.topic("out"))?);
    let mut figures = Figures::default();
    for _ in 0..REPETITIONS {
        let away = output.through(|| kill_operator(it))?;
        figures.add("until another one led", away.done);
        figures.add("no row for, from its loss on", away.since.silence);
        figures.add("no row for, before", away.before.silence);
    }
    figures.print("an operator is lost");
    Ok(())
}

fn kill_operator(it: &Deployed) -> anyhow::Result<Duration> {
    let leader = || {
        let path = "jsonpath={.spec.holderIdentity}";
        it.world.cluster.kubectl(&["get", "lease", "millrace-operator", "--namespace", SYSTEM, "-o", path])
    };
    let (former, begin) = (leader()?, Instant::now());
    it.world.kill_operator()?;
    wait::until("another operator to lead", DEADLINE, || {
        thread::park_timeout(LOOK_AT_LEASE);
        let leader = leader()?;
        Ok(!leader.is_empty() && leader != former)
    })?;
    Ok(begin.elapsed())
}

//! A pipeline under load on a real Kafka: a generator that writes orders and changes of customers while the test does
//! things to the workers and the brokers, and a naive model that knows what must come of it.
//!
//! A change is acknowledged before any order with an event time at or after it is written. So the answer does not depend
//! on when anything arrives, nor on what happened to the job.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use millrace_core::plan::Partitioner;
use millrace_kafka_harness::{Kafka, Message, wait};
use serde_json::{Value, json};

use crate::scratch;
use crate::spec::{KEYED, Spec};

/// How long anything may take that happens within seconds on a quiet machine.
pub const DEADLINE: Duration = Duration::from_secs(240);
const CUSTOMERS: u64 = 50;
/// A look at the output reads all of it.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Orders that are written at once, behind some changes.
const BATCH: usize = 25;

/// How long the topic of the orders keeps a record, in milliseconds: nothing goes while a story lasts.
pub const RETENTION_MS: i64 = 100 * 365 * 24 * 3_600_000;

/// How the pipeline joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `temporalJoin` where both sides are partitioned alike: one stage.
    Aligned,
    /// `temporalJoin` behind two repartitions: two stages.
    Repartitioned,
}

impl Shape {
    fn keys(self) -> (&'static str, &'static str) {
        match self {
            Self::Aligned => (KEYED, "String"),
            Self::Repartitioned => ("", "Json"),
        }
    }
}

/// Numbers that are the same in every run (xorshift64).
#[derive(Clone, Debug)]
pub struct Numbers(pub u64);

impl Numbers {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// One pipeline with topics of its own.
pub struct Story {
    kafka: &'static Kafka,
    pub name: String,
    shape: Shape,
    partitions: i32,
    dir: tempfile::TempDir,
    /// Rows that must come out, by what was written so far.
    expected: Arc<Mutex<Vec<String>>>,
    /// The partition of each order, by its id.
    partitions_of: Arc<Mutex<Vec<i32>>>,
    generator: Option<Generator>,
    /// Where the generator stands while it does not run.
    load: Option<Load>,
    /// Between two batches of orders.
    pub pace: Duration,
    pub commit_interval: &'static str,
    /// Fields of `spec.state`.
    state: String,
}

/// What the generator writes next.
struct Load {
    numbers: Numbers,
    partitions: i32,
    aligned: bool,
    names: Vec<Option<String>>,
    time: i64,
    id: u64,
}

impl Load {
    fn new(seed: u64, partitions: i32, aligned: bool) -> Self {
        let names = vec![None; CUSTOMERS as usize + 2];
        Self { numbers: Numbers(seed), partitions, aligned, names, time: 1, id: 0 }
    }

    fn by_key(&self, customer: u64) -> i32 {
        Partitioner::Murmur2.partition(customer.to_string().as_bytes(), self.partitions).0
    }

    fn changes(&mut self) -> Vec<Message> {
        (0..self.numbers.below(4))
            .map(|i| {
                self.time += 1;
                let (time, customer) = (self.time, self.numbers.below(CUSTOMERS));
                let name = (self.numbers.below(8) > 0).then(|| format!("name {time} {i}"));
                let value = name.as_ref().map(|name| json!({"customer": customer, "name": name, "since": time}));
                self.names[customer as usize] = name;
                Message {
                    partition: Some(self.by_key(customer)),
                    timestamp_ms: Some(time),
                    key: Some(customer.to_string().into_bytes()),
                    value: value.map(|value| value.to_string().into_bytes()),
                    headers: Vec::new(),
                }
            })
            .collect()
    }

    /// Orders, and the rows that must come of them.
    fn orders(&mut self) -> (Vec<Message>, Vec<String>) {
        let order = |_| {
            self.time += 1;
            let (time, id, customer) = (self.time, self.id, self.numbers.below(CUSTOMERS + 2));
            let partition = if self.aligned { self.by_key(customer) } else { (id % self.partitions as u64) as i32 };
            self.id += 1;
            let order = json!({"id": id, "customer": customer, "time": time}).to_string();
            let row = json!({"id": id, "name": self.names[customer as usize]}).to_string();
            (Message::new(customer.to_string(), order).on(partition).at(time), row)
        };
        (0..BATCH).map(order).unzip()
    }
}

struct Generator {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<Load>>,
}

impl Story {
    /// Makes the topics and the pipeline's file.
    pub fn new(kafka: &'static Kafka, name: &str, shape: Shape, partitions: i32) -> anyhow::Result<Self> {
        let story = Self {
            kafka,
            name: name.to_owned(),
            shape,
            partitions,
            dir: scratch()?,
            expected: Arc::default(),
            partitions_of: Arc::default(),
            generator: None,
            load: None,
            pace: Duration::ZERO,
            commit_interval: "100ms",
            state: String::new(),
        };
        kafka.create_topic(&story.topic("orders"), partitions, &[("retention.ms", &RETENTION_MS.to_string())])?;
        for topic in ["customers", "out"] {
            kafka.create_topic(&story.topic(topic), partitions, &[])?;
        }
        std::fs::write(story.file(), story.yaml(&kafka.bootstrap_servers())).context("write the pipeline")?;
        Ok(story)
    }

    /// Gives the pipeline other fields of `spec.state`.
    pub fn set_state(&mut self, state: &str) -> anyhow::Result<()> {
        self.state = state.to_owned();
        std::fs::write(self.file(), self.yaml(&self.kafka.bootstrap_servers())).context("write the pipeline")
    }

    pub fn partitions(&self) -> i32 {
        self.partitions
    }

    pub fn kafka(&self) -> &'static Kafka {
        self.kafka
    }

    /// The partition of a table's key.
    pub fn by_key(&self, key: &[u8]) -> i32 {
        Partitioner::Murmur2.partition(key, self.partitions).0
    }

    /// What the names of the pipeline's own topics and ids begin with.
    pub fn prefix(&self) -> String {
        format!("test.{}", self.name)
    }

    pub fn topic(&self, what: &str) -> String {
        format!("{}-{what}", self.name)
    }

    /// The pipeline's file.
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("pipeline.yaml")
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The pipeline, as it reaches Kafka by `bootstrap_servers`.
    pub fn yaml(&self, bootstrap_servers: &str) -> String {
        self.yaml_of(&self.name, bootstrap_servers)
    }

    /// Another pipeline that does the same into a topic of its own, `<name>-out`.
    pub fn sibling(&self, name: &str) -> anyhow::Result<PathBuf> {
        self.kafka.create_topic(&format!("{name}-out"), self.partitions, &[])?;
        let yaml = self.yaml_of(name, &self.kafka.bootstrap_servers());
        let (ours, theirs) = (format!("topic: {}", self.topic("out")), format!("topic: {name}-out"));
        let file = self.dir.path().join(format!("{name}.yaml"));
        std::fs::write(&file, yaml.replace(&ours, &theirs)).context("write the pipeline")?;
        Ok(file)
    }

    fn yaml_of(&self, name: &str, bootstrap_servers: &str) -> String {
        let (order_key, table_key) = self.shape.keys();
        let spec = Spec {
            name,
            bootstrap_servers,
            kafka: &format!(", internal: {{replicationFactor: {}}}", self.kafka.brokers()),
            topics: &format!("{}-", self.name),
            order_key,
            // The last rows come out when no more follow for so long.
            order_time: ", maxOutOfOrderness: 0s, idleTimeout: 2s",
            table_key,
            commit_interval: self.commit_interval,
            state: &self.state,
            ..Spec::default()
        };
        spec.yaml()
    }

    /// Begins to write, or goes on, without an end.
    pub fn generate(&mut self, seed: u64) {
        let stop = Arc::new(AtomicBool::new(false));
        let (kafka, expected, told) = (self.kafka, Arc::clone(&self.expected), Arc::clone(&stop));
        let partitions_of = Arc::clone(&self.partitions_of);
        let (orders, customers) = (self.topic("orders"), self.topic("customers"));
        let (partitions, aligned, pace) = (self.partitions, self.shape == Shape::Aligned, self.pace);
        let mut load = self.load.take().unwrap_or_else(|| Load::new(seed, partitions, aligned));
        #[expect(clippy::disallowed_methods, reason = "joined by `finish`")]
        let thread = std::thread::spawn(move || {
            let writer = kafka.writer()?;
            while !told.load(Ordering::Relaxed) {
                writer.produce(&customers, load.changes())?;
                let (batch, rows) = load.orders();
                // Counted before it is written, so that a row is never seen before it is expected.
                expected.lock().expect("no test panics with the lock").extend(rows);
                let partitions = batch.iter().map(|order| order.partition.unwrap_or_default());
                partitions_of.lock().expect("no test panics with the lock").extend(partitions);
                writer.produce(&orders, batch)?;
                std::thread::park_timeout(pace);
            }
            Ok(load)
        });
        self.generator = Some(Generator { stop, thread });
    }

    /// Rows that must come out of what was written so far.
    pub fn written(&self) -> usize {
        self.expected.lock().expect("no test panics with the lock").len()
    }

    /// Waits until so many more orders were written.
    pub fn wait_written(&self, more: usize) -> anyhow::Result<()> {
        let goal = self.written() + more;
        wait::until("orders to be written", DEADLINE, || Ok(self.written() >= goal))
    }

    /// Ends the generator.
    pub fn stop_generating(&mut self) -> anyhow::Result<()> {
        let Some(Generator { stop, thread }) = self.generator.take() else { return Ok(()) };
        stop.store(true, Ordering::Relaxed);
        self.load = Some(thread.join().map_err(|_| anyhow::anyhow!("the generator panicked"))??);
        Ok(())
    }

    /// The partition of orders that a row came from.
    pub fn partition_of(&self, row: &Value) -> anyhow::Result<i32> {
        let id = row["id"].as_u64().context("a row has an id")?;
        let partitions = self.partitions_of.lock().expect("no test panics with the lock");
        partitions.get(id as usize).copied().with_context(|| format!("order {id} was not written"))
    }

    /// Rows that must come out of what was written so far.
    pub fn expected(&self) -> Vec<String> {
        self.expected.lock().expect("no test panics with the lock").clone()
    }

    /// Rows that a `read_committed` reader sees.
    pub fn rows(&self) -> anyhow::Result<Vec<String>> {
        self.rows_in(&self.topic("out"))
    }

    /// Rows that a `read_committed` reader sees in some topic.
    pub fn rows_in(&self, topic: &str) -> anyhow::Result<Vec<String>> {
        let records = self.kafka.read_committed(topic)?;
        let value = |r: &millrace_kafka_harness::Record| -> anyhow::Result<String> {
            let value: Value = serde_json::from_slice(r.value.as_deref().unwrap_or_default())?;
            Ok(value.to_string())
        };
        records.iter().map(value).collect()
    }

    /// Waits until so many rows can be seen.
    pub fn wait_rows(&self, count: usize) -> anyhow::Result<()> {
        self.wait_rows_in(&self.topic("out"), count)
    }

    /// The same in some topic.
    pub fn wait_rows_in(&self, topic: &str, count: usize) -> anyhow::Result<()> {
        let mut seen = 0;
        wait::until("rows to come out", DEADLINE, || {
            seen = self.kafka.read_committed(topic)?.len();
            if seen < count {
                std::thread::park_timeout(LOOK_EVERY);
            }
            Ok(seen >= count)
        })
        .with_context(|| format!("{seen} of {count} rows have come out"))
    }

    /// Waits until rows have come out whose writing takes so long from now on: the generator pauses behind each batch.
    pub fn wait_rows_of(&self, time: Duration) -> anyhow::Result<()> {
        ensure!(!self.pace.is_zero(), "a generator without pauses is as fast as it can be");
        let batches = time.div_duration_f64(self.pace).ceil() as usize + 1;
        self.wait_rows(self.written() + batches * BATCH)
    }

    /// Waits until every row is there, and more: what is there must be the model's answer, each row once.
    pub fn check(&self) -> anyhow::Result<()> {
        self.wait_rows(self.written())?;
        let (mut rows, mut expected) = (self.rows()?, self.expected.lock().expect("no test panics").clone());
        rows.sort();
        expected.sort();
        let wrong: Vec<_> = rows.iter().zip(&expected).filter(|(row, expected)| row != expected).collect();
        ensure!(
            rows == expected,
            "{} rows came out and {} were expected; {} differ, first of all (row, expected) {:?}",
            rows.len(),
            expected.len(),
            wrong.len(),
            &wrong[..wrong.len().min(5)]
        );
        Ok(())
    }

    /// What is there is a part of the model's answer, each row once.
    pub fn check_part(&self) -> anyhow::Result<()> {
        let rows = self.rows()?;
        let expected: BTreeSet<String> = self.expected.lock().expect("no test panics").iter().cloned().collect();
        let seen: BTreeSet<&String> = rows.iter().collect();
        ensure!(seen.len() == rows.len(), "{} rows came out twice", rows.len() - seen.len());
        let wrong = seen.into_iter().find(|row| !expected.contains(*row));
        ensure!(wrong.is_none(), "a row that is wrong: {wrong:?}");
        Ok(())
    }

    /// Starts a worker with a state folder `state`, which may have been another's.
    pub fn worker(&self, state: &str, more: &[&str]) -> anyhow::Result<Worker> {
        Worker::start(&self.file(), &self.dir.path().join(state), more)
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        if let Some(generator) = &self.generator {
            generator.stop.store(true, Ordering::Relaxed);
        }
    }
}

/// A `millrace run` in a process of its own. It is killed when it is dropped.
pub struct Worker {
    child: Child,
    log: PathBuf,
    pub metrics: String,
}

impl Worker {
    pub fn start(pipeline: &Path, state: &Path, more: &[&str]) -> anyhow::Result<Self> {
        std::fs::create_dir_all(state).context("make the state folder")?;
        let log = tempfile::NamedTempFile::new_in(pipeline.parent().context("the file is in a folder")?)?;
        let (file, log) = log.keep().context("keep the log")?;
        let level: &[&str] = if more.contains(&"--log-level") { &[] } else { &["--log-level", "info"] };
        let child = Command::new(millrace()?)
            .args(level)
            .args(["run", "--metrics", "127.0.0.1:0", "-f"])
            .arg(pipeline)
            .arg("--state")
            .arg(state)
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::options().append(true).open(&log).context("open the log")?)
            .spawn()
            .context("start millrace")?;
        drop(file);
        let mut worker = Self { child, log, metrics: String::new() };
        let mut address = None;
        wait::until("the worker to serve metrics", DEADLINE, || {
            let log = worker.log();
            address = log.split("address=").nth(1).and_then(|rest| rest.split_whitespace().next()).map(str::to_owned);
            if address.is_none() && worker.child.try_wait()?.is_some() {
                bail!("the worker ended: {log}");
            }
            Ok(address.is_some())
        })?;
        worker.metrics = address.unwrap_or_default();
        Ok(worker)
    }

    /// All that it has logged.
    pub fn log(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        // Colours are for people.
        let mut plain = String::new();
        let mut parts = text.split('\u{1b}');
        plain.push_str(parts.next().unwrap_or_default());
        parts.for_each(|part| plain.push_str(part.split_once('m').map_or("", |(_, rest)| rest)));
        plain
    }

    /// Waits until it has logged a text so often.
    pub fn wait_log(&mut self, text: &str, times: usize) -> anyhow::Result<()> {
        wait::until(&format!("the worker to log '{text}'"), DEADLINE, || {
            if let Some(status) = self.child.try_wait()? {
                bail!("the worker ended with {status}");
            }
            Ok(self.log().matches(text).count() >= times)
        })
        .with_context(|| self.log())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill().context("kill the worker")?;
        self.child.wait().context("wait for the worker")?;
        Ok(())
    }

    pub fn signal(&self, signal: &str) -> anyhow::Result<()> {
        let status = Command::new("kill").args([&format!("-{signal}"), &self.pid().to_string()]).status()?;
        ensure!(status.success(), "kill -{signal} failed");
        Ok(())
    }

    /// Waits for the end by itself.
    pub fn wait(&mut self) -> anyhow::Result<ExitStatus> {
        let mut status = None;
        wait::until("the worker to end", DEADLINE, || {
            status = self.child.try_wait()?;
            Ok(status.is_some())
        })
        .with_context(|| self.log())?;
        status.context("it has ended")
    }

    /// SIGTERM, and waits for a clean end.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.signal("TERM")?;
        let status = self.wait()?;
        ensure!(status.success(), "the worker ended with {status}: {}", self.log());
        Ok(())
    }

    /// SIGTERM, and waits for an end. A worker that cannot commit in time ends without giving its tasks back.
    pub fn leave(mut self) -> anyhow::Result<()> {
        self.signal("TERM")?;
        self.wait().map(drop)
    }

    /// Waits until every task of the worker runs.
    pub fn wait_ready(&mut self) -> anyhow::Result<()> {
        wait::until("the worker to be ready", DEADLINE, || {
            if let Some(status) = self.child.try_wait()? {
                bail!("the worker ended with {status}");
            }
            Ok(http(&self.metrics, "/readyz").is_ok_and(|(status, _)| status == 200))
        })
        .with_context(|| self.log())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Status and body of a GET.
pub fn http(address: &str, path: &str) -> anyhow::Result<(u16, String)> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let status = text.split_whitespace().nth(1).and_then(|s| s.parse().ok()).context("read the status")?;
    let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
    Ok((status, body))
}

/// A command about a pipeline's file: what it printed, or its errors.
pub fn millrace_on(arguments: &[&str], file: &Path) -> Result<String, String> {
    let program = millrace().map_err(|error| error.to_string())?;
    let output =
        Command::new(program).args(arguments).arg("-f").arg(file).output().map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

pub fn millrace() -> anyhow::Result<PathBuf> {
    program("millrace")
}

/// A program of ours, which the build puts beside the tests.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    let test = std::env::current_exe().context("find this test")?;
    let built = test.ancestors().map(|dir| dir.join(name)).find(|path| path.is_file());
    built.with_context(|| format!("{name} is not built: run `make build`"))
}

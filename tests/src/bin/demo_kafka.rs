//! `make demo-kafka`: the pipeline of examples/orders-enriched on a real Kafka, with live orders, killed with SIGKILL
//! and started again; then every row that a `read_committed` reader sees is compared with a naive model.
//!
//! Ends with an error unless each order is there once, with the customer of its own time.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use millrace_kafka_harness::{Kafka, Record, wait};
use millrace_tests::shop::{self, Model, PARTITIONS, RESULT, Shop};
use millrace_tests::story::{DEADLINE, Worker};

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long each of the two live parts is shown, and how long nobody works.
const LIVE: Duration = Duration::from_secs(6);
const PAUSE: Duration = Duration::from_secs(2);

fn main() -> anyhow::Result<()> {
    let demo = Demo::new()?;
    let (model, close) = (Mutex::new(Model::default()), AtomicBool::new(false));
    thread::scope(|scope| {
        let shop = Shop::new(&demo.kafka, &model)?;
        let shop = scope.spawn(|| shop.run(&model, &close));
        let ended = demo.kill_in_the_middle(&model);
        close.store(true, Ordering::Relaxed);
        let closed = shop.join().map_err(|_| anyhow::anyhow!("the shop panicked"))?;
        let worker = ended?;
        closed?;
        demo.check(worker, &model.lock().expect("nobody panics with the lock"))
    })
}

fn part(title: &str) {
    println!("\n\n== {title}");
}

fn say(text: &str) {
    println!("   {text}");
}

struct Demo {
    kafka: Kafka,
    /// In Kafka's folder, which goes away however this process ends.
    dir: PathBuf,
}

impl Demo {
    /// Starts Kafka, makes the topics and the pipeline's file.
    fn new() -> anyhow::Result<Self> {
        part("A real Kafka");
        say("Apache Kafka 4.4, one broker, in memory where that is possible (the first time, Maven fetches it).");
        let kafka = Kafka::single()?;
        let demo = Self { dir: kafka.dir().join("demo"), kafka };
        std::fs::create_dir(&demo.dir).context("make a folder")?;
        let servers = demo.kafka.bootstrap_servers();
        for topic in shop::make_topics(&demo.kafka)? {
            say(&format!(
                "$ kafka-topics.sh --bootstrap-server {servers} --create --topic {topic} --partitions {PARTITIONS}"
            ));
        }
        std::fs::write(demo.file(), shop::pipeline(&servers)?).context("write the pipeline")?;
        say("The pipeline is examples/orders-enriched/pipeline.yaml with this broker in it: each order gets the");
        say("customer as of the order's time. An order waits until 5 s of newer orders have come.");
        Ok(demo)
    }

    fn file(&self) -> PathBuf {
        self.dir.join("pipeline.yaml")
    }

    fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    fn start(&self) -> anyhow::Result<Worker> {
        let show = |path: &Path| path.display().to_string();
        say(&format!("$ millrace run -f {} --state {}", show(&self.file()), show(&self.state())));
        let mut worker = Worker::start(&self.file(), &self.state(), &[])?;
        worker.wait_ready()?;
        Ok(worker)
    }

    /// Runs the worker, kills it, and runs it again, which is what is returned.
    fn kill_in_the_middle(&self, model: &Mutex<Model>) -> anyhow::Result<Worker> {
        part("Live");
        let worker = self.start()?;
        self.wait_rows(1)?;
        self.watch(model, LIVE)?;

        part("kill -9, in the middle of it");
        say("It gets no chance to say goodbye. Orders go on coming.");
        say(&format!("$ kill -9 {}", worker.pid()));
        worker.kill()?;
        let before = self.rows()?.len();
        say(&format!("killed; a read_committed reader sees {before} rows: an epoch that was open is not among them"));
        self.watch(model, PAUSE)?;

        part("Started again");
        say("It takes its transactional id, which ends what its former life left open, and goes on behind the");
        say("last committed epoch.");
        let worker = self.start()?;
        self.wait_rows(before + 1)?;
        self.watch(model, LIVE)?;
        Ok(worker)
    }

    /// Shows each second how far it is.
    fn watch(&self, model: &Mutex<Model>, long: Duration) -> anyhow::Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < long {
            thread::park_timeout(LOOK_EVERY);
            let rows = self.rows()?;
            let written = model.lock().expect("nobody panics with the lock").rows.len();
            let newest = rows.last().map(value).unwrap_or_default();
            say(&format!("{written:>6} orders written, {:>6} rows out; the newest: {newest}", rows.len()));
        }
        Ok(())
    }

    fn rows(&self) -> anyhow::Result<Vec<Record>> {
        self.kafka.read_committed(RESULT)
    }

    fn wait_rows(&self, count: usize) -> anyhow::Result<()> {
        wait::until("rows to come out", DEADLINE, || Ok(self.rows()?.len() >= count))
    }

    /// Every row is there, once, and right; then the worker ends by itself.
    fn check(&self, worker: Worker, model: &Model) -> anyhow::Result<()> {
        part("The shop is closed. Was anything lost, doubled or wrong?");
        self.wait_rows(model.rows.len()).with_context(|| worker.log())?;
        say("SIGTERM: it commits its last epoch, gives its tasks back, and ends with exit code 0.");
        say(&format!("$ kill {}", worker.pid()));
        worker.stop()?;
        shop::check(&self.kafka, model)?.iter().for_each(|line| say(line));
        Ok(())
    }
}

fn value(record: &Record) -> String {
    String::from_utf8_lossy(record.value.as_deref().unwrap_or_default()).into_owned()
}

//! `make demo-cluster`: from nothing to a running pipeline on a real Kubernetes with a real Kafka, with the commands
//! that a user types: what is told is what is run. The pipeline is broken and mended, its pod and the operator are
//! killed, and every row is compared with a naive model. Leaves nothing behind.
//!
//! Ends with an error unless all that it says is so.

use std::env;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_cluster_harness::Cluster;
use millrace_kafka_harness::wait;
use millrace_tests::kubernetes::{SYSTEM, World, installation};
use millrace_tests::shop::{self, Model, RESULT, Shop};
use millrace_tests::story::DEADLINE;

const NAMESPACE: &str = "shop";
const PIPELINE: &str = "pipeline/orders-enriched";
const POD: &str = "pod/orders-enriched-0";
/// What each part lets out at least: seconds of orders.
const ROWS: usize = 1_000;
/// A look reads all of the output, or asks the API server.
const LOOK_EVERY: Duration = Duration::from_millis(500);

fn main() -> anyhow::Result<()> {
    env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).context("go to the root of the clone")?;
    part("A real Kubernetes with one node, and a Kafka that its pods reach");
    let demo = Demo::new()?;
    let (model, close) = (Mutex::new(Model::default()), AtomicBool::new(false));
    thread::scope(|scope| {
        let open = Shop::new(&demo.world.kafka, &model)?;
        let open = scope.spawn(|| open.run(&model, &close));
        let told = demo.tell();
        close.store(true, Ordering::Relaxed);
        let closed = open.join().map_err(|_| anyhow::anyhow!("the shop panicked"))?;
        told.and(closed)?;
        demo.check(&model.lock().expect("nobody panics with the lock"))
    })
    .with_context(|| demo.world.cluster.diagnostics())?;
    demo.world.cluster.down()
}

fn part(title: &str) {
    println!("\n\n== {title}");
}

fn say(text: &str) {
    println!("   {text}");
}

/// As a shell takes it.
fn quoted(argument: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,".contains(c);
    if argument.chars().all(is_plain) { argument.to_owned() } else { format!("'{argument}'") }
}

type Run = fn(&Cluster, &[&str]) -> anyhow::Result<String>;

struct Demo {
    world: World,
    /// The pipeline's file, in Kafka's folder, which goes away however this process ends.
    file: PathBuf,
}

impl Demo {
    fn new() -> anyhow::Result<Self> {
        let world = World::without_chart()?;
        let servers = world.kafka.bootstrap_servers();
        let topics = shop::make_topics(&world.kafka)?;
        say(&format!("Kafka is at {servers}. It has the topics {}.", topics.join(", ")));
        say("In another terminal, while this runs:");
        say(&format!("$ export KUBECONFIG={}", world.cluster.kubeconfig().display()));
        say(&format!("$ export PATH={}:$PATH", world.cluster.programs().display()));
        let file = world.kafka.dir().join("pipeline.yaml");
        std::fs::write(&file, shop::pipeline(&servers)?).context("write the pipeline")?;
        Ok(Self { world, file })
    }

    fn helm(&self, arguments: &[&str]) -> anyhow::Result<()> {
        self.told("helm", arguments, Cluster::helm).map(drop)
    }

    fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        self.told("kubectl", arguments, Cluster::kubectl)
    }

    /// Tells a command, runs it, and tells what it has said.
    fn told(&self, program: &str, arguments: &[&str], run: Run) -> anyhow::Result<String> {
        let told: Vec<String> = arguments.iter().map(|argument| quoted(argument)).collect();
        say(&format!("$ {program} {}", told.join(" ")));
        let said = run(&self.world.cluster, arguments)?;
        said.lines().for_each(|line| println!("     {line}"));
        Ok(said)
    }

    fn apply(&self) -> anyhow::Result<()> {
        self.kubectl(&["apply", "-f", &self.file.display().to_string()]).map(drop)
    }

    fn wait(&self, namespace: &str, object: &str, what: &str) -> anyhow::Result<()> {
        let what = format!("--for={what}");
        self.kubectl(&["wait", &what, object, "--namespace", namespace, "--timeout=3m"]).map(drop)
    }

    fn wait_ready(&self) -> anyhow::Result<()> {
        self.wait(NAMESPACE, PIPELINE, "condition=Ready")
    }

    /// Shows the pipeline. These are READY, PHASE, DESIRED and READY-PODS.
    fn show(&self, wanted: [&str; 4]) -> anyhow::Result<String> {
        let said = self.kubectl(&["get", "pipelines", "--namespace", NAMESPACE])?;
        let line = said.lines().nth(1).context("it is listed")?;
        let shown: Vec<&str> = line.split_whitespace().skip(1).take(wanted.len()).collect();
        ensure!(shown == wanted, "these columns had to say {wanted:?}");
        Ok(said)
    }

    fn rows(&self) -> anyhow::Result<usize> {
        Ok(self.world.kafka.read_committed(RESULT)?.len())
    }

    /// Waits until more rows have come out.
    fn goes_on(&self) -> anyhow::Result<()> {
        let before = self.rows()?;
        let mut now = before;
        wait::until("rows to come out", DEADLINE, || {
            thread::park_timeout(LOOK_EVERY);
            now = self.rows()?;
            Ok(now >= before + ROWS)
        })?;
        say(&format!("a read_committed reader saw {before} rows of {RESULT}, and sees {now} by now"));
        Ok(())
    }

    /// Waits until LAG says that the pipeline keeps up: less than 10 s. It is written once a minute at most.
    fn keeps_up(&self) -> anyhow::Result<()> {
        let lag = ["get", PIPELINE, "--namespace", NAMESPACE, "-o", "jsonpath={.status.lag}"];
        wait::until("LAG below 10 s", DEADLINE, || {
            thread::park_timeout(LOOK_EVERY);
            let lag = self.world.cluster.kubectl(&lag)?;
            Ok(lag.contains('.') && lag.ends_with('s'))
        })
    }

    fn tell(&self) -> anyhow::Result<()> {
        part("A platform engineer installs the chart");
        self.helm(&installation("charts/millrace"))?;
        self.kubectl(&["get", "pods", "--namespace", SYSTEM])?;

        part("A data engineer applies examples/orders-enriched/pipeline.yaml, with this Kafka in it");
        say("each order gets the customer as of the order's time, and waits until 5 s of newer orders have come");
        self.kubectl(&["create", "namespace", NAMESPACE])?;
        self.apply()?;
        self.wait_ready()?;
        self.goes_on()?;
        self.keeps_up()?;
        self.show(["True", "Running", "1", "1"])?;

        part("An edit that is wrong: the old spec runs on, and the status says what to do");
        let wrong = r#"[{"op": "replace", "path": "/spec/sinks/0/from", "value": "nobody"}]"#;
        self.kubectl(&["patch", PIPELINE, "--namespace", NAMESPACE, "--type=json", "--patch", wrong])?;
        self.wait(NAMESPACE, PIPELINE, "condition=SpecValid=False")?;
        let said = self.show(["False", "Running", "1", "1"])?;
        ensure!(said.contains("nobody"), "the message does not name the mistake");
        self.goes_on()?;
        say("and mended:");
        self.apply()?;
        self.wait_ready()?;
        self.show(["True", "Running", "1", "1"])?;

        part("A worker is lost: its pod comes back, and goes on where the last commit was");
        self.kubectl(&["delete", POD, "--namespace", NAMESPACE, "--grace-period=0", "--force"])?;
        self.wait(NAMESPACE, POD, "create")?;
        self.wait(NAMESPACE, POD, "condition=Ready")?;
        self.goes_on()?;

        part("The operator is lost: rows come all the same, and the next one does what is asked");
        let selector = "--selector=app.kubernetes.io/component=operator";
        self.kubectl(&["delete", "pod", "--namespace", SYSTEM, selector, "--grace-period=0", "--force"])?;
        self.goes_on()?;

        part("More workers, and fewer, while it runs: a task moves when its next owner has read its state");
        self.scale(4)?;
        self.show(["True", "Running", "4", "4"])?;
        self.kubectl(&["get", "pods", "--namespace", NAMESPACE])?;
        self.scale(2)?;
        self.show(["True", "Running", "2", "2"])?;
        self.goes_on()
    }

    /// Scales, and tells what a person sees who watches the status and the rows meanwhile.
    fn scale(&self, replicas: u32) -> anyhow::Result<()> {
        let fields = "{.status.rescale.from} to {.status.rescale.to}: {.status.rescale.moved} moved, {.status.rescale.remaining} to go, {.status.rescale.step} {.status.rescale.waitsFor}";
        let path = format!("jsonpath={{.status.lag}}|{{.status.rescale}}|{fields}");
        let object = ["get", PIPELINE, "--namespace", NAMESPACE, "-o", &path];
        self.kubectl(&["scale", PIPELINE, "--namespace", NAMESPACE, &format!("--replicas={replicas}")])?;
        let (mut told, mut rows) = (String::new(), self.rows()?);
        wait::until("the rescale to end", DEADLINE, || {
            let seen = self.world.cluster.kubectl(&object)?;
            let mut parts = seen.splitn(3, '|');
            let (lag, rescale) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            let line = parts.next().unwrap_or_default();
            if !rescale.is_empty() && line != told {
                let now = self.rows()?;
                say(&format!("{line}; lag {lag}, {} more rows", now - rows));
                line.clone_into(&mut told);
                rows = now;
            }
            Ok(rescale.is_empty() && !told.is_empty())
        })?;
        self.wait_ready()
    }

    fn check(&self, model: &Model) -> anyhow::Result<()> {
        part("The shop is closed. Was anything lost, doubled or wrong?");
        let wanted = model.rows.len();
        wait::until("the last rows to come out", DEADLINE, || {
            thread::park_timeout(LOOK_EVERY);
            Ok(self.rows()? >= wanted)
        })?;
        shop::check(&self.world.kafka, model)?.iter().for_each(|line| say(line));
        self.kubectl(&["delete", PIPELINE, "--namespace", NAMESPACE]).map(drop)
    }
}

//! `make demo-cluster`: from nothing to a running pipeline on a real Kubernetes with a real Kafka, with the commands that
//! a user types. It is broken and mended, its pod and the operator are killed, and every row is compared with a naive
//! model. Leaves nothing behind.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use millrace_kafka_harness::wait;
use millrace_tests::kubernetes::{SYSTEM, World};
use millrace_tests::shop::{self, Model, RESULT, Shop};
use millrace_tests::story::DEADLINE;

const NAMESPACE: &str = "shop";
const PIPELINE: &str = "pipeline/orders-enriched";
/// How long the shop is open between two steps.
const LIVE: Duration = Duration::from_secs(4);

fn main() -> anyhow::Result<()> {
    part("A real Kubernetes with one node, and a Kafka that its pods reach");
    let demo = Demo { world: World::new()? };
    demo.say("a platform engineer has installed the chart:");
    println!("   $ helm install millrace charts/millrace --namespace {SYSTEM} --create-namespace --wait");
    demo.kubectl(&["get", "pods", "--namespace", SYSTEM])?;
    let (model, close) = (Mutex::new(Model::default()), AtomicBool::new(false));
    let topics = shop::make_topics(&demo.world.kafka)?;
    thread::scope(|scope| {
        let open = Shop::new(&demo.world.kafka, &model)?;
        let open = scope.spawn(|| open.run(&model, &close));
        let told = demo.tell(&topics);
        close.store(true, Ordering::Relaxed);
        let closed = open.join().map_err(|_| anyhow::anyhow!("the shop panicked"))?;
        told.with_context(|| demo.world.cluster.diagnostics())?;
        closed?;
        demo.check(&model.lock().expect("nobody panics with the lock"))
    })?;
    demo.world.cluster.down()
}

fn part(title: &str) {
    println!("\n\n== {title}");
}

struct Demo {
    world: World,
}

impl Demo {
    fn say(&self, text: &str) {
        println!("   {text}");
    }

    /// Runs a command as it is told.
    fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<()> {
        println!("   $ kubectl {}", arguments.join(" "));
        let said = self.world.cluster.kubectl(arguments)?;
        said.lines().for_each(|line| println!("     {line}"));
        Ok(())
    }

    fn apply(&self) -> anyhow::Result<()> {
        println!("   $ kubectl apply -f pipeline.yaml");
        let pipeline = shop::pipeline(&self.world.kafka.bootstrap_servers())?;
        let said = self.world.cluster.apply(&pipeline)?;
        said.lines().for_each(|line| println!("     {line}"));
        Ok(())
    }

    fn wait_ready(&self) -> anyhow::Result<()> {
        self.kubectl(&["wait", "--for=condition=Ready", PIPELINE, "--namespace", NAMESPACE, "--timeout=3m"])
    }

    fn show(&self) -> anyhow::Result<()> {
        thread::park_timeout(LIVE);
        self.kubectl(&["get", "pipelines", "--namespace", NAMESPACE])
    }

    fn tell(&self, topics: &[&str]) -> anyhow::Result<()> {
        part("A data engineer applies examples/orders-enriched/pipeline.yaml, with this Kafka in it");
        self.say(&format!("the topics are there: {}", topics.join(", ")));
        self.kubectl(&["create", "namespace", NAMESPACE])?;
        self.apply()?;
        self.wait_ready()?;
        self.show()?;

        part("An edit that is wrong: the old spec runs on, and the status says what to do");
        let wrong = r#"[{"op": "replace", "path": "/spec/sinks/0/from", "value": "nobody"}]"#;
        self.kubectl(&["patch", PIPELINE, "--namespace", NAMESPACE, "--type=json", "--patch", wrong])?;
        self.kubectl(&["wait", "--for=condition=SpecValid=False", PIPELINE, "--namespace", NAMESPACE, "--timeout=1m"])?;
        self.show()?;
        self.say("and mended:");
        self.apply()?;
        self.wait_ready()?;

        part("A worker and the operator are killed");
        let force = ["--grace-period=0", "--force"];
        self.kubectl(&[&["delete", "pod", "orders-enriched-0", "--namespace", NAMESPACE], &force[..]].concat())?;
        let operator = ["delete", "pod", "--namespace", SYSTEM, "--selector", "app.kubernetes.io/component=operator"];
        self.kubectl(&[&operator[..], &force[..]].concat())?;
        self.wait_ready()?;
        self.show()
    }

    fn check(&self, model: &Model) -> anyhow::Result<()> {
        part("The shop is closed. Was anything lost, doubled or wrong?");
        let wanted = model.rows.len();
        let kafka = &self.world.kafka;
        wait::until("rows to come out", DEADLINE, || Ok(kafka.read_committed(RESULT)?.len() >= wanted))?;
        shop::check(kafka, model)?.iter().for_each(|line| self.say(line));
        self.kubectl(&["delete", PIPELINE, "--namespace", NAMESPACE])
    }
}

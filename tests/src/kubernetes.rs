//! Pipelines on a real cluster with a real Kafka: the chart is installed once for all tests of a process, and each test
//! applies a pipeline of its own, as a user does, and compares what comes out with the naive model.

use std::sync::OnceLock;

use anyhow::{Context, ensure};
use millrace_cluster_harness::{Cluster, image};
use millrace_kafka_harness::{Kafka, Options, wait};
use serde_json::{Value, json};

use crate::story::{DEADLINE, Shape, Story};

/// Where the operator is.
pub const SYSTEM: &str = "millrace-system";
/// The chart's release.
const RELEASE: &str = "millrace";

/// A cluster with the chart installed, and a Kafka that its pods reach.
pub struct World {
    pub cluster: Cluster,
    pub kafka: Kafka,
}

/// One for all tests of a process. The harness ends it with the process.
pub fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| World::new().expect("a cluster with the chart on it"))
}

impl World {
    pub fn new() -> anyhow::Result<Self> {
        let cluster = Cluster::with_node(&[image()?])?;
        cluster.tag_image("localhost/millrace:latest", concat!("localhost/millrace:", env!("CARGO_PKG_VERSION")))?;
        let kafka = Kafka::start(&Options { address: Some(cluster.host_address()?), ..Options::default() })?;
        let world = Self { cluster, kafka };
        world.install(&[])?;
        Ok(world)
    }

    /// Installs the chart, or changes what was installed.
    pub fn install(&self, more: &[&str]) -> anyhow::Result<String> {
        let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/millrace");
        let arguments = [
            "upgrade",
            "--install",
            RELEASE,
            chart,
            "--namespace",
            SYSTEM,
            "--create-namespace",
            "--wait",
            "--timeout=3m",
            // The image is on the node, under the name that the harness gave it.
            "--set=image.repository=localhost/millrace",
            "--set=image.pullPolicy=Never",
            // Two cores carry the whole cluster.
            "--set=worker.resources.requests.cpu=50m",
            "--set=worker.resources.requests.memory=256Mi",
        ];
        let installed = self.cluster.helm(&[&arguments[..], more].concat());
        installed.with_context(|| self.cluster.diagnostics())
    }

    /// Kills the operator as a node's loss would.
    pub fn kill_operator(&self) -> anyhow::Result<()> {
        let selector = "app.kubernetes.io/component=operator";
        let force = ["--grace-period=0", "--force", "--wait=false"];
        let delete = ["delete", "pod", "-n", SYSTEM, "-l", selector];
        self.cluster.kubectl(&[&delete[..], &force].concat()).map(drop)
    }
}

/// A pipeline of a test, in a namespace of its own.
pub struct Deployed {
    pub world: &'static World,
    pub story: Story,
    pub namespace: String,
    document: Value,
}

impl Deployed {
    /// Makes its namespace, which takes restricted pods only, and its topics.
    pub fn new(name: &str, shape: Shape, partitions: i32) -> anyhow::Result<Self> {
        let world = world();
        let story = Story::new(&world.kafka, name, shape, partitions)?;
        let mut document: Value = serde_saphyr::from_str(&story.yaml(&world.kafka.bootstrap_servers()))?;
        let namespace = format!("story-{name}");
        document["metadata"]["namespace"] = json!(namespace);
        document["spec"]["kafka"]["internal"]["prefix"] = json!(story.prefix());
        world.cluster.kubectl(&["create", "namespace", &namespace])?;
        let restricted = "pod-security.kubernetes.io/enforce=restricted";
        world.cluster.kubectl(&["label", "namespace", &namespace, restricted])?;
        Ok(Self { world, story, namespace, document })
    }

    /// Sets fields of the document, each by its JSON pointer below the spec, and applies it.
    pub fn apply(&mut self, fields: &[(&str, Value)]) -> anyhow::Result<()> {
        for (field, value) in fields {
            let (parent, name) = field.rsplit_once('/').context("a field has a '/' before it")?;
            let parent = self.document["spec"].pointer_mut(parent).with_context(|| format!("there is no {parent}"))?;
            parent[name] = value.clone();
        }
        self.world.cluster.apply(&self.document.to_string()).map(drop)
    }

    pub fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        self.world.cluster.kubectl(&[&["--namespace", &self.namespace], arguments].concat())
    }

    pub fn object(&self) -> anyhow::Result<Value> {
        let text = self.kubectl(&["get", "pipeline", &self.story.name, "-o", "json"])?;
        serde_json::from_str(&text).context("read the Pipeline")
    }

    /// (status, reason, message) of a condition of the newest generation.
    pub fn condition(&self, kind: &str) -> anyhow::Result<Option<[String; 3]>> {
        let object = self.object()?;
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let of_kind = conditions.iter().find(|c| c["type"] == kind);
        let current = of_kind.filter(|c| c["observedGeneration"] == object["metadata"]["generation"]);
        let text = |c: &Value, field: &str| c[field].as_str().unwrap_or_default().to_owned();
        Ok(current.map(|c| ["status", "reason", "message"].map(|field| text(c, field))))
    }

    /// Waits until a condition of the newest generation is as told; an empty reason is any.
    pub fn wait_condition(&self, kind: &str, status: &str, reason: &str) -> anyhow::Result<[String; 3]> {
        let mut seen = None;
        self.until(&format!("{kind} to be {status} {reason}"), || {
            seen = self.condition(kind)?;
            Ok(seen.as_ref().is_some_and(|[s, r, _]| s == status && (reason.is_empty() || r == reason)))
        })
        .with_context(|| format!("{kind} is {seen:?}"))?;
        seen.context("it was seen")
    }

    pub fn wait_ready(&self) -> anyhow::Result<()> {
        self.wait_condition("Ready", "True", "").map(drop)
    }

    /// Applies it and waits until it runs.
    pub fn start(&mut self, fields: &[(&str, Value)]) -> anyhow::Result<()> {
        self.apply(fields)?;
        self.wait_ready()
    }

    /// Waits until many more rows have come out than there were.
    pub fn goes_on(&self) -> anyhow::Result<()> {
        let seen = self.story.rows()?.len();
        self.story.wait_rows(seen + 100).with_context(|| self.world.cluster.diagnostics())
    }

    /// Ends the load and compares everything.
    pub fn check(&mut self) -> anyhow::Result<()> {
        self.story.stop_generating()?;
        self.story.check().with_context(|| self.world.cluster.diagnostics())
    }

    pub fn pods(&self) -> anyhow::Result<Vec<String>> {
        let selector = format!("millrace.dev/pipeline={},app.kubernetes.io/component=worker", self.story.name);
        let names = self.kubectl(&["get", "pods", "-l", &selector, "-o", "name"])?;
        Ok(names.lines().map(|name| name.trim_start_matches("pod/").to_owned()).collect())
    }

    pub fn wait_pods(&self, count: usize) -> anyhow::Result<()> {
        self.until(&format!("{count} pods"), || Ok(self.pods()?.len() == count))
    }

    /// SIGKILL for the process of a worker.
    pub fn kill_worker(&self, ordinal: u32) -> anyhow::Result<()> {
        let pod = format!("{}-{ordinal}", self.story.name);
        self.world.cluster.signal_container(&self.namespace, &pod, "worker", "KILL")
    }

    pub fn delete(&self) -> anyhow::Result<()> {
        self.kubectl(&["delete", "pipeline", &self.story.name, "--timeout=120s"]).map(drop)
    }

    /// Topics that the pipeline made for itself.
    pub fn internal_topics(&self) -> anyhow::Result<Vec<String>> {
        let prefix = format!("{}-", self.story.prefix());
        Ok(self.world.kafka.topics()?.into_iter().filter(|topic| topic.starts_with(&prefix)).collect())
    }

    pub fn until(&self, what: &str, condition: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
        wait::until(what, DEADLINE, condition).with_context(|| self.world.cluster.diagnostics())
    }

    /// `kubectl wait`, as it is used in a CI; true if it succeeds within a moment.
    pub fn is_ready_for_ci(&self) -> bool {
        let pipeline = format!("pipeline/{}", self.story.name);
        self.kubectl(&["wait", "--for=condition=Ready", "--timeout=1s", &pipeline]).is_ok()
    }

    /// The events about it, as a person reads them.
    pub fn events(&self) -> anyhow::Result<String> {
        self.kubectl(&["get", "events", "-o", "custom-columns=REASON:.reason,NOTE:.message", "--no-headers"])
    }

    pub fn ensure_phase(&self, phase: &str) -> anyhow::Result<()> {
        let seen = self.object()?["status"]["phase"].clone();
        ensure!(seen == phase, "the phase is {seen}");
        Ok(())
    }
}

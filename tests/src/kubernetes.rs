//! Pipelines on a real cluster with a real Kafka: the chart is installed once for all tests of a process, and each test
//! applies a pipeline of its own, as a user does, and compares what comes out with the naive model.

use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_cluster_harness::{Cluster, Cut, image};
use millrace_kafka_harness::{Kafka, Options, wait};
use serde_json::{Value, json};

use crate::s3::{self, S3};
use crate::story::{DEADLINE, Shape, Story};

/// Where the operator is.
pub const SYSTEM: &str = "millrace-system";
/// The chart's release.
const RELEASE: &str = "millrace";
const OPERATOR: &str = "deployment/millrace-operator";
const LEASE: &str = "millrace-operator";
const OPERATOR_PODS: &str = "app.kubernetes.io/component=operator";
/// The listener of the world's Kafka where users show who they are. The other one asks nobody.
const SASL: usize = 0;
/// There a connection ends after so long unless its client shows again who it is.
pub const SESSION: Duration = Duration::from_secs(5);

/// A cluster with the chart installed, and a Kafka and an object store that its pods reach.
pub struct World {
    pub cluster: Cluster,
    pub kafka: Kafka,
    pub s3: S3,
}

/// One for all tests of a process. The harness ends it with the process.
pub fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| World::new().expect("a cluster with the chart on it"))
}

/// What helm is told to install the chart, or to change what was installed.
pub fn installation(chart: &str) -> [&str; 13] {
    [
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
    ]
}

impl World {
    pub fn new() -> anyhow::Result<Self> {
        let world = Self::without_chart()?;
        world.install(&[])?;
        Ok(world)
    }

    pub fn without_chart() -> anyhow::Result<Self> {
        let cluster = Cluster::with_node(&[image()?])?;
        cluster.tag_image("localhost/millrace:latest", concat!("localhost/millrace:", env!("CARGO_PKG_VERSION")))?;
        let of_users = |name: &str| format!("listener.name.sasl.scram-sha-512.{name}");
        let scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;";
        let kafka = Kafka::start(&Options {
            address: Some(cluster.host_address()?),
            listeners: vec![("SASL".to_owned(), "SASL_PLAINTEXT".to_owned())],
            properties: vec![
                ("sasl.enabled.mechanisms".to_owned(), "SCRAM-SHA-512".to_owned()),
                (of_users("sasl.jaas.config"), scram.to_owned()),
                (of_users("connections.max.reauth.ms"), SESSION.as_millis().to_string()),
            ],
            ..Options::default()
        })?;
        let s3 = S3::start(cluster.host_address()?)?;
        Ok(Self { cluster, kafka, s3 })
    }

    /// Where users show who they are to its Kafka, by SCRAM-SHA-512.
    pub fn servers_of_users(&self) -> String {
        self.kafka.servers_of(SASL)
    }

    /// Installs the chart, or changes what was installed.
    pub fn install(&self, more: &[&str]) -> anyhow::Result<String> {
        self.install_chart(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/millrace")), more)
    }

    /// The same with a chart from a folder.
    pub fn install_chart(&self, chart: &Path, more: &[&str]) -> anyhow::Result<String> {
        // As strict as the namespaces of pipelines.
        let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
        let metadata = json!({"name": SYSTEM, "labels": labels});
        self.cluster.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}).to_string())?;
        let chart = chart.to_string_lossy();
        let installed = self.cluster.helm(&[&installation(&chart)[..], more].concat());
        installed.with_context(|| self.cluster.diagnostics())
    }

    /// A command of Helm about the chart's release.
    pub fn helm(&self, command: &str, more: &[&str]) -> anyhow::Result<String> {
        self.cluster.helm(&[&[command, RELEASE, "--namespace", SYSTEM], more].concat())
    }

    /// Kills the operator as a node's loss would.
    pub fn kill_operator(&self) -> anyhow::Result<()> {
        let force = ["--grace-period=0", "--force", "--wait=false"];
        let delete = ["delete", "pod", "-n", SYSTEM, "-l", OPERATOR_PODS];
        self.cluster.kubectl(&[&delete[..], &force].concat()).map(drop)
    }

    /// The pod of the operator that leads, or led last, by the lease.
    pub fn leader(&self) -> anyhow::Result<String> {
        let path = "jsonpath={.spec.holderIdentity}";
        let holder = self.cluster.kubectl(&["get", "lease", LEASE, "-n", SYSTEM, "-o", path])?;
        // Behind the name is a number of the process.
        let (pod, _) = holder.rsplit_once('-').with_context(|| format!("'{holder}' is no holder of a lease"))?;
        Ok(pod.to_owned())
    }

    /// Kills the operator that leads as a node's loss would. Returns when another one leads and all are there again.
    pub fn change_leader(&self) -> anyhow::Result<()> {
        let former = self.leader()?;
        self.cluster.kubectl(&["delete", "pod", "-n", SYSTEM, &former, "--grace-period=0", "--force"])?;
        // One that ends by itself may give the lease back before another one takes it.
        self.cluster.until("another leader", || Ok(self.leader().is_ok_and(|leader| leader != former)))?;
        self.cluster.kubectl(&["rollout", "status", OPERATOR, "-n", SYSTEM, "--timeout=120s"]).map(drop)
    }

    /// Takes the operator away (0) or brings it back (1), and waits until that is so.
    pub fn scale_operator(&self, replicas: usize) -> anyhow::Result<()> {
        self.cluster.kubectl(&["scale", OPERATOR, "-n", SYSTEM, &format!("--replicas={replicas}")])?;
        self.cluster.until(&format!("{replicas} operators"), || {
            let pods = self.cluster.kubectl(&["get", "pods", "-n", SYSTEM, "-l", OPERATOR_PODS, "-o", "name"])?;
            Ok(pods.lines().count() == replicas)
        })?;
        self.cluster.kubectl(&["rollout", "status", OPERATOR, "-n", SYSTEM, "--timeout=120s"]).map(drop)
    }
}

/// A pipeline of a test, in a namespace of its own.
pub struct Deployed {
    pub world: &'static World,
    pub story: Story,
    pub namespace: String,
    document: Value,
}

/// A pipeline over four partitions, and a load that two cores carry beside a cluster.
pub fn deployed(name: &str, shape: Shape) -> Deployed {
    let mut deployed = Deployed::new(name, shape, 4).expect("its namespace and its topics are made");
    deployed.story.pace = Duration::from_millis(20);
    deployed
}

/// (status, reason, message) of a condition, if it is about the newest generation.
pub fn condition(object: &Value, kind: &str) -> Option<[String; 3]> {
    let conditions = object["status"]["conditions"].as_array();
    let of_kind = conditions.into_iter().flatten().find(|c| c["type"] == kind);
    let current = of_kind.filter(|c| c["observedGeneration"] == object["metadata"]["generation"])?;
    Some(["status", "reason", "message"].map(|field| current[field].as_str().unwrap_or_default().to_owned()))
}

/// What the Secret `s3` holds.
fn keys() -> Value {
    json!({"accessKeyId": s3::ACCESS_KEY, "secretAccessKey": s3::SECRET_KEY})
}

/// A Savepoint, as it is applied.
pub fn savepoint(namespace: &str, name: &str, spec: &Value) -> Value {
    let metadata = json!({"name": name, "namespace": namespace});
    json!({"apiVersion": "millrace.dev/v1alpha1", "kind": "Savepoint", "metadata": metadata, "spec": spec})
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
        let deployed = Self { world, story, namespace, document };
        deployed.create_namespace()?;
        Ok(deployed)
    }

    pub fn create_namespace(&self) -> anyhow::Result<()> {
        let namespace = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": self.namespace, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
        });
        self.world.cluster.apply(&namespace.to_string()).map(drop)
    }

    /// Returns when nothing of it is left.
    pub fn delete_namespace(&self) -> anyhow::Result<()> {
        self.world.cluster.kubectl(&["delete", "namespace", &self.namespace, "--timeout=120s"]).map(drop)
    }

    /// Makes a Secret, or gives it other contents.
    pub fn secret(&self, name: &str, contents: &Value) -> anyhow::Result<()> {
        self.secret_in(&self.namespace, name, contents)
    }

    fn secret_in(&self, namespace: &str, name: &str, contents: &Value) -> anyhow::Result<()> {
        let metadata = json!({"name": name, "namespace": namespace});
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": contents});
        self.world.cluster.apply(&secret.to_string()).map(drop)
    }

    /// Snapshots in the world's object store, each behind so many bytes of a changelog: a field for [`Self::apply`].
    pub fn snapshots(&self, after: &str) -> anyhow::Result<(&'static str, Value)> {
        self.secret("s3", &keys())?;
        let storage: Value = serde_saphyr::from_str(&self.world.s3.storage())?;
        Ok(("/state", json!({"storage": storage, "snapshots": {"after": after}})))
    }

    pub fn scale(&self, replicas: u32) -> anyhow::Result<()> {
        let pipeline = format!("pipeline/{}", self.story.name);
        self.kubectl(&["scale", &pipeline, &format!("--replicas={replicas}")]).map(drop)
    }

    /// Waits until tasks are on the move.
    pub fn wait_rescaling(&self) -> anyhow::Result<()> {
        self.until("tasks to move", || Ok(self.object()?["status"]["rescale"].is_object()))
    }

    /// Waits until so many workers have all tasks, and no others are left.
    pub fn wait_scaled(&self, replicas: usize) -> anyhow::Result<()> {
        self.wait_ready()?;
        self.until("nothing to move", || Ok(self.object()?["status"]["rescale"].is_null()))?;
        self.wait_pods(replicas)
    }

    /// Makes a Savepoint of it, and waits until it is whole. Where its document is.
    pub fn save(&self, name: &str) -> anyhow::Result<String> {
        let savepoint = savepoint(&self.namespace, name, &json!({"pipelineRef": {"name": self.story.name}}));
        self.world.cluster.apply(&savepoint.to_string())?;
        let condition = "--for=condition=Ready";
        let waited = self.kubectl(&["wait", condition, &format!("savepoint/{name}"), "--timeout=120s"]);
        waited.with_context(|| self.world.cluster.diagnostics())?;
        self.kubectl(&["get", "savepoint", name, "-o", "jsonpath={.status.location}"])
    }

    /// Another pipeline, in a namespace of its own and into the topic `<name>-out`, begins with a savepoint from somewhere
    /// else. Returns when it runs.
    pub fn go_on_as(&self, name: &str, location: &str, replicas: u32) -> anyhow::Result<()> {
        let (World { cluster, kafka, .. }, namespace) = (self.world, format!("story-{name}"));
        cluster.kubectl(&["create", "namespace", &namespace])?;
        self.secret_in(&namespace, "s3", &keys())?;
        let out = format!("{name}-out");
        kafka.create_topic(&out, self.story.partitions(), &[])?;
        let imported = savepoint(&namespace, "imported", &json!({"from": {"location": location}}));
        cluster.apply(&imported.to_string())?;
        let mut document = self.renamed(name);
        document["metadata"]["namespace"] = json!(namespace);
        let spec = &mut document["spec"];
        (spec["sinks"][0]["kafka"]["topic"], spec["replicas"]) = (json!(out), json!(replicas));
        spec["restore"] = json!({"savepointRef": {"name": "imported"}});
        cluster.apply(&document.to_string())?;
        let wait = ["wait", "--namespace", &namespace, "--for=condition=Ready", &format!("pipeline/{name}")];
        let waited = cluster.kubectl(&[&wait[..], &["--timeout=180s"]].concat());
        waited.map(drop).with_context(|| cluster.diagnostics())
    }

    /// The document that is applied, as that of another pipeline.
    pub fn renamed(&self, name: &str) -> Value {
        let mut document = self.document.clone();
        document["metadata"]["name"] = json!(name);
        document["spec"]["kafka"]["internal"]["prefix"] = json!(format!("test.{name}"));
        document
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
        Ok(condition(&self.object()?, kind))
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

    /// Waits for what holds a deletion up until the operator has done its part of it.
    pub fn wait_held(&self) -> anyhow::Result<()> {
        self.until("the finalizer", || Ok(self.object()?["metadata"]["finalizers"].is_array()))
    }

    /// Number of the applied plan.
    pub fn plan(&self) -> anyhow::Result<i64> {
        self.object()?["status"]["planNumber"].as_i64().context("a plan was applied")
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
        let names = self.kubectl(&["get", "pods", "-l", &self.selector(), "-o", "name"])?;
        Ok(names.lines().map(|name| name.trim_start_matches("pod/").to_owned()).collect())
    }

    fn selector(&self) -> String {
        format!("millrace.dev/pipeline={},app.kubernetes.io/component=worker", self.story.name)
    }

    /// Name, uid and restarts of each pod: equal while none was replaced or started again.
    pub fn lives(&self) -> anyhow::Result<String> {
        let of_pod = "{.metadata.name} {.metadata.uid} {.status.containerStatuses[*].restartCount}";
        let path = format!("jsonpath={{range .items[*]}}{of_pod}{{\"\\n\"}}{{end}}");
        self.kubectl(&["get", "pods", "-l", &self.selector(), "-o", &path])
    }

    pub fn wait_pods(&self, count: usize) -> anyhow::Result<()> {
        self.until(&format!("{count} pods"), || Ok(self.pods()?.len() == count))
    }

    /// SIGKILL for the process of a worker.
    pub fn kill_worker(&self, ordinal: u32) -> anyhow::Result<()> {
        self.signal_worker(ordinal, "KILL")
    }

    /// Cuts all pods of the operator off from a worker, which reaches everybody, and is reached by kubelet and by Kafka. It
    /// ends with the value.
    pub fn cut_off(&self, ordinal: u32) -> anyhow::Result<Cut<'static>> {
        let cluster = &self.world.cluster;
        let addresses = "jsonpath={.items[*].status.podIP}";
        let operators = cluster.kubectl(&["get", "pods", "-n", SYSTEM, "-l", OPERATOR_PODS, "-o", addresses])?;
        let worker = self.kubectl(&["get", "pod", &self.pod(ordinal), "-o", "jsonpath={.status.podIP}"])?;
        cluster.cut(operators.split_whitespace().map(str::to_owned), &worker)
    }

    /// Sends a signal (as in `STOP`) to the process of a worker.
    pub fn signal_worker(&self, ordinal: u32, signal: &str) -> anyhow::Result<()> {
        self.world.cluster.signal_container(&self.namespace, &self.pod(ordinal), "worker", signal)
    }

    pub fn pod(&self, ordinal: u32) -> String {
        format!("{}-{ordinal}", self.story.name)
    }

    /// As a drain of its node does.
    pub fn evict(&self, ordinal: u32) -> anyhow::Result<()> {
        let (pod, file) = (self.pod(ordinal), self.story.dir().join("eviction.json"));
        let metadata = json!({"name": pod, "namespace": self.namespace});
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata});
        std::fs::write(&file, eviction.to_string()).context("write the eviction")?;
        let path = format!("/api/v1/namespaces/{}/pods/{pod}/eviction", self.namespace);
        let evict = ["create", "--raw", &path, "-f", &file.to_string_lossy()];
        // The budget of its disruptions may not have been counted yet.
        self.until(&format!("{pod} to be evicted"), || Ok(self.kubectl(&evict).is_ok()))
    }

    /// All that a worker logs until its container ends.
    pub fn log_to_the_end(&self, ordinal: u32) -> anyhow::Result<String> {
        self.kubectl(&["logs", "--follow", "--container=worker", &self.pod(ordinal)])
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
        self.within(DEADLINE, what, condition)
    }

    /// For what was promised within some time.
    pub fn within(
        &self,
        deadline: Duration,
        what: &str,
        condition: impl FnMut() -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        wait::until(what, deadline, condition).with_context(|| self.world.cluster.diagnostics())
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

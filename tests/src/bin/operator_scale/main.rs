//! `make bench-operator`: the operator with a thousand Pipelines, on a control plane without nodes whose pods and
//! workers this program plays. Prints what was measured, each figure beside its bar, and fails where one is missed.
//!
//! API server, etcd, controllers, operator and players share the machine's cores, so every length of time has the load
//! of all of them in it. The operator asks each worker every ten seconds, whose lag has moved each time.
//!
//! Each Pipeline has five SLOs, one of each kind. So the figures have in them: the slices of time that the operator asks
//! each worker for and judges; the books, of which each Pipeline's are kept in a ConfigMap that is written every five
//! minutes; the rules for Prometheus, in another ConfigMap, which are tens of kilobytes that caches do not keep; five more
//! entries in each status; and a scrape of all their series every thirty seconds. Before anything is measured but the
//! creation, the operator is replaced by one that finds the books of a whole month.
//!
//! | figure | what it is |
//! | --- | --- |
//! | resident memory | of the operator's process alone. What compiles a spec is a child with a bound of its own |
//! | writes, steady | by the API server's audit log. Two kinds are steady: live numbers in a status, at most once a minute for each Pipeline, and books |
//! | from an edit to the first write | between the API server's acknowledgement of both |
//! | a look at a Pipeline, steady | wall time, most of which is waiting for its workers |
//! | cores, steady | CPU time of the operator's process; those of who plays and of the API server are not in it |

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use anyhow::{Context, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::GroupVersionKind;
use kube::{Client, Config};
use millrace_cluster_harness::Cluster;
use millrace_crds::pipeline::{API_VERSION, KIND};
use millrace_kafka_harness::{DEADLINE, wait};
use millrace_tests::process::Memory;
use millrace_tests::shop::{self, now_ms};
use rustls::crypto::ring;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use audit::{Audit, Write};
use fleet::Fleet;
use operator::{Metrics, Operator, SYSTEM};
use table::Table;
use workers::{WORKERS, Workers};

mod audit;
mod books;
mod fleet;
mod operator;
mod slices;
mod table;
mod workers;

const PIPELINES: usize = 1_000;
const NAMESPACE: &str = "scale";
/// All Pipelines name it.
const SECRET: &str = "kafka";
/// Pipelines that are created at once.
const CREATED_AT_ONCE: usize = 8;
/// SLOs of each.
const SLOS: usize = 5;
/// For all of them to run: each is compiled, checked by a Job, and gets about 40 writes.
const START: Duration = Duration::from_secs(3_600);
/// In it a part of the books is written: all of them are every 300 s, each at another time.
const STEADY: Duration = Duration::from_secs(120);
/// How often the operator's metrics are asked for while somebody waits for one of them.
const ASK: Duration = Duration::from_secs(1);
/// One after another, as a person sees the answer to one before the next.
const EDITS: usize = 200;
/// After so many edits the Secret changes, so that all Pipelines are looked at, and all pods are written.
const EDITS_PER_RESYNC: usize = 50;

const MEMORY_MIB_MAX: f64 = 128.0;
const WRITES_PER_SECOND_MAX: f64 = 20.0;
const EDIT_SECONDS_MAX: f64 = 1.0;
const START_UP_SECONDS_MAX: f64 = 30.0;

fn main() -> anyhow::Result<ExitCode> {
    let count = env::args().nth(1).map_or(Ok(PIPELINES), |count| count.parse()).context("read how many Pipelines")?;
    let installed = ring::default_provider().install_default();
    installed.map_err(|_| anyhow::anyhow!("another TLS library was chosen before"))?;
    part("A control plane without nodes");
    let cluster = Cluster::control_plane()?;
    let mut table = Table::default();
    let measured = Bench::new(&cluster, count).and_then(|mut bench| bench.run(&mut table));
    println!("\n{table}");
    measured?;
    cluster.down()?;
    Ok(if table.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn part(title: &str) {
    println!("\n== {title}");
}

/// The name of a Pipeline, by its number.
pub fn name(pipeline: usize) -> String {
    format!("orders-{pipeline:04}")
}

pub fn index_of(name: &str) -> Option<usize> {
    name.strip_prefix("orders-")?.parse().ok()
}

pub fn pipelines(client: &Client) -> Api<DynamicObject> {
    let (group, version) = API_VERSION.split_once('/').unwrap_or(("", API_VERSION));
    let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, KIND), "pipelines");
    Api::namespaced_with(client.clone(), NAMESPACE, &kind)
}

/// The operator and all that it works with.
struct Bench<'a> {
    cluster: &'a Cluster,
    count: usize,
    operator: Operator,
    fleet: Fleet,
    /// The main job of the examples, with a Secret. All Pipelines are like it.
    document: Value,
    client: Client,
    runtime: Runtime,
}

/// What the operator has done since it began.
struct Effort {
    /// At Pipelines, and how long they took.
    looks: f64,
    look_seconds: f64,
    cpu_seconds: f64,
    /// Slices that it heard of too late.
    unobserved: f64,
}

/// An edit that the API server has taken, in milliseconds since 1970.
struct Edit {
    name: String,
    sent_ms: i64,
    acknowledged_ms: i64,
}

impl Edit {
    /// From the acknowledgement to the first write of the Pipeline's status, which says that the spec is compiled. A
    /// write that came before the acknowledgement did, which the operator may be quicker than, took no time.
    ///
    /// Live numbers that were written by chance in that moment would count too: each Pipeline has one such write a
    /// minute.
    fn seconds(&self, writes: &[Write]) -> Option<f64> {
        let of_status = writes.iter().filter(|write| write.resource == "pipelines/status" && write.name == self.name);
        let first_ms =
            of_status.filter(|write| write.received_ms >= self.sent_ms).map(|write| write.answered_ms).min()?;
        Some((first_ms - self.acknowledged_ms).max(0) as f64 / 1e3)
    }
}

impl<'a> Bench<'a> {
    fn new(cluster: &'a Cluster, count: usize) -> anyhow::Result<Self> {
        let document = document()?;
        let plan = millrace_tests::plan(&document.to_string());
        let addresses = cluster.take_pod_addresses()?;
        ensure!(count * WORKERS as usize <= addresses.len(), "there are addresses for {} pods", addresses.len());
        prepare(cluster)?;
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().context("start a runtime")?;
        let (client, fleet) = runtime.block_on(async {
            let client = client(cluster).await?;
            let secrets = Api::namespaced(client.clone(), NAMESPACE);
            let fleet = Fleet::start(&client, Workers::new(secrets, &plan, count, addresses)?);
            Ok::<_, anyhow::Error>((client, fleet))
        })?;
        let operator = Operator::start(cluster)?;
        Ok(Self { cluster, count, operator, fleet, document, client, runtime })
    }

    fn run(&mut self, table: &mut Table) -> anyhow::Result<()> {
        self.create(table)?;
        let created = self.operator.process.memory()?;
        self.age()?;
        self.steady(table)?;
        self.edit_all(table)?;
        let first = self.operator.process.memory()?;
        self.restart(table)?;
        let second = self.operator.process.memory()?;
        table.judge("resident memory, the most while they were created", mib(created.most), MEMORY_MIB_MAX, "MiB");
        table.judge("resident memory, the most from then on", mib(first.most), MEMORY_MIB_MAX, "MiB");
        table.judge("resident memory, the most since the start", mib(second.most), MEMORY_MIB_MAX, "MiB");
        Ok(())
    }

    /// Waits for a condition, while nothing ends that must not, and a Prometheus scrapes.
    fn until(
        &mut self,
        what: &str,
        deadline: Duration,
        mut condition: impl FnMut(&Self) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let waited = wait::until(what, deadline, || {
            self.operator.check()?;
            self.fleet.check()?;
            self.operator.scrape();
            condition(self)
        });
        waited.with_context(|| self.operator.last_words())
    }

    /// The same for what the operator's metrics say.
    fn until_metrics(
        &mut self,
        what: &str,
        deadline: Duration,
        condition: impl Fn(&Metrics) -> bool,
    ) -> anyhow::Result<()> {
        let mut asked: Option<Instant> = None;
        self.until(what, deadline, |bench| {
            if asked.is_some_and(|asked| asked.elapsed() < ASK) {
                return Ok(false);
            }
            asked = Some(Instant::now());
            Ok(bench.operator.metrics().is_some_and(|metrics| condition(&metrics)))
        })
    }

    fn until_ready(&mut self) -> anyhow::Result<()> {
        let mut told = 0;
        self.until("every Pipeline to be ready", START, |bench| {
            let ready = bench.fleet.pipelines.ready();
            if ready / 100 > told {
                told = ready / 100;
                println!("   {ready} are ready");
            }
            Ok(ready == bench.count)
        })
    }

    /// What the operator has done by now.
    fn effort(&self) -> anyhow::Result<Effort> {
        let metrics = self.operator.metrics().context("the operator serves no metrics")?;
        Ok(Effort {
            looks: metrics.sum("millrace_operator_reconcile_seconds_count"),
            look_seconds: metrics.sum("millrace_operator_reconcile_seconds_sum"),
            cpu_seconds: self.operator.process.seconds()?,
            unobserved: metrics.sum("millrace_operator_unobserved_slices_total"),
        })
    }

    /// Creates all Pipelines and waits until they run.
    fn create(&mut self, table: &mut Table) -> anyhow::Result<()> {
        part(&format!("{} Pipelines with {WORKERS} workers each are created", self.count));
        let begun = Instant::now();
        let api = pipelines(&self.client);
        let documents = (0..self.count).map(|pipeline| {
            let mut document = self.document.clone();
            document["metadata"]["name"] = json!(name(pipeline));
            document
        });
        let create = stream::iter(documents).map(Ok::<_, anyhow::Error>);
        let create = create.try_for_each_concurrent(CREATED_AT_ONCE, |document| {
            let api = api.clone();
            async move {
                let object: DynamicObject = serde_json::from_value(document)?;
                api.create(&PostParams::default(), &object).await.map(drop).context("create a Pipeline")
            }
        });
        self.runtime.block_on(create)?;
        self.until_ready()?;
        table.tell("from the first create to all ready", format!("{:.0} s", begun.elapsed().as_secs_f64()));
        table.tell("load of the machine then", load()?);
        Ok(())
    }

    /// The operator is replaced by one that finds books of a month.
    fn age(&mut self) -> anyhow::Result<()> {
        part("Another operator finds the books of a month");
        self.operator.kill()?;
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
        let filled = self.runtime.block_on(books::fill(&maps))?;
        ensure!(filled == self.count, "{filled} Pipelines have books");
        self.begin()?;
        let slos = self.count * SLOS;
        self.until_metrics("every SLO to be counted", DEADLINE, |metrics| {
            let series = metrics.series("millrace_slo_observations_total");
            series.filter(|observations| *observations > 0.0).count() == slos
        })
    }

    /// Nothing is done, and only lags move.
    fn steady(&mut self, table: &mut Table) -> anyhow::Result<()> {
        part(&format!("Only lags move, for {} s", STEADY.as_secs()));
        let idle = |metrics: &Metrics| metrics.sum("millrace_operator_queued") == 0.0;
        self.until_metrics("nobody to wait for a look", DEADLINE, idle)?;
        let mut audit = Audit::from_now(self.cluster)?;
        let before = self.effort()?;
        let (answered, told) = (self.fleet.workers.answered(), self.fleet.workers.told());
        let begun = Instant::now();
        self.until("the end of the measurement", 2 * STEADY, |_| Ok(begun.elapsed() >= STEADY))?;
        let writes = audit.writes()?;
        let after = self.effort()?;
        let seconds = begun.elapsed().as_secs_f64();
        let mut by_resource = BTreeMap::<&str, usize>::new();
        writes.iter().for_each(|write| *by_resource.entry(&write.resource).or_default() += 1);
        println!("   the operator wrote {by_resource:?}");
        let Memory { now, .. } = self.operator.process.memory()?;
        table.judge("resident memory, steady", mib(now), MEMORY_MIB_MAX, "MiB");
        table.judge("writes, steady", writes.len() as f64 / seconds, WRITES_PER_SECOND_MAX, "a second");
        let books = by_resource.get("configmaps").copied().unwrap_or_default();
        table.tell("of them books", format!("{:.2} a second", books as f64 / seconds));
        let (looks, look_seconds) = (after.looks - before.looks, after.look_seconds - before.look_seconds);
        table.tell("looks at Pipelines, steady", format!("{:.1} a second", looks / seconds));
        table.tell("a look at a Pipeline, steady, mean", format!("{:.1} ms", look_seconds / looks * 1e3));
        let answered = (self.fleet.workers.answered() - answered) as f64;
        table.tell("workers that answered, steady", format!("{:.1} a second", answered / seconds));
        let told = (self.fleet.workers.told() - told) as f64;
        table.tell("slices that workers told of, steady", format!("{:.1} a second", told / seconds));
        let cpu_seconds = after.cpu_seconds - before.cpu_seconds;
        table.tell("cores that the operator took, steady", format!("{:.2}", cpu_seconds / seconds));
        table.tell("slices that were not observed in time", format!("{:.0}", after.unobserved));
        table.tell("load of the machine then", load()?);
        Ok(())
    }

    /// Edits, while all others are looked at.
    fn edit_all(&mut self, table: &mut Table) -> anyhow::Result<()> {
        part(&format!("{EDITS} edits, one after another, while a Secret changes that all Pipelines name"));
        let mut audit = Audit::from_now(self.cluster)?;
        let (before, begun) = (self.effort()?, Instant::now());
        let mut edits = Vec::new();
        for number in 0..EDITS {
            if number % EDITS_PER_RESYNC == 0 {
                self.change_secret(number)?;
            }
            edits.push(self.edit(number)?);
        }
        let seconds = begun.elapsed().as_secs_f64();
        let looks = self.effort()?.looks - before.looks;
        let (mut writes, mut latencies) = (Vec::new(), Vec::new());
        // The log may be a little behind the answer.
        self.until("the audit log to have every edit's first write", DEADLINE, |_| {
            writes.extend(audit.writes()?);
            latencies = edits.iter().filter_map(|edit| edit.seconds(&writes)).collect();
            Ok(latencies.len() == edits.len())
        })?;
        latencies.sort_by(f64::total_cmp);
        let quantile = |q: f64| latencies[((latencies.len() as f64 * q).ceil() as usize).clamp(1, latencies.len()) - 1];
        table.tell("from an edit to the first write, median", format!("{:.3} s", quantile(0.5)));
        table.judge("from an edit to the first write, P99", quantile(0.99), EDIT_SECONDS_MAX, "s");
        table.tell("looks at Pipelines meanwhile", format!("{:.1} a second", looks / seconds));
        table.tell("writes meanwhile", format!("{:.1} a second", writes.len() as f64 / seconds));
        table.tell("load of the machine then", load()?);
        self.until_ready()
    }

    /// Changes one Pipeline, and waits until its status tells of the new generation.
    fn edit(&mut self, number: usize) -> anyhow::Result<Edit> {
        let name = name(number % self.count);
        let level = if (number / self.count).is_multiple_of(2) { "debug" } else { "warn" };
        let patch = json!({"spec": {"worker": {"logLevel": level}}});
        let api = pipelines(&self.client);
        let sent_ms = now_ms()?;
        let edited = self.runtime.block_on(api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)));
        let edited = edited.with_context(|| format!("edit {name}"))?;
        let acknowledged_ms = now_ms()?;
        let generation = edited.metadata.generation.unwrap_or_default();
        self.until("the operator to see an edit", DEADLINE, |bench| {
            Ok(bench.fleet.pipelines.observed_generation(&name) >= generation)
        })?;
        Ok(Edit { name, sent_ms, acknowledged_ms })
    }

    fn change_secret(&self, number: usize) -> anyhow::Result<()> {
        let patch = json!({"stringData": {"password": format!("password {number}")}}).to_string();
        self.cluster.kubectl(&["patch", "secret", SECRET, "--namespace", NAMESPACE, "--patch", &patch]).map(drop)
    }

    /// The operator is lost, and another one begins.
    fn restart(&mut self, table: &mut Table) -> anyhow::Result<()> {
        part("The operator is killed with SIGKILL, and started again");
        self.operator.kill()?;
        let [waited, whole] = self.begin()?;
        table.judge("start-up with all of them", whole.as_secs_f64(), START_UP_SECONDS_MAX, "s");
        let waited = waited.as_secs_f64();
        table.tell("of it until the lease of the one that was killed is over", format!("{waited:.1} s"));
        table.tell("load of the machine then", load()?);
        Ok(())
    }

    /// Starts an operator, and says how long it took until it led and until it had looked at every Pipeline.
    fn begin(&mut self) -> anyhow::Result<[Duration; 2]> {
        let begun = Instant::now();
        self.operator = Operator::start(self.cluster)?;
        let leads = |metrics: &Metrics| metrics.sum("millrace_operator_leader") == 1.0;
        self.until_metrics("the operator to lead", DEADLINE, leads)?;
        let (leads, count) = (begun.elapsed(), self.count as f64);
        self.until_metrics("the operator to have looked at every Pipeline", START, |metrics| {
            metrics.sum("millrace_operator_pipelines_looked_at") >= count
        })?;
        Ok([leads, begun.elapsed()])
    }
}

fn document() -> anyhow::Result<Value> {
    let mut document: Value = serde_saphyr::from_str(&shop::pipeline("kafka:9092")?).context("read the example")?;
    document["metadata"]["namespace"] = json!(NAMESPACE);
    document["spec"]["replicas"] = json!(WORKERS);
    let of_secret = |key: &str| json!({"name": SECRET, "key": key});
    let credentials = json!({"username": of_secret("user"), "password": of_secret("password")});
    document["spec"]["kafka"]["authentication"] = json!({"scramSha512": credentials});
    document["spec"]["slos"] = slos().into();
    Ok(document)
}

/// One of each kind, which are all good.
fn slos() -> [Value; SLOS] {
    [
        json!({"name": "fresh", "freshness": {"threshold": "15s"}, "objective": "99.9"}),
        json!({"name": "behind", "lag": {"threshold": "1m"}, "objective": "99.9"}),
        json!({"name": "on-time", "watermarkLag": {"threshold": "1m"}, "objective": "99.9"}),
        json!({"name": "complete", "completeness": {}, "objective": "99.99"}),
        json!({"name": "correct", "correctness": {}, "objective": "99.9"}),
    ]
}

/// What is there before the operator.
fn prepare(cluster: &Cluster) -> anyhow::Result<()> {
    let definitions = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/millrace/files");
    for file in fs::read_dir(definitions).context("list the chart's definitions")? {
        let path = file?.path();
        // Rules and dashboards lie beside them.
        if path.extension().is_some_and(|extension| extension == "yaml") {
            cluster.apply(&fs::read_to_string(path).context("read a definition")?)?;
        }
    }
    cluster.kubectl(&["wait", "--for=condition=Established", "crd/pipelines.millrace.dev", "--timeout=60s"])?;
    for namespace in [SYSTEM, NAMESPACE] {
        cluster.kubectl(&["create", "namespace", namespace])?;
    }
    let literals = ["--from-literal=user=millrace", "--from-literal=password=first"];
    let create = ["create", "secret", "generic", SECRET, "--namespace", NAMESPACE];
    cluster.kubectl(&[&create[..], &literals].concat()).map(drop)
}

async fn client(cluster: &Cluster) -> anyhow::Result<Client> {
    let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig()).context("read the kubeconfig")?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    // The cluster is on this machine.
    config.proxy_url = None;
    Ok(Client::try_from(config)?)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Processes that ran or wanted to, over the last minute.
fn load() -> anyhow::Result<String> {
    let text = fs::read_to_string("/proc/loadavg").context("read the machine's load")?;
    let load = text.split_whitespace().next().unwrap_or_default();
    Ok(format!("{load} on {} cores", thread::available_parallelism()?))
}

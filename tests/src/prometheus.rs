//! A Prometheus and an Alertmanager that see what those of a user would: processes beside the pods, in the cluster's
//! sandbox, which end with it.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, ensure};
use millrace_cluster_harness::{Cluster, cache};
use millrace_kafka_harness::wait;
use serde_json::{Value, json};

use crate::story::DEADLINE;

/// Debian's Alertmanager reads a template from where its package would be installed.
const BESIDE: &str = r#"mount --bind "$1/share" /usr/share && shift && exec "$@""#;

const PROMETHEUS: u16 = 9090;
const ALERTMANAGER: u16 = 9093;
/// Often, so that a story need not wait: users say 15 to 60 s.
const EVERY: &str = "1s";

/// Both of them.
pub struct Prometheus<'a> {
    cluster: &'a Cluster,
    host: Ipv4Addr,
    dir: PathBuf,
}

impl<'a> Prometheus<'a> {
    /// Scrapes what [`Self::discover`] finds.
    pub fn start(cluster: &'a Cluster) -> anyhow::Result<Self> {
        let dir = cluster.dir().join("prometheus");
        fs::create_dir_all(dir.join("rules")).context("make a folder for Prometheus")?;
        let it = Self { cluster, host: cluster.node_ip(), dir };
        let config = json!({
            "global": {"scrape_interval": EVERY, "evaluation_interval": EVERY},
            "rule_files": [it.dir.join("rules/*.json")],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [it.address(ALERTMANAGER).to_string()]}]}]},
            "scrape_configs": [{
                "job_name": "pods",
                "file_sd_configs": [{"files": [it.dir.join("targets.json")], "refresh_interval": EVERY}],
                // As `honorLabels` of the ServiceMonitor: the operator's series say whose they are.
                "honor_labels": true,
            }],
        });
        fs::write(it.dir.join("prometheus.yml"), config.to_string()).context("write Prometheus' configuration")?;
        let silent = json!({"route": {"receiver": "nobody", "group_wait": "0s"}, "receivers": [{"name": "nobody"}]});
        fs::write(it.dir.join("alertmanager.yml"), silent.to_string()).context("write Alertmanager's configuration")?;
        let at = |port: u16| format!("--web.listen-address={}", it.address(port));
        let path = |what: &str, name: &str| format!("--{what}={}", it.dir.join(name).display());
        let prometheus = [
            path("config.file", "prometheus.yml"),
            path("storage.tsdb.path", "data"),
            at(PROMETHEUS),
            "--web.enable-lifecycle".to_owned(),
        ];
        let alertmanager = [
            path("config.file", "alertmanager.yml"),
            path("storage.path", "alerts"),
            at(ALERTMANAGER),
            "--cluster.listen-address=".to_owned(),
        ];
        it.discover()?;
        it.run("prometheus-alertmanager", &alertmanager)?;
        it.run("prometheus", &prometheus)?;
        for port in [PROMETHEUS, ALERTMANAGER] {
            wait::until("Prometheus to be ready", DEADLINE, || Ok(it.ask(port, "GET", "/-/ready", "").is_ok()))?;
        }
        Ok(it)
    }

    fn address(&self, port: u16) -> SocketAddr {
        SocketAddr::from((self.host, port))
    }

    /// Finds the pods that have a port with the name `metrics`, as the chart's monitors do. Debian's Prometheus is built
    /// without what looks for them itself.
    pub fn discover(&self) -> anyhow::Result<()> {
        let pods = self.cluster.kubectl(&["get", "pods", "--all-namespaces", "-o", "json"])?;
        let pods: Value = serde_json::from_str(&pods).context("read the list of pods")?;
        let targets = pods["items"].as_array().into_iter().flatten().filter_map(|pod| {
            let ports = pod["spec"]["containers"].as_array()?.iter().flat_map(|c| c["ports"].as_array()).flatten();
            let port = ports.into_iter().find(|port| port["name"] == "metrics")?["containerPort"].as_u64()?;
            let (metadata, address) = (&pod["metadata"], pod["status"]["podIP"].as_str()?);
            let pipeline = &metadata["labels"]["millrace.dev/pipeline"];
            let labels = json!({"namespace": metadata["namespace"], "pod": metadata["name"], "pipeline": pipeline});
            let labels: serde_json::Map<String, Value> =
                labels.as_object()?.clone().into_iter().filter(|(_, value)| value.is_string()).collect();
            Some(json!({"targets": [format!("{address}:{port}")], "labels": labels}))
        });
        let targets = Value::Array(targets.collect());
        fs::write(self.dir.join("targets.json"), targets.to_string()).context("write targets")
    }

    fn run(&self, program: &str, arguments: &[String]) -> anyhow::Result<()> {
        let usr = cache()?.join("prometheus/usr");
        let log = fs::File::create(self.dir.join(format!("{program}.log"))).context("make a log")?;
        let mut command = self.cluster.inside("unshare");
        command.args(["--mount", "sh", "-c", BESIDE, "sh"]).arg(&usr).arg(usr.join("bin").join(program));
        command.args(arguments).stdout(Stdio::null()).stderr(log);
        command.spawn().map(drop).with_context(|| format!("start {program}"))
    }

    /// Takes up the rules of a pipeline, as a ConfigMap has them, in place of former ones.
    pub fn load(&self, name: &str, rules: &str) -> anyhow::Result<()> {
        fs::write(self.dir.join("rules").join(format!("{name}.json")), rules).context("write rules")?;
        self.ask(PROMETHEUS, "POST", "/-/reload", "").map(drop)
    }

    /// The series of an expression, each with its labels and its value now.
    pub fn query(&self, expression: &str) -> anyhow::Result<Vec<(Value, f64)>> {
        let series = self.result(expression)?;
        series.into_iter().map(|series| Ok((series["metric"].clone(), number(&series["value"])?))).collect()
    }

    /// All samples of each series of a range, as in `up[1h]`, in the order of time.
    pub fn samples(&self, range: &str) -> anyhow::Result<Vec<Vec<f64>>> {
        let samples = |series: &Value| series["values"].as_array().context("a matrix")?.iter().map(number).collect();
        self.result(range)?.iter().map(samples).collect()
    }

    fn result(&self, expression: &str) -> anyhow::Result<Vec<Value>> {
        let body: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer = self.ask(PROMETHEUS, "POST", "/api/v1/query", &format!("query={body}"))?;
        answer["data"]["result"].as_array().cloned().context("a list of series")
    }

    /// The alerts that call somebody now: inhibited ones are not among them.
    pub fn alerts(&self) -> anyhow::Result<Vec<Value>> {
        let answer = self.ask(ALERTMANAGER, "GET", "/api/v2/alerts?active=true&inhibited=false&silenced=false", "")?;
        answer.as_array().cloned().context("a list of alerts")
    }

    fn ask(&self, port: u16, method: &str, path: &str, body: &str) -> anyhow::Result<Value> {
        let address = self.address(port);
        let mut stream = TcpStream::connect(address).with_context(|| format!("connect to {address}"))?;
        let (form, length) = ("application/x-www-form-urlencoded", body.len());
        // HTTP/1.0: the answer ends with the connection.
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: {form}\r\nContent-Length: {length}\r\n\r\n{body}"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).with_context(|| format!("read the answer of {address}"))?;
        let (head, body) = answer.split_once("\r\n\r\n").context("an answer has a head")?;
        let status = head.lines().next().unwrap_or_default();
        ensure!(status.contains(" 200 "), "{path}: {status}: {body}");
        match body.starts_with(['{', '[']) {
            true => serde_json::from_str(body).with_context(|| format!("read the answer of {address}")),
            false => Ok(Value::Null),
        }
    }
}

/// Of a sample, which is its time and the number as text.
fn number(sample: &Value) -> anyhow::Result<f64> {
    let text = sample[1].as_str().unwrap_or_default();
    text.parse().with_context(|| format!("read '{text}'"))
}

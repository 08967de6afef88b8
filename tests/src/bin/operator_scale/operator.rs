//! The operator, a process of its own that runs as in the chart: it leads by a lease, and compiles in a child.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_cluster_harness::Cluster;
use millrace_tests::process::Process;
use millrace_tests::story::{http, program};
use serde_json::json;

/// Where its lease is.
pub const SYSTEM: &str = "millrace-system";
/// As the chart's ServiceMonitor: what is served of all SLOs is megabytes, which are made each time.
const SCRAPE: Duration = Duration::from_secs(30);
/// How much of its log is shown when it fails.
const LOG_LINES: usize = 30;

pub struct Operator {
    child: Child,
    log: PathBuf,
    metrics: String,
    scraped: Instant,
    pub process: Process,
}

impl Operator {
    pub fn start(cluster: &Cluster) -> anyhow::Result<Self> {
        let (config, log) = (cluster.dir().join("operator.json"), cluster.dir().join("log/operator"));
        let resources = json!({"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}});
        let settings = json!({
            "image": {"repository": "localhost/millrace"},
            "version": env!("CARGO_PKG_VERSION"),
            "resources": resources,
        });
        fs::write(&config, settings.to_string()).context("write the operator's settings")?;
        let output = File::options().create(true).append(true).open(&log).context("open the operator's log")?;
        let free = TcpListener::bind("127.0.0.1:0").context("find a free port")?;
        let metrics = free.local_addr()?.to_string();
        drop(free);
        let mut command = Command::new(program("millrace-operator")?);
        command.arg("run").arg("--config").arg(config).arg("--millrace").arg(program("millrace")?);
        command.args(["--metrics", &metrics, "--leader-election-namespace", SYSTEM]);
        command.env("KUBECONFIG", cluster.kubeconfig()).env_remove("HTTPS_PROXY").env_remove("https_proxy");
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn().context("start the operator")?;
        let process = Process::of(child.id());
        Ok(Self { child, log, metrics, scraped: Instant::now(), process })
    }

    /// Fails when it has ended by itself.
    pub fn check(&mut self) -> anyhow::Result<()> {
        let ended = self.child.try_wait()?;
        ensure!(ended.is_none(), "the operator ended: {ended:?}");
        Ok(())
    }

    /// SIGKILL, as the loss of its node would be.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().context("kill the operator")?;
        self.child.wait().context("wait for the operator's end").map(drop)
    }

    /// What a Prometheus does to it.
    pub fn scrape(&mut self) {
        if self.scraped.elapsed() >= SCRAPE {
            self.scraped = Instant::now();
            // One that just begins serves nothing yet.
            let _ = http(&self.metrics, "/metrics");
        }
    }

    /// All metrics; `None` while nothing is served.
    pub fn metrics(&self) -> Option<Metrics> {
        http(&self.metrics, "/metrics").ok().map(|(_, text)| Metrics(text))
    }

    pub fn last_words(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        format!("the operator's log ends with\n{}", lines[lines.len().saturating_sub(LOG_LINES)..].join("\n"))
    }
}

/// In Prometheus' text format.
pub struct Metrics(String);

impl Metrics {
    /// Each series of a metric.
    pub fn series(&self, name: &str) -> impl Iterator<Item = f64> {
        let of_name = move |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        self.0.lines().filter(of_name).filter_map(|line| line.rsplit(' ').next()?.parse().ok())
    }

    /// The sum of a metric over all its labels.
    pub fn sum(&self, name: &str) -> f64 {
        self.series(name).sum()
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.kill();
    }
}

//! The operator: turns Pipelines into pods that run, and keeps them running.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::{Parser, Subcommand};
use hyper::header::{HeaderValue, USER_AGENT};
use k8s_openapi::api::coordination::v1::Lease as LeaseObject;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::Api;
use kube::runtime::events::{Recorder, Reporter};
use kube::{Client, Config};
use kube_lease_manager::LeaseManagerBuilder;
use millrace_operator_core::names::FIELD_MANAGER;
use millrace_operator_core::render::PROMETHEUS_RULE;
use millrace_operator_core::settings::{PrometheusRule, RulesNamespace, Settings};
use tokio::task::JoinSet;
use tracing_subscriber::EnvFilter;

use crate::apply::Writer;
use crate::backfills::Backfills;
use crate::cache::Cache;
use crate::compile::Compiler;
use crate::controller::Controller;
use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::reconcile::Reconciler;
use crate::slos::Slos;

mod apply;
mod backfills;
mod cache;
mod certificates;
mod clock;
mod compile;
mod controller;
mod hooks;
mod http;
mod metrics;
mod queue;
mod reconcile;
mod slos;
mod workers;

/// A leader that has not renewed its lease for so long is none any more.
const LEASE_SECONDS: u64 = 15;
/// It renews so long before that.
const LEASE_GRACE_SECONDS: u64 = 5;
/// One that waits looks so often at who leads.
const LEASE_LOOK: Duration = Duration::from_secs(2);
/// Questions to the compiler that wait; beyond it they are asked again later.
const QUESTIONS_MAX: usize = 1_000;

/// Streaming pipelines on Kubernetes.
#[derive(Parser)]
#[command(name = "millrace-operator", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Logs as JSON, one object a line.
    #[arg(long, global = true)]
    log_json: bool,
    /// What to log, as in `info` or `millrace_operator=debug`.
    #[arg(long, global = true, default_value = "info", value_parser = EnvFilter::from_str)]
    log_level: EnvFilter,
    /// Look after these namespaces only, separated by commas. Without it: all.
    #[arg(long, global = true, value_delimiter = ',', value_name = "NAMESPACES")]
    watch_namespaces: Vec<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Runs the operator.
    Run(RunArgs),
    /// Ends with an error while there are Pipelines.
    UninstallCheck {
        /// Let those go that wait for an operator, instead.
        #[arg(long)]
        release_finalizers: bool,
        /// What to do about them.
        #[arg(long, value_name = "TEXT", default_value = "delete them first")]
        advice: String,
    },
    /// Says whether the cluster serves our kinds, and whether an operator is ready.
    SelfTest {
        /// Where it says so.
        #[arg(long, value_name = "URL")]
        operator: String,
    },
}

#[derive(clap::Args)]
struct RunArgs {
    /// The chart's settings, as YAML.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Serve /metrics, /healthz and /readyz here.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8080")]
    metrics: SocketAddr,
    /// Where the lease is that says who leads. Without it this process acts without asking.
    #[arg(long, value_name = "NAMESPACE")]
    leader_election_namespace: Option<String>,
    #[arg(long, value_name = "NAME", default_value = "millrace-operator")]
    leader_election_name: String,
    /// The runtime's binary, which compiles specs.
    #[arg(long, value_name = "FILE", default_value = "millrace")]
    millrace: String,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let logs = tracing_subscriber::fmt().with_env_filter(cli.log_level).with_writer(std::io::stderr);
    if cli.log_json {
        logs.json().init()
    } else {
        logs.with_target(false).init()
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: start: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(act(cli.command, cli.watch_namespaces)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn act(command: Command, namespaces: Vec<String>) -> anyhow::Result<()> {
    // Whoever needs TLS takes the same library.
    let installed = rustls::crypto::ring::default_provider().install_default();
    installed.map_err(|_| anyhow::anyhow!("another TLS library was chosen before"))?;
    let mut config = Config::infer().await.context("find the API server")?;
    // By it an audit log tells what the operator writes.
    let agent = HeaderValue::from_static(concat!(env!("CARGO_PKG_NAME"), "/", env!("CARGO_PKG_VERSION")));
    config.headers.push((USER_AGENT, agent));
    let client = Client::try_from(config).context("connect to the API server")?;
    match command {
        Command::Run(args) => run(client, args, namespaces).await,
        Command::UninstallCheck { release_finalizers, advice } => {
            hooks::uninstall(client, &namespaces, release_finalizers, &advice).await
        }
        Command::SelfTest { operator } => hooks::self_test(client, &operator).await,
    }
}

async fn run(client: Client, args: RunArgs, namespaces: Vec<String>) -> anyhow::Result<()> {
    let settings = settings(&args, &client).await?;
    let identity = identity()?;
    let (slos, queue) = (Arc::new(Slos::default()), Arc::new(Queue::default()));
    let backfills = Arc::new(Backfills::default());
    let metrics = Arc::new(Metrics::new(&slos, &backfills).context("register metrics")?);
    let ready = Arc::new(AtomicBool::new(args.leader_election_namespace.is_some()));
    let health = http::Health { metrics: Arc::clone(&metrics), queue: Arc::clone(&queue), ready: Arc::clone(&ready) };
    let serving = http::serve(args.metrics, health);
    let leading = async {
        let (sender, questions) = tokio::sync::mpsc::channel(QUESTIONS_MAX);
        let cache = Arc::new(Cache::default());
        let reporter = Reporter { controller: FIELD_MANAGER.to_owned(), instance: Some(identity.clone()) };
        let recorder = Recorder::new(client.clone(), reporter);
        let writer = Writer { client: client.clone(), recorder, cache: Arc::clone(&cache) };
        let compiler = Arc::new(Compiler::new(args.millrace.clone(), settings.compile));
        let reconciler = Reconciler::new(
            settings,
            Arc::clone(&cache),
            writer,
            compiler,
            sender,
            Arc::clone(&metrics),
            (Arc::clone(&slos), backfills),
        );
        let (reconciler, leader) = (Arc::new(reconciler), metrics.leader.clone());
        let controller =
            Controller { client: client.clone(), namespaces, cache, queue, reconciler, questions, metrics, ready };
        let (mut tasks, mut lease) = (JoinSet::new(), None);
        // One that takes over knows everything already.
        controller.fill(&mut tasks).await?;
        if let Some(namespace) = &args.leader_election_namespace {
            let (taken, former_ms) = lead(&client, namespace, &args.leader_election_name, &identity).await?;
            former_ms.into_iter().for_each(|ms| slos.led_until(ms));
            lease = Some(taken);
        }
        leader.set(1);
        tokio::select! {
            ended = controller.act(tasks) => ended,
            lost = until_lost(&mut lease) => lost,
        }
    };
    tokio::select! {
        ended = serving => ended,
        ended = leading => ended,
        stopped = stopped() => stopped,
    }
}

async fn settings(args: &RunArgs, client: &Client) -> anyhow::Result<Settings> {
    let text = tokio::fs::read_to_string(&args.config).await;
    let text = text.with_context(|| format!("read {}", args.config.display()))?;
    let mut settings: Settings =
        serde_saphyr::from_str(&text).with_context(|| format!("read {}", args.config.display()))?;
    settings.namespace = args.leader_election_namespace.clone().unwrap_or_default();
    ensure!(
        settings.rules.namespace == RulesNamespace::Pipeline || !settings.namespace.is_empty(),
        "rules.namespace is Operator, and nobody says which one that is: give --leader-election-namespace"
    );
    if settings.rules.prometheus_rule == PrometheusRule::Auto {
        let served = match client.list_api_group_resources(PROMETHEUS_RULE.0).await {
            // Of a group that nobody serves, an API server says so in plain text: the code is all there is.
            Err(kube::Error::Api(status)) if status.code == 404 => false,
            served => {
                let served = served.context("find out whether the API server knows PrometheusRules")?;
                served.resources.iter().any(|kind| kind.kind == PROMETHEUS_RULE.1)
            }
        };
        settings.rules.prometheus_rule = if served { PrometheusRule::Always } else { PrometheusRule::Never };
    }
    if settings.cluster_id.is_empty() {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let system = namespaces.get("kube-system").await.context(
            "find out which cluster this is: give clusterId where the namespace kube-system must not be read",
        )?;
        settings.cluster_id = system.metadata.uid.unwrap_or_default();
    }
    Ok(settings)
}

fn identity() -> anyhow::Result<String> {
    let host = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
    let number = getrandom::u64().context("draw a random number")?;
    Ok(format!("{}-{number:016x}", host.trim()))
}

type Lease = tokio::sync::watch::Receiver<bool>;

/// Waits until this process is the leader, and says when another one last said that it was, milliseconds since 1970.
async fn lead(client: &Client, namespace: &str, name: &str, identity: &str) -> anyhow::Result<(Lease, Option<i64>)> {
    let leases: Api<LeaseObject> = Api::namespaced(client.clone(), namespace);
    let mut former_ms = None;
    led_until(&leases, name, identity, &mut former_ms).await;
    let manager = LeaseManagerBuilder::new(client.clone(), name)
        .with_namespace(namespace)
        .with_identity(identity)
        .with_field_manager(identity)
        .with_duration(LEASE_SECONDS)
        .with_grace(LEASE_GRACE_SECONDS)
        .build()
        .await
        .context("take the lease")?;
    let (mut lease, _task) = manager.watch().await;
    tracing::info!(identity, "waiting for the lease");
    let mut look = tokio::time::interval(LEASE_LOOK);
    loop {
        tokio::select! {
            leads = lease.wait_for(|leads| *leads) => {
                leads.context("wait for the lease")?;
                break;
            }
            _ = look.tick() => led_until(&leases, name, identity, &mut former_ms).await,
        }
    }
    tracing::info!(identity, "this process leads");
    Ok((lease, former_ms))
}

/// Notes when another one last said that it leads. A lease that was given back does not tell: where nothing was noted before,
/// somebody may have led until now. What cannot be read is not known.
async fn led_until(leases: &Api<LeaseObject>, name: &str, identity: &str, former_ms: &mut Option<i64>) {
    let Ok(Some(LeaseObject { spec: Some(spec), .. })) = leases.get_opt(name).await else { return };
    match (spec.holder_identity, spec.renew_time) {
        (Some(holder), _) if holder == identity => {}
        (Some(_), Some(renewed)) => *former_ms = Some(renewed.0.as_millisecond()),
        _ => *former_ms = former_ms.or_else(|| Some(clock::now().ms())),
    }
}

/// Ends when this process leads no more. It must not act from then on, so the process ends with it.
async fn until_lost(lease: &mut Option<Lease>) -> anyhow::Result<()> {
    let Some(lease) = lease else { return std::future::pending().await };
    drop(lease.wait_for(|leads| !*leads).await);
    bail!("the lease was lost")
}

/// Ends when the process is told to.
async fn stopped() -> anyhow::Result<()> {
    let mut term =
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).context("listen to signals")?;
    tokio::select! {
        _ = term.recv() => {}
        interrupted = tokio::signal::ctrl_c() => interrupted.context("listen to signals")?,
    }
    tracing::info!("told to stop; pipelines run on");
    Ok(())
}

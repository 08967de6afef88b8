//! `millrace run`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, anyhow, bail};
use clap::ArgGroup;
use millrace_core::control::Owner;
use millrace_core::ids::Timeline;
use millrace_core::plan::Plan;
use millrace_core::report::{BackfillReport, TERMINATION_BYTES_MAX};
use millrace_crds::pipeline::Pipeline;
use millrace_crds::unserved;
use millrace_plan::state::{self, Fit, Misfit};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::backfill;
use super::connection::{connection, internal_topics};
use super::preflight::write_report;
use super::{Failure, Outcome, pipeline, plan, read_json, write_json};
use crate::control::ControlConfig;
use crate::engine::{BATCH_RECORDS, Engine, EngineConfig, Exit};
use crate::http::{self, Server};
use crate::log::file::{FileLog, FileLogConfig};
use crate::log::kafka::TRANSACTION_TIMEOUT_MS;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::state::StateBudget;
use crate::storage::Storage;
use crate::worker::preflight::Findings;
use crate::worker::{self, Job, SetLogLevel, SnapshotRules, WorkerConfig};

/// Says that a pipeline takes over a prefix that was another's.
const ADOPT: &str = "millrace.dev/adopt";

/// What a worker with a control API runs: as it is told, or a backfill.
const CONTROLLED: &str = "controlled";

#[derive(clap::Args)]
#[command(group(ArgGroup::new(CONTROLLED).args(["assignment", "backfill"])))]
pub struct Args {
    /// The pipeline's file.
    #[arg(short, long)]
    file: PathBuf,
    /// A plan that was compiled before, to be run as it is.
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// The folder for state, to go on from after a stop or a crash; without it a temporary one.
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// A Backfill, to compute its range again for the pipeline. On Kafka it runs beside the pipeline, and ends; on files the
    /// pipeline runs on behind it, with the --state of an earlier run.
    #[arg(long, value_name = "FILE", conflicts_with = "assignment")]
    backfill: Option<PathBuf>,
    /// Serve /metrics, /healthz and /readyz here, as in 127.0.0.1:9464.
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,

    /// The folder with the secrets that the spec names, each in <name>/<key>.
    #[arg(long, value_name = "DIR", conflicts_with = "local", help_heading = "On Kafka")]
    secrets: Option<PathBuf>,
    /// Threads that run tasks; each has clients of its own.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), conflicts_with = "local", help_heading = "On Kafka")]
    lanes: u32,
    /// This worker's number; the assignment says which tasks it runs.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "local", help_heading = "On Kafka")]
    worker: u32,
    /// Which task runs where, as JSON; read again when it changes. Without it this worker runs all tasks.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["local", "lanes"], help_heading = "On Kafka")]
    assignment: Option<PathBuf>,
    /// The uid of the cluster that the pipeline is in, which is a part of its identity.
    #[arg(long, value_name = "UID", default_value = "", conflicts_with = "local", help_heading = "On Kafka")]
    cluster: String,
    /// The history that this pipeline is in: a restore begins a new one.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "local", help_heading = "On Kafka")]
    timeline: u32,
    /// Where the operator asks how the worker is and tells it what to do, over TLS.
    #[arg(long, value_name = "ADDRESS", requires_all = [CONTROLLED, "control_tls"], conflicts_with = "local", help_heading = "On Kafka")]
    control: Option<SocketAddr>,
    /// The folder with ca.crt, tls.crt and tls.key of that; read again when they change.
    #[arg(long, value_name = "DIR", requires = "control", help_heading = "On Kafka")]
    control_tls: Option<PathBuf>,
    /// How long it works on after it was told to end, so that its tasks can go to others first.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, requires = "control", help_heading = "On Kafka")]
    leave_within: u64,
    /// Where to write how a backfill ended, as JSON of at most 4000 bytes.
    #[arg(long, value_name = "FILE", requires = "backfill", conflicts_with = "local", help_heading = "On Kafka")]
    report: Option<PathBuf>,

    /// Run on files in place of Kafka.
    #[arg(long, requires = "topics", help_heading = "On files")]
    local: bool,
    /// The folder with one <topic>.jsonl for each source.
    #[arg(long, value_name = "DIR", requires = "local", help_heading = "On files")]
    topics: Option<PathBuf>,
    /// The folder for results; without it they go to standard output.
    #[arg(long, value_name = "DIR", requires = "local", help_heading = "On files")]
    out: Option<PathBuf>,
    /// Wait for more when the files have been read.
    #[arg(long, requires = "local", help_heading = "On files")]
    follow: bool,
}

pub fn run(args: Args, set_log_level: SetLogLevel) -> Outcome {
    let ended = run_to_end(&args, set_log_level);
    let Some(path) = &args.report else { return ended.and_then(done) };
    // Brokers come back, and rights are granted: only a mistake in what was asked for is final for whoever starts it again.
    let ended = ended.map_err(|failure| match failure {
        Failure::Said(lines) => Failure::Error(anyhow!(lines.join("; "))),
        failure => failure,
    });
    let report = match &ended {
        Ok(report) => report.clone().unwrap_or_default(),
        Err(failure) => BackfillReport { errors: failure.lines(), ..BackfillReport::default() },
    };
    let written = write_report(path, &report.json(TERMINATION_BYTES_MAX));
    ended.and_then(done).and(written)
}

/// A backfill that ended is done only if the pipeline has taken all.
fn done(backfill: Option<BackfillReport>) -> Outcome {
    match backfill {
        Some(BackfillReport { taken: false, .. }) => {
            let text = "told to end before the pipeline has taken all that is in the range; begin again to go on";
            Err(anyhow!(text).into())
        }
        Some(_) | None => Ok(()),
    }
}

/// Of a backfill on Kafka: how far it came.
fn run_to_end(args: &Args, set_log_level: SetLogLevel) -> Result<Option<BackfillReport>, Failure> {
    let pipeline = pipeline(&args.file)?;
    let plan = Arc::new(plan(&args.file, &pipeline, args.plan.as_deref())?);
    // Removed when the run ends.
    let temporary = tempfile::tempdir().context("make a temporary state folder")?;
    let state = args.state.clone().unwrap_or_else(|| temporary.path().to_owned());
    let told_to_end = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&told_to_end)).context("listen to signals")?;
    }
    if let (true, Some(topics)) = (args.local, args.topics.clone()) {
        let ignored = unserved::ignored_locally(&pipeline);
        let ignored: Vec<String> = ignored.iter().map(|(path, instead)| format!("{path} ({instead})")).collect();
        tracing::info!("a local run does not use {}", ignored.join(", "));
        let files =
            FileLogConfig { topics, out: args.out.clone(), state, follow: args.follow, missing_is_empty: false };
        if let Some(file) = &args.backfill {
            backfill::local(file, (&pipeline, &plan), &files, &told_to_end)?;
        }
        let exit = local(&pipeline, &plan, files, args.metrics, &told_to_end)?;
        tracing::info!(?exit, "run ended");
        return Ok(None);
    }
    on_kafka(args, &pipeline, plan, &state, &told_to_end, set_log_level)
}

/// Runs a worker on Kafka until it is told to stop.
fn on_kafka(
    args: &Args,
    pipeline: &Pipeline,
    plan: Arc<Plan>,
    state: &Path,
    told_to_end: &AtomicBool,
    set_log_level: SetLogLevel,
) -> Result<Option<BackfillReport>, Failure> {
    let mut job = job(pipeline, plan, args.secrets.as_deref(), (&args.cluster, args.timeline))?;
    let (mut records_per_second, mut pinned) = (None, None);
    if let Some(file) = &args.backfill {
        let beside = backfill::beside(file, pipeline, job, args.control.is_some())?;
        (job, records_per_second, pinned) = (beside.job, beside.records_per_second, Some(beside.pinned));
    }
    let (kafka, secrets) = (pipeline.spec.kafka.clone(), args.secrets.clone());
    let config = WorkerConfig {
        reread: Arc::new(move || connection(&kafka, secrets.as_deref())),
        worker: args.worker,
        lanes: args.lanes,
        assignment: args.assignment.clone(),
        control: args.control.zip(args.control_tls.clone()).map(|(address, dir)| ControlConfig { address, dir }),
        leave_within_ms: args.leave_within.saturating_mul(1_000),
        records_per_second,
        pinned,
        engine: EngineConfig {
            isolate: true,
            epoch_timeout_ms: Some(u64::from(TRANSACTION_TIMEOUT_MS)),
            storage: job.storage.clone(),
            timeline: job.timeline,
            ..engine_config(pipeline, state)
        },
        memory: Memory::found(),
        snapshots: SnapshotRules {
            after_bytes: pipeline.spec.state.snapshots.after.bytes(),
            keep: pipeline.spec.state.snapshots.keep as usize,
        },
        job,
        set_log_level,
    };
    let (metrics, ready) = (Arc::new(Metrics::new().context("register metrics")?), Arc::new(AtomicBool::new(false)));
    let _server = serve(args.metrics, &metrics, &ready)?;
    let ended = worker::run(&config, &metrics, &ready, told_to_end);
    ended.map_err(|error| match error.downcast::<Findings>() {
        Ok(Findings(findings)) => Failure::Said(findings),
        Err(error) => Failure::Error(error),
    })
}

/// A pipeline with its cluster, and the secrets to get there.
pub fn job(
    pipeline: &Pipeline,
    plan: Arc<Plan>,
    secrets: Option<&Path>,
    (cluster, timeline): (&str, u32),
) -> Result<Job, Failure> {
    let kafka = &pipeline.spec.kafka;
    let connection = connection(kafka, secrets).map_err(Failure::Said)?;
    let storage = pipeline.spec.state.storage.as_ref().map(|spec| Storage::new(spec, secrets, &plan.prefix));
    let storage = storage.transpose().context("start the client of the storage")?;
    let metadata = &pipeline.metadata;
    Ok(Job {
        timeline: Timeline(timeline),
        storage,
        owner: Owner {
            cluster: cluster.to_owned(),
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            uid: metadata.uid.clone().unwrap_or_default(),
        },
        adopt: metadata.annotations.get(ADOPT).is_some_and(|prefix| *prefix == plan.prefix),
        connection,
        internal: internal_topics(kafka),
        plan,
    })
}

pub(super) fn engine_config(pipeline: &Pipeline, state: &Path) -> EngineConfig {
    let memory = Memory::found();
    EngineConfig {
        state_dir: state.to_owned(),
        commit_interval_ms: pipeline.spec.delivery.commit_interval.ms().unsigned_abs(),
        batch_records: BATCH_RECORDS,
        records_per_second: None,
        waiting_rows_max: memory.waiting_rows(),
        budget: StateBudget::new(memory.cache_bytes(), memory.write_buffer_bytes()),
        isolate: false,
        storage: None,
        timeline: Timeline(1),
        epoch_timeout_ms: None,
    }
}

fn serve(
    address: Option<SocketAddr>,
    metrics: &Arc<Metrics>,
    ready: &Arc<AtomicBool>,
) -> anyhow::Result<Option<Server>> {
    let Some(address) = address else { return Ok(None) };
    let server = http::serve(address, Arc::clone(metrics), Arc::clone(ready))?;
    tracing::info!(address = %server.address, "serving /metrics, /healthz and /readyz");
    Ok(Some(server))
}

/// Runs a plan on files until it has ended or is told to stop.
pub fn local(
    pipeline: &Pipeline,
    plan: &Arc<Plan>,
    files: FileLogConfig,
    metrics_address: Option<SocketAddr>,
    stop: &AtomicBool,
) -> anyhow::Result<Exit> {
    let log = FileLog::open(files.clone())?;
    let stored = stored_plan(&files.state)?;
    let (metrics, ready) = (Arc::new(Metrics::new().context("register metrics")?), Arc::new(AtomicBool::new(false)));
    let _server = serve(metrics_address, &metrics, &ready)?;
    let mut engine = Engine::start(Arc::clone(plan), log, engine_config(pipeline, &files.state), metrics)?;
    if let Some(stored) = stored {
        check_state_fits(&stored, plan, &engine, &files.state)?;
    }
    write_json(&plan_file(&files.state), plan.as_ref())?;
    ready.store(true, Ordering::Relaxed);
    Ok(engine.run(stop)?)
}

fn plan_file(state: &Path) -> PathBuf {
    state.join("plan.json")
}

/// The plan that wrote the state, if there is one.
pub(super) fn stored_plan(state: &Path) -> anyhow::Result<Option<Plan>> {
    read_json(&plan_file(state))
}

/// State belongs to the plan that wrote it: another plan may go on with it only where it fits. Rows between stages are
/// no matter here: a run on files ends when none are left.
fn check_state_fits(old: &Plan, new: &Plan, engine: &Engine<FileLog>, dir: &Path) -> anyhow::Result<()> {
    let waiting = |operator: &str| {
        let totals = engine.running().flat_map(|task| task.totals());
        totals.filter(|(name, _)| name == operator).map(|(_, totals)| totals.waiting).sum::<u64>()
    };
    let line = |Misfit { what, operator, fit }: Misfit| match fit {
        Fit::Kept => None,
        Fit::KeptIfEmpty(why) => (waiting(&operator?) > 0).then(|| format!("{what}: {why}")),
        Fit::Lost(why) => Some(format!("{what}: {why}")),
    };
    let misfits: Vec<String> = state::misfits(old, new).into_iter().filter_map(line).collect();
    if !misfits.is_empty() {
        bail!(
            "the state in {} does not fit the pipeline any more; give another --state to begin anew:\n  {}",
            dir.display(),
            misfits.join("\n  ")
        );
    }
    Ok(())
}

//! `millrace run`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use millrace_core::plan::{Plan, StateLayout};
use millrace_crds::unserved;
use millrace_plan::state::{self, Fit};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::{Outcome, compile, pipeline};
use crate::engine::{BATCH_RECORDS, Engine, EngineConfig, Exit, WAITING_ROWS_MAX};
use crate::http;
use crate::log::file::{FileLog, FileLogConfig};
use crate::metrics::Metrics;

/// Defaults of a local run: a laptop's share.
const CACHE_BYTES: usize = 256 << 20;
const WRITE_BUFFER_BYTES: usize = 256 << 20;

#[derive(clap::Args)]
pub struct Args {
    /// The pipeline's file.
    #[arg(short, long)]
    file: PathBuf,
    /// Run on files in place of Kafka.
    #[arg(long, requires = "topics")]
    local: bool,
    /// The folder with one <topic>.jsonl for each source.
    #[arg(long, value_name = "DIR")]
    topics: Option<PathBuf>,
    /// The folder for results; without it they go to standard output.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The folder for state, to go on from after a stop or a crash; without it a temporary one.
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Wait for more when the files have been read.
    #[arg(long)]
    follow: bool,
    /// Serve /metrics, /healthz and /readyz here, as in 127.0.0.1:9464.
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
}

pub fn run(args: Args) -> Outcome {
    let pipeline = pipeline(&args.file)?;
    let plan = compile(&args.file, &pipeline)?;
    let (true, Some(topics)) = (args.local, args.topics) else {
        return Err(anyhow::anyhow!(
            "running on Kafka is not available in this version: add --local --topics DIR to run on files"
        )
        .into());
    };
    let ignored = unserved::ignored_locally(&pipeline);
    let ignored: Vec<String> = ignored.iter().map(|(path, instead)| format!("{path} ({instead})")).collect();
    tracing::info!("a local run does not use {}", ignored.join(", "));
    // Removed when the run ends.
    let temporary = tempfile::tempdir().context("make a temporary state folder")?;
    let state = args.state.unwrap_or_else(|| temporary.path().to_owned());
    let files = FileLogConfig { topics, out: args.out, state, follow: args.follow, missing_is_empty: false };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("listen to signals")?;
    }
    let exit = local(&plan, files, args.metrics, &stop)?;
    tracing::info!(?exit, "run ended");
    Ok(())
}

/// Runs a plan on files until it has ended or is told to stop.
pub fn local(
    plan: &Plan,
    files: FileLogConfig,
    metrics_address: Option<SocketAddr>,
    stop: &AtomicBool,
) -> anyhow::Result<Exit> {
    let log = FileLog::open(files.clone())?;
    let stored = stored_plan(&files.state)?;
    let metrics = Arc::new(Metrics::new().context("register metrics")?);
    let ready = Arc::new(AtomicBool::new(false));
    let server =
        metrics_address.map(|address| http::serve(address, Arc::clone(&metrics), Arc::clone(&ready))).transpose()?;
    if let Some(server) = &server {
        tracing::info!(address = %server.address, "serving /metrics, /healthz and /readyz");
    }
    let config = EngineConfig {
        state_dir: files.state.clone(),
        commit_interval_ms: plan.commit_interval_ms,
        batch_records: BATCH_RECORDS,
        waiting_rows_max: WAITING_ROWS_MAX,
        cache_bytes: CACHE_BYTES,
        write_buffer_bytes: WRITE_BUFFER_BYTES,
    };
    let mut engine = Engine::start(plan, log, config, metrics)?;
    if let Some(stored) = stored {
        check_state_fits(&stored, plan, &engine, &files.state)?;
    }
    store_plan(&files.state, plan)?;
    ready.store(true, Ordering::Relaxed);
    Ok(engine.run(stop)?)
}

fn plan_file(state: &Path) -> PathBuf {
    state.join("plan.json")
}

/// The plan that wrote the state, if there is one.
fn stored_plan(state: &Path) -> anyhow::Result<Option<Plan>> {
    let path = plan_file(state);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e).with_context(|| format!("read {}", path.display())),
    };
    serde_json::from_str(&text).map(Some).with_context(|| format!("read {}", path.display()))
}

/// State belongs to the plan that wrote it: another plan may go on with it only where its layouts fit. State that
/// nothing uses any more is no obstacle.
fn check_state_fits(old: &Plan, new: &Plan, engine: &Engine<FileLog>, dir: &Path) -> anyhow::Result<()> {
    let waiting = |operator: &str| {
        let totals = engine.tasks().iter().flat_map(|task| task.totals());
        totals.filter(|(name, _)| name == operator).map(|(_, totals)| totals.waiting).sum::<u64>()
    };
    let misfit = |layout: &StateLayout| match state::fit(layout, &new.state) {
        Fit::Kept => None,
        Fit::KeptIfEmpty(why) => (waiting(&layout.operator) > 0).then(|| format!("{}: {why}", layout.operator)),
        Fit::Lost(why) => {
            let used = new.state.iter().any(|l| l.operator == layout.operator);
            used.then(|| format!("{}: {why}", layout.operator))
        }
    };
    let mut misfits: Vec<String> = old.state.iter().filter_map(misfit).collect();
    for source in &old.sources {
        if let Some(now) = new.source(&source.name).filter(|now| now.topic != source.topic) {
            misfits.push(format!("source '{}' read topic '{}' and reads '{}' now", now.name, source.topic, now.topic));
        }
    }
    if !misfits.is_empty() {
        bail!(
            "the state in {} does not fit the pipeline any more; give another --state to begin anew:\n  {}",
            dir.display(),
            misfits.join("\n  ")
        );
    }
    Ok(())
}

fn store_plan(state: &Path, plan: &Plan) -> anyhow::Result<()> {
    let path = plan_file(state);
    let next = path.with_extension("next");
    let text = serde_json::to_vec_pretty(plan).context("write the plan")?;
    std::fs::write(&next, text)
        .and_then(|()| std::fs::rename(&next, &path))
        .with_context(|| format!("write {}", path.display()))
}

//! The command line. Exit codes: 0 done, 1 failed, 2 mistakes in the spec, in the command, or in what the cluster has
//! for the pipeline.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::{Parser, Subcommand};
use millrace_crds::check::{self, Mistake};
use millrace_crds::pipeline::Pipeline;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing_subscriber::{EnvFilter, reload};

use crate::worker::SetLogLevel;

mod backfill;
mod cleanup;
mod compile;
mod connection;
mod diff;
mod explain;
mod preflight;
mod run;
mod savepoint;
mod snapshot;
mod test;
mod validate;

pub use test::differences;

const FAILED: u8 = 1;
const MISTAKES: u8 = 2;

/// Streaming pipelines: from a Pipeline document to records.
#[derive(Parser)]
#[command(name = "millrace", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Logs as JSON, one object a line.
    #[arg(long, global = true)]
    log_json: bool,
    /// What to log, as in `info` or `millrace_runtime=debug`.
    #[arg(long, global = true, default_value = "info")]
    log_level: String,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a pipeline.
    Run(run::Args),
    /// Checks a pipeline and prints every mistake.
    Validate(validate::Args),
    /// Checks a pipeline against its Kafka, without disturbing anything, and prints every finding.
    Preflight(preflight::Args),
    /// Compiles a pipeline from standard input, within limits: for the operator.
    Compile(compile::Args),
    /// Deletes what a pipeline made in Kafka: its own topics and groups. What it wrote to topics of the user stays.
    Cleanup(cleanup::Args),
    /// Lists and verifies the snapshots of a pipeline's tasks.
    Snapshot(snapshot::Args),
    /// Writes, deletes and verifies savepoints.
    Savepoint(savepoint::Args),
    /// Begins a new timeline of a pipeline with a savepoint, while no worker runs.
    Restore(savepoint::RestoreArgs),
    /// Prints the plan of a pipeline.
    Explain(explain::Args),
    /// Says what an edit of a pipeline does.
    Diff(diff::Args),
    /// Runs cases: folders of input and expected records.
    Test(test::Args),
}

/// Why a command did not do what it should.
enum Failure {
    /// Of the user's spec: all of them.
    Mistakes(PathBuf, Vec<Mistake>),
    /// What the user has to correct, one a line.
    Said(Vec<String>),
    /// What was said already.
    Reported,
    Error(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Error(error)
    }
}

impl Failure {
    /// One line for each thing that is wrong.
    fn lines(&self) -> Vec<String> {
        match self {
            Self::Mistakes(_, mistakes) => mistakes.iter().map(ToString::to_string).collect(),
            Self::Said(lines) => lines.clone(),
            Self::Reported => Vec::new(),
            Self::Error(error) => vec![format!("{error:#}")],
        }
    }
}

type Outcome = Result<(), Failure>;

pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // clap's own text, on its own stream, with its own exit code: 0 for help, 2 for a wrong command.
        Err(error) => error.exit(),
    };
    let filter = match EnvFilter::try_new(&cli.log_level) {
        Ok(filter) => filter,
        Err(error) => {
            eprintln!("error: --log-level {}: {error}", cli.log_level);
            return ExitCode::from(MISTAKES);
        }
    };
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let set_log_level = if cli.log_json {
        let logs = logs.json().with_filter_reloading();
        let filter = logs.reload_handle();
        logs.init();
        set_log_level(cli.log_level, move |next| filter.reload(next))
    } else {
        let logs = logs.with_target(false).with_filter_reloading();
        let filter = logs.reload_handle();
        logs.init();
        set_log_level(cli.log_level, move |next| filter.reload(next))
    };
    let outcome = match cli.command {
        Command::Run(args) => run::run(args, set_log_level),
        Command::Validate(args) => validate::run(&args),
        Command::Preflight(args) => preflight::run(&args),
        Command::Compile(args) => compile::run(&args),
        Command::Cleanup(args) => cleanup::run(&args),
        Command::Snapshot(args) => snapshot::run(&args),
        Command::Savepoint(args) => savepoint::run(&args),
        Command::Restore(args) => savepoint::restored(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Test(args) => test::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Reported) => ExitCode::from(FAILED),
        Err(Failure::Said(mistakes)) => {
            mistakes.iter().for_each(|mistake| eprintln!("error: {mistake}"));
            ExitCode::from(MISTAKES)
        }
        Err(Failure::Error(error)) => {
            eprintln!("error: {error:#}");
            ExitCode::from(FAILED)
        }
        Err(Failure::Mistakes(file, mistakes)) => {
            let s = if mistakes.len() == 1 { "" } else { "s" };
            eprintln!("{}: {} mistake{s}", file.display(), mistakes.len());
            mistakes.iter().for_each(|mistake| eprintln!("  {mistake}"));
            ExitCode::from(MISTAKES)
        }
    }
}

/// Changes what is logged while the process runs.
fn set_log_level(
    first: String,
    reload: impl Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync + 'static,
) -> SetLogLevel {
    Arc::new(move |level| {
        let level = level.unwrap_or(&first);
        let filter = EnvFilter::try_new(level).map_err(|error| error.to_string());
        match filter.and_then(|filter| reload(filter).map_err(|error| error.to_string())) {
            Ok(()) => tracing::info!(level, "logs at another level"),
            Err(error) => tracing::error!(level, error, "cannot log at this level"),
        }
    })
}

/// Reads a file as a document.
fn document(file: &Path) -> Result<serde_json::Value, Failure> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    serde_saphyr::from_str(&text).map_err(|error| {
        let hint = "correct the YAML; `kubectl apply --dry-run=client` reads the same";
        Failure::Mistakes(file.to_owned(), vec![Mistake::new("", None, format!("is not YAML: {error}"), hint)])
    })
}

/// Reads and checks the shape of a pipeline.
fn pipeline(file: &Path) -> Result<Pipeline, Failure> {
    check::parse(&document(file)?).map_err(|mistakes| Failure::Mistakes(file.to_owned(), mistakes))
}

/// The plan of a pipeline: the stored one, as it is, or compiled.
fn plan(file: &Path, pipeline: &Pipeline, stored: Option<&Path>) -> Result<millrace_core::plan::Plan, Failure> {
    let Some(path) = stored else { return compile(file, pipeline) };
    let text = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
    Ok(compile::stored(&text).with_context(|| format!("read {}", path.display()))?)
}

/// Compiles a pipeline; warnings go to the log.
fn compile(file: &Path, pipeline: &Pipeline) -> Result<millrace_core::plan::Plan, Failure> {
    let compiled = millrace_plan::compile(pipeline).map_err(|mistakes| Failure::Mistakes(file.to_owned(), mistakes))?;
    compiled.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    Ok(compiled.plan)
}

/// What a file of ours holds, if it is there.
fn read_json<T: DeserializeOwned>(path: &Path) -> anyhow::Result<Option<T>> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        read => read.with_context(|| format!("read {}", path.display()))?,
    };
    serde_json::from_str(&text).map(Some).with_context(|| format!("read {}", path.display()))
}

/// Writes a file of ours, whole or not at all.
fn write_json<T: Serialize>(path: &Path, value: &T) -> anyhow::Result<()> {
    let next = path.with_extension("next");
    let text = serde_json::to_vec_pretty(value).with_context(|| format!("write {}", path.display()))?;
    std::fs::write(&next, text)
        .and_then(|()| std::fs::rename(&next, path))
        .with_context(|| format!("write {}", path.display()))
}

/// `UPDATE=1`: write what came out as what is expected.
#[expect(clippy::disallowed_methods, reason = "the documented switch of golden files")]
fn update_requested() -> bool {
    std::env::var_os("UPDATE").is_some_and(|value| value == "1")
}

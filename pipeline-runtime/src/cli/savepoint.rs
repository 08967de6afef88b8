//! `millrace savepoint` and `millrace restore`.

use std::sync::Arc;

use anyhow::Context;
use millrace_core::report::{RestoreReport, SavepointReport, TERMINATION_BYTES_MAX};
use serde::Serialize;

use super::preflight::{Args as Common, write_report};
use super::run::job;
use super::{Failure, Outcome, pipeline, plan};
use crate::worker::Job;
use crate::worker::savepoint::restore::{Wish, restore};
use crate::worker::savepoint::{self, write::write};

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Puts a savepoint together of what the workers have cut for it: for the operator.
    Write {
        #[command(flatten)]
        common: Common,
        /// Of the cut.
        #[arg(long)]
        id: String,
    },
    /// Deletes a savepoint. Files that something else needs stay.
    Delete {
        #[command(flatten)]
        common: Common,
        /// Of the savepoint.
        #[arg(long)]
        id: String,
        /// No worker of the pipeline runs: delete the files that nothing else needs at once.
        #[arg(long)]
        unused: bool,
    },
    /// Says whether a savepoint is whole, and whether its sources still hold what follows it.
    Verify {
        #[command(flatten)]
        common: Common,
        /// Of its document, as in s3://bucket/…/savepoint.json.
        #[arg(long, value_name = "URL")]
        location: String,
    },
}

#[derive(clap::Args)]
pub struct RestoreArgs {
    #[command(flatten)]
    common: Common,
    /// Of the savepoint's document, as in s3://bucket/…/savepoint.json.
    #[arg(long, value_name = "URL")]
    savepoint: String,
    /// What was committed behind the savepoint may be written to the sinks a second time.
    #[arg(long)]
    append: bool,
    /// Only say what is wrong.
    #[arg(long)]
    check: bool,
}

pub fn run(args: &Args) -> Outcome {
    let (common, done) = match &args.command {
        Command::Write { common, id } => (common, with_job(common, |job| write(job, id))),
        Command::Delete { common, id, unused } => (common, with_job(common, |job| savepoint::delete(job, id, *unused))),
        Command::Verify { common, location } => (common, with_job(common, |job| savepoint::verify(job, location))),
    };
    let failed = |errors| SavepointReport { errors, ..SavepointReport::default() };
    let mistakes = |report: &SavepointReport| report.errors.iter().chain(&report.lost).cloned().collect();
    tell(common, done, failed, mistakes, SavepointReport::json)
}

pub fn restored(args: &RestoreArgs) -> Outcome {
    let wish = Wish { location: &args.savepoint, append: args.append, check: args.check };
    let done = with_job(&args.common, |job| restore(job, wish));
    let failed = |errors| RestoreReport { errors, ..RestoreReport::default() };
    tell(&args.common, done, failed, |report| report.errors.clone(), RestoreReport::json)
}

/// Does something about a pipeline with its cluster.
pub fn with_job<T>(args: &Common, work: impl FnOnce(&Job) -> anyhow::Result<T>) -> Result<T, Failure> {
    let pipeline = pipeline(&args.file)?;
    let plan = Arc::new(plan(&args.file, &pipeline, args.plan.as_deref())?);
    Ok(work(&job(&pipeline, plan, args.secrets.as_deref(), (&args.cluster, args.timeline))?)?)
}

/// To a person what was done, or what is wrong; to the operator a report.
fn tell<T: Serialize>(
    args: &Common,
    done: Result<T, Failure>,
    failed: impl FnOnce(Vec<String>) -> T,
    mistakes: impl FnOnce(&T) -> Vec<String>,
    short: impl FnOnce(&T, usize) -> String,
) -> Outcome {
    let Some(path) = &args.report else {
        let report = done?;
        println!("{}", serde_json::to_string_pretty(&report).context("write the report")?);
        let mistakes = mistakes(&report);
        return if mistakes.is_empty() { Ok(()) } else { Err(Failure::Said(mistakes)) };
    };
    let report = done.unwrap_or_else(|failure| failed(failure.lines()));
    mistakes(&report).iter().for_each(|mistake| eprintln!("error: {mistake}"));
    write_report(path, &short(&report, TERMINATION_BYTES_MAX))
}

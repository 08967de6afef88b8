//! `millrace cleanup`.

use std::path::PathBuf;
use std::sync::Arc;

use millrace_core::report::{CleanupReport, TERMINATION_BYTES_MAX};

use super::preflight::{self, write_report};
use super::run::job;
use super::{Failure, Outcome, backfill, pipeline, plan};
use crate::worker::cleanup::clean;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    of: preflight::Args,
    /// A Backfill: deletes what it made, and nothing of the pipeline.
    #[arg(long, value_name = "FILE")]
    backfill: Option<PathBuf>,
}

pub fn run(args: &Args) -> Outcome {
    let cleaned = cleaned(args);
    let Some(path) = &args.of.report else {
        let report = cleaned?;
        report.deleted.iter().for_each(|name| println!("deleted {name}"));
        report.left.iter().for_each(|name| println!("left    {name}"));
        return if report.errors.is_empty() { Ok(()) } else { Err(Failure::Said(report.errors)) };
    };
    let report =
        cleaned.unwrap_or_else(|failure| CleanupReport { errors: failure.lines(), ..CleanupReport::default() });
    report.errors.iter().for_each(|error| eprintln!("error: {error}"));
    write_report(path, &report.json(TERMINATION_BYTES_MAX))
}

fn cleaned(Args { of, backfill }: &Args) -> Result<CleanupReport, Failure> {
    let pipeline = pipeline(&of.file)?;
    let plan = Arc::new(plan(&of.file, &pipeline, of.plan.as_deref())?);
    let live = job(&pipeline, plan, of.secrets.as_deref(), (&of.cluster, of.timeline))?;
    Ok(clean(&match backfill {
        Some(file) => backfill::made(file, &pipeline, live)?,
        None => live,
    }))
}

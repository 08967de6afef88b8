//! `millrace cleanup`.

use std::sync::Arc;

use millrace_core::report::{CleanupReport, TERMINATION_BYTES_MAX};

use super::preflight::{Args, write_report};
use super::run::job;
use super::{Failure, Outcome, pipeline, plan};
use crate::worker::cleanup::clean;

pub fn run(args: &Args) -> Outcome {
    let cleaned = cleaned(args);
    let Some(path) = &args.report else {
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

fn cleaned(args: &Args) -> Result<CleanupReport, Failure> {
    let pipeline = pipeline(&args.file)?;
    let plan = Arc::new(plan(&args.file, &pipeline, args.plan.as_deref())?);
    Ok(clean(&job(&pipeline, plan, args.secrets.as_deref(), (&args.cluster, args.timeline))?))
}

//! `millrace preflight`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use millrace_core::report::{PreflightReport, TERMINATION_BYTES_MAX};

use super::run::job;
use super::{Failure, Outcome, pipeline, plan};
use crate::worker::preflight::{self, Depth, Findings};

#[derive(clap::Args)]
pub struct Args {
    /// The pipeline's file.
    #[arg(short, long)]
    pub file: PathBuf,
    /// A plan that was compiled before, to be taken as it is.
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// The folder with the secrets that the spec names, each in <name>/<key>.
    #[arg(long, value_name = "DIR")]
    pub secrets: Option<PathBuf>,
    /// The uid of the cluster that the pipeline is in, which is a part of its identity.
    #[arg(long, value_name = "UID", default_value = "")]
    pub cluster: String,
    /// The history that the pipeline is in: a restore begins a new one.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub timeline: u32,
    /// Where to write what was found, as JSON of at most 4000 bytes; then the exit code is 0 whatever it was.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

pub fn run(args: &Args) -> Outcome {
    let checked = check(args);
    let Some(path) = &args.report else { return print(checked?) };
    let report = match checked {
        Ok(report) => report.told(),
        Err(failure) => PreflightReport { errors: failure.lines(), ..PreflightReport::default() },
    };
    for (what, texts) in [("error", &report.errors), ("warning", &report.warnings)] {
        texts.iter().for_each(|text| eprintln!("{what}: {text}"));
    }
    write_report(path, &report.json(TERMINATION_BYTES_MAX))
}

fn check(args: &Args) -> Result<preflight::Report, Failure> {
    let pipeline = pipeline(&args.file)?;
    let plan = Arc::new(plan(&args.file, &pipeline, args.plan.as_deref())?);
    let job = job(&pipeline, plan, args.secrets.as_deref(), (&args.cluster, args.timeline))?;
    Ok(preflight::check(&job, Depth::Thorough).context("look at the cluster")?)
}

pub fn write_report(path: &Path, text: &str) -> Outcome {
    Ok(std::fs::write(path, text).with_context(|| format!("write {}", path.display()))?)
}

fn print(report: preflight::Report) -> Outcome {
    report.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    let seen = report.seen.clone();
    report.pass().map_err(|Findings(errors)| Failure::Said(errors))?;
    println!("ok");
    let widths = [0, 1].map(|i| seen.iter().map(|row| row[i].len()).max().unwrap_or(0));
    for [what, name, like] in &seen {
        println!("{what:0$}  {name:1$}  {like}", widths[0], widths[1]);
    }
    Ok(())
}

//! `millrace preflight`.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;

use super::run::job;
use super::{Failure, Outcome, compile, pipeline};
use crate::worker::preflight::{self, Depth, Findings};

#[derive(clap::Args)]
pub struct Args {
    /// The pipeline's file.
    #[arg(short, long)]
    file: PathBuf,
    /// The folder with the secrets that the spec names, each in <name>/<key>.
    #[arg(long, value_name = "DIR")]
    secrets: Option<PathBuf>,
}

pub fn run(args: &Args) -> Outcome {
    let pipeline = pipeline(&args.file)?;
    let plan = Arc::new(compile(&args.file, &pipeline)?);
    let job = job(&pipeline, plan, args.secrets.as_deref())?;
    let report = preflight::check(&job, Depth::Thorough).context("look at the cluster")?;
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

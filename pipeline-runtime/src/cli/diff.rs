//! `millrace diff`.

use std::path::PathBuf;

use anyhow::anyhow;
use millrace_crds::check;
use millrace_plan::diff::{DiffError, diff};

use super::{Failure, Outcome, document, pipeline};

#[derive(clap::Args)]
pub struct Args {
    /// The pipeline as it is to be.
    #[arg(short, long)]
    file: PathBuf,
    /// The pipeline as it is.
    #[arg(long, value_name = "FILE")]
    against: PathBuf,
}

pub fn run(args: &Args) -> Outcome {
    let (old, new) = (pipeline(&args.against)?, pipeline(&args.file)?);
    if old.metadata.name != new.metadata.name || old.metadata.namespace != new.metadata.namespace {
        let error = anyhow!("{} and {} are two pipelines, not an edit", old.metadata.name, new.metadata.name);
        return Err(error.into());
    }
    let frozen = check::parse_edit(&document(&args.against)?, &document(&args.file)?);
    let diff = diff(&old, &new).map_err(|error| match error {
        DiffError::Old(mistakes) => Failure::Mistakes(args.against.clone(), mistakes),
        DiffError::New(mistakes) => Failure::Mistakes(args.file.clone(), mistakes),
    })?;
    print!("{diff}");
    if frozen.is_empty() { Ok(()) } else { Err(Failure::Mistakes(args.file.clone(), frozen)) }
}

//! `millrace validate`.

use std::path::PathBuf;

use super::{Outcome, compile, pipeline};

#[derive(clap::Args)]
pub struct Args {
    /// The pipeline's file.
    #[arg(short, long)]
    file: PathBuf,
}

pub fn run(args: &Args) -> Outcome {
    let pipeline = pipeline(&args.file)?;
    compile(&args.file, &pipeline)?;
    println!("{}: valid", args.file.display());
    Ok(())
}

//! `millrace explain`.

use std::path::PathBuf;

use millrace_plan::explain::{Names, explain};

use super::{Outcome, compile, pipeline};

#[derive(clap::Args)]
pub struct Args {
    /// The pipeline's file.
    #[arg(short, long)]
    file: PathBuf,
    /// How operators are named: two ways to write the same pipeline agree in `ordinal`.
    #[arg(long, default_value = "full", value_parser = ["full", "ordinal"])]
    names: String,
}

pub fn run(args: &Args) -> Outcome {
    let pipeline = pipeline(&args.file)?;
    let plan = compile(&args.file, &pipeline)?;
    let names = if args.names == "ordinal" { Names::Ordinal } else { Names::Full };
    print!("{}", explain(&plan, names));
    Ok(())
}

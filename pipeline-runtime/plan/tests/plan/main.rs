//! The compiler on whole specs. One binary, because linking DataFusion takes longer than all these tests.
#![expect(clippy::disallowed_methods, reason = "golden files are read and, on demand, written")]

mod diffs;
mod expressions;
mod golden;
mod mistakes;
mod shapes;

use millrace_crds::check;
use millrace_crds::pipeline::Pipeline;
use millrace_plan::{Compiled, compile};

/// A pipeline from YAML whose shape is right.
fn pipeline(yaml: &str) -> Pipeline {
    let document = serde_saphyr::from_str(yaml).expect("YAML");
    check::parse(&document).unwrap_or_else(|mistakes| panic!("{mistakes:#?}"))
}

fn compiled(yaml: &str) -> Compiled {
    compile(&pipeline(yaml)).unwrap_or_else(|mistakes| panic!("{mistakes:#?}"))
}

/// The mistakes as a person sees them, one a line.
fn mistakes_of(yaml: &str) -> Vec<String> {
    match compile(&pipeline(yaml)) {
        Ok(_) => Vec::new(),
        Err(mistakes) => mistakes.iter().map(ToString::to_string).collect(),
    }
}

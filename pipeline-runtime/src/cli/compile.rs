//! `millrace compile`: what an operator asks a child process, so that no spec can hurt anybody but itself.
//!
//! The request comes from standard input, the answer goes to standard output, both as JSON. The process limits itself
//! before it reads a byte. A spec that is too much for it ends it, by a signal or with an exit code that is not 0, and
//! whoever asked says so.

use std::io::{Read, Write};

use anyhow::{Context, ensure};
use millrace_core::plan::{PLAN_FORMAT, Plan};
use millrace_core::report::{CompileRequest, Compiled, Mistake, StateFit, hex};
use millrace_crds::check;
use millrace_plan::state::fit_of;
use rustix::process::{Resource, Rlimit, setrlimit};

use super::Outcome;
use crate::worker::plan_fingerprint;

/// A cluster stores no object above 1.5 MiB, and the plan that runs comes along.
const REQUEST_BYTES_MAX: u64 = 8 << 20;

#[derive(clap::Args)]
pub struct Args {
    /// How much address space the process may have, in MiB.
    #[arg(long, value_name = "MIB")]
    memory_max_mib: Option<u64>,
    /// How long it may compute, in seconds.
    #[arg(long, value_name = "S")]
    cpu_max_seconds: Option<u64>,
}

pub fn run(args: &Args) -> Outcome {
    limit(Resource::As, args.memory_max_mib.map(|mib| mib << 20)).context("limit the memory")?;
    limit(Resource::Cpu, args.cpu_max_seconds).context("limit the computing time")?;
    let mut text = Vec::new();
    std::io::stdin().take(REQUEST_BYTES_MAX + 1).read_to_end(&mut text).context("read the request")?;
    let answer = compiled(&text)?;
    let text = serde_json::to_vec(&answer).context("write the answer")?;
    let mut stdout = std::io::stdout();
    stdout.write_all(&text).and_then(|()| stdout.flush()).context("write the answer")?;
    Ok(())
}

fn limit(resource: Resource, most: Option<u64>) -> std::io::Result<()> {
    if most.is_some() {
        setrlimit(resource, Rlimit { current: most, maximum: most })?;
    }
    Ok(())
}

/// The answer to a request.
fn compiled(request: &[u8]) -> anyhow::Result<Compiled> {
    ensure!(request.len() as u64 <= REQUEST_BYTES_MAX, "the request has more than {REQUEST_BYTES_MAX} bytes");
    let CompileRequest { pipeline, previous } = serde_json::from_slice(request).context("read the request")?;
    let previous = previous.map(serde_json::from_value::<Plan>).transpose().context("read the previous plan")?;
    let compiled = check::parse(&pipeline).and_then(|pipeline| millrace_plan::compile(&pipeline));
    let millrace_plan::Compiled { plan, warnings } = match compiled {
        Ok(compiled) => compiled,
        Err(mistakes) => return Ok(mistaken(mistakes)),
    };
    Ok(Compiled {
        fingerprint: hex(plan_fingerprint(&plan)?),
        state_fingerprint: hex(plan.state_fingerprint),
        warnings,
        mistakes: Vec::new(),
        fit: previous.map_or(StateFit::NoPrevious, |previous| fit_of(&previous, &plan)),
        plan: Some(serde_json::to_value(&plan).context("write the plan")?),
    })
}

fn mistaken(mistakes: Vec<check::Mistake>) -> Compiled {
    let mistake = |check::Mistake { path, value, message, hint }| Mistake { path, value, message, hint };
    Compiled { mistakes: mistakes.into_iter().map(mistake).collect(), ..Compiled::default() }
}

/// A plan that was compiled before, by this release or by one that it can read.
pub fn stored(text: &[u8]) -> anyhow::Result<Plan> {
    /// What every format has.
    #[derive(serde::Deserialize)]
    struct Head {
        format: u32,
    }
    let Head { format } = serde_json::from_slice(text).context("it is no plan")?;
    ensure!(
        format <= PLAN_FORMAT,
        "the plan has format {format}, and this release knows {PLAN_FORMAT}: a newer release compiled it; run that one"
    );
    serde_json::from_slice(text).context("it is no plan of this format")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// An example, with this condition for its orders.
    fn filtered(condition: &str) -> Value {
        let example = include_str!("../../../examples/orders-enriched/pipeline.yaml");
        let mut document: Value = serde_saphyr::from_str(example).expect("the example is YAML");
        document["spec"]["steps"][0]["project"]["where"] = json!(condition);
        document
    }

    fn answer(pipeline: &Value, previous: &Value) -> Compiled {
        let request = serde_json::to_vec(&json!({"pipeline": pipeline, "previous": previous})).expect("plain data");
        compiled(&request).expect("the request is right")
    }

    #[test]
    fn a_pipeline_gives_its_plan_which_reads_back_and_fits_itself() {
        let first = answer(&filtered("amount > 1"), &Value::Null);
        assert_eq!((&first.mistakes, &first.fit), (&Vec::new(), &StateFit::NoPrevious));
        let plan = first.plan.expect("there are no mistakes");
        let text = serde_json::to_vec(&plan).expect("plain data");
        let read = stored(&text).expect("it was written by us");
        assert_eq!(hex(plan_fingerprint(&read).expect("plain data")), first.fingerprint);
        assert_eq!(hex(read.state_fingerprint), first.state_fingerprint);
        let second = answer(&filtered("amount > 2"), &plan);
        assert_eq!(second.fit, StateFit::Kept);
        assert_ne!(second.fingerprint, first.fingerprint);
        assert_eq!(second.state_fingerprint, first.state_fingerprint);
    }

    #[test]
    fn all_mistakes_come_back_with_their_paths() {
        let mut document = filtered("amount > 1");
        document["spec"]["replicas"] = json!(-1);
        document["spec"]["sinks"][0]["from"] = json!(7);
        let found = answer(&document, &Value::Null);
        let paths: Vec<&str> = found.mistakes.iter().map(|m| m.path.as_str()).collect();
        assert_eq!((paths, found.plan), (vec!["spec.sinks[0].from", "spec.replicas"], None), "in their order");
        let found = answer(&filtered("nobody > 1"), &Value::Null);
        assert_eq!(found.mistakes[0].path, "spec.steps[0].project.where");
    }

    #[test]
    fn a_plan_of_a_newer_release_is_refused() {
        let error = stored(br#"{"format": 99, "somethingNew": true}"#).expect_err("it is newer");
        assert!(error.to_string().contains("format 99, and this release knows 1"), "{error}");
        assert!(stored(b"[]").is_err());
    }
}

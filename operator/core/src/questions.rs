//! What the shell has to find out before a decision, and what it need not.

use millrace_core::report::{Compiled, StateFit};
use serde_json::Value;

use crate::facts::Facts;
use crate::names::Names;
use crate::observed::Compilation;
use crate::render::{Run, Source};
use crate::settings::Settings;

/// The compiled spec, where it is the one that was applied: its plan is stored, and a later release of the compiler must
/// not make another one of it.
pub fn compiled_before(facts: &Facts<'_>) -> Option<Compiled> {
    let applied = &facts.applied.as_ref()?.value;
    let same = applied.generation == facts.generation || applied.spec == facts.observed.pipeline["spec"];
    let plan = stored_plan(facts, &applied.fingerprint).filter(|_| same)?;
    Some(Compiled {
        plan: Some(plan),
        fingerprint: applied.fingerprint.clone(),
        state_fingerprint: applied.state_fingerprint.clone(),
        fit: StateFit::Kept,
        ..Compiled::default()
    })
}

/// The plan that runs, which a new one is compared with.
pub fn running_plan(facts: &Facts<'_>) -> Option<Value> {
    stored_plan(facts, &facts.applied.as_ref()?.value.fingerprint)
}

/// The Secrets that the spec names, and those of the spec that runs.
pub fn secrets(facts: &Facts<'_>) -> Vec<String> {
    let applied = facts.applied.as_ref().and_then(|kept| crate::decide::spec_of(&kept.value.spec, facts));
    let current = facts.parsed.as_ref().ok().map(|pipeline| &pipeline.spec);
    let specs = current.into_iter().chain(&applied);
    let mut names: Vec<String> = specs.flat_map(|spec| crate::render::secrets(&spec.kafka)).collect();
    names.sort();
    names.dedup();
    names
}

/// The workers of a spec that was compiled, to be tried out.
pub fn candidate(facts: &Facts<'_>, settings: &Settings) -> Option<Value> {
    let pipeline = facts.parsed.as_ref().ok()?;
    let Compilation::Done(compiled) = &facts.observed.compilation else { return None };
    compiled.plan.as_ref()?;
    let source = Source { names: &facts.names, settings };
    let spec = &facts.observed.pipeline["spec"];
    let (connection, _) = source.connection(spec, &crate::decide::annotations(facts));
    let applied = facts.applied.as_ref().map(|kept| kept.value.version.as_str());
    let version = pipeline.spec.worker.version.as_deref().or(applied).unwrap_or(&settings.version);
    let run = Run { spec: &pipeline.spec, version, fingerprint: &compiled.fingerprint, connection: &connection };
    Some(source.stateful_set(&run, pipeline.spec.replicas))
}

fn stored_plan(facts: &Facts<'_>, fingerprint: &str) -> Option<Value> {
    let names: &Names = &facts.names;
    let map = facts.child("ConfigMap", &names.plan(fingerprint))?;
    serde_json::from_str(map["data"]["plan.json"].as_str()?).ok()
}

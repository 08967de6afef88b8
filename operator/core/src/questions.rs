//! What the shell has to find out before a decision, and what it need not.

use millrace_core::ids::Timeline;
use millrace_core::report::{Compiled, StateFit};
use serde_json::Value;

use crate::facts::Facts;
use crate::names::{Names, RENDERED};
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

/// Fingerprint and document of what runs, where its plan is stored no more and the Pipeline has another spec by now.
pub fn lost_plan(facts: &Facts<'_>) -> Option<(String, Value)> {
    let applied = &facts.applied.as_ref()?.value;
    let pipeline = &facts.observed.pipeline;
    if stored_plan(facts, &applied.fingerprint).is_some() || applied.spec == pipeline["spec"] {
        return None;
    }
    let mut pipeline = pipeline.clone();
    pipeline["spec"] = applied.spec.clone();
    Some((applied.fingerprint.clone(), pipeline))
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
    let mut names: Vec<String> =
        specs.flat_map(|spec| crate::render::secrets(&spec.kafka, spec.state.storage.as_ref())).collect();
    names.sort();
    names.dedup();
    names
}

/// The workers of a spec that was compiled, to be tried out.
pub fn candidate(facts: &Facts<'_>, compilation: &Compilation, settings: &Settings) -> Option<Value> {
    let pipeline = facts.parsed.as_ref().ok()?;
    let Compilation::Done(compiled) = compilation else { return None };
    compiled.plan.as_ref()?;
    let source = Source { names: &facts.names, settings };
    let spec = &facts.observed.pipeline["spec"];
    let (connection, _) = source.connection(spec, &crate::decide::annotations(facts));
    let applied = facts.applied.as_ref().map(|kept| &kept.value);
    let pinned = applied.map(|applied| applied.version.as_str());
    let version = pipeline.spec.worker.version.as_deref().or(pinned).unwrap_or(&settings.version);
    let timeline = applied.map_or(Timeline(1), |applied| applied.timeline);
    let (spec, fingerprint) = (&pipeline.spec, compiled.fingerprint.as_str());
    let run = Run { spec, version, fingerprint, connection: &connection, timeline };
    Some(source.stateful_set(&run, pipeline.spec.replicas))
}

/// Whether the workers stand in the cluster as they were rendered: then the API server has nothing against them.
pub fn stands(facts: &Facts<'_>, candidate: &Value) -> bool {
    let rendered = |object: &Value| object["metadata"]["annotations"][RENDERED].clone();
    let set = facts.child("StatefulSet", &facts.names.stateful_set());
    set.is_some_and(|set| rendered(set) == rendered(candidate))
}

fn stored_plan(facts: &Facts<'_>, fingerprint: &str) -> Option<Value> {
    let names: &Names = &facts.names;
    let map = facts.child("ConfigMap", &names.plan(fingerprint))?;
    serde_json::from_str(map["data"]["plan.json"].as_str()?).ok()
}

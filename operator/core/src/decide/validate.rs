//! What a spec is worth: all mistakes of shape and meaning, whether its state fits, and what the API server says of its
//! pods.

use millrace_core::report::{Compiled, StateFit};
use millrace_crds::check::{self, Mistake};
use millrace_crds::pipeline::{Pipeline, PipelineSpec, VolumeType};
use serde_json::{Value, json};

use crate::facts::Facts;
use crate::observed::{Admission, Compilation};
use crate::render::template;
use crate::settings::Settings;
use crate::status::Spoken;

/// Longest list of mistakes in a condition; the rest is counted.
const MISTAKES_MAX: usize = 20;

/// What of the annotations the runtime reads.
const ADOPT: &str = "millrace.dev/adopt";

pub enum Verdict<'a> {
    Valid(Box<Valid<'a>>),
    /// It is not known yet.
    Pending,
    Refused(Refusal),
}

/// A spec that can run.
pub struct Valid<'a> {
    pub pipeline: &'a Pipeline,
    /// As the user wrote it.
    pub spec: Value,
    pub compiled: &'a Compiled,
    /// Fingerprint and plan.
    pub plan: (&'a str, &'a Value),
}

pub struct Refusal {
    pub reason: &'static str,
    pub message: String,
    pub next_step: &'static str,
    /// The spec itself is right, and what it asks for is not to be had here.
    pub spec_is_valid: bool,
}

impl Valid<'_> {
    /// Rows that wait in the former plan must leave before this one starts.
    pub fn must_drain(&self) -> bool {
        matches!(self.compiled.fit, StateFit::KeptIfEmpty { .. })
    }
}

impl Verdict<'_> {
    pub fn spoken(&self) -> Spoken {
        match self {
            Self::Valid(_) => Spoken::Valid,
            Self::Pending => Spoken::Pending,
            Self::Refused(Refusal { reason, message, next_step, spec_is_valid }) => {
                Spoken::Refused { reason, message: message.clone(), next_step, spec_is_valid: *spec_is_valid }
            }
        }
    }
}

pub fn verdict<'a>(facts: &'a Facts<'a>, settings: &Settings) -> Verdict<'a> {
    let pipeline = match &facts.parsed {
        Ok(pipeline) => pipeline,
        Err(mistakes) => return invalid(mistakes.iter().map(ToString::to_string).collect()),
    };
    let mut mistakes: Vec<String> = pod_template(pipeline, settings).iter().map(ToString::to_string).collect();
    mistakes.extend(edit(facts, pipeline).iter().map(ToString::to_string));
    let compiled = match &facts.observed.compilation {
        Compilation::Pending if mistakes.is_empty() => return Verdict::Pending,
        Compilation::Pending => return invalid(mistakes),
        Compilation::Failed(why) => {
            let message = format!("the spec could not be compiled: {why}");
            return refused("CompilerFailed", message, "make the statement smaller or split it into steps", false);
        }
        Compilation::Done(compiled) => compiled,
    };
    mistakes.extend(compiled.mistakes.iter().map(spoken));
    let Some(plan) = compiled.plan.as_ref().filter(|_| mistakes.is_empty()) else { return invalid(mistakes) };
    if let Admission::Refused(message) = &facts.observed.admission {
        let message = format!("spec.worker: the API server refuses the pods: {message}");
        return refused("PodsRefused", message, "correct spec.worker", false);
    }
    // Whether it takes up the state of a savepoint, its check says.
    let goes_on = matches!(super::restore::wish(facts, &pipeline.spec), super::restore::Wish::Nothing);
    let former = facts.applied.as_ref().filter(|_| goes_on);
    let another = former.is_some_and(|applied| applied.value.fingerprint != compiled.fingerprint);
    if let (true, Some(message)) = (another, misfit(facts, compiled)) {
        return refused("StateDoesNotFit", message, "undo the edit, or create the pipeline under a new name", true);
    }
    let spec = facts.observed.pipeline["spec"].clone();
    Verdict::Valid(Box::new(Valid { pipeline, spec, compiled, plan: (&compiled.fingerprint, plan) }))
}

/// The spec that runs. What was applied has passed all checks, perhaps those of an earlier release.
pub fn spec_of(spec: &Value, facts: &Facts<'_>) -> Option<PipelineSpec> {
    if *spec == facts.observed.pipeline["spec"] {
        return facts.parsed.as_ref().ok().map(|pipeline| pipeline.spec.clone());
    }
    let document = json!({
        "apiVersion": millrace_crds::pipeline::API_VERSION,
        "kind": millrace_crds::pipeline::KIND,
        "metadata": {"name": facts.names.pipeline, "namespace": facts.names.namespace},
        "spec": spec,
    });
    check::parse(&document).ok().map(|pipeline| pipeline.spec)
}

/// The annotations that the runtime reads.
pub fn annotations(facts: &Facts<'_>) -> Value {
    match facts.observed.pipeline["metadata"]["annotations"][ADOPT].as_str() {
        Some(prefix) => json!({ADOPT: prefix}),
        None => json!({}),
    }
}

/// Why another plan cannot go on with the state of the applied one.
fn misfit(facts: &Facts<'_>, compiled: &Compiled) -> Option<String> {
    let applied = &facts.applied.as_ref()?.value;
    match &compiled.fit {
        StateFit::Lost { reasons } => {
            let reasons = reasons.join("; ");
            Some(format!("the new plan cannot take up the state of the old one, which runs on: {reasons}"))
        }
        // Its ConfigMap was lost, and without it nobody can tell.
        StateFit::NoPrevious if applied.state_fingerprint != compiled.state_fingerprint => {
            Some("the plan that runs is not stored any more, so that nobody can tell whether its state fits".to_owned())
        }
        StateFit::NoPrevious | StateFit::Kept | StateFit::KeptIfEmpty { .. } => None,
    }
}

fn invalid(mistakes: Vec<String>) -> Verdict<'static> {
    let more = mistakes.len().saturating_sub(MISTAKES_MAX);
    let mut message = mistakes.into_iter().take(MISTAKES_MAX).collect::<Vec<_>>().join("\n");
    if more > 0 {
        message.push_str(&format!("\nand {more} more"));
    }
    refused("SpecInvalid", message, "correct the spec; `millrace validate -f` shows the same list", false)
}

fn refused(reason: &'static str, message: String, next_step: &'static str, spec_is_valid: bool) -> Verdict<'static> {
    Verdict::Refused(Refusal { reason, message, next_step, spec_is_valid })
}

fn spoken(mistake: &millrace_core::report::Mistake) -> String {
    let millrace_core::report::Mistake { path, value, message, hint } = mistake.clone();
    Mistake { path, value, message, hint }.to_string()
}

fn pod_template(pipeline: &Pipeline, settings: &Settings) -> Vec<Mistake> {
    let Some(theirs) = &pipeline.spec.worker.pod_template else { return Vec::new() };
    let template = Value::Object(theirs.clone());
    let refusals = template::refusals(&template, settings.allow).into_iter();
    let at = |path: String| format!("spec.worker.podTemplate.{path}");
    refusals.map(|(path, hint)| Mistake::new(at(path), None, "is not allowed by the chart", hint)).collect()
}

/// What an edit may not change; an edit that the API server let through is one that was made while the object was away.
fn edit(facts: &Facts<'_>, pipeline: &Pipeline) -> Vec<Mistake> {
    let Some(applied) = &facts.applied else { return Vec::new() };
    let (old, new) = (json!({"spec": applied.value.spec}), json!({"spec": facts.observed.pipeline["spec"]}));
    let mut mistakes = check::parse_edit(&old, &new);
    let before = spec_of(&applied.value.spec, facts).map(|spec| spec.worker.state.volume);
    let volume = &pipeline.spec.worker.state.volume;
    let persistent = |kind: VolumeType| kind == VolumeType::Persistent;
    if before.is_some_and(|before| before != *volume && (persistent(before.kind) || persistent(volume.kind))) {
        let hint = "undo the edit, or create the pipeline under a new name";
        mistakes.push(Mistake::new("spec.worker.state.volume", None, "cannot change once pods have volumes", hint));
    }
    mistakes
}

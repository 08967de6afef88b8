//! The operator without one of its rules. What it sees, or what it decides, is bent in the simulator, so that the core has
//! no switches.

use millrace_core::ids::Generation;
use millrace_core::report::PreflightReport;
use millrace_operator_core::decision::{Action, Decision};
use millrace_operator_core::names::{COMPONENT_LABEL, PLAN_LABEL, PREFLIGHT, UID_LABEL};
use millrace_operator_core::observed::{Compilation, Observed};
use serde_json::{Value, json};

use crate::api::{label, text};
use crate::oracle::Violation;
use crate::wish::{NAME, fingerprint};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// A generation need not be above what the control log has.
    GenerationNotAboveTheHighest,
    /// Nor the number of a plan.
    PlanNotAboveTheNewest,
    /// Writes don't look at what is there.
    PutWithoutOver,
    /// A preflight passes when it begins.
    ApplyBeforePreflight,
    /// A plan that has a mistake is none the worse.
    MistakesAreIgnored,
    /// Nobody asks whether a plan's state fits.
    FitIsIgnored,
    /// The next plan starts while pods of the former run.
    StartBeforeTheOldAreGone,
    /// Pods go before they have given their tasks back.
    ScaleDownAtOnce,
    /// What a former Pipeline of the name has left is ours.
    FormerIsOurs,
    /// Where no pods are, nothing waits.
    NoPodsMeansDrained,
    /// The status shows more digits.
    StatusWithoutRounding,
    /// A Job is tried again as soon as it has failed.
    RetryWithoutBackoff,
    /// A Pipeline that must not go silently may.
    NoFinalizer,
    /// A deletion takes as long as it takes.
    NoDeadline,
    /// Pods are replaced when a spec is wrong.
    InvalidSpecStops,
}

impl Mutant {
    pub const ALL: [Self; 15] = [
        Self::GenerationNotAboveTheHighest,
        Self::PlanNotAboveTheNewest,
        Self::PutWithoutOver,
        Self::ApplyBeforePreflight,
        Self::MistakesAreIgnored,
        Self::FitIsIgnored,
        Self::StartBeforeTheOldAreGone,
        Self::ScaleDownAtOnce,
        Self::FormerIsOurs,
        Self::NoPodsMeansDrained,
        Self::StatusWithoutRounding,
        Self::RetryWithoutBackoff,
        Self::NoFinalizer,
        Self::NoDeadline,
        Self::InvalidSpecStops,
    ];

    /// Whether a violation is this mutant's harm. That it only wedges counts where to go on is what the rule is for.
    pub fn is_caught_by(self, violation: &Violation) -> bool {
        use Violation as V;
        match self {
            Self::GenerationNotAboveTheHighest | Self::PlanNotAboveTheNewest | Self::NoDeadline => {
                matches!(violation, V::Stuck { .. })
            }
            Self::PutWithoutOver => {
                matches!(violation, V::GenerationWentBack | V::WrongPlan { .. } | V::Foreign { .. })
            }
            Self::ApplyBeforePreflight => *violation == V::NotChecked,
            Self::MistakesAreIgnored => *violation == V::InvalidApplied,
            Self::FitIsIgnored => *violation == V::StateLost,
            Self::StartBeforeTheOldAreGone => {
                matches!(violation, V::WrongPlan { .. } | V::PlansMixed { .. })
            }
            Self::ScaleDownAtOnce => matches!(violation, V::TakenAway { .. }),
            Self::FormerIsOurs => matches!(violation, V::Foreign { .. }),
            Self::NoPodsMeansDrained => *violation == V::NotDrained,
            Self::StatusWithoutRounding => matches!(violation, V::NotQuiet { .. }),
            Self::RetryWithoutBackoff => *violation == V::NoBackoff,
            Self::NoFinalizer => *violation == V::LeftSilently,
            Self::InvalidSpecStops => *violation == V::Disturbed,
        }
    }

    /// Bends what the operator sees.
    pub fn see(self, mut observed: Observed) -> Observed {
        self.bend(&mut observed);
        observed
    }

    fn bend(self, seen: &mut Observed) {
        match self {
            Self::GenerationNotAboveTheHighest => {
                seen.reports.values_mut().for_each(|report| report.highest_generation = Generation(0));
                reports_of_preflights(seen, |report| report.highest_generation = Generation(0));
            }
            Self::PlanNotAboveTheNewest => {
                seen.reports.values_mut().for_each(|report| report.newest_plan = None);
                reports_of_preflights(seen, |report| report.newest_plan = None);
            }
            Self::ApplyBeforePreflight => pass_preflights(seen),
            Self::MistakesAreIgnored => ignore_mistakes(seen),
            Self::FitIsIgnored => {
                if let Compilation::Done(compiled) = &mut seen.compilation {
                    compiled.fit = millrace_core::report::StateFit::Kept;
                }
            }
            Self::StartBeforeTheOldAreGone => {
                let Compilation::Done(compiled) = &seen.compilation else { return };
                let next = compiled.fingerprint.clone();
                seen.children.retain(|object| !is_worker(object) || label(object, PLAN_LABEL) == next);
                each(seen, "StatefulSet", |set| {
                    if set["spec"]["template"]["metadata"]["labels"][PLAN_LABEL] != next.as_str() {
                        set["spec"]["replicas"] = json!(0);
                        set["status"] = json!({"observedGeneration": set["metadata"]["generation"], "replicas": 0});
                    }
                });
            }
            Self::FormerIsOurs => {
                let uid = seen.pipeline["metadata"]["uid"].clone();
                seen.children.iter_mut().for_each(|object| object["metadata"]["labels"][UID_LABEL] = uid.clone());
            }
            Self::NoPodsMeansDrained => {
                let pods = seen.children.iter().any(is_worker);
                edit(seen, &format!("{NAME}-assignment"), "placed.json", |placed| {
                    placed["drained"] = json!(placed["drained"] == true || !pods);
                });
            }
            Self::StatusWithoutRounding => {
                if seen.pipeline["status"]["lag"].is_string() {
                    seen.pipeline["status"]["lag"] = json!("0.312s");
                }
            }
            Self::RetryWithoutBackoff => each(seen, "Job", |job| {
                if job["status"]["conditions"][0].is_object() {
                    job["status"]["conditions"][0]["lastTransitionTime"] = json!("2000-01-01T00:00:00Z");
                }
            }),
            Self::NoDeadline => {
                if seen.pipeline["metadata"]["deletionTimestamp"].is_string() {
                    seen.pipeline["metadata"]["deletionTimestamp"] = json!("2100-01-01T00:00:00Z");
                }
            }
            Self::PutWithoutOver | Self::ScaleDownAtOnce | Self::NoFinalizer | Self::InvalidSpecStops => {}
        }
    }

    /// Bends what it decides.
    pub fn decide(self, seen: &Observed, decision: &mut Decision) {
        let spec = &seen.pipeline["spec"];
        match self {
            Self::ScaleDownAtOnce => {
                let wanted = spec["replicas"].as_u64().unwrap_or(1);
                let larger = |object: &&Value| {
                    object["kind"] == "StatefulSet" && object["spec"]["replicas"].as_u64() > Some(wanted)
                };
                let set = seen.children.iter().find(larger).filter(|_| spec["desiredState"] == "Running");
                if let Some(set) = set {
                    let (mut object, over) = (set.clone(), Some(text(set, "resourceVersion").to_owned()));
                    object["spec"]["replicas"] = json!(wanted);
                    decision.actions.insert(0, Action::Put { object, over });
                }
            }
            Self::NoFinalizer => decision.actions.retain(|action| match action {
                Action::SetFinalizers { finalizers, .. } => finalizers.is_empty(),
                _ => true,
            }),
            Self::InvalidSpecStops => {
                let refused = decision.status.as_ref().is_some_and(|status| {
                    status.conditions.iter().any(|c| c.kind == "SpecValid" && c.reason == "SpecInvalid")
                });
                let pod = seen.children.iter().find(|object| is_worker(object));
                if let Some(pod) = pod.filter(|_| refused) {
                    decision.actions.push(Action::Delete {
                        api_version: "v1".to_owned(),
                        kind: "Pod".to_owned(),
                        name: text(pod, "name").to_owned(),
                        uid: text(pod, "uid").to_owned(),
                    });
                }
            }
            _ => {}
        }
    }
}

fn is_worker(object: &Value) -> bool {
    object["kind"] == "Pod" && label(object, COMPONENT_LABEL) == "worker"
}

fn each(seen: &mut Observed, kind: &str, change: impl Fn(&mut Value)) {
    seen.children.iter_mut().filter(|object| object["kind"] == kind).for_each(change);
}

/// Changes JSON that a ConfigMap holds.
fn edit(seen: &mut Observed, name: &str, key: &str, change: impl Fn(&mut Value)) {
    each(seen, "ConfigMap", |map| {
        if text(map, "name") == name
            && let Some(mut held) = map["data"][key].as_str().and_then(|text| serde_json::from_str(text).ok())
        {
            change(&mut held);
            map["data"][key] = json!(held.to_string());
        }
    });
}

fn reports_of_preflights(seen: &mut Observed, change: impl Fn(&mut PreflightReport)) {
    each(seen, "Pod", |pod| {
        let said = pod.pointer_mut("/status/containerStatuses/0/state/terminated/message");
        let Some(said) = said else { return };
        if let Some(mut report) = said.as_str().and_then(|text| serde_json::from_str::<PreflightReport>(text).ok()) {
            change(&mut report);
            *said = json!(json!(report).to_string());
        }
    });
}

fn pass_preflights(seen: &mut Observed) {
    let stages = [("s".to_owned(), 2)].into();
    let message = json!(PreflightReport { stages, ..PreflightReport::default() }).to_string();
    seen.children.retain(|object| object["kind"] != "Pod" || label(object, COMPONENT_LABEL) != PREFLIGHT);
    each(seen, "Job", |job| {
        if label(job, COMPONENT_LABEL) == PREFLIGHT {
            let at = "2000-01-01T00:00:00Z";
            let end = json!({"type": "Complete", "status": "True", "lastTransitionTime": at, "message": message});
            job["status"]["conditions"] = json!([end]);
        }
    });
}

fn ignore_mistakes(seen: &mut Observed) {
    if let Compilation::Done(compiled) = &mut seen.compilation
        && !compiled.mistakes.is_empty()
    {
        compiled.mistakes.clear();
        compiled.plan = Some(json!({"plan": 0}));
        compiled.fingerprint = fingerprint(0);
    }
}

//! The operator without one of its rules. What it sees, or what it decides, is bent in the simulator, so that the core has
//! no switches.

use millrace_core::assignment::Assignment;
use millrace_core::ids::Generation;
use millrace_core::report::{PreflightReport, RestoreReport};
use millrace_operator_core::decision::{Action, Decision};
use millrace_operator_core::names::{
    COMPONENT_LABEL, CONTROL_PORT, PLAN_LABEL, PREFLIGHT, RESTORE, TEMPLATE_LABEL, UID_LABEL,
};
use millrace_operator_core::observed::{Compilation, Observed};
use serde_json::{Value, json};

use crate::api::{label, text};
use crate::ending::Ending;
use crate::oracle::{Violation, data};
use crate::wish::{NAME, READS, WRITES, fingerprint, plan};
use crate::worker::task;

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
    /// A task moves although its next owner has not read its state.
    MoveBeforeLevel,
    /// Who runs a task gives it back before anybody has read its state.
    MoveWithoutWarming,
    /// Who leaves may get tasks.
    LeaverIsATarget,
    /// Who leaves and does not answer just now has nothing any more.
    SilentLeaverIsGone,
    /// Who leaves need not wait.
    LeaversAreLetGo,
    /// Who leaves waits, though nobody takes its tasks.
    NobodyIsLetGo,
    /// A pod that was told to end keeps its tasks as long as its worker does not answer.
    LostNodeKeepsItsTasks,
    /// The only worker is replaced as it is.
    NobodyStandsIn,
    /// Who stood in for the only worker stays.
    StandInStays,
    /// What a former Pipeline of the name has left is ours.
    FormerIsOurs,
    /// Where no pods are, nothing waits.
    NoPodsMeansDrained,
    /// A drain ends when nobody wants it any more.
    DrainIsTakenBack,
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
    /// All stages are cut at once.
    StagesInNoOrder,
    /// A restore begins while pods run.
    RestoreBesidePods,
    /// What was restored is forgotten.
    RestoredIsForgotten,
    /// A plan is applied before the savepoint is restored.
    ApplyBeforeRestore,
    /// Each restore gets the timeline behind the applied one.
    TimelineGivenAgain,
    /// Rules that are to be somewhere else are there, and where they were too.
    RulesStayBehind,
    /// Rules in the operator's namespace go with their Pipeline, as all else does.
    RulesGoByThemselves,
    /// Backfills that were done are forgotten.
    BackfillIsForgotten,
    /// What a backfill had in Kafka is left to the next one of its name.
    BackfillIsNotTidied,
    /// What guards have done for others counts for each backfill.
    BackfillCountsAll,
}

impl Mutant {
    pub const ALL: [Self; 35] = [
        Self::GenerationNotAboveTheHighest,
        Self::PlanNotAboveTheNewest,
        Self::PutWithoutOver,
        Self::ApplyBeforePreflight,
        Self::MistakesAreIgnored,
        Self::FitIsIgnored,
        Self::StartBeforeTheOldAreGone,
        Self::ScaleDownAtOnce,
        Self::MoveBeforeLevel,
        Self::MoveWithoutWarming,
        Self::LeaverIsATarget,
        Self::SilentLeaverIsGone,
        Self::LeaversAreLetGo,
        Self::NobodyIsLetGo,
        Self::LostNodeKeepsItsTasks,
        Self::NobodyStandsIn,
        Self::StandInStays,
        Self::FormerIsOurs,
        Self::NoPodsMeansDrained,
        Self::DrainIsTakenBack,
        Self::StatusWithoutRounding,
        Self::RetryWithoutBackoff,
        Self::NoFinalizer,
        Self::NoDeadline,
        Self::InvalidSpecStops,
        Self::StagesInNoOrder,
        Self::RestoreBesidePods,
        Self::RestoredIsForgotten,
        Self::ApplyBeforeRestore,
        Self::TimelineGivenAgain,
        Self::RulesStayBehind,
        Self::RulesGoByThemselves,
        Self::BackfillIsForgotten,
        Self::BackfillIsNotTidied,
        Self::BackfillCountsAll,
    ];

    /// The ending that its rule is about, if it is about one: whoever breaks it need not wait for chance.
    pub fn ending(self) -> Option<Ending> {
        match self {
            Self::ScaleDownAtOnce | Self::MoveBeforeLevel | Self::MoveWithoutWarming => Some(Ending::Rescaled),
            Self::LeaversAreLetGo | Self::NobodyIsLetGo => Some(Ending::Evicted),
            Self::LostNodeKeepsItsTasks => Some(Ending::NodeLost),
            Self::NobodyStandsIn | Self::StandInStays => Some(Ending::RolledAlone),
            Self::NoFinalizer | Self::RulesGoByThemselves => Some(Ending::Deleted),
            Self::NoDeadline => Some(Ending::DeletedWithoutBrokers),
            Self::InvalidSpecStops => Some(Ending::Broken),
            Self::StagesInNoOrder
            | Self::RestoreBesidePods
            | Self::RestoredIsForgotten
            | Self::ApplyBeforeRestore
            | Self::TimelineGivenAgain => Some(Ending::Restored),
            Self::BackfillIsForgotten | Self::BackfillIsNotTidied | Self::BackfillCountsAll => Some(Ending::Backfilled),
            _ => None,
        }
    }

    /// Whether a violation is this mutant's harm. That it only wedges counts where to go on is what the rule is for.
    pub fn is_caught_by(self, violation: &Violation) -> bool {
        use Violation as V;
        match self {
            Self::GenerationNotAboveTheHighest
            | Self::PlanNotAboveTheNewest
            | Self::NoDeadline
            | Self::NobodyIsLetGo
            | Self::LostNodeKeepsItsTasks
            | Self::StandInStays
            | Self::RulesStayBehind
            | Self::RulesGoByThemselves => matches!(violation, V::Stuck { .. }),
            Self::PutWithoutOver => {
                matches!(violation, V::GenerationWentBack | V::WrongPlan { .. } | V::Foreign { .. })
            }
            Self::ApplyBeforePreflight => *violation == V::NotChecked,
            Self::MistakesAreIgnored => *violation == V::InvalidApplied,
            Self::FitIsIgnored => *violation == V::StateLost,
            Self::StartBeforeTheOldAreGone => {
                matches!(violation, V::WrongPlan { .. } | V::PlansMixed { .. })
            }
            Self::ScaleDownAtOnce | Self::NobodyStandsIn => matches!(violation, V::TakenAway { .. }),
            Self::MoveBeforeLevel | Self::MoveWithoutWarming | Self::SilentLeaverIsGone => {
                matches!(violation, V::ColdMove { .. })
            }
            Self::LeaverIsATarget => matches!(violation, V::GivenToALeaver { .. }),
            Self::LeaversAreLetGo => matches!(violation, V::LeftWithTasks { .. }),
            Self::FormerIsOurs => matches!(violation, V::Foreign { .. }),
            Self::NoPodsMeansDrained => *violation == V::NotDrained,
            Self::DrainIsTakenBack => *violation == V::DrainTakenBack,
            Self::StatusWithoutRounding => matches!(violation, V::NotQuiet { .. }),
            Self::RetryWithoutBackoff => *violation == V::NoBackoff,
            Self::NoFinalizer => *violation == V::LeftSilently,
            Self::InvalidSpecStops => *violation == V::Disturbed,
            Self::StagesInNoOrder => *violation == V::Torn,
            Self::RestoreBesidePods => matches!(violation, V::WrongPlan { .. } | V::PlansMixed { .. }),
            Self::RestoredIsForgotten => *violation == V::RestoredTwice,
            Self::ApplyBeforeRestore => matches!(violation, V::RestoredElse | V::NotRestored { .. }),
            Self::TimelineGivenAgain => matches!(violation, V::TimelineShared { .. }),
            Self::BackfillIsForgotten => matches!(violation, V::BackfilledTwice { .. }),
            Self::BackfillIsNotTidied => matches!(violation, V::Stuck { .. }),
            Self::BackfillCountsAll => *violation == V::CountedTwice,
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
                if let Compilation::Done(compiled) = &seen.compilation {
                    let next = compiled.fingerprint.clone();
                    hide_pods(seen, &next);
                }
            }
            Self::MoveBeforeLevel => {
                let warm = seen.reports.values_mut().flat_map(|report| &mut report.warm);
                warm.for_each(|warm| warm.level = true);
            }
            Self::LeaverIsATarget | Self::SilentLeaverIsGone | Self::LostNodeKeepsItsTasks => self.bend_leavers(seen),
            Self::FormerIsOurs => {
                let uid = seen.pipeline["metadata"]["uid"].clone();
                seen.children.iter_mut().for_each(|object| object["metadata"]["labels"][UID_LABEL] = uid.clone());
            }
            Self::NoPodsMeansDrained => {
                let pods = seen.children.iter().any(is_worker);
                drain(seen, !pods);
            }
            Self::DrainIsTakenBack => {
                let running = seen.pipeline["spec"]["desiredState"] == "Running";
                drain(seen, running);
            }
            Self::StatusWithoutRounding if seen.pipeline["status"]["lag"].is_string() => {
                seen.pipeline["status"]["lag"] = json!("0.312s");
            }
            Self::RetryWithoutBackoff => each(seen, "Job", |job| {
                if job["status"]["conditions"][0].is_object() {
                    job["status"]["conditions"][0]["lastTransitionTime"] = json!("2000-01-01T00:00:00Z");
                }
            }),
            Self::NoDeadline if seen.pipeline["metadata"]["deletionTimestamp"].is_string() => {
                seen.pipeline["metadata"]["deletionTimestamp"] = json!("2100-01-01T00:00:00Z");
            }
            Self::RestoreBesidePods if seen.pipeline["spec"]["restore"].is_object() => {
                hide_pods(seen, "");
            }
            Self::RestoredIsForgotten => {
                edit(seen, &format!("{NAME}-applied"), "applied.json", |applied| applied["restored"] = json!([]));
            }
            Self::ApplyBeforeRestore => pass(seen, RESTORE, &json!(RestoreReport::default())),
            Self::BackfillIsForgotten => {
                begun(seen, |begun| begun.retain(|one| one["end"].is_null() || one["tidy"] == false))
            }
            Self::BackfillIsNotTidied => begun(seen, |begun| {
                begun.iter_mut().for_each(|one| (one["clean"], one["tidy"]) = (json!(true), json!(true)));
            }),
            Self::BackfillCountsAll => begun(seen, |begun| begun.iter_mut().for_each(|one| one["before"] = json!({}))),
            _ => {}
        }
    }

    /// Pods that were told to end, and their workers.
    fn bend_leavers(self, seen: &mut Observed) {
        match self {
            Self::LeaverIsATarget => {
                seen.children.iter_mut().filter(|object| is_worker(object)).for_each(stays);
                seen.reports.values_mut().for_each(|report| report.leaving = false);
            }
            Self::SilentLeaverIsGone => {
                let reports = &seen.reports;
                let silent = |pod: &Value| ends(pod) && !reports.contains_key(&ordinal(pod));
                seen.children.retain(|object| !is_worker(object) || !silent(object));
            }
            Self::LostNodeKeepsItsTasks => {
                let reports = &seen.reports;
                let silent = |pod: &&mut Value| is_worker(pod) && !reports.contains_key(&ordinal(pod));
                seen.children.iter_mut().filter(silent).for_each(stays);
            }
            _ => {}
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
            Self::RulesStayBehind => {
                let of_rules =
                    |action: &Action| matches!(action, Action::Delete { name, .. } if name.ends_with("-rules"));
                decision.actions.retain(|action| !of_rules(action));
            }
            Self::MoveWithoutWarming => {
                let writes = decision.actions.iter_mut().filter_map(written(format!("{NAME}-assignment")));
                writes.for_each(move_what_is_warm);
            }
            Self::StagesInNoOrder => {
                let writes = decision.actions.iter_mut().filter_map(written(format!("{NAME}-assignment")));
                for held in writes.map(|map| &mut map["data"]["assignment.json"]) {
                    let Some(mut assignment) = held.as_str().and_then(|s| serde_json::from_str::<Assignment>(s).ok())
                    else {
                        continue;
                    };
                    let stages = [READS, WRITES].map(str::to_owned);
                    assignment.savepoint.iter_mut().for_each(|cut| cut.stages.extend(stages.clone()));
                    *held = json!(json!(assignment).to_string());
                }
            }
            Self::TimelineGivenAgain => {
                let writes = decision.actions.iter_mut().filter_map(written(format!("{NAME}-applied")));
                for map in writes {
                    let of = |map: &Value, key: &str| data(map, key)["timeline"].as_u64();
                    if let Some(mut given) = Some(data(map, "reserved.json")).filter(|given| given.is_object()) {
                        given["timeline"] = json!(of(map, "applied.json").unwrap_or(1) + 1);
                        map["data"]["reserved.json"] = json!(given.to_string());
                    }
                }
            }
            Self::NoFinalizer => decision.actions.retain(|action| match action {
                Action::SetFinalizers { savepoint: None, finalizers, .. } => finalizers.is_empty(),
                _ => true,
            }),
            Self::InvalidSpecStops => {
                let refused = decision.status.as_ref().is_some_and(|status| {
                    status.conditions.iter().any(|c| c.kind == "SpecValid" && c.reason == "SpecInvalid")
                });
                let pod = seen.children.iter().find(|object| is_worker(object));
                if let Some(pod) = pod.filter(|_| refused) {
                    decision.actions.push(delete(pod));
                }
            }
            _ => self.decide_on_leavers(seen, decision),
        }
    }

    /// Who leaves, and who stands in for it.
    fn decide_on_leavers(self, seen: &Observed, decision: &mut Decision) {
        let spec = &seen.pipeline["spec"];
        match self {
            Self::LeaversAreLetGo => {
                let pods = seen.children.iter().filter(|object| is_worker(object) && ends(object));
                let let_go = |pod: &Value| {
                    let address = pod["status"]["podIP"].as_str()?;
                    Some(Action::LetGo { worker: ordinal(pod), address: format!("{address}:{CONTROL_PORT}") })
                };
                decision.actions.extend(pods.filter_map(let_go));
            }
            Self::NobodyIsLetGo => decision.actions.retain(|action| !matches!(action, Action::LetGo { .. })),
            Self::NobodyStandsIn => {
                let set = seen.children.iter().find(|object| object["kind"] == "StatefulSet");
                let template = set.map(|set| set["spec"]["template"]["metadata"]["labels"][TEMPLATE_LABEL].clone());
                let stale = |pod: &&Value| {
                    is_worker(pod) && Some(&pod["metadata"]["labels"][TEMPLATE_LABEL]) != template.as_ref()
                };
                let alone = spec["replicas"] == 1 && spec["desiredState"] == "Running" && template.is_some();
                if let Some(pod) = seen.children.iter().find(stale).filter(|_| alone) {
                    decision.actions.push(delete(pod));
                }
            }
            Self::StandInStays => {
                let two = |object: &Value| object["kind"] == "StatefulSet" && object["spec"]["replicas"] == 2;
                let stays = spec["replicas"] == 1 && seen.children.iter().any(two);
                let writes = decision.actions.iter_mut().filter_map(|action| match action {
                    Action::Put { object, .. } if object["kind"] == "StatefulSet" => Some(object),
                    _ => None,
                });
                let one = writes.filter(|set| stays && set["spec"]["replicas"] == 1);
                one.for_each(|set| set["spec"]["replicas"] = json!(2));
            }
            _ => {}
        }
    }
}

/// The object, where an action writes the one with this name.
fn written(name: String) -> impl Fn(&mut Action) -> Option<&mut Value> {
    move |action| match action {
        Action::Put { object, .. } if text(object, "name") == name => Some(object),
        _ => None,
    }
}

fn is_worker(object: &Value) -> bool {
    object["kind"] == "Pod" && label(object, COMPONENT_LABEL) == "worker"
}

fn ends(pod: &Value) -> bool {
    pod["metadata"]["deletionTimestamp"].is_string()
}

/// Takes back that a pod was told to end.
fn stays(pod: &mut Value) {
    pod["metadata"]["deletionTimestamp"] = Value::Null;
}

fn ordinal(pod: &Value) -> u32 {
    text(pod, "name").rsplit('-').next().and_then(|ordinal| ordinal.parse().ok()).unwrap_or_default()
}

fn delete(pod: &Value) -> Action {
    Action::Delete {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        namespace: text(pod, "namespace").to_owned(),
        name: text(pod, "name").to_owned(),
        uid: text(pod, "uid").to_owned(),
    }
}

fn each(seen: &mut Observed, kind: &str, change: impl Fn(&mut Value)) {
    seen.children.iter_mut().filter(|object| object["kind"] == kind).for_each(change);
}

/// Pods that run something else are not seen, nor that there shall be any.
fn hide_pods(seen: &mut Observed, kept: &str) {
    seen.children.retain(|object| !is_worker(object) || label(object, PLAN_LABEL) == kept);
    each(seen, "StatefulSet", |set| {
        if set["spec"]["template"]["metadata"]["labels"][PLAN_LABEL] != kept {
            set["spec"]["replicas"] = json!(0);
            set["status"] = json!({"observedGeneration": set["metadata"]["generation"], "replicas": 0});
        }
    });
}

/// What was to come out has, if `done`.
fn drain(seen: &mut Observed, done: bool) {
    edit(seen, &format!("{NAME}-assignment"), "placed.json", |placed| {
        placed["drained"] = json!(placed["drained"] == true || done);
    });
}

/// Bends what is remembered of backfills.
fn begun(seen: &mut Observed, change: impl Fn(&mut Vec<Value>)) {
    edit(seen, &format!("{NAME}-backfills"), "begun.json", |begun| {
        if let Value::Array(begun) = begun {
            change(begun);
        }
    });
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
    let stages = [READS, WRITES].map(|stage| (stage.to_owned(), 2)).into();
    pass(seen, PREFLIGHT, &json!(PreflightReport { stages, ..PreflightReport::default() }));
}

/// Jobs of a component have ended with this answer.
fn pass(seen: &mut Observed, component: &str, report: &Value) {
    let message = report.to_string();
    seen.children.retain(|object| object["kind"] != "Pod" || label(object, COMPONENT_LABEL) != component);
    each(seen, "Job", |job| {
        if label(job, COMPONENT_LABEL) == component {
            let at = "2000-01-01T00:00:00Z";
            let end = json!({"type": "Complete", "status": "True", "lastTransitionTime": at, "message": message});
            job["status"]["conditions"] = json!([end]);
        }
    });
}

fn move_what_is_warm(map: &mut Value) {
    let held = &mut map["data"]["assignment.json"];
    let Some(mut assignment) = held.as_str().and_then(|text| serde_json::from_str::<Assignment>(text).ok()) else {
        return;
    };
    for warm in std::mem::take(&mut assignment.warm) {
        assignment.tasks.iter_mut().filter(|at| task(at) == task(&warm)).for_each(|at| *at = warm.clone());
    }
    *held = json!(json!(assignment).to_string());
}

fn ignore_mistakes(seen: &mut Observed) {
    if let Compilation::Done(compiled) = &mut seen.compilation
        && !compiled.mistakes.is_empty()
    {
        compiled.mistakes.clear();
        compiled.plan = Some(plan(0));
        compiled.fingerprint = fingerprint(0);
    }
}

//! What becomes of SLOs in the cluster: their books, and what the status says of them.

use millrace_crds::pipeline::SloStatus;
use millrace_operator_core::decide::decide;
use millrace_operator_core::decision::{Action, Decision};
use millrace_operator_core::observed::Observed;
use millrace_operator_core::slo::books::Said;
use serde_json::json;

use super::{NOW, StateFit, carry_out, compiled, puts, reason, running_as, settings, spec};

fn said() -> Said {
    let slo = SloStatus {
        name: "fresh".to_owned(),
        sli: Some("99.95%".to_owned()),
        burn_rate: Some("0.5".to_owned()),
        budget_left: Some("50%".to_owned()),
        observed: "12%".to_owned(),
        met: true,
    };
    Said { slos: vec![slo], freshness_ms: Some(6_040), budget_left: Some(0.5), ..Said::default() }
}

/// A Pipeline with an SLO that runs, and what its books say.
fn with_slo(said: Said) -> Observed {
    let mut spec = spec();
    spec["slos"] = json!([{"name": "fresh", "freshness": {"threshold": "15s"}, "objective": "99.9"}]);
    let mut observed = running_as(&spec, compiled("old", StateFit::Kept), 2);
    observed.slos = Some(said);
    observed
}

fn look(observed: &Observed) -> Decision {
    decide(observed, &settings(), NOW)
}

#[test]
fn books_are_kept_beside_the_pipeline_and_go_with_its_last_slo() {
    let mut observed = with_slo(Said { books: Some("{\"judged\":1}".to_owned()), ..said() });
    let decision = look(&observed);
    let map = puts(&decision, "p-slos").expect("the books");
    assert_eq!((&map["kind"], &map["data"]["books.json"]), (&json!("ConfigMap"), &json!("{\"judged\":1}")));
    carry_out(&mut observed, &decision);
    observed.slos = Some(said());
    assert_eq!(look(&observed).actions, [], "it is not time to write them");

    observed.slos = None;
    // While what is asked for is not known, they stay.
    let spec = observed.pipeline["spec"].take();
    observed.pipeline["spec"] = json!({"slos": 1});
    assert_eq!(look(&observed).actions, []);
    observed.pipeline["spec"] = spec;
    observed.pipeline["spec"].as_object_mut().expect("a spec").remove("slos");
    let deletes = |action: &Action| matches!(action, Action::Delete { name, .. } if name == "p-slos");
    assert!(look(&observed).actions.iter().any(deletes));
}

#[test]
fn the_status_says_how_slos_stand() {
    let decision = look(&with_slo(said()));
    let status = decision.status.as_ref().expect("a status");
    let columns = (status.freshness_p99.as_deref(), status.error_budget.as_deref());
    assert_eq!((columns, &status.slos), ((Some("6.0s"), Some("50%")), &said().slos));
    assert_eq!(reason(&decision, "SLOMet"), "True BudgetLeft");
    assert_eq!(reason(&decision, "SLODataMissing"), "False Observed");
    assert!(decision.events.is_empty());

    let mut overspent = said();
    (overspent.slos[0].met, overspent.budget_left) = (false, Some(-0.2));
    overspent.missing_since_ms = Some(NOW.ms() - 700_000);
    let decision = look(&with_slo(overspent));
    assert_eq!(reason(&decision, "SLOMet"), "False BudgetSpent");
    assert_eq!(reason(&decision, "SLODataMissing"), "True NotObserved");
    assert_eq!(decision.status.expect("a status").error_budget.as_deref(), Some("-20%"));
    assert_eq!(decision.events[0].note, "the error budget is spent of: fresh");

    let decision = look(&with_slo(Said { budget_left: None, ..said() }));
    assert_eq!(reason(&decision, "SLOMet"), "Unknown NothingCounted");
}

#[test]
fn figures_alone_are_not_written_more_than_once_a_minute() {
    let mut observed = with_slo(said());
    let decision = look(&observed);
    carry_out(&mut observed, &decision);
    observed.live_written_ms = Some(NOW.ms() - 10_000);
    let mut later = said();
    later.slos[0].sli = Some("99.949%".to_owned());
    observed.slos = Some(later.clone());
    let decision = look(&observed);
    assert_eq!((decision.status, decision.again_ms), (None, Some(50_000)));
    later.slos[0].met = false;
    observed.slos = Some(later);
    let decision = look(&observed);
    assert!(decision.status.is_some(), "a condition has changed");
}

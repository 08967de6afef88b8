//! Where rules for Prometheus are: with their Pipeline, or in the operator's namespace, where they belong to nobody.

use std::collections::BTreeSet;

use millrace_operator_core::decide::{decide, decide_alone};
use millrace_operator_core::decision::{Action, Decision};
use millrace_operator_core::names::{Names, UID_LABEL};
use millrace_operator_core::observed::Observed;
use millrace_operator_core::settings::{PrometheusRule, Rules, RulesNamespace, Settings};
use serde_json::{Value, json};

use super::{NOW, running, settings};

const SYSTEM: &str = "system";

/// With objects of the Prometheus Operator.
fn settings_of(namespace: RulesNamespace, enabled: bool) -> Settings {
    let rules = Rules { enabled, prometheus_rule: PrometheusRule::Always, namespace, ..Rules::default() };
    Settings { rules, namespace: SYSTEM.to_owned(), ..settings() }
}

/// Carries a decision about rules out, and says what it was: kinds are equal for all of one object.
fn act(observed: &mut Observed, decision: &Decision) -> BTreeSet<String> {
    let mut said = BTreeSet::new();
    for action in &decision.actions {
        let (verb, metadata, kind) = match action {
            Action::Put { object, over } => {
                let verb = if over.is_some() { "change" } else { "create" };
                (verb, object["metadata"].clone(), object["kind"].clone())
            }
            Action::Delete { kind, namespace, name, .. } => {
                ("delete", json!({"namespace": namespace, "name": name}), json!(kind))
            }
            other => panic!("{other:?}"),
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        said.insert(format!("{verb} {} {}/{}", text(&kind), text(&metadata["namespace"]), text(&metadata["name"])));
        let list = if metadata["namespace"] == SYSTEM { &mut observed.rules } else { &mut observed.children };
        list.retain(|there| there["kind"] != kind || there["metadata"]["name"] != metadata["name"]);
        if let Action::Put { object, .. } = action {
            let mut object = object.clone();
            object["metadata"]["resourceVersion"] = json!("7");
            list.push(object);
        }
    }
    said
}

fn look(observed: &mut Observed, settings: &Settings) -> BTreeSet<String> {
    let decision = decide(observed, settings, NOW);
    act(observed, &decision)
}

fn of_both(verb: &str, object: &str) -> BTreeSet<String> {
    ["ConfigMap", "PrometheusRule"].map(|kind| format!("{verb} {kind} {object}")).into()
}

#[test]
fn rules_move_to_where_the_chart_says_and_none_are_left_behind() {
    let mut observed = running();
    let (theirs, ours) = (settings_of(RulesNamespace::Pipeline, true), settings_of(RulesNamespace::Operator, true));
    assert_eq!(look(&mut observed, &theirs).len(), 2, "the PrometheusRule is new, and what the map was made from too");
    assert_eq!(look(&mut observed, &theirs), BTreeSet::new());
    let decision = decide(&observed, &ours, NOW);
    let order: Vec<bool> = decision.actions.iter().map(|action| matches!(action, Action::Put { .. })).collect();
    assert_eq!(order, [true, true, false, false], "nobody is without rules meanwhile");
    let moved = act(&mut observed, &decision);
    assert_eq!(moved, &of_both("create", "system/shop.p-rules") | &of_both("delete", "shop/p-rules"));
    assert_eq!(look(&mut observed, &ours), BTreeSet::new());

    observed.pipeline["spec"]["slos"] = json!([{"name": "lag", "lag": {"threshold": "1m"}, "objective": "99.5"}]);
    let edited = look(&mut observed, &ours);
    assert!(edited.is_superset(&of_both("change", "system/shop.p-rules")), "{edited:?}");
    observed.pipeline["spec"].as_object_mut().expect("a spec").remove("slos");
    look(&mut observed, &ours);

    let moved = look(&mut observed, &theirs);
    assert_eq!(moved, &of_both("create", "shop/p-rules") | &of_both("delete", "system/shop.p-rules"));
    assert_eq!(look(&mut observed, &theirs), BTreeSet::new());
}

#[test]
fn rules_that_are_not_wanted_any_more_go_from_the_operators_namespace_too() {
    let mut observed = running();
    look(&mut observed, &settings_of(RulesNamespace::Operator, true));
    let gone = look(&mut observed, &settings_of(RulesNamespace::Operator, false));
    assert_eq!(gone, of_both("delete", "system/shop.p-rules"));
    assert_eq!(observed.rules, [] as [Value; 0]);
}

#[test]
fn rules_in_the_operators_namespace_have_no_owner_and_outlive_no_pipeline() {
    let mut observed = running();
    let settings = settings_of(RulesNamespace::Operator, true);
    look(&mut observed, &settings);
    for object in &observed.rules {
        let metadata = &object["metadata"];
        assert!(metadata["ownerReferences"].is_null(), "who is of another namespace is taken for gone: {metadata}");
        let labels = &metadata["labels"];
        assert!(labels["millrace.dev/pipeline"].is_null(), "it is no Pipeline's of that namespace: {labels}");
        let about = [&labels["millrace.dev/about-namespace"], &labels["millrace.dev/about-pipeline"]];
        assert_eq!(about, [&json!("shop"), &json!("p")]);
    }
    // One that is made anew under its name finds what it would make.
    observed.pipeline["metadata"]["uid"] = json!("another");
    observed.children.iter_mut().for_each(|object| object["metadata"]["labels"][UID_LABEL] = json!("another"));
    let about_rules = |said: &String| said.contains("-rules");
    assert_eq!(look(&mut observed, &settings).into_iter().find(about_rules), None);
    let left = decide_alone(&[], &[], &observed.rules, NOW);
    assert_eq!(act(&mut observed, &left), of_both("delete", "system/shop.p-rules"));
}

#[test]
fn no_two_pipelines_share_a_name_in_the_operators_namespace() {
    let name = |namespace: &str, pipeline: &str| {
        let (namespace, pipeline) = (namespace.to_owned(), pipeline.to_owned());
        Names { namespace, pipeline, uid: String::new() }.rules(RulesNamespace::Operator)
    };
    let alike = [("shop", "eu-orders"), ("shop-eu", "orders"), ("shop", "eu"), ("shop", "eu-rules"), ("s", "hop-eu")];
    let names: BTreeSet<String> = alike.map(|(namespace, pipeline)| name(namespace, pipeline)).into();
    assert_eq!(names.len(), alike.len(), "{names:?}");
    assert_eq!(name(&"n".repeat(63), &"p".repeat(40)).len(), 110, "a name may have 253");
}

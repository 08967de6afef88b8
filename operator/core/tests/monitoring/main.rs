//! What we hand to Prometheus and Grafana, as files: rules of a Pipeline, for an SLO of each kind, the operator's own
//! rules, dashboards. `UPDATE=1` rewrites them; read the diff. `tests/setup/promtool.sh` tests what they do.

#![expect(clippy::disallowed_methods, reason = "a test reads and writes its files")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{env, fs};

use millrace_crds::duration::Duration;
use millrace_operator_core::rules::{ALERTS, Indicator, RulesOf, SloRule, groups, operator_groups};
use millrace_operator_core::settings::{PrometheusRule, Rules, RulesNamespace, Settings};
use serde_json::{Value, json};

mod dashboards;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn compare(file: &str, found: &Value) {
    let file = root().join(file);
    let found = format!("{found:#}\n");
    if env::var_os("UPDATE").is_some() {
        fs::write(&file, &found).expect("write the file");
    }
    let expected = fs::read_to_string(&file).unwrap_or_default();
    assert!(expected == found, "{} is out of date: run with UPDATE=1 and read the diff", file.display());
}

fn slos() -> Vec<SloRule<'static>> {
    let threshold = Duration::from_secs(15);
    let slo = |name, indicator, objective: &str, days, min_events| SloRule {
        name,
        indicator,
        objective: objective.parse().expect("an objective"),
        window: Duration::from_days(days),
        min_events,
    };
    vec![
        slo("fresh", Indicator::Freshness { threshold }, "99.9", 30, 1),
        slo("lag", Indicator::Lag { threshold }, "99.5", 7, 1),
        slo("on-time", Indicator::WatermarkLag { threshold }, "99.9", 28, 1),
        slo("complete", Indicator::Completeness, "99.99", 30, 1),
        slo("correct", Indicator::Correctness, "99.9", 30, 1_000),
    ]
}

fn rules_of(slos: &[SloRule<'_>], settings: &Rules) -> Value {
    groups(&RulesOf { namespace: "shop", pipeline: "orders", slos, settings })
}

fn served() -> Rules {
    Rules { runbooks: "https://docs.example/runbooks".to_owned(), ..Rules::default() }
}

fn each_rule(file: &Value) -> impl Iterator<Item = &Value> {
    let groups = file["groups"].as_array().expect("groups");
    groups.iter().flat_map(|group| group["rules"].as_array().expect("rules"))
}

#[test]
fn the_rules_are_these() {
    // Those that the tests of promtool are about, and the rest.
    let (tested, rest): (Vec<_>, Vec<_>) = slos().into_iter().partition(|slo| ["fresh", "correct"].contains(&slo.name));
    compare("tests/rules/tested.json", &rules_of(&tested, &served()));
    compare("tests/rules/rest.json", &rules_of(&rest, &served()));
    compare("charts/millrace/files/operator-rules.json", &operator_groups());
}

#[test]
fn the_dashboards_are_these() {
    for (name, dashboard) in dashboards::all() {
        compare(&format!("charts/millrace/files/dashboards/{name}.json"), &dashboard);
    }
    for (name, rules) in dashboards::expressions() {
        compare(&format!("tests/rules/{name}.json"), &rules);
    }
}

#[test]
fn each_alert_has_a_page_and_names_it() {
    let files = [rules_of(&slos(), &served()), operator_groups()];
    let mut seen = BTreeSet::new();
    for rule in files.iter().flat_map(each_rule) {
        let Some(alert) = rule["alert"].as_str() else { continue };
        let file = format!("docs/runbooks/{alert}.md");
        assert_eq!(rule["annotations"]["runbook"], file);
        let url = rule["annotations"]["runbook_url"].as_str().expect("a link");
        assert!(url.ends_with(&format!("/{alert}.md")), "{url}");
        let page = fs::read_to_string(root().join(&file)).expect(&file);
        assert!(page.starts_with(&format!("# {alert}\n")), "{file}");
        for heading in ["## What it means", "## Look at", "## Do"] {
            assert!(page.contains(heading), "{file} has no '{heading}'");
        }
        seen.insert(alert.to_owned());
    }
    assert_eq!(seen, ALERTS.map(str::to_owned).into());
    let pages = fs::read_dir(root().join("docs/runbooks")).expect("docs/runbooks");
    assert_eq!(pages.count(), ALERTS.len(), "a page of no alert");
}

#[test]
fn a_pipeline_without_slos_has_the_alerts_that_need_none() {
    let rules = rules_of(&[], &Rules::default());
    let alerts: Vec<&str> = each_rule(&rules).filter_map(|rule| rule["alert"].as_str()).collect();
    assert_eq!(alerts, ["MillraceLagHigh", "MillraceLagUnknown", "MillraceDeadLetters"]);
    assert!(each_rule(&rules).all(|rule| rule["annotations"]["runbook_url"].is_null()), "a link to nowhere");
}

#[test]
fn rules_in_the_operators_namespace_select_by_the_label_that_nobody_enforces() {
    let settings = Rules { namespace: RulesNamespace::Operator, ..Rules::default() };
    let text = rules_of(&slos(), &settings).to_string();
    assert!(text.contains("{exported_namespace=\\\"shop\\\",pipeline=\\\"orders\\\""), "{text}");
    assert!(!text.contains("{namespace="), "{text}");
}

#[test]
fn names_of_groups_differ_whatever_slos_are_called() {
    let named = |name| SloRule { name, ..slos()[0] };
    let rules = rules_of(&["pipeline", "alerts", "slow", "a", "a-slow"].map(named), &Rules::default());
    let names: Vec<&str> = rules["groups"]
        .as_array()
        .expect("groups")
        .iter()
        .map(|group| group["name"].as_str().expect("a name"))
        .collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
}

#[test]
fn the_operator_reads_what_the_chart_writes() {
    let read = |case: &str| -> Settings {
        let text = fs::read_to_string(root().join(format!("tests/chart/golden/{case}.yaml"))).expect(case);
        let config =
            text.split("---\n").find(|document| document.contains("\n  config.yaml: |")).expect("a configuration");
        let config: Value = serde_saphyr::from_str(config).expect("YAML");
        serde_saphyr::from_str(config["data"]["config.yaml"].as_str().expect("a text")).expect(case)
    };
    assert_eq!(read("defaults").rules, Rules::default());
    let everything = Rules {
        prometheus_rule: PrometheusRule::Always,
        labels: [("release".to_owned(), "prometheus".to_owned())].into(),
        runbooks: "https://docs.example/runbooks/".to_owned(),
        ..Rules::default()
    };
    assert_eq!(read("everything").rules, everything);
    assert_eq!(read("namespaces-with-identity").rules.namespace, RulesNamespace::Operator);
    assert!(!read("given-account").rules.enabled);
    let class = |case| read(case).backfill.priority_class_name;
    let cases = ["defaults", "everything", "namespaces", "namespaces-with-identity"];
    assert_eq!(cases.map(class), ["millrace-operator-backfill", "mill-backfill", "", "leisurely"]);
    assert_eq!(Value::Object(read("defaults").backfill.resources), json!({"requests": {"cpu": "50m"}}));
}

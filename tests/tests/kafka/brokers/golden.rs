//! The examples' cases on a real broker: the same records as on the embedded log.

use millrace_tests::kafka::run_case;
use millrace_tests::kafka::shared as kafka;
use millrace_tests::plan;
use std::path::Path;

fn check(example: &str) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(example);
    let plan = plan(&std::fs::read_to_string(dir.join("pipeline.yaml")).unwrap());
    let mut cases: Vec<_> = std::fs::read_dir(dir.join("cases")).unwrap().map(|e| e.unwrap().path()).collect();
    cases.sort();
    assert!(!cases.is_empty());
    let run = |case: &Path| run_case(kafka(), &plan, case).unwrap_or_else(|error| vec![format!("{error:#}")]);
    let failed: Vec<_> =
        cases.iter().map(|case| (case, run(case))).filter(|(_, differences)| !differences.is_empty()).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn flights() {
    check("flights");
}

#[test]
fn orders_enriched() {
    check("orders-enriched");
}

#[test]
fn orders_latest() {
    check("orders-latest");
}

#[test]
fn orders_sql() {
    check("orders-sql");
}

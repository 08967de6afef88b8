//! Each `tests/golden/*.yaml` with its plan beside it. `UPDATE=1` rewrites the plans: read the diff.

use std::path::{Path, PathBuf};

use millrace_core::plan::{OperatorKind, Plan, StartFrom};
use millrace_plan::backfill::{Repair, repair};
use millrace_plan::{Names, explain};

use crate::{compiled, mistakes_of};

fn specs() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let files = std::fs::read_dir(&folder).expect("golden folder").map(|entry| entry.expect("entry").path());
    let mut specs: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|e| e == "yaml")).collect();
    specs.sort();
    specs
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("read {}: {e}", path.display()))
}

fn ordinal(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    explain(&compiled(&read(&path)).plan, Names::Ordinal)
}

#[test]
fn every_spec_has_the_plan_that_stands_beside_it() {
    let mut wrong = Vec::new();
    for spec in specs() {
        let yaml = read(&spec);
        let mistakes = mistakes_of(&yaml);
        assert!(mistakes.is_empty(), "{}: {mistakes:#?}", spec.display());
        let compiled = compiled(&yaml);
        let mut text = explain(&compiled.plan, Names::Full);
        for warning in &compiled.warnings {
            text.push_str(&format!("\nwarning: {warning}\n"));
        }
        let topic = |exchange: &str| format!("shop.statuses-t1-{exchange}-repartition");
        let of = Repair { prefix: "shop.statuses-again".to_owned(), sinks: &[], topic: &topic };
        if let Ok(backfill) = repair(&compiled.plan, &of) {
            text.push_str(&format!("\n-- the plan of a backfill --\n{}", explain(&backfill, Names::Full)));
        }
        let golden = spec.with_extension("txt");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&golden, &text).expect("write golden file");
        } else if std::fs::read_to_string(&golden).ok().as_deref() != Some(&text) {
            wrong.push(format!("{}\n{text}", golden.display()));
        }
    }
    assert!(wrong.is_empty(), "differs (UPDATE=1 rewrites):\n{}", wrong.join("\n"));
}

#[test]
fn the_sql_of_our_users_is_the_same_plan_as_its_steps() {
    assert_eq!(ordinal("issue-sql.yaml"), ordinal("issue-steps.yaml"));
}

#[test]
fn the_example_of_the_api_is_the_same_plan_in_both_forms() {
    assert_eq!(ordinal("api-sql.yaml"), ordinal("api-steps.yaml"));
}

#[test]
fn three_joins_in_a_row_are_the_same_plan_in_both_forms() {
    assert_eq!(ordinal("three-joins-sql.yaml"), ordinal("three-joins-steps.yaml"));
}

#[test]
fn upserts_are_the_same_plan_in_both_forms() {
    assert_eq!(ordinal("upsert-sql.yaml"), ordinal("upsert-steps.yaml"));
}

#[test]
fn what_cannot_be_repaired_is_said_for_each_sink() {
    let yaml = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/upsert-steps.yaml"));
    let appending = yaml.replacen("write: {mode: Upsert}", "write: {mode: Append}", 1);
    let mut plan = compiled(&appending).plan;
    let said = |plan: &Plan, sinks: &[&str]| -> Vec<String> {
        let sinks: Vec<String> = sinks.iter().map(|s| (*s).to_owned()).collect();
        let of = Repair { prefix: "again".to_owned(), sinks: &sinks, topic: &str::to_owned };
        let said = repair(plan, &of).err().unwrap_or_default();
        said.iter().map(|mistake| format!("{}: {}", mistake.path, mistake.message)).collect()
    };
    let appends = "appends, so that rows of a backfill would be there twice";
    assert_eq!(said(&plan, &[]), [format!("spec.sinks: {appends}")]);
    assert_eq!(
        said(&plan, &["statuses", "latest", "lates"]),
        [format!("spec.sinks[0]: {appends}"), "spec.sinks[2]: is not a sink of the Pipeline".to_owned()]
    );
    assert_eq!(said(&plan, &["latest"]), [""; 0]);
    for operator in plan.stages.iter_mut().flat_map(|stage| &mut stage.operators) {
        if let OperatorKind::Guard(guard) = &mut operator.kind {
            guard.repairs = None;
        }
    }
    let older = "was compiled by an older release, which takes no repairs";
    assert_eq!(said(&plan, &["latest"]), [format!("spec.sinks[0]: {older}")]);
}

#[test]
fn a_table_that_began_at_its_end_is_read_whole_by_a_backfill() {
    let yaml = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/upsert-steps.yaml"));
    let late = yaml.replace("kafka: {topic: customers}", "kafka: {topic: customers, startFrom: {policy: Latest}}");
    let live = compiled(&late).plan;
    let of = Repair { prefix: "again".to_owned(), sinks: &["latest".to_owned()], topic: &str::to_owned };
    let plan = repair(&live, &of).unwrap_or_else(|mistakes| panic!("{mistakes:#?}"));
    let table = |plan: &Plan| plan.source("customers").map(|source| source.start_from.clone());
    assert_eq!([table(&live), table(&plan)], [Some(StartFrom::Latest), Some(StartFrom::Earliest)]);
}

//! Each `tests/golden/*.yaml` with its plan beside it. `UPDATE=1` rewrites the plans: read the diff.

use std::path::{Path, PathBuf};

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

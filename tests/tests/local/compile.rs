//! `millrace compile` as the operator runs it: within limits, whatever the spec is.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use anyhow::Context;
use millrace_core::report::{CompileRequest, Compiled};
use millrace_tests::story::millrace;
use serde_json::{Value, json};

fn compile(request: &[u8], limits: [&str; 2]) -> anyhow::Result<Output> {
    let mut child = Command::new(millrace()?)
        .args(["compile", "--memory-max-mib", limits[0], "--cpu-max-seconds", limits[1]])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("run millrace")?;
    // A child that has ended early reads no more; what it answers tells.
    drop(child.stdin.take().context("its input")?.write_all(request));
    Ok(child.wait_with_output()?)
}

fn request(pipeline: Value) -> Vec<u8> {
    serde_json::to_vec(&CompileRequest { pipeline, previous: None }).unwrap()
}

/// The answer within the operator's limits.
fn answer(pipeline: Value) -> Compiled {
    let output = compile(&request(pipeline), ["512", "5"]).unwrap();
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A pipeline with so many columns and steps behind each other; each step has the condition.
fn pipeline(columns: usize, steps: usize, condition: &str) -> Value {
    let names: Vec<String> = (0..columns).map(|i| format!("c{i}")).collect();
    let columns: Vec<Value> = names.iter().map(|name| json!({"name": name, "type": "BIGINT"})).collect();
    let name = |i: usize| if i == 0 { "orders".to_owned() } else { format!("s{i}") };
    let step =
        |i: usize| json!({"name": name(i), "from": name(i - 1), "project": {"where": condition, "select": names}});
    let steps: Vec<Value> = (1..=steps).map(step).collect();
    let last = name(steps.len());
    json!({
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "Pipeline",
        "metadata": {"name": "poison", "namespace": "test"},
        "spec": {
            "kafka": {"bootstrapServers": "kafka:9092"},
            "sources": [{"name": "orders", "kafka": {"topic": "orders"}, "format": {"type": "Json"}, "columns": columns}],
            "steps": steps,
            "sinks": [{"name": "out", "from": last, "kafka": {"topic": "out"}, "format": {"type": "Json"}}],
        },
    })
}

#[test]
fn a_plan_comes_back_within_the_limits() {
    let found = answer(pipeline(2, 1, "c0 > 1"));
    assert!(found.plan.is_some(), "{:#?}", found.mistakes);
}

#[test]
fn what_is_nested_too_deep_is_a_mistake() {
    let half = 32 << 10;
    let nested = format!("{}1{} = 1", "(".repeat(half), ")".repeat(half));
    let negated = "NOT ".repeat(10_000) + "true";
    let added = format!("{}0 > 1", "c0 + ".repeat(10_000));
    let cases = format!("{}1{} = 1", "CASE WHEN true THEN ".repeat(2_000), " END".repeat(2_000));
    for condition in [nested, negated, added, cases] {
        let found = answer(pipeline(2, 1, &condition));
        assert!(found.plan.is_none() && !found.mistakes.is_empty(), "{}", &condition[..40]);
        assert_eq!(found.mistakes[0].path, "spec.steps[0].project.where");
    }
    let mut sql = pipeline(2, 1, "true");
    sql["spec"]["steps"] = Value::Null;
    sql["spec"].as_object_mut().unwrap().remove("steps");
    sql["spec"]["sql"] = json!(format!(
        "INSERT INTO out SELECT c0 FROM orders WHERE {} c0 > 1 {}",
        "(".repeat(20_000),
        ")".repeat(20_000)
    ));
    sql["spec"]["sinks"][0].as_object_mut().unwrap().remove("from");
    let found = answer(sql);
    assert!(found.mistakes.iter().any(|m| m.path.starts_with("spec.sql")), "{:#?}", found.mistakes);
}

#[test]
fn what_is_long_and_wide_is_compiled_or_is_a_mistake() {
    let list: String = (0..1_000).map(|i| format!("{i}, ")).collect();
    let found = answer(pipeline(2, 1, &format!("c0 IN ({list}7)")));
    assert!(found.plan.is_some() || !found.mistakes.is_empty(), "{:#?}", found.mistakes);
    let found = answer(pipeline(500, 64, "c0 > 1"));
    assert!(found.plan.is_some() || !found.mistakes.is_empty(), "{:#?}", found.mistakes);
}

#[test]
fn what_is_too_much_for_the_limits_ends_the_child_and_nobody_else() {
    let large = request(pipeline(500, 64, "c0 > 1"));
    let output = compile(&large, ["16", "5"]).unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{}", output.status);
    let output = compile(&vec![b' '; 9 << 20], ["512", "5"]).unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let deep = "[".repeat(1 << 20);
    let output = compile(deep.as_bytes(), ["512", "5"]).unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
}

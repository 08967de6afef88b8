//! Faults that people met in systems of this kind, as small inputs. The number is the row of the collection they come
//! from; the name says what must hold here.

use millrace_crds::check;
use millrace_tests::spec::Spec;
use millrace_tests::{Outcome, Rec, Ride, Topics, plan, ride};
use serde_json::{Value, json};

/// A stream of orders joined with customers. `join` is the join's kind and its own fields, `keys` the type of the
/// stream's key column.
fn pipeline(join: &str, customer: &str, table_key: &str, table: &str) -> String {
    let spec =
        Spec { join, customer, table_key, table, order_key: "", order_time: "", dead_letter: true, ..Spec::default() };
    spec.yaml()
}

const VERSIONS: &str = ", versions: {retention: 10ms}";

fn order(id: i64, customer: Option<i64>, time: i64) -> Rec {
    Rec::new(id, &json!({"id": id, "customer": customer, "time": time})).at(time)
}

fn customer(id: i64, name: &str, since: i64) -> Rec {
    Rec::new(id, &json!({"customer": id, "name": name, "since": since})).at(since)
}

fn run(yaml: &str, orders: Vec<Rec>, customers: Vec<Rec>) -> Outcome {
    let topics = Topics::from([("orders".to_owned(), orders), ("customers".to_owned(), customers)]);
    let outcome = ride(&plan(yaml), &topics, &Ride::smooth()).expect("the run ends");
    assert!(outcome.totals.iter().all(|(_, totals)| totals.balanced()), "{:?}", outcome.totals);
    outcome
}

fn rows(outcome: &Outcome) -> Vec<(i64, Option<&str>)> {
    let row = |r: &'_ Value| r["value"]["id"].as_i64().expect("an id");
    outcome.topics["out"].iter().map(|r| (row(r), r["value"]["name"].as_str())).collect()
}

#[test]
fn case_71_a_first_start_behind_a_repartition_does_not_join_with_an_empty_table() {
    // JSON keys: both sides cross a repartition topic.
    let yaml = pipeline("tableJoin:", "BIGINT", "Json", "");
    let customers = (0..500).map(|c| customer(c, "there", 1000 + c)).collect();
    // The orders are older than any customer, so a merge by time alone would read them first.
    let orders = (0..500).map(|o| order(o, Some(o), o)).collect();
    let outcome = run(&yaml, orders, customers);
    assert_eq!(rows(&outcome).len(), 500);
    assert!(rows(&outcome).iter().all(|(_, name)| *name == Some("there")));
}

#[test]
fn case_73_a_left_join_keeps_a_row_with_a_null_key() {
    for join in ["tableJoin:", "temporalJoin:"] {
        let versions = if join == "tableJoin:" { "" } else { VERSIONS };
        let yaml = pipeline(join, "BIGINT", "String", versions);
        let outcome = run(&yaml, vec![order(1, None, 5), order(2, Some(7), 6)], vec![customer(7, "Ada", 1)]);
        assert_eq!(rows(&outcome), [(1, None), (2, Some("Ada"))], "{join}");
    }
}

#[test]
fn case_74_keys_of_different_types_are_refused_before_the_start() {
    for key in ["INT", "STRING", "DECIMAL(10,0)"] {
        let yaml = pipeline("tableJoin:", &format!("\"{key}\""), "String", "");
        let document = serde_saphyr::from_str(&yaml).expect("YAML");
        let pipeline = check::parse(&document).expect("the shape is right");
        let mistakes = millrace_plan::compile(&pipeline).expect_err("the other key is a BIGINT");
        assert!(mistakes.iter().any(|m| m.path.contains("keys") && m.hint.contains("CAST")), "{key}: {mistakes:?}");
    }
}

#[test]
fn case_75_a_row_older_than_the_retained_versions_is_routed_and_not_joined_with_a_wrong_one() {
    let yaml = pipeline("temporalJoin:", "BIGINT", "String", VERSIONS);
    let customers = vec![customer(7, "first", 0), customer(7, "second", 50)];
    let outcome = run(&yaml, vec![order(1, Some(7), 100), order(2, Some(7), 20), order(3, Some(7), 95)], customers);
    // Order 3 is late and within the retention; order 2 asks for a version that may be gone.
    let mut joined = rows(&outcome);
    joined.sort_unstable();
    assert_eq!(joined, [(1, Some("second")), (3, Some("second"))]);
    let dead = &outcome.topics["dead"];
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0]["value"]["id"], 2);
    assert_eq!(dead[0]["headers"]["millrace-error-code"], "VersionExpired");
    assert_eq!(dead[0]["headers"]["millrace-event-time"], "20");
}

#[test]
fn case_78_a_value_older_than_the_deletion_does_not_bring_the_key_back() {
    let yaml = pipeline("temporalJoin:", "BIGINT", "String", VERSIONS);
    let customers = vec![Rec::tombstone(7).at(10), customer(7, "old", 5)];
    let outcome = run(&yaml, vec![order(1, Some(7), 7), order(2, Some(7), 12)], customers);
    assert_eq!(rows(&outcome), [(1, Some("old")), (2, None)]);
}

#[test]
fn case_89_late_rows_that_are_dropped_are_counted_and_late_rows_can_be_routed() {
    let orders = || vec![order(1, Some(7), 10), order(2, Some(7), 5), order(3, Some(7), 12)];
    let yaml = pipeline("temporalJoin:\n        late: Drop", "BIGINT", "String", VERSIONS);
    let outcome = run(&yaml, orders(), vec![customer(7, "Ada", 1)]);
    assert_eq!(rows(&outcome), [(1, Some("Ada")), (3, Some("Ada"))]);
    let (_, totals) = outcome.totals.iter().find(|(step, _)| step.ends_with(" joined")).expect("it is counted");
    assert_eq!((totals.rows_in, totals.rows_out, totals.dropped_sum()), (3, 2, 1));

    let yaml = pipeline("temporalJoin:\n        late: DeadLetter", "BIGINT", "String", VERSIONS);
    let outcome = run(&yaml, orders(), vec![customer(7, "Ada", 1)]);
    assert_eq!(outcome.topics["dead"].len(), 1);
    assert_eq!(outcome.topics["dead"][0]["headers"]["millrace-error-code"], "Late");
}

#[test]
fn case_101_a_record_that_was_dropped_moves_no_position_past_one_that_failed() {
    // A poison record, then one that a tombstone drops; the process dies at every call in turn.
    let yaml = pipeline("tableJoin:", "BIGINT", "String", "");
    let poison = Rec::new(2, &json!({"id": "x"})).at(2);
    let topics = Topics::from([
        ("orders".to_owned(), vec![order(1, Some(7), 1), poison, Rec::tombstone(3).at(3), order(4, Some(7), 4)]),
        ("customers".to_owned(), vec![customer(7, "Ada", 1)]),
    ]);
    for calls in 0..30 {
        let faults = Ride { lives: vec![calls, calls], batch_records: 1, ..Ride::smooth() };
        let outcome = ride(&plan(&yaml), &topics, &faults).expect("the run ends");
        assert_eq!(rows(&outcome), [(1, Some("Ada")), (4, Some("Ada"))]);
        assert_eq!(outcome.topics["dead"].len(), 1);
    }
}

/// Customers come from Debezium; the orders read the table that these changes leave behind.
fn after(changes: Vec<Rec>, ids: &[i64]) -> Vec<(i64, Option<String>)> {
    let yaml = pipeline("tableJoin:", "BIGINT", "Json", "");
    let yaml = yaml.replacen(
        "format: {type: Json}\n      columns:\n        - {name: customer",
        "format: {type: DebeziumJson}\n      columns:\n        - {name: customer",
        1,
    );
    let orders = ids.iter().map(|id| order(*id, Some(*id), 1)).collect();
    let outcome = run(&yaml, orders, changes);
    rows(&outcome).into_iter().map(|(id, name)| (id, name.map(str::to_owned))).collect()
}

fn change(op: &str, id: i64, before: Option<&str>, after: Option<&str>, lsn: i64) -> Rec {
    let row = |name: &str| json!({"customer": id, "name": name, "since": 0});
    let value = json!({
        "before": before.map(row), "after": after.map(row), "op": op, "source": {"lsn": lsn}, "ts_ms": lsn,
    });
    Rec::new(json!({"customer": id}), &value).at(lsn)
}

fn named(id: i64, name: &str) -> (i64, Option<String>) {
    (id, Some(name.to_owned()))
}

#[test]
fn case_38_changes_in_commit_order_are_all_applied_though_their_positions_are_not_in_order() {
    let changes = [3, 5, 7, 4, 6].iter().map(|lsn| change("c", *lsn, None, Some("there"), *lsn)).collect();
    assert_eq!(after(changes, &[3, 4, 5, 6, 7]), [3, 4, 5, 6, 7].map(|id| named(id, "there")));
}

#[test]
fn case_55_and_57_rows_that_come_in_the_snapshot_and_again_in_the_log_are_one_row_and_none_is_lost() {
    let changes = vec![
        change("r", 1, None, Some("snapshot"), 10),
        change("c", 2, None, Some("in both"), 9),
        change("r", 2, None, Some("in both"), 10),
        change("u", 1, Some("snapshot"), Some("changed"), 11),
        change("c", 3, None, Some("behind the snapshot"), 12),
        change("d", 2, Some("in both"), None, 13),
    ];
    let expected = [named(1, "changed"), (2, None), named(3, "behind the snapshot")];
    assert_eq!(after(changes, &[1, 2, 3]), expected);
}

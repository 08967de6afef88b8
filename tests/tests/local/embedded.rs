//! The embedded log and what users meet on it: faults said clearly, runs that go on, nothing overwritten.

use std::fs;
use std::path::{Path, PathBuf};

use millrace_kafka_harness::wait;
use millrace_tests::{Rec, Ride, Topics, plan, read_topic, ride, story};
use serde_json::{Value, json};

const PIPELINE: &str = r#"
apiVersion: millrace.dev/v1alpha1
kind: Pipeline
metadata: {name: embedded, namespace: test}
spec:
  kafka: {bootstrapServers: "unused:9092"}
  sources:
    - name: orders
      kafka: {topic: orders}
      format: {type: Json}
      onError: ON_ERROR
      columns:
        - {name: id, type: BIGINT, nullable: false}
        - {name: amount, type: BIGINT}
        - {name: time, type: TIMESTAMP(3)}
      eventTime: {column: time, future: {maxSkew: 1h, policy: FUTURE}}
  steps:
    - name: large
      from: orders
      project: {where: "amount > 10", select: [id, "100 / (amount - 13) AS share"]}
  sinks:
    - name: out
      from: large
      kafka: {topic: out}
      format: {type: Json}
    - name: all
      from: orders
      kafka: {topic: all}
      format: {type: Json}
  DEAD_LETTER
"#;

fn pipeline(on_error: &str, future: &str, dead_letter: bool) -> String {
    let dead_letter = if dead_letter { "deadLetter: {kafka: {topic: dead}}" } else { "" };
    PIPELINE.replace("ON_ERROR", on_error).replace("FUTURE", future).replace("DEAD_LETTER", dead_letter)
}

fn order(id: i64, amount: i64, time: i64) -> Rec {
    Rec::new(id, &json!({"id": id, "amount": amount, "time": time})).at(1000)
}

fn orders(records: Vec<Rec>) -> Topics {
    Topics::from([("orders".to_owned(), records)])
}

fn ids(records: &[Value]) -> Vec<i64> {
    records.iter().filter_map(|r| r["value"]["id"].as_i64()).collect()
}

#[test]
fn a_row_that_an_expression_fails_on_is_a_dead_letter_and_the_others_go_on() {
    let plan = plan(&pipeline("DeadLetter", "Accept", true));
    let topics = orders(vec![order(1, 113, 0), order(2, 13, 0), order(3, 5, 0), order(4, 23, 0)]);
    let outcome = ride(&plan, &topics, &Ride::smooth()).expect("the run ends");
    assert_eq!(ids(&outcome.topics["out"]), [1, 4]);
    let dead = &outcome.topics["dead"];
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0]["value"]["id"], 2);
    assert_eq!(dead[0]["headers"]["millrace-error-code"], "ExpressionFailed");
    assert_eq!(dead[0]["headers"]["millrace-offset"], "1");
    assert_eq!(dead[0]["headers"]["millrace-source"], "orders");
    assert!(outcome.totals.iter().all(|(_, totals)| totals.balanced()), "{:?}", outcome.totals);
}

#[test]
fn case_123_and_125_a_poison_record_keeps_its_bytes_whatever_is_missing_in_it() {
    let plan = plan(&pipeline("DeadLetter", "Accept", true));
    let broken = Rec { key: None, value: Some("{\"id\":\"x\"}".to_owned()), timestamp: None, partition: 0 };
    let outcome = ride(&plan, &orders(vec![broken, order(2, 1, 0)]), &Ride::smooth()).expect("the run ends");
    assert_eq!(ids(&outcome.topics["all"]), [2]);
    let dead = &outcome.topics["dead"][0];
    assert_eq!(dead["value"], json!({"id": "x"}));
    assert!(dead.get("key").is_none());
    assert_eq!(dead["headers"]["millrace-timestamp"], "");
}

#[test]
fn without_a_dead_letter_topic_a_poison_record_stops_the_job_and_says_where() {
    let plan = plan(&pipeline("Stop", "Accept", false));
    let topics = orders(vec![order(1, 1, 0), Rec::new(2, &json!({"id": "x"}))]);
    let error = ride(&plan, &topics, &Ride::smooth()).err().map(|e| format!("{e:#}")).unwrap_or_default();
    assert!(error.contains("topic orders partition 0 offset 1"), "{error}");
    assert!(error.contains("onError: Skip"), "{error}");
}

#[test]
fn a_poison_record_that_is_skipped_is_counted() {
    let plan = plan(&pipeline("Skip", "Accept", false));
    let topics = orders(vec![order(1, 1, 0), Rec::new(2, &json!({"id": "x"})), order(3, 1, 0)]);
    let outcome = ride(&plan, &topics, &Ride::smooth()).expect("the run ends");
    assert_eq!(ids(&outcome.topics["all"]), [1, 3]);
    let (_, totals) = outcome.totals.iter().find(|(step, _)| step.ends_with("source orders")).expect("it is counted");
    assert_eq!((totals.rows_in, totals.rows_out, totals.dropped_sum()), (3, 2, 1));
}

#[test]
fn case_84_an_event_from_the_future_is_a_dead_letter_where_the_policy_says_so() {
    let plan = plan(&pipeline("DeadLetter", "DeadLetter", true));
    let topics = orders(vec![order(1, 1, 1000), order(2, 1, 1000 + 7_200_000), order(3, 1, 1000)]);
    let outcome = ride(&plan, &topics, &Ride::smooth()).expect("the run ends");
    assert_eq!(ids(&outcome.topics["all"]), [1, 3]);
    assert_eq!(outcome.topics["dead"][0]["headers"]["millrace-error-code"], "FutureEventTime");
}

fn program() -> PathBuf {
    story::millrace().expect("the real command is built")
}

/// Runs the real command on a folder.
fn millrace(dir: &Path, args: &[&str]) -> (Option<i32>, String) {
    let output = std::process::Command::new(program()).args(args).current_dir(dir).output().expect("the command runs");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

const RUN: [&str; 7] = ["run", "--local", "--topics", "topics", "-f", "pipeline.yaml", "--log-level=warn"];

fn folder(records: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    fs::create_dir(dir.path().join("topics")).expect("a folder");
    fs::write(dir.path().join("topics/orders.jsonl"), records).expect("a file");
    fs::write(dir.path().join("pipeline.yaml"), pipeline("Skip", "Accept", false)).expect("a file");
    dir
}

#[test]
fn a_run_with_state_goes_on_where_it_ended() {
    let dir = folder(&"{\"value\":{\"id\":1,\"time\":5}}\n".repeat(3));
    let args = [&RUN[..], &["--out", "out", "--state", "state"]].concat();
    assert_eq!(millrace(dir.path(), &args), (Some(0), String::new()));
    assert_eq!(read_topic(&dir.path().join("out"), "all").expect("results").len(), 3);
    assert_eq!(millrace(dir.path(), &args), (Some(0), String::new()));
    assert_eq!(read_topic(&dir.path().join("out"), "all").expect("results").len(), 3);
    let more = fs::read_to_string(dir.path().join("topics/orders.jsonl")).expect("a file")
        + "{\"value\":{\"id\":2,\"time\":6}}";
    fs::write(dir.path().join("topics/orders.jsonl"), more).expect("a file");
    assert_eq!(millrace(dir.path(), &args), (Some(0), String::new()));
    assert_eq!(ids(&read_topic(&dir.path().join("out"), "all").expect("results")), [1, 1, 1, 2]);
}

#[test]
fn results_of_another_run_are_never_overwritten() {
    let dir = folder("{\"value\":{\"id\":1,\"time\":5}}\n");
    fs::create_dir(dir.path().join("out")).expect("a folder");
    fs::write(dir.path().join("out/all.jsonl"), "precious\n").expect("a file");
    let (code, error) = millrace(dir.path(), &[&RUN[..], &["--out", "out", "--state", "state"]].concat());
    assert_eq!(code, Some(1));
    assert!(error.contains("out/all.jsonl holds results of another run"), "{error}");
    assert_eq!(fs::read_to_string(dir.path().join("out/all.jsonl")).expect("a file"), "precious\n");
}

#[test]
fn a_wrong_line_is_named_by_file_and_line() {
    let dir = folder("{\"value\":1}\n{\"vlaue\":1}\n");
    let (code, error) = millrace(dir.path(), &RUN);
    assert_eq!(code, Some(1));
    assert!(error.contains("orders.jsonl:2: not a record: unknown field `vlaue`"), "{error}");
}

#[test]
fn a_missing_topic_is_named_with_what_to_do() {
    let dir = folder("");
    fs::remove_file(dir.path().join("topics/orders.jsonl")).expect("it was there");
    let (code, error) = millrace(dir.path(), &RUN);
    assert_eq!(code, Some(1));
    assert!(error.contains("source 'orders': topic 'orders' does not exist"), "{error}");
}

#[test]
fn damaged_local_state_is_rebuilt_from_the_changelog() {
    let dir = folder(&"{\"value\":{\"id\":1,\"time\":5}}\n".repeat(3));
    let args = [&RUN[..], &["--out", "out", "--state", "state"]].concat();
    assert_eq!(millrace(dir.path(), &args).0, Some(0));
    for entry in walk(&dir.path().join("state/tasks")) {
        fs::write(&entry, "rubbish").expect("a file of the state");
    }
    let (code, error) = millrace(dir.path(), &args);
    assert_eq!(code, Some(0), "{error}");
    assert!(error.contains("rebuilt from the changelog"), "{error}");
    assert_eq!(read_topic(&dir.path().join("out"), "all").expect("results").len(), 3);
}

#[test]
fn a_truncated_changelog_is_an_error_and_not_an_empty_state() {
    let dir = folder(&"{\"value\":{\"id\":1,\"time\":5}}\n".repeat(3));
    let args = [&RUN[..], &["--out", "out", "--state", "state"]].concat();
    assert_eq!(millrace(dir.path(), &args).0, Some(0));
    for entry in walk(&dir.path().join("state/log")) {
        fs::write(&entry, "").expect("a file of the log");
    }
    let (code, error) = millrace(dir.path(), &args);
    assert_eq!(code, Some(1));
    assert!(error.contains("were committed"), "{error}");
}

fn walk(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() { files.extend(walk(&path)) } else { files.push(path) }
    }
    files
}

const WITH_TABLE: &str = r#"
apiVersion: millrace.dev/v1alpha1
kind: Pipeline
metadata: {name: embedded, namespace: test}
spec:
  kafka: {bootstrapServers: "unused:9092"}
  sources:
    - name: orders
      kafka: {topic: orders}
      key: {columns: [id], format: {type: String}}
      format: {type: Json}
      columns: [{name: id, type: BIGINT}]
    - name: names
      kafka: {topic: names}
      key: {columns: [id], format: {type: String}}
      format: {type: Json}
      columns: [{name: id, type: BIGINT}, {name: name, type: STRING}]
      table: {primaryKey: [id]}
  steps:
    - name: named
      from: orders
      STEP
  sinks:
    - name: all
      from: named
      kafka: {topic: all}
      format: {type: Json}
"#;

#[test]
fn a_table_that_an_edit_brings_back_is_read_anew() {
    let dir = folder("{\"key\":\"1\",\"value\":{\"id\":1}}\n");
    let join = "tableJoin: {table: names, joinType: Left, keys: [{left: id, right: id}], select: [id, name]}";
    let project = "project: {select: [id, \"'gone' AS name\"]}";
    let args = [&RUN[..], &["--out", "out", "--state", "state"]].concat();
    let run = |step: &str, names: &str, orders: usize| {
        fs::write(dir.path().join("topics/names.jsonl"), names).expect("a file");
        let orders = "{\"key\":\"1\",\"value\":{\"id\":1}}\n".repeat(orders);
        fs::write(dir.path().join("topics/orders.jsonl"), orders).expect("a file");
        fs::write(dir.path().join("pipeline.yaml"), WITH_TABLE.replace("STEP", step)).expect("a file");
        let (code, error) = millrace(dir.path(), &args);
        assert_eq!(code, Some(0), "{error}");
    };
    run(join, "{\"key\":\"1\",\"value\":{\"id\":1,\"name\":\"Ada\"}}\n", 1);
    run(project, "", 2);
    // The row was deleted while nobody read the table, and the log has forgotten the tombstone.
    run(join, "", 3);
    let results = read_topic(&dir.path().join("out"), "all").expect("results");
    let names: Vec<&Value> = results.iter().map(|r| &r["value"]["name"]).collect();
    assert_eq!(names, [&json!("Ada"), &json!("gone"), &Value::Null]);
}

#[test]
fn a_file_that_grows_after_its_end_gives_what_one_run_over_all_of_it_gives() {
    let dir = folder("");
    let yaml = WITH_TABLE
        .replace(
            "{name: id, type: BIGINT}]\n",
            "{name: id, type: BIGINT}, {name: time, type: TIMESTAMP(3)}]\n      eventTime: {column: time}\n",
        )
        .replace(
            "{name: name, type: STRING}]",
            "{name: name, type: STRING}, {name: time, type: TIMESTAMP(3)}]\n      eventTime: {column: time}",
        )
        .replace("{primaryKey: [id]}", "{primaryKey: [id], versions: {retention: 7d}}")
        .replace("STEP", "temporalJoin: {table: names, keys: [{left: id, right: id}], select: [id, name]}");
    fs::write(dir.path().join("pipeline.yaml"), yaml).expect("a file");
    let args = [&RUN[..], &["--out", "out", "--state", "state"]].concat();
    let (mut orders, mut names) = (String::new(), String::new());
    let mut grow = |order: Option<i64>, versions: &[(&str, i64)]| {
        orders.extend(order.map(|time| format!("{{\"key\":\"1\",\"value\":{{\"id\":1,\"time\":{time}}}}}\n")));
        let version = |(name, time): &(&str, i64)| {
            format!("{{\"key\":\"1\",\"value\":{{\"id\":1,\"name\":\"{name}\",\"time\":{time}}}}}\n")
        };
        names.extend(versions.iter().map(version));
        fs::write(dir.path().join("topics/orders.jsonl"), &orders).expect("a file");
        fs::write(dir.path().join("topics/names.jsonl"), &names).expect("a file");
        let (code, error) = millrace(dir.path(), &args);
        assert_eq!(code, Some(0), "{error}");
    };
    grow(Some(1_000), &[("first", 0)]);
    grow(None, &[("second", 100_000), ("third", 200_000)]);
    grow(Some(150_000), &[]);
    let results = read_topic(&dir.path().join("out"), "all").expect("results");
    let names: Vec<&str> = results.iter().filter_map(|r| r["value"]["name"].as_str()).collect();
    assert_eq!(names, ["first", "second"]);
}

#[test]
fn another_source_topic_is_refused_by_the_state_of_the_old_one() {
    let dir = folder("{\"value\":{\"id\":1,\"time\":5}}\n");
    let args = [&RUN[..], &["--out", "out", "--state", "state"]].concat();
    assert_eq!(millrace(dir.path(), &args).0, Some(0));
    let text = fs::read_to_string(dir.path().join("pipeline.yaml")).expect("a file");
    fs::write(dir.path().join("pipeline.yaml"), text.replace("topic: orders", "topic: orders2")).expect("a file");
    fs::copy(dir.path().join("topics/orders.jsonl"), dir.path().join("topics/orders2.jsonl")).expect("a copy");
    let (code, error) = millrace(dir.path(), &args);
    assert_eq!(code, Some(1));
    assert!(error.contains("source 'orders': it read topic 'orders' and reads 'orders2' now"), "{error}");
    assert_eq!(read_topic(&dir.path().join("out"), "all").expect("results").len(), 1);
}

#[test]
fn a_partition_that_appears_while_a_run_follows_is_an_error_and_not_unread() {
    let dir = folder("{\"value\":{\"id\":1,\"time\":5}}\n");
    let mut command = std::process::Command::new(program());
    command.args(RUN).args(["--follow", "--out", "out", "--state", "state"]).current_dir(dir.path());
    let mut child = command.stderr(std::process::Stdio::piped()).spawn().expect("the command starts");
    let result = || Ok(read_topic(&dir.path().join("out"), "all").is_ok_and(|r| r.len() == 1));
    wait::until("the first result", story::DEADLINE, result).expect("it comes");
    let more = "{\"value\":{\"id\":1,\"time\":5}}\n{\"partition\":1,\"value\":{\"id\":2,\"time\":5}}\n";
    fs::write(dir.path().join("topics/orders.jsonl"), more).expect("a file");
    let code = child.wait().expect("it ends").code();
    let mut error = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().expect("it is piped"), &mut error).expect("text");
    assert_eq!(code, Some(1));
    assert!(error.contains("orders.jsonl:2: partition 1 is new"), "{error}");
}

#[test]
fn a_disk_that_is_full_stops_the_run_and_the_next_one_goes_on() {
    let dir = folder(&"{\"value\":{\"id\":1,\"time\":5}}\n".repeat(5000));
    let args = [&RUN[..], &["--out", "out", "--state", "state"]].concat();
    // A limit on the size of files, in KiB, stands for the disk; without the signal a write fails as on a full one.
    let script = format!("trap '' XFSZ; ulimit -f 64; exec {} {}", program().display(), args.join(" "));
    let output = std::process::Command::new("bash").args(["-c", &script]).current_dir(dir.path()).output();
    let output = output.expect("bash runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("error: "), "{error}");
    assert_eq!(millrace(dir.path(), &args), (Some(0), String::new()));
    assert_eq!(read_topic(&dir.path().join("out"), "all").expect("results").len(), 5000);
}

#[test]
fn a_case_tells_decimals_apart_that_a_float_cannot() {
    let dir = folder("");
    let yaml = WITH_TABLE
        .replace("id, type: BIGINT", "id, type: \"DECIMAL(22,2)\"")
        .replace("STEP", "project: {select: [id]}");
    let yaml = yaml.replace("key: {columns: [id], format: {type: String}}\n      format", "format");
    fs::write(dir.path().join("pipeline.yaml"), yaml).expect("a file");
    let case = dir.path().join("cases/digits");
    fs::create_dir_all(case.join("input")).expect("a folder");
    fs::create_dir_all(case.join("expected")).expect("a folder");
    fs::write(case.join("input/orders.jsonl"), "{\"value\":{\"id\":12345678901234567890.12}}\n").expect("a file");
    let expected = case.join("expected/all.jsonl");
    let test = || millrace(dir.path(), &["test", "-f", "pipeline.yaml", "cases", "--log-level=error"]).0;
    fs::write(&expected, "{\"value\":{\"id\":12345678901234567999.99}}\n").expect("a file");
    assert_eq!(test(), Some(1));
    fs::write(&expected, "{\"value\" : {\"id\":12345678901234567890.12}}\n").expect("a file");
    assert_eq!(test(), Some(0));
}

//! Backfills beside a pipeline that runs.

use std::collections::BTreeMap;

use millrace_core::ids::Partition;
use millrace_core::report::{BackfillReport, CleanupReport, PartReport};
use millrace_core::totals::{DropReason, Totals};
use millrace_operator_core::decide::decide_alone;
use millrace_operator_core::slo::books::Said;

use super::*;

const MINUTE_MS: i64 = 60_000;

/// Two workers that run two tasks, with a sink that can be repaired; and a Backfill of it.
fn asked(more: &Value) -> Observed {
    let mut spec = spec();
    spec["sinks"][0]["key"] = json!({"columns": ["amount"]});
    spec["sinks"][0]["write"] = json!({"mode": "Upsert"});
    spec["slos"] = json!([{"name": "fresh", "freshness": {"threshold": "30s"}, "objective": "99"}]);
    let mut observed = running_as(&spec, compiled("old", StateFit::Kept), 2);
    observed.slos = Some(Said::default());
    observed.backfills.push(backfill("again", "b1", more));
    observed
}

fn backfill(name: &str, uid: &str, more: &Value) -> Value {
    let mut spec = json!({
        "pipelineRef": {"name": "p"},
        "mode": "Repair",
        "range": {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"},
    });
    millrace_operator_core::render::template::merge(&mut spec, more);
    json!({
        "apiVersion": millrace_crds::pipeline::API_VERSION,
        "kind": millrace_crds::backfill::KIND,
        "metadata": {
            "name": name, "namespace": "shop", "uid": uid, "generation": 1, "resourceVersion": "1",
            "creationTimestamp": format!("2026-01-01T00:00:0{}Z", &uid[1..]),
        },
        "spec": spec,
    })
}

/// Decides once and does it, for Backfills too, and for Jobs that go.
fn look_at(observed: &mut Observed, now: Timestamp) -> Decision {
    observed.reported_ms = Some(now.ms());
    let decision = decide(observed, &settings(), now);
    carry_out(observed, &decision);
    for action in &decision.actions {
        match action {
            Action::BackfillStatus { uid, status, .. } => {
                let there = observed.backfills.iter_mut().find(|backfill| backfill["metadata"]["uid"] == uid.as_str());
                there.expect("it is there")["status"] = json!(status);
            }
            Action::Delete { kind, name, .. } => {
                observed
                    .children
                    .retain(|child| child["kind"] != kind.as_str() || child["metadata"]["name"] != name.as_str());
            }
            _ => {}
        }
    }
    decision
}

fn look(observed: &mut Observed) -> Decision {
    look_at(observed, NOW)
}

fn later(ms: i64) -> Timestamp {
    Timestamp::from_ms(NOW.ms() + ms)
}

/// Phase and message of a Backfill.
fn stands(observed: &Observed, place: usize) -> (String, String) {
    let status = &observed.backfills[place]["status"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&status["phase"]), text(&status["message"]))
}

fn phase(observed: &Observed) -> String {
    stands(observed, 0).0
}

fn jobs<'a>(observed: &'a Observed, component: &str) -> Vec<&'a Value> {
    let name = format!("p-{component}-");
    let is_one = |child: &&Value| {
        child["kind"] == "Job" && child["metadata"]["name"].as_str().is_some_and(|own| own.starts_with(&name))
    };
    observed.children.iter().filter(is_one).collect()
}

/// The Job of a component has ended, and its container said this.
fn answer(observed: &mut Observed, component: &str, kind: &str, said: &Value) {
    let name = format!("p-{component}-");
    let is_one = |job: &&mut Value| {
        job["kind"] == "Job" && job["metadata"]["name"].as_str().is_some_and(|own| own.starts_with(&name))
    };
    let job = observed.children.iter_mut().rev().find(is_one).unwrap_or_else(|| panic!("there is no Job {name}"));
    let end = json!({"type": kind, "status": "True", "lastTransitionTime": NOW, "message": said.to_string()});
    job["status"]["conditions"] = json!([end]);
}

/// The pod of its Job, as Kubernetes shows it.
fn compute(observed: &mut Observed, state: &Value) {
    let job = jobs(observed, "backfill")[0]["metadata"].clone();
    let mut labels = job["labels"].clone();
    labels["batch.kubernetes.io/job-name"] = job["name"].clone();
    observed.children.retain(|child| child["metadata"]["name"] != "pod-of-it");
    observed.children.push(json!({
        "kind": "Pod",
        "metadata": {"name": "pod-of-it", "uid": "pod-of-it", "labels": labels},
        "status": {"podIP": "10.0.0.9", "containerStatuses": [state]},
    }));
}

fn totals(rows_in: u64, rows_out: u64, dropped: &[(DropReason, u64)]) -> Totals {
    Totals { rows_in, rows_out, dropped: dropped.iter().copied().collect(), ..Totals::default() }
}

/// Half of it is read.
fn half() -> BackfillReport {
    let part = PartReport { source: "a".to_owned(), partition: Partition(0), from: 100, to: 300, next: 200 };
    BackfillReport {
        parts: vec![part],
        offsets_per_second: Some(1),
        records: 100,
        rows: 90,
        totals: BTreeMap::from([
            ("source a".to_owned(), totals(100, 100, &[])),
            ("s".to_owned(), totals(100, 90, &[(DropReason::Filtered, 10)])),
        ]),
        ..BackfillReport::default()
    }
}

/// All of it is read, and taken.
fn whole() -> BackfillReport {
    let mut report = half();
    report.parts[0].next = 300;
    (report.records, report.rows, report.computed, report.taken) = (200, 180, true, true);
    report.totals.insert("source a".to_owned(), totals(200, 200, &[]));
    report.totals.insert("s".to_owned(), totals(200, 180, &[(DropReason::Filtered, 20)]));
    report
}

/// What each of the two workers has done with rows of backfills since the pipeline's start.
fn took(observed: &mut Observed, each: &Totals) {
    for report in observed.reports.values_mut() {
        report.repairs = BTreeMap::from([("o".to_owned(), each.clone())]);
    }
}

/// What an earlier one of its name had in Kafka is deleted, and its pod is made.
fn clean(observed: &mut Observed) {
    look(observed);
    answer(observed, "tidy", "Complete", &json!(CleanupReport::default()));
    (0..2).for_each(|_| drop(look(observed)));
}

/// One that runs, and whose pod answers.
fn computing(more: &Value) -> Observed {
    let mut observed = asked(more);
    took(&mut observed, &totals(5, 5, &[]));
    look(&mut observed);
    assert_eq!(phase(&observed), "Pending");
    clean(&mut observed);
    compute(&mut observed, &json!({"state": {"running": {}}}));
    observed.backfill = Some(half());
    observed
}

/// One that has ended well, with 160 rows written.
fn done() -> Observed {
    let mut observed = computing(&json!({}));
    look(&mut observed);
    observed.backfill = None;
    compute(&mut observed, &json!({"state": {"terminated": {"exitCode": 0, "message": json!(whole()).to_string()}}}));
    answer(&mut observed, "backfill", "Complete", &json!("ended"));
    took(&mut observed, &totals(5 + 90, 5 + 80, &[(DropReason::Outdated, 7), (DropReason::SameVersion, 3)]));
    look(&mut observed);
    observed
}

#[test]
fn a_backfill_is_begun_once_told_how_far_it_is_and_succeeds_when_its_counts_balance() {
    let mut observed = computing(&json!({}));
    look(&mut observed);
    let status = &observed.backfills[0]["status"];
    assert_eq!(
        (phase(&observed).as_str(), &status["progress"], &status["eta"]),
        ("Running", &json!("50%"), &json!("2m"))
    );
    assert_eq!(status["counts"]["computed"], 90);
    assert_eq!(status["counts"]["applied"], 0, "what was there before is none of it");
    assert_eq!(status["ranges"], json!([{"source": "a", "partition": 0, "from": 100, "to": 300}]));
    let conditions = observed.pipeline["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let active = conditions.iter().find(|condition| condition["type"] == "BackfillActive").expect("there is one");
    assert_eq!(
        (&active["status"], &active["message"]),
        (&json!("True"), &json!("Backfill again is computed beside it"))
    );
    assert_eq!(look(&mut observed).actions, [], "nothing has changed");
    observed.backfill = Some(BackfillReport { taken: false, ..whole() });
    look_at(&mut observed, later(MINUTE_MS));
    assert_eq!(phase(&observed), "Applying");
    let observed = done();
    let status = &observed.backfills[0]["status"];
    let counts = json!({"records": 200, "computed": 180, "applied": 160, "guarded": 20, "deadLettered": 0, "late": 0});
    assert_eq!((phase(&observed).as_str(), &status["counts"]), ("Succeeded", &counts));
    assert_eq!(status["conditions"][0]["status"], "True");
    assert_eq!(status["progress"], "100%");
}

#[test]
fn the_pod_of_one_is_in_nobodys_way_and_has_what_it_needs() {
    let mut observed = asked(&json!({}));
    observed.reported_ms = Some(NOW.ms());
    let mut settings = settings();
    settings.backfill.priority_class_name = "low".to_owned();
    settings.backfill.resources = serde_json::from_value(json!({"requests": {"cpu": "50m"}})).expect("an object");
    settings.resources = serde_json::from_value(json!({"requests": {"cpu": "2", "memory": "1Gi"}})).expect("an object");
    for _ in 0..4 {
        let decision = decide(&observed, &settings, NOW);
        carry_out(&mut observed, &decision);
        if jobs(&observed, "tidy").len() == 1 {
            answer(&mut observed, "tidy", "Complete", &json!(CleanupReport::default()));
        }
    }
    let pod = jobs(&observed, "backfill")[0]["spec"]["template"]["spec"].clone();
    let main = &pod["containers"][0];
    assert_eq!((&pod["priorityClassName"], &pod["restartPolicy"]), (&json!("low"), &json!("OnFailure")));
    assert_eq!(main["resources"]["requests"], json!({"cpu": "50m", "memory": "1Gi"}));
    let command: Vec<&str> = main["command"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for flags in
        [["--backfill", "/etc/millrace/backfill/backfill.json"], ["--lanes", "2"], ["--control", "0.0.0.0:9465"]]
    {
        assert!(command.windows(2).any(|pair| pair == flags), "{flags:?} in {command:?}");
    }
    assert!(!command.contains(&"--assignment"), "it assigns to itself");
}

#[test]
fn the_same_is_done_once_until_its_attempt_is_raised() {
    let mut observed = done();
    // What it had in Kafka is deleted, and the Jobs go.
    look(&mut observed);
    answer(&mut observed, "tidy", "Complete", &json!(CleanupReport::default()));
    (0..3).for_each(|_| drop(look(&mut observed)));
    assert_eq!((jobs(&observed, "tidy").len(), jobs(&observed, "backfill").len()), (0, 0));
    assert_eq!(look(&mut observed).actions, []);
    // Made again, as GitOps does.
    observed.backfills[0] = backfill("again", "b2", &json!({"rateLimit": {"recordsPerSecond": 5}}));
    look(&mut observed);
    let (phase, message) = stands(&observed, 0);
    assert_eq!(phase, "AlreadyDone");
    assert!(message.contains("raise spec.attempt"), "{message}");
    assert_eq!(jobs(&observed, "backfill").len(), 0);
    observed.backfills[0]["spec"]["attempt"] = json!(2);
    look(&mut observed);
    clean(&mut observed);
    assert_eq!(jobs(&observed, "backfill").len(), 1);
    // Another range is another one.
    let other = json!({"range": {"to": "2026-01-03T00:00:00Z"}});
    let mut observed = done();
    observed.backfills[0] = backfill("again", "b2", &other);
    look(&mut observed);
    answer(&mut observed, "tidy", "Complete", &json!(CleanupReport::default()));
    (0..2).for_each(|_| drop(look(&mut observed)));
    clean(&mut observed);
    assert_eq!(jobs(&observed, "backfill").len(), 1);
}

#[test]
fn an_attempt_that_is_raised_while_it_runs_comes_behind() {
    let mut observed = computing(&json!({}));
    look(&mut observed);
    observed.backfills[0]["spec"]["attempt"] = json!(2);
    observed.backfill = None;
    compute(&mut observed, &json!({"state": {"terminated": {"exitCode": 0, "message": json!(whole()).to_string()}}}));
    answer(&mut observed, "backfill", "Complete", &json!("ended"));
    took(&mut observed, &totals(5 + 90, 5 + 90, &[]));
    look(&mut observed);
    let status = observed.backfills[0]["status"].clone();
    assert_eq!((&status["phase"], &status["attempt"]), (&json!("Succeeded"), &json!(1)));
    observed.children.retain(|child| child["metadata"]["name"] != "pod-of-it");
    look(&mut observed);
    answer(&mut observed, "tidy", "Complete", &json!(CleanupReport::default()));
    (0..3).for_each(|_| drop(look(&mut observed)));
    clean(&mut observed);
    let status = &observed.backfills[0]["status"];
    assert_eq!((&status["phase"], &status["attempt"]), (&json!("Running"), &json!(2)));
}

#[test]
fn a_pod_that_does_not_answer_once_changes_nothing_that_is_said() {
    let mut observed = computing(&json!({"rateLimit": {"recordsPerSecond": 0}}));
    observed.backfill.as_mut().expect("it answers").records_per_second = Some(0);
    look(&mut observed);
    assert_eq!(phase(&observed), "Paused");
    let answered = observed.backfill.take();
    assert_eq!(look(&mut observed).actions, []);
    observed.backfill = answered;
    // And one that has begun again, and tells of nothing yet, takes no number back.
    let before = observed.backfills[0]["status"]["counts"].clone();
    observed.backfill = Some(BackfillReport { records_per_second: Some(0), ..BackfillReport::default() });
    look_at(&mut observed, later(MINUTE_MS));
    assert_eq!(observed.backfills[0]["status"]["counts"], before);
}

#[test]
fn what_is_lost_is_listed() {
    let mut observed = computing(&json!({}));
    look(&mut observed);
    let mut report = whole();
    report.totals.insert("s".to_owned(), totals(200, 180, &[(DropReason::DeadLettered, 20)]));
    answer(&mut observed, "backfill", "Complete", &json!(report));
    observed.children.retain(|child| child["metadata"]["name"] != "pod-of-it");
    observed.backfill = None;
    took(&mut observed, &totals(5 + 89, 5 + 89, &[]));
    look(&mut observed);
    assert_eq!(phase(&observed), "Applying", "a worker may not have told yet");
    look_at(&mut observed, later(2 * MINUTE_MS));
    let (phase, message) = stands(&observed, 0);
    assert_eq!(phase, "CompletedWithLoss");
    let lost = json!(["s: 20 dead_lettered", "180 rows were computed, and the pipeline has taken 178"]);
    assert_eq!(observed.backfills[0]["status"]["lost"], lost, "{message}");
}

#[test]
fn it_makes_way_while_the_slo_burns_and_comes_back_slowly() {
    let mut observed = computing(&json!({"yieldToLive": {"slo": "fresh"}, "rateLimit": {"recordsPerSecond": 6000}}));
    let paces = |observed: &mut Observed, quiet_ms: i64| {
        let said = Said { quiet_ms: [("fresh".to_owned(), quiet_ms)].into(), ..Said::default() };
        observed.slos = Some(said);
        let decision = look(observed);
        let told = decision.actions.iter().find_map(|action| match action {
            Action::Pace { address, records_per_second } => Some((address.clone(), *records_per_second)),
            _ => None,
        });
        if let (Some((address, rate)), Some(report)) = (&told, &mut observed.backfill) {
            assert_eq!(address, "10.0.0.9:9465");
            report.records_per_second = *rate;
        }
        told.map(|(_, rate)| rate)
    };
    assert_eq!(paces(&mut observed, 9 * MINUTE_MS), Some(Some(6_000)), "it begins with what the pod does not know yet");
    assert_eq!(paces(&mut observed, 9 * MINUTE_MS), None);
    assert_eq!(paces(&mut observed, 5_000), Some(Some(0)));
    assert_eq!(phase(&observed), "Paused");
    let yielding = &observed.backfills[0]["status"]["conditions"][1];
    assert_eq!((&yielding["type"], &yielding["status"]), (&json!("Yielding"), &json!("True")));
    assert_eq!(paces(&mut observed, 59_000), None);
    assert_eq!(paces(&mut observed, 60_000), Some(Some(1_000)));
    assert_eq!(phase(&observed), "Running");
    assert_eq!(paces(&mut observed, 85_000), Some(Some(4_000)));
    assert_eq!(paces(&mut observed, 100_000), Some(Some(6_000)), "the limit of its spec");
    let silent = observed.reports.remove(&1).expect("it answered");
    assert_eq!(paces(&mut observed, 9 * MINUTE_MS), Some(Some(0)), "a worker does not answer");
    assert!(stands(&observed, 0).1.contains("does not answer"));
    observed.reports.insert(1, silent);
    assert_eq!(paces(&mut observed, 9 * MINUTE_MS), Some(Some(6_000)));
    observed.backfills[0]["spec"]["rateLimit"] = json!({"recordsPerSecond": 0});
    assert_eq!(paces(&mut observed, 9 * MINUTE_MS), Some(Some(0)));
    assert_eq!(stands(&observed, 0), ("Paused".to_owned(), "spec.rateLimit is 0".to_owned()));
    observed.backfills[0]["spec"].as_object_mut().expect("a spec").remove("rateLimit");
    assert_eq!(paces(&mut observed, 9 * MINUTE_MS), Some(None), "no limit");
    let mut observed = asked(&json!({"yieldToLive": {"slo": "none"}}));
    look(&mut observed);
    let (phase, message) = stands(&observed, 0);
    assert!(phase == "Pending" && message.contains("has no SLO 'none'"), "{message}");
}

#[test]
fn one_that_is_suspended_has_no_pod_and_goes_on_with_the_plan_that_it_began_with() {
    let mut observed = computing(&json!({}));
    look(&mut observed);
    observed.backfills[0]["spec"]["suspend"] = json!(true);
    look(&mut observed);
    assert_eq!((phase(&observed).as_str(), jobs(&observed, "backfill").len()), ("Paused", 0));
    // The pipeline has another plan meanwhile; the former one is kept.
    let edited = running_as(&observed.pipeline["spec"].clone(), compiled("old", StateFit::Kept), 2);
    for child in edited.children {
        let name = child["metadata"]["name"].clone();
        if name == "p-applied" {
            let mut applied: Applied =
                serde_json::from_str(child["data"]["applied.json"].as_str().expect("a text")).expect("applied");
            applied.plan = 2;
            let there =
                observed.children.iter_mut().find(|child| child["metadata"]["name"] == name).expect("it is there");
            there["data"]["applied.json"] = json!(json!(applied).to_string());
        }
    }
    observed.backfills[0]["spec"]["suspend"] = json!(false);
    look(&mut observed);
    let volumes = jobs(&observed, "backfill")[0]["spec"]["template"]["spec"]["volumes"].clone();
    assert!(
        volumes.as_array().into_iter().flatten().any(|volume| volume["configMap"]["name"] == "p-plan-old"),
        "{volumes}"
    );
    assert_eq!(observed.backfills[0]["status"]["plan"]["number"], 1);
}

#[test]
fn backfills_of_one_pipeline_run_one_after_another() {
    let mut observed = computing(&json!({}));
    observed.backfills.push(backfill("more", "b2", &json!({"range": {"to": "2026-01-03T00:00:00Z"}})));
    look(&mut observed);
    assert_eq!(stands(&observed, 1).0, "Pending");
    assert_eq!(jobs(&observed, "backfill").len(), 1);
    // One that waits for a person is in nobody's way.
    let mut observed = asked(&json!({"sinks": ["x"]}));
    observed.backfills.push(backfill("more", "b2", &json!({})));
    look(&mut observed);
    clean(&mut observed);
    assert!(stands(&observed, 0).1.contains("'x' is no sink"), "{:?}", stands(&observed, 0));
    assert_eq!((stands(&observed, 1).0.as_str(), jobs(&observed, "backfill").len()), ("Running", 1));
}

#[test]
fn one_whose_object_goes_is_stopped_and_what_it_has_written_is_said() {
    let mut observed = computing(&json!({}));
    look(&mut observed);
    took(&mut observed, &totals(5 + 30, 5 + 21, &[(DropReason::Outdated, 9)]));
    let object = observed.backfills.pop().expect("it was there");
    look(&mut observed);
    assert_eq!(jobs(&observed, "backfill").len(), 0, "it ends at once");
    let decision = look_at(&mut observed, later(2 * MINUTE_MS));
    assert_eq!(jobs(&observed, "tidy").len(), 0, "its pod may still write");
    observed.children.retain(|child| child["metadata"]["name"] != "pod-of-it");
    let said = decision.events.iter().find(|event| event.reason == "BackfillStopped").expect("it is said");
    assert!(said.note.contains("42 rows of it were written to o"), "{}", said.note);
    // What was not done is done when it comes again.
    let mut again = object;
    again["metadata"]["uid"] = json!("b7");
    again["status"] = Value::Null;
    observed.backfills.push(again);
    look_at(&mut observed, later(2 * MINUTE_MS));
    answer(&mut observed, "tidy", "Complete", &json!(CleanupReport::default()));
    (0..2).for_each(|_| drop(look_at(&mut observed, later(3 * MINUTE_MS))));
    clean(&mut observed);
    assert_eq!(jobs(&observed, "backfill").len(), 1);
}

#[test]
fn what_cannot_be_done_is_said_and_is_not_tried_again_by_itself() {
    let mut observed = computing(&json!({}));
    observed.backfill = None;
    let errors = vec!["spec.range.from: is not in the log any more".to_owned()];
    let report = json!(BackfillReport { errors, ..BackfillReport::default() }).to_string();
    compute(&mut observed, &json!({"state": {"terminated": {"exitCode": 2, "message": report}}}));
    look(&mut observed);
    look(&mut observed);
    let (phase, message) = stands(&observed, 0);
    assert_eq!(phase, "Failed");
    assert!(message.contains("is not in the log any more") && message.contains("raise spec.attempt"), "{message}");
    assert_eq!(jobs(&observed, "backfill").len(), 0);
    assert_eq!(observed.backfills[0]["status"]["conditions"][2]["status"], "True");
}

#[test]
fn a_restore_of_the_pipeline_ends_it() {
    let mut observed = computing(&json!({}));
    let applied =
        observed.children.iter_mut().find(|child| child["metadata"]["name"] == "p-applied").expect("it is there");
    let text = applied["data"]["applied.json"].as_str().expect("a text");
    let mut value: Applied = serde_json::from_str(text).expect("applied");
    value.timeline = Timeline(2);
    applied["data"]["applied.json"] = json!(json!(value).to_string());
    look(&mut observed);
    assert_eq!(phase(&observed), "Failed");
}

#[test]
fn one_without_a_pipeline_waits_for_a_person() {
    let alone = [backfill("again", "b1", &json!({}))];
    let decision = decide_alone(&[], &alone, &[], NOW);
    let Some(Action::BackfillStatus { status, .. }) = decision.actions.first() else { panic!("{decision:?}") };
    assert!(status.message.as_ref().is_some_and(|text| text.contains("no Pipeline p")), "{status:?}");
}

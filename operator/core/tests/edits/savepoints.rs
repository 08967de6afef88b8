//! Savepoints of a pipeline that runs, and restores of it.

use std::collections::BTreeMap;

use millrace_core::ids::{Epoch, Partition, TaskId};
use millrace_core::report::{CutReport, CutTask, RestoreReport, SavepointReport, cut_digest};
use millrace_operator_core::decide::decide_alone;
use millrace_operator_core::names::SUBJECT;

use super::*;

/// Two workers that run two tasks, with a storage; and a Savepoint that asks for them.
fn saved() -> Observed {
    let mut spec = spec();
    spec["state"] = json!({"storage": {"file": {"path": "/savepoints"}}});
    let sink = json!([{"from": {"Input": 0}, "to": {"Sink": "o"}}]);
    let plan = json!({"stages": [{"name": "s", "outputs": sink}], "exchanges": []});
    let compiled = Compiled { plan: Some(plan), ..compiled("old", StateFit::Kept) };
    let mut observed = running_as(&spec, compiled, 2);
    observed.savepoints.push(savepoint("before", "5a7e", &json!({"pipelineRef": {"name": "p"}})));
    observed
}

fn savepoint(name: &str, uid: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": millrace_crds::pipeline::API_VERSION,
        "kind": millrace_crds::savepoint::KIND,
        "metadata": {
            "name": name, "namespace": "shop", "uid": uid, "generation": 1, "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": spec,
    })
}

/// Decides once and does it, for Savepoints too.
fn look(observed: &mut Observed) -> Decision {
    let decision = decide(observed, &settings(), NOW);
    carry_out(observed, &decision);
    heed(&mut observed.savepoints, &decision);
    decision
}

fn heed(savepoints: &mut [Value], decision: &Decision) {
    for action in &decision.actions {
        match action {
            Action::SavepointStatus { name, status, .. } => {
                let savepoint = savepoints.iter_mut().find(|savepoint| savepoint["metadata"]["name"] == name.as_str());
                savepoint.expect("it is there")["status"] = json!(status);
            }
            Action::SetFinalizers { savepoint: Some(name), finalizers, .. } => {
                let savepoint = savepoints.iter_mut().find(|savepoint| savepoint["metadata"]["name"] == name.as_str());
                savepoint.expect("it is there")["metadata"]["finalizers"] = json!(finalizers);
            }
            _ => {}
        }
    }
}

/// Phase and reason of `Ready` of the first Savepoint.
fn stands(observed: &Observed) -> (String, String) {
    let status = &observed.savepoints[0]["status"];
    let ready = status["conditions"].as_array().into_iter().flatten().find(|c| c["type"] == "Ready");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&status["phase"]), ready.map(|ready| text(&ready["reason"])).unwrap_or_default())
}

fn phase(observed: &Observed) -> String {
    stands(observed).0
}

/// Workers have cut what they run at an epoch, for the savepoint of the assignment.
fn cut(observed: &mut Observed, epoch: u64, stored: bool) {
    follow(observed, true);
    let Some(told) = assigned(observed).savepoint else { return };
    for report in observed.reports.values_mut() {
        let task = |task: &TaskReport| CutTask {
            stage: task.stage.clone(),
            partition: task.partition,
            epoch: Epoch(epoch),
            stored,
        };
        let tasks = report.tasks.iter().map(task).collect();
        report.savepoint = Some(CutReport { id: told.id.clone(), tasks, messages: Vec::new() });
    }
}

/// What the Job for a component says.
fn answer(observed: &mut Observed, component: &str, said: &Value) {
    let name = format!("p-{component}-");
    let job = |job: &&mut Value| {
        job["kind"] == "Job" && job["metadata"]["name"].as_str().is_some_and(|own| own.starts_with(&name))
    };
    let at = "2026-01-01T00:00:00Z";
    let end = json!({"type": "Complete", "status": "True", "lastTransitionTime": at, "message": said.to_string()});
    let job = observed.children.iter_mut().find(job).unwrap_or_else(|| panic!("there is no Job {name}"));
    job["status"]["conditions"] = json!([end]);
}

fn written(epoch: u64) -> Value {
    let task = |partition| TaskId { stage: "s".to_owned(), partition: Partition(partition) };
    let epochs: BTreeMap<TaskId, Epoch> = (0..2).map(|partition| (task(partition), Epoch(epoch))).collect();
    json!(SavepointReport {
        location: "file:///savepoints/5a7e/savepoint.json".to_owned(),
        bytes: 3 << 20,
        plan: 1,
        state_fingerprint: "state of old".to_owned(),
        cut: cut_digest(&epochs),
        ..SavepointReport::default()
    })
}

/// The Savepoint is whole.
fn completed() -> Observed {
    let mut observed = saved();
    look(&mut observed);
    cut(&mut observed, 5, true);
    look(&mut observed);
    answer(&mut observed, "save", &written(5));
    look(&mut observed);
    look(&mut observed);
    observed
}

#[test]
fn a_savepoint_is_cut_stored_written_down_and_workers_are_told_no_more() {
    let mut observed = saved();
    look(&mut observed);
    let told = assigned(&observed).savepoint.expect("workers are told");
    let id = format!("5a7e-{}-{}", assigned(&observed).generation, NOW.ms());
    assert_eq!((&told.id, told.stages.len()), (&id, 1));
    cut(&mut observed, 5, false);
    look(&mut observed);
    assert_eq!(phase(&observed), "Storing");
    cut(&mut observed, 5, true);
    look(&mut observed);
    assert_eq!(phase(&observed), "Writing");
    answer(&mut observed, "save", &written(5));
    assert!(look(&mut observed).events.iter().any(|event| event.reason == "Completed" && event.about.is_some()));
    let status = &observed.savepoints[0]["status"];
    assert_eq!(
        (&status["phase"], &status["size"], &status["plan"]["number"]),
        (&json!("Completed"), &json!("3.0Mi"), &json!(1))
    );
    assert_eq!(assigned(&observed).savepoint, Some(told), "first it is known to be whole");
    look(&mut observed);
    assert_eq!(assigned(&observed).savepoint, None);
    follow(&mut observed, true);
    settle(&mut observed);
    let rests = |action: &Action| matches!(action, Action::Delete { name, .. } if name.starts_with("p-save-"));
    assert!(decide(&observed, &settings(), NOW).actions.iter().all(rests), "its Job goes");
}

#[test]
fn a_cut_that_is_lost_begins_anew_and_not_for_ever() {
    let mut observed = saved();
    look(&mut observed);
    let mut ids = Vec::new();
    for attempt in 1..=5 {
        ids.push(assigned(&observed).savepoint.expect("workers are told").id);
        cut(&mut observed, 5, false);
        look(&mut observed);
        assert_eq!(
            (phase(&observed).as_str(), &observed.savepoints[0]["status"]["attempt"]),
            ("Storing", &json!(attempt))
        );
        cut(&mut observed, 6, false);
        look(&mut observed);
    }
    ids.dedup();
    assert_eq!((ids.len(), stands(&observed)), (5, ("Failed".to_owned(), "AttemptsExhausted".to_owned())));
    look(&mut observed);
    assert_eq!(assigned(&observed).savepoint, None);
    // What the attempts have left is deleted, one after another.
    assert_eq!(observed.savepoints[0]["status"]["abandoned"], json!(ids));
    answer(&mut observed, "discard", &json!(SavepointReport::default()));
    look(&mut observed);
    assert_eq!(observed.savepoints[0]["status"]["abandoned"], json!(ids[1..]));
}

#[test]
fn an_id_is_not_given_again_where_generations_begin_anew() {
    let id_at = |now| {
        let mut observed = saved();
        let decision = decide(&observed, &settings(), now);
        carry_out(&mut observed, &decision);
        assigned(&observed).savepoint.expect("workers are told").id
    };
    // The pipeline was deleted with its control topic meanwhile, and made anew: it looks as it did.
    assert_ne!(id_at(NOW), id_at(Timestamp::from_ms(NOW.ms() + 1)));
}

#[test]
fn what_lies_in_storage_must_be_what_was_cut() {
    let mut observed = saved();
    look(&mut observed);
    let first = assigned(&observed).savepoint.expect("workers are told").id;
    cut(&mut observed, 5, true);
    look(&mut observed);
    answer(&mut observed, "save", &written(6));
    look(&mut observed);
    assert_eq!(stands(&observed), ("Cutting".to_owned(), "BegunAnew".to_owned()));
    assert_ne!(assigned(&observed).savepoint.expect("workers are told").id, first);
}

#[test]
fn a_savepoint_that_cannot_be_made_says_why() {
    let mut observed = running();
    observed.savepoints.push(savepoint("before", "5a7e", &json!({"pipelineRef": {"name": "p"}})));
    look(&mut observed);
    assert_eq!(stands(&observed), ("Pending".to_owned(), "NoStorage".to_owned()));
    let mut observed = saved();
    observed.pipeline["spec"]["desiredState"] = json!("Suspended");
    look(&mut observed);
    look(&mut observed);
    assert_eq!(stands(&observed), ("Pending".to_owned(), "PipelineSuspended".to_owned()));
    let mut observed = saved();
    observed.savepoints.push(savepoint("second", "0002", &json!({"pipelineRef": {"name": "p"}})));
    look(&mut observed);
    assert_eq!(observed.savepoints[1]["status"]["message"], "waits until Savepoint before is made");
    let mut alone = vec![
        savepoint("before", "5a7e", &json!({"pipelineRef": {"name": "gone"}})),
        savepoint("imported", "0002", &json!({"from": {"location": "s3://b/savepoint.json"}})),
    ];
    let decision = decide_alone(&alone, &[], &[], NOW);
    heed(&mut alone, &decision);
    let reasons: Vec<&Value> = alone.iter().map(|one| &one["status"]["conditions"][0]["reason"]).collect();
    assert_eq!(reasons, ["PipelineMissing", "NotVerified"]);
    assert_eq!(decide_alone(&alone, &[], &[], NOW).actions, []);
}

#[test]
fn while_a_cut_is_under_way_no_task_moves_and_no_plan_is_applied() {
    let mut observed = saved();
    look(&mut observed);
    cut(&mut observed, 5, false);
    let tasks = assigned(&observed).tasks;
    observed.pipeline["metadata"]["generation"] = json!(9);
    observed.pipeline["spec"]["replicas"] = json!(1);
    observed.pipeline["spec"]["steps"][0]["project"]["where"] = json!("amount > 1");
    observed.compilation = Compilation::Done(Box::new(compiled("new", StateFit::Kept)));
    for _ in 0..4 {
        look(&mut observed);
        pass_preflights(&mut observed);
        cut(&mut observed, 5, false);
    }
    assert_eq!(assigned(&observed).tasks, tasks);
    assert_eq!(observed.pipeline["status"]["message"], "the edit waits until Savepoint before is made");
    // A plan may be what mends a worker.
    set_ready(&mut observed, 1, false);
    let decision = look(&mut observed);
    assert_eq!(writes_of(&decision, "StatefulSet"), ["0 pods"]);
}

fn pass_preflights(observed: &mut Observed) {
    let stages = [("s".to_owned(), 2)].into();
    let passed = PreflightReport { stages, highest_generation: Generation(1), ..PreflightReport::default() };
    answer(observed, "preflight", &json!(passed));
}

fn writes_of(decision: &Decision, kind: &str) -> Vec<String> {
    let of_kind = decision.actions.iter().filter_map(|action| match action {
        Action::Put { object, .. } if object["kind"] == kind => Some(object),
        _ => None,
    });
    of_kind.map(|object| format!("{} pods", object["spec"]["replicas"])).collect()
}

/// The pipeline shall be restored from what was saved.
fn restoring() -> Observed {
    let mut observed = completed();
    follow(&mut observed, true);
    settle(&mut observed);
    observed.pipeline["metadata"]["generation"] = json!(9);
    observed.pipeline["spec"]["restore"] = json!({"savepointRef": {"name": "before"}});
    observed
}

fn applied(observed: &Observed) -> Value {
    let map = observed.children.iter().find(|object| object["metadata"]["name"] == "p-applied").expect("it is there");
    serde_json::from_str(map["data"]["applied.json"].as_str().expect("text")).expect("what was applied")
}

#[test]
fn a_restore_is_checked_beside_what_runs_and_done_when_its_pods_are_gone() {
    let mut observed = restoring();
    look(&mut observed);
    let decision = look(&mut observed);
    assert!(puts(&decision, "p-check").is_some() && puts(&decision, "p-preflight").is_some(), "{decision:?}");
    pass_preflights(&mut observed);
    let refused = RestoreReport { errors: vec!["the key changed".to_owned()], ..RestoreReport::default() };
    answer(&mut observed, "check", &json!(refused));
    let decision = look(&mut observed);
    assert_eq!(reason(&decision, "Stalled"), "True RestoreRefused");
    assert!(writes_of(&decision, "StatefulSet").is_empty(), "what runs is left alone");
    answer(&mut observed, "check", &json!(RestoreReport::default()));
    let decision = look(&mut observed);
    assert_eq!(writes_of(&decision, "StatefulSet"), ["0 pods"]);
    assert!(puts(&decision, "p-restore").is_none());
    stop(&mut observed, "7");
    let decision = look(&mut observed);
    let job = puts(&decision, "p-restore").expect("the restore");
    let command = job["spec"]["template"]["spec"]["containers"][0]["command"].to_string();
    assert!(command.contains(r#""--timeline","2""#) && command.contains("file:///savepoints/5a7e"), "{command}");
    assert!(job["metadata"]["annotations"][SUBJECT].is_string());
    assert_eq!(applied(&observed)["plan"], 1);
    answer(&mut observed, "restore", &json!(RestoreReport::default()));
    look(&mut observed);
    let now = applied(&observed);
    assert_eq!((&now["plan"], &now["timeline"]), (&json!(2), &json!(2)));
    assert_eq!((&now["restored"][0]["savepoint"], &now["restored"][0]["attempt"]), (&json!("before"), &json!(1)));
    // It is not restored again, whatever becomes of the Savepoint.
    observed.savepoints.clear();
    let decision = look(&mut observed);
    assert!(puts(&decision, "p-check").is_none() && puts(&decision, "p-restore").is_none());
    assert_eq!(observed.pipeline["status"]["restoredFrom"]["savepointRef"]["name"], "before");
}

#[test]
fn a_restore_of_nothing_leaves_what_runs_and_says_so() {
    let mut observed = restoring();
    observed.savepoints.clear();
    let decision = look(&mut observed);
    assert_eq!(reason(&decision, "Stalled"), "True SavepointMissing");
    assert!(writes_of(&decision, "StatefulSet").is_empty());
}

#[test]
fn a_restore_that_is_asked_for_again_gets_another_timeline() {
    let timelines = |observed: &Observed| {
        let map = observed.children.iter().find(|o| o["metadata"]["name"] == "p-applied").expect("it is there");
        let given: Value = serde_json::from_str(map["data"]["reserved.json"].as_str().expect("text")).expect("JSON");
        given["timeline"].as_u64()
    };
    let mut observed = restoring();
    look(&mut observed);
    assert_eq!(timelines(&observed), Some(2));
    let restore = observed.pipeline["spec"]["restore"].take();
    observed.pipeline["spec"].as_object_mut().expect("a spec").remove("restore");
    look(&mut observed);
    look(&mut observed);
    observed.pipeline["spec"]["restore"] = restore;
    look(&mut observed);
    look(&mut observed);
    assert_eq!(timelines(&observed), Some(3), "the first one's Job may still run somewhere");
}

#[test]
fn the_files_of_a_savepoint_go_with_it_if_it_says_so() {
    let mut observed = completed();
    observed.savepoints[0]["spec"]["deletionPolicy"] = json!("Delete");
    look(&mut observed);
    assert_eq!(observed.savepoints[0]["metadata"]["finalizers"], json!(["millrace.dev/cleanup"]));
    observed.savepoints[0]["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let decision = look(&mut observed);
    assert!(puts(&decision, "p-discard").is_some());
    let gone = decide_alone(&observed.savepoints, &[], &[], NOW);
    assert_eq!(gone.events.iter().map(|event| event.reason.as_str()).collect::<Vec<_>>(), ["LeftBehind"]);
    answer(&mut observed, "discard", &json!(SavepointReport::default()));
    look(&mut observed);
    assert_eq!(observed.savepoints[0]["metadata"]["finalizers"], json!([]));
}

//! Stories on a real cluster. Whatever happens to pods, operator and spec: what comes out is the model's answer, each row
//! once.

use millrace_tests::kubernetes::{Deployed, SYSTEM, world};
use millrace_tests::story::Shape;
use serde_json::json;

fn deployed(name: &str, shape: Shape) -> Deployed {
    let mut deployed = Deployed::new(name, shape, 4).unwrap();
    deployed.story.pace = std::time::Duration::from_millis(20);
    deployed
}

#[test]
fn pods_and_operator_that_are_killed_lose_nothing() {
    let mut it = deployed("killed", Shape::Repartitioned);
    it.start(&[("/replicas", json!(2))]).unwrap();
    it.story.generate(21);
    it.goes_on().unwrap();
    it.kill_worker(0).unwrap();
    it.goes_on().unwrap();
    it.world.kill_operator().unwrap();
    it.kill_worker(1).unwrap();
    it.goes_on().unwrap();
    it.kubectl(&["delete", "pod", "killed-0", "killed-1", "--grace-period=0", "--force", "--wait=false"]).unwrap();
    it.goes_on().unwrap();
    it.check().unwrap();
    it.wait_ready().unwrap();
    it.delete().unwrap();
}

#[test]
fn a_spec_that_is_wrong_changes_nothing_that_runs() {
    let mut it = deployed("edited", Shape::Aligned);
    it.start(&[]).unwrap();
    it.story.generate(22);
    it.goes_on().unwrap();
    let steps = it.object().unwrap()["spec"]["steps"].clone();
    it.apply(&[("/steps/0/temporalJoin/select", json!(["id", "nobody", "nothing"]))]).unwrap();
    let [_, _, said] = it.wait_condition("SpecValid", "False", "SpecInvalid").unwrap();
    assert!(said.contains("nobody") && said.contains("nothing"), "all mistakes at once: {said}");
    assert!(!it.is_ready_for_ci());
    // What runs is healed all the same.
    it.kill_worker(0).unwrap();
    it.goes_on().unwrap();
    it.wait_condition("Available", "True", "").unwrap();
    it.apply(&[("/steps", steps)]).unwrap();
    it.wait_ready().unwrap();
    assert!(it.is_ready_for_ci());
    it.check().unwrap();
    it.delete().unwrap();
}

#[test]
fn each_class_of_edit_does_what_the_guide_says() {
    let mut it = deployed("classes", Shape::Aligned);
    it.start(&[]).unwrap();
    let plan = |it: &Deployed| it.object().unwrap()["status"]["planNumber"].clone();
    assert_eq!(plan(&it), 1);
    it.story.generate(23);
    it.goes_on().unwrap();
    // Live, and by a roll.
    it.start(&[("/replicas", json!(2))]).unwrap();
    it.goes_on().unwrap();
    it.start(&[("/worker", json!({"resources": {"requests": {"cpu": "60m"}}}))]).unwrap();
    it.goes_on().unwrap();
    assert_eq!(plan(&it), 1);
    // A new plan that takes up the state of the old one.
    it.start(&[("/delivery", json!({"commitInterval": "200ms"}))]).unwrap();
    it.goes_on().unwrap();
    assert_eq!(plan(&it), 2);
    // One that cannot.
    let sources = it.object().unwrap()["spec"]["sources"].clone();
    it.apply(&[("/sources/1/columns/1/type", json!("BIGINT"))]).unwrap();
    it.wait_condition("Stalled", "True", "StateDoesNotFit").unwrap();
    it.goes_on().unwrap();
    assert_eq!(plan(&it), 2);
    it.start(&[("/sources", sources)]).unwrap();
    // The prefix is whose it is.
    assert!(it.apply(&[("/kafka/internal/prefix", json!("test.another"))]).is_err());
    it.check().unwrap();
    it.delete().unwrap();
}

#[test]
fn a_pipeline_is_suspended_drained_and_goes_on() {
    let mut it = deployed("stopped", Shape::Repartitioned);
    it.start(&[]).unwrap();
    it.story.generate(24);
    it.goes_on().unwrap();
    it.apply(&[("/desiredState", json!("Suspended"))]).unwrap();
    it.wait_pods(0).unwrap();
    it.wait_condition("Ready", "False", "Stopped").unwrap();
    it.ensure_phase("Suspended").unwrap();
    it.start(&[("/desiredState", json!("Running"))]).unwrap();
    it.goes_on().unwrap();
    it.story.stop_generating().unwrap();
    it.apply(&[("/desiredState", json!("Drained"))]).unwrap();
    it.wait_pods(0).unwrap();
    // Everything came out before the pods went.
    it.story.check().unwrap();
    it.story.generate(25);
    it.start(&[("/desiredState", json!("Running"))]).unwrap();
    it.goes_on().unwrap();
    it.check().unwrap();
    it.delete().unwrap();
}

#[test]
fn a_pipeline_that_is_deleted_and_applied_again_goes_on_where_it_was() {
    let mut it = deployed("again", Shape::Aligned);
    it.start(&[("/replicas", json!(2))]).unwrap();
    it.story.generate(26);
    it.goes_on().unwrap();
    let uid = it.object().unwrap()["metadata"]["uid"].clone();
    it.delete().unwrap();
    assert!(!it.internal_topics().unwrap().is_empty(), "they are retained");
    it.start(&[]).unwrap();
    assert_ne!(it.object().unwrap()["metadata"]["uid"], uid);
    it.goes_on().unwrap();
    // The operator's memory is lost.
    it.kubectl(&["delete", "configmap", "again-applied", "again-assignment"]).unwrap();
    it.kill_worker(0).unwrap();
    it.goes_on().unwrap();
    it.wait_ready().unwrap();
    it.check().unwrap();
    it.apply(&[("/deletionPolicy", json!("Delete"))]).unwrap();
    it.until("the finalizer", || Ok(it.object()?["metadata"]["finalizers"].is_array())).unwrap();
    it.delete().unwrap();
    assert_eq!(it.internal_topics().unwrap(), Vec::<String>::new());
    assert!(it.world.kafka.topics().unwrap().contains(&it.story.topic("out")), "what is the user's stays");
}

#[test]
fn a_namespace_goes_with_everything_in_it() {
    let mut it = deployed("namespace", Shape::Aligned);
    it.start(&[("/deletionPolicy", json!("Delete"))]).unwrap();
    it.world.cluster.kubectl(&["delete", "namespace", &it.namespace, "--timeout=120s"]).unwrap();
}

#[test]
fn the_chart_is_not_taken_away_from_under_pipelines() {
    let mut it = deployed("uninstall", Shape::Aligned);
    it.start(&[]).unwrap();
    let refused = world().cluster.helm(&["uninstall", "millrace", "--namespace", SYSTEM]);
    assert!(refused.is_err());
    it.wait_ready().unwrap();
    it.delete().unwrap();
}

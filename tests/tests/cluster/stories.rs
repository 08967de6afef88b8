//! Stories on a real cluster. Whatever happens to pods, operator and spec: what comes out is the model's answer, each row
//! once.

use std::time::{Duration, Instant};

use millrace_tests::kubernetes::{Deployed, SESSION, deployed, world};
use millrace_tests::s3;
use millrace_tests::savepoint::{check, rows_before};
use millrace_tests::story::Shape;
use serde_json::json;

mod backfills;

/// Within so long a changed Secret is seen in the pods, and is used.
const SEEN: Duration = Duration::from_secs(60);
const USED: Duration = Duration::from_secs(120);

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
fn a_pipeline_is_scaled_under_load_and_whoever_is_killed_meanwhile_nothing_is_lost() {
    let mut it = deployed("scaled", Shape::Repartitioned);
    let snapshots = it.snapshots("64Ki").unwrap();
    it.start(&[("/replicas", json!(2)), snapshots]).unwrap();
    it.story.generate(30);
    it.goes_on().unwrap();
    it.scale(4).unwrap();
    it.wait_scaled(4).unwrap();
    it.goes_on().unwrap();
    // Of those that give and that take, one each; and whoever tells them.
    it.scale(1).unwrap();
    it.wait_rescaling().unwrap();
    it.kill_worker(3).unwrap();
    it.kill_worker(0).unwrap();
    it.world.kill_operator().unwrap();
    it.wait_scaled(1).unwrap();
    it.goes_on().unwrap();
    // Another edit in the middle.
    it.scale(4).unwrap();
    it.wait_rescaling().unwrap();
    it.scale(3).unwrap();
    it.kill_worker(0).unwrap();
    it.wait_scaled(3).unwrap();
    it.goes_on().unwrap();
    it.check().unwrap();
    it.delete().unwrap();
}

#[test]
fn an_evicted_pod_gives_its_tasks_away_first() {
    let mut it = deployed("evicted", Shape::Repartitioned);
    it.start(&[("/replicas", json!(2))]).unwrap();
    it.story.generate(28);
    it.goes_on().unwrap();
    let ended = |it: &Deployed, worker, why: &str| {
        let log = it.log_to_the_end(worker).unwrap();
        assert!(log.contains(&format!("\"why\":\"{why}\"")), "worker {worker}: {log}");
    };
    it.evict(1).unwrap();
    ended(&it, 1, "NoTasks");
    it.goes_on().unwrap();
    it.wait_pods(2).unwrap();
    it.wait_ready().unwrap();
    // The only one is replaced while another one stands in for it.
    it.start(&[("/replicas", json!(1))]).unwrap();
    it.apply(&[("/worker", json!({"resources": {"requests": {"cpu": "60m"}}}))]).unwrap();
    ended(&it, 0, "NoTasks");
    it.goes_on().unwrap();
    it.wait_pods(1).unwrap();
    it.wait_ready().unwrap();
    // And where nobody could take its tasks, it waits for nobody.
    it.evict(0).unwrap();
    ended(&it, 0, "LetGo");
    it.goes_on().unwrap();
    it.wait_ready().unwrap();
    it.check().unwrap();
    it.delete().unwrap();
}

#[test]
fn a_savepoint_is_all_that_is_needed_to_go_on_in_another_namespace_on_more_workers() {
    let mut it = deployed("saved", Shape::Repartitioned);
    let snapshots = it.snapshots("64Ki").unwrap();
    it.start(&[("/replicas", json!(2)), ("/deletionPolicy", json!("Delete")), snapshots]).unwrap();
    it.story.generate(31);
    it.goes_on().unwrap();
    let location = it.save("before").unwrap();
    // The pipeline goes on, and then all of it goes: topics, groups, volumes, the namespace.
    it.goes_on().unwrap();
    it.delete().unwrap();
    assert_eq!(it.internal_topics().unwrap(), Vec::<String>::new());
    it.delete_namespace().unwrap();
    it.go_on_as("reborn", &location, 3).unwrap();
    it.story.wait_written(500).unwrap();
    it.story.stop_generating().unwrap();
    let key = location.strip_prefix(&format!("s3://{}/", s3::BUCKET)).unwrap();
    let before = rows_before(&it.world.s3.dir().join(key)).unwrap();
    it.story.wait_rows_in("reborn-out", it.story.written() - before as usize).unwrap();
    check(&it.story, before, &it.story.rows_in("reborn-out").unwrap()).unwrap();
    it.world.cluster.kubectl(&["delete", "namespace", "story-reborn", "--timeout=120s"]).unwrap();
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
    // What only the API server knows to be wrong.
    let wrong = json!({"spec": {"tolerations": [{"key": "spot", "operator": "Sometimes"}]}});
    it.apply(&[("/steps", steps), ("/worker", json!({"podTemplate": wrong}))]).unwrap();
    let [_, _, said] = it.wait_condition("SpecValid", "False", "PodsRefused").unwrap();
    assert!(said.contains("Sometimes"), "{said}");
    it.goes_on().unwrap();
    let right = json!({"spec": {"tolerations": [{"key": "spot", "operator": "Exists"}]}});
    it.apply(&[("/worker", json!({"podTemplate": right}))]).unwrap();
    it.wait_ready().unwrap();
    assert!(it.is_ready_for_ci());
    it.check().unwrap();
    it.delete().unwrap();
}

#[test]
fn each_class_of_edit_does_what_the_guide_says() {
    let mut it = deployed("classes", Shape::Aligned);
    it.start(&[]).unwrap();
    assert_eq!(it.plan().unwrap(), 1);
    it.story.generate(23);
    it.goes_on().unwrap();
    // Live, and by a roll.
    it.start(&[("/replicas", json!(2))]).unwrap();
    it.goes_on().unwrap();
    it.start(&[("/worker", json!({"resources": {"requests": {"cpu": "60m"}}}))]).unwrap();
    it.goes_on().unwrap();
    let lives = it.lives().unwrap();
    it.start(&[("/delivery", json!({"commitInterval": "200ms"}))]).unwrap();
    it.goes_on().unwrap();
    assert_eq!((it.plan().unwrap(), it.lives().unwrap()), (1, lives));
    // A new plan that takes up the state of the old one.
    it.start(&[("/sources/1/table/versions/retention", json!("8d"))]).unwrap();
    it.goes_on().unwrap();
    assert_eq!(it.plan().unwrap(), 2);
    // One that cannot.
    let sources = it.object().unwrap()["spec"]["sources"].clone();
    it.apply(&[("/sources/1/columns/1/type", json!("BIGINT"))]).unwrap();
    it.wait_condition("Stalled", "True", "StateDoesNotFit").unwrap();
    it.goes_on().unwrap();
    assert_eq!(it.plan().unwrap(), 2);
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
    it.wait_held().unwrap();
    it.delete().unwrap();
    assert_eq!(it.internal_topics().unwrap(), Vec::<String>::new());
    assert!(it.world.kafka.topics().unwrap().contains(&it.story.topic("out")), "what is the user's stays");
}

#[test]
fn a_namespace_goes_with_everything_in_it() {
    let mut it = deployed("namespace", Shape::Aligned);
    it.start(&[("/deletionPolicy", json!("Delete"))]).unwrap();
    it.delete_namespace().unwrap();
}

#[test]
fn a_secret_that_changes_is_used_within_two_minutes_and_no_pod_starts_again() {
    const LANES: usize = 2;
    let (mut it, kafka) = (deployed("rotated", Shape::Repartitioned), &world().kafka);
    kafka.set_password("first", "one").unwrap();
    kafka.set_password("second", "two").unwrap();
    it.secret("user", &json!({"name": "first", "password": "one"})).unwrap();
    let key = |key: &str| json!({"name": "user", "key": key});
    it.start(&[
        ("/replicas", json!(2)),
        ("/worker", json!({"lanes": LANES})),
        ("/kafka/bootstrapServers", json!(it.world.servers_of_users())),
        ("/kafka/authentication", json!({"scramSha512": {"username": key("name"), "password": key("password")}})),
    ])
    .unwrap();
    it.story.generate(27);
    it.goes_on().unwrap();
    let (pods, lives) = (it.pods().unwrap(), it.lives().unwrap());

    let changed = Instant::now();
    it.secret("user", &json!({"name": "second", "password": "two"})).unwrap();
    let sees = |pod: &String| {
        let read = ["exec", pod, "--container=worker", "--", "cat", "/etc/millrace/secrets/user/name"];
        it.kubectl(&read).is_ok_and(|name| name == "second")
    };
    it.within(SEEN, "the Secret in every pod", || Ok(pods.iter().all(sees))).unwrap();
    eprintln!("a changed Secret is seen in every pod after {:.1} s", changed.elapsed().as_secs_f64());
    let uses = |pod: &String| {
        let log = it.world.cluster.logs(&it.namespace, pod);
        log.is_ok_and(|log| log.matches("new clients").count() >= LANES)
    };
    let left = USED.saturating_sub(changed.elapsed());
    it.within(left, "new clients in every lane", || Ok(pods.iter().all(uses))).unwrap();
    eprintln!("and is used by every lane after {:.1} s", changed.elapsed().as_secs_f64());

    // Whoever is still the former user is cut off when the session is over.
    kafka.set_password("first", "another").unwrap();
    it.story.wait_rows_of(2 * SESSION).unwrap();
    assert_eq!(it.lives().unwrap(), lives);
    it.check().unwrap();
    it.delete().unwrap();
}

#[test]
fn the_chart_is_not_taken_away_from_under_pipelines() {
    let mut it = deployed("uninstall", Shape::Aligned);
    it.start(&[]).unwrap();
    // Another story may just have killed the operator, and then it fails.
    it.until("the chart's own test", || Ok(it.world.helm("test", &["--timeout=1m"]).is_ok())).unwrap();
    assert!(it.world.helm("uninstall", &[]).is_err());
    it.wait_ready().unwrap();
    it.delete().unwrap();
}

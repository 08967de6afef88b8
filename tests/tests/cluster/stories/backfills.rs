//! A Backfill beside a pipeline that goes on, whoever is killed, evicted, moved or suspended meanwhile.

use millrace_tests::repairs::Repaired;
use serde_json::{Value, json};

const NAME: &str = "repaired";
/// Records of the range.
const MISSED: u64 = 60_000;

#[test]
fn a_backfill_and_what_comes_meanwhile_leave_the_newest_row_of_each_key_last() {
    let mut it = Repaired::new(NAME, MISSED, json!({"replicas": 2})).unwrap();
    it.ask("rateLimit", json!({"recordsPerSecond": 1_000})).unwrap();
    it.wait_phase("Running").unwrap();
    it.goes_on().unwrap();
    // Whoever computes, whoever decides about a key, and whoever tells them.
    let pod = it.pods().unwrap().pop().expect("a pod computes");
    it.world.cluster.signal_container(&it.namespace, &pod, "worker", "KILL").unwrap();
    it.goes_on().unwrap();
    it.world.cluster.signal_container(&it.namespace, &format!("{NAME}-0"), "worker", "KILL").unwrap();
    it.world.kill_operator().unwrap();
    it.goes_on().unwrap();
    // Its node is lost, and tasks of the pipeline move.
    it.kubectl(&["delete", "pod", &pod, "--grace-period=0", "--force", "--wait=false"]).unwrap();
    it.spec["replicas"] = json!(3);
    it.apply_pipeline().unwrap();
    it.goes_on().unwrap();
    // What may change while it runs.
    it.ask("suspend", json!(true)).unwrap();
    it.wait_phase("Paused").unwrap();
    it.until("its pod to go", |it| Ok(it.pods()?.is_empty())).unwrap();
    it.ask("suspend", json!(false)).unwrap();
    it.goes_on().unwrap();
    it.ask("rateLimit", json!({"recordsPerSecond": 0})).unwrap();
    it.wait_phase("Paused").unwrap();
    it.ask("rateLimit", json!({"recordsPerSecond": 100_000})).unwrap();
    it.wait_phase("Succeeded").unwrap();
    let status = it.status().unwrap();
    let counts = |status: &Value, field: &str| status["counts"][field].as_u64().unwrap_or_default();
    assert_eq!((counts(&status, "records"), counts(&status, "computed")), (MISSED, MISSED), "{status:#}");
    assert_eq!(counts(&status, "applied") + counts(&status, "guarded"), MISSED, "{status:#}");
    assert_eq!(status["lost"], Value::Null);
    it.changes.check(&it.world.kafka).unwrap();
    // Nothing of it is left in Kafka.
    let own = |topic: &String| topic.starts_with(&format!("test.{NAME}-backfill."));
    it.until("its topics to go", |it| Ok(!it.world.kafka.topics()?.iter().any(own))).unwrap();
    // The same object comes again, as GitOps makes it.
    it.kubectl(&["delete", "backfill", "again"]).unwrap();
    it.ask("suspend", json!(false)).unwrap();
    it.wait_phase("AlreadyDone").unwrap();
    it.ask("attempt", json!(2)).unwrap();
    it.wait_phase("Succeeded").unwrap();
    let status = it.status().unwrap();
    assert_eq!((counts(&status, "applied"), counts(&status, "guarded")), (0, MISSED), "{status:#}");
    it.changes.check(&it.world.kafka).unwrap();
    it.kubectl(&["delete", "pipeline", NAME, "--timeout=120s"]).unwrap();
}

//! Topics that change under a running pipeline.

use millrace_kafka_harness::{Message, wait};
use millrace_tests::kafka::shared as kafka;
use millrace_tests::story::{DEADLINE, Shape, Story, Worker, http};
use serde_json::json;

/// A pipeline without state: what it reads comes out as it is.
struct Copying {
    name: &'static str,
    dir: tempfile::TempDir,
}

impl Copying {
    fn new(name: &'static str, partitions: i32) -> Self {
        let copying = Self { name, dir: millrace_tests::scratch().unwrap() };
        kafka().create_topic(&format!("{name}-in"), partitions, &[]).unwrap();
        kafka().create_topic(&format!("{name}-out"), 1, &[]).unwrap();
        let servers = kafka().bootstrap_servers();
        let yaml = format!(
            r#"
apiVersion: millrace.dev/v1alpha1
kind: Pipeline
metadata: {{name: {name}, namespace: test}}
spec:
  kafka: {{bootstrapServers: "{servers}", internal: {{replicationFactor: 1}}}}
  sources:
    - name: numbers
      kafka: {{topic: {name}-in, startFrom: {{policy: Latest}}}}
      format: {{type: Json}}
      columns: [{{name: id, type: BIGINT}}]
  steps:
    - name: all
      from: numbers
      project: {{select: [id]}}
  sinks:
    - name: out
      from: all
      kafka: {{topic: {name}-out}}
      format: {{type: Json}}
"#
        );
        std::fs::write(copying.dir.path().join("pipeline.yaml"), yaml).unwrap();
        copying
    }

    fn worker(&self) -> Worker {
        let state = self.dir.path().join("state");
        Worker::start(&self.dir.path().join("pipeline.yaml"), &state, &["--lanes", "2"]).unwrap()
    }

    fn write(&self, ids: std::ops::Range<i32>, partition: i32) {
        let message = |id: i32| Message::new("k", json!({"id": id}).to_string()).on(partition);
        kafka().produce(&format!("{}-in", self.name), ids.map(message)).unwrap();
    }

    fn wait_ids(&self, expected: std::ops::Range<i32>) {
        let read = || -> anyhow::Result<Vec<i32>> {
            let records = kafka().read_committed(&format!("{}-out", self.name))?;
            let id =
                |value: &[u8]| Ok(serde_json::from_slice::<serde_json::Value>(value)?["id"].as_i64().unwrap() as i32);
            let mut ids: Vec<i32> =
                records.iter().map(|r| id(r.value.as_ref().unwrap())).collect::<anyhow::Result<_>>()?;
            ids.sort_unstable();
            Ok(ids)
        };
        let waited = wait::until("rows to come out", DEADLINE, || Ok(read()?.len() >= expected.len()));
        waited.unwrap_or_else(|_| panic!("{:?} came out", read()));
        assert!(read().unwrap().into_iter().eq(expected));
    }
}

#[test]
fn a_stage_without_state_takes_up_new_partitions_at_once_and_from_their_beginning() {
    let copying = Copying::new("growing", 2);
    copying.write(-10..0, 0);
    let mut worker = copying.worker();
    worker.wait_ready().unwrap();
    // Latest: what was there before the pipeline's first start does not count.
    copying.write(0..10, 1);
    kafka().grow_topic("growing-in", 4).unwrap();
    copying.write(10..20, 2);
    copying.write(20..30, 3);
    copying.wait_ids(0..30);
    worker.stop().unwrap();
    // And while nobody runs.
    kafka().grow_topic("growing-in", 5).unwrap();
    copying.write(30..40, 4);
    let worker = copying.worker();
    copying.write(40..50, 0);
    copying.wait_ids(0..50);
    worker.stop().unwrap();
}

#[test]
fn a_stage_with_state_goes_on_with_the_partitions_it_began_with_and_says_what_it_does_not_read() {
    let mut story = Story::new(kafka(), "outgrown", Shape::Aligned, 2).unwrap();
    story.generate(1);
    let mut worker = story.worker("state", &[]).unwrap();
    worker.wait_ready().unwrap();
    kafka().grow_topic(&story.topic("orders"), 3).unwrap();
    kafka().produce(&story.topic("orders"), (0..7).map(|_| Message::new("k", "{}").on(2))).unwrap();
    let said = r#"millrace_source_unread_records{partition="2",source="orders"} 7"#;
    wait::until("the metric", DEADLINE, || Ok(http(&worker.metrics, "/metrics")?.1.contains(said))).unwrap();
    assert!(worker.log().contains("1 partitions were added"), "{}", worker.log());
    story.wait_written(200).unwrap();
    worker.kill().unwrap();
    let mut worker = story.worker("state", &[]).unwrap();
    worker.wait_ready().unwrap();
    story.wait_written(200).unwrap();
    story.stop_generating().unwrap();
    story.check().unwrap();
    worker.stop().unwrap();
}

#[test]
fn a_topic_that_was_deleted_and_made_again_is_an_error_and_no_silent_skip() {
    let copying = Copying::new("remade", 1);
    let mut worker = copying.worker();
    worker.wait_ready().unwrap();
    copying.write(0..10, 0);
    copying.wait_ids(0..10);
    kafka().delete_topic("remade-in").unwrap();
    kafka().create_topic("remade-in", 1, &[]).unwrap();
    copying.write(10..40, 0);
    assert!(!worker.wait().unwrap().success());
    let said = |worker: &Worker| {
        let log = worker.log();
        assert!(log.contains("topic 'remade-in' was deleted and made again"), "{log}");
    };
    said(&worker);
    // Nor does a start go on.
    let mut worker = copying.worker();
    assert!(!worker.wait().unwrap().success());
    said(&worker);
    copying.wait_ids(0..10);
}

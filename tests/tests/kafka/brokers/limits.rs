//! What cannot be written never stops a lane: the row meets the error policy, or its task alone stops.

use millrace_core::plan::Partitioner;
use millrace_kafka_harness::{Message, Record, wait};
use millrace_tests::kafka::shared as kafka;
use millrace_tests::story::{DEADLINE, Worker, http};
use serde_json::{Value, json};

const PARTITIONS: i32 = 2;
const SMALL: &[(&str, &str)] = &[("max.message.bytes", "2000")];

/// A pipeline that joins notes with people, and its topics.
struct Case {
    name: &'static str,
    dir: tempfile::TempDir,
}

impl Case {
    fn new(name: &'static str, out: &[(&str, &str)], dead: Option<&[(&str, &str)]>) -> Self {
        let case = Self { name, dir: millrace_tests::scratch().unwrap() };
        for topic in ["notes", "people"] {
            kafka().create_topic(&case.topic(topic), PARTITIONS, &[]).unwrap();
        }
        kafka().create_topic(&case.topic("out"), 1, out).unwrap();
        if let Some(settings) = dead {
            kafka().create_topic(&case.topic("dead"), 1, settings).unwrap();
        }
        let dead =
            if dead.is_some() { format!("deadLetter: {{kafka: {{topic: {name}-dead}}}}") } else { String::new() };
        let servers = kafka().bootstrap_servers();
        let yaml = format!(
            r#"
apiVersion: millrace.dev/v1alpha1
kind: Pipeline
metadata: {{name: {name}, namespace: test}}
spec:
  kafka: {{bootstrapServers: "{servers}", internal: {{replicationFactor: 1}}}}
  sources:
    - name: notes
      kafka: {{topic: {name}-notes}}
      key: {{columns: [person], format: {{type: String}}}}
      format: {{type: Json}}
      columns:
        - {{name: id, type: BIGINT}}
        - {{name: person, type: BIGINT}}
        - {{name: text, type: STRING}}
    - name: people
      kafka: {{topic: {name}-people}}
      key: {{columns: [person], format: {{type: String}}}}
      format: {{type: Json}}
      columns:
        - {{name: person, type: BIGINT}}
        - {{name: name, type: STRING}}
      table: {{primaryKey: [person]}}
  steps:
    - name: joined
      from: notes
      tableJoin:
        table: people
        joinType: Left
        keys: [{{left: person, right: person}}]
        select: [id, text, name]
  sinks:
    - name: out
      from: joined
      kafka: {{topic: {name}-out}}
      format: {{type: Json}}
  {dead}
"#
        );
        std::fs::write(case.dir.path().join("pipeline.yaml"), yaml).unwrap();
        case
    }

    fn topic(&self, what: &str) -> String {
        format!("{}-{what}", self.name)
    }

    fn notes(&self, notes: impl IntoIterator<Item = (i64, String)>) {
        let note = |(id, text)| by_person(id, &json!({"id": id, "person": id, "text": text}));
        kafka().produce(&self.topic("notes"), notes.into_iter().map(note)).unwrap();
    }

    fn people(&self, people: impl IntoIterator<Item = (i64, String)>) {
        let person = |(person, name)| by_person(person, &json!({"person": person, "name": name}));
        kafka().produce(&self.topic("people"), people.into_iter().map(person)).unwrap();
    }

    fn worker(&self) -> Worker {
        Worker::start(&self.dir.path().join("pipeline.yaml"), &self.dir.path().join("state"), &[]).unwrap()
    }

    fn read(&self, what: &str) -> Vec<Record> {
        kafka().read_committed(&self.topic(what)).unwrap()
    }

    fn ids(&self) -> Vec<i64> {
        let id =
            |r: &Record| serde_json::from_slice::<Value>(r.value.as_ref().unwrap()).unwrap()["id"].as_i64().unwrap();
        let mut ids: Vec<i64> = self.read("out").iter().map(id).collect();
        ids.sort_unstable();
        ids
    }

    fn wait_ids(&self, expected: &[i64]) {
        let waited = wait::until("rows to come out", DEADLINE, || Ok(self.ids().len() >= expected.len()));
        waited.unwrap_or_else(|_| panic!("{:?} came out", self.ids()));
        assert_eq!(self.ids(), expected);
    }
}

fn partition(person: i64) -> i32 {
    Partitioner::Murmur2.partition(person.to_string().as_bytes(), PARTITIONS).0
}

fn by_person(person: i64, value: &Value) -> Message {
    Message::new(person.to_string(), value.to_string()).on(partition(person))
}

fn header(record: &Record, name: &str) -> Option<String> {
    let found = record.headers.iter().find(|(n, _)| n == name);
    found.map(|(_, value)| String::from_utf8(value.clone()).unwrap())
}

fn large(bytes: usize) -> String {
    "x".repeat(bytes)
}

#[test]
fn a_row_above_the_sinks_limit_becomes_a_dead_letter_that_fits() {
    let case = Case::new("large-row", SMALL, Some(SMALL));
    case.notes((0..50).map(|id| (id, if id == 20 { large(5_000) } else { "short".to_owned() })));
    let worker = case.worker();
    case.wait_ids(&(0..50).filter(|id| *id != 20).collect::<Vec<_>>());
    let dead = case.read("dead");
    assert_eq!(dead.len(), 1);
    assert_eq!(header(&dead[0], "millrace-error-code").as_deref(), Some("RecordTooLarge"));
    assert_eq!(header(&dead[0], "millrace-step").as_deref(), Some("out"));
    assert!(header(&dead[0], "millrace-whole-bytes").unwrap().parse::<usize>().unwrap() > 5_000);
    let value = dead[0].value.as_ref().unwrap();
    assert!(value.len() < 2_000 && value.starts_with(br#"{"id":20,"text":"xxx"#), "{} bytes", value.len());
    let (_, metrics) = http(&worker.metrics, "/metrics").unwrap();
    assert!(metrics.contains(r#"reason="dead_lettered",stage="joined",step="sink out"} 1"#), "{metrics}");
    worker.stop().unwrap();
}

#[test]
fn a_row_above_the_sinks_limit_stops_its_task_alone_where_there_is_no_dead_letter_topic() {
    let case = Case::new("stopping-row", SMALL, None);
    let poisoned = partition(20);
    case.notes((0..50).map(|id| (id, if id == 20 { large(5_000) } else { "short".to_owned() })));
    let worker = case.worker();
    let others: Vec<i64> = (0..50).filter(|id| partition(*id) != poisoned).collect();
    wait::until("the other task's rows", DEADLINE, || Ok(others.iter().all(|id| case.ids().contains(id)))).unwrap();
    case.notes((100..120).map(|id| (id, "later".to_owned())));
    let later: Vec<i64> = (100..120).filter(|id| partition(*id) != poisoned).collect();
    wait::until("the other task to go on", DEADLINE, || Ok(later.iter().all(|id| case.ids().contains(id)))).unwrap();
    assert!(!case.ids().contains(&20));
    let log = worker.log();
    assert!(log.contains("task is stopped; the others go on") && log.contains("RecordTooLarge"), "{log}");
    worker.stop().unwrap();
}

#[test]
fn a_state_value_above_the_changelogs_limit_is_found_and_becomes_a_dead_letter() {
    let case = Case::new("large-state", &[], Some(&[]));
    // Somebody else made the changelog, and too small.
    kafka().create_topic("test.large-state-t1-joined-changelog", PARTITIONS, SMALL).unwrap();
    case.people((0..50).map(|person| (person, if person == 20 { large(5_000) } else { format!("name {person}") })));
    let worker = case.worker();
    case.notes((0..50).map(|id| (id, "short".to_owned())));
    case.wait_ids(&(0..50).collect::<Vec<_>>());
    let dead = case.read("dead");
    assert_eq!(dead.len(), 1, "{}", worker.log());
    assert_eq!(header(&dead[0], "millrace-error-code").as_deref(), Some("CommitRefused"));
    assert_eq!(dead[0].key.as_deref(), Some(&b"20"[..]));
    let unnamed = |r: &Record| serde_json::from_slice::<Value>(r.value.as_ref().unwrap()).unwrap()["name"].is_null();
    assert_eq!(case.read("out").iter().filter(|r| unnamed(r)).count(), 1);
    worker.stop().unwrap();
}

#[test]
fn a_record_in_another_partition_than_its_key_says_is_an_error_that_says_where_and_what_to_do() {
    let case = Case::new("misplaced", &[], None);
    case.people([(1, "one".to_owned())]);
    let wrong = 1 - partition(7);
    let value = json!({"id": 7, "person": 7, "text": "lost"}).to_string();
    kafka().produce(&case.topic("notes"), [Message::new("7", value).on(wrong)]).unwrap();
    let worker = case.worker();
    wait::until("the error", DEADLINE, || Ok(worker.log().contains("key.partitioner"))).unwrap();
    let log = worker.log();
    let place = format!("topic misplaced-notes partition {wrong} offset 0 belongs to partition {}", partition(7));
    assert!(log.contains(&place), "{log}");
    assert!(case.read("out").is_empty());
}

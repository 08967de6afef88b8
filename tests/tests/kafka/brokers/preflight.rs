//! What a preflight finds on a real broker, all of it at once.

use std::sync::{Arc, OnceLock};

use millrace_core::control::{Change, Created, Owner, Record};
use millrace_core::ids::Timeline;
use millrace_kafka_harness::{Kafka, Message, Options};
use millrace_runtime::log::kafka::InternalTopics;
use millrace_runtime::log::kafka::connection::Connection;
use millrace_runtime::log::kafka::control::ControlTopic;
use millrace_runtime::worker::Job;
use millrace_runtime::worker::preflight::{Depth, Report, check};
use millrace_tests::plan;

/// It ends transactions earlier than ours may take, which each report says.
fn kafka() -> &'static Kafka {
    static KAFKA: OnceLock<Kafka> = OnceLock::new();
    KAFKA.get_or_init(|| {
        let properties = vec![("transaction.max.timeout.ms".to_owned(), "5000".to_owned())];
        Kafka::start(&Options { properties, ..Options::default() }).expect("a broker starts")
    })
}

const TIMEOUT: &str = "transaction.timeout.ms is above the brokers' transaction.max.timeout.ms";

/// A pipeline whose topics begin with `name`; `versions` of its table, and where its stream starts.
fn job(name: &str, versions: &str, start: &str, internal: InternalTopics) -> Job {
    let join = if versions.is_empty() { "tableJoin" } else { "temporalJoin" };
    let yaml = format!(
        r#"
apiVersion: millrace.dev/v1alpha1
kind: Pipeline
metadata: {{name: {name}, namespace: test}}
spec:
  kafka: {{bootstrapServers: "localhost:9092"}}
  sources:
    - name: orders
      kafka: {{topic: {name}-orders, startFrom: {start}}}
      key: {{columns: [customer], format: {{type: String}}}}
      format: {{type: Json}}
      columns: [{{name: id, type: BIGINT}}, {{name: customer, type: BIGINT}}]
      eventTime: {{}}
    - name: customers
      kafka: {{topic: {name}-customers}}
      key: {{columns: [customer], format: {{type: String}}}}
      format: {{type: Json}}
      columns: [{{name: customer, type: BIGINT}}, {{name: name, type: STRING}}]
      table: {{primaryKey: [customer]{versions}}}
      eventTime: {{}}
  steps:
    - name: joined
      from: orders
      {join}: {{table: customers, joinType: Left, keys: [{{left: customer, right: customer}}], select: [id, name]}}
  sinks:
    - {{name: out, from: joined, kafka: {{topic: {name}-out}}, format: {{type: Json}}}}
"#
    );
    Job {
        plan: Arc::new(plan(&yaml)),
        owner: owner("test"),
        adopt: false,
        connection: Connection::plain(kafka().bootstrap_servers()),
        internal,
        timeline: Timeline(1),
        storage: None,
    }
}

fn owner(name: &str) -> Owner {
    Owner { cluster: String::new(), namespace: "test".to_owned(), name: name.to_owned(), uid: String::new() }
}

const CREATED: InternalTopics = InternalTopics { create: true, replication_factor: 1 };

/// Each text is in one error, and there are no others.
fn errors_are(report: &Report, expected: &[&str]) {
    for text in expected {
        assert_eq!(report.errors.iter().filter(|e| e.contains(text)).count(), 1, "{text}: {report:#?}");
    }
    assert_eq!(report.errors.len(), expected.len(), "{report:#?}");
    assert!(report.errors.iter().all(|error| !error.contains('\n')), "{report:#?}");
}

#[test]
fn everything_that_is_missing_or_loses_rows_is_found_at_once() {
    let name = "missing";
    let retention = [("cleanup.policy", "delete"), ("retention.ms", "604800000")];
    kafka().create_topic("missing-customers", 2, &retention).unwrap();
    let internal = InternalTopics { create: true, replication_factor: 3 };
    let report = check(&job(name, "", "{policy: Earliest}", internal), Depth::Thorough).unwrap();
    let expected = [
        "source 'orders': topic 'missing-orders' does not exist, and topics of the user are never created: create it, as with `kafka-topics.sh",
        "source 'customers': topic 'missing-customers' of a table has cleanup.policy=delete",
        "sink 'out': topic 'missing-out' does not exist",
        "spec.kafka.internal.replicationFactor: 3 replicas of each internal topic, and the cluster has 1 brokers",
        TIMEOUT,
    ];
    errors_are(&report, &expected);
}

#[test]
fn inputs_of_a_stage_have_equally_many_partitions_and_versions_are_not_compacted_away() {
    kafka().create_topic("unequal-orders", 4, &[]).unwrap();
    kafka().create_topic("unequal-customers", 2, &[("cleanup.policy", "compact")]).unwrap();
    kafka().create_topic("unequal-out", 1, &[]).unwrap();
    let job = job("unequal", ", versions: {retention: 7d}", "{policy: Earliest}", CREATED);
    let report = check(&job, Depth::Thorough).unwrap();
    errors_are(&report, &["its inputs must have equally many partitions", TIMEOUT]);
    assert_eq!(report.warnings.len(), 1, "{report:#?}");
    assert!(report.warnings[0].contains("versions that compaction removed"), "{report:#?}");
}

#[test]
fn a_start_that_has_expired_and_one_behind_the_end_are_found() {
    kafka().create_topic("start-orders", 4, &[]).unwrap();
    kafka().create_topic("start-customers", 4, &[]).unwrap();
    kafka().create_topic("start-out", 1, &[]).unwrap();
    let records = (0..4).flat_map(|p| (0..10).map(move |i| Message::new(i.to_string(), "{}").on(p)));
    kafka().produce("start-orders", records).unwrap();
    kafka().delete_records("start-orders", 0, 5).unwrap();
    let start = "{policy: Offsets, offsets: [{partition: 0, offset: 4}, {partition: 1, offset: 11}, {partition: 2, offset: 10}, {partition: 3, offset: 0}, {partition: 7, offset: 0}]}";
    let internal = InternalTopics { create: false, ..CREATED };
    let report = check(&job("start", "", start, internal), Depth::Thorough).unwrap();
    let expected = [
        "startFrom offset 4 of partition 0 of topic 'start-orders' has expired: the first that is there is 5",
        "startFrom offset 11 of partition 1 of topic 'start-orders' lies behind the end, which is 10",
        "startFrom offset 0 of partition 7 of topic 'start-orders': the topic has 4 partitions",
        "internal topic 'test.start-control' does not exist, and spec.kafka.internal.creation is RequireExisting: create it with 1 partitions, cleanup.policy=compact",
        "internal topic 'test.start-t1-joined-changelog' does not exist",
        TIMEOUT,
    ];
    errors_are(&report, &expected);
}

#[test]
fn a_prefix_of_another_pipeline_and_a_changelog_that_was_made_again_are_found() {
    for topic in ["taken-orders", "taken-customers", "taken-out"] {
        kafka().create_topic(topic, 2, &[]).unwrap();
    }
    let job = job("taken", "", "{policy: Earliest}", CREATED);
    let mut control = ControlTopic::open(&job.connection, "test.taken-control", &CREATED).unwrap();
    let changelog = "test.taken-t1-joined-changelog";
    kafka().create_topic(changelog, 2, &[("cleanup.policy", "compact")]).unwrap();
    let created = Created { topic_id: "another".to_owned(), partitions: 2, begun: 2 };
    control.append(&Change::Put(Record::Owner { number: 1, owner: owner("other") })).unwrap();
    control.append(&Change::Put(Record::Created { topic: changelog.to_owned(), created })).unwrap();
    // It ran before, so its ids are not tried at a start.
    let report = check(&job, Depth::Start).unwrap();
    let again = "internal topic 'test.taken-t1-joined-changelog' was deleted and made again";
    errors_are(&report, &["IdentityConflict: the prefix 'test.taken' belongs to pipeline test/other", again]);
    let seen = report.seen.iter().any(|[what, name, like]| {
        (what.as_str(), name.as_str(), like.as_str()) == ("internal", changelog, "2 partitions")
    });
    assert!(seen, "{report:#?}");
}

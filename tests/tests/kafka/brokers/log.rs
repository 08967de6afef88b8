//! The adapter against a real broker: what an epoch shows and when, what a second process under the same name does to
//! the first, and where reading ends.

use millrace_core::control::LaneId;
use millrace_core::ids::{Offset, Partition, Timeline};
use millrace_core::plan::StartFrom;
use millrace_kafka_harness::{DEADLINE, Kafka, Message, Options, Record, Signal, wait};
use millrace_runtime::log::kafka::connection::{Connection, FETCHED_BYTES};
use millrace_runtime::log::kafka::{InternalTopics, KafkaLog, KafkaLogConfig};
use millrace_runtime::log::{
    self, Assignment, CommitError, Header, InputId, InternalKind, Log, LogError, Outbox, TopicInfo,
};
use millrace_tests::kafka::shared as kafka;

fn config(kafka: &Kafka, id: &str, outputs: &[&str]) -> KafkaLogConfig {
    KafkaLogConfig {
        connection: Connection::plain(kafka.bootstrap_servers()),
        transactional_id: id.to_owned(),
        group: format!("{id}-group"),
        transaction_timeout_ms: 10_000,
        outputs: outputs.iter().map(|o| (*o).to_owned()).collect(),
        internal: InternalTopics { create: true, replication_factor: 1 },
        until_end: false,
        fetched_bytes: FETCHED_BYTES,
        trim_every_ms: 0,
    }
}

fn opened(config: KafkaLogConfig) -> KafkaLog {
    let mut log = KafkaLog::open(config).unwrap();
    log.initialise().unwrap();
    log
}

fn open(id: &str, outputs: &[&str]) -> KafkaLog {
    opened(config(kafka(), id, outputs))
}

/// Reads a changelog from `from` to its end, which it returns.
fn read_changelog(
    log: &mut KafkaLog,
    name: &str,
    from: i64,
    visit: &mut dyn FnMut(log::Record<'_>) -> anyhow::Result<()>,
) -> Result<i64, LogError> {
    let end = log.changelog_range(name, Partition(0))?.end;
    log.read_changelog(name, Partition(0), Offset(from)..end, visit).unwrap();
    Ok(end.0)
}

fn assignment(topic: &str, partition: i32, next: i64) -> Assignment {
    let group = format!("{topic}-readers");
    Assignment { topic: topic.to_owned(), partition: Partition(partition), next: Offset(next), rank: 0, group }
}

/// A record that a lane read: input, offset, value.
type Read = (usize, i64, String);

/// Polls until every wanted input was read to its end.
fn read_all(log: &mut KafkaLog, inputs: &[InputId], max: usize) -> Vec<Read> {
    let mut next: Vec<i64> = vec![-1; inputs.len()];
    let mut read = Vec::new();
    wait::until("the ends of the inputs", DEADLINE, || {
        while let Some(fetch) = log.poll(&|id| inputs.contains(&id).then_some(Offset(i64::MAX)), max)? {
            assert!(fetch.records.len() <= max);
            next[inputs.iter().position(|i| *i == fetch.input).unwrap()] = fetch.next.0;
            read.extend(fetch.records.iter().map(|r| {
                let value = String::from_utf8(r.value.unwrap_or(b"-").to_vec()).unwrap();
                (fetch.input.0, r.offset.0, value)
            }));
        }
        inputs.iter().zip(&next).try_fold(true, |all, (input, next)| {
            let end = log.end(*input)?;
            Ok(all && end.offset.0 <= (*next).max(0))
        })
    })
    .unwrap();
    read
}

fn outbox(topic: &str, values: &[&str]) -> Outbox {
    let mut outbox = Outbox::default();
    let index = outbox.topic_index(topic);
    for value in values {
        outbox.push(index, Partition(0), Some(1_000), Some(value.as_bytes()), Some(value.as_bytes()), Vec::new());
    }
    outbox
}

fn values(records: Vec<Record>) -> Vec<String> {
    records.into_iter().map(|r| String::from_utf8(r.value.unwrap()).unwrap()).collect()
}

#[test]
fn an_epoch_is_visible_whole_once_it_is_committed() {
    let kafka = kafka();
    kafka.create_topic("whole-in", 2, &[]).unwrap();
    kafka.create_topic("whole-out", 2, &[]).unwrap();
    kafka.produce("whole-in", (0..10).map(|i| Message::new("k", format!("{i}")).on(i % 2))).unwrap();
    let mut log = open("whole", &["whole-out"]);
    let inputs = [0, 1].map(|p| log.assign(assignment("whole-in", p, 0)).unwrap());
    assert_eq!(read_all(&mut log, &inputs, 3).len(), 10);
    let mut outbox = Outbox::default();
    let out = outbox.topic_index("whole-out");
    let headers = vec![Header { name: "reason".to_owned(), value: b"late".to_vec() }];
    outbox.push(out, Partition(1), Some(1_234), Some(b"key"), Some(b"value"), headers);
    outbox.push(out, Partition(1), Some(1_235), Some(b""), None, Vec::new());
    outbox.push(out, Partition(0), Some(1_236), None, Some(b""), Vec::new());
    log.send(&mut outbox).unwrap();
    assert!(outbox.is_empty());
    wait::until("the records as uncommitted ones", DEADLINE, || Ok(kafka.read_uncommitted("whole-out")?.len() == 3))
        .unwrap_or_else(|e| panic!("linger ends by itself: {e}"));
    assert_eq!(kafka.read_committed("whole-out").unwrap(), []);
    log.commit().unwrap();
    let record = |partition, offset, timestamp, key: Option<&str>, value: Option<&str>| Record {
        partition,
        offset,
        timestamp_ms: Some(timestamp),
        key: key.map(|k| k.as_bytes().to_vec()),
        value: value.map(|v| v.as_bytes().to_vec()),
        headers: Vec::new(),
    };
    let mut expected = [
        record(0, 0, 1_236, None, Some("")),
        record(1, 0, 1_234, Some("key"), Some("value")),
        record(1, 1, 1_235, Some(""), None),
    ];
    expected[1].headers.push(("reason".to_owned(), b"late".to_vec()));
    // The answer to a commit comes before its markers are everywhere.
    wait::until("the epoch's records", DEADLINE, || Ok(kafka.read_committed("whole-out")?.len() == 3)).unwrap();
    assert_eq!(kafka.read_committed("whole-out").unwrap(), expected);
    assert_eq!(kafka.group_offsets("whole-in-readers", "whole-in").unwrap(), [(0, 5), (1, 5)]);
    // A quiet lane commits nothing, and says that it has.
    log.commit().unwrap();
}

#[test]
fn an_aborted_epoch_is_never_visible_and_its_end_is_reached() {
    let kafka = kafka();
    kafka.create_topic("aborted", 1, &[]).unwrap();
    let mut log = open("aborter", &["aborted"]);
    let abort_once_written = |log: &mut KafkaLog, records| {
        log.send(&mut outbox("aborted", &["never"])).unwrap();
        // What still lingers would be thrown away before it is written.
        let written = || Ok(kafka.read_uncommitted("aborted")?.len() == records);
        wait::until("the record", DEADLINE, written).unwrap();
        log.abort().unwrap();
    };
    abort_once_written(&mut log, 1);
    log.send(&mut outbox("aborted", &["seen"])).unwrap();
    log.commit().unwrap();
    abort_once_written(&mut log, 3);
    wait::until("the last marker", DEADLINE, || Ok(log.end_of("aborted", Partition(0))?.0 == 6)).unwrap();
    assert_eq!(values(kafka.read_committed("aborted").unwrap()), ["seen"]);
    let mut reader = open("reader", &[]);
    let input = reader.assign(assignment("aborted", 0, 0)).unwrap();
    // never, its marker, seen, its marker, never, its marker: the end is 6, and only one record lies before it.
    assert_eq!(read_all(&mut reader, &[input], 100), [(0, 2, "seen".to_owned())]);
    assert_eq!(reader.end(input).unwrap().offset, Offset(6));
}

#[test]
fn what_is_not_wanted_waits_and_nothing_of_it_is_lost() {
    let kafka = kafka();
    kafka.create_topic("gated", 2, &[]).unwrap();
    kafka
        .produce("gated", (0..2_000).map(|i| Message::new("k", format!("{i}")).on(i % 2).at(1 + i64::from(i))))
        .unwrap();
    let mut log = open("gate", &[]);
    let inputs = [0, 1].map(|p| log.assign(assignment("gated", p, 0)).unwrap());
    let first = read_all(&mut log, &inputs[1..], 100);
    assert!(first.iter().all(|(input, ..)| *input == 1));
    assert_eq!(first.len(), 1_000);
    // Of the other one the lane knows how old its oldest record is.
    wait::until("the head", DEADLINE, || Ok(log.end(inputs[0])?.head_timestamp_ms == Some(1))).unwrap();
    let second = read_all(&mut log, &inputs[..1], 100);
    let expected: Vec<Read> = (0..1_000).map(|i| (0, i, format!("{}", i * 2))).collect();
    assert_eq!(second, expected);
    assert_eq!(log.end(inputs[0]).unwrap().head_timestamp_ms, None);
}

#[test]
fn the_oldest_head_is_read_first_and_nobody_is_passed_over_for_ever() {
    let kafka = kafka();
    kafka.create_topic("old", 1, &[]).unwrap();
    kafka.create_topic("young", 1, &[]).unwrap();
    kafka.produce("old", (0..400).map(|i| Message::new("k", "old").on(0).at(1 + i))).unwrap();
    kafka.produce("young", (0..2).map(|i| Message::new("k", "young").on(0).at(1_000_000 + i))).unwrap();
    let mut log = open("heads", &[]);
    let inputs = ["young", "old"].map(|topic| log.assign(assignment(topic, 0, 0)).unwrap());
    let young = comes_at(&mut log, inputs[0], &inputs);
    assert!((100..400).contains(&young), "the young record came at {young}");
}

/// At which place the first record of an input is read, where each of `inputs` has something from the begin on.
fn comes_at(log: &mut KafkaLog, input: InputId, inputs: &[InputId]) -> usize {
    for input in inputs {
        wait::until("a head", DEADLINE, || Ok(log.end(*input)?.head_timestamp_ms.is_some())).unwrap();
    }
    read_all(log, inputs, 10).iter().position(|(read, ..)| *read == input.0).unwrap()
}

#[test]
fn rows_of_a_stream_have_a_share_beside_changes_without_an_end() {
    let mut log = open("share", &[]);
    let names = ["share-t1-changes-repartition", "share-t1-rows-repartition"];
    names.iter().for_each(|name| log.create_internal(name, InternalKind::Repartition, 1).unwrap());
    let mut both = outbox(names[0], &["change"; 400]);
    let rows = both.topic_index(names[1]);
    both.push(rows, Partition(0), Some(1_000), None, Some(b"row"), Vec::new());
    log.send(&mut both).unwrap();
    log.commit().unwrap();
    // As the engine ranks a table's exchange and a stream's.
    let inputs = [(0, 0), (1, 1 << 16)].map(|(i, rank)| {
        let assigned = log.assign(Assignment { rank, ..assignment(names[i], 0, 0) });
        assigned.unwrap()
    });
    let row = comes_at(&mut log, inputs[1], &inputs);
    assert!((100..400).contains(&row), "the row came at {row}");
}

#[test]
fn two_inputs_of_one_partition_are_read_apart() {
    let kafka = kafka();
    kafka.create_topic("shared", 1, &[]).unwrap();
    kafka.produce("shared", (0..10).map(|i| Message::new("k", format!("{i}")).on(0))).unwrap();
    let mut log = open("sharing", &[]);
    let inputs = [0, 4].map(|next| log.assign(assignment("shared", 0, next)).unwrap());
    let read = read_all(&mut log, &inputs, 100);
    let of = |input: usize| read.iter().filter(|(i, ..)| *i == input).map(|(_, offset, _)| *offset).collect::<Vec<_>>();
    assert_eq!(of(0), (0..10).collect::<Vec<_>>());
    assert_eq!(of(1), (4..10).collect::<Vec<_>>());
}

#[test]
fn the_second_process_under_an_id_fences_the_first() {
    let kafka = kafka();
    kafka.create_topic("fenced", 1, &[]).unwrap();
    let mut first = open("contended", &["fenced"]);
    first.send(&mut outbox("fenced", &["of the first"])).unwrap();
    let mut second = open("contended", &["fenced"]);
    let error = first.commit().unwrap_err();
    assert!(matches!(error, CommitError::Fenced(_)), "{error:?}");
    assert!(first.send(&mut outbox("fenced", &["again"])).is_err());
    second.send(&mut outbox("fenced", &["of the second"])).unwrap();
    second.commit().unwrap();
    // Whoever initialises again is the one who may write: fencing alone does not say whose the work is.
    first.initialise().unwrap();
    first.send(&mut outbox("fenced", &["of the first, anew"])).unwrap();
    first.commit().unwrap();
    second.send(&mut outbox("fenced", &["too late"])).unwrap();
    assert!(matches!(second.commit().unwrap_err(), CommitError::Fenced(_)));
    let fence = first.fence(LaneId { timeline: Timeline(1), worker: 0, lane: 0 }, "contended").unwrap();
    wait::until("the fence", DEADLINE, || Ok(fence.outcome().transpose()?.is_some())).unwrap();
    assert_eq!(values(kafka.read_committed("fenced").unwrap()), ["of the second", "of the first, anew"]);
}

#[test]
fn a_changelog_is_read_to_its_last_stable_offset() {
    let kafka = kafka();
    let mut log = open("writer", &[]);
    let name = "writer-t1-join-changelog";
    log.create_internal(name, InternalKind::Changelog, 2).unwrap();
    log.create_internal(name, InternalKind::Changelog, 2).unwrap();
    let error = log.create_internal(name, InternalKind::Changelog, 3).unwrap_err();
    assert!(error.to_string().contains("has 2 partitions"), "{error}");
    let read = |from| {
        let mut seen = Vec::new();
        let mut reader = open("changelog-reader", &[]);
        let next = read_changelog(&mut reader, name, from, &mut |record| {
            seen.push((record.offset.0, String::from_utf8(record.value.unwrap().to_vec())?));
            Ok(())
        });
        (seen, next.unwrap())
    };
    assert_eq!(read(0), (Vec::new(), 0));
    for epoch in 0..3 {
        log.send(&mut outbox(name, &[&format!("state {epoch}"), &format!("marker {epoch}")])).unwrap();
        log.commit().unwrap();
        assert_eq!(log.committed_end(name, Partition(0)).unwrap().0, epoch * 3 + 2);
    }
    log.send(&mut outbox(name, &["open"])).unwrap();
    // Taking the id anew, as a restart does, ends the open epoch and has every earlier one in place.
    let mut restarted = open("writer", &[]);
    let (seen, next) = read(0);
    let texts: Vec<&str> = seen.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(texts, ["state 0", "marker 0", "state 1", "marker 1", "state 2", "marker 2"]);
    assert_eq!(next, restarted.end_of(name, Partition(0)).unwrap().0);
    assert_eq!(read(4).0.first(), Some(&(4, "marker 1".to_owned())));
    assert_eq!(read(next), (Vec::new(), next));
    let policy = kafka.topic_config(name).unwrap();
    assert_eq!(policy["cleanup.policy"], "compact");
    assert_eq!(policy["delete.retention.ms"], "2592000000");
}

#[test]
fn a_transaction_that_stays_open_in_a_changelog_is_an_error() {
    let kafka = kafka();
    let with_timeout = |id, ms| opened(KafkaLogConfig { transaction_timeout_ms: ms, ..config(kafka, id, &[]) });
    let mut writer = with_timeout("hanging", 120_000);
    let name = "hanging-changelog";
    writer.create_internal(name, InternalKind::Changelog, 1).unwrap();
    writer.send(&mut outbox(name, &["committed"])).unwrap();
    writer.commit().unwrap();
    writer.send(&mut outbox(name, &["open"])).unwrap();
    wait::until("the open record", DEADLINE, || Ok(kafka.read_uncommitted(name)?.len() == 2)).unwrap();
    let mut reader = with_timeout("waiting", 1_000);
    let error = reader.changelog_range(name, Partition(0)).unwrap_err();
    assert!(matches!(error, LogError::HangingTransaction { offset: Offset(2), .. }));
    writer.commit().unwrap();
    assert_eq!(reader.changelog_range(name, Partition(0)).unwrap(), Offset(0)..Offset(4));
}

#[test]
fn a_position_that_is_gone_is_an_error() {
    let kafka = kafka();
    kafka.create_topic("short", 1, &[]).unwrap();
    kafka.produce("short", (0..10).map(|i| Message::new("k", format!("{i}")).on(0))).unwrap();
    let mut log = open("expired", &[]);
    kafka.delete_records("short", 0, 5).unwrap();
    let gone = |error: LogError| match error {
        LogError::OffsetGone { offset, .. } => offset.0,
        other => panic!("{other}"),
    };
    assert_eq!(gone(log.assign(assignment("short", 0, 4)).unwrap_err()), 4);
    let error = log.assign(assignment("short", 0, 11)).unwrap_err();
    assert!(error.to_string().contains("ends at 10 and was read up to 11"), "{error}");
    assert_eq!(log.changelog_range("short", Partition(0)).unwrap(), Offset(5)..Offset(10));
    // From the beginning means from what is there.
    let start = |log: &mut KafkaLog, from| log.start("short", Partition(0), &from).unwrap().0;
    assert_eq!(start(&mut log, StartFrom::Earliest), 5);
    assert_eq!(start(&mut log, StartFrom::Latest), 10);
    assert_eq!(start(&mut log, StartFrom::Offsets(vec![(0, 7)])), 7);
    assert_eq!(start(&mut log, StartFrom::Offsets(vec![(1, 7)])), 5);
    assert_eq!(start(&mut log, StartFrom::Timestamp(i64::MAX / 2)), 10);
    // While it reads: what is deleted under the reader is not skipped.
    kafka.create_topic("vanishing", 1, &[]).unwrap();
    kafka.produce("vanishing", (0..10).map(|i| Message::new("k", format!("{i}")).on(0))).unwrap();
    kafka.delete_records("vanishing", 0, 3).unwrap();
    let mut racing = open("racing", &[]);
    let input = racing.assign(assignment("vanishing", 0, 3)).unwrap();
    assert_eq!(read_all(&mut racing, &[input], 100).len(), 7);
}

#[test]
fn a_record_above_the_topics_limit_is_refused_before_it_can_spoil_a_batch() {
    let kafka = kafka();
    kafka.create_topic("small", 1, &[("max.message.bytes", "2000")]).unwrap();
    let mut log = open("large", &["small"]);
    assert_eq!(log.record_bytes_max("small"), Some(1_900));
    let large = "x".repeat(3_000);
    let error = log.send(&mut outbox("small", &["fits", &large])).unwrap_err();
    assert!(matches!(&error, LogError::RecordTooLarge { bytes_max: 2_000, .. }), "{error:?}");
    log.abort().unwrap();
    // Many that fit one by one do not make a batch that doesn't.
    let fits = "y".repeat(700);
    log.send(&mut outbox("small", &[&fits, &fits, &fits])).unwrap();
    log.commit().unwrap();
    assert_eq!(kafka.read_committed("small").unwrap().len(), 3);
}

#[test]
fn a_topic_that_is_missing_is_said_with_the_command_that_creates_it() {
    let kafka = kafka();
    let mut log = open("missing", &[]);
    assert_eq!(log.topic("absent").unwrap(), None);
    assert_eq!(log.open_output("absent").unwrap(), None);
    let command = log.creating_command("absent");
    assert!(command.contains("--create --topic absent"), "{command}");
    assert_eq!(log.topic("absent").unwrap(), None, "asking created it");
    kafka.create_topic("absent", 3, &[]).unwrap();
    let TopicInfo { id, partitions } = log.topic("absent").unwrap().unwrap();
    assert_eq!(partitions, 3);
    kafka.delete_topic("absent").unwrap();
    kafka.create_topic("absent", 3, &[]).unwrap();
    let anew = log.open_output("absent").unwrap().unwrap().id;
    assert!(id.is_some() && anew.is_some() && id != anew, "{id:?} {anew:?}");
    assert_eq!(log.cluster_id().as_deref(), Some(kafka.cluster_id()));
    let refusal = |internal| {
        let mut log = KafkaLog::open(KafkaLogConfig { internal, ..config(kafka, "refused", &[]) }).unwrap();
        log.create_internal("x-changelog", InternalKind::Changelog, 1).unwrap_err().to_string()
    };
    let error = refusal(InternalTopics { create: false, replication_factor: 1 });
    assert!(error.contains("RequireExisting"), "{error}");
    let error = refusal(InternalTopics { create: true, replication_factor: 3 });
    assert!(error.contains("replicationFactor"), "{error}");
}

#[test]
fn a_bounded_log_ends_where_its_topics_ended() {
    let kafka = kafka();
    kafka.create_topic("bounded", 1, &[]).unwrap();
    kafka.produce("bounded", (0..5).map(|i| Message::new("k", format!("{i}")).on(0))).unwrap();
    let mut log = KafkaLog::open(KafkaLogConfig { until_end: true, ..config(kafka, "bounding", &[]) }).unwrap();
    let input = log.assign(assignment("bounded", 0, 0)).unwrap();
    kafka.produce("bounded", [Message::new("k", "after").on(0)]).unwrap();
    let end = log.end(input).unwrap();
    assert!(log.bounded() && end.ended);
    assert_eq!(end.offset, Offset(5));
}

#[test]
fn rows_between_stages_are_deleted_behind_their_reader() {
    let kafka = kafka();
    let mut log = open("trimming", &[]);
    let name = "trimming-t1-x-repartition";
    log.create_internal(name, InternalKind::Repartition, 1).unwrap();
    assert_eq!(kafka.topic_config(name).unwrap()["retention.ms"], "-1");
    log.send(&mut outbox(name, &["a", "b", "c"])).unwrap();
    log.commit().unwrap();
    let input = log.assign(assignment(name, 0, 0)).unwrap();
    assert_eq!(read_all(&mut log, &[input], 100).len(), 3);
    log.trim(name, Partition(0), Offset(2)).unwrap();
    wait::until("the trim", DEADLINE, || {
        log.end(input)?;
        Ok(log.start(name, Partition(0), &StartFrom::Earliest)?.0 == 2)
    })
    .unwrap();
}

/// An epoch in two topics, as a lane writes it: results, then the marker.
fn epoch(number: usize, results: &str, changelog: &str) -> Outbox {
    let mut outbox = outbox(results, &[&format!("result {number}"), &format!("second result {number}")]);
    let index = outbox.topic_index(changelog);
    outbox.push(index, Partition(0), Some(1_000), Some(b"m"), Some(format!("{number}").as_bytes()), Vec::new());
    outbox
}

fn last_marker(log: &mut KafkaLog, changelog: &str) -> Option<usize> {
    let mut last = None;
    let read = read_changelog(log, changelog, 0, &mut |record| {
        last = Some(std::str::from_utf8(record.value.unwrap_or_default())?.parse()?);
        Ok(())
    });
    read.unwrap();
    last
}

/// When a test gets in between.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moment {
    BeforeCommit,
    AfterCommit,
}

/// Commits epochs and has `disturb` get in between, with the number of the attempt. Whatever a commit says, the marker
/// tells what became of it.
fn commit_through(kafka: &Kafka, epochs: usize, mut disturb: impl FnMut(&Kafka, usize, Moment)) -> Vec<&'static str> {
    kafka.create_topic("results", 1, &[]).unwrap();
    let replication_factor = kafka.brokers() as u16;
    let config = KafkaLogConfig {
        transaction_timeout_ms: 4_000,
        internal: InternalTopics { create: true, replication_factor },
        ..config(kafka, "disturbed", &["results"])
    };
    let mut log = opened(config);
    log.create_internal("disturbed-changelog", InternalKind::Changelog, 1).unwrap();
    let mut outcomes = Vec::new();
    let mut number = 0;
    while number < epochs {
        let attempt = outcomes.len();
        let sent = log.send(&mut epoch(number, "results", "disturbed-changelog"));
        disturb(kafka, attempt, Moment::BeforeCommit);
        let outcome = sent.map_err(CommitError::from).and_then(|()| log.commit());
        disturb(kafka, attempt, Moment::AfterCommit);
        outcomes.push(match &outcome {
            Ok(()) => "committed",
            Err(CommitError::Aborted(_)) => "aborted",
            Err(CommitError::Fenced(_)) => "fenced",
            Err(CommitError::Unknown(_)) => "unknown",
        });
        match outcome {
            Ok(()) => number += 1,
            Err(CommitError::Aborted(_)) => {}
            Err(CommitError::Fenced(_) | CommitError::Unknown(_)) => {
                log.initialise().unwrap();
                number = last_marker(&mut log, "disturbed-changelog").map_or(0, |last| last + 1);
            }
        }
    }
    let results = values(kafka.read_committed("results").unwrap());
    let expected: Vec<String> =
        (0..epochs).flat_map(|n| [format!("result {n}"), format!("second result {n}")]).collect();
    assert_eq!(results, expected, "{outcomes:?}");
    outcomes
}

#[test]
fn leaders_that_are_killed_between_an_epoch_and_its_commit_double_and_lose_nothing() {
    let kafka = Kafka::three().unwrap();
    let outcomes = commit_through(&kafka, 8, |kafka, attempt, moment| {
        // The leader of the changelog, of the results, and then whoever it is: the coordinator is among them.
        match (attempt, moment) {
            (1, Moment::BeforeCommit) => kill_leader(kafka, "disturbed-changelog"),
            (3, Moment::BeforeCommit) => kill_leader(kafka, "results"),
            (5, Moment::BeforeCommit) => kill_leader(kafka, "disturbed-changelog"),
            _ => {}
        }
    });
    assert!(outcomes.len() >= 8);
}

/// Kills the leader and starts it again at once: with another one down, nothing could be written.
fn kill_leader(kafka: &Kafka, topic: &str) {
    let leader = kafka.leader(topic, 0).unwrap();
    kafka.kill(leader).unwrap();
    kafka.restart(leader).unwrap();
    kafka.wait_in_sync("results").unwrap();
    kafka.wait_in_sync("disturbed-changelog").unwrap();
}

#[test]
fn an_outcome_that_did_not_come_in_time_is_unknown_and_the_marker_tells_it() {
    // A broker that was given up while it stood still would lose markers for want of a leader.
    let properties = vec![("broker.session.timeout.ms".to_owned(), "120000".to_owned())];
    let kafka = Kafka::start(&Options { properties, ..Options::default() }).unwrap();
    let outcomes = commit_through(&kafka, 5, |kafka, attempt, moment| match (attempt, moment) {
        (2, Moment::BeforeCommit) => kafka.signal(1, Signal::Stop).unwrap(),
        (2, Moment::AfterCommit) => kafka.signal(1, Signal::Continue).unwrap(),
        _ => {}
    });
    assert_eq!(outcomes.iter().filter(|o| **o == "unknown").count(), 1, "{outcomes:?}");
    assert_eq!(outcomes.iter().filter(|o| **o == "committed").count(), outcomes.len() - 1, "{outcomes:?}");
}

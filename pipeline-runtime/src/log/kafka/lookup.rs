//! Look-ups that a lane waits for, while it starts: with a deadline, and again when they fail in passing.

use std::sync::Arc;

use rdkafka::types::RDKafkaErrorCode;

use super::native::Client;
use super::native::admin::{AdminQueue, Answer, PartitionOffset, Spec};
use super::{fault, passing};
use crate::clock;
use crate::log::{LogError, TopicInfo};

/// How long a look-up is tried.
const LOOKUP_MS: u64 = 30_000;
/// How long one attempt may take: a broker that died is not answered for, and the next attempt goes to another.
pub const ATTEMPT_MS: i32 = 5_000;
const RETRY_MS: u64 = 50;

/// An offset of a partition.
pub fn offset(client: &Arc<Client>, topic: &str, partition: i32, spec: Spec) -> Result<i64, LogError> {
    let what = format!(
        "look up where partition {partition} of topic '{topic}' {}",
        match spec {
            Spec::Earliest => "begins",
            Spec::LastStable | Spec::HighWatermark => "ends",
            Spec::Timestamp(_) => "reaches a timestamp",
        }
    );
    retrying(&what, client, &[topic], |queue| {
        queue.ask_offsets(&[(topic, partition)], spec, ATTEMPT_MS, 0);
        match answer(queue, ATTEMPT_MS).map_err(leaderless)? {
            Answer::Offsets(offsets) => match offsets.into_iter().next() {
                // A topic that was just made is not known to every broker yet.
                Some(PartitionOffset { offset: Err(RDKafkaErrorCode::UnknownTopicOrPartition), .. }) => {
                    Err((RDKafkaErrorCode::LeaderNotAvailable, "there is no such partition".to_owned()))
                }
                Some(found) => found.offset.map_err(|code| (code, code.to_string())),
                None => Err(unexpected()),
            },
            _ => Err(unexpected()),
        }
    })
}

/// A topic, or `None` if there is none of that name.
pub fn describe(client: &Arc<Client>, topic: &str) -> Result<Option<TopicInfo>, LogError> {
    retrying(&format!("look up topic '{topic}'"), client, &[topic], |queue| {
        queue.ask_topics(&[topic], ATTEMPT_MS, 0);
        match answer(queue, ATTEMPT_MS)? {
            Answer::Topics(topics) => match topics.into_iter().next() {
                Some((_, Ok(found))) => Ok(Some(TopicInfo { id: found.id, partitions: found.partitions })),
                Some((_, Err(code))) if unknown_topic(code) => Ok(None),
                Some((_, Err(code))) => Err((code, code.to_string())),
                None => Err(unexpected()),
            },
            _ => Err(unexpected()),
        }
    })
}

pub fn unknown_topic(code: RDKafkaErrorCode) -> bool {
    matches!(code, RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic)
}

pub type Failure = (RDKafkaErrorCode, String);

/// The library says that there is no such thing where no partition of a request has a leader: until one is chosen.
fn leaderless((code, text): Failure) -> Failure {
    (if code == RDKafkaErrorCode::NoEnt { RDKafkaErrorCode::LeaderNotAvailable } else { code }, text)
}

pub fn unexpected() -> Failure {
    (RDKafkaErrorCode::Fail, "the answer does not fit the request".to_owned())
}

pub fn answer(queue: &AdminQueue, timeout_ms: i32) -> Result<Answer, Failure> {
    match queue.next(timeout_ms) {
        Some((_, Answer::Failed { code, text })) => Err((code, text)),
        Some((_, answer)) => Ok(answer),
        None => Err((RDKafkaErrorCode::OperationTimedOut, "no answer".to_owned())),
    }
}

/// Asks until there is an answer, it is refused for good, or it was tried for too long.
pub fn retrying<T>(
    what: &str,
    client: &Arc<Client>,
    topics: &[&str],
    attempt: impl Fn(&AdminQueue) -> Result<T, Failure>,
) -> Result<T, LogError> {
    let start = clock::steady_ms();
    loop {
        // A queue for each attempt: a late answer to an earlier one must not be taken for that to this one.
        let queue = AdminQueue::new(client, None).ok_or_else(|| fault(what, "out of memory", false))?;
        let (code, text) = match attempt(&queue) {
            Ok(found) => return Ok(found),
            Err(failure) => failure,
        };
        // "No leaders found": the client has not heard of the partition yet, as after a topic has grown.
        let passing = passing(code) || code == RDKafkaErrorCode::NoEnt;
        if !passing || clock::steady_ms() - start > LOOKUP_MS {
            return Err(fault(what, &text, passing));
        }
        topics.iter().for_each(|topic| client.refresh_leaders(topic, ATTEMPT_MS));
        clock::pause_ms(RETRY_MS);
    }
}

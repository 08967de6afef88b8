//! The records of the control log: who runs a task, and which topics the pipeline made.
//!
//! The control topic has one partition and is compacted, so a record is a key and a value, and a null value is a
//! tombstone. The key says everything that identifies the record; the value (JSON) says what else is known. Two records
//! with one key replace each other, so keys are made such that only true repetitions share one:
//!
//! | key | value | says |
//! | --- | --- | --- |
//! | `owner/<n>` | cluster, namespace, name, uid | whose pipeline this is; the highest `n` counts |
//! | `created/<topic>` | topic id, partitions, partitions at first | we made this topic (invariant I6) |
//! | `claim/<stage>/<partition>/<generation>/<lane>/<incarnation>` | plan number, fingerprint, state format | this lane owns this task as of this generation |
//! | `release/…` (as the claim) | last epoch | cancels exactly that claim; a taker waits for that epoch's marker |
//! | `fenced/<lane>/<q>` | | that lane's id was initialised by somebody who had read this log up to and with `q` when it began |
//! | `resumed/<lane>/<incarnation>` | | that lane initialised its own id, and reads the log up to this record |
//! | `pinned/<incarnation>` | digest, ranges | what the backfill of this name computes; the first one in the log counts |
//!
//! Neither a stage's name (DNS-1035) nor a topic's can contain `/`. A kind of key that this release does not know is an
//! error, never skipped: a newer release may have made a rule of it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, Generation, Offset, Partition, TaskId, Timeline};

/// A lane; with the pipeline's prefix before it, its transactional id: `<prefix>-t<T>-w<w>-l<l>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId {
    pub timeline: Timeline,
    pub worker: u32,
    pub lane: u32,
}

impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}-w{}-l{}", self.timeline, self.worker, self.lane)
    }
}

impl FromStr for LaneId {
    type Err = UnreadableKey;

    fn from_str(text: &str) -> Result<Self, UnreadableKey> {
        let mut parts = text.split('-');
        let mut part = |letter: char| parts.next()?.strip_prefix(letter)?.parse().ok();
        let (timeline, worker, lane) = (part('t'), part('w'), part('l'));
        match (timeline, worker, lane, parts.next()) {
            (Some(timeline), Some(worker), Some(lane), None) => Ok(Self { timeline: Timeline(timeline), worker, lane }),
            _ => Err(UnreadableKey(text.to_owned())),
        }
    }
}

/// One process's life of a lane: a random number, drawn at start. Which of two is newer is told by the log alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// What names a claim, and the release that cancels it. A lane claims a task at most once per generation and life.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimId {
    pub task: TaskId,
    pub generation: Generation,
    pub lane: LaneId,
    pub incarnation: Incarnation,
}

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}/{}", self.task, self.generation, self.lane, self.incarnation)
    }
}

/// Which plan a claimer runs. The number grows with each applied plan; the format with the releases of the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanStamp {
    pub plan: u64,
    pub fingerprint: u64,
    pub state_format: u32,
}

/// Whose pipeline the prefix belongs to. Outside of Kubernetes the cluster and the uid are empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The uid of the namespace kube-system: the nearest thing to a cluster's name.
    pub cluster: String,
    pub namespace: String,
    pub name: String,
    /// Another uid under the same three names is the same owner, re-created.
    pub uid: String,
}

/// A topic that this pipeline made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Created {
    pub topic_id: String,
    pub partitions: i32,
    /// How many it had at first. Tasks of partitions that came later read their sources from the beginning.
    pub begun: i32,
}

/// What a backfill computes, as its range came to when it began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pinned {
    /// Of all that tells it from another backfill of its name.
    pub digest: String,
    /// By stream: (partition, the first record, behind the last one).
    pub ranges: BTreeMap<String, Vec<(i32, i64, i64)>>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    Owner(u64),
    Created(String),
    Claim(ClaimId),
    Release(ClaimId),
    Fenced(LaneId, Offset),
    Resumed(LaneId, Incarnation),
    Pinned(Incarnation),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    Owner {
        number: u64,
        owner: Owner,
    },
    Created {
        topic: String,
        created: Created,
    },
    Claim {
        id: ClaimId,
        plan: PlanStamp,
    },
    /// `last_epoch` 0: the claim never ran, or never committed; there is nothing to wait for.
    Release {
        id: ClaimId,
        last_epoch: Epoch,
    },
    Fenced {
        lane: LaneId,
        read_to: Offset,
    },
    Resumed {
        lane: LaneId,
        incarnation: Incarnation,
    },
    /// By whom is random: of two that write at once both records stay, and the first counts.
    Pinned {
        by: Incarnation,
        pinned: Pinned,
    },
}

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Put(Record),
    /// A tombstone.
    Forget(Key),
}

/// The control log holds something that this release cannot read. Not to be retried: a newer release wrote it, or
/// somebody else writes to the topic.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error(transparent)]
    Key(#[from] UnreadableKey),
    #[error("read the value of control record `{key}`")]
    Value { key: String, source: serde_json::Error },
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("read control record key `{0}`: this release knows no such key")]
pub struct UnreadableKey(String);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Released {
    last_epoch: Epoch,
}

/// An empty object: the value must not be null, which would be a tombstone.
#[derive(Serialize, Deserialize)]
struct Nothing {}

impl Record {
    pub fn key(&self) -> Key {
        match self {
            Self::Owner { number, .. } => Key::Owner(*number),
            Self::Created { topic, .. } => Key::Created(topic.clone()),
            Self::Claim { id, .. } => Key::Claim(id.clone()),
            Self::Release { id, .. } => Key::Release(id.clone()),
            Self::Fenced { lane, read_to } => Key::Fenced(*lane, *read_to),
            Self::Resumed { lane, incarnation } => Key::Resumed(*lane, *incarnation),
            Self::Pinned { by, .. } => Key::Pinned(*by),
        }
    }

    /// The JSON text of the value.
    pub fn value(&self) -> String {
        match self {
            Self::Owner { owner, .. } => json(owner),
            Self::Created { created, .. } => json(created),
            Self::Claim { plan, .. } => json(plan),
            Self::Release { last_epoch, .. } => json(&Released { last_epoch: *last_epoch }),
            Self::Fenced { .. } | Self::Resumed { .. } => json(&Nothing {}),
            Self::Pinned { pinned, .. } => json(pinned),
        }
    }
}

fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("structs of strings and numbers always have a JSON text")
}

impl Change {
    pub fn key(&self) -> Key {
        match self {
            Self::Put(record) => record.key(),
            Self::Forget(key) => key.clone(),
        }
    }

    /// Reads an entry of the control topic; `value` is none for a tombstone.
    pub fn parse(key: &str, value: Option<&[u8]>) -> Result<Self, ControlError> {
        let parsed: Key = key.parse()?;
        let Some(value) = value else { return Ok(Self::Forget(parsed)) };
        let read = || -> Result<Record, serde_json::Error> {
            Ok(match parsed {
                Key::Owner(number) => Record::Owner { number, owner: serde_json::from_slice(value)? },
                Key::Created(topic) => Record::Created { topic, created: serde_json::from_slice(value)? },
                Key::Claim(id) => Record::Claim { id, plan: serde_json::from_slice(value)? },
                Key::Release(id) => {
                    let Released { last_epoch } = serde_json::from_slice(value)?;
                    Record::Release { id, last_epoch }
                }
                Key::Fenced(lane, read_to) => {
                    let Nothing {} = serde_json::from_slice(value)?;
                    Record::Fenced { lane, read_to }
                }
                Key::Resumed(lane, incarnation) => {
                    let Nothing {} = serde_json::from_slice(value)?;
                    Record::Resumed { lane, incarnation }
                }
                Key::Pinned(by) => Record::Pinned { by, pinned: serde_json::from_slice(value)? },
            })
        };
        read().map(Self::Put).map_err(|source| ControlError::Value { key: key.to_owned(), source })
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owner(number) => write!(f, "owner/{number}"),
            Self::Created(topic) => write!(f, "created/{topic}"),
            Self::Claim(id) => write!(f, "claim/{id}"),
            Self::Release(id) => write!(f, "release/{id}"),
            Self::Fenced(lane, read_to) => write!(f, "fenced/{lane}/{read_to}"),
            Self::Resumed(lane, incarnation) => write!(f, "resumed/{lane}/{incarnation}"),
            Self::Pinned(by) => write!(f, "pinned/{by}"),
        }
    }
}

impl FromStr for Key {
    type Err = UnreadableKey;

    fn from_str(text: &str) -> Result<Self, UnreadableKey> {
        let parts: Vec<&str> = text.split('/').collect();
        let key = match parts[..] {
            ["owner", number] => number.parse().ok().map(Self::Owner),
            ["created", topic] => Some(Self::Created(topic.to_owned())),
            ["claim", ref id @ ..] => claim_id(id).map(Self::Claim),
            ["release", ref id @ ..] => claim_id(id).map(Self::Release),
            ["fenced", lane, read_to] => lane_and(lane, read_to.parse().ok()).map(|(l, q)| Self::Fenced(l, Offset(q))),
            ["pinned", by] => incarnation(by).map(Self::Pinned),
            ["resumed", lane, life] => lane_and(lane, incarnation(life)).map(|(l, i)| Self::Resumed(l, i)),
            _ => None,
        };
        key.ok_or_else(|| UnreadableKey(text.to_owned()))
    }
}

fn lane_and<T>(lane: &str, other: Option<T>) -> Option<(LaneId, T)> {
    Some((lane.parse().ok()?, other?))
}

fn incarnation(text: &str) -> Option<Incarnation> {
    (text.len() == 16).then(|| u64::from_str_radix(text, 16).ok())?.map(Incarnation)
}

fn claim_id(parts: &[&str]) -> Option<ClaimId> {
    let [stage, partition, generation, lane, life] = parts else { return None };
    let task = TaskId { stage: (*stage).to_owned(), partition: Partition(partition.parse().ok()?) };
    let generation = Generation(generation.parse().ok()?);
    Some(ClaimId { task, generation, lane: lane.parse().ok()?, incarnation: incarnation(life)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> ClaimId {
        ClaimId {
            task: TaskId { stage: "enriched".into(), partition: Partition(3) },
            generation: Generation(7),
            lane: LaneId { timeline: Timeline(1), worker: 2, lane: 0 },
            incarnation: Incarnation(0xbeef),
        }
    }

    #[test]
    fn every_record_reads_back_from_its_text() {
        let plan = PlanStamp { plan: 4, fingerprint: u64::MAX, state_format: 1 };
        let owner = Owner { cluster: "c".into(), namespace: "shop".into(), name: "orders".into(), uid: "u".into() };
        let created = Created { topic_id: "kA_9".into(), partitions: 8, begun: 4 };
        let (lane, incarnation) = (claim().lane, claim().incarnation);
        let ranges = BTreeMap::from([("orders".to_owned(), vec![(0, 5, 9), (1, 0, 0)])]);
        let pinned = Pinned { digest: "0a".into(), ranges };
        let written = [
            (Record::Owner { number: 2, owner }, "owner/2"),
            (
                Record::Created { topic: "shop.orders-t1-enriched-changelog".into(), created },
                "created/shop.orders-t1-enriched-changelog",
            ),
            (Record::Claim { id: claim(), plan }, "claim/enriched/3/7/t1-w2-l0/000000000000beef"),
            (Record::Release { id: claim(), last_epoch: Epoch(9) }, "release/enriched/3/7/t1-w2-l0/000000000000beef"),
            (Record::Fenced { lane, read_to: Offset(41) }, "fenced/t1-w2-l0/41"),
            (Record::Resumed { lane, incarnation }, "resumed/t1-w2-l0/000000000000beef"),
            (Record::Pinned { by: incarnation, pinned }, "pinned/000000000000beef"),
        ];
        for (record, key) in written {
            assert_eq!(record.key().to_string(), key);
            let read = Change::parse(key, Some(record.value().as_bytes())).expect("it was written by us");
            assert_eq!(read, Change::Put(record.clone()));
            assert_eq!(Change::parse(key, None).expect("a tombstone"), Change::Forget(record.key()));
        }
    }

    #[test]
    fn a_key_of_a_newer_release_is_an_error_and_not_skipped() {
        for key in
            ["", "lease/1", "owner/x", "fenced/t1-w2/3", "fenced/t1-w2-l0-x/3", "claim/a/b", "resumed/t1-w2-l0/f"]
        {
            assert_eq!(key.parse::<Key>(), Err(UnreadableKey(key.to_owned())));
        }
    }

    #[test]
    fn a_value_that_cannot_be_read_names_its_record() {
        let error = Change::parse("created/x", Some(b"{}")).expect_err("it has no topic id");
        assert_eq!(error.to_string(), "read the value of control record `created/x`");
    }
}

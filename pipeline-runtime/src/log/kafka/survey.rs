//! What a cluster says of itself, of topics and groups, and of what we may do with them. Facts only: somebody else
//! judges them. Nothing is written, created or taken, but for a transactional id that is nobody's.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use rdkafka::types::RDKafkaErrorCode;

use super::connection::{BATCH_BYTES_MAX, Connection};
use super::ending::end;
use super::lookup::{ATTEMPT_MS, answer, retrying, unexpected, unknown_topic};
use super::native::admin::{AdminQueue, Answer, PartitionOffset};
use super::native::{Client, Event, Kind};
use super::topics::{self, Admin};
pub use super::topics::{Deleted, Settings};
use super::transactions::Transactions;
use super::{InternalTopics, TRANSACTION_TIMEOUT_MS};
use crate::clock;
use crate::log::{InternalKind, LogError};

pub use super::native::admin::{Description, Right, Spec};

/// For how long a broker that was reached is asked for the cluster's id.
const ID_MS: i32 = 2_000;
/// How long a cluster is tried to be reached: longer than the brokers go on naming one that stands still (9 s,
/// `broker.session.timeout.ms`), shorter than a person waits.
pub const REACH_MS: u64 = 20_000;
/// An attempt of it, and what asking another broker for the next one may take.
const REACH_ATTEMPT_MS: i32 = 4_000;
const REACH_REFRESH_MS: i32 = 1_000;
/// The library's reports are looked at so often while it connects.
const LOOK_MS: i32 = 50;
/// How long a look at a group may take. Long, since the library (2.12.1) counts its references wrongly and ends the process
/// when such a request times out before its coordinator is found, which takes seconds on a cluster that was just made.
const GROUP_MS: i32 = 60_000;

/// Why a cluster is not reached. The texts are the library's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    Unreachable(String),
    Authentication(String),
    Tls(String),
}

/// What can be known of a topic.
#[derive(Clone, Debug)]
pub enum Seen {
    There(Description),
    Missing,
    /// We may not even know whether it is there.
    Hidden,
}

/// A cluster that was reached.
pub struct Survey {
    connection: Connection,
    client: Option<Arc<Client>>,
    admin: Admin,
    pub brokers: usize,
    /// The id of the cluster, where it has told one.
    pub id: Option<String>,
}

/// Connects within [`REACH_MS`], or says why not. `give_up` ends it early.
pub fn reach(connection: &Connection, give_up: &dyn Fn() -> bool) -> Result<Survey, Refusal> {
    let client =
        Client::new(Kind::Producer, &connection.client()).map_err(|text| refusal(RDKafkaErrorCode::SSL, text))?;
    match answered(&client, give_up) {
        Ok(brokers) => {
            let admin =
                Admin::connect(&connection.client()).map_err(|error| Refusal::Unreachable(error.to_string()))?;
            let id = client.cluster_id(ID_MS);
            Ok(Survey { connection: connection.clone(), client: Some(client), admin, brokers, id })
        }
        Err(refusal) => {
            end("a client", client);
            Err(refusal)
        }
    }
}

/// Waits for the cluster's answer: how many brokers it has.
fn answered(client: &Arc<Client>, give_up: &dyn Fn() -> bool) -> Result<usize, Refusal> {
    let queue = AdminQueue::new(client, None).ok_or_else(|| Refusal::Unreachable("out of memory".to_owned()))?;
    let ask = || queue.ask_cluster(REACH_ATTEMPT_MS, 0);
    let start = clock::steady_ms();
    let mut last = Refusal::Unreachable("no answer".to_owned());
    ask();
    while clock::steady_ms() - start < REACH_MS && !give_up() {
        if let Some(Event::Error { code, text }) = client.next_event(LOOK_MS, &mut |_| {}) {
            let (found, refused) = (refusal(code, text), !matches!(last, Refusal::Unreachable(_)));
            match code {
                // No broker is left. One that was not there may come back; one that refused us does so again.
                RDKafkaErrorCode::AllBrokersDown if refused => return Err(last),
                RDKafkaErrorCode::AllBrokersDown => {}
                _ if refused && matches!(found, Refusal::Unreachable(_)) => {}
                _ => last = found,
            }
        }
        match queue.next(0) {
            Some((_, Answer::Cluster { brokers })) => return Ok(brokers),
            Some(_) => {
                client.refresh_brokers(REACH_REFRESH_MS);
                ask();
            }
            None => {}
        }
    }
    Err(last)
}

/// Which kind of refusal an error is. The library calls an alert of the other side a lost connection.
fn refusal(code: RDKafkaErrorCode, text: String) -> Refusal {
    match code {
        RDKafkaErrorCode::Authentication => Refusal::Authentication(text),
        RDKafkaErrorCode::SSL => Refusal::Tls(text),
        _ if text.contains("SSL alert") => Refusal::Tls(text),
        _ => Refusal::Unreachable(text),
    }
}

impl Survey {
    fn client(&self) -> &Arc<Client> {
        self.client.as_ref().expect("it is there until the drop")
    }

    /// Looks topics up, all at once.
    pub fn topics(&self, names: &BTreeSet<&str>) -> Result<BTreeMap<String, Seen>, LogError> {
        let names: Vec<&str> = names.iter().copied().collect();
        if names.is_empty() {
            return Ok(BTreeMap::new());
        }
        retrying("look up topics", self.client(), &names, |queue| {
            queue.ask_topics(&names, ATTEMPT_MS, 0);
            let Answer::Topics(found) = answer(queue, ATTEMPT_MS)? else { return Err(unexpected()) };
            let seen = found.into_iter().map(|(name, found)| match found {
                Ok(description) => Ok((name, Seen::There(description))),
                Err(code) if unknown_topic(code) => Ok((name, Seen::Missing)),
                Err(RDKafkaErrorCode::TopicAuthorizationFailed) => Ok((name, Seen::Hidden)),
                Err(code) => Err((code, format!("topic '{name}': {code}"))),
            });
            seen.collect()
        })
    }

    /// The configuration of topics, where it may be read.
    pub fn settings(&self, names: &[&str]) -> Result<BTreeMap<String, Settings>, LogError> {
        let found = names.iter().zip(self.admin.settings(names)?);
        Ok(found.filter_map(|(name, settings)| Some(((*name).to_owned(), settings?))).collect())
    }

    /// First offsets and ends of partitions that have a leader. One that cannot be looked up is left out.
    pub fn ranges(
        &self,
        partitions: &[(&str, i32)],
        end: Spec,
    ) -> Result<BTreeMap<(String, i32), Range<i64>>, LogError> {
        let first = self.offsets(partitions, Spec::Earliest)?;
        let mut ends = self.offsets(partitions, end)?;
        let range = |(place, first)| Some((ends.remove_entry(&place)?, first));
        Ok(first.into_iter().filter_map(range).map(|((place, end), first)| (place, first..end)).collect())
    }

    fn offsets(&self, partitions: &[(&str, i32)], spec: Spec) -> Result<BTreeMap<(String, i32), i64>, LogError> {
        if partitions.is_empty() {
            return Ok(BTreeMap::new());
        }
        let topics: BTreeSet<&str> = partitions.iter().map(|(topic, _)| *topic).collect();
        let topics: Vec<&str> = topics.into_iter().collect();
        retrying("look up offsets", self.client(), &topics, |queue| {
            queue.ask_offsets(partitions, spec, ATTEMPT_MS, 0);
            let Answer::Offsets(found) = answer(queue, ATTEMPT_MS)? else { return Err(unexpected()) };
            let known = |o: PartitionOffset| Some(((o.topic, o.partition), o.offset.ok()?));
            Ok(found.into_iter().filter_map(known).collect())
        })
    }

    /// What we may do with a consumer group; `None`: not even look at it.
    pub fn group(&self, name: &str) -> Result<Option<BTreeSet<Right>>, LogError> {
        retrying(&format!("look up group '{name}'"), self.client(), &[], |queue| {
            queue.ask_groups(&[name], GROUP_MS, 0);
            let Answer::Groups(found) = answer(queue, GROUP_MS)? else { return Err(unexpected()) };
            match found.into_iter().next().ok_or_else(unexpected)? {
                Ok(rights) => Ok(Some(rights)),
                Err(RDKafkaErrorCode::GroupAuthorizationFailed) => Ok(None),
                // Nobody has used it yet.
                Err(RDKafkaErrorCode::GroupIdNotFound) => Ok(Some(BTreeSet::new())),
                Err(code) => Err((code, code.to_string())),
            }
        })
    }

    /// Why a topic of our own could not be created.
    pub fn try_create(
        &self,
        name: &str,
        kind: InternalKind,
        partitions: i32,
        internal: &InternalTopics,
    ) -> Result<(), LogError> {
        self.admin.try_create(name, kind, partitions, internal)
    }

    /// Takes a transactional id, which must be nobody's, and says why it cannot be had with our timeout.
    pub fn take(&self, transactional_id: &str) -> Result<(), LogError> {
        let config = self.connection.producer(transactional_id, TRANSACTION_TIMEOUT_MS, BATCH_BYTES_MAX);
        Transactions::initialise(&config, TRANSACTION_TIMEOUT_MS).map(Transactions::close)
    }

    /// The names of all topics that we may see.
    pub fn all_topics(&self) -> Result<Vec<String>, LogError> {
        self.admin.all_topics()
    }

    /// Deletes topics: true for one that was there, or why it could not be.
    pub fn delete_topics(&self, names: &[String]) -> Result<Vec<Deleted>, LogError> {
        self.admin.delete_topics(names)
    }

    /// Deletes groups: true for one that was there, or why it could not be.
    pub fn delete_groups(&self, names: &[String]) -> Result<Vec<Deleted>, LogError> {
        self.admin.delete_groups(names)
    }

    /// The command that creates a topic.
    pub fn creating_command(&self, topic: &str) -> String {
        topics::creating_command(topic, &self.connection.bootstrap_servers)
    }
}

impl Drop for Survey {
    fn drop(&mut self) {
        end("a client", self.client.take());
    }
}

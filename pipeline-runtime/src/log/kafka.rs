//! Kafka as a lane's log: a consumer, a transactional producer, and a client for what the lane waits for.
//!
//! | what | how |
//! | --- | --- |
//! | reading | manual assignment, `read_committed`, a queue per partition ([`inputs`]) |
//! | an epoch | one transaction: records, then the offsets as a copy for tools, then the commit ([`transactions`]) |
//! | an end | the last stable offset, looked up without waiting ([`ends`]) |
//! | progress | none: the library's and the group's positions are never asked |
//!
//! Invariants. A position that is gone is an error. The outcome of a commit is one of four, and *unknown* is never
//! guessed. No call of a running lane waits without a deadline. Topics of the user are never created. No secret is in a
//! log or an error.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use millrace_core::control::LaneId;
use millrace_core::ids::{Offset, Partition};
use millrace_core::plan::StartFrom;
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{Offset as KafkaOffset, TopicPartitionList};

use super::{
    Assignment, CommitError, End, Fetch, InputId, InternalKind, Log, LogError, Outbox, Record, TopicInfo, Wanted,
};
use crate::clock;
use ends::Ends;
use inputs::Inputs;
use native::admin::{AdminQueue, Answer, Spec};
use native::queue::Signal;
use native::transaction::GroupMetadata;
use native::{Client, Kind};
use topics::Admin;
use transactions::{GroupOffsets, Limits, Transactions};
use trims::Trims;

pub use fence::Fence;
pub use topics::required;
pub use trims::EVERY_MS as TRIM_EVERY_MS;

mod changelog;
pub mod connection;
pub mod control;
mod ending;
mod ends;
mod fence;
mod inputs;
mod lookup;
mod native;
pub mod survey;
mod topics;
mod transactions;
mod trims;

use connection::{BATCH_BYTES_MAX, Connection};

/// The longest that a stalled lane may hold back readers of what it wrote, before the brokers end its transaction.
pub const TRANSACTION_TIMEOUT_MS: u32 = 10_000;
/// How long the first look-up of the ends may take.
const FIRST_ENDS_MS: u64 = 30_000;
/// How often brokers look for transactions that have timed out
/// (`transaction.abort.timed.out.transaction.cleanup.interval.ms`).
const BROKERS_LOOK_MS: u64 = 10_000;
const CLUSTER_ID_MS: i32 = 5_000;
/// Tag of requests to delete records; look-ups of ends count from 1.
const TRIM_TAG: usize = 0;
/// Room for the head of a batch below a topic's limit.
const BATCH_OVERHEAD: usize = 1024;

/// Who creates our own topics, and how they are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InternalTopics {
    /// False: they must be there.
    pub create: bool,
    pub replication_factor: u16,
}

#[derive(Clone, Debug)]
pub struct KafkaLogConfig {
    pub connection: Connection,
    pub transactional_id: String,
    /// Of the consumer; nothing is committed under it. Each assignment names the group that its positions are copied to.
    pub group: String,
    pub transaction_timeout_ms: u32,
    /// Topics of the user that are written to: sinks and dead letters.
    pub outputs: Vec<String>,
    pub internal: InternalTopics,
    /// Read every input to where it ends when it is assigned, and end there.
    pub until_end: bool,
    /// What is fetched ahead of each input, about; at least a batch of its records.
    pub fetched_bytes: usize,
    /// Between two requests to delete what is trimmed; [`TRIM_EVERY_MS`] but for tests.
    pub trim_every_ms: u64,
}

pub struct KafkaLog {
    config: KafkaLogConfig,
    /// `None` between the loss of a producer and the next initialisation.
    transactions: Option<Transactions>,
    limits: Limits,
    ends: Ends,
    /// Where each input ended when it was assigned.
    assigned_ends: BTreeMap<InputId, i64>,
    trims: Trims,
    answers: AdminQueue,
    /// While the lane starts.
    admin: Option<Admin>,
    inputs: Inputs,
    /// For what is waited for: look-ups, and the reading of changelogs.
    reader: Arc<Client>,
}

impl KafkaLog {
    /// Connects. Reading is possible at once, writing after [`Log::initialise`].
    pub fn open(config: KafkaLogConfig) -> Result<Self, LogError> {
        let inputs = Inputs::new(&config.connection, &config.group, config.fetched_bytes)?;
        let answers = answers(&inputs)?;
        let trims = Trims::new(config.trim_every_ms);
        let mut log = Self {
            reader: reader(&config.connection, &config.group, config.fetched_bytes)?,
            config,
            transactions: None,
            limits: Limits { record_bytes: BTreeMap::new(), internal: BTreeMap::new() },
            ends: Ends::default(),
            assigned_ends: BTreeMap::new(),
            trims,
            answers,
            admin: None,
            inputs,
        };
        let outputs = log.config.outputs.clone();
        if !outputs.is_empty() {
            let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
            log.limits.record_bytes = log.admin()?.record_limits(&outputs)?;
        }
        Ok(log)
    }

    fn client(&self) -> &Arc<Client> {
        &self.reader
    }

    /// Takes new clients, for a cluster that is to be reached in another way. No input is assigned, and the
    /// transactional id is not taken, as when nothing was done yet.
    pub fn reconnect(&mut self, connection: &Connection) -> Result<(), LogError> {
        if let Some(old) = self.transactions.take() {
            old.close();
        }
        let inputs = Inputs::new(connection, &self.config.group, self.config.fetched_bytes)?;
        self.answers = answers(&inputs)?;
        self.inputs = inputs;
        self.reader = reader(connection, &self.config.group, self.config.fetched_bytes)?;
        self.config.connection = connection.clone();
        self.admin = None;
        self.ends = Ends::default();
        self.assigned_ends.clear();
        self.trims = Trims::new(self.config.trim_every_ms);
        Ok(())
    }

    /// Begins to take the transactional id of another lane, so that it can never commit again under the handle it has.
    pub fn fence(&self, lane: LaneId, transactional_id: &str) -> Result<Fence, LogError> {
        let timeout_ms = self.config.transaction_timeout_ms;
        let config = self.config.connection.producer(transactional_id, timeout_ms, BATCH_BYTES_MAX);
        Fence::begin(lane, config, timeout_ms)
    }

    /// What a partition held when this was asked, once nothing of that is open any more.
    pub fn held(&self, topic: &str, partition: Partition) -> Result<Range<Offset>, LogError> {
        changelog::held(self.client(), topic, partition, self.open_ms_max())
    }

    /// The brokers end a transaction that has timed out when they next look.
    fn open_ms_max(&self) -> u64 {
        2 * u64::from(self.config.transaction_timeout_ms) + BROKERS_LOOK_MS
    }

    /// One of our own topics, with so many partitions, was seen by somebody else.
    pub fn expect_internal(&mut self, name: &str, partitions: i32) {
        self.limits.internal.insert(name.to_owned(), partitions);
    }

    /// Gives an internal topic more partitions.
    pub fn grow_internal(&mut self, name: &str, partitions: i32) -> Result<(), LogError> {
        self.admin()?.grow(name, partitions)?;
        topics::wait_until(self.client(), name, partitions).map(drop)
    }

    fn admin(&mut self) -> Result<&Admin, LogError> {
        if self.admin.is_none() {
            self.admin = Some(Admin::connect(&self.config.connection.client())?);
        }
        self.admin.as_ref().ok_or_else(|| fault("connect to Kafka", "no admin client", false))
    }

    fn transactions(&mut self) -> Result<&mut Transactions, LogError> {
        let missing = || fault("write to Kafka", "the transactional id was not taken", true);
        self.transactions.as_mut().ok_or_else(missing)
    }

    /// Takes answers that have come, and asks what is due.
    fn serve(&mut self) {
        while let Some((tag, answer)) = self.answers.next(0) {
            match answer {
                Answer::Offsets(offsets) => self.ends.answered(tag, &offsets),
                Answer::Deleted(starts) => self.trims.answered(&starts),
                Answer::Failed { text, .. } if tag == TRIM_TAG => self.trims.failed(&text),
                Answer::Failed { text, .. } => self.ends.failed(tag, &text),
                Answer::Topics(_) | Answer::Groups(_) | Answer::Cluster { .. } => {}
            }
        }
        if let Some((tag, partitions)) = self.ends.due() {
            self.answers.ask_offsets(&partitions, Spec::LastStable, ends::ATTEMPT_MS, tag);
        }
        if let Some(below) = self.trims.due() {
            self.answers.ask_delete(&below, trims::ATTEMPT_MS, TRIM_TAG);
        }
    }

    /// The end of an input as it was last looked up. Waits for the first look-up only.
    fn known_end(&mut self, input: InputId) -> Result<ends::KnownEnd, LogError> {
        let start = clock::steady_ms();
        loop {
            self.serve();
            if let Some(end) = self.ends.of(input.0) {
                return Ok(end);
            }
            let left = FIRST_ENDS_MS.saturating_sub(clock::steady_ms() - start);
            if left == 0 {
                return Err(fault("look up where the inputs end", "the brokers did not answer in time", true));
            }
            self.inputs.waker().wait(Duration::from_millis(left.min(100)));
        }
    }

    /// Positions that the groups were not told yet, by group.
    fn offsets_to_copy(&mut self) -> Vec<GroupOffsets> {
        let mut lists: BTreeMap<String, TopicPartitionList> = BTreeMap::new();
        for input in self.inputs.all_mut().filter(|i| i.next != i.copied) {
            let Assignment { topic, partition, group, .. } = &input.assignment;
            let list = lists.entry(group.clone()).or_default();
            // A position is never negative, which is all that could be refused.
            if list.add_partition_offset(topic, partition.0, KafkaOffset::Offset(input.next)).is_ok() {
                input.copied = input.next;
            }
        }
        lists.into_iter().filter_map(|(group, list)| Some((GroupMetadata::new(&group)?, list))).collect()
    }
}

impl Log for KafkaLog {
    fn topic(&mut self, name: &str) -> Result<Option<TopicInfo>, LogError> {
        // One of our own was there a moment ago, perhaps on another broker than the one that answers now.
        if let Some(partitions) = self.limits.internal.get(name) {
            return topics::known_soon(self.client(), name, *partitions);
        }
        lookup::describe(self.client(), name)
    }

    fn cluster_id(&self) -> Option<String> {
        self.client().cluster_id(CLUSTER_ID_MS)
    }

    fn compacted(&mut self, topic: &str) -> Result<Option<i64>, LogError> {
        self.admin()?.tombstones_ms(topic)
    }

    fn creating_command(&self, topic: &str) -> String {
        topics::creating_command(topic, &self.config.connection.bootstrap_servers)
    }

    fn create_internal(&mut self, name: &str, kind: InternalKind, partitions: i32) -> Result<(), LogError> {
        let internal = self.config.internal;
        let info = match lookup::describe(self.client(), name)? {
            Some(info) => info,
            None if internal.create => {
                self.admin()?.create(name, kind, partitions, &internal)?;
                topics::wait_until(self.client(), name, partitions)?
            }
            None => return Err(required(name, kind, partitions)),
        };
        if info.partitions != partitions {
            return Err(LogError::User(format!(
                "internal topic '{name}' has {} partitions and the pipeline has {partitions} tasks: it belongs to another state of the pipeline; restart it under a new name",
                info.partitions
            )));
        }
        let limits = self.admin()?.record_limits(&[name])?;
        self.limits.record_bytes.extend(limits);
        self.limits.internal.insert(name.to_owned(), partitions);
        Ok(())
    }

    fn start(&mut self, topic: &str, partition: Partition, from: &StartFrom) -> Result<Offset, LogError> {
        let earliest = || lookup::offset(self.client(), topic, partition.0, Spec::Earliest);
        let end = || lookup::offset(self.client(), topic, partition.0, Spec::LastStable);
        let offset = match from {
            StartFrom::Earliest => earliest()?,
            StartFrom::Latest => end()?,
            StartFrom::Timestamp(ms) => {
                match lookup::offset(self.client(), topic, partition.0, Spec::Timestamp(*ms))? {
                    // No record is as young.
                    ..0 => end()?,
                    offset => offset,
                }
            }
            StartFrom::Offsets(list) => match list.iter().find(|(p, _)| *p == partition.0) {
                Some((_, offset)) => *offset,
                None => earliest()?,
            },
        };
        Ok(Offset(offset))
    }

    fn end_of(&mut self, topic: &str, partition: Partition) -> Result<Offset, LogError> {
        lookup::offset(self.client(), topic, partition.0, Spec::LastStable).map(Offset)
    }

    fn committed_end(&mut self, topic: &str, partition: Partition) -> Result<Offset, LogError> {
        // By the deliveries: commit markers are written after the answer to the commit, so that the last stable offset
        // may lie before the epoch for a moment.
        match self.transactions()?.delivered_end(topic, partition.0) {
            Some(end) => Ok(Offset(end)),
            None => self.end_of(topic, partition),
        }
    }

    fn open_output(&mut self, topic: &str) -> Result<Option<TopicInfo>, LogError> {
        let Some(info) = lookup::describe(self.client(), topic)? else { return Ok(None) };
        if !self.limits.record_bytes.contains_key(topic) {
            let limits = self.admin()?.record_limits(&[topic])?;
            self.limits.record_bytes.extend(limits);
        }
        Ok(Some(info))
    }

    fn record_bytes_max(&self, topic: &str) -> Option<usize> {
        self.limits.record_bytes.get(topic).map(|limit| limit.saturating_sub(transactions::RECORD_OVERHEAD))
    }

    fn assign(&mut self, assignment: Assignment) -> Result<InputId, LogError> {
        let (topic, partition) = (assignment.topic.clone(), assignment.partition);
        let first = lookup::offset(self.client(), &topic, partition.0, Spec::Earliest)?;
        let end = lookup::offset(self.client(), &topic, partition.0, Spec::LastStable)?;
        if assignment.next.0 < first {
            return Err(LogError::OffsetGone { topic, partition, offset: assignment.next });
        }
        if assignment.next.0 > end {
            return Err(LogError::User(format!(
                "partition {partition} of topic '{topic}' ends at {end} and was read up to {}: the topic was made anew, or lost records",
                assignment.next
            )));
        }
        let internal = self.limits.internal.contains_key(&topic);
        let id = self.inputs.assign(assignment, internal)?;
        self.ends.add(id.0, &topic, partition.0);
        self.assigned_ends.insert(id, end);
        Ok(id)
    }

    fn unassign(&mut self, input: InputId) -> Result<(), LogError> {
        self.ends.remove(input.0);
        self.assigned_ends.remove(&input);
        self.inputs.unassign(input)
    }

    fn poll(&mut self, wanted: Wanted<'_>, max: usize) -> Result<Option<Fetch<'_>>, LogError> {
        // The lane has started: nobody asks the administrator any more.
        self.admin = None;
        if let Some(transactions) = &mut self.transactions {
            transactions.serve_events(0);
        }
        self.inputs.poll(wanted, max)
    }

    fn end(&mut self, input: InputId) -> Result<End, LogError> {
        let known = self.known_end(input)?;
        let head_timestamp_ms = self.inputs.head_timestamp_ms(input, known.offset)?;
        let bounded = self.config.until_end && !self.inputs.input(input).internal;
        Ok(End {
            offset: Offset(if bounded { self.assigned_ends[&input] } else { known.offset }),
            as_of_ms: known.as_of_ms,
            ended: bounded,
            head_timestamp_ms,
            hidden: self.ends.hidden(input.0, self.inputs.high_watermark(input)),
        })
    }

    fn send(&mut self, outbox: &mut Outbox) -> Result<(), LogError> {
        let Some(transactions) = &mut self.transactions else {
            return Err(fault("write to Kafka", "the transactional id was not taken", true));
        };
        transactions.send(outbox, &self.limits)?;
        outbox.clear();
        Ok(())
    }

    fn commit(&mut self) -> Result<(), CommitError> {
        // A quiet lane opened no transaction.
        if !self.transactions()?.is_open() {
            return self.transactions()?.commit(Vec::new());
        }
        let offsets = self.offsets_to_copy();
        self.transactions()?.commit(offsets)
    }

    fn abort(&mut self) -> Result<(), LogError> {
        self.transactions()?.abort()
    }

    fn initialise(&mut self) -> Result<(), LogError> {
        if let Some(lost) = self.transactions.take() {
            lost.close();
        }
        let smallest = self.limits.record_bytes.values().min().copied().unwrap_or(BATCH_BYTES_MAX);
        let batch_bytes = smallest.saturating_sub(BATCH_OVERHEAD).clamp(1, BATCH_BYTES_MAX);
        let KafkaLogConfig { connection, transactional_id, transaction_timeout_ms, .. } = &self.config;
        let producer = connection.producer(transactional_id, *transaction_timeout_ms, batch_bytes);
        self.transactions = Some(Transactions::initialise(&producer, *transaction_timeout_ms)?);
        Ok(())
    }

    fn changelog_range(&mut self, topic: &str, partition: Partition) -> Result<Range<Offset>, LogError> {
        changelog::range(self.client(), topic, partition, self.open_ms_max())
    }

    fn range(&mut self, topic: &str, partition: Partition) -> Result<Range<Offset>, LogError> {
        let end = lookup::offset(self.client(), topic, partition.0, Spec::LastStable)?;
        let first = lookup::offset(self.client(), topic, partition.0, Spec::Earliest)?;
        Ok(Offset(first)..Offset(end))
    }

    fn read_changelog(
        &mut self,
        topic: &str,
        partition: Partition,
        range: Range<Offset>,
        visit: &mut dyn FnMut(Record<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        changelog::read(self.client(), (topic, partition), range, visit)
    }

    fn trim(&mut self, topic: &str, partition: Partition, before: Offset) -> Result<(), LogError> {
        let last = self.inputs.is_last(topic, partition.0);
        self.trims.want(topic, partition.0, before.0, last);
        Ok(())
    }

    fn wait(&mut self, timeout_ms: u64) {
        self.inputs.waker().wait(Duration::from_millis(timeout_ms));
    }

    fn bounded(&self) -> bool {
        self.config.until_end
    }
}

impl Drop for KafkaLog {
    fn drop(&mut self) {
        if let Some(transactions) = self.transactions.take() {
            transactions.close();
        }
    }
}

fn reader(connection: &Connection, group: &str, fetched_bytes: usize) -> Result<Arc<Client>, LogError> {
    let client = Client::new(Kind::Consumer, &connection.reader(group, fetched_bytes));
    let client = client.map_err(|text| fault("make a consumer", &text, false))?;
    // Where no broker has been reached yet, the library asks for a partition's leader again only after 3 s.
    client.cluster_id(CLUSTER_ID_MS);
    Ok(client)
}

fn answers(inputs: &Inputs) -> Result<AdminQueue, LogError> {
    let queue = AdminQueue::new(inputs.client(), Some(Signal::new(inputs.waker())));
    queue.ok_or_else(|| fault("connect to Kafka", "out of memory", false))
}

/// An error of the cluster's, or of the way to it.
fn fault(what: &str, text: &str, retry: bool) -> LogError {
    LogError::Kafka { what: what.to_owned(), text: text.to_owned(), retry }
}

/// True for what passes by itself: brokers that restart, leaders that move, answers that are late.
fn passing(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        code,
        Code::BrokerTransportFailure
            | Code::AllBrokersDown
            | Code::Resolve
            | Code::OperationTimedOut
            | Code::TimedOutQueue
            | Code::MessageTimedOut
            | Code::WaitingForCoordinator
            | Code::LeaderNotAvailable
            | Code::NotLeaderForPartition
            | Code::RequestTimedOut
            | Code::BrokerNotAvailable
            | Code::ReplicaNotAvailable
            | Code::NetworkException
            | Code::CoordinatorLoadInProgress
            | Code::CoordinatorNotAvailable
            | Code::NotCoordinator
            | Code::NotEnoughReplicas
            | Code::NotEnoughReplicasAfterAppend
            | Code::NotController
            | Code::FencedLeaderEpoch
            | Code::UnknownLeaderEpoch
            | Code::OffsetNotAvailable
            | Code::KafkaStorageError
            // Whoever is refused while it runs waits for its secrets to change. The start asks first.
            | Code::Authentication
            | Code::SSL
            // The markers of the last transaction cannot be written yet.
            | Code::ConcurrentTransactions
    )
}

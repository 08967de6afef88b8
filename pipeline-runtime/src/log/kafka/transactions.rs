//! The writing side of a lane: one transactional producer for as long as the lane lives.
//!
//! Calls that wait for a broker run on a thread of their own, since some of them can wait for ever whatever timeout
//! they are given. The lane waits for that thread, serves delivery reports meanwhile, and gives up at a deadline: what
//! became of the call is then unknown, and the producer is not used any more.
//!
//! States: *fresh* (no transaction), *open* (from the first record on), *lost* (a call was fenced, failed for good, or
//! was given up). Only a new producer under the same id leads out of *lost* (invariant I4).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::{Builder, JoinHandle};

use rdkafka::TopicPartitionList;
use rdkafka::types::RDKafkaErrorCode;

use super::ending::{finish, wait_for_end};
use super::native::transaction::{GroupMetadata, Topic};
use super::native::{Client, Delivery, Event, Kind, NativeError};
use super::{fault, passing};
use crate::clock;
use crate::log::{CommitError, LogError, OutRecord, Outbox};

/// Taking a transactional id: half a second, or the time until a broken coordinator has moved.
const INITIALISE_MS: u64 = 60_000;
/// How long the library may be late with its own timeout before the lane stops to wait for it.
const GRACE_MS: u64 = 2_000;
/// How long a lane waits for room in the library's buffers.
const ROOM_MS: u64 = 30_000;
/// How long the client may ask about a topic.
const METADATA_MS: i32 = 5_000;
/// Bytes of a record besides key, value and headers, at most.
pub const RECORD_OVERHEAD: usize = 100;

/// Offsets of one group.
pub type GroupOffsets = (GroupMetadata, TopicPartitionList);

enum Job {
    Initialise,
    Commit(Vec<GroupOffsets>),
    Abort,
}

/// How a job failed. Whether the commit was asked for decides whether its outcome is known.
#[derive(Debug)]
struct Failure {
    error: NativeError,
    commit_asked: bool,
}

type Outcome = Result<(), Failure>;

/// Why the producer is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Fresh,
    Open,
    Lost,
}

/// The thread that makes the calls.
struct Worker {
    jobs: SyncSender<(Job, u64)>,
    outcomes: Receiver<Outcome>,
    thread: JoinHandle<()>,
}

/// Where records go, by the outbox's topic index.
struct Target {
    topic: Topic,
    name: String,
    record_bytes_max: usize,
    /// Index into `ends` of each partition, for topics of our own.
    ends: Option<Vec<usize>>,
}

pub struct Transactions {
    client: Arc<Client>,
    worker: Worker,
    state: State,
    timeout_ms: u64,
    targets: Vec<Option<Target>>,
    /// Behind the last delivered record of each partition of our own topics.
    ends: Vec<i64>,
    ends_by_name: BTreeMap<(String, i32), usize>,
    /// Deliveries of the open epoch that failed. Shared with the worker, which must not commit then.
    failures: Arc<AtomicU64>,
    first_failure: Option<RDKafkaErrorCode>,
}

/// What a lane's producer writes to.
pub struct Limits {
    /// The largest record of each topic.
    pub record_bytes: BTreeMap<String, usize>,
    /// Our own topics, whose ends are kept, and their partitions.
    pub internal: BTreeMap<String, i32>,
}

impl Transactions {
    /// Makes a producer and takes its transactional id: whoever had it is fenced, and what was open under it is over,
    /// in every partition, when this returns.
    pub fn initialise(config: &rdkafka::ClientConfig, timeout_ms: u32) -> Result<Self, LogError> {
        let client = Client::new(Kind::Producer, config).map_err(|text| fault("make a producer", &text, false))?;
        let failures = Arc::new(AtomicU64::new(0));
        let worker = Worker::start(&client, &failures)?;
        let mut transactions = Self {
            client,
            worker,
            state: State::Lost,
            timeout_ms: u64::from(timeout_ms),
            targets: Vec::new(),
            ends: Vec::new(),
            ends_by_name: BTreeMap::new(),
            failures,
            first_failure: None,
        };
        match transactions.call(Job::Initialise, INITIALISE_MS) {
            Some(Ok(())) => {
                transactions.state = State::Fresh;
                Ok(transactions)
            }
            Some(Err(Failure { error, .. })) => {
                transactions.close();
                Err(initialise_error(&error))
            }
            None => {
                transactions.close();
                Err(fault("take the transactional id", "the brokers did not answer in time", true))
            }
        }
    }

    /// Puts the outbox's records into the transaction, which the first one begins.
    pub fn send(&mut self, outbox: &Outbox, limits: &Limits) -> Result<(), LogError> {
        match self.state {
            State::Lost => return Err(lost()),
            State::Open => {}
            State::Fresh => {
                self.client.begin_transaction().map_err(|e| self.broken("begin a transaction", &e))?;
                self.failures.store(0, Ordering::Release);
                self.first_failure = None;
                self.state = State::Open;
            }
        }
        for record in outbox.records() {
            let index = record.topic.0;
            if self.targets.len() <= index {
                self.targets.resize_with(index + 1, || None);
            }
            if self.targets[index].is_none() {
                self.targets[index] = Some(self.target(outbox.topic(record.topic), limits)?);
            }
            self.produce(index, &record)?;
        }
        self.serve_events(0);
        Ok(())
    }

    fn target(&mut self, name: &str, limits: &Limits) -> Result<Target, LogError> {
        let topic = Topic::new(&self.client, name).map_err(|e| self.broken("open a topic", &e))?;
        let ends = limits.internal.get(name).map(|partitions| {
            let slot = |partition| {
                *self.ends_by_name.entry((name.to_owned(), partition)).or_insert_with(|| {
                    self.ends.push(0);
                    self.ends.len() - 1
                })
            };
            (0..*partitions).map(slot).collect()
        });
        let record_bytes_max = limits.record_bytes.get(name).copied().unwrap_or(usize::MAX);
        Ok(Target { topic, name: name.to_owned(), record_bytes_max, ends })
    }

    fn produce(&mut self, target: usize, record: &OutRecord<'_>) -> Result<(), LogError> {
        let Some(target) = &self.targets[target] else { return Err(lost()) };
        let bytes = record_bytes(record);
        // Above the limit a broker refuses the whole batch, and would again after each abort.
        if bytes > target.record_bytes_max {
            return Err(LogError::RecordTooLarge {
                topic: target.name.clone(),
                partition: record.partition,
                bytes,
                bytes_max: target.record_bytes_max,
            });
        }
        let slot = target.ends.as_ref().and_then(|ends| ends.get(record.partition.0 as usize));
        let tag = slot.map_or(0, |slot| slot + 1);
        // A clock is read only once it is needed: this runs for each record.
        let (mut begun, mut refreshed) = (None, false);
        loop {
            let Some(target) = &self.targets[record.topic.0] else { return Err(lost()) };
            let error = match target.topic.produce(record, tag) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            // The topic has grown since the client last heard of it.
            if error.code == RDKafkaErrorCode::UnknownPartition && !refreshed {
                refreshed = true;
                self.client.refresh_leaders(&target.name, METADATA_MS);
                continue;
            }
            let begun = *begun.get_or_insert_with(clock::steady_ms);
            if error.code != RDKafkaErrorCode::QueueFull || clock::steady_ms() - begun > ROOM_MS {
                let what = format!("write to partition {} of topic '{}'", record.partition, target.name);
                return Err(self.broken(&what, &error));
            }
            self.serve_events(10);
        }
    }

    /// An error that ends the use of the producer, unless it only ends the transaction.
    fn broken(&mut self, what: &str, error: &NativeError) -> LogError {
        if error.fatal || is_fenced(&self.client, error) {
            self.state = State::Lost;
        }
        fault(what, &error.to_string(), passing(error.code))
    }

    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Takes what the library reports, waiting up to `timeout_ms` for the first report.
    pub fn serve_events(&mut self, mut timeout_ms: i32) {
        let Self { client, ends, failures, first_failure, .. } = self;
        let mut on_delivery = |delivery: Delivery| match delivery.failed {
            Some(code) => {
                failures.fetch_add(1, Ordering::Release);
                first_failure.get_or_insert(code);
            }
            None if delivery.tag > 0 => ends[delivery.tag - 1] = delivery.offset + 1,
            None => {}
        };
        while let Some(event) = client.next_event(timeout_ms, &mut on_delivery) {
            timeout_ms = 0;
            if let Event::Error { code, text } = event {
                tracing::debug!(?code, text, "producer");
            }
        }
    }

    /// Ends the epoch: waits for every record, adds the offsets, commits.
    pub fn commit(&mut self, offsets: Vec<GroupOffsets>) -> Result<(), CommitError> {
        match self.state {
            // Nothing was sent: a quiet lane opens no transaction.
            State::Fresh => return Ok(()),
            State::Lost => return Err(CommitError::Unknown(lost())),
            State::Open => {}
        }
        let what = "commit an epoch";
        match self.call(Job::Commit(offsets), self.timeout_ms) {
            Some(Ok(())) => {
                self.state = State::Fresh;
                Ok(())
            }
            None => {
                self.state = State::Lost;
                Err(CommitError::Unknown(fault(what, "the brokers did not answer in time", true)))
            }
            Some(Err(Failure { error, .. })) if is_fenced(&self.client, &error) => {
                self.state = State::Lost;
                Err(CommitError::Fenced(fault(what, &error.to_string(), true)))
            }
            Some(Err(Failure { error, commit_asked: true })) => {
                self.state = State::Lost;
                Err(CommitError::Unknown(fault(what, &error.to_string(), true)))
            }
            Some(Err(Failure { error, commit_asked: false })) => Err(self.abort_after(what, &error)),
        }
    }

    /// The commit was not asked for yet: an abort makes sure that it never happens.
    fn abort_after(&mut self, what: &str, error: &NativeError) -> CommitError {
        let text = match self.first_failure {
            Some(code) => {
                let count = self.failures.load(Ordering::Acquire);
                format!("{count} records were not delivered: {code}: {error}")
            }
            None => error.to_string(),
        };
        let code = self.first_failure.filter(|code| !is_purged(*code)).unwrap_or(error.code);
        let retry = passing(code) || is_no_record_to_blame(code);
        match self.call(Job::Abort, self.timeout_ms) {
            Some(Ok(())) => {
                self.state = State::Fresh;
                CommitError::Aborted(fault(what, &text, retry))
            }
            Some(Err(failure)) if is_fenced(&self.client, &failure.error) => {
                self.state = State::Lost;
                CommitError::Fenced(fault(what, &failure.error.to_string(), true))
            }
            Some(Err(_)) | None => {
                self.state = State::Lost;
                CommitError::Unknown(fault(
                    what,
                    &format!("{text}, and the abort is not known to have succeeded"),
                    retry,
                ))
            }
        }
    }

    pub fn abort(&mut self) -> Result<(), LogError> {
        match self.state {
            State::Fresh => return Ok(()),
            State::Lost => return Err(lost()),
            State::Open => {}
        }
        match self.call(Job::Abort, self.timeout_ms) {
            Some(Ok(())) => {
                self.state = State::Fresh;
                Ok(())
            }
            Some(Err(failure)) => {
                self.state = State::Lost;
                Err(fault("abort an epoch", &failure.error.to_string(), true))
            }
            None => {
                self.state = State::Lost;
                Err(fault("abort an epoch", "the brokers did not answer in time", true))
            }
        }
    }

    /// Behind the last record that was delivered to a partition of our own topics.
    pub fn delivered_end(&self, topic: &str, partition: i32) -> Option<i64> {
        let slot = self.ends_by_name.get(&(topic.to_owned(), partition))?;
        Some(self.ends[*slot]).filter(|end| *end > 0)
    }

    /// Has the worker do a job and serves events meanwhile. `None`: it did not end in time, and may still end.
    fn call(&mut self, job: Job, timeout_ms: u64) -> Option<Outcome> {
        let start = clock::steady_ms();
        if self.worker.jobs.try_send((job, timeout_ms)).is_err() {
            return None;
        }
        loop {
            match self.worker.outcomes.try_recv() {
                Ok(outcome) => return Some(outcome),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => {}
            }
            let left = (timeout_ms + GRACE_MS).saturating_sub(clock::steady_ms() - start);
            if left == 0 {
                return None;
            }
            self.serve_events(i32::try_from(left).unwrap_or(i32::MAX));
        }
    }

    /// Ends the producer. An open transaction stays open until its id is taken anew or it times out: as after a kill.
    pub fn close(self) {
        let Self { client, worker, targets, .. } = self;
        // The worker holds the last reference, so that the client ends on its thread, where nobody waits for ever.
        drop(targets);
        drop(client);
        worker.join();
    }
}

impl Worker {
    fn start(client: &Arc<Client>, failures: &Arc<AtomicU64>) -> Result<Self, LogError> {
        let (jobs, inbox) = sync_channel::<(Job, u64)>(1);
        let (outbox, outcomes) = sync_channel::<Outcome>(1);
        let (client, failures) = (Arc::clone(client), Arc::clone(failures));
        let work = move || {
            while let Ok((job, timeout_ms)) = inbox.recv() {
                let outcome = run(&client, job, timeout_ms, &failures);
                if outbox.try_send(outcome).is_err() {
                    break;
                }
                client.wake();
            }
            // Before the sender of outcomes, whose end tells that this thread has ended.
            drop(client);
            drop(outbox);
        };
        #[expect(clippy::disallowed_methods, reason = "joined by `join`, with a deadline")]
        let thread = Builder::new().name("transactions".to_owned()).spawn(work);
        match thread {
            Ok(thread) => Ok(Self { jobs, outcomes, thread }),
            Err(e) => Err(fault("start a thread", &e.to_string(), false)),
        }
    }

    fn join(self) {
        let Self { jobs, outcomes, thread } = self;
        drop(jobs);
        // Outcomes of jobs that were given up may still come.
        let ended = wait_for_end(|left| outcomes.recv_timeout(left).map(drop));
        finish("a producer", thread, ended);
    }
}

fn run(client: &Client, job: Job, timeout_ms: u64, failures: &AtomicU64) -> Outcome {
    let deadline = clock::steady_ms() + timeout_ms;
    match job {
        Job::Initialise => again(deadline, |left| client.init_transactions(left)).map_err(early),
        Job::Abort => again(deadline, |left| client.abort_transaction(left)).map_err(early),
        Job::Commit(offsets) => {
            client.flush(left(deadline)).map_err(early)?;
            if failures.load(Ordering::Acquire) > 0 {
                // The lane, which took the reports, knows what became of the records. Why the transaction has failed
                // whatever is asked of it next tells.
                let why =
                    offsets.iter().find_map(|(group, list)| client.send_offsets(list, group, left(deadline)).err());
                return Err(early(why.unwrap_or_else(|| NativeError::of_code(RDKafkaErrorCode::Fail))));
            }
            for (group, offsets) in &offsets {
                again(deadline, |left| client.send_offsets(offsets, group, left)).map_err(early)?;
            }
            let committed = again(deadline, |left| client.commit_transaction(left));
            committed.map_err(|error| Failure { error, commit_asked: true })
        }
    }
}

fn early(error: NativeError) -> Failure {
    Failure { error, commit_asked: false }
}

/// Resumes a call for as long as the library says that it can be, and there is time.
fn again(deadline: u64, call: impl Fn(i32) -> Result<(), NativeError>) -> Result<(), NativeError> {
    loop {
        match call(left(deadline)) {
            Err(error) if error.retriable && !error.fatal && left(deadline) > 0 => {}
            other => return other,
        }
    }
}

fn left(deadline: u64) -> i32 {
    i32::try_from(deadline.saturating_sub(clock::steady_ms())).unwrap_or(i32::MAX)
}

fn lost() -> LogError {
    fault("write to Kafka", "the producer was fenced or an outcome is unknown; its id must be taken anew", true)
}

/// Somebody took the transactional id, or the broker ended the transaction because it took too long: it says the same
/// of both.
fn is_fenced(client: &Client, error: &NativeError) -> bool {
    use RDKafkaErrorCode as Code;
    let code = match error.code {
        Code::Fatal => client.fatal_error().map_or(Code::Fatal, |fatal| fatal.code),
        code => code,
    };
    matches!(code, Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch)
}

/// The record was dropped because its transaction had failed for another reason.
fn is_purged(code: RDKafkaErrorCode) -> bool {
    matches!(code, RDKafkaErrorCode::PurgeQueue | RDKafkaErrorCode::PurgeInflight)
}

/// A broker that has just come back may not know a topic yet. One that is gone is no record's fault either: whoever
/// watches the topics ends the worker.
fn is_no_record_to_blame(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(code, Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition | Code::Fail)
        || is_purged(code)
}

fn initialise_error(error: &NativeError) -> LogError {
    use RDKafkaErrorCode as Code;
    let what = "take the transactional id";
    match error.code {
        Code::InvalidTransactionTimeout => LogError::User(format!(
            "{what}: transaction.timeout.ms is above the brokers' transaction.max.timeout.ms: raise that one"
        )),
        Code::TransactionalIdAuthorizationFailed => LogError::User(format!(
            "{what}: not allowed; grant Write and Describe on transactional ids that start with the pipeline's prefix"
        )),
        code => fault(what, &error.to_string(), passing(code)),
    }
}

fn record_bytes(record: &OutRecord<'_>) -> usize {
    let headers: usize = record.headers.iter().map(|h| h.name.len() + h.value.len() + 10).sum();
    record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len) + headers + RECORD_OVERHEAD
}

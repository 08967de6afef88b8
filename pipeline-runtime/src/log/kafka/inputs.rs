//! The reading side of a lane: one queue per partition, left unpolled while its records are not wanted.
//!
//! Of the inputs that are wanted and have something, the one whose head has the lowest timestamp is read (our own topics
//! first, ties by rank), so that tables and streams advance together through history. One that was passed over too often
//! comes before all others: changes of tables may come faster than a lane can read, and its streams shall go on.
//!
//! Positions are ours: `next` is what the lane was given, `position` what was taken out of the library's queue. Only
//! `position` moves over what is no record (markers of transactions, aborted records, compacted gaps): a fetch without
//! records then tells the lane.

use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{Offset as KafkaOffset, TopicPartitionList};

use super::connection::Connection;
use super::ending::end;
use super::native::message::Message;
use super::native::queue::{PartitionQueue, Waker};
use super::native::{Client, Event, Kind};
use super::{fault, passing};
use crate::log::{Assignment, Fetch, Header, InputId, LogError, RANK_LAST, Record, Wanted};
use millrace_core::ids::Offset;

/// An input that had something is read after it was passed over so often, whatever its timestamps and its rank.
const PASSED_OVER_MAX: u32 = 16;

/// Who has the lowest one is read: how overdue an input is, its head's timestamp, its rank, its index.
type Turn = (Reverse<u32>, i64, u32, usize);

pub struct Input {
    pub assignment: Assignment,
    /// One of our own topics.
    pub internal: bool,
    consumer: usize,
    queue: PartitionQueue,
    /// Taken out of the library's queue, not yet given to the lane.
    buffer: VecDeque<Message>,
    /// Behind the last record that the lane was given.
    pub next: i64,
    /// Behind everything that was taken out of the queue.
    position: i64,
    /// The last end that the queue told of.
    reached: Option<i64>,
    passed_over: u32,
    /// What the group was told last.
    pub copied: i64,
}

struct Consumer {
    client: Arc<Client>,
    assigned: BTreeSet<(String, i32)>,
}

pub struct Inputs {
    connection: Connection,
    group: String,
    fetched_bytes: usize,
    /// One consumer reads a partition once; a second input of the same partition needs a second consumer.
    consumers: Vec<Consumer>,
    /// `None`: not assigned any more.
    inputs: Vec<Option<Input>>,
    waker: Arc<Waker>,
    /// The messages of the last fetch, alive until the next one.
    held: Vec<Message>,
    headers: Vec<Header>,
}

impl Inputs {
    pub fn new(connection: &Connection, group: &str, fetched_bytes: usize) -> Result<Self, LogError> {
        let mut inputs = Self {
            connection: connection.clone(),
            group: group.to_owned(),
            fetched_bytes,
            consumers: Vec::new(),
            inputs: Vec::new(),
            waker: Arc::default(),
            held: Vec::new(),
            headers: Vec::new(),
        };
        inputs.add_consumer()?;
        Ok(inputs)
    }

    fn add_consumer(&mut self) -> Result<(), LogError> {
        let config = self.connection.consumer(&self.group, self.fetched_bytes);
        let client = Client::new(Kind::Consumer, &config).map_err(|text| fault("make a consumer", &text, false))?;
        self.consumers.push(Consumer { client, assigned: BTreeSet::new() });
        Ok(())
    }

    /// The first consumer's client.
    pub fn client(&self) -> &Arc<Client> {
        &self.consumers[0].client
    }

    pub fn waker(&self) -> &Arc<Waker> {
        &self.waker
    }

    pub fn input(&self, input: InputId) -> &Input {
        self.inputs[input.0].as_ref().expect("the input is assigned")
    }

    pub fn all_mut(&mut self) -> impl Iterator<Item = &mut Input> {
        self.inputs.iter_mut().flatten()
    }

    /// Whether a partition is read only while nothing else waits. Then somebody may wait until it is empty.
    pub fn is_last(&self, topic: &str, partition: i32) -> bool {
        let mut of_topic = self.inputs.iter().flatten().map(|input| &input.assignment);
        of_topic.any(|own| own.rank == RANK_LAST && own.topic == topic && own.partition.0 == partition)
    }

    /// Begins to read a partition.
    pub fn assign(&mut self, assignment: Assignment, internal: bool) -> Result<InputId, LogError> {
        let key = (assignment.topic.clone(), assignment.partition.0);
        let consumer = match self.consumers.iter().position(|c| !c.assigned.contains(&key)) {
            Some(consumer) => consumer,
            None => {
                self.add_consumer()?;
                self.consumers.len() - 1
            }
        };
        let next = assignment.next.0;
        let client = &self.consumers[consumer].client;
        let queue = open(client, &assignment.topic, assignment.partition.0, next, &self.waker)?;
        self.consumers[consumer].assigned.insert(key);
        let free = self.inputs.iter().position(Option::is_none);
        let id = free.unwrap_or_else(|| {
            self.inputs.push(None);
            self.inputs.len() - 1
        });
        self.inputs[id] = Some(Input {
            assignment,
            internal,
            consumer,
            queue,
            buffer: VecDeque::new(),
            next,
            position: next,
            reached: None,
            passed_over: 0,
            copied: next,
        });
        Ok(InputId(id))
    }

    /// Stops to read a partition. What was fetched ahead is dropped.
    pub fn unassign(&mut self, input: InputId) -> Result<(), LogError> {
        self.held.clear();
        let Some(Input { assignment: Assignment { topic, partition, .. }, consumer, .. }) = self.inputs[input.0].take()
        else {
            return Ok(());
        };
        let consumer = &mut self.consumers[consumer];
        let mut list = TopicPartitionList::with_capacity(1);
        list.add_partition(&topic, partition.0);
        let what = || format!("stop to read partition {partition} of topic '{topic}'");
        consumer.client.unassign(&list).map_err(|e| fault(&what(), &e.to_string(), e.retriable))?;
        consumer.assigned.remove(&(topic, partition.0));
        Ok(())
    }

    /// The next records of one input.
    pub fn poll(&mut self, wanted: Wanted<'_>, max: usize) -> Result<Option<Fetch<'_>>, LogError> {
        self.held.clear();
        self.serve_events()?;
        let mut chosen: Option<(Turn, Offset)> = None;
        for (index, input) in self.inputs.iter_mut().enumerate() {
            let Some(input) = input else { continue };
            let Some(below) = wanted(InputId(index)) else { continue };
            input.fill(max)?;
            let Some(head) = input.head(below) else { continue };
            let candidate = (Reverse(input.overdue()), head, input.assignment.rank, index);
            input.passed_over += 1;
            if chosen.is_none_or(|(best, _)| candidate < best) {
                chosen = Some((candidate, below));
            }
        }
        let Some(((.., index), below)) = chosen else { return Ok(None) };
        Ok(self.take(index, below, max))
    }

    fn take(&mut self, index: usize, below: Offset, max: usize) -> Option<Fetch<'_>> {
        let input = self.inputs[index].as_mut()?;
        input.passed_over = 0;
        let max = max.min(input.buffer.len());
        let count = if below.0 >= input.position {
            max
        } else {
            input.buffer.iter().take(max).take_while(|m| m.offset() < below.0).count()
        };
        self.held.extend(input.buffer.drain(..count));
        input.next = match (self.held.last(), input.buffer.is_empty()) {
            (_, true) => input.position,
            (Some(last), false) => last.offset() + 1,
            (None, false) => input.next.max(below.0),
        };
        let next = input.next;
        Some(Fetch { input: InputId(index), records: records(&self.held, &mut self.headers), next: Offset(next) })
    }

    /// Timestamp of the next record of an input, if it is known and has one; `end` is where the input ends.
    pub fn head_timestamp_ms(&mut self, input: InputId, end: i64) -> Result<Option<i64>, LogError> {
        let Some(input) = &mut self.inputs[input.0] else { return Ok(None) };
        input.fill(1)?;
        if input.buffer.is_empty() && input.position < end {
            // Perhaps only markers lie before the end. The library counts them when they leave its queue.
            let Assignment { topic, partition, .. } = &input.assignment;
            let position = self.consumers[input.consumer].client.position(topic, partition.0, input.reached);
            input.position = input.position.max(position.unwrap_or(0));
        }
        Ok(input.buffer.front().and_then(Message::timestamp_ms))
    }

    /// One above the last record that is replicated, as the last fetch has told; `None` before the first.
    pub fn high_watermark(&self, input: InputId) -> Option<i64> {
        let Input { assignment, consumer, .. } = self.input(input);
        self.consumers[*consumer].client.high_watermark(&assignment.topic, assignment.partition.0)
    }

    /// Errors and log lines of the consumers; broker connections come and go by themselves.
    fn serve_events(&mut self) -> Result<(), LogError> {
        for consumer in &self.consumers {
            while let Some(event) = consumer.client.next_event(0, &mut |_| {}) {
                let Event::Error { code, text } = event else { continue };
                match code {
                    RDKafkaErrorCode::Fatal => return Err(fault("read from Kafka", &text, false)),
                    // A password that was changed: it is read again.
                    RDKafkaErrorCode::Authentication | RDKafkaErrorCode::SSL => tracing::warn!(text, "consumer"),
                    _ => tracing::debug!(?code, text, "consumer"),
                }
            }
        }
        Ok(())
    }
}

impl Drop for Inputs {
    fn drop(&mut self) {
        // What points into the clients goes first.
        self.held.clear();
        self.inputs.clear();
        end("consumers", std::mem::take(&mut self.consumers));
    }
}

/// Takes a partition's queue and has the client fill it from an offset.
pub fn open(
    client: &Arc<Client>,
    topic: &str,
    partition: i32,
    from: i64,
    waker: &Arc<Waker>,
) -> Result<PartitionQueue, LogError> {
    let what = || format!("read partition {partition} of topic '{topic}'");
    let queue = PartitionQueue::take(client, topic, partition, waker);
    let queue = queue.ok_or_else(|| fault(&what(), "its queue cannot be made", false))?;
    let mut list = TopicPartitionList::with_capacity(1);
    let added = list.add_partition_offset(topic, partition, KafkaOffset::Offset(from));
    added.map_err(|e| fault(&what(), &e.to_string(), false))?;
    client.assign(&list).map_err(|e| fault(&what(), &e.to_string(), e.retriable))?;
    Ok(queue)
}

/// What a message of a partition says.
pub enum Said {
    Record,
    /// Everything before the offset was delivered.
    ReachedEnd(i64),
    /// Something that passes, and after which the library goes on by itself.
    Nothing,
}

pub fn said(message: &Message, topic: &str, partition: i32) -> Result<Said, LogError> {
    match message.error() {
        None => Ok(Said::Record),
        Some(RDKafkaErrorCode::PartitionEOF) => Ok(Said::ReachedEnd(message.offset())),
        Some(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange) => Err(LogError::OffsetGone {
            topic: topic.to_owned(),
            partition: millrace_core::ids::Partition(partition),
            offset: Offset(message.offset()),
        }),
        Some(code) if passing(code) => {
            tracing::warn!(topic, partition, text = message.error_text(), "reading is held up");
            Ok(Said::Nothing)
        }
        Some(_) => {
            let what = format!("read partition {partition} of topic '{topic}'");
            Err(fault(&what, &message.error_text(), false))
        }
    }
}

impl Input {
    /// Has at least one message at hand, if there is one, and at most `max`.
    fn fill(&mut self, max: usize) -> Result<(), LogError> {
        if self.buffer.len() >= max {
            return Ok(());
        }
        let before = self.buffer.len();
        self.queue.fetch(max - before, &mut self.buffer);
        let Assignment { topic, partition, .. } = &self.assignment;
        let mut strange = false;
        for message in self.buffer.range(before..) {
            match said(message, topic, partition.0)? {
                Said::Record => {
                    self.position = message.offset() + 1;
                    continue;
                }
                Said::ReachedEnd(end) => {
                    self.position = self.position.max(end);
                    self.reached = Some(end);
                }
                Said::Nothing => {}
            }
            strange = true;
        }
        if strange {
            self.buffer.retain(|m| m.error().is_none());
        }
        Ok(())
    }

    /// How often it was passed over, from where that is too often.
    fn overdue(&self) -> u32 {
        let last = self.assignment.rank == RANK_LAST;
        if self.passed_over >= PASSED_OVER_MAX && !last { self.passed_over } else { 0 }
    }

    /// What the choice goes by. `None`: there is nothing to give below the offset.
    fn head(&self, below: Offset) -> Option<i64> {
        match self.buffer.front() {
            // Only markers and gaps may lie before it.
            Some(message) if message.offset() >= below.0 => (below.0 > self.next).then_some(i64::MIN),
            Some(_) if self.assignment.rank == RANK_LAST => Some(i64::MAX),
            Some(_) if self.internal => Some(i64::MIN),
            Some(message) => Some(message.timestamp_ms().unwrap_or(i64::MIN)),
            // Only markers and gaps lie before the position.
            None => (self.position > self.next).then_some(i64::MIN),
        }
    }
}

/// Records over the messages' own bytes.
fn records<'a>(held: &'a [Message], headers: &'a mut Vec<Header>) -> Vec<Record<'a>> {
    headers.clear();
    let ends: Vec<usize> = held
        .iter()
        .map(|message| {
            message.headers(headers);
            headers.len()
        })
        .collect();
    let headers: &'a [Header] = headers;
    let starts = std::iter::once(0).chain(ends.iter().copied());
    held.iter()
        .zip(starts.zip(&ends))
        .map(|(message, (start, end))| Record {
            offset: Offset(message.offset()),
            timestamp_ms: message.timestamp_ms(),
            key: message.key(),
            value: message.value(),
            headers: &headers[start..*end],
        })
        .collect()
}

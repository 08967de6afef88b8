//! Reads a changelog partition, or any other; and finds its end.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use millrace_core::ids::{Offset, Partition};
use rdkafka::TopicPartitionList;

use super::inputs::{Said, open, said};
use super::native::Client;
use super::native::admin::Spec;
use super::native::message::Message;
use super::native::queue::{PartitionQueue, Waker};
use super::{fault, lookup};
use crate::clock;
use crate::log::{LogError, Record};

/// Messages that are taken at once.
const BATCH: usize = 4096;
/// Without a message for so long the read has failed.
const SILENCE_MS: u64 = 60_000;
/// An open transaction is looked at so often.
const OPEN_LOOK_MS: u64 = 20;
/// Markers move the position without a signal of their own, so it is looked at so often.
const LOOK_MS: u64 = 5;

/// Visits the records of a range, whose end must have been stable.
pub fn read(
    client: &Arc<Client>,
    (topic, partition): (&str, Partition),
    range: Range<Offset>,
    visit: &mut dyn FnMut(Record<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let waker = Arc::new(Waker::default());
    let mut reading = Reading {
        client,
        topic,
        partition: partition.0,
        queue: open(client, topic, partition.0, range.start.0, &waker)?,
        next: range.start.0,
        end: range.end.0,
        reached: None,
    };
    let result = reading.run(&waker, visit);
    drop(reading);
    let mut list = TopicPartitionList::with_capacity(1);
    list.add_partition(topic, partition.0);
    client.unassign(&list).map_err(|e| fault("end a read", &e.to_string(), false))?;
    result
}

/// What a partition holds, once nothing is open in it.
///
/// Whoever asks this of a changelog has taken its writer's id, or has read the release that names the writer's last
/// epoch. So an open transaction is one whose markers are on their way (Kafka answers a commit before they are in every
/// partition), and it is waited for. One that stays open is an error: going on without it would do its epoch a second
/// time.
pub fn range(
    client: &Arc<Client>,
    topic: &str,
    partition: Partition,
    open_ms_max: u64,
) -> Result<Range<Offset>, LogError> {
    let end = stable_end(client, topic, partition, open_ms_max)?;
    let first = lookup::offset(client, topic, partition.0, Spec::Earliest)?;
    Ok(Offset(first)..Offset(end))
}

/// What a partition held when this was asked, once nothing of that is open any more.
pub fn held(
    client: &Arc<Client>,
    topic: &str,
    partition: Partition,
    open_ms_max: u64,
) -> Result<Range<Offset>, LogError> {
    let (start, high) = (clock::steady_ms(), lookup::offset(client, topic, partition.0, Spec::HighWatermark)?);
    while lookup::offset(client, topic, partition.0, Spec::LastStable)? < high {
        if clock::steady_ms() - start > open_ms_max {
            return Err(fault(&format!("read topic '{topic}'"), "a transaction stays open in it", true));
        }
        clock::pause_ms(OPEN_LOOK_MS);
    }
    let first = lookup::offset(client, topic, partition.0, Spec::Earliest)?;
    Ok(Offset(first)..Offset(high))
}

/// The end of a partition in which nothing is open.
fn stable_end(client: &Arc<Client>, topic: &str, partition: Partition, open_ms_max: u64) -> Result<i64, LogError> {
    let start = clock::steady_ms();
    loop {
        // The higher one first, so that what is written in between is not taken for open.
        let high = lookup::offset(client, topic, partition.0, Spec::HighWatermark)?;
        let stable = lookup::offset(client, topic, partition.0, Spec::LastStable)?;
        if stable >= high {
            return Ok(stable);
        }
        if clock::steady_ms() - start > open_ms_max {
            return Err(LogError::HangingTransaction { topic: topic.to_owned(), partition, offset: Offset(stable) });
        }
        clock::pause_ms(OPEN_LOOK_MS);
    }
}

struct Reading<'a> {
    client: &'a Client,
    topic: &'a str,
    partition: i32,
    queue: PartitionQueue,
    next: i64,
    end: i64,
    /// The last end that the queue told of.
    reached: Option<i64>,
}

impl Reading<'_> {
    fn run(&mut self, waker: &Waker, visit: &mut dyn FnMut(Record<'_>) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let mut messages = VecDeque::new();
        let mut heard_ms = clock::steady_ms();
        while self.next < self.end {
            if self.queue.fetch(BATCH, &mut messages) > 0 {
                heard_ms = clock::steady_ms();
                messages.drain(..).try_for_each(|message| self.take(&message, visit))?;
                continue;
            }
            self.next = self.next.max(self.client.position(self.topic, self.partition, self.reached).unwrap_or(0));
            if clock::steady_ms() - heard_ms > SILENCE_MS {
                let what = format!("read partition {} of topic '{}'", self.partition, self.topic);
                return Err(fault(&what, "nothing came for too long", true).into());
            }
            if self.next < self.end {
                waker.wait(Duration::from_millis(LOOK_MS));
            }
        }
        Ok(())
    }

    fn take(
        &mut self,
        message: &Message,
        visit: &mut dyn FnMut(Record<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        match said(message, self.topic, self.partition)? {
            Said::Nothing => return Ok(()),
            Said::ReachedEnd(end) => {
                self.next = self.next.max(end);
                self.reached = Some(end);
                return Ok(());
            }
            Said::Record => self.next = message.offset() + 1,
        }
        if message.offset() >= self.end {
            return Ok(());
        }
        let mut headers = Vec::new();
        message.headers(&mut headers);
        visit(Record {
            offset: Offset(message.offset()),
            timestamp_ms: message.timestamp_ms(),
            key: message.key(),
            value: message.value(),
            headers: &headers,
        })
    }
}

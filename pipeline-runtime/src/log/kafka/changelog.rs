//! Reads a changelog partition, or any other, to its end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use millrace_core::ids::{Offset, Partition};
use rdkafka::TopicPartitionList;

use super::inputs::{end_or_error, open};
use super::native::Client;
use super::native::admin::Spec;
use super::native::queue::Waker;
use super::{fault, lookup};
use crate::clock;
use crate::log::{LogError, Record};

/// Messages that are taken at once.
const BATCH: usize = 4096;
/// Without a record for so long the read has failed.
const SILENCE_MS: u64 = 60_000;

/// Visits the records from `from` to the last stable offset as it is now; returns the offset behind them. What an open
/// transaction hides is not read, nor what it has committed while its markers are on their way: whoever must see an
/// epoch initialises its writer's id first, or knows the offset to wait for.
pub fn read(
    client: &Arc<Client>,
    topic: &str,
    partition: Partition,
    from: Offset,
    visit: &mut dyn FnMut(Record<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<Offset> {
    let end = lookup::offset(client, topic, partition.0, Spec::LastStable)?;
    let first = lookup::offset(client, topic, partition.0, Spec::Earliest)?;
    if from.0 > 0 && from.0 < first {
        // Deletes may have been among what is gone: going on from the first record would be a wrong answer.
        return Err(LogError::OffsetGone { topic: topic.to_owned(), partition, offset: from }.into());
    }
    let mut next = from.0.max(first);
    if next >= end {
        return Ok(Offset(next));
    }
    let waker = Arc::new(Waker::default());
    let mut queue = open(client, topic, partition.0, next, &waker)?;
    let mut messages = VecDeque::new();
    let mut heard_ms = clock::steady_ms();
    let result = loop {
        if queue.fetch(BATCH, &mut messages) == 0 {
            // Markers are counted when they leave the queue and are not seen otherwise.
            next = next.max(client.position(topic, partition.0).unwrap_or(0));
            if next >= end {
                break Ok(Offset(next));
            }
            if clock::steady_ms() - heard_ms > SILENCE_MS {
                let what = format!("read partition {partition} of topic '{topic}'");
                break Err(fault(&what, "nothing came for too long", true).into());
            }
            waker.wait(Duration::from_millis(100));
            continue;
        }
        heard_ms = clock::steady_ms();
        let visited = messages.drain(..).try_for_each(|message| {
            if let Some(end) = end_or_error(&message, topic, partition.0)? {
                next = next.max(end);
                return anyhow::Ok(());
            }
            next = message.offset() + 1;
            if message.offset() >= end {
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
        });
        if let Err(error) = visited {
            break Err(error);
        }
        if next >= end {
            break Ok(Offset(end));
        }
    };
    drop(queue);
    let mut list = TopicPartitionList::with_capacity(1);
    list.add_partition(topic, partition.0);
    client.unassign(&list).map_err(|e| fault("end a read", &e.to_string(), false))?;
    result
}

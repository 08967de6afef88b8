//! A drain: what is there now comes out, and nothing after it.

use std::collections::BTreeMap;

use millrace_core::ids::{Offset, Partition};

use super::task::Task;
use super::{Engine, EngineError, now};
use crate::clock;
use crate::log::{End, Log};

pub(super) struct Drain {
    /// When it began: only ends that were looked up since count.
    since_ms: i64,
    /// Where each partition of a source ended then, or ends in a backfill, and when exactly that was.
    ends: BTreeMap<(String, Partition), (Offset, i64)>,
}

impl Drain {
    /// Where an input of a task ends. Rows between stages have no end but what their writers say.
    pub(super) fn end(&self, task: &Task, input: usize) -> Option<Offset> {
        self.ends.get(&(task.inputs[input].topic.clone(), task.id.partition)).map(|(offset, _)| *offset)
    }

    /// The end of a source's partition as its task shall see it.
    pub(super) fn bound(&mut self, topic: &str, partition: Partition, end: End) -> End {
        let key = (topic.to_owned(), partition);
        if end.as_of_ms > self.since_ms {
            self.ends.entry(key.clone()).or_insert((end.offset, end.as_of_ms));
        }
        match self.ends.get(&key) {
            Some((offset, as_of_ms)) => End { offset: *offset, as_of_ms: *as_of_ms, ended: true, ..end },
            None => end,
        }
    }
}

impl<L: Log> Engine<L> {
    /// From now on the sources end where they end now, until [`Engine::go_on`]; those of a backfill where its plan says.
    pub fn drain(&mut self) {
        let since_ms = clock::now_ms();
        let pinned = self.builder.plan.sources.iter().flat_map(|source| {
            let end = move |(partition, offset): &(i32, i64)| {
                ((source.topic.clone(), Partition(*partition)), (Offset(*offset), since_ms))
            };
            source.until.iter().map(end)
        });
        let ends = pinned.collect();
        self.drain.get_or_insert(Drain { since_ms, ends });
        self.tasks.iter_mut().flatten().for_each(|task| task.heed_ends(true));
    }

    /// After a drain: what was said of the end is taken back. Every task is restored as after a loss; true if there was a
    /// drain, and that is to be done.
    pub fn go_on(&mut self) -> Result<bool, EngineError> {
        if self.drain.take().is_none() {
            return Ok(false);
        }
        self.suspend()?;
        Ok(true)
    }

    /// True when all that was there has come out and is committed.
    pub fn drained(&self) -> bool {
        let done = |task: &Task| task.finished() && task.empty();
        self.drain.is_some() && !self.due(now()) && self.running().all(done)
    }
}

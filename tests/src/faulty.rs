//! A log that breaks off: after some number of calls every one fails, before or after it had its effect. What the
//! engine held in memory is gone then, as after a kill.

use std::ops::Range;

use millrace_core::ids::{Offset, Partition};
use millrace_core::plan::StartFrom;
use millrace_runtime::log::{
    Assignment, CommitError, End, Fetch, InputId, InternalKind, Log, LogError, Outbox, Record, TopicInfo, Wanted,
};

/// What the error of a fault says.
pub const TEXT: &str = "the test's log broke off";

#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// `None`: it never breaks off.
    pub calls_left: Option<u32>,
}

pub struct FaultyLog<L> {
    inner: L,
    faults: Faults,
}

impl<L> FaultyLog<L> {
    pub fn new(inner: L, faults: Faults) -> Self {
        Self { inner, faults }
    }

    fn call(&mut self) -> Result<(), LogError> {
        match &mut self.faults.calls_left {
            Some(0) => Err(LogError::User(TEXT.to_owned())),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl<L: Log> Log for FaultyLog<L> {
    fn topic(&mut self, name: &str) -> Result<Option<TopicInfo>, LogError> {
        self.inner.topic(name)
    }

    fn create_internal(&mut self, name: &str, kind: InternalKind, partitions: i32) -> Result<(), LogError> {
        self.inner.create_internal(name, kind, partitions)
    }

    fn start(&mut self, topic: &str, partition: Partition, from: &StartFrom) -> Result<Offset, LogError> {
        self.inner.start(topic, partition, from)
    }

    fn end_of(&mut self, topic: &str, partition: Partition) -> Result<Offset, LogError> {
        self.inner.end_of(topic, partition)
    }

    fn committed_end(&mut self, topic: &str, partition: Partition) -> Result<Offset, LogError> {
        self.inner.committed_end(topic, partition)
    }

    fn cluster_id(&self) -> Option<String> {
        self.inner.cluster_id()
    }

    fn compacted(&mut self, topic: &str) -> Result<Option<i64>, LogError> {
        self.inner.compacted(topic)
    }

    fn creating_command(&self, topic: &str) -> String {
        self.inner.creating_command(topic)
    }

    fn record_bytes_max(&self, topic: &str) -> Option<usize> {
        self.inner.record_bytes_max(topic)
    }

    fn open_output(&mut self, topic: &str) -> Result<Option<TopicInfo>, LogError> {
        self.call()?;
        self.inner.open_output(topic)
    }

    fn assign(&mut self, assignment: Assignment) -> Result<InputId, LogError> {
        self.inner.assign(assignment)
    }

    fn unassign(&mut self, input: InputId) -> Result<(), LogError> {
        self.inner.unassign(input)
    }

    fn poll(&mut self, wanted: Wanted<'_>, max: usize) -> Result<Option<Fetch<'_>>, LogError> {
        self.call()?;
        self.inner.poll(wanted, max)
    }

    fn end(&mut self, input: InputId) -> Result<End, LogError> {
        self.inner.end(input)
    }

    fn send(&mut self, outbox: &mut Outbox) -> Result<(), LogError> {
        self.call()?;
        self.inner.send(outbox)
    }

    /// Fails before the commit, or behind it: then it has happened and nobody was told.
    fn commit(&mut self) -> Result<(), CommitError> {
        self.call()?;
        self.inner.commit()?;
        Ok(self.call()?)
    }

    fn abort(&mut self) -> Result<(), LogError> {
        self.inner.abort()
    }

    fn initialise(&mut self) -> Result<(), LogError> {
        self.inner.initialise()
    }

    fn read_changelog(
        &mut self,
        topic: &str,
        partition: Partition,
        range: Range<Offset>,
        visit: &mut dyn FnMut(Record<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.inner.read_changelog(topic, partition, range, visit)
    }

    fn changelog_range(&mut self, topic: &str, partition: Partition) -> Result<Range<Offset>, LogError> {
        self.inner.changelog_range(topic, partition)
    }

    fn trim(&mut self, topic: &str, partition: Partition, before: Offset) -> Result<(), LogError> {
        self.inner.trim(topic, partition, before)
    }

    fn wait(&mut self, timeout_ms: u64) {
        self.inner.wait(timeout_ms);
    }

    fn bounded(&self) -> bool {
        self.inner.bounded()
    }
}

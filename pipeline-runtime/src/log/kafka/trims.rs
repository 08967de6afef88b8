//! Deletes what nobody will read again from our own topics. Not at every epoch: each request costs the broker a file's
//! look, and what is left over costs only disk.

use std::collections::BTreeMap;

use rdkafka::{Offset, TopicPartitionList};

use super::native::admin::PartitionOffset;
use crate::clock;

/// Between two requests.
pub const EVERY_MS: u64 = 30_000;
pub const ATTEMPT_MS: i32 = 10_000;

pub struct Trims {
    every_ms: u64,
    /// What is not needed below which offset, where that was not yet asked for.
    wanted: BTreeMap<(String, i32), i64>,
    last_asked_ms: Option<u64>,
    failing: bool,
}

impl Trims {
    pub fn new(every_ms: u64) -> Self {
        Self { every_ms, wanted: BTreeMap::new(), last_asked_ms: None, failing: false }
    }

    pub fn want(&mut self, topic: &str, partition: i32, before: i64) {
        self.wanted.insert((topic.to_owned(), partition), before);
    }

    /// What to ask for, if it is time to.
    pub fn due(&mut self) -> Option<TopicPartitionList> {
        let now = clock::steady_ms();
        // The first one waits too: at a start nothing has been read yet.
        let last = *self.last_asked_ms.get_or_insert(now);
        if self.wanted.is_empty() || now - last < self.every_ms {
            return None;
        }
        self.last_asked_ms = Some(now);
        let mut list = TopicPartitionList::with_capacity(self.wanted.len());
        for ((topic, partition), before) in std::mem::take(&mut self.wanted) {
            if list.add_partition_offset(&topic, partition, Offset::Offset(before)).is_err() {
                tracing::warn!(topic, partition, before, "an offset that cannot be trimmed to");
            }
        }
        Some(list)
    }

    /// Nothing is asked again at once: the next epoch wants more.
    pub fn answered(&mut self, starts: &[PartitionOffset]) {
        let failed = starts.iter().find_map(|s| s.offset.as_ref().err().map(|code| (s, code)));
        if let Some((at, code)) = failed
            && !self.failing
        {
            tracing::warn!(topic = at.topic, partition = at.partition, %code, "an internal topic cannot be trimmed");
        }
        self.failing = failed.is_some();
    }

    pub fn failed(&mut self, text: &str) {
        if !self.failing {
            tracing::warn!(text, "internal topics cannot be trimmed");
        }
        self.failing = true;
    }
}

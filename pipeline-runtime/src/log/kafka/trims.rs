//! Deletes what nobody will read again from our own topics. Not at every epoch: each request costs the broker a file's
//! look, and what is left over costs only disk.

use std::collections::BTreeMap;

use rdkafka::{Offset, TopicPartitionList};

use super::native::admin::PartitionOffset;
use crate::clock;

/// Between two requests.
pub const EVERY_MS: u64 = 30_000;
/// The same where somebody waits for it.
const SOON_MS: u64 = 2_000;
pub const ATTEMPT_MS: i32 = 10_000;

pub struct Trims {
    every_ms: u64,
    /// What is not needed below which offset, where that was not yet asked for.
    wanted: BTreeMap<(String, i32), i64>,
    last_asked_ms: Option<u64>,
    /// Somebody waits for one of them.
    soon: bool,
    /// For which somebody may wait, with where they were last read to.
    awaited: BTreeMap<(String, i32), i64>,
    failing: bool,
}

impl Trims {
    pub fn new(every_ms: u64) -> Self {
        Self {
            every_ms,
            wanted: BTreeMap::new(),
            last_asked_ms: None,
            soon: false,
            awaited: BTreeMap::new(),
            failing: false,
        }
    }

    pub fn want(&mut self, topic: &str, partition: i32, before: i64, soon: bool) {
        let key = (topic.to_owned(), partition);
        // At most epochs nothing came of it.
        self.soon |= soon && self.awaited.insert(key.clone(), before) != Some(before);
        self.wanted.insert(key, before);
    }

    /// What to ask for, if it is time to.
    pub fn due(&mut self) -> Option<TopicPartitionList> {
        let now = clock::steady_ms();
        // The first one waits too: at a start nothing has been read yet.
        let last = *self.last_asked_ms.get_or_insert(now);
        let pause_ms = if self.soon { self.every_ms.min(SOON_MS) } else { self.every_ms };
        if self.wanted.is_empty() || now - last < pause_ms {
            return None;
        }
        (self.last_asked_ms, self.soon) = (Some(now), false);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_waits_for_is_asked_for_soon_and_only_when_there_is_more() {
        let mut trims = Trims::new(EVERY_MS);
        trims.want("repairs", 0, 7, true);
        assert!(trims.soon);
        trims.soon = false;
        trims.want("repairs", 0, 7, true);
        trims.want("rows", 0, 9, false);
        assert!(!trims.soon, "nothing more of it was read");
        trims.want("repairs", 0, 8, true);
        assert!(trims.soon);
    }
}

//! The control topic: one partition, compacted, written outside of transactions.

use std::collections::{BTreeMap, BTreeSet};

use millrace_core::control::{Change, Key};
use millrace_core::ids::Offset;

use crate::rng::Rng;

/// One lane of one process, as the broker knows its idempotent producer.
pub type Writer = (usize, usize);

#[derive(Default)]
pub struct ControlTopic {
    entries: Vec<(Offset, Change)>,
    end: i64,
    /// The last sequence number of each idempotent producer: a retried append is there once.
    sequences: BTreeMap<Writer, u64>,
}

impl ControlTopic {
    /// Appends, unless this is a repetition; the position if it was appended.
    pub fn append(&mut self, writer: Writer, sequence: u64, change: Change) -> Option<Offset> {
        let last = self.sequences.entry(writer).or_default();
        if sequence <= *last {
            return None;
        }
        *last = sequence;
        let at = Offset(self.end);
        self.end += 1;
        self.entries.push((at, change));
        Some(at)
    }

    pub fn end(&self) -> Offset {
        Offset(self.end)
    }

    /// The entries in `from..to`.
    pub fn read(&self, from: Offset, to: Offset) -> Vec<(Offset, Change)> {
        let begin = self.entries.partition_point(|(at, _)| *at < from);
        let end = self.entries.partition_point(|(at, _)| *at < to);
        self.entries[begin..end.max(begin)].to_vec()
    }

    /// The log cleaner: of each key the last entry stays, and below a point not even tombstones do. The newest entries
    /// are in the active segment, which is never cleaned.
    pub fn clean(&mut self, rng: &mut Rng) {
        let active = self.end - rng.below(8) as i64;
        let tombstones_to = active - rng.below(40) as i64;
        let mut seen: BTreeSet<Key> = BTreeSet::new();
        let mut keep = |(at, change): &(Offset, Change)| {
            let last = at.0 >= active || seen.insert(change.key());
            last && (at.0 >= tombstones_to || matches!(change, Change::Put(_)))
        };
        let mut kept: Vec<_> = self.entries.iter().rev().filter(|entry| keep(entry)).cloned().collect();
        kept.reverse();
        self.entries = kept;
    }
}

//! Where inputs end, kept up to date without waiting: a look-up is under way most of the time, for all inputs at once.
//!
//! Invariant: an end's `as_of_ms` was read before its look-up was sent. So an input that was read to it was complete at
//! that time, and a row that was polled before that time has nothing left to wait for.

use std::collections::BTreeMap;

use super::native::admin::PartitionOffset;
use crate::clock;
use crate::log::Hidden;

/// A look-up begins so long after the one before. Each costs a request to every broker that leads an input.
const EVERY_MS: u64 = 25;
/// A look-up without an answer is given up.
pub const ATTEMPT_MS: i32 = 5_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownEnd {
    pub offset: i64,
    pub as_of_ms: i64,
}

/// The ends of a lane's inputs, by input.
#[derive(Default)]
pub struct Ends {
    known: Vec<Option<KnownEnd>>,
    /// Ends behind which something is hidden, and since when.
    hiding: BTreeMap<usize, (i64, u64)>,
    /// Inputs of a partition: two stages may read the same one.
    inputs: BTreeMap<(String, i32), Vec<usize>>,
    asked: Option<Asked>,
    last_asked_ms: Option<u64>,
    /// Of the last look-up. An answer to one that was given up would be taken for younger than it is.
    tag: usize,
    failing: bool,
}

struct Asked {
    as_of_ms: i64,
    steady_ms: u64,
}

impl Ends {
    pub fn add(&mut self, input: usize, topic: &str, partition: i32) {
        self.inputs.entry((topic.to_owned(), partition)).or_default().push(input);
        if self.known.len() <= input {
            self.known.resize(input + 1, None);
        }
        self.known[input] = None;
    }

    /// An input that is not read any more. An answer that is on its way could be taken for one about its successor.
    pub fn remove(&mut self, input: usize) {
        self.inputs.values_mut().for_each(|inputs| inputs.retain(|i| *i != input));
        self.inputs.retain(|_, inputs| !inputs.is_empty());
        self.known[input] = None;
        self.hiding.remove(&input);
        self.asked = None;
        self.tag += 1;
    }

    pub fn of(&self, input: usize) -> Option<KnownEnd> {
        self.known[input]
    }

    /// What lies between an input's end and its high watermark, which may be younger.
    pub fn hidden(&mut self, input: usize, high_watermark: Option<i64>) -> Hidden {
        let end = self.known[input].map(|known| known.offset);
        let records = end.zip(high_watermark).map_or(0, |(end, high)| (high - end).max(0));
        let Some(end) = end.filter(|_| records > 0) else {
            self.hiding.remove(&input);
            return Hidden::default();
        };
        let now = clock::steady_ms();
        let hiding = self.hiding.entry(input).or_insert((end, now));
        if hiding.0 != end {
            *hiding = (end, now);
        }
        Hidden { records, for_ms: now - hiding.1 }
    }

    /// The partitions to ask for and the look-up's tag, if it is time to ask. Calling this is asking.
    pub fn due(&mut self) -> Option<(usize, Vec<(&str, i32)>)> {
        let now = clock::steady_ms();
        let waiting = self.asked.as_ref().is_some_and(|a| now - a.steady_ms < ATTEMPT_MS as u64);
        let early = self.last_asked_ms.is_some_and(|last| now - last < EVERY_MS);
        if waiting || early || self.inputs.is_empty() {
            return None;
        }
        self.asked = Some(Asked { as_of_ms: clock::now_ms(), steady_ms: now });
        self.last_asked_ms = Some(now);
        self.tag += 1;
        Some((self.tag, self.inputs.keys().map(|(topic, partition)| (topic.as_str(), *partition)).collect()))
    }

    pub fn answered(&mut self, tag: usize, offsets: &[PartitionOffset]) {
        let Some(asked) = self.asked.take_if(|_| tag == self.tag) else { return };
        let mut failed = None;
        for PartitionOffset { topic, partition, offset } in offsets {
            let inputs = self.inputs.get(&(topic.clone(), *partition)).map(Vec::as_slice).unwrap_or_default();
            match offset {
                Ok(offset) => {
                    for input in inputs {
                        self.known[*input] = Some(KnownEnd { offset: *offset, as_of_ms: asked.as_of_ms });
                    }
                }
                Err(code) => failed = Some(*code),
            }
        }
        match failed {
            Some(code) if !self.failing => tracing::warn!(%code, "the ends of some inputs cannot be looked up"),
            _ => {}
        }
        self.failing = failed.is_some();
    }

    pub fn failed(&mut self, tag: usize, text: &str) {
        self.asked.take_if(|_| tag == self.tag);
        if !self.failing {
            tracing::warn!(text, "the ends of inputs cannot be looked up");
        }
        self.failing = true;
    }
}

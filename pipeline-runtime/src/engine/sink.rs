//! Rows into a sink's topic.

use millrace_core::ids::Partition;
use millrace_core::plan::{Partitioner, Sink};

use crate::format::{JsonEncoder, KeyTextEncoder};
use crate::log::{Outbox, TopicIndex};
use crate::rows::Rows;

pub struct SinkWriter {
    topic: TopicIndex,
    partitions: i32,
    /// Where rows without a key go.
    own: Partition,
    key: Option<(KeyTextEncoder, Partitioner)>,
    encoder: JsonEncoder,
    key_bytes: Vec<u8>,
    value_bytes: Vec<u8>,
}

impl SinkWriter {
    pub fn new(spec: &Sink, topic: TopicIndex, partitions: i32, own: Partition) -> Self {
        let key = spec.key.as_ref().map(|key| {
            let encoder = KeyTextEncoder::new(&spec.columns, &key.columns, key.format);
            (encoder.expect("the plan checked the sink's key"), key.partitioner)
        });
        Self {
            topic,
            partitions,
            own: Partition(own.0 % partitions),
            key,
            encoder: JsonEncoder::new(&spec.columns),
            key_bytes: Vec::new(),
            value_bytes: Vec::new(),
        }
    }

    pub fn rows(&mut self, rows: &Rows, outbox: &mut Outbox) {
        let values = self.encoder.bind(&rows.batch);
        let keys = self.key.as_ref().map(|(encoder, partitioner)| (encoder.bind(&rows.batch), *partitioner));
        for (row, meta) in rows.metas.iter().enumerate() {
            self.value_bytes.clear();
            values.encode(row, &mut self.value_bytes);
            self.key_bytes.clear();
            let key = match &keys {
                Some((keys, partitioner)) if keys.encode(row, &mut self.key_bytes) => {
                    Some((self.key_bytes.as_slice(), *partitioner))
                }
                _ => None,
            };
            let partition = key.map_or(self.own, |(key, partitioner)| partitioner.partition(key, self.partitions));
            let key = key.map(|(key, _)| key);
            outbox.push(self.topic, partition, meta.timestamp_ms, key, Some(&self.value_bytes), Vec::new());
        }
    }
}

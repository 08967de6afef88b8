//! Rows into a sink's topic.

use millrace_core::ids::Partition;
use millrace_core::plan::{OnError, Partitioner, Sink};
use millrace_core::slices::Stamps;
use millrace_core::totals::{DropReason, Totals};

use super::dead_letter::{GivenUp, Origin};
use crate::format::{JsonEncoder, KeyTextEncoder};
use crate::log::TopicIndex;
use crate::operator::{Context, OperatorError};
use crate::rows::{RowMeta, Rows};

const TOO_LARGE: &str = "RecordTooLarge";
const MICROS_PER_MS: i64 = 1000;

/// The topic of a sink.
pub struct Target {
    pub topic: TopicIndex,
    pub partitions: i32,
    /// The largest record that it takes.
    pub record_bytes_max: Option<usize>,
}

pub struct SinkWriter {
    name: String,
    target: Target,
    /// Where rows without a key go.
    own: Partition,
    key: Option<(KeyTextEncoder, Partitioner)>,
    encoder: JsonEncoder,
    key_bytes: Vec<u8>,
    value_bytes: Vec<u8>,
    /// Of the records that the open epoch's rows came from, and of the rows' own event times. Behind a join both are the
    /// stream's: changes of tables make no row, and so no record of a snapshot read ('r') of Debezium's, which are of
    /// tables alone, is in them.
    pub timestamps: Stamps,
    pub event_times: Stamps,
    pub totals: Totals,
}

impl SinkWriter {
    pub fn new(spec: &Sink, target: Target, own: Partition) -> Self {
        let key = spec.key.as_ref().map(|key| {
            let encoder = KeyTextEncoder::new(&spec.columns, &key.columns, key.format);
            (encoder.expect("the plan checked the sink's key"), key.partitioner)
        });
        Self {
            name: spec.name.clone(),
            own: Partition(own.0 % target.partitions),
            target,
            key,
            encoder: JsonEncoder::new(&spec.columns),
            key_bytes: Vec::new(),
            value_bytes: Vec::new(),
            timestamps: Stamps::default(),
            event_times: Stamps::default(),
            totals: Totals::default(),
        }
    }

    /// What its totals are listed under.
    pub fn step(&self) -> String {
        format!("sink {}", self.name)
    }

    /// What is written from now on belongs to another epoch.
    pub fn begin(&mut self) {
        self.timestamps.clear();
        self.event_times.clear();
    }

    pub fn rows(&mut self, rows: &Rows, cx: &mut Context<'_>) -> Result<(), OperatorError> {
        let values = self.encoder.bind(&rows.batch);
        let keys = self.key.as_ref().map(|(encoder, partitioner)| (encoder.bind(&rows.batch), *partitioner));
        let (partitions, bytes_max) = (self.target.partitions, self.target.record_bytes_max.unwrap_or(usize::MAX));
        self.totals.rows_in += rows.metas.len() as u64;
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
            let bytes = self.key_bytes.len() + self.value_bytes.len();
            if bytes > bytes_max {
                let text = format!("the row takes {bytes} bytes and sink '{}' takes {bytes_max}", self.name);
                give_up(&self.name, &self.value_bytes, meta, &text, cx, &mut self.totals)?;
                continue;
            }
            let partition = key.map_or(self.own, |(key, partitioner)| partitioner.partition(key, partitions));
            let key = key.map(|(key, _)| key);
            cx.outbox.push(self.target.topic, partition, meta.timestamp_ms, key, Some(&self.value_bytes), Vec::new());
            self.totals.rows_out += 1;
            // How old a repaired row is says nothing of how fresh results are.
            if meta.repaired {
                continue;
            }
            if let Some(ms) = meta.timestamp_ms {
                self.timestamps.push(ms);
            }
            if let Some(ms) = event_time_ms(meta) {
                self.event_times.push(ms);
            }
        }
        Ok(())
    }
}

fn event_time_ms(meta: &RowMeta) -> Option<i64> {
    (meta.event_time > i64::MIN).then(|| meta.event_time.div_euclid(MICROS_PER_MS))
}

/// A row that the topic would refuse, and with it the whole epoch: its source's error policy says what becomes of it.
fn give_up(
    sink: &str,
    value: &[u8],
    meta: &RowMeta,
    text: &str,
    cx: &mut Context<'_>,
    totals: &mut Totals,
) -> Result<(), OperatorError> {
    match (cx.on_error, cx.dead_letters) {
        (OnError::DeadLetter, Some(dead_letters)) => {
            let origin = Origin {
                topic: cx.source_topic,
                partition: meta.partition,
                offset: meta.offset,
                timestamp_ms: meta.timestamp_ms,
            };
            let given_up = GivenUp { step: sink, row: value, event_time_ms: event_time_ms(meta) };
            dead_letters.row(cx.outbox, origin, given_up, TOO_LARGE, text);
            totals.drop_rows(DropReason::DeadLettered, 1);
            Ok(())
        }
        (OnError::Skip, _) => {
            totals.drop_rows(DropReason::Skipped, 1);
            Ok(())
        }
        (OnError::Stop | OnError::DeadLetter, _) => Err(OperatorError::Row {
            step: sink.to_owned(),
            code: TOO_LARGE,
            topic: cx.source_topic.to_owned(),
            partition: meta.partition,
            offset: meta.offset.0,
            text: text.to_owned(),
        }),
    }
}

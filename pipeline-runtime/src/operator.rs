//! The operators of a stage. Each takes rows and gives rows; what it keeps is in the task's state.

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use millrace_core::event_time::InputClock;
use millrace_core::ids::Partition;
use millrace_core::plan::OnError;
use millrace_core::totals::{DropReason, Totals};

use crate::engine::dead_letter::{DeadLetters, GivenUp, Origin};
use crate::format::JsonEncoder;
use crate::log::Outbox;
use crate::rows::{RowMeta, Rows};
use crate::state::{StateError, TaskState};

pub mod guard;
pub mod join;
pub mod project;
pub mod table_join;
pub mod temporal_join;

#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    #[error("step '{step}': {code} at {topic} partition {partition} offset {offset}: {text}")]
    Row { step: String, code: &'static str, topic: String, partition: Partition, offset: i64, text: String },
    #[error("step '{step}': put rows together")]
    Arrow { step: String, source: ArrowError },
    #[error("step '{step}': use state")]
    State { step: String, source: StateError },
    #[error("columns do not go together")]
    Columns(#[from] crate::row::RowTypeError),
}

/// What a task lends to its operators.
pub struct Context<'a> {
    pub state: &'a mut TaskState,
    pub outbox: &'a mut Outbox,
    pub dead_letters: Option<DeadLetters>,
    /// The topic that the stream's rows came from, for dead letters.
    pub source_topic: &'a str,
    /// What that topic's source does with a record that cannot be used.
    pub on_error: OnError,
    /// By stage input; meaningless for streams.
    pub tables: Vec<&'a InputClock>,
    /// The stream has had nothing for its idle timeout: rows stop waiting for it.
    pub stream_idle: bool,
    pub now_ms: i64,
}

/// Gives up one row: to the dead-letter topic, or, where there is none, by stopping the job.
pub struct GiveUp<'a> {
    pub step: &'a str,
    pub encoder: &'a JsonEncoder,
}

impl GiveUp<'_> {
    pub fn row(
        &self,
        cx: &mut Context<'_>,
        totals: &mut Totals,
        (batch, row): (&RecordBatch, usize),
        meta: &RowMeta,
        (reason, code, text): (DropReason, &'static str, &str),
    ) -> Result<(), OperatorError> {
        let topic = cx.source_topic;
        let Some(dead_letters) = cx.dead_letters else {
            return Err(OperatorError::Row {
                step: self.step.to_owned(),
                code,
                topic: topic.to_owned(),
                partition: meta.partition,
                offset: meta.offset.0,
                text: text.to_owned(),
            });
        };
        let mut json = Vec::new();
        self.encoder.bind(batch).encode(row, &mut json);
        let Self { step, .. } = *self;
        let origin = Origin { topic, partition: meta.partition, offset: meta.offset, timestamp_ms: meta.timestamp_ms };
        let event_time_ms = (meta.event_time != i64::MIN).then_some(meta.event_time.div_euclid(1000));
        dead_letters.row(cx.outbox, origin, GivenUp { step, row: &json, event_time_ms }, code, text);
        totals.drop_rows(reason, 1);
        Ok(())
    }
}

/// Maps an Arrow error to the step that it happened in.
fn arrow(step: &str) -> impl Fn(ArrowError) -> OperatorError + '_ {
    move |source| OperatorError::Arrow { step: step.to_owned(), source }
}

fn state(step: &str) -> impl Fn(StateError) -> OperatorError + '_ {
    move |source| OperatorError::State { step: step.to_owned(), source }
}

/// What an operator made of a batch.
pub type Outcome = Result<Rows, OperatorError>;

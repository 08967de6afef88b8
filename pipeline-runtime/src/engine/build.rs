//! From a plan to tasks that are ready to run: readers, operators and writers bound to topics, state restored.

use std::path::Path;
use std::sync::Arc;

use millrace_core::event_time::{InputClock, SourceClock};
use millrace_core::ids::{Epoch, Offset, Partition, TaskId};
use millrace_core::marker::{MARKER_FORMAT, Marker};
use millrace_core::plan::{self, InputFrom, OperatorKind, OutputTo, Plan, Port, Stage, StateKind, StateLayout};
use millrace_core::schema::Column;
use millrace_core::totals::Totals;
use millrace_plan::SqlError;

use super::changes::TableWriter;
use super::dead_letter::DeadLetters;
use super::exchange::{ExchangeReader, ExchangeWriter};
use super::flow::{Flow, Kind, Operator, Output, Writer};
use super::sink::SinkWriter;
use super::source::SourceReader;
use super::task::{CHANGELOG_MARKER, CHANGELOG_STATE, Reader, Task, TaskInput};
use super::topology::{Names, Topology};
use crate::log::{Log, LogError, Outbox};
use crate::operator::join::{BoundJoin, JoinTable};
use crate::operator::project::Project;
use crate::operator::table_join::TableJoin;
use crate::operator::temporal_join::TemporalJoin;
use crate::row::RowTypeError;
use crate::state::{StateBudget, StateError, TaskState};

#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("open the state of task {task}")]
    State { task: TaskId, source: StateError },
    #[error("restore task {task} from its changelog: {text}")]
    Restore { task: TaskId, text: String },
    #[error("step '{step}': bind an expression of the plan")]
    Expression { step: String, source: SqlError },
    #[error("put the columns of the plan together")]
    Columns(#[from] RowTypeError),
}

/// Builds tasks of one plan.
pub struct Builder<'a> {
    pub plan: &'a Plan,
    pub topology: &'a Topology,
    pub names: &'a Names,
    pub budget: &'a StateBudget,
    pub state_dir: &'a Path,
    pub waiting_rows_max: usize,
    pub now_ms: i64,
    pub steady_ms: u64,
}

impl Builder<'_> {
    /// One task, restored from its state and changelog.
    pub fn task(
        &self,
        stage: &Stage,
        partition: Partition,
        log: &mut dyn Log,
        outbox: &mut Outbox,
    ) -> Result<Task, BuildError> {
        let id = TaskId { stage: stage.name.clone(), partition };
        let layouts: Vec<StateLayout> = self.plan.state.iter().filter(|l| l.stage == stage.name).cloned().collect();
        let changelog = self.names.changelog(&stage.name);
        let (state, marker) = self.restore(&id, &layouts, &changelog, log)?;
        let mut inputs = Vec::new();
        for index in 0..stage.inputs.len() {
            inputs.push(self.input(stage, index, partition, &layouts, log)?);
        }
        let operators = self.operators(stage, &layouts)?;
        let outputs = stage.outputs.iter().map(|o| self.output(o, partition, outbox)).collect::<Result<_, _>>()?;
        let source_topic = self.stream_topic(stage);
        let dead_letters = self.plan.dead_letter.as_ref().map(|topic| {
            let partitions = self.topology.topics[topic].1;
            DeadLetters::new(outbox.topic_index(topic), partitions)
        });
        let changelog_index = outbox.topic_index(&changelog);
        let mut task = Task {
            id,
            inputs,
            flow: Flow { operators, outputs },
            state,
            changelog,
            changelog_index,
            dead_letters,
            source_topic,
            epoch: Epoch(0),
            state_fingerprint: self.plan.state_fingerprint,
            dirty: false,
            stream_idle: false,
            prepared: None,
        };
        if let Some(marker) = marker {
            take_up(&mut task, marker)?;
        }
        Ok(task)
    }

    /// Opens the state, brings it level with the changelog, and returns the last marker.
    fn restore(
        &self,
        id: &TaskId,
        layouts: &[StateLayout],
        changelog: &str,
        log: &mut dyn Log,
    ) -> Result<(TaskState, Option<Marker>), BuildError> {
        let fault = |source| BuildError::State { task: id.clone(), source };
        let dir = self.state_dir.join(&id.stage).join(id.partition.to_string());
        let end = log.end_of(changelog, id.partition)?;
        let mut state = match TaskState::open(&dir, self.budget, layouts, &self.ttls(layouts)) {
            Ok(state) => state,
            Err(StateError::Corrupt(text)) => {
                tracing::warn!(task = %id, text, "local state is damaged and is rebuilt from the changelog");
                self.fresh(&dir, layouts).map_err(fault)?
            }
            Err(source) => return Err(fault(source)),
        };
        let mut from = state.marker().map_err(fault)?.map_or(0, |(_, next)| next);
        if from > end.0 {
            tracing::warn!(task = %id, from, end = end.0, "local state is ahead of the changelog and is discarded");
            drop(state);
            state = self.fresh(&dir, layouts).map_err(fault)?;
            from = 0;
        }
        let restored = replay(log, changelog, id.partition, Offset(from), &mut state);
        restored.map_err(|error| BuildError::Restore { task: id.clone(), text: format!("{error:#}") })?;
        let marker = match state.marker().map_err(fault)? {
            None => None,
            Some((bytes, _)) => Some(read_marker(id, &bytes)?),
        };
        Ok((state, marker))
    }

    fn fresh(&self, dir: &Path, layouts: &[StateLayout]) -> Result<TaskState, StateError> {
        TaskState::destroy(dir)?;
        TaskState::open(dir, self.budget, layouts, &self.ttls(layouts))
    }

    /// A table's own TTL; nothing else expires yet.
    fn ttls(&self, layouts: &[StateLayout]) -> Vec<Option<i64>> {
        let ttl = |layout: &StateLayout| {
            let source = layout.operator.strip_prefix("table ").and_then(|name| self.plan.source(name))?;
            source.table.as_ref()?.ttl_ms.filter(|_| layout.kind == StateKind::Latest)
        };
        layouts.iter().map(ttl).collect()
    }

    fn input(
        &self,
        stage: &Stage,
        index: usize,
        partition: Partition,
        layouts: &[StateLayout],
        log: &mut dyn Log,
    ) -> Result<TaskInput, BuildError> {
        let spec = &stage.inputs[index];
        let joined = stage.operators.iter().any(|o| table_of(&o.kind) == Some(index));
        let source_name = match &spec.from {
            InputFrom::Source(name) => name.as_str(),
            InputFrom::Exchange(name) => self.exchange(name).source.as_str(),
        };
        let source = self.plan.source(source_name).expect("the plan names its own sources");
        let is_exchanged_table = |o: &plan::Output| match &o.to {
            OutputTo::Exchange(name) => o.from == Port::Input(index) && self.exchange(name).table,
            OutputTo::Sink(_) => false,
        };
        let table = joined || spec.table || stage.outputs.iter().any(is_exchanged_table);
        let versioned = self.versioned(layouts, source_name);
        let writer = match (&source.table, joined) {
            (Some(table), true) => {
                let layout = layout_of(layouts, &format!("table {source_name}"));
                Some(TableWriter::new(layout, versioned, &source.columns, &table.primary_key)?)
            }
            _ => None,
        };
        // Whether a table needs event times is known where its versions are kept, which may be another stage.
        let needs_versions = source.table.as_ref().is_some_and(|_| {
            let operator = format!("table {source_name}");
            self.plan.state.iter().any(|l| l.operator == operator && l.kind == StateKind::Versioned)
        });
        let (topic, topic_id, partitions, reader, next, level_at, upstreams) = match &spec.from {
            InputFrom::Source(_) => {
                let (topic_id, partitions) = self.topology.topics[&source.topic].clone();
                let reader = SourceReader::new(Arc::new(source.clone()), partition, partitions, needs_versions);
                let next = log.start(&source.topic, partition, &source.start_from)?;
                let level_at = if table { Some(log.end_of(&source.topic, partition)?) } else { None };
                (source.topic.clone(), topic_id, partitions, Reader::Source(Box::new(reader)), next, level_at, 1)
            }
            InputFrom::Exchange(name) => {
                let reader = ExchangeReader::new(&self.exchange_columns(name));
                let partitions = self.topology.exchanges[name];
                let upstreams = self.topology.upstreams(self.plan, name);
                (self.names.repartition(name), None, partitions, Reader::Exchange(reader), Offset(0), None, upstreams)
            }
        };
        Ok(TaskInput {
            name: match &spec.from {
                InputFrom::Source(name) | InputFrom::Exchange(name) => name.clone(),
            },
            topic,
            topic_id,
            partitions,
            reader,
            next,
            level_at,
            source_clock: SourceClock::default(),
            clock: InputClock::new(upstreams),
            table,
            writer,
            idle_timeout_ms: source.event_time.as_ref().and_then(|e| e.idle_timeout_ms),
            last_record_ms: self.steady_ms,
            totals: Totals::default(),
        })
    }

    fn exchange(&self, name: &str) -> &plan::Exchange {
        self.plan.exchange(name).expect("the plan names its own exchanges")
    }

    /// A delete of a table carries only its key: the other columns may be null on the way.
    fn exchange_columns(&self, name: &str) -> Vec<Column> {
        let exchange = self.exchange(name);
        let nullable = |c: &Column| Column { nullable: c.nullable || exchange.table, ..c.clone() };
        exchange.columns.iter().map(nullable).collect()
    }

    fn versioned(&self, layouts: &[StateLayout], source: &str) -> bool {
        let operator = format!("table {source}");
        layouts.iter().any(|l| l.operator == operator && l.kind == StateKind::Versioned)
    }

    /// The topic that the stage's stream was read from.
    fn stream_topic(&self, stage: &Stage) -> String {
        let stream = stage.inputs.iter().find(|i| !i.table).map(|i| match &i.from {
            InputFrom::Source(name) => name.as_str(),
            InputFrom::Exchange(name) => self.exchange(name).source.as_str(),
        });
        stream.and_then(|name| self.plan.source(name)).map(|s| s.topic.clone()).unwrap_or_default()
    }

    /// The columns that come through a port.
    fn columns(&self, stage: &Stage, port: Port) -> Vec<Column> {
        match port {
            Port::Operator(index) => stage.operators[index].columns.clone(),
            Port::Input(index) => match &stage.inputs[index].from {
                InputFrom::Source(name) => self.plan.source(name).map(|s| s.columns.clone()).unwrap_or_default(),
                InputFrom::Exchange(name) => self.exchange_columns(name),
            },
        }
    }

    fn operators(&self, stage: &Stage, layouts: &[StateLayout]) -> Result<Vec<Operator>, BuildError> {
        let build = |spec: &plan::Operator| {
            let left = self.columns(stage, spec.input);
            let kind = match &spec.kind {
                OperatorKind::Project(project) => {
                    let bound = Project::new(&spec.name, project, &left, &spec.columns);
                    Kind::Project(bound.map_err(|source| BuildError::Expression { step: spec.name.clone(), source })?)
                }
                OperatorKind::TableJoin(join) => {
                    let bound = self.join(stage, spec, (&join.join, join.missing), &left, layouts)?;
                    Kind::TableJoin(TableJoin { join: bound })
                }
                OperatorKind::TemporalJoin(join) => {
                    let bound = self.join(stage, spec, (&join.join, join.missing), &left, layouts)?;
                    let waiting = layouts.iter().position(|l| l.operator == spec.name && l.kind == StateKind::Waiting);
                    let policy = (join.emit, join.late, join.retention_ms);
                    Kind::TemporalJoin(Box::new(TemporalJoin::new(
                        bound,
                        policy,
                        (waiting, self.waiting_rows_max),
                        &left,
                    )))
                }
            };
            Ok(Operator { name: spec.name.clone(), input: spec.input, kind, totals: Totals::default() })
        };
        stage.operators.iter().map(build).collect()
    }

    fn join(
        &self,
        stage: &Stage,
        spec: &plan::Operator,
        (join, missing): (&plan::Join, plan::Missing),
        left: &[Column],
        layouts: &[StateLayout],
    ) -> Result<BoundJoin, RowTypeError> {
        let columns = self.columns(stage, Port::Input(join.table));
        let wanted = |name: &String| {
            let column = columns.iter().find(|c| c.name == *name).expect("the plan names columns of the table");
            column.clone()
        };
        let right: Vec<Column> = join.right.iter().map(|(name, _)| wanted(name)).collect();
        let table = JoinTable {
            layout: layout_of(layouts, &format!("table {}", join.table_name)),
            versioned: self.versioned(layouts, &join.table_name),
        };
        BoundJoin::new(&spec.name, (join, missing), table, (left, right, &spec.columns))
    }

    fn output(&self, spec: &plan::Output, partition: Partition, outbox: &mut Outbox) -> Result<Output, RowTypeError> {
        let writer = match &spec.to {
            OutputTo::Sink(name) => {
                let sink = self.plan.sink(name).expect("the plan names its own sinks");
                let partitions = self.topology.topics[&sink.topic].1;
                Writer::Sink(SinkWriter::new(sink, outbox.topic_index(&sink.topic), partitions, partition))
            }
            OutputTo::Exchange(name) => {
                let topic = outbox.topic_index(&self.names.repartition(name));
                let partitions = self.topology.exchanges[name];
                Writer::Exchange(ExchangeWriter::new(self.exchange(name), topic, partitions, partition)?)
            }
        };
        Ok(Output::new(spec.from, writer))
    }
}

fn layout_of(layouts: &[StateLayout], operator: &str) -> usize {
    layouts.iter().position(|l| l.operator == operator).expect("the plan lists the state of its operators")
}

fn table_of(kind: &OperatorKind) -> Option<usize> {
    match kind {
        OperatorKind::Project(_) => None,
        OperatorKind::TableJoin(join) => Some(join.join.table),
        OperatorKind::TemporalJoin(join) => Some(join.join.table),
    }
}

/// Applies the changelog from `from` on, epoch by epoch. What follows the last marker was never committed.
fn replay(
    log: &mut dyn Log,
    changelog: &str,
    partition: Partition,
    from: Offset,
    state: &mut TaskState,
) -> anyhow::Result<()> {
    log.read_changelog(changelog, partition, from, &mut |record| {
        match record.key.and_then(<[u8]>::split_first) {
            Some((&CHANGELOG_STATE, key)) => state.replay(key, record.value)?,
            Some((&CHANGELOG_MARKER, _)) => {
                let marker = record.value.ok_or_else(|| anyhow::anyhow!("marker at {} is empty", record.offset))?;
                state.apply(marker, record.offset.0 + 1)?;
            }
            _ => anyhow::bail!("record {} of {changelog} is neither state nor marker", record.offset),
        }
        Ok(())
    })?;
    state.discard();
    Ok(())
}

fn read_marker(id: &TaskId, bytes: &[u8]) -> Result<Marker, BuildError> {
    let restore = |text: String| BuildError::Restore { task: id.clone(), text };
    let marker: Marker = serde_json::from_slice(bytes).map_err(|e| restore(format!("its marker: {e}")))?;
    if marker.format > MARKER_FORMAT {
        return Err(restore(format!("its marker has format {}: a newer release wrote it", marker.format)));
    }
    Ok(marker)
}

/// Sets a task to where its marker says it stood.
fn take_up(task: &mut Task, marker: Marker) -> Result<(), BuildError> {
    task.epoch = marker.epoch;
    for input in &mut task.inputs {
        let Some(mark) = marker.inputs.iter().find(|m| m.topic == input.topic) else {
            // A table that an edit brought back is read anew. Rows of its first life may have been deleted meanwhile.
            if let Some(writer) = &input.writer {
                let cleared = task.state.clear_table(writer.layout);
                cleared.map_err(|source| BuildError::State { task: task.id.clone(), source })?;
            }
            continue;
        };
        if mark.topic_id != input.topic_id {
            return Err(BuildError::Log(LogError::User(format!(
                "topic '{}' was deleted and made again since the pipeline started: its positions mean nothing any more; restart the pipeline under a new name",
                input.topic
            ))));
        }
        if mark.partitions != input.partitions {
            return Err(BuildError::Log(LogError::User(format!(
                "topic '{}' had {} partitions when the pipeline started and has {} now: keys would move between tasks; restart the pipeline under a new name",
                input.topic, mark.partitions, input.partitions
            ))));
        }
        input.next = mark.next;
        input.level_at = mark.level_at.or(input.level_at);
        input.source_clock = mark.source_clock;
        if mark.clock.upstreams() == input.clock.upstreams() {
            input.clock = mark.clock.clone().restored();
        }
    }
    let mut totals = marker.totals;
    for input in task.inputs.iter_mut().filter(|i| matches!(i.reader, Reader::Source(_))) {
        input.totals = totals.remove(&format!("source {}", input.name)).unwrap_or_default();
    }
    for operator in &mut task.flow.operators {
        operator.totals = totals.remove(&operator.name).unwrap_or_default();
    }
    Ok(())
}

//! From a plan to tasks that are ready to run: readers, operators and writers bound to topics, around a restored state.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use millrace_core::epoch::ChangelogError;
use millrace_core::event_time::{InputClock, SourceClock};
use millrace_core::ids::{Epoch, Generation, Offset, Partition, TaskId, Timeline};
use millrace_core::marker::{InputMark, Marker};
use millrace_core::plan::{
    self, InputFrom, OnError, OperatorKind, OutputTo, Plan, Port, Stage, StartFrom, StateKind, StateLayout,
};
use millrace_core::schema::Column;
use millrace_core::totals::Totals;
use millrace_plan::SqlError;

use super::EngineConfig;
use super::changes::TableWriter;
use super::dead_letter::DeadLetters;
use super::exchange::{ExchangeReader, ExchangeWriter};
use super::flow::{Flow, Kind, Operator, Output, Repairs, Writer};
use super::sink::{SinkWriter, Target};
use super::source::{Place, SourceReader};
use super::task::{Reader, Task, TaskInput};
use super::topology::{Names, Topology, grows};
use crate::log::{Log, LogError, Outbox};
use crate::operator::guard::Guard;
use crate::operator::join::{BoundJoin, JoinTable};
use crate::operator::project::Project;
use crate::operator::table_join::TableJoin;
use crate::operator::temporal_join::TemporalJoin;
use crate::row::RowTypeError;
use crate::state::{StateBudget, StateError, TaskState};
use crate::storage::{Storage, StorageError};

#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("open the state of task {task}")]
    State { task: TaskId, source: StateError },
    #[error("restore task {task}")]
    Changelog { task: TaskId, source: ChangelogError },
    #[error(
        "the state of task {task} was written by another version of the pipeline, whose steps kept other things: go back to that one, or give the pipeline another spec.kafka.internal.prefix to begin anew"
    )]
    OtherState { task: TaskId },
    #[error("restore task {task} from its changelog: {text}")]
    Restore { task: TaskId, text: String },
    #[error("restore task {task}")]
    Storage { task: TaskId, source: Box<StorageError> },
    #[error("restore task {task}: {doing} {path}")]
    Disk { task: TaskId, doing: &'static str, path: PathBuf, source: std::io::Error },
    #[error("step '{step}': bind an expression of the plan")]
    Expression { step: String, source: SqlError },
    #[error("put the columns of the plan together")]
    Columns(#[from] RowTypeError),
}

impl BuildError {
    /// True for what passes by itself.
    pub fn passes(&self) -> bool {
        match self {
            Self::Log(error) => error.passes(),
            Self::State { source, .. } => matches!(source, StateError::InUse(_)),
            Self::Storage { source, .. } => source.passes(),
            _ => false,
        }
    }
}

/// Builds tasks of one plan, and restores their states.
#[derive(Clone)]
pub struct Builder {
    pub plan: Arc<Plan>,
    pub topology: Topology,
    pub names: Names,
    pub budget: StateBudget,
    pub state_dir: PathBuf,
    /// Of one step of one task.
    pub waiting_rows_max: usize,
    /// Tables whose topics are compacted, and how long those keep deletes, in milliseconds.
    pub compacted: BTreeMap<String, i64>,
    /// State fingerprints (hex) of earlier plans whose state this plan goes on with.
    pub accepts: Vec<String>,
    pub timeline: Timeline,
    /// Where snapshots are; `None`: there are none.
    pub storage: Option<Storage>,
}

/// What a task is built around.
pub struct Begin {
    pub state: TaskState,
    /// `None`: the task is new.
    pub marker: Option<Marker>,
    /// Its partitions came after the pipeline's start, so all that is in them came after it.
    pub grown: bool,
}

/// The folder of states, of this timeline alone.
pub fn tasks_folder(Timeline(number): Timeline) -> String {
    if number == 1 { "tasks".to_owned() } else { format!("tasks-t{number}") }
}

/// The tables of a plan whose topics are compacted, and how long those keep deletes.
pub fn compacted(plan: &Plan, log: &mut dyn Log) -> Result<BTreeMap<String, i64>, LogError> {
    let mut compacted = BTreeMap::new();
    for source in plan.sources.iter().filter(|s| s.table.is_some()) {
        if let Some(tombstones_ms) = log.compacted(&source.topic)? {
            compacted.insert(source.name.clone(), tombstones_ms);
        }
    }
    Ok(compacted)
}

/// Steps in which rows may wait, of all tasks.
fn waiting_steps(plan: &Plan, topology: &Topology) -> usize {
    let waiting = plan.state.iter().filter(|layout| layout.kind == StateKind::Waiting);
    waiting.map(|layout| topology.tasks[&layout.stage] as usize).sum()
}

impl Builder {
    pub fn new(plan: Arc<Plan>, topology: Topology, config: &EngineConfig, compacted: BTreeMap<String, i64>) -> Self {
        Self {
            waiting_rows_max: (config.waiting_rows_max / waiting_steps(&plan, &topology).max(1)).max(1),
            names: Names::new(&plan.prefix, config.timeline),
            timeline: config.timeline,
            storage: config.storage.clone(),
            plan,
            topology,
            budget: config.budget.clone(),
            state_dir: config.state_dir.join(tasks_folder(config.timeline)),
            compacted,
            accepts: Vec::new(),
        }
    }

    fn stage(&self, id: &TaskId) -> &Stage {
        self.plan.stage(&id.stage).expect("tasks are named after stages")
    }

    pub(super) fn layouts(&self, id: &TaskId) -> Vec<StateLayout> {
        self.plan.state.iter().filter(|l| l.stage == id.stage).cloned().collect()
    }

    /// One task around its state. Without a marker it is new: it begins where the sources say, and its first epoch says
    /// so for ever.
    pub fn task(
        &self,
        id: &TaskId,
        Begin { state, marker, grown }: Begin,
        steady_ms: u64,
        log: &mut dyn Log,
        outbox: &mut Outbox,
    ) -> Result<Task, BuildError> {
        let (stage, layouts) = (self.stage(id), self.layouts(id));
        let changelog = self.names.changelog(&stage.name);
        let mut inputs = Vec::new();
        for index in 0..stage.inputs.len() {
            inputs.push(self.input(stage, index, id.partition, &layouts, steady_ms)?);
        }
        let operators = self.operators(stage, &layouts)?;
        let outputs = stage.outputs.iter().map(|o| self.output(o, id.partition, log, outbox));
        let outputs = outputs.collect::<Result<_, _>>()?;
        let dead_letters = self.plan.dead_letter.as_ref().map(|topic| {
            let partitions = self.topology.topics[topic].1;
            DeadLetters::new(outbox.topic_index(topic), partitions, log.record_bytes_max(topic))
        });
        let stream = self.stream(stage);
        let mut task = Task {
            id: id.clone(),
            generation: Generation(0),
            grown,
            cluster: log.cluster_id(),
            inputs,
            flow: Flow { operators, outputs },
            state,
            changelog_index: outbox.topic_index(&changelog),
            changelog,
            dead_letters,
            source_topic: stream.map(|s| s.topic.clone()).unwrap_or_default(),
            on_error: stream.map_or(OnError::Stop, |s| s.on_error),
            epoch: Epoch(0),
            state_fingerprint: self.plan.state_fingerprint,
            dirty: marker.is_none(),
            stream_idle: false,
            prepared: None,
            changelog_bytes: 0,
        };
        for (index, input) in task.inputs.iter_mut().enumerate() {
            match marker.as_ref().and_then(|marker| marker.input(&input.topic)) {
                Some(mark) => {
                    go_on(input, mark, grows(&self.plan, stage))?;
                    if mark.own_changelog {
                        // Columns that the earlier plan did not keep are in the topic: the table is as if it had been
                        // kept by this plan from the start, whatever is left of the local state.
                        if marker.as_ref().is_some_and(|m| m.state_fingerprint != self.plan.state_fingerprint) {
                            input.next = Offset(0);
                        }
                        self.rebuild(id, input, &mut task.state, log)?;
                    }
                }
                None => {
                    input.own_changelog = self.own_changelog(stage, index, &layouts);
                    self.begin(id, input, grown, &mut task.state, log)?;
                }
            }
        }
        if let Some(marker) = marker {
            if marker.cluster.is_some() && marker.cluster != task.cluster {
                return Err(BuildError::Log(LogError::User(format!(
                    "this is another Kafka cluster ({}) than the one that the pipeline began on ({}): its positions mean nothing here; restart the pipeline under a new name",
                    task.cluster.unwrap_or_default(),
                    marker.cluster.unwrap_or_default()
                ))));
            }
            task.epoch = marker.epoch;
            task.take_totals(marker.totals);
        }
        Ok(task)
    }

    /// An input that is read for the first time. A table that an edit brought back is read anew: rows of its first life
    /// may have been deleted meanwhile.
    fn begin(
        &self,
        id: &TaskId,
        input: &mut TaskInput,
        grown: bool,
        state: &mut TaskState,
        log: &mut dyn Log,
    ) -> Result<(), BuildError> {
        if let Some(writer) = &input.writer {
            let cleared = state.clear_table(writer.layout);
            cleared.map_err(|source| BuildError::State { task: id.clone(), source })?;
        }
        if matches!(input.reader, Reader::Source(_)) {
            let source = self.plan.source(&input.name).expect("the plan names its own sources");
            let from = if grown { &StartFrom::Earliest } else { &source.start_from };
            input.next = log.start(&source.topic, id.partition, from)?;
            if input.table {
                input.level_at = Some(log.end_of(&source.topic, id.partition)?);
            }
        }
        Ok(())
    }

    /// True where a table's topic can serve as its changelog: it keeps the last record of each of the table's keys, and the
    /// table is as the topic is.
    fn own_changelog(&self, stage: &Stage, index: usize, layouts: &[StateLayout]) -> bool {
        let InputFrom::Source(name) = &stage.inputs[index].from else { return false };
        let (Some(source), true) = (self.plan.source(name), self.compacted.contains_key(name)) else { return false };
        let Some(table) = &source.table else { return false };
        let keyed = source.key.as_ref().is_some_and(|key| {
            let within = |a: &[String], b: &[String]| a.iter().all(|column| b.contains(column));
            within(&key.columns, &table.primary_key) && within(&table.primary_key, &key.columns)
        });
        let joined = stage.operators.iter().any(|o| table_of(&o.kind) == Some(index));
        let passed_on = stage.outputs.iter().any(|o| o.from == Port::Input(index));
        keyed && joined && !passed_on && table.ttl_ms.is_none() && !self.versioned(layouts, name)
    }

    /// A table whose topic is its changelog: its rows are as its own state left them, and the topic brings them level. The
    /// stream waits until that is done. Of a state without rows it waits for what the topic holds now: compaction may have
    /// put a younger row in the place of one that was counted.
    fn rebuild(
        &self,
        id: &TaskId,
        input: &mut TaskInput,
        state: &mut TaskState,
        log: &mut dyn Log,
    ) -> Result<(), BuildError> {
        let Some(writer) = &input.writer else { return Ok(()) };
        if !self.compacted.contains_key(&input.name) {
            return Err(BuildError::Log(LogError::User(format!(
                "topic '{}' is the changelog of table '{}' and is not known to be compacted any more: set its cleanup.policy to compact, and grant DescribeConfigs on it",
                input.topic, input.name
            ))));
        }
        input.own_changelog = true;
        if input.next > Offset(0) {
            input.level_at = input.level_at.max(Some(input.counted));
            return Ok(());
        }
        let cleared = state.clear_table(writer.layout);
        cleared.map_err(|source| BuildError::State { task: id.clone(), source })?;
        input.level_at = Some(log.end_of(&input.topic, id.partition)?.max(input.counted));
        input.next = log.start(&input.topic, id.partition, &StartFrom::Earliest)?;
        Ok(())
    }

    fn input(
        &self,
        stage: &Stage,
        index: usize,
        partition: Partition,
        layouts: &[StateLayout],
        steady_ms: u64,
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
        let (topic, topic_id, partitions, reader, upstreams) = match &spec.from {
            InputFrom::Source(_) => {
                let topic_id = self.topology.topics[&source.topic].0.clone();
                let partitions = self.topology.read(source);
                let place = Place { partition, partitions, aligned: aligned(stage, source) };
                let reader = SourceReader::new(Arc::new(source.clone()), place, needs_versions);
                (source.topic.clone(), topic_id, partitions, Reader::Source(Box::new(reader)), 1)
            }
            InputFrom::Exchange(name) => {
                let repairs = stage.operators.iter().any(|o| repairs_of(&o.kind) == Some(index));
                let reader = ExchangeReader::new(&self.exchange_columns(name), repairs);
                let partitions = self.topology.exchanges[name];
                let upstreams = self.topology.upstreams(&self.plan, name);
                (self.names.repartition(name), None, partitions, Reader::Exchange(reader), upstreams)
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
            next: Offset(0),
            level_at: None,
            source_clock: SourceClock::default(),
            clock: InputClock::new(upstreams),
            table,
            writer,
            own_changelog: false,
            counted: Offset(0),
            idle_timeout_ms: source.event_time.as_ref().and_then(|e| e.idle_timeout_ms),
            last_record_ms: steady_ms,
            totals: Totals::default(),
            failed: None,
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

    /// The source that the stage's stream was read from.
    fn stream(&self, stage: &Stage) -> Option<&plan::Source> {
        let stream = stage.inputs.iter().find(|i| !i.table).map(|i| match &i.from {
            InputFrom::Source(name) => name.as_str(),
            InputFrom::Exchange(name) => self.exchange(name).source.as_str(),
        });
        stream.and_then(|name| self.plan.source(name))
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
                OperatorKind::Guard(guard) => {
                    let layout = layout_of(layouts, &spec.name);
                    Kind::Guard(Guard::new(&spec.name, guard, (layout, &layouts[layout]), &left)?)
                }
            };
            let repairs = repairs_of(&spec.kind);
            let repairs = repairs.map(|input| Repairs { from: Port::Input(input), totals: Totals::default() });
            Ok(Operator { name: spec.name.clone(), input: spec.input, kind, totals: Totals::default(), repairs })
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

    fn output(
        &self,
        spec: &plan::Output,
        partition: Partition,
        log: &dyn Log,
        outbox: &mut Outbox,
    ) -> Result<Output, RowTypeError> {
        let writer = match &spec.to {
            OutputTo::Sink(name) => {
                let sink = self.plan.sink(name).expect("the plan names its own sinks");
                let partitions = self.topology.topics[&sink.topic].1;
                let target = Target {
                    topic: outbox.topic_index(&sink.topic),
                    partitions,
                    record_bytes_max: log.record_bytes_max(&sink.topic),
                };
                Writer::Sink(SinkWriter::new(sink, target, partition))
            }
            OutputTo::Exchange(name) => {
                let topic = outbox.topic_index(&self.names.exchange(self.exchange(name)));
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
        OperatorKind::Project(_) | OperatorKind::Guard(_) => None,
        OperatorKind::TableJoin(join) => Some(join.join.table),
        OperatorKind::TemporalJoin(join) => Some(join.join.table),
    }
}

fn repairs_of(kind: &OperatorKind) -> Option<usize> {
    match kind {
        OperatorKind::Guard(guard) => guard.repairs,
        OperatorKind::Project(_) | OperatorKind::TableJoin(_) | OperatorKind::TemporalJoin(_) => None,
    }
}

/// True when the stage's joins or guards trust the source to be partitioned by its declared key.
fn aligned(stage: &Stage, source: &plan::Source) -> bool {
    source.key.is_some() && stage.operators.iter().any(|o| !matches!(o.kind, OperatorKind::Project(_)))
}

/// Sets an input to where its mark says it stood.
fn go_on(input: &mut TaskInput, mark: &InputMark, grows: bool) -> Result<(), BuildError> {
    if mark.topic_id != input.topic_id {
        return Err(BuildError::Log(LogError::User(format!(
            "topic '{}' was deleted and made again since the pipeline started: its positions mean nothing any more; restart the pipeline under a new name",
            input.topic
        ))));
    }
    if mark.partitions != input.partitions && !(grows && mark.partitions < input.partitions) {
        return Err(BuildError::Log(LogError::User(format!(
            "topic '{}' had {} partitions when the pipeline started and has {} now: keys would move between tasks; restart the pipeline under a new name",
            input.topic, mark.partitions, input.partitions
        ))));
    }
    input.next = mark.next;
    input.counted = mark.counted;
    input.level_at = mark.level_at;
    input.source_clock = mark.source_clock;
    if mark.clock.upstreams() == input.clock.upstreams() {
        input.clock = mark.clock.clone().restored();
    }
    Ok(())
}

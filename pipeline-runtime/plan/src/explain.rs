//! A plan as stable text for people.

use std::fmt::{self, Write};

use millrace_core::plan::{
    Emit, Exchange, Input, InputFrom, Join, JoinKind, Key, Operator, OperatorKind, OutputTo, Plan, Port, Projection,
    Source, Stage, StateKind, StateLayout, Version,
};
use millrace_core::schema::{Column, DataType};
use millrace_crds::duration::Duration;

use crate::state::columns_text;

/// How operators, stages and exchanges are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// By their names.
    Full,
    /// By their place in the plan. Equal plans give equal text, whatever their steps are called; the fingerprint, which
    /// depends on names, is left out.
    Ordinal,
}

/// The plan as text.
pub fn explain(plan: &Plan, names: Names) -> String {
    let mut text = String::new();
    Explained { plan, names, out: &mut text }.plan().expect("a String takes all text");
    text
}

struct Explained<'a> {
    plan: &'a Plan,
    names: Names,
    out: &'a mut String,
}

impl Explained<'_> {
    fn plan(&mut self) -> fmt::Result {
        let plan = self.plan;
        let prefix = if self.names == Names::Full { plan.prefix.as_str() } else { "pipeline" };
        writeln!(self.out, "{prefix}")?;
        match &plan.dead_letter {
            Some(topic) => writeln!(self.out, "dead letters: topic '{topic}'")?,
            None => writeln!(self.out, "dead letters: none")?,
        }
        for source in &plan.sources {
            self.source(source)?;
        }
        for stage in &plan.stages {
            self.stage(stage)?;
        }
        for exchange in &plan.exchanges {
            self.exchange(exchange)?;
        }
        for sink in &plan.sinks {
            writeln!(self.out, "\nsink {}: topic '{}', format {:?}", sink.name, sink.topic, sink.format)?;
            self.key(sink.key.as_ref(), "none, records are spread over the partitions")?;
            writeln!(self.out, "  columns: {}", columns_text(&sink.columns))?;
        }
        self.state()
    }

    fn source(&mut self, source: &Source) -> fmt::Result {
        let kind = if source.table.is_some() { "table" } else { "stream" };
        writeln!(self.out, "\nsource {}: {kind}, topic '{}', format {:?}", source.name, source.topic, source.format)?;
        self.key(source.key.as_ref(), "unknown")?;
        writeln!(self.out, "  columns: {}", columns_text(&source.columns))?;
        if let Some(table) = &source.table {
            let versions = table.versions_retention_ms.map_or("none".to_owned(), time);
            let ttl = table.ttl_ms.map_or("never".to_owned(), time);
            writeln!(
                self.out,
                "  primary key: {}; old versions: {versions}; TTL: {ttl}",
                table.primary_key.join(", ")
            )?;
        }
        if let Some(event) = &source.event_time {
            let from = event.column.as_deref().unwrap_or("the record's timestamp");
            let idle = event.idle_timeout_ms.map_or("never".to_owned(), |ms| format!("after {}", time(ms)));
            writeln!(
                self.out,
                "  event time: {from}; out of order by {}; idle {idle}; future {:?} beyond {}",
                time(event.max_out_of_orderness_ms),
                event.future,
                time(event.max_future_skew_ms)
            )?;
        }
        writeln!(self.out, "  starts: {:?}; unreadable records: {:?}", source.start_from, source.on_error)
    }

    fn key(&mut self, key: Option<&Key>, none: &str) -> fmt::Result {
        match key {
            Some(key) => {
                writeln!(self.out, "  key: ({}) as {:?}, {:?}", key.columns.join(", "), key.format, key.partitioner)
            }
            None => writeln!(self.out, "  key: {none}"),
        }
    }

    fn stage(&mut self, stage: &Stage) -> fmt::Result {
        writeln!(self.out, "\n{}: {}", self.stage_name(&stage.name), self.tasks(stage))?;
        for input in &stage.inputs {
            let kind = match &input.from {
                InputFrom::Exchange(name) if self.plan.writer(name).is_none() => "repairs by",
                _ if input.table => "table",
                _ => "stream",
            };
            writeln!(self.out, "  reads {kind} {}", self.input_name(input))?;
        }
        for operator in &stage.operators {
            self.operator(stage, operator)?;
        }
        for output in &stage.outputs {
            let from = self.port_name(stage, output.from);
            match &output.to {
                OutputTo::Sink(name) => writeln!(self.out, "  writes {from} to sink {name}")?,
                OutputTo::Exchange(name) => writeln!(self.out, "  writes {from} to {}", self.exchange_name(name))?,
            }
        }
        Ok(())
    }

    /// The rule for the number of a stage's tasks.
    fn tasks(&self, stage: &Stage) -> String {
        let mut origins = Vec::new();
        for input in &stage.inputs {
            match &input.from {
                InputFrom::Source(name) => {
                    let topic = self.plan.source(name).map_or(name.as_str(), |s| s.topic.as_str());
                    origins.push(format!("'{topic}'"));
                }
                InputFrom::Exchange(name) => {
                    let exchange = self.plan.exchange(name).filter(|e| self.plan.writer(&e.name).is_some());
                    if exchange.is_some_and(|e| e.partitions_like.is_none()) {
                        return "a task for each partition; as many as the largest of the topics behind its exchanges"
                            .to_owned();
                    }
                }
            }
        }
        match origins.as_slice() {
            [topic] => format!("a task for each partition of topic {topic}"),
            topics => {
                format!("a task for each partition of topics {}, which must have equally many", topics.join(", "))
            }
        }
    }

    fn operator(&mut self, stage: &Stage, operator: &Operator) -> fmt::Result {
        let name = self.operator_name(stage, operator);
        let input = self.port_name(stage, operator.input);
        match &operator.kind {
            OperatorKind::Project(project) => {
                writeln!(self.out, "  {name}: project {input}")?;
                if let Some(filter) = &project.filter {
                    writeln!(self.out, "    where {filter}")?;
                }
                // What only passes through is among what it gives.
                let passes = |p: &&Projection| p.sql == quoted(&p.name);
                for column in project.columns.iter().filter(|p| !passes(p)) {
                    writeln!(self.out, "    {} = {}", column.name, column.sql)?;
                }
            }
            OperatorKind::TableJoin(join) => {
                writeln!(
                    self.out,
                    "  {name}: {} join {input} with the latest row of {}",
                    kind(&join.join),
                    join.join.table_name
                )?;
                self.join(&join.join)?;
                writeln!(self.out, "    missing {:?}", join.missing)?;
            }
            OperatorKind::TemporalJoin(join) => {
                let when = match join.emit {
                    Emit::Watermark => "when the watermark has passed".to_owned(),
                    Emit::GraceMs(ms) => format!("{} after the stream's watermark", time(ms)),
                    Emit::Immediate => "at once".to_owned(),
                };
                let table = &join.join.table_name;
                writeln!(self.out, "  {name}: {} join {input} with {table} as of event time", kind(&join.join))?;
                self.join(&join.join)?;
                writeln!(self.out, "    emit {when}; late {:?}; missing {:?}", join.late, join.missing)?;
            }
            OperatorKind::Guard(guard) => {
                let then = match &guard.version {
                    Version::SourcePosition => "whose stream record lies later".to_owned(),
                    Version::Column(name) => format!("with a greater {name}"),
                };
                writeln!(self.out, "  {name}: upsert {input}")?;
                let key = guard.key.join(", ");
                writeln!(self.out, "    of each ({key}) the first row passes, then only one {then}")?;
            }
        }
        writeln!(self.out, "    gives {}", columns_text(&operator.columns))
    }

    fn join(&mut self, join: &Join) -> fmt::Result {
        let keys: Vec<String> =
            join.keys.iter().map(|(left, right)| format!("{left} = {}.{right}", join.table_name)).collect();
        writeln!(self.out, "    on {}", keys.join(" and "))
    }

    fn exchange(&mut self, exchange: &Exchange) -> fmt::Result {
        let rows = match self.plan.writer(&exchange.name) {
            None => "rows of backfills of stream",
            Some(_) if exchange.table => "changes of table",
            Some(_) => "rows of stream",
        };
        let name = self.exchange_name(&exchange.name);
        writeln!(self.out, "\n{name}: {rows} {} to {}", exchange.source, self.stage_name(&exchange.stage))?;
        writeln!(self.out, "  why: {}", exchange.reason)?;
        self.key(Some(&exchange.key), "")?;
        match &exchange.partitions_like {
            None if self.plan.writer(&exchange.name).is_none() => {
                writeln!(self.out, "  partitions: as many as the stage has tasks")?
            }
            Some(topic) => writeln!(self.out, "  partitions: as many as topic '{topic}'")?,
            None => writeln!(self.out, "  partitions: as many as the largest of the stage's topics")?,
        }
        writeln!(self.out, "  columns: {}", columns_text(&exchange.columns))
    }

    fn state(&mut self) -> fmt::Result {
        if self.plan.state.is_empty() {
            return writeln!(self.out, "\nstate: none");
        }
        writeln!(self.out, "\nstate:")?;
        for layout in &self.plan.state {
            let owner = self.state_owner(layout);
            writeln!(self.out, "  {owner} in {}: {}", self.stage_name(&layout.stage), self.lifetime(layout))?;
            if !layout.key.is_empty() {
                writeln!(self.out, "    key: {}", columns_text(&layout.key))?;
            }
            writeln!(self.out, "    value: {}", columns_text(&layout.value))?;
            if self.guards(layout) {
                let bytes = VALUE_HEAD_BYTES + layout.value.iter().map(fixed_bytes).sum::<usize>();
                writeln!(
                    self.out,
                    "    cost: a read for each row, a changelog record for each that passes; {bytes} bytes and the key, before compression, for each key there ever was"
                )?;
            }
        }
        if self.names == Names::Full {
            writeln!(self.out, "  fingerprint: {:016x}", self.plan.state_fingerprint)?;
        }
        Ok(())
    }

    /// True for the state of an Upsert sink's guard.
    fn guards(&self, layout: &StateLayout) -> bool {
        let stage = self.plan.stage(&layout.stage);
        let operator = stage.and_then(|s| s.operators.iter().find(|o| o.name == layout.operator));
        operator.is_some_and(|o| matches!(o.kind, OperatorKind::Guard(_)))
    }

    fn state_owner(&self, layout: &StateLayout) -> String {
        let stage = self.plan.stage(&layout.stage);
        let operator = stage.and_then(|s| s.operators.iter().find(|o| o.name == layout.operator));
        match (stage, operator) {
            (Some(stage), Some(operator)) => self.operator_name(stage, operator),
            _ => layout.operator.clone(),
        }
    }

    fn lifetime(&self, layout: &StateLayout) -> String {
        let source = layout.operator.strip_prefix("table ").and_then(|name| self.plan.source(name));
        let table = source.and_then(|s| s.table.as_ref());
        let ttl = table.and_then(|t| t.ttl_ms).map_or("never".to_owned(), time);
        match layout.kind {
            StateKind::Latest if self.guards(layout) => "the newest version of each key; TTL: never".to_owned(),
            StateKind::Latest => format!("the latest row of each key; TTL: {ttl}"),
            StateKind::Versioned => {
                let retention = table.and_then(|t| t.versions_retention_ms).unwrap_or_default();
                format!("the latest row of each key, and old versions for {}; TTL: {ttl}", time(retention))
            }
            StateKind::Waiting => "rows that wait for the watermark; TTL: never".to_owned(),
        }
    }

    fn stage_name(&self, name: &str) -> String {
        let place = self.plan.stages.iter().position(|s| s.name == name);
        self.named("stage", name, place)
    }

    fn exchange_name(&self, name: &str) -> String {
        let place = self.plan.exchanges.iter().position(|e| e.name == name);
        self.named("exchange", name, place)
    }

    /// Operators are counted through the whole plan.
    fn operator_name(&self, stage: &Stage, operator: &Operator) -> String {
        let before: usize =
            self.plan.stages.iter().take_while(|s| s.name != stage.name).map(|s| s.operators.len()).sum();
        let place = stage.operators.iter().position(|o| o.name == operator.name).map(|i| before + i);
        self.named("operator", &operator.name, place)
    }

    fn named(&self, kind: &str, name: &str, place: Option<usize>) -> String {
        match (self.names, place) {
            (Names::Ordinal, Some(place)) => format!("{kind} {}", place + 1),
            _ => format!("{kind} {name}"),
        }
    }

    fn input_name(&self, input: &Input) -> String {
        match &input.from {
            InputFrom::Source(name) => name.clone(),
            InputFrom::Exchange(name) => self.exchange_name(name),
        }
    }

    fn port_name(&self, stage: &Stage, port: Port) -> String {
        match port {
            Port::Input(index) => self.input_name(&stage.inputs[index]),
            Port::Operator(index) => self.operator_name(stage, &stage.operators[index]),
        }
    }
}

fn kind(join: &Join) -> &'static str {
    match join.kind {
        JoinKind::Inner => "inner",
        JoinKind::Left => "left",
    }
}

/// Before the columns of a state value: layout id, write time and the bitmap of nulls.
const VALUE_HEAD_BYTES: usize = 2 + 8 + 1;

/// What a number takes in a state value.
fn fixed_bytes(column: &Column) -> usize {
    match column.data_type {
        DataType::Int | DataType::Date => 4,
        DataType::Decimal { .. } => 16,
        _ => 8,
    }
}

/// A column's name as SQL writes it.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn time(ms: i64) -> String {
    Duration::from_ms(ms.unsigned_abs()).to_string()
}

//! Cuts the logical form into stages and gives the plan.
//!
//! A join needs its stream partitioned like its table. Where the stream's declared key shows that it is, the join runs in
//! the stage that reads the stream. Else the rows cross an *exchange* into a stage of their own: to the table's own
//! partitioning if we can write the table's keys byte for byte, so that the table stays where it is; otherwise both sides
//! are written anew with our own encoding of keys.
//!
//! An Upsert sink needs all rows of a key in one task, which decides about them. Where the stage's partitioning is by
//! columns of the sink's key, and is proven, its guard runs there; else the rows cross an exchange, with our own encoding.
//!
//! Keys of format String are taken as written the same way by everybody for types with one obvious text. Keys of format
//! Json never are: producers differ in spacing, in the order of members and in whether they carry a schema.

use std::collections::{BTreeMap, BTreeSet};

use datafusion_sql::sqlparser::ast::Expr;
use millrace_core::plan::{
    Exchange, Guard, Input, InputFrom, Join, JoinKind, Key, KeyFormat, Operator, OperatorKind, Output, OutputTo,
    Partitioner, Port, Project, Projection, Stage, TableJoin, TemporalJoin, Version,
};
use millrace_core::schema::{Column, DataType};

use crate::catalog::{Catalog, SourceEntry};
use crate::expr;
use crate::logical::{Base, Filter, Flow, JoinNode, Logical};
use crate::normal::{Leaves, carried, used};
use crate::upsert;

/// Stages, and the exchanges between them.
pub struct Cut {
    pub stages: Vec<Stage>,
    pub exchanges: Vec<Exchange>,
}

/// Cuts a logical form without mistakes. `needed` are the leaves that each join must give; `columns` those of each
/// source of the plan.
pub fn cut(catalog: &Catalog, logical: &Logical, needed: &[Leaves], columns: &[Vec<Column>]) -> Cut {
    let mut cutter =
        Cutter { catalog, logical, needed, columns, stages: Vec::new(), joined: Vec::new(), exchanges: Vec::new() };
    for join in 0..logical.joins.len() {
        let place = cutter.join(join);
        cutter.joined.push(place);
    }
    for (sink, flow) in &logical.outputs {
        cutter.sink(*sink, flow);
    }
    cutter.finish()
}

/// What makes a stage: it reads a source, or it holds a join or a sink's guard behind an exchange.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Source(usize),
    Join(usize),
    Guard(usize),
}

/// By which key a stage's rows are spread over its tasks.
struct Partitioning {
    /// Text of each key expression over root columns.
    keys: Vec<String>,
    format: KeyFormat,
    partitioner: Partitioner,
    /// A record in another partition than its key says is found when it is read, or we wrote it ourselves.
    proven: bool,
    /// What the partitioning follows, for people.
    like: String,
}

struct Draft {
    origin: Origin,
    stage: Stage,
    partitioning: Option<Partitioning>,
    stateful: Option<String>,
    step: Option<String>,
}

/// Rows inside of a stage.
#[derive(Clone)]
struct Place {
    stage: usize,
    port: Port,
    /// The columns there, each with the text of the leaf or key that it holds.
    columns: Vec<(String, Column)>,
}

struct Cutter<'a> {
    catalog: &'a Catalog<'a>,
    logical: &'a Logical,
    needed: &'a [Leaves],
    columns: &'a [Vec<Column>],
    stages: Vec<Draft>,
    /// The output of each join so far.
    joined: Vec<Place>,
    exchanges: Vec<Exchange>,
}

impl Cutter<'_> {
    fn base(&mut self, flow: &Flow) -> Place {
        match flow.base {
            Base::Join(join) => self.joined[join].clone(),
            Base::Source => {
                let stage = self.source_stage(flow.source);
                let columns = self.columns[flow.source].iter();
                let columns = columns.map(|c| (expr::column(&c.name).to_string(), c.clone())).collect();
                Place { stage, port: Port::Input(0), columns }
            }
        }
    }

    /// The stage that reads a source, as a stream or as a table that moves.
    fn source_stage(&mut self, source: usize) -> usize {
        let origin = Origin::Source(source);
        if let Some(stage) = self.stages.iter().position(|d| d.origin == origin) {
            return stage;
        }
        let entry = &self.catalog.sources[source].source;
        let key_column = |c: &&Column| entry.key.as_ref().is_some_and(|key| key.columns.contains(&c.name));
        let obvious = entry.columns.iter().filter(key_column).all(|c| has_obvious_text(&c.data_type));
        let partitioning = entry.key.as_ref().map(|key| Partitioning {
            keys: key.columns.iter().map(|name| expr::column(name).to_string()).collect(),
            format: key.format,
            partitioner: key.partitioner,
            proven: key.format == KeyFormat::String && obvious,
            like: format!("topic '{}'", entry.topic),
        });
        let input = Input { from: InputFrom::Source(entry.name.clone()), table: entry.table.is_some() };
        self.new_stage(origin, entry.name.clone(), partitioning, input)
    }

    fn new_stage(&mut self, origin: Origin, name: String, partitioning: Option<Partitioning>, input: Input) -> usize {
        let stage = Stage { name, inputs: vec![input], operators: Vec::new(), outputs: Vec::new() };
        self.stages.push(Draft { origin, stage, partitioning, stateful: None, step: None });
        self.stages.len() - 1
    }

    fn join(&mut self, index: usize) -> Place {
        let logical = self.logical;
        let node = &logical.joins[index];
        let base = self.base(&node.input);
        let (wanted, keys) = self.join_input(index, &base);
        let name = node.input.project.clone().unwrap_or_else(|| format!("{}.input", node.name));
        let mut place = self.project(base, &node.input.filters, wanted, &name, node.input.project.is_some());
        let table = match self.aligned(place.stage, node) {
            Some(table) => table,
            None => {
                let (moved, table) = self.repartition(index, node, &place, &keys);
                place = moved;
                table
            }
        };
        self.join_operator(index, place, table, keys)
    }

    /// The columns of a join's stream side, and which of them are its keys.
    fn join_input(&self, index: usize, base: &Place) -> (Vec<(String, Column, Expr)>, Vec<String>) {
        let node = &self.logical.joins[index];
        let leaves = carried(self.logical, index, &self.needed[index]);
        let mut wanted: Vec<(String, Column, Expr)> = Vec::new();
        for (text, column) in &base.columns {
            if let Some(leaf) = leaves.get(text) {
                wanted.push((text.clone(), column.clone(), leaf.clone()));
            }
        }
        for (text, leaf) in &leaves {
            if !wanted.iter().any(|(other, ..)| other == text) {
                let typed = node.input.typed(leaf).expect("a leaf of a checked expression has a type");
                let name = fresh(path_name(leaf), wanted.iter().map(|(_, c, _)| c.name.as_str()));
                let column = Column { name, data_type: typed.data_type, nullable: typed.nullable };
                wanted.push((text.clone(), column, leaf.clone()));
            }
        }
        let mut keys = Vec::new();
        for (key, column, _) in &node.keys {
            let text = key.to_string();
            match wanted.iter().find(|(other, ..)| *other == text) {
                Some((_, column, _)) => keys.push(column.name.clone()),
                None => {
                    let name = fresh(text.clone(), wanted.iter().map(|(_, c, _)| c.name.as_str()));
                    keys.push(name.clone());
                    wanted.push((text, Column { name, ..column.clone() }, key.clone()));
                }
            }
        }
        (wanted, keys)
    }

    /// Filters and computes, unless there is nothing to do. `step` says that `name` is a step's.
    fn project(
        &mut self,
        base: Place,
        filters: &[Filter],
        wanted: Vec<(String, Column, Expr)>,
        name: &str,
        step: bool,
    ) -> Place {
        let columns: Vec<(String, Column)> =
            wanted.iter().map(|(text, column, _)| (text.clone(), column.clone())).collect();
        if filters.is_empty() && columns == base.columns {
            return base;
        }
        let names: BTreeMap<String, String> =
            base.columns.iter().map(|(text, c)| (text.clone(), c.name.clone())).collect();
        let terms: Vec<Expr> = filters.iter().map(|f| expr::rename(&f.expr, &names)).collect();
        let projection = |(_, column, expr): &(String, Column, Expr)| Projection {
            name: column.name.clone(),
            sql: expr::rename(expr, &names).to_string(),
        };
        let kind = OperatorKind::Project(Project {
            filter: expr::conjunction(&terms).map(|f| f.to_string()),
            columns: wanted.iter().map(projection).collect(),
        });
        let draft = &mut self.stages[base.stage];
        // Two readers of one step get the same rows from the same operator.
        let same = |o: &Operator| o.input == base.port && o.kind == kind;
        let index = draft.stage.operators.iter().position(same).unwrap_or_else(|| {
            let name = fresh(name.to_owned(), draft.stage.operators.iter().map(|o| o.name.as_str()));
            if step {
                draft.step.get_or_insert_with(|| name.clone());
            }
            let columns = wanted.iter().map(|(_, column, _)| column.clone()).collect();
            draft.stage.operators.push(Operator { name, input: base.port, kind, columns });
            draft.stage.operators.len() - 1
        });
        Place { stage: base.stage, port: Port::Operator(index), columns }
    }

    /// The table's input, if the stage's rows are spread by the join's keys already.
    fn aligned(&mut self, stage: usize, node: &JoinNode) -> Option<usize> {
        let partitioning = self.stages[stage].partitioning.as_ref()?;
        if !node.keys.iter().map(|(key, ..)| key.to_string()).eq(partitioning.keys.iter().cloned()) {
            return None;
        }
        if partitioning.format == KeyFormat::Internal {
            return Some(self.table_exchange(stage, node));
        }
        let table = &self.catalog.sources[node.table].source;
        let same = |key: &Key| key.format == partitioning.format && key.partitioner == partitioning.partitioner;
        let fits = rewritable(node, table.key.as_ref()).is_some_and(same);
        fits.then(|| self.table_input(stage, InputFrom::Source(table.name.clone())))
    }

    /// Sends the stream's rows through an exchange into a stage of their own. Gives their place there, and the table's
    /// input.
    fn repartition(&mut self, index: usize, node: &JoinNode, place: &Place, keys: &[String]) -> (Place, usize) {
        let table = &self.catalog.sources[node.table].source;
        let stream = &self.catalog.sources[node.input.source].source;
        let texts: Vec<String> = node.keys.iter().map(|(key, ..)| key.to_string()).collect();
        let found = self.found(place.stage, &stream.topic, &texts);
        let by_key = format!("table '{}' is joined by ({})", table.name, texts.join(", "));
        let (format, partitioner, like, how) = match rewritable(node, table.key.as_ref()) {
            Some(key) => {
                let how = "they move to the table's partitions".to_owned();
                (key.format, key.partitioner, Some(table.topic.clone()), how)
            }
            None => {
                let why = key_problem(node, table.key.as_ref());
                (KeyFormat::Internal, Partitioner::Murmur2, None, format!("stream and table both move, because {why}"))
            }
        };
        let exchange = Exchange {
            name: node.name.clone(),
            stage: node.name.clone(),
            source: stream.name.clone(),
            key: Key { columns: keys.to_vec(), format, partitioner },
            partitions_like: like.clone(),
            reason: format!("{by_key}; {found}; {how}"),
            columns: place.columns.iter().map(|(_, column)| column.clone()).collect(),
            table: false,
            topic: None,
        };
        let output = Output { from: place.port, to: OutputTo::Exchange(exchange.name.clone()) };
        self.stages[place.stage].stage.outputs.push(output);
        let input = Input { from: InputFrom::Exchange(exchange.name.clone()), table: false };
        self.exchanges.push(exchange);
        let like = like.map_or_else(|| "the exchange before".to_owned(), |topic| format!("topic '{topic}'"));
        let partitioning = Partitioning { keys: texts, format, partitioner, proven: true, like };
        let stage = self.new_stage(Origin::Join(index), node.name.clone(), Some(partitioning), input);
        let table = match format {
            KeyFormat::Internal => self.table_exchange(stage, node),
            _ => self.table_input(stage, InputFrom::Source(table.name.clone())),
        };
        (Place { stage, port: Port::Input(0), columns: place.columns.clone() }, table)
    }

    /// How the rows of a stage are partitioned, for people; `topic` is their stream's.
    fn found(&self, stage: usize, topic: &str, keys: &[String]) -> String {
        match &self.stages[stage].partitioning {
            None => format!("nothing is known about how topic '{topic}' is partitioned"),
            Some(p) if p.keys != keys => format!("the rows are partitioned by ({}) like {}", p.keys.join(", "), p.like),
            Some(p) => format!("the rows are partitioned like {}", p.like),
        }
    }

    /// Sends the table's changes through an exchange into a stage, once for each stage and table.
    fn table_exchange(&mut self, stage: usize, node: &JoinNode) -> usize {
        let table = &self.catalog.sources[node.table].source;
        let target = self.stages[stage].stage.name.clone();
        let name = format!("{target}-{}", table.name);
        if !self.exchanges.iter().any(|e| e.name == name) {
            let from = self.source_stage(node.table);
            let output = Output { from: Port::Input(0), to: OutputTo::Exchange(name.clone()) };
            self.stages[from].stage.outputs.push(output);
            self.exchanges.push(Exchange {
                name: name.clone(),
                stage: target,
                source: table.name.clone(),
                key: Key {
                    columns: node.keys.iter().map(|(.., column)| column.clone()).collect(),
                    format: KeyFormat::Internal,
                    partitioner: Partitioner::Murmur2,
                },
                partitions_like: None,
                reason: format!("its changes go where the rows are; {}", key_problem(node, table.key.as_ref())),
                columns: table.columns.clone(),
                table: true,
                topic: None,
            });
        }
        self.table_input(stage, InputFrom::Exchange(name))
    }

    fn table_input(&mut self, stage: usize, from: InputFrom) -> usize {
        let inputs = &mut self.stages[stage].stage.inputs;
        inputs.iter().position(|i| i.from == from && i.table).unwrap_or_else(|| {
            inputs.push(Input { from, table: true });
            inputs.len() - 1
        })
    }

    fn join_operator(&mut self, index: usize, place: Place, table: usize, keys: Vec<String>) -> Place {
        let node = &self.logical.joins[index];
        let source = &self.catalog.sources[node.table].source;
        let mut columns = place.columns;
        let mut right = Vec::new();
        for (column, root) in &node.table_roots {
            let text = expr::column(root).to_string();
            let used = self.needed[index].values().any(|leaf| expr::columns(leaf).contains(root));
            if !used {
                continue;
            }
            let taken = columns.iter().any(|(_, c)| c.name == column.name);
            let name = if taken { format!("{}.{}", source.name, column.name) } else { column.name.clone() };
            let name = fresh(name, columns.iter().map(|(_, c)| c.name.as_str()));
            let nullable = column.nullable || node.kind == JoinKind::Left;
            right.push((column.name.clone(), name.clone()));
            columns.push((text, Column { name, data_type: column.data_type.clone(), nullable }));
        }
        let join = Join {
            table,
            table_name: source.name.clone(),
            kind: node.kind,
            keys: keys.into_iter().zip(node.keys.iter().map(|(.., column)| column.clone())).collect(),
            right,
        };
        let retention_ms = source.table.as_ref().and_then(|t| t.versions_retention_ms).unwrap_or_default();
        let kind = match node.temporal {
            None => OperatorKind::TableJoin(TableJoin { join, missing: node.missing }),
            Some((emit, late)) => {
                OperatorKind::TemporalJoin(TemporalJoin { join, emit, late, missing: node.missing, retention_ms })
            }
        };
        let draft = &mut self.stages[place.stage];
        draft.stateful.get_or_insert_with(|| node.name.clone());
        draft.step.get_or_insert_with(|| node.name.clone());
        let operator = Operator {
            name: node.name.clone(),
            input: place.port,
            kind,
            columns: columns.iter().map(|(_, c)| c.clone()).collect(),
        };
        draft.stage.operators.push(operator);
        Place { stage: place.stage, port: Port::Operator(draft.stage.operators.len() - 1), columns }
    }

    fn sink(&mut self, sink: usize, flow: &Flow) {
        let spec = &self.catalog.spec.sinks[sink];
        let sink_name = &spec.name;
        let base = self.base(flow);
        let wanted: Vec<(String, Column, Expr)> = flow
            .columns
            .iter()
            .map(|c| {
                let column = Column { name: c.name.clone(), data_type: c.data_type.clone(), nullable: c.nullable };
                (c.expr.to_string(), column, c.expr.clone())
            })
            .collect();
        let name = flow.project.clone().unwrap_or_else(|| format!("{sink_name}.select"));
        let mut place = self.project(base, &flow.filters, wanted, &name, flow.project.is_some());
        if let Some(version) = upsert::version(&spec.write) {
            place = self.guard(sink, flow.source, place, version);
        }
        let output = Output { from: place.port, to: OutputTo::Sink(sink_name.clone()) };
        self.stages[place.stage].stage.outputs.push(output);
    }

    /// Puts an Upsert sink's guard where all rows of a key meet.
    fn guard(&mut self, sink: usize, source: usize, mut place: Place, version: Version) -> Place {
        let spec = &self.catalog.spec.sinks[sink];
        let key = upsert::key(spec).to_vec();
        let text = |name: &String| place.columns.iter().find(|(_, c)| c.name == *name).map(|(text, _)| text.clone());
        let texts: Vec<String> = key.iter().filter_map(text).collect();
        let meet = |p: &Partitioning| p.proven && p.keys.iter().all(|key| texts.contains(key));
        let name = upsert::operator(&spec.name);
        if !self.stages[place.stage].partitioning.as_ref().is_some_and(meet) {
            place = self.move_to_key(sink, source, &place, (&key, texts));
        }
        let repairs = Some(self.repairs(sink, source, &place));
        let operators = &mut self.stages[place.stage].stage.operators;
        let columns = place.columns.iter().map(|(_, column)| column.clone()).collect();
        let kind = OperatorKind::Guard(Guard { key, version, repairs });
        operators.push(Operator { name, input: place.port, kind, columns });
        Place { port: Port::Operator(operators.len() - 1), ..place }
    }

    /// The input by which rows of a backfill come to a guard at `place`: to the task that the rows of their key come to.
    fn repairs(&mut self, sink: usize, source: usize, place: &Place) -> usize {
        let sink_name = &self.catalog.spec.sinks[sink].name;
        let draft = &mut self.stages[place.stage];
        let partitioning = draft.partitioning.as_ref().expect("a guard is where the partitioning is known");
        let column = |text: &String| place.columns.iter().find(|(other, _)| other == text).map(|(_, c)| c.name.clone());
        let name = format!("{sink_name}.repairs");
        self.exchanges.push(Exchange {
            name: name.clone(),
            stage: draft.stage.name.clone(),
            source: self.catalog.sources[source].source.name.clone(),
            key: Key {
                columns: partitioning.keys.iter().filter_map(column).collect(),
                format: partitioning.format,
                partitioner: partitioning.partitioner,
            },
            partitions_like: None,
            reason: format!("what a backfill recomputes for sink '{sink_name}' meets what is there"),
            columns: place.columns.iter().map(|(_, column)| column.clone()).collect(),
            table: false,
            topic: None,
        });
        draft.stage.inputs.push(Input { from: InputFrom::Exchange(name), table: false });
        draft.stage.inputs.len() - 1
    }

    /// Sends a sink's rows through an exchange into a stage of their own, partitioned by the sink's key.
    fn move_to_key(
        &mut self,
        sink: usize,
        source: usize,
        place: &Place,
        (key, texts): (&[String], Vec<String>),
    ) -> Place {
        let sink_name = &self.catalog.spec.sinks[sink].name;
        let stream = &self.catalog.sources[source].source;
        let name = upsert::operator(sink_name);
        let found = self.found(place.stage, &stream.topic, &texts);
        let unproven = match &self.stages[place.stage].partitioning {
            Some(p) if !p.proven => ", whose keys each producer may write its own way",
            _ => "",
        };
        self.exchanges.push(Exchange {
            name: name.clone(),
            stage: name.clone(),
            source: stream.name.clone(),
            key: Key { columns: key.to_vec(), format: KeyFormat::Internal, partitioner: Partitioner::Murmur2 },
            partitions_like: None,
            reason: format!(
                "sink '{sink_name}' replaces rows by ({}), so all rows of a key must meet; {found}{unproven}",
                texts.join(", ")
            ),
            columns: place.columns.iter().map(|(_, column)| column.clone()).collect(),
            table: false,
            topic: None,
        });
        let output = Output { from: place.port, to: OutputTo::Exchange(name.clone()) };
        self.stages[place.stage].stage.outputs.push(output);
        let input = Input { from: InputFrom::Exchange(name.clone()), table: false };
        let partitioning = Partitioning {
            keys: texts,
            format: KeyFormat::Internal,
            partitioner: Partitioner::Murmur2,
            proven: true,
            like: "the exchange before".to_owned(),
        };
        let stage = self.new_stage(Origin::Guard(sink), name, Some(partitioning), input);
        Place { stage, port: Port::Input(0), columns: place.columns.clone() }
    }

    /// Names the stages that read sources: after what they do first.
    fn finish(mut self) -> Cut {
        // The stages behind exchanges have their final names: exchanges refer to them.
        let behind = |d: &&Draft| !matches!(d.origin, Origin::Source(_));
        let mut names: Vec<String> = self.stages.iter().filter(behind).map(|d| d.stage.name.clone()).collect();
        for draft in self.stages.iter_mut().filter(|d| matches!(d.origin, Origin::Source(_))) {
            let name = draft.stateful.take().or(draft.step.take()).unwrap_or_else(|| draft.stage.name.clone());
            let named = fresh(name, names.iter().map(String::as_str));
            let before = std::mem::replace(&mut draft.stage.name, named.clone());
            // No exchange comes to a stage that reads a source but those of repairs.
            let own = |e: &&mut Exchange| {
                e.stage == before && draft.stage.inputs.iter().any(|i| i.from == InputFrom::Exchange(e.name.clone()))
            };
            self.exchanges.iter_mut().filter(own).for_each(|e| e.stage = named.clone());
            names.push(named);
        }
        Cut { stages: self.stages.into_iter().map(|d| d.stage).collect(), exchanges: self.exchanges }
    }
}

/// The columns that a plan's source has: for a stream those that something uses, for a table all.
pub fn source_columns(catalog: &Catalog, logical: &Logical, needed: &[Leaves]) -> Vec<Vec<Column>> {
    let mut leaves = vec![Leaves::new(); catalog.sources.len()];
    for (_, flow) in &logical.outputs {
        leaves[flow.source].extend(used(flow, flow.columns.iter().map(|c| &c.expr)));
    }
    for (join, node) in logical.joins.iter().enumerate() {
        let leaves = &mut leaves[node.input.source];
        leaves.extend(used(&node.input, node.keys.iter().map(|(key, ..)| key)));
        leaves.extend(carried(logical, join, &needed[join]));
    }
    let columns = |(entry, leaves): (&SourceEntry, Leaves)| {
        let used: BTreeSet<String> = leaves.values().flat_map(expr::columns).collect();
        let time = entry.source.event_time.as_ref().and_then(|e| e.column.as_ref());
        let keep = |c: &&Column| entry.source.table.is_some() || used.contains(&c.name) || time == Some(&c.name);
        entry.source.columns.iter().filter(keep).cloned().collect()
    };
    catalog.sources.iter().zip(leaves).map(columns).collect()
}

/// The table's key, if we can write it byte for byte like its producers: it is the primary key, as String, of a type with
/// one obvious text.
fn rewritable<'k>(node: &JoinNode, key: Option<&'k Key>) -> Option<&'k Key> {
    let key = key?;
    let covers = key.columns.iter().eq(node.keys.iter().map(|(.., column)| column));
    let obvious = node.keys.iter().all(|(_, column, _)| has_obvious_text(&column.data_type));
    (covers && key.format == KeyFormat::String && obvious).then_some(key)
}

/// True for types whose values everybody writes the same way as a key of format String.
fn has_obvious_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Boolean | DataType::Int | DataType::Bigint | DataType::String | DataType::Date)
}

/// Why a table's key is not [`rewritable`].
fn key_problem(node: &JoinNode, key: Option<&Key>) -> String {
    let primary: Vec<&str> = node.keys.iter().map(|(.., column)| column.as_str()).collect();
    match key {
        None => "the table's key is not declared".to_owned(),
        Some(key) if !key.columns.iter().eq(primary.iter()) => {
            format!("the table's key ({}) is not its primary key ({})", key.columns.join(", "), primary.join(", "))
        }
        Some(key) if key.format != KeyFormat::String => {
            "the table's keys are JSON, which each producer writes its own way".to_owned()
        }
        Some(_) => "the table's key has a type that producers write in several ways".to_owned(),
    }
}

/// `payload.customer.id` for a field of a column.
fn path_name(leaf: &Expr) -> String {
    let text = leaf.to_string();
    text.replace("']['", ".").replace("['", ".").replace("']", "").replace('"', "")
}

/// `name`, or the first of `name-2`, `name-3`, ... that is free.
fn fresh<'n>(name: String, taken: impl Iterator<Item = &'n str> + Clone) -> String {
    let free = |name: &str| !taken.clone().any(|other| other == name);
    if free(&name) {
        return name;
    }
    (2u32..).map(|n| format!("{name}-{n}")).find(|name| free(name)).expect("there are more numbers than names")
}

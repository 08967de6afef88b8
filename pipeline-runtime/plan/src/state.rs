//! What operators keep, its identity, and whether one plan's state fits another plan.

use std::fmt::Write;

use millrace_core::fingerprint::fnv1a;
use millrace_core::plan::{
    Emit, Exchange, Guard, InputFrom, Operator, OperatorKind, Plan, Port, Stage, StateKind, StateLayout,
};
use millrace_core::report::StateFit;
use millrace_core::schema::Column;

use crate::upsert;

/// The layouts of a plan's state: for each stage its tables, then its joins with rows that wait and its guards.
pub fn layouts(plan: &Plan) -> Vec<StateLayout> {
    plan.stages.iter().flat_map(|stage| stage_layouts(plan, stage)).collect()
}

fn stage_layouts(plan: &Plan, stage: &Stage) -> Vec<StateLayout> {
    let mut layouts: Vec<StateLayout> = Vec::new();
    let mut own = Vec::new();
    for operator in &stage.operators {
        let (join, kind) = match &operator.kind {
            OperatorKind::Project(_) => continue,
            OperatorKind::Guard(guard) => {
                own.push(guard_layout(guard, operator, stage));
                continue;
            }
            OperatorKind::TableJoin(join) => (&join.join, StateKind::Latest),
            OperatorKind::TemporalJoin(join) => {
                if join.emit != Emit::Immediate {
                    own.push(StateLayout {
                        operator: operator.name.clone(),
                        kind: StateKind::Waiting,
                        stage: stage.name.clone(),
                        key: Vec::new(),
                        value: port_columns(plan, stage, operator.input),
                    });
                }
                (&join.join, StateKind::Versioned)
            }
        };
        let name = format!("table {}", join.table_name);
        match layouts.iter_mut().find(|l| l.operator == name) {
            // A join with the latest row reads the newest of the versions.
            Some(layout) if kind == StateKind::Versioned => layout.kind = kind,
            Some(_) => {}
            None => {
                let source = plan.source(&join.table_name);
                let value = source.map(|s| s.columns.clone()).unwrap_or_default();
                let primary_key =
                    source.and_then(|s| s.table.as_ref()).map(|t| t.primary_key.as_slice()).unwrap_or_default();
                let key =
                    primary_key.iter().filter_map(|name| value.iter().find(|c| c.name == *name).cloned()).collect();
                layouts.push(StateLayout { operator: name, kind, stage: stage.name.clone(), key, value });
            }
        }
    }
    layouts.extend(own);
    layouts
}

/// The newest version that passed, by the sink's key. No row with a null in either of them passes.
fn guard_layout(guard: &Guard, operator: &Operator, stage: &Stage) -> StateLayout {
    let column = |name: &String| operator.columns.iter().find(|c| c.name == *name);
    let not_null = |c: &Column| Column { nullable: false, ..c.clone() };
    StateLayout {
        operator: operator.name.clone(),
        kind: StateKind::Latest,
        stage: stage.name.clone(),
        key: guard.key.iter().filter_map(column).map(not_null).collect(),
        value: upsert::version_columns(&guard.version, &operator.columns),
    }
}

/// The columns of the rows at a port.
pub fn port_columns(plan: &Plan, stage: &Stage, port: Port) -> Vec<Column> {
    match port {
        Port::Operator(index) => stage.operators[index].columns.clone(),
        Port::Input(index) => match &stage.inputs[index].from {
            InputFrom::Source(name) => plan.source(name).map(|s| s.columns.clone()),
            InputFrom::Exchange(name) => plan.exchange(name).map(|e| e.columns.clone()),
        }
        .unwrap_or_default(),
    }
}

/// Identity of a state's layouts, in any order. Collisions among the few plans of one pipeline are no matter: [`fit`]
/// compares the layouts themselves.
pub fn fingerprint(layouts: &[StateLayout]) -> u64 {
    let mut lines: Vec<String> = layouts.iter().map(line).collect();
    lines.sort();
    fnv1a(lines.concat().as_bytes())
}

fn line(layout: &StateLayout) -> String {
    let StateLayout { operator, kind, stage, key, value } = layout;
    format!("{stage:?} {operator:?} {kind:?} ({}) -> ({})\n", columns_text(key), columns_text(value))
}

/// `name TYPE, name TYPE NOT NULL`.
pub fn columns_text(columns: &[Column]) -> String {
    let mut text = String::new();
    for (i, column) in columns.iter().enumerate() {
        let comma = if i == 0 { "" } else { ", " };
        let not_null = if column.nullable { "" } else { " NOT NULL" };
        write!(text, "{comma}{} {}{not_null}", column.name, column.data_type).expect("a String takes all text");
    }
    text
}

/// Whether state of an old layout serves a new plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fit {
    Kept,
    /// It serves while it is empty, because the rows in it lack something.
    KeptIfEmpty(String),
    Lost(String),
}

/// Compares an old layout with the new plan's. Columns are matched by name: one that went is left out, one that came is
/// null in old rows of a table, which is right only if it may be null.
pub fn fit(old: &StateLayout, new: &[StateLayout]) -> Fit {
    let Some(new) = new.iter().find(|l| l.operator == old.operator && l.stage == old.stage) else {
        return Fit::Lost(match new.iter().find(|l| l.operator == old.operator) {
            Some(moved) => format!("it is kept in stage '{}' now", moved.stage),
            None => "nothing uses it any more".to_owned(),
        });
    };
    if old.kind != new.kind {
        return Fit::Lost(format!("it was {:?} and is {:?} now", old.kind, new.kind));
    }
    if old.key != new.key {
        return Fit::Lost(format!("its key was ({}) and is ({}) now", columns_text(&old.key), columns_text(&new.key)));
    }
    for column in &old.value {
        if let Some(changed) = new.value.iter().find(|c| c.name == column.name && c.data_type != column.data_type) {
            return Fit::Lost(format!("'{}' was {} and is {} now", column.name, column.data_type, changed.data_type));
        }
    }
    let added: Vec<&Column> = new.value.iter().filter(|c| old.value.iter().all(|o| o.name != c.name)).collect();
    let names = |columns: &[&Column]| columns.iter().map(|c| c.name.as_str()).collect::<Vec<_>>().join(", ");
    if old.kind == StateKind::Waiting {
        return match added.is_empty() {
            true => Fit::Kept,
            false => Fit::KeptIfEmpty(format!("the rows that wait do not have ({})", names(&added))),
        };
    }
    let strict: Vec<&Column> = added.into_iter().filter(|c| !c.nullable).collect();
    match strict.is_empty() {
        true => Fit::Kept,
        false => Fit::Lost(format!("its rows do not have ({}), which must not be null", names(&strict))),
    }
}

/// Something of an old plan that a new one cannot just go on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// As a person calls it.
    pub what: String,
    /// The operator whose rows it is about, if it is about rows.
    pub operator: Option<String>,
    pub fit: Fit,
}

/// What of an old plan's state does not serve a new plan just as it is: rows, positions in topics, and rows between
/// stages. State that nothing uses any more is no obstacle.
pub fn misfits(old: &Plan, new: &Plan) -> Vec<Misfit> {
    let rows = old.state.iter().filter_map(|layout| match fit(layout, &new.state) {
        Fit::Lost(_) if new.state.iter().all(|l| l.operator != layout.operator) => None,
        Fit::Kept => None,
        fit => Some(Misfit { what: layout.operator.clone(), operator: Some(layout.operator.clone()), fit }),
    });
    let topics = old.sources.iter().filter_map(|source| {
        let now = new.source(&source.name).filter(|now| now.topic != source.topic)?;
        let why = format!("it read topic '{}' and reads '{}' now", source.topic, now.topic);
        Some(Misfit { what: format!("source '{}'", source.name), operator: None, fit: Fit::Lost(why) })
    });
    let positions = old.sources.iter().filter_map(|source| {
        let (left, now) = (moved(old, new, &source.name)?, moved(new, old, &source.name)?);
        let why = format!(
            "its positions are those of stage '{left}', and stage '{now}' reads it now: it would be read from the start again"
        );
        Some(Misfit { what: format!("source '{}'", source.name), operator: None, fit: Fit::Lost(why) })
    });
    let guarded = |plan: &Plan, sink: &str| plan.state.iter().any(|l| l.operator == upsert::operator(sink));
    let sinks = old.sinks.iter().filter_map(|sink| {
        let now = new.sink(&sink.name).filter(|now| now.topic == sink.topic)?;
        let why = match (guarded(old, &sink.name), guarded(new, &now.name)) {
            (false, true) => "its rows were appended, and nothing knows which of them is the newest of its key",
            (true, false) => "its rows replaced each other, and would not any more",
            _ => return None,
        };
        Some(Misfit { what: format!("sink '{}'", sink.name), operator: None, fit: Fit::Lost(why.to_owned()) })
    });
    let between = old.exchanges.iter().filter_map(|exchange| {
        let fit = between(exchange, new.exchange(&exchange.name))?;
        Some(Misfit { what: format!("exchange '{}'", exchange.name), operator: None, fit })
    });
    rows.chain(topics).chain(positions).chain(sinks).chain(between).collect()
}

/// The first stage that reads a source in one plan and not in another.
fn moved<'a>(here: &'a Plan, there: &Plan, source: &str) -> Option<&'a str> {
    let reads = |stage: &Stage| {
        stage.inputs.iter().any(|input| matches!(&input.from, InputFrom::Source(name) if name == source))
    };
    let stage = here.stages.iter().find(|stage| reads(stage) && !there.stage(&stage.name).is_some_and(reads))?;
    Some(&stage.name)
}

fn between(old: &Exchange, new: Option<&Exchange>) -> Option<Fit> {
    match new {
        None => Some(Fit::KeptIfEmpty("rows that are on their way through it would be lost".to_owned())),
        Some(new) if new.key != old.key || new.stage != old.stage => {
            Some(Fit::Lost("its rows would go to other tasks than those before them".to_owned()))
        }
        Some(new) if new.columns != old.columns => {
            Some(Fit::KeptIfEmpty("rows that are on their way through it have other columns".to_owned()))
        }
        Some(_) => None,
    }
}

/// Whether the state of an old plan serves a new one, in all.
pub fn fit_of(old: &Plan, new: &Plan) -> StateFit {
    let (mut lost, mut kept_if_empty) = (Vec::new(), Vec::new());
    for Misfit { what, fit, .. } in misfits(old, new) {
        match fit {
            Fit::Kept => {}
            Fit::KeptIfEmpty(why) => kept_if_empty.push(format!("{what}: {why}")),
            Fit::Lost(why) => lost.push(format!("{what}: {why}")),
        }
    }
    match (lost.is_empty(), kept_if_empty.is_empty()) {
        (false, _) => StateFit::Lost { reasons: lost },
        (true, false) => StateFit::KeptIfEmpty { reasons: kept_if_empty },
        (true, true) => StateFit::Kept,
    }
}

//! What operators keep, its identity, and whether one plan's state fits another plan.

use std::fmt::Write;

use millrace_core::plan::{Emit, InputFrom, OperatorKind, Plan, Port, Stage, StateKind, StateLayout};
use millrace_core::schema::Column;

/// The layouts of a plan's state: for each stage its tables, then its joins with rows that wait.
pub fn layouts(plan: &Plan) -> Vec<StateLayout> {
    plan.stages.iter().flat_map(|stage| stage_layouts(plan, stage)).collect()
}

fn stage_layouts(plan: &Plan, stage: &Stage) -> Vec<StateLayout> {
    let mut layouts: Vec<StateLayout> = Vec::new();
    let mut waiting = Vec::new();
    for operator in &stage.operators {
        let (join, kind) = match &operator.kind {
            OperatorKind::Project(_) => continue,
            OperatorKind::TableJoin(join) => (&join.join, StateKind::Latest),
            OperatorKind::TemporalJoin(join) => {
                if join.emit != Emit::Immediate {
                    waiting.push(StateLayout {
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
    layouts.extend(waiting);
    layouts
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

/// FNV-1a with 64 bits. The constants are those of its authors; it is stable by definition, unlike the hashers of the
/// standard library.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
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

//! What an edit of a pipeline does: the class of each changed field, and which state the new plan keeps.
//!
//! Fields are compared as documents with all defaults written out, so an edit that only writes a default is none. Lists
//! of things with names are matched by name: to reorder them changes nothing. A field's class is that of the table in
//! the guide; what the state says is compared from the two plans themselves, and wins.

use std::fmt;

use millrace_crds::mistake::Mistake;
use millrace_crds::pipeline::Pipeline;
use serde_json::Value;

use crate::compile::compile;
use crate::state::{Fit, fit};

/// What an edit asks for, from the least to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Taken up while everything runs.
    Live,
    /// Workers are replaced one after the other; their tasks are handed over.
    Roll,
    /// The running plan is replaced; its state goes on.
    NewPlanStateKept,
    /// State of the old plan does not serve: start from a savepoint that fits, or under a new name.
    NeedsRestore,
    /// Refused.
    Immutable,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Live => "live",
            Self::Roll => "roll by hand-over",
            Self::NewPlanStateKept => "new plan, state kept",
            Self::NeedsRestore => "needs restore or a new name",
            Self::Immutable => "immutable",
        })
    }
}

/// A field that changed. `None` is a field or an item that is not there.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    pub path: String,
    pub class: Class,
    pub old: Option<Value>,
    pub new: Option<Value>,
}

/// State of the old plan, and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateChange {
    pub stage: String,
    pub operator: String,
    pub fit: Fit,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Diff {
    /// The greatest class of all; `None` if nothing changed.
    pub class: Option<Class>,
    pub changes: Vec<Change>,
    pub state: Vec<StateChange>,
}

/// Why two pipelines cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    #[error("compile the old pipeline: {} mistakes", .0.len())]
    Old(Vec<Mistake>),
    #[error("compile the new pipeline: {} mistakes", .0.len())]
    New(Vec<Mistake>),
}

/// Compares two pipelines whose shapes are right.
pub fn diff(old: &Pipeline, new: &Pipeline) -> Result<Diff, DiffError> {
    let old_plan = compile(old).map_err(DiffError::Old)?.plan;
    let new_plan = compile(new).map_err(DiffError::New)?.plan;
    let state: Vec<StateChange> = old_plan
        .state
        .iter()
        .map(|layout| StateChange {
            stage: layout.stage.clone(),
            operator: layout.operator.clone(),
            fit: fit(layout, &new_plan.state),
        })
        .collect();
    let mut changes = Vec::new();
    let document = |pipeline: &Pipeline| serde_json::to_value(&pipeline.spec).expect("a spec is a document");
    compare(Some(&document(old)), Some(&document(new)), "spec", "spec", &mut changes);
    raise(&mut changes, &state);
    Ok(Diff { class: changes.iter().map(|c| c.class).max(), changes, state })
}

/// If state is lost though no field says so, every field that made the plan may be the reason.
fn raise(changes: &mut [Change], state: &[StateChange]) {
    let lost = state.iter().any(|s| matches!(s.fit, Fit::Lost(_)));
    if lost && changes.iter().all(|c| c.class < Class::NeedsRestore) {
        for change in changes.iter_mut().filter(|c| c.class == Class::NewPlanStateKept) {
            change.class = Class::NeedsRestore;
        }
    }
}

/// Walks two documents side by side. `pattern` is `path` without the numbers of list items.
fn compare(old: Option<&Value>, new: Option<&Value>, path: &str, pattern: &str, changes: &mut Vec<Change>) {
    if old == new {
        return;
    }
    match (old, new) {
        (Some(Value::Object(old)), Some(Value::Object(new))) => {
            let gone = old.keys().filter(|key| !new.contains_key(*key));
            for key in new.keys().chain(gone) {
                compare(old.get(key), new.get(key), &format!("{path}.{key}"), &format!("{pattern}.{key}"), changes);
            }
        }
        (Some(Value::Array(old)), Some(Value::Array(new))) if named(old) && named(new) => {
            let pattern = format!("{pattern}[]");
            let find = |items: &[Value], item: &Value| items.iter().position(|other| other["name"] == item["name"]);
            for (i, item) in new.iter().enumerate() {
                let before = find(old, item).map(|i| &old[i]);
                compare(before, Some(item), &format!("{path}[{i}]"), &pattern, changes);
            }
            for item in old.iter().filter(|item| find(new, item).is_none()) {
                let name = item["name"].as_str().unwrap_or_default();
                compare(Some(item), None, &format!("{path}[{name}]"), &pattern, changes);
            }
        }
        _ => changes.push(Change {
            path: path.to_owned(),
            class: class_of(pattern),
            old: old.cloned(),
            new: new.cloned(),
        }),
    }
}

fn named(items: &[Value]) -> bool {
    items.iter().all(|item| item["name"].is_string())
}

/// The first pattern that a field is, or lies below, gives its class. What none names makes a new plan.
const CLASSES: &[(&str, Class)] = &[
    ("spec.replicas", Class::Live),
    ("spec.slos", Class::Live),
    ("spec.autoscaling", Class::Live),
    ("spec.delivery", Class::Live),
    ("spec.desiredState", Class::Live),
    ("spec.deletionPolicy", Class::Live),
    ("spec.restore", Class::Live),
    ("spec.hydrateFrom", Class::Live),
    ("spec.state.ttl", Class::Live),
    ("spec.state.storage", Class::Immutable),
    ("spec.worker.logLevel", Class::Live),
    ("spec.worker.lanes", Class::Live),
    ("spec.worker", Class::Roll),
    ("spec.kafka.internal.prefix", Class::Immutable),
    ("spec.kafka", Class::Roll),
    ("spec.sources[].kafka.topic", Class::NeedsRestore),
    // It applies at the first start only, so a later edit does nothing.
    ("spec.sources[].kafka.startFrom", Class::Live),
    ("spec.sources[].columns[].type", Class::NeedsRestore),
    ("spec.sources[].table.primaryKey", Class::NeedsRestore),
    ("spec.sources[].table.ttl", Class::Live),
    ("spec.sources[].table.versions.retention", Class::Live),
    ("spec.steps[].tableJoin.keys", Class::NeedsRestore),
    ("spec.steps[].temporalJoin.keys", Class::NeedsRestore),
    ("spec.sinks[].write.mode", Class::NeedsRestore),
];

fn class_of(pattern: &str) -> Class {
    let below =
        |prefix: &str| pattern.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
    CLASSES.iter().find(|(prefix, _)| below(prefix)).map_or(Class::NewPlanStateKept, |(_, class)| *class)
}

/// Values are cut here, in characters: a change is one line for a person.
const VALUE_LENGTH_MAX: usize = 60;

fn shown(value: Option<&Value>) -> String {
    let Some(value) = value else { return "(none)".to_owned() };
    let text = value.to_string();
    match text.char_indices().nth(VALUE_LENGTH_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(class) = self.class else { return writeln!(f, "no change") };
        writeln!(f, "this edit: {class}")?;
        for change in &self.changes {
            let (old, new) = (shown(change.old.as_ref()), shown(change.new.as_ref()));
            writeln!(f, "  {}: {old} -> {new} [{}]", change.path, change.class)?;
        }
        for StateChange { stage, operator, fit } in &self.state {
            match fit {
                Fit::Kept => writeln!(f, "  state kept: {operator} in stage {stage}")?,
                Fit::KeptIfEmpty(why) => {
                    writeln!(f, "  state kept only while empty: {operator} in stage {stage}: {why}")?
                }
                Fit::Lost(why) => writeln!(f, "  state lost: {operator} in stage {stage}: {why}")?,
            }
        }
        Ok(())
    }
}

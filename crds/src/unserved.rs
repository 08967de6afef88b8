//! What the API knows and this version does not do, in one place.
//!
//! Such a field is neither an unknown field nor silently ignored: it is the mistake 'not available in this version',
//! here and, as a CEL rule that is generated from the same row, on the cluster. A value that equals the default passes.
//! Serving a field means removing its row.

use serde_json::Value;

use crate::pipeline::Pipeline;

/// The message of every row.
pub const MESSAGE: &str = "not available in this version";

/// Which values of a field pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passes {
    /// Only the field's absence.
    Absent,
    /// Its absence or this one value.
    Only(&'static str),
    /// Every value but this one.
    AllBut(&'static str),
}

/// A row: a field, which values of it pass, and what to do about the others.
#[derive(Clone, Copy, Debug)]
pub struct Unserved {
    /// Pattern of the object that has the field.
    pub at: &'static str,
    pub field: &'static str,
    pub passes: Passes,
    pub hint: &'static str,
}

const fn row(at: &'static str, field: &'static str, passes: Passes, hint: &'static str) -> Unserved {
    Unserved { at, field, passes, hint }
}

const OTHER_JOINS: &str = "use tableJoin or temporalJoin";

/// Every path of the API that this version does not serve.
pub const UNSERVED: &[Unserved] = &[
    row("spec", "hydrateFrom", Passes::Absent, "leave it out; the pipeline builds its state from its sources"),
    row("spec", "deletionPolicy", Passes::AllBut("Savepoint"), "use Retain or Delete, and make a Savepoint before"),
    row(
        "spec.restore",
        "unmappedState",
        Passes::Only("Refuse"),
        "leave it out; a restore that would lose state is refused",
    ),
    row("spec.steps[]", "broadcastJoin", Passes::Absent, OTHER_JOINS),
    row("spec.steps[]", "lookupJoin", Passes::Absent, OTHER_JOINS),
    row("spec.steps[]", "intervalJoin", Passes::Absent, OTHER_JOINS),
    row("spec.steps[]", "merge", Passes::Absent, OTHER_JOINS),
    row("spec.steps[]", "deltaJoin", Passes::Absent, OTHER_JOINS),
    row("spec.sinks[].format", "type", Passes::Only("Json"), "use Json"),
];

/// The same of a `Backfill`.
pub const BACKFILL: &[Unserved] = &[row(
    "spec",
    "mode",
    Passes::Only("Repair"),
    "use Repair, into Upsert sinks; or run another Pipeline with sinks of its own and startFrom",
)];

impl Unserved {
    /// Pattern of the field itself.
    pub fn pattern(&self) -> String {
        format!("{}.{}", self.at, self.field)
    }

    pub fn passes(&self, value: &Value) -> bool {
        match self.passes {
            Passes::Absent => false,
            Passes::Only(only) => value == only,
            Passes::AllBut(other) => value != other,
        }
    }

    /// The same as a CEL rule on the object that has the field.
    pub fn cel(&self) -> String {
        let field = self.field;
        match self.passes {
            Passes::Absent => format!("!has(self.{field})"),
            Passes::Only(only) => format!("!has(self.{field}) || self.{field} == '{only}'"),
            Passes::AllBut(other) => format!("!has(self.{field}) || self.{field} != '{other}'"),
        }
    }
}

/// The row for a field, by its pattern.
pub fn find(pattern: &str) -> Option<&'static Unserved> {
    UNSERVED.iter().chain(BACKFILL).find(|row| {
        pattern.strip_suffix(row.field).and_then(|rest| rest.strip_suffix('.')).is_some_and(|at| at == row.at)
    })
}

/// The fields of this pipeline that mean nothing outside of a cluster, so that `--local` can say once what it ignores.
/// Each is a path with what is used instead.
pub fn ignored_locally(pipeline: &Pipeline) -> Vec<(&'static str, &'static str)> {
    let spec = &pipeline.spec;
    let mut ignored = vec![("spec.kafka", "topics are files")];
    if spec.replicas != 1 {
        ignored.push(("spec.replicas", "one worker runs"));
    }
    if spec.autoscaling != Default::default() {
        ignored.push(("spec.autoscaling", "one worker runs"));
    }
    if spec.state.storage.is_some() {
        ignored.push(("spec.state.storage", "state is in a folder"));
    }
    if spec.restore.is_some() {
        ignored.push(("spec.restore", "state is in a folder"));
    }
    if !spec.slos.is_empty() {
        ignored.push(("spec.slos", "nobody counts"));
    }
    if spec.worker != Default::default() {
        ignored.push(("spec.worker", "this process is the worker"));
    }
    ignored
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{path, schema};

    #[test]
    fn every_row_names_a_field_of_the_schema() {
        let mut pipeline = schema::pipeline().clone();
        for row in UNSERVED {
            let node = path::schema_node(&mut pipeline, &row.pattern());
            assert!(node.is_some(), "{} is not in the schema", row.pattern());
            assert_eq!(find(&row.pattern()).map(Unserved::pattern), Some(row.pattern()));
        }
    }

    #[test]
    fn the_default_of_a_field_passes() {
        let mut pipeline = schema::pipeline().clone();
        for row in UNSERVED {
            let node = path::schema_node(&mut pipeline, &row.pattern()).expect("node");
            if let Some(default) = node.get("default") {
                assert!(row.passes(default), "{}: {default}", row.pattern());
            }
        }
    }

    #[test]
    fn a_value_that_a_row_names_is_one_of_the_enum() {
        let mut pipeline = schema::pipeline().clone();
        for row in UNSERVED {
            if let Passes::Only(value) | Passes::AllBut(value) = row.passes {
                let node = path::schema_node(&mut pipeline, &row.pattern()).expect("node");
                let values = node["enum"].as_array().expect("enum");
                assert!(values.contains(&json!(value)), "{}: {value}", row.pattern());
            }
        }
    }
}

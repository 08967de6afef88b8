//! The kinds of the API: what each is called, what its objects look like, and what `kubectl get` shows of them.

use serde_json::{Value, json};

use crate::rules::{self, Rule};
use crate::unserved::{self, UNSERVED, Unserved};
use crate::{backfill, pipeline, savepoint, schema};

pub struct Kind {
    pub name: &'static str,
    pub singular: &'static str,
    pub plural: &'static str,
    pub short_name: &'static str,
    /// Why an object needs a name.
    pub name_is_for: &'static str,
    /// Structural, without CEL rules.
    pub schema: fn() -> &'static Value,
    pub rules: &'static [Rule],
    pub unserved: &'static [Unserved],
    /// Name, type and path.
    pub columns: &'static [(&'static str, &'static str, &'static str)],
    /// It has `/scale`.
    pub scales: bool,
}

const READY: (&str, &str, &str) = ("Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status");
const AGE: (&str, &str, &str) = ("Age", "date", ".metadata.creationTimestamp");
const MESSAGE: (&str, &str, &str) = ("Message", "string", ".status.message");

pub const PIPELINE: Kind = Kind {
    name: pipeline::KIND,
    singular: "pipeline",
    plural: "pipelines",
    short_name: "mrp",
    name_is_for: "its topics, ids and state are named after it",
    schema: schema::pipeline,
    rules: rules::RULES,
    unserved: UNSERVED,
    columns: &[
        READY,
        ("Phase", "string", ".status.phase"),
        ("Desired", "integer", ".status.desiredReplicas"),
        ("Ready-Pods", "integer", ".status.readyReplicas"),
        ("Lag", "string", ".status.lag"),
        ("Fresh-P99", "string", ".status.freshnessP99"),
        ("Budget", "string", ".status.errorBudget"),
        AGE,
        MESSAGE,
    ],
    scales: true,
};

pub const SAVEPOINT: Kind = Kind {
    name: savepoint::KIND,
    singular: "savepoint",
    plural: "savepoints",
    short_name: "mrs",
    name_is_for: "a restore names it",
    schema: schema::savepoint,
    rules: rules::SAVEPOINT_RULES,
    unserved: &[],
    columns: &[
        READY,
        ("Phase", "string", ".status.phase"),
        ("Size", "string", ".status.size"),
        ("Plan", "integer", ".status.plan.number"),
        ("Taken", "date", ".status.takenAt"),
        AGE,
        MESSAGE,
    ],
    scales: false,
};

pub const BACKFILL: Kind = Kind {
    name: backfill::KIND,
    singular: "backfill",
    plural: "backfills",
    short_name: "mrb",
    name_is_for: "its topics, ids and state are named after it",
    schema: schema::backfill,
    rules: rules::BACKFILL_RULES,
    unserved: unserved::BACKFILL,
    columns: &[
        READY,
        ("Phase", "string", ".status.phase"),
        ("Progress", "string", ".status.progress"),
        ("ETA", "string", ".status.eta"),
        ("Applied", "integer", ".status.counts.applied"),
        AGE,
        MESSAGE,
    ],
    scales: false,
};

pub const ALL: [&Kind; 3] = [&PIPELINE, &SAVEPOINT, &BACKFILL];

impl Kind {
    /// Name of its CustomResourceDefinition.
    pub fn definition(&self) -> String {
        format!("{}.millrace.dev", self.plural)
    }

    pub fn printed(&self) -> Value {
        let column = |(name, kind, path): &(_, _, _)| json!({"name": name, "type": kind, "jsonPath": path});
        self.columns.iter().map(column).collect()
    }
}

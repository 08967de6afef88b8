//! The structural schemas of our kinds, generated from the Rust types.
//!
//! One schema of a kind serves everything: the CustomResourceDefinition holds it, and [`crate::check`] walks it, so the cluster and
//! `millrace validate` cannot disagree. Kubernetes accepts only *structural* schemas: every node has a type, there are
//! no references, no `oneOf`, and no null. [`structural`] turns what schemars writes into that.

use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::backfill::{BackfillSpec, BackfillStatus};
use crate::pipeline::{PipelineSpec, PipelineStatus};
use crate::savepoint::{SavepointSpec, SavepointStatus};

/// Longest `metadata.name`: it becomes part of pod names, labels and topic names.
pub const OBJECT_NAME_LENGTH_MAX: usize = 40;
/// DNS-1035, as for a Service.
pub const OBJECT_NAME_PATTERN: &str = "^[a-z]([-a-z0-9]*[a-z0-9])?$";

static PIPELINE: LazyLock<Value> = LazyLock::new(|| {
    let about = "A stream-processing pipeline: what it reads, what it does, where the results go.";
    whole(about, schema_of::<PipelineSpec>(), schema_of::<PipelineStatus>())
});

static SAVEPOINT: LazyLock<Value> = LazyLock::new(|| {
    let about = "A consistent copy of all that a pipeline knows, to start a pipeline from.";
    whole(about, schema_of::<SavepointSpec>(), schema_of::<SavepointStatus>())
});

static BACKFILL: LazyLock<Value> = LazyLock::new(|| {
    let about = "History, computed again beside the pipeline that goes on.";
    whole(about, schema_of::<BackfillSpec>(), schema_of::<BackfillStatus>())
});

/// The structural schema of a whole `Pipeline`, without CEL rules.
pub fn pipeline() -> &'static Value {
    &PIPELINE
}

/// The structural schema of a whole `Savepoint`, without CEL rules.
pub fn savepoint() -> &'static Value {
    &SAVEPOINT
}

/// The structural schema of a whole `Backfill`, without CEL rules.
pub fn backfill() -> &'static Value {
    &BACKFILL
}

fn whole(about: &str, spec: Value, status: Value) -> Value {
    json!({
        "description": about,
        "type": "object",
        "required": ["metadata", "spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {
                "type": "object",
                "properties": {
                    "name": {
                        "type": "string",
                        "maxLength": OBJECT_NAME_LENGTH_MAX,
                        "pattern": OBJECT_NAME_PATTERN,
                    },
                },
            },
            "spec": spec,
            "status": status,
        },
    })
}

fn schema_of<T: schemars::JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    structural(settings.into_generator().into_root_schema_for::<T>().to_value())
}

/// Rewrites one schema node and all below it.
fn structural(schema: Value) -> Value {
    let Value::Object(mut node) = schema else {
        // schemars writes `true` where anything goes, which is a type we do not have.
        unreachable!("every type of ours has an object as its schema");
    };
    for key in ["title", "$schema"] {
        node.remove(key);
    }
    unwrap_optional(&mut node);
    merge_variants(&mut node);
    tidy_format(&mut node);
    if node.get("additionalProperties") == Some(&Value::Bool(false)) {
        // Unknown fields are pruned or refused by the server; beside `properties` the keyword is not allowed.
        node.remove("additionalProperties");
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = node.get_mut(key) {
            *child = structural(child.take());
        }
    }
    if let Some(Value::Object(properties)) = node.get_mut("properties") {
        for child in properties.values_mut() {
            *child = structural(child.take());
        }
    }
    if let Some(Value::String(description)) = node.get_mut("description") {
        *description = one_line(description);
    }
    tidy_default(&mut node);
    Value::Object(node)
}

/// `Option<T>` becomes `T`: whether a field may be left out is said by `required`, and null is never a value.
fn unwrap_optional(node: &mut Map<String, Value>) {
    if let Some(Value::Array(choices)) = node.remove("anyOf") {
        for choice in choices {
            if let Value::Object(choice) = choice
                && choice.get("type") != Some(&json!("null"))
            {
                for (key, value) in choice {
                    // The field's own description stands before that of its type.
                    node.entry(key).or_insert(value);
                }
            }
        }
    }
    if let Some(Value::Array(types)) = node.get_mut("type") {
        types.retain(|t| t != "null");
        if let [one] = types.as_slice() {
            let one = one.clone();
            node.insert("type".into(), one);
        }
    }
    if let Some(Value::Array(values)) = node.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
}

/// An enum with documented variants becomes a plain `enum`; their texts go into the description.
fn merge_variants(node: &mut Map<String, Value>) {
    let Some(Value::Array(variants)) = node.remove("oneOf") else { return };
    let mut names = Vec::new();
    let mut text = node.get("description").and_then(Value::as_str).unwrap_or_default().to_owned();
    for variant in variants {
        if variant.get("type") == Some(&json!("null")) {
            continue;
        }
        let undocumented = variant.get("enum").and_then(Value::as_array).cloned().unwrap_or_default();
        names.extend(undocumented);
        if let Some(name) = variant.get("const") {
            let about = variant.get("description").and_then(Value::as_str).unwrap_or_default();
            text.push_str(&format!("\n\n{}: {}", name.as_str().unwrap_or_default(), one_line(about)));
            names.push(name.clone());
        }
    }
    node.insert("type".into(), json!("string"));
    node.insert("enum".into(), Value::Array(names));
    node.insert("description".into(), Value::String(text));
}

/// Kubernetes knows int32 and int64 only; the bounds say the rest.
fn tidy_format(node: &mut Map<String, Value>) {
    let known = match node.get("format").and_then(Value::as_str) {
        Some("uint8" | "uint16" | "int8" | "int16" | "uint32" | "int32") => "int32",
        Some("uint64" | "int64") => "int64",
        _ => return,
    };
    node.insert("format".into(), json!(known));
}

/// "No value" is no default. An object's default is spelt out from those of its fields: the API server asks CEL rules
/// about a default as it stands, without the defaults inside of it, and refuses the whole document if they fail.
fn tidy_default(node: &mut Map<String, Value>) {
    match node.get("default") {
        Some(Value::Object(_)) => {
            let mut default = json!({});
            apply_defaults(&Value::Object(node.clone()), &mut default);
            node.insert("default".into(), default);
        }
        Some(Value::Null) => drop(node.remove("default")),
        _ => {}
    }
}

/// Doc comments are wrapped for the source; `kubectl explain` wraps by itself. Empty lines part paragraphs.
fn one_line(text: &str) -> String {
    let paragraphs: Vec<String> =
        text.split("\n\n").map(|p| p.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    paragraphs.join("\n\n")
}

/// Puts the defaults of the schema into a value, as the API server does before it runs CEL rules.
pub fn apply_defaults(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(object) => {
            if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
                for (name, child) in properties {
                    if let Some(default) = child.get("default")
                        && !object.contains_key(name)
                    {
                        object.insert(name.clone(), default.clone());
                    }
                    if let Some(field) = object.get_mut(name) {
                        apply_defaults(child, field);
                    }
                }
            }
        }
        Value::Array(items) => {
            if let Some(child) = schema.get("items") {
                items.iter_mut().for_each(|item| apply_defaults(child, item));
            }
        }
        _ => {}
    }
}

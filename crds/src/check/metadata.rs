//! The part of `metadata` that a file may hold. The API server owns its schema, so it is not in ours.

use serde_json::Value;

use super::walk;
use crate::kind::Kind;
use crate::mistake::Mistake;
use crate::path::join;

/// Fields of Kubernetes' ObjectMeta. Those that the server writes come along when an object is read back into a file.
const FIELDS: &[&str] = &[
    "name",
    "namespace",
    "labels",
    "annotations",
    "generateName",
    "finalizers",
    "ownerReferences",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
];

pub(super) fn check(kind: &Kind, metadata: Option<&Value>, mistakes: &mut Vec<Mistake>) {
    // Absent, or no mapping: the walk has said so.
    let Some(Value::Object(metadata)) = metadata else { return };
    if !metadata.contains_key("name") {
        let hint = format!("give the {} a name: {}", kind.name, kind.name_is_for);
        mistakes.push(Mistake::new("metadata.name", None, "is required", hint));
    }
    for (name, value) in metadata {
        let path = join("metadata", name);
        match name.as_str() {
            "labels" | "annotations" => check_texts(&path, value, mistakes),
            "namespace" if !value.is_string() => {
                mistakes.push(Mistake::new(path, Some(value), "must be a text", "put it in quotes, or leave it out"));
            }
            name if FIELDS.contains(&name) => {}
            name => mistakes.push(walk::unknown_field(&path, name, value, FIELDS.iter().copied())),
        }
    }
}

fn check_texts(path: &str, value: &Value, mistakes: &mut Vec<Mistake>) {
    match value {
        // kubectl writes an empty map as null.
        Value::Null => {}
        Value::Object(texts) => {
            for (name, text) in texts.iter().filter(|(_, text)| !text.is_string()) {
                mistakes.push(Mistake::new(join(path, name), Some(text), "must be a text", "put it in quotes"));
            }
        }
        other => mistakes.push(Mistake::new(path, Some(other), "must be a mapping", "write 'name: \"text\"' lines")),
    }
}

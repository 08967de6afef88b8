//! The walk of a document along the structural schema.

use serde_json::{Map, Value};

use super::scalar;
use crate::mistake::Mistake;
use crate::path::join;
use crate::unserved::{self, Passes};

/// Below this similarity a name is no likely misspelling.
const SIMILARITY_MIN: f64 = 0.6;
/// More known names than these do not fit into a line.
const KNOWN_NAMES_MAX: usize = 12;

/// A node of the document: where it is, as a path for people and as a pattern of the schema.
pub(super) struct Node<'a> {
    pub path: String,
    pub pattern: String,
    pub value: &'a Value,
}

/// Checks a whole document. `status` is what the operator writes; a file that holds it was read back from a cluster.
pub(super) fn object(schema: &Value, top: &Map<String, Value>, mistakes: &mut Vec<Mistake>) {
    let document = Node { path: String::new(), pattern: String::new(), value: &Value::Null };
    fields(schema, &document, top, mistakes);
}

fn walk(schema: &Value, node: &Node<'_>, mistakes: &mut Vec<Mistake>) {
    if let Some(row) = unserved::find(&node.pattern)
        && !row.passes(node.value)
        && is_known_value(row.passes, schema, node.value)
    {
        mistakes.push(Mistake::new(&node.path, Some(node.value), unserved::MESSAGE, row.hint));
        return;
    }
    if node.value.is_null() {
        let hint = "give it a value, or remove the line to have the default";
        mistakes.push(Mistake::new(&node.path, Some(node.value), "has no value", hint));
        return;
    }
    match (schema["type"].as_str(), node.value) {
        (Some("object"), Value::Object(object)) => fields(schema, node, object, mistakes),
        (Some("array"), Value::Array(items)) => list(schema, node, items, mistakes),
        (Some("object"), _) => mistakes.push(wrong_type(node, "a mapping")),
        (Some("array"), _) => mistakes.push(wrong_type(node, "a list")),
        _ => mistakes.extend(scalar::check(schema, node)),
    }
}

/// Values of an enum that this version does not serve are 'not available'; values that are none at all are not.
fn is_known_value(passes: Passes, schema: &Value, value: &Value) -> bool {
    match passes {
        Passes::Absent => true,
        Passes::Only(_) | Passes::AllBut(_) => schema["enum"].as_array().is_some_and(|values| values.contains(value)),
    }
}

fn fields(schema: &Value, node: &Node<'_>, object: &Map<String, Value>, mistakes: &mut Vec<Mistake>) {
    let empty = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&empty);
    for (name, value) in object {
        let child = Node { path: join(&node.path, name), pattern: join(&node.pattern, name), value };
        match (properties.get(name), schema.get("additionalProperties")) {
            _ if child.pattern == "status" => {}
            (Some(known), _) if child.pattern == "metadata" => metadata_name(known, &child, mistakes),
            (Some(known), _) => walk(known, &child, mistakes),
            (None, Some(known)) => walk(known, &child, mistakes),
            (None, None) if schema["x-kubernetes-preserve-unknown-fields"] == true => {}
            (None, None) => {
                mistakes.push(unknown_field(&child.path, name, value, properties.keys().map(String::as_str)));
            }
        }
    }
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !object.contains_key(name) {
            let about = properties.get(name).and_then(|known| known["description"].as_str()).unwrap_or_default();
            let about = about.split("\n\n").next().unwrap_or_default();
            mistakes.push(Mistake::new(join(&node.path, name), None, "is required", format!("add it: {about}")));
        }
    }
}

/// Our schema of `metadata` has only its name; the rest is checked against Kubernetes' own list.
fn metadata_name(schema: &Value, node: &Node<'_>, mistakes: &mut Vec<Mistake>) {
    match node.value.get("name") {
        Some(value) => {
            let name = Node { path: join(&node.path, "name"), pattern: join(&node.pattern, "name"), value };
            walk(&schema["properties"]["name"], &name, mistakes);
        }
        None if node.value.is_object() => {}
        None => mistakes.push(wrong_type(node, "a mapping")),
    }
}

pub(super) fn unknown_field<'n>(
    path: &str,
    name: &str,
    value: &Value,
    known: impl Iterator<Item = &'n str> + Clone,
) -> Mistake {
    let hint = match nearest(name, known.clone()) {
        Some(nearest) => format!("did you mean '{nearest}'?"),
        None => format!("remove it; known fields are {}", listed(known)),
    };
    Mistake::new(path, Some(value), "unknown field", hint)
}

/// The known name that a mistyped one most likely means.
pub(super) fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let plain = |text: &str| text.to_lowercase().replace(['_', '-'], "");
    let typed = plain(name);
    known
        .map(|known| (strsim::normalized_damerau_levenshtein(&typed, &plain(known)), known))
        .filter(|(similarity, _)| *similarity >= SIMILARITY_MIN)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, known)| known)
}

fn listed<'n>(known: impl Iterator<Item = &'n str>) -> String {
    let mut names: Vec<&str> = known.take(KNOWN_NAMES_MAX + 1).collect();
    if names.len() > KNOWN_NAMES_MAX {
        names[KNOWN_NAMES_MAX] = "…";
    }
    names.join(", ")
}

fn list(schema: &Value, node: &Node<'_>, items: &[Value], mistakes: &mut Vec<Mistake>) {
    let limit = |key: &str| schema[key].as_u64();
    if let Some(min) = limit("minItems").filter(|min| (items.len() as u64) < *min) {
        let message = format!("must have at least {min} {}", if min == 1 { "item" } else { "items" });
        mistakes.push(Mistake::new(&node.path, Some(node.value), message, "add one"));
    }
    if let Some(max) = limit("maxItems").filter(|max| items.len() as u64 > *max) {
        let message = format!("has {} items, and may have at most {max}", items.len());
        mistakes.push(Mistake::new(&node.path, Some(node.value), message, "remove some"));
    }
    for (i, value) in items.iter().enumerate() {
        let child = Node { path: format!("{}[{i}]", node.path), pattern: format!("{}[]", node.pattern), value };
        walk(&schema["items"], &child, mistakes);
    }
    match schema["x-kubernetes-list-type"].as_str() {
        Some("map") => {
            let keys = schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten();
            let keys: Vec<&str> = keys.filter_map(Value::as_str).collect();
            let suffix = format!(".{}", keys.last().unwrap_or(&""));
            duplicates(node, items, &|item| keys.iter().map(|key| item.get(*key)).collect(), &suffix, mistakes);
        }
        Some("set") => duplicates(node, items, &|item| Some(vec![item]), "", mistakes),
        _ => {}
    }
}

/// Items with equal keys; a mistake points to the last of the keys.
fn duplicates<'v>(
    node: &Node<'_>,
    items: &'v [Value],
    keys: &dyn Fn(&'v Value) -> Option<Vec<&'v Value>>,
    suffix: &str,
    mistakes: &mut Vec<Mistake>,
) {
    let mut seen = std::collections::BTreeMap::new();
    for (i, item) in items.iter().enumerate() {
        let Some(keys) = keys(item) else { continue };
        let key = keys.iter().map(ToString::to_string).collect::<Vec<_>>();
        if let Some(first) = seen.get(&key) {
            let message = format!("is the same as in {}[{first}]", node.path);
            let path = format!("{}[{i}]{suffix}", node.path);
            mistakes.push(Mistake::new(path, keys.last().copied(), message, "rename one of the two, or remove it"));
        } else {
            seen.insert(key, i);
        }
    }
}

pub(super) fn wrong_type(node: &Node<'_>, expected: &str) -> Mistake {
    let found = match node.value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_f64() => "a number with a fraction",
        Value::Number(number) if !number.is_i64() => "beyond 64 bits",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    };
    let hint = match (expected, node.value) {
        ("a text", Value::Number(_) | Value::Bool(_)) => format!("put it in quotes: \"{}\"", node.value),
        ("a whole number" | "a boolean", Value::String(_)) => "write it without quotes".to_owned(),
        ("a list", _) => "write a list: [a, b], or lines that begin with '- '".to_owned(),
        ("a mapping", _) => "write a mapping: {name: value}, or indented 'name: value' lines".to_owned(),
        _ => format!("write {expected}"),
    };
    Mistake::new(&node.path, Some(node.value), format!("must be {expected}, and is {found}"), hint)
}

//! The shape check: a document in, a [`Pipeline`], a [`Savepoint`] or a [`Backfill`], or **all** of its mistakes out.
//!
//! It walks the schema that the cluster's CustomResourceDefinition holds ([`crate::schema`]), then asks the Rust twins of
//! its CEL rules ([`crate::rules`]), so that what passes here passes `kubectl apply`. It is stricter in two points where
//! the server is silent: a field that the schema does not know is a mistake (the server drops it), and so is `null` (the
//! server drops it or takes the default). And it judges SLOs ([`slo`]), which takes more arithmetic than CEL has.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::backfill::Backfill;
use crate::kind::{self, Kind};
pub use crate::mistake::Mistake;
use crate::pipeline::{API_VERSION, Pipeline};
use crate::rules::Twin;
use crate::savepoint::Savepoint;
use crate::schema;

mod metadata;
mod scalar;
mod slo;
mod walk;

/// Reads a `Pipeline`, or says everything that is wrong with its shape.
pub fn parse(document: &Value) -> Result<Pipeline, Vec<Mistake>> {
    parse_as(&kind::PIPELINE, document)
}

/// Reads a `Savepoint`, or says everything that is wrong with its shape.
pub fn parse_savepoint(document: &Value) -> Result<Savepoint, Vec<Mistake>> {
    parse_as(&kind::SAVEPOINT, document)
}

/// Reads a `Backfill`, or says everything that is wrong with its shape.
pub fn parse_backfill(document: &Value) -> Result<Backfill, Vec<Mistake>> {
    parse_as(&kind::BACKFILL, document)
}

fn parse_as<T: DeserializeOwned>(kind: &Kind, document: &Value) -> Result<T, Vec<Mistake>> {
    let Value::Object(top) = document else {
        let hint = format!("begin it with 'apiVersion: {API_VERSION}' and 'kind: {}'", kind.name);
        return Err(vec![Mistake::new("", Some(document), "must be a mapping", hint)]);
    };
    let mut mistakes = Vec::new();
    check_kind(kind, top, &mut mistakes);
    metadata::check(kind, top.get("metadata"), &mut mistakes);
    walk::object((kind.schema)(), top, &mut mistakes);

    let mut defaulted = document.clone();
    schema::apply_defaults((kind.schema)(), &mut defaulted);
    check_rules(kind, &defaulted, &mut mistakes);
    slo::check(&defaulted, &mut mistakes);
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    read(defaulted)
}

/// What an edit of a `Pipeline` may not change, given both documents; each of them has passed [`parse`].
pub fn parse_edit(old: &Value, new: &Value) -> Vec<Mistake> {
    edit_as(&kind::PIPELINE, old, new)
}

/// What an edit of a `Backfill` may not change.
pub fn parse_backfill_edit(old: &Value, new: &Value) -> Vec<Mistake> {
    edit_as(&kind::BACKFILL, old, new)
}

/// What an edit of a `Savepoint` may not change.
pub fn parse_savepoint_edit(old: &Value, new: &Value) -> Vec<Mistake> {
    edit_as(&kind::SAVEPOINT, old, new)
}

fn edit_as(kind: &Kind, old: &Value, new: &Value) -> Vec<Mistake> {
    let [mut old, mut new] = [old.clone(), new.clone()];
    schema::apply_defaults((kind.schema)(), &mut old);
    schema::apply_defaults((kind.schema)(), &mut new);
    let mut mistakes = Vec::new();
    for rule in kind.rules {
        let Twin::Edit(holds) = rule.twin else { continue };
        for at in rule.at {
            // Edit rules are about single objects, so one old object belongs to one new one.
            let mut before = None;
            crate::path::each_object(&old, at, &mut |_, object| before = Some(object));
            crate::path::each_object(&new, at, &mut |path, after| {
                if before.is_some_and(|before| !holds(before, after)) {
                    mistakes.push(broken(rule, path, after));
                }
            });
        }
    }
    mistakes
}

fn check_kind(kind: &Kind, top: &Map<String, Value>, mistakes: &mut Vec<Mistake>) {
    for (field, expected) in [("apiVersion", API_VERSION), ("kind", kind.name)] {
        match top.get(field) {
            Some(found) if found == expected => {}
            Some(found) => {
                let message = format!("must be {expected}");
                mistakes.push(Mistake::new(field, Some(found), message, format!("write '{field}: {expected}'")));
            }
            None => mistakes.push(Mistake::new(field, None, "is required", format!("add '{field}: {expected}'"))),
        }
    }
}

fn check_rules(kind: &Kind, document: &Value, mistakes: &mut Vec<Mistake>) {
    // An object that has a mistake of its own already is not asked: a mistyped field would come back as a missing one.
    let known: Vec<String> = mistakes.iter().map(|mistake| mistake.path.clone()).collect();
    let asked = |path: &str| !known.iter().any(|known| is_within(known, path));
    for rule in kind.rules {
        for at in rule.at {
            crate::path::each_object(document, at, &mut |path, object| match rule.twin {
                Twin::Object(holds) => {
                    if asked(path) && !holds(object) {
                        mistakes.push(broken(rule, path, object));
                    }
                }
                Twin::Items { list, holds } => {
                    for (i, item) in object.get(list).and_then(Value::as_array).into_iter().flatten().enumerate() {
                        let path = format!("{path}.{list}[{i}]");
                        if let Value::Object(item) = item
                            && asked(&path)
                            && !holds(object, item)
                        {
                            mistakes.push(broken(rule, &path, item));
                        }
                    }
                }
                Twin::Edit(_) => {}
            });
        }
    }
}

/// Whether a mistake at `known` is about the object at `path` itself or one of its own fields.
fn is_within(known: &str, path: &str) -> bool {
    match known.strip_prefix(path) {
        Some("") => true,
        Some(rest) => rest.starts_with('.') && !rest[1..].contains(['.', '[']),
        None => false,
    }
}

fn broken(rule: &crate::rules::Rule, path: &str, object: &Map<String, Value>) -> Mistake {
    if rule.field.is_empty() {
        let value = Value::Object(object.clone());
        return Mistake::new(path, Some(&value), rule.message, rule.hint);
    }
    Mistake::new(crate::path::join(path, rule.field), object.get(rule.field), rule.message, rule.hint)
}

/// The last step: serde. The walk has found every mistake of shape, so that an error here is a gap of the walk; it is
/// shown all the same.
fn read<T: DeserializeOwned>(document: Value) -> Result<T, Vec<Mistake>> {
    let mut document = document;
    if let Value::Object(top) = &mut document {
        // A status of another version must not keep a file from being checked; nothing here reads it.
        top.remove("status");
    }
    serde_json::from_value(document).map_err(|error| vec![Mistake::new("", None, error.to_string(), "")])
}

//! Paths into a document and into its schema.
//!
//! A *pattern* like `spec.steps[].temporalJoin` names a node of the schema, and with it every node of a document that
//! the schema node describes; `[]` stands for each item of a list. A *path* like `spec.steps[1].temporalJoin` names one.

use serde_json::{Map, Value};

/// `parent.name`, or `parent["name"]` where the name has characters that would be misread.
pub fn join(parent: &str, name: &str) -> String {
    let plain = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-');
    match (plain, parent.is_empty()) {
        (true, true) => name.to_owned(),
        (true, false) => format!("{parent}.{name}"),
        (false, _) => format!("{parent}[{name:?}]"),
    }
}

/// Calls `visit` with every object of the document that the pattern names.
pub fn each_object<'v>(document: &'v Value, pattern: &str, visit: &mut impl FnMut(&str, &'v Map<String, Value>)) {
    let names: Vec<&str> = pattern.split('.').filter(|name| !name.is_empty()).collect();
    descend(document, "", &names, visit);
}

fn descend<'v>(value: &'v Value, path: &str, names: &[&str], visit: &mut impl FnMut(&str, &'v Map<String, Value>)) {
    let Some((name, rest)) = names.split_first() else {
        if let Value::Object(object) = value {
            visit(path, object);
        }
        return;
    };
    let field = name.strip_suffix("[]");
    let Some(child) = value.get(field.unwrap_or(name)) else { return };
    let child_path = join(path, field.unwrap_or(name));
    match (field, child) {
        (None, child) => descend(child, &child_path, rest, visit),
        (Some(_), Value::Array(items)) => {
            for (i, item) in items.iter().enumerate() {
                descend(item, &format!("{child_path}[{i}]"), rest, visit);
            }
        }
        (Some(_), _) => {}
    }
}

/// The schema node that a pattern names.
pub fn schema_node<'s>(schema: &'s mut Value, pattern: &str) -> Option<&'s mut Map<String, Value>> {
    let mut node = schema;
    for name in pattern.split('.').filter(|name| !name.is_empty()) {
        let (name, list) = name.strip_suffix("[]").map_or((name, false), |name| (name, true));
        node = node.get_mut("properties")?.get_mut(name)?;
        if list {
            node = node.get_mut("items")?;
        }
    }
    node.as_object_mut()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pattern_finds_every_object_with_its_path() {
        let document = json!({"spec": {"steps": [{"a": {}}, {"b": {}}, {"a": {"x": 1}}, {"a": 7}]}});
        let mut found = Vec::new();
        each_object(&document, "spec.steps[].a", &mut |path, object| found.push((path.to_owned(), object.len())));
        assert_eq!(found, [("spec.steps[0].a".to_owned(), 0), ("spec.steps[2].a".to_owned(), 1)]);
    }

    #[test]
    fn a_name_that_would_be_misread_is_quoted() {
        assert_eq!(join("metadata.annotations", "millrace.dev/adopt"), "metadata.annotations[\"millrace.dev/adopt\"]");
        assert_eq!(join("", "spec"), "spec");
    }
}

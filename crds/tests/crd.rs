//! What must hold for the CustomResourceDefinition as a document.
#![expect(clippy::disallowed_methods, reason = "golden files are read and, on demand, written")]

use std::collections::BTreeSet;
use std::path::Path;

use millrace_crds::crd::{crd, crd_yaml};
use millrace_crds::{kind, schema};
use serde_json::Value;

/// `kubectl apply` keeps the whole document as an annotation, and Kubernetes takes 262,144 bytes of those. The rest is room
/// to grow.
const SIZE_MAX: usize = 150_000;

/// Every schema node below `node`, with its path.
fn each_node(path: &str, node: &Value, visit: &mut impl FnMut(&str, &Value)) {
    visit(path, node);
    for (name, child) in node["properties"].as_object().into_iter().flatten() {
        each_node(&format!("{path}.{name}"), child, visit);
    }
    for (key, suffix) in [("items", "[]"), ("additionalProperties", ".*")] {
        if let Some(child) = node.get(key) {
            each_node(&format!("{path}{suffix}"), child, visit);
        }
    }
}

fn spec() -> Value {
    schema::pipeline()["properties"]["spec"].clone()
}

/// The specs of all kinds, each with its name.
fn specs() -> impl Iterator<Item = (&'static str, Value)> {
    kind::ALL.into_iter().map(|kind| (kind.singular, (kind.schema)()["properties"]["spec"].clone()))
}

#[test]
fn the_checked_in_documents_are_the_generated_ones() {
    for kind in kind::ALL {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("{}.yaml", kind.definition()));
        let generated = crd_yaml(kind).expect("yaml");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&file, &generated).expect("write the document");
        }
        let checked_in = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(checked_in == generated, "{} is out of date: run with UPDATE=1 and read the diff", file.display());
        let size = crd(kind).to_string().len();
        assert!(size < SIZE_MAX, "{size} bytes");
    }
}

#[test]
fn the_yaml_text_reads_back_as_the_document() {
    for kind in kind::ALL {
        let read: Value = serde_saphyr::from_str(&crd_yaml(kind).expect("yaml")).expect("read");
        assert_eq!(read, crd(kind));
    }
}

#[test]
fn the_schemas_are_structural() {
    for (kind, part) in kind::ALL.into_iter().flat_map(|kind| ["spec", "status"].map(|part| (kind, part))) {
        each_node(part, &(kind.schema)()["properties"][part], &mut |path, node| {
            let node = node.as_object().unwrap_or_else(|| panic!("{path} is {node}"));
            let typed = node.get("type").is_some_and(Value::is_string);
            assert!(typed || node.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)), "{path} has no type");
            for key in ["$ref", "$defs", "anyOf", "oneOf", "allOf", "not", "const", "nullable"] {
                assert!(!node.contains_key(key), "{path} has {key}");
            }
            assert!(node.get("default") != Some(&Value::Null), "{path} has null as its default");
            assert!(!(node.contains_key("properties") && node.contains_key("additionalProperties")), "{path}");
        });
    }
}

#[test]
fn every_field_is_documented_and_says_its_default() {
    for (kind, spec) in specs() {
        each_node(kind, &spec, &mut |path, node| {
            let required: BTreeSet<&str> =
                node["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            for (name, field) in node["properties"].as_object().into_iter().flatten() {
                let text = field["description"].as_str().unwrap_or_default();
                assert!(!text.is_empty(), "{path}.{name} has no description");
                let says_when = ["Default: ", "With ", "Required with ", "Not available in this version"]
                    .iter()
                    .any(|words| text.contains(words));
                let one_of_a_union = ["authentication", "storage", "steps[]"].iter().any(|union| path.ends_with(union));
                assert!(required.contains(name.as_str()) || says_when || one_of_a_union, "{path}.{name}: {text}");
            }
        });
    }
}

#[test]
fn a_documented_default_is_the_default() {
    for (kind, spec) in specs() {
        each_node(kind, &spec, &mut |path, node| {
            let text = node["description"].as_str().unwrap_or_default();
            let plain = match node.get("default") {
                Some(Value::String(default)) => default.clone(),
                Some(Value::Number(default)) => default.to_string(),
                Some(Value::Bool(default)) => default.to_string(),
                _ => return,
            };
            let documented = if plain.is_empty() { "nothing" } else { &plain };
            assert!(text.contains(&format!("Default: {documented}.")), "{path}: {plain}, and: {text}");
        });
    }
}

#[test]
fn every_list_and_every_text_has_a_bound() {
    // The API server refuses a CEL rule whose cost it cannot bound.
    for (kind, spec) in specs() {
        each_node(kind, &spec, &mut |path, node| {
            let annotations = path.ends_with("annotations.*");
            match node["type"].as_str() {
                Some("array") => assert!(node["maxItems"].is_u64(), "{path}"),
                Some("string") => {
                    assert!(annotations || node["maxLength"].is_u64() || node["enum"].is_array(), "{path}");
                }
                _ => {}
            }
        });
    }
}

#[test]
fn the_documented_bounds_hold() {
    let spec = spec();
    let at = |names: &[&str]| names.iter().fold(spec.clone(), |node, name| node[*name].clone());
    assert_eq!(at(&["properties", "steps", "maxItems"]), 64);
    assert_eq!(at(&["properties", "sources", "items", "properties", "columns", "maxItems"]), 500);
    assert_eq!(at(&["properties", "sql", "maxLength"]), 65_536);
    assert_eq!(at(&["properties", "slos", "maxItems"]), 10);
    for list in ["sources", "steps", "sinks", "slos"] {
        assert_eq!(at(&["properties", list, "items", "properties", "name", "maxLength"]), 40, "{list}");
        assert_eq!(at(&["properties", list, "x-kubernetes-list-map-keys"]), serde_json::json!(["name"]), "{list}");
    }
}

#[test]
fn no_key_and_no_value_is_a_boolean_or_null_in_yaml_1_1() {
    // https://yaml.org/type/bool.html and null.html: what kubectl's parser would change when it is not in quotes.
    let traps = ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "~", ""];
    let trap = |text: &str| traps.contains(&text.to_lowercase().as_str());
    for (kind, spec) in specs() {
        each_node(kind, &spec, &mut |path, node| {
            for name in node["properties"].as_object().into_iter().flatten().map(|(name, _)| name) {
                assert!(!trap(name), "{path}.{name}");
            }
            for value in node["enum"].as_array().into_iter().flatten() {
                let value = value.as_str().unwrap_or_else(|| panic!("{path}: {value} is no text"));
                assert!(!trap(value), "{path}: {value}");
            }
        });
    }
}

//! The CustomResourceDefinitions, built from schemas and rules.
//!
//! They are checked in as `crds/<plural>.millrace.dev.yaml`, and a test compares. Plain data is enough: this crate needs no
//! Kubernetes client, and neither do the runtime and the plan compiler, which use it.

use serde_json::{Map, Value, json};

use crate::kind::Kind;
use crate::rules::{Rule, Twin};
use crate::{path, unserved};

/// The whole document.
pub fn crd(kind: &Kind) -> Value {
    let mut schema = (kind.schema)().clone();
    for rule in kind.rules {
        for at in rule.at {
            add_validation(&mut schema, at, validation(rule));
        }
    }
    for row in kind.unserved {
        let validation = json!({
            "rule": row.cel(),
            "message": format!("{}; {}", unserved::MESSAGE, row.hint),
            "fieldPath": format!(".{}", row.field),
        });
        add_validation(&mut schema, row.at, validation);
    }
    let mut subresources = json!({"status": {}});
    if kind.scales {
        subresources["scale"] = json!({
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        });
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.definition()},
        "spec": {
            "group": "millrace.dev",
            "scope": "Namespaced",
            "names": {
                "kind": kind.name,
                "listKind": format!("{}List", kind.name),
                "plural": kind.plural,
                "singular": kind.singular,
                "shortNames": [kind.short_name],
                "categories": ["millrace"],
            },
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "additionalPrinterColumns": kind.printed(),
                "subresources": subresources,
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    })
}

/// The document as it is checked in.
///
/// # Errors
/// None that can occur for this document; the YAML writer's own error is passed on.
pub fn crd_yaml(kind: &Kind) -> Result<String, serde_saphyr::ser::Error> {
    let head = "# Generated from the Rust types of this crate: do not edit. UPDATE=1 cargo test -p millrace-crds rewrites it.\n";
    serde_saphyr::to_string(&crd(kind)).map(|body| format!("{head}{body}"))
}

fn validation(rule: &Rule) -> Value {
    let mut validation = Map::new();
    validation.insert("rule".into(), json!(rule.cel));
    match rule.twin {
        // The server cannot point to an item, so its message names the list.
        Twin::Items { list, .. } => {
            validation.insert("message".into(), json!(format!("{} {}; {}", rule.field, rule.message, rule.hint)));
            validation.insert("fieldPath".into(), json!(format!(".{list}")));
        }
        Twin::Object(_) | Twin::Edit(_) => {
            validation.insert("message".into(), json!(format!("{}; {}", rule.message, rule.hint)));
            if !rule.field.is_empty() {
                validation.insert("fieldPath".into(), json!(format!(".{}", rule.field)));
            }
        }
    }
    Value::Object(validation)
}

fn add_validation(schema: &mut Value, at: &str, validation: Value) {
    let node = path::schema_node(schema, at).expect("a test shows that every rule is about a node of the schema");
    let rules = node.entry("x-kubernetes-validations").or_insert_with(|| json!([]));
    if let Value::Array(rules) = rules {
        rules.push(validation);
    }
}

//! The CustomResourceDefinition, built from the schema and the rules.
//!
//! It is checked in at `crds/pipelines.millrace.dev.yaml`, and a test compares. Plain data is enough: this crate needs no
//! Kubernetes client, and neither do the runtime and the plan compiler, which use it.

use serde_json::{Map, Value, json};

use crate::rules::{RULES, Rule, Twin};
use crate::unserved::{self, UNSERVED};
use crate::{path, schema};

/// Name of the CustomResourceDefinition.
pub const NAME: &str = "pipelines.millrace.dev";

/// The whole document.
pub fn crd() -> Value {
    let mut pipeline = schema::pipeline().clone();
    for rule in RULES {
        for at in rule.at {
            add_validation(&mut pipeline, at, validation(rule));
        }
    }
    for row in UNSERVED {
        let validation = json!({
            "rule": row.cel(),
            "message": format!("{}; {}", unserved::MESSAGE, row.hint),
            "fieldPath": format!(".{}", row.field),
        });
        add_validation(&mut pipeline, row.at, validation);
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": "millrace.dev",
            "scope": "Namespaced",
            "names": {
                "kind": "Pipeline",
                "listKind": "PipelineList",
                "plural": "pipelines",
                "singular": "pipeline",
                "shortNames": ["mrp"],
                "categories": ["millrace"],
            },
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "additionalPrinterColumns": columns(),
                "subresources": {
                    "status": {},
                    "scale": {
                        "specReplicasPath": ".spec.replicas",
                        "statusReplicasPath": ".status.replicas",
                        "labelSelectorPath": ".status.selector",
                    },
                },
                "schema": {"openAPIV3Schema": pipeline},
            }],
        },
    })
}

/// The document as it is checked in.
///
/// # Errors
/// None that can occur for this document; the YAML writer's own error is passed on.
pub fn crd_yaml() -> Result<String, serde_saphyr::ser::Error> {
    let head = "# Generated from the Rust types of this crate: do not edit. UPDATE=1 cargo test -p millrace-crds rewrites it.\n";
    serde_saphyr::to_string(&crd()).map(|body| format!("{head}{body}"))
}

/// What `kubectl get pipelines` shows.
fn columns() -> Value {
    let column = |name: &str, kind: &str, path: &str| json!({"name": name, "type": kind, "jsonPath": path});
    json!([
        column("Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status"),
        column("Phase", "string", ".status.phase"),
        column("Desired", "integer", ".status.desiredReplicas"),
        column("Ready-Pods", "integer", ".status.readyReplicas"),
        column("Lag", "string", ".status.lag"),
        column("Age", "date", ".metadata.creationTimestamp"),
        column("Message", "string", ".status.message"),
    ])
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

//! A user's pod template over ours.

use serde_json::Value;

use crate::settings::Allow;

/// Lists whose items are told apart by a field, as in Kubernetes' own strategic merge; other lists are replaced.
const KEYS: &[(&str, &str)] = &[
    ("containers", "name"),
    ("initContainers", "name"),
    ("volumes", "name"),
    ("env", "name"),
    ("imagePullSecrets", "name"),
    ("volumeMounts", "mountPath"),
    ("ports", "containerPort"),
    ("hostAliases", "ip"),
    ("topologySpreadConstraints", "topologyKey"),
];

/// Merges `theirs` into `ours`: objects field by field, the lists above item by item, everything else replaced.
pub fn merge(ours: &mut Value, theirs: &Value) {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            for (field, theirs) in theirs {
                match (ours.get_mut(field), KEYS.iter().find(|(list, _)| list == field)) {
                    (Some(Value::Array(ours)), Some((_, key))) => merge_items(ours, theirs, key),
                    (Some(ours), _) => merge(ours, theirs),
                    (None, _) => drop(ours.insert(field.clone(), theirs.clone())),
                }
            }
        }
        (ours, theirs) => *ours = theirs.clone(),
    }
}

fn merge_items(ours: &mut Vec<Value>, theirs: &Value, key: &str) {
    for item in theirs.as_array().into_iter().flatten() {
        match ours.iter_mut().find(|own| own[key] == item[key]) {
            Some(own) => merge(own, item),
            None => ours.push(item.clone()),
        }
    }
}

/// What a template asks of the node that the chart does not allow: (path below the template, what to do).
pub fn refusals(template: &Value, allow: Allow) -> Vec<(String, &'static str)> {
    let spec = &template["spec"];
    let mut refused = Vec::new();
    let mut refuse = |path: String, hint| refused.push((path, hint));
    if !allow.host_network {
        for field in ["hostNetwork", "hostPID", "hostIPC"] {
            if spec[field] == true {
                refuse(format!("spec.{field}"), "leave it out, or let the chart allow it: worker.allow.hostNetwork");
            }
        }
    }
    for (i, volume) in spec["volumes"].as_array().into_iter().flatten().enumerate() {
        if !allow.host_path && !volume["hostPath"].is_null() {
            let hint = "use another kind of volume, or let the chart allow it: worker.allow.hostPath";
            refuse(format!("spec.volumes[{i}].hostPath"), hint);
        }
    }
    for list in ["containers", "initContainers"] {
        for (i, container) in spec[list].as_array().into_iter().flatten().enumerate() {
            if !allow.privileged && container["securityContext"]["privileged"] == true {
                let hint = "leave it out, or let the chart allow it: worker.allow.privileged";
                refuse(format!("spec.{list}[{i}].securityContext.privileged"), hint);
            }
        }
    }
    refused
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_template_changes_what_it_names_and_keeps_the_rest() {
        let mut ours = json!({"spec": {
            "containers": [{"name": "worker", "image": "a", "env": [{"name": "WORKER", "value": "1"}]}],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        }});
        merge(
            &mut ours,
            &json!({"spec": {
                "nodeSelector": {"disk": "fast"},
                "tolerations": [{"key": "a"}],
                "containers": [
                    {"name": "worker", "env": [{"name": "TZ", "value": "UTC"}]},
                    {"name": "proxy", "image": "p"},
                ],
                "volumes": [{"name": "extra", "emptyDir": {}}],
            }}),
        );
        let expected = json!({"spec": {
            "containers": [
                {"name": "worker", "image": "a", "env": [{"name": "WORKER", "value": "1"}, {"name": "TZ", "value": "UTC"}]},
                {"name": "proxy", "image": "p"},
            ],
            "volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "extra", "emptyDir": {}}],
            "nodeSelector": {"disk": "fast"},
            "tolerations": [{"key": "a"}],
        }});
        assert_eq!(ours, expected);
    }

    #[test]
    fn what_reaches_into_the_node_is_refused_unless_it_is_allowed() {
        let template = json!({"spec": {
            "hostNetwork": true,
            "hostPID": true,
            "volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "hostPath": {"path": "/"}}],
            "initContainers": [{"name": "c", "securityContext": {"privileged": true}}],
        }});
        let paths: Vec<String> = refusals(&template, Allow::default()).into_iter().map(|(path, _)| path).collect();
        let expected = [
            "spec.hostNetwork",
            "spec.hostPID",
            "spec.volumes[1].hostPath",
            "spec.initContainers[0].securityContext.privileged",
        ];
        assert_eq!(paths, expected);
        let all = Allow { host_path: true, host_network: true, privileged: true };
        assert!(refusals(&template, all).is_empty());
    }
}

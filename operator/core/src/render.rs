//! The objects that a Pipeline stands for, as the fields that the operator owns.
//!
//! Workers are pods of **one StatefulSet** with `OnDelete` and `Parallel`: a pod that is lost comes back under its ordinal
//! while the operator is away, with its volume and its name; and a roll is ours, one pod after another, since a pod is
//! replaced only when it is deleted. What a StatefulSet cannot do, taking away any but the highest ordinal, nobody needs:
//! tasks move, pods don't.

use std::collections::BTreeSet;

use millrace_crds::pipeline::{Credentials, KafkaCluster, PipelineSpec, VolumeType};
use serde_json::{Map, Value, json};

use crate::facts::{Applied, Placed};
use crate::names::{
    ATTEMPT, CONTROL_PORT, METRICS_PORT, Names, PLAN_LABEL, RENDERED, SUBJECT, TEMPLATE_LABEL, WORKER, digest,
};
use crate::settings::Settings;

pub mod template;

const PIPELINE_DIR: &str = "/etc/millrace/pipeline";
const PLAN_DIR: &str = "/etc/millrace/plan";
const SECRETS_DIR: &str = "/etc/millrace/secrets";
const ASSIGNMENT_DIR: &str = "/etc/millrace/assignment";
const CONTROL_DIR: &str = "/etc/millrace/control";
const STATE_DIR: &str = "/var/lib/millrace";
/// A worker gives its tasks back within 20 seconds; see the runtime's own deadline.
const GRACE_SECONDS: u32 = 30;
/// A preflight that has not ended by then is given up and tried again.
const JOB_SECONDS: u32 = 180;
/// The user of our image.
const USER: u32 = 65532;

/// What all objects of a Pipeline are made from.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    pub names: &'a Names,
    pub settings: &'a Settings,
}

/// What the pods of a plan are made from.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    pub spec: &'a PipelineSpec,
    pub version: &'a str,
    /// Of the plan.
    pub fingerprint: &'a str,
    /// Of what is in the Pipeline beside the plan: see [`Source::connection`].
    pub connection: &'a str,
}

impl Source<'_> {
    fn object(&self, api_version: &str, kind: &str, name: &str, component: &str, body: Value) -> Value {
        let mut object = json!({
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {
                "name": name,
                "namespace": self.names.namespace,
                "labels": self.names.labels(component),
                "ownerReferences": [{
                    "apiVersion": millrace_crds::pipeline::API_VERSION,
                    "kind": millrace_crds::pipeline::KIND,
                    "name": self.names.pipeline,
                    "uid": self.names.uid,
                    "controller": true,
                    "blockOwnerDeletion": true,
                }],
            },
        });
        template::merge(&mut object, &body);
        stamped(object)
    }

    pub fn service_account(&self, spec: &PipelineSpec) -> Value {
        let body = json!({
            "metadata": {"annotations": spec.worker.service_account.annotations},
            "automountServiceAccountToken": false,
        });
        self.object("v1", "ServiceAccount", &self.names.service_account(), WORKER, body)
    }

    pub fn service(&self) -> Value {
        let port = |name: &str, port: u16| json!({"name": name, "port": port, "targetPort": name, "protocol": "TCP"});
        let body = json!({"spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": self.names.worker_selector(),
            "ports": [port("metrics", METRICS_PORT), port("control", CONTROL_PORT)],
        }});
        self.object("v1", "Service", &self.names.workers_service(), WORKER, body)
    }

    pub fn disruption_budget(&self) -> Value {
        let body = json!({"spec": {"maxUnavailable": 1, "selector": {"matchLabels": self.names.worker_selector()}}});
        self.object("policy/v1", "PodDisruptionBudget", &self.names.stateful_set(), WORKER, body)
    }

    /// Nobody but the operator reaches the control API; metrics are open to whoever scrapes.
    pub fn network_policy(&self) -> Value {
        let operator = json!({
            "namespaceSelector": {},
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": "millrace", "app.kubernetes.io/component": "operator"}},
        });
        let body = json!({"spec": {
            "podSelector": {"matchLabels": self.names.worker_selector()},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"ports": [{"port": "metrics", "protocol": "TCP"}]},
                {"ports": [{"port": "control", "protocol": "TCP"}], "from": [operator]},
            ],
        }});
        self.object("networking.k8s.io/v1", "NetworkPolicy", &self.names.stateful_set(), WORKER, body)
    }

    /// A plan, under its fingerprint: it never changes.
    pub fn plan(&self, fingerprint: &str, plan: &Value) -> Value {
        let body = json!({"immutable": true, "data": {"plan.json": plan.to_string()}});
        self.object("v1", "ConfigMap", &self.names.plan(fingerprint), "plan", body)
    }

    /// What a worker reads of the Pipeline beside the plan: how its Kafka is reached. Its name holds a digest of it.
    pub fn connection(&self, spec: &Value, annotations: &Value) -> (String, Value) {
        let document = self.document(spec, annotations);
        let digest = digest(&document);
        let body = json!({"immutable": true, "data": {"pipeline.json": document.to_string()}});
        let object = self.object("v1", "ConfigMap", &self.names.connection(&digest), "connection", body);
        (digest, object)
    }

    /// The Pipeline as a document, without what the cluster adds to it. Number of pods and the like are left out, so that
    /// a worker is not replaced for them.
    fn document(&self, spec: &Value, annotations: &Value) -> Value {
        let mut spec = spec.clone();
        if let Value::Object(spec) = &mut spec {
            for field in ["replicas", "worker", "desiredState", "deletionPolicy", "autoscaling", "slos"] {
                spec.remove(field);
            }
        }
        json!({
            "apiVersion": millrace_crds::pipeline::API_VERSION,
            "kind": millrace_crds::pipeline::KIND,
            "metadata": {
                "name": self.names.pipeline,
                "namespace": self.names.namespace,
                "uid": self.names.uid,
                "annotations": annotations,
            },
            "spec": spec,
        })
    }

    pub fn applied(&self, applied: &Applied) -> Value {
        let body = json!({"data": {"applied.json": json!(applied).to_string()}});
        self.object("v1", "ConfigMap", &self.names.applied(), "applied", body)
    }

    pub fn assignment(&self, placed: &Placed) -> Value {
        let assignment = json!(placed.assignment).to_string();
        let body = json!({"data": {"assignment.json": assignment, "placed.json": json!(placed).to_string()}});
        self.object("v1", "ConfigMap", &self.names.assignment(), "assignment", body)
    }

    /// The workers.
    pub fn stateful_set(&self, run: &Run<'_>, replicas: u32) -> Value {
        let mut spec = json!({
            "replicas": replicas,
            "serviceName": self.names.workers_service(),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": self.names.worker_selector()},
            "template": self.worker_template(run),
        });
        let volume = &run.spec.worker.state.volume;
        if volume.kind == VolumeType::Persistent {
            let mut claim = json!({
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": volume.size}},
            });
            if let Some(class) = &volume.storage_class_name {
                claim["storageClassName"] = json!(class);
            }
            spec["volumeClaimTemplates"] = json!([{"metadata": {"name": "state"}, "spec": claim}]);
            // State is in the changelog: a volume without a worker only costs money.
            spec["persistentVolumeClaimRetentionPolicy"] = json!({"whenDeleted": "Delete", "whenScaled": "Retain"});
        }
        self.object("apps/v1", "StatefulSet", &self.names.stateful_set(), WORKER, json!({"spec": spec}))
    }

    fn worker_template(&self, run: &Run<'_>) -> Value {
        let worker = &run.spec.worker;
        let mut args = self.arguments("run", run);
        args.extend(
            [
                ("--state", STATE_DIR.to_owned()),
                ("--worker", "$(WORKER)".to_owned()),
                ("--assignment", format!("{ASSIGNMENT_DIR}/assignment.json")),
                ("--metrics", format!("0.0.0.0:{METRICS_PORT}")),
                ("--control", format!("0.0.0.0:{CONTROL_PORT}")),
                ("--control-tls", CONTROL_DIR.to_owned()),
            ]
            .into_iter()
            .flat_map(|(flag, value)| [flag.to_owned(), value]),
        );
        let mut pod = self.pod(run, args);
        let probe = |path: &str, failures: u32| json!({"httpGet": {"path": path, "port": "metrics"}, "periodSeconds": 2, "failureThreshold": failures});
        let port = |name: &str, port: u16| json!({"name": name, "containerPort": port, "protocol": "TCP"});
        template::merge(
            &mut pod,
            &json!({
                "terminationGracePeriodSeconds": GRACE_SECONDS,
                "containers": [{
                    "name": WORKER,
                    "env": [{
                        "name": "WORKER",
                        "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}},
                    }],
                    "ports": [port("metrics", METRICS_PORT), port("control", CONTROL_PORT)],
                    "readinessProbe": probe("/readyz", 2),
                    // It says that the process answers. A task that moves or waits is no reason to kill the others.
                    "livenessProbe": probe("/healthz", 15),
                    "volumeMounts": [
                        {"name": "state", "mountPath": STATE_DIR},
                        {"name": "assignment", "mountPath": ASSIGNMENT_DIR, "readOnly": true},
                        {"name": "control", "mountPath": CONTROL_DIR, "readOnly": true},
                    ],
                }],
                "volumes": [
                    {"name": "assignment", "configMap": {"name": self.names.assignment()}},
                    {"name": "control", "secret": {"secretName": self.names.control()}},
                ],
            }),
        );
        if worker.state.volume.kind == VolumeType::EmptyDir {
            let state = json!({"volumes": [{"name": "state", "emptyDir": {"sizeLimit": worker.state.volume.size}}]});
            template::merge(&mut pod, &state);
        }
        let mut whole = json!({"metadata": {}, "spec": pod});
        if let Some(theirs) = &worker.pod_template {
            template::merge(&mut whole, &Value::Object(theirs.clone()));
        }
        // Ours whatever was merged: services and the operator find pods by them.
        template::merge(&mut whole, &json!({"metadata": {"labels": self.names.labels(WORKER)}}));
        whole["metadata"]["labels"][PLAN_LABEL] = json!(run.fingerprint);
        let of_template = digest(&whole);
        whole["metadata"]["labels"][TEMPLATE_LABEL] = json!(of_template);
        whole
    }

    /// A short Job of the pipeline's own image, with its secrets and its service account.
    pub fn job(&self, component: &str, command: &str, subject: &str, attempt: u32, run: &Run<'_>) -> Value {
        let mut args = self.arguments(command, run);
        args.extend(["--report", "/dev/termination-log"].map(str::to_owned));
        let mut pod = self.pod(run, args);
        template::merge(&mut pod, &json!({"restartPolicy": "Never"}));
        if let Some(theirs) = run.spec.worker.pod_template.as_ref().and_then(|template| template.get("spec")) {
            template::merge(&mut pod, &placement(theirs));
        }
        let name = self.names.job(component, subject, attempt);
        let body = json!({
            "metadata": {"annotations": {SUBJECT: subject, ATTEMPT: attempt.to_string()}},
            "spec": {
                "backoffLimit": 0,
                "activeDeadlineSeconds": JOB_SECONDS,
                "template": {"metadata": {"labels": self.names.labels(component)}, "spec": pod},
            },
        });
        self.object("batch/v1", "Job", &name, component, body)
    }

    fn arguments(&self, command: &str, run: &Run<'_>) -> Vec<String> {
        let flags = [
            ("--log-level", json!(run.spec.worker.log_level).as_str().unwrap_or("info").to_owned()),
            ("--file", format!("{PIPELINE_DIR}/pipeline.json")),
            ("--plan", format!("{PLAN_DIR}/plan.json")),
            ("--secrets", SECRETS_DIR.to_owned()),
            ("--cluster", self.settings.cluster_id.clone()),
        ];
        let flags = flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
        ["millrace", command, "--log-json"].map(str::to_owned).into_iter().chain(flags).collect()
    }

    /// What every pod of ours has. It passes the Pod Security standard `restricted`.
    fn pod(&self, run: &Run<'_>, command: Vec<String>) -> Value {
        let mut mounts = vec![
            json!({"name": "pipeline", "mountPath": PIPELINE_DIR, "readOnly": true}),
            json!({"name": "plan", "mountPath": PLAN_DIR, "readOnly": true}),
            json!({"name": "tmp", "mountPath": "/tmp"}),
        ];
        let mut volumes = vec![
            json!({"name": "pipeline", "configMap": {"name": self.names.connection(run.connection)}}),
            json!({"name": "plan", "configMap": {"name": self.names.plan(run.fingerprint)}}),
            json!({"name": "tmp", "emptyDir": {}}),
        ];
        for (index, secret) in secrets(&run.spec.kafka).into_iter().enumerate() {
            let volume = format!("secret-{index}");
            mounts.push(json!({"name": volume, "mountPath": format!("{SECRETS_DIR}/{secret}"), "readOnly": true}));
            volumes.push(json!({"name": volume, "secret": {"secretName": secret}}));
        }
        json!({
            "serviceAccountName": self.names.service_account(),
            "automountServiceAccountToken": false,
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "imagePullSecrets": self.settings.image.pull_secrets.iter().map(|name| json!({"name": name})).collect::<Vec<_>>(),
            "containers": [{
                "name": WORKER,
                "image": self.settings.image(run.version),
                "imagePullPolicy": self.settings.image.pull_policy,
                "command": command,
                "resources": resources(run.spec, self.settings),
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": mounts,
            }],
            "volumes": volumes,
        })
    }
}

/// What of a pod template decides where a pod may run, and as whom it pulls.
fn placement(theirs: &Value) -> Value {
    let fields =
        ["nodeSelector", "tolerations", "affinity", "imagePullSecrets", "priorityClassName", "runtimeClassName"];
    let kept = fields.into_iter().filter_map(|field| Some((field.to_owned(), theirs.get(field)?.clone())));
    Value::Object(kept.collect::<Map<_, _>>())
}

/// The annotation by which an unchanged object is known.
fn stamped(mut object: Value) -> Value {
    let stamp = digest(&object);
    object["metadata"]["annotations"][RENDERED] = json!(stamp);
    object
}

/// Requests and limits: the spec's, else the chart's, resource by resource.
fn resources(spec: &PipelineSpec, settings: &Settings) -> Value {
    let mut resources = Value::Object(settings.resources.clone());
    let theirs = &spec.worker.resources;
    template::merge(&mut resources, &json!({"requests": theirs.requests, "limits": theirs.limits}));
    resources
}

/// Threads of a worker: as many as the spec says, else one for each CPU that it requests.
pub fn lanes(spec: &PipelineSpec, settings: &Settings) -> u32 {
    if let Some(lanes) = spec.worker.lanes {
        return u32::from(lanes).max(1);
    }
    let cpu = match &resources(spec, settings)["requests"]["cpu"] {
        Value::String(text) => text.clone(),
        Value::Null => return 1,
        number => number.to_string(),
    };
    let millis = match cpu.strip_suffix('m') {
        Some(millis) => millis.parse::<f64>().ok(),
        None => cpu.parse::<f64>().ok().map(|cpus| cpus * 1_000.0),
    };
    // The API server refuses what is no quantity; 64 is the most that the spec can ask for.
    millis.map_or(1, |millis| (millis / 1_000.0).ceil().clamp(1.0, 64.0) as u32)
}

/// The Secrets that a pipeline's pods need.
pub fn secrets(kafka: &KafkaCluster) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    if let Some(tls) = &kafka.tls {
        names.extend(tls.trusted_certificates.iter().map(|c| c.name.clone()));
        names.extend(tls.certificate_and_key.iter().map(|c| c.name.clone()));
    }
    if let Some(auth) = &kafka.authentication {
        let users = [&auth.scram_sha512, &auth.scram_sha256, &auth.plain];
        for Credentials { username, password } in users.into_iter().flatten() {
            names.extend([username.name.clone(), password.name.clone()]);
        }
    }
    names
}

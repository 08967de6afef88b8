//! The objects that a Pipeline stands for, as the fields that the operator owns.
//!
//! Workers are pods of **one StatefulSet** with `OnDelete` and `Parallel`: a pod that is lost comes back under its ordinal
//! while the operator is away, with its volume and its name; and a roll is ours, one pod after another, since a pod is
//! replaced only when it is deleted. What a StatefulSet cannot do, taking away any but the highest ordinal, nobody needs:
//! tasks move, pods don't.

use std::collections::BTreeSet;

use millrace_core::ids::Timeline;
use millrace_crds::pipeline::{Credentials, KafkaCluster, LogLevel, PipelineSpec, Slo, Storage, VolumeType};
use serde_json::{Map, Value, json};

use crate::backfill::Begun;
use crate::facts::{Applied, Placed, Reserved};
use crate::names::{
    ATTEMPT, BACKFILL, CHECK, CLEANUP, COMPONENT_LABEL, CONTROL_PORT, DISCARD, METRICS_PORT, Names, PIPELINE_LABEL,
    PLAN_LABEL, PREFLIGHT, RENDERED, RESTORE, RULES, SAVE, SUBJECT, TEMPLATE_LABEL, VERIFY, WORKER, digest, history,
};
use crate::rules::{self, RulesOf, SloRule};
use crate::settings::{RulesNamespace, Settings};

pub mod backfill;
pub mod template;

const PIPELINE_DIR: &str = "/etc/millrace/pipeline";
const PLAN_DIR: &str = "/etc/millrace/plan";
const SECRETS_DIR: &str = "/etc/millrace/secrets";
const ASSIGNMENT_DIR: &str = "/etc/millrace/assignment";
const CONTROL_DIR: &str = "/etc/millrace/control";
const STATE_DIR: &str = "/var/lib/millrace";
/// What Kubernetes shows of a container that has ended.
const REPORT_FILE: &str = "/dev/termination-log";
/// For a worker that was told to end: so long it works on while others read the state of its tasks, and then it stops.
const GRACE_SECONDS: u64 = 60;
/// A worker gives its tasks back within 20 seconds and ends within 5 more; see the runtime's own deadlines.
const STOP_SECONDS: u64 = 30;
/// A Job that only asks and has not ended by then is given up and tried again.
const JOB_SECONDS: u32 = 180;
/// The same for one that copies data: a terabyte at 50 MB/s.
const DATA_SECONDS: u32 = 6 * 3_600;
/// The key of books in their ConfigMap.
pub const BOOKS: &str = "books.json";
/// API version, kind and plural of what the Prometheus Operator reads rules from.
pub const PROMETHEUS_RULE: (&str, &str, &str) = ("monitoring.coreos.com/v1", "PrometheusRule", "prometheusrules");
const RULES_FILE: &str = "rules.yaml";
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
    pub timeline: Timeline,
}

impl Run<'_> {
    /// What its pods run, as their label says it.
    pub fn history(&self) -> String {
        history(self.fingerprint, self.timeline)
    }
}

/// What a Job is sent for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errand {
    pub component: &'static str,
    /// Of the runtime's command line.
    pub command: &'static [&'static str],
    pub arguments: Vec<String>,
    /// What it is about: another subject is another Job.
    pub subject: String,
    /// After so long it is given up and tried again.
    pub seconds: u32,
}

impl Errand {
    pub fn preflight(subject: String) -> Self {
        Self { component: PREFLIGHT, command: &["preflight"], arguments: Vec::new(), subject, seconds: JOB_SECONDS }
    }

    pub fn cleanup() -> Self {
        let subject = CLEANUP.to_owned();
        Self { component: CLEANUP, command: &["cleanup"], arguments: Vec::new(), subject, seconds: JOB_SECONDS }
    }

    /// Writes a savepoint down whose tasks are all in storage.
    pub fn save(id: &str) -> Self {
        Self::of_savepoint(SAVE, &["savepoint", "write"], vec!["--id".to_owned(), id.to_owned()])
    }

    pub fn discard(id: &str) -> Self {
        Self::of_savepoint(DISCARD, &["savepoint", "delete"], vec!["--id".to_owned(), id.to_owned()])
    }

    pub fn verify(location: &str) -> Self {
        Self::of_savepoint(VERIFY, &["savepoint", "verify"], vec!["--location".to_owned(), location.to_owned()])
    }

    /// Restores, or only looks whether that is possible.
    pub fn restore(location: &str, append: bool, check: bool, subject: String) -> Self {
        let mut arguments = vec!["--savepoint".to_owned(), location.to_owned()];
        arguments.extend(append.then(|| "--append".to_owned()));
        arguments.extend(check.then(|| "--check".to_owned()));
        let component = if check { CHECK } else { RESTORE };
        Self { component, command: &["restore"], arguments, subject, seconds: DATA_SECONDS }
    }

    fn of_savepoint(component: &'static str, command: &'static [&'static str], arguments: Vec<String>) -> Self {
        let subject = digest(&json!(arguments));
        Self { component, command, arguments, subject, seconds: DATA_SECONDS }
    }
}

impl Source<'_> {
    /// An object of the Pipeline's.
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

    /// Rules in the operator's namespace. Owners are of the same one, so that it has none.
    fn rules_about(&self, api_version: &str, kind: &str, body: Value) -> Value {
        let mut object = json!({
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {
                "name": self.names.rules(RulesNamespace::Operator),
                "namespace": self.settings.namespace,
                "labels": self.names.labels_about(RULES),
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
            "podSelector": {
                "matchLabels": {PIPELINE_LABEL: self.names.pipeline},
                "matchExpressions": [{"key": COMPONENT_LABEL, "operator": "In", "values": [WORKER, BACKFILL]}],
            },
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

    /// The Pipeline as a document, without what the cluster adds to it. What a worker takes up while it runs is left out,
    /// and what is none of its business, so that it is not replaced for them.
    fn document(&self, spec: &Value, annotations: &Value) -> Value {
        let mut spec = spec.clone();
        if let Value::Object(spec) = &mut spec {
            // It comes and goes, and the others keep their order: a ConfigMap of one digest has one text.
            spec.shift_remove("restore");
            for field in ["replicas", "worker", "desiredState", "deletionPolicy", "autoscaling", "slos"] {
                spec.remove(field);
            }
            for (field, live) in [("delivery", "commitInterval"), ("state", "ttl")] {
                let Some(Value::Object(object)) = spec.get_mut(field) else { continue };
                object.remove(live);
                if object.is_empty() {
                    spec.remove(field);
                }
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

    /// What is remembered of its Backfills.
    pub fn backfills(&self, begun: &[Begun]) -> Value {
        let body = json!({"data": {"begun.json": json!(begun).to_string()}});
        self.object("v1", "ConfigMap", &self.names.backfills(), "backfills", body)
    }

    /// What was applied, `None` before that; and the timeline that a restore was given.
    pub fn applied(&self, applied: Option<&Applied>, reserved: Option<&Reserved>) -> Value {
        let mut body = json!({"data": {"applied.json": json!(applied).to_string()}});
        if let Some(reserved) = reserved {
            body["data"]["reserved.json"] = json!(json!(reserved).to_string());
        }
        self.object("v1", "ConfigMap", &self.names.applied(), "applied", body)
    }

    pub fn assignment(&self, placed: &Placed) -> Value {
        let assignment = json!(placed.assignment).to_string();
        let body = json!({"data": {"assignment.json": assignment, "placed.json": json!(placed).to_string()}});
        self.object("v1", "ConfigMap", &self.names.assignment(), "assignment", body)
    }

    /// Prometheus' rules about the Pipeline: for any Prometheus, and for the Prometheus Operator.
    pub fn rules(&self, slos: &[Slo], subject: &str) -> [Value; 2] {
        let settings = &self.settings.rules;
        let slos: Vec<SloRule<'_>> = slos.iter().filter_map(SloRule::of).collect();
        let of = RulesOf { namespace: &self.names.namespace, pipeline: &self.names.pipeline, slos: &slos, settings };
        let groups = rules::groups(&of);
        let metadata = json!({"labels": settings.labels, "annotations": {SUBJECT: subject}});
        let object = |(api_version, kind, _): (&str, &str, &str), field: &str, value: Value| {
            let body = json!({"metadata": metadata, field: value});
            match settings.namespace {
                RulesNamespace::Pipeline => {
                    self.object(api_version, kind, &self.names.rules(settings.namespace), RULES, body)
                }
                RulesNamespace::Operator => self.rules_about(api_version, kind, body),
            }
        };
        let map = object(("v1", "ConfigMap", ""), "data", json!({RULES_FILE: groups.to_string()}));
        [map, object(PROMETHEUS_RULE, "spec", groups)]
    }

    /// Digest of what [`Self::rules`] are made from.
    pub fn rules_subject(&self, slos: &[Slo]) -> String {
        digest(&json!([env!("CARGO_PKG_VERSION"), slos, self.settings.rules]))
    }

    /// The books of the SLOs, as text.
    pub fn books(&self, text: &str) -> Value {
        let body = json!({"data": {BOOKS: text}});
        self.object("v1", "ConfigMap", &self.names.slos(), "slos", body)
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
        let theirs = worker.pod_template.as_ref().and_then(|template| template.get("spec"));
        let grace = theirs.and_then(|spec| spec["terminationGracePeriodSeconds"].as_u64()).unwrap_or(GRACE_SECONDS);
        let mut args = self.arguments(&["run"], run);
        args.extend(
            [
                ("--state", STATE_DIR.to_owned()),
                ("--worker", "$(WORKER)".to_owned()),
                ("--assignment", format!("{ASSIGNMENT_DIR}/assignment.json")),
            ]
            .into_iter()
            .chain(control_flags())
            .chain([("--leave-within", grace.saturating_sub(STOP_SECONDS).to_string())])
            .flat_map(|(flag, value)| [flag.to_owned(), value]),
        );
        let mut pod = self.pod(run, args);
        let probe = |path: &str, failures: u32| json!({"httpGet": {"path": path, "port": "metrics"}, "periodSeconds": 2, "failureThreshold": failures});
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
                    "ports": ports(),
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
            template::merge(&mut pod, &json!({"volumes": [state_volume(&worker.state.volume.size)]}));
        }
        let mut whole = json!({"metadata": {}, "spec": pod});
        if let Some(theirs) = &worker.pod_template {
            template::merge(&mut whole, &Value::Object(theirs.clone()));
        }
        // Ours whatever was merged: services and the operator find pods by them.
        template::merge(&mut whole, &json!({"metadata": {"labels": self.names.labels(WORKER)}}));
        whole["metadata"]["labels"][PLAN_LABEL] = json!(run.history());
        let of_template = digest(&whole);
        whole["metadata"]["labels"][TEMPLATE_LABEL] = json!(of_template);
        whole
    }

    /// A Job of the pipeline's own image, with its secrets and its service account.
    pub fn job(&self, errand: &Errand, attempt: u32, run: &Run<'_>) -> Value {
        self.job_with(errand, attempt, run, &json!({}))
    }

    /// The same, with more in its pod.
    pub fn job_with(&self, errand: &Errand, attempt: u32, run: &Run<'_>, more: &Value) -> Value {
        let Errand { component, command, arguments, subject, seconds } = errand;
        let mut args = self.arguments(command, run);
        args.extend(arguments.iter().cloned());
        args.extend(["--report", REPORT_FILE, "--log-level"].map(str::to_owned));
        args.push(log_level(run.spec.worker.log_level));
        let mut pod = self.job_pod(run, args);
        template::merge(&mut pod, &json!({"restartPolicy": "Never"}));
        template::merge(&mut pod, more);
        let name = self.names.job(component, subject, attempt);
        let body = json!({
            "metadata": {"annotations": {SUBJECT: subject, ATTEMPT: attempt.to_string()}},
            "spec": {
                "backoffLimit": 0,
                "activeDeadlineSeconds": seconds,
                "template": {"metadata": {"labels": self.names.labels(component)}, "spec": pod},
            },
        });
        self.object("batch/v1", "Job", &name, component, body)
    }

    /// The pod of a Job, where the template of workers lets it be.
    fn job_pod(&self, run: &Run<'_>, args: Vec<String>) -> Value {
        let mut pod = self.pod(run, args);
        if let Some(theirs) = run.spec.worker.pod_template.as_ref().and_then(|template| template.get("spec")) {
            template::merge(&mut pod, &placement(theirs));
            template::merge(&mut pod, &mounts(theirs));
        }
        pod
    }

    fn arguments(&self, command: &[&str], run: &Run<'_>) -> Vec<String> {
        let flags = [
            ("--file", format!("{PIPELINE_DIR}/pipeline.json")),
            ("--plan", format!("{PLAN_DIR}/plan.json")),
            ("--secrets", SECRETS_DIR.to_owned()),
            ("--cluster", self.settings.cluster_id.clone()),
        ];
        // Releases that know of no restore are asked for none.
        let timeline = (run.timeline > Timeline(1)).then(|| ("--timeline", run.timeline.to_string()));
        let flags = flags.into_iter().chain(timeline).flat_map(|(flag, value)| [flag.to_owned(), value]);
        let command = ["millrace"].iter().chain(command).chain(&["--log-json"]);
        command.map(|word| (*word).to_owned()).chain(flags).collect()
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
        for (index, secret) in secrets(&run.spec.kafka, run.spec.state.storage.as_ref()).into_iter().enumerate() {
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

/// How a pod is asked and told.
fn control_flags() -> [(&'static str, String); 3] {
    [
        ("--metrics", format!("0.0.0.0:{METRICS_PORT}")),
        ("--control", format!("0.0.0.0:{CONTROL_PORT}")),
        ("--control-tls", CONTROL_DIR.to_owned()),
    ]
}

fn ports() -> [Value; 2] {
    let port = |name: &str, port: u16| json!({"name": name, "containerPort": port, "protocol": "TCP"});
    [port("metrics", METRICS_PORT), port("control", CONTROL_PORT)]
}

/// A state that goes with its pod.
fn state_volume(size: &impl serde::Serialize) -> Value {
    json!({"name": "state", "emptyDir": {"sizeLimit": size}})
}

/// What of a pod template decides where a pod may run, and as whom it pulls.
fn placement(theirs: &Value) -> Value {
    let fields =
        ["nodeSelector", "tolerations", "affinity", "imagePullSecrets", "priorityClassName", "runtimeClassName"];
    let kept = fields.into_iter().filter_map(|field| Some((field.to_owned(), theirs.get(field)?.clone())));
    Value::Object(kept.collect::<Map<_, _>>())
}

/// What of a pod template the worker sees of volumes and its environment: the storage may be there. Other containers would
/// keep a Job from its end.
fn mounts(theirs: &Value) -> Value {
    let mut kept = json!({});
    if let Some(volumes) = theirs.get("volumes") {
        kept["volumes"] = volumes.clone();
    }
    let own = theirs["containers"].as_array().into_iter().flatten().find(|container| container["name"] == WORKER);
    let fields = own.into_iter().flat_map(|own| {
        ["volumeMounts", "env", "envFrom"]
            .into_iter()
            .filter_map(|field| Some((field.to_owned(), own.get(field)?.clone())))
    });
    let fields: Map<String, Value> = fields.collect();
    if !fields.is_empty() {
        kept["containers"] = json!([{"name": WORKER}]);
        template::merge(&mut kept["containers"][0], &Value::Object(fields));
    }
    kept
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

/// As `--log-level` takes it.
pub fn log_level(level: LogLevel) -> String {
    json!(level).as_str().unwrap_or_default().to_owned()
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
pub fn secrets(kafka: &KafkaCluster, storage: Option<&Storage>) -> BTreeSet<String> {
    let storage = storage.and_then(Storage::credentials);
    let mut names: BTreeSet<String> = storage.into_iter().map(|credentials| credentials.name.clone()).collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_sees_the_volumes_of_its_worker_and_has_no_other_container() {
        let mount = json!([{"name": "shared", "mountPath": "/savepoints"}]);
        let volumes = json!([{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}]);
        let worker = json!({"name": WORKER, "image": "other", "volumeMounts": mount});
        let theirs = json!({"nodeSelector": {"a": "b"}, "volumes": volumes, "containers": [{"name": "proxy"}, worker]});
        let expected = json!({"volumes": volumes, "containers": [{"name": WORKER, "volumeMounts": mount}]});
        assert_eq!(mounts(&theirs), expected);
        assert_eq!(mounts(&json!({"containers": [{"name": "proxy"}]})), json!({}));
    }
}

//! Names of the objects that belong to a Pipeline, their labels and annotations.

use millrace_core::ids::Timeline;
use serde_json::{Value, json};

use crate::settings::RulesNamespace;

/// The manager of every field that the operator sets, for server-side apply.
pub const FIELD_MANAGER: &str = "millrace-operator";
/// The manager of `replicas` where the operator chooses them.
pub const AUTOSCALER: &str = "millrace-autoscaler";
/// Says which Pipeline an object belongs to.
pub const PIPELINE_LABEL: &str = "millrace.dev/pipeline";
/// Says which one of that name: what a former Pipeline has left is none of ours.
pub const UID_LABEL: &str = "millrace.dev/pipeline-uid";
/// Say which Pipeline an object in the operator's namespace is about.
pub const ABOUT_NAMESPACE_LABEL: &str = "millrace.dev/about-namespace";
pub const ABOUT_PIPELINE_LABEL: &str = "millrace.dev/about-pipeline";
/// What an object is for.
pub const COMPONENT_LABEL: &str = "app.kubernetes.io/component";
/// Digest of the pod template that a pod was made from.
pub const TEMPLATE_LABEL: &str = "millrace.dev/template";
/// The plan and the timeline that a pod runs: [`history`].
pub const PLAN_LABEL: &str = "millrace.dev/plan";
/// Digest of what was rendered; an object that has it needs no write.
pub const RENDERED: &str = "millrace.dev/rendered";
/// How often a Job was tried before.
pub const ATTEMPT: &str = "millrace.dev/attempt";
/// What a Job or a ConfigMap is about.
pub const SUBJECT: &str = "millrace.dev/subject";
/// What a pod's volumes should show. A change makes the kubelet look at once instead of within its minute.
pub const SHOWN: &str = "millrace.dev/shown";
/// When certificates are to be made anew.
pub const RENEW_AFTER: &str = "millrace.dev/renew-after";
/// Keeps a Pipeline or a Savepoint until what it owns outside of the cluster is gone.
pub const FINALIZER: &str = "millrace.dev/cleanup";

pub const WORKER: &str = "worker";
/// Of Prometheus' rules.
pub const RULES: &str = "rules";
/// What Jobs are for. Short, since Kubernetes cuts their names.
pub const PREFLIGHT: &str = "preflight";
pub const CLEANUP: &str = "cleanup";
/// Writes a savepoint down once its tasks are cut.
pub const SAVE: &str = "save";
/// Deletes the files of a savepoint.
pub const DISCARD: &str = "discard";
/// Looks at a savepoint that was imported.
pub const VERIFY: &str = "verify";
/// Whether a savepoint can be restored.
pub const CHECK: &str = "check";
pub const RESTORE: &str = "restore";
/// Computes history again.
pub const BACKFILL: &str = "backfill";
/// Deletes what a backfill had in Kafka.
pub const TIDY: &str = "tidy";

pub const METRICS_PORT: u16 = 9464;
pub const CONTROL_PORT: u16 = 9465;
/// The name that every worker's certificate has: pods are reached by their addresses.
pub const WORKER_HOST: &str = "worker.millrace";

/// The names of one Pipeline's objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    pub namespace: String,
    pub pipeline: String,
    pub uid: String,
}

impl Names {
    pub fn stateful_set(&self) -> String {
        self.pipeline.clone()
    }

    pub fn workers_service(&self) -> String {
        format!("{}-workers", self.pipeline)
    }

    pub fn service_account(&self) -> String {
        format!("{}-worker", self.pipeline)
    }

    pub fn applied(&self) -> String {
        format!("{}-applied", self.pipeline)
    }

    pub fn assignment(&self) -> String {
        format!("{}-assignment", self.pipeline)
    }

    /// The books of its SLOs.
    pub fn slos(&self) -> String {
        format!("{}-slos", self.pipeline)
    }

    /// Prometheus' rules about it. A namespace has no dot in its name, so that no two Pipelines share one; and no object of
    /// ours has one but these. It has 110 characters at most, and may have 253.
    pub fn rules(&self, place: RulesNamespace) -> String {
        match place {
            RulesNamespace::Pipeline => format!("{}-rules", self.pipeline),
            RulesNamespace::Operator => format!("{}.{}-rules", self.namespace, self.pipeline),
        }
    }

    /// What is remembered of its Backfills.
    pub fn backfills(&self) -> String {
        format!("{}-backfills", self.pipeline)
    }

    /// What the pods of one read of it.
    pub fn backfill(&self, subject: &str) -> String {
        format!("{}-backfill-{subject}", self.pipeline)
    }

    pub fn plan(&self, fingerprint: &str) -> String {
        format!("{}-plan-{fingerprint}", self.pipeline)
    }

    pub fn connection(&self, digest: &str) -> String {
        format!("{}-connection-{digest}", self.pipeline)
    }

    /// Certificates of the workers; in their pods.
    pub fn control(&self) -> String {
        format!("{}-control", self.pipeline)
    }

    /// The authority of the control API and the operator's own certificate; in no pod.
    pub fn control_ca(&self) -> String {
        format!("{}-control-ca", self.pipeline)
    }

    pub fn pod(&self, ordinal: u32) -> String {
        format!("{}-{ordinal}", self.pipeline)
    }

    /// Kubernetes cuts the names of Jobs at 63 characters, so digests are short.
    pub fn job(&self, component: &str, digest: &str, attempt: u32) -> String {
        format!("{}-{component}-{}-{attempt}", self.pipeline, &digest[..digest.len().min(8)])
    }

    /// Labels of every object.
    pub fn labels(&self, component: &str) -> Value {
        json!({
            "app.kubernetes.io/name": "millrace",
            "app.kubernetes.io/instance": self.pipeline,
            "app.kubernetes.io/managed-by": "millrace",
            COMPONENT_LABEL: component,
            PIPELINE_LABEL: self.pipeline,
            UID_LABEL: self.uid,
        })
    }

    /// Labels of an object in the operator's namespace. None says that it belongs to a Pipeline: who looks for what does
    /// would take it for one of a Pipeline of that namespace.
    pub fn labels_about(&self, component: &str) -> Value {
        json!({
            "app.kubernetes.io/name": "millrace",
            "app.kubernetes.io/instance": self.pipeline,
            "app.kubernetes.io/managed-by": "millrace",
            COMPONENT_LABEL: component,
            ABOUT_NAMESPACE_LABEL: self.namespace,
            ABOUT_PIPELINE_LABEL: self.pipeline,
        })
    }

    /// Selects the worker pods.
    pub fn worker_selector(&self) -> Value {
        json!({PIPELINE_LABEL: self.pipeline, COMPONENT_LABEL: WORKER})
    }
}

/// What pods run, as their label says it: a plan on a timeline. Pods of one do not mix with those of another.
pub fn history(fingerprint: &str, timeline: Timeline) -> String {
    match timeline {
        Timeline(..=1) => fingerprint.to_owned(),
        timeline => format!("{fingerprint}-t{timeline}"),
    }
}

/// 16 hexadecimal digits for a value; equal values give equal digits.
pub fn digest(value: &Value) -> String {
    let mut sorted = value.clone();
    sorted.sort_all_objects();
    millrace_core::report::hex(millrace_core::fingerprint::fnv1a(sorted.to_string().as_bytes()))
}

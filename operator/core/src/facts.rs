//! What of the observed objects a decision is about.

use std::collections::BTreeMap;

use millrace_core::assignment::Assignment;
use millrace_core::report::{CleanupReport, PreflightReport, WorkerReport};
use millrace_crds::check::{self, Mistake};
use millrace_crds::pipeline::{Pipeline, PipelineStatus};
use millrace_crds::timestamp::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::names::{
    ATTEMPT, CLEANUP, COMPONENT_LABEL, FINALIZER, Names, PLAN_LABEL, PREFLIGHT, SUBJECT, TEMPLATE_LABEL, UID_LABEL,
    WORKER,
};
use crate::observed::Observed;

/// What was applied last: the operator's memory, in a ConfigMap. A spec that came later and is not valid, or whose state
/// does not fit, changes nothing of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Applied {
    /// The generation of the spec.
    pub generation: i64,
    pub spec: Value,
    /// Grows with each plan.
    pub plan: u64,
    pub fingerprint: String,
    pub state_fingerprint: String,
    /// State fingerprints of earlier plans whose state this one takes up.
    #[serde(default)]
    pub accepts: Vec<String>,
    /// The runtime's version.
    pub version: String,
}

/// The assignment, and what it was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Placed {
    /// Of the plan.
    pub fingerprint: String,
    /// Tasks of each stage.
    pub stages: BTreeMap<String, i32>,
    /// Workers 0 to below it have tasks.
    pub workers: u32,
    /// All that the assignment was to drain has come out. Only what is written down here counts: that there are no pods
    /// does not mean that no row waits.
    #[serde(default)]
    pub drained: bool,
    #[serde(skip)]
    pub assignment: Option<Assignment>,
}

/// A value that is kept in an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept<T> {
    pub value: T,
    pub resource_version: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    pub ordinal: u32,
    pub ready: bool,
    pub ending: bool,
    /// Digest of the template that it was made from.
    pub template: String,
    /// Fingerprint of the plan that it runs.
    pub plan: String,
    pub shown: String,
    pub address: Option<String>,
    /// Why it does not run: what its container said when it ended, or why it could not be started.
    pub trouble: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    pub name: String,
    pub uid: String,
    pub component: String,
    pub subject: String,
    pub attempt: u32,
    pub ending: bool,
    pub end: Option<JobEnd>,
    /// Why it does not start.
    pub trouble: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct JobEnd {
    pub at: Timestamp,
    pub succeeded: bool,
    /// What its container wrote.
    pub message: String,
}

/// Everything about one Pipeline.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    pub observed: &'a Observed,
    pub names: Names,
    pub generation: i64,
    pub resource_version: String,
    pub deleted_at: Option<Timestamp>,
    pub finalizers: Vec<String>,
    /// The spec, or all that is wrong with its shape.
    pub parsed: Result<Pipeline, Vec<Mistake>>,
    pub status: PipelineStatus,
    pub applied: Option<Kept<Applied>>,
    pub placed: Option<Kept<Placed>>,
    pub stateful_set: Option<Kept<StatefulSet>>,
    pub pods: Vec<Pod>,
    pub jobs: Vec<Job>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatefulSet {
    pub replicas: u32,
    pub template: String,
    /// Fingerprint of the plan that its pods run.
    pub plan: String,
    /// It shall have no pods, and its controller says that it has none. A cache of pods may not know of all.
    pub stopped: bool,
}

impl<'a> Facts<'a> {
    pub fn of(observed: &'a Observed) -> Self {
        let pipeline = &observed.pipeline;
        let metadata = &pipeline["metadata"];
        let names = Names {
            namespace: text(&metadata["namespace"]),
            pipeline: text(&metadata["name"]),
            uid: text(&metadata["uid"]),
        };
        let own = Own { observed, uid: &names.uid };
        let job_pods = own.of_kind("Pod").filter(|pod| component(pod) != WORKER).collect::<Vec<_>>();
        let mut pods: Vec<Pod> = own.of_kind("Pod").filter(|p| component(p) == WORKER).filter_map(pod).collect();
        pods.sort_by_key(|pod| pod.ordinal);
        Self {
            generation: metadata["generation"].as_i64().unwrap_or_default(),
            resource_version: text(&metadata["resourceVersion"]),
            deleted_at: metadata["deletionTimestamp"].as_str().and_then(Timestamp::parse),
            finalizers: texts(&metadata["finalizers"]),
            parsed: check::parse(pipeline),
            status: serde_json::from_value(pipeline["status"].clone()).unwrap_or_default(),
            applied: own.kept(&names.applied(), "applied.json"),
            placed: own.placed(&names),
            stateful_set: own.stateful_set(&names),
            pods,
            jobs: own.of_kind("Job").map(|j| job(j, &job_pods)).collect(),
            observed,
            names,
        }
    }

    /// All of its objects.
    pub fn children(&self) -> impl Iterator<Item = &'a Value> {
        let uid = self.names.uid.clone();
        self.observed.children.iter().filter(move |object| object["metadata"]["labels"][UID_LABEL] == uid.as_str())
    }

    /// The object of a kind with a name.
    pub fn child(&self, kind: &str, name: &str) -> Option<&'a Value> {
        self.children().find(|object| object["kind"] == kind && object["metadata"]["name"] == name)
    }

    /// Whether something is left of a former Pipeline of this name.
    pub fn has_former(&self) -> bool {
        let uid = |object: &'a Value| object["metadata"]["labels"][UID_LABEL].as_str();
        self.observed.children.iter().filter_map(uid).any(|uid| uid != self.names.uid)
    }

    pub fn report(&self, worker: u32) -> Option<&'a WorkerReport> {
        self.observed.reports.get(&worker)
    }

    pub fn assignment(&self) -> Option<&Assignment> {
        self.placed.as_ref()?.value.assignment.as_ref()
    }

    /// The pods that have not been told to end, each with its worker's report.
    pub fn workers(&self) -> impl Iterator<Item = (&Pod, Option<&'a WorkerReport>)> {
        self.pods.iter().filter(|pod| !pod.ending).map(|pod| (pod, self.report(pod.ordinal)))
    }

    /// Whether pods of another plan than this one may be there.
    pub fn runs_other(&self, fingerprint: &str) -> bool {
        let set = self.stateful_set.as_ref().is_some_and(|set| set.value.replicas > 0 && set.value.plan != fingerprint);
        set || self.pods.iter().any(|pod| pod.plan != fingerprint)
    }

    pub fn held(&self) -> bool {
        self.finalizers.iter().any(|name| name == FINALIZER)
    }

    /// The last attempt.
    pub fn preflight(&self, subject: &str) -> Option<&Job> {
        let about = self.jobs.iter().filter(|job| job.component == PREFLIGHT && job.subject == subject && !job.ending);
        about.max_by_key(|job| job.attempt)
    }

    pub fn cleanup(&self) -> Option<&Job> {
        self.jobs.iter().filter(|job| job.component == CLEANUP && !job.ending).max_by_key(|job| job.attempt)
    }
}

impl Job {
    pub fn preflight_report(&self) -> Option<PreflightReport> {
        serde_json::from_str(&self.end.as_ref()?.message).ok()
    }

    pub fn cleanup_report(&self) -> Option<CleanupReport> {
        serde_json::from_str(&self.end.as_ref()?.message).ok()
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(text).collect()
}

fn component(object: &Value) -> &str {
    object["metadata"]["labels"][COMPONENT_LABEL].as_str().unwrap_or_default()
}

/// The objects of the Pipeline with a uid.
struct Own<'a> {
    observed: &'a Observed,
    uid: &'a str,
}

impl Own<'_> {
    fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Value> {
        let own = self.observed.children.iter().filter(|object| object["metadata"]["labels"][UID_LABEL] == self.uid);
        own.filter(move |object| object["kind"] == kind)
    }

    /// What a ConfigMap holds under a key. One that cannot be read is as good as lost: what was in it is found anew.
    fn kept<T: DeserializeOwned>(&self, name: &str, key: &str) -> Option<Kept<T>> {
        let map = self.of_kind("ConfigMap").find(|map| map["metadata"]["name"] == name)?;
        let value = serde_json::from_str(map["data"][key].as_str()?).ok()?;
        Some(Kept { value, resource_version: text(&map["metadata"]["resourceVersion"]) })
    }

    fn placed(&self, names: &Names) -> Option<Kept<Placed>> {
        let mut placed: Kept<Placed> = self.kept(&names.assignment(), "placed.json")?;
        placed.value.assignment = Some(self.kept(&names.assignment(), "assignment.json")?.value);
        Some(placed)
    }

    fn stateful_set(&self, names: &Names) -> Option<Kept<StatefulSet>> {
        let set = self.of_kind("StatefulSet").find(|set| set["metadata"]["name"] == names.stateful_set().as_str())?;
        let replicas = set["spec"]["replicas"].as_u64().unwrap_or(1) as u32;
        let labels = &set["spec"]["template"]["metadata"]["labels"];
        let (status, generation) = (&set["status"], set["metadata"]["generation"].as_i64());
        let observed = generation.is_some() && status["observedGeneration"].as_i64() >= generation;
        let stopped = replicas == 0 && observed && status["replicas"].as_u64().unwrap_or_default() == 0;
        let (template, plan) = (text(&labels[TEMPLATE_LABEL]), text(&labels[PLAN_LABEL]));
        let resource_version = text(&set["metadata"]["resourceVersion"]);
        Some(Kept { value: StatefulSet { replicas, template, plan, stopped }, resource_version })
    }
}

fn pod(pod: &Value) -> Option<Pod> {
    let metadata = &pod["metadata"];
    let name = text(&metadata["name"]);
    let ordinal = name.rsplit_once('-')?.1.parse().ok()?;
    let conditions = pod["status"]["conditions"].as_array();
    let ready = conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True");
    Some(Pod {
        ordinal,
        ready,
        uid: text(&metadata["uid"]),
        resource_version: text(&metadata["resourceVersion"]),
        ending: metadata["deletionTimestamp"].is_string(),
        template: text(&metadata["labels"][TEMPLATE_LABEL]),
        plan: text(&metadata["labels"][PLAN_LABEL]),
        shown: text(&metadata["annotations"][crate::names::SHOWN]),
        address: pod["status"]["podIP"].as_str().map(str::to_owned),
        trouble: if ready { None } else { trouble(pod) },
        name,
    })
}

/// Why the first container of a pod does not run.
fn trouble(pod: &Value) -> Option<String> {
    let container = &pod["status"]["containerStatuses"][0];
    let ended = [&container["state"]["terminated"], &container["lastState"]["terminated"]];
    let said = ended.into_iter().find_map(|ended| {
        let said = ended["message"].as_str().map(last_words).filter(|said| !said.is_empty());
        let code = ended["exitCode"].as_i64().filter(|code| *code != 0)?;
        let reason = ended["reason"].as_str().unwrap_or("Error");
        Some(said.unwrap_or_else(|| format!("the container ended with code {code} ({reason})")))
    });
    let waiting = &container["state"]["waiting"];
    let stuck =
        ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError"];
    if stuck.iter().any(|reason| waiting["reason"] == *reason) {
        return Some(format!("{}: {}", text(&waiting["reason"]), text(&waiting["message"])));
    }
    let unschedulable = pod["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|c| c["type"] == "PodScheduled" && c["status"] == "False");
    said.or_else(|| unschedulable.map(|c| format!("it has no node: {}", text(&c["message"]))))
}

/// The lines of a log's end that are for people: those that say an error, without the word.
fn last_words(message: &str) -> String {
    let lines: Vec<&str> = message.lines().filter_map(|line| line.strip_prefix("error: ")).collect();
    if lines.is_empty() { message.lines().last().unwrap_or_default().to_owned() } else { lines.join("\n") }
}

fn job(job: &Value, pods: &[&Value]) -> Job {
    let metadata = &job["metadata"];
    let name = text(&metadata["name"]);
    let own = pods.iter().find(|pod| pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] == name.as_str());
    let said = own.map(|pod| &pod["status"]["containerStatuses"][0]["state"]["terminated"]);
    let ended = job["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|c| (c["type"] == "Complete" || c["type"] == "Failed") && c["status"] == "True");
    // The Job may be seen to have ended before its pod is: what it said is still to come.
    let ended = ended.filter(|_| said.is_none_or(|terminated| terminated.is_object()));
    let end = ended.map(|condition| JobEnd {
        at: condition["lastTransitionTime"].as_str().and_then(Timestamp::parse).unwrap_or(Timestamp::from_ms(0)),
        succeeded: condition["type"] == "Complete",
        message: said
            .map(|t| text(&t["message"]))
            .filter(|m| !m.is_empty())
            .unwrap_or_else(|| text(&condition["message"])),
    });
    Job {
        uid: text(&metadata["uid"]),
        component: component(job).to_owned(),
        subject: text(&metadata["annotations"][SUBJECT]),
        attempt: metadata["annotations"][ATTEMPT].as_str().and_then(|a| a.parse().ok()).unwrap_or_default(),
        ending: metadata["deletionTimestamp"].is_string(),
        trouble: own.and_then(|pod| trouble(pod)),
        end,
        name,
    }
}

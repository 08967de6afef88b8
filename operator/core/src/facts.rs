//! What of the observed objects a decision is about.

use std::collections::BTreeMap;
use std::ops::Deref;

use millrace_core::assignment::Assignment;
use millrace_core::ids::{Epoch, TaskId, Timeline};
use millrace_core::report::WorkerReport;
use millrace_crds::check::{self, Mistake};
use millrace_crds::pipeline::{Pipeline, PipelineSpec, PipelineStatus};
use millrace_crds::timestamp::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::backfill::{Asked, Begun, asked};
use crate::names::{
    ATTEMPT, COMPONENT_LABEL, FINALIZER, Names, PLAN_LABEL, SUBJECT, TEMPLATE_LABEL, UID_LABEL, WORKER, history,
};
use crate::observed::Observed;
use crate::render::{PROMETHEUS_RULE, Run};
use crate::savepoint::{Saved, savepoints};
use crate::settings::RulesNamespace;

/// The code with which the runtime ends where somebody has to correct something.
const MISTAKES: i32 = 2;

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
    #[serde(default = "first_timeline", skip_serializing_if = "is_first")]
    pub timeline: Timeline,
    /// The restores that were done, the one that this timeline began with last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restored: Vec<Restored>,
    /// The id of the Kafka cluster that it runs on: positions are of no other one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kafka: Option<String>,
    /// The version of the StatefulSet, without pods, over which pods of this plan may start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<String>,
}

const fn first_timeline() -> Timeline {
    Timeline(1)
}

fn is_first(timeline: &Timeline) -> bool {
    *timeline == first_timeline()
}

impl Applied {
    /// What its pods run.
    pub fn history(&self) -> String {
        history(&self.fingerprint, self.timeline)
    }

    pub fn run<'a>(&'a self, spec: &'a PipelineSpec, connection: &'a str) -> Run<'a> {
        let Self { version, fingerprint, timeline, .. } = self;
        Run { spec, version, fingerprint, connection, timeline: *timeline }
    }
}

/// A restore that was done: it is not done again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Restored {
    /// Name of the Savepoint.
    pub savepoint: String,
    pub location: String,
    pub attempt: u32,
    pub at: Timestamp,
}

/// The timeline that was given to a restore, before it writes a word: no other one ever gets it, so that one which still
/// runs on somewhere harms nobody.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reserved {
    pub timeline: Timeline,
    /// Digest of what is restored into what.
    pub subject: String,
}

/// The assignment, and what it was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Placed {
    /// What its pods run: [`history`].
    pub fingerprint: String,
    /// Tasks of each stage.
    pub stages: BTreeMap<String, i32>,
    /// How many workers had tasks when no task was on its way to another one, and how many tasks have moved since.
    pub workers: u32,
    #[serde(default)]
    pub moved: u32,
    /// All that the assignment was to drain has come out. Only what is written down here counts: that there are no pods
    /// does not mean that no row waits.
    #[serde(default)]
    pub drained: bool,
    /// The epochs at which tasks were cut for the assignment's savepoint, as their workers said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cut: Vec<(TaskId, Epoch)>,
    #[serde(skip)]
    pub assignment: Option<Assignment>,
}

impl Placed {
    /// Whether a drain has begun and not come to its end.
    pub fn drains(&self) -> bool {
        !self.drained && self.assignment.as_ref().is_some_and(|assignment| assignment.drain)
    }
}

impl Pod {
    /// Whether it may get tasks that another one runs.
    pub fn is_fit(&self) -> bool {
        self.ready && !self.ending
    }
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
    /// What it runs: [`history`].
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
    /// Why it does not start, or does not come to an end.
    pub trouble: Option<String>,
    /// Its pod's.
    pub address: Option<String>,
    /// Its container runs.
    pub runs: bool,
    /// Its container has ended with the code that says that somebody has to correct something.
    pub refused: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct JobEnd {
    pub at: Timestamp,
    pub succeeded: bool,
    /// What its container wrote.
    pub message: String,
}

/// Everything about one Pipeline: what was observed, and what of its objects was [`Read`].
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    pub observed: &'a Observed,
    read: Read,
}

/// What the Pipeline and its objects say, as values.
#[derive(Clone, Debug)]
pub struct Read {
    pub names: Names,
    pub generation: i64,
    pub resource_version: String,
    pub deleted_at: Option<Timestamp>,
    pub finalizers: Vec<String>,
    /// The spec, or all that is wrong with its shape.
    pub parsed: Result<Pipeline, Vec<Mistake>>,
    pub status: PipelineStatus,
    pub applied: Option<Kept<Applied>>,
    pub reserved: Option<Reserved>,
    pub savepoints: Vec<Saved>,
    pub backfills: Vec<Asked>,
    /// Backfills that were begun, the last one last.
    pub begun: Option<Kept<Vec<Begun>>>,
    pub placed: Option<Kept<Placed>>,
    pub stateful_set: Option<Kept<StatefulSet>>,
    pub pods: Vec<Pod>,
    pub jobs: Vec<Job>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatefulSet {
    pub replicas: u32,
    pub template: String,
    /// What its pods run: [`history`].
    pub plan: String,
    /// It shall have no pods, and its controller says that it has none. A cache of pods may not know of all.
    pub stopped: bool,
}

impl Deref for Facts<'_> {
    type Target = Read;

    fn deref(&self) -> &Read {
        &self.read
    }
}

impl Read {
    fn of(observed: &Observed) -> Self {
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
            reserved: own.kept(&names.applied(), "reserved.json").map(|kept| kept.value),
            savepoints: savepoints(&observed.savepoints),
            backfills: asked(&observed.backfills),
            begun: own.kept(&names.backfills(), "begun.json"),
            placed: own.placed(&names),
            stateful_set: own.stateful_set(&names),
            pods,
            jobs: own.of_kind("Job").map(|j| job(j, &job_pods)).collect(),
            names,
        }
    }
}

impl<'a> Facts<'a> {
    pub fn of(observed: &'a Observed) -> Self {
        Self { observed, read: Read::of(observed) }
    }

    /// What was read, for [`Self::over`].
    pub fn into_read(self) -> Read {
        self.read
    }

    /// The facts of an observation that has the Pipeline and the objects which were read before.
    pub fn over(observed: &'a Observed, read: Read) -> Self {
        Self { observed, read }
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

    /// The objects with rules about it, each with whose namespace it is in.
    pub fn rules(&self) -> impl Iterator<Item = (RulesNamespace, &'a Value)> {
        let name = self.names.rules(RulesNamespace::Pipeline);
        let own = ["ConfigMap", PROMETHEUS_RULE.1].map(|kind| self.child(kind, &name));
        let own = own.into_iter().flatten().map(|object| (RulesNamespace::Pipeline, object));
        own.chain(self.observed.rules.iter().map(|object| (RulesNamespace::Operator, object)))
    }

    /// Whether something is left of a former Pipeline of this name.
    pub fn has_former(&self) -> bool {
        let uid = |object: &'a Value| object["metadata"]["labels"][UID_LABEL].as_str();
        self.observed.children.iter().filter_map(uid).any(|uid| uid != self.names.uid)
    }

    pub fn pod(&self, ordinal: u32) -> Option<&Pod> {
        self.pods.iter().find(|pod| pod.ordinal == ordinal)
    }

    pub fn report(&self, worker: u32) -> Option<&'a WorkerReport> {
        self.observed.reports.get(&worker)
    }

    pub fn assignment(&self) -> Option<&Assignment> {
        self.placed.as_ref()?.value.assignment.as_ref()
    }

    /// Whether a worker was told to end, by its pod or by its own word: a node that shuts down tells it alone.
    pub fn leaves(&self, worker: u32) -> bool {
        self.pod(worker).is_some_and(|pod| pod.ending) || self.report(worker).is_some_and(|report| report.leaving)
    }

    /// The pods that have not been told to end, each with its worker's report.
    pub fn workers(&self) -> impl Iterator<Item = (&Pod, Option<&'a WorkerReport>)> {
        self.pods.iter().filter(|pod| !pod.ending).map(|pod| (pod, self.report(pod.ordinal)))
    }

    /// Whether pods that run something else may be there.
    pub fn runs_other(&self, history: &str) -> bool {
        let set = self.stateful_set.as_ref().is_some_and(|set| set.value.replicas > 0 && set.value.plan != history);
        set || self.pods.iter().any(|pod| pod.plan != history)
    }

    pub fn held(&self) -> bool {
        self.finalizers.iter().any(|name| name == FINALIZER)
    }

    /// The last attempt.
    pub fn job(&self, component: &str, subject: &str) -> Option<&Job> {
        let about = self.jobs.iter().filter(|job| job.component == component && job.subject == subject && !job.ending);
        about.max_by_key(|job| job.attempt)
    }
}

impl Job {
    /// What it said, once it has ended: else why it has failed.
    pub fn report<T: DeserializeOwned>(&self) -> Option<Result<T, String>> {
        let end = self.end.as_ref()?;
        Some(serde_json::from_str(&end.message).map_err(|_| end.message.clone()))
    }
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

pub(crate) fn texts(value: &Value) -> Vec<String> {
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
    let own = pods.iter().filter(|pod| pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] == name.as_str());
    // One that was lost has a successor.
    let own = own.max_by_key(|pod| pod["metadata"]["creationTimestamp"].as_str());
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
        address: own.and_then(|pod| pod["status"]["podIP"].as_str().map(str::to_owned)),
        runs: own.is_some_and(|pod| pod["status"]["containerStatuses"][0]["state"]["running"].is_object()),
        refused: own.is_some_and(|pod| {
            let container = &pod["status"]["containerStatuses"][0];
            let states = [&container["state"], &container["lastState"]];
            states.iter().any(|state| state["terminated"]["exitCode"] == MISTAKES)
        }),
        end,
        name,
    }
}

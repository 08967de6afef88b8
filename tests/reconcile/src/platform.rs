//! Kubernetes' own controllers and kubelets, as far as a Pipeline meets them. Each function does at most one thing and says
//! whether it did.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use millrace_core::assignment::Assignment;
use millrace_core::ids::Timeline;
use millrace_core::report::{
    BackfillReport, CleanupReport, PreflightReport, RestoreReport, SavepointReport, cut_digest, hex,
};
use millrace_crds::timestamp::Timestamp;
use millrace_operator_core::names::{
    BACKFILL, CHECK, CLEANUP, COMPONENT_LABEL, DISCARD, PREFLIGHT, RESTORE, SAVE, SHOWN, TIDY, WORKER, history,
};
use millrace_simulator::rng::Rng;
use serde_json::{Value, json};

use crate::api::{Api, label, text};
use crate::operator::SYSTEM;
use crate::oracle::Violation;
use crate::wish::{Fit, NAME, fingerprint, fit};
use crate::worker::{Kafka, Process, ROWS};

const JOB_LABEL: &str = "batch.kubernetes.io/job-name";

/// What runs on nodes.
#[derive(Default)]
pub struct Nodes {
    pub processes: Vec<Process>,
    lives: u64,
    /// Pods whose node cannot be reached: they run on, and no kubelet looks after them.
    pub lost: BTreeSet<String>,
    /// How long a worker may work on after it was told to end.
    pub leave_within_ms: u64,
    /// The annotation at which a pod's volumes were last brought up to date.
    shown: BTreeMap<String, String>,
}

fn is_ending(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

fn owner_reference(object: &Value) -> Value {
    json!([{"kind": object["kind"], "name": text(object, "name"), "uid": text(object, "uid"), "controller": true}])
}

fn owned_by(object: &Value, uid: &str) -> bool {
    object["metadata"]["ownerReferences"][0]["uid"] == uid
}

fn pick<T>(mut items: Vec<T>, rng: &mut Rng) -> Option<T> {
    if items.is_empty() { None } else { Some(items.swap_remove(rng.below(items.len()))) }
}

/// Makes and removes pods of the StatefulSet, one at a time, and counts them.
pub fn stateful_set(api: &mut Api, rng: &mut Rng) -> bool {
    let Some(set) = api.get("StatefulSet", NAME).cloned() else { return false };
    let uid = text(&set, "uid").to_owned();
    let replicas = set["spec"]["replicas"].as_u64().unwrap_or(1);
    let ordinal = |pod: &Value| text(pod, "name").rsplit('-').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    let own: Vec<Rc<Value>> = api.of_kind("Pod").filter(|pod| owned_by(pod, &uid)).cloned().collect();
    let surplus = own.iter().filter(|pod| ordinal(pod) >= replicas && !is_ending(pod)).max_by_key(|pod| ordinal(pod));
    if let Some(pod) = surplus {
        return api.delete("Pod", text(pod, "name"), None).is_ok();
    }
    let free = |n: &u64| api.get("Pod", &format!("{NAME}-{n}")).is_none();
    let missing: Vec<u64> = (0..replicas).filter(free).collect();
    if let Some(ordinal) = pick(missing, rng) {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": set["spec"]["template"]["spec"]});
        pod["metadata"] = set["spec"]["template"]["metadata"].clone();
        pod["metadata"]["name"] = json!(format!("{NAME}-{ordinal}"));
        pod["metadata"]["ownerReferences"] = owner_reference(&set);
        return api.create(pod).is_ok();
    }
    let status = json!({"observedGeneration": set["metadata"]["generation"], "replicas": own.len()});
    let stale = set["status"] != status;
    api.change("StatefulSet", NAME, |set| set["status"] = status);
    stale
}

/// Starts Jobs and writes down how they ended.
pub fn jobs(api: &mut Api, rng: &mut Rng) -> bool {
    let open: Vec<Rc<Value>> =
        api.of_kind("Job").filter(|job| job["status"]["conditions"].is_null()).cloned().collect();
    let Some(job) = pick(open, rng) else { return false };
    let (name, now) = (text(&job, "name").to_owned(), api.now());
    let end = |kind: &str| json!([{"type": kind, "status": "True", "lastTransitionTime": now}]);
    let of_job = |pod: &&Rc<Value>| label(pod, JOB_LABEL) == name;
    let pod = api.of_kind("Pod").find(of_job).cloned();
    let conditions = match pod {
        Some(pod) if pod["status"]["containerStatuses"][0]["state"]["terminated"].is_object() => end("Complete"),
        None if job["status"]["started"] == true => end("Failed"),
        Some(pod)
            if job["spec"]["activeDeadlineSeconds"].as_i64().is_some_and(|most| age_ms(&job, now) > most * 1_000) =>
        {
            return api.delete("Pod", text(&pod, "name"), None).is_ok();
        }
        Some(_) => return false,
        None => {
            let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": job["spec"]["template"]["spec"]});
            pod["metadata"] = job["spec"]["template"]["metadata"].clone();
            pod["metadata"]["name"] = json!(format!("{name}-x"));
            pod["metadata"]["labels"][JOB_LABEL] = json!(name);
            pod["metadata"]["ownerReferences"] = owner_reference(&job);
            let made = api.create(pod).is_ok();
            api.change("Job", &name, |job| job["status"]["started"] = json!(made));
            return made;
        }
    };
    api.change("Job", &name, |job| job["status"]["conditions"] = conditions);
    true
}

fn age_ms(object: &Value, now: Timestamp) -> i64 {
    let since = Timestamp::parse(text(object, "creationTimestamp")).map_or(0, Timestamp::ms);
    now.ms() - since
}

/// Removes what has lost its owner.
pub fn garbage(api: &mut Api, rng: &mut Rng) -> bool {
    let orphan = |object: &&Rc<Value>| {
        let owner = &object["metadata"]["ownerReferences"][0];
        let (kind, name) = (owner["kind"].as_str().unwrap_or_default(), owner["name"].as_str().unwrap_or_default());
        owner.is_object()
            && !is_ending(object)
            && api.get(kind, name).is_none_or(|there| there["metadata"]["uid"] != owner["uid"])
    };
    let orphans: Vec<Rc<Value>> = api.all().filter(orphan).cloned().collect();
    let Some(one) = pick(orphans, rng) else { return false };
    api.delete(one["kind"].as_str().unwrap_or_default(), text(&one, "name"), None).is_ok()
}

/// Removes everything in a namespace that ends.
pub fn namespace(api: &mut Api, rng: &mut Rng) -> bool {
    let inside = |object: &&Rc<Value>| text(object, "namespace") != SYSTEM && !is_ending(object);
    let left: Vec<Rc<Value>> = api.all().filter(inside).cloned().collect();
    let Some(one) = pick(left, rng).filter(|_| api.namespace_ends) else { return false };
    api.delete(one["kind"].as_str().unwrap_or_default(), text(&one, "name"), None).is_ok()
}

/// The text that a mounted object holds, when it is there.
fn mounted(api: &Api, pod: &Value, volume: &str, key: &str) -> Option<String> {
    let volume = pod["spec"]["volumes"].as_array()?.iter().find(|v| v["name"] == volume)?;
    let map = api.get("ConfigMap", volume["configMap"]["name"].as_str()?)?;
    Some(map["data"][key].as_str()?.to_owned())
}

fn all_mounts_are_there(api: &Api, pod: &Value) -> bool {
    pod["spec"]["volumes"].as_array().into_iter().flatten().all(|volume| {
        let (map, secret) = (volume["configMap"]["name"].as_str(), volume["secret"]["secretName"].as_str());
        map.is_none_or(|name| api.get("ConfigMap", name).is_some())
            && secret.is_none_or(|name| api.get("Secret", name).is_some())
    })
}

fn assignment(api: &Api, pod: &Value) -> Option<Assignment> {
    serde_json::from_str(&mounted(api, pod, "assignment", "assignment.json")?).ok()
}

impl Nodes {
    /// The kubelet looks at a pod.
    pub fn kubelet(&mut self, api: &mut Api, kafka: &mut Kafka, rng: &mut Rng) -> Result<bool, Violation> {
        self.processes.retain(|process| {
            let pod = api.get("Pod", &format!("{NAME}-{}", process.ordinal));
            pod.is_some_and(|pod| text(pod, "uid") == process.pod_uid)
        });
        let Some(pod) = pick(api.of_kind("Pod").cloned().collect(), rng) else { return Ok(false) };
        if self.lost.contains(text(&pod, "uid")) {
            return Ok(false);
        }
        if is_ending(&pod) {
            return Ok(self.end(api, &pod));
        }
        let component = label(&pod, COMPONENT_LABEL);
        if component != WORKER {
            return run_job(api, kafka, &pod, component);
        }
        let at = self.processes.iter().position(|process| process.pod_uid == text(&pod, "uid"));
        match at {
            Some(at) => Ok(self.look_after(at, api, &pod, rng)),
            None if all_mounts_are_there(api, &pod) => self.start(api, &pod).map(|()| true),
            None => Ok(false),
        }
    }

    /// Tells a worker to end. The pod goes when it has, or when its time is over.
    fn end(&mut self, api: &mut Api, pod: &Value) -> bool {
        let (name, uid) = (text(pod, "name"), text(pod, "uid"));
        let over = Timestamp::parse(text(pod, "deletionTimestamp")).is_none_or(|end| end <= api.now());
        let (now_ms, within_ms) = (api.now_ms, self.leave_within_ms);
        match self.processes.iter_mut().find(|process| process.pod_uid == uid && !over) {
            Some(process) => process.tell_to_end(now_ms, within_ms),
            None => {
                self.processes.retain(|process| process.pod_uid != uid);
                api.forget("Pod", name);
                true
            }
        }
    }

    fn start(&mut self, api: &mut Api, pod: &Value) -> Result<(), Violation> {
        let plan = mounted(api, pod, "plan", "plan.json").unwrap_or_default();
        let number =
            serde_json::from_str::<Value>(&plan).ok().and_then(|plan| plan["plan"].as_u64()).unwrap_or_default();
        let fingerprint = fingerprint(number as u32);
        let own = history(&fingerprint, timeline(pod));
        let ordinal = text(pod, "name").rsplit('-').next().and_then(|n| n.parse().ok()).unwrap_or_default();
        if self.processes.iter().any(|other| other.history() != own) {
            return Err(Violation::PlansMixed { worker: ordinal });
        }
        self.lives += 1;
        let file = assignment(api, pod);
        self.processes.push(Process::new(self.lives, text(pod, "uid"), ordinal, (fingerprint, timeline(pod)), file));
        self.shown.insert(text(pod, "uid").to_owned(), shown(pod));
        let address = address(text(pod, "uid"));
        api.change("Pod", text(pod, "name"), |pod| pod["status"]["podIP"] = json!(address));
        Ok(())
    }

    /// Says whether a worker is ready, and shows it what its volumes hold by now.
    fn look_after(&mut self, at: usize, api: &mut Api, pod: &Value, rng: &mut Rng) -> bool {
        let process = &mut self.processes[at];
        let hurry = self.shown.insert(text(pod, "uid").to_owned(), shown(pod)) != Some(shown(pod));
        if hurry || rng.per_mille(50) {
            process.file = assignment(api, pod).or(process.file.take());
        }
        let ready = if process.is_ready() { "True" } else { "False" };
        let conditions = json!([{"type": "Ready", "status": ready}]);
        let stale = pod["status"]["conditions"] != conditions;
        api.change("Pod", text(pod, "name"), |pod| pod["status"]["conditions"] = conditions);
        stale || hurry
    }

    /// The node of a worker is cut off, and with it the worker.
    pub fn lose(&mut self, at: usize) -> String {
        let process = &mut self.processes[at];
        process.reachable = false;
        self.lost.insert(process.pod_uid.clone());
        process.pod_uid.clone()
    }

    /// A container ends, and is started again when the kubelet comes by.
    pub fn kill(&mut self, api: &mut Api, rng: &mut Rng) -> bool {
        if self.processes.is_empty() {
            return false;
        }
        let process = self.processes.swap_remove(rng.below(self.processes.len()));
        api.change("Pod", &format!("{NAME}-{}", process.ordinal), |pod| {
            pod["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
        });
        true
    }
}

/// No other pod has it.
pub fn address(uid: &str) -> String {
    uid.replace("uid-", "10.0.0.")
}

fn shown(pod: &Value) -> String {
    pod["metadata"]["annotations"][SHOWN].as_str().unwrap_or_default().to_owned()
}

/// The value of a flag of a pod's command line.
fn flag(pod: &Value, flag: &str) -> Option<String> {
    let words = pod["spec"]["containers"][0]["command"].as_array()?;
    let at = words.iter().position(|word| word == flag)?;
    words.get(at + 1)?.as_str().map(str::to_owned)
}

fn timeline(pod: &Value) -> Timeline {
    Timeline(flag(pod, "--timeline").and_then(|timeline| timeline.parse().ok()).unwrap_or(1))
}

fn run_job(api: &mut Api, kafka: &mut Kafka, pod: &Value, component: &str) -> Result<bool, Violation> {
    let done = pod["status"]["containerStatuses"][0]["state"]["terminated"].is_object();
    if done || !all_mounts_are_there(api, pod) {
        return Ok(false);
    }
    let running = pod["status"]["podIP"].is_string();
    if component == BACKFILL && (!kafka.answers || !running) {
        let address = address(text(pod, "uid"));
        api.change("Pod", text(pod, "name"), |pod| pod["status"]["podIP"] = json!(address));
        return Ok(!running);
    }
    let said = match (component, kafka.answers) {
        (BACKFILL, _) => json!(compute(kafka, &backfill_of(api, pod))),
        (TIDY, true) => {
            kafka.backfills.remove(backfill_of(api, pod)["metadata"]["name"].as_str().unwrap_or_default());
            json!(CleanupReport::default())
        }
        (PREFLIGHT, true) => json!(PreflightReport {
            stages: kafka.stages(),
            highest_generation: kafka.highest,
            newest_plan: kafka.newest_plan.clone(),
            ..PreflightReport::default()
        }),
        (CLEANUP, true) => {
            let (partitions, answers, storage) = (kafka.partitions, true, std::mem::take(&mut kafka.storage));
            *kafka = Kafka { partitions, answers, storage, ..Kafka::default() };
            json!(CleanupReport { deleted: vec!["p-control".to_owned()], ..CleanupReport::default() })
        }
        (SAVE, true) => json!(save(kafka, &flag(pod, "--id").unwrap_or_default(), plan_number(api, pod))),
        (DISCARD, true) => {
            let id = flag(pod, "--id").unwrap_or_default();
            kafka.storage.parts.remove(&id);
            kafka.storage.written.remove(&location(&id));
            json!(SavepointReport::default())
        }
        (CHECK, true) => json!(restore(kafka, pod, plan_number(api, pod), true)?),
        (RESTORE, true) => json!(restore(kafka, pod, plan_number(api, pod), false)?),
        // All reports have their errors in one place.
        _ => json!(PreflightReport { errors: vec!["the brokers do not answer".to_owned()], ..Default::default() }),
    };
    let terminated = json!({"exitCode": 0, "message": said.to_string()});
    api.change("Pod", text(pod, "name"), |pod| {
        pod["status"]["containerStatuses"] = json!([{"state": {"terminated": terminated}}]);
    });
    Ok(true)
}

/// The Backfill that a pod reads.
fn backfill_of(api: &Api, pod: &Value) -> Value {
    mounted(api, pod, "backfill", "backfill.json").and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// Which one it is, whatever of it may change.
pub fn backfill_key(object: &Value) -> String {
    format!("{} {}", text(object, "name"), object["spec"]["range"]["to"])
}

/// Computes all of it, unless that was done under its name; and the pipeline takes it.
fn compute(kafka: &mut Kafka, backfill: &Value) -> BackfillReport {
    let done = kafka.backfills.insert(text(backfill, "name").to_owned(), true);
    if done != Some(true) {
        *kafka.computed.entry(backfill_key(backfill)).or_default() += 1;
        kafka.repairs.rows_in += ROWS;
        kafka.repairs.rows_out += ROWS;
    }
    BackfillReport { records: ROWS, rows: ROWS, computed: true, taken: true, ..BackfillReport::default() }
}

/// The number of the plan that a pod mounts.
fn plan_number(api: &Api, pod: &Value) -> u32 {
    let plan: Option<Value> = mounted(api, pod, "plan", "plan.json").and_then(|plan| serde_json::from_str(&plan).ok());
    plan.and_then(|plan| plan["plan"].as_u64()).unwrap_or_default() as u32
}

fn location(id: &str) -> String {
    format!("file:///savepoints/{id}/savepoint.json")
}

/// Writes a savepoint down, once: what is there already is told again.
fn save(kafka: &mut Kafka, id: &str, plan: u32) -> SavepointReport {
    let parts = kafka.storage.parts.get(id).cloned().unwrap_or_default();
    if let Some(missing) = kafka.tasks().find(|task| !parts.contains_key(task)) {
        return SavepointReport {
            errors: vec![format!("nothing is there of {missing}")],
            ..SavepointReport::default()
        };
    }
    let location = location(id);
    let (plan, parts) = kafka.storage.written.entry(location.clone()).or_insert((plan, parts)).clone();
    SavepointReport {
        location,
        cut: cut_digest(&parts.iter().map(|(task, part)| (task.clone(), part.epoch)).collect()),
        state_fingerprint: hex(u64::from(plan / 2)),
        plan: u64::from(plan),
        ..SavepointReport::default()
    }
}

/// Fills a timeline that no task has written yet.
fn restore(kafka: &mut Kafka, pod: &Value, plan: u32, check: bool) -> Result<RestoreReport, Violation> {
    let refused = |error: &str| Ok(RestoreReport { errors: vec![error.to_owned()], ..RestoreReport::default() });
    let (timeline, location) = (timeline(pod), flag(pod, "--savepoint").unwrap_or_default());
    let Some((of, parts)) = kafka.storage.written.get(&location).cloned() else {
        return refused("there is no savepoint");
    };
    if fit(of, plan) != Fit::Kept {
        return refused("the state does not fit");
    }
    if kafka.used.contains(&timeline) {
        return refused("the timeline was written already");
    }
    if check {
        return Ok(RestoreReport::default());
    }
    let volumes = pod["spec"]["volumes"].to_string();
    if let Some((_, other)) = kafka.restored.insert(timeline, (location, volumes.clone()))
        && other != volumes
        && !kafka.forgot
    {
        return Err(Violation::TimelineShared { timeline });
    }
    kafka.progress.retain(|(of, _), _| *of != timeline);
    kafka.progress.extend(parts.into_iter().map(|(task, part)| ((timeline, task), part)));
    Ok(RestoreReport::default())
}

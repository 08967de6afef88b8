//! Kubernetes' own controllers and kubelets, as far as a Pipeline meets them. Each function does at most one thing and says
//! whether it did.

use std::collections::BTreeMap;
use std::rc::Rc;

use millrace_core::assignment::Assignment;
use millrace_core::report::{CleanupReport, PreflightReport};
use millrace_crds::timestamp::Timestamp;
use millrace_operator_core::names::{CLEANUP, COMPONENT_LABEL, PREFLIGHT, SHOWN};
use millrace_simulator::rng::Rng;
use serde_json::{Value, json};

use crate::api::{Api, label, text};
use crate::oracle::Violation;
use crate::wish::{NAME, fingerprint};
use crate::worker::{Kafka, Process};

const JOB_LABEL: &str = "batch.kubernetes.io/job-name";

/// What runs on nodes.
#[derive(Default)]
pub struct Nodes {
    pub processes: Vec<Process>,
    lives: u64,
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
        Some(pod) if age_ms(&job, now) > 180_000 => {
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
    let left: Vec<Rc<Value>> = api.all().filter(|object| !is_ending(object)).cloned().collect();
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
        let name = text(&pod, "name");
        if is_ending(&pod) {
            self.processes.retain(|process| process.pod_uid != text(&pod, "uid"));
            api.forget("Pod", name);
            return Ok(true);
        }
        let component = label(&pod, COMPONENT_LABEL);
        if component == PREFLIGHT || component == CLEANUP {
            return Ok(run_job(api, kafka, &pod, component));
        }
        let at = self.processes.iter().position(|process| process.pod_uid == text(&pod, "uid"));
        match at {
            Some(at) => Ok(self.look_after(at, api, &pod, rng)),
            None if all_mounts_are_there(api, &pod) => self.start(api, &pod).map(|()| true),
            None => Ok(false),
        }
    }

    fn start(&mut self, api: &mut Api, pod: &Value) -> Result<(), Violation> {
        let plan = mounted(api, pod, "plan", "plan.json").unwrap_or_default();
        let number =
            serde_json::from_str::<Value>(&plan).ok().and_then(|plan| plan["plan"].as_u64()).unwrap_or_default();
        let fingerprint = fingerprint(number as u32);
        let ordinal = text(pod, "name").rsplit('-').next().and_then(|n| n.parse().ok()).unwrap_or_default();
        if self.processes.iter().any(|other| other.fingerprint != fingerprint) {
            return Err(Violation::PlansMixed { worker: ordinal });
        }
        self.lives += 1;
        let file = assignment(api, pod);
        self.processes.push(Process::new(self.lives, text(pod, "uid"), ordinal, fingerprint, file));
        self.shown.insert(text(pod, "uid").to_owned(), shown(pod));
        api.change("Pod", text(pod, "name"), |pod| pod["status"]["podIP"] = json!(format!("10.0.0.{ordinal}")));
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

fn shown(pod: &Value) -> String {
    pod["metadata"]["annotations"][SHOWN].as_str().unwrap_or_default().to_owned()
}

fn run_job(api: &mut Api, kafka: &mut Kafka, pod: &Value, component: &str) -> bool {
    let done = pod["status"]["containerStatuses"][0]["state"]["terminated"].is_object();
    if done || !all_mounts_are_there(api, pod) {
        return false;
    }
    let unreachable = || vec!["the brokers do not answer".to_owned()];
    let message = match (component == PREFLIGHT, kafka.answers) {
        (true, true) => json!(PreflightReport {
            stages: kafka.stages(),
            highest_generation: kafka.highest,
            newest_plan: kafka.newest_plan.clone(),
            ..PreflightReport::default()
        }),
        (true, false) => json!(PreflightReport { errors: unreachable(), ..PreflightReport::default() }),
        (false, true) => {
            let (partitions, answers) = (kafka.partitions, true);
            *kafka = Kafka { partitions, answers, ..Kafka::default() };
            json!(CleanupReport { deleted: vec!["p-control".to_owned()], ..CleanupReport::default() })
        }
        (false, false) => json!(CleanupReport { errors: unreachable(), ..CleanupReport::default() }),
    };
    let terminated = json!({"exitCode": 0, "message": message.to_string()});
    api.change("Pod", text(pod, "name"), |pod| {
        pod["status"]["containerStatuses"] = json!([{"state": {"terminated": terminated}}]);
    });
    true
}

//! What a cluster without nodes lacks: a kubelet, which tells every pod of the operator's that it runs or has ended.
//! And somebody who follows the Pipelines, as `kubectl get --watch` does.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, bail};
use futures::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Client, Resource};
use millrace_core::report::{PreflightReport, TERMINATION_BYTES_MAX};
use millrace_operator_core::names::{COMPONENT_LABEL, PIPELINE_LABEL, PREFLIGHT, WORKER};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::workers::Workers;
use crate::{NAMESPACE, index_of};

/// Pods whose status is written at once.
const AT_ONCE: usize = 16;

/// All who play. They end with the value.
pub struct Fleet {
    tasks: JoinSet<anyhow::Result<()>>,
    pub workers: Arc<Workers>,
    pub pipelines: Arc<Pipelines>,
}

impl Fleet {
    /// Begins to play, on the runtime that this is called on.
    pub fn start(client: &Client, workers: Workers) -> Self {
        let (workers, pipelines) = (Arc::new(workers), Arc::new(Pipelines::default()));
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&workers).serve());
        tasks.spawn(kubelet(Api::namespaced(client.clone(), NAMESPACE), Arc::clone(&workers)));
        tasks.spawn(files(Api::namespaced(client.clone(), NAMESPACE), Arc::clone(&workers)));
        tasks.spawn(follow(crate::pipelines(client), Arc::clone(&pipelines)));
        Self { tasks, workers, pipelines }
    }

    /// Fails when somebody plays no more.
    pub fn check(&mut self) -> anyhow::Result<()> {
        self.tasks.try_join_next().map_or(Ok(()), |ended| ended.context("a player panicked")?)
    }
}

/// What is seen of the Pipelines.
#[derive(Default)]
pub struct Pipelines(Mutex<BTreeMap<String, Seen>>);

#[derive(Clone, Copy, Default)]
struct Seen {
    /// Of the status.
    observed_generation: i64,
    /// This very generation of the spec runs.
    ready: bool,
}

impl Pipelines {
    fn seen(&self) -> MutexGuard<'_, BTreeMap<String, Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, object: &DynamicObject) {
        let (Some(name), generation) = (&object.metadata.name, object.metadata.generation.unwrap_or_default()) else {
            return;
        };
        let status = &object.data["status"];
        let conditions = status["conditions"].as_array();
        let ready = |c: &Value| c["type"] == "Ready" && c["status"] == "True" && c["observedGeneration"] == generation;
        let seen = Seen {
            observed_generation: status["observedGeneration"].as_i64().unwrap_or_default(),
            ready: conditions.into_iter().flatten().any(ready),
        };
        self.seen().insert(name.clone(), seen);
    }

    pub fn ready(&self) -> usize {
        self.seen().values().filter(|seen| seen.ready).count()
    }

    /// The generation that the operator has said something of.
    pub fn observed_generation(&self, name: &str) -> i64 {
        self.seen().get(name).copied().unwrap_or_default().observed_generation
    }
}

/// All objects with some labels as they are, and again whenever they change.
fn applied<K>(api: Api<K>, labels: &'static str) -> impl Stream<Item = K> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let seen = watcher(api, watcher::Config::default().labels(labels)).default_backoff().applied_objects();
    seen.filter_map(|seen| ready(seen.inspect_err(|error| println!("   a watch begins anew: {error}")).ok()))
}

async fn follow(api: Api<DynamicObject>, pipelines: Arc<Pipelines>) -> anyhow::Result<()> {
    applied(api, "").for_each(async |object| pipelines.take(&object)).await;
    bail!("the watch of Pipelines has ended")
}

/// A kubelet shows a changed ConfigMap in the pods that mount it.
async fn files(maps: Api<ConfigMap>, workers: Arc<Workers>) -> anyhow::Result<()> {
    applied(maps, "app.kubernetes.io/component=assignment").for_each(async |map| workers.show(&map)).await;
    bail!("the watch of ConfigMaps has ended")
}

async fn kubelet(pods: Api<Pod>, workers: Arc<Workers>) -> anyhow::Result<()> {
    let seen = applied(pods.clone(), PIPELINE_LABEL).map(Ok::<_, anyhow::Error>);
    let play = move |pod: Pod| {
        let (pods, workers) = (pods.clone(), Arc::clone(&workers));
        async move {
            let Some(status) = next_status(&pod, &workers) else { return Ok(()) };
            let name = pod.metadata.name.unwrap_or_default();
            match pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(&json!({"status": status}))).await {
                // It was deleted meanwhile.
                Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
                outcome => outcome.map(drop).with_context(|| format!("write the status of pod {name}")),
            }
        }
    };
    seen.try_for_each_concurrent(AT_ONCE, play).await?;
    bail!("the watch of pods has ended")
}

/// What a kubelet would write next: that a worker runs, or that a preflight has ended well.
fn next_status(pod: &Pod, workers: &Workers) -> Option<Value> {
    let metadata = &pod.metadata;
    let (phase, address) = match &pod.status {
        Some(status) => (status.phase.as_deref(), status.pod_ip.as_deref()),
        None => (None, None),
    };
    if metadata.deletion_timestamp.is_some() {
        return None;
    }
    match metadata.labels.as_ref()?.get(COMPONENT_LABEL)?.as_str() {
        WORKER if address.is_none() => {
            let (pipeline, worker) = metadata.name.as_ref()?.rsplit_once('-')?;
            let address = workers.address(index_of(pipeline)?, worker.parse().ok()?)?.to_string();
            let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"];
            Some(json!({
                "phase": "Running",
                "podIP": address,
                "podIPs": [{"ip": address}],
                "conditions": conditions.map(|kind| json!({"type": kind, "status": "True"})),
                "containerStatuses": [container(true, &json!({"running": {}}))],
            }))
        }
        PREFLIGHT if phase != Some("Succeeded") => {
            let report = PreflightReport { stages: workers.stages.clone(), ..PreflightReport::default() };
            let message = report.json(TERMINATION_BYTES_MAX);
            let ended = json!({"terminated": {"exitCode": 0, "reason": "Completed", "message": message}});
            Some(json!({"phase": "Succeeded", "containerStatuses": [container(false, &ended)]}))
        }
        _ => None,
    }
}

fn container(ready: bool, state: &Value) -> Value {
    json!({
        "name": WORKER,
        "image": "localhost/millrace",
        "imageID": "",
        "restartCount": 0,
        "ready": ready,
        "started": ready,
        "state": state,
    })
}

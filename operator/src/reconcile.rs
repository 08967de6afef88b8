//! One look at one Pipeline, in five steps: dereference, validate, desired, apply, status. The second and the third are
//! the core's.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::Api;
use millrace_core::report::{CompileRequest, WorkerReport};
use millrace_operator_core::decide::decide;
use millrace_operator_core::decision::{Action, Decision, Event};
use millrace_operator_core::facts::Facts;
use millrace_operator_core::names::{CONTROL_PORT, Names};
use millrace_operator_core::observed::{Admission, Compilation, Observed};
use millrace_operator_core::questions;
use millrace_operator_core::settings::Settings;
use serde_json::{Value, json};
use tokio::sync::mpsc::Sender;
use tokio::task::JoinSet;

use crate::apply::Writer;
use crate::cache::{Cache, Key};
use crate::clock;
use crate::compile::{self, Compiler};
use crate::metrics::Metrics;
use crate::queue::Lane;
use crate::workers::{self, Clients};

/// How often workers are asked how they are.
const OBSERVE: Duration = Duration::from_secs(10);
/// What a routine look takes for new enough: a pod that comes up is asked more often than one that runs.
const FRESH: Duration = Duration::from_secs(1);

/// What is kept of a Pipeline between looks. All of it may be lost.
#[derive(Default)]
struct Memory {
    /// With the uid of the pod: what a former one said is of no use.
    reports: BTreeMap<u32, (String, WorkerReport)>,
    reported: Option<Instant>,
    /// Digest of a pod template, and what the API server said of it.
    admission: Option<(String, Admission)>,
    live_written_ms: Option<i64>,
    /// Who it was, and what its internal topics start with.
    was: Option<(Names, String)>,
}

/// Where a pod's worker is reached.
struct Address {
    uid: String,
    address: String,
}

pub struct Reconciler {
    pub settings: Settings,
    pub cache: Arc<Cache>,
    pub writer: Writer,
    pub compiler: Arc<Compiler>,
    /// Requests of the compiler, for whoever runs them beside the looks.
    pub compilations: Sender<(Key, CompileRequest)>,
    pub clients: Clients,
    pub metrics: Arc<Metrics>,
    memory: Mutex<HashMap<Key, Memory>>,
}

impl Reconciler {
    pub fn new(
        settings: Settings,
        cache: Arc<Cache>,
        writer: Writer,
        compiler: Arc<Compiler>,
        compilations: Sender<(Key, CompileRequest)>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (clients, memory) = (Clients::default(), Mutex::default());
        Self { settings, cache, writer, compiler, compilations, clients, metrics, memory }
    }

    /// Looks at a Pipeline, and says when to look again.
    pub async fn reconcile(&self, key: &Key, lane: Lane) -> anyhow::Result<Option<Duration>> {
        let Some(pipeline) = self.cache.pipeline(key) else {
            self.gone(key).await;
            return Ok(None);
        };
        let observed = self.dereference(key, pipeline, lane).await.inspect_err(|_| self.failed("dereference"))?;
        let facts = Facts::of(&observed);
        let decision = decide(&observed, &self.settings, clock::now());
        self.remember(key, &facts);
        self.apply(&facts, &decision).await.inspect_err(|_| self.failed("apply"))?;
        self.status(key, &facts, &decision).await.inspect_err(|_| self.failed("status"))?;
        let again = decision.again_ms.map(Duration::from_millis);
        let observe = (!facts.pods.is_empty()).then_some(OBSERVE);
        Ok([again, observe].into_iter().flatten().min())
    }

    /// Everything that a decision depends on.
    async fn dereference(&self, key: &Key, pipeline: Value, lane: Lane) -> anyhow::Result<Observed> {
        let mut observed = Observed { pipeline, children: self.cache.children(key), ..Observed::default() };
        let (names, wanted, addresses, deleted) = {
            let facts = Facts::of(&observed);
            let alive = facts.pods.iter().filter(|pod| !pod.ending);
            let addresses: BTreeMap<u32, Address> = alive
                .filter_map(|pod| {
                    let address = format!("{}:{CONTROL_PORT}", pod.address.as_ref()?);
                    Some((pod.ordinal, Address { uid: pod.uid.clone(), address }))
                })
                .collect();
            (facts.names.clone(), questions::secrets(&facts), addresses, facts.deleted_at.is_some())
        };
        let secret = |name: String| {
            let key = Key { namespace: key.namespace.clone(), name: name.clone() };
            (name, self.cache.secret(&key))
        };
        observed.secrets = wanted.into_iter().map(secret).collect();
        observed.reports = self.reports(key, &names, addresses, lane).await;
        observed.live_written_ms = self.with(key, |memory| memory.live_written_ms);
        if deleted {
            observed.namespace_ends = self.namespace_ends(&key.namespace).await?;
            return Ok(observed);
        }
        observed.compilation = self.compilation(key, &observed);
        observed.admission = self.admission(key, &names, &observed).await?;
        Ok(observed)
    }

    /// What the workers say: from a moment ago where a person waits, else asked now.
    async fn reports(
        &self,
        key: &Key,
        names: &Names,
        addresses: BTreeMap<u32, Address>,
        lane: Lane,
    ) -> BTreeMap<u32, WorkerReport> {
        let (known, reported) = self.with(key, |memory| (memory.reports.clone(), memory.reported));
        let age = reported.map(|at| clock::instant().saturating_duration_since(at));
        let new_enough = if lane == Lane::Edit { OBSERVE * 2 } else { FRESH };
        if addresses.is_empty() || age.is_some_and(|age| age < new_enough) {
            let same = |worker: &u32, uid: &str| addresses.get(worker).is_some_and(|address| address.uid == uid);
            let known = known.into_iter().filter(|(worker, (uid, _))| same(worker, uid));
            return known.map(|(worker, (_, report))| (worker, report)).collect();
        }
        let config = match self.writer.client_of(names, key, &self.clients).await {
            Ok(Some(config)) => config,
            Ok(None) => return BTreeMap::new(),
            Err(error) => {
                tracing::warn!(%key, error = format!("{error:#}"), "workers cannot be asked");
                return BTreeMap::new();
            }
        };
        let mut asked = JoinSet::new();
        for (worker, Address { uid, address }) in addresses {
            let config = Arc::clone(&config);
            asked.spawn(async move { (worker, uid, workers::report(config, &address).await) });
        }
        let mut reports = BTreeMap::new();
        for (worker, uid, report) in asked.join_all().await {
            match report {
                Ok(report) => drop(reports.insert(worker, (uid, report))),
                Err(error) => tracing::debug!(%key, worker, error = format!("{error:#}"), "a worker did not answer"),
            }
        }
        self.with(key, |memory| {
            memory.reports = reports.clone();
            memory.reported = Some(clock::instant());
        });
        reports.into_iter().map(|(worker, (_, report))| (worker, report)).collect()
    }

    /// What became of this spec. What was applied is never compiled again.
    fn compilation(&self, key: &Key, observed: &Observed) -> Compilation {
        let facts = Facts::of(observed);
        if facts.parsed.is_err() {
            return Compilation::Pending;
        }
        if let Some(compiled) = questions::compiled_before(&facts) {
            return Compilation::Done(Box::new(compiled));
        }
        let request = compile::request(&observed.pipeline, questions::running_plan(&facts));
        let (compilation, to_be_made) = self.compiler.known(key, &request);
        if to_be_made {
            self.metrics.compilations.inc();
            if self.compilations.try_send((key.clone(), request)).is_err() {
                // There are many; it is asked for again at the next look.
                self.compiler.forget(key);
            }
        }
        compilation
    }

    /// What the API server says of the pods, once for each template.
    async fn admission(&self, key: &Key, names: &Names, observed: &Observed) -> anyhow::Result<Admission> {
        let facts = Facts::of(observed);
        let Some(candidate) = questions::candidate(&facts, &self.settings) else { return Ok(Admission::Untried) };
        let digest = millrace_operator_core::names::digest(&candidate);
        let known = self.with(key, |memory| memory.admission.clone());
        if let Some((_, admission)) = known.filter(|(of, _)| *of == digest) {
            return Ok(admission);
        }
        let said = self.writer.dry_run(names, &candidate).await.context("try the pods out")?;
        let admission = said.map_or(Admission::Accepted, Admission::Refused);
        self.with(key, |memory| memory.admission = Some((digest, admission.clone())));
        Ok(admission)
    }

    async fn namespace_ends(&self, namespace: &str) -> anyhow::Result<bool> {
        let namespaces: Api<Namespace> = Api::all(self.writer.client.clone());
        match namespaces.get_opt(namespace).await {
            Ok(found) => Ok(found.is_none_or(|namespace| namespace.metadata.deletion_timestamp.is_some())),
            // An operator of a single namespace may not look; its writes tell.
            Err(kube::Error::Api(status)) if status.is_forbidden() => Ok(false),
            Err(error) => Err(error).context("look at the namespace"),
        }
    }

    async fn apply(&self, facts: &Facts<'_>, decision: &Decision) -> anyhow::Result<()> {
        let names = &facts.names;
        let owner = json!({
            "apiVersion": millrace_crds::pipeline::API_VERSION,
            "kind": millrace_crds::pipeline::KIND,
            "name": names.pipeline,
            "uid": names.uid,
            "controller": true,
            "blockOwnerDeletion": true,
        });
        for action in &decision.actions {
            self.metrics.writes.with_label_values(&[label(action)]).inc();
            self.writer.act(names, &owner, action, &self.clients).await?;
        }
        Ok(())
    }

    async fn status(&self, key: &Key, facts: &Facts<'_>, decision: &Decision) -> anyhow::Result<()> {
        if let Some(status) = &decision.status {
            self.metrics.writes.with_label_values(&["status"]).inc();
            self.writer.status(&facts.names, status).await?;
            self.with(key, |memory| memory.live_written_ms = Some(clock::now().ms()));
        }
        for event in &decision.events {
            tracing::info!(%key, reason = event.reason, note = event.note, "transition");
            self.metrics.transitions.with_label_values(&[event.reason.as_str()]).inc();
            self.writer.say(&facts.names, event).await;
        }
        Ok(())
    }

    fn remember(&self, key: &Key, facts: &Facts<'_>) {
        if let Ok(pipeline) = &facts.parsed {
            self.with(key, |memory| memory.was = Some((facts.names.clone(), pipeline.prefix())));
        }
    }

    /// The Pipeline is not there any more, and with it all that Kubernetes had of it.
    async fn gone(&self, key: &Key) {
        let memory = self.memory.lock().expect("nobody panics while it holds the lock").remove(key);
        self.compiler.forget(key);
        self.clients.forget(key);
        if let Some((names, prefix)) = memory.and_then(|memory| memory.was) {
            let note = format!(
                "internal topics and groups that start with '{prefix}-' stay, unless they were deleted; applied again, the pipeline goes on where it was"
            );
            self.writer.say(&names, &Event::normal("LeftBehind", note)).await;
        }
    }

    fn failed(&self, step: &str) {
        self.metrics.errors.with_label_values(&[step]).inc();
    }

    fn with<T>(&self, key: &Key, use_it: impl FnOnce(&mut Memory) -> T) -> T {
        let mut memory = self.memory.lock().expect("nobody panics while it holds the lock");
        use_it(memory.entry(key.clone()).or_default())
    }
}

fn label(action: &Action) -> &'static str {
    match action {
        Action::Put { .. } => "put",
        Action::Delete { .. } => "delete",
        Action::Certify(_) => "certify",
        Action::Push { .. } => "push",
        Action::SetFinalizers { .. } => "finalizers",
    }
}

//! One look at one Pipeline, in five steps: dereference, validate, desired, apply, status. The second and the third are
//! the core's.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::Api;
use millrace_core::fingerprint::fnv1a;
use millrace_core::report::{BackfillReport, CompileRequest, WorkerReport};
use millrace_operator_core::autoscale::{History, Terms, sample};
use millrace_operator_core::decide::{decide_alone, decide_on};
use millrace_operator_core::decision::{Action, Decision, Event};
use millrace_operator_core::facts::{Facts, Read};
use millrace_operator_core::names::{BACKFILL, CONTROL_PORT, Names};
use millrace_operator_core::observed::{Admission, Compilation, Observed};
use millrace_operator_core::questions;
use millrace_operator_core::settings::Settings;
use millrace_operator_core::slo::books::{Answer, WRITE_EVERY_MS};
use millrace_operator_core::status::LIVE_EVERY_MS;
use serde_json::{Value, json};
use tokio::sync::mpsc::Sender;
use tokio::task::JoinSet;

use crate::apply::Writer;
use crate::backfills::Backfills;
use crate::cache::{Cache, Key};
use crate::clock;
use crate::compile::{self, Compiler, Question};
use crate::metrics::Metrics;
use crate::queue::Lane;
use crate::slos::Slos;
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
    /// The same by the clock on the wall.
    reported_ms: Option<i64>,
    /// Of the pod that computes a backfill, with its address.
    backfill: Option<(String, BackfillReport)>,
    /// What they said over the last while, where autoscaling is on.
    history: History,
    /// Digest of a pod template, and what the API server said of it.
    admission: Option<(String, Admission)>,
    live_written_ms: Option<i64>,
    /// Who it was, and what its internal topics start with.
    was: Option<(Names, String)>,
    looked_at: bool,
    /// Fingerprint of a plan that was lost, and of which this release makes another one.
    unrecoverable: Option<String>,
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
    /// Questions to the compiler, for whoever puts them beside the looks.
    pub questions: Sender<Question>,
    pub clients: Clients,
    pub metrics: Arc<Metrics>,
    pub slos: Arc<Slos>,
    pub backfills: Arc<Backfills>,
    memory: Mutex<HashMap<Key, Memory>>,
}

impl Reconciler {
    pub fn new(
        settings: Settings,
        cache: Arc<Cache>,
        writer: Writer,
        compiler: Arc<Compiler>,
        questions: Sender<Question>,
        metrics: Arc<Metrics>,
        (slos, backfills): (Arc<Slos>, Arc<Backfills>),
    ) -> Self {
        let (clients, memory) = (Clients::default(), Mutex::default());
        Self { settings, cache, writer, compiler, questions, clients, metrics, slos, backfills, memory }
    }

    /// Looks at a Pipeline, and says when to look again.
    pub async fn reconcile(&self, key: &Key, lane: Lane) -> anyhow::Result<Option<Duration>> {
        let Some(pipeline) = self.cache.pipeline(key) else {
            self.gone(key).await;
            return self.alone(key).await.inspect_err(|_| self.failed("alone"));
        };
        let (observed, read) =
            self.dereference(key, pipeline, lane).await.inspect_err(|_| self.failed("dereference"))?;
        let facts = Facts::over(&observed, read);
        let decision = decide_on(&facts, &self.settings, clock::now());
        self.remember(key, &facts);
        self.apply(&facts.names, &decision).await.inspect_err(|_| self.failed("apply"))?;
        if decision.actions.iter().any(|action| is_books(action, &facts.names)) {
            self.slos.written(key);
        }
        self.status(key, &facts.names, &decision).await.inspect_err(|_| self.failed("status"))?;
        self.backfills.know(key, &observed.backfills, &decision);
        if !self.with(key, |memory| std::mem::replace(&mut memory.looked_at, true)) {
            self.metrics.looked_at.inc();
        }
        let again = decision.again_ms.map(Duration::from_millis);
        let observe = (self.slos.counts(key) || !facts.pods.is_empty()).then_some(OBSERVE);
        Ok([again, observe].into_iter().flatten().min())
    }

    /// Everything that a decision depends on, and what of the objects was read.
    async fn dereference(&self, key: &Key, pipeline: Value, lane: Lane) -> anyhow::Result<(Observed, Read)> {
        let (children, savepoints) = (self.cache.children(key), self.cache.savepoints(key));
        let (backfills, rules) = (self.cache.backfills(key), self.cache.rules(key));
        let objects = Observed { pipeline, children, rules, savepoints, backfills, ..Observed::default() };
        let facts = Facts::of(&objects);
        let version = |name: String| {
            let version = self.cache.secret(&Key { name: name.clone(), ..key.clone() });
            (name, version)
        };
        let secrets = questions::secrets(&facts).into_iter().map(version).collect();
        let live_written_ms =
            self.with(key, |memory| Some(*memory.live_written_ms.get_or_insert_with(|| sometime(key, LIVE_EVERY_MS))));
        let from = match facts.deleted_at {
            None => self.slos.expect(key, &facts, sometime(key, WRITE_EVERY_MS)),
            Some(_) => {
                self.slos.forget(key);
                None
            }
        };
        let (reports, backfill) = self.reports(key, &facts, lane, from).await;
        let (history, reported_ms) = self.with(key, |memory| (memory.history.clone(), memory.reported_ms));
        let slos = self.slos.judge(key).map(|(said, unobserved)| {
            self.metrics.unobserved_slices.inc_by(unobserved);
            said
        });
        let (namespace_ends, compilation, recovered, admission) = if facts.deleted_at.is_some() {
            (self.namespace_ends(&key.namespace).await?, Compilation::default(), None, Admission::default())
        } else {
            let (compilation, recovered) = self.compilation(key, &facts);
            let admission = self.admission(key, &facts, &compilation).await?;
            (false, compilation, recovered, admission)
        };
        let read = facts.into_read();
        let observed = Observed {
            secrets,
            namespace_ends,
            compilation,
            recovered,
            admission,
            reports,
            backfill,
            reported_ms,
            history,
            live_written_ms,
            slos,
            ..objects
        };
        Ok((observed, read))
    }

    /// What the workers say, and the pod of a backfill: from a moment ago where a person waits, else asked now. `from`: the
    /// slice from which on each worker is to tell for the SLOs, if there are any.
    async fn reports(
        &self,
        key: &Key,
        facts: &Facts<'_>,
        lane: Lane,
        from: Option<BTreeMap<u32, i64>>,
    ) -> (BTreeMap<u32, WorkerReport>, Option<BackfillReport>) {
        let computes = facts.jobs.iter().filter(|job| job.component == BACKFILL && !job.ending && job.end.is_none());
        let computes = computes.filter_map(|job| Some(format!("{}:{CONTROL_PORT}", job.address.as_ref()?))).next();
        let addressed = facts.pods.iter().filter_map(|pod| {
            let address = format!("{}:{CONTROL_PORT}", pod.address.as_ref()?);
            Some((pod.ordinal, Address { uid: pod.uid.clone(), address }))
        });
        let addresses: BTreeMap<u32, Address> = addressed.collect();
        let (known, reported) = self.with(key, |memory| (memory.reports.clone(), memory.reported));
        let age = reported.map(|at| clock::instant().saturating_duration_since(at));
        let new_enough = if lane == Lane::Edit { OBSERVE * 2 } else { FRESH };
        if age.is_some_and(|age| age < new_enough) {
            let same = |worker: &u32, uid: &str| addresses.get(worker).is_some_and(|address| address.uid == uid);
            let known = known.into_iter().filter(|(worker, (uid, _))| same(worker, uid));
            let backfill = self.with(key, |memory| memory.backfill.clone());
            let backfill = backfill.filter(|(address, _)| computes.as_ref() == Some(address));
            let reports = known.map(|(worker, (_, report))| (worker, report)).collect();
            return (reports, backfill.map(|(_, report)| report));
        }
        let (asked, asked_ms) = (!addresses.is_empty(), clock::now().ms());
        let (answered, backfill) =
            tokio::join!(self.ask(key, facts, addresses, from.as_ref()), self.ask_backfill(key, facts, computes));
        self.with(key, |memory| memory.backfill.clone_from(&backfill));
        // Nobody answers for a pod that has no address yet.
        let silence = from.into_iter().flatten().map(|(worker, _)| (worker, Answer::Silence));
        let mut answers: BTreeMap<u32, Answer> = silence.collect();
        let mut reports = BTreeMap::new();
        for (worker, (uid, report, answer)) in answered {
            answers.extend(answer.map(|answer| (worker, answer)));
            reports.insert(worker, (uid, report));
        }
        let ready: Vec<u32> = facts.pods.iter().filter(|pod| pod.ready).map(|pod| pod.ordinal).collect();
        let unreachable = ready.iter().filter(|worker| !reports.contains_key(worker)).count();
        self.slos.hear(key, &answers, ready.len(), unreachable);
        let known = reports.clone();
        let reports = reports.into_iter().map(|(worker, (_, report))| (worker, report)).collect();
        if asked {
            let terms = Terms::of(facts, &self.settings);
            self.with(key, |memory| {
                memory.reports = known;
                memory.reported = Some(clock::instant());
                memory.reported_ms = Some(asked_ms);
                match terms {
                    Some(terms) => memory.history.note(sample(facts, &reports, clock::now().ms()), &terms),
                    None => memory.history = History::default(),
                }
            });
        }
        (reports, backfill.map(|(_, report)| report))
    }

    /// What the pod at an address says, if it answers.
    async fn ask_backfill(
        &self,
        key: &Key,
        facts: &Facts<'_>,
        address: Option<String>,
    ) -> Option<(String, BackfillReport)> {
        let address = address?;
        let config = self.writer.client_of(&facts.names, key, &self.clients).await.ok()??;
        match workers::report(config, &address, None).await {
            Ok((report, _)) => Some((address, report.backfill?)),
            Err(error) => {
                tracing::debug!(%key, error = format!("{error:#}"), "the pod of a backfill did not answer");
                None
            }
        }
    }

    /// The workers that answer, each with the uid of its pod.
    async fn ask(
        &self,
        key: &Key,
        facts: &Facts<'_>,
        addresses: BTreeMap<u32, Address>,
        from: Option<&BTreeMap<u32, i64>>,
    ) -> BTreeMap<u32, (String, WorkerReport, Option<Answer>)> {
        if addresses.is_empty() {
            return BTreeMap::new();
        }
        let config = match self.writer.client_of(&facts.names, key, &self.clients).await {
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
            let from = from.and_then(|from| from.get(&worker)).copied();
            asked.spawn(async move { (worker, uid, workers::report(config, &address, from).await) });
        }
        let mut answered = BTreeMap::new();
        for (worker, uid, report) in asked.join_all().await {
            match report {
                Ok((report, answer)) => drop(answered.insert(worker, (uid, report, answer))),
                Err(error) => tracing::debug!(%key, worker, error = format!("{error:#}"), "a worker did not answer"),
            }
        }
        answered
    }

    /// What became of this spec, or first of the one that runs, if its plan was lost. What was applied is never compiled
    /// again otherwise.
    fn compilation(&self, key: &Key, facts: &Facts<'_>) -> (Compilation, Option<Value>) {
        if let Some((fingerprint, pipeline)) = questions::lost_plan(facts)
            && self.with(key, |memory| memory.unrecoverable.as_ref() != Some(&fingerprint))
        {
            match self.asked(key, &compile::request(&pipeline, None)) {
                Compilation::Pending => return (Compilation::Pending, None),
                Compilation::Done(compiled) if compiled.fingerprint == fingerprint => {
                    return (Compilation::Pending, compiled.plan);
                }
                Compilation::Done(_) | Compilation::Failed(_) => {
                    tracing::warn!(%key, fingerprint, "the plan that runs was lost, and this release makes another one");
                    self.with(key, |memory| memory.unrecoverable = Some(fingerprint));
                }
            }
        }
        if facts.parsed.is_err() {
            return (Compilation::Pending, None);
        }
        if let Some(compiled) = questions::compiled_before(facts) {
            self.compiler.forget(key);
            return (Compilation::Done(Box::new(compiled)), None);
        }
        (self.asked(key, &compile::request(&facts.observed.pipeline, questions::running_plan(facts))), None)
    }

    /// What the compiler has answered, which is asked if it was not.
    fn asked(&self, key: &Key, request: &CompileRequest) -> Compilation {
        let (compilation, question) = self.compiler.known(key, request);
        if let Some(question) = question {
            self.metrics.compilations.inc();
            if self.questions.try_send(question).is_err() {
                // There are many; it is asked for again at the next look.
                self.compiler.forget(key);
            }
        }
        compilation
    }

    /// What the API server says of the pods, once for each template; where they stand as they shall be, it has said so.
    async fn admission(&self, key: &Key, facts: &Facts<'_>, compilation: &Compilation) -> anyhow::Result<Admission> {
        let candidate = questions::candidate(facts, compilation, &self.settings);
        let Some(candidate) = candidate else { return Ok(Admission::Untried) };
        if questions::stands(facts, &candidate) {
            return Ok(Admission::Accepted);
        }
        let digest = millrace_operator_core::names::digest(&candidate);
        let known = self.with(key, |memory| memory.admission.clone());
        if let Some((_, admission)) = known.filter(|(of, _)| *of == digest) {
            return Ok(admission);
        }
        let said = self.writer.dry_run(&candidate).await.context("try the pods out")?;
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

    async fn apply(&self, names: &Names, decision: &Decision) -> anyhow::Result<()> {
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

    async fn status(&self, key: &Key, names: &Names, decision: &Decision) -> anyhow::Result<()> {
        if let Some(status) = &decision.status {
            self.metrics.writes.with_label_values(&["status"]).inc();
            self.writer.status(names, status).await?;
            self.with(key, |memory| memory.live_written_ms = Some(clock::now().ms()));
        }
        for event in &decision.events {
            tracing::info!(%key, reason = event.reason, note = event.note, "transition");
            self.metrics.transitions.with_label_values(&[event.reason.as_str()]).inc();
            self.writer.say(names, event).await;
        }
        Ok(())
    }

    /// Looks at the Savepoints and Backfills of a Pipeline that is not there, or at Savepoints that were imported; and at rules
    /// that are left of one.
    async fn alone(&self, key: &Key) -> anyhow::Result<Option<Duration>> {
        let (savepoints, rules) = (self.cache.savepoints(key), self.cache.rules(key));
        let backfills = self.cache.backfills(key);
        if savepoints.is_empty() && backfills.is_empty() && rules.is_empty() {
            return Ok(None);
        }
        let decision = decide_alone(&savepoints, &backfills, &rules, clock::now());
        let names = Names { namespace: key.namespace.clone(), pipeline: key.name.clone(), uid: String::new() };
        self.apply(&names, &decision).await?;
        self.status(key, &names, &decision).await?;
        Ok(decision.again_ms.map(Duration::from_millis))
    }

    fn remember(&self, key: &Key, facts: &Facts<'_>) {
        if let Ok(pipeline) = &facts.parsed {
            self.with(key, |memory| memory.was = Some((facts.names.clone(), pipeline.prefix())));
        }
    }

    /// The Pipeline is not there any more, and with it all that Kubernetes had of it.
    async fn gone(&self, key: &Key) {
        let memory = self.memory.lock().expect("nobody panics while it holds the lock").remove(key);
        if memory.as_ref().is_some_and(|memory| memory.looked_at) {
            self.metrics.looked_at.dec();
        }
        self.compiler.forget(key);
        self.clients.forget(key);
        self.slos.forget(key);
        self.backfills.forget(key);
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

/// When something was written last that is written at most so often, for an operator that has just begun and cannot know: for each Pipeline at
/// another time of the last interval, so that a thousand of them are not written at once.
fn sometime(key: &Key, every_ms: i64) -> i64 {
    let ago_ms = fnv1a(key.to_string().as_bytes()) % every_ms.unsigned_abs();
    clock::now().ms() - ago_ms as i64
}

/// Whether it writes the books of SLOs down.
fn is_books(action: &Action, names: &Names) -> bool {
    matches!(action, Action::Put { object, .. } if object["kind"] == "ConfigMap" && object["metadata"]["name"] == names.slos())
}

fn label(action: &Action) -> &'static str {
    match action {
        Action::Put { .. } => "put",
        Action::Delete { .. } => "delete",
        Action::Certify(_) => "certify",
        Action::Push { .. } => "push",
        Action::LetGo { .. } => "let_go",
        Action::Scale { .. } => "scale",
        Action::SetFinalizers { .. } => "finalizers",
        Action::SavepointStatus { .. } => "savepoint",
        Action::BackfillStatus { .. } => "backfill",
        Action::Pace { .. } => "pace",
    }
}

//! Watches, the queue, and the places that look at Pipelines.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use futures::{StreamExt, TryStreamExt};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, PartialObjectMeta, TypeMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use millrace_operator_core::names::{ABOUT_NAMESPACE_LABEL, PIPELINE_LABEL};
use millrace_operator_core::render::PROMETHEUS_RULE;
use tokio::sync::mpsc::Receiver;
use tokio::task::JoinSet;

use crate::apply::{CHILDREN, backfills, pipelines, resource, savepoints};
use crate::cache::{Cache, Change, Subject};
use crate::clock;
use crate::compile::{Compiler, Question};
use crate::metrics::Metrics;
use crate::queue::{Lane, Queue, Taken};
use crate::reconcile::Reconciler;

/// Places that look at Pipelines. Most of a look is waiting for others.
const PLACES: usize = 32;
/// Of them, those that take nothing but edits.
const PLACES_FOR_EDITS: usize = 8;
/// The server ends a watch after so long, so that one that hangs is noticed.
const WATCH_SECONDS: u32 = 200;
/// Objects of a list that come at once: while a page is read it is there as bytes, as text and as a tree, for each of
/// the kinds that are listed side by side.
const PAGE: u32 = 50;
/// How often the API server is asked whether it has gone back.
const LOOK_BACK_MS: u64 = 5_000;
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(60);

pub struct Controller {
    pub client: Client,
    /// Empty: all.
    pub namespaces: Vec<String>,
    pub cache: Arc<Cache>,
    pub queue: Arc<Queue>,
    pub reconciler: Arc<Reconciler>,
    pub questions: Receiver<Question>,
    pub metrics: Arc<Metrics>,
    pub ready: Arc<AtomicBool>,
}

impl Controller {
    /// Watches, and returns once everything that is there was seen.
    pub async fn fill(&self, tasks: &mut JoinSet<anyhow::Result<()>>) -> anyhow::Result<()> {
        self.watch(tasks);
        tasks.spawn(until_gone_back(self.client.clone(), self.namespaces.first().cloned(), Arc::clone(&self.cache)));
        while !self.cache.is_level() {
            clock::pause(20).await;
            if let Some(ended) = tasks.try_join_next() {
                return ended?;
            }
        }
        self.ready.store(true, Ordering::Relaxed);
        tracing::info!(pipelines = self.cache.count(), "caches are filled");
        Ok(())
    }

    /// Works until something of it ends, which is an error.
    pub async fn act(self, mut tasks: JoinSet<anyhow::Result<()>>) -> anyhow::Result<()> {
        self.queue.begin(self.cache.all().into_iter().collect(), clock::instant());
        for place in 0..PLACES {
            let lanes: &'static [Lane] =
                if place < PLACES_FOR_EDITS { &[Lane::Edit] } else { &[Lane::Edit, Lane::Routine] };
            tasks.spawn(work(Arc::clone(&self.queue), Arc::clone(&self.reconciler), Arc::clone(&self.metrics), lanes));
        }
        tasks.spawn(compile(self.questions, Arc::clone(&self.reconciler.compiler), self.queue));
        let ended = tasks.join_next().await;
        ended.context("nothing was begun")?.context("a part of the operator panicked")?
    }

    fn watch(&self, tasks: &mut JoinSet<anyhow::Result<()>>) {
        let namespaces =
            if self.namespaces.is_empty() { vec![None] } else { self.namespaces.iter().map(Some).collect() };
        for namespace in namespaces {
            let own = watcher::Config::default().timeout(WATCH_SECONDS).page_size(PAGE);
            let labelled = own.clone().labels(PIPELINE_LABEL);
            self.watch_one(tasks, namespace, pipelines(), Subject::Pipelines, own.clone());
            self.watch_one(tasks, namespace, savepoints(), Subject::Savepoints, own.clone());
            self.watch_one(tasks, namespace, backfills(), Subject::Backfills, own.clone());
            let rules = self.reconciler.settings.rules.prometheus_rules();
            for (api_version, kind, plural) in CHILDREN.iter().chain(rules.then_some(&PROMETHEUS_RULE)) {
                let resource = resource(api_version, kind, plural);
                self.watch_one(tasks, namespace, resource, Subject::Children, labelled.clone());
            }
            self.watch_one(tasks, namespace, resource("v1", "Secret", "secrets"), Subject::Secrets, own);
        }
        self.watch_rules(tasks);
    }

    /// Those in the operator's own namespace, also where they are not to be: the chart may have said otherwise. Of those
    /// that are about other namespaces another operator takes care.
    fn watch_rules(&self, tasks: &mut JoinSet<anyhow::Result<()>>) {
        let settings = &self.reconciler.settings;
        if settings.namespace.is_empty() {
            return;
        }
        let about = match self.namespaces.as_slice() {
            [] => ABOUT_NAMESPACE_LABEL.to_owned(),
            namespaces => format!("{ABOUT_NAMESPACE_LABEL} in ({})", namespaces.join(",")),
        };
        let config = watcher::Config::default().timeout(WATCH_SECONDS).page_size(PAGE).labels(&about);
        let kinds = [("v1", "ConfigMap", "configmaps"), PROMETHEUS_RULE];
        for (api_version, kind, plural) in &kinds[..1 + usize::from(settings.rules.prometheus_rules())] {
            let resource = resource(api_version, kind, plural);
            self.watch_one(tasks, Some(&settings.namespace), resource, Subject::Rules, config.clone());
        }
    }

    /// Each stream has a back-off of its own: one that is broken keeps no other from going on.
    fn watch_one(
        &self,
        tasks: &mut JoinSet<anyhow::Result<()>>,
        namespace: Option<&String>,
        resource: ApiResource,
        subject: Subject,
        config: watcher::Config,
    ) {
        let types = TypeMeta { api_version: resource.api_version.clone(), kind: resource.kind.clone() };
        let number = self.cache.register(subject);
        let (cache, queue, metrics) = (Arc::clone(&self.cache), Arc::clone(&self.queue), Arc::clone(&self.metrics));
        let client = self.client.clone();
        let stream = match subject {
            // The keys of other people's Secrets are none of ours.
            Subject::Secrets => {
                let api: Api<PartialObjectMeta<DynamicObject>> = match namespace {
                    Some(namespace) => Api::namespaced_with(client, namespace, &resource),
                    None => Api::all_with(client, &resource),
                };
                let whole = |partial: PartialObjectMeta<DynamicObject>| DynamicObject {
                    types: None,
                    metadata: partial.metadata,
                    data: serde_json::json!({}),
                };
                watcher(api, config).map_ok(move |event| mapped(event, whole)).boxed()
            }
            Subject::Pipelines | Subject::Savepoints | Subject::Backfills | Subject::Children | Subject::Rules => {
                let api: Api<DynamicObject> = match namespace {
                    Some(namespace) => Api::namespaced_with(client, namespace, &resource),
                    None => Api::all_with(client, &resource),
                };
                watcher(api, config).boxed()
            }
        };
        tasks.spawn(async move {
            let mut stream = stream.default_backoff().boxed();
            while let Some(event) = stream.next().await {
                match event {
                    // Items of a list do not say of which kind they are.
                    Ok(event) => {
                        let event = mapped(event, |object| DynamicObject { types: Some(types.clone()), ..object });
                        let changes = cache.take(number, event);
                        metrics.pipelines.set(cache.count() as i64);
                        changes.into_iter().for_each(|change| push(&cache, &queue, change));
                    }
                    Err(error) => {
                        metrics.watch_errors.inc();
                        tracing::warn!(kind = types.kind, %error, "a watch broke and begins anew");
                    }
                }
            }
            anyhow::bail!("the watch of {} has ended", types.kind)
        });
    }
}

/// Ends when the API server knows less than was seen, as after etcd was restored from a backup: watches that go on from
/// there are told nothing until its versions have grown again, and what they have seen is no longer so.
async fn until_gone_back(client: Client, namespace: Option<String>, cache: Arc<Cache>) -> anyhow::Result<()> {
    let (resource, one) = (pipelines(), ListParams::default().limit(1));
    let api: Api<DynamicObject> = match &namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource),
        None => Api::all_with(client, &resource),
    };
    loop {
        clock::pause(LOOK_BACK_MS).await;
        // Before it is asked: its answer is never older than what it has said already.
        let seen = cache.newest();
        let answer = match api.list_metadata(&one).await {
            Ok(list) => list.metadata.resource_version,
            Err(error) => {
                tracing::debug!(%error, "the API server does not say where it stands");
                continue;
            }
        };
        let now = answer.and_then(|version| version.parse::<u64>().ok());
        if let Some(now) = now.filter(|now| *now < seen) {
            anyhow::bail!(
                "the API server has gone back from version {seen} to {now}, as after a restore of etcd: what was seen is void, and this process begins anew"
            );
        }
    }
}

/// What a change asks for.
fn push(cache: &Cache, queue: &Queue, change: Change) {
    let now = clock::instant();
    match change {
        Change::Edit(key) => queue.push(key, Lane::Edit, now),
        Change::Child(key) => queue.push(key, Lane::Routine, now),
        Change::Savepoint { pipeline, savepoint } => {
            let concerned = cache.restoring(&savepoint).into_iter().chain([pipeline]);
            concerned.for_each(|key| queue.push(key, Lane::Edit, now));
        }
        Change::Secret(secret) => {
            cache.naming(&secret).into_iter().for_each(|key| queue.push(key, Lane::Routine, now));
        }
    }
}

fn mapped<A, B>(event: Event<A>, map: impl FnOnce(A) -> B) -> Event<B> {
    match event {
        Event::Apply(object) => Event::Apply(map(object)),
        Event::Delete(object) => Event::Delete(map(object)),
        Event::InitApply(object) => Event::InitApply(map(object)),
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
    }
}

/// Puts questions to the compiler, one after another: the chart's memory limit has room for one child.
async fn compile(mut questions: Receiver<Question>, compiler: Arc<Compiler>, queue: Arc<Queue>) -> anyhow::Result<()> {
    while let Some(question) = questions.recv().await {
        compiler.compile(&question).await;
        queue.push(question.key, Lane::Edit, clock::instant());
    }
    anyhow::bail!("nobody asks the compiler any more")
}

/// A place: takes the next Pipeline, looks at it, and says when it is due again. Failures are tried again ever more seldom.
async fn work(
    queue: Arc<Queue>,
    reconciler: Arc<Reconciler>,
    metrics: Arc<Metrics>,
    lanes: &'static [Lane],
) -> anyhow::Result<()> {
    loop {
        let Some(Taken { key, lane, since }) = queue.try_take(lanes, clock::instant()) else {
            queue.wait(clock::instant()).await;
            continue;
        };
        let began = clock::instant();
        let name = if lane == Lane::Edit { "edit" } else { "routine" };
        metrics.queue_seconds.with_label_values(&[name]).observe(began.saturating_duration_since(since).as_secs_f64());
        let outcome = reconciler.reconcile(&key, lane).await;
        let seconds = clock::instant().saturating_duration_since(began).as_secs_f64();
        let word = if outcome.is_ok() { "ok" } else { "error" };
        metrics.reconcile_seconds.with_label_values(&[word]).observe(seconds);
        let again = match outcome {
            Ok(again) => {
                queue.succeeded(&key);
                again
            }
            Err(error) => {
                let wait = RETRY_FIRST.saturating_mul(1 << queue.failed(&key).min(7)).min(RETRY_MAX);
                let error = format!("{error:#}");
                tracing::warn!(%key, error, again_ms = wait.as_millis() as u64, "a look at a pipeline has failed");
                Some(wait)
            }
        };
        queue.done(&key, again, clock::instant());
    }
}

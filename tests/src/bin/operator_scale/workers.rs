//! All workers of all Pipelines in one process: each answers the control API under its own address, with the
//! certificate of its Pipeline, as one that runs all its tasks, whose lag moves, and that tells of it in slices.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context, bail};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::Api;
use millrace_core::assignment::{Assignment, Placement};
use millrace_core::ids::Partition;
use millrace_core::plan::Plan;
use millrace_core::report::{PlanSeen, REPORT_VERSION, SourceLag, TaskReport, TaskState, WorkerReport};
use millrace_core::slices::SlicesReport;
use millrace_operator_core::facts::Placed;
use millrace_operator_core::names::{CONTROL_PORT, Names, PIPELINE_LABEL};
use millrace_runtime::control;
use millrace_tests::shop::now_ms;
use rustls::ServerConfig;
use rustls::server::NoServerSessionStorage;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::slices::Slices;
use crate::{NAMESPACE, index_of, name};

/// Of each Pipeline.
pub const WORKERS: u32 = 2;
/// Of every topic; nobody has made them.
const PARTITIONS: i32 = 4;
/// One more waits in the listener's own queue.
const CONNECTIONS_MAX: usize = 256;
/// A lag grows up to it and begins anew. Below 10 s every tenth of a second is shown.
const LAG_MS: i64 = 9_000;

pub struct Workers {
    secrets: Api<Secret>,
    /// Those of a Pipeline's workers are next to each other.
    addresses: Vec<Ipv4Addr>,
    /// Tasks of each stage.
    pub stages: BTreeMap<String, i32>,
    sources: Vec<String>,
    slices: Slices,
    pipelines: Vec<Own>,
    begun: Instant,
    /// The same moment, in milliseconds since 1970.
    begun_ms: i64,
    answered: AtomicU64,
    told: AtomicU64,
}

/// What the workers of one Pipeline have.
#[derive(Default)]
struct Own {
    /// Their assignment, and the fingerprint of the plan that it is for.
    follows: Mutex<Option<(Assignment, String)>>,
    tls: OnceCell<Arc<ServerConfig>>,
}

impl Own {
    fn follows(&self) -> MutexGuard<'_, Option<(Assignment, String)>> {
        self.follows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Workers {
    pub fn new(secrets: Api<Secret>, plan: &Plan, pipelines: usize, addresses: Vec<Ipv4Addr>) -> anyhow::Result<Self> {
        let begun_ms = now_ms()?;
        Ok(Self {
            secrets,
            addresses,
            stages: plan.stages.iter().map(|stage| (stage.name.clone(), PARTITIONS)).collect(),
            sources: plan.sources.iter().map(|source| source.name.clone()).collect(),
            slices: Slices::of(plan, begun_ms),
            pipelines: std::iter::repeat_with(Own::default).take(pipelines).collect(),
            begun: Instant::now(),
            begun_ms,
            answered: AtomicU64::new(0),
            told: AtomicU64::new(0),
        })
    }

    /// How often somebody asked how a worker is.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// How many slices workers have told of.
    pub fn told(&self) -> u64 {
        self.told.load(Ordering::Relaxed)
    }

    /// The address of a worker's pod.
    pub fn address(&self, pipeline: usize, worker: u32) -> Option<Ipv4Addr> {
        let known = pipeline < self.pipelines.len() && worker < WORKERS;
        self.addresses.get(pipeline * WORKERS as usize + worker as usize).filter(|_| known).copied()
    }

    fn at(&self, address: Ipv4Addr) -> Option<(usize, u32)> {
        // They follow one another, as they were taken.
        let index = address.to_bits().checked_sub(self.addresses.first()?.to_bits())?;
        let (pipeline, worker) = ((index / WORKERS) as usize, index % WORKERS);
        (pipeline < self.pipelines.len()).then_some((pipeline, worker))
    }

    /// What a kubelet shows in the pods of an assignment's ConfigMap.
    pub fn show(&self, map: &ConfigMap) {
        let read = || {
            let pipeline = index_of(map.metadata.labels.as_ref()?.get(PIPELINE_LABEL)?)?;
            let data = map.data.as_ref()?;
            let assignment: Assignment = serde_json::from_str(data.get("assignment.json")?).ok()?;
            let placed: Placed = serde_json::from_str(data.get("placed.json")?).ok()?;
            Some((self.pipelines.get(pipeline)?, assignment, placed.fingerprint))
        };
        if let Some((own, assignment, fingerprint)) = read() {
            *own.follows() = Some((assignment, fingerprint));
        }
    }

    fn report(&self, pipeline: usize, worker: u32) -> WorkerReport {
        let stages = self.stages.clone();
        let idle = WorkerReport { version: REPORT_VERSION, worker, stages, ..WorkerReport::default() };
        let Some((assignment, plan_fingerprint)) = self.pipelines[pipeline].follows().clone() else { return idle };
        let Assignment { generation, plan, tasks, .. } = assignment;
        let own = tasks.into_iter().filter(|placement| placement.worker == worker);
        let tasks = own.map(|p| TaskReport { stage: p.stage, partition: p.partition, state: TaskState::Running });
        let newest_plan = Some(PlanSeen { plan, fingerprint: plan_fingerprint.clone(), ..PlanSeen::default() });
        WorkerReport {
            generation,
            highest_generation: generation,
            plan,
            plan_fingerprint,
            newest_plan,
            tasks: tasks.collect(),
            sources: self.lags(pipeline, worker),
            ready: true,
            ..idle
        }
    }

    fn lags(&self, pipeline: usize, worker: u32) -> Vec<SourceLag> {
        let now_ms = self.now_ms();
        let lag = |name: &String, partition: i32| {
            let partition = Partition(partition);
            let lag_ms = lag_ms(now_ms, pipeline, partition);
            let (name, lag_records, lag_ms) = (name.clone(), Some(lag_ms / 10), Some(lag_ms));
            SourceLag { name, partition, lag_records, lag_ms, ..SourceLag::default() }
        };
        let partitions = || (0..PARTITIONS).filter(move |partition| partition.unsigned_abs() % WORKERS == worker);
        self.sources.iter().flat_map(|name| partitions().map(move |partition| lag(name, partition))).collect()
    }

    fn slices(&self, pipeline: usize, worker: u32, from: i64) -> SlicesReport {
        let follows = self.pipelines[pipeline].follows();
        let tasks = follows.iter().flat_map(|(assignment, _)| &assignment.tasks);
        let own = || tasks.clone().filter(|task| task.worker == worker);
        self.slices.report(worker, from, self.now_ms(), |slice| {
            let tell = |task: &Placement| self.slices.task(slice, pipeline, task);
            own().filter_map(tell).collect()
        })
    }

    /// The clock of all workers.
    fn now_ms(&self) -> i64 {
        self.begun_ms + self.begun.elapsed().as_millis() as i64
    }

    /// Answers everybody.
    pub async fn serve(self: Arc<Self>) -> anyhow::Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, CONTROL_PORT)).await;
        let listener = listener.with_context(|| format!("listen on port {CONTROL_PORT}"))?;
        let mut connections = JoinSet::new();
        loop {
            let room = connections.len() < CONNECTIONS_MAX;
            tokio::select! {
                accepted = listener.accept(), if room => {
                    let (tcp, _) = accepted.context("accept a connection")?;
                    connections.spawn(Arc::clone(&self).answer(tcp));
                }
                // The operator asks again where a connection broke.
                Some(_) = connections.join_next() => {}
            }
        }
    }

    async fn answer(self: Arc<Self>, tcp: TcpStream) -> anyhow::Result<()> {
        let IpAddr::V4(address) = tcp.local_addr()?.ip() else { bail!("it is not for a pod") };
        let (pipeline, worker) = self.at(address).context("no pod has this address")?;
        let config = self.pipelines[pipeline].tls.get_or_try_init(|| self.certificates(pipeline)).await?;
        let tls = TlsAcceptor::from(Arc::clone(config)).accept(tcp).await?;
        let workers = &self;
        let respond = |request: Request<Incoming>| async move {
            Ok::<_, Infallible>(workers.respond(pipeline, worker, request).await)
        };
        Ok(http1::Builder::new().serve_connection(TokioIo::new(tls), service_fn(respond)).await?)
    }

    async fn respond(&self, pipeline: usize, worker: u32, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (status, body) = match (request.method(), request.uri().path()) {
            (&Method::GET, "/v1/status") => {
                self.answered.fetch_add(1, Ordering::Relaxed);
                let report = serde_json::to_vec(&self.report(pipeline, worker));
                (StatusCode::OK, report.expect("texts and numbers can be written"))
            }
            (&Method::GET, "/v1/slices") => match first_slice(&request) {
                Some(from) => {
                    let told = self.slices(pipeline, worker, from);
                    self.told.fetch_add(told.slices.len() as u64, Ordering::Relaxed);
                    (StatusCode::OK, serde_json::to_vec(&told).expect("texts and numbers can be written"))
                }
                None => (StatusCode::BAD_REQUEST, Vec::new()),
            },
            (&Method::PUT, "/v1/assignment") => (self.take(pipeline, request).await, Vec::new()),
            _ => (StatusCode::NOT_FOUND, Vec::new()),
        };
        let mut response = Response::new(Full::from(body));
        *response.status_mut() = status;
        response
    }

    /// An assignment that is pushed comes before its file.
    async fn take(&self, pipeline: usize, request: Request<Incoming>) -> StatusCode {
        let Ok(body) = request.into_body().collect().await else { return StatusCode::BAD_REQUEST };
        let Ok(next) = serde_json::from_slice::<Assignment>(&body.to_bytes()) else { return StatusCode::BAD_REQUEST };
        match &mut *self.pipelines[pipeline].follows() {
            Some((follows, _)) if next.generation >= follows.generation => {
                *follows = next;
                StatusCode::OK
            }
            _ => StatusCode::CONFLICT,
        }
    }

    /// As a pod mounts them.
    async fn certificates(&self, pipeline: usize) -> anyhow::Result<Arc<ServerConfig>> {
        let names = Names { namespace: NAMESPACE.to_owned(), pipeline: name(pipeline), uid: String::new() };
        let data = self.secrets.get(&names.control()).await?.data.unwrap_or_default();
        let file = |name: &str| data.get(name).map(|bytes| bytes.0.clone()).unwrap_or_default();
        let mut config = control::configured(&[file("ca.crt"), file("tls.crt"), file("tls.key")])?;
        // The operator resumes none.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Arc::new(config))
    }
}

/// How far a partition is behind at some time.
pub fn lag_ms(now_ms: i64, pipeline: usize, partition: Partition) -> i64 {
    (now_ms + pipeline as i64 * 37 + i64::from(partition.0) * 11) % LAG_MS
}

/// From which one on slices are asked for.
fn first_slice(request: &Request<Incoming>) -> Option<i64> {
    request.uri().query()?.strip_prefix("from=")?.parse().ok()
}

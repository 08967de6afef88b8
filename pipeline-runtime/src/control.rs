//! The control API of a worker, for the operator alone: HTTPS with TLS 1.3, and both sides show a certificate.
//!
//! `GET /v1/status` says how the worker is. `PUT /v1/assignment` hands it an assignment, which it follows if it is
//! newer than that of its file: kubelets bring files late. `PUT /v1/let-go` says that nobody will take its tasks: a
//! worker that is told to end waits for nobody then. `GET /v1/slices?from=<index>` says what it saw in each slice of 10 s
//! that has ended, from that index on (a slice's index is the wall clock's milliseconds by 10,000); without `from`, from
//! the first one that it keeps, which is an hour old. Five minutes of slices come at once. Asking again gives the same:
//! nobody loses a slice by not having asked for it. `PUT /v1/rate` says how fast a backfill reads from now on
//! ([`Rate`]).
//!
//! The certificates are files that somebody replaces. They are read again each second, and a set that does not work
//! leaves the last one in force, so a rotation that is half done refuses nobody.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::serve::Listener;
use millrace_core::assignment::Assignment;
use millrace_core::ids::Generation;
use millrace_core::pace::Rate;
use millrace_core::report::WorkerReport;
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::clock;
use crate::http::{self, Server};
use crate::metrics::Metrics;

/// How often the files are looked at.
const REREAD_MS: u64 = 1_000;
/// Whoever takes longer to show a certificate has none.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Connections that are about to show theirs. One more waits in the listener's own queue.
const HANDSHAKES_MAX: usize = 64;
/// Pause after an accept that failed: the process has no descriptors left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(500);

/// Where the API is, and the folder with its certificates.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    pub address: SocketAddr,
    /// `ca.crt` (whom to trust, one or more), `tls.crt` and `tls.key`.
    pub dir: PathBuf,
}

/// What the API and its worker hand each other.
pub struct Desk {
    metrics: Arc<Metrics>,
    report: Mutex<WorkerReport>,
    pushed: Mutex<Option<Assignment>>,
    news: AtomicBool,
    /// When the worker was asked last, steady milliseconds.
    asked_ms: AtomicU64,
    let_go: AtomicBool,
    /// That was told and is not heard yet.
    rate: Mutex<Option<Rate>>,
}

impl Desk {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            metrics,
            report: Mutex::default(),
            pushed: Mutex::default(),
            news: AtomicBool::default(),
            asked_ms: AtomicU64::default(),
            let_go: AtomicBool::default(),
            rate: Mutex::default(),
        }
    }

    pub fn show(&self, report: WorkerReport) {
        *lock(&self.report) = report;
    }

    /// The newest assignment that was handed over.
    pub fn pushed(&self) -> Option<Assignment> {
        lock(&self.pushed).clone()
    }

    /// True once for each assignment that was handed over.
    pub fn news(&self) -> bool {
        self.news.swap(false, Ordering::Relaxed)
    }

    pub fn asked_ms(&self) -> u64 {
        self.asked_ms.load(Ordering::Relaxed)
    }

    /// Whether it was said that nobody will take the worker's tasks.
    pub fn let_go(&self) -> bool {
        self.let_go.load(Ordering::Relaxed)
    }

    /// Some once for each rate that was told, but for those that another one has followed.
    pub fn rate(&self) -> Option<Rate> {
        lock(&self.rate).take()
    }

    fn take_rate(&self, body: &[u8]) -> RateTaken {
        if lock(&self.report).backfill.is_none() {
            return RateTaken::NoBackfill;
        }
        match serde_json::from_slice(body) {
            Ok(rate) => {
                *lock(&self.rate) = Some(rate);
                RateTaken::Up
            }
            Err(error) => RateTaken::Mistaken(format!("it is no rate: {error}")),
        }
    }

    fn take(&self, body: &[u8]) -> Taken {
        let assignment: Assignment = match serde_json::from_slice(body) {
            Ok(assignment) => assignment,
            Err(error) => return Taken::Mistaken(format!("it is no assignment: {error}")),
        };
        let report = lock(&self.report);
        let mistakes = assignment.mistakes(&report.stages);
        let mut pushed = lock(&self.pushed);
        let held = pushed.as_ref().map_or(Generation(0), |held| held.generation);
        let held = held.max(report.generation).max(report.highest_generation);
        if assignment.generation < held {
            return Taken::Older(held);
        }
        if !mistakes.is_empty() {
            return Taken::Mistaken(mistakes.join("; "));
        }
        *pushed = Some(assignment);
        self.news.store(true, Ordering::Relaxed);
        Taken::Up
    }
}

/// What became of an assignment.
#[derive(Debug, PartialEq, Eq)]
enum Taken {
    Up,
    /// Somebody has this generation already.
    Older(Generation),
    Mistaken(String),
}

/// What became of a rate.
#[derive(Debug, PartialEq, Eq)]
enum RateTaken {
    Up,
    NoBackfill,
    Mistaken(String),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts serving.
pub fn serve(config: &ControlConfig, desk: &Arc<Desk>) -> anyhow::Result<Server> {
    let certificates = Certificates::read(&config.dir)?;
    let router = Router::new()
        .route("/v1/status", get(status))
        .route("/v1/slices", get(slices))
        .route("/v1/assignment", put(assignment))
        .route("/v1/let-go", put(let_go))
        .route("/v1/rate", put(rate))
        .with_state(Arc::clone(desk));
    let server = http::start("control", config.address, router, |tcp| Authenticated {
        tcp,
        certificates,
        handshakes: JoinSet::new(),
    })?;
    tracing::info!(control = %server.address, "serving the control API");
    Ok(server)
}

async fn status(State(desk): State<Arc<Desk>>) -> Response {
    desk.asked_ms.store(clock::steady_ms(), Ordering::Relaxed);
    let report = lock(&desk.report).clone();
    json(StatusCode::OK, &report)
}

async fn slices(State(desk): State<Arc<Desk>>, RawQuery(query): RawQuery) -> Response {
    match first_index(query.as_deref().unwrap_or_default()) {
        Ok(from) => {
            let worker = lock(&desk.report).worker;
            json(StatusCode::OK, &desk.metrics.slices_from(worker, from, clock::now_ms()))
        }
        Err(why) => json(StatusCode::BAD_REQUEST, &serde_json::json!({"error": why})),
    }
}

/// The one parameter of the slices' query.
fn first_index(query: &str) -> Result<i64, String> {
    let index = match query.split_once('=') {
        None if query.is_empty() => return Ok(0),
        Some(("from", index)) => index.parse().ok(),
        _ => None,
    };
    index.ok_or_else(|| format!("'{query}' is not from=<index>"))
}

async fn assignment(State(desk): State<Arc<Desk>>, body: Bytes) -> Response {
    match desk.take(&body) {
        Taken::Up => StatusCode::OK.into_response(),
        Taken::Older(generation) => json(StatusCode::CONFLICT, &serde_json::json!({"generation": generation})),
        Taken::Mistaken(why) => json(StatusCode::BAD_REQUEST, &serde_json::json!({"error": why})),
    }
}

async fn let_go(State(desk): State<Arc<Desk>>) -> StatusCode {
    desk.let_go.store(true, Ordering::Relaxed);
    StatusCode::OK
}

async fn rate(State(desk): State<Arc<Desk>>, body: Bytes) -> Response {
    match desk.take_rate(&body) {
        RateTaken::Up => StatusCode::OK.into_response(),
        RateTaken::NoBackfill => {
            json(StatusCode::NOT_FOUND, &serde_json::json!({"error": "this worker runs no backfill"}))
        }
        RateTaken::Mistaken(why) => json(StatusCode::BAD_REQUEST, &serde_json::json!({"error": why})),
    }
}

fn json(status: StatusCode, body: &impl serde::Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(text) => (status, [(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Gives connections whose other side has shown a certificate that we trust. A slow one holds up nobody else.
struct Authenticated {
    tcp: TcpListener,
    certificates: Certificates,
    handshakes: JoinSet<Option<(TlsStream<TcpStream>, SocketAddr)>>,
}

impl Listener for Authenticated {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let room = self.handshakes.len() < HANDSHAKES_MAX;
            tokio::select! {
                Some(shaken) = self.handshakes.join_next() => if let Ok(Some(connection)) = shaken {
                    return connection;
                },
                accepted = self.tcp.accept(), if room => match accepted {
                    Ok((stream, from)) => {
                        let acceptor = TlsAcceptor::from(self.certificates.now());
                        self.handshakes.spawn(shake(acceptor, stream, from));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the control API accepts no connection");
                        // A future that never ends, given so long: a pause without a clock of its own.
                        let _ = timeout(ACCEPT_AGAIN, std::future::pending::<()>()).await;
                    }
                },
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

async fn shake(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    from: SocketAddr,
) -> Option<(TlsStream<TcpStream>, SocketAddr)> {
    match timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some((stream, from)),
        Ok(Err(error)) => {
            tracing::debug!(%from, %error, "a connection to the control API was refused");
            None
        }
        Err(_) => None,
    }
}

/// The certificates as they were last read.
struct Certificates {
    dir: PathBuf,
    files: [Vec<u8>; 3],
    config: Arc<ServerConfig>,
    read_ms: u64,
    mistake: String,
}

impl Certificates {
    fn read(dir: &Path) -> anyhow::Result<Self> {
        let files = read(dir)?;
        let config = configured(&files).with_context(|| format!("use the certificates in {}", dir.display()))?;
        let read_ms = clock::steady_ms();
        Ok(Self { dir: dir.to_owned(), files, config: Arc::new(config), read_ms, mistake: String::new() })
    }

    /// What counts now.
    fn now(&mut self) -> Arc<ServerConfig> {
        let now = clock::steady_ms();
        if now - self.read_ms >= REREAD_MS {
            self.read_ms = now;
            if let Err(error) = self.follow() {
                let mistake = format!("{error:#}");
                if mistake != self.mistake {
                    tracing::warn!(
                        mistake,
                        "the certificates of the control API cannot be used, and the last ones stay"
                    );
                    self.mistake = mistake;
                }
            }
        }
        Arc::clone(&self.config)
    }

    fn follow(&mut self) -> anyhow::Result<()> {
        let files = read(&self.dir)?;
        if files != self.files {
            self.config = Arc::new(configured(&files)?);
            self.files = files;
            tracing::info!("the certificates of the control API have changed and are taken up");
        }
        self.mistake.clear();
        Ok(())
    }
}

fn read(dir: &Path) -> anyhow::Result<[Vec<u8>; 3]> {
    let file = |name: &str| {
        let path = dir.join(name);
        std::fs::read(&path).with_context(|| format!("read {}", path.display()))
    };
    Ok([file("ca.crt")?, file("tls.crt")?, file("tls.key")?])
}

/// How a worker serves with these certificates: `ca.crt`, `tls.crt` and `tls.key`.
pub fn configured([authorities, chain, key]: &[Vec<u8>; 3]) -> anyhow::Result<ServerConfig> {
    let mut trusted = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(authorities) {
        trusted.add(authority.context("read ca.crt")?).context("trust an authority of ca.crt")?;
    }
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(chain).collect::<Result<_, _>>().context("read tls.crt")?;
    let key = PrivateKeyDer::from_pem_slice(key).context("read tls.key")?;
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(trusted), Arc::clone(&provider)).build()?;
    let config = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13])?;
    Ok(config.with_client_cert_verifier(verifier).with_single_cert(chain, key)?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use millrace_core::report::BackfillReport;

    use super::*;

    fn desk(generation: u64, highest: u64) -> Desk {
        let desk = Desk::new(Arc::new(Metrics::new().expect("metrics")));
        desk.show(WorkerReport {
            generation: Generation(generation),
            highest_generation: Generation(highest),
            stages: BTreeMap::from([("joined".to_owned(), 2)]),
            ..WorkerReport::default()
        });
        desk
    }

    fn body(generation: u64, partition: i32) -> Vec<u8> {
        let task = serde_json::json!({"stage": "joined", "partition": partition, "worker": 0, "lane": 0});
        serde_json::to_vec(&serde_json::json!({"generation": generation, "plan": 1, "tasks": [task]}))
            .expect("plain data")
    }

    #[test]
    fn certificates_that_do_not_work_leave_the_last_ones_in_force() {
        let dir = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("a file");
        let own = rcgen::generate_simple_self_signed(vec!["worker.millrace".to_owned()]).expect("a certificate");
        let key = own.signing_key.serialize_pem();
        for (name, text) in [("ca.crt", own.cert.pem()), ("tls.crt", own.cert.pem()), ("tls.key", key.clone())] {
            write(name, &text);
        }
        let mut certificates = Certificates::read(dir.path()).expect("they fit");
        let first = Arc::clone(&certificates.config);
        let other = rcgen::KeyPair::generate().expect("a key").serialize_pem();
        for broken in ["", "nonsense", &other] {
            write("tls.key", broken);
            assert!(certificates.follow().is_err(), "{broken}");
            assert!(Arc::ptr_eq(&first, &certificates.config));
        }
        write("tls.key", &format!("{key}\n"));
        certificates.follow().expect("they fit again");
        assert!(!Arc::ptr_eq(&first, &certificates.config));
    }

    #[test]
    fn an_assignment_is_taken_when_nothing_newer_is_known() {
        let desk = desk(3, 4);
        assert_eq!(desk.take(&body(3, 0)), Taken::Older(Generation(4)));
        assert_eq!(desk.take(&body(4, 0)), Taken::Up);
        assert_eq!(desk.take(&body(6, 1)), Taken::Up);
        assert!(desk.news());
        assert!(!desk.news());
        assert_eq!(desk.take(&body(5, 0)), Taken::Older(Generation(6)));
        assert_eq!(desk.pushed().map(|held| held.generation), Some(Generation(6)));
    }

    #[test]
    fn a_rate_is_taken_by_whoever_runs_a_backfill_and_heard_once() {
        let (desk, told) = (desk(1, 1), |n: u64| format!("{{\"recordsPerSecond\": {n}}}"));
        assert_eq!(desk.take_rate(told(5).as_bytes()), RateTaken::NoBackfill);
        desk.show(WorkerReport { backfill: Some(BackfillReport::default()), ..WorkerReport::default() });
        let RateTaken::Mistaken(why) = desk.take_rate(b"{}") else { panic!("it says nothing") };
        assert!(why.starts_with("it is no rate: missing field `recordsPerSecond`"), "{why}");
        assert_eq!(desk.rate(), None);
        for n in [5, 0] {
            assert_eq!(desk.take_rate(told(n).as_bytes()), RateTaken::Up);
        }
        assert_eq!(desk.rate(), Some(Rate { records_per_second: Some(0) }));
        assert_eq!(desk.rate(), None);
        assert_eq!(desk.take_rate(b"{\"recordsPerSecond\": null}"), RateTaken::Up);
        assert_eq!(desk.rate(), Some(Rate { records_per_second: None }));
    }

    #[test]
    fn slices_are_asked_for_by_an_index() {
        assert_eq!((first_index(""), first_index("from=170")), (Ok(0), Ok(170)));
        for query in ["from", "from=", "from=x", "from=1&from=2", "to=3"] {
            assert_eq!(first_index(query), Err(format!("'{query}' is not from=<index>")));
        }
    }

    #[test]
    fn what_cannot_be_run_is_refused_with_the_reason() {
        let desk = desk(3, 3);
        let Taken::Mistaken(why) = desk.take(&body(4, 2)) else { panic!("there are two partitions") };
        assert!(why.contains("the pipeline has no task joined/2"), "{why}");
        let Taken::Mistaken(why) = desk.take(b"{\"generation\": 4}") else { panic!("fields are missing") };
        assert!(why.contains("it is no assignment: missing field"), "{why}");
        assert_eq!(desk.pushed(), None);
    }
}

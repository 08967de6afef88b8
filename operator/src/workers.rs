//! Talks to workers over their control API: HTTPS, and both sides show a certificate of the Pipeline's own authority.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, bail};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use millrace_core::assignment::Assignment;
use millrace_core::report::WorkerReport;
use millrace_core::slices::SlicesReport;
use millrace_operator_core::names::WORKER_HOST;
use millrace_operator_core::slo::books::Answer;
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use crate::cache::Key;

/// For a whole call. A worker that does not answer is unreachable, and is asked again at the next look.
const CALL: Duration = Duration::from_secs(3);
/// Longest report. Five minutes of slices of 64 tasks are 0.8 MB, and 13 where rows of every age are in each.
const REPORT_BYTES_MAX: usize = 16 << 20;

/// How a Pipeline's workers are talked to, by the version of its authority's Secret.
#[derive(Default)]
pub struct Clients(Mutex<HashMap<Key, (String, Arc<ClientConfig>)>>);

/// PEM texts of the Secret with the authority.
pub struct Identity {
    pub version: String,
    pub trusted: Vec<u8>,
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
}

impl Clients {
    /// The client of a version of the Secret, if it was made already.
    pub fn known(&self, key: &Key, version: &str) -> Option<Arc<ClientConfig>> {
        let clients = self.0.lock().expect("nobody panics while it holds the lock");
        clients.get(key).filter(|(of, _)| of == version).map(|(_, config)| Arc::clone(config))
    }

    pub fn make(&self, key: &Key, identity: &Identity) -> anyhow::Result<Arc<ClientConfig>> {
        let config = Arc::new(config(identity).context("read the Secret of the control API's authority")?);
        let mut clients = self.0.lock().expect("nobody panics while it holds the lock");
        clients.insert(key.clone(), (identity.version.clone(), Arc::clone(&config)));
        Ok(config)
    }

    pub fn forget(&self, key: &Key) {
        self.0.lock().expect("nobody panics while it holds the lock").remove(key);
    }
}

fn config(identity: &Identity) -> anyhow::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&identity.trusted) {
        roots.add(certificate?)?;
    }
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&identity.certificate).collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(&identity.key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)?;
    // Sessions are kept by the server's name, which all workers have: one that another has given is of no use.
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Asks a worker how it is, and for its slices from one on if they are wanted.
pub async fn report(
    config: Arc<ClientConfig>,
    address: &str,
    from: Option<i64>,
) -> anyhow::Result<(WorkerReport, Option<Answer>)> {
    let mut connection = within(address, Connection::open(config, address)).await?;
    let (status, body) = within(address, connection.send(Method::GET, "/v1/status", Bytes::new())).await?;
    if status != StatusCode::OK {
        bail!("{address} answered {status}");
    }
    let report = serde_json::from_slice(&body).with_context(|| format!("read the report of {address}"))?;
    let Some(from) = from else { return Ok((report, None)) };
    let answer = within(address, connection.slices(from)).await.unwrap_or_else(|error| {
        tracing::debug!(address, error = format!("{error:#}"), "a worker did not tell its slices");
        Answer::Silence
    });
    Ok((report, Some(answer)))
}

/// Gives a worker its assignment. One that has a newer one keeps it, and tells of it in its report.
pub async fn assign(config: Arc<ClientConfig>, address: &str, assignment: &Assignment) -> anyhow::Result<()> {
    let body = Bytes::from(serde_json::to_vec(assignment)?);
    let (status, body) = call(config, address, Method::PUT, "/v1/assignment", body).await?;
    match status {
        StatusCode::OK | StatusCode::CONFLICT => Ok(()),
        status => bail!("{address} answered {status}: {}", String::from_utf8_lossy(&body)),
    }
}

/// Tells a worker that nobody will take its tasks when it is told to end.
pub async fn let_go(config: Arc<ClientConfig>, address: &str) -> anyhow::Result<()> {
    match call(config, address, Method::PUT, "/v1/let-go", Bytes::new()).await? {
        (StatusCode::OK, _) => Ok(()),
        (status, _) => bail!("{address} answered {status}"),
    }
}

/// Tells a backfill how many records it may read in a second.
pub async fn pace(config: Arc<ClientConfig>, address: &str, records_per_second: Option<u64>) -> anyhow::Result<()> {
    let body = Bytes::from(serde_json::to_vec(&serde_json::json!({"recordsPerSecond": records_per_second}))?);
    match call(config, address, Method::PUT, "/v1/rate", body).await? {
        (StatusCode::OK, _) => Ok(()),
        (status, body) => bail!("{address} answered {status}: {}", String::from_utf8_lossy(&body)),
    }
}

async fn call(
    config: Arc<ClientConfig>,
    address: &str,
    method: Method,
    path: &str,
    body: Bytes,
) -> anyhow::Result<(StatusCode, Bytes)> {
    let exchange = async { Connection::open(config, address).await?.send(method, path, body).await };
    within(address, exchange).await
}

async fn within<T>(address: &str, exchange: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::time::timeout(CALL, exchange).await.with_context(|| format!("{address} did not answer"))?
}

struct Connection<'a> {
    address: &'a str,
    sender: SendRequest<Full<Bytes>>,
    /// It is worked on beside the requests, and ends with them.
    _beside: JoinSet<hyper::Result<()>>,
}

impl<'a> Connection<'a> {
    async fn open(config: Arc<ClientConfig>, address: &'a str) -> anyhow::Result<Self> {
        let tcp = TcpStream::connect(address).await.with_context(|| format!("connect to {address}"))?;
        let host = ServerName::try_from(WORKER_HOST)?;
        let tls = TlsConnector::from(config).connect(host, tcp).await.with_context(|| format!("greet {address}"))?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tls)).await?;
        let mut beside = JoinSet::new();
        beside.spawn(connection);
        Ok(Self { address, sender, _beside: beside })
    }

    async fn send(&mut self, method: Method, path: &str, body: Bytes) -> anyhow::Result<(StatusCode, Bytes)> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", WORKER_HOST)
            .header("content-type", "application/json")
            .body(Full::new(body))?;
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let status = response.status();
        let body = http_body_util::Limited::new(response.into_body(), REPORT_BYTES_MAX).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("read the answer of {}: {error}", self.address))?;
        Ok((status, body.to_bytes()))
    }

    async fn slices(&mut self, from: i64) -> anyhow::Result<Answer> {
        let (status, body) = self.send(Method::GET, &format!("/v1/slices?from={from}"), Bytes::new()).await?;
        match status {
            StatusCode::OK => {
                let report: SlicesReport = serde_json::from_slice(&body).context("read slices")?;
                Ok(Answer::Slices(report))
            }
            StatusCode::NOT_FOUND => Ok(Answer::Mute),
            status => bail!("{} answered {status}", self.address),
        }
    }
}

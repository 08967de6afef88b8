//! The operator's side of a worker's control API, authorities for both, and workers that are managed by it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use millrace_core::assignment::{Assignment, Placement};
use millrace_core::ids::{Generation, Partition};
use millrace_core::report::WorkerReport;
use millrace_kafka_harness::wait;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::kafka::shared as kafka;
use crate::story::{DEADLINE, Shape, Story, Worker};

/// What every worker is called, since it is reached by an address.
const NAME: &str = "worker.millrace";

/// Who signs the certificates of a pipeline.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate, PEM.
    pub certificate: String,
}

/// A certificate and its key, PEM.
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> anyhow::Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), certificate })
    }

    pub fn sign(&self) -> anyhow::Result<Identity> {
        self.sign_until(2100)
    }

    /// A certificate that is good until that year begins.
    pub fn sign_until(&self, year: i32) -> anyhow::Result<Identity> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![NAME.to_owned()])?;
        params.not_after = date_time_ymd(year, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Identity { certificate, key: key.serialize_pem() })
    }
}

/// Puts what a worker needs into a folder: it trusts the authorities `trusted`.
pub fn install(dir: &Path, trusted: &[&Authority], own: &Identity) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir)?;
    let trusted: String = trusted.iter().map(|authority| authority.certificate.as_str()).collect();
    for (name, text) in [("ca.crt", &trusted), ("tls.crt", &own.certificate), ("tls.key", &own.key)] {
        let (path, next) = (dir.join(name), dir.join(format!("{name}.next")));
        std::fs::write(&next, text).and_then(|()| std::fs::rename(&next, &path)).context("write a certificate")?;
    }
    Ok(())
}

/// One who asks workers.
pub struct Client {
    config: Arc<ClientConfig>,
}

impl Client {
    /// It trusts some authorities, and shows a certificate if it has one.
    pub fn new(trusted: &[&Authority], own: Option<&Identity>) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        for authority in trusted {
            roots.add(CertificateDer::from_pem_slice(authority.certificate.as_bytes())?)?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots);
        let config = match own {
            None => config.with_no_client_auth(),
            Some(Identity { certificate, key }) => config.with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(certificate.as_bytes())?],
                PrivateKeyDer::from_pem_slice(key.as_bytes())?,
            )?,
        };
        Ok(Self { config: Arc::new(config) })
    }

    fn ask(&self, to: SocketAddr, method: &str, path: &str, body: &str) -> anyhow::Result<(u16, String)> {
        let tcp = TcpStream::connect(to)?;
        tcp.set_read_timeout(Some(DEADLINE))?;
        let connection = ClientConnection::new(Arc::clone(&self.config), ServerName::try_from(NAME)?)?;
        let mut stream = StreamOwned::new(connection, tcp);
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let status = text.split_whitespace().nth(1).and_then(|s| s.parse().ok()).context("read the status")?;
        let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
        Ok((status, body))
    }

    pub fn status(&self, to: SocketAddr) -> anyhow::Result<WorkerReport> {
        let (status, body) = self.ask(to, "GET", "/v1/status", "")?;
        anyhow::ensure!(status == 200, "{status}: {body}");
        Ok(serde_json::from_str(&body)?)
    }

    /// Asks for slices: status and text of the answer.
    pub fn slices(&self, to: SocketAddr, query: &str) -> anyhow::Result<(u16, String)> {
        self.ask(to, "GET", &format!("/v1/slices{query}"), "")
    }

    /// Hands an assignment over: status and text of the answer.
    pub fn assign(&self, to: SocketAddr, assignment: &Assignment) -> anyhow::Result<(u16, String)> {
        self.ask(to, "PUT", "/v1/assignment", &serde_json::to_string(assignment)?)
    }

    /// Tells a backfill how fast to read: the status of the answer.
    pub fn rate(&self, to: SocketAddr, body: &str) -> anyhow::Result<u16> {
        Ok(self.ask(to, "PUT", "/v1/rate", body)?.0)
    }

    /// Says that nobody will take its tasks: the status of the answer.
    pub fn let_go(&self, to: SocketAddr) -> anyhow::Result<u16> {
        Ok(self.ask(to, "PUT", "/v1/let-go", "")?.0)
    }
}

/// Some partitions of stages, all for lane 0 of worker 0.
pub fn assignment(generation: u64, stages: &[&str], partitions: i32) -> Assignment {
    let place = |stage: &&str| {
        let stage = (*stage).to_owned();
        (0..partitions).map(move |p| Placement { stage: stage.clone(), partition: Partition(p), worker: 0, lane: 0 })
    };
    let tasks = stages.iter().flat_map(place).collect();
    Assignment { generation: Generation(generation), plan: 1, tasks, ..Assignment::default() }
}

/// A worker with its operator's side.
pub struct Managed {
    pub worker: Worker,
    client: Client,
    address: SocketAddr,
}

impl Managed {
    /// The file has `first`; `more` are other arguments.
    pub fn start(story: &Story, state: &str, first: &Assignment, more: &[&str]) -> anyhow::Result<Self> {
        Self::start_of(story, &story.file(), state, first, more)
    }

    /// The same, of another pipeline's file.
    pub fn start_of(
        story: &Story,
        pipeline: &Path,
        state: &str,
        first: &Assignment,
        more: &[&str],
    ) -> anyhow::Result<Self> {
        let file = story.dir().join(format!("assignment-{state}.json"));
        std::fs::write(&file, serde_json::to_vec(first)?)?;
        let assignment = ["--assignment", &file.display().to_string()].map(str::to_owned);
        let more: Vec<&str> = assignment.iter().map(String::as_str).chain(more.iter().copied()).collect();
        Self::start_in(story.dir(), pipeline, state, &more)
    }

    /// What its other arguments say, of a pipeline's file; its state and its certificates are in a folder.
    pub fn start_in(folder: &Path, pipeline: &Path, state: &str, more: &[&str]) -> anyhow::Result<Self> {
        let (authority, dir) = (Authority::new()?, folder.join(format!("control-{state}")));
        install(&dir, &[&authority], &authority.sign()?)?;
        let dir = dir.display().to_string();
        let arguments = ["--control", "127.0.0.1:0", "--control-tls", &dir];
        let mut worker = Worker::start(pipeline, &folder.join(state), &[&arguments[..], more].concat())?;
        worker.wait_log("control=", 1)?;
        let log = worker.log();
        let address = log.split("control=").nth(1).and_then(|rest| rest.split_whitespace().next());
        let address = address.context("the address is logged")?.parse()?;
        Ok(Self { worker, client: Client::new(&[&authority], Some(&authority.sign()?))?, address })
    }

    pub fn status(&self) -> WorkerReport {
        self.client.status(self.address).expect("the worker answers")
    }

    pub fn assign(&self, assignment: &Assignment) -> (u16, String) {
        self.client.assign(self.address, assignment).expect("the worker answers")
    }

    pub fn rate(&self, body: &str) -> u16 {
        self.client.rate(self.address, body).expect("the worker answers")
    }

    pub fn let_go(&self) -> u16 {
        self.client.let_go(self.address).expect("the worker answers")
    }

    /// It is told to end, and that nobody takes its tasks.
    pub fn end(self) {
        assert_eq!(self.let_go(), 200);
        self.worker.stop().expect("a clean end");
    }

    /// Waits until it says so.
    pub fn wait(&self, what: &str, condition: impl Fn(&WorkerReport) -> bool) -> WorkerReport {
        let mut seen = WorkerReport::default();
        let waited = wait::until(what, DEADLINE, || {
            seen = self.status();
            Ok(condition(&seen))
        });
        waited.unwrap_or_else(|error| panic!("{error:#}: {seen:#?}\n{}", self.worker.log()));
        seen
    }
}

/// A story with no more load than a busy machine carries.
pub fn paced(name: &str, shape: Shape) -> Story {
    let mut story = Story::new(kafka(), name, shape, 2).expect("the story's topics are made");
    story.pace = Duration::from_millis(20);
    story
}

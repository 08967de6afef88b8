//! An external-metrics API of a test's own, as autoscalers ask it: one figure, whatever it is called.
//!
//! The API server passes requests on to it (`APIService`), over HTTPS, to an address of this machine.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use millrace_cluster_harness::Cluster;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS13;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use crate::control::{Authority, Identity};

const GROUP: &str = "external.metrics.k8s.io";
const VERSION: &str = "v1beta1";
/// Of the APIService: version and group.
const API: &str = "v1beta1.external.metrics.k8s.io";
/// Of Service and EndpointSlice.
const NAME: &str = "test-metrics";
/// Clients hold connections ready that they never use.
const REQUEST: Duration = Duration::from_secs(5);

pub struct ExternalMetric<'a> {
    cluster: &'a Cluster,
    shared: Arc<Shared>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    config: Arc<ServerConfig>,
    value: AtomicU64,
    stop: AtomicBool,
}

impl<'a> ExternalMetric<'a> {
    /// Serves, and returns when the API server passes requests on.
    pub fn serve(cluster: &'a Cluster) -> anyhow::Result<Self> {
        // Nobody checks whose it is.
        let Identity { certificate, key } = Authority::new()?.sign()?;
        let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes())?];
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])?
            .with_no_client_auth()
            .with_single_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes())?)?;
        let (value, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let shared = Arc::new(Shared { config: Arc::new(config), value, stop });
        let listener = TcpListener::bind((cluster.host_address()?, 0))?;
        let (address, serving) = (listener.local_addr()?, Arc::clone(&shared));
        #[expect(clippy::disallowed_methods, reason = "joined when it is dropped")]
        let thread = std::thread::spawn(move || serving.serve(&listener));
        let served = Self { cluster, shared, address, thread: Some(thread) };
        cluster.apply(&objects(address).to_string())?;
        cluster.until("the metrics API", || {
            let path = "jsonpath={.status.conditions[?(@.type=='Available')].status}";
            Ok(cluster.kubectl(&["get", "apiservice", API, "-o", path])? == "True")
        })?;
        Ok(served)
    }

    pub fn set(&self, value: u64) {
        self.shared.value.store(value, Ordering::Relaxed);
    }
}

impl Drop for ExternalMetric<'_> {
    fn drop(&mut self) {
        // With an API that nobody serves no namespace could be deleted any more.
        drop(self.cluster.kubectl(&["delete", "apiservice", API]));
        drop(self.cluster.kubectl(&["delete", "service,endpointslice", NAME]));
        self.shared.stop.store(true, Ordering::Relaxed);
        // It waits for a connection.
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Shared {
    fn serve(&self, listener: &TcpListener) {
        std::thread::scope(|scope| {
            for tcp in listener.incoming() {
                if self.stop.load(Ordering::Relaxed) {
                    return;
                }
                // Who goes away, or asks nothing, needs no answer.
                scope.spawn(move || drop(tcp.map_err(anyhow::Error::from).and_then(|tcp| self.answer(tcp))));
            }
        });
    }

    fn answer(&self, tcp: TcpStream) -> anyhow::Result<()> {
        tcp.set_read_timeout(Some(REQUEST))?;
        let mut stream = StreamOwned::new(ServerConnection::new(Arc::clone(&self.config))?, tcp);
        let request = request_line(&mut stream)?;
        let said = self.said(request.split([' ', '?']).nth(1).unwrap_or_default());
        let (status, body) = said.map_or(("404 Not Found", String::new()), |said| ("200 OK", said.to_string()));
        let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close");
        write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
        stream.flush()?;
        Ok(())
    }

    fn said(&self, path: &str) -> Option<Value> {
        let group_version = format!("{GROUP}/{VERSION}");
        let metric = path.strip_prefix("/apis/")?.strip_prefix(&group_version)?;
        if metric.is_empty() {
            let kind = "APIResourceList";
            return Some(json!({"kind": kind, "apiVersion": "v1", "groupVersion": group_version, "resources": []}));
        }
        let item = json!({
            "metricName": metric.rsplit('/').next(),
            "metricLabels": {},
            "timestamp": "2026-01-01T00:00:00Z",
            "value": self.value.load(Ordering::Relaxed).to_string(),
        });
        let kind = "ExternalMetricValueList";
        Some(json!({"kind": kind, "apiVersion": group_version, "metadata": {}, "items": [item]}))
    }
}

/// The first line of a request, once its head is read. None of them has a body.
fn request_line(stream: impl Read) -> std::io::Result<String> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    for header in lines {
        if header?.is_empty() {
            break;
        }
    }
    Ok(first)
}

fn objects(address: SocketAddr) -> Value {
    let slice = json!({"name": NAME, "namespace": "default", "labels": {"kubernetes.io/service-name": NAME}});
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": NAME, "namespace": "default"},
            "spec": {"ports": [{"name": "https", "port": 443}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": slice,
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address.ip().to_string()]}],
            "ports": [{"name": "https", "port": address.port()}],
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": API},
            "spec": {
                "service": {"name": NAME, "namespace": "default", "port": 443},
                "group": GROUP,
                "version": VERSION,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "insecureSkipTLSVerify": true,
            },
        },
    ]})
}

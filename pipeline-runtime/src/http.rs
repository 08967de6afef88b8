//! `/metrics`, `/healthz` and `/readyz`, on a thread of their own so that a busy lane cannot starve them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::Context;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::Listener;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::metrics::Metrics;

struct Shared {
    metrics: Arc<Metrics>,
    ready: Arc<AtomicBool>,
}

/// The running server. Dropping it stops it and waits for it.
pub struct Server {
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Starts serving at `address`; port 0 takes any free port.
pub fn serve(address: SocketAddr, metrics: Arc<Metrics>, ready: Arc<AtomicBool>) -> anyhow::Result<Server> {
    let router = Router::new()
        .route("/metrics", get(metrics_text))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readiness))
        .with_state(Arc::new(Shared { metrics, ready }));
    start("http", address, router, |listener| listener)
}

/// Serves a router on a thread of its own, with the connections that `listener` makes of those to the address.
#[expect(clippy::disallowed_methods, reason = "the thread is joined when the server is dropped")]
pub fn start<L: Listener<Addr = SocketAddr>>(
    name: &'static str,
    address: SocketAddr,
    router: Router,
    listener: impl FnOnce(TcpListener) -> L + Send + 'static,
) -> anyhow::Result<Server> {
    let tcp = std::net::TcpListener::bind(address).with_context(|| format!("listen on {address}"))?;
    tcp.set_nonblocking(true).context("make the listener non-blocking")?;
    let address = tcp.local_addr().context("ask for the listener's address")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the server")?;
    let (stop, stopped) = oneshot::channel();
    let serve = move || {
        runtime.block_on(async move {
            let tcp = match TcpListener::from_std(tcp) {
                Ok(tcp) => tcp,
                Err(error) => return tracing::error!(%error, name, "nothing is served"),
            };
            let shutdown = async move {
                // Either a stop was sent or its sender is gone; both mean stop.
                let _ = stopped.await;
            };
            if let Err(error) = axum::serve(listener(tcp), router).with_graceful_shutdown(shutdown).await {
                tracing::error!(%error, name, "nothing is served any more");
            }
        });
    };
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(serve).context("start the server's thread")?;
    Ok(Server { address, stop: Some(stop), thread: Some(thread) })
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // The server may have ended by itself.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the server's thread panicked");
        }
    }
}

async fn metrics_text(State(shared): State<Arc<Shared>>) -> Response {
    match shared.metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("render metrics: {error}\n")).into_response(),
    }
}

async fn readiness(State(shared): State<Arc<Shared>>) -> Response {
    if shared.ready.load(Ordering::Relaxed) {
        "ready\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "tasks are being restored\n").into_response()
    }
}

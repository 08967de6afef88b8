//! `/metrics`, `/healthz`, `/readyz`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::clock;
use crate::metrics::Metrics;
use crate::queue::Queue;

/// A look that waits or lasts longer is no progress. A look's own bounds add up to well below it.
const STUCK: Duration = Duration::from_secs(180);

#[derive(Clone)]
pub struct Health {
    pub metrics: Arc<Metrics>,
    pub queue: Arc<Queue>,
    /// The caches are filled, or another process leads.
    pub ready: Arc<AtomicBool>,
}

/// Serves until the process ends.
pub async fn serve(address: SocketAddr, health: Health) -> anyhow::Result<()> {
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthy))
        .route("/readyz", get(ready))
        .with_state(health);
    let listener = tokio::net::TcpListener::bind(address).await.with_context(|| format!("listen on {address}"))?;
    axum::serve(listener, router).await.context("serve /metrics")
}

async fn metrics(State(health): State<Health>) -> Response {
    health.metrics.queued.set(health.queue.len() as i64);
    match health.metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("render metrics: {error}\n")).into_response(),
    }
}

async fn healthy(State(health): State<Health>) -> Response {
    let oldest = health.queue.oldest(clock::instant());
    if oldest < STUCK {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("a pipeline has waited for {} s\n", oldest.as_secs())).into_response()
}

async fn ready(State(health): State<Health>) -> Response {
    match health.ready.load(Ordering::Relaxed) {
        true => "ready\n".into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, "caches are being filled\n").into_response(),
    }
}

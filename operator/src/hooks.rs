//! What the chart's hooks ask: before everything goes, and whether it came.

use anyhow::{Context, bail};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use millrace_crds::pipeline::{API_VERSION, KIND};
use millrace_operator_core::names::FINALIZER;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::apply::pipelines;

/// Refuses while there are Pipelines, or releases those that wait for an operator.
pub async fn uninstall(client: Client, namespaces: &[String], release: bool, advice: &str) -> anyhow::Result<()> {
    let mut found = Vec::new();
    for api in apis(&client, namespaces) {
        match api.list(&ListParams::default()).await {
            Ok(list) => found.extend(list.items),
            // The definition itself is gone.
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => return Err(error).context("list the Pipelines"),
        }
    }
    if found.is_empty() {
        println!("there are no Pipelines");
        return Ok(());
    }
    let names = found.iter().map(|object| {
        let metadata = &object.metadata;
        format!(
            "{}/{}",
            metadata.namespace.as_deref().unwrap_or_default(),
            metadata.name.as_deref().unwrap_or_default()
        )
    });
    let names = names.collect::<Vec<_>>().join(", ");
    if !release {
        bail!("there are Pipelines, and nobody would look after them: {names}; {advice}");
    }
    for object in &found {
        release_one(&client, object).await?;
    }
    println!("released: {names}");
    Ok(())
}

async fn release_one(client: &Client, object: &DynamicObject) -> anyhow::Result<()> {
    let metadata = &object.metadata;
    let (Some(namespace), Some(name)) = (&metadata.namespace, &metadata.name) else { return Ok(()) };
    let before = metadata.finalizers.clone().unwrap_or_default();
    let after: Vec<&String> = before.iter().filter(|name| *name != FINALIZER).collect();
    if after.len() == before.len() {
        return Ok(());
    }
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &pipelines());
    let patch = json!({"metadata": {"finalizers": after, "resourceVersion": metadata.resource_version}});
    let patched = api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
    patched.map(drop).with_context(|| format!("release {namespace}/{name}"))
}

/// That the API server serves our kind, and that an operator answers at `url`.
pub async fn self_test(client: Client, url: &str) -> anyhow::Result<()> {
    let group = API_VERSION.split_once('/').map_or("", |(group, _)| group);
    let group = kube::discovery::group(&client, group).await.context("ask the API server for our kinds")?;
    if !group.recommended_resources().iter().any(|(resource, _)| resource.kind == KIND) {
        bail!("the API server does not serve {API_VERSION} {KIND}");
    }
    let uri: Uri = url.parse().with_context(|| format!("read --operator {url}"))?;
    let host = uri.authority().with_context(|| format!("--operator {url}: there is no host in it"))?;
    let tcp = TcpStream::connect(host.as_str()).await.with_context(|| format!("connect to {host}"))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tcp)).await?;
    let mut beside = JoinSet::new();
    beside.spawn(connection);
    let request = Request::get(uri.path()).header("host", host.as_str()).body(String::new())?;
    let response = sender.send_request(request).await.with_context(|| format!("ask {url}"))?;
    if response.status() != StatusCode::OK {
        bail!("{url} answered {}", response.status());
    }
    println!("the API server serves {API_VERSION} {KIND}, and the operator is ready");
    Ok(())
}

fn apis(client: &Client, namespaces: &[String]) -> Vec<Api<DynamicObject>> {
    let all = || Api::all_with(client.clone(), &pipelines());
    let one = |namespace: &String| Api::namespaced_with(client.clone(), namespace, &pipelines());
    if namespaces.is_empty() { vec![all()] } else { namespaces.iter().map(one).collect() }
}

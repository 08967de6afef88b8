//! What the chart's hooks ask: before everything goes, and whether it came.

use anyhow::{Context, bail};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use millrace_crds::pipeline::{API_VERSION, KIND};
use millrace_crds::{backfill, savepoint};
use millrace_operator_core::names::FINALIZER;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::apply::{pipelines, savepoints};

/// Refuses while there are Pipelines, or Savepoints whose files go with them; or releases those that wait for an operator.
pub async fn uninstall(client: Client, namespaces: &[String], release: bool, advice: &str) -> anyhow::Result<()> {
    let (mut found, mut names) = (Vec::new(), Vec::new());
    for resource in [pipelines(), savepoints()] {
        for api in apis(&client, namespaces, &resource) {
            match api.list(&ListParams::default()).await {
                Ok(list) => found.extend(list.items.into_iter().map(|object| (resource.clone(), object))),
                // The definition itself is gone.
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                Err(error) => return Err(error).with_context(|| format!("list the {}", resource.plural)),
            }
        }
    }
    found.retain(|(resource, object)| resource.kind == KIND || is_held(object));
    if found.is_empty() {
        println!("there are no Pipelines");
        return Ok(());
    }
    for (resource, object) in &found {
        let metadata = &object.metadata;
        let [namespace, name] = [&metadata.namespace, &metadata.name].map(|text| text.as_deref().unwrap_or_default());
        names.push(format!("{} {namespace}/{name}", resource.kind));
    }
    let names = names.join(", ");
    if !release {
        bail!("there are objects that nobody would look after: {names}; {advice}");
    }
    for (resource, object) in &found {
        release_one(&client, resource, object).await?;
    }
    println!("released: {names}");
    Ok(())
}

fn is_held(object: &DynamicObject) -> bool {
    object.metadata.finalizers.iter().flatten().any(|name| name == FINALIZER)
}

async fn release_one(client: &Client, resource: &ApiResource, object: &DynamicObject) -> anyhow::Result<()> {
    let metadata = &object.metadata;
    let (Some(namespace), Some(name)) = (&metadata.namespace, &metadata.name) else { return Ok(()) };
    if !is_held(object) {
        return Ok(());
    }
    let after: Vec<&String> = metadata.finalizers.iter().flatten().filter(|name| *name != FINALIZER).collect();
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, resource);
    let patch = json!({"metadata": {"finalizers": after, "resourceVersion": metadata.resource_version}});
    let patched = api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
    patched.map(drop).with_context(|| format!("release {namespace}/{name}"))
}

/// That the API server serves our kinds, and that an operator answers at `url`.
pub async fn self_test(client: Client, url: &str) -> anyhow::Result<()> {
    let group = API_VERSION.split_once('/').map_or("", |(group, _)| group);
    let group = kube::discovery::group(&client, group).await.context("ask the API server for our kinds")?;
    let served = group.recommended_resources();
    for kind in [KIND, savepoint::KIND, backfill::KIND] {
        if !served.iter().any(|(resource, _)| resource.kind == kind) {
            bail!("the API server does not serve {API_VERSION} {kind}");
        }
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
    println!("the API server serves our kinds of {API_VERSION}, and the operator is ready");
    Ok(())
}

fn apis(client: &Client, namespaces: &[String], resource: &ApiResource) -> Vec<Api<DynamicObject>> {
    let all = || Api::all_with(client.clone(), resource);
    let one = |namespace: &String| Api::namespaced_with(client.clone(), namespace, resource);
    if namespaces.is_empty() { vec![all()] } else { namespaces.iter().map(one).collect() }
}

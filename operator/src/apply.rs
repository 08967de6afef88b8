//! Carries decisions out.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::core::GroupVersionKind;
use kube::runtime::events::{Event as KubeEvent, EventType, Recorder};
use millrace_crds::pipeline::{API_VERSION, KIND, PipelineStatus};
use millrace_crds::timestamp::Timestamp;
use millrace_crds::{backfill, savepoint};
use millrace_operator_core::decision::{Action, Certify, Event};
use millrace_operator_core::names::{AUTOSCALER, FIELD_MANAGER, Names, RENEW_AFTER};
use millrace_operator_core::render::PROMETHEUS_RULE;
use rustls::ClientConfig;
use serde_json::{Value, json};

use crate::cache::{Cache, Key};
use crate::certificates::{self, Certificates, Former};
use crate::workers::{self, Clients, Identity};

/// An Event's note is at most 1 kB.
const NOTE_BYTES_MAX: usize = 1_000;

/// The kinds that belong to Pipelines: API version, kind, plural.
pub const CHILDREN: &[(&str, &str, &str)] = &[
    ("v1", "ConfigMap", "configmaps"),
    ("v1", "Pod", "pods"),
    ("v1", "Service", "services"),
    ("v1", "ServiceAccount", "serviceaccounts"),
    ("apps/v1", "StatefulSet", "statefulsets"),
    ("batch/v1", "Job", "jobs"),
    ("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    ("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
];

/// Kinds that are created by a call which fails where there is one: two operators must not both believe that theirs is
/// there, nor one what an old cache says. The others say the same whoever writes them.
const EXCLUSIVE: &[&str] = &["ConfigMap", "Job", "StatefulSet"];

pub fn pipelines() -> ApiResource {
    resource(API_VERSION, KIND, "pipelines")
}

pub fn savepoints() -> ApiResource {
    resource(API_VERSION, savepoint::KIND, "savepoints")
}

pub fn backfills() -> ApiResource {
    resource(API_VERSION, backfill::KIND, "backfills")
}

pub fn resource(api_version: &str, kind: &str, plural: &str) -> ApiResource {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

pub struct Writer {
    pub client: Client,
    pub recorder: Recorder,
    pub cache: Arc<Cache>,
}

impl Writer {
    /// Carries out one action.
    pub async fn act(&self, names: &Names, owner: &Value, action: &Action, clients: &Clients) -> anyhow::Result<()> {
        match action {
            Action::Put { object, over } => self.put(object, over.as_deref()).await,
            Action::Delete { api_version, kind, namespace, name, uid } => {
                let gone = DeleteParams {
                    preconditions: Some(Preconditions { uid: Some(uid.clone()), resource_version: None }),
                    ..DeleteParams::background()
                };
                match self.objects(namespace, api_version, kind).delete(name, &gone).await {
                    Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
                    outcome => outcome.map(drop).with_context(|| format!("delete {kind} {name}")),
                }
            }
            Action::Certify(what) => self.certify(names, owner, *what).await,
            Action::Push { address, assignment, .. } => {
                let key = Key { namespace: names.namespace.clone(), name: names.pipeline.clone() };
                let Some(config) = self.client_of(names, &key, clients).await? else { return Ok(()) };
                // Its file tells it too, within a minute.
                if let Err(error) = workers::assign(config, address, assignment).await {
                    tracing::debug!(%key, error = format!("{error:#}"), "a worker was not given its assignment");
                }
                Ok(())
            }
            Action::LetGo { address, .. } => {
                let key = Key { namespace: names.namespace.clone(), name: names.pipeline.clone() };
                let Some(config) = self.client_of(names, &key, clients).await? else { return Ok(()) };
                // It ends without it too, some seconds later.
                if let Err(error) = workers::let_go(config, address).await {
                    tracing::debug!(%key, error = format!("{error:#}"), "a worker was not let go");
                }
                Ok(())
            }
            Action::Scale { replicas, over } => {
                let patch = json!({"metadata": {"resourceVersion": over}, "spec": {"replicas": replicas}});
                let by = PatchParams { field_manager: Some(AUTOSCALER.to_owned()), ..PatchParams::default() };
                match self.pipelines(names).patch_scale(&names.pipeline, &by, &Patch::Merge(&patch)).await {
                    Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
                    outcome => outcome.map(drop).with_context(|| format!("scale to {replicas} workers")),
                }
            }
            Action::SetFinalizers { savepoint, finalizers, over } => {
                let patch = json!({"metadata": {"finalizers": finalizers, "resourceVersion": over}});
                let (api, name) = match savepoint {
                    Some(name) => (self.savepoints(names), name),
                    None => (self.pipelines(names), &names.pipeline),
                };
                match api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
                    Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
                    outcome => outcome.map(drop).context("set the finalizers"),
                }
            }
            Action::SavepointStatus { name, uid, status, over } => {
                let resource = savepoints();
                self.status_of(names, &resource, (name, uid, over), &json!(status)).await
            }
            Action::BackfillStatus { name, uid, status, over } => {
                let resource = backfills();
                self.status_of(names, &resource, (name, uid, over), &json!(status)).await
            }
            Action::Pace { address, records_per_second } => {
                let key = Key { namespace: names.namespace.clone(), name: names.pipeline.clone() };
                let Some(config) = self.client_of(names, &key, clients).await? else { return Ok(()) };
                // Its next report says that it has not heard, and then it is told again.
                if let Err(error) = workers::pace(config, address, *records_per_second).await {
                    tracing::debug!(%key, error = format!("{error:#}"), "a backfill was not told its rate");
                }
                Ok(())
            }
        }
    }

    /// Writes the whole status of an object that is not the Pipeline.
    async fn status_of(
        &self,
        names: &Names,
        resource: &ApiResource,
        (name, uid, over): (&str, &str, &str),
        status: &Value,
    ) -> anyhow::Result<()> {
        let kind = &resource.kind;
        let patch = json!({
            "apiVersion": API_VERSION,
            "kind": kind,
            "metadata": {"name": name, "uid": uid, "resourceVersion": over},
            "status": status,
        });
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &names.namespace, resource);
        let by = PatchParams::apply(FIELD_MANAGER).force();
        match api.patch_status(name, &by, &Patch::Apply(&patch)).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            outcome => outcome.map(drop).with_context(|| format!("write the status of {kind} {name}")),
        }
    }

    async fn put(&self, object: &Value, over: Option<&str>) -> anyhow::Result<()> {
        let (api, kind, name) = (self.of(object), text(&object["kind"]), text(&object["metadata"]["name"]));
        let mut object = object.clone();
        match over {
            Some(over) => object["metadata"]["resourceVersion"] = json!(over),
            None if EXCLUSIVE.contains(&kind.as_str()) => {
                self.create(&api, &object).await.with_context(|| format!("create {kind} {name}"))?;
                if kind != "StatefulSet" {
                    return Ok(());
                }
            }
            None => {}
        }
        let patched = api.patch(&name, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(&object)).await;
        patched.map(drop).with_context(|| format!("apply {kind} {name}"))
    }

    /// Fails where there is one already. A field that a create has set is never taken back by a later apply, so that the
    /// create's claim to them is given up, and an apply of the same follows.
    async fn create(&self, api: &Api<DynamicObject>, object: &Value) -> anyhow::Result<()> {
        let object: DynamicObject = serde_json::from_value(object.clone())?;
        let by = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let created = api.create(&by, &object).await?;
        if let Some(name) = created.metadata.name.filter(|_| object.types.is_some_and(|t| t.kind == "StatefulSet")) {
            let unclaimed = json!({"metadata": {"managedFields": [{}]}});
            api.patch(&name, &PatchParams::default(), &Patch::Merge(&unclaimed)).await?;
        }
        Ok(())
    }

    /// What the API server would say of an object; `None`: nothing against it.
    pub async fn dry_run(&self, object: &Value) -> Result<Option<String>, kube::Error> {
        let api = self.of(object);
        let dry = PatchParams { dry_run: true, ..PatchParams::apply(FIELD_MANAGER).force() };
        match api.patch(&text(&object["metadata"]["name"]), &dry, &Patch::Apply(object)).await {
            Ok(_) => Ok(None),
            Err(kube::Error::Api(status)) if status.code == 400 || status.code == 422 || status.is_forbidden() => {
                Ok(Some(status.message.clone()))
            }
            Err(error) => Err(error),
        }
    }

    pub async fn status(&self, names: &Names, status: &PipelineStatus) -> anyhow::Result<()> {
        let patch = json!({
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": names.pipeline, "uid": names.uid},
            "status": status,
        });
        let by = PatchParams::apply(FIELD_MANAGER).force();
        match self.pipelines(names).patch_status(&names.pipeline, &by, &Patch::Apply(&patch)).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            outcome => outcome.map(drop).context("write the status"),
        }
    }

    pub async fn say(&self, names: &Names, event: &Event) {
        let (kind, name, uid) = match &event.about {
            Some(about) => (about.kind, &about.name, &about.uid),
            None => (KIND, &names.pipeline, &names.uid),
        };
        let reference = k8s_openapi::api::core::v1::ObjectReference {
            api_version: Some(API_VERSION.to_owned()),
            kind: Some(kind.to_owned()),
            namespace: Some(names.namespace.clone()),
            name: Some(name.clone()),
            uid: Some(uid.clone()),
            ..Default::default()
        };
        let note: String = event.note.chars().take(NOTE_BYTES_MAX / 4).collect();
        let said = KubeEvent {
            type_: if event.warning { EventType::Warning } else { EventType::Normal },
            reason: event.reason.clone(),
            note: Some(if event.note.len() <= NOTE_BYTES_MAX { event.note.clone() } else { note }),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        // An Event is for people; what is true stands in the status.
        if let Err(error) = self.recorder.publish(&said, &reference).await {
            tracing::debug!(pipeline = %names.pipeline, %error, "an event was not written");
        }
    }

    /// How this Pipeline's workers are talked to; `None` while there are no certificates.
    pub async fn client_of(
        &self,
        names: &Names,
        key: &Key,
        clients: &Clients,
    ) -> anyhow::Result<Option<Arc<ClientConfig>>> {
        let seen = self.cache.secret(&Key { name: names.control_ca(), ..key.clone() });
        if let Some(config) = seen.and_then(|version| clients.known(key, &version)) {
            return Ok(Some(config));
        }
        let Some(secret) = self.secrets(names).get_opt(&names.control_ca()).await? else { return Ok(None) };
        let version = secret.metadata.resource_version.clone().unwrap_or_default();
        if let Some(config) = clients.known(key, &version) {
            return Ok(Some(config));
        }
        let data = secret.data.unwrap_or_default();
        let bytes = |name: &str| data.get(name).map(|bytes| bytes.0.clone()).unwrap_or_default();
        let identity =
            Identity { version, trusted: bytes("ca.crt"), certificate: bytes("tls.crt"), key: bytes("tls.key") };
        clients.make(key, &identity).map(Some)
    }

    async fn certify(&self, names: &Names, owner: &Value, what: Certify) -> anyhow::Result<()> {
        let before = self.secrets(names).get_opt(&names.control_ca()).await?;
        let former = before.as_ref().and_then(former);
        let issued = certificates::issue(names, what, former, crate::clock::now())?;
        tracing::info!(pipeline = %names.pipeline, namespace = %names.namespace, ?what, "certificates of the control API were issued");
        // Workers must trust what the operator will show before it shows it.
        for (name, data, renew_after) in secrets_of(names, &issued) {
            let object = json!({
                "apiVersion": "v1",
                "kind": "Secret",
                "type": "Opaque",
                "metadata": {
                    "name": name,
                    "namespace": names.namespace,
                    "labels": names.labels("control"),
                    "annotations": {RENEW_AFTER: renew_after.to_string()},
                    "ownerReferences": [owner],
                },
                "data": data,
            });
            let by = PatchParams::apply(FIELD_MANAGER).force();
            self.secrets(names)
                .patch(&name, &by, &Patch::Apply(&object))
                .await
                .with_context(|| format!("apply Secret {name}"))?;
        }
        Ok(())
    }

    /// Where an object is written that is about to be.
    fn of(&self, object: &Value) -> Api<DynamicObject> {
        self.objects(&text(&object["metadata"]["namespace"]), &text(&object["apiVersion"]), &text(&object["kind"]))
    }

    fn objects(&self, namespace: &str, api_version: &str, kind: &str) -> Api<DynamicObject> {
        let plural = CHILDREN.iter().chain([&PROMETHEUS_RULE]).find(|(_, of, _)| *of == kind);
        let plural = plural.map_or("", |(.., plural)| plural);
        Api::namespaced_with(self.client.clone(), namespace, &resource(api_version, kind, plural))
    }

    fn pipelines(&self, names: &Names) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &names.namespace, &pipelines())
    }

    fn savepoints(&self, names: &Names) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &names.namespace, &savepoints())
    }

    fn secrets(&self, names: &Names) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &names.namespace)
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn former(secret: &Secret) -> Option<Former> {
    let text = |name: &str| String::from_utf8(secret.data.as_ref()?.get(name)?.0.clone()).ok();
    let renew = secret.metadata.annotations.as_ref()?.get(RENEW_AFTER)?;
    Some(Former {
        trusted: text("ca.crt")?,
        authority_key: text("ca.key")?,
        renew_authority_after: Timestamp::parse(renew)?,
    })
}

/// Name, data and date of the two Secrets, the workers' first.
fn secrets_of(names: &Names, issued: &Certificates) -> [(String, BTreeMap<&'static str, String>, Timestamp); 2] {
    let encode = |text: &str| BASE64_STANDARD.encode(text);
    let server = BTreeMap::from([
        ("ca.crt", encode(&issued.trusted)),
        ("tls.crt", encode(&issued.server.certificate)),
        ("tls.key", encode(&issued.server.key)),
    ]);
    let own = BTreeMap::from([
        ("ca.crt", encode(&issued.trusted)),
        ("ca.key", encode(&issued.authority_key)),
        ("tls.crt", encode(&issued.client.certificate)),
        ("tls.key", encode(&issued.client.key)),
    ]);
    [(names.control(), server, issued.renew_leaves_after), (names.control_ca(), own, issued.renew_authority_after)]
}

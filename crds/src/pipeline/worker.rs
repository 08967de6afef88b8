//! State, delivery, and the worker pods.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::source::never;
use super::text::{ENDPOINT_PATTERN, ObjectNameText, PATH_PATTERN, QuantityText, RawObject, VERSION_PATTERN};
use crate::byte_size::ByteSize;
use crate::duration::{Duration, DurationOrNever};

/// How long state lives, and where its snapshots are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// Delete the state of join buffers, aggregates and deduplication that was not written for so long. Never applies
    /// to the latest row of a table, which has its own `table.ttl`. Default: Never.
    #[serde(default = "never")]
    pub ttl: DurationOrNever,

    /// Where snapshots go. Immutable. Default: none, state lives in changelog topics only; then savepoints are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,

    /// How often snapshots are made, and how many are kept, where there is `storage`. Default: after 64Mi, 3 are kept.
    #[serde(default)]
    pub snapshots: Snapshots,
}

impl Default for State {
    fn default() -> Self {
        Self { ttl: never(), storage: None, snapshots: Snapshots::default() }
    }
}

/// When a task's state is copied to storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Snapshots {
    /// When a task's changelog has grown by so much since its last snapshot; a restore reads about so much of it at most.
    /// Default: 64Mi.
    #[serde(default = "default_after")]
    pub after: ByteSize,

    /// How many snapshots of a task are kept beside those that savepoints need. Default: 3.
    #[serde(default = "default_keep")]
    #[schemars(range(min = 2, max = 100))]
    pub keep: u32,
}

const fn default_after() -> ByteSize {
    ByteSize::mebibytes(64)
}

const fn default_keep() -> u32 {
    3
}

impl Default for Snapshots {
    fn default() -> Self {
        Self { after: default_after(), keep: default_keep() }
    }
}

/// Exactly one kind of storage is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// A bucket of S3 or of a store that speaks its protocol. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3Storage>,
    /// A bucket of Google Cloud Storage. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gcs: Option<GcsStorage>,
    /// A container of Azure Blob Storage. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub azure: Option<AzureStorage>,
    /// A folder that every worker sees at the same path, such as a shared volume. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FileStorage>,
}

/// A bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct S3Storage {
    /// Name of the bucket.
    #[schemars(length(min = 3, max = 63))]
    pub bucket: String,
    /// What the names of our objects start with. Default: nothing.
    #[serde(default)]
    #[schemars(length(max = 512))]
    pub prefix: String,
    /// Region of the bucket. Default: the store's own default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub region: Option<String>,
    /// Address of the store, with its scheme. Default: AWS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048), regex(pattern = ENDPOINT_PATTERN))]
    pub endpoint: Option<String>,
    /// Put the bucket into the path instead of the host name. Default: false.
    #[serde(default)]
    pub path_style: bool,
    /// Secret with the keys `accessKeyId` and `secretAccessKey`. Default: none, workload identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<StorageCredentials>,
}

/// A bucket of Google Cloud Storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GcsStorage {
    /// Name of the bucket.
    #[schemars(length(min = 3, max = 222))]
    pub bucket: String,
    /// What the names of our objects start with. Default: nothing.
    #[serde(default)]
    #[schemars(length(max = 512))]
    pub prefix: String,
    /// Secret with the key `serviceAccountKey`, a service account's JSON. Default: none, workload identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<StorageCredentials>,
}

/// A container of Azure Blob Storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AzureStorage {
    /// Name of the storage account.
    #[schemars(length(min = 3, max = 24))]
    pub account: String,
    /// Name of the container.
    #[schemars(length(min = 3, max = 63))]
    pub container: String,
    /// What the names of our objects start with. Default: nothing.
    #[serde(default)]
    #[schemars(length(max = 512))]
    pub prefix: String,
    /// Secret with the key `accountKey`. Default: none, workload identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<StorageCredentials>,
}

/// A folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileStorage {
    /// Absolute path of the folder; in pods, where `worker.podTemplate` mounts the volume.
    #[schemars(length(min = 2, max = 1024), regex(pattern = PATH_PATTERN))]
    pub path: String,
}

/// A Secret in the pipeline's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageCredentials {
    /// Name of the Secret.
    #[schemars(with = "ObjectNameText")]
    pub name: String,
}

impl Storage {
    /// The Secret that it needs.
    pub fn credentials(&self) -> Option<&StorageCredentials> {
        let Self { s3, gcs, azure, file: _ } = self;
        let s3 = s3.as_ref().and_then(|s3| s3.credentials.as_ref());
        let gcs = gcs.as_ref().and_then(|gcs| gcs.credentials.as_ref());
        s3.or(gcs).or(azure.as_ref().and_then(|azure| azure.credentials.as_ref()))
    }
}

/// What is promised about results, and how often they become visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Delivery {
    /// What is promised to readers. Default: ExactlyOnce.
    #[serde(default)]
    pub guarantee: Guarantee,

    /// How often results, state and positions are committed together; results are visible after it. Default: 100ms.
    #[serde(default = "default_commit_interval")]
    pub commit_interval: Duration,
}

const fn default_commit_interval() -> Duration {
    Duration::from_ms(100)
}

impl Default for Delivery {
    fn default() -> Self {
        Self { guarantee: Guarantee::default(), commit_interval: default_commit_interval() }
    }
}

/// What is promised to readers of the results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Guarantee {
    /// A `read_committed` reader sees each result once.
    #[default]
    ExactlyOnce,
}

/// The worker pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Worker {
    /// Version of the runtime. Default: the chart's at the first start; it is pinned in the status then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = VERSION_PATTERN))]
    pub version: Option<String>,

    /// CPU and memory of a pod. Default: the chart's values.
    #[serde(default)]
    pub resources: Resources,

    /// Threads of a worker; each has its own consumer, producer and tasks. Default: from the CPU request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub lanes: Option<u16>,

    /// The pods' service account. Default: without annotations.
    #[serde(default)]
    pub service_account: ServiceAccount,

    /// Where a pod keeps its state. Default: an EmptyDir of 10Gi.
    #[serde(default)]
    pub state: WorkerState,

    /// How much is logged. Default: info.
    #[serde(default)]
    pub log_level: LogLevel,

    /// A pod template that is merged into ours. hostPath, hostNetwork and privileged are refused unless the chart allows
    /// them. Default: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<RawObject>")]
    pub pod_template: Option<Map<String, Value>>,
}

/// CPU and memory of a pod, as in every pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// What is set aside for a pod. Default: the chart's values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, QuantityText>")]
    pub requests: BTreeMap<String, Value>,
    /// What a pod may use at most. Default: the chart's values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, QuantityText>")]
    pub limits: BTreeMap<String, Value>,
}

/// The service account of the pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAccount {
    /// Annotations, for workload identity. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// Where a pod keeps its state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerState {
    /// The volume. Default: an EmptyDir of 10Gi.
    #[serde(default)]
    pub volume: VolumeSpec,
}

/// The volume of a pod's state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSpec {
    /// EmptyDir (state is restored when a pod moves) or Persistent. Default: EmptyDir.
    #[serde(default, rename = "type")]
    pub kind: VolumeType,
    /// Size of the volume. Default: 10Gi.
    #[serde(default = "default_volume_size")]
    #[schemars(with = "QuantityText")]
    pub size: Value,
    /// With type Persistent: the storage class. Default: the cluster's default class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ObjectNameText>")]
    pub storage_class_name: Option<String>,
}

fn default_volume_size() -> Value {
    Value::from("10Gi")
}

impl Default for VolumeSpec {
    fn default() -> Self {
        Self { kind: VolumeType::default(), size: default_volume_size(), storage_class_name: None }
    }
}

/// The kind of a pod's volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VolumeType {
    /// It goes with the pod.
    #[default]
    EmptyDir,
    /// It stays when the pod goes.
    Persistent,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Everything, for developers.
    Trace,
    /// What helps to find a mistake.
    Debug,
    /// State changes.
    #[default]
    Info,
    /// Odd but recovered.
    Warn,
    /// A person must act.
    Error,
}

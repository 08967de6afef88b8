//! `Pipeline` v1alpha1: what a data engineer writes, and what the operator answers in its status.
//!
//! The doc comments of the fields are the text of `kubectl explain`: each says what the field does and its default. The
//! bounds stand here as schema attributes; rules over several fields are in [`crate::rules`]; fields that this version
//! does not serve yet are in [`crate::unserved`].

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod autoscaling;
pub mod burn;
mod connection;
mod later;
mod sink;
mod slo;
mod source;
mod status;
mod step;
pub(crate) mod text;
mod worker;

pub use autoscaling::{Autoscaling, AutoscalingMode, AutoscalingStatus, LastScaled};
pub use connection::{
    Authentication, CertificateAndKey, Creation, Credentials, InternalTopics, KafkaCluster, SecretKeyRef, Tls,
};
pub use later::{AlreadyWritten, DeletionPolicy, DesiredState, HydrateFrom, NameRef, Restore, UnmappedState};
pub use sink::{DeadLetter, KafkaSink, Sink, VersionPolicy, WriteMode, WriteSpec, WriteVersion};
pub use slo::{CompletenessSlo, CorrectnessSlo, FreshnessSince, FreshnessSlo, LagSlo, Slo};
pub use source::{
    Column, EventTime, FormatSpec, FormatType, FuturePolicy, FutureSpec, JoinDefaults, KafkaSource, KeyFormat,
    KeyFormatType, KeySpec, OnError, PartitionOffset, Partitioner, Source, StartFrom, StartPolicy, TableSpec, Versions,
};
pub use status::{
    Condition, ConditionStatus, Cost, ErrorSample, LastSnapshot, PartitionLag, Phase, PipelineStatus, RescaleStatus,
    RescaleStep, RestoredFrom, SloStatus, SourceStatus,
};
pub use step::{Emit, EmitPolicy, JoinKey, JoinType, Late, Missing, Project, Step, StepKind, TableJoin, TemporalJoin};
pub use worker::{
    AzureStorage, Delivery, FileStorage, GcsStorage, Guarantee, LogLevel, Resources, S3Storage, ServiceAccount,
    Snapshots, State, Storage, StorageCredentials, VolumeSpec, VolumeType, Worker, WorkerState,
};

/// `apiVersion` of everything in this crate.
pub const API_VERSION: &str = "millrace.dev/v1alpha1";
/// `kind` of a [`Pipeline`].
pub const KIND: &str = "Pipeline";

/// A pipeline as an object: what a file holds and what the API server returns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pipeline {
    pub api_version: String,
    pub kind: String,
    pub metadata: Metadata,
    pub spec: PipelineSpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<PipelineStatus>,
}

/// The part of Kubernetes' object metadata that the data plane needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    pub name: String,
    /// `default` where a file does not say.
    #[serde(default = "default_namespace")]
    pub namespace: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

fn default_namespace() -> String {
    "default".to_owned()
}

/// What the pipeline reads, what it does with it, and where the results go. Exactly one of `steps` and `sql` says what
/// is done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PipelineSpec {
    /// Number of worker pods. Leave it out of Git when an autoscaler owns it. Default: 1.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: u32,

    /// The one Kafka cluster that all sources, sinks and dead letters are on: a transaction spans one cluster.
    pub kafka: KafkaCluster,

    /// What is read. A source with `table` is a table that joins look up; the others are streams.
    #[schemars(length(min = 1, max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub sources: Vec<Source>,

    /// What is done with the rows: a list of steps, each with a name, an input and exactly one kind. Exactly one of
    /// `steps` and `sql` is set. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub steps: Option<Vec<Step>>,

    /// The same as SQL: statements of the form `INSERT INTO sink SELECT ...` over the sources. Exactly one of `steps`
    /// and `sql` is set. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub sql: Option<String>,

    /// Where the results go.
    #[schemars(length(min = 1, max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub sinks: Vec<Sink>,

    /// Where records go that cannot be processed, with the reason in their headers. Default: none; then a source stops
    /// at such a record unless its `onError` says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_letter: Option<DeadLetter>,

    /// How long state lives and where its snapshots are. Default: no TTL, no snapshots.
    #[serde(default)]
    pub state: State,

    /// What is promised about results, and how often they become visible. Default: exactly once, every 100ms.
    #[serde(default)]
    pub delivery: Delivery,

    /// How the worker pods look. Default: the chart's values.
    #[serde(default)]
    pub worker: Worker,

    /// Service level objectives; the operator renders recording rules and burn-rate alerts for each. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub slos: Vec<Slo>,

    /// Whether the operator chooses `replicas` by itself. Default: mode Disabled.
    #[serde(default)]
    pub autoscaling: Autoscaling,

    /// Whether the pipeline runs. Default: Running.
    #[serde(default)]
    pub desired_state: DesiredState,

    /// Start from a savepoint. Consumed once for each savepoint and attempt. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore: Option<Restore>,

    /// Wait until a Backfill in mode Rebuild has built this pipeline's state. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hydrate_from: Option<HydrateFrom>,

    /// What happens to internal topics and snapshots when the object is deleted. Default: Retain.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

const fn default_replicas() -> u32 {
    1
}

impl Pipeline {
    /// What everything that we own in Kafka and in storage starts with.
    pub fn prefix(&self) -> String {
        self.spec.prefix(&self.metadata.namespace, &self.metadata.name)
    }
}

impl PipelineSpec {
    /// `kafka.internal.prefix`, or its default `<namespace>.<name>`.
    pub fn prefix(&self, namespace: &str, name: &str) -> String {
        self.kafka.internal.prefix.clone().unwrap_or_else(|| format!("{namespace}.{name}"))
    }

    /// The steps; none when the pipeline is written in SQL.
    pub fn steps(&self) -> &[Step] {
        self.steps.as_deref().unwrap_or_default()
    }

    /// The dead-letter topic.
    pub fn dead_letter_topic(&self) -> Option<&str> {
        self.dead_letter.as_ref().map(|dead_letter| dead_letter.kafka.topic.as_str())
    }

    /// What a source does with a record that it cannot read: its `onError`, or the default that depends on whether
    /// there is a dead-letter topic.
    pub fn on_error(&self, source: &Source) -> OnError {
        let default = if self.dead_letter.is_some() { OnError::DeadLetter } else { OnError::Stop };
        source.on_error.unwrap_or(default)
    }
}

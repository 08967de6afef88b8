//! What the chart says of all Pipelines.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The operator's configuration file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    pub image: Image,
    /// Version of the runtime that a new Pipeline is pinned to; the image's tag.
    pub version: String,
    #[serde(default)]
    pub resources: Map<String, Value>,
    #[serde(default)]
    pub allow: Allow,
    /// After it a deletion ends, whatever could not be removed.
    #[serde(default = "default_deletion_deadline")]
    pub deletion_deadline: millrace_crds::duration::Duration,
    #[serde(default)]
    pub compile: Compile,
    /// Which cluster this is: the uid of the namespace kube-system. Read there where the file does not say.
    #[serde(default)]
    pub cluster_id: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Image {
    pub repository: String,
    #[serde(default = "default_pull_policy")]
    pub pull_policy: String,
    #[serde(default)]
    pub pull_secrets: Vec<String>,
}

/// What a `podTemplate` may ask of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Allow {
    pub host_path: bool,
    pub host_network: bool,
    pub privileged: bool,
}

/// Bounds of the child process that compiles a spec: what a user writes must not hurt the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Compile {
    pub memory_mib: u64,
    pub cpu_seconds: u64,
    pub wall_seconds: u64,
}

impl Default for Compile {
    fn default() -> Self {
        Self { memory_mib: 512, cpu_seconds: 5, wall_seconds: 20 }
    }
}

fn default_pull_policy() -> String {
    "IfNotPresent".to_owned()
}

const fn default_deletion_deadline() -> millrace_crds::duration::Duration {
    millrace_crds::duration::Duration::from_secs(300)
}

impl Settings {
    /// The image of a version.
    pub fn image(&self, version: &str) -> String {
        format!("{}:{version}", self.image.repository)
    }
}

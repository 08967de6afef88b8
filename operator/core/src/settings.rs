//! What the chart says of all Pipelines.

use std::collections::BTreeMap;

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
    #[serde(default)]
    pub rules: Rules,
    #[serde(default)]
    pub backfill: Backfill,
    /// Which cluster this is: the uid of the namespace kube-system. Read there where the file does not say.
    #[serde(default)]
    pub cluster_id: String,
    /// The operator's own namespace; the shell knows it. Empty: it is in none.
    #[serde(skip)]
    pub namespace: String,
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

/// The pods of backfills, which are to be in nobody's way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Backfill {
    /// Empty: none.
    pub priority_class_name: String,
    /// Merged over what a worker of the pipeline gets.
    pub resources: Map<String, Value>,
}

/// Prometheus' rules about each Pipeline: see [`crate::rules`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Rules {
    pub enabled: bool,
    /// Whether they are an object of the Prometheus Operator too, and not only a ConfigMap.
    pub prometheus_rule: PrometheusRule,
    pub namespace: RulesNamespace,
    /// What a Prometheus selects its rules by.
    pub labels: BTreeMap<String, String>,
    /// Where docs/runbooks is served; empty: nowhere.
    pub runbooks: String,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            enabled: true,
            prometheus_rule: PrometheusRule::Auto,
            namespace: RulesNamespace::Pipeline,
            labels: BTreeMap::new(),
            runbooks: String::new(),
        }
    }
}

impl Rules {
    /// Whether there are objects of the Prometheus Operator. The shell has found out what `Auto` means here.
    pub fn prometheus_rules(&self) -> bool {
        self.enabled && self.prometheus_rule == PrometheusRule::Always
    }
}

/// When there is a PrometheusRule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PrometheusRule {
    /// Where the API server knows the kind.
    Auto,
    Always,
    Never,
}

/// Whose namespace the rules are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RulesNamespace {
    /// Each Pipeline's own.
    Pipeline,
    /// The operator's. For a Prometheus that makes each series and each rule say the namespace of the object that it
    /// came by (`enforcedNamespaceLabel`): the monitors are in the operator's.
    Operator,
}

impl RulesNamespace {
    /// The label in which series say the Pipeline's namespace. Where that of a monitor is enforced, Prometheus keeps what
    /// a series says itself beside it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Pipeline => "namespace",
            Self::Operator => "exported_namespace",
        }
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

//! The Kafka cluster: how to reach it, and what we own there.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::{ObjectNameText, SecretKeyText, TOPIC_PATTERN};

/// The Kafka cluster of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KafkaCluster {
    /// Brokers to ask first, as `host:port`, separated by commas.
    #[schemars(length(min = 1, max = 2048))]
    pub bootstrap_servers: String,

    /// Encrypt connections. Default: none, connections are plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,

    /// Who we are, by user name and password: exactly one mechanism. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authentication: Option<Authentication>,

    /// The topics, groups and transactional ids that we own. Default: prefix `<namespace>.<name>`, topics are created
    /// with replication factor 3.
    #[serde(default)]
    pub internal: InternalTopics,
}

/// Encryption, and optionally a client certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tls {
    /// Certificates of the authorities that we trust. Default: those of the image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub trusted_certificates: Vec<SecretKeyRef>,

    /// Our own certificate and key for mutual TLS. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_and_key: Option<CertificateAndKey>,
}

/// A client certificate and its key, both in one Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CertificateAndKey {
    /// Name of the Secret.
    #[schemars(with = "ObjectNameText")]
    pub name: String,
    /// Key of the certificate in the Secret. Default: tls.crt.
    #[serde(default = "tls_crt")]
    #[schemars(with = "SecretKeyText")]
    pub certificate: String,
    /// Key of the private key in the Secret. Default: tls.key.
    #[serde(default = "tls_key")]
    #[schemars(with = "SecretKeyText")]
    pub key: String,
}

fn tls_crt() -> String {
    "tls.crt".to_owned()
}

fn tls_key() -> String {
    "tls.key".to_owned()
}

/// Exactly one of the mechanisms is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Authentication {
    /// SCRAM-SHA-512.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scram_sha512: Option<Credentials>,
    /// SCRAM-SHA-256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scram_sha256: Option<Credentials>,
    /// SASL/PLAIN: the password itself crosses the connection, so use it with `tls` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plain: Option<Credentials>,
}

/// User name and password.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Credentials {
    /// Where the user name is.
    pub username: SecretKeyRef,
    /// Where the password is.
    pub password: SecretKeyRef,
}

/// A key of a Secret in the pipeline's namespace. Outside of a cluster it is the file `<name>/<key>` below `--secrets`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the Secret.
    #[schemars(with = "ObjectNameText")]
    pub name: String,
    /// Key in the Secret.
    #[schemars(with = "SecretKeyText")]
    pub key: String,
}

/// What we own in Kafka.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InternalTopics {
    /// Names of our group, transactional ids and topics start with it; grant ACLs on it. Immutable. Default:
    /// `<namespace>.<name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 150), regex(pattern = TOPIC_PATTERN))]
    pub prefix: Option<String>,

    /// Create our topics, or require that somebody else has created them. Default: Create.
    #[serde(default)]
    pub creation: Creation,

    /// Replication factor of the topics that we create. Default: 3.
    #[serde(default = "default_replication_factor")]
    #[schemars(range(min = 1, max = 15))]
    pub replication_factor: u16,
}

/// Who creates our topics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Creation {
    /// We do.
    #[default]
    Create,
    /// They must be there; a missing one is an error that names it.
    RequireExisting,
}

const fn default_replication_factor() -> u16 {
    3
}

impl Default for InternalTopics {
    fn default() -> Self {
        Self { prefix: None, creation: Creation::default(), replication_factor: default_replication_factor() }
    }
}

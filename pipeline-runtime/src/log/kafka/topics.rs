//! Topics as an administrator sees them: what there is, what it allows, and the making of our own.

use std::collections::BTreeMap;

use futures_executor::block_on;
use rdkafka::admin::{
    AdminClient, AdminOptions, ConfigResource, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;

use super::lookup::describe;
use super::native::Client;
use super::{InternalTopics, fault, passing};
use crate::clock;
use crate::log::{InternalKind, LogError, TOMBSTONES_MS, TopicInfo};

/// How long a request of an administrator may take.
const REQUEST_MS: u64 = 30_000;
/// How long after its creation a topic may be unknown to some broker.
const KNOWN_MS: u64 = 15_000;
/// Pause before a request is made again that failed in passing.
const RETRY_MS: u64 = 50;
/// What a broker allows where nobody has said anything else (`message.max.bytes`).
const RECORD_BYTES_DEFAULT: usize = 1_048_588;
/// Our own topics take any row that a topic of the user's can hold, and its state.
const INTERNAL_RECORD_BYTES: usize = 16 << 20;

/// A topic's configuration, defaults included.
pub type Settings = BTreeMap<String, String>;

/// Sends what the library logs to our log.
pub struct Logged;

impl ClientContext for Logged {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        match level {
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
                tracing::error!(facility, "{line}");
            }
            RDKafkaLogLevel::Error | RDKafkaLogLevel::Warning => tracing::warn!(facility, "{line}"),
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => tracing::info!(facility, "{line}"),
            RDKafkaLogLevel::Debug => tracing::debug!(facility, "{line}"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // Broker connections come and go by themselves, and in an outage thousands of times.
        if error.rdkafka_error_code().is_some_and(passing) {
            tracing::debug!(%error, reason, "client");
        } else {
            tracing::warn!(%error, reason, "client");
        }
    }
}

impl ConsumerContext for Logged {}

/// A name, and whether it was there and is gone, or why it is not.
pub type Deleted = (String, Result<bool, String>);

/// The administrator's client, which lives while a lane starts.
pub struct Admin {
    client: AdminClient<Logged>,
}

impl Admin {
    pub fn connect(config: &rdkafka::ClientConfig) -> Result<Self, LogError> {
        Ok(Self { client: config.create_with_context(Logged).map_err(client_error)? })
    }

    /// The configuration of each topic; `None`: it may not be read, or there is no such topic. (The library's wrapper
    /// tells no more: it gives an empty configuration then.)
    pub fn settings(&self, topics: &[&str]) -> Result<Vec<Option<Settings>>, LogError> {
        if topics.is_empty() {
            return Ok(Vec::new());
        }
        let asked: Vec<_> = topics.iter().map(|t| ResourceSpecifier::Topic(t)).collect();
        let what = "read the configuration of topics";
        let answers = retrying(what, || block_on(self.client.describe_configs(&asked, &options())))?;
        let read = |resource: ConfigResource| -> Settings {
            resource.entries.into_iter().map(|e| (e.name, e.value.unwrap_or_default())).collect()
        };
        Ok(answers.into_iter().map(|answer| answer.ok().map(read).filter(|s| !s.is_empty())).collect())
    }

    /// The largest record that each topic takes, in bytes. A topic whose configuration may not be read has the
    /// broker's default.
    pub fn record_limits(&self, topics: &[&str]) -> Result<BTreeMap<String, usize>, LogError> {
        let limit = |settings: Option<Settings>| settings?.get("max.message.bytes")?.parse().ok();
        let limits = self.settings(topics)?.into_iter().map(|s| limit(s).unwrap_or(RECORD_BYTES_DEFAULT));
        Ok(topics.iter().map(|topic| (*topic).to_owned()).zip(limits).collect())
    }

    /// How long a topic keeps the deletes of keys, if it is compacted and loses nothing else. A topic whose configuration
    /// may not be read is not known to be compacted.
    pub fn tombstones_ms(&self, topic: &str) -> Result<Option<i64>, LogError> {
        let Some(settings) = self.settings(&[topic])?.pop().flatten() else { return Ok(None) };
        let compacted = settings.get("cleanup.policy").is_some_and(|policy| policy == "compact");
        Ok(settings.get("delete.retention.ms").filter(|_| compacted).and_then(|text| text.parse().ok()))
    }

    /// Gives a topic of our own more partitions. One that has them is left as it is.
    pub fn grow(&self, name: &str, partitions: i32) -> Result<(), LogError> {
        let what = format!("give topic '{name}' {partitions} partitions");
        let count = usize::try_from(partitions).unwrap_or(0);
        let new = NewPartitions::new(name, count);
        let answers = retrying(&what, || block_on(self.client.create_partitions([&new], &options())))?;
        for answer in answers {
            match answer {
                Ok(_) | Err((_, RDKafkaErrorCode::InvalidPartitions)) => {}
                Err((_, code)) => return Err(fault(&what, &code.to_string(), passing(code))),
            }
        }
        Ok(())
    }

    /// Creates a topic of our own. One that is there already is left as it is.
    pub fn create(
        &self,
        name: &str,
        kind: InternalKind,
        partitions: i32,
        internal: &InternalTopics,
    ) -> Result<(), LogError> {
        self.ask_to_create(name, kind, partitions, internal, &options())
    }

    /// Says why a topic of our own could not be created, without doing it.
    pub fn try_create(
        &self,
        name: &str,
        kind: InternalKind,
        partitions: i32,
        internal: &InternalTopics,
    ) -> Result<(), LogError> {
        self.ask_to_create(name, kind, partitions, internal, &options().validate_only(true))
    }

    /// The names of all topics that we may see.
    pub fn all_topics(&self) -> Result<Vec<String>, LogError> {
        let timeout = std::time::Duration::from_millis(REQUEST_MS);
        let found = retrying("list topics", || self.client.inner().fetch_metadata(None, timeout))?;
        Ok(found.topics().iter().map(|topic| topic.name().to_owned()).collect())
    }

    /// Deletes topics: true for one that was there, or why it could not be.
    pub fn delete_topics(&self, names: &[String]) -> Result<Vec<Deleted>, LogError> {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let answers = retrying("delete topics", || block_on(self.client.delete_topics(&names, &options())))?;
        Ok(answers.into_iter().map(|answer| deleted(answer, RDKafkaErrorCode::UnknownTopicOrPartition)).collect())
    }

    /// Deletes groups: true for one that was there, or why it could not be.
    pub fn delete_groups(&self, names: &[String]) -> Result<Vec<Deleted>, LogError> {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let answers = retrying("delete groups", || block_on(self.client.delete_groups(&names, &options())))?;
        Ok(answers.into_iter().map(|answer| deleted(answer, RDKafkaErrorCode::GroupIdNotFound)).collect())
    }

    fn ask_to_create(
        &self,
        name: &str,
        kind: InternalKind,
        partitions: i32,
        internal: &InternalTopics,
        options: &AdminOptions,
    ) -> Result<(), LogError> {
        let replicas = i32::from(internal.replication_factor);
        let settings = settings(kind, replicas);
        let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(replicas));
        for (key, value) in &settings {
            topic = topic.set(key, value);
        }
        let what = format!("create topic '{name}' with {replicas} replicas");
        let answers = retrying(&what, || block_on(self.client.create_topics([&topic], options)))?;
        for answer in answers {
            match answer {
                Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((_, RDKafkaErrorCode::InvalidReplicationFactor)) => {
                    return Err(LogError::User(format!(
                        "{what}: the cluster has fewer brokers; set spec.kafka.internal.replicationFactor"
                    )));
                }
                Err((_, RDKafkaErrorCode::TopicAuthorizationFailed)) => {
                    return Err(LogError::User(format!(
                        "{what}: not allowed; grant Create on topics that start with the pipeline's prefix, or create it and set spec.kafka.internal.creation to RequireExisting"
                    )));
                }
                Err((_, code)) => return Err(fault(&what, &code.to_string(), passing(code))),
            }
        }
        Ok(())
    }
}

fn deleted(answer: Result<String, (String, RDKafkaErrorCode)>, gone: RDKafkaErrorCode) -> Deleted {
    match answer {
        Ok(name) => (name, Ok(true)),
        Err((name, code)) if code == gone => (name, Ok(false)),
        Err((name, code)) => (name, Err(code.to_string())),
    }
}

/// The configuration of our own topics.
fn settings(kind: InternalKind, replicas: i32) -> Vec<(&'static str, String)> {
    let mut settings = vec![
        ("min.insync.replicas", (replicas - 1).max(1).to_string()),
        ("max.message.bytes", INTERNAL_RECORD_BYTES.to_string()),
        ("message.timestamp.type", "CreateTime".to_owned()),
    ];
    match kind {
        // Never trimmed, and the last marker is never compacted away: it is the last record of its key.
        InternalKind::Changelog | InternalKind::Control => settings
            .extend([("cleanup.policy", "compact".to_owned()), ("delete.retention.ms", TOMBSTONES_MS.to_string())]),
        // Deleted behind its reader, or behind a snapshot, by us.
        InternalKind::Repartition | InternalKind::TrimmedChangelog => settings.extend([
            ("cleanup.policy", "delete".to_owned()),
            ("retention.ms", "-1".to_owned()),
            ("retention.bytes", "-1".to_owned()),
        ]),
    }
    settings
}

/// The wrapper's own text would show the value of a setting that is wrong, which may be a secret.
pub fn client_error(error: KafkaError) -> LogError {
    match error {
        KafkaError::ClientConfig(_, description, key, _) => {
            LogError::User(format!("connect to Kafka: setting {key}: {description}"))
        }
        other => fault("connect to Kafka", &other.to_string(), false),
    }
}

/// One of our topics is missing, and we are not to make it.
pub fn required(name: &str, kind: InternalKind, partitions: i32) -> LogError {
    let keeping = match kind {
        InternalKind::Changelog | InternalKind::Control => "cleanup.policy=compact",
        InternalKind::Repartition | InternalKind::TrimmedChangelog => {
            "cleanup.policy=delete, retention.ms=-1 and retention.bytes=-1"
        }
    };
    LogError::User(format!(
        "internal topic '{name}' does not exist, and spec.kafka.internal.creation is RequireExisting: create it with {partitions} partitions, {keeping}"
    ))
}

/// The command that creates a topic of the user's.
pub fn creating_command(topic: &str, bootstrap_servers: &str) -> String {
    format!(
        "create it, as with `kafka-topics.sh --bootstrap-server {bootstrap_servers} --create --topic {topic} --partitions <one for each task that you want>`"
    )
}

/// Asks until a topic is known with so many partitions, which takes a moment after it was made.
pub fn wait_until(client: &std::sync::Arc<Client>, name: &str, partitions: i32) -> Result<TopicInfo, LogError> {
    let late = || fault(&format!("look up topic '{name}'"), "it was created and is not known", true);
    known_soon(client, name, partitions)?.ok_or_else(late)
}

/// A topic that was there, or was just made, and that not every broker knows yet. `None`: it is not known any more.
pub fn known_soon(client: &std::sync::Arc<Client>, name: &str, partitions: i32) -> Result<Option<TopicInfo>, LogError> {
    let start = clock::steady_ms();
    loop {
        if let Some(info) = describe(client, name)?.filter(|info| info.partitions >= partitions) {
            return Ok(Some(info));
        }
        if clock::steady_ms() - start > KNOWN_MS {
            return Ok(None);
        }
        clock::pause_ms(RETRY_MS);
    }
}

fn options() -> AdminOptions {
    let timeout = std::time::Duration::from_millis(REQUEST_MS);
    AdminOptions::new().request_timeout(Some(timeout)).operation_timeout(Some(timeout))
}

/// Makes a request until it succeeds, fails for good, or has failed for too long.
fn retrying<T>(what: &str, request: impl Fn() -> Result<T, KafkaError>) -> Result<T, LogError> {
    let start = clock::steady_ms();
    loop {
        let error = match request() {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let again = error.rdkafka_error_code().is_some_and(passing);
        if !again || clock::steady_ms() - start > REQUEST_MS {
            return Err(fault(what, &error.to_string(), again));
        }
        clock::pause_ms(RETRY_MS);
    }
}

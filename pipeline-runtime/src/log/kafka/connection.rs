//! How a cluster is reached, and what our clients are told.

use std::fmt;

use rdkafka::ClientConfig;

/// Bytes of one batch on its way to a broker. A record above it goes alone.
pub const BATCH_BYTES_MAX: usize = 1_000_000;
/// What is fetched ahead of one partition where nothing asks for less.
pub const FETCHED_BYTES: usize = 16 << 20;
/// What the library adds to each record that waits, about.
const WAITING_RECORD_BYTES: usize = 512;
/// Fewer are not worth a request.
const WAITING_RECORDS_MIN: usize = 1_000;
/// Of what may be fetched ahead, one answer has this part: the size that a broker goes by is the compressed one, and small
/// records become twenty times as large here.
const ANSWER_SHARE: usize = 16;
const ANSWER_BYTES_MIN: usize = 64 << 10;
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// What the library itself allows at most; the topics' own limits are checked before a record is produced.
const MESSAGE_BYTES_MAX: usize = 1_000_000_000;

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// A Kafka cluster and who we are to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    pub bootstrap_servers: String,
    pub tls: Option<Tls>,
    pub authentication: Option<Authentication>,
}

/// Encryption. All texts are PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The authorities that are trusted, one after the other; `None`: those of the system.
    pub trusted: Option<String>,
    /// Our certificate, with what lies between it and the authority, and its key.
    pub identity: Option<(String, Secret)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    ScramSha512,
    ScramSha256,
    Plain,
}

impl Mechanism {
    /// Its field in `spec.kafka.authentication`.
    pub fn field(self) -> &'static str {
        match self {
            Self::ScramSha512 => "scramSha512",
            Self::ScramSha256 => "scramSha256",
            Self::Plain => "plain",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authentication {
    pub mechanism: Mechanism,
    pub username: String,
    pub password: Secret,
}

impl Connection {
    /// A cluster without encryption and users.
    pub fn plain(bootstrap_servers: impl Into<String>) -> Self {
        Self { bootstrap_servers: bootstrap_servers.into(), tls: None, authentication: None }
    }

    /// What every client is told.
    pub(super) fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.bootstrap_servers)
            .set("client.id", "millrace")
            // A broker that comes back is used again within a second, not ten.
            .set("reconnect.backoff.max.ms", "1000")
            // A broker that takes connections and does not answer, as one that stands still, is left for the next one while
            // the preflight still waits for the cluster. Its first request would wait 10 s, half as long as the preflight does.
            .set("api.version.request.timeout.ms", "3000")
            // A lane waits for a reply with nothing else to do: no delay for the sake of larger packets.
            .set("socket.nagle.disable", "true");
        let protocol = match (&self.tls, &self.authentication) {
            (None, None) => "plaintext",
            (Some(_), None) => "ssl",
            (None, Some(_)) => "sasl_plaintext",
            (Some(_), Some(_)) => "sasl_ssl",
        };
        config.set("security.protocol", protocol);
        if let Some(tls) = &self.tls {
            if let Some(trusted) = &tls.trusted {
                config.set("ssl.ca.pem", trusted);
            }
            if let Some((certificate, Secret(key))) = &tls.identity {
                config.set("ssl.certificate.pem", certificate).set("ssl.key.pem", key);
            }
        }
        if let Some(Authentication { mechanism, username, password: Secret(password) }) = &self.authentication {
            let mechanism = match mechanism {
                Mechanism::ScramSha512 => "SCRAM-SHA-512",
                Mechanism::ScramSha256 => "SCRAM-SHA-256",
                Mechanism::Plain => "PLAIN",
            };
            config.set("sasl.mechanism", mechanism).set("sasl.username", username).set("sasl.password", password);
        }
        config
    }

    /// A lane's consumer. `group` is only there because the library assigns partitions within one: nothing is joined,
    /// and nothing is committed by it. Of each partition about `fetched_bytes` wait to be read.
    pub fn consumer(&self, group: &str, fetched_bytes: usize) -> ClientConfig {
        let records = (fetched_bytes / WAITING_RECORD_BYTES).max(WAITING_RECORDS_MIN);
        let answer_bytes = (fetched_bytes / ANSWER_SHARE).clamp(ANSWER_BYTES_MIN, ANSWER_BYTES_MAX);
        let mut config = self.client();
        config
            .set("group.id", group)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("isolation.level", "read_committed")
            // A position that is gone is an error, never a silent skip (invariant I6).
            .set("auto.offset.reset", "error")
            // The only word about what lies between the last record and the end: markers, aborted records, gaps.
            .set("enable.partition.eof", "true")
            // An end is known after so long without a record.
            .set("fetch.wait.max.ms", "100")
            // A queue that was full is filled on after so long.
            .set("fetch.queue.backoff.ms", "10")
            // Each partition has a queue of its own, and both count for each of them. A fetch is not begun above either.
            .set("queued.min.messages", records.to_string())
            .set("queued.max.messages.kbytes", (fetched_bytes >> 10).max(1).to_string())
            .set("max.partition.fetch.bytes", answer_bytes.to_string());
        config
    }

    /// A consumer for look-ups and for reads that come to an end. A broker answers nothing else on a connection while a
    /// request for records waits there: where a lane's consumer has all that there is, a look-up by it takes as long.
    pub fn reader(&self, group: &str, fetched_bytes: usize) -> ClientConfig {
        let mut config = self.consumer(group, fetched_bytes);
        config.set("fetch.wait.max.ms", "5");
        config
    }

    /// A producer of single records that have to be in, and are waited for.
    pub(super) fn appender(&self, timeout_ms: u64) -> ClientConfig {
        let mut config = self.client();
        config
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("linger.ms", "0")
            .set("delivery.timeout.ms", timeout_ms.to_string());
        config
    }

    /// A lane's transactional producer. `batch_bytes` is what the smallest limit among its topics allows.
    pub fn producer(&self, transactional_id: &str, timeout_ms: u32, batch_bytes: usize) -> ClientConfig {
        let mut config = self.client();
        config
            .set("transactional.id", transactional_id)
            .set("transaction.timeout.ms", timeout_ms.to_string())
            // Few large batches: at 20,000 records/s and a commit each 100 ms the drain before a commit takes 76 ms and
            // the broker 0.84 cores with 1 ms here, and 7 ms and 0.24 cores with 50. A commit waits for no linger.
            .set("linger.ms", "50")
            .set("batch.size", batch_bytes.min(BATCH_BYTES_MAX).to_string())
            .set("batch.num.messages", "100000")
            .set("compression.type", "lz4")
            .set("message.max.bytes", MESSAGE_BYTES_MAX.to_string())
            // An epoch ends at 32 MiB: this is never the limit.
            .set("queue.buffering.max.messages", "10000000")
            .set("queue.buffering.max.kbytes", "1048576");
        config
    }
}

//! How a pipeline's Kafka is reached: its spec, with the secrets that it names read from files.

use std::path::Path;

use millrace_crds::pipeline::{Creation, Credentials, KafkaCluster, SecretKeyRef};

use crate::log::kafka::InternalTopics;
use crate::log::kafka::connection::{Authentication, Connection, Mechanism, Secret, Tls};
use crate::secrets::Secrets;

/// Puts a connection together. All mistakes at once.
pub fn connection(kafka: &KafkaCluster, secrets: Option<&Path>) -> Result<Connection, Vec<String>> {
    let mut secrets = Secrets::new(secrets);
    let tls = kafka.tls.as_ref().map(|tls| {
        let at = "spec.kafka.tls";
        let trusted: Vec<String> = tls
            .trusted_certificates
            .iter()
            .enumerate()
            .map(|(i, secret)| secrets.text(&format!("{at}.trustedCertificates[{i}]"), secret))
            .collect();
        let identity = tls.certificate_and_key.as_ref().map(|pair| {
            let mut part = |key: &String| {
                let secret = SecretKeyRef { name: pair.name.clone(), key: key.clone() };
                secrets.text(&format!("{at}.certificateAndKey"), &secret)
            };
            (part(&pair.certificate), Secret::new(part(&pair.key)))
        });
        Tls { trusted: (!trusted.is_empty()).then(|| trusted.join("\n")), identity }
    });
    let mut authentication = None;
    if let Some(spec) = &kafka.authentication {
        let kinds = [
            (&spec.scram_sha512, Mechanism::ScramSha512),
            (&spec.scram_sha256, Mechanism::ScramSha256),
            (&spec.plain, Mechanism::Plain),
        ];
        for (credentials, mechanism) in kinds {
            if let Some(Credentials { username, password }) = credentials {
                let at = format!("spec.kafka.authentication.{}", mechanism.field());
                authentication = Some(Authentication {
                    mechanism,
                    username: secrets.text(&format!("{at}.username"), username),
                    password: Secret::new(secrets.text(&format!("{at}.password"), password)),
                });
            }
        }
    }
    let bootstrap_servers = kafka.bootstrap_servers.clone();
    match secrets.into_mistakes() {
        mistakes if mistakes.is_empty() => Ok(Connection { bootstrap_servers, tls, authentication }),
        mistakes => Err(mistakes),
    }
}

/// How our own topics are made.
pub fn internal_topics(kafka: &KafkaCluster) -> InternalTopics {
    InternalTopics {
        create: kafka.internal.creation == Creation::Create,
        replication_factor: kafka.internal.replication_factor,
    }
}

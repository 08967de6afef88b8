//! How a pipeline's Kafka is reached: its spec, with the secrets that it names read from files.

use std::path::{Path, PathBuf};

use millrace_crds::pipeline::{Creation, Credentials, KafkaCluster, SecretKeyRef};

use crate::log::kafka::InternalTopics;
use crate::log::kafka::connection::{Authentication, Connection, Mechanism, Secret, Tls};

/// A secret is the file `<name>/<key>` below a folder.
struct Secrets<'a> {
    dir: Option<&'a Path>,
    mistakes: Vec<String>,
}

impl Secrets<'_> {
    /// The text of a secret, without the line break that editors leave at its end. A mistake is kept, and an empty text
    /// stands for it.
    fn text(&mut self, field: &str, SecretKeyRef { name, key }: &SecretKeyRef) -> String {
        let Some(dir) = self.dir else {
            self.mistakes.push(format!(
                "{field}: secret '{name}' is needed: give --secrets DIR, and put it into DIR/{name}/{key}"
            ));
            return String::new();
        };
        let path: PathBuf = dir.join(name).join(key);
        match std::fs::read_to_string(&path) {
            Ok(text) => text.trim_end_matches(['\r', '\n']).to_owned(),
            Err(error) => {
                self.mistakes.push(format!("{field}: read secret {}: {error}", path.display()));
                String::new()
            }
        }
    }
}

/// Puts a connection together. All mistakes at once.
pub fn connection(kafka: &KafkaCluster, secrets: Option<&Path>) -> Result<Connection, Vec<String>> {
    let mut secrets = Secrets { dir: secrets, mistakes: Vec::new() };
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
    if secrets.mistakes.is_empty() {
        Ok(Connection { bootstrap_servers, tls, authentication })
    } else {
        Err(secrets.mistakes)
    }
}

/// How our own topics are made.
pub fn internal_topics(kafka: &KafkaCluster) -> InternalTopics {
    InternalTopics {
        create: kafka.internal.creation == Creation::Create,
        replication_factor: kafka.internal.replication_factor,
    }
}

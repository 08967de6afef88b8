//! A pipeline on a Kafka that wants to know who comes: every way in, what is said where one is refused, secrets that
//! change while a worker runs, and no secret in anything that is written or shown.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, ensure};
use millrace_kafka_harness::security::{Grant, Operation, Resource};
use millrace_kafka_harness::{Kafka, Options, free_address, wait};
use millrace_tests::certificates::{Authority, Identity};
use millrace_tests::story::{DEADLINE, Shape, Story, Worker, http, millrace};

/// Places in the broker's listeners.
const TLS: usize = 0;
const MUTUAL: usize = 1;
const SASL: usize = 2;

const SCRAM_PASSWORD: &str = "hidden-scram-4711";
const PLAIN_PASSWORD: &str = "hidden-plain-4712";
const WRONG_PASSWORD: &str = "hidden-wrong-4713";
const NEXT_PASSWORD: &str = "hidden-next-4714";

/// A broker that speaks TLS, mutual TLS and SASL over TLS, and what its clients need.
struct Secured {
    kafka: Kafka,
    authority: String,
    client: Identity,
    /// Of an authority that the broker does not know.
    stranger: Identity,
    stranger_authority: String,
}

fn secured() -> &'static Secured {
    static SECURED: OnceLock<Secured> = OnceLock::new();
    SECURED.get_or_init(|| start().expect("a broker starts"))
}

fn start() -> anyhow::Result<Secured> {
    let dir = millrace_tests::scratch()?;
    let authority = Authority::new(&dir.path().join("authority"))?;
    let other = Authority::new(&dir.path().join("other"))?;
    let address = free_address()?;
    let Identity { certificate, key } = authority.sign("broker", Some(address))?;
    let (keystore, truststore) = (dir.path().join("broker.pem"), dir.path().join("ca.pem"));
    std::fs::write(&keystore, format!("{key}{certificate}"))?;
    std::fs::write(&truststore, authority.certificate()?)?;
    let mut properties = vec![
        ("sasl.enabled.mechanisms".to_owned(), "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN".to_owned()),
        ("authorizer.class.name".to_owned(), "org.apache.kafka.metadata.authorizer.StandardAuthorizer".to_owned()),
        // Everybody but the user whose rights are tested: without a password, by certificate, by the other users.
        ("super.users".to_owned(), "User:ANONYMOUS;User:CN=millrace;User:alice;User:carol;User:bob".to_owned()),
    ];
    for listener in ["tls", "mutual", "sasl"] {
        let of = |name: &str| format!("listener.name.{listener}.{name}");
        properties.push((of("ssl.keystore.type"), "PEM".to_owned()));
        properties.push((of("ssl.keystore.location"), keystore.display().to_string()));
        properties.push((of("ssl.truststore.type"), "PEM".to_owned()));
        properties.push((of("ssl.truststore.location"), truststore.display().to_string()));
    }
    properties.push(("listener.name.mutual.ssl.client.auth".to_owned(), "required".to_owned()));
    let scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;".to_owned();
    let plain = "org.apache.kafka.common.security.plain.PlainLoginModule required";
    properties.push(("listener.name.sasl.scram-sha-256.sasl.jaas.config".to_owned(), scram.clone()));
    properties.push(("listener.name.sasl.scram-sha-512.sasl.jaas.config".to_owned(), scram));
    // A session ends after so long unless the client proves again who it is.
    properties.push(("listener.name.sasl.scram-sha-512.connections.max.reauth.ms".to_owned(), "5000".to_owned()));
    let users = format!("{plain} user_bob=\"{PLAIN_PASSWORD}\";");
    properties.push(("listener.name.sasl.plain.sasl.jaas.config".to_owned(), users));
    let listeners = [("TLS", "SSL"), ("MUTUAL", "SSL"), ("SASL", "SASL_SSL")];
    let kafka = Kafka::start(&Options {
        listeners: listeners.map(|(name, protocol)| (name.to_owned(), protocol.to_owned())).to_vec(),
        address: Some(address),
        properties,
        ..Options::default()
    })?;
    for user in ["alice", "carol", "limited"] {
        kafka.set_password(user, SCRAM_PASSWORD)?;
    }
    // The broker has read its files.
    drop(dir.keep());
    Ok(Secured {
        kafka,
        authority: authority.certificate()?,
        client: authority.sign("millrace", None)?,
        stranger: other.sign("millrace", None)?,
        stranger_authority: other.certificate()?,
    })
}

/// A way to the broker: the listener, what the spec says of it, and the secrets that it names.
#[derive(Clone)]
struct Way {
    listener: usize,
    spec: String,
    secrets: Vec<(&'static str, String)>,
}

impl Way {
    /// TLS without more.
    fn tls() -> Self {
        Self {
            listener: TLS,
            spec: "tls: {trustedCertificates: [{name: ca, key: ca.crt}]}, ".to_owned(),
            secrets: vec![("ca/ca.crt", secured().authority.clone())],
        }
    }

    fn mutual(identity: &Identity) -> Self {
        let Identity { certificate, key } = identity;
        Self {
            listener: MUTUAL,
            spec: "tls: {trustedCertificates: [{name: ca, key: ca.crt}], certificateAndKey: {name: client}}, "
                .to_owned(),
            secrets: vec![
                ("ca/ca.crt", secured().authority.clone()),
                ("client/tls.crt", certificate.clone()),
                ("client/tls.key", key.clone()),
            ],
        }
    }

    fn sasl(mechanism: &str, user: &str, password: &str) -> Self {
        let Self { spec, mut secrets, .. } = Self::tls();
        let credentials = "{username: {name: user, key: user}, password: {name: user, key: password}}";
        // Editors leave a line break behind.
        secrets.extend([("user/user", format!("{user}\n")), ("user/password", format!("{password}\n"))]);
        Self { listener: SASL, spec: format!("{spec}authentication: {{{mechanism}: {credentials}}}, "), secrets }
    }

    /// Writes the secrets, and the pipeline that names them.
    fn write(&self, story: &Story) -> anyhow::Result<PathBuf> {
        let secrets = story.dir().join("secrets");
        self.write_secrets(&secrets)?;
        let servers = secured().kafka.servers_of(self.listener);
        let yaml = story.yaml(&servers).replace("internal: {", &format!("{}internal: {{", self.spec));
        std::fs::write(story.file(), yaml)?;
        Ok(secrets)
    }

    fn write_secrets(&self, dir: &Path) -> anyhow::Result<()> {
        for (name, text) in &self.secrets {
            let path = dir.join(name);
            std::fs::create_dir_all(path.parent().context("a secret is in a folder")?)?;
            // Whole or not at all, as a mounted secret changes.
            let next = path.with_extension("next");
            std::fs::write(&next, text)?;
            std::fs::rename(&next, &path)?;
        }
        Ok(())
    }
}

fn story(name: &str) -> anyhow::Result<Story> {
    Story::new(&secured().kafka, name, Shape::Aligned, 2)
}

fn worker(story: &Story, secrets: &Path) -> anyhow::Result<Worker> {
    story.worker("state", &["--lanes", "2", "--log-level", "debug", "--secrets", &secrets.display().to_string()])
}

/// Begins a command on a pipeline. Several may be under way.
fn begin(command: &str, file: &Path, secrets: &Path) -> anyhow::Result<Child> {
    let mut millrace = Command::new(millrace()?);
    millrace.args(["--log-level", "debug", command, "-f"]).arg(file).arg("--secrets").arg(secrets);
    millrace.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("start millrace")
}

/// Exit code and all that was said.
fn ended(child: Child) -> anyhow::Result<(Option<i32>, String)> {
    let Output { status, stdout, stderr } = child.wait_with_output()?;
    let said = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    hides("what a command says", said.as_bytes())?;
    Ok((status.code(), said))
}

fn preflight(story: &Story, secrets: &Path) -> anyhow::Result<(Option<i32>, String)> {
    ended(begin("preflight", &story.file(), secrets)?)
}

/// Fails if a secret is in the text.
fn hides(what: &str, text: &[u8]) -> anyhow::Result<()> {
    let keys = [&secured().client.key, &secured().stranger.key];
    let lines = keys.iter().flat_map(|key| key.lines()).filter(|line| !line.starts_with("-----"));
    let passwords = [SCRAM_PASSWORD, PLAIN_PASSWORD, WRONG_PASSWORD, NEXT_PASSWORD];
    for secret in passwords.into_iter().chain(lines) {
        let found = text.windows(secret.len()).any(|window| window == secret.as_bytes());
        ensure!(!found, "{what} shows a secret");
    }
    Ok(())
}

/// Fails if a secret is in a file below the folder.
fn hides_below(dir: &Path) -> anyhow::Result<usize> {
    let mut files = 0;
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            files += hides_below(&path)?;
        } else {
            hides(&path.display().to_string(), &std::fs::read(&path)?)?;
            files += 1;
        }
    }
    Ok(files)
}

/// Nothing that a worker writes or shows has a secret.
fn worker_hides(story: &Story, worker: &Worker) -> anyhow::Result<()> {
    ensure!(worker.log().contains("DEBUG"), "the log is not one of level debug");
    hides("the log", worker.log().as_bytes())?;
    hides("/metrics", http(&worker.metrics, "/metrics")?.1.as_bytes())?;
    ensure!(hides_below(&story.dir().join("state"))? > 0, "there is no state");
    Ok(())
}

/// Runs a pipeline over a way until everything has come out.
fn runs(name: &str, way: &Way) -> anyhow::Result<()> {
    let mut story = story(name)?;
    let secrets = way.write(&story)?;
    story.generate(1);
    let mut worker = worker(&story, &secrets)?;
    worker.wait_ready()?;
    story.wait_written(100)?;
    // A pipeline that runs is not disturbed.
    let (code, said) = preflight(&story, &secrets)?;
    ensure!(code == Some(0) && said.contains("ok\n"), "{code:?}: {said}");
    story.wait_written(100)?;
    story.stop_generating()?;
    story.check()?;
    ensure!(!worker.log().contains("the producer is lost"), "{}", worker.log());
    worker_hides(&story, &worker)?;
    worker.stop()
}

#[test]
fn a_pipeline_runs_over_tls() {
    runs("tls", &Way::tls()).unwrap();
    runs("mutual", &Way::mutual(&secured().client)).unwrap();
}

#[test]
fn a_pipeline_runs_as_a_user_with_a_password() {
    runs("scram512", &Way::sasl("scramSha512", "alice", SCRAM_PASSWORD)).unwrap();
    runs("scram256", &Way::sasl("scramSha256", "alice", SCRAM_PASSWORD)).unwrap();
    runs("plain", &Way::sasl("plain", "bob", PLAIN_PASSWORD)).unwrap();
}

#[test]
fn each_refusal_says_what_to_check_and_ends_with_2() {
    let nobody = Identity { certificate: String::new(), key: String::new() };
    let without_certificate = Way { listener: MUTUAL, ..Way::tls() };
    let other_authority = Way { secrets: vec![("ca/ca.crt", secured().stranger_authority.clone())], ..Way::tls() };
    // Its first line is missing, and the others must not be shown.
    let lines = secured().client.key.lines().enumerate().filter(|(line, _)| *line != 1);
    let broken_key = Identity {
        certificate: secured().client.certificate.clone(),
        key: lines.map(|(_, text)| format!("{text}\n")).collect(),
    };
    let password = "spec.kafka.authentication";
    let cases = [
        ("wrong512", "preflight", Way::sasl("scramSha512", "alice", WRONG_PASSWORD), "authentication.scramSha512"),
        ("wrong256", "preflight", Way::sasl("scramSha256", "alice", WRONG_PASSWORD), "authentication.scramSha256"),
        ("wrong-plain", "preflight", Way::sasl("plain", "bob", WRONG_PASSWORD), "authentication.plain"),
        ("wrong-run", "run", Way::sasl("scramSha512", "alice", WRONG_PASSWORD), password),
        ("no-certificate", "preflight", without_certificate, "spec.kafka.tls"),
        ("strange-certificate", "preflight", Way::mutual(&secured().stranger), "spec.kafka.tls"),
        ("no-key", "preflight", Way::mutual(&nobody), "spec.kafka.tls"),
        ("broken-key", "preflight", Way::mutual(&broken_key), "spec.kafka.tls"),
        ("strange-authority", "preflight", other_authority, "spec.kafka.tls"),
        (
            "no-tls",
            "preflight",
            Way { listener: TLS, spec: String::new(), secrets: Vec::new() },
            "whether they want TLS",
        ),
        ("nobody-there", "preflight", Way { listener: 7, ..Way::tls() }, "spec.kafka.bootstrapServers: no broker"),
    ];
    // All at once: some wait for the deadline.
    let begun = cases.map(|(name, command, way, expected)| {
        let dir = millrace_tests::scratch().unwrap();
        let file = dir.path().join("pipeline.yaml");
        let servers = secured().kafka.servers_of(way.listener);
        let yaml = PIPELINE.replace("ACCESS", &format!("bootstrapServers: \"{servers}\", {}", way.spec));
        std::fs::write(&file, yaml).unwrap();
        way.write_secrets(&dir.path().join("secrets")).unwrap();
        let child = begin(command, &file, &dir.path().join("secrets")).unwrap();
        (name, expected, dir, child)
    });
    for (name, expected, _dir, child) in begun {
        let (code, said) = ended(child).unwrap();
        assert_eq!(code, Some(2), "{name}: {said}");
        let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(errors.len(), 1, "{name}: {said}");
        assert!(errors[0].contains(expected), "{name}: {said}");
    }
}

/// One that need not run.
const PIPELINE: &str = r#"
apiVersion: millrace.dev/v1alpha1
kind: Pipeline
metadata: {name: refused, namespace: test}
spec:
  kafka: {ACCESS internal: {replicationFactor: 1}}
  sources:
    - {name: in, kafka: {topic: refused-in}, format: {type: Json}, columns: [{name: id, type: BIGINT}]}
  steps:
    - {name: all, from: in, project: {select: [id]}}
  sinks:
    - {name: out, from: all, kafka: {topic: refused-out}, format: {type: Json}}
"#;

#[test]
fn missing_rights_are_found_at_once_and_those_of_the_guide_suffice() {
    use Operation as O;
    let mut story = story("rights").unwrap();
    let secrets = Way::sasl("scramSha512", "limited", SCRAM_PASSWORD).write(&story).unwrap();
    let (code, said) = preflight(&story, &secrets).unwrap();
    assert_eq!(code, Some(2), "{said}");
    for expected in [
        "source 'orders': topic 'rights-orders' is hidden from us: grant Read",
        "source 'customers': topic 'rights-customers' is hidden from us: grant Read",
        "sink 'out': topic 'rights-out' is hidden from us: grant Write",
        "internal: topic 'test.rights-control' is hidden from us: grant Read, Write",
        "grant Read on groups that start with 'test.rights'",
        "grant Write and Describe on transactional ids",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    let principal = "User:limited";
    let topic =
        |operation, name| Grant { operation, resource: Resource::RD_KAFKA_RESOURCE_TOPIC, name, prefixed: false };
    let ours = |operation, resource| Grant { operation, resource, name: "test.rights", prefixed: true };
    let kafka = &secured().kafka;
    let topics = ["rights-orders", "rights-customers", "rights-out"];
    kafka.grant(principal, &topics.map(|name| topic(O::RD_KAFKA_ACL_OPERATION_DESCRIBE, name))).unwrap();
    kafka.grant(principal, &[ours(O::RD_KAFKA_ACL_OPERATION_DESCRIBE, Resource::RD_KAFKA_RESOURCE_TOPIC)]).unwrap();
    let mut said = String::new();
    wait::until("rights to be known", DEADLINE, || {
        said = preflight(&story, &secrets)?.1;
        let expected = [
            "error: source 'orders': topic 'rights-orders': not allowed; grant Read on it",
            "error: sink 'out': topic 'rights-out': not allowed; grant Write on it",
            "error: create topic 'test.rights-control' with 1 replicas: not allowed; grant Create",
            "warning: source 'customers': the configuration of topic 'rights-customers' may not be read",
        ];
        Ok(expected.iter().all(|text| said.contains(text)))
    })
    .with_context(|| said)
    .unwrap();
    // The table of docs/guide.md.
    let own_topics = [
        O::RD_KAFKA_ACL_OPERATION_CREATE,
        O::RD_KAFKA_ACL_OPERATION_READ,
        O::RD_KAFKA_ACL_OPERATION_WRITE,
        O::RD_KAFKA_ACL_OPERATION_DELETE,
        O::RD_KAFKA_ACL_OPERATION_DESCRIBE_CONFIGS,
    ];
    kafka.grant(principal, &own_topics.map(|right| ours(right, Resource::RD_KAFKA_RESOURCE_TOPIC))).unwrap();
    let (group, id) = (Resource::RD_KAFKA_RESOURCE_GROUP, Resource::RD_KAFKA_RESOURCE_TRANSACTIONAL_ID);
    let grants = [
        ours(O::RD_KAFKA_ACL_OPERATION_READ, group),
        ours(O::RD_KAFKA_ACL_OPERATION_WRITE, id),
        ours(O::RD_KAFKA_ACL_OPERATION_DESCRIBE, id),
        topic(O::RD_KAFKA_ACL_OPERATION_READ, "rights-orders"),
        topic(O::RD_KAFKA_ACL_OPERATION_READ, "rights-customers"),
        topic(O::RD_KAFKA_ACL_OPERATION_WRITE, "rights-out"),
    ];
    kafka.grant(principal, &grants).unwrap();
    let configs = topics.map(|name| topic(O::RD_KAFKA_ACL_OPERATION_DESCRIBE_CONFIGS, name));
    kafka.grant(principal, &configs).unwrap();
    wait::until("rights to suffice", DEADLINE, || {
        let (code, said) = preflight(&story, &secrets)?;
        Ok(code == Some(0) && !said.contains("warning: "))
    })
    .unwrap();
    story.generate(5);
    let mut worker = worker(&story, &secrets).unwrap();
    worker.wait_ready().unwrap();
    story.wait_written(100).unwrap();
    story.stop_generating().unwrap();
    story.check().unwrap();
    worker.stop().unwrap();
}

#[test]
fn a_password_that_changes_is_taken_up_while_the_worker_runs() {
    let mut story = story("rotation").unwrap();
    let secrets = Way::sasl("scramSha512", "alice", SCRAM_PASSWORD).write(&story).unwrap();
    story.generate(6);
    let mut worker = worker(&story, &secrets).unwrap();
    worker.wait_ready().unwrap();
    story.wait_written(200).unwrap();
    let logs = |worker: &Worker, behind: usize, text: &str| {
        wait::until(text, DEADLINE, || Ok(worker.log()[behind..].contains(text))).with_context(|| worker.log())
    };
    // The second lane goes on until the first one runs again.
    Way::sasl("scramSha512", "carol", SCRAM_PASSWORD).write_secrets(&secrets).unwrap();
    let lanes = |behind: usize| -> Vec<usize> {
        worker.log()[behind..].match_indices("new clients").map(|(at, _)| behind + at).collect()
    };
    let both = |behind: usize| {
        let both = wait::until("new clients in both lanes", DEADLINE, || Ok(lanes(behind).len() == 2));
        both.with_context(|| worker.log()).unwrap();
        lanes(behind)
    };
    let taken = both(0);
    let between = worker.log()[taken[0]..taken[1]].to_owned();
    assert!(between.contains("task runs"), "{between}");
    // One that does not work leaves the worker as it is.
    let behind = worker.log().len();
    Way::sasl("scramSha512", "carol", WRONG_PASSWORD).write_secrets(&secrets).unwrap();
    logs(&worker, behind, "the secrets have changed and do not work").unwrap();
    let seen = story.rows().unwrap().len();
    story.wait_rows(seen + 200).unwrap();
    assert_eq!(lanes(behind).len(), 0);
    // The broker changes first, and refuses the clients that run until the file follows.
    Way::sasl("scramSha512", "carol", SCRAM_PASSWORD).write_secrets(&secrets).unwrap();
    let behind = worker.log().len();
    secured().kafka.set_password("carol", NEXT_PASSWORD).unwrap();
    logs(&worker, behind, "invalid credentials").unwrap();
    Way::sasl("scramSha512", "carol", NEXT_PASSWORD).write_secrets(&secrets).unwrap();
    both(behind);
    let seen = story.rows().unwrap().len();
    story.wait_rows(seen + 200).unwrap();
    story.stop_generating().unwrap();
    story.check().unwrap();
    worker_hides(&story, &worker).unwrap();
    worker.stop().unwrap();
    story.check().unwrap();
}

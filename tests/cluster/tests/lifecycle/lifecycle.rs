//! The harness does what the stories rely on, and nothing of it stays. One test after the other: what they look at belongs
//! to the whole machine.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, ensure};
use millrace_cluster_harness::{Cluster, image};
use millrace_kafka_harness::{DEADLINE, Kafka, Options, wait};

static MACHINE: Mutex<()> = Mutex::new(());

fn machine() -> MutexGuard<'static, ()> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

const OBJECTS: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: strict, labels: {pod-security.kubernetes.io/enforce: restricted}}
---
apiVersion: v1
kind: Service
metadata: {name: greeter, namespace: strict}
spec: {selector: {app: greeter}, ports: [{port: 80, targetPort: 8080}]}
"#;

/// A pod that may be in a namespace that enforces the profile `restricted`, and runs a script for bash.
fn pod(name: &str, script: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: strict, labels: {{app: {name}}}}}
spec:
  restartPolicy: OnFailure
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  securityContext: {{runAsNonRoot: true, seccompProfile: {{type: RuntimeDefault}}}}
  containers:
  - name: main
    image: localhost/millrace:latest
    imagePullPolicy: Never
    command: [bash, -euc, {script:?}]
    securityContext: {{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {{drop: [ALL]}}}}
"#
    )
}

const GREET: &str = "exec perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(LocalPort => 8080, Listen => 5); while ($c = $s->accept) { print $c qq(hello\n); close $c }'";

fn phase(cluster: &Cluster, pod: &str) -> anyhow::Result<String> {
    cluster.kubectl(&["get", "pod", "-n", "strict", pod, "-o", "jsonpath={.status.phase}"])
}

/// Runs a pod to its end; what it has said.
fn said_by(cluster: &Cluster, name: &str, script: &str) -> anyhow::Result<String> {
    cluster.apply(&pod(name, script))?;
    cluster.until(&format!("pod {name} is done"), || Ok(phase(cluster, name)? == "Succeeded"))?;
    cluster.logs("strict", name)
}

#[test]
fn pods_of_our_image_reach_what_they_must_and_nothing_stays() -> anyhow::Result<()> {
    let _machine = machine();
    let before = Machine::now()?;
    let cluster = Cluster::with_node(&[image()?])?;
    let dir = cluster.dir().to_owned();
    let kafka = Kafka::start(&Options { address: Some(cluster.host_address()?), ..Options::default() })?;
    cluster.apply(OBJECTS)?;
    cluster.apply(&pod("greeter", GREET))?;

    let said = said_by(&cluster, "version", "millrace --version")?;
    ensure!(said.contains("millrace "), "{said}");

    cluster.until("the greeter runs", || Ok(phase(&cluster, "greeter")? == "Running"))?;
    let script = "until exec 3<>/dev/tcp/greeter.strict.svc.cluster.local/80; do :; done; cat <&3";
    let said = said_by(&cluster, "by-name", script)?;
    ensure!(said.contains("hello"), "{said}");
    let address =
        cluster.kubectl(&["get", "service", "-n", "strict", "greeter", "-o", "jsonpath={.spec.clusterIP}"])?;
    let mut greeting = String::new();
    TcpStream::connect(format!("{address}:80"))?.read_to_string(&mut greeting)?;
    ensure!(greeting == "hello\n", "{greeting}");

    // The same address is good on both sides: the test makes a topic there, and a pod comes through.
    kafka.create_topic("orders", 1, &[])?;
    let (host, port) =
        kafka.server(1).split_once(':').map(|(h, p)| (h.to_owned(), p.to_owned())).context("an address")?;
    said_by(&cluster, "kafka", &format!("exec 3<>/dev/tcp/{host}/{port}"))?;

    let privileged = pod("privileged", "true").replace("allowPrivilegeEscalation: false", "privileged: true");
    let refusal = format!("{:#}", cluster.apply(&privileged).expect_err("the namespace forbids it"));
    ensure!(refusal.contains("violates PodSecurity"), "{refusal}");

    cluster.signal_container("strict", "greeter", "main", "SIGKILL")?;
    cluster.until("the greeter's container was started again", || {
        let path = "jsonpath={.status.containerStatuses[0].restartCount}";
        Ok(cluster.kubectl(&["get", "pod", "-n", "strict", "greeter", "-o", path])? == "1")
    })?;

    drop(kafka);
    cluster.down()?;
    ensure!(left_of(&dir)?.is_empty(), "{:?}", left_of(&dir)?);
    ensure!(Machine::now()? == before, "{:?}\nwas\n{before:?}", Machine::now()?);
    Ok(())
}

#[test]
fn the_next_start_removes_what_a_killed_cluster_and_its_killed_guard_leave() -> anyhow::Result<()> {
    let _machine = machine();
    let before = Machine::now()?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_cluster"));
    let mut holder = command.arg("serve").stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let lines = BufReader::new(holder.stdout.take().context("it is piped")?).lines();
    let lines = lines.take(4).collect::<Result<Vec<_>, _>>()?;
    let dir = lines.iter().find_map(|line| line.strip_prefix("export MILLRACE_CLUSTER_DIR=")).context("it is ready")?;
    let dir = PathBuf::from(dir);

    kill(&processes_with("millrace-cluster-guard", &dir)?)?;
    holder.kill()?;
    holder.wait()?;
    wait::until("the end of all that ran", DEADLINE, || {
        Ok(left_of(&dir)?.iter().all(|what| !what.starts_with("process")))
    })?;
    ensure!(dir.exists(), "the guard was killed: who has removed the folder?");

    let next = Cluster::control_plane()?;
    ensure!(left_of(&dir)?.is_empty(), "{:?}", left_of(&dir)?);
    next.down()?;
    ensure!(Machine::now()? == before, "{:?}\nwas\n{before:?}", Machine::now()?);
    Ok(())
}

#[test]
fn etcd_goes_back_to_what_it_held() -> anyhow::Result<()> {
    let _machine = machine();
    let cluster = Cluster::control_plane()?;
    cluster.kubectl(&["create", "configmap", "before"])?;
    let snapshot = cluster.snapshot()?;
    cluster.kubectl(&["create", "configmap", "after"])?;
    cluster.restore(&snapshot)?;
    cluster.kubectl(&["get", "configmap", "before"])?;
    let gone = cluster.kubectl(&["get", "configmap", "after"]).expect_err("it was made after the snapshot");
    ensure!(format!("{gone:#}").contains("NotFound"), "{gone:#}");
    let log = fs::read_to_string(cluster.audit_log())?;
    ensure!(log.lines().any(|line| line.contains(r#""verb":"create""#) && line.contains(r#""name":"after""#)), "{log}");
    Ok(())
}

/// What a cluster could leave that does not bear its name.
#[derive(Debug, PartialEq)]
struct Machine {
    links: BTreeSet<String>,
    firewall: String,
    network_namespaces: BTreeSet<String>,
}

impl Machine {
    fn now() -> anyhow::Result<Self> {
        let names = |folder: &str| -> BTreeSet<String> {
            fs::read_dir(folder)
                .into_iter()
                .flatten()
                .flatten()
                .map(|e| e.file_name().to_string_lossy().into())
                .collect()
        };
        let rules = Command::new("iptables-save").output().context("run iptables-save")?.stdout;
        // Its comments have the time.
        let rules =
            String::from_utf8_lossy(&rules).lines().filter(|l| !l.starts_with('#')).collect::<Vec<_>>().join("\n");
        Ok(Self { links: names("/sys/class/net"), firewall: rules, network_namespaces: names("/run/netns") })
    }
}

/// Processes, mounts, control groups and the folder of a cluster that is down.
fn left_of(dir: &Path) -> anyhow::Result<Vec<String>> {
    let name = dir.file_name().context("it has a name")?.to_string_lossy().into_owned();
    let mut left = Vec::new();
    for process in fs::read_dir("/proc")?.flatten().map(|entry| entry.path()) {
        // Those that end while we look have nothing to say. A pod's process is known by its control group.
        let says = |file: &str| fs::read(process.join(file)).map(|t| String::from_utf8_lossy(&t).into_owned());
        if ["cmdline", "cgroup"].iter().any(|file| says(file).is_ok_and(|text| text.contains(&name))) {
            left.push(format!("process {}", says("cmdline").unwrap_or_default().replace('\0', " ")));
        }
    }
    left.extend(fs::read_to_string("/proc/self/mountinfo")?.lines().filter(|l| l.contains(&name)).map(str::to_owned));
    let groups = Command::new("find").args(["/sys/fs/cgroup", "-name", &name]).output().context("run find")?.stdout;
    left.extend(String::from_utf8_lossy(&groups).lines().map(str::to_owned));
    left.extend(dir.exists().then(|| name.clone()));
    Ok(left)
}

fn processes_with(word: &str, dir: &Path) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for process in fs::read_dir("/proc")?.flatten() {
        let text = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        if text.contains(word) && text.contains(&*dir.to_string_lossy()) {
            found.push(process.file_name().to_string_lossy().into_owned());
        }
    }
    ensure!(!found.is_empty(), "no process has {word} and {} in its command line", dir.display());
    Ok(found)
}

fn kill(processes: &[String]) -> anyhow::Result<()> {
    let status = Command::new("kill").arg("-9").args(processes).status().context("run kill")?;
    ensure!(status.success(), "kill: {status}");
    Ok(())
}

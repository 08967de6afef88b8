//! A real Kubernetes for tests: control plane and, where wanted, one node with real pods, in a [`sandbox`] of its own.
//!
//! Its programs come from `tests/setup/kubernetes.sh` and from Debian, its images from `tests/setup/image.sh`. Ready with
//! a node after about ten seconds; needs root.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use millrace_cluster_harness::{Cluster, image};
//! use millrace_kafka_harness::{Kafka, Options};
//!
//! let cluster = Cluster::with_node(&[image()?])?;
//! // Pods and this process reach it by the same address.
//! let kafka = Kafka::start(&Options { address: Some(cluster.host_address()?), ..Options::default() })?;
//! cluster.kubectl(&["get", "nodes"])?;
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{env, thread};

use anyhow::{Context, bail, ensure};
use millrace_kafka_harness::{DEADLINE, wait};
use rustix::process::{Pid, Signal, kill_process};

mod certificates;
mod component;
mod sandbox;

pub use component::{Component, NODE};

use component::Layout;
use sandbox::{Sandbox, only_child, output, run};

/// How much of a log is shown.
const LOG_LINES: usize = 30;

/// A packet to a service that nobody has set up gets no answer.
const CONNECT: Duration = Duration::from_secs(1);

/// A running cluster. All that it is ends with the value.
pub struct Cluster {
    layout: Layout,
    kube: PathBuf,
    /// Behind a lock, so that tests which share a cluster can take its parts away.
    processes: Mutex<BTreeMap<Component, Child>>,
    snapshots: AtomicU32,
    sandbox: Sandbox,
}

/// A pod whose node is as good as lost, until this is dropped.
pub struct LostPod<'a> {
    cluster: &'a Cluster,
    /// Of its container, as the sandbox counts.
    pid: String,
    address: String,
}

impl LostPod<'_> {
    fn cut(&self, change: &str) -> anyhow::Result<()> {
        self.cluster.drop_packets(change, &["-s", &self.address])
    }

    /// To the container, and to the shim that started it: kubelet learns nothing of it and cannot end it.
    fn signal(&self, signal: &str) -> anyhow::Result<()> {
        let script = r#"kill -"$1" "$2" "$(sed -n 's/^PPid:\t//p' "/proc/$2/status")""#;
        run(self.cluster.sandbox.command("sh").args(["-c", script, "sh", signal, &self.pid]))
    }
}

impl Drop for LostPod<'_> {
    fn drop(&mut self) {
        for undone in [self.cut("-D"), self.signal("CONT")] {
            if let Err(error) = undone {
                eprintln!("a pod stays lost: {error:#}");
            }
        }
    }
}

/// Pods that do not reach another one, until this is dropped.
pub struct Cut<'a> {
    cluster: &'a Cluster,
    /// Addresses.
    from: Vec<String>,
    to: String,
}

impl Drop for Cut<'_> {
    fn drop(&mut self) {
        for from in &self.from {
            if let Err(error) = self.cluster.drop_packets("-D", &["-s", from, "-d", &self.to]) {
                eprintln!("{} stays cut off from {from}: {error:#}", self.to);
            }
        }
    }
}

/// What etcd held at some time.
pub struct Snapshot(PathBuf);

impl Cluster {
    /// Etcd, API server and controllers: pods are made and stay pending. For tests of what only talks to the API.
    pub fn control_plane() -> anyhow::Result<Self> {
        let cluster = Self::prepare()?;
        cluster.start_control_plane()?;
        Ok(cluster)
    }

    /// The whole of it, with these images (archives) besides the base image.
    pub fn with_node(images: &[PathBuf]) -> anyhow::Result<Self> {
        let cluster = Self::prepare()?;
        let base = images_folder()?.join("base.tar");
        ensure!(base.exists(), "{} is missing: tests/setup/image.sh makes it", base.display());
        cluster.start(Component::Containerd)?;
        thread::scope(|scope| {
            let loaded = scope.spawn(|| {
                cluster.wait_for_containerd()?;
                std::iter::once(&base).chain(images).try_for_each(|image| cluster.load_image(image))
            });
            cluster.start_control_plane()?;
            cluster.start(Component::Scheduler)?;
            cluster.start(Component::CoreDns)?;
            cluster.start(Component::KubeProxy)?;
            loaded.join().map_err(|_| anyhow::anyhow!("the thread that loads images panicked"))?
        })?;
        cluster.start(Component::Kubelet)?;
        cluster.until("the node is ready", || {
            let path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
            Ok(cluster.kubectl(&["get", "node", NODE, "-o", path]).is_ok_and(|status| status == "True"))
        })?;
        cluster.wait_for_connection("names are served", cluster.node_ip(), 53)?;
        cluster.wait_for_connection("services are reached", cluster.layout.network.api_service(), 443)?;
        Ok(cluster)
    }

    fn prepare() -> anyhow::Result<Self> {
        let kube = cache()?.join("kube/bin");
        ensure!(kube.exists(), "{} is missing: tests/setup/kubernetes.sh builds it", kube.display());
        let sandbox = Sandbox::start()?;
        let layout = Layout { dir: sandbox.dir().to_owned(), network: sandbox.network() };
        layout.write()?;
        fs::create_dir(layout.dir.join("log")).context("make the folder of logs")?;
        make_control_groups(&layout.control_group())?;
        let processes = Mutex::new(BTreeMap::new());
        Ok(Self { layout, kube, processes, snapshots: AtomicU32::new(0), sandbox })
    }

    fn start_control_plane(&self) -> anyhow::Result<()> {
        self.start(Component::Etcd)?;
        self.start(Component::ApiServer)?;
        self.wait_for_api()?;
        self.start(Component::ControllerManager)?;
        // Until it is there no pod can be made.
        self.until("the default service account", || {
            Ok(self.kubectl(&["get", "serviceaccount", "default", "-o", "name"]).is_ok())
        })
    }

    fn wait_for_api(&self) -> anyhow::Result<()> {
        self.until("the API server is ready", || Ok(self.kubectl(&["get", "--raw", "/readyz"]).is_ok()))
    }

    fn wait_for_containerd(&self) -> anyhow::Result<()> {
        let socket = self.layout.dir.join("containerd.sock");
        self.until("containerd serves", || Ok(UnixStream::connect(&socket).is_ok()))
    }

    fn wait_for_connection(&self, what: &str, address: Ipv4Addr, port: u16) -> anyhow::Result<()> {
        let address = SocketAddr::from((address, port));
        self.until(what, || Ok(TcpStream::connect_timeout(&address, CONNECT).is_ok()))
    }

    /// Ends everything and returns when nothing is left. A drop does the same, and says nothing when it fails.
    pub fn down(self) -> anyhow::Result<()> {
        self.sandbox.end()
    }

    /// Returns when somebody has killed its guard.
    pub fn wait(&mut self) -> anyhow::Result<()> {
        self.sandbox.wait()
    }

    fn processes(&self) -> MutexGuard<'_, BTreeMap<Component, Child>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a part that does not run. Does not wait until it is ready.
    pub fn start(&self, component: Component) -> anyhow::Result<()> {
        let name = component.name();
        let log = File::options().create(true).append(true).open(self.log_file(component)).context("open a log")?;
        let mut command = self.sandbox.command(component.program(&self.kube));
        command.args(component.arguments(&self.layout)).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("start {name}"))?;
        let former = self.processes().insert(component, child);
        ensure!(former.is_none(), "{name} ran already");
        Ok(())
    }

    /// A program beside the pods, which ends with the cluster at the latest.
    pub fn inside(&self, program: &str) -> Command {
        self.sandbox.command(program)
    }

    /// Ends a part as SIGKILL does, and returns when it is gone.
    pub fn kill(&self, component: Component) -> anyhow::Result<()> {
        let name = component.name();
        let mut child = self.processes().remove(&component).with_context(|| format!("{name} does not run"))?;
        wait::until(&format!("the end of {name}"), DEADLINE, || {
            // What we have started is nsenter, which ends as the program does.
            if let Some(pid) = only_child(child.id()).and_then(|pid| Pid::from_raw(pid as i32)) {
                // Fails only for one that has ended by itself.
                let _ = kill_process(pid, Signal::KILL);
            }
            Ok(child.try_wait()?.is_some())
        })
    }

    /// Fails when a part has ended by itself.
    fn check(&self) -> anyhow::Result<()> {
        for (component, child) in &mut *self.processes() {
            if let Some(status) = child.try_wait()? {
                bail!("{} ended: {status}; its log ends with\n{}", component.name(), self.log_tail(*component));
            }
        }
        Ok(())
    }

    fn log_file(&self, component: Component) -> PathBuf {
        self.layout.dir.join("log").join(component.name())
    }

    fn log_tail(&self, component: Component) -> String {
        let text = fs::read_to_string(self.log_file(component)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }

    /// Waits for a condition; when it does not come to hold, the failure shows what the cluster looks like.
    pub fn until(&self, what: &str, mut condition: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
        wait::until(what, DEADLINE, || {
            self.check()?;
            condition()
        })
        .map_err(|error| error.context(self.diagnostics()))
    }

    pub fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        output(self.client("kubectl").args(arguments)).with_context(|| format!("kubectl {}", arguments.join(" ")))
    }

    /// Applies objects given as YAML or JSON.
    pub fn apply(&self, objects: &str) -> anyhow::Result<String> {
        let mut command = self.client("kubectl");
        command.args(["apply", "-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("start kubectl")?;
        let mut pipe = child.stdin.take().context("it is piped")?;
        pipe.write_all(objects.as_bytes()).context("give kubectl the objects")?;
        drop(pipe);
        let done = child.wait_with_output().context("wait for kubectl")?;
        ensure!(done.status.success(), "kubectl apply: {}", String::from_utf8_lossy(&done.stderr).trim());
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    }

    pub fn helm(&self, arguments: &[&str]) -> anyhow::Result<String> {
        output(self.client("helm").args(arguments)).with_context(|| format!("helm {}", arguments.join(" ")))
    }

    fn client(&self, program: &str) -> Command {
        let mut command = Command::new(self.kube.join(program));
        let home = self.layout.dir.join("clients");
        command.env("KUBECONFIG", self.kubeconfig()).env("KUBECACHEDIR", home.join("kube"));
        for kind in ["CACHE", "CONFIG", "DATA"] {
            command.env(format!("HELM_{kind}_HOME"), home.join(kind));
        }
        command.stdin(Stdio::null());
        command
    }

    /// Everything that the cluster writes; gone after it.
    pub fn dir(&self) -> &Path {
        &self.layout.dir
    }

    /// An administrator's.
    pub fn kubeconfig(&self) -> PathBuf {
        self.layout.dir.join("admin.kubeconfig")
    }

    /// Where Kubernetes' own programs are: kubectl, helm.
    pub fn programs(&self) -> &Path {
        &self.kube
    }

    pub fn node_ip(&self) -> Ipv4Addr {
        self.layout.network.node()
    }

    /// A new address of this machine, which pods reach too: for a Kafka, or a server of the test's.
    pub fn host_address(&self) -> anyhow::Result<Ipv4Addr> {
        self.sandbox.new_host_address()
    }

    /// The addresses of pods, which are this machine's own from now on: for somebody who plays pods where no node is.
    pub fn take_pod_addresses(&self) -> anyhow::Result<Vec<Ipv4Addr>> {
        self.sandbox.take_pod_addresses().context("take the addresses of pods")?;
        Ok(self.layout.network.pod_addresses().collect())
    }

    /// Brings an image archive (OCI or Docker) to the node.
    pub fn load_image(&self, archive: &Path) -> anyhow::Result<()> {
        run(self.ctr().args(["images", "import"]).arg(archive))
    }

    /// Gives an image of the node a further name.
    pub fn tag_image(&self, from: &str, to: &str) -> anyhow::Result<()> {
        run(self.ctr().args(["images", "tag", "--force", from, to]))
    }

    fn ctr(&self) -> Command {
        let mut command = Command::new("ctr");
        command.arg("--address").arg(self.layout.dir.join("containerd.sock")).args(["--namespace", "k8s.io"]);
        command
    }

    /// Sends a signal (as in `SIGKILL`) to the first process of a pod's container, from outside: nobody asks kubelet.
    pub fn signal_container(&self, namespace: &str, pod: &str, container: &str, signal: &str) -> anyhow::Result<()> {
        let id = self.container(namespace, pod, container)?;
        run(self.ctr().args(["tasks", "kill", "--signal", signal, &id]))
    }

    fn container(&self, namespace: &str, pod: &str, container: &str) -> anyhow::Result<String> {
        let path = format!("jsonpath={{.status.containerStatuses[?(@.name=='{container}')].containerID}}");
        let id = self.kubectl(&["get", "pod", "-n", namespace, pod, "-o", &path])?;
        let id = id.strip_prefix("containerd://").with_context(|| format!("{pod} has no running {container}"))?;
        Ok(id.to_owned())
    }

    /// Plays that a pod's node is lost: its processes and what containerd has around them stand still, and nothing that it
    /// sends arrives. It ends with the value.
    pub fn lose_pod(&self, namespace: &str, pod: &str, container: &str) -> anyhow::Result<LostPod<'_>> {
        let (id, address) = (self.container(namespace, pod, container)?, "jsonpath={.status.podIP}");
        let address = self.kubectl(&["get", "pod", "-n", namespace, pod, "-o", address])?;
        let tasks = output(self.ctr().args(["tasks", "list"]))?;
        let pid = tasks.lines().find_map(|line| line.strip_prefix(&id)?.split_whitespace().next());
        let lost = LostPod { cluster: self, pid: pid.context("the container runs")?.to_owned(), address };
        lost.cut("-I")?;
        lost.signal("STOP")?;
        Ok(lost)
    }

    /// Lets no packet from some addresses of pods arrive at another one. What that one sends arrives, and all others reach
    /// it. It ends with the value.
    pub fn cut(&self, from: impl IntoIterator<Item = String>, to: &str) -> anyhow::Result<Cut<'_>> {
        let mut cut = Cut { cluster: self, from: Vec::new(), to: to.to_owned() };
        for address in from {
            self.drop_packets("-I", &["-s", &address, "-d", to])?;
            cut.from.push(address);
        }
        ensure!(!cut.from.is_empty(), "nobody is cut off from {to}");
        Ok(cut)
    }

    /// Inserts a rule (`-I`), or deletes it (`-D`), by which the node drops packets before it looks at them.
    fn drop_packets(&self, change: &str, which: &[&str]) -> anyhow::Result<()> {
        let rule = [&["-w", "-t", "raw", change, "PREROUTING"], which, &["-j", "DROP"]].concat();
        run(self.sandbox.command("iptables").args(rule))
    }

    /// What all containers of a pod have said.
    pub fn logs(&self, namespace: &str, pod: &str) -> anyhow::Result<String> {
        self.kubectl(&["logs", "-n", namespace, pod, "--all-containers", "--prefix"])
    }

    /// Every write to the API, one JSON object a line, with `userAgent`, `verb`, `objectRef`, `stageTimestamp`. One
    /// file, however long it gets.
    pub fn audit_log(&self) -> PathBuf {
        self.layout.dir.join("audit.log")
    }

    /// A copy of all that etcd holds, made while it is stopped.
    pub fn snapshot(&self) -> anyhow::Result<Snapshot> {
        let number = self.snapshots.fetch_add(1, Ordering::Relaxed);
        let snapshot = Snapshot(self.layout.dir.join(format!("snapshot-{number}")));
        self.kill(Component::Etcd)?;
        let copied = copy_folder(&self.layout.dir.join("etcd"), &snapshot.0);
        self.start(Component::Etcd)?;
        copied?;
        self.wait_for_api()?;
        Ok(snapshot)
    }

    /// Restores etcd as an administrator would: whatever of the cluster talks to its API starts anew, since it
    /// remembers what is no longer so. Other clients have to bear it.
    pub fn restore(&self, snapshot: &Snapshot) -> anyhow::Result<()> {
        use Component::{ApiServer, ControllerManager, CoreDns, Etcd, KubeProxy, Kubelet, Scheduler};
        let parts = [Kubelet, KubeProxy, CoreDns, Scheduler, ControllerManager, ApiServer, Etcd];
        let parts: Vec<Component> = parts.into_iter().filter(|part| self.processes().contains_key(part)).collect();
        parts.iter().try_for_each(|part| self.kill(*part))?;
        let data = self.layout.dir.join("etcd");
        fs::remove_dir_all(&data).context("remove what etcd holds")?;
        copy_folder(&snapshot.0, &data)?;
        self.start(Component::Etcd)?;
        self.start(Component::ApiServer)?;
        self.wait_for_api()?;
        let rest = parts.iter().filter(|part| !self.processes().contains_key(part)).copied().collect::<Vec<_>>();
        rest.into_iter().try_for_each(|part| self.start(part))
    }

    /// What one wants to see when a test fails: pods, events, and what our pods and the parts of the cluster say.
    pub fn diagnostics(&self) -> String {
        let ask = |arguments: &[&str]| {
            let answer = self.kubectl(arguments).unwrap_or_else(|error| format!("{error:#}\n"));
            format!("$ kubectl {}\n{answer}", arguments.join(" "))
        };
        let mut text = ask(&["get", "pods", "--all-namespaces", "-o", "wide"]);
        text += &ask(&["get", "events", "--all-namespaces", "--sort-by=.metadata.creationTimestamp"]);
        let path = "jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name} {end}";
        let ours = ["get", "pods", "--all-namespaces", "-l", "app.kubernetes.io/name=millrace", "-o", path];
        for pod in self.kubectl(&ours).unwrap_or_default().split_whitespace() {
            let (namespace, pod) = pod.split_once('/').unwrap_or(("default", pod));
            text += &ask(&["logs", "-n", namespace, pod, "--all-containers", "--prefix", "--tail=50"]);
        }
        let parts: Vec<Component> = self.processes().keys().copied().collect();
        for part in parts {
            text += &format!("{} says\n{}\n", part.name(), self.log_tail(part));
        }
        text
    }
}

/// The archive of our image, as `tests/setup/image.sh` has made it last.
pub fn image() -> anyhow::Result<PathBuf> {
    let archive = images_folder()?.join("millrace.tar");
    ensure!(archive.exists(), "{} is missing: make image makes it", archive.display());
    Ok(archive)
}

fn images_folder() -> anyhow::Result<PathBuf> {
    Ok(cache()?.join("image"))
}

/// Where everything is that is built or fetched.
pub fn cache() -> anyhow::Result<PathBuf> {
    let cache = match env::var_os("MILLRACE_CACHE") {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(env::var_os("HOME").context("neither MILLRACE_CACHE nor HOME is set")?)
            .join(".cache/millrace"),
    };
    fs::create_dir_all(&cache).context("make the cache")?;
    Ok(cache)
}

/// Kubelet wants to find its root in every hierarchy.
fn make_control_groups(name: &str) -> anyhow::Result<()> {
    let root = Path::new("/sys/fs/cgroup");
    if root.join("cgroup.controllers").exists() {
        return fs::create_dir(root.join(name)).context("make a control group");
    }
    for hierarchy in fs::read_dir(root).context("list the hierarchies of control groups")? {
        let hierarchy = hierarchy?.path();
        // A symbolic link is a second name of one.
        if hierarchy.is_dir() && !hierarchy.is_symlink() {
            fs::create_dir(hierarchy.join(name))
                .with_context(|| format!("make a control group in {}", hierarchy.display()))?;
        }
    }
    Ok(())
}

fn copy_folder(from: &Path, to: &Path) -> anyhow::Result<()> {
    run(Command::new("cp").args(["--archive", "--no-target-directory"]).args([from, to]))
}

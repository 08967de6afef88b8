//! A machine within the machine: namespaces of Linux for processes, mounts and the network, in which a cluster finds
//! every port and path free, however many of them run.
//!
//! ```text
//!  this process ──pipe──▶ guard (sh) ─▶ unshare ─▶ init (bash, process 1 of the sandbox)
//!      └─ nsenter ─▶ etcd, containerd, kubelet, ... ─▶ pods
//! ```
//!
//! Invariant: nothing outlives the process that started it. Init waits for the end of a pipe that only this process
//! holds open. When it ends, whether by a drop, a panic or SIGKILL, init exits, and with it the kernel kills whatever runs
//! in the sandbox and takes its mounts and its network away; the guard then removes the control groups and the folder.
//! What a guard that was killed too has left (or a machine that was switched off), the next start removes.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::{env, process};

use anyhow::{Context, bail, ensure};
use millrace_kafka_harness::{DEADLINE, wait};

const PREFIX: &str = "millrace-cluster-";
/// 198.18.0.0/15 is set aside for benchmarks (RFC 2544): no network that this machine is in has it. A sandbox takes 4,096 of
/// its addresses.
const FIRST_ADDRESS: u32 = u32::from_be_bytes([198, 18, 0, 0]);
const ADDRESSES: u32 = 4096;
const SANDBOXES_MAX: u32 = 32;

/// Waits until nobody is left in the control groups, for 20 s.
const REMOVE: &str = r#"
remove() {
    tries=0
    until find /sys/fs/cgroup -depth -type d -path "*/${1##*/}*" -exec rmdir {} + 2>/dev/null && rm -rf -- "$1"; do
        [ $tries -lt 200 ] || exit 1
        tries=$((tries + 1))
        sleep 0.1
    done
}
"#;
/// Signals of a terminal go to its whole process group, hence the traps (and a group of its own). Its standard output is
/// the folder's lock. Bash, unlike dash, reaps the orphans that process 1 inherits.
const GUARD: &str = r#"
trap '' INT TERM HUP QUIT
unshare --pid --fork --mount-proc --mount --net bash -c 'trap "" INT TERM HUP QUIT; read -r _' >/dev/null
remove "$1"
"#;
/// Inside. What knows no other path than one below /run, /var/log or /var/lib writes to memory, and only the sandbox
/// sees it.
const INSIDE: &str = r#"
mount -t tmpfs tmpfs /var/log
mount -t tmpfs tmpfs /run
mkdir -p /run/lock /run/lib/upper /run/lib/work
mount -t overlay overlay -o lowerdir=/var/lib,upperdir=/run/lib/upper,workdir=/run/lib/work /var/lib
ip link set lo up
ip address add "$1/24" dev uplink
ip link set uplink up
ip route add default via "$2"
echo 1 >/proc/sys/net/ipv4/ip_forward
"#;

/// The sandbox's own network: 198.18.0.0/20, or one of the next.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    base: u32,
}

impl Network {
    fn number(number: u32) -> Self {
        Self { base: FIRST_ADDRESS + number * ADDRESSES }
    }

    fn address(self, offset: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.base + offset)
    }

    fn all(self) -> String {
        format!("{}/20", self.address(0))
    }

    /// The sandbox's end of the line between it and this machine.
    pub fn node(self) -> Ipv4Addr {
        self.address(1)
    }

    fn host(self, index: u8) -> Ipv4Addr {
        self.address(2 + u32::from(index))
    }

    pub fn services(self) -> String {
        format!("{}/22", self.address(1024))
    }

    pub fn api_service(self) -> Ipv4Addr {
        self.address(1025)
    }

    pub fn pods(self) -> String {
        format!("{}/21", self.address(2048))
    }

    pub fn pod_addresses(self) -> impl Iterator<Item = Ipv4Addr> {
        (2048..ADDRESSES).map(move |offset| self.address(offset))
    }
}

pub struct Sandbox {
    guard: Guard,
    init: u32,
    network: Network,
    link: String,
    link_index: String,
    hosts: AtomicU8,
}

impl Sandbox {
    pub fn start() -> anyhow::Result<Self> {
        let mut guard = Guard::start()?;
        let init = guard.wait_for_init()?;
        let (network, link) = connect(init).context("connect the sandbox's network")?;
        let link_index =
            fs::read_to_string(format!("/sys/class/net/{link}/ifindex")).context("read a link's number")?;
        let sandbox = Self { guard, init, network, link, link_index, hosts: AtomicU8::new(0) };
        let gateway = sandbox.new_host_address()?;
        ip(&["link", "set", &sandbox.link, "up"])?;
        let inside = ["-euc", INSIDE, "sh", &network.node().to_string(), &gateway.to_string()];
        run(sandbox.command("sh").args(inside)).context("set the sandbox up")?;
        // Services' and pods' addresses too: tests reach them as pods do.
        ip(&["route", "add", &network.all(), "via", &network.node().to_string()])?;
        Ok(sandbox)
    }

    /// A further address of this machine that those in the sandbox reach, for somebody who wants all its ports.
    pub fn new_host_address(&self) -> anyhow::Result<Ipv4Addr> {
        let index = self.hosts.fetch_add(1, Ordering::Relaxed);
        ensure!(index < 250, "this machine has 250 addresses towards a cluster");
        let address = self.network.host(index);
        ip(&["address", "add", &format!("{address}/24"), "dev", &self.link])?;
        Ok(address)
    }

    /// Makes all addresses of pods this machine's own. The route goes with the link, and the link with the sandbox.
    pub fn take_pod_addresses(&self) -> anyhow::Result<()> {
        ip(&["route", "add", "local", &self.network.pods(), "dev", &self.link])
    }

    pub fn dir(&self) -> &Path {
        &self.guard.dir
    }

    pub fn network(&self) -> Network {
        self.network
    }

    /// A command that runs inside, outside of our process group: a terminal's Ctrl-C reaches us only.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init.to_string(), "--mount", "--net", "--pid", "--"]).arg(program.as_ref());
        // What a proxy is for is not in here.
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "all_proxy"] {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).process_group(0);
        command
    }

    /// Returns when it has ended by itself.
    pub fn wait(&mut self) -> anyhow::Result<()> {
        self.guard.shell.wait().context("wait for the guard").map(drop)
    }

    /// Ends everything in it, and returns when nothing is left.
    pub fn end(mut self) -> anyhow::Result<()> {
        self.end_and_wait()
    }

    /// The kernel takes a network away some time after the last process in it: whoever looks at once finds its link.
    fn end_and_wait(&mut self) -> anyhow::Result<()> {
        self.guard.end()?;
        let path = Path::new("/sys/class/net").join(&self.link).join("ifindex");
        wait::until("the end of the sandbox's link", DEADLINE, || {
            // Who starts meanwhile may have the name already.
            Ok(fs::read_to_string(&path).ok().as_ref() != Some(&self.link_index))
        })
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // What is left, the next start removes.
        let _ = self.end_and_wait();
    }
}

/// Takes the first network that no other sandbox has: the kernel gives the name of a link to one only.
fn connect(init: u32) -> anyhow::Result<(Network, String)> {
    let mut failure = None;
    for number in 0..SANDBOXES_MAX {
        let link = format!("millrace{number}");
        match ip(&["link", "add", &link, "type", "veth", "peer", "name", "uplink", "netns", &init.to_string()]) {
            Ok(()) => return Ok((Network::number(number), link)),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.context("there is room for a sandbox")?)
}

fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    run(Command::new("ip").args(arguments))
}

struct Guard {
    dir: PathBuf,
    shell: Child,
    pipe: Option<ChildStdin>,
    /// The shell has it too: the folder is in use while one of us lives.
    _lock: File,
}

impl Guard {
    fn start() -> anyhow::Result<Self> {
        let (dir, lock) = new_folder()?;
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{REMOVE}{GUARD}"), "millrace-cluster-guard"]).arg(&dir);
        command.stdin(Stdio::piped()).stdout(lock.try_clone()?).stderr(Stdio::null()).process_group(0);
        let mut shell = command.spawn().context("start the guard's shell")?;
        let pipe = shell.stdin.take();
        Ok(Self { dir, shell, pipe, _lock: lock })
    }

    fn wait_for_init(&mut self) -> anyhow::Result<u32> {
        let ours = fs::read_link("/proc/self/ns/net")?;
        let mut init = None;
        wait::until("the sandbox's first process", DEADLINE, || {
            if let Some(status) = self.shell.try_wait()? {
                bail!("unshare ended ({status}): a cluster needs root, and Linux namespaces");
            }
            init = only_child(self.shell.id()).and_then(only_child);
            // Unshare has mounted /proc and left our network before it becomes bash.
            let is_bash = |pid| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "bash\n");
            let is_apart = |pid| fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|theirs| theirs != ours);
            Ok(init.is_some_and(|pid| is_bash(pid) && is_apart(pid)))
        })?;
        init.context("it was there")
    }

    fn end(&mut self) -> anyhow::Result<()> {
        self.pipe = None;
        let status = self.shell.wait().context("wait for the guard")?;
        ensure!(status.success(), "something of {} could not be removed", self.dir.display());
        Ok(())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // What is left, the next start removes.
        let _ = self.end();
    }
}

/// A folder that is locked before anybody can take it for a dead one's; those are removed.
fn new_folder() -> anyhow::Result<(PathBuf, File)> {
    let temporary = env::temp_dir();
    let starts = File::create(crate::cache()?.join("cluster.lock")).context("open the lock of all starts")?;
    starts.lock().context("wait for other starts")?;
    for entry in fs::read_dir(&temporary).context("read the temporary folder")? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX)) {
            remove_if_dead(&path)?;
        }
    }
    let dir = tempfile::Builder::new().prefix(PREFIX).tempdir_in(&temporary).context("make a folder")?;
    let lock = File::create(dir.path().join("lock")).context("make a folder's lock")?;
    lock.lock().context("lock a new folder")?;
    Ok((dir.keep(), lock))
}

fn remove_if_dead(dir: &Path) -> anyhow::Result<()> {
    let lock = File::open(dir.join("lock"));
    if lock.is_ok_and(|lock| lock.try_lock().is_err()) {
        return Ok(());
    }
    let script = format!("{REMOVE}\nremove \"$1\"");
    run(Command::new("sh").args(["-c", &script, "sh"]).arg(dir))
        .with_context(|| format!("remove what a dead cluster left in {}", dir.display()))
}

/// The process that one of ours has started, by its number out here.
pub fn only_child(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// Runs a command to its end; what it says on standard error is the failure.
pub fn run(command: &mut Command) -> anyhow::Result<()> {
    output(command).map(drop)
}

/// The same, with what it says on standard output.
pub fn output(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let process::Output { status, stdout, stderr } = command.output().with_context(|| format!("run {name}"))?;
    ensure!(status.success(), "{name}: {status}: {}", String::from_utf8_lossy(&stderr).trim());
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

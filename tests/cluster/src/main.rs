//! A cluster for people, with our image on it and a Kafka beside it, that stays until it is told to go.
//!
//!     cluster up               starts it, prints how to use it
//!     cluster env              prints the same again, for eval
//!     cluster kubectl ...      kubectl on it
//!     cluster down             ends it and removes everything

use std::env;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{self, Command, ExitCode, Stdio};

use anyhow::{Context, bail};
use millrace_cluster_harness::{Cluster, cache, image};
use millrace_kafka_harness::{DEADLINE, Kafka, Options, wait};
use rustix::process::{Pid, Signal, kill_process};

fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let command = arguments.first().map(String::as_str);
    match command {
        Some("up") => up()?,
        Some("serve") => serve()?,
        Some("env") => print!("{}", Running::get()?.text),
        Some("kubectl") => return kubectl(&arguments[1..]),
        Some("down") => down()?,
        _ => bail!("usage: cluster up|env|kubectl|down"),
    }
    Ok(ExitCode::SUCCESS)
}

/// What `serve` prints once it is ready, and the other commands read: lines for a shell.
struct Running {
    /// Of the process that holds the cluster.
    pid: i32,
    dir: PathBuf,
    text: String,
}

impl Running {
    fn file() -> anyhow::Result<PathBuf> {
        Ok(cache()?.join("cluster.env"))
    }

    /// `None` where none runs, whatever the file says: its number may be another process's by now.
    fn find() -> anyhow::Result<Option<Self>> {
        let text = fs::read_to_string(Self::file()?).unwrap_or_default();
        let value = |name| text.lines().find_map(|line| line.strip_prefix("export ")?.strip_prefix(name));
        let (Some(dir), Some(pid)) = (value("MILLRACE_CLUSTER_DIR="), value("MILLRACE_CLUSTER_PID=")) else {
            return Ok(None);
        };
        let pid = pid.parse().context("read a process's number")?;
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        Ok((name == "cluster\n").then(|| Self { pid, dir: PathBuf::from(dir), text: text.clone() }))
    }

    fn get() -> anyhow::Result<Self> {
        Self::find()?.context("no cluster runs: start one with 'cluster up'")
    }
}

fn up() -> anyhow::Result<()> {
    if Running::find()?.is_none() {
        let log = cache()?.join("cluster.log");
        let mut command = Command::new(env::current_exe()?);
        command.arg("serve").stdin(Stdio::null()).process_group(0);
        command.stdout(File::create(Running::file()?).context("open what others read")?);
        command.stderr(File::create(&log).context("open the cluster's log")?);
        let mut child = command.spawn().context("start the process that holds the cluster")?;
        wait::until("the cluster", 2 * DEADLINE, || {
            if let Some(status) = child.try_wait()? {
                bail!("{status}: {}", fs::read_to_string(&log).unwrap_or_default());
            }
            Ok(Running::find()?.is_some())
        })?;
    }
    print!("{}", Running::get()?.text);
    Ok(())
}

/// Holds the cluster and the Kafka; both end with this process.
fn serve() -> anyhow::Result<()> {
    let mut cluster = Cluster::with_node(&[image()?])?;
    let kafka = Kafka::start(&Options { address: Some(cluster.host_address()?), ..Options::default() })?;
    println!("export KUBECONFIG={}", cluster.kubeconfig().display());
    println!("export KAFKA={}", kafka.bootstrap_servers());
    println!("export MILLRACE_CLUSTER_DIR={}", cluster.dir().display());
    println!("export MILLRACE_CLUSTER_PID={}", process::id());
    cluster.wait()
}

fn kubectl(arguments: &[String]) -> anyhow::Result<ExitCode> {
    let running = Running::get()?;
    let mut command = Command::new(cache()?.join("kube/bin/kubectl"));
    command.args(arguments).env("KUBECONFIG", running.dir.join("admin.kubeconfig"));
    let status = command.status().context("run kubectl")?;
    Ok(status.code().map_or(ExitCode::FAILURE, |code| ExitCode::from(code as u8)))
}

fn down() -> anyhow::Result<()> {
    if let Some(running) = Running::find()? {
        let pid = Pid::from_raw(running.pid).context("a process has a number")?;
        // The guards notice that it is gone.
        let _ = kill_process(pid, Signal::KILL);
        wait::until("the end of the cluster", DEADLINE, || Ok(!running.dir.exists()))?;
    }
    let _ = fs::remove_file(Running::file()?);
    Ok(())
}

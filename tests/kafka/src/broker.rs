//! One broker: a JVM and its folder.

use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, bail, ensure};

use crate::install::Installation;
use crate::{DEADLINE, Options, Tuning, wait};

/// How much of a log is shown.
const LOG_LINES: usize = 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Stop,
    Continue,
}

/// How a JVM is started.
pub struct Jvm {
    arguments: Vec<String>,
}

impl Jvm {
    pub fn new(installation: &Installation, options: &Options, archive_at_exit: Option<&Path>) -> Self {
        let mut arguments = vec![
            format!("-Xmx{}m", options.heap_mb),
            "-Xms64m".to_owned(),
            "-Djava.awt.headless=true".to_owned(),
            // Its file in the system's temporary folder would outlive a kill.
            "-XX:-UsePerfData".to_owned(),
        ];
        match options.tuning {
            // Loaded classes come from an archive, and the second compiler stays off: 2.7 s and 1.8 CPU seconds to a
            // broker that serves, where the defaults take 8.6 s and 5.2 CPU seconds.
            Tuning::Start => arguments.extend(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"].map(str::to_owned)),
            Tuning::Speed => {
                arguments.extend(["-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"].map(str::to_owned));
            }
        }
        arguments.push(match archive_at_exit {
            Some(path) => format!("-XX:ArchiveClassesAtExit={}", path.display()),
            None => format!("-XX:SharedArchiveFile={}", installation.class_archive().display()),
        });
        arguments.push("-Xlog:cds=off".to_owned());
        arguments.push("-Xlog:cds+dynamic=off".to_owned());
        arguments.push(format!("-Dlog4j2.configurationFile={}", installation.log_config().display()));
        arguments.extend(["-cp".to_owned(), installation.class_path(), "kafka.Kafka".to_owned()]);
        Self { arguments }
    }
}

pub struct Broker {
    id: u32,
    home: PathBuf,
    properties: PathBuf,
    jvm: Jvm,
    /// Behind a lock, so that tests which share a cluster can take its brokers away.
    child: Mutex<Option<Child>>,
}

impl Broker {
    pub fn new(id: u32, home: PathBuf, properties: PathBuf, jvm: Jvm) -> Self {
        Self { id, home, properties, jvm, child: Mutex::new(None) }
    }

    pub fn id(&self) -> u32 {
        self.id
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn pid(&self) -> Option<u32> {
        self.child().as_ref().map(Child::id)
    }

    pub fn is_running(&self) -> bool {
        self.child().is_some()
    }

    fn log_file(&self) -> PathBuf {
        self.home.join("broker.log")
    }

    /// Starts the JVM in a process group of its own, so that a terminal's Ctrl-C reaches the tests only.
    pub fn launch(&self) -> anyhow::Result<u32> {
        let mut running = self.child();
        ensure!(running.is_none(), "broker {} runs already", self.id);
        let log = OpenOptions::new().create(true).append(true).open(self.log_file()).context("open a broker's log")?;
        let mut command = Command::new("java");
        command.arg(format!("-Djava.io.tmpdir={}", self.home.display()));
        command.arg(format!("-XX:ErrorFile={}", self.home.join("crash.log").display()));
        command.args(&self.jvm.arguments).arg(&self.properties).current_dir(&self.home).process_group(0);
        command.stdin(Stdio::null()).stdout(log.try_clone().context("open a broker's log")?).stderr(log);
        let child = command.spawn().context("start java: is a JRE of version 17 or later installed?")?;
        let pid = child.id();
        *running = Some(child);
        Ok(pid)
    }

    /// Kills and reaps it; returns the number that it had.
    pub fn kill(&self) -> anyhow::Result<u32> {
        let Some(mut child) = self.child().take() else { bail!("broker {} does not run", self.id) };
        // Fails only for one that has ended by itself.
        let _ = child.kill();
        child.wait().context("wait for a killed broker")?;
        Ok(child.id())
    }

    /// Asks it to stop, and kills it when it does not.
    pub fn stop(&self) -> anyhow::Result<u32> {
        let pid = self.pid().with_context(|| format!("broker {} does not run", self.id))?;
        send(pid, "TERM")?;
        let stopped = wait::until("a broker's stop", DEADLINE, || Ok(self.exit_status().is_some()));
        let reaped = self.kill();
        stopped.and(reaped)
    }

    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = self.pid().with_context(|| format!("broker {} does not run", self.id))?;
        send(
            pid,
            match signal {
                Signal::Stop => "STOP",
                Signal::Continue => "CONT",
            },
        )
    }

    /// How it ended, if it has.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.child().as_mut().and_then(|child| child.try_wait().ok().flatten())
    }

    pub fn log_tail(&self) -> String {
        let text = fs::read_to_string(self.log_file()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }
}

fn send(pid: u32, signal: &str) -> anyhow::Result<()> {
    let status = Command::new("kill").args(["-s", signal, &pid.to_string()]).status().context("run kill")?;
    ensure!(status.success(), "send SIG{signal} to process {pid}: {status}");
    Ok(())
}

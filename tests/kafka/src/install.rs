//! The jars, fetched once; and what makes a broker start fast: its folder formatted and its classes loaded beforehand.
//!
//! All of it is in `$MILLRACE_CACHE/kafka-<version>` (default `~/.cache/millrace`), made under a lock, step by step;
//! what a step has made appears under its name whole or not at all. Removing the folder is always safe.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

use crate::{Kafka, Message, Options, random};

const VERSION: &str = "4.4.0";
const POM: &str = include_str!("../pom.xml");
const LOG_CONFIG: &str = include_str!("../log4j2.properties");
/// What the format tool puts into a data folder: the versions of all features that a new cluster has.
const CHECKPOINT: &str = "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint";

pub struct Installation {
    home: PathBuf,
    jars: Vec<PathBuf>,
}

impl Installation {
    /// The installation, made if it is not there. Concurrent calls wait for the first one.
    pub fn find_or_make() -> anyhow::Result<Self> {
        let home = cache()?.join(format!("kafka-{VERSION}"));
        fs::create_dir_all(&home).with_context(|| format!("make {}", home.display()))?;
        let lock = File::create(home.join("lock")).context("open the lock of the installation")?;
        lock.lock().context("lock the installation")?;
        fs::write(home.join("pom.xml"), POM).context("write the pom")?;
        fs::write(home.join("log4j2.properties"), LOG_CONFIG).context("write the log configuration")?;
        make(&home.join("lib"), |next| fetch_jars(&home, next)).context("fetch Kafka's jars with Maven")?;
        let mut installation = Self { jars: jars(&home.join("lib"))?, home };
        installation.jars.sort();
        make(&installation.checkpoint(), |next| installation.make_checkpoint(next)).context("format a data folder")?;
        make(&installation.class_archive(), |next| installation.make_class_archive(next))
            .context("archive the classes that a broker loads")?;
        Ok(installation)
    }

    /// In one fixed order: the class archive is good for exactly the path that it was made with.
    pub fn class_path(&self) -> String {
        self.jars.iter().map(|j| j.display().to_string()).collect::<Vec<_>>().join(":")
    }

    pub fn class_archive(&self) -> PathBuf {
        self.home.join("kafka.jsa")
    }

    pub fn log_config(&self) -> PathBuf {
        self.home.join("log4j2.properties")
    }

    fn checkpoint(&self) -> PathBuf {
        self.home.join("bootstrap.checkpoint")
    }

    /// Formats a broker's data folder: by hand, from what the tool once wrote, which saves a JVM's start per broker.
    pub fn format(&self, home: &Path, cluster_id: &str, node: u32) -> anyhow::Result<()> {
        let data = home.join("data");
        let checkpoint = data.join(CHECKPOINT);
        fs::create_dir_all(checkpoint.parent().unwrap_or(&data)).context("make a data folder")?;
        fs::copy(self.checkpoint(), &checkpoint).context("copy the checkpoint")?;
        let directory_id = random::kafka_uuid();
        let text = format!("version=1\ncluster.id={cluster_id}\nnode.id={node}\ndirectory.id={directory_id}\n");
        fs::write(data.join("meta.properties"), text).context("write meta.properties")
    }

    fn run_format_tool(&self, properties: &Path, cluster_id: &str) -> anyhow::Result<()> {
        let mut command = Command::new("java");
        command.args(["-Xmx128m", "-XX:-UsePerfData", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
        command.arg(format!("-Dlog4j2.configurationFile={}", self.log_config().display()));
        command.args(["-cp", &self.class_path(), "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c"]);
        command.arg(properties);
        run(command)
    }

    fn make_checkpoint(&self, next: &Path) -> anyhow::Result<()> {
        let dir = tempfile::tempdir().context("make a temporary folder")?;
        let properties = dir.path().join("server.properties");
        let data = dir.path().join("data");
        let text = format!(
            "process.roles=broker,controller\nnode.id=1\ncontroller.listener.names=CONTROLLER\n\
             listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n\
             controller.quorum.voters=1@127.0.0.1:9093\nlog.dirs={}\n",
            data.display()
        );
        fs::write(&properties, text).context("write properties")?;
        self.run_format_tool(&properties, &random::kafka_uuid())?;
        fs::copy(data.join(CHECKPOINT), next).context("copy the checkpoint")?;
        Ok(())
    }

    /// Runs a broker through what most tests do. Its JVM writes the archive when it ends.
    fn make_class_archive(&self, next: &Path) -> anyhow::Result<()> {
        let kafka = Kafka::start_on(self, &Options::default(), Some(next))?;
        kafka.create_topic("warm-up", 1, &[])?;
        kafka.produce("warm-up", [Message::new("key", "value")])?;
        kafka.read_committed("warm-up")?;
        kafka.delete_topic("warm-up")?;
        kafka.stop(1)?;
        ensure!(next.exists(), "the JVM wrote no archive:\n{}", kafka.log_tail(1));
        Ok(())
    }
}

fn cache() -> anyhow::Result<PathBuf> {
    match (env::var_os("MILLRACE_CACHE"), env::var_os("HOME")) {
        (Some(cache), _) => Ok(PathBuf::from(cache)),
        (None, Some(home)) => Ok(PathBuf::from(home).join(".cache/millrace")),
        (None, None) => bail!("neither MILLRACE_CACHE nor HOME is set"),
    }
}

/// Makes `path` with `step`, which gets another name to write to, unless it is there.
fn make(path: &Path, step: impl FnOnce(&Path) -> anyhow::Result<()>) -> anyhow::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let next = path.with_extension("next");
    if next.is_dir() {
        fs::remove_dir_all(&next)?;
    } else if next.exists() {
        fs::remove_file(&next)?;
    }
    step(&next)?;
    fs::rename(&next, path).with_context(|| format!("rename to {}", path.display()))
}

fn fetch_jars(home: &Path, lib: &Path) -> anyhow::Result<()> {
    let mut command = Command::new("mvn");
    command.args(["-q", "-B", "-f"]).arg(home.join("pom.xml"));
    command.arg(format!("-Dmaven.repo.local={}", home.with_file_name("maven").display()));
    command.args(["dependency:copy-dependencies", "-DincludeScope=runtime"]);
    command.arg(format!("-DoutputDirectory={}", lib.display()));
    run(command)
}

fn jars(lib: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(lib).with_context(|| format!("read {}", lib.display()))?;
    entries.map(|e| Ok(e?.path())).collect()
}

fn run(mut command: Command) -> anyhow::Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("run {program}: is it installed?"))?;
    ensure!(
        output.status.success(),
        "{program} ended with {}:\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

//! A real Apache Kafka for tests: one broker or three, started from jars that Maven fetched once into the cache.
//!
//! Every instance has a loopback address, a folder and a cluster id of its own, so several run at a time. Ports are
//! fixed on that address: a port that was free a moment ago on 127.0.0.1 may be some client's by the time a JVM binds
//! it, and a broker that restarts must find its own again.
//!
//! Invariant: nothing outlives the process that started it. Dropping [`Kafka`] ends the brokers and removes the folder;
//! a [`guard`] does both when the process dies without doing so, by whatever signal.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! let kafka = millrace_kafka_harness::Kafka::single()?;
//! kafka.create_topic("orders", 8, &[("retention.ms", "-1")])?;
//! # Ok(())
//! # }
//! ```

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rdkafka::ClientConfig;

mod broker;
mod guard;
mod install;
mod random;
mod records;
pub mod security;
mod topics;
pub mod wait;

pub use broker::Signal;
pub use records::{Message, Record, Writer};

use broker::{Broker, Jvm};
use guard::Guard;
use install::Installation;

/// How long anything may take that happens within seconds on a quiet machine.
pub const DEADLINE: Duration = Duration::from_secs(90);

const BROKER_PORT: u16 = 9092;
const CONTROLLER_PORT: u16 = 9192;
/// The first of [`Options::listeners`] is here, each of the others ten above the one before.
const SECURED_PORT: u16 = 9292;
/// Clients that come by a proxy are let in here, when [`Options::proxied_listener`] is set, and told to come back there.
const PROXIED_PORT: u16 = 9392;
const PROXY_PORT: u16 = 9492;
/// How many loopback addresses are tried until one is free.
const ADDRESSES_TRIED_MAX: u32 = 16;

/// What the JVM is tuned for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tuning {
    /// The first compiler only and a serial collector: ready in a third of the time and CPU. For tests.
    Start,
    /// As an operator would run it. For measurements.
    Speed,
}

/// How an instance differs from the default one.
#[derive(Clone, Debug)]
pub struct Options {
    pub brokers: u32,
    pub heap_mb: u32,
    pub tuning: Tuning,
    /// Broker properties on top of (or in place of) the harness's own.
    pub properties: Vec<(String, String)>,
    /// More listeners: names and protocols (SSL, SASL_PLAINTEXT, SASL_SSL); `properties` say the rest.
    pub listeners: Vec<(String, String)>,
    /// Where a certificate has to name it: a loopback address, see [`free_address`]. Or another one of this machine's, where
    /// others than its own processes come, such as pods.
    pub address: Option<Ipv4Addr>,
    /// A further listener named PROXIED. Its advertised address, [`Kafka::proxy`], is free for a proxy of the test's.
    pub proxied_listener: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            brokers: 1,
            heap_mb: 384,
            tuning: Tuning::Start,
            properties: Vec::new(),
            listeners: Vec::new(),
            address: None,
            proxied_listener: false,
        }
    }
}

/// A running cluster.
pub struct Kafka {
    brokers: Vec<Broker>,
    address: Ipv4Addr,
    cluster_id: String,
    dir: PathBuf,
    /// Last, so that it finds the brokers gone.
    guard: Guard,
}

impl Kafka {
    /// One broker.
    pub fn single() -> anyhow::Result<Self> {
        Self::start(&Options::default())
    }

    /// Three brokers; topics have three replicas, of which two must be in sync.
    pub fn three() -> anyhow::Result<Self> {
        Self::start(&Options { brokers: 3, ..Options::default() })
    }

    /// Starts an instance and returns once every broker is in the cluster's metadata.
    pub fn start(options: &Options) -> anyhow::Result<Self> {
        let installation = Installation::find_or_make()?;
        Self::start_on(&installation, options, None)
    }

    fn start_on(
        installation: &Installation,
        options: &Options,
        archive_at_exit: Option<&Path>,
    ) -> anyhow::Result<Self> {
        ensure!((1..=3).contains(&options.brokers), "an instance has one to three brokers");
        let dir = tempfile::Builder::new().prefix("millrace-kafka-").tempdir().context("make a folder")?;
        let guard = Guard::start(dir.path())?;
        // From here on the guard removes the folder.
        let dir = dir.keep();
        let address = options.address.map_or_else(free_address, Ok)?;
        let mut kafka = Self { brokers: Vec::new(), address, cluster_id: random::kafka_uuid(), dir, guard };
        for id in 1..=options.brokers {
            let broker = kafka.prepare(installation, options, id, archive_at_exit)?;
            kafka.brokers.push(broker);
        }
        for id in 1..=options.brokers {
            kafka.launch(id)?;
        }
        kafka.wait_ready()?;
        Ok(kafka)
    }

    /// Writes a broker's files: its properties and the formatted folder that it starts from.
    fn prepare(
        &self,
        installation: &Installation,
        options: &Options,
        id: u32,
        archive_at_exit: Option<&Path>,
    ) -> anyhow::Result<Broker> {
        let home = self.dir.join(format!("broker-{id}"));
        fs::create_dir_all(&home).context("make a broker's folder")?;
        let properties = home.join("server.properties");
        fs::write(&properties, self.properties(options, id, &home)).context("write a broker's properties")?;
        installation.format(&home, &self.cluster_id, id)?;
        Ok(Broker::new(id, home, properties, Jvm::new(installation, options, archive_at_exit)))
    }

    fn properties(&self, options: &Options, id: u32, home: &Path) -> String {
        let port = |base: u16, id: u32| base + id as u16 - 1;
        let address = self.address;
        let voters: Vec<String> =
            (1..=options.brokers).map(|id| format!("{id}@{address}:{}", port(CONTROLLER_PORT, id))).collect();
        let mut clients = format!("PLAINTEXT://{address}:{}", port(BROKER_PORT, id));
        let mut protocols = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned();
        for (index, (name, protocol)) in options.listeners.iter().enumerate() {
            clients += &format!(",{name}://{address}:{}", secured_port(index, id));
            protocols += &format!(",{name}:{protocol}");
        }
        let mut advertised = clients.clone();
        if options.proxied_listener {
            clients += &format!(",PROXIED://{}", self.proxied(id));
            advertised += &format!(",PROXIED://{}", self.proxy(id));
            protocols += ",PROXIED:PLAINTEXT";
        }
        let replicas = options.brokers;
        let in_sync_min = replicas.saturating_sub(1).max(1);
        let mut text = format!(
            "process.roles=broker,controller
node.id={id}
listeners={clients},CONTROLLER://{address}:{controller}
advertised.listeners={advertised}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map={protocols}
controller.quorum.voters={voters}
log.dirs={data}
default.replication.factor={replicas}
min.insync.replicas={in_sync_min}
offsets.topic.num.partitions=4
offsets.topic.replication.factor={replicas}
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={in_sync_min}
share.coordinator.state.topic.replication.factor={replicas}
share.coordinator.state.topic.min.isr={in_sync_min}
group.initial.rebalance.delay.ms=0
# A broker that was killed may come back once its former self is given up: after 4 s rather than 9.
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=500
auto.create.topics.enable=false
# Tests write records with timestamps of their own: nothing expires by age unless a topic says so.
log.retention.ms=-1
log.message.timestamp.after.max.ms=9223372036854775807
",
            controller = port(CONTROLLER_PORT, id),
            voters = voters.join(","),
            data = home.join("data").display(),
        );
        // A later line wins over an earlier one.
        for (name, value) in &options.properties {
            text += &format!("{name}={value}\n");
        }
        text
    }

    fn launch(&self, id: u32) -> anyhow::Result<()> {
        let broker = self.broker(id)?;
        let pid = broker.launch()?;
        self.guard.started(pid);
        Ok(())
    }

    /// Waits until all running brokers are in the metadata that each of them answers with.
    pub fn wait_ready(&self) -> anyhow::Result<()> {
        let running = self.brokers.iter().filter(|b| b.is_running()).count();
        for index in 0..self.brokers.len() {
            if self.brokers[index].is_running() {
                self.wait_for_metadata(index, running)?;
            }
        }
        Ok(())
    }

    fn wait_for_metadata(&self, index: usize, running: usize) -> anyhow::Result<()> {
        let config = self.config_for(&self.server(self.brokers[index].id()));
        let client: rdkafka::consumer::BaseConsumer = config.create().context("make a client")?;
        let what = format!("broker {} of {}", self.brokers[index].id(), self.dir.display());
        let ready = wait::until(&what, DEADLINE, || {
            if let Some(status) = self.brokers[index].exit_status() {
                bail!("it exited with {status}");
            }
            let metadata = rdkafka::consumer::Consumer::fetch_metadata(&client, None, Duration::from_secs(1));
            Ok(metadata.is_ok_and(|m| m.brokers().len() >= running))
        });
        ready.with_context(|| format!("the log ends with\n{}", self.brokers[index].log_tail()))
    }

    /// Ends a broker as SIGKILL does, and returns when it is gone.
    pub fn kill(&self, id: u32) -> anyhow::Result<()> {
        let pid = self.broker(id)?.kill()?;
        self.guard.reaped(pid);
        Ok(())
    }

    /// Stops a broker in its own time: leaders move away, files are closed.
    pub fn stop(&self, id: u32) -> anyhow::Result<()> {
        let pid = self.broker(id)?.stop()?;
        self.guard.reaped(pid);
        Ok(())
    }

    /// Starts a broker that was killed or stopped, on its old data and port, and waits until it is ready.
    pub fn restart(&self, id: u32) -> anyhow::Result<()> {
        self.launch(id)?;
        self.wait_ready()
    }

    /// Starts a broker and does not wait, for tests in which it cannot become ready alone.
    pub fn launch_again(&self, id: u32) -> anyhow::Result<()> {
        self.launch(id)
    }

    /// Sends a signal that neither ends nor starts anything: SIGSTOP or SIGCONT.
    pub fn signal(&self, id: u32, signal: Signal) -> anyhow::Result<()> {
        self.broker(id)?.signal(signal)
    }

    /// The process id of a broker, while it runs.
    pub fn pid(&self, id: u32) -> Option<u32> {
        self.broker(id).ok().and_then(Broker::pid)
    }

    fn broker(&self, id: u32) -> anyhow::Result<&Broker> {
        self.brokers.iter().find(|b| b.id() == id).with_context(|| format!("there is no broker {id}"))
    }

    /// Host and port of one broker's plain listener.
    pub fn server(&self, id: u32) -> String {
        format!("{}:{}", self.address, BROKER_PORT + id as u16 - 1)
    }

    /// All plain listeners, as clients take them.
    pub fn bootstrap_servers(&self) -> String {
        self.brokers.iter().map(|b| self.server(b.id())).collect::<Vec<_>>().join(",")
    }

    /// One of [`Options::listeners`], by its place there, of every broker.
    pub fn servers_of(&self, listener: usize) -> String {
        let server = |b: &Broker| format!("{}:{}", self.address, secured_port(listener, b.id()));
        self.brokers.iter().map(server).collect::<Vec<_>>().join(",")
    }

    /// Host and port of a broker's listener of [`Options::proxied_listener`].
    pub fn proxied(&self, id: u32) -> String {
        format!("{}:{}", self.address, PROXIED_PORT + id as u16 - 1)
    }

    /// Where a proxy has to listen, for a broker of [`Options::proxied_listener`].
    pub fn proxy(&self, id: u32) -> String {
        format!("{}:{}", self.address, PROXY_PORT + id as u16 - 1)
    }

    /// Whether a broker was started and not ended.
    pub fn is_running(&self, id: u32) -> bool {
        self.broker(id).is_ok_and(Broker::is_running)
    }

    /// How many brokers there are, running or not.
    pub fn brokers(&self) -> usize {
        self.brokers.len()
    }

    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// The folder of everything that the instance writes; gone after it.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The end of a broker's log, to look at when a test fails.
    pub fn log_tail(&self, id: u32) -> String {
        self.broker(id).map(Broker::log_tail).unwrap_or_default()
    }

    /// A client's configuration, to add to. Its back-offs are short: tests take brokers away and give them back.
    pub fn config(&self) -> ClientConfig {
        self.config_for(&self.bootstrap_servers())
    }

    fn config_for(&self, servers: &str) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", servers)
            .set("reconnect.backoff.ms", "20")
            .set("reconnect.backoff.max.ms", "200")
            .set("retry.backoff.ms", "20")
            .set("retry.backoff.max.ms", "200")
            // Ten times a second rather than twice: an end of a partition is then seen after 100 ms.
            .set("fetch.wait.max.ms", "100")
            .set("log_level", "2");
        config
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        for broker in &self.brokers {
            if broker.is_running()
                && let Ok(pid) = broker.kill()
            {
                self.guard.reaped(pid);
            }
        }
    }
}

fn secured_port(listener: usize, broker: u32) -> u16 {
    SECURED_PORT + 10 * listener as u16 + broker as u16 - 1
}

/// A loopback address on which nobody listens.
pub fn free_address() -> anyhow::Result<Ipv4Addr> {
    for _ in 0..ADDRESSES_TRIED_MAX {
        let [a, b, c] = random::octets();
        let address = Ipv4Addr::new(127, a, b, c);
        if TcpListener::bind((address, BROKER_PORT)).is_ok() {
            return Ok(address);
        }
    }
    bail!("no loopback address with a free port {BROKER_PORT} was found in {ADDRESSES_TRIED_MAX} tries")
}

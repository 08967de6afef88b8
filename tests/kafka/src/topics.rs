//! Topics and groups, as an administrator handles them.

use anyhow::{Context, bail};
use futures_executor::block_on;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::types::RDKafkaErrorCode;

use crate::{DEADLINE, Kafka, wait};

impl Kafka {
    /// An administrator's client.
    pub fn admin(&self) -> anyhow::Result<AdminClient<DefaultClientContext>> {
        self.config().create().context("make an admin client")
    }

    /// Creates a topic with as many replicas as there are brokers, and waits until every partition has a leader.
    pub fn create_topic(&self, name: &str, partitions: i32, config: &[(&str, &str)]) -> anyhow::Result<()> {
        let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(self.brokers.len() as i32));
        for (key, value) in config {
            topic = topic.set(key, value);
        }
        let created = block_on(self.admin()?.create_topics([&topic], &options())).context("create a topic")?;
        for result in created {
            result.map_err(|(name, code)| anyhow::anyhow!("create topic {name}: {code}"))?;
        }
        self.wait_until_led(name)
    }

    /// Deletes a topic and waits until no broker knows it.
    pub fn delete_topic(&self, name: &str) -> anyhow::Result<()> {
        let deleted = block_on(self.admin()?.delete_topics(&[name], &options())).context("delete a topic")?;
        for result in deleted {
            result.map_err(|(name, code)| anyhow::anyhow!("delete topic {name}: {code}"))?;
        }
        let client: BaseConsumer = self.config().create().context("make a client")?;
        wait::until(&format!("topic {name} gone"), DEADLINE, || {
            let metadata = client.fetch_metadata(Some(name), DEADLINE).context("fetch metadata")?;
            Ok(metadata.topics().iter().all(|t| t.name() != name || t.error().is_some()))
        })
    }

    /// Deletes a consumer group with its offsets.
    pub fn delete_group(&self, name: &str) -> anyhow::Result<()> {
        let deleted = block_on(self.admin()?.delete_groups(&[name], &options())).context("delete a group")?;
        for result in deleted {
            match result {
                Ok(_) | Err((_, RDKafkaErrorCode::GroupIdNotFound)) => {}
                Err((name, code)) => bail!("delete group {name}: {code}"),
            }
        }
        Ok(())
    }

    /// Waits until every partition of a topic has a leader.
    pub fn wait_until_led(&self, topic: &str) -> anyhow::Result<()> {
        self.wait_for_partitions(topic, |p| p.leader() >= 0)
    }

    /// Waits until every replica of a topic is in sync.
    pub fn wait_in_sync(&self, topic: &str) -> anyhow::Result<()> {
        self.wait_for_partitions(topic, |p| p.leader() >= 0 && p.isr().len() == p.replicas().len())
    }

    fn wait_for_partitions(
        &self,
        topic: &str,
        good: impl Fn(&rdkafka::metadata::MetadataPartition) -> bool,
    ) -> anyhow::Result<()> {
        let client: BaseConsumer = self.config().create().context("make a client")?;
        wait::until(&format!("partitions of topic {topic}"), DEADLINE, || {
            let Ok(metadata) = client.fetch_metadata(Some(topic), DEADLINE) else { return Ok(false) };
            let found = metadata.topics().iter().find(|t| t.name() == topic && t.error().is_none());
            Ok(found.is_some_and(|t| !t.partitions().is_empty() && t.partitions().iter().all(&good)))
        })
    }

    /// The broker that leads a partition.
    pub fn leader(&self, topic: &str, partition: i32) -> anyhow::Result<u32> {
        let client: BaseConsumer = self.config().create().context("make a client")?;
        let metadata = client.fetch_metadata(Some(topic), DEADLINE).context("fetch metadata")?;
        let partitions = metadata.topics().iter().filter(|t| t.name() == topic).flat_map(|t| t.partitions());
        let leader = partitions.filter(|p| p.id() == partition).map(|p| p.leader()).find(|l| *l >= 0);
        leader.map(|l| l as u32).with_context(|| format!("partition {partition} of {topic} has no leader"))
    }
}

fn options() -> AdminOptions {
    AdminOptions::new().operation_timeout(Some(DEADLINE)).request_timeout(Some(DEADLINE))
}

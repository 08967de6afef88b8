//! Topics and groups, as an administrator handles them.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use futures_executor::block_on;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{Offset, TopicPartitionList};

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

    /// Gives a topic more partitions, and waits until each has a leader.
    pub fn grow_topic(&self, name: &str, partitions: usize) -> anyhow::Result<()> {
        let new = NewPartitions::new(name, partitions);
        let grown = block_on(self.admin()?.create_partitions([&new], &options())).context("add partitions")?;
        for result in grown {
            result.map_err(|(name, code)| anyhow::anyhow!("add partitions to {name}: {code}"))?;
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

    /// Deletes the records of a partition below an offset.
    pub fn delete_records(&self, topic: &str, partition: i32, below: i64) -> anyhow::Result<()> {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, partition, Offset::Offset(below))?;
        let deleted = block_on(self.admin()?.delete_records(&list, &options())).context("delete records")?;
        for element in deleted.elements() {
            element.error().with_context(|| format!("delete records of {topic}"))?;
        }
        Ok(())
    }

    /// The configuration of a topic, defaults included.
    pub fn topic_config(&self, topic: &str) -> anyhow::Result<BTreeMap<String, String>> {
        let asked = [ResourceSpecifier::Topic(topic)];
        let answers = block_on(self.admin()?.describe_configs(&asked, &options())).context("describe a topic")?;
        let mut settings = BTreeMap::new();
        for answer in answers {
            let resource = answer.map_err(|code| anyhow::anyhow!("describe topic {topic}: {code}"))?;
            settings.extend(resource.entries.into_iter().map(|e| (e.name, e.value.unwrap_or_default())));
        }
        Ok(settings)
    }

    /// What a group has committed of a topic: (partition, offset), in order.
    pub fn group_offsets(&self, group: &str, topic: &str) -> anyhow::Result<Vec<(i32, i64)>> {
        let consumer: BaseConsumer = self.config().set("group.id", group).create().context("make a consumer")?;
        let metadata = consumer.fetch_metadata(Some(topic), DEADLINE).context("fetch metadata")?;
        let mut list = TopicPartitionList::new();
        for partition in metadata.topics().iter().flat_map(|t| t.partitions()) {
            list.add_partition(topic, partition.id());
        }
        let committed = consumer.committed_offsets(list, DEADLINE).context("fetch a group's offsets")?;
        let elements = committed.elements();
        Ok(elements.iter().filter_map(|e| Some((e.partition(), e.offset().to_raw().filter(|o| *o >= 0)?))).collect())
    }

    /// Sets what a group has committed of a partition, as tools that reset offsets do.
    pub fn set_group_offset(&self, group: &str, topic: &str, partition: i32, offset: i64) -> anyhow::Result<()> {
        let consumer: BaseConsumer = self.config().set("group.id", group).create().context("make a consumer")?;
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, partition, Offset::Offset(offset))?;
        consumer.commit(&list, CommitMode::Sync).context("set a group's offset")
    }

    /// The names of all topics.
    pub fn topics(&self) -> anyhow::Result<Vec<String>> {
        let client: BaseConsumer = self.config().create().context("make a client")?;
        let metadata = client.fetch_metadata(None, DEADLINE).context("fetch metadata")?;
        Ok(metadata.topics().iter().map(|t| t.name().to_owned()).collect())
    }

    /// Behind the last record of a partition.
    pub fn end(&self, topic: &str, partition: i32) -> anyhow::Result<i64> {
        Ok(self.range(topic, partition)?.1)
    }

    /// The first record of a partition that is still there, and behind the last one.
    pub fn range(&self, topic: &str, partition: i32) -> anyhow::Result<(i64, i64)> {
        let client: BaseConsumer = self.config().create().context("make a client")?;
        client.fetch_watermarks(topic, partition, DEADLINE).context("look up where a partition begins and ends")
    }

    /// Whether a transaction that is open keeps records of a partition from those who read what is committed.
    pub fn hides(&self, topic: &str, partition: i32) -> anyhow::Result<bool> {
        let (_, stable) = self.range(topic, partition)?;
        let mut config = self.config();
        let client: BaseConsumer =
            config.set("isolation.level", "read_uncommitted").create().context("make a client")?;
        let (_, end) = client.fetch_watermarks(topic, partition, DEADLINE).context("look up where a partition ends")?;
        Ok(stable < end)
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

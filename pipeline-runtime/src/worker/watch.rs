//! Looks from time to time whether the topics are still what they were.

use anyhow::bail;
use millrace_core::control::{Change, Created, Record};
use millrace_core::ids::{Offset, Partition};
use millrace_core::ownership::ControlLog;
use millrace_core::plan::Plan;

use super::savepoint::first;
use super::take;
use crate::engine::topology::{Names, Topology};
use crate::engine::{InternalTopic, internal_topics};
use crate::log::kafka::KafkaLog;
use crate::log::kafka::connection::Connection;
use crate::log::kafka::control::ControlTopic;
use crate::log::{Log, LogError};
use crate::metrics::Metrics;

pub struct Watch {
    names: Names,
    log: KafkaLog,
    control: ControlTopic,
    pub known: ControlLog,
    pub topology: Topology,
    cluster: Option<String>,
}

/// Counts tasks: a stage with state has as many as it began with.
pub fn resolve(plan: &Plan, names: &Names, known: &ControlLog, log: &mut KafkaLog) -> Result<Topology, LogError> {
    Topology::resolve(plan, names, &|topic| known.created(topic).map(|created| created.partitions), log)
}

impl Watch {
    pub fn new(names: Names, log: KafkaLog, control: ControlTopic, known: ControlLog, topology: Topology) -> Self {
        let cluster = log.cluster_id();
        Self { names, log, control, known, topology, cluster }
    }

    /// Goes on with new clients.
    pub fn reconnect(&mut self, connection: &Connection) -> Result<(), LogError> {
        self.log.reconnect(connection)?;
        self.control.reconnect(connection)
    }

    /// Takes up what has come to the control log. Brokers that do not answer are looked for again the next time.
    pub fn read(&mut self) -> Result<(), LogError> {
        match self.control.read() {
            Ok(entries) => take(&mut self.known, entries),
            Err(error) if error.passes() => tracing::debug!(%error, "the control log cannot be read"),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Whether a partition holds no record any more of those that were there when it was first asked for, which `end` keeps.
    /// Brokers that do not answer are asked again the next time, as is where somebody has removed what was about to be looked
    /// at.
    pub fn is_empty(&mut self, topic: &str, partition: Partition, end: &mut Option<Offset>) -> anyhow::Result<bool> {
        let range = self.log.range(topic, partition);
        let held = range.map_err(Into::into).and_then(|range| {
            let end = *end.get_or_insert(range.end);
            first(&mut self.log, topic, partition, range.start..end.max(range.start), &mut |_| {})
        });
        let gone = |error: &LogError| matches!(error, LogError::OffsetGone { .. });
        match held {
            Err(error) if error.downcast_ref::<LogError>().is_some_and(gone) => Ok(false),
            Err(error) if error.downcast_ref::<LogError>().is_some_and(LogError::passes) => {
                tracing::warn!(error = format!("{error:#}"), "a topic cannot be looked at");
                Ok(false)
            }
            held => held.map(|held| !held),
        }
    }

    /// True when topics have grown. A topic that is gone or is another one is an error; brokers that do not answer are
    /// looked for again the next time.
    pub fn look(&mut self, plan: &Plan, metrics: &Metrics) -> anyhow::Result<bool> {
        match self.try_look(plan, metrics) {
            Err(error) if error.downcast_ref::<LogError>().is_some_and(LogError::passes) => {
                tracing::warn!(error = format!("{error:#}"), "the topics cannot be looked at");
                Ok(false)
            }
            looked => looked,
        }
    }

    fn try_look(&mut self, plan: &Plan, metrics: &Metrics) -> anyhow::Result<bool> {
        take(&mut self.known, self.control.read()?);
        let cluster = self.log.cluster_id();
        if cluster.is_some() && cluster != self.cluster {
            bail!("the brokers belong to another cluster than before ({cluster:?}, before {:?})", self.cluster);
        }
        let found = resolve(plan, &self.names, &self.known, &mut self.log)?;
        for (topic, (id, _)) in &self.topology.topics {
            if found.topics.get(topic).is_none_or(|(found, _)| found != id) {
                bail!(
                    "topic '{topic}' was deleted and made again: its positions mean nothing any more; restart the pipeline under a new name"
                );
            }
        }
        self.look_at_our_own(plan)?;
        for (name, unread) in &found.unread {
            let Some(source) = plan.source(name) else { continue };
            for partition in unread.clone() {
                let range = self.log.range(&source.topic, Partition(partition))?;
                metrics.unread(name, partition, range.end.0 - range.start.0);
            }
            if !self.topology.unread.contains_key(name) {
                tracing::warn!(
                    source = name,
                    "{} partitions were added, and a stage with state does not read them: keys have moved; restart the pipeline under a new name to take them up",
                    unread.len()
                );
            }
        }
        if found == self.topology {
            return Ok(false);
        }
        for topic in internal_topics(plan, &found, &self.names) {
            let Some(made) = self.known.created(&topic.name).filter(|made| made.partitions < topic.partitions) else {
                continue;
            };
            let created = Created { partitions: topic.partitions, ..made.clone() };
            self.log.grow_internal(&topic.name, topic.partitions)?;
            let record = Record::Created { topic: topic.name.clone(), created };
            let position = self.control.append(&Change::Put(record))?;
            take(&mut self.known, self.control.read_to(position)?);
        }
        tracing::info!("topics have grown");
        self.topology = found;
        Ok(true)
    }

    fn look_at_our_own(&mut self, plan: &Plan) -> anyhow::Result<()> {
        for InternalTopic { name, .. } in internal_topics(plan, &self.topology, &self.names) {
            let Some(made) = self.known.created(&name) else { continue };
            if self.log.topic(&name)?.is_none_or(|found| found.id.unwrap_or_default() != made.topic_id) {
                bail!(
                    "internal topic '{name}' was deleted under the running pipeline: what it held is lost; restart the pipeline under a new name"
                );
            }
        }
        Ok(())
    }
}

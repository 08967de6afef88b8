//! `millrace savepoint write`: from the cuts of all tasks to a savepoint.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use millrace_core::ids::{Epoch, Offset, Partition, TaskId};
use millrace_core::report::{SavepointReport, cut_digest};

use super::{FORMAT, InFlight, Part, Replayable, Savepoint, document_key, ends, in_flight_key, kept, known};
use super::{missing_files, open_log, part_key, replayable, storage, to_line};
use crate::engine::exchange::written_by;
use crate::engine::topology::Names;
use crate::log::Log;
use crate::log::kafka::KafkaLog;
use crate::snapshot::Manifest;
use crate::storage::{StorageError, Store, sha256};
use crate::worker::Job;

/// Puts the savepoint `id` together. Every task must have been cut, and its snapshot be in storage.
pub fn write(job: &Job, id: &str) -> anyhow::Result<SavepointReport> {
    let (place, plan) = (storage(job)?, &job.plan);
    let store = place.connect()?;
    let names = Names::new(&plan.prefix, job.timeline);
    let mut log = open_log(job, format!("{}-savepoint", plan.prefix))?;
    let known = known(job, &mut log)?;
    let mut savepoint = Savepoint {
        format: FORMAT,
        id: id.to_owned(),
        owner: job.owner.clone(),
        timeline: job.timeline,
        cluster: log.cluster_id(),
        taken_ms: 0,
        number: known.newest_plan().map_or(0, |newest| newest.plan),
        plan: (**plan).clone(),
        stages: BTreeMap::new(),
        tasks: Vec::new(),
        in_flight: Vec::new(),
    };
    let mut manifests = BTreeMap::new();
    for stage in &plan.stages {
        let topic = names.changelog(&stage.name);
        let count = known.created(&topic).with_context(|| format!("the pipeline has no topic '{topic}'"))?.partitions;
        savepoint.stages.insert(stage.name.clone(), count);
        for partition in (0..count).map(Partition) {
            let task = TaskId { stage: stage.name.clone(), partition };
            let (manifest, sha256) = part(&store, id, &task)?;
            savepoint.taken_ms = savepoint.taken_ms.max(manifest.taken_ms);
            let (epoch, bytes) = (manifest.marker.epoch, manifest.bytes());
            savepoint.tasks.push(Part { task: task.clone(), epoch, bytes, sha256 });
            manifests.insert(task, manifest);
        }
    }
    // What a backfill has under way is none of the pipeline's: it is done again.
    for exchange in plan.exchanges.iter().filter(|exchange| plan.writer(&exchange.name).is_some()) {
        let topic = names.repartition(&exchange.name);
        let count = known.created(&topic).with_context(|| format!("the pipeline has no topic '{topic}'"))?.partitions;
        for partition in (0..count).map(Partition) {
            let at = (exchange.name.as_str(), topic.as_str(), partition);
            savepoint.in_flight.push(in_flight(&store, &savepoint, &manifests, at, &mut log)?);
        }
    }
    store.put(&document_key(id), serde_json::to_vec_pretty(&savepoint)?)?;
    let cut = cut_digest(&manifests.iter().map(|(task, manifest)| (task.clone(), manifest.marker.epoch)).collect());
    let manifests: Vec<Manifest> = manifests.into_values().collect();
    let Replayable { lost, until_ms } = replayable(plan, &manifests, &kept(job, plan)?, &mut log)?;
    let report = savepoint.report(place.address(&document_key(id)));
    Ok(SavepointReport { lost, replayable_until_ms: until_ms, cut, ..report })
}

/// The manifest of a task's cut, and its hash.
fn part(store: &Store, id: &str, task: &TaskId) -> anyhow::Result<(Manifest, String)> {
    let bytes = match store.get(&part_key(id, task)) {
        Err(StorageError::Missing(_)) => bail!("task {task} was not cut for savepoint {id}"),
        read => read?,
    };
    let manifest = Manifest::read(&bytes, task).map_err(|why| anyhow::anyhow!("the manifest of task {task}: {why}"))?;
    missing_files(store, &manifest)?;
    Ok((manifest, sha256(&bytes)))
}

/// Copies what the reader had not read at its cut, and the writers had written at theirs.
fn in_flight(
    store: &Store,
    savepoint: &Savepoint,
    manifests: &BTreeMap<TaskId, Manifest>,
    (exchange, topic, partition): (&str, &str, Partition),
    log: &mut KafkaLog,
) -> anyhow::Result<InFlight> {
    let (writer, reader) = ends(&savepoint.plan, exchange).context("an exchange has a writer and a reader")?;
    let manifest = |stage: &str, partition| manifests.get(&TaskId { stage: stage.to_owned(), partition });
    let reader =
        manifest(reader, partition).with_context(|| format!("no task reads partition {partition} of {topic}"))?;
    let next = reader.marker.input(topic).map_or(Offset(0), |mark| mark.next);
    let held = log.held(topic, partition)?;
    if next < held.start {
        bail!(
            "partition {partition} of {topic} was trimmed behind the cut: it begins at {}, the cut is at {next}",
            held.start
        );
    }
    let cut = |upstream| manifest(writer, upstream).map_or(Epoch(0), |manifest| manifest.marker.epoch);
    let (mut lines, mut records) = (String::new(), 0);
    log.read_changelog(topic, partition, next..held.end, &mut |record| {
        let (upstream, epoch) = written_by(&record).with_context(|| {
            format!(
                "record {} of {topic} was written by an older release, which did not say in which epoch",
                record.offset
            )
        })?;
        if epoch <= cut(upstream) {
            lines.push_str(&to_line(record.value.unwrap_or_default(), record.headers)?);
            lines.push('\n');
            records += 1;
        }
        Ok(())
    })?;
    // Somebody may have trimmed while it was read.
    if log.range(topic, partition)?.start > next.max(held.start) {
        bail!("partition {partition} of {topic} was trimmed while what is in flight was copied");
    }
    let (bytes, sha256) = (lines.len() as u64, sha256(lines.as_bytes()));
    store.put(&in_flight_key(&savepoint.id, exchange, partition), lines.into_bytes())?;
    Ok(InFlight { exchange: exchange.to_owned(), partition, records, bytes, sha256 })
}

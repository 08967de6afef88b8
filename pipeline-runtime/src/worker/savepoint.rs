//! Savepoints: what the workers' cuts are put together to, and how a pipeline begins with one. See docs/snapshots.md.
//!
//! These run as Jobs, beside the workers or instead of them.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Context, anyhow, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use millrace_core::control::Owner;
use millrace_core::ids::{Epoch, Offset, Partition, TaskId, Timeline};
use millrace_core::marker::{InputMark, Marker};
use millrace_core::ownership::{ControlLog, Rules};
use millrace_core::plan::{InputFrom, Plan};
use millrace_core::report::{SavepointReport, hex};
use serde::{Deserialize, Serialize};

use super::preflight::refused;
use super::{Job, read_all};
use crate::clock;
use crate::engine::topology::Names;
use crate::log::kafka::KafkaLog;
use crate::log::kafka::connection::FETCHED_BYTES;
use crate::log::kafka::control::ControlTopic;
use crate::log::kafka::survey::{self, Settings};
use crate::log::kafka::{InternalTopics, KafkaLogConfig, TRANSACTION_TIMEOUT_MS, TRIM_EVERY_MS};
use crate::log::{Log, LogError, Record};
use crate::snapshot::{Folder, Manifest, SAVEPOINTS};
use crate::storage::{Storage, Store, sha256};

pub mod restore;
pub mod write;

/// Raised when an older release can no longer read a savepoint.
const FORMAT: u32 = 1;
/// Of the document, below a savepoint's folder.
const DOCUMENT: &str = "savepoint.json";
/// `savepoints/<id>/savepoint.json`.
const DOCUMENT_DEPTH: usize = 3;

/// A whole savepoint: its document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Savepoint {
    pub format: u32,
    pub id: String,
    pub owner: Owner,
    pub timeline: Timeline,
    /// The id of the Kafka cluster.
    pub cluster: Option<String>,
    /// When the last task was cut, wall-clock milliseconds.
    pub taken_ms: i64,
    /// The plan's number, and the plan.
    pub number: u64,
    pub plan: Plan,
    /// How many tasks each stage has.
    pub stages: BTreeMap<String, i32>,
    pub tasks: Vec<Part>,
    pub in_flight: Vec<InFlight>,
}

/// A task's part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Part {
    pub task: TaskId,
    pub epoch: Epoch,
    pub bytes: u64,
    /// Of its manifest.
    pub sha256: String,
}

/// What lies in a partition of an exchange.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InFlight {
    pub exchange: String,
    pub partition: Partition,
    pub records: u64,
    pub bytes: u64,
    pub sha256: String,
}

/// A record between two stages, as a line of JSON.
#[derive(Serialize, Deserialize)]
struct Line {
    value: String,
    headers: Vec<(String, String)>,
}

fn folder(id: &str) -> String {
    format!("{SAVEPOINTS}/{id}")
}

fn part_key(id: &str, task: &TaskId) -> String {
    format!("{SAVEPOINTS}/{id}/{}/{}.json", task.stage, task.partition)
}

fn in_flight_key(id: &str, exchange: &str, partition: Partition) -> String {
    format!("{SAVEPOINTS}/{id}/in-flight/{exchange}/{partition}")
}

fn document_key(id: &str) -> String {
    format!("{SAVEPOINTS}/{id}/{DOCUMENT}")
}

fn storage(job: &Job) -> anyhow::Result<&Storage> {
    job.storage.as_ref().context("spec.state.storage is not set: there is nowhere to keep a savepoint")
}

/// A client for Jobs.
pub fn open_log(job: &Job, transactional_id: String) -> Result<KafkaLog, LogError> {
    KafkaLog::open(KafkaLogConfig {
        connection: job.connection.clone(),
        group: transactional_id.clone(),
        transactional_id,
        transaction_timeout_ms: TRANSACTION_TIMEOUT_MS,
        outputs: Vec::new(),
        internal: job.internal,
        until_end: false,
        fetched_bytes: FETCHED_BYTES,
        trim_every_ms: TRIM_EVERY_MS,
    })
}

/// The control log, if there is one.
pub fn known(job: &Job, log: &mut KafkaLog) -> anyhow::Result<ControlLog> {
    let (control, mut known) = (Names::new(&job.plan.prefix, job.timeline).control(), ControlLog::new(Rules::ALL));
    if log.topic(&control)?.is_some() {
        let existing = InternalTopics { create: false, ..job.internal };
        read_all(&mut ControlTopic::open(&job.connection, &control, &existing)?, &mut known)?;
    }
    Ok(known)
}

impl Savepoint {
    /// Reads the one at an address, and says where the rest of it is.
    fn open(storage: &Storage, location: &str) -> anyhow::Result<(Self, Store)> {
        let (place, key) = storage.beside(location, DOCUMENT_DEPTH)?;
        let store = place.connect()?;
        let bytes = store.get(&key).with_context(|| format!("read savepoint {location}"))?;
        let savepoint: Self = serde_json::from_slice(&bytes).with_context(|| format!("{location} is no savepoint"))?;
        ensure!(
            savepoint.format <= FORMAT,
            "savepoint {location} has format {}, and this release knows {FORMAT}: a newer release wrote it",
            savepoint.format
        );
        Ok((savepoint, store))
    }

    fn bytes(&self) -> u64 {
        let (tasks, between) = (self.tasks.iter().map(|part| part.bytes), self.in_flight.iter().map(|it| it.bytes));
        tasks.chain(between).sum()
    }

    /// The manifest of each task, compared with the savepoint's own hash, and its files with their sizes.
    fn manifests(&self, store: &Store) -> anyhow::Result<Vec<Manifest>> {
        let read = |part: &Part| {
            let task = &part.task;
            let bytes = store.get(&part_key(&self.id, task))?;
            ensure!(sha256(&bytes) == part.sha256, "the manifest of task {task} is damaged");
            let manifest = Manifest::read(&bytes, task).map_err(|why| anyhow!("the manifest of task {task}: {why}"))?;
            missing_files(store, &manifest)?;
            Ok(manifest)
        };
        self.tasks.iter().map(read).collect()
    }

    fn report(&self, location: String) -> SavepointReport {
        SavepointReport {
            location,
            bytes: self.bytes(),
            taken_ms: self.taken_ms,
            plan: self.number,
            state_fingerprint: hex(self.plan.state_fingerprint),
            in_flight: self.in_flight.iter().map(|it| it.records).sum(),
            ..SavepointReport::default()
        }
    }
}

/// An error if a file of a snapshot is not there with its size.
fn missing_files(store: &Store, manifest: &Manifest) -> anyhow::Result<()> {
    let sizes = store.sizes(&Folder::new(manifest.timeline, &manifest.task).files())?;
    let missing = manifest.files.iter().find(|file| sizes.get(&file.sha256) != Some(&file.bytes));
    ensure!(missing.is_none(), "file {} of task {} is not in storage", missing.map_or("", |f| &f.name), manifest.task);
    Ok(())
}

/// The inputs of a task that are sources, with where they stood.
fn source_marks<'a>(plan: &'a Plan, manifest: &'a Manifest) -> impl Iterator<Item = (&'a str, &'a InputMark)> {
    let stage = plan.stage(&manifest.task.stage);
    stage.into_iter().flat_map(|stage| &stage.inputs).filter_map(|input| match &input.from {
        InputFrom::Source(name) => {
            let topic = &plan.source(name)?.topic;
            Some((name.as_str(), manifest.marker.input(topic)?))
        }
        InputFrom::Exchange(_) => None,
    })
}

/// The stages that write an exchange and that read it.
fn ends<'a>(plan: &'a Plan, exchange: &str) -> Option<(&'a str, &'a str)> {
    let reads = |from: &InputFrom| matches!(from, InputFrom::Exchange(name) if name == exchange);
    let writer = plan.writer(exchange)?;
    let reader = plan.stages.iter().find(|stage| stage.inputs.iter().any(|input| reads(&input.from)))?;
    Some((&writer.name, &reader.name))
}

/// What the sources' logs hold of what comes behind a cut.
struct Replayable {
    /// Sources that do not hold the cut any more, and why.
    lost: Vec<String>,
    /// Until then they do, wall-clock milliseconds; `None`: for ever, or nobody knows.
    until_ms: Option<i64>,
}

/// Ends a reading at its first record.
#[derive(Debug, thiserror::Error)]
#[error("found")]
struct Found;

/// How long each source's topic keeps a record.
fn kept(job: &Job, plan: &Plan) -> anyhow::Result<BTreeMap<String, Kept>> {
    let survey = survey::reach(&job.connection, &|| false).map_err(|why| anyhow!(refused(&job.connection, &why)))?;
    let topics: Vec<&str> = plan.sources.iter().map(|source| source.topic.as_str()).collect();
    let settings = survey.settings(&topics)?;
    let of = |topic: &str| (topic.to_owned(), settings.get(topic).map_or(Kept::Unknown, Kept::of));
    Ok(topics.into_iter().map(of).collect())
}

/// Looks at the sources of a cut. Without [`kept`] it does not say until when they hold it.
fn replayable(
    plan: &Plan,
    manifests: &[Manifest],
    kept: &BTreeMap<String, Kept>,
    log: &mut KafkaLog,
) -> anyhow::Result<Replayable> {
    let (mut lost, mut untils) = (Vec::new(), Vec::new());
    for manifest in manifests {
        let partition = manifest.task.partition;
        for (name, mark) in source_marks(plan, manifest) {
            let topic = &mark.topic;
            match log.topic(topic)? {
                None => lost.push(format!("source '{name}': topic '{topic}' is gone")),
                Some(info) if info.id != mark.topic_id => {
                    lost.push(format!("source '{name}': topic '{topic}' was deleted and made again"));
                }
                Some(info) if partition.0 >= info.partitions => {}
                Some(_) => {
                    let held = log.range(topic, partition)?;
                    if mark.next < held.start || mark.next > held.end {
                        lost.push(format!(
                            "source '{name}': partition {partition} of topic '{topic}' holds offsets {} to {}, and the cut is at {}",
                            held.start, held.end, mark.next
                        ));
                    } else if let Some(Kept::For(ms)) = kept.get(topic.as_str()) {
                        let oldest_ms = first_ms(log, topic, partition, mark.next..held.end)?;
                        untils.push(oldest_ms.unwrap_or_else(clock::now_ms).saturating_add(*ms));
                    }
                }
            }
        }
    }
    lost.sort();
    lost.dedup();
    let known = lost.is_empty() && !kept.values().any(|kept| *kept == Kept::Unknown);
    Ok(Replayable { lost, until_ms: untils.into_iter().min().filter(|_| known) })
}

/// How long a topic keeps a record, by its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    Always,
    /// Milliseconds from its timestamp on: the segment of a record goes when its youngest one is that old (`retention.ms`).
    For(i64),
    /// As long as there is room, or it may not be read.
    Unknown,
}

impl Kept {
    fn of(settings: &Settings) -> Self {
        let number = |key: &str| settings.get(key)?.parse::<i64>().ok();
        let deletes = settings.get("cleanup.policy").is_none_or(|policy| policy.contains("delete"));
        match (number("retention.ms"), number("retention.bytes")) {
            _ if !deletes => Self::Always,
            (Some(..0), Some(..0)) => Self::Always,
            (Some(ms @ 0..), Some(..0)) => Self::For(ms),
            _ => Self::Unknown,
        }
    }
}

/// The time of the first record of a range, if it has one.
pub fn first_ms(
    log: &mut dyn Log,
    topic: &str,
    partition: Partition,
    range: Range<Offset>,
) -> anyhow::Result<Option<i64>> {
    let mut first_ms = None;
    first(log, topic, partition, range, &mut |record| first_ms = record.timestamp_ms)?;
    Ok(first_ms)
}

/// Looks at the first record of a range. False: there is none.
pub fn first(
    log: &mut dyn Log,
    topic: &str,
    partition: Partition,
    range: Range<Offset>,
    look: &mut dyn FnMut(Record<'_>),
) -> anyhow::Result<bool> {
    let read = log.read_changelog(topic, partition, range, &mut |record| {
        look(record);
        Err(Found.into())
    });
    match read {
        Err(error) if error.is::<Found>() => Ok(true),
        read => read.map(|()| false),
    }
}

/// Whether a savepoint is whole, and whether its sources still hold the cut.
pub fn verify(job: &Job, location: &str) -> anyhow::Result<SavepointReport> {
    let (savepoint, store) = Savepoint::open(storage(job)?, location)?;
    let mut report = savepoint.report(location.to_owned());
    match savepoint.manifests(&store) {
        Ok(manifests) => {
            let mut log = open_log(job, format!("{}-verify", job.plan.prefix))?;
            let kept = kept(job, &savepoint.plan)?;
            let replayable = replayable(&savepoint.plan, &manifests, &kept, &mut log)?;
            (report.lost, report.replayable_until_ms) = (replayable.lost, replayable.until_ms);
        }
        Err(error) => report.errors.push(format!("{error:#}")),
    }
    Ok(report)
}

/// Deletes a savepoint: its document first, so that nobody takes it for whole. `unused`: nobody runs the pipeline any
/// more, who would clean up: files that nothing else names go at once.
pub fn delete(job: &Job, id: &str, unused: bool) -> anyhow::Result<SavepointReport> {
    let store = storage(job)?.connect()?;
    store.delete(&document_key(id))?;
    let mut parts = Vec::new();
    for object in store.list(&folder(id))? {
        let key = format!("{}/{}", folder(id), object.name);
        if unused && let Some(task) = task_of(&object.name) {
            parts.extend(Manifest::read(&store.get(&key)?, &task));
        }
        store.delete(&key)?;
    }
    for part in parts {
        crate::snapshot::delete_unnamed(&store, &part)?;
    }
    Ok(SavepointReport { location: storage(job)?.address(&document_key(id)), ..SavepointReport::default() })
}

/// The task of `<stage>/<partition>.json`.
fn task_of(name: &str) -> Option<TaskId> {
    let (stage, partition) = name.strip_suffix(".json")?.split_once('/')?;
    Some(TaskId { stage: stage.to_owned(), partition: Partition(partition.parse().ok()?) })
}

/// The last marker of a changelog that nobody writes to, if it has one.
fn last_marker(log: &mut KafkaLog, topic: &str, partition: Partition) -> anyhow::Result<Option<Marker>> {
    let (range, mut last) = (log.range(topic, partition)?, None);
    log.read_changelog(topic, partition, range, &mut |record| {
        if record.key.is_some_and(|key| key == [crate::engine::task::CHANGELOG_MARKER]) {
            last = record.value.map(serde_json::from_slice).transpose()?;
        }
        Ok(())
    })?;
    Ok(last)
}

/// Lines of JSON, one for each record between two stages.
fn to_line(value: &[u8], headers: &[crate::log::Header]) -> anyhow::Result<String> {
    let headers = headers.iter().map(|header| (header.name.clone(), BASE64.encode(&header.value))).collect();
    Ok(serde_json::to_string(&Line { value: BASE64.encode(value), headers })?)
}

fn from_line(line: &str) -> anyhow::Result<(Vec<u8>, Vec<crate::log::Header>)> {
    let Line { value, headers } = serde_json::from_str(line)?;
    let header = |(name, value): (String, String)| Ok(crate::log::Header { name, value: BASE64.decode(value)? });
    Ok((BASE64.decode(value)?, headers.into_iter().map(header).collect::<anyhow::Result<_>>()?))
}

//! `millrace restore`: a new timeline that begins with a savepoint.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail, ensure};
use millrace_core::control::{Change, Created, Record};
use millrace_core::ids::{Offset, Partition, TaskId, Timeline};
use millrace_core::ownership::ControlLog;
use millrace_core::plan::Plan;
use millrace_core::report::RestoreReport;
use millrace_plan::state::{self, Fit, Misfit};

use super::{DOCUMENT_DEPTH, InFlight, Savepoint, from_line, in_flight_key, known, last_marker, open_log, replayable};
use super::{source_marks, storage};
use crate::clock;
use crate::engine::topology::{Names, Topology};
use crate::engine::{InternalTopic, internal_topics};
use crate::log::kafka::KafkaLog;
use crate::log::kafka::survey::reach;
use crate::log::{Log, Outbox};
use crate::snapshot::{Folder, Manifest, ManifestName};
use crate::storage::{Store, sha256};
use crate::worker::preflight::refused;
use crate::worker::{Job, take, take_prefix};

/// How long a topic may take to go.
const GONE_MS: u64 = 60_000;
const LOOK_MS: u64 = 100;
/// Records between stages that are written in one transaction.
const BATCH: usize = 1_000;

/// How a restore is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    pub location: &'a str,
    /// What was committed behind the cut may be written a second time.
    pub append: bool,
    /// Only say what is wrong.
    pub check: bool,
}

/// Makes everything that timeline `job.timeline` begins with. No worker of it may run.
pub fn restore(job: &Job, wish: Wish<'_>) -> anyhow::Result<RestoreReport> {
    let place = storage(job)?;
    ensure!(job.timeline > Timeline(1), "a restore begins a new timeline: --timeline must be above 1");
    let (savepoint, from) = Savepoint::open(place, wish.location)?;
    let mut log = open_log(job, format!("{}-t{}-restore", job.plan.prefix, job.timeline))?;
    let manifests = savepoint.manifests(&from).with_context(|| format!("savepoint {}", wish.location))?;
    let mut report = RestoreReport { bytes: savepoint.bytes(), ..RestoreReport::default() };
    report.errors = unfit(&savepoint, &job.plan);
    let cluster = log.cluster_id();
    if savepoint.cluster != cluster {
        report.errors.push(format!(
            "the savepoint is of Kafka cluster {}, and this is {}: its positions mean nothing here",
            savepoint.cluster.as_deref().unwrap_or("unknown"),
            cluster.as_deref().unwrap_or("unknown")
        ));
    } else if report.errors.is_empty() {
        report.errors.extend(replayable(&savepoint.plan, &manifests, &BTreeMap::new(), &mut log)?.lost);
    }
    let known_before = known(job, &mut log)?;
    let own_place = place.beside(wish.location, DOCUMENT_DEPTH)?.0.address("") == place.address("");
    if own_place {
        let before = written_since(job, &savepoint, &manifests, &known_before, &mut log)?;
        if !before.is_empty() && !wish.append {
            report.errors.push(format!(
                "the pipeline has committed past the savepoint, and this would be written again: {}; set spec.restore.alreadyWritten to Append if the sinks' readers can bear that, or restore into a new pipeline with sinks of its own",
                before.join(", ")
            ));
        }
        report.already_written = before;
    }
    if wish.check || !report.errors.is_empty() {
        return Ok(report);
    }
    let to = place.connect()?;
    let topics = make_topics(job, &savepoint, &mut log)?;
    fill(job, &savepoint, &from, &mut log)?;
    for manifest in manifests {
        copy(job, &savepoint.plan, manifest, (&from, &to), &topics)?;
    }
    Ok(report)
}

/// Why a savepoint's state does not serve a plan.
fn unfit(savepoint: &Savepoint, plan: &Plan) -> Vec<String> {
    let misfit = |Misfit { what, fit, .. }: Misfit| match fit {
        Fit::Kept => None,
        Fit::KeptIfEmpty(why) | Fit::Lost(why) => Some(format!("{what}: {why}")),
    };
    let mut errors: Vec<String> = state::misfits(&savepoint.plan, plan).into_iter().filter_map(misfit).collect();
    let stages = |plan: &Plan| plan.stages.iter().map(|stage| stage.name.clone()).collect::<BTreeSet<_>>();
    let (held, wanted) = (stages(&savepoint.plan), stages(plan));
    errors.extend(wanted.difference(&held).map(|stage| format!("stage '{stage}': the savepoint holds no state of it")));
    errors.extend(held.difference(&wanted).map(|stage| {
        format!("stage '{stage}' of the savepoint: the pipeline has no such stage, and its state would be lost")
    }));
    errors
}

/// What was committed behind the cut, in this pipeline's newest timeline that has run.
fn written_since(
    job: &Job,
    savepoint: &Savepoint,
    manifests: &[Manifest],
    known: &ControlLog,
    log: &mut KafkaLog,
) -> anyhow::Result<Vec<String>> {
    let mut since: BTreeMap<String, u64> = BTreeMap::new();
    for number in (savepoint.timeline.0..job.timeline.0).rev() {
        let names = Names::new(&job.plan.prefix, Timeline(number));
        for manifest in manifests {
            let TaskId { stage, partition } = &manifest.task;
            let topic = names.changelog(stage);
            let Some(created) = known.created(&topic) else { continue };
            ensure!(
                log.topic(&topic)?.is_some_and(|info| info.id.as_deref() == Some(&created.topic_id)),
                "topic '{topic}' is gone, so that nobody knows what the pipeline wrote behind the savepoint: restore into a new pipeline"
            );
            let Some(last) = last_marker(log, &topic, *partition)? else { continue };
            if last.epoch <= manifest.marker.epoch {
                continue;
            }
            for (step, totals) in &last.totals {
                let Some(sink) = step.strip_prefix("sink ") else { continue };
                let before = manifest.marker.totals.get(step).map_or(0, |totals| totals.rows_out);
                *since.entry(format!("sink '{sink}'")).or_default() += totals.rows_out.saturating_sub(before);
            }
            since.entry(format!("stage '{stage}'")).or_default();
        }
    }
    let rows = |(what, rows): (String, u64)| if rows > 0 { format!("{what}: {rows} rows") } else { what };
    Ok(since.into_iter().map(rows).collect())
}

/// The ids of the timeline's own topics, which are made anew.
fn make_topics(job: &Job, savepoint: &Savepoint, log: &mut KafkaLog) -> anyhow::Result<BTreeMap<String, String>> {
    let names = Names::new(&job.plan.prefix, job.timeline);
    let counts = |topic: &str| {
        let stage = savepoint.stages.iter().find(|(stage, _)| names.changelog(stage) == topic);
        let between = savepoint.in_flight.iter().filter(|it| names.repartition(&it.exchange) == topic).count();
        stage.map(|(_, count)| *count).or(i32::try_from(between).ok().filter(|count| *count > 0))
    };
    let topology = Topology::resolve(&job.plan, &names, &counts, log)?;
    let topics = internal_topics(&job.plan, &topology, &names);
    let survey = match reach(&job.connection, &|| false) {
        Ok(survey) => survey,
        Err(refusal) => bail!(refused(&job.connection, &refusal)),
    };
    let mut old = Vec::new();
    for InternalTopic { name, partitions, .. } in &topics {
        let Some(info) = log.topic(name)? else { continue };
        for partition in (0..info.partitions.min(*partitions)).map(Partition) {
            let changelog = savepoint.stages.keys().any(|stage| names.changelog(stage) == *name);
            ensure!(
                !changelog || last_marker(log, name, partition)?.is_none(),
                "timeline {} has begun already: topic '{name}' holds epochs",
                job.timeline
            );
        }
        old.push(name.clone());
    }
    for (name, deleted) in survey.delete_topics(&old)? {
        deleted.map_err(|why| anyhow::anyhow!("delete topic '{name}' of an earlier attempt: {why}"))?;
    }
    let start = clock::steady_ms();
    for name in &old {
        while log.topic(name)?.is_some() {
            ensure!(clock::steady_ms() - start < GONE_MS, "topic '{name}' of an earlier attempt does not go");
            clock::pause_ms(LOOK_MS);
        }
    }
    let (mut control, mut known) = take_prefix(job)?;
    let mut ids = BTreeMap::new();
    for InternalTopic { name, kind, partitions, .. } in topics {
        log.create_internal(&name, kind, partitions)?;
        let info = log.topic(&name)?.with_context(|| format!("internal topic '{name}' is gone"))?;
        let topic_id = info.id.unwrap_or_default();
        ids.insert(name.clone(), topic_id.clone());
        let created = Created { topic_id, partitions, begun: partitions };
        if known.created(&name) != Some(&created) {
            let position = control.append(&Change::Put(Record::Created { topic: name, created }))?;
            take(&mut known, control.read_to(position)?);
        }
    }
    Ok(ids)
}

/// Writes what was in flight to the timeline's own topics.
fn fill(job: &Job, savepoint: &Savepoint, from: &Store, log: &mut KafkaLog) -> anyhow::Result<()> {
    let names = Names::new(&job.plan.prefix, job.timeline);
    log.initialise()?;
    let mut outbox = Outbox::default();
    for InFlight { exchange, partition, sha256: hash, .. } in savepoint.in_flight.iter().filter(|it| it.records > 0) {
        let key = in_flight_key(&savepoint.id, exchange, *partition);
        let bytes = from.get(&key)?;
        ensure!(sha256(&bytes) == *hash, "{key} of the savepoint is damaged");
        let topic = outbox.topic_index(&names.repartition(exchange));
        let text = String::from_utf8(bytes).with_context(|| format!("{key} is no text"))?;
        for lines in text.lines().collect::<Vec<_>>().chunks(BATCH) {
            for line in lines {
                let (value, headers) = from_line(line).with_context(|| format!("read a line of {key}"))?;
                outbox.push(topic, *partition, None, None, Some(&value), headers);
            }
            log.send(&mut outbox)?;
            log.commit()?;
        }
    }
    Ok(())
}

/// Copies a task's files, and writes the manifest that its timeline begins with.
fn copy(
    job: &Job,
    old: &Plan,
    manifest: Manifest,
    (from, to): (&Store, &Store),
    topics: &BTreeMap<String, String>,
) -> anyhow::Result<()> {
    let task = manifest.task.clone();
    let (theirs, own) = (Folder::new(manifest.timeline, &task), Folder::new(job.timeline, &task));
    let there = to.sizes(&own.files())?;
    for file in manifest.files.iter().filter(|file| there.get(&file.sha256) != Some(&file.bytes)) {
        from.copy_to(&theirs.file(&file.sha256), to, &own.file(&file.sha256))?;
    }
    let names = Names::new(&job.plan.prefix, job.timeline);
    let changelog = topics.get(&names.changelog(&task.stage)).cloned().unwrap_or_default();
    let begun = begun(job, old, manifest, changelog);
    let bytes = begun.to_json();
    to.put(&own.manifest(&ManifestName::of(begun.marker.epoch, &bytes)), bytes)?;
    Ok(())
}

/// The manifest of a task as its new timeline begins with it.
fn begun(job: &Job, old: &Plan, mut manifest: Manifest, changelog: String) -> Manifest {
    let (before, now) = (Names::new(&old.prefix, manifest.timeline), Names::new(&job.plan.prefix, job.timeline));
    let sources: BTreeSet<String> = source_marks(old, &manifest).map(|(_, mark)| mark.topic.clone()).collect();
    let another = manifest.marker.state_fingerprint != job.plan.state_fingerprint;
    for mark in manifest.marker.inputs.iter_mut().filter(|mark| !sources.contains(&mark.topic)) {
        if let Some(exchange) = old.exchanges.iter().find(|exchange| before.repartition(&exchange.name) == mark.topic) {
            mark.topic = now.repartition(&exchange.name);
        }
        (mark.next, mark.counted) = (Offset(0), Offset(0));
    }
    // A table that another plan kept from its topic may lack columns: it is read again.
    for mark in manifest.marker.inputs.iter_mut().filter(|mark| another && mark.own_changelog) {
        mark.next = Offset(0);
    }
    manifest.marker.state_fingerprint = job.plan.state_fingerprint;
    Manifest { timeline: job.timeline, changelog, next: Offset(0), ..manifest }
}

//! `millrace run --backfill`: a part of history, computed again.
//!
//! The backfill runs to its end with ids and a state of its own, and what it computes goes to the topics by which repairs come
//! to the pipeline; the pipeline takes it while it runs, on files when it runs on. What a range comes to is pinned before
//! anything is done: on files beside the state, on Kafka in the backfill's control topic. So it stays, whatever is deleted.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use millrace_core::control::Pinned;
use millrace_core::fingerprint::fnv1a;
use millrace_core::ids::{Partition, Timeline};
use millrace_core::ownership::ControlLog;
use millrace_core::plan::{Plan, StartFrom};
use millrace_core::report::hex;
use millrace_core::totals::{DropReason, Totals};
use millrace_crds::backfill::{Backfill, BackfillRange, BackfillSpec, OffsetRange};
use millrace_crds::check::{self, Mistake};
use millrace_crds::pipeline::Pipeline;
use millrace_crds::timestamp::Timestamp;
use millrace_plan::backfill::{self, Ranges, Repair};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::run::{engine_config, stored_plan};
use super::{Failure, Outcome, document, read_json, write_json};
use crate::clock;
use crate::engine::topology::Names;
use crate::engine::{Engine, EngineConfig, Exit};
use crate::log::Log;
use crate::log::file::{FileLog, FileLogConfig};
use crate::log::kafka::{KafkaLog, survey};
use crate::metrics::Metrics;
use crate::worker::preflight::{self, Depth, Findings};
use crate::worker::{Job, plan_fingerprint, savepoint};

/// What a backfill began with, and whether it is done.
#[derive(Serialize, Deserialize)]
struct Begun {
    spec: BackfillSpec,
    plan: Plan,
    done: bool,
}

/// Reads a backfill of this pipeline.
fn read_of(file: &Path, pipeline: &Pipeline) -> Result<Backfill, Failure> {
    let mistakes = |mistakes| Failure::Mistakes(file.to_owned(), mistakes);
    let read = check::parse_backfill(&document(file)?).map_err(mistakes)?;
    let (own, named) = (&pipeline.metadata.name, &read.spec.pipeline_ref.name);
    if own != named {
        let hint = format!("give the file of Pipeline '{named}', or correct the name");
        let value = Value::String(named.clone());
        let message = format!("is another Pipeline than '{own}', whose file this is");
        return Err(mistakes(vec![Mistake::new("spec.pipelineRef.name", Some(&value), message, hint)]));
    }
    Ok(read)
}

/// What everything begins with that a backfill makes in Kafka. No Pipeline's name has a dot.
fn prefix(live: &Plan, Backfill { metadata, .. }: &Backfill) -> String {
    format!("{}-backfill.{}", live.prefix, metadata.name)
}

/// The plan of a backfill, which reads nothing of its streams yet.
fn plan(file: &Path, backfill: &Backfill, (live, timeline): (&Plan, Timeline)) -> Result<Plan, Failure> {
    let names = Names::new(&live.prefix, timeline);
    let topic = |exchange: &str| names.repartition(exchange);
    let repair = Repair { prefix: prefix(live, backfill), sinks: &backfill.spec.sinks, topic: &topic };
    backfill::repair(live, &repair).map_err(|mistakes| Failure::Mistakes(file.to_owned(), mistakes))
}

/// A backfill that runs beside a pipeline.
pub struct Beside {
    pub job: Job,
    /// At first; `None`: as many as it can.
    pub records_per_second: Option<u64>,
    pub pinned: Pinned,
}

/// What computes a range again, beside the pipeline of another job. `told`: somebody can tell it another rate.
pub fn beside(file: &Path, pipeline: &Pipeline, live: Job, told: bool) -> Result<Beside, Failure> {
    let backfill = read_of(file, pipeline)?;
    let records_per_second = if told { first_rate(&backfill.spec) } else { rate(file, &backfill.spec)? };
    if let Some(to) = backfill.spec.range.to.filter(|to| to.ms() > clock::now_ms()) {
        let hint = "end it in the past: what comes later is the pipeline's";
        let value = Value::String(to.to_string());
        let mistake = Mistake::new("spec.range.to", Some(&value), "lies in the future", hint);
        return Err(Failure::Mistakes(file.to_owned(), vec![mistake]));
    }
    reach(&live)?;
    let digest = digest(&backfill.spec, &live)?;
    // Its history is its own, and it has no snapshots: it ends.
    let mut plan = Plan { snapshots: false, ..plan(file, &backfill, (&live.plan, live.timeline))? };
    backfill::bound(&mut plan, &Ranges::new());
    let job = Job { plan: Arc::new(plan.clone()), timeline: Timeline(1), storage: None, ..live };
    let mut log = savepoint::open_log(&job, format!("{}-plan", plan.prefix)).map_err(anyhow::Error::from)?;
    let ranges = match begun(&job, &mut log)?.pinned() {
        Some(pinned) if pinned.digest == digest => pinned.ranges.clone(),
        Some(_) => {
            let text = "a backfill of this name was begun with another range, or for another plan of the pipeline: go on with those, or give this one another name";
            return Err(Failure::Said(vec![text.to_owned()]));
        }
        None => ranges(&plan, &backfill.spec.range, &mut log)?
            .map_err(|mistakes| Failure::Mistakes(file.to_owned(), mistakes))?,
    };
    backfill::bound(&mut plan, &ranges);
    say(&ranges);
    let pinned = Pinned { digest, ranges };
    Ok(Beside { job: Job { plan: Arc::new(plan), ..job }, records_per_second, pinned })
}

/// Its control log. What keeps it from being read is said with all else that is wrong.
fn begun(job: &Job, log: &mut KafkaLog) -> Result<ControlLog, Failure> {
    savepoint::known(job, log).or_else(|error| {
        let report = preflight::check(job, Depth::Start).map_err(anyhow::Error::from)?;
        report.pass().map_err(|Findings(errors)| Failure::Said(errors))?;
        Err(error.into())
    })
}

/// What tells a backfill from others of its name.
fn digest(spec: &BackfillSpec, live: &Job) -> anyhow::Result<String> {
    let text = serde_json::to_vec(&(spec.pinned(), plan_fingerprint(&live.plan)?, live.timeline));
    Ok(hex(fnv1a(&text.context("write the spec")?)))
}

/// A job for the deletion of what a backfill made, which names nothing else: the topics of repairs are the pipeline's.
pub fn made(file: &Path, pipeline: &Pipeline, live: Job) -> Result<Job, Failure> {
    let prefix = prefix(&live.plan, &read_of(file, pipeline)?);
    let plan = Arc::new(Plan { prefix, ..Plan::clone(&live.plan) });
    Ok(Job { plan, timeline: Timeline(1), storage: None, ..live })
}

/// Says what is wrong with the way to a cluster that is not reached, before anything else is asked of it.
fn reach(job: &Job) -> Result<(), Failure> {
    match survey::reach(&job.connection, &|| false) {
        Ok(_) => Ok(()),
        Err(refusal) => Err(Failure::Said(vec![preflight::refused(&job.connection, &refusal)])),
    }
}

/// Runs a backfill on files to its end, unless it is done.
pub fn local(file: &Path, (pipeline, live): (&Pipeline, &Plan), files: &FileLogConfig, stop: &AtomicBool) -> Outcome {
    let backfill = read_of(file, pipeline)?;
    let records_per_second = rate(file, &backfill.spec)?;
    if stored_plan(&files.state)?.is_none() {
        let text = "run the pipeline once without --backfill, and give the --state of that run".to_owned();
        return Err(Failure::Said(vec![text]));
    }
    let files = FileLogConfig { follow: false, ..files.clone() };
    let name = &backfill.metadata.name;
    let dir = files.state.join("backfills").join(name);
    let pinned_file = dir.join("backfill.json");
    std::fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    let mut log = FileLog::open(files).map_err(anyhow::Error::from)?;
    let mut pinned = match read_json(&pinned_file)? {
        Some(Begun { spec: before, .. }) if before.pinned() != backfill.spec.pinned() => {
            let text = format!("backfill '{name}' was begun with another spec: give this one another name");
            return Err(Failure::Said(vec![text]));
        }
        Some(pinned) if pinned.done => {
            tracing::info!(backfill = %name, "is done already");
            return Ok(());
        }
        Some(pinned) => pinned,
        None => {
            let mut plan = plan(file, &backfill, (live, Timeline(1)))?;
            let ranges = ranges(&plan, &backfill.spec.range, &mut log)?;
            let ranges = ranges.map_err(|mistakes| Failure::Mistakes(file.to_owned(), mistakes))?;
            backfill::bound(&mut plan, &ranges);
            say(&ranges);
            let pinned = Begun { spec: backfill.spec.clone(), plan, done: false };
            write_json(&pinned_file, &pinned)?;
            pinned
        }
    };
    let plan = Arc::new(pinned.plan.clone());
    let metrics = Arc::new(Metrics::new().context("register metrics")?);
    let config = EngineConfig { records_per_second, ..engine_config(pipeline, &dir) };
    let mut engine = Engine::start(plan, log, config, metrics).map_err(anyhow::Error::from)?;
    engine.drain();
    if engine.run(stop).map_err(anyhow::Error::from)? == Exit::Finished {
        tracing::info!(backfill = %name, "{}", told(&engine));
        pinned.done = true;
        write_json(&pinned_file, &pinned)?;
    }
    Ok(())
}

/// Until somebody says how fast. One that makes way waits for that.
fn first_rate(spec: &BackfillSpec) -> Option<u64> {
    let limit = spec.rate_limit.map(|limit| u64::from(limit.records_per_second));
    if spec.yield_to_live.is_some() { Some(0) } else { limit }
}

/// The rate of a backfill that nobody tells another one: what only an operator can end is refused.
fn rate(file: &Path, spec: &BackfillSpec) -> Result<Option<u64>, Failure> {
    let mut mistakes = Vec::new();
    let limit = spec.rate_limit.map(|limit| u64::from(limit.records_per_second));
    if limit == Some(0) {
        let hint = "nobody raises it here: give a number, or leave rateLimit out";
        mistakes.push(Mistake::new("spec.rateLimit.recordsPerSecond", Some(&0.into()), "reads nothing", hint));
    }
    if spec.suspend {
        let hint = "nobody ends that here: set it to false";
        mistakes.push(Mistake::new("spec.suspend", Some(&true.into()), "is for an operator", hint));
    }
    if spec.yield_to_live.is_some() {
        tracing::warn!("spec.yieldToLive is for an operator: this backfill makes no way for the pipeline");
    }
    if mistakes.is_empty() { Ok(limit) } else { Err(Failure::Mistakes(file.to_owned(), mistakes)) }
}

/// What came of the records, in words.
fn told(engine: &Engine<FileLog>) -> String {
    let (mut read, mut late, mut dead) = (0, 0, 0);
    for (name, totals) in engine.running().flat_map(|task| task.totals()) {
        let Totals { rows_in, joined_late, dropped, .. } = totals;
        let stream =
            name.strip_prefix("source ").is_some_and(|name| backfill::streams(engine.plan()).any(|s| s.name == name));
        read += if stream { *rows_in } else { 0 };
        late += joined_late;
        dead += dropped.get(&DropReason::DeadLettered).copied().unwrap_or(0);
    }
    format!("computed {read} records again; {late} late rows were joined, {dead} went to the dead letters")
}

/// The range of each partition of the plan's streams.
fn ranges(plan: &Plan, range: &BackfillRange, log: &mut dyn Log) -> anyhow::Result<Result<Ranges, Vec<Mistake>>> {
    let (mut ranges, mut mistakes) = (Ranges::new(), Vec::new());
    for stream in backfill::streams(plan) {
        let topic = &stream.topic;
        let partitions = log.topic(topic)?.with_context(|| format!("topic '{topic}' does not exist"))?.partitions;
        let list = ranges.entry(stream.name.clone()).or_default();
        for partition in 0..partitions {
            let at = |log: &mut dyn Log, from: &StartFrom| log.start(topic, Partition(partition), from);
            let first = at(log, &StartFrom::Earliest)?.0;
            let (Some(from), Some(to)) = (&range.from, &range.to) else {
                list.push((partition, first, first));
                continue;
            };
            let begin = at(log, &StartFrom::Timestamp(from.ms()))?.0;
            let end = at(log, &StartFrom::Timestamp(to.ms()))?.0;
            if first > 0 {
                mistakes.extend(expired(from, (topic, partition, first), log)?);
            }
            list.push((partition, begin, end.max(begin)));
        }
    }
    for (i, part) in range.offsets.iter().enumerate() {
        if let Err((field, value, message, hint)) = take(plan, part, &mut ranges, log)? {
            let path = format!("spec.range.offsets[{i}].{field}");
            mistakes.push(Mistake::new(path, Some(&value), message, hint));
        }
    }
    Ok(if mistakes.is_empty() { Ok(ranges) } else { Err(mistakes) })
}

/// What was deleted of a partition may have been in the range where no record that is there is older than its beginning. The
/// record itself is asked: for a time that is in a segment whose records were deleted, brokers may say that none is as young.
/// Where there is no record at all, that is only said.
fn expired(
    from: &Timestamp,
    (topic, partition, first): (&str, i32, i64),
    log: &mut dyn Log,
) -> anyhow::Result<Option<Mistake>> {
    let what = format!("partition {partition} of topic '{topic}' begins at offset {first}");
    let range = log.range(topic, Partition(partition))?;
    let Some(oldest_ms) = savepoint::first_ms(log, topic, Partition(partition), range)? else {
        tracing::warn!("{what} and holds nothing: records of the range may have been deleted");
        return Ok(None);
    };
    let value = Value::String(from.to_string());
    let message = format!("may lie before what the log holds: {what}, and the first record there is not older");
    let hint = "begin later, or name what is there under spec.range.offsets: it holds what was not deleted";
    Ok((oldest_ms >= from.ms()).then(|| Mistake::new("spec.range.from", Some(&value), message, hint)))
}

fn say(ranges: &Ranges) {
    for (source, (partition, from, to)) in
        ranges.iter().flat_map(|(source, list)| list.iter().map(move |r| (source, r)))
    {
        tracing::info!(source, partition, from, to, "computes again");
    }
}

/// A field, its value, what is wrong with it, and what to do.
type Wrong = (&'static str, Value, String, String);

/// Takes the offsets of one partition.
fn take(plan: &Plan, part: &OffsetRange, ranges: &mut Ranges, log: &mut dyn Log) -> anyhow::Result<Result<(), Wrong>> {
    let OffsetRange { source, partition, from, to } = part;
    let stream = backfill::streams(plan).find(|stream| stream.name == *source);
    let (Some(stream), Some(list)) = (stream, ranges.get_mut(source)) else {
        let hint = "name a stream whose rows go to a sink that is repaired".to_owned();
        return Ok(Err(("source", source.clone().into(), "is no stream of the backfill".to_owned(), hint)));
    };
    let topic = &stream.topic;
    let count = list.len();
    let Some(place) = list.iter_mut().find(|(other, ..)| other == partition) else {
        let message = format!("is not a partition of topic '{topic}'");
        return Ok(Err(("partition", (*partition).into(), message, format!("it has {count}, counted from 0"))));
    };
    let first = log.start(topic, Partition(*partition), &StartFrom::Earliest)?.0;
    if *from < first {
        let message = format!("is not in partition {partition} of topic '{topic}' any more");
        return Ok(Err(("from", (*from).into(), message, format!("its first record has offset {first}"))));
    }
    let end = log.end_of(topic, Partition(*partition))?.0;
    if *to > end {
        let message = format!("lies behind the end of partition {partition} of topic '{topic}'");
        return Ok(Err(("to", (*to).into(), message, format!("it ends at {end}"))));
    }
    *place = (*partition, *from, *to);
    Ok(Ok(()))
}

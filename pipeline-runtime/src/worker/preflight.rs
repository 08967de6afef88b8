//! Everything that can be wrong with a pipeline on its cluster, found before anything is taken or processed: all of it
//! at once, each in one line that says what, where and what to do.
//!
//! A pipeline that runs is not disturbed: nothing is written, and the transactional id that is tried is no lane's.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use millrace_core::control::{Created, Owner, PlanStamp};
use millrace_core::ids::Generation;
use millrace_core::ownership::{ControlLog, Identity, Rules};
use millrace_core::plan::{InputFrom, Plan, Source, StartFrom};
use millrace_core::report::{PlanSeen, PreflightReport, hex};

use super::{Job, STATE_FORMAT, read_all};
use crate::engine::topology::{Made, Names, Topology, missing, not_run, outputs};
use crate::engine::{InternalTopic, chain, internal_topics};
use crate::log::kafka::connection::Connection;
use crate::log::kafka::control::ControlTopic;
use crate::log::kafka::survey::{Description, REACH_MS, Refusal, Right, Seen, Spec, Survey, reach};
use crate::log::kafka::{InternalTopics, required};
use crate::log::{InternalKind, LogError};
use crate::storage::{Storage, StorageError};

type Settings = BTreeMap<String, String>;
type Ranges = BTreeMap<(String, i32), Range<i64>>;

/// What was found.
#[derive(Debug, Default)]
pub struct Report {
    pub errors: Vec<String>,
    pub warnings: Vec<String>,
    /// The id of the Kafka cluster.
    pub kafka: Option<String>,
    /// What was looked at: what it is, its name, what it is like.
    pub seen: Vec<[String; 3]>,
    /// The prefix is another pipeline's; it is among the errors too.
    pub conflict: Option<String>,
    /// Tasks of each stage.
    pub stages: BTreeMap<String, i32>,
    /// What the control log has.
    pub highest_generation: Generation,
    pub newest_plan: Option<PlanSeen>,
}

/// The errors of a report, as a worker ends with them.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct Findings(pub Vec<String>);

/// Whether the transactional id is tried, which takes half a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    Thorough,
    /// A pipeline that ran before had its ids.
    Start,
}

/// What a topic is to the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Stream,
    Table { versioned: bool },
    Output,
    Internal(InternalKind),
}

/// The key of an object that shows what may be done in storage.
const PROBE: &str = "preflight";

/// One use of a topic.
struct Use<'a> {
    what: String,
    topic: &'a str,
    role: Role,
}

/// Looks at a pipeline's cluster and says everything that does not fit.
pub fn check(job: &Job, depth: Depth) -> Result<Report, LogError> {
    let mut report = Report::default();
    let survey = match reach(&job.connection, &|| false) {
        Ok(survey) => survey,
        Err(refusal) => {
            report.errors.push(refused(&job.connection, &refusal));
            return Ok(report);
        }
    };
    report.kafka.clone_from(&survey.id);
    report.saw("cluster", &job.connection.bootstrap_servers, &format!("{} brokers", survey.brokers));
    let names = Names::new(&job.plan.prefix, job.timeline);
    let control = InternalTopic { name: names.control(), kind: InternalKind::Control, partitions: 1, grows: false };
    let mut found = own_topics(job, &[control], &survey, &mut report)?;
    let first = !matches!(found.get(&names.control()), Some(Seen::There(_)));
    let known = known(job, &names, &found, &mut report)?;
    let made = |topic: &str| Some(known.as_ref()?.created(topic)?.partitions);
    let topology = users_topics(&job.plan, &names, &made, &survey, &mut report)?;
    let internal = topology.as_ref().map(|topology| internal_topics(&job.plan, topology, &names)).unwrap_or_default();
    found.extend(own_topics(job, &internal, &survey, &mut report)?);
    for stage in &job.plan.stages {
        let group = names.group(&stage.name);
        if survey.group(&group)?.is_none_or(|rights| lacks(&rights, Right::Read)) {
            let prefix = &job.plan.prefix;
            report.errors.push(format!(
                "group '{group}': not allowed; grant Read on groups that start with '{prefix}', where the positions are copied to"
            ));
            break;
        }
    }
    if depth == Depth::Thorough || first {
        let id = format!("{}-preflight", job.plan.prefix);
        match survey.take(&id) {
            Ok(()) => report.saw("transactional id", &id, "can be taken"),
            Err(error) => report.errors.push(chain(&error)),
        }
    }
    if let Some(storage) = job.storage.as_ref().filter(|_| depth == Depth::Thorough) {
        match probe(storage) {
            Ok(()) => report.saw("storage", &storage.address(""), "can be written to and read"),
            Err(error) => report.errors.push(format!("spec.state.storage: {}", chain(&error))),
        }
    }
    let own = ranges(&survey, &found, Spec::HighWatermark)?;
    for topic in &internal {
        if let (Some(known), Some(Seen::There(there))) = (&known, found.get(&topic.name)) {
            let holds = (0..topic.partitions).any(|p| own.get(&(topic.name.clone(), p)).is_some_and(|r| r.end > 0));
            report.errors.extend(strange(&topic.name, known.created(&topic.name), there, holds));
        }
    }
    if let Some(known) = &known {
        report.highest_generation = known.highest_generation();
        report.newest_plan = seen(known);
    }
    if let Some(topology) = &topology {
        report.stages.clone_from(&topology.tasks);
        starts(&job.plan, topology, &names, &own, &survey, &mut report)?;
    }
    Ok(report)
}

/// Writes an object, finds it, and deletes it.
fn probe(storage: &Storage) -> Result<(), StorageError> {
    let store = storage.connect()?;
    store.put(PROBE, PROBE.into())?;
    store.get(PROBE)?;
    store.list(PROBE)?;
    store.delete(PROBE)
}

/// Why a cluster was not reached, and what to look at.
pub fn refused(connection: &Connection, refusal: &Refusal) -> String {
    match refusal {
        Refusal::Unreachable(text) => format!(
            "spec.kafka.bootstrapServers: no broker of {} answered within {} s ({text}); check host and port, whether the brokers run, and whether they want TLS there",
            connection.bootstrap_servers,
            REACH_MS / 1000
        ),
        Refusal::Authentication(text) => {
            let field = connection.authentication.as_ref().map_or("", |a| a.mechanism.field());
            format!(
                "spec.kafka.authentication.{field}: the brokers refuse the user ({text}); check the files of user name and password, and that the user exists for this mechanism"
            )
        }
        Refusal::Tls(text) => format!(
            "spec.kafka.tls: no encrypted connection ({text}); check that trustedCertificates has the authority of the brokers, that certificateAndKey has a certificate that they trust if they ask for one, and that their certificate names the host of bootstrapServers"
        ),
    }
}

/// Sources, sinks and dead letters; `None` while not all of them are there.
fn users_topics(
    plan: &Plan,
    names: &Names,
    made: Made<'_>,
    survey: &Survey,
    report: &mut Report,
) -> Result<Option<Topology>, LogError> {
    let mut uses: Vec<Use<'_>> = plan.sources.iter().map(Use::of_source).collect();
    uses.extend(outputs(plan).map(|(what, topic)| Use { what, topic, role: Role::Output }));
    uses.extend(plan.repaired().map(|(exchange, topic)| Use {
        what: exchange.name.clone(),
        topic,
        role: Role::Output,
    }));
    let found = look(&uses, survey, report)?;
    let mut counts = BTreeMap::new();
    for Use { what, topic, .. } in &uses {
        match found.get(*topic) {
            Some(Seen::There(there)) => {
                report.saw(what, topic, &format!("{} partitions", there.partitions));
                counts.insert((*topic).to_owned(), (there.id.clone(), there.partitions));
            }
            Some(Seen::Missing) | None if plan.repaired().any(|(_, repaired)| repaired == *topic) => {
                report.errors.push(not_run(what, topic));
            }
            Some(Seen::Missing) | None => {
                report.errors.push(missing(what, topic, &survey.creating_command(topic)));
            }
            // It was said.
            Some(Seen::Hidden) => {}
        }
    }
    if uses.iter().any(|u| !counts.contains_key(u.topic)) {
        return Ok(None);
    }
    Ok(Topology::count(plan, names, made, counts).map_err(|faults| report.errors.extend(faults)).ok())
}

/// Our own topics: those that are there, and whether the others can be made.
fn own_topics(
    job: &Job,
    internal: &[InternalTopic],
    survey: &Survey,
    report: &mut Report,
) -> Result<BTreeMap<String, Seen>, LogError> {
    let what = || "internal".to_owned();
    let uses = internal.iter().map(|t| Use { what: what(), topic: &t.name, role: Role::Internal(t.kind) });
    let uses: Vec<Use<'_>> = uses.collect();
    let found = look(&uses, survey, report)?;
    let absent = |topic: &&InternalTopic| matches!(found.get(&topic.name), Some(Seen::Missing) | None);
    let InternalTopics { create, replication_factor } = job.internal;
    let replicable = usize::from(replication_factor) <= survey.brokers;
    if create && !replicable && internal.iter().any(|topic| absent(&topic)) {
        report.errors.push(format!(
            "spec.kafka.internal.replicationFactor: {replication_factor} replicas of each internal topic, and the cluster has {} brokers; set it to {0} or less",
            survey.brokers
        ));
    }
    for topic in internal {
        let InternalTopic { name, kind, partitions, grows } = topic;
        match found.get(name) {
            Some(Seen::There(there)) => {
                report.saw("internal", name, &format!("{} partitions", there.partitions));
                if there.partitions > *partitions || there.partitions < *partitions && !grows {
                    report.errors.push(format!(
                        "internal topic '{name}' has {} partitions and the pipeline needs {partitions}: it belongs to another state of the pipeline; restart it under a new name",
                        there.partitions
                    ));
                }
            }
            Some(Seen::Hidden) => {}
            _ if !create => report.errors.push(required(name, *kind, *partitions).to_string()),
            _ if !replicable => {}
            _ => match survey.try_create(name, *kind, *partitions, &job.internal) {
                Ok(()) => report.saw("internal", name, &format!("will be created with {partitions} partitions")),
                Err(error) => report.errors.push(chain(&error)),
            },
        }
    }
    Ok(found)
}

/// Looks topics up and says what of them does not fit their use.
fn look(uses: &[Use<'_>], survey: &Survey, report: &mut Report) -> Result<BTreeMap<String, Seen>, LogError> {
    let found = survey.topics(&uses.iter().map(|u| u.topic).collect())?;
    let there: Vec<&str> = found.iter().filter(|(_, s)| matches!(s, Seen::There(_))).map(|(n, _)| n.as_str()).collect();
    let settings = survey.settings(&there)?;
    for topic in uses {
        if let Some(seen) = found.get(topic.topic) {
            topic.judge(seen, settings.get(topic.topic), report);
        }
    }
    Ok(found)
}

fn ranges(survey: &Survey, found: &BTreeMap<String, Seen>, end: Spec) -> Result<Ranges, LogError> {
    let served = |(name, seen): (&'_ String, &'_ Seen)| -> Vec<(String, i32)> {
        let Seen::There(there) = seen else { return Vec::new() };
        let led = (0..there.partitions).filter(|p| !there.leaderless.contains(p));
        led.map(|p| (name.clone(), p)).collect()
    };
    let partitions: Vec<(String, i32)> = found.iter().flat_map(served).collect();
    let partitions: Vec<(&str, i32)> = partitions.iter().map(|(name, p)| (name.as_str(), *p)).collect();
    survey.ranges(&partitions, end)
}

/// The control log, judged; `None` if it may not be read.
fn known(
    job: &Job,
    names: &Names,
    found: &BTreeMap<String, Seen>,
    report: &mut Report,
) -> Result<Option<ControlLog>, LogError> {
    let mut known = ControlLog::new(Rules::ALL);
    match found.get(&names.control()) {
        Some(Seen::There(there)) if !lacks(&there.rights, Right::Read) && there.partitions == 1 => {
            let existing = InternalTopics { create: false, ..job.internal };
            read_all(&mut ControlTopic::open(&job.connection, &names.control(), &existing)?, &mut known)?;
        }
        Some(Seen::Missing) | None => {}
        Some(_) => return Ok(None),
    }
    if let Identity::Conflict(owner) = known.identity(&job.owner, job.adopt) {
        let text = conflict(&job.plan.prefix, &owner);
        report.errors.push(text.clone());
        report.conflict = Some(text);
    }
    if let Some(newest) = known.newest_plan().filter(|newest| newest.state_format > STATE_FORMAT) {
        let format = newest.state_format;
        report.errors.push(format!("a newer release runs this pipeline (state format {format}): update this one"));
    }
    Ok(Some(known))
}

/// The prefix is another pipeline's.
pub fn conflict(prefix: &str, owner: &Owner) -> String {
    let Owner { cluster, namespace, name, .. } = owner;
    let cluster = if cluster.is_empty() { String::new() } else { format!(" of cluster {cluster}") };
    format!(
        "IdentityConflict: the prefix '{prefix}' belongs to pipeline {namespace}/{name}{cluster}; choose another spec.kafka.internal.prefix, or, to take it over, set the annotation millrace.dev/adopt: {prefix}"
    )
}

/// An internal topic that is not the one that we made, or that we have not made and that holds something: it is
/// somebody's, or our control log is gone.
fn strange(name: &str, known: Option<&Created>, there: &Description, holds: bool) -> Option<String> {
    let topic_id = there.id.as_deref().unwrap_or_default();
    match known {
        Some(known) if known.topic_id == topic_id => None,
        Some(known) => Some(format!(
            "internal topic '{name}' was deleted and made again (topic id {topic_id}, we made {}): what it held is lost; restart the pipeline under a new name, or restore it from a savepoint",
            known.topic_id
        )),
        None => holds.then(|| format!(
            "internal topic '{name}' holds records, but the control log does not know that we made it: another pipeline has the same prefix, or the control topic was deleted; choose another spec.kafka.internal.prefix"
        )),
    }
}

/// The offsets of `startFrom`, for tasks that have not begun.
fn starts(
    plan: &Plan,
    topology: &Topology,
    names: &Names,
    own: &Ranges,
    survey: &Survey,
    report: &mut Report,
) -> Result<(), LogError> {
    for source in &plan.sources {
        let StartFrom::Offsets(offsets) = &source.start_from else { continue };
        let reads = |input: &millrace_core::plan::Input| input.from == InputFrom::Source(source.name.clone());
        let stages = plan.stages.iter().filter(|stage| stage.inputs.iter().any(reads));
        let changelogs: Vec<String> = stages.map(|stage| names.changelog(&stage.name)).collect();
        let begun = |p: i32| changelogs.iter().all(|c| own.get(&(c.clone(), p)).is_some_and(|range| range.end > 0));
        let count = topology.topics.get(&source.topic).map_or(0, |(_, count)| *count);
        // Of what is empty nothing is read.
        let empty = |part: &(i32, i64)| source.until.contains(part);
        let open: Vec<(i32, i64)> = offsets.iter().filter(|part| !begun(part.0) && !empty(part)).copied().collect();
        let there = open.iter().filter(|(p, _)| *p < count).map(|(p, _)| (source.topic.as_str(), *p));
        let ranges = survey.ranges(&there.collect::<Vec<_>>(), Spec::LastStable)?;
        for (partition, offset) in open {
            let range = ranges.get(&(source.topic.clone(), partition)).cloned();
            report.errors.extend(unreachable(source, partition, offset, count, range));
        }
    }
    Ok(())
}

/// Why a source cannot start at an offset.
fn unreachable(source: &Source, partition: i32, offset: i64, count: i32, range: Option<Range<i64>>) -> Option<String> {
    let Source { name, topic, .. } = source;
    let what = format!("source '{name}': startFrom offset {offset} of partition {partition} of topic '{topic}'");
    if partition >= count {
        return Some(format!("{what}: the topic has {count} partitions; leave it out"));
    }
    let Range { start, end } = range?;
    if offset < start {
        Some(format!("{what} has expired: the first that is there is {start}; give one from {start} to {end}"))
    } else if offset > end {
        Some(format!("{what} lies behind the end, which is {end}; give one from {start} to {end}"))
    } else {
        None
    }
}

/// The newest plan that was run, as reports show it.
pub fn seen(known: &ControlLog) -> Option<PlanSeen> {
    let PlanStamp { plan, fingerprint, .. } = known.newest_plan()?;
    Some(PlanSeen { plan, fingerprint: hex(fingerprint), timeline: known.newest_timeline()? })
}

fn lacks(rights: &BTreeSet<Right>, right: Right) -> bool {
    !rights.is_empty() && !rights.contains(&right)
}

impl Report {
    /// Warnings let a pipeline run.
    pub fn pass(self) -> Result<(), Findings> {
        if self.errors.is_empty() { Ok(()) } else { Err(Findings(self.errors)) }
    }

    /// As an operator reads it.
    pub fn told(self) -> PreflightReport {
        PreflightReport {
            errors: self.errors,
            warnings: self.warnings,
            kafka: self.kafka,
            conflict: self.conflict,
            stages: self.stages,
            highest_generation: self.highest_generation,
            newest_plan: self.newest_plan,
        }
    }

    fn saw(&mut self, what: &str, name: &str, like: &str) {
        self.seen.push([what.to_owned(), name.to_owned(), like.to_owned()]);
    }
}

impl Role {
    fn rights(self) -> &'static [Right] {
        match self {
            Self::Stream | Self::Table { .. } => &[Right::Read],
            Self::Output => &[Right::Write],
            Self::Internal(InternalKind::Changelog | InternalKind::Control) => &[Right::Read, Right::Write],
            // What is not needed any more is deleted.
            Self::Internal(InternalKind::Repartition | InternalKind::TrimmedChangelog) => {
                &[Right::Read, Right::Write, Right::Delete]
            }
        }
    }

    /// What is not known without the configuration.
    fn unchecked(self) -> &'static str {
        match self {
            Self::Stream => "whether it keeps its records",
            Self::Table { .. } | Self::Internal(_) => "whether it keeps its rows (cleanup.policy, retention.ms)",
            Self::Output => "how large a record may be (max.message.bytes)",
        }
    }
}

impl<'a> Use<'a> {
    fn of_source(source: &'a Source) -> Self {
        let role = match &source.table {
            None => Role::Stream,
            Some(table) => Role::Table { versioned: table.versions_retention_ms.is_some() },
        };
        Self { what: format!("source '{}'", source.name), topic: &source.topic, role }
    }

    fn judge(&self, seen: &Seen, settings: Option<&Settings>, report: &mut Report) {
        let Self { what, topic, role } = self;
        let wanted = role.rights();
        match seen {
            Seen::Missing => {}
            Seen::Hidden => report.errors.push(format!(
                "{what}: topic '{topic}' is hidden from us: grant {} on it to the pipeline's user, and create it if it does not exist",
                list(wanted)
            )),
            Seen::There(there) => {
                let lacking: Vec<Right> = wanted.iter().copied().filter(|r| lacks(&there.rights, *r)).collect();
                if !lacking.is_empty() {
                    report.errors.push(format!(
                        "{what}: topic '{topic}': not allowed; grant {} on it to the pipeline's user",
                        list(&lacking)
                    ));
                }
                if !there.leaderless.is_empty() {
                    report.warnings.push(format!(
                        "{what}: partitions {:?} of topic '{topic}' have no leader: nothing is read or written there until one of their brokers is back",
                        there.leaderless
                    ));
                }
                match settings {
                    Some(settings) => self.judge_policy(settings, report),
                    None => report.warnings.push(format!(
                        "{what}: the configuration of topic '{topic}' may not be read, so it is not known {}; grant DescribeConfigs on it",
                        role.unchecked()
                    )),
                }
            }
        }
    }

    fn judge_policy(&self, settings: &Settings, report: &mut Report) {
        let Self { what, topic, role } = self;
        let setting = |name: &str| settings.get(name).map_or("", String::as_str);
        let policy = setting("cleanup.policy");
        let has = |word: &str| policy.split(',').any(|p| p.trim() == word);
        let keeps_all = setting("retention.ms") == "-1" && setting("retention.bytes") == "-1";
        let deletes = has("delete") && !keeps_all;
        let keep = "set retention.ms=-1 and retention.bytes=-1";
        match role {
            Role::Table { .. } if deletes => report.errors.push(format!(
                "{what}: topic '{topic}' of a table has cleanup.policy={policy}: it loses rows that did not change within its retention; set cleanup.policy=compact, or {keep}"
            )),
            Role::Table { versioned: true } if has("compact") => report.warnings.push(format!(
                "{what}: topic '{topic}' of a table with versions has cleanup.policy={policy}: versions that compaction removed before they were read are unknown; to keep them all, set cleanup.policy=delete, retention.ms=-1 and retention.bytes=-1"
            )),
            Role::Internal(InternalKind::Changelog | InternalKind::Control) if deletes => report.errors.push(format!(
                "{what}: topic '{topic}' has cleanup.policy={policy}: it loses state; set cleanup.policy=compact"
            )),
            Role::Internal(InternalKind::Repartition | InternalKind::TrimmedChangelog) if has("compact") || deletes => report.errors.push(format!(
                "{what}: topic '{topic}' has cleanup.policy={policy} and may lose records that are still needed; set cleanup.policy=delete, retention.ms=-1 and retention.bytes=-1"
            )),
            _ => {}
        }
    }
}

fn list(rights: &[Right]) -> String {
    rights.iter().map(|right| format!("{right:?}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(policy: &str, retention_ms: &str, retention_bytes: &str) -> Settings {
        let all = [("cleanup.policy", policy), ("retention.ms", retention_ms), ("retention.bytes", retention_bytes)];
        all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// Errors and warnings of a topic.
    fn judged(role: Role, there: Description, settings: Option<Settings>) -> (usize, usize) {
        let mut report = Report::default();
        let topic = Use { what: "source 'customers'".to_owned(), topic: "customers", role };
        topic.judge(&Seen::There(there), settings.as_ref(), &mut report);
        (report.errors.len(), report.warnings.len())
    }

    #[test]
    fn a_table_on_a_topic_that_deletes_is_an_error_unless_it_keeps_everything() {
        let table = |policy, ms, bytes| {
            let settings = settings(policy, ms, bytes);
            judged(Role::Table { versioned: false }, Description::default(), Some(settings)).0
        };
        assert_eq!(table("delete", "604800000", "-1"), 1);
        assert_eq!(table("delete", "-1", "1000000"), 1);
        assert_eq!(table("compact,delete", "604800000", "-1"), 1);
        assert_eq!(table("compact", "604800000", "-1"), 0);
        assert_eq!(table("delete", "-1", "-1"), 0);
    }

    #[test]
    fn a_stream_on_a_topic_that_deletes_is_fine() {
        let found = judged(Role::Stream, Description::default(), Some(settings("delete", "1000", "-1")));
        assert_eq!(found, (0, 0));
    }

    #[test]
    fn versions_of_a_compacted_topic_are_warned_of() {
        let table = |versioned| {
            judged(Role::Table { versioned }, Description::default(), Some(settings("compact", "-1", "-1")))
        };
        assert_eq!(table(true), (0, 1));
        assert_eq!(table(false), (0, 0));
    }

    #[test]
    fn an_internal_topic_that_may_lose_something_is_an_error() {
        let internal =
            |kind, policy, ms| judged(Role::Internal(kind), Description::default(), Some(settings(policy, ms, "-1"))).0;
        assert_eq!(internal(InternalKind::Changelog, "delete", "604800000"), 1);
        assert_eq!(internal(InternalKind::Control, "compact", "604800000"), 0);
        assert_eq!(internal(InternalKind::Repartition, "compact", "-1"), 1);
        assert_eq!(internal(InternalKind::Repartition, "delete", "604800000"), 1);
        assert_eq!(internal(InternalKind::Repartition, "delete", "-1"), 0);
    }

    #[test]
    fn a_right_is_missed_only_where_the_brokers_say_what_there_is() {
        let output = |rights: &[Right]| {
            let there = Description { rights: rights.iter().copied().collect(), ..Description::default() };
            judged(Role::Output, there, Some(Settings::new()))
        };
        assert_eq!(output(&[]), (0, 0));
        assert_eq!(output(&[Right::Describe, Right::Read]), (1, 0));
        assert_eq!(output(&[Right::Describe, Right::Write]), (0, 0));
    }

    #[test]
    fn a_partition_without_a_leader_and_a_hidden_configuration_are_warned_of() {
        let there = Description { partitions: 2, leaderless: vec![1], ..Description::default() };
        assert_eq!(judged(Role::Stream, there, None), (0, 2));
    }

    #[test]
    fn an_internal_topic_is_ours_by_its_id() {
        let there = Description { id: Some("a".to_owned()), ..Description::default() };
        let made = |id: &str| Created { topic_id: id.to_owned(), partitions: 1, begun: 1 };
        assert_eq!(strange("t", Some(&made("a")), &there, true), None);
        assert!(strange("t", Some(&made("b")), &there, false).is_some_and(|text| text.contains("made again")));
        assert!(strange("t", None, &there, true).is_some_and(|text| text.contains("holds records")));
        assert_eq!(strange("t", None, &there, false), None);
    }
}

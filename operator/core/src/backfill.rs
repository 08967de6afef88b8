//! What is known of Backfills, what is remembered of them, and what is said of them.

use std::collections::BTreeMap;

use millrace_core::ids::Timeline;
use millrace_core::report::{BackfillReport, WorkerReport};
use millrace_core::totals::{DropReason, Totals};
use millrace_crds::backfill::{
    BackfillCounts, BackfillPhase, BackfillPlan, BackfillSpec, BackfillStatus, OffsetRange, RateLimit,
};
use millrace_crds::check;
use millrace_crds::duration::Duration;
use millrace_crds::timestamp::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::facts::text;
use crate::names::digest;
use crate::slo::books::percent;
use crate::status::Made;

/// After a bad slice nothing is read for so long.
const QUIET_MS: i64 = 60_000;
/// Then so many records in a second, and twice as many each time that so long has passed.
const FIRST_PER_SECOND: u64 = 1_000;
const DOUBLED_EVERY_MS: i64 = 10_000;
/// Above it there is no limit, unless the spec has one: a thousand times the first.
const DOUBLINGS_MAX: i64 = 10;
/// Numbers that move are written at most so often.
const LIVE_EVERY_MS: i64 = 15_000;
/// Partitions in a status.
const RANGES_MAX: usize = 100;
/// So many that have ended are remembered.
const REMEMBERED_MAX: usize = 200;
/// Rows that are dropped for these reasons would have been somewhere if all had been well.
const LOSSES: [DropReason; 4] =
    [DropReason::DeadLettered, DropReason::Skipped, DropReason::Late, DropReason::VersionExpired];

/// A Backfill that was observed.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    pub generation: i64,
    pub created: Option<Timestamp>,
    pub spec: BackfillSpec,
    pub status: BackfillStatus,
    /// Of its name, and of what of its spec does not change.
    pub digest: String,
}

/// Those that can be read, the oldest first; one that is being deleted is as good as gone.
pub fn asked(objects: &[Value]) -> Vec<Asked> {
    let there = objects.iter().filter(|object| !object["metadata"]["deletionTimestamp"].is_string());
    let mut all: Vec<Asked> = there.filter_map(Asked::of).collect();
    all.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
    all
}

impl Asked {
    fn of(object: &Value) -> Option<Self> {
        let metadata = &object["metadata"];
        let (name, spec) = (text(&metadata["name"]), check::parse_backfill(object).ok()?.spec);
        Some(Self {
            uid: text(&metadata["uid"]),
            resource_version: text(&metadata["resourceVersion"]),
            generation: metadata["generation"].as_i64().unwrap_or_default(),
            created: metadata["creationTimestamp"].as_str().and_then(Timestamp::parse),
            status: serde_json::from_value(object["status"].clone()).unwrap_or_default(),
            digest: digest(&json!([name, spec.pinned()])),
            name,
            spec,
        })
    }

    /// Whether its own status says that this attempt has ended.
    pub fn has_ended(&self) -> bool {
        let same = self.status.attempt == Some(i64::from(self.spec.attempt));
        same && self.status.phase.is_some_and(BackfillPhase::has_ended)
    }

    /// What a pod reads of it. Whether it has pods at all is decided here.
    pub fn document(&self, namespace: &str) -> Value {
        json!({
            "apiVersion": millrace_crds::pipeline::API_VERSION,
            "kind": millrace_crds::backfill::KIND,
            "metadata": {"name": self.name, "namespace": namespace},
            "spec": BackfillSpec { suspend: false, attempt: 1, ..self.spec.clone() },
        })
    }

    /// How many records it may read in a second; `quiet_ms`: for how long the SLO that it makes way for has had no bad slice.
    pub fn allowed(&self, quiet_ms: Option<i64>) -> Option<u64> {
        let limit = self.spec.rate_limit.map(|RateLimit { records_per_second }| u64::from(records_per_second));
        if self.spec.yield_to_live.is_none() {
            return limit;
        }
        // Of what nobody watches it is not known whether it burns.
        let Some(quiet_ms) = quiet_ms else { return Some(0) };
        let doublings = (quiet_ms - QUIET_MS).div_euclid(DOUBLED_EVERY_MS);
        match doublings {
            ..0 => Some(0),
            DOUBLINGS_MAX.. => limit,
            _ => Some((FIRST_PER_SECOND << doublings).min(limit.unwrap_or(u64::MAX))),
        }
    }
}

/// Whether a Pipeline's SLO has just had a bad slice, for all that is known.
pub fn burns(quiet_ms: Option<i64>) -> bool {
    quiet_ms.is_none_or(|quiet_ms| quiet_ms < QUIET_MS)
}

/// A backfill that was begun: the operator's memory, in a ConfigMap. It is what keeps one from being done twice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Begun {
    pub name: String,
    /// Of the object that it was begun for.
    pub uid: String,
    /// See [`Asked::digest`].
    pub digest: String,
    pub attempt: u32,
    pub at: Timestamp,
    /// The plan that ran then, which it is made from.
    pub plan: u64,
    pub fingerprint: String,
    pub version: String,
    pub timeline: Timeline,
    /// The sinks that it repairs.
    pub sinks: Vec<String>,
    /// What it says for the pods: see [`Asked::document`].
    pub document: Value,
    /// What the guards of each sink had done with rows of earlier ones.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub before: BTreeMap<String, Totals>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
    /// What an earlier one of its name had in Kafka is deleted: nothing was computed that these counts do not have.
    #[serde(default)]
    pub clean: bool,
    /// What it had in Kafka is deleted, or was left.
    #[serde(default)]
    pub tidy: bool,
}

/// How a backfill has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct End {
    pub at: Timestamp,
    pub phase: BackfillPhase,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<BackfillCounts>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
}

impl Begun {
    /// What its Jobs are about.
    pub fn subject(&self) -> String {
        digest(&json!([self.digest, self.attempt, self.at]))
    }

    /// Whether it did what it was begun for.
    pub fn is_done(&self) -> bool {
        let done = [BackfillPhase::Succeeded, BackfillPhase::CompletedWithLoss];
        self.end.as_ref().is_some_and(|end| done.contains(&end.phase))
    }

    /// Whether this, which has ended, is the end of what is asked for.
    pub fn ends(&self, asked: &Asked) -> bool {
        let same = self.digest == asked.digest && self.attempt >= asked.spec.attempt;
        same && (self.is_done() || self.end.is_some() && self.uid == asked.uid)
    }
}

/// Forgets those that have ended long ago, and what nobody needs of the others.
pub fn forget_old(memory: &mut Vec<Begun>) {
    memory.iter_mut().filter(|begun| begun.tidy).for_each(|begun| begun.document = Value::Null);
    let surplus = memory.len().saturating_sub(REMEMBERED_MAX);
    let mut surplus = memory.iter().filter(|begun| begun.tidy).count().min(surplus);
    memory.retain(|begun| {
        let goes = surplus > 0 && begun.tidy;
        surplus -= usize::from(goes);
        !goes
    });
}

/// What guards have done with rows of backfills, by sink, as all workers say it.
pub fn repairs<'a>(reports: impl Iterator<Item = &'a WorkerReport>) -> BTreeMap<String, Totals> {
    let mut all: BTreeMap<String, Totals> = BTreeMap::new();
    for (sink, totals) in reports.flat_map(|report| &report.repairs) {
        all.entry(sink.clone()).or_default().add(totals);
    }
    all
}

/// The same, since a backfill was begun, of its sinks.
pub fn gained(begun: &Begun, now: &BTreeMap<String, Totals>) -> BTreeMap<String, Totals> {
    let none = Totals::default();
    let of = |totals: &BTreeMap<String, Totals>, sink: &str| totals.get(sink).unwrap_or(&none).clone();
    begun.sinks.iter().map(|sink| (sink.clone(), of(now, sink).since(&of(&begun.before, sink)))).collect()
}

fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn dropped(totals: &Totals, reason: DropReason) -> u64 {
    totals.dropped.get(&reason).copied().unwrap_or_default()
}

/// What became of the records, by what the backfill says and what guards have done with its rows.
pub fn counts(report: &BackfillReport, gained: &BTreeMap<String, Totals>) -> BackfillCounts {
    let sum = |of: &dyn Fn(&Totals) -> u64| number(gained.values().map(of).sum());
    let own = |of: &dyn Fn(&Totals) -> u64| number(report.totals.values().map(of).sum());
    let dead = |totals: &Totals| dropped(totals, DropReason::DeadLettered);
    BackfillCounts {
        records: number(report.records),
        computed: number(report.rows),
        applied: sum(&|totals| totals.rows_out),
        guarded: sum(&|totals| dropped(totals, DropReason::Outdated) + dropped(totals, DropReason::SameVersion)),
        dead_lettered: own(&dead) + sum(&dead),
        late: own(&|totals| totals.joined_late),
    }
}

/// Rows of a backfill that the pipeline has taken.
pub fn taken(gained: &BTreeMap<String, Totals>) -> u64 {
    gained.values().map(|totals| totals.rows_in).sum()
}

/// What has not arrived, and why.
pub fn lost(report: &BackfillReport, gained: &BTreeMap<String, Totals>) -> Vec<String> {
    let guards = gained.iter().map(|(sink, totals)| (format!("guard of sink {sink}"), totals));
    let steps = report.totals.iter().map(|(step, totals)| (step.clone(), totals)).chain(guards);
    let mut lost = Vec::new();
    for (step, totals) in steps {
        let reasons = LOSSES.iter().map(|reason| (reason.name(), dropped(totals, *reason)));
        let reasons = reasons.chain([("unaccounted for", totals.unbalanced())]);
        lost.extend(reasons.filter(|(_, rows)| *rows > 0).map(|(why, rows)| format!("{step}: {rows} {why}")));
    }
    if report.cut {
        lost.push(
            "it has more steps than fit into what its pod says at its end: whether they have lost rows is not known"
                .to_owned(),
        );
    }
    let taken = taken(gained);
    // More may come of one before it, which was deleted while rows of it were on their way.
    if taken < report.rows {
        lost.push(format!("{} rows were computed, and the pipeline has taken {taken}", report.rows));
    }
    lost
}

/// What is true of a Backfill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    pub phase: BackfillPhase,
    /// One word.
    pub reason: &'static str,
    pub message: String,
    /// A person must act.
    pub stalled: bool,
    /// It makes way.
    pub yields: bool,
    /// It has ended, and nothing was lost.
    pub whole: bool,
}

impl Standing {
    pub fn new(phase: BackfillPhase, reason: &'static str, message: impl Into<String>) -> Self {
        Self { phase, reason, message: message.into(), stalled: false, yields: false, whole: false }
    }

    /// It waits, which is nobody's fault.
    pub fn waits(reason: &'static str, message: impl Into<String>) -> Self {
        Self::new(BackfillPhase::Pending, reason, message)
    }

    /// It waits until a person acts.
    pub fn stalled(reason: &'static str, message: impl Into<String>) -> Self {
        Self { stalled: true, ..Self::waits(reason, message) }
    }

    /// How one has ended that was begun.
    fn ended(asked: &Asked, begun: &Begun, end: &End) -> Self {
        let whole = end.phase == BackfillPhase::Succeeded;
        if begun.is_done() && begun.uid != asked.uid {
            let message = format!(
                "attempt {} of it was done at {}, before this object was made; raise spec.attempt to do it again",
                begun.attempt, end.at
            );
            return Self { whole, ..Self::new(BackfillPhase::AlreadyDone, "AlreadyDone", message) };
        }
        let reason = match end.phase {
            BackfillPhase::Succeeded => "Succeeded",
            BackfillPhase::CompletedWithLoss => "CompletedWithLoss",
            _ => "Failed",
        };
        let stalled = end.phase == BackfillPhase::Failed;
        Self { stalled, whole, ..Self::new(end.phase, reason, end.message.clone()) }
    }

    /// The status of the Backfill.
    fn status(&self, of: &Asked, now: Timestamp) -> BackfillStatus {
        let Self { phase, reason, message, stalled, yields, whole } = self;
        let stall = if *stalled { (*reason, message.clone()) } else { ("None", String::new()) };
        let way = if *yields { ("SloBurns", message.clone()) } else { ("None", String::new()) };
        let made = [
            Made::new("Ready", *whole, reason, message.clone()),
            Made::new("Yielding", *yields, way.0, way.1),
            Made::new("Stalled", *stalled, stall.0, stall.1),
        ];
        let stamped = |made: Made| made.stamped(&of.status.conditions, of.generation, now);
        BackfillStatus {
            observed_generation: Some(of.generation),
            phase: Some(*phase),
            message: Some(message.clone()).filter(|message| !message.is_empty()),
            conditions: made.into_iter().map(stamped).collect(),
            attempt: Some(of.spec.attempt.into()),
            ..BackfillStatus::default()
        }
    }
}

/// The status of one that nobody has begun.
pub fn waiting(of: &Asked, standing: &Standing, now: Timestamp) -> BackfillStatus {
    standing.status(of, now)
}

/// The status of one that runs. What is not known at the moment stays as it was.
pub fn running(
    of: &Asked,
    begun: &Begun,
    standing: &Standing,
    (report, gained): (Option<&BackfillReport>, &BTreeMap<String, Totals>),
    now: Timestamp,
) -> BackfillStatus {
    let before = Some(&of.status).filter(|before| before.started_at == Some(begun.at)).cloned().unwrap_or_default();
    let mut status = BackfillStatus {
        attempt: Some(begun.attempt.into()),
        started_at: Some(begun.at),
        plan: Some(BackfillPlan { number: number(begun.plan), fingerprint: begun.fingerprint.clone() }),
        ranges: before.ranges.clone(),
        progress: before.progress.clone(),
        eta: before.eta.clone(),
        event_time: before.event_time,
        records_per_second: before.records_per_second,
        counts: before.counts,
        ..standing.status(of, now)
    };
    if let Some(report) = report {
        let part = |part: &millrace_core::report::PartReport| OffsetRange {
            source: part.source.clone(),
            partition: part.partition.0,
            from: part.from,
            to: part.to,
        };
        let (done, all) = offsets(report);
        // What a pod says at its end has no parts where they do not fit.
        if !report.parts.is_empty() {
            status.ranges = report.parts.iter().take(RANGES_MAX).map(part).collect();
        }
        status.progress = match all {
            0 if report.computed => Some("100%".to_owned()),
            0 => status.progress,
            all => Some(percent(done as f64 / all as f64, 0)),
        };
        let pace = report.offsets_per_second.filter(|pace| *pace > 0 && !report.computed);
        status.eta = pace.map(|pace| eta(all.saturating_sub(done).div_ceil(pace)));
        status.event_time = report.event_time_ms.map(Timestamp::from_ms);
        status.records_per_second = report.records_per_second.map(number);
        status.counts = Some(counts(report, gained));
    }
    let numbers = |status: &BackfillStatus| {
        let BackfillStatus { progress, eta, event_time, records_per_second, counts, ranges, .. } = status.clone();
        (progress, eta, event_time, records_per_second, counts, ranges)
    };
    // A pod that begins again tells of nothing until its tasks run.
    let records = |status: &BackfillStatus| status.counts.map_or(0, |counts| counts.records);
    let moved = numbers(&status) != numbers(&before) && records(&status) >= records(&before);
    let due = before.as_of.is_none_or(|last| now.ms() - last.ms() >= LIVE_EVERY_MS);
    if moved && due {
        status.as_of = Some(now);
        return status;
    }
    let BackfillStatus { progress, eta, event_time, records_per_second, counts, ranges, as_of, .. } = before;
    BackfillStatus { progress, eta, event_time, records_per_second, counts, ranges, as_of, ..status }
}

/// The status of one that has ended.
pub fn ended(of: &Asked, begun: &Begun, end: &End, now: Timestamp) -> BackfillStatus {
    let standing = Standing::ended(of, begun, end);
    let same = of.status.started_at == Some(begun.at);
    let whole = matches!(end.phase, BackfillPhase::Succeeded | BackfillPhase::CompletedWithLoss);
    let already = standing.phase == BackfillPhase::AlreadyDone;
    BackfillStatus {
        // One that was raised while it ran is still to be done.
        attempt: Some(if already { of.spec.attempt } else { begun.attempt }.into()),
        started_at: Some(begun.at),
        ended_at: Some(end.at),
        plan: Some(BackfillPlan { number: number(begun.plan), fingerprint: begun.fingerprint.clone() }),
        ranges: if same { of.status.ranges.clone() } else { Vec::new() },
        progress: if whole { Some("100%".to_owned()) } else { of.status.progress.clone().filter(|_| same) },
        counts: end.counts,
        lost: end.lost.clone(),
        as_of: of.status.as_of.filter(|_| same),
        ..standing.status(of, now)
    }
}

/// Offsets that were read, and all of them.
pub fn offsets(report: &BackfillReport) -> (u64, u64) {
    let sum = |of: &dyn Fn(&millrace_core::report::PartReport) -> i64| {
        report.parts.iter().map(|part| of(part).max(0).unsigned_abs()).sum()
    };
    (sum(&|part| part.next - part.from), sum(&|part| part.to - part.from))
}

/// As a person says it: the seconds of a minute and the minutes of an hour are left out.
fn eta(seconds: u64) -> String {
    let rounded = match seconds {
        ..60 => seconds.max(1),
        60..3_600 => seconds.div_ceil(60) * 60,
        _ => seconds.div_ceil(3_600) * 3_600,
    };
    Duration::from_secs(rounded).to_string()
}

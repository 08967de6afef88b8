//! What is true of a Pipeline, for one generation of its spec.

use std::collections::{BTreeMap, BTreeSet};

use millrace_core::assignment::Placement;
use millrace_core::report::{SnapshotReport, SourceLag, TaskState, WorkerReport};
use millrace_crds::pipeline::{
    AutoscalingStatus, Condition, ConditionStatus, ErrorSample, LastSnapshot, NameRef, PartitionLag, Phase,
    PipelineStatus, RescaleStatus, RestoredFrom, SloStatus, SourceStatus,
};
use millrace_crds::timestamp::Timestamp;

use crate::backfill::Begun;
use crate::decision::Event;
use crate::facts::{Facts, Restored};
use crate::slo::books::{Said, percent};

/// Live numbers are written at most so often.
pub const LIVE_EVERY_MS: i64 = 60_000;
const ERRORS_MAX: usize = 5;
/// What the API server takes for a message of a condition.
const MESSAGE_MAX: usize = 30_000;

/// What the verdict on the spec is, in words.
pub enum Spoken {
    Valid,
    Pending,
    Refused { reason: &'static str, message: String, next_step: &'static str, spec_is_valid: bool },
}

/// What a round found out beside its writes.
#[derive(Clone, Debug, Default)]
pub struct Outlook {
    /// (reason, message, next step): a person must act.
    stalled: Option<(String, String, String)>,
    /// (reason, message): something is on its way.
    progress: Option<(String, String)>,
    /// What a preflight has found.
    pub findings: Vec<String>,
    /// The cluster cannot be reached with what there is.
    pub unreachable: bool,
    pub draining: bool,
    pub desired_replicas: u32,
    pub rescale: Option<RescaleStatus>,
    pub autoscaling: Option<AutoscalingStatus>,
    /// A version of the runtime that the pipeline may be given.
    pub available_version: Option<String>,
}

impl Outlook {
    /// The first one said is nearest to the cause.
    pub fn stall(&mut self, reason: &str, message: impl Into<String>, next_step: &str) {
        self.stalled.get_or_insert_with(|| (reason.to_owned(), message.into(), next_step.to_owned()));
    }

    pub fn progress(&mut self, reason: &str, message: impl Into<String>) {
        self.progress.get_or_insert_with(|| (reason.to_owned(), message.into()));
    }

    pub fn is_settled(&self) -> bool {
        self.on_its_way().is_none()
    }

    /// What is on its way, or cannot go on.
    pub fn on_its_way(&self) -> Option<&str> {
        let stalled = self.stalled.as_ref().map(|(_, message, _)| message);
        stalled.or(self.progress.as_ref().map(|(_, message)| message)).map(String::as_str)
    }
}

/// What is seen of the pods and what their workers say.
struct Workers<'a> {
    ready: usize,
    there: usize,
    /// Pods that are ready follow the newest assignment, and every task of it runs.
    follow: bool,
    trouble: Option<String>,
    reports: Vec<&'a WorkerReport>,
}

fn workers<'a>(facts: &Facts<'a>) -> Workers<'a> {
    let generation = facts.assignment().map(|assignment| assignment.generation);
    let seen: Vec<_> = facts.workers().collect();
    let follows = |report: &WorkerReport| {
        let runs = report.tasks.iter().all(|task| task.state == TaskState::Running);
        Some(report.generation) == generation && report.ready && runs
    };
    let said = seen.iter().filter_map(|(_, report)| *report).flat_map(|report| report.messages.iter().cloned());
    Workers {
        ready: seen.iter().filter(|(pod, _)| pod.ready).count(),
        there: facts.pods.len(),
        follow: seen.iter().all(|(_, report)| report.is_some_and(follows)),
        trouble: seen.iter().find_map(|(pod, _)| pod.trouble.clone()).or_else(|| said.into_iter().next()),
        reports: seen.iter().filter_map(|(_, report)| *report).collect(),
    }
}

/// The whole status.
pub fn status(facts: &Facts<'_>, spoken: &Spoken, outlook: &Outlook, now: Timestamp) -> PipelineStatus {
    let workers = workers(facts);
    let applied = facts.applied.as_ref().map(|kept| &kept.value);
    let current = matches!(spoken, Spoken::Valid) && applied.is_some_and(|a| a.generation == facts.generation);
    let desired = outlook.desired_replicas;
    let complete = workers.ready as u32 == desired && workers.there as u32 == desired && workers.follow;
    let (runs, stand_by) = (workers.ready > 0, stand_by(facts, desired));
    let slos = facts.observed.slos.as_ref();
    let (trouble, backfills) = (workers.trouble.clone(), facts.begun.as_ref().map(|kept| kept.value.as_slice()));
    let view = View { spoken, outlook, current, complete, runs, trouble, stand_by, slos, backfills };
    let before = &facts.status.conditions;
    let conditions = view.conditions().into_iter().map(|made| made.stamped(before, facts.generation, now)).collect();
    let sources = sources(&workers.reports);
    PipelineStatus {
        observed_generation: Some(facts.generation),
        phase: Some(view.phase(facts)),
        message: view.message(),
        next_step: view.next_step(),
        conditions,
        replicas: Some(workers.there as i32),
        desired_replicas: Some(desired as i32),
        ready_replicas: Some(workers.ready as i32),
        selector: Some(selector(facts)),
        runtime_version: applied.map(|a| a.version.clone()),
        available_version: outlook.available_version.clone(),
        plan_number: applied.map(|a| a.plan as i64),
        plan_fingerprint: applied.map(|a| a.fingerprint.clone()),
        timeline: applied.map(|a| i64::from(a.timeline.0)),
        restored_from: applied.and_then(|a| a.restored.last()).map(restored_from),
        last_snapshot: last_snapshot(facts),
        rescale: outlook.rescale.clone(),
        autoscaling: outlook.autoscaling.clone(),
        lag: lag(&sources),
        sources,
        freshness_p99: slos.and_then(|said| said.freshness_ms).map(span),
        error_budget: slos.and_then(|said| said.budget_left).map(|left| percent(left, 0)),
        slos: slos.map_or_else(Vec::new, |said| said.slos.clone()),
        errors: errors(&workers.reports),
        ..PipelineStatus::default()
    }
}

fn restored_from(restored: &Restored) -> RestoredFrom {
    let Restored { savepoint, location, attempt, at } = restored.clone();
    let savepoint_ref = NameRef { name: savepoint };
    RestoredFrom { savepoint_ref, location, attempt: i64::from(attempt), time: at }
}

/// The oldest of the tasks' newest snapshots, if each has one.
fn last_snapshot(facts: &Facts<'_>) -> Option<LastSnapshot> {
    let tasks = &facts.assignment().filter(|assignment| !assignment.tasks.is_empty())?.tasks;
    let of = |task: &Placement| {
        let snapshots = &facts.report(task.worker)?.snapshots;
        snapshots.iter().find(|snapshot| snapshot.partition == task.partition && snapshot.stage == task.stage)
    };
    let newest: Vec<&SnapshotReport> = tasks.iter().map(of).collect::<Option<_>>()?;
    let taken_ms = newest.iter().map(|snapshot| snapshot.taken_ms).min()?;
    let size_bytes = newest.iter().map(|snapshot| snapshot.bytes as i64).sum();
    Some(LastSnapshot { time: Timestamp::from_ms(taken_ms), size_bytes })
}

/// What to say where more workers are wanted than there are tasks.
fn stand_by(facts: &Facts<'_>, desired: u32) -> Option<String> {
    let tasks = &facts.assignment()?.tasks;
    let busy: BTreeSet<u32> = tasks.iter().map(|placement| placement.worker).collect();
    let idle = (0..desired).filter(|worker| !busy.contains(worker)).count();
    let there = if tasks.len() == 1 { "is 1 task".to_owned() } else { format!("are {} tasks", tasks.len()) };
    (idle > 0).then(|| format!("{idle} of {desired} workers stand by: there {there}"))
}

/// While it is being deleted.
pub fn deleting(facts: &Facts<'_>, what: &str, now: Timestamp) -> Option<PipelineStatus> {
    let mut status = facts.status.clone();
    status.phase = Some(Phase::Deleting);
    status.message = Some(what.to_owned());
    status.observed_generation = Some(facts.generation);
    let conditions = [Made::new("Ready", false, "Deleting", what), Made::new("Reconciling", true, "Deleting", what)];
    for made in conditions {
        let condition = made.stamped(&facts.status.conditions, facts.generation, now);
        status.conditions.retain(|c| c.kind != condition.kind);
        status.conditions.push(condition);
    }
    status.conditions.sort_by(|a, b| a.kind.cmp(&b.kind));
    (status != facts.status).then_some(status)
}

/// A condition without its times.
pub(crate) struct Made {
    kind: &'static str,
    status: ConditionStatus,
    reason: String,
    message: String,
}

impl Made {
    pub(crate) fn new(kind: &'static str, holds: bool, reason: &str, message: impl Into<String>) -> Self {
        let status = if holds { ConditionStatus::True } else { ConditionStatus::False };
        Self { kind, status, reason: reason.to_owned(), message: shortened(message.into()) }
    }

    pub(crate) fn unknown(kind: &'static str, reason: &str, message: impl Into<String>) -> Self {
        Self { status: ConditionStatus::Unknown, ..Self::new(kind, false, reason, message) }
    }

    /// The time is that of the last change of `status`, so it stays where nothing but the words changed.
    pub(crate) fn stamped(self, before: &[Condition], generation: i64, now: Timestamp) -> Condition {
        let before = before.iter().find(|c| c.kind == self.kind && c.status == self.status);
        // Kubernetes writes whole seconds.
        let now = Timestamp::from_ms(now.ms().div_euclid(1_000) * 1_000);
        Condition {
            kind: self.kind.to_owned(),
            status: self.status,
            observed_generation: Some(generation),
            last_transition_time: before.map_or(now, |c| c.last_transition_time),
            reason: self.reason,
            message: self.message,
        }
    }
}

struct View<'a> {
    spoken: &'a Spoken,
    outlook: &'a Outlook,
    /// This generation is what was applied.
    current: bool,
    /// Every pod that is wanted is there, is ready and runs its tasks.
    complete: bool,
    runs: bool,
    trouble: Option<String>,
    /// That some workers have nothing to do.
    stand_by: Option<String>,
    slos: Option<&'a Said>,
    /// Those that were begun, if there ever was one.
    backfills: Option<&'a [Begun]>,
}

impl View<'_> {
    fn rests(&self) -> bool {
        self.outlook.desired_replicas == 0 && !self.outlook.draining
    }

    /// (reason, message, next step)
    fn stalled(&self) -> Option<(String, String, String)> {
        if let Spoken::Refused { reason, message, next_step, .. } = self.spoken {
            return Some(((*reason).to_owned(), message.clone(), (*next_step).to_owned()));
        }
        if self.outlook.stalled.is_some() {
            return self.outlook.stalled.clone();
        }
        let trouble = self.trouble.as_ref().filter(|_| !self.complete && !self.rests())?;
        Some((
            "WorkerFails".to_owned(),
            trouble.clone(),
            "correct what is named; workers try again by themselves".to_owned(),
        ))
    }

    fn progress(&self) -> Option<(String, String)> {
        if matches!(self.spoken, Spoken::Pending) {
            return Some(("Compiling".to_owned(), "the spec is compiled".to_owned()));
        }
        let wait = ("Waiting".to_owned(), "workers are not all ready yet".to_owned());
        self.outlook.progress.clone().or_else(|| (!self.complete).then_some(wait))
    }

    fn conditions(&self) -> Vec<Made> {
        let stalled = self.stalled();
        let progress = if stalled.is_some() { None } else { self.progress() };
        let (ready, why) = match (&stalled, &progress) {
            (Some((reason, message, _)), _) => (false, (reason.as_str(), message.as_str())),
            (None, Some((reason, message))) => (false, (reason.as_str(), message.as_str())),
            (None, None) if self.rests() => (false, ("Stopped", "no worker is wanted")),
            (None, None) => (self.current, ("Running", "this generation runs")),
        };
        let reconciling = progress.clone().unwrap_or(("Settled".to_owned(), String::new()));
        let stall =
            stalled.clone().map_or(("None".to_owned(), String::new()), |(reason, message, _)| (reason, message));
        let available = if self.runs { ("Running", "workers are ready") } else { ("NotRunning", "no worker is ready") };
        let mut made = vec![
            Made::new("Available", self.runs, available.0, available.1),
            Made::new("Ready", ready, why.0, why.1),
            Made::new("Reconciling", progress.is_some(), &reconciling.0, reconciling.1),
            self.spec_valid(),
            Made::new("Stalled", stalled.is_some(), &stall.0, stall.1),
            self.state_healthy(),
        ];
        made.extend(self.reachable());
        made.extend(self.slos.into_iter().flat_map(slo_conditions));
        made.extend(self.backfills.map(backfill_active));
        made.sort_by_key(|made| made.kind);
        made
    }

    fn spec_valid(&self) -> Made {
        match self.spoken {
            Spoken::Valid => Made::new("SpecValid", true, "Valid", "the spec was compiled"),
            Spoken::Pending => Made::unknown("SpecValid", "Compiling", "the spec is compiled"),
            Spoken::Refused { reason, message, spec_is_valid, .. } => {
                Made::new("SpecValid", *spec_is_valid, reason, message.clone())
            }
        }
    }

    fn state_healthy(&self) -> Made {
        let misfit = match self.spoken {
            Spoken::Refused { reason: reason @ "StateDoesNotFit", message, .. } => Some((*reason, message.clone())),
            _ => None,
        };
        match misfit {
            Some((reason, message)) => Made::new("StateHealthy", false, reason, message),
            None if self.complete && !self.rests() => {
                Made::new("StateHealthy", true, "Level", "every task has its state")
            }
            None => Made::unknown("StateHealthy", "NotRunning", "not every task runs"),
        }
    }

    fn reachable(&self) -> [Made; 2] {
        let of_sinks = |finding: &&String| {
            ["spec.sinks", "sink", "spec.deadLetter", "dead letter"].iter().any(|s| finding.starts_with(s))
        };
        let (sinks, sources): (Vec<&String>, Vec<&String>) = self.outlook.findings.iter().partition(of_sinks);
        let made = |kind, findings: Vec<&String>| match (findings.is_empty(), self.outlook.unreachable) {
            (false, _) => Made::new(
                kind,
                false,
                "PreflightFailed",
                findings.iter().map(|f| f.as_str()).collect::<Vec<_>>().join("\n"),
            ),
            (true, true) => Made::new(kind, false, "SecretMissing", "a Secret is missing"),
            (true, false) if self.runs => Made::new(kind, true, "Reached", "workers read and write"),
            (true, false) => Made::unknown(kind, "NotRunning", "no worker is ready"),
        };
        [made("SourcesReachable", sources), made("SinksReachable", sinks)]
    }

    fn phase(&self, facts: &Facts<'_>) -> Phase {
        let progress = self.outlook.progress.as_ref().map(|(reason, _)| reason.as_str());
        let stalled = self.stalled().is_some();
        match () {
            () if self.outlook.draining => Phase::Draining,
            () if facts.applied.is_none() && stalled => Phase::Failed,
            () if facts.applied.is_none() => Phase::Pending,
            () if self.rests() && facts.pods.is_empty() => Phase::Suspended,
            () if !self.runs && self.trouble.is_some() => Phase::Failed,
            () if !self.runs => Phase::Starting,
            () if matches!(progress, Some("NewPlan" | "Rolling")) => Phase::Updating,
            () if progress == Some("Rescaling") => Phase::Rescaling,
            () if self.complete => Phase::Running,
            () if self.trouble.is_some() => Phase::Degraded,
            () => Phase::Starting,
        }
    }

    fn message(&self) -> Option<String> {
        let said = self.stalled().map(|(_, message, _)| message).or_else(|| Some(self.progress()?.1));
        said.or_else(|| self.stand_by.clone()).map(shortened)
    }

    fn next_step(&self) -> Option<String> {
        self.stalled().map(|(_, _, next)| next)
    }
}

fn shortened(mut text: String) -> String {
    if text.len() > MESSAGE_MAX {
        let end = (0..=MESSAGE_MAX).rev().find(|i| text.is_char_boundary(*i)).unwrap_or_default();
        text.truncate(end);
    }
    text
}

fn selector(facts: &Facts<'_>) -> String {
    let labels = facts.names.worker_selector();
    let labels = labels.as_object().into_iter().flatten();
    labels.map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default())).collect::<Vec<_>>().join(",")
}

/// What the sources have left, over all workers. One partition that is not known makes the sum unknown.
fn sources(reports: &[&WorkerReport]) -> Vec<SourceStatus> {
    let mut by_name: BTreeMap<&str, Vec<&SourceLag>> = BTreeMap::new();
    for lag in reports.iter().flat_map(|report| &report.sources) {
        by_name.entry(&lag.name).or_default().push(lag);
    }
    let status = |(name, lags): (&str, Vec<&SourceLag>)| {
        let worst = lags.iter().filter_map(|lag| Some((lag.lag_ms?, lag.partition.0))).max();
        SourceStatus {
            name: name.to_owned(),
            lag_records: lags.iter().map(|lag| lag.lag_records).sum(),
            lag_ms: lags.iter().map(|lag| lag.lag_ms).collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max()),
            worst_partition: worst.map(|(lag_ms, partition)| PartitionLag { partition, lag_ms }),
        }
    };
    by_name.into_iter().map(status).collect()
}

/// The largest lag, as a person reads it; nothing while one is unknown.
fn lag(sources: &[SourceStatus]) -> Option<String> {
    let known: Option<Vec<i64>> = sources.iter().map(|source| source.lag_ms).collect();
    known?.into_iter().max().map(span)
}

/// A length of time, as a person reads it.
pub(crate) fn span(ms: i64) -> String {
    match ms {
        ..10_000 => format!("{}.{}s", ms / 1_000, ms % 1_000 / 100),
        10_000..600_000 => format!("{}s", ms / 1_000),
        600_000..36_000_000 => format!("{}m", ms / 60_000),
        _ => format!("{}h", ms / 3_600_000),
    }
}

/// Whether a Backfill is under way. How far it is says its own status.
fn backfill_active(begun: &[Begun]) -> Made {
    match begun.iter().find(|begun| begun.end.is_none()) {
        Some(begun) => {
            Made::new("BackfillActive", true, "Begun", format!("Backfill {} is computed beside it", begun.name))
        }
        None => Made::new("BackfillActive", false, "None", ""),
    }
}

/// Whether budgets last, and whether that is known. Their words hold no figures, which change all the time.
fn slo_conditions(said: &Said) -> [Made; 2] {
    let names = |of: &dyn Fn(&SloStatus) -> bool| {
        said.slos.iter().filter(|slo| of(slo)).map(|slo| slo.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let spent = names(&|slo| !slo.met);
    let met = if !spent.is_empty() {
        Made::new("SLOMet", false, "BudgetSpent", format!("the error budget is spent of: {spent}"))
    } else if said.budget_left.is_none() {
        Made::unknown("SLOMet", "NothingCounted", "nothing was counted yet")
    } else {
        Made::new("SLOMet", true, "BudgetLeft", "every SLO has some of its error budget left")
    };
    let missing = match said.missing_since_ms.map(Timestamp::from_ms) {
        Some(since) => {
            let message = format!("since {since} it is not known what counts: a worker that should tell does not");
            Made::new("SLODataMissing", true, "NotObserved", message)
        }
        None => Made::new("SLODataMissing", false, "Observed", ""),
    };
    [met, missing]
}

fn errors(reports: &[&WorkerReport]) -> Vec<ErrorSample> {
    let all = reports.iter().flat_map(|report| &report.errors);
    let samples = all.map(|error| ErrorSample {
        code: error.code.clone(),
        topic: error.topic.clone(),
        partition: error.partition.0,
        offset: error.offset,
        count: error.count as i64,
    });
    let mut samples: Vec<ErrorSample> = samples.collect();
    samples.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| (&a.topic, a.partition).cmp(&(&b.topic, b.partition))));
    samples.truncate(ERRORS_MAX);
    samples
}

/// The status if it must be written, and when to look again: live numbers alone are written when what is shown of them
/// changes, and not more often than [`LIVE_EVERY_MS`].
pub fn worth_writing(
    facts: &Facts<'_>,
    status: PipelineStatus,
    now: Timestamp,
) -> (Option<PipelineStatus>, Option<u64>) {
    let before = &facts.status;
    let scaled = |status: &PipelineStatus| status.autoscaling.as_ref().map(|it| (it.mode, it.last_scaled.clone()));
    let dull = |status: &PipelineStatus| PipelineStatus {
        autoscaling: None,
        lag: None,
        sources: Vec::new(),
        errors: Vec::new(),
        last_snapshot: None,
        freshness_p99: None,
        error_budget: None,
        slos: Vec::new(),
        ..status.clone()
    };
    if dull(before) != dull(&status) || scaled(before) != scaled(&status) {
        return (Some(status), None);
    }
    let shown = |status: &PipelineStatus| {
        let PipelineStatus { lag, errors, last_snapshot, freshness_p99, error_budget, slos, autoscaling, .. } =
            status.clone();
        (lag, errors, last_snapshot, freshness_p99, error_budget, slos, autoscaling)
    };
    if shown(before) == shown(&status) {
        return (None, None);
    }
    let wait_ms = facts.observed.live_written_ms.map_or(0, |last| last + LIVE_EVERY_MS - now.ms());
    if wait_ms > 0 { (None, Some(wait_ms as u64)) } else { (Some(status), None) }
}

/// Events for what changed between two statuses; none for what stayed.
pub fn transitions(before: &PipelineStatus, after: &PipelineStatus) -> Vec<Event> {
    let find = |status: &PipelineStatus, kind: &str| status.conditions.iter().find(|c| c.kind == kind).cloned();
    let mut events = Vec::new();
    for kind in ["Ready", "Stalled", "SLOMet"] {
        let (Some(now), last) = (find(after, kind), find(before, kind)) else { continue };
        let changed = last.as_ref().is_none_or(|last| last.status != now.status);
        let another = last.as_ref().is_some_and(|last| last.reason != now.reason);
        let holds = now.status == ConditionStatus::True;
        match kind {
            "Ready" if holds && changed => events.push(Event::normal("Ready", now.message)),
            "SLOMet" if changed && now.status == ConditionStatus::False => {
                events.push(Event::warning(&now.reason, now.message));
            }
            "Stalled" if holds && (changed || another) => events.push(Event::warning(&now.reason, now.message)),
            _ => {}
        }
    }
    events
}

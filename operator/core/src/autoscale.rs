//! How many workers a pipeline shall have, by its lag: what was seen goes in, an [`Advice`] with its reason comes out.
//!
//! - What is not known is no number: while a lag is unknown, a worker silent or a task on its way, nothing is done.
//! - Workers are added when the lag was above the target for a while: as many as do what comes in, and what waits within
//!   the catch-up time, at the rate that a lane was seen to do **while it was busy**. They are never more than tasks. A
//!   task is run by one lane: a partition that asks for more than one does brings no more workers than it has company.
//! - Workers go when fewer would have been enough, with room to spare, all through the stabilisation.
//! - Within the stabilisation after a scaling nothing is done: the pause of tasks that move looks like load.
//! - Where the last step up has brought nothing, the next one would not either.

use std::collections::BTreeMap;

use millrace_crds::pipeline::LastScaled;

use crate::facts::Read;
use crate::render::lanes;
use crate::settings::Settings;
use crate::status::span;

mod history;
mod sample;

pub use history::History;
use history::{Load, fit};
pub use sample::{Gap, Part, Sample, sample};

/// An answer of the workers that is older than three looks says nothing of now.
const STALE_MS: i64 = 30_000;
/// What is added: rates are measured, so that one that is just enough may not be.
const ROOM_UP: f64 = 1.1;
/// A step up brings at least this share of what it should; else more of the same is not what is missing.
const GAIN_MIN: f64 = 0.25;
/// What a step up has not brought is not expected of the next one for so many stabilisations.
const GAIN_REMEMBERED: i64 = 6;

/// What is asked for, and where there is room for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    pub min: u32,
    pub max: u32,
    /// Lag above which workers are added.
    pub target_ms: i64,
    /// Time in which a backlog must be worked off.
    pub catch_up_ms: i64,
    pub stabilisation_ms: i64,
    /// What a lane of another plan does says nothing of this one.
    pub plan: String,
    /// Tasks of each stage.
    pub stages: BTreeMap<String, i32>,
    /// Lanes of a worker.
    pub lanes: u32,
    /// Rows a second that a busy worker did before this process began.
    pub remembered: Option<f64>,
}

impl Terms {
    /// `None` where the operator chooses nothing, or nothing runs yet.
    pub fn of(read: &Read, settings: &Settings) -> Option<Self> {
        let spec = &read.parsed.as_ref().ok()?.spec;
        let autoscaling = &spec.autoscaling;
        let placed = &read.placed.as_ref()?.value;
        let applied = &read.applied.as_ref()?.value;
        let same_plan = read.status.plan_fingerprint.as_ref() == Some(&applied.fingerprint);
        let before = read.status.autoscaling.as_ref().filter(|_| same_plan);
        Some(Self {
            min: autoscaling.min_replicas.unwrap_or(1),
            max: autoscaling.max_replicas?,
            target_ms: autoscaling.target_lag()?.ms(),
            catch_up_ms: autoscaling.catch_up_time()?.ms(),
            stabilisation_ms: autoscaling.stabilisation().ms(),
            plan: applied.fingerprint.clone(),
            stages: placed.stages.clone(),
            lanes: lanes(spec, settings),
            remembered: before.and_then(|before| before.worker_rows_per_second).map(|rows| rows as f64),
        })
    }

    fn tasks(&self) -> u32 {
        self.stages.values().map(|tasks| tasks.unsigned_abs()).sum()
    }

    /// Most workers that can have anything to do.
    fn upper(&self) -> u32 {
        self.max.min(self.tasks()).max(self.min)
    }

    fn catch_up_s(&self) -> f64 {
        self.catch_up_ms as f64 / 1e3
    }
}

/// Why, in one word: it stands in `status.autoscaling.reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No worker is wanted: that is a person's intent.
    Stopped,
    /// The spec that was applied is another one, or something else is on its way.
    Waiting,
    NotReady,
    Rescaling,
    LagUnknown,
    /// Too little was seen.
    Measuring,
    Stabilising,
    OutOfBounds,
    LagAboveTarget,
    CatchingUp,
    HotPartition,
    AtMaximum,
    NoGain,
    /// Fewer workers are enough.
    Headroom,
    Steady,
}

/// What to do, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// `None`: nothing.
    pub to: Option<u32>,
    pub reason: Reason,
    /// One sentence for people.
    pub message: String,
}

impl Advice {
    pub fn hold(reason: Reason, message: impl Into<String>) -> Self {
        Self { to: None, reason, message: message.into() }
    }

    fn scale(to: u32, reason: Reason, message: String) -> Self {
        Self { to: Some(to), reason, message }
    }
}

/// What to do about a pipeline that shall have `replicas` workers. `last` is what was done last, by whatever process.
pub fn advise(history: &History, terms: &Terms, last: Option<&LastScaled>, replicas: u32, now_ms: i64) -> Advice {
    if replicas == 0 {
        return Advice::hold(Reason::Stopped, "replicas is 0, which only a person changes");
    }
    let Some(sample) = history.last() else {
        return Advice::hold(Reason::Measuring, "no worker was asked yet");
    };
    if now_ms - sample.at_ms > STALE_MS {
        let message = format!("the workers were not asked for {}", span(now_ms - sample.at_ms));
        return Advice::hold(Reason::LagUnknown, message);
    }
    if let Err(gap) = &sample.parts {
        return gap.advice();
    }
    let since_ms = last.map(|last| now_ms - last.time.ms());
    if since_ms.is_some_and(|since_ms| since_ms < terms.stabilisation_ms) {
        let (from, to) = last.map_or((0, 0), |last| (last.from, last.to));
        let message = format!("went from {from} to {to} workers; nothing more for {}", span(terms.stabilisation_ms));
        return Advice::hold(Reason::Stabilising, message);
    }
    let upper = terms.upper();
    if replicas > upper || replicas < terms.min {
        let message =
            format!("{replicas} workers are not between {} and {upper}, of {} tasks", terms.min, terms.tasks());
        return Advice::scale(replicas.clamp(terms.min, upper), Reason::OutOfBounds, message);
    }
    let Some(loads) = history.loads().filter(|_| sample.replicas == replicas) else {
        return Advice::hold(Reason::Measuring, "rates are measured over half a minute");
    };
    let lag_ms = loads.iter().map(|load| load.part.lag_ms).max().unwrap_or_default();
    let behind = loads.iter().filter(|load| load.wait_ms > terms.target_ms).max_by_key(|load| load.wait_ms);
    match behind {
        Some(worst) => Behind { history, terms, last, replicas, now_ms, loads: &loads, worst }.advise(),
        None => calm(history, terms, replicas, lag_ms, now_ms),
    }
}

/// The lag is above the target.
struct Behind<'a> {
    history: &'a History,
    terms: &'a Terms,
    last: Option<&'a LastScaled>,
    replicas: u32,
    now_ms: i64,
    loads: &'a [Load<'a>],
    worst: &'a Load<'a>,
}

impl Behind<'_> {
    fn advise(&self) -> Advice {
        let Self { terms, replicas, loads, worst, .. } = *self;
        let Some(capacity) = self.history.busy_capacity(terms) else {
            return Advice::hold(Reason::Measuring, "lag is above the target; what a busy worker does is measured");
        };
        let demand = |load: &Load<'_>| ROOM_UP * (load.arrival + load.backlog / terms.catch_up_s());
        // A task is run by one lane. One that asks for more than that does is helped by a lane of its own and by no other
        // worker; the others are helped by as many as they ask for.
        let mut tasks: BTreeMap<(&str, i32), f64> = BTreeMap::new();
        loads.iter().for_each(|load| *tasks.entry(load.part.task()).or_default() += demand(load));
        let is_hot = |load: &Load<'_>| tasks[&load.part.task()] > capacity;
        let hot = tasks.values().filter(|demand| **demand > capacity).count() as u32;
        let upper = terms.upper();
        let of_others = |load: &Load<'_>| if is_hot(load) { 0.0 } else { demand(load) };
        let others = fit(loads, of_others, capacity, terms, terms.min).unwrap_or(upper + 1);
        // Where most do, it is the load that is large, and a lane for each is what helps.
        let reading = tasks.len() as u32;
        let few = hot * 2 <= reading;
        let alone = if few { hot } else { reading };
        let needed = others.max(alone.div_ceil(terms.lanes.max(1)));
        // Its lane has more to do than the even spread lets expect.
        let more = needed <= replicas && self.falls_behind(capacity);
        let needed = if more { replicas + 1 } else { needed };
        let facts = self.facts(capacity);
        let to = needed.min(upper);
        match () {
            () if needed > replicas && to > replicas => match self.no_gain() {
                Some(message) => Advice::hold(Reason::NoGain, format!("{facts}; {message}")),
                None => {
                    let message = format!("{facts}; {to} workers are to catch up within {}", span(terms.catch_up_ms));
                    Advice::scale(to, Reason::LagAboveTarget, message)
                }
            },
            () if is_hot(worst) && few => {
                let (partition, source) = (worst.part.partition, &worst.part.source);
                let message = format!(
                    "hot partition {partition} of source {source}: {hot} of {reading} tasks have more to do than a lane \
                     does, and more workers do not help them; {facts}"
                );
                Advice::hold(Reason::HotPartition, message)
            }
            () if needed > replicas || is_hot(worst) => {
                let bound = match terms.tasks() {
                    tasks if replicas < upper || tasks <= terms.max => "each task has a lane of its own".to_owned(),
                    _ => format!("maxReplicas is {}", terms.max),
                };
                Advice::hold(Reason::AtMaximum, format!("{facts}; {bound}"))
            }
            () => Advice::hold(Reason::CatchingUp, format!("{facts}; {replicas} workers catch up in time")),
        }
    }

    /// Whether the lane of the worst partition does all it can and more waits all the time, though it could do its task
    /// if that had less company.
    fn falls_behind(&self, capacity: f64) -> bool {
        let Part { slot, .. } = self.worst.part;
        let of_lane = self.loads.iter().filter(|load| load.part.slot == *slot);
        let done: f64 = of_lane.clone().map(|load| load.done).sum();
        let comes_in: f64 =
            of_lane.filter(|load| load.part.task() == self.worst.part.task()).map(|load| load.arrival).sum();
        self.worst.grows && done * ROOM_UP > capacity && comes_in * ROOM_UP <= capacity
    }

    /// Why the last step up forbids the next one.
    fn no_gain(&self) -> Option<String> {
        let LastScaled { time, from, to, rows_per_second, .. } = self.last?;
        let (before, done) = (*rows_per_second as f64, self.done());
        let recent = self.now_ms - time.ms() < GAIN_REMEMBERED * self.terms.stabilisation_ms;
        let should = f64::from(*to) / f64::from((*from).max(1)) - 1.0;
        let none = recent && should > 0.0 && *to == self.replicas as i32 && done < before * (1.0 + GAIN_MIN * should);
        none.then(|| {
            format!(
                "{to} workers did {done:.0} rows/s, and {from} did {before:.0}: what limits them is not their number"
            )
        })
    }

    fn done(&self) -> f64 {
        self.loads.iter().map(|load| load.done).sum()
    }

    fn facts(&self, capacity: f64) -> String {
        let Self { terms, loads, worst, .. } = self;
        let arrival: f64 = loads.iter().map(|load| load.arrival).sum();
        let backlog: f64 = loads.iter().map(|load| load.backlog).sum();
        let worker = capacity * f64::from(terms.lanes);
        format!(
            "lag is {}, above the target of {}: {backlog:.0} rows wait, {arrival:.0} rows/s come in, a busy worker does \
             {worker:.0} rows/s",
            span(worst.part.lag_ms),
            span(terms.target_ms)
        )
    }
}

/// No row waits for longer than the target: fewer workers may be enough.
fn calm(history: &History, terms: &Terms, replicas: u32, lag_ms: i64, now_ms: i64) -> Advice {
    let window = span(terms.stabilisation_ms);
    match history.enough_since(now_ms - terms.stabilisation_ms) {
        Some(enough) if enough < replicas => {
            let how = match history.busy_capacity(terms) {
                Some(_) => "would have been enough",
                None => "may be enough: no worker has been busy yet, so that one goes at a time",
            };
            Advice::scale(enough, Reason::Headroom, format!("for {window} {enough} workers {how}"))
        }
        _ if lag_ms > terms.target_ms => {
            let message = format!("what waits is old, and is done in less than {}", span(terms.target_ms));
            Advice::hold(Reason::CatchingUp, message)
        }
        Some(_) => Advice::hold(Reason::Steady, "lag is below the target, and no fewer workers would be enough"),
        None => {
            let message = format!("lag is below the target; workers go once fewer were enough for {window}");
            Advice::hold(Reason::Steady, message)
        }
    }
}

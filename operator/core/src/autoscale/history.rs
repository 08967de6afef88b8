//! What was seen of a pipeline's lag over the last while, and what follows from it: rates, what a lane can do, and how
//! many workers would have been enough. All of it may be lost: a process that has just begun waits longer, no more.

use std::collections::{BTreeMap, VecDeque};

use super::Terms;
use super::sample::{Part, Sample, Slot};

/// A sample that is nearer to the last one is left out: workers are asked every 10 s, and more often while something
/// changes.
const SAMPLE_MS: i64 = 9_000;
/// Rates are those between the first and the last of so many samples.
const SAMPLES: usize = 4;
/// What a partition did in less time says little: lags are told once a second.
const WINDOW_MS: i64 = 20_000;
/// After a longer silence what was seen before says nothing of what was meanwhile.
const SILENCE_MS: i64 = 60_000;
/// A lane is busy where rows wait so long all the time: twice the longest commit interval.
const BUSY_MS: i64 = 10_000;
/// What of a newer measurement goes into what a lane can do.
const WEIGHT: f64 = 0.3;
/// Fewer workers are enough where they would do so many times what came in. Between this and what makes workers come is
/// what keeps them from going and coming by turns.
const ROOM_DOWN: f64 = 1.4;

/// Of one pipeline. Its size is bounded by its partitions and the longest stabilisation.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The last is the newest; the ones before it were settled, and all are of the same layout.
    samples: VecDeque<Sample>,
    /// That the capacity is of.
    plan: String,
    capacity: Option<Capacity>,
    /// When, and how many workers would have been enough.
    enough: VecDeque<(i64, u32)>,
}

/// Rows a second that a lane does.
#[derive(Clone, Copy, Debug)]
struct Capacity {
    rows: f64,
    /// It was measured on a busy one; else it is only the most that was seen, and more may be possible.
    busy: bool,
}

/// What one source partition asks for.
#[derive(Clone, Debug)]
pub(super) struct Load<'a> {
    /// As it was last.
    pub part: &'a Part,
    /// Rows a second that were processed.
    pub done: f64,
    /// Rows a second that came in: in the middle one of the intervals, so that a burst, which waits in the backlog already,
    /// is not taken for what comes next.
    pub arrival: f64,
    /// The same over all of them.
    pub mean: f64,
    /// Rows that wait.
    pub backlog: f64,
    pub grows: bool,
    /// How long rows had to wait, at its shortest and its longest: their age, or less where the rows before them take less
    /// time. Timestamps may be old when they are written.
    pub wait_ms: i64,
    pub wait_ms_max: i64,
}

impl History {
    /// Takes in what workers have said.
    pub fn note(&mut self, sample: Sample, terms: &Terms) {
        if self.plan != terms.plan {
            *self = Self { plan: terms.plan.clone(), ..Self::default() };
        }
        let last = self.samples.back();
        if last.is_some_and(|last| sample.at_ms - last.at_ms < SAMPLE_MS) {
            return;
        }
        if last.is_some_and(|last| last.replicas != sample.replicas) {
            self.enough.clear();
        }
        if !last.is_some_and(|last| sample.at_ms - last.at_ms <= SILENCE_MS && sample.goes_on_from(last)) {
            self.samples.clear();
        }
        self.samples.push_back(sample);
        if self.samples.len() > SAMPLES {
            self.samples.pop_front();
        }
        let Some((at_ms, replicas)) = self.last().map(|last| (last.at_ms, last.replicas)) else { return };
        let (measured, enough) = match self.loads() {
            Some(loads) => {
                let capacity = measured(self.capacity, &loads, terms);
                (capacity, Some(enough(capacity, &loads, replicas, terms)))
            }
            None => (self.capacity, None),
        };
        self.capacity = measured;
        let Some(enough) = enough else { return };
        if self.enough.back().is_some_and(|(last_ms, _)| at_ms - last_ms > SILENCE_MS) {
            self.enough.clear();
        }
        self.enough.push_back((at_ms, enough));
        // The one before stays: it shows that the time is covered.
        while self.enough.get(1).is_some_and(|(second_ms, _)| *second_ms <= at_ms - terms.stabilisation_ms) {
            self.enough.pop_front();
        }
    }

    pub(super) fn last(&self) -> Option<&Sample> {
        self.samples.back()
    }

    /// What each partition asks for; `None` while that is not known.
    pub(super) fn loads(&self) -> Option<Vec<Load<'_>>> {
        let (first, last) = (self.samples.front()?, self.samples.back()?);
        if last.at_ms - first.at_ms < WINDOW_MS {
            return None;
        }
        let parts = last.parts.as_ref().ok()?;
        (0..parts.len()).map(|at| self.load(at)).collect()
    }

    fn load(&self, at: usize) -> Option<Load<'_>> {
        let seen = self.samples.iter().map(|sample| Some((sample.at_ms, sample.parts.as_ref().ok()?.get(at)?)));
        let seen: Vec<(i64, &Part)> = seen.collect::<Option<_>>()?;
        let (first, last) = (seen.first()?, seen.last()?);
        let rate = |(from_ms, from): (i64, i64), (to_ms, to): (i64, i64)| {
            (to - from).max(0) as f64 * 1e3 / (to_ms - from_ms).max(1) as f64
        };
        let end = |(at_ms, part): (i64, &Part)| (at_ms, part.position + part.lag_records);
        let mut arrivals: Vec<f64> = seen.windows(2).map(|pair| rate(end(pair[0]), end(pair[1]))).collect();
        arrivals.sort_by(f64::total_cmp);
        let done = rate((first.0, first.1.position), (last.0, last.1.position));
        let wait_ms = |part: &Part| match part.lag_records as f64 * 1e3 / done {
            in_ms if in_ms < part.lag_ms as f64 => in_ms as i64,
            _ => part.lag_ms,
        };
        let waits = || seen.iter().map(|(_, part)| wait_ms(part));
        Some(Load {
            part: last.1,
            done,
            arrival: arrivals[(arrivals.len() - 1) / 2],
            mean: rate(end(*first), end(*last)),
            backlog: last.1.lag_records as f64,
            grows: last.1.lag_records > first.1.lag_records,
            wait_ms: waits().min()?,
            wait_ms_max: waits().max()?,
        })
    }

    /// Rows a second that a busy lane does, if one was seen, by this process or one before it.
    pub(super) fn busy_capacity(&self, terms: &Terms) -> Option<f64> {
        capacity(self.capacity, terms).filter(|capacity| capacity.busy).map(|capacity| capacity.rows)
    }

    /// The same of a worker, as a status keeps it.
    pub fn worker_rows(&self, terms: &Terms) -> Option<i64> {
        self.busy_capacity(terms).map(|rows| two_digits(rows * f64::from(terms.lanes)))
    }

    /// Rows a second that all workers did; 0 while that is not known.
    pub fn done(&self) -> i64 {
        self.loads().into_iter().flatten().map(|load| load.done).sum::<f64>() as i64
    }

    /// How many workers were enough at all times from then on; `None` where not all of that time was seen.
    pub(super) fn enough_since(&self, from_ms: i64) -> Option<u32> {
        self.enough.front().filter(|(at_ms, _)| *at_ms <= from_ms)?;
        self.enough.iter().map(|(_, enough)| *enough).max()
    }
}

/// What a lane can do: seen by this process, else remembered from one before.
fn capacity(seen: Option<Capacity>, terms: &Terms) -> Option<Capacity> {
    let remembered = terms.remembered.map(|worker| worker / f64::from(terms.lanes.max(1)));
    match (seen, remembered) {
        (Some(seen), _) if seen.busy => Some(seen),
        (seen, Some(rows)) => Some(Capacity { rows: seen.map_or(rows, |seen| seen.rows.max(rows)), busy: true }),
        (seen, None) => seen,
    }
}

/// What a lane can do, by what was seen now. One that is not busy says only that it can do as much.
fn measured(before: Option<Capacity>, loads: &[Load<'_>], terms: &Terms) -> Option<Capacity> {
    let before = capacity(before, terms);
    let mut lanes: BTreeMap<Slot, (f64, bool)> = BTreeMap::new();
    for load in loads {
        let (done, busy) = lanes.entry(load.part.slot).or_default();
        *done += load.done;
        *busy |= load.wait_ms >= BUSY_MS.min(terms.target_ms);
    }
    let busy: Vec<f64> = lanes.values().filter(|(done, busy)| *busy && *done > 0.0).map(|(done, _)| *done).collect();
    if !busy.is_empty() {
        let rows = busy.iter().sum::<f64>() / busy.len() as f64;
        let rows = before.filter(|before| before.busy).map_or(rows, |old| old.rows + WEIGHT * (rows - old.rows));
        return Some(Capacity { rows, busy: true });
    }
    let most = lanes.values().map(|(done, _)| *done).fold(0.0, f64::max);
    match before {
        Some(before) => Some(Capacity { rows: before.rows.max(most), ..before }),
        None => (most > 0.0).then_some(Capacity { rows: most, busy: false }),
    }
}

/// How many workers would be enough for what comes in. Where no lane has been busy yet, nobody knows: one fewer may be.
fn enough(capacity: Option<Capacity>, loads: &[Load<'_>], replicas: u32, terms: &Terms) -> u32 {
    let demand = |load: &Load<'_>| ROOM_DOWN * (load.mean + load.backlog / terms.catch_up_s());
    let by = |rows: f64| fit(loads, demand, rows, terms, terms.min).unwrap_or(terms.upper());
    match capacity {
        _ if loads.iter().all(|load| demand(load) == 0.0) => terms.min,
        Some(Capacity { rows, busy: true }) => by(rows),
        _ if loads.iter().any(|load| load.wait_ms_max > terms.target_ms / 2) => replicas,
        Some(Capacity { rows, .. }) => by(rows).min(replicas.saturating_sub(1)).max(terms.min),
        None => replicas,
    }
}

/// The fewest workers, from `from` on, of whose lanes none has more to do than it can. Tasks are spread over lanes as
/// [`place`](crate::assign::place) spreads them: each stage evenly, so that three workers do no more with four equal tasks
/// than two, and, since nothing moves that need not, no stage with regard to another. `None`: not even the most can do it.
pub(super) fn fit(
    loads: &[Load<'_>],
    demand: impl Fn(&Load<'_>) -> f64,
    capacity: f64,
    terms: &Terms,
    from: u32,
) -> Option<u32> {
    let demands = loads.iter().map(|load| (load.part.partition.unsigned_abs() as usize, demand(load)));
    let demands: Vec<(usize, f64)> = demands.collect();
    let does = |workers: &u32| {
        let mut lanes = vec![0.0; (*workers * terms.lanes).clamp(1, terms.tasks().max(1)) as usize];
        let count = lanes.len();
        demands.iter().for_each(|(partition, demand)| lanes[partition % count] += demand);
        lanes.into_iter().all(|rows| rows <= capacity)
    };
    (from..=terms.upper()).find(does)
}

/// So that a status does not change with every measurement.
fn two_digits(rows: f64) -> i64 {
    let unit = 10_f64.powf(rows.max(1.0).log10().floor() - 1.0).max(1.0);
    ((rows / unit).round() * unit) as i64
}

//! The decider and a plant in a loop, with what can happen to what the decider sees; and what must hold.

use millrace_crds::pipeline::LastScaled;
use millrace_crds::timestamp::Timestamp;
use millrace_operator_core::autoscale::{Advice, Gap, History, Reason, Sample, Terms, advise};
use millrace_simulator::rng::Rng;
use millrace_simulator::trace::{Run, Trace};

use crate::mutant::Mutant;
use crate::plant::{Arrivals, HOUR_S, Kind, Plant};

const ENDS_S: i64 = 5 * HOUR_S;
/// What does not change any more has come to rest by then.
const RESTS_S: i64 = 4 * HOUR_S;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    OutOfBounds {
        to: u32,
    },
    /// Within the stabilisation after another one.
    TooSoon {
        after_s: i64,
    },
    /// Nobody knew what the load was.
    Blind,
    /// It scaled although nothing had changed for long.
    Restless {
        at_s: i64,
    },
    /// More workers for what more workers cannot do.
    InVain {
        to: u32,
    },
    /// Rows waited for longer than workers that there could have been take.
    Behind {
        for_s: i64,
    },
    /// Fewer workers would have been enough by far.
    Idle {
        replicas: u32,
        enough: u32,
    },
    /// It did not say what a person must know.
    NotSaid,
}

pub struct World {
    pub plant: Plant,
    pub terms: Terms,
    pub rng: Rng,
    mutant: Option<Mutant>,
    trace: Trace,
    history: History,
    /// What the status keeps.
    last: Option<LastScaled>,
    seen: Option<Sample>,
    next_look_s: i64,
    /// Nobody answers until then.
    silent_until_s: i64,
    scaled: Vec<(i64, u32, u32)>,
    behind_since_s: Option<i64>,
    behind_for_s: i64,
    said_hot: bool,
}

pub fn run(seed: u64, mutant: Option<Mutant>, record: bool) -> Run<Violation> {
    let mut rng = Rng::new(seed);
    let (kind, terms) = draw(&mut rng, mutant.and_then(Mutant::arrivals));
    let replicas = terms.min + rng.below((terms.max - terms.min + 1) as usize) as u32;
    let mut trace = Trace::new(record);
    trace.line(format_args!("{replicas} workers: {kind:?} {terms:?}"));
    let mut world = World {
        plant: Plant::new(kind, replicas, &mut rng),
        terms,
        rng,
        mutant,
        trace,
        history: History::default(),
        last: None,
        seen: None,
        next_look_s: 0,
        silent_until_s: 0,
        scaled: Vec::new(),
        behind_since_s: None,
        behind_for_s: 0,
        said_hot: false,
    };
    let violation = world.live().err();
    world.trace.finish(violation)
}

fn draw(rng: &mut Rng, arrivals: Option<Arrivals>) -> (Kind, Terms) {
    let drawn = Arrivals::ALL[rng.below(Arrivals::ALL.len())];
    let arrivals = arrivals.unwrap_or(drawn);
    let tasks = 1 + rng.below(12) as i32;
    let mut stages = std::collections::BTreeMap::from([("a".to_owned(), tasks)]);
    if rng.below(3) == 0 {
        stages.insert("b".to_owned(), 1 + rng.below(6) as i32);
    }
    let target_ms = [5_000, 10_000, 30_000, 60_000, 120_000][rng.below(5)];
    let min = 1 + rng.below(2) as u32;
    // Longer than from batch to batch, as the documentation asks for.
    let short = if arrivals == Arrivals::Batches { 300_000 } else { 60_000 };
    let terms = Terms {
        min,
        max: min + rng.below(12) as u32,
        target_ms,
        catch_up_ms: 10 * target_ms,
        stabilisation_ms: [short, 300_000, 600_000][rng.below(3)],
        plan: "plan".to_owned(),
        stages: stages.clone(),
        lanes: 1 + rng.below(2) as u32,
        remembered: None,
    };
    let lane = 200.0 + rng.below(1_800) as f64;
    let mut kind = Kind {
        arrivals,
        rate: 0.0,
        lane,
        sinks: f64::INFINITY,
        stages,
        lanes: terms.lanes,
        starts_s: 5 + rng.below(40) as i64,
        warms_s: 3 + rng.below(30) as i64,
        pauses_s: 1 + rng.below(20) as i64,
    };
    let most = terms.max.min(kind.tasks()).max(terms.min);
    // As much as the most workers can do with some room, or a part of it.
    let able = |kind: &mut Kind, rate: f64| {
        kind.rate = rate;
        Plant::suffice(kind, most, 1.35)
    };
    let mut rate = lane * f64::from(kind.tasks());
    while !able(&mut kind, rate) {
        rate *= 0.95;
    }
    kind.rate *= (5 + rng.below(95)) as f64 / 100.0;
    match arrivals {
        Arrivals::Hot | Arrivals::Old => kind.rate *= 0.1,
        Arrivals::Limited => kind.sinks = kind.rate * 0.8,
        _ => {}
    }
    (kind, terms)
}

impl World {
    fn live(&mut self) -> Result<(), Violation> {
        while self.plant.now_s < ENDS_S {
            self.trace.next_step();
            self.plant.tick(&mut self.rng);
            self.happen();
            if self.plant.now_s >= self.next_look_s {
                self.look()?;
                self.next_look_s = self.plant.now_s + 9 + self.rng.below(4) as i64;
            }
            self.watch_lag()?;
        }
        self.end()
    }

    /// Workers break and fall silent, and the operator begins anew.
    fn happen(&mut self) {
        let faults = self.plant.now_s < RESTS_S - HOUR_S / 2;
        if faults && self.rng.below(4_000) == 0 {
            let (worker, for_s) = (self.rng.below(self.plant.replicas as usize), 20 + self.rng.below(40));
            self.trace.line(format_args!("worker {worker} breaks for {for_s} s"));
            self.plant.break_one(worker as u32, for_s as i64);
        }
        if faults && self.rng.below(5_000) == 0 {
            self.silent_until_s = self.plant.now_s + 30 + self.rng.below(600) as i64;
            self.trace.line(format_args!("silent until {}", self.silent_until_s));
        }
        if self.rng.below(6_000) == 0 {
            self.trace.line(format_args!("the operator begins anew"));
            self.terms.remembered = self.history.worker_rows(&self.terms).map(|rows| rows as f64);
            self.history = History::default();
        }
    }

    fn look(&mut self) -> Result<(), Violation> {
        let mut sample = self.plant.sample();
        let silent = self.plant.now_s < self.silent_until_s || self.rng.below(100) < 2;
        if silent && sample.parts.is_ok() {
            sample.parts = Err(Gap::Unknown("a worker does not answer".to_owned()));
        }
        let known = sample.parts.is_ok();
        let before = self.seen.replace(sample.clone());
        let (mut terms, mut last) = (self.terms.clone(), self.last.clone());
        if let Some(mutant) = self.mutant {
            mutant.see(&self.plant, before.as_ref(), &mut sample, &mut terms, &mut last);
        }
        self.history.note(sample, &terms);
        let replicas = self.plant.replicas;
        let mut advice = advise(&self.history, &terms, last.as_ref(), replicas, self.plant.now_s * 1_000);
        if let Some(mutant) = self.mutant {
            mutant.decide(&self.plant, &terms, &mut advice);
        }
        let Advice { to, reason, message } = advice;
        self.said_hot |= reason == Reason::HotPartition && message.contains("hot partition 0 of source source-of-a");
        self.trace.line(format_args!("{replicas} -> {to:?} {reason:?}: {message}"));
        match to {
            Some(to) => self.scale(to, known, reason),
            None => Ok(()),
        }
    }

    fn scale(&mut self, to: u32, known: bool, reason: Reason) -> Result<(), Violation> {
        let Self { plant, terms, .. } = self;
        let (now_s, from) = (plant.now_s, plant.replicas);
        let upper = terms.max.min(plant.kind.tasks()).max(terms.min);
        let after_s = self.scaled.last().map(|(at_s, ..)| now_s - at_s);
        let steady = !matches!(plant.kind.arrivals, Arrivals::Step | Arrivals::Ramp | Arrivals::Wave | Arrivals::Burst);
        let limited = plant.kind.arrivals == Arrivals::Limited && reason == Reason::LagAboveTarget;
        let ups = self
            .scaled
            .iter()
            .rev()
            .take_while(|(at_s, from, to)| to > from && (now_s - at_s) * 1_000 < 6 * terms.stabilisation_ms);
        match () {
            () if !known => return Err(Violation::Blind),
            () if !(terms.min..=upper).contains(&to) => return Err(Violation::OutOfBounds { to }),
            () if after_s.is_some_and(|after_s| after_s * 1_000 < terms.stabilisation_ms) => {
                return Err(Violation::TooSoon { after_s: after_s.unwrap_or_default() });
            }
            () if limited && ups.count() > 1 => return Err(Violation::InVain { to }),
            () if plant.kind.arrivals == Arrivals::Hot && to > from && Plant::suffice(&plant.kind, from, 4.0) => {
                return Err(Violation::InVain { to });
            }
            () if steady && !limited && now_s >= RESTS_S => return Err(Violation::Restless { at_s: now_s }),
            () => {}
        }
        let rows_per_second = self.history.done();
        let time = Timestamp::from_ms(now_s * 1_000);
        self.last = Some(LastScaled { time, from: from as i32, to: to as i32, generation: 0, rows_per_second });
        self.scaled.push((now_s, from, to));
        self.plant.scale(to);
        Ok(())
    }

    /// How long rows may wait, where the most workers can do what comes in: until it is seen, until what was done before
    /// has settled, until workers are there, and until they have caught up; twice, since the first look sees only a part.
    fn patience_s(&self) -> i64 {
        let Kind { starts_s, warms_s, pauses_s, .. } = self.plant.kind;
        let late_s = 120 + starts_s + warms_s + pauses_s + self.terms.stabilisation_ms / 1_000;
        let once_s = late_s + self.terms.catch_up_ms / 1_000;
        // A burst takes the most workers as long as it takes them.
        let burst_s = if self.plant.kind.arrivals == Arrivals::Burst { 6 * 1_200 } else { 0 };
        // What came meanwhile, and while a worker was broken, is done by the third that the most can do beyond the rate.
        2 * once_s + 3 * late_s + burst_s
    }

    fn watch_lag(&mut self) -> Result<(), Violation> {
        let behind = self.plant.lag_s() * 1_000 > self.terms.target_ms;
        let now_s = self.plant.now_s;
        // While nobody answers, nothing can be done.
        let excused = now_s < self.silent_until_s;
        if !behind || excused {
            self.behind_since_s = None;
            return Ok(());
        }
        let since_s = *self.behind_since_s.get_or_insert(now_s);
        self.behind_for_s = self.behind_for_s.max(now_s - since_s);
        let able = !matches!(self.plant.kind.arrivals, Arrivals::Hot | Arrivals::Limited | Arrivals::Old);
        match now_s - since_s {
            for_s if able && for_s > self.patience_s() => Err(Violation::Behind { for_s }),
            _ => Ok(()),
        }
    }

    fn end(&self) -> Result<(), Violation> {
        let Self { plant, terms, .. } = self;
        let arrivals = plant.kind.arrivals;
        let upper = terms.max.min(plant.kind.tasks()).max(terms.min);
        let enough = (terms.min..=upper).find(|n| Plant::suffice(&plant.kind, *n, 1.4 * 1.35)).unwrap_or(upper);
        let constant = matches!(arrivals, Arrivals::Constant | Arrivals::Zero | Arrivals::Old);
        if constant && plant.replicas > enough {
            return Err(Violation::Idle { replicas: plant.replicas, enough });
        }
        let hot = arrivals == Arrivals::Hot && plant.kind.tasks() > plant.replicas && plant.replicas < upper;
        if hot && !self.said_hot { Err(Violation::NotSaid) } else { Ok(()) }
    }
}

//! A pipeline that is scaled: rows come in, lanes do them, and another number of workers costs a pause.

use std::collections::BTreeMap;

use millrace_core::assignment::Assignment;
use millrace_operator_core::assign::{Room, place};
use millrace_operator_core::autoscale::{Gap, Part, Sample};
use millrace_simulator::rng::Rng;

pub const HOUR_S: i64 = 3_600;

/// How rows come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    Constant,
    /// Little, much, little.
    Step,
    Ramp,
    Wave,
    /// Twenty minutes' rows within some seconds.
    Burst,
    /// Twice as much for some seconds of each minute.
    Batches,
    /// One partition gets more than a lane can do.
    Hot,
    Zero,
    /// Little, and its timestamps are old.
    Old,
    /// More than what is behind the sinks takes, however many workers there are.
    Limited,
}

impl Arrivals {
    pub const ALL: [Self; 10] = [
        Self::Constant,
        Self::Step,
        Self::Ramp,
        Self::Wave,
        Self::Burst,
        Self::Batches,
        Self::Hot,
        Self::Zero,
        Self::Old,
        Self::Limited,
    ];

    /// Share of the full rate, second by second.
    fn share(self, second: i64) -> f64 {
        let hours = second as f64 / HOUR_S as f64;
        match self {
            Self::Zero => 0.0,
            Self::Step if !(1.0..2.5).contains(&hours) => 0.2,
            Self::Ramp => 0.1 + 0.9 * (hours - 1.0).clamp(0.0, 1.0),
            Self::Wave => 0.55 - 0.45 * (hours * std::f64::consts::PI).cos(),
            Self::Burst if (HOUR_S..HOUR_S + 10).contains(&second) => 120.0,
            Self::Batches if second % 60 >= 10 => 0.8,
            Self::Batches => 2.0,
            _ => 1.0,
        }
    }
}

/// What does not change in a run.
#[derive(Clone, Debug)]
pub struct Kind {
    pub arrivals: Arrivals,
    /// Rows a second, all together.
    pub rate: f64,
    /// Rows a second of a lane.
    pub lane: f64,
    /// Rows a second that the sinks take.
    pub sinks: f64,
    pub stages: BTreeMap<String, i32>,
    pub lanes: u32,
    /// Until pods are ready, until tasks move, and how long those pause.
    pub starts_s: i64,
    pub warms_s: i64,
    pub pauses_s: i64,
}

impl Kind {
    pub fn tasks(&self) -> u32 {
        self.stages.values().map(|tasks| tasks.unsigned_abs()).sum()
    }
}

/// A task with its source's partition.
struct Task {
    stage: String,
    partition: i32,
    weight: f64,
    slot: (u32, u32),
    /// Rows that came in up to each second.
    came: Vec<f64>,
    done: f64,
    paused_until_s: i64,
}

impl Task {
    fn waiting(&self) -> f64 {
        self.came.last().copied().unwrap_or_default() - self.done
    }

    /// How old the oldest row is that waits.
    fn age_s(&self) -> i64 {
        let oldest = self.came.partition_point(|came| *came <= self.done + 1e-6);
        (self.came.len() - oldest) as i64
    }
}

pub struct Plant {
    pub kind: Kind,
    pub now_s: i64,
    pub replicas: u32,
    tasks: Vec<Task>,
    assignment: Assignment,
    /// When its pods are ready, and when its tasks move.
    rescale: Option<(i64, i64)>,
    /// A worker that does nothing until then.
    broken: Option<(u32, i64)>,
}

impl Plant {
    pub fn new(kind: Kind, replicas: u32, rng: &mut Rng) -> Self {
        let mut tasks = Vec::new();
        for (stage, count) in &kind.stages {
            for partition in 0..*count {
                let (stage, weight) = (stage.clone(), 0.9 + rng.below(200) as f64 / 1e3);
                tasks.push(Task {
                    stage,
                    partition,
                    weight,
                    slot: (0, 0),
                    came: vec![0.0],
                    done: 0.0,
                    paused_until_s: 0,
                });
            }
        }
        let all: f64 = tasks.iter().map(|task| task.weight).sum();
        tasks.iter_mut().for_each(|task| task.weight /= all);
        let mut plant =
            Self { kind, now_s: 0, replicas, tasks, assignment: Assignment::default(), rescale: None, broken: None };
        plant.move_tasks(0);
        plant
    }

    fn move_tasks(&mut self, pause_s: i64) {
        let workers: Vec<u32> = (0..self.replicas).collect();
        let room = Room { workers: &workers, lanes: self.kind.lanes };
        let before = (!self.assignment.tasks.is_empty()).then_some(&self.assignment);
        self.assignment.tasks = place(before, &self.kind.stages, room);
        for placed in &self.assignment.tasks {
            let same = |task: &&mut Task| task.stage == placed.stage && task.partition == placed.partition.0;
            let task = self.tasks.iter_mut().find(same).expect("it is one of them");
            if task.slot != (placed.worker, placed.lane) {
                task.paused_until_s = self.now_s + pause_s;
            }
            task.slot = (placed.worker, placed.lane);
        }
    }

    pub fn scale(&mut self, replicas: u32) {
        // Pods that go are there until their tasks have moved.
        let starts_s = if replicas > self.replicas { self.kind.starts_s } else { 0 };
        self.replicas = replicas;
        self.rescale = Some((self.now_s + starts_s, self.now_s + starts_s + self.kind.warms_s));
    }

    pub fn break_one(&mut self, worker: u32, for_s: i64) {
        self.broken = Some((worker, self.now_s + for_s));
    }

    /// A second passes.
    pub fn tick(&mut self, rng: &mut Rng) {
        self.now_s += 1;
        if self.rescale.is_some_and(|(_, moves_s)| self.now_s >= moves_s) {
            self.rescale = None;
            self.move_tasks(self.kind.pauses_s);
        }
        self.broken = self.broken.filter(|(_, until_s)| self.now_s < *until_s);
        self.work(rng);
        let rate = self.kind.rate * self.kind.arrivals.share(self.now_s);
        let hot = self.kind.arrivals == Arrivals::Hot;
        for (at, task) in self.tasks.iter_mut().enumerate() {
            let rows = if hot && at == 0 { 1.5 * self.kind.lane } else { rate * task.weight };
            let before = task.came.last().copied().unwrap_or_default();
            task.came.push(before + rows * (0.9 + rng.below(200) as f64 / 1e3));
        }
    }

    fn work(&mut self, rng: &mut Rng) {
        let mut lanes: BTreeMap<(u32, u32), Vec<usize>> = BTreeMap::new();
        for (at, task) in self.tasks.iter().enumerate() {
            let works =
                task.paused_until_s <= self.now_s && self.broken.is_none_or(|(worker, _)| worker != task.slot.0);
            if works && task.waiting() > 0.0 {
                lanes.entry(task.slot).or_default().push(at);
            }
        }
        let mut does = vec![0.0; self.tasks.len()];
        for tasks in lanes.values_mut() {
            let mut left = self.kind.lane * (0.95 + rng.below(100) as f64 / 1e3);
            // Those with little leave the rest of their turn to the others.
            tasks.sort_by(|a, b| self.tasks[*a].waiting().total_cmp(&self.tasks[*b].waiting()));
            for (turn, at) in tasks.iter().enumerate() {
                does[*at] = self.tasks[*at].waiting().min(left / (tasks.len() - turn) as f64);
                left -= does[*at];
            }
        }
        let all: f64 = does.iter().sum();
        let share = (self.kind.sinks / all.max(1.0)).min(1.0);
        self.tasks.iter_mut().zip(does).for_each(|(task, rows)| task.done += rows * share);
    }

    /// The age of the oldest row that waits, in seconds.
    pub fn lag_s(&self) -> i64 {
        self.tasks.iter().map(Task::age_s).max().unwrap_or_default()
    }

    /// What the workers say, all of them truly.
    pub fn parts(&self) -> Vec<Part> {
        let old_ms = if self.kind.arrivals == Arrivals::Old { 7_200_000 } else { 0 };
        let part = |task: &Task| {
            let (lag_records, age_ms) = (task.waiting() as i64, task.age_s() * 1_000);
            Part {
                source: format!("source-of-{}", task.stage),
                partition: task.partition,
                stage: task.stage.clone(),
                slot: task.slot,
                lag_ms: if lag_records > 0 { age_ms + old_ms } else { 0 },
                lag_records,
                position: task.done as i64,
            }
        };
        self.tasks.iter().map(part).collect()
    }

    pub fn sample(&self) -> Sample {
        let moves = self.tasks.iter().any(|task| task.paused_until_s > self.now_s);
        let parts = match self.rescale {
            _ if self.broken.is_some() => Err(Gap::NotReady("a worker is not ready".to_owned())),
            Some((ready_s, _)) if self.now_s < ready_s => Err(Gap::NotReady("pods start".to_owned())),
            Some(_) => Err(Gap::Rescaling("tasks are warmed".to_owned())),
            None if moves => Err(Gap::Rescaling("tasks pause".to_owned())),
            None => Ok(self.parts()),
        };
        Sample { at_ms: self.now_s * 1_000, replicas: self.replicas, parts }
    }

    /// Whether so many workers do `room` times the full rate, however stages lie on one another.
    pub fn suffice(kind: &Kind, replicas: u32, room: f64) -> bool {
        let share = kind.rate * room / f64::from(kind.tasks());
        let most: u32 = kind.stages.values().map(|tasks| tasks.unsigned_abs().div_ceil(replicas * kind.lanes)).sum();
        f64::from(most) * share <= kind.lane
    }
}

//! Savepoints: a cut through all tasks while they run, from the last stage to the first, with what is in flight between.
//!
//! A task is cut at an epoch that it begins to commit after it was told: whoever can commit owns the task, so that what a
//! reader had read at its cut was committed by its writers before theirs. What lies between the stages from the reader's
//! position on, up to the writers' epochs, is in flight. Whether a savepoint is good is told by a naive model that goes on
//! from it: with what was written before the cut, its answer must be that of an undisturbed run.

use std::collections::BTreeSet;

use millrace_core::assignment::Cut;

use crate::broker::{Body, Broker, Topic, Tp};
use crate::driver::Env;
use crate::model::{self, Answer, BETWEEN, Row, SOURCES, TASKS};
use crate::mutant::Mutant;
use crate::volume::Local;

/// More would take long to judge.
const SAVEPOINTS_MAX: usize = 5;

/// What is told to workers: its number, and the stages that are to be cut by now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    pub id: u64,
    pub tasks: BTreeSet<usize>,
}

impl Told {
    pub fn stages(&self) -> BTreeSet<String> {
        self.tasks.iter().map(|task| model::task(*task).stage).collect()
    }

    /// As an assignment says it.
    pub fn read(cut: &Cut) -> Option<Self> {
        let tasks = (0..TASKS).filter(|task| cut.stages.contains(&model::task(*task).stage)).collect();
        Some(Self { id: cut.id.parse().ok()?, tasks })
    }
}

struct Savepoint {
    tasks: Vec<Local>,
    /// Per partition between the stages.
    in_flight: Vec<Vec<Row>>,
}

#[derive(Default)]
pub struct Savepoints {
    /// The attempt that is under way.
    pub told: Option<Told>,
    attempts: u64,
    cuts: [Option<Local>; TASKS],
    /// Up to where the records between the stages are read, once every task is cut.
    ends: Option<Vec<usize>>,
    done: Vec<Savepoint>,
}

impl Env {
    /// A task was cut. The first one of an attempt counts.
    pub fn cut(&mut self, id: u64, task: usize, local: &Local) {
        if self.savepoints.told.as_ref().is_some_and(|told| told.id == id) {
            let cut = self.savepoints.cuts[task].get_or_insert_with(|| local.clone());
            self.trace.line(format_args!("savepoint {id}: task {task} is cut in epoch {}", cut.epoch()));
        }
    }

    /// The next step of a savepoint, if there is one that can be made; true when workers are to be told of it.
    pub fn savepoint_step(&mut self) -> bool {
        let stages = match self.mutant {
            Some(Mutant::CutsFirstToLast) => [0..SOURCES, SOURCES..TASKS],
            _ => [SOURCES..TASKS, 0..SOURCES],
        };
        let Savepoints { told, attempts, cuts, .. } = &mut self.savepoints;
        // An attempt is lost with a worker whose cut was not stored.
        if told.is_none() || self.rng.per_mille(50) {
            *attempts += 1;
            *told = Some(Told { id: *attempts, tasks: stages[0].clone().collect() });
            (*cuts, self.savepoints.ends) = (Default::default(), None);
            return true;
        }
        let Some(told) = told.as_mut().filter(|told| told.tasks.iter().all(|task| cuts[*task].is_some())) else {
            return false;
        };
        if told.tasks.len() < TASKS {
            told.tasks.extend(stages[1].clone());
            return true;
        }
        self.store()
    }

    /// Writes the savepoint once what is in flight can be read whole: markers of the last epochs may be on their way.
    fn store(&mut self) -> bool {
        let between = |partition| Tp(Topic::Between, partition);
        let Savepoints { told, cuts, ends, done, .. } = &mut self.savepoints;
        let ends = ends.get_or_insert_with(|| (0..BETWEEN).map(|q| self.broker.end_of(between(q))).collect());
        let stable = (0..BETWEEN).all(|q| self.broker.stable_end(between(q)) >= ends[q]);
        if !stable && self.mutant != Some(Mutant::InFlightToTheStableEnd) {
            return false;
        }
        let tasks: Vec<Local> = cuts.iter().flatten().cloned().collect();
        *told = None;
        let kept = (0..BETWEEN).all(|q| self.broker.log_start(between(q)) <= tasks[SOURCES + q].marker.next);
        if kept || self.mutant == Some(Mutant::InFlightAsFarAsItIsThere) {
            let unfiltered = self.mutant == Some(Mutant::InFlightUnfiltered);
            let in_flight = (0..BETWEEN).map(|q| in_flight(&self.broker, &tasks, q, unfiltered)).collect();
            self.trace.line(format_args!("a savepoint with {in_flight:?} in flight"));
            done.push(Savepoint { tasks, in_flight });
            done.truncate(SAVEPOINTS_MAX);
        }
        true
    }

    /// Goes on from each savepoint; the first one that leads to another answer.
    pub fn wrong_savepoint(&self, sources: &[Vec<Row>], answer: &Answer) -> Option<usize> {
        self.savepoints.done.iter().position(|savepoint| savepoint.go_on(&self.broker, sources) != *answer)
    }
}

fn in_flight(broker: &Broker, tasks: &[Local], partition: usize, unfiltered: bool) -> Vec<Row> {
    let from = tasks[SOURCES + partition].marker.next;
    let before = |writer: usize, epoch| unfiltered || epoch <= tasks[writer].marker.epoch;
    let rows = broker.visible_from(Tp(Topic::Between, partition), from).into_iter();
    let row = |body| match body {
        Body::Row(row, Some((writer, epoch))) if before(writer, epoch) => Some(row),
        _ => None,
    };
    rows.filter_map(row).collect()
}

impl Savepoint {
    fn go_on(&self, broker: &Broker, sources: &[Vec<Row>]) -> Answer {
        let written = |tp| {
            let before = |body: Body| match body {
                Body::Row(row, Some((task, epoch))) if epoch <= self.tasks[task].marker.epoch => Some(row),
                _ => None,
            };
            broker.visible_from(tp, 0).into_iter().filter_map(before)
        };
        let mut answer = Answer {
            output: (0..BETWEEN).flat_map(|q| written(Tp(Topic::Out, q))).collect(),
            dead: written(Tp(Topic::Dead, 0)).map(|row| row.uid).collect(),
            states: self.tasks.iter().map(|task| task.state.clone()).collect(),
        };
        self.in_flight.iter().flatten().for_each(|row| answer.second_stage(row));
        for (partition, rows) in sources.iter().enumerate() {
            rows[self.tasks[partition].marker.next..].iter().for_each(|row| answer.first_stage(partition, row));
        }
        answer.sort();
        answer
    }
}

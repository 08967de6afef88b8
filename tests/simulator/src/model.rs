//! The pipeline that is run: two keyed stages whose output depends on their state, and the naive answer.
//!
//! Each key lives in one source partition and in one partition between the stages, so the order of a key's rows does not
//! depend on timing, and the naive model is a loop.

use std::collections::BTreeMap;

use millrace_core::ids::{Partition, TaskId};

use crate::rng::Rng;

pub const SOURCES: usize = 2;
pub const BETWEEN: usize = 2;
pub const TASKS: usize = SOURCES + BETWEEN;
const KEYS: u8 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    pub key: u8,
    /// Names the source row that this one comes from.
    pub uid: u16,
    pub value: u64,
    /// What the first stage makes of it is too large for the broker.
    pub poison: bool,
}

/// The state of a task: a value per key that depends on every row of the key, in order.
pub type State = BTreeMap<u8, u64>;

pub fn fold(state: u64, value: u64) -> u64 {
    state.wrapping_mul(31).wrapping_add(value).wrapping_add(7)
}

pub fn task(index: usize) -> TaskId {
    let (stage, partition) = if index < SOURCES { ("first", index) } else { ("second", index - SOURCES) };
    TaskId { stage: stage.to_owned(), partition: Partition(partition as i32) }
}

pub fn index(task: &TaskId) -> usize {
    task.partition.0 as usize + if task.stage == "first" { 0 } else { SOURCES }
}

/// The partition between the stages that a key goes to.
pub fn between(key: u8) -> usize {
    usize::from(key) / SOURCES % BETWEEN
}

/// The rows of each source partition.
pub fn sources(rng: &mut Rng, rows: usize, poison: u32) -> Vec<Vec<Row>> {
    let mut uid = 0;
    let mut row = |partition: usize| {
        uid += 1;
        let key = (rng.below(usize::from(KEYS) / SOURCES) * SOURCES + partition) as u8;
        Row { key, uid, value: rng.below(1000) as u64, poison: rng.per_mille(poison) }
    };
    (0..SOURCES).map(|partition| (0..rows).map(|_| row(partition)).collect()).collect()
}

/// What must be there at the end.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub output: Vec<Row>,
    pub dead: Vec<u16>,
    /// Per task.
    pub states: Vec<State>,
}

impl Answer {
    fn step(&mut self, task: usize, row: &Row) -> Row {
        let state = self.states[task].entry(row.key).or_default();
        *state = fold(*state, row.value);
        Row { value: *state, ..*row }
    }

    /// A row of a source partition.
    pub fn first_stage(&mut self, partition: usize, row: &Row) {
        if row.poison {
            self.dead.push(row.uid);
        } else {
            let middle = self.step(partition, row);
            self.second_stage(&middle);
        }
    }

    /// A row between the stages.
    pub fn second_stage(&mut self, row: &Row) {
        let out = self.step(SOURCES + between(row.key), row);
        self.output.push(out);
    }

    pub fn sort(&mut self) {
        self.output.sort_unstable();
        self.dead.sort_unstable();
    }
}

pub fn answer(sources: &[Vec<Row>]) -> Answer {
    let mut answer = Answer { output: Vec::new(), dead: Vec::new(), states: vec![State::new(); TASKS] };
    for (partition, rows) in sources.iter().enumerate() {
        rows.iter().for_each(|row| answer.first_stage(partition, row));
    }
    answer.sort();
    answer
}

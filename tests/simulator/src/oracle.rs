//! What must be true: at each commit ([`Audit`]) and at the end ([`judge`]).

use std::collections::BTreeMap;
use std::fmt;

use millrace_core::control::LaneId;

use crate::broker::{Body, Broker, Marker, Topic, Tp};
use crate::model::{Answer, BETWEEN, Row, State, TASKS};

/// Something that must never be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// I1: a local state is ahead of its changelog, or is not what the changelog says.
    LocalState {
        task: usize,
        epoch: u64,
    },
    /// I2: a row was committed without its task's marker.
    OutputWithoutMarker {
        task: usize,
    },
    /// I5: an epoch was committed that does not follow the last one: two lanes ran the task, or one forgot.
    NotTheNextEpoch {
        lane: LaneId,
        last: Marker,
        committed: Marker,
    },
    /// The answer is not the naive model's.
    Output {
        missing: usize,
        surplus: usize,
        wrong: usize,
    },
    DeadLetters {
        missing: usize,
        surplus: usize,
    },
    State {
        task: usize,
    },
    /// The search for the row that cannot be committed found one that can.
    GoodRowGivenUp {
        task: usize,
    },
    /// A damaged changelog was continued.
    NotRefused {
        task: usize,
    },
    /// It did not come to an end although all faults had stopped.
    Stuck {
        at: String,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Looks at every commit when it is decided.
#[derive(Default)]
pub struct Audit {
    last: BTreeMap<usize, Marker>,
    pub violation: Option<Violation>,
}

impl Audit {
    /// The last committed marker of a task.
    pub fn last(&self, task: usize) -> Marker {
        let new = Marker { task, epoch: 0, generation: 0, from: 0, next: 0 };
        self.last.get(&task).copied().unwrap_or(new)
    }

    pub fn committed(&mut self, lane: LaneId, records: &[(Tp, Body)]) {
        let markers: Vec<Marker> =
            records.iter().filter_map(|(_, body)| if let Body::Marker(m) = body { Some(*m) } else { None }).collect();
        for (_, body) in records {
            if let Body::Row(_, Some((task, epoch))) = body
                && !markers.iter().any(|m| m.task == *task && m.epoch == *epoch)
            {
                self.report(Violation::OutputWithoutMarker { task: *task });
            }
        }
        for committed in markers {
            let last = self.last(committed.task);
            let follows = committed.epoch == last.epoch + 1 && committed.from == last.next;
            if !follows || committed.generation < last.generation {
                self.report(Violation::NotTheNextEpoch { lane, last, committed });
            }
            self.last.insert(committed.task, committed);
        }
    }

    pub fn report(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }
}

/// The state that a changelog says, up to and with an epoch.
pub fn replay(broker: &Broker, task: usize, to: u64) -> Option<State> {
    let (mut state, mut open) = (State::new(), State::new());
    let mut epoch = 0;
    for body in broker.visible(Tp(Topic::Changelog, task)) {
        if epoch == to {
            break;
        }
        match body {
            Body::State(key, value) => drop(open.insert(key, value)),
            Body::Marker(marker) => {
                state.append(&mut open);
                epoch = marker.epoch;
            }
            Body::Row(..) | Body::Control => {}
        }
    }
    (epoch == to).then_some(state)
}

fn rows(bodies: Vec<Body>) -> Vec<Row> {
    bodies.into_iter().filter_map(|body| if let Body::Row(row, _) = body { Some(row) } else { None }).collect()
}

pub fn output(broker: &Broker) -> Vec<Row> {
    let mut found: Vec<Row> = (0..BETWEEN).flat_map(|q| rows(broker.visible(Tp(Topic::Out, q)))).collect();
    found.sort_unstable();
    found
}

/// Compares what was written with the naive answer. `complete`: nothing may be missing either.
pub fn judge(broker: &Broker, answer: &Answer, complete: bool) -> Option<Violation> {
    let found = output(broker);
    let surplus = found.windows(2).filter(|pair| pair[0].uid == pair[1].uid).count();
    let missing = answer.output.iter().filter(|row| found.iter().all(|other| other.uid != row.uid)).count();
    let wrong = found.iter().filter(|row| answer.output.binary_search(row).is_err()).count();
    if surplus + wrong > 0 || complete && missing > 0 {
        return Some(Violation::Output { missing, surplus, wrong });
    }
    let mut dead: Vec<u16> = rows(broker.visible(Tp(Topic::Dead, 0))).iter().map(|row| row.uid).collect();
    dead.sort_unstable();
    let surplus =
        dead.iter().enumerate().filter(|(i, uid)| dead[..*i].contains(uid) || !answer.dead.contains(uid)).count();
    let missing = answer.dead.iter().filter(|uid| !dead.contains(uid)).count();
    if surplus > 0 || complete && missing > 0 {
        return Some(Violation::DeadLetters { missing, surplus });
    }
    let wrong =
        |task: &usize| replay(broker, *task, broker.audit.last(*task).epoch).as_ref() != Some(&answer.states[*task]);
    let task = (0..TASKS).find(|task| complete && wrong(task))?;
    Some(Violation::State { task })
}

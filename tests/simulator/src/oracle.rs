//! What must be true: at each commit ([`Audit`]) and at the end ([`judge`]).

use millrace_core::control::LaneId;

use crate::broker::{Body, Broker, Marker, Topic, Tp};
use crate::model::{Answer, BETWEEN, Row, State, TASKS};
use crate::volume::Local;

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
    /// A task that ran was moved to a worker that was not ready for it.
    MovedCold {
        task: usize,
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
    /// A task could not be restored, although enough of it was left.
    Refused {
        task: usize,
        why: String,
    },
    /// Who goes on from a savepoint comes to another answer.
    Savepoint {
        number: usize,
    },
    /// A changelog was trimmed so far that one damaged snapshot would be the end of a state.
    Unprotected {
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

/// Looks at every commit when it is decided.
#[derive(Default)]
pub struct Audit {
    /// The states of each task, by epoch.
    history: [Vec<(Marker, State)>; TASKS],
    /// A task whose changelog has lost what was committed.
    pub lost: Option<usize>,
    pub violation: Option<Violation>,
}

impl Audit {
    /// The last committed marker of a task.
    pub fn last(&self, task: usize) -> Marker {
        let new = Marker { task, ..Marker::default() };
        self.history[task].last().map_or(new, |(marker, _)| *marker)
    }

    fn last_state(&self, task: usize) -> &State {
        self.history[task].last().map_or(const { &State::new() }, |(_, state)| state)
    }

    /// The state of a task in an epoch that was committed.
    fn state(&self, task: usize, epoch: u64) -> Option<&State> {
        match epoch.checked_sub(1) {
            None => Some(const { &State::new() }),
            Some(at) => self.history[task].get(at as usize).map(|(_, state)| state),
        }
    }

    pub fn lose(&mut self, task: usize, epoch: u64) {
        self.history[task].truncate(epoch as usize);
        self.lost = Some(task);
    }

    /// I1: what is kept of a state is that of an epoch that was committed, and may be lost by now.
    pub fn check_kept(&mut self, task: usize, local: &Local) {
        if self.lost != Some(task) {
            self.check(task, local);
        }
    }

    /// I1: a local state is that of an epoch that was committed.
    pub fn check(&mut self, task: usize, local: &Local) {
        if self.state(task, local.marker.epoch) != Some(&local.state) {
            self.report(Violation::LocalState { task, epoch: local.marker.epoch });
        }
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
            let own = records.iter().filter(|(tp, _)| *tp == Tp(Topic::Changelog, committed.task));
            let changes = own.filter_map(|(_, body)| if let Body::State(k, v) = body { Some((*k, *v)) } else { None });
            let mut state = self.last_state(committed.task).clone();
            state.extend(changes);
            self.history[committed.task].push((committed, state));
        }
    }

    pub fn report(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }
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
    let mut found = output(broker);
    // What a changelog has lost is done again.
    if broker.audit.lost.is_some() {
        found.dedup();
    }
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
    let wrong = surplus > 0 || complete && missing > 0;
    wrong.then_some(Violation::DeadLetters { missing, surplus })
}

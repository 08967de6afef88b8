//! A worker's disk with a RocksDB per task, and the restorers that bring states level beside the lanes.
//!
//! A state is open at one place at a time: with the restorers, while it is about to move here or a lane waits for it, or
//! with the lane that has taken it. There is no log of its own: a crash leaves what was written out last, which closing
//! does too.

use millrace_core::ids::Epoch;

use crate::broker::{Body, Broker, Marker, Topic, Tp};
use crate::driver::Env;
use crate::model::{State, TASKS};
use crate::mutant::Mutant;
use crate::oracle::Violation;
use crate::storage::reaches;

/// Epochs that a restorer reads before others get their turn.
const SLICE: usize = 3;

/// A task's state, as of a marker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Local {
    pub state: State,
    pub marker: Marker,
    /// The changelog offset behind the marker.
    pub read: usize,
}

impl Local {
    pub fn epoch(&self) -> Epoch {
        Epoch(self.marker.epoch)
    }

    /// Takes what an epoch has changed.
    pub fn extend(&mut self, changes: &State, marker: Marker, read: usize) {
        self.state.extend(changes);
        (self.marker, self.read) = (marker, read);
    }

    /// Brings the state forward by some epochs; true when the end was reached. What follows the last marker was never
    /// committed.
    pub fn replay(&mut self, broker: &Broker, task: usize, epochs: usize) -> bool {
        self.replay_by(task, epochs, |tp, from| broker.fetch(tp, from))
    }

    fn replay_by(&mut self, task: usize, epochs: usize, fetch: impl Fn(Tp, usize) -> Option<(usize, Body)>) -> bool {
        let (mut next, mut open) = (self.read, State::new());
        for _ in 0..epochs {
            loop {
                let Some((at, body)) = fetch(Tp(Topic::Changelog, task), next) else { return true };
                next = at + 1;
                match body {
                    Body::State(key, value) => drop(open.insert(key, value)),
                    Body::Marker(marker) => {
                        self.extend(&open, marker, next);
                        open.clear();
                        break;
                    }
                    Body::Row(..) | Body::Control => {}
                }
            }
        }
        false
    }
}

#[derive(Clone, Default)]
pub struct Db {
    /// What is seen of it while it is open.
    pub local: Local,
    /// What a crash leaves.
    pub flushed: Local,
    /// The lane that has it open.
    pub lane: Option<u32>,
    /// It is about to move here.
    warm: bool,
    /// A lane has claimed it, and waits for it.
    claimed: bool,
    /// The last reading came to the end.
    level: bool,
}

impl Db {
    fn wanted(&self) -> bool {
        self.warm || self.claimed
    }
}

#[derive(Clone)]
pub struct Volume {
    pub dbs: Vec<Db>,
}

impl Volume {
    pub fn empty() -> Self {
        Self { dbs: vec![Db::default(); TASKS] }
    }

    /// What the next process finds after this one has crashed.
    pub fn left(&self) -> Self {
        let db = |db: &Db| Db { local: db.flushed.clone(), flushed: db.flushed.clone(), ..Db::default() };
        Self { dbs: self.dbs.iter().map(db).collect() }
    }

    /// True for a task that is about to move here and whose state was read to the end of its changelog.
    pub fn is_level(&self, task: usize) -> bool {
        self.dbs[task].warm && self.dbs[task].level
    }

    /// The tasks whose states the restorers can read on; `lame`: only those that a lane waits for.
    pub fn restored(&self, lame: bool) -> Vec<usize> {
        let read = |db: &Db| db.lane.is_none() && (db.claimed || db.warm && !lame);
        (0..TASKS).filter(|task| read(&self.dbs[*task])).collect()
    }
}

/// What is done to the volume of one process.
impl Env {
    /// Keeps the states of `warm` level. Of the worker's `own` tasks those stay that are, until a lane takes them.
    pub fn follow(&mut self, process: usize, warm: &[usize], own: &[usize]) {
        for task in 0..TASKS {
            let db = &mut self.volumes[process].dbs[task];
            let before = db.wanted();
            db.warm = warm.contains(&task) || db.warm && own.contains(&task);
            if before && !db.wanted() {
                self.shut(process, task);
            }
        }
    }

    /// True when the lane has the state now. Else it is brought level first, or another lane has it open.
    pub fn take(&mut self, process: usize, task: usize, lane: u32) -> bool {
        let db = &mut self.volumes[process].dbs[task];
        match db.lane {
            Some(holder) => holder == lane,
            None if db.claimed && db.level => {
                *db = Db { lane: Some(lane), warm: false, claimed: false, level: false, ..db.clone() };
                true
            }
            None => {
                // Level was said of a changelog that somebody wrote to: it is looked at again.
                db.level &= db.claimed;
                db.claimed = true;
                false
            }
        }
    }

    /// A lane does not have the state any more, nor wait for it.
    pub fn close(&mut self, process: usize, task: usize, lane: u32) {
        let db = &mut self.volumes[process].dbs[task];
        let held = db.lane.take_if(|holder| *holder == lane).is_some();
        let waited = db.lane.is_none() && std::mem::take(&mut db.claimed);
        if held || waited && !db.warm {
            self.shut(process, task);
        }
    }

    /// A state that is not a part of its changelog's history. None ever is, as long as the brokers keep what they have
    /// acknowledged.
    pub fn discard(&mut self, process: usize, task: usize) {
        if self.broker.audit.lost != Some(task) {
            let epoch = self.volumes[process].dbs[task].local.marker.epoch;
            self.broker.audit.report(Violation::LocalState { task, epoch });
        }
        self.rebuild(process, task);
    }

    /// Begins anew, with a snapshot if there is one.
    fn rebuild(&mut self, process: usize, task: usize) {
        let base = self.storage.base(&self.broker, task, self.mutant);
        self.trace.line(format_args!("process {process:x} rebuilds {task} from epoch {}", base.epoch()));
        let db = &mut self.volumes[process].dbs[task];
        (db.flushed, db.local) = (base.clone(), base);
    }

    /// Puts another state in the place of one that cannot be brought level.
    pub fn choose(&mut self, process: usize, task: usize) {
        let local = &self.volumes[process].dbs[task].local;
        if reaches(&self.broker, task, local, self.mutant) {
            return;
        }
        match local.read < self.broker.log_start(Tp(Topic::Changelog, task)) {
            true => self.rebuild(process, task),
            false => self.discard(process, task),
        }
    }

    fn shut(&mut self, process: usize, task: usize) {
        self.flush(process, task);
        self.volumes[process].dbs[task].level = false;
    }

    /// Writes out what is in memory: state and marker at once.
    pub fn flush(&mut self, process: usize, task: usize) {
        let db = &mut self.volumes[process].dbs[task];
        if self.mutant == Some(Mutant::FlushesMarkerFirst) && db.lane.is_some() {
            (db.flushed.marker, db.flushed.read) = (db.local.marker, db.local.read);
        } else {
            db.flushed = db.local.clone();
        }
        self.broker.audit.check_kept(task, &self.volumes[process].dbs[task].local);
    }

    /// A restorer reads a slice of a changelog that somebody else writes to, or did. It is a head start, and decides
    /// nothing.
    pub fn restore_slice(&mut self, process: usize, task: usize) {
        let tp = Tp(Topic::Changelog, task);
        // A marker of ours may be on its way; only who owns the task can tell that it will never come.
        let ahead = self.volumes[process].dbs[task].local.read > self.broker.stable_end(tp);
        if ahead && self.mutant == Some(Mutant::RestorerConcludes) {
            self.discard(process, task);
            return;
        }
        if !ahead {
            self.choose(process, task);
        }
        let (db, broker) = (&mut self.volumes[process].dbs[task], &self.broker);
        // What can be done then is for the owner to find out.
        let lost = !ahead && !reaches(broker, task, &db.local, self.mutant);
        db.level = match self.mutant {
            Some(Mutant::FollowsUncommitted) => {
                db.local.replay_by(task, SLICE, |tp, from| broker.fetch_uncommitted(tp, from))
            }
            _ => ahead || lost || db.local.replay(broker, task, SLICE),
        };
        let (epoch, level) = (db.local.marker.epoch, db.level);
        self.trace.line(format_args!("process {process:x} follows {task} to epoch {epoch}, level: {level}"));
    }
}

//! Processes, their platform, the operator, and everything that can happen to them.

use std::collections::BTreeSet;
use std::mem;

use millrace_core::assignment::{Cut, Placement};
use millrace_core::control::{Change, Created, LaneId, Record};
use millrace_core::ids::{Epoch, Generation, Offset, TaskId, Timeline};
use millrace_core::ownership::{Event, ExitReason};
use millrace_core::report::TaskState;

use crate::broker::{Broker, Topic, Tp};
use crate::control_topic::ControlTopic;
use crate::driver::{CHANGELOG, Env, SimLane};
use crate::model::{self, Answer, Row, SOURCES, State, TASKS};
use crate::mutant::Mutant;
use crate::operator::{Operator, Workers, placed};
use crate::oracle::{self, Violation};
use crate::rng::Rng;
use crate::savepoint::{Savepoints, Told};
use crate::storage::Storage;
use crate::trace::{Run, Trace};
use crate::volume::Volume;
use crate::weather::{Climate, Happening as H, Pace, Weather};

/// Steps with faults; the shorter worlds end with most of the work still to do.
const CHAOS: usize = 2500;
/// Steps without new faults in which everything must come to an end: about fifty times what it takes.
const CALM_MAX: usize = 8_000;
/// Most of what is drawn cannot happen just now; this often something else is drawn.
const TRIES: usize = 10;
/// Processes beyond one per worker that live at a time.
const TWINS_MAX: usize = 2;
/// Steps after the end, in which whoever still believes to own something has the chance to show it.
const SETTLE: usize = 300;

struct Process {
    at: usize,
    worker: u32,
    lanes: Vec<SimLane>,
    alive: bool,
    pace: Pace,
    /// The assignment that it has taken up.
    heard: Generation,
}

/// How the last quiet phase begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Plain,
    /// All processes are down when the changelog topic is deleted and made again.
    ChangelogRecreated,
    /// All processes and their disks are gone when a changelog partition is cut off.
    ChangelogTruncated(usize),
}

struct World {
    env: Env,
    processes: Vec<Process>,
    workers: u32,
    lanes: u32,
    operator: Operator,
    /// Tasks move when their next owners are level; else at once, whatever comes of it.
    patient: bool,
    /// When brokers lose the end of a changelog that they had acknowledged.
    loss_at: Option<usize>,
    /// Workers that have not learnt to leave alone what a savepoint needs.
    heedless: bool,
    /// A worker where no state that is to be warm ever gets level.
    lame: Option<u32>,
    weather: Weather,
    lives: u64,
    climate: Climate,
    calm: bool,
}

/// Runs one seed; `record` keeps the lines of the trace.
pub fn run(seed: u64, mutant: Option<Mutant>, record: bool) -> Run<Violation> {
    let mut rng = Rng::new(seed);
    let rows = 10 + rng.below(110);
    let climate = Climate::ALL[seed as usize % Climate::ALL.len()];
    let aborts = rng.per_mille(if climate == Climate::Twins { 200 } else { 500 });
    let poison = if aborts && rng.per_mille(500) { 60 } else { 0 };
    let sources = model::sources(&mut rng, rows, poison);
    let answer = model::answer(&sources);
    let mut world = World::new(climate, aborts, rng, &sources, Trace::new(record), mutant);
    let violation = world.live(&sources, &answer);
    world.env.trace.finish(violation)
}

impl World {
    fn new(
        climate: Climate,
        aborts: bool,
        mut rng: Rng,
        sources: &[Vec<Row>],
        trace: Trace,
        mutant: Option<Mutant>,
    ) -> Self {
        let weather = Weather::of(climate, &mut rng);
        let (workers, lanes) = match climate {
            Climate::Mixed => (2 + rng.below(2) as u32, 1 + rng.below(2) as u32),
            Climate::Twins => (2, 1),
            Climate::Force | Climate::SlowMarkers => (3, 1),
            Climate::Rescale => (3, 1 + rng.below(2) as u32),
        };
        let mut control = ControlTopic::default();
        let created = Created { topic_id: "1".into(), partitions: TASKS as i32, begun: TASKS as i32 };
        control.append((0, 0), 1, Change::Put(Record::Created { topic: CHANGELOG.into(), created }));
        let work = [150, 400, 1000][rng.below(3)];
        let mut chance = |max| {
            if climate == Climate::Mixed && rng.per_mille(500) { rng.below(max) as u32 } else { 0 }
        };
        let (unknown, disk_full) = (chance(300), chance(100));
        let mishap = if aborts { rng.below(400) as u32 } else { 0 };
        let close = 50 + rng.below(400) as u32;
        let slow_fence = if climate == Climate::Force { 990 } else { [0, 900, 990, 998][rng.below(4)] };
        let slow_birth = if climate == Climate::Force { 0 } else { [0, 0, 900, 990][rng.below(4)] };
        let (broker, late) = (Broker::new(sources), Vec::new());
        let env = Env {
            broker,
            control,
            volumes: Vec::new(),
            storage: Storage::default(),
            savepoints: Savepoints::default(),
            damaged: [false; TASKS],
            rng,
            trace,
            mutant,
            unknown,
            disk_full,
            mishap,
            aborts,
            work,
            close,
            slow_fence,
            slow_birth,
            late,
        };
        let mut world = Self {
            env,
            processes: Vec::new(),
            workers,
            lanes,
            operator: Operator::default(),
            patient: false,
            loss_at: None,
            heedless: false,
            lame: None,
            weather,
            lives: 0,
            climate,
            calm: false,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        self.edit();
        self.patient = match self.climate {
            Climate::Rescale => true,
            Climate::Mixed | Climate::SlowMarkers => self.env.rng.per_mille(500),
            Climate::Twins | Climate::Force => false,
        };
        let loses = matches!(self.climate, Climate::Mixed | Climate::Rescale) && self.env.rng.per_mille(400);
        self.loss_at = loses.then(|| self.env.rng.below(CHAOS / 2));
        self.heedless = self.env.rng.per_mille(300);
        self.lame = self.env.rng.per_mille(100).then(|| self.env.rng.below(self.workers as usize) as u32);
        self.env.broker.slow =
            Some(self.any_lane()).filter(|_| matches!(self.climate, Climate::Mixed | Climate::SlowMarkers));
        let twice = self.env.rng.per_mille(300) && self.climate != Climate::Force || self.climate == Climate::Twins;
        (0..self.workers << u32::from(twice)).for_each(|at| self.start(at % self.workers, None));
    }

    fn live(&mut self, sources: &[Vec<Row>], answer: &Answer) -> Option<Violation> {
        for step in 0..CHAOS {
            self.happen();
            if self.loss_at == Some(step) {
                self.lose();
            }
            if step % 50 == 0 {
                self.keep_workers_up();
            }
            if let Some(violation) = self.env.broker.violation() {
                return Some(violation.clone());
            }
        }
        let ending = match self.env.rng.below(12) {
            0 => Ending::ChangelogRecreated,
            1 => Ending::ChangelogTruncated(self.env.rng.below(TASKS)),
            _ => Ending::Plain,
        };
        self.calm(ending);
        self.come_to_an_end(sources, answer)
    }

    /// From here on nothing goes wrong any more, and what is there must find to the end by itself.
    fn calm(&mut self, ending: Ending) {
        self.calm = true;
        self.env.trace.line(format_args!("calm: {ending:?}"));
        self.weather = Weather::calm();
        (self.env.unknown, self.env.disk_full, self.env.mishap) = (0, 0, 0);
        (self.env.work, self.env.close, self.env.slow_fence, self.env.slow_birth) = (1000, 50, 0, 0);
        self.env.broker.slow = None;
        self.processes.iter_mut().for_each(|process| process.pace = Pace::EVEN);
        if ending != Ending::Plain {
            (0..self.processes.len()).for_each(|at| self.crash(at));
            while self.env.broker.deliver_marker(&mut self.env.rng) {}
        }
        match ending {
            Ending::Plain => {}
            Ending::ChangelogRecreated => {
                self.env.broker.recreate_changelog();
                self.env.damaged = [true; TASKS];
            }
            // One that was empty loses nothing, nor does one with a snapshot at its very end.
            Ending::ChangelogTruncated(task) => {
                self.env.broker.truncate_changelog(task);
                let cut_off = self.env.broker.log_start(Tp(Topic::Changelog, task)) > 0;
                let base = self.env.storage.base(&self.env.broker, task, None);
                self.env.damaged[task] = cut_off && base.epoch() == Epoch(0);
            }
        }
        if ending != Ending::Plain {
            (0..self.workers).for_each(|worker| self.start(worker, None));
        }
        self.edit();
    }

    fn come_to_an_end(&mut self, sources: &[Vec<Row>], answer: &Answer) -> Option<Violation> {
        let before: Vec<u64> = (0..TASKS).map(|task| self.env.broker.audit.last(task).epoch).collect();
        let mut settling = None;
        for step in 0..CALM_MAX {
            self.happen();
            if let Some(violation) = self.env.broker.violation() {
                return Some(violation.clone());
            }
            if step % 20 == 0 {
                self.keep_workers_up();
                let ended = self.ended();
                settling = if ended { settling.or(Some(step)) } else { None };
            }
            if settling.is_some_and(|since| step >= since + SETTLE) {
                return self.verdict(&before, sources, answer);
            }
        }
        let epochs: Vec<_> = (0..TASKS).map(|task| self.env.broker.audit.last(task)).collect();
        Some(Violation::Stuck { at: format!("{epochs:?}") })
    }

    /// Every task has read all there is, or has been refused by whoever should run it.
    fn ended(&self) -> bool {
        let broker = &self.env.broker;
        let alive = || self.processes.iter().filter(|process| process.alive).flat_map(|process| &process.lanes);
        let refused = |task: &usize| alive().any(|lane| lane.refused.contains(task));
        let level = |task: &usize| {
            let input = if *task < SOURCES { Tp(Topic::Source, *task) } else { Tp(Topic::Between, *task - SOURCES) };
            broker.fetch(input, broker.audit.last(*task).next).is_none()
                && alive().any(|l| l.runs().any(|t| t == *task))
        };
        let done = |task: usize| if self.env.damaged[task] { refused(&task) } else { level(&task) };
        broker.quiet() && alive().all(SimLane::idle) && (0..TASKS).all(|task| done(task) && self.is_placed(task))
    }

    /// The task lies where it shall, or its next owner does not get level.
    fn is_placed(&self, task: usize) -> bool {
        let goal = self.operator.goal[task];
        self.lame == Some(goal.worker)
            || self.operator.lies(task).is_some_and(|p| (p.worker, p.lane) == (goal.worker, goal.lane))
    }

    fn verdict(&mut self, before: &[u64], sources: &[Vec<Row>], answer: &Answer) -> Option<Violation> {
        for process in self.processes.iter().filter(|process| process.alive) {
            for (task, db) in self.env.volumes[process.at].dbs.iter().enumerate() {
                self.env.broker.audit.check_kept(task, &db.local);
                self.env.broker.audit.check_kept(task, &db.flushed);
            }
        }
        let broker = &self.env.broker;
        let damaged = |task: &usize| self.env.damaged[*task];
        let not_refused = (0..TASKS).filter(damaged).find(|task| broker.audit.last(*task).epoch != before[*task]);
        if let Some(task) = not_refused {
            return Some(Violation::NotRefused { task });
        }
        let complete = !(0..TASKS).any(|task| damaged(&task));
        let wrong_state = || (0..TASKS).find(|task| complete && self.rebuilt(*task) != answer.states[*task]);
        let judged = oracle::judge(broker, answer, complete).or_else(|| broker.violation().cloned());
        let wrong_savepoint = || self.env.wrong_savepoint(sources, answer);
        let judged = judged.or_else(|| wrong_savepoint().map(|number| Violation::Savepoint { number }));
        judged.or_else(|| wrong_state().map(|task| Violation::State { task }))
    }

    /// What is left of a state when all disks are gone.
    fn rebuilt(&self, task: usize) -> State {
        let mut local = self.env.storage.base(&self.env.broker, task, self.env.mutant);
        local.replay(&self.env.broker, task, usize::MAX);
        local.state
    }

    fn happen(&mut self) {
        let before = self.env.trace.lines();
        for _ in 0..TRIES {
            self.try_one();
            if self.env.trace.lines() != before {
                break;
            }
        }
        self.env.trace.next_step();
    }

    fn try_one(&mut self) {
        let happening = self.weather.draw(&mut self.env.rng);
        let process = self.pick(|process| process.alive);
        match (happening, process) {
            (H::Step, _) => self.step(),
            (H::AppendLands, _) => self.land_append(false),
            (H::AppendRepeated, _) => self.land_append(true),
            (H::MarkerLands, _) => drop(self.env.broker.deliver_marker(&mut self.env.rng)),
            (H::TimerFires, Some(at)) => self.fire_timer(at),
            (H::AssignmentArrives, Some(at)) => self.tell_assignment(at),
            (H::Edit, _) => self.edit(),
            (H::OperatorLooks, _) if self.patient => self.operator_looks(),
            (H::OperatorWrites, _) => self.operator_writes(),
            (H::Restore, _) => self.restore(),
            (H::Flush, Some(at)) => {
                let task = self.env.rng.below(TASKS);
                self.env.flush(at, task);
            }
            (H::Checkpoint, Some(at)) => {
                let task = self.env.rng.below(TASKS);
                if self.processes[at].lanes.iter().any(|lane| lane.runs().any(|running| running == task)) {
                    self.env.checkpoint(at, task);
                }
            }
            (H::Upload, _) => self.env.upload(),
            // What brokers have lost is read again.
            (H::SavepointStep | H::TrimBetween, _) if self.loss_at.is_some() => {}
            (H::SavepointStep, _) => self.savepoint_step(),
            (H::TrimBetween, Some(at)) => {
                let lanes = self.processes[at].lanes.iter();
                lanes.for_each(|lane| lane.trim_between(&mut self.env, self.heedless));
            }
            (H::DamageSnapshot, _) => {
                let task = self.env.rng.below(TASKS);
                self.env.damage(task);
            }
            (H::LateRequestLands, _) => self.land_late_request(),
            (H::Crash, Some(at)) => {
                self.crash(at);
                self.replace(at);
            }
            (H::Twin, Some(at)) if self.alive() < TWINS_MAX + self.workers as usize => self.replace(at),
            (H::PaceChanges, Some(at)) => self.processes[at].pace = Pace::any(self.climate, &mut self.env.rng),
            (H::TransactionTimesOut, _) => self.time_out(),
            (H::GroupOffsetChanges, _) => {
                let (task, to) = (self.env.rng.below(TASKS), self.env.rng.below(20));
                self.env.broker.reset_offset(task, to);
            }
            (H::Compact, Some(at)) => {
                let lanes = self.processes[at].lanes.iter_mut().filter(|lane| !lane.compacts());
                lanes.for_each(|lane| lane.tell(Event::Compact));
            }
            (H::Clean, _) => self.env.control.clean(&mut self.env.rng),
            (H::Leave, Some(at)) => self.processes[at].lanes.iter_mut().for_each(|lane| lane.tell(Event::Leave)),
            _ => {}
        }
    }

    /// Transactions of processes that are gone always time out in the end, the others now and then. One of a single row
    /// never takes that long, or the search for the row that cannot be committed would find one that can.
    fn time_out(&mut self) {
        let id = self.any_lane();
        let Some((epoch, rows)) = self.env.broker.writer(id) else { return };
        let alive = self.processes.iter().filter(|process| process.alive).flat_map(|process| &process.lanes);
        let abandoned = !alive.into_iter().any(|lane| lane.core.id() == id && lane.producer == Some(epoch));
        if abandoned || rows > 1 && !self.calm {
            self.env.trace.line(format_args!("the transaction of {id} times out"));
            self.env.broker.time_out(id);
        }
    }

    fn alive(&self) -> usize {
        self.processes.iter().filter(|process| process.alive).count()
    }

    fn pick(&mut self, which: impl Fn(&Process) -> bool) -> Option<usize> {
        self.pick_paced(|process| u32::from(which(process)))
    }

    fn pick_paced(&mut self, pace: impl Fn(&Process) -> u32) -> Option<usize> {
        let paces = self.processes.iter().map(&pace);
        if paces.clone().all(|pace| pace == 0) { None } else { Some(self.env.rng.weighted(paces)) }
    }

    fn step(&mut self) {
        let alive = |process: &Process| if process.alive { process.pace.steps } else { 0 };
        let Some(at) = self.pick_paced(alive) else { return };
        let process = &mut self.processes[at];
        let lane = self.env.rng.below(process.lanes.len());
        process.lanes[lane].step(&mut self.env, process.pace.follows);
        // A process that sees a newer incarnation of one of its lanes ends whole.
        let replaced = process.lanes[lane].exited == Some(ExitReason::NewerIncarnation);
        if replaced || process.lanes.iter().all(|lane| lane.exited.is_some()) {
            self.crash(at);
        }
    }

    fn crash(&mut self, at: usize) {
        let (process, env) = (&mut self.processes[at], &mut self.env);
        if !mem::replace(&mut process.alive, false) {
            return;
        }
        env.trace.line(format_args!("process {at:x} ends"));
        env.storage.forget(at);
        for lane in &mut process.lanes {
            lane.crash(env);
            if env.rng.per_mille(500) {
                lane.outbox.clear();
            }
        }
    }

    /// All processes end, and the changelog of a task that writes to the outside loses epochs that were acknowledged. What
    /// those have written is there already, and will be there once more. A release that names one would be waited for.
    fn lose(&mut self) {
        let task = SOURCES + self.env.rng.below(TASKS - SOURCES);
        let there: Vec<usize> = (0..self.processes.len()).filter(|at| self.processes[*at].alive).collect();
        there.iter().for_each(|at| self.crash(*at));
        self.env.late.clear();
        self.processes.iter_mut().flat_map(|process| &mut process.lanes).for_each(|lane| lane.outbox.clear());
        self.env.broker.settle(&mut self.env.rng);
        self.env.storage.mend();
        let released = |(_, change): &(Offset, Change)| match change {
            Change::Put(Record::Release { id, last_epoch }) if id.task == model::task(task) => Some(last_epoch.0),
            _ => None,
        };
        let entries = self.env.control.read(Offset(0), self.env.control.end());
        let least = entries.iter().filter_map(released).max().unwrap_or_default();
        self.env.broker.lose_tail(task, least, &mut self.env.rng);
        self.env.trace.line(format_args!("task {task} is back in epoch {}", self.env.broker.audit.last(task).epoch));
        there.into_iter().for_each(|at| self.replace(at));
    }

    /// Starts a process in the place of another, on its volume or on an empty one.
    fn replace(&mut self, at: usize) {
        let kept = if self.climate == Climate::Rescale { 500 } else { 700 };
        let keeps_volume = !self.processes[at].alive && self.env.rng.per_mille(kept);
        self.start(self.processes[at].worker, keeps_volume.then_some(at));
    }

    fn start(&mut self, worker: u32, volume_of: Option<usize>) {
        let at = self.processes.len();
        let lane = |lane: u32| {
            let id = LaneId { timeline: Timeline(1), worker, lane };
            SimLane::new(id, self.lives, at, self.env.mutant)
        };
        let lanes = (0..self.lanes).map(lane).collect();
        let volume = volume_of.map_or_else(Volume::empty, |old| self.env.volumes[old].left());
        self.env.volumes.push(volume);
        self.lives += 1;
        self.env.trace.line(format_args!("process {at:x} is worker {worker}, volume of {volume_of:x?}"));
        self.processes.push(Process { at, worker, lanes, alive: true, pace: Pace::EVEN, heard: Generation(0) });
        self.tell_assignment(at);
        if !self.calm {
            self.processes[at].pace = Pace::any(self.climate, &mut self.env.rng);
        }
    }

    fn keep_workers_up(&mut self) {
        for worker in 0..self.workers {
            if !self.processes.iter().any(|process| process.alive && process.worker == worker) {
                self.start(worker, None);
            }
        }
    }

    /// Somebody moves a task, spreads the tasks of a lane over all lanes, or gathers all tasks on one.
    fn edit(&mut self) {
        let to = self.any_lane();
        let mut lanes = mem::take(&mut self.operator.goal);
        lanes.resize(TASKS, to);
        let (moved, kind) = (self.env.rng.below(TASKS), self.env.rng.below(5));
        let from = lanes[moved];
        for (task, lane) in lanes.iter_mut().enumerate() {
            match kind {
                0 | 1 if *lane == from => *lane = self.any_lane(),
                2 => *lane = to,
                _ if task == moved => *lane = to,
                _ => {}
            }
        }
        self.env.trace.line(format_args!("goal: {lanes:?}"));
        self.operator.goal = lanes;
        if !self.patient {
            self.operator.force();
        }
    }

    fn savepoint_step(&mut self) {
        if self.env.savepoint_step() {
            let told = self.env.savepoints.told.as_ref();
            let cut = told.map(|told| Cut { id: told.id.to_string(), stages: told.stages() });
            self.env.trace.line(format_args!("assignment: {cut:?}"));
            self.operator.tell(cut);
        }
    }

    fn operator_looks(&mut self) {
        let facts = Facts { processes: &self.processes, volumes: &self.env.volumes };
        self.operator.look(&facts, self.env.mutant == Some(Mutant::MovesCold));
        let Some((_, draft)) = &self.operator.draft else { return };
        let runs = |worker, task| facts.has(worker, task).is_some_and(|(_, state)| state == Some(TaskState::Running));
        for task in 0..TASKS {
            let (Some(from), Some(to)) = (self.operator.lies(task), placed(draft, task)) else { continue };
            let (from, to) = (from.worker, to.worker);
            let level = |process: &Process| process.worker == to && self.env.volumes[process.at].is_level(task);
            if from != to && runs(from, task) && !self.processes.iter().any(|p| p.alive && level(p)) {
                self.env.broker.audit.report(Violation::MovedCold { task });
            }
        }
    }

    fn operator_writes(&mut self) {
        if self.operator.write()
            && let Some(last) = self.operator.assignments.last()
        {
            let lane = |placed: &Placement| format!("{} on {}/{}", placed.task(), placed.worker, placed.lane);
            let (tasks, warm): (Vec<_>, Vec<_>) =
                (last.tasks.iter().map(lane).collect(), last.warm.iter().map(lane).collect());
            self.env.trace.line(format_args!("assignment {}: {tasks:?}, warm: {warm:?}", last.generation));
        }
    }

    fn restore(&mut self) {
        let restores = |process: &Process| if process.alive { process.pace.steps } else { 0 };
        let Some(at) = self.pick_paced(restores) else { return };
        let lame = self.lame == Some(self.processes[at].worker);
        let open = self.env.volumes[at].restored(lame);
        if !open.is_empty() {
            let task = open[self.env.rng.below(open.len())];
            self.env.restore_slice(at, task);
        }
    }

    fn any_lane(&mut self) -> LaneId {
        let (worker, lane) = (self.env.rng.below(self.workers as usize), self.env.rng.below(self.lanes as usize));
        LaneId { timeline: Timeline(1), worker: worker as u32, lane: lane as u32 }
    }

    /// A process hears of the assignment: of the newest one, or now and then of one that is out of date.
    fn tell_assignment(&mut self, at: usize) {
        let newest = self.operator.assignments.len().checked_sub(1);
        let Some(newest) = newest.filter(|_| self.processes[at].pace.hears) else { return };
        let stale = !self.calm && self.env.rng.per_mille(200);
        let assignment = &self.operator.assignments[if stale { newest.saturating_sub(1) } else { newest }];
        let process = &mut self.processes[at];
        if assignment.generation <= process.heard {
            return;
        }
        process.heard = assignment.generation;
        for lane in &mut process.lanes {
            let tasks = assignment.of(lane.core.id());
            lane.tell(Event::Assigned { generation: assignment.generation, tasks });
            lane.told(assignment.savepoint.as_ref().and_then(Told::read), &mut self.env);
        }
        let indices = |tasks: BTreeSet<TaskId>| -> Vec<usize> { tasks.iter().map(model::index).collect() };
        let (warm, own) = (assignment.warm_on(process.worker), assignment.on(process.worker));
        self.env.follow(at, &indices(warm), &indices(own));
    }

    fn land_append(&mut self, repeat: bool) {
        let waiting = |lane: &SimLane| !lane.outbox.is_empty();
        let pace = |process: &Process| if process.lanes.iter().any(waiting) { process.pace.appends } else { 0 };
        let Some(at) = self.pick_paced(pace) else { return };
        let lanes = self.processes[at].lanes.iter_mut().enumerate();
        let mut lanes: Vec<_> = lanes.filter(|(_, lane)| waiting(lane)).collect();
        let pick = self.env.rng.below(lanes.len());
        let (index, lane) = &mut lanes[pick];
        let Some((sequence, change)) = lane.outbox.pop_front() else { return };
        let writer = (at + 1, *index);
        let landed = self.env.control.append(writer, sequence, change.clone());
        if repeat {
            assert_eq!(self.env.control.append(writer, sequence, change.clone()), None, "a producer is idempotent");
        }
        if let Some(position) = landed {
            self.env.trace.line(format_args!("{position} = {:?} {}", matches!(change, Change::Put(_)), change.key()));
            lane.acks.push_back((change, position));
        }
    }

    fn land_late_request(&mut self) {
        if self.env.late.is_empty() {
            return;
        }
        let one = self.env.rng.below(self.env.late.len());
        let (id, epoch, txn) = self.env.late.swap_remove(one);
        let landed = self.env.broker.end(id, epoch, txn, true);
        self.env.trace.line(format_args!("late commit of {id}: {landed:?}"));
    }

    fn fire_timer(&mut self, at: usize) {
        for lane in &mut self.processes[at].lanes {
            let early = matches!(lane.timers.last(), Some(Event::FenceOverdue(_))) && !self.env.rng.per_mille(200);
            if let Some(event) = lane.timers.pop_if(|_| !early) {
                self.env.trace.line(format_args!("{} {event:?}", lane.core.id()));
                lane.tell(event);
            }
        }
    }
}

/// What the platform and the workers say.
struct Facts<'a> {
    processes: &'a [Process],
    volumes: &'a [Volume],
}

impl Facts<'_> {
    /// The process of a worker that answers.
    fn process(&self, worker: u32) -> Option<&Process> {
        self.processes.iter().rfind(|process| process.alive && process.worker == worker)
    }
}

impl Workers for Facts<'_> {
    fn is_there(&self, worker: u32) -> bool {
        self.process(worker).is_some()
    }

    fn has(&self, worker: u32, task: usize) -> Option<(Generation, Option<TaskState>)> {
        let process = self.process(worker)?;
        let mut states = process.lanes.iter().flat_map(|lane| lane.core.states());
        let state = states.find(|(id, _)| model::index(id) == task).map(|(_, state)| state);
        Some((process.heard, state))
    }

    fn is_level(&self, worker: u32, task: usize, generation: Generation) -> bool {
        let process = self.process(worker).filter(|process| process.heard == generation);
        process.is_some_and(|process| self.volumes[process.at].is_level(task))
    }
}

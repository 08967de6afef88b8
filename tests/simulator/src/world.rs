//! Processes, their platform, the operator, and everything that can happen to them.

use std::mem;

use millrace_core::control::{Change, Created, LaneId, Record};
use millrace_core::ids::{Generation, TaskId, Timeline};
use millrace_core::ownership::{Event, ExitReason};

use crate::broker::{Broker, Topic, Tp};
use crate::control_topic::ControlTopic;
use crate::driver::{CHANGELOG, Env, Local, SimLane};
use crate::model::{self, Answer, SOURCES, TASKS};
use crate::mutant::Mutant;
use crate::oracle::{self, Violation};
use crate::rng::Rng;
use crate::trace::Trace;
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

/// What a run came to.
pub struct Run {
    pub violation: Option<Violation>,
    /// Of everything that happened.
    pub hash: u64,
    /// Filled when the run was recorded.
    pub lines: Vec<String>,
}

#[derive(Clone)]
struct Assignment {
    generation: Generation,
    lanes: Vec<LaneId>,
}

struct Process {
    worker: u32,
    lanes: Vec<SimLane>,
    alive: bool,
    pace: Pace,
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
    assignments: Vec<Assignment>,
    weather: Weather,
    lives: u64,
    climate: Climate,
    calm: bool,
}

/// Runs one seed; `record` keeps the lines of the trace.
pub fn run(seed: u64, mutant: Option<Mutant>, record: bool) -> Run {
    let mut rng = Rng::new(seed);
    let rows = 10 + rng.below(110);
    let climate = Climate::ALL[seed as usize % Climate::ALL.len()];
    let aborts = rng.per_mille(if climate == Climate::Twins { 200 } else { 500 });
    let poison = if aborts && rng.per_mille(500) { 60 } else { 0 };
    let sources = model::sources(&mut rng, rows, poison);
    let answer = model::answer(&sources);
    let mut world = World::new(climate, aborts, rng, &sources, Trace::new(record), mutant);
    let violation = world.live(&answer);
    if let Some(violation) = &violation {
        world.env.trace.line(format_args!("{violation}"));
    }
    let (hash, lines) = world.env.trace.finish();
    Run { violation, hash, lines }
}

impl World {
    fn new(
        climate: Climate,
        aborts: bool,
        mut rng: Rng,
        sources: &[Vec<model::Row>],
        trace: Trace,
        mutant: Option<Mutant>,
    ) -> Self {
        let weather = Weather::of(climate, &mut rng);
        let (workers, lanes) = match climate {
            Climate::Mixed => (2 + rng.below(2) as u32, 1 + rng.below(2) as u32),
            Climate::Twins => (2, 1),
            Climate::Force | Climate::SlowMarkers => (3, 1),
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
        let (processes, assignments) = (Vec::new(), Vec::new());
        let mut world = Self { env, processes, workers, lanes, assignments, weather, lives: 0, climate, calm: false };
        world.assign();
        world.env.broker.slow =
            Some(world.any_lane()).filter(|_| matches!(climate, Climate::Mixed | Climate::SlowMarkers));
        let twice = world.env.rng.per_mille(300) && climate != Climate::Force || climate == Climate::Twins;
        (0..workers << u32::from(twice)).for_each(|at| world.start(at % workers, None));
        world
    }

    fn live(&mut self, answer: &Answer) -> Option<Violation> {
        for step in 0..CHAOS {
            self.happen();
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
        self.come_to_an_end(ending, answer)
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
            Ending::ChangelogRecreated => self.env.broker.recreate_changelog(),
            Ending::ChangelogTruncated(task) => self.env.broker.truncate_changelog(task),
        }
        if ending != Ending::Plain {
            (0..self.workers).for_each(|worker| self.start(worker, None));
        }
        self.assign();
    }

    fn come_to_an_end(&mut self, ending: Ending, answer: &Answer) -> Option<Violation> {
        let before: Vec<u64> = (0..TASKS).map(|task| self.env.broker.audit.last(task).epoch).collect();
        let mut settling = None;
        for step in 0..CALM_MAX {
            self.happen();
            if let Some(violation) = self.env.broker.violation() {
                return Some(violation.clone());
            }
            if step % 20 == 0 {
                self.keep_workers_up();
                let ended = self.ended(ending);
                settling = if ended { settling.or(Some(step)) } else { None };
            }
            if settling.is_some_and(|since| step >= since + SETTLE) {
                return self.verdict(ending, &before, answer);
            }
        }
        let epochs: Vec<_> = (0..TASKS).map(|task| self.env.broker.audit.last(task)).collect();
        Some(Violation::Stuck { at: format!("{epochs:?}") })
    }

    /// The task's changelog cannot be continued. One that was empty lost nothing by being cut off.
    fn damaged(&self, ending: Ending, task: usize) -> bool {
        ending == Ending::ChangelogRecreated || self.env.broker.log_start(Tp(Topic::Changelog, task)) > 0
    }

    /// Every task has read all there is, or has been refused by whoever should run it.
    fn ended(&self, ending: Ending) -> bool {
        let broker = &self.env.broker;
        let alive = || self.processes.iter().filter(|process| process.alive).flat_map(|process| &process.lanes);
        let refused = |task: &usize| alive().any(|lane| lane.refused.contains(task));
        let level = |task: &usize| {
            let input = if *task < SOURCES { Tp(Topic::Source, *task) } else { Tp(Topic::Between, *task - SOURCES) };
            broker.fetch(input, broker.audit.last(*task).next).is_none()
                && alive().any(|l| l.runs().any(|t| t == *task))
        };
        let done = |task: usize| if self.damaged(ending, task) { refused(&task) } else { level(&task) };
        broker.quiet() && alive().all(SimLane::idle) && (0..TASKS).all(done)
    }

    fn verdict(&self, ending: Ending, before: &[u64], answer: &Answer) -> Option<Violation> {
        let broker = &self.env.broker;
        let damaged = |task: &usize| self.damaged(ending, *task);
        let not_refused = (0..TASKS).filter(damaged).find(|task| broker.audit.last(*task).epoch != before[*task]);
        if let Some(task) = not_refused {
            return Some(Violation::NotRefused { task });
        }
        let complete = !(0..TASKS).any(|task| damaged(&task));
        oracle::judge(broker, answer, complete).or_else(|| if complete { self.wrong_local_state() } else { None })
    }

    /// I1: every local state is what the changelog says for its epoch.
    fn wrong_local_state(&self) -> Option<Violation> {
        let alive = self.processes.iter().filter(|process| process.alive).flat_map(|process| &process.lanes);
        let mut locals = alive.flat_map(|lane| lane.disk.iter().enumerate());
        let wrong = |(task, local): &(usize, &Local)| {
            oracle::replay(&self.env.broker, *task, local.epoch).as_ref() != Some(&local.state)
        };
        locals.find(wrong).map(|(task, local)| Violation::LocalState { task, epoch: local.epoch })
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
            (H::NewAssignment, _) => self.assign(),
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
        for lane in &mut process.lanes {
            lane.crash(env);
            if env.rng.per_mille(500) {
                lane.outbox.clear();
            }
        }
    }

    /// Starts a process in the place of another, on its volume or on an empty one.
    fn replace(&mut self, at: usize) {
        let keeps_volume = !self.processes[at].alive && self.env.rng.per_mille(700);
        self.start(self.processes[at].worker, keeps_volume.then_some(at));
    }

    fn start(&mut self, worker: u32, volume_of: Option<usize>) {
        let at = self.processes.len();
        let lane = |index: u32| {
            let id = LaneId { timeline: Timeline(1), worker, lane: index };
            let empty = || vec![Local::default(); TASKS];
            let disk = volume_of.map_or_else(empty, |old| self.processes[old].lanes[index as usize].disk.clone());
            SimLane::new(id, self.lives, (at + 1, index as usize), disk, self.env.mutant)
        };
        let lanes = (0..self.lanes).map(lane).collect();
        self.lives += 1;
        self.env.trace.line(format_args!("process {at:x} is worker {worker}, volume of {volume_of:x?}"));
        self.processes.push(Process { worker, lanes, alive: true, pace: Pace::EVEN });
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

    /// The operator moves a task, spreads the tasks of a lane over all lanes, or gathers all tasks on one.
    fn assign(&mut self) {
        let generation = Generation(self.assignments.len() as u64 + 1);
        let to = self.any_lane();
        let mut lanes = self.assignments.last().map_or_else(|| vec![to; TASKS], |last| last.lanes.clone());
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
        self.env.trace.line(format_args!("assignment {generation}: {lanes:?}"));
        self.assignments.push(Assignment { generation, lanes });
    }

    fn any_lane(&mut self) -> LaneId {
        let (worker, lane) = (self.env.rng.below(self.workers as usize), self.env.rng.below(self.lanes as usize));
        LaneId { timeline: Timeline(1), worker: worker as u32, lane: lane as u32 }
    }

    /// A process hears of the assignment: of the newest one, or now and then of one that is out of date.
    fn tell_assignment(&mut self, at: usize) {
        let Some(newest) = self.assignments.len().checked_sub(1).filter(|_| self.processes[at].pace.hears) else {
            return;
        };
        let stale = !self.calm && self.env.rng.per_mille(200);
        let which = if stale { newest.saturating_sub(1) } else { newest };
        let assignment = self.assignments[which].clone();
        for lane in &mut self.processes[at].lanes {
            let id = lane.core.id();
            let mine = (0..TASKS).filter(|task| assignment.lanes[*task] == id);
            let tasks: Vec<TaskId> = mine.map(model::task).collect();
            lane.tell(Event::Assigned { generation: assignment.generation, tasks });
        }
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

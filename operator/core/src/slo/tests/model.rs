//! Whatever is delayed, lost or repeated between workers and operators, the books say what somebody would write who saw
//! everything.

use millrace_core::slices::{SLICES_KEPT, SliceReport, SlicesReport, TaskSlice};

use super::super::books::{Answer, Books, Seen, WRITE_EVERY_MS};
use super::{behind, freshness, lag, sketch, tasks};
use crate::slo::{Expected, Intent, SLICE_MS, Wanted};

/// SplitMix64 (Steele et al., OOPSLA 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// A worker with one task.
struct Process {
    number: u64,
    started: i64,
    /// It is dead before this slice.
    up_from: i64,
    /// The operator cannot reach it before this slice.
    reached_from: i64,
    kept: Vec<SliceReport>,
}

/// What befalls a run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    /// Operators end at any time; workers live.
    Operators,
    /// Workers are killed too.
    All,
}

const BEGIN: i64 = 1_000_000;
const SLICES: i64 = 900;
const SEEDS: u64 = 16;

struct World {
    random: Random,
    fate: Fate,
    workers: Vec<Process>,
    books: Option<Books>,
    /// As they were written down last, with how far they were judged.
    saved: Option<(String, i64)>,
    /// The last slice that a former operator can have counted.
    led: Option<i64>,
    /// Slices that none has counted, since it ended before it could.
    uncounted: u64,
    /// The operator is away before this slice.
    led_from: i64,
    /// Slices, and bad ones: of freshness, and of lag.
    truth: [(u64, u64); 2],
    /// What counters said when their process ended.
    counted: [(u64, u64); 2],
    /// When workers were killed some of whose slices are not in the written books.
    killed: Vec<i64>,
    /// So many slices may be wrong.
    allowed: u64,
}

impl World {
    fn new(seed: u64, fate: Fate) -> Self {
        let process =
            |number| Process { number, started: BEGIN - 100, up_from: BEGIN, reached_from: BEGIN, kept: Vec::new() };
        Self {
            random: Random(seed),
            fate,
            workers: (0..3).map(process).collect(),
            books: None,
            saved: None,
            led: None,
            uncounted: 0,
            led_from: BEGIN,
            truth: [(0, 0); 2],
            counted: [(0, 0); 2],
            killed: Vec::new(),
            allowed: 0,
        }
    }

    /// A slice passes: what the workers saw of it, and what is true of it.
    fn pass(&mut self, index: i64) {
        let (mut values, mut lags, mut silent) = (Vec::<i64>::new(), Vec::new(), false);
        for (partition, worker) in (0..).zip(&mut self.workers) {
            if worker.up_from > index {
                silent = true;
                continue;
            }
            // In the first slice all is well, so that lag was known once.
            let lag = match self.random.below(40) {
                0 if index > BEGIN => None,
                1 | 2 if index > BEGIN => Some(60_000),
                _ => Some(0),
            };
            let results: Vec<i64> = match self.random.below(10) {
                0..4 => Vec::new(),
                4 if index > BEGIN => vec![100, 60_000],
                _ => vec![100; 3],
            };
            lags.push(lag);
            values.extend(&results);
            let freshness = (!results.is_empty()).then(|| sketch(results));
            let task = TaskSlice { freshness, ..behind(partition, lag) };
            worker.kept.push(SliceReport { index, tasks: vec![task] });
            let forgotten = worker.kept.len().saturating_sub(SLICES_KEPT);
            worker.kept.drain(..forgotten);
        }
        values.sort_unstable();
        let p99 = values.len().checked_sub(values.len() / 100 + 1).map(|place| values[place]);
        let late = lags.iter().flatten().any(|lag| *lag > 15_000);
        let unknown = lags.iter().any(Option::is_none);
        let stale = p99.map_or(late || unknown, |p99| p99 > 15_000);
        for ((slices, bad), is_bad) in self.truth.iter_mut().zip([stale, late || unknown]) {
            *slices += 1;
            *bad += u64::from(is_bad || silent);
        }
    }

    fn wanted() -> Wanted {
        let expected = Expected { intent: Intent::Run, tasks: Some(tasks(3)) };
        Wanted { slos: vec![freshness(), crate::slo::Slo { name: "b".to_owned(), ..lag() }], expected }
    }

    /// The operator looks at the Pipeline.
    fn look(&mut self, now: i64) {
        let (wanted, now_ms) = (Self::wanted(), now * SLICE_MS + self.random.below(10_000) as i64);
        let mut books = self.books.take().unwrap_or_else(|| {
            let saved = self.saved.as_ref().map(|(text, _)| text.as_str());
            Books::open(saved, &wanted, self.led, now_ms - WRITE_EVERY_MS / 2, now_ms)
        });
        let up = |worker: &Process| worker.up_from <= now;
        let pod =
            |(ordinal, worker): (u32, &Process)| Seen { worker: ordinal, uid: ordinal.to_string(), ready: up(worker) };
        let pods: Vec<Seen> = (0..).zip(&self.workers).map(pod).collect();
        books.expect(&wanted, &pods, now_ms);
        let begin = self.random.below(3) as u32;
        for ordinal in (0..3).map(|i| (begin + i) % 3) {
            let worker = &self.workers[ordinal as usize];
            if !up(worker) || worker.reached_from > now {
                books.hear(ordinal, &Answer::Silence, false, now_ms);
                continue;
            }
            let from = books.next(ordinal);
            let mut slices: Vec<SliceReport> = worker.kept.iter().filter(|s| s.index >= from).cloned().collect();
            // Not all at once.
            if slices.len() > 20 {
                slices.truncate(slices.len() - self.random.below(15) as usize);
            }
            let (process, started_index) = (worker.number, worker.started);
            let answer = Answer::Slices(SlicesReport { worker: ordinal, process, started_index, slices });
            let times = 1 + self.random.below(2);
            (0..times).for_each(|_| books.hear(ordinal, &answer, false, now_ms));
        }
        books.judge(false, now_ms);
        if let Some(text) = books.said(now_ms).books {
            books.written(now_ms);
            self.saved = Some((text, books.judged));
            self.killed.retain(|at| *at > books.judged + 1);
        }
        self.books = Some(books);
    }

    fn end_operator(&mut self, now: i64) {
        let Some(books) = self.books.take() else { return };
        self.led = Some(now - 1);
        self.uncounted += (now - 1 - books.judged).unsigned_abs();
        for ((slices, bad), book) in self.counted.iter_mut().zip(books.slos()) {
            // What was not taken up yet is counted by nobody: the simulated Prometheus sees it here.
            *slices += book.observations + book.due.observations;
            *bad += book.bad + book.due.bad;
        }
        // Of those that were killed, slices which the books do not have yet are judged anew without their word.
        let judged = self.saved.as_ref().map_or(BEGIN, |(_, judged)| *judged);
        self.allowed += self.killed.iter().map(|at| (at - judged).max(0).unsigned_abs()).sum::<u64>();
        self.led_from = now + 1 + self.random.below(60) as i64;
    }

    fn told(&self, worker: usize, now: i64) -> bool {
        self.books.as_ref().is_some_and(|books| books.next(worker as u32) == now)
    }

    /// Kills a worker that has told everything.
    fn kill(&mut self, victim: usize, now: i64) {
        let told = self.told(victim, now);
        let worker = &mut self.workers[victim];
        if !told || worker.up_from > now || worker.reached_from > now {
            return;
        }
        worker.up_from = now + 1 + self.random.below(8) as i64;
        worker.started = worker.up_from;
        worker.number += 10;
        worker.kept.clear();
        self.killed.push(now);
    }

    fn run(&mut self) {
        for now in BEGIN..BEGIN + SLICES {
            let ends = now > BEGIN + SLICES - 60;
            let leads = self.led_from <= now || ends;
            if now == BEGIN || leads && (self.books.is_none() || ends || !self.random.one_in(4)) {
                self.look(now);
            }
            if !ends && self.random.one_in(90) {
                self.end_operator(now);
            }
            let victim = self.random.below(3) as usize;
            // A slice that waits for one worker, and then anew for another one since the operator has ended, may wait for
            // an hour in all.
            let waits = self.books.as_ref().map_or(SLICES, |books| now - books.judged);
            if !ends && waits < 150 && self.random.one_in(30) {
                self.workers[victim].reached_from = (now + self.random.below(100) as i64).min(BEGIN + SLICES - 50);
            }
            // Lag is known before the first one dies.
            if self.fate == Fate::All && now > BEGIN + 3 && !ends && self.random.one_in(25) {
                self.kill(victim, now);
            }
            self.pass(now);
        }
        (0..5).for_each(|later| self.look(BEGIN + SLICES + later));
    }

    fn found(&self) -> [(u64, u64); 2] {
        let books = self.books.as_ref().expect("the last look leaves books");
        let sum = |place: usize| books.slos()[place].sum(BEGIN + SLICES - 1);
        [0, 1].map(|place| (sum(place).observations, sum(place).bad))
    }
}

#[test]
fn books_are_those_of_one_who_saw_everything() {
    for fate in [Fate::Operators, Fate::All] {
        for seed in 0..SEEDS {
            let mut world = World::new(seed, fate);
            world.run();
            let (found, truth) = (world.found(), world.truth);
            for ((found, found_bad), (slices, bad)) in found.into_iter().zip(truth) {
                let allowed = if fate == Fate::All { world.allowed } else { 0 };
                let wrong = [(found, slices), (found_bad, bad)].map(|(found, true_one)| found.abs_diff(true_one));
                assert!(wrong.iter().all(|wrong| *wrong <= allowed), "{fate:?}, seed {seed}: {wrong:?} of {allowed}");
            }
        }
    }
}

#[test]
fn counters_of_all_leaders_together_count_no_slice_twice() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed, Fate::Operators);
        world.run();
        let end = BEGIN + SLICES;
        let before_last = world.uncounted;
        world.end_operator(end);
        assert_eq!(world.uncounted, before_last, "seed {seed}: the last one has counted all");
        for ((found, found_bad), (slices, bad)) in world.counted.into_iter().zip(world.truth) {
            assert!(found <= slices && found + world.uncounted >= slices, "seed {seed}: {found} of {slices}");
            assert!(found_bad <= bad && found_bad + world.uncounted >= bad, "seed {seed}: {found_bad} of {bad}");
        }
    }
}

#[test]
fn what_is_allowed_for_books_that_were_not_written_does_happen() {
    let wrong = (0..SEEDS).filter(|seed| {
        let mut world = World::new(*seed, Fate::All);
        world.run();
        world.found() != world.truth
    });
    assert!(wrong.count() > 0);
    assert_eq!(WRITE_EVERY_MS / SLICE_MS, 30);
}

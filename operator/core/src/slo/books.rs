//! The books of one Pipeline: what each slice counted as, for each of its SLOs.
//!
//! A look at the Pipeline goes through them in this order: [`Books::expect`] what shall be, [`Books::next`] what to ask
//! each worker for, [`Books::hear`] what it answers, [`Books::judge`] what can be judged by now.
//!
//! They are written down every [`WRITE_EVERY_MS`], and at once where a person has edited what they are about, with the
//! last slice that was judged: the next leader goes on there, and asks workers for what came since. So an operator that
//! ends loses nothing and counts nothing twice, as long as no slice waits for its verdict for more than the hour that
//! workers keep. One exception: of a worker whose process ends before the operator does, what is not written yet is judged
//! anew without its word, as silence. Where no slice waits that is at most the 30 of [`WRITE_EVERY_MS`].
//!
//! Counters for Prometheus begin at 0 in each process. They count no slice that a former leader can have counted, which
//! is each up to when it was last known to lead: twice is worse than not at all, and the books have it. They grow by two
//! for each slice of time at most: what comes late is never a jump.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use millrace_core::ids::TaskId;
use millrace_core::slices::{SLICE_MS, SLICES_KEPT, Sketch, SlicesReport};
use millrace_crds::pipeline::{Slo, SloStatus};
use serde::{Deserialize, Serialize};

use super::ring::{Counts, Ring};
use super::tally::{Tally, Worst};
use super::{Expected, Intent, PATIENCE, SliceView, Verdict, Wanted, Worker, identity, index, outputs, verdict};

/// Buckets of an SLO's window.
pub const BUCKETS: usize = 120;
/// The books are written at most so often.
pub const WRITE_EVERY_MS: i64 = 300_000;
/// Of books as text.
const VERSION: u32 = 1;
const SLICES_A_DAY: i64 = 86_400_000 / SLICE_MS;
/// What a burn rate is over: an hour, by five minutes.
const HOUR: (i64, usize) = (30, 12);
/// Slices over which freshness is shown: from five to ten minutes.
const SHOWN: i64 = 30;
/// A slice that is not observed after so long is worth a word: ten minutes.
const MISSING: i64 = 60;
/// A look that comes late grants no more than three slices of time do.
const ELAPSED_MAX: i64 = 3;

/// What a worker answered.
#[derive(Clone, Debug)]
pub enum Answer {
    Slices(SlicesReport),
    /// It did not answer.
    Silence,
    /// Its release knows of no slices.
    Mute,
}

/// A pod of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub worker: u32,
    pub uid: String,
    pub ready: bool,
}

#[derive(Clone, Debug)]
pub struct Books {
    /// Every slice up to this one has its verdict.
    pub(super) judged: i64,
    known: bool,
    /// The slice in which the pipeline was asked to run.
    asked: Option<i64>,
    /// From which slice on what shall be; in order, and the first one covers all that is not judged.
    expected: VecDeque<(i64, Expected)>,
    workers: BTreeMap<u32, Worker>,
    /// Of the slices behind `judged`, as far as something was heard.
    tallies: VecDeque<Tally>,
    slos: Vec<Book>,
    /// The last slice whose verdict was not `Unobserved`.
    observed: i64,
    /// Up to here slices that were not observed in time have been counted as such.
    overdue: i64,
    /// Slices up to here were counted for Prometheus by a former leader.
    counted: i64,
    /// When counters last grew, as a slice.
    grown: i64,
    written_ms: i64,
    /// What they are about has changed since they were written.
    edited: bool,
    /// Freshness of the present [`SHOWN`] slices, by their number, and of those before.
    shown: (i64, [Sketch; 2]),
}

/// The books of one SLO.
#[derive(Clone, Debug)]
pub struct Book {
    pub slo: Slo,
    /// The first slice that counts for it.
    from: i64,
    window: Ring,
    hour: Ring,
    /// Counters for Prometheus.
    pub observations: u64,
    pub bad: u64,
    /// What they have not taken up yet.
    pub(super) due: Counts,
    /// Slices that counters have taken up before their verdict on everything else was there.
    ahead: BTreeSet<i64>,
    /// Who was furthest behind in the last slice.
    pub worst: Option<Worst>,
    /// The last slice that was bad, or the one in which these books were opened.
    bad_at: i64,
}

/// Books as text.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Saved {
    version: u32,
    written_ms: i64,
    judged: i64,
    known: bool,
    asked: Option<i64>,
    intents: Vec<(i64, Intent)>,
    observed: i64,
    slos: BTreeMap<String, SavedBook>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SavedBook {
    /// [`identity`] of the SLO.
    of: String,
    from: i64,
    window: String,
    hour: String,
}

/// What a decision has to know of books.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said {
    pub slos: Vec<SloStatus>,
    /// 99th percentile, milliseconds.
    pub freshness_ms: Option<i64>,
    /// The smallest share of an error budget that is left.
    pub budget_left: Option<f64>,
    /// Since when slices that count have not been observed, in milliseconds since 1970, if that is worth a word.
    pub missing_since_ms: Option<i64>,
    /// For how long each SLO has had no bad slice, as far as these books go back.
    pub quiet_ms: BTreeMap<String, i64>,
    /// The books as text, if it is time to write them down.
    pub books: Option<String>,
}

impl Book {
    fn new(slo: &Slo, from: i64) -> Self {
        let days = slo.window.ms() / 86_400_000;
        // Whole days are a multiple of 120 slices.
        let length = (days * SLICES_A_DAY / BUCKETS as i64).max(1);
        Self {
            slo: slo.clone(),
            from,
            window: Ring::new(length, BUCKETS),
            hour: Ring::new(HOUR.0, HOUR.1),
            observations: 0,
            bad: 0,
            due: Counts::default(),
            ahead: BTreeSet::new(),
            worst: None,
            bad_at: from,
        }
    }

    /// Those that were written down; empty ones if they are of something else.
    fn restored(slo: &Slo, saved: &SavedBook, from: i64) -> Self {
        let new = Self::new(slo, from);
        if saved.of != identity(slo) {
            return new;
        }
        let (window, hour) = (new.window.clone().read(&saved.window), new.hour.clone().read(&saved.hour));
        match (window, hour) {
            (Some(window), Some(hour)) => Self { from: saved.from, window, hour, ..new },
            _ => new,
        }
    }

    /// What it takes of memory, without the texts of its SLO.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.window.bytes() + self.hour.bytes()
    }

    fn counts(verdict: Verdict) -> Option<Counts> {
        match verdict {
            Verdict::Good => Some(Counts::slice(true)),
            Verdict::Bad(_) => Some(Counts::slice(false)),
            Verdict::Records { all, bad } => Some(Counts::records(all, bad)),
            Verdict::NotCounted(_) | Verdict::Unobserved | Verdict::Pending => None,
        }
    }

    /// Takes up as many slices of what is due, those that are bad first.
    fn grow(&mut self, slices: u64) {
        for _ in 0..slices.min(self.due.slices.into()) {
            let share = |of: u64| of.div_ceil(self.due.slices.into());
            let (observations, bad) = (share(self.due.observations), share(self.due.bad));
            self.observations += observations;
            self.bad += bad;
            self.due.slices -= 1;
            self.due.observations -= observations;
            self.due.bad -= bad;
        }
    }

    /// A task that is silent, and for how long.
    fn silent(&self, task: &TaskId) -> Worst {
        let TaskId { stage, partition } = task.clone();
        let same = self.worst.as_ref().filter(|worst| worst.source == stage && worst.partition == partition);
        Worst { ms: same.map_or(0, |worst| worst.ms) + SLICE_MS, source: stage, partition }
    }

    /// Of the window that ends with a slice.
    pub fn sum(&self, index: i64) -> Counts {
        self.window.sum(index)
    }

    /// Share of the error budget that is left; below 0 it is overspent. Slices of time spend that of the whole window,
    /// of which it is known how many it has; records that of the records that were seen.
    pub fn budget_left(&self, index: i64) -> f64 {
        let sum = self.window.sum(index);
        let of = if self.slo.counts_records() { sum.observations as f64 } else { self.slices() as f64 };
        let allowed = of * self.slo.budget();
        if self.slo.counts_records() && sum.observations < self.slo.min_events.into() || sum.bad == 0 {
            return 1.0;
        }
        1.0 - sum.bad as f64 / allowed
    }

    /// How many times faster than the objective allows the last hour spent the budget.
    fn burn_rate(&self, index: i64) -> Option<f64> {
        let hour = self.hour.sum(index);
        let few = self.slo.counts_records() && hour.observations < self.slo.min_events.into();
        if few { None } else { Some(hour.ratio()? / self.slo.budget()) }
    }

    /// Of a whole window.
    fn slices(&self) -> i64 {
        self.slo.window.ms() / SLICE_MS
    }

    fn status(&self, index: i64) -> SloStatus {
        let (sum, left) = (self.window.sum(index), self.budget_left(index));
        SloStatus {
            name: self.slo.name.clone(),
            sli: sum.ratio().map(|bad| percent(1.0 - bad, 3)),
            burn_rate: self.burn_rate(index).map(|rate| trimmed(format!("{rate:.1}"))),
            budget_left: (sum.slices > 0).then(|| percent(left, 0)),
            observed: percent(f64::from(sum.slices) / self.slices() as f64, 0),
            met: left > 0.0,
        }
    }
}

/// As text, rounded down, so that only what is whole is 100%.
pub fn percent(share: f64, decimals: u8) -> String {
    let scale = 10f64.powi(decimals.into());
    // What floating point has lost must not become the next lower one.
    let floor = (share * 100.0 * scale + 1e-6).floor() / scale;
    format!("{}%", trimmed(format!("{floor:.0$}", usize::from(decimals))))
}

fn trimmed(number: String) -> String {
    let short = if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { &number };
    if short == "-0" { "0".to_owned() } else { short.to_owned() }
}

impl Books {
    /// Opens books at a first look: those that were written down, or new ones. `counted`: the last slice that a former
    /// leader can have counted for Prometheus. `overdue_ms`: when they are taken to have been written, if that
    /// was so long ago that those of many Pipelines are due at once.
    pub fn open(saved: Option<&str>, wanted: &Wanted, counted: Option<i64>, overdue_ms: i64, now_ms: i64) -> Self {
        let now = index(now_ms);
        let saved: Option<Saved> = saved.and_then(|text| serde_json::from_str(text).ok());
        let saved = saved.filter(|saved| saved.version == VERSION && saved.judged < now);
        // Nobody can tell of what is older.
        let judged = saved.as_ref().map_or(now - 1, |saved| saved.judged.max(now - 1 - SLICES_KEPT as i64));
        // Nobody has changed anything since.
        let intents = saved.as_ref().map(|saved| saved.intents.clone()).filter(|intents| !intents.is_empty());
        let intents = intents.unwrap_or_else(|| vec![(now, wanted.expected.intent)]);
        let expected = |(from, intent)| (from, Expected { intent, ..wanted.expected.clone() });
        let of = |slo: &Slo| match saved.as_ref().and_then(|saved| saved.slos.get(&slo.name)) {
            Some(book) => Book::restored(slo, book, now),
            None => Book::new(slo, now),
        };
        let counted = counted.unwrap_or(judged).max(judged);
        let lately = saved.as_ref().map(|saved| saved.written_ms).filter(|last| now_ms - last < WRITE_EVERY_MS);
        Self {
            judged,
            known: saved.as_ref().is_some_and(|saved| saved.known),
            asked: saved.as_ref().map_or(Some(now), |saved| saved.asked),
            expected: intents.into_iter().map(expected).collect(),
            workers: BTreeMap::new(),
            tallies: VecDeque::new(),
            slos: wanted.slos.iter().map(of).collect(),
            observed: saved.as_ref().map_or(judged, |saved| saved.observed),
            overdue: judged,
            counted,
            grown: now - 1,
            written_ms: lately.unwrap_or(overdue_ms),
            edited: saved.is_none(),
            shown: (now.div_euclid(SHOWN), Default::default()),
        }
    }

    /// What shall be, and which workers are there: as it is seen now.
    pub fn expect(&mut self, wanted: &Wanted, seen: &[Seen], now_ms: i64) {
        let now = index(now_ms);
        self.edit(&wanted.slos, now);
        if self.expected.back().is_none_or(|(_, last)| *last != wanted.expected) {
            let changed = |(_, last): &(i64, Expected)| last.intent.counts() != wanted.expected.intent.counts();
            self.edited |= self.expected.back().is_none_or(changed);
            // What begins has the rest of this slice to come up. What rests may have ended before it told of the last.
            let rests = !wanted.expected.intent.counts();
            let from = if rests { (now - 1).max(self.judged + 1) } else { now + 1 };
            while self.expected.back().is_some_and(|(later, _)| *later >= from) {
                self.expected.pop_back();
            }
            self.expected.push_back((from, wanted.expected.clone()));
        }
        self.workers.retain(|worker, known| seen.iter().any(|pod| pod.worker == *worker && pod.uid == known.uid));
        for pod in seen {
            let (judged, uid) = (self.judged, pod.uid.clone());
            let new = || Worker {
                uid,
                ready: pod.ready,
                process: None,
                started: judged + 1,
                next: judged + 1,
                silent: None,
                cut_off: None,
                mute: false,
            };
            self.workers.entry(pod.worker).or_insert_with(new).ready = pod.ready;
        }
    }

    /// The SLOs may be others. One of the same name goes on, unless it watches something else.
    fn edit(&mut self, slos: &[Slo], now: i64) {
        if self.slos.iter().map(|book| &book.slo).eq(slos) {
            return;
        }
        self.edited = true;
        let mut before: BTreeMap<String, Book> =
            std::mem::take(&mut self.slos).into_iter().map(|book| (book.slo.name.clone(), book)).collect();
        let of = |slo: &Slo| match before.remove(&slo.name) {
            Some(book) if identity(&book.slo) == identity(slo) => Book { slo: slo.clone(), ..book },
            _ => Book::new(slo, now),
        };
        self.slos = slos.iter().map(of).collect();
    }

    /// From which slice on a worker is to tell.
    pub fn next(&self, worker: u32) -> i64 {
        self.workers.get(&worker).map_or(self.judged + 1, |worker| worker.next)
    }

    /// Takes up what a worker answers. `isolated`: most workers of all Pipelines do not answer.
    pub fn hear(&mut self, worker: u32, answer: &Answer, isolated: bool, now_ms: i64) {
        let now = index(now_ms);
        let Some(known) = self.workers.get_mut(&worker) else { return };
        known.mute = matches!(answer, Answer::Mute);
        let Answer::Slices(report) = answer else {
            if matches!(answer, Answer::Silence) {
                known.silent.get_or_insert(now);
                known.cut_off = if isolated && known.ready { Some(now) } else { known.cut_off };
            }
            return;
        };
        known.silent = None;
        if known.process != Some(report.process) {
            known.process = Some(report.process);
            known.started = report.started_index;
        }
        let next = known.next;
        let told = report.slices.iter().filter(|slice| slice.index >= next && slice.index < now);
        known.next = told.clone().map(|slice| slice.index + 1).max().unwrap_or(next);
        for slice in told {
            self.show(slice.tasks.iter().filter_map(|task| task.freshness.as_ref()), slice.index, now);
            if let Ok(place) = usize::try_from(slice.index - self.judged - 1) {
                let empty = || Tally::new(outputs_of(&self.slos));
                self.tallies.resize_with(self.tallies.len().max(place + 1), empty);
                self.tallies[place].add(slice, expected_at(&self.expected, slice.index));
            }
        }
    }

    /// Freshness for people: of the present and the former five minutes.
    fn show<'a>(&mut self, sketches: impl Iterator<Item = &'a Sketch>, slice: i64, now: i64) {
        let present = now.div_euclid(SHOWN);
        let (number, [newer, older]) = &mut self.shown;
        if present > *number {
            *older = if present == *number + 1 { std::mem::take(newer) } else { Sketch::default() };
            *newer = Sketch::default();
            *number = present;
        }
        if now - slice <= SHOWN {
            sketches.for_each(|sketch| newer.merge(sketch));
        }
    }

    /// Judges what can be judged, and says how many slices were found not to be observed in time.
    pub fn judge(&mut self, isolated: bool, now_ms: i64) -> u64 {
        let now = index(now_ms);
        let workers: Vec<Worker> = self.workers.values().cloned().collect();
        while self.judged + 1 < now && self.judge_next(&workers, now) {}
        self.page_ahead(&workers, now);
        let slices = 2 * (now - self.grown).clamp(0, ELAPSED_MAX);
        self.slos.iter_mut().for_each(|book| book.grow(slices.unsigned_abs()));
        self.grown = now;
        self.count_overdue(isolated, now)
    }

    /// Whether the next slice has its verdict.
    fn judge_next(&mut self, workers: &[Worker], now: i64) -> bool {
        let index = self.judged + 1;
        let expected = expected_at(&self.expected, index).clone();
        if !expected.intent.counts() {
            (self.known, self.asked) = (false, None);
        }
        let asked = if expected.intent.counts() { *self.asked.get_or_insert(index) } else { index };
        let empty = Tally::new(outputs_of(&self.slos));
        let tally = self.tallies.front().unwrap_or(&empty);
        let view = SliceView { index, now, expected: &expected, tally, workers, known: self.known, asked };
        let judged = |book: &Book| verdict(&book.slo, &view);
        let verdicts: Vec<Verdict> = self.slos.iter().map(judged).collect();
        if verdicts.contains(&Verdict::Pending) {
            return false;
        }
        let (lag, watermark) = (tally.lag.clone(), tally.watermark.clone());
        let silent = tally.silent(&expected).cloned();
        let runs = expected.intent == Intent::Run && !tally.is_silent(&expected);
        self.known |= runs && lag.is_some() && !tally.lag_unknown;
        for (book, verdict) in self.slos.iter_mut().zip(&verdicts) {
            let counts = Book::counts(*verdict).filter(|_| index >= book.from);
            let ahead = book.ahead.remove(&index);
            let worst = if book.slo.watermark_lag.is_some() { &watermark } else { &lag };
            let silent = silent.as_ref().filter(|_| !book.slo.counts_records()).map(|task| book.silent(task));
            book.worst = silent.or_else(|| worst.clone()).filter(|_| counts.is_some());
            let Some(counts) = counts else { continue };
            if counts.ratio().is_some_and(|bad| bad > book.slo.budget()) {
                book.bad_at = index;
            }
            book.window.add(index, counts);
            book.hour.add(index, counts);
            if !ahead && index > self.counted {
                book.due.add(counts);
            }
        }
        if !verdicts.contains(&Verdict::Unobserved) {
            self.observed = index;
        }
        self.judged = index;
        self.tallies.pop_front();
        while self.expected.get(1).is_some_and(|(from, _)| *from <= self.judged + 1) {
            self.expected.pop_front();
        }
        true
    }

    /// What is bad whatever workers have still to tell goes into the counters at once: a page does not wait for a worker
    /// that cannot be reached. The books wait.
    fn page_ahead(&mut self, workers: &[Worker], now: i64) {
        for (tally, index) in self.tallies.iter().zip(self.judged + 1..now) {
            let expected = expected_at(&self.expected, index);
            let asked = self.asked.unwrap_or(index);
            let view = SliceView { index, now, expected, tally, workers, known: self.known, asked };
            for book in &mut self.slos {
                let counts = index >= book.from && index > self.counted && !book.ahead.contains(&index);
                if counts && matches!(verdict(&book.slo, &view), Verdict::Bad(_)) {
                    book.ahead.insert(index);
                    book.bad_at = book.bad_at.max(index);
                    book.due.add(Counts::slice(false));
                    book.worst = tally.lag.clone();
                }
            }
        }
    }

    fn count_overdue(&mut self, isolated: bool, now: i64) -> u64 {
        let due = now - 1 - PATIENCE;
        let missed = if isolated { due - self.overdue.max(self.judged) } else { 0 };
        self.overdue = self.overdue.max(due).max(self.judged);
        missed.max(0).unsigned_abs()
    }

    /// What shall be now.
    pub fn intent(&self) -> Intent {
        self.expected.back().map_or(Intent::Suspended, |(_, expected)| expected.intent)
    }

    /// By SLO, in the order of the spec.
    pub fn slos(&self) -> &[Book] {
        &self.slos
    }

    /// What is true by now.
    pub fn said(&self, now_ms: i64) -> Said {
        let now = index(now_ms);
        let left = self.slos.iter().filter(|book| book.window.sum(now).slices > 0).map(|book| book.budget_left(now));
        let mut shown = self.shown.1[0].clone();
        shown.merge(&self.shown.1[1]);
        let recent = now.div_euclid(SHOWN) <= self.shown.0 + 1;
        let missing = self.intent().counts() && now - 1 - self.observed > MISSING;
        Said {
            slos: self.slos.iter().map(|book| book.status(now)).collect(),
            freshness_ms: shown.quantile(0.99).filter(|_| recent),
            budget_left: left.min_by(f64::total_cmp),
            missing_since_ms: missing.then_some((self.observed + 1) * SLICE_MS),
            quiet_ms: self
                .slos
                .iter()
                .map(|book| (book.slo.name.clone(), now_ms - (book.bad_at + 1) * SLICE_MS))
                .collect(),
            books: (self.edited || now_ms - self.written_ms >= WRITE_EVERY_MS).then(|| self.text(now_ms)),
        }
    }

    /// What was said to be written down was.
    pub fn written(&mut self, now_ms: i64) {
        (self.written_ms, self.edited) = (now_ms, false);
    }

    /// As text that is written now, for [`Books::open`].
    pub fn text(&self, now_ms: i64) -> String {
        let save = |book: &Book| {
            let (window, hour) = (book.window.text(), book.hour.text());
            (book.slo.name.clone(), SavedBook { of: identity(&book.slo), from: book.from, window, hour })
        };
        let saved = Saved {
            version: VERSION,
            written_ms: now_ms,
            judged: self.judged,
            known: self.known,
            asked: self.asked,
            intents: self.expected.iter().map(|(from, expected)| (*from, expected.intent)).collect(),
            observed: self.observed,
            slos: self.slos.iter().map(save).collect(),
        };
        serde_json::to_string(&saved).expect("texts and numbers can be written")
    }
}

fn outputs_of(slos: &[Book]) -> Vec<super::Output> {
    outputs(slos.iter().map(|book| &book.slo))
}

/// The last one that began by then. The first one covers everything before.
fn expected_at(expected: &VecDeque<(i64, Expected)>, index: i64) -> &Expected {
    let begun = expected.iter().rev().find(|(from, _)| *from <= index).or(expected.front());
    begun.map(|(_, expected)| expected).expect("books are opened with one")
}

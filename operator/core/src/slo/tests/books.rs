//! What books say over time.

use millrace_core::slices::{SliceReport, SlicesReport, TaskSlice};
use serde_json::json;

use super::super::books::{Answer, Books, Said, Seen, WRITE_EVERY_MS};
use super::super::tally::Worst;
use super::*;

const BEGIN: i64 = 1_000_000;

/// A Pipeline with a worker that runs both of its tasks.
struct Run {
    books: Books,
    wanted: Wanted,
    now: i64,
    pods: Vec<Seen>,
    isolated: bool,
}

impl Run {
    fn new(slos: &[Slo]) -> Self {
        Self::open(slos, None, None, BEGIN)
    }

    fn open(slos: &[Slo], saved: Option<&str>, counted: Option<i64>, now: i64) -> Self {
        let expected = Expected { intent: Intent::Run, tasks: Some(tasks(2)) };
        let wanted = Wanted { slos: slos.to_vec(), expected };
        let books = Books::open(saved, &wanted, counted, now * SLICE_MS, now * SLICE_MS);
        let pods = vec![Seen { worker: 0, uid: "a".to_owned(), ready: true }];
        Self { books, wanted, now, pods, isolated: false }
    }

    fn now_ms(&self) -> i64 {
        self.now * SLICE_MS + 2_000
    }

    /// A look at which the worker tells of all slices, each with these tasks.
    fn look(&mut self, told: &[TaskSlice]) -> u64 {
        self.books.expect(&self.wanted, &self.pods, self.now_ms());
        let slice = |index| SliceReport { index, tasks: told.to_vec() };
        let slices = (self.books.next(0)..self.now).map(slice).collect();
        let report = SlicesReport { worker: 0, process: 1, started_index: 0, slices };
        self.books.hear(0, &Answer::Slices(report), self.isolated, self.now_ms());
        self.books.judge(self.isolated, self.now_ms())
    }

    fn silence(&mut self) -> u64 {
        self.books.expect(&self.wanted, &self.pods, self.now_ms());
        self.books.hear(0, &Answer::Silence, self.isolated, self.now_ms());
        self.books.judge(self.isolated, self.now_ms())
    }

    /// A look in each of so many slices.
    fn pass(&mut self, slices: i64, told: &[TaskSlice]) {
        for _ in 0..slices {
            self.now += 1;
            self.look(told);
        }
    }

    fn pass_in_silence(&mut self, slices: i64) -> u64 {
        let look = |run: &mut Self| {
            run.now += 1;
            run.silence()
        };
        (0..slices).map(|_| look(self)).sum()
    }

    fn said(&self) -> Said {
        self.books.said(self.now_ms())
    }

    /// Slices, and bad ones, of the first SLO: by the books, and by the counters.
    fn counts(&self) -> [(u64, u64); 2] {
        let book = &self.books.slos()[0];
        let sum = book.sum(self.now);
        [(sum.observations, sum.bad), (book.observations, book.bad)]
    }
}

fn both() -> [Slo; 2] {
    [lag(), Slo { name: "b".to_owned(), ..freshness() }]
}

fn well() -> Vec<TaskSlice> {
    vec![task(0), task(1)]
}

fn late() -> Vec<TaskSlice> {
    vec![task(0), behind(1, Some(60_000))]
}

#[test]
fn counters_begin_at_zero_and_what_comes_late_is_no_jump() {
    let mut run = Run::new(&[lag()]);
    assert_eq!(run.counts(), [(0, 0); 2]);
    run.pass(5, &well());
    assert_eq!(run.counts(), [(5, 0); 2]);
    let text = run.books.text(run.now_ms());
    // Nobody leads for 100 slices.
    let mut run = Run::open(&[lag()], Some(&text), None, run.now + 100);
    run.look(&late());
    let [books, counters] = run.counts();
    assert_eq!((books, counters), ((105, 100), (2, 2)));
    for slices in 1..=49 {
        run.pass(1, &well());
        let [(all, bad), (counted, _)] = run.counts();
        assert_eq!((all, bad, counted), (105 + slices, 100, 2 + 2 * slices));
    }
    run.pass(200, &well());
    let [(all, bad), counters] = run.counts();
    assert_eq!(counters, (all - 5, bad), "of those before, another process has told");
}

#[test]
fn counters_count_nothing_that_a_former_leader_has_counted() {
    let mut run = Run::new(&[lag()]);
    run.look(&well());
    let text = run.books.text(run.now_ms());
    run.pass(20, &late());
    let mut next = Run::open(&[lag()], Some(&text), Some(run.now - 1), run.now + 2);
    next.look(&late());
    next.pass(5, &well());
    assert_eq!(next.counts(), [(27, 22), (7, 2)]);
}

#[test]
fn a_look_that_comes_late_grants_no_jump_either() {
    let mut run = Run::new(&[lag()]);
    run.pass(3, &well());
    run.now += 60;
    run.look(&well());
    assert_eq!(run.counts(), [(63, 0), (9, 0)]);
}

#[test]
fn an_edit_of_the_objective_keeps_the_books_and_one_of_the_threshold_begins_anew() {
    let mut run = Run::new(&both());
    run.pass(10, &late());
    run.wanted.slos[0].objective = "99".to_owned();
    run.pass(1, &late());
    assert_eq!(run.counts(), [(11, 11); 2]);
    run.wanted.slos[0] = slo(json!({"lag": {"threshold": "2m"}}));
    run.pass(3, &late());
    // From the slice on in which it was edited.
    assert_eq!(run.counts(), [(2, 0); 2]);
    let kept = &run.books.slos()[1];
    assert_eq!((kept.sum(run.now).observations, kept.observations), (14, 14));
    run.wanted.slos.remove(1);
    run.pass(1, &late());
    assert_eq!(run.books.slos().len(), 1);
}

#[test]
fn what_was_written_down_reads_back_and_what_is_none_is_as_good_as_lost() {
    let slos = both();
    let mut run = Run::new(&slos);
    run.pass(40, &late());
    let text = run.books.text(run.now_ms());
    let again = Run::open(&slos, Some(&text), None, run.now);
    assert_eq!(again.said().slos, run.said().slos);
    for text in ["", "{}", &text.replace("\"version\":1", "\"version\":2"), &text.replace("462 ", "x ")] {
        let lost = Run::open(&slos, Some(text), None, run.now);
        assert_eq!(lost.counts(), [(0, 0); 2], "{text}");
    }
}

#[test]
fn books_are_written_at_once_when_they_are_opened_or_edited_and_else_every_five_minutes() {
    let mut run = Run::new(&[lag()]);
    let mut written = Vec::new();
    for slice in 0..100 {
        if slice == 50 {
            run.wanted.slos[0].objective = "99".to_owned();
        }
        run.pass(1, &well());
        if run.said().books.is_some() {
            written.push(slice);
            run.books.written(run.now_ms());
        }
    }
    assert_eq!(written, [0, 30, 50, 80]);
    assert_eq!(WRITE_EVERY_MS, 30 * SLICE_MS);
}

#[test]
fn a_rest_does_not_count_and_the_grace_begins_anew_after_it() {
    let mut run = Run::new(&[lag()]);
    run.pass(10, &well());
    run.wanted.expected.intent = Intent::Suspended;
    run.pods.clear();
    run.pass_in_silence(20);
    run.wanted.expected.intent = Intent::Run;
    run.pass_in_silence(31);
    let [books, _] = run.counts();
    assert_eq!(books, (10, 0));
    run.pass_in_silence(3);
    let [books, _] = run.counts();
    assert_eq!(books, (12, 2), "five minutes after it was asked to run it counts");
}

#[test]
fn a_page_does_not_wait_for_a_worker_that_cannot_be_reached() {
    let mut run = Run::new(&both());
    run.pods.push(Seen { worker: 1, uid: "b".to_owned(), ready: true });
    run.look(&well());
    run.books.hear(1, &Answer::Silence, false, run.now_ms());
    for _ in 0..10 {
        run.now += 1;
        run.books.hear(1, &Answer::Silence, false, run.now_ms());
        run.look(&late());
    }
    assert_eq!(run.counts(), [(0, 0), (10, 10)]);
    let other = SlicesReport { worker: 1, process: 2, started_index: 0, slices: Vec::new() };
    let slices = (BEGIN..run.now).map(|index| SliceReport { index, tasks: Vec::new() }).collect();
    run.books.hear(1, &Answer::Slices(SlicesReport { slices, ..other }), false, run.now_ms());
    run.books.judge(false, run.now_ms());
    assert_eq!(run.counts(), [(10, 10); 2]);
}

#[test]
fn what_is_not_observed_for_ten_minutes_is_said() {
    let mut run = Run::new(&[lag()]);
    run.pass(10, &well());
    run.pass_in_silence(60);
    assert_eq!(run.said().missing_since_ms, None);
    run.pass_in_silence(1);
    assert_eq!(run.said().missing_since_ms, Some((BEGIN + 10) * SLICE_MS));
    run.pass(1, &well());
    assert_eq!((run.said().missing_since_ms, run.counts()[0]), (None, (72, 0)));
}

#[test]
fn slices_that_nobody_could_observe_in_time_are_counted_and_may_still_come() {
    let mut run = Run::new(&[lag()]);
    run.pass(10, &well());
    run.isolated = true;
    // Four slices are the time that they have.
    assert_eq!(run.pass_in_silence(14), 11);
    run.isolated = false;
    run.pass(1, &late());
    assert_eq!(run.counts()[0], (25, 15));
    run.isolated = true;
    assert_eq!(run.pass_in_silence(400), 397);
    // After an hour they are lost, and not bad.
    assert_eq!(run.counts()[0], (25, 15));
}

#[test]
fn the_worst_one_is_named_and_a_silent_task_by_how_long_it_is() {
    let mut run = Run::new(&[lag()]);
    run.pass(3, &late());
    let worst = |run: &Run| run.books.slos()[0].worst.clone();
    let of = |ms, source: &str| Some(Worst { ms, source: source.to_owned(), partition: Partition(1) });
    assert_eq!(worst(&run), of(60_000, "orders"));
    run.pass(3, &[task(0)]);
    assert_eq!(worst(&run), of(30_000, "s"));
    run.wanted.expected.intent = Intent::Suspended;
    run.pass(3, &well());
    assert_eq!(worst(&run), None);
}

#[test]
fn figures_are_those_of_the_window_and_the_hour() {
    let mut run = Run::new(&[lag()]);
    assert_eq!(run.said().budget_left, None);
    run.pass(1_000, &well());
    run.pass(26, &late());
    let said = run.said();
    // 30 days are 259,200 slices, of which 259.2 may be bad; the last hour has 330 to 360 slices.
    let status = &said.slos[0];
    let texts = (status.sli.as_deref(), status.budget_left.as_deref(), status.observed.as_str(), status.met);
    assert_eq!(texts, (Some("97.465%"), Some("89%"), "0%", true));
    let burn: f64 = status.burn_rate.as_ref().expect("an hour").parse().expect("a number");
    assert!((26.0 / 0.36..=26.0 / 0.33).contains(&burn), "{burn}");
    assert!((said.budget_left.expect("budget") - (1.0 - 26.0 / 259.2)).abs() < 1e-9);
    run.pass(234, &late());
    let status = &run.said().slos[0];
    assert_eq!((status.budget_left.as_deref(), status.met), (Some("-1%"), false));
}

#[test]
fn records_spend_the_budget_of_the_records() {
    let mut run = Run::new(&[slo(json!({"correctness": {}, "minEvents": 5_000}))]);
    let of = |dead_lettered| vec![TaskSlice { rows: 1_000, dead_lettered, ..task(0) }];
    run.pass(1, &of(500));
    assert_eq!(run.said().slos[0].budget_left.as_deref(), Some("100%"), "too few to count");
    run.pass(999, &of(0));
    let status = run.said().slos.remove(0);
    assert_eq!((status.sli.as_deref(), status.budget_left.as_deref()), (Some("99.95%"), Some("50%")));
    assert_eq!(run.counts()[1], (1_000_000, 500));
}

#[test]
fn freshness_is_shown_of_the_last_minutes() {
    let mut run = Run::new(&[lag()]);
    assert_eq!(run.said().freshness_ms, None);
    let fresh = |ms| vec![TaskSlice { freshness: Some(sketch([ms; 10])), ..task(0) }, task(1)];
    run.pass(10, &fresh(6_000));
    let shown = run.said().freshness_ms.expect("results came out");
    assert!((5_880..=6_120).contains(&shown), "{shown}");
    run.pass(90, &fresh(100));
    assert!(run.said().freshness_ms.expect("results came out") < 110);
    run.now += 120;
    assert_eq!(run.said().freshness_ms, None);
}

#[test]
fn the_books_of_five_thousand_slos_fit_into_twenty_four_megabytes() {
    let mut run = Run::new(&[lag()]);
    // All buckets of the window and of the hour: each look is in another bucket.
    for _ in 0..200 {
        run.now += 2_160;
        run.books.expect(&run.wanted, &[], run.now_ms());
        run.books.judge(false, run.now_ms());
    }
    let bytes = run.books.slos()[0].bytes();
    assert!(bytes < (24 << 20) / 5_000, "{bytes}");
}

#[test]
fn what_waits_for_a_worker_is_bounded_by_the_hour() {
    let mut run = Run::new(&[lag()]);
    run.pods.push(Seen { worker: 1, uid: "b".to_owned(), ready: true });
    for _ in 0..1_000 {
        run.now += 1;
        run.books.hear(1, &Answer::Silence, false, run.now_ms());
        run.look(&well());
    }
    let [(all, bad), counters] = run.counts();
    assert_eq!((all, bad), (1_000 - 360, 0));
    assert_eq!(counters, (all, bad));
    assert!(run.books.text(run.now_ms()).len() < 1_000);
}

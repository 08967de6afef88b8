//! Faults that people have met with other autoscalers, each as the samples that show it.

use millrace_operator_core::autoscale::{Advice, Gap, History, Part, Reason, Sample, Terms, advise};

const NOW_MS: i64 = 1_000_000;

/// A partition as it was half a minute ago, and what a second adds: to its position, to what waits, and to the age of that.
#[derive(Clone, Copy)]
struct Course {
    records: i64,
    age_ms: i64,
    done: i64,
    grows: i64,
    ages_ms: i64,
}

/// Read to its end, with some rows a second.
const LEVEL: Course = Course { records: 0, age_ms: 0, done: 100, grows: 0, ages_ms: 0 };
/// Nothing was ever written to it.
const NEVER_USED: Course = Course { records: 0, age_ms: 0, done: 0, grows: 0, ages_ms: 0 };

fn terms(partitions: usize) -> Terms {
    Terms {
        min: 1,
        max: 100,
        target_ms: 30_000,
        catch_up_ms: 300_000,
        stabilisation_ms: 300_000,
        plan: "plan".to_owned(),
        stages: [("s".to_owned(), partitions as i32)].into(),
        lanes: 1,
        remembered: None,
    }
}

fn part(at: usize, course: Course, second: i64, replicas: u32) -> Part {
    Part {
        source: "orders".to_owned(),
        partition: at as i32,
        stage: "s".to_owned(),
        slot: (at as u32 % replicas, 0),
        lag_ms: course.age_ms + course.ages_ms * second,
        lag_records: course.records + course.grows * second,
        position: course.done * second,
    }
}

/// Half a minute.
fn seen(courses: &[Course], replicas: u32, terms: &Terms) -> History {
    let mut history = History::default();
    for second in [0, 10, 20, 30] {
        let parts = courses.iter().enumerate().map(|(at, course)| part(at, *course, second, replicas)).collect();
        history.note(Sample { at_ms: NOW_MS - 30_000 + second * 1_000, replicas, parts: Ok(parts) }, terms);
    }
    history
}

fn advice(courses: &[Course], replicas: u32, terms: &Terms) -> Advice {
    advise(&seen(courses, replicas, terms), terms, None, replicas, NOW_MS)
}

#[test]
fn case_20_a_lag_that_is_not_known_changes_nothing() {
    let terms = terms(2);
    let mut history = seen(&[LEVEL; 2], 2, &terms);
    let parts = Err(Gap::Unknown("the lag of partition 0 of source orders is not known".to_owned()));
    history.note(Sample { at_ms: NOW_MS + 10_000, replicas: 2, parts }, &terms);
    let Advice { to, reason, message } = advise(&history, &terms, None, 2, NOW_MS + 10_000);
    assert_eq!((to, reason), (None, Reason::LagUnknown));
    assert!(message.contains("partition 0 of source orders"), "{message}");
    // Nor does one that was known a while ago.
    assert_eq!(advise(&seen(&[LEVEL; 2], 2, &terms), &terms, None, 2, NOW_MS + 31_000).reason, Reason::LagUnknown);
}

#[test]
fn case_21_there_is_always_a_worker_that_wakes_up() {
    let terms = terms(2);
    let mut history = History::default();
    for second in (0..400).step_by(10) {
        let parts = (0..2).map(|at| part(at, NEVER_USED, second, 1)).collect();
        history.note(Sample { at_ms: second * 1_000, replicas: 1, parts: Ok(parts) }, &terms);
    }
    assert_eq!(advise(&history, &terms, None, 1, 390_000).to, None, "never 0, however long nothing comes in");
}

#[test]
fn case_23_one_hot_partition_of_64_brings_no_workers_and_is_named() {
    let hot = Course { records: 450_000, age_ms: 900_000, done: 500, grows: 1_000, ages_ms: 700 };
    let courses: Vec<Course> = (0..64).map(|at| if at == 0 { hot } else { LEVEL }).collect();
    let Advice { to, reason, message } = advice(&courses, 8, &terms(64));
    assert_eq!((to, reason), (None, Reason::HotPartition), "{message}");
    assert!(message.starts_with("hot partition 0 of source orders: 1 of 64 tasks"), "{message}");
}

#[test]
fn case_24_a_partition_that_was_never_used_asks_for_nothing() {
    let busy = Course { records: 40_000, age_ms: 60_000, done: 500, grows: 100, ages_ms: 200 };
    let of = |others: usize| {
        let courses: Vec<Course> = [busy; 2].into_iter().chain(vec![NEVER_USED; others]).collect();
        advice(&courses, 1, &terms(courses.len())).to
    };
    assert_eq!(of(0), Some(2));
    assert_eq!(of(14), Some(2), "as if they were not there");
}

#[test]
fn case_26_rows_in_flight_are_no_demand_for_more_workers() {
    // Four rows, each of which takes minutes.
    let slow = Course { records: 1, age_ms: 60_000, done: 0, grows: 0, ages_ms: 1_000 };
    for remembered in [None, Some(10.0)] {
        let terms = Terms { remembered, ..terms(4) };
        assert_eq!(advice(&[slow; 4], 1, &terms).to, None);
    }
}

#[test]
fn rows_with_old_timestamps_are_no_backlog() {
    let copied = Course { records: 10, age_ms: 7_200_000, done: 100, grows: 0, ages_ms: 0 };
    let Advice { to, reason, message } = advice(&[copied; 4], 2, &terms(4));
    assert_eq!((to, reason), (None, Reason::CatchingUp), "{message}");
}

#[test]
fn three_workers_are_not_taken_where_they_do_no_more_than_two() {
    // Of four equal tasks one of three workers would have two.
    let behind = Course { records: 20_000, age_ms: 60_000, done: 250, grows: 200, ages_ms: 400 };
    let Advice { to, message, .. } = advice(&[behind; 4], 2, &terms(4));
    assert_eq!(to, Some(4), "{message}");
}

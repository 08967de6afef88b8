//! The ledger that SLOs are held against, with moments that are known.

use std::collections::BTreeSet;

use millrace_tests::ledger::{Bad, Ledger, Made, Row, SLICE_MS, counted};

/// The beginning of a slice.
const BEGIN: i64 = 1_700_000_000_000;
const FIRST: i64 = BEGIN / SLICE_MS;
const THRESHOLD_MS: i64 = 5_000;

/// Records as (partition, made, seen), in milliseconds behind [`BEGIN`].
fn ledger(records: impl IntoIterator<Item = (i32, i64, i64)>) -> Ledger {
    let (made, rows): (Vec<Made>, Vec<Row>) = (0..)
        .zip(records)
        .map(|(id, (partition, made, seen))| {
            let at_ms = BEGIN + made;
            (Made { id, partition, at_ms }, Row { id, of_ms: at_ms, seen_ms: BEGIN + seen })
        })
        .unzip();
    Ledger::new(&made, &rows).unwrap()
}

/// One record a tenth of a second, from and to such moments, each of which comes out as `seen` says.
fn flow(partition: i32, from: i64, to: i64, seen: impl Fn(i64) -> i64) -> Vec<(i32, i64, i64)> {
    (from..to).step_by(100).map(|made| (partition, made, seen(made))).collect()
}

/// Slices by their distance from the first one.
fn slices(bad: &BTreeSet<i64>) -> Vec<i64> {
    bad.iter().map(|slice| slice - FIRST).collect()
}

fn bad(ledger: &Ledger) -> (Vec<i64>, Vec<i64>) {
    let Bad { freshness, lag } = ledger.bad(THRESHOLD_MS);
    (slices(&freshness), slices(&lag))
}

#[test]
fn what_comes_out_within_the_threshold_is_good_and_so_is_silence() {
    let flows = [flow(0, 0, 20_000, |made| made + 100), flow(1, 40_000, 60_000, |made| made + THRESHOLD_MS)];
    assert_eq!(bad(&ledger(flows.concat())), (vec![], vec![]));
}

#[test]
fn lag_is_bad_in_every_slice_in_which_a_record_had_waited_for_too_long() {
    // Too long from 15,001 on, through two edges.
    assert_eq!(bad(&ledger([(0, 10_000, 30_000)])).1, [1, 2, 3]);
    // A millisecond before an edge, and behind it.
    assert_eq!(bad(&ledger([(0, 4_998, 9_999)])).1, [0]);
    assert_eq!(bad(&ledger([(0, 4_999, 10_000)])).1, [1]);
    assert_eq!(bad(&ledger([(0, 4_999, 9_999)])).1, [0i64; 0]);
}

#[test]
fn freshness_is_bad_where_more_than_one_row_in_a_hundred_is_late() {
    let with_late = |late: usize| {
        let in_time = flow(0, 10_000, 19_800, |made| made + 100);
        let late = std::iter::repeat_n((1, 12_000, 18_000), late);
        bad(&ledger(in_time.into_iter().chain(late))).0
    };
    assert_eq!(with_late(0), [0i64; 0]);
    // Of 98 in time, one more in 99 is above a hundredth; of the others it takes two.
    assert_eq!(with_late(1), [1]);
    let more = flow(0, 10_000, 19_950, |made| made + 40);
    let one_in_a_hundred = more.iter().copied().take(99).chain([(1, 12_000, 18_000)]);
    assert_eq!(bad(&ledger(one_in_a_hundred)).0, [0i64; 0]);
}

#[test]
fn a_partition_of_which_nothing_comes_is_stale_while_the_others_are_fresh() {
    // It stands still from 6 s of the first slice to 1.5 s of the fourth.
    let still = |made: i64| if made < 6_000 { made + 100 } else { made.max(31_500) + 100 };
    let flows = [flow(0, 0, 50_000, |made| made + 100), flow(1, 0, 50_000, still)].concat();
    assert_eq!(bad(&ledger(flows)), (vec![1, 2, 3], vec![1, 2, 3]));
}

#[test]
fn what_waits_for_less_than_a_slice_is_stale_only_where_it_comes_out() {
    // Something of it comes in each slice.
    let slow = |made: i64| if (7_000..13_000).contains(&made) { 13_100 } else { made + 100 };
    let flows = [flow(0, 0, 30_000, |made| made + 100), flow(1, 0, 30_000, slow)].concat();
    assert_eq!(bad(&ledger(flows)), (vec![1], vec![1]));
}

#[test]
fn where_nothing_comes_out_all_is_stale_while_a_record_waits() {
    let gone = |made: i64| if made < 5_500 { made + 100 } else { made.max(36_000) + 100 };
    let flows: Vec<_> = (0..4).flat_map(|partition| flow(partition, 0, 60_000, gone)).collect();
    assert_eq!(bad(&ledger(flows)), (vec![1, 2, 3], vec![1, 2, 3]));
}

#[test]
fn bad_slices_are_counted_by_stretches() {
    let bad = ledger([(0, 0, 12_000), (0, 50_000, 72_000)]).bad(THRESHOLD_MS);
    assert_eq!(slices(&bad.lag), [0, 1, 5, 6, 7]);
    assert_eq!(bad.within(&(FIRST..FIRST + 2)), [2, 2]);
    assert_eq!(bad.within(&(FIRST + 2..FIRST + 7)), [2, 2]);
    assert_eq!(bad.within(&(FIRST + 8..FIRST + 80)), [0, 0]);
}

#[test]
fn a_record_that_became_no_row_or_two_or_another_one_is_a_mistake() {
    let made = Made { id: 7, partition: 0, at_ms: BEGIN };
    let row = Row { id: 7, of_ms: BEGIN, seen_ms: BEGIN + 100 };
    let mistake = |made: &[Made], rows: &[Row]| Ledger::new(made, rows).unwrap_err().to_string();
    assert!(mistake(&[made], &[]).contains("has become no row"));
    assert!(mistake(&[made], &[row, row]).contains("is there twice"));
    assert!(mistake(&[], &[row]).contains("of no record"));
    assert!(mistake(&[made], &[Row { of_ms: BEGIN + 1, ..row }]).contains("has the timestamp"));
    assert!(mistake(&[made, made], &[row]).contains("one id"));
}

#[test]
fn each_process_has_counted_what_it_said_last() {
    assert_eq!(counted(&[]), [0u64; 0]);
    assert_eq!(counted(&[0.0, 1.0, 1.0, 3.0]), [3]);
    assert_eq!(counted(&[0.0, 7.0, 0.0, 0.0, 2.0, 1.0]), [7, 2, 1]);
}

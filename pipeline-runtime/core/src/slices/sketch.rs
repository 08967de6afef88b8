//! How long rows took, as counts in logarithmic buckets: DDSketch (Masson, Rim, Lee, VLDB 2019). Sketches of several tasks
//! and slices are merged without loss.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A quantile is off by this share of itself at most, and by what rounding to milliseconds adds.
pub const RELATIVE_ERROR: f64 = 0.02;
/// The upper bound of a bucket over its lower bound.
const GAMMA: f64 = (1.0 + RELATIVE_ERROR) / (1.0 - RELATIVE_ERROR);
/// What the shortest times have beyond them is counted in the lowest that is left, as the paper does: 300 buckets reach
/// down to 1 / 160,000 of the longest time, which of a day is half a second. About 6 KB.
pub const BUCKETS_MAX: usize = 300;
/// One above the bucket of the largest number there is: 2 + ln(2^63) / ln(GAMMA) = 1093.6.
const BUCKETS_ALL: usize = 1_094;

/// Times in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Sketch {
    /// Rows by bucket. Bucket 0 is 0 ms, bucket `i` the times above `GAMMA^(i - 2)` up to `GAMMA^(i - 1)`.
    pub buckets: BTreeMap<i32, u64>,
}

fn bucket(ms: i64) -> usize {
    if ms <= 0 { 0 } else { 1 + ((ms as f64).ln() / GAMMA.ln()).ceil() as usize }
}

/// What is off by the same share from both ends of a bucket.
fn middle(bucket: i32) -> i64 {
    if bucket <= 0 { 0 } else { (GAMMA.powi(bucket - 1) * 2.0 / (GAMMA + 1.0)).round() as i64 }
}

impl Sketch {
    /// Of times in milliseconds, each with its number of rows. Below 0 is 0: clocks differ.
    pub fn of(times: impl Iterator<Item = (i64, u64)>) -> Self {
        let mut counts = [0; BUCKETS_ALL];
        for (ms, rows) in times {
            counts[bucket(ms)] += rows;
        }
        let buckets = (0..).zip(counts).filter(|(_, rows)| *rows > 0).collect();
        Self { buckets }.bounded()
    }

    pub fn merge(&mut self, other: &Self) {
        for (bucket, rows) in &other.buckets {
            *self.buckets.entry(*bucket).or_default() += rows;
        }
        *self = std::mem::take(self).bounded();
    }

    fn bounded(mut self) -> Self {
        while self.buckets.len() > BUCKETS_MAX
            && let Some((_, rows)) = self.buckets.pop_first()
            && let Some(mut lowest) = self.buckets.first_entry()
        {
            *lowest.get_mut() += rows;
        }
        self
    }

    /// Rows.
    pub fn count(&self) -> u64 {
        self.buckets.values().sum()
    }

    /// The smallest time, in milliseconds, that at least the share `q` of the rows took at most. `None`: there are none.
    pub fn quantile(&self, q: f64) -> Option<i64> {
        let rank = ((q * self.count() as f64).ceil() as u64).max(1);
        let mut below = 0;
        let found = self.buckets.iter().find(|(_, rows)| {
            below += **rows;
            below >= rank
        });
        let (bucket, _) = found.or_else(|| self.buckets.last_key_value())?;
        Some(middle(*bucket))
    }
}

/// When the rows of an open epoch were made, wall-clock milliseconds. It is their commit that says how long they took,
/// so till then they are kept: 16 bytes for each run of equal ones, next to the hundreds that each row's record takes on
/// its way out. What an epoch may write bounds both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamps {
    runs: Vec<(i64, u64)>,
}

impl Stamps {
    pub fn push(&mut self, ms: i64) {
        match self.runs.last_mut() {
            Some((last, rows)) if *last == ms => *rows += 1,
            _ => self.runs.push((ms, 1)),
        }
    }

    pub fn clear(&mut self) {
        self.runs.clear();
    }

    /// How long ago that was, in milliseconds, and for how many rows. A record from the future is as good as new.
    pub fn ages(&self, now_ms: i64) -> impl Iterator<Item = (i64, u64)> {
        self.runs.iter().map(move |(ms, rows)| (now_ms.saturating_sub(*ms).max(0), *rows))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sketch(times: &[i64]) -> Sketch {
        Sketch::of(times.iter().map(|ms| (*ms, 1)))
    }

    /// The smallest time that at least the share `q` took at most, and how far from it an answer may be.
    fn exact(times: &[i64], q: f64) -> (i64, f64) {
        let mut sorted = times.to_vec();
        sorted.sort_unstable();
        let rank = ((q * times.len() as f64).ceil() as usize).max(1);
        let exact = sorted[rank - 1];
        // In floating point an edge may fall to either side of it.
        (exact, exact as f64 * (RELATIVE_ERROR + 1e-9) + 0.5)
    }

    /// Milliseconds of every size up to a day.
    fn times() -> impl Strategy<Value = Vec<i64>> {
        let any_size = (0u32..27).prop_flat_map(|bits| 0..(1i64 << bits).min(86_400_000));
        proptest::collection::vec(any_size, 1..400)
    }

    proptest! {
        #[test]
        fn a_quantile_is_off_by_two_per_cent_at_most(times in times(), q in 0.0..=1.0f64) {
            let found = sketch(&times).quantile(q).expect("there are rows");
            let (exact, off) = exact(&times, q);
            prop_assert!((found - exact).abs() as f64 <= off, "{found} for {exact}");
        }

        #[test]
        fn what_is_merged_is_as_if_it_had_been_one(a in times(), b in times()) {
            let mut merged = sketch(&a);
            merged.merge(&sketch(&b));
            prop_assert_eq!(merged.count(), (a.len() + b.len()) as u64);
            prop_assert_eq!(merged, sketch(&[a, b].concat()));
        }

        #[test]
        fn rows_of_one_age_are_counted_together_and_none_is_lost(ages in proptest::collection::vec(-3i64..3, 0..50)) {
            const NOW: i64 = 1_700_000_000_000;
            let mut stamps = Stamps::default();
            ages.iter().for_each(|age| stamps.push(NOW - age));
            let clamped: Vec<i64> = ages.iter().map(|age| *age.max(&0)).collect();
            prop_assert_eq!(Sketch::of(stamps.ages(NOW)), sketch(&clamped));
        }
    }

    #[test]
    fn it_is_bounded_and_keeps_the_longest_times_right() {
        let times: Vec<i64> = (0..2_000).map(|i| GAMMA.powf(f64::from(i) / 2.0) as i64).chain([i64::MAX]).collect();
        let whole = sketch(&times);
        assert_eq!((whole.buckets.len(), whole.count()), (BUCKETS_MAX, times.len() as u64));
        for q in [0.9, 0.99, 1.0] {
            let (exact, off) = exact(&times, q);
            let found = whole.quantile(q).expect("there are rows");
            assert!((i128::from(found) - i128::from(exact)).abs() as f64 <= off, "{found} for {exact}");
        }
        let mut merged = sketch(&times[..1_000]);
        merged.merge(&sketch(&times[1_000..]));
        assert_eq!(merged, whole);
    }

    #[test]
    fn without_rows_there_is_no_quantile() {
        assert_eq!(Sketch::default().quantile(0.99), None);
        assert_eq!(sketch(&[-5]).quantile(0.99), Some(0), "a record from the future");
    }
}

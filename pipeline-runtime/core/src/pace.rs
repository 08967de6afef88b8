//! A limit to the records of a second.
//!
//! What was taken is paid for with time, and nothing more is taken until that is over: so a rate holds on average, however
//! large batches are, and what was not used before is not made up for.

use serde::{Deserialize, Serialize};

const MICROS_PER_SECOND: u64 = 1_000_000;
/// At once so many times a second's share are taken: less often costs nothing, and nobody waits for long.
const TURNS_PER_SECOND: u64 = 20;

/// How fast a backfill shall read from now on, as an operator tells its worker. An order that is not whole is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rate {
    /// Records of streams in a second, of the whole process; with 0 it pauses. `None`: as many as it can.
    #[serde(deserialize_with = "Option::deserialize")]
    pub records_per_second: Option<u64>,
}

/// Times are steady microseconds.
#[derive(Clone, Debug)]
pub struct Pace {
    per_second: u64,
    paid_us: u64,
}

impl Pace {
    /// With 0 nothing is taken.
    pub fn new(per_second: u64) -> Self {
        Self { per_second, paid_us: 0 }
    }

    /// What is not paid yet stays so: that is over within a second.
    pub fn set(&mut self, per_second: u64) {
        self.per_second = per_second;
    }

    /// How many may be taken now.
    pub fn allows(&self, now_us: u64) -> u64 {
        match self.per_second {
            0 => 0,
            _ if now_us < self.paid_us => 0,
            per_second => (per_second / TURNS_PER_SECOND).max(1),
        }
    }

    pub fn took(&mut self, records: u64, now_us: u64) {
        let cost_us = records.saturating_mul(MICROS_PER_SECOND) / self.per_second.max(1);
        self.paid_us = self.paid_us.max(now_us) + cost_us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records that are taken within some seconds by one who looks every so many microseconds, of which there are enough.
    fn taken(per_second: u64, seconds: u64, every_us: u64, most: u64) -> u64 {
        let (mut pace, mut taken) = (Pace::new(per_second), 0);
        for now_us in (0..seconds * MICROS_PER_SECOND).step_by(every_us as usize) {
            let batch = pace.allows(now_us).min(most);
            pace.took(batch, now_us);
            taken += batch;
        }
        taken
    }

    #[test]
    fn as_many_are_taken_as_are_allowed_whatever_the_batches() {
        for per_second in [1, 7, 100, 50_000, 3_000_000] {
            let all = taken(per_second, 60, 1_000, u64::MAX);
            assert!(all.abs_diff(60 * per_second) <= 60 * per_second / 20 + 1, "{all} of {per_second} a second");
        }
        assert!(taken(50_000, 60, 1_000, 10) <= 60 * 50_000);
    }

    #[test]
    fn another_rate_counts_at_once_and_with_none_nothing_is_taken() {
        let mut pace = Pace::new(0);
        assert_eq!(pace.allows(0), 0);
        assert_eq!(pace.allows(u64::MAX), 0);
        pace.set(100);
        assert_eq!(pace.allows(0), 5);
        pace.took(5, 0);
        pace.set(0);
        assert_eq!(pace.allows(MICROS_PER_SECOND), 0);
        pace.set(200);
        assert_eq!((pace.allows(49_999), pace.allows(50_000)), (0, 10));
    }

    #[test]
    fn a_rate_is_told_whole_or_not_at_all() {
        let read = |text: &str| serde_json::from_str::<Rate>(text).ok().map(|rate| rate.records_per_second);
        assert_eq!(read(r#"{"recordsPerSecond": 7}"#), Some(Some(7)));
        assert_eq!(read(r#"{"recordsPerSecond": null}"#), Some(None));
        for wrong in ["{}", r#"{"recordsPerSecond": -1}"#, r#"{"recordsPerSecond": 1, "for": "a minute"}"#, "7"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_was_not_taken_is_not_made_up_for() {
        let mut pace = Pace::new(100);
        pace.took(5, 0);
        assert_eq!(pace.allows(49_999), 0);
        let later = 60 * MICROS_PER_SECOND;
        assert_eq!(pace.allows(later), 5);
        pace.took(5, later);
        assert_eq!(pace.allows(later), 0);
    }
}

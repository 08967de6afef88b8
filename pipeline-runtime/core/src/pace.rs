//! A limit to the records of a second.
//!
//! What was taken is paid for with time, and nothing more is taken until that is over: so a rate holds on average, however
//! large batches are, and what was not used before is not made up for.

const MICROS_PER_SECOND: u64 = 1_000_000;
/// At once so many times a second's share are taken: less often costs nothing, and nobody waits for long.
const TURNS_PER_SECOND: u64 = 20;

/// Times are steady microseconds.
#[derive(Clone, Debug)]
pub struct Pace {
    per_second: u64,
    paid_us: u64,
}

impl Pace {
    pub fn new(per_second: u64) -> Self {
        Self { per_second: per_second.max(1), paid_us: 0 }
    }

    /// How many may be taken now.
    pub fn allows(&self, now_us: u64) -> u64 {
        if now_us < self.paid_us { 0 } else { (self.per_second / TURNS_PER_SECOND).max(1) }
    }

    pub fn took(&mut self, records: u64, now_us: u64) {
        self.paid_us = self.paid_us.max(now_us) + records.saturating_mul(MICROS_PER_SECOND) / self.per_second;
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

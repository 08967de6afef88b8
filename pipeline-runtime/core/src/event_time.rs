//! Watermarks. Event times are microseconds since the epoch in UTC; everything is an argument, nothing is measured.
//!
//! A *source partition* makes its watermark from the rows it has read ([`SourceClock`]). A *stage input* takes the
//! minimum over its upstream tasks ([`InputClock`]); for a source that is read directly there is one upstream. The
//! watermark `w` says: rows with an event time below `w` are late. It never goes back.

use serde::{Deserialize, Serialize};

use crate::plan::{EventTime, FuturePolicy};

/// Nothing is known yet.
pub const WATERMARK_MIN: i64 = i64::MIN;
/// The input has ended: nothing is late any more, nothing waits any more.
pub const WATERMARK_MAX: i64 = i64::MAX;

const MICROS_PER_MS: i64 = 1000;

/// What a row's event time means for its source partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The event time was below the watermark when the row arrived.
    pub late: bool,
    /// The event time was further ahead of the record's timestamp than allowed.
    pub future: bool,
    /// The watermark behind this row.
    pub watermark: i64,
}

/// The event-time progress of one source partition. Kept in the epoch marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceClock {
    watermark: i64,
}

impl Default for SourceClock {
    fn default() -> Self {
        Self { watermark: WATERMARK_MIN }
    }
}

impl SourceClock {
    pub fn watermark(self) -> i64 {
        self.watermark
    }

    /// Takes the next row of the partition into account. `timestamp_ms` is the record's, if it has one.
    /// With [`FuturePolicy::DeadLetter`] a row from the future leaves the watermark where it was.
    pub fn observe(&mut self, spec: &EventTime, event_time: i64, timestamp_ms: Option<i64>) -> Seen {
        let late = event_time < self.watermark;
        let limit = timestamp_ms
            .map(|t| t.saturating_add(spec.max_future_skew_ms).saturating_mul(MICROS_PER_MS))
            .unwrap_or(i64::MAX);
        let future = event_time > limit;
        let counted = match (future, spec.future) {
            (false, _) | (true, FuturePolicy::Accept) => Some(event_time),
            (true, FuturePolicy::Clamp) => Some(limit),
            (true, FuturePolicy::DeadLetter) => None,
        };
        if let Some(time) = counted {
            let allowed = spec.max_out_of_orderness_ms.saturating_mul(MICROS_PER_MS);
            // MAX is kept for the end of the input: a row can never claim it.
            let watermark = time.saturating_sub(allowed).min(WATERMARK_MAX - 1);
            self.watermark = self.watermark.max(watermark);
        }
        Seen { late, future, watermark: self.watermark }
    }
}

/// What one upstream task last said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upstream {
    pub watermark: i64,
    /// It has had nothing for its idle timeout: it does not hold the others back.
    pub idle: bool,
    /// No row will follow, as far as is known now. Not kept over a restart: a file may have grown.
    pub ended: bool,
    /// For tables: it has read its source to the end that was captured at the pipeline's start.
    pub level: bool,
    /// For tables: milliseconds of the wall clock for which it has read all that its source then held. Not kept over a
    /// restart.
    pub complete_as_of_ms: i64,
}

impl Default for Upstream {
    fn default() -> Self {
        Self { watermark: WATERMARK_MIN, idle: false, ended: false, level: false, complete_as_of_ms: i64::MIN }
    }
}

/// The event-time progress of one stage input: the minimum over its upstream tasks. Kept in the epoch marker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputClock {
    upstreams: Vec<Upstream>,
    watermark: i64,
}

impl InputClock {
    /// `upstreams` is 1 for a source that is read directly, else the number of tasks that write the exchange.
    pub fn new(upstreams: usize) -> Self {
        Self { upstreams: vec![Upstream::default(); upstreams], watermark: WATERMARK_MIN }
    }

    /// The clock as it goes on after a restart: what held only for the moment is forgotten.
    pub fn restored(mut self) -> Self {
        for upstream in &mut self.upstreams {
            *upstream = Upstream { idle: false, ended: false, complete_as_of_ms: i64::MIN, ..*upstream };
        }
        self
    }

    /// The watermark of the input: [`WATERMARK_MAX`] once every upstream has ended. While all are idle it stays.
    pub fn watermark(&self) -> i64 {
        if self.ended() { WATERMARK_MAX } else { self.watermark }
    }

    pub fn ended(&self) -> bool {
        self.upstreams.iter().all(|u| u.ended)
    }

    /// True when all upstream tasks are idle or have ended: the input holds nobody back.
    pub fn idle(&self) -> bool {
        self.upstreams.iter().all(|u| u.idle || u.ended)
    }

    /// True when each upstream task said that its table is level.
    pub fn level(&self) -> bool {
        self.upstreams.iter().all(|u| u.level)
    }

    /// The wall-clock time for which all upstream tasks have read everything. That they have ended is said apart: it may
    /// be taken back.
    pub fn complete_as_of_ms(&self) -> i64 {
        self.upstreams.iter().map(|u| u.complete_as_of_ms).min().unwrap_or(i64::MIN)
    }

    /// True when a table misses no change up to `time`, for a row that was read at `polled_ms`: each upstream task is past
    /// that time, or had read all that its source held when the row was read. That it is idle does not count here: it is
    /// so by the last look at its source's end, and a change may have come since, which others have not waited for.
    pub fn complete(&self, time: i64, polled_ms: i64) -> bool {
        self.upstreams.iter().all(|u| u.ended || u.watermark > time || u.complete_as_of_ms >= polled_ms)
    }

    pub fn upstreams(&self) -> usize {
        self.upstreams.len()
    }

    /// A row of upstream task `index` moved its watermark; that ends its idleness.
    pub fn advance(&mut self, index: usize, watermark: i64) -> i64 {
        let upstream = &mut self.upstreams[index];
        upstream.watermark = upstream.watermark.max(watermark);
        upstream.idle = false;
        upstream.ended = false;
        self.recompute();
        self.watermark()
    }

    /// Upstream task `index` reported its whole state. Being level is never taken back.
    pub fn report(&mut self, index: usize, said: Upstream) -> i64 {
        let upstream = &mut self.upstreams[index];
        upstream.watermark = upstream.watermark.max(said.watermark);
        upstream.idle = said.idle;
        upstream.ended = said.ended;
        upstream.level |= said.level;
        upstream.complete_as_of_ms = upstream.complete_as_of_ms.max(said.complete_as_of_ms);
        self.recompute();
        self.watermark()
    }

    fn recompute(&mut self) {
        let active = self.upstreams.iter().filter(|u| !u.idle && !u.ended).map(|u| u.watermark).min();
        self.watermark = self.watermark.max(active.unwrap_or(WATERMARK_MIN));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(future: FuturePolicy) -> EventTime {
        EventTime { column: None, max_out_of_orderness_ms: 5, idle_timeout_ms: None, future, max_future_skew_ms: 1000 }
    }

    #[test]
    fn a_row_below_the_watermark_is_late_and_a_row_at_it_is_not() {
        let mut clock = SourceClock::default();
        assert!(!clock.observe(&spec(FuturePolicy::Accept), i64::MIN, None).late);
        assert_eq!(clock.observe(&spec(FuturePolicy::Accept), 20_000, None).watermark, 15_000);
        assert!(clock.observe(&spec(FuturePolicy::Accept), 14_999, None).late);
        assert!(!clock.observe(&spec(FuturePolicy::Accept), 15_000, None).late);
        assert_eq!(clock.watermark(), 15_000);
    }

    #[test]
    fn case_84_an_event_from_the_future_does_not_make_everything_behind_it_late() {
        let two_hours = 7_200_000_000;
        for (policy, watermark) in [
            (FuturePolicy::Accept, two_hours - 5_000),
            (FuturePolicy::Clamp, 995_000),
            (FuturePolicy::DeadLetter, -5_000),
        ] {
            let mut clock = SourceClock::default();
            clock.observe(&spec(policy), 0, Some(0));
            let seen = clock.observe(&spec(policy), two_hours, Some(0));
            assert_eq!(seen, Seen { late: false, future: true, watermark });
        }
    }

    #[test]
    fn no_event_time_overflows() {
        let mut clock = SourceClock::default();
        let mut spec = spec(FuturePolicy::Clamp);
        spec.max_out_of_orderness_ms = i64::MAX;
        clock.observe(&spec, i64::MIN, Some(i64::MAX));
        assert_eq!(clock.observe(&spec, i64::MAX, None).watermark, 0);
    }

    #[test]
    fn case_85_a_silent_upstream_holds_the_others_back_until_it_is_idle() {
        let mut clock = InputClock::new(2);
        assert_eq!(clock.advance(0, 100), WATERMARK_MIN);
        assert_eq!(clock.report(1, Upstream { idle: true, ..Upstream::default() }), 100);
        assert_eq!(clock.advance(1, 50), 100, "a watermark never goes back");
        assert_eq!(clock.advance(0, 200), 100);
        assert_eq!(clock.advance(1, 150), 150);
    }

    #[test]
    fn a_table_is_complete_only_by_a_look_at_each_upstream_that_is_younger_than_the_row() {
        let mut clock = InputClock::new(2);
        let idle = |complete_as_of_ms| Upstream { idle: true, complete_as_of_ms, ..Upstream::default() };
        clock.report(0, idle(99));
        clock.advance(1, 20);
        assert_eq!(clock.watermark(), 20, "the idle one holds nobody back");
        assert!(!clock.complete(10, 100), "but it was looked at before the row was read");
        clock.report(0, idle(100));
        assert!(clock.complete(10, 100));
        assert!(!clock.complete(20, 100), "the other one may still get a change of that time");
    }

    #[test]
    fn an_input_ends_with_its_last_upstream_and_goes_on_after_a_restart() {
        let mut clock = InputClock::new(2);
        clock.advance(0, 10);
        clock.advance(1, 20);
        let ended = |w| Upstream { watermark: w, ended: true, level: true, ..Upstream::default() };
        assert_eq!(clock.report(0, ended(10)), 20);
        assert_eq!(clock.report(1, ended(20)), WATERMARK_MAX);
        assert!(clock.complete(i64::MAX, i64::MAX));
        let restored = clock.restored();
        assert_eq!((restored.watermark(), restored.level(), restored.ended()), (20, true, false));
        assert_eq!(restored.complete_as_of_ms(), i64::MIN);
    }
}

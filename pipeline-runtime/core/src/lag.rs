//! How far a source partition is behind, as its reader itself knows it.
//!
//! Unknown is not a number: where the end or the oldest record is not known there is no lag, and never 0 or -1 in its
//! place. What is no record (markers of transactions, aborted records, compacted gaps) does not count. What an open
//! transaction hides is not lag, since nobody may read it; it is counted apart.

use crate::ids::Offset;

/// An end that was looked up longer ago is not known any more, nor is a lag that was told longer ago.
pub const KNOWN_MS: i64 = 10_000;

/// What a reader knows of a partition.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// The next offset to read; everything below it was processed or is no record.
    pub next: Offset,
    /// One above the last record that can be read.
    pub end: Offset,
    /// When the end was looked up, wall-clock milliseconds.
    pub end_as_of_ms: i64,
    /// Timestamp of the record at the read position, where there is one and it has a timestamp.
    pub head_timestamp_ms: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lag {
    /// Records that can be read and were not. An upper bound: markers between them count until they are passed.
    pub records: i64,
    /// Age of the oldest of them, by its timestamp; 0 when there is none.
    pub age_ms: i64,
}

/// `None`: it is not known.
pub fn lag(seen: Seen, now_ms: i64) -> Option<Lag> {
    if now_ms.saturating_sub(seen.end_as_of_ms) > KNOWN_MS {
        return None;
    }
    // A position may be ahead of an end that was looked up before it.
    let records = seen.end.0.saturating_sub(seen.next.0).max(0);
    if records == 0 {
        return Some(Lag { records, age_ms: 0 });
    }
    let head_ms = seen.head_timestamp_ms?;
    Some(Lag { records, age_ms: now_ms.saturating_sub(head_ms).max(0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000_000;

    fn seen(next: i64, end: i64, head_timestamp_ms: Option<i64>) -> Seen {
        Seen { next: Offset(next), end: Offset(end), end_as_of_ms: NOW, head_timestamp_ms }
    }

    fn known(records: i64, age_ms: i64) -> Option<Lag> {
        Some(Lag { records, age_ms })
    }

    #[test]
    fn case_1_and_14_a_partition_that_was_read_to_its_end_has_no_lag_however_long_it_is_quiet() {
        assert_eq!(lag(seen(7, 7, None), NOW), known(0, 0));
    }

    #[test]
    fn case_15_and_24_nothing_to_read_is_no_lag_be_it_hidden_expired_or_never_written() {
        // An open transaction hides what is behind 200.
        assert_eq!(lag(seen(200, 200, None), NOW), known(0, 0));
        // Everything had expired when the reading began, at the end.
        assert_eq!(lag(seen(5_000_000, 5_000_000, None), NOW), known(0, 0));
        assert_eq!(lag(seen(0, 0, None), NOW), known(0, 0));
    }

    #[test]
    fn case_3_and_13_a_lag_that_is_not_known_is_no_number() {
        // The record at the position was not fetched yet, or has expired, so its age is not known.
        assert_eq!(lag(seen(0, 1_234_234, None), NOW), None);
    }

    #[test]
    fn case_5_6_and_19_it_is_the_age_of_the_oldest_record_that_waits() {
        assert_eq!(lag(seen(0, 500_000, Some(NOW - 120_000)), NOW), known(500_000, 120_000));
        assert_eq!(lag(seen(9, 10, Some(NOW - 230)), NOW), known(1, 230));
        assert_eq!(lag(seen(0, 1, Some(NOW - 7_200_000)), NOW), known(1, 7_200_000));
    }

    #[test]
    fn case_8_and_9_it_is_never_negative() {
        assert_eq!(lag(seen(12, 10, None), NOW), known(0, 0));
        // A producer's clock may be ahead of ours.
        assert_eq!(lag(seen(0, 1, Some(NOW + 5_000)), NOW), known(1, 0));
    }

    #[test]
    fn case_17_an_end_that_cannot_be_looked_up_is_soon_not_known_and_then_known_again() {
        let old = Seen { end_as_of_ms: NOW - KNOWN_MS - 1, ..seen(3, 10, Some(NOW - 5)) };
        assert_eq!(lag(old, NOW), None);
        assert_eq!(lag(Seen { end_as_of_ms: NOW, ..old }, NOW), known(7, 5));
    }
}

//! An outside ledger of SLOs: what each slice of 10 s must count as, by the records of two topics and by nothing that a
//! worker or the operator says. A story holds it against the operator's books and counters.
//!
//! It knows when a record of the source was made, by its timestamp, and when the row that it became could be read, by the
//! clock of a `read_committed` reader that looks on. Each record becomes one row, which has its record's timestamp.
//!
//! | a slice is bad for | by the ledger | by worker and operator |
//! | --- | --- | --- |
//! | lag | at some moment a record had waited for longer than the threshold | at some sample the next record to be read had; or lag was not known; or a task told nothing |
//! | freshness | more than one row in a hundred took longer than the threshold, from record to reader | the same, from record to the end of the commit |
//! | freshness | out of a partition nothing came, and its lag was above the threshold | a task, which reads one partition, told nothing; or nothing came out of any, and lag was above the threshold or not known |
//!
//! **Why counts may differ by one for each event.** All processes of a story share one clock, so no slice is shifted
//! against another. But an event has two edges, where it begins to hurt and where all that waited is through, and the two
//! sides place them by different signs:
//!
//! - A worker that stands still is bad in the first slice of which it tells nothing, a broker that is gone when ends have
//!   not been looked up for 10 s, and the ledger finds both bad when a record has waited for as long as the threshold. A
//!   story begins its events at a moment of a slice from which all three are in the next one.
//! - What has waited is read by a worker, then it is committed, then a reader sees it: parts of a second, and the edge of a
//!   slice may be between. Nobody can say beforehand when that will be, so this one stays.
//! - Counters lose a slice, or count it twice, where the leader changes: its last one may not have been scraped, and its
//!   successor does not know. Books have no such edge: every slice is in them, and once.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use anyhow::{Context, ensure};

/// Of the ledger's own, as is the sum that makes a slice of a moment: what it judges may have them wrong.
pub const SLICE_MS: i64 = 10_000;

/// The slice that a moment is in. Moments are milliseconds since 1970.
pub fn slice(ms: i64) -> i64 {
    ms.div_euclid(SLICE_MS)
}

/// A record of the source.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    pub id: u64,
    pub partition: i32,
    /// Its timestamp.
    pub at_ms: i64,
}

/// A row of the sink.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Of the record that it was.
    pub id: u64,
    /// Its timestamp.
    pub of_ms: i64,
    /// When a reader saw it.
    pub seen_ms: i64,
}

/// Of each record when it was made, and when its row was seen.
#[derive(Clone, Debug)]
pub struct Ledger(Vec<Passage>);

#[derive(Clone, Copy, Debug)]
struct Passage {
    partition: i32,
    made_ms: i64,
    seen_ms: i64,
}

/// Slices that are bad.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bad {
    pub freshness: BTreeSet<i64>,
    pub lag: BTreeSet<i64>,
}

impl Bad {
    /// How many of some slices, for freshness and for lag.
    pub fn within(&self, slices: &Range<i64>) -> [u64; 2] {
        [&self.freshness, &self.lag].map(|bad| bad.range(slices.clone()).count() as u64)
    }
}

/// Rows that came out in a slice.
#[derive(Clone, Copy, Debug, Default)]
struct Out {
    rows: u64,
    late: u64,
}

impl Ledger {
    /// Finds the row of each record. Fails unless every record has become one row, with its timestamp.
    pub fn new(made: &[Made], rows: &[Row]) -> anyhow::Result<Self> {
        let mut waiting: BTreeMap<u64, Made> = made.iter().map(|made| (made.id, *made)).collect();
        ensure!(waiting.len() == made.len(), "two records have one id");
        let passage = |row: &Row| {
            let Made { partition, at_ms, .. } =
                waiting.remove(&row.id).with_context(|| format!("row {} is there twice, or of no record", row.id))?;
            ensure!(row.of_ms == at_ms, "row {} has the timestamp {}, and its record {at_ms}", row.id, row.of_ms);
            Ok(Passage { partition, made_ms: at_ms, seen_ms: row.seen_ms })
        };
        let passages = rows.iter().map(passage).collect::<anyhow::Result<_>>()?;
        let lost = waiting.into_values().next();
        ensure!(lost.is_none(), "a record has become no row: {lost:?}");
        Ok(Self(passages))
    }

    /// Judges by one threshold, which is good itself.
    pub fn bad(&self, threshold_ms: i64) -> Bad {
        let (mut behind, mut out) = (BTreeSet::new(), BTreeMap::<(i64, i32), Out>::new());
        for Passage { partition, made_ms, seen_ms } in &self.0 {
            let late_from_ms = made_ms + threshold_ms + 1;
            if late_from_ms <= *seen_ms {
                behind.extend((slice(late_from_ms)..=slice(*seen_ms)).map(|slice| (slice, *partition)));
            }
            let out = out.entry((slice(*seen_ms), *partition)).or_default();
            out.rows += 1;
            out.late += u64::from(late_from_ms <= *seen_ms);
        }
        let stuck = behind.iter().filter(|at| !out.contains_key(at)).map(|(slice, _)| *slice);
        let mut slices = BTreeMap::<i64, Out>::new();
        for ((slice, _), Out { rows, late }) in &out {
            let sum = slices.entry(*slice).or_default();
            *sum = Out { rows: sum.rows + rows, late: sum.late + late };
        }
        let late = slices.iter().filter(|(_, out)| out.late * 100 > out.rows).map(|(slice, _)| *slice);
        Bad { freshness: late.chain(stuck).collect(), lag: behind.iter().map(|(slice, _)| *slice).collect() }
    }
}

/// What each process has counted in the end, by all samples of its counter in their order, of one process after another:
/// each begins at 0.
pub fn counted(samples: &[f64]) -> Vec<u64> {
    let lasts = samples.chunk_by(|before, after| before <= after).filter_map(|process| process.last());
    lasts.map(|last| *last as u64).collect()
}

//! The balance of every operator: `in = out + dropped{reason} + waiting`, committed with the epoch.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Why a row or a record did not go on. A closed list: it is a metric label and a promise that nothing vanishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// The record could not be read and the policy is to skip it.
    Skipped,
    /// The record or row went to the dead-letter topic.
    DeadLettered,
    /// A step's `where` was not true.
    Filtered,
    /// An inner join found no partner.
    Unmatched,
    /// Its event time was below the watermark and the policy is `Drop`.
    Late,
    /// It asks for a table version that is older than what is retained.
    VersionExpired,
    /// A tombstone, or a change that carries no row, in a stream.
    Tombstone,
    /// A newer row of its key was written to an Upsert sink before it.
    Outdated,
    /// A row of its key with the same version was written to an Upsert sink before it.
    SameVersion,
}

impl DropReason {
    pub const ALL: [Self; 9] = [
        Self::Skipped,
        Self::DeadLettered,
        Self::Filtered,
        Self::Unmatched,
        Self::Late,
        Self::VersionExpired,
        Self::Tombstone,
        Self::Outdated,
        Self::SameVersion,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Skipped => "skipped",
            Self::DeadLettered => "dead_lettered",
            Self::Filtered => "filtered",
            Self::Unmatched => "unmatched",
            Self::Late => "late",
            Self::VersionExpired => "version_expired",
            Self::Tombstone => "tombstone",
            Self::Outdated => "outdated",
            Self::SameVersion => "same_version",
        }
    }
}

/// What one operator (or the reading of one source) of one task did since the pipeline's start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    pub rows_in: u64,
    pub rows_out: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub dropped: BTreeMap<DropReason, u64>,
    /// Rows that wait inside of the operator now.
    #[serde(default)]
    pub waiting: u64,
    /// Of `rows_out`: rows that were late and were joined all the same.
    #[serde(default)]
    pub joined_late: u64,
    /// Of `rows_in`: rows with an event time further ahead than allowed, whatever became of them.
    #[serde(default)]
    pub future: u64,
}

impl Totals {
    pub fn drop_rows(&mut self, reason: DropReason, rows: u64) {
        if rows > 0 {
            *self.dropped.entry(reason).or_default() += rows;
        }
    }

    /// Takes in those of another task.
    pub fn add(&mut self, other: &Self) {
        let Self { rows_in, rows_out, dropped, waiting, joined_late, future } = other;
        self.rows_in += rows_in;
        self.rows_out += rows_out;
        self.waiting += waiting;
        self.joined_late += joined_late;
        self.future += future;
        dropped.iter().for_each(|(reason, rows)| self.drop_rows(*reason, *rows));
    }

    /// What came since an earlier time.
    pub fn since(&self, earlier: &Self) -> Self {
        let of = |now: u64, then: u64| now.saturating_sub(then);
        let mut since = Self {
            rows_in: of(self.rows_in, earlier.rows_in),
            rows_out: of(self.rows_out, earlier.rows_out),
            dropped: BTreeMap::new(),
            waiting: self.waiting,
            joined_late: of(self.joined_late, earlier.joined_late),
            future: of(self.future, earlier.future),
        };
        for (reason, rows) in &self.dropped {
            since.drop_rows(*reason, of(*rows, earlier.dropped.get(reason).copied().unwrap_or(0)));
        }
        since
    }

    pub fn dropped_sum(&self) -> u64 {
        self.dropped.values().sum()
    }

    /// True when every row that came in is accounted for.
    pub fn balanced(&self) -> bool {
        self.unbalanced() == 0
    }

    /// Rows that were lost, or of which there is one too many.
    pub fn unbalanced(&self) -> u64 {
        self.rows_in.abs_diff(self.rows_out + self.dropped_sum() + self.waiting)
    }
}

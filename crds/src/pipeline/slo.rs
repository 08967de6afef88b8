//! Service level objectives: what is watched, and how much of it must be good.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::burn::Objective;
use super::text::{NameText, OBJECTIVE_PATTERN, WindowText};
use crate::duration::Duration;

/// A service level objective: exactly one of `freshness`, `lag`, `watermarkLag`, `completeness` and `correctness`, and the
/// share of it that must be good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Slo {
    /// Name of the SLO in rules, alerts and status.
    #[schemars(with = "NameText")]
    pub name: String,
    /// From a record's time to its committed result, for each 10 seconds: their 99th percentile. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freshness: Option<FreshnessSlo>,
    /// Age of the oldest record that is not processed, for each 10 seconds: that of the worst partition. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag: Option<LagSlo>,
    /// How far event time is behind the clock, for each 10 seconds: that of the worst task. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watermark_lag: Option<LagSlo>,
    /// Records that the balance of their input accounts for. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completeness: Option<CompletenessSlo>,
    /// Records that did not go to the dead letters. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correctness: Option<CorrectnessSlo>,
    /// Percent of the slices of time, or of the records, that must be good, as text: "99.9".
    #[schemars(length(min = 1, max = 8), regex(pattern = OBJECTIVE_PATTERN))]
    pub objective: String,
    /// The time over which the objective counts, in whole days from 7d to 90d. Default: 30d.
    #[serde(default = "default_window")]
    #[schemars(with = "WindowText")]
    pub window: Duration,
    /// For so long after it was asked to run, a pipeline whose lag is not known yet does not count. Default: 5m.
    #[serde(default = "default_startup_grace")]
    pub startup_grace: Duration,
    /// Fewer results in 10 seconds (freshness), or fewer records in the window of an alert (completeness, correctness), are
    /// no breach. Default: 1.
    #[serde(default = "default_min_events")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub min_events: u32,
}

const fn default_window() -> Duration {
    Duration::from_days(30)
}

const fn default_startup_grace() -> Duration {
    Duration::from_secs(300)
}

const fn default_min_events() -> u32 {
    1
}

impl Slo {
    /// The name of its indicator in the spec.
    pub fn kind(&self) -> &'static str {
        match self {
            Self { freshness: Some(_), .. } => "freshness",
            Self { lag: Some(_), .. } => "lag",
            Self { watermark_lag: Some(_), .. } => "watermarkLag",
            Self { completeness: Some(_), .. } => "completeness",
            // The schema's rule lets no other one through.
            _ => "correctness",
        }
    }

    /// Whether it counts records; the others count slices of time.
    pub fn counts_records(&self) -> bool {
        self.completeness.is_some() || self.correctness.is_some()
    }

    /// `None`: the schema lets no such text through.
    pub fn parsed_objective(&self) -> Option<Objective> {
        self.objective.parse().ok()
    }

    /// Share that must be good: 0.999 for an objective of 99.9 percent.
    pub fn ratio(&self) -> f64 {
        self.parsed_objective().map_or(0.0, Objective::ratio)
    }

    /// Share that may be bad: 0.001 for an objective of 99.9 percent.
    pub fn budget(&self) -> f64 {
        self.parsed_objective().map_or(0.0, Objective::budget)
    }
}

/// From a record's time to its committed result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FreshnessSlo {
    /// Longest time that is good.
    pub threshold: Duration,
    /// Which time of a record counts. Default: RecordTimestamp.
    #[serde(default)]
    pub since: FreshnessSince,
}

/// Which time of a record counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum FreshnessSince {
    /// The record's own timestamp.
    #[default]
    RecordTimestamp,
    /// The row's event time.
    EventTime,
}

/// A lag and its limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LagSlo {
    /// Longest lag that is good.
    pub threshold: Duration,
}

/// It has no fields: `completeness: {}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CompletenessSlo {}

/// It has no fields: `correctness: {}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CorrectnessSlo {}

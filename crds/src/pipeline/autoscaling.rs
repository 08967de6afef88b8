//! Whether, and within which bounds, the operator chooses `replicas` by itself.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration::Duration;
use crate::timestamp::Timestamp;

/// A backlog is worked off within so many times the lag at which workers are added.
const CATCH_UP_PER_TARGET: u64 = 10;

/// Whether the operator chooses `replicas` by itself. Exactly one of `targetLag` and `catchUpTime` is set with Observe
/// and Act.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Autoscaling {
    /// Disabled, Observe (only say what would be done) or Act. Default: Disabled.
    #[serde(default)]
    pub mode: AutoscalingMode,
    /// Fewest replicas. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub min_replicas: Option<u32>,
    /// Most replicas; there are never more than tasks. Default: none; required with Observe and Act.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_replicas: Option<u32>,
    /// Lag to stay below, 1s to 1h, and longer than `delivery.commitInterval`. A backlog is worked off within ten times as
    /// long. Default: a tenth of `catchUpTime`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_lag: Option<Duration>,
    /// Time in which a backlog must be worked off, 10s to 10h. Default: ten times `targetLag`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catch_up_time: Option<Duration>,
    /// How long nothing is done after a scaling, and how long fewer workers must have been enough before some go, 1m to
    /// 1h. Default: 5m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stabilisation: Option<Duration>,
}

impl Autoscaling {
    /// Lag above which workers are added; `None` where the operator chooses nothing.
    pub fn target_lag(&self) -> Option<Duration> {
        let tenth = |catch_up: Duration| Duration::from_ms(catch_up.ms().unsigned_abs() / CATCH_UP_PER_TARGET);
        self.target_lag.or(self.catch_up_time.map(tenth)).filter(|_| self.mode != AutoscalingMode::Disabled)
    }

    /// Time in which a backlog must be worked off; `None` where the operator chooses nothing.
    pub fn catch_up_time(&self) -> Option<Duration> {
        Some(Duration::from_ms(self.target_lag()?.ms().unsigned_abs() * CATCH_UP_PER_TARGET))
    }

    pub fn stabilisation(&self) -> Duration {
        self.stabilisation.unwrap_or(Duration::from_secs(300))
    }
}

/// Whether the operator chooses `replicas` by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AutoscalingMode {
    /// It does not; `/scale` is anybody's.
    #[default]
    Disabled,
    /// It only says what it would do.
    Observe,
    /// It does.
    Act,
}

/// What the operator makes of the lag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutoscalingStatus {
    /// The mode that this was found in.
    pub mode: AutoscalingMode,
    /// Replicas that it finds right.
    pub desired: i32,
    /// Why, one word for programs.
    pub reason: String,
    /// Why, one sentence for people.
    pub message: String,
    /// Rows a second that one worker does when it is busy, as it was last measured; absent while none has been busy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_rows_per_second: Option<i64>,
    /// The last scaling; it is written down before it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_scaled: Option<LastScaled>,
}

/// A scaling by the operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastScaled {
    /// When it was decided.
    pub time: Timestamp,
    /// Replicas before.
    pub from: i32,
    /// Replicas after.
    pub to: i32,
    /// The generation of the spec that it was decided over.
    pub generation: i64,
    /// Rows a second that all workers did before.
    pub rows_per_second: i64,
}

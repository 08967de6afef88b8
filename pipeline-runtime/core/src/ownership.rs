//! Who owns a task, and when a lane may run it (invariant I5).
//!
//! [`ControlLog`] is the folded view of the control log and answers questions about it; [`Lane`] is the life of one
//! lane: events in, actions out, as data. Neither does I/O, so the engine and the simulator run the same code.
//!
//! Fencing alone does not give single ownership: Kafka fences a *handle*, and a fenced lane that opens a new handle with
//! its transactional id is not fenced any more. So whoever was fenced must find out from the log whether it still owns
//! what it ran. A lane starts a task in exactly this order:
//!
//! 1. initialise its own transactional id (once in its life), append `resumed`, read the log up to that record;
//! 2. claim: append (task, generation, lane, incarnation, plan);
//! 3. read the log up to the claim; somebody newer: stop;
//! 4. fence every lane with an earlier claim that is neither released nor dead, and append `fenced(lane, q)`;
//! 5. read the task's changelog to its end, where nothing is open, and at least to the marker that a release names; run.
//!
//! After any fenced error or unknown outcome it begins again at 1 for all its tasks. `docs/ownership.md` says what
//! breaks without each rule; the simulator in `tests/simulator` proves it.

mod lane;
mod log;
#[cfg(test)]
mod tests;

pub use lane::{Action, Event, ExitReason, Lane};
pub use log::{ControlLog, Identity, Start, StopReason};

/// A rule of the protocol, named after what it demands. Each one has a mutant that breaks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A lane initialises its id before it claims, not between reading the log and running.
    InitialiseBeforeClaiming,
    /// Each later initialisation of one's own id is followed by reading the control log.
    ReadAfterInitialising,
    /// A claim of a newer generation, wherever it lies in the log, stops the older one.
    NewerGenerationStops,
    /// A release says which epoch was the last.
    ReleaseNamesLastEpoch,
    /// So does the release of a task that is assigned away while it is restored, as far as its lane knows.
    WithdrawnReleaseNamesWhatIsKnown,
    /// A taker is level only when it has read the marker that the release names.
    TakerWaitsForNamedMarker,
    /// A release cancels one claim, not all claims of its lane.
    ReleaseCancelsOneClaim,
    /// A lane releases what its former lives claimed only once it has committed.
    FormerLivesAreReleasedAfterACommit,
    /// A `fenced` record speaks of the fenced lane; it does not confirm that its writer may run.
    FencedSpeaksOfTheFenced,
    /// The position in a `fenced` record is what had been read when the fencing began, not when it ended.
    FencedPositionIsFromTheStart,
    /// Tombstones remove dead and released claims only.
    TombstonesSpareTheLiving,
    /// Only an owner that runs the task, and has read the markers that the releases name, removes the releases.
    TombstonesByTheLevelOwner,
}

/// The rules in force. Production always runs [`Rules::ALL`]; the simulator takes one away and must notice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    broken: Option<Rule>,
}

impl Rules {
    pub const ALL: Self = Self { broken: None };

    /// For the simulator: the protocol without one of its rules. It loses or doubles data.
    pub const fn without(rule: Rule) -> Self {
        Self { broken: Some(rule) }
    }

    fn keep(self, rule: Rule) -> bool {
        self.broken != Some(rule)
    }
}

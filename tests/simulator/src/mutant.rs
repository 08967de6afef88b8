//! The protocol without one of its rules.

use millrace_core::ownership::{Rule, Rules};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// I1: the local state is written before the commit.
    AppliesBeforeCommit,
    /// I2: state change and marker are committed behind the output, in a transaction of their own.
    MarkerInOwnTransaction,
    /// I3: a task begins where the group's committed offset says.
    TrustsGroupOffsets,
    /// I4: a commit without an answer counts as done.
    UnknownIsCommitted,
    /// I4: a commit without an answer counts as aborted.
    UnknownIsAborted,
    /// I6: a task without a marker is new.
    NoMarkerIsNew,
    /// I5: a lane whose transaction timed out initialises its id and goes on with what it ran.
    GoesOnAfterTimeOut,
    /// I5: a tail is read to the last stable offset, though something is open behind it.
    TailEndsAtStableOffset,
    /// A rule of the ownership protocol, in the core itself.
    Without(Rule),
}

impl Mutant {
    pub const ALL: [Self; 19] = [
        Self::AppliesBeforeCommit,
        Self::MarkerInOwnTransaction,
        Self::TrustsGroupOffsets,
        Self::UnknownIsCommitted,
        Self::UnknownIsAborted,
        Self::NoMarkerIsNew,
        Self::GoesOnAfterTimeOut,
        Self::TailEndsAtStableOffset,
        Self::Without(Rule::InitialiseBeforeClaiming),
        Self::Without(Rule::ReadAfterInitialising),
        Self::Without(Rule::NewerGenerationStops),
        Self::Without(Rule::ReleaseNamesLastEpoch),
        Self::Without(Rule::TakerWaitsForNamedMarker),
        Self::Without(Rule::ReleaseCancelsOneClaim),
        Self::Without(Rule::FormerLivesAreReleasedAfterACommit),
        Self::Without(Rule::FencedSpeaksOfTheFenced),
        Self::Without(Rule::FencedPositionIsFromTheStart),
        Self::Without(Rule::TombstonesSpareTheLiving),
        Self::Without(Rule::TombstonesByTheLevelOwner),
    ];

    pub fn rules(mutant: Option<Self>) -> Rules {
        match mutant {
            Some(Self::Without(rule)) => Rules::without(rule),
            _ => Rules::ALL,
        }
    }
}

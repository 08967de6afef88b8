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
    /// I1: what is written out first is the marker, and then the state.
    FlushesMarkerFirst,
    /// I1: a state that is followed is read to the high watermark.
    FollowsUncommitted,
    /// A restorer finds that a state is newer than its changelog, though nobody has waited for the markers.
    RestorerConcludes,
    /// A state that was warm is run without its tail.
    RunsWarmCopyAsItIs,
    /// A tail that was asked for before its task was closed is answered after it.
    AnswersAfterClosing,
    /// A task moves before its next owner is level.
    MovesCold,
    /// A state is brought forward with what is left of a changelog that does not reach back to it.
    ReplaysWhatIsLeft,
    /// A state, or a snapshot, of a history that did not come to be is brought forward.
    TrustsPositions,
    /// The newest snapshot is taken, though it is newer than the changelog.
    TakesTheNewestSnapshot,
    /// Files are not compared with their hashes.
    TakesDamagedSnapshots,
    /// The changelog is trimmed while there is only one snapshot.
    TrimsBehindTheFirst,
    /// The changelog is trimmed up to the newest snapshot, not the oldest.
    TrimsBehindTheNewest,
    /// The changelog is trimmed past the marker of a snapshot.
    TrimsToTheEnd,
    /// Snapshots of another history count when one decides what to trim.
    CountsOtherHistories,
    /// A savepoint's stages are cut from the first to the last.
    CutsFirstToLast,
    /// A task is cut as it is when it is told, by whoever believes to own it.
    CutsWhatIsThere,
    /// What is in flight is not asked which epoch wrote it.
    InFlightUnfiltered,
    /// What is in flight is read to the last stable offset.
    InFlightToTheStableEnd,
    /// What is in flight may have been trimmed.
    InFlightAsFarAsItIsThere,
    /// A rule of the ownership protocol, in the core itself.
    Without(Rule),
}

impl Mutant {
    pub const ALL: [Self; 39] = [
        Self::AppliesBeforeCommit,
        Self::MarkerInOwnTransaction,
        Self::TrustsGroupOffsets,
        Self::UnknownIsCommitted,
        Self::UnknownIsAborted,
        Self::NoMarkerIsNew,
        Self::GoesOnAfterTimeOut,
        Self::TailEndsAtStableOffset,
        Self::FlushesMarkerFirst,
        Self::FollowsUncommitted,
        Self::RestorerConcludes,
        Self::RunsWarmCopyAsItIs,
        Self::AnswersAfterClosing,
        Self::MovesCold,
        Self::ReplaysWhatIsLeft,
        Self::TrustsPositions,
        Self::TakesTheNewestSnapshot,
        Self::TakesDamagedSnapshots,
        Self::TrimsBehindTheFirst,
        Self::TrimsBehindTheNewest,
        Self::TrimsToTheEnd,
        Self::CountsOtherHistories,
        Self::CutsFirstToLast,
        Self::CutsWhatIsThere,
        Self::InFlightUnfiltered,
        Self::InFlightToTheStableEnd,
        Self::InFlightAsFarAsItIsThere,
        Self::Without(Rule::InitialiseBeforeClaiming),
        Self::Without(Rule::ReadAfterInitialising),
        Self::Without(Rule::NewerGenerationStops),
        Self::Without(Rule::ReleaseNamesLastEpoch),
        Self::Without(Rule::WithdrawnReleaseNamesWhatIsKnown),
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

//! When a worker ends that was told to.
//!
//! Whoever assigns gives its tasks to others first: as long as that may come, it works on and follows what it is told.
//! It ends as soon as nothing is left to wait for. So neither a missing operator nor being the last of all workers
//! holds it up.

/// Nobody would give the tasks to others who has not asked for so long: an operator asks every two seconds while a
/// worker leaves, and gives one that does not answer three.
pub const SILENCE_MS: u64 = 6_000;

/// A worker that was told to end. Times are steady milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leave {
    pub since_ms: u64,
    /// How long it may work on.
    pub within_ms: u64,
}

/// How things are with it now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub now_ms: u64,
    /// When somebody asked last how it is.
    pub asked_ms: u64,
    /// It runs some, or is to.
    pub has_tasks: bool,
    /// It was said that nobody will take them.
    pub let_go: bool,
    pub told_again: bool,
}

/// Why it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    NoTasks,
    ToldAgain,
    LetGo,
    TimeOver,
    NobodyAsks,
}

impl Leave {
    pub fn end(self, seen: Seen) -> Option<End> {
        let since = |at_ms: u64| seen.now_ms.saturating_sub(at_ms);
        match () {
            () if !seen.has_tasks => Some(End::NoTasks),
            () if seen.told_again => Some(End::ToldAgain),
            () if seen.let_go => Some(End::LetGo),
            () if since(self.since_ms) >= self.within_ms => Some(End::TimeOver),
            () if since(seen.asked_ms.max(self.since_ms)) >= SILENCE_MS => Some(End::NobodyAsks),
            () => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAVE: Leave = Leave { since_ms: 100_000, within_ms: 30_000 };

    /// Asked a second ago.
    fn after(ms: u64) -> Seen {
        let now_ms = LEAVE.since_ms + ms;
        Seen { now_ms, asked_ms: now_ms - 1_000, has_tasks: true, ..Seen::default() }
    }

    #[test]
    fn it_works_on_while_it_is_asked_and_has_time() {
        assert_eq!(LEAVE.end(after(0)), None);
        assert_eq!(LEAVE.end(after(29_999)), None);
        assert_eq!(LEAVE.end(after(30_000)), Some(End::TimeOver));
        assert_eq!(Leave { within_ms: 0, ..LEAVE }.end(after(0)), Some(End::TimeOver));
    }

    #[test]
    fn it_ends_at_once_when_there_is_nothing_to_wait_for() {
        assert_eq!(LEAVE.end(Seen { has_tasks: false, ..after(1) }), Some(End::NoTasks));
        assert_eq!(LEAVE.end(Seen { let_go: true, ..after(1) }), Some(End::LetGo));
        assert_eq!(LEAVE.end(Seen { told_again: true, ..after(1) }), Some(End::ToldAgain));
    }

    #[test]
    fn nobody_who_asks_is_no_operator_whatever_was_before() {
        let unasked = |ms| Seen { asked_ms: 0, ..after(ms) };
        assert_eq!(LEAVE.end(unasked(SILENCE_MS - 1)), None);
        assert_eq!(LEAVE.end(unasked(SILENCE_MS)), Some(End::NobodyAsks));
        let once = |ms| Seen { asked_ms: LEAVE.since_ms + 2_000, ..after(ms) };
        assert_eq!(LEAVE.end(once(SILENCE_MS)), None);
        assert_eq!(LEAVE.end(once(SILENCE_MS + 2_000)), Some(End::NobodyAsks));
    }
}

use super::*;
use crate::ids::Partition;

fn task(partition: i32) -> TaskId {
    TaskId { stage: "stage".into(), partition: Partition(partition) }
}

/// A lane with the tasks 0 and 1, whose last markers are of the epochs 10 and 20.
fn lane() -> LaneEpoch {
    let mut lane = LaneEpoch::default();
    assert_eq!(lane.run(task(0), Epoch(10)), Resolution::Settled);
    assert_eq!(lane.run(task(1), Epoch(20)), Resolution::Settled);
    lane
}

/// Reads rows of input 0.
fn read(lane: &mut LaneEpoch, partition: i32, from: i64, to: i64) {
    lane.read(&task(partition), 0, Offset(from), Offset(to)).expect("the epoch is open");
}

/// Closes the epoch and brings it to its commit.
fn committing(lane: &mut LaneEpoch) -> Vec<(TaskId, Epoch)> {
    let epochs = lane.close().expect("the epoch is open");
    assert_eq!(lane.delivered(Delivery::Complete), Ok(Next::Commit));
    epochs
}

fn commit(lane: &mut LaneEpoch) -> Vec<ApplyPermit> {
    committing(lane);
    match lane.commit_returned(CommitOutcome::Committed) {
        Ok(Next::Apply(permits)) => permits,
        other => panic!("a committed epoch is applied, not {other:?}"),
    }
}

/// The epoch has read `from..to` of task 0 and is refused.
fn abort(lane: &mut LaneEpoch, from: i64, to: i64) -> Next {
    read(lane, 0, from, to);
    lane.close().expect("the epoch is open");
    lane.delivered(Delivery::Rejected).expect("the epoch is draining")
}

#[test]
fn only_a_known_commit_gives_the_right_to_apply() {
    let mut lane = lane();
    read(&mut lane, 0, 0, 5);
    assert_eq!(lane.close(), Ok(vec![(task(0), Epoch(11))]), "a task that has read nothing gets no marker");
    assert_eq!(lane.delivered(Delivery::Complete), Ok(Next::Commit));
    let permit = ApplyPermit { task: task(0), epoch: Epoch(11) };
    assert_eq!(lane.commit_returned(CommitOutcome::Committed), Ok(Next::Apply(vec![permit])));
    assert_eq!(lane.close(), Err(OutOfOrder(Phase::Applying, "close")), "not before all overlays are applied");
    lane.applied(ApplyPermit { task: task(0), epoch: Epoch(11) });
    assert_eq!(lane.phase(), Phase::Open);
}

#[test]
fn an_epoch_in_which_nothing_happened_is_not_closed() {
    let mut lane = lane();
    assert_eq!(lane.close(), Ok(vec![]));
    assert_eq!(lane.phase(), Phase::Open);
    lane.fired(&task(1)).expect("the epoch is open");
    assert_eq!(lane.close(), Ok(vec![(task(1), Epoch(21))]), "timers are something");
}

#[test]
fn a_task_leaves_only_when_nothing_of_it_is_in_flight() {
    let mut lane = lane();
    read(&mut lane, 0, 0, 5);
    assert_eq!(lane.leave(&task(0)), None, "it has read");
    assert_eq!(lane.leave(&task(1)), Some(Epoch(20)));
    let permits = commit(&mut lane);
    assert_eq!(lane.leave(&task(0)), None, "it is not applied");
    permits.into_iter().for_each(|permit| lane.applied(permit));
    assert_eq!(lane.leave(&task(0)), Some(Epoch(11)));
}

#[test]
fn a_task_whose_state_cannot_be_written_is_out_and_its_epoch_stays_committed() {
    let mut lane = lane();
    read(&mut lane, 0, 0, 5);
    let permit = commit(&mut lane).pop().expect("one task has read");
    assert_eq!(lane.apply_failed(permit), task(0));
    assert_eq!((lane.phase(), lane.leave(&task(0))), (Phase::Open, None));
    assert_eq!(lane.run(task(0), Epoch(11)), Resolution::Settled);
}

#[test]
fn the_last_marker_tells_what_became_of_an_unknown_outcome() {
    let cases = [
        (Epoch(10), Resolution::NotCommitted, Epoch(11)),
        (Epoch(11), Resolution::Committed, Epoch(12)),
        (Epoch(14), Resolution::Overtaken, Epoch(15)),
    ];
    for (last, resolution, next) in cases {
        let mut lane = lane();
        read(&mut lane, 0, 0, 5);
        committing(&mut lane);
        assert_eq!(lane.commit_returned(CommitOutcome::Unknown), Ok(Next::Recover));
        assert_eq!(lane.leave(&task(0)), None, "every task is out");
        assert_eq!(lane.run(task(0), last), resolution);
        assert_eq!(lane.run(task(1), Epoch(20)), Resolution::Settled, "it had read nothing");
        read(&mut lane, 0, 0, 5);
        assert_eq!(lane.close(), Ok(vec![(task(0), next)]));
    }
}

#[test]
fn a_loss_before_the_commit_leaves_nothing_in_flight() {
    let mut lane = lane();
    read(&mut lane, 0, 0, 5);
    lane.close().expect("the epoch is open");
    assert_eq!(lane.lost(Loss::Fenced), Next::Recover);
    assert_eq!(lane.run(task(0), Epoch(10)), Resolution::Settled);
}

#[test]
fn a_second_abort_in_a_row_begins_the_search() {
    let mut lane = lane();
    assert_eq!((abort(&mut lane, 0, 8), lane.bisecting()), (Next::Abort, false));
    assert_eq!(lane.limit(&task(0), 0), Limit::Free);
    assert_eq!((abort(&mut lane, 0, 8), lane.bisecting()), (Next::Abort, true));
    assert_eq!(lane.limit(&task(0), 0), Limit::Below(Offset(4)));
    assert_eq!(lane.limit(&task(1), 0), Limit::Nothing, "it had read nothing, so its turn comes later");
}

#[test]
fn a_commit_in_between_forgives_an_abort() {
    let mut lane = lane();
    abort(&mut lane, 0, 8);
    read(&mut lane, 0, 0, 8);
    commit(&mut lane).into_iter().for_each(|permit| lane.applied(permit));
    abort(&mut lane, 8, 16);
    assert!(!lane.bisecting());
}

#[test]
fn a_time_out_is_judged_and_a_fence_or_an_unknown_outcome_is_not() {
    for (loss, judged) in [(Loss::TimedOut, true), (Loss::Fenced, false), (Loss::Unknown, false)] {
        let mut lane = LaneEpoch::default();
        for _ in 0..2 {
            lane.run(task(0), Epoch(10));
            read(&mut lane, 0, 0, 8);
            assert_eq!(lane.lost(loss), Next::Recover);
        }
        assert_eq!(lane.bisecting(), judged, "{loss:?}");
    }
}

#[test]
fn an_epoch_whose_abort_timed_out_is_judged_once() {
    let mut lane = lane();
    assert_eq!(abort(&mut lane, 0, 8), Next::Abort);
    lane.lost(Loss::TimedOut);
    assert!(!lane.bisecting());
}

/// Runs task 0 from row 0 to `end` against a log that refuses every epoch with the row `poison` in it, unless the row
/// was condemned. Gives the rows that were condemned, and how many epochs it took.
fn search(lane: &mut LaneEpoch, end: i64, poison: i64) -> (Vec<i64>, usize) {
    let (mut next, mut condemned) = (0, Vec::new());
    for epochs in 0..100 {
        let to = match lane.limit(&task(0), 0) {
            Limit::Free => end,
            Limit::Below(to) => to.0,
            Limit::Nothing => next,
        };
        if next == end {
            return (condemned, epochs);
        } else if next >= to {
            lane.skip_part();
            continue;
        }
        let spared = lane.condemned(&task(0), 0, Offset(next));
        condemned.extend(spared.then_some(next));
        if (next..to).contains(&poison) && !spared {
            assert_eq!(abort(lane, next, to), Next::Abort);
        } else {
            read(lane, 0, next, to);
            commit(lane).into_iter().for_each(|permit| lane.applied(permit));
            next = to;
        }
    }
    panic!("the search does not come to an end");
}

#[test]
fn the_search_ends_at_the_one_row_wherever_it_is() {
    for poison in 0..37 {
        let mut lane = lane();
        let (condemned, epochs) = search(&mut lane, 37, poison);
        assert_eq!(condemned, [poison]);
        assert!(!lane.bisecting());
        // Two aborts, then each cut costs an abort and a commit at most.
        assert!(epochs <= 2 + 2 * 6 + 2, "{epochs} epochs for row {poison}");
    }
}

#[test]
fn a_part_may_span_tasks_and_inputs_and_is_cut_by_rows() {
    let mut lane = lane();
    for _ in 0..2 {
        read(&mut lane, 1, 100, 103);
        lane.fired(&task(0)).expect("the epoch is open");
        abort(&mut lane, 0, 4);
    }
    assert_eq!(lane.limit(&task(0), 0), Limit::Below(Offset(4)), "4 of the 8 rows, in the order of tasks and inputs");
    assert_eq!(lane.limit(&task(0), TIMERS), Limit::Nothing);
    assert_eq!(lane.limit(&task(1), 0), Limit::Nothing);
    read(&mut lane, 0, 0, 4);
    commit(&mut lane).into_iter().for_each(|permit| lane.applied(permit));
    assert_eq!(lane.limit(&task(0), TIMERS), Limit::Below(Offset(1)));
    assert_eq!(lane.limit(&task(1), 0), Limit::Below(Offset(103)));
}

#[test]
fn a_condemned_row_that_is_refused_again_stops_its_task() {
    let mut lane = lane();
    for _ in 0..2 {
        assert_eq!(abort(&mut lane, 3, 4), Next::Abort);
    }
    assert!(lane.condemned(&task(0), 0, Offset(3)));
    assert_eq!(abort(&mut lane, 3, 4), Next::AbortAndStop(task(0)));
    assert_eq!(lane.leave(&task(0)), None, "it is out");
    assert!(!lane.bisecting(), "the others go on");
}

#[test]
fn an_abandoned_task_leaves_and_what_the_others_have_read_is_dropped() {
    let mut lane = lane();
    read(&mut lane, 0, 0, 5);
    read(&mut lane, 1, 0, 5);
    assert_eq!(lane.abandon(&task(0)), Ok(()));
    assert_eq!(lane.close(), Ok(vec![]));
    assert_eq!((lane.leave(&task(0)), lane.leave(&task(1))), (None, Some(Epoch(20))));
}

#[test]
fn an_epoch_is_rewound_while_it_is_open_or_draining() {
    let mut lane = lane();
    read(&mut lane, 0, 0, 5);
    assert_eq!(lane.rewound(), Ok(()));
    assert_eq!(lane.close(), Ok(vec![]));
    read(&mut lane, 0, 0, 5);
    lane.close().expect("the epoch is open");
    assert_eq!(lane.rewound(), Ok(()));
    assert_eq!(lane.close(), Ok(vec![]));
    assert_eq!(lane.leave(&task(0)), Some(Epoch(10)));
}

#[test]
fn what_was_asked_to_commit_is_neither_rewound_nor_abandoned() {
    let mut lane = lane();
    read(&mut lane, 0, 0, 5);
    lane.close().expect("the epoch is open");
    lane.delivered(Delivery::Complete).expect("the epoch is draining");
    assert_eq!(lane.rewound(), Err(OutOfOrder(Phase::Committing, "rewinding")));
    assert_eq!(lane.abandon(&task(1)), Err(OutOfOrder(Phase::Committing, "rewinding")));
    lane.commit_returned(CommitOutcome::Committed).expect("the epoch is committing");
    assert_eq!(lane.rewound(), Err(OutOfOrder(Phase::Applying, "rewinding")));
}

#[test]
fn neither_of_both_counts_as_an_abort_nor_disturbs_a_search() {
    let mut lane = lane();
    abort(&mut lane, 0, 8);
    read(&mut lane, 0, 0, 8);
    lane.rewound().expect("the epoch is open");
    lane.abandon(&task(1)).expect("the epoch is open");
    assert!(!lane.bisecting());
    abort(&mut lane, 0, 8);
    read(&mut lane, 0, 0, 4);
    lane.rewound().expect("the epoch is open");
    assert_eq!(lane.limit(&task(0), 0), Limit::Below(Offset(4)));
    assert_eq!(search(&mut lane, 8, 6).0, [6]);
}

#[test]
fn a_search_goes_on_without_a_task_that_was_abandoned() {
    let mut lane = lane();
    for _ in 0..2 {
        read(&mut lane, 1, 0, 4);
        abort(&mut lane, 0, 4);
    }
    lane.abandon(&task(0)).expect("the epoch is open");
    assert_eq!(lane.limit(&task(1), 0), Limit::Nothing);
    lane.skip_part();
    assert_eq!(lane.limit(&task(1), 0), Limit::Below(Offset(4)));
}

/// A changelog without records, that we made.
const EMPTY: ChangelogFacts<'_> = ChangelogFacts {
    topic: "log",
    topic_id: "id",
    partitions: 4,
    log_start: Offset(0),
    last_marker: None,
    local: None,
    stateful: true,
    restored: false,
    begun: None,
    needed: Epoch(0),
};

#[test]
fn a_task_is_new_only_where_nothing_can_have_been_lost() {
    let made = Created { topic_id: "id".into(), partitions: 4, begun: 4 };
    let marker = ChangelogFacts { last_marker: Some(Epoch(7)), ..EMPTY };
    let cut = ChangelogFacts { log_start: Offset(50), ..EMPTY };
    let local = |epoch, facts: &ChangelogFacts<'static>| ChangelogFacts { local: Some(Epoch(epoch)), ..facts.clone() };
    let needed = |epoch, facts: &ChangelogFacts<'static>| ChangelogFacts { needed: Epoch(epoch), ..facts.clone() };
    let topic = || "log".to_owned();
    let not_recorded = || Err(ChangelogError::NotRecorded { topic: topic() });
    let recreated = Err(ChangelogError::Recreated { topic: topic(), created: "id".into(), found: "other".into() });
    let repartitioned = Err(ChangelogError::Repartitioned { topic: topic(), created: 4, found: 5 });
    let truncated = || Err(ChangelogError::Truncated { topic: topic(), log_start: Offset(50) });
    let emptied = Err(ChangelogError::Emptied { topic: topic(), local: Epoch(6) });
    let restored = ChangelogFacts { restored: true, ..EMPTY };
    let begun = ChangelogFacts { begun: Some(Epoch(6)), ..restored.clone() };
    use ChangelogStart::{After, AfterWithoutLocal, New, NotLevel};
    let made = Some(&made);
    let cases = [
        ("nothing was ever committed", made, EMPTY, Ok(New)),
        ("the same, before we have said that we made it", None, EMPTY, Ok(New)),
        ("epochs in a topic that we did not make", None, marker.clone(), not_recorded()),
        ("the same, and they were cut off", None, cut.clone(), not_recorded()),
        ("another topic of this name", made, ChangelogFacts { topic_id: "other", ..EMPTY }, recreated),
        ("another number of partitions", made, ChangelogFacts { partitions: 5, ..EMPTY }, repartitioned),
        ("no local state", made, marker.clone(), Ok(After(Epoch(7)))),
        ("a local state that is behind", made, local(6, &marker), Ok(After(Epoch(7)))),
        ("a local state that is level", made, local(7, &marker), Ok(After(Epoch(7)))),
        ("a local state that is ahead", made, local(8, &marker), Ok(AfterWithoutLocal(Epoch(7)))),
        ("the needed marker is not there yet", made, needed(8, &marker), Ok(NotLevel)),
        ("nor is any", made, needed(1, &EMPTY), Ok(NotLevel)),
        ("a local state says nothing before the log is level", made, needed(8, &local(8, &marker)), Ok(NotLevel)),
        ("cut off, nothing else left", made, cut.clone(), truncated()),
        ("cut off, but a snapshot reaches that far", made, local(6, &cut), Ok(After(Epoch(6)))),
        ("the same, and it is the epoch that a release names", made, needed(6, &local(6, &cut)), Ok(After(Epoch(6)))),
        ("the same, and a later epoch is named", made, needed(7, &local(6, &cut)), Ok(NotLevel)),
        ("state cut off", made, ChangelogFacts { log_start: Offset(50), ..marker.clone() }, truncated()),
        (
            "no state to be cut off",
            made,
            ChangelogFacts { log_start: Offset(50), stateful: false, ..marker },
            Ok(After(Epoch(7))),
        ),
        ("a local state, and no marker", made, local(6, &EMPTY), emptied),
        ("a restore, and no snapshot", made, restored.clone(), Err(ChangelogError::NoSnapshot { topic: topic() })),
        ("a restore that nothing was committed after", made, local(6, &begun), Ok(After(Epoch(6)))),
        ("the same, released by whoever ran it", made, needed(6, &local(6, &begun)), Ok(After(Epoch(6)))),
        ("its next epoch is not there yet", made, needed(7, &local(6, &begun)), Ok(NotLevel)),
        (
            "a restore that was gone on from",
            made,
            ChangelogFacts { last_marker: Some(Epoch(7)), ..local(6, &begun) },
            Ok(After(Epoch(7))),
        ),
    ];
    for (case, created, facts, expected) in cases {
        assert_eq!(changelog_start(created, &facts), expected, "{case}");
    }
}

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::*;
use crate::control::{Change, ClaimId, Created, Incarnation, Key, LaneId, Owner, Pinned, PlanStamp, Record};
use crate::ids::{Epoch, Generation, Offset, Partition, TaskId, Timeline};

const A: LaneId = LaneId { timeline: Timeline(1), worker: 0xA, lane: 0 };
const B: LaneId = LaneId { timeline: Timeline(1), worker: 0xB, lane: 0 };
const C: LaneId = LaneId { timeline: Timeline(1), worker: 0xC, lane: 0 };
const PLAN: PlanStamp = PlanStamp { plan: 5, fingerprint: 1, state_format: 1 };

fn task() -> TaskId {
    TaskId { stage: "stage".into(), partition: Partition(0) }
}

/// The claim of the lane's first life.
fn id(lane: LaneId, generation: u64) -> ClaimId {
    life(lane, 1, generation)
}

fn life(lane: LaneId, incarnation: u64, generation: u64) -> ClaimId {
    ClaimId { task: task(), generation: Generation(generation), lane, incarnation: Incarnation(incarnation) }
}

fn claim(lane: LaneId, generation: u64) -> Record {
    claimed(id(lane, generation))
}

fn claimed(id: ClaimId) -> Record {
    Record::Claim { id, plan: PLAN }
}

fn release(lane: LaneId, generation: u64, last: u64) -> Record {
    Record::Release { id: id(lane, generation), last_epoch: Epoch(last) }
}

fn fenced(lane: LaneId, read_to: i64) -> Record {
    Record::Fenced { lane, read_to: Offset(read_to) }
}

fn resumed(lane: LaneId, incarnation: u64) -> Record {
    Record::Resumed { lane, incarnation: Incarnation(incarnation) }
}

/// A log of these records, from position 0 on.
fn log(records: &[Record]) -> ControlLog {
    let mut log = ControlLog::new(Rules::ALL);
    for (at, record) in (0..).zip(records) {
        log.apply(Offset(at), Change::Put(record.clone()));
    }
    log
}

#[test]
fn a_claim_starts_when_nobody_else_can_write() {
    use StopReason::{ClaimGone, NewerClaim, NewerPlan};
    let tail = |needed| Start::ReadTail { needed: Epoch(needed) };
    let fence = |lane| Start::Fence(BTreeSet::from([lane]));
    let newer = PlanStamp { plan: 6, ..PLAN };
    let other_format = PlanStamp { state_format: 2, ..PLAN };
    let planned = |plan| Record::Claim { id: id(A, 1), plan };
    let cases = [
        ("there is no other claim", vec![claim(B, 2)], tail(0)),
        ("the earlier one is alive", vec![claim(A, 1), claim(B, 2)], fence(A)),
        ("it was released", vec![claim(A, 1), release(A, 1, 7), claim(B, 2)], tail(7)),
        ("it was fenced by who knew of ours: it is dead", vec![claim(A, 1), claim(B, 2), fenced(A, 1)], tail(0)),
        ("it was fenced by who did not", vec![claim(A, 1), claim(B, 2), fenced(A, 0)], fence(A)),
        ("a later one of an older generation", vec![claim(B, 2), claim(C, 1)], tail(0)),
        ("a later one of ours", vec![claim(B, 2), claim(C, 2)], Start::Stop(NewerClaim(id(C, 2)))),
        ("an earlier one of a newer", vec![claim(C, 3), claim(B, 2)], Start::Stop(NewerClaim(id(C, 3)))),
        ("a former life of ours was fenced at birth", vec![claimed(life(B, 0, 1)), claim(B, 2)], tail(0)),
        ("another life in our generation", vec![claim(B, 2), claimed(life(B, 9, 2))], tail(0)),
        ("a newer plan", vec![planned(newer), claim(B, 2)], Start::Stop(NewerPlan(newer))),
        ("a newer state format", vec![planned(other_format), claim(B, 2)], Start::Stop(NewerPlan(other_format))),
        ("our claim is gone", vec![], Start::Stop(ClaimGone)),
    ];
    for (case, records, expected) in cases {
        assert_eq!(log(&records).may_start(&id(B, 2), &BTreeMap::new()), expected, "{case}");
    }
}

#[test]
fn whoever_fences_need_not_read_its_own_record_first() {
    let log = log(&[claim(A, 1), claim(B, 2)]);
    let start = |read_to| log.may_start(&id(B, 2), &BTreeMap::from([(A, Offset(read_to))]));
    assert_eq!(start(1), Start::ReadTail { needed: Epoch(0) });
    assert_eq!(start(0), Start::Fence(BTreeSet::from([A])), "what was fenced before the claim does not count");
}

#[test]
fn a_release_of_another_timeline_names_no_epoch_of_ours() {
    let other = ClaimId { lane: LaneId { timeline: Timeline(0), ..A }, ..id(A, 1) };
    let log = log(&[claimed(other.clone()), Record::Release { id: other, last_epoch: Epoch(900) }, claim(B, 2)]);
    assert_eq!(log.needed_epoch(&id(B, 2)), Epoch(0));
}

#[test]
fn the_owner_is_the_last_claim_of_the_highest_generation() {
    for (records, owner) in [
        (vec![], None),
        (vec![claim(A, 2), claim(B, 1)], Some(id(A, 2))),
        (vec![claim(A, 2), claim(B, 2)], Some(id(B, 2))),
        (vec![claim(A, 2), claim(B, 2), claim(A, 2)], Some(id(B, 2))),
    ] {
        assert_eq!(log(&records).owner(&task()), owner.as_ref(), "a claim that is repeated stays where it was");
    }
}

#[test]
fn the_first_claimer_that_lives_fences_for_all() {
    assert_eq!(log(&[claim(A, 1), claim(B, 2), claim(C, 3)]).fencer_of(A), Some(B));
    assert_eq!(log(&[claim(A, 1), claim(B, 2), claim(C, 3), release(B, 2, 0)]).fencer_of(A), Some(C));
    assert_eq!(log(&[claim(A, 1), release(A, 1, 7), claim(B, 2)]).fencer_of(A), None);
}

#[test]
fn tombstones_take_the_dead_and_the_released_and_never_the_newest() {
    let (a, b) = (|| Key::Claim(id(A, 1)), || Key::Release(id(A, 1)));
    let cases = [
        ("a living claim stays", vec![claim(A, 1), claim(B, 2)], vec![]),
        ("a dead one goes", vec![claim(A, 1), claim(B, 2), fenced(A, 1)], vec![a()]),
        ("a released one goes before its release", vec![claim(A, 1), release(A, 1, 7), claim(B, 2)], vec![a(), b()]),
        ("who was superseded removes nothing", vec![claim(A, 1), release(A, 1, 7), claim(B, 2), claim(C, 3)], vec![]),
    ];
    for (case, records, expected) in cases {
        assert_eq!(log(&records).tombstones(&id(B, 2)), expected, "{case}");
    }
}

#[test]
fn what_a_tombstone_removed_is_not_asked_for_and_generations_still_grow() {
    let mut log = log(&[claim(A, 1), release(A, 1, 7), claim(B, 2), claim(C, 9), release(C, 9, 0)]);
    for (at, key) in (5..).zip([Key::Claim(id(A, 1)), Key::Release(id(A, 1)), Key::Claim(id(C, 9))]) {
        log.apply(Offset(at), Change::Forget(key));
    }
    assert_eq!(log.may_start(&id(B, 2), &BTreeMap::new()), Start::ReadTail { needed: Epoch(0) });
    assert_eq!((log.highest_generation(), log.next()), (Generation(9), Offset(8)));
}

#[test]
fn a_fence_is_spent_when_a_later_one_covers_it_or_no_claim_lies_before_it() {
    let spent = |records: &[Record]| log(records).spent_fences();
    assert_eq!(spent(&[claim(A, 1), fenced(A, 0)]), []);
    assert_eq!(spent(&[claim(A, 1), fenced(A, 0), fenced(A, 1)]), [Key::Fenced(A, Offset(0))]);
    assert_eq!(spent(&[claim(B, 1), fenced(A, 0)]), [Key::Fenced(A, Offset(0))]);
}

#[test]
fn a_prefix_belongs_to_one_pipeline() {
    let owner = |name: &str, uid: &str| Owner {
        cluster: "cluster".into(),
        namespace: "shop".into(),
        name: name.into(),
        uid: uid.into(),
    };
    let put = |number, owner| Record::Owner { number, owner };
    let (me, before, other) = (owner("orders", "2"), owner("orders", "1"), owner("clicks", "3"));
    let append = |number| Identity::Append(put(number, me.clone()));
    let cases = [
        ("nobody's", vec![], false, append(1)),
        ("ours", vec![put(1, me.clone())], false, Identity::Ours),
        ("ours before we were made again", vec![put(1, before)], false, append(2)),
        ("another one's", vec![put(1, me.clone()), put(2, other.clone())], false, Identity::Conflict(other.clone())),
        ("another one's, and the user says that it is ours", vec![put(2, other.clone())], true, append(3)),
        ("of two at once the first", vec![put(1, other.clone()), put(1, me.clone())], false, Identity::Conflict(other)),
    ];
    for (case, records, adopt, expected) in cases {
        assert_eq!(log(&records).identity(&me, adopt), expected, "{case}");
    }
}

#[test]
fn the_first_record_of_a_topic_counts() {
    let created = |topic_id: &str| Created { topic_id: topic_id.into(), partitions: 4, begun: 4 };
    let put = |topic_id| Record::Created { topic: "log".into(), created: created(topic_id) };
    let log = log(&[put("first"), put("second")]);
    assert_eq!((log.created("log"), log.created("other")), (Some(&created("first")), None));
}

/// A lane whose initialisations and fences succeed, whose appends land and whose reads come at once. What it asks for
/// beyond that is for the test to answer.
struct Player {
    lane: Lane,
    /// The control log; nobody compacts it.
    written: Vec<Change>,
}

impl Player {
    /// The first life of B, over this log.
    fn new(records: &[Record]) -> Self {
        let written = records.iter().cloned().map(Change::Put).collect();
        Self { lane: Lane::new(B, Incarnation(1), PLAN, Rules::ALL), written }
    }

    /// Has started, and reads nothing that needs an answer.
    fn started(records: &[Record]) -> Self {
        let mut player = Self::new(records);
        player.on(Event::Started);
        player
    }

    /// Runs the task in generation 2 behind epoch 7.
    fn running(records: &[Record]) -> Self {
        let mut player = Self::started(records);
        player.on(assigned(2));
        player.on(tail_read(7));
        assert_eq!(player.lane.running().count(), 1);
        player
    }

    fn on(&mut self, event: Event) -> Vec<String> {
        let mut actions = VecDeque::from(self.lane.on(event));
        let mut said = Vec::new();
        while let Some(action) = actions.pop_front() {
            said.push(say(&action));
            let answer = match action {
                Action::Initialise => Event::Initialised,
                Action::Fence(lane) => Event::Fenced(lane),
                Action::Append(change) => {
                    self.written.push(change.clone());
                    Event::Appended { change, position: Offset(self.written.len() as i64 - 1) }
                }
                Action::ReadControlTo(_) => self.read(),
                _ => continue,
            };
            actions.extend(self.lane.on(answer));
        }
        said
    }

    /// All of the control log that was not read.
    fn read(&self) -> Event {
        let entries = (0..).map(Offset).zip(self.written.clone());
        let next = self.lane.log().next();
        Event::Read {
            entries: entries.filter(|(at, _)| *at >= next).collect(),
            next: Offset(self.written.len() as i64),
        }
    }

    /// Somebody else appends, and the lane reads it.
    fn reads(&mut self, record: Record) -> Vec<String> {
        self.written.push(Change::Put(record));
        self.on(self.read())
    }
}

fn say(action: &Action) -> String {
    match action {
        Action::Append(Change::Put(record)) => match record {
            Record::Resumed { incarnation, .. } => format!("append resumed, life {}", incarnation.0),
            Record::Pinned { by, .. } => format!("append what is pinned by {}", by.0),
            Record::Claim { id, .. } => format!("append claim of generation {}", id.generation),
            Record::Release { id, last_epoch } => {
                format!("append release of life {}, generation {}, epoch {last_epoch}", id.incarnation.0, id.generation)
            }
            Record::Fenced { lane, read_to } => format!("append fenced {:X} who had read to {read_to}", lane.worker),
            other => format!("append {other:?}"),
        },
        Action::Append(Change::Forget(Key::Claim(id))) => format!("forget claim of {:X}", id.lane.worker),
        Action::Append(Change::Forget(Key::Release(id))) => format!("forget release of {:X}", id.lane.worker),
        Action::Append(Change::Forget(other)) => format!("forget {other}"),
        Action::Initialise => "initialise".into(),
        Action::ReadControlTo(to) => format!("read to {to}"),
        Action::AwaitRelease(_) => "await the release".into(),
        Action::AwaitFence(lane) => format!("await the fence of {:X}", lane.worker),
        Action::Fence(lane) => format!("fence {:X}", lane.worker),
        Action::ReadTail { needed, .. } => format!("read tail to epoch {needed}"),
        Action::Run(_) => "run".into(),
        Action::Finish(_) => "finish".into(),
        Action::Close(_) => "close".into(),
        Action::Stop { reason: StopReason::NewerClaim(newer), .. } => format!("stop for {:X}", newer.lane.worker),
        Action::Stop { reason, .. } => format!("stop: {reason:?}"),
        Action::Exit(reason) => format!("exit: {reason:?}"),
    }
}

fn assigned(generation: u64) -> Event {
    Event::Assigned { generation: Generation(generation), tasks: vec![task()] }
}

/// A newer assignment is without the task.
fn taken(generation: u64) -> Event {
    Event::Assigned { generation: Generation(generation), tasks: vec![] }
}

fn tail_read(last: u64) -> Event {
    Event::TailRead { task: task(), last: Epoch(last) }
}

fn finished(last: u64) -> Event {
    Event::Finished { task: task(), last: Epoch(last) }
}

#[test]
fn a_start_has_this_order() {
    let mut lane = Player::new(&[claim(A, 1)]);
    assert_eq!(lane.on(assigned(2)), [""; 0], "nothing before it is initialised");
    assert_eq!(lane.on(Event::Started), ["initialise", "append resumed, life 1", "read to 1", "await the release"]);
    assert_eq!(lane.reads(release(A, 1, 7)), ["append claim of generation 2", "read to 3", "read tail to epoch 7"]);
    assert_eq!(lane.on(tail_read(6)), ["read tail to epoch 7"], "the marker that the release names is not visible yet");
    assert_eq!(lane.on(tail_read(7)), ["run"]);
}

#[test]
fn a_start_without_a_release_fences_before_it_reads_the_tail() {
    let mut lane = Player::started(&[claim(A, 1)]);
    assert_eq!(lane.on(assigned(2)), ["await the release"]);
    let forced = [
        "append claim of generation 2",
        "read to 2",
        "fence A",
        "append fenced A who had read to 2",
        "read tail to epoch 0",
    ];
    assert_eq!(lane.on(Event::HandOverOverdue(task())), forced);
    assert_eq!(lane.on(tail_read(7)), ["run"]);
}

#[test]
fn a_lane_is_fenced_by_one_of_those_who_want_it() {
    let mut lane = Player::started(&[claim(A, 1), claim(C, 2)]);
    lane.on(assigned(3));
    let claimed = ["append claim of generation 3", "read to 3", "await the fence of A", "fence C"];
    assert_eq!(lane.on(Event::HandOverOverdue(task()))[..4], claimed);
    assert_eq!(lane.reads(fenced(A, 3)), ["read tail to epoch 0"], "the fence of another one is as good as ours");
}

#[test]
fn a_lane_does_not_wait_for_ever_for_the_one_that_should_fence() {
    let mut lane = Player::started(&[claim(A, 1), claim(C, 2)]);
    lane.on(assigned(3));
    lane.on(Event::HandOverOverdue(task()));
    let overdue = ["fence A", "append fenced A who had read to 3", "read tail to epoch 0"];
    assert_eq!(lane.on(Event::FenceOverdue(A)), overdue);
}

#[test]
fn a_release_names_the_last_epoch() {
    let mut lane = Player::running(&[]);
    assert_eq!(lane.on(taken(3)), ["finish"]);
    assert_eq!(lane.on(finished(9)), ["close", "append release of life 1, generation 2, epoch 9"]);
    assert_eq!(lane.on(assigned(4)), ["append claim of generation 4", "read to 3", "read tail to epoch 9"]);
}

#[test]
fn a_task_that_is_taken_while_it_is_restored_is_released_at_once() {
    let released = |epoch| ["close".to_owned(), format!("append release of life 1, generation 2, epoch {epoch}")];
    let mut lane = Player::started(&[claim(A, 1), release(A, 1, 7)]);
    lane.on(assigned(2));
    assert_eq!(lane.on(taken(3)), released(7), "what another release has named");
    assert_eq!(lane.on(tail_read(7)), [""; 0], "the answer comes too late");

    let mut lane = Player::running(&[]);
    lane.on(Event::Failed { task: task(), committed: Epoch(9) });
    assert_eq!(lane.on(taken(3)), released(9), "its own last epoch, whose marker may be late");

    let mut lane = Player::running(&[]);
    lane.on(taken(3));
    assert_eq!(lane.on(Event::Failed { task: task(), committed: Epoch(9) }), released(9));

    let mut lane = Player::running(&[]);
    lane.on(taken(3));
    assert_eq!(lane.on(Event::Lost)[3..], released(7), "as of its start: what came later is visible");
}

#[test]
fn a_state_is_closed_while_its_task_waits_for_its_turn() {
    let mut lane = Player::running(&[]);
    lane.written.push(Change::Put(claim(C, 3)));
    assert_eq!(lane.on(assigned(4)), [""; 0], "it runs as before");
    let again = ["initialise", "append resumed, life 1", "read to 3", "close", "await the release"];
    assert_eq!(lane.on(Event::Lost), again, "another one has claimed it, in an older generation");
}

#[test]
fn a_claim_that_was_overtaken_never_ran_and_says_so() {
    let mut lane = Player::started(&[]);
    lane.written.push(Change::Put(claim(C, 3)));
    let stopped = ["append claim of generation 2", "read to 2", "stop for C"];
    let said = lane.on(assigned(2));
    assert_eq!(said[..3], stopped);
    assert_eq!(said[3..], ["close", "append release of life 1, generation 2, epoch 0"]);
    assert_eq!(lane.on(assigned(4)), ["await the release"], "a newer assignment is worth another try");
}

#[test]
fn an_assignment_that_is_not_newer_is_ignored() {
    let mut lane = Player::running(&[]);
    assert_eq!(lane.on(taken(2)), [""; 0]);
    assert_eq!(lane.on(taken(1)), [""; 0]);
}

#[test]
fn after_a_loss_the_control_log_is_read_before_anything_goes_on() {
    let again = ["initialise", "append resumed, life 1"];
    let mut lane = Player::running(&[]);
    assert_eq!(lane.on(Event::Lost), [&again[..], &["read to 2", "read tail to epoch 0"]].concat());
    assert_eq!(lane.on(tail_read(7)), ["run"]);

    let mut lane = Player::running(&[]);
    lane.written.push(Change::Put(claim(C, 3)));
    assert_eq!(lane.on(Event::Lost), [&again[..], &["read to 3", "stop for C"]].concat());
    assert_eq!(lane.lane.running().count(), 0);
}

#[test]
fn a_task_that_lost_its_state_reads_its_tail_to_its_own_last_epoch() {
    let mut lane = Player::running(&[]);
    assert_eq!(lane.on(Event::Failed { task: task(), committed: Epoch(8) }), ["read tail to epoch 8"]);
    assert_eq!(lane.on(tail_read(7)), ["read tail to epoch 8"]);
    assert_eq!(lane.on(tail_read(8)), ["run"]);
}

#[test]
fn a_changelog_that_cannot_be_continued_stops_the_task() {
    let mut lane = Player::started(&[]);
    lane.on(assigned(2));
    assert_eq!(lane.on(Event::TailRefused(task())), ["stop: Changelog"]);
    assert_eq!(lane.on(tail_read(7)), [""; 0]);
}

#[test]
fn of_two_lives_of_a_lane_the_older_process_ends() {
    let mut older = Player::running(&[]);
    assert_eq!(older.reads(resumed(B, 2)), ["exit: NewerIncarnation"]);
    assert_eq!(older.on(Event::Lost), [""; 0], "nothing follows an exit");

    let mut newer = Player::running(&[resumed(B, 0), claimed(life(B, 0, 1))]);
    assert_eq!(newer.reads(claimed(life(B, 0, 2))), [""; 0], "a claim of the older one that came late stops nobody");
}

#[test]
fn former_lives_are_released_by_the_first_commit() {
    let mut lane = Player::running(&[claimed(life(B, 0, 1))]);
    assert_eq!(lane.on(Event::Committed), ["append release of life 0, generation 1, epoch 0"]);
    assert_eq!(lane.on(Event::Committed), [""; 0]);
}

#[test]
fn only_who_runs_the_task_removes_what_its_release_named() {
    let mut lane = Player::started(&[claim(A, 1), release(A, 1, 7)]);
    lane.on(assigned(2));
    assert_eq!(lane.on(Event::Compact), [""; 0], "the marker of epoch 7 was not read");
    lane.on(tail_read(7));
    assert_eq!(lane.on(Event::Compact), ["forget claim of A", "forget release of A"]);
    lane.reads(Record::Release { id: life(B, 0, 1), last_epoch: Epoch(8) });
    assert_eq!(lane.on(Event::Compact), [""; 0], "nor that of epoch 8, which another life of the lane has written");
}

#[test]
fn a_lane_that_leaves_releases_everything_first() {
    let mut lane = Player::running(&[]);
    assert_eq!(lane.on(Event::Leave), ["finish"]);
    assert_eq!(lane.on(finished(9)), ["close", "append release of life 1, generation 2, epoch 9", "exit: Left"]);
    assert_eq!(Player::started(&[]).on(Event::Leave), ["exit: Left"]);
}

#[test]
fn what_was_pinned_first_counts_also_when_its_writer_did_not_know_of_others() {
    let pinned = |by: u64, to: i64| {
        let ranges = BTreeMap::from([("orders".to_owned(), vec![(0, 0, to)])]);
        Record::Pinned { by: Incarnation(by), pinned: Pinned { digest: "d".into(), ranges } }
    };
    let first = |log: &ControlLog| log.pinned().map(|pinned| pinned.ranges["orders"][0].2);
    assert_eq!(first(&log(&[claim(A, 1)])), None);
    let mut log = log(&[pinned(9, 5), pinned(1, 7)]);
    assert_eq!(first(&log), Some(5));
    log.apply(Offset(2), Change::Forget(Key::Pinned(Incarnation(9))));
    assert_eq!(first(&log), Some(7));
}

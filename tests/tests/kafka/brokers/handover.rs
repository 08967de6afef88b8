//! Tasks that move between workers on a real Kafka while a generator writes: the taker is level before, nobody else
//! pauses, and what comes out is the model's answer, whoever is killed on the way.

use millrace_core::assignment::{Assignment, Placement};
use millrace_core::ids::{Generation, Partition};
use millrace_core::plan::Partitioner;
use millrace_core::report::{TaskState, WarmReport, WorkerReport};
use millrace_kafka_harness::{Message, wait};
use millrace_tests::control::{Managed, paced};
use millrace_tests::kafka::shared as kafka;
use millrace_tests::story::{DEADLINE, Shape, Story, http};

/// Customers without orders, which make the state of partition 1 large: to read it takes many commit intervals.
const STRANGERS: usize = 400_000;
/// Written at once.
const BATCH: usize = 10_000;

fn place(partition: i32, worker: u32) -> Placement {
    Placement { stage: "joined".to_owned(), partition: Partition(partition), worker, lane: 0 }
}

/// Which worker runs each partition's task, and which keeps which one warm.
fn placed(generation: u64, workers: [u32; 2], warm: &[(i32, u32)]) -> Assignment {
    let tasks = vec![place(0, workers[0]), place(1, workers[1])];
    let warm = warm.iter().map(|(partition, worker)| place(*partition, *worker)).collect();
    Assignment { generation: Generation(generation), plan: 1, tasks, warm, ..Assignment::default() }
}

/// Worker `number` with files of its own, which works on for minutes after it was told to end.
fn worker(story: &Story, number: u32, first: &Assignment) -> Managed {
    let arguments = ["--worker", &number.to_string(), "--leave-within", "600"];
    Managed::start(story, &format!("state{number}"), first, &arguments).unwrap()
}

/// Waits for the end of one that was told to, and why it came.
fn ends(worker: &mut Managed, why: &str) {
    assert!(worker.worker.wait().unwrap().success());
    let log = worker.worker.log();
    assert!(log.contains(&format!("the worker ends why={why}")), "{log}");
}

fn assign(workers: &[&Managed], assignment: &Assignment) {
    for worker in workers {
        assert_eq!(worker.assign(assignment).0, 200);
    }
}

/// True when exactly these partitions' tasks run, by the newest assignment.
fn runs(report: &WorkerReport, assignment: &Assignment, partitions: &[i32]) -> bool {
    let running = report.tasks.iter().filter(|task| task.state == TaskState::Running);
    report.ready
        && report.generation == assignment.generation
        && running.map(|task| task.partition.0).eq(partitions.iter().copied())
}

fn is_level(report: &WorkerReport) -> bool {
    report.warm == [WarmReport { stage: "joined".to_owned(), partition: Partition(1), level: true }]
}

/// Records in the changelog of partition 1, about.
fn changelog(story: &Story) -> u64 {
    kafka().end(&format!("{}-t1-joined-changelog", story.prefix()), 1).unwrap().unsigned_abs()
}

/// Numbers behind `field` in the lines of a worker's log that have all of `words`.
fn logged(worker: &Managed, words: &[&str], field: &str) -> Vec<u64> {
    let log = worker.worker.log();
    let lines = log.lines().filter(|line| words.iter().all(|word| line.contains(word)));
    let number = |line: &str| line.split(field).nth(1)?.split_whitespace().next()?.parse().ok();
    lines.filter_map(number).collect()
}

/// How many records of the changelog the lane itself read, each time that partition 1 came to it.
fn tails(worker: &Managed) -> Vec<u64> {
    logged(worker, &["task runs", "task=joined/1 "], "tail_records=")
}

/// How many records were read before the state of partition 1 was level, each time.
fn levels(worker: &Managed) -> Vec<u64> {
    logged(worker, &["level:", "task=joined/1 "], "records=")
}

fn epochs(worker: &Managed, partition: i32) -> u64 {
    let (_, text) = http(&worker.worker.metrics, "/metrics").unwrap();
    let name = format!("millrace_epochs_total{{partition=\"{partition}\",stage=\"joined\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok()).unwrap_or_default()
}

/// Makes the state of partition 1 large, before anything else is written.
fn write_strangers(story: &Story) {
    let of_partition_1 = |key: &String| Partitioner::Murmur2.partition(key.as_bytes(), 2) == Partition(1);
    let keys = (1_000_000..).map(|id: u64| id.to_string()).filter(of_partition_1);
    let name = "n".repeat(100);
    let change = |key: String| {
        let value = format!("{{\"customer\": {key}, \"name\": \"{name}\", \"since\": 1}}");
        Message::new(key, value).on(1).at(1)
    };
    let (writer, mut changes) = (kafka().writer().unwrap(), keys.take(STRANGERS).map(change).peekable());
    while changes.peek().is_some() {
        writer.produce(&story.topic("customers"), changes.by_ref().take(BATCH)).unwrap();
    }
}

fn wait_until_large(story: &Story) {
    wait::until("a large state", DEADLINE, || Ok(changelog(story) > STRANGERS as u64)).unwrap();
}

#[test]
fn a_task_moves_to_where_it_is_warm_and_back_and_its_lane_reads_only_the_rest() {
    let mut story = paced("moved", Shape::Aligned);
    story.generate(21);
    let first = placed(1, [0, 0], &[]);
    let (source, target) = (worker(&story, 0, &first), worker(&story, 1, &first));
    source.wait("both tasks", |report| runs(report, &first, &[0, 1]));
    wait::until("some history", DEADLINE, || Ok(changelog(&story) > 400)).unwrap();
    // It is about to move, and then it is not: what was read stays on the disk.
    let warm = placed(2, [0, 0], &[(1, 1)]);
    assign(&[&source, &target], &warm);
    target.wait("to be level", |report| report.ready && report.tasks.is_empty() && is_level(report));
    let cold = placed(3, [0, 0], &[]);
    assign(&[&source, &target], &cold);
    let gone = |report: &WorkerReport| report.generation == cold.generation && report.warm.is_empty();
    target.wait("to give the copy up", gone);
    let again = placed(4, [0, 0], &[(1, 1)]);
    assign(&[&source, &target], &again);
    target.wait("to be level again", is_level);
    // It stays so for as long as it takes.
    story.wait_written(500).unwrap();
    target.wait("to be level still", is_level);
    // The end of each transaction has an offset too, and is no record.
    let read = levels(&target);
    assert!(read.len() >= 2 && read[0] > 200 && read[1] < read[0], "{read:?}");
    let history = changelog(&story);
    let moved = placed(5, [0, 1], &[]);
    assign(&[&source, &target], &moved);
    target.wait("to run the task", |report| runs(report, &moved, &[1]));
    source.wait("to keep the other", |report| runs(report, &moved, &[0]));
    // To and fro, faster than anything can become level.
    for (generation, worker, taker, giver) in [(6, 0, &source, &target), (7, 1, &target, &source)] {
        let moves = placed(generation, [0, worker], &[(1, 1 - worker)]);
        assign(&[giver, taker], &moves);
        taker.wait("to run the task", |report| report.ready && report.tasks.iter().any(|task| task.partition.0 == 1));
    }
    story.wait_written(300).unwrap();
    story.stop_generating().unwrap();
    story.check().unwrap();
    let tails = [tails(&source), tails(&target)];
    assert_eq!(tails.each_ref().map(Vec::len), [2, 2], "{tails:?}");
    assert!(tails[1][0] * 4 < history, "{tails:?} of {history}");
    for worker in [source, target] {
        let log = worker.worker.log();
        assert!(!log.contains("fencing a lane") && !log.contains("discarded"), "{log}");
        worker.end();
    }
}

#[test]
fn a_worker_that_is_told_to_end_works_on_until_others_have_its_tasks() {
    let mut story = paced("leaves", Shape::Aligned);
    story.generate(25);
    let first = placed(1, [1, 1], &[]);
    let (target, mut source) = (worker(&story, 0, &first), worker(&story, 1, &first));
    source.wait("both tasks", |report| runs(report, &first, &[0, 1]));
    wait::until("some history", DEADLINE, || Ok(changelog(&story) > 400)).unwrap();
    source.worker.signal("TERM").unwrap();
    source.wait("to leave", |report| report.leaving && !report.ready);
    assert_eq!(http(&source.worker.metrics, "/readyz").unwrap().0, 503);
    let before = epochs(&source, 1);
    source.wait("to work on", |_| epochs(&source, 1) > before + 3);
    let warm = placed(2, [1, 1], &[(0, 0), (1, 0)]);
    assign(&[&source, &target], &warm);
    // Who leaves goes on as long as somebody asks.
    let level = |report: &WorkerReport| report.warm.len() == 2 && report.warm.iter().all(|warm| warm.level);
    target.wait("to be level", |report| source.status().leaving && level(report));
    let history = changelog(&story);
    let one = placed(3, [0, 1], &[(1, 0)]);
    assign(&[&source, &target], &one);
    source.wait("to keep the other", |report| {
        report.generation == one.generation && report.tasks.iter().map(|task| task.partition.0).eq([1])
    });
    let moved = placed(4, [0, 0], &[]);
    assign(&[&source, &target], &moved);
    ends(&mut source, "NoTasks");
    target.wait("to run both", |report| runs(report, &moved, &[0, 1]));
    story.wait_written(300).unwrap();
    story.stop_generating().unwrap();
    story.check().unwrap();
    let log = target.worker.log();
    assert!(!log.contains("fencing a lane"), "{log}");
    assert!(tails(&target)[0] * 4 < history, "{:?} of {history}", tails(&target));
    target.end();
}

#[test]
fn a_worker_that_is_told_to_end_waits_for_nobody_in_vain() {
    let mut story = paced("leaves-alone", Shape::Aligned);
    story.generate(26);
    let first = placed(1, [0, 0], &[]);
    let mut began = 0;
    let mut start = || {
        let started = worker(&story, 0, &first);
        started.wait("both tasks", |report| runs(report, &first, &[0, 1]));
        began += 1;
        story.wait_rows(began * 200).unwrap();
        started
    };
    let mut unasked = start();
    unasked.worker.signal("TERM").unwrap();
    ends(&mut unasked, "NobodyAsks");
    let mut told_twice = start();
    told_twice.worker.signal("TERM").unwrap();
    told_twice.wait("to leave", |report| report.leaving);
    told_twice.worker.signal("TERM").unwrap();
    ends(&mut told_twice, "ToldAgain");
    let mut let_go = start();
    assert_eq!(let_go.let_go(), 200);
    let_go.worker.signal("TERM").unwrap();
    ends(&mut let_go, "LetGo");
    let last = start();
    story.stop_generating().unwrap();
    story.check().unwrap();
    last.end();
}

#[test]
fn the_tasks_of_a_lane_go_on_while_another_one_of_it_is_restored() {
    let mut story = paced("beside", Shape::Aligned);
    write_strangers(&story);
    story.generate(22);
    let first = placed(1, [1, 0], &[]);
    let (source, mut target) = (worker(&story, 0, &first), worker(&story, 1, &first));
    source.wait("its task", |report| runs(report, &first, &[1]));
    target.wait("its task", |report| runs(report, &first, &[0]));
    wait_until_large(&story);
    // Not warm: the lane claims the task, and everything has to be read then.
    let moved = placed(2, [1, 1], &[]);
    assign(&[&source, &target], &moved);
    target.worker.wait_log("its lane waits for it task=joined/1", 1).unwrap();
    let before = epochs(&target, 0);
    let mut during = before;
    wait::until("the state to be level", DEADLINE, || {
        let seen = epochs(&target, 0);
        let level = !levels(&target).is_empty();
        if !level {
            during = seen;
        }
        Ok(level)
    })
    .unwrap();
    assert!(during > before, "{before} epochs and none more: {}", target.worker.log());
    target.wait("to run both", |report| runs(report, &moved, &[0, 1]));
    story.wait_written(300).unwrap();
    story.stop_generating().unwrap();
    story.check().unwrap();
    let (read, tails) = (levels(&target), tails(&target));
    assert!(read[0] > STRANGERS as u64 && tails[0] < 1_000, "{read:?} {tails:?}");
    for worker in [source, target] {
        worker.end();
    }
}

#[test]
fn a_target_that_is_killed_while_it_warms_is_warm_again_and_takes_the_task() {
    let mut story = paced("target-killed", Shape::Aligned);
    write_strangers(&story);
    story.generate(23);
    let first = placed(1, [0, 0], &[]);
    let (source, mut target) = (worker(&story, 0, &first), worker(&story, 1, &first));
    source.wait("both tasks", |report| runs(report, &first, &[0, 1]));
    wait_until_large(&story);
    let warm = placed(2, [0, 0], &[(1, 1)]);
    assign(&[&source, &target], &warm);
    target.worker.wait_log("warm: its changelog is followed task=joined/1", 1).unwrap();
    assert!(levels(&target).is_empty(), "it was killed too late");
    target.worker.kill().unwrap();
    let target = worker(&story, 1, &warm);
    target.wait("to be level", is_level);
    let moved = placed(3, [0, 1], &[]);
    assign(&[&source, &target], &moved);
    target.wait("to run the task", |report| runs(report, &moved, &[1]));
    story.wait_written(300).unwrap();
    story.stop_generating().unwrap();
    story.check().unwrap();
    assert!(tails(&target)[0] < 1_000, "{:?}", tails(&target));
    for worker in [source, target] {
        worker.end();
    }
}

#[test]
fn a_source_that_is_killed_before_it_has_released_is_fenced_and_its_tasks_go_on_where_they_stood() {
    let mut story = paced("source-killed", Shape::Aligned);
    story.generate(24);
    let first = placed(1, [0, 0], &[]);
    let (source, target) = (worker(&story, 0, &first), worker(&story, 1, &first));
    source.wait("both tasks", |report| runs(report, &first, &[0, 1]));
    wait::until("some history", DEADLINE, || Ok(changelog(&story) > 400)).unwrap();
    let warm = placed(2, [0, 0], &[(1, 1)]);
    assign(&[&source, &target], &warm);
    target.wait("to be level", is_level);
    let history = changelog(&story);
    source.worker.kill().unwrap();
    let moved = placed(3, [1, 1], &[]);
    assign(&[&target], &moved);
    target.wait("to run both", |report| runs(report, &moved, &[0, 1]));
    story.wait_written(300).unwrap();
    story.stop_generating().unwrap();
    story.check().unwrap();
    let log = target.worker.log();
    assert!(log.contains("fencing a lane"), "{log}");
    assert!(tails(&target)[0] * 4 < history, "{:?} of {history}", tails(&target));
    target.end();
}

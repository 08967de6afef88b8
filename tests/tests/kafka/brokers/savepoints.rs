//! A savepoint of two stages that run on two workers, with rows in flight between them: everything else is deleted, and
//! another pipeline goes on with it on three workers.

use std::collections::BTreeSet;
use std::path::Path;

use millrace_core::assignment::{Assignment, Cut};
use millrace_core::ids::{Generation, Partition, TaskId, Timeline};
use millrace_core::report::{SavepointReport, WorkerReport};
use millrace_runtime::snapshot::Folder;
use millrace_tests::control::{Managed, paced};
use millrace_tests::kafka::shared as kafka;
use millrace_tests::plan;
use millrace_tests::savepoint::{check, rows_before};
use millrace_tests::story::{RETENTION_MS, Shape, Story, millrace_on};

const PARTITIONS: i32 = 2;

/// The stages, the last first.
fn stages(story: &Story) -> Vec<String> {
    let plan = plan(&story.yaml("unused:9092"));
    plan.stages.iter().rev().map(|stage| stage.name.clone()).collect()
}

fn tasks(stages: &[String]) -> impl Iterator<Item = TaskId> {
    stages.iter().flat_map(|stage| {
        (0..PARTITIONS).map(|partition| TaskId { stage: stage.clone(), partition: Partition(partition) })
    })
}

fn start(story: &Story, file: &Path, prefix: &str, first: &Assignment, timeline: &str) -> Vec<Managed> {
    let workers: BTreeSet<u32> = first.tasks.iter().map(|place| place.worker).collect();
    let one = |number: &u32| {
        let more = ["--worker", &number.to_string(), "--timeline", timeline];
        Managed::start_of(story, file, &format!("{prefix}{number}"), first, &more).unwrap()
    };
    let workers: Vec<Managed> = workers.iter().map(one).collect();
    for worker in &workers {
        worker.wait("to run its tasks", |report| report.ready && report.generation == first.generation);
    }
    workers
}

/// Cuts one stage after another, and waits until every part is in storage.
fn cut(workers: &[Managed], first: &Assignment, id: &str, stages: &[String]) {
    let mut cut = Cut { id: id.to_owned(), stages: BTreeSet::new() };
    for (round, stage) in stages.iter().enumerate() {
        cut.stages.insert(stage.clone());
        let generation = Generation(first.generation.0 + 1 + round as u64);
        let assignment = Assignment { generation, savepoint: Some(cut.clone()), ..first.clone() };
        for worker in workers {
            assert_eq!(worker.assign(&assignment).0, 200);
        }
        for (number, worker) in workers.iter().enumerate() {
            let own = assignment.on(number as u32).iter().filter(|task| cut.stages.contains(&task.stage)).count();
            let done = |report: &WorkerReport| report.savepoint.as_ref().map_or(0, |savepoint| savepoint.tasks.len());
            worker.wait("to cut its tasks", |report| report.generation == generation && done(report) == own);
        }
    }
    for worker in workers {
        let stored = |report: &WorkerReport| {
            report.savepoint.as_ref().is_some_and(|savepoint| savepoint.tasks.iter().all(|task| task.stored))
        };
        worker.wait("to have stored its parts", stored);
    }
    // What was cut goes on as it was.
    let generation = Generation(first.generation.0 + 1 + stages.len() as u64);
    for worker in workers {
        assert_eq!(worker.assign(&Assignment { generation, ..first.clone() }).0, 200);
    }
}

#[test]
fn a_savepoint_of_two_stages_is_all_that_another_pipeline_needs_to_go_on() {
    let mut story = paced("saved", Shape::Repartitioned);
    let folder = story.dir().join("storage");
    story.set_state(&format!("storage: {{file: {{path: {}}}}}, snapshots: {{after: 64Ki}}", folder.display())).unwrap();
    story.generate(41);
    let stages = stages(&story);
    assert!(stages.len() >= 2, "{stages:?}");
    let first = Assignment::spread(Generation(1), 1, tasks(&stages), &[0, 1], 1);
    let old = start(&story, &story.file(), "old", &first, "1");
    story.wait_written(500).unwrap();
    cut(&old, &first, "before", &stages);
    let written = millrace_on(&["savepoint", "write", "--id", "before"], &story.file()).unwrap();
    let report: SavepointReport = serde_json::from_str(&written).unwrap();
    assert!(
        report.bytes > 0 && report.in_flight > 0 && report.lost.is_empty() && report.errors.is_empty(),
        "{report:?}"
    );
    // As long as the oldest order behind the cut is kept.
    let oldest_ms = report.replayable_until_ms.expect("the orders go by their age alone") - RETENTION_MS;
    let orders = kafka().read_committed(&story.topic("orders")).unwrap();
    assert!(orders.iter().skip(1).any(|order| order.timestamp_ms == Some(oldest_ms)), "{report:?}");
    millrace_on(&["savepoint", "verify", "--location", &report.location], &story.file()).unwrap();
    // The pipeline went on: to go back would write rows a second time.
    story.wait_rows(story.written() + 300).unwrap();
    let back = ["restore", "--timeline", "2", "--savepoint", &report.location, "--check"];
    let refused = millrace_on(&back, &story.file()).unwrap_err();
    assert!(refused.contains("would be written again: sink 'out': "), "{refused}");
    millrace_on(&[&back[..], &["--append"]].concat(), &story.file()).unwrap();
    for worker in old {
        worker.worker.kill().unwrap();
    }
    millrace_on(&["cleanup"], &story.file()).unwrap();
    // Nothing is left but the savepoint, with the files that it names.
    for task in tasks(&stages) {
        let snapshots = folder.join(story.prefix()).join(Folder::new(Timeline(1), &task).manifests());
        assert!(!snapshots.exists(), "{}", snapshots.display());
    }
    let file = story.sibling("restored").unwrap();
    millrace_on(&["restore", "--timeline", "2", "--savepoint", &report.location], &file).unwrap();
    let second = Assignment::spread(Generation(1), 1, tasks(&stages), &[0, 1, 2], 1);
    let new = start(&story, &file, "new", &second, "2");
    story.wait_written(500).unwrap();
    story.stop_generating().unwrap();
    let document = Path::new(report.location.strip_prefix("file://").unwrap());
    let before = rows_before(document).unwrap();
    story.wait_rows_in("restored-out", story.written() - before as usize).unwrap();
    check(&story, before, &story.rows_in("restored-out").unwrap()).unwrap();
    for worker in new {
        worker.worker.stop().unwrap();
    }
    // Once a source has lost the cut, it is said before anything starts.
    for partition in 0..PARTITIONS {
        let end = kafka().end(&story.topic("orders"), partition).unwrap();
        kafka().delete_records(&story.topic("orders"), partition, end).unwrap();
    }
    let third = story.sibling("too-late").unwrap();
    let refused = millrace_on(&["restore", "--timeline", "2", "--savepoint", &report.location], &third).unwrap_err();
    assert!(refused.contains("source 'orders'") && refused.contains("the cut is at"), "{refused}");
}

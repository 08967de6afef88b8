//! Workers that somebody else assigns to, on a real Kafka: what they say, what they follow, and what comes out.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use millrace_core::assignment::{Assignment, Live};
use millrace_core::report::{CleanupReport, PreflightReport, TaskState, WorkerReport, hex};
use millrace_tests::control::{Managed, assignment, paced};
use millrace_tests::kafka::shared as kafka;
use millrace_tests::story::{Shape, Story, millrace};
use serde::de::DeserializeOwned;

/// In which no stream is idle for long enough to let the last rows go by itself.
fn never_idle(name: &str, shape: Shape) -> Story {
    let story = paced(name, shape);
    let yaml = story.yaml(&kafka().bootstrap_servers());
    assert!(yaml.contains("idleTimeout: 2s"));
    std::fs::write(story.file(), yaml.replace("idleTimeout: 2s", "idleTimeout: 1h")).unwrap();
    story
}

fn stages(shape: Shape) -> &'static [&'static str] {
    match shape {
        Shape::Aligned => &["joined"],
        Shape::Repartitioned => &["orders", "customers", "joined"],
    }
}

/// Runs a command that writes a report.
fn report<T: DeserializeOwned>(story: &Story, command: &str, more: &[&str]) -> anyhow::Result<T> {
    let path = story.dir().join(format!("{command}.json"));
    let output = Command::new(millrace()?)
        .args([command, "--report"])
        .arg(&path)
        .arg("-f")
        .arg(story.file())
        .args(more)
        .output()
        .context("run millrace")?;
    ensure!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    read(&path)
}

fn read<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    Ok(serde_json::from_slice(&std::fs::read(path)?)?)
}

#[test]
fn a_worker_follows_whichever_assignment_is_newer_and_says_how_it_is() {
    let mut story = paced("managed", Shape::Aligned);
    let none = assignment(1, &[], 0);
    let managed = Managed::start(&story, "state", &none, &[]).unwrap();
    let report = managed.wait("to stand by", |report| report.ready && report.generation == none.generation);
    assert_eq!((report.stages["joined"], report.tasks.len(), report.highest_generation.0), (2, 0, 0));
    story.generate(1);
    let all = assignment(3, stages(Shape::Aligned), 2);
    assert_eq!(managed.assign(&all).0, 200);
    let runs = |report: &WorkerReport| report.tasks.iter().filter(|t| t.state == TaskState::Running).count() == 2;
    let seen = |report: &WorkerReport| report.highest_generation.0 == 3;
    let report = managed.wait("both tasks", |report| report.ready && runs(report) && seen(report));
    assert_eq!((report.generation.0, report.plan), (3, 1));
    assert_eq!(report.newest_plan.map(|plan| plan.fingerprint), Some(report.plan_fingerprint));
    assert_eq!(managed.assign(&assignment(2, &[], 0)), (409, r#"{"generation":3}"#.to_owned()));
    let (mut twice, gone) = (assignment(4, stages(Shape::Aligned), 2), assignment(4, stages(Shape::Aligned), 3));
    twice.tasks.extend(all.tasks.clone());
    for (wrong, why) in [(twice, "joined/0 is placed twice"), (gone, "no task joined/2")] {
        let (status, text) = managed.assign(&wrong);
        assert!(status == 400 && text.contains(why), "{status} {text}");
    }
    story.stop_generating().unwrap();
    story.check().unwrap();
    let sources = |report: &WorkerReport| report.sources.iter().filter(|s| s.lag_records == Some(0)).count();
    managed.wait("no lag of orders and customers", |report| sources(report) == 4);
    assert_eq!(managed.assign(&assignment(4, &[], 0)).0, 200);
    managed
        .wait("to give its tasks back", |report| report.ready && report.tasks.is_empty() && report.generation.0 == 4);
    managed.worker.stop().unwrap();
}

#[test]
fn another_commit_interval_and_log_level_are_taken_up_while_tasks_run() {
    let mut story = paced("live", Shape::Aligned);
    let of = |generation| assignment(generation, stages(Shape::Aligned), 2);
    let mut managed = Managed::start(&story, "state", &of(1), &[]).unwrap();
    managed.wait("to run", |report| report.ready);
    // So seldom that nothing comes out during this test, unless it is told otherwise.
    let rarely = Live { commit_interval_ms: Some(3_600_000), ..Live::default() };
    assert_eq!(managed.assign(&Assignment { live: rarely, ..of(2) }).0, 200);
    managed.wait("to follow", |report| report.ready && report.generation.0 == 2);
    story.generate(8);
    story.wait_written(200).unwrap();
    story.stop_generating().unwrap();
    let level = |report: &WorkerReport| report.sources.iter().filter(|s| s.lag_records == Some(0)).count() == 4;
    managed.wait("to have read everything", level);
    assert_eq!(story.rows().unwrap().len(), 0);
    let debug = Live { log_level: Some("debug".to_owned()), ..Live::default() };
    assert_eq!(managed.assign(&Assignment { live: debug.clone(), ..of(3) }).0, 200);
    story.check().unwrap();
    // What it does about its tasks is said at that level.
    assert!(!managed.worker.log().contains("DEBUG"));
    assert_eq!(managed.assign(&Assignment { live: debug, ..assignment(4, &[], 0) }).0, 200);
    managed.worker.wait_log("DEBUG", 1).unwrap();
    managed.worker.stop().unwrap();
}

#[test]
fn a_worker_whose_assignment_is_older_than_what_was_run_stands_by_until_it_gets_one_above() {
    let mut story = paced("older", Shape::Aligned);
    story.generate(2);
    let before = Managed::start(&story, "before", &assignment(7, stages(Shape::Aligned), 2), &[]).unwrap();
    before.wait("to run", |report| report.ready);
    story.wait_written(200).unwrap();
    before.worker.stop().unwrap();
    let after = Managed::start(&story, "after", &assignment(3, stages(Shape::Aligned), 2), &[]).unwrap();
    let report = after.wait("to say so", |report| !report.messages.is_empty());
    assert!(report.messages[0].contains("generation 7 was run already"), "{report:#?}");
    assert_eq!((report.ready, report.highest_generation.0, report.tasks.len()), (false, 7, 0));
    assert_eq!(after.assign(&assignment(6, stages(Shape::Aligned), 2)), (409, r#"{"generation":7}"#.to_owned()));
    assert_eq!(after.assign(&assignment(8, stages(Shape::Aligned), 2)).0, 200);
    after.wait("to run", |report| report.ready && report.messages.is_empty() && report.tasks.len() == 2);
    story.stop_generating().unwrap();
    story.check().unwrap();
    after.worker.stop().unwrap();
}

/// Drains, goes on with more, and drains again; the answer is the model's each time.
fn drained(name: &str, shape: Shape) {
    let mut story = never_idle(name, shape);
    story.generate(3);
    let managed = Managed::start(&story, "state", &assignment(1, stages(shape), 2), &[]).unwrap();
    managed.wait("to run", |report| report.ready);
    for generation in [2, 4] {
        story.wait_written(500).unwrap();
        story.stop_generating().unwrap();
        let drain = Assignment { drain: true, ..assignment(generation, stages(shape), 2) };
        assert_eq!(managed.assign(&drain).0, 200);
        managed.wait("to be drained", |report| report.drained && report.generation == drain.generation);
        // All at once: nothing comes later.
        assert_eq!(story.rows().unwrap().len(), story.written());
        story.check().unwrap();
        assert_eq!(managed.assign(&assignment(generation + 1, stages(shape), 2)).0, 200);
        story.generate(3);
        managed.wait("to go on", |report| report.ready && !report.drained && report.tasks.len() == drain.tasks.len());
    }
    story.stop_generating().unwrap();
    story.check_part().unwrap();
    managed.worker.stop().unwrap();
}

#[test]
fn a_drain_lets_everything_out_that_was_there_and_another_assignment_goes_on_after_it() {
    drained("drained", Shape::Aligned);
}

#[test]
fn a_drain_goes_through_all_stages() {
    drained("drained-stages", Shape::Repartitioned);
}

#[test]
fn without_data_a_drain_is_done_at_once() {
    let story = never_idle("drained-empty", Shape::Repartitioned);
    let drain = Assignment { drain: true, ..assignment(1, stages(Shape::Repartitioned), 2) };
    let managed = Managed::start(&story, "state", &drain, &[]).unwrap();
    managed.wait("to be drained", |report| report.drained);
    assert_eq!(story.rows().unwrap().len(), 0);
    managed.worker.stop().unwrap();
}

#[test]
fn what_is_written_during_a_drain_waits_for_the_next_assignment() {
    let mut story = never_idle("drained-load", Shape::Aligned);
    story.generate(4);
    let managed = Managed::start(&story, "state", &assignment(1, stages(Shape::Aligned), 2), &[]).unwrap();
    managed.wait("to run", |report| report.ready);
    story.wait_written(200).unwrap();
    let drain = Assignment { drain: true, ..assignment(2, stages(Shape::Aligned), 2) };
    assert_eq!(managed.assign(&drain).0, 200);
    managed.wait("to be drained", |report| report.drained);
    story.check_part().unwrap();
    story.wait_written(200).unwrap();
    story.stop_generating().unwrap();
    let last = Assignment { drain: true, ..assignment(4, stages(Shape::Aligned), 2) };
    assert_eq!(managed.assign(&assignment(3, stages(Shape::Aligned), 2)).0, 200);
    assert_eq!(managed.assign(&last).0, 200);
    managed.wait("to be drained", |report| report.drained && report.generation == last.generation);
    story.check().unwrap();
    managed.worker.stop().unwrap();
}

#[test]
fn an_edit_that_keeps_the_state_goes_on_with_it_where_the_assignment_accepts_it() {
    let mut story = paced("edited", Shape::Aligned);
    story.generate(5);
    let plan = |name: &str| {
        let plan = millrace_tests::plan(&std::fs::read_to_string(story.file()).unwrap());
        let path = story.dir().join(name);
        std::fs::write(&path, serde_json::to_vec(&plan).unwrap()).unwrap();
        (path.display().to_string(), hex(plan.state_fingerprint))
    };
    let (old, accepted) = plan("old.json");
    let first = assignment(1, stages(Shape::Aligned), 2);
    let before = Managed::start(&story, "before", &first, &["--plan", &old]).unwrap();
    before.wait("to run", |report| report.ready);
    story.wait_written(200).unwrap();
    before.worker.stop().unwrap();
    let (yaml, column) = (story.yaml(&kafka().bootstrap_servers()), "- {name: name, type: STRING}");
    assert!(yaml.contains(column));
    let edited = yaml.replace(column, &format!("{column}\n        - {{name: email, type: STRING}}"));
    std::fs::write(story.file(), edited).unwrap();
    let (new, _) = plan("new.json");
    let second = Assignment { plan: 2, ..assignment(2, stages(Shape::Aligned), 2) };
    // On another machine: the state comes from the changelog.
    let after = Managed::start(&story, "after", &second, &["--plan", &new]).unwrap();
    let report = after.wait("to refuse the state", |report| report.messages.len() == 2);
    assert!(report.messages[0].contains("another version of the pipeline"), "{report:#?}");
    let accepting = Assignment { plan: 2, accepts: vec![accepted], ..assignment(3, stages(Shape::Aligned), 2) };
    assert_eq!(after.assign(&accepting).0, 200);
    after.wait("to run", |report| report.ready && report.tasks.len() == 2);
    story.wait_written(200).unwrap();
    story.stop_generating().unwrap();
    story.check().unwrap();
    after.worker.stop().unwrap();
}

#[test]
fn a_clean_up_deletes_what_the_pipeline_made_and_nothing_of_the_users() {
    let mut story = paced("cleaned", Shape::Repartitioned);
    let users = [format!("{}-mine", story.prefix()), format!("{}-t1-mine", story.prefix())];
    users.iter().for_each(|topic| kafka().create_topic(topic, 1, &[]).unwrap());
    story.generate(6);
    let mut worker = story.worker("state", &[]).unwrap();
    worker.wait_ready().unwrap();
    // Each stage has shown its positions by then.
    story.wait_rows(50).unwrap();
    worker.stop().unwrap();
    story.stop_generating().unwrap();
    let found: PreflightReport = report(&story, "preflight", &[]).unwrap();
    assert_eq!((found.errors, found.stages.len(), found.highest_generation.0), (Vec::new(), 3, 1));
    let strange: CleanupReport = report(&story, "cleanup", &["--cluster", "another"]).unwrap();
    assert!(strange.errors[0].starts_with("IdentityConflict") && strange.deleted.is_empty(), "{strange:#?}");
    let cleaned: CleanupReport = report(&story, "cleanup", &[]).unwrap();
    assert_eq!((&cleaned.errors, &cleaned.left), (&Vec::new(), &Vec::new()), "{cleaned:#?}");
    let control = format!("{}-control", story.prefix());
    assert_eq!(cleaned.deleted.last(), Some(&control), "{cleaned:#?}");
    // Three changelogs, two repartitions, three groups and the control topic.
    assert_eq!(cleaned.deleted.len(), 9, "{cleaned:#?}");
    assert!(users.iter().all(|topic| kafka().topic_config(topic).is_ok_and(|config| !config.is_empty())));
    let topics = ["orders", "customers", "out"].map(|topic| story.topic(topic));
    assert!(topics.iter().all(|topic| kafka().topic_config(topic).is_ok_and(|config| !config.is_empty())));
    let again: CleanupReport = report(&story, "cleanup", &[]).unwrap();
    assert_eq!(again, CleanupReport::default());
}

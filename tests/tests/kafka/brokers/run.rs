//! `millrace run` on a real Kafka, under load, through what happens to processes: what a `read_committed` reader sees is
//! the naive model's answer, each row once.

use millrace_tests::kafka::shared as kafka;
use millrace_tests::story::{Numbers, Shape, Story};

/// Kills of one run: 20 in CI.
fn kills() -> usize {
    std::env::var("MILLRACE_KILLS").map_or(20, |text| text.parse().expect("MILLRACE_KILLS is a number"))
}

fn killed(name: &str, shape: Shape, seed: u64) -> anyhow::Result<()> {
    let mut story = Story::new(kafka(), name, shape, 4)?;
    let mut numbers = Numbers(seed);
    story.generate(seed);
    let mut worker = story.worker("state", &["--lanes", "2"])?;
    worker.wait_ready()?;
    for kill in 0..kills() {
        story.wait_written(numbers.below(400) as usize)?;
        worker.kill()?;
        // Every third time on another machine: without the local state.
        let state = format!("state{}", kill / 3);
        worker = story.worker(&state, &["--lanes", "2"])?;
        // Every second time it is killed while it starts, too.
        if numbers.below(2) == 0 {
            worker.wait_ready()?;
        }
    }
    story.stop_generating()?;
    story.check()?;
    worker.stop()?;
    story.check()
}

#[test]
fn a_worker_that_is_killed_at_any_instant_loses_and_doubles_nothing() {
    killed("killed", Shape::Aligned, 7).unwrap();
}

#[test]
fn two_stages_that_are_killed_at_any_instant_lose_and_double_nothing() {
    killed("killed-stages", Shape::Repartitioned, 8).unwrap();
}

#[test]
fn a_worker_that_is_told_to_stop_gives_its_tasks_back_and_the_next_one_waits_for_nobody() {
    let mut story = Story::new(kafka(), "stopped", Shape::Aligned, 4).unwrap();
    story.generate(1);
    let mut worker = story.worker("state", &["--lanes", "2"]).unwrap();
    worker.wait_ready().unwrap();
    story.wait_written(500).unwrap();
    worker.stop().unwrap();
    let mut worker = story.worker("state", &[]).unwrap();
    worker.wait_ready().unwrap();
    assert!(!worker.log().contains("fencing a lane"), "{}", worker.log());
    story.stop_generating().unwrap();
    story.check().unwrap();
    worker.stop().unwrap();
    story.check().unwrap();
}

#[test]
fn of_two_processes_under_one_name_the_older_one_ends() {
    let mut story = Story::new(kafka(), "twice", Shape::Aligned, 2).unwrap();
    story.generate(2);
    let mut first = story.worker("first", &[]).unwrap();
    first.wait_ready().unwrap();
    story.wait_written(200).unwrap();
    let mut second = story.worker("second", &[]).unwrap();
    second.wait_ready().unwrap();
    assert!(!first.wait().unwrap().success());
    assert!(first.log().contains("two processes must not have the same worker number"), "{}", first.log());
    story.wait_written(200).unwrap();
    story.stop_generating().unwrap();
    story.check().unwrap();
    second.stop().unwrap();
}

#[test]
fn a_zombie_whose_tasks_were_taken_never_commits_again() {
    let mut story = Story::new(kafka(), "zombie", Shape::Aligned, 2).unwrap();
    story.generate(3);
    // Another worker number, so another transactional id: only the control log says that the tasks are gone.
    let zombie = story.worker("zombie", &["--worker", "1"]).unwrap();
    let mut zombie = zombie;
    zombie.wait_ready().unwrap();
    story.wait_written(200).unwrap();
    zombie.signal("STOP").unwrap();
    let mut taker = story.worker("taker", &[]).unwrap();
    taker.wait_ready().unwrap();
    assert!(taker.log().contains("fencing a lane"), "{}", taker.log());
    story.wait_written(500).unwrap();
    zombie.signal("CONT").unwrap();
    assert!(!zombie.wait().unwrap().success());
    story.wait_written(200).unwrap();
    story.stop_generating().unwrap();
    story.check().unwrap();
    taker.stop().unwrap();
    story.check().unwrap();
}

//! Which lane of which worker runs each task. The operator writes it; a worker on its own makes one for itself.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::control::LaneId;
use crate::ids::{Generation, Partition, TaskId, Timeline};

/// An assignment, as the JSON of its file holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Assignment {
    /// Only ever grows.
    pub generation: Generation,
    /// The number of the plan that was applied; it grows with each one.
    pub plan: u64,
    pub tasks: Vec<Placement>,
    /// Read what is there, let all of it out, and idle.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drain: bool,
    /// State fingerprints (hex) of earlier plans whose state this plan goes on with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accepts: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Placement {
    pub stage: String,
    pub partition: Partition,
    pub worker: u32,
    pub lane: u32,
}

impl Assignment {
    /// Spreads tasks over the lanes of some workers, each stage evenly. Neither may be none.
    pub fn spread(
        generation: Generation,
        plan: u64,
        tasks: impl IntoIterator<Item = TaskId>,
        workers: &[u32],
        lanes: u32,
    ) -> Self {
        let place = |TaskId { stage, partition }: TaskId| {
            let slot = partition.0.unsigned_abs() as usize;
            let (worker, lane) = (workers[slot % workers.len()], (slot / workers.len()) as u32 % lanes);
            Placement { stage, partition, worker, lane }
        };
        Self { generation, plan, tasks: tasks.into_iter().map(place).collect(), drain: false, accepts: Vec::new() }
    }

    /// The tasks of one lane.
    pub fn of(&self, lane: LaneId) -> Vec<TaskId> {
        let own = self.tasks.iter().filter(|p| (p.worker, p.lane) == (lane.worker, lane.lane));
        own.map(|p| TaskId { stage: p.stage.clone(), partition: p.partition }).collect()
    }

    /// What is wrong with it, given how many tasks each stage has.
    pub fn mistakes(&self, stages: &BTreeMap<String, i32>) -> Vec<String> {
        let mut placed = BTreeSet::new();
        let mistake = |p: &Placement| {
            let task = TaskId { stage: p.stage.clone(), partition: p.partition };
            if !stages.get(&p.stage).is_some_and(|count| (0..*count).contains(&p.partition.0)) {
                Some(format!("the pipeline has no task {task}; `millrace explain` lists the stages"))
            } else {
                (!placed.insert(task.clone())).then(|| format!("task {task} is placed twice"))
            }
        };
        self.tasks.iter().filter_map(mistake).collect()
    }

    /// The lanes of a worker that have tasks.
    pub fn lanes(&self, timeline: Timeline, worker: u32) -> Vec<LaneId> {
        let mut lanes: Vec<u32> = self.tasks.iter().filter(|p| p.worker == worker).map(|p| p.lane).collect();
        lanes.sort_unstable();
        lanes.dedup();
        lanes.into_iter().map(|lane| LaneId { timeline, worker, lane }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks() -> impl Iterator<Item = TaskId> {
        let stage = |stage: &'static str| (0..5).map(move |p| TaskId { stage: stage.into(), partition: Partition(p) });
        stage("a").chain(stage("b"))
    }

    #[test]
    fn every_task_is_placed_once_and_no_lane_has_two_more_of_a_stage_than_another() {
        for (workers, lanes) in [(1, 1), (1, 2), (2, 1), (2, 2), (3, 4)] {
            let numbers: Vec<u32> = (0..workers).collect();
            let spread = Assignment::spread(Generation(3), 1, tasks(), &numbers, lanes);
            let lane = |worker, lane| LaneId { timeline: Timeline(1), worker, lane };
            let all: Vec<Vec<TaskId>> = (0..workers)
                .flat_map(|w| (0..lanes).map(move |l| (w, l)))
                .map(|(w, l)| spread.of(lane(w, l)))
                .collect();
            let mut placed = all.concat();
            placed.sort();
            assert_eq!(placed, tasks().collect::<Vec<_>>());
            let of_a = all.iter().map(|tasks| tasks.iter().filter(|t| t.stage == "a").count());
            let (least, most) = of_a.fold((usize::MAX, 0), |(least, most), n| (least.min(n), most.max(n)));
            assert!(most - least <= 1, "{workers} workers, {lanes} lanes: {least} to {most}");
        }
    }

    #[test]
    fn a_task_that_is_not_there_and_one_that_is_placed_twice_are_mistakes() {
        let mut spread = Assignment::spread(Generation(3), 1, tasks(), &[0, 1], 1);
        let stages = BTreeMap::from([("a".to_owned(), 5), ("b".to_owned(), 5)]);
        assert_eq!(spread.mistakes(&stages), Vec::<String>::new());
        let mut twice = spread.tasks[0].clone();
        twice.worker += 1;
        let gone = Placement { partition: Partition(5), ..twice.clone() };
        spread.tasks.extend([twice, gone]);
        let mistakes = spread.mistakes(&stages);
        assert_eq!(mistakes[0], "task a/0 is placed twice");
        assert!(mistakes[1].starts_with("the pipeline has no task a/5") && mistakes.len() == 2, "{mistakes:#?}");
    }

    #[test]
    fn its_file_reads_back_and_an_unknown_field_is_refused() {
        let spread = Assignment::spread(Generation(3), 1, tasks(), &[0, 1], 1);
        let text = serde_json::to_string(&spread).expect("plain data");
        assert_eq!(serde_json::from_str::<Assignment>(&text).expect("it was written by us"), spread);
        assert!(serde_json::from_str::<Assignment>(r#"{"generation":1,"plan":1,"tasks":[],"x":1}"#).is_err());
    }

    #[test]
    fn what_it_does_not_ask_for_is_not_written_so_that_the_release_before_reads_it() {
        let plain = Assignment::spread(Generation(3), 1, [], &[0], 1);
        assert_eq!(serde_json::to_string(&plain).expect("plain data"), r#"{"generation":3,"plan":1,"tasks":[]}"#);
        let draining = Assignment { drain: true, accepts: vec!["00c0ffee00c0ffee".to_owned()], ..plain };
        let text = serde_json::to_string(&draining).expect("plain data");
        assert_eq!(serde_json::from_str::<Assignment>(&text).expect("it was written by us"), draining);
    }
}

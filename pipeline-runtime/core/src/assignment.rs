//! Which lane of which worker runs each task. The operator writes it; a worker on its own makes one for itself.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::control::LaneId;
use crate::ids::{Generation, Partition, TaskId, Timeline};

/// An assignment, as the JSON of its file holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    #[serde(default, skip_serializing_if = "Live::is_empty")]
    pub live: Live,
    /// Tasks whose state a worker brings level and keeps so, without running them: they are about to move to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warm: Vec<Placement>,
    /// The savepoint that is being made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub savepoint: Option<Cut>,
}

/// A cut through all tasks, from the last stage to the first.
///
/// A stage is cut when all stages behind it are: then what a cut reader has read was written before its writer's cut, and
/// what lies between the two in the repartition topics is in flight, and belongs to the savepoint. Nothing waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Cut {
    /// Names the savepoint's folder in storage; another attempt has another id.
    pub id: String,
    /// Stages whose tasks are to be cut by now, each once, at an epoch after it was told.
    pub stages: BTreeSet<String>,
}

/// What workers take up while they run. `None`: what they were started with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Live {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit_interval_ms: Option<u64>,
    /// As `--log-level` takes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_level: Option<String>,
}

impl Live {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Placement {
    pub stage: String,
    pub partition: Partition,
    pub worker: u32,
    pub lane: u32,
}

impl Placement {
    pub fn task(&self) -> TaskId {
        TaskId { stage: self.stage.clone(), partition: self.partition }
    }
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
        Self { generation, plan, tasks: tasks.into_iter().map(place).collect(), ..Self::default() }
    }

    /// The tasks of one lane.
    pub fn of(&self, lane: LaneId) -> Vec<TaskId> {
        let own = self.tasks.iter().filter(|p| (p.worker, p.lane) == (lane.worker, lane.lane));
        own.map(Placement::task).collect()
    }

    /// The tasks of one worker.
    pub fn on(&self, worker: u32) -> BTreeSet<TaskId> {
        self.tasks.iter().filter(|p| p.worker == worker).map(Placement::task).collect()
    }

    /// The tasks that a worker keeps level. One that it runs is level anyway.
    pub fn warm_on(&self, worker: u32) -> BTreeSet<TaskId> {
        let warm: BTreeSet<TaskId> = self.warm.iter().filter(|p| p.worker == worker).map(Placement::task).collect();
        &warm - &self.on(worker)
    }

    /// What is wrong with it, given how many tasks each stage has.
    pub fn mistakes(&self, stages: &BTreeMap<String, i32>) -> Vec<String> {
        let mut placed = BTreeSet::new();
        let unknown = |p: &Placement| {
            let known = stages.get(&p.stage).is_some_and(|count| (0..*count).contains(&p.partition.0));
            (!known).then(|| format!("the pipeline has no task {}; `millrace explain` lists the stages", p.task()))
        };
        let mistake = |p: &Placement| {
            unknown(p).or_else(|| (!placed.insert(p.task())).then(|| format!("task {} is placed twice", p.task())))
        };
        self.tasks.iter().filter_map(mistake).chain(self.warm.iter().filter_map(unknown)).collect()
    }

    /// The lanes of a worker that have tasks, or are about to: a task does not wait for its lane to come up.
    pub fn lanes(&self, timeline: Timeline, worker: u32) -> BTreeSet<LaneId> {
        let own = self.tasks.iter().chain(&self.warm).filter(|p| p.worker == worker);
        own.map(|p| LaneId { timeline, worker, lane: p.lane }).collect()
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
        let live = Live { commit_interval_ms: Some(1_000), log_level: Some("debug".to_owned()) };
        let warm = Assignment::spread(Generation(3), 1, tasks(), &[1], 1).tasks;
        let whole = Assignment { drain: true, accepts: vec!["00c0ffee00c0ffee".to_owned()], live, warm, ..plain };
        let text = serde_json::to_string(&whole).expect("plain data");
        assert_eq!(serde_json::from_str::<Assignment>(&text).expect("it was written by us"), whole);
    }

    #[test]
    fn a_worker_keeps_warm_what_is_about_to_come_and_has_the_lane_for_it() {
        let mut spread = Assignment::spread(Generation(3), 1, tasks(), &[0], 1);
        let warm =
            |partition, worker, lane| Placement { stage: "a".into(), partition: Partition(partition), worker, lane };
        spread.warm = vec![warm(0, 1, 2), warm(1, 0, 1), warm(5, 1, 0)];
        let task = TaskId { stage: "a".into(), partition: Partition(0) };
        let gone = TaskId { partition: Partition(5), ..task.clone() };
        assert_eq!(spread.warm_on(1), BTreeSet::from([task, gone]));
        assert_eq!(spread.warm_on(0), BTreeSet::new(), "what it runs is level");
        let lanes = spread.lanes(Timeline(1), 1).into_iter().map(|id| id.lane).collect::<Vec<_>>();
        assert_eq!(lanes, [0, 2]);
        let stages = BTreeMap::from([("a".to_owned(), 5), ("b".to_owned(), 5)]);
        let mistakes = spread.mistakes(&stages);
        assert!(mistakes.len() == 1 && mistakes[0].starts_with("the pipeline has no task a/5"), "{mistakes:#?}");
    }
}

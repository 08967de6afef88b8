//! Which lane of which worker runs each task. The operator writes it; a worker on its own makes one for itself.

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
        Self { generation, plan, tasks: tasks.into_iter().map(place).collect() }
    }

    /// The tasks of one lane.
    pub fn of(&self, lane: LaneId) -> Vec<TaskId> {
        let own = self.tasks.iter().filter(|p| (p.worker, p.lane) == (lane.worker, lane.lane));
        own.map(|p| TaskId { stage: p.stage.clone(), partition: p.partition }).collect()
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
    fn its_file_reads_back_and_an_unknown_field_is_refused() {
        let spread = Assignment::spread(Generation(3), 1, tasks(), &[0, 1], 1);
        let text = serde_json::to_string(&spread).expect("plain data");
        assert_eq!(serde_json::from_str::<Assignment>(&text).expect("it was written by us"), spread);
        assert!(serde_json::from_str::<Assignment>(r#"{"generation":1,"plan":1,"tasks":[],"x":1}"#).is_err());
    }
}

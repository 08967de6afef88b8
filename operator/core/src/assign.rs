//! Which task goes to which lane: each stage evenly, and nothing moves that need not.

use std::collections::BTreeMap;

use millrace_core::assignment::{Assignment, Placement};
use millrace_core::ids::Partition;

/// A lane of a worker.
type Slot = (u32, u32);

/// Where tasks lie: `workers` workers of `lanes` lanes. Both are at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub workers: u32,
    pub lanes: u32,
}

/// Places every task of `stages` (tasks of each), keeping those of `old` where they are as far as the balance allows.
/// In each stage no lane has two tasks more than another.
pub fn place(old: Option<&Assignment>, stages: &BTreeMap<String, i32>, room: Room) -> Vec<Placement> {
    // Lanes of one worker are far apart, so that few tasks go to many workers.
    let slots: Vec<Slot> = (0..room.lanes).flat_map(|l| (0..room.workers).map(move |w| (w, l))).collect();
    let mut load: BTreeMap<Slot, usize> = slots.iter().map(|slot| (*slot, 0)).collect();
    let mut placed = Vec::new();
    for (stage, tasks) in stages {
        let of_stage = place_stage(old, stage, *tasks, &slots, &load);
        for (partition, slot) in of_stage {
            *load.entry(slot).or_default() += 1;
            let (worker, lane) = slot;
            placed.push(Placement { stage: stage.clone(), partition: Partition(partition), worker, lane });
        }
    }
    placed
}

fn place_stage(
    old: Option<&Assignment>,
    stage: &str,
    tasks: i32,
    slots: &[Slot],
    load: &BTreeMap<Slot, usize>,
) -> BTreeMap<i32, Slot> {
    let tasks = tasks.max(0);
    let (least, mut extra) = (tasks as usize / slots.len(), tasks as usize % slots.len());
    let mut own: BTreeMap<Slot, usize> = slots.iter().map(|slot| (*slot, 0)).collect();
    let mut placed = BTreeMap::new();
    for placement in old.into_iter().flat_map(|old| &old.tasks).filter(|p| p.stage == stage) {
        let slot = (placement.worker, placement.lane);
        let Some(count) = own.get_mut(&slot).filter(|_| (0..tasks).contains(&placement.partition.0)) else { continue };
        let room = *count < least || *count == least && extra > 0;
        if room && !placed.contains_key(&placement.partition.0) {
            extra -= usize::from(*count == least);
            *count += 1;
            placed.insert(placement.partition.0, slot);
        }
    }
    for partition in 0..tasks {
        if placed.contains_key(&partition) {
            continue;
        }
        let emptiest = slots.iter().enumerate().min_by_key(|(i, slot)| (own[slot], load[slot] + own[slot], *i));
        let slot = *emptiest.expect("there is a worker with a lane").1;
        *own.entry(slot).or_default() += 1;
        placed.insert(partition, slot);
    }
    placed
}

#[cfg(test)]
mod tests {
    use millrace_core::ids::Generation;

    use super::*;

    fn stages(counts: &[(&str, i32)]) -> BTreeMap<String, i32> {
        counts.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect()
    }

    fn assignment(tasks: Vec<Placement>) -> Assignment {
        Assignment { generation: Generation(1), plan: 1, tasks, drain: false, accepts: Vec::new() }
    }

    fn moved(before: &[Placement], after: &[Placement]) -> usize {
        after.iter().filter(|p| !before.contains(p)).count()
    }

    #[test]
    fn every_task_is_placed_once_and_no_lane_has_two_more_of_a_stage_than_another() {
        let stages = stages(&[("a", 8), ("b", 5), ("c", 1)]);
        let mut old: Option<Assignment> = None;
        for (workers, lanes) in [(1, 1), (2, 1), (4, 1), (3, 2), (20, 1), (2, 3), (1, 1)] {
            let placed = place(old.as_ref(), &stages, Room { workers, lanes });
            let mut tasks: Vec<_> = placed.iter().map(|p| (p.stage.clone(), p.partition.0)).collect();
            tasks.sort();
            let all: Vec<_> = stages.iter().flat_map(|(s, n)| (0..*n).map(move |p| (s.clone(), p))).collect();
            assert_eq!(tasks, all);
            for stage in stages.keys() {
                let count = |w, l| placed.iter().filter(|p| p.stage == *stage && (p.worker, p.lane) == (w, l)).count();
                let counts = (0..workers).flat_map(|w| (0..lanes).map(move |l| (w, l))).map(|(w, l)| count(w, l));
                let (least, most) = counts.fold((usize::MAX, 0), |(low, high), n| (low.min(n), high.max(n)));
                assert!(most - least <= 1, "{workers} workers, {lanes} lanes, stage {stage}: {least} to {most}");
            }
            old = Some(assignment(placed));
        }
    }

    #[test]
    fn only_what_must_move_moves() {
        let stages = stages(&[("a", 8), ("b", 8)]);
        let two = place(None, &stages, Room { workers: 2, lanes: 1 });
        let four = place(Some(&assignment(two.clone())), &stages, Room { workers: 4, lanes: 1 });
        assert_eq!(moved(&two, &four), 8, "half of the tasks go to the two new workers");
        let back = place(Some(&assignment(four.clone())), &stages, Room { workers: 2, lanes: 1 });
        assert_eq!(moved(&four, &back), 8, "and only those come back");
        assert_eq!(place(Some(&assignment(two.clone())), &stages, Room { workers: 2, lanes: 1 }), two);
    }

    #[test]
    fn a_task_of_a_new_partition_goes_to_the_emptiest_lane() {
        let three = place(None, &stages(&[("a", 3)]), Room { workers: 2, lanes: 1 });
        let four = place(Some(&assignment(three.clone())), &stages(&[("a", 4)]), Room { workers: 2, lanes: 1 });
        assert_eq!(moved(&three, &four), 1);
    }

    #[test]
    fn small_stages_do_not_all_go_to_the_first_worker() {
        let placed = place(None, &stages(&[("a", 1), ("b", 1), ("c", 1)]), Room { workers: 3, lanes: 1 });
        let mut workers: Vec<u32> = placed.iter().map(|p| p.worker).collect();
        workers.sort_unstable();
        assert_eq!(workers, [0, 1, 2]);
    }
}

//! Which task goes to which lane: each stage evenly, and nothing moves that need not. And how it gets there from another
//! worker: one that runs moves when its next owner has its state.

use std::collections::BTreeMap;

use millrace_core::assignment::{Assignment, Placement};
use millrace_core::ids::Partition;

/// So many tasks at once does a worker bring level: they read from the same disk and brokers as what it runs already.
const WARM_MAX: usize = 4;

/// A lane of a worker.
type Slot = (u32, u32);

/// Where tasks lie: `lanes` lanes of each of some workers. There is at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room<'a> {
    pub workers: &'a [u32],
    pub lanes: u32,
}

/// What comes of a task that shall go to another worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    Go,
    /// Its next owner reads its state first.
    Warm,
    Stay,
}

/// An assignment's tasks on their way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    pub tasks: Vec<Placement>,
    pub warm: Vec<Placement>,
    /// How many go to another worker.
    pub moved: u32,
    /// Where those shall go that stay as yet.
    pub left: Vec<Placement>,
}

/// The same task in a list.
fn same<'a>(of: &'a [Placement], task: &Placement) -> Option<&'a Placement> {
    of.iter().find(|placed| placed.partition == task.partition && placed.stage == task.stage)
}

/// Places every task of `stages` (tasks of each), keeping those of `old` where they are as far as the balance allows.
/// In each stage no lane has two tasks more than another. One that is on its way counts where it goes: what its next owner
/// has read would be lost.
pub fn place(old: Option<&Assignment>, stages: &BTreeMap<String, i32>, room: Room<'_>) -> Vec<Placement> {
    // Lanes of one worker are far apart, so that few tasks go to many workers.
    let slots: Vec<Slot> = (0..room.lanes).flat_map(|l| room.workers.iter().map(move |w| (*w, l))).collect();
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
    let before = old.into_iter().flat_map(|old| old.tasks.iter().map(|task| same(&old.warm, task).unwrap_or(task)));
    for placement in before.filter(|p| p.stage == stage) {
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

/// The next assignment on the way from `old` to `goal`; `turn` is asked of each task that has an owner and shall get
/// another worker, with where it lies and where it shall. From lane to lane of one worker nothing is restored.
pub fn approach(old: Option<&Assignment>, goal: Vec<Placement>, turn: impl Fn(&Placement, &Placement) -> Turn) -> Step {
    let mut step = Step::default();
    let mut warm = Vec::new();
    for to in goal {
        let from = old.and_then(|old| same(&old.tasks, &to)).filter(|from| from.worker != to.worker);
        let Some((from, turn)) = from.map(|from| (from, turn(from, &to))) else {
            step.tasks.push(to);
            continue;
        };
        if turn == Turn::Go {
            step.moved += 1;
            step.tasks.push(to);
            continue;
        }
        step.tasks.push(from.clone());
        if turn == Turn::Warm {
            warm.push(to.clone());
        }
        step.left.push(to);
    }
    // What is being read goes on.
    let begun = |to: &Placement| old.is_some_and(|old| old.warm.contains(to));
    let mut of_worker: BTreeMap<u32, usize> = BTreeMap::new();
    warm.iter().filter(|to| begun(to)).for_each(|to| *of_worker.entry(to.worker).or_default() += 1);
    warm.retain(|to| {
        let count = of_worker.entry(to.worker).or_default();
        let more = *count < WARM_MAX && !begun(to);
        *count += usize::from(more);
        more || begun(to)
    });
    Step { warm, ..step }
}

#[cfg(test)]
mod tests {
    use millrace_core::ids::Generation;

    use super::*;

    fn stages(counts: &[(&str, i32)]) -> BTreeMap<String, i32> {
        counts.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect()
    }

    fn assignment(tasks: Vec<Placement>) -> Assignment {
        Assignment { generation: Generation(1), plan: 1, tasks, ..Assignment::default() }
    }

    fn ordinals(workers: u32) -> Vec<u32> {
        (0..workers).collect()
    }

    fn room(workers: &[u32]) -> Room<'_> {
        Room { workers, lanes: 1 }
    }

    fn moved(before: &[Placement], after: &[Placement]) -> usize {
        after.iter().filter(|p| !before.contains(p)).count()
    }

    #[test]
    fn every_task_is_placed_once_and_no_lane_has_two_more_of_a_stage_than_another() {
        let stages = stages(&[("a", 8), ("b", 5), ("c", 1)]);
        let mut old: Option<Assignment> = None;
        for (workers, lanes) in [(1, 1), (2, 1), (4, 1), (3, 2), (20, 1), (2, 3), (1, 1)] {
            let placed = place(old.as_ref(), &stages, Room { workers: &ordinals(workers), lanes });
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
        let two = place(None, &stages, room(&ordinals(2)));
        let four = place(Some(&assignment(two.clone())), &stages, room(&ordinals(4)));
        assert_eq!(moved(&two, &four), 8, "half of the tasks go to the two new workers");
        let back = place(Some(&assignment(four.clone())), &stages, room(&ordinals(2)));
        assert_eq!(moved(&four, &back), 8, "and only those come back");
        assert_eq!(place(Some(&assignment(two.clone())), &stages, room(&ordinals(2))), two);
    }

    #[test]
    fn a_task_of_a_new_partition_goes_to_the_emptiest_lane() {
        let three = place(None, &stages(&[("a", 3)]), room(&ordinals(2)));
        let four = place(Some(&assignment(three.clone())), &stages(&[("a", 4)]), room(&ordinals(2)));
        assert_eq!(moved(&three, &four), 1);
    }

    #[test]
    fn small_stages_do_not_all_go_to_the_first_worker() {
        let placed = place(None, &stages(&[("a", 1), ("b", 1), ("c", 1)]), room(&ordinals(3)));
        let mut workers: Vec<u32> = placed.iter().map(|p| p.worker).collect();
        workers.sort_unstable();
        assert_eq!(workers, [0, 1, 2]);
    }

    #[test]
    fn a_few_at_a_time_are_warmed_and_those_that_are_level_move_to_where_they_were_warmed() {
        let stages = stages(&[("a", 12), ("b", 5)]);
        let mut now = assignment(place(None, &stages, room(&[0])));
        let goal = place(Some(&now), &stages, room(&[0, 1, 2]));
        let mut steps = 0;
        loop {
            let step = approach(Some(&now), place(Some(&now), &stages, room(&[0, 1, 2])), |_, to| {
                if now.warm.contains(to) && to.partition.0 % 2 == steps % 2 { Turn::Go } else { Turn::Warm }
            });
            let of_worker = |worker| step.warm.iter().filter(|to| to.worker == worker).count();
            assert!(of_worker(0) == 0 && of_worker(1) <= WARM_MAX && of_worker(2) <= WARM_MAX, "{step:?}");
            assert_eq!(step.moved as usize, moved(&now.tasks, &step.tasks));
            let kept = now.warm.iter().filter(|to| !step.tasks.contains(to));
            assert!(kept.into_iter().all(|to| step.warm.contains(to)), "what is being read goes on: {step:?}");
            (now.tasks, now.warm) = (step.tasks, step.warm);
            if step.left.is_empty() {
                break;
            }
            steps += 1;
            assert!(steps < 20, "it comes to an end");
        }
        let before = place(None, &stages, room(&[0]));
        assert_eq!(moved(&before, &now.tasks), moved(&before, &goal), "on the way nothing moves that need not");
        assert_eq!(now.warm, []);
    }

    #[test]
    fn a_task_that_stays_keeps_its_lane_and_a_worker_moves_tasks_between_its_own() {
        let stages = stages(&[("a", 4)]);
        let old = assignment(place(None, &stages, room(&[0])));
        let goal = place(Some(&old), &stages, Room { workers: &[0, 1], lanes: 2 });
        let step = approach(Some(&old), goal.clone(), |_, _| Turn::Stay);
        for (at, to) in step.tasks.iter().zip(&goal) {
            assert_eq!((at.worker, at.lane), (0, if to.worker == 0 { to.lane } else { 0 }));
        }
        assert_eq!((step.left.len(), step.moved, step.warm), (2, 0, Vec::new()));
    }
}

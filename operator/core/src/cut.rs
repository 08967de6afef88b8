//! A savepoint on its way: stages are cut from the last to the first, and what was cut must stay so.
//!
//! A stage is added when every task of all stages that read what it writes was reported cut. The write that adds it has the
//! epochs of those cuts too. A task that was lost after its cut, and is cut once more, has another epoch: it may have read
//! what its writers wrote behind their cuts, so that the whole cut is worth nothing. At the same epoch it is the same cut.
//! So too with a task that is new, as where a topic got a partition: it must be cut before those that it reads are told.

use std::collections::{BTreeMap, BTreeSet};

use millrace_core::assignment::{Assignment, Cut, Placement};
use millrace_core::ids::{Epoch, TaskId};
use millrace_core::plan::{Output, OutputTo};
use millrace_core::report::WorkerReport;
use serde::Deserialize;
use serde_json::Value;

/// For each stage, the stages that read what it writes.
pub type Readers = BTreeMap<String, BTreeSet<String>>;
pub type Epochs = BTreeMap<TaskId, Epoch>;

/// Where a cut is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Going {
    pub cut: Cut,
    /// Of the tasks that are cut.
    pub epochs: Epochs,
    /// Tasks that are to be cut, or to be stored once all are cut.
    pub waits_for: Vec<TaskId>,
    /// Every task is cut.
    pub whole: bool,
}

impl Going {
    /// Every task is cut, and lies in storage.
    pub fn is_stored(&self) -> bool {
        self.whole && self.waits_for.is_empty()
    }
}

/// Of a plan, the little that a cut has to know.
#[derive(Deserialize)]
struct Shape {
    stages: Vec<Stage>,
    exchanges: Vec<Exchange>,
}

#[derive(Deserialize)]
struct Stage {
    name: String,
    outputs: Vec<Output>,
}

#[derive(Deserialize)]
struct Exchange {
    name: String,
    /// That reads it.
    stage: String,
}

/// Who reads what whom writes, by a stored plan.
pub fn readers(plan: &Value) -> Option<Readers> {
    let Shape { stages, exchanges } = Shape::deserialize(plan).ok()?;
    let reader = |output: &Output| match &output.to {
        OutputTo::Exchange(name) => exchanges.iter().find(|e| e.name == *name).map(|e| e.stage.clone()),
        OutputTo::Sink(_) => None,
    };
    Some(stages.into_iter().map(|stage| (stage.name, stage.outputs.iter().filter_map(reader).collect())).collect())
}

/// The stages that are cut first: nobody reads them.
pub fn last_stages(readers: &Readers) -> BTreeSet<String> {
    readers.iter().filter(|(_, readers)| readers.is_empty()).map(|(stage, _)| stage.clone()).collect()
}

/// How a cut goes on that `last` tells workers of, whose tasks were cut at `epochs` so far; or why it is lost. `tasks`:
/// those of the next assignment, which may have more.
pub fn advance<'r>(
    last: &Assignment,
    tasks: &[Placement],
    cut: &Cut,
    epochs: &Epochs,
    readers: &Readers,
    report: impl Fn(u32) -> Option<&'r WorkerReport>,
) -> Result<Going, String> {
    let told = |task: &&Placement| cut.stages.contains(&task.stage);
    let mut going = Going { cut: cut.clone(), epochs: epochs.clone(), waits_for: Vec::new(), whole: false };
    let mut stored = BTreeSet::new();
    for task in last.tasks.iter().filter(told) {
        let id = task.task();
        let Some(report) = report(task.worker) else { continue };
        let said = report.savepoint.as_ref().filter(|said| said.id == cut.id);
        let found =
            said.and_then(|said| said.tasks.iter().find(|t| t.partition == task.partition && t.stage == task.stage));
        match (epochs.get(&id), found) {
            (Some(epoch), Some(found)) if *epoch != found.epoch => {
                return Err(format!("{id} was cut once more by worker {}", task.worker));
            }
            (Some(_), None) if said.is_some() => {
                return Err(format!("worker {} has lost the cut of {id}", task.worker));
            }
            // What it follows is another assignment of that generation: one was lost, and nobody could say how far it went.
            (_, None) if said.is_none() && report.generation >= last.generation => {
                return Err(format!("worker {} knows of no savepoint", task.worker));
            }
            (_, Some(found)) => {
                going.epochs.insert(id.clone(), found.epoch);
                stored.extend(found.stored.then_some(id));
            }
            (_, None) => {}
        }
    }
    let uncut = |stage: &String| {
        let mut of_stage = tasks.iter().filter(|task| task.stage == *stage).map(Placement::task);
        of_stage.find(|task| !going.epochs.contains_key(task))
    };
    let told_stages = readers.iter().filter(|(stage, _)| cut.stages.contains(*stage));
    if let Some(new) = told_stages.flat_map(|(_, readers)| readers).find_map(uncut) {
        return Err(format!("{new} is new, and what it reads may have been cut already"));
    }
    let is_cut = |stage: &String| cut.stages.contains(stage) && uncut(stage).is_none();
    let next = readers.iter().filter(|(_, readers)| readers.iter().all(is_cut)).map(|(stage, _)| stage.clone());
    let next: BTreeSet<String> = next.collect();
    going.whole = readers.keys().all(is_cut);
    going.cut.stages.extend(next);
    let done = |id: &TaskId| if going.whole { stored.contains(id) } else { going.epochs.contains_key(id) };
    going.waits_for = tasks.iter().map(Placement::task).filter(|id| !done(id)).collect();
    Ok(going)
}

#[cfg(test)]
mod tests {
    use millrace_core::ids::{Generation, Partition};
    use millrace_core::report::{CutReport, CutTask};
    use serde_json::json;

    use super::*;

    /// `read` writes to `joined`, and so does `tables`; `joined` writes to `out`.
    fn plan() -> Readers {
        let output = |exchange: &str| json!([{"from": {"Input": 0}, "to": {"Exchange": exchange}}]);
        let sink = json!([{"from": {"Input": 0}, "to": {"Sink": "o"}}]);
        let plan = json!({
            "stages": [
                {"name": "read", "outputs": output("a")},
                {"name": "tables", "outputs": output("b")},
                {"name": "joined", "outputs": output("c")},
                {"name": "out", "outputs": sink},
            ],
            "exchanges": [
                {"name": "a", "stage": "joined"}, {"name": "b", "stage": "joined"}, {"name": "c", "stage": "out"},
            ],
        });
        readers(&plan).expect("a plan")
    }

    fn stages(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// Each stage has a task on worker 0 and one on worker 1.
    fn assignment() -> Assignment {
        let place = |stage: &str, worker: u32| Placement {
            stage: stage.to_owned(),
            partition: Partition(worker as i32),
            worker,
            lane: 0,
        };
        let tasks = ["read", "tables", "joined", "out"].iter().flat_map(|stage| [place(stage, 0), place(stage, 1)]);
        Assignment { generation: Generation(7), tasks: tasks.collect(), ..Assignment::default() }
    }

    /// A worker that has cut its task of some stages at an epoch.
    fn worker(number: u32, epoch: u64, cut: &[&str], stored: bool) -> WorkerReport {
        let task = |stage: &&str| CutTask {
            stage: (*stage).to_owned(),
            partition: Partition(number as i32),
            epoch: Epoch(epoch),
            stored,
        };
        let savepoint =
            CutReport { id: "u-7".to_owned(), tasks: cut.iter().map(task).collect(), ..CutReport::default() };
        WorkerReport { generation: Generation(7), savepoint: Some(savepoint), ..WorkerReport::default() }
    }

    fn step(told: &[&str], epochs: &Epochs, workers: &[WorkerReport]) -> Result<Going, String> {
        let cut = Cut { id: "u-7".to_owned(), stages: stages(told) };
        let last = assignment();
        advance(&last, &last.tasks, &cut, epochs, &plan(), |worker| workers.get(worker as usize))
    }

    #[test]
    fn a_stage_is_cut_when_all_tasks_of_all_stages_behind_it_are() {
        assert_eq!(last_stages(&plan()), stages(&["out"]));
        let one = step(&["out"], &Epochs::new(), &[worker(0, 5, &["out"], false)]).expect("it goes on");
        assert_eq!(one.cut.stages, stages(&["out"]), "worker 1 has said nothing");
        let both = [worker(0, 5, &["out"], true), worker(1, 6, &["out"], false)];
        let both = step(&["out"], &one.epochs, &both).expect("it goes on");
        assert_eq!(both.cut.stages, stages(&["joined", "out"]));
        let told = ["joined", "out"];
        let all = [worker(0, 5, &told, true), worker(1, 6, &told, true)];
        let next = step(&told, &both.epochs, &all).expect("it goes on");
        assert_eq!(next.cut.stages, stages(&["joined", "out", "read", "tables"]));
        assert!(!next.whole && next.waits_for.len() == 4, "{next:?}");
    }

    #[test]
    fn it_is_stored_when_every_task_is_and_says_what_it_waits_for() {
        let told = ["joined", "out", "read", "tables"];
        let half = [worker(0, 5, &told, true), worker(1, 6, &told, false)];
        let half = step(&told, &Epochs::new(), &half).expect("it goes on");
        assert!(half.whole && !half.is_stored() && half.waits_for.iter().all(|task| task.partition == Partition(1)));
        let whole = [worker(0, 5, &told, true), worker(1, 6, &told, true)];
        assert!(step(&told, &half.epochs, &whole).expect("it goes on").is_stored());
    }

    #[test]
    fn a_task_that_is_new_is_cut_before_those_that_it_reads_are_told() {
        let (last, told) = (assignment(), |names: &[&str]| Cut { id: "u-7".to_owned(), stages: stages(names) });
        let new = Placement { stage: "out".to_owned(), partition: Partition(2), worker: 0, lane: 0 };
        let more: Vec<Placement> = last.tasks.iter().cloned().chain([new]).collect();
        let next = |names: &[&str]| {
            let all = [worker(0, 5, names, false), worker(1, 6, names, false)];
            advance(&last, &more, &told(names), &Epochs::new(), &plan(), |worker| all.get(worker as usize))
        };
        let going = next(&["out"]).expect("it goes on");
        assert_eq!(going.cut.stages, stages(&["out"]), "the new one is told first");
        assert!(going.waits_for.iter().any(|task| task.partition == Partition(2)));
        assert!(next(&["joined", "out"]).is_err(), "it would read what was written behind the cut");
    }

    #[test]
    fn a_task_whose_cut_is_gone_or_another_one_loses_the_whole() {
        let before = step(&["out"], &Epochs::new(), &[worker(0, 5, &["out"], false)]).expect("it goes on").epochs;
        let again = |report: WorkerReport| step(&["out"], &before, &[report]);
        assert!(again(worker(0, 9, &["out"], false)).is_err(), "another epoch");
        assert!(again(worker(0, 5, &[], false)).is_err(), "it knows of the savepoint, and not of its task");
        let unaware = |generation| WorkerReport { generation: Generation(generation), ..WorkerReport::default() };
        assert!(again(unaware(7)).is_err(), "it follows something else");
        assert!(step(&["out"], &Epochs::new(), &[unaware(7)]).is_err());
        // It may not have heard of anything yet.
        assert!(again(unaware(6)).is_ok());
        assert!(step(&["out"], &before, &[]).is_ok(), "who does not answer has lost nothing yet");
        assert!(again(worker(0, 5, &["out"], true)).is_ok());
    }
}

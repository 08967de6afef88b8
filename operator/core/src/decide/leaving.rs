//! Pods that are told to end, by whomever: an eviction, a drain of their node, a deletion. Their workers work on until
//! the others have their tasks, which move as any do ([`super::moves`]).
//!
//! A worker that waits for that in vain is let go. One that does not answer, as when its node is lost, gives nothing
//! back: who has read the state of its tasks takes them all the same, and fences it. A pod that does not answer and was
//! not told to end keeps its tasks: its container may just be started again.

use super::{Round, SOON_MS};
use crate::decision::Action;
use crate::facts::{Placed, Pod};
use crate::names::CONTROL_PORT;

impl Round<'_> {
    /// Looks often at those that leave, and lets them go unless one of the workers below `span` stays or is about to
    /// come.
    pub(super) fn see_off(&mut self, span: u32) {
        let facts = self.facts;
        let nobody_stays = (0..span).all(|worker| facts.leaves(worker));
        for pod in facts.pods.iter().filter(|pod| facts.leaves(pod.ordinal)) {
            self.again_in(SOON_MS);
            let answers = facts.report(pod.ordinal).is_some();
            if let Some(address) = pod.address.as_ref().filter(|_| nobody_stays && answers) {
                let address = format!("{address}:{CONTROL_PORT}");
                self.actions.push(Action::LetGo { worker: pod.ordinal, address });
            }
        }
    }

    /// Says why tasks wait for a worker whose pod is there and does not answer.
    pub(super) fn say_who_is_missed(&mut self, placed: &Placed) {
        let has_tasks = |pod: &Pod| {
            let mut tasks = placed.assignment.iter().flat_map(|assignment| &assignment.tasks);
            tasks.any(|task| task.worker == pod.ordinal)
        };
        let silent = |pod: &Pod| !pod.ready && !pod.ending && self.facts.report(pod.ordinal).is_none();
        let missed = self.facts.pods.iter().find(|pod| silent(pod) && has_tasks(pod));
        if let Some(pod) = missed {
            let message = format!("worker {} does not answer, and its tasks wait for it", pod.ordinal);
            self.outlook.progress("Waiting", message);
        }
    }
}

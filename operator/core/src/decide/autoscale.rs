//! Autoscaling: what is advised goes into the status, and in mode Act it is done, through `/scale`.
//!
//! A scaling is **written down before it is done**, with the generation of the spec that it was decided over. Whoever does
//! it may crash at any time: the next one knows of it, and finishes it or lets it be where somebody has edited the spec
//! since. So no two scalings are nearer to each other than the stabilisation, whoever leads.

use millrace_crds::pipeline::{AutoscalingMode, AutoscalingStatus, DesiredState, LastScaled, Pipeline};

use super::{Round, SOON_MS};
use crate::autoscale::{Advice, Reason, Terms, advise};
use crate::decision::{Action, Event};

/// What was written down longer ago and is not done is not done any more: the load is another one by now.
const CARRIED_OUT_MS: i64 = 60_000;

impl Round<'_> {
    pub(super) fn autoscale(&mut self) {
        let before = self.facts.status.autoscaling.clone();
        let Ok(pipeline) = &self.facts.parsed else {
            self.outlook.autoscaling = before;
            return;
        };
        let (mode, replicas) = (pipeline.spec.autoscaling.mode, pipeline.spec.replicas);
        if mode == AutoscalingMode::Disabled {
            return;
        }
        let acts = mode == AutoscalingMode::Act && pipeline.spec.desired_state == DesiredState::Running;
        if let Some(before) = before.as_ref().filter(|_| acts)
            && let Some(last) = before.last_scaled.as_ref().filter(|last| self.is_due(last, replicas))
        {
            self.carry_out(last, &before.message);
            self.outlook.autoscaling = Some(before.clone());
            return;
        }
        let terms = Terms::of(self.facts, self.settings);
        let last = before.as_ref().and_then(|before| before.last_scaled.clone());
        let Advice { to, reason, message } = match (self.must_end(pipeline), &terms) {
            (Some(advice), _) => advice,
            (None, None) => Advice::hold(Reason::Waiting, "no task was assigned yet"),
            (None, Some(terms)) => advise(&self.facts.observed.history, terms, last.as_ref(), replicas, self.now.ms()),
        };
        let history = &self.facts.observed.history;
        let scaled = to.filter(|_| acts).map(|to| LastScaled {
            time: self.now,
            from: replicas as i32,
            to: to as i32,
            generation: self.facts.generation,
            rows_per_second: history.done(),
        });
        if scaled.is_some() {
            self.again_in(SOON_MS);
        }
        let known = before.as_ref().and_then(|before| before.worker_rows_per_second);
        self.outlook.autoscaling = Some(AutoscalingStatus {
            mode,
            desired: to.unwrap_or(replicas) as i32,
            reason: format!("{reason:?}"),
            message,
            worker_rows_per_second: terms.map_or(known, |terms| history.worker_rows(&terms)),
            last_scaled: scaled.or(last),
        });
    }

    /// Whether a scaling was written down and is not done, and the spec is still the one that it was decided over.
    fn is_due(&self, last: &LastScaled, replicas: u32) -> bool {
        let fresh = self.now.ms() - last.time.ms() < CARRIED_OUT_MS;
        fresh && last.generation == self.facts.generation && last.from == replicas as i32
    }

    fn carry_out(&mut self, last: &LastScaled, why: &str) {
        let over = self.facts.resource_version.clone();
        self.actions.push(Action::Scale { replicas: last.to.unsigned_abs(), over });
        let reason = if last.to > last.from { "ScaledUp" } else { "ScaledDown" };
        self.events.push(Event::normal(reason, format!("from {} to {} workers: {why}", last.from, last.to)));
        self.again_in(SOON_MS);
    }

    /// What has to be over first, where workers are wanted.
    fn must_end(&self, pipeline: &Pipeline) -> Option<Advice> {
        if pipeline.spec.desired_state != DesiredState::Running {
            let message = format!("desiredState is {:?}", pipeline.spec.desired_state);
            return Some(Advice::hold(Reason::Stopped, message));
        }
        if pipeline.spec.replicas == 0 {
            return None;
        }
        if let Some(rescale) = &self.outlook.rescale {
            let message = format!("{} tasks are on their way; waits for {}", rescale.remaining, rescale.waits_for);
            return Some(Advice::hold(Reason::Rescaling, message));
        }
        let applied = self.facts.applied.as_ref().map(|applied| applied.value.generation);
        if applied != Some(self.facts.generation) {
            return Some(Advice::hold(Reason::Waiting, "this generation of the spec does not run yet"));
        }
        self.outlook.on_its_way().map(|what| Advice::hold(Reason::Waiting, what))
    }
}

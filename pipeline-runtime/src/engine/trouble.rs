//! What goes wrong in a step, and what follows from it.

use millrace_core::epoch::{Delivery, Loss, Next, Phase};
use millrace_core::ids::TaskId;

use super::build::Begin;
use super::task::TaskError;
use super::{Engine, EngineError, Step, chain, now};
use crate::clock;
use crate::log::{CommitError, Log, LogError};

/// What has gone wrong in a step.
pub(super) enum Trouble {
    /// Ends the process.
    Fatal(EngineError),
    /// Of one task alone.
    Task(TaskId, EngineError),
    /// Something in the epoch can never be committed.
    Refused(LogError),
    /// The epoch was not committed, for a reason that passes.
    Dropped(LogError),
    Lost(CommitError),
}

impl<E: Into<EngineError>> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self::Fatal(error.into())
    }
}

/// Says which task it was.
pub(super) fn of(task: &TaskId, error: TaskError) -> EngineError {
    EngineError::Task { task: task.clone(), source: Box::new(error) }
}

pub(super) fn fault(task: &TaskId, error: TaskError) -> Trouble {
    Trouble::Task(task.clone(), of(task, error))
}

impl<L: Log> Engine<L> {
    /// What follows from each kind of trouble.
    pub(super) fn settle(&mut self, trouble: Trouble) -> Result<Step, EngineError> {
        match trouble {
            Trouble::Fatal(error) if !self.config.isolate => Err(error),
            // Brokers that are away for longer than a look-up waits end no lane. It takes its id anew, which is tried
            // until it succeeds, and restores its tasks: that is right whatever it was doing.
            Trouble::Fatal(error) => {
                let error = error.passing()?;
                self.settle(Trouble::Lost(CommitError::Unknown(error)))
            }
            Trouble::Task(_, error) if !self.config.isolate => Err(error),
            Trouble::Task(id, error) => {
                self.epoch.abandon(&id)?;
                self.stop_task(&id, error)?;
                self.drop_epoch()
            }
            Trouble::Refused(error) => {
                self.refusal = error.to_string();
                tracing::warn!(error = self.refusal, "the epoch is refused, and is read again");
                // What was refused on its way is judged like what the brokers refuse.
                if self.epoch.phase() == Phase::Open && self.close(clock::steady_ms())?.is_empty() {
                    return Err(error.into());
                }
                let next = self.epoch.delivered(Delivery::Rejected)?;
                if let Next::AbortAndStop(id) = next {
                    self.stop_task(&id, error.into())?;
                }
                self.drop_epoch()
            }
            Trouble::Dropped(error) => {
                tracing::warn!(%error, "the epoch was not committed, and is read again");
                self.epoch.rewound()?;
                self.drop_epoch()
            }
            Trouble::Lost(error) => {
                // What the brokers took for the commit is not the rows' fault.
                let until_ms = self.asked_ms.unwrap_or_else(clock::steady_ms);
                let open_ms = self.open_since_ms.map_or(0, |since| until_ms - since);
                let timed_out = self.config.epoch_timeout_ms.is_some_and(|timeout| open_ms >= timeout);
                let loss = match &error {
                    CommitError::Fenced(_) if timed_out => Loss::TimedOut,
                    CommitError::Fenced(_) => Loss::Fenced,
                    CommitError::Aborted(_) | CommitError::Unknown(_) => Loss::Unknown,
                };
                self.take_all_out(loss)?;
                Ok(Step::Lost(error))
            }
        }
    }

    /// No task runs any more; their states are kept for [`Engine::restore`], as the last committed epoch left them.
    fn take_all_out(&mut self, loss: Loss) -> Result<(), EngineError> {
        self.epoch.lost(loss);
        self.outbox.clear();
        self.begin_epoch();
        for slot in 0..self.tasks.len() {
            if let Some(mut task) = self.take_out(slot)? {
                task.state.discard();
                self.lag_unknown(&task);
                self.states.insert(task.id, task.state);
            }
        }
        self.finishing.clear();
        Ok(())
    }

    /// Ends the epoch, and then is as if the log's identity were lost: the log is about to get new clients. An epoch that
    /// cannot be committed is read again.
    pub fn suspend(&mut self) -> Result<(), EngineError> {
        let now = now();
        if self.due(now) {
            match self.commit(now) {
                Err(Trouble::Fatal(error)) => return Err(error),
                Err(trouble @ Trouble::Lost(_)) => return self.settle(trouble).map(drop),
                Ok(_) | Err(_) => {}
            }
        }
        self.take_all_out(Loss::Unknown)
    }

    fn stop_task(&mut self, id: &TaskId, error: EngineError) -> Result<(), EngineError> {
        tracing::error!(task = %id, error = chain(&error), "task is stopped; the others go on");
        if let Some(slot) = self.tasks.iter().position(|t| t.as_ref().is_some_and(|t| t.id == *id))
            && let Some(task) = self.take_out(slot)?
        {
            self.stopped.insert(id.clone(), task.committed());
            self.lag_unknown(&task);
            self.metrics.running(id, false);
        }
        self.faults.push((id.clone(), error));
        Ok(())
    }

    /// Drops the open epoch: every task is made again from its state, which is as the last committed epoch left it.
    fn drop_epoch(&mut self) -> Result<Step, EngineError> {
        self.outbox.clear();
        if let Err(error) = self.log.abort() {
            return self.settle(Trouble::Lost(CommitError::Unknown(error)));
        }
        self.begin_epoch();
        for slot in 0..self.tasks.len() {
            if let Err(error) = self.make_again(slot) {
                return self.settle(Trouble::Fatal(error));
            }
        }
        Ok(Step::Busy)
    }

    fn make_again(&mut self, slot: usize) -> Result<(), EngineError> {
        let Some(mut task) = self.take_out(slot)? else { return Ok(()) };
        // The log may not answer for a while.
        self.lag_unknown(&task);
        task.state.discard();
        let (id, generation) = (task.id, task.generation);
        let marker = self.builder.marker(&id, &task.state)?;
        let begin = Begin { state: task.state, marker, grown: task.grown };
        let mut task = self.builder.task(&id, begin, clock::steady_ms(), &mut self.log, &mut self.outbox)?;
        task.generation = generation;
        self.place(slot, task)
    }
}

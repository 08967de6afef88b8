//! Fencing another lane: a second or more, in which the lane that does it must go on with its own tasks.

use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread::Builder;

use millrace_core::control::LaneId;
use rdkafka::ClientConfig;

use super::fault;
use super::transactions::Transactions;
use crate::log::LogError;

/// A fencing that is under way.
pub struct Fence {
    pub lane: LaneId,
    outcome: Receiver<Result<(), LogError>>,
}

impl Fence {
    #[expect(clippy::disallowed_methods, reason = "it ends with the initialisation, which has a deadline")]
    pub(super) fn begin(lane: LaneId, config: ClientConfig, timeout_ms: u32) -> Result<Self, LogError> {
        let (sender, outcome) = sync_channel(1);
        let work = move || {
            let fenced = Transactions::initialise(&config, timeout_ms).map(Transactions::close);
            // Whoever waited may be gone.
            drop(sender.try_send(fenced));
        };
        let thread = Builder::new().name(format!("fence-{lane}")).spawn(work);
        thread.map_err(|e| fault("start a thread", &e.to_string(), false))?;
        Ok(Self { lane, outcome })
    }

    /// `None`: it is not known yet.
    pub fn outcome(&self) -> Option<Result<(), LogError>> {
        match self.outcome.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(fault("fence a lane", "its thread has ended", true))),
        }
    }
}

//! Secrets that change while a worker runs. They are read again from time to time; changed ones are tried before they
//! are taken up, so that a mistake in them leaves the worker as it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{Builder, JoinHandle};

use anyhow::Context;

use super::preflight::refused;
use crate::clock;
use crate::log::kafka::connection::Connection;
use crate::log::kafka::survey::reach;

const EVERY_MS: u64 = 10_000;
const LOOK_MS: u64 = 50;
/// Connections that nobody has taken up yet.
const CONNECTIONS_MAX: usize = 4;

/// Puts the connection together anew from the files; all mistakes at once.
pub type Reread = Arc<dyn Fn() -> Result<Connection, Vec<String>> + Send + Sync>;

/// A connection that works, by other secrets than the last one.
pub struct Found {
    pub connection: Connection,
    /// The last one is refused already.
    pub hurry: bool,
}

/// The thread that watches.
pub struct Rotation {
    found: Receiver<Found>,
    thread: JoinHandle<()>,
}

impl Rotation {
    /// Watches until `stop` is set.
    pub fn watch(current: Connection, reread: Reread, stop: &Arc<AtomicBool>) -> anyhow::Result<Self> {
        let (sender, found) = sync_channel(CONNECTIONS_MAX);
        let stop = Arc::clone(stop);
        let stopped = move || stop.load(Ordering::Relaxed);
        let work = move || {
            let mut current = current;
            while pause(&stopped) {
                let Some(connection) = changed(&current, &reread, &stopped) else { continue };
                let hurry = reach(&current, &stopped).is_err();
                // Whoever has so many waiting is stuck, and gets this one at the next look.
                if sender.try_send(Found { connection: connection.clone(), hurry }).is_ok() {
                    tracing::info!(hurry, "the secrets of spec.kafka have changed and are taken up");
                    current = connection;
                }
            }
        };
        #[expect(clippy::disallowed_methods, reason = "joined by `join`")]
        let thread = Builder::new().name("secrets".to_owned()).spawn(work).context("start a thread")?;
        Ok(Self { found, thread })
    }

    pub fn found(&self) -> Option<Found> {
        self.found.try_recv().ok()
    }

    /// Waits for the thread, which ends soon after `stop` was set.
    pub fn join(self) {
        if self.thread.join().is_err() {
            tracing::error!("the thread that watches the secrets has panicked");
        }
    }
}

/// False: it is time to end.
fn pause(stopped: &dyn Fn() -> bool) -> bool {
    let start = clock::steady_ms();
    while !stopped() && clock::steady_ms() - start < EVERY_MS {
        clock::pause_ms(LOOK_MS);
    }
    !stopped()
}

/// The connection that the files give now, if it is another one and works.
fn changed(current: &Connection, reread: &Reread, stopped: &dyn Fn() -> bool) -> Option<Connection> {
    let next = match reread() {
        Ok(next) if next == *current => return None,
        Ok(next) => next,
        Err(mistakes) => {
            tracing::warn!(mistakes = mistakes.join("; "), "the secrets cannot be read again, and the old ones stay");
            return None;
        }
    };
    match reach(&next, stopped) {
        Ok(_) => Some(next),
        Err(_) if stopped() => None,
        Err(refusal) => {
            let why = refused(&next, &refusal);
            tracing::warn!(why, "the secrets have changed and do not work; the old ones stay");
            None
        }
    }
}

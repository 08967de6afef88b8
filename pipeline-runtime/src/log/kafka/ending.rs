//! The end of clients. It can hang on a broker or a name server that does not answer, so it happens on a thread that is
//! waited for with a deadline.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::clock;

/// How long an end is waited for.
const END_MS: u64 = 5_000;

/// Drops `clients` on a thread of their own.
pub fn end<T: Send + 'static>(what: &'static str, clients: T) {
    let (alive, ended) = sync_channel::<()>(1);
    let work = move || {
        drop(clients);
        drop(alive);
    };
    #[expect(clippy::disallowed_methods, reason = "joined by `finish`, with a deadline")]
    let thread = Builder::new().name("ending".to_owned()).spawn(work);
    match thread {
        Ok(thread) => finish(what, thread, wait_for_end(|left| ended.recv_timeout(left))),
        Err(error) => tracing::error!(what, %error, "no thread could be started to end it on"),
    }
}

/// Waits until the other side of a channel is gone. False: it still is there at the deadline.
pub fn wait_for_end(receive: impl Fn(Duration) -> Result<(), RecvTimeoutError>) -> bool {
    let deadline = clock::steady_ms() + END_MS;
    loop {
        match receive(Duration::from_millis(deadline.saturating_sub(clock::steady_ms()))) {
            Ok(()) => {}
            Err(RecvTimeoutError::Disconnected) => return true,
            Err(RecvTimeoutError::Timeout) => return false,
        }
    }
}

/// Joins a thread that has ended.
pub fn finish(what: &'static str, thread: JoinHandle<()>, ended: bool) {
    if !ended {
        tracing::error!(what, "it does not end; its threads stay until the process ends");
    } else if thread.join().is_err() {
        tracing::error!(what, "its thread has panicked");
    }
}

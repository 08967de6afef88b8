//! Waiting for a condition of another process, with a deadline.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;

/// Another process tells nothing when it changes, so it is looked at so often.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Returns once `condition` holds. Fails when it fails, or when `deadline` has passed; `what` names it then.
pub fn until(
    what: &str,
    deadline: Duration,
    mut condition: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let start = Instant::now();
    while !condition()? {
        if start.elapsed() > deadline {
            bail!("{what}: not within {} s", deadline.as_secs());
        }
        thread::park_timeout(LOOK_EVERY);
    }
    Ok(())
}

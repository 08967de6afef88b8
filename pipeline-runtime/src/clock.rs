//! The only place of the runtime that asks what time it is or waits for time to pass. Everything else takes `now`.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since the epoch, by the wall clock.
#[expect(clippy::disallowed_methods, reason = "the shell's one wall clock")]
pub fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}

/// Milliseconds since some moment, never going back.
#[expect(clippy::disallowed_methods, reason = "the shell's one steady clock")]
pub fn steady_ms() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_millis() as u64
}

/// Waits. For a loop that has nothing to do until the outside changes.
#[expect(clippy::disallowed_methods, reason = "the shell's one pause")]
pub fn pause_ms(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

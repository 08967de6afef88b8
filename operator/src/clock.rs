//! The operator's only clock.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use millrace_crds::timestamp::Timestamp;

/// Milliseconds since 1970, for what others read.
#[expect(clippy::disallowed_methods, reason = "the operator's one clock")]
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_ms(since.as_millis() as i64)
}

/// For lengths of time.
#[expect(clippy::disallowed_methods, reason = "the operator's one clock")]
pub fn instant() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "the one place that waits for time to pass")]
pub async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

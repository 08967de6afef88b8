//! When the latest rows of an operator expire: shared with the threads that compact.
//!
//! Reads decide by themselves what is expired; a compaction only drops what no read would give. It takes the time from
//! the task's last access, not from a clock: a state whose task stands still keeps everything.

use std::sync::atomic::{AtomicI64, Ordering};

use millrace_core::plan::StateKind;

use super::keys::{SLOT_NUMBER_MAX, Slot};
use super::value::{StoredValue, expired};

const NEVER: i64 = i64::MAX;

/// Time to live and the time of the last access, for each slot number.
#[derive(Debug)]
pub(super) struct TtlTable {
    slots: Box<[TtlSlot]>,
}

#[derive(Debug)]
struct TtlSlot {
    ttl_ms: AtomicI64,
    now_ms: AtomicI64,
}

impl TtlTable {
    pub(super) fn new() -> Self {
        let slot = |_| TtlSlot { ttl_ms: AtomicI64::new(NEVER), now_ms: AtomicI64::new(i64::MIN) };
        Self { slots: (0..=SLOT_NUMBER_MAX).map(slot).collect() }
    }

    /// No slot has a TTL any more.
    pub(super) fn reset(&self) {
        self.slots.iter().for_each(|slot| slot.ttl_ms.store(NEVER, Ordering::Relaxed));
    }

    /// Only for the slots of latest rows: versions have their retention, waiting rows are owed an answer.
    pub(super) fn set_ttl(&self, slot: Slot, ttl_ms: Option<i64>) {
        self.slot(slot).ttl_ms.store(ttl_ms.unwrap_or(NEVER), Ordering::Relaxed);
    }

    pub(super) fn set_now(&self, slot: Slot, now_ms: i64) {
        self.slot(slot).now_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Whether a compaction may drop this entry.
    pub(super) fn expired(&self, state_key: &[u8], value: &[u8]) -> bool {
        let Some(slot) = Slot::of(state_key).filter(|slot| slot.kind() == StateKind::Latest) else { return false };
        let ttl_ms = self.slot(slot).ttl_ms.load(Ordering::Relaxed);
        if ttl_ms == NEVER {
            return false;
        }
        let now_ms = self.slot(slot).now_ms.load(Ordering::Relaxed);
        StoredValue::read(value).is_ok_and(|value| expired(value.written_ms, ttl_ms, now_ms))
    }

    fn slot(&self, slot: Slot) -> &TtlSlot {
        &self.slots[usize::from(slot.number())]
    }
}

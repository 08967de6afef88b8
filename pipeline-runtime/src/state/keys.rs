//! Where things lie in a task's RocksDB: `slot | key | suffix`.
//!
//! A slot is 16 bits, big-endian: the kind of state in the upper two, a number in the rest. The kind stands in the key
//! so that RocksDB's callbacks (prefix extractor, compaction filter), which see nothing but keys, know what they have
//! before them. Number 0 belongs to the records about the state itself ([`META`]).

use millrace_core::plan::StateKind;

use crate::row::{from_ordered_i64, ordered_i64};

pub(super) const SLOT_BYTES: usize = 2;
/// Operators that a task's state can ever have had. 64 steps a pipeline, so this is years of renaming them; it bounds
/// the table of TTLs that compactions look into.
pub(super) const SLOT_NUMBER_MAX: u16 = 1023;
const KIND_SHIFT: u32 = 14;
const NUMBER_MASK: u16 = (1 << KIND_SHIFT) - 1;
/// Bytes of a version's valid-from behind its key.
pub(super) const VERSION_BYTES: usize = 8;

/// Slot of the records about the state itself.
pub(super) const META: [u8; SLOT_BYTES] = [0, 0];

/// What the keys of one operator begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot(u16);

impl Slot {
    pub(super) fn new(kind: StateKind, number: u16) -> Self {
        debug_assert!((1..=SLOT_NUMBER_MAX).contains(&number));
        let kind = match kind {
            StateKind::Latest => 0,
            StateKind::Versioned => 1,
            StateKind::Waiting => 2,
        };
        Self(kind << KIND_SHIFT | number)
    }

    /// The slot of a state key. `None` for the records about the state itself and for what is no state key.
    pub(super) fn of(key: &[u8]) -> Option<Self> {
        let slot = u16::from_be_bytes(*key.first_chunk()?);
        let valid = slot >> KIND_SHIFT < 3 && (1..=SLOT_NUMBER_MAX).contains(&(slot & NUMBER_MASK));
        valid.then_some(Self(slot))
    }

    pub(super) fn kind(self) -> StateKind {
        match self.0 >> KIND_SHIFT {
            0 => StateKind::Latest,
            1 => StateKind::Versioned,
            _ => StateKind::Waiting,
        }
    }

    pub(super) fn number(self) -> u16 {
        self.0 & NUMBER_MASK
    }

    pub(super) fn bytes(self) -> [u8; SLOT_BYTES] {
        self.0.to_be_bytes()
    }
}

/// `slot | key`, without the suffix: one for all versions of a row. For other kinds the whole key.
pub(super) fn row_key(state_key: &[u8]) -> &[u8] {
    match Slot::of(state_key).map(Slot::kind) {
        Some(StateKind::Versioned) => &state_key[..state_key.len().saturating_sub(VERSION_BYTES).max(SLOT_BYTES)],
        _ => state_key,
    }
}

/// Newer versions come first, so the first one at or behind a time's suffix is the answer for that time.
pub(super) fn version_suffix(valid_from: i64) -> [u8; VERSION_BYTES] {
    ordered_i64(!valid_from)
}

/// The valid-from of a version's state key. `None` if it is too short to have one.
pub(super) fn valid_from(state_key: &[u8]) -> Option<i64> {
    state_key.last_chunk().map(|suffix| !from_ordered_i64(*suffix))
}

/// The state key of a waiting row: `slot | time | sequence`.
pub(super) fn write_waiting_key(slot: Slot, time: i64, sequence: u64, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&slot.bytes());
    out.extend_from_slice(&ordered_i64(time));
    out.extend_from_slice(&sequence.to_be_bytes());
}

/// Time and sequence of a waiting row's state key. `None` if it has another length.
pub(super) fn waiting_position(state_key: &[u8]) -> Option<(i64, u64)> {
    let (time, sequence) = state_key.get(SLOT_BYTES..)?.split_first_chunk()?;
    Some((from_ordered_i64(*time), u64::from_be_bytes(sequence.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_all_kinds_read_back() {
        for kind in [StateKind::Latest, StateKind::Versioned, StateKind::Waiting] {
            for number in [1, SLOT_NUMBER_MAX] {
                let slot = Slot::new(kind, number);
                assert_eq!(Slot::of(&slot.bytes()), Some(slot));
                assert_eq!((slot.kind(), slot.number()), (kind, number));
            }
        }
        for no_slot in [&META[..], &[0xc0, 1], &[0x3f, 0xff], &[1]] {
            assert_eq!(Slot::of(no_slot), None, "{no_slot:?}");
        }
    }

    #[test]
    fn newer_versions_come_first() {
        let times = [i64::MAX, 1, 0, -1, i64::MIN];
        assert!(times.map(version_suffix).is_sorted());
        assert_eq!(times.map(|t| valid_from(&version_suffix(t)).expect("has a suffix")), times);
    }

    #[test]
    fn waiting_rows_are_in_the_order_of_time_and_sequence() {
        let slot = Slot::new(StateKind::Waiting, 7);
        let positions = [(i64::MIN, 9), (-1, 0), (0, 0), (0, u64::MAX), (1, 5), (i64::MAX, 0)];
        let keys = positions.map(|(time, sequence)| {
            let mut key = Vec::new();
            write_waiting_key(slot, time, sequence, &mut key);
            key
        });
        assert!(keys.is_sorted());
        assert_eq!(keys.each_ref().map(|key| waiting_position(key).expect("is whole")), positions);
        assert_eq!(waiting_position(&keys[0][..5]), None);
    }
}

//! What the running epoch changed: the last write of each state key, on top of RocksDB.
//!
//! Latest rows are written often and never scanned: they lie in one growing buffer, found by hash, and are sorted once,
//! at the epoch's end (10,000 keys: 160 ns each, against 470 in a B-tree). Versions and waiting rows are looked for by
//! their order, and come mostly in it: they are in a B-tree, as is everything else that is rare.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::collections::btree_map;
use std::hash::BuildHasher;
use std::ops::Bound;

use hashbrown::{DefaultHashBuilder, HashTable};
use millrace_core::plan::StateKind;

use super::keys::Slot;

/// Bytes that an entry costs beside its key and value.
const ENTRY_BYTES: usize = 48;

/// A state key and its new value; `None` deletes it.
pub(super) type Change<'a> = (&'a [u8], Option<&'a [u8]>);
pub(super) type OrderedRange<'a> = btree_map::Range<'a, Box<[u8]>, Option<Box<[u8]>>>;

#[derive(Debug, Default)]
pub(super) struct Overlay {
    latest: HashedChanges,
    ordered: BTreeMap<Box<[u8]>, Option<Box<[u8]>>>,
    ordered_bytes: usize,
}

impl Overlay {
    pub(super) fn put(&mut self, key: &[u8], value: Option<&[u8]>) {
        if hashed(key) {
            self.latest.put(key, value);
            return;
        }
        let length = |value: Option<&[u8]>| value.map_or(0, <[u8]>::len);
        self.ordered_bytes += length(value);
        match self.ordered.get_mut(key) {
            Some(old) => {
                self.ordered_bytes -= length(old.as_deref());
                *old = value.map(Into::into);
            }
            None => {
                self.ordered_bytes += key.len() + ENTRY_BYTES;
                self.ordered.insert(key.into(), value.map(Into::into));
            }
        }
    }

    /// `None`: the epoch did not touch the key; `Some(None)`: it deleted it.
    pub(super) fn get(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        if hashed(key) { self.latest.get(key) } else { self.ordered.get(key).map(|value| value.as_deref()) }
    }

    /// The changes at or behind `from`, in order. Not for the keys of latest rows.
    pub(super) fn range_from(&self, from: &[u8]) -> OrderedRange<'_> {
        self.ordered.range::<[u8], _>((Bound::Included(from), Bound::Unbounded))
    }

    /// All changes in the order of their keys.
    pub(super) fn changes(&self) -> impl Iterator<Item = Change<'_>> {
        // Latest rows have the lowest kind, so their keys lie between the records about the state and all the others.
        let first_latest = Slot::new(StateKind::Latest, 1).bytes();
        let ordered = |from, to| self.ordered.range::<[u8], _>((from, to)).map(|(k, v)| (&**k, v.as_deref()));
        ordered(Bound::Unbounded, Bound::Excluded(&first_latest[..]))
            .chain(self.latest.sorted())
            .chain(ordered(Bound::Included(&first_latest[..]), Bound::Unbounded))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.latest.entries.is_empty() && self.ordered.is_empty()
    }

    /// Memory in use, about.
    pub(super) fn bytes(&self) -> usize {
        self.latest.buffer.len() + self.latest.entries.len() * ENTRY_BYTES + self.ordered_bytes
    }

    pub(super) fn clear(&mut self) {
        self.latest.clear();
        self.ordered.clear();
        self.ordered_bytes = 0;
    }
}

fn hashed(key: &[u8]) -> bool {
    Slot::of(key).is_some_and(|slot| slot.kind() == StateKind::Latest)
}

/// Keys and values in one buffer. A value that grows leaves its old bytes behind until the epoch ends.
#[derive(Debug, Default)]
struct HashedChanges {
    buffer: Vec<u8>,
    entries: Vec<Entry>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    order: OnceCell<Vec<u32>>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key_at: usize,
    key_length: usize,
    value_at: usize,
    value_length: usize,
    deleted: bool,
}

impl Entry {
    fn key(self, buffer: &[u8]) -> &[u8] {
        &buffer[self.key_at..self.key_at + self.key_length]
    }

    fn value(self, buffer: &[u8]) -> Option<&[u8]> {
        (!self.deleted).then(|| &buffer[self.value_at..self.value_at + self.value_length])
    }
}

impl HashedChanges {
    fn find(&self, key: &[u8]) -> Option<usize> {
        let same = |i: &u32| self.entries[*i as usize].key(&self.buffer) == key;
        self.index.find(self.hasher.hash_one(key), same).map(|i| *i as usize)
    }

    fn get(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        if self.entries.is_empty() {
            return None;
        }
        self.find(key).map(|i| self.entries[i].value(&self.buffer))
    }

    fn put(&mut self, key: &[u8], value: Option<&[u8]>) {
        let index = match self.find(key) {
            Some(index) => index,
            None => self.insert(key),
        };
        let entry = &mut self.entries[index];
        entry.deleted = value.is_none();
        let Some(value) = value else { return };
        if value.len() > entry.value_length {
            entry.value_at = self.buffer.len();
            self.buffer.extend_from_slice(value);
        } else {
            self.buffer[entry.value_at..entry.value_at + value.len()].copy_from_slice(value);
        }
        entry.value_length = value.len();
    }

    fn insert(&mut self, key: &[u8]) -> usize {
        self.order.take();
        let key_at = self.buffer.len();
        self.buffer.extend_from_slice(key);
        let entry = Entry { key_at, key_length: key.len(), value_at: 0, value_length: 0, deleted: true };
        let index = self.entries.len();
        self.entries.push(entry);
        let (buffer, entries, hasher) = (&self.buffer, &self.entries, &self.hasher);
        let hash_of = |i: &u32| hasher.hash_one(entries[*i as usize].key(buffer));
        let position = u32::try_from(index).expect("an epoch is limited in bytes, far below 2^32 keys");
        self.index.insert_unique(hasher.hash_one(key), position, hash_of);
        index
    }

    fn sorted(&self) -> impl Iterator<Item = Change<'_>> {
        let order = self.order.get_or_init(|| {
            let mut order: Vec<u32> = (0..self.entries.len() as u32).collect();
            let key = |i: &u32| self.entries[*i as usize].key(&self.buffer);
            order.sort_unstable_by(|a, b| key(a).cmp(key(b)));
            order
        });
        order.iter().map(|i| {
            let entry = self.entries[*i as usize];
            (entry.key(&self.buffer), entry.value(&self.buffer))
        })
    }

    fn clear(&mut self) {
        self.buffer.clear();
        self.entries.clear();
        self.index.clear();
        self.order.take();
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        let slot = prop_oneof![Just(vec![0, 0]), Just(vec![0, 1]), Just(vec![0, 2]), Just(vec![0x40, 3])];
        (slot, vec(0..4u8, 0..3)).prop_map(|(slot, rest)| [slot, rest].concat())
    }

    proptest! {
        #[test]
        fn the_last_write_of_each_key_counts_and_changes_are_in_order(
            writes in vec((key(), proptest::option::of(vec(any::<u8>(), 0..6))), 0..60),
        ) {
            let mut overlay = Overlay::default();
            let mut model: BTreeMap<Vec<u8>, Option<Vec<u8>>> = BTreeMap::new();
            for (key, value) in writes {
                overlay.put(&key, value.as_deref());
                model.insert(key.clone(), value);
                prop_assert_eq!(overlay.get(&key), model.get(&key).map(|v| v.as_deref()));
            }
            let expected: Vec<_> = model.iter().map(|(k, v)| (&k[..], v.as_deref())).collect();
            prop_assert_eq!(overlay.changes().collect::<Vec<_>>(), expected);
            prop_assert_eq!(overlay.is_empty(), model.is_empty());
            overlay.clear();
            prop_assert_eq!((overlay.changes().count(), overlay.bytes()), (0, 0));
        }
    }
}

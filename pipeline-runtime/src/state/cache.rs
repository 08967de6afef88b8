//! The newest row of hot keys, in front of RocksDB. Keys that have no row are remembered too.
//!
//! Eviction is CLOCK: a hit only sets a bit, and a key that was read once goes before a key that was read again, so a
//! scan does not push the hot keys out. Writes update what is there and add nothing: loading a table leaves the cache to
//! the keys that somebody asks for. The cache sees every write of its task, so it never says what the state would not.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::budget::RowShare;

/// Bytes that an entry costs beside its key and value: its place in a table that is three quarters full, and the
/// allocation's header.
const ENTRY_BYTES: usize = 72;

#[derive(Debug)]
pub(super) struct RowCache {
    share: RowShare,
    entries: HashTable<Entry>,
    /// The bucket that eviction looks at next.
    hand: usize,
    bytes: usize,
    hasher: DefaultHashBuilder,
    hits: u64,
    misses: u64,
}

#[derive(Debug)]
struct Entry {
    /// Key, then value.
    data: Box<[u8]>,
    /// Kept, so that a growing table needs no look at the keys.
    hash: u64,
    valid_from: i64,
    key_length: u32,
    present: bool,
    referenced: bool,
}

impl Entry {
    fn key(&self) -> &[u8] {
        &self.data[..self.key_length as usize]
    }

    fn value(&self) -> Option<&[u8]> {
        self.present.then(|| &self.data[self.key_length as usize..])
    }

    fn bytes(&self) -> usize {
        self.data.len() + ENTRY_BYTES
    }
}

/// What the cache knows about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cached<'a> {
    /// From when on this is the answer. `i64::MIN` where there are no versions, or none of this key.
    pub(super) valid_from: i64,
    /// `None`: the key has no row.
    pub(super) value: Option<&'a [u8]>,
}

/// The bucket of an entry, until the next change of the cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place(usize);

impl RowCache {
    pub(super) fn new(share: RowShare) -> Self {
        Self {
            share,
            entries: HashTable::new(),
            hand: 0,
            bytes: 0,
            hasher: DefaultHashBuilder::default(),
            hits: 0,
            misses: 0,
        }
    }

    pub(super) fn find(&mut self, key: &[u8]) -> Option<Place> {
        let place = self.place(key);
        match place.and_then(|place| self.entries.get_bucket_mut(place.0)) {
            Some(entry) => {
                self.hits += 1;
                entry.referenced = true;
            }
            None => self.misses += 1,
        }
        place
    }

    pub(super) fn at(&self, place: Place) -> Cached<'_> {
        let entry = self.entries.get_bucket(place.0).expect("a place is of an entry");
        Cached { valid_from: entry.valid_from, value: entry.value() }
    }

    /// Adds a key that is not there. `None` if it is too large for this cache.
    pub(super) fn insert(&mut self, key: &[u8], valid_from: i64, value: Option<&[u8]>) -> Option<Place> {
        let entry = Entry {
            data: [key, value.unwrap_or_default()].concat().into(),
            hash: self.hasher.hash_one(key),
            valid_from,
            key_length: u32::try_from(key.len()).ok()?,
            present: value.is_some(),
            referenced: false,
        };
        let limit = self.share.bytes();
        if entry.bytes() > limit {
            return None;
        }
        self.shrink(limit - entry.bytes());
        self.bytes += entry.bytes();
        Some(Place(self.entries.insert_unique(entry.hash, entry, |entry| entry.hash).bucket_index()))
    }

    /// A write: the key's newest row is another one now, unless `valid_from` is before the one that is there.
    pub(super) fn update(&mut self, key: &[u8], valid_from: i64, value: Option<&[u8]>) {
        let place = self.place(key);
        let Some(entry) = place.and_then(|place| self.entries.get_bucket_mut(place.0)) else { return };
        if valid_from < entry.valid_from {
            return;
        }
        let before = entry.bytes();
        let value_length = entry.data.len() - entry.key_length as usize;
        let new = value.unwrap_or_default();
        if new.len() == value_length {
            entry.data[entry.key_length as usize..].copy_from_slice(new);
        } else {
            entry.data = [key, new].concat().into();
        }
        entry.present = value.is_some();
        entry.valid_from = valid_from;
        self.bytes = self.bytes - before + entry.bytes();
        self.shrink(self.share.bytes());
    }

    pub(super) fn remove(&mut self, key: &[u8]) {
        if let Some(place) = self.place(key) {
            self.evict(place);
        }
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.hand = 0;
        self.bytes = 0;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn hits(&self) -> u64 {
        self.hits
    }

    pub(super) fn misses(&self) -> u64 {
        self.misses
    }

    fn place(&self, key: &[u8]) -> Option<Place> {
        if self.entries.is_empty() {
            return None;
        }
        self.entries.find_bucket_index(self.hasher.hash_one(key), |entry| entry.key() == key).map(Place)
    }

    /// Two rounds of the hand are enough: the first one takes the bits away.
    fn shrink(&mut self, limit: usize) {
        while self.bytes > limit && !self.entries.is_empty() {
            let bucket = self.hand;
            self.hand = (self.hand + 1) % self.entries.num_buckets();
            match self.entries.get_bucket_mut(bucket) {
                Some(entry) if entry.referenced => entry.referenced = false,
                Some(_) => self.evict(Place(bucket)),
                None => {}
            }
        }
    }

    fn evict(&mut self, place: Place) {
        if let Ok(entry) = self.entries.get_bucket_entry(place.0) {
            self.bytes -= entry.remove().0.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::StateBudget;

    /// A cache with room for `rows` rows with keys of one byte and values of one.
    fn cache(rows: usize) -> RowCache {
        RowCache::new(StateBudget::new(2 * rows * (ENTRY_BYTES + 2), 1 << 20).row_share())
    }

    fn value(cache: &mut RowCache, key: &[u8]) -> Option<Option<Vec<u8>>> {
        let place = cache.find(key)?;
        Some(cache.at(place).value.map(<[u8]>::to_vec))
    }

    #[test]
    fn a_key_that_was_read_again_outlives_keys_that_were_read_once() {
        let mut cache = cache(4);
        cache.insert(b"h", 0, Some(b"1")).expect("fits");
        for key in 0..100u8 {
            assert_eq!(value(&mut cache, b"h"), Some(Some(b"1".to_vec())), "before {key}");
            cache.insert(&[key + 128], 0, Some(b"x")).expect("fits");
            assert!(cache.bytes() <= 4 * (ENTRY_BYTES + 2));
        }
        assert_eq!((cache.hits(), cache.misses()), (100, 0));
    }

    #[test]
    fn a_row_that_is_larger_than_the_cache_is_left_out() {
        let mut cache = cache(2);
        assert!(cache.insert(b"k", 0, Some(&[0; 200])).is_none());
        cache.insert(b"k", 0, Some(b"1")).expect("fits");
        cache.update(b"k", 0, Some(&[0; 200]));
        assert_eq!((value(&mut cache, b"k"), cache.bytes()), (None, 0));
    }

    #[test]
    fn a_write_changes_what_is_there_and_adds_nothing() {
        let mut cache = cache(4);
        cache.update(b"k", 0, Some(b"1"));
        assert!(cache.is_empty());
        cache.insert(b"k", 5, None).expect("fits");
        assert_eq!(value(&mut cache, b"k"), Some(None));
        cache.update(b"k", 7, Some(b"22"));
        cache.update(b"k", 6, Some(b"old"));
        let place = cache.find(b"k").expect("is there");
        assert_eq!(cache.at(place), Cached { valid_from: 7, value: Some(b"22") });
        cache.remove(b"k");
        assert_eq!((value(&mut cache, b"k"), cache.bytes()), (None, 0));
    }
}

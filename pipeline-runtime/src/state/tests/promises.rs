//! TTL, cache, errors of the disk.

use super::*;

const DAY_MS: i64 = 24 * 3600 * 1000;

fn with_ttl(dir: &Path, ttl_ms: Option<i64>) -> TaskState {
    TaskState::open(dir, &budget(), &layouts(), &[ttl_ms; 3]).expect("state opens")
}

fn get_at(state: &mut TaskState, name: u8, now_ms: i64) -> Option<Vec<u8>> {
    bytes(state.get(LATEST, &key(name), now_ms).expect("state reads"))
}

#[test]
fn a_customer_that_is_unchanged_for_400_days_is_still_there_without_ttl() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut state = with_ttl(dir.path(), None);
    state.put(LATEST, &key(1), b"customer", 0);
    state.apply(b"", 1).expect("disk has room");
    state.flush().expect("disk has room");
    state.put(LATEST, &key(2), b"other", 400 * DAY_MS);
    state.apply(b"", 2).expect("disk has room");
    state.flush().expect("disk has room");
    state.db.compact();
    assert_eq!(get_at(&mut state, 1, 400 * DAY_MS), Some(b"customer".to_vec()));
}

#[test]
fn a_row_is_there_for_exactly_its_ttl() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut state = with_ttl(dir.path(), Some(DAY_MS));
    state.put(LATEST, &key(1), b"row", 1000);
    for applied in [false, true] {
        if applied {
            state.apply(b"", 1).expect("disk has room");
        }
        for cached in [false, true] {
            let hits = state.metrics().row_cache_hits;
            assert_eq!(get_at(&mut state, 1, 1000 + DAY_MS), Some(b"row".to_vec()));
            assert_eq!(get_at(&mut state, 1, 1001 + DAY_MS), None);
            assert!(!cached || state.metrics().row_cache_hits == hits + 2);
        }
        state.cache.clear();
    }
    state.put(LATEST, &key(1), b"row", DAY_MS);
    assert_eq!(get_at(&mut state, 1, 2 * DAY_MS), Some(b"row".to_vec()));
}

#[test]
fn a_ttl_can_be_changed_without_migration() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut state = with_ttl(dir.path(), None);
    state.put(LATEST, &key(1), b"row", 0);
    state.apply(b"", 1).expect("disk has room");
    drop(state);
    let mut state = with_ttl(dir.path(), Some(DAY_MS));
    assert_eq!(get_at(&mut state, 1, 2 * DAY_MS), None);
    state.set_ttl(LATEST, Some(3 * DAY_MS));
    assert_eq!(get_at(&mut state, 1, 2 * DAY_MS), Some(b"row".to_vec()));
    state.set_ttl(LATEST, None);
    assert_eq!(get_at(&mut state, 1, 400 * DAY_MS), Some(b"row".to_vec()));
}

#[test]
fn a_compaction_drops_expired_rows_and_nothing_else() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut state = with_ttl(dir.path(), Some(DAY_MS));
    state.put(LATEST, &key(1), b"expired", 0);
    state.put(LATEST, &key(2), b"fresh", 2 * DAY_MS);
    state.put_version(VERSIONED, &key(1), 5, Some(b"version"), 0).expect("state reads");
    state.put_waiting(WAITING, 1, 1, b"waits");
    state.apply(b"m", 1).expect("disk has room");
    state.flush().expect("disk has room");
    state.db.compact();
    // Without a TTL everything that is still stored can be seen.
    state.set_ttl(LATEST, None);
    assert_eq!(get_at(&mut state, 1, 0), None);
    assert_eq!(get_at(&mut state, 2, 0), Some(b"fresh".to_vec()));
    assert_eq!(as_of(&mut state, 1, 9), Some(b"version".to_vec()));
    assert_eq!(waiting(&state).len(), 1);
    drop(state);
    assert_eq!(open(dir.path()).marker().expect("state reads"), Some((b"m".to_vec(), 1)));
}

#[test]
fn a_hot_key_is_answered_from_the_row_cache() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut state = open(dir.path());
    state.put(LATEST, &key(1), b"row", 0);
    state.put_version(VERSIONED, &key(1), 10, Some(b"old"), 0).expect("state reads");
    state.put_version(VERSIONED, &key(1), 20, Some(b"new"), 0).expect("state reads");
    state.apply(b"", 1).expect("disk has room");
    for _ in 0..3 {
        assert_eq!(get(&mut state, 1), Some(b"row".to_vec()));
        assert_eq!(get(&mut state, 2), None);
        assert_eq!(as_of(&mut state, 1, 25), Some(b"new".to_vec()));
        assert_eq!(as_of(&mut state, 2, 25), None);
    }
    let metrics = state.metrics();
    assert_eq!((metrics.row_cache_hits, metrics.row_cache_misses), (8, 4));
    assert_eq!(as_of(&mut state, 1, 15), Some(b"old".to_vec()));
    state.put_version(VERSIONED, &key(1), 30, None, 0).expect("state reads");
    assert_eq!(as_of(&mut state, 1, 29), Some(b"new".to_vec()));
    assert_eq!(as_of(&mut state, 1, 30), None);
}

#[test]
fn a_version_that_arrives_behind_a_deletion_does_not_bring_the_row_back() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut state = open(dir.path());
    state.put_version(VERSIONED, &key(1), 10, Some(b"row"), 0).expect("state reads");
    state.put_version(VERSIONED, &key(1), 20, None, 100).expect("state reads");
    state.put_version(VERSIONED, &key(1), 15, Some(b"late"), 100).expect("state reads");
    assert_eq!(as_of(&mut state, 1, 150), None);
}

#[test]
fn a_truncated_versioned_table_still_answers_for_the_time_before() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut state = open(dir.path());
    state.put_version(VERSIONED, &key(1), 10, Some(b"row"), 0).expect("state reads");
    state.end_versions(VERSIONED, 20, 0).expect("state reads");
    assert_eq!(as_of(&mut state, 1, 19), Some(b"row".to_vec()));
    assert_eq!(as_of(&mut state, 1, 20), None);
}

#[test]
fn a_state_moves_to_the_thread_of_its_lane() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut state = open(dir.path());
    state.put(LATEST, &key(1), b"row", 0);
    std::thread::scope(|scope| scope.spawn(move || assert_eq!(get(&mut state, 1), Some(b"row".to_vec()))).join())
        .expect("the lane does not panic");
}

#[test]
fn tasks_share_the_budget() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let budget = budget();
    let open = |name: &str| {
        let dir = dir.path().join(name);
        TaskState::open(&dir, &budget, &layouts(), &[None; 3]).expect("state opens")
    };
    let mut first = open("first");
    let alone = budget.row_share().bytes();
    let mut second = open("second");
    assert!(budget.row_share().bytes() < alone);
    for state in [&mut first, &mut second] {
        state.put(LATEST, &key(1), &[7; 100_000], 0);
        state.apply(b"", 1).expect("disk has room");
        assert!(state.memtable_bytes() > 100_000);
    }
    assert!(budget.write_buffer_bytes_used() > 200_000);
    first.flush().expect("disk has room");
    assert!(first.memtable_bytes() < 100_000);
    assert!(first.metrics().file_bytes > 0);
    drop((first, second));
    assert_eq!(budget.row_share().bytes(), 1 << 19);
}

#[test]
fn an_epoch_that_cannot_be_written_poisons_the_state_and_keeps_its_changes() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let state_dir = dir.path().join("state");
    let mut state = open(&state_dir);
    state.put(LATEST, &key(1), b"first", 0);
    state.apply(b"", 1).expect("disk has room");
    // The disk goes away: a flush has nowhere to write to.
    std::fs::remove_dir_all(&state_dir).expect("directory can be removed");
    assert!(matches!(state.flush(), Err(StateError::Io { .. })));
    state.put(LATEST, &key(1), b"second", 0);
    let error = state.apply(b"", 2).expect_err("must fail");
    assert!(matches!(error, StateError::Io { .. }), "{error}");
    assert!(state.poisoned() && state.dirty());
    assert!(matches!(state.get(LATEST, &key(1), 0), Err(StateError::Poisoned)));
    assert!(matches!(state.apply(b"", 2), Err(StateError::Poisoned)));
}

//! Plans change, state stays.

use arrow::array::{Array, ArrayRef, Int64Array, StringArray};
use std::sync::Arc;

use super::*;
use crate::row::RowEncoder;

fn encode(columns: &[Column], arrays: &[ArrayRef]) -> Vec<u8> {
    let encoder = RowEncoder::new(columns);
    let mut bytes = Vec::new();
    encoder.bind(arrays).expect("arrays fit").encode(0, &mut bytes);
    bytes
}

fn text(value: Option<&str>) -> ArrayRef {
    Arc::new(StringArray::from(vec![value]))
}

fn number(value: Option<i64>) -> ArrayRef {
    Arc::new(Int64Array::from(vec![value]))
}

fn refused(dir: &Path, layouts: &[StateLayout]) -> String {
    match try_open(dir, layouts) {
        Err(error @ StateError::Incompatible { .. }) => error.to_string(),
        other => panic!("must be refused: {other:?}"),
    }
}

#[test]
fn reordered_and_added_operators_leave_state_where_it_is() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut state = open(dir.path());
    state.put(LATEST, &key(1), b"plane", 0);
    state.put_waiting(WAITING, 1, 1, b"row");
    state.apply(b"", 1).expect("disk has room");
    drop(state);

    let mut changed = layouts();
    changed.reverse();
    changed.insert(0, layout("table airlines", StateKind::Latest));
    let mut state = try_open(dir.path(), &changed).expect("state opens");
    let next = state.scan_waiting(1, (i64::MIN, 0), 9, |_, _, row| assert_eq!(row.row, b"row"));
    assert_eq!(next.expect("state reads"), None);
    assert_eq!(state.count_waiting(1).expect("state reads"), (1, Some(1)));
    assert_eq!(bytes(state.get(3, &key(1), 0).expect("state reads")), Some(b"plane".to_vec()));
    assert_eq!(state.get(0, &key(1), 0).expect("state reads"), None);
}

#[test]
fn an_operator_that_comes_back_finds_its_state() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut state = open(dir.path());
    state.put(LATEST, &key(1), b"plane", 0);
    state.apply(b"", 1).expect("disk has room");
    drop(state);
    let mut state = try_open(dir.path(), &[layout("table airlines", StateKind::Latest)]).expect("state opens");
    assert_eq!(state.get(0, &key(1), 0).expect("state reads"), None);
    state.put(0, &key(1), b"airline", 0);
    state.apply(b"", 2).expect("disk has room");
    drop(state);
    assert_eq!(get(&mut open(dir.path()), 1), Some(b"plane".to_vec()));
}

#[test]
fn a_restore_takes_the_numbers_from_the_changelog() {
    let (first, second) = (tempfile::tempdir().expect("directory"), tempfile::tempdir().expect("directory"));
    let mut state = open(first.path());
    state.put(LATEST, &key(1), b"plane", 0);
    state.put_version(VERSIONED, &key(1), 5, Some(b"customer"), 0).expect("state reads");
    let epoch = changes(&state);

    let mut reversed = layouts();
    reversed.reverse();
    let mut restored = try_open(second.path(), &reversed).expect("state opens");
    replay(&mut restored, &epoch);
    restored.apply(b"", 1).expect("disk has room");
    assert_eq!(bytes(restored.get(2, &key(1), 0).expect("state reads")), Some(b"plane".to_vec()));
    assert_eq!(bytes(restored.as_of(1, &key(1), 9).expect("state reads")), Some(b"customer".to_vec()));
    restored.put(2, &key(2), b"other", 0);
    assert_eq!(changes(&restored).len(), 1, "slots and layouts are known, nothing is recorded again");
    restored.discard();
    assert_eq!(bytes(restored.get(2, &key(1), 0).expect("state reads")), Some(b"plane".to_vec()));
    restored.put(2, &key(2), b"other", 0);
    assert_eq!(changes(&restored).len(), 1, "an aborted epoch takes nothing back that is committed");
}

#[test]
fn an_aborted_first_epoch_records_its_slots_again() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut state = open(dir.path());
    state.put(LATEST, &key(1), b"lost", 0);
    let first = changes(&state);
    state.discard();
    assert!(!state.dirty());
    state.put(LATEST, &key(1), b"kept", 0);
    let again = changes(&state);
    assert_eq!(again[..again.len() - 1], first[..first.len() - 1]);
}

#[test]
fn rows_of_before_and_after_an_added_column_are_read_into_one_batch() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let old = layouts().remove(LATEST);
    let mut new = old.clone();
    new.value.insert(1, column("tier", "BIGINT"));

    let mut state = try_open(dir.path(), std::slice::from_ref(&old)).expect("state opens");
    state.put(0, &key(1), &encode(&old.value, &[text(Some("1")), text(Some("before"))]), 0);
    state.apply(b"", 1).expect("disk has room");
    drop(state);

    let mut state = try_open(dir.path(), std::slice::from_ref(&new)).expect("state opens");
    state.put(0, &key(2), &encode(&new.value, &[text(Some("2")), number(Some(7)), text(None)]), 0);
    state.apply(b"", 2).expect("disk has room");
    let wanted = [column("tier", "BIGINT"), column("name", "STRING")];
    let mut decoder = state.decoder(0, &wanted).expect("columns fit");
    for name in [2, 1, 2] {
        decoder.push(state.get(0, &key(name), 0).expect("state reads").expect("is there")).expect("row is whole");
    }
    decoder.push_null();
    assert_eq!(decoder.rows(), 4);
    let tier: ArrayRef = Arc::new(Int64Array::from(vec![Some(7), None, Some(7), None]));
    let name: ArrayRef = Arc::new(StringArray::from(vec![None, Some("before"), None, None]));
    assert_eq!(decoder.finish(), [tier, name]);
    drop(state);

    // The column is taken away again: rows that have it are still read.
    let mut state = try_open(dir.path(), std::slice::from_ref(&old)).expect("state opens");
    let mut decoder = state.decoder(0, &old.value).expect("columns fit");
    decoder.push(state.get(0, &key(2), 0).expect("state reads").expect("is there")).expect("row is whole");
    assert_eq!(decoder.finish(), [text(Some("2")), text(None)]);
    state.put(0, &key(3), &encode(&old.value, &[text(Some("3")), text(None)]), 0);
    assert_eq!(changes(&state).len(), 1, "the first layout is used again");
}

#[test]
fn a_row_that_does_not_fit_its_layout_is_an_error() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut state = open(dir.path());
    let mut decoder = state.decoder(LATEST, &layouts()[LATEST].value).expect("columns fit");
    state.put(LATEST, &key(1), b"\xff", 0);
    let row = state.get(LATEST, &key(1), 0).expect("state reads").expect("is there");
    assert!(matches!(decoder.push(row), Err(StateError::Row { layout: 1, .. })));
    assert!(matches!(decoder.push(StoredRow { layout: 9, row: b"\x03" }), Err(StateError::Corrupt(_))));
    decoder.push(StoredRow { layout: 1, row: b"\x03" }).expect("row is whole");
    assert_eq!(decoder.finish()[0].len(), 1);
}

#[test]
fn a_plan_that_does_not_fit_the_state_is_refused() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut state = open(dir.path());
    state.put(LATEST, &key(1), b"plane", 0);
    state.apply(b"", 1).expect("disk has room");
    drop(state);

    let with = |change: &dyn Fn(&mut StateLayout)| {
        let mut changed = layouts();
        change(&mut changed[LATEST]);
        changed
    };
    let refused = |change: &dyn Fn(&mut StateLayout)| refused(dir.path(), &with(change));
    assert_eq!(
        refused(&|l| l.kind = StateKind::Versioned),
        "state of 'table planes' does not fit the plan: its state is of the kind Latest and the plan says Versioned"
    );
    assert_eq!(
        refused(&|l| l.key[0].data_type = "BIGINT".parse().expect("is a type")),
        "state of 'table planes' does not fit the plan: its key is (id STRING) and the plan says (id BIGINT)"
    );
    assert_eq!(
        refused(&|l| l.value[1].data_type = "BIGINT".parse().expect("is a type")),
        "state of 'table planes' does not fit the plan: column 'name' is stored as STRING and cannot be read as BIGINT"
    );
    let mut required = column("tier", "INT");
    required.nullable = false;
    assert!(refused(&|l| l.value.push(required.clone())).contains("column 'tier' is NOT NULL"));
    // Another key of waiting rows changes nothing: they are not found by it.
    let mut waiting = layouts();
    waiting[WAITING].key.clear();
    try_open(dir.path(), &waiting).expect("state opens");
}

#[test]
fn a_key_may_be_widened_from_int_to_bigint() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let typed = |data_type: &str| StateLayout { key: vec![column("id", data_type)], ..layouts().remove(LATEST) };
    let mut state = try_open(dir.path(), &[typed("INT")]).expect("state opens");
    state.put(0, &key(1), b"row", 0);
    state.apply(b"", 1).expect("disk has room");
    drop(state);
    let mut state = try_open(dir.path(), &[typed("BIGINT")]).expect("state opens");
    assert!(state.get(0, &key(1), 0).expect("state reads").is_some());
}

//! The state against a plain map, and its promises one by one.

mod damage;
mod formats;
mod layouts;
mod model;
mod promises;

use std::path::Path;

use millrace_core::plan::{StateKind, StateLayout};
use millrace_core::schema::Column;

use super::{StateBudget, StateError, StoredRow, TaskState};

const LATEST: usize = 0;
const VERSIONED: usize = 1;
const WAITING: usize = 2;

fn column(name: &str, data_type: &str) -> Column {
    Column { name: name.into(), data_type: data_type.parse().expect(data_type), nullable: true }
}

fn layout(operator: &str, kind: StateKind) -> StateLayout {
    StateLayout {
        operator: operator.into(),
        kind,
        stage: "joined".into(),
        key: vec![column("id", "STRING")],
        value: vec![column("id", "STRING"), column("name", "STRING")],
    }
}

/// One of each kind, at [`LATEST`], [`VERSIONED`] and [`WAITING`].
fn layouts() -> Vec<StateLayout> {
    vec![
        layout("table planes", StateKind::Latest),
        layout("table customers", StateKind::Versioned),
        layout("joined", StateKind::Waiting),
    ]
}

fn budget() -> StateBudget {
    StateBudget::new(1 << 20, 8 << 20)
}

fn open(dir: &Path) -> TaskState {
    try_open(dir, &layouts()).expect("state opens")
}

fn try_open(dir: &Path, layouts: &[StateLayout]) -> Result<TaskState, StateError> {
    TaskState::open(dir, &budget(), layouts, &vec![None; layouts.len()])
}

/// A key that ends by itself, as `KeyEncoder` writes a STRING.
fn key(name: u8) -> Vec<u8> {
    vec![name, 0, 0]
}

fn bytes(row: Option<StoredRow<'_>>) -> Option<Vec<u8>> {
    row.map(|row| row.row.to_vec())
}

fn get(state: &mut TaskState, name: u8) -> Option<Vec<u8>> {
    bytes(state.get(LATEST, &key(name), 0).expect("state reads"))
}

fn as_of(state: &mut TaskState, name: u8, time: i64) -> Option<Vec<u8>> {
    bytes(state.as_of(VERSIONED, &key(name), time).expect("state reads"))
}

fn waiting(state: &TaskState) -> Vec<(i64, u64, Vec<u8>)> {
    let mut rows = Vec::new();
    state
        .scan_waiting(WAITING, (i64::MIN, 0), usize::MAX, |time, sequence, row| {
            rows.push((time, sequence, row.row.to_vec()))
        })
        .expect("state reads");
    rows
}

type Changes = Vec<(Vec<u8>, Option<Vec<u8>>)>;

fn changes(state: &TaskState) -> Changes {
    state.changes().map(|(key, value)| (key.to_vec(), value.map(<[u8]>::to_vec))).collect()
}

fn replay(state: &mut TaskState, changes: &Changes) {
    for (key, value) in changes {
        state.replay(key, value.as_deref()).expect("record is understood");
    }
}

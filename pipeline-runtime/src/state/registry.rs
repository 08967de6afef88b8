//! Which slot belongs to which operator, and which columns its rows were written with.
//!
//! Slots are given by name, once, and kept: an operator finds its state again wherever a changed plan puts it. So are
//! layout ids: a row says by its id which columns it has. Both are records of the state like any others (slot 0): they
//! go through the overlay and the changelog, so a state that is built from the changelog has the same numbers.
//!
//! What a plan adds is numbered at once and recorded with the first write, never before: a state that is still being
//! restored may yet read other numbers from the changelog, and what is numbered but not written belongs to no row.

use std::collections::BTreeMap;

use millrace_core::plan::{StateKind, StateLayout};
use millrace_core::schema::{Column, DataType};
use serde::{Deserialize, Serialize};

use super::StateError;
use super::keys::{META, SLOT_NUMBER_MAX, Slot};
use super::value::DELETED;
use crate::row::RowMapping;

/// Behind [`META`]: the key of an operator's slot is this and its name.
const SLOT_RECORD: u8 = b's';
/// Behind [`META`]: the key of a layout is this, slot number and layout id, both big-endian.
const LAYOUT_RECORD: u8 = b'l';
/// The key of the epoch marker, which is RocksDB's alone: the changelog has a record of another form for it.
pub(super) const MARKER_KEY: [u8; 3] = [META[0], META[1], b'm'];

/// The records, as three views: what RocksDB has, what the running epoch added, and what the plan needs beyond.
#[derive(Debug)]
pub(super) struct Registry {
    plan: Vec<StateLayout>,
    committed: Records,
    written: Records,
    known: Records,
    unwritten: Vec<(Vec<u8>, Vec<u8>)>,
    assigned: Vec<Assigned>,
}

/// Where an operator of the plan keeps its state, and the layout id that it writes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Assigned {
    pub(super) slot: Slot,
    pub(super) layout: u16,
}

impl Registry {
    /// `stored` are the records of slot 0 in RocksDB.
    pub(super) fn new(plan: &[StateLayout], stored: &[(Vec<u8>, Vec<u8>)]) -> Result<Self, StateError> {
        let mut records = Records::default();
        for (key, value) in stored {
            records.read(key, value)?;
        }
        let mut registry = Self {
            plan: plan.to_vec(),
            committed: records.clone(),
            written: records,
            known: Records::default(),
            unwritten: Vec::new(),
            assigned: Vec::new(),
        };
        registry.assign()?;
        Ok(registry)
    }

    /// In the order of the plan's layouts.
    pub(super) fn assigned(&self) -> &[Assigned] {
        &self.assigned
    }

    pub(super) fn operator(&self, table: usize) -> &str {
        &self.plan[table].operator
    }

    /// All layouts that rows of the table can have, by id.
    pub(super) fn layouts(&self, table: usize) -> impl Iterator<Item = (u16, &[Column])> {
        self.known.layouts(self.assigned[table].slot.number())
    }

    /// Takes in a record of the changelog. An error if it does not go with the plan.
    pub(super) fn replay(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), StateError> {
        let value = value.ok_or_else(|| not_understood(key, "is deleted, which never happens"))?;
        self.written.read(key, value)?;
        self.assign()
    }

    pub(super) fn has_unwritten(&self) -> bool {
        !self.unwritten.is_empty()
    }

    /// The records that the first write of an epoch must bring along.
    pub(super) fn take_unwritten(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.written.clone_from(&self.known);
        std::mem::take(&mut self.unwritten)
    }

    /// The epoch is in RocksDB.
    pub(super) fn commit(&mut self) {
        if self.committed != self.written {
            self.committed.clone_from(&self.written);
        }
    }

    /// The epoch was aborted: what it added is to be written again.
    pub(super) fn roll_back(&mut self) {
        if self.committed != self.written {
            self.written.clone_from(&self.committed);
            self.assign().expect("the plan went with these records when the state was opened");
        }
    }

    fn assign(&mut self) -> Result<(), StateError> {
        let mut known = self.written.clone();
        let mut unwritten = Vec::new();
        let assigned = self.plan.iter().map(|layout| known.assign(layout, &mut unwritten));
        self.assigned = assigned.collect::<Result<_, _>>()?;
        self.known = known;
        self.unwritten = unwritten;
        Ok(())
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Records {
    /// By operator name.
    slots: BTreeMap<String, SlotRecord>,
    /// By slot number and layout id.
    layouts: BTreeMap<(u16, u16), Vec<Column>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SlotRecord {
    number: u16,
    kind: StateKind,
    key: Vec<Column>,
}

impl Records {
    fn read(&mut self, key: &[u8], value: &[u8]) -> Result<(), StateError> {
        match key.strip_prefix(&META).and_then(<[u8]>::split_first) {
            Some((&SLOT_RECORD, name)) => {
                let name = std::str::from_utf8(name).map_err(|_| not_understood(key, "names no operator"))?;
                let record: SlotRecord =
                    serde_json::from_slice(value).map_err(|error| not_understood(key, &error.to_string()))?;
                if !(1..=SLOT_NUMBER_MAX).contains(&record.number) {
                    return Err(not_understood(key, "has a slot that is out of range"));
                }
                self.slots.insert(name.to_owned(), record);
            }
            Some((&LAYOUT_RECORD, &[s1, s0, l1, l0])) => {
                let columns = serde_json::from_slice(value).map_err(|error| not_understood(key, &error.to_string()))?;
                self.layouts.insert((u16::from_be_bytes([s1, s0]), u16::from_be_bytes([l1, l0])), columns);
            }
            _ => return Err(not_understood(key, "is of no known kind")),
        }
        Ok(())
    }

    fn layouts(&self, number: u16) -> impl Iterator<Item = (u16, &[Column])> {
        self.layouts.range((number, 0)..=(number, u16::MAX)).map(|((_, id), columns)| (*id, columns.as_slice()))
    }

    /// Finds or adds an operator's slot and layout. An error if its state is not what the plan says.
    fn assign(
        &mut self,
        layout: &StateLayout,
        unwritten: &mut Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Result<Assigned, StateError> {
        let number = match self.slots.get(&layout.operator) {
            Some(record) => {
                record.check(layout)?;
                record.number
            }
            None => self.add_slot(layout, unwritten)?,
        };
        let layout_id = match self.find_layout(number, layout)? {
            Found::Same(id) => id,
            Found::Last(last) => {
                let id = last.checked_add(1).ok_or_else(|| incompatible(layout, "it has had 65,535 layouts".into()))?;
                let key = [&META[..], &[LAYOUT_RECORD], &number.to_be_bytes(), &id.to_be_bytes()].concat();
                unwritten.push((key, to_json(&layout.value)));
                self.layouts.insert((number, id), layout.value.clone());
                id
            }
        };
        Ok(Assigned { slot: Slot::new(layout.kind, number), layout: layout_id })
    }

    fn add_slot(&mut self, layout: &StateLayout, unwritten: &mut Vec<(Vec<u8>, Vec<u8>)>) -> Result<u16, StateError> {
        let number = self.slots.values().map(|record| record.number).max().unwrap_or(0) + 1;
        if number > SLOT_NUMBER_MAX {
            return Err(incompatible(layout, format!("{SLOT_NUMBER_MAX} operators have had state here before it")));
        }
        let record = SlotRecord { number, kind: layout.kind, key: layout.key.clone() };
        unwritten.push(([&META[..], &[SLOT_RECORD], layout.operator.as_bytes()].concat(), to_json(&record)));
        self.slots.insert(layout.operator.clone(), record);
        Ok(number)
    }

    /// Also checks that rows of every older layout can be read as the plan wants them.
    fn find_layout(&self, number: u16, layout: &StateLayout) -> Result<Found, StateError> {
        let mut found = Found::Last(DELETED);
        for (id, columns) in self.layouts(number) {
            RowMapping::new(columns, &layout.value).map_err(|error| incompatible(layout, error.to_string()))?;
            found = match found {
                Found::Last(_) if columns == layout.value => Found::Same(id),
                Found::Last(_) => Found::Last(id),
                same => same,
            };
        }
        Ok(found)
    }
}

enum Found {
    Same(u16),
    /// None is the same; this is the highest id.
    Last(u16),
}

impl SlotRecord {
    fn check(&self, layout: &StateLayout) -> Result<(), StateError> {
        if self.kind != layout.kind {
            let why = format!("its state is of the kind {:?} and the plan says {:?}", self.kind, layout.kind);
            return Err(incompatible(layout, why));
        }
        // Waiting rows are found by time and sequence, not by a key.
        if self.kind != StateKind::Waiting && !same_key(&self.key, &layout.key) {
            let (stored, planned) = (key_text(&self.key), key_text(&layout.key));
            return Err(incompatible(layout, format!("its key is ({stored}) and the plan says ({planned})")));
        }
        Ok(())
    }
}

/// INT and BIGINT have the same key bytes: a key may be widened.
fn same_key(left: &[Column], right: &[Column]) -> bool {
    let number = |t: &DataType| matches!(t, DataType::Int | DataType::Bigint);
    let same_type = |l: &DataType, r: &DataType| l == r || (number(l) && number(r));
    left.len() == right.len()
        && left.iter().zip(right).all(|(l, r)| l.name == r.name && same_type(&l.data_type, &r.data_type))
}

fn key_text(key: &[Column]) -> String {
    let parts: Vec<_> = key.iter().map(|column| format!("{} {}", column.name, column.data_type)).collect();
    parts.join(", ")
}

fn incompatible(layout: &StateLayout, why: String) -> StateError {
    StateError::Incompatible { operator: layout.operator.clone(), why }
}

fn not_understood(key: &[u8], why: &str) -> StateError {
    StateError::Record(format!("record '{}' {why}", key.escape_ascii()))
}

fn to_json<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("columns and numbers have a JSON form")
}

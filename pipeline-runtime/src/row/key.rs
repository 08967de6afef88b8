//! Keys as bytes whose order is the order of the values.
//!
//! Each part ends by itself, so no key is the beginning of another one of the same types, and whatever follows a key (a
//! version's time) starts at a known place. INT and BIGINT are written alike, so a join on INT = BIGINT meets. The
//! exchanges partition by these bytes too: changing them moves keys between tasks.
//!
//! | type | bytes |
//! | --- | --- |
//! | BOOLEAN | 1 |
//! | DATE | 4, big-endian, sign flipped |
//! | INT, BIGINT, TIMESTAMP | 8, big-endian, sign flipped; a timestamp in its own unit |
//! | DECIMAL | 16, big-endian, sign flipped |
//! | DOUBLE | 8, big-endian; positive: sign flipped, negative: all bits; -0 as 0, one NaN above all |
//! | STRING, BYTES | each 0x00 as 0x00 0xff, at the end 0x00 0x00 |

use arrow::array::ArrayRef;
use millrace_core::schema::DataType;

use super::RowTypeError;
use super::encode::{BoundColumn, Values, bytes_at};

/// Writes keys of the types it was made for. Bound to each batch like a [`super::RowEncoder`].
#[derive(Clone, Debug)]
pub struct KeyEncoder {
    types: Vec<DataType>,
}

impl KeyEncoder {
    /// An error if a type has no order: ARRAY and ROW.
    pub fn new(types: &[DataType]) -> Result<Self, RowTypeError> {
        match types.iter().find(|t| matches!(t, DataType::Array(_) | DataType::Row(_))) {
            Some(refused) => Err(RowTypeError::Key(refused.clone())),
            None => Ok(Self { types: types.to_vec() }),
        }
    }

    /// Resolves the key columns of one batch, in the order of the types.
    pub fn bind<'a>(&self, arrays: &'a [ArrayRef]) -> Result<BoundKeyEncoder<'a>, RowTypeError> {
        if arrays.len() != self.types.len() {
            return Err(RowTypeError::Columns { expected: self.types.len(), found: arrays.len() });
        }
        let parts = self.types.iter().zip(arrays).map(|(t, array)| BoundColumn::new(t, array));
        Ok(BoundKeyEncoder { parts: parts.collect::<Result<_, _>>()? })
    }
}

/// The keys of one batch, ready to be written.
#[derive(Debug)]
pub struct BoundKeyEncoder<'a> {
    parts: Vec<BoundColumn<'a>>,
}

impl BoundKeyEncoder<'_> {
    /// Appends the key of row `row`. False, and nothing is appended, when a part is null: null equals nothing.
    /// Panics if the batch has no such row.
    pub fn encode(&self, row: usize, out: &mut Vec<u8>) -> bool {
        if self.parts.iter().any(|part| part.is_null(row)) {
            return false;
        }
        for part in &self.parts {
            encode_part(&part.values, row, out);
        }
        true
    }
}

fn encode_part(values: &Values<'_>, row: usize, out: &mut Vec<u8>) {
    match values {
        Values::Boolean(values) => out.push(u8::from(values.value(row))),
        Values::Int(values) => out.extend_from_slice(&ordered_i64(i64::from(values[row]))),
        Values::Date(values) => out.extend_from_slice(&(values[row] ^ i32::MIN).to_be_bytes()),
        Values::Bigint(values) => out.extend_from_slice(&ordered_i64(values[row])),
        Values::Double(values) => out.extend_from_slice(&ordered_f64(values[row])),
        Values::Decimal(values) => out.extend_from_slice(&(values[row] ^ i128::MIN).to_be_bytes()),
        Values::Bytes { offsets, data } => write_escaped(bytes_at(offsets, data, row), out),
        Values::Array { .. } | Values::Row(_) => unreachable!("KeyEncoder::new refuses ARRAY and ROW"),
    }
}

/// Bytes whose order is the order of the numbers. State uses it for times too.
pub(crate) fn ordered_i64(value: i64) -> [u8; 8] {
    (value ^ i64::MIN).to_be_bytes()
}

/// The number that [`ordered_i64`] wrote.
pub(crate) fn from_ordered_i64(bytes: [u8; 8]) -> i64 {
    i64::from_be_bytes(bytes) ^ i64::MIN
}

fn ordered_f64(value: f64) -> [u8; 8] {
    let value = if value.is_nan() { f64::NAN } else { value + 0.0 };
    let bits = value.to_bits();
    let ordered = if bits >> 63 == 0 { bits ^ 1 << 63 } else { !bits };
    ordered.to_be_bytes()
}

fn write_escaped(bytes: &[u8], out: &mut Vec<u8>) {
    let mut rest = bytes;
    while let Some(zero) = memchr::memchr(0, rest) {
        out.extend_from_slice(&rest[..zero]);
        out.extend_from_slice(&[0, 0xff]);
        rest = &rest[zero + 1..];
    }
    out.extend_from_slice(rest);
    out.extend_from_slice(&[0, 0]);
}

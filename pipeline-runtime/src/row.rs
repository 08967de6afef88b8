//! Rows as bytes: what state values and exchange records hold, and the keys they are found by.
//!
//! A row is written without names, types or a version; whoever stores it keeps the columns beside it (state: a layout
//! id, exchanges: the plan's fingerprint). It is a bitmap of nulls, one bit for each column, lowest bit first, set for
//! null; then the values of the other columns in their order:
//!
//! | type | bytes |
//! | --- | --- |
//! | BOOLEAN | 1: 0 or 1 |
//! | INT, DATE | 4, little-endian |
//! | BIGINT, DOUBLE, TIMESTAMP | 8, little-endian |
//! | DECIMAL | 16, little-endian: the digits without the point |
//! | STRING, BYTES | length (LEB128), bytes |
//! | ARRAY | number of items (LEB128), bitmap of nulls, the other items |
//! | ROW | as a row |
//!
//! Invariants: a value has exactly one encoding, so equal rows of equal columns are equal bytes; any other bytes are an
//! error and never a panic; an array of bytes that does not fit its columns leaves a decoder as it was. The format is on
//! disk and in topics: a change needs another layout, never another meaning of these bytes.
//!
//! Keys have an encoding of their own ([`KeyEncoder`]): there the order of the bytes is the order of the values.

mod builders;
mod decode;
mod encode;
mod key;
#[cfg(test)]
mod tests;

use arrow::datatypes::DataType as ArrowType;
use millrace_core::schema::DataType;

pub use decode::RowDecoder;
pub(crate) use decode::{RowBuilders, RowMapping};
pub use encode::{BoundRowEncoder, RowEncoder};
pub use key::{BoundKeyEncoder, KeyEncoder};
pub(crate) use key::{from_ordered_i64, ordered_i64};

/// Bytes are not a row of the columns they are said to have. Damage, or an error of ours; reading again does not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowCodecError {
    #[error("row ends early: {needed} bytes more were expected, {left} are left")]
    Truncated { needed: usize, left: usize },
    #[error("row goes on for {0} bytes behind its last column")]
    Trailing(usize),
    #[error("length in row is not a LEB128 number of 64 bits in its shortest form")]
    Length,
    #[error("byte {0} in row is not a boolean")]
    Boolean(u8),
    #[error("text in row is not UTF-8")]
    Utf8,
    #[error("unused bits of a null bitmap are set")]
    Bitmap,
    #[error("field that is NOT NULL inside of a ROW is null")]
    RequiredField,
    /// Arrow counts the bytes of a column in 31 bits. Smaller batches help.
    #[error("batch holds more than 2 GiB in one column")]
    BatchTooLarge,
}

/// Columns, types and arrays that do not go together. The plan compiler refuses what leads here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowTypeError {
    #[error("column '{column}' is stored as {stored} and cannot be read as {wanted}")]
    Incompatible { column: String, stored: DataType, wanted: DataType },
    #[error("column '{0}' is NOT NULL, but older rows do not have it or may hold null in it")]
    Required(String),
    #[error("{expected} columns were expected, {found} arrays given")]
    Columns { expected: usize, found: usize },
    #[error("array of Arrow type {found} given for a column of type {expected}")]
    Array { expected: DataType, found: ArrowType },
    #[error("values of type {0} cannot be part of a key")]
    Key(DataType),
}

/// Bytes of a null bitmap for `bits` values.
fn bitmap_bytes(bits: usize) -> usize {
    bits.div_ceil(8)
}

/// Appends `value` in the shortest form, seven bits a byte, lowest first.
fn write_leb128(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The rest of a row that is being read.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], RowCodecError> {
        match self.rest.split_at_checked(count) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(RowCodecError::Truncated { needed: count, left: self.rest.len() }),
        }
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], RowCodecError> {
        match self.rest.split_first_chunk::<N>() {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(*taken)
            }
            None => Err(RowCodecError::Truncated { needed: N, left: self.rest.len() }),
        }
    }

    fn boolean(&mut self) -> Result<bool, RowCodecError> {
        match self.fixed::<1>()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [byte] => Err(RowCodecError::Boolean(byte)),
        }
    }

    fn length(&mut self) -> Result<usize, RowCodecError> {
        let [first] = self.fixed()?;
        if first < 0x80 {
            return Ok(usize::from(first));
        }
        let mut value = u64::from(first & 0x7f);
        for shift in (7..64).step_by(7) {
            let [byte] = self.fixed()?;
            let bits = u64::from(byte & 0x7f);
            if byte == 0 || (shift == 63 && bits > 1) {
                return Err(RowCodecError::Length);
            }
            value |= bits << shift;
            if byte < 0x80 {
                return usize::try_from(value).map_err(|_| RowCodecError::Length);
            }
        }
        Err(RowCodecError::Length)
    }

    fn bytes(&mut self) -> Result<&'a [u8], RowCodecError> {
        let length = self.length()?;
        self.take(length)
    }

    fn text(&mut self) -> Result<&'a [u8], RowCodecError> {
        let bytes = self.bytes()?;
        std::str::from_utf8(bytes).map_err(|_| RowCodecError::Utf8)?;
        Ok(bytes)
    }

    /// A bitmap for `bits` values. Stray bits are refused: else one row would have several encodings.
    fn bitmap(&mut self, bits: usize) -> Result<NullBitmap<'a>, RowCodecError> {
        let bytes = self.take(bitmap_bytes(bits))?;
        match bytes.last() {
            Some(last) if !bits.is_multiple_of(8) && last >> (bits % 8) != 0 => Err(RowCodecError::Bitmap),
            _ => Ok(NullBitmap(bytes)),
        }
    }

    fn end(&self) -> Result<(), RowCodecError> {
        if self.rest.is_empty() { Ok(()) } else { Err(RowCodecError::Trailing(self.rest.len())) }
    }
}

#[derive(Clone, Copy)]
struct NullBitmap<'a>(&'a [u8]);

impl NullBitmap<'_> {
    fn is_null(self, index: usize) -> bool {
        self.0[index / 8] >> (index % 8) & 1 == 1
    }
}

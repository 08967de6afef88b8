//! Rows of Arrow arrays to bytes.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::datatypes::{
    DataType as ArrowType, Date32Type, Decimal128Type, Float64Type, Int32Type, Int64Type, TimeUnit,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
};
use millrace_core::schema::{Column, DataType};

use super::{RowTypeError, bitmap_bytes, write_leb128};

/// Writes rows of the columns it was made for. Bound to each batch, so that types are looked at once per batch.
#[derive(Clone, Debug)]
pub struct RowEncoder {
    columns: Vec<Column>,
}

impl RowEncoder {
    pub fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec() }
    }

    /// Resolves the arrays of one batch: one for each column, in their order, of the type that
    /// [`millrace_plan::arrow_schema`] gives.
    pub fn bind<'a>(&self, arrays: &'a [ArrayRef]) -> Result<BoundRowEncoder<'a>, RowTypeError> {
        if arrays.len() != self.columns.len() {
            return Err(RowTypeError::Columns { expected: self.columns.len(), found: arrays.len() });
        }
        let columns = self.columns.iter().zip(arrays).map(|(c, a)| BoundColumn::new(&c.data_type, a));
        Ok(BoundRowEncoder { columns: columns.collect::<Result<_, _>>()? })
    }
}

/// The rows of one batch, ready to be written.
#[derive(Debug)]
pub struct BoundRowEncoder<'a> {
    columns: Vec<BoundColumn<'a>>,
}

impl BoundRowEncoder<'_> {
    /// Appends row `row` of the batch. Panics if the batch has no such row.
    pub fn encode(&self, row: usize, out: &mut Vec<u8>) {
        encode_row(&self.columns, row, out);
    }
}

fn encode_row(columns: &[BoundColumn<'_>], row: usize, out: &mut Vec<u8>) {
    let bitmap = out.len();
    out.resize(bitmap + bitmap_bytes(columns.len()), 0);
    for (i, column) in columns.iter().enumerate() {
        if column.is_null(row) {
            out[bitmap + i / 8] |= 1 << (i % 8);
        } else {
            column.values.encode(row, out);
        }
    }
}

/// A column's buffers, with its type resolved.
#[derive(Debug)]
pub(super) struct BoundColumn<'a> {
    nulls: Option<&'a NullBuffer>,
    pub(super) values: Values<'a>,
}

#[derive(Debug)]
pub(super) enum Values<'a> {
    Boolean(&'a BooleanBuffer),
    /// INT
    Int(&'a [i32]),
    /// DATE
    Date(&'a [i32]),
    /// BIGINT, TIMESTAMP
    Bigint(&'a [i64]),
    Double(&'a [f64]),
    Decimal(&'a [i128]),
    /// STRING, BYTES
    Bytes {
        offsets: &'a [i32],
        data: &'a [u8],
    },
    Array {
        offsets: &'a [i32],
        items: Box<BoundColumn<'a>>,
    },
    Row(Vec<BoundColumn<'a>>),
}

impl<'a> BoundColumn<'a> {
    pub(super) fn new(data_type: &DataType, array: &'a ArrayRef) -> Result<Self, RowTypeError> {
        let values = Values::new(data_type, array)?
            .ok_or_else(|| RowTypeError::Array { expected: data_type.clone(), found: array.data_type().clone() })?;
        Ok(Self { nulls: array.nulls().filter(|n| n.null_count() > 0), values })
    }

    pub(super) fn is_null(&self, row: usize) -> bool {
        self.nulls.is_some_and(|nulls| nulls.is_null(row))
    }
}

impl<'a> Values<'a> {
    /// `None` if the array is of another type.
    fn new(data_type: &DataType, array: &'a ArrayRef) -> Result<Option<Self>, RowTypeError> {
        Ok(match data_type {
            DataType::Boolean => array.as_boolean_opt().map(|a| Self::Boolean(a.values())),
            DataType::Int => array.as_primitive_opt::<Int32Type>().map(|a| Self::Int(a.values())),
            DataType::Date => array.as_primitive_opt::<Date32Type>().map(|a| Self::Date(a.values())),
            DataType::Bigint => array.as_primitive_opt::<Int64Type>().map(|a| Self::Bigint(a.values())),
            DataType::Timestamp(digits) => timestamps(*digits, array).map(Self::Bigint),
            DataType::Double => array.as_primitive_opt::<Float64Type>().map(|a| Self::Double(a.values())),
            DataType::Decimal { scale, .. } => match array.data_type() {
                ArrowType::Decimal128(_, found) if *found == *scale as i8 => {
                    array.as_primitive_opt::<Decimal128Type>().map(|a| Self::Decimal(a.values()))
                }
                _ => None,
            },
            DataType::String => array
                .as_string_opt::<i32>()
                .map(|a| Self::Bytes { offsets: a.value_offsets(), data: a.values().as_slice() }),
            DataType::Bytes => array
                .as_binary_opt::<i32>()
                .map(|a| Self::Bytes { offsets: a.value_offsets(), data: a.values().as_slice() }),
            DataType::Array(item) => match array.as_list_opt::<i32>() {
                Some(list) => Some(Self::Array {
                    offsets: list.value_offsets(),
                    items: Box::new(BoundColumn::new(item, list.values())?),
                }),
                None => None,
            },
            DataType::Row(fields) => match array.as_struct_opt() {
                Some(row) if row.num_columns() == fields.len() => {
                    let columns = fields.iter().zip(row.columns());
                    let columns = columns.map(|(field, array)| BoundColumn::new(&field.data_type, array));
                    Some(Self::Row(columns.collect::<Result<_, _>>()?))
                }
                _ => None,
            },
        })
    }

    fn encode(&self, row: usize, out: &mut Vec<u8>) {
        match self {
            Self::Boolean(values) => out.push(u8::from(values.value(row))),
            Self::Int(values) | Self::Date(values) => out.extend_from_slice(&values[row].to_le_bytes()),
            Self::Bigint(values) => out.extend_from_slice(&values[row].to_le_bytes()),
            Self::Double(values) => out.extend_from_slice(&values[row].to_le_bytes()),
            Self::Decimal(values) => out.extend_from_slice(&values[row].to_le_bytes()),
            Self::Bytes { offsets, data } => {
                let bytes = bytes_at(offsets, data, row);
                write_leb128(bytes.len() as u64, out);
                out.extend_from_slice(bytes);
            }
            Self::Array { offsets, items } => {
                let (start, end) = (offsets[row] as usize, offsets[row + 1] as usize);
                encode_items(items, start, end, out);
            }
            Self::Row(columns) => encode_row(columns, row, out),
        }
    }
}

/// The bytes of row `row`. Arrow's offsets are never negative and never go back.
pub(super) fn bytes_at<'a>(offsets: &[i32], data: &'a [u8], row: usize) -> &'a [u8] {
    &data[offsets[row] as usize..offsets[row + 1] as usize]
}

fn encode_items(items: &BoundColumn<'_>, start: usize, end: usize, out: &mut Vec<u8>) {
    write_leb128((end - start) as u64, out);
    let bitmap = out.len();
    out.resize(bitmap + bitmap_bytes(end - start), 0);
    for item in start..end {
        let i = item - start;
        if items.is_null(item) {
            out[bitmap + i / 8] |= 1 << (i % 8);
        } else {
            items.values.encode(item, out);
        }
    }
}

fn timestamps(digits: u8, array: &ArrayRef) -> Option<&[i64]> {
    let unit = match array.data_type() {
        ArrowType::Timestamp(unit, _) => *unit,
        _ => return None,
    };
    match (digits, unit) {
        (3, TimeUnit::Millisecond) => array.as_primitive_opt::<TimestampMillisecondType>().map(|a| &a.values()[..]),
        (6, TimeUnit::Microsecond) => array.as_primitive_opt::<TimestampMicrosecondType>().map(|a| &a.values()[..]),
        (9, TimeUnit::Nanosecond) => array.as_primitive_opt::<TimestampNanosecondType>().map(|a| &a.values()[..]),
        _ => None,
    }
}

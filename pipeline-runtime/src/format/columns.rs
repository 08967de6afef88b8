//! The Arrow side of decoding: one builder for each column, fed from the reader's tape.
//!
//! Appending cannot fail: the reader has checked every value against the column's type. A null goes into any column,
//! because rows of a table that stand for deletes hold nothing but their key.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayBuilder, ArrayRef, BinaryBuilder, BooleanBuilder, Date32Builder, Decimal128Builder, Float64Builder,
    Int32Builder, Int64Builder, ListArray, NullBufferBuilder, StringBuilder, StructArray, TimestampMicrosecondBuilder,
    TimestampMillisecondBuilder, TimestampNanosecondBuilder,
};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType as ArrowType, FieldRef, Fields, TimeUnit};

use super::reader::Reader;
use super::shape::Value;

pub(super) enum ColumnBuilder {
    Boolean(BooleanBuilder),
    Int(Int32Builder),
    Bigint(Int64Builder),
    Double(Float64Builder),
    Decimal(Decimal128Builder),
    String(StringBuilder),
    Bytes(BinaryBuilder),
    Date(Date32Builder),
    Millis(TimestampMillisecondBuilder),
    Micros(TimestampMicrosecondBuilder),
    Nanos(TimestampNanosecondBuilder),
    Array { field: FieldRef, ends: Vec<i32>, items: Box<ColumnBuilder>, nulls: NullBufferBuilder },
    Row { fields: Fields, columns: Vec<ColumnBuilder>, nulls: NullBufferBuilder },
}

/// Bytes to reserve for each text of a first batch; later batches reserve what the one before needed.
const TEXT_BYTES_EXPECTED: usize = 16;

impl ColumnBuilder {
    /// `arrow_type` is one that [`millrace_plan::arrow_schema::arrow_type`] gives.
    pub fn new(arrow_type: &ArrowType, rows: usize) -> Self {
        Self::with_text(arrow_type, rows, rows * TEXT_BYTES_EXPECTED)
    }

    fn with_text(arrow_type: &ArrowType, rows: usize, text: usize) -> Self {
        match arrow_type {
            ArrowType::Boolean => Self::Boolean(BooleanBuilder::with_capacity(rows)),
            ArrowType::Int32 => Self::Int(Int32Builder::with_capacity(rows)),
            ArrowType::Int64 => Self::Bigint(Int64Builder::with_capacity(rows)),
            ArrowType::Float64 => Self::Double(Float64Builder::with_capacity(rows)),
            ArrowType::Decimal128(..) => {
                Self::Decimal(Decimal128Builder::with_capacity(rows).with_data_type(arrow_type.clone()))
            }
            ArrowType::Utf8 => Self::String(StringBuilder::with_capacity(rows, text)),
            ArrowType::Binary => Self::Bytes(BinaryBuilder::with_capacity(rows, text)),
            ArrowType::Date32 => Self::Date(Date32Builder::with_capacity(rows)),
            ArrowType::Timestamp(TimeUnit::Millisecond, _) => {
                Self::Millis(TimestampMillisecondBuilder::with_capacity(rows))
            }
            ArrowType::Timestamp(TimeUnit::Microsecond, _) => {
                Self::Micros(TimestampMicrosecondBuilder::with_capacity(rows))
            }
            ArrowType::Timestamp(TimeUnit::Nanosecond, _) => {
                Self::Nanos(TimestampNanosecondBuilder::with_capacity(rows))
            }
            ArrowType::List(field) => Self::Array {
                field: field.clone(),
                ends: Vec::with_capacity(rows),
                items: Box::new(Self::new(field.data_type(), rows)),
                nulls: NullBufferBuilder::new(rows),
            },
            ArrowType::Struct(fields) => Self::Row {
                fields: fields.clone(),
                columns: fields.iter().map(|f| Self::new(f.data_type(), rows)).collect(),
                nulls: NullBufferBuilder::new(rows),
            },
            other => unreachable!("no column type maps to {other}"),
        }
    }

    /// Appends one value. `text` is the record that the value was read from.
    #[inline]
    pub fn append(&mut self, value: Value, text: &str, reader: &Reader) {
        match (self, value) {
            (Self::Bigint(b), Value::Integer(v)) => b.append_value(v),
            (Self::Millis(b), Value::Integer(v)) => b.append_value(v),
            (Self::Micros(b), Value::Integer(v)) => b.append_value(v),
            (Self::Nanos(b), Value::Integer(v)) => b.append_value(v),
            // The reader keeps both within 32 bits.
            (Self::Int(b), Value::Integer(v)) => b.append_value(v as i32),
            (Self::Date(b), Value::Integer(v)) => b.append_value(v as i32),
            (Self::Decimal(b), Value::Decimal(v)) => b.append_value(v),
            (Self::Double(b), Value::Double(v)) => b.append_value(v),
            (Self::Boolean(b), Value::Boolean(v)) => b.append_value(v),
            (Self::String(b), Value::Text(span)) => b.append_value(span.of(text)),
            (Self::String(b), Value::OwnText(span)) => b.append_value(reader.own_text(span)),
            (Self::Bytes(b), Value::Bytes(span)) => b.append_value(reader.own_bytes(span)),
            (Self::Array { ends, items, nulls, .. }, Value::Array { first, count }) => {
                for item in reader.values(first as usize, count as usize) {
                    items.append(*item, text, reader);
                }
                ends.push(items.len() as i32);
                nulls.append_non_null();
            }
            (Self::Row { columns, nulls, .. }, Value::Row { first, count }) => {
                for (column, value) in columns.iter_mut().zip(reader.values(first as usize, count as usize)) {
                    column.append(*value, text, reader);
                }
                nulls.append_non_null();
            }
            (column, value) => {
                debug_assert!(
                    matches!(value, Value::Null | Value::Unavailable),
                    "{value:?} in a column of another type"
                );
                column.append_null();
            }
        }
    }

    fn append_null(&mut self) {
        match self {
            Self::Boolean(b) => b.append_null(),
            Self::Int(b) => b.append_null(),
            Self::Bigint(b) => b.append_null(),
            Self::Double(b) => b.append_null(),
            Self::Decimal(b) => b.append_null(),
            Self::String(b) => b.append_null(),
            Self::Bytes(b) => b.append_null(),
            Self::Date(b) => b.append_null(),
            Self::Millis(b) => b.append_null(),
            Self::Micros(b) => b.append_null(),
            Self::Nanos(b) => b.append_null(),
            Self::Array { ends, items, nulls, .. } => {
                ends.push(items.len() as i32);
                nulls.append_null();
            }
            Self::Row { columns, nulls, .. } => {
                columns.iter_mut().for_each(Self::append_null);
                nulls.append_null();
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Boolean(b) => b.len(),
            Self::Int(b) => b.len(),
            Self::Bigint(b) => b.len(),
            Self::Double(b) => b.len(),
            Self::Decimal(b) => b.len(),
            Self::String(b) => b.len(),
            Self::Bytes(b) => b.len(),
            Self::Date(b) => b.len(),
            Self::Millis(b) => b.len(),
            Self::Micros(b) => b.len(),
            Self::Nanos(b) => b.len(),
            Self::Array { ends, .. } => ends.len(),
            Self::Row { nulls, .. } => nulls.len(),
        }
    }

    /// The rows so far, and a fresh builder for about as many.
    pub fn take(&mut self) -> ArrayRef {
        let text = match self {
            Self::String(b) => b.values_slice().len(),
            Self::Bytes(b) => b.values_slice().len(),
            _ => 0,
        };
        let rows = self.len();
        let array = self.finish();
        *self = Self::with_text(array.data_type(), rows, text);
        array
    }

    fn finish(&mut self) -> ArrayRef {
        match self {
            Self::Boolean(b) => Arc::new(b.finish()),
            Self::Int(b) => Arc::new(b.finish()),
            Self::Bigint(b) => Arc::new(b.finish()),
            Self::Double(b) => Arc::new(b.finish()),
            Self::Decimal(b) => Arc::new(b.finish()),
            Self::String(b) => Arc::new(b.finish()),
            Self::Bytes(b) => Arc::new(b.finish()),
            Self::Date(b) => Arc::new(b.finish()),
            Self::Millis(b) => Arc::new(b.finish()),
            Self::Micros(b) => Arc::new(b.finish()),
            Self::Nanos(b) => Arc::new(b.finish()),
            Self::Array { field, ends, items, nulls } => {
                let offsets: ScalarBuffer<i32> = std::iter::once(0).chain(ends.drain(..)).collect();
                Arc::new(ListArray::new(field.clone(), OffsetBuffer::new(offsets), items.finish(), nulls.finish()))
            }
            Self::Row { fields, columns, nulls } => {
                let rows = nulls.len();
                let arrays = columns.iter_mut().map(Self::finish).collect();
                Arc::new(
                    StructArray::try_new_with_length(fields.clone(), arrays, nulls.finish(), rows)
                        .expect("each field was appended to once for each row, nulls only where they are allowed"),
                )
            }
        }
    }
}

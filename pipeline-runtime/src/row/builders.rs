//! Arrow columns under construction, which can forget their last rows again.
//!
//! Arrow's own builders cannot be cut back, and a row that turns out to be damaged halfway must leave no trace. Values
//! are grouped by width: what they mean matters only when the array is finished.

use std::mem;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, ArrowPrimitiveType, BinaryArray, BooleanArray, BooleanBufferBuilder, ListArray, NullBufferBuilder,
    PrimitiveArray, StringArray, StructArray,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{
    DataType as ArrowType, Date32Type, Decimal128Type, Float64Type, Int32Type, Int64Type, TimeUnit,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
};

use super::RowCodecError;

/// Rows that a nullable column makes room for at the start.
const NULLS_CAPACITY: usize = 1024;

#[derive(Debug)]
pub(super) struct ColumnBuilder {
    data_type: ArrowType,
    nulls: NullBufferBuilder,
    pub(super) values: ValuesBuilder,
}

#[derive(Debug)]
pub(super) enum ValuesBuilder {
    Boolean(BooleanBufferBuilder),
    /// INT, DATE
    Fixed4(Vec<i32>),
    /// BIGINT, TIMESTAMP and the bits of a DOUBLE
    Fixed8(Vec<i64>),
    /// DECIMAL
    Fixed16(Vec<i128>),
    /// STRING, BYTES
    Bytes(BytesBuilder),
    Array(ListBuilder),
    Row(Vec<ColumnBuilder>),
}

#[derive(Debug)]
pub(super) struct BytesBuilder {
    offsets: Vec<i32>,
    data: Vec<u8>,
}

impl BytesBuilder {
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), RowCodecError> {
        let end = i32::try_from(self.data.len() + bytes.len()).map_err(|_| RowCodecError::BatchTooLarge)?;
        self.data.extend_from_slice(bytes);
        self.offsets.push(end);
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct ListBuilder {
    offsets: Vec<i32>,
    pub(super) items: Box<ColumnBuilder>,
}

impl ListBuilder {
    /// Ends the list whose items were pushed into `items`.
    pub(super) fn end_list(&mut self) -> Result<(), RowCodecError> {
        self.offsets.push(i32::try_from(self.items.len()).map_err(|_| RowCodecError::BatchTooLarge)?);
        Ok(())
    }
}

fn last(offsets: &[i32]) -> i32 {
    *offsets.last().expect("offsets begin with 0")
}

impl ColumnBuilder {
    /// `data_type` is one that [`millrace_plan::arrow_schema::arrow_type`] gives.
    pub(super) fn new(data_type: &ArrowType) -> Self {
        let values = match data_type {
            ArrowType::Boolean => ValuesBuilder::Boolean(BooleanBufferBuilder::new(0)),
            ArrowType::Int32 | ArrowType::Date32 => ValuesBuilder::Fixed4(Vec::new()),
            ArrowType::Int64 | ArrowType::Float64 | ArrowType::Timestamp(..) => ValuesBuilder::Fixed8(Vec::new()),
            ArrowType::Decimal128(..) => ValuesBuilder::Fixed16(Vec::new()),
            ArrowType::Utf8 | ArrowType::Binary => {
                ValuesBuilder::Bytes(BytesBuilder { offsets: vec![0], data: Vec::new() })
            }
            ArrowType::List(item) => ValuesBuilder::Array(ListBuilder {
                offsets: vec![0],
                items: Box::new(ColumnBuilder::new(item.data_type())),
            }),
            ArrowType::Struct(fields) => {
                ValuesBuilder::Row(fields.iter().map(|field| ColumnBuilder::new(field.data_type())).collect())
            }
            other => unreachable!("no column type maps to {other}"),
        };
        Self { data_type: data_type.clone(), nulls: NullBufferBuilder::new(NULLS_CAPACITY), values }
    }

    pub(super) fn len(&self) -> usize {
        self.nulls.len()
    }

    /// The value was pushed: the row has one.
    pub(super) fn end_value(&mut self) {
        self.nulls.append_non_null();
    }

    pub(super) fn push_null(&mut self) {
        self.nulls.append_null();
        match &mut self.values {
            ValuesBuilder::Boolean(values) => values.append(false),
            ValuesBuilder::Fixed4(values) => values.push(0),
            ValuesBuilder::Fixed8(values) => values.push(0),
            ValuesBuilder::Fixed16(values) => values.push(0),
            ValuesBuilder::Bytes(bytes) => bytes.offsets.push(last(&bytes.offsets)),
            ValuesBuilder::Array(list) => list.offsets.push(last(&list.offsets)),
            ValuesBuilder::Row(fields) => fields.iter_mut().for_each(ColumnBuilder::push_null),
        }
    }

    /// Forgets everything behind the first `len` rows, also a value that was pushed and not ended.
    pub(super) fn truncate(&mut self, len: usize) {
        self.nulls.truncate(len);
        match &mut self.values {
            ValuesBuilder::Boolean(values) => values.truncate(len),
            ValuesBuilder::Fixed4(values) => values.truncate(len),
            ValuesBuilder::Fixed8(values) => values.truncate(len),
            ValuesBuilder::Fixed16(values) => values.truncate(len),
            ValuesBuilder::Bytes(bytes) => {
                bytes.offsets.truncate(len + 1);
                bytes.data.truncate(last(&bytes.offsets) as usize);
            }
            ValuesBuilder::Array(list) => {
                list.offsets.truncate(len + 1);
                list.items.truncate(last(&list.offsets) as usize);
            }
            ValuesBuilder::Row(fields) => fields.iter_mut().for_each(|field| field.truncate(len)),
        }
    }

    /// The array of all rows; the builder is empty again.
    pub(super) fn finish(&mut self) -> ArrayRef {
        let rows = self.len();
        let nulls = self.nulls.finish();
        match &mut self.values {
            ValuesBuilder::Boolean(values) => Arc::new(BooleanArray::new(values.finish(), nulls)),
            ValuesBuilder::Fixed4(values) => {
                let buffer = Buffer::from_vec(mem::take(values));
                match self.data_type {
                    ArrowType::Int32 => primitive::<Int32Type>(buffer, rows, nulls, &self.data_type),
                    _ => primitive::<Date32Type>(buffer, rows, nulls, &self.data_type),
                }
            }
            ValuesBuilder::Fixed8(values) => fixed8(Buffer::from_vec(mem::take(values)), rows, nulls, &self.data_type),
            ValuesBuilder::Fixed16(values) => {
                primitive::<Decimal128Type>(Buffer::from_vec(mem::take(values)), rows, nulls, &self.data_type)
            }
            ValuesBuilder::Bytes(bytes) => {
                let offsets = finish_offsets(&mut bytes.offsets);
                let data = Buffer::from_vec(mem::take(&mut bytes.data));
                match self.data_type {
                    ArrowType::Utf8 => Arc::new(StringArray::new(offsets, data, nulls)),
                    _ => Arc::new(BinaryArray::new(offsets, data, nulls)),
                }
            }
            ValuesBuilder::Array(list) => {
                let ArrowType::List(item) = &self.data_type else { unreachable!("lists are made for List") };
                let offsets = finish_offsets(&mut list.offsets);
                Arc::new(ListArray::new(Arc::clone(item), offsets, list.items.finish(), nulls))
            }
            ValuesBuilder::Row(columns) => {
                let ArrowType::Struct(fields) = &self.data_type else { unreachable!("rows are made for Struct") };
                let arrays = columns.iter_mut().map(ColumnBuilder::finish).collect();
                Arc::new(StructArray::new(fields.clone(), arrays, nulls))
            }
        }
    }
}

fn finish_offsets(offsets: &mut Vec<i32>) -> OffsetBuffer<i32> {
    OffsetBuffer::new(mem::replace(offsets, vec![0]).into())
}

fn fixed8(buffer: Buffer, rows: usize, nulls: Option<NullBuffer>, data_type: &ArrowType) -> ArrayRef {
    match data_type {
        ArrowType::Float64 => primitive::<Float64Type>(buffer, rows, nulls, data_type),
        ArrowType::Timestamp(TimeUnit::Millisecond, _) => {
            primitive::<TimestampMillisecondType>(buffer, rows, nulls, data_type)
        }
        ArrowType::Timestamp(TimeUnit::Microsecond, _) => {
            primitive::<TimestampMicrosecondType>(buffer, rows, nulls, data_type)
        }
        ArrowType::Timestamp(..) => primitive::<TimestampNanosecondType>(buffer, rows, nulls, data_type),
        _ => primitive::<Int64Type>(buffer, rows, nulls, data_type),
    }
}

fn primitive<T: ArrowPrimitiveType>(
    buffer: Buffer,
    rows: usize,
    nulls: Option<NullBuffer>,
    data_type: &ArrowType,
) -> ArrayRef {
    let array = PrimitiveArray::<T>::new(ScalarBuffer::new(buffer, 0, rows), nulls);
    Arc::new(array.with_data_type(data_type.clone()))
}

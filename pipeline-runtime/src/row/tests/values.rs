//! Random columns, random values for them, and Arrow arrays made of those by another way than the codec's.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array, ListArray,
    StringArray, StructArray, TimestampMicrosecondArray, TimestampMillisecondArray, TimestampNanosecondArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::DataType as ArrowType;
use millrace_core::schema::{Column, DataType};
use millrace_plan::arrow_schema::arrow_type;
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Boolean(bool),
    Int(i32),
    Bigint(i64),
    Double(f64),
    Decimal(i128),
    String(String),
    Bytes(Vec<u8>),
    Array(Vec<Option<Value>>),
    Row(Vec<Option<Value>>),
}

pub type Row = Vec<Option<Value>>;

pub fn scalar_type() -> BoxedStrategy<DataType> {
    prop_oneof![
        Just(DataType::Boolean),
        Just(DataType::Int),
        Just(DataType::Bigint),
        Just(DataType::Double),
        (1..=38u8)
            .prop_flat_map(|p| (Just(p), 0..=p))
            .prop_map(|(precision, scale)| DataType::Decimal { precision, scale }),
        Just(DataType::String),
        Just(DataType::Bytes),
        Just(DataType::Date),
        prop_oneof![Just(3), Just(6), Just(9)].prop_map(DataType::Timestamp),
    ]
    .boxed()
}

fn data_type() -> impl Strategy<Value = DataType> {
    scalar_type().prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            inner.clone().prop_map(|item| DataType::Array(Box::new(item))),
            vec((inner, any::<bool>()), 1..4).prop_map(|fields| DataType::Row(named(fields))),
        ]
    })
}

fn named(types: Vec<(DataType, bool)>) -> Vec<Column> {
    let column = |(i, (data_type, nullable))| Column { name: format!("c{i}"), data_type, nullable };
    types.into_iter().enumerate().map(column).collect()
}

pub fn columns() -> impl Strategy<Value = Vec<Column>> {
    vec((data_type(), any::<bool>()), 1..12).prop_map(named)
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![any::<i64>(), -3..3i64, Just(i64::MIN), Just(i64::MAX)]
}

pub fn value(data_type: &DataType) -> BoxedStrategy<Value> {
    match data_type {
        DataType::Boolean => any::<bool>().prop_map(Value::Boolean).boxed(),
        DataType::Int | DataType::Date => number().prop_map(|n| Value::Int(n as i32)).boxed(),
        DataType::Bigint | DataType::Timestamp(_) => number().prop_map(Value::Bigint).boxed(),
        DataType::Double => any::<f64>().prop_map(Value::Double).boxed(),
        DataType::Decimal { .. } => {
            prop_oneof![any::<i128>(), number().prop_map(i128::from)].prop_map(Value::Decimal).boxed()
        }
        DataType::String => "\\PC{0,8}|[ab\u{0}]{0,3}|x{120,140}".prop_map(Value::String).boxed(),
        DataType::Bytes => prop_oneof![vec(any::<u8>(), 0..10), vec(prop_oneof![Just(0u8), Just(1), Just(0xff)], 0..4)]
            .prop_map(Value::Bytes)
            .boxed(),
        DataType::Array(item) => vec(proptest::option::of(value(item)), 0..11).prop_map(Value::Array).boxed(),
        DataType::Row(fields) => row(fields).prop_map(Value::Row).boxed(),
    }
}

pub fn row(columns: &[Column]) -> BoxedStrategy<Row> {
    columns
        .iter()
        .map(|column| match column.nullable {
            true => proptest::option::of(value(&column.data_type)).boxed(),
            false => value(&column.data_type).prop_map(Some).boxed(),
        })
        .collect::<Vec<_>>()
        .boxed()
}

/// Columns with rows for them.
pub fn table() -> impl Strategy<Value = (Vec<Column>, Vec<Row>)> {
    columns().prop_flat_map(|columns| {
        let rows = vec(row(&columns), 0..12);
        (Just(columns), rows)
    })
}

pub fn arrays(columns: &[Column], rows: &[Row]) -> Vec<ArrayRef> {
    let column = |i: usize| rows.iter().map(|row| row[i].clone()).collect::<Vec<_>>();
    columns.iter().enumerate().map(|(i, c)| array(&c.data_type, &column(i))).collect()
}

/// Picks the values of one variant.
macro_rules! pick {
    ($values:expr, $variant:ident) => {
        $values.iter().map(|value| match value {
            Some(Value::$variant(v)) => Some(v.clone()),
            None => None,
            Some(other) => panic!("{other:?} is not {}", stringify!($variant)),
        })
    };
}

pub fn array(data_type: &DataType, values: &[Option<Value>]) -> ArrayRef {
    match (data_type, arrow_type(data_type)) {
        (DataType::Boolean, _) => Arc::new(pick!(values, Boolean).collect::<BooleanArray>()),
        (DataType::Int, _) => Arc::new(pick!(values, Int).collect::<Int32Array>()),
        (DataType::Date, _) => Arc::new(pick!(values, Int).collect::<Date32Array>()),
        (DataType::Bigint, _) => Arc::new(pick!(values, Bigint).collect::<Int64Array>()),
        (DataType::Timestamp(3), _) => Arc::new(pick!(values, Bigint).collect::<TimestampMillisecondArray>()),
        (DataType::Timestamp(6), _) => Arc::new(pick!(values, Bigint).collect::<TimestampMicrosecondArray>()),
        (DataType::Timestamp(_), _) => Arc::new(pick!(values, Bigint).collect::<TimestampNanosecondArray>()),
        (DataType::Double, _) => Arc::new(pick!(values, Double).collect::<Float64Array>()),
        (DataType::Decimal { .. }, arrow) => {
            Arc::new(pick!(values, Decimal).collect::<Decimal128Array>().with_data_type(arrow))
        }
        (DataType::String, _) => Arc::new(pick!(values, String).collect::<StringArray>()),
        (DataType::Bytes, _) => Arc::new(pick!(values, Bytes).collect::<BinaryArray>()),
        (DataType::Array(item), ArrowType::List(field)) => {
            let lists: Vec<_> = pick!(values, Array).collect();
            let offsets = OffsetBuffer::from_lengths(lists.iter().map(|list| list.as_ref().map_or(0, Vec::len)));
            let items: Vec<_> = lists.iter().flatten().flatten().cloned().collect();
            let nulls = NullBuffer::from_iter(lists.iter().map(Option::is_some));
            Arc::new(ListArray::new(field, offsets, array(item, &items), Some(nulls)))
        }
        (DataType::Row(columns), ArrowType::Struct(fields)) => {
            let rows: Vec<_> = pick!(values, Row).collect();
            let nulls = NullBuffer::from_iter(rows.iter().map(Option::is_some));
            let field = |i: usize| rows.iter().map(|row| row.as_ref().and_then(|r| r[i].clone())).collect::<Vec<_>>();
            let children = columns.iter().enumerate().map(|(i, c)| array(&c.data_type, &field(i))).collect();
            Arc::new(StructArray::new(fields, children, Some(nulls)))
        }
        (other, arrow) => panic!("{other} is not {arrow}"),
    }
}

//! Sources from a line of text, and rows as values that tests can compare.

use std::collections::BTreeMap;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{
    DataType as ArrowType, Date32Type, Decimal128Type, Float64Type, Int32Type, Int64Type, TimeUnit,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
};
use millrace_core::plan::{Format, Key, KeyFormat, OnError, Partitioner, Source, StartFrom, Table};
use millrace_core::schema::{Column, DataType};

use crate::format::{Decoded, ErrorCode, JsonEncoder, Op, RecordDecoder};

/// `id BIGINT NOT NULL, name STRING`
pub fn columns(text: &str) -> Vec<Column> {
    match format!("ROW<{text}>").parse() {
        Ok(DataType::Row(columns)) => columns,
        other => panic!("{text}: {other:?}"),
    }
}

pub fn stream(text: &str) -> Source {
    Source {
        name: "s".into(),
        topic: "s".into(),
        start_from: StartFrom::Earliest,
        until: Vec::new(),
        key: None,
        format: Format::Json,
        columns: columns(text),
        event_time: None,
        table: None,
        on_error: OnError::Stop,
    }
}

pub fn table(text: &str, primary_key: &[&str], key_format: KeyFormat) -> Source {
    let primary_key: Vec<String> = primary_key.iter().map(|name| (*name).to_owned()).collect();
    Source {
        key: Some(Key { columns: primary_key.clone(), format: key_format, partitioner: Partitioner::Murmur2 }),
        table: Some(Table { primary_key, versions_retention_ms: None, ttl_ms: None }),
        ..stream(text)
    }
}

pub fn debezium(text: &str, primary_key: &[&str]) -> Source {
    Source { format: Format::DebeziumJson, ..table(text, primary_key, KeyFormat::Json) }
}

/// Each row as `+` or `-` and its JSON.
pub fn lines(source: &Source, decoded: &Decoded) -> Vec<String> {
    let encoder = JsonEncoder::new(&source.columns);
    let bound = encoder.bind(&decoded.batch);
    let line = |(row, op): (usize, &Op)| {
        let mut out = vec![if *op == Op::Upsert { b'+' } else { b'-' }];
        bound.encode(row, &mut out);
        String::from_utf8(out).expect("JSON is UTF-8")
    };
    decoded.ops.iter().enumerate().map(line).collect()
}

/// The rows of records given as (key, value).
pub fn decode(source: &Source, records: &[(Option<&str>, Option<&str>)]) -> Vec<String> {
    let mut decoder = RecordDecoder::new(source);
    for (key, value) in records {
        decoder.push(key.map(str::as_bytes), value.map(str::as_bytes)).expect("a good record");
    }
    lines(source, &decoder.finish())
}

/// The one row of a value without key.
pub fn row(source: &Source, value: &str) -> String {
    let [line] = decode(source, &[(None, Some(value))]).try_into().expect("one row");
    line
}

pub fn error(source: &Source, value: &str) -> ErrorCode {
    let mut decoder = RecordDecoder::new(source);
    let error = decoder.push(None, Some(value.as_bytes())).expect_err(value);
    assert_eq!(decoder.rows(), 0);
    error.code
}

/// One value out of an Arrow array, independent of the encoder.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    Null,
    Boolean(bool),
    Integer(i64),
    /// Bits, so that -0 and 0 differ.
    Double(u64),
    Decimal(i128),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Cell>),
    Row(Vec<Cell>),
}

pub fn cell(array: &ArrayRef, row: usize) -> Cell {
    if array.is_null(row) {
        return Cell::Null;
    }
    match array.data_type() {
        ArrowType::Boolean => Cell::Boolean(array.as_boolean().value(row)),
        ArrowType::Int32 => Cell::Integer(array.as_primitive::<Int32Type>().value(row).into()),
        ArrowType::Int64 => Cell::Integer(array.as_primitive::<Int64Type>().value(row)),
        ArrowType::Float64 => Cell::Double(array.as_primitive::<Float64Type>().value(row).to_bits()),
        ArrowType::Decimal128(..) => Cell::Decimal(array.as_primitive::<Decimal128Type>().value(row)),
        ArrowType::Utf8 => Cell::Text(array.as_string::<i32>().value(row).to_owned()),
        ArrowType::Binary => Cell::Bytes(array.as_binary::<i32>().value(row).to_owned()),
        ArrowType::Date32 => Cell::Integer(array.as_primitive::<Date32Type>().value(row).into()),
        ArrowType::Timestamp(unit, None) => Cell::Integer(match unit {
            TimeUnit::Millisecond => array.as_primitive::<TimestampMillisecondType>().value(row),
            TimeUnit::Microsecond => array.as_primitive::<TimestampMicrosecondType>().value(row),
            TimeUnit::Nanosecond => array.as_primitive::<TimestampNanosecondType>().value(row),
            TimeUnit::Second => panic!("no column type is in seconds"),
        }),
        ArrowType::List(_) => {
            let items = array.as_list::<i32>().value(row);
            Cell::List((0..items.len()).map(|i| cell(&items, i)).collect())
        }
        ArrowType::Struct(_) => Cell::Row(array.as_struct().columns().iter().map(|c| cell(c, row)).collect()),
        other => panic!("no column type maps to {other}"),
    }
}

pub fn cells(batch: &RecordBatch, row: usize) -> Vec<Cell> {
    batch.columns().iter().map(|column| cell(column, row)).collect()
}

/// A value of Debezium's with its schema; `fields` are the Connect schemas of the row's columns.
pub fn with_schema(fields: &str, payload: &str) -> String {
    let row = |name: &str| format!(r#"{{"type":"struct","fields":[{fields}],"optional":true,"field":"{name}"}}"#);
    format!(
        r#"{{"schema":{{"type":"struct","fields":[{},{},{{"type":"string","field":"op"}}]}},"payload":{payload}}}"#,
        row("before"),
        row("after")
    )
}

/// The table after a decoder's rows, by the JSON of the primary key; a value that is unavailable keeps what was stored.
#[derive(Debug, Default, PartialEq)]
pub struct Stored(pub BTreeMap<String, Vec<Cell>>);

impl Stored {
    pub fn apply(&mut self, source: &Source, decoded: &Decoded) {
        let primary_key = &source.table.as_ref().expect("a table").primary_key;
        let is_key = |i: usize| primary_key.contains(&source.columns[i].name);
        for (row, op) in decoded.ops.iter().enumerate() {
            let mut values = cells(&decoded.batch, row);
            let key: Vec<&Cell> = values.iter().enumerate().filter(|(i, _)| is_key(*i)).map(|(_, v)| v).collect();
            let key = format!("{key:?}");
            match op {
                Op::Delete => drop(self.0.remove(&key)),
                Op::Upsert => {
                    for (_, column) in decoded.unavailable.iter().filter(|(r, _)| *r == row) {
                        assert_eq!(values[*column], Cell::Null);
                        values[*column] = self.0.get(&key).map_or(Cell::Null, |stored| stored[*column].clone());
                    }
                    self.0.insert(key, values);
                }
            }
        }
    }
}

/// The table's rows after records given as (key, value).
pub fn stored(source: &Source, records: &[(Option<&str>, Option<&str>)]) -> Vec<Vec<Cell>> {
    let mut decoder = RecordDecoder::new(source);
    for (key, value) in records {
        decoder.push(key.map(str::as_bytes), value.map(str::as_bytes)).expect("a good record");
    }
    let mut stored = Stored::default();
    stored.apply(source, &decoder.finish());
    stored.0.into_values().collect()
}

//! Rows as JSON and as keys, and the round trip through both.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, RecordBatch};
use millrace_core::plan::KeyFormat;
use millrace_core::schema::Column;
use millrace_plan::arrow_schema::arrow_schema;
use proptest::prelude::*;

use super::support::*;
use crate::format::columns::ColumnBuilder;
use crate::format::lexer::Span;
use crate::format::reader::Reader;
use crate::format::shape::Value;
use crate::format::{JsonEncoder, KeyTextEncoder, RecordDecoder};

fn batch(columns: &[Column], records: &[&str]) -> RecordBatch {
    let mut decoder = RecordDecoder::new(&millrace_core::plan::Source { columns: columns.to_vec(), ..stream("a INT") });
    for record in records {
        decoder.push(None, Some(record.as_bytes())).expect("a good record");
    }
    decoder.finish().batch
}

#[test]
fn each_type_is_written_in_its_wire_form() {
    let columns = columns(
        "b BOOLEAN, i INT, n BIGINT, x DOUBLE, d DECIMAL(12,2), s STRING, y BYTES, day DATE, t3 TIMESTAMP(3), \
         t6 TIMESTAMP(6), t9 TIMESTAMP(9), l ARRAY<DECIMAL(3,1)>, r ROW<a INT, b ROW<c STRING>>",
    );
    let expected = concat!(
        r#"{"b":true,"i":-7,"n":9223372036854775807,"x":0.1,"d":-0.50,"s":"a\"b\\\n\u0001ä€😀/","y":"AAH/","#,
        r#""day":"2026-01-31","t3":"2026-01-01T00:00:00.123Z","t6":"2026-01-01T00:00:00.123456Z","#,
        r#""t9":"1969-12-31T23:59:59.999999999Z","l":[1.0,null,-2.5],"r":{"a":1,"b":{"c":null}}}"#
    );
    let nulls = r#"{"b":null,"i":null,"n":null,"x":null,"d":null,"s":null,"y":null,"day":null,"t3":null,"t6":null,"t9":null,"l":null,"r":null}"#;
    let batch = batch(&columns, &[expected, "{}"]);
    let encoder = JsonEncoder::new(&columns);
    let bound = encoder.bind(&batch);
    let mut out = b"kept ".to_vec();
    bound.encode(0, &mut out);
    assert_eq!(str::from_utf8(&out).expect("UTF-8"), format!("kept {expected}"));
    out.clear();
    bound.encode(1, &mut out);
    assert_eq!(str::from_utf8(&out).expect("UTF-8"), nulls);
}

#[test]
fn a_double_that_json_cannot_hold_is_null() {
    let columns = columns("x DOUBLE");
    let values: ArrayRef = Arc::new(Float64Array::from(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e21, 1e-7]));
    let batch = RecordBatch::try_new(arrow_schema(&columns), vec![values]).expect("one column");
    let encoder = JsonEncoder::new(&columns);
    let bound = encoder.bind(&batch);
    let mut out = Vec::new();
    (0..5).for_each(|row| bound.encode(row, &mut out));
    assert_eq!(out, br#"{"x":null}{"x":null}{"x":null}{"x":1.0e21}{"x":1.0e-7}"#);
}

#[test]
fn names_are_escaped_and_a_sliced_batch_starts_where_it_starts() {
    let columns = vec![Column { name: "a\"b".into(), ..columns("a ARRAY<ROW<c INT>>").remove(0) }];
    let batch = batch(&columns, &[r#"{"a\"b":[{"c":1}]}"#, r#"{"a\"b":[{"c":2},{"c":3}]}"#]).slice(1, 1);
    let encoder = JsonEncoder::new(&columns);
    let mut out = Vec::new();
    encoder.bind(&batch).encode(0, &mut out);
    assert_eq!(str::from_utf8(&out), Ok(r#"{"a\"b":[{"c":2},{"c":3}]}"#));
}

#[test]
fn a_string_key_is_the_text_of_its_column() {
    for (data_type, json, text) in [
        ("BIGINT", "7", "7"),
        ("STRING", r#""a \"b\"""#, r#"a "b""#),
        ("BOOLEAN", "true", "true"),
        ("DECIMAL(5,2)", "1.5", "1.50"),
        ("DOUBLE", "1.5", "1.5"),
        ("DATE", "\"2026-01-31\"", "2026-01-31"),
        ("TIMESTAMP(3)", "0", "1970-01-01T00:00:00.000Z"),
        ("BYTES", "\"cmF3\"", "raw"),
        ("ARRAY<STRING>", "[\"a\"]", "[\"a\"]"),
    ] {
        let columns = columns(&format!("other INT, k {data_type}"));
        let batch = batch(&columns, &[&format!(r#"{{"k":{json}}}"#), "{}"]);
        let encoder = KeyTextEncoder::new(&columns, &["k".into()], KeyFormat::String).expect("one column");
        let bound = encoder.bind(&batch);
        let mut out = Vec::new();
        assert!(bound.encode(0, &mut out));
        assert_eq!(str::from_utf8(&out), Ok(text), "{data_type}");
        assert!(!bound.encode(1, &mut out), "a null column is no key");
        assert_eq!(out.len(), text.len());
    }
}

#[test]
fn a_json_key_is_an_object_of_its_columns_in_the_order_of_the_key() {
    let columns = columns("a INT, b STRING, c INT");
    let batch = batch(
        &columns,
        &[r#"{"a":1,"b":"x","c":3}"#, r#"{"b":"x"}"#, r#"{"b":"only","c":null,"a":null}"#, r#"{"c":1}"#],
    );
    let encoder = KeyTextEncoder::new(&columns, &["b".into(), "a".into()], KeyFormat::Json).expect("two columns");
    let bound = encoder.bind(&batch);
    let mut out = Vec::new();
    assert!(bound.encode(0, &mut out));
    assert!(bound.encode(1, &mut out));
    assert_eq!(str::from_utf8(&out), Ok(r#"{"b":"x","a":1}{"b":"x","a":null}"#));
    assert!(!bound.encode(3, &mut out), "all of the key's columns are null");
}

#[test]
fn a_key_that_has_no_text_is_refused_when_the_encoder_is_made() {
    let columns = columns("a INT, b INT");
    let new = |key: &[&str], format| {
        let key: Vec<String> = key.iter().map(|k| (*k).to_owned()).collect();
        KeyTextEncoder::new(&columns, &key, format).is_some()
    };
    assert!(new(&["a"], KeyFormat::String));
    assert!(!new(&["a", "b"], KeyFormat::String));
    assert!(!new(&[], KeyFormat::Json));
    assert!(!new(&["c"], KeyFormat::Json));
    assert!(!new(&["a"], KeyFormat::Internal));
}

const ALL: &str = "b BOOLEAN, i INT, n BIGINT, x DOUBLE, d DECIMAL(38,10), s STRING, y BYTES, day DATE, t3 TIMESTAMP(3), \
                   t6 TIMESTAMP(6), t9 TIMESTAMP(9), l ARRAY<ROW<c STRING>>";

/// A row of `ALL`, straight from values: the decoder has no part in making it.
fn build(columns: &[Column], rows: &[Vec<Option<Cell>>]) -> RecordBatch {
    let schema = arrow_schema(columns);
    let mut builders: Vec<_> = schema.fields().iter().map(|f| ColumnBuilder::new(f.data_type(), 0)).collect();
    for row in rows {
        for (builder, cell) in builders.iter_mut().zip(row) {
            let mut reader = Reader::default();
            let mut text = String::new();
            let value = cell.as_ref().map_or(Value::Null, |cell| to_value(cell, &mut reader, &mut text));
            builder.append(value, &text, &reader);
        }
    }
    let arrays = builders.iter_mut().map(ColumnBuilder::take).collect();
    RecordBatch::try_new(schema, arrays).expect("the columns' types")
}

fn to_value(cell: &Cell, reader: &mut Reader, text: &mut String) -> Value {
    let many = |cells: &[Cell], reader: &mut Reader, text: &mut String| {
        let values: Vec<Value> = cells.iter().map(|c| to_value(c, reader, text)).collect();
        let first = reader.reserve(values.len());
        reader.values_mut(first, values.len()).copy_from_slice(&values);
        (first as u32, values.len() as u32)
    };
    match cell {
        Cell::Null => Value::Null,
        Cell::Boolean(v) => Value::Boolean(*v),
        Cell::Integer(v) => Value::Integer(*v),
        Cell::Double(bits) => Value::Double(f64::from_bits(*bits)),
        Cell::Decimal(v) => Value::Decimal(*v),
        Cell::Text(v) => {
            let start = text.len();
            text.push_str(v);
            Value::Text(Span::new(start, text.len()))
        }
        Cell::Bytes(v) => reader.keep_bytes(v),
        Cell::List(cells) => {
            let (first, count) = many(cells, reader, text);
            Value::Array { first, count }
        }
        Cell::Row(cells) => {
            let (first, count) = many(cells, reader, text);
            Value::Row { first, count }
        }
    }
}

fn any_row() -> impl Strategy<Value = Vec<Option<Cell>>> {
    let text = || prop_oneof![any::<String>(), "[ -~]{0,20}", "[\\x00-\\x20\"\\\\]{0,20}"].prop_map(Cell::Text);
    let decimal = (any::<i128>(), 0u32..38).prop_map(|(v, n)| v % 10i128.pow(n + 1)).prop_map(Cell::Decimal);
    let item =
        prop_oneof![Just(Cell::Null), text().prop_map(|t| Cell::Row(vec![t])), Just(Cell::Row(vec![Cell::Null]))];
    let integer = || any::<i64>().prop_map(Cell::Integer);
    let small = || any::<i32>().prop_map(|v| Cell::Integer(v.into()));
    let cells: [BoxedStrategy<Cell>; 12] = [
        any::<bool>().prop_map(Cell::Boolean).boxed(),
        small().boxed(),
        integer().boxed(),
        any::<f64>().prop_filter("finite", |v| v.is_finite()).prop_map(|v| Cell::Double(v.to_bits())).boxed(),
        decimal.boxed(),
        text().boxed(),
        any::<Vec<u8>>().prop_map(Cell::Bytes).boxed(),
        small().boxed(),
        integer().boxed(),
        integer().boxed(),
        integer().boxed(),
        prop::collection::vec(item, 0..4).prop_map(Cell::List).boxed(),
    ];
    cells.into_iter().map(|cell| prop::option::weighted(0.9, cell)).collect::<Vec<_>>()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn what_is_written_reads_back_as_itself(rows in prop::collection::vec(any_row(), 1..4)) {
        let columns = columns(ALL);
        let batch = build(&columns, &rows);
        let encoder = JsonEncoder::new(&columns);
        let bound = encoder.bind(&batch);
        let mut decoder = RecordDecoder::new(&stream(ALL));
        for row in 0..batch.num_rows() {
            let mut out = Vec::new();
            bound.encode(row, &mut out);
            prop_assert!(serde_json::from_slice::<serde_json::Value>(&out).is_ok());
            decoder.push(None, Some(&out)).expect("our own record");
        }
        let read = decoder.finish().batch;
        for (row, expected) in rows.iter().enumerate() {
            let expected: Vec<Cell> = expected.iter().map(|c| c.clone().unwrap_or(Cell::Null)).collect();
            prop_assert_eq!(cells(&read, row), expected);
        }
    }
}

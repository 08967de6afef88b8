use arrow::array::{Array, ArrayRef};
use millrace_core::schema::{Column, DataType};
use proptest::prelude::*;

use super::values::{Row, Value, arrays, columns, row, table};
use crate::row::{RowCodecError, RowDecoder, RowEncoder, RowTypeError};

fn encode(columns: &[Column], rows: &[Row]) -> Vec<Vec<u8>> {
    let arrays = arrays(columns, rows);
    let encoder = RowEncoder::new(columns);
    let bound = encoder.bind(&arrays).expect("arrays fit");
    let encode = |row| {
        let mut bytes = Vec::new();
        bound.encode(row, &mut bytes);
        bytes
    };
    (0..rows.len()).map(encode).collect()
}

fn decode(stored: &[Column], wanted: &[Column], rows: &[Vec<u8>]) -> Vec<ArrayRef> {
    let mut decoder = RowDecoder::new(stored, wanted).expect("columns fit");
    rows.iter().for_each(|row| decoder.push(row).expect("row is whole"));
    assert_eq!(decoder.rows(), rows.len());
    decoder.finish()
}

fn column(name: &str, data_type: &str) -> Column {
    let (data_type, nullable) = match data_type.strip_suffix(" NOT NULL") {
        Some(data_type) => (data_type, false),
        None => (data_type, true),
    };
    Column { name: name.into(), data_type: data_type.parse().expect(data_type), nullable }
}

fn text(value: &str) -> Option<Value> {
    Some(Value::String(value.into()))
}

/// Columns with rows, and which of the columns are wanted, in another order.
fn projected() -> impl Strategy<Value = (Vec<Column>, Vec<Row>, Vec<usize>)> {
    table().prop_flat_map(|(columns, rows)| {
        let indices: Vec<usize> = (0..columns.len()).collect();
        let wanted = proptest::sample::subsequence(indices, 0..=columns.len()).prop_shuffle();
        (Just(columns), Just(rows), wanted)
    })
}

proptest! {
    #[test]
    fn a_row_reads_back_as_it_was_written((columns, rows) in table()) {
        let encoded = encode(&columns, &rows);
        prop_assert_eq!(decode(&columns, &columns, &encoded), arrays(&columns, &rows));
    }

    #[test]
    fn any_part_of_the_columns_can_be_read((columns, rows, wanted) in projected()) {
        let encoded = encode(&columns, &rows);
        let wanted_columns: Vec<Column> = wanted.iter().map(|i| columns[*i].clone()).collect();
        let all = arrays(&columns, &rows);
        let expected: Vec<ArrayRef> = wanted.iter().map(|i| all[*i].clone()).collect();
        prop_assert_eq!(decode(&columns, &wanted_columns, &encoded), expected);
    }

    #[test]
    fn a_slice_of_a_batch_is_written_like_the_rows_alone((columns, rows) in table(), at in any::<proptest::sample::Index>()) {
        let whole = encode(&columns, &rows);
        let offset = at.index(rows.len() + 1);
        let sliced: Vec<ArrayRef> =
            arrays(&columns, &rows).iter().map(|a| a.slice(offset, rows.len() - offset)).collect();
        let encoder = RowEncoder::new(&columns);
        let bound = encoder.bind(&sliced).expect("arrays fit");
        for (row, expected) in whole[offset..].iter().enumerate() {
            let mut bytes = Vec::new();
            bound.encode(row, &mut bytes);
            prop_assert_eq!(&bytes, expected);
        }
    }

    #[test]
    fn a_row_that_is_cut_short_is_an_error_and_leaves_no_trace((columns, rows) in table()) {
        let encoded = encode(&columns, &rows);
        let mut decoder = RowDecoder::new(&columns, &columns).expect("columns fit");
        for bytes in &encoded {
            for cut in 0..bytes.len() {
                prop_assert!(decoder.push(&bytes[..cut]).is_err(), "{} of {:?}", cut, bytes);
            }
            decoder.push(bytes).expect("row is whole");
            let longer = [bytes.as_slice(), &[0]].concat();
            prop_assert_eq!(decoder.push(&longer), Err(RowCodecError::Trailing(1)));
        }
        prop_assert_eq!(decoder.finish(), arrays(&columns, &rows));
    }

    #[test]
    fn bytes_that_are_not_a_row_never_panic(columns in columns(), bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        let mut decoder = RowDecoder::new(&columns, &columns).expect("columns fit");
        let read = decoder.push(&bytes).is_ok();
        let batch = decoder.finish();
        prop_assert!(batch.iter().all(|array| array.len() == usize::from(read)));
    }

    #[test]
    fn bytes_have_one_meaning_and_values_one_encoding((columns, rows) in table(), flip in any::<(u16, u8)>()) {
        let Some(first) = encode(&columns, &rows).into_iter().next() else { return Ok(()) };
        let mut damaged = first;
        let at = usize::from(flip.0) % damaged.len();
        damaged[at] ^= flip.1;
        let mut decoder = RowDecoder::new(&columns, &columns).expect("columns fit");
        if decoder.push(&damaged).is_ok() {
            let arrays = decoder.finish();
            let encoder = RowEncoder::new(&columns);
            let bound = encoder.bind(&arrays).expect("arrays fit");
            let mut again = Vec::new();
            bound.encode(0, &mut again);
            prop_assert_eq!(again, damaged);
        }
    }

    #[test]
    fn null_rows_stand_where_they_were_pushed((columns, row) in columns().prop_flat_map(|c| { let r = row(&c); (Just(c), r) })) {
        let encoded = encode(&columns, std::slice::from_ref(&row));
        let mut decoder = RowDecoder::new(&columns, &columns).expect("columns fit");
        decoder.push_null();
        decoder.push(&encoded[0]).expect("row is whole");
        decoder.push_null();
        let nulls = vec![None; columns.len()];
        prop_assert_eq!(decoder.finish(), arrays(&columns, &[nulls.clone(), row, nulls]));
        prop_assert_eq!(decoder.rows(), 0);
    }
}

#[test]
fn the_bytes_of_a_row_are_the_documented_ones() {
    let columns = [
        column("a", "INT"),
        column("b", "STRING"),
        column("c", "DECIMAL(5,2)"),
        column("d", "ARRAY<BOOLEAN>"),
        column("e", "ROW<x BIGINT, y BYTES>"),
    ];
    let row = vec![
        Some(Value::Int(-2)),
        text("hé"),
        None,
        Some(Value::Array(vec![Some(Value::Boolean(true)), None])),
        Some(Value::Row(vec![None, Some(Value::Bytes(vec![0xaa]))])),
    ];
    let expected = [&[0b00100][..], &[0xfe, 0xff, 0xff, 0xff], &[3, b'h', 0xc3, 0xa9], &[2, 0b10, 1], &[0b01, 1, 0xaa]];
    assert_eq!(encode(&columns, &[row]), [expected.concat()]);
}

#[test]
fn a_column_that_was_added_later_is_null_and_a_widened_one_keeps_its_value() {
    let stored = [column("id", "INT NOT NULL"), column("gone", "ARRAY<STRING>"), column("at", "ROW<a INT, b STRING>")];
    let wanted = [column("tier", "STRING"), column("at", "ROW<c DOUBLE, a BIGINT>"), column("id", "BIGINT NOT NULL")];
    let gone = Some(Value::Array(vec![text("x"), None]));
    let rows = [
        vec![Some(Value::Int(-7)), gone, Some(Value::Row(vec![Some(Value::Int(5)), text("y")]))],
        vec![Some(Value::Int(8)), None, None],
    ];
    let expected = [
        vec![None, Some(Value::Row(vec![None, Some(Value::Bigint(5))])), Some(Value::Bigint(-7))],
        vec![None, None, Some(Value::Bigint(8))],
    ];
    assert_eq!(decode(&stored, &wanted, &encode(&stored, &rows)), arrays(&wanted, &expected));
}

#[test]
fn columns_that_cannot_be_read_as_wanted_are_refused() {
    let refused = |stored: &str, wanted: &str| {
        RowDecoder::new(&[column("a", stored)], &[column("a", wanted)]).expect_err("must be refused")
    };
    let incompatible = |stored: &str, wanted: &str| RowTypeError::Incompatible {
        column: "a".into(),
        stored: stored.parse().expect(stored),
        wanted: wanted.parse().expect(wanted),
    };
    for (stored, wanted) in [("BIGINT", "INT"), ("TIMESTAMP(3)", "TIMESTAMP(6)"), ("DECIMAL(9,2)", "DECIMAL(9,3)")] {
        assert_eq!(refused(stored, wanted), incompatible(stored, wanted));
    }
    assert_eq!(refused("ARRAY<STRING>", "ARRAY<INT>"), incompatible("STRING", "INT"));
    assert_eq!(refused("INT", "INT NOT NULL"), RowTypeError::Required("a".into()));
    let added = RowDecoder::new(&[], &[column("a", "INT NOT NULL")]).expect_err("must be refused");
    assert_eq!(added, RowTypeError::Required("a".into()));
    assert_eq!(refused("ROW<x INT>", "ROW<x INT, y INT NOT NULL>"), RowTypeError::Required("y".into()));
}

#[test]
fn a_null_where_a_field_is_not_null_is_an_error() {
    let columns = [column("a", "ROW<x INT NOT NULL>")];
    let mut decoder = RowDecoder::new(&columns, &columns).expect("columns fit");
    assert_eq!(decoder.push(&[0, 1]), Err(RowCodecError::RequiredField));
    decoder.push(&[0, 0, 1, 0, 0, 0]).expect("row is whole");
    assert_eq!(decoder.finish(), arrays(&columns, &[vec![Some(Value::Row(vec![Some(Value::Int(1))]))]]));
}

#[test]
fn each_kind_of_damage_has_its_name() {
    let error = |data_type: &str, bytes: &[u8]| {
        let columns = [column("a", data_type)];
        RowDecoder::new(&columns, &columns).expect("columns fit").push(bytes).expect_err("must be refused")
    };
    assert_eq!(error("BOOLEAN", &[0, 2]), RowCodecError::Boolean(2));
    assert_eq!(error("INT", &[0, 1, 2]), RowCodecError::Truncated { needed: 4, left: 2 });
    assert_eq!(error("STRING", &[0, 1, 0xff]), RowCodecError::Utf8);
    assert_eq!(error("INT", &[2]), RowCodecError::Bitmap);
    assert_eq!(error("BYTES", &[0, 0x80, 0]), RowCodecError::Length);
    assert_eq!(error("BYTES", &[&[0][..], &[0xff; 9], &[2]].concat()), RowCodecError::Length);
    let count = [0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    assert!(matches!(error("ARRAY<INT>", &count), RowCodecError::Truncated { left: 0, .. }));
}

#[test]
fn arrays_of_other_types_are_refused() {
    let encoder = RowEncoder::new(&[column("a", "TIMESTAMP(3)")]);
    let wrong = arrays(&[column("a", "TIMESTAMP(6)")], &[vec![None]]);
    assert_eq!(
        encoder.bind(&wrong).expect_err("must be refused"),
        RowTypeError::Array { expected: DataType::Timestamp(3), found: wrong[0].data_type().clone() }
    );
    assert_eq!(encoder.bind(&[]).expect_err("must be refused"), RowTypeError::Columns { expected: 1, found: 0 });
}

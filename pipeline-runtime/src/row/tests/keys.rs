use std::cmp::Ordering;

use millrace_core::schema::{Column, DataType};
use proptest::collection::vec;
use proptest::prelude::*;

use super::values::{Row, Value, array, arrays, scalar_type, value};
use crate::row::key::{from_ordered_i64, ordered_i64};
use crate::row::{KeyEncoder, RowTypeError};

fn columns(types: &[DataType]) -> Vec<Column> {
    let column = |t: &DataType| Column { name: "k".into(), data_type: t.clone(), nullable: true };
    types.iter().map(column).collect()
}

fn keys(types: &[DataType], rows: &[Row]) -> Vec<Option<Vec<u8>>> {
    let arrays = arrays(&columns(types), rows);
    let encoder = KeyEncoder::new(types).expect("types have an order");
    let bound = encoder.bind(&arrays).expect("arrays fit");
    let encode = |row| {
        let mut bytes = vec![0xee];
        let whole = bound.encode(row, &mut bytes);
        assert!(whole || bytes == [0xee], "a null key must append nothing");
        whole.then(|| bytes[1..].to_vec())
    };
    (0..rows.len()).map(encode).collect()
}

fn compare(left: &Value, right: &Value) -> Ordering {
    match (left, right) {
        (Value::Boolean(l), Value::Boolean(r)) => l.cmp(r),
        (Value::Int(l), Value::Int(r)) => l.cmp(r),
        (Value::Bigint(l), Value::Bigint(r)) => l.cmp(r),
        (Value::Double(l), Value::Double(r)) => l.partial_cmp(r).expect("no NaN is generated"),
        (Value::Decimal(l), Value::Decimal(r)) => l.cmp(r),
        (Value::String(l), Value::String(r)) => l.cmp(r),
        (Value::Bytes(l), Value::Bytes(r)) => l.cmp(r),
        other => panic!("{other:?} are not of one type"),
    }
}

fn rows_of(types: Vec<DataType>) -> impl Strategy<Value = (Vec<DataType>, Vec<Row>)> {
    let row: Vec<_> = types.iter().map(|t| value(t).prop_map(Some)).collect();
    (Just(types), vec(row, 2..12))
}

proptest! {
    #[test]
    fn the_order_of_keys_is_the_order_of_values((types, rows) in vec(scalar_type(), 1..4).prop_flat_map(rows_of)) {
        let keys = keys(&types, &rows);
        for (left, left_key) in rows.iter().zip(&keys) {
            for (right, right_key) in rows.iter().zip(&keys) {
                let pairs = left.iter().flatten().zip(right.iter().flatten());
                let expected = pairs.map(|(l, r)| compare(l, r)).find(|o| o.is_ne()).unwrap_or(Ordering::Equal);
                prop_assert_eq!(left_key.cmp(right_key), expected, "{:?} and {:?}", left, right);
            }
        }
    }

    #[test]
    fn no_key_is_the_beginning_of_another((types, rows) in vec(scalar_type(), 1..4).prop_flat_map(rows_of)) {
        let keys: Vec<_> = keys(&types, &rows).into_iter().flatten().collect();
        for left in &keys {
            for right in &keys {
                prop_assert!(left == right || !right.starts_with(left));
            }
        }
    }

    #[test]
    fn int_meets_bigint(number in any::<i32>()) {
        let int = keys(&[DataType::Int], &[vec![Some(Value::Int(number))]]);
        let bigint = keys(&[DataType::Bigint], &[vec![Some(Value::Bigint(i64::from(number)))]]);
        prop_assert_eq!(int, bigint);
    }

    #[test]
    fn an_ordered_number_reads_back(number in any::<i64>()) {
        prop_assert_eq!(from_ordered_i64(ordered_i64(number)), number);
    }
}

#[test]
fn a_key_with_a_null_part_is_no_key() {
    let types = [DataType::Bigint, DataType::String];
    let one = Some(Value::Bigint(1));
    let text = Some(Value::String("a".into()));
    let found = keys(&types, &[vec![one.clone(), None], vec![None, text.clone()], vec![one, text]]);
    let whole = [&[0x80, 0, 0, 0, 0, 0, 0, 1][..], b"a\0\0"].concat();
    assert_eq!(found, [None, None, Some(whole)]);
}

#[test]
fn doubles_that_are_equal_have_one_key_and_nan_is_above_all() {
    let values = [f64::NEG_INFINITY, -1.0, -f64::MIN_POSITIVE, 0.0, f64::MIN_POSITIVE, f64::INFINITY, f64::NAN];
    let rows: Vec<Row> = values.iter().map(|v| vec![Some(Value::Double(*v))]).collect();
    let found = keys(&[DataType::Double], &rows);
    assert!(found.is_sorted_by(|a, b| a < b), "{found:?}");
    let twins = [0.0, -0.0, f64::NAN, -f64::NAN].map(|v| vec![Some(Value::Double(v))]);
    let found = keys(&[DataType::Double], &twins);
    assert_eq!((&found[0], &found[2]), (&found[1], &found[3]));
}

#[test]
fn types_without_an_order_are_refused() {
    let list = DataType::Array(Box::new(DataType::Int));
    assert_eq!(KeyEncoder::new(std::slice::from_ref(&list)).expect_err("must be refused"), RowTypeError::Key(list));
    let encoder = KeyEncoder::new(&[DataType::Int]).expect("INT has an order");
    assert!(encoder.bind(&[array(&DataType::String, &[None])]).is_err());
}

//! The outcome table of `docs/schema-changes.md`, a test for each line.

use super::support::*;
use crate::format::{ErrorCode, Pushed, RecordDecoder};

#[test]
fn a_field_that_no_column_names_is_skipped_whatever_it_holds() {
    let source = stream("id BIGINT, name STRING");
    assert_eq!(
        row(&source, r#"{"new":{"deep":[1,{"x":"}"}]},"id":1,"name":"a","more":-1e400}"#),
        r#"+{"id":1,"name":"a"}"#
    );
}

#[test]
fn a_missing_field_is_null_where_the_column_allows_it() {
    let source = stream("id BIGINT NOT NULL, name STRING");
    assert_eq!(row(&source, r#"{"id":1}"#), r#"+{"id":1,"name":null}"#);
    assert_eq!(error(&source, r#"{"name":"a"}"#), ErrorCode::MissingField);
}

#[test]
fn a_widened_number_is_read_while_it_fits_and_refused_beyond() {
    let source = stream("n INT");
    assert_eq!(row(&source, r#"{"n":2147483647}"#), r#"+{"n":2147483647}"#);
    assert_eq!(error(&source, r#"{"n":2147483648}"#), ErrorCode::OutOfRange);
    let source = stream("d DECIMAL(5,2)");
    assert_eq!(row(&source, r#"{"d":1.500}"#), r#"+{"d":1.50}"#);
    assert_eq!(error(&source, r#"{"d":1.505}"#), ErrorCode::PrecisionLoss);
    assert_eq!(error(&source, r#"{"d":1000}"#), ErrorCode::OutOfRange);
}

#[test]
fn a_narrowed_or_integral_number_is_read() {
    assert_eq!(row(&stream("d DOUBLE"), r#"{"d":3}"#), r#"+{"d":3.0}"#);
    assert_eq!(row(&stream("n BIGINT"), r#"{"n":3.0}"#), r#"+{"n":3}"#);
    assert_eq!(error(&stream("n BIGINT"), r#"{"n":3.5}"#), ErrorCode::PrecisionLoss);
}

#[test]
fn more_digits_of_a_second_are_cut_off() {
    let source = stream("t TIMESTAMP(3)");
    assert_eq!(row(&source, r#"{"t":"2026-01-01T00:00:00.123456Z"}"#), r#"+{"t":"2026-01-01T00:00:00.123Z"}"#);
}

#[test]
fn a_number_that_replaces_a_string_is_its_text_and_a_string_that_replaces_a_number_is_refused() {
    assert_eq!(row(&stream("s STRING"), r#"{"s":7}"#), r#"+{"s":"7"}"#);
    assert_eq!(error(&stream("n BIGINT"), r#"{"n":"7"}"#), ErrorCode::WrongType);
}

#[test]
fn another_kind_of_value_is_refused() {
    let source = stream("s STRING, r ROW<a INT>, l ARRAY<INT>");
    for changed in [r#"{"s":true}"#, r#"{"s":{}}"#, r#"{"r":1}"#, r#"{"r":[]}"#, r#"{"l":1}"#, r#"{"l":{"a":1}}"#] {
        assert_eq!(error(&source, changed), ErrorCode::WrongType, "{changed}");
    }
}

#[test]
fn a_renamed_field_is_a_missing_and_an_unknown_one() {
    let source = stream("name STRING");
    assert_eq!(row(&source, r#"{"full_name":"a"}"#), r#"+{"name":null}"#);
    assert_eq!(row(&source, r#"{"Name":"a"}"#), r#"+{"name":null}"#);
}

const DDL: &str = r#"{"source":{"file":"b.1"},"ts_ms":1,"databaseName":"shop","schemaName":null,
    "ddl":"ALTER TABLE customers ADD COLUMN vip BOOLEAN","tableChanges":[]}"#;

#[test]
fn case_60_the_same_added_column_twice_changes_nothing_and_its_type_is_checked_on_the_rows() {
    let source = debezium("id BIGINT, name STRING, vip BOOLEAN", &["id"]);
    let mut decoder = RecordDecoder::new(&source);
    for _shard in 0..2 {
        assert_eq!(decoder.push(None, Some(DDL.as_bytes())), Ok(Pushed::Ignored("schema change")));
    }
    // Rows from before, from after, and from a shard that is still behind.
    for value in [
        r#"{"before":null,"after":{"id":1,"name":"a"},"op":"c"}"#,
        r#"{"before":null,"after":{"id":1,"name":"a","vip":true},"op":"u"}"#,
        r#"{"before":null,"after":{"id":2,"name":"b"},"op":"c"}"#,
    ] {
        assert_eq!(decoder.push(None, Some(value.as_bytes())), Ok(Pushed::Rows(1)));
    }
    let conflict = br#"{"before":null,"after":{"id":3,"name":"c","vip":"yes"},"op":"c"}"#;
    assert_eq!(decoder.push(None, Some(conflict)).expect_err("a type conflict").code, ErrorCode::WrongType);
    assert_eq!(
        lines(&source, &decoder.finish()),
        [
            r#"+{"id":1,"name":"a","vip":null}"#,
            r#"+{"id":1,"name":"a","vip":true}"#,
            r#"+{"id":2,"name":"b","vip":null}"#,
        ]
    );
}

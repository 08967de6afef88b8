//! Plain JSON, record by record.

use millrace_core::plan::KeyFormat;

use super::support::*;
use crate::format::lexer::plain_len;
use crate::format::{ErrorCode, Pushed, RecordDecoder};

/// Reads one value of a type and writes it back.
fn value(data_type: &str, json: &str) -> Result<String, ErrorCode> {
    let source = stream(&format!("v {data_type}"));
    let mut decoder = RecordDecoder::new(&source);
    let record = format!(r#"{{"v":{json}}}"#);
    decoder.push(None, Some(record.as_bytes())).map_err(|e| e.code)?;
    let line = lines(&source, &decoder.finish()).remove(0);
    Ok(line.strip_prefix(r#"+{"v":"#).and_then(|l| l.strip_suffix('}')).expect("one column").to_owned())
}

fn check(data_type: &str, expected: &[(&str, Result<&str, ErrorCode>)]) {
    for (json, expected) in expected {
        assert_eq!(value(data_type, json), expected.map(str::to_owned), "{data_type} from {json}");
    }
}

#[test]
fn integers_are_read_when_they_are_integers_in_range() {
    check(
        "BIGINT",
        &[
            ("0", Ok("0")),
            ("-0", Ok("0")),
            ("7", Ok("7")),
            ("9223372036854775807", Ok("9223372036854775807")),
            ("-9223372036854775808", Ok("-9223372036854775808")),
            ("9223372036854775808", Err(ErrorCode::OutOfRange)),
            ("1e3", Ok("1000")),
            ("12.5e1", Ok("125")),
            ("2.0", Ok("2")),
            ("100e-2", Ok("1")),
            ("1.5", Err(ErrorCode::PrecisionLoss)),
            ("1e-1", Err(ErrorCode::PrecisionLoss)),
            ("1e99", Err(ErrorCode::OutOfRange)),
            ("1e99999999999999999999", Err(ErrorCode::OutOfRange)),
            ("0e99999999999999999999", Ok("0")),
            ("\"7\"", Err(ErrorCode::WrongType)),
            ("true", Err(ErrorCode::WrongType)),
            ("null", Ok("null")),
        ],
    );
    check(
        "INT",
        &[
            ("2147483647", Ok("2147483647")),
            ("-2147483648", Ok("-2147483648")),
            ("2147483648", Err(ErrorCode::OutOfRange)),
        ],
    );
}

#[test]
fn decimals_are_exact() {
    check(
        "DECIMAL(12,2)",
        &[
            ("12.5", Ok("12.50")),
            ("\"12.5\"", Ok("12.50")),
            ("-0.05", Ok("-0.05")),
            ("1.500", Ok("1.50")),
            ("1.505", Err(ErrorCode::PrecisionLoss)),
            ("0.1e1", Ok("1.00")),
            ("\"1E+3\"", Ok("1000.00")),
            ("9999999999.99", Ok("9999999999.99")),
            ("10000000000", Err(ErrorCode::OutOfRange)),
            ("-0", Ok("0.00")),
            ("0.00000000000000000000000000000000000000000000000000", Ok("0.00")),
            ("1000000000000000000000e-20", Ok("10.00")),
            ("\"ten\"", Err(ErrorCode::BadDecimal)),
            ("\"\"", Err(ErrorCode::BadDecimal)),
            ("\" 1\"", Err(ErrorCode::BadDecimal)),
            ("\"1.2.3\"", Err(ErrorCode::BadDecimal)),
            ("\"NaN\"", Err(ErrorCode::BadDecimal)),
            ("true", Err(ErrorCode::WrongType)),
            ("{\"scale\":1,\"value\":\"aQ==\"}", Err(ErrorCode::WrongType)),
        ],
    );
    // 0.1 + 0.2 as a double is 0.30000000000000004: these digits are kept, none are made up.
    check("DECIMAL(38,17)", &[("0.30000000000000004", Ok("0.30000000000000004"))]);
    let largest = "9".repeat(38);
    check(
        "DECIMAL(38,0)",
        &[
            (&largest, Ok(&largest)),
            ("\"1e37\"", Ok(&format!("1{}", "0".repeat(37)))),
            ("1e38", Err(ErrorCode::OutOfRange)),
        ],
    );
    check("DECIMAL(38,38)", &[("0.5", Ok(&format!("0.5{}", "0".repeat(37)))), ("1", Err(ErrorCode::OutOfRange))]);
}

#[test]
fn doubles_are_the_nearest_and_never_infinite() {
    check(
        "DOUBLE",
        &[
            ("1", Ok("1.0")),
            ("-0", Ok("-0.0")),
            ("-0.0", Ok("-0.0")),
            ("0.1", Ok("0.1")),
            ("1234567890123.5", Ok("1234567890123.5")),
            ("9007199254740993", Ok("9007199254740992.0")),
            ("1e308", Ok("1.0e308")),
            ("1e309", Err(ErrorCode::OutOfRange)),
            ("1e-400", Ok("0.0")),
            ("5e-324", Ok("5.0e-324")),
            ("\"1\"", Err(ErrorCode::WrongType)),
        ],
    );
}

#[test]
fn a_number_in_a_string_column_is_its_own_text() {
    check(
        "STRING",
        &[
            ("7", Ok("\"7\"")),
            ("1.50", Ok("\"1.50\"")),
            ("-1E5", Ok("\"-1E5\"")),
            ("true", Err(ErrorCode::WrongType)),
            ("{}", Err(ErrorCode::WrongType)),
            ("[]", Err(ErrorCode::WrongType)),
        ],
    );
}

#[test]
fn strings_are_unescaped_to_unicode() {
    check(
        "STRING",
        &[
            ("\"\"", Ok("\"\"")),
            (r#""a\"b\\c\/d""#, Ok(r#""a\"b\\c/d""#)),
            (r#""\b\f\n\r\t\u0001""#, Ok(r#""\b\f\n\r\t\u0001""#)),
            (r#""\u00e4\u20AC\ud83d\ude00""#, Ok("\"ä€😀\"")),
            ("\"ä€😀 and more text behind\"", Ok("\"ä€😀 and more text behind\"")),
            (r#""\ud83d""#, Err(ErrorCode::BadUtf8)),
            (r#""\ud83d\u0041""#, Err(ErrorCode::BadUtf8)),
            (r#""\ude00\ud83d""#, Err(ErrorCode::BadUtf8)),
            (r#""\ud83d\ue000""#, Err(ErrorCode::BadUtf8)),
            (r#""\ud83d\n""#, Err(ErrorCode::BadUtf8)),
        ],
    );
}

#[test]
fn booleans_are_true_or_false_and_nothing_else() {
    check(
        "BOOLEAN",
        &[
            ("true", Ok("true")),
            ("false", Ok("false")),
            ("0", Err(ErrorCode::WrongType)),
            ("\"true\"", Err(ErrorCode::WrongType)),
        ],
    );
}

#[test]
fn instants_are_read_in_iso_and_sql_form_and_as_milliseconds() {
    check(
        "TIMESTAMP(3)",
        &[
            ("\"2026-01-01T00:00:00.123Z\"", Ok("\"2026-01-01T00:00:00.123Z\"")),
            ("\"2026-01-01 00:00:00.123\"", Ok("\"2026-01-01T00:00:00.123Z\"")),
            ("\"2026-01-01t00:00:00z\"", Ok("\"2026-01-01T00:00:00.000Z\"")),
            ("\"2026-01-01T00:00Z\"", Ok("\"2026-01-01T00:00:00.000Z\"")),
            ("\"2026-01-01T00:00:00+02:00\"", Ok("\"2025-12-31T22:00:00.000Z\"")),
            ("\"2026-01-01 00:00:00-0530\"", Ok("\"2026-01-01T05:30:00.000Z\"")),
            ("\"2026-01-01 00:00:00+00\"", Ok("\"2026-01-01T00:00:00.000Z\"")),
            ("\"2024-02-29T12:00:00.9999999999Z\"", Ok("\"2024-02-29T12:00:00.999Z\"")),
            ("\"1969-12-31T23:59:59.9999Z\"", Ok("\"1969-12-31T23:59:59.999Z\"")),
            ("\"+12026-01-01T00:00:00Z\"", Ok("\"+012026-01-01T00:00:00.000Z\"")),
            ("\"2026\\u002d01-01T00:00:00Z\"", Ok("\"2026-01-01T00:00:00.000Z\"")),
            ("1767225600123", Ok("\"2026-01-01T00:00:00.123Z\"")),
            ("1767225600123.9", Ok("\"2026-01-01T00:00:00.123Z\"")),
            ("1.767225600123e12", Ok("\"2026-01-01T00:00:00.123Z\"")),
            ("-1", Ok("\"1969-12-31T23:59:59.999Z\"")),
            ("-0.5", Ok("\"1969-12-31T23:59:59.999Z\"")),
            ("1e30", Err(ErrorCode::OutOfRange)),
            ("\"2026-02-29T00:00:00Z\"", Err(ErrorCode::BadTimestamp)),
            ("\"2026-13-01T00:00:00Z\"", Err(ErrorCode::BadTimestamp)),
            ("\"2026-01-01T24:00:00Z\"", Err(ErrorCode::BadTimestamp)),
            ("\"2026-12-31T23:59:60Z\"", Err(ErrorCode::BadTimestamp)),
            ("\"2026-01-01\"", Err(ErrorCode::BadTimestamp)),
            ("\"2026-01-01T00:00:00.Z\"", Err(ErrorCode::BadTimestamp)),
            ("\"2026-01-01T00:00:00 UTC\"", Err(ErrorCode::BadTimestamp)),
            ("\"\"", Err(ErrorCode::BadTimestamp)),
            ("true", Err(ErrorCode::WrongType)),
        ],
    );
    check("TIMESTAMP(6)", &[("1767225600123", Ok("\"2026-01-01T00:00:00.123000Z\""))]);
    check(
        "TIMESTAMP(9)",
        &[
            ("\"2026-01-01T00:00:00.123456789Z\"", Ok("\"2026-01-01T00:00:00.123456789Z\"")),
            ("1767225600123", Ok("\"2026-01-01T00:00:00.123000000Z\"")),
            ("\"2300-01-01T00:00:00Z\"", Err(ErrorCode::OutOfRange)),
        ],
    );
}

#[test]
fn dates_are_text_only() {
    check(
        "DATE",
        &[
            ("\"2026-01-31\"", Ok("\"2026-01-31\"")),
            ("\"0000-03-01\"", Ok("\"0000-03-01\"")),
            ("\"-0001-12-31\"", Ok("\"-000001-12-31\"")),
            ("\"2026-1-31\"", Err(ErrorCode::BadDate)),
            ("\"2026-01-31T00:00:00Z\"", Err(ErrorCode::BadDate)),
            ("20484", Err(ErrorCode::WrongType)),
        ],
    );
}

#[test]
fn bytes_are_base64_with_or_without_padding() {
    check(
        "BYTES",
        &[
            ("\"AAH/\"", Ok("\"AAH/\"")),
            ("\"AAH\\/\"", Ok("\"AAH/\"")),
            ("\"AA==\"", Ok("\"AA==\"")),
            ("\"AA\"", Ok("\"AA==\"")),
            ("\"\"", Ok("\"\"")),
            ("\"A\"", Err(ErrorCode::BadBase64)),
            ("\"a-b_\"", Err(ErrorCode::BadBase64)),
            ("5", Err(ErrorCode::WrongType)),
        ],
    );
}

#[test]
fn arrays_and_rows_nest() {
    check(
        "ARRAY<ROW<a INT NOT NULL, b ARRAY<STRING>>>",
        &[
            (
                r#"[{"b":["x",null,"y"],"a":1},{"a":2},null]"#,
                Ok(r#"[{"a":1,"b":["x",null,"y"]},{"a":2,"b":null},null]"#),
            ),
            ("[]", Ok("[]")),
            ("[[]]", Err(ErrorCode::WrongType)),
            (r#"[{"a":1},{"b":[]}]"#, Err(ErrorCode::MissingField)),
            (r#"[{"a":"x"}]"#, Err(ErrorCode::WrongType)),
            ("{}", Err(ErrorCode::WrongType)),
        ],
    );
}

#[test]
fn a_mistake_names_the_innermost_field() {
    let source = stream("id BIGINT, who ROW<mails ARRAY<ROW<at TIMESTAMP(3)>>>");
    let mut decoder = RecordDecoder::new(&source);
    let error = decoder.push(None, Some(br#"{"who":{"mails":[{"at":"yesterday"}]}}"#)).expect_err("not an instant");
    assert_eq!(
        error.to_string(),
        "BadTimestamp: column 'who.mails[].at' TIMESTAMP(3): not an instant in ISO-8601 or SQL form"
    );
}

#[test]
fn the_last_of_two_equal_names_wins_even_over_a_wrong_type() {
    let source = stream("a BIGINT NOT NULL, b ROW<c INT>");
    assert_eq!(row(&source, r#"{"a":"x","b":{"c":true},"a":2,"b":{"c":3,"c":4}}"#), r#"+{"a":2,"b":{"c":4}}"#);
    assert_eq!(error(&source, r#"{"a":2,"a":null}"#), ErrorCode::MissingField);
    assert_eq!(row(&source, r#"{"a":1,"\u0061":2}"#), r#"+{"a":2,"b":null}"#);
}

#[test]
fn broken_json_is_refused_wherever_it_is() {
    let source = stream("a BIGINT");
    for broken in [
        "",
        " ",
        "{",
        r#"{"a":1"#,
        r#"{"a":1}}"#,
        r#"{"a":1} x"#,
        r#"{"a":1,}"#,
        r#"{,"a":1}"#,
        r#"{"a" 1}"#,
        r#"{a:1}"#,
        r#"{'a':1}"#,
        r#"{"a":01}"#,
        r#"{"a":+1}"#,
        r#"{"a":1.}"#,
        r#"{"a":.5}"#,
        r#"{"a":1e}"#,
        r#"{"a":-}"#,
        r#"{"a":NaN}"#,
        r#"{"a":nul}"#,
        r#"{"x":tru}"#,
        r#"{"x":[1,]}"#,
        r#"{"x":[1 2]}"#,
        r#"{"x":[1}}"#,
        r#"{"x":{"y":1]}"#,
        r#"{"x":{"y"}}"#,
        r#"{"x":{1:1}}"#,
        r#"{"x":"\x"}"#,
        r#"{"x":"\u12g4"}"#,
        r#"{"x":"\u12"#,
        "{\"x\":\"line\nbreak\"}",
        "{\"x\":\"eight letters and a tab\t\"}",
        "\u{feff}{}",
        "[1",
    ] {
        assert_eq!(error(&source, broken), ErrorCode::BadJson, "{broken}");
    }
    for other in ["[]", "1", "null", "\"text\"", " true "] {
        assert_eq!(error(&source, other), ErrorCode::WrongType, "{other}");
    }
    assert_eq!(row(&source, " \n{ \"a\" :\t1\r, \"x\" : [ { } , [ ] , -1.5E+7 ] } "), r#"+{"a":1}"#);
}

#[test]
fn a_byte_that_needs_an_escape_is_found_wherever_it_stands() {
    for special in [b'"', b'\\', 0, b'\n', 0x1f] {
        for len in 1..40 {
            for at in 0..len {
                let mut text: Vec<u8> =
                    (0..len as u8).map(|i| [b' ', b'!', 0x7f, 0x80, 0xff, b'#'][usize::from(i) % 6]).collect();
                text[at] = special;
                assert_eq!(plain_len(&text), at);
                text[at] = b'a';
                assert_eq!(plain_len(&text), len);
            }
        }
    }
}

#[test]
fn text_that_is_not_utf8_is_refused() {
    let mut decoder = RecordDecoder::new(&stream("a STRING"));
    for bytes in [&b"{\"a\":\"\xff\"}"[..], b"{\"x\":\"\xc3\"}", b"{\"a\":\"\xed\xa0\x80\"}", b"\xff"] {
        let error = decoder.push(None, Some(bytes)).expect_err("not UTF-8");
        assert_eq!(error.code, ErrorCode::BadUtf8);
    }
}

#[test]
fn a_schema_registry_header_is_named_as_such() {
    let mut decoder = RecordDecoder::new(&stream("a STRING"));
    let error = decoder.push(None, Some(b"\0\0\0\0\x07{\"a\":\"x\"}")).expect_err("not plain JSON");
    assert_eq!(error.code, ErrorCode::BadFraming);
}

#[test]
fn depth_is_limited_to_64_in_known_and_unknown_fields() {
    let deep = |n: usize| format!("{}1{}", "[".repeat(n), "]".repeat(n));
    let source = stream("a BIGINT");
    // The record's own object is the first level.
    assert_eq!(row(&source, &format!(r#"{{"x":{}}}"#, deep(63))), r#"+{"a":null}"#);
    assert_eq!(error(&source, &format!(r#"{{"x":{}}}"#, deep(64))), ErrorCode::TooDeep);
    assert_eq!(error(&source, &format!(r#"{{"a":{}}}"#, deep(100_000))), ErrorCode::TooDeep);
    let objects = |n: usize| format!("{}1{}", r#"{"y":"#.repeat(n), "}".repeat(n));
    assert_eq!(row(&source, &format!(r#"{{"x":{}}}"#, objects(63))), r#"+{"a":null}"#);
    assert_eq!(error(&source, &format!(r#"{{"x":{}}}"#, objects(64))), ErrorCode::TooDeep);
}

#[test]
fn a_bad_record_leaves_the_batch_as_it_was() {
    let source = stream("a BIGINT, tags ARRAY<ROW<t STRING>>, b STRING NOT NULL");
    let mut decoder = RecordDecoder::new(&source);
    let good = br#"{"a":1,"tags":[{"t":"x"}],"b":"\u0062"}"#;
    decoder.push(None, Some(good)).expect("good");
    for bad in [
        &br#"{"a":2,"tags":[{"t":"y"}]}"#[..],
        br#"{"a":2,"tags":[{"t":"y"},{"t":true}],"b":"z"}"#,
        br#"{"a":2,"tags":[{"t":"y"}],"b":"z""#,
    ] {
        decoder.push(None, Some(bad)).expect_err("bad");
        assert_eq!(decoder.rows(), 1);
    }
    decoder.push(None, Some(good)).expect("good");
    let decoded = decoder.finish();
    assert_eq!(lines(&source, &decoded), vec![r#"+{"a":1,"tags":[{"t":"x"}],"b":"b"}"#; 2]);
    assert_eq!(decoder.rows(), 0);
    assert_eq!(decoder.finish().batch.num_rows(), 0);
}

#[test]
fn objects_with_many_fields_are_read_in_any_order() {
    let names: Vec<String> = (0..40).map(|i| format!("field_{i}")).collect();
    let source = stream(&names.iter().map(|n| format!("{n} INT")).collect::<Vec<_>>().join(", "));
    let record = |order: &mut dyn Iterator<Item = usize>| {
        let fields: Vec<String> = order.map(|i| format!(r#""field_{i}":{i},"other_{i}":[{i}]"#)).collect();
        format!("{{{}}}", fields.join(","))
    };
    let expected = (0..40).map(|i| format!(r#""field_{i}":{i}"#)).collect::<Vec<_>>().join(",");
    assert_eq!(row(&source, &record(&mut (0..40))), format!("+{{{expected}}}"));
    assert_eq!(row(&source, &record(&mut (0..40).rev())), format!("+{{{expected}}}"));
}

#[test]
fn a_source_without_used_columns_still_has_rows() {
    let mut source = stream("a BIGINT");
    source.columns.clear();
    assert_eq!(row(&source, r#"{"a":[1,2],"b":{}}"#), "+{}");
}

#[test]
fn a_null_value_in_a_stream_is_a_tombstone() {
    let mut decoder = RecordDecoder::new(&stream("a BIGINT"));
    assert_eq!(decoder.push(Some(b"1"), None), Ok(Pushed::Tombstone));
    assert_eq!(decoder.rows(), 0);
}

#[test]
fn a_null_value_in_a_table_deletes_by_the_message_key() {
    for (key_type, format, key, line) in [
        ("BIGINT", KeyFormat::String, "7", r#"-{"id":7,"name":null}"#),
        ("BIGINT", KeyFormat::Json, "7", r#"-{"id":7,"name":null}"#),
        ("BIGINT", KeyFormat::Json, r#"{"id":7,"region":"eu"}"#, r#"-{"id":7,"name":null}"#),
        ("BIGINT", KeyFormat::Json, r#"{"schema":{"type":"int64"},"payload":7}"#, r#"-{"id":7,"name":null}"#),
        ("STRING", KeyFormat::String, "a \"b\"", r#"-{"id":"a \"b\"","name":null}"#),
        ("STRING", KeyFormat::Json, r#""a \u0062""#, r#"-{"id":"a b","name":null}"#),
        ("DECIMAL(5,2)", KeyFormat::String, "1.50", r#"-{"id":1.50,"name":null}"#),
        ("BOOLEAN", KeyFormat::String, "true", r#"-{"id":true,"name":null}"#),
        ("BYTES", KeyFormat::String, "raw", r#"-{"id":"cmF3","name":null}"#),
        ("DATE", KeyFormat::String, "2026-01-31", r#"-{"id":"2026-01-31","name":null}"#),
        ("DOUBLE", KeyFormat::String, "1.5", r#"-{"id":1.5,"name":null}"#),
        (
            "TIMESTAMP(3)",
            KeyFormat::String,
            "2026-01-31T00:00:00.000Z",
            r#"-{"id":"2026-01-31T00:00:00.000Z","name":null}"#,
        ),
    ] {
        let source = table(&format!("id {key_type} NOT NULL, name STRING NOT NULL"), &["id"], format);
        assert_eq!(decode(&source, &[(Some(key), None)]), [line], "{key_type} from {key}");
    }
}

#[test]
fn a_compound_key_deletes_the_row_that_it_names() {
    let source = table("a INT, name STRING, b STRING", &["b", "a"], KeyFormat::Json);
    assert_eq!(
        decode(&source, &[(Some(r#"{"b":"x","a":1,"name":"ignored"}"#), None)]),
        [r#"-{"a":1,"name":null,"b":"x"}"#]
    );
    let mut decoder = RecordDecoder::new(&source);
    let mut code = |key: Option<&[u8]>| decoder.push(key, None).expect_err("no whole key").code;
    assert_eq!(code(Some(br#"{"a":1}"#)), ErrorCode::NullKey);
    assert_eq!(code(None), ErrorCode::NullKey);
    assert_eq!(code(Some(br#"{"a":"one","b":"x"}"#)), ErrorCode::BadKey);
    assert_eq!(code(Some(br#"{"a":1"#)), ErrorCode::BadKey);
    assert_eq!(code(Some(b"\xff")), ErrorCode::BadKey);
}

#[test]
fn a_row_of_a_table_without_primary_key_is_refused() {
    let source = table("id BIGINT NOT NULL, name STRING", &["id"], KeyFormat::String);
    assert_eq!(error(&source, r#"{"name":"x"}"#), ErrorCode::NullKey);
    assert_eq!(error(&source, r#"{"id":null,"name":"x"}"#), ErrorCode::NullKey);
    assert_eq!(error(&source, r#"{"id":"x"}"#), ErrorCode::WrongType);
}

#[test]
fn columns_of_a_table_that_must_not_be_null_are_still_checked() {
    let source = table("id BIGINT, name STRING NOT NULL", &["id"], KeyFormat::String);
    assert_eq!(error(&source, r#"{"id":1}"#), ErrorCode::MissingField);
}

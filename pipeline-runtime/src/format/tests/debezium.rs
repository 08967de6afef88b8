//! Debezium's change events: what each becomes, and how its values are encoded.

use super::support::*;
use crate::format::{ErrorCode, Pushed, RecordDecoder};

const CUSTOMER: &str = "id BIGINT NOT NULL, name STRING, tier STRING";

fn push(decoder: &mut RecordDecoder, key: Option<&str>, value: Option<&str>) -> Pushed {
    decoder.push(key.map(str::as_bytes), value.map(str::as_bytes)).expect("a good record")
}

/// The row of an insert whose `after` is `{"id":1,"v":<json>}`, or its error.
fn insert(data_type: &str, json: &str) -> Result<String, ErrorCode> {
    insert_raw(data_type, &format!(r#"{{"before":null,"after":{{"id":1,"v":{json}}},"op":"c"}}"#))
}

/// The same with the schema of `v` in the record.
fn insert_with(field: &str, data_type: &str, json: &str) -> Result<String, ErrorCode> {
    let fields = format!(r#"{{"type":"int64","field":"id"}},{field}"#);
    let payload = format!(r#"{{"before":null,"after":{{"id":1,"v":{json}}},"op":"c"}}"#);
    insert_raw(data_type, &with_schema(&fields, &payload))
}

fn insert_raw(data_type: &str, value: &str) -> Result<String, ErrorCode> {
    let source = debezium(&format!("id BIGINT, v {data_type}"), &["id"]);
    let mut decoder = RecordDecoder::new(&source);
    decoder.push(None, Some(value.as_bytes())).map_err(|e| e.code)?;
    let decoded = decoder.finish();
    if decoded.unavailable == [(0, 1)] {
        return Ok("unavailable".into());
    }
    let line = lines(&source, &decoded).remove(0);
    Ok(line.strip_prefix(r#"+{"id":1,"v":"#).and_then(|l| l.strip_suffix('}')).expect("two columns").to_owned())
}

fn named(connect_type: &str, name: &str) -> String {
    format!(r#"{{"type":"{connect_type}","optional":true,"name":"{name}","version":1,"field":"v"}}"#)
}

#[test]
fn create_update_delete_and_read_become_upserts_and_deletes() {
    let source = debezium(CUSTOMER, &["id"]);
    let envelope = |op: &str, before: &str, after: &str| {
        format!(r#"{{"before":{before},"after":{after},"source":{{"snapshot":"false"}},"op":"{op}","ts_ms":1}}"#)
    };
    let old = r#"{"id":1,"name":"a","tier":null}"#;
    let new = r#"{"id":1,"name":"a","tier":"gold"}"#;
    let records =
        [envelope("r", "null", old), envelope("c", "null", old), envelope("u", old, new), envelope("d", new, "null")];
    let records: Vec<_> = records.iter().map(|r| (None, Some(&**r))).collect();
    assert_eq!(
        decode(&source, &records),
        [format!("+{old}"), format!("+{old}"), format!("+{new}"), r#"-{"id":1,"name":null,"tier":null}"#.into()]
    );
}

#[test]
fn every_value_of_the_snapshot_field_is_a_row() {
    let source = debezium(CUSTOMER, &["id"]);
    for snapshot in ["true", "\"true\"", "\"first\"", "\"last\"", "\"incremental\"", "\"last_in_data_collection\""] {
        let value =
            format!(r#"{{"op":"r","after":{{"id":1,"name":"a"}},"source":{{"snapshot":{snapshot}}},"before":null}}"#);
        assert_eq!(row(&source, &value), r#"+{"id":1,"name":"a","tier":null}"#);
    }
}

#[test]
fn case_33_a_null_value_deletes_its_key_and_again_changes_nothing() {
    let source = debezium(CUSTOMER, &["id"]);
    let insert = r#"{"before":null,"after":{"id":1,"name":"a"},"op":"c"}"#;
    let delete = r#"{"before":{"id":1,"name":"a"},"after":null,"op":"d"}"#;
    let key = Some(r#"{"id":1}"#);
    assert_eq!(stored(&source, &[(key, Some(insert)), (key, None)]), Vec::<Vec<Cell>>::new());
    assert_eq!(stored(&source, &[(key, Some(insert)), (key, Some(delete)), (key, None), (key, None)]).len(), 0);
    for null in ["null", " null ", r#"{"schema":null,"payload":null}"#] {
        assert_eq!(decode(&source, &[(key, Some(null))]), [r#"-{"id":1,"name":null,"tier":null}"#], "{null}");
    }
}

#[test]
fn a_tombstone_whose_key_names_no_row_is_ignored_because_the_delete_before_it_counted() {
    let mut decoder = RecordDecoder::new(&debezium(CUSTOMER, &["id"]));
    for key in [None, Some(r#"{"other":1}"#), Some("not json"), Some(r#"{"id":"x"}"#)] {
        assert_eq!(push(&mut decoder, key, None), Pushed::Ignored("tombstone without a readable key"));
    }
    assert_eq!(decoder.rows(), 0);
}

#[test]
fn message_keys_are_read_as_object_with_schema_and_bare() {
    let source = debezium("id BIGINT, at TIMESTAMP(3), name STRING", &["id"]);
    for key in [
        r#"{"id":1}"#,
        "1",
        r#"{"schema":{"type":"struct","fields":[{"type":"int64","field":"id"}]},"payload":{"id":1}}"#,
        r#"{"schema":{"type":"int64","optional":false},"payload":1}"#,
        r#"{"schema":null,"payload":{"id":1}}"#,
    ] {
        assert_eq!(decode(&source, &[(Some(key), None)]), [r#"-{"id":1,"at":null,"name":null}"#], "{key}");
    }
    let source = debezium("at TIMESTAMP(3), name STRING", &["at"]);
    let micros = r#"{"type":"int64","name":"io.debezium.time.MicroTimestamp","field":"at"}"#;
    for key in [
        format!(r#"{{"schema":{{"type":"struct","fields":[{micros}]}},"payload":{{"at":1500000}}}}"#),
        format!(r#"{{"schema":{micros},"payload":1500000}}"#),
    ] {
        assert_eq!(decode(&source, &[(Some(&key), None)]), [r#"-{"at":"1970-01-01T00:00:01.500Z","name":null}"#]);
    }
}

#[test]
fn a_delete_without_before_image_takes_the_message_key() {
    let source = debezium(CUSTOMER, &["id"]);
    let line = r#"-{"id":1,"name":null,"tier":null}"#;
    for before in ["null", "{}", r#"{"id":null,"name":"a"}"#] {
        let value = format!(r#"{{"before":{before},"after":null,"op":"d"}}"#);
        assert_eq!(decode(&source, &[(Some(r#"{"id":1}"#), Some(&value))]), [line]);
        let mut decoder = RecordDecoder::new(&source);
        assert_eq!(decoder.push(None, Some(value.as_bytes())).expect_err("no key").code, ErrorCode::NullKey);
    }
    let mut decoder = RecordDecoder::new(&source);
    let value = br#"{"before":null,"after":null,"op":"d"}"#;
    assert_eq!(decoder.push(Some(b"{"), Some(value)).expect_err("no key").code, ErrorCode::BadKey);
}

#[test]
fn case_34_an_update_without_before_image_is_applied_by_its_key() {
    let source = debezium(CUSTOMER, &["id"]);
    let insert = r#"{"before":null,"after":{"id":1,"name":"a","tier":"x"},"op":"c"}"#;
    let update = r#"{"before":null,"after":{"id":1,"name":"b","tier":"y"},"op":"u"}"#;
    assert_eq!(
        stored(&source, &[(None, Some(insert)), (None, Some(update))]),
        [[Cell::Integer(1), Cell::Text("b".into()), Cell::Text("y".into())]]
    );
}

#[test]
fn case_36_a_key_change_written_as_delete_tombstone_and_create_leaves_one_row() {
    let source = debezium("id BIGINT", &["id"]);
    let records = [
        (Some(r#"{"id":1}"#), Some(r#"{"before":null,"after":{"id":1},"op":"r"}"#)),
        (Some(r#"{"id":1}"#), Some(r#"{"before":{"id":1},"after":null,"op":"d"}"#)),
        (Some(r#"{"id":1}"#), None),
        (Some(r#"{"id":2}"#), Some(r#"{"before":null,"after":{"id":2},"op":"c"}"#)),
    ];
    assert_eq!(stored(&source, &records), [[Cell::Integer(2)]]);
}

#[test]
fn case_64_a_key_change_in_one_update_deletes_the_old_row_and_inserts_the_new_one() {
    let source = debezium("a BIGINT, name STRING, b STRING", &["a", "b"]);
    let mut decoder = RecordDecoder::new(&source);
    let update = |before: &str| format!(r#"{{"before":{before},"after":{{"a":1,"name":"n","b":"y\u00e4"}},"op":"u"}}"#);
    assert_eq!(push(&mut decoder, None, Some(&update(r#"{"a":1,"name":"m","b":"x"}"#))), Pushed::Rows(2));
    // The same key written in another way is the same key.
    assert_eq!(push(&mut decoder, None, Some(&update(r#"{"a":1.0,"name":"m","b":"yä"}"#))), Pushed::Rows(1));
    // Without all of the old key there is nothing to delete.
    assert_eq!(push(&mut decoder, None, Some(&update(r#"{"a":2,"name":"m"}"#))), Pushed::Rows(1));
    let new = r#"+{"a":1,"name":"n","b":"yä"}"#;
    assert_eq!(lines(&source, &decoder.finish()), [r#"-{"a":1,"name":null,"b":"x"}"#, new, new, new]);
}

#[test]
fn case_42_updates_and_deletes_leave_exactly_one_row_or_none() {
    let source = debezium(CUSTOMER, &["id"]);
    let mut records = vec![(None, Some(r#"{"before":null,"after":{"id":1,"name":"0"},"op":"c"}"#))];
    let update = r#"{"before":{"id":1,"name":"0"},"after":{"id":1,"name":"1"},"op":"u"}"#;
    records.extend([(None, Some(update)); 3]);
    assert_eq!(stored(&source, &records), [[Cell::Integer(1), Cell::Text("1".into()), Cell::Null]]);
    records.push((None, Some(r#"{"before":{"id":1,"name":"1"},"after":null,"op":"d"}"#)));
    assert_eq!(stored(&source, &records).len(), 0);
}

#[test]
fn case_53_a_truncate_is_reported_and_is_no_row() {
    let mut decoder = RecordDecoder::new(&debezium(CUSTOMER, &["id"]));
    for value in [
        r#"{"before":null,"after":null,"source":{"table":"customers"},"op":"t","ts_ms":1}"#,
        r#"{"source":{},"op":"t"}"#,
        &with_schema("", r#"{"before":null,"after":null,"op":"t"}"#),
    ] {
        assert_eq!(push(&mut decoder, None, Some(value)), Pushed::Truncate);
    }
    assert_eq!(decoder.rows(), 0);
}

#[test]
fn heartbeats_schema_changes_and_transaction_markers_are_ignored_by_name() {
    let mut decoder = RecordDecoder::new(&debezium(CUSTOMER, &["id"]));
    for (value, what) in [
        (r#"{"ts_ms":1700000000000}"#, "heartbeat"),
        (r#"{"schema":{"type":"struct"},"payload":{"ts_ms":1700000000000}}"#, "heartbeat"),
        (r#"{"status":"BEGIN","id":"571","event_count":null,"data_collections":null,"ts_ms":1}"#, "transaction marker"),
        (r#"{"source":{},"databaseName":"shop","ddl":"CREATE TABLE t (i INT)","tableChanges":[]}"#, "schema change"),
        (r#"{"op":"m","ts_ms":1,"source":{},"message":{"prefix":"p","content":"AA=="}}"#, "logical decoding message"),
    ] {
        assert_eq!(push(&mut decoder, None, Some(value)), Pushed::Ignored(what));
    }
    assert_eq!(decoder.rows(), 0);
}

#[test]
fn what_is_no_envelope_is_refused() {
    let source = debezium(CUSTOMER, &["id"]);
    for value in [
        r#"{"id":1,"name":"a"}"#,
        r#"{"before":null,"after":{"id":1}}"#,
        r#"{"before":null,"after":{"id":1},"op":"x"}"#,
        r#"{"before":null,"after":null,"op":"c"}"#,
        r#"{"before":null,"after":7,"op":"u"}"#,
        r#"{"op":"c"}"#,
        r#"{"schema":{},"payload":[1]}"#,
        "[]",
        "7",
        "{}",
    ] {
        assert_eq!(error(&source, value), ErrorCode::BadEnvelope, "{value}");
    }
    for value in [r#"{"op":"c","after":{"id":1}"#, r#"{"op":"c","after":{"id":1,}}"#, "nul", ""] {
        assert_eq!(error(&source, value), ErrorCode::BadJson, "{value}");
    }
    assert_eq!(error(&source, r#"{"op":"c","after":{"name":"a"}}"#), ErrorCode::NullKey);
    assert_eq!(error(&source, r#"{"op":"c","after":{"id":1,"name":[]}}"#), ErrorCode::WrongType);
}

#[test]
fn a_schema_behind_the_payload_is_used_too() {
    let source = debezium("id BIGINT, v TIMESTAMP(3)", &["id"]);
    let micros = r#"{"type":"int64","name":"io.debezium.time.MicroTimestamp","field":"v"}"#;
    let schema = format!(r#"{{"type":"struct","fields":[{{"type":"struct","fields":[{micros}],"field":"after"}}]}}"#);
    let payload = r#"{"before":null,"after":{"id":1,"v":1500000},"op":"c"}"#;
    let line = r#"+{"id":1,"v":"1970-01-01T00:00:01.500Z"}"#;
    for value in [
        format!(r#"{{"schema":{schema},"payload":{payload}}}"#),
        format!(r#"{{"payload":{payload},"schema":{schema}}}"#),
    ] {
        assert_eq!(row(&source, &value), line);
    }
}

#[test]
fn records_of_many_schemas_take_turns() {
    let source = debezium("id BIGINT, v TIMESTAMP(3)", &["id"]);
    let mut decoder = RecordDecoder::new(&source);
    let units = [("Timestamp", "1500"), ("MicroTimestamp", "1500000"), ("NanoTimestamp", "1500000000")];
    // More different schemas than are kept, each used again after it was pushed out.
    for i in 0..100 {
        let (unit, number) = units[i % 3];
        let fields = format!(
            r#"{{"type":"int64","field":"id"}},{{"type":"int64","name":"io.debezium.time.{unit}","version":{},"field":"v"}}"#,
            i % 40
        );
        let payload = format!(r#"{{"before":null,"after":{{"id":1,"v":{number}}},"op":"c"}}"#);
        assert_eq!(push(&mut decoder, None, Some(&with_schema(&fields, &payload))), Pushed::Rows(1));
        // In between one without schema: milliseconds, by the column's type.
        push(&mut decoder, None, Some(r#"{"before":null,"after":{"id":1,"v":1500},"op":"c"}"#));
    }
    let expected = r#"+{"id":1,"v":"1970-01-01T00:00:01.500Z"}"#;
    assert!(lines(&source, &decoder.finish()).iter().all(|line| line == expected));
}

#[test]
fn case_43_decimals_in_base64_have_the_scale_of_the_schema_or_of_the_column() {
    let decimal = |scale: u8| {
        format!(
            r#"{{"type":"bytes","name":"org.apache.kafka.connect.data.Decimal","version":1,"parameters":{{"scale":"{scale}","connect.decimal.precision":"12"}},"field":"v"}}"#
        )
    };
    assert_eq!(insert("DECIMAL(4,4)", "\"BAg=\""), Ok("0.1032".into()));
    assert_eq!(insert("DECIMAL(12,2)", "\"AcnDgA==\""), Ok("300000.00".into()));
    assert_eq!(insert_with(&decimal(4), "DECIMAL(4,4)", "\"BAg=\""), Ok("0.1032".into()));
    assert_eq!(insert_with(&decimal(2), "DECIMAL(12,2)", "\"AcnDgA==\""), Ok("300000.00".into()));
    // The column has another scale than the source: exact, or refused.
    assert_eq!(insert_with(&decimal(2), "DECIMAL(12,3)", "\"AcnDgA==\""), Ok("300000.000".into()));
    assert_eq!(insert_with(&decimal(2), "DECIMAL(12,0)", "\"AcnDgA==\""), Ok("300000".into()));
    assert_eq!(insert_with(&decimal(4), "DECIMAL(12,2)", "\"BAg=\""), Err(ErrorCode::PrecisionLoss));
    assert_eq!(insert_with(&decimal(2), "DECIMAL(5,2)", "\"AcnDgA==\""), Err(ErrorCode::OutOfRange));
    // Text that is digits is base64 when the schema says so.
    assert_eq!(insert_with(&decimal(2), "DECIMAL(12,2)", "\"1500\""), Ok("-26467.32".into()));
    assert_eq!(insert_with(&decimal(2), "STRING", "\"BAg=\""), Err(ErrorCode::WrongType));
    // Sign bytes in front and the widest value.
    assert_eq!(insert("DECIMAL(5,2)", "\"//////////////////////////////////////8=\""), Ok("-0.01".into()));
    let widest = "9".repeat(38);
    assert_eq!(insert("DECIMAL(38,0)", "\"SztMqFqGxHoJiiI//////w==\""), Ok(widest.clone()));
    assert_eq!(insert("DECIMAL(38,0)", "\"tMSzV6V5O4X2dd3AAAAAAQ==\""), Ok(format!("-{widest}")));
    assert_eq!(insert("DECIMAL(38,0)", "\"AP//////////////////////\""), Err(ErrorCode::OutOfRange));
    assert_eq!(insert("DECIMAL(5,2)", "\"\""), Err(ErrorCode::BadDecimal));
}

#[test]
fn decimals_of_the_modes_string_and_double_are_read_as_they_stand() {
    let (string, double) = (r#"{"type":"string","field":"v"}"#, r#"{"type":"double","field":"v"}"#);
    assert_eq!(insert_with(string, "DECIMAL(12,2)", "\"1500\""), Ok("1500.00".into()));
    assert_eq!(insert_with(double, "DECIMAL(12,2)", "19.99"), Ok("19.99".into()));
    assert_eq!(insert_with(double, "DECIMAL(12,2)", "1.0E7"), Ok("10000000.00".into()));
    assert_eq!(insert("DECIMAL(12,2)", "\"-1500.25\""), Ok("-1500.25".into()));
    assert_eq!(insert("DECIMAL(12,2)", "19.99"), Ok("19.99".into()));
}

#[test]
fn a_decimal_that_could_be_digits_or_base64_is_refused_without_a_schema() {
    for text in ["\"1500\"", "\"12345678\"", "\"+123\"", "\"1E+3\""] {
        assert_eq!(insert("DECIMAL(12,2)", text), Err(ErrorCode::AmbiguousDecimal), "{text}");
    }
    // A point, a minus sign or another length can be no base64; `=` can be no number.
    assert_eq!(insert("DECIMAL(12,2)", "\"15.0\""), Ok("15.00".into()));
    assert_eq!(insert("DECIMAL(12,2)", "\"-150\""), Ok("-150.00".into()));
    assert_eq!(insert("DECIMAL(12,2)", "\"150\""), Ok("150.00".into()));
    assert_eq!(insert("DECIMAL(12,2)", "\"1w==\""), Ok("-0.41".into()));
    assert_eq!(insert("DECIMAL(12,2)", "\"!!!!\""), Err(ErrorCode::BadDecimal));
}

#[test]
fn case_44_decimals_of_variable_scale_carry_their_own() {
    let variable = r#"{"type":"struct","fields":[{"type":"int32","field":"scale"},{"type":"bytes","field":"value"}],
        "name":"io.debezium.data.VariableScaleDecimal","version":1,"field":"v"}"#;
    for (json, expected) in [
        (r#"{"scale":0,"value":"AQ=="}"#, "1.00"),
        (r#"{"scale":1,"value":"aQ=="}"#, "10.50"),
        (r#"{"scale":1,"value":"AM0="}"#, "20.50"),
        (r#"{"scale":1,"value":"ALk="}"#, "18.50"),
        (r#"{"scale":1,"value":"lw=="}"#, "-10.50"),
        (r#"{"value":"/zM=","scale":1}"#, "-20.50"),
        (r#"{"scale":-2,"value":"AQ=="}"#, "100.00"),
        (r#"{"scale":-1000000,"value":"AA=="}"#, "0.00"),
    ] {
        assert_eq!(insert("DECIMAL(12,2)", json), Ok(expected.into()), "{json}");
        assert_eq!(insert_with(variable, "DECIMAL(12,2)", json), Ok(expected.into()), "{json}");
    }
    for (json, code) in [
        (r#"{"scale":3,"value":"AQ=="}"#, ErrorCode::PrecisionLoss),
        (r#"{"scale":1000000,"value":"AQ=="}"#, ErrorCode::PrecisionLoss),
        (r#"{"scale":-1000000,"value":"AQ=="}"#, ErrorCode::OutOfRange),
        (r#"{"scale":0}"#, ErrorCode::WrongType),
        (r#"{"scale":"0","value":"AQ=="}"#, ErrorCode::WrongType),
        (r#"{"scale":0,"value":1}"#, ErrorCode::WrongType),
        (r#"{"scale":0,"value":"!"}"#, ErrorCode::BadDecimal),
    ] {
        assert_eq!(insert("DECIMAL(12,2)", json), Err(code), "{json}");
    }
}

#[test]
fn case_46_a_time_has_the_unit_of_its_semantic_name() {
    // MySQL's `connect` mode writes milliseconds, its default microseconds: the same time of day from both.
    for (name, number) in [
        ("org.apache.kafka.connect.data.Time", "45296789"),
        ("io.debezium.time.Time", "45296789"),
        ("io.debezium.time.MicroTime", "45296789000"),
        ("io.debezium.time.NanoTime", "45296789000000"),
    ] {
        let text = insert_with(&named("int64", name), "STRING", number).expect("a time");
        assert!(text.starts_with("\"12:34:56.789"), "{name}: {text}");
        // As a number it is the source's own, whatever the unit.
        assert_eq!(insert_with(&named("int64", name), "BIGINT", number), Ok(number.into()));
        assert_eq!(insert_with(&named("int64", name), "TIMESTAMP(3)", number), Err(ErrorCode::WrongType));
    }
    let micros = named("int64", "io.debezium.time.MicroTime");
    assert_eq!(insert_with(&micros, "STRING", "-3020399000000"), Ok("\"-838:59:59.000000\"".into()));
    assert_eq!(insert("STRING", "45296789"), Ok("\"45296789\"".into()));
}

#[test]
fn timestamps_and_dates_have_the_unit_of_their_semantic_name() {
    let instant = Ok("\"2026-01-01T00:00:00.123Z\"".to_owned());
    for (connect_type, name, json) in [
        ("int64", "io.debezium.time.Timestamp", "1767225600123"),
        ("int64", "org.apache.kafka.connect.data.Timestamp", "1767225600123"),
        ("int64", "io.debezium.time.MicroTimestamp", "1767225600123999"),
        ("int64", "io.debezium.time.NanoTimestamp", "1767225600123999999"),
        ("string", "io.debezium.time.ZonedTimestamp", "\"2026-01-01T01:00:00.123+01:00\""),
        ("string", "io.debezium.time.IsoTimestamp", "\"2026-01-01T00:00:00.123Z\""),
    ] {
        assert_eq!(insert_with(&named(connect_type, name), "TIMESTAMP(3)", json), instant, "{name}");
    }
    let millis = named("int64", "io.debezium.time.Timestamp");
    assert_eq!(insert_with(&millis, "TIMESTAMP(9)", "-1"), Ok("\"1969-12-31T23:59:59.999000000Z\"".into()));
    for (connect_type, name, json) in [
        ("int32", "io.debezium.time.Date", "20484"),
        ("int32", "org.apache.kafka.connect.data.Date", "20484"),
        ("string", "io.debezium.time.IsoDate", "\"2026-01-31Z\""),
    ] {
        assert_eq!(insert_with(&named(connect_type, name), "DATE", json), Ok("\"2026-01-31\"".into()), "{name}");
    }
    assert_eq!(insert_with(&named("int32", "io.debezium.time.Date"), "TIMESTAMP(3)", "1"), Err(ErrorCode::WrongType));
    assert_eq!(insert_with(&millis, "DATE", "1"), Err(ErrorCode::WrongType));
}

#[test]
fn without_a_schema_numbers_have_the_unit_of_the_column() {
    assert_eq!(insert("TIMESTAMP(3)", "1767225600123"), Ok("\"2026-01-01T00:00:00.123Z\"".into()));
    assert_eq!(insert("TIMESTAMP(6)", "1767225600123456"), Ok("\"2026-01-01T00:00:00.123456Z\"".into()));
    assert_eq!(insert("TIMESTAMP(9)", "1767225600123456789"), Ok("\"2026-01-01T00:00:00.123456789Z\"".into()));
    assert_eq!(insert("TIMESTAMP(6)", "\"2026-01-01T00:00:00Z\""), Ok("\"2026-01-01T00:00:00.000000Z\"".into()));
    assert_eq!(insert("DATE", "20484"), Ok("\"2026-01-31\"".into()));
    assert_eq!(insert("DATE", "\"2026-01-31\""), Ok("\"2026-01-31\"".into()));
}

#[test]
fn case_48_snapshot_and_stream_give_the_same_instant_whatever_the_zone() {
    let source = debezium("id BIGINT, at TIMESTAMP(6)", &["id"]);
    let snapshot =
        r#"{"before":null,"after":{"id":1,"at":"2026-07-01T10:00:00Z"},"source":{"snapshot":"true"},"op":"r"}"#;
    let stream =
        r#"{"before":null,"after":{"id":1,"at":"2026-07-01T12:00:00+02:00"},"source":{"snapshot":"false"},"op":"c"}"#;
    assert_eq!(row(&source, snapshot), row(&source, stream));
}

#[test]
fn case_49_a_toast_value_that_did_not_change_keeps_the_stored_one() {
    let source = debezium(CUSTOMER, &["id"]);
    let insert = r#"{"before":null,"after":{"id":1,"name":"long text","tier":"x"},"op":"c"}"#;
    let update = r#"{"before":null,"after":{"id":1,"name":"__debezium_unavailable_value","tier":"y"},"op":"u"}"#;
    assert_eq!(
        stored(&source, &[(None, Some(insert)), (None, Some(update))]),
        [[Cell::Integer(1), Cell::Text("long text".into()), Cell::Text("y".into())]]
    );
    let mut decoder = RecordDecoder::new(&source);
    push(&mut decoder, None, Some(insert));
    push(&mut decoder, None, Some(update));
    assert_eq!(decoder.finish().unavailable, [(1, 1)]);
    // A batch begins with none of the last one's.
    push(&mut decoder, None, Some(insert));
    assert_eq!(decoder.finish().unavailable, []);
}

#[test]
fn case_51_the_placeholder_is_known_in_each_type() {
    let text = "\"__debezium_unavailable_value\"";
    let numbers: Vec<u8> = "__debezium_unavailable_value".bytes().collect();
    let list = |write: &dyn Fn(&u8) -> String| format!("[{}]", numbers.iter().map(write).collect::<Vec<_>>().join(","));
    let integers = list(&|b| b.to_string());
    let doubles = list(&|b| format!("{b}.0"));
    for (data_type, json) in [
        ("STRING", text),
        ("TIMESTAMP(3)", text),
        ("BYTES", "\"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==\""),
        ("STRING", r#""{\"__debezium_unavailable_value\":\"__debezium_unavailable_value\"}""#),
        ("ARRAY<STRING>", &format!("[{text}]")),
        ("ARRAY<TIMESTAMP(6)>", &format!(" [ {text} ] ")),
        ("ARRAY<STRING>", "[\"b68a35a7-17ad-35b3-af2a-ae46edb4545a\"]"),
        ("ARRAY<BYTES>", "[\"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==\"]"),
        ("ARRAY<INT>", &integers),
        ("ARRAY<BIGINT>", &integers),
        ("ARRAY<DATE>", &integers),
        ("ARRAY<DOUBLE>", &doubles),
        ("ARRAY<DECIMAL(5,1)>", &doubles.replace(',', ", ")),
    ] {
        assert_eq!(insert(data_type, json), Ok("unavailable".into()), "{data_type} from {json}");
    }
    for (data_type, json) in [
        ("STRING", "\"__debezium_unavailable_valuf\""),
        ("ARRAY<STRING>", &format!("[{text},{text}]")),
        ("ARRAY<INT>", "[]"),
        ("ARRAY<INT>", &integers.replace("95,95,100", "95,95,101")),
        ("ARRAY<INT>", &integers.replace(']', ",1]")),
        ("ARRAY<INT>", "[95,95]"),
    ] {
        let value = insert(data_type, json).expect("a value like any other");
        assert_eq!(value.replace('"', ""), json.replace('"', ""), "{data_type}");
    }
}

#[test]
fn a_placeholder_in_the_primary_key_is_no_key() {
    let source = debezium("id STRING", &["id"]);
    let value = r#"{"op":"c","after":{"id":"__debezium_unavailable_value"}}"#;
    assert_eq!(error(&source, value), ErrorCode::NullKey);
}

#[test]
fn a_plain_json_source_knows_no_placeholder() {
    let source = stream("v STRING");
    let value = r#"{"v":"__debezium_unavailable_value"}"#;
    assert_eq!(row(&source, value), format!("+{value}"));
}

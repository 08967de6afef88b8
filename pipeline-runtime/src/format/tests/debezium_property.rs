//! A table that changes at random, its changes written the way one of Debezium's many settings writes them: whatever
//! the settings, the decoder's rows rebuild the table.

use std::collections::BTreeMap;

use base64::Engine as _;
use proptest::prelude::*;

use super::support::*;
use crate::format::reader::BASE64;
use crate::format::{Pushed, RecordDecoder};

const COLUMNS: &str = "name STRING, id BIGINT NOT NULL, price DECIMAL(12,2), at TIMESTAMP(6), day DATE, notes STRING";

#[derive(Clone, Debug, PartialEq)]
struct Row {
    name: Option<String>,
    cents: Option<i64>,
    micros: i64,
    day: i32,
    notes: String,
}

#[derive(Clone, Debug)]
enum Change {
    Put(i64, Row),
    /// Everything but the notes, which are too long for the log.
    Touch(i64, Row),
    Delete(i64),
    Rekey(i64, i64),
    Truncate,
    Heartbeat,
}

/// How the connector was set up when it wrote a record.
#[derive(Clone, Copy, Debug)]
struct Settings {
    schema: bool,
    decimal: u8,
    zoned: bool,
    before: u8,
    tombstone: bool,
    key: u8,
    rekey_in_one: bool,
    snapshot: bool,
}

const FIELDS: [&str; 4] = [
    r#"{"type":"bytes","name":"org.apache.kafka.connect.data.Decimal","parameters":{"scale":"2"},"field":"price"}"#,
    r#"{"type":"struct","name":"io.debezium.data.VariableScaleDecimal","field":"price"}"#,
    r#"{"type":"string","field":"price"}"#,
    r#"{"type":"double","field":"price"}"#,
];

/// Two's complement without needless bytes, and with one to spare.
fn unscaled(value: i64, spare: usize) -> String {
    let bytes = value.to_be_bytes();
    let sign = if value < 0 { 0xff } else { 0 };
    let fits = |start: usize| (bytes[start] ^ sign) & 0x80 == 0 && bytes[..start].iter().all(|b| *b == sign);
    let start = (0..8).rev().find(|start| fits(*start)).expect("all eight bytes fit");
    BASE64.encode([vec![sign; spare], bytes[start..].to_vec()].concat())
}

fn price(cents: i64, settings: Settings) -> String {
    let text = format!("{}{}.{:02}", if cents < 0 { "-" } else { "" }, cents.abs() / 100, cents.abs() % 100);
    match settings.decimal {
        // Without a schema, base64 that is all digits is refused, so this one gets a byte that makes it longer.
        0 => format!("\"{}\"", unscaled(cents, usize::from(!settings.schema))),
        1 => format!(r#"{{"scale":3,"value":"{}"}}"#, unscaled(cents * 10, 1)),
        2 => format!("\"{text}\""),
        _ => text,
    }
}

fn row_json(id: i64, row: &Row, notes: &str, settings: Settings) -> String {
    let name = row.name.as_ref().map_or("null".into(), |name| serde_json::to_string(name).expect("a string"));
    let price = row.cents.map_or("null".into(), |cents| price(cents, settings));
    let at = if settings.zoned {
        // Two hours east.
        let mut out = Vec::new();
        crate::format::time::write_instant(row.micros + 7_200_000_000, 6, &mut out);
        format!("\"{}\"", String::from_utf8(out).expect("digits").replace('Z', "+02:00"))
    } else {
        row.micros.to_string()
    };
    let notes = serde_json::to_string(notes).expect("a string");
    format!(r#"{{"id":{id},"name":{name},"price":{price},"at":{at},"extra":[{{}}],"day":{},"notes":{notes}}}"#, row.day)
}

fn envelope(op: &str, before: &str, after: &str, settings: Settings) -> String {
    let payload = format!(
        r#"{{"before":{before},"after":{after},"source":{{"snapshot":"{}"}},"op":"{op}","ts_ms":1}}"#,
        settings.snapshot
    );
    if !settings.schema {
        return payload;
    }
    let at = if settings.zoned {
        r#"{"type":"string","name":"io.debezium.time.ZonedTimestamp","field":"at"}"#
    } else {
        r#"{"type":"int64","name":"io.debezium.time.MicroTimestamp","field":"at"}"#
    };
    let day = r#"{"type":"int32","name":"io.debezium.time.Date","field":"day"}"#;
    let decimal = FIELDS[usize::from(settings.decimal)];
    with_schema(&format!(r#"{{"type":"int64","field":"id"}},{at},{day},{decimal}"#), &payload)
}

fn key_json(id: i64, settings: Settings) -> String {
    match settings.key {
        0 => format!(r#"{{"id":{id}}}"#),
        1 => id.to_string(),
        _ => format!(
            r#"{{"schema":{{"type":"struct","fields":[{{"type":"int64","field":"id"}}]}},"payload":{{"id":{id}}}}}"#
        ),
    }
}

/// (key, value)
type Record = (Option<String>, Option<String>);

fn delete(id: i64, row: &Row, settings: Settings) -> Vec<Record> {
    let key = Some(key_json(id, settings));
    let before = match settings.before {
        0 => "null".into(),
        1 => format!(r#"{{"id":{id},"name":null}}"#),
        _ => row_json(id, row, &row.notes, settings),
    };
    let mut records = vec![(key.clone(), Some(envelope("d", &before, "null", settings)))];
    if settings.tombstone {
        records.push((key, None));
    }
    records
}

fn put(id: i64, old: Option<&Row>, new: &Row, notes: &str, settings: Settings) -> Vec<Record> {
    let after = row_json(id, new, notes, settings);
    let (op, before) = match old {
        None => (if settings.snapshot { "r" } else { "c" }, "null".into()),
        Some(_) if settings.before == 0 => ("u", "null".into()),
        Some(_) if settings.before == 1 => ("u", format!(r#"{{"id":{id}}}"#)),
        Some(old) => ("u", row_json(id, old, notes, settings)),
    };
    vec![(Some(key_json(id, settings)), Some(envelope(op, &before, &after, settings)))]
}

/// Applies the change to the model and writes its records.
fn records(table: &mut BTreeMap<i64, Row>, change: Change, settings: Settings) -> Vec<Record> {
    match change {
        Change::Put(id, row) => {
            let old = table.insert(id, row.clone());
            put(id, old.as_ref(), &row, &row.notes, settings)
        }
        Change::Touch(id, row) => {
            let Some(old) = table.get(&id).cloned() else { return Vec::new() };
            let new = Row { notes: old.notes.clone(), ..row };
            table.insert(id, new.clone());
            put(id, Some(&old), &new, "__debezium_unavailable_value", settings)
        }
        Change::Delete(id) => table.remove(&id).map_or(Vec::new(), |row| delete(id, &row, settings)),
        Change::Rekey(from, to) => {
            let Some(row) = table.remove(&from) else { return Vec::new() };
            let taken = table.insert(to, row.clone());
            if settings.rekey_in_one && from != to {
                let (before, after) =
                    (row_json(from, &row, &row.notes, settings), row_json(to, &row, &row.notes, settings));
                return vec![(Some(key_json(to, settings)), Some(envelope("u", &before, &after, settings)))];
            }
            let mut records = delete(from, &row, settings);
            records.extend(put(to, taken.as_ref(), &row, &row.notes, settings));
            records
        }
        Change::Truncate => {
            table.clear();
            vec![(None, Some(envelope("t", "null", "null", settings)))]
        }
        Change::Heartbeat => vec![(Some(r#"{"serverName":"s"}"#.into()), Some(r#"{"ts_ms":5}"#.into()))],
    }
}

fn any_row() -> impl Strategy<Value = Row> {
    let cents = prop_oneof![any::<i32>().prop_map(i64::from), -999_999_999_999..=999_999_999_999i64, -300..300i64];
    let micros = -4_000_000_000_000_000..4_000_000_000_000_000i64;
    (prop::option::of(any::<String>()), prop::option::of(cents), micros, -99_999..99_999i32, "[a-z]{0,9}")
        .prop_map(|(name, cents, micros, day, notes)| Row { name, cents, micros, day, notes })
}

fn any_change() -> impl Strategy<Value = Change> {
    let id = || 0..6i64;
    prop_oneof![
        6 => (id(), any_row()).prop_map(|(id, row)| Change::Put(id, row)),
        4 => (id(), any_row()).prop_map(|(id, row)| Change::Touch(id, row)),
        3 => id().prop_map(Change::Delete),
        2 => (id(), id()).prop_map(|(from, to)| Change::Rekey(from, to)),
        1 => Just(Change::Truncate),
        1 => Just(Change::Heartbeat),
    ]
}

fn any_settings() -> impl Strategy<Value = Settings> {
    (any::<[bool; 5]>(), 0..4u8, 0..3u8, 0..3u8).prop_map(|(flags, decimal, before, key)| {
        let [schema, zoned, tombstone, rekey_in_one, snapshot] = flags;
        Settings { schema, decimal, zoned, before, tombstone, key, rekey_in_one, snapshot }
    })
}

fn expected(table: &BTreeMap<i64, Row>) -> Vec<Vec<Cell>> {
    let row = |(id, row): (&i64, &Row)| {
        vec![
            row.name.clone().map_or(Cell::Null, Cell::Text),
            Cell::Integer(*id),
            row.cents.map_or(Cell::Null, |cents| Cell::Decimal(cents.into())),
            Cell::Integer(row.micros),
            Cell::Integer(row.day.into()),
            Cell::Text(row.notes.clone()),
        ]
    };
    table.iter().map(row).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn changes_rebuild_the_table_whatever_the_connector_was_set_to(
        changes in prop::collection::vec((any_change(), any_settings()), 1..20),
        batch_ends in any::<u64>(),
    ) {
        let source = debezium(COLUMNS, &["id"]);
        let mut decoder = RecordDecoder::new(&source);
        let (mut model, mut stored) = (BTreeMap::new(), Stored::default());
        for (i, (change, settings)) in changes.into_iter().enumerate() {
            for (key, value) in records(&mut model, change, settings) {
                let (key, value) = (key.as_deref().map(str::as_bytes), value.as_deref().map(str::as_bytes));
                let pushed = decoder.push(key, value).expect("a record of Debezium's");
                if pushed == Pushed::Truncate {
                    decoder.finish();
                    stored.0.clear();
                }
            }
            if batch_ends >> (i % 64) & 1 == 1 {
                stored.apply(&source, &decoder.finish());
            }
        }
        stored.apply(&source, &decoder.finish());
        let rows: Vec<Vec<Cell>> = stored.0.into_values().collect();
        prop_assert_eq!(rows, expected(&model));
    }
}

//! The decoder against an oracle on `serde_json`: the same documents are refused, with the same code, and the others
//! give the same values. The oracle splits documents with serde_json's parser and reads the pieces in the plainest way.

use std::collections::BTreeMap;

use base64::Engine as _;
use millrace_core::schema::{Column, DataType};
use proptest::prelude::*;
use serde_json::value::RawValue;

use super::support::*;
use crate::format::reader::BASE64;
use crate::format::time::{parse_date, parse_instant};
use crate::format::{ErrorCode, RecordDecoder};

const COLUMNS: &str = "id BIGINT NOT NULL, n INT, x DOUBLE, price DECIMAL(12,2), wide DECIMAL(38,10), name STRING, ok BOOLEAN, \
                       raw BYTES, day DATE, at TIMESTAMP(3), tags ARRAY<STRING>, who ROW<a INT NOT NULL, b ARRAY<ROW<c STRING>>>";

/// `Err(None)`: the document is broken. Else the code of the first wrong column.
type Expected<T> = Result<T, Option<ErrorCode>>;

fn object(raw: &str, columns: &[Column]) -> Expected<Vec<Cell>> {
    let members: BTreeMap<String, Box<RawValue>> = serde_json::from_str(raw).map_err(|_| None)?;
    let mut row = Vec::new();
    let mut wrong = None;
    for column in columns {
        let value = members.get(&column.name).map_or("null", |m| m.get());
        match scalar_or_nested(value, &column.data_type) {
            Ok(Cell::Null) if !column.nullable => wrong = wrong.or(Some(ErrorCode::MissingField)),
            Ok(cell) => row.push(cell),
            Err(None) => return Err(None),
            Err(code) => wrong = wrong.or(code),
        }
    }
    wrong.map_or(Ok(row), |code| Err(Some(code)))
}

fn scalar_or_nested(raw: &str, data_type: &DataType) -> Expected<Cell> {
    match (data_type, raw.as_bytes()[0]) {
        (_, b'n') => Ok(Cell::Null),
        (DataType::Row(columns), b'{') => object(raw, columns).map(Cell::Row),
        (DataType::Array(item), b'[') => {
            let items: Vec<Box<RawValue>> = serde_json::from_str(raw).map_err(|_| None)?;
            let cells: Vec<_> = items.iter().map(|i| scalar_or_nested(i.get(), item)).collect();
            if cells.contains(&Err(None)) {
                return Err(None);
            }
            cells.into_iter().collect::<Result<_, _>>().map(Cell::List)
        }
        (scalar, b'"') => string(raw, scalar).map_err(Some),
        (scalar, b'-' | b'0'..=b'9') => number(raw, scalar).map_err(Some),
        (DataType::Boolean, b't' | b'f') => Ok(Cell::Boolean(raw == "true")),
        _ => Err(Some(ErrorCode::WrongType)),
    }
}

fn string(raw: &str, data_type: &DataType) -> Result<Cell, ErrorCode> {
    if matches!(data_type, DataType::Int | DataType::Bigint | DataType::Double | DataType::Boolean)
        || matches!(data_type, DataType::Array(_) | DataType::Row(_))
    {
        return Err(ErrorCode::WrongType);
    }
    let text: String = serde_json::from_str(raw).map_err(|_| ErrorCode::BadUtf8)?;
    match data_type {
        DataType::String => Ok(Cell::Text(text)),
        DataType::Bytes => BASE64.decode(text).map(Cell::Bytes).map_err(|_| ErrorCode::BadBase64),
        DataType::Decimal { precision, scale } => {
            let number: bool = serde_json::from_str::<&RawValue>(&text)
                .is_ok_and(|raw| raw.get() == text && matches!(text.as_bytes()[0], b'-' | b'0'..=b'9'));
            if number { decimal(&text, *precision, *scale).map(Cell::Decimal) } else { Err(ErrorCode::BadDecimal) }
        }
        // The calendar has an oracle of its own, in the tests of `time`.
        DataType::Date => parse_date(&text).map(|days| Cell::Integer(days.into())).ok_or(ErrorCode::BadDate),
        DataType::Timestamp(digits) => {
            let instant = parse_instant(&text).ok_or(ErrorCode::BadTimestamp)?;
            instant.to_units(*digits).map(Cell::Integer).ok_or(ErrorCode::OutOfRange)
        }
        other => panic!("{other}"),
    }
}

fn number(raw: &str, data_type: &DataType) -> Result<Cell, ErrorCode> {
    match data_type {
        DataType::String => Ok(Cell::Text(raw.to_owned())),
        DataType::Bigint => integer(raw).map(Cell::Integer),
        DataType::Int => {
            let value = integer(raw)?;
            i32::try_from(value).map(|v| Cell::Integer(v.into())).map_err(|_| ErrorCode::OutOfRange)
        }
        DataType::Double => match raw.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(Cell::Double(value.to_bits())),
            _ => Err(ErrorCode::OutOfRange),
        },
        DataType::Decimal { precision, scale } => decimal(raw, *precision, *scale).map(Cell::Decimal),
        DataType::Timestamp(_) => {
            let (whole, fraction) = plain_digits(raw);
            let size: i128 = whole.parse().map_err(|_| ErrorCode::OutOfRange)?;
            let rest = fraction.bytes().any(|b| b != b'0');
            let value = if raw.starts_with('-') { -size - i128::from(rest) } else { size };
            i64::try_from(value).map(Cell::Integer).map_err(|_| ErrorCode::OutOfRange)
        }
        _ => Err(ErrorCode::WrongType),
    }
}

fn integer(raw: &str) -> Result<i64, ErrorCode> {
    i64::try_from(decimal(raw, 19, 0)?).map_err(|_| ErrorCode::OutOfRange)
}

/// The digits in front of the point and behind it, without an exponent: `1.25e1` is ("12", "5").
fn plain_digits(raw: &str) -> (String, String) {
    let raw = raw.trim_start_matches('-');
    let (mantissa, exponent) = raw.split_once(['e', 'E']).unwrap_or((raw, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if mantissa.bytes().all(|b| matches!(b, b'0' | b'.')) {
        return ("0".into(), String::new());
    }
    // No generated document is longer than this, so a longer shift says no more.
    let exponent: i64 = exponent.parse::<i64>().unwrap_or(if exponent.starts_with('-') { -9999 } else { 9999 });
    let exponent = exponent.clamp(-9999, 9999);
    let mut digits = format!("{whole}{fraction}");
    let mut point = whole.len() as i64 + exponent;
    if point < 0 {
        digits = format!("{}{digits}", "0".repeat(-point as usize));
        point = 0;
    }
    let padding = (point - digits.len() as i64).max(0) as usize;
    digits.push_str(&"0".repeat(padding));
    let (whole, fraction) = digits.split_at(point as usize);
    let whole = whole.trim_start_matches('0');
    (if whole.is_empty() { "0" } else { whole }.to_owned(), fraction.to_owned())
}

fn decimal(raw: &str, precision: u8, scale: u8) -> Result<i128, ErrorCode> {
    let (whole, fraction) = plain_digits(raw);
    if whole != "0" && whole.len() > usize::from(precision - scale) {
        return Err(ErrorCode::OutOfRange);
    }
    let kept = fraction.len().min(usize::from(scale));
    if fraction[kept..].bytes().any(|b| b != b'0') {
        return Err(ErrorCode::PrecisionLoss);
    }
    let padding = "0".repeat(usize::from(scale) - kept);
    let size: i128 = format!("{whole}{}{padding}", &fraction[..kept]).parse().expect("at most 38 digits");
    Ok(if raw.starts_with('-') { -size } else { size })
}

fn number_text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i64>().prop_map(|v| v.to_string()),
        any::<i32>().prop_map(|v| v.to_string()),
        (-999i32..999).prop_map(|v| v.to_string()),
        "-?(0|[1-9][0-9]{0,24})(\\.[0-9]{1,24})?([eE][+-]?[0-9]{1,2})?",
        "-?(0|[1-9][0-9]{0,3})(\\.[0-9]{1,3}0{0,20})?([eE][+-]?[0-9])?",
        "-?[1-9][0-9]{0,2}0{0,40}([eE][+-]?[0-9]{1,22})?",
        any::<f64>().prop_filter("finite", |v| v.is_finite()).prop_map(|v| format!("{v:e}")),
        Just("-0".to_owned()),
        Just("-0.0e-5".to_owned()),
    ]
}

fn string_text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>().prop_map(|s| serde_json::to_string(&s).expect("a string")),
        "[a-zA-Z0-9 ]{0,30}".prop_map(|s| format!("\"{s}\"")),
        prop::collection::vec(
            prop_oneof![
                r#"\\["\\/bfnrt]"#,
                r"\\u[0-9a-fA-F]{4}",
                r"\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}",
                "[a-zä€😀]{1,9}",
            ],
            0..6
        )
        .prop_map(|parts| format!("\"{}\"", parts.concat())),
        number_text().prop_map(|n| format!("\"{n}\"")),
        "[A-Za-z0-9+/]{0,9}={0,2}".prop_map(|s| format!("\"{s}\"")),
        Just("\"2026-01-31\"".to_owned()),
        Just("\"2026-01-01T00:00:00.123Z\"".to_owned()),
    ]
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => prop::sample::select(vec![
            "id", "n", "x", "price", "wide", "name", "ok", "raw", "day", "at", "tags", "who", "a", "b", "c",
        ]).prop_map(str::to_owned),
        1 => Just("\\u0069d".to_owned()),
        1 => "[a-z]{0,12}",
    ]
}

fn value_text() -> impl Strategy<Value = String> {
    let space = || prop::sample::select(vec!["", "", "", " ", "\n\t", " \r"]);
    let leaf = prop_oneof![
        number_text(),
        string_text(),
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("false".to_owned()),
    ];
    leaf.prop_recursive(4, 24, 5, move |inner| {
        prop_oneof![
            (prop::collection::vec(inner.clone(), 0..5), space())
                .prop_map(|(items, s)| format!("[{s}{}{s}]", items.join(&format!("{s},{s}")))),
            members(inner, space()),
        ]
    })
}

fn members(
    value: impl Strategy<Value = String>,
    space: impl Strategy<Value = &'static str>,
) -> impl Strategy<Value = String> {
    (prop::collection::vec((name(), value), 0..9), space).prop_map(|(members, s)| {
        let members: Vec<String> = members.iter().map(|(name, v)| format!("{s}\"{name}\"{s}:{s}{v}{s}")).collect();
        format!("{s}{{{s}{}}}{s}", members.join(","))
    })
}

/// A document whose fields are mostly of the right type, so that whole rows are compared too.
fn fitting() -> impl Strategy<Value = String> {
    let id = any::<i64>().prop_map(|v| format!("\"id\":{v}"));
    let who = "\\{\"a\":[1-9],\"b\":\\[(\\{\"c\":\"x\"\\}|null)?\\]\\}".prop_map(|v| format!("\"who\":{v}"));
    let field = prop_oneof![
        (-9999i64..9999).prop_map(|v| format!("\"n\":{v}")),
        number_text().prop_map(|v| format!("\"x\":{v}")),
        (-9999i64..9999).prop_map(|v| format!("\"price\":{v}.5")),
        (any::<i64>(), 0..9).prop_map(|(v, e)| format!("\"wide\":{v}e-{e}")),
        string_text().prop_map(|v| format!("\"name\":{v}")),
        any::<bool>().prop_map(|v| format!("\"ok\":{v}")),
        any::<Vec<u8>>().prop_map(|v| format!("\"raw\":\"{}\"", BASE64.encode(v))),
        Just("\"day\":\"2026-01-31\"".to_owned()),
        (-9e15..9e15).prop_map(|v: f64| format!("\"at\":{v}")),
        prop::collection::vec(string_text(), 0..4).prop_map(|v| format!("\"tags\":[{}]", v.join(","))),
        who,
        value_text().prop_map(|v| format!("\"unknown\":{v}")),
    ];
    (id, prop::collection::vec(field, 0..14))
        .prop_map(|(id, fields)| format!("{{{id},{}}}", fields.join(",")).replace(",}", "}"))
}

fn document() -> impl Strategy<Value = String> {
    let whole = members(value_text(), Just(""));
    prop_oneof![4 => fitting(), 4 => whole, 1 => value_text()]
}

/// What the oracle says of the bytes as a record.
fn oracle(bytes: &[u8]) -> Result<Vec<Cell>, Option<ErrorCode>> {
    // No JSON begins like this; whatever else is wrong, the header is what to tell people.
    if bytes.first() == Some(&0) {
        return Err(Some(ErrorCode::BadFraming));
    }
    let text = str::from_utf8(bytes).map_err(|_| Some(ErrorCode::BadUtf8))?;
    let raw: &RawValue = serde_json::from_str(text).map_err(|_| None)?;
    if !raw.get().starts_with('{') {
        return Err(Some(ErrorCode::WrongType));
    }
    object(raw.get(), &columns(COLUMNS))
}

fn compare(bytes: &[u8]) -> Result<(), TestCaseError> {
    let mut decoder = RecordDecoder::new(&stream(COLUMNS));
    let result = decoder.push(None, Some(bytes));
    let decoded = decoder.finish();
    match (oracle(bytes), result) {
        (Ok(expected), Ok(_)) => prop_assert_eq!(cells(&decoded.batch, 0), expected),
        (Err(expected), Err(found)) => {
            prop_assert_eq!(decoded.batch.num_rows(), 0);
            match expected {
                Some(code) => prop_assert_eq!(found.code, code),
                // A name with half a surrogate pair is broken for both, under another code.
                None => {
                    prop_assert!(matches!(found.code, ErrorCode::BadJson | ErrorCode::BadUtf8))
                }
            }
        }
        (expected, found) => prop_assert!(false, "oracle {:?}, decoder {:?}", expected, found),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn documents_are_read_as_the_oracle_reads_them(text in document()) {
        compare(text.as_bytes())?;
    }

    #[test]
    fn damaged_documents_are_judged_as_the_oracle_judges_them(
        text in document(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), 0..5u8, any::<u8>()), 1..4),
    ) {
        let mut bytes = text.into_bytes();
        for (at, kind, byte) in damage {
            let at = at.index(bytes.len() + 1);
            match kind {
                0 => bytes.insert(at, byte),
                1 => bytes.insert(at, b"{}[]\",:\\0e.-nu "[usize::from(byte) % 15]),
                2 => bytes.truncate(at),
                3 if at < bytes.len() => bytes[at] = byte,
                _ if at < bytes.len() => drop(bytes.remove(at)),
                _ => {}
            }
        }
        compare(&bytes)?;
    }
}

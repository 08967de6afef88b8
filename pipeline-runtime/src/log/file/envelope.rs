//! A record as a line of JSON.
//!
//! `{"partition":0,"timestamp":1700000000000,"key":"7","value":{…},"headers":{"a":"b"}}`. All but the value may be
//! left out: the partition is 0 then, the timestamp that of the line before. The bytes of `value` and `keyJson` are the
//! JSON text as it stands, `key` is UTF-8 text, `keyBase64` and `valueBase64` are any bytes; a header's value is UTF-8
//! text, or `{"base64":"…"}`. `"value":null` is a tombstone.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::log::{Header, OutRecord};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Line<'a> {
    #[serde(default)]
    partition: i32,
    timestamp: Option<i64>,
    #[serde(borrow, default, deserialize_with = "present")]
    key: Option<&'a RawValue>,
    #[serde(borrow)]
    key_json: Option<&'a RawValue>,
    key_base64: Option<String>,
    #[serde(borrow, default, deserialize_with = "present")]
    value: Option<&'a RawValue>,
    value_base64: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, HeaderValue>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum HeaderValue {
    Text(String),
    Bytes { base64: String },
}

/// Tells `null` from absence.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// A line, taken apart. Borrows from it wherever the bytes stand there as they are.
pub struct Parsed<'a> {
    pub partition: i32,
    pub timestamp_ms: Option<i64>,
    pub key: Option<Cow<'a, [u8]>>,
    pub value: Option<Cow<'a, [u8]>>,
    pub headers: Vec<Header>,
}

/// Takes a line apart. The error says what is wrong with it.
pub fn parse(line: &[u8]) -> Result<Parsed<'_>, String> {
    let text = std::str::from_utf8(line).map_err(|e| e.to_string())?;
    let line: Line<'_> = serde_json::from_str(text).map_err(|e| e.to_string())?;
    if line.partition < 0 {
        return Err(format!("partition {} is negative", line.partition));
    }
    let key = match (line.key, line.key_json, line.key_base64) {
        (None, None, None) => None,
        (Some(text), None, None) => string(text)?,
        (None, Some(json), None) => Some(Cow::Borrowed(json.get().as_bytes())),
        (None, None, Some(text)) => Some(Cow::Owned(decode(&text, "keyBase64")?)),
        _ => return Err("a record has at most one of key, keyJson and keyBase64".to_owned()),
    };
    let value = match (line.value, line.value_base64) {
        (Some(json), None) if json.get() == "null" => None,
        (Some(json), None) => Some(Cow::Borrowed(json.get().as_bytes())),
        (None, Some(text)) => Some(Cow::Owned(decode(&text, "valueBase64")?)),
        (None, None) => return Err("a record needs a value or valueBase64 (\"value\":null is a tombstone)".to_owned()),
        _ => return Err("a record has at most one of value and valueBase64".to_owned()),
    };
    let headers = line.headers.into_iter().map(|(name, value)| {
        let value = match value {
            HeaderValue::Text(text) => text.into_bytes(),
            HeaderValue::Bytes { base64 } => decode(&base64, "a header's base64")?,
        };
        Ok(Header { name, value })
    });
    let headers = headers.collect::<Result<_, String>>()?;
    Ok(Parsed { partition: line.partition, timestamp_ms: line.timestamp, key, value, headers })
}

fn decode(text: &str, what: &str) -> Result<Vec<u8>, String> {
    STANDARD.decode(text).map_err(|e| format!("{what}: {e}"))
}

/// The bytes of a JSON string; `null` is no key.
fn string(json: &RawValue) -> Result<Option<Cow<'_, [u8]>>, String> {
    let text = json.get();
    if text == "null" {
        return Ok(None);
    }
    match text.strip_prefix('"').and_then(|t| t.strip_suffix('"')) {
        Some(plain) if !plain.contains('\\') => Ok(Some(Cow::Borrowed(plain.as_bytes()))),
        Some(_) => {
            let text: String = serde_json::from_str(text).map_err(|e| e.to_string())?;
            Ok(Some(Cow::Owned(text.into_bytes())))
        }
        None => Err(format!("key is text, as in \"key\":\"7\"; {text} is not (keyJson takes any JSON)")),
    }
}

/// Writes a record as a line.
pub fn write(out: &mut Vec<u8>, record: &OutRecord<'_>) {
    out.extend_from_slice(b"{\"partition\":");
    out.extend_from_slice(record.partition.to_string().as_bytes());
    if let Some(timestamp) = record.timestamp_ms {
        out.extend_from_slice(b",\"timestamp\":");
        out.extend_from_slice(timestamp.to_string().as_bytes());
    }
    if let Some(key) = record.key {
        match std::str::from_utf8(key) {
            Ok(text) => {
                out.extend_from_slice(b",\"key\":");
                write_string(out, text);
            }
            Err(_) => write_base64(out, ",\"keyBase64\":\"", key),
        }
    }
    match record.value {
        None => out.extend_from_slice(b",\"value\":null"),
        Some(value) if one_line_of_json(value) => {
            out.extend_from_slice(b",\"value\":");
            out.extend_from_slice(value);
        }
        Some(value) => write_base64(out, ",\"valueBase64\":\"", value),
    }
    if !record.headers.is_empty() {
        out.extend_from_slice(b",\"headers\":{");
        for (i, header) in record.headers.iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            write_string(out, &header.name);
            match std::str::from_utf8(&header.value) {
                Ok(text) => {
                    out.push(b':');
                    write_string(out, text);
                }
                Err(_) => {
                    write_base64(out, ":{\"base64\":\"", &header.value);
                    out.push(b'}');
                }
            }
        }
        out.push(b'}');
    }
    out.extend_from_slice(b"}\n");
}

/// True when the bytes can stand in a line as they are and be read back as the same bytes.
fn one_line_of_json(value: &[u8]) -> bool {
    let plain = value.first().is_some_and(|b| !b.is_ascii_whitespace())
        && value.last().is_some_and(|b| !b.is_ascii_whitespace())
        && memchr::memchr2(b'\n', b'\r', value).is_none();
    plain
        && value != b"null"
        && std::str::from_utf8(value).is_ok_and(|text| serde_json::from_str::<&RawValue>(text).is_ok())
}

fn write_string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a string is written to memory");
}

fn write_base64(out: &mut Vec<u8>, before: &str, bytes: &[u8]) {
    out.extend_from_slice(before.as_bytes());
    out.extend_from_slice(STANDARD.encode(bytes).as_bytes());
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use millrace_core::ids::Partition;

    use super::*;
    use crate::log::Outbox;

    fn round_trip(key: Option<&[u8]>, value: Option<&[u8]>, headers: Vec<Header>) {
        let mut outbox = Outbox::default();
        let topic = outbox.topic_index("t");
        outbox.push(topic, Partition(3), Some(7), key, value, headers.clone());
        let mut line = Vec::new();
        write(&mut line, &outbox.records().next().expect("one record"));
        assert_eq!(line.pop(), Some(b'\n'));
        assert!(!line.contains(&b'\n'));
        let parsed = parse(&line).expect("our own line");
        assert_eq!(parsed.partition, 3);
        assert_eq!(parsed.timestamp_ms, Some(7));
        assert_eq!(parsed.key.as_deref(), key);
        assert_eq!(parsed.value.as_deref(), value);
        assert_eq!(parsed.headers, headers);
    }

    #[test]
    fn every_record_reads_back_byte_for_byte() {
        let header = |value: &[u8]| Header { name: "h\"1".to_owned(), value: value.to_vec() };
        round_trip(None, None, vec![]);
        round_trip(Some(b"7"), Some(b"{\"a\":1}"), vec![header(b"x"), Header { name: "z".into(), value: vec![0xff] }]);
        round_trip(Some(b"a\"b\n"), Some(b"{broken"), vec![]);
        round_trip(Some(&[0xff, 0]), Some(&[0xfe]), vec![]);
        round_trip(Some(b""), Some(b""), vec![]);
        round_trip(None, Some(b" {\"a\":\n1} "), vec![]);
        round_trip(None, Some(b"null"), vec![]);
        round_trip(None, Some(b"1 2"), vec![]);
    }

    #[test]
    fn value_and_key_json_keep_their_text() {
        let parsed = parse(br#"{"keyJson":{"id": 1 },"value":{"a":1.0, "b" : [ ]}}"#).expect("valid");
        assert_eq!(parsed.key.as_deref(), Some(&br#"{"id": 1 }"#[..]));
        assert_eq!(parsed.value.as_deref(), Some(&br#"{"a":1.0, "b" : [ ]}"#[..]));
        assert_eq!((parsed.partition, parsed.timestamp_ms), (0, None));
    }

    #[test]
    fn a_wrong_line_says_what_is_wrong() {
        for (line, says) in [
            (r#"{"partition":0}"#, "needs a value"),
            (r#"{"value":1,"valueBase64":"AA=="}"#, "at most one"),
            (r#"{"key":7,"value":1}"#, "key is text"),
            (r#"{"vlaue":1}"#, "unknown field `vlaue`"),
            (r#"{"partition":-1,"value":1}"#, "negative"),
            (r#"{"valueBase64":"%"}"#, "valueBase64"),
        ] {
            let error = parse(line.as_bytes()).err().unwrap_or_default();
            assert!(error.contains(says), "{line}: {error}");
        }
    }
}

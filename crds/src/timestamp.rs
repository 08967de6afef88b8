//! Instants as users write them: RFC 3339 with an offset, like `2026-01-01T00:00:00Z`.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// RFC 3339 with capital letters and an offset. The calendar (no 30th of February) is checked by `format: date-time`.
pub const TIMESTAMP_PATTERN: &str =
    "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})$";

/// An instant in milliseconds since 1970 UTC. Two spellings of one instant are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    pub const fn from_ms(ms: i64) -> Self {
        Self(ms)
    }

    /// Milliseconds since 1970 UTC; what is finer is cut off.
    pub const fn ms(self) -> i64 {
        self.0
    }

    /// Reads RFC 3339; `None` if it is not.
    pub fn parse(text: &str) -> Option<Self> {
        text.parse::<jiff::Timestamp>().ok().map(|t| Self(t.as_nanosecond().div_euclid(1_000_000) as i64))
    }
}

impl std::fmt::Display for Timestamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(timestamp) => timestamp.fmt(f),
            Err(_) => write!(f, "{}ms", self.0),
        }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom(format!("'{text}' is not an RFC 3339 timestamp")))
    }
}

impl JsonSchema for Timestamp {
    fn schema_name() -> Cow<'static, str> {
        "Timestamp".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "format": "date-time", "pattern": TIMESTAMP_PATTERN, "maxLength": 40})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_spellings_of_an_instant_are_equal() {
        let utc = Timestamp::parse("2026-01-01T00:00:00.123Z").expect("utc");
        assert_eq!(Timestamp::parse("2026-01-01T01:00:00.123456+01:00"), Some(utc));
        assert_eq!(utc.ms(), 1_767_225_600_123);
        assert_eq!(utc.to_string(), "2026-01-01T00:00:00.123Z");
    }

    #[test]
    fn a_day_that_does_not_exist_is_refused() {
        assert_eq!(Timestamp::parse("2026-02-30T00:00:00Z"), None);
        assert_eq!(Timestamp::parse("2026-01-01"), None);
    }
}

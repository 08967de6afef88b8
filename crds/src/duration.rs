//! Durations as users write them: `500ms`, `30s`, `1h30m`, `7d`.
//!
//! Equal durations are equal values whatever their spelling (`90s` is `1m30s`), because a duration is part of a plan and
//! equal plans share state. The pattern bounds each number, so that no sum of terms can overflow, not even in
//! microseconds (five terms of at most 99,999 days are far below 2^63 µs).

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The documented pattern of api.md with a bound on each number.
pub const DURATION_PATTERN: &str =
    "^(0s|([1-9][0-9]{0,4}d|[1-9][0-9]{0,5}h|[1-9][0-9]{0,7}m|[1-9][0-9]{0,8}s|[1-9][0-9]{0,11}ms)+)$";
/// The same, or `Never`.
pub const DURATION_OR_NEVER_PATTERN: &str =
    "^(Never|0s|([1-9][0-9]{0,4}d|[1-9][0-9]{0,5}h|[1-9][0-9]{0,7}m|[1-9][0-9]{0,8}s|[1-9][0-9]{0,11}ms)+)$";
/// Longest text of a duration: one term of each unit.
pub const DURATION_LENGTH_MAX: usize = 40;

/// (unit, milliseconds, digits at most), largest first.
const UNITS: [(&str, u64, usize); 5] =
    [("d", 86_400_000, 5), ("h", 3_600_000, 6), ("m", 60_000, 8), ("s", 1_000, 9), ("ms", 1, 12)];

/// A length of time in whole milliseconds. Reads and writes itself as text; written in canonical form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(u64);

/// A length of time, or `Never`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DurationOrNever {
    For(Duration),
    Never,
}

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a duration: write 500ms, 30s, 5m, 1h30m or 7d (at most 99999d), or 0s for none")]
pub struct DurationError(pub String);

impl Duration {
    pub const ZERO: Duration = Duration(0);

    pub const fn from_ms(ms: u64) -> Self {
        Self(ms)
    }

    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds * 1_000)
    }

    pub const fn from_days(days: u64) -> Self {
        Self(days * 86_400_000)
    }

    /// Whole milliseconds.
    pub const fn ms(self) -> i64 {
        self.0 as i64
    }
}

impl DurationOrNever {
    /// Whole milliseconds; `None` is never.
    pub const fn ms(self) -> Option<i64> {
        match self {
            Self::For(duration) => Some(duration.ms()),
            Self::Never => None,
        }
    }
}

impl FromStr for Duration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        if text == "0s" {
            return Ok(Self::ZERO);
        }
        let error = || DurationError(text.to_owned());
        if text.is_empty() || text.len() > DURATION_LENGTH_MAX {
            return Err(error());
        }
        let (mut rest, mut sum) = (text, 0u64);
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let (number, tail) = rest.split_at(digits);
            let letters = tail.bytes().take_while(u8::is_ascii_lowercase).count();
            let (unit, tail) = tail.split_at(letters);
            let (_, unit_ms, digits_max) = UNITS.iter().find(|(name, ..)| *name == unit).ok_or_else(error)?;
            if number.starts_with('0') || digits > *digits_max {
                return Err(error());
            }
            sum += number.parse::<u64>().map_err(|_| error())? * unit_ms;
            rest = tail;
        }
        Ok(Self(sum))
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let mut rest = self.0;
        for (unit, unit_ms, _) in UNITS {
            if rest >= unit_ms {
                write!(f, "{}{unit}", rest / unit_ms)?;
                rest %= unit_ms;
            }
        }
        Ok(())
    }
}

impl FromStr for DurationOrNever {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        if text == "Never" { Ok(Self::Never) } else { text.parse().map(Self::For) }
    }
}

impl fmt::Display for DurationOrNever {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::For(duration) => duration.fmt(f),
            Self::Never => f.write_str("Never"),
        }
    }
}

macro_rules! as_text {
    ($name:ident, $pattern:expr) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({"type": "string", "pattern": $pattern, "maxLength": DURATION_LENGTH_MAX})
            }
        }
    };
}

as_text!(Duration, DURATION_PATTERN);
as_text!(DurationOrNever, DURATION_OR_NEVER_PATTERN);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_durations_are_equal_values() {
        for (a, b) in [("90s", "1m30s"), ("24h", "1d"), ("1000ms", "1s"), ("30m60m", "90m"), ("0s", "0s")] {
            assert_eq!(a.parse::<Duration>(), b.parse::<Duration>(), "{a} {b}");
        }
    }

    #[test]
    fn a_duration_reads_back_as_it_was_written() {
        for text in ["0s", "100ms", "30s", "1m30s", "7d", "1d2h3m4s5ms", "99999d"] {
            assert_eq!(text.parse::<Duration>().expect(text).to_string(), text);
        }
        assert_eq!("Never".parse::<DurationOrNever>().expect("never").to_string(), "Never");
    }

    #[test]
    fn the_parser_and_the_pattern_agree() {
        let pattern = regex_lite::Regex::new(DURATION_PATTERN).expect("pattern");
        for text in [
            "",
            "0s",
            "0m",
            "s",
            "1",
            "5x",
            "5S",
            "05s",
            "1s 2s",
            "-1s",
            "1.5s",
            "100000d",
            "99999d",
            "1d1d1d",
            "1ms",
            "1s1",
            "1µs",
            "999999999999ms",
            "9999999999999ms",
            "Never",
            "never",
            "10y",
        ] {
            assert_eq!(text.parse::<Duration>().is_ok(), pattern.is_match(text), "{text}");
        }
    }

    #[test]
    fn the_longest_duration_fits_in_microseconds() {
        let longest: Duration = "99999d".repeat(6).parse().expect("six terms");
        assert!(longest.ms().checked_mul(1_000).is_some());
    }
}

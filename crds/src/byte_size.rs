//! Sizes as users write them: `512Ki`, `64Mi`, `2Gi`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Kubernetes' binary quantities, bounded so that none overflows.
pub const BYTE_SIZE_PATTERN: &str = "^[1-9][0-9]{0,5}(Ki|Mi|Gi)$";

/// (suffix, shift), largest first.
const UNITS: [(&str, u32); 3] = [("Gi", 30), ("Mi", 20), ("Ki", 10)];

/// A number of bytes, a multiple of 1024. Reads and writes itself as text; written in canonical form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(u64);

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a size: write 512Ki, 64Mi or 2Gi (at most 999999Gi)")]
pub struct ByteSizeError(pub String);

impl ByteSize {
    pub const fn mebibytes(count: u64) -> Self {
        Self(count << 20)
    }

    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    fn from_str(text: &str) -> Result<Self, ByteSizeError> {
        let read = || {
            let (number, shift) = UNITS.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)))?;
            let plain = number.len() <= 6 && !number.starts_with('0') && number.bytes().all(|b| b.is_ascii_digit());
            Some(Self(number.parse::<u64>().ok().filter(|_| plain)? << shift))
        };
        read().ok_or_else(|| ByteSizeError(text.to_owned()))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = UNITS.iter().find(|(_, shift)| self.0 != 0 && self.0.trailing_zeros() >= *shift);
        let (unit, shift) = whole.unwrap_or(&UNITS[2]);
        write!(f, "{}{unit}", self.0 >> shift)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for ByteSize {
    fn schema_name() -> Cow<'static, str> {
        "ByteSize".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "maxLength": 8, "pattern": BYTE_SIZE_PATTERN})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_back_in_their_largest_unit() {
        for (text, canonical, bytes) in [
            ("64Mi", "64Mi", 64 << 20),
            ("2048Ki", "2Mi", 2 << 20),
            ("1536Ki", "1536Ki", 1536 << 10),
            ("2Gi", "2Gi", 2 << 30),
        ] {
            let size: ByteSize = text.parse().expect(text);
            assert_eq!((size.bytes(), size.to_string().as_str()), (bytes, canonical));
        }
        for wrong in ["", "64", "0Mi", "064Mi", "64MB", "-1Mi", "1000000Gi", "1.5Gi", "+1Ki", "Mi"] {
            assert_eq!(wrong.parse::<ByteSize>(), Err(ByteSizeError(wrong.to_owned())));
        }
    }
}

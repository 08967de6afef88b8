//! Column types as users write them: `BIGINT`, `DECIMAL(12,2)`, `ARRAY<STRING>`, `ROW<a INT, b STRING>`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A column of a source, a step or a sink.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Column {
    pub name: String,
    #[serde(rename = "type")]
    pub data_type: DataType,
    pub nullable: bool,
}

/// A SQL type. Written and stored as its SQL text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DataType {
    Boolean,
    /// 32 bits, signed.
    Int,
    /// 64 bits, signed.
    Bigint,
    Double,
    /// `precision` 1 to 38 digits in all, `scale` of them (0 to precision) behind the point.
    Decimal {
        precision: u8,
        scale: u8,
    },
    String,
    Bytes,
    Date,
    /// An instant in UTC with 3, 6 or 9 digits of a second.
    Timestamp(u8),
    Array(Box<DataType>),
    Row(Vec<Column>),
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean => f.write_str("BOOLEAN"),
            Self::Int => f.write_str("INT"),
            Self::Bigint => f.write_str("BIGINT"),
            Self::Double => f.write_str("DOUBLE"),
            Self::Decimal { precision, scale } => write!(f, "DECIMAL({precision},{scale})"),
            Self::String => f.write_str("STRING"),
            Self::Bytes => f.write_str("BYTES"),
            Self::Date => f.write_str("DATE"),
            Self::Timestamp(digits) => write!(f, "TIMESTAMP({digits})"),
            Self::Array(item) => write!(f, "ARRAY<{item}>"),
            Self::Row(fields) => {
                f.write_str("ROW<")?;
                for (i, field) in fields.iter().enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    let not_null = if field.nullable { "" } else { " NOT NULL" };
                    write!(f, "{comma}{} {}{not_null}", field.name, field.data_type)?;
                }
                f.write_str(">")
            }
        }
    }
}

/// Why a text is not a type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TypeError {
    #[error(
        "unknown type '{0}': use BOOLEAN, INT, BIGINT, DOUBLE, DECIMAL(p,s), STRING, BYTES, DATE, TIMESTAMP(3|6|9), ARRAY<type> or ROW<name type, ...>"
    )]
    Unknown(String),
    #[error("DECIMAL({precision},{scale}) is out of range: precision is 1 to 38, scale 0 to precision")]
    DecimalRange { precision: i64, scale: i64 },
    #[error("TIMESTAMP({0}) is not supported: use TIMESTAMP(3), TIMESTAMP(6) or TIMESTAMP(9)")]
    TimestampDigits(i64),
    #[error("'{text}' ends or goes on where {expected} was expected, at character {at}")]
    Syntax { text: String, expected: &'static str, at: usize },
}

/// Nesting beyond this is refused: it bounds the recursion of everything that walks a type.
const DEPTH_MAX: usize = 16;

impl FromStr for DataType {
    type Err = TypeError;

    fn from_str(text: &str) -> Result<Self, TypeError> {
        let mut parser = Parser { text, at: 0 };
        let data_type = parser.data_type(0)?;
        parser.skip_space();
        if parser.at != text.len() {
            return Err(parser.expected("the end of the type"));
        }
        Ok(data_type)
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn expected(&self, expected: &'static str) -> TypeError {
        TypeError::Syntax { text: self.text.to_owned(), expected, at: self.at + 1 }
    }

    fn skip_space(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    fn eat(&mut self, c: char) -> bool {
        self.skip_space();
        let hit = self.text[self.at..].starts_with(c);
        if hit {
            self.at += c.len_utf8();
        }
        hit
    }

    fn need(&mut self, c: char, name: &'static str) -> Result<(), TypeError> {
        if self.eat(c) { Ok(()) } else { Err(self.expected(name)) }
    }

    fn word(&mut self) -> Result<String, TypeError> {
        self.skip_space();
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        if end == 0 {
            return Err(self.expected("a name"));
        }
        self.at += end;
        Ok(rest[..end].to_owned())
    }

    fn number(&mut self) -> Result<i64, TypeError> {
        let error = self.expected("a number");
        self.word()?.parse().map_err(|_| error)
    }

    fn data_type(&mut self, depth: usize) -> Result<DataType, TypeError> {
        if depth == DEPTH_MAX {
            return Err(self.expected("a type that is nested at most 16 deep"));
        }
        let word = self.word()?;
        Ok(match word.to_ascii_uppercase().as_str() {
            "BOOLEAN" | "BOOL" => DataType::Boolean,
            "INT" | "INTEGER" => DataType::Int,
            "BIGINT" => DataType::Bigint,
            "DOUBLE" => DataType::Double,
            "STRING" | "VARCHAR" | "TEXT" => DataType::String,
            "BYTES" => DataType::Bytes,
            "DATE" => DataType::Date,
            "DECIMAL" | "NUMERIC" => {
                self.need('(', "'(' (as in DECIMAL(12,2))")?;
                let precision = self.number()?;
                let scale = if self.eat(',') { self.number()? } else { 0 };
                self.need(')', "')'")?;
                if !(1..=38).contains(&precision) || !(0..=precision).contains(&scale) {
                    return Err(TypeError::DecimalRange { precision, scale });
                }
                DataType::Decimal { precision: precision as u8, scale: scale as u8 }
            }
            "TIMESTAMP" => {
                let digits = if self.eat('(') {
                    let digits = self.number()?;
                    self.need(')', "')'")?;
                    digits
                } else {
                    3
                };
                match digits {
                    3 | 6 | 9 => DataType::Timestamp(digits as u8),
                    _ => return Err(TypeError::TimestampDigits(digits)),
                }
            }
            "ARRAY" => {
                self.need('<', "'<' (as in ARRAY<STRING>)")?;
                let item = self.data_type(depth + 1)?;
                self.need('>', "'>'")?;
                DataType::Array(Box::new(item))
            }
            "ROW" => {
                self.need('<', "'<' (as in ROW<a INT, b STRING>)")?;
                let mut fields = Vec::new();
                loop {
                    let name = self.word()?;
                    let data_type = self.data_type(depth + 1)?;
                    let nullable = !self.eat_words("NOT", "NULL");
                    fields.push(Column { name, data_type, nullable });
                    if !self.eat(',') {
                        break;
                    }
                }
                self.need('>', "'>'")?;
                DataType::Row(fields)
            }
            _ => return Err(TypeError::Unknown(word)),
        })
    }

    fn eat_words(&mut self, first: &str, second: &str) -> bool {
        let start = self.at;
        for word in [first, second] {
            match self.word() {
                Ok(found) if found.eq_ignore_ascii_case(word) => {}
                _ => {
                    self.at = start;
                    return false;
                }
            }
        }
        true
    }
}

impl Serialize for DataType {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DataType {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_reads_back_as_it_was_written() {
        for text in [
            "BOOLEAN",
            "INT",
            "BIGINT",
            "DOUBLE",
            "DECIMAL(12,2)",
            "STRING",
            "BYTES",
            "DATE",
            "TIMESTAMP(3)",
            "TIMESTAMP(9)",
            "ARRAY<ARRAY<INT>>",
            "ROW<a INT NOT NULL, b ROW<c ARRAY<STRING>>>",
        ] {
            assert_eq!(text.parse::<DataType>().expect(text).to_string(), text);
        }
        assert_eq!("decimal( 5 )".parse(), Ok(DataType::Decimal { precision: 5, scale: 0 }));
    }

    #[test]
    fn a_wrong_type_says_what_is_wrong() {
        assert_eq!("MONEY".parse::<DataType>(), Err(TypeError::Unknown("MONEY".into())));
        assert_eq!("TIMESTAMP(4)".parse::<DataType>(), Err(TypeError::TimestampDigits(4)));
        assert_eq!("DECIMAL(40,2)".parse::<DataType>(), Err(TypeError::DecimalRange { precision: 40, scale: 2 }));
        for text in ["", "ARRAY<INT", "ROW<>", "INT INT", "DECIMAL(a)", "ÄRRAY<é>"] {
            assert!(text.parse::<DataType>().is_err(), "{text}");
        }
        assert!("ARRAY<".repeat(40).parse::<DataType>().is_err());
    }
}

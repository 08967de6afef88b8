//! The wire forms of Debezium JSON: from the Kafka Connect schema that a record carries, else by defaults.
//!
//! The schema names what a number means (`io.debezium.time.MicroTimestamp`); without one only the column's type can say
//! it, and `docs/formats.md` lists how. A field that the schema doesn't have is read by the defaults too.

use millrace_core::schema::{Column, DataType};
use serde_json::Value as Json;

use super::shape::{DecimalWire, Names, PlainWire, Shape, ValueShape, Wire};

/// Different schemas of one topic that are kept compiled: rolling upgrades alternate between two, and a topic that many
/// tables were routed into has a few more. Beyond that they are compiled again, which is slow and nothing worse.
const SCHEMAS_MAX: usize = 16;

#[derive(Clone, Copy)]
struct ConnectWire<'a>(Option<&'a Json>);

impl ConnectWire<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        self.0?.get(name)?.as_str()
    }

    fn decimal_scale(&self) -> Option<i64> {
        self.0?.get("parameters")?.get("scale")?.as_str()?.parse().ok()
    }

    /// What the numbers or bytes of this field mean.
    fn meaning(&self) -> Meaning {
        let Some(name) = self.text("name") else { return Meaning::Unnamed };
        match name {
            "io.debezium.time.Timestamp" | "org.apache.kafka.connect.data.Timestamp" => Meaning::Timestamp(3),
            "io.debezium.time.MicroTimestamp" => Meaning::Timestamp(6),
            "io.debezium.time.NanoTimestamp" => Meaning::Timestamp(9),
            "io.debezium.time.Date" | "org.apache.kafka.connect.data.Date" => Meaning::Days,
            "io.debezium.time.Time" | "org.apache.kafka.connect.data.Time" => Meaning::TimeOfDay(3),
            "io.debezium.time.MicroTime" => Meaning::TimeOfDay(6),
            "io.debezium.time.NanoTime" => Meaning::TimeOfDay(9),
            "org.apache.kafka.connect.data.Decimal" => Meaning::Decimal,
            "io.debezium.data.VariableScaleDecimal" => Meaning::VariableScale,
            _ => Meaning::Unnamed,
        }
    }
}

enum Meaning {
    /// Digits of a second.
    Timestamp(u8),
    Days,
    TimeOfDay(u8),
    Decimal,
    VariableScale,
    /// Nothing but the type is known.
    Unnamed,
}

impl Wire for ConnectWire<'_> {
    fn field(self, name: &str) -> Self {
        let fields = self.0.and_then(|s| s.get("fields")?.as_array());
        Self(fields.and_then(|fields| fields.iter().find(|f| f.get("field").and_then(Json::as_str) == Some(name))))
    }

    fn item(self) -> Self {
        Self(self.0.and_then(|s| s.get("items")))
    }

    fn scalar(self, data_type: &DataType) -> ValueShape {
        let mismatch = ValueShape::Mismatch;
        match (data_type, self.meaning()) {
            (DataType::Decimal { precision, scale }, meaning) => {
                let wire = match meaning {
                    Meaning::Decimal => DecimalWire::Unscaled(self.decimal_scale().unwrap_or(i64::from(*scale))),
                    Meaning::VariableScale => DecimalWire::Unscaled(i64::from(*scale)),
                    Meaning::Unnamed if self.0.is_none() => DecimalWire::Unknown,
                    Meaning::Unnamed if self.text("type") != Some("bytes") => DecimalWire::Text,
                    _ => return mismatch,
                };
                ValueShape::Decimal { precision: *precision, scale: *scale, wire }
            }
            (DataType::Timestamp(digits), Meaning::Timestamp(number_digits)) => {
                ValueShape::Timestamp { digits: *digits, number_digits }
            }
            // Debezium's default is the coarsest unit that holds the column's digits.
            (DataType::Timestamp(digits), Meaning::Unnamed) => {
                ValueShape::Timestamp { digits: *digits, number_digits: *digits }
            }
            (DataType::Timestamp(_), _) => mismatch,
            (DataType::Date, Meaning::Days | Meaning::Unnamed) => ValueShape::Date { days: true },
            (DataType::Date, _) => mismatch,
            (DataType::String, Meaning::TimeOfDay(digits)) => ValueShape::String { time_digits: Some(digits) },
            (DataType::String, Meaning::Decimal | Meaning::VariableScale) => mismatch,
            (DataType::String, _) if self.text("type") == Some("bytes") => mismatch,
            (other, _) => PlainWire.scalar(other),
        }
    }
}

/// Which part of a message a schema describes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    Key,
    /// The row is in the envelope's `after` (and `before`, with the same schema).
    Value,
}

/// The shapes of one topic's rows: one for each schema that came by, and one for records without.
#[derive(Debug)]
pub(super) struct ConnectShapes {
    part: Part,
    columns: Vec<Column>,
    primary_key: Vec<usize>,
    default: Shape,
    compiled: Vec<(Box<str>, Shape)>,
    /// The next one to be replaced when all places are taken.
    oldest: usize,
}

impl ConnectShapes {
    pub fn new(part: Part, columns: &[Column], primary_key: &[usize]) -> (Self, Names) {
        let (default, names) = Shape::of_columns(columns, primary_key, ConnectWire(None));
        let shapes = Self {
            part,
            columns: columns.to_vec(),
            primary_key: primary_key.to_vec(),
            default,
            compiled: Vec::new(),
            oldest: 0,
        };
        (shapes, names)
    }

    /// The schemas that are compiled, as they stood in their records.
    pub fn known(&self) -> impl Iterator<Item = &str> {
        self.compiled.iter().map(|(text, _)| &**text)
    }

    /// The shape for `schema`, a JSON text that was checked.
    pub fn get(&mut self, schema: Option<&str>) -> &Shape {
        // Only objects are kept: no other text can begin with the whole of one, which is how they are recognised.
        let Some(text) = schema.filter(|s| s.starts_with('{')) else { return &self.default };
        let found = self.known().position(|known| known == text);
        let index = match found {
            Some(index) => index,
            None => self.compile(text),
        };
        &self.compiled[index].1
    }

    fn compile(&mut self, text: &str) -> usize {
        // The reader's grammar allows what this parser refuses (numbers beyond a double): then there is no schema.
        let schema: Option<Json> = serde_json::from_str(text).ok();
        let root = ConnectWire(schema.as_ref());
        let row = match self.part {
            Part::Key => root,
            Part::Value => {
                let after = root.field("after");
                if after.0.is_some() { after } else { root.field("before") }
            }
        };
        // The schema of a bare key is that of its only column.
        let bare = matches!(self.part, Part::Key) && row.text("type").is_some_and(|t| t != "struct");
        let (shape, _) = if bare {
            Shape::of_columns(&self.columns, &self.primary_key, Everywhere(row))
        } else {
            Shape::of_columns(&self.columns, &self.primary_key, row)
        };
        let entry = (text.into(), shape);
        if self.compiled.len() < SCHEMAS_MAX {
            self.compiled.push(entry);
            return self.compiled.len() - 1;
        }
        let index = self.oldest;
        self.oldest = (index + 1) % SCHEMAS_MAX;
        self.compiled[index] = entry;
        index
    }
}

/// One schema for whichever column is asked for.
#[derive(Clone, Copy)]
struct Everywhere<'a>(ConnectWire<'a>);

impl Wire for Everywhere<'_> {
    fn field(self, _name: &str) -> Self {
        self
    }

    fn item(self) -> Self {
        Self(self.0.item())
    }

    fn scalar(self, data_type: &DataType) -> ValueShape {
        self.0.scalar(data_type)
    }
}

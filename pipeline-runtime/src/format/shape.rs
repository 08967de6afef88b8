//! What a record must look like: the source's columns, compiled for the reader.
//!
//! A column's type says what is stored; its *wire form* says how a record writes it. Plain JSON has one wire form for
//! each type. In Debezium JSON it depends on the connector's settings: a record that carries its schema says which form
//! it is, one without is read by the defaults that `docs/formats.md` lists.

use hashbrown::HashMap;
use millrace_core::schema::{Column, DataType};

use super::lexer::{Span, plain_len};

/// Objects with more fields than this are looked up by hash; below, comparing lengths and bytes is faster.
const LINEAR_FIELDS_MAX: usize = 8;

/// An object with known fields: a row.
#[derive(Debug)]
pub(super) struct Shape {
    pub fields: Vec<FieldShape>,
    index: HashMap<Box<str>, usize>,
    /// False when no field is required, so that the check costs nothing.
    pub any_required: bool,
}

#[derive(Debug)]
pub(super) struct FieldShape {
    pub name: Box<str>,
    /// `"name":`, as nearly every producer writes it. `None` for a name that needs escapes.
    pub member: Option<Box<str>>,
    pub required: bool,
    pub value: ValueShape,
    /// Index into [`Names`]: what an error calls it.
    pub id: u16,
}

#[derive(Debug)]
pub(super) enum ValueShape {
    Boolean,
    Int,
    Bigint,
    Double,
    Decimal {
        precision: u8,
        scale: u8,
        wire: DecimalWire,
    },
    /// `time_digits`: numbers are times of day in this unit and become text; `None`: a number is its own text.
    String {
        time_digits: Option<u8>,
    },
    Bytes,
    /// `days`: numbers are days since the epoch.
    Date {
        days: bool,
    },
    /// Numbers are units of `10^-number_digits` seconds since the epoch.
    Timestamp {
        digits: u8,
        number_digits: u8,
    },
    Array(Box<ValueShape>),
    Row(Shape),
    /// The record's schema says that this field is something that the column's type cannot hold.
    Mismatch,
}

/// How a string stands for a decimal. Numbers are always read as they stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecimalWire {
    /// Decimal digits.
    Text,
    /// Base64 of the unscaled value, big endian in two's complement, with this scale.
    Unscaled(i64),
    /// No schema says which of the two it is; the scale is the column's.
    Unknown,
}

/// What errors call the columns and their inner fields: `customer.emails[]`, and their types.
#[derive(Debug, Default)]
pub(super) struct Names(Vec<(String, DataType)>);

impl Names {
    fn add(&mut self, path: String, data_type: &DataType) -> u16 {
        self.0.push((path, data_type.clone()));
        // More than 65,536 nested fields is beyond any schema; such fields share a wrong name in errors, no more.
        (self.0.len() - 1).min(usize::from(u16::MAX)) as u16
    }

    pub fn get(&self, id: u16) -> (&str, &DataType) {
        let (path, data_type) = &self.0[usize::from(id)];
        (path, data_type)
    }
}

/// Decides the wire form of one column or inner field.
pub(super) trait Wire: Copy {
    /// The same for a field of a ROW.
    fn field(self, name: &str) -> Self;
    /// The same for the items of an ARRAY.
    fn item(self) -> Self;
    /// The shape of a value that is neither ARRAY nor ROW.
    fn scalar(self, data_type: &DataType) -> ValueShape;
}

/// The wire forms of plain JSON.
#[derive(Clone, Copy)]
pub(super) struct PlainWire;

impl Wire for PlainWire {
    fn field(self, _name: &str) -> Self {
        self
    }

    fn item(self) -> Self {
        self
    }

    fn scalar(self, data_type: &DataType) -> ValueShape {
        match data_type {
            DataType::Boolean => ValueShape::Boolean,
            DataType::Int => ValueShape::Int,
            DataType::Bigint => ValueShape::Bigint,
            DataType::Double => ValueShape::Double,
            DataType::Decimal { precision, scale } => {
                ValueShape::Decimal { precision: *precision, scale: *scale, wire: DecimalWire::Text }
            }
            DataType::String => ValueShape::String { time_digits: None },
            DataType::Bytes => ValueShape::Bytes,
            DataType::Date => ValueShape::Date { days: false },
            DataType::Timestamp(digits) => ValueShape::Timestamp { digits: *digits, number_digits: 3 },
            DataType::Array(_) | DataType::Row(_) => ValueShape::Mismatch,
        }
    }
}

impl Shape {
    /// The shape of a source's rows. Columns in `optional` may be absent whatever their type says: the caller checks
    /// them with an error of its own.
    pub fn of_columns(columns: &[Column], optional: &[usize], wire: impl Wire) -> (Self, Names) {
        let mut names = Names::default();
        let mut shape = Self::build(columns, "", wire, &mut names);
        for index in optional {
            shape.fields[*index].required = false;
        }
        shape.any_required = shape.fields.iter().any(|f| f.required);
        (shape, names)
    }

    fn build(columns: &[Column], prefix: &str, wire: impl Wire, names: &mut Names) -> Self {
        let fields: Vec<FieldShape> = columns
            .iter()
            .map(|column| {
                let path = format!("{prefix}{}", column.name);
                let id = names.add(path.clone(), &column.data_type);
                FieldShape {
                    name: column.name.as_str().into(),
                    member: (plain_len(column.name.as_bytes()) == column.name.len())
                        .then(|| format!("\"{}\":", column.name).into()),
                    required: !column.nullable,
                    value: ValueShape::build(&column.data_type, &path, wire.field(&column.name), names),
                    id,
                }
            })
            .collect();
        let index = if fields.len() > LINEAR_FIELDS_MAX {
            fields.iter().enumerate().map(|(i, f)| (f.name.clone(), i)).collect()
        } else {
            HashMap::new()
        };
        let any_required = fields.iter().any(|f| f.required);
        Self { fields, index, any_required }
    }

    pub fn find(&self, name: &str) -> Option<usize> {
        if self.index.is_empty() {
            return self.fields.iter().position(|f| *f.name == *name);
        }
        self.index.get(name).copied()
    }
}

impl ValueShape {
    fn build(data_type: &DataType, path: &str, wire: impl Wire, names: &mut Names) -> Self {
        match data_type {
            DataType::Array(item) => Self::Array(Box::new(Self::build(item, &format!("{path}[]"), wire.item(), names))),
            DataType::Row(fields) => Self::Row(Shape::build(fields, &format!("{path}."), wire, names)),
            scalar => wire.scalar(scalar),
        }
    }
}

/// One value of a record that was understood, small enough to copy. Text and bytes are ranges.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Null,
    /// Debezium's placeholder: the column has a value that did not change and that the record does not hold.
    Unavailable,
    Boolean(bool),
    /// INT, BIGINT, DATE and TIMESTAMP.
    Integer(i64),
    Double(f64),
    Decimal(i128),
    /// In the record.
    Text(Span),
    /// In the reader's own text.
    OwnText(Span),
    /// In the reader's own bytes.
    Bytes(Span),
    /// `count` items on the tape.
    Array {
        first: u32,
        count: u32,
    },
    /// The `count` fields of a ROW on the tape, in order.
    Row {
        first: u32,
        count: u32,
    },
    /// Not what the column's type says. Kept until the object has ended, because a later field of the same name wins.
    Bad(Mistake),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mistake {
    pub code: super::ErrorCode,
    /// The innermost field that it is about: index into [`Names`].
    pub field: u16,
}

//! Rows as JSON, and as the text of keys.
//!
//! Columns are told apart once per batch ([`JsonEncoder::bind`]); a row is then a walk over typed arrays into the
//! caller's buffer: no allocation, no virtual call. The wire forms are those that the decoder reads, and each value
//! reads back as itself, with one exception: JSON has no NaN and no infinity, so these become null.

use std::num::NonZeroI32;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int32Array,
    Int64Array, ListArray, RecordBatch, StringArray, StructArray, TimestampMicrosecondArray, TimestampMillisecondArray,
    TimestampNanosecondArray,
};
use arrow::datatypes::{
    DataType as ArrowType, Date32Type, Decimal128Type, Float64Type, Int32Type, Int64Type, TimeUnit,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
};
use base64::Engine as _;
use lexical_core::WriteFloatOptions;
use millrace_core::plan::KeyFormat;
use millrace_core::schema::{Column, DataType};

use super::lexer::plain_len;
use super::reader::BASE64;
use super::{number, time};

/// One field: what stands in front of its value, and the fields inside of it.
struct Field {
    /// `{"first":` or `,"next":`
    prefix: Vec<u8>,
    inner: Vec<Field>,
}

fn fields(columns: &[Column]) -> Vec<Field> {
    let prefix = |i: usize, name: &str| {
        let mut prefix = vec![if i == 0 { b'{' } else { b',' }];
        write_string(name, &mut prefix);
        prefix.push(b':');
        prefix
    };
    columns
        .iter()
        .enumerate()
        .map(|(i, c)| Field { prefix: prefix(i, &c.name), inner: inner_fields(&c.data_type) })
        .collect()
}

fn inner_fields(data_type: &DataType) -> Vec<Field> {
    match data_type {
        DataType::Row(columns) => fields(columns),
        DataType::Array(item) => inner_fields(item),
        _ => Vec::new(),
    }
}

/// Writes rows as JSON objects: every column in order, null where the value is null.
pub struct JsonEncoder {
    fields: Vec<Field>,
}

impl JsonEncoder {
    pub fn new(columns: &[Column]) -> Self {
        Self { fields: fields(columns) }
    }

    /// `batch` has the encoder's columns, in their order, with the types of [`millrace_plan::arrow_schema`].
    pub fn bind<'a>(&'a self, batch: &'a RecordBatch) -> BoundEncoder<'a> {
        assert_eq!(batch.num_columns(), self.fields.len(), "a batch has the columns that its encoder was made for");
        BoundEncoder { columns: bind(&self.fields, batch.columns()) }
    }
}

/// An encoder and the batch that it reads.
pub struct BoundEncoder<'a> {
    columns: Vec<(&'a [u8], Cells<'a>)>,
}

impl BoundEncoder<'_> {
    /// Appends the row as one JSON object.
    #[inline]
    pub fn encode(&self, row: usize, out: &mut Vec<u8>) {
        write_object(&self.columns, row, out);
    }
}

fn bind<'a>(fields: &'a [Field], arrays: &'a [ArrayRef]) -> Vec<(&'a [u8], Cells<'a>)> {
    fields.iter().zip(arrays).map(|(f, a)| (&*f.prefix, Cells::new(a, &f.inner))).collect()
}

/// The values of one column.
enum Cells<'a> {
    Boolean(&'a BooleanArray),
    Int(&'a Int32Array),
    Bigint(&'a Int64Array),
    Double(&'a Float64Array),
    Decimal(&'a Decimal128Array, u8),
    String(&'a StringArray),
    Bytes(&'a BinaryArray),
    Date(&'a Date32Array),
    Millis(&'a TimestampMillisecondArray),
    Micros(&'a TimestampMicrosecondArray),
    Nanos(&'a TimestampNanosecondArray),
    Array(&'a ListArray, Box<Cells<'a>>),
    Row(&'a StructArray, Vec<(&'a [u8], Cells<'a>)>),
}

impl<'a> Cells<'a> {
    fn new(array: &'a ArrayRef, inner: &'a [Field]) -> Self {
        match array.data_type() {
            ArrowType::Boolean => Self::Boolean(array.as_boolean()),
            ArrowType::Int32 => Self::Int(array.as_primitive::<Int32Type>()),
            ArrowType::Int64 => Self::Bigint(array.as_primitive::<Int64Type>()),
            ArrowType::Float64 => Self::Double(array.as_primitive::<Float64Type>()),
            ArrowType::Decimal128(_, scale) => {
                Self::Decimal(array.as_primitive::<Decimal128Type>(), u8::try_from(*scale).unwrap_or(0))
            }
            ArrowType::Utf8 => Self::String(array.as_string()),
            ArrowType::Binary => Self::Bytes(array.as_binary()),
            ArrowType::Date32 => Self::Date(array.as_primitive::<Date32Type>()),
            ArrowType::Timestamp(TimeUnit::Millisecond, _) => {
                Self::Millis(array.as_primitive::<TimestampMillisecondType>())
            }
            ArrowType::Timestamp(TimeUnit::Microsecond, _) => {
                Self::Micros(array.as_primitive::<TimestampMicrosecondType>())
            }
            ArrowType::Timestamp(TimeUnit::Nanosecond, _) => {
                Self::Nanos(array.as_primitive::<TimestampNanosecondType>())
            }
            ArrowType::List(_) => {
                let list = array.as_list::<i32>();
                Self::Array(list, Box::new(Self::new(list.values(), inner)))
            }
            ArrowType::Struct(_) => {
                let row = array.as_struct();
                Self::Row(row, bind(inner, row.columns()))
            }
            other => unreachable!("no column type maps to {other}"),
        }
    }

    #[inline]
    fn is_null(&self, row: usize) -> bool {
        match self {
            Self::Boolean(a) => a.is_null(row),
            Self::Int(a) => a.is_null(row),
            Self::Bigint(a) => a.is_null(row),
            Self::Double(a) => a.is_null(row),
            Self::Decimal(a, _) => a.is_null(row),
            Self::String(a) => a.is_null(row),
            Self::Bytes(a) => a.is_null(row),
            Self::Date(a) => a.is_null(row),
            Self::Millis(a) => a.is_null(row),
            Self::Micros(a) => a.is_null(row),
            Self::Nanos(a) => a.is_null(row),
            Self::Array(a, _) => a.is_null(row),
            Self::Row(a, _) => a.is_null(row),
        }
    }

    #[inline]
    fn write_json(&self, row: usize, out: &mut Vec<u8>) {
        if self.is_null(row) {
            out.extend_from_slice(b"null");
            return;
        }
        match self {
            Self::String(a) => write_string(a.value(row), out),
            Self::Bytes(a) => write_base64(a.value(row), out),
            Self::Date(_) | Self::Millis(_) | Self::Micros(_) | Self::Nanos(_) => {
                out.push(b'"');
                self.write_text(row, out);
                out.push(b'"');
            }
            Self::Double(a) if !a.value(row).is_finite() => out.extend_from_slice(b"null"),
            _ => self.write_text(row, out),
        }
    }

    /// The value without quotes or escapes; arrays and rows as JSON. Not for nulls.
    #[inline]
    fn write_text(&self, row: usize, out: &mut Vec<u8>) {
        match self {
            Self::Boolean(a) => out.extend_from_slice(if a.value(row) { b"true" } else { b"false" }),
            Self::Int(a) => write_integer(i64::from(a.value(row)), out),
            Self::Bigint(a) => write_integer(a.value(row), out),
            Self::Double(a) => write_double(a.value(row), out),
            Self::Decimal(a, scale) => number::write_decimal(a.value(row), *scale, out),
            Self::String(a) => out.extend_from_slice(a.value(row).as_bytes()),
            Self::Bytes(a) => out.extend_from_slice(a.value(row)),
            Self::Date(a) => time::write_date(i64::from(a.value(row)), out),
            Self::Millis(a) => time::write_instant(a.value(row), 3, out),
            Self::Micros(a) => time::write_instant(a.value(row), 6, out),
            Self::Nanos(a) => time::write_instant(a.value(row), 9, out),
            Self::Array(a, items) => {
                let offsets = a.value_offsets();
                out.push(b'[');
                for item in offsets[row]..offsets[row + 1] {
                    if item > offsets[row] {
                        out.push(b',');
                    }
                    items.write_json(item as usize, out);
                }
                out.push(b']');
            }
            Self::Row(_, columns) => write_object(columns, row, out),
        }
    }
}

fn write_object(columns: &[(&[u8], Cells<'_>)], row: usize, out: &mut Vec<u8>) {
    if columns.is_empty() {
        out.push(b'{');
    }
    for (prefix, cells) in columns {
        out.extend_from_slice(prefix);
        cells.write_json(row, out);
    }
    out.push(b'}');
}

fn write_integer(value: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(lexical_core::write(value, &mut [0; 20]));
}

/// The shortest text that reads back as the same double; plain digits from 10^-6 to below 10^21, as in JavaScript.
fn write_double(value: f64, out: &mut Vec<u8>) {
    const OPTIONS: WriteFloatOptions = WriteFloatOptions::builder()
        .positive_exponent_break(NonZeroI32::new(20))
        .negative_exponent_break(NonZeroI32::new(-6))
        .build_strict();
    const STANDARD: u128 = lexical_core::format::STANDARD;
    let mut buffer = [0; OPTIONS.buffer_size_const::<f64, STANDARD>()];
    out.extend_from_slice(lexical_core::write_with_options::<_, STANDARD>(value, &mut buffer, &OPTIONS));
}

fn write_string(text: &str, out: &mut Vec<u8>) {
    let mut rest = text.as_bytes();
    out.push(b'"');
    loop {
        let (plain, special) = rest.split_at(plain_len(rest));
        out.extend_from_slice(plain);
        let Some((byte, after)) = special.split_first() else { break };
        write_escape(*byte, out);
        rest = after;
    }
    out.push(b'"');
}

#[cold]
fn write_escape(byte: u8, out: &mut Vec<u8>) {
    let short = match byte {
        b'"' | b'\\' => byte,
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        8 => b'b',
        12 => b'f',
        _ => {
            const HEX: &[u8; 16] = b"0123456789abcdef";
            let [high, low] = [byte >> 4, byte & 15].map(|n| HEX[usize::from(n)]);
            out.extend_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
            return;
        }
    };
    out.extend_from_slice(&[b'\\', short]);
}

fn write_base64(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, 0);
    let written = BASE64.encode_slice(bytes, &mut out[start..]).expect("base64 is four bytes for three");
    out.truncate(start + written);
    out.push(b'"');
}

/// Writes the key of records: the text of one column, or a JSON object of the key's columns.
pub struct KeyTextEncoder {
    format: TextFormat,
    columns: Vec<usize>,
    fields: Vec<Field>,
}

#[derive(Clone, Copy)]
enum TextFormat {
    String,
    Json,
}

impl KeyTextEncoder {
    /// `key` names some of `columns`, which are those of the batches. `None` if it names another, names none, names
    /// several for the String format, or if the format is not one of text.
    pub fn new(columns: &[Column], key: &[String], format: KeyFormat) -> Option<Self> {
        let indices =
            key.iter().map(|name| columns.iter().position(|c| c.name == *name)).collect::<Option<Vec<_>>>()?;
        let format = match format {
            KeyFormat::String if indices.len() == 1 => TextFormat::String,
            KeyFormat::Json if !indices.is_empty() => TextFormat::Json,
            KeyFormat::String | KeyFormat::Json | KeyFormat::Internal => return None,
        };
        let key_columns: Vec<Column> = indices.iter().map(|i| columns[*i].clone()).collect();
        Some(Self { format, columns: indices, fields: fields(&key_columns) })
    }

    pub fn bind<'a>(&'a self, batch: &'a RecordBatch) -> BoundKeyTextEncoder<'a> {
        let cells = self.fields.iter().zip(&self.columns);
        let columns = cells.map(|(f, i)| (&*f.prefix, Cells::new(batch.column(*i), &f.inner))).collect();
        BoundKeyTextEncoder { format: self.format, columns }
    }
}

/// A key encoder and the batch that it reads.
pub struct BoundKeyTextEncoder<'a> {
    format: TextFormat,
    columns: Vec<(&'a [u8], Cells<'a>)>,
}

impl BoundKeyTextEncoder<'_> {
    /// Appends the row's key. False, and nothing appended, when all of its columns are null: the record has no key.
    #[inline]
    pub fn encode(&self, row: usize, out: &mut Vec<u8>) -> bool {
        if self.columns.iter().all(|(_, cells)| cells.is_null(row)) {
            return false;
        }
        match self.format {
            TextFormat::String => self.columns[0].1.write_text(row, out),
            TextFormat::Json => write_object(&self.columns, row, out),
        }
        true
    }
}

//! The row that a message key names: what a tombstone, and a delete without before-image, are applied to.

use millrace_core::plan::KeyFormat;
use millrace_core::schema::{Column, DataType};

use super::ErrorCode;
use super::connect_schema::{ConnectShapes, Part};
use super::lexer::{Cursor, Fault, Span};
use super::number::{self, Exact};
use super::reader::Reader;
use super::shape::Value;
use super::time;

#[derive(Debug)]
pub(super) struct MessageKey {
    format: KeyFormat,
    columns: Vec<Column>,
    /// The column that a key without field names holds: the only one of the declared key.
    bare: Option<usize>,
    primary_key: Vec<usize>,
    shapes: ConnectShapes,
}

/// The key's row on the reader's tape; its text is in `text`. Columns that are not in the primary key are null.
pub(super) struct KeyRow<'k> {
    pub first: usize,
    pub text: &'k str,
}

impl MessageKey {
    /// `key_columns` are those of the declared key, or of the primary key if none is declared.
    pub fn new(format: KeyFormat, columns: &[Column], key_columns: &[usize], primary_key: &[usize]) -> Self {
        Self {
            format,
            columns: columns.to_vec(),
            bare: if let [only] = key_columns { Some(*only) } else { None },
            primary_key: primary_key.to_vec(),
            shapes: ConnectShapes::new(Part::Key, columns, primary_key).0,
        }
    }

    /// Reads `key`. [`ErrorCode::NullKey`] if it is absent or does not hold the whole primary key, and
    /// [`ErrorCode::BadKey`] if it cannot be read.
    pub fn read<'k>(&mut self, reader: &mut Reader, key: Option<&'k [u8]>) -> Result<KeyRow<'k>, ErrorCode> {
        let key = key.ok_or(ErrorCode::NullKey)?;
        let row = match self.format {
            KeyFormat::Json => self.read_json(reader, key).map_err(|_| ErrorCode::BadKey)?,
            KeyFormat::String => self.read_text(reader, key).map_err(|_| ErrorCode::BadKey)?,
            // Only exchanges write it, and they carry no records of a source's format.
            KeyFormat::Internal => return Err(ErrorCode::BadKey),
        };
        keep_only(reader.values_mut(row.first, self.columns.len()), &self.primary_key);
        for column in &self.primary_key {
            match reader.values(row.first, self.columns.len())[*column] {
                Value::Null => return Err(ErrorCode::NullKey),
                Value::Bad(_) => return Err(ErrorCode::BadKey),
                _ => {}
            }
        }
        Ok(row)
    }

    fn read_json<'k>(&mut self, reader: &mut Reader, key: &'k [u8]) -> Result<KeyRow<'k>, Fault> {
        let text = str::from_utf8(key).map_err(|_| Fault { code: ErrorCode::BadUtf8, at: 0 })?;
        let mut cursor = Cursor::new(text);
        let whole = cursor.skip(0)?;
        cursor.end()?;
        let (schema, payload) = self.unwrap(text, whole)?;
        let shape = self.shapes.get(schema.map(|span| span.of(text)));
        let mut cursor = Cursor::over(text, payload);
        if cursor.peek() == b'{' {
            let first = reader.object(shape, &mut cursor, 0)?;
            return Ok(KeyRow { first, text });
        }
        let first = reader.reserve(self.columns.len());
        if let Some(column) = self.bare {
            let field = &shape.fields[column];
            reader.value(&field.value, field.id, &mut cursor, 0, first + column)?;
        }
        Ok(KeyRow { first, text })
    }

    /// Takes `{"schema":…,"payload":…}` apart, unless the table has columns of these names.
    fn unwrap(&self, text: &str, whole: Span) -> Result<(Option<Span>, Span), Fault> {
        let mut cursor = Cursor::over(text, whole);
        let (mut schema, mut payload) = (None, None);
        let mut more = cursor.eat(b'{') && !cursor.eat(b'}');
        while more {
            let name = cursor.name()?.span.of(text);
            let value = Some(cursor.skip(1)?);
            match name {
                "schema" => schema = value,
                "payload" => payload = value,
                _ => {}
            }
            more = cursor.more(b'}')?;
        }
        let is_column = |name: &str| self.columns.iter().any(|c| c.name == name);
        Ok(match payload {
            Some(payload) if schema.is_some() && !is_column("schema") && !is_column("payload") => (schema, payload),
            _ => (None, whole),
        })
    }

    fn read_text<'k>(&mut self, reader: &mut Reader, key: &'k [u8]) -> Result<KeyRow<'k>, ErrorCode> {
        let column = self.bare.ok_or(ErrorCode::BadKey)?;
        let data_type = &self.columns[column].data_type;
        let first = reader.reserve(self.columns.len());
        let (value, text) = if let DataType::Bytes = data_type {
            (reader.keep_bytes(key), "")
        } else {
            let text = str::from_utf8(key).map_err(|_| ErrorCode::BadUtf8)?;
            (scalar_from_text(data_type, text)?, text)
        };
        reader.values_mut(first, self.columns.len())[column] = value;
        Ok(KeyRow { first, text })
    }
}

/// Makes every value null that is not in `columns`.
pub(super) fn keep_only(values: &mut [Value], columns: &[usize]) {
    for (i, value) in values.iter_mut().enumerate() {
        if !columns.contains(&i) {
            *value = Value::Null;
        }
    }
}

/// The inverse of what [`super::KeyTextEncoder`] writes for one column.
fn scalar_from_text(data_type: &DataType, text: &str) -> Result<Value, ErrorCode> {
    Ok(match data_type {
        DataType::String => Value::Text(Span::new(0, text.len())),
        DataType::Boolean if text == "true" => Value::Boolean(true),
        DataType::Boolean if text == "false" => Value::Boolean(false),
        DataType::Int => Value::Integer(number::integer(None, text, i32::MIN.into(), i32::MAX.into())?),
        DataType::Bigint => Value::Integer(number::integer(None, text, i64::MIN, i64::MAX)?),
        DataType::Double => Value::Double(number::double(None, text)?),
        DataType::Decimal { precision, scale } => {
            Value::Decimal(Exact::parse(text).ok_or(ErrorCode::BadDecimal)?.to_decimal(*precision, *scale)?)
        }
        DataType::Date => Value::Integer(i64::from(time::parse_date(text).ok_or(ErrorCode::BadDate)?)),
        DataType::Timestamp(digits) => {
            let instant = time::parse_instant(text).ok_or(ErrorCode::BadTimestamp)?;
            Value::Integer(instant.to_units(*digits).ok_or(ErrorCode::OutOfRange)?)
        }
        DataType::Boolean | DataType::Bytes | DataType::Array(_) | DataType::Row(_) => return Err(ErrorCode::BadKey),
    })
}

//! Formats: from a record's bytes to Arrow rows, and back.
//!
//! Decoding goes in two steps. The reader walks the bytes once, directed by the source's columns, and leaves the values
//! of the record's rows on a tape; only when the whole record was understood are they appended to the column builders.
//! So a record that cannot be read leaves the batch exactly as it was, and what it leaves behind is a [`RowError`] from
//! a closed list, for the dead letter.
//!
//! What each type looks like in a record is in `docs/formats.md`, and what a changed record does in
//! `docs/schema-changes.md`; both are tested line by line. A value that does not fit its column is refused: nothing is
//! rounded, wrapped or cut, except the digits of a second that a column has no place for.
//!
//! Debezium's events become upserts and deletes ([`Op`]) of a table's rows. The decoder is stateless from record to
//! record (it keeps only compiled schemas), so a replay gives the same rows.

mod columns;
mod connect_schema;
mod debezium;
mod encoder;
mod lexer;
mod message_key;
mod number;
mod reader;
mod shape;
#[cfg(test)]
mod tests;
mod time;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use millrace_core::plan::{Format, KeyFormat, Source};
use millrace_core::schema::Column;
use millrace_plan::arrow_schema::arrow_schema;

use columns::ColumnBuilder;
use debezium::Debezium;
pub use encoder::{BoundEncoder, BoundKeyTextEncoder, JsonEncoder, KeyTextEncoder};
use lexer::{Cursor, Fault};
use message_key::MessageKey;
use reader::Reader;
use shape::{Mistake, Names, PlainWire, Shape, Value};

/// The rows since the last [`RecordDecoder::finish`].
#[derive(Debug)]
pub struct Decoded {
    /// The source's columns. For a table each of them is nullable: a row that stands for a delete holds only the
    /// primary key.
    pub batch: RecordBatch,
    /// One for each row. A stream's are all [`Op::Upsert`].
    pub ops: Vec<Op>,
    /// `(row, column)` whose value the record did not hold because an update left it alone (Debezium's placeholder for
    /// TOAST values): null in the batch, and the value that is stored stays.
    pub unavailable: Vec<(usize, usize)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Upsert,
    Delete,
}

/// What one record became.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// This many rows were appended, 1 or 2. Two are an update of the primary key: the old key's delete, then the new
    /// row.
    Rows(usize),
    /// A null value in a stream.
    Tombstone,
    /// All rows of the table are gone.
    Truncate,
    /// A record that is no change of a row, and which kind it is.
    Ignored(&'static str),
}

/// Why a record is no row. The names are part of the interface: dead letters and metrics carry them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ErrorCode {
    /// The value breaks JSON's grammar.
    BadJson,
    /// The value, or an escape in it, is no Unicode text.
    BadUtf8,
    /// The value begins with a schema registry's header.
    BadFraming,
    /// More than 64 objects and arrays inside each other.
    TooDeep,
    /// The record has 2 GiB or more.
    TooLarge,
    /// A column that must not be null is absent or null.
    MissingField,
    /// Another kind of JSON value than the column's type is written as.
    WrongType,
    /// A number or an instant that the column's type cannot hold.
    OutOfRange,
    /// A number with digits that the column's type has no place for.
    PrecisionLoss,
    BadDecimal,
    /// A text that is a decimal number and base64 of another one, and no schema to tell.
    AmbiguousDecimal,
    BadTimestamp,
    BadDate,
    BadBase64,
    /// The primary key, or a part of it, is absent or null.
    NullKey,
    /// The message key, which names the row to delete, cannot be read.
    BadKey,
    /// The record is no change event of Debezium's.
    BadEnvelope,
}

impl ErrorCode {
    pub fn name(self) -> &'static str {
        match self {
            Self::BadJson => "BadJson",
            Self::BadUtf8 => "BadUtf8",
            Self::BadFraming => "BadFraming",
            Self::TooDeep => "TooDeep",
            Self::TooLarge => "TooLarge",
            Self::MissingField => "MissingField",
            Self::WrongType => "WrongType",
            Self::OutOfRange => "OutOfRange",
            Self::PrecisionLoss => "PrecisionLoss",
            Self::BadDecimal => "BadDecimal",
            Self::AmbiguousDecimal => "AmbiguousDecimal",
            Self::BadTimestamp => "BadTimestamp",
            Self::BadDate => "BadDate",
            Self::BadBase64 => "BadBase64",
            Self::NullKey => "NullKey",
            Self::BadKey => "BadKey",
            Self::BadEnvelope => "BadEnvelope",
        }
    }

    /// For people. It never holds a value of the row.
    fn text(self) -> &'static str {
        match self {
            Self::BadJson => "not valid JSON",
            Self::BadUtf8 => "not valid Unicode text",
            Self::BadFraming => "starts with a schema registry's header (byte 0), but the format is plain JSON",
            Self::TooDeep => "more than 64 objects and arrays inside each other",
            Self::TooLarge => "2 GiB or more",
            Self::MissingField => "absent or null, but the column is declared as not null",
            Self::WrongType => "another kind of JSON value than this type is written as",
            Self::OutOfRange => "does not fit into the type",
            Self::PrecisionLoss => "has more fraction digits than the type",
            Self::BadDecimal => "not a decimal number",
            Self::AmbiguousDecimal => {
                "both a decimal number and base64 of another one; let the connector include the schema"
            }
            Self::BadTimestamp => "not an instant in ISO-8601 or SQL form",
            Self::BadDate => "not a date like 2026-01-31",
            Self::BadBase64 => "not base64",
            Self::NullKey => "the primary key, or a part of it, is absent or null",
            Self::BadKey => "the message key, which names the row to delete, cannot be read",
            Self::BadEnvelope => "not a change event of Debezium's",
        }
    }
}

/// The record's own fault: reading it again gives the same answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {text}", .code.name())]
pub struct RowError {
    pub code: ErrorCode,
    /// Where in the record, and what would be right. No values of the row.
    pub text: String,
}

/// Why a record is no row, before it is put into words.
#[derive(Clone, Copy, Debug)]
enum Problem {
    Fault(Fault),
    Column(Mistake),
    Record(ErrorCode),
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<ErrorCode> for Problem {
    fn from(code: ErrorCode) -> Self {
        Self::Record(code)
    }
}

/// What a record says. Rows are positions on the reader's tape; `text` is the part of the record that they refer to.
enum Outcome<'r> {
    Rows { delete: Option<usize>, upsert: Option<usize>, text: &'r str },
    Tombstone,
    Truncate,
    Ignored(&'static str),
}

/// How a source's records are read.
enum Layout {
    Stream(Shape),
    Table(Shape, MessageKey),
    Debezium(Debezium, MessageKey),
}

/// Turns the records of one source into batches.
///
/// A batch must stay below 2 GiB of text in each column (Arrow's 32-bit offsets); the caller's limit on the bytes of an
/// epoch is far below.
pub struct RecordDecoder {
    layout: Layout,
    names: Names,
    /// Indices of the primary key's columns; none for a stream.
    primary_key: Vec<usize>,
    reader: Reader,
    schema: SchemaRef,
    columns: Vec<ColumnBuilder>,
    ops: Vec<Op>,
    unavailable: Vec<(usize, usize)>,
}

impl RecordDecoder {
    pub fn new(source: &Source) -> Self {
        let columns = &source.columns;
        let indices = |names: &[String]| -> Vec<usize> {
            names.iter().filter_map(|name| columns.iter().position(|c| c.name == *name)).collect()
        };
        let primary_key = source.table.as_ref().map_or(Vec::new(), |table| indices(&table.primary_key));
        let schema = match source.table {
            Some(_) => {
                arrow_schema(&columns.iter().map(|c| Column { nullable: true, ..c.clone() }).collect::<Vec<_>>())
            }
            None => arrow_schema(columns),
        };
        let message_key = |default: KeyFormat| {
            let (format, named) = match &source.key {
                Some(key) => (key.format, indices(&key.columns)),
                None => (default, primary_key.clone()),
            };
            MessageKey::new(format, columns, &named, &primary_key)
        };
        let (layout, names) = match (source.format, &source.table) {
            (Format::DebeziumJson, _) => {
                let (debezium, names) = Debezium::new(columns, &primary_key);
                (Layout::Debezium(debezium, message_key(KeyFormat::Json)), names)
            }
            (Format::Json, table) => {
                let (shape, names) = Shape::of_columns(columns, &primary_key, PlainWire);
                let layout = match table {
                    Some(_) => Layout::Table(shape, message_key(KeyFormat::String)),
                    None => Layout::Stream(shape),
                };
                (layout, names)
            }
        };
        let builders = schema.fields().iter().map(|f| ColumnBuilder::new(f.data_type(), 0)).collect();
        Self {
            layout,
            names,
            primary_key,
            reader: Reader::default(),
            schema,
            columns: builders,
            ops: Vec::new(),
            unavailable: Vec::new(),
        }
    }

    /// Appends the record's rows, or leaves the batch as it was.
    pub fn push(&mut self, key: Option<&[u8]>, value: Option<&[u8]>) -> Result<Pushed, RowError> {
        self.reader.clear();
        let outcome = self.read(key, value).and_then(|outcome| {
            if let Outcome::Rows { upsert: Some(first), .. } = outcome {
                self.check(first)?;
            }
            Ok(outcome)
        });
        match outcome {
            Ok(Outcome::Rows { delete, upsert, text }) => {
                let before = self.ops.len();
                for (op, first) in [(Op::Delete, delete), (Op::Upsert, upsert)] {
                    if let Some(first) = first {
                        self.append(op, first, text);
                    }
                }
                Ok(Pushed::Rows(self.ops.len() - before))
            }
            Ok(Outcome::Tombstone) => Ok(Pushed::Tombstone),
            Ok(Outcome::Truncate) => Ok(Pushed::Truncate),
            Ok(Outcome::Ignored(what)) => Ok(Pushed::Ignored(what)),
            Err(problem) => Err(self.describe(problem, value)),
        }
    }

    /// Rows since the last `finish`.
    pub fn rows(&self) -> usize {
        self.ops.len()
    }

    /// Hands out the rows and begins a new batch.
    pub fn finish(&mut self) -> Decoded {
        let arrays = self.columns.iter_mut().map(ColumnBuilder::take).collect();
        // A source of which no column is used still has rows.
        let options = RecordBatchOptions::new().with_row_count(Some(self.ops.len()));
        let batch = RecordBatch::try_new_with_options(self.schema.clone(), arrays, &options)
            .expect("each column was appended to once for each row, nulls only where they are allowed");
        Decoded { batch, ops: std::mem::take(&mut self.ops), unavailable: std::mem::take(&mut self.unavailable) }
    }

    fn read<'r>(&mut self, key: Option<&'r [u8]>, value: Option<&'r [u8]>) -> Result<Outcome<'r>, Problem> {
        let reader = &mut self.reader;
        let Some(bytes) = value else {
            return match &mut self.layout {
                Layout::Stream(_) => Ok(Outcome::Tombstone),
                Layout::Table(_, message_key) => {
                    let row = message_key.read(reader, key)?;
                    Ok(Outcome::Rows { delete: Some(row.first), upsert: None, text: row.text })
                }
                Layout::Debezium(_, message_key) => Ok(debezium::tombstone(reader, message_key, key)),
            };
        };
        // Positions on the tape are 32 bits wide; no value is longer than the record.
        if bytes.len() >= 1 << 31 {
            return Err(ErrorCode::TooLarge.into());
        }
        let text = str::from_utf8(bytes).map_err(|e| Fault { code: ErrorCode::BadUtf8, at: e.valid_up_to() })?;
        match &mut self.layout {
            Layout::Debezium(debezium, message_key) => debezium.read(reader, message_key, key, text),
            Layout::Stream(shape) | Layout::Table(shape, _) => {
                let mut cursor = Cursor::new(text);
                if cursor.peek() != b'{' {
                    cursor.skip(0)?;
                    cursor.end()?;
                    return Err(Fault { code: ErrorCode::WrongType, at: 0 }.into());
                }
                let first = reader.object(shape, &mut cursor, 0)?;
                cursor.end()?;
                Ok(Outcome::Rows { delete: None, upsert: Some(first), text })
            }
        }
    }

    /// The row at `first` is whole: the first mistake in the order of the columns, else a hole in the primary key.
    fn check(&self, first: usize) -> Result<(), Problem> {
        let values = self.reader.values(first, self.columns.len());
        for value in values {
            if let Value::Bad(mistake) = value {
                return Err(Problem::Column(*mistake));
            }
        }
        for column in &self.primary_key {
            if let Value::Null | Value::Unavailable = values[*column] {
                return Err(ErrorCode::NullKey.into());
            }
        }
        Ok(())
    }

    fn append(&mut self, op: Op, first: usize, text: &str) {
        let row = self.ops.len();
        let values = self.reader.values(first, self.columns.len());
        for (i, (column, value)) in self.columns.iter_mut().zip(values).enumerate() {
            if let Value::Unavailable = value {
                self.unavailable.push((row, i));
            }
            column.append(*value, text, &self.reader);
        }
        self.ops.push(op);
    }

    #[cold]
    fn describe(&self, problem: Problem, value: Option<&[u8]>) -> RowError {
        let framed = value.is_some_and(|v| v.first() == Some(&0));
        let (code, text) = match problem {
            Problem::Fault(_) if framed => (ErrorCode::BadFraming, ErrorCode::BadFraming.text().to_owned()),
            Problem::Fault(Fault { code, at }) => (code, format!("{} at byte {at}", code.text())),
            Problem::Record(code) => (code, code.text().to_owned()),
            Problem::Column(Mistake { code, field }) => {
                let (path, data_type) = self.names.get(field);
                (code, format!("column '{path}' {data_type}: {}", code.text()))
            }
        };
        RowError { code, text }
    }
}

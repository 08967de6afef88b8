//! Debezium's change events as JSON, to upserts and deletes of a table's rows.
//!
//! The envelope is `{"before":…,"after":…,"op":…,…}`, alone or as `payload` beside its `schema`. It is walked twice:
//! once to find and check its parts (`op` comes last, and a schema may come behind the payload), once to read the rows.
//!
//! | `op` | becomes |
//! | --- | --- |
//! | `c`, `r` (snapshot, whatever `source.snapshot` says) | upsert of `after` |
//! | `u` | upsert of `after`; if `before` holds another primary key, a delete of that one first |
//! | `d` | delete of the key in `before`, else of the message key |
//! | `t` | truncate |
//! | null value (tombstone) | delete of the message key; again, if `d` came before it |
//! | `m`, and records without `op` that are a heartbeat, a schema change or a transaction marker | ignored |

use millrace_core::schema::Column;

use super::connect_schema::{ConnectShapes, Part};
use super::lexer::{Cursor, Fault, Span};
use super::message_key::{MessageKey, keep_only};
use super::reader::Reader;
use super::shape::{Names, Value};
use super::{ErrorCode, Outcome, Problem};

#[derive(Debug)]
pub(super) struct Debezium {
    shapes: ConnectShapes,
    primary_key: Vec<usize>,
    columns: usize,
}

/// The parts of an envelope: ranges of JSON that was checked.
#[derive(Default)]
struct Envelope {
    op: Option<Span>,
    before: Option<Span>,
    after: Option<Span>,
    schema: Option<Span>,
    payload: Option<Span>,
    /// What records that are no change of a row look like.
    timestamp: bool,
    status: bool,
    ddl: bool,
    members: usize,
}

impl Envelope {
    fn scan<'s>(cursor: &mut Cursor<'_>, known: impl Iterator<Item = &'s str>) -> Result<Self, Fault> {
        if cursor.peek() != b'{' {
            let at = cursor.at();
            cursor.skip(0)?;
            return Err(Fault { code: ErrorCode::BadEnvelope, at });
        }
        cursor.expect(b'{')?;
        let mut envelope = Self::default();
        let mut more = !cursor.eat(b'}');
        let mut known = Some(known);
        while more {
            let name = cursor.name()?.span.of(cursor.text);
            // Schemas are large, and the same for millions of records.
            let value = match known.take_if(|_| name == "schema") {
                Some(known) => skip_known(cursor, known)?,
                None => cursor.skip(1)?,
            };
            envelope.members += 1;
            match name {
                "op" => envelope.op = Some(value),
                "before" => envelope.before = Some(value),
                "after" => envelope.after = Some(value),
                "schema" => envelope.schema = Some(value),
                "payload" => envelope.payload = Some(value),
                "ts_ms" => envelope.timestamp = true,
                "status" => envelope.status = true,
                "ddl" | "tableChanges" => envelope.ddl = true,
                _ => {}
            }
            more = cursor.more(b'}')?;
        }
        Ok(envelope)
    }

    /// What a record without `op` is.
    fn without_op(&self) -> Result<&'static str, ErrorCode> {
        match self {
            Self { ddl: true, .. } => Ok("schema change"),
            Self { status: true, .. } => Ok("transaction marker"),
            Self { timestamp: true, members: 1, .. } => Ok("heartbeat"),
            _ => Err(ErrorCode::BadEnvelope),
        }
    }
}

fn skip_known<'s>(cursor: &mut Cursor<'_>, known: impl Iterator<Item = &'s str>) -> Result<Span, Fault> {
    cursor.peek();
    let start = cursor.at();
    for text in known {
        if cursor.eat_known(text) {
            return Ok(Span::new(start, cursor.at()));
        }
    }
    cursor.skip(1)
}

/// `None` for JSON's null.
fn object(span: Option<Span>, text: &str) -> Option<Span> {
    span.filter(|s| s.of(text) != "null")
}

impl Debezium {
    pub fn new(columns: &[Column], primary_key: &[usize]) -> (Self, Names) {
        let (shapes, names) = ConnectShapes::new(Part::Value, columns, primary_key);
        (Self { shapes, primary_key: primary_key.to_vec(), columns: columns.len() }, names)
    }

    pub fn read<'r>(
        &mut self,
        reader: &mut Reader,
        key: &mut MessageKey,
        key_bytes: Option<&'r [u8]>,
        text: &'r str,
    ) -> Result<Outcome<'r>, Problem> {
        let mut cursor = Cursor::new(text);
        if cursor.peek() == b'n' {
            cursor.literal("null")?;
            cursor.end()?;
            return Ok(tombstone(reader, key, key_bytes));
        }
        let mut envelope = Envelope::scan(&mut cursor, self.shapes.known())?;
        cursor.end()?;
        let mut schema = None;
        if let (None, Some(payload)) = (envelope.op, envelope.payload) {
            let Some(payload) = object(Some(payload), text) else { return Ok(tombstone(reader, key, key_bytes)) };
            schema = envelope.schema;
            envelope = Envelope::scan(&mut Cursor::over(text, payload), std::iter::empty())?;
        }
        let Some(op) = envelope.op else { return Ok(Outcome::Ignored(envelope.without_op()?)) };
        match op.of(text) {
            r#""c""# | r#""r""# => self.upsert(reader, text, schema, envelope.after, None),
            r#""u""# => self.upsert(reader, text, schema, envelope.after, envelope.before),
            r#""d""# => self.delete(reader, text, schema, envelope.before, key, key_bytes),
            r#""t""# => Ok(Outcome::Truncate),
            r#""m""# => Ok(Outcome::Ignored("logical decoding message")),
            _ => Err(ErrorCode::BadEnvelope.into()),
        }
    }

    fn upsert<'r>(
        &mut self,
        reader: &mut Reader,
        text: &'r str,
        schema: Option<Span>,
        after: Option<Span>,
        before: Option<Span>,
    ) -> Result<Outcome<'r>, Problem> {
        let after = object(after, text).ok_or(ErrorCode::BadEnvelope)?;
        let new = self.row(reader, text, schema, after)?;
        let old = match object(before, text) {
            // A before-image that is not there or holds no key says nothing: the row is updated by its key.
            Some(before) => self.key_of(reader, text, schema, before).ok(),
            None => None,
        };
        let old = old.filter(|old| {
            let (old, new) = (reader.values(*old, self.columns), reader.values(new, self.columns));
            !self.primary_key.iter().all(|c| reader.same(old[*c], new[*c], text))
        });
        Ok(Outcome::Rows { delete: old, upsert: Some(new), text })
    }

    fn delete<'r>(
        &mut self,
        reader: &mut Reader,
        text: &'r str,
        schema: Option<Span>,
        before: Option<Span>,
        key: &mut MessageKey,
        key_bytes: Option<&'r [u8]>,
    ) -> Result<Outcome<'r>, Problem> {
        let mut problem = None;
        if let Some(before) = object(before, text) {
            match self.key_of(reader, text, schema, before) {
                Ok(first) => return Ok(Outcome::Rows { delete: Some(first), upsert: None, text }),
                Err(found) => problem = Some(found),
            }
        }
        match key.read(reader, key_bytes) {
            Ok(row) => Ok(Outcome::Rows { delete: Some(row.first), upsert: None, text: row.text }),
            Err(code) => Err(problem.unwrap_or(code.into())),
        }
    }

    fn row(&mut self, reader: &mut Reader, text: &str, schema: Option<Span>, span: Span) -> Result<usize, Problem> {
        let mut cursor = Cursor::over(text, span);
        if cursor.peek() != b'{' {
            return Err(ErrorCode::BadEnvelope.into());
        }
        let shape = self.shapes.get(schema.map(|s| s.of(text)));
        Ok(reader.object_with_placeholders(shape, &mut cursor)?)
    }

    /// The primary key of the row at `span`, its other columns null.
    fn key_of(&mut self, reader: &mut Reader, text: &str, schema: Option<Span>, span: Span) -> Result<usize, Problem> {
        let first = self.row(reader, text, schema, span)?;
        let values = reader.values_mut(first, self.columns);
        keep_only(values, &self.primary_key);
        for column in &self.primary_key {
            match values[*column] {
                Value::Null | Value::Unavailable => return Err(ErrorCode::NullKey.into()),
                Value::Bad(mistake) => return Err(Problem::Column(mistake)),
                _ => {}
            }
        }
        Ok(first)
    }
}

/// Debezium writes a tombstone behind each `d`, for Kafka's compaction. Where the key names the row it is applied
/// again, which changes nothing; where it can't be read, `d` has done it.
pub(super) fn tombstone<'r>(reader: &mut Reader, key: &mut MessageKey, bytes: Option<&'r [u8]>) -> Outcome<'r> {
    match key.read(reader, bytes) {
        Ok(row) => Outcome::Rows { delete: Some(row.first), upsert: None, text: row.text },
        Err(_) => Outcome::Ignored("tombstone without a readable key"),
    }
}

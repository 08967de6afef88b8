//! Bytes to Arrow columns, also when the columns have changed since the bytes were written.
//!
//! Two halves, so that rows of several layouts can be read into one batch: [`RowMapping`] says how the columns of one
//! layout go to the wanted ones, [`RowBuilders`] holds the wanted columns. Columns meet by name, at every depth of ROW:
//! one that is not wanted is skipped, one that is not stored is null, INT is read as BIGINT where that is wanted.

use arrow::array::ArrayRef;
use millrace_core::schema::{Column, DataType};
use millrace_plan::arrow_schema::{arrow_field, arrow_type};

use super::builders::{ColumnBuilder, ListBuilder, ValuesBuilder};
use super::{Reader, RowCodecError, RowTypeError};

/// Reads rows of one layout.
#[derive(Debug)]
pub struct RowDecoder {
    mapping: RowMapping,
    builders: RowBuilders,
}

impl RowDecoder {
    /// `stored` are the columns that the rows were written with, `wanted` those of the batches.
    pub fn new(stored: &[Column], wanted: &[Column]) -> Result<Self, RowTypeError> {
        Ok(Self { mapping: RowMapping::new(stored, wanted)?, builders: RowBuilders::new(wanted) })
    }

    /// Adds a row. After an error the decoder is as it was before.
    pub fn push(&mut self, row: &[u8]) -> Result<(), RowCodecError> {
        self.builders.push(&self.mapping, row)
    }

    /// Adds a row in which all wanted columns are null, whether they are nullable or not: the missing side of a join.
    pub fn push_null(&mut self) {
        self.builders.push_null();
    }

    /// Rows since the last [`Self::finish`].
    pub fn rows(&self) -> usize {
        self.builders.rows
    }

    /// The wanted columns; the decoder is empty again.
    pub fn finish(&mut self) -> Vec<ArrayRef> {
        self.builders.finish()
    }
}

/// The wanted columns, under construction.
#[derive(Debug)]
pub(crate) struct RowBuilders {
    columns: Vec<ColumnBuilder>,
    rows: usize,
}

impl RowBuilders {
    pub(crate) fn new(wanted: &[Column]) -> Self {
        Self { columns: wanted.iter().map(|c| ColumnBuilder::new(&arrow_type(&c.data_type))).collect(), rows: 0 }
    }

    /// `mapping` must have been made for the same wanted columns.
    pub(crate) fn push(&mut self, mapping: &RowMapping, row: &[u8]) -> Result<(), RowCodecError> {
        let mut reader = Reader::new(row);
        match mapping.append(&mut reader, &mut self.columns).and_then(|()| reader.end()) {
            Ok(()) => {
                self.rows += 1;
                Ok(())
            }
            Err(error) => {
                self.columns.iter_mut().for_each(|column| column.truncate(self.rows));
                Err(error)
            }
        }
    }

    pub(crate) fn push_null(&mut self) {
        self.columns.iter_mut().for_each(ColumnBuilder::push_null);
        self.rows += 1;
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn finish(&mut self) -> Vec<ArrayRef> {
        self.rows = 0;
        self.columns.iter_mut().map(ColumnBuilder::finish).collect()
    }
}

/// How rows of one layout become the wanted columns.
#[derive(Debug)]
pub(crate) struct RowMapping {
    stored: Vec<StoredColumn>,
    /// Wanted columns that this layout does not have.
    absent: Vec<usize>,
}

#[derive(Debug)]
struct StoredColumn {
    codec: Codec,
    target: Target,
}

/// Where a stored value goes.
#[derive(Clone, Copy, Debug)]
enum Target {
    Skipped,
    Column(usize),
    /// A field that is NOT NULL, inside of a ROW: Arrow has no way to hold a null there.
    Required(usize),
}

#[derive(Debug)]
enum Codec {
    Boolean,
    Fixed4,
    /// INT that is wanted as BIGINT.
    Widened,
    Fixed8,
    Fixed16,
    Text,
    Bytes,
    Array(Box<Codec>),
    Row(RowMapping),
}

impl RowMapping {
    /// An error if the rows cannot be read as the wanted columns: another type, or a wanted column that is NOT NULL
    /// where the stored rows have none or may have null.
    pub(crate) fn new(stored: &[Column], wanted: &[Column]) -> Result<Self, RowTypeError> {
        Self::between(stored, wanted, false)
    }

    fn between(stored: &[Column], wanted: &[Column], nested: bool) -> Result<Self, RowTypeError> {
        let columns = stored.iter().map(|column| {
            let Some(index) = wanted.iter().position(|w| w.name == column.name) else {
                return Ok(StoredColumn { codec: Codec::of(&column.data_type), target: Target::Skipped });
            };
            let want = &wanted[index];
            if column.nullable && !want.nullable {
                return Err(RowTypeError::Required(want.name.clone()));
            }
            let codec = Codec::between(&column.data_type, want)?;
            let required = nested && !arrow_field(want).is_nullable();
            Ok(StoredColumn { codec, target: if required { Target::Required(index) } else { Target::Column(index) } })
        });
        let columns = columns.collect::<Result<_, _>>()?;
        let absent: Vec<usize> =
            (0..wanted.len()).filter(|i| stored.iter().all(|s| s.name != wanted[*i].name)).collect();
        match absent.iter().find(|i| !wanted[**i].nullable) {
            Some(required) => Err(RowTypeError::Required(wanted[*required].name.clone())),
            None => Ok(Self { stored: columns, absent }),
        }
    }

    /// Reads one row into the columns. On an error some of them may have got a value and some not.
    fn append(&self, reader: &mut Reader<'_>, columns: &mut [ColumnBuilder]) -> Result<(), RowCodecError> {
        let nulls = reader.bitmap(self.stored.len())?;
        for (i, column) in self.stored.iter().enumerate() {
            match (nulls.is_null(i), column.target) {
                (true, Target::Skipped) => {}
                (true, Target::Column(target)) => columns[target].push_null(),
                (true, Target::Required(_)) => return Err(RowCodecError::RequiredField),
                (false, Target::Skipped) => column.codec.skip(reader)?,
                (false, Target::Column(target) | Target::Required(target)) => {
                    column.codec.append(reader, &mut columns[target])?;
                }
            }
        }
        for absent in &self.absent {
            columns[*absent].push_null();
        }
        Ok(())
    }

    fn skip(&self, reader: &mut Reader<'_>) -> Result<(), RowCodecError> {
        let nulls = reader.bitmap(self.stored.len())?;
        for (i, column) in self.stored.iter().enumerate() {
            if !nulls.is_null(i) {
                column.codec.skip(reader)?;
            }
        }
        Ok(())
    }
}

impl Codec {
    /// For a value that nobody wants.
    fn of(stored: &DataType) -> Self {
        match stored {
            DataType::Boolean => Self::Boolean,
            DataType::Int | DataType::Date => Self::Fixed4,
            DataType::Bigint | DataType::Double | DataType::Timestamp(_) => Self::Fixed8,
            DataType::Decimal { .. } => Self::Fixed16,
            DataType::String => Self::Text,
            DataType::Bytes => Self::Bytes,
            DataType::Array(item) => Self::Array(Box::new(Self::of(item))),
            DataType::Row(fields) => Self::Row(RowMapping {
                stored: fields
                    .iter()
                    .map(|field| StoredColumn { codec: Self::of(&field.data_type), target: Target::Skipped })
                    .collect(),
                absent: Vec::new(),
            }),
        }
    }

    fn between(stored: &DataType, wanted: &Column) -> Result<Self, RowTypeError> {
        match (stored, &wanted.data_type) {
            (DataType::Int, DataType::Bigint) => Ok(Self::Widened),
            (DataType::Array(stored), DataType::Array(want)) => {
                let item = Column { name: wanted.name.clone(), data_type: (**want).clone(), nullable: true };
                Ok(Self::Array(Box::new(Self::between(stored, &item)?)))
            }
            (DataType::Row(stored), DataType::Row(want)) => Ok(Self::Row(RowMapping::between(stored, want, true)?)),
            (stored, want) if stored == want => Ok(Self::of(stored)),
            (stored, want) => Err(RowTypeError::Incompatible {
                column: wanted.name.clone(),
                stored: stored.clone(),
                wanted: want.clone(),
            }),
        }
    }

    fn append(&self, reader: &mut Reader<'_>, column: &mut ColumnBuilder) -> Result<(), RowCodecError> {
        match (self, &mut column.values) {
            (Self::Boolean, ValuesBuilder::Boolean(values)) => values.append(reader.boolean()?),
            (Self::Fixed4, ValuesBuilder::Fixed4(values)) => values.push(i32::from_le_bytes(reader.fixed()?)),
            (Self::Widened, ValuesBuilder::Fixed8(values)) => {
                values.push(i64::from(i32::from_le_bytes(reader.fixed()?)));
            }
            (Self::Fixed8, ValuesBuilder::Fixed8(values)) => values.push(i64::from_le_bytes(reader.fixed()?)),
            (Self::Fixed16, ValuesBuilder::Fixed16(values)) => values.push(i128::from_le_bytes(reader.fixed()?)),
            (Self::Text, ValuesBuilder::Bytes(bytes)) => bytes.push(reader.text()?)?,
            (Self::Bytes, ValuesBuilder::Bytes(bytes)) => bytes.push(reader.bytes()?)?,
            (Self::Array(item), ValuesBuilder::Array(list)) => append_items(item, reader, list)?,
            (Self::Row(mapping), ValuesBuilder::Row(fields)) => mapping.append(reader, fields)?,
            (codec, _) => unreachable!("mapping and builders have the same wanted columns, yet {codec:?} differs"),
        }
        column.end_value();
        Ok(())
    }

    fn skip(&self, reader: &mut Reader<'_>) -> Result<(), RowCodecError> {
        match self {
            Self::Boolean => reader.boolean().map(drop),
            Self::Fixed4 | Self::Widened => reader.take(4).map(drop),
            Self::Fixed8 => reader.take(8).map(drop),
            Self::Fixed16 => reader.take(16).map(drop),
            Self::Text | Self::Bytes => reader.bytes().map(drop),
            Self::Array(item) => {
                let count = reader.length()?;
                let nulls = reader.bitmap(count)?;
                (0..count).filter(|i| !nulls.is_null(*i)).try_for_each(|_| item.skip(reader))
            }
            Self::Row(mapping) => mapping.skip(reader),
        }
    }
}

/// The bitmap bounds the count by the bytes that are there, so a damaged count cannot ask for much memory.
fn append_items(item: &Codec, reader: &mut Reader<'_>, list: &mut ListBuilder) -> Result<(), RowCodecError> {
    let count = reader.length()?;
    let nulls = reader.bitmap(count)?;
    for i in 0..count {
        if nulls.is_null(i) {
            list.items.push_null();
        } else {
            item.append(reader, &mut list.items)?;
        }
    }
    list.end_list()
}

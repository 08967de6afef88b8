//! The one mapping from our column types to Arrow.
//!
//! Decoders, state, joins, expressions and encoders all take their schemas from here, so two of them can never disagree
//! about how a type looks in memory. A timestamp has no zone: every one of them is UTC.

use std::sync::Arc;

use arrow::datatypes::{DataType as ArrowType, Field, Fields, Schema, SchemaRef, TimeUnit};
use millrace_core::schema::{Column, DataType};

/// Name of the item field of a list. It is Arrow's own default, which DataFusion's functions expect.
const LIST_ITEM: &str = "item";

pub fn arrow_type(data_type: &DataType) -> ArrowType {
    match data_type {
        DataType::Boolean => ArrowType::Boolean,
        DataType::Int => ArrowType::Int32,
        DataType::Bigint => ArrowType::Int64,
        DataType::Double => ArrowType::Float64,
        DataType::Decimal { precision, scale } => ArrowType::Decimal128(*precision, *scale as i8),
        DataType::String => ArrowType::Utf8,
        DataType::Bytes => ArrowType::Binary,
        DataType::Date => ArrowType::Date32,
        DataType::Timestamp(digits) => ArrowType::Timestamp(time_unit(*digits), None),
        DataType::Array(item) => ArrowType::List(Arc::new(Field::new(LIST_ITEM, arrow_type(item), true))),
        DataType::Row(fields) => ArrowType::Struct(fields.iter().map(arrow_field).collect::<Fields>()),
    }
}

pub fn arrow_field(column: &Column) -> Field {
    Field::new(&column.name, arrow_type(&column.data_type), column.nullable)
}

pub fn arrow_schema(columns: &[Column]) -> SchemaRef {
    Arc::new(Schema::new(columns.iter().map(arrow_field).collect::<Fields>()))
}

/// The unit that holds `digits` of a second: types allow 3, 6 and 9.
fn time_unit(digits: u8) -> TimeUnit {
    match digits {
        0..=3 => TimeUnit::Millisecond,
        4..=6 => TimeUnit::Microsecond,
        _ => TimeUnit::Nanosecond,
    }
}

/// The column type for an Arrow type that an expression gave. `None`: we have no such type.
///
/// Whatever DataFusion computes in is narrowed to the types that users know: small integers become INT, unsigned ones
/// and lengths BIGINT, string views and large strings STRING. [`crate::expr`] casts the value to match.
pub fn column_type(arrow: &ArrowType) -> Option<DataType> {
    Some(match arrow {
        ArrowType::Boolean => DataType::Boolean,
        ArrowType::Int8 | ArrowType::Int16 | ArrowType::Int32 | ArrowType::UInt8 | ArrowType::UInt16 => DataType::Int,
        ArrowType::Int64 | ArrowType::UInt32 | ArrowType::UInt64 => DataType::Bigint,
        ArrowType::Float16 | ArrowType::Float32 | ArrowType::Float64 => DataType::Double,
        ArrowType::Decimal128(precision, scale) if *scale >= 0 => {
            DataType::Decimal { precision: *precision, scale: *scale as u8 }
        }
        ArrowType::Utf8 | ArrowType::LargeUtf8 | ArrowType::Utf8View => DataType::String,
        ArrowType::Binary | ArrowType::LargeBinary | ArrowType::BinaryView | ArrowType::FixedSizeBinary(_) => {
            DataType::Bytes
        }
        ArrowType::Date32 | ArrowType::Date64 => DataType::Date,
        ArrowType::Timestamp(unit, _) => DataType::Timestamp(match unit {
            TimeUnit::Second | TimeUnit::Millisecond => 3,
            TimeUnit::Microsecond => 6,
            TimeUnit::Nanosecond => 9,
        }),
        ArrowType::List(item) | ArrowType::LargeList(item) => DataType::Array(Box::new(column_type(item.data_type())?)),
        ArrowType::Struct(fields) => DataType::Row(
            fields
                .iter()
                .map(|f| {
                    Some(Column {
                        name: f.name().clone(),
                        data_type: column_type(f.data_type())?,
                        nullable: f.is_nullable(),
                    })
                })
                .collect::<Option<Vec<_>>>()?,
        ),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_survives_the_way_to_arrow_and_back() {
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
            "TIMESTAMP(6)",
            "TIMESTAMP(9)",
            "ARRAY<ROW<a INT NOT NULL, b ARRAY<STRING>>>",
        ] {
            let data_type: DataType = text.parse().expect(text);
            assert_eq!(column_type(&arrow_type(&data_type)), Some(data_type), "{text}");
        }
    }
}

//! What is done with the rows.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::source::JoinDefaults;
use super::text::{ColumnText, ExpressionText, NameText, RawObject};
use crate::duration::Duration;

/// One step: a name, an input, and exactly one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// The step's identity, which its state belongs to: at most 40 of a-z, 0-9, '-' and '_', beginning with a letter.
    #[schemars(with = "NameText")]
    pub name: String,

    /// Name of the source or step whose rows it takes.
    #[schemars(with = "NameText")]
    pub from: String,

    /// Filters rows and computes columns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<Project>,

    /// Joins each row with the latest row of a table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table_join: Option<TableJoin>,

    /// Joins each row with the version of a table's row that was valid at the row's event time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temporal_join: Option<TemporalJoin>,

    /// Joins each row with a table that every worker holds whole. Not available in this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<RawObject>")]
    pub broadcast_join: Option<Map<String, Value>>,

    /// Joins each row with what an outside service answers. Not available in this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<RawObject>")]
    pub lookup_join: Option<Map<String, Value>>,

    /// Joins two streams whose event times are near each other. Not available in this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<RawObject>")]
    pub interval_join: Option<Map<String, Value>>,

    /// Merges several sources into one row by primary key. Not available in this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<RawObject>")]
    pub merge: Option<Map<String, Value>>,

    /// Joins two tables' changes without state of its own. Not available in this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<RawObject>")]
    pub delta_join: Option<Map<String, Value>>,
}

/// The kind of a step, borrowed from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StepKind<'a> {
    Project(&'a Project),
    TableJoin(&'a TableJoin),
    TemporalJoin(&'a TemporalJoin),
}

impl Step {
    /// The kind; `None` where it is not exactly one that this version serves, which [`crate::check::parse`] refuses.
    pub fn kind(&self) -> Option<StepKind<'_>> {
        match (&self.project, &self.table_join, &self.temporal_join) {
            (Some(project), None, None) => Some(StepKind::Project(project)),
            (None, Some(join), None) => Some(StepKind::TableJoin(join)),
            (None, None, Some(join)) => Some(StepKind::TemporalJoin(join)),
            _ => None,
        }
    }
}

/// `SELECT select WHERE where`. At least one of the two is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Project {
    /// SQL condition over the input's columns; rows for which it is not true are dropped and counted. Default: all rows
    /// pass.
    #[serde(default, rename = "where", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ExpressionText>")]
    pub filter: Option<String>,

    /// Columns of the output: SQL expressions over the input's columns, each a column or with `AS name`. Default: all
    /// columns of the input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<ExpressionText>>", length(min = 1, max = 500))]
    pub select: Option<Vec<String>>,
}

/// A join with the latest row of a table. The stream waits until the table is level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TableJoin {
    /// Name of a source with `table`.
    #[schemars(with = "NameText")]
    pub table: String,

    /// What a row without a partner becomes: nothing (Inner) or a row with nulls (Left). Default: Inner.
    #[serde(default)]
    pub join_type: JoinType,

    /// Which column of the input equals which primary-key column of the table; all of the primary key.
    #[schemars(length(min = 1, max = 16))]
    pub keys: Vec<JoinKey>,

    /// What happens to a row without a partner. Default: the table's `defaults.missing`, else Unmatched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<Missing>,

    /// Columns of the output: SQL expressions over the columns of the input and of the table. Default: all columns of
    /// the input, then those of the table that the input does not have by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<ExpressionText>>", length(min = 1, max = 500))]
    pub select: Option<Vec<String>>,
}

/// A join with the version of a table's row that was valid at the row's event time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TemporalJoin {
    /// Name of a source with `table` and `table.versions`.
    #[schemars(with = "NameText")]
    pub table: String,

    /// What a row without a partner becomes: nothing (Inner) or a row with nulls (Left). Default: Inner.
    #[serde(default)]
    pub join_type: JoinType,

    /// Which column of the input equals which primary-key column of the table; all of the primary key.
    #[schemars(length(min = 1, max = 16))]
    pub keys: Vec<JoinKey>,

    /// When a row is joined and emitted. Default: the table's `defaults.emit`, else policy Watermark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emit: Option<Emit>,

    /// What happens to a row that comes after the watermark has passed it. Default: the table's `defaults.late`, else
    /// JoinNow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<Late>,

    /// What happens to a row without a partner. Default: the table's `defaults.missing`, else Unmatched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<Missing>,

    /// Columns of the output: SQL expressions over the columns of the input and of the table. Default: all columns of
    /// the input, then those of the table that the input does not have by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<ExpressionText>>", length(min = 1, max = 500))]
    pub select: Option<Vec<String>>,
}

impl JoinDefaults {
    /// What a join says, else what its table says, else the default.
    pub fn emit(&self, join: Option<&Emit>) -> Emit {
        join.or(self.emit.as_ref()).cloned().unwrap_or_default()
    }

    /// What a join says, else what its table says, else the default.
    pub fn late(&self, join: Option<Late>) -> Late {
        join.or(self.late).unwrap_or_default()
    }

    /// What a join says, else what its table says, else the default.
    pub fn missing(&self, join: Option<Missing>) -> Missing {
        join.or(self.missing).unwrap_or_default()
    }
}

/// Inner or left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum JoinType {
    /// Only rows with a partner.
    #[default]
    Inner,
    /// Every row; nulls where there is no partner.
    Left,
}

/// `left = right`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JoinKey {
    /// Column of the input.
    #[schemars(with = "ColumnText")]
    pub left: String,
    /// Column of the table.
    #[schemars(with = "ColumnText")]
    pub right: String,
}

/// When a row is joined and emitted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Emit {
    /// Watermark, Grace (with `grace`) or Immediate. Default: Watermark.
    #[serde(default)]
    pub policy: EmitPolicy,

    /// With policy Grace: how far the stream's watermark must have passed the row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace: Option<Duration>,
}

/// When a row is joined and emitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EmitPolicy {
    /// When the watermarks of stream and table have passed it: no version that was valid then can still come.
    #[default]
    Watermark,
    /// When the stream's own watermark has passed it by `grace`; the table is not waited for.
    Grace,
    /// At once, with what the table holds.
    Immediate,
}

/// What happens to a row that comes after the watermark has passed it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Late {
    /// It is joined at once as of its own time, and counted.
    #[default]
    JoinNow,
    /// It is treated as a row without a partner.
    Unmatched,
    /// It is dropped and counted.
    Drop,
    /// It goes to the dead-letter topic.
    DeadLetter,
    /// It is joined at once as of its own time, and is not counted.
    Accept,
}

/// What happens to a row without a partner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Missing {
    /// Left joins fill up with nulls, inner joins drop and count it.
    #[default]
    Unmatched,
    /// It goes to the dead-letter topic.
    DeadLetter,
}

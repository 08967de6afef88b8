//! What both front ends ask about a join: its table, what a temporal join needs, and its policies.

use datafusion_sql::sqlparser::ast::Ident;
use millrace_core::plan::{Emit, Late, Missing};
use millrace_crds::pipeline as api;

use crate::catalog::Catalog;
use crate::expr::lookup;
use crate::logical::Flow;
use crate::parse::SqlError;

/// The source with `table` that has this name.
pub fn table(catalog: &Catalog, name: &Ident) -> Result<usize, SqlError> {
    let found = lookup(catalog.sources.iter().map(|s| s.spec.name.as_str()), name)?;
    match found {
        Some(index) if catalog.sources[index].source.table.is_some() => Ok(index),
        Some(_) => {
            let message = format!("'{}' is a stream, and a join needs a table", name.value);
            Err(SqlError::new(message, "add table: {primaryKey: [...]} to that source"))
        }
        None => Err(SqlError::new(format!("there is no table '{}'", name.value), catalog.table_hint(&name.value))),
    }
}

/// What a temporal join lacks.
pub fn temporal_problems(catalog: &Catalog, input: &Flow, table: usize) -> Vec<SqlError> {
    let mut problems = Vec::new();
    let stream = &catalog.sources[input.source];
    if stream.source.event_time.is_none() {
        let message = format!("a temporal join needs the event time of stream '{}'", stream.spec.name);
        problems.push(SqlError::new(message, format!("set {}.eventTime", stream.path)));
    }
    let entry = &catalog.sources[table];
    if entry.source.event_time.is_none() {
        let message = format!("a temporal join needs the time from which a version of '{}' is valid", entry.spec.name);
        problems.push(SqlError::new(message, format!("set {}.eventTime", entry.path)));
    }
    if entry.source.table.as_ref().is_some_and(|t| t.versions_retention_ms.is_none()) {
        let message = format!("a temporal join needs old versions, which table '{}' does not keep", entry.spec.name);
        problems.push(SqlError::new(message, format!("set {}.table.versions.retention, such as 7d", entry.path)));
    }
    problems
}

pub fn emit(emit: &api::Emit) -> Emit {
    match emit.policy {
        api::EmitPolicy::Watermark => Emit::Watermark,
        // The schema's rules demand `grace`; none is no grace.
        api::EmitPolicy::Grace => Emit::GraceMs(emit.grace.map_or(0, |g| g.ms())),
        api::EmitPolicy::Immediate => Emit::Immediate,
    }
}

pub fn late(spec: &api::PipelineSpec, late: api::Late) -> (Late, Option<SqlError>) {
    match late {
        api::Late::JoinNow => (Late::JoinNow, None),
        api::Late::Unmatched => (Late::Unmatched, None),
        api::Late::Drop => (Late::Drop, None),
        api::Late::DeadLetter => (Late::DeadLetter, without_dead_letter(spec)),
        api::Late::Accept => (Late::Accept, None),
    }
}

pub fn missing(spec: &api::PipelineSpec, missing: api::Missing) -> (Missing, Option<SqlError>) {
    match missing {
        api::Missing::Unmatched => (Missing::Unmatched, None),
        api::Missing::DeadLetter => (Missing::DeadLetter, without_dead_letter(spec)),
    }
}

fn without_dead_letter(spec: &api::PipelineSpec) -> Option<SqlError> {
    let problem = || SqlError::new("there is no dead-letter topic", "set spec.deadLetter.kafka.topic");
    spec.dead_letter.is_none().then(problem)
}

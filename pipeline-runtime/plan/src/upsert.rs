//! Upsert sinks: by what a row replaces another one of its key, and whether that can be told.

use millrace_core::plan::Version;
use millrace_core::schema::{Column, DataType};
use millrace_crds::pipeline as api;

use crate::catalog::Catalog;
use crate::expr;
use crate::logical::Flow;
use crate::mistakes::Mistakes;
use crate::names::did_you_mean;

/// Name of a sink's guard. No step has a dot in its name.
pub fn operator(sink: &str) -> String {
    format!("{sink}.upsert")
}

/// `None` for a sink that appends.
pub fn version(write: &api::WriteSpec) -> Option<Version> {
    match (write.mode, &write.version) {
        (api::WriteMode::Append, _) => None,
        (api::WriteMode::Upsert, Some(api::WriteVersion { policy: api::VersionPolicy::Column, column })) => {
            // The schema's rules demand a column; none is a column that is not there.
            Some(Version::Column(column.clone().unwrap_or_default()))
        }
        (api::WriteMode::Upsert, _) => Some(Version::SourcePosition),
    }
}

/// The columns by which rows of an Upsert sink replace each other. The schema's rules demand them.
pub fn key(sink: &api::Sink) -> &[String] {
    sink.key.as_ref().map(|key| key.columns.as_slice()).unwrap_or_default()
}

/// What a version is made of where it is kept, none of it null.
pub fn version_columns(version: &Version, columns: &[Column]) -> Vec<Column> {
    let column = |name: &str, data_type| Column { name: name.to_owned(), data_type, nullable: false };
    match version {
        Version::SourcePosition => vec![column("partition", DataType::Int), column("offset", DataType::Bigint)],
        Version::Column(name) => {
            let of_rows = columns.iter().filter(|c| c.name == *name);
            of_rows.map(|c| column(name, c.data_type.clone())).collect()
        }
    }
}

/// Tells what an Upsert sink lacks; `flow` are its rows.
pub fn check(catalog: &Catalog, sink: usize, flow: &Flow, mistakes: &mut Mistakes) {
    let spec = &catalog.spec.sinks[sink];
    let path = format!("spec.sinks[{sink}]");
    match version(&spec.write) {
        None => return,
        Some(Version::Column(name)) => check_column(flow, &name, &format!("{path}.write.version.column"), mistakes),
        Some(Version::SourcePosition) => check_position(catalog, spec, flow, &path, mistakes),
    }
    for (i, name) in key(spec).iter().enumerate() {
        if flow.columns.iter().any(|c| c.name == *name && c.data_type == DataType::Double) {
            let hint = "name columns whose values are exactly equal or not";
            mistakes.add(
                format!("{path}.key.columns[{i}]"),
                name,
                "has type DOUBLE, which no upsert key can have",
                hint,
            );
        }
    }
    let other =
        catalog.spec.sinks.iter().enumerate().find(|(i, other)| *i != sink && other.kafka.topic == spec.kafka.topic);
    if let Some((_, other)) = other {
        let message = format!("sink '{}' writes to this topic too, and what it writes is not guarded", other.name);
        mistakes.add(format!("{path}.kafka.topic"), &spec.kafka.topic, message, "give each sink its own topic");
    }
}

fn check_column(flow: &Flow, name: &str, path: &str, mistakes: &mut Mistakes) {
    match flow.columns.iter().find(|c| c.name == name).map(|c| &c.data_type) {
        None => {
            let hint = did_you_mean(name, flow.columns.iter().map(|c| c.name.as_str()));
            mistakes.add(path, name, "is not a column of the rows", hint);
        }
        Some(DataType::Int | DataType::Bigint | DataType::Decimal { .. } | DataType::Date | DataType::Timestamp(_)) => {
        }
        Some(other) => {
            let hint = "name a column of type INT, BIGINT, DECIMAL, DATE or TIMESTAMP";
            mistakes.add(path, name, format!("has type {other}, which no version can have"), hint);
        }
    }
}

/// Positions can be compared within one partition of the stream only. The rows of a sink's key come from one if it holds
/// the columns of the stream's own key; that they do is looked at again where they are compared.
fn check_position(catalog: &Catalog, sink: &api::Sink, flow: &Flow, path: &str, mistakes: &mut Mistakes) {
    let stream = &catalog.sources[flow.source].source;
    let Some(stream_key) = &stream.key else {
        let why = format!("nothing is known about how topic '{}' is partitioned", stream.topic);
        let how = format!("declare the key of source '{}'", stream.name);
        return incomparable(&stream.topic, &why, &how, path, mistakes);
    };
    let of_key = |name: &String| flow.columns.iter().find(|c| c.name == *name);
    let held: Vec<&str> = key(sink).iter().filter_map(|name| expr::as_column(&of_key(name)?.expr)).collect();
    let missing: Vec<&str> =
        stream_key.columns.iter().map(String::as_str).filter(|name| !held.contains(name)).collect();
    if !missing.is_empty() {
        let why = format!("the sink's key does not hold ({}) of the stream's key as it is", missing.join(", "));
        incomparable(&stream.topic, &why, "add it to the sink's key", path, mistakes);
    }
}

fn incomparable(topic: &str, why: &str, how: &str, path: &str, mistakes: &mut Mistakes) {
    let message = format!("positions can be compared within one partition of '{topic}' only, and {why}");
    let hint = format!("{how}, or write version: {{policy: Column, column: ...}}");
    mistakes.add(format!("{path}.write.version"), "SourcePosition", message, hint);
}

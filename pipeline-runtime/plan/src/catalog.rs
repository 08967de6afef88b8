//! Sources and sinks of a spec, checked and in the words of the plan.

use millrace_core::plan::{self, Format, Key, KeyFormat, OnError, Partitioner, StartFrom};
use millrace_core::schema::{Column, DataType};
use millrace_crds::pipeline as api;

use crate::expr::{Named, named};
use crate::mistakes::Mistakes;
use crate::names::did_you_mean;

/// What the front ends look names up in.
pub struct Catalog<'a> {
    pub spec: &'a api::PipelineSpec,
    pub sources: Vec<SourceEntry<'a>>,
}

pub struct SourceEntry<'a> {
    pub spec: &'a api::Source,
    pub path: String,
    /// With all columns of the spec.
    pub source: plan::Source,
    pub named: Vec<Named>,
}

impl<'a> Catalog<'a> {
    pub fn new(spec: &'a api::PipelineSpec, mistakes: &mut Mistakes) -> Self {
        let entry = |(i, source)| SourceCheck { spec, source, path: format!("spec.sources[{i}]"), mistakes }.entry();
        let catalog = Self { spec, sources: spec.sources.iter().enumerate().map(entry).collect() };
        catalog.check_names(mistakes);
        catalog.check_topics(mistakes);
        catalog
    }

    pub fn source(&self, name: &str) -> Option<usize> {
        self.sources.iter().position(|s| s.spec.name == name)
    }

    /// What to say after the name of a table that is not there.
    pub fn table_hint(&self, name: &str) -> String {
        did_you_mean(name, self.sources.iter().filter(|s| s.source.table.is_some()).map(|s| s.spec.name.as_str()))
    }

    fn check_names(&self, mistakes: &mut Mistakes) {
        let sources = self.spec.sources.iter().enumerate().map(|(i, s)| (format!("spec.sources[{i}].name"), &s.name));
        let steps = self.spec.steps().iter().enumerate().map(|(i, s)| (format!("spec.steps[{i}].name"), &s.name));
        let sinks = self.spec.sinks.iter().enumerate().map(|(i, s)| (format!("spec.sinks[{i}].name"), &s.name));
        // `from` names sources and steps, so they share one space of names; sinks have their own.
        unique(sources.chain(steps), mistakes);
        unique(sinks, mistakes);
    }

    fn check_topics(&self, mistakes: &mut Mistakes) {
        let read = |topic: &str| self.spec.sources.iter().find(|s| s.kafka.topic == topic);
        for (i, sink) in self.spec.sinks.iter().enumerate() {
            let topic = &sink.kafka.topic;
            let path = format!("spec.sinks[{i}].kafka.topic");
            if let Some(source) = read(topic) {
                let message = format!("source '{}' reads this topic, so the results would come in again", source.name);
                mistakes.add(path, topic, message, "write to another topic");
            } else if self.spec.dead_letter_topic() == Some(topic) {
                mistakes.add(path, topic, "spec.deadLetter writes to this topic too", "give each its own topic");
            }
        }
        if let Some((topic, source)) = self.spec.dead_letter_topic().and_then(|t| Some((t, read(t)?))) {
            let message = format!("source '{}' reads this topic, so dead letters would come in again", source.name);
            mistakes.add("spec.deadLetter.kafka.topic", topic, message, "write to another topic");
        }
    }
}

fn unique<'s>(names: impl Iterator<Item = (String, &'s String)>, mistakes: &mut Mistakes) {
    let mut seen: Vec<(String, &String)> = Vec::new();
    for (path, name) in names {
        match seen.iter().find(|(_, other)| *other == name) {
            Some((first, _)) => {
                mistakes.add(path, name, format!("{first} has this name already"), "choose another one");
            }
            None => seen.push((path, name)),
        }
    }
}

struct SourceCheck<'a, 'm> {
    spec: &'a api::PipelineSpec,
    source: &'a api::Source,
    path: String,
    mistakes: &'m mut Mistakes,
}

impl<'a> SourceCheck<'a, '_> {
    fn entry(mut self) -> SourceEntry<'a> {
        let mut columns = self.columns();
        let key = self
            .source
            .key
            .as_ref()
            .map(|key| checked_key(key, &columns, &format!("{}.key", self.path), self.mistakes));
        let event_time = self.event_time(&columns);
        let table = self.table(&mut columns);
        let format = match self.source.format.kind {
            api::FormatType::Json => Format::Json,
            api::FormatType::DebeziumJson => Format::DebeziumJson,
        };
        if format == Format::DebeziumJson && table.is_none() {
            let message = "change events of a source that is no table are not available in this version";
            let hint = "add table: {primaryKey: [...]}";
            self.mistakes.add(format!("{}.format.type", self.path), "DebeziumJson", message, hint);
        }
        let source = plan::Source {
            name: self.source.name.clone(),
            topic: self.source.kafka.topic.clone(),
            start_from: start_from(&self.source.kafka.start_from),
            until: Vec::new(),
            key,
            format,
            columns,
            event_time,
            table,
            on_error: self.on_error(),
        };
        SourceEntry { spec: self.source, path: self.path, named: named(&source.columns), source }
    }

    fn columns(&mut self) -> Vec<Column> {
        let mut columns: Vec<Column> = Vec::new();
        for (i, column) in self.source.columns.iter().enumerate() {
            let path = format!("{}.columns[{i}]", self.path);
            if columns.iter().any(|c| c.name == column.name) {
                self.mistakes.add(
                    format!("{path}.name"),
                    &column.name,
                    "the source has this column already",
                    "remove one",
                );
                continue;
            }
            if column.name.chars().any(char::is_control) {
                let message = "names with control characters are reserved";
                self.mistakes.add(format!("{path}.name"), &column.name, message, "name the field without them");
            }
            let data_type = column.data_type.parse().unwrap_or_else(|e: millrace_core::schema::TypeError| {
                self.mistakes.add(format!("{path}.type"), &column.data_type, e.to_string(), "");
                // Any type will do: with a mistake there is no plan, and this one lets the others be found.
                DataType::String
            });
            columns.push(Column { name: column.name.clone(), data_type, nullable: column.nullable });
        }
        columns
    }

    fn event_time(&mut self, columns: &[Column]) -> Option<plan::EventTime> {
        let spec = self.source.event_time.as_ref()?;
        if let Some(name) = &spec.column {
            let path = format!("{}.eventTime.column", self.path);
            if let Some(column) = self.find(columns, name, &path)
                && !matches!(column.data_type, DataType::Timestamp(3 | 6))
            {
                let message = format!("has type {}, which is no event time", column.data_type);
                self.mistakes.add(path, name, message, "name a column of type TIMESTAMP(3) or TIMESTAMP(6)");
            }
        }
        let future = match spec.future.policy {
            api::FuturePolicy::Clamp => plan::FuturePolicy::Clamp,
            api::FuturePolicy::Accept => plan::FuturePolicy::Accept,
            api::FuturePolicy::DeadLetter => {
                need_dead_letter(self.spec, &format!("{}.eventTime.future.policy", self.path), self.mistakes);
                plan::FuturePolicy::DeadLetter
            }
        };
        Some(plan::EventTime {
            column: spec.column.clone(),
            max_out_of_orderness_ms: spec.max_out_of_orderness.ms(),
            idle_timeout_ms: spec.idle_timeout.ms(),
            future,
            max_future_skew_ms: spec.future.max_skew.ms(),
        })
    }

    /// A row without its primary key is no row of the table, so these columns are never null, whatever the spec says.
    fn table(&mut self, columns: &mut [Column]) -> Option<plan::Table> {
        let spec = self.source.table.as_ref()?;
        for (i, name) in spec.primary_key.iter().enumerate() {
            let path = format!("{}.table.primaryKey[{i}]", self.path);
            if spec.primary_key[..i].contains(name) {
                self.mistakes.add(path, name, "the primary key has this column already", "remove one");
                continue;
            }
            let Some(column) = self.find(columns, name, &path).map(|c| c.name.clone()) else { continue };
            let column = columns.iter_mut().find(|c| c.name == column).expect("it was found by name");
            if matches!(column.data_type, DataType::Array(_) | DataType::Row(_) | DataType::Double) {
                let message = format!("has type {}, which no primary key can have", column.data_type);
                self.mistakes.add(path, name, message, "name columns whose values are exactly equal or not");
            }
            column.nullable = false;
        }
        Some(plan::Table {
            primary_key: spec.primary_key.clone(),
            versions_retention_ms: spec.versions.map(|v| v.retention.ms()),
            ttl_ms: spec.ttl.ms(),
        })
    }

    fn on_error(&mut self) -> OnError {
        match self.spec.on_error(self.source) {
            api::OnError::Stop => OnError::Stop,
            api::OnError::Skip => OnError::Skip,
            api::OnError::DeadLetter => {
                need_dead_letter(self.spec, &format!("{}.onError", self.path), self.mistakes);
                OnError::DeadLetter
            }
        }
    }

    fn find<'c>(&mut self, columns: &'c [Column], name: &str, path: &str) -> Option<&'c Column> {
        let found = columns.iter().find(|c| c.name == name);
        if found.is_none() {
            let hint = did_you_mean(name, columns.iter().map(|c| c.name.as_str()));
            self.mistakes.add(path, name, "is not a column of the source", hint);
        }
        found
    }
}

/// A policy that sends records to the dead-letter topic needs one.
pub fn need_dead_letter(spec: &api::PipelineSpec, path: &str, mistakes: &mut Mistakes) {
    if spec.dead_letter.is_none() {
        mistakes.add(path, "DeadLetter", "there is no dead-letter topic", "set spec.deadLetter.kafka.topic");
    }
}

/// The key of a source or a sink with `columns`.
pub fn checked_key(key: &api::KeySpec, columns: &[Column], path: &str, mistakes: &mut Mistakes) -> Key {
    let format = match key.format.kind {
        api::KeyFormatType::String => KeyFormat::String,
        api::KeyFormatType::Json => KeyFormat::Json,
    };
    if format == KeyFormat::String && key.columns.len() > 1 {
        let message = "must be a single column for key format String";
        mistakes.add(format!("{path}.columns"), &key.columns.join(", "), message, "write format {type: Json}");
    }
    for (i, name) in key.columns.iter().enumerate() {
        let path = format!("{path}.columns[{i}]");
        match columns.iter().find(|c| c.name == *name) {
            None => {
                let hint = did_you_mean(name, columns.iter().map(|c| c.name.as_str()));
                mistakes.add(path, name, "is not a column of the rows", hint);
            }
            Some(Column {
                data_type: data_type @ (DataType::Array(_) | DataType::Row(_) | DataType::Bytes), ..
            }) => {
                mistakes.add(path, name, format!("has type {data_type}, which no key can hold"), "name another column");
            }
            Some(_) => {}
        }
    }
    let partitioner = match key.partitioner {
        api::Partitioner::Murmur2 => Partitioner::Murmur2,
        api::Partitioner::Crc32 => Partitioner::Crc32,
    };
    Key { columns: key.columns.clone(), format, partitioner }
}

fn start_from(spec: &api::StartFrom) -> StartFrom {
    match spec.policy {
        api::StartPolicy::Latest => StartFrom::Latest,
        // The schema's rules let neither be missing; without them the default is the safe side: everything.
        api::StartPolicy::Timestamp => spec.timestamp.map_or(StartFrom::Earliest, |t| StartFrom::Timestamp(t.ms())),
        api::StartPolicy::Offsets => spec.offsets.as_ref().map_or(StartFrom::Earliest, |offsets| {
            let mut offsets: Vec<_> = offsets.iter().map(|o| (o.partition, o.offset)).collect();
            offsets.sort_unstable();
            StartFrom::Offsets(offsets)
        }),
        api::StartPolicy::Earliest => StartFrom::Earliest,
    }
}

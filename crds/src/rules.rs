//! Rules over several fields of one object: unions and what depends on them.
//!
//! Each row holds a rule twice, as CEL for the API server and as its Rust twin for `millrace validate`, side by side so
//! that nobody changes one alone. Both see the object after defaults were applied, and both are asked only for objects
//! whose own shape is right. `tests/bad_specs.yaml` runs through both. What crosses parts of a spec (does this step
//! exist?) is the plan compiler's.

use serde_json::{Map, Value};

use crate::duration::Duration;
use crate::timestamp::Timestamp;

/// An object of the spec, with defaults.
pub type Object = Map<String, Value>;

/// The Rust half of a rule; true where the rule holds.
#[derive(Clone, Copy)]
pub enum Twin {
    /// About the object at `at`.
    Object(fn(&Object) -> bool),
    /// About each item of a list in it, so that the mistake names the item.
    Items { list: &'static str, holds: fn(object: &Object, item: &Object) -> bool },
    /// About the object before and after an edit.
    Edit(fn(old: &Object, new: &Object) -> bool),
}

/// A rule.
pub struct Rule {
    /// Patterns of the objects that it is about.
    pub at: &'static [&'static str],
    /// The field that a mistake points to (of the item, for `Twin::Items`); empty for the object itself.
    pub field: &'static str,
    pub cel: &'static str,
    pub twin: Twin,
    pub message: &'static str,
    pub hint: &'static str,
}

fn has(object: &Object, field: &str) -> bool {
    object.contains_key(field)
}

fn is(object: &Object, field: &str, text: &str) -> bool {
    object.get(field).is_some_and(|value| value == text)
}

fn count(object: &Object, fields: &[&str]) -> usize {
    fields.iter().filter(|field| has(object, field)).count()
}

/// Longest commit interval: half of the transaction timeout (10 s), so that a commit that is due is never aborted.
pub const COMMIT_INTERVAL_MAX: Duration = Duration::from_secs(5);

fn commit_interval_is_in_range(delivery: &Object) -> bool {
    is_in_range(delivery, "commitInterval", Duration::from_ms(1), COMMIT_INTERVAL_MAX)
}

fn is_in_range(object: &Object, field: &str, least: Duration, most: Duration) -> bool {
    let text = object.get(field).and_then(Value::as_str).unwrap_or_default();
    // CEL's durations have no days, so that its half must refuse them; no duration in range needs them.
    !text.contains('d') && text.parse::<Duration>().is_ok_and(|duration| (least..=most).contains(&duration))
}

/// The same of a field that may be absent.
fn may_be_in_range(object: &Object, field: &str, least: Duration, most: Duration) -> bool {
    !has(object, field) || is_in_range(object, field, least, most)
}

fn min_is_not_above_max(autoscaling: &Object) -> bool {
    let of = |field: &str| autoscaling.get(field).and_then(Value::as_u64);
    of("minReplicas").zip(of("maxReplicas")).is_none_or(|(min, max)| min <= max)
}

fn key_fits_format(key: &Object) -> bool {
    let string = key.get("format").and_then(|format| format.get("type")).is_some_and(|kind| kind == "String");
    let columns = key.get("columns").and_then(Value::as_array).map_or(0, Vec::len);
    !string || columns == 1
}

fn upserts(sink: &Object) -> bool {
    sink.get("write").and_then(|write| write.get("mode")).is_some_and(|mode| mode == "Upsert")
}

const STEP_KINDS: &[&str] =
    &["project", "tableJoin", "temporalJoin", "broadcastJoin", "lookupJoin", "intervalJoin", "merge", "deltaJoin"];

/// Every rule of a Pipeline.
pub const RULES: &[Rule] = &[
    Rule {
        at: &["spec"],
        field: "",
        cel: "has(self.sql) != has(self.steps)",
        twin: Twin::Object(|spec| has(spec, "sql") != has(spec, "steps")),
        message: "exactly one of steps and sql is needed",
        hint: "write what is done either as a list of steps or as SQL",
    },
    Rule {
        at: &["spec"],
        field: "from",
        cel: "!has(self.steps) || self.sinks.all(sink, has(sink.from))",
        twin: Twin::Items { list: "sinks", holds: |spec, sink| !has(spec, "steps") || has(sink, "from") },
        message: "is required for each sink of a pipeline with steps",
        hint: "name the source or step whose rows the sink takes",
    },
    Rule {
        at: &["spec"],
        field: "from",
        cel: "!has(self.sql) || self.sinks.all(sink, !has(sink.from))",
        twin: Twin::Items { list: "sinks", holds: |spec, sink| !has(spec, "sql") || !has(sink, "from") },
        message: "is not allowed in a pipeline with sql",
        hint: "leave from out; INSERT INTO says which rows the sink takes",
    },
    Rule {
        at: &["spec.kafka.authentication"],
        field: "",
        cel: "[has(self.scramSha512), has(self.scramSha256), has(self.plain)].filter(set, set).size() == 1",
        twin: Twin::Object(|authentication| count(authentication, &["scramSha512", "scramSha256", "plain"]) == 1),
        message: "exactly one of scramSha512, scramSha256 and plain is needed",
        hint: "keep the mechanism that the cluster's listener uses",
    },
    Rule {
        at: &["spec.kafka.internal"],
        field: "prefix",
        cel: "has(self.prefix) == has(oldSelf.prefix) && (!has(self.prefix) || self.prefix == oldSelf.prefix)",
        twin: Twin::Edit(|old, new| old.get("prefix") == new.get("prefix")),
        message: "is immutable",
        hint: "put the old value back, or make a new pipeline",
    },
    Rule {
        at: &["spec.state"],
        field: "storage",
        cel: "has(self.storage) == has(oldSelf.storage) && (!has(self.storage) || self.storage == oldSelf.storage)",
        twin: Twin::Edit(|old, new| old.get("storage") == new.get("storage")),
        message: "is immutable",
        hint: "put the old value back, or make a new pipeline",
    },
    Rule {
        at: &["spec.state.storage"],
        field: "",
        cel: "[has(self.s3), has(self.gcs), has(self.azure), has(self.file)].filter(set, set).size() == 1",
        twin: Twin::Object(|storage| {
            ["s3", "gcs", "azure", "file"].iter().filter(|kind| has(storage, kind)).count() == 1
        }),
        message: "exactly one kind of storage is needed",
        hint: "keep one of s3, gcs, azure and file, or leave storage out",
    },
    Rule {
        at: &["spec.state", "spec.sources[].table"],
        field: "ttl",
        cel: "self.ttl != '0s'",
        twin: Twin::Object(|object| !is(object, "ttl", "0s")),
        message: "must be longer than 0s",
        hint: "write how long rows live, or leave ttl out",
    },
    Rule {
        at: &["spec.sources[].eventTime"],
        field: "idleTimeout",
        cel: "self.idleTimeout != '0s'",
        twin: Twin::Object(|event_time| !is(event_time, "idleTimeout", "0s")),
        message: "must be longer than 0s",
        hint: "a partition that is idle at once would make every later row late; write Never or a duration",
    },
    Rule {
        at: &["spec.sources[].kafka.startFrom"],
        field: "timestamp",
        cel: "(self.policy == 'Timestamp') == has(self.timestamp)",
        twin: Twin::Object(|start| is(start, "policy", "Timestamp") == has(start, "timestamp")),
        message: "belongs to policy Timestamp, and is required there",
        hint: "set policy Timestamp and timestamp together, or neither",
    },
    Rule {
        at: &["spec.sources[].kafka.startFrom"],
        field: "offsets",
        cel: "(self.policy == 'Offsets') == has(self.offsets)",
        twin: Twin::Object(|start| is(start, "policy", "Offsets") == has(start, "offsets")),
        message: "belongs to policy Offsets, and is required there",
        hint: "set policy Offsets and offsets together, or neither",
    },
    Rule {
        at: &["spec.sources[].key", "spec.sinks[].key"],
        field: "columns",
        cel: "self.format.type != 'String' || self.columns.size() == 1",
        twin: Twin::Object(key_fits_format),
        message: "must be a single column for key format String",
        hint: "write format {type: Json} for a key of several columns",
    },
    Rule {
        at: &["spec.steps[]"],
        field: "",
        cel: "[has(self.project), has(self.tableJoin), has(self.temporalJoin), has(self.broadcastJoin), \
              has(self.lookupJoin), has(self.intervalJoin), has(self.merge), has(self.deltaJoin)]\
              .filter(set, set).size() == 1",
        twin: Twin::Object(|step| count(step, STEP_KINDS) == 1),
        message: "exactly one of project, tableJoin and temporalJoin is needed",
        hint: "make one step of each kind, the second one with `from` the first",
    },
    Rule {
        at: &["spec.steps[].project"],
        field: "",
        cel: "has(self.where) || has(self.select)",
        twin: Twin::Object(|project| has(project, "where") || has(project, "select")),
        message: "at least one of where and select is needed",
        hint: "write a condition or columns, or leave the step out",
    },
    Rule {
        at: &["spec.steps[].temporalJoin.emit", "spec.sources[].table.defaults.emit"],
        field: "grace",
        cel: "(self.policy == 'Grace') == has(self.grace)",
        twin: Twin::Object(|emit| is(emit, "policy", "Grace") == has(emit, "grace")),
        message: "belongs to policy Grace, and is required there",
        hint: "set policy Grace and grace together, or neither",
    },
    Rule {
        at: &["spec.sinks[].write"],
        field: "version",
        cel: "self.mode == 'Upsert' || !has(self.version)",
        twin: Twin::Object(|write| is(write, "mode", "Upsert") || !has(write, "version")),
        message: "belongs to mode Upsert",
        hint: "leave version out",
    },
    Rule {
        at: &["spec.sinks[].write.version"],
        field: "column",
        cel: "(self.policy == 'Column') == has(self.column)",
        twin: Twin::Object(|version| is(version, "policy", "Column") == has(version, "column")),
        message: "belongs to policy Column, and is required there",
        hint: "set policy Column and column together, or neither",
    },
    Rule {
        at: &["spec.sinks[]"],
        field: "key",
        cel: "self.write.mode != 'Upsert' || has(self.key)",
        twin: Twin::Object(|sink| has(sink, "key") || !upserts(sink)),
        message: "is required for mode Upsert",
        hint: "name the columns by which a row replaces another one",
    },
    Rule {
        at: &["spec.delivery"],
        field: "commitInterval",
        cel: "!self.commitInterval.contains('d') && duration(self.commitInterval) > duration('0s') && \
              duration(self.commitInterval) <= duration('5s')",
        twin: Twin::Object(commit_interval_is_in_range),
        message: "must be between 1ms and 5s",
        hint: "100ms is the default; shorter costs brokers, longer costs latency",
    },
    Rule {
        at: &["spec.slos[]"],
        field: "",
        cel: "[has(self.freshness), has(self.lag), has(self.watermarkLag), has(self.completeness), \
              has(self.correctness)].filter(set, set).size() == 1",
        twin: Twin::Object(|slo| count(slo, &["freshness", "lag", "watermarkLag", "completeness", "correctness"]) == 1),
        message: "exactly one of freshness, lag, watermarkLag, completeness and correctness is needed",
        hint: "make one SLO of each",
    },
    Rule {
        at: &["spec.slos[].freshness", "spec.slos[].lag", "spec.slos[].watermarkLag"],
        field: "threshold",
        cel: "self.threshold != '0s'",
        twin: Twin::Object(|indicator| !is(indicator, "threshold", "0s")),
        message: "must be longer than 0s",
        hint: "write the longest time that is still good",
    },
    Rule {
        at: &["spec.worker.state.volume"],
        field: "storageClassName",
        cel: "self.type == 'Persistent' || !has(self.storageClassName)",
        twin: Twin::Object(|volume| is(volume, "type", "Persistent") || !has(volume, "storageClassName")),
        message: "belongs to type Persistent",
        hint: "set type Persistent, or leave storageClassName out",
    },
    Rule {
        at: &["spec.autoscaling"],
        field: "maxReplicas",
        cel: "self.mode == 'Disabled' || has(self.maxReplicas)",
        twin: Twin::Object(|autoscaling| is(autoscaling, "mode", "Disabled") || has(autoscaling, "maxReplicas")),
        message: "is required with mode Observe and Act",
        hint: "write how many workers you would pay for",
    },
    Rule {
        at: &["spec.autoscaling"],
        field: "minReplicas",
        cel: "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
        twin: Twin::Object(min_is_not_above_max),
        message: "must not be above maxReplicas",
        hint: "lower it, or raise maxReplicas",
    },
    Rule {
        at: &["spec.autoscaling"],
        field: "",
        cel: "self.mode == 'Disabled' || has(self.targetLag) != has(self.catchUpTime)",
        twin: Twin::Object(|autoscaling| {
            is(autoscaling, "mode", "Disabled") || has(autoscaling, "targetLag") != has(autoscaling, "catchUpTime")
        }),
        message: "exactly one of targetLag and catchUpTime is needed with mode Observe and Act",
        hint: "the other one follows from it: catchUpTime is ten times targetLag",
    },
    Rule {
        at: &["spec.autoscaling"],
        field: "targetLag",
        cel: "!has(self.targetLag) || !self.targetLag.contains('d') && duration(self.targetLag) >= duration('1s') && \
              duration(self.targetLag) <= duration('1h')",
        twin: Twin::Object(|it| may_be_in_range(it, "targetLag", Duration::from_secs(1), Duration::from_secs(3_600))),
        message: "must be between 1s and 1h",
        hint: "30s suits most pipelines",
    },
    Rule {
        at: &["spec.autoscaling"],
        field: "catchUpTime",
        cel: "!has(self.catchUpTime) || !self.catchUpTime.contains('d') && \
              duration(self.catchUpTime) >= duration('10s') && duration(self.catchUpTime) <= duration('10h')",
        twin: Twin::Object(|it| {
            may_be_in_range(it, "catchUpTime", Duration::from_secs(10), Duration::from_secs(36_000))
        }),
        message: "must be between 10s and 10h",
        hint: "5m suits most pipelines",
    },
    Rule {
        at: &["spec.autoscaling"],
        field: "stabilisation",
        cel: "!has(self.stabilisation) || !self.stabilisation.contains('d') && \
              duration(self.stabilisation) >= duration('1m') && duration(self.stabilisation) <= duration('1h')",
        twin: Twin::Object(|it| {
            may_be_in_range(it, "stabilisation", Duration::from_secs(60), Duration::from_secs(3_600))
        }),
        message: "must be between 1m and 1h",
        hint: "5m is the default; a scaling costs a short pause of the tasks that move",
    },
];

const ANOTHER_BACKFILL: &str = "make another Backfill; rateLimit, suspend, yieldToLive and attempt may change";

/// Every rule of a Savepoint.
pub const SAVEPOINT_RULES: &[Rule] = &[
    Rule {
        at: &["spec"],
        field: "",
        cel: "has(self.pipelineRef) != has(self.from)",
        twin: Twin::Object(|spec| has(spec, "pipelineRef") != has(spec, "from")),
        message: "exactly one of pipelineRef and from is needed",
        hint: "name the Pipeline that is to be saved, or where a savepoint lies",
    },
    Rule {
        at: &["spec"],
        field: "deletionPolicy",
        cel: "self.deletionPolicy != 'Delete' || has(self.pipelineRef)",
        twin: Twin::Object(|spec| !is(spec, "deletionPolicy", "Delete") || has(spec, "pipelineRef")),
        message: "must be Retain for a savepoint that was imported",
        hint: "its files belong to the Savepoint that made them",
    },
    Rule {
        at: &["spec"],
        field: "pipelineRef",
        cel: "has(self.pipelineRef) == has(oldSelf.pipelineRef) && \
              (!has(self.pipelineRef) || self.pipelineRef == oldSelf.pipelineRef)",
        twin: Twin::Edit(|old, new| old.get("pipelineRef") == new.get("pipelineRef")),
        message: "is immutable",
        hint: "make another Savepoint",
    },
    Rule {
        at: &["spec"],
        field: "from",
        cel: "has(self.from) == has(oldSelf.from) && (!has(self.from) || self.from == oldSelf.from)",
        twin: Twin::Edit(|old, new| old.get("from") == new.get("from")),
        message: "is immutable",
        hint: "make another Savepoint",
    },
];

fn items<'a>(object: &'a Object, list: &str) -> impl Iterator<Item = &'a Object> {
    object.get(list).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object)
}

pub const BACKFILL_RULES: &[Rule] = &[
    Rule {
        at: &["spec.range"],
        field: "",
        cel: "has(self.from) != (has(self.offsets) && size(self.offsets) > 0) && has(self.from) == has(self.to)",
        twin: Twin::Object(|range| {
            has(range, "from") != (items(range, "offsets").count() > 0) && has(range, "from") == has(range, "to")
        }),
        message: "either from and to, or offsets are needed",
        hint: "write from and to as times, or list the offsets of each partition",
    },
    Rule {
        at: &["spec.range"],
        field: "to",
        cel: "!has(self.from) || !has(self.to) || timestamp(self.from) < timestamp(self.to)",
        twin: Twin::Object(|range| {
            let time = |field: &str| Timestamp::parse(range.get(field)?.as_str()?);
            time("from").zip(time("to")).is_none_or(|(from, to)| from < to)
        }),
        message: "must be after from",
        hint: "nothing lies between them; exchange them",
    },
    Rule {
        at: &["spec.range"],
        field: "to",
        cel: "!has(self.offsets) || self.offsets.all(o, o.from < o.to)",
        twin: Twin::Items {
            list: "offsets",
            holds: |_, item| {
                let number = |field: &str| item.get(field).and_then(Value::as_i64);
                number("from") < number("to")
            },
        },
        message: "must be above from",
        hint: "it is the offset behind the last record",
    },
    Rule {
        at: &["spec"],
        field: "pipelineRef",
        cel: "self.pipelineRef == oldSelf.pipelineRef",
        twin: Twin::Edit(|old, new| old.get("pipelineRef") == new.get("pipelineRef")),
        message: "is immutable",
        hint: ANOTHER_BACKFILL,
    },
    Rule {
        at: &["spec"],
        field: "range",
        cel: "self.range == oldSelf.range",
        twin: Twin::Edit(|old, new| old.get("range") == new.get("range")),
        message: "is immutable",
        hint: ANOTHER_BACKFILL,
    },
    Rule {
        at: &["spec"],
        field: "sinks",
        cel: "has(self.sinks) == has(oldSelf.sinks) && (!has(self.sinks) || self.sinks == oldSelf.sinks)",
        twin: Twin::Edit(|old, new| old.get("sinks") == new.get("sinks")),
        message: "is immutable",
        hint: ANOTHER_BACKFILL,
    },
    Rule {
        at: &["spec"],
        field: "attempt",
        cel: "self.attempt >= oldSelf.attempt",
        twin: Twin::Edit(|old, new| {
            let of = |spec: &Object| spec.get("attempt").and_then(Value::as_u64);
            of(old) <= of(new)
        }),
        message: "may only be raised",
        hint: "raise it when the backfill has ended, to do it again",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kind, path, schema};

    #[test]
    fn every_rule_is_about_objects_and_fields_of_the_schema() {
        for kind in kind::ALL {
            let mut schema = (kind.schema)().clone();
            for (rule, at) in kind.rules.iter().flat_map(|rule| rule.at.iter().map(move |at| (rule, at))) {
                let item = match rule.twin {
                    Twin::Items { list, .. } => format!("{at}.{list}[]"),
                    _ => (*at).to_owned(),
                };
                let node = path::schema_node(&mut schema, &item).unwrap_or_else(|| panic!("no {item}"));
                assert_eq!(node["type"], "object", "{item}");
                assert!(rule.field.is_empty() || node["properties"].get(rule.field).is_some(), "{item} {}", rule.field);
            }
        }
    }

    #[test]
    fn the_kinds_of_a_step_are_those_that_its_rule_counts() {
        let mut pipeline = schema::pipeline().clone();
        let step = path::schema_node(&mut pipeline, "spec.steps[]").expect("step");
        let kinds: Vec<&str> = step["properties"]
            .as_object()
            .expect("properties")
            .keys()
            .map(String::as_str)
            .filter(|name| !["name", "from"].contains(name))
            .collect();
        assert_eq!(kinds, STEP_KINDS);
        let rule = RULES.iter().find(|rule| rule.at == ["spec.steps[]"]).expect("rule");
        for kind in kinds {
            assert!(rule.cel.contains(&format!("has(self.{kind})")), "{kind}");
        }
    }
}

//! Texts, numbers and booleans against their schema.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex_lite::Regex;
use serde_json::Value;

use super::walk::{Node, nearest, wrong_type};
use crate::byte_size::BYTE_SIZE_PATTERN;
use crate::duration::{DURATION_OR_NEVER_PATTERN, DURATION_PATTERN};
use crate::mistake::Mistake;
use crate::pipeline::text;
use crate::savepoint::LOCATION_PATTERN;
use crate::timestamp::{TIMESTAMP_PATTERN, Timestamp};
use crate::{schema, unserved};

/// What a pattern means in words, and what to write. A person should not have to read a regular expression.
pub(super) const PATTERNS: &[(&str, &str, &str)] = &[
    (DURATION_PATTERN, "is not a duration", "write 500ms, 30s, 5m, 1h30m or 7d (at most 99999d), or 0s"),
    (DURATION_OR_NEVER_PATTERN, "is not a duration", "write 500ms, 30s, 5m, 1h30m or 7d (at most 99999d), or Never"),
    (TIMESTAMP_PATTERN, "is not a timestamp", "write it like 2026-01-01T00:00:00Z"),
    (
        text::NAME_PATTERN,
        "is not a name",
        "use a-z, 0-9, '-' and '_'; begin with a letter, end with none of '-' and '_'",
    ),
    (
        schema::OBJECT_NAME_PATTERN,
        "is not a name for an object of ours",
        "use a-z, 0-9 and '-'; begin with a letter, do not end with '-'",
    ),
    (text::TOPIC_PATTERN, "is not a name for topics", "use a-z, A-Z, 0-9, '.', '_' and '-'"),
    (
        text::KUBERNETES_NAME_PATTERN,
        "is not a name for a Kubernetes object",
        "use a-z, 0-9, '-' and '.'; begin and end with a letter or digit",
    ),
    (text::SECRET_KEY_PATTERN, "is not a key of a Secret", "use a-z, A-Z, 0-9, '-', '_' and '.'"),
    (text::QUANTITY_PATTERN, "is not a quantity", "write it like 500m, 2 or 10Gi"),
    (text::VERSION_PATTERN, "is not a version", "write it like 0.3 or 0.3.1, in quotes"),
    (BYTE_SIZE_PATTERN, "is not a size", "write it like 512Ki, 64Mi or 2Gi"),
    (text::PATH_PATTERN, "is not an absolute path", "begin it with /"),
    (text::ENDPOINT_PATTERN, "is not an address", "write it like https://host:port"),
    (
        LOCATION_PATTERN,
        "is not the address of a savepoint",
        "write it as the status of the Savepoint that made it says",
    ),
    (text::WINDOW_PATTERN, "is not a window for an SLO", "write whole days from 7d to 90d"),
    (text::OBJECTIVE_PATTERN, "is not a percentage", "write it like \"99.9\", in quotes"),
];

/// Compiled once: a document has hundreds of names.
static COMPILED: LazyLock<BTreeMap<&str, Regex>> = LazyLock::new(|| {
    let compile = |pattern| Regex::new(pattern).expect("a test compiles every pattern of the schema");
    PATTERNS.iter().map(|(pattern, ..)| (*pattern, compile(pattern))).collect()
});

pub(super) fn check(schema: &Value, node: &Node<'_>) -> Option<Mistake> {
    if schema["x-kubernetes-int-or-string"] == true {
        return match node.value {
            Value::String(text) => check_text(schema, node, text),
            Value::Number(number) if number.is_i64() => None,
            _ => Some(wrong_type(node, "a quantity, as a text or a whole number")),
        };
    }
    match (schema["type"].as_str(), node.value) {
        (Some("string"), Value::String(text)) => check_text(schema, node, text),
        (Some("string"), _) => Some(wrong_type(node, "a text")),
        (Some("integer"), Value::Number(number)) => match number.as_i64() {
            Some(number) => check_bounds(schema, node, number),
            None => Some(wrong_type(node, "a whole number")),
        },
        (Some("integer"), _) => Some(wrong_type(node, "a whole number")),
        (Some("boolean"), Value::Bool(_)) => None,
        (Some("boolean"), _) => Some(wrong_type(node, "a boolean")),
        // Nothing is known about it: a value of a raw object.
        _ => None,
    }
}

fn check_bounds(schema: &Value, node: &Node<'_>, number: i64) -> Option<Mistake> {
    let (min, max) = (schema["minimum"].as_i64(), schema["maximum"].as_i64());
    if min.is_none_or(|min| number >= min) && max.is_none_or(|max| number <= max) {
        return None;
    }
    let range = match (min, max) {
        (Some(min), Some(max)) => format!("from {min} to {max}"),
        (Some(min), None) => format!("of at least {min}"),
        (None, Some(max)) => format!("of at most {max}"),
        (None, None) => return None,
    };
    Some(Mistake::new(&node.path, Some(node.value), "is out of range", format!("write a number {range}")))
}

fn check_text(schema: &Value, node: &Node<'_>, text: &str) -> Option<Mistake> {
    let mistake = |message: &str, hint: &str| Some(Mistake::new(&node.path, Some(node.value), message, hint));
    if let Some(values) = schema["enum"].as_array() {
        return if values.iter().any(|value| value == text) { None } else { Some(wrong_choice(node, text, values)) };
    }
    let length = text.chars().count() as u64;
    if let Some(min) = schema["minLength"].as_u64().filter(|min| length < *min) {
        let message = if min == 1 { "is empty".to_owned() } else { format!("is shorter than {min} characters") };
        return mistake(&message, "write a value, or remove the line if it has a default");
    }
    if let Some(max) = schema["maxLength"].as_u64().filter(|max| length > *max) {
        return mistake(&format!("is {length} characters long, and may have at most {max}"), "make it shorter");
    }
    if let Some(pattern) = schema["pattern"].as_str()
        && !COMPILED.get(pattern).is_some_and(|regex| regex.is_match(text))
    {
        let (_, message, hint) =
            PATTERNS.iter().find(|(known, ..)| *known == pattern).copied().unwrap_or((pattern, "is misspelt", pattern));
        return mistake(message, hint);
    }
    if schema["format"] == "date-time" && Timestamp::parse(text).is_none() {
        return mistake("is not a timestamp", "there is no such day or time; write it like 2026-01-01T00:00:00Z");
    }
    None
}

fn wrong_choice(node: &Node<'_>, text: &str, values: &[Value]) -> Mistake {
    let row = unserved::find(&node.pattern);
    let served = values.iter().filter(|value| row.is_none_or(|row| row.passes(value))).filter_map(Value::as_str);
    let choices: Vec<&str> = served.collect();
    let hint = match (nearest(text, choices.iter().copied()), choices.as_slice()) {
        (Some(nearest), _) => format!("did you mean {nearest}?"),
        (None, [only]) => format!("write {only}, or remove the line"),
        (None, _) => "choose one of them".to_owned(),
    };
    let message = match choices.as_slice() {
        [only] => format!("must be {only}"),
        _ => format!("must be one of {}", choices.join(", ")),
    };
    Mistake::new(&node.path, Some(node.value), message, hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn each_pattern(schema: &Value, visit: &mut impl FnMut(&str)) {
        match schema {
            Value::Object(node) => {
                if let Some(Value::String(pattern)) = node.get("pattern") {
                    visit(pattern);
                }
                node.values().for_each(|child| each_pattern(child, visit));
            }
            Value::Array(items) => items.iter().for_each(|item| each_pattern(item, visit)),
            _ => {}
        }
    }

    #[test]
    fn every_pattern_of_the_schema_has_words() {
        for kind in crate::kind::ALL {
            each_pattern((kind.schema)(), &mut |pattern| {
                assert!(PATTERNS.iter().any(|(known, ..)| *known == pattern), "{pattern}");
                assert!(Regex::new(pattern).is_ok(), "{pattern}");
            });
        }
    }
}

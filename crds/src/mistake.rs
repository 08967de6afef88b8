//! A mistake in a spec, as a value: where it is, what stands there, what is wrong with it, and what to do.

use std::fmt;

use serde_json::Value;

/// Values are cut here, in characters: a mistake is one line for a person.
const VALUE_LENGTH_MAX: usize = 80;

/// One mistake. All mistakes of a document are found and shown at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Where, like `spec.steps[1].temporalJoin.keys[0].left`.
    pub path: String,
    /// What stands there, as compact JSON of at most 80 characters; `None` where nothing does.
    pub value: Option<String>,
    /// What is wrong, to be read behind the path.
    pub message: String,
    /// What to do about it.
    pub hint: String,
}

impl Mistake {
    pub fn new(
        path: impl Into<String>,
        value: Option<&Value>,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self { path: path.into(), value: value.map(shortened), message: message.into(), hint: hint.into() }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = if self.path.is_empty() { "document" } else { &self.path };
        write!(f, "{path}: {}", self.message)?;
        if let Some(value) = &self.value {
            write!(f, " (value: {value})")?;
        }
        if !self.hint.is_empty() {
            write!(f, "; {}", self.hint)?;
        }
        Ok(())
    }
}

impl std::error::Error for Mistake {}

fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(VALUE_LENGTH_MAX) {
        Some(_) => text.chars().take(VALUE_LENGTH_MAX - 1).chain(['…']).collect(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_mistake_says_where_what_and_what_to_do() {
        let mistake = Mistake::new("spec.replicas", Some(&json!(-1)), "must be at least 0", "write 0 or more");
        assert_eq!(mistake.to_string(), "spec.replicas: must be at least 0 (value: -1); write 0 or more");
        assert_eq!(Mistake::new("", None, "is empty", "").to_string(), "document: is empty");
    }

    #[test]
    fn a_long_value_is_cut_between_characters() {
        let value = Mistake::new("a", Some(&json!("é".repeat(200))), "", "").value.expect("value");
        assert_eq!(value.chars().count(), 80);
        assert!(value.ends_with('…'));
    }
}

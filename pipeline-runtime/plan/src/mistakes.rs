//! The list of everything that is wrong with a spec.

use millrace_crds::mistake::Mistake;
use serde_json::Value;

use crate::parse::SqlError;

/// Collects mistakes in the order in which they are found.
#[derive(Default)]
pub struct Mistakes(Vec<Mistake>);

impl Mistakes {
    /// `value` is what stands at `path`; empty where nothing does.
    pub fn add(&mut self, path: impl Into<String>, value: &str, message: impl Into<String>, hint: impl Into<String>) {
        let value = (!value.is_empty()).then(|| Value::String(value.to_owned()));
        self.0.push(Mistake::new(path, value.as_ref(), message, hint));
    }

    /// A mistake in an expression, which stands at `path` as a whole.
    pub fn add_expression(&mut self, path: impl Into<String>, text: &str, error: &SqlError) {
        self.add(path, text, &error.message, &error.hint);
    }

    /// A mistake in `spec.sql`, with its line and column.
    pub fn add_sql(&mut self, error: &SqlError) {
        let path = error.at.map_or("spec.sql".to_owned(), |(line, column)| format!("spec.sql:{line}:{column}"));
        self.add(path, "", &error.message, &error.hint);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn into_vec(self) -> Vec<Mistake> {
        self.0
    }
}

//! Secrets as files: what a spec names as `{name, key}`.

use std::path::{Path, PathBuf};

use millrace_crds::pipeline::SecretKeyRef;

/// A secret is the file `<name>/<key>` below a folder.
pub struct Secrets<'a> {
    dir: Option<&'a Path>,
    mistakes: Vec<String>,
}

impl<'a> Secrets<'a> {
    pub fn new(dir: Option<&'a Path>) -> Self {
        Self { dir, mistakes: Vec::new() }
    }

    /// The text of a secret, without the line break that editors leave at its end. A mistake is kept, and an empty text
    /// stands for it.
    pub fn text(&mut self, field: &str, SecretKeyRef { name, key }: &SecretKeyRef) -> String {
        let Some(dir) = self.dir else {
            self.mistakes.push(format!(
                "{field}: secret '{name}' is needed: give --secrets DIR, and put it into DIR/{name}/{key}"
            ));
            return String::new();
        };
        let path: PathBuf = dir.join(name).join(key);
        match std::fs::read_to_string(&path) {
            Ok(text) => text.trim_end_matches(['\r', '\n']).to_owned(),
            Err(error) => {
                self.mistakes.push(format!("{field}: read secret {}: {error}", path.display()));
                String::new()
            }
        }
    }

    pub fn into_mistakes(self) -> Vec<String> {
        self.mistakes
    }
}

//! Compiles a spec where it can't hurt: in a child process with bounds on memory and time, one at a time, beside the
//! reconciles. What came out is kept until the spec is another or its plan is stored: as text, since a thousand
//! Pipelines may come at once.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use millrace_core::report::CompileRequest;
use millrace_operator_core::names::digest;
use millrace_operator_core::observed::Compilation;
use millrace_operator_core::settings::Compile;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::cache::Key;

/// What is asked of the compiler.
pub struct Question {
    pub key: Key,
    /// Of the request.
    digest: String,
    text: String,
}

struct Known {
    digest: String,
    /// What the child said, or why it said nothing; `None` while it was not asked.
    answer: Option<Result<Vec<u8>, String>>,
}

impl Known {
    fn compilation(&self) -> Compilation {
        match &self.answer {
            None => Compilation::Pending,
            Some(Err(why)) => Compilation::Failed(why.clone()),
            Some(Ok(text)) => match serde_json::from_slice(text) {
                Ok(compiled) => Compilation::Done(Box::new(compiled)),
                Err(error) => Compilation::Failed(format!("its answer cannot be read: {error}")),
            },
        }
    }
}

pub struct Compiler {
    /// The runtime's binary.
    millrace: String,
    bounds: Compile,
    known: Mutex<HashMap<Key, Known>>,
}

impl Compiler {
    pub fn new(millrace: String, bounds: Compile) -> Self {
        Self { millrace, bounds, known: Mutex::default() }
    }

    /// What became of a request, and the question if it has to be put: by whom gets it, and by nobody else.
    pub fn known(&self, key: &Key, request: &CompileRequest) -> (Compilation, Option<Question>) {
        let request = json!(request);
        let digest = digest(&request);
        let mut known = self.all();
        if let Some(known) = known.get(key).filter(|known| known.digest == digest) {
            return (known.compilation(), None);
        }
        known.insert(key.clone(), Known { digest: digest.clone(), answer: None });
        (Compilation::Pending, Some(Question { key: key.clone(), digest, text: request.to_string() }))
    }

    pub fn forget(&self, key: &Key) {
        self.all().remove(key);
    }

    /// Puts a question, unless nobody wants to know any more, and keeps the answer.
    pub async fn compile(&self, question: &Question) {
        let Question { key, digest, text } = question;
        let open = |known: &&mut Known| known.digest == *digest && known.answer.is_none();
        if self.all().get_mut(key).filter(open).is_none() {
            return;
        }
        let answer = self.child(text.as_bytes()).await.map_err(|error| format!("{error:#}"));
        if let Some(known) = self.all().get_mut(key).filter(open) {
            known.answer = Some(answer);
        }
    }

    async fn child(&self, request: &[u8]) -> anyhow::Result<Vec<u8>> {
        let Compile { memory_mib: memory, cpu_seconds, wall_seconds } = self.bounds;
        let mut child = Command::new(&self.millrace)
            .arg("compile")
            .args(["--memory-max-mib", &memory.to_string(), "--cpu-max-seconds", &cpu_seconds.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut input = child.stdin.take();
        let work = async move {
            if let Some(input) = &mut input {
                // A child that died early says so by its exit code.
                drop(input.write_all(request).await);
            }
            drop(input);
            child.wait_with_output().await
        };
        let output = tokio::time::timeout(Duration::from_secs(wall_seconds), work)
            .await
            .map_err(|_| anyhow::anyhow!("it took longer than {wall_seconds} s"))??;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.lines().last().unwrap_or("it said nothing").to_owned();
            anyhow::bail!(
                "the compiler ended with {} (bounds: {memory} MiB, {cpu_seconds} s of CPU): {last}",
                output.status
            );
        }
        Ok(output.stdout)
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Key, Known>> {
        self.known.lock().expect("nobody panics while it holds the lock")
    }
}

/// What the child is asked: the document without what changes no plan, and the plan that runs.
pub fn request(pipeline: &Value, previous: Option<Value>) -> CompileRequest {
    let metadata = json!({
        "name": pipeline["metadata"]["name"],
        "namespace": pipeline["metadata"]["namespace"],
    });
    let document = json!({
        "apiVersion": pipeline["apiVersion"],
        "kind": pipeline["kind"],
        "metadata": metadata,
        "spec": pipeline["spec"],
    });
    CompileRequest { pipeline: document, previous }
}

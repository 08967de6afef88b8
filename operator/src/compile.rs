//! Compiles a spec where it can't hurt: in a child process with bounds on memory and time, a few at a time, beside the
//! reconciles. What came out is kept until the spec is another.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use millrace_core::report::{CompileRequest, Compiled};
use millrace_operator_core::names::digest;
use millrace_operator_core::observed::Compilation;
use millrace_operator_core::settings::Compile;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::Semaphore;

use crate::cache::Key;

/// Children at once: the chart's memory limit has room for one.
const AT_ONCE: usize = 1;

struct Known {
    digest: String,
    compilation: Compilation,
}

pub struct Compiler {
    /// The runtime's binary.
    millrace: String,
    bounds: Compile,
    known: Mutex<HashMap<Key, Known>>,
    room: Arc<Semaphore>,
}

impl Compiler {
    pub fn new(millrace: String, bounds: Compile) -> Self {
        Self { millrace, bounds, known: Mutex::default(), room: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// What became of a request, and whether it has to be made: by whom gets `true`, and by nobody else.
    pub fn known(&self, key: &Key, request: &CompileRequest) -> (Compilation, bool) {
        let digest = digest(&json!(request));
        let mut known = self.all();
        match known.get(key).filter(|known| known.digest == digest) {
            Some(known) => (known.compilation.clone(), false),
            None => {
                known.insert(key.clone(), Known { digest, compilation: Compilation::Pending });
                (Compilation::Pending, true)
            }
        }
    }

    pub fn forget(&self, key: &Key) {
        self.all().remove(key);
    }

    /// Compiles, and keeps what came out.
    pub async fn compile(&self, key: &Key, request: &CompileRequest) {
        // The semaphore is never closed.
        let _room = self.room.acquire().await;
        let compilation = match self.child(request).await {
            Ok(compiled) => Compilation::Done(Box::new(compiled)),
            Err(error) => Compilation::Failed(format!("{error:#}")),
        };
        let digest = digest(&json!(request));
        if let Some(known) = self.all().get_mut(key).filter(|known| known.digest == digest) {
            known.compilation = compilation;
        }
    }

    async fn child(&self, request: &CompileRequest) -> anyhow::Result<Compiled> {
        let Compile { memory_mib: memory, cpu_seconds, wall_seconds } = self.bounds;
        let mut child = Command::new(&self.millrace)
            .arg("compile")
            .args(["--memory-max-mib", &memory.to_string(), "--cpu-max-seconds", &cpu_seconds.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let text = serde_json::to_vec(request)?;
        let mut input = child.stdin.take();
        let work = async move {
            if let Some(input) = &mut input {
                // A child that died early says so by its exit code.
                drop(input.write_all(&text).await);
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
        Ok(serde_json::from_slice(&output.stdout)?)
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

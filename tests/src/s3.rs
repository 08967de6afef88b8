//! An object store that speaks S3, over a folder: a process of its own, which ends with this one.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, ensure};
use millrace_cluster_harness::cache;
use millrace_kafka_harness::wait;

use crate::scratch;
use crate::story::DEADLINE;

/// Its only bucket.
pub const BUCKET: &str = "millrace";
const PORT: u16 = 7070;
/// Who may use it.
pub const ACCESS_KEY: &str = "tester";
pub const SECRET_KEY: &str = "not-so-secret";

/// It ends with the shell around it, whose input is a pipe that only this process holds open.
const GUARD: &str = r#"trap '' INT TERM HUP QUIT; "$@" & cat >/dev/null; kill -9 $! 2>/dev/null; wait"#;

pub struct S3 {
    address: SocketAddr,
    dir: tempfile::TempDir,
    shell: Mutex<Option<Child>>,
}

impl S3 {
    /// At an address of this machine that nobody else has.
    pub fn start(host: Ipv4Addr) -> anyhow::Result<Self> {
        let dir = scratch()?;
        fs::create_dir(dir.path().join(BUCKET)).context("make the bucket")?;
        let s3 = Self { address: SocketAddr::from((host, PORT)), dir, shell: Mutex::new(None) };
        s3.launch()?;
        Ok(s3)
    }

    /// Where clients find it.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where the objects of its bucket lie, by their keys.
    pub fn dir(&self) -> PathBuf {
        self.dir.path().join(BUCKET)
    }

    /// Nobody answers from now on, until [`Self::launch`]. What it holds stays.
    pub fn stop(&self) {
        let shell = self.shell.lock().unwrap_or_else(PoisonError::into_inner).take();
        shell.into_iter().for_each(end);
    }

    pub fn launch(&self) -> anyhow::Result<()> {
        let program = program()?;
        let mut command = Command::new("sh");
        command.args(["-c", GUARD, "millrace-s3"]).arg(&program);
        command.args(["--port", &self.address.to_string(), "--quiet", "--access", ACCESS_KEY, "--secret", SECRET_KEY]);
        command.arg("posix").arg(self.dir.path());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let shell = command.spawn().context("start the object store")?;
        *self.shell.lock().unwrap_or_else(PoisonError::into_inner) = Some(shell);
        wait::until("the object store", DEADLINE, || Ok(TcpStream::connect(self.address).is_ok()))
    }

    /// `spec.state.storage`, with the Secret `s3`.
    pub fn storage(&self) -> String {
        let endpoint = self.endpoint();
        format!(
            "{{s3: {{bucket: {BUCKET}, prefix: test/, region: us-east-1, endpoint: \"{endpoint}\", pathStyle: true, credentials: {{name: s3}}}}}}"
        )
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        self.stop();
    }
}

fn end(mut shell: Child) {
    drop(shell.stdin.take());
    // It was told, and has nothing to lose.
    drop(shell.wait());
}

/// Puts the credentials where `--secrets` finds them.
pub fn install(secrets: &Path, secret_key: &str) -> anyhow::Result<()> {
    let dir = secrets.join("s3");
    fs::create_dir_all(&dir).context("make a folder for a secret")?;
    for (key, text) in [("accessKeyId", ACCESS_KEY), ("secretAccessKey", secret_key)] {
        fs::write(dir.join(key), text).context("write a secret")?;
    }
    Ok(())
}

/// The program, which `tests/setup/s3.sh` builds.
fn program() -> anyhow::Result<PathBuf> {
    let program = cache()?.join("s3/bin/versitygw");
    ensure!(program.exists(), "{} is not built: run tests/setup/s3.sh", program.display());
    Ok(program)
}

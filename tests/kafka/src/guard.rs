//! What cleans up when nobody else can: a small shell beside each instance.
//!
//! It reads a pipe that only this process holds open. When the pipe ends, whether by a drop, a panic or SIGKILL, it
//! kills the brokers that it was told of and removes the instance's folder. (The kernel's own signal on a parent's
//! death goes by the *thread* that started the child, and a test's thread ends before its process does.)

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::Context;

/// Signals of a terminal go to its whole process group, hence the traps (and a group of its own).
const SCRIPT: &str = r#"
trap '' INT TERM HUP QUIT
pids=
while read -r word pid; do
    case $word in
        started) pids="$pids $pid" ;;
        reaped)
            kept=
            for p in $pids; do [ "$p" = "$pid" ] || kept="$kept $p"; done
            pids=$kept
            ;;
    esac
done
for p in $pids; do kill -9 "$p" 2>/dev/null; done
# A JVM that was just killed may make a last file.
tries=0
until rm -rf -- "$1" 2>/dev/null || [ $tries -ge 100 ]; do
    tries=$((tries + 1))
    sleep 0.1
done
"#;

pub struct Guard {
    shell: Child,
    pipe: Mutex<Option<ChildStdin>>,
}

impl Guard {
    /// Guards `dir`, which it removes in the end.
    pub fn start(dir: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "millrace-kafka-guard"]).arg(dir);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let mut shell = command.spawn().context("start the guard's shell")?;
        let pipe = Mutex::new(shell.stdin.take());
        Ok(Self { shell, pipe })
    }

    pub fn started(&self, pid: u32) {
        self.tell("started", pid);
    }

    /// The process is gone and was waited for: its number may become somebody else's.
    pub fn reaped(&self, pid: u32) {
        self.tell("reaped", pid);
    }

    fn tell(&self, word: &str, pid: u32) {
        if let Some(pipe) = &mut *self.pipe.lock().unwrap_or_else(PoisonError::into_inner) {
            // A guard that is gone can do no more; the instance still works.
            let _ = writeln!(pipe, "{word} {pid}");
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        *self.pipe.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        let _ = self.shell.wait();
    }
}

//! What a process takes: CPU time, which stays a measure on a machine that is shared (wall time does not), and memory.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// Ticks of the kernel's clock in a second, as `/proc` counts them on every Linux.
const TICKS: f64 = 100.0;

const NANOS: f64 = 1e9;

/// Resident memory, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub now: u64,
    /// The most that it ever was.
    pub most: u64,
}

/// A process that is looked at: its folder in `/proc`.
#[derive(Clone, Debug)]
pub struct Process(PathBuf);

impl Process {
    pub fn own() -> Self {
        Self(PathBuf::from("/proc/self"))
    }

    pub fn of(pid: u32) -> Self {
        Self(PathBuf::from(format!("/proc/{pid}")))
    }

    /// CPU seconds of all its threads so far, those that have ended too.
    pub fn seconds(&self) -> anyhow::Result<f64> {
        let stat = read(&self.0.join("stat"))?;
        // The name of the program, in parentheses, may hold blanks.
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let ticks = fields.skip(11).take(2).map(|f| f.parse::<u64>().context("read CPU ticks"));
        Ok(ticks.sum::<anyhow::Result<u64>>()? as f64 / TICKS)
    }

    pub fn memory(&self) -> anyhow::Result<Memory> {
        let status = read(&self.0.join("status"))?;
        let bytes = |field: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(field));
            let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
            kib.map(|kib| kib << 10).with_context(|| format!("read {field} of a process"))
        };
        Ok(Memory { now: bytes("VmRSS:")?, most: bytes("VmHWM:")? })
    }

    /// Seconds for which its threads, the living ones, could have run and had no core: what the others' load costs.
    pub fn waited_seconds(&self) -> anyhow::Result<f64> {
        let mut nanos = 0.0;
        for thread in fs::read_dir(self.0.join("task")).context("list the threads of a process")? {
            // A thread may end meanwhile.
            let Ok(stat) = fs::read_to_string(thread?.path().join("schedstat")) else { continue };
            nanos +=
                stat.split_whitespace().nth(1).and_then(|f| f.parse::<f64>().ok()).context("read a thread's wait")?;
        }
        Ok(nanos / NANOS)
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

/// Does some work and says how many CPU seconds of this process it took.
pub fn measured<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(T, f64)> {
    let before = Process::own().seconds()?;
    let result = work()?;
    Ok((result, (Process::own().seconds()? - before).max(1.0 / TICKS)))
}

pub fn rate(records: usize, seconds: f64) -> String {
    let nanos = seconds * 1e9 / records as f64;
    format!("{:>10.0} records per CPU second, {nanos:>6.0} ns a record", records as f64 / seconds)
}

/// The share of the whole machine that is idle, over some time.
pub fn idle(time: std::time::Duration) -> anyhow::Result<f64> {
    let before = ticks()?;
    std::thread::park_timeout(time);
    let after = ticks()?;
    Ok((after.0 - before.0) as f64 / (after.1 - before.1) as f64)
}

/// Of the whole machine: idle, and all.
fn ticks() -> anyhow::Result<(u64, u64)> {
    let stat = std::fs::read_to_string("/proc/stat").context("read what the machine does")?;
    let numbers = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let numbers: Vec<u64> =
        numbers.map(|n| n.parse().context("read a number of /proc/stat")).collect::<Result<_, _>>()?;
    Ok((numbers.iter().skip(3).take(2).sum(), numbers.iter().take(8).sum()))
}

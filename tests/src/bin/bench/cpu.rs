//! CPU time, which stays a measure on a machine that is shared. Wall time does not.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;

/// Ticks of the kernel's clock in a second, as `/proc` counts them on every Linux.
const TICKS: f64 = 100.0;

/// A process whose CPU time is read.
#[derive(Clone, Debug)]
pub struct Process(PathBuf);

impl Process {
    pub fn own() -> Self {
        Self(PathBuf::from("/proc/self/stat"))
    }

    pub fn of(pid: u32) -> Self {
        Self(PathBuf::from(format!("/proc/{pid}/stat")))
    }

    /// CPU seconds of all its threads so far, those that have ended too.
    pub fn seconds(&self) -> anyhow::Result<f64> {
        let stat = fs::read_to_string(&self.0).with_context(|| format!("read {}", self.0.display()))?;
        // The name of the program, in parentheses, may hold blanks.
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let ticks = fields.skip(11).take(2).map(|f| f.parse::<u64>().context("read CPU ticks"));
        Ok(ticks.sum::<anyhow::Result<u64>>()? as f64 / TICKS)
    }
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

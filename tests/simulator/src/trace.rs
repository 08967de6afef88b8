//! What happened, as a hash and, when somebody wants to read it, as lines.

use std::fmt::{self, Debug, Write};

/// What a run came to.
pub struct Run<V> {
    pub violation: Option<V>,
    /// Of everything that happened.
    pub hash: u64,
    /// Filled when the run was recorded.
    pub lines: Vec<String>,
}

pub struct Trace {
    hash: u64,
    step: u64,
    written: u64,
    recorded: Option<Vec<String>>,
}

impl Trace {
    pub fn new(record: bool) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, step: 0, written: 0, recorded: record.then(Vec::new) }
    }

    pub fn next_step(&mut self) {
        self.step += 1;
    }

    /// How many there are so far.
    pub fn lines(&self) -> u64 {
        self.written
    }

    pub fn line(&mut self, what: fmt::Arguments<'_>) {
        let step = self.step;
        self.written += 1;
        self.write_fmt(format_args!("{step} {what}\n")).expect("hashing does not fail");
        if let Some(lines) = &mut self.recorded {
            lines.push(format!("{step:>5} {what}"));
        }
    }

    /// A violation is the last line.
    pub fn finish<V: Debug>(mut self, violation: Option<V>) -> Run<V> {
        if let Some(violation) = &violation {
            self.line(format_args!("{violation:?}"));
        }
        Run { violation, hash: self.hash, lines: self.recorded.unwrap_or_default() }
    }
}

/// FNV-1a.
impl Write for Trace {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Ok(())
    }
}

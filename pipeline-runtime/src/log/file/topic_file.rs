//! A user's topic: one `.jsonl` file with all its partitions.
//!
//! The file is scanned once, as far as it goes; what is kept of a record is where it stands. Reading a partition goes
//! through a window of the file, so that memory does not grow with the bytes of the records.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use millrace_core::ids::{Offset, Partition};

use super::{envelope, io};
use crate::log::{Header, LogError, Record};

/// How much of the file a partition's window holds; a longer line makes it longer.
const WINDOW: usize = 1 << 20;
/// More partitions than this in a line are a mistake in the file, not a topic.
const PARTITIONS_MAX: i32 = 4096;

/// Where a record stands.
struct Entry {
    line: u64,
    length: u32,
    /// Relative to the line; `None`: there is none, or it is not in the file as it stands (see `decode`).
    key: Option<(u32, u32)>,
    value: Option<(u32, u32)>,
    /// The line must be taken apart again: it has headers, or bytes that are not in the file as they stand.
    decode: bool,
    timestamp_ms: Option<i64>,
}

pub struct TopicFile {
    path: PathBuf,
    /// `None`: a topic without a file, which stays empty.
    file: Option<File>,
    follow: bool,
    /// How much was scanned, up to the end of a line.
    scanned: u64,
    lines: u64,
    last_timestamp: Option<i64>,
    partitions: Vec<Vec<Entry>>,
    /// The readers were made: a partition that comes now would have none.
    read: bool,
}

impl TopicFile {
    pub fn open(path: PathBuf, follow: bool) -> Result<Self, LogError> {
        let file = File::open(&path).map_err(io("open", &path))?;
        let mut topic = Self { file: Some(file), follow, ..Self::empty(path) };
        topic.scan()?;
        Ok(topic)
    }

    /// A topic that has no file.
    pub fn empty(path: PathBuf) -> Self {
        let partitions = vec![Vec::new()];
        Self { path, file: None, follow: false, scanned: 0, lines: 0, last_timestamp: None, partitions, read: false }
    }

    /// Takes up what was appended. Only a reader that follows the file sees it.
    pub fn refresh(&mut self) -> Result<(), LogError> {
        if self.follow { self.scan() } else { Ok(()) }
    }

    fn scan(&mut self) -> Result<(), LogError> {
        let Some(file) = &self.file else { return Ok(()) };
        let length = file.metadata().map_err(io("look at", &self.path))?.len();
        if length < self.scanned {
            return Err(LogError::Damaged {
                path: self.path.clone(),
                at: length,
                text: format!("the file was cut: {} bytes of it had been read", self.scanned),
            });
        }
        let mut chunk = Vec::new();
        while self.scanned < length {
            let wanted = ((length - self.scanned) as usize).min(WINDOW.max(chunk.len() * 2));
            chunk.resize(wanted, 0);
            let Some(file) = &self.file else { return Ok(()) };
            file.read_exact_at(&mut chunk, self.scanned).map_err(io("read", &self.path))?;
            let at_end = self.scanned + wanted as u64 == length;
            let whole = match memchr::memrchr(b'\n', &chunk) {
                Some(last) => last + 1,
                // A line that is longer than the chunk: take more. At the end of a file that grows: wait for the rest.
                None if !at_end => continue,
                None if self.follow => return Ok(()),
                None => chunk.len(),
            };
            let start = self.scanned;
            let mut at = 0;
            while at < whole {
                let end = memchr::memchr(b'\n', &chunk[at..whole]).map_or(whole, |i| at + i);
                self.take_line(start + at as u64, &chunk[at..end])?;
                at = end + 1;
            }
            self.scanned += whole as u64;
            chunk.clear();
        }
        Ok(())
    }

    fn take_line(&mut self, at: u64, line: &[u8]) -> Result<(), LogError> {
        self.lines += 1;
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(());
        }
        let fault = |text: String| LogError::User(format!("{}:{}: {text}", self.path.display(), self.lines));
        let parsed = envelope::parse(line).map_err(|text| fault(format!("not a record: {text}")))?;
        if parsed.partition >= PARTITIONS_MAX {
            return Err(fault(format!("partition {} is above the limit of {PARTITIONS_MAX}", parsed.partition)));
        }
        let place = |bytes: &Option<std::borrow::Cow<'_, [u8]>>| match bytes {
            Some(std::borrow::Cow::Borrowed(part)) => {
                let start = part.as_ptr() as usize - line.as_ptr() as usize;
                (Some((start as u32, part.len() as u32)), false)
            }
            Some(std::borrow::Cow::Owned(_)) => (None, true),
            None => (None, false),
        };
        let (key, key_decoded) = place(&parsed.key);
        let (value, value_decoded) = place(&parsed.value);
        let entry = Entry {
            line: at,
            length: u32::try_from(line.len()).map_err(|_| fault("the line is longer than 4 GiB".to_owned()))?,
            key,
            value,
            decode: key_decoded || value_decoded || !parsed.headers.is_empty(),
            timestamp_ms: parsed.timestamp_ms.or(self.last_timestamp),
        };
        self.last_timestamp = entry.timestamp_ms;
        let partition = parsed.partition as usize;
        if self.partitions.len() <= partition && self.read {
            let count = self.partitions.len();
            return Err(fault(format!(
                "partition {partition} is new and the topic had {count} when the run began: begin with a record in each partition"
            )));
        }
        if self.partitions.len() <= partition {
            self.partitions.resize_with(partition + 1, Vec::new);
        }
        self.partitions[partition].push(entry);
        Ok(())
    }

    /// At least 1; never shrinks.
    pub fn partitions(&self) -> i32 {
        self.partitions.len() as i32
    }

    fn entries(&self, partition: Partition) -> &[Entry] {
        self.partitions.get(partition.0 as usize).map_or(&[], Vec::as_slice)
    }

    pub fn records(&self, partition: Partition) -> usize {
        self.entries(partition).len()
    }

    pub fn timestamp(&self, partition: Partition, record: usize) -> Option<i64> {
        self.entries(partition).get(record)?.timestamp_ms
    }

    /// The first record at or after a timestamp.
    pub fn first_at(&self, partition: Partition, ms: i64) -> usize {
        let entries = self.entries(partition);
        entries.iter().position(|e| e.timestamp_ms.is_some_and(|t| t >= ms)).unwrap_or(entries.len())
    }

    pub fn reader(&mut self, partition: Partition, next: usize) -> Result<PartitionReader, LogError> {
        if next > self.records(partition) {
            return Err(LogError::Damaged {
                path: self.path.clone(),
                at: self.scanned,
                text: format!(
                    "partition {partition} has {} records and {next} of them had been read: the file was replaced",
                    self.records(partition)
                ),
            });
        }
        self.read = true;
        Ok(PartitionReader { partition, next, window: Vec::new(), window_at: 0, decoded: Vec::new() })
    }
}

/// The reading of one partition.
pub struct PartitionReader {
    partition: Partition,
    next: usize,
    /// A part of the file, from `window_at` on.
    window: Vec<u8>,
    window_at: u64,
    /// The records of the current run that had to be taken apart.
    decoded: Vec<Decoded>,
}

#[derive(Default)]
struct Decoded {
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<Header>,
}

impl PartitionReader {
    pub fn partition(&self) -> Partition {
        self.partition
    }

    pub fn next(&self) -> usize {
        self.next
    }

    /// What the merge goes by: the head's timestamp; a record without one comes at once.
    pub fn head_timestamp(&self, topic: &TopicFile) -> Option<i64> {
        let entry = topic.entries(self.partition).get(self.next)?;
        Some(entry.timestamp_ms.unwrap_or(i64::MIN))
    }

    /// Reads on while the timestamps do not exceed `limit`; at least one record. There must be one.
    pub fn read<'a>(
        &'a mut self,
        topic: &TopicFile,
        limit: i64,
        max: usize,
    ) -> Result<(Vec<Record<'a>>, usize), LogError> {
        let entries = topic.entries(self.partition);
        let first = self.next;
        let start = entries[first].line;
        let run = entries[first..].iter().take(max).enumerate().take_while(|(i, e)| {
            let in_window = e.line + u64::from(e.length) <= start + WINDOW as u64;
            *i == 0 || (e.timestamp_ms.unwrap_or(i64::MIN) <= limit && in_window)
        });
        let end = first + run.count();
        let run = &entries[first..end];
        let last = &run[run.len() - 1];
        self.load(topic, start, last.line + u64::from(last.length))?;
        self.decode(topic, run)?;
        self.next = end;
        let (window, window_at) = (&self.window, self.window_at);
        let mut decoded = self.decoded.iter();
        let records = run.iter().enumerate().map(|(i, entry)| {
            let slice = |part: (u32, u32)| &window[span(entry, window_at, part)];
            let offset = Offset((first + i) as i64);
            let timestamp_ms = entry.timestamp_ms;
            if entry.decode {
                let d = decoded.next().expect("one for each such entry");
                let (key, value) = (d.key.as_deref(), d.value.as_deref());
                return Record { offset, timestamp_ms, key, value, headers: &d.headers };
            }
            Record { offset, timestamp_ms, key: entry.key.map(slice), value: entry.value.map(slice), headers: &[] }
        });
        Ok((records.collect(), end))
    }

    /// Makes the window hold the bytes from `start` to `end`.
    fn load(&mut self, topic: &TopicFile, start: u64, end: u64) -> Result<(), LogError> {
        let held = self.window_at..self.window_at + self.window.len() as u64;
        if held.start <= start && end <= held.end {
            return Ok(());
        }
        let end = end.max((start + WINDOW as u64).min(topic.scanned));
        self.window.resize((end - start) as usize, 0);
        self.window_at = start;
        match &topic.file {
            Some(file) => file.read_exact_at(&mut self.window, start).map_err(io("read", &topic.path)),
            None => Ok(()),
        }
    }

    fn decode(&mut self, topic: &TopicFile, run: &[Entry]) -> Result<(), LogError> {
        self.decoded.clear();
        for entry in run.iter().filter(|e| e.decode) {
            let line = &self.window[span(entry, self.window_at, (0, entry.length))];
            let parsed = envelope::parse(line).map_err(|text| LogError::Damaged {
                path: topic.path.clone(),
                at: entry.line,
                text: format!("a line changed after it was read: {text}"),
            })?;
            self.decoded.push(Decoded {
                key: parsed.key.map(std::borrow::Cow::into_owned),
                value: parsed.value.map(std::borrow::Cow::into_owned),
                headers: parsed.headers,
            });
        }
        Ok(())
    }
}

/// A part of a line, as a range of the window.
fn span(entry: &Entry, window_at: u64, (start, length): (u32, u32)) -> Range<usize> {
    let from = (entry.line - window_at) as usize + start as usize;
    from..from + length as usize
}

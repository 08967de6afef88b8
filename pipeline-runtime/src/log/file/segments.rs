//! A partition of one of our own topics: binary segment files `<topic>-<partition>.<first offset>.log`.
//!
//! A frame is `length u32 | crc32 u32 | timestamp i64 | key length u32 | value length u32 | key | value`, little-endian;
//! `length` counts what follows the checksum, which covers the same bytes. A length of `u32::MAX` is "none", a timestamp
//! of `i64::MIN` too. Readers see the frames of committed epochs only; trimming removes whole segments.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use millrace_core::ids::Offset;
use millrace_core::partitioner::crc32;

use super::io;
use crate::log::{LogError, OutRecord, Record};

/// A segment that has grown beyond this is followed by a new one.
const SEGMENT_BYTES: u64 = 16 << 20;
/// A read stops behind the record that fills this.
const READ_BYTES: usize = 1 << 20;
const HEADER: usize = 8;
const FIXED: usize = 16;
const NONE: u32 = u32::MAX;

struct Segment {
    path: PathBuf,
    file: File,
    base: i64,
    /// Where each frame begins, and where the last one ends.
    starts: Vec<u64>,
}

impl Segment {
    fn end(&self) -> i64 {
        self.base + self.starts.len() as i64 - 1
    }

    fn bytes(&self) -> u64 {
        *self.starts.last().expect("it holds at least the end")
    }
}

pub struct Segments {
    dir: PathBuf,
    name: String,
    segments: VecDeque<Segment>,
    /// What readers see.
    visible_end: i64,
    pending: Vec<u8>,
    /// Ends of the pending frames.
    pending_ends: Vec<usize>,
}

impl Segments {
    /// Opens the partition and cuts it back to `end`. What is missing or damaged below `end` is an error.
    pub fn open(dir: &Path, topic: &str, partition: i32, end: i64) -> Result<Self, LogError> {
        let name = format!("{topic}-{partition}");
        let mut found = Vec::new();
        for entry in fs::read_dir(dir).map_err(io("list", dir))? {
            let path = entry.map_err(io("list", dir))?.path();
            let file = path.file_name().and_then(|f| f.to_str()).unwrap_or_default();
            let base = file.strip_prefix(&name).and_then(|f| f.strip_prefix('.')).and_then(|f| f.strip_suffix(".log"));
            if let Some(base) = base.and_then(|b| b.parse::<i64>().ok()) {
                found.push((base, path));
            }
        }
        found.sort();
        let mut segments = VecDeque::new();
        for (base, path) in found {
            if base > end || (base == end && base != 0) {
                fs::remove_file(&path).map_err(io("remove", &path))?;
            } else {
                segments.push_back(open_segment(path, base, end)?);
            }
        }
        let last = segments.back().map_or(0, Segment::end);
        if last < end {
            return Err(LogError::Damaged {
                path: dir.join(name),
                at: segments.back().map_or(0, Segment::bytes),
                text: format!("it ends at record {last} and {end} were committed"),
            });
        }
        Ok(Self {
            dir: dir.to_owned(),
            name,
            segments,
            visible_end: end,
            pending: Vec::new(),
            pending_ends: Vec::new(),
        })
    }

    /// One above the last record that a reader sees.
    pub fn visible_end(&self) -> i64 {
        self.visible_end
    }

    /// The first record that is still there.
    pub fn start(&self) -> i64 {
        self.segments.front().map_or(self.visible_end, |s| s.base)
    }

    pub fn append(&mut self, record: &OutRecord<'_>) {
        let length = FIXED + record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len);
        let out = &mut self.pending;
        out.extend_from_slice(&(length as u32).to_le_bytes());
        let crc_at = out.len();
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&record.timestamp_ms.unwrap_or(i64::MIN).to_le_bytes());
        for part in [record.key, record.value] {
            out.extend_from_slice(&part.map_or(NONE, |p| p.len() as u32).to_le_bytes());
        }
        for part in [record.key, record.value].into_iter().flatten() {
            out.extend_from_slice(part);
        }
        let crc = crc32(&out[crc_at + 4..]);
        out[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
        self.pending_ends.push(out.len());
    }

    /// Writes the open epoch's frames; they are visible after [`Self::publish`]. Returns the end behind them.
    pub fn write_pending(&mut self) -> Result<i64, LogError> {
        if self.pending.is_empty() {
            return Ok(self.visible_end);
        }
        if self.segments.back().is_none_or(|s| s.bytes() > SEGMENT_BYTES) {
            let base = self.visible_end;
            let path = self.dir.join(format!("{}.{base}.log", self.name));
            let file = open_file(&path)?;
            file.set_len(0).map_err(io("cut", &path))?;
            self.segments.push_back(Segment { path, file, base, starts: vec![0] });
        }
        let segment = self.segments.back_mut().expect("one was just made");
        segment.file.write_all(&self.pending).map_err(io("write", &segment.path))?;
        let start = segment.bytes();
        segment.starts.extend(self.pending_ends.iter().map(|end| start + *end as u64));
        self.pending.clear();
        self.pending_ends.clear();
        Ok(segment.end())
    }

    pub fn publish(&mut self) {
        self.visible_end = self.segments.back().map_or(self.visible_end, Segment::end);
    }

    pub fn abort(&mut self) {
        self.pending.clear();
        self.pending_ends.clear();
    }

    /// Reads up to `max` records from `next` on; returns the next one. There must be one.
    pub fn read(&self, next: i64, max: usize, buffer: &mut ReadBuffer) -> Result<i64, LogError> {
        if next < self.start() {
            return Err(LogError::Damaged {
                path: self.dir.join(&self.name),
                at: 0,
                text: format!("record {next} is needed and the file begins at {}: it was truncated", self.start()),
            });
        }
        let segment = self.segments.iter().rev().find(|s| s.base <= next).expect("next is not below the start");
        let first = (next - segment.base) as usize;
        let end = (segment.end().min(self.visible_end) - segment.base) as usize;
        let start = segment.starts[first];
        let count = segment.starts[first + 1..=end]
            .iter()
            .take(max)
            .position(|e| (*e - start) as usize >= READ_BYTES)
            .map_or(max.min(end - first), |full| full + 1);
        buffer.bytes.resize((segment.starts[first + count] - start) as usize, 0);
        segment.file.read_exact_at(&mut buffer.bytes, start).map_err(io("read", &segment.path))?;
        buffer.frames.clear();
        for i in first..first + count {
            let frame = (segment.starts[i] - start) as usize..(segment.starts[i + 1] - start) as usize;
            let parsed = parse(&buffer.bytes[frame.clone()]).map_err(|text| LogError::Damaged {
                path: segment.path.clone(),
                at: segment.starts[i],
                text,
            })?;
            buffer.frames.push(parsed.at(frame.start, Offset(segment.base + i as i64)));
        }
        Ok(next + count as i64)
    }

    pub fn trim(&mut self, before: i64) -> Result<(), LogError> {
        while self.segments.len() > 1 && self.segments[0].end() <= before {
            let segment = self.segments.pop_front().expect("there are two");
            fs::remove_file(&segment.path).map_err(io("remove", &segment.path))?;
        }
        Ok(())
    }
}

fn open_file(path: &Path) -> Result<File, LogError> {
    OpenOptions::new().create(true).read(true).append(true).open(path).map_err(io("open", path))
}

/// Finds the frames below `end` and cuts off what lies behind.
fn open_segment(path: PathBuf, base: i64, end: i64) -> Result<Segment, LogError> {
    let file = open_file(&path)?;
    let bytes = fs::read(&path).map_err(io("read", &path))?;
    let mut starts = vec![0_u64];
    let mut at = 0;
    while base + (starts.len() as i64) - 1 < end && at < bytes.len() {
        let length = bytes.get(at..at + 4).map(|l| u32::from_le_bytes([l[0], l[1], l[2], l[3]]) as usize);
        let frame = length.and_then(|length| bytes.get(at..at + HEADER + length));
        let fault = |text: String| LogError::Damaged { path: path.clone(), at: at as u64, text };
        // A file that ends inside of a frame: the caller finds that too few were there.
        let Some(frame) = frame else { break };
        parse(frame).map_err(fault)?;
        at += frame.len();
        starts.push(at as u64);
    }
    file.set_len(at as u64).map_err(io("cut back", &path))?;
    Ok(Segment { path, file, base, starts })
}

struct Frame {
    offset: Offset,
    timestamp_ms: Option<i64>,
    key: Option<Range<usize>>,
    value: Option<Range<usize>>,
}

impl Frame {
    fn at(mut self, start: usize, offset: Offset) -> Self {
        let shift = |range: Range<usize>| range.start + start..range.end + start;
        self.offset = offset;
        self.key = self.key.map(shift);
        self.value = self.value.map(shift);
        self
    }
}

fn parse(frame: &[u8]) -> Result<Frame, String> {
    let u32_at = |at: usize| -> Option<u32> { Some(u32::from_le_bytes(frame.get(at..at + 4)?.try_into().ok()?)) };
    let short = || "a frame is shorter than it says".to_owned();
    let crc = u32_at(4).ok_or_else(short)?;
    if crc != crc32(&frame[HEADER..]) {
        return Err("checksum mismatch".to_owned());
    }
    let timestamp = frame.get(HEADER..HEADER + 8).and_then(|b| b.try_into().ok()).map(i64::from_le_bytes);
    let timestamp = timestamp.ok_or_else(short)?;
    let mut at = HEADER + FIXED;
    let mut part = |length: u32| {
        if length == NONE {
            return Ok(None);
        }
        let range = at..at + length as usize;
        at = range.end;
        if range.end > frame.len() { Err(short()) } else { Ok(Some(range)) }
    };
    let key = part(u32_at(HEADER + 8).ok_or_else(short)?)?;
    let value = part(u32_at(HEADER + 12).ok_or_else(short)?)?;
    Ok(Frame { offset: Offset(0), timestamp_ms: (timestamp != i64::MIN).then_some(timestamp), key, value })
}

/// The records of one read.
#[derive(Default)]
pub struct ReadBuffer {
    bytes: Vec<u8>,
    frames: Vec<Frame>,
}

impl ReadBuffer {
    pub fn records(&self) -> Vec<Record<'_>> {
        let records = self.frames.iter().map(|f| Record {
            offset: f.offset,
            timestamp_ms: f.timestamp_ms,
            key: f.key.clone().map(|range| &self.bytes[range]),
            value: f.value.clone().map(|range| &self.bytes[range]),
            headers: &[],
        });
        records.collect()
    }
}

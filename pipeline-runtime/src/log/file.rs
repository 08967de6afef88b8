//! The embedded log: topics as files, for a laptop and for tests. The second adapter behind the same epoch code.
//!
//! A user's topic is `DIR/<topic>.jsonl`, one record a line (see [`envelope`]); our own topics are binary segments in
//! the state folder (see [`segments`]). An epoch becomes visible by one line in `epochs.jsonl`, which names the length
//! that every written file has then. What lies behind that length never happened: opening cuts it off. So an exit at
//! any instant leaves whole epochs, each once.
//!
//! Reading is a merge by the timestamp of the heads. It keeps the order within a partition, and ties go by rank, so
//! that the same files give the same run.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use millrace_core::ids::{Offset, Partition};
use millrace_core::plan::StartFrom;
use serde::{Deserialize, Serialize};

use super::{
    Assignment, CommitError, End, Fetch, Hidden, InputId, InternalKind, Log, LogError, Outbox, RANK_LAST, Record,
    TopicInfo, Wanted,
};
use crate::clock;

mod envelope;
mod segments;
mod topic_file;

use segments::Segments;
use topic_file::{PartitionReader, TopicFile};

/// `epochs.jsonl` is rewritten to its last line when it has grown beyond this.
const EPOCHS_BYTES_MAX: u64 = 1 << 20;
/// How long a reader that follows its files waits before it looks again.
const FOLLOW_POLL_MS: u64 = 10;

/// Where things are and how to read them.
#[derive(Clone, Debug)]
pub struct FileLogConfig {
    /// The folder of the users' topics.
    pub topics: PathBuf,
    /// Where results go; `None`: to standard output, topic by topic and line by line.
    pub out: Option<PathBuf>,
    /// The folder of our own topics and of the commit record.
    pub state: PathBuf,
    /// Go on when the files have been read, and wait for more.
    pub follow: bool,
    /// A topic without a file is an empty topic, in place of a mistake.
    pub missing_is_empty: bool,
}

/// One line of `epochs.jsonl`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Committed {
    number: u64,
    /// Length of every result file, by topic.
    outputs: BTreeMap<String, u64>,
    /// End offset of every partition of our own topics, by topic.
    internal: BTreeMap<String, Vec<i64>>,
}

enum Input {
    User { topic: String, reader: PartitionReader },
    Internal { topic: String, partition: Partition, next: i64 },
}

struct Assigned {
    rank: u32,
    input: Input,
}

impl Assigned {
    fn next(&self) -> Offset {
        match &self.input {
            Input::User { reader, .. } => Offset(reader.next() as i64),
            Input::Internal { next, .. } => Offset(*next),
        }
    }
}

pub struct FileLog {
    config: FileLogConfig,
    committed: Committed,
    epochs: File,
    topics: BTreeMap<String, TopicFile>,
    internal: BTreeMap<String, Vec<Segments>>,
    outputs: BTreeMap<String, Output>,
    /// `None`: not assigned any more.
    inputs: Vec<Option<Assigned>>,
    internal_buffer: segments::ReadBuffer,
    /// Held for as long as the process owns the state folder.
    _lock: Lock,
}

/// A result file and the lines of the open epoch.
struct Output {
    file: Option<File>,
    length: u64,
    pending: Vec<u8>,
}

fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> LogError {
    let path = path.to_owned();
    move |source| LogError::Io { what, path, source }
}

impl FileLog {
    /// Opens the log and cuts every file back to the last committed epoch.
    pub fn open(config: FileLogConfig) -> Result<Self, LogError> {
        if !config.topics.is_dir() {
            return Err(LogError::User(format!(
                "the topics folder {} does not exist: create it, with one file <topic>.jsonl for each source",
                config.topics.display()
            )));
        }
        let internal_dir = config.state.join("log");
        fs::create_dir_all(&internal_dir).map_err(io("create folder", &internal_dir))?;
        if let Some(out) = &config.out {
            fs::create_dir_all(out).map_err(io("create folder", out))?;
        }
        let lock = lock(&config.state)?;
        let epochs_path = config.state.join("epochs.jsonl");
        let committed = read_committed(&epochs_path)?;
        let epochs = rewrite_epochs(&epochs_path, &committed)?;
        let mut internal = BTreeMap::new();
        for (topic, ends) in &committed.internal {
            let partitions = (ends.iter().enumerate())
                .map(|(p, end)| Segments::open(&internal_dir, topic, p as i32, *end))
                .collect::<Result<Vec<_>, _>>()?;
            internal.insert(topic.clone(), partitions);
        }
        Ok(Self {
            config,
            committed,
            epochs,
            topics: BTreeMap::new(),
            internal,
            outputs: BTreeMap::new(),
            inputs: Vec::new(),
            internal_buffer: segments::ReadBuffer::default(),
            _lock: lock,
        })
    }

    /// The number of epochs that were committed in this state folder.
    pub fn epochs(&self) -> u64 {
        self.committed.number
    }

    fn user_topic(&mut self, name: &str) -> Result<Option<&mut TopicFile>, LogError> {
        if !self.topics.contains_key(name) {
            let path = self.config.topics.join(format!("{name}.jsonl"));
            let file = if path.exists() {
                TopicFile::open(path, self.config.follow)?
            } else if self.config.missing_is_empty {
                TopicFile::empty(path)
            } else {
                return Ok(None);
            };
            self.topics.insert(name.to_owned(), file);
        }
        Ok(self.topics.get_mut(name))
    }

    /// The input whose head comes first, among those that are wanted and have one.
    fn choose(&self, wanted: Wanted<'_>) -> Option<(usize, i64)> {
        let mut best: Option<(i64, u32, usize)> = None;
        for (i, assigned) in self.assigned() {
            let Some(time) = self.head(assigned) else { continue };
            let candidate = (time, assigned.rank, i);
            if best.is_none_or(|b| candidate < b) && wanted(InputId(i)).is_some_and(|below| assigned.next() < below) {
                best = Some(candidate);
            }
        }
        let (_, rank, chosen) = best?;
        Some((chosen, self.run_limit(chosen, rank, wanted)))
    }

    fn assigned(&self) -> impl Iterator<Item = (usize, &Assigned)> {
        self.inputs.iter().enumerate().filter_map(|(i, assigned)| Some((i, assigned.as_ref()?)))
    }

    /// The highest timestamp up to which `chosen` may be read before another input's head comes first.
    fn run_limit(&self, chosen: usize, rank: u32, wanted: Wanted<'_>) -> i64 {
        let others = self.assigned().filter(|(i, _)| *i != chosen && wanted(InputId(*i)).is_some());
        others
            .filter_map(|(i, other)| {
                let head = self.head(other)?;
                // At equal timestamps the lower rank goes first (and the lower input among equal ranks).
                Some(if (rank, chosen) < (other.rank, i) { head } else { head.saturating_sub(1) })
            })
            .min()
            .unwrap_or(i64::MAX)
    }

    /// The timestamp that the merge goes by. Our own topics come as soon as there is something, but for what comes last.
    fn head(&self, assigned: &Assigned) -> Option<i64> {
        match &assigned.input {
            Input::User { topic, reader } => reader.head_timestamp(&self.topics[topic]),
            Input::Internal { topic, partition, next } => {
                let segments = self.internal.get(topic)?.get(partition.0 as usize)?;
                let head = if assigned.rank == RANK_LAST { i64::MAX } else { i64::MIN };
                (*next < segments.visible_end()).then_some(head)
            }
        }
    }

    fn refresh(&mut self) -> Result<(), LogError> {
        for topic in self.topics.values_mut() {
            topic.refresh()?;
        }
        Ok(())
    }
}

impl Log for FileLog {
    fn topic(&mut self, name: &str) -> Result<Option<TopicInfo>, LogError> {
        if let Some(partitions) = self.internal.get(name) {
            return Ok(Some(TopicInfo { id: None, partitions: partitions.len() as i32 }));
        }
        Ok(self.user_topic(name)?.map(|t| TopicInfo { id: None, partitions: t.partitions() }))
    }

    fn creating_command(&self, topic: &str) -> String {
        format!("make the file {}", self.config.topics.join(format!("{topic}.jsonl")).display())
    }

    fn create_internal(&mut self, name: &str, _: InternalKind, partitions: i32) -> Result<(), LogError> {
        let dir = self.config.state.join("log");
        let known = self.internal.entry(name.to_owned()).or_default();
        for p in known.len() as i32..partitions {
            known.push(Segments::open(&dir, name, p, 0)?);
        }
        Ok(())
    }

    fn start(&mut self, topic: &str, partition: Partition, from: &StartFrom) -> Result<Offset, LogError> {
        let Some(file) = self.user_topic(topic)? else { return Ok(Offset(0)) };
        Ok(match from {
            StartFrom::Earliest => Offset(0),
            StartFrom::Latest => Offset(file.records(partition) as i64),
            StartFrom::Timestamp(ms) => Offset(file.first_at(partition, *ms) as i64),
            StartFrom::Offsets(list) => {
                let offset = list.iter().find(|(p, _)| *p == partition.0).map_or(0, |(_, offset)| *offset);
                let records = file.records(partition) as i64;
                if offset > records {
                    return Err(LogError::User(format!(
                        "startFrom: topic '{topic}' partition {partition} has {records} records, and offset {offset} lies behind them"
                    )));
                }
                Offset(offset)
            }
        })
    }

    fn end_of(&mut self, topic: &str, partition: Partition) -> Result<Offset, LogError> {
        if let Some(partitions) = self.internal.get(topic) {
            return Ok(Offset(partitions.get(partition.0 as usize).map_or(0, Segments::visible_end)));
        }
        Ok(Offset(self.user_topic(topic)?.map_or(0, |t| t.records(partition) as i64)))
    }

    /// A result file that is new is noted as empty before anything is written to it: from then on it is ours to cut.
    fn open_output(&mut self, topic: &str) -> Result<Option<TopicInfo>, LogError> {
        if !self.outputs.contains_key(topic) {
            let output = match &self.config.out {
                None => Output { file: None, length: 0, pending: Vec::new() },
                Some(dir) => {
                    let known = self.committed.outputs.get(topic).copied();
                    let output = open_output(&dir.join(format!("{topic}.jsonl")), known)?;
                    if known.is_none() {
                        self.committed.outputs.insert(topic.to_owned(), 0);
                        let path = self.config.state.join("epochs.jsonl");
                        append_epoch(&mut self.epochs, &self.committed).map_err(io("write", &path))?;
                    }
                    output
                }
            };
            self.outputs.insert(topic.to_owned(), output);
        }
        Ok(Some(TopicInfo { id: None, partitions: 1 }))
    }

    fn assign(&mut self, assignment: Assignment) -> Result<InputId, LogError> {
        let Assignment { topic, partition, next, rank, .. } = assignment;
        let input = if self.internal.contains_key(&topic) {
            Input::Internal { topic, partition, next: next.0 }
        } else {
            let file = self.user_topic(&topic)?.ok_or_else(|| LogError::User(format!("topic '{topic}' is missing")))?;
            let reader = file.reader(partition, next.0 as usize)?;
            Input::User { topic, reader }
        };
        let free = self.inputs.iter().position(Option::is_none);
        let id = free.unwrap_or_else(|| {
            self.inputs.push(None);
            self.inputs.len() - 1
        });
        self.inputs[id] = Some(Assigned { rank, input });
        Ok(InputId(id))
    }

    fn unassign(&mut self, input: InputId) -> Result<(), LogError> {
        self.inputs[input.0] = None;
        Ok(())
    }

    fn poll(&mut self, wanted: Wanted<'_>, max: usize) -> Result<Option<Fetch<'_>>, LogError> {
        let chosen = match self.choose(wanted) {
            Some(chosen) => chosen,
            None if self.config.follow => {
                self.refresh()?;
                match self.choose(wanted) {
                    Some(chosen) => chosen,
                    None => return Ok(None),
                }
            }
            None => return Ok(None),
        };
        let (index, limit) = chosen;
        let input = InputId(index);
        let Some(assigned) = &mut self.inputs[index] else { return Ok(None) };
        let below = wanted(input).map_or(0, |below| below.0 - assigned.next().0);
        let max = max.min(usize::try_from(below).unwrap_or(0));
        match &mut assigned.input {
            Input::User { topic, reader } => {
                let (records, next) = reader.read(&self.topics[topic.as_str()], limit, max)?;
                Ok(Some(Fetch { input, records, next: Offset(next as i64) }))
            }
            Input::Internal { topic, partition, next } => {
                let segments = &mut self.internal.get_mut(topic).expect("it is assigned")[partition.0 as usize];
                *next = segments.read(*next, max, &mut self.internal_buffer)?;
                Ok(Some(Fetch { input, records: self.internal_buffer.records(), next: Offset(*next) }))
            }
        }
    }

    fn end(&mut self, input: InputId) -> Result<End, LogError> {
        let as_of_ms = clock::now_ms();
        match &self.inputs[input.0].as_ref().expect("it is assigned").input {
            Input::User { topic, reader } => {
                let name = topic.clone();
                let (partition, next) = (reader.partition(), reader.next());
                let ended = !self.config.follow;
                let file = self.topics.get_mut(&name).expect("it is assigned");
                file.refresh()?;
                Ok(End {
                    offset: Offset(file.records(partition) as i64),
                    as_of_ms,
                    ended,
                    head_timestamp_ms: file.timestamp(partition, next),
                    hidden: Hidden::default(),
                })
            }
            Input::Internal { topic, partition, .. } => {
                let offset = self.internal[topic][partition.0 as usize].visible_end();
                Ok(End {
                    offset: Offset(offset),
                    as_of_ms,
                    ended: false,
                    head_timestamp_ms: None,
                    hidden: Hidden::default(),
                })
            }
        }
    }

    fn send(&mut self, outbox: &mut Outbox) -> Result<(), LogError> {
        for record in outbox.records() {
            let topic = outbox.topic(record.topic);
            if let Some(partitions) = self.internal.get_mut(topic) {
                partitions[record.partition.0 as usize].append(&record);
            } else {
                let output = self.outputs.get_mut(topic).expect("outputs are opened at start");
                envelope::write(&mut output.pending, &record);
            }
        }
        outbox.clear();
        Ok(())
    }

    fn commit(&mut self) -> Result<(), CommitError> {
        for (topic, output) in &mut self.outputs {
            if output.pending.is_empty() {
                continue;
            }
            if let Some(file) = &mut output.file {
                let path = PathBuf::from(format!("{topic}.jsonl"));
                file.write_all(&output.pending).map_err(io("write results to", &path))?;
                output.length += output.pending.len() as u64;
                output.pending.clear();
                self.committed.outputs.insert(topic.clone(), output.length);
            }
        }
        for (topic, partitions) in &mut self.internal {
            let ends = partitions.iter_mut().map(Segments::write_pending).collect::<Result<Vec<_>, _>>()?;
            self.committed.internal.insert(topic.clone(), ends);
        }
        self.committed.number += 1;
        let path = self.config.state.join("epochs.jsonl");
        append_epoch(&mut self.epochs, &self.committed).map_err(io("write", &path))?;
        if self.epochs.metadata().map_err(io("look at", &path))?.len() > EPOCHS_BYTES_MAX {
            self.epochs = rewrite_epochs(&path, &self.committed)?;
        }
        self.internal.values_mut().flatten().for_each(Segments::publish);
        Ok(self.print_results()?)
    }

    fn abort(&mut self) -> Result<(), LogError> {
        self.outputs.values_mut().for_each(|o| o.pending.clear());
        self.internal.values_mut().flatten().for_each(Segments::abort);
        Ok(())
    }

    fn changelog_range(&mut self, topic: &str, partition: Partition) -> Result<Range<Offset>, LogError> {
        Ok(Offset(0)..self.end_of(topic, partition)?)
    }

    fn read_changelog(
        &mut self,
        topic: &str,
        partition: Partition,
        range: Range<Offset>,
        visit: &mut dyn FnMut(Record<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        const BATCH: i64 = 1024;
        let segments = &mut self.internal.get_mut(topic).expect("the changelog was created")[partition.0 as usize];
        let mut next = range.start.0;
        while next < range.end.0 {
            next = segments.read(next, BATCH.min(range.end.0 - next) as usize, &mut self.internal_buffer)?;
            for record in self.internal_buffer.records() {
                visit(record)?;
            }
        }
        Ok(())
    }

    fn trim(&mut self, topic: &str, partition: Partition, before: Offset) -> Result<(), LogError> {
        match self.internal.get_mut(topic) {
            Some(partitions) => partitions[partition.0 as usize].trim(before.0),
            None => Ok(()),
        }
    }

    fn wait(&mut self, timeout_ms: u64) {
        clock::pause_ms(timeout_ms.min(FOLLOW_POLL_MS));
    }

    fn bounded(&self) -> bool {
        !self.config.follow
    }
}

impl FileLog {
    /// Without a folder for results they go to standard output, once they are committed.
    fn print_results(&mut self) -> Result<(), LogError> {
        let mut stdout = std::io::stdout().lock();
        for (topic, output) in self.outputs.iter_mut().filter(|(_, o)| o.file.is_none()) {
            for line in output.pending.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
                let written = write!(stdout, "{topic}\t")
                    .and_then(|()| stdout.write_all(line))
                    .and_then(|()| stdout.write_all(b"\n"));
                written.map_err(io("write results to", Path::new("standard output")))?;
            }
            output.pending.clear();
        }
        Ok(())
    }
}

/// Given back on purpose: a child process that is being started has a copy of the descriptor for a moment, and would keep
/// the lock for that long.
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // The file is closed next.
        drop(self.0.unlock());
    }
}

fn lock(state: &Path) -> Result<Lock, LogError> {
    let path = state.join("lock");
    let file = File::create(&path).map_err(io("create", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(Lock(file)),
        Err(fs::TryLockError::WouldBlock) => Err(LogError::User(format!(
            "the state folder {} is in use by another process: stop it, or give another --state",
            state.display()
        ))),
        Err(fs::TryLockError::Error(source)) => Err(LogError::Io { what: "lock", path, source }),
    }
}

/// The last whole line of the commit record. A line that a crash cut short never counted.
fn read_committed(path: &Path) -> Result<Committed, LogError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Committed::default()),
        Err(source) => return Err(LogError::Io { what: "open", path: path.to_owned(), source }),
    };
    let mut last = Committed::default();
    let mut at = 0;
    let mut lines = BufReader::new(file);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).map_err(io("read", path))? > 0 {
        if line.ends_with(b"\n") {
            last = serde_json::from_slice(&line).map_err(|e| LogError::Damaged {
                path: path.to_owned(),
                at,
                text: e.to_string(),
            })?;
        }
        at += line.len() as u64;
        line.clear();
    }
    Ok(last)
}

/// Replaces the commit record by its last line, atomically, and opens it for more.
fn rewrite_epochs(path: &Path, committed: &Committed) -> Result<File, LogError> {
    let next = path.with_extension("next");
    let mut file = File::create(&next).map_err(io("create", &next))?;
    if committed.number > 0 || !committed.outputs.is_empty() {
        append_epoch(&mut file, committed).map_err(io("write", &next))?;
    }
    fs::rename(&next, path).map_err(io("rename", &next))?;
    Ok(file)
}

fn append_epoch(file: &mut File, committed: &Committed) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(committed)?;
    line.push(b'\n');
    file.write_all(&line)
}

/// Opens a result file and cuts it back to what was committed. A file that no committed epoch knows is somebody's: it
/// is never overwritten.
fn open_output(path: &Path, committed: Option<u64>) -> Result<Output, LogError> {
    let file = OpenOptions::new().create(true).append(true).open(path).map_err(io("open", path))?;
    let found = file.metadata().map_err(io("look at", path))?.len();
    let length = match committed {
        Some(length) if length <= found => length,
        Some(_) if found == 0 => {
            return Err(LogError::User(format!(
                "{} is empty, and the state says that results were written to it: give the --out of that run, or another --state",
                path.display()
            )));
        }
        Some(length) => {
            return Err(LogError::Damaged {
                path: path.to_owned(),
                at: found,
                text: format!("{length} bytes of results were committed and the file is shorter"),
            });
        }
        None if found == 0 => 0,
        None => {
            return Err(LogError::User(format!(
                "{} holds results of another run: remove it, give another --out, or the --state of that run",
                path.display()
            )));
        }
    };
    file.set_len(length).map_err(io("cut back", path))?;
    Ok(Output { file: Some(file), length, pending: Vec::new() })
}

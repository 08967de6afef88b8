//! Snapshots of tasks in object storage: how they are written, found again and thrown away. See docs/snapshots.md.
//!
//! A manifest says everything about one snapshot; whatever is wrong with it, or with a file that it names, makes it one
//! that is not used, and never a wrong answer.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use millrace_core::ids::{Epoch, Offset, Partition, TaskId, Timeline};
use millrace_core::marker::Marker;
use serde::{Deserialize, Serialize};

use crate::state::{Checkpoint, StateError};
use crate::storage::{Object, StorageError, Store, Wanted, sha256, sha256_of_file};

/// Raised when an older release can no longer read a manifest.
const FORMAT: u32 = 1;
/// A file that no manifest names is kept for so long: somebody may be about to name it.
const UNNAMED_MS: i64 = 86_400_000;
/// Behind so many snapshots a changelog may be trimmed.
const USABLE_MIN: usize = 2;
/// The folder of a pipeline's savepoints.
pub const SAVEPOINTS: &str = "savepoints";

#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error("make a checkpoint of the state")]
    State(#[from] StateError),
    #[error("read a file of a checkpoint: {0}")]
    File(String),
    #[error("{0} cannot be read, and what it names is not known: {1}")]
    Unreadable(String, String),
    /// It was uploaded, and is not there.
    #[error("file {0} of the snapshot is not in storage as it was sent")]
    NotStored(String),
}

/// One snapshot of one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    pub format: u32,
    pub task: TaskId,
    pub timeline: Timeline,
    /// The id of its changelog's topic.
    pub changelog: String,
    /// The changelog offset behind its marker.
    pub next: Offset,
    pub marker: Marker,
    /// When it was taken, wall-clock milliseconds.
    pub taken_ms: i64,
    /// In the order of their names.
    pub files: Vec<File>,
}

/// A file of the state's folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct File {
    pub name: String,
    pub bytes: u64,
    pub sha256: String,
}

impl Manifest {
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).expect("plain data has a JSON form")
    }

    /// Reads one that somebody else may have written.
    pub fn read(bytes: &[u8], task: &TaskId) -> Result<Self, String> {
        let manifest: Self = serde_json::from_slice(bytes).map_err(|error| format!("it is no manifest: {error}"))?;
        if manifest.format > FORMAT {
            return Err(format!("it has format {}, and this release knows {FORMAT}", manifest.format));
        }
        if manifest.task != *task {
            return Err(format!("it is of task {}", manifest.task));
        }
        // A name with a folder in it would be written wherever it says.
        let plain =
            |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        match manifest.files.iter().find(|file| !plain(&file.name) || file.name.starts_with('.')) {
            Some(file) => Err(format!("'{}' is no name of a file", file.name)),
            None => Ok(manifest),
        }
    }
}

/// Where a task's objects are.
#[derive(Clone, Debug)]
pub struct Folder(String);

impl Folder {
    pub fn new(timeline: Timeline, task: &TaskId) -> Self {
        Self(format!("t{timeline}/{}/{}", task.stage, task.partition))
    }

    pub fn files(&self) -> String {
        format!("{}/files", self.0)
    }

    pub fn file(&self, sha256: &str) -> String {
        format!("{}/files/{sha256}", self.0)
    }

    pub fn manifests(&self) -> String {
        format!("{}/snapshots", self.0)
    }

    pub fn manifest(&self, name: &ManifestName) -> String {
        format!("{}/snapshots/{name}", self.0)
    }
}

/// `<epoch>-<hash of the manifest>.json`: in order of epochs, and whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ManifestName {
    pub epoch: Epoch,
    sha256: String,
}

impl std::fmt::Display for ManifestName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:020}-{}.json", self.epoch.0, self.sha256)
    }
}

impl ManifestName {
    pub fn of(epoch: Epoch, bytes: &[u8]) -> Self {
        Self { epoch, sha256: sha256(bytes) }
    }

    fn parse(name: &str) -> Option<Self> {
        let (epoch, sha256) = name.strip_suffix(".json")?.split_once('-')?;
        Some(Self { epoch: Epoch(epoch.parse().ok()?), sha256: sha256.to_owned() })
    }
}

/// The manifests of a task that are in storage, the newest first.
pub fn manifests(store: &Store, folder: &Folder) -> Result<Vec<ManifestName>, StorageError> {
    let objects = store.list(&folder.manifests())?;
    let mut names: Vec<ManifestName> = objects.iter().filter_map(|object| ManifestName::parse(&object.name)).collect();
    names.sort_by(|a, b| b.cmp(a));
    Ok(names)
}

/// Reads a manifest. The inner error says what is wrong with it.
pub fn read_manifest(
    store: &Store,
    folder: &Folder,
    name: &ManifestName,
    task: &TaskId,
) -> Result<Result<Manifest, String>, StorageError> {
    match store.get(&folder.manifest(name)) {
        Ok(bytes) if sha256(&bytes) != name.sha256 => {
            Ok(Err("its bytes have another hash than its name says".to_owned()))
        }
        Ok(bytes) => Ok(Manifest::read(&bytes, task)),
        Err(StorageError::Missing(_)) => Ok(Err("it was deleted a moment ago".to_owned())),
        Err(error) => Err(error),
    }
}

/// Brings the files of a snapshot into a folder, each compared with its hash. What is there already is not fetched again.
/// False when `go` has ended it before; `pace` is called again and again meanwhile.
pub fn fetch(
    store: &Store,
    folder: &Folder,
    manifest: &Manifest,
    dir: &Path,
    go: &dyn Fn() -> bool,
    pace: &dyn Fn(),
) -> Result<bool, StorageError> {
    let wanted = |file: &File| {
        let path = dir.join(&file.name);
        let wanted = Wanted { key: folder.file(&file.sha256), bytes: file.bytes, sha256: file.sha256.clone(), path };
        (!wanted.path.exists()).then_some(wanted)
    };
    store.download(&manifest.files.iter().filter_map(wanted).collect::<Vec<_>>(), go, pace)
}

/// What identifies a file on the disk, and its hash: a file of RocksDB never changes.
type Hashes = BTreeMap<(u64, u64), String>;

/// What one worker knows of the snapshots of one task, so that nothing is hashed or read twice.
#[derive(Debug, Default)]
pub struct Shelf {
    hashes: Hashes,
    /// What each manifest names that was read or written here.
    named: BTreeMap<String, BTreeSet<String>>,
}

/// What a snapshot came to.
#[derive(Clone, Debug)]
pub struct Written {
    pub manifest: Manifest,
    pub uploaded_bytes: u64,
}

/// Identity of a state's history, as its snapshots say it.
#[derive(Clone, Debug)]
pub struct Origin {
    pub task: TaskId,
    pub timeline: Timeline,
    /// The id of its changelog's topic.
    pub changelog: String,
}

impl Shelf {
    /// Describes a checkpoint.
    pub fn describe(
        &mut self,
        checkpoint: &Checkpoint,
        origin: &Origin,
        taken_ms: i64,
    ) -> Result<Manifest, SnapshotError> {
        let (marker, next) = checkpoint.marker()?;
        let marker =
            serde_json::from_slice(&marker).map_err(|error| SnapshotError::File(format!("its marker: {error}")))?;
        let mut hashes = Hashes::new();
        let mut files = checkpoint
            .files()?
            .iter()
            .map(|path| {
                let read = |error: std::io::Error| SnapshotError::File(format!("{}: {error}", path.display()));
                let id = file_id(path).map_err(read)?;
                let sha256 = match self.hashes.get(&id) {
                    Some(known) => known.clone(),
                    None => sha256_of_file(path).map_err(read)?.0,
                };
                hashes.insert(id, sha256.clone());
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                Ok(File { name, bytes: id.1, sha256 })
            })
            .collect::<Result<Vec<_>, SnapshotError>>()?;
        files.sort_by(|a, b| a.name.cmp(&b.name));
        self.hashes = hashes;
        let Origin { task, timeline, changelog } = origin.clone();
        Ok(Manifest { format: FORMAT, task, timeline, changelog, next: Offset(next), marker, taken_ms, files })
    }

    /// Uploads what is not there yet, and writes the manifest once everything was found there: under `key`, or among the
    /// task's snapshots. No manifest is ever written over.
    pub fn write(
        &mut self,
        store: &Store,
        manifest: Manifest,
        checkpoint: &Path,
        key: Option<&str>,
    ) -> Result<Written, SnapshotError> {
        let folder = Folder::new(manifest.timeline, &manifest.task);
        let there = store.sizes(&folder.files())?;
        let missing: BTreeMap<&str, &File> = manifest
            .files
            .iter()
            .filter(|file| there.get(&file.sha256) != Some(&file.bytes))
            .map(|file| (file.sha256.as_str(), file))
            .collect();
        let send = |file: &&File| (checkpoint.join(&file.name), folder.file(&file.sha256));
        store.upload(&missing.values().map(send).collect::<Vec<_>>())?;
        // Whoever cleans up may have deleted what was there a moment ago.
        let there = store.sizes(&folder.files())?;
        if let Some(lost) = manifest.files.iter().find(|file| there.get(&file.sha256) != Some(&file.bytes)) {
            return Err(SnapshotError::NotStored(lost.name.clone()));
        }
        let bytes = manifest.to_json();
        let name = folder.manifest(&ManifestName::of(manifest.marker.epoch, &bytes));
        let key = key.map_or(name, str::to_owned);
        store.put_new(&key, bytes)?;
        self.named.insert(key, manifest.files.iter().map(|file| file.sha256.clone()).collect());
        Ok(Written { uploaded_bytes: missing.values().map(|file| file.bytes).sum(), manifest })
    }

    /// Deletes snapshots beyond the newest `keep`, and files that nothing names any more. Returns where the changelog must
    /// begin for those that are left, if these are enough. What is newer than `epoch` is not judged: the next owner made it, or it is of a
    /// history that the brokers have lost.
    pub fn tidy(
        &mut self,
        store: &Store,
        origin: &Origin,
        epoch: Epoch,
        keep: usize,
        now_ms: i64,
    ) -> Result<Option<Offset>, SnapshotError> {
        let folder = Folder::new(origin.timeline, &origin.task);
        let (newer, all): (Vec<_>, Vec<_>) =
            manifests(store, &folder)?.into_iter().partition(|name| name.epoch > epoch);
        let (kept, surplus) = all.split_at(keep.min(all.len()));
        for name in surplus {
            store.delete(&folder.manifest(name))?;
        }
        let (mut oldest, mut usable) = (None, 0);
        let mut named = BTreeMap::new();
        for name in newer.iter().chain(kept) {
            let key = folder.manifest(name);
            match read_manifest(store, &folder, name, &origin.task)? {
                // A pipeline of the same name had its changelog deleted.
                Ok(manifest) if manifest.changelog != origin.changelog => store.delete(&key)?,
                Ok(manifest) => {
                    named.insert(key, manifest.files.iter().map(|file| file.sha256.clone()).collect());
                    if name.epoch <= epoch {
                        usable += 1;
                        oldest = Some(oldest.map_or(manifest.next, |next: Offset| next.min(manifest.next)));
                    }
                }
                Err(why) => tracing::warn!(task = %origin.task, snapshot = %name, "a snapshot cannot be used: {why}"),
            }
        }
        for key in savepoint_manifests(store, &origin.task)? {
            let names = match self.named.remove(&key) {
                Some(names) => names,
                None => {
                    let bytes = store.get(&key)?;
                    let Ok(manifest) = Manifest::read(&bytes, &origin.task) else {
                        tracing::warn!(task = %origin.task, key, "a savepoint's manifest cannot be read: nothing is deleted");
                        return Ok(oldest);
                    };
                    manifest.files.into_iter().map(|file| file.sha256).collect()
                }
            };
            named.insert(key, names);
        }
        for name in unnamed(&store.list(&folder.files())?, &named, now_ms) {
            store.delete(&folder.file(name))?;
        }
        self.named = named;
        // One that turns out to be damaged must not be all that is left.
        Ok(oldest.filter(|_| usable >= USABLE_MIN))
    }
}

/// Every task of every timeline that has anything in storage, in their order.
pub fn tasks(store: &Store) -> Result<BTreeSet<(Timeline, TaskId)>, StorageError> {
    let task = |name: &str| {
        let mut parts = name.split('/');
        let timeline = Timeline(parts.next()?.strip_prefix('t')?.parse().ok()?);
        let (stage, partition) = (parts.next()?.to_owned(), Partition(parts.next()?.parse().ok()?));
        Some((timeline, TaskId { stage, partition }))
    };
    Ok(store.list("")?.iter().filter_map(|object| task(&object.name)).collect())
}

/// Deletes all of a task's snapshots, where nobody runs it any more. What a savepoint names stays.
pub fn delete_all(store: &Store, timeline: Timeline, task: &TaskId) -> Result<(), SnapshotError> {
    let folder = Folder::new(timeline, task);
    for name in manifests(store, &folder)? {
        store.delete(&folder.manifest(&name))?;
    }
    let mut named = BTreeSet::new();
    for key in savepoint_manifests(store, task)? {
        let manifest = Manifest::read(&store.get(&key)?, task).map_err(|why| SnapshotError::Unreadable(key, why))?;
        named.extend(manifest.files.into_iter().map(|file| file.sha256).filter(|_| manifest.timeline == timeline));
    }
    for file in store.list(&folder.files())?.into_iter().filter(|file| !named.contains(&file.name)) {
        store.delete(&folder.file(&file.name))?;
    }
    Ok(())
}

/// Deletes the files of a snapshot that nothing names any more, where nobody runs the task who would.
pub fn delete_unnamed(store: &Store, gone: &Manifest) -> Result<(), StorageError> {
    let folder = Folder::new(gone.timeline, &gone.task);
    let snapshots =
        store.list(&folder.manifests())?.into_iter().map(|it| format!("{}/{}", folder.manifests(), it.name));
    let mut files: BTreeSet<&str> = gone.files.iter().map(|file| file.sha256.as_str()).collect();
    for key in snapshots.chain(savepoint_manifests(store, &gone.task)?) {
        // One that cannot be read may name any of them.
        let Ok(manifest) = Manifest::read(&store.get(&key)?, &gone.task) else { return Ok(()) };
        for file in &manifest.files {
            files.remove(file.sha256.as_str());
        }
    }
    files.into_iter().try_for_each(|file| store.delete(&folder.file(file)))
}

/// Files that no manifest names, and that are old enough that nobody is about to.
fn unnamed<'a>(files: &'a [Object], named: &BTreeMap<String, BTreeSet<String>>, now_ms: i64) -> Vec<&'a str> {
    let old = files.iter().filter(|file| now_ms - file.modified_ms > UNNAMED_MS);
    old.map(|file| file.name.as_str()).filter(|name| !named.values().any(|names| names.contains(*name))).collect()
}

/// The keys of what savepoints hold of a task.
pub fn savepoint_manifests(store: &Store, task: &TaskId) -> Result<Vec<String>, StorageError> {
    let own = format!("/{}/{}.json", task.stage, task.partition);
    let listed = store.list(SAVEPOINTS)?.into_iter().map(|object| object.name).filter(|name| name.ends_with(&own));
    Ok(listed.map(|name| format!("{SAVEPOINTS}/{name}")).collect())
}

/// Inode and size: hard links of one file share them.
fn file_id(path: &Path) -> std::io::Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let meta = std::fs::metadata(path)?;
    Ok((meta.ino(), meta.size()))
}

/// Where the files of a snapshot are put before they become the state in `dir`: beside it.
pub fn landing(dir: &Path, name: &ManifestName) -> PathBuf {
    let hash = name.sha256.get(..8).unwrap_or_default();
    dir.with_file_name(format!("{}{}-{hash}", landing_prefix(dir), name.epoch))
}

fn landing_prefix(dir: &Path) -> String {
    format!("{}.from-", dir.file_name().unwrap_or_default().to_string_lossy())
}

/// Makes that folder, and removes what other snapshots have left beside it.
pub fn clear_landing(dir: &Path, name: &ManifestName) -> std::io::Result<PathBuf> {
    let (landing, prefix) = (landing(dir, name), landing_prefix(dir));
    std::fs::create_dir_all(&landing)?;
    for entry in std::fs::read_dir(dir.parent().unwrap_or(dir))? {
        let path = entry?.path();
        let other = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix));
        if other && path != landing {
            std::fs::remove_dir_all(&path)?;
        }
    }
    Ok(landing)
}

#[cfg(test)]
mod tests;

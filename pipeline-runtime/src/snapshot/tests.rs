//! On a folder in place of a bucket.

use millrace_core::ids::{Generation, Partition};
use millrace_core::marker::MARKER_FORMAT;
use millrace_crds::pipeline::{FileStorage, Storage as Spec};

use super::*;
use crate::state::{StateBudget, TaskState};
use crate::storage::Storage;

const NOW_MS: i64 = 1_000_000_000_000;

struct Bench {
    dir: tempfile::TempDir,
    store: Store,
    state: TaskState,
    shelf: Shelf,
    origin: Origin,
}

fn marker(epoch: u64) -> Marker {
    Marker {
        format: MARKER_FORMAT,
        epoch: Epoch(epoch),
        generation: Generation(1),
        cluster: None,
        state_fingerprint: 7,
        written_ms: 0,
        inputs: Vec::new(),
        totals: BTreeMap::new(),
    }
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let file = Some(FileStorage { path: dir.path().join("storage").display().to_string() });
        let spec = Spec { s3: None, gcs: None, azure: None, file };
        let store = Storage::new(&spec, None, "shop.orders").expect("a runtime").connect().expect("a folder");
        let budget = StateBudget::new(1 << 20, 1 << 20);
        let state = TaskState::open(&dir.path().join("state"), &budget, &[], &[]).expect("a new state");
        let task = TaskId { stage: "joined".to_owned(), partition: Partition(3) };
        let origin = Origin { task, timeline: Timeline(1), changelog: "id".to_owned() };
        Self { dir, store, state, shelf: Shelf::default(), origin }
    }

    fn folder(&self) -> Folder {
        Folder::new(self.origin.timeline, &self.origin.task)
    }

    /// A snapshot of one more epoch, whose marker lies at ten times its number; under `key`, or among the others.
    fn snapshot(&mut self, epoch: u64, key: Option<&str>) -> Written {
        let json = serde_json::to_vec(&marker(epoch)).expect("plain data");
        self.state.apply(&json, epoch as i64 * 10 + 1).expect("the disk has room");
        let dir = self.dir.path().join(format!("checkpoint-{epoch}"));
        let checkpoint = self.state.checkpoints().make(dir).expect("the disk has room");
        let manifest = self.shelf.describe(&checkpoint, &self.origin, NOW_MS).expect("its files can be read");
        self.shelf.write(&self.store, manifest, checkpoint.dir(), key).expect("the folder can be written to")
    }

    fn tidy(&mut self, epoch: u64, keep: usize, now_ms: i64) -> Option<Offset> {
        self.shelf.tidy(&self.store, &self.origin, Epoch(epoch), keep, now_ms).expect("the folder can be read")
    }

    fn epochs(&self) -> Vec<u64> {
        manifests(&self.store, &self.folder()).expect("a list").into_iter().map(|name| name.epoch.0).collect()
    }

    fn files(&self) -> BTreeSet<String> {
        self.store.sizes(&self.folder().files()).expect("a list").into_keys().collect()
    }
}

fn names(written: &Written) -> BTreeSet<String> {
    written.manifest.files.iter().map(|file| file.sha256.clone()).collect()
}

/// The time of files that were written now.
fn far_ahead() -> i64 {
    crate::clock::now_ms() + 2 * UNNAMED_MS
}

#[test]
fn a_snapshot_says_where_the_state_stands_and_uploads_only_what_is_new() {
    let mut it = Bench::new();
    let first = it.snapshot(1, None);
    assert_eq!((first.manifest.marker.clone(), first.manifest.next), (marker(1), Offset(11)));
    assert_eq!(first.uploaded_bytes, first.manifest.bytes());
    let second = it.snapshot(2, None);
    assert!(second.uploaded_bytes < second.manifest.bytes(), "what both have is there already");
    assert_eq!(it.epochs(), [2, 1]);
    let landing = clear_landing(&it.dir.path().join("3"), &ManifestName::of(Epoch(2), b"")).expect("a folder");
    assert!(fetch(&it.store, &it.folder(), &second.manifest, &landing, &|| true, &|| {}).expect("every file is whole"));
    let fetched = TaskState::open(&landing, &StateBudget::new(1 << 20, 1 << 20), &[], &[]).expect("a state");
    let (bytes, next) = fetched.marker().expect("it can be read").expect("it has one");
    assert_eq!((serde_json::from_slice::<Marker>(&bytes).expect("a marker"), next), (marker(2), 21));
}

#[test]
fn old_snapshots_go_and_files_that_a_savepoint_names_stay() {
    let mut it = Bench::new();
    let cut = it.snapshot(1, Some("savepoints/before/joined/3.json"));
    let written: Vec<Written> = (2..=5).map(|epoch| it.snapshot(epoch, None)).collect();
    assert_eq!(it.tidy(5, 2, NOW_MS), Some(Offset(41)), "the older one of those that are kept");
    assert_eq!(it.epochs(), [5, 4]);
    // Files that nothing names stay for a day.
    assert!(names(&written[0]).is_subset(&it.files()));
    it.tidy(5, 2, far_ahead());
    let kept = &(&names(&cut) | &names(&written[2])) | &names(&written[3]);
    assert_eq!(it.files(), kept);
    // Whoever knows nothing yet finds the same.
    it.shelf = Shelf::default();
    it.tidy(5, 2, far_ahead());
    assert_eq!(it.files(), kept);
    it.store.delete("savepoints/before/joined/3.json").expect("it is there");
    delete_unnamed(&it.store, &cut.manifest).expect("the folder can be read");
    assert_eq!(it.files(), &names(&written[2]) | &names(&written[3]));
}

#[test]
fn what_is_newer_than_the_own_epoch_is_not_judged_and_what_is_damaged_holds_no_changelog_back() {
    let mut it = Bench::new();
    for epoch in [3, 4, 9] {
        it.snapshot(epoch, None);
    }
    assert_eq!(it.tidy(4, 2, NOW_MS), Some(Offset(31)));
    assert_eq!(it.epochs(), [9, 4, 3]);
    let names = manifests(&it.store, &it.folder()).expect("a list");
    let newest = it.folder().manifest(&names[0]);
    it.store.put(&newest, b"{".to_vec()).expect("the folder can be written to");
    let read = read_manifest(&it.store, &it.folder(), &names[0], &it.origin.task).expect("it can be read");
    assert!(read.expect_err("it is damaged").contains("another hash"));
    assert_eq!(it.tidy(9, 3, NOW_MS), Some(Offset(31)));
    assert_eq!(it.tidy(9, 2, NOW_MS), None, "one alone may turn out to be damaged");
}

#[test]
fn of_a_pipeline_that_is_gone_only_what_a_savepoint_names_stays() {
    let mut it = Bench::new();
    let cut = it.snapshot(1, Some("savepoints/before/joined/3.json"));
    it.snapshot(2, None);
    let task = it.origin.task.clone();
    assert_eq!(tasks(&it.store).expect("a list"), [(Timeline(1), task.clone())].into());
    delete_all(&it.store, Timeline(1), &task).expect("the folder can be written to");
    assert_eq!((it.epochs(), it.files()), (Vec::new(), names(&cut)));
    // What a pipeline of the same name had is of another changelog.
    it.snapshot(9, None);
    it.origin.changelog = "another".to_owned();
    it.snapshot(10, None);
    assert_eq!(it.tidy(10, 3, NOW_MS), None, "one alone may turn out to be damaged");
    assert_eq!(it.epochs(), [10]);
    it.store.put("savepoints/before/joined/3.json", b"{".to_vec()).expect("the folder can be written to");
    let files = it.files();
    assert!(matches!(delete_all(&it.store, Timeline(1), &task), Err(SnapshotError::Unreadable(..))));
    assert_eq!(it.files(), files, "it may name any of them");
}

#[test]
fn a_manifest_that_is_not_ours_is_refused() {
    let mut it = Bench::new();
    let manifest = it.snapshot(1, None).manifest;
    let refused = |change: &dyn Fn(&mut Manifest)| {
        let mut other = manifest.clone();
        change(&mut other);
        Manifest::read(&other.to_json(), &it.origin.task).err().unwrap_or_default()
    };
    assert_eq!(refused(&|_| {}), "");
    assert!(refused(&|it| it.format = FORMAT + 1).contains("format 2"));
    assert!(refused(&|it| it.task.partition = Partition(4)).contains("task joined/4"));
    for name in ["../CURRENT", "/etc/passwd", "", ".", "..", "a\\b"] {
        assert!(refused(&|it| it.files[0].name = name.to_owned()).contains("no name of a file"), "{name}");
    }
}

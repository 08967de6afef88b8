//! Snapshots in storage on a real Kafka: what a worker restores from, whatever is missing or damaged, and what it does
//! while storage is away. The oracle is the model's answer.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use millrace_core::ids::{Partition, TaskId, Timeline};
use millrace_kafka_harness::{free_address, wait};
use millrace_runtime::snapshot::Folder;
use millrace_runtime::storage::{Storage, StorageError, Wanted, sha256};
use millrace_tests::control::paced;
use millrace_tests::kafka::shared as kafka;
use millrace_tests::s3::{self, S3};
use millrace_tests::scratch;
use millrace_tests::story::{DEADLINE, Numbers, Shape, Story, Worker, http, millrace_on};

/// A story with snapshots after every few epochs.
fn stored_in(story: &mut Story, storage: &str, keep: u32) {
    story.set_state(&format!("storage: {storage}, snapshots: {{after: 16Ki, keep: {keep}}}")).unwrap();
}

/// The same, and they lie in a folder.
fn stored(name: &str, keep: u32) -> Story {
    let mut story = paced(name, Shape::Aligned);
    let storage = format!("{{file: {{path: {}}}}}", story.dir().join("storage").display());
    stored_in(&mut story, &storage, keep);
    story
}

/// The manifests of a partition's task, the oldest first.
fn manifests(story: &Story, partition: i32) -> Vec<PathBuf> {
    let task = TaskId { stage: "joined".to_owned(), partition: Partition(partition) };
    let folder = Folder::new(Timeline(1), &task).manifests();
    let dir = story.dir().join("storage").join(story.prefix()).join(folder);
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

fn changelog(story: &Story) -> String {
    format!("{}-t1-joined-changelog", story.prefix())
}

/// Where the changelog of each partition begins and ends.
fn ranges(story: &Story) -> [(i64, i64); 2] {
    [0, 1].map(|partition| kafka().range(&changelog(story), partition).unwrap())
}

/// Waits until both changelogs were trimmed behind snapshots.
fn wait_trimmed(story: &Story) {
    let before = ranges(story).map(|(begin, _)| begin);
    wait::until("changelogs to be trimmed", DEADLINE, || {
        Ok(ranges(story).iter().zip(before).all(|((begin, _), before)| *begin > before))
    })
    .unwrap();
}

/// How many records of the changelog were read in all before each task ran.
fn replayed(worker: &Worker) -> Vec<u64> {
    let log = worker.log();
    let number = |line: &str, field: &str| line.split(field).nth(1)?.split_whitespace().next()?.parse::<u64>().ok();
    log.lines().filter(|line| line.contains("level:")).filter_map(|line| number(line, "records=")).collect()
}

fn metric(worker: &Worker, name: &str) -> u64 {
    let (_, text) = http(&worker.metrics, "/metrics").unwrap();
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or_default()
}

fn fetched(worker: &Worker) -> usize {
    worker.log().matches("a snapshot is where its state was missing").count()
}

#[test]
fn a_lost_disk_is_restored_from_snapshots_and_a_bounded_tail_and_a_kept_one_from_the_tail_alone() {
    let mut story = stored("snapshots", 2);
    story.generate(31);
    let mut first = story.worker("first", &[]).unwrap();
    first.wait_ready().unwrap();
    wait_trimmed(&story);
    first.kill().unwrap();
    let history = ranges(&story);
    let mut second = story.worker("second", &[]).unwrap();
    second.wait_ready().unwrap();
    assert_eq!((fetched(&second), second.log().contains("discarded")), (2, false), "{}", second.log());
    assert!(metric(&second, "millrace_snapshot_fetched_bytes_total") > 0);
    let tails = replayed(&second);
    let kept: i64 = history.iter().map(|(begin, end)| end - begin).sum();
    assert!(tails.iter().sum::<u64>() <= kept.unsigned_abs(), "{tails:?} of {history:?}");
    story.wait_written(300).unwrap();
    second.kill().unwrap();
    // Its disk is still there: nothing is fetched.
    let mut again = story.worker("second", &[]).unwrap();
    again.wait_ready().unwrap();
    assert_eq!(fetched(&again), 0, "{}", again.log());
    for partition in [0, 1] {
        assert!(manifests(&story, partition).len() <= 3, "no more than are kept, and one that is just being written");
    }
    story.wait_written(300).unwrap();
    story.stop_generating().unwrap();
    story.check().unwrap();
    again.stop().unwrap();
}

/// Turns a byte in the middle of a file.
fn damage(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    std::fs::write(path, bytes).unwrap();
}

/// The files of a snapshot that are in storage.
fn files_of(manifest: &Path) -> Vec<PathBuf> {
    let manifest_json: serde_json::Value = serde_json::from_slice(&std::fs::read(manifest).unwrap()).unwrap();
    let files = manifest.parent().and_then(Path::parent).unwrap().join("files");
    let named = manifest_json["files"].as_array().unwrap().iter();
    named.map(|file| files.join(file["sha256"].as_str().unwrap())).collect()
}

#[test]
fn snapshots_that_are_damaged_or_cut_short_are_passed_over_and_an_older_one_is_used() {
    let mut story = stored("damaged", 4);
    story.generate(32);
    let mut first = story.worker("first", &[]).unwrap();
    first.wait_ready().unwrap();
    let enough = || Ok([0, 1].iter().all(|partition| manifests(&story, *partition).len() >= 4));
    wait::until("four snapshots of each task", DEADLINE, enough).unwrap();
    first.stop().unwrap();
    // Of one task the newest is damaged, and the one before was cut short; of the other a file is.
    let (one, other) = (manifests(&story, 0), manifests(&story, 1));
    let newest = files_of(&other[other.len() - 1]);
    let older = files_of(&other[other.len() - 2]);
    let own: Vec<&PathBuf> = newest.iter().filter(|file| !older.contains(file)).collect();
    let listed = millrace_on(&["snapshot", "verify"], &story.file()).unwrap();
    assert_eq!(listed.lines().filter(|line| line.ends_with("ok")).count(), one.len() + other.len());
    damage(own[0]);
    let refused = millrace_on(&["snapshot", "verify"], &story.file()).unwrap_err();
    assert_eq!(refused.lines().filter(|line| line.starts_with("error: snapshot ")).count(), 1, "{refused}");
    damage(&one[one.len() - 1]);
    let whole = std::fs::read(&one[one.len() - 2]).unwrap();
    std::fs::write(&one[one.len() - 2], &whole[..whole.len() / 2]).unwrap();
    let mut second = story.worker("second", &[]).unwrap();
    second.wait_ready().unwrap();
    let log = second.log();
    // A slow restore looks at them once more.
    let name = |line: &str| Some(line.split("snapshot=").nth(1)?.split_whitespace().next()?.to_owned());
    let passed_over = log.lines().filter(|line| line.contains("a snapshot is passed over")).filter_map(name);
    assert_eq!((passed_over.collect::<BTreeSet<String>>().len(), fetched(&second)), (3, 2), "{log}");
    assert!(log.contains("has another hash than its manifest says"), "{log}");
    story.wait_written(300).unwrap();
    story.stop_generating().unwrap();
    story.check().unwrap();
    second.stop().unwrap();
}

#[test]
fn a_pipeline_runs_on_while_its_s3_store_is_away_and_makes_snapshots_when_it_is_back() {
    let s3 = S3::start(free_address().unwrap()).unwrap();
    let mut story = paced("away", Shape::Aligned);
    stored_in(&mut story, &s3.storage(), 2);
    let secrets = story.dir().join("secrets");
    s3::install(&secrets, s3::SECRET_KEY).unwrap();
    let with_secrets = ["--secrets", &secrets.display().to_string()];
    story.generate(33);
    let mut worker = story.worker("state", &with_secrets).unwrap();
    worker.wait_ready().unwrap();
    wait_trimmed(&story);
    s3.stop();
    worker.wait_log("a snapshot is not in storage, and is tried again", 2).unwrap();
    assert!(metric(&worker, "millrace_snapshot_failures_total") >= 2);
    story.wait_rows(story.written() + 300).unwrap();
    s3.launch().unwrap();
    wait_trimmed(&story);
    // It comes back on another machine.
    worker.kill().unwrap();
    let mut worker = story.worker("another", &with_secrets).unwrap();
    worker.wait_ready().unwrap();
    assert_eq!(fetched(&worker), 2, "{}", worker.log());
    story.wait_written(300).unwrap();
    story.stop_generating().unwrap();
    story.check().unwrap();
    worker.stop().unwrap();
}

#[test]
fn an_s3_store_takes_a_large_file_in_parts_and_gives_it_back_and_a_wrong_key_is_an_error() {
    let s3 = S3::start(free_address().unwrap()).unwrap();
    let dir = scratch().unwrap();
    let secrets = |name: &str, key: &str| {
        let secrets = dir.path().join(name);
        s3::install(&secrets, key).unwrap();
        secrets
    };
    let spec: millrace_crds::pipeline::Storage = serde_saphyr::from_str(&s3.storage()).unwrap();
    let right = Storage::new(&spec, Some(&secrets("right", s3::SECRET_KEY)), "shop.orders").unwrap();
    let store = right.connect().unwrap();
    let mut numbers = Numbers(7);
    for (name, bytes) in [("large", 20_000_001), ("exact", 16 << 20), ("small", 10), ("empty", 0)] {
        let content: Vec<u8> = std::iter::repeat_with(|| numbers.below(256) as u8).take(bytes).collect();
        let (from, to) = (dir.path().join(name), dir.path().join(format!("{name}.back")));
        std::fs::write(&from, &content).unwrap();
        store.upload(&[(from, format!("files/{name}"))]).unwrap();
        store.copy_to(&format!("files/{name}"), &store, &format!("copies/{name}")).unwrap();
        let wanted = |key: &str, sha256: String| {
            vec![Wanted { key: format!("{key}/{name}"), path: to.clone(), bytes: bytes as u64, sha256 }]
        };
        assert!(store.download(&wanted("copies", sha256(&content)), &|| true, &|| {}).unwrap());
        assert_eq!(std::fs::read(&to).unwrap(), content, "{name}");
        let other = store.download(&wanted("files", sha256(b"other")), &|| true, &|| {});
        assert!(matches!(other, Err(StorageError::Damaged(_))), "{other:?}");
        store.delete(&format!("files/{name}")).unwrap();
    }
    let names: Vec<String> = store.sizes("copies").unwrap().into_keys().collect();
    assert_eq!(names, ["empty", "exact", "large", "small"]);
    assert!(store.list("files").unwrap().is_empty());
    assert!(matches!(store.get("files/large"), Err(StorageError::Missing(_))));
    let wrong = Storage::new(&spec, Some(&secrets("wrong", "guessed")), "shop.orders").unwrap();
    let refused = wrong.connect().unwrap().list("copies").unwrap_err();
    assert!(format!("{:#}", anyhow::Error::from(refused)).contains("403"));
    let absent = Storage::new(&spec, None, "shop.orders").unwrap().connect().unwrap_err();
    assert!(absent.to_string().contains("put it into DIR/s3/accessKeyId"), "{absent}");
}

#[test]
fn a_task_whose_snapshots_are_all_gone_says_so_and_begins_nothing_anew() {
    let mut story = stored("gone", 2);
    story.generate(34);
    let mut first = story.worker("first", &[]).unwrap();
    first.wait_ready().unwrap();
    wait_trimmed(&story);
    story.stop_generating().unwrap();
    first.stop().unwrap();
    let before = story.rows().unwrap().len();
    std::fs::remove_dir_all(story.dir().join("storage")).unwrap();
    let mut second = story.worker("second", &[]).unwrap();
    let status = second.wait().unwrap();
    let log = second.log();
    assert!(!status.success() && log.contains("no snapshot or local state reaches that far"), "{log}");
    assert_eq!(story.rows().unwrap().len(), before);
    // Whoever has its disk goes on.
    let mut again = story.worker("first", &[]).unwrap();
    again.wait_ready().unwrap();
    story.check().unwrap();
    again.stop().unwrap();
}

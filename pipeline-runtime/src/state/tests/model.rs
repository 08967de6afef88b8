//! The answers do not depend on what happened to the task: random work, with epochs that are applied or given up,
//! restarts, crashes and restores in between, against a plain map.

use std::collections::BTreeMap;
use std::path::PathBuf;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Put(u8, Vec<u8>),
    Delete(u8),
    Get(u8),
    PutVersion {
        key: u8,
        from: i64,
        row: Option<Vec<u8>>,
        horizon: i64,
    },
    AsOf(u8, i64),
    EndVersions {
        from: i64,
        horizon: i64,
    },
    PutWaiting(i64, u64, Vec<u8>),
    RemoveWaiting(i64, u64),
    ScanWaiting {
        from: i64,
        limit: usize,
    },
    Clear(usize),
    Apply,
    Discard,
    Flush,
    /// Stop and start.
    Reopen,
    /// What is not flushed is lost and comes back from the changelog.
    Crash,
    /// The disk is lost.
    Rebuild,
}

fn row() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![9 => vec(any::<u8>(), 0..12), 1 => vec(any::<u8>(), 400..500)]
}

fn step() -> impl Strategy<Value = Step> {
    let key = || 0..5u8;
    let time = || prop_oneof![0..12i64, Just(i64::MIN), Just(i64::MAX)];
    prop_oneof![
        6 => (key(), row()).prop_map(|(k, r)| Step::Put(k, r)),
        3 => key().prop_map(Step::Delete),
        6 => key().prop_map(Step::Get),
        10 => (key(), time(), option::weighted(0.8, row()), 0..8i64)
            .prop_map(|(key, from, row, horizon)| Step::PutVersion { key, from, row, horizon }),
        10 => (key(), time()).prop_map(|(k, t)| Step::AsOf(k, t)),
        1 => (0..12i64, 0..8i64).prop_map(|(from, horizon)| Step::EndVersions { from, horizon }),
        5 => (time(), 0..3u64, row()).prop_map(|(t, s, r)| Step::PutWaiting(t, s, r)),
        2 => (time(), 0..3u64).prop_map(|(t, s)| Step::RemoveWaiting(t, s)),
        3 => (time(), prop_oneof![0..4usize, Just(usize::MAX)])
            .prop_map(|(from, limit)| Step::ScanWaiting { from, limit }),
        1 => (0..3usize).prop_map(Step::Clear),
        6 => Just(Step::Apply),
        2 => Just(Step::Discard),
        2 => Just(Step::Flush),
        1 => Just(Step::Reopen),
        1 => Just(Step::Crash),
        1 => Just(Step::Rebuild),
    ]
}

/// The naive state.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    latest: BTreeMap<u8, Vec<u8>>,
    versions: BTreeMap<u8, BTreeMap<i64, Option<Vec<u8>>>>,
    waiting: BTreeMap<(i64, u64), Vec<u8>>,
}

impl Model {
    fn put_version(&mut self, key: u8, from: i64, row: Option<Vec<u8>>, horizon: i64) {
        let versions = self.versions.entry(key).or_default();
        versions.insert(from, row);
        if let Some((&oldest, _)) = versions.range(..=horizon).next_back() {
            versions.retain(|from, _| *from >= oldest);
        }
    }

    fn as_of(&self, key: u8, time: i64) -> Option<Vec<u8>> {
        self.versions.get(&key)?.range(..=time).next_back()?.1.clone()
    }

    fn scan_waiting(&self, from: i64, limit: usize) -> Vec<(i64, u64, Vec<u8>)> {
        let rows = self.waiting.range((from, 0)..).take(limit);
        rows.map(|((time, sequence), row)| (*time, *sequence, row.clone())).collect()
    }
}

/// The state under test, its changelog, and what the model was behind each epoch.
struct Harness {
    state: Option<TaskState>,
    root: tempfile::TempDir,
    dirs: usize,
    cache_bytes: usize,
    changelog: Vec<Changes>,
    behind: Vec<Model>,
    model: Model,
}

impl Harness {
    fn new(cache_bytes: usize) -> Self {
        let root = tempfile::tempdir().expect("temporary directory");
        let mut harness = Self {
            state: None,
            root,
            dirs: 0,
            cache_bytes,
            changelog: Vec::new(),
            behind: vec![Model::default()],
            model: Model::default(),
        };
        harness.restore();
        harness
    }

    fn dir(&self) -> PathBuf {
        self.root.path().join(self.dirs.to_string())
    }

    fn state(&mut self) -> &mut TaskState {
        self.state.as_mut().expect("state is open")
    }

    /// Opens what is in the directory, compares it with the epoch it claims to be, and brings it level.
    fn restore(&mut self) {
        let budget = StateBudget::new(self.cache_bytes, 8 << 20);
        let layouts = layouts();
        self.state = Some(TaskState::open(&self.dir(), &budget, &layouts, &[None; 3]).expect("state opens"));
        let marker = self.state().marker().expect("state reads");
        let epochs = marker.map_or(0, |(marker, next)| {
            assert_eq!(marker, format!("epoch {next}").into_bytes());
            next as usize
        });
        self.model = self.behind[epochs].clone();
        self.compare();
        for epoch in epochs..self.changelog.len() {
            let changes = self.changelog[epoch].clone();
            replay(self.state(), &changes);
            self.state().apply(format!("epoch {}", epoch + 1).as_bytes(), epoch as i64 + 1).expect("disk has room");
        }
        self.model = self.behind.last().expect("begins with the empty one").clone();
        self.compare();
    }

    fn compare(&mut self) {
        let model = self.model.clone();
        let state = self.state();
        for key in 0..5 {
            assert_eq!(get(state, key), model.latest.get(&key).cloned(), "latest row of {key}");
            for time in (-1..13).chain([i64::MIN, i64::MAX]) {
                assert_eq!(as_of(state, key, time), model.as_of(key, time), "version of {key} as of {time}");
            }
        }
        let expected: Vec<_> = model.waiting.iter().map(|((t, s), row)| (*t, *s, row.clone())).collect();
        assert_eq!(waiting(state), expected);
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Put(name, row) => {
                self.state().put(LATEST, &key(name), &row, 0);
                self.model.latest.insert(name, row);
            }
            Step::Delete(name) => {
                self.state().delete(LATEST, &key(name));
                self.model.latest.remove(&name);
            }
            Step::Get(name) => assert_eq!(get(self.state(), name), self.model.latest.get(&name).cloned()),
            Step::PutVersion { key: name, from, row, horizon } => {
                self.state().put_version(VERSIONED, &key(name), from, row.as_deref(), horizon).expect("state reads");
                self.model.put_version(name, from, row, horizon);
            }
            Step::AsOf(name, time) => assert_eq!(as_of(self.state(), name, time), self.model.as_of(name, time)),
            Step::EndVersions { from, horizon } => {
                self.state().end_versions(VERSIONED, from, horizon).expect("state reads");
                let keys: Vec<u8> = self.model.versions.keys().copied().collect();
                keys.into_iter().for_each(|name| self.model.put_version(name, from, None, horizon));
            }
            Step::PutWaiting(time, sequence, row) => {
                self.state().put_waiting(WAITING, time, sequence, &row);
                self.model.waiting.insert((time, sequence), row);
            }
            Step::RemoveWaiting(time, sequence) => {
                self.state().remove_waiting(WAITING, time, sequence);
                self.model.waiting.remove(&(time, sequence));
            }
            Step::ScanWaiting { from, limit } => {
                let mut found = Vec::new();
                let visit = |t, s, row: StoredRow<'_>| found.push((t, s, row.row.to_vec()));
                let next = self.state().scan_waiting(WAITING, (from, 0), limit, visit).expect("state reads");
                assert_eq!(found, self.model.scan_waiting(from, limit));
                assert_eq!(
                    next,
                    self.model.scan_waiting(from, limit.saturating_add(1)).get(limit).map(|(t, s, _)| (*t, *s))
                );
            }
            Step::Clear(table) => {
                self.state().clear_table(table).expect("state reads");
                match table {
                    LATEST => self.model.latest.clear(),
                    VERSIONED => self.model.versions.clear(),
                    _ => self.model.waiting.clear(),
                }
            }
            Step::Apply => self.apply(),
            Step::Discard => {
                self.state().discard();
                assert!(!self.state().dirty());
                self.model = self.behind.last().expect("begins with the empty one").clone();
            }
            Step::Flush => self.state().flush().expect("disk has room"),
            Step::Reopen => {
                self.state = None;
                self.restore();
            }
            Step::Crash => {
                let flushed = self.root.path().join((self.dirs + 1).to_string());
                self.state().db.copy_flushed(&flushed);
                self.state = None;
                self.dirs += 1;
                self.restore();
            }
            Step::Rebuild => {
                self.state = None;
                TaskState::destroy(&self.dir()).expect("directory can be removed");
                self.restore();
            }
        }
    }

    fn apply(&mut self) {
        let changes = changes(self.state());
        assert!(changes.is_sorted_by(|a, b| a.0 < b.0), "changes are in the order of keys");
        assert_eq!(changes.is_empty(), !self.state().dirty());
        self.changelog.push(changes);
        self.behind.push(self.model.clone());
        let next = self.changelog.len() as i64;
        self.state().apply(format!("epoch {next}").as_bytes(), next).expect("disk has room");
        assert!(!self.state().dirty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]
    #[test]
    fn the_answers_do_not_depend_on_what_happened_to_the_task(
        steps in vec(step(), 1..120),
        cache_bytes in prop_oneof![Just(0), Just(1000), Just(1 << 20)],
    ) {
        let mut harness = Harness::new(cache_bytes);
        for step in steps {
            harness.run(step);
        }
        harness.compare();
        harness.run(Step::Crash);
        harness.run(Step::Rebuild);
    }
}

//! Brings a snapshot to the disk, where a task's state is missing or cannot be used.

use std::ops::Range;
use std::path::{Path, PathBuf};

use millrace_core::ids::{Offset, TaskId, Timeline};

use super::build::{BuildError, Builder};
use super::chain;
use super::restore::{Go, Local, Reading, Replay};
use crate::snapshot::{self, Folder, Manifest};
use crate::state::TaskState;
use crate::storage::{Storage, StorageError};

/// The files of a snapshot in a folder, and its manifest.
type Landed = (PathBuf, Manifest);

impl Builder {
    /// Brings the newest snapshot that can be used to the disk, beside the state; where others wait the reading is paused.
    /// Where the changelog alone can rebuild the state, a storage that cannot be reached is no reason to wait.
    pub(super) fn land(
        &self,
        range: &Range<Offset>,
        reading: Reading<'_>,
        replay: &mut Replay<'_>,
    ) -> Result<Option<Landed>, BuildError> {
        let begins = self.timeline == Timeline(1);
        let Some(storage) = self.storage.as_ref().filter(|_| !begins || range.end > Offset(0)) else {
            return Ok(None);
        };
        match self.land_from(storage, range, reading, replay) {
            Err(error @ BuildError::Storage { .. }) if begins && range.start == Offset(0) => {
                tracing::warn!(task = %replay.id, error = chain(&error), "its snapshots cannot be reached, and it is rebuilt from its changelog alone");
                Ok(None)
            }
            landed => landed,
        }
    }

    fn land_from(
        &self,
        storage: &Storage,
        range: &Range<Offset>,
        reading: Reading<'_>,
        replay: &mut Replay<'_>,
    ) -> Result<Option<Landed>, BuildError> {
        let id = replay.id;
        let failed = |source: StorageError| BuildError::Storage { task: id.clone(), source: Box::new(source) };
        let store = storage.connect().map_err(failed)?;
        let (folder, dir) = (Folder::new(self.timeline, id), self.dir(id));
        let topic_id = replay.log.topic(replay.changelog)?.and_then(|info| info.id).unwrap_or_default();
        let mut names = snapshot::manifests(&store, &folder).map_err(failed)?;
        // What has begun to come is gone on with, though its owner has made a newer one meanwhile.
        names.sort_by_key(|name| !snapshot::landing(&dir, name).exists());
        for name in names {
            let skip = |why: &str| tracing::warn!(task = %id, snapshot = %name, "a snapshot is passed over: {why}");
            let manifest = match snapshot::read_manifest(&store, &folder, &name, id).map_err(failed)? {
                Ok(manifest) => manifest,
                Err(why) => {
                    skip(&why);
                    continue;
                }
            };
            let why = match manifest.changelog == topic_id {
                true => self.unfit((&manifest.marker, manifest.next, i64::MIN), range, reading, replay)?,
                false => Some("it is of another changelog topic"),
            };
            if let Some(why) = why {
                skip(why);
                continue;
            }
            let go = || (reading.go)() == Go::On;
            let landing = snapshot::clear_landing(&dir, &name).map_err(self.disk(id, "make a folder beside", &dir))?;
            match snapshot::fetch(&store, &folder, &manifest, &landing, &go, reading.pace) {
                Ok(true) => return Ok(Some((landing, manifest))),
                Ok(false) => {
                    replay.paused = true;
                    return Ok(None);
                }
                Err(error @ (StorageError::Missing(_) | StorageError::Damaged(_))) => skip(&chain(&error)),
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(None)
    }

    /// Puts a snapshot in the place of a state.
    pub(super) fn settle(
        &self,
        local: Local,
        landing: &Path,
        manifest: Manifest,
        replay: &mut Replay<'_>,
    ) -> Result<Local, BuildError> {
        let id = replay.id;
        let state = |source| BuildError::State { task: id.clone(), source };
        // It must be closed before it goes.
        drop(local);
        let dir = self.dir(id);
        TaskState::destroy(&dir).map_err(state)?;
        std::fs::rename(landing, &dir).map_err(self.disk(id, "move a snapshot to", &dir))?;
        let layouts = self.layouts(id);
        let mut local =
            Local::of(id, TaskState::open(&dir, &self.budget, &layouts, &self.ttls(&layouts)).map_err(state)?)?;
        // That of a timeline's first snapshot was written anew.
        if local.marker.as_ref() != Some(&manifest.marker) || local.next != manifest.next {
            let marker = serde_json::to_vec(&manifest.marker).expect("a marker is plain data");
            local.state.set_marker(&marker, manifest.next.0).map_err(state)?;
            local = Local::of(id, local.state)?;
        }
        let bytes = manifest.bytes();
        tracing::info!(task = %id, epoch = %manifest.marker.epoch, bytes, "a snapshot is where its state was missing");
        replay.fetched_bytes += bytes;
        Ok(local)
    }

    fn disk(&self, id: &TaskId, doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> BuildError {
        let (task, path) = (id.clone(), path.to_owned());
        move |source| BuildError::Disk { task, doing, path, source }
    }
}

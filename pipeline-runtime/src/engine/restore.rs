//! Brings the state of a task level with its changelog.

use std::ops::Range;
use std::path::PathBuf;

use millrace_core::control::Created;
use millrace_core::epoch::{ChangelogFacts, ChangelogStart, changelog_start};
use millrace_core::ids::{Epoch, Offset, TaskId, Timeline};
use millrace_core::marker::{MARKER_FORMAT, Marker};
use millrace_core::plan::{StateKind, StateLayout};
use millrace_core::report::hex;

use super::build::{BuildError, Builder};
use super::task::{CHANGELOG_MARKER, CHANGELOG_STATE};
use crate::log::{Log, LogError, TOMBSTONES_MS};
use crate::snapshot::Manifest;
use crate::state::{StateError, TaskState};

/// What the control log says of a task's changelog.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    pub created: Option<&'a Created>,
    /// The marker of this epoch must be there. `None`: somebody else runs the task, and writes.
    pub needed: Option<Epoch>,
}

/// Whether a reading goes on behind a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Go {
    On,
    /// Others wait.
    Later,
    End,
}

/// How a changelog is read.
#[derive(Clone, Copy)]
pub struct Reading<'a> {
    /// `None`: there is no control log, and nobody else.
    pub known: Option<Known<'a>>,
    pub now_ms: i64,
    pub go: &'a dyn Fn() -> Go,
    /// Called again and again meanwhile: it may take its time, so that others have the core.
    pub pace: &'a dyn Fn(),
}

/// How far a changelog was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// To its end.
    Level,
    /// To its end, and a marker that must be there is not yet: nothing may be concluded.
    Short,
    /// To a marker before its end.
    Paused,
}

/// A task's state, as a reading left it.
pub struct Restored {
    pub state: TaskState,
    pub marker: Option<Marker>,
    /// The epoch of the last marker.
    pub last: Epoch,
    pub reach: Reach,
    /// Of the changelog, that were read into the state.
    pub records: u64,
    /// Of a snapshot that the state began with.
    pub fetched_bytes: u64,
}

impl Builder {
    /// Opens the state, or takes an open one, and brings it level with the changelog.
    pub fn restore(
        &self,
        id: &TaskId,
        open: Option<TaskState>,
        reading: Reading<'_>,
        log: &mut dyn Log,
    ) -> Result<Restored, BuildError> {
        let Reading { known, now_ms, go, pace } = reading;
        let changelog = self.names.changelog(&id.stage);
        let foreign = known.is_some_and(|known| known.needed.is_none());
        let range = match foreign {
            true => log.range(&changelog, id.partition)?,
            false => log.changelog_range(&changelog, id.partition)?,
        };
        let mut replay = Replay::of(self, id, &changelog, (go, pace), log);
        let mut local = Local::of(id, self.opened(id, open)?)?;
        if local.marker.is_none()
            && let Some((dir, manifest)) = self.land(&range, reading, &mut replay)?
        {
            local = self.settle(local, &dir, manifest, &mut replay)?;
        }
        if replay.paused {
            return Ok(replay.done(local, Reach::Paused, now_ms));
        }
        let (before, ahead) = (local.epoch(), local.next > range.end);
        if foreign && ahead {
            // Markers may be on their way: only an owner can tell.
            return Ok(replay.done(local, Reach::Short, now_ms));
        }
        // The local state must be a part of this log's history, and the log must still hold what follows it.
        let unknown = match &local.marker {
            Some(marker) => {
                self.unfit((marker, local.next, local.state.followed_ms()), &range, reading, &mut replay)?
            }
            None => None,
        };
        let landed = if unknown.is_some() { self.land(&range, reading, &mut replay)? } else { None };
        if unknown.is_none() && local.next >= range.start {
            replay.apply(local.next..range.end, &mut local)?;
            local = Local::of(id, local.state)?;
        }
        // The log alone is asked before anything is thrown away or built on a part of it.
        let found = if unknown.is_some() || local.next < range.start {
            replay.last_marker(range.clone())?
        } else {
            local.epoch()
        };
        if replay.paused {
            return Ok(replay.done(local, Reach::Paused, now_ms));
        }
        if let Some(known) = known {
            let snapshot = landed.as_ref().map(|(_, manifest)| manifest);
            let own = before.filter(|_| unknown.is_none() || ahead);
            if self.start(known, range.start, (found, own, snapshot), &mut replay)? == ChangelogStart::NotLevel {
                let last = found.unwrap_or_default();
                return Ok(Restored { last, ..replay.done(local, Reach::Short, now_ms) });
            }
        }
        if let Some(why) = unknown {
            tracing::warn!(task = %id, next = %local.next, start = %range.start, end = %range.end, "local state is discarded and rebuilt: {why}");
            local = match landed {
                Some((dir, manifest)) => self.settle(local, &dir, manifest, &mut replay)?,
                None => {
                    drop(local);
                    Local::of(id, self.fresh(id)?)?
                }
            };
        }
        if local.next < range.end {
            replay.apply(local.next.max(range.start)..range.end, &mut local)?;
            local = Local::of(id, local.state)?;
        }
        // On files the plan that wrote the state lies beside it, and was compared already.
        if known.is_some() && local.marker.as_ref().is_some_and(|marker| self.is_of_another_plan(marker)) {
            return Err(BuildError::OtherState { task: id.clone() });
        }
        let reach = if replay.paused { Reach::Paused } else { Reach::Level };
        Ok(replay.done(local, reach, now_ms))
    }

    /// Whether the task is new, by all that was found: the last marker in the log, the epoch of the local state, a snapshot.
    fn start(
        &self,
        Known { created, needed }: Known<'_>,
        log_start: Offset,
        (last_marker, own, snapshot): (Option<Epoch>, Option<Epoch>, Option<&Manifest>),
        replay: &mut Replay<'_>,
    ) -> Result<ChangelogStart, BuildError> {
        let id = replay.id;
        let info = replay.log.topic(replay.changelog)?;
        let (topic_id, partitions) = info.map(|i| (i.id.unwrap_or_default(), i.partitions)).unwrap_or_default();
        let facts = ChangelogFacts {
            topic: replay.changelog,
            topic_id: &topic_id,
            partitions,
            log_start,
            last_marker,
            local: snapshot.map(|snapshot| snapshot.marker.epoch).or(own),
            stateful: !self.layouts(id).is_empty(),
            restored: self.timeline > Timeline(1) && created.is_none_or(|made| id.partition.0 < made.begun),
            begun: snapshot.filter(|snapshot| snapshot.next == Offset(0)).map(|snapshot| snapshot.marker.epoch),
            needed: needed.unwrap_or_default(),
        };
        changelog_start(created, &facts).map_err(|source| BuildError::Changelog { task: id.clone(), source })
    }

    /// Why a state that stands behind this marker, at this changelog offset, and was followed until then cannot be brought
    /// level.
    pub(super) fn unfit(
        &self,
        (marker, next, followed_ms): (&Marker, Offset, i64),
        range: &Range<Offset>,
        Reading { known, now_ms, .. }: Reading<'_>,
        replay: &mut Replay<'_>,
    ) -> Result<Option<&'static str>, BuildError> {
        Ok(if next < range.start {
            Some("the changelog does not reach back to it any more")
        } else if next > range.end {
            Some("it is newer than the changelog")
        } else if known.is_some() && self.too_old(marker, followed_ms, now_ms) {
            Some("it is older than the deletes that its changelog is sure to hold")
        } else if !replay.holds(marker, next, range)? {
            Some("the changelog has another history")
        } else {
            None
        })
    }

    /// True when deletes may be missing from what the changelog, or the topic that is a table's changelog, still holds
    /// behind a state: they go after a time, and it was not brought forward for half of it, since somebody's clock may be
    /// wrong.
    fn too_old(&self, marker: &Marker, followed_ms: i64, now_ms: i64) -> bool {
        let topics = self.compacted.values().copied().min();
        // A changelog that is trimmed and not compacted holds every delete behind its start.
        let Some(deletes_ms) = topics.or((!self.plan.snapshots).then_some(TOMBSTONES_MS)) else { return false };
        let deletes_ms = deletes_ms.min(TOMBSTONES_MS);
        // To read the changelog brings no table forward whose rows are in another topic.
        let followed_ms = if keeps_tables(marker) { i64::MIN } else { followed_ms };
        now_ms - marker.written_ms.max(followed_ms) > deletes_ms / 2
    }

    fn is_of_another_plan(&self, marker: &Marker) -> bool {
        let fingerprint = marker.state_fingerprint;
        fingerprint != self.plan.state_fingerprint && !self.accepts.contains(&hex(fingerprint))
    }

    fn opened(&self, id: &TaskId, open: Option<TaskState>) -> Result<TaskState, BuildError> {
        if let Some(state) = open.filter(|state| !state.poisoned()) {
            return Ok(state);
        }
        let layouts = self.layouts(id);
        match TaskState::open(&self.dir(id), &self.budget, &layouts, &self.ttls(&layouts)) {
            Err(StateError::Corrupt(text)) => {
                tracing::warn!(task = %id, text, "local state is damaged and is rebuilt from the changelog");
                self.fresh(id)
            }
            opened => opened.map_err(|source| BuildError::State { task: id.clone(), source }),
        }
    }

    /// The marker that a state holds.
    pub fn marker(&self, id: &TaskId, state: &TaskState) -> Result<Option<Marker>, BuildError> {
        let found = state.marker().map_err(|source| BuildError::State { task: id.clone(), source })?;
        found.map(|(bytes, _)| read_marker(id, &bytes)).transpose()
    }

    pub(super) fn dir(&self, id: &TaskId) -> PathBuf {
        self.state_dir.join(&id.stage).join(id.partition.to_string())
    }

    fn fresh(&self, id: &TaskId) -> Result<TaskState, BuildError> {
        let (dir, layouts) = (self.dir(id), self.layouts(id));
        let made =
            TaskState::destroy(&dir).and_then(|()| TaskState::open(&dir, &self.budget, &layouts, &self.ttls(&layouts)));
        made.map_err(|source| BuildError::State { task: id.clone(), source })
    }

    /// A table's own TTL; nothing else expires yet.
    pub(super) fn ttls(&self, layouts: &[StateLayout]) -> Vec<Option<i64>> {
        let ttl = |layout: &StateLayout| {
            let source = layout.operator.strip_prefix("table ").and_then(|name| self.plan.source(name))?;
            source.table.as_ref()?.ttl_ms.filter(|_| layout.kind == StateKind::Latest)
        };
        layouts.iter().map(ttl).collect()
    }
}

/// The local state of a task and what it says of itself.
pub(super) struct Local {
    pub(super) state: TaskState,
    pub(super) marker: Option<Marker>,
    /// The changelog offset behind its marker.
    pub(super) next: Offset,
}

impl Local {
    pub(super) fn of(id: &TaskId, state: TaskState) -> Result<Self, BuildError> {
        let found = state.marker().map_err(|source| BuildError::State { task: id.clone(), source })?;
        let Some((bytes, next)) = found else { return Ok(Self { state, marker: None, next: Offset(0) }) };
        Ok(Self { state, marker: Some(read_marker(id, &bytes)?), next: Offset(next) })
    }

    fn epoch(&self) -> Option<Epoch> {
        self.marker.as_ref().map(|m| m.epoch)
    }
}

/// Reads one task's changelog.
pub(super) struct Replay<'a> {
    pub(super) id: &'a TaskId,
    pub(super) changelog: &'a str,
    /// The topics of some tables are their changelogs.
    has_tables: bool,
    go: &'a dyn Fn() -> Go,
    pace: &'a dyn Fn(),
    /// That were read into the state.
    records: u64,
    pub(super) fetched_bytes: u64,
    /// Of records with one key only the last one may be left.
    compacts: bool,
    /// A reading has ended before its range, or a snapshot is not all here yet.
    pub(super) paused: bool,
    pub(super) log: &'a mut dyn Log,
}

/// Ends a reading at a marker.
#[derive(Debug, thiserror::Error)]
#[error("paused")]
struct Paused;

enum Entry<'a> {
    State(&'a [u8], Option<&'a [u8]>),
    Marker(&'a [u8]),
}

impl<'a> Replay<'a> {
    fn of(
        builder: &Builder,
        id: &'a TaskId,
        changelog: &'a str,
        (go, pace): (&'a dyn Fn() -> Go, &'a dyn Fn()),
        log: &'a mut dyn Log,
    ) -> Self {
        let (has_tables, compacts) = (!builder.compacted.is_empty(), !builder.plan.snapshots);
        Self { id, changelog, has_tables, compacts, go, pace, records: 0, fetched_bytes: 0, paused: false, log }
    }

    fn done(&self, local: Local, reach: Reach, now_ms: i64) -> Restored {
        let (last, Local { mut state, marker, .. }) = (local.epoch().unwrap_or_default(), local);
        if reach != Reach::Short {
            state.followed(now_ms);
        }
        Restored { state, marker, last, reach, records: self.records, fetched_bytes: self.fetched_bytes }
    }

    fn read(
        &mut self,
        range: Range<Offset>,
        visit: &mut dyn FnMut(Offset, Entry<'_>) -> anyhow::Result<()>,
    ) -> Result<(), BuildError> {
        let changelog = self.changelog;
        let read = self.log.read_changelog(changelog, self.id.partition, range, &mut |record| {
            let entry = match (record.key.and_then(<[u8]>::split_first), record.value) {
                (Some((&CHANGELOG_STATE, key)), value) => Entry::State(key, value),
                (Some((&CHANGELOG_MARKER, _)), Some(marker)) => Entry::Marker(marker),
                _ => anyhow::bail!("record {} of {changelog} is neither state nor marker", record.offset),
            };
            visit(record.offset, entry)
        });
        match read {
            Err(error) if error.is::<Paused>() => self.paused = true,
            Err(error) => {
                return Err(match error.downcast::<LogError>() {
                    Ok(error) => BuildError::Log(error),
                    Err(error) => BuildError::Restore { task: self.id.clone(), text: format!("{error:#}") },
                });
            }
            Ok(()) => {}
        }
        Ok(())
    }

    /// The epoch of the last marker in a range, which is read to its end unless nobody wants to know any more.
    fn last_marker(&mut self, range: Range<Offset>) -> Result<Option<Epoch>, BuildError> {
        let (id, go, pace, mut last) = (self.id, self.go, self.pace, None);
        self.read(range, &mut |_, entry| {
            if let Entry::Marker(bytes) = entry {
                last = Some(read_marker(id, bytes)?.epoch);
                pace();
                if go() == Go::End {
                    return Err(Paused.into());
                }
            }
            Ok(())
        })?;
        Ok(last)
    }

    /// False when something else than a state's own marker lies where the state says that it does. One that was compacted
    /// or trimmed away says nothing.
    fn holds(&mut self, marker: &Marker, next: Offset, range: &Range<Offset>) -> Result<bool, BuildError> {
        let (id, at, mut same) = (self.id, Offset(next.0 - 1), self.compacts);
        if at < range.start {
            return Ok(true);
        }
        self.read(at..next, &mut |_, entry| {
            same = match entry {
                Entry::Marker(bytes) => with_tables_of(read_marker(id, bytes)?, Some(marker)) == *marker,
                Entry::State(..) => false,
            };
            Ok(())
        })?;
        Ok(same)
    }

    /// Brings a state forward, epoch by epoch. What follows the last marker was never committed.
    fn apply(&mut self, range: Range<Offset>, local: &mut Local) -> Result<(), BuildError> {
        let (id, has_tables, Local { state, marker: own, .. }) = (self.id, self.has_tables, local);
        let (go, pace) = (self.go, self.pace);
        let (mut records, end) = (0, range.end);
        self.read(range, &mut |offset, entry| {
            records += 1;
            let bytes = match entry {
                Entry::State(key, value) => return Ok(state.replay(key, value)?),
                Entry::Marker(bytes) => bytes,
            };
            if has_tables {
                let marker = with_tables_of(read_marker(id, bytes)?, own.as_ref());
                state.apply(&serde_json::to_vec(&marker)?, offset.0 + 1)?;
            } else {
                state.apply(bytes, offset.0 + 1)?;
            }
            pace();
            match go() {
                Go::Later | Go::End if offset.0 + 1 < end.0 => Err(Paused.into()),
                _ => Ok(()),
            }
        })?;
        self.records += records;
        state.discard();
        Ok(())
    }
}

/// A marker of the changelog, as the state `own` brings it level: rows of tables whose topics are their changelogs are not
/// in ours, so where those stand, and since when, only the state itself can say.
fn with_tables_of(mut marker: Marker, own: Option<&Marker>) -> Marker {
    for mark in marker.inputs.iter_mut().filter(|mark| mark.own_changelog) {
        mark.next = own.and_then(|own| own.input(&mark.topic)).map_or(Offset(0), |own| own.next);
    }
    if let Some(own) = own.filter(|_| keeps_tables(&marker)) {
        marker.written_ms = marker.written_ms.min(own.written_ms);
    }
    marker
}

/// True for a state with rows whose changelog is another topic than ours.
fn keeps_tables(marker: &Marker) -> bool {
    marker.inputs.iter().any(|mark| mark.own_changelog && mark.next > Offset(0))
}

fn read_marker(id: &TaskId, bytes: &[u8]) -> Result<Marker, BuildError> {
    let restore = |text: String| BuildError::Restore { task: id.clone(), text };
    let marker: Marker = serde_json::from_slice(bytes).map_err(|e| restore(format!("its marker: {e}")))?;
    if marker.format > MARKER_FORMAT {
        return Err(restore(format!("its marker has format {}: a newer release wrote it", marker.format)));
    }
    Ok(marker)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use millrace_core::event_time::{InputClock, SourceClock};
    use millrace_core::ids::Generation;
    use millrace_core::marker::InputMark;

    use super::*;

    /// Of a task with a table whose topic is its changelog, read up to `next`.
    fn marker(written_ms: i64, next: i64) -> Marker {
        let mark = InputMark {
            topic: "customers".to_owned(),
            topic_id: None,
            partitions: 1,
            next: Offset(next),
            own_changelog: true,
            counted: Offset(next),
            level_at: None,
            source_clock: SourceClock::default(),
            clock: InputClock::new(1),
        };
        Marker {
            format: MARKER_FORMAT,
            epoch: Epoch(1),
            generation: Generation(1),
            cluster: None,
            state_fingerprint: 0,
            written_ms,
            inputs: vec![mark],
            totals: BTreeMap::new(),
        }
    }

    #[test]
    fn a_state_that_is_brought_level_is_as_old_as_its_tables() {
        let level = with_tables_of(marker(900, 9), Some(&marker(100, 5)));
        assert_eq!((level.inputs[0].next, level.written_ms), (Offset(5), 100));
        let again = with_tables_of(marker(1_800, 12), Some(&level));
        assert_eq!((again.inputs[0].next, again.written_ms), (Offset(5), 100));
        // Without rows of the table nothing of it can be too old.
        let fresh = with_tables_of(marker(900, 9), None);
        assert_eq!((fresh.inputs[0].next, fresh.written_ms), (Offset(0), 900));
        let on = with_tables_of(marker(1_800, 12), Some(&fresh));
        assert_eq!((on.inputs[0].next, on.written_ms), (Offset(0), 1_800));
    }
}

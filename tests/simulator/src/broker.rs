//! A model of Kafka's data plane, as far as transactions go.
//!
//! - A transactional id has a producer epoch; initialising bumps it, which fences whoever had the one before.
//! - EndTxn decides at once and is answered; the commit markers reach the partitions later, one by one, in any order. Until
//!   they all have, the id can neither be initialised nor begin a transaction (CONCURRENT_TRANSACTIONS).
//! - A `read_committed` reader stops at the first record whose transaction has no marker in that partition.
//! - A request names its transaction, so one that is repeated or comes late never ends another transaction (KIP-890).

use std::collections::BTreeMap;

use millrace_core::control::LaneId;

use crate::model::{BETWEEN, Row, SOURCES, TASKS};
use crate::oracle::{Audit, Violation};
use crate::rng::Rng;
use crate::volume::Local;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    Source,
    Between,
    Out,
    Dead,
    Changelog,
}

/// A topic and a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tp(pub Topic, pub usize);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marker {
    pub task: usize,
    pub epoch: u64,
    pub generation: u64,
    /// Where the epoch began to read its input, and where the next one will.
    pub from: usize,
    pub next: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// With the task and the epoch that wrote it; a source row has none.
    Row(Row, Option<(usize, u64)>),
    State(u8, u64),
    Marker(Marker),
    /// A commit or abort marker takes an offset too.
    Control,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Undecided(u64),
    Visible,
    Aborted,
}

#[derive(Default)]
struct Log {
    entries: Vec<(Fate, Body)>,
    start: usize,
    /// Transactions without a marker here, with the offset of their first record.
    open: Vec<(u64, usize)>,
}

impl Log {
    fn stable_end(&self) -> usize {
        self.open.iter().map(|(_, first)| *first).min().unwrap_or(self.entries.len())
    }

    fn decide(&mut self, txn: u64, commit: bool) {
        let Some(found) = self.open.iter().position(|(open, _)| *open == txn) else { return };
        let (_, first) = self.open.remove(found);
        for (fate, _) in &mut self.entries[first..] {
            if *fate == Fate::Undecided(txn) {
                *fate = if commit { Fate::Visible } else { Fate::Aborted };
            }
        }
        self.entries.push((Fate::Aborted, Body::Control));
    }
}

#[derive(Default)]
struct Open {
    txn: u64,
    records: Vec<(Tp, Body)>,
    offsets: Vec<(usize, usize)>,
}

/// What is to be written when EndTxn was decided.
#[derive(Clone, Copy)]
enum Pending {
    Mark(Tp, u64, bool),
    Offset(usize, usize),
}

#[derive(Default)]
struct Coordinator {
    epoch: u32,
    /// The last epoch that was fenced because its transaction had been open for too long.
    timed_out: Option<u32>,
    open: Option<Open>,
    pending: Vec<Pending>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Fenced,
    /// Fenced, and as the producer's own clock says because its transaction had been open for too long. Whether others
    /// have initialised the id since, it cannot tell.
    TimedOut,
    /// CONCURRENT_TRANSACTIONS: try again.
    Busy,
}

pub struct Broker {
    logs: BTreeMap<Tp, Log>,
    ids: BTreeMap<LaneId, Coordinator>,
    offsets: BTreeMap<usize, usize>,
    next_txn: u64,
    /// Its coordinator is slower than the others to write markers.
    pub slow: Option<LaneId>,
    pub changelog_id: u32,
    pub audit: Audit,
}

impl Broker {
    pub fn new(sources: &[Vec<Row>]) -> Self {
        let mut logs = BTreeMap::new();
        let partitions = [
            (Topic::Source, SOURCES),
            (Topic::Between, BETWEEN),
            (Topic::Out, BETWEEN),
            (Topic::Dead, 1),
            (Topic::Changelog, TASKS),
        ];
        for (topic, count) in partitions {
            logs.extend((0..count).map(|partition| (Tp(topic, partition), Log::default())));
        }
        for (partition, rows) in sources.iter().enumerate() {
            let entries = rows.iter().map(|row| (Fate::Visible, Body::Row(*row, None))).collect();
            logs.insert(Tp(Topic::Source, partition), Log { entries, ..Log::default() });
        }
        let (ids, offsets) = (BTreeMap::new(), BTreeMap::new());
        Self { logs, ids, offsets, next_txn: 0, slow: None, changelog_id: 1, audit: Audit::default() }
    }

    /// InitProducerId: aborts what is open, waits for the markers, and hands out the next epoch.
    pub fn initialise(&mut self, id: LaneId) -> Result<u32, Refusal> {
        self.abort_open(id);
        let coordinator = self.ids.entry(id).or_default();
        if !coordinator.pending.is_empty() {
            return Err(Refusal::Busy);
        }
        coordinator.epoch += 1;
        Ok(coordinator.epoch)
    }

    /// The producer with an open transaction, and how many rows that has.
    pub fn writer(&self, id: LaneId) -> Option<(u32, usize)> {
        let coordinator = self.ids.get(&id)?;
        let records = &coordinator.open.as_ref()?.records;
        Some((coordinator.epoch, records.iter().filter(|(_, body)| matches!(body, Body::Row(..))).count()))
    }

    /// The transaction was open for too long: the coordinator aborts it, and fences its producer.
    pub fn time_out(&mut self, id: LaneId) {
        self.ids.entry(id).and_modify(|coordinator| coordinator.timed_out = Some(coordinator.epoch));
        self.abort_open(id);
    }

    /// Whoever had the transaction is fenced from now on.
    fn abort_open(&mut self, id: LaneId) {
        if let Some(coordinator) = self.ids.get_mut(&id)
            && let Some(open) = coordinator.open.take()
        {
            coordinator.epoch += 1;
            coordinator.end(&open, false);
        }
    }

    fn coordinator(&mut self, id: LaneId, epoch: u32) -> Result<&mut Coordinator, Refusal> {
        match self.ids.get_mut(&id) {
            Some(coordinator) if coordinator.epoch == epoch => Ok(coordinator),
            Some(coordinator) if coordinator.timed_out == Some(epoch) => Err(Refusal::TimedOut),
            _ => Err(Refusal::Fenced),
        }
    }

    /// Opens a transaction if none is open; its number.
    pub fn begin(&mut self, id: LaneId, epoch: u32) -> Result<u64, Refusal> {
        let next = self.next_txn + 1;
        let coordinator = self.coordinator(id, epoch)?;
        if let Some(open) = &coordinator.open {
            return Ok(open.txn);
        }
        if !coordinator.pending.is_empty() {
            return Err(Refusal::Busy);
        }
        coordinator.open = Some(Open { txn: next, ..Open::default() });
        self.next_txn = next;
        Ok(next)
    }

    /// The offset of the record.
    pub fn produce(&mut self, id: LaneId, epoch: u32, tp: Tp, body: Body) -> Result<usize, Refusal> {
        let txn = self.begin(id, epoch)?;
        let log = self.logs.entry(tp).or_default();
        if log.open.iter().all(|(open, _)| *open != txn) {
            log.open.push((txn, log.entries.len()));
        }
        log.entries.push((Fate::Undecided(txn), body));
        if let Some(open) = &mut self.coordinator(id, epoch)?.open {
            open.records.push((tp, body));
        }
        Ok(self.end_of(tp) - 1)
    }

    pub fn send_offset(&mut self, id: LaneId, epoch: u32, task: usize, next: usize) -> Result<(), Refusal> {
        self.begin(id, epoch)?;
        if let Some(open) = &mut self.coordinator(id, epoch)?.open {
            open.offsets.push((task, next));
        }
        Ok(())
    }

    /// EndTxn. A transaction that is not open any more was ended by a fence.
    pub fn end(&mut self, id: LaneId, epoch: u32, txn: u64, commit: bool) -> Result<(), Refusal> {
        let coordinator = self.coordinator(id, epoch)?;
        let open = coordinator.open.take_if(|open| open.txn == txn).ok_or(Refusal::Fenced)?;
        coordinator.end(&open, commit);
        if commit {
            self.audit.committed(id, &open.records);
        }
        Ok(())
    }

    /// Writes one marker that is due; false when none is.
    pub fn deliver_marker(&mut self, rng: &mut Rng) -> bool {
        let slow = self.slow;
        let mut due = |id: &LaneId| slow != Some(*id) || rng.per_mille(15);
        let waiting = self.ids.iter_mut().filter(|(id, c)| !c.pending.is_empty() && due(id));
        let mut waiting: Vec<&mut Coordinator> = waiting.map(|(_, coordinator)| coordinator).collect();
        if waiting.is_empty() {
            return false;
        }
        let pick = rng.below(waiting.len());
        let coordinator = &mut waiting[pick];
        let one = rng.below(coordinator.pending.len());
        match coordinator.pending.swap_remove(one) {
            Pending::Mark(tp, txn, commit) => self.logs.entry(tp).or_default().decide(txn, commit),
            Pending::Offset(task, next) => drop(self.offsets.insert(task, next)),
        }
        true
    }

    /// Whatever is open is aborted, and all markers are written.
    pub fn settle(&mut self, rng: &mut Rng) {
        let ids: Vec<LaneId> = self.ids.keys().copied().collect();
        ids.into_iter().for_each(|id| self.time_out(id));
        self.slow = None;
        while self.deliver_marker(rng) {}
    }

    pub fn quiet(&self) -> bool {
        self.ids.values().all(|c| c.open.is_none() && c.pending.is_empty())
    }

    /// The last stable offset.
    pub fn stable_end(&self, tp: Tp) -> usize {
        self.logs.get(&tp).map_or(0, Log::stable_end)
    }

    /// Where the state says that its marker lies, it does. What is trimmed tells nothing.
    pub fn tells(&self, task: usize, local: &Local) -> bool {
        let Some(log) = self.logs.get(&Tp(Topic::Changelog, task)) else { return false };
        let Some(at) = local.read.checked_sub(1).filter(|at| *at >= log.start) else { return true };
        let found = log.entries.get(at);
        found.is_some_and(|(fate, body)| *fate != Fate::Aborted && *body == Body::Marker(local.marker))
    }

    /// What lies before an offset is deleted.
    pub fn trim(&mut self, tp: Tp, to: usize) {
        if let Some(log) = self.logs.get_mut(&tp) {
            log.start = log.start.max(to.min(log.entries.len()));
        }
    }

    /// A broker becomes leader that has not got the end of the changelog; nothing is open there. The epochs from some one
    /// above `least` on are gone.
    pub fn lose_tail(&mut self, task: usize, least: u64, rng: &mut Rng) {
        let Some(log) = self.logs.get_mut(&Tp(Topic::Changelog, task)) else { return };
        let visible = log.entries.iter().enumerate().skip(log.start).filter(|(_, (fate, _))| *fate == Fate::Visible);
        let markers = visible.filter_map(|(at, (_, body))| match body {
            Body::Marker(marker) if marker.epoch >= least => Some((at, marker.epoch)),
            _ => None,
        });
        let markers: Vec<(usize, u64)> = markers.collect();
        if let Some((at, epoch)) = markers.get(rng.below(markers.len().max(1))) {
            log.entries.truncate(at + 1);
            self.audit.lose(task, *epoch);
        }
    }

    /// The high watermark.
    pub fn end_of(&self, tp: Tp) -> usize {
        self.logs.get(&tp).map_or(0, |log| log.entries.len())
    }

    /// The first visible entry at or behind `from`, with its offset, as a `read_committed` reader sees it.
    pub fn fetch(&self, tp: Tp, from: usize) -> Option<(usize, Body)> {
        let log = self.logs.get(&tp)?;
        let range = from.max(log.start)..log.stable_end();
        range.map(|at| (at, log.entries[at])).find(|(_, (fate, _))| *fate == Fate::Visible).map(|(at, (_, b))| (at, b))
    }

    /// As a `read_uncommitted` reader sees it, but for what is aborted by now.
    pub fn fetch_uncommitted(&self, tp: Tp, from: usize) -> Option<(usize, Body)> {
        let entries = self.logs.get(&tp)?.entries.iter().enumerate().skip(from);
        entries
            .map(|(at, (fate, body))| (at, *fate, *body))
            .find(|(_, f, _)| *f != Fate::Aborted)
            .map(|(at, _, b)| (at, b))
    }

    /// The last visible epoch marker of a task.
    pub fn last_marker(&self, task: usize) -> Option<Marker> {
        let log = self.logs.get(&Tp(Topic::Changelog, task))?;
        let visible = log.entries[..log.stable_end()].iter().skip(log.start).rev();
        visible.filter(|(fate, _)| *fate == Fate::Visible).find_map(|(_, body)| match body {
            Body::Marker(marker) => Some(*marker),
            _ => None,
        })
    }

    /// Some transaction has no marker there yet.
    pub fn is_open(&self, tp: Tp) -> bool {
        self.logs.get(&tp).is_some_and(|log| !log.open.is_empty())
    }

    /// Everything visible, from the start of the log.
    pub fn visible(&self, tp: Tp) -> Vec<Body> {
        self.visible_from(tp, 0)
    }

    pub fn visible_from(&self, tp: Tp, mut next: usize) -> Vec<Body> {
        let mut found = Vec::new();
        while let Some((at, body)) = self.fetch(tp, next) {
            found.push(body);
            next = at + 1;
        }
        found
    }

    pub fn log_start(&self, tp: Tp) -> usize {
        self.logs.get(&tp).map_or(0, |log| log.start)
    }

    /// What the group committed for a task; tools and expiry change it.
    pub fn group_offset(&self, task: usize) -> usize {
        self.offsets.get(&task).copied().unwrap_or_default()
    }

    pub fn reset_offset(&mut self, task: usize, to: usize) {
        self.offsets.insert(task, to);
    }

    /// Somebody deletes the changelog topic, and it is made again.
    pub fn recreate_changelog(&mut self) {
        self.changelog_id += 1;
        (0..TASKS).for_each(|task| drop(self.logs.insert(Tp(Topic::Changelog, task), Log::default())));
    }

    /// A retention that nobody wanted: all of a changelog partition is gone.
    pub fn truncate_changelog(&mut self, task: usize) {
        if let Some(log) = self.logs.get_mut(&Tp(Topic::Changelog, task)) {
            log.start = log.entries.len();
        }
    }

    pub fn violation(&self) -> Option<&Violation> {
        self.audit.violation.as_ref()
    }
}

impl Coordinator {
    fn end(&mut self, open: &Open, commit: bool) {
        let mut tps: Vec<Tp> = open.records.iter().map(|(tp, _)| *tp).collect();
        tps.sort_unstable();
        tps.dedup();
        self.pending.extend(tps.into_iter().map(|tp| Pending::Mark(tp, open.txn, commit)));
        let offsets = open.offsets.iter().filter(|_| commit);
        self.pending.extend(offsets.map(|(task, next)| Pending::Offset(*task, *next)));
    }
}

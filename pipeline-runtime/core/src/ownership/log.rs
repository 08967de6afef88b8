//! The folded view of the control log, and the questions that are asked of it.
//!
//! Positions only grow. A claim keeps the position at which it was first read; compaction keeps positions, so two readers
//! never see two claims in a different order.

use std::collections::{BTreeMap, BTreeSet};

use super::{Rule, Rules};
use crate::control::{Change, ClaimId, Created, Incarnation, Key, LaneId, Owner, Pinned, PlanStamp, Record};
use crate::ids::{Epoch, Generation, Offset, TaskId, Timeline};

#[derive(Clone, Debug)]
struct Claim {
    at: Offset,
    id: ClaimId,
    plan: PlanStamp,
}

impl Claim {
    fn rank(&self) -> (Generation, Offset) {
        (self.id.generation, self.at)
    }
}

#[derive(Clone, Debug)]
struct Release {
    at: Offset,
    id: ClaimId,
    last_epoch: Epoch,
}

#[derive(Clone, Debug, Default)]
struct TaskLog {
    /// In the order of the log.
    claims: Vec<Claim>,
    releases: Vec<Release>,
}

/// Why a lane must not run a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// Somebody's claim is newer. To be reported: the operator must continue above its generation.
    NewerClaim(ClaimId),
    /// Somebody claimed the task with a newer plan or state format than ours.
    NewerPlan(PlanStamp),
    /// Our claim was removed from the log. Only a dead or released one can be.
    ClaimGone,
    /// The task's changelog cannot be continued; the engine said why.
    Changelog,
}

/// What stands between a claim that has been read and running the task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    Stop(StopReason),
    /// These lanes may still write for the task.
    Fence(BTreeSet<LaneId>),
    /// Nobody else can; read the changelog at least up to the marker of this epoch.
    ReadTail {
        needed: Epoch,
    },
}

/// Whose pipeline this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    Ours,
    /// Append this record, read up to it and ask again; then go on above the highest generation.
    Append(Record),
    /// `IdentityConflict`: the prefix belongs to somebody else.
    Conflict(Owner),
}

/// The control log as far as it was read.
#[derive(Clone, Debug, Default)]
pub struct ControlLog {
    rules: Rules,
    next: Offset,
    owners: BTreeMap<u64, Owner>,
    created: BTreeMap<String, Created>,
    tasks: BTreeMap<TaskId, TaskLog>,
    fenced: BTreeMap<LaneId, BTreeSet<Offset>>,
    /// The first record of each incarnation. Kept when the record goes: it is what makes one older than another.
    lives: BTreeMap<LaneId, BTreeMap<Incarnation, Offset>>,
    highest: Generation,
    /// In the order of the log.
    pinned: Vec<(Incarnation, Pinned)>,
}

impl ControlLog {
    pub fn new(rules: Rules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// Folds the entry at `position` in; positions grow, gaps are what compaction removed.
    pub fn apply(&mut self, position: Offset, change: Change) {
        match change {
            Change::Put(record) => self.put(position, record),
            Change::Forget(key) => self.forget(&key),
        }
        self.advance_to(Offset(position.0 + 1));
    }

    /// The reader's position is `next`, though the entries before it may be gone.
    pub fn advance_to(&mut self, next: Offset) {
        self.next = self.next.max(next);
    }

    /// The next position to read: everything below it is in this view.
    pub fn next(&self) -> Offset {
        self.next
    }

    fn put(&mut self, at: Offset, record: Record) {
        match record {
            // The first of a number counts, so that two pipelines that write at once don't both see themselves.
            Record::Owner { number, owner } => {
                self.owners.entry(number).or_insert(owner);
            }
            // The same topic may grow.
            Record::Created { topic, created } => {
                let known = self.created.entry(topic).or_insert_with(|| created.clone());
                if known.topic_id == created.topic_id {
                    known.partitions = known.partitions.max(created.partitions);
                    known.begun = known.begun.min(created.begun);
                }
            }
            Record::Claim { id, plan } => {
                self.highest = self.highest.max(id.generation);
                self.lives.entry(id.lane).or_default().entry(id.incarnation).or_insert(at);
                let claims = &mut self.tasks.entry(id.task.clone()).or_default().claims;
                if claims.iter().all(|claim| claim.id != id) {
                    claims.push(Claim { at, id, plan });
                }
            }
            Record::Release { id, last_epoch } => {
                self.tasks.entry(id.task.clone()).or_default().releases.push(Release { at, id, last_epoch });
            }
            Record::Fenced { lane, read_to } => {
                self.fenced.entry(lane).or_default().insert(read_to);
            }
            Record::Resumed { lane, incarnation } => {
                self.lives.entry(lane).or_default().entry(incarnation).or_insert(at);
            }
            Record::Pinned { by, pinned } => self.pinned.push((by, pinned)),
        }
    }

    fn forget(&mut self, key: &Key) {
        match key {
            Key::Claim(id) => {
                if let Some(log) = self.tasks.get_mut(&id.task) {
                    log.claims.retain(|claim| claim.id != *id);
                }
            }
            Key::Release(id) => {
                if let Some(log) = self.tasks.get_mut(&id.task) {
                    log.releases.retain(|release| release.id != *id);
                }
            }
            Key::Fenced(lane, read_to) => {
                if let Some(positions) = self.fenced.get_mut(lane) {
                    positions.remove(read_to);
                }
            }
            Key::Owner(number) => {
                self.owners.remove(number);
            }
            Key::Created(topic) => {
                self.created.remove(topic);
            }
            Key::Resumed(..) => {}
            Key::Pinned(by) => self.pinned.retain(|(other, _)| other != by),
        }
    }

    /// The highest generation that was ever claimed. A new assignment is made above it.
    pub fn highest_generation(&self) -> Generation {
        self.highest
    }

    /// The newest plan under which anything was ever claimed.
    pub fn newest_plan(&self) -> Option<PlanStamp> {
        let claims = self.tasks.values().flat_map(|log| &log.claims);
        claims.map(|claim| claim.plan).max_by_key(|plan| plan.plan)
    }

    /// The timeline of the claims under it.
    pub fn newest_timeline(&self) -> Option<Timeline> {
        let claims = self.tasks.values().flat_map(|log| &log.claims);
        claims.max_by_key(|claim| claim.plan.plan).map(|claim| claim.id.lane.timeline)
    }

    /// What the log knows about a topic that the pipeline made (I6).
    pub fn created(&self, topic: &str) -> Option<&Created> {
        self.created.get(topic)
    }

    /// What the backfill of this name computes, once it has begun.
    pub fn pinned(&self) -> Option<&Pinned> {
        self.pinned.first().map(|(_, pinned)| pinned)
    }

    /// Whether the prefix is ours. `adopt`: the user said that it shall be, whoever had it before.
    pub fn identity(&self, me: &Owner, adopt: bool) -> Identity {
        let append = |number| Identity::Append(Record::Owner { number, owner: me.clone() });
        let Some((number, current)) = self.owners.last_key_value() else { return append(1) };
        let same_name = (&current.cluster, &current.namespace, &current.name) == (&me.cluster, &me.namespace, &me.name);
        match (same_name, current.uid == me.uid) {
            (true, true) => Identity::Ours,
            (true, false) => append(number + 1),
            (false, _) if adopt => append(number + 1),
            (false, _) => Identity::Conflict(current.clone()),
        }
    }

    /// The owner of a task: the claim with the highest generation; among equals the last one in the log.
    pub fn owner(&self, task: &TaskId) -> Option<&ClaimId> {
        self.claims(task).iter().max_by_key(|claim| claim.rank()).map(|claim| &claim.id)
    }

    fn claims(&self, task: &TaskId) -> &[Claim] {
        self.tasks.get(task).map_or(&[], |log| &log.claims)
    }

    fn find(&self, id: &ClaimId) -> Option<&Claim> {
        self.claims(&id.task).iter().find(|claim| claim.id == *id)
    }

    /// The claim that is newer than `id`, if there is one.
    pub fn superseded(&self, id: &ClaimId) -> Option<&ClaimId> {
        let at = self.find(id).map_or(Offset(-1), |mine| mine.at);
        let newer = self.claims(&id.task).iter().filter(|claim| self.newer(claim, id, at));
        newer.max_by_key(|claim| claim.rank()).map(|claim| &claim.id)
    }

    /// Two lives of one lane in one generation don't take tasks from each other: the older process exits whole, and a
    /// claim of it that was still on its way must not stop the newer one.
    fn newer(&self, claim: &Claim, than: &ClaimId, at: Offset) -> bool {
        claim.id.generation > than.generation && self.rules.keep(Rule::NewerGenerationStops)
            || claim.id.generation == than.generation && claim.id.lane != than.lane && claim.at > at
    }

    /// Claims of the lane's former lives that still count.
    pub fn former_lives(&self, lane: LaneId, incarnation: Incarnation) -> Vec<ClaimId> {
        let claims = self.tasks.values().flat_map(|log| &log.claims);
        let former = claims.filter(|c| c.id.lane == lane && c.id.incarnation != incarnation);
        former.filter(|c| !self.released(c) && !self.dead(c, None)).map(|c| c.id.clone()).collect()
    }

    /// True when another incarnation of `lane` has its first record behind ours.
    pub fn newer_incarnation(&self, lane: LaneId, mine: Incarnation, first: Offset) -> bool {
        self.lives.get(&lane).is_some_and(|lives| lives.iter().any(|(life, at)| *life != mine && *at > first))
    }

    fn released(&self, claim: &Claim) -> bool {
        let releases = self.tasks.get(&claim.id.task).map_or(&[][..], |log| &log.releases);
        if !self.rules.keep(Rule::ReleaseCancelsOneClaim) {
            return releases.iter().any(|release| release.id.lane == claim.id.lane && release.at > claim.at);
        }
        releases.iter().any(|release| release.id == claim.id)
    }

    /// A claim is dead when its lane was fenced by somebody who had already read a newer claim of the task: the lane
    /// will read that claim before it does anything else. `fenced_by_me`: fences whose record is not read back yet.
    fn dead(&self, claim: &Claim, fenced_by_me: Option<Offset>) -> bool {
        let claims = self.claims(&claim.id.task);
        if !self.rules.keep(Rule::FencedSpeaksOfTheFenced) && fenced_by_me.is_none() {
            let confirmed = |k: &Claim| self.fenced.get(&k.id.lane).is_some_and(|at| at.contains(&k.at));
            return claims.iter().any(|k| k.at > claim.at && confirmed(k));
        }
        let from_log = self.fenced.get(&claim.id.lane).and_then(|positions| positions.last().copied());
        let Some(read_to) = from_log.max(fenced_by_me) else { return false };
        claims.iter().any(|k| claim.at < k.at && k.at <= read_to && self.newer(k, &claim.id, claim.at))
    }

    /// Lanes other than `me` that may still write for the task.
    pub fn holders(&self, task: &TaskId, me: LaneId) -> BTreeSet<LaneId> {
        self.living(task, me, Offset(i64::MAX), &BTreeMap::new())
    }

    fn living(&self, task: &TaskId, me: LaneId, before: Offset, mine: &BTreeMap<LaneId, Offset>) -> BTreeSet<LaneId> {
        let alive = |c: &&Claim| !self.released(c) && !self.dead(c, mine.get(&c.id.lane).copied());
        // Our own lane's former lives were fenced when this one began.
        let others = self.claims(task).iter().filter(|c| c.at < before && c.id.lane != me);
        others.filter(alive).map(|c| c.id.lane).collect()
    }

    /// What must come before the task of the claim `id` may run. The log must have been read up to and with the claim.
    pub fn may_start(&self, id: &ClaimId, fenced_by_me: &BTreeMap<LaneId, Offset>) -> Start {
        if let Some(newer) = self.superseded(id) {
            return Start::Stop(StopReason::NewerClaim(newer.clone()));
        }
        let Some(mine) = self.find(id) else { return Start::Stop(StopReason::ClaimGone) };
        let newer = |p: &PlanStamp| p.plan > mine.plan.plan || p.state_format > mine.plan.state_format;
        if let Some(claim) = self.claims(&id.task).iter().find(|claim| newer(&claim.plan)) {
            return Start::Stop(StopReason::NewerPlan(claim.plan));
        }
        let fence = self.living(&id.task, id.lane, mine.at, fenced_by_me);
        if fence.is_empty() { Start::ReadTail { needed: self.needed_epoch(id) } } else { Start::Fence(fence) }
    }

    /// The last epoch that any release of the task names, within the claim's timeline (another one has other epochs).
    pub fn needed_epoch(&self, id: &ClaimId) -> Epoch {
        let releases = self.tasks.get(&id.task).map_or(&[][..], |log| &log.releases);
        let ours = releases.iter().filter(|release| release.id.lane.timeline == id.lane.timeline);
        ours.map(|release| release.last_epoch).max().unwrap_or_default()
    }

    /// Who of those that want `dead` fenced does it: the first claimer in the log that is still alive. The others use
    /// its record, so that a lane which still runs other tasks is disturbed once and not once per task it lost.
    pub fn fencer_of(&self, dead: LaneId) -> Option<LaneId> {
        let wanting = |log: &TaskLog| {
            let victim = log.claims.iter().find(|c| c.id.lane == dead && !self.released(c) && !self.dead(c, None))?.at;
            let takers = log.claims.iter().filter(|c| c.at > victim && c.id.lane != dead && !self.released(c));
            takers.map(|c| (c.at, c.id.lane)).min()
        };
        self.tasks.values().filter_map(wanting).min().map(|(_, lane)| lane)
    }

    /// The keys that the owner `me` of a task, which runs it behind [`Self::needed_epoch`], may remove from the log, in the
    /// order in which it must.
    ///
    /// Only dead and released claims go, and never the newest: it is what stops whoever wakes up late. The order of the
    /// log keeps a dead claim before the claim that killed it, and a release behind the claim that it cancels, so that a
    /// reader in between fences once too often and never once too little.
    pub fn tombstones(&self, me: &ClaimId) -> Vec<Key> {
        let spare = self.rules.keep(Rule::TombstonesSpareTheLiving);
        let newest = if spare { self.superseded(me).is_none().then_some(me) } else { self.owner(&me.task) };
        let Some(newest) = newest else { return Vec::new() };
        let removable = |c: &&Claim| c.id != *newest && (!spare || self.released(c) || self.dead(c, None));
        let (gone, rest): (Vec<&Claim>, Vec<&Claim>) = self.claims(&me.task).iter().partition(removable);
        let mut keys: Vec<Key> = gone.iter().map(|claim| Key::Claim(claim.id.clone())).collect();
        let releases = self.tasks.get(&me.task).map_or(&[][..], |log| &log.releases);
        let orphans = releases.iter().filter(|release| rest.iter().all(|claim| claim.id != release.id));
        keys.extend(orphans.map(|release| Key::Release(release.id.clone())));
        keys
    }

    /// `fenced` records that no claim depends on any more: a later fence of the lane covers them, or no claim of the
    /// lane lies before the position.
    pub fn spent_fences(&self) -> Vec<Key> {
        let first_claim = |lane: LaneId| {
            let claims = self.tasks.values().flat_map(|log| &log.claims).filter(move |c| c.id.lane == lane);
            claims.map(|claim| claim.at).min()
        };
        let spent = |(lane, positions): (&LaneId, &BTreeSet<Offset>)| {
            let (lane, first, last) = (*lane, first_claim(*lane), positions.last().copied());
            let unused = positions.iter().copied().filter(move |q| Some(*q) != last || first.is_none_or(|at| at > *q));
            unused.map(move |q| Key::Fenced(lane, q)).collect::<Vec<_>>()
        };
        self.fenced.iter().flat_map(spent).collect()
    }
}

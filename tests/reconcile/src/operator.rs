//! A shell around the core: caches that are behind, each kind of object by as much as it likes, and decisions that are
//! carried out one write at a time.

use std::collections::{BTreeMap, VecDeque};

use millrace_crds::pipeline::PipelineStatus;
use millrace_operator_core::decide::{decide, decide_alone, decide_on};
use millrace_operator_core::decision::{Action, Event};
use millrace_operator_core::facts::Facts;
use millrace_operator_core::names::{ABOUT_PIPELINE_LABEL, PIPELINE_LABEL};
use millrace_operator_core::observed::{Admission, Compilation, Observed};
use millrace_operator_core::questions::lost_plan;
use millrace_operator_core::settings::{Image, Rules, RulesNamespace, Settings};
use serde_json::{Map, Value};

use crate::api::{Api, kind, label, text};
use crate::mutant::Mutant;
use crate::oracle::data;
use crate::wish::{NAME, SECRET, compile};

/// The operator's own namespace. Objects are told apart by kind and name, whatever their namespace.
pub const SYSTEM: &str = "system";
/// After a write that has failed.
const AGAIN_MS: i64 = 1_000;

pub const KINDS: [&str; 12] = [
    "Pipeline",
    "Savepoint",
    "Backfill",
    "ConfigMap",
    "Secret",
    "StatefulSet",
    "Pod",
    "Job",
    "Service",
    "ServiceAccount",
    "PodDisruptionBudget",
    "NetworkPolicy",
];

pub struct Operator {
    pub settings: Settings,
    /// How much of each watch was read.
    read: BTreeMap<&'static str, usize>,
    /// What it knows by now.
    pub seen: Observed,
    pub queue: VecDeque<Action>,
    /// With the version of the Pipeline that it is about.
    pub status: Option<(PipelineStatus, String)>,
    pub events: Vec<Event>,
    pub dirty: bool,
    pub wake_ms: i64,
    /// When each worker was asked last.
    pub asked: BTreeMap<u32, i64>,
}

/// Of an operator that starts. It may be told anything about rules, so at each other version of the cluster they are to be
/// somewhere else.
fn settings(api: &Api) -> Settings {
    let namespace = if api.version().is_multiple_of(2) { RulesNamespace::Pipeline } else { RulesNamespace::Operator };
    Settings {
        image: Image { repository: "millrace".to_owned(), pull_policy: "Never".to_owned(), pull_secrets: Vec::new() },
        version: "1".to_owned(),
        resources: Map::new(),
        allow: Default::default(),
        deletion_deadline: millrace_crds::duration::Duration::from_secs(300),
        compile: Default::default(),
        backfill: Default::default(),
        rules: Rules { namespace, ..Rules::default() },
        cluster_id: "cluster".to_owned(),
        namespace: SYSTEM.to_owned(),
    }
}

impl Operator {
    /// One that has just started has listed everything.
    pub fn start(api: &Api) -> Self {
        let mut operator = Self {
            settings: settings(api),
            read: BTreeMap::new(),
            seen: Observed::default(),
            queue: VecDeque::new(),
            status: None,
            events: Vec::new(),
            dirty: true,
            wake_ms: 0,
            asked: BTreeMap::new(),
        };
        operator.seen.admission = Admission::Accepted;
        operator.seen.secrets.insert(SECRET.to_owned(), None);
        operator.read = KINDS.iter().map(|kind| (*kind, api.log.get(*kind).map_or(0, Vec::len))).collect();
        api.all().for_each(|object| operator.learn(kind(object), text(object, "name"), Some(object)));
        operator
    }

    /// Reads on in a watch; whether there was anything.
    pub fn read(&mut self, api: &Api, kind: &'static str, changes: usize) -> bool {
        let log = api.log.get(kind).map_or(&[][..], Vec::as_slice);
        let from = self.read.get(kind).copied().unwrap_or_default();
        let to = from.saturating_add(changes).min(log.len());
        for (name, object) in &log[from..to] {
            self.learn(kind, name, object.as_deref());
        }
        self.read.insert(kind, to);
        self.dirty |= to > from;
        to > from
    }

    fn learn(&mut self, of_kind: &str, name: &str, object: Option<&Value>) {
        match (of_kind, name) {
            ("Pipeline", _) => return self.seen.pipeline = object.cloned().unwrap_or_default(),
            ("Secret", SECRET) => {
                let version = object.map(|secret| text(secret, "resourceVersion").to_owned());
                return drop(self.seen.secrets.insert(SECRET.to_owned(), version));
            }
            _ => {}
        }
        let Observed { children, rules, savepoints, backfills, .. } = &mut self.seen;
        let (list, watched) = match of_kind {
            "Savepoint" => (savepoints, None),
            "Backfill" => (backfills, None),
            // No object of a Pipeline has a dot in its name.
            "ConfigMap" if name.contains('.') => (rules, Some(ABOUT_PIPELINE_LABEL)),
            _ => (children, Some(PIPELINE_LABEL)),
        };
        let at = list.iter().position(|there| text(there, "name") == name && kind(there) == of_kind);
        match (at, object.filter(|object| watched.is_none_or(|of| label(object, of) == NAME))) {
            (Some(at), Some(object)) => list[at] = object.clone(),
            (Some(at), None) => drop(list.remove(at)),
            (None, Some(object)) => list.push(object.clone()),
            (None, None) => {}
        }
    }

    pub fn behind(&self, api: &Api, kind: &'static str) -> usize {
        api.log.get(kind).map_or(0, Vec::len) - self.read.get(kind).copied().unwrap_or_default()
    }

    /// Decides, unless there is no Pipeline.
    pub fn decide(&mut self, api: &Api, compiles: bool, mutant: Option<Mutant>) -> bool {
        self.dirty = false;
        self.wake_ms = i64::MAX;
        if self.seen.pipeline.is_null() {
            let forgets = mutant == Some(Mutant::RulesGoByThemselves);
            let rules = if forgets { &[][..] } else { &self.seen.rules };
            let decision = decide_alone(&self.seen.savepoints, &self.seen.backfills, rules, api.now());
            self.queue = decision.actions.into();
            self.events = decision.events;
            return true;
        }
        self.seen.namespace_ends = api.namespace_ends;
        let facts = Facts::of(&self.seen);
        let (lost, read) = (lost_plan(&facts), facts.into_read());
        self.seen.recovered = match lost.filter(|_| compiles).map(|(_, pipeline)| compile(&pipeline["spec"], None)) {
            Some(Compilation::Done(compiled)) => compiled.plan,
            _ => None,
        };
        self.seen.compilation = match compiles && self.seen.recovered.is_none() {
            true => compile(&self.seen.pipeline["spec"], self.previous().as_ref()),
            false => Compilation::Pending,
        };
        let decision = match mutant {
            Some(mutant) => {
                let bent = mutant.see(self.seen.clone());
                let mut decision = decide(&bent, &self.settings, api.now());
                mutant.decide(&bent, &mut decision);
                decision
            }
            None => decide_on(&Facts::over(&self.seen, read), &self.settings, api.now()),
        };
        let version = text(&self.seen.pipeline, "resourceVersion").to_owned();
        self.queue = decision.actions.into();
        self.status = decision.status.map(|status| (status, version));
        self.events = decision.events;
        self.wake_ms = decision.again_ms.map_or(i64::MAX, |again_ms| api.now_ms + again_ms as i64);
        true
    }

    /// What it had in mind is off. It looks again when it hears of something, or after a while.
    pub fn give_up(&mut self, now_ms: i64) {
        self.queue.clear();
        self.status = None;
        self.wake_ms = now_ms + AGAIN_MS;
    }

    /// The applied plan, as it is stored.
    fn previous(&self) -> Option<Value> {
        let read = |name: &str, key: &str| -> Option<Value> {
            let mut maps = self.seen.children.iter().filter(|child| kind(child) == "ConfigMap");
            Some(data(maps.find(|map| text(map, "name") == name)?, key))
        };
        let applied = read(&format!("{NAME}-applied"), "applied.json")?;
        read(&format!("{NAME}-plan-{}", applied["fingerprint"].as_str()?), "plan.json")
    }
}

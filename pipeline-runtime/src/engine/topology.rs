//! From a plan to how many tasks each stage has, and which topics that needs. All faults at once.

use std::collections::BTreeMap;
use std::ops::Range;

use millrace_core::ids::{Partition, TaskId, Timeline};
use millrace_core::plan::{Exchange, InputFrom, OutputTo, Plan, Source, Stage};

use crate::log::{Log, LogError};

/// Names of our own topics.
#[derive(Clone, Debug)]
pub struct Names {
    prefix: String,
    timeline: Timeline,
}

impl Names {
    pub fn new(prefix: &str, timeline: Timeline) -> Self {
        Self { prefix: prefix.to_owned(), timeline }
    }

    pub fn changelog(&self, stage: &str) -> String {
        format!("{}-t{}-{stage}-changelog", self.prefix, self.timeline)
    }

    /// Who runs a task, in all timelines.
    pub fn control(&self) -> String {
        format!("{}-control", self.prefix)
    }

    /// The consumer group that shows a stage's positions to people and tools.
    pub fn group(&self, stage: &str) -> String {
        format!("{}-t{}-{stage}", self.prefix, self.timeline)
    }

    pub fn repartition(&self, exchange: &str) -> String {
        format!("{}-t{}-{exchange}-repartition", self.prefix, self.timeline)
    }

    /// The topic of an exchange: our own, or that of the pipeline which is repaired.
    pub fn exchange(&self, exchange: &Exchange) -> String {
        exchange.topic.clone().unwrap_or_else(|| self.repartition(&exchange.name))
    }
}

/// Partition counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Of the users' topics: (id, partitions).
    pub topics: BTreeMap<String, (Option<String>, i32)>,
    /// By source, partitions that came later and that no task reads: keys that used to be elsewhere are in them.
    pub unread: BTreeMap<String, Range<i32>>,
    /// Tasks of each stage.
    pub tasks: BTreeMap<String, i32>,
    /// Partitions of each exchange.
    pub exchanges: BTreeMap<String, i32>,
}

impl Topology {
    /// Looks the topics up and counts. Says everything that does not fit. `made` says with how many partitions one of our
    /// own topics was made: a stage that keeps something goes on with as many tasks as it began with.
    pub fn resolve(plan: &Plan, names: &Names, made: Made<'_>, log: &mut dyn Log) -> Result<Self, LogError> {
        let mut topics = BTreeMap::new();
        let mut faults = Vec::new();
        for source in &plan.sources {
            match log.topic(&source.topic)? {
                Some(info) => {
                    topics.insert(source.topic.clone(), (info.id, info.partitions));
                }
                None => {
                    let how = log.creating_command(&source.topic);
                    faults.push(missing(&format!("source '{}'", source.name), &source.topic, &how));
                }
            }
        }
        for (exchange, topic) in plan.repaired() {
            match log.topic(topic)? {
                Some(info) => {
                    topics.insert(topic.to_owned(), (info.id, info.partitions));
                }
                None => faults.push(not_run(&exchange.name, topic)),
            }
        }
        for (what, topic) in outputs(plan) {
            match log.open_output(topic)? {
                Some(info) => {
                    topics.insert(topic.to_owned(), (info.id, info.partitions));
                }
                None => faults.push(missing(&what, topic, &log.creating_command(topic))),
            }
        }
        let counted = if faults.is_empty() { Self::count(plan, names, made, topics) } else { Err(faults) };
        counted.map_err(|faults| LogError::User(faults.join("\n")))
    }

    /// From the users' topics, by name: (id, partitions). Says everything that does not fit.
    pub fn count(
        plan: &Plan,
        names: &Names,
        made: Made<'_>,
        topics: BTreeMap<String, (Option<String>, i32)>,
    ) -> Result<Self, Vec<String>> {
        let mut topology = Self { topics, ..Self::default() };
        let mut faults = Vec::new();
        topology.count_tasks(plan, names, made, &mut faults);
        if faults.is_empty() { Ok(topology) } else { Err(faults) }
    }

    /// Every task of the plan.
    pub fn all_tasks(&self) -> impl Iterator<Item = TaskId> + '_ {
        let of_stage = |(stage, count): (&String, &i32)| {
            let stage = stage.clone();
            (0..*count).map(move |p| TaskId { stage: stage.clone(), partition: Partition(p) })
        };
        self.tasks.iter().flat_map(of_stage)
    }

    /// Partitions that all tasks read together.
    pub fn inputs(&self, plan: &Plan) -> usize {
        let tasks = |stage: &Stage| self.tasks.get(&stage.name).map_or(0, |count| *count as usize);
        plan.stages.iter().map(|stage| tasks(stage) * stage.inputs.len()).sum()
    }

    fn partitions(&self, plan: &Plan, source: &str) -> i32 {
        plan.source(source).and_then(|s| self.topics.get(&s.topic)).map_or(1, |(_, partitions)| *partitions)
    }

    fn count_tasks(&mut self, plan: &Plan, names: &Names, made: Made<'_>, faults: &mut Vec<String>) {
        for exchange in plan.exchanges.iter().filter(|e| plan.writer(&e.name).is_some()) {
            let partitions = match &exchange.partitions_like {
                Some(topic) => self.topics.get(topic).map_or(1, |(_, partitions)| *partitions),
                None => self.widest(plan, exchange),
            };
            let partitions = made(&names.repartition(&exchange.name)).unwrap_or(partitions);
            self.exchanges.insert(exchange.name.clone(), partitions);
        }
        for stage in &plan.stages {
            let begun = made(&names.changelog(&stage.name)).filter(|_| !grows(plan, stage));
            let mut counts: Vec<(String, i32)> = Vec::new();
            for input in &stage.inputs {
                match &input.from {
                    InputFrom::Source(name) => {
                        let found = self.partitions(plan, name);
                        let read = begun.map_or(found, |begun| begun.min(found));
                        if read < found {
                            self.unread.insert(name.clone(), read..found);
                        }
                        counts.push((format!("source '{name}'"), read));
                    }
                    InputFrom::Exchange(name) => {
                        let written = self.exchanges.get(name);
                        counts.extend(written.map(|partitions| (format!("exchange '{name}'"), *partitions)));
                    }
                }
            }
            let most = counts.iter().map(|(_, count)| *count).max().unwrap_or(1);
            if counts.iter().any(|(_, count)| *count != most) {
                let list: Vec<String> = counts.iter().map(|(name, count)| format!("{name} has {count}")).collect();
                faults.push(format!(
                    "stage '{}': its inputs must have equally many partitions: {}; leave out the stream's `key` to have it repartitioned",
                    stage.name,
                    list.join(", ")
                ));
            }
            // What a backfill writes comes to the tasks that there are.
            for input in &stage.inputs {
                if let InputFrom::Exchange(name) = &input.from {
                    self.exchanges.entry(name.clone()).or_insert(most);
                }
            }
            self.tasks.insert(stage.name.clone(), most);
        }
    }

    /// How many of a source's partitions are read.
    pub fn read(&self, source: &Source) -> i32 {
        let found = self.topics[&source.topic].1;
        self.unread.get(&source.name).map_or(found, |unread| unread.start)
    }

    /// The largest partition count among the sources whose rows reach the reader of `exchange`.
    fn widest(&self, plan: &Plan, exchange: &Exchange) -> i32 {
        let siblings = plan.exchanges.iter().filter(|e| e.stage == exchange.stage);
        siblings.map(|e| self.partitions(plan, &e.source)).max().unwrap_or(1)
    }

    /// How many tasks write an exchange.
    pub fn upstreams(&self, plan: &Plan, exchange: &str) -> usize {
        plan.writer(exchange).map_or(1, |stage| self.tasks[&stage.name] as usize)
    }
}

/// With how many partitions one of our own topics was made, if it was.
pub type Made<'a> = &'a dyn Fn(&str) -> Option<i32>;

/// True for a stage that takes up new partitions of its source at once: it keeps nothing, and nobody counts its tasks.
pub fn grows(plan: &Plan, stage: &Stage) -> bool {
    let keeps = plan.state.iter().any(|layout| layout.stage == stage.name);
    let counted = stage.outputs.iter().any(|o| matches!(o.to, OutputTo::Exchange(_)));
    !keeps && !counted && stage.inputs.iter().all(|i| matches!(i.from, InputFrom::Source(_)))
}

/// What writes to topics of the user's, and those.
pub fn outputs(plan: &Plan) -> impl Iterator<Item = (String, &str)> {
    let sinks = plan.sinks.iter().map(|s| (format!("sink '{}'", s.name), s.topic.as_str()));
    sinks.chain(plan.dead_letter.iter().map(|topic| ("deadLetter".to_owned(), topic.as_str())))
}

/// The topic by which repairs come to a pipeline is not there.
pub fn not_run(exchange: &str, topic: &str) -> String {
    format!(
        "topic '{topic}', by which {exchange} come to the pipeline, does not exist: run the pipeline with this release first"
    )
}

/// A topic of the user's that is not there; `how` it is created.
pub fn missing(what: &str, topic: &str, how: &str) -> String {
    format!(
        "{what}: topic '{topic}' does not exist, and topics of the user are never created: {how}, or correct its name"
    )
}

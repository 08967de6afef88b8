//! The plan of a backfill, made from the plan of the pipeline that it repairs: the same steps up to the guards of Upsert
//! sinks, and from there into the topics by which repairs come to those guards.
//!
//! So a guard decides about old and new rows of a key in one place, whoever computed them.

use std::collections::{BTreeMap, BTreeSet};

use millrace_core::plan::{Guard, InputFrom, Late, OperatorKind, Output, OutputTo, Plan, Port, Stage, StartFrom};
use millrace_crds::mistake::Mistake;

use crate::compile;
use crate::mistakes::Mistakes;
use crate::names::did_you_mean;
use crate::state;

/// What is computed again.
pub struct Repair<'a> {
    /// What the backfill's own topics, ids and files begin with.
    pub prefix: String,
    /// The sinks that are repaired; none: all.
    pub sinks: &'a [String],
    /// The topic of an exchange of the pipeline.
    pub topic: &'a dyn Fn(&str) -> String,
}

/// From where to where of each partition, by stream: (partition, the first record, behind the last one).
pub type Ranges = BTreeMap<String, Vec<(i32, i64, i64)>>;

/// The plan of a backfill, which reads nothing of its streams yet (see [`bound`]); or why there is none.
pub fn repair(live: &Plan, repair: &Repair<'_>) -> Result<Plan, Vec<Mistake>> {
    let chosen = chosen(live, repair.sinks)?;
    let mut plan = Plan { prefix: repair.prefix.clone(), sinks: Vec::new(), ..live.clone() };
    for stage in &mut plan.stages {
        stage.outputs.retain(|output| matches!(output.to, OutputTo::Exchange(_)));
        let Stage { operators, outputs, .. } = stage;
        outputs.extend(operators.iter().filter_map(|operator| {
            let to = OutputTo::Exchange(chosen.get(&operator.name)?.clone());
            Some(Output { from: operator.input, to })
        }));
    }
    let repaired: BTreeSet<String> = chosen.into_values().collect();
    prune(&mut plan, &repaired);
    shorten(&mut plan, &repaired);
    for exchange in plan.exchanges.iter_mut().filter(|e| repaired.contains(&e.name)) {
        let topic = (repair.topic)(&exchange.name);
        (exchange.partitions_like, exchange.topic) = (Some(topic.clone()), Some(topic));
    }
    for source in plan.sources.iter_mut().filter(|source| source.start_from == StartFrom::Latest) {
        // Of a table that began at its end nothing would be there.
        source.start_from = StartFrom::Earliest;
    }
    for operator in plan.stages.iter_mut().flat_map(|stage| &mut stage.operators) {
        if let OperatorKind::TemporalJoin(join) = &mut operator.kind {
            // Everything in it is late for the pipeline that goes on.
            join.late = Late::JoinNow;
        }
    }
    plan.state = state::layouts(&plan);
    plan.state_fingerprint = state::fingerprint(&plan.state);
    let mut mistakes = Mistakes::default();
    for message in compile::long_topics(&plan) {
        mistakes.add("metadata.name", &plan.prefix, message, "give the backfill a shorter name");
    }
    if mistakes.is_empty() { Ok(plan) } else { Err(mistakes.into_vec()) }
}

/// Streams of a backfill's plan: what a range is about.
pub fn streams(plan: &Plan) -> impl Iterator<Item = &millrace_core::plan::Source> {
    plan.sources.iter().filter(|source| source.table.is_none())
}

/// Gives a backfill's plan its ranges, which name every partition of its streams.
pub fn bound(plan: &mut Plan, ranges: &Ranges) {
    for source in plan.sources.iter_mut().filter(|source| source.table.is_none()) {
        let ranges = ranges.get(&source.name).map(Vec::as_slice).unwrap_or_default();
        source.start_from = StartFrom::Offsets(ranges.iter().map(|(partition, from, _)| (*partition, *from)).collect());
        source.until = ranges.iter().map(|(partition, _, to)| (*partition, *to)).collect();
    }
}

/// The guards of the sinks that are repaired, each with the exchange by which repairs come to it.
fn chosen(live: &Plan, sinks: &[String]) -> Result<BTreeMap<String, String>, Vec<Mistake>> {
    let mut mistakes = Mistakes::default();
    let all: Vec<String> = live.sinks.iter().map(|sink| sink.name.clone()).collect();
    let named = if sinks.is_empty() { &all } else { sinks };
    let mut chosen = BTreeMap::new();
    for (i, name) in named.iter().enumerate() {
        let path = if sinks.is_empty() { "spec.sinks".to_owned() } else { format!("spec.sinks[{i}]") };
        let operator = crate::upsert::operator(name);
        let guard = live.stages.iter().find_map(|stage| Some((stage, guard(stage, &operator)?)));
        match guard.map(|(stage, guard)| exchange(stage, guard)) {
            Some(Some(exchange)) => drop(chosen.insert(operator, exchange.to_owned())),
            Some(None) => {
                let hint = "apply the Pipeline again with this release, and begin the backfill then";
                mistakes.add(path, name, "was compiled by an older release, which takes no repairs", hint);
            }
            None if all.contains(name) => {
                let hint = "a sink with write: {mode: Upsert} can be repaired; name those alone, or run another Pipeline with \
                            sinks of its own and startFrom";
                mistakes.add(path, name, "appends, so that rows of a backfill would be there twice", hint);
            }
            None => {
                let hint = did_you_mean(name, all.iter().map(String::as_str));
                mistakes.add(path, name, "is not a sink of the Pipeline", hint);
            }
        }
    }
    if mistakes.is_empty() { Ok(chosen) } else { Err(mistakes.into_vec()) }
}

fn guard<'a>(stage: &'a Stage, name: &str) -> Option<&'a Guard> {
    match &stage.operators.iter().find(|operator| operator.name == name)?.kind {
        OperatorKind::Guard(guard) => Some(guard),
        OperatorKind::Project(_) | OperatorKind::TableJoin(_) | OperatorKind::TemporalJoin(_) => None,
    }
}

/// The exchange by which repairs come to a guard.
fn exchange<'a>(stage: &'a Stage, guard: &Guard) -> Option<&'a str> {
    match &stage.inputs[guard.repairs?].from {
        InputFrom::Exchange(name) => Some(name),
        InputFrom::Source(_) => None,
    }
}

/// Leaves out what leads to none of the exchanges.
fn prune(plan: &mut Plan, targets: &BTreeSet<String>) {
    let mut wanted = targets.clone();
    let mut stages = Vec::new();
    let mut before = 0;
    // Exchanges that a stage reads which leads there are wanted too, whatever the order of the stages.
    while wanted.len() > before {
        before = wanted.len();
        stages.clone_from(&plan.stages);
        for stage in &mut stages {
            stage.outputs.retain(|output| matches!(&output.to, OutputTo::Exchange(name) if wanted.contains(name)));
            prune_stage(stage);
            wanted.extend(stage.inputs.iter().filter_map(|input| match &input.from {
                InputFrom::Exchange(name) => Some(name.clone()),
                InputFrom::Source(_) => None,
            }));
        }
    }
    plan.stages = stages;
    plan.stages.retain(|stage| !stage.outputs.is_empty());
    plan.exchanges.retain(|exchange| wanted.contains(&exchange.name));
    let read =
        |name: &String| plan.stages.iter().any(|s| s.inputs.iter().any(|i| i.from == InputFrom::Source(name.clone())));
    plan.sources.retain(|source| read(&source.name));
}

/// Leaves out the operators and inputs that lead to no output.
fn prune_stage(stage: &mut Stage) {
    let (mut operators, mut inputs) = (BTreeSet::new(), BTreeSet::new());
    let mut open: Vec<Port> = stage.outputs.iter().map(|output| output.from).collect();
    while let Some(port) = open.pop() {
        match port {
            Port::Input(index) => drop(inputs.insert(index)),
            Port::Operator(index) => {
                operators.insert(index);
                open.push(stage.operators[index].input);
                inputs.extend(table(&stage.operators[index].kind));
            }
        }
    }
    let place = |kept: &BTreeSet<usize>, index: usize| kept.iter().take_while(|other| **other < index).count();
    let port = |port: Port| match port {
        Port::Input(index) => Port::Input(place(&inputs, index)),
        Port::Operator(index) => Port::Operator(place(&operators, index)),
    };
    stage.outputs.iter_mut().for_each(|output| output.from = port(output.from));
    for operator in &mut stage.operators {
        operator.input = port(operator.input);
        match &mut operator.kind {
            OperatorKind::TableJoin(join) => join.join.table = place(&inputs, join.join.table),
            OperatorKind::TemporalJoin(join) => join.join.table = place(&inputs, join.join.table),
            OperatorKind::Project(_) | OperatorKind::Guard(_) => {}
        }
    }
    keep(&mut stage.operators, &operators);
    keep(&mut stage.inputs, &inputs);
}

fn table(kind: &OperatorKind) -> Option<usize> {
    match kind {
        OperatorKind::TableJoin(join) => Some(join.join.table),
        OperatorKind::TemporalJoin(join) => Some(join.join.table),
        OperatorKind::Project(_) | OperatorKind::Guard(_) => None,
    }
}

fn keep<T>(list: &mut Vec<T>, kept: &BTreeSet<usize>) {
    let mut index = 0;
    list.retain(|_| {
        index += 1;
        kept.contains(&(index - 1))
    });
}

/// A stage that only hands on what comes by an exchange is left out: both are spread by the same key.
fn shorten(plan: &mut Plan, targets: &BTreeSet<String>) {
    let hands_on = |stage: &Stage| match (stage.inputs.as_slice(), stage.operators.as_slice(), stage.outputs.as_slice())
    {
        ([input], [], [output]) => match (&input.from, &output.to) {
            (InputFrom::Exchange(from), OutputTo::Exchange(to)) if targets.contains(to) => {
                Some((from.clone(), to.clone()))
            }
            _ => None,
        },
        _ => None,
    };
    while let Some((place, (from, to))) = plan.stages.iter().enumerate().find_map(|(i, s)| Some((i, hands_on(s)?))) {
        plan.stages.remove(place);
        plan.exchanges.retain(|exchange| exchange.name != from);
        let before = plan.stages.iter_mut().flat_map(|stage| &mut stage.outputs);
        before.filter(|o| o.to == OutputTo::Exchange(from.clone())).for_each(|o| o.to = OutputTo::Exchange(to.clone()));
    }
}

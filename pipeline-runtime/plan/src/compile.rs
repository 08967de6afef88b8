//! From a pipeline to its plan, or to the list of all its mistakes.

use millrace_core::plan::{Format, PLAN_FORMAT, Plan, Sink, Source, StartFrom};
use millrace_core::schema::Column;
use millrace_crds::duration::DurationOrNever;
use millrace_crds::mistake::Mistake;
use millrace_crds::pipeline as api;
use millrace_crds::pipeline::Pipeline;

use crate::catalog::{Catalog, checked_key};
use crate::expr::Named;
use crate::logical::Logical;
use crate::mistakes::Mistakes;
use crate::{normal, parse, sql, stages, state, steps, upsert};

/// Kafka's limit for the name of a topic.
const TOPIC_LENGTH_MAX: usize = 249;
/// `-t<timeline>-` with the largest timeline, and the longest ending, `-repartition`.
const TOPIC_DECORATION: usize = "-t4294967295-".len() + "-repartition".len();

/// A plan, and what its author may want to know.
#[derive(Clone, Debug, PartialEq)]
pub struct Compiled {
    pub plan: Plan,
    pub warnings: Vec<String>,
}

/// Compiles a pipeline whose shape is right ([`millrace_crds::check::parse`]). The same pipeline always gives the same
/// plan.
pub fn compile(pipeline: &Pipeline) -> Result<Compiled, Vec<Mistake>> {
    parse::with_stack(|| compile_here(pipeline))
}

fn compile_here(pipeline: &Pipeline) -> Result<Compiled, Vec<Mistake>> {
    let spec = &pipeline.spec;
    let mut mistakes = Mistakes::default();
    let catalog = Catalog::new(spec, &mut mistakes);
    let mut logical = match &spec.sql {
        Some(text) => sql::lower(&catalog, text, &mut mistakes),
        None => steps::lower(&catalog, &mut mistakes),
    };
    check_joins(&logical, &mut mistakes);
    let sinks: Vec<Sink> = logical
        .outputs
        .iter()
        .map(|(sink, flow)| {
            upsert::check(&catalog, *sink, flow, &mut mistakes);
            checked_sink(&spec.sinks[*sink], *sink, &flow.columns, &mut mistakes)
        })
        .collect();
    if !mistakes.is_empty() {
        return Err(mistakes.into_vec());
    }

    normal::push_filters(&mut logical);
    normal::order_filters(&mut logical);
    let needed = normal::needed(&logical);
    let columns = stages::source_columns(&catalog, &logical, &needed);
    let cut = stages::cut(&catalog, &logical, &needed, &columns);
    let (used, unused) = split_sources(&catalog, &logical);
    let source = |i: usize| Source { columns: columns[i].clone(), ..catalog.sources[i].source.clone() };
    let mut plan = Plan {
        format: PLAN_FORMAT,
        prefix: pipeline.prefix(),
        snapshots: pipeline.spec.state.storage.is_some(),
        sources: used.into_iter().map(source).collect(),
        stages: cut.stages,
        exchanges: cut.exchanges,
        sinks,
        dead_letter: spec.dead_letter_topic().map(str::to_owned),
        state_fingerprint: 0,
        state: Vec::new(),
    };
    plan.state = state::layouts(&plan);
    plan.state_fingerprint = state::fingerprint(&plan.state);
    check_topics(&plan)?;
    Ok(Compiled { warnings: warnings(spec, &plan, &unused), plan })
}

/// State belongs to names, so no two joins may have the same one. The API sees to it for steps; in SQL names are made
/// from aliases or given by hints.
fn check_joins(logical: &Logical, mistakes: &mut Mistakes) {
    for (i, join) in logical.joins.iter().enumerate() {
        if logical.joins[..i].iter().any(|other| other.name == join.name) {
            let hint = "name one of them: JOIN /*+ name('x') */ table";
            mistakes.add("spec.sql", &join.name, "two joins have this identity", hint);
        }
    }
}

fn checked_sink(sink: &api::Sink, index: usize, columns: &[Named], mistakes: &mut Mistakes) -> Sink {
    let path = format!("spec.sinks[{index}]");
    let columns: Vec<Column> = columns
        .iter()
        .map(|c| Column { name: c.name.clone(), data_type: c.data_type.clone(), nullable: c.nullable })
        .collect();
    if sink.format.kind != api::FormatType::Json {
        let hint = "write format {type: Json}";
        mistakes.add(format!("{path}.format.type"), "DebeziumJson", "is not available for sinks in this version", hint);
    }
    let key = sink.key.as_ref().map(|key| checked_key(key, &columns, &format!("{path}.key"), mistakes));
    Sink { name: sink.name.clone(), topic: sink.kafka.topic.clone(), key, format: Format::Json, columns }
}

/// Indexes of the sources that the plan reads, and of the others.
fn split_sources(catalog: &Catalog, logical: &Logical) -> (Vec<usize>, Vec<usize>) {
    let streams = logical.flows().map(|flow| flow.source);
    let read: Vec<usize> = streams.chain(logical.joins.iter().map(|j| j.table)).collect();
    (0..catalog.sources.len()).partition(|i| read.contains(i))
}

/// Topics of our own whose names may be too long.
pub(crate) fn long_topics(plan: &Plan) -> impl Iterator<Item = String> {
    let exchanges = plan.exchanges.iter().filter(|exchange| exchange.topic.is_none());
    let names = plan.stages.iter().map(|s| &s.name).chain(exchanges.map(|e| &e.name));
    names.filter_map(|name| {
        let length = plan.prefix.len() + name.len() + TOPIC_DECORATION;
        let long = length > TOPIC_LENGTH_MAX;
        long.then(|| format!("the topic of '{name}' may have {length} characters, above Kafka's {TOPIC_LENGTH_MAX}"))
    })
}

fn check_topics(plan: &Plan) -> Result<(), Vec<Mistake>> {
    let mut mistakes = Mistakes::default();
    for message in long_topics(plan) {
        mistakes.add("spec.kafka.internal.prefix", &plan.prefix, message, "shorten the prefix or the name");
    }
    if mistakes.is_empty() { Ok(()) } else { Err(mistakes.into_vec()) }
}

fn warnings(spec: &api::PipelineSpec, plan: &Plan, unused: &[usize]) -> Vec<String> {
    let mut warnings = Vec::new();
    for i in unused {
        warnings.push(format!("spec.sources[{i}]: nothing uses source '{}'", spec.sources[*i].name));
    }
    if spec.state.ttl != DurationOrNever::Never {
        // No operator of this version keeps rows that may expire: those that wait for a watermark must all come out.
        warnings.push("spec.state.ttl: no step keeps state that it applies to; tables have table.ttl".to_owned());
    }
    for source in plan.sources.iter().filter(|s| s.table.is_some() && s.start_from == StartFrom::Latest) {
        warnings.push(format!("table '{}' starts at Latest: rows that were written before are missing", source.name));
    }
    for source in plan.sources.iter().filter(|s| s.table.is_none() && s.event_time.is_some()) {
        let idle_never = source.event_time.as_ref().is_some_and(|e| e.idle_timeout_ms.is_none());
        if idle_never {
            warnings
                .push(format!("source '{}': a partition without records holds back all rows that wait", source.name));
        }
    }
    warnings
}

//! The shape check on whole documents: the table of bad specs, and what a good one becomes.

use std::collections::{BTreeMap, BTreeSet};

use millrace_crds::check::{
    Mistake, parse, parse_backfill, parse_backfill_edit, parse_edit, parse_savepoint, parse_savepoint_edit,
};
use millrace_crds::duration::{Duration, DurationOrNever};
use millrace_crds::pipeline::{
    Emit, FuturePolicy, JoinDefaults, JoinType, KeyFormatType, Late, Missing, OnError, Partitioner, Pipeline,
    StartPolicy, StepKind,
};
use millrace_crds::rules::{BACKFILL_RULES, RULES, Rule, SAVEPOINT_RULES};
use millrace_crds::schema;
use millrace_crds::unserved::{BACKFILL, UNSERVED, ignored_locally};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Table {
    base: Value,
    cases: Vec<Case>,
    edits: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    #[serde(default)]
    set: BTreeMap<String, Value>,
    #[serde(default)]
    remove: Vec<String>,
    expect: Vec<Expected>,
}

#[derive(Deserialize)]
struct Expected {
    path: String,
    message: String,
}

fn table() -> Table {
    serde_saphyr::from_str(include_str!("bad_specs.yaml")).expect("the table of bad specs")
}

/// How a kind is read and edited, what its rules are, and its table.
type OfKind = (fn(&Value) -> Result<(), Vec<Mistake>>, fn(&Value, &Value) -> Vec<Mistake>, &'static [Rule], Table);

fn tables() -> [OfKind; 3] {
    let savepoints = serde_saphyr::from_str(include_str!("bad_savepoints.yaml")).expect("the table of bad savepoints");
    let backfills = serde_saphyr::from_str(include_str!("bad_backfills.yaml")).expect("the table of bad backfills");
    [
        (|document| parse_backfill(document).map(drop), parse_backfill_edit, BACKFILL_RULES, backfills),
        (|document| parse(document).map(drop), parse_edit, RULES, table()),
        (|document| parse_savepoint(document).map(drop), parse_savepoint_edit, SAVEPOINT_RULES, savepoints),
    ]
}

impl Case {
    fn apply(&self, base: &Value) -> Value {
        let mut document = base.clone();
        for (pointer, value) in &self.set {
            let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
            match document.pointer_mut(parent).unwrap_or_else(|| panic!("{}: no {parent}", self.name)) {
                Value::Object(object) => drop(object.insert(name.to_owned(), value.clone())),
                Value::Array(items) if name == "-" => items.push(value.clone()),
                Value::Array(items) => items[name.parse::<usize>().expect("an index")] = value.clone(),
                other => panic!("{}: {parent} is {other}", self.name),
            }
        }
        for pointer in &self.remove {
            let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
            let parent = document.pointer_mut(parent).and_then(Value::as_object_mut).expect("an object");
            assert!(parent.shift_remove(name).is_some(), "{}: no {pointer}", self.name);
        }
        document
    }

    fn compare(&self, mistakes: &[Mistake]) {
        let shown: Vec<String> = mistakes.iter().map(Mistake::to_string).collect();
        let found: BTreeSet<&str> = mistakes.iter().map(|mistake| mistake.path.as_str()).collect();
        let expected: BTreeSet<&str> = self.expect.iter().map(|expected| expected.path.as_str()).collect();
        assert_eq!(found, expected, "{}: {shown:#?}", self.name);
        assert_eq!(mistakes.len(), self.expect.len(), "{}: {shown:#?}", self.name);
        for expected in &self.expect {
            let mistake = mistakes.iter().find(|mistake| mistake.path == expected.path).expect("in both sets");
            assert!(mistake.to_string().contains(&expected.message), "{}: {mistake}", self.name);
            assert!(!mistake.hint.is_empty(), "{}: {mistake}", self.name);
        }
    }
}

#[test]
fn every_bad_spec_gets_exactly_its_mistakes() {
    for (parse, _, _, table) in tables() {
        for case in &table.cases {
            case.compare(&parse(&case.apply(&table.base)).expect_err(&case.name));
        }
    }
}

#[test]
fn every_forbidden_edit_gets_exactly_its_mistakes() {
    for (parse, parse_edit, _, table) in tables() {
        for case in &table.edits {
            let edited = case.apply(&table.base);
            parse(&edited).expect(&case.name);
            case.compare(&parse_edit(&table.base, &edited));
        }
        assert_eq!(parse_edit(&table.base, &table.base), []);
    }
}

#[test]
fn every_rule_and_every_unserved_field_has_a_bad_spec() {
    let pattern = |path: &str| {
        // `a[3].b` becomes `a[].b`.
        path.split('[').map(|part| part.split_once(']').map_or(part, |(_, rest)| rest)).collect::<Vec<_>>().join("[]")
    };
    let mut all: Vec<Mistake> = Vec::new();
    for (parse, parse_edit, rules, table) in tables() {
        let mut mistakes: Vec<Mistake> = Vec::new();
        for case in &table.cases {
            mistakes.extend(parse(&case.apply(&table.base)).expect_err(&case.name));
        }
        for case in &table.edits {
            mistakes.extend(parse_edit(&table.base, &case.apply(&table.base)));
        }
        for (rule, at) in rules.iter().flat_map(|rule| rule.at.iter().map(move |at| (rule, at))) {
            let hit = mistakes.iter().any(|mistake| {
                mistake.message == rule.message && mistake.hint == rule.hint && pattern(&mistake.path).starts_with(at)
            });
            assert!(hit, "no bad spec for '{}' at {at}", rule.message);
        }
        all.extend(mistakes);
    }
    for row in UNSERVED.iter().chain(BACKFILL) {
        let hit = all.iter().any(|mistake| {
            pattern(&mistake.path) == row.pattern() && mistake.message == millrace_crds::unserved::MESSAGE
        });
        assert!(hit, "no bad spec for {}", row.pattern());
    }
}

fn base() -> Pipeline {
    parse(&table().base).unwrap_or_else(|mistakes| panic!("{mistakes:#?}"))
}

/// The least that passes.
fn smallest() -> Value {
    json!({
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "Pipeline",
        "metadata": {"name": "small"},
        "spec": {
            "kafka": {"bootstrapServers": "kafka:9092"},
            "sources": [{
                "name": "orders",
                "kafka": {"topic": "orders"},
                "key": {"columns": ["id"]},
                "format": {"type": "Json"},
                "columns": [{"name": "id", "type": "BIGINT"}],
                "eventTime": {},
                "table": {"primaryKey": ["id"], "versions": {}},
            }],
            "steps": [],
            "sinks": [{"name": "out", "from": "orders", "kafka": {"topic": "out"}, "format": {"type": "Json"}}],
        },
    })
}

#[test]
fn the_documented_pipeline_passes() {
    let pipeline = base();
    assert_eq!(pipeline.spec.dead_letter_topic(), Some("orders-enriched.dead"));
    let Some(StepKind::TemporalJoin(join)) = pipeline.spec.steps()[1].kind() else { panic!("no temporal join") };
    assert_eq!((join.table.as_str(), join.join_type, join.late), ("customers", JoinType::Left, Some(Late::JoinNow)));
    assert_eq!(pipeline.spec.on_error(&pipeline.spec.sources[0]), OnError::DeadLetter);
}

#[test]
fn defaults_are_the_documented_ones() {
    let pipeline = parse(&smallest()).expect("the smallest pipeline");
    let (spec, source) = (&pipeline.spec, &pipeline.spec.sources[0]);
    assert_eq!(pipeline.metadata.namespace, "default");
    assert_eq!(pipeline.prefix(), "default.small");
    assert_eq!((spec.replicas, spec.kafka.internal.replication_factor), (1, 3));
    assert_eq!(source.kafka.start_from.policy, StartPolicy::Earliest);
    let key = source.key.as_ref().expect("key");
    assert_eq!((key.format.kind, key.partitioner), (KeyFormatType::String, Partitioner::Murmur2));
    assert!(source.columns[0].nullable);
    let time = source.event_time.as_ref().expect("event time");
    assert_eq!((time.max_out_of_orderness.ms(), time.idle_timeout.ms()), (0, Some(30_000)));
    assert_eq!((time.future.max_skew.ms(), time.future.policy), (3_600_000, FuturePolicy::Clamp));
    let table = source.table.as_ref().expect("table");
    assert_eq!(table.versions.map(|versions| versions.retention), Some(Duration::from_days(7)));
    assert_eq!((table.ttl, spec.state.ttl), (DurationOrNever::Never, DurationOrNever::Never));
    assert_eq!(spec.delivery.commit_interval.ms(), 100);
    assert_eq!(spec.on_error(source), OnError::Stop);
    let slo = &base().spec.slos[0];
    assert_eq!((slo.kind(), slo.startup_grace, slo.min_events), ("freshness", Duration::from_secs(300), 1));
    assert_eq!((slo.ratio(), slo.budget()), (0.999, 0.001));
}

#[test]
fn a_join_takes_the_tables_default_and_then_ours() {
    let ours = JoinDefaults::default();
    assert_eq!(
        (ours.emit(None), ours.late(None), ours.missing(None)),
        (Emit::default(), Late::JoinNow, Missing::Unmatched)
    );
    let table = JoinDefaults { late: Some(Late::Drop), ..JoinDefaults::default() };
    assert_eq!(table.late(None), Late::Drop);
    assert_eq!(table.late(Some(Late::Unmatched)), Late::Unmatched);
}

#[test]
fn the_servers_defaults_and_ours_are_the_same() {
    // What a schema default says, the API server writes into the object; what serde says, the runtime runs.
    let document = smallest();
    let mut defaulted = document.clone();
    schema::apply_defaults(schema::pipeline(), &mut defaulted);
    let by_serde: Pipeline = serde_json::from_value(document).expect("serde's defaults");
    let by_schema: Pipeline = serde_json::from_value(defaulted).expect("the schema's defaults");
    assert_eq!(by_serde, by_schema);
}

#[test]
fn a_pipeline_reads_back_as_it_was_written() {
    for pipeline in [base(), parse(&smallest()).expect("the smallest pipeline")] {
        let written = serde_json::to_value(&pipeline).expect("json");
        assert_eq!(parse(&written).unwrap_or_else(|mistakes| panic!("{mistakes:#?}")), pipeline);
    }
}

#[test]
fn equal_durations_make_equal_specs() {
    let mut other = table().base;
    other["spec"]["sources"][0]["eventTime"]["idleTimeout"] = json!("30000ms");
    other["spec"]["state"]["ttl"] = json!("720h");
    assert_eq!(parse(&other).expect("the same spec").spec, base().spec);
}

#[test]
fn an_object_from_a_cluster_passes() {
    let mut document = smallest();
    document["metadata"] = json!({
        "name": "small", "namespace": "shop", "uid": "u", "generation": 3, "creationTimestamp": null,
        "resourceVersion": "7", "managedFields": [{"manager": "kubectl"}], "annotations": {"a.b/c": "d"},
    });
    document["status"] = json!({"phase": "SomethingNewer", "unheardOf": true});
    let pipeline = parse(&document).expect("an object from a cluster");
    assert_eq!(pipeline.prefix(), "shop.small");
    assert_eq!(pipeline.metadata.annotations["a.b/c"], "d");
    assert!(pipeline.status.is_none());
}

#[test]
fn a_document_that_is_no_mapping_is_one_mistake() {
    for document in [json!(null), json!([]), json!("kind: Pipeline")] {
        let mistakes = parse(&document).expect_err("no mapping");
        assert_eq!(mistakes.len(), 1);
        assert!(mistakes[0].to_string().starts_with("document: must be a mapping"), "{}", mistakes[0]);
    }
}

#[test]
fn what_local_runs_ignore_is_named() {
    let ignored = |pipeline: &Pipeline| ignored_locally(pipeline).into_iter().map(|(path, _)| path).collect::<Vec<_>>();
    let all = [
        "spec.kafka",
        "spec.replicas",
        "spec.autoscaling",
        "spec.state.storage",
        "spec.restore",
        "spec.slos",
        "spec.worker",
    ];
    assert_eq!(ignored(&base()), all);
    assert_eq!(ignored(&parse(&smallest()).expect("the smallest pipeline")), ["spec.kafka"]);
}

/// Every way to put one wrong value of each kind at each place of the document.
fn each_place(value: &Value, pointer: &str, visit: &mut impl FnMut(&str)) {
    visit(pointer);
    match value {
        Value::Object(object) => {
            object.iter().for_each(|(name, child)| each_place(child, &format!("{pointer}/{name}"), visit));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, child)| each_place(child, &format!("{pointer}/{i}"), visit));
        }
        _ => {}
    }
}

#[test]
fn whatever_passes_the_walk_is_readable() {
    // The last step of `parse` is serde, whose errors have no path: none of them may be the first to see a mistake.
    let base = table().base;
    let values = [
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(u64::MAX),
        json!(1.5),
        json!(""),
        json!("x"),
        json!([]),
        json!([null]),
        json!({}),
        json!({"a": 1}),
        json!("99999999999999d"),
    ];
    each_place(&base, "", &mut |pointer| {
        for value in &values {
            let mut document = base.clone();
            *document.pointer_mut(pointer).expect("a place") = value.clone();
            if let Err(mistakes) = parse(&document) {
                for mistake in mistakes {
                    let whole = pointer.is_empty();
                    assert!(whole || !mistake.path.is_empty(), "{pointer} = {value}: {mistake}");
                }
            }
        }
    });
}

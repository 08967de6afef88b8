//! What holds for every plan: it is stable, it reads back, it hangs together, and what it stores can run.

use std::path::Path;

use millrace_core::plan::{InputFrom, OperatorKind, OutputTo, Plan, Port, StateKind};
use millrace_core::schema::DataType;
use millrace_plan::{bind, state};

use crate::compiled;

fn plans() -> Vec<(String, Plan)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let files = std::fs::read_dir(folder).expect("golden folder").map(|entry| entry.expect("entry").path());
    files
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .map(|path| {
            let yaml = std::fs::read_to_string(&path).expect("spec");
            (path.display().to_string(), compiled(&yaml).plan)
        })
        .collect()
}

#[test]
fn the_same_spec_gives_the_same_plan_each_time() {
    for (first, second) in plans().into_iter().zip(plans()) {
        assert_eq!(first, second);
    }
}

#[test]
fn a_stored_plan_reads_back_as_it_was() {
    for (name, plan) in plans() {
        let stored = serde_json::to_string(&plan).expect("JSON");
        assert_eq!(serde_json::from_str::<Plan>(&stored).expect("plan"), plan, "{name}");
        assert_eq!(state::fingerprint(&plan.state), plan.state_fingerprint, "{name}");
    }
}

#[test]
fn every_expression_of_a_plan_binds_to_its_input_and_has_the_type_that_the_plan_says() {
    for (name, plan) in plans() {
        for stage in &plan.stages {
            for operator in &stage.operators {
                let OperatorKind::Project(project) = &operator.kind else { continue };
                let input = state::port_columns(&plan, stage, operator.input);
                if let Some(filter) = &project.filter {
                    assert_eq!(bind(filter, &input).expect(filter).data_type, DataType::Boolean, "{name}");
                }
                assert_eq!(project.columns.len(), operator.columns.len());
                for (projection, column) in project.columns.iter().zip(&operator.columns) {
                    let bound = bind(&projection.sql, &input).expect(&projection.sql);
                    assert_eq!(projection.name, column.name, "{name}");
                    assert_eq!(bound.data_type, column.data_type, "{name}: {}", projection.sql);
                    assert_eq!(bound.nullable, column.nullable, "{name}: {}", projection.sql);
                }
            }
        }
    }
}

#[test]
fn all_references_of_a_plan_lead_somewhere() {
    for (name, plan) in plans() {
        for stage in &plan.stages {
            for input in &stage.inputs {
                match &input.from {
                    InputFrom::Source(source) => assert!(plan.source(source).is_some(), "{name}: {source}"),
                    InputFrom::Exchange(exchange) => {
                        assert_eq!(plan.exchange(exchange).map(|e| &e.stage), Some(&stage.name), "{name}: {exchange}");
                    }
                }
            }
            for (i, operator) in stage.operators.iter().enumerate() {
                match operator.input {
                    Port::Input(index) => assert!(!stage.inputs[index].table, "{name}"),
                    Port::Operator(index) => assert!(index < i, "{name}: not in topological order"),
                }
                let join = match &operator.kind {
                    OperatorKind::Project(_) => continue,
                    OperatorKind::Guard(guard) => {
                        let input = state::port_columns(&plan, stage, operator.input);
                        assert_eq!(operator.columns, input, "{name}");
                        let sink = stage.outputs.iter().find(|o| o.from == Port::Operator(i)).map(|o| &o.to);
                        let Some(OutputTo::Sink(sink)) = sink else {
                            panic!("{name}: {} leads to no sink", operator.name)
                        };
                        let key = plan.sink(sink).and_then(|s| s.key.as_ref()).expect("the sink's key");
                        assert_eq!(guard.key, key.columns, "{name}");
                        let layout = plan.state.iter().find(|l| l.operator == operator.name).expect("its state");
                        assert!(layout.key.iter().chain(&layout.value).all(|c| !c.nullable), "{name}");
                        continue;
                    }
                    OperatorKind::TableJoin(join) => &join.join,
                    OperatorKind::TemporalJoin(join) => &join.join,
                };
                let left = state::port_columns(&plan, stage, operator.input);
                let table = plan.source(&join.table_name).expect("the table");
                assert!(stage.inputs[join.table].table, "{name}");
                for (stream, of_table) in &join.keys {
                    let stream = left.iter().find(|c| c.name == *stream).expect("key of the stream");
                    let of_table = table.columns.iter().find(|c| c.name == *of_table).expect("key of the table");
                    assert_eq!(stream.data_type, of_table.data_type, "{name}");
                }
                let keys: Vec<&String> = join.keys.iter().map(|(_, column)| column).collect();
                assert_eq!(keys, table.table.as_ref().expect("table").primary_key.iter().collect::<Vec<_>>(), "{name}");
                let output: Vec<&str> = operator.columns.iter().map(|c| c.name.as_str()).collect();
                let expected = left.iter().map(|c| c.name.as_str()).chain(join.right.iter().map(|(_, n)| n.as_str()));
                assert_eq!(output, expected.collect::<Vec<_>>(), "{name}");
            }
            for output in &stage.outputs {
                let columns = state::port_columns(&plan, stage, output.from);
                match &output.to {
                    OutputTo::Sink(sink) => assert_eq!(plan.sink(sink).expect("sink").columns, columns, "{name}"),
                    OutputTo::Exchange(e) => assert_eq!(plan.exchange(e).expect("exchange").columns, columns, "{name}"),
                }
            }
        }
        for exchange in &plan.exchanges {
            for column in &exchange.key.columns {
                assert!(exchange.columns.iter().any(|c| c.name == *column), "{name}: {column}");
            }
            assert!(plan.source(&exchange.source).is_some(), "{name}");
        }
        let mut names: Vec<&str> = plan.stages.iter().flat_map(|s| &s.operators).map(|o| o.name.as_str()).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count, "{name}: two operators have one name");
    }
}

#[test]
fn a_table_keeps_all_its_columns_and_a_stream_only_those_that_are_used() {
    let plan = compiled(include_str!("../golden/issue-sql.yaml")).plan;
    let names =
        |source: &str| plan.source(source).expect("source").columns.iter().map(|c| c.name.clone()).collect::<Vec<_>>();
    assert_eq!(names("orders"), ["order_id", "customer_id", "order_amount", "order_time"]);
    assert_eq!(names("customers"), ["customer_id", "customer_name", "loyalty_tier", "updated_at"]);
    let [table, waiting] = plan.state.as_slice() else { panic!("{:#?}", plan.state) };
    assert_eq!((table.operator.as_str(), table.kind), ("table customers", StateKind::Versioned));
    assert_eq!(table.value.len(), 4);
    assert_eq!((waiting.operator.as_str(), waiting.kind), ("out-o-c-temporaljoin", StateKind::Waiting));
    let waiting: Vec<&str> = waiting.value.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(waiting, ["order_id", "customer_id", "order_amount"]);
}

#[test]
fn a_primary_key_is_never_null() {
    let plan = compiled(include_str!("../golden/issue-sql.yaml")).plan;
    let key = &plan.source("customers").expect("customers").columns[0];
    assert_eq!((key.name.as_str(), key.nullable), ("customer_id", false));
}

const ALIGNED: &str = include_str!("../golden/issue-steps.yaml");

/// (stages, exchanges) of the plan of an edited spec.
fn cut(edits: &[(&str, &str)]) -> (usize, usize) {
    let yaml = edits.iter().fold(ALIGNED.to_owned(), |yaml, (from, to)| {
        assert!(yaml.contains(from), "the spec has no '{from}'");
        yaml.replace(from, to)
    });
    let plan = compiled(&yaml).plan;
    (plan.stages.len(), plan.exchanges.len())
}

#[test]
fn a_stream_that_is_partitioned_like_the_table_stays_where_it_is() {
    assert_eq!(cut(&[]), (1, 0));
    // Under another name it is the same column.
    let renamed = "    - name: renamed\n      from: orders\n      project: {select: [order_id, order_amount, customer_id AS who]}\n";
    let from = (
        "  steps:\n    - name: enriched\n      from: orders\n",
        format!("  steps:\n{renamed}    - name: enriched\n      from: renamed\n"),
    );
    assert_eq!(cut(&[(from.0, &from.1), ("{left: customer_id,", "{left: who,")]), (1, 0));
}

#[test]
fn only_the_stream_moves_where_the_table_keys_can_be_written_byte_for_byte() {
    let orders_key = "      kafka: {topic: orders}\n      key: {columns: [customer_id]}\n";
    assert_eq!(cut(&[(orders_key, "      kafka: {topic: orders}\n")]), (2, 1));
    assert_eq!(cut(&[(orders_key, "      kafka: {topic: orders}\n      key: {columns: [order_id]}\n")]), (2, 1));
    let other = "      kafka: {topic: orders}\n      key: {columns: [customer_id], partitioner: Crc32}\n";
    assert_eq!(cut(&[(orders_key, other)]), (2, 1));
}

#[test]
fn both_sides_move_where_the_table_keys_are_unknown_or_written_in_several_ways() {
    let key = "      key: {columns: [customer_id]}\n";
    assert_eq!(cut(&[(key, "")]), (3, 2));
    assert_eq!(cut(&[(key, "      key: {columns: [customer_id], format: {type: Json}}\n")]), (3, 2));
    // A decimal may be written 1, 1.0 or 1.00.
    let decimal = ("{name: customer_id, type: BIGINT}", "{name: customer_id, type: \"DECIMAL(9,2)\"}");
    assert_eq!(cut(&[decimal]), (3, 2));
}

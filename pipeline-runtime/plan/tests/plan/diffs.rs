//! What edits do.

use millrace_core::report::StateFit;
use millrace_plan::diff::Class;
use millrace_plan::state::{Fit, fit_of};
use millrace_plan::{Diff, diff};

use crate::{compiled, pipeline};

const STEPS: &str = include_str!("../golden/api-steps.yaml");
const SQL: &str = include_str!("../golden/api-sql.yaml");
const UPSERTS: &str = include_str!("../golden/upsert-steps.yaml");

fn edit(yaml: &str, from: &str, to: &str) -> Diff {
    assert!(yaml.contains(from), "the spec has no '{from}'");
    diff(&pipeline(yaml), &pipeline(&yaml.replace(from, to))).expect("both compile")
}

#[test]
fn an_edit_has_the_class_of_the_table() {
    for (from, to, path, class) in [
        ("spec:\n", "spec:\n  replicas: 4\n", "spec.replicas", Class::Live),
        ("spec:\n", "spec:\n  delivery: {commitInterval: 1s}\n", "spec.delivery.commitInterval", Class::Live),
        ("spec:\n", "spec:\n  worker: {logLevel: debug}\n", "spec.worker.logLevel", Class::Live),
        ("retention: 7d", "retention: 8d", "spec.sources[1].table.versions.retention", Class::Live),
        ("kafka.data.svc:9093", "kafka.data.svc:9094", "spec.kafka.bootstrapServers", Class::Roll),
        (
            "spec:\n",
            "spec:\n  worker: {resources: {requests: {cpu: \"2\"}}}\n",
            "spec.worker.resources.requests",
            Class::Roll,
        ),
        ("amount > 0", "amount > 1", "spec.steps[0].project.where", Class::NewPlanStateKept),
        ("loyalty_tier]", "loyalty_tier, updated_at]", "spec.steps[1].temporalJoin.select", Class::NewPlanStateKept),
        ("late: JoinNow", "late: Drop", "spec.steps[1].temporalJoin.late", Class::NewPlanStateKept),
        ("topic: shop.public.customers", "topic: customers", "spec.sources[1].kafka.topic", Class::NeedsRestore),
        (
            "{name: loyalty_tier, type: STRING}",
            "{name: loyalty_tier, type: INT}",
            "spec.sources[1].columns[2].type",
            Class::NeedsRestore,
        ),
        ("prefix: shop.orders-enriched", "prefix: shop.other", "spec.kafka.internal.prefix", Class::Immutable),
    ] {
        let diff = edit(STEPS, from, to);
        let change = diff.changes.iter().find(|c| c.path == path).unwrap_or_else(|| panic!("{path}: {diff}"));
        assert_eq!((change.class, diff.class), (class, Some(class)), "{diff}");
    }
}

#[test]
fn writing_a_default_or_another_spelling_or_another_order_is_no_change() {
    assert_eq!(edit(STEPS, "spec:\n", "spec:\n  replicas: 1\n").class, None);
    assert_eq!(edit(STEPS, "retention: 7d", "retention: 168h").class, None);
    let swapped = "        - {name: loyalty_tier, type: STRING}\n        - {name: name, type: STRING}\n";
    let diff =
        edit(STEPS, "        - {name: name, type: STRING}\n        - {name: loyalty_tier, type: STRING}\n", swapped);
    assert_eq!(diff.class, None, "{diff}");
}

#[test]
fn an_added_nullable_column_of_a_table_keeps_its_state() {
    let column = "{name: name, type: STRING}";
    let diff = edit(STEPS, column, &format!("{column}\n        - {{name: email, type: STRING}}"));
    assert_eq!(diff.class, Some(Class::NewPlanStateKept), "{diff}");
    assert!(diff.state.iter().all(|s| s.fit == Fit::Kept), "{diff}");
    let diff = edit(STEPS, column, &format!("{column}\n        - {{name: email, type: STRING, nullable: false}}"));
    assert_eq!(diff.class, Some(Class::NeedsRestore), "{diff}");
    assert!(diff.to_string().contains("state lost: table customers"), "{diff}");
}

#[test]
fn a_select_from_the_table_keeps_all_state_and_one_from_the_stream_all_but_rows_that_wait() {
    let kept = edit(STEPS, "loyalty_tier]", "loyalty_tier, updated_at]");
    assert!(kept.state.iter().all(|s| s.fit == Fit::Kept), "{kept}");
    let waits = edit(STEPS, "loyalty_tier]", "loyalty_tier, order_time]");
    assert_eq!(waits.class, Some(Class::NewPlanStateKept));
    assert!(waits.to_string().contains("state kept only while empty: enriched"), "{waits}");
}

#[test]
fn another_alias_of_a_join_loses_its_rows_that_wait_and_a_hint_keeps_them() {
    let (old, new) = (
        "JOIN customers FOR SYSTEM_TIME AS OF o.order_time AS c",
        "JOIN customers FOR SYSTEM_TIME AS OF o.order_time AS d",
    );
    let with_alias = |text: &str| text.replace(old, new).replace(" c.", " d.");
    let diff = |old: &str, new: &str| millrace_plan::diff(&pipeline(old), &pipeline(new)).expect("both compile");
    let renamed = diff(SQL, &with_alias(SQL));
    assert_eq!(renamed.class, Some(Class::NeedsRestore), "{renamed}");
    let hinted = SQL.replace("LEFT JOIN customers", "LEFT JOIN /*+ name('x') */ customers");
    let (old, new) = (old.replace("JOIN", "JOIN /*+ name('x') */"), new.replace("JOIN", "JOIN /*+ name('x') */"));
    let renamed = diff(&hinted, &with_alias(&hinted).replace(&old, &new));
    assert_eq!(renamed.class, Some(Class::NewPlanStateKept), "{renamed}");
}

#[test]
fn reordering_joins_in_sql_keeps_their_state() {
    let yaml = include_str!("../golden/three-joins-sql.yaml");
    let planes = "    LEFT JOIN planes AS p ON f.tailnum = p.tailnum\n";
    let airlines = "    JOIN airlines AS a ON a.carrier = f.carrier\n";
    let diff = edit(yaml, &format!("{planes}{airlines}"), &format!("{airlines}{planes}"));
    let lost: Vec<_> = diff.state.iter().filter(|s| matches!(s.fit, Fit::Lost(_))).collect();
    assert!(lost.is_empty(), "{diff}");
}

#[test]
fn what_decides_about_an_upsert_cannot_be_changed_under_its_rows() {
    let by_column = "write: {mode: Upsert, version: {policy: Column, column: changed_at}}";
    let lost = |old: &str, new: &str, why: &str| {
        let (old, new) = (pipeline(old), pipeline(new));
        let diff = diff(&old, &new).expect("both compile");
        assert_eq!(diff.class, Some(Class::NeedsRestore), "{diff}");
        let plan = |pipeline| millrace_plan::compile(pipeline).expect("it compiles").plan;
        let StateFit::Lost { reasons } = fit_of(&plan(&old), &plan(&new)) else { panic!("{diff}") };
        assert!(reasons.iter().any(|reason| reason.contains(why)), "{reasons:#?}");
    };
    let append = UPSERTS.replace(by_column, "");
    lost(&append, UPSERTS, "sink 'latest': its rows were appended");
    lost(UPSERTS, &append, "sink 'latest': its rows replaced each other");
    lost(UPSERTS, &UPSERTS.replace("column: changed_at", "column: order_id"), "latest.upsert: its rows do not have");
    let other_key = UPSERTS.replace("key: {columns: [order_id]}", "key: {columns: [status]}");
    lost(UPSERTS, &other_key, "latest.upsert: its key was (order_id BIGINT NOT NULL) and is (status STRING NOT NULL)");
    // A sink that was not there, and what is written beside the key and the version, are free.
    let [step, sink] =
        ["    - name: open\n", "    - name: statuses\n"].map(|from| UPSERTS.find(from).expect("it is there"));
    let [behind_step, behind_sink] =
        ["    - name: named\n", "    - name: latest\n"].map(|from| UPSERTS.find(from).expect("it is there"));
    let without = format!("{}{}{}", &UPSERTS[..step], &UPSERTS[behind_step..sink], &UPSERTS[behind_sink..]);
    let added = diff(&pipeline(&without), &pipeline(UPSERTS)).expect("both compile");
    assert_eq!(added.class, Some(Class::NewPlanStateKept), "{added}");
    let other = edit(UPSERTS, "select: [order_id, status, name, changed_at]", "select: [order_id, name, changed_at]");
    assert_eq!(other.class, Some(Class::NewPlanStateKept), "{other}");
}

#[test]
fn the_old_and_the_new_form_of_a_pipeline_can_be_compared() {
    let diff = diff(&pipeline(STEPS), &pipeline(SQL)).expect("both compile");
    let text = diff.to_string();
    assert!(text.contains("spec.sql"), "{text}");
}

fn fit(from: &str, to: &str) -> StateFit {
    assert!(STEPS.contains(from), "the spec has no '{from}'");
    fit_of(&compiled(STEPS).plan, &compiled(&STEPS.replace(from, to)).plan)
}

#[test]
fn state_that_serves_a_new_plan_as_it_is_is_kept() {
    assert_eq!(fit("amount > 0", "amount > 1"), StateFit::Kept);
    assert_eq!(fit("late: JoinNow", "late: Drop"), StateFit::Kept);
    assert_eq!(fit("retention: 7d", "retention: 8d"), StateFit::Kept);
}

#[test]
fn rows_that_wait_in_a_join_or_between_stages_must_leave_before_they_lack_something() {
    let StateFit::KeptIfEmpty { reasons } = fit("loyalty_tier]", "loyalty_tier, order_time]") else {
        panic!("{:?}", fit("loyalty_tier]", "loyalty_tier, order_time]"));
    };
    assert!(reasons.iter().any(|why| why.starts_with("enriched: the rows that wait")), "{reasons:#?}");
    assert!(reasons.iter().any(|why| why.starts_with("exchange")), "{reasons:#?}");
}

#[test]
fn another_topic_key_or_name_of_a_stage_loses_what_the_old_one_had() {
    for (from, to, why) in [
        (
            "topic: shop.public.customers",
            "topic: customers",
            "source 'customers': it read topic 'shop.public.customers'",
        ),
        (
            "{name: loyalty_tier, type: STRING}",
            "{name: loyalty_tier, type: INT}",
            "table customers: 'loyalty_tier' was",
        ),
    ] {
        let StateFit::Lost { reasons } = fit(from, to) else { panic!("{to}: {:?}", fit(from, to)) };
        assert!(reasons.iter().any(|reason| reason.starts_with(why)), "{reasons:#?}");
    }
    let renamed = STEPS.replace("name: real_orders", "name: paid").replace("from: real_orders", "from: paid");
    let StateFit::Lost { reasons } = fit_of(&compiled(STEPS).plan, &compiled(&renamed).plan) else {
        panic!("the stage of the orders has another name");
    };
    assert!(
        reasons.iter().any(|reason| reason.contains("'real_orders', and stage 'paid' reads it now")),
        "{reasons:#?}"
    );
}

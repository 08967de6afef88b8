//! Joins against a naive model: any rows, any partitioning, any faults, any batch size. The answer must be the model's.

use std::collections::BTreeMap;

use millrace_core::plan::Partitioner;
use millrace_tests::spec::{KEYED, Spec};
use millrace_tests::{Rec, Ride, Topics, plan, ride, sorted_values};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::worlds_config;

/// Customers from here on never change and never order.
const NOBODY: i64 = 1_000;

/// How the two sides say that they are partitioned.
#[derive(Clone, Copy, Debug)]
enum Keys {
    /// Alike: nothing moves.
    Aligned,
    /// The stream's is unknown: it moves to the table's partitioning.
    StreamUnknown,
    /// The table's is JSON: both move.
    TableJson,
}

#[derive(Clone, Debug)]
struct Change {
    customer: i64,
    /// `None` is a tombstone, which holds from its record's timestamp on.
    name: Option<String>,
    since: i64,
}

#[derive(Clone, Debug)]
struct Order {
    customer: Option<i64>,
    time: i64,
    partition: i32,
}

#[derive(Clone, Debug)]
struct World {
    changes: Vec<Change>,
    orders: Vec<Order>,
    partitions: i32,
    keys: Keys,
    left: bool,
    /// Milliseconds.
    out_of_order: i64,
    retention: i64,
    late: &'static str,
    ride: Ride,
}

fn worlds() -> impl Strategy<Value = World> {
    let change = (0..6_i64, proptest::option::weighted(0.8, "[a-z]{0,3}"), 0..60_i64)
        .prop_map(|(customer, name, since)| Change { customer, name, since });
    let order = (proptest::option::weighted(0.9, 0..7_i64), 0..80_i64, 0..3_i32)
        .prop_map(|(customer, time, partition)| Order { customer, time, partition });
    let keys = prop_oneof![Just(Keys::Aligned), Just(Keys::StreamUnknown), Just(Keys::TableJson)];
    let late = prop_oneof![Just("JoinNow"), Just("Accept"), Just("Unmatched"), Just("Drop")];
    let lives = proptest::collection::vec(0..60_u32, 0..5);
    (
        proptest::collection::vec(change, 0..40),
        proptest::collection::vec(order, 0..60),
        (1..=3_i32, keys, any::<bool>()),
        (0..20_i64, 5..200_i64, late),
        (lives, 1..20_usize, 1..40_usize),
    )
        .prop_map(
            |(
                changes,
                orders,
                (partitions, keys, left),
                (out_of_order, retention, late),
                (lives, batch_records, waiting_rows_max),
            )| {
                let ride = Ride { lives, batch_records, waiting_rows_max };
                World { changes, orders, partitions, keys, left, out_of_order, retention, late, ride }
            },
        )
}

fn key_partition(world: &World, customer: i64) -> i32 {
    Partitioner::Murmur2.partition(customer.to_string().as_bytes(), world.partitions).0
}

/// Where an order lies: by its key where the spec says so, else anywhere.
fn order_partition(world: &World, order: &Order) -> i32 {
    match (world.keys, order.customer) {
        (Keys::Aligned, Some(customer)) => key_partition(world, customer),
        _ => order.partition % world.partitions,
    }
}

fn topics(world: &World) -> Topics {
    let change = |c: &Change| {
        let partition = key_partition(world, c.customer);
        let rec = match &c.name {
            Some(name) => Rec::new(c.customer, &json!({"customer": c.customer, "name": name, "since": c.since})),
            None => Rec::tombstone(c.customer),
        };
        rec.at(c.since).on(partition)
    };
    let order = |(id, o): (usize, &Order)| {
        let value = json!({"id": id, "customer": o.customer, "time": o.time});
        let key = o.customer.map(|c| c.to_string());
        Rec { key, ..Rec::new("", &value) }.at(o.time).on(order_partition(world, o))
    };
    // Every partition exists, however few rows there are: a tombstone of nobody, and one that a stream drops.
    let nobody = |p: i32| (NOBODY..).find(|key| key_partition(world, *key) == p).expect("keys go everywhere");
    let marks = || (0..world.partitions).map(|p| Rec::tombstone(nobody(p)).at(0).on(p));
    Topics::from([
        ("customers".to_owned(), marks().chain(world.changes.iter().map(change)).collect()),
        ("orders".to_owned(), marks().chain(world.orders.iter().enumerate().map(order)).collect()),
    ])
}

fn pipeline(world: &World, join: &str) -> String {
    let order_key = match world.keys {
        Keys::Aligned | Keys::TableJson => KEYED,
        Keys::StreamUnknown => "",
    };
    let order_time = format!(", maxOutOfOrderness: {}ms", world.out_of_order);
    let retention = format!(", versions: {{retention: {}ms}}", world.retention);
    let spec = Spec {
        order_key,
        order_time: if world.out_of_order == 0 { ", maxOutOfOrderness: 0s" } else { &order_time },
        table_key: if matches!(world.keys, Keys::TableJson) { "Json" } else { "String" },
        table: if join.starts_with("temporal") { &retention } else { "" },
        join,
        join_type: if world.left { "Left" } else { "Inner" },
        ..Spec::default()
    };
    spec.yaml()
}

/// The version of a customer at a time: the highest valid-from wins, among equals the later record.
fn as_of(world: &World, customer: Option<i64>, time: i64) -> Option<String> {
    let of_customer = world.changes.iter().filter(|c| Some(c.customer) == customer && c.since <= time);
    of_customer.max_by_key(|c| c.since).and_then(|c| c.name.clone())
}

/// The result rows of a temporal join: for one partition those that were on time in their order, and those that were late
/// in theirs. How the two mix is not promised: a late row leaves at once, one on time when the table is complete.
fn temporal_model(world: &World) -> [Vec<Value>; 2] {
    let (mut on_time, mut late) = (Vec::new(), Vec::new());
    for partition in 0..world.partitions {
        let mut watermark = i64::MIN;
        let mut waiting: Vec<(i64, usize)> = Vec::new();
        let orders = world.orders.iter().enumerate().filter(|(_, o)| order_partition(world, o) == partition);
        let row =
            |id: usize, name: Option<String>| (name.is_some() || world.left).then(|| json!({"id": id, "name": name}));
        for (id, order) in orders {
            if order.time < watermark {
                match world.late {
                    "Drop" => {}
                    "Unmatched" => late.extend(row(id, None)),
                    _ if order.time < watermark - world.retention => {}
                    _ => late.extend(row(id, as_of(world, order.customer, order.time))),
                }
                continue;
            }
            waiting.push((order.time, id));
            watermark = watermark.max(order.time - world.out_of_order);
            waiting.sort();
            while waiting.first().is_some_and(|(time, _)| *time < watermark) {
                let (time, id) = waiting.remove(0);
                on_time.extend(row(id, as_of(world, world.orders[id].customer, time)));
            }
        }
        let rest = waiting.into_iter().filter_map(|(time, id)| row(id, as_of(world, world.orders[id].customer, time)));
        on_time.extend(rest);
    }
    [on_time, late]
}

/// `expected`: lists of rows, each in its order where that is asked for.
fn check(world: &World, join: &str, expected: &[Vec<Value>], ordered: bool) -> Result<(), TestCaseError> {
    let plan = plan(&pipeline(world, join));
    let outcome = ride(&plan, &topics(world), &world.ride).map_err(|e| TestCaseError::fail(format!("{e:#}")))?;
    let records = &outcome.topics["out"];
    let mut all: Vec<String> = expected.iter().flatten().map(Value::to_string).collect();
    all.sort();
    prop_assert_eq!(sorted_values(records), all);
    for list in expected.iter().filter(|_| ordered) {
        let of_list = records.iter().map(|r| &r["value"]).filter(|value| list.contains(value));
        prop_assert_eq!(of_list.collect::<Vec<_>>(), list.iter().collect::<Vec<_>>());
    }
    let mut by_step: BTreeMap<String, u64> = BTreeMap::new();
    for (step, totals) in &outcome.totals {
        prop_assert!(totals.balanced(), "{} does not balance: {:?}", step, totals);
        prop_assert_eq!(totals.waiting, 0);
        let name = step.split_once(' ').map_or("", |(_, name)| name);
        *by_step.entry(name.to_owned()).or_default() += totals.rows_in;
    }
    if let Some(late) = expected.get(1) {
        let counted: u64 = outcome.totals.iter().map(|(_, totals)| totals.joined_late).sum();
        prop_assert_eq!(
            counted,
            if world.late == "Accept" { 0 } else { late.len() as u64 },
            "late rows that were joined"
        );
    }
    let read = (world.orders.len() + world.partitions as usize) as u64;
    prop_assert_eq!(by_step.get("source orders"), Some(&read), "every record is counted once: {:?}", outcome.totals);
    Ok(())
}

proptest! {
    #![proptest_config(worlds_config())]

    #[test]
    fn a_temporal_join_gives_what_the_naive_model_gives(world in worlds()) {
        let join = format!("temporalJoin:\n        late: {}", world.late);
        check(&world, &join, &temporal_model(&world), world.partitions == 1)?;
    }

    #[test]
    fn a_latest_join_sees_the_whole_table_that_was_there_at_the_start(world in worlds()) {
        let latest = |o: &Order| {
            let mut of_customer = world.changes.iter().filter(|c| Some(c.customer) == o.customer);
            of_customer.next_back().and_then(|c| c.name.clone())
        };
        let rows = world.orders.iter().enumerate().map(|(id, o)| (id, latest(o)));
        let expected: Vec<Value> = rows
            .filter(|(_, name)| name.is_some() || world.left)
            .map(|(id, name)| json!({"id": id, "name": name}))
            .collect();
        check(&world, "tableJoin:", &[expected], world.partitions == 1)?;
    }
}

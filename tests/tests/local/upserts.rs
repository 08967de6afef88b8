//! Upsert sinks against a naive model: any rows, any partitioning, any faults, any batch size. Of each key the versions
//! that are written only grow, and the last of them is the greatest that there was.

use std::collections::BTreeMap;

use millrace_core::plan::Partitioner;
use millrace_core::totals::{DropReason, Totals};
use millrace_tests::{Outcome, Rec, Ride, Topics, plan, ride};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::worlds_config;

/// What decides which of two rows is the newer one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum By {
    Column,
    Position,
}

/// How the stream is partitioned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Keys {
    /// By the sink's key: the guard is where the stream is read.
    Text,
    /// By the sink's key, in a way that is not proven: the rows move.
    Json,
    /// Nobody knows: the rows move.
    Unknown,
}

/// `joined`: the rows go through a temporal join first, which brings them into the order of their time.
pub fn pipeline(keys: Keys, mode: &str, joined: bool) -> String {
    let key = match keys {
        Keys::Text => "key: {columns: [id], format: {type: String}}",
        Keys::Json => "key: {columns: [id], format: {type: Json}}",
        Keys::Unknown => "",
    };
    let from = if joined { "named" } else { "plain" };
    let unused = if joined { "plain" } else { "named" };
    format!(
        r#"
apiVersion: millrace.dev/v1alpha1
kind: Pipeline
metadata: {{name: upserts, namespace: test}}
spec:
  kafka: {{bootstrapServers: "unused:9092"}}
  sources:
    - name: orders
      kafka: {{topic: orders}}
      {key}
      format: {{type: Json}}
      columns:
        - {{name: place, type: BIGINT}}
        - {{name: id, type: BIGINT}}
        - {{name: version, type: INT}}
        - {{name: time, type: TIMESTAMP(3)}}
      eventTime: {{column: time, maxOutOfOrderness: 1h}}
    - name: customers
      kafka: {{topic: customers}}
      key: {{columns: [customer]}}
      format: {{type: Json}}
      columns: [{{name: customer, type: BIGINT}}, {{name: since, type: TIMESTAMP(3)}}]
      table: {{primaryKey: [customer], versions: {{retention: 7d}}}}
      eventTime: {{column: since}}
  steps:
    - name: plain
      from: orders
      project: {{select: [place, id AS who, version]}}
    - name: named
      from: orders
      temporalJoin:
        table: customers
        joinType: Left
        keys: [{{left: place, right: customer}}]
        select: [place, id AS who, version]
  sinks:
    - name: out
      from: {from}
      kafka: {{topic: out}}
      key: {{columns: [who]}}
      format: {{type: Json}}
      {mode}
    - name: all
      from: {unused}
      kafka: {{topic: all}}
      format: {{type: Json}}
  deadLetter: {{kafka: {{topic: dead}}}}
"#
    )
}

pub const BY_COLUMN: &str = "write: {mode: Upsert, version: {policy: Column, column: version}}";
pub const BY_POSITION: &str = "write: {mode: Upsert}";

#[derive(Clone, Debug)]
pub struct Order {
    pub id: Option<i64>,
    pub version: Option<i32>,
    pub time: i64,
    pub partition: i32,
}

#[derive(Clone, Debug)]
struct World {
    orders: Vec<Order>,
    partitions: i32,
    keys: Keys,
    by: By,
    joined: bool,
    ride: Ride,
}

/// What can be told apart: positions in several partitions cannot be compared.
pub fn policies() -> impl Strategy<Value = (Keys, By)> {
    prop_oneof![
        (prop_oneof![Just(Keys::Text), Just(Keys::Json), Just(Keys::Unknown)], Just(By::Column)),
        (prop_oneof![Just(Keys::Text), Just(Keys::Json)], Just(By::Position)),
    ]
}

fn worlds() -> impl Strategy<Value = World> {
    let order =
        (proptest::option::weighted(0.9, 0..5_i64), proptest::option::weighted(0.9, -3..9_i32), 0..90_i64, 0..3_i32)
            .prop_map(|(id, version, time, partition)| Order { id, version, time, partition });
    let lives = proptest::collection::vec(0..60_u32, 0..5);
    (proptest::collection::vec(order, 0..60), 1..=3_i32, policies(), any::<bool>(), (lives, 1..20_usize, 1..40_usize))
        .prop_map(|(orders, partitions, (keys, by), joined, (lives, batch_records, waiting_rows_max))| {
            let ride = Ride { lives, batch_records, waiting_rows_max };
            World { orders, partitions, keys, by, joined, ride }
        })
}

fn key_partition(id: i64, partitions: i32) -> i32 {
    Partitioner::Murmur2.partition(id.to_string().as_bytes(), partitions).0
}

/// The stream's records; `place` is that of a row among all of them.
pub fn topics(orders: &[Order], partitions: i32, keys: Keys) -> Topics {
    let record = |(n, order): (usize, &Order)| {
        let value = json!({"place": n, "id": order.id, "version": order.version, "time": order.time});
        let partition = match (keys, order.id) {
            (Keys::Text, Some(id)) => key_partition(id, partitions),
            (Keys::Json, Some(id)) => id as i32 % partitions,
            _ => order.partition % partitions,
        };
        Rec { key: order.id.map(|id| id.to_string()), ..Rec::new("", &value) }.at(n as i64).on(partition)
    };
    // Every partition exists, however few rows there are: a stream drops tombstones.
    let marks = (0..partitions).map(|p| Rec::tombstone(0).at(0).on(p));
    Topics::from([
        ("orders".to_owned(), marks.chain(orders.iter().enumerate().map(record)).collect()),
        ("customers".to_owned(), vec![Rec::tombstone(0).at(0)]),
    ])
}

pub fn number(row: &Value, column: &str) -> i64 {
    row["value"][column].as_i64().unwrap_or_else(|| panic!("{column} of {row}"))
}

/// What the steps of this name did in all tasks.
pub fn totals_of(outcome: &Outcome, step: &str) -> Totals {
    let mut sum = Totals::default();
    for (_, totals) in outcome.totals.iter().filter(|(name, _)| name.ends_with(&format!(" {step}"))) {
        sum.rows_in += totals.rows_in;
        sum.rows_out += totals.rows_out;
        totals.dropped.iter().for_each(|(reason, rows)| sum.drop_rows(*reason, *rows));
    }
    sum
}

/// The version of a row under the world's policy, if it has one.
fn version(world: &World, n: usize) -> Option<i64> {
    match world.by {
        By::Column => world.orders[n].version.map(i64::from),
        By::Position => Some(n as i64),
    }
}

fn check(world: &World) -> Result<(), TestCaseError> {
    let mode = if world.by == By::Column { BY_COLUMN } else { BY_POSITION };
    let topics = topics(&world.orders, world.partitions, world.keys);
    let outcome = ride(&plan(&pipeline(world.keys, mode, world.joined)), &topics, &world.ride);
    let outcome = outcome.map_err(|e| TestCaseError::fail(format!("{e:#}")))?;
    let mut good: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for (n, order) in world.orders.iter().enumerate() {
        if let (Some(id), Some(version)) = (order.id, version(world, n)) {
            good.entry(id).or_default().push(version);
        }
    }
    let mut written: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for row in &outcome.topics["out"] {
        let n = usize::try_from(number(row, "place")).expect("not negative");
        let who = number(row, "who");
        prop_assert_eq!(&row["key"], &json!(who.to_string()));
        written.entry(who).or_default().push(version(world, n).expect("a row without one is dead"));
    }
    for (id, versions) in &written {
        prop_assert!(versions.windows(2).all(|pair| pair[0] < pair[1]), "{}: {:?}", id, versions);
    }
    let newest = |of: &BTreeMap<i64, Vec<i64>>| -> BTreeMap<i64, Option<i64>> {
        of.iter().map(|(id, versions)| (*id, versions.iter().max().copied())).collect()
    };
    prop_assert_eq!(newest(&written), newest(&good));
    if !world.joined && (world.partitions == 1 || world.keys != Keys::Unknown) {
        // All rows of a key come in one order: so which of them are written is known too.
        let growing = |versions: &Vec<i64>| {
            let mut kept: Vec<i64> = Vec::new();
            versions.iter().for_each(|v| {
                if kept.last().is_none_or(|last| last < v) {
                    kept.push(*v)
                }
            });
            kept
        };
        let expected: BTreeMap<i64, Vec<i64>> = good.iter().map(|(id, versions)| (*id, growing(versions))).collect();
        prop_assert_eq!(&written, &expected);
    }
    let guard = totals_of(&outcome, "out.upsert");
    let dropped = |reason| guard.dropped.get(&reason).copied().unwrap_or(0) as usize;
    let (rows_good, rows_written) =
        (good.values().map(Vec::len).sum::<usize>(), written.values().map(Vec::len).sum::<usize>());
    prop_assert_eq!(guard.rows_in as usize, world.orders.len());
    prop_assert_eq!(guard.rows_out as usize, rows_written);
    prop_assert_eq!(dropped(DropReason::DeadLettered), world.orders.len() - rows_good);
    prop_assert_eq!(outcome.topics["dead"].len(), world.orders.len() - rows_good);
    prop_assert_eq!(dropped(DropReason::Outdated) + dropped(DropReason::SameVersion), rows_good - rows_written);
    prop_assert!(outcome.totals.iter().all(|(_, totals)| totals.balanced()), "{:?}", outcome.totals);
    Ok(())
}

proptest! {
    #![proptest_config(worlds_config())]

    #[test]
    fn the_versions_that_an_upsert_sink_writes_of_a_key_only_grow_to_the_greatest(world in worlds()) {
        check(&world)?;
    }
}

fn order(id: i64, version: Option<i32>) -> Order {
    Order { id: Some(id), version, time: 0, partition: 0 }
}

fn run(mode: &str, orders: &[Order]) -> Outcome {
    let topics = topics(orders, 1, Keys::Text);
    ride(&plan(&pipeline(Keys::Text, mode, false)), &topics, &Ride::smooth()).expect("the run ends")
}

fn versions(outcome: &Outcome) -> Vec<i64> {
    outcome.topics["out"].iter().map(|row| number(row, "version")).collect()
}

#[test]
fn without_the_guard_an_older_row_comes_after_a_newer_one() {
    let orders = [3, 1, 2, 3, 4].map(|version| order(7, Some(version)));
    assert_eq!(versions(&run("", &orders)), [3, 1, 2, 3, 4]);
    let guarded = run(BY_COLUMN, &orders);
    assert_eq!(versions(&guarded), [3, 4]);
    let dropped = totals_of(&guarded, "out.upsert").dropped;
    assert_eq!(dropped, BTreeMap::from([(DropReason::Outdated, 2), (DropReason::SameVersion, 1)]));
}

#[test]
fn a_row_without_a_key_or_a_version_is_a_dead_letter() {
    let orders = [Order { id: None, ..order(0, Some(1)) }, order(7, None), order(7, Some(1))];
    let outcome = run(BY_COLUMN, &orders);
    assert_eq!(versions(&outcome), [1]);
    let why = |dead: &Value| {
        let headers = &dead["headers"];
        let text = |name: &str| headers[name].as_str().expect("a header").to_owned();
        (text("millrace-error-code"), text("millrace-step"), text("millrace-offset"))
    };
    let dead: Vec<_> = outcome.topics["dead"].iter().map(why).collect();
    let of = |code: &str, offset: &str| (code.to_owned(), "out.upsert".to_owned(), offset.to_owned());
    assert_eq!(dead, [of("NullKey", "1"), of("NullVersion", "2")]);
}

#[test]
fn a_key_of_two_partitions_is_an_error_where_positions_are_compared() {
    let mut topics = topics(&[order(7, None), order(7, None)], 2, Keys::Json);
    let orders = topics.get_mut("orders").expect("orders");
    let last = orders.last_mut().expect("an order");
    last.partition = 1 - last.partition;
    let error = ride(&plan(&pipeline(Keys::Json, BY_POSITION, false)), &topics, &Ride::smooth());
    let error = format!("{:#}", error.err().expect("the key is not what decides about the partition"));
    assert!(error.contains("out.upsert") && error.contains("KeyInTwoPartitions"), "{error}");
}

//! Joins on a real broker, through any number of deaths of the lane: what a `read_committed` reader sees is the naive
//! model's answer, record for record.

use millrace_core::plan::Partitioner;
use millrace_tests::kafka::ride_on_kafka;
use millrace_tests::kafka::shared as kafka;
use millrace_tests::spec::{KEYED, Spec};
use millrace_tests::story::Numbers;
use millrace_tests::{Outcome, Rec, Ride, Topics, plan, ride, sorted_values};
use serde_json::{Value, json};

const PARTITIONS: i32 = 3;
const CUSTOMERS: u64 = 40;
const CHANGES: usize = 300;
const ORDERS: usize = 2_000;

struct Change {
    customer: u64,
    /// `None`: a delete.
    name: Option<String>,
    since: i64,
}

struct Order {
    customer: u64,
    time: i64,
}

struct World {
    changes: Vec<Change>,
    orders: Vec<Order>,
}

/// Orders in the order of their times, so that none is late wherever it is read.
fn world(seed: u64) -> World {
    let mut numbers = Numbers(seed);
    let change = |i: usize| Change {
        customer: numbers.below(CUSTOMERS),
        name: (numbers.below(8) > 0).then(|| format!("name {i}")),
        since: 1 + i as i64 * 10,
    };
    let changes = (0..CHANGES).map(change).collect();
    let order = |i: usize| Order { customer: numbers.below(CUSTOMERS + 2), time: 1 + i as i64 * 2 };
    World { changes, orders: (0..ORDERS).map(order).collect() }
}

fn by_key(customer: u64) -> i32 {
    Partitioner::Murmur2.partition(customer.to_string().as_bytes(), PARTITIONS).0
}

/// The two topics. `spread`: an order's partition says nothing of its customer.
fn topics(world: &World, spread: bool) -> Topics {
    let change = |c: &Change| {
        let rec = match &c.name {
            Some(name) => Rec::new(c.customer, &json!({"customer": c.customer, "name": name, "since": c.since})),
            None => Rec::tombstone(c.customer),
        };
        rec.at(c.since).on(by_key(c.customer))
    };
    let order = |(id, o): (usize, &Order)| {
        let partition = if spread { id as i32 % PARTITIONS } else { by_key(o.customer) };
        Rec::new(o.customer, &json!({"id": id, "customer": o.customer, "time": o.time})).at(o.time).on(partition)
    };
    Topics::from([
        ("customers".to_owned(), world.changes.iter().map(change).collect()),
        ("orders".to_owned(), world.orders.iter().enumerate().map(order).collect()),
    ])
}

fn pipeline(join: &str, order_key: &str, table_key: &str) -> String {
    let join = format!("{join}:");
    Spec { join: &join, order_key, table_key, ..Spec::default() }.yaml()
}

const UNKNOWN: &str = "";

/// What the join must give, sorted. `latest`: of the whole table, else as of the order's time.
fn expected(world: &World, latest: bool) -> Vec<String> {
    let row = |(id, order): (usize, &Order)| {
        let of_customer = world.changes.iter().filter(|c| c.customer == order.customer);
        let mut versions = of_customer.filter(|c| latest || c.since <= order.time);
        let seen = versions.next_back();
        json!({"id": id, "name": seen.and_then(|c| c.name.clone())}).to_string()
    };
    let mut rows: Vec<String> = world.orders.iter().enumerate().map(row).collect();
    rows.sort();
    rows
}

fn check(outcome: &Outcome, expected: &[String]) {
    let rows = sorted_values(&outcome.topics["out"]);
    let wrong = rows.iter().zip(expected).find(|(row, expected)| row != expected);
    assert!(rows == *expected, "{} rows of {}; the first one that differs: {wrong:?}", rows.len(), expected.len());
    for (step, totals) in &outcome.totals {
        assert!(totals.balanced(), "{step} does not balance: {totals:?}");
        assert_eq!(totals.waiting, 0, "{step}");
    }
    let of_orders = outcome.totals.iter().filter(|(step, _)| step.ends_with("source orders"));
    assert_eq!(of_orders.map(|(_, totals)| totals.rows_in).sum::<u64>(), ORDERS as u64, "each order is counted once");
}

/// A ride with so many deaths, early and late ones.
fn deadly(seed: u64, deaths: usize) -> Ride {
    let mut numbers = Numbers(seed);
    let lives = (0..deaths).map(|_| 3 + numbers.below(60) as u32).collect();
    Ride { lives, batch_records: 50, ..Ride::smooth() }
}

#[test]
fn a_temporal_join_on_a_real_broker_gives_what_the_model_gives() {
    let world = world(11);
    let plan = plan(&pipeline("temporalJoin", KEYED, "String"));
    let topics = topics(&world, false);
    let expected = expected(&world, false);
    check(&ride_on_kafka(kafka(), &plan, &topics, &Ride::smooth()).unwrap(), &expected);
    check(&ride_on_kafka(kafka(), &plan, &topics, &deadly(1, 12)).unwrap(), &expected);
    check(&ride(&plan, &topics, &Ride::smooth()).unwrap(), &expected);
}

#[test]
fn a_temporal_join_behind_two_repartitions_gives_what_the_model_gives() {
    let world = world(12);
    let plan = plan(&pipeline("temporalJoin", UNKNOWN, "Json"));
    assert_eq!(plan.exchanges.len(), 2);
    let topics = topics(&world, true);
    let expected = expected(&world, false);
    check(&ride_on_kafka(kafka(), &plan, &topics, &deadly(2, 12)).unwrap(), &expected);
    check(&ride(&plan, &topics, &Ride::smooth()).unwrap(), &expected);
}

#[test]
fn a_latest_join_of_a_stream_that_moves_gives_what_the_model_gives() {
    let world = world(13);
    let plan = plan(&pipeline("tableJoin", UNKNOWN, "String"));
    assert_eq!(plan.exchanges.len(), 1);
    let topics = topics(&world, true);
    check(&ride_on_kafka(kafka(), &plan, &topics, &deadly(3, 12)).unwrap(), &expected(&world, true));
}

#[test]
fn results_carry_the_timestamps_of_the_orders_that_triggered_them() {
    let world = world(14);
    let plan = plan(&pipeline("temporalJoin", UNKNOWN, "Json"));
    let outcome = ride_on_kafka(kafka(), &plan, &topics(&world, true), &Ride::smooth()).unwrap();
    let time = |record: &Value| world.orders[record["value"]["id"].as_u64().unwrap() as usize].time;
    assert!(outcome.topics["out"].iter().all(|record| record["timestamp"].as_i64() == Some(time(record))));
}

#[test]
fn a_latest_table_on_a_compacted_topic_has_no_other_changelog_and_survives_the_loss_of_its_disk() {
    let world = world(15);
    let plan = plan(&pipeline("tableJoin", KEYED, "String"));
    assert!(plan.exchanges.is_empty());
    let outcome = ride_on_kafka(kafka(), &plan, &topics(&world, false), &deadly(4, 12)).unwrap();
    check(&outcome, &expected(&world, true));
    let of_customers = outcome.totals.iter().filter(|(step, _)| step.ends_with("source customers"));
    let counted: u64 = of_customers.map(|(_, totals)| totals.rows_in).sum();
    assert_eq!(counted, CHANGES as u64, "what is read again counts once");
    let changelog = kafka().read_committed(&format!("{}-t1-joined-changelog", outcome.prefix)).unwrap();
    let rows = changelog.iter().filter(|r| r.key.as_ref().is_some_and(|key| key.starts_with(b"s"))).count();
    let markers = changelog.len() - rows;
    assert!(markers >= PARTITIONS as usize);
    assert!(rows < CHANGES / 10, "{rows} rows of state are in the changelog");
}

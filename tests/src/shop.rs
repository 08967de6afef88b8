//! A shop that takes orders and changes its customers, for as long as it is open; and a naive model that knows all it
//! has written, and what must come of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use millrace_core::plan::Partitioner;
use millrace_kafka_harness::{Kafka, Message, Record, Writer};
use serde_json::{Value, json};

use crate::story::Numbers;

pub const ORDERS: &str = "orders";
pub const CUSTOMERS: &str = "shop.public.customers";
pub const PARTITIONS: i32 = 4;
pub const RESULT: &str = "orders-enriched";
pub const DEAD: &str = "orders-enriched.dead";
const EXAMPLE: &str = include_str!("../../examples/orders-enriched/pipeline.yaml");
const EXAMPLE_SERVERS: &str = "bootstrapServers: kafka.data.svc:9093";
/// Mistakes that are shown.
const MISTAKES_MAX: usize = 10;

const NAMES: [&str; 10] =
    ["Ada", "Grace", "Edsger", "Barbara", "Alan", "Margaret", "Donald", "Frances", "Tony", "Radia"];
const TIERS: [&str; 4] = ["bronze", "silver", "gold", "platinum"];
/// An id that no customer has.
const NOBODY: u64 = 999;
const TICK: Duration = Duration::from_millis(20);
const ORDERS_PER_TICK: usize = 6;
/// Orders come out of order by less than `maxOutOfOrderness` of the pipeline, which is 5 s; or they are late.
const OUT_OF_ORDER_MS: u64 = 2_000;
const LATE_MS: i64 = 60_000;
/// Behind the newest order by so much, nothing waits any more.
const CLOSING_MS: i64 = 6_000;

/// All that was written.
#[derive(Default)]
pub struct Model {
    /// Of each customer: since when, and the tier.
    versions: BTreeMap<u64, Vec<(i64, &'static str)>>,
    /// Rows that must come out.
    pub rows: BTreeMap<u64, Row>,
    pub late: usize,
    /// Orders of no value, which the pipeline filters.
    pub filtered: usize,
    /// Records that nobody can read.
    pub unreadable: usize,
}

/// An order that must come out.
pub struct Row {
    customer: Option<u64>,
    cents: u64,
    time_ms: i64,
}

impl Model {
    pub fn expected(&self, order: u64) -> Option<String> {
        let Row { customer, cents, time_ms } = self.rows.get(&order)?;
        let versions = customer.and_then(|c| self.versions.get(&c)).map_or(&[][..], Vec::as_slice);
        let before = versions.partition_point(|(since, _)| since <= time_ms);
        let version = before.checked_sub(1).map(|i| versions[i].1);
        let (name, tier) = match (customer, version) {
            (Some(customer), Some(tier)) => (json!(NAMES[*customer as usize]), json!(tier)),
            _ => (Value::Null, Value::Null),
        };
        let (euros, cents) = (cents / 100, cents % 100);
        Some(format!(
            r#"{{"order_id":{order},"amount":{euros}.{cents:02},"customer_name":{name},"loyalty_tier":{tier}}}"#
        ))
    }
}

pub struct Shop {
    writer: Writer,
    numbers: Numbers,
    /// The time of what is written: it only ever grows.
    now_ms: i64,
    orders: u64,
    newest_ms: i64,
}

impl Shop {
    /// Writes the first version of every customer.
    pub fn new(kafka: &Kafka, model: &Mutex<Model>) -> anyhow::Result<Self> {
        let now_ms = now_ms()?;
        let mut shop = Self { writer: kafka.writer()?, numbers: Numbers(7), now_ms, orders: 0, newest_ms: 0 };
        let hour_ago = now_ms - 3_600_000;
        let changes = (0..NAMES.len() as u64).map(|c| change(model, c, hour_ago, TIERS[0], "r")).collect::<Vec<_>>();
        shop.writer.produce(CUSTOMERS, changes)?;
        shop.now_ms += 1;
        Ok(shop)
    }

    /// Takes orders until it is told to close; the last ones make sure that no other has to wait.
    pub fn run(mut self, model: &Mutex<Model>, close: &AtomicBool) -> anyhow::Result<()> {
        while !close.load(Ordering::Relaxed) {
            self.tick(model)?;
            thread::park_timeout(TICK);
        }
        let last_ms = self.newest_ms + CLOSING_MS;
        model.lock().expect("nobody panics with the lock").filtered += PARTITIONS as usize;
        let closing = |partition| {
            let value = order(0, None, 0, last_ms);
            Message {
                partition: Some(partition),
                timestamp_ms: Some(last_ms),
                key: None,
                value: Some(value.into_bytes()),
                headers: Vec::new(),
            }
        };
        self.writer.produce(ORDERS, (0..PARTITIONS).map(closing))
    }

    fn tick(&mut self, model: &Mutex<Model>) -> anyhow::Result<()> {
        self.now_ms = now_ms()?.max(self.now_ms + 1);
        // Acknowledged before the first order of its time or later is written: so the answer does not depend on arrival.
        if self.numbers.below(10) < 3 {
            let customer = self.numbers.below(NAMES.len() as u64);
            let tier = TIERS[self.numbers.below(TIERS.len() as u64) as usize];
            self.writer.produce(CUSTOMERS, [change(model, customer, self.now_ms, tier, "u")])?;
        }
        let orders: Vec<Message> = (0..ORDERS_PER_TICK).map(|_| self.next(model)).collect();
        self.writer.produce(ORDERS, orders)
    }

    /// The next record of the orders: mostly a good one.
    fn next(&mut self, model: &Mutex<Model>) -> Message {
        let mut model = model.lock().expect("nobody panics with the lock");
        let kind = self.numbers.below(200);
        if kind == 0 {
            model.unreadable += 1;
            return Message::new("1", "not json").on(partition("1")).at(self.now_ms);
        }
        let late = kind < 4;
        let customer = match kind {
            198.. => None,
            195..198 => Some(NOBODY),
            _ => Some(self.numbers.below(NAMES.len() as u64)),
        };
        let cents = if (190..195).contains(&kind) { 0 } else { 100 + self.numbers.below(99_900) };
        let time_ms = self.now_ms - if late { LATE_MS } else { self.numbers.below(OUT_OF_ORDER_MS) as i64 };
        self.newest_ms = self.newest_ms.max(time_ms);
        self.orders += 1;
        // Counted before it is written, so that a row is never seen before it is expected.
        if cents == 0 {
            model.filtered += 1;
        } else {
            model.late += usize::from(late);
            model.rows.insert(self.orders, Row { customer, cents, time_ms });
        }
        let value = order(self.orders, customer, cents, time_ms);
        let key = customer.map(|c| c.to_string());
        let partition = key.as_deref().map_or(0, partition);
        Message {
            partition: Some(partition),
            timestamp_ms: Some(self.now_ms),
            key: key.map(String::into_bytes),
            value: Some(value.into_bytes()),
            headers: Vec::new(),
        }
    }
}

fn order(id: u64, customer: Option<u64>, cents: u64, time_ms: i64) -> String {
    let (euros, cents) = (cents / 100, cents % 100);
    format!(
        r#"{{"order_id":{id},"customer_id":{},"amount":{euros}.{cents:02},"order_time":{time_ms}}}"#,
        json!(customer)
    )
}

/// A change as Debezium writes it.
fn change(model: &Mutex<Model>, customer: u64, time_ms: i64, tier: &'static str, op: &str) -> Message {
    let mut model = model.lock().expect("nobody panics with the lock");
    model.versions.entry(customer).or_default().push((time_ms, tier));
    let name = NAMES[customer as usize];
    let after = json!({"customer_id": customer, "name": name, "loyalty_tier": tier, "updated_at": time_ms});
    let key = json!({"customer_id": customer}).to_string();
    let value = json!({"before": null, "after": after, "op": op, "ts_ms": time_ms}).to_string();
    let partition = partition(&key);
    Message::new(key, value).on(partition).at(time_ms)
}

fn partition(key: &str) -> i32 {
    Partitioner::Murmur2.partition(key.as_bytes(), PARTITIONS).0
}

/// Milliseconds since 1970.
pub fn now_ms() -> anyhow::Result<i64> {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).context("read the clock")?;
    Ok(passed.as_millis() as i64)
}

/// Makes the topics of the example, and names them.
pub fn make_topics(kafka: &Kafka) -> anyhow::Result<[&'static str; 4]> {
    let topics = [ORDERS, CUSTOMERS, RESULT, DEAD];
    topics.iter().try_for_each(|topic| kafka.create_topic(topic, PARTITIONS, &[]))?;
    Ok(topics)
}

/// The example's document with this Kafka in it.
pub fn pipeline(servers: &str) -> anyhow::Result<String> {
    ensure!(EXAMPLE.contains(EXAMPLE_SERVERS), "the example has no line '{EXAMPLE_SERVERS}' to replace");
    let here = format!("bootstrapServers: {servers}\n    internal: {{replicationFactor: 1}}");
    Ok(EXAMPLE.replace(EXAMPLE_SERVERS, &here))
}

/// Compares every row that a `read_committed` reader sees with the model, and says it in lines.
pub fn check(kafka: &Kafka, model: &Model) -> anyhow::Result<Vec<String>> {
    let (rows, dead) = (kafka.read_committed(RESULT)?, kafka.read_committed(DEAD)?.len());
    let (orders, unreadable) = (model.rows.len(), model.unreadable);
    let mut mistakes = mistakes(&rows, model)?;
    if dead != unreadable {
        mistakes.push(format!("{dead} dead letters, not {unreadable}"));
    }
    ensure!(
        mistakes.is_empty(),
        "{} mistakes:\n  {}",
        mistakes.len(),
        mistakes[..mistakes.len().min(MISTAKES_MAX)].join("\n  ")
    );
    Ok(vec![
        format!("{orders:>6} orders were written, {:>6} rows are in {RESULT}", rows.len()),
        format!("{unreadable:>6} records were no JSON, {dead:>6} are in {DEAD}"),
        format!(
            "No. Each of the {orders} orders is there once, with the customer of its own time; {} of them came late,",
            model.late
        ),
        format!("and {} more of no value were filtered.", model.filtered),
    ])
}

fn mistakes(rows: &[Record], model: &Model) -> anyhow::Result<Vec<String>> {
    let (mut mistakes, mut seen) = (Vec::new(), BTreeSet::new());
    for row in rows {
        let got = String::from_utf8_lossy(row.value.as_deref().unwrap_or_default()).into_owned();
        let order: OrderId = serde_json::from_str(&got).with_context(|| format!("read the row {got}"))?;
        let wanted = model.expected(order.order_id);
        if !seen.insert(order.order_id) {
            mistakes.push(format!("order {} is there twice", order.order_id));
        } else if wanted.as_ref() != Some(&got) {
            mistakes.push(format!("got {got}, wanted {wanted:?}"));
        }
    }
    let lost = model.rows.keys().filter(|order| !seen.contains(order));
    mistakes.extend(lost.map(|order| format!("order {order} is missing")));
    Ok(mistakes)
}

#[derive(serde::Deserialize)]
struct OrderId {
    order_id: u64,
}

//! What is joined: the job that Kafka Streams and Flink were measured with. Orders of eight fields and 142 bytes,
//! left-joined with the latest row of 100,000 customers; 2 % of the orders name a customer who does not exist.

use std::fmt::Write as _;

pub const CUSTOMERS: usize = 100_000;
/// Keys that orders draw from.
const KEYS: usize = CUSTOMERS + CUSTOMERS / 50;
/// Of the first order; one comes each millisecond, where time is not that of a clock.
pub const BEGIN_MS: i64 = 1_796_000_000_000;

/// A fixed permutation in place of randomness: neighbours are far apart.
pub fn scatter(i: usize, n: usize) -> usize {
    (i.wrapping_mul(2_654_435_761) >> 3) % n
}

fn pick<'a>(i: usize, of: &[&'a str]) -> &'a str {
    of[scatter(i, of.len())]
}

pub fn customer_id(customer: usize) -> String {
    format!("c{}", 1_000_000 + customer)
}

/// The customer that an order names.
pub fn customer_of(order: usize) -> usize {
    scatter(order, KEYS)
}

/// Writes an order over what is in `text`.
pub fn order(i: usize, time_ms: i64, text: &mut String) {
    text.clear();
    let cents = 100 + scatter(i + 1, 99_899);
    write!(
        text,
        r#"{{"order_id":{i},"customer_id":"{}","product_id":{},"quantity":{},"price":{}.{:02},"currency":"{}","status":"{}","ts":{time_ms}}}"#,
        customer_id(customer_of(i)),
        scatter(i + 2, 5000),
        1 + scatter(i + 3, 9),
        cents / 100,
        cents % 100,
        pick(i + 4, &["EUR", "USD", "GBP", "JPY"]),
        pick(i + 5, &["NEW", "PAID", "SENT", "DONE"]),
    )
    .expect("memory");
}

pub fn customer(i: usize) -> String {
    format!(
        r#"{{"customer_id":"{}","name":"Customer {i}","tier":"{}","country":"{}","credit":{}.5,"updated_at":{BEGIN_MS}}}"#,
        customer_id(i),
        pick(i, &["gold", "silver", "bronze"]),
        pick(i + 1, &["DE", "FR", "US", "GB", "JP"]),
        scatter(i + 2, 10_000),
    )
}

/// The pipeline, under a name and with a topic of orders of its own.
pub fn pipeline(bootstrap_servers: &str, name: &str) -> String {
    format!(
        r#"
apiVersion: millrace.dev/v1alpha1
kind: Pipeline
metadata: {{name: {name}, namespace: bench}}
spec:
  kafka: {{bootstrapServers: "{bootstrap_servers}", internal: {{replicationFactor: 1}}}}
  sources:
    - name: orders
      kafka: {{topic: {name}-orders}}
      key: {{columns: [customer_id], format: {{type: String}}}}
      format: {{type: Json}}
      columns:
        - {{name: order_id, type: BIGINT}}
        - {{name: customer_id, type: STRING}}
        - {{name: product_id, type: INT}}
        - {{name: quantity, type: INT}}
        - {{name: price, type: DOUBLE}}
        - {{name: currency, type: STRING}}
        - {{name: status, type: STRING}}
        - {{name: ts, type: BIGINT}}
    - name: customers
      kafka: {{topic: customers}}
      key: {{columns: [customer_id], format: {{type: String}}}}
      format: {{type: Json}}
      columns:
        - {{name: customer_id, type: STRING}}
        - {{name: name, type: STRING}}
        - {{name: tier, type: STRING}}
        - {{name: country, type: STRING}}
      table: {{primaryKey: [customer_id]}}
  steps:
    - name: enriched
      from: orders
      tableJoin:
        table: customers
        joinType: Left
        keys: [{{left: customer_id, right: customer_id}}]
        select: [order_id, customer_id, product_id, quantity, price, currency, status, ts, name, tier, country]
  sinks:
    - name: out
      from: enriched
      kafka: {{topic: {name}-enriched}}
      key: {{columns: [customer_id], format: {{type: String}}}}
      format: {{type: Json}}
"#
    )
}

//! The pipeline that most tests run: orders, joined with customers.

/// What differs from test to test. Texts are YAML.
#[derive(Clone, Copy, Debug)]
pub struct Spec<'a> {
    pub name: &'a str,
    pub bootstrap_servers: &'a str,
    /// More fields of `spec.kafka`.
    pub kafka: &'a str,
    /// What the names of the topics begin with.
    pub topics: &'a str,
    /// How orders are partitioned: nothing, or a `key`.
    pub order_key: &'a str,
    /// The type of the orders' customer.
    pub customer: &'a str,
    /// More fields of the orders' event time.
    pub order_time: &'a str,
    /// The format of the customers' keys.
    pub table_key: &'a str,
    /// More fields of the table.
    pub table: &'a str,
    /// The join's kind, and fields of its own.
    pub join: &'a str,
    pub join_type: &'a str,
    pub dead_letter: bool,
    pub commit_interval: &'a str,
    /// Fields of `spec.state`.
    pub state: &'a str,
}

/// Orders that are partitioned as the customers are.
pub const KEYED: &str = "key: {columns: [customer], format: {type: String}}";

impl Default for Spec<'_> {
    fn default() -> Self {
        Self {
            name: "joins",
            bootstrap_servers: "unused:9092",
            kafka: "",
            topics: "",
            order_key: KEYED,
            customer: "BIGINT",
            order_time: ", maxOutOfOrderness: 0s",
            table_key: "String",
            table: ", versions: {retention: 7d}",
            join: "temporalJoin:",
            join_type: "Left",
            dead_letter: false,
            commit_interval: "100ms",
            state: "",
        }
    }
}

impl Spec<'_> {
    pub fn yaml(&self) -> String {
        let Self { name, bootstrap_servers, kafka, topics, order_key, customer, order_time, .. } = self;
        let Self { table_key, table, join, join_type, commit_interval, state, .. } = self;
        let dead_letter =
            if self.dead_letter { format!("deadLetter: {{kafka: {{topic: {topics}dead}}}}") } else { String::new() };
        format!(
            r#"
apiVersion: millrace.dev/v1alpha1
kind: Pipeline
metadata: {{name: {name}, namespace: test}}
spec:
  kafka: {{bootstrapServers: "{bootstrap_servers}"{kafka}}}
  sources:
    - name: orders
      kafka: {{topic: {topics}orders}}
      {order_key}
      format: {{type: Json}}
      columns:
        - {{name: id, type: BIGINT}}
        - {{name: customer, type: {customer}}}
        - {{name: time, type: TIMESTAMP(3)}}
      eventTime: {{column: time{order_time}}}
    - name: customers
      kafka: {{topic: {topics}customers}}
      key: {{columns: [customer], format: {{type: {table_key}}}}}
      format: {{type: Json}}
      columns:
        - {{name: customer, type: BIGINT}}
        - {{name: name, type: STRING}}
        - {{name: since, type: TIMESTAMP(3)}}
      table: {{primaryKey: [customer]{table}}}
      eventTime: {{column: since}}
  steps:
    - name: joined
      from: orders
      {join}
        table: customers
        joinType: {join_type}
        keys: [{{left: customer, right: customer}}]
        select: [id, name]
  sinks:
    - name: out
      from: joined
      kafka: {{topic: {topics}out}}
      format: {{type: Json}}
  delivery: {{commitInterval: {commit_interval}}}
  state: {{{state}}}
  {dead_letter}
"#
        )
    }
}

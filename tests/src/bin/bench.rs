//! `make bench`: records per CPU second of the embedded main job, and of each of its parts alone, so that the limit
//! stands beside the result. Ratios and rates, no judgement: what was measured goes into docs/measurements.md.
//!
//! The job: 142-byte JSON orders, left-joined with the latest row of 100,000 customers, JSON out, exactly once, on the
//! embedded log. CPU time is that of all threads.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use arrow::array::{ArrayRef, Int64Array, StringArray};
use millrace_core::plan::{Plan, StateKind, StateLayout};
use millrace_core::schema::{Column, DataType};
use millrace_runtime::engine::{BATCH_RECORDS, Engine, EngineConfig, WAITING_ROWS_MAX};
use millrace_runtime::format::{JsonEncoder, RecordDecoder};
use millrace_runtime::log::file::{FileLog, FileLogConfig};
use millrace_runtime::metrics::Metrics;
use millrace_runtime::row::{KeyEncoder, RowEncoder};
use millrace_runtime::state::{StateBudget, TaskState};
use millrace_tests::plan;

const ORDERS: usize = 1_000_000;
const CUSTOMERS: usize = 100_000;
/// Decoded, encoded and looked up in batches of this many, as the engine does.
const BATCH: usize = BATCH_RECORDS;

fn main() -> anyhow::Result<()> {
    let orders: Vec<String> = (0..ORDERS).map(order).collect();
    println!("{ORDERS} orders of {} bytes, {CUSTOMERS} customers", orders[0].len());
    let plan = plan(PIPELINE);
    let job = job(&plan, &orders)?;
    println!("\nthe whole job, file to file           {}", rate(ORDERS, job));
    println!("\nparts alone");
    let batches = decode(&plan, &orders)?;
    encode(&plan, &batches);
    lookups()?;
    Ok(())
}

/// CPU seconds of this process, all threads. The kernel counts in ticks of 10 ms.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("Linux has /proc");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|f| f.parse::<u64>().expect("a number")).sum();
    ticks as f64 / 100.0
}

fn measured<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let before = cpu_seconds();
    let result = work();
    (result, (cpu_seconds() - before).max(0.01))
}

fn rate(records: usize, seconds: f64) -> String {
    let nanos = seconds * 1e9 / records as f64;
    format!("{:>10.0} records per CPU second, {nanos:>6.0} ns a record", records as f64 / seconds)
}

/// A fixed permutation in place of randomness: neighbours are far apart.
fn scatter(i: usize, n: usize) -> usize {
    (i.wrapping_mul(2_654_435_761) >> 3) % n
}

fn order(i: usize) -> String {
    let mut text = String::new();
    write!(
        text,
        r#"{{"order_id":{i},"customer_id":{},"amount":{}.{:02},"currency":"EUR","note":"{}","order_time":{}}}"#,
        scatter(i, CUSTOMERS),
        i % 900 + 10,
        i % 100,
        "x".repeat(20),
        1_700_000_000_000_u64 + i as u64
    )
    .expect("memory");
    text
}

/// Only the CPU time of reading orders: the table is read first, by a run without orders.
fn job(plan: &Plan, orders: &[String]) -> anyhow::Result<f64> {
    let dir = tempfile::tempdir()?;
    let topics = dir.path().join("topics");
    fs::create_dir_all(&topics)?;
    let customers: String = (0..CUSTOMERS)
        .map(|c| {
            format!(
                "{{\"key\":\"{c}\",\"value\":{{\"customer_id\":{c},\"name\":\"customer {c}\",\"tier\":\"gold\"}}}}\n"
            )
        })
        .collect();
    fs::write(topics.join("customers.jsonl"), customers)?;
    fs::write(topics.join("orders.jsonl"), "")?;
    run(plan, dir.path()).context("read the table")?;
    let lines: String = orders.iter().map(|o| format!("{{\"value\":{o}}}\n")).collect();
    fs::write(topics.join("orders.jsonl"), lines)?;
    let (result, seconds) = measured(|| run(plan, dir.path()));
    result?;
    let rows = fs::read_to_string(dir.path().join("out/enriched.jsonl"))?.lines().count();
    anyhow::ensure!(rows == ORDERS, "{rows} rows came out");
    Ok(seconds)
}

fn run(plan: &Plan, dir: &Path) -> anyhow::Result<()> {
    let log = FileLog::open(FileLogConfig {
        topics: dir.join("topics"),
        out: Some(dir.join("out")),
        state: dir.join("state"),
        follow: false,
        missing_is_empty: false,
    })?;
    let config = EngineConfig {
        state_dir: dir.join("state"),
        commit_interval_ms: plan.commit_interval_ms,
        batch_records: BATCH,
        waiting_rows_max: WAITING_ROWS_MAX,
        budget: StateBudget::new(256 << 20, 256 << 20),
        isolate: false,
        epoch_timeout_ms: None,
    };
    let mut engine = Engine::start(Arc::new(plan.clone()), log, config, Arc::new(Metrics::new()?))?;
    engine.run(&AtomicBool::new(false))?;
    Ok(())
}

fn decode(plan: &Plan, orders: &[String]) -> anyhow::Result<Vec<arrow::array::RecordBatch>> {
    let source = plan.source("orders").context("the plan has the source")?;
    let mut decoder = RecordDecoder::new(source);
    let (batches, seconds) = measured(|| {
        let batch = |orders: &[String]| {
            for order in orders {
                decoder.push(None, Some(order.as_bytes())).expect("an order");
            }
            decoder.finish().batch
        };
        orders.chunks(BATCH).map(batch).collect::<Vec<_>>()
    });
    println!("decode JSON, {} columns              {}", source.columns.len(), rate(orders.len(), seconds));
    let (sum, seconds) = measured(|| {
        let order = |o: &String| serde_json::from_str::<Order>(o).expect("an order");
        orders.iter().map(order).map(|o| o.order_id + o.customer_id + o.amount as i64).sum::<i64>()
    });
    std::hint::black_box(sum);
    println!("  the same fields by serde_json        {}", rate(orders.len(), seconds));
    Ok(batches)
}

#[derive(serde::Deserialize)]
struct Order {
    order_id: i64,
    customer_id: i64,
    amount: f64,
}

fn encode(plan: &Plan, batches: &[arrow::array::RecordBatch]) {
    let columns = &plan.source("orders").expect("the plan has the source").columns;
    let encoder = JsonEncoder::new(columns);
    let (bytes, seconds) = measured(|| {
        let mut out = Vec::new();
        let mut bytes = 0;
        for batch in batches {
            let bound = encoder.bind(batch);
            for row in 0..batch.num_rows() {
                out.clear();
                bound.encode(row, &mut out);
                bytes += out.len();
            }
        }
        bytes
    });
    std::hint::black_box(bytes);
    println!("encode JSON                            {}", rate(ORDERS, seconds));
}

fn lookups() -> anyhow::Result<()> {
    let column = |name: &str, data_type| Column { name: name.to_owned(), data_type, nullable: true };
    let value = vec![column("customer_id", DataType::Bigint), column("name", DataType::String)];
    let layout = StateLayout {
        operator: "table customers".to_owned(),
        kind: StateKind::Latest,
        stage: "enriched".to_owned(),
        key: vec![value[0].clone()],
        value: value.clone(),
    };
    let dir = tempfile::tempdir()?;
    let state =
        || TaskState::open(dir.path(), &StateBudget::new(256 << 20, 256 << 20), std::slice::from_ref(&layout), &[None]);
    let keys: Vec<Vec<u8>> = keys()?;
    let mut writer = state()?;
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..CUSTOMERS as i64));
    let names: ArrayRef = Arc::new(StringArray::from_iter_values((0..CUSTOMERS).map(|c| format!("customer {c}"))));
    let arrays = [ids, names];
    let encoder = RowEncoder::new(&value);
    let rows = encoder.bind(&arrays)?;
    let mut row = Vec::new();
    for (c, key) in keys.iter().enumerate() {
        row.clear();
        rows.encode(c, &mut row);
        writer.put(0, key, &row, 0);
    }
    writer.apply(b"marker", 1)?;
    writer.flush()?;
    drop(writer);
    let mut state = state()?;
    let mut pass = |name: &str, lookups: usize| -> anyhow::Result<()> {
        let (found, seconds) = measured(|| -> anyhow::Result<usize> {
            let mut found = 0;
            for i in 0..lookups {
                found += usize::from(state.get(0, &keys[scatter(i, CUSTOMERS)], 0)?.is_some());
            }
            Ok(found)
        });
        anyhow::ensure!(found? == lookups, "a key was not found");
        println!("{name} {}", rate(lookups, seconds));
        Ok(())
    };
    pass("look up, cold row cache               ", CUSTOMERS)?;
    pass("look up, hot row cache                ", 4_000_000)
}

fn keys() -> anyhow::Result<Vec<Vec<u8>>> {
    let ids: [ArrayRef; 1] = [Arc::new(Int64Array::from_iter_values(0..CUSTOMERS as i64))];
    let encoder = KeyEncoder::new(&[DataType::Bigint])?;
    let bound = encoder.bind(&ids)?;
    let key = |c| {
        let mut key = Vec::new();
        bound.encode(c, &mut key);
        key
    };
    Ok((0..CUSTOMERS).map(key).collect())
}

const PIPELINE: &str = r#"
apiVersion: millrace.dev/v1alpha1
kind: Pipeline
metadata: {name: bench, namespace: bench}
spec:
  kafka: {bootstrapServers: "unused:9092"}
  sources:
    - name: orders
      kafka: {topic: orders}
      key: {columns: [customer_id], format: {type: String}}
      format: {type: Json}
      columns:
        - {name: order_id, type: BIGINT}
        - {name: customer_id, type: BIGINT}
        - {name: amount, type: "DECIMAL(12,2)"}
    - name: customers
      kafka: {topic: customers}
      key: {columns: [customer_id], format: {type: String}}
      format: {type: Json}
      columns:
        - {name: customer_id, type: BIGINT}
        - {name: name, type: STRING}
        - {name: tier, type: STRING}
      table: {primaryKey: [customer_id]}
  steps:
    - name: enriched
      from: orders
      tableJoin:
        table: customers
        joinType: Left
        keys: [{left: customer_id, right: customer_id}]
        select: [order_id, customer_id, amount, name, tier]
  sinks:
    - name: out
      from: enriched
      kafka: {topic: enriched}
      key: {columns: [order_id], format: {type: String}}
      format: {type: Json}
"#;

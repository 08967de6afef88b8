//! The job on the embedded log, file to file, and the parts that need no log: decode, look up, encode.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use arrow::array::{ArrayRef, RecordBatch, StringArray};
use millrace_core::ids::Timeline;
use millrace_core::plan::{Plan, StateKind, StateLayout};
use millrace_core::schema::{Column, DataType};
use millrace_runtime::engine::{BATCH_RECORDS, Engine, EngineConfig};
use millrace_runtime::format::{JsonEncoder, RecordDecoder};
use millrace_runtime::log::file::{FileLog, FileLogConfig};
use millrace_runtime::metrics::Metrics;
use millrace_runtime::row::{KeyEncoder, RowEncoder};
use millrace_runtime::state::{StateBudget, TaskState};
use millrace_tests::process::{measured, rate};
use millrace_tests::{plan, scratch};

use crate::data::{self, BEGIN_MS, CUSTOMERS, scatter};

const ORDERS: usize = 1_000_000;
/// Decoded, encoded and looked up in batches of this many, as the engine does.
const BATCH: usize = BATCH_RECORDS;
const LOOKUPS: usize = 4_000_000;

pub fn run() -> anyhow::Result<()> {
    let order = |i| {
        let mut text = String::new();
        data::order(i, BEGIN_MS + i as i64, &mut text);
        text
    };
    let orders: Vec<String> = (0..ORDERS).map(order).collect();
    let bytes: usize = orders.iter().map(String::len).sum();
    println!("{ORDERS} orders of {} bytes, {CUSTOMERS} customers", bytes.div_ceil(ORDERS));
    let plan = plan(&data::pipeline("unused:9092", "bench"));
    let seconds = job(&plan, &orders)?;
    println!("\nthe whole job, file to file            {}", rate(ORDERS, seconds));
    println!("\nparts alone");
    let batches = decode(&plan, &orders)?;
    encode(&plan, &batches)?;
    lookups()
}

/// Only the CPU time of reading orders: the table is read first, by a run without orders.
fn job(plan: &Plan, orders: &[String]) -> anyhow::Result<f64> {
    let dir = scratch()?;
    let topics = dir.path().join("topics");
    fs::create_dir_all(&topics)?;
    let customer = |c| format!("{{\"key\":\"{}\",\"value\":{}}}\n", data::customer_id(c), data::customer(c));
    fs::write(topics.join("customers.jsonl"), (0..CUSTOMERS).map(customer).collect::<String>())?;
    fs::write(topics.join("bench-orders.jsonl"), "")?;
    files(plan, dir.path()).context("read the table")?;
    let lines: String = orders.iter().map(|o| format!("{{\"value\":{o}}}\n")).collect();
    fs::write(topics.join("bench-orders.jsonl"), lines)?;
    let ((), seconds) = measured(|| files(plan, dir.path()))?;
    let rows = fs::read_to_string(dir.path().join("out/bench-enriched.jsonl"))?.lines().count();
    anyhow::ensure!(rows == ORDERS, "{rows} rows came out");
    Ok(seconds)
}

fn files(plan: &Plan, dir: &Path) -> anyhow::Result<()> {
    let log = FileLog::open(FileLogConfig {
        topics: dir.join("topics"),
        out: Some(dir.join("out")),
        state: dir.join("state"),
        follow: false,
        missing_is_empty: false,
    })?;
    let config = EngineConfig {
        state_dir: dir.join("state"),
        commit_interval_ms: 100,
        batch_records: BATCH,
        records_per_second: None,
        waiting_rows_max: 1 << 20,
        budget: budget(),
        isolate: false,
        storage: None,
        timeline: Timeline(1),
        epoch_timeout_ms: None,
    };
    let mut engine = Engine::start(Arc::new(plan.clone()), log, config, Arc::new(Metrics::new()?))?;
    engine.run(&AtomicBool::new(false))?;
    Ok(())
}

fn budget() -> StateBudget {
    StateBudget::new(256 << 20, 256 << 20)
}

fn decode(plan: &Plan, orders: &[String]) -> anyhow::Result<Vec<RecordBatch>> {
    let source = plan.source("orders").context("the plan has the source")?;
    let mut decoder = RecordDecoder::new(source);
    let (batches, seconds) = measured(|| {
        let batch = |orders: &[String]| {
            for order in orders {
                decoder.push(None, Some(order.as_bytes()))?;
            }
            Ok(decoder.finish().batch)
        };
        orders.chunks(BATCH).map(batch).collect::<anyhow::Result<Vec<_>>>()
    })?;
    println!("decode JSON, {} columns                 {}", source.columns.len(), rate(ORDERS, seconds));
    let (sum, seconds) = measured(|| {
        let sum = |sum, o: &String| Ok(sum + serde_json::from_str::<Order<'_>>(o)?.sum());
        orders.iter().try_fold(0.0, sum)
    })?;
    std::hint::black_box(sum);
    println!("  the same fields by serde_json        {}", rate(ORDERS, seconds));
    Ok(batches)
}

/// Texts are borrowed, which is as little as a decoder can do.
#[derive(serde::Deserialize)]
struct Order<'a> {
    order_id: i64,
    customer_id: &'a str,
    product_id: i32,
    quantity: i32,
    price: f64,
    currency: &'a str,
    status: &'a str,
    ts: i64,
}

impl Order<'_> {
    fn sum(&self) -> f64 {
        let texts = self.customer_id.len() + self.currency.len() + self.status.len();
        self.price + (self.order_id + self.ts + i64::from(self.product_id + self.quantity)) as f64 + texts as f64
    }
}

fn encode(plan: &Plan, batches: &[RecordBatch]) -> anyhow::Result<()> {
    let columns = &plan.source("orders").context("the plan has the source")?.columns;
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
        Ok(bytes)
    })?;
    std::hint::black_box(bytes);
    println!("encode JSON, {} columns                 {}", columns.len(), rate(ORDERS, seconds));
    Ok(())
}

fn lookups() -> anyhow::Result<()> {
    let column = |name: &str| Column { name: name.to_owned(), data_type: DataType::String, nullable: true };
    let value = vec![column("customer_id"), column("name")];
    let layout = StateLayout {
        operator: "table customers".to_owned(),
        kind: StateKind::Latest,
        stage: "enriched".to_owned(),
        key: vec![value[0].clone()],
        value: value.clone(),
    };
    let dir = scratch()?;
    let state = || TaskState::open(dir.path(), &budget(), std::slice::from_ref(&layout), &[None]);
    let ids: ArrayRef = Arc::new(StringArray::from_iter_values((0..CUSTOMERS).map(data::customer_id)));
    let names: ArrayRef = Arc::new(StringArray::from_iter_values((0..CUSTOMERS).map(|c| format!("Customer {c}"))));
    let keys = keys(&ids)?;
    let mut writer = state()?;
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
        let (found, seconds) = measured(|| {
            let mut found = 0;
            for i in 0..lookups {
                found += usize::from(state.get(0, &keys[scatter(i, CUSTOMERS)], 0)?.is_some());
            }
            Ok(found)
        })?;
        anyhow::ensure!(found == lookups, "a key was not found");
        println!("{name} {}", rate(lookups, seconds));
        Ok(())
    };
    pass("look up, cold row cache               ", CUSTOMERS)?;
    pass("look up, hot row cache                ", LOOKUPS)
}

fn keys(ids: &ArrayRef) -> anyhow::Result<Vec<Vec<u8>>> {
    let encoder = KeyEncoder::new(&[DataType::String])?;
    let bound = encoder.bind(std::slice::from_ref(ids))?;
    let key = |c| {
        let mut key = Vec::new();
        bound.encode(c, &mut key);
        key
    };
    Ok((0..CUSTOMERS).map(key).collect())
}

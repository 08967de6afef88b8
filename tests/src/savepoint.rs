//! What must hold of a pipeline that goes on with a savepoint into a topic of its own: what had come out before the cut, by
//! the totals in the savepoint, and what comes out now are the model's answer together, each row once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, ensure};
use millrace_core::ids::TaskId;
use millrace_kafka_harness::Record;
use millrace_runtime::snapshot::Manifest;
use millrace_runtime::worker::savepoint::Savepoint;
use serde_json::Value;

use crate::story::Story;

/// Rows that had been written to the sink at the cut, by what a savepoint's document and its parts say.
pub fn rows_before(document: &Path) -> anyhow::Result<u64> {
    let read = |path: &Path| std::fs::read(path).with_context(|| format!("read {}", path.display()));
    let savepoint: Savepoint = serde_json::from_slice(&read(document)?)?;
    let folder = document.parent().context("it is in a folder")?;
    let rows = |task: &TaskId| -> anyhow::Result<u64> {
        let part = folder.join(&task.stage).join(format!("{}.json", task.partition));
        let manifest: Manifest = serde_json::from_slice(&read(&part)?)?;
        Ok(manifest.marker.totals.get("sink out").map_or(0, |totals| totals.rows_out))
    };
    savepoint.tasks.iter().map(|part| rows(&part.task)).sum()
}

/// Compares what came out of the pipeline that was restored with the model, and with what the other one had written.
pub fn check(story: &Story, before: u64, new: &[String]) -> anyhow::Result<()> {
    let (expected, old) = (story.expected(), story.rows()?);
    let (all, after): (BTreeSet<&String>, BTreeSet<&String>) = (expected.iter().collect(), new.iter().collect());
    ensure!(after.len() == new.len(), "{} rows came out twice", new.len() - after.len());
    let wrong = after.difference(&all).next();
    ensure!(wrong.is_none(), "a row that is wrong: {wrong:?}");
    let cut: BTreeSet<&String> = &all - &after;
    ensure!(cut.len() as u64 == before, "{} rows did not come out again, and {before} had been written", cut.len());
    let old: BTreeSet<&String> = old.iter().collect();
    let lost = cut.difference(&old).next();
    ensure!(lost.is_none(), "a row that neither has written: {lost:?}");
    // Orders of one partition and customer come out in their order: what lies before the cut is all that comes first.
    let (lines, mut last) = (lines(story)?, BTreeMap::new());
    for row in &cut {
        let (line, id) = line_of(&lines, row)?;
        let last = last.entry(line).or_insert(id);
        *last = id.max(*last);
    }
    for row in &after {
        let (line, id) = line_of(&lines, row)?;
        ensure!(last.get(&line).is_none_or(|before| *before < id), "{row} came out behind a later one of its line");
    }
    Ok(())
}

type Line = (i32, u64);

/// Which partition and customer each order is of.
fn lines(story: &Story) -> anyhow::Result<BTreeMap<u64, Line>> {
    let line = |record: &Record| {
        let order: Value = serde_json::from_slice(record.value.as_deref().unwrap_or_default())?;
        let number = |field: &str| order[field].as_u64().with_context(|| format!("an order has its {field}"));
        Ok((number("id")?, (record.partition, number("customer")?)))
    };
    story.kafka().read_committed(&story.topic("orders"))?.iter().map(line).collect()
}

fn line_of(lines: &BTreeMap<u64, Line>, row: &str) -> anyhow::Result<(Line, u64)> {
    let id = serde_json::from_str::<Value>(row)?["id"].as_u64().context("a row has its order")?;
    Ok((*lines.get(&id).with_context(|| format!("order {id} was not written"))?, id))
}

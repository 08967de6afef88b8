//! How far a worker is with the backfill that it runs: computing, then waiting until the pipeline has taken all, then done.
//! It knows what is committed, and nothing of what is under way.

use std::collections::{BTreeMap, VecDeque};

use millrace_core::ids::{Offset, Partition};
use millrace_core::plan::{InputFrom, OutputTo, Plan, Port, Source, Stage, StartFrom};
use millrace_core::report::{BackfillReport, PartReport};
use millrace_core::totals::Totals;
use millrace_plan::backfill::streams;

use super::watch::Watch;
use crate::clock;
use crate::engine::task::source_step;
use crate::metrics::Metrics;

/// How often is looked whether the pipeline has taken all.
const LOOK_EVERY_MS: u64 = 1_000;
/// For how long at once.
const LOOK_MS: u64 = 100;
/// How often it is said that it has not.
const SAY_MS: u64 = 30_000;
const MICROS_PER_MS: i64 = 1_000;
/// The pace of the last minute is told, by where it stood every ten seconds.
const SAMPLE_MS: u64 = 10_000;
const SAMPLES: usize = 6;

/// A partition of the repairs, and its end when it was first looked at. What comes behind says only that nothing follows.
type Left = (String, Partition, Option<Offset>);

pub struct Progress {
    /// Of all lanes together; `None`: as many as they can.
    pub records_per_second: Option<u64>,
    /// Partitions of the repairs that the pipeline has not taken, as far as is known. `None`: not all is computed yet.
    left: Option<VecDeque<Left>>,
    next_look_ms: u64,
    next_say_ms: u64,
    /// When it stood where: steady milliseconds, and offsets that were read. The oldest is the first.
    samples: VecDeque<(u64, u64)>,
    /// As it was shown last.
    pub report: BackfillReport,
}

impl Progress {
    pub fn new(records_per_second: Option<u64>) -> Self {
        let report = BackfillReport::default();
        Self { records_per_second, left: None, next_look_ms: 0, next_say_ms: 0, samples: VecDeque::new(), report }
    }

    /// Of each of so many lanes.
    pub fn of_each(&self, lanes: u32) -> Option<u64> {
        self.records_per_second.map(|rate| rate.div_ceil(u64::from(lanes)))
    }

    /// All that is in the range is committed.
    pub fn computed(&mut self, plan: &Plan, watch: &Watch) {
        if self.left.is_some() {
            return;
        }
        tracing::info!("all that is in the range was computed");
        let partitions = |topic: &str| watch.topology.topics.get(topic).map_or(0, |(_, partitions)| *partitions);
        let all = plan.repaired().flat_map(|(_, topic)| {
            let topic = topic.to_owned();
            (0..partitions(&topic)).map(move |partition| (topic.clone(), Partition(partition), None))
        });
        self.left = Some(all.collect());
    }

    pub fn taken(&self) -> bool {
        self.left.as_ref().is_some_and(VecDeque::is_empty)
    }

    /// Looks whether the pipeline has taken what was computed: it removes what it has taken. A partition that was seen to be
    /// empty is not looked at again, since nothing more comes from here.
    pub fn look(&mut self, watch: &mut Watch, now_ms: u64) -> anyhow::Result<()> {
        let Some(left) = self.left.as_mut().filter(|left| !left.is_empty()) else { return Ok(()) };
        if now_ms < self.next_look_ms {
            return Ok(());
        }
        while let Some((topic, partition, end)) = left.front_mut() {
            let taken = watch.is_empty(topic, *partition, end)?;
            let over = clock::steady_ms() - now_ms >= LOOK_MS;
            if taken {
                left.pop_front();
            } else {
                self.next_look_ms = now_ms + LOOK_EVERY_MS;
            }
            if over || !taken {
                break;
            }
        }
        if left.is_empty() {
            tracing::info!("the pipeline has taken all that was computed");
        } else if now_ms >= self.next_say_ms {
            tracing::info!("waits until the pipeline has taken what was computed");
            self.next_say_ms = now_ms + SAY_MS;
        }
        Ok(())
    }

    /// Shows how far it is by what the tasks have committed.
    pub fn show(&mut self, plan: &Plan, metrics: &Metrics, committed: BTreeMap<String, Totals>) {
        let computed = self.left.is_some();
        let (mut parts, mut event_time) = (Vec::new(), None);
        for stream in streams(plan) {
            let (nexts, watermark) = metrics.reached(&stream.name);
            event_time = event_time.into_iter().chain(watermark).min();
            parts.extend(parts_of(stream, |part| match nexts.get(&part.partition) {
                _ if computed => part.to,
                Some(next) => next.0.clamp(part.from, part.to),
                None => part.from,
            }));
        }
        let done = parts.iter().map(|part| (part.next - part.from).unsigned_abs()).sum();
        let records = streams(plan).filter_map(|stream| committed.get(&source_step(&stream.name)));
        self.report = BackfillReport {
            offsets_per_second: self.pace(clock::steady_ms(), done),
            records: records.map(|totals| totals.rows_in).sum(),
            parts,
            records_per_second: self.records_per_second,
            computed,
            taken: self.taken(),
            event_time_ms: event_time.map(|micros| micros.div_euclid(MICROS_PER_MS)),
            rows: written(plan, &committed),
            totals: committed,
            cut: false,
            errors: Vec::new(),
        };
    }
}

impl Progress {
    /// Offsets that were read in a second, over the last while.
    fn pace(&mut self, now_ms: u64, done: u64) -> Option<u64> {
        if self.samples.back().is_none_or(|(at, _)| now_ms - at >= SAMPLE_MS) {
            self.samples.push_back((now_ms, done));
            let surplus = self.samples.len().saturating_sub(SAMPLES + 1);
            self.samples.drain(..surplus);
        }
        let (at, then) = *self.samples.front()?;
        let passed_ms = now_ms - at;
        (passed_ms >= SAMPLE_MS).then(|| done.saturating_sub(then) * 1_000 / passed_ms)
    }
}

/// The parts of a stream in which there is something; `next` says where each of them stands.
fn parts_of(stream: &Source, next: impl Fn(&PartReport) -> i64) -> Vec<PartReport> {
    let StartFrom::Offsets(begins) = &stream.start_from else { return Vec::new() };
    let ends: BTreeMap<i32, i64> = stream.until.iter().copied().collect();
    let part = |(partition, from): &(i32, i64)| {
        let to = *ends.get(partition)?;
        let part =
            PartReport { source: stream.name.clone(), partition: Partition(*partition), from: *from, to, next: *from };
        let next = next(&part);
        (*from < to).then_some(PartReport { next, ..part })
    };
    begins.iter().filter_map(part).collect()
}

/// Rows that were written for the sinks that are repaired.
fn written(plan: &Plan, committed: &BTreeMap<String, Totals>) -> u64 {
    plan.repaired().map(|(exchange, _)| rows_to(plan, &exchange.name, committed)).sum()
}

fn rows_to(plan: &Plan, exchange: &str, committed: &BTreeMap<String, Totals>) -> u64 {
    let rows = |step: &str| committed.get(step).map_or(0, |totals| totals.rows_out);
    let of = |stage: &Stage, port: Port| match port {
        Port::Operator(index) => rows(&stage.operators[index].name),
        Port::Input(index) => match &stage.inputs[index].from {
            InputFrom::Source(name) => rows(&source_step(name)),
            // It hands on what somebody else has written.
            InputFrom::Exchange(name) => rows_to(plan, name, committed),
        },
    };
    let outputs = plan.stages.iter().flat_map(|stage| stage.outputs.iter().map(move |output| (stage, output)));
    let there = outputs.filter(|(_, output)| matches!(&output.to, OutputTo::Exchange(name) if name == exchange));
    there.map(|(stage, output)| of(stage, output.from)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(ranges: &[(i32, i64, i64)]) -> Source {
        let text = r#"{"name": "orders", "topic": "orders", "start_from": "Earliest", "key": null, "format": "Json",
            "columns": [], "event_time": null, "table": null, "on_error": "Stop"}"#;
        Source {
            start_from: StartFrom::Offsets(ranges.iter().map(|(partition, from, _)| (*partition, *from)).collect()),
            until: ranges.iter().map(|(partition, _, to)| (*partition, *to)).collect(),
            ..serde_json::from_str(text).expect("a source")
        }
    }

    fn totals(rows_out: u64) -> Totals {
        Totals { rows_in: rows_out, rows_out, ..Totals::default() }
    }

    #[test]
    fn only_parts_that_hold_something_are_told_of() {
        let parts = parts_of(&source(&[(0, 5, 9), (1, 4, 4), (2, 0, 1)]), |part| part.to - 1);
        let told: Vec<_> = parts.iter().map(|part| (part.partition.0, part.from, part.to, part.next)).collect();
        assert_eq!(told, [(0, 5, 9, 8), (2, 0, 1, 0)]);
    }

    #[test]
    fn the_pace_is_that_of_the_last_minute() {
        let mut progress = Progress::new(None);
        assert_eq!(progress.pace(0, 0), None, "nothing is known yet");
        let paces: Vec<_> = (1..=8).map(|n| progress.pace(n * 10_000, n * 500)).collect();
        assert_eq!(paces, [Some(50); 8]);
        let stood: Vec<_> = (9..=15).map(|n| progress.pace(n * 10_000, 4_000)).collect();
        assert_eq!(stood.last(), Some(&Some(0)), "it stands still");
        assert!(progress.samples.len() <= SAMPLES + 1);
    }

    /// Two sinks take rows of one stream: one what a step made of them, one the rows themselves, through another stage.
    #[test]
    fn rows_are_counted_where_they_leave_for_the_pipeline() {
        let exchange = |name: &str, topic: Option<&str>| {
            serde_json::json!({"name": name, "stage": "x", "source": "orders", "partitions_like": null, "reason": "",
                "key": {"columns": [], "format": "Internal", "partitioner": "Murmur2"}, "columns": [], "table": false,
                "topic": topic})
        };
        let to =
            |from: serde_json::Value, exchange: &str| serde_json::json!({"from": from, "to": {"Exchange": exchange}});
        let input = |from: serde_json::Value| serde_json::json!({"from": from, "table": false});
        let operator = serde_json::json!({"name": "large", "input": {"Input": 0}, "columns": [],
            "kind": {"Project": {"filter": null, "columns": []}}});
        let plan = serde_json::json!({
            "format": 1, "prefix": "shop.orders", "sources": [], "sinks": [], "dead_letter": null,
            "state_fingerprint": 0, "state": [],
            "stages": [
                {"name": "orders", "inputs": [input(serde_json::json!({"Source": "orders"}))], "operators": [operator],
                    "outputs": [to(serde_json::json!({"Operator": 0}), "a"), to(serde_json::json!({"Input": 0}), "moved")]},
                {"name": "by-id", "inputs": [input(serde_json::json!({"Exchange": "moved"}))], "operators": [],
                    "outputs": [to(serde_json::json!({"Input": 0}), "b"), to(serde_json::json!({"Input": 0}), "c")]},
            ],
            "exchanges": [exchange("a", Some("topic-a")), exchange("b", Some("topic-b")), exchange("c", Some("topic-c")),
                exchange("moved", None)],
        });
        let plan: Plan = serde_json::from_value(plan).expect("a plan");
        let committed = BTreeMap::from([("source orders".to_owned(), totals(10)), ("large".to_owned(), totals(3))]);
        assert_eq!(written(&plan, &committed), 3 + 10 + 10);
        assert_eq!(written(&plan, &BTreeMap::new()), 0);
    }
}

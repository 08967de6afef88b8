//! What Prometheus is told of Backfills: what their statuses say.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use millrace_crds::backfill::{BackfillCounts, BackfillStatus};
use millrace_operator_core::backfill::asked;
use millrace_operator_core::decision::{Action, Decision};
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Metric, MetricFamily, MetricType};
use serde_json::{Value, json};

use crate::cache::Key;
use crate::slos::{descriptions, families, gauge};

/// Of each Pipeline, by the Backfill's name. All of it may be lost: the statuses have it.
#[derive(Default)]
pub struct Backfills(Mutex<BTreeMap<Key, BTreeMap<String, BackfillStatus>>>);

impl Backfills {
    /// Takes up the statuses that are there, and those that are about to be written.
    pub fn know(&self, pipeline: &Key, objects: &[Value], decision: &Decision) {
        let mut statuses: BTreeMap<String, BackfillStatus> =
            asked(objects).into_iter().map(|asked| (asked.name, asked.status)).collect();
        for action in &decision.actions {
            if let Action::BackfillStatus { name, status, .. } = action {
                statuses.insert(name.clone(), (**status).clone());
            }
        }
        match statuses.is_empty() {
            true => drop(self.lock().remove(pipeline)),
            false => drop(self.lock().insert(pipeline.clone(), statuses)),
        }
    }

    pub fn forget(&self, pipeline: &Key) {
        self.lock().remove(pipeline);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, BTreeMap<String, BackfillStatus>>> {
        self.0.lock().expect("nobody panics while it holds the lock")
    }
}

/// The series of [`Backfills`].
pub struct Series {
    pub backfills: Arc<Backfills>,
    about: Vec<Desc>,
}

const FAMILIES: [(&str, &str, MetricType); 5] = [
    ("millrace_backfill_progress_ratio", "Share of the range that was read.", MetricType::GAUGE),
    ("millrace_backfill_records", "Records of streams that were read.", MetricType::GAUGE),
    ("millrace_backfill_rows", "Rows by what became of them.", MetricType::GAUGE),
    (
        "millrace_backfill_allowed_records_per_second",
        "How many records it may read in a second now; absent: as many as it can.",
        MetricType::GAUGE,
    ),
    ("millrace_backfill_phase", "1 for the phase that it is in.", MetricType::GAUGE),
];

impl Series {
    pub fn new(backfills: Arc<Backfills>) -> Result<Self, prometheus::Error> {
        Ok(Self { backfills, about: descriptions(&FAMILIES)? })
    }
}

impl Collector for Series {
    fn desc(&self) -> Vec<&Desc> {
        self.about.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut series: [Vec<Metric>; FAMILIES.len()] = Default::default();
        let [progress, records, rows, allowed, phase] = &mut series;
        for (key, statuses) in self.backfills.lock().iter() {
            for (name, status) in statuses {
                let of = [("namespace", key.namespace.as_str()), ("pipeline", key.name.as_str()), ("backfill", name)];
                progress.extend(status.progress.as_ref().and_then(|text| ratio(text)).map(|share| gauge(&of, share)));
                if let Some(counts) = status.counts {
                    let BackfillCounts { records: read, computed, applied, guarded, dead_lettered, late } = counts;
                    records.push(gauge(&of, read as f64));
                    let outcomes = [
                        ("computed", computed),
                        ("applied", applied),
                        ("guarded", guarded),
                        ("dead_lettered", dead_lettered),
                        ("late", late),
                    ];
                    rows.extend(
                        outcomes
                            .map(|(outcome, count)| gauge(&[of[0], of[1], of[2], ("outcome", outcome)], count as f64)),
                    );
                }
                let running = status.phase.filter(|phase| !phase.has_ended());
                let rate = status.records_per_second.filter(|_| running.is_some());
                allowed.extend(rate.map(|rate| gauge(&of, rate as f64)));
                if let Some(word) = status.phase.map(|phase| json!(phase)) {
                    let word = word.as_str().unwrap_or_default();
                    phase.push(gauge(&[of[0], of[1], of[2], ("phase", word)], 1.0));
                }
            }
        }
        families(FAMILIES.into_iter().zip(series))
    }
}

/// Of a text like 42%.
fn ratio(percent: &str) -> Option<f64> {
    Some(percent.strip_suffix('%')?.parse::<f64>().ok()? / 100.0)
}

#[cfg(test)]
mod tests {
    use prometheus::{Registry, TextEncoder};

    use super::*;

    #[test]
    fn series_say_what_the_statuses_say_and_go_with_their_backfill() {
        let (backfills, registry) = (Arc::new(Backfills::default()), Registry::new());
        registry.register(Box::new(Series::new(Arc::clone(&backfills)).expect("names"))).expect("it is alone");
        let text = || TextEncoder::new().encode_to_string(&registry.gather()).expect("text");
        let key = Key { namespace: "shop".to_owned(), name: "p".to_owned() };
        let object = json!({
            "apiVersion": millrace_crds::pipeline::API_VERSION,
            "kind": millrace_crds::backfill::KIND,
            "metadata": {"name": "again", "namespace": "shop"},
            "spec": {
                "pipelineRef": {"name": "p"},
                "mode": "Repair",
                "range": {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"},
            },
            "status": {"phase": "Paused", "progress": "42%", "recordsPerSecond": 0, "counts": {"applied": 7}},
        });
        backfills.know(&key, &[object], &Decision::default());
        let labels = r#"namespace="shop",pipeline="p",backfill="again""#;
        for line in [
            format!("millrace_backfill_progress_ratio{{{labels}}} 0.42"),
            format!("millrace_backfill_rows{{{labels},outcome=\"applied\"}} 7"),
            format!("millrace_backfill_allowed_records_per_second{{{labels}}} 0"),
            format!("millrace_backfill_phase{{{labels},phase=\"Paused\"}} 1"),
        ] {
            assert!(text().contains(&line), "{line} in {}", text());
        }
        backfills.know(&key, &[], &Decision::default());
        assert_eq!(text(), "");
    }
}

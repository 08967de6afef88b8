//! The books of all Pipelines, and what Prometheus is told of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use millrace_operator_core::facts::Facts;
use millrace_operator_core::slo::books::{Answer, Books, Said, Seen};
use millrace_operator_core::slo::{self, Intent, index};
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

use crate::cache::Key;
use crate::clock;

/// All of it may be lost: books go on from what was written down.
#[derive(Default)]
pub struct Slos {
    pipelines: Mutex<BTreeMap<Key, Entry>>,
    /// The last slice in which a former leader led.
    former: OnceLock<i64>,
}

#[derive(Default)]
struct Entry {
    intent: Option<Intent>,
    /// Workers that Kubernetes holds for ready, and those of them that did not answer when they were asked last.
    ready: usize,
    unreachable: usize,
    books: Option<Books>,
}

impl Slos {
    /// A former leader led until then, milliseconds since 1970: what came before is in its counters.
    pub fn led_until(&self, ms: i64) {
        // It had not been told yet of the slice that it was in.
        self.former.get_or_init(|| index(ms) - 1);
    }

    /// Takes up what a Pipeline asks for, and says from which slice on each of its workers is to tell; `None` if it has no
    /// SLOs. `overdue_ms` as in [`Books::open`].
    pub fn expect(&self, key: &Key, facts: &Facts<'_>, overdue_ms: i64) -> Option<BTreeMap<u32, i64>> {
        let wanted = slo::wanted(facts);
        let mut pipelines = self.lock();
        let entry = pipelines.entry(key.clone()).or_default();
        entry.intent = wanted.as_ref().map(|wanted| wanted.expected.intent);
        let Some(wanted) = wanted.filter(|wanted| !wanted.slos.is_empty()) else {
            entry.books = None;
            return None;
        };
        let now_ms = clock::now().ms();
        let open = || Books::open(slo::saved(facts), &wanted, self.former.get().copied(), overdue_ms, now_ms);
        let books = entry.books.get_or_insert_with(open);
        let seen = |pod: &millrace_operator_core::facts::Pod| Seen {
            worker: pod.ordinal,
            uid: pod.uid.clone(),
            ready: pod.ready,
        };
        let pods: Vec<Seen> = facts.pods.iter().map(seen).collect();
        books.expect(&wanted, &pods, now_ms);
        Some(pods.iter().map(|pod| (pod.worker, books.next(pod.worker))).collect())
    }

    /// Takes up what workers have answered, and how many of those that Kubernetes holds for ready did not.
    pub fn hear(&self, key: &Key, answers: &BTreeMap<u32, Answer>, ready: usize, unreachable: usize) {
        let mut pipelines = self.lock();
        if let Some(entry) = pipelines.get_mut(key) {
            (entry.ready, entry.unreachable) = (ready, unreachable);
        }
        let (isolated, now_ms) = (isolated(&pipelines), clock::now().ms());
        if let Some(books) = pipelines.get_mut(key).and_then(|entry| entry.books.as_mut()) {
            answers.iter().for_each(|(worker, answer)| books.hear(*worker, answer, isolated, now_ms));
        }
    }

    /// What is true by now, and how many slices more were not observed in time. `None`: it has no SLOs.
    pub fn judge(&self, key: &Key) -> Option<(Said, u64)> {
        let mut pipelines = self.lock();
        let (isolated, now_ms) = (isolated(&pipelines), clock::now().ms());
        let books = pipelines.get_mut(key)?.books.as_mut()?;
        let unobserved = books.judge(isolated, now_ms);
        Some((books.said(now_ms), unobserved))
    }

    /// The books were written down.
    pub fn written(&self, key: &Key) {
        if let Some(books) = self.lock().get_mut(key).and_then(|entry| entry.books.as_mut()) {
            books.written(clock::now().ms());
        }
    }

    /// Whether slices of a Pipeline count now, although it may have no pods.
    pub fn counts(&self, key: &Key) -> bool {
        self.lock().get(key).and_then(|entry| entry.books.as_ref()).is_some_and(|books| books.intent().counts())
    }

    pub fn forget(&self, key: &Key) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Entry>> {
        self.pipelines.lock().expect("nobody panics while it holds the lock")
    }
}

/// Whether more than half of all workers that Kubernetes reaches do not answer: then it is this process.
fn isolated(pipelines: &BTreeMap<Key, Entry>) -> bool {
    let (ready, unreachable) = pipelines
        .values()
        .fold((0, 0), |(ready, unreachable), entry| (ready + entry.ready, unreachable + entry.unreachable));
    unreachable * 2 > ready
}

/// The series of [`Slos`]. They are made when they are asked for, so that those of a Pipeline go with it.
pub struct Series {
    pub slos: Arc<Slos>,
    about: Vec<Desc>,
}

/// Name, help, and whether it is a counter.
const FAMILIES: [(&str, &str, MetricType); 6] = [
    ("millrace_pipeline_running", "1 where it shall run, 0 where it is suspended or drained.", MetricType::GAUGE),
    ("millrace_slo_observations_total", "Slices of time, or records, that were counted.", MetricType::COUNTER),
    ("millrace_slo_bad_observations_total", "Those of them that were bad.", MetricType::COUNTER),
    ("millrace_slo_objective_ratio", "Share that must be good.", MetricType::GAUGE),
    (
        "millrace_slo_error_budget_remaining_ratio",
        "Share of the error budget that is left; below 0 it is overspent.",
        MetricType::GAUGE,
    ),
    ("millrace_slo_worst_seconds", "Who is furthest behind, and how far.", MetricType::GAUGE),
];

impl Series {
    pub fn new(slos: Arc<Slos>) -> Result<Self, prometheus::Error> {
        Ok(Self { slos, about: descriptions(&FAMILIES)? })
    }
}

impl Collector for Series {
    fn desc(&self) -> Vec<&Desc> {
        self.about.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let now = index(clock::now().ms());
        let mut series: [Vec<Metric>; FAMILIES.len()] = Default::default();
        let [running, observations, bad, objective, budget, worst] = &mut series;
        for (key, entry) in self.slos.lock().iter() {
            let of = [("namespace", key.namespace.as_str()), ("pipeline", key.name.as_str())];
            if let Some(intent) = entry.intent {
                running.push(gauge(&of, f64::from(u8::from(intent.counts()))));
            }
            for book in entry.books.iter().flat_map(Books::slos) {
                let of = [of[0], of[1], ("slo", book.slo.name.as_str())];
                observations.push(counter(&of, book.observations));
                bad.push(counter(&of, book.bad));
                objective.push(gauge(&of, book.slo.ratio()));
                budget.push(gauge(&of, book.budget_left(now)));
                if let Some(found) = &book.worst {
                    let partition = found.partition.to_string();
                    let of = [of[0], of[1], of[2], ("source", &found.source), ("partition", &partition)];
                    worst.push(gauge(&of, found.ms as f64 / 1_000.0));
                }
            }
        }
        families(FAMILIES.into_iter().zip(series))
    }
}

/// What a collector says of its families before it has any series.
pub fn descriptions(families: &[(&str, &str, MetricType)]) -> Result<Vec<Desc>, prometheus::Error> {
    let about = |(name, help, _): &(&str, &str, _)| {
        Desc::new((*name).to_owned(), (*help).to_owned(), Vec::new(), HashMap::new())
    };
    families.iter().map(about).collect()
}

/// Name, help and type of each, with its series.
pub fn families<'a>(all: impl Iterator<Item = ((&'a str, &'a str, MetricType), Vec<Metric>)>) -> Vec<MetricFamily> {
    let family = |((name, help, kind), metrics): ((&str, &str, MetricType), Vec<Metric>)| {
        let mut family = MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(help.to_owned());
        family.set_field_type(kind);
        family.set_metric(metrics);
        family
    };
    // The text format has no family without series.
    all.filter(|(_, metrics)| !metrics.is_empty()).map(family).collect()
}

fn labelled(labels: &[(&str, &str)]) -> Metric {
    let pair = |(name, value): &(&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    let mut metric = Metric::default();
    metric.set_label(labels.iter().map(pair).collect());
    metric
}

pub fn gauge(labels: &[(&str, &str)], value: f64) -> Metric {
    let mut gauge = Gauge::default();
    gauge.set_value(value);
    let mut metric = labelled(labels);
    metric.set_gauge(gauge);
    metric
}

fn counter(labels: &[(&str, &str)], value: u64) -> Metric {
    let mut counter = Counter::default();
    counter.set_value(value as f64);
    let mut metric = labelled(labels);
    metric.set_counter(counter);
    metric
}

#[cfg(test)]
mod tests {
    use millrace_operator_core::observed::Observed;
    use prometheus::{Registry, TextEncoder};
    use serde_json::{Value, json};

    use super::*;

    fn pipeline(slos: Value, desired_state: &str) -> Observed {
        let format = json!({"type": "Json"});
        let columns = json!([{"name": "amount", "type": "BIGINT"}]);
        let pipeline = json!({
            "apiVersion": millrace_crds::pipeline::API_VERSION,
            "kind": millrace_crds::pipeline::KIND,
            "metadata": {"name": "p", "namespace": "shop", "uid": "uid", "generation": 1},
            "spec": {
                "kafka": {"bootstrapServers": "kafka:9093"},
                "sources": [{"name": "a", "kafka": {"topic": "a"}, "format": format, "columns": columns}],
                "steps": [{"name": "s", "from": "a", "project": {"where": "amount > 0"}}],
                "sinks": [{"name": "o", "from": "s", "kafka": {"topic": "o"}, "format": format}],
                "slos": slos,
                "desiredState": desired_state,
            },
        });
        Observed { pipeline, ..Observed::default() }
    }

    fn key(name: &str) -> Key {
        Key { namespace: "shop".to_owned(), name: name.to_owned() }
    }

    #[test]
    fn series_begin_at_zero_and_go_with_their_slo_and_their_pipeline() {
        let (slos, registry) = (Arc::new(Slos::default()), Registry::new());
        registry.register(Box::new(Series::new(Arc::clone(&slos)).expect("names"))).expect("it is alone");
        let text = || TextEncoder::new().encode_to_string(&registry.gather()).expect("text");
        assert_eq!(text(), "");
        let slo = json!([{"name": "behind", "lag": {"threshold": "1m"}, "objective": "99.5"}]);
        let observed = pipeline(slo, "Running");
        assert!(slos.expect(&key("p"), &Facts::of(&observed), 0).is_some());
        let labels = r#"{namespace="shop",pipeline="p",slo="behind"}"#;
        let expected = [
            r#"millrace_pipeline_running{namespace="shop",pipeline="p"} 1"#.to_owned(),
            format!("millrace_slo_bad_observations_total{labels} 0"),
            format!("millrace_slo_error_budget_remaining_ratio{labels} 1"),
            format!("millrace_slo_objective_ratio{labels} 0.995"),
            format!("millrace_slo_observations_total{labels} 0"),
        ];
        let shown = text();
        let lines: Vec<&str> = shown.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(lines, expected);
        let observed = pipeline(json!([]), "Suspended");
        assert!(slos.expect(&key("p"), &Facts::of(&observed), 0).is_none());
        assert!(text().ends_with("millrace_pipeline_running{namespace=\"shop\",pipeline=\"p\"} 0\n"), "{}", text());
        slos.forget(&key("p"));
        assert_eq!(text(), "");
    }

    #[test]
    fn this_process_is_isolated_when_most_workers_of_all_pipelines_are_out_of_its_reach() {
        let slos = Slos::default();
        let observed = pipeline(json!([]), "Running");
        for name in ["a", "b"] {
            slos.expect(&key(name), &Facts::of(&observed), 0);
            slos.hear(&key(name), &BTreeMap::new(), 2, 0);
        }
        let after = |name, unreachable| {
            slos.hear(&key(name), &BTreeMap::new(), 2, unreachable);
            isolated(&slos.lock())
        };
        assert_eq!([after("a", 2), after("b", 1), after("a", 1)], [false, true, false]);
    }
}

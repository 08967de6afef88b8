//! What is wrong with an SLO whose shape is right.

use serde_json::Value;

use crate::duration::Duration;
use crate::mistake::Mistake;
use crate::path;
use crate::pipeline::burn::{self, Observation};
use crate::pipeline::{FreshnessSince, Slo};
use crate::rules::COMMIT_INTERVAL_MAX;

/// Looks at each SLO of a document with defaults, but for those that have a mistake already.
pub(super) fn check(document: &Value, mistakes: &mut Vec<Mistake>) {
    let interval = document["spec"]["delivery"]["commitInterval"].as_str().and_then(|text| text.parse().ok());
    // One that is out of range has a mistake of its own.
    let interval = interval.filter(|interval| *interval <= COMMIT_INTERVAL_MAX);
    let streams =
        document["spec"]["sources"].as_array().into_iter().flatten().filter(|source| source["table"].is_null());
    // Without a stream there is another mistake.
    let mut streams = streams.peekable();
    let has_event_time = streams.peek().is_none() || streams.any(|stream| stream["eventTime"].is_object());
    let mut found = Vec::new();
    path::each_object(document, "spec.slos[]", &mut |path, object| {
        let known = mistakes.iter().any(|mistake| mistake.path.starts_with(path));
        let slo = serde_json::from_value::<Slo>(Value::Object(object.clone()));
        if let (false, Ok(slo)) = (known, slo) {
            found.extend(mistakes_of(path, &slo, interval.unwrap_or_default(), has_event_time));
        }
    });
    mistakes.extend(found);
}

/// All that is wrong with the SLO at `path` of a pipeline that commits so often, and that may have a stream with event time.
fn mistakes_of(path: &str, slo: &Slo, interval: Duration, has_event_time: bool) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    let observed = if slo.counts_records() { Observation::Record } else { Observation::Slice };
    for (message, hint) in burn::mistakes(&slo.objective, slo.window, observed) {
        let value = Value::String(slo.objective.clone());
        mistakes.push(Mistake::new(format!("{path}.objective"), Some(&value), message, hint));
    }
    let since_event_time = slo.freshness.as_ref().is_some_and(|freshness| freshness.since == FreshnessSince::EventTime);
    for field in [("freshness.since", since_event_time), ("watermarkLag", slo.watermark_lag.is_some())] {
        if let (field, true) = field
            && !has_event_time
        {
            let hint = "give the stream an eventTime, or watch the lag";
            mistakes.push(Mistake::new(format!("{path}.{field}"), None, "no stream has an event time", hint));
        }
    }
    if let Some(freshness) = slo.freshness.as_ref().filter(|freshness| freshness.threshold <= interval) {
        let at = format!("{path}.freshness.threshold");
        let message = format!("can not be met: results become visible every {interval}");
        let hint = "write a longer one, or make spec.delivery.commitInterval shorter";
        mistakes.push(Mistake::new(at, Some(&Value::String(freshness.threshold.to_string())), message, hint));
    }
    mistakes
}

//! What the operator does about a lag, and what it leaves to others.

use millrace_core::ids::Partition;
use millrace_core::report::SourceLag;
use millrace_operator_core::autoscale::{Terms, sample};

use super::*;

/// Two workers with two tasks each, which have lagged for half a minute: 600 rows a second come in for each task, and
/// 100 are done.
fn lagging(mode: &str) -> Observed {
    let mut spec = spec();
    spec["autoscaling"] = json!({"mode": mode, "maxReplicas": 8, "targetLag": "30s"});
    let mut observed = running_as(&spec, compiled("old", StateFit::Kept), 4);
    for second in [0, 10, 20, 30] {
        let lag = |partition: i32| SourceLag {
            name: "a".to_owned(),
            partition: Partition(partition),
            stage: "s".to_owned(),
            position: Some(100 * second),
            lag_records: Some(30_000 + 500 * second),
            lag_ms: Some(60_000 + second * 1_000),
        };
        let read = |worker: u32| vec![lag(worker as i32), lag(worker as i32 + 2)];
        observed.reports.iter_mut().for_each(|(worker, report)| report.sources = read(*worker));
        note(&mut observed, NOW.ms() + (second - 30) * 1_000);
    }
    observed
}

/// The workers are asked.
fn note(observed: &mut Observed, at_ms: i64) {
    let mut history = std::mem::take(&mut observed.history);
    let facts = Facts::of(observed);
    let terms = Terms::of(&facts, &settings()).expect("autoscaling is on");
    history.note(sample(&facts, &observed.reports, at_ms), &terms);
    observed.history = history;
}

/// Replicas that are written through `/scale`, over which version of the Pipeline.
fn scaled(decision: &Decision) -> Vec<(u32, &str)> {
    let scaled = decision.actions.iter().filter_map(|action| match action {
        Action::Scale { replicas, over } => Some((*replicas, over.as_str())),
        _ => None,
    });
    scaled.collect()
}

fn autoscaling(observed: &Observed) -> &Value {
    &observed.pipeline["status"]["autoscaling"]
}

/// One decision, which is carried out; what it scales, in words, and the reasons of its events.
fn look(observed: &mut Observed, now: Timestamp) -> String {
    let decision = decide(observed, &settings(), now);
    carry_out(observed, &decision);
    let scaled = scaled(&decision).into_iter().map(|(replicas, over)| format!("to {replicas} over {over}"));
    let events = decision.events.iter().map(|event| event.reason.clone());
    scaled.chain(events).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_scaling_is_written_down_and_then_done_once() {
    let mut observed = lagging("Act");
    assert_eq!(look(&mut observed, NOW), "");
    let status = autoscaling(&observed);
    assert_eq!((&status["desired"], &status["reason"]), (&json!(4), &json!("LagAboveTarget")), "{status:#}");
    assert_eq!((&status["lastScaled"]["from"], &status["lastScaled"]["to"]), (&json!(2), &json!(4)));
    assert!(
        status["message"].as_str().is_some_and(|said| said.contains("a busy worker does 200 rows/s")),
        "{status:#}"
    );
    // Whoever leads by now.
    observed.history = Default::default();
    observed.pipeline["metadata"]["resourceVersion"] = json!("7");
    assert_eq!(look(&mut observed, NOW), "to 4 over 7 ScaledUp");
    // The API server has taken it.
    observed.pipeline["spec"]["replicas"] = json!(4);
    observed.pipeline["metadata"]["generation"] = json!(2);
    assert_eq!(look(&mut observed, NOW), "");
    assert_eq!(autoscaling(&observed)["lastScaled"]["to"], 4);
}

#[test]
fn a_scaling_that_somebody_edited_the_spec_after_is_not_done() {
    let mut observed = lagging("Act");
    look(&mut observed, NOW);
    observed.pipeline["metadata"]["generation"] = json!(2);
    assert_eq!(look(&mut observed, NOW), "");
    let mut observed = lagging("Act");
    look(&mut observed, NOW);
    assert_eq!(look(&mut observed, Timestamp::from_ms(NOW.ms() + 60_000)), "", "the load is another one by now");
}

#[test]
fn who_only_observes_says_what_it_would_do() {
    let mut observed = lagging("Observe");
    for _ in 0..2 {
        assert_eq!(look(&mut observed, NOW), "");
    }
    let status = autoscaling(&observed);
    assert_eq!((&status["desired"], &status["reason"]), (&json!(4), &json!("LagAboveTarget")));
    assert!(status["lastScaled"].is_null());
}

#[test]
fn where_it_is_off_scale_is_anybodys() {
    let mut observed = lagging("Act");
    look(&mut observed, NOW);
    observed.pipeline["spec"]["autoscaling"]["mode"] = json!("Disabled");
    assert_eq!(look(&mut observed, NOW), "");
    assert!(autoscaling(&observed).is_null());
}

#[test]
fn it_holds_while_it_does_not_know_or_something_is_on_its_way() {
    let reason = |change: fn(&mut Observed)| {
        let mut observed = lagging("Act");
        change(&mut observed);
        note(&mut observed, NOW.ms() + 10_000);
        look(&mut observed, Timestamp::from_ms(NOW.ms() + 10_000));
        let status = autoscaling(&observed).clone();
        assert!(status["lastScaled"].is_null(), "{status:#}");
        status["reason"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(reason(|it| it.pipeline["spec"]["replicas"] = json!(0)), "Stopped");
    assert_eq!(reason(|it| it.pipeline["spec"]["desiredState"] = json!("Suspended")), "Stopped");
    assert_eq!(reason(|it| drop(it.reports.remove(&1))), "LagUnknown");
    assert_eq!(reason(|it| it.reports.get_mut(&1).expect("a report").sources[0].lag_ms = None), "LagUnknown");
    // An older release of the runtime does not say where it reads.
    assert_eq!(reason(|it| it.reports.get_mut(&1).expect("a report").sources[0].position = None), "LagUnknown");
    assert_eq!(reason(|it| set_ready(it, 1, false)), "NotReady");
    assert_eq!(reason(|it| it.reports.get_mut(&1).expect("a report").tasks[0].state = TaskState::Waiting), "Rescaling");
}

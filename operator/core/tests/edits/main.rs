//! What an edit does to a pipeline that runs: `api.md`'s classes, as a table.

use millrace_core::assignment::{Assignment, Placement};
use millrace_core::ids::{Generation, Timeline};
use millrace_core::report::{
    Compiled, Mistake, PreflightReport, StateFit, TaskReport, TaskState, WarmReport, WorkerReport,
};
use millrace_crds::check;
use millrace_crds::timestamp::Timestamp;
use millrace_operator_core::assign::{Room, place};
use millrace_operator_core::decide::decide;
use millrace_operator_core::decision::{Action, Decision};
use millrace_operator_core::facts::{Applied, Facts, Placed};
use millrace_operator_core::names::{Names, RENEW_AFTER};
use millrace_operator_core::observed::{Admission, Compilation, Observed};
use millrace_operator_core::questions;
use millrace_operator_core::render::{Run, Source};
use millrace_operator_core::settings::Settings;
use serde_json::{Value, json};

mod autoscaling;
mod backfills;
mod rules;
mod savepoints;
mod slos;

const NOW: Timestamp = Timestamp::from_ms(1_767_225_600_000);

fn names() -> Names {
    Names { namespace: "shop".to_owned(), pipeline: "p".to_owned(), uid: "uid".to_owned() }
}

fn settings() -> Settings {
    serde_json::from_value(json!({"image": {"repository": "millrace"}, "version": "1"})).expect("settings")
}

fn spec() -> Value {
    let format = json!({"type": "Json"});
    let columns = json!([{"name": "amount", "type": "BIGINT"}]);
    json!({
        "replicas": 2,
        "kafka": {"bootstrapServers": "kafka:9093"},
        "sources": [{"name": "a", "kafka": {"topic": "a"}, "format": format, "columns": columns}],
        "steps": [{"name": "s", "from": "a", "project": {"where": "amount > 0"}}],
        "sinks": [{"name": "o", "from": "s", "kafka": {"topic": "o"}, "format": format}],
    })
}

fn pipeline(spec: &Value, generation: i64) -> Value {
    json!({
        "apiVersion": millrace_crds::pipeline::API_VERSION,
        "kind": millrace_crds::pipeline::KIND,
        "metadata": {"name": "p", "namespace": "shop", "uid": "uid", "generation": generation, "resourceVersion": "1"},
        "spec": spec,
    })
}

fn compiled(fingerprint: &str, fit: StateFit) -> Compiled {
    let (plan, state) = (Some(json!({"plan": fingerprint})), format!("state of {fingerprint}"));
    Compiled { plan, fingerprint: fingerprint.to_owned(), state_fingerprint: state, fit, ..Compiled::default() }
}

/// What a worker says that runs its tasks, if it has any.
fn report(worker: u32, tasks: i32) -> WorkerReport {
    let task = |partition| {
        let (stage, state) = ("s".to_owned(), TaskState::Running);
        TaskReport { stage, partition: millrace_core::ids::Partition(partition), state }
    };
    WorkerReport {
        worker,
        generation: Generation(1),
        highest_generation: Generation(1),
        plan: 1,
        plan_fingerprint: "old".to_owned(),
        stages: [("s".to_owned(), tasks)].into(),
        tasks: (0..tasks).filter(|partition| *partition % 2 == worker as i32).map(task).collect(),
        ready: true,
        ..WorkerReport::default()
    }
}

/// Two workers that run two tasks of the plan `old`, and nothing to do.
fn running() -> Observed {
    running_tasks(2)
}

fn running_tasks(count: i32) -> Observed {
    running_as(&spec(), compiled("old", StateFit::Kept), count)
}

fn running_as(spec: &Value, compiled: Compiled, count: i32) -> Observed {
    let (names, settings) = (names(), settings());
    let parsed = check::parse(&pipeline(spec, 1)).expect("a spec").spec;
    let source = Source { names: &names, settings: &settings };
    let (digest, connection) = source.connection(spec, &json!({}));
    let timeline = Timeline(1);
    let run = Run { spec: &parsed, version: "1", fingerprint: "old", connection: &digest, timeline };
    let applied = Applied {
        generation: 1,
        spec: spec.clone(),
        plan: 1,
        fingerprint: "old".to_owned(),
        state_fingerprint: "state of old".to_owned(),
        accepts: Vec::new(),
        version: "1".to_owned(),
        timeline,
        restored: Vec::new(),
        kafka: Some("kafka-1".to_owned()),
        start: None,
    };
    let stages = std::collections::BTreeMap::from([("s".to_owned(), count)]);
    let tasks = place(None, &stages, Room { workers: &[0, 1], lanes: 1 });
    let assignment = Assignment { generation: Generation(1), plan: 1, tasks, ..Assignment::default() };
    let placed = Placed {
        fingerprint: "old".to_owned(),
        stages,
        workers: 2,
        moved: 0,
        drained: false,
        cut: Vec::new(),
        assignment: Some(assignment),
    };
    let mut children = vec![
        source.service_account(&parsed),
        source.service(),
        source.disruption_budget(),
        source.network_policy(),
        source.plan("old", compiled.plan.as_ref().expect("a plan")),
        connection,
        source.applied(Some(&applied), None),
        source.assignment(&placed),
        source.stateful_set(&run, 2),
    ];
    for name in [names.control(), names.control_ca()] {
        let mut secret = json!({"kind": "Secret", "metadata": {"name": name, "labels": names.labels("control")}});
        secret["metadata"]["annotations"][RENEW_AFTER] = json!("2100-01-01T00:00:00Z");
        children.push(secret);
    }
    children.extend((0..2).map(|ordinal| pod(&children[8], ordinal)).collect::<Vec<Value>>());
    children.iter_mut().for_each(|object| object["metadata"]["resourceVersion"] = json!("1"));
    children[8]["metadata"]["generation"] = json!(1);
    children[8]["status"] = json!({"observedGeneration": 1, "replicas": 2});
    let mut observed = Observed {
        pipeline: pipeline(spec, 1),
        children,
        compilation: Compilation::Done(Box::new(compiled)),
        admission: Admission::Accepted,
        reports: [0, 1].map(|worker| (worker, report(worker, count))).into(),
        ..Observed::default()
    };
    settle(&mut observed);
    observed
}

/// One that is ready.
fn pod(set: &Value, ordinal: u32) -> Value {
    let mut pod = json!({"kind": "Pod", "metadata": set["spec"]["template"]["metadata"]});
    pod["metadata"]["name"] = json!(names().pod(ordinal));
    pod["metadata"]["uid"] = json!(format!("pod-{ordinal}"));
    pod["status"] = json!({"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]});
    pod
}

/// Does what is decided until it is only the status, and writes that too.
fn settle(observed: &mut Observed) {
    for _ in 0..3 {
        let decision = decide(observed, &settings(), NOW);
        carry_out(observed, &decision);
    }
}

fn carry_out(observed: &mut Observed, decision: &Decision) {
    for action in &decision.actions {
        let Action::Put { object, .. } = action else { continue };
        let same = |there: &&mut Value| {
            there["kind"] == object["kind"] && there["metadata"]["name"] == object["metadata"]["name"]
        };
        match observed.children.iter_mut().find(same) {
            Some(pod) if object["kind"] == "Pod" => {
                pod["metadata"]["annotations"] = object["metadata"]["annotations"].clone();
            }
            Some(there) => {
                let status = there["status"].clone();
                *there = object.clone();
                there["metadata"]["resourceVersion"] = json!("2");
                there["status"] = status;
            }
            None => observed.children.push(object.clone()),
        }
    }
    if let Some(status) = &decision.status {
        observed.pipeline["status"] = json!(status);
    }
}

fn puts<'a>(decision: &'a Decision, name: &'a str) -> Option<&'a Value> {
    decision.actions.iter().find_map(|action| match action {
        Action::Put { object, .. } if object["metadata"]["name"].as_str()?.starts_with(name) => Some(object),
        _ => None,
    })
}

fn reason(decision: &Decision, kind: &str) -> String {
    let conditions = decision.status.iter().flat_map(|status| &status.conditions);
    let found = conditions.filter(|c| c.kind == kind).map(|c| format!("{:?} {}", c.status, c.reason));
    found.collect()
}

/// A preflight that was asked for has passed.
fn pass(observed: &mut Observed) {
    let stages = [("s".to_owned(), 2)].into();
    let elsewhere = observed.pipeline["spec"]["kafka"]["bootstrapServers"] == "elsewhere:9093";
    let kafka = Some(if elsewhere { "kafka-2" } else { "kafka-1" }.to_owned());
    let highest_generation = Generation(1);
    let message = json!(PreflightReport { stages, kafka, highest_generation, ..PreflightReport::default() });
    for job in observed.children.iter_mut().filter(|object| object["kind"] == "Job") {
        let at = "2026-01-01T00:00:00Z";
        let message = message.to_string();
        let end = json!({"type": "Complete", "status": "True", "lastTransitionTime": at, "message": message});
        job["status"]["conditions"] = json!([end]);
    }
}

/// What an edit comes to, in words.
fn effect(edit: impl FnOnce(&mut Value), compiled: Compiled) -> String {
    let mut observed = running();
    let mut edited = spec();
    edit(&mut edited);
    let status = observed.pipeline["status"].clone();
    observed.pipeline = pipeline(&edited, 2);
    observed.pipeline["status"] = status;
    observed.compilation = Compilation::Done(Box::new(compiled));
    let mut said = Vec::new();
    for _ in 0..6 {
        let decision = decide(&observed, &settings(), NOW);
        if reason(&decision, "Stalled").starts_with("True") {
            said.push(format!("refused: {}", &reason(&decision, "Stalled")[5..]));
        }
        said.extend(writes(&observed, &decision));
        carry_out(&mut observed, &decision);
        pass(&mut observed);
        follow(&mut observed, true);
    }
    said.dedup();
    said.join(", ")
}

/// What is written, in words.
fn writes(observed: &Observed, decision: &Decision) -> Vec<String> {
    let mut said = Vec::new();
    if let Some(map) = puts(decision, "p-assignment") {
        said.push(difference(&assigned(observed), &read(map)));
    }
    if puts(decision, "p-preflight").is_some() {
        said.push("check".to_owned());
    }
    if let Some(set) = decision.actions.iter().find_map(|action| match action {
        Action::Put { object, .. } if object["kind"] == "StatefulSet" => Some(object),
        _ => None,
    }) {
        let before = observed.children.iter().find(|object| object["kind"] == "StatefulSet").expect("it is there");
        let template = |set: &Value| set["spec"]["template"]["metadata"]["labels"].clone();
        let replicas = |set: &Value| set["spec"]["replicas"].clone();
        match (replicas(before) == replicas(set), template(before) == template(set)) {
            (_, true) => said.push(format!("{} pods", replicas(set))),
            (true, false) => said.push("other template".to_owned()),
            (false, false) => said.push(format!("{} pods of another template", replicas(set))),
        }
    }
    let deleted = decision.actions.iter().filter(|a| matches!(a, Action::Delete { kind, .. } if kind == "Pod"));
    said.extend(deleted.map(|_| "one pod goes".to_owned()));
    said
}

/// What another assignment is about, in words.
fn difference(before: &Assignment, after: &Assignment) -> String {
    let new = |list: &[Placement], than: &[Placement], word: &str| {
        let new: Vec<&Placement> = list.iter().filter(|placed| !than.contains(placed)).collect();
        let new = new.iter().map(|placed| format!("{word} {} on {}", placed.partition, placed.worker));
        new.collect::<Vec<String>>()
    };
    let dropped = before.warm.iter().filter(|warm| !after.warm.contains(warm) && !after.tasks.contains(warm));
    let mut said = new(&after.tasks, &before.tasks, "run");
    said.extend(new(&after.warm, &before.warm, "warm"));
    said.extend(dropped.map(|placed| format!("forget {} on {}", placed.partition, placed.worker)));
    match () {
        () if after.drain && !before.drain => "drain".to_owned(),
        () if said.is_empty() => "new assignment".to_owned(),
        () => said.join(" "),
    }
}

/// Workers follow the assignment, and have read what they are asked to, or have not.
fn follow(observed: &mut Observed, level: bool) {
    let Assignment { generation, tasks, warm, .. } = assigned(observed);
    for (worker, report) in &mut observed.reports {
        let own = |list: &[Placement]| {
            list.iter().filter(|placed| placed.worker == *worker).cloned().collect::<Vec<Placement>>()
        };
        let runs = |Placement { stage, partition, .. }| TaskReport { stage, partition, state: TaskState::Running };
        let reads = |Placement { stage, partition, .. }| WarmReport { stage, partition, level };
        (report.generation, report.highest_generation) = (generation, generation);
        report.tasks = own(&tasks).into_iter().map(runs).collect();
        report.warm = own(&warm).into_iter().map(reads).collect();
    }
}

#[test]
fn nothing_is_written_when_nothing_has_changed() {
    let decision = decide(&running(), &settings(), NOW);
    assert_eq!(decision.actions, []);
    assert_eq!((decision.status, decision.events), (None, Vec::new()));
}

#[test]
fn workers_that_have_nothing_to_do_are_told_of() {
    let status = running_tasks(1).pipeline["status"].clone();
    assert_eq!(status["message"], "1 of 2 workers stand by: there is 1 task");
    let ready = status["conditions"].as_array().expect("conditions").iter().find(|c| c["type"] == "Ready");
    assert_eq!(ready.expect("Ready")["status"], "True");
    assert!(running().pipeline["status"]["message"].is_null());
}

#[test]
fn a_newer_version_is_offered_unless_the_spec_has_one() {
    let newer = Settings { version: "2".to_owned(), ..settings() };
    let mut observed = running();
    assert!(observed.pipeline["status"]["availableVersion"].is_null());
    let status = decide(&observed, &newer, NOW).status.expect("the offer");
    assert_eq!(status.available_version.as_deref(), Some("2"));
    observed.pipeline["status"] = json!(status);
    observed.pipeline["spec"]["worker"] = json!({"version": "1.0"});
    let status = decide(&observed, &newer, NOW).status.expect("no offer any more");
    assert_eq!(status.available_version, None);
}

#[test]
fn workers_are_tried_out_unless_they_stand_as_they_shall_be() {
    let stand = |observed: &Observed| {
        let facts = Facts::of(observed);
        let candidate = questions::candidate(&facts, &observed.compilation, &settings()).expect("it was compiled");
        questions::stands(&facts, &candidate)
    };
    let mut observed = running();
    assert!(stand(&observed));
    observed.pipeline["spec"]["worker"] = json!({"version": "0.3"});
    assert!(!stand(&observed));
    observed = running();
    observed.children.retain(|object| object["kind"] != "StatefulSet");
    assert!(!stand(&observed));
}

#[test]
fn a_plan_that_was_lost_is_stored_again_while_another_spec_is_asked_for() {
    let mut observed = running();
    observed.pipeline["metadata"]["generation"] = json!(2);
    observed.pipeline["spec"]["steps"][0]["project"]["where"] = json!("amount >");
    observed.compilation = Compilation::Pending;
    let lost = |observed: &Observed| questions::lost_plan(&Facts::of(observed));
    assert_eq!(lost(&observed), None);
    let plan = names().plan("old");
    observed.children.retain(|object| object["metadata"]["name"] != plan.as_str());
    let (fingerprint, pipeline) = lost(&observed).expect("it is not there");
    assert_eq!((fingerprint.as_str(), &pipeline["spec"]), ("old", &spec()));
    assert!(puts(&decide(&observed, &settings(), NOW), &plan).is_none());
    observed.recovered = Some(json!({"plan": "old"}));
    let decision = decide(&observed, &settings(), NOW);
    assert!(puts(&decision, &plan).is_some());
    carry_out(&mut observed, &decision);
    assert_eq!(lost(&observed), None);
}

/// The assignment as it was written last.
fn assigned(observed: &Observed) -> Assignment {
    read(observed.children.iter().find(|object| object["metadata"]["name"] == "p-assignment").expect("it is there"))
}

fn read(map: &Value) -> Assignment {
    serde_json::from_str(map["data"]["assignment.json"].as_str().expect("text")).expect("an assignment")
}

#[test]
fn a_drain_that_has_begun_goes_to_its_end() {
    let mut observed = running();
    let wish = |observed: &mut Observed, state: &str, drained: bool| {
        observed.pipeline["spec"]["desiredState"] = json!(state);
        let generation = assigned(observed).generation;
        observed.reports.values_mut().for_each(|report| {
            (report.generation, report.highest_generation, report.drained) = (generation, generation, drained);
        });
        settle(observed);
        let Assignment { generation, drain, .. } = assigned(observed);
        (generation.0, drain)
    };
    assert_eq!(wish(&mut observed, "Drained", false), (2, true));
    assert_eq!(wish(&mut observed, "Running", false), (2, true));
    let conditions = observed.pipeline["status"]["conditions"].as_array().expect("conditions");
    let reconciling = conditions.iter().find(|c| c["type"] == "Reconciling");
    assert_eq!(reconciling.expect("Reconciling")["reason"], "Draining");
    assert_eq!(wish(&mut observed, "Running", true), (3, false));
}

/// Decides once, and does it; what was written, in words.
fn round(observed: &mut Observed) -> String {
    let decision = decide(observed, &settings(), NOW);
    let said = writes(observed, &decision);
    carry_out(observed, &decision);
    said.join(", ")
}

fn scale(observed: &mut Observed, replicas: u32) {
    observed.pipeline["spec"]["replicas"] = json!(replicas);
    let generation = observed.pipeline["metadata"]["generation"].as_i64().unwrap_or_default();
    observed.pipeline["metadata"]["generation"] = json!(generation + 1);
    // The spec is remembered.
    round(observed);
}

/// Six tasks on two workers, and a third pod that was asked for and is ready.
fn scaled_to_three() -> Observed {
    let mut observed = running_tasks(6);
    scale(&mut observed, 3);
    assert_eq!(round(&mut observed), "");
    let set = observed.children.iter().find(|object| object["kind"] == "StatefulSet").expect("it is there");
    assert_eq!(set["spec"]["replicas"], 3);
    let third = pod(set, 2);
    observed.children.push(third);
    observed.reports.insert(2, WorkerReport { tasks: Vec::new(), ..report(2, 6) });
    observed
}

/// Whether the pod of a worker is ready.
fn set_ready(observed: &mut Observed, worker: u32, ready: bool) {
    let name = names().pod(worker);
    let pod = observed.children.iter_mut().find(|object| object["metadata"]["name"] == name.as_str());
    pod.expect("it is there")["status"]["conditions"][0]["status"] = json!(if ready { "True" } else { "False" });
}

/// What a decision writes of a StatefulSet and of what was applied, in their order, and over which version.
fn starts(observed: &mut Observed) -> Vec<(String, Value, Option<String>)> {
    let decision = decide(observed, &settings(), NOW);
    let writes = decision.actions.iter().filter_map(|action| match action {
        Action::Put { object, over } if object["kind"] == "StatefulSet" => {
            Some(("pods".to_owned(), object["spec"]["replicas"].clone(), over.clone()))
        }
        Action::Put { object, over } if object["metadata"]["name"] == names().applied() => {
            let applied = object["data"]["applied.json"].as_str().expect("text");
            Some(("applied".to_owned(), serde_json::from_str(applied).expect("what was applied"), over.clone()))
        }
        _ => None,
    });
    let writes = writes.collect();
    carry_out(observed, &decision);
    writes
}

/// The StatefulSet has no pods, and says so.
fn stop(observed: &mut Observed, version: &str) {
    observed.children.retain(|object| object["kind"] != "Pod");
    observed.reports.clear();
    let set = observed.children.iter_mut().find(|object| object["kind"] == "StatefulSet").expect("it is there");
    (set["metadata"]["generation"], set["metadata"]["resourceVersion"]) = (json!(2), json!(version));
    set["status"] = json!({"observedGeneration": 2, "replicas": 0});
}

#[test]
fn pods_start_over_the_version_of_the_stateful_set_that_what_was_applied_names() {
    let mut observed = running();
    scale(&mut observed, 0);
    round(&mut observed);
    stop(&mut observed, "7");
    scale(&mut observed, 2);
    let asks = starts(&mut observed);
    assert_eq!(
        asks.iter().map(|(what, applied, _)| (what.as_str(), &applied["start"])).collect::<Vec<_>>(),
        [("applied", &json!("7"))]
    );
    // It is another version by now.
    stop(&mut observed, "8");
    let asks = starts(&mut observed);
    assert_eq!(
        asks.iter().map(|(what, applied, _)| (what.as_str(), &applied["start"])).collect::<Vec<_>>(),
        [("applied", &json!("8"))]
    );
    assert_eq!(starts(&mut observed), [("pods".to_owned(), json!(2), Some("8".to_owned()))]);
}

#[test]
fn a_next_plan_is_applied_over_the_stateful_set_that_was_judged_at_each_attempt() {
    let mut observed = running();
    observed.pipeline["metadata"]["generation"] = json!(2);
    observed.pipeline["spec"]["steps"][0]["project"]["where"] = json!("amount > 1");
    observed.compilation = Compilation::Done(Box::new(compiled("new", StateFit::Kept)));
    round(&mut observed);
    pass(&mut observed);
    round(&mut observed);
    for version in ["7", "8"] {
        stop(&mut observed, version);
        let before = observed.children.iter().find(|object| object["metadata"]["name"] == names().applied()).cloned();
        let applies = starts(&mut observed);
        assert_eq!(applies[0], ("pods".to_owned(), json!(0), Some(version.to_owned())));
        assert_eq!((applies[1].0.as_str(), &applies[1].1["fingerprint"]), ("applied", &json!("new")));
        // The second write got lost.
        observed.children.retain(|object| object["metadata"]["name"] != names().applied());
        observed.children.extend(before);
    }
}

#[test]
fn a_first_plan_is_applied_over_the_versions_of_what_was_judged() {
    let mut observed = running();
    observed.children.retain(|object| object["kind"] == "Secret");
    observed.reports.clear();
    assert_eq!(starts(&mut observed), [("applied".to_owned(), Value::Null, None)]);
    pass(&mut observed);
    let applies = starts(&mut observed);
    assert_eq!(applies[0], ("pods".to_owned(), json!(0), None), "it fails where there is one");
    let (what, applied, over) = &applies[1];
    assert_eq!((what.as_str(), &applied["fingerprint"], over.is_some()), ("applied", &json!("old"), true));
    // The ConfigMap got lost, and the pods run on.
    let mut observed = running();
    observed.children.retain(|object| object["metadata"]["name"] != names().applied());
    starts(&mut observed);
    pass(&mut observed);
    let applies = starts(&mut observed);
    assert_eq!(applies[0], ("pods".to_owned(), json!(2), Some("1".to_owned())), "as it is");
    assert_eq!((applies[1].0.as_str(), applies.len()), ("applied", 2));
}

#[test]
fn a_drain_for_which_no_worker_is_wanted_any_more_is_not_waited_for() {
    let mut observed = running();
    observed.pipeline["spec"]["desiredState"] = json!("Drained");
    settle(&mut observed);
    observed.pipeline["spec"]["desiredState"] = json!("Running");
    observed.pipeline["spec"]["replicas"] = json!(0);
    settle(&mut observed);
    let conditions = observed.pipeline["status"]["conditions"].as_array().expect("conditions").clone();
    assert!(conditions.iter().all(|condition| condition["reason"] != "Draining"), "{conditions:?}");
}

#[test]
fn a_generation_that_a_worker_follows_is_not_given_again() {
    let mut observed = running();
    observed.reports.values_mut().for_each(|report| report.generation = Generation(5));
    settle(&mut observed);
    assert_eq!(assigned(&observed).generation, Generation(6));
}

#[test]
fn a_task_runs_where_it_is_until_its_next_owner_has_read_its_state() {
    let mut observed = scaled_to_three();
    assert_eq!(round(&mut observed), "warm 4 on 2 warm 5 on 2");
    follow(&mut observed, false);
    assert_eq!(round(&mut observed), "");
    let rescale = json!({
        "from": 2, "to": 3, "moved": 0, "remaining": 2, "step": "WarmUp",
        "waitsFor": "worker 2 to read the state of s/4, s/5",
    });
    let status = &observed.pipeline["status"];
    assert_eq!((&status["rescale"], &status["phase"]), (&rescale, &json!("Rescaling")));
    assert_eq!(status["message"], "0 of 2 tasks have moved; waits for worker 2 to read the state of s/4, s/5");
    // One that is level does not wait for the other.
    observed.reports.get_mut(&2).expect("a report").warm[0].level = true;
    assert_eq!(round(&mut observed), "run 4 on 2");
    follow(&mut observed, false);
    assert_eq!(round(&mut observed), "");
    let rescale = &observed.pipeline["status"]["rescale"];
    assert_eq!((&rescale["from"], &rescale["moved"], &rescale["remaining"]), (&json!(2), &json!(1), &json!(1)));
    follow(&mut observed, true);
    assert_eq!(round(&mut observed), "run 5 on 2");
    follow(&mut observed, true);
    assert_eq!(round(&mut observed), "");
    assert!(observed.pipeline["status"]["rescale"].is_null());
    // And back: the pod goes when it has given its tasks away.
    scale(&mut observed, 2);
    assert_eq!(round(&mut observed), "");
    assert_eq!(
        assigned(&observed).warm.iter().map(|warm| (warm.partition.0, warm.worker)).collect::<Vec<_>>(),
        [(4, 0), (5, 1)]
    );
    follow(&mut observed, true);
    assert_eq!(round(&mut observed), "run 4 on 0 run 5 on 1");
    assert_eq!(round(&mut observed), "");
    follow(&mut observed, true);
    assert_eq!(round(&mut observed), "2 pods");
}

#[test]
fn an_edit_on_the_way_drops_what_it_does_not_need() {
    let mut observed = scaled_to_three();
    round(&mut observed);
    follow(&mut observed, false);
    observed.reports.get_mut(&2).expect("a report").warm[0].level = true;
    assert_eq!(round(&mut observed), "run 4 on 2");
    follow(&mut observed, false);
    scale(&mut observed, 2);
    let Assignment { tasks, warm, .. } = assigned(&observed);
    assert_eq!(tasks.iter().map(|task| task.worker).collect::<Vec<_>>(), [0, 1, 0, 1, 2, 1]);
    assert_eq!(warm.iter().map(|warm| (warm.partition.0, warm.worker)).collect::<Vec<_>>(), [(4, 0)]);
    follow(&mut observed, true);
    assert_eq!(round(&mut observed), "run 4 on 0");
}

#[test]
fn a_worker_that_is_not_ready_gets_no_task_that_another_one_runs() {
    let mut observed = scaled_to_three();
    round(&mut observed);
    follow(&mut observed, true);
    set_ready(&mut observed, 2, false);
    assert_eq!(round(&mut observed), "forget 4 on 2 forget 5 on 2");
    follow(&mut observed, true);
    assert_eq!(round(&mut observed), "");
    set_ready(&mut observed, 2, true);
    assert_eq!(round(&mut observed), "warm 4 on 2 warm 5 on 2");
    // One of them is run by nobody any more.
    follow(&mut observed, false);
    observed.reports.get_mut(&0).expect("a report").tasks.retain(|task| task.partition.0 != 4);
    assert_eq!(round(&mut observed), "run 4 on 2");
}

#[test]
fn while_a_pipeline_drains_tasks_stay_with_who_runs_them() {
    let mut observed = scaled_to_three();
    round(&mut observed);
    observed.pipeline["spec"]["desiredState"] = json!("Drained");
    follow(&mut observed, true);
    settle(&mut observed);
    let before = assigned(&observed);
    assert_eq!((before.drain, &before.warm), (true, &Vec::new()));
    follow(&mut observed, true);
    assert_eq!(round(&mut observed), "");
    assert_eq!(assigned(&observed), before);
}

#[test]
fn a_pod_that_was_told_to_end_gives_its_tasks_to_the_others() {
    let mut observed = running_tasks(4);
    tell_to_end(&mut observed, 1);
    assert_eq!(round(&mut observed), "warm 1 on 0 warm 3 on 0");
    let told = decide(&observed, &settings(), NOW).actions;
    let pushed = |action: &Action| matches!(action, Action::Push { worker: 1, .. });
    assert!(told.iter().any(pushed), "it hears of each assignment until it ends: {told:?}");
    // One that does not answer just now works on.
    observed.reports.remove(&1);
    follow(&mut observed, false);
    assert_eq!(round(&mut observed), "");
    observed.reports.get_mut(&0).expect("a report").warm[0].level = true;
    assert_eq!(round(&mut observed), "run 1 on 0");
    follow(&mut observed, true);
    assert_eq!(round(&mut observed), "run 3 on 0");
}

/// By whomever.
fn tell_to_end(observed: &mut Observed, worker: u32) {
    let name = names().pod(worker);
    let pod = observed.children.iter_mut().find(|object| object["metadata"]["name"] == name.as_str());
    pod.expect("it is there")["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:01:00Z");
}

/// Which workers are told that nobody takes their tasks.
fn let_go(observed: &Observed) -> Vec<u32> {
    let actions = decide(observed, &settings(), NOW).actions;
    let let_go = actions.iter().filter_map(|action| match action {
        Action::LetGo { worker, .. } => Some(*worker),
        _ => None,
    });
    let_go.collect()
}

#[test]
fn a_worker_that_was_told_to_end_by_its_node_alone_gives_its_tasks_to_the_others() {
    let mut observed = running_tasks(4);
    observed.reports.get_mut(&1).expect("a report").leaving = true;
    assert_eq!(round(&mut observed), "warm 1 on 0 warm 3 on 0");
}

#[test]
fn workers_that_leave_are_let_go_when_nobody_stays_who_could_take_their_tasks() {
    let mut observed = running();
    tell_to_end(&mut observed, 1);
    assert_eq!(let_go(&observed), [0_u32; 0]);
    // The other one is about to come back.
    set_ready(&mut observed, 0, false);
    observed.reports.remove(&0);
    assert_eq!(let_go(&observed), [0_u32; 0]);
    tell_to_end(&mut observed, 0);
    assert_eq!(let_go(&observed), [1], "the other one does not answer");
    let mut observed = running();
    tell_to_end(&mut observed, 1);
    observed.pipeline["spec"]["replicas"] = json!(0);
    assert_eq!(let_go(&observed), [1]);
    // While it drains, tasks stay where they are.
    let mut observed = running();
    observed.pipeline["spec"]["desiredState"] = json!("Drained");
    settle(&mut observed);
    tell_to_end(&mut observed, 1);
    assert_eq!(let_go(&observed), [1]);
    // A new plan is to start.
    let mut observed = running();
    observed.pipeline["spec"]["steps"][0]["project"]["where"] = json!("amount > 1");
    observed.compilation = Compilation::Done(Box::new(compiled("new", StateFit::Kept)));
    round(&mut observed);
    pass(&mut observed);
    tell_to_end(&mut observed, 0);
    tell_to_end(&mut observed, 1);
    assert_eq!(let_go(&observed), [0, 1]);
}

#[test]
fn a_pod_that_does_not_answer_and_was_not_told_to_end_keeps_its_tasks_and_the_status_says_so() {
    let mut observed = running();
    set_ready(&mut observed, 1, false);
    observed.reports.remove(&1);
    assert_eq!(round(&mut observed), "");
    assert_eq!(observed.pipeline["status"]["message"], "worker 1 does not answer, and its tasks wait for it");
}

/// Pods shall be of another template from now on.
fn change_template(observed: &mut Observed) {
    observed.pipeline["spec"]["worker"] = json!({"version": "0.3"});
    observed.pipeline["metadata"]["generation"] = json!(9);
    assert_eq!(round(observed), "", "the spec is remembered first");
    assert_eq!(round(observed), "other template");
}

/// One worker with two tasks.
fn alone() -> Observed {
    let mut observed = running();
    scale(&mut observed, 1);
    for _ in 0..2 {
        follow(&mut observed, true);
        round(&mut observed);
    }
    observed.reports.remove(&1);
    observed.children.retain(|object| object["metadata"]["name"] != "p-1");
    assert_eq!(round(&mut observed), "");
    observed
}

/// A pod of the newest template, which has no tasks.
fn come(observed: &mut Observed, worker: u32) {
    let (name, set) = (names().pod(worker), observed.children.iter().find(|object| object["kind"] == "StatefulSet"));
    let pod = pod(set.expect("it is there"), worker);
    observed.children.retain(|object| object["metadata"]["name"] != name.as_str());
    observed.children.push(pod);
    observed.reports.insert(worker, WorkerReport { tasks: Vec::new(), ..report(worker, 2) });
    follow(observed, true);
}

#[test]
fn the_only_worker_is_replaced_while_another_one_stands_in_for_it() {
    let mut observed = alone();
    change_template(&mut observed);
    assert_eq!(round(&mut observed), "2 pods");
    assert_eq!(round(&mut observed), "");
    come(&mut observed, 1);
    assert_eq!(round(&mut observed), "warm 0 on 1 warm 1 on 1");
    follow(&mut observed, true);
    assert_eq!(round(&mut observed), "run 0 on 1 run 1 on 1");
    assert_eq!(round(&mut observed), "", "it has them until it says that it has not");
    follow(&mut observed, true);
    assert_eq!(round(&mut observed), "one pod goes");
    tell_to_end(&mut observed, 0);
    assert_eq!(round(&mut observed), "");
    observed.reports.remove(&0);
    observed.children.retain(|object| object["metadata"]["name"] != "p-0");
    assert_eq!(round(&mut observed), "", "they stay with the other one until it is back");
    come(&mut observed, 0);
    assert_eq!(round(&mut observed), "warm 0 on 0 warm 1 on 0");
    follow(&mut observed, true);
    assert_eq!(round(&mut observed), "run 0 on 0 run 1 on 0");
    follow(&mut observed, true);
    assert_eq!(round(&mut observed), "1 pods");
}

#[test]
fn who_is_to_be_replaced_takes_the_tasks_of_one_that_leaves_if_nobody_else_can() {
    let mut observed = running_tasks(4);
    change_template(&mut observed);
    tell_to_end(&mut observed, 0);
    assert_eq!(round(&mut observed), "warm 0 on 1 warm 2 on 1");
    follow(&mut observed, true);
    assert_eq!(round(&mut observed), "run 0 on 1 run 2 on 1");
}

#[test]
fn nobody_stands_in_while_a_pipeline_drains_or_for_a_worker_that_does_not_answer() {
    let mut observed = alone();
    change_template(&mut observed);
    observed.pipeline["spec"]["desiredState"] = json!("Drained");
    round(&mut observed);
    assert_eq!(round(&mut observed), "one pod goes");
    let mut observed = alone();
    change_template(&mut observed);
    observed.reports.clear();
    assert_eq!(round(&mut observed), "one pod goes");
}

#[test]
fn each_class_of_edit_does_what_the_api_says() {
    let same = || compiled("old", StateFit::Kept);
    let kept = || compiled("new", StateFit::Kept);
    let reasons = || vec!["why".to_owned()];
    let set =
        |path: &'static str, value: Value| move |spec: &mut Value| *spec.pointer_mut(path).expect("a field") = value;
    let field = |name: &'static str, value: Value| move |spec: &mut Value| spec[name] = value;
    // Live.
    assert_eq!(effect(|_| {}, same()), "");
    assert_eq!(effect(set("/replicas", json!(3)), same()), "3 pods");
    assert_eq!(effect(set("/replicas", json!(0)), same()), "0 pods");
    assert_eq!(effect(set("/replicas", json!(1)), same()), "warm 1 on 0, run 1 on 0, 1 pods");
    assert_eq!(effect(field("desiredState", json!("Suspended")), same()), "0 pods");
    assert_eq!(effect(field("desiredState", json!("Drained")), same()), "drain");
    assert_eq!(effect(field("delivery", json!({"commitInterval": "1s"})), same()), "new assignment");
    assert_eq!(effect(field("worker", json!({"logLevel": "debug"})), same()), "new assignment");
    assert_eq!(effect(field("state", json!({"ttl": "1d"})), same()), "");
    // One pod after another, each when it has given its task away.
    let replaced = "other template, warm 1 on 0, run 1 on 0, one pod goes";
    assert_eq!(effect(field("worker", json!({"version": "0.3"})), same()), replaced);
    let servers = set("/kafka/bootstrapServers", json!("other:9093"));
    assert_eq!(effect(servers, same()), format!("check, {replaced}"));
    // A new plan starts when all pods of the old one are gone.
    assert_eq!(effect(set("/steps/0/project/where", json!("amount > 1")), kept()), "check, 0 pods");
    let if_empty = compiled("new", StateFit::KeptIfEmpty { reasons: reasons() });
    assert_eq!(effect(set("/steps/0/project/where", json!("amount > 1")), if_empty), "check, drain");
    // Refused.
    let lost = compiled("new", StateFit::Lost { reasons: reasons() });
    assert_eq!(effect(set("/sources/0/kafka/topic", json!("b")), lost), "refused: StateDoesNotFit");
    let prefix = set("/kafka", json!({"bootstrapServers": "kafka:9093", "internal": {"prefix": "other"}}));
    assert_eq!(effect(prefix, same()), "refused: SpecInvalid");
    let elsewhere = set("/kafka/bootstrapServers", json!("elsewhere:9093"));
    assert_eq!(effect(elsewhere, same()), "check, refused: AnotherKafka");
    let mistakes = vec![Mistake::default()];
    let wrong = Compiled { plan: None, mistakes, ..same() };
    assert_eq!(effect(set("/steps/0/project/where", json!("amount >")), wrong), "refused: SpecInvalid");
}

//! What an edit does to a pipeline that runs: `api.md`'s classes, as a table.

use millrace_core::assignment::Assignment;
use millrace_core::ids::Generation;
use millrace_core::report::{Compiled, Mistake, PreflightReport, StateFit, TaskReport, TaskState, WorkerReport};
use millrace_crds::check;
use millrace_crds::timestamp::Timestamp;
use millrace_operator_core::assign::{Room, place};
use millrace_operator_core::decide::decide;
use millrace_operator_core::decision::{Action, Decision};
use millrace_operator_core::facts::{Applied, Placed};
use millrace_operator_core::names::{Names, RENEW_AFTER};
use millrace_operator_core::observed::{Admission, Compilation, Observed};
use millrace_operator_core::render::{Run, Source};
use millrace_operator_core::settings::Settings;
use serde_json::{Value, json};

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

/// What a worker says that runs its task, if it has one.
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
        tasks: (0..tasks).filter(|partition| *partition == worker as i32).map(task).collect(),
        ready: true,
        ..WorkerReport::default()
    }
}

/// Two workers that run two tasks of the plan `old`, and nothing to do.
fn running() -> Observed {
    running_tasks(2)
}

fn running_tasks(count: i32) -> Observed {
    let (names, settings, spec) = (names(), settings(), spec());
    let parsed = check::parse(&pipeline(&spec, 1)).expect("a spec").spec;
    let source = Source { names: &names, settings: &settings };
    let (digest, connection) = source.connection(&spec, &json!({}));
    let run = Run { spec: &parsed, version: "1", fingerprint: "old", connection: &digest };
    let applied = Applied {
        generation: 1,
        spec: spec.clone(),
        plan: 1,
        fingerprint: "old".to_owned(),
        state_fingerprint: "state of old".to_owned(),
        accepts: Vec::new(),
        version: "1".to_owned(),
    };
    let stages = std::collections::BTreeMap::from([("s".to_owned(), count)]);
    let tasks = place(None, &stages, Room { workers: 2, lanes: 1 });
    let assignment = Assignment { generation: Generation(1), plan: 1, tasks, drain: false, accepts: Vec::new() };
    let placed =
        Placed { fingerprint: "old".to_owned(), stages, workers: 2, drained: false, assignment: Some(assignment) };
    let mut children = vec![
        source.service_account(&parsed),
        source.service(),
        source.disruption_budget(),
        source.network_policy(),
        source.plan("old", &json!({"plan": "old"})),
        connection,
        source.applied(&applied),
        source.assignment(&placed),
        source.stateful_set(&run, 2),
    ];
    for name in [names.control(), names.control_ca()] {
        let mut secret = json!({"kind": "Secret", "metadata": {"name": name, "labels": names.labels("control")}});
        secret["metadata"]["annotations"][RENEW_AFTER] = json!("2100-01-01T00:00:00Z");
        children.push(secret);
    }
    for ordinal in 0..2 {
        let mut pod = json!({"kind": "Pod", "metadata": children[8]["spec"]["template"]["metadata"]});
        pod["metadata"]["name"] = json!(names.pod(ordinal));
        pod["metadata"]["uid"] = json!(format!("pod-{ordinal}"));
        pod["status"] = json!({"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]});
        children.push(pod);
    }
    children.iter_mut().for_each(|object| object["metadata"]["resourceVersion"] = json!("1"));
    children[8]["metadata"]["generation"] = json!(1);
    children[8]["status"] = json!({"observedGeneration": 1, "replicas": 2});
    let mut observed = Observed {
        pipeline: pipeline(&spec, 1),
        children,
        compilation: Compilation::Done(Box::new(compiled("old", StateFit::Kept))),
        admission: Admission::Accepted,
        reports: [0, 1].map(|worker| (worker, report(worker, count))).into(),
        ..Observed::default()
    };
    settle(&mut observed);
    observed
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
    let message = json!(PreflightReport { stages, highest_generation: Generation(1), ..PreflightReport::default() });
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
        if let Some(assignment) = puts(&decision, "p-assignment") {
            let text = assignment["data"]["assignment.json"].as_str().unwrap_or_default();
            let drains = serde_json::from_str::<Assignment>(text).expect("an assignment").drain;
            said.push(if drains { "drain" } else { "new assignment" }.to_owned());
        }
        if puts(&decision, "p-preflight").is_some() {
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
        carry_out(&mut observed, &decision);
        pass(&mut observed);
    }
    said.dedup();
    said.join(", ")
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
    assert_eq!(effect(set("/replicas", json!(1)), same()), "new assignment");
    assert_eq!(effect(field("desiredState", json!("Suspended")), same()), "0 pods");
    assert_eq!(effect(field("desiredState", json!("Drained")), same()), "drain");
    // One pod after another.
    assert_eq!(effect(field("worker", json!({"logLevel": "debug"})), same()), "other template, one pod goes");
    assert_eq!(effect(field("worker", json!({"version": "0.3"})), same()), "other template, one pod goes");
    let servers = set("/kafka/bootstrapServers", json!("other:9093"));
    assert_eq!(effect(servers, same()), "check, other template, one pod goes");
    // A new plan starts when all pods of the old one are gone.
    assert_eq!(effect(set("/steps/0/project/where", json!("amount > 1")), kept()), "check, 0 pods");
    let if_empty = compiled("new", StateFit::KeptIfEmpty { reasons: reasons() });
    assert_eq!(effect(set("/steps/0/project/where", json!("amount > 1")), if_empty), "check, drain");
    // Refused.
    let lost = compiled("new", StateFit::Lost { reasons: reasons() });
    assert_eq!(effect(set("/sources/0/kafka/topic", json!("b")), lost), "refused: StateDoesNotFit");
    let prefix = set("/kafka", json!({"bootstrapServers": "kafka:9093", "internal": {"prefix": "other"}}));
    assert_eq!(effect(prefix, same()), "refused: SpecInvalid");
    let mistakes = vec![Mistake::default()];
    let wrong = Compiled { plan: None, mistakes, ..same() };
    assert_eq!(effect(set("/steps/0/project/where", json!("amount >")), wrong), "refused: SpecInvalid");
}

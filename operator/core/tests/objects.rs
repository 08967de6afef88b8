//! The objects that each example stands for, field by field. `UPDATE=1` rewrites the files; read the diff.

#![expect(clippy::disallowed_methods, reason = "a test reads and writes its files")]

use std::path::{Path, PathBuf};
use std::{env, fs};

use millrace_core::ids::Timeline;
use millrace_crds::check;
use millrace_crds::pipeline::WriteMode;
use millrace_operator_core::assign::{Room, place};
use millrace_operator_core::backfill::Begun;
use millrace_operator_core::facts::{Applied, Placed};
use millrace_operator_core::names::Names;
use millrace_operator_core::render::{Errand, Run, Source, lanes};
use millrace_operator_core::settings::Settings;
use serde_json::{Value, json};

/// Any plan: what is in it, nobody here reads.
const FINGERPRINT: &str = "00000000000000f1";

fn settings() -> Settings {
    let settings = json!({
        "image": {"repository": "registry.example/millrace", "pullSecrets": ["registry"]},
        "version": "1.2.3",
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
        "clusterId": "5ca1ab1e",
        "backfill": {"priorityClassName": "millrace-backfill", "resources": {"requests": {"cpu": "50m"}}},
    });
    serde_json::from_value(settings).expect("settings")
}

fn objects(document: &Value) -> Vec<Value> {
    let settings = settings();
    let pipeline = check::parse(document).expect("an example is right");
    let names = Names {
        namespace: pipeline.metadata.namespace.clone(),
        pipeline: pipeline.metadata.name.clone(),
        uid: "0b1ec7".to_owned(),
    };
    let source = Source { names: &names, settings: &settings };
    let (digest, connection) = source.connection(&document["spec"], &json!({}));
    let spec = &pipeline.spec;
    let timeline = Timeline(1);
    let run = Run { spec, version: "1.2.3", fingerprint: FINGERPRINT, connection: &digest, timeline };
    let restored = Run { timeline: Timeline(2), ..run };
    let applied = Applied {
        generation: 1,
        // It stands in the connection, word for word.
        spec: json!({}),
        plan: 1,
        fingerprint: FINGERPRINT.to_owned(),
        state_fingerprint: "00000000000000f2".to_owned(),
        accepts: Vec::new(),
        version: "1.2.3".to_owned(),
        timeline,
        restored: Vec::new(),
        kafka: Some("kafka-1".to_owned()),
        start: None,
    };
    let stages = [("joined".to_owned(), 3)].into();
    let workers: Vec<u32> = (0..spec.replicas).collect();
    let tasks = place(None, &stages, Room { workers: &workers, lanes: lanes(spec, &settings) });
    let assignment = millrace_core::assignment::Assignment {
        generation: millrace_core::ids::Generation(1),
        plan: 1,
        tasks,
        ..Default::default()
    };
    let placed = Placed {
        fingerprint: FINGERPRINT.to_owned(),
        stages,
        workers: spec.replicas,
        moved: 0,
        drained: false,
        cut: Vec::new(),
        assignment: Some(assignment),
    };
    let mut objects = vec![
        source.service_account(spec),
        source.service(),
        source.disruption_budget(),
        source.network_policy(),
        source.plan(FINGERPRINT, &json!({"any": "plan"})),
        connection,
        source.applied(Some(&applied), None),
        source.assignment(&placed),
        source.stateful_set(&run, spec.replicas),
        source.job(&Errand::preflight("00000000000000f3".to_owned()), 0, &run),
        source.job(&Errand::cleanup(), 0, &run),
        source.job(&Errand::save("5a7e-7"), 0, &run),
        source.job(&Errand::restore("s3://b/savepoint.json", true, false, "00000000000000f4".to_owned()), 0, &restored),
    ];
    if spec.sinks.iter().any(|sink| sink.write.mode == WriteMode::Upsert) {
        let begun = begun();
        let tidy = source.job_with(&Errand::tidy(&begun), 0, &run, &source.backfill_mount(&begun));
        objects.extend([source.backfill_document(&begun), source.backfill(&begun, 0, &run), tidy]);
    }
    objects
}

fn begun() -> Begun {
    let begun = json!({
        "name": "january-5",
        "uid": "ba5e",
        "digest": "00000000000000f5",
        "attempt": 1,
        "at": "2026-01-07T00:00:00Z",
        "plan": 1,
        "fingerprint": FINGERPRINT,
        "version": "1.2.3",
        "timeline": 1,
        "sinks": ["out"],
        "document": {"any": "document"},
    });
    serde_json::from_value(begun).expect("a backfill that was begun")
}

fn compare(file: &Path, found: &str) {
    if env::var_os("UPDATE").is_some() {
        fs::write(file, found).expect("write the file");
    }
    let expected = fs::read_to_string(file).unwrap_or_default();
    assert!(expected == found, "{} is out of date: run with UPDATE=1 and read the diff", file.display());
}

#[test]
fn the_examples_stand_for_these_objects() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let examples = fs::read_dir(here.join("../../examples")).expect("examples");
    let mut files: Vec<PathBuf> = examples.map(|entry| entry.expect("entry").path().join("pipeline.yaml")).collect();
    files.retain(|file| file.exists());
    files.sort();
    assert!(files.len() >= 4, "{files:?}");
    for file in files {
        let text = fs::read_to_string(&file).expect("read an example");
        let document: Value = serde_saphyr::from_str(&text).expect("YAML");
        let name = document["metadata"]["name"].as_str().expect("a name").to_owned();
        let text = format!("{:#}\n", Value::Array(objects(&document)));
        compare(&here.join(format!("tests/objects/{name}.json")), &text);
    }
}

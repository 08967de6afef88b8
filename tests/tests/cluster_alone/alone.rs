//! Stories that need a real cluster for themselves, since they take the operator, the chart, the object store, a pod's node
//! or what etcd holds away from it, or since they take long.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use millrace_core::assignment::Assignment;
use millrace_kafka_harness::wait;
use millrace_tests::external_metric::ExternalMetric;
use millrace_tests::kubernetes::{Deployed, condition, deployed, world};
use millrace_tests::prometheus::Prometheus;
use millrace_tests::repairs::Repaired;
use millrace_tests::scratch;
use millrace_tests::story::Shape;
use serde_json::{Value, json};

mod ledger;

#[test]
fn etcd_comes_back_from_a_backup_and_the_operator_goes_on_above_what_the_workers_know() {
    let (mut it, cluster) = (deployed("backup", Shape::Aligned), &world().cluster);
    it.start(&[]).unwrap();
    it.story.generate(31);
    it.goes_on().unwrap();
    let backup = cluster.snapshot().unwrap();
    it.start(&[("/sources/1/table/versions/retention", json!("8d"))]).unwrap();
    it.goes_on().unwrap();
    assert_eq!(it.plan().unwrap(), 2);
    cluster.restore(&backup).unwrap();
    // Versions went back, and to whoever watches on from a higher one nothing is told until they are above it again. The
    // operator has to notice that.
    it.until("a plan above the forgotten one", || Ok(it.plan()? > 2)).unwrap();
    assert!(it.events().unwrap().contains("PlanRenumbered"));
    it.wait_ready().unwrap();
    it.goes_on().unwrap();
    // What came after the backup is applied again.
    it.start(&[]).unwrap();
    assert!(it.plan().unwrap() > 3);
    it.goes_on().unwrap();
    it.check().unwrap();
    it.delete().unwrap();
}

#[test]
fn an_autoscaler_reads_and_writes_the_number_of_workers() {
    let mut it = deployed("scaled", Shape::Repartitioned);
    let metric = ExternalMetric::serve(&it.world.cluster).unwrap();
    it.start(&[]).unwrap();
    it.story.generate(32);
    let target = json!({"type": "AverageValue", "averageValue": "10"});
    let autoscaler = json!({
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "scaled", "namespace": it.namespace},
        "spec": {
            "scaleTargetRef": {"apiVersion": "millrace.dev/v1alpha1", "kind": "Pipeline", "name": "scaled"},
            "maxReplicas": 3,
            "metrics": [{"type": "External", "external": {"metric": {"name": "waiting"}, "target": target}}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        },
    });
    metric.set(10);
    it.world.cluster.apply(&autoscaler.to_string()).unwrap();
    for (value, replicas) in [(10, 1), (30, 3), (10, 1)] {
        metric.set(value);
        it.until(&format!("{replicas} workers by the autoscaler"), || {
            let hpa: Value = serde_json::from_str(&it.kubectl(&["get", "hpa", "scaled", "-o", "json"])?)?;
            let (status, pipeline) = (&hpa["status"], it.object()?);
            // By the number of workers that the Pipeline's status tells.
            let share = &status["currentMetrics"][0]["external"]["current"]["averageValue"];
            let written = pipeline["spec"]["replicas"] == replicas;
            Ok(written && status["currentReplicas"] == replicas && *share == "10")
        })
        .unwrap();
        it.wait_pods(replicas).unwrap();
        it.wait_ready().unwrap();
        it.goes_on().unwrap();
    }
    it.check().unwrap();
    it.kubectl(&["delete", "hpa", "scaled"]).unwrap();
    it.delete().unwrap();
}

#[test]
fn the_operator_adds_workers_while_rows_wait_and_takes_them_away_when_none_do() {
    /// The operator, where it chooses the number.
    const AUTOSCALER: &str = "millrace-autoscaler";
    // A task for each worker that there may be.
    let mut it = Deployed::new("autoscaled", Shape::Aligned, 3).unwrap();
    // As much as can be written, which is more than the 1,400 rows a second or so that one worker does.
    it.story.pace = Duration::from_millis(2);
    let mut steps = it.renamed("autoscaled")["spec"]["steps"].as_array().cloned().unwrap();
    steps.push(dear("joined"));
    let autoscaling = json!({
        "mode": "Act",
        "minReplicas": 1,
        "maxReplicas": 3,
        // A backlog of more than 50 s is too much for who is there.
        "targetLag": "5s",
        // The shortest.
        "stabilisation": "1m",
    });
    let limits = json!({"resources": {"limits": {"cpu": "300m"}}});
    it.start(&[
        ("/steps", json!(steps)),
        ("/sinks/0/from", json!("dear")),
        ("/worker", limits),
        ("/autoscaling", autoscaling),
    ])
    .unwrap();
    it.story.generate(42);
    // It is written down first, and done two seconds later.
    let mut said = Value::Null;
    it.until("a scaling that is written down", || {
        said = it.object()?["status"]["autoscaling"].clone();
        Ok(said["lastScaled"].is_object())
    })
    .unwrap();
    eprintln!("{said}");
    let more = said["desired"].as_u64().unwrap();
    assert!((2..=3).contains(&more), "{said}");
    let scaled = [&said["reason"], &said["lastScaled"]["from"], &said["lastScaled"]["to"]];
    assert_eq!(scaled, [&json!("LagAboveTarget"), &json!(1), &json!(more)], "{said}");
    assert!(said["message"].as_str().unwrap().contains("above the target of 5.0s"), "{said}");
    assert!(said["workerRowsPerSecond"].as_u64() > Some(0), "{said}");
    it.until("more workers", || Ok(it.object()?["spec"]["replicas"] == more)).unwrap();
    assert_eq!(who_set_replicas(&it).unwrap(), [AUTOSCALER]);
    // The load goes on while tasks move.
    it.wait_scaled(more as usize).unwrap();
    it.check().unwrap();

    it.until("one worker again", || Ok(it.object()?["spec"]["replicas"] == 1)).unwrap();
    assert_eq!(who_set_replicas(&it).unwrap(), [AUTOSCALER]);
    it.wait_scaled(1).unwrap();
    let events = it.events().unwrap();
    for (reason, why) in [("ScaledUp", "above the target of 5.0s"), ("ScaledDown", "would have been enough")] {
        let told = |line: &str| line.starts_with(reason) && line.contains(why);
        assert!(events.lines().any(told), "{reason}: {events}");
    }

    it.apply(&[("/autoscaling/mode", json!("Disabled"))]).unwrap();
    it.until("no word of autoscaling", || Ok(it.object()?["status"]["autoscaling"].is_null())).unwrap();
    it.scale(2).unwrap();
    it.wait_scaled(2).unwrap();
    it.story.generate(42);
    it.goes_on().unwrap();
    it.check().unwrap();
    assert_eq!(it.object().unwrap()["spec"]["replicas"], 2);
    assert!(!who_set_replicas(&it).unwrap().contains(&AUTOSCALER.to_owned()), "it is a person's");
    it.delete().unwrap();
}

/// A step that lets everything pass, and takes about 0.15 ms of a core for each row: a table of 400 by 500 cells. A lane
/// takes 4,096 rows at once, and must tell of its lag every 10 s: with a third of a core they take 2 s.
fn dear(from: &str) -> Value {
    let cells = "levenshtein(repeat(CAST(id % 10 AS STRING), 400), repeat('x', 500))";
    json!({"name": "dear", "from": from, "project": {"where": format!("{cells} > 0"), "select": ["id", "name"]}})
}

/// The managers of the field.
fn who_set_replicas(it: &Deployed) -> anyhow::Result<Vec<String>> {
    let get = ["get", "pipeline", &it.story.name, "--output=json", "--show-managed-fields"];
    let object: Value = serde_json::from_str(&it.kubectl(&get)?).context("read the Pipeline")?;
    let entries = object["metadata"]["managedFields"].as_array();
    let own = entries.into_iter().flatten().filter(|entry| entry["fieldsV1"]["f:spec"]["f:replicas"].is_object());
    Ok(own.map(|entry| entry["manager"].as_str().unwrap_or_default().to_owned()).collect())
}

#[test]
fn a_lost_node_has_its_tasks_taken_and_what_comes_back_harms_nobody() {
    let mut it = deployed("lost", Shape::Repartitioned);
    let snapshots = it.snapshots("64Ki").unwrap();
    it.start(&[("/replicas", json!(2)), snapshots]).unwrap();
    it.story.generate(38);
    it.goes_on().unwrap();
    let lost = it.world.cluster.lose_pod(&it.namespace, &it.pod(1), "worker").unwrap();
    // As Kubernetes does once a node has not answered for so long as its taint is tolerated.
    it.kubectl(&["delete", "pod", &it.pod(1), "--wait=false"]).unwrap();
    all_comes_out(&it);
    assert!(it.pods().unwrap().contains(&it.pod(1)), "nobody can end it");
    drop(lost);
    all_comes_out(&it);
    it.wait_scaled(2).unwrap();
    all_comes_out(&it);
    it.check().unwrap();
    it.delete().unwrap();
}

/// Of every task: what was written so far, and something that is written from now on.
fn all_comes_out(it: &Deployed) {
    it.story.wait_written(50).unwrap();
    let out = it.story.wait_rows(it.story.written());
    out.with_context(|| it.world.cluster.diagnostics()).unwrap();
}

#[test]
fn an_object_store_that_is_gone_for_ten_minutes_holds_nothing_up() {
    const GONE: Duration = Duration::from_secs(600);
    let (mut it, s3) = (deployed("storeless", Shape::Aligned), &world().s3);
    let snapshots = it.snapshots("64Ki").unwrap();
    it.start(&[("/replicas", json!(2)), snapshots]).unwrap();
    // A tenth of the usual load: it lasts.
    it.story.pace = Duration::from_millis(250);
    it.story.generate(39);
    it.goes_on().unwrap();
    let lives = it.lives().unwrap();
    s3.stop();
    let gone = Instant::now();
    while gone.elapsed() < GONE {
        all_comes_out(&it);
    }
    // A worker that dies meanwhile has its disk, and one that is new has to wait for its snapshots.
    assert_eq!(it.lives().unwrap(), lives);
    it.kill_worker(0).unwrap();
    all_comes_out(&it);
    it.scale(3).unwrap();
    all_comes_out(&it);
    s3.launch().unwrap();
    it.wait_scaled(3).unwrap();
    all_comes_out(&it);
    it.check().unwrap();
    it.delete().unwrap();
}

#[test]
fn snapshots_that_are_damaged_or_gone_are_passed_over_and_cost_no_row() {
    let mut it = deployed("damaged", Shape::Aligned);
    let snapshots = it.snapshots("64Ki").unwrap();
    it.start(&[("/replicas", json!(2)), snapshots]).unwrap();
    it.story.generate(40);
    it.until("a snapshot of each task", || Ok(it.object()?["status"]["lastSnapshot"].is_object())).unwrap();
    let timeline = it.world.s3.dir().join("test").join(it.story.prefix()).join("t1");
    let stage = std::fs::read_dir(timeline).unwrap().next().unwrap().unwrap().path();
    let tasks: Vec<PathBuf> = std::fs::read_dir(stage).unwrap().map(|task| task.unwrap().path()).collect();
    it.until("two snapshots of each task", || {
        Ok(tasks.iter().map(|task| manifests(task)).collect::<Result<Vec<_>, _>>()?.iter().all(|all| all.len() >= 2))
    })
    .unwrap();
    // Nobody makes another one, and with their pods the states go.
    it.apply(&[("/desiredState", json!("Suspended"))]).unwrap();
    it.wait_pods(0).unwrap();
    for (number, task) in tasks.iter().enumerate() {
        let mut all = manifests(task).unwrap();
        let (_, newest) = all.pop().unwrap();
        let named = |manifest: &Path| -> BTreeSet<String> {
            let manifest: Value = serde_json::from_slice(&std::fs::read(manifest).unwrap()).unwrap();
            let files = manifest["files"].as_array().unwrap().iter();
            files.map(|file| file["sha256"].as_str().unwrap().to_owned()).collect()
        };
        let older: BTreeSet<String> = all.iter().flat_map(|(_, manifest)| named(manifest)).collect();
        let own = task.join("files").join(named(&newest).difference(&older).next().unwrap());
        match number % 3 {
            0 => std::fs::write(&newest, &std::fs::read(&newest).unwrap()[1..]).unwrap(),
            1 => {
                std::fs::write(&own, std::fs::read(&own).unwrap().iter().map(|byte| !byte).collect::<Vec<_>>()).unwrap()
            }
            _ => std::fs::remove_file(&own).unwrap(),
        }
    }
    it.start(&[("/desiredState", json!("Running"))]).unwrap();
    all_comes_out(&it);
    let logs: String =
        it.pods().unwrap().iter().map(|pod| it.world.cluster.logs(&it.namespace, pod).unwrap()).collect();
    assert_eq!(logs.matches("a snapshot is passed over").count(), tasks.len(), "{logs}");
    it.check().unwrap();
    it.delete().unwrap();
}

/// Of a task, by their epochs.
fn manifests(task: &Path) -> anyhow::Result<Vec<(u64, PathBuf)>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(task.join("snapshots")).context("list snapshots")? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let epoch = name.split('-').next().unwrap_or_default().parse().with_context(|| format!("read {name}"))?;
        all.push((epoch, path));
    }
    all.sort();
    Ok(all)
}

#[test]
fn a_page_is_sent_while_a_worker_is_lost_says_which_task_is_worst_and_ends_with_it() {
    /// A lost pod is not held for ready any more after some probes, and then it is given three slices of time.
    const PAGED: Duration = Duration::from_secs(180);
    /// The slower page asks for 7 % of bad slices in half an hour, which is longer than all that was seen: so it ends once enough
    /// minutes were good, and when its window has passed at the latest.
    const ENDED: Duration = Duration::from_secs(2_100);
    let mut it = deployed("paged", Shape::Aligned);
    let prometheus = Prometheus::start(&it.world.cluster).unwrap();
    // The story's records say that they are of 1970: what counts here is whether tasks tell anything.
    let slo = json!({"name": "lag", "lag": {"threshold": "36500d"}, "objective": "95", "window": "7d"});
    // Dashboards show those of snapshots too.
    let snapshots = it.snapshots("64Ki").unwrap();
    it.start(&[("/replicas", json!(2)), ("/slos", json!([slo])), snapshots]).unwrap();
    it.story.generate(41);
    it.goes_on().unwrap();
    prometheus.discover().unwrap();
    let rules = it.kubectl(&["get", "configmap", "paged-rules", "-o", "jsonpath={.data.rules\\.yaml}"]).unwrap();
    prometheus.load("paged", &rules).unwrap();
    it.scale(1).unwrap();
    it.wait_scaled(1).unwrap();
    it.scale(2).unwrap();
    it.wait_scaled(2).unwrap();
    prometheus.discover().unwrap();
    for (name, expression) in expressions(&rules) {
        it.within(PAGED, &format!("a result of {name}: {expression}"), || {
            Ok(!prometheus.query(&expression)?.is_empty())
        })
        .unwrap();
    }
    let bad = || Ok::<_, anyhow::Error>(prometheus.query("slo:sli_error:ratio_rate5m{sloth_slo=\"lag\"}")?[0].1);
    it.until("nothing to be bad", || Ok(bad()? == 0.0)).unwrap();
    assert_eq!(burns(&prometheus).unwrap(), Vec::<Value>::new());

    let (lost, begin) = (it.world.cluster.lose_pod(&it.namespace, &it.pod(1), "worker").unwrap(), Instant::now());
    let mut page = Value::Null;
    it.within(PAGED, "a page", || {
        page = burns(&prometheus)?.into_iter().find(|alert| alert["labels"]["severity"] == "page").unwrap_or_default();
        Ok(!page.is_null())
    })
    .unwrap();
    eprintln!("a page {:.0} s after a worker was lost: {}", begin.elapsed().as_secs_f64(), page["annotations"]);
    let silent: Vec<String> = placed_on(&it, 1).unwrap();
    let text = page["annotations"].to_string();
    assert!(silent.iter().any(|task| text.contains(task)), "{silent:?}: {text}");
    drop(lost);
    let begin = Instant::now();
    it.within(ENDED, "the page to end", || Ok(burns(&prometheus)?.is_empty())).unwrap();
    eprintln!("and it ended {:.0} s after the worker was back", begin.elapsed().as_secs_f64());
    let status = it.object().unwrap()["status"].clone();
    assert_eq!(status["slos"][0]["name"], "lag", "{status}");
    assert!(status["errorBudget"].is_string(), "{status}");
    it.wait_condition("SLODataMissing", "False", "").unwrap();
    it.check().unwrap();
    it.delete().unwrap();
}

#[test]
fn the_dashboard_of_a_backfill_shows_one_that_runs_beside_its_pipeline() {
    const SEEN: Duration = Duration::from_secs(180);
    let slo = json!({"name": "fresh", "freshness": {"threshold": "30s"}, "objective": "95", "window": "7d"});
    let spec = json!({"replicas": 2, "slos": [slo]});
    let mut it = Repaired::new("shown", 200_000, spec).unwrap();
    let prometheus = Prometheus::start(&it.world.cluster).unwrap();
    it.ask("yieldToLive", json!({"slo": "fresh"})).unwrap();
    it.ask("rateLimit", json!({"recordsPerSecond": 300})).unwrap();
    prometheus.discover().unwrap();
    for (name, expression) in panels(include_str!("../../rules/dashboards-backfill.json")) {
        wait::until(&format!("a result of {name}: {expression}"), SEEN, || {
            it.changes.write_now(10)?;
            Ok(!prometheus.query(&expression)?.is_empty())
        })
        .unwrap();
    }
    // Nothing is read until its SLO has been good for a minute. Then a worker stands still, and the backfill makes way.
    it.goes_on().unwrap();
    it.wait_phase("Running").unwrap();
    it.world.cluster.signal_container(&it.namespace, "shown-0", "worker", "STOP").unwrap();
    let begin = Instant::now();
    it.wait_phase("Paused").unwrap();
    eprintln!("the backfill has paused {:.0} s after a worker stood still", begin.elapsed().as_secs_f64());
    it.world.cluster.signal_container(&it.namespace, "shown-0", "worker", "CONT").unwrap();
    it.ask("yieldToLive", Value::Null).unwrap();
    it.ask("rateLimit", Value::Null).unwrap();
    it.wait_phase("Succeeded").unwrap();
    it.changes.check(&it.world.kafka).unwrap();
    it.kubectl(&["delete", "pipeline", "shown", "--timeout=120s"]).unwrap();
}

/// What calls people because a budget burns.
fn burns(prometheus: &Prometheus<'_>) -> anyhow::Result<Vec<Value>> {
    let burns = |alert: &Value| alert["labels"]["alertname"] == "MillraceErrorBudgetBurn";
    Ok(prometheus.alerts()?.into_iter().filter(burns).collect())
}

/// All that Prometheus is asked for: what rules record, and what dashboards show of any pipeline. By its name.
fn expressions(rules: &str) -> Vec<(String, String)> {
    [panels(rules), panels(include_str!("../../rules/dashboards.json"))].concat()
}

/// What the rules of a text record, by its name.
fn panels(text: &str) -> Vec<(String, String)> {
    let rules: Value = serde_json::from_str(text).unwrap();
    let groups = rules["groups"].as_array().unwrap().iter();
    let all = groups.flat_map(|group| group["rules"].as_array().unwrap());
    let text = |field: &Value| field.as_str().map(str::to_owned);
    all.filter_map(|rule| Some((text(&rule["record"])?, text(&rule["expr"])?))).collect()
}

/// The tasks that a worker has, as alerts name the one that is silent for longest.
fn placed_on(it: &Deployed, worker: u32) -> anyhow::Result<Vec<String>> {
    let text = it.kubectl(&["get", "configmap/paged-assignment", "-o", "jsonpath={.data.assignment\\.json}"])?;
    let assignment: Assignment = serde_json::from_str(&text).context("read the assignment")?;
    let own = assignment.tasks.iter().filter(|task| task.worker == worker);
    Ok(own.map(|task| format!("source {}, partition {}", task.stage, task.partition)).collect())
}

#[test]
fn an_uninstall_that_is_forced_lets_go_of_pipelines_that_run_on() {
    let (mut it, world) = (deployed("forced", Shape::Aligned), world());
    it.start(&[("/deletionPolicy", json!("Delete"))]).unwrap();
    it.wait_held().unwrap();
    it.story.generate(33);
    it.goes_on().unwrap();
    let lives = it.lives().unwrap();
    // As the chart's README says: refused, put right, forced.
    assert!(world.helm("uninstall", &[]).is_err());
    let release: Value = serde_json::from_str(&world.helm("status", &["--output=json"]).unwrap()).unwrap();
    world.helm("rollback", &[&release["version"].to_string(), "--wait", "--timeout=3m"]).unwrap();
    world.install(&["--reset-then-reuse-values", "--set=uninstall.force=true"]).unwrap();
    world.helm("uninstall", &[]).unwrap();
    assert!(it.object().unwrap()["metadata"]["finalizers"].is_null());
    it.goes_on().unwrap();
    world.install(&[]).unwrap();
    it.wait_held().unwrap();
    it.wait_ready().unwrap();
    it.goes_on().unwrap();
    assert_eq!(it.lives().unwrap(), lives);
    it.check().unwrap();
    it.delete().unwrap();
    assert_eq!(it.internal_topics().unwrap(), Vec::<String>::new());
}

#[test]
fn an_operator_of_one_namespace_has_the_rights_that_it_needs_and_leaves_the_others_alone() {
    let (mut it, mut other) = (deployed("watched", Shape::Aligned), deployed("unwatched", Shape::Aligned));
    it.world.install(&[&format!("--set=watchNamespaces={{{}}}", it.namespace)]).unwrap();
    // The former operator has ended.
    it.world.scale_operator(1).unwrap();
    other.apply(&[]).unwrap();
    it.start(&[("/deletionPolicy", json!("Delete"))]).unwrap();
    it.story.generate(37);
    it.goes_on().unwrap();
    it.start(&[("/sources/1/table/versions/retention", json!("8d"))]).unwrap();
    it.goes_on().unwrap();
    it.check().unwrap();
    it.delete().unwrap();
    assert_eq!(it.internal_topics().unwrap(), Vec::<String>::new());
    assert!(other.object().unwrap()["status"].is_null());
    it.world.install(&[]).unwrap();
    other.wait_ready().unwrap();
    other.delete().unwrap();
}

#[test]
fn a_newer_chart_replaces_the_operator_and_offers_its_version() {
    const EARLIER: &str = "0.0.1";
    let (dir, world) = (scratch().unwrap(), world());
    world.cluster.tag_image("localhost/millrace:latest", &format!("localhost/millrace:{EARLIER}")).unwrap();
    world.install_chart(&earlier_chart(dir.path(), EARLIER).unwrap(), &[]).unwrap();
    let columns = || {
        let path = "jsonpath={.spec.versions[0].additionalPrinterColumns[*].name}";
        world.cluster.kubectl(&["get", "crd", "pipelines.millrace.dev", "-o", path]).unwrap()
    };
    assert!(columns().contains("Behind"), "{}", columns());
    let mut it = deployed("upgraded", Shape::Aligned);
    it.start(&[]).unwrap();
    it.story.generate(34);
    it.goes_on().unwrap();
    let lives = it.lives().unwrap();
    world.install(&[]).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    it.until("the newer version in the status", || Ok(it.object()?["status"]["availableVersion"] == version)).unwrap();
    assert!(columns().contains("Lag") && !columns().contains("Behind"), "{}", columns());
    it.wait_ready().unwrap();
    it.goes_on().unwrap();
    assert_eq!(it.object().unwrap()["status"]["runtimeVersion"], EARLIER);
    assert_eq!(it.lives().unwrap(), lives);
    it.start(&[("/worker", json!({"version": version}))]).unwrap();
    assert_ne!(it.lives().unwrap(), lives);
    it.goes_on().unwrap();
    it.check().unwrap();
    it.delete().unwrap();
}

/// The chart of the commit before this one, with a version and a column of the definition that no commit had, so that
/// there is something to upgrade. Its image is today's.
fn earlier_chart(dir: &Path, version: &str) -> anyhow::Result<PathBuf> {
    let run = |program: &str, arguments: &[&str]| -> anyhow::Result<()> {
        let done = Command::new(program).args(arguments).output().with_context(|| format!("run {program}"))?;
        ensure!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr).trim());
        Ok(())
    };
    let (root, archive) = (concat!(env!("CARGO_MANIFEST_DIR"), "/.."), dir.join("chart.tar").display().to_string());
    run("git", &["-C", root, "archive", "--output", &archive, "HEAD~1", "charts/millrace", "crds"])
        .context("take the chart of the commit before, which a clone of one commit does not have")?;
    run("tar", &["--extract", "--file", &archive, "--directory", &dir.display().to_string()])?;
    let edit = |path: PathBuf, change: &dyn Fn(&str) -> String| -> anyhow::Result<()> {
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let lines: Vec<String> = text.lines().map(change).collect();
        ensure!(!lines.iter().map(String::as_str).eq(text.lines()), "nothing has changed in {}", path.display());
        std::fs::write(&path, lines.join("\n") + "\n").context("write the chart")
    };
    let chart = dir.join("charts/millrace");
    edit(chart.join("Chart.yaml"), &|line: &str| match line.starts_with("appVersion:") {
        true => format!("appVersion: \"{version}\""),
        false => line.to_owned(),
    })?;
    edit(dir.join("crds/pipelines.millrace.dev.yaml"), &|line: &str| line.replace("- name: Lag", "- name: Behind"))?;
    Ok(chart)
}

#[test]
fn a_spec_that_its_compiler_dies_of_is_nobody_elses_trouble() {
    const OTHERS: usize = 100;
    /// The compiler's own bound by the clock is 20 s, and one is compiled at a time.
    const PROMPTLY: Duration = Duration::from_secs(30);
    let (mut it, cluster) = (deployed("poison", Shape::Aligned), &world().cluster);
    let list = |items: Vec<Value>| json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    // Nothing runs: each is compiled, and then a Secret is missing.
    let key = |key: &str| json!({"name": "missing", "key": key});
    let users = json!({"scramSha512": {"username": key("name"), "password": key("password")}});
    it.apply(&[("/kafka/authentication", users)]).unwrap();
    let others: Vec<Value> = (0..OTHERS).map(|i| it.renamed(&format!("other-{i}"))).collect();
    cluster.apply(&list(others.clone())).unwrap();
    it.apply(&[("/steps", poison()), ("/sinks/0/from", json!("wide"))]).unwrap();
    it.wait_condition("SpecValid", "False", "CompilerFailed").unwrap();
    let valid = || -> anyhow::Result<usize> {
        let all: Value = serde_json::from_str(&it.kubectl(&["get", "pipelines", "-o", "json"])?)?;
        let valid = |object: &&Value| condition(object, "SpecValid").is_some_and(|[status, ..]| status == "True");
        Ok(all["items"].as_array().into_iter().flatten().filter(valid).count())
    };
    it.until("the verdict on all others", || Ok(valid()? == OTHERS)).unwrap();

    // Once more, and with it an edit of another one.
    let mut edits = vec![it.renamed("poison"), others[0].clone()];
    edits.iter_mut().for_each(|edit| edit["spec"]["delivery"] = json!({"commitInterval": "300ms"}));
    let begin = Instant::now();
    cluster.apply(&list(edits)).unwrap();
    it.within(PROMPTLY, "the verdict on the edit", || Ok(valid()? == OTHERS)).unwrap();
    eprintln!(
        "beside a spec that its compiler dies of, an edit has its verdict after {:.1} s",
        begin.elapsed().as_secs_f64()
    );
    it.wait_condition("SpecValid", "False", "CompilerFailed").unwrap();
    assert_eq!(valid().unwrap(), OTHERS);
    it.delete_namespace().unwrap();
}

/// Small as text, and more than the compiler's memory when each column holds what it is computed from.
fn poison() -> Value {
    let numbers: Vec<String> = (100..1_000).map(|number| number.to_string()).collect();
    let much = format!("id IN ({}) AS x", numbers.join(","));
    let many = ["x"; 10].join(" OR ");
    let wide: Vec<String> = (0..500).map(|i| format!("{many} AS x{i}")).collect();
    json!([
        {"name": "much", "from": "orders", "project": {"select": [much]}},
        {"name": "wide", "from": "much", "project": {"select": wide}},
    ])
}

#[test]
fn a_namespace_ends_while_no_operator_is_there() {
    let (mut retained, mut held) = (deployed("retained", Shape::Aligned), deployed("held", Shape::Aligned));
    let world = world();
    retained.start(&[]).unwrap();
    held.start(&[("/deletionPolicy", json!("Delete"))]).unwrap();
    held.wait_held().unwrap();
    retained.story.generate(35);
    retained.goes_on().unwrap();
    world.scale_operator(0).unwrap();
    assert!(world.helm("test", &["--timeout=1m"]).is_err());
    retained.delete_namespace().unwrap();
    // One that asked for it waits for the operator, and for nothing else.
    world.cluster.kubectl(&["delete", "namespace", &held.namespace, "--wait=false"]).unwrap();
    held.wait_pods(0).unwrap();
    held.until("its deletion", || Ok(held.object()?["metadata"]["deletionTimestamp"].is_string())).unwrap();
    world.scale_operator(1).unwrap();
    let namespace = format!("namespace/{}", held.namespace);
    world.cluster.kubectl(&["wait", "--for=delete", &namespace, "--timeout=120s"]).unwrap();
    for topics in [&retained, &held].map(|it| it.internal_topics().unwrap()) {
        assert!(!topics.is_empty(), "no Job could delete them");
    }
    retained.create_namespace().unwrap();
    retained.start(&[]).unwrap();
    retained.goes_on().unwrap();
    retained.check().unwrap();
    retained.delete().unwrap();
}

#[test]
fn rows_that_wait_leave_before_a_plan_that_needs_more_of_them() {
    let mut it = deployed("drained-first", Shape::Aligned);
    it.start(&[]).unwrap();
    it.story.generate(36);
    it.goes_on().unwrap();
    // The same answer, for which a waiting row must have its time.
    let mut steps = it.object().unwrap()["spec"]["steps"].as_array().cloned().unwrap();
    steps[0]["temporalJoin"]["select"] = json!(["id", "name", "\"time\"", "since"]);
    let project = json!({"where": "\"time\" IS NOT NULL OR since IS NOT NULL", "select": ["id", "name"]});
    steps.push(json!({"name": "kept", "from": "joined", "project": project}));
    it.apply(&[("/steps", json!(steps)), ("/sinks/0/from", json!("kept"))]).unwrap();
    it.wait_condition("Reconciling", "True", "Draining").unwrap();
    it.wait_ready().unwrap();
    assert_eq!(it.plan().unwrap(), 2);
    it.goes_on().unwrap();
    it.check().unwrap();
    it.delete().unwrap();
}

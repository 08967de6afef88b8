//! Dashboards for Grafana: the one source of `charts/millrace/files/dashboards`.
//!
//! An expression counts what is there rather than picking what is wrong, so that it has a result while all is well.

use serde_json::{Value, json};

const DATASOURCE: &str = "${datasource}";
/// Grafana's grid.
const GRID: u64 = 24;

// How series are selected.
const ONE_PIPELINE: &str = "namespace=\"$namespace\",pipeline=\"$pipeline\"";
const ONE_BACKFILL: &str = "namespace=\"$namespace\",pipeline=\"$pipeline\",backfill=\"$backfill\"";

struct Dashboard {
    name: &'static str,
    title: &'static str,
    about: About,
    rows: Vec<Row>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum About {
    /// All pipelines of some namespaces.
    Fleet,
    Pipeline,
    /// One, and the pipeline that goes on beside it.
    Backfill,
}

/// Panels side by side, of the same width.
struct Row {
    title: &'static str,
    height: u64,
    panels: Vec<Panel>,
}

struct Panel {
    kind: &'static str,
    title: &'static str,
    /// What is not in the title.
    description: &'static str,
    /// As Grafana calls it.
    unit: &'static str,
    /// Expressions with their legends; `SERIES` stands for the selection by namespace and pipeline, `BACKFILL` for that by
    /// namespace, pipeline and backfill.
    lines: Vec<(&'static str, &'static str)>,
}

const STAT: &str = "stat";
const BARS: &str = "bargauge";
const GRAPH: &str = "timeseries";
/// A bar for each series, while it is there.
const TIMES: &str = "state-timeline";

fn panel(kind: &'static str, title: &'static str, unit: &'static str, lines: &[(&'static str, &'static str)]) -> Panel {
    Panel { kind, title, description: "", unit, lines: lines.to_vec() }
}

impl Panel {
    fn saying(self, description: &'static str) -> Self {
        Self { description, ..self }
    }
}

fn row(title: &'static str, height: u64, panels: Vec<Panel>) -> Row {
    Row { title, height, panels }
}

fn fleet() -> Dashboard {
    let pipelines = row(
        "Pipelines",
        8,
        vec![
            panel(
                GRAPH,
                "Lag, of the worst partition",
                "s",
                &[("max by (namespace, pipeline) (millrace_source_lag_seconds{SERIES})", "{{namespace}}/{{pipeline}}")],
            ),
            panel(
                GRAPH,
                "Partitions whose lag is not known",
                "short",
                &[(
                    "sum by (namespace, pipeline) (1 - millrace_source_lag_known{SERIES})",
                    "{{namespace}}/{{pipeline}}",
                )],
            ),
            panel(
                GRAPH,
                "Dead letters per second",
                "rowsps",
                &[(
                    "sum by (namespace, pipeline) (rate(millrace_rows_dropped_total{SERIES,reason=\"dead_lettered\"}[$__rate_interval]))",
                    "{{namespace}}/{{pipeline}}",
                )],
            ),
        ],
    );
    let objectives = row(
        "Objectives",
        9,
        vec![
            panel(
                BARS,
                "Error budget left",
                "percentunit",
                &[(
                    "sort(min by (namespace, pipeline, slo) (millrace_slo_error_budget_remaining_ratio{SERIES}))",
                    "{{namespace}}/{{pipeline}} {{slo}}",
                )],
            ),
            panel(
                GRAPH,
                "Burn rate of the last 5 minutes",
                "short",
                &[(
                    "max by (namespace, pipeline, slo) (slo:current_burn_rate:ratio{SERIES})",
                    "{{namespace}}/{{pipeline}} {{slo}}",
                )],
            )
            .saying("1 spends the error budget exactly within the window of the SLO."),
        ],
    );
    Dashboard {
        name: "fleet",
        title: "Millrace / Fleet",
        about: About::Fleet,
        rows: vec![glance(), objectives, pipelines, operator(), operator_work()],
    }
}

fn glance() -> Row {
    row(
        "At a glance",
        4,
        vec![
            panel(
                STAT,
                "Pipelines that shall run",
                "short",
                &[("sum(max by (namespace, pipeline) (millrace_pipeline_running{SERIES}))", "")],
            ),
            panel(
                STAT,
                "Alerts that fire",
                "short",
                &[("count(ALERTS{alertname=~\"Millrace.+\",alertstate=\"firing\"}) or vector(0)", "")],
            ),
            panel(STAT, "Operators that lead", "short", &[("sum(millrace_operator_leader)", "")]),
            panel(
                STAT,
                "Slices that nobody observed, last day",
                "short",
                &[("sum(increase(millrace_operator_unobserved_slices_total[1d]))", "")],
            ),
        ],
    )
}

fn operator() -> Row {
    row(
        "Operator",
        7,
        vec![
            panel(
                GRAPH,
                "Looks at a pipeline, 99 %",
                "s",
                &[(
                    "histogram_quantile(0.99, sum by (le, outcome) (rate(millrace_operator_reconcile_seconds_bucket[$__rate_interval])))",
                    "{{outcome}}",
                )],
            ),
            panel(
                GRAPH,
                "Wait for a look, 99 %",
                "s",
                &[(
                    "histogram_quantile(0.99, sum by (le, lane) (rate(millrace_operator_queue_seconds_bucket[$__rate_interval])))",
                    "{{lane}}",
                )],
            ),
            panel(
                GRAPH,
                "Pipelines",
                "short",
                &[
                    ("sum(millrace_operator_pipelines)", "known"),
                    ("sum(millrace_operator_pipelines_looked_at)", "looked at"),
                    ("sum(millrace_operator_queued)", "waiting"),
                ],
            ),
        ],
    )
}

fn operator_work() -> Row {
    row(
        "What the operator does",
        7,
        vec![
            panel(
                GRAPH,
                "Writes to the API server",
                "ops",
                &[("sum by (action) (rate(millrace_operator_writes_total[$__rate_interval]))", "{{action}}")],
            ),
            panel(
                GRAPH,
                "Changes of state",
                "ops",
                &[("sum by (reason) (rate(millrace_operator_transitions_total[$__rate_interval]))", "{{reason}}")],
            ),
            panel(
                GRAPH,
                "Errors",
                "ops",
                &[
                    ("sum by (step) (rate(millrace_operator_errors_total[$__rate_interval]))", "{{step}}"),
                    ("sum(rate(millrace_operator_watch_errors_total[$__rate_interval]))", "watches"),
                ],
            ),
        ],
    )
}

fn pipeline() -> Dashboard {
    Dashboard {
        name: "pipeline",
        title: "Millrace / Pipeline",
        about: About::Pipeline,
        rows: vec![objectives(), lateness(), backlog(), rows(), losses(), work(), storage()],
    }
}

fn objectives() -> Row {
    row(
        "Objectives",
        7,
        vec![
            panel(
                BARS,
                "Error budget left",
                "percentunit",
                &[("min by (slo) (millrace_slo_error_budget_remaining_ratio{SERIES})", "{{slo}}")],
            ),
            panel(
                GRAPH,
                "Good, over the window",
                "percentunit",
                &[
                    (
                        "1 - slo:period_burn_rate:ratio{SERIES} * on (sloth_service, sloth_slo) group_left () slo:error_budget:ratio{SERIES}",
                        "{{sloth_slo}}",
                    ),
                    ("slo:objective:ratio{SERIES}", "{{sloth_slo}}, objective"),
                ],
            ),
            panel(
                GRAPH,
                "Burn rate",
                "short",
                &[
                    ("slo:current_burn_rate:ratio{SERIES}", "{{sloth_slo}}, 5m"),
                    (
                        "slo:sli_error:ratio_rate1h{SERIES} / on (sloth_service, sloth_slo) group_left () slo:error_budget:ratio{SERIES}",
                        "{{sloth_slo}}, 1h",
                    ),
                ],
            )
            .saying("1 spends the error budget exactly within the window of the SLO."),
        ],
    )
}

fn lateness() -> Row {
    row(
        "How late",
        8,
        vec![
            freshness(),
            lag(),
            panel(
                GRAPH,
                "Watermark behind the clock",
                "s",
                &[("time() - min by (stage, input) (millrace_watermark_seconds{SERIES})", "{{stage}}, {{input}}")],
            ),
            panel(
                GRAPH,
                "Worst, as SLOs see it",
                "s",
                &[(
                    "max by (slo, source, partition) (millrace_slo_worst_seconds{SERIES})",
                    "{{slo}}: {{source}} {{partition}}",
                )],
            ),
        ],
    )
}

fn freshness() -> Panel {
    panel(
        GRAPH,
        "From a record's time to its result",
        "s",
        &[
            (
                "histogram_quantile(0.5, sum by (le, stage) (rate(millrace_freshness_seconds_bucket{SERIES}[$__rate_interval])))",
                "{{stage}}, 50 %",
            ),
            (
                "histogram_quantile(0.99, sum by (le, stage) (rate(millrace_freshness_seconds_bucket{SERIES}[$__rate_interval])))",
                "{{stage}}, 99 %",
            ),
        ],
    )
}

fn lag() -> Panel {
    panel(
        GRAPH,
        "Lag",
        "s",
        &[("max by (source, partition) (millrace_source_lag_seconds{SERIES})", "{{source}} {{partition}}")],
    )
}

fn bad() -> Panel {
    panel(
        GRAPH,
        "Bad slices or records",
        "ops",
        &[("sum by (slo) (rate(millrace_slo_bad_observations_total{SERIES}[$__rate_interval]))", "{{slo}}")],
    )
}

fn backlog() -> Row {
    row(
        "What waits",
        7,
        vec![
            panel(
                GRAPH,
                "Records that are not read",
                "short",
                &[("sum by (source) (millrace_source_lag_records{SERIES})", "{{source}}")],
            ),
            panel(
                GRAPH,
                "Partitions whose lag is not known",
                "short",
                &[("sum by (source) (1 - millrace_source_lag_known{SERIES})", "{{source}}")],
            ),
            panel(
                GRAPH,
                "Records behind somebody's open transaction",
                "short",
                &[("sum by (source) (millrace_source_blocked_records{SERIES})", "{{source}}")],
            ),
            panel(
                GRAPH,
                "Rows that wait inside of a step",
                "short",
                &[("sum by (stage, step) (millrace_rows_waiting{SERIES})", "{{stage}}, {{step}}")],
            ),
        ],
    )
}

fn rows() -> Row {
    row(
        "Rows",
        8,
        vec![
            panel(
                GRAPH,
                "In",
                "rowsps",
                &[(
                    "sum by (stage, step) (rate(millrace_rows_in_total{SERIES}[$__rate_interval]))",
                    "{{stage}}, {{step}}",
                )],
            ),
            panel(
                GRAPH,
                "Out",
                "rowsps",
                &[(
                    "sum by (stage, step) (rate(millrace_rows_out_total{SERIES}[$__rate_interval]))",
                    "{{stage}}, {{step}}",
                )],
            ),
        ],
    )
}

fn losses() -> Row {
    row(
        "Rows that did not go on, or late",
        7,
        vec![
            panel(
                GRAPH,
                "Dropped, by reason",
                "rowsps",
                &[("sum by (reason) (rate(millrace_rows_dropped_total{SERIES}[$__rate_interval]))", "{{reason}}")],
            ),
            panel(
                GRAPH,
                "Below the watermark or ahead of the clock",
                "rowsps",
                &[
                    ("sum(rate(millrace_rows_joined_late_total{SERIES}[$__rate_interval]))", "joined late"),
                    ("sum(rate(millrace_rows_future_total{SERIES}[$__rate_interval]))", "from the future"),
                ],
            ),
            bad(),
        ],
    )
}

fn work() -> Row {
    row(
        "Workers",
        7,
        vec![
            panel(GRAPH, "Tasks that run", "short", &[("sum by (pod) (millrace_task_running{SERIES})", "{{pod}}")]),
            panel(
                GRAPH,
                "Tasks that were stopped by a fault",
                "short",
                &[("sum by (stage) (1 - millrace_task_running{SERIES})", "{{stage}}")],
            ),
            panel(
                GRAPH,
                "Epochs per second",
                "ops",
                &[("sum by (stage) (rate(millrace_epochs_total{SERIES}[$__rate_interval]))", "{{stage}}")],
            ),
        ],
    )
}

fn storage() -> Row {
    row(
        "Snapshots",
        7,
        vec![
            panel(
                GRAPH,
                "Age of the oldest one that is the newest of its task",
                "s",
                &[("time() - min by (stage) (millrace_snapshot_taken_timestamp_seconds{SERIES})", "{{stage}}")],
            ),
            panel(
                GRAPH,
                "Size of the state",
                "bytes",
                &[("sum by (stage) (millrace_snapshot_state_bytes{SERIES})", "{{stage}}")],
            ),
            panel(
                GRAPH,
                "Traffic with storage",
                "Bps",
                &[
                    ("sum(rate(millrace_snapshot_uploaded_bytes_total{SERIES}[$__rate_interval]))", "sent"),
                    ("sum(rate(millrace_snapshot_fetched_bytes_total{SERIES}[$__rate_interval]))", "fetched"),
                ],
            ),
            panel(
                GRAPH,
                "Snapshots that failed",
                "ops",
                &[("sum(rate(millrace_snapshot_failures_total{SERIES}[$__rate_interval]))", "failed")],
            ),
        ],
    )
}

fn rescale() -> Dashboard {
    let moves = row(
        "Who runs what",
        8,
        vec![
            panel(GRAPH, "Tasks that run", "short", &[("sum by (pod) (millrace_task_running{SERIES})", "{{pod}}")]),
            panel(
                GRAPH,
                "Tasks that are brought level where they go",
                "short",
                &[
                    ("sum(millrace_task_warm{SERIES}) or vector(0)", "level"),
                    ("count(millrace_task_warm{SERIES}) or vector(0)", "all"),
                ],
            ),
            panel(
                GRAPH,
                "State that is fetched",
                "Bps",
                &[("sum by (pod) (rate(millrace_snapshot_fetched_bytes_total{SERIES}[$__rate_interval]))", "{{pod}}")],
            ),
        ],
    );
    let pauses = row(
        "What it costs",
        9,
        vec![
            panel(
                GRAPH,
                "Epochs per second and task",
                "ops",
                &[(
                    "sum by (stage, partition) (rate(millrace_epochs_total{SERIES}[$__rate_interval]))",
                    "{{stage}} {{partition}}",
                )],
            )
            .saying("A task that moves makes a dent here; one that stays should not."),
            lag(),
            bad(),
        ],
    );
    Dashboard { name: "rescale", title: "Millrace / Rescale", about: About::Pipeline, rows: vec![moves, pauses] }
}

fn backfill() -> Dashboard {
    let itself = row(
        "Backfill",
        8,
        vec![
            panel(TIMES, "Phase", "short", &[("max by (phase) (millrace_backfill_phase{BACKFILL})", "{{phase}}")]),
            panel(
                GRAPH,
                "Read, of its range",
                "percentunit",
                &[("max(millrace_backfill_progress_ratio{BACKFILL})", "read")],
            ),
            panel(
                GRAPH,
                "Records per second",
                "short",
                &[
                    ("sum(rate(millrace_backfill_records{BACKFILL}[$__rate_interval]))", "read"),
                    ("max(millrace_backfill_allowed_records_per_second{BACKFILL})", "allowed"),
                ],
            )
            .saying("Where none is said to be allowed, it reads as fast as it can."),
            panel(
                GRAPH,
                "What became of its rows",
                "short",
                &[("max by (outcome) (millrace_backfill_rows{BACKFILL})", "{{outcome}}")],
            )
            .saying("guarded: a row of the same key was there that is newer, or has the same version."),
        ],
    );
    let beside = row("The pipeline beside it", 9, vec![freshness(), lag(), bad()]);
    Dashboard { name: "backfill", title: "Millrace / Backfill", about: About::Backfill, rows: vec![itself, beside] }
}

impl Dashboard {
    fn series(&self) -> &'static str {
        match self.about {
            About::Fleet => "namespace=~\"$namespace\"",
            About::Pipeline | About::Backfill => ONE_PIPELINE,
        }
    }

    fn json(&self) -> Value {
        let mut panels: Vec<Value> = Vec::new();
        let mut y = 0;
        for row in &self.rows {
            let at = json!({"x": 0, "y": y, "w": GRID, "h": 1});
            panels.push(json!({"type": "row", "title": row.title, "collapsed": false, "panels": [], "gridPos": at}));
            let width = GRID / row.panels.len() as u64;
            for (panel, x) in row.panels.iter().zip((0..).step_by(width as usize)) {
                let at = json!({"x": x, "y": y + 1, "w": width, "h": row.height});
                panels.push(panel.json(self.series(), &at));
            }
            y += 1 + row.height;
        }
        for (panel, id) in panels.iter_mut().zip(1..) {
            panel["id"] = json!(id);
        }
        json!({
            "uid": format!("millrace-{}", self.name),
            "title": self.title,
            "tags": ["millrace"],
            "schemaVersion": 39,
            "editable": true,
            "refresh": "30s",
            "time": {"from": "now-6h", "to": "now"},
            "templating": {"list": self.variables()},
            "annotations": {"list": []},
            "links": [{"type": "dashboards", "title": "Millrace", "tags": ["millrace"], "includeVars": true, "keepTime": true}],
            "panels": panels,
        })
    }

    fn variables(&self) -> Vec<Value> {
        let datasource =
            json!({"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"});
        let query = |name: &str, query: &str, all: bool| {
            json!({
                "name": name,
                "type": "query",
                "datasource": {"type": "prometheus", "uid": DATASOURCE},
                "query": {"query": query, "refId": name},
                "refresh": 2,
                "sort": 1,
                "multi": all,
                "includeAll": all,
                "allValue": if all { json!(".+") } else { Value::Null },
            })
        };
        let metric = match self.about {
            About::Fleet | About::Pipeline => "millrace_pipeline_running",
            About::Backfill => "millrace_backfill_phase",
        };
        let namespaces = format!("label_values({metric}, namespace)");
        let mut variables = vec![datasource, query("namespace", &namespaces, self.about == About::Fleet)];
        if self.about != About::Fleet {
            let pipelines = format!("label_values({metric}{{namespace=\"$namespace\"}}, pipeline)");
            variables.push(query("pipeline", &pipelines, false));
        }
        if self.about == About::Backfill {
            let backfills = format!("label_values({metric}{{{ONE_PIPELINE}}}, backfill)");
            variables.push(query("backfill", &backfills, false));
        }
        variables
    }
}

impl Panel {
    fn json(&self, series: &str, at: &Value) -> Value {
        let datasource = json!({"type": "prometheus", "uid": DATASOURCE});
        let in_time = [GRAPH, TIMES].contains(&self.kind);
        let target = |((expr, legend), id): (&(&str, &str), char)| {
            json!({
                "refId": id.to_string(),
                "datasource": datasource,
                "expr": expr.replace("SERIES", series).replace("BACKFILL", ONE_BACKFILL),
                "legendFormat": legend,
                "instant": !in_time,
                "range": in_time,
            })
        };
        let options = match self.kind {
            GRAPH => {
                json!({"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}})
            }
            TIMES => json!({"showValue": "never", "legend": {"showLegend": false}}),
            BARS => json!({"orientation": "horizontal", "reduceOptions": {"calcs": ["lastNotNull"]}}),
            _ => json!({"colorMode": "none", "reduceOptions": {"calcs": ["lastNotNull"]}}),
        };
        let mut defaults = json!({"unit": self.unit});
        if self.kind == BARS {
            let steps = json!([{"color": "red", "value": null}, {"color": "yellow", "value": 0.1}, {"color": "green", "value": 0.5}]);
            defaults["thresholds"] = json!({"mode": "absolute", "steps": steps});
            defaults["max"] = json!(1);
        }
        json!({
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": datasource,
            "gridPos": at,
            "fieldConfig": {"defaults": defaults, "overrides": []},
            "options": options,
            "targets": self.lines.iter().zip('A'..).map(target).collect::<Vec<_>>(),
        })
    }
}

fn dashboards() -> [Dashboard; 4] {
    [fleet(), pipeline(), rescale(), backfill()]
}

/// Each with the name of its file.
pub fn all() -> impl Iterator<Item = (&'static str, Value)> {
    dashboards().into_iter().map(|dashboard| (dashboard.name, dashboard.json()))
}

/// Every expression of them with its variables filled in, as a file of rules: for whoever asks a Prometheus whether it
/// can be read, and whether it has a result. By the name of the file: those that have one only where a backfill runs are
/// apart.
pub fn expressions() -> [(&'static str, Value); 2] {
    let (backfills, others): (Vec<_>, Vec<_>) =
        dashboards().into_iter().partition(|dashboard| dashboard.about == About::Backfill);
    [("dashboards", rules(&others)), ("dashboards-backfill", rules(&backfills))]
}

fn rules(dashboards: &[Dashboard]) -> Value {
    let filled = |expr: &str| {
        let expr = expr.replace(ONE_PIPELINE, "namespace=~\".+\",pipeline=~\".+\"");
        let expr = expr.replace("backfill=\"$backfill\"", "backfill=~\".+\"");
        let expr = expr.replace("$namespace", ".+").replace("$__rate_interval", "2m");
        assert!(!expr.contains('$'), "a variable is left: {expr}");
        expr
    };
    let group = |dashboard: &Dashboard| {
        let panels = dashboard.json()["panels"].take();
        let targets = panels.as_array().expect("panels").iter().filter_map(|panel| panel["targets"].as_array());
        let rules: Vec<Value> = targets
            .flatten()
            .zip(1..)
            .map(|(target, number)| {
                let record = format!("panel:{}:{number}", dashboard.name);
                json!({"record": record, "expr": filled(target["expr"].as_str().expect("an expression"))})
            })
            .collect();
        json!({"name": dashboard.name, "rules": rules})
    };
    json!({"groups": dashboards.iter().map(group).collect::<Vec<_>>()})
}

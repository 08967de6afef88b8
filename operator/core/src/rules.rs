//! Rules for Prometheus: what it records of each SLO, and whom it calls.
//!
//! An SLO has two groups. The fast one records the error ratio over the windows of the tiers that page, and pages: within
//! one evaluation, since rules of a group run one after another. The slow one does so for tickets and for the whole
//! window, less often, since long ranges are dear. Names and labels are Sloth's, so that its dashboards and those made
//! for them work; alerts differ, since each tier is a rule of its own with a label `tier` that stays what it is, by
//! which Alertmanager keeps the slower ones quiet (`docs/alerts.md`).
//!
//! All ratios come from the operator's counters of observations (slices of time, or records), by `rate` over the window
//! itself: counters begin at 0 with each leader, and an average of ratios would weigh a night like a rush hour. Where
//! nothing is counted, since a pipeline is suspended, the ratio is absent, and never NaN, which sums would keep.

use millrace_crds::duration::Duration;
use millrace_crds::pipeline::Slo;
use millrace_crds::pipeline::burn::{self, Objective, Observation, Severity, Tier};
use serde_json::{Map, Value, json};

use crate::settings;

/// Every alert: each has a page `docs/runbooks/<name>.md`.
pub const ALERTS: [&str; 7] = [BURN, DATA_MISSING, LAG_HIGH, LAG_UNKNOWN, DEAD_LETTERS, OPERATOR_ABSENT, UNOBSERVED];
const BURN: &str = "MillraceErrorBudgetBurn";
const DATA_MISSING: &str = "MillraceSLODataMissing";
const LAG_HIGH: &str = "MillraceLagHigh";
const LAG_UNKNOWN: &str = "MillraceLagUnknown";
const DEAD_LETTERS: &str = "MillraceDeadLetters";
const OPERATOR_ABSENT: &str = "MillraceOperatorAbsent";
const UNOBSERVED: &str = "MillraceSlicesUnobserved";

/// In the operator's own rules, which the chart fills in: the namespace of its release.
pub const RELEASE_NAMESPACE: &str = "RELEASE_NAMESPACE";
/// The same for `rules.runbooks`.
pub const RUNBOOKS: &str = "RUNBOOKS";

/// The windows that Sloth records, besides the SLO's own.
const FAST_WINDOWS: [Duration; 4] = [minutes(5), minutes(30), minutes(60), minutes(6 * 60)];
const SLOW_WINDOWS: [Duration; 3] = [minutes(2 * 60), minutes(24 * 60), minutes(3 * 24 * 60)];
/// Below the five minutes after which Prometheus takes a series for gone.
const SLOW_INTERVAL: &str = "2m";
/// A lag that no SLO bounds is too much from here on. What a catch-up after a roll leaves is far below.
const LAG_SECONDS_MAX: u32 = 300;
/// Longer than a worker takes to come back, and the grace of an SLO.
const HOLD: &str = "10m";
/// Before what it keeps quiet would fire.
const HOLD_OPERATOR: &str = "5m";
/// What the counters of the operator's pod say of the scrape and not of the pipeline.
const OF_THE_SCRAPE: &str = "container, endpoint, job, service";
const AS_DURATION: &str = "{{ .Value | humanizeDuration }}";
/// How far back the text of an alert looks for its begin, in windows or holds; and how finely.
const SINCE_WINDOWS: i64 = 4;
const SINCE_STEPS: i64 = 240;

/// What the rules of a Pipeline are made from.
#[derive(Clone, Copy)]
pub struct RulesOf<'a> {
    pub namespace: &'a str,
    pub pipeline: &'a str,
    pub slos: &'a [SloRule<'a>],
    pub settings: &'a settings::Rules,
}

/// An SLO that has no mistakes.
#[derive(Clone, Copy)]
pub struct SloRule<'a> {
    pub name: &'a str,
    pub indicator: Indicator,
    pub objective: Objective,
    pub window: Duration,
    /// Fewer records in a long window are no reason to call anybody. Of slices there is always one.
    pub min_events: u64,
}

impl<'a> SloRule<'a> {
    /// `None` of one that the schema would not let through.
    pub fn of(slo: &'a Slo) -> Option<Self> {
        let indicator = match slo {
            Slo { freshness: Some(freshness), .. } => Indicator::Freshness { threshold: freshness.threshold },
            Slo { lag: Some(lag), .. } => Indicator::Lag { threshold: lag.threshold },
            Slo { watermark_lag: Some(lag), .. } => Indicator::WatermarkLag { threshold: lag.threshold },
            Slo { completeness: Some(_), .. } => Indicator::Completeness,
            _ => Indicator::Correctness,
        };
        let (name, objective) = (slo.name.as_str(), slo.parsed_objective()?);
        Some(Self { name, indicator, objective, window: slo.window, min_events: slo.min_events.into() })
    }
}

/// What an SLO is about, with the longest time that is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indicator {
    Freshness { threshold: Duration },
    Lag { threshold: Duration },
    WatermarkLag { threshold: Duration },
    Completeness,
    Correctness,
}

impl Indicator {
    pub const fn observation(self) -> Observation {
        match self {
            Self::Freshness { .. } | Self::Lag { .. } | Self::WatermarkLag { .. } => Observation::Slice,
            Self::Completeness | Self::Correctness => Observation::Record,
        }
    }

    /// As labels say it.
    const fn name(self) -> &'static str {
        match self {
            Self::Freshness { .. } => "freshness",
            Self::Lag { .. } => "lag",
            Self::WatermarkLag { .. } => "watermarkLag",
            Self::Completeness => "completeness",
            Self::Correctness => "correctness",
        }
    }

    /// What those notice whom the SLO is for.
    fn harm(self) -> String {
        match self {
            Self::Freshness { threshold } => format!("results come later than {threshold}"),
            Self::Lag { threshold } => format!("records wait for longer than {threshold}"),
            Self::WatermarkLag { threshold } => format!("event time is more than {threshold} behind"),
            Self::Completeness => "rows are missing from the balance".to_owned(),
            Self::Correctness => "records become dead letters".to_owned(),
        }
    }
}

/// The rules of a Pipeline, as the file that Prometheus reads: `{"groups": [...]}`, which is the spec of a PrometheusRule
/// too.
pub fn groups(of: &RulesOf<'_>) -> Value {
    let slos = of.slos.iter().flat_map(|slo| {
        let slo = OfSlo { of, slo };
        [slo.fast(), slo.slow()]
    });
    let groups: Vec<Value> = slos.chain([of.pipeline_group()]).collect();
    json!({"groups": groups})
}

/// The rules about the operator itself. The chart has them, since an operator that is gone can not say so;
/// [`RELEASE_NAMESPACE`] and [`RUNBOOKS`] are to be filled in.
pub fn operator_groups() -> Value {
    let own = json!({"namespace": RELEASE_NAMESPACE});
    let leader = format!("millrace_operator_leader{{namespace=\"{RELEASE_NAMESPACE}\"}}");
    let unobserved = format!("millrace_operator_unobserved_slices_total{{namespace=\"{RELEASE_NAMESPACE}\"}}");
    let absent = Alert {
        name: OPERATOR_ABSENT,
        expr: format!("absent({leader} == 1)"),
        hold: Some(HOLD_OPERATOR),
        severity: Severity::Page,
        labels: &own,
        summary: format!("No operator of Millrace leads in {RELEASE_NAMESPACE}: nobody counts SLOs"),
        description: format!(
            "Pipelines run on, and nothing is healed, moved or counted: their burn-rate alerts are blind. {}",
            since(&format!("max({leader}) == 1"), minutes(60)),
        ),
        runbooks: RUNBOOKS,
    };
    let unobserved = Alert {
        name: UNOBSERVED,
        expr: format!("sum(rate({unobserved}[10m])) > 0"),
        hold: None,
        severity: Severity::Ticket,
        labels: &own,
        summary: format!("The operator in {RELEASE_NAMESPACE} does not reach more than half of all workers"),
        description: format!(
            "{{{{ with query `sum(increase({unobserved}[1h]))` }}}}{{{{ . | first | value | printf \"%.0f\" }}}} slices of \
             the last hour wait for workers, and{{{{ else }}}}Slices that wait for workers{{{{ end }}}} count for no SLO after \
             an hour: more likely the operator is cut off than all pipelines are down. {}",
            since(&format!("sum(rate({unobserved}[10m])) == 0"), minutes(60)),
        ),
        runbooks: RUNBOOKS,
    };
    json!({"groups": [{"name": "millrace-operator", "rules": [absent.rule(), unobserved.rule()]}]})
}

impl RulesOf<'_> {
    fn service(&self) -> String {
        format!("{}/{}", self.namespace, self.pipeline)
    }

    /// Selects the pipeline's series; `more` are further labels.
    fn series(&self, metric: &str, more: &str) -> String {
        let (label, namespace, pipeline) = (self.settings.namespace.label(), self.namespace, self.pipeline);
        format!("{metric}{{{label}=\"{namespace}\",pipeline=\"{pipeline}\"{more}}}")
    }

    /// Labels of what comes without series of its own.
    fn labels(&self) -> Value {
        json!({
            self.settings.namespace.label(): self.namespace,
            "pipeline": self.pipeline,
            "sloth_service": self.service(),
        })
    }

    fn title(&self) -> String {
        format!("Pipeline {} in {}", self.pipeline, self.namespace)
    }

    /// What needs no SLO.
    fn pipeline_group(&self) -> Value {
        let rules = [self.lag_high(), self.lag_unknown(), self.dead_letters()];
        // No SLO is called so: there is no slash in a name.
        json!({"name": "pipeline/alerts", "rules": rules})
    }

    fn lag_high(&self) -> Value {
        let lag = self.series("millrace_source_lag_seconds", "");
        let threshold = Duration::from_secs(u64::from(LAG_SECONDS_MAX));
        Alert {
            name: LAG_HIGH,
            expr: format!("max({lag}) > {LAG_SECONDS_MAX}"),
            hold: Some(HOLD),
            severity: Severity::Ticket,
            labels: &self.labels(),
            summary: format!("{}: records wait for longer than {threshold}", self.title()),
            description: format!(
                "{} {}",
                since(&format!("max({lag}) <= {LAG_SECONDS_MAX}"), minutes(60)),
                worst(&lag, &["source", "partition"], AS_DURATION, ""),
            ),
            runbooks: &self.settings.runbooks,
        }
        .rule()
    }

    /// A worker does not know it, or there is none to ask although the pipeline is to run.
    fn lag_unknown(&self) -> Value {
        let known = self.series("millrace_source_lag_known", "");
        let running = self.series("millrace_pipeline_running", "");
        Alert {
            name: LAG_UNKNOWN,
            expr: format!("min({known}) == 0 or (max({running}) == 1 unless min({known}))"),
            hold: Some(HOLD),
            severity: Severity::Ticket,
            labels: &self.labels(),
            summary: format!("{}: nobody knows how far it is behind", self.title()),
            description: format!(
                "{} {}",
                since(&format!("min({known}) == 1"), minutes(60)),
                worst(
                    &format!("{known} == 0"),
                    &["source", "partition"],
                    "",
                    "No worker of it can be scraped: all are gone, or Prometheus does not look for them."
                ),
            ),
            runbooks: &self.settings.runbooks,
        }
        .rule()
    }

    fn dead_letters(&self) -> Value {
        let dropped = self.series("millrace_rows_dropped_total", ",reason=\"dead_lettered\"");
        Alert {
            name: DEAD_LETTERS,
            expr: format!("sum(rate({dropped}[10m])) > 0"),
            hold: None,
            severity: Severity::Ticket,
            labels: &self.labels(),
            summary: format!("{}: records become dead letters", self.title()),
            description: format!(
                "{} {}",
                since(&format!("sum(rate({dropped}[10m])) == 0"), minutes(60)),
                self.worst_dead_letters(),
            ),
            runbooks: &self.settings.runbooks,
        }
        .rule()
    }

    fn worst_dead_letters(&self) -> String {
        let dropped = self.series("millrace_rows_dropped_total", ",reason=\"dead_lettered\"");
        let by_task = format!("sum by (stage, partition, step) (increase({dropped}[1h])) > 0");
        worst(&by_task, &["stage", "partition", "step"], "{{ .Value | printf \"%.0f\" }} in the last hour", "")
    }
}

/// One SLO of a Pipeline.
struct OfSlo<'a> {
    of: &'a RulesOf<'a>,
    slo: &'a SloRule<'a>,
}

impl OfSlo<'_> {
    fn fast(&self) -> Value {
        let mut rules: Vec<Value> = FAST_WINDOWS.into_iter().map(|window| self.ratio(window)).collect();
        rules.extend(self.metadata());
        let budget = self.recorded("slo:error_budget:ratio");
        let now = self.recorded("slo:sli_error:ratio_rate5m");
        rules.push(self.record("slo:current_burn_rate:ratio", &over_budget(&now, &budget)));
        rules.extend(self.burns(Severity::Page));
        rules.push(self.data_missing());
        json!({"name": self.slo.name, "rules": rules})
    }

    fn slow(&self) -> Value {
        let mut rules: Vec<Value> = SLOW_WINDOWS.into_iter().map(|window| self.ratio(window)).collect();
        rules.push(self.ratio(self.slo.window));
        let budget = self.recorded("slo:error_budget:ratio");
        let period = self.recorded(&ratio_name(self.slo.window));
        rules.push(self.record("slo:period_burn_rate:ratio", &over_budget(&period, &budget)));
        let burnt = self.recorded("slo:period_burn_rate:ratio");
        rules.push(self.record("slo:period_error_budget_remaining:ratio", &format!("1 - {burnt}")));
        rules.extend(self.burns(Severity::Ticket));
        json!({"name": format!("{}/slow", self.slo.name), "interval": SLOW_INTERVAL, "rules": rules})
    }

    /// Selects series of the SLO as they are scraped.
    fn scraped(&self, metric: &str) -> String {
        self.of.series(metric, &format!(",slo=\"{}\"", self.slo.name))
    }

    /// Selects a series that another rule has recorded. An id alone would not do: shop-eu/orders and shop/eu-orders have
    /// the same one.
    fn recorded(&self, metric: &str) -> String {
        format!("{metric}{{sloth_service=\"{}\",sloth_slo=\"{}\"}}", self.of.service(), self.slo.name)
    }

    fn labels(&self) -> Map<String, Value> {
        let RulesOf { namespace, pipeline, .. } = self.of;
        let mut labels = object(self.of.labels());
        labels.insert("sloth_id".to_owned(), json!(format!("{namespace}-{pipeline}-{}", self.slo.name)));
        labels.insert("sloth_slo".to_owned(), json!(self.slo.name));
        labels
    }

    fn record(&self, name: &str, expr: &str) -> Value {
        json!({"record": name, "expr": expr, "labels": self.labels()})
    }

    /// Share of bad observations, by their numbers over the whole window.
    fn ratio(&self, window: Duration) -> Value {
        let range = prometheus(window);
        let rate = |metric| format!("sum without (instance, pod) (rate({}[{range}]))", self.scraped(metric));
        let (bad, all) = (rate("millrace_slo_bad_observations_total"), rate("millrace_slo_observations_total"));
        let mut labels = self.labels();
        labels.insert("sloth_window".to_owned(), json!(range));
        json!({"record": ratio_name(window), "expr": format!("{bad} / ({all} > 0)"), "labels": labels})
    }

    fn metadata(&self) -> [Value; 4] {
        let SloRule { objective, window, .. } = self.slo;
        let days = window.ms() as f64 / Duration::from_days(1).ms() as f64;
        let mut info = self.record("sloth_slo_info", "vector(1)");
        info["labels"]["sloth_objective"] = json!(objective.to_string());
        [
            self.record("slo:objective:ratio", &format!("vector({})", objective.ratio())),
            self.record("slo:error_budget:ratio", &format!("vector({})", objective.budget())),
            self.record("slo:time_period:days", &format!("vector({days})")),
            info,
        ]
    }

    fn burns(&self, severity: Severity) -> impl Iterator<Item = Value> {
        burn::tiers(self.slo.window).filter(move |tier| tier.severity == severity).map(|tier| self.burn(tier))
    }

    fn burn(&self, tier: Tier) -> Value {
        let SloRule { name, objective, window, indicator, min_events } = self.slo;
        let threshold = format!("({} * {})", tier.factor(*window), objective.budget());
        let above = |range| {
            let ratio = self.recorded(&ratio_name(range));
            format!("max without (sloth_window, {OF_THE_SCRAPE}) ({ratio} > {threshold})")
        };
        let enough = if indicator.observation() == Observation::Record && *min_events > 1 {
            let records = self.scraped("millrace_slo_observations_total");
            format!(" and on () sum(increase({records}[{}])) >= {min_events}", prometheus(tier.long))
        } else {
            String::new()
        };
        let mut labels = self.labels();
        labels.insert("kind".to_owned(), json!(indicator.name()));
        labels.insert("sloth_severity".to_owned(), json!(tier.severity.name()));
        labels.insert("tier".to_owned(), json!(prometheus(tier.long)));
        Alert {
            name: BURN,
            expr: format!("{} and {}{enough}", above(tier.long), above(tier.short)),
            hold: None,
            severity: tier.severity,
            labels: &Value::Object(labels),
            summary: format!(
                "{}: {} (SLO {name}, {objective} % over {})",
                self.of.title(),
                indicator.harm(),
                prometheus(*window)
            ),
            description: format!("{} {} {}", self.burnt_since(tier), self.budget(tier), self.worst()),
            runbooks: &self.of.settings.runbooks,
        }
        .rule()
    }

    fn burnt_since(&self, tier: Tier) -> String {
        let ratio = self.recorded(&ratio_name(tier.short));
        since(&format!("max({ratio}) <= {}", self.slo.objective.budget()), tier.long)
    }

    /// What is spent, as the operator counts it, and how long the rest lasts: `remaining * budget * window / ratio`.
    fn budget(&self, tier: Tier) -> String {
        let remaining = self.scraped("millrace_slo_error_budget_remaining_ratio");
        let ratio = self.recorded(&ratio_name(tier.short));
        let (window, short) = (prometheus(self.slo.window), prometheus(tier.short));
        let seconds = self.slo.objective.budget() * self.slo.window.ms() as f64 / 1e3;
        format!(
            "{{{{ with query `1 - max({remaining})` }}}}{{{{ . | first | value | humanizePercentage }}}} of the error budget \
             of {window} is spent{{{{ else }}}}How much of the error budget of {window} is spent is not known{{{{ end }}}}\
             {{{{ with query `(max({remaining}) > 0) / (max({ratio}) > 0) * {seconds}` }}}}; at the rate of the last \
             {short} the rest lasts {{{{ . | first | value | humanizeDuration }}}}{{{{ end }}}}\
             {{{{ if query `max({remaining}) <= 0` }}}}: nothing is left{{{{ end }}}}."
        )
    }

    fn worst(&self) -> String {
        match self.slo.indicator {
            Indicator::Freshness { .. } | Indicator::Lag { .. } | Indicator::WatermarkLag { .. } => worst(
                &self.scraped("millrace_slo_worst_seconds"),
                &["source", "partition"],
                AS_DURATION,
                "No partition could be measured: look whether its workers run.",
            ),
            Indicator::Correctness => self.of.worst_dead_letters(),
            // The balance is the pipeline's: no row knows where it was lost.
            Indicator::Completeness => "status.slos of the Pipeline has more.".to_owned(),
        }
    }

    /// Nothing is counted although the pipeline is to run. Slices never end; of records there may be none.
    fn data_missing(&self) -> Value {
        let observations = self.scraped("millrace_slo_observations_total");
        let running = self.of.series("millrace_pipeline_running", "");
        let counted = match self.slo.indicator.observation() {
            Observation::Slice => format!("sum(rate({observations}[5m])) > 0"),
            Observation::Record => format!("sum({observations})"),
        };
        Alert {
            name: DATA_MISSING,
            expr: format!("absent({counted}) unless on () max({running}) == 0"),
            hold: Some(HOLD),
            severity: Severity::Ticket,
            labels: &Value::Object(self.labels()),
            summary: format!("{}: nothing is counted for its SLO {}", self.of.title(), self.slo.name),
            description: format!("Its burn-rate alerts can not fire meanwhile. {}", since(&counted, minutes(60)),),
            runbooks: &self.of.settings.runbooks,
        }
        .rule()
    }
}

/// What becomes an alerting rule.
struct Alert<'a> {
    name: &'static str,
    expr: String,
    hold: Option<&'static str>,
    severity: Severity,
    labels: &'a Value,
    summary: String,
    description: String,
    runbooks: &'a str,
}

impl Alert<'_> {
    fn rule(self) -> Value {
        let page = format!("{}.md", self.name);
        let mut annotations = json!({
            "summary": self.summary,
            "description": self.description.trim_end(),
            // As it lies in the repository, for those who cannot reach what serves it.
            "runbook": format!("docs/runbooks/{page}"),
        });
        if !self.runbooks.is_empty() {
            annotations["runbook_url"] = json!(format!("{}/{page}", self.runbooks.trim_end_matches('/')));
        }
        let mut labels = object(self.labels.clone());
        labels.insert("severity".to_owned(), json!(self.severity.name()));
        let mut rule = json!({"alert": self.name, "expr": self.expr, "labels": labels, "annotations": annotations});
        if let Some(hold) = self.hold {
            rule["for"] = json!(hold);
        }
        rule
    }
}

/// A sentence: the last time when it was well, over a few of the windows that the alert looks at.
fn since(well: &str, window: Duration) -> String {
    let back = Duration::from_ms((window.ms() * SINCE_WINDOWS) as u64);
    let step = Duration::from_ms(back.ms() as u64 / SINCE_STEPS as u64);
    let (range, step) = (prometheus(back), prometheus(step));
    format!(
        "{{{{ with query `max_over_time(timestamp({well})[{range}:{step}])` }}}}Since \
         {{{{ . | first | value | humanizeTimestamp }}}}{{{{ else }}}}For all that is known of the last {range}\
         {{{{ end }}}}."
    )
}

/// A sentence: the labels of the largest of some series, and what `value` makes of it, if anything; `otherwise` where there
/// is none.
fn worst(series: &str, labels: &[&str], value: &str, otherwise: &str) -> String {
    let names: Vec<String> = labels.iter().map(|label| format!("{label} {{{{ .Labels.{label} }}}}")).collect();
    let value = if value.is_empty() { String::new() } else { format!(" ({value})") };
    let otherwise = if otherwise.is_empty() { String::new() } else { format!("{{{{ else }}}}{otherwise}") };
    format!(
        "{{{{ with query `topk(1, {series})` }}}}{{{{ with first . }}}}Worst: {}{value}.{{{{ end }}}}{otherwise}{{{{ end }}}}",
        names.join(", "),
    )
}

fn ratio_name(window: Duration) -> String {
    format!("slo:sli_error:ratio_rate{}", prometheus(window))
}

fn over_budget(ratio: &str, budget: &str) -> String {
    format!("{ratio} / on (sloth_id, sloth_slo, sloth_service) group_left () {budget}")
}

/// As Prometheus writes a duration, and so Sloth in its names: whole weeks as weeks.
fn prometheus(duration: Duration) -> String {
    let week = Duration::from_days(7).ms();
    if duration.ms() % week == 0 { format!("{}w", duration.ms() / week) } else { duration.to_string() }
}

const fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(minutes * 60)
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

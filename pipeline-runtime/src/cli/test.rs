//! `millrace test`: runs each case of a folder and compares what comes out with what is expected.
//!
//! A case is `<case>/input/<topic>.jsonl` and `<case>/expected/<topic>.jsonl`. Records are compared in order; by
//! partition where the expected lines name partitions. Timestamps are compared where the expected line has one, headers
//! where it names them. A topic without an expected file must stay empty. `UPDATE=1` writes what came out as expected.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use millrace_core::plan::Plan;
use millrace_crds::pipeline::Pipeline;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Failure, Outcome, compile, pipeline, run};
use crate::log::file::FileLogConfig;

/// Differences of one topic that are shown; the rest is counted.
const SHOWN_MAX: usize = 3;

#[derive(clap::Args)]
pub struct Args {
    /// The pipeline's file.
    #[arg(short, long)]
    file: PathBuf,
    /// The folder of the cases.
    cases: PathBuf,
    /// Write the results as JUnit XML.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

pub fn run(args: &Args) -> Outcome {
    let pipeline = pipeline(&args.file)?;
    let plan = compile(&args.file, &pipeline)?;
    let cases = cases(&args.cases)?;
    let update = crate::cli::update_requested();
    let mut results = Vec::new();
    for case in &cases {
        let name = case.file_name().and_then(|n| n.to_str()).unwrap_or_default().to_owned();
        let differences = match run_case(&pipeline, &plan, case, update) {
            Ok(differences) => differences,
            Err(error) => vec![format!("{error:#}")],
        };
        println!("{} {name}", if differences.is_empty() { "ok    " } else { "FAILED" });
        differences.iter().for_each(|difference| println!("  {difference}"));
        results.push((name, differences));
    }
    let failed = results.iter().filter(|(_, differences)| !differences.is_empty()).count();
    if let Some(file) = &args.junit {
        let text = junit(&args.file.display().to_string(), &results, failed);
        std::fs::write(file, text).with_context(|| format!("write {}", file.display()))?;
    }
    println!("{} passed, {failed} failed", cases.len() - failed);
    if failed > 0 { Err(Failure::Reported) } else { Ok(()) }
}

/// The results as JUnit XML: the part of it that every CI reads.
fn junit(suite: &str, results: &[(String, Vec<String>)], failed: usize) -> String {
    let mut xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"{}\" tests=\"{}\" failures=\"{failed}\">\n",
        escaped(suite),
        results.len()
    );
    for (name, differences) in results {
        xml.push_str(&format!("  <testcase name=\"{}\">", escaped(name)));
        if !differences.is_empty() {
            xml.push_str(&format!("<failure>{}</failure>", escaped(&differences.join("\n"))));
        }
        xml.push_str("</testcase>\n");
    }
    xml + "</testsuite>\n"
}

/// Text for XML. Control characters have no place in XML 1.0 at all.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c < ' ' && !matches!(c, '\n' | '\t') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// The case folders, in order of their names.
fn cases(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut cases = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let path = entry.with_context(|| format!("list {}", dir.display()))?.path();
        if path.join("input").is_dir() {
            cases.push(path);
        }
    }
    if dir.join("input").is_dir() {
        cases.push(dir.to_owned());
    }
    cases.sort();
    anyhow::ensure!(!cases.is_empty(), "{} has no case: a case is a folder with `input` and `expected`", dir.display());
    Ok(cases)
}

fn run_case(pipeline: &Pipeline, plan: &Plan, case: &Path, update: bool) -> anyhow::Result<Vec<String>> {
    let scratch = tempfile::tempdir().context("make a temporary folder")?;
    let out = scratch.path().join("out");
    let files = FileLogConfig {
        topics: case.join("input"),
        out: Some(out.clone()),
        state: scratch.path().join("state"),
        follow: false,
        missing_is_empty: true,
    };
    run::local(pipeline, &Arc::new(plan.clone()), files, None, &AtomicBool::new(false))?;
    if update {
        for topic in outputs(plan) {
            let expected_file = case.join("expected").join(format!("{topic}.jsonl"));
            let actual = records(&out.join(format!("{topic}.jsonl")))?;
            write_expected(&expected_file, &records(&expected_file)?, &actual)?;
        }
    }
    differences(plan, case, &out)
}

fn outputs(plan: &Plan) -> impl Iterator<Item = &String> {
    plan.sinks.iter().map(|s| &s.topic).chain(&plan.dead_letter)
}

/// How the topics in the folder `out` differ from what a case expects.
pub fn differences(plan: &Plan, case: &Path, out: &Path) -> anyhow::Result<Vec<String>> {
    let mut differences = unknown_topics(plan, case)?;
    for topic in outputs(plan) {
        let file = format!("{topic}.jsonl");
        differences.extend(compare(topic, &records(&case.join("expected").join(&file))?, &records(&out.join(&file))?));
    }
    Ok(differences)
}

/// A file in a case that belongs to no topic of the pipeline is a slip that would otherwise pass in silence.
fn unknown_topics(plan: &Plan, case: &Path) -> anyhow::Result<Vec<String>> {
    let sources: Vec<&String> = plan.sources.iter().map(|s| &s.topic).collect();
    let outputs: Vec<&String> = outputs(plan).collect();
    let mut unknown = Vec::new();
    for (folder, topics) in [("input", sources), ("expected", outputs)] {
        let dir = case.join(folder);
        if !dir.is_dir() {
            continue;
        }
        for entry in std::fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))? {
            let name = entry.with_context(|| format!("list {}", dir.display()))?.file_name();
            let name = name.to_string_lossy();
            let topic = name.strip_suffix(".jsonl").unwrap_or(&name);
            if !topics.iter().any(|t| *t == topic) {
                unknown.push(format!("{folder}/{name}: the pipeline has no such topic"));
            }
        }
    }
    unknown.sort();
    Ok(unknown)
}

/// A line's fields as they stand: a decimal must not pass through a float.
type Line = BTreeMap<String, Box<RawValue>>;

fn records(path: &Path) -> anyhow::Result<Vec<Line>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e).with_context(|| format!("read {}", path.display())),
    };
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let parse = |(i, line)| serde_json::from_str(line).with_context(|| format!("{}:{}", path.display(), i + 1));
    lines.map(parse).collect()
}

/// The same JSON: space and the order of fields do not count, digits do.
fn same(a: &RawValue, b: &RawValue) -> bool {
    fn read<'a, T: serde::Deserialize<'a>>(raw: &'a RawValue) -> Option<T> {
        serde_json::from_str(raw.get()).ok()
    }
    match (a.get().as_bytes().first(), b.get().as_bytes().first()) {
        (Some(b'{'), Some(b'{')) => {
            let (a, b) = (read::<BTreeMap<String, &RawValue>>(a), read::<BTreeMap<String, &RawValue>>(b));
            a.zip(b).is_some_and(|(a, b)| {
                a.len() == b.len() && a.iter().zip(&b).all(|((n, a), (m, b))| n == m && same(a, b))
            })
        }
        (Some(b'['), Some(b'[')) => {
            let (a, b) = (read::<Vec<&RawValue>>(a), read::<Vec<&RawValue>>(b));
            a.zip(b).is_some_and(|(a, b)| a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| same(a, b)))
        }
        (Some(b'"'), Some(b'"')) => read::<String>(a) == read::<String>(b),
        _ => a.get() == b.get(),
    }
}

fn compare(topic: &str, expected: &[Line], actual: &[Line]) -> Vec<String> {
    let by_partition = expected.iter().any(|line| line.contains_key("partition"));
    let group = |lines: &[Line]| -> BTreeMap<i64, Vec<Line>> {
        let mut groups: BTreeMap<i64, Vec<Line>> = BTreeMap::new();
        for line in lines {
            let partition = line.get("partition").and_then(|p| p.get().parse().ok()).unwrap_or(0);
            groups.entry(if by_partition { partition } else { 0 }).or_default().push(line.clone());
        }
        groups
    };
    let (expected, mut actual) = (group(expected), group(actual));
    let mut differences = Vec::new();
    for (partition, expected) in expected {
        let place = if by_partition { format!("{topic} partition {partition}") } else { topic.to_owned() };
        compare_lines(&place, &expected, &actual.remove(&partition).unwrap_or_default(), &mut differences);
    }
    for (_, unexpected) in actual {
        compare_lines(topic, &[], &unexpected, &mut differences);
    }
    differences
}

fn compare_lines(place: &str, expected: &[Line], actual: &[Line], differences: &mut Vec<String>) {
    let mut found = Vec::new();
    for i in 0..expected.len().max(actual.len()) {
        match (expected.get(i), actual.get(i)) {
            (Some(e), Some(a)) if matches(e, a) => {}
            (Some(e), Some(a)) => found.push(format!("expected {}, got {}", text(e), text(a))),
            (Some(e), None) => found.push(format!("expected {}, got nothing", text(e))),
            (None, Some(a)) => found.push(format!("expected nothing, got {}", text(a))),
            (None, None) => {}
        }
        if let Some(last) = found.last_mut().filter(|last| !last.starts_with(place)) {
            *last = format!("{place} record {i}: {last}");
        }
    }
    let hidden = found.len().saturating_sub(SHOWN_MAX);
    differences.extend(found.into_iter().take(SHOWN_MAX));
    if hidden > 0 {
        differences.push(format!("{place}: and {hidden} more differences"));
    }
}

fn text(line: &Line) -> String {
    serde_json::to_string(line).unwrap_or_default()
}

/// Does a record match an expected line? What the line leaves out is not asked, but for key and value.
fn matches(expected: &Line, actual: &Line) -> bool {
    let equal = |field: &str| match (expected.get(field), actual.get(field)) {
        (Some(expected), Some(actual)) => same(expected, actual),
        (None, None) => true,
        _ => false,
    };
    let asked = |field: &str| !expected.contains_key(field) || equal(field);
    let actual_headers = headers(actual);
    let headers = headers(expected)
        .iter()
        .all(|(name, value)| actual_headers.get(name).is_some_and(|actual| same(value, actual)));
    let key = key(expected) == key(actual);
    key && equal("value") && equal("valueBase64") && asked("timestamp") && asked("partition") && headers
}

fn headers(line: &Line) -> Line {
    line.get("headers").and_then(|h| serde_json::from_str(h.get()).ok()).unwrap_or_default()
}

/// A key in whichever way it is written, as its text; JSON in a compact form, since `keyJson` has no other text here.
fn key(line: &Line) -> Option<String> {
    let compact = |json: &str| serde_json::from_str::<Value>(json).map(|v| v.to_string()).ok();
    if let Some(json) = line.get("keyJson") {
        return compact(json.get());
    }
    let key = line.get("key").or_else(|| line.get("keyBase64"))?;
    let text: Option<String> = serde_json::from_str(key.get()).ok()?;
    text.map(|text| compact(&text).unwrap_or(text))
}

/// Writes what came out. A file that matches stays as it is; fields and headers that it left out stay out.
fn write_expected(path: &Path, before: &[Line], actual: &[Line]) -> anyhow::Result<()> {
    if compare("", before, actual).is_empty() {
        return Ok(());
    }
    if actual.is_empty() {
        return std::fs::remove_file(path).with_context(|| format!("remove {}", path.display()));
    }
    let used = |field: &str| before.iter().any(|line| line.contains_key(field));
    let header_names: Vec<String> = before.iter().flat_map(|line| headers(line).into_keys()).collect();
    let mut out = String::new();
    for line in actual {
        let mut fields = Vec::new();
        for field in ["partition", "timestamp", "key", "keyBase64", "value", "valueBase64"] {
            let wanted = used(field) || !matches!(field, "partition" | "timestamp");
            if let Some(value) = line.get(field).filter(|_| wanted) {
                fields.push(format!("\"{field}\":{}", value.get()));
            }
        }
        let headers = headers(line);
        let kept = headers.iter().filter(|(name, _)| before.is_empty() || header_names.contains(name));
        let kept: Vec<String> =
            kept.map(|(name, value)| format!("{}:{}", Value::from(name.as_str()), value.get())).collect();
        if !kept.is_empty() {
            fields.push(format!("\"headers\":{{{}}}", kept.join(",")));
        }
        out.push_str(&format!("{{{}}}\n", fields.join(",")));
    }
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    }
    std::fs::write(path, out).with_context(|| format!("write {}", path.display()))
}

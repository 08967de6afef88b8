//! What the operator writes, by the API server's audit log.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::PathBuf;

use anyhow::Context;
use millrace_cluster_harness::Cluster;
use millrace_crds::timestamp::Timestamp;
use serde_json::Value;

/// What the operator calls itself.
const AGENT: &str = "\"userAgent\":\"millrace-operator/";

/// One write.
#[derive(Clone, Debug)]
pub struct Write {
    /// When the API server received it and when it had answered, milliseconds since 1970.
    pub received_ms: i64,
    pub answered_ms: i64,
    /// As in `pipelines/status`.
    pub resource: String,
    pub name: String,
}

/// A reader of the log.
pub struct Audit {
    path: PathBuf,
    read: u64,
}

impl Audit {
    /// Of what is written from now on.
    pub fn from_now(cluster: &Cluster) -> anyhow::Result<Self> {
        let mut audit = Self { path: cluster.audit_log(), read: 0 };
        audit.writes()?;
        Ok(audit)
    }

    /// What the operator has written since the last call. What is only tried out is no write.
    pub fn writes(&mut self) -> anyhow::Result<Vec<Write>> {
        let mut log = BufReader::new(File::open(&self.path).context("open the audit log")?);
        log.seek(SeekFrom::Start(self.read)).context("find the place in the audit log")?;
        let (mut writes, mut line) = (Vec::new(), String::new());
        // The last line may not be whole yet.
        while log.read_line(&mut line).context("read the audit log")? > 0 && line.ends_with('\n') {
            self.read += line.len() as u64;
            if line.contains(AGENT) && !line.contains("dryRun=All") {
                writes.extend(write(&line)?);
            }
            line.clear();
        }
        Ok(writes)
    }
}

fn write(line: &str) -> anyhow::Result<Option<Write>> {
    let event: Value = serde_json::from_str(line).context("read a line of the audit log")?;
    if event["stage"] != "ResponseComplete" {
        return Ok(None);
    }
    let time = |field: &str| {
        let time = event[field].as_str().and_then(Timestamp::parse).map(Timestamp::ms);
        time.with_context(|| format!("the audit log has no {field}: {line}"))
    };
    let text = |field: &str| event["objectRef"][field].as_str().unwrap_or_default();
    let resource = [text("resource"), text("subresource")].join("/");
    Ok(Some(Write {
        received_ms: time("requestReceivedTimestamp")?,
        answered_ms: time("stageTimestamp")?,
        resource: resource.trim_end_matches('/').to_owned(),
        name: text("name").to_owned(),
    }))
}

//! The pod of a backfill, as a Job of the pipeline's own image: it ends by itself, and begins again where it was.

use millrace_crds::pipeline::PipelineSpec;
use serde_json::{Value, json};

use super::{
    CONTROL_DIR, Errand, JOB_SECONDS, Run, STATE_DIR, Source, control_flags, lanes, log_level, ports, state_volume,
    template,
};
use crate::backfill::Begun;
use crate::names::{ATTEMPT, BACKFILL, SUBJECT, TIDY, WORKER, digest};

const DIR: &str = "/etc/millrace/backfill";
const FILE: &str = "/etc/millrace/backfill/backfill.json";
/// Kubelet starts a container that has failed again, ever more seldom, and a pod that was lost has a successor.
const RESTARTS: u32 = 10_000;

impl Errand {
    /// Deletes what a backfill had in Kafka: before it is begun, of an earlier one of its name, and when it has ended.
    pub fn tidy(begun: &Begun) -> Self {
        let arguments = ["--backfill", FILE].map(str::to_owned).to_vec();
        let subject = digest(&json!([begun.subject(), begun.end.is_some()]));
        Self { component: TIDY, command: &["cleanup"], arguments, subject, seconds: JOB_SECONDS }
    }
}

impl Source<'_> {
    /// What the pods of a backfill read of it.
    pub fn backfill_document(&self, begun: &Begun) -> Value {
        let body = json!({"data": {"backfill.json": begun.document.to_string()}});
        self.object("v1", "ConfigMap", &self.names.backfill(&begun.subject()), BACKFILL, body)
    }

    /// Where a pod finds it.
    pub fn backfill_mount(&self, begun: &Begun) -> Value {
        json!({
            "containers": [{"name": WORKER, "volumeMounts": [{"name": "backfill", "mountPath": DIR, "readOnly": true}]}],
            "volumes": [{"name": "backfill", "configMap": {"name": self.names.backfill(&begun.subject())}}],
        })
    }

    /// The Job that computes. Whoever else wants the cores gets them first.
    pub fn backfill(&self, begun: &Begun, attempt: u32, run: &Run<'_>) -> Value {
        let mut args = self.arguments(&["run"], run);
        let flags = [("--backfill", FILE.to_owned()), ("--state", STATE_DIR.to_owned())];
        let flags = flags.into_iter().chain([("--lanes", lanes(run.spec, self.settings).to_string())]);
        let flags = flags.chain(control_flags()).chain([("--report", super::REPORT_FILE.to_owned())]);
        args.extend(flags.flat_map(|(flag, value)| [flag.to_owned(), value]));
        args.extend(["--log-level".to_owned(), log_level(run.spec.worker.log_level)]);
        let mut pod = self.job_pod(run, args);
        template::merge(&mut pod, &self.backfill_mount(begun));
        template::merge(&mut pod, &self.apart(run.spec));
        if !self.settings.backfill.priority_class_name.is_empty() {
            pod["priorityClassName"] = json!(self.settings.backfill.priority_class_name);
        }
        let body = json!({
            "metadata": {"annotations": {SUBJECT: begun.subject(), ATTEMPT: attempt.to_string()}},
            "spec": {
                "backoffLimit": RESTARTS,
                "template": {"metadata": {"labels": self.names.labels(BACKFILL)}, "spec": pod},
            },
        });
        self.object("batch/v1", "Job", &self.names.job(BACKFILL, &begun.subject(), attempt), BACKFILL, body)
    }

    /// What tells its pod from other Jobs'.
    fn apart(&self, spec: &PipelineSpec) -> Value {
        json!({
            "restartPolicy": "OnFailure",
            "containers": [{
                "name": WORKER,
                "ports": ports(),
                "resources": self.settings.backfill.resources,
                "volumeMounts": [
                    {"name": "state", "mountPath": STATE_DIR},
                    {"name": "control", "mountPath": CONTROL_DIR, "readOnly": true},
                ],
            }],
            "volumes": [
                state_volume(&spec.worker.state.volume.size),
                {"name": "control", "secret": {"secretName": self.names.control()}},
            ],
        })
    }
}

//! What the shell saw of one Pipeline: objects as the API server gives them, and what workers and the compiler said.

use std::collections::BTreeMap;

use millrace_core::report::{BackfillReport, Compiled, WorkerReport};
use serde_json::Value;

use crate::autoscale::History;
use crate::slo::books::Said;

/// Everything that a decision may depend on. Objects come from caches: each may be older than the others.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The Pipeline.
    pub pipeline: Value,
    /// Every object with the Pipeline's label: StatefulSet, Pods, Jobs, ConfigMaps, Secrets (metadata only), and so on.
    pub children: Vec<Value>,
    /// Rules about it in the operator's namespace, which belong to nobody there. They are there with or without a Pipeline.
    pub rules: Vec<Value>,
    /// Savepoints of the Pipeline, and the one that its spec restores.
    pub savepoints: Vec<Value>,
    /// Backfills of the Pipeline.
    pub backfills: Vec<Value>,
    /// What the pod of the one that runs says.
    pub backfill: Option<BackfillReport>,
    /// Resource versions of the Secrets that the spec names; `None` where there is no such Secret.
    pub secrets: BTreeMap<String, Option<String>>,
    /// The namespace is being deleted: nothing can be created in it.
    pub namespace_ends: bool,
    /// What became of this spec. `Pending` while its shape is wrong or it was not compiled.
    pub compilation: Compilation,
    /// The plan that runs, made anew where its ConfigMap was lost; until that is there no other spec is compiled.
    pub recovered: Option<Value>,
    /// What the API server said of the pod template of this spec, on a dry run.
    pub admission: Admission,
    /// The newest answer of each worker that answers.
    pub reports: BTreeMap<u32, WorkerReport>,
    /// When the oldest of these answers was asked for, milliseconds since 1970.
    pub reported_ms: Option<i64>,
    /// What they said over the last while, where autoscaling is on.
    pub history: History,
    /// When live numbers were last written to the status, milliseconds since 1970.
    pub live_written_ms: Option<i64>,
    /// How its SLOs stand; `None` of a Pipeline that has none.
    pub slos: Option<Said>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub enum Compilation {
    #[default]
    Pending,
    Done(Box<Compiled>),
    /// The compiler did not answer within its bounds, and says why.
    Failed(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    #[default]
    Untried,
    Accepted,
    Refused(String),
}

//! What is to be done, as data. The shell carries actions out in their order and stops at the first that fails.

use millrace_core::assignment::Assignment;
use millrace_crds::backfill::BackfillStatus;
use millrace_crds::pipeline::PipelineStatus;
use millrace_crds::savepoint::SavepointStatus;
use serde_json::Value;

/// One decision about one Pipeline.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    pub actions: Vec<Action>,
    /// `None` where the status that is there is true.
    pub status: Option<PipelineStatus>,
    pub events: Vec<Event>,
    /// Look again after so long, whatever happens meanwhile.
    pub again_ms: Option<u64>,
}

/// A write. Each names what it was decided over, so that one that was decided over something older is refused.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Server-side apply of the fields that we own.
    Put {
        object: Value,
        /// The resource version that was seen; `None` creates, and fails where there is such an object.
        over: Option<String>,
    },
    Delete {
        api_version: String,
        kind: String,
        namespace: String,
        name: String,
        uid: String,
    },
    /// Certificates of the control API are made anew.
    Certify(Certify),
    /// The assignment goes to a worker at once; its file follows within a minute.
    Push {
        worker: u32,
        address: String,
        assignment: Assignment,
    },
    /// Nobody takes the tasks of a worker that leaves: it need not wait for that.
    LetGo {
        worker: u32,
        address: String,
    },
    /// The number of workers that the autoscaler has chosen, through `/scale`, as a manager of its own.
    Scale {
        replicas: u32,
        over: String,
    },
    /// The whole list of the finalizers of the Pipeline, or of a Savepoint.
    SetFinalizers {
        savepoint: Option<String>,
        finalizers: Vec<String>,
        over: String,
    },
    /// The whole status of a Savepoint.
    SavepointStatus {
        name: String,
        uid: String,
        status: Box<SavepointStatus>,
        over: String,
    },
    /// The whole status of a Backfill.
    BackfillStatus {
        name: String,
        uid: String,
        status: Box<BackfillStatus>,
        over: String,
    },
    /// How many records a backfill may read in a second, to its pod at once. `None`: as many as it can.
    Pace {
        address: String,
        records_per_second: Option<u64>,
    },
}

/// What of the control API's certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certify {
    /// Authority and all that it signs; what the former one signed stays trusted until it ends.
    Authority,
    /// Only what the authority signs.
    Leaves,
}

/// An Event of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub warning: bool,
    /// What it is about, if not the Pipeline.
    pub about: Option<About>,
    /// One word.
    pub reason: String,
    /// One sentence.
    pub note: String,
}

/// Another object than the Pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    pub kind: &'static str,
    pub name: String,
    pub uid: String,
}

impl Event {
    pub fn normal(reason: &str, note: impl Into<String>) -> Self {
        Self { warning: false, about: None, reason: reason.to_owned(), note: note.into() }
    }

    pub fn warning(reason: &str, note: impl Into<String>) -> Self {
        Self { warning: true, ..Self::normal(reason, note) }
    }
}

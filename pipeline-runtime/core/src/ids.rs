//! Names of things. Newtypes, so that a wrong call does not compile.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// The number of a task's commit. The first one is 1; 0 means "never committed".
    Epoch(u64)
);
number!(
    /// The number of an assignment of tasks to workers. Only ever grows.
    Generation(u64)
);
number!(
    /// The number of a history. A restore begins a new one.
    Timeline(u32)
);
number!(
    /// A partition of a topic.
    Partition(i32)
);
number!(
    /// The position of a record in a partition. As a progress mark: the next record to read.
    Offset(i64)
);

/// One stage for one partition: the unit of state, of placement and of hand-over.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskId {
    pub stage: String,
    pub partition: Partition,
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.stage, self.partition)
    }
}

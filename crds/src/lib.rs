//! The API of Millrace as data: what a user writes, and what a cluster stores.
//!
//! - [`pipeline`] holds the types of `Pipeline` v1alpha1, [`savepoint`] those of `Savepoint`, [`backfill`] those of `Backfill`;
//!   their doc comments are the text of `kubectl explain`. [`kind`] says what is known of each.
//! - [`schema`] is the structural schema that is generated from them, [`rules`] what a schema cannot say, [`unserved`]
//!   what this version knows but does not do.
//! - [`crd`] makes a CustomResourceDefinition of the three, [`check`] checks a document against the same three.
//!
//! Invariants: the cluster and `millrace validate` judge by the same schema and the same rules. Shapes only: what crosses
//! parts of a spec is the plan compiler's. No Kubernetes client, no I/O, no clock.

pub mod backfill;
pub mod byte_size;
pub mod check;
pub mod crd;
pub mod duration;
pub mod kind;
pub mod mistake;
pub(crate) mod path;
pub mod pipeline;
pub mod rules;
pub mod savepoint;
pub mod schema;
pub mod timestamp;
pub mod unserved;

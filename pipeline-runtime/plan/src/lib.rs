//! From a spec to a plan.
//!
//! ```text
//!   steps  ─┐                    push filters,      cut into stages
//!           ├─> logical form ──> prune columns ──> at repartitions  ──> Plan
//!   SQL    ─┘   (logical.rs)     (normal.rs)       (stages.rs)
//! ```
//!
//! [`compile`] is pure: the same pipeline gives the same plan, byte for byte, and all mistakes at once instead of one. A
//! plan holds expressions as SQL text; [`bind`] makes them ready for Arrow batches.

pub mod arrow_schema;
pub mod backfill;
mod bind;
mod catalog;
mod compile;
pub mod diff;
pub mod explain;
mod expr;
mod joins;
mod logical;
mod mistakes;
mod names;
mod normal;
mod parse;
mod sql;
mod stages;
pub mod state;
mod steps;
pub mod upsert;

pub use bind::{BoundExpr, EvaluateError, bind};
pub use compile::{Compiled, compile};
pub use diff::{Diff, diff};
pub use explain::{Names, explain};
pub use parse::SqlError;

//! What the operator decides: pure data and pure functions.
//!
//! [`decide::decide`] takes what was [`observed`] of one Pipeline and its objects, and gives back the writes that bring
//! it nearer to what its spec asks for, with the status that is true meanwhile. It is level-based: nothing is remembered
//! between two calls but what stands in the cluster, so a crash between any two writes costs nothing but time.
//!
//! Nothing here reads a clock, talks to a server or draws a random number; that lets a simulator lose, repeat and reorder
//! what the shell does with it.

pub mod assign;
pub mod autoscale;
pub mod backfill;
pub mod cut;
pub mod decide;
pub mod decision;
pub mod facts;
pub mod names;
pub mod observed;
pub mod questions;
pub mod render;
pub mod rules;
pub mod savepoint;
pub mod settings;
pub mod slo;
pub mod status;
